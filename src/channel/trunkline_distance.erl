%% How far away a peer is, from round trips between two links, or their kernels.
%%
%% A loaded machine answers late, however near it is. Hence round trips are taken from the kernel if
%% it reports them (see trunkline_reach), and the shortest of many counts. The windows follow the
%% shortest of the last few, since a network route may change. Whether the peer is far is decided by
%% the shortest on this connection, since high load may last for an hour.
%%
%% This module is pure: it decides, and has no side effects.
-module(trunkline_distance).
-moduledoc false.

-export([new/0, add/2, round_trip/1, is_far/1]).

-export_type([distance/0, microseconds/0]).

-type microseconds() :: non_neg_integer().
-record(distance, {shortest = infinity :: microseconds() | infinity,
                   last = [] :: [microseconds()]}).
-opaque distance() :: #distance{}.

%% The number of the last few: with one every ten seconds, two minutes of use. Fewer than ENOUGH
%% say nothing.
-define(LAST, 12).
-define(ENOUGH, 5).
%% us: less than between two cities, more than between two rooms. One connection with
%% the 4 MB that Linux lets it have under way carries 2 GB a second over this distance.
-define(FAR, 2000).

-spec new() -> distance().
new() -> #distance{}.

-spec add(microseconds(), distance()) -> distance().
add(RoundTrip, #distance{shortest = Shortest, last = Last}) ->
    #distance{shortest = min(RoundTrip, Shortest), last = lists:sublist([RoundTrip | Last], ?LAST)}.

%% 0 as long as there are not enough of them.
-spec round_trip(distance()) -> microseconds().
round_trip(#distance{last = Last}) when length(Last) < ?ENOUGH -> 0;
round_trip(#distance{last = Last}) -> lists:min(Last).

%% Whether a peer is far, or one with that round trip.
-spec is_far(distance() | microseconds()) -> boolean().
is_far(#distance{shortest = Shortest} = Distance) ->
    round_trip(Distance) > 0 andalso Shortest >= ?FAR;
is_far(RoundTrip) -> RoundTrip >= ?FAR.
