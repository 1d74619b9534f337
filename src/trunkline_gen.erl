%% gen's functions for callers, by lane: behaviours of one's own (RabbitMQ's gen_server2, for
%% one) call their servers with them. The result of a call is {ok, Reply}, and it exits with
%% the bare reason.
%%
%% The label of a request is the caller's choice. A request to a peer whose Trunkline cannot
%% say that label goes as gen would send it.
%%
%% There is no reply/2 here, as there is none in trunkline_gen_server: a reply goes the way on
%% which its request came, whoever calls gen:reply/2. The tag of a request by lane is the alias of
%% a lane (see trunkline_agent), by which the reply stays in order with what the server has
%% sent by Trunkline. A request that came by the distribution is answered by the
%% distribution: there the caller monitors the server itself, and a reply by lane could come after
%% the 'DOWN' of a server that replies and ends.
-module(trunkline_gen).

-include("trunkline_errors.hrl").

-export([call/3, call/4, send_request/3, send_request/5, wait_response/2, wait_response/3,
         receive_response/2, receive_response/3, check_response/2, check_response/3]).
-export([reqids_new/0, reqids_size/1, reqids_add/3, reqids_to_list/1]).

-export_type([request_id/0, request_id_collection/0]).

-type server_ref() :: trunkline:server_ref().
-opaque request_id() :: trunkline_call:request_id().
-opaque request_id_collection() :: trunkline_call:request_id_collection().
-type response() :: trunkline:response().
-type response_timeout() :: trunkline:response_timeout().

-spec call(server_ref(), Label :: term(), term()) -> {ok, Reply :: term()}.
call(Process, Label, Request) ->
    call(Process, Label, Request, 5000).

-spec call(server_ref(), Label :: term(), term(), timeout()) -> {ok, Reply :: term()}.
call(Process, Label, Request, Timeout) ->
    {ok, trunkline_call:call(Process, Label, Request, Timeout, none)}.

-spec send_request(server_ref(), Tag :: term(), term()) -> request_id().
send_request(Process, Tag, Request) ->
    trunkline_call:send_request(Process, Tag, Request).

-spec send_request(server_ref(), Tag :: term(), term(), Label :: term(), request_id_collection()) ->
          request_id_collection().
send_request(Process, Tag, Request, Label, ReqIds) ->
    trunkline_call:send_request(Process, Tag, Request, Label, ReqIds).

-spec wait_response(request_id(), response_timeout()) -> response() | timeout.
wait_response(RequestId, Timeout) ->
    ?NAMED(badarg, [RequestId, Timeout], trunkline_call:wait_response(RequestId, Timeout)).

-spec wait_response(request_id_collection(), response_timeout(), Delete :: boolean()) ->
          {response(), Label :: term(), request_id_collection()} | no_request | timeout.
wait_response(ReqIds, Timeout, Delete) ->
    ?NAMED(badarg, [ReqIds, Timeout, Delete], trunkline_call:wait_response(ReqIds, Timeout, Delete)).

-spec receive_response(request_id(), response_timeout()) -> response() | timeout.
receive_response(RequestId, Timeout) ->
    ?NAMED(badarg, [RequestId, Timeout], trunkline_call:receive_response(RequestId, Timeout)).

-spec receive_response(request_id_collection(), response_timeout(), Delete :: boolean()) ->
          {response(), Label :: term(), request_id_collection()} | no_request | timeout.
receive_response(ReqIds, Timeout, Delete) ->
    ?NAMED(badarg, [ReqIds, Timeout, Delete], trunkline_call:receive_response(ReqIds, Timeout, Delete)).

-spec check_response(Message :: term(), request_id()) -> response() | no_reply.
check_response(Message, RequestId) ->
    ?NAMED(badarg, [Message, RequestId], trunkline_call:check_response(Message, RequestId)).

-spec check_response(Message :: term(), request_id_collection(), Delete :: boolean()) ->
          {response(), Label :: term(), request_id_collection()} | no_request | no_reply.
check_response(Message, ReqIds, Delete) ->
    ?NAMED(badarg, [Message, ReqIds, Delete], trunkline_call:check_response(Message, ReqIds, Delete)).

-spec reqids_new() -> request_id_collection().
reqids_new() -> trunkline_reqids:new().

-spec reqids_size(request_id_collection()) -> non_neg_integer().
reqids_size(ReqIds) ->
    ?NAMED(badarg, [ReqIds], trunkline_reqids:size(ReqIds)).

-spec reqids_add(request_id(), Label :: term(), request_id_collection()) -> request_id_collection().
reqids_add(RequestId, Label, ReqIds) ->
    ?NAMED(badarg, [RequestId, Label, ReqIds], trunkline_call:reqids_add(RequestId, Label, ReqIds)).

-spec reqids_to_list(request_id_collection()) -> [{request_id(), Label :: term()}].
reqids_to_list(ReqIds) ->
    ?NAMED(badarg, [ReqIds], trunkline_reqids:to_list(ReqIds)).
