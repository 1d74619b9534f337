%% trunkline:advise/0,1 and trunkline:compare/1,2: what a cluster would gain.
-module(advise_SUITE).

-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

suite() -> [{timetrap, {minutes, 5}}].

all() ->
    [little_traffic, small_messages, large_messages, suspended_senders, lanes_in_use,
     lanes_not_in_use,
     unknown_counters, without_trunkline, quiet_connection, observed_by_another, by_lane,
     disconnected, advise_badarg, compared, compare_refuses, compare_badarg, compare_stopped,
     compare_interrupted, compare_killed].

%% --- judging -------------------------------------------------------------------

little_traffic(_) ->
    {none, Text} = judge(#{socket => socket(100, 60)}),
    ?assert(says("nothing to gain", Text)),
    {none, Nothing} = judge(#{socket => socket(0, 0)}),
    ?assert(says("Look again under load", Nothing)).

small_messages(_) ->
    {batches, Text} = judge(#{socket => socket(41_000, 52)}),
    ?assert(says("41,000 writes/s of 52 bytes", Text)),
    ?assert(says("With batches there would be about", Text)),
    ?assert(says("That saves up to", Text)),
    %% With delay_send many of these are one system call.
    {batches, Gathered} = judge(#{socket => (socket(41_000, 52))#{gathers => true}}),
    ?assertNot(says("That saves up to", Gathered)),
    %% Many small messages to a peer that is far fill the largest batch.
    {batches, Far} = judge(#{socket => socket(41_000, 52), round_trip => 100_000}),
    ?assert(says("With batches there would be about 160 writes/s", Far)).

large_messages(_) ->
    {large, Text} = judge(#{socket => socket(10_000, 63_000)}),
    ?assert(says("Large messages hold up", Text)).

suspended_senders(_) ->
    {waits, Text} =
        judge(#{socket => socket(500, 1000), suspended => #{times => 10.0, share => 0.12}}),
    ?assert(says("suspended 12 % of the time", Text)).

lanes_in_use(_) ->
    Lanes = #{messages => 100_000.0, batched_messages => 100_000.0, batches => 1000.0,
              waits => 0.0, bytes => 15_000_000.0},
    {in_use, Text} = judge(#{socket => socket(1000, 4000), lanes => Lanes}),
    ?assert(says("100,000 messages/s go by lane, 100.0 in a batch", Text)),
    {in_use, Idle} =
        judge(
          #{socket => socket(1, 60),
            lanes => #{messages => 0.0, batched_messages => 0.0, batches => 0.0, waits => 0.0,
                       bytes => 0.0}}),
    ?assert(says("No messages went by lane", Idle)),
    ?assertNot(says("beside the lanes", Text)),
    {in_use, Beside} = judge(#{socket => socket(21_000, 60), lanes => Lanes}),
    ?assert(says("20,000 writes/s of 60 bytes go beside the lanes", Beside)).

%% Trunkline runs, but the code does not use it.
lanes_not_in_use(_) ->
    Little = #{messages => 10.0, batched_messages => 10.0, batches => 10.0, waits => 0.0,
               bytes => 2000.0},
    [begin
         {Gain, Text} = judge(Figures#{lanes => Little}),
         ?assert(says("Trunkline runs at both nodes, but little of this goes by lane", Text)),
         ?assert(says("trunkline_transform", Text)),
         ?assertNot(says("Look again", Text))
     end || {Gain, Figures} <- [{batches, #{socket => socket(400_000, 39)}},
                                {large, #{socket => socket(500, 3_000_000)}},
                                {waits, #{socket => socket(500, 1000),
                                          suspended => #{times => 10.0, share => 0.12}}}]],
    %% Ten terms of 10 MB, which Trunkline sends by the distribution, in fragments.
    {in_use, _} = judge(#{socket => socket(1600, 64_000),
                          lanes => #{messages => 10.0, batched_messages => 0.0, batches => 0.0,
                                     waits => 0.0, bytes => 100_000_000.0}}).

unknown_counters(_) ->
    ?assertMatch({none, [_]}, judge(#{socket => undefined})).

judge(Figures) ->
    trunkline_advise:judge(maps:merge(#{node => a@b, round_trip => undefined, lanes => undefined,
                                        suspended => #{times => 0.0, share => 0.0}}, Figures)).

socket(Writes, Bytes) ->
    #{writes => float(Writes), sent_bytes => float(Writes * Bytes), packets_received => 0.0,
      received_bytes => 0.0, pending_bytes => 0}.

says(What, Text) -> lists:any(fun(Line) -> string:find(Line, What) =/= nomatch end, Text).

%% --- looking ---------------------------------------------------------------------

%% Of a node that has only the code.
without_trunkline(_) ->
    [A, B] = Nodes = cluster:start_all([none, none]),
    ok = cluster:connect(A, B),
    NodeB = cluster:node_of(B),
    %% (On a loaded machine nothing may be written for a while.)
    cluster:await(fun() ->
                          case cluster:call(A, ?MODULE, under_load, [NodeB]) of
                              [#{gain := batches,
                                 figures := #{node := NodeB,
                                              socket := #{writes := Writes,
                                                          sent_bytes := Bytes}}}] ->
                                  Bytes / Writes < 200;
                              Other ->
                                  {false, Other}
                          end
                  end),
    cluster:stop_all(Nodes).

under_load(Node) ->
    Sink = spawn(Node, ?MODULE, sink, []),
    Load = spawn(fun() -> load(Sink) end),
    Advice = trunkline:advise(#{time => 500}),
    exit(Load, kill),
    exit(Sink, kill),
    Advice.

load(Sink) ->
    Sink ! {ping, 1, 2},
    load(Sink).

sink() -> receive _ -> sink() end.

quiet_connection(_) ->
    [A, B, C] = Nodes = cluster:start_all([none, none, none]),
    ok = cluster:connect(A, B),
    ok = cluster:connect(A, C),
    ?assertMatch([#{gain := none}, #{gain := none}],
                 cluster:call(A, trunkline, advise, [#{time => 50}])),
    ?assertMatch([#{gain := none, figures := #{suspended := #{share := +0.0}}}],
                 cluster:call(A, trunkline, advise,
                              [#{time => 50, nodes => [cluster:node_of(C)]}])),
    cluster:stop_all(Nodes).

%% A system monitor that is there stays, and it is said that suspensions are not known.
observed_by_another(_) ->
    [A, B] = Nodes = cluster:start_all([none, none]),
    ok = cluster:connect(A, B),
    {[#{figures := #{suspended := undefined}}], true} =
        cluster:call(A, ?MODULE, with_system_monitor, []),
    cluster:stop_all(Nodes).

with_system_monitor() ->
    Settings = {self(), [busy_dist_port]},
    undefined = erlang:system_monitor(Settings),
    %% (Of two options with the same name the first counts.)
    {trunkline:advise([{time, 50}, {time, 0}]), erlang:system_monitor() =:= Settings}.

by_lane(_) ->
    {A, B} = cluster:pair([]),
    ?assertMatch([#{gain := in_use, figures := #{lanes := #{messages := _}}}],
                 cluster:call(A, trunkline, advise,
                              [#{time => 50, nodes => [cluster:node_of(B)]}])),
    cluster:stop_all([A, B]).

%% A node that goes meanwhile is left out.
disconnected(_) ->
    %% (Otherwise global, which has not heard of the end yet, may connect again.)
    [A, B] = Nodes = [cluster:start(none, peer:random_name(Name),
                                    cluster:dist_arguments() ++ ["-connect_all", "false"])
                      || Name <- ["looks", "goes"]],
    ?assertEqual([], advice_without(A, B)),
    ?assertEqual(undefined, cluster:call(A, erlang, system_monitor, [])),
    cluster:stop_all(Nodes).

%% B goes while A looks, which does so while another process is the system monitor's. (On a loaded
%% machine it may have looked already.)
advice_without(A, B) ->
    ok = cluster:connect(A, B),
    Self = self(),
    Node = cluster:node_of(B),
    IsLooking = fun() -> cluster:call(A, erlang, system_monitor, []) =/= undefined end,
    spawn_link(
      fun() -> Self ! cluster:call(A, trunkline, advise, [#{time => 4000, nodes => [Node]}]) end),
    ok = cluster:await(IsLooking),
    true = cluster:call(A, erlang, disconnect_node, [Node]),
    IsInTime = IsLooking(),
    case receive Advice -> Advice end of
        [_] when not IsInTime -> advice_without(A, B);
        Advised -> Advised
    end.

advise_badarg(_) ->
    [?assertError(badarg, trunkline:advise(Bad))
     || Bad <- [#{time => 0}, #{time => 1.0}, #{nodes => all}, #{nodes => "a@b"},
                #{nodes => ["a@b"]}, #{nodes => [a | b]}, #{tyme => 1}, 'a@b',
                [{time, 0}], [time], [{time, 500} | x], [500], "time"]].

%% --- comparing --------------------------------------------------------------------

compared(_) ->
    {A, B} = cluster:pair([]),
    Report = report(A, B, 1500),
    ?assertEqual([calls, one_way, ping], lists:sort(maps:keys(Report))),
    [begin
         ?assertEqual({3, 3}, {length(Plain), length(Lane)}),
         ?assert(lists:all(fun(Figure) -> Figure > 0 end, [Ratio | Plain ++ Lane]))
     end || #{plain := Plain, lane := Lane, ratio := Ratio, clear := Clear} <- maps:values(Report),
            is_boolean(Clear)],
    %% Nothing is left of it at the other node, and the connection is as it was.
    ok = cluster:await(fun() -> cluster:call(B, ?MODULE, processes_of_compare, []) =:= 0 end),
    await_gathering(A, B, true),
    cluster:stop_all([A, B]).

await_gathering(A, B, Gathers) ->
    [cluster:await(fun() ->
                           {ok, Options} = cluster:call(X, net_kernel, getopts,
                                                        [cluster:node_of(Y), [delay_send]]),
                           Options =:= [{delay_send, Gathers}] orelse Options
                   end) || {X, Y} <- [{A, B}, {B, A}]].

%% The same if its caller is killed while plain distribution is measured.
compare_killed(_) ->
    {A, B} = cluster:pair([]),
    Node = cluster:node_of(B),
    await_gathering(A, B, true),
    Caller = cluster:call(A, fun() ->
                                     spawn(fun() -> trunkline:compare(Node, #{force => true}) end)
                             end),
    await_gathering(A, B, false),
    true = cluster:call(A, erlang, exit, [Caller, kill]),
    await_gathering(A, B, true),
    cluster:stop_all([A, B]).

%% (It gives up on a machine that is much too slow.)
report(A, B, Time) ->
    Options = [{time, Time}, {bytes, 100_000_000}, force],
    case cluster:call(A, trunkline, compare, [cluster:node_of(B), Options]) of
        {ok, Report} -> Report;
        {error, timeout} when Time < 10_000 -> report(A, B, 10_000)
    end.

processes_of_compare() ->
    length([P || P <- processes(),
                 {initial_call, {trunkline_compare, _, _}} <- [process_info(P, initial_call)]]).

compare_refuses(_) ->
    [A, B, C] = Nodes = cluster:start_all([[], none, []]),
    ?assertEqual({error, noconnection}, cluster:call(A, trunkline, compare, [cluster:node_of(B)])),
    ?assertEqual({error, noconnection},
                 cluster:call(A, trunkline, await_up, [cluster:node_of(B), 0])),
    ok = cluster:connect(A, B),
    ?assertEqual({error, no_trunkline}, cluster:call(A, trunkline, compare, [cluster:node_of(B)])),
    ?assertEqual({error, no_trunkline},
                 cluster:call(A, trunkline, await_up, [cluster:node_of(B), 0])),
    ?assertEqual({error, stopped}, cluster:call(B, trunkline, compare, [cluster:node_of(A)])),
    ?assertEqual({error, stopped}, cluster:call(B, trunkline, await_up, [cluster:node_of(A), 0])),
    ok = cluster:connect(A, C),
    ok = cluster:await_up(A, C),
    Load = cluster:call(A, ?MODULE, start_load, [cluster:node_of(C)]),
    %% (As in without_trunkline/1.)
    Compare = [cluster:node_of(C), #{time => 1000}],
    cluster:await(fun() -> cluster:call(A, trunkline, compare, Compare) =:= {error, busy} end),
    true = cluster:call(A, erlang, exit, [Load, kill]),
    cluster:stop_all(Nodes).

start_load(Node) ->
    spawn(fun() -> load(spawn(Node, ?MODULE, sink, [])) end).

compare_badarg(_) ->
    [?assertError(badarg, trunkline:compare(Node, Options))
     || {Node, Options} <- [{"a@b", #{}}, {'a@b', [x]}, {'a@b', [{time, 999}]},
                            {'a@b', #{time => 20_000}}, {'a@b', #{bytes => 0}},
                            {'a@b', #{force => yes}}, {'a@b', #{x => 1}}]].

%% It gives up on a node that stands still.
compare_stopped(_) ->
    {A, B} = cluster:pair([]),
    ok = cluster:suspend(B),
    ?assertEqual({error, timeout},
                 cluster:call(A, trunkline, compare, [cluster:node_of(B), #{time => 1000}])),
    cluster:continue(B),
    cluster:stop_all([A, B]).

compare_interrupted(_) ->
    {A, B} = cluster:pair([]),
    Self = self(),
    Node = cluster:node_of(B),
    spawn_link(fun() -> Self ! cluster:call(A, trunkline, compare, [Node, #{force => true}]) end),
    ok = cluster:await(fun() -> cluster:call(B, ?MODULE, processes_of_compare, []) > 0 end),
    true = cluster:call(A, erlang, disconnect_node, [Node]),
    ?assertEqual({error, noconnection}, receive Answer -> Answer end),
    cluster:stop_all([A, B]).
