%% The overseer of monitors (trunkline_monitors) as other processes see it: what it watches, and
%% what they ask and tell it.
%%
%% What it watches is in a table, which is small and read often:
%%
%%     {Caller, {}}                       when it ends, its monitors are demonitored
%%     {Session, Inlets, Node, Mark}      the session ends when all of its inlets have ended
%%     {{node, Node}, Watcher}            the trunkline_watcher for that node
%%     {{retired, Inlet}}                 an inlet that goes on after its session has ended
%%     {stopped}                          the application has stopped: no process enters a monitor
%%
%% The mark of a session says which connection it has. A session that may outlive its connection
%% keeps its row, and when it goes on over another connection its mark is changed (connected/1).
-module(trunkline_watched).
-moduledoc false.

-include("trunkline_monitors.hrl").

-export([is_running/0, is_watched/1, is_present/2, is_watching/1, watcher/1]).
-export([ask/2, lanes/1, connected/1, retired/1]).

-type session() :: trunkline_monitor_rows:session().

-define(OVERSEER, trunkline_monitors).
-define(LANES, 5_000).             % ms that a link waits for the overseer

%% If there is no table, is_present/2 is true, and what else reads it fails with badarg.
-spec is_running() -> boolean().
is_running() -> not is_watched(stopped).

-spec is_watched(Key :: pid() | session() | {retired, pid()} | stopped) -> boolean().
is_watched(Key) -> ets:member(?WATCHED, Key).

-spec watcher(node()) -> pid() | none.
watcher(Node) ->
    case ets:lookup(?WATCHED, {node, Node}) of
        [{_, Watcher}] -> Watcher;
        [] -> none
    end.

%% Whether the nodes still have the connection in the session's mark. The link learns only later
%% that this connection is lost, and until then its session is found here. A monitor that joined the
%% session now would be lost with it, although the nodes have a new connection. (With a session that
%% may outlive the connection it would not.)
-spec is_present(session(), node()) -> boolean().
is_present(Session, Node) ->
    try {trunkline_process:controller(Node), ets:lookup(?WATCHED, Session)} of
        {_, [{_, _, _, {resumes, _}}]} -> true;
        {none, _} -> false;
        {Controller, [{_, _, _, Controller}]} -> true;
        {_, Marks} -> Marks =:= []
    catch
        error:badarg -> true
    end.

%% Whether that process monitors inlets for its own sake: the overseer, which may be left alone, or
%% another inlet that goes on after its session has ended.
-spec is_watching(pid()) -> boolean().
is_watching(Pid) ->
    Pid =:= whereis(?OVERSEER) orelse Pid =:= ets:info(?WATCHED, owner)
        orelse try is_watched({retired, Pid})
               catch error:badarg -> false
               end.

%% The timeout is in ms. `down': there is no overseer, or it did not answer.
-spec ask(Request :: term(), timeout()) -> Answer :: term() | down.
ask(Request, Timeout) ->
    try gen_server:call(?OVERSEER, Request, Timeout)
    catch exit:_ -> down
    end.

%% There are inlets for that node's lanes, but the node does not know them yet. From here on the
%% monitors belong to the lanes. The link waits for that, but not for ever: only the order would be
%% lost.
-spec lanes(node()) -> ok.
lanes(Node) ->
    _ = ask({lanes, Node}, ?LANES),
    ok.

%% The session with that node is up, possibly over another connection than before.
-spec connected(node()) -> ok.
connected(Node) -> gen_server:cast(?OVERSEER, {connected, Node}).

%% The session of the calling inlet has ended. The row for that is deleted when the inlet ends.
-spec retired(Inlet :: pid()) -> ok.
retired(Inlet) ->
    try
        true = ets:insert(?WATCHED, {{retired, Inlet}}),
        ?OVERSEER ! {retired, Inlet},
        ok
    catch
        error:badarg -> ok                   % there is no overseer: the next one will see the row
    end.
