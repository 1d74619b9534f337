-module(trunkline_gen).
-moduledoc "
The functions of `gen` for callers, by lane, for behaviours of your own.

A behaviour that is not OTP's, such as RabbitMQ's `gen_server2`, calls its servers by
`gen:call/3,4`, with a label of its own. These functions have the same arguments and results, and
exit with the bare reason, as those do. The server replies by `gen:reply/2`, as always: a reply goes
the way on which its request came.

```erlang
1> trunkline_gen:call({stock, 'b@host'}, '$gen_call', count).
{ok,3}
```
".
-moduledoc #{since => <<"0.6.0">>}.
-compile({parse_transform, trunkline_docs}).

%% There is no reply/2 here or in trunkline_gen_server: whichever process calls gen:reply/2, the
%% reply takes the way on which its request came. The tag of a request by lane is the alias of a
%% lane (see trunkline_agent), which keeps the reply in order with what the server has sent by
%% Trunkline. A request by the distribution is answered by the distribution: its caller monitors the
%% server itself, and a reply by lane could come after the 'DOWN' of a server that replies and ends.

-include("../trunkline_errors.hrl").

-export([call/3, call/4, send_request/3, send_request/5]).

-define(OTP, "gen").
-define(SINCE, <<"0.6.0">>).
-define(SINCE_IDS, <<"0.6.0">>).
-define(RESPONSE(Response), Response).
-include("../trunkline_requests.hrl").

-doc "
Calls a server and waits up to 5,000 milliseconds for its reply, as `gen:call/3` does. The result is
`{ok, Reply}`. It exits with the bare reason.

```erlang
1> trunkline_gen:call({stock, 'b@host'}, '$gen_call', count).
{ok,3}
```
".
-doc #{since => <<"0.6.0">>}.
-spec call(server_ref(), Label :: term(), term()) -> {ok, Reply :: term()}.
call(Process, Label, Request) ->
    call(Process, Label, Request, 5000).

-doc "
Like `call/3`, with a timeout in milliseconds, or `infinity`.

```erlang
1> trunkline_gen:call({stock, 'b@host'}, '$gen_call', count, 1000).
{ok,3}
```
".
-doc #{since => <<"0.6.0">>}.
-spec call(server_ref(), Label :: term(), term(), timeout()) -> {ok, Reply :: term()}.
call(Process, Label, Request, Timeout) ->
    {ok, trunkline_call:call(Process, Label, Request, Timeout, none)}.

-doc "
Sends a request, as `gen:send_request/3` does. The result is an id, by which `receive_response/2`,
`wait_response/2` or `check_response/2` get the response.

```erlang
1> Id = trunkline_gen:send_request({stock, 'b@host'}, '$gen_call', count).
2> trunkline_gen:receive_response(Id, 1000).
{reply,3}
```
".
-doc #{since => <<"0.6.0">>}.
-spec send_request(server_ref(), Tag :: term(), term()) -> request_id().
send_request(Process, Tag, Request) ->
    trunkline_call:send_request(Process, Tag, Request).

-doc "
Sends a request, and adds its id to a collection, with a label, as `gen:send_request/5` does. The
result is the new collection.

```erlang
1> Ids0 = trunkline_gen:reqids_new().
2> Ids = trunkline_gen:send_request({stock, 'b@host'}, '$gen_call', count, b, Ids0).
3> {{reply, 3}, b, _} = trunkline_gen:receive_response(Ids, 1000, true).
```
".
-doc #{since => <<"0.6.0">>}.
-spec send_request(server_ref(), Tag :: term(), term(), Label :: term(), request_id_collection()) ->
          request_id_collection().
send_request(Process, Tag, Request, Label, ReqIds) ->
    trunkline_call:send_request(Process, Tag, Request, Label, ReqIds).
