%% Sessions on real nodes whose connection breaks, and that go on over the next one: small messages
%% in both directions, none lost, doubled or out of order. (What else goes by lanes is in
%% resume_SUITE.)
-module(session_breaks_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([under_load/1, in_turn/1, over_connections/1, at_once/1, gone/1, unreachable/1,
         time_is_over/1, link_killed/1, links_killed/1, leaves/1]).

suite() -> [{timetrap, {minutes, 8}}].

all() -> [under_load, in_turn, over_connections, at_once, gone, unreachable, time_is_over,
          link_killed, links_killed, leaves].

-define(LONG, 120_000).
-define(BREAKS, list_to_integer(os:getenv("BREAKS", "10"))).

%% Senders that do not wait for anything but room.
under_load(_) -> breaks([], [50, 3000]).

%% Lanes with little to do, which acknowledge late.
in_turn(_) ->
    {A, B} = cluster:pair(env([])),
    Loads = streams:both_ways(A, B),
    broken(?BREAKS, A, B, fun() -> streams:flowing(Loads, ?LONG) end),
    ?assertEqual(0, streams:finish(Loads, ?LONG)),
    unharmed(A, B).

over_connections(_) ->
    Transport = case cluster:lane_transport() of
                    dist -> tcp;
                    Other -> Other
                end,
    breaks([{lane_transport, Transport}], [50, 3000]).

%% Connections that break as soon as they are made, at either side or at both: the one that is lost
%% may be noticed after the next one.
at_once(_) ->
    {A, B} = cluster:pair(env([])),
    Load = streams:start(A, B, 50),
    Back = streams:start(B, A, 50),
    Test = self(),
    Break = fun(X, Y) ->
                    ok = cluster:call(X, fun() -> break(cluster:node_of(Y), 5 * ?BREAKS) end),
                    Test ! {self(), done}
            end,
    Breakers = [spawn_link(fun() -> Break(X, Y) end) || {X, Y} <- [{A, B}, {B, A}]],
    [receive {Breaker, done} -> ok after ?LONG -> error(timeout) end || Breaker <- Breakers],
    [streams:flowing(L, X, ?LONG) || {L, X} <- [{Load, B}, {Back, A}]],
    ?assertEqual(0, streams:finish([{A, B, Load}, {B, A, Back}], ?LONG)),
    unharmed(A, B).

%% Runs at the node.
break(_, 0) -> ok;
break(Node, N) ->
    cluster:await(fun() -> erlang:disconnect_node(Node) end, ?LONG),
    break(Node, N - 1).

%% That a node has ended is known as soon as it is without a session that could be resumed.
gone(_) ->
    {A, B} = cluster:pair(env([{resume_time, 3_600_000}])),
    _ = streams:start(A, B, 50),
    NodeB = cluster:node_of(B),
    cluster:kill(B),
    cluster:await(fun() ->
                          case cluster:info(A, B) of
                              #{state := down} -> true;
                              Other -> {NodeB, Other}
                          end
                  end, ?LONG),
    ?assertMatch(#{resumed := 0}, cluster:info(A, B)),
    cluster:stop_all([A, B]).

%% A host that cannot be reached, as a router says, has not said that the node is gone.
unreachable(_) ->
    case wan:possible() of
        {error, Why} ->
            {skip, Why};
        ok ->
            Wan = wan:open([a, b], [{a, b}]),
            Args = cluster:dist_arguments(),
            [A, B] = [cluster:start_at(Wan, Site, env([]), Args) || Site <- [a, b]],
            cluster:connect(A, B),
            %% (A certificate of the tests is for one host: with TLS, they use the distribution.)
            [cluster:await_lanes(X, Y) || {X, Y} <- [{A, B}, {B, A}]],
            Load = streams:start(A, B, 50),
            streams:flowing(Load, B, ?LONG),
            Route = string:trim(wan:run(Wan, a, "ip route show " ++ wan:address(2))),
            "" = wan:run(Wan, a, "ip route replace unreachable " ++ wan:address(2)),
            true = cluster:call(A, erlang, disconnect_node, [cluster:node_of(B)]),
            ?assertNot(says_gone(A, B)),
            cluster:await_state(A, B, suspended),
            "" = wan:run(Wan, a, "ip route replace " ++ Route),
            streams:flowing(Load, B, ?LONG),
            ?assertEqual(0, streams:finish(Load, A, B, ?LONG)),
            ?assertMatch(#{resumed := 1, sessions := 1}, cluster:info(A, B)),
            unharmed(A, B),
            wan:close(Wan)
    end.

%% What B's host says to A. (The link asks as soon as it cannot connect.)
says_gone(A, B) ->
    NodeB = cluster:node_of(B),
    cluster:call(A, fun() ->
                            Ref = trunkline_presence:ask(NodeB),
                            receive
                                {'DOWN', Ref, process, _, Reason} ->
                                    trunkline_presence:is_gone(Reason)
                            end
                    end).

%% What was not acknowledged by then is counted, and the nodes begin anew.
time_is_over(_) ->
    {A, B} = cluster:pair(env([{resume_time, 1}])),
    suspended(A, B, fun() -> cluster:await_state(A, B, down) end),
    cluster:await_up(A, B),
    [?assertMatch(#{resumed := 0, sessions := 2}, cluster:info(X, Y))
     || {X, Y} <- [{A, B}, {B, A}]],
    exchanged(A, B),
    cluster:stop_all([A, B]).

%% Then its successor has another session.
link_killed(_) ->
    {A, B} = cluster:pair(env([])),
    suspended(A, B, fun() ->
                            #{link := Link} = cluster:call(A, trunkline_peers, lookup,
                                                           [cluster:node_of(B)]),
                            true = cluster:call(A, erlang, exit, [Link, kill])
                    end),
    [cluster:await(fun() -> count(sessions, X, Y) > 1 end, ?LONG) || {X, Y} <- [{A, B}, {B, A}]],
    cluster:await_up(A, B),
    exchanged(A, B),
    cluster:stop_all([A, B]).

%% While there is nobody who could hear of the next connection, nor of what the peer says, the
%% session lasts.
links_killed(_) ->
    {A, B} = cluster:pair(env([])),
    Load = streams:start(A, B, 50),
    Back = streams:start(B, A, 50),
    ok = cluster:call(B, sys, suspend, [trunkline_sup]),
    true = cluster:call(B, fun() -> exit(whereis(trunkline_links), kill) end),
    true = cluster:call(A, erlang, disconnect_node, [cluster:node_of(B)]),
    cluster:await(fun() -> lists:member(cluster:node_of(B), cluster:call(A, erlang, nodes, [])) end,
                  ?LONG),
    ok = cluster:call(B, sys, resume, [trunkline_sup]),
    cluster:await(fun() -> count(resumed, A, B) =:= 1 andalso count(resumed, B, A) =:= 1 end,
                  ?LONG),
    ?assertEqual(0, streams:finish([{A, B, Load}, {B, A, Back}], ?LONG)),
    unharmed(A, B).

%% Who leaves while the session is suspended waits until it goes on. All arrives.
leaves(_) ->
    [begin
         {A, B} = cluster:pair(env([])),
         Load = streams:trickle(A, B, 50),
         streams:flowing(Load, B, ?LONG),
         Left = make_ref(),
         Test = self(),
         suspended(A, B, fun() ->
                                 spawn_link(fun() -> Test ! {Left, Leave(A)} end),
                                 cluster:await(fun() -> is_leaving(A, B) end, ?LONG)
                         end),
         receive {Left, ok} -> ok after ?LONG -> error({timeout, cluster:info(A, B)}) end,
         ?assertEqual(0, streams:finish(Load, A, B, ?LONG)),
         cluster:stop_all([A, B])
     end || Leave <- [fun(A) -> cluster:call(A, trunkline, drain, []) end,
                      fun(A) -> cluster:call(A, cluster, stop_trunkline, []) end]].

%% The link has been asked, and has not begun.
is_leaving(A, B) ->
    #{link := Link} = cluster:call(A, trunkline_peers, lookup, [cluster:node_of(B)]),
    State = cluster:call(A, sys, get_state, [Link]),
    lists:any(fun(Timers) -> is_map(Timers) andalso is_map_key(patience, Timers) end,
              tuple_to_list(State)).

%% B stands still, so that there is no connection, and A knows.
suspended(A, B, Meanwhile) ->
    cluster:suspend(B),
    true = cluster:call(A, erlang, disconnect_node, [cluster:node_of(B)]),
    cluster:await(fun() -> lists:member(maps:get(state, cluster:info(A, B)), [suspended, down]) end,
                  ?LONG),
    Result = Meanwhile(),
    cluster:continue(B),
    Result.

exchanged(A, B) -> exchange:both_ways(A, B).

breaks(Env, [Bytes, BytesBack]) ->
    {A, B} = cluster:pair(env(Env)),
    Load = streams:start(A, B, Bytes),
    Back = streams:start(B, A, BytesBack),
    broken(?BREAKS, A, B, fun() ->
                                  streams:flowing(Load, B, ?LONG),
                                  streams:flowing(Back, A, ?LONG)
                          end),
    ?assertEqual(0, streams:finish([{A, B, Load}, {B, A, Back}], ?LONG)),
    %% What was in flight at a break was sent again, and counted.
    Again = [N || {X, Y} <- [{A, B}, {B, A}], #{lanes := Lanes} <- [cluster:info(X, Y)],
                  #{sent_again := N} <- Lanes],
    ?assert(lists:sum(Again) > 0),
    unharmed(A, B).

env(Env) -> [{resume_time, 60_000}, {lanes, 3}] ++ Env.

broken(Times, A, B, Flowing) ->
    [begin
         Flowing(),
         Before = [{X, Y, count(X, Y)} || {X, Y} <- [{A, B}, {B, A}]],
         {From, To} = case N rem 2 of
                          0 -> {A, B};
                          1 -> {B, A}
                      end,
         true = cluster:call(From, erlang, disconnect_node, [cluster:node_of(To)]),
         lists:foreach(fun({X, Y, Resumed}) ->
                               cluster:await(fun() -> count(X, Y) > Resumed end, ?LONG)
                       end, Before),
         Flowing()
     end || N <- lists:seq(1, Times)].

count(X, Y) -> count(resumed, X, Y).

count(Field, X, Y) -> maps:get(Field, cluster:info(X, Y)).

%% In the first session that they had, and nothing is kept when all has arrived.
unharmed(A, B) ->
    [begin
         #{state := State, sessions := Sessions, lost := Lost} = cluster:info(X, Y),
         ?assertEqual({up, 1, [0]}, {State, Sessions, lists:usort(maps:values(Lost))}),
         cluster:await(fun() ->
                               #{lanes := Lanes} = cluster:info(X, Y),
                               [0] =:= lists:usort([Kept || #{kept_bytes := Kept} <- Lanes])
                       end, ?LONG)
     end || {X, Y} <- [{A, B}, {B, A}]],
    cluster:stop_all([A, B]).
