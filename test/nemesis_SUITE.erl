%% Random faults under load, at three nodes with several senders each.
%%
%% In a `resume' round only connections break, sessions outlive them (resume_time), and nothing may
%% be lost, doubled or out of order, nor a call or a monitor notice. In a `broken' round the same
%% breaks end the sessions, and what is lost must be counted. Where network namespaces are allowed
%% the nodes are in one each, so that packets between them can be dropped.
%%
%% It runs in rounds. A round follows from its seed: the nodes' options, what each sender sends, and
%% the faults, with how many messages there are between them. (When exactly a fault happens depends
%% on the machine, too.) In a `good' round nothing may be lost, in a `bad' one it must be counted.
%% At its end everything must be as it was, and what the receivers have got is held against what the
%% senders have sent (nemesis_check).
%%
%%     make nemesis SECONDS=600                 for so long; a line for each round
%%     make nemesis SEED=4711 SECONDS=1         one round, that of this seed
%%     make nemesis LANES=tcp                   lanes on connections of their own (tls)
%%     make breaks BREAKS=1000                  resume rounds until there have been so many breaks
%%     make breaks NEMESIS=broken               the same breaks without resume_time
%%
%% NEMESIS=good, bad, resume or broken chooses the kind of rounds, FAULTS=kill_lane,drain the
%% faults.
%%
%% A round that fails shows its seed; SEED=... begins with that round.
-module(nemesis_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, checks/1, random_faults/1, breaks/1, breaks_end_sessions/1]).

-define(SECONDS, 120).
-define(BREAKS, 12).
%% ms
-define(STALLED, 3_000).           % a fault does not wait longer for messages
-define(STILL, 1_000).             % nor does a node that stands still in a good round
-define(SILENT, 2_500).            % from then on the others may give it up: see arguments/0
-define(HEALED, 60_000).
-define(NOTICED, 60_000).          % a connection that has died
-define(AT_REST, 60_000).          % a watcher of trunkline_monitors ends after up to 30 seconds
-define(ROUND, 600_000).           % one that takes longer hangs

suite() -> [{timetrap, {seconds, seconds() + 20 * breaks() + 900}}].

all() -> [checks, random_faults, breaks, breaks_end_sessions].

breaks() -> list_to_integer(env("BREAKS", integer_to_list(?BREAKS))).

seconds() -> list_to_integer(env("NEMESIS_SECONDS", integer_to_list(?SECONDS))).

env(Name, Default) ->
    case os:getenv(Name, "") of
        "" -> Default;
        Value when is_atom(Default) -> list_to_atom(Value);
        Value -> Value
    end.

%% The checks find what they are for.
checks(_) ->
    ?assertEqual(#{doubled => [], disordered => []}, nemesis_check:order([{1, 5}, {7, 9}])),
    ?assertEqual(#{doubled => [4, 5], disordered => []},
                 nemesis_check:order([{1, 5}, {4, 5}, {6, 6}])),
    ?assertEqual(#{doubled => [], disordered => [{4, 4}]},
                 nemesis_check:order([{1, 3}, {5, 8}, {4, 4}])),
    ?assertEqual(#{doubled => [3], disordered => [{3, 4}]},
                 nemesis_check:order([{1, 3}, {5, 8}, {3, 4}])),
    ?assertEqual([{4, 4}, {9, 10}], nemesis_check:missing([{1, 5}, {7, 10}], [{5, 8}, {1, 3}])),
    ?assertEqual([{1, 2}], nemesis_check:missing([{1, 2}], [])),
    ?assertEqual([], nemesis_check:odd(#{sent => [{1, 3}], uncertain => [{4, 4}]},
                                       [{1, 2}, {3, 4}])),
    ?assertEqual([{answered_but_not_received, [{2, 2}]}, {refused_but_received, 1},
                  {received_but_not_sent, [{9, 9}]}],
                 nemesis_check:odd(#{sent => [{1, 1}], answered => [{2, 2}], refused => [{3, 3}]},
                                   [{1, 1}, {3, 3}, {9, 9}])),
    Cover = #{lost => 2, broken => false, fallbacks => 6, uncounted => false},
    ?assert(nemesis_check:covered(2, Cover)),
    ?assertNot(nemesis_check:covered(3, Cover)),
    ?assert(nemesis_check:covered(8, Cover#{broken := true})),
    ?assertNot(nemesis_check:covered(9, Cover#{broken := true})).

random_faults(_) ->
    End = erlang:monotonic_time(second) + seconds(),
    failed(rounds(seed(), env("NEMESIS", any),
                  fun(_) -> erlang:monotonic_time(second) < End end, {0, []})).

breaks(_) ->
    until_broken(case env("NEMESIS", resume) of
                     broken -> broken;
                     _ -> resume
                 end, breaks()).

breaks_end_sessions(_) -> until_broken(broken, min(breaks(), ?BREAKS)).

until_broken(Kind, Wanted) ->
    failed(rounds(seed(), Kind, fun(Breaks) -> Breaks < Wanted end, {0, []})).

seed() ->
    case env("SEED", "") of
        "" -> rand:uniform(1_000_000);
        Given -> list_to_integer(Given)
    end.

failed([]) ->
    ok;
failed(Failed) ->
    ct:fail("~ts", [[io_lib:format("seed ~b:~n~ts", [S, Text]) || {S, Text} <- Failed]]).

rounds(Seed, Kind, IsMore, {Breaks, Failed}) ->
    {N, Result} = one_round(Seed, Kind),
    Sum = {Breaks + N, [{Seed, Text} || {failed, Text} <- [Result]] ++ Failed},
    case IsMore(Breaks + N) of
        true -> rounds(Seed + 1, Kind, IsMore, Sum);
        false -> lists:reverse(element(2, Sum))
    end.

say(Format, Args) ->
    ct:log(Format, Args),
    io:format(user, Format ++ "~n", Args).

%% --- faults ---------------------------------------------------------------------------

%% {Name, Weight, Costs, what to do at the node At with the random number R}. To is another node.
%% Costs: `nothing'; `counted' messages, and the answers to calls; `pair': the connection of the
%% two; `node': At and all that it knew; `uncounted': the counters too.
faults() ->
    [{kill_link, 4, counted, kill(trunkline_link)},
     {kill_lane, 4, counted, kill(trunkline_lane)},
     {kill_inlet, 4, counted, kill(trunkline_inlet)},
     {kill_dock, 3, counted, kill(trunkline_dock)},
     {kill_trunk, 3, counted, kill(trunkline_trunk)},
     {kill_opener, 2, counted, kill(trunkline_opener)},
     {kill_executor, 1, counted, kill(trunkline_executor)},
     {kill_writer, 4, nothing, kill(trunkline_writer)},
     {kill_listener, 2, nothing, name(trunkline_listener)},
     {kill_links, 2, nothing, name(trunkline_links)},
     {kill_inboxes, 1, nothing, name(trunkline_inboxes)},
     {kill_monitors, 2, nothing, name(trunkline_monitors)},
     {kill_link_sup, 2, counted, name(trunkline_link_sup)},
     {kill_sup, 1, uncounted, fun kill_sup/2},
     {close_connection, 4, nothing, fun close_connection/2},
     {garbage, 2, nothing, fun garbage/2},
     {disconnect, 5, pair, fun disconnect/2},
     {kill_node, 3, node, fun kill_node/2},
     {stop_node, 4, nothing, fun stop_node/2},
     {full_node, 2, pair, fun fill_node/2},
     {restart_trunkline, 5, nothing, fun restart_trunkline/2},
     {drain, 4, nothing, fun drain/2},
     {drain_all, 2, nothing, fun drain_all/2},
     {restart_named, 5, nothing, fun restart_named/2}].

%% What ends a connection between nodes (`break'), and what ends others meanwhile. Those of the
%% network need a namespace for each node.
faults(Where) ->
    [{disconnect, 6, break, fun disconnect/2},
     {disconnect_both, 2, break, fun disconnect_both/2},
     {close_distribution, 4, break, fun close_distribution/2},
     {disconnect_again, 3, break, fun disconnect_again/2},
     {silence, 2, break, fun silence/2},
     {stop_node, 3, nothing, fun stop_node/2},
     {close_connection, 2, nothing, fun close_connection/2},
     {kill_writer, 2, nothing, kill(trunkline_writer)}]
        ++ [{drop, 2, break, fun drop/2} || Where =:= apart]
        ++ [{drop_one_way, 2, break, fun drop_one_way/2} || Where =:= apart].

%% Both, at the same time.
disconnect_both(#{at := At, to := To}, C) ->
    all_nodes(fun(Id, #{node := Node}) ->
                      [Other] = [At, To] -- [Id],
                      cluster:call(Node, erlang, disconnect_node, [name_of(Other, C)])
              end, maps:with([At, To], maps:get(nodes, C))),
    C.

%% Its socket, without a farewell.
close_distribution(#{at := At, to := To}, C) ->
    at(At, nemesis_node, close_distribution, [name_of(To, C)], C).

%% As soon as they are connected again; what goes on between the links then is interrupted.
disconnect_again(#{at := At, to := To, r := R} = Args, C) ->
    lists:foreach(fun(_) ->
                          _ = disconnect(Args, C),
                          cluster:await(fun() -> is_connected(At, To, C) end, ?NOTICED)
                  end, lists:seq(1, 2 + R rem 3)),
    disconnect(Args, C).

%% The node stands still until the other has given it up.
silence(#{at := At, to := To}, #{silent := Silent} = C) ->
    Node = node_at(At, C),
    try
        ok = cluster:suspend(Node),
        cluster:await(fun() -> not is_connected(To, At, C) end, ?NOTICED)
    after cluster:continue(Node)
    end,
    C#{silent := [At | Silent]}.

%% No packet passes, until one of them has noticed, and for a while longer.
drop(#{r := R} = Args, C) -> drop(Args, both, R rem 2_000, C).

drop_one_way(#{at := At, r := R} = Args, C) -> drop(Args, At, R rem 2_000, C).

drop(#{at := At, to := To}, From, Time, #{wan := Wan} = C) ->
    Link = link_of(At, To),
    ok = wan:set(Wan, Link, From, #{loss => 100}),
    try
        cluster:await(fun() -> not is_connected(At, To, C) orelse not is_connected(To, At, C) end,
                      ?NOTICED),
        receive after Time -> ok end
    after
        ok = wan:set(Wan, Link, both, #{loss => 0})
    end,
    C.

is_connected(At, To, C) ->
    lists:member(name_of(To, C), cluster:call(node_at(At, C), erlang, nodes, [connected])).

kill(Module) -> fun(#{at := At, r := R}, C) -> at(At, nemesis_node, kill, [Module, R], C) end.

name(Name) -> fun(#{at := At}, C) -> at(At, nemesis_node, kill_name, [Name], C) end.

close_connection(#{at := At, r := R}, C) -> at(At, nemesis_node, close_connection, [R], C).

disconnect(#{at := At, to := To}, C) -> at(At, erlang, disconnect_node, [name_of(To, C)], C).

%% (A node that is full must not have to connect: OTP's net_kernel would end. See
%% docs/reference/otp-defects.md.)
fill_node(#{at := At, r := R}, C) ->
    [cluster:await(fun() ->
                           cluster:call(node_at(At, C), net_kernel, connect_node, [name_of(Id, C)])
                   end) || Id <- running(C)],
    at(At, nemesis_node, fill, [100 + R rem 500], C).

drain(#{at := At, to := To}, C) -> drained(At, at(At, trunkline, drain, [name_of(To, C)], C)).

drain_all(#{at := At}, C) -> drained(At, at(At, trunkline, drain, [], C)).

drained(At, #{drained := Drained} = C) -> C#{drained := [At | Drained]}.

%% The name is free for some time, or for none.
restart_named(#{at := At, r := R}, C) ->
    at(At, nemesis_traffic, restart_named, [R rem 3 * (R rem 50)], C).

at(At, Module, Function, Args, C) ->
    _ = cluster:call(node_at(At, C), Module, Function, Args),
    C.

%% Trunkline ends with it.
kill_sup(#{at := At}, C) ->
    Node = node_at(At, C),
    ok = cluster:call(Node, nemesis_node, keep_counters, []),
    ok = cluster:call(Node, logger, set_primary_config, [level, none]),
    killed = cluster:call(Node, nemesis_node, kill_name, [trunkline_sup]),
    anew:await_stopped(Node),
    start_again(At, C).

restart_trunkline(#{at := At}, C) ->
    ok = cluster:call(node_at(At, C), nemesis_node, keep_counters, []),
    ok = cluster:call(node_at(At, C), cluster, stop_trunkline, []),
    start_again(At, progress(200, C)).

start_again(At, #{env := Env} = C) ->
    ok = cluster:call(node_at(At, C), cluster, start_trunkline, [Env]),
    ok = cluster:call(node_at(At, C), logger, set_primary_config, [level, error]),
    C.

%% To the ports of Trunkline.
garbage(#{at := At, r := R}, C) ->
    #{ports := Ports} = cluster:call(node_at(At, C), trunkline_listener, info, []),
    [begin
         stranger:say(Connection, rand:bytes(R rem 200)),
         stranger:close(Connection)
     end || Port <- maps:values(Ports), _ <- lists:seq(1, 10),
            {gen_tcp, _} = Connection <- [stranger:connect(Port)]],
    C.

%% The node stands still, while something else may happen at another.
stop_node(#{at := At} = Args, #{plan := #{kind := Kind}} = C) ->
    Node = node_at(At, C),
    Start = erlang:monotonic_time(millisecond),
    C1 = try
             ok = cluster:suspend(Node),
             case Args of
                 #{inner := Inner} -> carry_out(Inner, progress(200, C#{still := At}));
                 #{} when Kind =:= good -> progress(500, ?STILL, C#{still := At});
                 #{} -> progress(500, C#{still := At})
             end
         after
             %% (A new node may have its place.)
             cluster:continue(Node)
         end,
    #{silent := Silent} = C1,
    IsSilent = erlang:monotonic_time(millisecond) - Start > ?SILENT,
    publish(C1#{still := none, silent := [At || IsSilent] ++ Silent}).

%% It comes back under its name. What others began to send to the one before by name, while they
%% were connected, is not for this one.
kill_node(#{at := At}, #{nodes := Nodes, still := Still, env := Env} = C) ->
    #{At := #{node := Node, incarnation := Incarnation, short := Short} = Kept} = Nodes,
    Before = os:system_time(microsecond),
    Down = [X || {X, #{node := N}} <- maps:to_list(Nodes), X =/= At, X =/= Still,
                 state(N, cluster:node_of(Node)) =/= up],
    End = case Still of
              none when Down =:= [] -> Before;
              _ -> none
          end,
    cluster:kill(Node),
    New = cluster:start(Env, Short, arguments()),
    ready(New),
    Own = cluster:call(New, nemesis_traffic, start_destinations, [At, Incarnation + 1, End]),
    C1 = C#{nodes := Nodes#{At := Kept#{node := New, incarnation := Incarnation + 1}},
            directory := maps:merge(maps:get(directory, C), Own),
            still := case Still of At -> none; _ -> Still end},
    start_senders(At, publish(C1)).

%% --- the plan of a round --------------------------------------------------------------

-define(NODES, [a, b, c]).
-define(LINKS, [{a, b}, {a, c}, {b, c}]).

%% Everything that is decided by chance, but for what the senders decide, from seeds of their own.
plan(Seed, Wanted) ->
    _ = rand:seed(exsss, Seed),
    Any = one([good, bad, bad]),
    Kind = case Wanted of
               any -> Any;
               _ -> Wanted
           end,
    Where = where(Kind),
    Chosen = string:lexemes(env("FAULTS", ""), ","),
    Faults = [Fault || {Name, _, Costs, _} = Fault <- case only_breaks(Kind) of
                                                          true -> faults(Where);
                                                          false -> faults()
                                                      end,
                       Kind =/= good orelse Costs =:= nothing,
                       Chosen =:= [] orelse lists:member(atom_to_list(Name), Chosen)],
    Env = [{lanes, one([1, 2, 4])},
           {queue_bytes, one([1_048_576, 16_384])}, {window_bytes, one([67_108_864, 65_536])},
           {large_bytes, one([65_536, 8_192])}, {bulk_bytes, one([67_108_864, 1_000_000])},
           {bulk_connections, one([1, 2])}, {bulk_idle, 1_000}]
        ++ [{bulk_transport, dist} || one([true, false, false]), cluster:lane_transport() =:= dist]
        ++ [{resume_time, 300_000} || Kind =:= resume],
    #{kind => Kind, env => Env, where => Where,
      senders => maps:from_list([{Node, senders(Node)} || Node <- ?NODES]),
      faults => [{100 + rand:uniform(3_000), fault(Kind, Faults)}
                 || _ <- lists:seq(1, number_of_faults(Kind))]}.

number_of_faults(Kind) ->
    case only_breaks(Kind) of
        true -> 12 + rand:uniform(12);
        false -> 4 + rand:uniform(5)
    end.

only_breaks(Kind) -> lists:member(Kind, [resume, broken]).

%% (A certificate of the tests is for one host.)
where(Kind) ->
    case only_breaks(Kind) andalso cluster:lane_transport() =/= tls andalso wan:possible() of
        ok -> apart;
        _ -> together
    end.

fault(Kind, Faults) ->
    {Name, _, Costs, Fun} = weighted(Faults),
    [At, To | _] = shuffled(?NODES),
    Args = #{at => At, to => To, r => rand:uniform(1_000_000)},
    %% While one of the nodes stands still others can do these.
    Inner = [F || {Inside, _, _, _} = F <- Faults,
                  not lists:member(Inside, [stop_node, drain_all, silence, disconnect_both,
                                            disconnect_again, drop, drop_one_way])],
    {Name, Costs, Fun,
     case one([true, false]) of
         true when Name =:= stop_node, Kind =/= good, Inner =/= [] ->
             Args#{inner => inside(At, To, Inner)};
         _ ->
             Args
     end}.

%% A fault while At stands still: at another node, and it concerns At; or At is killed.
inside(At, To, Faults) ->
    {Name, _, Costs, Fun} = weighted(Faults),
    Args = #{r => rand:uniform(1_000_000)},
    {Name, Costs, Fun, case Name of
                           kill_node -> Args#{at => At, to => To};
                           _ -> Args#{at => To, to => At}
                       end}.

senders(Node) ->
    Replies = one([any, long]),
    [sender(Node, Replies) || _ <- lists:seq(1, 2 + rand:uniform(3))].

%% A seed, the targets, how often it does what, and what it wants as replies.
sender(Node, Replies) ->
    Others = shuffled(?NODES -- [Node]),
    Mixes = case Replies of
                any -> mixes();
                %% Not too much else, or none of them is a plain reply.
                long -> [[{call, 10}], [{call, 10}, {send, 5}, {monitor, 1}],
                         [{call, 20}, {request, 1}, {cast, 2}], [{call, 5}, {send, 1}]]
            end,
    Targets = [{At, Name} || At <- one([Others, Others, [hd(Others)]]),
                             Name <- one([[p1, p2, n], [p1], [p1, n]])],
    #{seed => rand:uniform(1_000_000_000), targets => Targets, replies => Replies,
      mix => one(Mixes)}.

mixes() ->
    [[{send, 6}, {cast, 2}, {{send, nosuspend}, 2}, {{send, noconnect}, 1}],
     [{send, 10}, {multicast, 5}, {abcast, 2}, {call, 1}],
     [{call, 5}, {request, 3}, {cast, 2}, {multi_call, 1}, {erpc_call, 2},
      {erpc_multicall, 1}],
     [{send, 10}, {cast, 10}, {{send, nosuspend}, 10}, {{send, noconnect}, 5},
      {multicast, 5}, {abcast, 3}, {call, 5}, {request, 3}, {multi_call, 1},
      {monitor, 3}, {erpc_call, 3}, {erpc_cast, 3}, {erpc_multicall, 1}],
     [{notify, 10}, {exit, 3}, {erpc_request, 3}, {erpc_multicast, 3},
      {rpc_call, 3}, {rpc_cast, 3}, {send, 3}],
     [{monitor, 10}, {exit, 5}, {send, 10}, {call, 1}]].

one(List) -> lists:nth(rand:uniform(length(List)), List).

shuffled(List) -> [X || {_, X} <- lists:sort([{rand:uniform(), X} || X <- List])].

weighted(Faults) -> weighted(rand:uniform(lists:sum([W || {_, W, _, _} <- Faults])), Faults).

weighted(N, [{_, Weight, _, _} = Fault | _]) when N =< Weight -> Fault;
weighted(N, [{_, Weight, _, _} | Faults]) -> weighted(N - Weight, Faults).

%% --- a round --------------------------------------------------------------------------

%% Answers how many connections between nodes were broken, too.
one_round(Seed, Wanted) ->
    #{kind := Kind, faults := Faults} = Plan = plan(Seed, Wanted),
    Names = [case Args of
                 #{inner := {Inner, _, _, _}} -> {Name, Inner};
                 #{} -> Name
             end || {_, {Name, _, _, Args}} <- Faults],
    ct:log("seed ~b: ~p", [Seed, Plan]),
    Started = erlang:monotonic_time(millisecond),
    Test = self(),
    {Runner, Ref} = spawn_monitor(fun() -> Test ! {self(), run(Plan)} end),
    {Sums, Wrong} = receive
                        {Runner, Result} -> demonitor(Ref, [flush]), Result;
                        {'DOWN', Ref, process, Runner, Reason} -> {#{}, [{round, Reason}]}
                    after ?ROUND ->
                            Where = process_info(Runner, current_stacktrace),
                            demonitor(Ref, [flush]),
                            exit(Runner, kill),
                            {#{}, [{round, {hangs, Where}}]}
                    end,
    Failed = [io_lib:format("~0tP", [examples(Wrong), 100]) || Wrong =/= []],
    say("nemesis seed ~b ~s ~.1f s: ~0p; ~0p~ts",
        [Seed, Kind, (erlang:monotonic_time(millisecond) - Started) / 1000, Names, Sums,
         [["; FAILED: ", F] || F <- Failed]]),
    Failed =:= [] orelse ct:log("~tp", [Wrong]),
    {length([Name || {_, {Name, break, _, _}} <- Faults]),
     case Failed of
         [] -> ok;
         _ -> {failed, Failed}
     end}.

%% How many of each kind, and one of them.
examples(Wrong) ->
    Kinds = maps:groups_from_list(fun(What) when is_tuple(What) -> element(1, What) end, Wrong),
    [{length(All), hd(All)} || {_, All} <- lists:sort(maps:to_list(Kinds))].

%% The state of a round: C.
run(#{env := Env, faults := Faults, where := Where} = Plan) ->
    Wan = open_wan(Where),
    Nodes = start_nodes(Wan, Env),
    try
        Destinations = [cluster:call(Node, nemesis_traffic, start_destinations, [Id, 1, none])
                        || {Id, #{node := Node}} <- maps:to_list(Nodes)],
        C1 = heal(#{plan => Plan, env => Env, nodes => Nodes, wan => Wan,
                    directory => lists:foldl(fun maps:merge/2, #{}, Destinations),
                    senders => [],
                    still => none,             % who is stopped just now
                    silent => [],              % who was, for long: its connections may have broken
                    drained => [],             % who has taken leave of somebody
                    done => [],                % faults
                    wrong => []}),
        Before = [{Id, rest(Id, C1)} || Id <- ?NODES],
        C2 = lists:foldl(fun start_senders/2, publish(C1), ?NODES),
        C3 = lists:foldl(fun({Gap, Fault}, C) -> carry_out(Fault, progress(Gap, C)) end,
                         C2, Faults),
        C4 = heal(progress(300, C3)),
        C5 = settle(C4),
        C6 = at_rest(Before, C5),
        #{sums := Sums, wrong := Wrong} = crashes(reconnected(C6)),
        {Sums, lists:reverse(Wrong)}
    after
        #{nodes := Last} = case get(cluster) of
                               undefined -> #{nodes => Nodes};
                               Kept -> Kept
                           end,
        cluster:stop_all([Node || #{node := Node} <- maps:values(Last)]),
        Wan =:= none orelse wan:close(Wan)
    end.

open_wan(apart) -> wan:open(?NODES, ?LINKS);
open_wan(together) -> none.

link_of(X, Y) ->
    [Link] = [{A, B} || {A, B} <- ?LINKS, {A, B} =:= {X, Y} orelse {B, A} =:= {X, Y}],
    Link.

start_nodes(Wan, Env) ->
    all_nodes(fun(Id, #{short := Short} = Node) ->
                      Started = case Wan of
                                    none -> cluster:start(Env, Short, arguments());
                                    _ -> cluster:start_at(Wan, Id, Env, arguments())
                                end,
                      ready(Started),
                      Node#{node => Started}
              end, maps:from_list([{Id, #{short => peer:random_name("nemesis_" ++ atom_to_list(Id)),
                                          incarnation => 1}} || Id <- ?NODES])).

%% (A node that is not heard of for four seconds, give or take one, is given up.)
arguments() -> ["+P", "4096", "-kernel", "net_ticktime", "4", "-kernel", "net_setuptime", "3"
                | cluster:dist_arguments()].

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
    New = [{At, Incarnation, cluster:call(Node, nemesis_traffic, start_sender,
                                          [{At, Incarnation, I}, Seed + Incarnation, Sender])}
           || {I, #{seed := Seed} = Sender} <- lists:enumerate(maps:get(At, All))],
    C#{senders := New ++ Senders}.

%% Until there have been so many messages more.
progress(Messages, C) -> progress(Messages, ?STALLED, C).

progress(Messages, Time, C) ->
    Count = fun() -> lists:sum([cluster:call(node_at(Id, C), nemesis_traffic, count, [])
                                || Id <- running(C)]) end,
    Enough = Count() + Messages,
    try cluster:await(fun() -> Count() >= Enough orelse waiting end, Time)
    catch error:{timeout, waiting} -> ok
    end,
    C.

carry_out({Name, Costs, Fun, #{at := At} = Args}, #{done := Done, wrong := Wrong} = C0) ->
    ct:log("~0p", [{Name, maps:with([at, to, r], Args)}]),
    C = C0#{done := [{Name, Costs, At, maps:get(to, Args)} | Done]},
    put(cluster, C),
    try Fun(Args, C)
    catch
        Class:Reason:Stack ->
            (get(cluster))#{wrong := [{Name, Class, Reason, Stack} | Wrong], still := none}
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
    May = fun(X, Y, State) -> (lists:member(X, Drained) orelse lists:member(Y, Drained))
                                  andalso lists:member(State, [drained, greeting]) end,
    try
        cluster:await(
          fun() ->
                  States = [{X, Y, connected(X, Y, C)} || X <- ?NODES, Y <- ?NODES, X =/= Y],
                  case [S || {X, Y, State} = S <- States, State =/= up, not May(X, Y, State)] of
                      [] -> true;
                      Not -> Not
                  end
          end, ?HEALED),
        C
    catch
        Class:Reason -> C#{wrong := [{not_healed, Class, Reason} | Wrong]}
    end.

%% (One side may not have noticed yet that the connection is lost, and refuses the next.)
connected(X, Y, C) ->
    case cluster:call(node_at(X, C), net_kernel, connect_node, [name_of(Y, C)]) of
        true -> state(node_at(X, C), name_of(Y, C));
        false -> not_connected
    end.

%% What was drained has lanes again when the nodes connect anew.
reconnected(#{drained := []} = C) ->
    C;
reconnected(#{drained := Drained} = C) ->
    [cluster:call(node_at(X, C), erlang, disconnect_node, [name_of(Y, C)])
     || X <- lists:usort(Drained), Y <- ?NODES, Y =/= X],
    heal(C#{drained := []}).

%% --- the checks at the end of a round ------------------------------------------------------

%% The senders end, and all logs are held against each other.
settle(#{nodes := Nodes, senders := All} = C) ->
    Stopped = all_nodes(
                fun(Id, #{node := Node, incarnation := Incarnation}) ->
                        Others = [{At, Name} || At <- ?NODES, At =/= Id, Name <- [p1, p2, e]],
                        Pids = [Pid || {At, I, Pid} <- All, {At, I} =:= {Id, Incarnation}],
                        cluster:call(Node, nemesis_traffic, stop_senders, [Pids, Others])
                end, Nodes),
    Results = lists:append(maps:values(Stopped)),
    Sent = lists:foldl(fun maps:merge/2, #{}, [Log || #{log := Log} <- Results]),
    #{received := Received, missing := Missing, odd := OddMessages, late := Late} =
        arrived(Sent, C, 10),
    Missing =:= #{} orelse ct:log("missing: ~0p", [missing_runs(Sent, Received, C)]),
    Odd = lists:append([O || #{odd := O} <- Results]) ++ OddMessages,
    Reasons = lists:foldl(fun(R, Sum) -> maps:merge_with(fun(_, M, N) -> M + N end, R, Sum) end,
                          #{}, [R || #{reasons := R} <- Results]),
    Orders = [{Key, nemesis_check:order(Runs)} || {Key, Runs} <- maps:to_list(Received)],
    Doubled = [{Key, D} || {Key, #{doubled := [_ | _] = D}} <- Orders],
    Disordered = [{Key, D, around(D, maps:get(Key, Received)), proplists:get_all_values(Key, Late)}
                  || {{_, {_, Name}, _} = Key, #{disordered := [_ | _] = D}} <- Orders,
                     Name =/= e, not may_be_overtaken(Key, C)],
    Counted = counted(C),
    Wrong = [R || R <- Results, not is_map(R)]
        ++ [{doubled, D} || D <- Doubled] ++ [{out_of_order, D} || D <- Disordered]
        ++ [{odd, Key, O} || Key <- lists:usort([Key || {Key, _} <- maps:keys(Sent)]),
                             is_alive(Key, C),
                             O <- nemesis_check:odd(of_key(Key, Sent), maps:get(Key, Received, []))]
        ++ losses(Missing, Counted, C) ++ wrong(Odd, Counted, C) ++ resumed(C)
        ++ [{failed, R, N} || {R, N} <- maps:to_list(Reasons), not is_documented(R, C)],
    C#{sums => #{messages => sum(lists:append(maps:values(Sent))),
                 plain_replies => lists:sum([cluster:call(node_at(Id, C), nemesis_traffic,
                                                          plain_replies, [])
                                             || Id <- running(C)]),
                 received => sum(lists:append(maps:values(Received))),
                 lost => lists:sum(maps:values(Missing)),
                 counted => lists:sum([lost(L) || {L, _, _} <- maps:values(Counted)]),
                 doubled => length(Doubled), out_of_order => length(Disordered),
                 resumed => resumptions(C),
                 silent => length(maps:get(silent, C)),
                 failed_calls => lists:sum(maps:values(Reasons))},
       wrong := lists:reverse(Wrong) ++ maps:get(wrong, C)}.

%% The one exception to the order (docs/reference/promises.md): Trunkline stops at a node while its
%% peer stands still, which has not delivered what it got.
may_be_overtaken({{From, _, _}, {To, _}, _}, #{done := Done}) ->
    lists:any(fun({{Name, _, At, _}, {Before, _, Still, _}}) ->
                      {At, Before, Still} =:= {From, stop_node, To} andalso stops(Name)
              end, lists:zip(lists:droplast(Done), tl(Done))).

has_left_in_disorder(#{done := Done} = C) ->
    lists:keymember(stop_node, 1, Done) andalso left(C) =/= [].

%% Nodes that have stopped Trunkline. It does not wait for long for a peer that stands still, whose
%% lanes then keep what they have.
left(#{done := Done}) -> [At || {Name, _, At, _} <- Done, stops(Name)].

stops(Name) -> lists:member(Name, [restart_trunkline, kill_sup, kill_link_sup, kill_links]).

all_nodes(Fun, Nodes) ->
    Running = [{Id, spawn_monitor(fun() -> exit({done, Fun(Id, Node)}) end)}
               || {Id, Node} <- maps:to_list(Nodes)],
    maps:from_list([receive
                        {'DOWN', Ref, process, Pid, {done, Result}} -> {Id, Result};
                        {'DOWN', Ref, process, Pid, Reason} -> error({Id, Reason})
                    end || {Id, {Pid, Ref}} <- Running]).

%% What arrived before and after the first of these runs.
around([Run | _], Runs) ->
    {Before, After} = lists:splitwith(fun(R) -> R =/= Run end, Runs),
    lists:nthtail(max(0, length(Before) - 3), Before) ++ lists:sublist(After, 3).

%% What is executed by processes of its own may still come.
arrived(Sent, #{nodes := Nodes} = C, Tries) ->
    Logs = [cluster:call(Node, nemesis_traffic, logs, []) || #{node := Node} <- maps:values(Nodes)],
    Received = maps:from_list(lists:append([Log || {Log, _, _} <- Logs])),
    Missing = missing(Sent, Received, C),
    case maps:values(Missing) of
        [_ | _] when Tries > 0 -> receive after 100 -> arrived(Sent, C, Tries - 1) end;
        _ -> #{received => Received, missing => Missing,
               odd => lists:append([Odd || {_, Odd, _} <- Logs]),
               late => lists:append([Late || {_, _, Late} <- Logs])}
    end.

%% #{{From, To} => how many}, between those that are still there. What is executed elsewhere, and
%% what is sent to a name that is free, is not counted anywhere.
missing(Sent, Received, C) ->
    lists:foldl(fun({{{From, _, _}, {To, _}, _}, Runs}, Sum) ->
                        N = sum(Runs),
                        maps:update_with({From, To}, fun(M) -> M + N end, N, Sum)
                end, #{}, missing_runs(Sent, Received, C)).

missing_runs(Sent, Received, C) ->
    [{Key, Runs} || {{{_, {_, Name}, _} = Key, sent}, All} <- maps:to_list(Sent),
                    is_alive(Key, C), Name =/= n, Name =/= e orelse is_good(C),
                    Runs <- [nemesis_check:missing(All, maps:get(Key, Received, []))],
                    Runs =/= []].

sum(Runs) -> lists:sum([Last - First + 1 || {First, Last} <- Runs]).

of_key(Key, Sent) ->
    maps:from_list([{How, Runs} || How <- [sent, answered, uncertain, refused],
                                   {ok, Runs} <- [maps:find({Key, How}, Sent)]]).

is_alive({{From, Theirs, _}, {To, _}, Ours}, #{nodes := Nodes}) ->
    #{From := #{incarnation := I}, To := #{incarnation := J}} = Nodes,
    {I, J} =:= {Theirs, Ours}.

is_good(#{plan := #{kind := resume}}) -> true;
is_good(#{plan := #{kind := Kind}, silent := Silent}) -> Kind =:= good andalso Silent =:= [].

%% All sessions go on over the next connection, and nothing is even supposed to be lost.
resumed(#{plan := #{kind := resume}, nodes := Nodes}) ->
    [{session_ended, {Id, Peer}, Counted}
     || {Id, #{node := Node}} <- maps:to_list(Nodes),
        {Peer, Counted} <- cluster:call(Node, nemesis_node, sessions, []),
        maps:without([resumed], Counted) =/= #{sessions => 1, lost => 0, fallbacks => 0}];
resumed(_) ->
    [].

resumptions(#{nodes := Nodes}) ->
    lists:sum([R || #{node := Node} <- maps:values(Nodes),
                    {_, #{resumed := R}} <- cluster:call(Node, nemesis_node, sessions, [])]).

%% #{{From, To} => {Causes, Fallbacks, Broken}}, of all that have been at From.
counted(#{nodes := Nodes} = C) ->
    Ids = maps:from_list([{name_of(Id, C), Id} || Id <- ?NODES]),
    maps:from_list([{{From, maps:get(Name, Ids)}, Values}
                    || {From, #{node := Node}} <- maps:to_list(Nodes),
                       Counts <- [cluster:call(Node, nemesis_node, counted, [])],
                       {Name, Values} <- maps:to_list(Counts),
                       is_map_key(Name, Ids)]).

losses(Missing, Counted, C) ->
    [{lost, Pair, N, Cover} || {Pair, N} <- maps:to_list(Missing),
                               Cover <- [cover(Pair, Counted, C)],
                               not nemesis_check:covered(N, Cover)]
        ++ [{false_alarm, Pair, Lost} || is_good(C), {Pair, {Lost, _, _}} <- maps:to_list(Counted),
                                         certain(Lost) > maps:get(Pair, Missing, 0)].

%% What was not acknowledged may have arrived.
certain({Queued, _, Crashed, Unreachable}) -> Queued + Crashed + Unreachable.

lost(Causes) -> lists:sum(tuple_to_list(Causes)).

%% What may explain a loss.
cover({From, To}, Counted, #{done := Done, silent := Silent}) ->
    {Lost, Fallbacks, _} = maps:get({From, To}, Counted, {{}, 0, 0}),
    {_, _, Torn} = maps:get({To, From}, Counted, {{}, 0, 0}),
    GivenUp = [Name || {Name, _, At, _} <- Done, lists:member(At, [From, To]),
                       lists:member(Name, [drain, drain_all, restart_trunkline, kill_sup,
                                           kill_link_sup, kill_links])],
    #{lost => lost(Lost) + Torn,
      fallbacks => case GivenUp of
                       [] -> Fallbacks;
                       _ -> unknown
                   end,
      broken => lists:any(fun(Fault) -> breaks(Fault, [From, To]) end, Done)
          orelse lists:member(From, Silent) orelse lists:member(To, Silent),
      uncounted => [] =/= [At || {_, uncounted, At, _} <- Done, lists:member(At, [From, To])]}.

breaks({_, node, At, _}, Pair) -> lists:member(At, Pair);
breaks({full_node, _, At, _}, Pair) -> lists:member(At, Pair);
breaks({_, Costs, At, To}, Pair) when Costs =:= pair; Costs =:= break ->
    lists:sort([At, To]) =:= lists:sort(Pair);
breaks(_, _) -> false.

%% Of single messages and 'DOWN's, what nobody has promised may be.
wrong(Odd, Counted, #{done := Done} = C) ->
    Costs = [Cost || {_, Cost, _, _} <- Done],
    Late = [Note || {late_note, Note} <- Odd],
    Before = [Worker || {down_before, _, Worker} <- Odd],
    TooLate = [Key || {too_late, Key, _} <- Odd],
    Ended = lists:any(fun({Name, Cost, _, _}) ->
                              Cost =/= nothing
                                  orelse lists:member(Name, [restart_trunkline, drain, drain_all])
                      end, Done),
    Replaced = lists:member(counted, Costs) orelse lists:member(uncounted, Costs)
        orelse has_left_in_disorder(C),
    lists:usort([case What of
                     {no_note, Entries, _} -> {no_note, Entries};
                     _ -> What
                 end || What <- Odd,
                        case What of
                            {no_note, _, Note} -> is_good(C) orelse lists:member(Note, Late);
                            {late_note, _} -> false;                     % the same
                            {down_before, _, _} -> is_good(C);
                            {exit_before, _, _} -> is_good(C);
                            %% Between two sessions nobody watches: see trunkline_monitors.
                            {false_down, noproc, {told, _}, _} -> not Ended;
                            %% A link that was killed is replaced, and its monitors by OTP's own. So
                            %% it is with one that has left beside a peer that stood still.
                            {behind_its_down, Worker} ->
                                is_good(C) orelse
                                    (lists:member(Worker, Before) andalso not Replaced);
                            {false_down, noconnection, _} -> not lists:member(uncounted, Costs);
                            %% The true one may have been on its way when the connection broke.
                            {false_down, noconnection, {told, _}, _} ->
                                Costs -- [nothing, counted] =:= []
                                    andalso maps:get(silent, C) =:= [];
                            {false_down, noconnection, _, _} -> not lists:member(uncounted, Costs);
                            %% So many of its successor's messages had come, which may have gone by
                            %% plain distribution.
                            {stale, {{From, _, _}, {To, _}, _}, _, Newer} ->
                                {_, Fallbacks, _} = maps:get({From, To}, Counted, {{}, 0, 0}),
                                Newer > Fallbacks;
                            %% One may have been about to be sent.
                            {too_late, Key, _} -> length([K || K <- TooLate, K =:= Key]) > 1;
                            _ -> true
                        end]).

is_documented({call, timeout}, _) -> true;
is_documented({erpc, timeout}, _) -> true;
is_documented({multi_call, bad_node}, _) -> true;          % a timeout, or n
%% n is killed.
is_documented({Kind, noproc}, _) when Kind =/= erpc -> true;
is_documented({Kind, killed}, _) when Kind =/= erpc -> true;
%% (An opener executes a function with long arguments itself.)
is_documented({erpc, killed}, #{done := Done}) ->
    lists:keymember(kill_executor, 1, Done) orelse lists:keymember(kill_opener, 1, Done);
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
                              case [{Id, What, Then, Now}
                                    || {Id, Thens} <- Before,
                                       {What, {Now, Allowed}} <- maps:to_list(rest(Id, C)),
                                       {Then, _} <- [maps:get(What, Thens, {0, 0})],
                                       Now > max(Then, Allowed)] of
                                  [] -> true;
                                  More -> More
                              end
                      end, ?AT_REST),
        C
    catch
        Class:Reason -> C#{wrong := [{not_at_rest, Class, Reason} | Wrong]}
    end.

crashes(#{wrong := Wrong} = C) ->
    Crashes = [{crash, Id, Text} || Id <- ?NODES,
                                    Text <- cluster:call(node_at(Id, C), kept_log, kept, [])],
    C#{wrong := Crashes ++ Wrong}.
