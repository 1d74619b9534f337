%% How many senders wait for the same thing now, and for how long all senders have waited for it:
%% two counters of a peer, kept by the process at which they wait. Things of the same kind may share
%% a pair of counters, which then have the sums.
%%
%% The counters are read without asking that process. So it has to keep the time up to date while
%% senders wait: with set/2 when their number changes, and otherwise from time to time.
-module(trunkline_wait_time).
-moduledoc false.

-export([new/3, set/2, refresh/1]).

-export_type([wait_time/0]).

%% The number of senders that wait now, and the sum of all waiting times (us).
-type fields() :: {Gauge :: trunkline_stats:field(), Time :: trunkline_stats:field()}.

-record(wait_time,
        {stats :: trunkline_stats:stats(),
         scope :: trunkline_stats:scope(),
         fields :: fields(),
         %% How many have been waiting since then (us). That time is not counted yet.
         waiting = 0 :: non_neg_integer(),
         since = 0 :: integer()}).
-opaque wait_time() :: #wait_time{}.

%% No sender waits.
-spec new(trunkline_stats:stats(), trunkline_stats:scope(), fields()) -> wait_time().
new(Stats, Scope, Fields) -> #wait_time{stats = Stats, scope = Scope, fields = Fields}.

%% From now on that many senders wait.
-spec set(non_neg_integer(), wait_time()) -> wait_time().
set(Waiting, #wait_time{stats = Stats, scope = Scope, fields = {Gauge, Time}, waiting = Before,
                        since = Since} = W) ->
    Now = erlang:monotonic_time(microsecond),
    Before =:= 0 orelse trunkline_stats:add(Stats, Scope, Time, Before * (Now - Since)),
    Before =:= Waiting orelse trunkline_stats:add(Stats, Scope, Gauge, Waiting - Before),
    W#wait_time{waiting = Waiting, since = Now}.

-spec refresh(wait_time()) -> wait_time().
refresh(#wait_time{waiting = Waiting} = W) -> set(Waiting, W).
