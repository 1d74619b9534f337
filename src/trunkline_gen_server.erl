%% gen_server's functions for callers, by lane, for code that should change nothing but the
%% module's name: they are those of `trunkline', but a call exits with what gen_server's own
%% exits with.
-module(trunkline_gen_server).

-include("trunkline_errors.hrl").

-export([call/2, call/3, cast/2, multi_call/2, multi_call/3, multi_call/4, abcast/2, abcast/3]).
-export([send_request/2, send_request/4, wait_response/2, wait_response/3,
         receive_response/2, receive_response/3, check_response/2, check_response/3]).
-export([reqids_new/0, reqids_size/1, reqids_add/3, reqids_to_list/1]).

-export_type([request_id/0, request_id_collection/0]).

-type server_ref() :: trunkline:server_ref().
-opaque request_id() :: trunkline_call:request_id().
-opaque request_id_collection() :: trunkline_call:request_id_collection().
-type response() :: trunkline:response().
-type response_timeout() :: trunkline:response_timeout().

-spec call(server_ref(), term()) -> term().
call(ServerRef, Request) ->
    trunkline_call:call(ServerRef, Request, 5000, {gen_server, call, [ServerRef, Request]}).

-spec call(server_ref(), term(), timeout()) -> term().
call(ServerRef, Request, Timeout) ->
    trunkline_call:call(ServerRef, Request, Timeout, {gen_server, call, [ServerRef, Request, Timeout]}).

-spec multi_call(Name :: atom(), term()) -> {Replies :: [{node(), term()}], BadNodes :: [node()]}.
multi_call(Name, Request) -> trunkline:multi_call(Name, Request).

-spec multi_call([node()], Name :: atom(), term()) -> {Replies :: [{node(), term()}], BadNodes :: [node()]}.
multi_call(Nodes, Name, Request) -> trunkline:multi_call(Nodes, Name, Request).

-spec multi_call([node()], Name :: atom(), term(), timeout()) -> {Replies :: [{node(), term()}], BadNodes :: [node()]}.
multi_call(Nodes, Name, Request, Timeout) -> trunkline:multi_call(Nodes, Name, Request, Timeout).

-spec abcast(Name :: atom(), term()) -> abcast.
abcast(Name, Request) -> trunkline:abcast(Name, Request).

-spec abcast([node()], Name :: atom(), term()) -> abcast.
abcast(Nodes, Name, Request) -> trunkline:abcast(Nodes, Name, Request).

-spec cast(server_ref(), term()) -> ok.
cast(ServerRef, Request) -> trunkline:cast(ServerRef, Request).

-spec send_request(server_ref(), term()) -> request_id().
send_request(ServerRef, Request) -> trunkline_call:send_request(ServerRef, '$gen_call', Request).

-spec send_request(server_ref(), term(), Label :: term(), request_id_collection()) -> request_id_collection().
send_request(ServerRef, Request, Label, ReqIds) -> trunkline_call:send_request(ServerRef, '$gen_call', Request, Label, ReqIds).

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
