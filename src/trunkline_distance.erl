%% How far away a peer is: the shortest round trip between two links of late.
%%
%% A loaded machine answers late and is not far away for that; hence the shortest of
%% many. This module decides, and does nothing.
-module(trunkline_distance).

-export([new/0, add/2, round_trip/1, is_far/1]).

-export_type([distance/0, microseconds/0]).

-type microseconds() :: non_neg_integer().
-opaque distance() :: [microseconds()].          % the last ones

%% How many count: with one each ten seconds, a minute. Fewer than ENOUGH say nothing.
-define(LAST, 6).
-define(ENOUGH, 5).
%% us: less than between two cities, more than between two rooms. One connection with
%% the 4 MB that Linux lets it have under way carries 2 GB a second over this distance.
-define(FAR, 2000).

-spec new() -> distance().
new() -> [].

-spec add(microseconds(), distance()) -> distance().
add(RoundTrip, Distance) -> lists:sublist([RoundTrip | Distance], ?LAST).

%% 0 as long as there are not enough to say.
-spec round_trip(distance()) -> microseconds().
round_trip(Distance) when length(Distance) < ?ENOUGH -> 0;
round_trip(Distance) -> lists:min(Distance).

%% A peer to which a round trip takes so long.
-spec is_far(microseconds()) -> boolean().
is_far(RoundTrip) -> RoundTrip >= ?FAR.
