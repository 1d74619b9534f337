%% The counters of a peer, declared once as data, and the functions that read and write them.
%%
%% Each peer has one array of counters, which outlives the links to it. The lane, the inlet, the
%% link and (when it is refused) a sender write their own cells. read/2 returns maps. It asks no
%% process, so it works even if all processes of Trunkline are stuck.
-module(trunkline_stats).
-moduledoc false.

-export([new/1, add/4, put/4, clear/2, get/3, sum/2, lost/1, peak/4, observe/4, read/2]).
-export([fields/0, histograms/0, lanes/1]).

-export_type([stats/0, scope/0, field/0, histogram/0, lost/0]).

-opaque stats() :: counters:counters_ref().
-type scope() :: peer | {lane, pos_integer()}.
-type field() :: atom().
-type metric() :: string() | none.
%% How many values there were up to each bound and above the one before it. The last bound is
%% `infinity'.
-type histogram() :: [{Bound :: pos_integer() | infinity, non_neg_integer()}].

%% The number of lost messages, by reason.
-type lost() :: #{queued := non_neg_integer(), unconfirmed := non_neg_integer(),
                  crashed := non_neg_integer(), unreachable := non_neg_integer()}.

%% {Name, Type, Metric, Help}. A `counter' only grows, a `gauge' is the present value, a `peak' the
%% largest value so far. Metric is the name in monitoring systems (trunkline_metrics), possibly with
%% a label. Times are in microseconds here, and in seconds there. The cells are in the order of
%% these lists. (To find the last one takes 60 ns: what is asked for often comes first.)
-define(PEER_FIELDS,
        [{far, gauge, "far", "1 if the peer is far"},
         {fallbacks, counter, "fallback_messages_total",
          "messages sent with plain distribution for want of lanes"},
         {lost_queued, counter, "lost_messages_total{reason=\"queued\"}",
          "messages lost in a lane's queue when the peer went"},
         {lost_unconfirmed, counter, "lost_messages_total{reason=\"unconfirmed\"}",
          "messages sent and not acknowledged when the session ended: they may have arrived"},
         {lost_crashed, counter, "lost_messages_total{reason=\"crashed\"}",
          "messages in lanes that were killed"},
         {lost_unreachable, counter, "lost_messages_total{reason=\"unreachable\"}",
          "messages that were kept while no connection could be made"},
         {sessions, counter, "sessions_total", "times the lanes to this peer came up"},
         {resumed, counter, "sessions_resumed_total",
          "times a session went on over a new connection"},
         {large_messages, counter, "large_messages_sent_total", "large messages sent"},
         {large_bytes, counter, "large_bytes_sent_total", "bytes of large messages sent"},
         {large_carried_bytes, counter, "large_bytes_carried_total",
          "bytes of large messages given to a connection, or to the distribution"},
         {large_arrived_bytes, counter, "large_bytes_received_total",
          "bytes of large messages received, complete or not"},
         {large_broken, counter, "large_messages_broken_total",
          "large messages that arrived and could not be delivered"},
         {large_waiting, gauge, "senders_waiting{cargo=\"large\"}",
          "senders that wait until there is room for a large message"},
         {large_wait_time, counter, "sender_wait_seconds_total{cargo=\"large\"}",
          "time that senders waited until there was room for a large message"},
         {inbox_waiting, gauge, "senders_waiting{cargo=\"inbox\"}",
          "senders that wait until there is room in an inbox of the peer"},
         {inbox_wait_time, counter, "sender_wait_seconds_total{cargo=\"inbox\"}",
          "time that senders waited until there was room in an inbox of the peer"},
         {inbox_refused, counter, "inbox_refused_total",
          "messages to inboxes of the peer that were refused because they were full"},
         {bulk_connections, gauge, "connections{cargo=\"large\"}",
          "connections for large messages to the peer"},
         {bulk_by_distribution, gauge, "large_by_distribution",
          "1 while large messages go by the distribution"},
         {bulk_congestion_control, gauge, none,
          "of the newest of them: its name's first eight bytes, as a number"},
         {batches_arrived_bytes, counter, "batch_bytes_received_total",
          "bytes of batches received by connections of their own"},
         {lane_congestion_control, gauge, none, "of the newest connection for batches, likewise"},
         {round_trip, gauge, "round_trip_seconds",
          "the shortest round trip between the two nodes of late; 0 is not known"}]).

-define(LANE_FIELDS,
        [{messages, counter, "messages_sent_total", "messages sent"},
         {bytes, counter, "bytes_sent_total", "bytes sent, as charged"},
         {batched_messages, counter, none, "messages that went in batches"},
         {largest_batch, peak, "largest_batch_messages", "messages in the largest batch"},
         {in_flight_messages, gauge, "in_flight_messages",
          "messages sent and not yet acknowledged"},
         {in_flight_bytes, gauge, "in_flight_bytes",
          "bytes sent and not yet acknowledged, as charged"},
         {waits, counter, "sender_waits_total", "times a sender waited for room"},
         {waiting, gauge, "senders_waiting{cargo=\"batches\"}",
          "senders that wait until there is room in the lane"},
         {wait_time, counter, "sender_wait_seconds_total{cargo=\"batches\"}",
          "time that senders waited until there was room in the lane"},
         {window_bytes, gauge, "window_bytes", "bytes that may be in flight, as charged"},
         {nosuspend, counter, "nosuspend_total", "times a sender was answered nosuspend"},
         {received_batches, counter, "batches_received_total", "batches received"},
         {received_messages, counter, "messages_received_total",
          "messages received and delivered"},
         {received_bytes, counter, "bytes_received_total", "bytes received, as charged"},
         {sent_again, counter, "batches_sent_again_total",
          "batches sent again over another connection"},
         {kept_bytes, gauge, "kept_bytes",
          "bytes of batches that are kept until they have arrived"},
         {connections, gauge, "connections{cargo=\"batches\"}", "connections for batches"},
         {connecting, gauge, "connecting", "connections that are being made"},
         {by_connections, gauge, "by_connections", "1 while batches go by connections"},
         {time_in_lane_sum, counter, none, "of the values of time_in_lane"}]).

%% {Name, Bounds, Sum, Metric, Help}. A value is counted at the first bound that is not below it.
%% Sum is the name of the field that has the sum of all values.
-define(LANE_HISTOGRAMS,
        [{batches, [1, 2, 4, 8, 16, 32, 64, 128, 256], batched_messages,
          "batch_messages",
          "messages in the batches that were sent"},
         {time_in_lane, [16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304],
          time_in_lane_sum, "lane_seconds",
          "time in the lane, of one message each second while there are any"}]).

%% The peer's cells come first. Each lane's cells start on a cache line of their own, and its
%% histograms come last.
-define(CELLS(Fields), ((length(Fields) + 7) div 8 * 8)).
-define(HISTOGRAM_CELLS, 16).
-define(PEER_CELLS, ?CELLS(?PEER_FIELDS)).
-define(FIELD_CELLS, ?CELLS(?LANE_FIELDS)).
-define(LANE_CELLS, (?FIELD_CELLS + length(?LANE_HISTOGRAMS) * ?HISTOGRAM_CELLS)).

-spec new(Lanes :: pos_integer()) -> stats().
new(Lanes) ->
    counters:new(?PEER_CELLS + Lanes * ?LANE_CELLS, [atomics]).

-spec fields() -> #{peer | lane => [{field(), counter | gauge | peak, metric(), string()}]}.
fields() ->
    #{peer => ?PEER_FIELDS, lane => ?LANE_FIELDS}.

%% The histograms of a lane.
-spec histograms() ->
          [{field(), Bounds :: [pos_integer()], Sum :: field(), metric(), string()}].
histograms() -> ?LANE_HISTOGRAMS.

-spec add(stats(), scope(), field(), integer()) -> ok.
add(Stats, Scope, Field, N) ->
    counters:add(Stats, cell(Scope, Field), N).

-spec put(stats(), scope(), field(), integer()) -> ok.
put(Stats, Scope, Field, N) ->
    counters:put(Stats, cell(Scope, Field), N).

%% Sets a field to 0 in all lanes.
-spec clear(stats(), field()) -> ok.
clear(Stats, Field) ->
    lists:foreach(fun(Ix) -> put(Stats, {lane, Ix}, Field, 0) end, lanes(Stats)).

-spec get(stats(), scope(), field()) -> integer().
get(Stats, Scope, Field) ->
    counters:get(Stats, cell(Scope, Field)).

%% The sum of a field over all lanes.
-spec sum(stats(), field()) -> integer().
sum(Stats, Field) ->
    lists:sum([get(Stats, {lane, Ix}, Field) || Ix <- lanes(Stats)]).

-spec lost(stats()) -> lost().
lost(Stats) ->
    #{queued => get(Stats, peer, lost_queued), unconfirmed => get(Stats, peer, lost_unconfirmed),
      crashed => get(Stats, peer, lost_crashed),
      unreachable => get(Stats, peer, lost_unreachable)}.

-spec lanes(stats()) -> [pos_integer()].
lanes(Stats) ->
    #{size := Size} = counters:info(Stats),
    lists:seq(1, (Size - ?PEER_CELLS) div ?LANE_CELLS).

%% For a field with only one writer: reading and writing it are two steps.
-spec peak(stats(), scope(), field(), integer()) -> ok.
peak(Stats, Scope, Field, N) ->
    Cell = cell(Scope, Field),
    case counters:get(Stats, Cell) of
        Peak when Peak < N -> counters:put(Stats, Cell, N);
        _ -> ok
    end.

%% Counts a value. The caller adds it to the field that has the sum.
-spec observe(stats(), scope(), field(), non_neg_integer()) -> ok.
observe(Stats, {lane, Ix}, Name, Value) ->
    {First, Bounds} = cells(Ix, Name),
    counters:add(Stats, First + bucket(Value, Bounds, 0), 1).

bucket(Value, [Bound | Bounds], N) when Value > Bound -> bucket(Value, Bounds, N + 1);
bucket(_, _, N) -> N.

%% All fields of one scope.
-spec read(stats(), scope()) -> #{field() => integer() | histogram()}.
read(Stats, Scope) ->
    maps:from_list([{Field, get(Stats, Scope, Field)} || {Field, _, _, _} <- fields(Scope)]
                   ++ [{Name, histogram(Stats, Scope, Name)}
                       || {Name, _, _, _, _} <- histograms(Scope)]).

histogram(Stats, {lane, Ix}, Name) ->
    {First, Bounds} = cells(Ix, Name),
    [{Bound, counters:get(Stats, Cell)}
     || {Cell, Bound} <- lists:enumerate(First, Bounds ++ [infinity])].

fields(peer) -> ?PEER_FIELDS;
fields({lane, _}) -> ?LANE_FIELDS.

histograms(peer) -> [];
histograms({lane, _}) -> ?LANE_HISTOGRAMS.

cell(peer, Field) -> position(Field, ?PEER_FIELDS, 1);
cell({lane, Ix}, Field) ->
    ?PEER_CELLS + (Ix - 1) * ?LANE_CELLS + position(Field, ?LANE_FIELDS, 1).

position(Field, [{Field, _, _, _} | _], N) -> N;
position(Field, [_ | Fields], N) -> position(Field, Fields, N + 1).

%% The first cell of a histogram, and its bounds.
cells(Ix, Name) ->
    cells(Name, ?LANE_HISTOGRAMS, ?PEER_CELLS + (Ix - 1) * ?LANE_CELLS + ?FIELD_CELLS + 1).

cells(Name, [{Name, Bounds, _, _, _} | _], First) -> {First, Bounds};
cells(Name, [_ | Histograms], First) -> cells(Name, Histograms, First + ?HISTOGRAM_CELLS).
