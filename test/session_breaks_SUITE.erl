%% Sessions on real nodes whose connection breaks, and that go on over the next one: small messages
%% in both directions, none lost, doubled or out of order. (What else goes by lanes is in
%% resume_SUITE.)
-module(session_breaks_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([under_load/1, in_turn/1, over_connections/1]).

suite() -> [{timetrap, {minutes, 8}}].

all() -> [under_load, in_turn, over_connections].

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

breaks(Env, [Bytes, BytesBack]) ->
    {A, B} = cluster:pair(env(Env)),
    Load = streams:start(A, B, Bytes),
    Back = streams:start(B, A, BytesBack),
    broken(?BREAKS, A, B, fun() ->
                                  streams:flowing(Load, B, ?LONG),
                                  streams:flowing(Back, A, ?LONG)
                          end),
    ?assertEqual(0, streams:finish(Load, A, B, ?LONG)),
    ?assertEqual(0, streams:finish(Back, B, A, ?LONG)),
    unharmed(A, B).

env(Env) -> [{resume_time, 60_000}, {lanes, 3} | Env].

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

count(X, Y) -> maps:get(resumed, info(X, Y)).

%% In the first session that they had, and nothing is kept when all has arrived.
unharmed(A, B) ->
    [begin
         #{state := State, sessions := Sessions, lost := Lost} = info(X, Y),
         ?assertEqual({up, 1, [0]}, {State, Sessions, lists:usort(maps:values(Lost))}),
         cluster:await(fun() ->
                               #{lanes := Lanes} = info(X, Y),
                               [0] =:= lists:usort([Kept || #{kept_bytes := Kept} <- Lanes])
                       end, ?LONG)
     end || {X, Y} <- [{A, B}, {B, A}]],
    cluster:stop_all([A, B]).

info(X, Y) -> cluster:call(X, trunkline, info, [cluster:node_of(Y)]).
