%% Requests and replies in gen_server's protocol, on the caller's side.
%%
%% A request to a peer goes by lane to the agent beside the server (see
%% trunkline_agent), and the reply comes back by lane. The caller watches only a
%% local process: the inlet that brings the reply, which ends when the session
%% with that node ends. Its monitor is at the same time the alias to which the
%% reply is sent, so that a reply that comes late is dropped before it reaches
%% the mailbox. Requests to local servers, and to nodes without lanes, are
%% gen_server's own.
-module(trunkline_call).

-export([call/4, send_request/2, wait_response/2, receive_response/2, check_response/2]).
-export([watch/3]).

-export_type([request_id/0, response/0, response_timeout/0]).

-dialyzer({no_improper_lists, [call_lane/5, reply_or/2]}).

-type server_ref() :: gen_server:server_ref().
-opaque request_id() :: {lane, reference(), node(), Server :: pid() | atom()}
                      | {plain, gen_server:request_id()}.
-type response() :: {reply, term()} | {error, {Reason :: term(), server_ref()}}.
%% ms, or a point in time as erlang:monotonic_time(millisecond) tells it.
-type response_timeout() :: timeout() | {abs, integer()}.

%% The longest time that `receive' can wait; gen_server tells who asks for more.
-define(LONGEST, 16#FFFFFFFF).

%% Args are what the user's function was called with, for its exit.
-spec call(server_ref(), term(), timeout(), Args :: [term()]) -> term().
call(ServerRef, Request, Timeout, Args) ->
    case remote(ServerRef) of
        {Node, Server} when Timeout =:= infinity; is_integer(Timeout), Timeout >= 0, Timeout =< ?LONGEST ->
            Deadline = deadline(Timeout),
            case call_lane(Node, Server, Request, Deadline, Timeout) of
                {reply, Reply} ->
                    Reply;
                {error, Reason} ->
                    exit({gen_reason(Reason, Node, ServerRef), {trunkline, call, Args}});
                direct ->
                    trunkline_sender:fallback(Node),
                    call_plain(ServerRef, Request, remaining(Deadline, Timeout), Args)
            end;
        _ ->
            call_plain(ServerRef, Request, Timeout, Args)
    end.

%% The reference is made and waited for in one function: thus the compiler lets
%% the wait skip all mail that is older (the efficiency guide, "receive").
call_lane(Node, Server, Request, Deadline, Timeout) ->
    case watch(Node, request, Deadline) of
        Inlet when is_pid(Inlet) ->
            Ref = monitor(process, Inlet, [{alias, reply_demonitor}]),
            case trunkline_sender:hand_over(Node, {call, Server, self(), Ref}, Request, Deadline, connect) of
                ok ->
                    receive
                        {[alias | Ref], Reply} ->
                            {reply, Reply};
                        {[[alias | _] | {Ref, _, _}], Reply} ->  % by hand, to the pid
                            abandon(Ref, Node, Server),
                            {reply, Reply};
                        {'DOWN', Ref, process, Object, Reason} ->
                            {error, session_reason(Object, Reason)}
                    after remaining(Deadline, Timeout) ->
                            abandon(Ref, Node, Server),
                            reply_or(Ref, {error, timeout})
                    end;
                Refused ->
                    demonitor(Ref, [flush]),
                    refused(Refused)
            end;
        Refused ->
            refused(Refused)
    end.

refused(direct) -> direct;
refused(unreachable) -> {error, noconnection};
refused(timeout) -> {error, timeout}.

call_plain(ServerRef, Request, Timeout, Args) ->
    try
        gen_server:call(ServerRef, Request, Timeout)
    catch
        exit:{Reason, {gen_server, call, _}} -> exit({Reason, {trunkline, call, Args}})
    end.

%% As gen_server:send_request/2; waits for room without a limit in time.
-spec send_request(server_ref(), term()) -> request_id().
send_request(ServerRef, Request) ->
    case remote(ServerRef) of
        {Node, Server} ->
            case request(Node, Server, Request) of
                {ok, Ref} ->
                    {lane, Ref, Node, Server};
                direct ->
                    trunkline_sender:fallback(Node),
                    {plain, gen_server:send_request(ServerRef, Request)};
                unreachable ->
                    Ref = make_ref(),
                    self() ! {'DOWN', Ref, process, Server, noconnection},
                    {lane, Ref, Node, Server}
            end;
        plain ->
            {plain, gen_server:send_request(ServerRef, Request)}
    end.

request(Node, Server, Request) ->
    case watch(Node, request, infinity) of
        Inlet when is_pid(Inlet) ->
            Ref = monitor(process, Inlet, [{alias, reply_demonitor}]),
            case trunkline_sender:hand_over(Node, {call, Server, self(), Ref}, Request) of
                ok -> {ok, Ref};
                Refused -> demonitor(Ref, [flush]), Refused
            end;
        Refused ->
            Refused
    end.

-spec wait_response(request_id(), response_timeout()) -> response() | timeout.
wait_response({plain, Id}, Timeout) ->
    gen_server:wait_response(Id, Timeout);
wait_response({lane, Ref, _, _} = Id, Timeout) ->
    wait(Ref, Id, milliseconds(Timeout)).

-spec receive_response(request_id(), response_timeout()) -> response() | timeout.
receive_response({plain, Id}, Timeout) ->
    gen_server:receive_response(Id, Timeout);
receive_response({lane, Ref, Node, Server} = Id, Timeout) ->
    case wait(Ref, Id, milliseconds(Timeout)) of
        timeout ->
            abandon(Ref, Node, Server),
            reply_or(Ref, timeout);
        Response ->
            Response
    end.

-spec check_response(term(), request_id()) -> response() | no_reply.
check_response(Message, {plain, Id}) ->
    gen_server:check_response(Message, Id);
check_response(Message, {lane, Ref, Node, Server}) ->
    case Message of
        {[alias | Ref], Reply} ->
            {reply, Reply};
        {[[alias | _] | {Ref, _, _}], Reply} ->
            abandon(Ref, Node, Server),
            {reply, Reply};
        {'DOWN', Ref, process, Object, Reason} when is_pid(Server) ->
            {error, {session_reason(Object, Reason), Server}};
        {'DOWN', Ref, process, Object, Reason} ->
            {error, {session_reason(Object, Reason), {Server, Node}}};
        _ ->
            no_reply
    end.

wait(Ref, Id, Timeout) ->
    receive
        {[alias | Ref], _} = Message -> check_response(Message, Id);
        {[[alias | _] | {Ref, _, _}], _} = Message -> check_response(Message, Id);
        {'DOWN', Ref, process, _, _} = Message -> check_response(Message, Id)
    after Timeout ->
            timeout
    end.

%% The caller does not want the reply any more; nor should the agent wait for it.
abandon(Ref, Node, Server) ->
    demonitor(Ref, [flush]),
    case trunkline_route:lookup(Node) of
        none -> ok;
        Route -> trunkline_sender:force(Route, {{cancel, Server, Ref}, []}, self())
    end.

%% What came in the last moment, before the alias was gone.
reply_or(Ref, Else) ->
    receive
        {[alias | Ref], Reply} -> {reply, Reply};
        {[[alias | _] | {Ref, _, _}], Reply} -> {reply, Reply}
    after 0 ->
            Else
    end.

%% The inlet to watch, when there is a session; waits until that is clear. `direct': the
%% peer has no lanes, or cannot do that.
-spec watch(node(), trunkline_handshake:capability(), infinity | integer()) ->
          pid() | direct | unreachable | timeout.
watch(Node, Capability, Patience) ->
    case trunkline_peers:watch(Node, Capability) of
        none ->
            case trunkline_sender:await_session(Node, Patience) of
                ok -> watch(Node, Capability, Patience);
                Other -> Other
            end;
        direct ->
            direct;
        Inlet ->
            Inlet
    end.

%% A 'DOWN' from the agent names the server, which is elsewhere; one of a local
%% process is of the inlet, and means that the session has ended.
session_reason(Object, _) when is_pid(Object), node(Object) =:= node() -> noconnection;
session_reason(_, Reason) -> Reason.

%% As gen_server:call/3 words it.
gen_reason(noconnection, _, {global, _}) -> noproc;
gen_reason(noconnection, _, {via, _, _}) -> noproc;
gen_reason(noconnection, Node, _) -> {nodedown, Node};
gen_reason(Reason, _, _) -> Reason.

%% Where a server at another node is.
remote(Pid) when is_pid(Pid), node(Pid) =/= node() -> {node(Pid), Pid};
remote({global, Name}) -> remote_pid(global:whereis_name(Name));
remote({via, Module, Name}) -> remote_pid(Module:whereis_name(Name));
remote({Name, Node}) when is_atom(Name), is_atom(Node), Node =/= node() -> {Node, Name};
remote(_) -> plain.

remote_pid(Pid) when is_pid(Pid), node(Pid) =/= node() -> {node(Pid), Pid};
remote_pid(_) -> plain.

deadline(infinity) -> infinity;
deadline(Timeout) -> erlang:monotonic_time(millisecond) + Timeout.

%% A request that found its lane open has its whole time left.
remaining(infinity, _) -> infinity;
remaining(Deadline, Timeout) ->
    min(Timeout, max(0, Deadline - erlang:monotonic_time(millisecond))).

milliseconds({abs, Time}) -> max(0, Time - erlang:monotonic_time(millisecond));
milliseconds(Timeout) -> Timeout.
