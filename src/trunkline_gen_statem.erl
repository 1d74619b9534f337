%% gen_statem's functions for callers, by lane, for code that should change nothing but the
%% module's name. The server gets what a gen_server would get.
-module(trunkline_gen_statem).

-include("trunkline_errors.hrl").

-export([call/2, call/3, cast/2]).
-export([send_request/2, send_request/4, wait_response/1, wait_response/2, wait_response/3,
         receive_response/1, receive_response/2, receive_response/3, check_response/2, check_response/3]).
-export([reqids_new/0, reqids_size/1, reqids_add/3, reqids_to_list/1]).

-export_type([request_id/0, request_id_collection/0]).

-type server_ref() :: trunkline:server_ref().
-opaque request_id() :: trunkline_call:request_id().
-opaque request_id_collection() :: trunkline_call:request_id_collection().
-type response() :: trunkline:response().
-type response_timeout() :: trunkline:response_timeout().

-spec call(server_ref(), term()) -> term().
call(ServerRef, Request) ->
    call(ServerRef, Request, infinity).

%% No call leaves a late reply in the mailbox: there is nothing to choose between clean and dirty,
%% and no process in between, which the server would see as the caller.
-spec call(server_ref(), term(), timeout() | {clean_timeout | dirty_timeout, timeout()}) -> term().
call(ServerRef, Request, Timeout) ->
    T = case Timeout of
            {clean_timeout, Clean} -> Clean;
            {dirty_timeout, Dirty} -> Dirty;
            {_, _} -> ?BAD_ARGUMENT(badarg, [ServerRef, Request, Timeout]);
            _ -> Timeout
        end,
    trunkline_call:call(ServerRef, '$gen_call', Request, T, {gen_statem, call, [ServerRef, Request, Timeout]}).

-spec cast(server_ref(), term()) -> ok.
cast(ServerRef, Request) -> trunkline:cast(ServerRef, Request).

-spec send_request(server_ref(), term()) -> request_id().
send_request(ServerRef, Request) -> trunkline_call:send_request(ServerRef, '$gen_call', Request).

-spec send_request(server_ref(), term(), Label :: term(), request_id_collection()) -> request_id_collection().
send_request(ServerRef, Request, Label, ReqIds) -> trunkline_call:send_request(ServerRef, '$gen_call', Request, Label, ReqIds).

-spec wait_response(request_id()) -> response().
wait_response(RequestId) ->
    trunkline_call:wait_response(RequestId, infinity).

-spec wait_response(request_id(), response_timeout()) -> response() | timeout.
wait_response(RequestId, Timeout) ->
    ?NAMED(badarg, [RequestId, Timeout], trunkline_call:wait_response(RequestId, Timeout)).

-spec wait_response(request_id_collection(), response_timeout(), Delete :: boolean()) ->
          {response(), Label :: term(), request_id_collection()} | no_request | timeout.
wait_response(ReqIds, Timeout, Delete) ->
    ?NAMED(badarg, [ReqIds, Timeout, Delete], trunkline_call:wait_response(ReqIds, Timeout, Delete)).

-spec receive_response(request_id()) -> response().
receive_response(RequestId) ->
    ?NAMED(badarg, [RequestId], trunkline_call:receive_response(RequestId, infinity)).

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
