-module(trunkline_gen_event).
-moduledoc "
The functions of `gen_event` for those who notify and ask an event manager, by lane.

They have the arguments, results and exits of those of `gen_event`, so code needs no change but the
module's name.

```erlang
1> trunkline_gen_event:notify({alarms, 'b@host'}, {high, temperature}).
ok
```
".
-moduledoc #{since => <<"0.5.0">>}.
-compile({parse_transform, trunkline_docs}).

%% The label of a request is the caller's pid, where gen_server has '$gen_call'.

-include("../trunkline_errors.hrl").

-export([notify/2, sync_notify/2, call/3, call/4]).
-export([add_handler/3, add_sup_handler/3, delete_handler/3, swap_handler/3, swap_sup_handler/3,
         which_handlers/1]).
-export([send_request/3, send_request/5]).

-export_type([emgr_ref/0, handler/0]).

-define(OTP, "gen_event").
-define(EVENTS, true).
-define(SINCE, <<"0.5.0">>).
-define(SINCE_IDS, <<"0.5.0">>).
-define(RESPONSE(Response), plain_error(Response)).
-include("../trunkline_requests.hrl").

-doc "
An event manager: a pid, a registered name, `{Name, Node}`, `{global, Name}` or `{via, Module,
Name}`.
".
-doc #{since => <<"0.5.0">>}.
-type emgr_ref() :: trunkline:server_ref().        % gen_event exports no such type

-doc "
An event handler: a module, or `{Module, Id}`.
".
-doc #{since => <<"0.5.0">>}.
-type handler() :: gen_event:handler().

-doc "
`{reply, Reply}`, or `{error, Reason}`: there is no such handler, it has failed, or there will be no
reply.
".
-doc #{since => <<"0.5.0">>}.
-type response() :: {reply, term()} | {error, term()}.

-doc "
Sends an event to a manager and does not wait for it, as `gen_event:notify/2` does. The error is
`badarg` if the manager is a name of this node that no process has.

```erlang
1> trunkline_gen_event:notify({alarms, 'b@host'}, {high, temperature}).
ok
```
".
-doc #{since => <<"0.5.0">>}.
-spec notify(emgr_ref(), term()) -> ok.
notify({global, Name}, Event) ->
    notify({via, global, Name}, Event);
notify({via, Module, Name}, Event) ->
    trunkline_send:via(Module, Name, {notify, Event});
notify(Managers, Event) when is_list(Managers) ->
    ?BAD_ARGUMENT(badarg, [Managers, Event]);         % send/2 would take it for many
notify(Manager, Event) ->
    _ = trunkline:send(Manager, {notify, Event}),
    ok.

-doc "
Sends an event to a manager and waits until all handlers have had it, as `gen_event:sync_notify/2`
does. It exits with the bare reason, as that does.

```erlang
1> trunkline_gen_event:sync_notify({alarms, 'b@host'}, {high, temperature}).
ok
```
".
-doc #{since => <<"0.5.0">>}.
-spec sync_notify(emgr_ref(), term()) -> ok.
sync_notify(Manager, Event) -> ask(Manager, {sync_notify, Event}).

-doc "
Asks a handler and waits up to 5,000 milliseconds for the answer, as `gen_event:call/3` does, and
exits as that does.

```erlang
1> trunkline_gen_event:call({alarms, 'b@host'}, counter, count).
3
```
".
-doc #{since => <<"0.5.0">>}.
-spec call(emgr_ref(), handler(), term()) -> term().
call(Manager, Handler, Query) ->
    trunkline_call:call(Manager, self(), {call, Handler, Query}, 5000,
                        {gen_event, call, [Manager, Handler, Query]}).

-doc "
Like `call/3`, with a timeout in milliseconds, or `infinity`.

```erlang
1> trunkline_gen_event:call({alarms, 'b@host'}, counter, count, 1000).
3
```
".
-doc #{since => <<"0.5.0">>}.
-spec call(emgr_ref(), handler(), term(), timeout()) -> term().
call(Manager, Handler, Query, Timeout) ->
    trunkline_call:call(Manager, self(), {call, Handler, Query}, Timeout,
                        {gen_event, call, [Manager, Handler, Query, Timeout]}).

-doc "
Adds a handler, as `gen_event:add_handler/3` does.

```erlang
1> trunkline_gen_event:add_handler({alarms, 'b@host'}, counter, []).
ok
```
".
-doc #{since => <<"0.5.0">>}.
-spec add_handler(emgr_ref(), handler(), term()) -> term().
add_handler(Manager, Handler, Args) -> ask(Manager, {add_handler, Handler, Args}).

-doc "
Adds a handler and supervises it, as `gen_event:add_sup_handler/3` does. The link between the
manager and the caller is OTP's own, between nodes too.

```erlang
1> trunkline_gen_event:add_sup_handler({alarms, 'b@host'}, counter, []).
ok
```
".
-doc #{since => <<"0.5.0">>}.
-spec add_sup_handler(emgr_ref(), handler(), term()) -> term().
add_sup_handler(Manager, Handler, Args) -> ask(Manager, {add_sup_handler, Handler, Args, self()}).

-doc "
Deletes a handler, as `gen_event:delete_handler/3` does, and returns what it returns at last.

```erlang
1> trunkline_gen_event:delete_handler({alarms, 'b@host'}, counter, []).
3
```
".
-doc #{since => <<"0.5.0">>}.
-spec delete_handler(emgr_ref(), handler(), term()) -> term().
delete_handler(Manager, Handler, Args) -> ask(Manager, {delete_handler, Handler, Args}).

-doc "
Replaces a handler by another one, as `gen_event:swap_handler/3` does.

```erlang
1> trunkline_gen_event:swap_handler({alarms, 'b@host'}, {counter, []}, {counter2, []}).
ok
```
".
-doc #{since => <<"0.5.0">>}.
-spec swap_handler(emgr_ref(), {handler(), term()}, {handler(), term()}) -> ok | {error, term()}.
swap_handler(Manager, {Handler1, Args1}, {Handler2, Args2}) ->
    ask(Manager, {swap_handler, Handler1, Args1, Handler2, Args2}).

-doc "
Replaces a handler by another one and supervises that, as `gen_event:swap_sup_handler/3` does.

```erlang
1> trunkline_gen_event:swap_sup_handler({alarms, 'b@host'}, {counter, []}, {counter2, []}).
ok
```
".
-doc #{since => <<"0.5.0">>}.
-spec swap_sup_handler(emgr_ref(), {handler(), term()}, {handler(), term()}) ->
          ok | {error, term()}.
swap_sup_handler(Manager, {Handler1, Args1}, {Handler2, Args2}) ->
    ask(Manager, {swap_sup_handler, Handler1, Args1, Handler2, Args2, self()}).

-doc "
The handlers of a manager, as `gen_event:which_handlers/1`.

```erlang
1> trunkline_gen_event:which_handlers({alarms, 'b@host'}).
[counter]
```
".
-doc #{since => <<"0.5.0">>}.
-spec which_handlers(emgr_ref()) -> [handler()].
which_handlers(Manager) -> ask(Manager, which_handlers).

%% The callers of ask/2 wait as long as it takes, and exit with the bare reason.
ask(Manager, Command) -> trunkline_call:call(Manager, self(), Command, infinity, none).

-doc "
Sends a request, as `gen_event:send_request/3` does. The result is an id, by which
`receive_response/2`, `wait_response/2` or `check_response/2` get the response.

```erlang
1> Id = trunkline_gen_event:send_request({alarms, 'b@host'}, counter, count).
2> trunkline_gen_event:receive_response(Id, 1000).
{reply,3}
```
".
-doc #{since => <<"0.5.0">>}.
-spec send_request(emgr_ref(), handler(), term()) -> request_id().
send_request(Manager, Handler, Query) ->
    trunkline_call:send_request(Manager, self(), {call, Handler, Query}).

-doc "
Sends a request, and adds its id to a collection, with a label, as `gen_event:send_request/5` does.
The result is the new collection.

```erlang
1> Ids0 = trunkline_gen_event:reqids_new().
2> Ids = trunkline_gen_event:send_request({alarms, 'b@host'}, counter, count, b, Ids0).
3> {{reply, 3}, b, _} = trunkline_gen_event:receive_response(Ids, 1000, true).
```
".
-doc #{since => <<"0.5.0">>}.
-spec send_request(emgr_ref(), handler(), term(), Label :: term(), request_id_collection()) ->
          request_id_collection().
send_request(Manager, Handler, Query, Label, ReqIds) ->
    trunkline_call:send_request(Manager, self(), {call, Handler, Query}, Label, ReqIds).

plain_error({reply, {error, _} = Error}) -> Error;
plain_error({{reply, {error, _} = Error}, Label, ReqIds}) -> {Error, Label, ReqIds};
plain_error(Other) -> Other.
