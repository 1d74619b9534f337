%% The route table: from a node to its lanes, with one lookup and no copying.
%%
%% A route is a persistent term, since reading one costs 20 ns where a row of
%% an ETS table costs 140 (OTP 25, see docs/lab/how-it-works.md). Replacing or
%% erasing a persistent term makes every process of the node collect garbage, so
%% that must not happen each time a node comes or goes. It does not: a route is
%% published when Trunkline first answers at a peer and stays as it is while
%% nodes come and go. What does change - whether the lanes may be used now - is
%% in the route's gate. A route is replaced only after a link or a lane was
%% killed, or when a peer comes back with another number of lanes, and erased
%% when the application stops or the peer has been gone for a long time.
-module(trunkline_route).
-moduledoc false.

-include("trunkline_route.hrl").

-export([publish/2, withdraw/1, lookup/1, all/0, levels/1, set_path/2, is_open/1, bulk_ix/1,
         bulk_level/1, limit/2]).

-export_type([route/0]).

-type route() :: #route{}.

-spec publish(node(), route()) -> ok.
publish(Node, #route{} = Route) ->
    persistent_term:put(?ROUTE(Node), Route).

-spec withdraw(node()) -> boolean().
withdraw(Node) ->
    persistent_term:erase(?ROUTE(Node)).

-spec lookup(node()) -> route() | none.
lookup(Node) ->
    persistent_term:get(?ROUTE(Node), none).

-spec all() -> [{node(), route()}].
all() ->
    [{Node, Route} || {?ROUTE(Node), #route{} = Route} <- persistent_term:get()].

%% How full the lanes are. Without a route there are none.
-spec levels(route() | none) -> [{Lane :: pos_integer(), trunkline_gate:charge()}].
levels(none) ->
    [];
levels(#route{gate = Gate, lanes = Lanes}) ->
    [{Ix, max(0, trunkline_gate:level(Gate, Ix))} || Ix <- lists:seq(1, tuple_size(Lanes))].

%% A sender reads the path after a gate has refused it. While gates open or close, the path is
%% `wait': a sender that a full lane refused must not go past it by plain distribution, nor take a
%% closed gate for a full lane.
-spec set_path(trunkline_gate:path(), route()) -> ok.
set_path(Path, #route{gate = Gate} = Route) ->
    IsOpen = is_open(Path),
    is_open(trunkline_gate:path(Gate)) =:= IsOpen orelse trunkline_gate:set_path(Gate, wait),
    %% (Also if they should be so already: a link may have been killed here.)
    Set = if IsOpen -> fun trunkline_gate:open/2;
             true -> fun trunkline_gate:close/2
          end,
    lists:foreach(fun(Ix) -> Set(Gate, Ix) end, lists:seq(1, bulk_ix(Route))),
    trunkline_gate:set_path(Gate, Path).

%% Whether the gates are open on that path.
-spec is_open(trunkline_gate:path()) -> boolean().
is_open(Path) -> Path =:= lanes orelse Path =:= down.

%% The number of the level that counts the large messages.
-spec bulk_ix(route()) -> pos_integer().
bulk_ix(#route{lanes = Lanes}) -> tuple_size(Lanes) + 1.

%% What the large messages are charged, queued and under way.
-spec bulk_level(route() | none) -> trunkline_gate:charge().
bulk_level(none) ->
    0;
bulk_level(#route{gate = Gate} = Route) ->
    max(0, trunkline_gate:level(Gate, bulk_ix(Route))).

-spec limit(pos_integer(), route()) -> trunkline_gate:charge().
limit(Ix, #route{lanes = Lanes, limit = Limit}) when Ix =< tuple_size(Lanes) -> Limit;
limit(_, #route{bulk_limit = Limit}) -> Limit.
