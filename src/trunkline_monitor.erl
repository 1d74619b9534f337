%% Monitors of processes at other nodes, by lane: what the monitoring process does.
%%
%%     caller                                     inlet, the agent          server
%%       | -- monitor ----> lane ══════════════════> | -- monitor ----------> |
%%       |                                           | <--------------- 'DOWN'|
%%       | <-- 'DOWN' ----- inlet <════════ lane <── |   the lane of the server's own messages
%%
%% Hence the 'DOWN' comes after everything that the server has sent to the caller, as
%% with erlang:monitor/2, which a process elsewhere, without lanes, and on this node is
%% monitored with.
%%
%% The reference is an alias that the first message sent to it takes away. So there is one
%% 'DOWN', whoever sends it first: the inlet by which the news comes, or, if the
%% session with that node ends before, trunkline_monitors, which keeps in a table what is
%% monitored by whom.
-module(trunkline_monitor).

-export([monitor/1, demonitor/2, cancel/3]).

-type object() :: pid() | atom() | {RegisteredName :: atom(), node()}.

-spec monitor(object()) -> reference().
monitor(Pid) when is_pid(Pid), node(Pid) =/= node() -> by_lane(node(Pid), Pid, Pid);
monitor({Name, Node} = Object) when is_atom(Name), is_atom(Node), Node =/= node() -> by_lane(Node, Name, Object);
monitor(Object) -> erlang:monitor(process, Object).

by_lane(Node, Server, Object) ->
    case session(Node) of
        direct -> plain(Node, Object);
        unreachable -> down(make_ref(), Object);
        Inlets -> by_lane(Node, Server, Object, alias([reply]), Inlets)
    end.

by_lane(Node, Server, Object, Ref, Inlets) ->
    case trunkline_monitors:enter(Ref, Object, Inlets)
        andalso trunkline_sender:hand_over(Node, {monitor, Server, self(), Ref}, []) of
        ok ->
            %% If the session has ended meanwhile the caller may have been told so before,
            %% and now another session begins with a monitor that nobody waits for.
            is_process_alive(element(1, Inlets)) orelse cancel(Object, self(), Ref),
            Ref;
        Refused ->
            ok = trunkline_monitors:leave(self(), Ref),
            case unalias(Ref) of
                true when Refused =:= unreachable -> down(Ref, Object);
                true -> plain(Node, Object);
                false -> Ref                   % the session has ended: there is a 'DOWN' already
            end
    end.

plain(Node, Object) ->
    trunkline_sender:fallback(Node),
    erlang:monitor(process, Object).

down(Ref, Object) ->
    self() ! {'DOWN', Ref, process, Object, noconnection},
    Ref.

session(Node) ->
    case trunkline_peers:session(Node, monitor) of
        none ->
            case trunkline_sender:await_session(Node, infinity) of
                ok -> session(Node);
                Other -> Other
            end;
        Answer ->
            Answer
    end.

%% As erlang:demonitor/2, also of a monitor that is erlang's own: who has the reference
%% need not know which way was taken.
-spec demonitor(reference(), [flush | info]) -> boolean().
demonitor(Ref, Options) ->
    case are_options(Options) andalso trunkline_monitors:lookup(Ref) of
        {ok, Object} ->
            case unalias(Ref) of
                true ->
                    cancel(Object, self(), Ref),
                    ok = trunkline_monitors:leave(self(), Ref),
                    true;
                false ->
                    erlang:demonitor(Ref, Options)         % its message is here
            end;
        _ ->
            erlang:demonitor(Ref, Options)
    end.

are_options([Option | Options]) when Option =:= flush; Option =:= info -> are_options(Options);
are_options(Options) -> Options =:= [].

%% The server need not be monitored any more for that caller. This must not wait, and it
%% takes the caller's lane, behind what it takes back.
-spec cancel(object(), Caller :: pid(), reference()) -> ok.
cancel(Object, Caller, Ref) ->
    Node = case Object of
               {_, N} -> N;
               Pid -> node(Pid)
           end,
    case trunkline_route:lookup(Node) of
        none -> ok;
        Route -> trunkline_sender:force(Route, {{demonitor, Ref}, []}, Caller)
    end.
