%% gen_event's functions for those who notify and ask an event manager, by lane, for code that
%% should change nothing but the module's name.
%%
%% The label of a request is the caller's pid, where gen_server has '$gen_call'. A request to
%% a peer whose Trunkline cannot say that goes as gen_event would send it.
-module(trunkline_gen_event).

-include("trunkline_errors.hrl").

-export([notify/2, sync_notify/2, call/3, call/4]).
-export([add_handler/3, add_sup_handler/3, delete_handler/3, swap_handler/3, swap_sup_handler/3, which_handlers/1]).
-export([send_request/3, send_request/5, wait_response/2, wait_response/3,
         receive_response/2, receive_response/3, check_response/2, check_response/3]).
-export([reqids_new/0, reqids_size/1, reqids_add/3, reqids_to_list/1]).

-export_type([request_id/0, request_id_collection/0]).

-type emgr_ref() :: trunkline:server_ref().        % gen_event exports no such type
-type handler() :: gen_event:handler().
-opaque request_id() :: trunkline_call:request_id().
-opaque request_id_collection() :: trunkline_call:request_id_collection().
-type response() :: {reply, term()} | {error, term()}.
-type response_timeout() :: trunkline:response_timeout().

-spec notify(emgr_ref(), term()) -> ok.
notify({global, Name}, Event) ->
    notify({via, global, Name}, Event);
notify({via, Module, Name}, Event) ->
    try Module:whereis_name(Name) of
        Pid when is_pid(Pid) -> notify(Pid, Event);
        _ -> ok
    catch
        _:_ -> ok                     % gen_event does not tell either
    end;
notify(Managers, Event) when is_list(Managers) ->
    ?BAD_ARGUMENT(badarg, [Managers, Event]);         % to send/2 it would be many
notify(Manager, Event) ->
    _ = trunkline:send(Manager, {notify, Event}),
    ok.

-spec sync_notify(emgr_ref(), term()) -> ok.
sync_notify(Manager, Event) -> ask(Manager, {sync_notify, Event}).

-spec call(emgr_ref(), handler(), term()) -> term().
call(Manager, Handler, Query) ->
    trunkline_call:call(Manager, self(), {call, Handler, Query}, 5000, {gen_event, call, [Manager, Handler, Query]}).

-spec call(emgr_ref(), handler(), term(), timeout()) -> term().
call(Manager, Handler, Query, Timeout) ->
    trunkline_call:call(Manager, self(), {call, Handler, Query}, Timeout,
                        {gen_event, call, [Manager, Handler, Query, Timeout]}).

-spec add_handler(emgr_ref(), handler(), term()) -> term().
add_handler(Manager, Handler, Args) -> ask(Manager, {add_handler, Handler, Args}).

%% (The manager makes the link to the caller; that is OTP's own, between nodes too.)
-spec add_sup_handler(emgr_ref(), handler(), term()) -> term().
add_sup_handler(Manager, Handler, Args) -> ask(Manager, {add_sup_handler, Handler, Args, self()}).

-spec delete_handler(emgr_ref(), handler(), term()) -> term().
delete_handler(Manager, Handler, Args) -> ask(Manager, {delete_handler, Handler, Args}).

-spec swap_handler(emgr_ref(), {handler(), term()}, {handler(), term()}) -> ok | {error, term()}.
swap_handler(Manager, {Handler1, Args1}, {Handler2, Args2}) ->
    ask(Manager, {swap_handler, Handler1, Args1, Handler2, Args2}).

-spec swap_sup_handler(emgr_ref(), {handler(), term()}, {handler(), term()}) -> ok | {error, term()}.
swap_sup_handler(Manager, {Handler1, Args1}, {Handler2, Args2}) ->
    ask(Manager, {swap_sup_handler, Handler1, Args1, Handler2, Args2, self()}).

-spec which_handlers(emgr_ref()) -> [handler()].
which_handlers(Manager) -> ask(Manager, which_handlers).

%% These wait as long as it takes, and exit with the bare reason.
ask(Manager, Command) -> trunkline_call:call(Manager, self(), Command, infinity, none).

-spec send_request(emgr_ref(), handler(), term()) -> request_id().
send_request(Manager, Handler, Query) ->
    trunkline_call:send_request(Manager, self(), {call, Handler, Query}).

-spec send_request(emgr_ref(), handler(), term(), Label :: term(), request_id_collection()) -> request_id_collection().
send_request(Manager, Handler, Query, Label, ReqIds) ->
    trunkline_call:send_request(Manager, self(), {call, Handler, Query}, Label, ReqIds).

-spec wait_response(request_id(), response_timeout()) -> response() | timeout.
wait_response(RequestId, Timeout) ->
    ?NAMED(badarg, [RequestId, Timeout], response(trunkline_call:wait_response(RequestId, Timeout))).

-spec wait_response(request_id_collection(), response_timeout(), Delete :: boolean()) ->
          {response(), Label :: term(), request_id_collection()} | no_request | timeout.
wait_response(ReqIds, Timeout, Delete) ->
    ?NAMED(badarg, [ReqIds, Timeout, Delete], labelled(trunkline_call:wait_response(ReqIds, Timeout, Delete))).

-spec receive_response(request_id(), response_timeout()) -> response() | timeout.
receive_response(RequestId, Timeout) ->
    ?NAMED(badarg, [RequestId, Timeout], response(trunkline_call:receive_response(RequestId, Timeout))).

-spec receive_response(request_id_collection(), response_timeout(), Delete :: boolean()) ->
          {response(), Label :: term(), request_id_collection()} | no_request | timeout.
receive_response(ReqIds, Timeout, Delete) ->
    ?NAMED(badarg, [ReqIds, Timeout, Delete], labelled(trunkline_call:receive_response(ReqIds, Timeout, Delete))).

-spec check_response(Message :: term(), request_id()) -> response() | no_reply.
check_response(Message, RequestId) ->
    ?NAMED(badarg, [Message, RequestId], response(trunkline_call:check_response(Message, RequestId))).

-spec check_response(Message :: term(), request_id_collection(), Delete :: boolean()) ->
          {response(), Label :: term(), request_id_collection()} | no_request | no_reply.
check_response(Message, ReqIds, Delete) ->
    ?NAMED(badarg, [Message, ReqIds, Delete], labelled(trunkline_call:check_response(Message, ReqIds, Delete))).

%% A manager's own errors are replies to it.
response({reply, {error, _} = Error}) -> Error;
response(Other) -> Other.

labelled({Response, Label, ReqIds}) -> {response(Response), Label, ReqIds};
labelled(Other) -> Other.

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
