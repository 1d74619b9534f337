%% The lanes to one peer, all together: how they start and end, and the orders that they get.
%%
%% What they share is a route (trunkline_route). Lanes that end are killed, and what is left in them
%% is counted: a gate knows how much has been admitted. But servers reply to a lane. So lanes retire
%% instead while inlets that have retired need them.
-module(trunkline_lanes).
-moduledoc false.

-include("../gate/trunkline_route.hrl").

-export([start/4, end_all/3, order/4, set_agents/3, pids/1, is_empty/1]).

%% As trunkline_lane:order/0, but with the inlets of all lanes.
-type order() :: {send, Inlets :: [pid()], WindowBytes :: pos_integer(),
                  trunkline_channels:sent()}
               | trunkline_lane:order().

%% Starts lanes of that layout. The calling process owns them. No sender knows their route yet.
-spec start(trunkline_session:layout(), node(), trunkline_options:options(),
            trunkline_stats:stats()) -> {ok, trunkline_route:route()} | {error, system_limit}.
start({N, Large, Limit}, Node, #{queue_bytes := QueueBytes} = Options, Stats) ->
    Gate = trunkline_gate:new(N),
    Bypass = trunkline_bypass:new(N),
    Settings = #{gate => Gate, bypass => Bypass, bulk => {N + 1, Large, Limit},
                 stats => Stats, options => Options},
    Start = fun() ->
                    {[trunkline_lane:start_link(Ix, Node, Settings) || Ix <- lists:seq(1, N)],
                     ets:new(?MODULE, [{read_concurrency, true}])}
            end,
    case trunkline_process:start_all(Start) of
        {ok, {Started, Agents}} ->
            {Lanes, Aliases, Mailboxes} = lists:unzip3(Started),
            {ok, #route{link = self(), gate = Gate, stats = Stats,
                        lanes = list_to_tuple(Lanes), aliases = list_to_tuple(Aliases),
                        mailboxes = list_to_tuple(Mailboxes),
                        limit = trunkline_gate:limit(QueueBytes),
                        large = Large, bulk_limit = Limit, bypass = Bypass,
                        agents = Agents,
                        concurrency = trunkline_concurrency:new()}};
        {error, system_limit} = Error ->
            Error
    end.

%% Ends the lanes of that route. If there are inlets that need them, they retire. Returns how many
%% messages the dead lanes leave behind. What was in a lane counts as Field. What was in flight
%% counts as unconfirmed: it may well arrive. (Lanes that retire pass on what they can, and count
%% the rest themselves.)
-spec end_all(trunkline_stats:field(), trunkline_route:route(), Inlets :: [pid()]) ->
          Lost :: non_neg_integer().
end_all(Field, #route{gate = Gate, lanes = Lanes, stats = Stats, agents = Agents}, Inlets) ->
    ok = delete(Agents),
    lists:foreach(fun(Lane) -> end_lane(Lane, Inlets) end, tuple_to_list(Lanes)),
    Left = [left_behind(Gate, Ix, Stats) || Ix <- lists:seq(1, tuple_size(Lanes))],
    InFlight = lists:sum([F || {F, _} <- Left]),
    trunkline_stats:add(Stats, peer, lost_unconfirmed, InFlight),
    case Inlets of
        [] ->
            Inside = lists:sum([I || {_, I} <- Left]),
            trunkline_stats:add(Stats, peer, Field, Inside),
            InFlight + Inside;
        _ ->
            0
    end.

%% (With the link that has made it, it is gone.)
delete(Table) ->
    try ets:delete(Table) of
        true -> ok
    catch
        error:badarg -> ok
    end.

end_lane(Lane, []) ->
    unlink(Lane),
    trunkline_process:kill(Lane);
end_lane(Lane, Inlets) ->
    ok = trunkline_process:outlive(Lane),
    unlink(Lane),
    trunkline_lane:retire(Lane, Inlets).

left_behind(Gate, Ix, Stats) ->
    InFlight = trunkline_stats:get(Stats, {lane, Ix}, in_flight_messages),
    trunkline_stats:put(Stats, {lane, Ix}, in_flight_messages, 0),
    trunkline_stats:put(Stats, {lane, Ix}, in_flight_bytes, 0),
    {InFlight, trunkline_gate:messages(max(0, trunkline_gate:close(Gate, Ix)))}.

%% They answer with that reference: see trunkline_lane:order/3.
-spec order(reference(), order(), Trunk :: pid() | none, trunkline_route:route()) -> ok.
order(Ref, {send, Inlets, Window, Sent}, Trunk, Route) ->
    lists:foreach(fun({Lane, Inlet}) ->
                          trunkline_lane:order(Lane, Ref, {send, {Inlet, Trunk}, Window, Sent})
                  end, lists:zip(pids(Route), Inlets));
order(Ref, Order, _, Route) ->
    lists:foreach(fun(Lane) -> trunkline_lane:order(Lane, Ref, Order) end, pids(Route)).

%% A session begins, with these inlets here, which callers watch, and those of the peer, which are
%% the agents for what the lanes bring. (See trunkline_in_turn:send_request/5.)
-spec set_agents(Ours :: [pid()], Theirs :: [pid()], trunkline_route:route()) -> ok.
set_agents(Ours, Theirs, #route{agents = Agents}) ->
    true = ets:delete_all_objects(Agents),
    true = ets:insert(Agents, [list_to_tuple([Inlet | Theirs]) || Inlet <- Ours]),
    ok.

-spec pids(trunkline_route:route() | none) -> [pid()].
pids(#route{lanes = Lanes}) -> tuple_to_list(Lanes);
pids(none) -> [].

%% Whether everything that was admitted has left.
-spec is_empty(trunkline_route:route() | none) -> boolean().
is_empty(Route) ->
    lists:all(fun({_, Level}) -> Level =< 0 end, trunkline_route:levels(Route)).
