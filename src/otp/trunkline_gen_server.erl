%% (This folder has OTP's interfaces over the core, and what puts them into existing code: the parse
%% transform, and adopted BEAM files.)
-module(trunkline_gen_server).
-moduledoc "
The functions of `gen_server` for callers, by lane.

They have the arguments, results and exits of those of `gen_server`: a call exits with `{Reason,
{gen_server, call, Args}}`. So code that matches on exits needs no change but the module's name.
Otherwise they are the functions of `trunkline`.

A server needs none of its own: `gen_server:reply/2` sends the reply by lane if the request has come
by lane. `gen_server:stop/1,3` remain OTP's.

```erlang
1> trunkline_gen_server:call({stock, 'b@host'}, {take, apples, 3}).
{ok,3}
```
".
-moduledoc #{since => <<"0.5.0">>}.
-compile({parse_transform, trunkline_docs}).

-include("../trunkline_errors.hrl").

-export([call/2, call/3, cast/2, multi_call/2, multi_call/3, multi_call/4, abcast/2, abcast/3]).

-define(OTP, "gen_server").
-define(LABEL, '$gen_call').
-define(SINCE, <<"0.5.0">>).
-define(SINCE_IDS, <<"0.5.0">>).
-define(RESPONSE(Response), Response).
-include("../trunkline_requests.hrl").

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
Like `call/2`, with a timeout in milliseconds, or `infinity`. The time includes the wait for room
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

-include("../trunkline_multi_call.hrl").

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
