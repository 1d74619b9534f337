%% A large message, packed to travel outside the lanes.
%%
%% A parcel is a sequence of segments. The first is the message in the external
%% term format; each of the others is one large binary that has been taken out of
%% it. `[]' takes the place of such a binary, and the first segment says where the
%% binaries belong:
%%
%%     {done, 7, <<...10 MB...>>}
%%
%%       = segment 1:  {{done, 7, []}, [[{element, 3}]]}
%%         segment 2:  <<...10 MB...>>
%%
%% A binary that is a segment of its own is copied at neither end: what has been
%% read from a socket in one piece is that binary. Only binaries near the top of a
%% term are taken out: to look through all of a large term would cost more. Others
%% travel within the first segment, where the external term format refers to them
%% without a copy on this side.
-module(trunkline_parcel).
-moduledoc false.

-export([pack/1, unpack/1, unpack_sent/1, bytes/1, sizes/1, segments/1]).
-export([term/2, is_term/1]).

-export_type([parcel/0, segment/0, size_bytes/0]).

-type size_bytes() :: pos_integer().
-type segment() :: [binary()].
-opaque parcel() :: {[size_bytes()], [segment()]} | {term, size_bytes(), Message :: term()}.

-type step() :: {element, pos_integer()} | {nth, pos_integer()} | {key, term()}.
-type found() :: [{[step()], binary()}].

%% A smaller binary is not worth a frame of its own: copying it takes 10 us.
-define(APART, 131072).
%% At most this many terms are looked at.
-define(LOOK_AT, 100).

-spec pack(term()) -> parcel().
pack(Message) ->
    {Bare, _, Found} = take_out(Message, [], ?LOOK_AT, []),
    {Paths, Binaries} = lists:unzip(Found),
    Segments = [erlang:term_to_iovec({Bare, Paths}) | [[Binary] || Binary <- Binaries]],
    {[iolist_size(Segment) || Segment <- Segments], Segments}.

%% The message as it is.
-spec term(Message :: term(), size_bytes()) -> parcel().
term(Message, Bytes) -> {term, Bytes, Message}.

-spec is_term(parcel()) -> boolean().
is_term(Parcel) -> element(1, Parcel) =:= term.

%% The message, from the segments that have been received.
-spec unpack([binary(), ...]) -> term().
unpack([First | Binaries]) ->
    {Bare, Paths} = binary_to_term(First),
    lists:foldl(fun({Path, Binary}, Term) -> put_in(Path, Binary, Term) end,
                Bare, lists:zip(Paths, Binaries)).

%% The message, on the side that has packed it.
-spec unpack_sent(parcel()) -> term().
unpack_sent({term, _, Message}) ->
    Message;
unpack_sent({_, Segments}) ->
    unpack([iolist_to_binary(Segment) || Segment <- Segments]).

-spec bytes(parcel()) -> size_bytes().
bytes(Parcel) -> lists:sum(sizes(Parcel)).

-spec sizes(parcel()) -> [size_bytes()].
sizes({term, Bytes, _}) -> [Bytes];
sizes({Sizes, _}) -> Sizes.

-spec segments(parcel()) -> [segment()].
segments({_, Segments}) -> Segments.

%% The term without its large binaries, how many terms may still be looked at, and
%% what has been found.
-spec take_out(term(), [step()], integer(), found()) -> {term(), integer(), found()}.
take_out(Binary, Path, Look, Found) when is_binary(Binary), byte_size(Binary) >= ?APART ->
    {[], Look - 1, [{lists:reverse(Path), Binary} | Found]};
take_out(Tuple, Path, Look, Found) when is_tuple(Tuple), tuple_size(Tuple) < Look ->
    elements(1, Tuple, Path, Look - 1, Found);
take_out(Map, Path, Look, Found) when is_map(Map), map_size(Map) < Look ->
    maps:fold(fun(Key, Value, {Bare, L, F}) when L > 0 ->
                      case is_short(Key) andalso take_out(Value, [{key, Key} | Path], L, F) of
                          false -> {Bare, L - 1, F};
                          {_, L1, F} -> {Bare, L1, F};
                          {Value1, L1, F1} -> {Bare#{Key := Value1}, L1, F1}
                      end;
                 (_, _, Acc) ->
                      Acc
              end, {Map, Look - 1, Found}, Map);
take_out([_ | _] = List, Path, Look, Found) when Look > 0 ->
    cells(1, List, Path, Look - 1, Found);
take_out(Term, _, Look, Found) ->
    {Term, Look - 1, Found}.

%% The path to each binary travels, too: it should not be longer than the binary.
is_short(Key) ->
    is_atom(Key) orelse is_integer(Key) andalso abs(Key) < 1 bsl 64
        orelse is_binary(Key) andalso byte_size(Key) =< 64
        orelse is_pid(Key) orelse is_reference(Key).

elements(N, Tuple, Path, Look, Found) when Look > 0, N =< tuple_size(Tuple) ->
    case take_out(element(N, Tuple), [{element, N} | Path], Look, Found) of
        {_, Look1, Found} ->
            elements(N + 1, Tuple, Path, Look1, Found);
        {Bare, Look1, Found1} ->
            elements(N + 1, setelement(N, Tuple, Bare), Path, Look1, Found1)
    end;
elements(_, Tuple, _, Look, Found) ->
    {Tuple, Look, Found}.

%% The list may be improper; its last tail is left as it is.
cells(N, [Head | Tail], Path, Look, Found) when Look > 0 ->
    {Head1, Look1, Found1} = take_out(Head, [{nth, N} | Path], Look, Found),
    {Tail1, Look2, Found2} = cells(N + 1, Tail, Path, Look1, Found1),
    {[Head1 | Tail1], Look2, Found2};
cells(_, Rest, _, Look, Found) ->
    {Rest, Look, Found}.

put_in([], Binary, []) ->
    Binary;
put_in([{element, N} | Path], Binary, Tuple) ->
    setelement(N, Tuple, put_in(Path, Binary, element(N, Tuple)));
put_in([{key, Key} | Path], Binary, Map) ->
    Map#{Key := put_in(Path, Binary, maps:get(Key, Map))};
put_in([{nth, 1} | Path], Binary, [Head | Tail]) ->
    [put_in(Path, Binary, Head) | Tail];
put_in([{nth, N} | Path], Binary, [Head | Tail]) ->
    [Head | put_in([{nth, N - 1} | Path], Binary, Tail)].
