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

-export([call/3, call/4, send_request/3, send_request/5, wait_response/2, wait_response/3,
         receive_response/2, receive_response/3, check_response/2, check_response/3]).
-export([reqids_new/0, reqids_size/1, reqids_add/3, reqids_to_list/1]).

-export_type([server_ref/0, request_id/0, request_id_collection/0, response/0, response_timeout/0]).

-doc "
What `gen_server:call/2` takes: a pid, a registered name, `{Name, Node}`, `{global, Name}` or `{via,
Module, Name}`.
".
-doc #{since => <<"0.6.0">>}.
-type server_ref() :: trunkline:server_ref().

-doc "
Names a request of this module's `send_request/3`. It is for the functions of this module, not for
those of `gen`.
".
-doc #{since => <<"0.6.0">>}.
-opaque request_id() :: trunkline_call:request_id().

-doc "
Request ids, each with a label. See `reqids_new/0`.
".
-doc #{since => <<"0.6.0">>}.
-opaque request_id_collection() :: trunkline_call:request_id_collection().

-doc "
A reply, or the reason for which there will be none. See `t:trunkline:response/0`.
".
-doc #{since => <<"0.6.0">>}.
-type response() :: trunkline:response().

-doc "
How long to wait for a response: milliseconds, `infinity`, or `{abs, Time}`, a point in time as
`erlang:monotonic_time(millisecond)` tells it.
".
-doc #{since => <<"0.6.0">>}.
-type response_timeout() :: trunkline:response_timeout().

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
Like `call/3`, with a time-out in milliseconds, or `infinity`.

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

-doc "
Waits for the response to a request for up to `Timeout` milliseconds, as `gen:wait_response/2` does.
After `timeout` one may wait for it again. The error is `badarg` if this is no request id, or no
time-out.

```erlang
1> trunkline_gen:wait_response(Id, 1000).
{reply,3}
```
".
-doc #{since => <<"0.6.0">>}.
-spec wait_response(request_id(), response_timeout()) -> response() | timeout.
wait_response(RequestId, Timeout) ->
    ?NAMED(badarg, [RequestId, Timeout], trunkline_call:wait_response(RequestId, Timeout)).

-doc "
Waits for the next response to one of a collection of requests, as `gen:wait_response/3` does. The
result is `{Response, Label, Ids}`, `no_request` if the collection is empty, or `timeout`. If
`Delete` is `true` the request is not in the new collection any more.

```erlang
1> {{reply, 3}, b, Ids1} = trunkline_gen:wait_response(Ids, 1000, true).
```
".
-doc #{since => <<"0.6.0">>}.
-spec wait_response(request_id_collection(), response_timeout(), Delete :: boolean()) ->
          {response(), Label :: term(), request_id_collection()} | no_request | timeout.
wait_response(ReqIds, Timeout, Delete) ->
    ?NAMED(badarg, [ReqIds, Timeout, Delete],
           trunkline_call:wait_response(ReqIds, Timeout, Delete)).

-doc "
Waits for the response to a request for up to `Timeout` milliseconds, as `gen:receive_response/2`
does. After `timeout` the response is given up: it never arrives. The error is `badarg` if this is
no request id, or no time-out.

```erlang
1> trunkline_gen:receive_response(Id, 1000).
{reply,3}
```
".
-doc #{since => <<"0.6.0">>}.
-spec receive_response(request_id(), response_timeout()) -> response() | timeout.
receive_response(RequestId, Timeout) ->
    ?NAMED(badarg, [RequestId, Timeout], trunkline_call:receive_response(RequestId, Timeout)).

-doc "
Waits for the next response to one of a collection of requests, as `gen:receive_response/3` does.
The results are those of `wait_response/3`. After `timeout` all responses of the collection are
given up: none of them arrives.

```erlang
1> {{reply, 3}, b, Ids1} = trunkline_gen:receive_response(Ids, 1000, true).
```
".
-doc #{since => <<"0.6.0">>}.
-spec receive_response(request_id_collection(), response_timeout(), Delete :: boolean()) ->
          {response(), Label :: term(), request_id_collection()} | no_request | timeout.
receive_response(ReqIds, Timeout, Delete) ->
    ?NAMED(badarg, [ReqIds, Timeout, Delete],
           trunkline_call:receive_response(ReqIds, Timeout, Delete)).

-doc "
Whether a message is the response to a request, as `gen:check_response/2` says. If it is not, the
result is `no_reply`.

```erlang
1> receive Message -> trunkline_gen:check_response(Message, Id) end.
{reply,3}
```
".
-doc #{since => <<"0.6.0">>}.
-spec check_response(Message :: term(), request_id()) -> response() | no_reply.
check_response(Message, RequestId) ->
    ?NAMED(badarg, [Message, RequestId], trunkline_call:check_response(Message, RequestId)).

-doc "
Whether a message is the response to one of a collection of requests, as `gen:check_response/3`
says. The result is `{Response, Label, Ids}`, `no_reply` if it is none, or `no_request` if the
collection is empty.

```erlang
1> receive Message -> trunkline_gen:check_response(Message, Ids, true) end.
{{reply,3},b,Ids1}
```
".
-doc #{since => <<"0.6.0">>}.
-spec check_response(Message :: term(), request_id_collection(), Delete :: boolean()) ->
          {response(), Label :: term(), request_id_collection()} | no_request | no_reply.
check_response(Message, ReqIds, Delete) ->
    ?NAMED(badarg, [Message, ReqIds, Delete],
           trunkline_call:check_response(Message, ReqIds, Delete)).

-doc "
An empty collection of request ids, as `gen:reqids_new/0`.

```erlang
1> Ids = trunkline_gen:reqids_new().
```
".
-doc #{since => <<"0.6.0">>}.
-spec reqids_new() -> request_id_collection().
reqids_new() -> trunkline_reqids:new().

-doc "
How many ids there are in a collection. The error is `badarg` if this is none.

```erlang
1> trunkline_gen:reqids_size(Ids).
1
```
".
-doc #{since => <<"0.6.0">>}.
-spec reqids_size(request_id_collection()) -> non_neg_integer().
reqids_size(ReqIds) ->
    ?NAMED(badarg, [ReqIds], trunkline_reqids:size(ReqIds)).

-doc "
Adds an id to a collection, with a label. The error is `badarg` if the id is none, or is in the
collection already.

```erlang
1> Ids = trunkline_gen:reqids_add(Id, b, trunkline_gen:reqids_new()).
```
".
-doc #{since => <<"0.6.0">>}.
-spec reqids_add(request_id(), Label :: term(), request_id_collection()) -> request_id_collection().
reqids_add(RequestId, Label, ReqIds) ->
    ?NAMED(badarg, [RequestId, Label, ReqIds], trunkline_call:reqids_add(RequestId, Label, ReqIds)).

-doc "
The ids of a collection, each with its label. The error is `badarg` if this is none.

```erlang
1> [{Id, b}] = trunkline_gen:reqids_to_list(Ids).
```
".
-doc #{since => <<"0.6.0">>}.
-spec reqids_to_list(request_id_collection()) -> [{request_id(), Label :: term()}].
reqids_to_list(ReqIds) ->
    ?NAMED(badarg, [ReqIds], trunkline_reqids:to_list(ReqIds)).
