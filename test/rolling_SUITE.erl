%% Clusters that change under load: nodes of the oldest release that has lanes with this one, nodes
%% that are upgraded one after the other, nodes that join and leave.
-module(rolling_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([start_patient/0, start_watching/1, downs/1]).
-export([what_the_old_knows/1]).
-export([exchanged/1, lane_counts/1, inboxes/1, full_inboxes/1, full_until_told/1, servers/1,
         old_stops/1, upgraded_one_by_one/1, upgraded_in_place/1, new_takes_the_name_of_old/1,
         joined_and_left/1, kept_for_old_senders/1]).

-define(DEADLINE, 60_000).

suite() -> [{timetrap, {minutes, 15}}].

all() -> [what_the_old_knows, exchanged, lane_counts, inboxes, full_inboxes,
          full_until_told, servers, old_stops, upgraded_one_by_one, upgraded_in_place,
          new_takes_the_name_of_old, joined_and_left, kept_for_old_senders].

%% Compiles that release, as it was.
init_per_suite(Config) ->
    Release = "0.5.0",
    Name = "trunkline-" ++ Release,
    Dir = filename:join(?config(priv_dir, Config), Name),
    [Ebin, Src] = [filename:join(Dir, Sub) || Sub <- ["ebin", "src"]],
    ok = filelib:ensure_path(Ebin),
    ok = erl_tar:extract(filename:join(?config(data_dir, Config), Name ++ ".tar.gz"),
                         [compressed, {cwd, Dir}]),
    Modules = [begin
                   {ok, Module} = compile:file(Source, [{outdir, Ebin}, {i, Src}, report_errors]),
                   Module
               end || Source <- filelib:wildcard(filename:join(Src, "*.erl"))],
    {ok, [{application, trunkline, Keys}]} = file:consult(filename:join(Src, "trunkline.app.src")),
    ok = file:write_file(filename:join(Ebin, "trunkline.app"),
                         io_lib:format("~p.~n",
                                       [{application, trunkline, [{modules, Modules} | Keys]}])),
    [{release, Release}, {old, Ebin}, {new, filename:dirname(code:which(trunkline))} | Config].

end_per_suite(_) -> ok.

%% --- nodes -----------------------------------------------------------------------------

start(Version, Config, Env) -> start(Version, Config, Env, peer:random_name("trunkline_rolling")).

start(Version, Config, Env, Name) ->
    Others = code:get_path() -- [?config(new, Config)],
    Node = cluster:start(Env, Name, cluster:dist_arguments(), [?config(Version, Config) | Others]),
    ?assertEqual({Version, is_old(Node)}, {Version, Version =:= old}),
    Node.

is_old(Node) ->
    not cluster:call(Node, erlang, function_exported, [trunkline, exit, 2]).

connect(A, B) ->
    cluster:connect(A, B),
    cluster:await_up(A, B).

%% An old node and a new one.
pair(Config, EnvOld, EnvNew) ->
    Old = start(old, Config, EnvOld),
    New = start(new, Config, EnvNew),
    connect(Old, New),
    {Old, New}.

no_loss(A, B) ->
    [?assertMatch(#{lost := #{queued := 0, unconfirmed := 0, crashed := 0, unreachable := 0}},
                  cluster:info(X, Y)) || {X, Y} <- [{A, B}, {B, A}]].

%% --- two versions ----------------------------------------------------------------------

%% Messages of all sizes, casts and calls, whole and in order, by lane.
exchanged(Config) ->
    {Old, New} = pair(Config, [], []),
    Release = ?config(release, Config),
    ?assertMatch(#{release := Release}, cluster:info(New, Old)),
    exchange:both_ways(Old, New),
    [?assertMatch(#{state := up, sessions := 1, fallbacks := 0}, cluster:info(A, B))
     || {A, B} <- [{Old, New}, {New, Old}]],
    no_loss(Old, New),
    cluster:stop_all([Old, New]).

lane_counts(Config) ->
    lists:foreach(fun({EnvOld, EnvNew, N}) ->
                          {Old, New} = pair(Config, EnvOld, EnvNew),
                          [?assertMatch(#{lanes := Lanes} when length(Lanes) =:= N,
                                        cluster:info(A, B))
                           || {A, B} <- [{Old, New}, {New, Old}]],
                          Loads = loads(Old, New),
                          ?assertEqual(0, streams:finish(Loads, ?DEADLINE)),
                          no_loss(Old, New),
                          cluster:stop_all([Old, New])
                  end, [{[{lanes, 1}], [{lanes, 8}], 1}, {[{lanes, 7}], [{lanes, 3}], 3}]).

%% A server behind an inbox, and senders that it makes wait.
inboxes(Config) ->
    {Old, New} = pair(Config, [], []),
    lists:foreach(
      fun({A, B}) ->
              {ok, _} = cluster:call(B, mailroom, start, [{local, post}, #{}, #{messages => 5}]),
              To = {post, cluster:node_of(B)},
              %% Before it has heard of the inbox its senders would not wait, and what is too much
              %% be dropped. It hears of it from its first message, if not before.
              cluster:await(fun() ->
                                    hello = cluster:call(A, trunkline, send, [To, hello]),
                                    cluster:call(A, ets, member, [trunkline_inboxes, To])
                            end),
              ok = cluster:call(B, mailroom, hold, [post]),
              Senders = cluster:call(A, mailroom, senders, [To, [1, 2, 3, 4], 500, 100]),
              cluster:await(
                fun() -> maps:size(maps:filter(fun(Node, N) ->
                                                       Node =:= cluster:node_of(A)
                                                           andalso is_integer(N) andalso N > 0
                                               end, cluster:call(B, mailroom, waiting, [post])))
                             =:= 1 end),
              ok = cluster:call(B, mailroom, release, [post]),
              ?assertEqual([{sent, 500} || _ <- Senders],
                           [{sent, N}
                            || N <- cluster:call(A, mailroom, collect, [Senders, finish])]),
              cluster:await(fun() -> case cluster:call(B, mailroom, summary, [post]) of
                                         #{1 := {500, 500, []}, 2 := {500, 500, []},
                                           3 := {500, 500, []}, 4 := {500, 500, []}} -> true;
                                         Other -> Other
                                     end end),
              ?assertEqual(hello, cluster:call(A, trunkline, call, [To, {echo, hello}, ?DEADLINE]))
      end, [{Old, New}, {New, Old}]),
    cluster:stop_all([Old, New]).

%% Callers hear that an inbox is full which rejects, and that it is not any more.
full_inboxes(Config) ->
    {Old, New} = pair(Config, [], []),
    lists:foreach(
      fun({A, B}) ->
              To = {post, cluster:node_of(B)},
              ok = fill(B),
              await_refused(A, To),
              ok = cluster:call(B, mailroom, release, [post]),
              cluster:await(fun() -> called(A, To, ?DEADLINE) =:= {ok, x} end)
      end, [{Old, New}, {New, Old}]),
    cluster:stop_all([Old, New]).

%% An old node refuses calls until it is told that the inbox is not full any more: also if that is
%% by another process than the one that has told it so, or if there was no such process meanwhile.
full_until_told(Config) ->
    {Old, New} = pair(Config, [], []),
    To = {post, cluster:node_of(New)},
    lists:foreach(
      fun(Restart) ->
              ok = fill(New),
              Consumer = cluster:call(New, mailroom, consumer, [post]),
              await_refused(Old, To),
              Restart(fun() -> release = cluster:call(New, erlang, send, [Consumer, release]) end),
              cluster:await(fun() -> called(Old, To, ?DEADLINE) =:= {ok, x} end),
              ok = cluster:call(New, gen_server, stop, [post])
      end,
      [fun(Release) ->
               Inboxes = cluster:call(New, erlang, whereis, [trunkline_inboxes]),
               true = cluster:call(New, erlang, exit, [Inboxes, kill]),
               cluster:await(fun() ->
                                     Pid = cluster:call(New, erlang, whereis, [trunkline_inboxes]),
                                     is_pid(Pid) andalso Pid =/= Inboxes
                             end),
               Release()
       end,
       fun(Release) ->
               ok = cluster:call(New, cluster, stop_trunkline, []),
               Release(),
               ok = cluster:call(New, cluster, start_trunkline, [[]]),
               cluster:await_up(Old, New)
       end]),
    cluster:stop_all([Old, New]).

%% A server that stands still, behind an inbox that rejects, and is full.
fill(Node) ->
    {ok, _} = cluster:call(Node, mailroom, start,
                           [{local, post}, #{}, #{policy => reject, messages => 20}]),
    ok = cluster:call(Node, mailroom, hold, [post]),
    cluster:call(Node, fun() ->
                               lists:foreach(fun(N) -> post ! {from, x, N, y} end,
                                             lists:seq(1, 40))
                       end).

called(Node, To, Time) ->
    cluster:call(Node, fun() ->
                               traffic:attempt(fun() -> trunkline:call(To, {echo, x}, Time) end)
                       end).

await_refused(Node, To) ->
    cluster:await(fun() ->
                          case called(Node, To, 100) of
                              {exit, {overload, _}} -> true;
                              Other -> Other
                          end
                  end).

%% What callers see of gen_servers and gen_statems: replies of all kinds, exits, times.
servers(Config) ->
    {Old, New} = pair(Config, [], []),
    lists:foreach(
      fun({A, B, Kind, Name}) ->
              {ok, Pid} = cluster:call(B, server, start, [Kind]),
              Call = fun(To, Request, Time) ->
                             cluster:call(A,
                                          fun() ->
                                                  traffic:attempt(
                                                    fun() -> trunkline:call(To, Request, Time) end)
                                          end)
                     end,
              To = {Name, cluster:node_of(B)},
              lists:foreach(fun({Request, Expected}) ->
                                    ?assertEqual({ok, Expected}, Call(To, Request, ?DEADLINE))
                            end,
                            [{{echo, x}, x}, {{echo_late, x, 10}, x}, {{elsewhere, x}, x},
                             {{twice, x}, x}, {{by_hand, x}, x}]),
              ?assertMatch({exit, {timeout, {trunkline, call, _}}}, Call(Pid, never, 50)),
              ?assertMatch({exit, {noproc, _}}, Call({nobody, cluster:node_of(B)}, x, ?DEADLINE)),
              cluster:call(B, logger, set_primary_config, [level, none]),
              ?assertMatch({exit, {bye, _}}, Call(Pid, {exit, bye}, ?DEADLINE)),
              ?assertMatch({exit, {noproc, _}}, Call(Pid, x, ?DEADLINE))
      end, [{A, B, Kind, Name}
            || {A, B} <- [{Old, New}, {New, Old}],
               {Kind, Name} <- [{gen_server, test_gen_server}, {gen_statem, test_gen_statem}]]),
    cluster:stop_all([Old, New]).

%% Monitors of its processes end truly, whichever side stops, and requests are answered when it is
%% drained. (When it stops, 0.5.0 gives its own requests and monitors up.)
what_the_old_knows(Config) ->
    {Old, New} = pair(Config, [], []),
    NodeOld = cluster:node_of(Old),
    Server = cluster:call(Old, ?MODULE, start_patient, []),
    Self = self(),
    Watching = cluster:call(New, ?MODULE, start_watching, [Server]),
    Caller = spawn_link(fun() ->
                                Self ! {self(),
                                        cluster:call(New, trunkline, call, [Server, x, ?DEADLINE])}
                        end),
    cluster:await(fun() ->
                          {message_queue_len, 1} =:= cluster:call(Old, erlang, process_info,
                                                                  [Server, message_queue_len])
                  end),
    ?assertEqual(ok, cluster:call(New, trunkline, drain, [NodeOld])),
    cluster:call(Old, erlang, send, [Server, answer]),
    receive {Caller, Reply} -> ?assertEqual(x, Reply) end,
    lists:foreach(fun(At) ->
                          ok = cluster:call(At, cluster, stop_trunkline, []),
                          ok = cluster:call(At, cluster, start_trunkline, [[]]),
                          cluster:await_up(Old, New)
                  end, [Old, New]),
    ?assertEqual([], cluster:call(New, ?MODULE, downs, [Watching])),
    true = cluster:call(Old, erlang, exit, [Server, over]),
    cluster:await(fun() -> cluster:call(New, ?MODULE, downs, [Watching]) =:= [over] end),
    exchange:both_ways(Old, New),
    cluster:stop_all([Old, New]).

%% Answers its request when it is told to.
start_patient() ->
    spawn(fun Loop() ->
                  receive answer -> ok end,
                  receive {'$gen_call', From, Request} -> gen_server:reply(From, Request) end,
                  Loop()
          end).

start_watching(Pid) ->
    spawn(fun() -> _ = trunkline:monitor(Pid), watching([]) end).

watching(Downs) ->
    receive
        {'DOWN', _, process, _, Reason} -> watching([Reason | Downs]);
        {downs, From, Ref} -> From ! {Ref, Downs}, watching(Downs)
    end.

downs(Watching) ->
    Ref = make_ref(),
    Watching ! {downs, self(), Ref},
    receive {Ref, Downs} -> Downs end.

%% In good order, under load, at either node, and starts again.
old_stops(Config) ->
    {Old, New} = pair(Config, [{lanes, 3}], [{lanes, 2}]),
    Loads = loads(Old, New),
    lists:foreach(fun(At) ->
                          ok = cluster:call(At, cluster, stop_trunkline, []),
                          streams:flowing(Loads, ?DEADLINE),
                          ok = cluster:call(At, cluster, start_trunkline, [[{lanes, 4}]]),
                          cluster:await_up(Old, New),
                          streams:flowing(Loads, ?DEADLINE)
                  end, [Old, New, Old, New]),
    ?assertEqual(0, streams:finish(Loads, ?DEADLINE)),
    cluster:stop_all([Old, New]).

%% --- upgrades ---------------------------------------------------------------------------

%% Three nodes, one after the other: Trunkline takes leave there, what is sent ends, the node stops,
%% and starts again under its name with the new release. Nothing is lost, there or between the
%% others.
upgraded_one_by_one(Config) ->
    Names = [peer:random_name("trunkline_upgraded") || _ <- [1, 2, 3]],
    Nodes = [start(old, Config, [], Name) || Name <- Names],
    [connect(X, Y) || X <- Nodes, Y <- Nodes, X < Y],
    Upgraded = lists:foldl(
                 fun(Name, [Node | [X, Y] = Others]) ->
                         Beside = loads(X, Y),
                         Loads = [loads(Node, Other) || Other <- Others],
                         ok = leave(Node, Others),
                         [streams:flowing(Load, ?DEADLINE) || Load <- Loads],
                         ?assertEqual(0, streams:finish(lists:append(Loads), ?DEADLINE)),
                         cluster:stop(Node),
                         [cluster:await_state(Other, Node, down) || Other <- Others],
                         New = start(new, Config, [], Name),
                         [connect(Other, New) || Other <- Others],
                         [exchange:one_way(A, B, [20, 70_000, 1])
                          || Other <- Others, {A, B} <- [{New, Other}, {Other, New}]],
                         streams:flowing(Beside, ?DEADLINE),
                         ?assertEqual(0, streams:finish(Beside, ?DEADLINE)),
                         no_loss(X, Y),
                         Others ++ [New]
                 end, Nodes, Names),
    [?assertNot(is_old(Node)) || Node <- Upgraded],
    cluster:stop_all(Upgraded).

%% The others drain it, where they can; else it is stopped in good order.
leave(Node, Others) ->
    lists:foreach(fun(Other) ->
                          is_old(Other) orelse (ok = cluster:call(Other, trunkline, drain,
                                                                  [cluster:node_of(Node)]))
                  end, Others),
    cluster:call(Node, cluster, stop_trunkline, []).

%% The application stops, its code is changed, and it starts, while the node goes on: there, and
%% back, under load. In between messages go by plain distribution.
upgraded_in_place(Config) ->
    A = start(new, Config, []),
    B = start(old, Config, []),
    connect(A, B),
    Loads = loads(A, B),
    lists:foreach(fun(Version) ->
                          ok = cluster:call(B, cluster, stop_trunkline, []),
                          streams:flowing(Loads, ?DEADLINE),
                          ok = cluster:call(B, fun() ->
                                                       change_code(?config(old, Config),
                                                                   ?config(new, Config), Version)
                                               end),
                          streams:flowing(Loads, ?DEADLINE),
                          ok = cluster:call(B, cluster, start_trunkline, [[]]),
                          cluster:await_up(A, B),
                          streams:flowing(Loads, ?DEADLINE),
                          ?assertEqual(Version =:= old, is_old(B)),
                          {ok, Release} = cluster:call(B, application, get_key, [trunkline, vsn]),
                          ?assertMatch(#{release := Release}, cluster:info(A, B))
                  end, [new, old, new]),
    ?assertEqual(0, streams:finish(Loads, ?DEADLINE)),
    exchange:both_ways(A, B),
    cluster:stop_all([A, B]).

%% While the code of a running node is replaced, module by module, senders in the old code call
%% these functions of the new code.
kept_for_old_senders(_) ->
    {module, _} = code:ensure_loaded(trunkline_inboxes),
    {module, _} = code:ensure_loaded(trunkline_sender),
    ?assertEqual([], [F || {M, N, Arity} = F <- [{trunkline_inboxes, enter, 3},
                                                 {trunkline_inboxes, cancel, 2},
                                                 {trunkline_inboxes, is_bounded, 1},
                                                 {trunkline_inboxes, is_refusing, 1},
                                                 {trunkline_sender, hand_over, 3},
                                                 {trunkline_sender, hand_over, 5},
                                                 {trunkline_sender, fallback, 1}],
                           not erlang:function_exported(M, N, Arity)]).

%% At the node: what is loaded of the one version is loaded from the other. What that one does not
%% have goes last: until then somebody calls it.
change_code(Old, New, Version) ->
    {From, To} = case Version of
                     new -> {Old, New};
                     old -> {New, Old}
                 end,
    ok = application:unload(trunkline),
    true = code:del_path(From),
    true = code:add_patha(To),
    Loaded = [Module || {Module, File} <- code:all_loaded(), is_list(File),
                        filename:dirname(File) =:= From],
    {Both, Gone} =
        lists:partition(
          fun(Module) -> code:where_is_file(atom_to_list(Module) ++ ".beam") =/= non_existing end,
          Loaded),
    lists:foreach(fun(Module) ->
                          %% Senders are in this code now and then; none stays.
                          cluster:await(fun() -> code:soft_purge(Module) end),
                          {module, Module} = code:load_file(Module)
                  end, Both),
    lists:foreach(fun(Module) ->
                          cluster:await(fun() -> code:soft_purge(Module) end),
                          true = code:delete(Module)
                  end, Gone).

%% A node of the one version is killed under load, and one of the other comes back under its name:
%% what was meant for the one before does not reach it, and what did not arrive has been counted.
new_takes_the_name_of_old(Config) ->
    A = start(new, Config, []),
    Name = peer:random_name("trunkline_again"),
    lists:foreach(
      fun(Versions) ->
              [B, B2] =
                  lists:foldl(
                    fun(Version, Before) ->
                            Node = start(Version, Config, [], Name),
                            connect(A, Node),
                            [To] = cluster:call(Node, traffic, start_watchers, [1]),
                            true = cluster:call(Node, erlang, register, [target, To]),
                            Tag = {Version, length(Before)},
                            cluster:suspend(Node),
                            #{lost := Lost} = cluster:info(A, Node),
                            ok = cluster:call(
                                   A,
                                   fun() ->
                                           lists:foreach(
                                             fun(N) ->
                                                     trunkline:send({target, cluster:node_of(Node)},
                                                                    {from, Tag, N, x})
                                             end, lists:seq(1, 200))
                                   end),
                            case Before of
                                [] ->
                                    cluster:kill(Node),
                                    cluster:await_state(A, Node, down),
                                    %% The counters are those of lanes that came after.
                                    cluster:await(fun() ->
                                                          #{lost := Now} = cluster:info(A, Node),
                                                          lists:sum(maps:values(Now))
                                                              - lists:sum(maps:values(Lost)) =:= 200
                                                  end);
                                [_] ->
                                    cluster:continue(Node),
                                    cluster:await(
                                      fun() ->
                                              cluster:call(Node, traffic, count, [To]) =:= 200
                                      end),
                                    ?assertEqual(#{Tag => {200, 200, []}},
                                                 cluster:call(Node, traffic, summary, [To]))
                            end,
                            Before ++ [Node]
                    end, [], Versions),
              cluster:stop_all([B2, B]),
              cluster:await_state(A, B2, down)
      end, [[old, new], [new, old], [old, old]]),
    cluster:stop(A).

%% --- nodes that join and leave ------------------------------------------------------------

%% Drained by all others, by itself, stopped in good order, and killed. Nothing is lost but by the
%% kill, all that comes is in order, and what goes between the others is not disturbed.
joined_and_left(Config) ->
    A = start(new, Config, []),
    B = start(old, Config, []),
    connect(A, B),
    Beside = loads(A, B),
    lists:foreach(
      fun({How, Version}) ->
              C = start(Version, Config, []),
              [cluster:connect(C, X) || X <- [A, B]],
              %% at once, while the links come up
              Loads = [streams:both_ways(X, C) || X <- [A, B]],
              [cluster:await_up(C, X) || X <- [A, B]],
              [streams:flowing(Load, ?DEADLINE) || Load <- Loads],
              ok = left(How, C, A),
              case How of
                  killed ->
                      [cluster:await_state(X, C, down) || X <- [A, B]],
                      %% What came, came in order.
                      [?assertEqual(
                          [],
                          [Odd
                           || Pid <- Pids,
                              {_, _, Odd} <- maps:values(cluster:call(X, traffic, summary, [Pid])),
                              Odd =/= []])
                       || Load <- Loads, {From, X, {Pids, _}} <- Load, From =:= C],
                      [cluster:call(From, traffic, stop_stream, [Stream])
                       || Load <- Loads, {From, _, {_, Streams}} <- Load, From =/= C,
                          {_, _, Stream} <- Streams];
                  _ ->
                      [streams:flowing(Load, ?DEADLINE) || Load <- Loads],
                      ?assertEqual(0, streams:finish(lists:append(Loads), ?DEADLINE)),
                      cluster:stop(C)
              end,
              streams:flowing(Beside, ?DEADLINE)
      end, [{drained, new}, {drained, old}, {drains_all, new}, {stopped, new}, {stopped, old},
            {killed, new}, {killed, old}]),
    ?assertEqual(0, streams:finish(Beside, ?DEADLINE)),
    no_loss(A, B),
    cluster:stop_all([A, B]).

left(drained, C, A) -> cluster:call(A, trunkline, drain, [cluster:node_of(C)]);
left(drains_all, C, _) -> cluster:call(C, trunkline, drain, []);
left(stopped, C, _) -> cluster:call(C, cluster, stop_trunkline, []);
left(killed, C, _) -> cluster:kill(C).

%% --- load -------------------------------------------------------------------------------

loads(A, B) ->
    Loads = streams:both_ways(A, B),
    streams:flowing(Loads, ?DEADLINE),
    Loads.
