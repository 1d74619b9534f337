%% What a long term is made of, as far as its beginning tells.
%%
%% A lane is the best way for short terms. It copies a long term several times, and its way around
%% the distribution's atom cache costs 100 ns for each atom:
%%
%%     binaries    of 4 kB or more are not copied into a lane: they go by lane, or past an idle lane
%%                 if a batch has no room for two, or as large messages
%%     flat        few atoms: if it must go by lane the sender should encode it, and put a reference
%%                 to the encoding into the lane
%%     mixed       many atoms, or binaries that an encoding would copy: if it must go by lane, then
%%                 as it is
%%
%% `flat' and `mixed' terms of some size should go by plain distribution, in their turn
%% (trunkline_in_turn). If they cannot, a large `mixed' term should at least not be packed as one
%% (trunkline_opener).
%%
%% What counts is what is copied: a heavy term takes much memory, though its message may be short.
%% With 400 words and more it is faster past an idle lane, be it a string, a map or a list of
%% tuples. It goes there without being measured. The figures are in docs/lab/tried.md.
-module(trunkline_shape).
-moduledoc false.

-export([shape/1, weight/1, takes/2, size/1, weighed/2, measure/1, charge/1, charge/3, kind/2]).

-export_type([kind/0, size/0]).

-type shape() :: binaries | flat | mixed.
%% Whether most of it is binaries that are not copied.
-type kind() :: binaries | terms.
%% What a message is charged: exactly, or about so much, and then its kind is known, too. A heavy
%% one takes so many bytes of memory, each time that it is copied.
-type size() :: {exactly, trunkline_gate:charge()} | {heavy, trunkline_gate:charge(), pos_integer()}
              | {about, trunkline_gate:charge(), kind()}.
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
%% A message with a binary of so many bytes, or more, counts as one of binaries.
-define(ALONE, 4096).

%% Bytes of a long list. A shorter one is measured.
-define(LONG, 16_000).
%% A list of fewer tuples, maps or lists, or of fewer integers, is not looked at.
-define(MANY, 64).
-define(MANY_INTEGERS, 3200).
-define(SAMPLE, 8).
-define(FURTHER, 512).                   % of integers

%% Words. A character of a string is one byte in a message, and two words in memory.
-define(HEAVY, 400).
%% Elements that stand for all others; and of how many pairs or elements a map or a tuple is looked
%% at as a whole.
-define(FIRST, 2).
-define(SMALL, 32).
%% What is left of any number of words if there is a large binary.
-define(BINARIES, infinity).

%% What a message is, as far as its beginning tells: `heavy' if it is a list or a map that takes so
%% much memory, or ends with one, as in {Tag, List} or {'$gen_cast', {Tag, List}}; `binaries' if a
%% large binary is there; `light' if it has to be measured. This is asked of every message. It takes
%% 0.3 us at most for usual terms. To measure a long one takes a third of the time that it takes to
%% encode it.
-spec weight(term()) -> light | heavy | binaries.
weight(Message) ->
    case last(Message) of
        [_ | _] = List -> weight_of(List);
        Map when is_map(Map) -> weight_of(Map);
        _ -> light
    end.

weight_of(Term) ->
    case left(Term, ?HEAVY) of
        Words when Words =< 0 -> heavy;
        Words when Words < ?BINARIES -> light;
        ?BINARIES -> binaries
    end.

%% Whether a term takes so many words or more, as far as it is looked at, and no large binary is
%% there.
-spec takes(Words :: pos_integer(), term()) -> boolean().
takes(Words, Term) -> left(Term, Words) =< 0.

%% What is left of so many words when the term has taken what it needs. The first elements of a list
%% stand for all of them, unless they are binaries: another one may be large. (One is not enough:
%% the first row may have no value.) So do those of a map or a tuple that has many.
left(_, Words) when Words =< 0; Words =:= ?BINARIES ->
    Words;
left([_ | _] = List, Words) ->
    left(List, ?FIRST, 0, Words);
left(Map, Words) when is_map(Map), map_size(Map) =< ?SMALL ->
    all(maps:keys(Map), all(maps:values(Map), Words - 4 - 2 * map_size(Map)));
left(Map, Words) when is_map(Map) ->
    each(map_size(Map), 2, first(?FIRST, maps:iterator(Map)), Words);
left(Tuple, Words) when is_tuple(Tuple), tuple_size(Tuple) =< ?SMALL ->
    all(tuple_to_list(Tuple), Words - 1 - tuple_size(Tuple));
left(Tuple, Words) when is_tuple(Tuple) ->
    each(tuple_size(Tuple), 1, [element(N, Tuple) || N <- lists:seq(1, ?FIRST)], Words);
left(Binary, _) when is_bitstring(Binary), byte_size(Binary) >= ?ALONE ->
    ?BINARIES;
left(Binary, Words) when is_bitstring(Binary) ->
    Words - 3;
left(Float, Words) when is_float(Float) ->
    Words - 2;
left(_, Words) ->
    Words.

%% Of a list: More elements should be looked at. Those before that are no binaries have taken so
%% much.
left(_, _, _, Words) when Words =< 0; Words =:= ?BINARIES ->
    Words;
left([Binary | Tail], More, Taken, Words) when is_bitstring(Binary) ->
    left(Tail, More, Taken, left(Binary, Words - 2));
left([Head | Tail], More, Taken, Words) when More > 0 ->
    case left(Head, Words - 2) of
        ?BINARIES -> ?BINARIES;
        Left -> left(Tail, More - 1, Taken + Words - Left, Left)
    end;
left([_ | _] = List, 0, Taken, Words) ->
    Words - Taken * cells(List, 1 + ?FIRST * Words div Taken, 0) div ?FIRST;
left(_, _, _, Words) ->
    Words.

%% Each element takes so many words, and what the first ones take.
each(Size, Own, First, Words) ->
    case all(First, Words) of
        ?BINARIES -> ?BINARIES;
        Left -> Words - Size * (Own + (Words - Left) div ?FIRST)
    end.

first(0, _) ->
    [];
first(N, Iterator) ->
    {Key, Value, Next} = maps:next(Iterator),
    [Key, Value | first(N - 1, Next)].

%% (Calls and returns are what makes a sender yield to others. So each short term takes one call.)
all(_, Words) when Words =< 0; Words =:= ?BINARIES ->
    Words;
all([Term | Terms], Words) when is_atom(Term); is_integer(Term) ->
    all(Terms, Words);
all([Term | Terms], Words) when byte_size(Term) < ?ALONE ->
    all(Terms, Words - 3);
all([Term | Terms], Words) ->
    all(Terms, left(Term, Words));
all([], Words) ->
    Words.

%% How many cells the list has, or Most and a few more.
cells(_, Most, N) when N >= Most -> N;
cells([_, _, _, _, _, _, _, _, _, _, _, _ | Tail], Most, N) -> cells(Tail, Most, N + 12);
cells([_ | Tail], Most, N) -> cells(Tail, Most, N + 1);
cells(_, _, N) -> N.

%% The size of a message that is a long list, or ends with one. Elements from its beginning and its
%% middle stand for all of them. (The middle of a list of integers is too far away: to go there
%% would take as long as to measure the list.) If all of these are shorter than a large binary, none
%% of them has one.
-spec long_list(term()) -> size() | none.
long_list(Message) ->
    case last(Message) of
        [Head | _] = List when is_map(Head); is_tuple(Head); is_list(Head) ->
            long_list(?MANY, infinity, List, Message);
        [Head | _] = List when is_integer(Head) ->
            long_list(?MANY_INTEGERS, ?FURTHER, List, Message);
        _ ->
            none
    end.

long_list(Many, Furthest, List, Message) ->
    try length(List) of
        Length when Length >= Many ->
            Further = lists:nthtail(min(Length div 2, Furthest), List),
            Sample = lists:sublist(List, ?SAMPLE) ++ lists:sublist(Further, ?SAMPLE),
            Others = erlang:external_size(others(Message)),
            Sampled = erlang:external_size(Sample),
            case Others + Sampled * Length div (2 * ?SAMPLE) of
                Bytes when Bytes < ?LONG ->
                    none;
                Bytes ->
                    {about, trunkline_gate:charge(Bytes, 1),
                     if Others + Sampled < ?ALONE -> terms;
                        true -> kind(Message)
                     end}
            end;
        _ ->
            none
    catch
        error:badarg -> none                 % no proper list
    end.

last({_, _, [Last]}) -> Last;                % the arguments of a function
last({_, {_, Last}}) -> Last;
last({_, Last}) -> Last;
last({_, _, Last}) -> Last;
last({_, _, _, Last}) -> Last;
last(Message) -> Message.

others({A, B, [_]}) -> {A, B};
others({A, {B, _}}) -> {A, B};
others({A, _}) -> A;
others({A, B, _}) -> {A, B};
others({A, B, C, _}) -> {A, B, C};
others(_) -> [].

-spec size(term()) -> size().
size(Term) ->
    case long_list(Term) of
        none -> {exactly, trunkline_gate:charge(Term)};
        Size -> Size
    end.

%% The same for one that is not light: whether it is heavy, too.
-spec measure(term()) -> size().
measure(Message) ->
    case long_list(Message) of
        none -> weighed(trunkline_gate:charge(Message), Message);
        Size -> Size
    end.

%% The size of a message with that charge. One of 16 kB and more is long, however much memory it
%% takes.
-spec weighed(trunkline_gate:charge(), term()) -> size().
weighed(Charge, Message) ->
    case trunkline_gate:bytes(Charge) < ?LONG andalso erts_debug:flat_size(Message) of
        Words when is_integer(Words), Words >= ?HEAVY ->
            {heavy, Charge, Words * erlang:system_info(wordsize)};
        _ ->
            {exactly, Charge}
    end.

-spec charge(size()) -> trunkline_gate:charge().
charge({exactly, Charge}) -> Charge;
charge({heavy, Charge, _}) -> Charge;
charge({about, Charge, _}) -> Charge.

%% A long list is measured only if the estimate does not say that it is large.
-spec charge(size(), term(), Large :: trunkline_gate:charge()) -> trunkline_gate:charge().
charge({about, Charge, _}, Term, Large) when Charge < Large -> trunkline_gate:charge(Term);
charge(Size, _, _) -> charge(Size).

-spec kind(size(), term()) -> kind().
kind({about, _, Kind}, _) ->
    Kind;
kind(Size, Term) ->
    case trunkline_gate:bytes(charge(Size)) < ?ALONE of
        true -> terms;
        false -> kind(Term)
    end.

kind(Term) ->
    case shape(Term) of
        binaries -> binaries;
        _ -> terms
    end.

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
