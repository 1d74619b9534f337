%% Random faults under load, at three nodes with several senders each.
%%
%% It runs in rounds. A round follows from its seed: the nodes' options, what each sender sends, and the
%% faults, with how many messages there are between them. (What the senders see of the faults depends on
%% the machine, too.) In a `good' round nothing may be lost, in a `bad' one what is lost must be counted.
%% At the end of each everything must be as it was, and what the receivers have got is held against
%% what the senders have sent (nemesis_check).
%%
%%     make nemesis SECONDS=600                 for so long; a line for each round
%%     make nemesis SEED=4711 SECONDS=1         one round, that of this seed
%%     make nemesis LANES=tcp                   lanes on connections of their own (tls)
%%
%% NEMESIS=good or bad chooses the kind of rounds, FAULTS=kill_lane,drain the faults.
-module(nemesis_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, checks/1, random_faults/1]).

-define(SECONDS, 120).
%% ms
-define(STALLED, 3_000).           % a fault does not wait longer for messages
-define(HEALED, 60_000).
-define(AT_REST, 30_000).

suite() -> [{timetrap, {seconds, seconds() + 900}}].

all() -> [checks, random_faults].

seconds() -> list_to_integer(env("NEMESIS_SECONDS", integer_to_list(?SECONDS))).

env(Name, Default) ->
    case os:getenv(Name, "") of
        "" -> Default;
        Value -> Value
    end.

%% The checks find what they are for.
checks(_) ->
    ?assertEqual(#{doubled => [], disordered => []}, nemesis_check:order([{1, 5}, {7, 9}])),
    ?assertEqual(#{doubled => [4, 5], disordered => []}, nemesis_check:order([{1, 5}, {4, 5}, {6, 6}])),
    ?assertEqual(#{doubled => [], disordered => [{4, 4}]}, nemesis_check:order([{1, 3}, {5, 8}, {4, 4}])),
    ?assertEqual(#{doubled => [3], disordered => [{3, 4}]}, nemesis_check:order([{1, 3}, {5, 8}, {3, 4}])),
    ?assertEqual([{4, 4}, {9, 10}], nemesis_check:missing([{1, 5}, {7, 10}], [{5, 8}, {1, 3}])),
    ?assertEqual([{1, 2}], nemesis_check:missing([{1, 2}], [])),
    ?assertEqual([], nemesis_check:odd(#{sent => [{1, 3}], uncertain => [{4, 4}]}, [{1, 2}, {3, 4}])),
    ?assertEqual([{answered_but_not_received, [{2, 2}]}, {refused_but_received, 1}, {received_but_not_sent, [{9, 9}]}],
                 nemesis_check:odd(#{sent => [{1, 1}], answered => [{2, 2}], refused => [{3, 3}]}, [{1, 1}, {3, 3}, {9, 9}])),
    ?assert(nemesis_check:covered(3, #{lost => 3})),
    ?assertNot(nemesis_check:covered(3, #{lost => 2, broken => false, fallbacks => 9, uncounted => false})),
    ?assertNot(nemesis_check:covered(9, #{lost => 2, broken => true, fallbacks => 6, uncounted => false})).

random_faults(_) ->
    Seed = case env("SEED", "") of
               "" -> rand:uniform(1_000_000);
               Given -> list_to_integer(Given)
           end,
    case rounds(Seed, erlang:monotonic_time(second) + seconds(), []) of
        [] -> ok;
        Failed -> ct:fail("~ts", [[io_lib:format("seed ~b:~n~ts", [S, Text]) || {S, Text} <- Failed]])
    end.

rounds(Seed, End, Failed) ->
    Failed1 = case one_round(Seed) of
                  ok -> Failed;
                  {failed, Text} -> [{Seed, Text} | Failed]
              end,
    case erlang:monotonic_time(second) < End of
        true -> rounds(Seed + 1, End, Failed1);
        false -> lists:reverse(Failed1)
    end.

say(Format, Args) ->
    ct:log(Format, Args),
    io:format(user, Format ++ "~n", Args).

%% --- faults ---------------------------------------------------------------------------

%% {Name, Weight, Costs, what to do at the node At with the random number R}. To is another node.
%% Costs: `nothing' in good order; `counted' messages, and the answers to calls; `pair': the connection
%% of the two; `node': At and all that it knew; `uncounted': the counters too.
faults() ->
    [{kill_link, 4, counted, kill(trunkline_link)},
     {kill_lane, 4, counted, kill(trunkline_lane)},
     {kill_inlet, 4, counted, kill(trunkline_inlet)},
     {kill_dock, 3, counted, kill(trunkline_dock)},
     {kill_trunk, 3, counted, kill(trunkline_trunk)},
     {kill_opener, 2, counted, kill(trunkline_opener)},
     {kill_executor, 1, counted, kill(trunkline_executor)},
     {kill_dist_carrier, 1, counted, kill(trunkline_carrier_dist)},
     {kill_carrier, 3, nothing, kill(trunkline_carrier)},
     {kill_receiver, 3, nothing, kill(trunkline_receiver)},
     {kill_listener, 2, nothing, name(trunkline_listener)},
     {kill_links, 2, nothing, name(trunkline_links)},
     {kill_inboxes, 1, nothing, name(trunkline_inboxes)},
     {kill_monitors, 2, nothing, name(trunkline_monitors)},
     {kill_link_sup, 2, counted, name(trunkline_link_sup)},
     {kill_sup, 1, uncounted, fun(#{at := At}, C) -> kill_sup(At, C) end},
     {close_connection, 4, nothing, fun(#{at := At, r := R}, C) -> at(At, nemesis_node, close_connection, [R], C) end},
     {garbage, 2, nothing, fun(#{at := At, r := R}, C) -> garbage(R, maps:values(ports(At, C))), C end},
     {disconnect, 5, pair, fun(#{at := At, to := To}, C) -> at(At, erlang, disconnect_node, [name_of(To, C)], C) end},
     {kill_node, 3, node, fun(#{at := At}, C) -> kill_node(At, C) end},
     {stop_node, 4, nothing, fun(#{at := At} = Args, C) -> stopped(At, Args, C) end},
     {full_node, 2, pair, fun(#{at := At, r := R}, C) -> at(At, nemesis_node, fill, [100 + R rem 500], C) end},
     {restart_trunkline, 5, nothing, fun(#{at := At}, C) -> restart_trunkline(At, C) end},
     {drain, 4, nothing, fun(#{at := At, to := To}, C) -> drained(At, at(At, trunkline, drain, [name_of(To, C)], C)) end},
     {drain_all, 2, nothing, fun(#{at := At}, C) -> drained(At, at(At, trunkline, drain, [], C)) end},
     {restart_named, 5, nothing, fun(#{at := At, r := R}, C) -> at(At, nemesis_traffic, restart_named, [R rem 3 * (R rem 50)], C) end}].

kill(Module) -> fun(#{at := At, r := R}, C) -> at(At, nemesis_node, kill, [Module, R], C) end.

name(Name) -> fun(#{at := At}, C) -> at(At, nemesis_node, kill_name, [Name], C) end.

at(At, Module, Function, Args, C) ->
    _ = cluster:call(node_at(At, C), Module, Function, Args),
    C.

%% Trunkline ends with it.
kill_sup(At, C) ->
    Node = node_at(At, C),
    ok = cluster:call(Node, nemesis_node, keep_counters, []),
    ok = cluster:call(Node, logger, set_primary_config, [level, none]),
    killed = cluster:call(Node, nemesis_node, kill_name, [trunkline_sup]),
    anew:await_stopped(Node),
    start_again(At, C).

restart_trunkline(At, C) ->
    ok = cluster:call(node_at(At, C), nemesis_node, keep_counters, []),
    ok = cluster:call(node_at(At, C), cluster, stop_trunkline, []),
    start_again(At, progress(200, C)).

start_again(At, #{env := Env} = C) ->
    ok = cluster:call(node_at(At, C), cluster, start_trunkline, [Env]),
    ok = cluster:call(node_at(At, C), logger, set_primary_config, [level, error]),
    C.

ports(At, C) -> maps:get(ports, cluster:call(node_at(At, C), trunkline_listener, info, [])).

garbage(R, Ports) ->
    [begin
         stranger:say(Connection, rand:bytes(R rem 200)),
         stranger:close(Connection)
     end || Port <- Ports, _ <- lists:seq(1, 10), {gen_tcp, _} = Connection <- [stranger:connect(Port)]].

%% The node stands still, while something else may happen at another.
stopped(At, Args, C) ->
    Node = node_at(At, C),
    ok = cluster:suspend(Node),
    C1 = try
             case Args of
                 #{inner := Inner} -> carry_out(Inner, progress(200, C#{still := At}));
                 #{} -> progress(500, C#{still := At})
             end
         after
             %% (A new node may have its place.)
             cluster:continue(Node)
         end,
    C1#{still := none}.

%% It comes back under its name. What others began to send to the one before by name, while they were connected, is
%% not for this one.
kill_node(At, #{nodes := Nodes, still := Still, env := Env} = C) ->
    #{At := #{node := {_, Name, _} = Node, incarnation := Incarnation, short := Short} = Kept} = Nodes,
    Before = os:system_time(microsecond),
    Up = Still =:= none andalso [X || {X, #{node := N}} <- maps:to_list(Nodes), X =/= At, state(N, Name) =/= up] =:= [],
    cluster:kill(Node),
    New = cluster:start(Env, Short, arguments()),
    ready(New),
    Own = cluster:call(New, nemesis_traffic, start_destinations,
                       [At, Incarnation + 1, case Up of true -> Before; false -> none end]),
    C1 = C#{nodes := Nodes#{At := Kept#{node := New, incarnation := Incarnation + 1}},
            directory := maps:merge(maps:get(directory, C), Own),
            still := case Still of At -> none; _ -> Still end},
    start_senders(At, publish(C1)).

drained(At, #{drained := Drained} = C) -> C#{drained := [At | Drained]}.

%% --- the plan of a round --------------------------------------------------------------

-define(NODES, [a, b, c]).

%% Everything that is decided by chance, except for what the senders decide themselves, from seeds of their own.
plan(Seed) ->
    _ = rand:seed(exsss, Seed),
    Kind = case env("NEMESIS", "") of
               "" -> one([good, bad, bad]);
               Given -> _ = rand:uniform(3), list_to_atom(Given)
           end,
    Chosen = string:lexemes(env("FAULTS", ""), ","),
    Faults = [Fault || {Name, _, Costs, _} = Fault <- faults(), Kind =:= bad orelse Costs =:= nothing,
                       Chosen =:= [] orelse lists:member(atom_to_list(Name), Chosen)],
    Env = [{lanes, one([1, 2, 4])}, {queue_bytes, one([262_144, 16_384])}, {window_bytes, one([67_108_864, 65_536])},
           {large_bytes, one([65_536, 8_192])}, {bulk_bytes, one([67_108_864, 1_000_000])},
           {bulk_connections, one([1, 2])}, {bulk_idle, 1_000}]
        ++ [{bulk_transport, dist} || one([true, false, false]), cluster:lane_transport() =:= dist],
    #{kind => Kind, env => Env,
      senders => maps:from_list([{Node, [sender(Node) || _ <- lists:seq(1, 2 + rand:uniform(3))]} || Node <- ?NODES]),
      faults => [{100 + rand:uniform(3_000), fault(Kind, Faults)} || _ <- lists:seq(1, 4 + rand:uniform(5))]}.

fault(Kind, Faults) ->
    {Name, _, Costs, Fun} = weighted(Faults),
    [At, To | _] = shuffled(?NODES),
    Args = #{at => At, to => To, r => rand:uniform(1_000_000)},
    Inner = [Fault || {Inside, _, _, _} = Fault <- Faults, Inside =/= stop_node, Inside =/= drain_all],
    {Name, Costs, Fun,
     case one([true, false]) of
         true when Name =:= stop_node, Kind =:= bad, Inner =/= [] -> Args#{inner => inside(At, To, Inner)};
         _ -> Args
     end}.

%% Of a fault while At stands still: it happens at another node, which has to do with At; or At is killed.
inside(At, To, Faults) ->
    {Name, Costs, Fun} = case weighted(Faults) of {N, _, Cs, F} -> {N, Cs, F} end,
    Args = #{r => rand:uniform(1_000_000)},
    {Name, Costs, Fun, case Name of
                           kill_node -> Args#{at => At, to => To};
                           _ -> Args#{at => To, to => At}
                       end}.

%% A seed, the targets, and how often it does what.
sender(Node) ->
    Others = shuffled(?NODES -- [Node]),
    Targets = [{At, Name} || At <- one([Others, Others, [hd(Others)]]), Name <- one([[p1, p2, n], [p1], [p1, n]])],
    #{seed => rand:uniform(1_000_000_000), targets => Targets,
      mix => one([[{send, 6}, {cast, 2}, {{send, nosuspend}, 2}, {{send, noconnect}, 1}],
                  [{send, 10}, {multicast, 5}, {abcast, 2}, {call, 1}],
                  [{call, 5}, {request, 3}, {cast, 2}, {erpc_call, 2}, {erpc_multicall, 1}],
                  [{send, 10}, {cast, 10}, {{send, nosuspend}, 10}, {{send, noconnect}, 5}, {multicast, 5}, {abcast, 3}, {call, 5},
                   {request, 3}, {monitor, 3}, {erpc_call, 3}, {erpc_cast, 3}, {erpc_multicall, 1}],
                  [{monitor, 10}, {send, 10}, {call, 1}]])}.

one(List) -> lists:nth(rand:uniform(length(List)), List).

shuffled(List) -> [X || {_, X} <- lists:sort([{rand:uniform(), X} || X <- List])].

weighted(Faults) -> weighted(rand:uniform(lists:sum([W || {_, W, _, _} <- Faults])), Faults).

weighted(N, [{_, Weight, _, _} = Fault | _]) when N =< Weight -> Fault;
weighted(N, [{_, Weight, _, _} | Faults]) -> weighted(N - Weight, Faults).

%% --- a round --------------------------------------------------------------------------

one_round(Seed) ->
    #{kind := Kind, faults := Faults} = Plan = plan(Seed),
    Names = [case Args of
                 #{inner := {Inner, _, _, _}} -> {Name, Inner};
                 #{} -> Name
             end || {_, {Name, _, _, Args}} <- Faults],
    ct:log("seed ~b: ~p", [Seed, Plan]),
    Started = erlang:monotonic_time(millisecond),
    Test = self(),
    {Runner, Ref} = spawn_monitor(fun() -> Test ! {self(), run(Plan)} end),      % what it starts ends with it
    {Sums, Wrong} = receive
                        {Runner, Result} -> demonitor(Ref, [flush]), Result;
                        {'DOWN', Ref, process, Runner, Reason} -> {#{}, [{round, Reason}]}
                    end,
    say("nemesis seed ~b ~s ~.1f s: ~0p; ~0p~ts",
        [Seed, Kind, (erlang:monotonic_time(millisecond) - Started) / 1000, Names, Sums,
         case Wrong of [] -> ""; _ -> io_lib:format("; FAILED: ~0tP", [examples(Wrong), 100]) end]),
    case Wrong of
        [] -> ok;
        _ -> ct:log("~tp", [Wrong]), {failed, io_lib:format("~tP", [examples(Wrong), 200])}
    end.

%% How many of each kind, and one of them.
examples(Wrong) ->
    Kinds = maps:groups_from_list(fun(What) when is_tuple(What) -> element(1, What) end, Wrong),
    [{length(All), hd(All)} || {_, All} <- lists:sort(maps:to_list(Kinds))].

%% The state of a round: C.
run(#{env := Env, faults := Faults} = Plan) ->
    Shorts = [{Id, peer:random_name("nemesis_" ++ atom_to_list(Id))} || Id <- ?NODES],
    Nodes = [{Id, Short, Node} || {{Id, Short}, Node} <- lists:zip(Shorts, start_nodes(Env, [S || {_, S} <- Shorts]))],
    try
        C0 = #{plan => Plan, env => Env, still => none, drained => [], done => [],
               directory => lists:foldl(fun({Id, _, Node}, Directory) ->
                                                maps:merge(Directory, cluster:call(Node, nemesis_traffic, start_destinations, [Id, 1, none]))
                                        end, #{}, Nodes),
               senders => [], wrong => [],
               nodes => maps:from_list([{Id, #{short => Short, node => Node, incarnation => 1}} || {Id, Short, Node} <- Nodes])},
        put(cluster, C0),
        C1 = heal(C0),
        Before = [{Id, rest(Id, C1)} || Id <- ?NODES],
        C2 = lists:foldl(fun start_senders/2, publish(C1), ?NODES),
        C3 = lists:foldl(fun({Gap, Fault}, C) -> carry_out(Fault, progress(Gap, C)) end, C2, Faults),
        C4 = heal(progress(300, C3)),
        C5 = settle(C4),
        C6 = at_rest(Before, C5),
        #{sums := Sums, wrong := Wrong} = crashes(reconnected(C6)),
        {Sums, lists:reverse(Wrong)}
    after
        #{nodes := Last} = get(cluster),
        cluster:stop_all([Node || #{node := Node} <- maps:values(Last)])
    end.

start_nodes(Env, Shorts) ->
    Test = self(),
    Starting = [spawn_monitor(fun() -> Node = cluster:start(Env, Short, arguments()), ready(Node), Test ! {self(), Node} end) || Short <- Shorts],
    [receive
         {Pid, Node} -> demonitor(Ref, [flush]), Node;
         {'DOWN', Ref, process, Pid, Reason} -> error({not_started, Reason})
     end || {Pid, Ref} <- Starting].

arguments() -> ["+P", "4096" | cluster:dist_arguments()].

ready(Node) -> ok = cluster:call(Node, nemesis_node, install_log, []).

node_at(At, #{nodes := Nodes}) -> maps:get(node, maps:get(At, Nodes)).
name_of(At, C) -> cluster:node_of(node_at(At, C)).
running(#{nodes := Nodes, still := Still}) -> [Id || Id <- maps:keys(Nodes), Id =/= Still].

publish(#{directory := Directory} = C) ->
    put(cluster, C),
    [ok = cluster:call(node_at(Id, C), nemesis_traffic, publish, [Directory]) || Id <- running(C)],
    C.

start_senders(At, #{plan := #{senders := All}, senders := Senders, nodes := Nodes} = C) ->
    #{At := #{node := Node, incarnation := Incarnation}} = Nodes,
    New = [{At, Incarnation, cluster:call(Node, nemesis_traffic, start_sender, [{At, Incarnation, I}, Seed + Incarnation, Sender])}
           || {I, #{seed := Seed} = Sender} <- lists:enumerate(maps:get(At, All))],
    C#{senders := New ++ Senders}.

%% Until there have been so many messages more.
progress(Messages, C) ->
    Count = fun() -> lists:sum([cluster:call(node_at(Id, C), nemesis_traffic, count, []) || Id <- running(C)]) end,
    Enough = Count() + Messages,
    try cluster:await(fun() -> Count() >= Enough orelse waiting end, ?STALLED)
    catch error:{timeout, waiting} -> ok
    end,
    C.

carry_out({Name, Costs, Fun, #{at := At} = Args}, #{done := Done, wrong := Wrong} = C0) ->
    ct:log("~0p", [{Name, maps:with([at, to, r], Args)}]),
    C = C0#{done := [{Name, Costs, At, maps:get(to, Args)} | Done]},
    put(cluster, C),
    try Fun(Args, C)
    catch
        Class:Reason:Stack -> (get(cluster))#{wrong := [{Name, Class, Reason, Stack} | Wrong], still := none}
    end.

state(Node, Peer) ->
    Dist = cluster:lane_transport() =:= dist,
    case cluster:call(Node, trunkline, info, [Peer]) of
        #{state := up, batches := #{by := distribution}} when not Dist -> no_connections;
        #{state := State} -> State;
        undefined -> unknown
    end.

%% All sessions come up, except for those that were drained.
heal(#{drained := Drained, wrong := Wrong} = C) ->
    Pairs = [{X, Y} || X <- ?NODES, Y <- ?NODES, X =/= Y],
    try
        cluster:await(
          fun() ->
                  States = [{X, Y, begin
                                       true = cluster:call(node_at(X, C), net_kernel, connect_node, [name_of(Y, C)]),
                                       state(node_at(X, C), name_of(Y, C))
                                   end} || {X, Y} <- Pairs],
                  case [S || {X, Y, State} = S <- States, State =/= up,
                             not ((lists:member(X, Drained) orelse lists:member(Y, Drained))
                                  andalso lists:member(State, [drained, greeting]))] of
                      [] -> true;
                      Not -> Not
                  end
          end, ?HEALED),
        C
    catch
        Class:Reason -> C#{wrong := [{not_healed, Class, Reason} | Wrong]}
    end.

%% What was drained has lanes again when the nodes connect anew.
reconnected(#{drained := []} = C) ->
    C;
reconnected(#{drained := Drained} = C) ->
    [cluster:call(node_at(X, C), erlang, disconnect_node, [name_of(Y, C)]) || X <- lists:usort(Drained), Y <- ?NODES, Y =/= X],
    heal(C#{drained := []}).

%% --- the checks at the end of a round ------------------------------------------------------

%% The senders end, and all logs are held against each other.
settle(#{nodes := Nodes, senders := All} = C) ->
    Stopped = all_nodes(
                fun(Id, #{node := Node, incarnation := Incarnation}) ->
                        Others = [{At, Name} || At <- ?NODES, At =/= Id, Name <- [p1, p2, e]],
                        Pids = [Pid || {At, I, Pid} <- All, At =:= Id, I =:= Incarnation],
                        cluster:call(Node, nemesis_traffic, stop_senders, [Pids, Others])
                end, Nodes),
    Results = lists:append(maps:values(Stopped)),
    Sent = lists:foldl(fun(#{log := Log}, Sum) -> maps:merge(Sum, Log);
                          (_, Sum) -> Sum
                       end, #{}, Results),
    Judged = arrived(Sent, C, 10),
    #{received := Received, missing := Missing, odd := OddMessages} = Judged,
    Odd = lists:append([O || #{odd := O} <- Results]) ++ OddMessages,
    Reasons = lists:foldl(fun(#{reasons := R}, Sum) -> maps:merge_with(fun(_, M, N) -> M + N end, R, Sum);
                             (_, Sum) -> Sum
                          end, #{}, Results),
    Orders = [{Key, nemesis_check:order(Runs)} || {Key, Runs} <- maps:to_list(Received)],
    Doubled = [{Key, D} || {Key, #{doubled := [_ | _] = D}} <- Orders],
    Disordered = [{Key, D, around(D, maps:get(Key, Received))} || {{_, {_, Name}, _} = Key, #{disordered := [_ | _] = D}} <- Orders, Name =/= e],
    Counted = counted(C),
    Wrong = [R || R <- Results, not is_map(R)]
        ++ [{doubled, D} || D <- Doubled] ++ [{out_of_order, D} || D <- Disordered]
        ++ lists:append([[{Key, O} || O <- nemesis_check:odd(of_key(Key, Sent), maps:get(Key, Received, []))]
                         || Key <- lists:usort([Key || {Key, _} <- maps:keys(Sent)]), is_alive(Key, C)])
        ++ losses(Missing, Counted, C) ++ wrong(Odd, C) ++ [{failed, R, N} || {R, N} <- maps:to_list(Reasons), not is_documented(R, C)],
    C#{sums => #{messages => sum(lists:append(maps:values(Sent))), received => sum(lists:append(maps:values(Received))),
                 lost => lists:sum(maps:values(Missing)), counted => lists:sum([L || {L, _, _} <- maps:values(Counted)]),
                 doubled => length(Doubled), out_of_order => length(Disordered), failed_calls => lists:sum(maps:values(Reasons))},
       wrong := lists:reverse(Wrong) ++ maps:get(wrong, C)}.

all_nodes(Fun, Nodes) ->
    Running = [{Id, spawn_monitor(fun() -> exit({done, Fun(Id, Node)}) end)} || {Id, Node} <- maps:to_list(Nodes)],
    maps:from_list([receive
                        {'DOWN', Ref, process, Pid, {done, Result}} -> {Id, Result};
                        {'DOWN', Ref, process, Pid, Reason} -> {Id, [{crashed, Id, Reason}]}
                    end || {Id, {Pid, Ref}} <- Running]).

%% What arrived before and after the first of these runs.
around([Run | _], Runs) ->
    {Before, After} = lists:splitwith(fun(R) -> R =/= Run end, Runs),
    lists:nthtail(max(0, length(Before) - 3), Before) ++ lists:sublist(After, 3).

%% What is executed by processes of its own may still come.
arrived(Sent, #{nodes := Nodes} = C, Tries) ->
    Logs = [cluster:call(Node, nemesis_traffic, logs, []) || #{node := Node} <- maps:values(Nodes)],
    Received = maps:from_list(lists:append([Log || {Log, _} <- Logs])),
    Missing = missing(Sent, Received, C),
    case maps:values(Missing) of
        [_ | _] when Tries > 0 -> receive after 100 -> arrived(Sent, C, Tries - 1) end;
        _ -> #{received => Received, missing => Missing, odd => lists:append([Odd || {_, Odd} <- Logs])}
    end.

%% #{{From, To} => how many}, between those that are still there. What is executed elsewhere, and what is sent to a
%% name that nobody had, is not counted anywhere.
missing(Sent, Received, C) ->
    maps:filter(fun(_, N) -> N > 0 end,
                maps:fold(fun({{{From, _, _}, {To, Name}, _} = Key, sent}, Runs, Sum) ->
                                  case is_alive(Key, C) andalso Name =/= n andalso (Name =/= e orelse is_good(C)) of
                                      true ->
                                          N = sum(nemesis_check:missing(Runs, maps:get(Key, Received, []))),
                                          maps:update_with({From, To}, fun(M) -> M + N end, N, Sum);
                                      false ->
                                          Sum
                                  end;
                             (_, _, Sum) -> Sum
                          end, #{}, Sent)).

sum(Runs) -> lists:sum([Last - First + 1 || {First, Last} <- Runs]).

of_key(Key, Sent) -> maps:from_list([{How, Runs} || How <- [sent, answered, uncertain, refused], {ok, Runs} <- [maps:find({Key, How}, Sent)]]).

is_alive({{From, Theirs, _}, {To, _}, Ours}, #{nodes := Nodes}) ->
    #{From := #{incarnation := I}, To := #{incarnation := J}} = Nodes,
    {I, J} =:= {Theirs, Ours}.

is_good(#{plan := #{kind := Kind}}) -> Kind =:= good.

%% #{{From, To} => {Lost, Fallbacks, Broken}}, of all that have been at From.
counted(#{nodes := Nodes} = C) ->
    Ids = maps:from_list([{name_of(Id, C), Id} || Id <- ?NODES]),
    maps:from_list(lists:append([[{{From, maps:get(Name, Ids)}, Values}
                                  || {Name, Values} <- maps:to_list(cluster:call(Node, nemesis_node, counted, [])), is_map_key(Name, Ids)]
                                 || {From, #{node := Node}} <- maps:to_list(Nodes)])).

losses(Missing, Counted, #{done := Done} = C) ->
    Get = fun(Pair) -> maps:get(Pair, Counted, {0, 0, 0}) end,
    Plain = [Name || {Name, _, _, _} <- Done, lists:member(Name, [drain, drain_all, restart_trunkline, kill_sup, kill_link_sup, kill_links])],
    [{lost, From, To, N, Cover} || {{From, To}, N} <- maps:to_list(Missing),
                                   {Lost, Fallbacks, _} <- [Get({From, To})], {_, _, Torn} <- [Get({To, From})],
                                   Cover <- [#{lost => Lost + Torn, fallbacks => case Plain of [] -> Fallbacks; _ -> unknown end,
                                               broken => lists:any(fun(Fault) -> breaks(Fault, [From, To]) end, Done),
                                               uncounted => lists:any(fun({_, Costs, At, _}) ->
                                                                              Costs =:= uncounted andalso lists:member(At, [From, To])
                                                                      end, Done)}],
                                   not nemesis_check:covered(N, Cover)]
        ++ [{false_alarm, Pair, Lost} || is_good(C), {Pair, {Lost, _, _}} <- maps:to_list(Counted), Lost > maps:get(Pair, Missing, 0)].

breaks({_, node, At, _}, Pair) -> lists:member(At, Pair);
breaks({full_node, _, At, _}, Pair) -> lists:member(At, Pair);
breaks({_, pair, At, To}, Pair) -> lists:sort([At, To]) =:= lists:sort(Pair);
breaks(_, _) -> false.

%% Of single messages and 'DOWN's, what nobody has promised may be.
wrong(Odd, #{done := Done} = C) ->
    Costs = [Cost || {_, Cost, _, _} <- Done],
    Late = [Note || {late_note, Note} <- Odd],
    Before = [Worker || {down_before, _, Worker} <- Odd],
    TooLate = [Key || {too_late, Key, _} <- Odd],
    lists:usort([case What of
                     {no_note, Entries, _} -> {no_note, Entries};
                     _ -> What
                 end || What <- Odd,
                        case What of
                            {no_note, _, Note} -> is_good(C) orelse lists:member(Note, Late);
                            {late_note, _} -> false;                              % the same
                            {down_before, _, _} -> is_good(C);
                            %% A link that was killed is replaced, and its monitors by OTP's own.
                            {behind_its_down, Worker} -> is_good(C) orelse (lists:member(Worker, Before) andalso
                                                                            Costs -- [nothing, pair, node] =:= []);
                            {false_down, noconnection, _} -> not lists:member(uncounted, Costs);
                            {false_down, noconnection, _, _} -> not lists:member(uncounted, Costs);
                            %% One may have been about to be sent.
                            {too_late, Key, _} -> length([K || K <- TooLate, K =:= Key]) > 1;
                            _ -> true
                        end]).

is_documented({call, timeout}, _) -> true;
is_documented({request, timeout}, _) -> true;
is_documented({erpc, timeout}, _) -> true;
is_documented({erpc, Reason, _}, C) -> is_documented({erpc, Reason}, C);
is_documented({Kind, Reason}, _) when Kind =/= erpc, Reason =:= noproc; Kind =/= erpc, Reason =:= killed -> true;     % of n
is_documented({erpc, noconnection}, C) -> not is_good(C);
is_documented({erpc, system_limit}, C) -> lists:keymember(full_node, 1, maps:get(done, C));
is_documented({call, {nodedown, _}}, C) -> not is_good(C);
is_documented({request, noconnection}, C) -> not is_good(C);
is_documented(_, _) -> false.

%% Without load, when what is idle has been closed.
rest(Id, C) -> cluster:call(node_at(Id, C), nemesis_node, rest, []).

at_rest(Before, #{wrong := Wrong} = C) ->
    try
        cluster:await(fun() ->
                              case [{Id, What, Then, Now} || {Id, Thens} <- Before, {What, {Now, Allowed}} <- maps:to_list(rest(Id, C)),
                                                             {Then, _} <- [maps:get(What, Thens, {0, 0})], Now > max(Then, Allowed)] of
                                  [] -> true;
                                  More -> More
                              end
                      end, ?AT_REST),
        C
    catch
        Class:Reason -> C#{wrong := [{not_at_rest, Class, Reason} | Wrong]}
    end.

crashes(#{wrong := Wrong} = C) ->
    Crashes = [{crash, Id, Text} || Id <- ?NODES, Text <- cluster:call(node_at(Id, C), nemesis_node, logged, [])],
    C#{wrong := Crashes ++ Wrong}.
