%% Requests and replies in gen_server's protocol, on the caller's side. (This folder has all that
%% gets an answer: requests, remote procedure calls, monitors. Exit signals are here, too.)
%%
%% A request to a peer goes by lane to the agent at the server's node (see trunkline_agent), and the
%% reply comes back by lane, or past it (trunkline_few_callers, trunkline_plain_reply). The caller
%% monitors only a local process: an inlet of the session. It ends when the session has ended and
%% all that had arrived is delivered. The monitor is also the alias to which the reply is sent, so
%% that a late reply is dropped before it reaches the mailbox. Requests to local servers, and to
%% nodes without lanes, are gen_server's own: the caller monitors the server itself.
%%
%% The requests of gen_server, gen_statem and gen_event differ only in their label, and in the exit
%% reason of a call that fails.
%%
%% Arguments that this module does not know are passed to `gen', so that the errors are those of the
%% OTP release in use.
-module(trunkline_call).
-moduledoc false.

-include("trunkline_long_reply.hrl").

-export([call/4, call/5]).
-export([send_request/3, send_request/5, reqids_add/3, wait_response/2, wait_response/3,
         receive_response/2, receive_response/3, check_response/2, check_response/3]).
-export([watch/2, submit/6, request/3, failed/2]).

-export_type([request_id/0, request_id_collection/0]).

-dialyzer({no_improper_lists, [call_lane/5, reply_or/2, send_plain/4]}).
%% These also take OTP's own ids, and arguments that are not valid.
-dialyzer({no_opaque, [wait_response/2, wait_response/3, receive_response/2,
                       check_response/2, check_response/3, deadline/1]}).

-type server_ref() :: gen_server:server_ref().
-type label() :: trunkline_command:label().
-type patience() :: trunkline_refused:patience().
%% If the caller monitors the server, the id is OTP's own. Otherwise the server is at that node, and
%% the caller monitors an inlet.
-type request_id() :: reference()
                    | {reference(), node(), Server :: pid() | atom()}.
-type request_id_collection() :: trunkline_reqids:collection(request_id()).
-type response() :: {reply, term()} | {error, {Reason :: term(), server_ref()}}.
-type response_timeout() :: trunkline_deadline:timeout_time().
%% What the user has called, for the exit reason; `none' for an exit with the bare reason.
-type who() :: {module(), atom(), Args :: [term()]} | none.

-define(IS_BY_LANE(Id), is_reference(element(1, Id)), is_atom(element(2, Id)), tuple_size(Id) =:= 3,
        (is_pid(element(3, Id)) orelse is_atom(element(3, Id)))).

%% A reply that is short for certain.
-define(IS_SHORT(Reply), (?IS_FLAT(Reply)
                          orelse is_tuple(Reply) andalso tuple_size(Reply) =:= 2
                          andalso ?IS_FLAT(element(2, Reply)))).
-define(IS_FLAT(Term), (is_atom(Term) orelse is_number(Term) orelse is_pid(Term)
                        orelse is_reference(Term) orelse Term =:= []
                        orelse is_binary(Term) andalso not ?IS_LONG_BINARY(Term))).

%% Calls a gen_server or a gen_statem. An error becomes an exit, as in gen_server:call/3.
-spec call(server_ref(), term(), timeout(), who()) -> term().
call(ServerRef, Request, Timeout, Who) ->
    try
        call(ServerRef, '$gen_call', Request, Timeout, Who)
    catch
        error:Reason:Stack -> fail({Reason, Stack}, Who)
    end.

-spec call(server_ref(), label(), term(), timeout(), who()) -> term().
call(ServerRef, Label, Request, Timeout, Who) ->
    case trunkline_deadline:is_timeout(Timeout) of
        true -> call_at(place(ServerRef), ServerRef, Label, Request, Timeout, Who);
        false -> call_plain(ServerRef, ServerRef, Label, Request, Timeout, Who)
    end.

call_at({nowhere, Reason}, _, _, _, _, Who) ->
    fail(Reason, Who);
call_at({at, Node, Server}, ServerRef, Label, Request, Timeout, Who) when Node =:= node() ->
    trunkline_bounded:refuses_call(Server) andalso fail(overload, Who),
    call_plain(Server, ServerRef, Label, Request, Timeout, Who);
call_at({at, Node, Server}, ServerRef, Label, Request, Timeout, Who) ->
    Process = process(Node, Server),
    trunkline_bounded:refuses_call(Process) andalso fail(overload, Who),
    Deadline = trunkline_deadline:in(Timeout),
    case call_lane(Node, Server, Label, Request, Deadline) of
        {reply, Reply} ->
            Reply;
        {error, Reason} ->
            fail(gen_reason(Reason, Node, ServerRef), Who);
        direct ->
            trunkline_sender:fallback(Node),
            %% (A request that is under way when it times out may be so for long.)
            Left = trunkline_deadline:left(Deadline),
            try call_plain(Process, ServerRef, Label, Request, Left, Who)
            after trunkline_in_turn:sent_direct(Node)
            end
    end.

-spec fail(Reason :: term(), who()) -> no_return().
fail(Reason, none) -> exit(Reason);
fail(Reason, Who) -> exit({Reason, Who}).

%% The reference is made and waited for in one function, so that the compiler lets the receive skip
%% all older messages (the efficiency guide, "receive").
call_lane(Node, Server, Label, Request, Deadline) ->
    case watch(Node, Deadline) of
        Inlet when is_pid(Inlet) ->
            Ref = monitor(process, Inlet, [{alias, reply_demonitor}]),
            {Command, Way, Weighed} =
                trunkline_long_reply:command(Node, Server, Ref, Label, Inlet),
            Started = trunkline_few_callers:started(Way, Weighed),
            case trunkline_few_callers:hand_over(Node, Inlet, Command, Request, Deadline) of
                Handed when Handed =:= lane; Handed =:= bypass ->
                    Answer =
                        receive
                            {[alias | Ref], Reply} ->
                                _ = case Reply of
                                        _ when Way =:= plain -> came_by_lane(Node, Server, Reply);
                                        [_, _, _, _, _ | _] -> weigh(Node, Server, Reply, 1);
                                        _ when ?IS_LONG_BINARY(Reply) ->
                                            weigh(Node, Server, Reply, 1);
                                        _ when Weighed > 0 -> weigh(Node, Server, Reply, Weighed);
                                        _ -> ok
                                    end,
                                {reply, Reply};
                            {[[alias | Ref] | _], Reply} ->          % plain
                                _ = case Reply of
                                        _ when ?IS_SHORT(Reply) -> weigh(Node, Server, Reply, 1);
                                        _ when Weighed > 0 -> weigh(Node, Server, Reply, Weighed);
                                        _ -> ok                  % no call: see trunkline_long_reply
                                    end,
                                {reply, Reply};
                            {[[alias | _] | {Ref, _, _}], Reply} ->  % sent by hand, to the pid
                                abandon({Ref, Node, Server}),
                                ok = trunkline_long_reply:by_hand(Node, Server),
                                {reply, Reply};
                            {'DOWN', Ref, process, Object, Reason} ->
                                {error, session_reason(Object, Reason)}
                        after trunkline_deadline:left(Deadline) ->
                                abandon({Ref, Node, Server}),
                                reply_or(Ref, {error, timeout})
                        end,
                    _ = if Handed =:= bypass; Started =/= none ->
                                trunkline_plain_call:ended(Node, Handed, Weighed, Started);
                           true ->
                                ok                               % no call, for a plain reply
                        end,
                    Answer;
                Refused ->
                    demonitor(Ref, [flush]),
                    refused(Refused)
            end;
        Refused ->
            refused(Refused)
    end.

weigh(Node, Server, Reply, N) -> trunkline_long_reply:weigh(Node, Server, Reply, N).

came_by_lane(Node, Server, Reply) -> trunkline_long_reply:came_by_lane(Node, Server, Reply).

refused(direct) -> direct;
refused(unreachable) -> {error, noconnection};
refused(timeout) -> {error, timeout}.

%% Calls as OTP's own functions do, with the process whose name has been looked up.
call_plain(Process, ServerRef, Label, Request, Timeout, Who) ->
    try gen:call(Process, Label, Request, Timeout) of
        {ok, Reply} -> Reply
    catch
        exit:{nodedown, Node} when is_pid(Process), Node =:= node(Process) ->
            fail(gen_reason(noconnection, Node, ServerRef), Who);
        exit:Reason -> fail(Reason, Who)
    end.

%% As gen_server:send_request/2. It waits for room without a time limit.
-spec send_request(server_ref(), label(), term()) -> request_id().
send_request(ServerRef, Label, Request) ->
    case place(ServerRef) of
        {at, Node, Server} ->
            Process = process(Node, Server),
            case trunkline_bounded:refuses_call(Process) of
                true -> failed(ServerRef, overload);
                false -> request_at(Node, Server, Process, Label, Request)
            end;
        {nowhere, Reason} ->
            failed(ServerRef, Reason)
    end.

request_at(Node, _, Process, Label, Request) when Node =:= node() ->
    plain(Process, Label, Request);
request_at(Node, Server, Process, Label, Request) ->
    Command = fun(Ref) -> trunkline_command:send_request(Server, Ref, Label) end,
    case request(Node, Command, Request) of
        {ok, Ref} ->
            {Ref, Node, Server};
        direct ->
            trunkline_sender:fallback(Node),
            Id = plain(Process, Label, Request),
            ok = trunkline_in_turn:sent_direct(Node),
            Id;
        unreachable ->
            failed(Process, noconnection)
    end.

-spec send_request(server_ref(), label(), term(), trunkline_reqids:label(),
                   request_id_collection()) -> request_id_collection().
send_request(ServerRef, Label, Request, IdLabel, Ids) when is_map(Ids) ->
    reqids_add(send_request(ServerRef, Label, Request), IdLabel, Ids).

-spec reqids_add(request_id(), trunkline_reqids:label(), request_id_collection()) ->
          request_id_collection().
reqids_add(Id, Label, Ids) when ?IS_BY_LANE(Id) ->
    trunkline_reqids:add(element(1, Id), Id, Label, Ids);
reqids_add(Id, Label, Ids) when is_reference(Id) -> trunkline_reqids:add(Id, Id, Label, Ids);
reqids_add(_, _, _) -> error(badarg).

%% Sends a request by lane, with a command that names the reference to which the answer comes. It
%% waits for room without a time limit, and not for the answer.
-spec request(node(), fun((reference()) -> trunkline_lane:to()), Message :: term()) ->
          {ok, reference()} | direct | unreachable.
request(Node, Command, Message) ->
    case watch(Node, infinity) of
        Inlet when is_pid(Inlet) ->
            Ref = monitor(process, Inlet, [{alias, reply_demonitor}]),
            case trunkline_sender:hand_over(Node, Command(Ref), Message) of
                ok -> {ok, Ref};
                Refused -> demonitor(Ref, [flush]), Refused
            end;
        Refused ->
            Refused
    end.

%% (The alias option is `demonitor', not `reply_demonitor': to flush a monitor that has ended with
%% the reply would search the mailbox.)
plain(Process, Label, Request) ->
    Ref = monitor(process, Process, [{alias, demonitor}]),
    ok = send_plain(Process, Ref, Label, Request),
    Ref.

%% The monitor has already set up the connection, or has failed to.
send_plain(Process, Ref, Label, Request) ->
    _ = erlang:send(Process, {Label, {self(), [alias | Ref]}, Request}, [noconnect]),
    ok.

%% Sends a request to a named server, on the way that watch/2 has returned. The caller has set its
%% monitor already.
-spec submit(direct | pid(), reference(), node(), Name :: atom(), Request :: term(), patience()) ->
          {ok, request_id()} | direct | unreachable | nosuspend | timeout.
submit(direct, Ref, Node, Name, Request, _) ->
    ok = trunkline_sender:fallback(Node),
    ok = send_plain({Name, Node}, Ref, '$gen_call', Request),
    ok = trunkline_in_turn:sent_direct(Node),
    {ok, Ref};
submit(_, Ref, Node, Name, Request, Patience) ->
    Command = trunkline_command:call(Name, Ref, '$gen_call'),
    case trunkline_sender:hand_over(Node, Command, Request, Patience,
                                    connect) of
        ok -> {ok, {Ref, Node, Name}};
        Refused -> Refused
    end.

%% Nothing was sent. A 'DOWN' message tells the caller when it waits for the response.
-spec failed(Object :: term(), Reason :: term()) -> reference().
failed(Object, Reason) ->
    Ref = make_ref(),
    self() ! {'DOWN', Ref, process, Object, Reason},
    Ref.

%% A single request by lane is treated as a collection of one.
-spec wait_response(request_id(), response_timeout()) -> response() | timeout.
wait_response(Id, Timeout) when ?IS_BY_LANE(Id) ->
    single(wait_response(alone(Id), Timeout, false));
wait_response(Id, Timeout) ->
    gen:wait_response(Id, Timeout).

-spec wait_response(request_id_collection(), response_timeout(), Delete :: boolean()) ->
          {response(), trunkline_reqids:label(), request_id_collection()} | no_request | timeout.
wait_response(Ids, Timeout, Delete) when map_size(Ids) > 0, is_boolean(Delete) ->
    case trunkline_reqids:wait(Ids, trunkline_deadline:left(deadline(Timeout))) of
        timeout -> timeout;
        Answer -> answered(Answer, Ids, Delete)
    end;
wait_response(Ids, Timeout, Delete) ->
    gen:wait_response(Ids, Timeout, Delete).

-spec receive_response(request_id(), response_timeout()) -> response() | timeout.
receive_response(Id, Timeout) when ?IS_BY_LANE(Id) ->
    case wait_response(Id, Timeout) of
        timeout ->
            abandon(Id),
            reply_or(element(1, Id), timeout);
        Response ->
            Response
    end;
receive_response(Id, Timeout) ->
    gen:receive_response(Id, Timeout).

-spec receive_response(request_id_collection(), response_timeout(), Delete :: boolean()) ->
          {response(), trunkline_reqids:label(), request_id_collection()} | no_request | timeout.
receive_response(Ids, Timeout, Delete) ->
    case wait_response(Ids, Timeout, Delete) of
        timeout ->
            lists:foreach(fun({Id, _}) -> abandon(Id) end, trunkline_reqids:to_list(Ids)),
            flush(Ids),
            timeout;
        Response ->
            Response
    end.

-spec deadline(response_timeout()) -> trunkline_deadline:deadline().
deadline(Timeout) ->
    case trunkline_deadline:until(Timeout) of
        badarg -> _ = gen:wait_response(make_ref(), Timeout), error(badarg);
        Deadline -> Deadline
    end.

%% Drops replies that came at the last moment.
flush(Ids) ->
    case trunkline_reqids:wait(Ids, 0) of
        timeout -> ok;
        _ -> flush(Ids)
    end.

-spec check_response(Message :: term(), request_id()) -> response() | no_reply.
check_response(Message, Id) when ?IS_BY_LANE(Id) ->
    single(check_response(Message, alone(Id), false));
check_response(Message, Id) ->
    gen:check_response(Message, Id).

-spec check_response(Message :: term(), request_id_collection(), Delete :: boolean()) ->
          {response(), trunkline_reqids:label(), request_id_collection()} | no_request | no_reply.
check_response(Message, Ids, Delete) when map_size(Ids) > 0, is_boolean(Delete) ->
    case trunkline_reqids:find(Message, Ids) of
        none -> no_reply;
        Answer -> answered(Answer, Ids, Delete)
    end;
check_response(Message, Ids, Delete) ->
    gen:check_response(Message, Ids, Delete).

alone(Id) -> reqids_add(Id, alone, trunkline_reqids:new()).

single({Response, alone, _}) -> Response;
single(None) -> None.

answered({Message, Ref}, Ids, Delete) ->
    {Id, Label, Ids1} = trunkline_reqids:take(Ref, Ids, Delete),
    {response(Message, Id), Label, Ids1}.

response({[alias | _], Reply}, Id) when is_tuple(Id) ->
    {reply, Reply};
response({'DOWN', _, process, Object, Reason}, {_, Node, Server}) ->
    {error, {session_reason(Object, Reason), process(Node, Server)}};
response({'DOWN', _, process, Object, Reason}, _) ->
    {error, {Reason, Object}};
response({_, Reply}, Id) ->
    abandon(Id),                             % the server may have replied by hand, to the pid
    {reply, Reply}.

%% The caller does not want the reply any more, and the agent need not wait for it.
abandon({Ref, Node, Server}) ->
    demonitor(Ref, [flush]),
    trunkline_sender:cancel(Node, Server, Ref);
abandon(Ref) ->
    demonitor(Ref, [flush]).

%% A reply may have come at the last moment, before the alias was deactivated.
reply_or(Ref, Else) ->
    receive
        {[alias | Ref], Reply} -> {reply, Reply};
        {[[alias | _] | {Ref, _, _}], Reply} -> {reply, Reply}
    after 0 ->
            Else
    end.

%% The process to monitor for a request to that node. Waits until it is clear whether there is a
%% session. `direct': there are no lanes, or they may wait for the calling process.
-spec watch(node(), patience()) -> pid() | direct | unreachable | nosuspend | timeout.
watch(Node, Patience) ->
    case not trunkline_process:is_own() andalso trunkline_peers:watch(Node) of
        false ->
            direct;
        none ->
            case trunkline_refused:await_session(Node, Patience) of
                ok -> watch(Node, Patience);
                Other -> Other
            end;
        Inlet ->
            ok = trunkline_long_reply:answered(Node),
            Inlet
    end.

%% A 'DOWN' from the agent names the server, which is at another node. A 'DOWN' that names a local
%% process is that of the inlet, and means that the session has ended.
session_reason(Object, _) when is_pid(Object), node(Object) =:= node() -> noconnection;
session_reason(_, Reason) -> Reason.

%% The reason as gen_server:call/3 has it.
gen_reason(noconnection, _, {global, _}) -> noproc;
gen_reason(noconnection, _, {via, _, _}) -> noproc;
gen_reason(noconnection, Node, _) -> {nodedown, Node};
gen_reason(Reason, _, _) -> Reason.

%% Where a server is, or why it cannot be found.
place(Pid) when is_pid(Pid) -> {at, node(Pid), Pid};
place(Name) when is_atom(Name) -> place_of(whereis(Name));
place({global, Name}) -> place({via, global, Name});
place({via, Module, Name}) ->
    try place_of(Module:whereis_name(Name))
    catch exit:Reason -> {nowhere, Reason}
    end;
place({Name, Node}) when Node =:= node() -> place(Name);
place({_, Node}) when is_atom(Node), node() =:= nonode@nohost -> {nowhere, {nodedown, Node}};
place({Name, Node}) when is_atom(Name), is_atom(Node) -> {at, Node, Name};
place({_, Node} = Nobody) when is_atom(Node) -> {at, node(), Nobody}.     % an error of monitor/2

place_of(Found) ->
    case Found of
        Pid when is_pid(Pid) -> {at, node(Pid), Pid};
        undefined -> {nowhere, noproc}
    end.

%% (A name is of another node: place/1 has looked up one of this node.)
process(Node, Name) when is_atom(Name) -> {Name, Node};
process(_, Process) -> Process.
