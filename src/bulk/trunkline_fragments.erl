%% What is still to be sent of the large messages to one peer, and by which carrier. Each of these
%% messages is a parcel.
%%
%% Half of the bytes are for the parcel with the least left to send: a short one does not wait for
%% long ones, and a parcel that has begun is soon complete, so that the peer has to keep few parts.
%% The other half is for the oldest parcel. So each waits for at most twice the bytes of those
%% before it, though shorter ones come all the time. Parcels of the same size go in their order.
%%
%% A fragment never crosses from one segment into the next (see trunkline_parcel).
%%
%% Fragments travel by carriers (connections, or the distribution), any fragment
%% by any carrier. A carrier keeps its fragments in order, so that one number
%% tells what has arrived by it. When a carrier breaks, and that number is known,
%% another carrier has to send again what has not arrived. These parcels count as the oldest: the
%% peer has the rest of them.
%%
%% This module is pure: it decides, and has no side effects.
-module(trunkline_fragments).
-moduledoc false.

-export([new/0, add/3, next/3, cut/3, counted/3, done/2, is_waiting/1, is_empty/1, bytes/1]).

-export_type([fragments/0, fragment/0, id/0]).

-type id() :: {Lane :: pos_integer(), Number :: pos_integer()}.
-type carrier() :: term().
-type fragment() :: {id(), Size :: pos_integer(),      % of the whole parcel, in bytes
                     Offset :: non_neg_integer(), Length :: pos_integer(), iodata()}.
-type range() :: {From :: non_neg_integer(), To :: pos_integer()}.   % To is not in it

-record(parcel,
        {parcel :: trunkline_parcel:parcel(),
         number :: integer(),                          % the oldest has the least
         size :: pos_integer(),
         todo :: [range()],
         %% The position up to which the parcel has been read, and what follows:
         %% the rest of the segment there, and the segments behind it.
         at = 0 :: non_neg_integer(),
         rest :: [{pos_integer(), trunkline_parcel:segment()}]}).

-record(fragments,
        {parcels = #{} :: #{id() => #parcel{}},
         number = 0 :: non_neg_integer(),              % of the last one
         %% Parcels with something to send: by number, and by the bytes that are left.
         oldest = gb_sets:new() :: gb_sets:set({Number :: integer(), id()}),
         least = gb_sets:new() ::
           gb_sets:set({Bytes :: pos_integer(), Number :: integer(), id()}),
         %% The bytes that parcels with the least left have had more than the oldest ones, since
         %% there are two.
         ahead = 0 :: integer(),
         %% The number of fragments of each carrier that are known to have arrived or
         %% no longer matter, and those that it was given after them.
         given = #{} :: #{carrier() => {non_neg_integer(), queue:queue({id(), range()})}}}).
-opaque fragments() :: #fragments{}.

-spec new() -> fragments().
new() -> #fragments{}.

-spec add(id(), trunkline_parcel:parcel(), fragments()) -> fragments().
add(Id, Parcel, #fragments{number = Before} = F) ->
    Number = Before + 1,
    Size = trunkline_parcel:bytes(Parcel),
    put(Id, #parcel{parcel = Parcel, number = Number, size = Size, todo = [{0, Size}],
                    rest = from_start(Parcel)}, F#fragments{number = Number}).

%% Whether there is anything to send.
-spec is_waiting(fragments()) -> boolean().
is_waiting(#fragments{oldest = Oldest}) -> not gb_sets:is_empty(Oldest).

%% Whether there are no parcels, sent or not, that have not arrived.
-spec is_empty(fragments()) -> boolean().
is_empty(#fragments{parcels = Parcels}) -> map_size(Parcels) =:= 0.

%% What the carrier should send next. The fragment has about that many bytes: up
%% to twice as many if that ends the segment, and fewer only if there are no more.
-spec next(carrier(), Bytes :: pos_integer(), fragments()) -> {fragment(), fragments()} | none.
next(Carrier, Bytes, #fragments{parcels = Parcels, given = Given} = F) ->
    case turn(F) of
        none ->
            none;
        {Id, Sign} ->
            {Parcel, F1} = take(Id, F),
            {From, Data, Length, Parcel1} = cut_off(Bytes, Parcel),
            Entry = {Id, {From, From + Length}},
            F2 = F1#fragments{ahead = ahead(Sign, Length, F#fragments.ahead),
                              given = give(Carrier, Entry, Given, Parcels)},
            {{Id, Parcel#parcel.size, From, Length, Data}, put(Id, Parcel1, F2)}
    end.

%% The bytes of all these fragments.
-spec bytes([fragment()]) -> non_neg_integer().
bytes(Fragments) -> lists:sum([Length || {_, _, _, Length, _} <- Fragments]).

%% The carrier is broken, and that many of its fragments have arrived.
-spec cut(carrier(), Arrived :: non_neg_integer(), fragments()) -> fragments().
cut(Carrier, Arrived, #fragments{given = Given} = F) ->
    case maps:take(Carrier, Given) of
        {{Before, Queue}, Given1} ->
            Known = min(queue:len(Queue), max(0, Arrived - Before)),
            Missing = lists:nthtail(Known, queue:to_list(Queue)),
            lists:foldr(fun again/2, F#fragments{given = Given1}, Missing);
        error ->
            F
    end.

%% The same, but the carrier goes on, and so does the count of all that has ever arrived by it.
-spec counted(carrier(), Arrived :: non_neg_integer(), fragments()) -> fragments().
counted(Carrier, Arrived, F) ->
    #fragments{given = Given} = F1 = cut(Carrier, Arrived, F),
    F1#fragments{given = Given#{Carrier => {Arrived, queue:new()}}}.

again({Id, Range}, F) ->
    case take(Id, F) of
        {#parcel{todo = Todo, number = Number} = Parcel, F1} ->
            put(Id, Parcel#parcel{todo = [Range | Todo], number = before_all(Number)}, F1);
        none ->
            F
    end.

before_all(Number) when Number > 0 -> Number - (1 bsl 58);
before_all(Number) -> Number.

%% The parcel has arrived, or is no longer wanted.
-spec done(id(), fragments()) -> fragments().
done(Id, F) ->
    case take(Id, F) of
        {_, F1} -> F1;
        none -> F
    end.

%% A carrier need not remember anything of parcels that are done. (This looks at the
%% oldest fragments first, so it costs next to nothing.)
give(Carrier, Entry, Given, Parcels) ->
    {Before, Queue} = forget(maps:get(Carrier, Given, {0, queue:new()}), Parcels),
    Given#{Carrier => {Before, queue:in(Entry, Queue)}}.

forget({Before, Queue} = Log, Parcels) ->
    case queue:peek(Queue) of
        {value, {Id, _}} when not is_map_key(Id, Parcels) ->
            forget({Before + 1, queue:drop(Queue)}, Parcels);
        _ ->
            Log
    end.

%% --- turns ------------------------------------------------------------------

%% Whose turn it is, and what each of its bytes counts.
turn(#fragments{oldest = Oldest, least = Least, ahead = Ahead} = F) ->
    case is_waiting(F) andalso {gb_sets:smallest(Oldest), gb_sets:smallest(Least)} of
        false -> none;
        {{_, Id}, {_, _, Id}} -> {Id, 0};
        {_, {_, _, Id}} when Ahead =< 0 -> {Id, 1};
        {{_, Id}, _} -> {Id, -1}
    end.

ahead(0, _, _) -> 0;
ahead(Sign, Length, Before) -> Before + Sign * Length.

take(Id, #fragments{parcels = Parcels, oldest = Oldest, least = Least} = F) ->
    case maps:take(Id, Parcels) of
        {#parcel{number = Number} = Parcel, Others} ->
            {Parcel, F#fragments{parcels = Others,
                                 oldest = gb_sets:delete_any({Number, Id}, Oldest),
                                 least = gb_sets:delete_any({left(Parcel), Number, Id}, Least)}};
        error ->
            none
    end.

put(Id, Parcel, #fragments{parcels = Parcels, oldest = Oldest, least = Least} = F) ->
    F1 = F#fragments{parcels = Parcels#{Id => Parcel}},
    #parcel{number = Number} = Parcel,
    case left(Parcel) of
        0 -> F1;
        Left -> F1#fragments{oldest = gb_sets:add({Number, Id}, Oldest),
                             least = gb_sets:add({Left, Number, Id}, Least)}
    end.

left(#parcel{todo = Todo}) -> lists:sum([To - From || {From, To} <- Todo]).

%% --- cutting ----------------------------------------------------------------

cut_off(Bytes,
        #parcel{todo = [{From, To} | Todo], at = From, rest = [{Left, Segment} | Rest]} = P) ->
    End = min(Left, To - From),
    Length = if End =< 2 * Bytes -> End;
                true -> Bytes
             end,
    {Data, Behind} = split(Length, Segment, []),
    {From, Data, Length,
     P#parcel{todo = [{From + Length, To} || From + Length < To] ++ Todo,
              at = From + Length,
              rest = [{Left - Length, Behind} || Left > Length] ++ Rest}};
cut_off(Bytes, #parcel{todo = [{From, _} | _], parcel = Parcel} = P) ->
    cut_off(Bytes, P#parcel{at = From, rest = skip(From, from_start(Parcel))}).

from_start(Parcel) ->
    lists:zip(trunkline_parcel:sizes(Parcel), trunkline_parcel:segments(Parcel)).

skip(Bytes, [{Size, _} | Rest]) when Bytes >= Size ->
    skip(Bytes - Size, Rest);
skip(Bytes, [{Size, Segment} | Rest]) ->
    {_, Behind} = split(Bytes, Segment, []),
    [{Size - Bytes, Behind} | Rest].

split(0, Rest, Taken) ->
    {lists:reverse(Taken), Rest};
split(Bytes, [Binary | Rest], Taken) when byte_size(Binary) =< Bytes ->
    split(Bytes - byte_size(Binary), Rest, [Binary | Taken]);
split(Bytes, [Binary | Rest], Taken) ->
    <<Before:Bytes/binary, After/binary>> = Binary,
    {lists:reverse(Taken, [Before]), [After | Rest]}.
