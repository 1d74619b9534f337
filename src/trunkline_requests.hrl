%% How a module sends requests, and waits for responses to them: the same in trunkline and in some
%% of src/otp.
%%
%% To be defined before: OTP, the name of OTP's module, as a string; SINCE and SINCE_IDS, the
%% releases that have a request's id, and collections of these; and RESPONSE(Result), what the
%% module makes of what trunkline_call answers. If all requests have one label, LABEL; if what is
%% asked is no server, EVENTS, and the types of what it is and what it answers.
%%
%% A module includes this after its own exports, and before its own functions.
-ifdef(LABEL).
-export([send_request/2, send_request/4]).
-endif.
-export([wait_response/2, wait_response/3, receive_response/2, receive_response/3,
         check_response/2, check_response/3]).
-export([reqids_new/0, reqids_size/1, reqids_add/3, reqids_to_list/1]).

-export_type([request_id/0, request_id_collection/0, response/0, response_timeout/0]).

-ifndef(EVENTS).
-export_type([server_ref/0]).

-doc "
What `gen_server:call/2` takes: a pid, a registered name, `{Name, Node}`, `{global, Name}` or `{via,
Module, Name}`.
".
-doc #{since => ?SINCE}.
-type server_ref() :: gen_server:server_ref().

-doc "
The answer to a request: a reply, or the reason for which there will be none. `{error, {Reason,
ServerRef}}` has the reasons of `gen_server:receive_response/2`: `noproc`, `noconnection`, or that
for which the server has ended.
".
-doc #{since => ?SINCE}.
-type response() :: {reply, term()} | {error, {Reason :: term(), server_ref()}}.
-endif.

-doc "
Names a request that a process has sent by this module. It is for the functions of this module, not
for those of `" ?OTP "`.
".
-doc #{since => ?SINCE}.
-opaque request_id() :: trunkline_call:request_id().

-doc "
Request ids, each with a label. See `reqids_new/0`.
".
-doc #{since => ?SINCE_IDS}.
-opaque request_id_collection() :: trunkline_call:request_id_collection().

-doc "
How long to wait for a response: milliseconds, `infinity`, or `{abs, Time}`, a point in time as
`erlang:monotonic_time(millisecond)` tells it.
".
-doc #{since => ?SINCE}.
-type response_timeout() :: trunkline_deadline:timeout_time().

-ifdef(LABEL).
-doc "
Sends a request to a server, as `" ?OTP ":send_request/2` does. The result is an id, by which
`receive_response/2`, `wait_response/2` or `check_response/2` get the response.

```erlang
1> Id = " ?MODULE_STRING ":send_request({stock, 'b@host'}, {count, apples}).
2> " ?MODULE_STRING ":receive_response(Id, 1000).
{reply,3}
```
".
-doc #{since => ?SINCE}.
-spec send_request(server_ref(), term()) -> request_id().
send_request(ServerRef, Request) ->
    trunkline_call:send_request(ServerRef, ?LABEL, Request).

-doc "
Sends a request, and adds its id to a collection, with a label, as `" ?OTP ":send_request/4` does.
The result is the new collection.

```erlang
1> Ids0 = " ?MODULE_STRING ":reqids_new().
2> Ids = " ?MODULE_STRING ":send_request({stock, 'b@host'}, {count, apples}, b, Ids0).
3> {{reply, 3}, b, _} = " ?MODULE_STRING ":receive_response(Ids, 1000, true).
```
".
-doc #{since => ?SINCE_IDS}.
-spec send_request(server_ref(), term(), Label :: term(), request_id_collection()) ->
          request_id_collection().
send_request(ServerRef, Request, Label, ReqIds) ->
    trunkline_call:send_request(ServerRef, ?LABEL, Request, Label, ReqIds).
-endif.

-doc "
Waits for the response to a request for up to `Timeout` milliseconds, as
`" ?OTP ":wait_response/2` does. After `timeout` one may wait for it again. The error is `badarg`
if this is no request id, or no timeout.

```erlang
1> " ?MODULE_STRING ":wait_response(Id, 1000).
{reply,3}
```
".
-doc #{since => ?SINCE}.
-spec wait_response(request_id(), response_timeout()) -> response() | timeout.
wait_response(RequestId, Timeout) ->
    ?NAMED(badarg, [RequestId, Timeout],
           ?RESPONSE(trunkline_call:wait_response(RequestId, Timeout))).

-doc "
Waits for the next response to one of a collection of requests, as `" ?OTP ":wait_response/3`
does. The result is `{Response, Label, Ids}`, `no_request` if the collection is empty, or `timeout`.
If `Delete` is `true` the request is not in the new collection any more.

```erlang
1> {{reply, 3}, b, Ids1} = " ?MODULE_STRING ":wait_response(Ids, 1000, true).
```
".
-doc #{since => ?SINCE_IDS}.
-spec wait_response(request_id_collection(), response_timeout(), Delete :: boolean()) ->
          {response(), Label :: term(), request_id_collection()} | no_request | timeout.
wait_response(ReqIds, Timeout, Delete) ->
    ?NAMED(badarg, [ReqIds, Timeout, Delete],
           ?RESPONSE(trunkline_call:wait_response(ReqIds, Timeout, Delete))).

-doc "
Waits for the response to a request for up to `Timeout` milliseconds, as
`" ?OTP ":receive_response/2` does. After `timeout` the response is given up: it never arrives.
The error is `badarg` if this is no request id, or no timeout.

```erlang
1> " ?MODULE_STRING ":receive_response(Id, 1000).
{reply,3}
```
".
-doc #{since => ?SINCE}.
-spec receive_response(request_id(), response_timeout()) -> response() | timeout.
receive_response(RequestId, Timeout) ->
    ?NAMED(badarg, [RequestId, Timeout],
           ?RESPONSE(trunkline_call:receive_response(RequestId, Timeout))).

-doc "
Waits for the next response to one of a collection of requests, as `" ?OTP ":receive_response/3`
does. The results are those of `wait_response/3`. After `timeout` all responses of the collection
are given up: none of them arrives.

```erlang
1> {{reply, 3}, b, Ids1} = " ?MODULE_STRING ":receive_response(Ids, 1000, true).
```
".
-doc #{since => ?SINCE_IDS}.
-spec receive_response(request_id_collection(), response_timeout(), Delete :: boolean()) ->
          {response(), Label :: term(), request_id_collection()} | no_request | timeout.
receive_response(ReqIds, Timeout, Delete) ->
    ?NAMED(badarg, [ReqIds, Timeout, Delete],
           ?RESPONSE(trunkline_call:receive_response(ReqIds, Timeout, Delete))).

-doc "
Whether a message is the response to a request, as `" ?OTP ":check_response/2` says. If it is not,
the result is `no_reply`. A server calls this in its `handle_info/2`.

```erlang
handle_info(Message, #{id := Id} = State) ->
    case " ?MODULE_STRING ":check_response(Message, Id) of
        {reply, Count} -> {noreply, State#{count => Count}};
        {error, _Reason} -> {noreply, State};
        no_reply -> {noreply, State}
    end.
```
".
-doc #{since => ?SINCE}.
-spec check_response(Message :: term(), request_id()) -> response() | no_reply.
check_response(Message, RequestId) ->
    ?NAMED(badarg, [Message, RequestId],
           ?RESPONSE(trunkline_call:check_response(Message, RequestId))).

-doc "
Whether a message is the response to one of a collection of requests, as
`" ?OTP ":check_response/3` says. The result is `{Response, Label, Ids}`, `no_reply` if it is
none, or `no_request` if the collection is empty.

```erlang
1> receive Message -> " ?MODULE_STRING ":check_response(Message, Ids, true) end.
{{reply,3},b,Ids1}
```
".
-doc #{since => ?SINCE_IDS}.
-spec check_response(Message :: term(), request_id_collection(), Delete :: boolean()) ->
          {response(), Label :: term(), request_id_collection()} | no_request | no_reply.
check_response(Message, ReqIds, Delete) ->
    ?NAMED(badarg, [Message, ReqIds, Delete],
           ?RESPONSE(trunkline_call:check_response(Message, ReqIds, Delete))).

-doc "
An empty collection of request ids, as `" ?OTP ":reqids_new/0`. The servers of a collection's
requests may be anywhere: at this node, and at nodes with and without Trunkline.

```erlang
1> Ids = " ?MODULE_STRING ":reqids_new().
```
".
-doc #{since => ?SINCE_IDS}.
-spec reqids_new() -> request_id_collection().
reqids_new() -> trunkline_reqids:new().

-doc "
How many ids there are in a collection. The error is `badarg` if this is none.

```erlang
1> " ?MODULE_STRING ":reqids_size(Ids).
1
```
".
-doc #{since => ?SINCE_IDS}.
-spec reqids_size(request_id_collection()) -> non_neg_integer().
reqids_size(ReqIds) ->
    ?NAMED(badarg, [ReqIds], trunkline_reqids:size(ReqIds)).

-doc "
Adds an id to a collection, with a label. The error is `badarg` if the id is none, or is in the
collection already.

```erlang
1> Ids = " ?MODULE_STRING ":reqids_add(Id, b, " ?MODULE_STRING ":reqids_new()).
```
".
-doc #{since => ?SINCE_IDS}.
-spec reqids_add(request_id(), Label :: term(), request_id_collection()) -> request_id_collection().
reqids_add(RequestId, Label, ReqIds) ->
    ?NAMED(badarg, [RequestId, Label, ReqIds], trunkline_call:reqids_add(RequestId, Label, ReqIds)).

-doc "
The ids of a collection, each with its label. The error is `badarg` if this is none.

```erlang
1> [{Id, b}] = " ?MODULE_STRING ":reqids_to_list(Ids).
```
".
-doc #{since => ?SINCE_IDS}.
-spec reqids_to_list(request_id_collection()) -> [{request_id(), Label :: term()}].
reqids_to_list(ReqIds) ->
    ?NAMED(badarg, [ReqIds], trunkline_reqids:to_list(ReqIds)).
