%% Makes sure that every monitor of a process at another node (trunkline_monitor) gets its 'DOWN'.
%%
%% The monitors are the rows of trunkline_monitor_rows. The overseer, a process of this module,
%% watches callers, sessions and watchers. It has a row for each of them in another table
%% (trunkline_watched).
%%
%% A session of lanes is identified by its first inlet. Inlets deliver what has arrived before they
%% end or retire, but in no particular order. Therefore a session has ended only when all of them
%% have. If the connection was lost, its callers get a 'DOWN' with the reason noconnection. If not
%% (Trunkline has stopped on either node, or one of its processes was killed), the monitored
%% processes are still there. Then their monitors move to the next session, or if there is none, to
%% the watcher, which uses erlang:monitor/2. After an orderly end both sides have delivered
%% everything, so that the 'DOWN' still comes last. (If a process was killed, the 'DOWN' may come
%% before messages that were in flight.) If the monitored process ends while no process watches it,
%% the reason is noproc.
%%
%% Without lanes, the session is {plain, Watcher}. As soon as lanes open, the monitors move to them,
%% before the peer can send anything by lane. If a process ends before it is monitored at the peer,
%% the watcher tells the caller, since it may know the reason.
%%
%% A process that enters a row checks afterwards whether the session is watched. If not, it asks the
%% overseer to watch the session. When a session ends, the overseer first deletes the session's row,
%% and then looks for monitors. So one of the two sees each monitor. If the overseer is killed, its
%% successor finds in the tables what to watch, and its monitors tell it at once what has ended
%% meanwhile. (A process that has monitored something is watched until it ends.)
%%
%% The tables belong to the process that starts and stops the application, so that they survive when
%% a process of Trunkline is killed. If there are monitors when the application stops, the tables
%% are given to an overseer without a supervisor. It ends when no monitor is left, or when the
%% application starts again. The table of the plain replies that servers owe (trunkline_owed) may
%% also be needed after a stop, and is kept with these two.
-module(trunkline_monitors).
-moduledoc false.
-behaviour(gen_server).

-include("../gate/trunkline_route.hrl").
-include("trunkline_monitors.hrl").

-export([create/0, close/0]).
-export([command/3, force/4, cancel/3, take_back/4]).
-export([start_link/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-type object() :: trunkline_command:object().
-type session() :: trunkline_monitor_rows:session().
-type mark() :: trunkline_process:controller() | {resumes, trunkline_process:controller()}.

-define(OWED, trunkline_owed).
-define(TABLES, [?ROWS, ?WATCHED, ?OWED]).

%% ms
-define(LOOK, 1_000).              % between two looks after a stop whether the tables are needed
-define(LATER, 100).               % until the next try when no process could be started

-record(overseer,
        {watched = #{} :: #{pid() => {reference(), caller | {inlet_of, session()} | retired}},
         sessions = #{} :: #{session() => Inlets :: pos_integer()}}).     % that have not ended

%% The tables from before the last stop of the application may still exist.
-spec create() -> ok.
create() ->
    case ets:info(?WATCHED, owner) of
        undefined ->
            ?ROWS = ets:new(?ROWS, [named_table, public, ordered_set, {write_concurrency, true}]),
            ?WATCHED = ets:new(?WATCHED, [named_table, public, {read_concurrency, true}]),
            ?OWED = trunkline_owed:create(),
            ok;
        Owner when Owner =:= self() ->
            ok;
        Owner ->
            Ref = monitor(process, Owner),
            Owner ! {give_back, self(), Ref},
            receive
                {'DOWN', Ref, process, _, _} -> create()
            end
    end.

%% The application stops. From here on no process can enter a monitor.
-spec close() -> ok.
close() ->
    case ets:info(?WATCHED, owner) of
        Owner when Owner =:= self() ->
            true = ets:insert(?WATCHED, {stopped}),
            case are_needed() of
                false -> delete();
                true -> leave_alone()
            end;
        _ ->
            ok
    end.

are_needed() -> ets:info(?ROWS, size) > 0 orelse trunkline_owed:is_any_owed().

leave_alone() ->
    case trunkline_process:start(fun() ->
                                         gen_server:start(?MODULE, alone, [{hibernate_after, 0}])
                                 end) of
        {ok, {ok, Overseer}} ->
            give_away(Overseer);
        {error, system_limit} ->
            ok = trunkline_monitor_rows:lost(),
            delete()
    end.

delete() -> lists:foreach(fun ets:delete/1, tables()).

give_away(Pid) -> lists:foreach(fun(Table) -> ets:give_away(Table, Pid, none) end, tables()).

tables() -> [Table || Table <- ?TABLES, ets:info(Table, owner) =:= self()].

%% The caller does not need the monitor any more, which had that session. (It may have been moved
%% since its row was read, or be moved until the row is gone.)
-spec take_back(Caller :: pid(), reference(), object(), session()) -> ok.
take_back(Caller, Ref, Object, Session) ->
    ok = demonitor_in(Session, Object, Caller, Ref),
    case trunkline_monitor_rows:take(Caller, Ref) of
        none -> ok;
        Session when is_pid(Session) -> ok;
        Last -> demonitor_in(Last, Object, Caller, Ref)
    end.

demonitor_in({plain, Watcher}, _, _, Ref) -> trunkline_watcher:demonitor(Watcher, Ref);
demonitor_in(_, Object, Caller, Ref) -> cancel(Object, Caller, Ref).

%% --- the overseer -------------------------------------------------------------------

-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, supervised,
                          [{spawn_opt, [{message_queue_data, off_heap}]}]).

-spec init(supervised | alone) -> {ok, #overseer{}}.
init(How) ->
    case How of
        alone ->
            ok = trunkline_process:outlive(self()),
            _ = look(),
            ok;
        supervised ->
            true = ets:delete(?WATCHED, stopped),
            ok
    end,
    Known = lists:foldl(fun({Pid, {}}, S) -> watch_caller(Pid, S);
                           ({Session, Inlets, Node, Mark}, S) ->
                                watch_session(Session, Inlets, Node, Mark, S);
                           ({{retired, Inlet}}, S) -> inlet_retired(Inlet, S);
                           (_, S) -> S
                        end, #overseer{}, ets:tab2list(?WATCHED)),
    All = trunkline_monitor_rows:foldl(
            fun(Session, Object, S) ->
                    %% If the session has no row it has ended, or the caller is about to ask for it.
                    Node = trunkline_monitor_rows:node_of(Object),
                    case trunkline_watched:is_watched(Session) of
                        true -> S;
                        false -> watch_session(Session, {first(Session)}, Node, S)
                    end
            end, Known),
    {ok, lists:foldl(fun go_on_moving/2, All, ets:tab2list(?WATCHED))}.

%% The process before this one may have been killed while it moved monitors to the watcher, or to
%% lanes.
go_on_moving({{plain, Watcher} = Session, _, Node, _}, S) ->
    ok = trunkline_watcher:take(Watcher, trunkline_process:controller(Node),
                                trunkline_monitor_rows:of_session(Session)),
    to_lanes(Node, S);
go_on_moving(_, S) ->
    S.

first({plain, Watcher}) -> Watcher;
first(Inlet) -> Inlet.

-spec handle_call(term(), gen_server:from(), #overseer{}) ->
          {reply, ok | pid() | system_limit | {error, badarg}, #overseer{}}.
handle_call({watch, Caller, Session, Inlets, Node}, _, S) when is_pid(Caller), is_tuple(Inlets) ->
    {reply, ok, watch_session(Session, Inlets, Node, watch_caller(Caller, S))};
handle_call({plain, Caller, Node}, _, S) when is_pid(Caller), is_atom(Node) ->
    {Watcher, S1} = watcher(Node, watch_caller(Caller, S)),
    {reply, Watcher, S1};
handle_call({lanes, Node}, _, S) when is_atom(Node) ->
    {reply, ok, to_lanes(Node, S)};
handle_call(_, _, S) ->
    {reply, {error, badarg}, S}.

-spec handle_cast(term(), #overseer{}) -> {noreply, #overseer{}}.
handle_cast({connected, Node}, S) ->
    _ = update_mark(Node),
    {noreply, to_lanes(Node, S)};
handle_cast(Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    {noreply, S}.

-spec handle_info(term(), #overseer{}) -> {noreply, #overseer{}} | {stop, normal, #overseer{}}.
handle_info({'DOWN', _, process, Pid, _}, S) ->
    {noreply, ended(Pid, S)};
handle_info({retired, Inlet}, S) ->
    {noreply, inlet_retired(Inlet, S)};
handle_info({later, Session, Node, Controller}, S) ->
    {noreply, session_ended(Session, Node, Controller, S)};
handle_info(look, S) ->
    case are_needed() of
        false ->
            {stop, normal, S};
        true ->
            look(),
            {noreply, S}
    end;
handle_info({give_back, Pid, _}, S) ->
    ok = give_away(Pid),
    {stop, normal, S};
handle_info({'ETS-TRANSFER', _, _, _}, S) ->
    {noreply, S};
handle_info(Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    {noreply, S}.

ended(Pid, #overseer{watched = Watched} = S) ->
    case maps:take(Pid, Watched) of
        {{_, caller}, Watched1} ->
            caller_ended(Pid),
            S#overseer{watched = Watched1};
        {{_, {inlet_of, Session}}, Watched1} ->
            inlet_ended(Session, S#overseer{watched = Watched1});
        {{_, retired}, Watched1} ->
            true = ets:delete(?WATCHED, {retired, Pid}),
            S#overseer{watched = Watched1};
        error ->
            S
    end.

inlet_retired(Inlet, #overseer{watched = Watched} = S) ->
    S1 = S#overseer{watched = Watched#{Inlet => {monitor_of(Inlet, Watched), retired}}},
    case Watched of
        #{Inlet := {_, {inlet_of, Session}}} -> inlet_ended(Session, S1);
        #{} -> S1
    end.

monitor_of(Pid, Watched) ->
    case Watched of
        #{Pid := {Monitor, _}} -> Monitor;
        #{} -> monitor(process, Pid)
    end.

look() -> erlang:send_after(?LOOK, self(), look).

watch_caller(Caller, #overseer{watched = Watched} = S) when is_map_key(Caller, Watched) ->
    S;
watch_caller(Caller, #overseer{watched = Watched} = S) ->
    Monitor = monitor(process, Caller),
    true = ets:insert(?WATCHED, {Caller, {}}),
    S#overseer{watched = Watched#{Caller => {Monitor, caller}}}.

watch_session(Session, Inlets, Node, S) ->
    watch_session(Session, Inlets, Node, mark(Session, Node), S).

-spec mark(session(), node()) -> mark().
mark(Session, Node) ->
    Controller = trunkline_process:controller(Node),
    case is_pid(Session) andalso trunkline_peers:resumes(Node) of
        true -> {resumes, Controller};
        false -> Controller
    end.

%% Updates the mark of a session. If there is no connection now, the session will come up again
%% later.
update_mark(Node) ->
    case {trunkline_peers:session(Node), trunkline_process:controller(Node)} of
        {Inlets, Controller} when is_tuple(Inlets), Controller =/= none ->
            case ets:lookup(?WATCHED, element(1, Inlets)) of
                [{Session, _, _, {resumes, _}}] ->
                    ets:update_element(?WATCHED, Session, {4, {resumes, Controller}});
                _ ->
                    false
            end;
        _ ->
            false
    end.

watch_session(Session, Inlets, Node, Mark,
              #overseer{watched = Watched, sessions = Sessions} = S) ->
    case [Inlet || Inlet <- tuple_to_list(Inlets), not is_of_session(Inlet, Watched)] of
        [] ->
            S;
        New ->
            Monitors =
                maps:from_list([{Inlet, {monitor_of(Inlet, Watched), {inlet_of, Session}}}
                                || Inlet <- New]),
            true = ets:insert(?WATCHED, {Session, Inlets, Node, Mark}),
            _ = [self() ! {retired, Inlet}
                 || Inlet <- New, trunkline_watched:is_watched({retired, Inlet})],
            S#overseer{watched = maps:merge(Watched, Monitors),
                     sessions =
                         Sessions#{Session => maps:get(Session, Sessions, 0) + map_size(Monitors)}}
    end.

is_of_session(Inlet, Watched) ->
    case Watched of
        #{Inlet := {_, {inlet_of, _}}} -> true;
        #{} -> false
    end.

watcher(Node, S) ->
    case trunkline_watched:watcher(Node) of
        none ->
            case trunkline_process:start(fun() -> trunkline_watcher:start(Node) end) of
                {ok, Watcher} ->
                    S1 = watch_session({plain, Watcher}, {Watcher}, Node, S),
                    true = ets:insert(?WATCHED, {{node, Node}, Watcher}),
                    {Watcher, S1};
                {error, system_limit} ->
                    {system_limit, S}
            end;
        Watcher ->
            {Watcher, S}
    end.

inlet_ended(Session, #overseer{sessions = Sessions} = S) ->
    case Sessions of
        #{Session := 1} ->
            session_ended(Session, S#overseer{sessions = maps:remove(Session, Sessions)});
        #{Session := N} -> S#overseer{sessions = Sessions#{Session := N - 1}}
    end.

%% The caller's row is the last one to be deleted, because this process may be killed meanwhile.
caller_ended(Caller) ->
    lists:foreach(fun({Ref, Session, Object}) ->
                          take_back(Caller, Ref, Object, Session)
                  end,
                  trunkline_monitor_rows:of_caller(Caller)),
    true = ets:delete(?WATCHED, Caller).

%% The session's row has to be deleted before its monitors are looked for. If this process is killed
%% then, its successor finds the remaining work in the monitors' rows. A command that a caller has
%% handed over may reach the next session.
session_ended(Session, S) ->
    ok = none_knows(Session),
    [{_, _, Node, Mark}] = ets:take(?WATCHED, Session),
    Controller = case Mark of
                     {resumes, Last} -> Last;
                     _ -> Mark
                 end,
    case Session of
        {plain, Watcher} -> true = ets:delete_object(?WATCHED, {{node, Node}, Watcher});
        _ -> true
    end,
    session_ended(Session, Node, Controller, S).

%% Lanes have found no process, and the watcher that may have known the reason has ended.
none_knows({plain, Watcher}) ->
    lists:foreach(fun({Caller, Ref, Object}) ->
                          ok = trunkline_monitor_rows:down(Caller, Ref, Object, noproc)
                  end, trunkline_monitor_rows:of_missing(Watcher));
none_knows(_) ->
    ok.

session_ended(Session, Node, Controller, S) ->
    case {trunkline_process:controller(Node), Session} of
        {none, _} -> lost(Session, S);
        %% The watcher was killed, and it is not known which connection it had.
        {Now, {plain, _}} -> go_on(Session, Node, Now, S);
        {Controller, _} -> go_on(Session, Node, Controller, S);
        {_, _} -> lost(Session, S)
    end.

lost(Session, S) ->
    lists:foreach(fun({Caller, Ref, Object}) ->
                          ok = trunkline_monitor_rows:down(Caller, Ref, Object, noconnection),
                          cancel(Object, Caller, Ref)
                  end, trunkline_monitor_rows:of_session(Session)),
    S.

%% The monitored processes are alive, as far as is known.
go_on(Session, Node, Controller, S) ->
    case trunkline_monitor_rows:of_session(Session) of
        [] ->
            S;
        Monitors ->
            case lanes_of(Node) of
                {Inlets, Route} when element(1, Inlets) =/= Session ->
                    _ = move_to_lanes(Monitors, Session, Inlets, Route),
                    watch_session(element(1, Inlets), Inlets, Node, S);
                _ ->
                    to_watcher(watcher(Node, S), Monitors, Session, Node, Controller)
            end
    end.

to_watcher({system_limit, S}, _, Session, Node, Controller) ->
    _ = erlang:send_after(?LATER, self(), {later, Session, Node, Controller}),
    S;
to_watcher({Watcher, S}, Monitors, Session, _, Controller) ->
    Moved = [Monitor || Monitor <- Monitors,
                        trunkline_monitor_rows:move(Monitor, Session, {plain, Watcher})],
    ok = trunkline_watcher:take(Watcher, Controller, Moved),
    S.

to_lanes(Node, S) ->
    case {trunkline_watched:watcher(Node), lanes_of(Node)} of
        {Watcher, {Inlets, Route}} when is_pid(Watcher) ->
            case trunkline_monitor_rows:of_session({plain, Watcher}) of
                [] ->
                    S;
                Monitors ->
                    S1 = watch_session(element(1, Inlets), Inlets, Node, S),
                    Moved = move_to_lanes(Monitors, {plain, Watcher}, Inlets, Route),
                    ok = trunkline_watcher:moved(Watcher, Moved),
                    S1
            end;
        _ ->
            S
    end.

%% The lanes of a session that begins or is up. (A link that was killed leaves dead inlets behind.)
lanes_of(Node) ->
    case {trunkline_peers:session(Node), trunkline_route:lookup(Node)} of
        {Inlets, #route{} = Route} when is_tuple(Inlets) ->
            Session = element(1, Inlets),
            case is_process_alive(Session) andalso trunkline_watched:is_present(Session, Node) of
                true -> {Inlets, Route};
                false -> none
            end;
        _ ->
            none
    end.

%% Each monitor takes its caller's lane, so that it keeps its place among the caller's messages. It
%% is in the lane before its row says so: a process that finds it there may cancel it behind that,
%% and if this process is killed in between, its successor does both.
move_to_lanes(Monitors, From, Inlets, Route) ->
    lists:filter(fun({Caller, Ref, Object} = Monitor) ->
                         ok = force(Route, Object, Caller, Ref),
                         IsMoved = trunkline_monitor_rows:move(Monitor, From, element(1, Inlets)),
                         IsMoved orelse cancel(Object, Caller, Ref),
                         IsMoved
                 end, Monitors).

%% --- commands by lane ------------------------------------------------------------

-spec command(object(), Caller :: pid(), reference()) -> trunkline_command:command().
command(Pid, Caller, Ref) when is_pid(Pid) -> {monitor, Pid, Caller, Ref};
command({Name, _}, Caller, Ref) -> {monitor, Name, Caller, Ref}.

%% Puts the command into a lane, whatever state the lanes are in.
-spec force(trunkline_route:route(), object(), Caller :: pid(), reference()) -> ok.
force(Route, Object, Caller, Ref) ->
    trunkline_sender:force(Route, {command(Object, Caller, Ref), []}, Caller).

%% The server need not be monitored for that caller any more. This must not wait. It takes the
%% caller's lane, behind the monitor that it cancels.
-spec cancel(object(), Caller :: pid(), reference()) -> ok.
cancel(Object, Caller, Ref) ->
    case trunkline_route:lookup(trunkline_monitor_rows:node_of(Object)) of
        none -> ok;
        Route -> trunkline_sender:force(Route, {{demonitor, Ref}, []}, Caller)
    end.
