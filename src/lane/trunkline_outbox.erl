%% Keeps the batches of a lane that go by connections until the inlet has said that they have
%% arrived.
%%
%%                 add             take                arrived
%%     lane ──────────────> waiting ──────> with a channel ──────> forgotten
%%                             ^                  │
%%                             └───── broken ─────┘
%%
%% Batches are numbered. The inlet delivers them in that order, and drops those that it has had.
%% It says up to which number all have arrived. So it need not be known what a channel had delivered
%% when it broke: everything that it was given, and that is not known to have arrived, is sent
%% again, by whichever channel is next.
%%
%% Waiting batches are taken in the order of their numbers. So those that are sent again go first,
%% which is right: the inlet waits for them.
%%
%% The distribution is a channel like all others. (It gets what waits here when the connections have
%% ended, or are no longer the better way.) It breaks only if the session may go on over another
%% connection.
%%
%% This module is pure: it decides, and has no side effects.
-module(trunkline_outbox).
-moduledoc false.

-export([new/0, add/3, take/2, arrived/2, broken/2]).
-export([is_waiting/1, is_owed/2, bytes/1]).

-export_type([outbox/0]).

-type serial() :: pos_integer().
-type channel() :: pid() | distribution.
-type frame() :: trunkline_writer:frame().

-record(outbox,
        {%% With the last channel that each has been given to.
         kept = #{} :: #{serial() => {frame(), channel() | none}},
         bytes = 0 :: non_neg_integer(),                 % of these
         arrived = 0 :: non_neg_integer(),               % up to this number
         waiting = gb_sets:new() :: gb_sets:set(serial())}).
-opaque outbox() :: #outbox{}.

-spec new() -> outbox().
new() -> #outbox{}.

%% Batches whose numbers are missing here go another way.
-spec add(serial(), frame(), outbox()) -> outbox().
add(Serial, {Bytes, _} = Frame, #outbox{kept = Kept, bytes = Sum, waiting = Waiting} = O) ->
    O#outbox{kept = Kept#{Serial => {Frame, none}}, bytes = Sum + Bytes,
             waiting = gb_sets:add_element(Serial, Waiting)}.

%% Gives the next batch to that channel, and keeps it. `again': another channel has had it.
-spec take(channel(), outbox()) -> {first | again, frame(), outbox()} | empty.
take(Channel, #outbox{kept = Kept, waiting = Waiting} = O) ->
    case is_waiting(O) of
        true ->
            {Serial, Waiting1} = gb_sets:take_smallest(Waiting),
            #{Serial := {Frame, Before}} = Kept,
            {case Before of
                 none -> first;
                 _ -> again
             end, Frame, O#outbox{kept = Kept#{Serial := {Frame, Channel}}, waiting = Waiting1}};
        false ->
            empty
    end.

%% All batches up to that number have arrived, whichever way they went.
-spec arrived(non_neg_integer(), outbox()) -> outbox().
arrived(Serial, #outbox{kept = Kept} = O) when map_size(Kept) =:= 0 ->
    O#outbox{arrived = max(Serial, O#outbox.arrived)};
arrived(Serial, #outbox{arrived = Before} = O) when Before < Serial ->
    #outbox{kept = Kept, bytes = Sum, waiting = Waiting} = O,
    Next = Before + 1,
    arrived(Serial, case maps:take(Next, Kept) of
                        {{{Bytes, _}, _}, Kept1} ->
                            O#outbox{kept = Kept1, bytes = Sum - Bytes, arrived = Next,
                                     waiting = gb_sets:del_element(Next, Waiting)};
                        error ->
                            O#outbox{arrived = Next}
                    end);
arrived(_, O) ->
    O.

%% What that channel has been given, and may not have delivered, waits again.
-spec broken(channel(), outbox()) -> outbox().
broken(Channel, #outbox{kept = Kept, waiting = Waiting} = O) ->
    Given = [Serial || {Serial, {_, To}} <- maps:to_list(Kept), To =:= Channel],
    O#outbox{waiting = lists:foldl(fun gb_sets:add_element/2, Waiting, Given)}.

%% Whether there is anything to send.
-spec is_waiting(outbox()) -> boolean().
is_waiting(#outbox{waiting = Waiting}) -> not gb_sets:is_empty(Waiting).

%% Whether that channel has something that is not known to have arrived.
-spec is_owed(channel(), outbox()) -> boolean().
is_owed(Channel, #outbox{kept = Kept}) ->
    lists:keymember(Channel, 2, maps:values(Kept)).

%% The bytes of all batches that are kept.
-spec bytes(outbox()) -> non_neg_integer().
bytes(#outbox{bytes = Bytes}) -> Bytes.
