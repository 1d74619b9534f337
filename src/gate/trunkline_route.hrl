%% What the hot path reads of one peer: see trunkline_route.
-record(route,
        {link :: pid(),                      % where a refused sender waits
         lanes :: tuple(),                   % of pids
         aliases :: tuple(),                 % of the lanes, for replies
         mailboxes :: tuple(),               % tables of the lanes: see trunkline_mailboxes
         gate :: trunkline_gate:gate(),
         limit :: trunkline_gate:charge(),   % of the queue of one lane
         large :: trunkline_gate:charge(),   % from which on a message is large
         bulk_limit :: trunkline_gate:charge(),         % of large messages, queued and under way
         bypass :: trunkline_bypass:bypass(),
         agents :: ets:table(),              % {Inlet, Agent, ...}: trunkline_lanes:set_agents/3
         concurrency :: trunkline_concurrency:concurrency(),    % of calls
         stats :: trunkline_stats:stats()}).

%% The persistent term that holds the route.
-define(ROUTE(Node), {trunkline, Node}).

%% The number of the lane that a process's messages take. All that concerns their order must take
%% that one. (A macro, because this is the hot path.)
-define(LANE_OF(Pid, Lanes), (erlang:phash2(Pid, tuple_size(Lanes)) + 1)).
