%% Monitors processes at one node with erlang:monitor/2, on behalf of callers at this node, while
%% there are no lanes to that node.
%%
%%     caller ── monitor/3 ──> watcher ── erlang:monitor/2 ──> server
%%       ^                       │ ^                            │
%%       └──────── 'DOWN' ───────┘ └─────── 'DOWN' ─────────────┘
%%
%% The 'DOWN' comes after everything that the server has sent to the caller by plain distribution:
%% those messages are in the caller's mailbox before the watcher gets its own 'DOWN'. The server's
%% lanes may hold more messages, so the 'DOWN' also waits until it is clear whether the lanes open.
%% When they do, trunkline_monitors moves the monitors to them; when a session ends and the nodes
%% remain connected, it moves them back.
%%
%% A process may end before the lanes have set its monitor. Then they find no such process, but the
%% watcher may know the reason, or be about to learn it: it keeps its own monitors for a while. So
%% the watcher tells the caller (noproc/1).
%%
%% There is one watcher for each node, so that a busy connection delays only what concerns that
%% node, as it would with erlang:monitor/2. A watcher is linked to no process, and outlives the
%% application: callers learn why the process has really ended, whether Trunkline still runs or not.
%% A watcher ends when it has had nothing to watch for a while. It hibernates, so that it does not
%% keep old code in use.
-module(trunkline_watcher).
-moduledoc false.
-behaviour(gen_server).

-include("../gate/trunkline_route.hrl").

-export([start/1, monitor/3, take/3, demonitor/2, moved/2, noproc/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-type object() :: trunkline_command:object().
-type monitor() :: trunkline_monitor_rows:monitor().

%% ms
-define(IDLE, 5_000).
-define(MOVED, 5_000).             % until the lanes have certainly set their monitors
-define(HIBERNATE, 500).
-define(SOON, 10).

-record(watcher,
        {node :: node(),
         held = [] :: [{reference(), Reason :: term()}],     % ends that have not been reported yet
         %% {Monitor, Caller, Ref, Object} and {Ref, Monitor}. Or {Ref, {ended, Reason}}: the lanes
         %% have the monitor, and may find no process.
         monitors :: ets:table()}).

-spec start(node()) -> pid().
start(Node) ->
    {ok, Watcher} = gen_server:start(?MODULE, Node,
                                     [{hibernate_after, ?HIBERNATE},
                                      {spawn_opt, [{message_queue_data, off_heap}]}]),
    Watcher.

%% Monitors a process for the calling process, whose next messages come behind the monitor. The
%% caller has entered a row already. `gone': the watcher has ended.
-spec monitor(pid(), reference(), object()) -> ok | gone.
monitor(Watcher, Ref, Object) ->
    try gen_server:call(Watcher, {monitor, self(), Ref, Object}, infinity)
    catch exit:_ -> gone
    end.

%% Takes over monitors from lanes, except for those that it still has. If the connection has another
%% controller by now, they are lost.
-spec take(pid(), trunkline_process:controller(), [monitor()]) -> ok.
take(Watcher, Controller, Monitors) ->
    gen_server:cast(Watcher, {take, Controller, Monitors}).

-spec demonitor(pid(), reference()) -> ok.
demonitor(Watcher, Ref) ->
    gen_server:cast(Watcher, {demonitor, Ref}).

%% Lanes have taken over these monitors.
-spec moved(pid(), [monitor()]) -> ok.
moved(Watcher, Monitors) ->
    gen_server:cast(Watcher, {moved, Monitors}).

%% A lane reports that there is no such process.
-spec noproc(monitor()) -> ok.
noproc({Caller, Ref, Object} = Monitor) ->
    Watcher = trunkline_monitor_rows:missing(Caller, Ref),
    case is_pid(Watcher) andalso is_process_alive(Watcher) of
        true -> gen_server:cast(Watcher, {noproc, Monitor});
        false -> trunkline_monitor_rows:down(Caller, Ref, Object, noproc)
    end.

-spec init(node()) -> {ok, #watcher{}}.
init(Node) ->
    ok = trunkline_process:outlive(self()),
    rest(false),
    {ok, #watcher{node = Node, monitors = ets:new(?MODULE, [private])}}.

-spec handle_call(term(), gen_server:from(), #watcher{}) ->
          {reply, ok | {error, badarg}, #watcher{}}.
handle_call({monitor, Caller, Ref, Object}, _, S) ->
    Monitor = {Caller, Ref, Object},
    %% Another overseer may have found the row, and has told this process already (take/3).
    covers(Monitor, S) orelse watch(Monitor, S),
    {reply, ok, S};
handle_call(_, _, S) ->
    {reply, {error, badarg}, S}.

-spec handle_cast(term(), #watcher{}) -> {noreply, #watcher{}}.
handle_cast({take, Controller, Monitors}, #watcher{node = Node} = S) ->
    New = [Monitor || Monitor <- Monitors, not covers(Monitor, S)],
    %% Monitoring would make a connection, if there is none.
    IsThere = fun() -> Controller =/= none
                           andalso Controller =:= trunkline_process:controller(Node) end,
    IsThere()
        andalso lists:foreach(fun({Caller, Ref, _} = Monitor) ->
                                      %% A process that demonitors says so again when it has
                                      %% deleted the row.
                                      trunkline_monitor_rows:is_plain(Caller, Ref)
                                          andalso watch(Monitor, S)
                              end, New),
    IsThere()
        orelse lists:foreach(fun({_, Ref, _} = Monitor) ->
                                     forget(Ref, S),
                                     ended(Monitor, noconnection, S)
                             end, New),
    {noreply, S};
handle_cast({demonitor, Ref}, S) ->
    forget(Ref, S),
    {noreply, S};
handle_cast({noproc, Monitor}, S) ->
    case covers(Monitor, S) of
        true -> ok = moved(self(), [Monitor]);           % its 'DOWN' should come until then
        false -> ok = ended(Monitor, noproc, S)
    end,
    {noreply, S};
handle_cast({moved, Monitors}, S) ->
    _ = erlang:send_after(?MOVED, self(), {moved, Monitors}),
    {noreply, S};
handle_cast(Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    {noreply, S}.

-spec handle_info(term(), #watcher{}) -> {noreply, #watcher{}} | {stop, normal, #watcher{}}.
handle_info({'DOWN', Monitor, process, _, Reason}, S) ->
    {noreply, down(Monitor, Reason, S)};
handle_info(held, #watcher{held = Held} = S) ->
    {noreply, lists:foldr(fun({Monitor, Reason}, S1) -> down(Monitor, Reason, S1) end,
                          S#watcher{held = []}, Held)};
handle_info({moved, Monitors}, S) ->
    lists:foreach(fun({Caller, Ref, _} = Monitor) ->
                          trunkline_monitor_rows:is_plain(Caller, Ref)
                              orelse tell_known(Monitor, S)
                              orelse forget(Ref, S) andalso ended(Monitor, noproc, S)
                  end, Monitors),
    {noreply, S};
handle_info({rest, HasRested}, #watcher{monitors = Monitors} = S) ->
    %% Not at once: a lane may be about to report that there is no such process.
    case ets:info(Monitors, size) of
        0 when HasRested ->
            {stop, normal, S};
        Size ->
            rest(Size =:= 0),
            {noreply, S}
    end;
handle_info(Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    {noreply, S}.

watch({Caller, Ref, Object}, #watcher{monitors = Monitors}) ->
    Monitor = erlang:monitor(process, Object),
    true = ets:insert(Monitors, [{Monitor, Caller, Ref, Object}, {Ref, Monitor}]),
    ok.

%% The messages of the ended process have arrived, unless they are in lanes that are about to open.
%% Then the 'DOWN' has to wait as well.
down(Monitor, Reason, S) ->
    #watcher{node = Node, monitors = Monitors, held = Held} = S,
    case Reason =/= noconnection andalso session(S) of
        opening ->
            Held =:= [] andalso erlang:send_after(?SOON, self(), held),
            S#watcher{held = [{Monitor, Reason} | Held]};
        Session ->
            case ets:take(Monitors, Monitor) of
                [{Monitor, Caller, Ref, Object}] ->
                    true = ets:delete(Monitors, Ref),
                    Session =:= open andalso trunkline_monitor_rows:is_plain(Caller, Ref)
                        andalso trunkline_watched:lanes(Node),
                    ended({Caller, Ref, Object}, Reason, S);
                [] ->
                    ok
            end,
            S
    end.

%% If lanes have the monitor by now, they may have found no process: then the caller is told. Or
%% they may do so yet: what they cannot find out is kept until they have told the caller something.
ended({Caller, Ref, Object} = Monitor, Reason, #watcher{monitors = Monitors}) ->
    case trunkline_monitor_rows:is_plain(Caller, Ref)
        orelse Reason =/= noconnection andalso trunkline_monitor_rows:is_missing(Caller, Ref) of
        true ->
            trunkline_monitor_rows:down(Caller, Ref, Object, Reason);
        false when Reason =:= noproc; Reason =:= noconnection ->
            ok;
        false ->
            case trunkline_monitor_rows:exists(Caller, Ref) of
                true ->
                    true = ets:insert(Monitors, {Ref, {ended, Reason}}),
                    moved(self(), [Monitor]);
                false ->
                    ok
            end
    end.

%% Whether the watcher need not monitor the process: it does so still, or knows how the process has
%% ended, and has seen to that (tell_known/2).
covers({_, Ref, _} = Monitor, #watcher{monitors = Monitors} = S) ->
    tell_known(Monitor, S) orelse ets:member(Monitors, Ref).

%% If the watcher knows how the process has ended it tells the caller, or goes on waiting for what
%% lanes find. Returns whether it knows.
tell_known({_, Ref, _} = Monitor, #watcher{monitors = Monitors} = S) ->
    case ets:lookup(Monitors, Ref) of
        [{Ref, {ended, Reason}}] ->
            true = ets:delete(Monitors, Ref),
            ok = ended(Monitor, Reason, S),
            true;
        _ ->
            false
    end.

%% The state of the session. `opening': it is not clear yet whether there will be a session. Until
%% then the peer's lanes hold what they have, as do the lanes of this node.
session(#watcher{node = Node}) ->
    case {trunkline_peers:session(Node), trunkline_route:lookup(Node)} of
        {Inlets, _} when is_tuple(Inlets) ->
            case trunkline_watched:is_present(element(1, Inlets), Node) of
                true -> open;
                false -> opening
            end;
        {none, #route{gate = Gate}} ->
            case trunkline_process:controller(Node) =/= none andalso trunkline_gate:path(Gate) of
                Path when Path =:= false; Path =:= direct -> none;
                _ -> opening
            end;
        _ ->
            none
    end.

forget(Ref, #watcher{monitors = Monitors}) ->
    case ets:take(Monitors, Ref) of
        [{Ref, Monitor}] when is_reference(Monitor) ->
            true = ets:delete(Monitors, Monitor),
            true = demonitor(Monitor);             % a 'DOWN' that is here already is ignored
        _ ->
            true
    end.

rest(HasRested) ->
    erlang:send_after(?IDLE, self(), {rest, HasRested}).
