%% How many calls to one peer are under way at a time, few or many.
%%
%% For a few callers it is faster to go past the lanes: fewer processes have to be woken. For many,
%% lanes are faster, because of their batches. (Measured on two cores: with four callers erpc has
%% 1.4 times the rate of lanes, with ten 0.65 times; docs/lab/tried.md.) There are two thresholds,
%% so that calls do not alternate between the two ways, which is worse than either.
%%
%%     few ──── more than 7 ────> many
%%         <─── fewer than 5 ────
%%
%% A call that has ended adds its time to a sum. (If not all are measured, one stands for several.)
%% The first one that ends 10 ms after the last look divides the sum by the time since then: that is
%% how many were under way, on average (Little's law). A call counts for a millisecond at most. So
%% one that waits for something that takes long does not count as much as one that is only on its
%% way. A caller that is killed has added nothing.
%%
%% Between two looks there may be a burst of calls. So those that bypass the lanes are counted, and
%% seven may at a time. Each look sets the count to the average: then callers that were killed, and
%% calls that take long, count no more.
-module(trunkline_concurrency).
-moduledoc false.

-export([new/0, bypass/2, clock/0, bypassed/1, ended/4]).

-export_type([concurrency/0, time/0]).

-opaque concurrency() :: atomics:atomics_ref().
-type time() :: integer().                   % monotonic us

-define(WINDOW, 10_000).                     % us
-define(MOST, 1_000).                        % us that one call counts
-define(FEW, 5).
-define(MANY, 7).

%% The shared words.
-define(SINCE, 1).
-define(SUM, 2).
-define(IS_HIGH, 3).
-define(BYPASSES, 4).

-spec new() -> concurrency().
new() ->
    Concurrency = atomics:new(?BYPASSES, [{signed, true}]),
    ok = atomics:put(Concurrency, ?SINCE, clock()),
    Concurrency.

%% Whether a call should bypass the lanes; a long one does anyway. If so it begins.
-spec bypass(IsLong :: boolean(), concurrency()) -> boolean().
bypass(IsLong, Concurrency) ->
    (IsLong orelse atomics:get(Concurrency, ?IS_HIGH) =:= 0)
        andalso case atomics:add_get(Concurrency, ?BYPASSES, 1) of
                    N when N =< ?MANY; IsLong -> true;
                    _ -> ok = atomics:sub(Concurrency, ?BYPASSES, 1), false
                end.

-spec clock() -> time().
clock() -> erlang:monotonic_time(microsecond).

%% It has bypassed them, or could not. (More of them may end than count.)
-spec bypassed(concurrency()) -> ok.
bypassed(Concurrency) ->
    case atomics:sub_get(Concurrency, ?BYPASSES, 1) of
        N when N < 0 -> atomics:put(Concurrency, ?BYPASSES, 0);
        _ -> ok
    end.

%% A call has ended. It stands for N of them, if only one of N is measured.
-spec ended(N :: pos_integer(), Started :: time(), Ended :: time(), concurrency()) -> ok.
ended(N, Started, Ended, Concurrency) ->
    Sum = atomics:add_get(Concurrency, ?SUM, N * min(Ended - Started, ?MOST)),
    Since = atomics:get(Concurrency, ?SINCE),
    case Ended - Since >= ?WINDOW
        andalso atomics:compare_exchange(Concurrency, ?SINCE, Since, Ended) =:= ok of
        true ->
            ok = atomics:sub(Concurrency, ?SUM, Sum),
            look(Sum, Ended - Since, Concurrency);
        false ->
            ok
    end.

look(Sum, Time, Concurrency) ->
    ok = atomics:put(Concurrency, ?BYPASSES, min(Sum div Time, ?MANY - 1)),
    if Sum > ?MANY * Time -> atomics:put(Concurrency, ?IS_HIGH, 1);
       Sum < ?FEW * Time -> atomics:put(Concurrency, ?IS_HIGH, 0);
       true -> ok
    end.
