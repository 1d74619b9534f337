%% What a long term is made of, as far as its beginning tells.
%%
%% A lane is the best way for short terms and for binaries. It copies a long term several times, and
%% its way around the distribution's atom cache costs 100 ns for each atom:
%%
%%     binaries    of 4 kB or more are not copied into a lane: they go by lane, or as large messages
%%     flat        few atoms: if it must go by lane the sender should encode it, and put a reference
%%                 to the encoding into the lane
%%     mixed       many atoms, or binaries that an encoding would copy: if it must go by lane, then
%%                 as it is
%%
%% `flat' and `mixed' terms of some size should go by plain distribution, in their turn
%% (trunkline_in_turn). If they cannot, a large `mixed' term should at least not be packed as one
%% (trunkline_opener). The figures are in docs/lab/tried.md.
-module(trunkline_shape).
-moduledoc false.

-export([shape/1, is_long_list/1, estimate/1]).

-export_type([shape/0]).

-type shape() :: binaries | flat | mixed.
-record(seen,
        {more :: integer(),                  % how many parts may still be looked at
         atoms = 0 :: non_neg_integer(),
         binary = 0 :: non_neg_integer()}).  % bytes of the largest one

%% Parts of a term that are looked at. Cells, tuples and maps count, too: the time must be bounded
%% for any term, one of empty tuples or nested lists included.
-define(LOOK_AT, 32).
%% More atoms than that are many.
-define(FEW_ATOMS, 2).
%% A binary of so many bytes, or more, is not copied into a lane.
-define(SHARED, 65).
%% A binary of so many bytes, or more, is most of the message.
-define(ALONE, 4096).

%% A list of so many tuples, maps or lists is long. From twice SAMPLE of them its size is estimated.
-define(MANY, 512).
-define(SAMPLE, 16).

%% Whether the message is a long list of tuples, maps or lists, or ends with one, as in {Tag, List}
%% or {'$gen_cast', {Tag, List}}. This is asked of every message. (To measure a list of integers
%% takes no longer than to count them.)
-spec is_long_list(term()) -> boolean().
is_long_list(Message) -> is_many(last(Message)).

is_many([Head | _] = List)
  when (is_map(Head) orelse is_tuple(Head) orelse is_list(Head)) andalso length(List) >= ?MANY ->
    true;
is_many(_) ->
    false.                                   % or it is no proper list

last({_, {_, Last}}) -> Last;
last({_, Last}) -> Last;
last({_, _, Last}) -> Last;
last({_, _, _, Last}) -> Last;
last(Message) -> Message.

others({A, {B, _}}) -> {A, B};
others({A, _}) -> A;
others({A, B, _}) -> {A, B};
others({A, B, C, _}) -> {A, B, C};
others(_) -> [].

%% Bytes of a message with a long list, from elements at its beginning and in its middle. To measure
%% all of it takes 0.3 us for each kilobyte: a third of what it takes to send it.
-spec estimate(term()) -> pos_integer().
estimate(Message) ->
    List = last(Message),
    Length = length(List),
    Middle = lists:nthtail(Length div 2, List),
    Sample = lists:sublist(List, ?SAMPLE) ++ lists:sublist(Middle, ?SAMPLE),
    erlang:external_size(others(Message))
        + erlang:external_size(Sample) * Length div (2 * ?SAMPLE).

%% Takes less than 1 us. For short terms that is too much.
-spec shape(term()) -> shape().
shape(Term) ->
    case look(Term, #seen{more = ?LOOK_AT}) of
        #seen{binary = Binary} when Binary >= ?ALONE -> binaries;
        #seen{binary = Binary, atoms = Atoms} when Binary < ?SHARED, Atoms =< ?FEW_ATOMS -> flat;
        _ -> mixed
    end.

look(_, #seen{more = More} = Seen) when More =< 0 ->
    Seen;
look([Head | Tail], Seen) ->
    look(Tail, look(Head, part(Seen)));
look(Atom, #seen{atoms = Atoms} = Seen) when is_atom(Atom) ->
    part(Seen#seen{atoms = Atoms + 1});
look(Binary, #seen{binary = Largest} = Seen) when is_bitstring(Binary) ->
    part(Seen#seen{binary = max(byte_size(Binary), Largest)});
look(Tuple, Seen) when is_tuple(Tuple) ->
    elements(1, Tuple, part(Seen));
look(Map, Seen) when is_map(Map) ->
    pairs(maps:next(maps:iterator(Map)), part(Seen));
look(_, Seen) ->
    part(Seen).

part(#seen{more = More} = Seen) -> Seen#seen{more = More - 1}.

elements(N, Tuple, #seen{more = More} = Seen) when N =< tuple_size(Tuple), More > 0 ->
    elements(N + 1, Tuple, look(element(N, Tuple), Seen));
elements(_, _, Seen) ->
    Seen.

pairs({Key, Value, Others}, #seen{more = More} = Seen) when More > 0 ->
    pairs(maps:next(Others), look(Value, look(Key, Seen)));
pairs(_, Seen) ->
    Seen.
