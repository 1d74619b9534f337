%% What is counted, declared once as data, and the one reader of it.
%%
%% A peer has one array of counters, which outlives the links to it. The lane,
%% the inlet, the link and (when it is refused) a sender write their own cells
%% without asking anybody; read/2 makes maps of them, also without asking
%% anybody, so that it answers while every process involved is stuck.
-module(trunkline_stats).
-moduledoc false.

-export([new/1, add/4, put/4, get/3, sum/2, peak/4, read/2, fields/0]).

-export_type([stats/0, scope/0, field/0]).

-opaque stats() :: counters:counters_ref().
-type scope() :: peer | {lane, pos_integer()}.
-type field() :: atom().

%% {Name, Type, Help}: a `counter' only grows, a `gauge' is the present value,
%% a `peak' the largest value so far. The macros are the cells' numbers.
-define(PEER_FIELDS,
        [{fallbacks, counter, "messages sent with plain distribution for want of lanes"},
         {lost_queued, counter, "messages lost in a lane's queue when the peer went"},
         {lost_unconfirmed, counter,
          "messages sent and not acknowledged when the session ended: they may have arrived"},
         {lost_crashed, counter, "messages in lanes that were killed"},
         {lost_unreachable, counter, "messages that were kept while no connection could be made"},
         {sessions, counter, "times the lanes to this peer came up"},
         {resumed, counter, "times a session went on over a new connection"},
         {large_messages, counter, "large messages sent"},
         {large_bytes, counter, "bytes of them"},
         {large_carried_bytes, counter,
          "bytes of large messages given to a connection, or to the distribution"},
         {large_arrived_bytes, counter, "bytes of large messages received, complete or not"},
         {large_broken, counter, "large messages that arrived and could not be delivered"},
         {bulk_connections, gauge, "connections for large messages to the peer"},
         {bulk_by_distribution, gauge, "1 while they go by distribution"},
         {bulk_congestion_control, gauge,
          "of the newest of them: its name's first eight bytes, as a number"},
         {batches_arrived_bytes, counter, "bytes of batches received by connections of their own"},
         {lane_congestion_control, gauge, "of the newest connection for batches, likewise"},
         {far, gauge, "1 if the peer is far"},
         {round_trip, gauge, "us: the shortest between the links of late; 0 is not known"}]).

-define(LANE_FIELDS,
        [{batches, counter, "batches sent"},
         {messages, counter, "messages sent"},
         {bytes, counter, "bytes sent, as charged"},
         {largest_batch, peak, "messages in the largest batch"},
         {in_flight_messages, gauge, "messages sent and not yet acknowledged"},
         {in_flight_bytes, gauge, "bytes sent and not yet acknowledged, as charged"},
         {waits, counter, "times a sender waited for room"},
         {window_bytes, gauge, "bytes that may be under way, as charged"},
         {nosuspend, counter, "times a sender was answered nosuspend"},
         {received_batches, counter, "batches received"},
         {received_messages, counter, "messages received and delivered"},
         {sent_again, counter, "batches sent again over another connection"},
         {kept_bytes, gauge, "bytes of batches that are kept until they have arrived"},
         {connections, gauge, "connections for its batches"},
         {connecting, gauge, "connections that are being made"},
         {by_connections, gauge, "1 while its batches go by them"}]).

%% The peer's cells come first. A lane's start on a cache line of their own.
-define(CELLS(Fields), ((length(Fields) + 7) div 8 * 8)).
-define(PEER_CELLS, ?CELLS(?PEER_FIELDS)).
-define(LANE_CELLS, ?CELLS(?LANE_FIELDS)).

-spec new(Lanes :: pos_integer()) -> stats().
new(Lanes) ->
    counters:new(?PEER_CELLS + Lanes * ?LANE_CELLS, [atomics]).

-spec fields() -> #{peer | lane => [{field(), counter | gauge | peak, string()}]}.
fields() ->
    #{peer => ?PEER_FIELDS, lane => ?LANE_FIELDS}.

-spec add(stats(), scope(), field(), integer()) -> ok.
add(Stats, Scope, Field, N) ->
    counters:add(Stats, cell(Scope, Field), N).

-spec put(stats(), scope(), field(), integer()) -> ok.
put(Stats, Scope, Field, N) ->
    counters:put(Stats, cell(Scope, Field), N).

-spec get(stats(), scope(), field()) -> integer().
get(Stats, Scope, Field) ->
    counters:get(Stats, cell(Scope, Field)).

%% Of all lanes.
-spec sum(stats(), field()) -> integer().
sum(Stats, Field) ->
    #{size := Size} = counters:info(Stats),
    lists:sum([get(Stats, {lane, Ix}, Field)
               || Ix <- lists:seq(1, (Size - ?PEER_CELLS) div ?LANE_CELLS)]).

%% For a field with one writer.
-spec peak(stats(), scope(), field(), integer()) -> ok.
peak(Stats, Scope, Field, N) ->
    Cell = cell(Scope, Field),
    case counters:get(Stats, Cell) of
        Peak when Peak < N -> counters:put(Stats, Cell, N);
        _ -> ok
    end.

%% All fields of one scope.
-spec read(stats(), scope()) -> #{field() => integer()}.
read(Stats, Scope) ->
    maps:from_list([{Field, get(Stats, Scope, Field)}
                    || {Field, _, _} <- fields(Scope)]).

fields(peer) -> ?PEER_FIELDS;
fields({lane, _}) -> ?LANE_FIELDS.

cell(peer, Field) -> position(Field, ?PEER_FIELDS, 1);
cell({lane, Ix}, Field) ->
    ?PEER_CELLS + (Ix - 1) * ?LANE_CELLS + position(Field, ?LANE_FIELDS, 1).

position(Field, [{Field, _, _} | _], N) -> N;
position(Field, [_ | Fields], N) -> position(Field, Fields, N + 1).
