%% Nodes that are far from each other: in network namespaces, with an emulated link
%% between them (tools/wan). What arrives is in order; a link that is slow, loses
%% packets, stands still or disappears costs time and nothing else, unless the
%% distribution itself gives the node up.
-module(distance_SUITE).

-include_lib("stdlib/include/assert.hrl").
-include("../src/gate/trunkline_route.hrl").

-compile([export_all]).

suite() -> [{timetrap, {minutes, 10}}].

all() ->
    [far_and_near, losses_move_it, there_and_back, congestion_control, window_follows,
     one_sender_uses_all, loses, stalls, asymmetric, disappears_for_a_while, disappears_for_good,
     connections_break, trunk_killed, bursts, slow_peer, no_listener, found_to_be_far].

-define(LONG, 120_000).
-define(LINK, {a, b}).
%% Where a link stands still for as long as it takes, and the distribution must not give up.
-define(PATIENT, ["-kernel", "net_ticktime", "600"]).

%% What was left out is said, and why.
init_per_suite(Config) ->
    case wan:possible() of
        ok -> Config;
        {error, Why} -> {skip, Why}
    end.

end_per_suite(_) -> ok.

%% --- what goes where --------------------------------------------------------------

-define(AUTO, {lane_transport, auto}).

%% For a peer that is far there is a connection ready, next door there is none. While nothing
%% is wrong with it, the distribution carries the batches.
far_and_near(_) ->
    {Wan, A, B} = sites(#{delay => 10}, [?AUTO]),
    await_ready(A, B),
    #{round_trip := RoundTrip} = cluster:info(A, B),
    ?assert(RoundTrip >= 19_000),
    everything(A, B, fun() -> ok end),
    %% On a loaded machine the emulated link may be so late that TCP sends a packet again.
    #{batches := Batches} = cluster:info(A, B),
    case cluster:call(A, trunkline_socket, sample, [cluster:node_of(B)]) of
        #{retransmitted := 0, limited := L, receiver_limited := R} when L + R < 500_000 ->
            ?assertMatch(#{by := distribution}, Batches);
        #{} = Sample ->
            ct:log("something has been wrong with the distribution: ~p", [Sample])
    end,
    close(Wan, [A, B]),

    {Wan1, A1, B1} = sites(#{}, [?AUTO]),
    %% (What is asked later may tell of later round trips.)
    case await_round_trip(A1, B1) of
        Time when Time < 2000 ->
            ?assertMatch(#{batches := #{by := distribution, connections := 0}},
                         cluster:info(A1, B1));
        Time ->
            ct:log("this machine is so slow (~b us) that next door is far", [Time])
    end,
    close(Wan1, [A1, B1]).

%% When packets are lost, batches leave it, by themselves.
losses_move_it(_) ->
    {Wan, A, B} = sites(#{delay => 5}, [?AUTO]),
    await_ready(A, B),
    Sessions = sessions(A, B),
    everything(A, B, fun() ->
                             ok = wan:set(Wan, ?LINK, #{loss => 2}),
                             await_far(A, B)
                     end),
    unharmed(Sessions, A, B),
    close(Wan, [A, B]).

%% From one way to the other, often, and with what is under way on both.
there_and_back(_) ->
    {Wan, A, B} = sites(#{delay => 5}, []),
    await_far(A, B),
    Sessions = sessions(A, B),
    %% The link says now and then, after a ping, what it wants: connections.
    Go = fun(Way) ->
                 cluster:await(fun() -> case cluster:info(A, B) of
                                            #{batches := #{by := Way}} -> true;
                                            Other -> extend(A, Way), Other
                                        end end, ?LONG)
         end,
    everything(A, B, fun() ->
                             lists:foreach(fun(_) -> Go(distribution), Go(connections) end,
                                           lists:seq(1, 20))
                     end),
    unharmed(Sessions, A, B),
    close(Wan, [A, B]).

extend(Node, Way) ->
    ok = cluster:call(Node, fun() ->
                                    [trunkline_lane:way(L, Way)
                                     || {_, R} <- trunkline_route:all(),
                                        L <- tuple_to_list(element(#route.lanes, R))],
                                    ok
                            end).

%% The option, and what is in use, as info/1 says it.
congestion_control(_) ->
    lists:foreach(
      fun({Env, Expected}) ->
              {Wan, A, B} = sites(#{delay => 5}, Env),
              await_far(A, B),
              ?assertMatch(#{batches := #{congestion_control := Expected}}, cluster:info(A, B)),
              %% The first one may have been quicker by distribution.
              cluster:await(fun() ->
                                    large(A, B),
                                    case cluster:info(A, B) of
                                        #{large := #{by := connections}} -> true;
                                        Other -> Other
                                    end
                            end, ?LONG),
              ?assertMatch(#{large := #{congestion_control := Expected}}, cluster:info(A, B)),
              close(Wan, [A, B])
      end, [{[{congestion_control, default}], <<"cubic">>},
            {[{congestion_control, reno}], <<"reno">>}
            | [{[], <<"bbr">>} || has_bbr()]]).

has_bbr() ->
    {ok, Names} = file:read_file("/proc/sys/net/ipv4/tcp_available_congestion_control"),
    lists:member(<<"bbr">>, string:lexemes(Names, " \n")).

%% While messages wait for it, a lane's window grows with what the way can hold, and
%% not beyond its bound. (At this distance 5 MB a second make it grow, which any machine can do.)
window_follows(_) ->
    First = 4 bsl 20,
    lists:foreach(
      fun({Most, Check}) ->
              {Wan, A, B} = sites(#{delay => 200}, [{window_bytes, Most}, {lanes, 1}]),
              await_far(A, B),
              Load = load(A, B, 30_000),
              cluster:await(fun() -> Check(windows(A, B)) orelse windows(A, B) end, ?LONG),
              flowing(Load, B),
              ?assert(lists:max(windows(A, B)) =< Most),
              ?assertEqual(0, finish(Load, A, B)),
              close(Wan, [A, B])
      end, [{64 bsl 20, fun([Window]) -> Window > 2 * First end},
            {100_000, fun([Window]) -> Window =:= 100_000 end}]).

windows(A, B) -> [Window || #{window_bytes := Window} <- maps:get(lanes, cluster:info(A, B))].

%% One lane's batches go by many connections, and arrive in order.
one_sender_uses_all(_) ->
    {Wan, A, B} =
        sites(#{delay => 10, loss => 1}, [{congestion_control, default}, {far_connections, 5}]),
    await_far(A, B),
    [To] = cluster:call(B, traffic, start_watchers, [1]),
    Stream = cluster:call(A, traffic, stream, [To, 1, 3000]),
    cluster:await(fun() -> connections(A, B) =:= 5 orelse connections(A, B) end, ?LONG),
    ?assertEqual(0, finish({[To], [{1, To, Stream}]}, A, B)),
    close(Wan, [A, B]).

connections(A, B) ->
    #{batches := #{connections := N}} = cluster:info(A, B),
    N.

%% --- what links do ------------------------------------------------------------------

%% One packet in twenty.
loses(_) ->
    {Wan, A, B} = sites(#{delay => 5}, [?AUTO]),
    await_ready(A, B),
    Sessions = sessions(A, B),
    ok = wan:set(Wan, ?LINK, #{loss => 5}),
    everything(A, B, fun() -> ok end),
    #{lost := Lost} = wan:stats(Wan, ?LINK),
    ?assert(Lost > 0),
    unharmed(Sessions, A, B),
    close(Wan, [A, B]).

%% For five seconds nothing comes out of the link. Connections outlive it. (TCP's next attempts
%% are 6 and 13 seconds after the first, and the end of the stall may be late.)
stalls(_) ->
    {Wan, [A, B]} =
        all_sites([a, b], [?LINK], #{delay => 5}, [{connection_timeout, 30_000}], ?PATIENT),
    await_far(A, B),
    Sessions = sessions(A, B),
    Before = connections(A, B),
    everything(A, B, fun() ->
                             ok = wan:set(Wan, ?LINK, #{stall => 1}),
                             receive after 5000 -> ok end,        % this is what is tested
                             ok = wan:set(Wan, ?LINK, #{stall => 0})
                     end),
    ?assert(connections(A, B) >= Before),
    unharmed(Sessions, A, B),
    close(Wan, [A, B]).

%% Fast there, slow back; and the other way round.
asymmetric(_) ->
    lists:foreach(
      fun({There, Back}) ->
              {Wan, A, B} = sites(#{}, [], fun(W) ->
                                                   ok = wan:set(W, ?LINK, a, #{delay => There}),
                                                   ok = wan:set(W, ?LINK, b, #{delay => Back})
                                           end),
              await_far(A, B),
              Sessions = sessions(A, B),
              RoundTrip = await_round_trip(A, B),
              ?assert(RoundTrip >= (There + Back) * 1000 - 1000),
              everything(A, B, fun() -> ok end),
              unharmed(Sessions, A, B),
              close(Wan, [A, B])
      end, [{1, 60}, {60, 1}]).

%% Nothing comes through, for longer than connections live, and not as long as the
%% distribution waits. All of it arrives.
disappears_for_a_while(_) ->
    {Wan, [A, B]} =
        all_sites([a, b], [?LINK], #{delay => 5}, [{connection_timeout, 1000}], ?PATIENT),
    await_far(A, B),
    Sessions = sessions(A, B),
    everything(A, B,
               fun() ->
                       ok = wan:set(Wan, ?LINK, #{loss => 100}),
                       %% A dead path is noticed by its connections, in seconds.
                       cluster:await(fun() -> connections(A, B) =:= 0 orelse connections(A, B) end,
                                     ?LONG),
                       ok = wan:set(Wan, ?LINK, #{loss => 0})
               end),
    %% They come back by themselves.
    await_far(A, B),
    unharmed(Sessions, A, B),
    close(Wan, [A, B]).

%% Until the distribution gives the node up, and then it is there again. What was
%% accepted before arrives in order, or is counted as lost. Who sends to others
%% meanwhile does not notice.
disappears_for_good(_) ->
    {Wan, [A, B, C]} = all_sites([a, b, c], [{a, b}, {a, c}], #{delay => 5},
                                 [{connection_timeout, 2000}], ["-kernel", "net_ticktime", "8"]),
    cluster:connect(A, C),
    await_far(A, B),
    await_far(A, C),
    Load = load(A, B),
    Other = load(A, C),
    lists:foreach(
      fun(_) ->
              ok = wan:set(Wan, {a, b}, #{loss => 100}),
              cluster:await(fun() -> state(A, B) =:= down orelse state(A, B) end, ?LONG),
              flowing(Other, C),
              ok = wan:set(Wan, {a, b}, #{loss => 0}),
              %% The streams' own messages set it up again.
              await_far(A, B),
              flowing(Load, B)
      end, [1, 2]),
    Missing = finish(Load, A, B),
    #{lost := Lost} = cluster:info(A, B),
    ct:log("~b messages are missing; counted as lost: ~p", [Missing, Lost]),
    ?assert(Missing > 0),
    ?assert(Missing =< lists:sum(maps:values(Lost))),
    ?assertEqual(0, finish(Other, A, C)),
    close(Wan, [A, B, C]).

%% Each connection is cut in turn, at either end. Nothing is lost, and nothing comes
%% twice or out of order.
connections_break(_) ->
    {Wan, A, B} = sites(#{delay => 5}, [{far_connections, 3}]),
    await_far(A, B),
    Sessions = sessions(A, B),
    everything(A, B,
               fun() ->
                       lists:foreach(
                         fun({Node, What}) ->
                                 await_far(A, B),
                                 cluster:await(
                                   fun() ->
                                           cluster:call(Node, cluster, break_channels, [What]) > 0
                                   end, ?LONG)
                         end, lists:append(lists:duplicate(5, [{A, writers}, {B, sockets},
                                                               {B, writers}, {A, sockets}])))
               end),
    unharmed(Sessions, A, B),
    close(Wan, [A, B]).

%% With the trunk the link goes. What its lanes held is counted, the next link goes on.
trunk_killed(_) ->
    {Wan, A, B} = sites(#{delay => 5}, []),
    await_far(A, B),
    ok = cluster:call(A, logger, set_primary_config, [level, none]),
    Load = load(A, B),
    lists:foreach(
      fun(_) ->
              [_] = Trunks = trunks(A),
              ok = cluster:call(A, lists, foreach, [fun trunkline_process:kill/1, Trunks]),
              %% Up may still be the session of those that have been killed.
              cluster:await(
                fun() -> New = trunks(A),
                         length(New -- Trunks) =:= 1 andalso length(New) =:= 1 orelse {Trunks, New}
                end, ?LONG),
              await_far(A, B),
              flowing(Load, B)
      end, [1, 2, 3]),
    Missing = finish(Load, A, B),
    #{lost := Lost} = cluster:info(A, B),
    ct:log("~b messages are missing; counted as lost: ~p", [Missing, Lost]),
    ?assert(Missing =< lists:sum(maps:values(Lost))),
    close(Wan, [A, B]).

trunks(Node) ->
    cluster:call(Node, fun() -> [P || P <- processes(), is_trunk(P)] end).

is_trunk(Pid) ->
    case process_info(Pid, dictionary) of
        {dictionary, D} -> proplists:get_value('$initial_call', D) =:= {trunkline_trunk, init, 1};
        undefined -> false
    end.

%% A far peer's connection is given less at once. One that was given more than that, before the peer
%% was found to be far, goes on, though there cannot be another one beside it.
found_to_be_far(_) ->
    {Wan, A, B} = sites(#{delay => 5}, [{lanes, 1}, {far_connections, 1}]),
    await_far(A, B),
    %% From here on the link measures it each ten seconds.
    _ = await_round_trip(A, B),
    [To] = cluster:call(B, traffic, start_watchers, [1]),
    Send = fun(Far, Numbers) ->
                   ok = cluster:call(
                          A, fun() ->
                                     #route{stats = Stats} = trunkline_route:lookup(node(To)),
                                     ok = trunkline_stats:put(Stats, peer, far, Far),
                                     [trunkline:send(To, {from, 1, N, <<0:800>>}) || N <- Numbers],
                                     ok
                             end),
                   cluster:await(
                     fun() -> case {lists:last(Numbers), cluster:call(B, traffic, summary, [To])} of
                                  {N, #{1 := {N, N, []}}} -> true;
                                  Other -> Other
                              end end)
           end,
    Send(0, lists:seq(1, 900)),
    Send(1, lists:seq(901, 1800)),
    close(Wan, [A, B]).

%% Pauses, in which connections without BBR say that they are there; and what comes
%% after them is in its place.
bursts(_) ->
    {Wan, A, B} = sites(#{delay => 10}, [{congestion_control, default}]),
    await_far(A, B),
    [To] = cluster:call(B, traffic, start_watchers, [1]),
    Last = lists:foldl(
             fun(_, From) ->
                     ok = cluster:call(A,
                                       fun() ->
                                               lists:foreach(
                                                 fun(N) -> trunkline:send(To, {from, 1, N, []}) end,
                                                 lists:seq(From, From + 999))
                                       end),
                     Arrived = From + 999,
                     cluster:await(fun() -> case cluster:call(B, traffic, summary, [To]) of
                                                #{1 := {_, Arrived, _}} -> true;
                                                Other -> Other
                                            end end, ?LONG),
                     _ = wan:stats(Wan, ?LINK),
                     cluster:await(fun() -> #{packets := P} = wan:stats(Wan, ?LINK), P > 0 end,
                                   ?LONG),
                     From + 1000
             end, 1, lists:seq(1, 3)),
    N = Last - 1,
    ?assertMatch(#{1 := {N, N, []}}, cluster:call(B, traffic, summary, [To])),
    close(Wan, [A, B]).

%% One peer's link stands still, with all that its lanes may hold; the other's messages go on.
slow_peer(_) ->
    {Wan, [A, B, C]} = all_sites([a, b, c], [{a, b}, {a, c}], #{delay => 5},
                                 [{connection_timeout, 600_000}], ?PATIENT),
    cluster:connect(A, C),
    await_far(A, B),
    await_far(A, C),
    Slow = load(A, B),
    Fast = load(A, C),
    ok = wan:set(Wan, {a, b}, #{stall => 1}),
    %% Its senders wait.
    cluster:await(fun() -> all_wait(A, Slow) end, ?LONG),
    lists:foreach(fun(_) -> flowing(Fast, C) end, lists:seq(1, 20)),
    %% (At first they may have been let in once more, and be on their way back.)
    cluster:await(fun() -> all_wait(A, Slow) end, ?LONG),
    [To] = cluster:call(C, traffic, start_watchers, [1]),
    [normal] = cluster:call(A, traffic, play_all,
                            [[{7, [{call, To, 10} || _ <- lists:seq(1, 50)]}]]),
    ok = wan:set(Wan, {a, b}, #{stall => 0}),
    flowing(Slow, B),
    ?assertEqual(0, streams:finish([{A, B, Slow}, {A, C, Fast}], ?LONG)),
    close(Wan, [A, B, C]).

all_wait(A, {_, Streams}) ->
    Pids = [P || {_, _, P} <- Streams],
    lists:all(
      fun(Trace) -> lists:keymember(trunkline_room, 1, Trace) end,
      cluster:call(A, fun() -> [element(2, process_info(P, current_stacktrace)) || P <- Pids] end)).

%% Where nobody listens, batches stay where they are. (The only port is epmd's.)
no_listener(_) ->
    {Wan, [A, B]} = all_sites([a, b], [{a, b}], #{delay => 5},
                              [{connection_timeout, 1000}, {listen_ports, {4369, 4369}}], []),
    ok = cluster:call(A, logger, set_primary_config, [level, none]),
    ok = cluster:call(B, logger, set_primary_config, [level, none]),
    _ = await_round_trip(A, B),
    Sessions = sessions(A, B),
    everything(A, B, fun() -> ok end),
    ?assertMatch(#{batches := #{by := distribution}, large := #{connections := 0}},
                 cluster:info(A, B)),
    unharmed(Sessions, A, B),
    close(Wan, [A, B]).

%% --- sites ------------------------------------------------------------------------

sites(Settings, Env) -> sites(Settings, Env, fun(_) -> ok end).

sites(Settings, Env, Prepare) ->
    {Wan, [A, B]} = all_sites([a, b], [?LINK], Settings, Env, [], Prepare),
    {Wan, A, B}.

all_sites(Sites, Links, Settings, Env, Args) ->
    all_sites(Sites, Links, Settings, Env, Args, fun(_) -> ok end).

%% Connected, and up.
all_sites(Sites, Links, Settings, Env, Args, Prepare) ->
    Wan = wan:open(Sites, Links),
    lists:foreach(fun(Link) -> ok = wan:set(Wan, Link, Settings) end, Links),
    Prepare(Wan),
    Nodes = [A, B | _] = [start(Wan, Site, Env, Args) || Site <- Sites],
    cluster:connect(A, B),
    cluster:await_lanes(A, B),
    cluster:await_lanes(B, A),
    {Wan, Nodes}.

%% Most of what is tested here concerns connections.
start(Wan, Site, Env, Args) ->
    cluster:start_at(Wan, Site, [{lane_transport, tcp}, {far_connections, 16} | Env], Args).

close(Wan, Nodes) ->
    cluster:stop_all(Nodes),
    ok = wan:close(Wan).

state(A, B) -> maps:get(state, cluster:info(A, B)).

sessions(A, B) -> [anew:sessions(A, B), anew:sessions(B, A)].

await_round_trip(A, B) ->
    cluster:await(fun() -> is_integer(maps:get(round_trip, cluster:info(A, B))) end, ?LONG),
    maps:get(round_trip, cluster:info(A, B)).

%% It is known how far it is.
await_ready(A, B) ->
    lists:foreach(fun({From, To}) ->
                          cluster:await(fun() ->
                                                case cluster:info(From, To) of
                                                    #{state := up, round_trip := Time,
                                                      batches := #{connections := N}}
                                                      when is_integer(Time), N > 0 -> true;
                                                    Other -> Other
                                                end
                                        end, ?LONG)
                  end, [{A, B}, {B, A}]).

%% Batches go by connections.
await_far(A, B) ->
    lists:foreach(
      fun({From, To}) ->
              cluster:await(fun() ->
                                    case cluster:info(From, To) of
                                        #{state := up, batches := #{by := connections}} -> true;
                                        Other -> Other
                                    end
                            end, ?LONG)
      end, [{A, B}, {B, A}]).

%% Nothing has been lost, and nothing started anew.
unharmed(Sessions, A, B) ->
    ?assertEqual(Sessions, sessions(A, B)),
    lists:foreach(fun({From, To}) ->
                          #{lost := Lost} = cluster:info(From, To),
                          ?assertEqual([0], lists:usort(maps:values(Lost)))
                  end, [{A, B}, {B, A}]).

%% --- traffic -----------------------------------------------------------------------

%% Small messages and large ones, there and back, and calls, while Fun runs, and some
%% time before and after. All arrive, once, in order and whole.
everything(A, B, Fun) ->
    There = load(A, B),
    Back = load(B, A),
    [Freight] = cluster:call(B, freight, start_receivers, [1]),
    Large = cluster:call(A, freight, stream, [Freight, 1, [10, 200_000, 10, 10, 1_500_000]]),
    [Server] = cluster:call(B, traffic, start_watchers, [1]),
    Callers = spawn_callers(A, Server),
    Fun(),
    flowing(There, B),
    flowing(Back, A),
    ?assertEqual(0, streams:finish([{A, B, There}, {B, A, Back}], ?LONG)),
    N = cluster:call(A, traffic, stop_stream, [Large]),
    cluster:await(fun() -> case cluster:call(B, freight, summary, [Freight]) of
                               #{1 := {N, _, _}} -> true;
                               Other -> {N, Other}
                           end end, ?LONG),
    ?assertMatch(#{1 := {N, N, []}}, cluster:call(B, freight, summary, [Freight])),
    %% Their calls began before whatever has happened.
    receive
        {called, Callers, Reasons} -> ?assertEqual([normal], lists:usort(Reasons))
    after ?LONG -> error(calls)
    end.

%% 20 processes, each of which makes calls one after the other.
spawn_callers(A, Server) ->
    Test = self(),
    spawn_link(fun() ->
                       Scripts = [{Id, [{call, Server, 10} || _ <- lists:seq(1, 30)]}
                                  || Id <- lists:seq(1, 20)],
                       Test ! {called, self(), cluster:call(A, traffic, play_all, [Scripts])}
               end).

large(A, B) ->
    [To] = cluster:call(B, freight, start_receivers, [1]),
    [normal] = cluster:call(A, freight, play_all, [[{1, [{send, To, 100_000}]}]]),
    cluster:await(fun() -> cluster:call(B, freight, count, [To]) =:= 1 end, ?LONG).

load(A, B) -> load(A, B, 50).

load(A, B, Bytes) ->
    Load = streams:start(A, B, Bytes),
    flowing(Load, B),
    Load.

flowing(Load, B) -> streams:flowing(Load, B, ?LONG).

finish(Load, A, B) -> streams:finish(Load, A, B, ?LONG).
