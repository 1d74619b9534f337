%% The counters of an inbox, which can be read without asking it.
%%
%% The time that a message has waited is counted when it leaves. The numbers of messages that wait
%% and that were dropped are written only once a second, and only while the inbox is in use. The
%% keeper writes these. Those of this node's senders, which wait or are refused at the gate, are
%% written by trunkline_inboxes and by the senders.
-module(trunkline_inbox_stats).
-moduledoc false.

-export([new/0, passed/2, show/3, waiting/2, refused/1]).
-export([times/1, level/1, read/1, sum/1, fields/0, histogram/0]).

-export_type([stats/0]).

-opaque stats() :: counters:counters_ref().
-type values() :: #{queued_messages := non_neg_integer(), queued_bytes := non_neg_integer(),
                    waiting := non_neg_integer(), dropped := non_neg_integer(),
                    refused := non_neg_integer(), passed := non_neg_integer(),
                    time_in_queue := trunkline_stats:histogram()}.

%% Time in queue: less than 2^(N - 1) us, for N in 1 .. BUCKETS.
-define(BUCKETS, 32).
-define(LEVEL, (?BUCKETS + 1)).
-define(DROPPED, (?BUCKETS + 2)).
-define(WAITING, (?BUCKETS + 3)).
-define(REFUSED, (?BUCKETS + 4)).

%% As in trunkline_stats: {Name, Type, Metric, Help}
-spec fields() -> [{atom(), counter | gauge, string(), string()}].
fields() ->
    [{queued_messages, gauge, "inbox_queue_messages", "messages that wait in the inbox"},
     {queued_bytes, gauge, "inbox_queue_bytes", "bytes that wait in the inbox, as charged"},
     {passed, counter, "inbox_passed_total", "messages that the process behind the inbox has got"},
     {dropped, counter, "inbox_dropped_total", "messages that the inbox has dropped"},
     {refused, counter, "inbox_refused_total",
      "messages of senders of this node that the inbox has refused"},
     {waiting, gauge, "senders_waiting{cargo=\"inbox\"}",
      "senders of this node that wait until there is room in the inbox"}].

-spec histogram() -> {atom(), Metric :: string(), Help :: string()}.
histogram() -> {time_in_queue, "inbox_seconds", "time in the inbox, without a _sum"}.

-spec new() -> stats().
new() -> counters:new(?REFUSED, []).

%% A message goes to the process, after Time microseconds in the queue.
-spec passed(stats(), Microseconds :: integer()) -> ok.
passed(Stats, Time) -> counters:add(Stats, bucket(Time, 1), 1).

bucket(Time, N) when Time < 1; N =:= ?BUCKETS -> N;
bucket(Time, N) -> bucket(Time bsr 1, N + 1).

-spec show(stats(), Queued :: trunkline_gate:charge(), Dropped :: non_neg_integer()) -> ok.
show(Stats, Level, Dropped) ->
    ok = counters:put(Stats, ?LEVEL, Level),
    counters:put(Stats, ?DROPPED, Dropped).

%% So many senders of this node wait for room.
-spec waiting(stats(), non_neg_integer()) -> ok.
waiting(Stats, Senders) -> counters:put(Stats, ?WAITING, Senders).

%% A message of a sender of this node has been refused.
-spec refused(stats()) -> ok.
refused(Stats) -> counters:add(Stats, ?REFUSED, 1).

%% As trunkline_inbox:info/1 shows it.
-spec times(stats()) -> [{Microseconds :: pos_integer(), pos_integer()}].
times(Stats) -> [{1 bsl (N - 1), Count} || {N, Count} <- counts(Stats), Count > 0].

counts(Stats) -> [{N, counters:get(Stats, N)} || N <- lists:seq(1, ?BUCKETS)].

%% The messages and bytes that wait.
-spec level(stats()) -> trunkline_gate:charge().
level(Stats) -> counters:get(Stats, ?LEVEL).

%% Two buckets are merged into one, which is enough for metrics.
-spec read(stats()) -> values().
read(Stats) ->
    Level = level(Stats),
    Counts = [Count || {_, Count} <- counts(Stats)],
    #{queued_messages => trunkline_gate:messages(Level),
      queued_bytes => trunkline_gate:bytes(Level), waiting => counters:get(Stats, ?WAITING),
      dropped => counters:get(Stats, ?DROPPED), refused => counters:get(Stats, ?REFUSED),
      passed => lists:sum(Counts), time_in_queue => pairs(Counts, 2)}.

pairs([Some, Others], _) -> [{infinity, Some + Others}];
pairs([Some, Others | Counts], N) -> [{1 bsl (N - 1), Some + Others} | pairs(Counts, N + 2)].

%% The values of several inboxes together.
-spec sum([values(), ...]) -> values().
sum([First | Others]) ->
    lists:foldl(fun(Values, Sum) ->
                        maps:map(fun(Field, Value) -> add(Value, maps:get(Field, Values)) end, Sum)
                end, First, Others).

add([{Bound, N} | Ns], [{Bound, M} | Ms]) -> [{Bound, N + M} | add(Ns, Ms)];
add([], []) -> [];
add(N, M) -> N + M.
