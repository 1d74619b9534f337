%% What a long term is made of, as far as its beginning tells.
%%
%% A message is copied into its lane, encoded there, decoded in the inlet, and copied to its
%% receiver. On the heap a term takes several times the bytes of its encoding, and the first of the
%% two copies, which a garbage collection of the lane may repeat, takes longer than the encoding. So
%% it is better for the sender to encode the message itself, and to put a reference to the binary
%% into the lane. It is not better for a message
%%
%% - whose bytes are in binaries: these are not copied into a lane;
%% - with many atoms: the distribution has a cache for these, and without it each atom takes 100 ns
%%   to decode.
%%
%% The figures are in docs/lab/tried.md.
-module(trunkline_shape).
-moduledoc false.

-export([is_better_encoded/1]).

%% Parts of a term that are looked at. Cells, tuples and maps count, too: the time must be bounded
%% for any term, one of empty tuples or nested lists included.
-define(LOOK_AT, 32).
%% More atoms than that are many.
-define(FEW_ATOMS, 2).
%% A binary of so many bytes, or more, is not copied into a lane.
-define(SHARED, 65).

%% Takes less than 1 us (0.7 for a list of integers). For short terms that is too much.
-spec is_better_encoded(term()) -> boolean().
is_better_encoded(Term) ->
    {_, Atoms} = look(Term, {?LOOK_AT, 0}),
    Atoms =< ?FEW_ATOMS.

%% How many parts may still be looked at, and how many of them have been atoms. (The keys of a map
%% count as atoms: most are.)
look(_, {More, _} = Seen) when More =< 0 ->
    Seen;
look([Head | Tail], {More, Atoms}) ->
    look(Tail, look(Head, {More - 1, Atoms}));
look(Term, {More, Atoms}) when is_number(Term); Term =:= [] ->
    {More - 1, Atoms};
look(Atom, {More, Atoms}) when is_atom(Atom) ->
    {More - 1, Atoms + 1};
look(Map, {More, Atoms}) when is_map(Map) ->
    {More - 1 - map_size(Map), Atoms + map_size(Map)};
look(Tuple, {More, Atoms}) when is_tuple(Tuple) ->
    elements(1, Tuple, {More - 1, Atoms});
look(Binary, _) when is_binary(Binary), byte_size(Binary) >= ?SHARED ->
    {0, ?FEW_ATOMS + 1};
look(_, {More, Atoms}) ->
    {More - 1, Atoms}.

elements(N, Tuple, {More, _} = Seen) when N =< tuple_size(Tuple), More > 0 ->
    elements(N + 1, Tuple, look(element(N, Tuple), Seen));
elements(_, _, Seen) ->
    Seen.
