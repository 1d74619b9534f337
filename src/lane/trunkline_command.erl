%% What becomes of a command (trunkline_agent, trunkline_exit, trunkline_executor) that cannot reach
%% the peer. These decisions look at the command alone; a message to a process is none, and is
%% always missed.
-module(trunkline_command).
-moduledoc false.

-export([is_news/1, is_missed/1]).

%% For a caller who waits: it reaches him by plain distribution as well.
-spec is_news(trunkline_lane:to()) -> boolean().
is_news(To) -> is_one_of(To, [reply, down, ended]).

%% Whether it counts as lost if it ends with its lane. What takes something back does not, nor does
%% what is told again: a process that monitors another, or waits for its reply, hears of the lane's
%% end, and asks once more.
-spec is_missed(trunkline_lane:to()) -> boolean().
is_missed(To) -> not is_one_of(To, [cancel, monitor, demonitor, down, ended]).

is_one_of(To, Commands) -> is_tuple(To) andalso lists:member(element(1, To), Commands).
