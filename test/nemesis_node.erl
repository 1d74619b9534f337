%% What nemesis_SUITE does to a node, and reads there. These functions run at the node.
-module(nemesis_node).

-export([by_kind/1, kill/2, kill_name/1, close_connection/1, close_distribution/1, fill/1]).
-export([rest/0, keep_counters/0, counted/0, sessions/0]).
-export([install_log/0, crash/1]).

-include("../src/gate/trunkline_route.hrl").

%% The processes of Trunkline that run this module.
by_kind(Module) -> [Pid || Pid <- processes(), kind(Pid) =:= Module].

kind(Pid) ->
    case process_info(Pid, [dictionary, current_stacktrace]) of
        [{dictionary, Dictionary}, {current_stacktrace, Stack}] ->
            case lists:keyfind('$initial_call', 1, Dictionary) of
                {_, {supervisor, Name, _}} -> of_trunkline([Name]);
                {_, {Module, _, _}} -> of_trunkline([Module | [M || {M, _, _, _} <- Stack]]);
                false -> of_trunkline([M || {M, _, _, _} <- Stack])
            end;
        undefined ->
            none
    end.

of_trunkline(Modules) ->
    case [M || M <- Modules, lists:prefix("trunkline_", atom_to_list(M))] of
        [Module | _] -> Module;
        [] -> none
    end.

%% One of them. Some are there for an instant only.
kill(Module, Random) ->
    case lists:sort(by_kind(Module)) of
        [] -> none;
        Pids -> end_it(lists:nth(Random rem length(Pids) + 1, Pids))
    end.

kill_name(Name) ->
    case whereis(Name) of
        undefined -> none;
        Pid -> end_it(Pid)
    end.

end_it(Pid) ->
    ok = trunkline_process:kill(Pid),
    killed.

%% A socket of a connection of Trunkline's own, without a farewell.
close_connection(Random) ->
    Owners = lists:append([by_kind(M) || M <- [trunkline_writer, trunkline_dock,
                                               trunkline_inlet]]),
    case [Port || {Port, Owner} <- ports(), lists:member(Owner, Owners)] of
        [] -> none;
        Ports -> cluster:close(lists:nth(Random rem length(Ports) + 1, Ports)), closed
    end.

%% Of the connection with that node, as if its end were gone.
close_distribution(Node) ->
    case lists:keyfind(Node, 1, erlang:system_info(dist_ctrl)) of
        {Node, Port} when is_port(Port) -> cluster:close(Port);
        {Node, Pid} -> exit(Pid, kill);
        false -> none
    end.

ports() ->
    [{Port, Owner} || Port <- lists:sort(erlang:ports()),
                      {connected, Owner} <- [erlang:port_info(Port, connected)]].

%% No process can be had for so many ms.
fill(Time) ->
    Filler = traffic:fill(),
    receive after Time -> ok end,
    end_it(Filler).

%% --- what is left ---------------------------------------------------------------------

%% What Trunkline has here, without load: #{What => {how many, how many there may be}}. Some of it
%% begins with the first large message, or the first monitor, and stays.
rest() ->
    Routes = trunkline_route:all(),
    Lanes = lists:append([L || #{lanes := L} <- maps:values(maps:get(peers, trunkline:info()))]),
    Things = counts([{processes, Kind} || Pid <- processes(), Kind <- [kind(Pid)], Kind =/= none]
                    ++ [{port, Kind} || {_, Owner} <- ports(), Kind <- [kind(Owner)], Kind =/= none]
                    ++ [{table, Name} || Table <- ets:all(), Name <- [ets:info(Table, name)],
                                         of_trunkline([Name]) =/= none]),
    Watched = counts([{watched, watched(Row)} || Row <- ets:tab2list(trunkline_monitors_watched)]),
    Tables = [trunkline_peers, trunkline_monitors, trunkline_owed],
    Rows = maps:from_list([{{rows, Table}, Size} || Table <- Tables,
                                                    Size <- [ets:info(Table, size)],
                                                    Size =/= undefined]),
    Sum = maps:merge(maps:merge(Things, Watched), Rows),
    InFlight = [M + B || #{in_flight_messages := M, in_flight_bytes := B} <- Lanes],
    maps:map(fun(What, N) -> {N, allowed(What, length(Routes), Sum)} end,
             Sum#{routes => length(Routes), in_flight => lists:sum(InFlight),
                  levels => lists:sum([in_gate(Route) || {_, Route} <- Routes])}).

%% Beside what was there before: acceptors for TCP and TLS (and no handler of theirs), a session
%% with each peer, and a connection for each inlet, which may have got it a moment after its lane
%% counted on it.
allowed({processes, trunkline_listener}, _, _) -> 3;
allowed({port, trunkline_listener}, _, _) -> 2;
allowed({port, trunkline_inlet}, _, #{{processes, trunkline_inlet} := Inlets}) -> Inlets;
allowed({watched, session}, Peers, _) -> Peers;
allowed({table, trunkline_monitored}, _, #{{processes, trunkline_inlet} := Inlets}) -> Inlets;
allowed(_, _, _) -> 0.

watched({_, {}}) -> caller;
watched({_, _, _, _}) -> session;
watched({{node, _}, _}) -> watcher;
watched({{retired, _}}) -> retired.

counts(Things) ->
    maps:map(fun(_, All) -> length(All) end,
             maps:groups_from_list(fun(Thing) -> Thing end, Things)).

in_gate(#route{gate = Gate, lanes = Lanes}) ->
    lists:sum([abs(trunkline_gate:level(Gate, Ix)) || Ix <- lists:seq(1, tuple_size(Lanes) + 1)]).

-define(KEPT, {nemesis, counters}).

%% The counters of all peers, to be read also after Trunkline has stopped.
keep_counters() -> persistent_term:put(?KEPT, counters()).

counters() ->
    lists:usort([{Node, Stats} || {Node, #{stats := Stats}} <- maps:to_list(trunkline_peers:all()),
                                  Stats =/= none]
                ++ persistent_term:get(?KEPT, [])).

%% #{Node => {{queued, unconfirmed, crashed, unreachable} on the way there, fallbacks, large
%% messages from there that were broken}}. (Fallbacks before there were lanes to a node are counted
%% together, for all nodes.)
counted() ->
    Early = trunkline_sender:fallbacks(),
    lists:foldl(fun({Node, Stats}, Sums) ->
                        #{lost_queued := Q, lost_unconfirmed := U, lost_crashed := C,
                          lost_unreachable := N, fallbacks := F, large_broken := B} =
                            trunkline_stats:read(Stats, peer),
                        {{Q0, U0, C0, N0}, F0, B0} = maps:get(Node, Sums, {{0, 0, 0, 0}, Early, 0}),
                        Sums#{Node => {{Q0 + Q, U0 + U, C0 + C, N0 + N}, F0 + F, B0 + B}}
                end, #{}, counters()).

%% #{Node => how the session with it has been}
sessions() ->
    [{Node, #{sessions => Sessions, resumed => Resumed, fallbacks => Fallbacks,
              lost => lists:sum(maps:values(Lost))}}
     || {Node, #{sessions := Sessions, resumed := Resumed, lost := Lost, fallbacks := Fallbacks}}
            <- maps:to_list(maps:get(peers, trunkline:info()))].

%% --- crashes --------------------------------------------------------------------------

%% Reports of errors that name Trunkline, with a reason that nobody has planned: the first ones.
install_log() ->
    _ = logger:remove_handler(default),
    kept_log:keep(error, #{}, fun ?MODULE:crash/1).

crash(#{level := error, msg := Msg}) ->
    Text = case Msg of
               {report, Report} -> io_lib:format("~0tp", [Report]);
               {string, String} -> String;
               {Format, Args} -> io_lib:format(Format, Args)
           end,
    Flat = unicode:characters_to_list(Text),
    Unplanned = "badmatch|(case|function|if|try)_clause|bad(arg|key|map|record)|undef\\b|corrupt",
    case {string:find(Flat, "trunkline_"), re:run(Flat, Unplanned, [unicode])} of
        {Found, {match, [{At, _} | _]}} when Found =/= nomatch ->
            length(kept_log:kept()) < 3
                andalso {true, lists:sublist(Flat, max(1, At - 100), 400)};
        _ ->
            false
    end;
crash(_) ->
    false.
