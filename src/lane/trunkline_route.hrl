%% What the hot path reads of one peer: see trunkline_route.
-record(route,
        {link :: pid(),                      % where a refused sender waits
         lanes :: tuple(),                   % of pids
         aliases :: tuple(),                 % of theirs, for replies
         gate :: trunkline_gate:gate(),
         limit :: trunkline_gate:charge(),   % of the queue of one lane
         large :: trunkline_gate:charge(),   % a message that the lanes do not take
         bulk_limit :: trunkline_gate:charge(),         % of all those, queued and under way
         stats :: trunkline_stats:stats()}).

%% The persistent term that holds it.
-define(ROUTE(Node), {trunkline, Node}).
