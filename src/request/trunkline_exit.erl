%% Exit signals to processes at other nodes, by lane. They stay in order with everything else that
%% the sender sends there by lane. So if a process is monitored and then told to exit, the monitor
%% is set before the process exits.
%%
%% No process can send an exit signal that seems to come from another one, but the effect can be
%% imitated. The inlet itself sends `kill', because the receiver does not learn who has sent it.
%% With any other reason, a process that does not trap exits ends, and does not learn the sender
%% either. A process that traps exits gets a message, which any process can send. Whether it traps
%% exits must not change in between, so the process is suspended for some microseconds. That may
%% have to wait until the process is scheduled. Therefore the signal travels as a large message
%% does: a separate process delivers it when its turn comes (trunkline_opener), and later messages
%% wait for it.
-module(trunkline_exit).
-moduledoc false.

-include("../gate/trunkline_route.hrl").

-export([exit/2, signal/3, signal/4, direct/3]).

%% ms that a lane waits for a signal whose receiver does not get to run.
-define(SIGNAL, 1000).

%% As erlang:exit/2.
-spec exit(pid() | port(), Reason :: term()) -> true.
exit(Pid, Reason) when is_pid(Pid), node(Pid) =/= node() ->
    Node = node(Pid),
    Command = {exit, Pid, self()},
    case trunkline_peers:can(Node, v1) andalso hand_over(Node, Command, Reason) of
        false ->
            plain(Node, Pid, Reason);
        direct ->
            case trunkline_process:is_own() of
                true -> plain(Node, Pid, Reason);
                false -> when_clear(Node, Command, Reason)
            end;
        _ ->
            true                             % exit/2 ignores it, too
    end;
exit(Process, Reason) ->
    erlang:exit(Process, Reason).

%% There are no lanes, or they are not open yet. A lane that is not open may have a monitor in it
%% already. The signal has to come behind that monitor, and the caller's next message behind the
%% signal. So this waits until the lanes open, as a request does.
when_clear(Node, Command, Reason) ->
    case trunkline_refused:await_session(Node, infinity) of
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

%% The lanes may have opened in the meantime.
without_lanes(Peer, Route, Node, {exit, Pid, _} = Command, Reason) ->
    case {Peer, Route =/= none andalso trunkline_gate:path(Route#route.gate)} of
        {#{state := opening}, direct} -> force(Route, Command, Reason);
        {_, Path} when Path =:= false; Path =:= direct -> plain(Node, Pid, Reason);
        _ -> when_clear(Node, Command, Reason)
    end.

plain(Node, Pid, Reason) ->
    trunkline_sender:fallback(Node),
    true = erlang:exit(Pid, Reason),
    ok = trunkline_in_turn:sent_direct(Node),
    true.

hand_over(Node, Command, kill) -> trunkline_sender:hand_over(Node, Command, kill);
hand_over(Node, Command, Reason) -> trunkline_sender:hand_over_apart(Node, Command, Reason).

force(Route, Command, kill) ->
    ok = trunkline_sender:force(Route, {Command, kill}, self()),
    true;
force(Route, Command, Reason) ->
    ok = trunkline_sender:force_apart(Route, {Command, Reason}, self()),
    true.

%% Delivers the signal, which is not `kill', at the process's node. (To report its
%% message_queue_len, a process fetches what has been sent to it. So the signal comes behind
%% messages that were sent before it, and before messages that are sent later, even with
%% message_queue_data off_heap: see trunkline_opener.) Lanes of other nodes call this, too: see
%% direct/3.
-spec signal(Sender :: pid(), pid(), Reason :: term()) -> ok.
signal(Sender, Pid, Reason) -> signal(Sender, Pid, Reason, fun() -> true end).

%% The same, if it should still be delivered when the process has been suspended.
-spec signal(Sender :: pid(), pid(), Reason :: term(), IsInTime :: fun(() -> boolean())) -> ok.
signal(Sender, Pid, Reason, IsInTime) ->
    %% Whatever else runs, the process should not be suspended for longer than necessary.
    Priority = process_flag(priority, high),
    try erlang:suspend_process(Pid) of
        true ->
            _ = case IsInTime() andalso process_info(Pid, [trap_exit, message_queue_len]) of
                    [{trap_exit, true}, _] -> Pid ! {'EXIT', Sender, Reason};
                    [{trap_exit, false}, _] -> erlang:exit(Pid, Reason);
                    _ -> ended
                end,
            trunkline_process:resume(Pid)
    catch
        error:badarg -> ok                   % it has ended
    end,
    _ = process_info(Pid, message_queue_len),
    _ = process_flag(priority, Priority),
    ok.

%% Called by the lane, at the sender's node, when there is no session any more, or the peer has
%% another release.
-spec direct(trunkline_command:exit(), Reason :: term(), node()) -> ok | noconnect.
direct({exit, Pid, Sender}, Reason, Node) ->
    %% (This must not make another connection.)
    case trunkline_process:is_connected(Node) of
        true -> direct(Pid, Sender, Reason, Node);
        false -> noconnect
    end.

direct(Pid, Sender, Reason, Node) ->
    case Reason =/= kill andalso trunkline_peers:can(Node, v1) of
        true ->
            %% What the lane sends next is behind the signal, if the process gets to run soon. (The
            %% reference is made here so that the lane's mailbox need not be searched.)
            Ref = erlang:spawn_request(Node, ?MODULE, signal, [Sender, Pid, Reason],
                                       [monitor, {reply, error_only}]),
            receive
                {'DOWN', Ref, process, _, _} -> ok;
                {spawn_reply, Ref, error, _} -> ok
            after ?SIGNAL ->
                    _ = erlang:spawn_request_abandon(Ref),
                    true = demonitor(Ref, [flush]),
                    ok
            end;
        false ->
            true = erlang:exit(Pid, Reason),
            ok
    end.
