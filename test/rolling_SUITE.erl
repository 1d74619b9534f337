%% Clusters that change under load: nodes with the release before this one, nodes that join and
%% leave, links that are drained.
-module(rolling_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([exchanged/1, lane_counts/1, monitors_fall_back/1, upgraded/1, upgraded_by_stop/1,
         drained/1, drained_both/1, drained_old/1, not_drained/1, drained_stays/1, drained_in_vain/1, drained_large/1,
         joined_and_left/1]).

-define(DEADLINE, 30_000).
-define(OLD, "0.4.0").

suite() -> [{timetrap, {minutes, 4}}].

all() -> [exchanged, lane_counts, monitors_fall_back, upgraded, upgraded_by_stop,
          drained, drained_both, drained_old, not_drained, drained_stays, drained_in_vain, drained_large,
          joined_and_left].

%% Compiles the release before this one.
init_per_suite(Config) ->
    Archive = filename:join(?config(data_dir, Config), "trunkline-" ++ ?OLD ++ ".tar.gz"),
    Dir = filename:join(?config(priv_dir, Config), "trunkline-" ++ ?OLD),
    Ebin = filename:join(Dir, "ebin"),
    ok = filelib:ensure_path(Ebin),
    ok = erl_tar:extract(Archive, [compressed, {cwd, Dir}]),
    Sources = filelib:wildcard(filename:join([Dir, "src", "*.erl"])),
    lists:foreach(fun(Source) -> {ok, _} = compile:file(Source, [{outdir, Ebin}, debug_info, report_errors]) end, Sources),
    {ok, [{application, trunkline, Keys}]} = file:consult(filename:join([Dir, "src", "trunkline.app.src"])),
    Modules = [list_to_atom(filename:basename(S, ".erl")) || S <- Sources],
    ok = file:write_file(filename:join(Ebin, "trunkline.app"),
                         io_lib:format("~p.~n", [{application, trunkline, [{modules, Modules} | Keys]}])),
    New = filename:dirname(code:which(trunkline)),
    [{old_path, [Ebin | [P || P <- code:get_path(), P =/= New]]} | Config].

end_per_suite(_) -> ok.

start_old(Config, Env) -> start_old(Config, Env, peer:random_name("trunkline_old")).

start_old(Config, Env, Name) ->
    Args = case cluster:lane_transport() of
               tls -> certificates:dist_arguments();
               _ -> []
           end,
    Node = cluster:start(Env, Name, Args, ?config(old_path, Config)),
    {ok, ?OLD} = cluster:call(Node, application, get_key, [trunkline, vsn]),
    Node.

%% One of each.
pair(Config, EnvOld, EnvNew) ->
    Old = start_old(Config, EnvOld),
    New = cluster:start(EnvNew),
    connect(Old, New),
    {Old, New}.

connect(A, B) ->
    cluster:connect(A, B),
    cluster:await_up(A, B).

%% --- two versions ---------------------------------------------------------------------------

%% Messages of all sizes, casts and calls, both ways, arrive whole and in order.
exchanged(Config) ->
    {Old, New} = pair(Config, [], []),
    ?assertMatch(#{release := ?OLD}, cluster:call(New, trunkline, info, [cluster:node_of(Old)])),
    exchange:both_ways(Old, New),
    lists:foreach(fun({A, B}) -> ?assertMatch(#{state := up, sessions := 1, fallbacks := 0}, cluster:call(A, trunkline, info, [cluster:node_of(B)])) end,
                  [{Old, New}, {New, Old}]),
    cluster:stop_all([Old, New]).

lane_counts(Config) ->
    lists:foreach(fun({EnvOld, EnvNew, N}) ->
                          {Old, New} = pair(Config, EnvOld, EnvNew),
                          lists:foreach(fun({A, B}) ->
                                                #{lanes := Lanes} = cluster:call(A, trunkline, info, [cluster:node_of(B)]),
                                                ?assertEqual(N, length(Lanes))
                                        end, [{Old, New}, {New, Old}]),
                          Loads = loads(Old, New),
                          ?assertEqual(0, finish(Loads)),
                          cluster:stop_all([Old, New])
                  end, [{[{lanes, 1}], [{lanes, 8}], 1}, {[{lanes, 7}], [{lanes, 3}], 3}]).

%% To the release before, and from there, what it does not know goes by erlang's own way.
monitors_fall_back(Config) ->
    {Old, New} = pair(Config, [], []),
    NodeOld = cluster:node_of(Old),
    Got = cluster:call(New, fun() ->
                                    P = spawn(NodeOld, fun() -> receive {exit, Reason} -> exit(Reason) end end),
                                    Q = {nobody_has_this, NodeOld},
                                    [R1, R2] = [trunkline:monitor(Object) || Object <- [P, Q]],
                                    R3 = trunkline:monitor(P),
                                    true = trunkline:demonitor(R3, [info]),
                                    P ! {exit, x},
                                    [receive {'DOWN', R, process, Object, Reason} -> Reason end || {R, Object} <- [{R1, P}, {R2, Q}]]
                            end),
    ?assertEqual([x, noproc], Got),
    ?assertMatch(#{state := up, sessions := 1, fallbacks := 3}, cluster:call(New, trunkline, info, [NodeOld])),
    cluster:stop_all([Old, New]).

%% A node of the release before is restarted with this one, under its name and under load.
%% What it had is gone with it; nothing that was meant for it reaches the next, and what
%% goes to the other nodes is not disturbed.
upgraded(Config) ->
    Name = peer:random_name("trunkline_upgraded"),
    A = start_old(Config, []),
    C = cluster:start([]),
    B = start_old(Config, [], Name),
    lists:foreach(fun({X, Y}) -> connect(X, Y) end, [{A, B}, {A, C}, {B, C}]),
    Beside = loads(A, C),
    [To] = cluster:call(B, traffic, start_watchers, [1]),
    true = cluster:call(B, erlang, register, [target, To]),
    NodeB = cluster:node_of(B),
    Streams = [{X, cluster:call(X, traffic, stream, [{target, NodeB}, {old, cluster:node_of(X)}, 50])} || X <- [A, C]],
    cluster:await(fun() -> map_size(cluster:call(B, traffic, summary, [To])) =:= 2 end),
    ok = cluster:call(B, cluster, stop_trunkline, []),
    Sent = [{X, cluster:call(X, traffic, stop_stream, [S])} || {X, S} <- Streams],
    %% An orderly stop: all that was sent is there, in order, by lane or behind that by plain distribution.
    cluster:await(fun() -> Summary = cluster:call(B, traffic, summary, [To]),
                           lists:all(fun({X, N}) -> maps:get({old, cluster:node_of(X)}, Summary) =:= {N, N, []} end, Sent)
                               orelse {Sent, Summary} end),
    cluster:stop(B),
    [cluster:await_state(X, B, down) || X <- [A, C]],
    B2 = cluster:start([], Name),
    {ok, Vsn} = cluster:call(B2, application, get_key, [trunkline, vsn]),
    ?assertNotEqual(?OLD, Vsn),
    [connect(X, B2) || X <- [A, C]],
    ?assertMatch(#{release := Vsn}, cluster:call(A, trunkline, info, [NodeB])),
    exchange:both_ways(A, B2),
    ?assertEqual(0, finish(Beside)),
    cluster:stop_all([A, B2, C]).

%% The application is stopped, its code is changed, and it is started, while the node goes on.
%% In between messages go by plain distribution. (One way at a time: where two nodes flood each
%% other with `!' one of them hardly gets a word in, and that is what the new links need.)
upgraded_by_stop(Config) ->
    lists:foreach(fun(Way) -> upgraded_by_stop(Way, Config) end, [to, from]).

upgraded_by_stop(Way, Config) ->
    {B, A} = pair(Config, [], []),
    Loads = case Way of
                to -> [streams(A, B)];
                from -> [streams(B, A)]
            end,
    flowing(Loads),
    [New] = [P || P <- code:get_path(), P =:= filename:dirname(code:which(trunkline))],
    [Ebin | _] = ?config(old_path, Config),
    lists:foreach(fun({Path, Other}) ->
                          ok = cluster:call(B, cluster, stop_trunkline, []),
                          flowing(Loads),
                          ok = cluster:call(B, fun() -> change_code(Path, Other) end),
                          ok = cluster:call(B, cluster, start_trunkline, [[]]),
                          cluster:await_up(A, B),
                          flowing(Loads),
                          {ok, Vsn} = cluster:call(B, application, get_key, [trunkline, vsn]),
                          ?assertMatch(#{release := Vsn}, cluster:call(A, trunkline, info, [cluster:node_of(B)])),
                          ?assertEqual(Path =:= Ebin, Vsn =:= ?OLD)
                  end, [{New, Ebin}, {Ebin, New}, {New, Ebin}]),
    ?assertEqual(0, finish(Loads)),
    exchange:both_ways(A, B),
    cluster:stop_all([A, B]).

change_code(Path, Other) ->
    ok = application:unload(trunkline),
    _ = code:del_path(Other),
    true = code:add_patha(Path),
    lists:foreach(fun(Module) ->
                          Name = atom_to_list(Module),
                          case lists:prefix("trunkline", Name) andalso code:is_loaded(Module) of
                              {file, _} ->
                                  false = code:purge(Module) andalso killed_by_purge,
                                  {module, Module} = code:load_file(Module),
                                  ok;
                              false ->
                                  ok
                          end
                  end, [M || {M, _} <- code:all_loaded(), filelib:is_regular(filename:join(Path, atom_to_list(M) ++ ".beam"))]),
    ok.

%% --- draining ---------------------------------------------------------------------------------

%% Under load, to and from: nothing is lost, all keeps its order, and it does not come back by itself.
drained(_) ->
    {A, B} = cluster:pair([]),
    drained(A, B).

drained(A, B) ->
    [NodeA, NodeB] = [cluster:node_of(N) || N <- [A, B]],
    Loads = loads(A, B),
    ?assertEqual(ok, cluster:call(A, trunkline, drain, [NodeB])),
    ?assertMatch(#{state := drained, lanes := []}, cluster:call(A, trunkline, info, [NodeB])),
    ?assertEqual(ok, cluster:call(A, trunkline, drain, [NodeB])),
    flowing(Loads),
    cluster:await_state(B, A, greeting),
    Fallbacks = fun() -> #{fallbacks := N} = cluster:call(B, trunkline, info, [NodeA]), N end,
    Before = Fallbacks(),
    cluster:await(fun() -> Fallbacks() > Before end),
    flowing(Loads),
    ?assertEqual(0, finish(Loads)),
    reconnect(A, B),
    ?assertEqual(0, finish(loads(A, B))),
    exchange:both_ways(A, B),
    cluster:stop_all([A, B]).

reconnect(A, B) ->
    true = cluster:call(A, erlang, disconnect_node, [cluster:node_of(B)]),
    cluster:await(fun() -> not lists:member(cluster:node_of(A), cluster:call(B, erlang, nodes, [connected])) end),
    connect(A, B).

%% Both sides at the same time.
drained_both(_) ->
    {A, B} = cluster:pair([]),
    lists:foreach(fun(_) ->
                          Loads = loads(A, B),
                          Self = self(),
                          Pids = [spawn_link(fun() -> Self ! {self(), cluster:call(X, trunkline, drain, [cluster:node_of(Y)])} end) || {X, Y} <- [{A, B}, {B, A}]],
                          Results = [receive {P, R} -> R end || P <- Pids],
                          %% One may find that the other has been quicker.
                          ?assertEqual([], [R || R <- Results, R =/= ok, R =/= {error, not_up}, R =/= {error, noconnection}]),
                          ?assert(lists:member(ok, Results)),
                          flowing(Loads),
                          ?assertEqual(0, finish(Loads)),
                          reconnect(A, B)
                  end, lists:seq(1, 5)),
    cluster:stop_all([A, B]).

%% The peer is of the release before, and knows the goodbye.
drained_old(Config) ->
    {Old, New} = pair(Config, [], []),
    drained(New, Old).

%% Large messages that are under way are waited for.
drained_large(_) ->
    {A, B} = cluster:pair([{lanes, 2}]),
    [To] = cluster:call(B, traffic, start_watchers, [1]),
    NodeB = cluster:node_of(B),
    N = 60,
    ok = cluster:call(A, fun() ->
                                 Payload = binary:copy(<<"x">>, 2_000_000),
                                 Pids = [spawn_monitor(fun() -> [trunkline:send(To, {from, Id, I, Payload}) || I <- lists:seq(1, N)] end) || Id <- [1, 2]],
                                 ok = trunkline:drain(NodeB),
                                 [receive {'DOWN', R, process, P, normal} -> ok end || {P, R} <- Pids],
                                 ok
                         end),
    cluster:await(fun() -> case cluster:call(B, traffic, summary, [To]) of
                               #{1 := {N, N, []}, 2 := {N, N, []}} -> true;
                               Other -> Other
                           end end, ?DEADLINE),
    cluster:stop_all([A, B]).

%% There is nothing to drain, or it is no node.
not_drained(_) ->
    A = cluster:start([]),
    B = cluster:start(none),
    NodeB = cluster:node_of(B),
    Drain = fun(Args) -> cluster:call(A, fun() -> try apply(trunkline, drain, Args) catch Class:Reason -> {Class, Reason} end end) end,
    ?assertEqual({error, not_up}, Drain(['nobody@nowhere'])),
    cluster:connect(A, B),
    cluster:await_state(A, B, greeting),
    ?assertEqual({error, not_up}, Drain([NodeB])),
    ok = cluster:call(B, cluster, start_trunkline, [[]]),
    cluster:await_up(A, B),
    lists:foreach(fun(Args) -> ?assertEqual({error, badarg}, Drain(Args)) end, [["b"], [NodeB, -1], [NodeB, soon], [1, 1]]),
    true = cluster:call(A, erlang, disconnect_node, [NodeB]),
    cluster:await_state(A, B, down),
    ?assertEqual({error, not_up}, Drain([NodeB])),
    cluster:stop_all([A, B]).

%% Whatever starts anew, at either node, does not bring the lanes back: a new connection does.
drained_stays(_) ->
    {A, B} = cluster:pair([]),
    [NodeA, NodeB] = [cluster:node_of(N) || N <- [A, B]],
    ok = cluster:call(A, trunkline, drain, [NodeB]),
    cluster:await_state(B, A, greeting),
    Kill = fun(At, Which) ->
                   ok = cluster:call(At, fun() ->
                                                 Pid = case Which of
                                                           {link, Node} -> #{link := Link} = trunkline_peers:lookup(Node), Link;
                                                           Name -> whereis(Name)
                                                       end,
                                                 Ref = monitor(process, Pid),
                                                 exit(Pid, kill),
                                                 receive {'DOWN', Ref, process, Pid, killed} -> ok end
                                         end)
           end,
    Plain = fun() ->
                    lists:foreach(fun({From, To}) ->
                                          [Receiver] = cluster:call(To, traffic, start_watchers, [1]),
                                          [normal] = cluster:call(From, traffic, play_all, [[{1, [{send, Receiver, 10}, {call, Receiver, 10}]}]]),
                                          ?assertMatch(#{1 := {2, 2, []}}, cluster:call(To, traffic, summary, [Receiver]))
                                  end, [{A, B}, {B, A}]),
                    ?assertMatch(#{state := drained}, cluster:call(A, trunkline, info, [NodeB])),
                    ?assertMatch(#{state := greeting}, cluster:call(B, trunkline, info, [NodeA]))
            end,
    Plain(),
    lists:foreach(fun({At, Which}) ->
                          cluster:call(At, logger, set_primary_config, [level, none]),
                          Kill(At, Which),
                          cluster:await_state(B, A, greeting),
                          Plain()
                  end, [{A, trunkline_links}, {B, {link, NodeA}}, {B, trunkline_links}, {A, trunkline_link_sup}, {B, {link, NodeA}}]),
    ok = cluster:call(B, cluster, stop_trunkline, []),
    ok = cluster:call(B, cluster, start_trunkline, [[]]),
    cluster:await_state(B, A, greeting),
    Plain(),
    reconnect(A, B),
    exchange:both_ways(A, B),
    %% Nor does it stay when Trunkline is started anew here.
    ok = cluster:call(A, trunkline, drain, [NodeB]),
    ok = cluster:call(A, cluster, stop_trunkline, []),
    ok = cluster:call(A, cluster, start_trunkline, [[]]),
    cluster:await_up(A, B),
    cluster:stop_all([A, B]).

%% A peer that stands still: it takes so long and no longer, and what is lost is counted.
drained_in_vain(_) ->
    {A, B} = cluster:pair([{lanes, 2}]),
    NodeB = cluster:node_of(B),
    [To] = cluster:call(B, traffic, start_watchers, [1]),
    lists:foreach(fun({Args, Round}) ->
                          cluster:suspend(B),
                          Sent = cluster:call(A, fun() -> [trunkline:send(To, {from, Round, N, x}) || N <- lists:seq(1, 100)], 100 end),
                          #{lost := Before} = cluster:call(A, trunkline, info, [NodeB]),
                          ?assertEqual({error, timeout}, cluster:call(A, trunkline, drain, [NodeB | Args])),
                          #{lost := Lost, state := drained} = cluster:call(A, trunkline, info, [NodeB]),
                          ?assertEqual(Sent, lists:sum(maps:values(Lost)) - lists:sum(maps:values(Before))),
                          cluster:continue(B),
                          cluster:await_state(B, A, greeting),
                          reconnect(A, B)
                  end, [{[100], 1}, {[0], 2}, {[], 3}]),
    cluster:stop_all([A, B]).

%% --- nodes that join and leave --------------------------------------------------------------------

%% Drained, stopped in good order, and killed; what goes between the others is not disturbed.
joined_and_left(Config) ->
    A = cluster:start([]),
    B = start_old(Config, []),
    connect(A, B),
    Loads = loads(A, B),
    lists:foreach(
      fun({How, Start}) ->
              C = Start(),
              [begin cluster:connect(C, X), cluster:await_up(C, X) end || X <- [A, B]],
              ToC = [streams(X, C) || X <- [A, B]],
              FromC = [streams(C, X) || X <- [A, B]],
              flowing(ToC ++ FromC),
              case How of
                  drained -> [ok = cluster:call(X, trunkline, drain, [cluster:node_of(C)]) || X <- [A]], flowing(ToC ++ FromC);
                  stopped -> ok = cluster:call(C, cluster, stop_trunkline, []), flowing(ToC ++ FromC);
                  killed -> ok
              end,
              case How of
                  killed ->
                      cluster:kill(C),
                      [cluster:await_state(X, C, down) || X <- [A, B]],
                      %% What came, came in order.
                      [?assertEqual([], [Odd || P <- Pids, {_, _, Odd} <- maps:values(cluster:call(X, traffic, summary, [P])), Odd =/= []])
                       || {_, X, {Pids, _}} <- FromC];
                  _ ->
                      ?assertEqual(0, finish(ToC ++ FromC))
              end,
              flowing(Loads),
              cluster:stop(C)
      end, [{How, Start} || Start <- [fun() -> cluster:start([]) end, fun() -> start_old(Config, []) end],
                            How <- [drained, stopped, killed]]),
    ?assertEqual(0, finish(Loads)),
    cluster:stop_all([A, B]).

%% --- load ---------------------------------------------------------------------------------------

loads(A, B) ->
    Loads = [streams(A, B), streams(B, A)],
    flowing(Loads),
    Loads.

streams(A, B) -> {A, B, streams:start(A, B, 50)}.

flowing(Loads) -> lists:foreach(fun({_, B, Load}) -> streams:flowing(Load, B, ?DEADLINE) end, Loads).

finish(Loads) -> lists:sum([streams:finish(Load, A, B, ?DEADLINE) || {A, B, Load} <- Loads]).
