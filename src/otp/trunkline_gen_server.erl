%% (This folder has OTP's interfaces over the core, and what puts them into existing code: the parse
%% transform, and adopted BEAM files.)
-module(trunkline_gen_server).
-moduledoc "
The functions of `gen_server` for callers, by lane.

They have the arguments, results and exits of those of `gen_server`: a call exits with `{Reason,
{gen_server, call, Args}}`. So code that matches on exits needs no change but the module's name.
Otherwise they are the functions of `trunkline`.

```erlang
1> trunkline_gen_server:call({stock, 'b@host'}, {take, apples, 3}).
{ok,3}
```
".
-moduledoc #{since => <<"0.5.0">>}.
-compile({parse_transform, trunkline_docs}).

-include("../trunkline_errors.hrl").

-export([call/2, call/3, cast/2, multi_call/2, multi_call/3, multi_call/4, abcast/2, abcast/3]).
-export([send_request/2, send_request/4, wait_response/2, wait_response/3,
         receive_response/2, receive_response/3, check_response/2, check_response/3]).
-export([reqids_new/0, reqids_size/1, reqids_add/3, reqids_to_list/1]).

-export_type([server_ref/0, request_id/0, request_id_collection/0, response/0, response_timeout/0]).

-doc "
What `gen_server:call/2` takes: a pid, a registered name, `{Name, Node}`, `{global, Name}` or `{via,
Module, Name}`.
".
-doc #{since => <<"0.5.0">>}.
-type server_ref() :: trunkline:server_ref().

-doc "
A reply, or the reason for which there will be none. See `t:trunkline:response/0`.
".
-doc #{since => <<"0.5.0">>}.
-type response() :: trunkline:response().

-doc "
Calls a server and waits up to 5,000 milliseconds for its reply, as `gen_server:call/2` does, and
exits as that does. The reason is `overload` if the server has an inbox that is full and does not
let senders wait (see `trunkline_inbox`).

```erlang
1> trunkline_gen_server:call({stock, 'b@host'}, {take, apples, 3}).
{ok,3}
```
".
-doc #{since => <<"0.5.0">>}.
-spec call(server_ref(), term()) -> term().
call(ServerRef, Request) ->
    trunkline_call:call(ServerRef, Request, 5000, {gen_server, call, [ServerRef, Request]}).

-doc "
Like `call/2`, with a time-out in milliseconds, or `infinity`. The time includes the wait for room
in the lane.

```erlang
1> trunkline_gen_server:call({stock, 'b@host'}, {take, apples, 3}, 1000).
{ok,3}
```
".
-doc #{since => <<"0.5.0">>}.
-spec call(server_ref(), term(), timeout()) -> term().
call(ServerRef, Request, Timeout) ->
    trunkline_call:call(ServerRef, Request, Timeout,
                        {gen_server, call, [ServerRef, Request, Timeout]}).

-doc "
Calls the servers of a name at this node and at all connected nodes, and waits for all of them, as
`gen_server:multi_call/2` does.

```erlang
1> trunkline_gen_server:multi_call(stock, {count, apples}).
{[{'a@host',17},{'b@host',3}],[]}
```
".
-doc #{since => <<"0.5.0">>}.
-spec multi_call(Name :: atom(), term()) -> {Replies :: [{node(), term()}], BadNodes :: [node()]}.
multi_call(Name, Request) -> trunkline:multi_call(Name, Request).

-doc "
Calls the servers of a name at these nodes, and waits for all of them, as `gen_server:multi_call/3`
does.

```erlang
1> trunkline_gen_server:multi_call(['b@host', 'c@host'], stock, {count, apples}).
{[{'b@host',3}],['c@host']}
```
".
-doc #{since => <<"0.5.0">>}.
-spec multi_call([node()], Name :: atom(), term()) ->
          {Replies :: [{node(), term()}], BadNodes :: [node()]}.
multi_call(Nodes, Name, Request) -> trunkline:multi_call(Nodes, Name, Request).

-doc "
Calls the servers of a name at these nodes, and waits for up to `Timeout` milliseconds, as
`gen_server:multi_call/4` does. Both lists of the result are in the order of the nodes. The error is
`badarg` if one of the list is no node, as in OTP 27.

```erlang
1> trunkline_gen_server:multi_call(['b@host', 'c@host'], stock, {count, apples}, 1000).
{[{'b@host',3}],['c@host']}
```
".
-doc #{since => <<"0.5.0">>}.
-spec multi_call([node()], Name :: atom(), term(), timeout()) ->
          {Replies :: [{node(), term()}], BadNodes :: [node()]}.
multi_call(Nodes, Name, Request, Timeout) -> trunkline:multi_call(Nodes, Name, Request, Timeout).

-doc "
Casts to the servers of a name at this node and at all connected nodes, as `gen_server:abcast/2`
does.

```erlang
1> trunkline_gen_server:abcast(stock, close).
abcast
```
".
-doc #{since => <<"0.5.0">>}.
-spec abcast(Name :: atom(), term()) -> abcast.
abcast(Name, Request) -> trunkline:abcast(Name, Request).

-doc "
Casts to the servers of a name at these nodes, as `gen_server:abcast/3` does.

```erlang
1> trunkline_gen_server:abcast(['b@host', 'c@host'], stock, close).
abcast
```
".
-doc #{since => <<"0.5.0">>}.
-spec abcast([node()], Name :: atom(), term()) -> abcast.
abcast(Nodes, Name, Request) -> trunkline:abcast(Nodes, Name, Request).

-doc "
Sends a request to a server and does not wait for it, as `gen_server:cast/2` does.

```erlang
1> trunkline_gen_server:cast({stock, 'b@host'}, {add, apples, 20}).
ok
```
".
-doc #{since => <<"0.5.0">>}.
-spec cast(server_ref(), term()) -> ok.
cast(ServerRef, Request) -> trunkline:cast(ServerRef, Request).

-doc "
Sends a request, as `gen_server:send_request/2` does. The result is an id, by which
`receive_response/2`, `wait_response/2` or `check_response/2` get the response.

```erlang
1> Id = trunkline_gen_server:send_request({stock, 'b@host'}, count).
2> trunkline_gen_server:receive_response(Id, 1000).
{reply,3}
```
".
-doc #{since => <<"0.5.0">>}.
-spec send_request(server_ref(), term()) -> request_id().
send_request(ServerRef, Request) -> trunkline_call:send_request(ServerRef, '$gen_call', Request).

-doc "
Sends a request, and adds its id to a collection, with a label, as `gen_server:send_request/4` does.
The result is the new collection.

```erlang
1> Ids0 = trunkline_gen_server:reqids_new().
2> Ids = trunkline_gen_server:send_request({stock, 'b@host'}, count, b, Ids0).
3> {{reply, 3}, b, _} = trunkline_gen_server:receive_response(Ids, 1000, true).
```
".
-doc #{since => <<"0.5.0">>}.
-spec send_request(server_ref(), term(), Label :: term(), request_id_collection()) ->
          request_id_collection().
send_request(ServerRef, Request, Label, ReqIds) ->
    trunkline_call:send_request(ServerRef, '$gen_call', Request, Label, ReqIds).

-define(OTP, "gen_server").
-define(SINCE, <<"0.5.0">>).
-define(SINCE_IDS, <<"0.5.0">>).
-define(RESPONSE(Response), Response).
-include("../trunkline_requests.hrl").
