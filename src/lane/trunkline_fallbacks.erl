%% Counts the messages that went by plain distribution because there were no lanes.
%%
%% Those to a peer are in its statistics. Those to nodes that never had a link are counted together,
%% here, from the first start of the application on.
-module(trunkline_fallbacks).
-moduledoc false.

-include("trunkline_route.hrl").

-export([start/0, add/1, others/0]).

%% To be called when the application starts.
-spec start() -> ok.
start() ->
    case persistent_term:get(?MODULE, none) of
        none -> persistent_term:put(?MODULE, counters:new(1, [write_concurrency]));
        _ -> ok
    end.

%% One more message to that node.
-spec add(node()) -> ok.
add(Node) ->
    case trunkline_route:lookup(Node) of
        #route{stats = Stats} ->
            trunkline_stats:add(Stats, peer, fallbacks, 1);
        none ->
            case persistent_term:get(?MODULE, none) of
                none -> ok;
                Counter -> counters:add(Counter, 1, 1)
            end
    end.

%% How many messages went to nodes that never had a link.
-spec others() -> non_neg_integer().
others() ->
    case persistent_term:get(?MODULE, none) of
        none -> 0;
        Counter -> counters:get(Counter, 1)
    end.
