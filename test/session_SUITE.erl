%% Two sessions against each other, in worlds without a process or a node (session_world): whatever
%% happens, and in whatever order, they agree in the end, nothing arrives twice or out of order or
%% at another incarnation, nobody waits for what will not come, and who leaves in good order loses
%% nothing.
%%
%%     make properties        100,000 histories of each kind
-module(session_SUITE).

-include("counterexample.hrl").

-export([all/0, suite/0]).
-export([in_good_order/1, with_faults/1, any_event/1]).

suite() -> [{timetrap, {hours, 2}}].

all() -> [in_good_order, with_faults, any_event].

check(Property) ->
    Tests = list_to_integer(os:getenv("HISTORIES", "2000")),
    counterexample:check(Tests, 2000, Property).

%% Longer than PropEr's lists are.
many(Type) -> ?SIZED(Size, resize(6 * Size, list(resize(Size, Type)))).

%% Trunkline stops and starts, links are drained, nodes are full, and the connection stays.
in_good_order(_) ->
    check(?ALL({Releases, Commands}, {releases(), many(good())},
               is_map(session_world:final(session_world:run(Releases, Commands))))).

%% Connections break, nodes die, links crash, and patience ends.
with_faults(_) ->
    check(?ALL({Releases, Commands}, {releases(), many(frequency([{20, good()}, {1, bad()}]))},
               is_map(session_world:final(session_world:run(Releases, Commands))))).

releases() -> {release(), release()}.

release() -> oneof([new, new, new, wide, '0.5.0', '0.4.0', ancient]).

good() ->
    frequency([{30, {go, range(0, 1000)}}, {8, {send, peer(), range(1, 3)}},
               {1, {stop, peer()}}, {2, {start, peer()}}, {1, {drain, peer()}},
               {1, {full, peer()}}, {1, {again, peer()}}]).

bad() ->
    frequency([{4, {break, range(0, 20)}}, {4, connect}, {3, {crash, peer()}},
               {2, {kill, peer(), oneof([none, release()])}}, {1, {stall, peer()}},
               {1, {give_up, peer()}}, {1, {unreachable, peer()}}]).

peer() -> oneof([a, b]).

any_event(_) -> ok.
