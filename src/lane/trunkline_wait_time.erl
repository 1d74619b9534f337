%% How many senders wait for the same thing now, and for how long all of them have waited: two
%% counters of a peer, which the process at which they wait keeps.
%%
%% Whoever looks at the counters asks nobody. So the time has to be brought up to date while they
%% wait: by set/2 when their number changes, and otherwise from time to time.
-module(trunkline_wait_time).
-moduledoc false.

-export([new/3, set/2, refresh/1, size/1]).

-export_type([wait_time/0, fields/0]).

%% How many wait now, and how long all have waited in all (us).
-type fields() :: {Gauge :: trunkline_stats:field(), Time :: trunkline_stats:field()}.

-record(wait_time,
        {stats :: trunkline_stats:stats(),
         scope :: trunkline_stats:scope(),
         fields :: fields(),
         %% So many have been waiting since then (us), which the counters do not say yet.
         waiting = 0 :: non_neg_integer(),
         since = 0 :: integer()}).
-opaque wait_time() :: #wait_time{}.

%% Nobody waits.
-spec new(trunkline_stats:stats(), trunkline_stats:scope(), fields()) -> wait_time().
new(Stats, Scope, Fields) -> #wait_time{stats = Stats, scope = Scope, fields = Fields}.

%% From now on so many wait.
-spec set(non_neg_integer(), wait_time()) -> wait_time().
set(Waiting, #wait_time{stats = Stats, scope = Scope, fields = {Gauge, Time}, waiting = Before,
                        since = Since} = W) ->
    Now = erlang:monotonic_time(microsecond),
    Before =:= 0 orelse trunkline_stats:add(Stats, Scope, Time, Before * (Now - Since)),
    Before =:= Waiting orelse trunkline_stats:put(Stats, Scope, Gauge, Waiting),
    W#wait_time{waiting = Waiting, since = Now}.

-spec refresh(wait_time()) -> wait_time().
refresh(#wait_time{waiting = Waiting} = W) -> set(Waiting, W).

-spec size(wait_time()) -> non_neg_integer().
size(#wait_time{waiting = Waiting}) -> Waiting.
