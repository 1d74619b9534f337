%% Counts the messages that the process behind an inbox, the consumer, has and is not done with. The
%% counter is an array that the keeper and the consumer both write.
%%
%%     keeper                                   consumer
%%       | -- messages, at most so many -------> |
%%       |   (waits)                             |  done with one, with two, with enough of them:
%%       | <------------------- '$inbox_more' -- |
%%
%% The consumer sends a message only if the keeper waits, and only when it has few enough left. Now
%% and then the keeper looks by itself.
-module(trunkline_work).
-moduledoc false.

-export([new/2, keeper/1, room/1, add/1, done/2, wait/1, size/1]).

-export_type([work/0]).

-opaque work() :: {Keeper :: pid(), atomics:atomics_ref(), Most :: pos_integer(),
                   Few :: non_neg_integer()}.

-define(WORK, 1).                     % messages that the consumer has
-define(AWAITED, 2).                  % 1 while the keeper waits for it to have fewer

%% The calling process is the keeper. The consumer may have so many, and asks for more when it has
%% that few.
-spec new(Most :: pos_integer(), Few :: non_neg_integer()) -> work().
new(Most, Few) -> {self(), atomics:new(2, [{signed, true}]), Most, Few}.

-spec keeper(work()) -> pid().
keeper({Keeper, _, _, _}) -> Keeper.

%% How many more messages the consumer may have, below 1 if none.
-spec room(work()) -> integer().
room({_, Cells, Most, _}) -> Most - atomics:get(Cells, ?WORK).

%% The consumer gets one more.
-spec add(work()) -> ok.
add({_, Cells, _, _}) -> atomics:add(Cells, ?WORK, 1).

%% The consumer is done with N more.
-spec done(work(), pos_integer()) -> ok.
done({Keeper, Cells, _, Few}, N) ->
    case atomics:sub_get(Cells, ?WORK, N) of
        Left when Left =< Few ->
            case atomics:get(Cells, ?AWAITED) =:= 1 andalso atomics:exchange(Cells, ?AWAITED, 0) of
                1 -> Keeper ! '$inbox_more', ok;
                _ -> ok
            end;
        _ ->
            ok
    end.

%% The keeper waits for '$inbox_more', unless the consumer has done enough already. The mark is set
%% before the number is read, so that a consumer that is done with one in between sees the mark.
-spec wait(work()) -> wait | more.
wait({_, Cells, _, Few}) ->
    case atomics:get(Cells, ?AWAITED) of
        1 ->
            wait;
        0 ->
            atomics:put(Cells, ?AWAITED, 1),
            case atomics:get(Cells, ?WORK) =< Few of
                true -> more;
                false -> wait
            end
    end.

%% The consumer may have reported more messages as done than it had.
-spec size(work()) -> non_neg_integer().
size({_, Cells, _, _}) -> max(0, atomics:get(Cells, ?WORK)).
