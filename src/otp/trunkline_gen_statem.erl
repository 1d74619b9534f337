-module(trunkline_gen_statem).
-moduledoc "
The functions of `gen_statem` for callers, by lane.

They have the arguments, results and exits of those of `gen_statem`, so code needs no change but the
module's name. The server gets what it would get from `gen_statem`.

```erlang
1> trunkline_gen_statem:call({door, 'b@host'}, open).
ok
```
".
-moduledoc #{since => <<"0.5.0">>}.
-compile({parse_transform, trunkline_docs}).

-include("../trunkline_errors.hrl").

-export([call/2, call/3, cast/2, wait_response/1, receive_response/1]).

%% ms: the runtime system takes no longer timeout.
-define(LONGEST, 16#ffffffff).

-define(OTP, "gen_statem").
-define(LABEL, '$gen_call').
-define(SINCE, <<"0.5.0">>).
-define(SINCE_IDS, <<"0.5.0">>).
-define(RESPONSE(Response), Response).
-include("../trunkline_requests.hrl").

-doc "
Calls a server and waits for its reply without a limit in time, as `gen_statem:call/2` does, and
exits as that does: with `{Reason, {gen_statem, call, Args}}`.

```erlang
1> trunkline_gen_statem:call({door, 'b@host'}, open).
ok
```
".
-doc #{since => <<"0.5.0">>}.
-spec call(server_ref(), term()) -> term().
call(ServerRef, Request) ->
    call(ServerRef, Request, infinity).

-doc "
Like `call/2`, with a timeout in milliseconds, as `gen_statem:call/3`. Every timeout is a clean
one: no reply arrives later, and there is no process between the caller and the server. So
`{clean_timeout, T}` and `{dirty_timeout, T}` mean the same. The error is `badarg` for another pair.

```erlang
1> trunkline_gen_statem:call({door, 'b@host'}, open, 1000).
ok
```
".
-doc #{since => <<"0.5.0">>}.
-spec call(server_ref(), term(), timeout() | {clean_timeout | dirty_timeout, timeout()}) -> term().
call(ServerRef, Request, Timeout) ->
    T = case Timeout of
            {clean_timeout, Clean} -> Clean;
            {dirty_timeout, Dirty} -> Dirty;
            {_, _} -> ?BAD_ARGUMENT(badarg, [ServerRef, Request, Timeout]);
            _ -> Timeout
        end,
    case is_integer(T) andalso T > ?LONGEST of
        true ->
            %% (The call is made, and nothing of it is left here.)
            gen_statem:call(ServerRef, Request, Timeout);
        false ->
            trunkline_call:call(ServerRef, '$gen_call', Request, T,
                                {gen_statem, call, [ServerRef, Request, Timeout]})
    end.

-doc "
Sends an event to a server and does not wait for it, as `gen_statem:cast/2` does.

```erlang
1> trunkline_gen_statem:cast({door, 'b@host'}, open).
ok
```
".
-doc #{since => <<"0.5.0">>}.
-spec cast(server_ref(), term()) -> ok.
cast(ServerRef, Request) -> trunkline:cast(ServerRef, Request).

-doc "
Waits for the response to a request without a limit in time, as `gen_statem:wait_response/1` does.

```erlang
1> trunkline_gen_statem:wait_response(Id).
{reply,3}
```
".
-doc #{since => <<"0.5.0">>}.
-spec wait_response(request_id()) -> response().
wait_response(RequestId) ->
    ?NAMED(badarg, [RequestId], trunkline_call:wait_response(RequestId, infinity)).

-doc "
Waits for the response to a request without a limit in time, as `gen_statem:receive_response/1`
does.

```erlang
1> trunkline_gen_statem:receive_response(Id).
{reply,3}
```
".
-doc #{since => <<"0.5.0">>}.
-spec receive_response(request_id()) -> response().
receive_response(RequestId) ->
    ?NAMED(badarg, [RequestId], trunkline_call:receive_response(RequestId, infinity)).
