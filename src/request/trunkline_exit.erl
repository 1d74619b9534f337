%% Exit signals to processes at other nodes, by lane: in order with whatever else the
%% sender sends there, so that a process that is monitored and then told to exit is known to be
%% monitored when it does.
%%
%% No process can send an exit signal that seems to come from another one. But its effect can be
%% had. The inlet itself sends `kill', since the receiver does not learn who has sent it. With any
%% other reason, a process that does not trap exits ends, and does not learn the sender either. A
%% process that traps exits gets a message, which any process can send. Whether it traps exits must
%% not change in between, so the process is suspended for some microseconds. That may have to wait
%% until the process is scheduled. Therefore the signal travels as a large message does: a process
%% of its own delivers it when its turn comes (trunkline_opener), and later messages wait for it.
-module(trunkline_exit).
-moduledoc false.

-include("../lane/trunkline_route.hrl").

-export([exit/2, signal/3, direct/3]).

%% As erlang:exit/2.
-spec exit(pid() | port(), Reason :: term()) -> true.
exit(Pid, Reason) when is_pid(Pid), node(Pid) =/= node() ->
    Node = node(Pid),
    Command = {exit, Pid, self()},
    case trunkline_peers:can(Node, exit) andalso hand_over(Node, Command, Reason) of
        false ->
            plain(Node, Pid, Reason);
        direct ->
            when_clear(Node, Command, Reason);
        _ ->
            true                             % exit/2 does not tell either
    end;
exit(Process, Reason) ->
    erlang:exit(Process, Reason).

%% There are no lanes, or not yet. In these there may be a monitor already, which leaves them
%% first: the signal has to come behind it, and what the caller sends next behind the signal. So
%% this waits until the lanes open, as a request does.
when_clear(Node, Command, Reason) ->
    case trunkline_sender:await_session(Node, infinity) of
        ok ->
            case hand_over(Node, Command, Reason) of
                direct -> when_clear(Node, Command, Reason);
                _ -> true
            end;
        unreachable ->
            true;
        _ ->
            without_lanes(trunkline_peers:lookup(Node), trunkline_route:lookup(Node), Node,
                          Command, Reason)
    end.

%% They may have opened since.
without_lanes(Peer, Route, Node, {exit, Pid, _} = Command, Reason) ->
    case {Peer, Route =/= none andalso trunkline_gate:path(Route#route.gate)} of
        {#{state := opening}, direct} -> force(Route, Command, Reason);
        {_, Path} when Path =:= false; Path =:= direct -> plain(Node, Pid, Reason);
        _ -> when_clear(Node, Command, Reason)
    end.

plain(Node, Pid, Reason) ->
    trunkline_sender:fallback(Node),
    erlang:exit(Pid, Reason).

hand_over(Node, Command, kill) -> trunkline_sender:hand_over(Node, Command, kill);
hand_over(Node, Command, Reason) -> trunkline_sender:hand_over_apart(Node, Command, Reason).

force(Route, Command, kill) ->
    ok = trunkline_sender:force(Route, {Command, kill}, self()),
    true;
force(Route, Command, Reason) ->
    ok = trunkline_sender:force_apart(Route, {Command, Reason}, self()),
    true.

%% At the process's node: what it would get. (To tell how long its queue is, a process fetches
%% what has been sent to it. So this comes behind what others have sent before, and before what
%% they send later, also in a mailbox that is off heap; see trunkline_opener.)
-spec signal(Sender :: pid(), pid(), Reason :: term()) -> ok.
signal(_, Pid, kill) ->
    true = erlang:exit(Pid, kill),
    ok;
signal(Sender, Pid, Reason) ->
    %% Whatever else runs: nobody should be suspended for longer than this takes.
    Priority = process_flag(priority, high),
    try erlang:suspend_process(Pid) of
        true ->
            _ = case process_info(Pid, [trap_exit, message_queue_len]) of
                    [{trap_exit, true}, _] -> Pid ! {'EXIT', Sender, Reason};
                    [{trap_exit, false}, _] -> erlang:exit(Pid, Reason);
                    undefined -> ended
                end,
            resume(Pid)
    catch
        error:badarg -> ok                   % it has ended
    end,
    _ = process_info(Pid, message_queue_len),
    _ = process_flag(priority, Priority),
    ok.

resume(Pid) ->
    try erlang:resume_process(Pid) of
        true -> ok
    catch
        error:badarg -> ok                   % it has ended
    end.

%% At the sender's node, by the lane: there is no session any more, or the peer is another release.
-spec direct(trunkline_command:exit(), Reason :: term(), node()) -> ok.
direct({exit, Pid, Sender}, Reason, Node) ->
    %% (Not on another connection.)
    case lists:member(Node, nodes(connected)) of
        true -> direct(Pid, Sender, Reason, Node);
        false -> ok
    end.

direct(Pid, Sender, Reason, Node) ->
    _ = case Reason =/= kill andalso trunkline_peers:can(Node, exit) of
            true ->
                erlang:spawn_request(Node, ?MODULE, signal, [Sender, Pid, Reason], [{reply, no}]);
            false -> erlang:exit(Pid, Reason)
        end,
    ok.
