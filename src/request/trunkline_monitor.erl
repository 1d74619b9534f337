%% Monitors of processes at other nodes, by lane: the part that runs in the monitoring process.
%%
%%     caller                                     inlet, the agent          server
%%       | -- monitor ----> lane ══════════════════> | -- monitor ----------> |
%%       |                                           | <--------------- 'DOWN'|
%%       | <-- 'DOWN' ----- inlet <════════ lane <── |   the lane of the server's own messages
%%
%% Hence the 'DOWN' comes after everything that the server has sent to the caller, as with
%% erlang:monitor/2. Processes on this node are monitored with that function itself.
%%
%% This never waits for a session. Without lanes, a process at the caller's node monitors the server
%% by OTP's means (trunkline_watcher). When lanes open they take over the monitor; when they are
%% given up it goes back to the watcher. Only if a session is lost with its connection does the
%% monitor end, with noconnection.
%%
%% The reference is an alias that is deactivated by the first message sent to it. So there is only
%% one 'DOWN', whichever process is the first to send it. trunkline_monitor_rows has a row for each
%% monitor.
-module(trunkline_monitor).
-moduledoc false.

-export([monitor/1, watch/1, demonitor/2]).

-type object() :: pid() | atom() | {RegisteredName :: atom(), node()}.

-define(AGAIN, 1).                 % ms until the overseer is asked again after it has died

-spec monitor(object()) -> reference().
monitor(Pid) when is_pid(Pid), node(Pid) =/= node() -> elsewhere(node(Pid), Pid);
monitor({Name, Node} = Object) when is_atom(Name), is_atom(Node), Node =/= node() ->
    elsewhere(Node, Object);
monitor(Object) -> erlang:monitor(process, Object).

elsewhere(_, Object) when node() =:= nonode@nohost -> erlang:monitor(process, Object);
elsewhere(Node, Object) ->
    case trunkline_peers:session(Node) of
        Inlets when is_tuple(Inlets) -> by_lane(Node, Object, Inlets, fun hand_over/3);
        _ -> plain(Node, Object, alias([reply]))
    end.

%% For Trunkline's own processes: this does not wait for room, either. If the session may outlive
%% its connection, so may the monitor.
-spec watch(pid() | {RegisteredName :: atom(), node()}) -> reference().
watch(Object) ->
    Node = trunkline_monitor_rows:node_of(Object),
    case trunkline_peers:resumes(Node) andalso trunkline_peers:session(Node) of
        Inlets when is_tuple(Inlets) -> by_lane(Node, Object, Inlets, fun force/3);
        _ -> erlang:monitor(process, Object)
    end.

hand_over(Node, Object, Ref) ->
    trunkline_sender:hand_over(Node, trunkline_monitors:command(Object, self(), Ref), []).

force(Node, Object, Ref) ->
    case trunkline_route:lookup(Node) of
        none -> direct;
        Route -> trunkline_monitors:force(Route, Object, self(), Ref)
    end.

by_lane(Node, Object, Inlets, HandOver) ->
    Ref = alias([reply]),
    case enter(Ref, Object, Node, Inlets) andalso HandOver(Node, Object, Ref) of
        ok ->
            %% If the connection was lost meanwhile, the caller may have had its 'DOWN' already, and
            %% the next session would begin with a monitor that no process needs.
            is_process_alive(element(1, Inlets))
                orelse trunkline_monitor_rows:lookup(Ref) =/= none
                orelse trunkline_monitors:cancel(Object, self(), Ref),
            Ref;
        false ->
            plain(Node, Object, Ref);
        _ ->
            refused(trunkline_monitor_rows:lookup(Ref), Node, Object, Ref)
    end.

refused(none, _, _, Ref) ->
    Ref;                           % the connection has been lost: there is a 'DOWN' already
refused(_, Node, Object, Ref) ->
    case is_tuple(trunkline_peers:session(Node)) andalso force(Node, Object, Ref) of
        ok -> Ref;         % the session is about to begin: what is in a lane leaves it first
        _ -> plain(Node, Object, Ref)
    end.

plain(Node, Object, Ref) ->
    trunkline_sender:fallback(Node),
    case enter_plain(Ref, Object, Node) of
        true ->
            Ref;
        false ->
            %% Trunkline does not run.
            unalias(Ref),
            erlang:monitor(process, Object)
    end.

%% Enters a monitor in the session with these inlets. `false': Trunkline has stopped, or the session
%% belongs to a connection that is not the present one.
enter(Ref, Object, Node, Inlets) ->
    Session = element(1, Inlets),
    try
        %% Watched before the row is entered: this process may be killed, and the session needs
        %% its mark.
        trunkline_watched:is_watched(self()) andalso trunkline_watched:is_watched(Session)
            orelse ask({watch, self(), Session, Inlets, Node}),
        trunkline_watched:is_present(Session, Node) andalso begin
            ok = trunkline_monitor_rows:enter(Ref, Session, Object),
            ensure_watched(Session, Inlets, Node),
            true
        end
    catch
        error:badarg -> false
    end.

%% Enters a monitor without a session. `false' also means that no process could be started.
enter_plain(Ref, Object, Node) ->
    try
        trunkline_watched:is_running() orelse error(badarg),
        case watcher(Node) of
            Watcher when is_pid(Watcher) ->
                ok = trunkline_monitor_rows:enter(Ref, {plain, Watcher}, Object),
                _ = trunkline_watcher:monitor(Watcher, Ref, Object),
                ensure_watched({plain, Watcher}, {Watcher}, Node),
                %% Lanes may have opened before this row was there.
                trunkline_peers:session(Node) =:= none
                    orelse trunkline_watched:ask({lanes, Node}, infinity),
                true;
            system_limit ->
                ok = trunkline_monitor_rows:leave(self(), Ref),
                false
        end
    catch
        error:badarg -> false
    end.

watcher(Node) ->
    Watcher = trunkline_watched:watcher(Node),
    case is_pid(Watcher) andalso trunkline_watched:is_watched(self()) of
        true -> Watcher;
        false -> ask({plain, self(), Node})
    end.

%% Checked after the row was entered: the session may have ended meanwhile.
ensure_watched(Session, Inlets, Node) ->
    trunkline_watched:is_watched(Session) orelse ask({watch, self(), Session, Inlets, Node}).

%% If the overseer has died, waits for the next one. It is an error if Trunkline has stopped.
ask(Request) ->
    case trunkline_watched:ask(Request, infinity) of
        down ->
            receive after ?AGAIN -> ok end,
            trunkline_watched:is_running() orelse error(badarg),
            ask(Request);
        Answer ->
            Answer
    end.

%% As erlang:demonitor/2. It also takes OTP's own monitors, so that the caller need not know which
%% way a monitor went.
-spec demonitor(reference(), [flush | info]) -> boolean().
demonitor(Ref, Options) ->
    case are_options(Options) andalso trunkline_monitor_rows:lookup(Ref) of
        {ok, Object, Session} ->
            case unalias(Ref) of
                true ->
                    ok = trunkline_monitors:take_back(self(), Ref, Object, Session),
                    true;
                false ->
                    erlang:demonitor(Ref, Options)         % its 'DOWN' is here already
            end;
        _ ->
            erlang:demonitor(Ref, Options)
    end.

are_options([Option | Options]) when Option =:= flush; Option =:= info -> are_options(Options);
are_options(Options) -> Options =:= [].
