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
%% Waiting batches are taken in the order of their numbers. Those that are sent again go first,
%% because the inlet waits for them.
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
        {kept = #{} :: #{serial() => frame()},
         bytes = 0 :: non_neg_integer(),                 % of these
         arrived = 0 :: non_neg_integer(),               % up to this number
         again = [] :: [serial()],                       % to be sent again, in order, and then
         fresh = queue:new() :: queue:queue(serial()),   % those that no channel has had
         given = #{} :: #{channel() => queue:queue(serial())}}).
-opaque outbox() :: #outbox{}.

-spec new() -> outbox().
new() -> #outbox{}.

%% Numbers only grow. Batches whose numbers are missing here go another way.
-spec add(serial(), frame(), outbox()) -> outbox().
add(Serial, {Bytes, _} = Frame, #outbox{kept = Kept, bytes = Sum, fresh = Fresh} = O) ->
    O#outbox{kept = Kept#{Serial => Frame}, bytes = Sum + Bytes, fresh = queue:in(Serial, Fresh)}.

%% Gives the next batch to that channel, and keeps it.
-spec take(channel(), outbox()) -> {first | again, frame(), outbox()} | empty.
take(Channel, #outbox{kept = Kept, given = Given} = O) ->
    case next(O) of
        {Time, Serial, O1} ->
            #{Serial := Frame} = Kept,
            Serials = owed(maps:get(Channel, Given, queue:new()), O),
            {Time, Frame, O1#outbox{given = Given#{Channel => queue:in(Serial, Serials)}}};
        empty ->
            empty
    end.

next(#outbox{again = [Serial | Again]} = O) ->
    {again, Serial, O#outbox{again = Again}};
next(#outbox{fresh = Fresh} = O) ->
    case queue:out(Fresh) of
        {{value, Serial}, Fresh1} -> {first, Serial, O#outbox{fresh = Fresh1}};
        {empty, _} -> empty
    end.

%% All batches up to that number have arrived, whichever way they went.
-spec arrived(non_neg_integer(), outbox()) -> outbox().
arrived(Serial, #outbox{kept = Kept} = O) when map_size(Kept) =:= 0 ->
    O#outbox{arrived = max(Serial, O#outbox.arrived)};
arrived(Serial, #outbox{kept = Kept, bytes = Bytes, arrived = Before, again = Again,
                        fresh = Fresh} = O) when Serial > Before ->
    {Kept1, Bytes1} = remove(Before + 1, Serial, Kept, Bytes),
    O#outbox{kept = Kept1, bytes = Bytes1, arrived = Serial,
             again = [S || S <- Again, S > Serial], fresh = behind(Serial, Fresh)};
arrived(_, O) ->
    O.

remove(From, To, Kept, Sum) when From =< To ->
    case maps:take(From, Kept) of
        {{Bytes, _}, Kept1} -> remove(From + 1, To, Kept1, Sum - Bytes);
        error -> remove(From + 1, To, Kept, Sum)
    end;
remove(_, _, Kept, Sum) ->
    {Kept, Sum}.

behind(Serial, Fresh) ->
    case queue:peek(Fresh) of
        {value, First} when First =< Serial -> behind(Serial, queue:drop(Fresh));
        _ -> Fresh
    end.

%% What that channel has been given, and may not have delivered, waits again.
-spec broken(channel(), outbox()) -> outbox().
broken(Channel, #outbox{given = Given, again = Again, kept = Kept} = O) ->
    case maps:take(Channel, Given) of
        {Serials, Given1} ->
            Missing = [Serial || Serial <- queue:to_list(Serials), is_map_key(Serial, Kept)],
            O#outbox{given = Given1, again = lists:umerge(lists:sort(Missing), Again)};
        error ->
            O
    end.

%% Whether there is anything to send.
-spec is_waiting(outbox()) -> boolean().
is_waiting(#outbox{again = [], fresh = Fresh}) -> not queue:is_empty(Fresh);
is_waiting(_) -> true.

%% Whether that channel has something that is not known to have arrived.
-spec is_owed(channel(), outbox()) -> boolean().
is_owed(Channel, #outbox{given = Given} = O) ->
    case Given of
        #{Channel := Serials} -> not queue:is_empty(owed(Serials, O));
        #{} -> false
    end.

%% (The numbers need not be in order: a batch may have been sent again, and numbers behind it may
%% have arrived, too.)
owed(Serials, #outbox{arrived = Arrived} = O) ->
    case queue:peek(Serials) of
        {value, Serial} when Serial =< Arrived -> owed(queue:drop(Serials), O);
        _ -> Serials
    end.

%% The bytes of all batches that are kept.
-spec bytes(outbox()) -> non_neg_integer().
bytes(#outbox{bytes = Bytes}) -> Bytes.
