%% The pure modules of large messages, each against a model: no process, no node.
-module(large_properties_SUITE).

-include("counterexample.hrl").

-export([all/0, init_per_suite/1, end_per_suite/1]).
-export([parcel/1, parcel_bounds/1, fragments/1, journey/1, turns/1, notices/1, replies/1,
         first_replies/1, questions/1, quantum/1, wire/1]).

all() ->
    [parcel, parcel_bounds, fragments, journey, turns, notices, replies, first_replies, questions,
     quantum, wire].

%% What binaries are made of: bytes of which each stretch is another.
-define(STOCK, (1 bsl 20)).

init_per_suite(Config) ->
    persistent_term:put(?MODULE, rand:bytes(?STOCK)),
    Config.

end_per_suite(_) ->
    persistent_term:erase(?MODULE).

check(Property) -> check(1000, Property).

check(Tests, Property) ->
    counterexample:check(Tests, 200, Property).

%% Refers to the stock, and so shares it with the others.
stock(Offset, Bytes) ->
    binary:part(persistent_term:get(?MODULE), Offset, Bytes).

%% --- parcel: what has been packed and unpacked is what it was ------------------------

%% From so many bytes on a binary is large, and so many terms are looked at.
-define(LARGE, 131072).
-define(LOOKED_AT, 100).

parcel(_) ->
    check(200, prop_parcel()),
    check(100, prop_alone()).

prop_parcel() ->
    ?ALL(Plan, plan(),
         begin
             Term = build(Plan),
             Parcel = trunkline_parcel:pack(Term),
             Segments = trunkline_parcel:segments(Parcel),
             [_ | Taken] = Segments,
             {Terms, Near, Far} = look(Term),
             Arrived = [iolist_to_binary(Segment) || Segment <- Segments],
             Unpacked = trunkline_parcel:unpack(Arrived),
             {_, Near1, Far1} = look(Unpacked),
             Bytes = trunkline_parcel:bytes(Parcel),
             conjunction(
               [{whole, Unpacked =:= Term},
                {whole_here, trunkline_parcel:unpack_sent(Parcel) =:= Term},
                {sizes, trunkline_parcel:sizes(Parcel) =:= [byte_size(A) || A <- Arrived]},
                {bytes, Bytes =:= lists:sum(trunkline_parcel:sizes(Parcel))},
                %% nothing but large binaries is taken out, and of few terms all of them
                {taken, are_among([Binary || [Binary] <- Taken], Near ++ Far)},
                {once, length(Taken) =< length(Near ++ Far)},
                {all, Terms > ?LOOKED_AT orelse length(Taken) >= length(Near)},
                {not_copied, are_among(tl(Arrived), Near1 ++ Far1)}])
         end).

%% However many large binaries there are and wherever, of so many terms no more can be
%% taken out; and what is sent is the message and little besides.
parcel_bounds(_) -> check(prop_parcel_bounds()).

prop_parcel_bounds() ->
    ?ALL(Plan, plan(),
         begin
             Term = build(Plan),
             Parcel = trunkline_parcel:pack(Term),
             conjunction(
               [{segments, length(trunkline_parcel:sizes(Parcel)) =< 1 + ?LOOKED_AT},
                {bytes, trunkline_parcel:bytes(Parcel) < 1000 + erlang:external_size(Term) * 1.2}])
         end).

%% At the top it is a segment by itself, on both sides the very same binary, and
%% keeps alive what it did before.
prop_alone() ->
    ?ALL({Offset, Bytes, Copied}, {range(0, 1000), range(?LARGE, 500_000), boolean()},
         begin
             Binary = case Copied of
                          true -> binary:copy(stock(Offset, Bytes));
                          false -> stock(Offset, Bytes)
                      end,
             [First, [Sent]] = trunkline_parcel:segments(trunkline_parcel:pack(Binary)),
             Unpacked = trunkline_parcel:unpack([iolist_to_binary(First), Sent]),
             erts_debug:same(Sent, Binary) andalso erts_debug:same(Unpacked, Sent)
                 andalso binary:referenced_byte_size(Sent) =:=
                 case Copied of true -> Bytes; false -> ?STOCK end andalso iolist_size(First) < 100
         end).

%% How many terms there are to look at, and which of them are large binaries: those
%% that must be taken out, and those that need not, as the way to them is long to tell.
%% It is not looked at the keys of maps, nor at the last tail of an improper list.
look(Binary) when is_binary(Binary), byte_size(Binary) >= ?LARGE ->
    {1, [Binary], []};
look(Tuple) when is_tuple(Tuple) ->
    look_at(tuple_to_list(Tuple), {1, [], []});
look(Map) when is_map(Map) ->
    maps:fold(
      fun(Key, Value, {Terms, Near, Far}) ->
              case is_atom(Key) orelse is_integer(Key) andalso abs(Key) < 1 bsl 32 of
                  true -> look_at([Value], {Terms, Near, Far});
                  false -> {N, Near1, Far1} = look(Value), {Terms + N, Near, Near1 ++ Far1 ++ Far}
              end
      end, {1, [], []}, Map);
look([_ | _] = List) ->
    look_at(List, {1, [], []});
look(_) ->
    {1, [], []}.

look_at([Term | Rest], {Terms, Near, Far}) ->
    {N, Near1, Far1} = look(Term),
    look_at(Rest, {Terms + N, Near1 ++ Near, Far1 ++ Far});
look_at(_, Seen) ->
    Seen.

%% The same in memory, not copies of them.
are_among(Binaries, All) ->
    lists:all(fun(Binary) -> lists:any(fun(Other) -> erts_debug:same(Binary, Other) end, All) end,
              Binaries).

%% A term, described: a counterexample should be short, and pids and funs have
%% nothing that could be printed and read again.
plan() ->
    frequency([{4, tree()},
               %% more than are looked at, or nearly
               {1, {many, container(), range(90, 110), tree()}},
               %% deeper than is looked, or nearly
               {2, {deep, container(), boolean(), oneof([range(1, 10), range(30, 60), 5000]),
                    tree()}}]).

tree() -> ?SIZED(Size, tree(Size)).

tree(Size) when Size < 2 ->
    frequency([{3, leaf()}, {2, large()}]);
tree(Size) ->
    Less = ?LAZY(tree(Size div 3)),
    Some = ?LAZY(resize(5, list(tree(Size div 3)))),
    frequency([{1, Less}, {2, {tuple, Some}}, {2, {list, Some}}, {1, {improper, Some, Less}},
               {2, {map, ?LAZY(resize(5, list({tree(Size div 3), tree(Size div 3)})))}}]).

container() -> oneof([tuple, list, map]).

leaf() ->
    oneof([{just, oneof([int(), largeint(), float(), -0.0, 1 bsl 2000, - (1 bsl 64), atom(), '', [],
                         {}, #{}, 'größe', bitstring(), binary(), "text", [1, 2, 3, 1000]])},
           {made,
            oneof([pid, ref, port, local_fun, closure, external_fun, foreign_pid, foreign_ref])}]).

large() ->
    {oneof([shared, shared, copied]), range(0, 1000),
     frequency([{1, range(64, 200)}, {1, range(60_000, 70_000)}, {3, range(?LARGE - 1, ?LARGE + 1)},
                {1, range(?LARGE, 400_000)}])}.

build({just, Term}) -> Term;
build({made, pid}) -> self();
build({made, ref}) -> make_ref();
build({made, port}) -> hd(erlang:ports());
build({made, local_fun}) -> fun build/1;
build({made, closure}) -> Big = stock(7, ?LARGE + 7), fun() -> Big end;
build({made, external_fun}) -> fun ?MODULE:all/0;
build({made, foreign_pid}) -> binary_to_term(<<131, 88, 119, 3, "a@b", 77:32, 7:32, 5:32>>);
build({made, foreign_ref}) ->
    binary_to_term(<<131, 90, 3:16, 119, 3, "a@b", 5:32, 1:32, 2:32, 3:32>>);
build({shared, Offset, Bytes}) -> stock(Offset, Bytes);
build({copied, Offset, Bytes}) -> binary:copy(stock(Offset, Bytes));
build({tuple, Plans}) -> list_to_tuple([build(Plan) || Plan <- Plans]);
build({list, Plans}) -> [build(Plan) || Plan <- Plans];
build({improper, Plans, Last}) -> [build(Plan) || Plan <- Plans] ++ build(Last);
build({map, Pairs}) -> maps:from_list([{build(Key), build(Value)} || {Key, Value} <- Pairs]);
build({many, What, N, Plan}) ->
    One = build(Plan),
    wrap(What, [One | [stock(I, ?LARGE) || I <- lists:seq(2, N)]]);
build({deep, What, First, Depth, Plan}) ->
    Beside = fun(I) when Depth < 1000 -> stock(I, ?LARGE);
                (I) -> I
             end,
    lists:foldl(fun(I, Term) when First -> wrap(What, [Term, Beside(I), Beside(I + 1)]);
                   (I, Term) -> wrap(What, [Beside(I), Beside(I + 1), Term])
                end, build(Plan), lists:seq(1, Depth)).

wrap(tuple, Terms) -> list_to_tuple(Terms);
wrap(list, Terms) -> Terms;
wrap(map, Terms) -> maps:from_list(lists:zip(lists:seq(1, length(Terms)), Terms)).

%% --- fragments and reassembly: everything arrives once, whoever carries it ----------------

-define(SLOTS, 3).

%% Parcels of a few bytes, so that small numbers reach all of their edges.
fragments(_) -> check(400, prop_fragments()).

prop_fragments() ->
    ?ALL({Commands, Quanta}, {moves([{3, {add, range(0, 1000), segments()}}], range(1, 30)),
                              non_empty(list(range(1, 30)))},
         run_fragments(Commands, Quanta, [])).

%% Messages as they are, and fragments as they are.
journey(_) -> check(150, prop_journey()).

prop_journey() ->
    ?ALL({Plans, Commands, Quanta}, {messages(), moves([], quantum()), non_empty(list(quantum()))},
         begin
             Terms = [build(Plan) || Plan <- Plans],
             run_fragments(Commands, Quanta,
                           [{trunkline_parcel:pack(Term), {message, Term}} || Term <- Terms])
         end).

messages() -> ?LET(N, range(1, 3), vector(N, frequency([{4, tree()}, {1, plan()}]))).

quantum() -> oneof([range(60_000, 300_000), range(100_000, 4_000_000), ?LARGE]).

%% More commands than PropEr's sizes would give.
moves(More, Quantum) ->
    ?SIZED(Size, resize(3 * Size, list(frequency([{12, {next, slot(), Quantum}},
                                                  {12, {arrive, slot(), range(1, 5)}},
                                                  {2, {break, slot()}},
                                                  {2, {done, range(0, 20)}},
                                                  {1, {abandon, range(0, 20)}} | More])))).

slot() -> range(1, ?SLOTS).

segments() -> resize(6, non_empty(list(non_empty(list(range(1, 40)))))).

%% It is made by hand: segments, each of some pieces.
by_hand(Offset, Segments) ->
    {Binaries, _} =
        lists:mapfoldl(fun(Pieces, At) ->
                               lists:mapfoldl(fun(Bytes, A) -> {stock(A, Bytes), A + Bytes} end, At,
                                              Pieces)
                       end, Offset, Segments),
    {{[lists:sum(Pieces) || Pieces <- Segments], Binaries}, by_hand}.

%% The model: of each parcel that is not done, what it is, its number, which bytes are under way
%% or have arrived, and where fragments have ended; of each carrier, what is under way; which
%% parcels are complete; and what parcels have had because they had the least left, beyond what
%% others have had because they were the oldest.
-record(known, {message :: {message, term()} | by_hand,
                whole :: binary(), segments :: [binary()], sizes :: [pos_integer()],
                sent = #{} :: #{Offset :: non_neg_integer() => Length :: pos_integer()},
                ends :: [pos_integer()], number :: integer()}).
-record(way, {name :: term(), under_way = [] :: [tuple()], arrived = 0 :: non_neg_integer()}).
-record(model,
        {fragments = trunkline_fragments:new(), reassembly = trunkline_reassembly:new(),
         ways :: #{pos_integer() => #way{}}, known = #{} :: #{trunkline_fragments:id() => #known{}},
         %% Arrived, of what is not complete.
         bytes = #{} :: #{trunkline_fragments:id() => pos_integer()},
         complete = [] :: [trunkline_fragments:id()],                     % and not done
         next = 1 :: pos_integer(), ahead = 0 :: integer(), longest = 0 :: non_neg_integer()}).

%% Fails where it is not as in the model.
run_fragments(Commands, Quanta, Parcels) ->
    M = #model{ways = maps:from_list([{Slot, #way{name = {Slot, 0}}}
                                      || Slot <- lists:seq(1, ?SLOTS)])},
    M1 = steps(Commands, lists:foldl(fun add_parcel/2, M, Parcels)),
    #model{fragments = F} = M2 = finish(Quanta, M1),
    false = trunkline_fragments:is_waiting(F),
    true = trunkline_fragments:is_empty(F),
    none = trunkline_fragments:next({1, 0}, 1, F),
    is_forgotten(M2).

steps(Commands, M) ->
    lists:foldl(fun(Command, M0) -> agree(step(Command, M0)) end, M, Commands).

agree(#model{fragments = F, known = Known} = M) ->
    Waiting = waiting(Known) =/= [],
    Waiting = trunkline_fragments:is_waiting(F),
    Empty = map_size(Known) =:= 0,
    Empty = trunkline_fragments:is_empty(F),
    M.

waiting(Known) -> [K || K <- maps:values(Known), left(K) > 0].

left(#known{whole = Whole, sent = Sent}) -> byte_size(Whole) - lists:sum(maps:values(Sent)).

step({add, Offset, Segments}, M) ->
    add_parcel(by_hand(Offset, Segments), M);
step({next, Slot, Quantum}, #model{fragments = F, ways = Ways, known = Known} = M) ->
    #{Slot := #way{name = Name, under_way = UnderWay} = Way} = Ways,
    case trunkline_fragments:next(Name, Quantum, F) of
        none ->
            [] = waiting(Known),
            M;
        {{Id, Size, Offset, Length, Data} = Fragment, F1} ->
            #{Id := K} = Known,
            Entry = {Id, Size, Offset, Length, iolist_to_binary(Data)},
            turn(K, Length,
                 M#model{fragments = F1, known = Known#{Id := sent(Fragment, Quantum, K)},
                         ways = Ways#{Slot := Way#way{under_way = UnderWay ++ [Entry]}}},
                 waiting(Known))
    end;
step({arrive, _, 0}, M) ->
    M;
step({arrive, Slot, N}, #model{ways = Ways} = M) ->
    case Ways of
        #{Slot := #way{under_way = [Entry | UnderWay], arrived = Arrived} = Way} ->
            M1 =
                M#model{ways = Ways#{Slot := Way#way{under_way = UnderWay, arrived = Arrived + 1}}},
            step({arrive, Slot, N - 1}, arrived(Entry, M1));
        #{} ->
            M
    end;
step({break, Slot},
     #model{fragments = F, reassembly = R, ways = Ways, known = Known, bytes = Bytes} = M) ->
    #{Slot := #way{name = {_, N} = Name, under_way = Lost, arrived = Arrived}} = Ways,
    F1 = trunkline_fragments:cut(Name, Arrived, F),
    F1 = trunkline_fragments:cut(Name, 0, F1),           % who says it again says nothing
    %% What of incomplete parcels has arrived.
    true = lists:sum([byte_size(Part) || {arriving, _, Parts} <- maps:values(R),
                                         Part <- maps:values(Parts)])
        =:= lists:sum(maps:values(Bytes)),
    M#model{fragments = F1,
            known = lists:foldl(fun lost/2, Known, Lost),
            ways = Ways#{Slot := #way{name = {Slot, N + 1}}}};
step({done, _}, #model{complete = []} = M) ->
    M;
step({done, N}, #model{fragments = F, complete = Complete, known = Known} = M) ->
    Id = lists:nth(1 + N rem length(Complete), Complete),
    F1 = trunkline_fragments:done(Id, F),
    F1 = trunkline_fragments:done(Id, F1),
    M#model{fragments = F1, complete = lists:delete(Id, Complete), known = maps:remove(Id, Known)};
step({abandon, N}, #model{fragments = F, complete = Complete, known = Known} = M) ->
    case maps:keys(Known) -- Complete of
        [] ->
            M;
        Ids ->
            Id = lists:nth(1 + N rem length(Ids), Ids),
            M#model{fragments = trunkline_fragments:done(Id, F), known = maps:remove(Id, Known)}
    end.

%% It is the turn of the oldest parcel, or of that with the least left, and of those with the same
%% of the oldest. Neither of the two gets much more than the other.
turn(#known{number = Number}, Length, #model{ahead = Ahead, longest = Longest} = M, Waiting) ->
    Oldest = lists:min([N || #known{number = N} <- Waiting]),
    {_, Least} = lists:min([{left(Other), N} || #known{number = N} = Other <- Waiting]),
    Ahead1 = if Oldest =:= Least, Number =:= Oldest -> 0;
                Number =:= Oldest -> Ahead - Length;
                Number =:= Least -> Ahead + Length
             end,
    Longest1 = max(Longest, Length),
    true = abs(Ahead1) =< Longest1,
    M#model{ahead = Ahead1, longest = Longest1}.

add_parcel({Parcel, Message}, #model{fragments = F, known = Known, next = N} = M) ->
    Id = {lists:nth(1 + N rem 3, [1, 2, 64]), N},
    Sizes = trunkline_parcel:sizes(Parcel),
    Segments = [iolist_to_binary(Segment) || Segment <- trunkline_parcel:segments(Parcel)],
    M#model{fragments = trunkline_fragments:add(Id, Parcel, F), next = N + 1,
            known = Known#{Id => #known{message = Message, whole = iolist_to_binary(Segments),
                                        segments = Segments, sizes = Sizes,
                                        ends = segment_ends(Sizes), number = N}}}.

%% The fragment is what it says, within one segment, not under way already, and as
%% long as it should be.
sent({_, Size, Offset, Length, Data}, Quantum,
     #known{whole = Whole, sizes = Sizes, sent = Sent, ends = Ends} = K) ->
    Size = byte_size(Whole),
    End = Offset + Length,
    true = iolist_to_binary(Data) =:= binary:part(Whole, Offset, Length),
    [] = [E || E <- segment_ends(Sizes), E > Offset, E < End],
    [] = [O || {O, L} <- maps:to_list(Sent), O < End, O + L > Offset],
    true = Length > 0 andalso Length =< 2 * Quantum,
    true = Length =:= Quantum orelse lists:member(End, Ends),
    K#known{sent = Sent#{Offset => Length}, ends = lists:usort([End | Ends])}.

segment_ends(Sizes) ->
    {Ends, _} = lists:mapfoldl(fun(Size, At) -> {At + Size, At + Size} end, 0, Sizes),
    Ends.

%% What is lost counts as older than what is not.
lost({Id, _, Offset, Length, _}, Known) ->
    case Known of
        #{Id := #known{sent = Sent, number = Number} = K} ->
            #{Offset := Length} = Sent,
            Known#{Id := K#known{sent = maps:remove(Offset, Sent),
                                 number = if Number > 0 -> Number - 1_000_000;
                                             true -> Number
                                          end}};
        #{} ->
            Known
    end.

arrived({Id, Size, Offset, Length, Data},
        #model{reassembly = R, known = Known, bytes = Bytes, complete = Complete} = M) ->
    Sum = maps:get(Id, Bytes, 0) + Length,
    case trunkline_reassembly:add(Id, Size, Offset, Data, R) of
        {incomplete, R1} ->
            true = Sum < Size,
            %% it is there already
            {incomplete, R1} = trunkline_reassembly:add(Id, Size, Offset, Data, R1),
            M#model{reassembly = R1, bytes = Bytes#{Id => Sum}};
        {complete, Parts, R1} ->
            Sum = Size,
            false = lists:member(Id, Complete),
            M1 = M#model{reassembly = R1, bytes = maps:remove(Id, Bytes)},
            case Known of
                #{Id := K} -> true = is_whole(Parts, K), M1#model{complete = [Id | Complete]};
                #{} -> M1                                          % abandoned, and yet it arrived
            end
    end.

%% A segment that came in one piece has not been copied.
is_whole(Parts, #known{message = Message, sizes = Sizes, segments = Segments}) ->
    Arrived = trunkline_reassembly:segments(Parts, Sizes),
    Starts = [0 | segment_ends(lists:droplast(Sizes))],
    Arrived =:= Segments
        andalso lists:all(fun({Start, Segment}) ->
                                  {Start, Part} = lists:keyfind(Start, 1, Parts),
                                  byte_size(Part) < byte_size(Segment)
                                      orelse erts_debug:same(Part, Segment)
                          end, lists:zip(Starts, Arrived))
        andalso (Message =:= by_hand
                 orelse Message =:= {message, trunkline_parcel:unpack(Arrived)}).

%% Whatever is under way arrives in the end, and what has been lost is sent again.
finish([Quantum | Quanta], #model{fragments = F} = M) ->
    Slot = 1 + Quantum rem ?SLOTS,
    All = [{arrive, S, 1_000_000} || S <- lists:seq(1, ?SLOTS)],
    case trunkline_fragments:is_waiting(F) of
        true ->
            finish(Quanta ++ [Quantum],
                   steps([{next, Slot, Quantum}, {next, 1 + Slot rem ?SLOTS, Quantum},
                          {arrive, Slot, 1}, {done, Quantum}], M));
        false ->
            #model{complete = Complete} = M1 = steps(All, M),
            steps([{done, 0} || _ <- Complete] ++ [{break, Slot}], M1)
    end.

%% When everything is done, its next fragment makes a carrier forget all before it:
%% what is left is as much as if there had been nothing else.
is_forgotten(#model{fragments = F, ways = Ways}) ->
    {Parcel, _} = by_hand(0, [[1]]),
    Id = {1, 1_000_000},
    More = fun(#way{name = Name}, F0) ->
                   {_, F1} = trunkline_fragments:next(Name, 1,
                                                      trunkline_fragments:add(Id, Parcel, F0)),
                   trunkline_fragments:done(Id, F1)
           end,
    [Left, Least] = [erts_debug:flat_size(lists:foldl(More, F0, maps:values(Ways)))
                     || F0 <- [F, trunkline_fragments:new()]],
    Left =< Least.

%% --- notices: what a sender sends is marked while it has a large message on the way ------------

%% All large messages in their order, with their senders, their charges, and where each is: in the
%% lane, or under way since some batch; the terms of those whose openers have not fetched them; and
%% the last number.
-record(large, {list = [], terms = #{}, last = 0}).

notices(_) -> check(prop_notices()).

prop_notices() ->
    ?FORALL(Steps, list(notices_step()),
            begin
                {_, Model, Bad} = lists:foldl(fun notices_step/2,
                                              {trunkline_notices:new(), #large{}, []}, Steps),
                ?WHENFAIL(io:format("~p~n~p~n", [Model, Bad]), Bad =:= [])
            end).

notices_step() ->
    frequency([{3, {large, range(1, 3), pos_integer()}}, {4, {small, range(1, 3)}},
               {3, {leave, range(1, 20)}}, {3, {settle, nat()}}, {1, {before, range(1, 20)}},
               {2, {keep, nat()}}, {1, {fetch, nat()}}]).

notices_step(Step, {Notices, Model, Bad}) ->
    {Notices1, Model1, IsRight} = notices_step(Step, Notices, Model),
    #large{list = List, terms = Terms, last = Last} = Model1,
    Of = fun(Sender) -> length([S || {_, S, _, _} <- List, S =:= Sender]) end,
    %% Also those that have been settled, and one that is not there yet.
    Numbers = lists:seq(1, Last + 1),
    UnderWay = lists:sort([N || {N, _, _, {batch, _}} <- List]),
    Holds = [trunkline_notices:is_empty(Notices1) =:= (List =:= []),
             trunkline_notices:are_in_lane(Notices1) =:= lists:keymember(lane, 4, List),
             lists:sort(trunkline_notices:under_way(Notices1)) =:= UnderWay,
             trunkline_notices:under_way(Numbers, Notices1) =:= UnderWay,
             [trunkline_notices:term(N, Notices1) || N <- Numbers]
                 =:= [maps:get(N, Terms, none) || N <- Numbers]
             | [trunkline_notices:is_marked(S, Notices1) =:= (Of(S) > 0) || S <- [1, 2, 3]]],
    {Notices1, Model1, [Step || not lists:all(fun(Is) -> Is end, [IsRight | Holds])] ++ Bad}.

%% A number is never used again: late news of a message must not be taken for that of another one.
notices_step({large, Sender, Charge}, Notices, #large{list = List, last = Last} = Model) ->
    Entry = [{parcel, Charge, to} | parcel],
    {[{parcel, 7, N, Sender, to} | parcel], Notices1} =
        trunkline_notices:mark(7, Sender, Entry, Notices),
    {Notices1, Model#large{list = List ++ [{N, Sender, Charge, lane}], last = N}, N > Last};
notices_step({small, Sender}, Notices, #large{list = List} = Model) ->
    {Entry, Notices} = trunkline_notices:mark(7, Sender, [to | message], Notices),
    {Notices, Model, Entry =:= case lists:keymember(Sender, 2, List) of
                                   true -> [{behind, 7, Sender, to} | message];
                                   false -> [to | message]
                               end};
notices_step({leave, Batch}, Notices, #large{list = List} = Model) ->
    case lists:keyfind(lane, 4, List) of
        {N, Sender, Charge, lane} ->
            Left = lists:keyreplace(N, 1, List, {N, Sender, Charge, {batch, Batch}}),
            {trunkline_notices:leave(N, Batch, Notices), Model#large{list = Left}, true};
        false ->
            {Notices, Model, true}
    end;
notices_step({settle, Nth}, Notices, #large{list = [_ | _] = List, terms = Terms} = Model) ->
    {N, _, Charge, _} = nth(Nth, List),
    {Charged, Notices1} = trunkline_notices:settle(N, Notices),
    {Notices1, Model#large{list = lists:keydelete(N, 1, List), terms = maps:remove(N, Terms)},
     Charged =:= Charge};
notices_step({before, Batch}, Notices, #large{list = List} = Model) ->
    Before = [N || {N, _, _, {batch, B}} <- List, B < Batch],
    {Notices, Model,
     lists:sort(trunkline_notices:under_way_before(Batch, Notices)) =:= lists:sort(Before)};
notices_step({keep, Nth}, Notices, #large{list = [_ | _] = List, terms = Terms} = Model) ->
    {N, _, _, _} = nth(Nth, List),
    {trunkline_notices:keep_term(N, {term, N}, Notices),
     Model#large{terms = Terms#{N => {term, N}}}, true};
notices_step({fetch, Nth}, Notices, #large{terms = Terms} = Model) when map_size(Terms) > 0 ->
    N = nth_key(Nth, Terms),
    {trunkline_notices:without_term(N, Notices), Model#large{terms = maps:remove(N, Terms)}, true};
notices_step(_, Notices, Model) ->
    {Notices, Model, true}.

nth(N, List) -> lists:nth(N rem length(List) + 1, List).

%% --- replies: what enters the lane is counted, and its agent hears of it once ---------------

%% What the lane has to know of a reply is in its entry: whether it is large, and whether it comes
%% behind one that is. Its agent hears of it when it has left, and not before.
replies(_) -> check(300, prop_replies()).

-record(replied,
        {replies :: trunkline_replies:replies(),
         notices = trunkline_notices:new() :: trunkline_notices:notices(),
         inside = [] :: list(),              % {Caller, Server}, of the agent that is this process
         small = 0 :: integer(),             % the levels of the gate
         marked = [] :: list(),              % servers with large replies
         numbers = [] :: list()}).           % of the large replies

prop_replies() ->
    ?ALL(Steps, list(replies_step()),
         begin
             Gate = trunkline_gate:new(1),
             Servers = [spawn(fun() -> receive stop -> ok end end) || _ <- [1, 2, 3]],
             Large = trunkline_gate:limit(1000),
             Replies = trunkline_replies:new(
                         #{node => node(), gate => Gate, stats => trunkline_stats:new(1),
                           lane => {1, 1 bsl 30},
                           bulk => {2, Large, trunkline_gate:limit(1 bsl 30)}}),
             Step = fun(S, W) -> replies_step(S, list_to_tuple(Servers), W) end,
             W = lists:foldl(Step, #replied{replies = Replies}, Steps),
             {Charges, _} = lists:mapfoldl(fun trunkline_notices:settle/2, W#replied.notices,
                                           W#replied.numbers),
             _ = replies_step(left, {}, W),
             [exit(Server, kill) || Server <- Servers],
             conjunction([{small, trunkline_gate:level(Gate, 1) =:= W#replied.small},
                          {large, trunkline_gate:level(Gate, 2) =:= lists:sum(Charges)}])
         end).

replies_step() ->
    frequency([{6, {enter, range(1, 3), oneof([small, binary, list]), boolean()}},
               {2, {term, range(1, 3)}}, {2, left}]).

replies_step(left, _, #replied{replies = Replies, inside = Inside} = W) ->
    case trunkline_replies:left(Replies) of
        none ->
            [] = Inside,
            W;
        Replies1 ->
            Told = receive {answered, Requests} -> Requests after 0 -> none end,
            {Same, Same} = {lists:sort(Inside), lists:sort(Told)},
            none = trunkline_replies:left(Replies1),
            W#replied{replies = Replies1, inside = []}
    end;
replies_step({enter, N, Kind, IsClosed}, Servers, W) ->
    Server = element(N, Servers),
    Reply = case Kind of
                small -> small;
                binary -> stock(0, 2000);
                list -> lists:seq(1000, 2000)
            end,
    Caller = make_ref(),
    Size = trunkline_shape:size(Reply),
    {Place, Entry, Notices, Replies} =
        trunkline_replies:enter(Size, {Caller, {self(), Server}, self()}, Reply, IsClosed,
                                W#replied.notices, W#replied.replies),
    Expected = case {Kind =:= small orelse IsClosed, lists:member(Server, W#replied.marked)} of
                   {true, true} -> [{behind, Place, Server, {reply, Caller, self()}} | Reply];
                   {true, false} -> [{reply, Caller} | Reply];
                   {false, _} -> large
               end,
    replies_entered(Expected, Reply, Caller, Server, Place, Entry,
                    W#replied{notices = Notices, replies = Replies});
replies_step({term, N}, Servers, W) ->
    Server = element(N, Servers),
    Reply = [{atom, M} || M <- lists:seq(1, 500)],
    Caller = make_ref(),
    {Place, Entry, Notices, Replies} =
        trunkline_replies:enter_term(trunkline_gate:charge(Reply),
                                     {Caller, {self(), Server}, self()},
                                     Reply, W#replied.notices, W#replied.replies),
    [_ | Parcel] = Entry,
    true = trunkline_parcel:is_term(Parcel),
    replies_entered(large, Reply, Caller, Server, Place, Entry,
                    W#replied{notices = Notices, replies = Replies}).

%% (Of a long term the lane hears when it has looked through its mailbox.)
replies_entered(large, Reply, Caller, Server, Place, Entry, #replied{numbers = Numbers} = W) ->
    [{parcel, Place, N, Server, {reply, Caller, _}} | Parcel] = Entry,
    Reply = trunkline_parcel:unpack_sent(Parcel),
    Replies = receive {looked_through, _} = Looked ->
                          trunkline_replies:event(Looked, W#replied.replies)
              after 0 ->
                      W#replied.replies
              end,
    replies_inside(Caller, Server, Place,
                   W#replied{replies = Replies, numbers = [N | Numbers],
                             marked = [Server | W#replied.marked]});
replies_entered(Entry, _, Caller, Server, Place, Entry, W) ->
    replies_inside(Caller, Server, Place, W).

replies_inside(Caller, Server, Place, #replied{inside = Inside, small = Small} = W) ->
    W#replied{inside = [{Caller, Server} | Inside], small = Small + Place}.

%% When a fence has arrived: those at the beginning that are terms, for a caller whose mailbox is
%% known, of a server that has nothing under way; and until they are too many.
first_replies(_) -> check(prop_first_replies()).

prop_first_replies() ->
    ?ALL({Plan, Most}, {list({range(1, 3), oneof([known, known, other]),
                              oneof([term, term, term, packed, message]), range(1, 5)}),
                        trunkline_in_turn:most_at_once() div 3},
         begin
             Servers = {Busy, _, _} = list_to_tuple([spawn(fun() -> ok end) || _ <- [1, 2, 3]]),
             {[_ | _], Notices} = trunkline_notices:mark(7, Busy, [{parcel, 7, to} | parcel],
                                                         trunkline_notices:new()),
             Questions = trunkline_questions:learned(self(), go, trunkline_questions:new()),
             Entries = [first_entry(element(S, Servers), Whose, Kind, N * Most)
                        || {S, Whose, Kind, N} <- Plan],
             Under = trunkline_notices:leave(1, 1, Notices),
             {First, Rest} = trunkline_replies:first(Entries, Under, Questions),
             true = ets:delete(trunkline_questions:table(Questions)),
             {Few, _} = lists:mapfoldl(fun({S, Whose, Kind, N}, Bytes) ->
                                               {S =/= 1 andalso Whose =:= known
                                                andalso Kind =:= term
                                                andalso Bytes < trunkline_in_turn:most_at_once(),
                                                Bytes + N * Most}
                                       end, 0, Plan),
             First ++ Rest =:= Entries
                 andalso length(First) =:= length(lists:takewhile(fun(Is) -> Is end, Few))
         end).

first_entry(_, _, message, _) ->
    [self() | message];
first_entry(Server, Whose, Kind, Bytes) ->
    Caller = case Whose of
                 known -> self();
                 other -> Server
             end,
    [{parcel, 7, 7, Server, {reply, make_ref(), Caller}}
     | case Kind of
           term -> trunkline_parcel:term(term, Bytes);
           packed -> trunkline_parcel:pack(packed)
       end].

%% --- questions: each sender is told once, and no more than what an inlet has said since the tick

%% A sender is told what has been said of its receiver since the last tick, if nothing is in flight;
%% otherwise the inlet is asked. About a receiver nobody asks while a question is late. Requests
%% that are not sent are cancelled.
-record(world,
        {questions :: trunkline_questions:questions(),
         refs = #{} :: map(),                % of all questions: {Reference, Sender}
         said = #{} :: map(),                % of a receiver, since the last tick
         open = #{} :: map(),                % questions: about whom, and whether to look
         late = [] :: list(),                % those whose senders have given up, or are dead
         granted = #{} :: map(),             % whom it was for, and ticks since its sender's end
         dead = [] :: list(),                % questions whose sender has been killed
         bad = [] :: list()}).

questions(_) -> check(prop_questions()).

prop_questions() ->
    ?ALL(Steps, list(question_step()),
         begin
             Questions = trunkline_questions:new(),
             #world{bad = Bad, refs = Refs} =
                 lists:foldl(fun question_step/2, #world{questions = Questions},
                             lists:enumerate(Steps)),
             true = ets:delete(trunkline_questions:table(Questions)),
             [begin unalias(Ref), exit(Sender, kill) end || {Ref, Sender} <- maps:values(Refs)],
             Bad =:= []
         end).

question_step() ->
    frequency([{6, {ask, question_to(), boolean()}},
               {6, {answer, nat(), oneof([go, {go, self(), plain}, noproc, {no, go}])}},
               {2, {learn, question_receiver(), oneof([go, no])}}, {4, {sent, nat()}},
               {2, {not_sent, nat()}}, {2, {late, nat()}}, {2, {kill, nat()}},
               {3, {tick, boolean()}}, {1, refuse}]).

question_receiver() -> oneof([self(), whereis(init), name]).

question_to() ->
    oneof([question_receiver(), {call, question_receiver(), self(), make_ref()},
           {reply, make_ref(), self()}, {reply, make_ref()}]).

receiver({call, Server, _, _}) -> Server;
receiver({reply, _, Pid}) -> Pid;
receiver({reply, Caller}) -> Caller;
receiver(To) -> To.

question_step({N, {ask, To, IsIdle}}, #world{open = Open, granted = Granted, said = Said} = W) ->
    Ref = alias(),
    Sender = spawn(fun() -> receive stop -> ok end end),
    W1 = W#world{refs = (W#world.refs)#{N => {Ref, Sender}}},
    Expected = case To of
                   {reply, _} -> go;
                   _ -> case is_silent(To, W) of
                            true -> no;
                            false -> maps:get(receiver(To), Said, look)
                        end
               end,
    Expected = trunkline_questions:known(To, W#world.questions),
    {Commands, Questions} =
        trunkline_questions:ask(Ref, Sender, To, IsIdle, W#world.questions),
    W2 = W1#world{questions = Questions},
    Self = self(),
    case {Commands, told(Ref)} of
        {[], go} ->
            bad(Expected =/= go orelse not IsIdle orelse is_call(To), N,
                W2#world{granted = Granted#{N => {To, 0}}});
        {[], no} ->
            bad(Expected =/= no, N, W2);
        {[{question, Sender, [{turn, To, Ref, Self} | What]}], none} ->
            bad(What =/= case Expected of
                             go -> known;
                             _ -> Expected
                         end
                orelse IsIdle andalso What =:= known andalso not is_call(To), N,
                W2#world{open = Open#{N => {To, What}}})
    end;
question_step({N, {answer, Nth, Answer}}, #world{open = Open, granted = Granted} = W) ->
    {Of, Ref} = nth_question(Nth, Open, W),
    {Commands, Questions} = trunkline_questions:answered(Ref, Answer, W#world.questions),
    Told = told(Ref),
    IsLate = lists:member(Of, W#world.late),
    IsGo = Answer =/= noproc andalso Answer =/= {no, go},
    case Open of
        #{Of := {Asked, What}} ->
            To = case Asked of
                     {call, _, Caller, Request} when element(1, Answer) =:= go ->
                         {call, element(2, Answer), Caller, Request};
                     _ -> Asked
                 end,
            W1 = said(To, if Answer =:= {no, go} -> no;
                             IsGo, What =:= look -> go;
                             true -> nothing
                          end, W#world{questions = Questions, open = maps:remove(Of, Open)}),
            {Expected, Cancelled} = if IsLate -> {none, []};
                                       Answer =:= {no, go} -> {no, cancelled(To)};
                                       true -> {Answer, []}
                                    end,
            bad(Told =/= Expected orelse Commands =/= Cancelled, N,
                W1#world{granted = if IsGo, not IsLate -> Granted#{Of => {To, 0}};
                                      true -> Granted
                                   end});
        #{} ->
            bad(Told =/= none orelse Commands =/= [] orelse Questions =/= W#world.questions, N, W)
    end;
question_step({_, {learn, Receiver, What}}, #world{questions = Questions} = W) ->
    said(Receiver, What,
         W#world{questions = trunkline_questions:learned(Receiver, What, Questions)});
question_step({N, {sent, Nth}}, #world{granted = Granted} = W) ->
    {Of, Ref} = nth_question(Nth, Granted, W),
    {How, Questions} = trunkline_questions:sent(Ref, W#world.questions),
    {unknown, Questions} = trunkline_questions:sent(Ref, Questions),
    Expected = case Granted of
                   #{Of := _} -> granted;
                   #{} -> unknown
               end,
    bad(How =/= Expected, N, W#world{questions = Questions, granted = maps:remove(Of, Granted)});
question_step({N, {not_sent, Nth}}, #world{granted = Granted} = W) ->
    {Of, Ref} = nth_question(Nth, Granted, W),
    {Commands, Questions} = trunkline_questions:not_sent(Ref, W#world.questions),
    Expected = case Granted of
                   #{Of := {To, _}} -> cancelled(To);
                   #{} -> []
               end,
    bad(Commands =/= Expected, N,
        W#world{questions = Questions, granted = maps:remove(Of, Granted)});
question_step({N, {late, Nth}}, #world{open = Open, late = Late} = W) ->
    {Of, Ref} = nth_question(Nth, maps:without(Late, Open), W),
    {Commands, Questions} = trunkline_questions:not_sent(Ref, W#world.questions),
    {Expected, Late1} = case Open of
                            #{Of := {To, _}} -> {cancelled(To), [Of | Late]};
                            #{} -> {[], Late}
                        end,
    bad(Commands =/= Expected, N, W#world{questions = Questions, late = Late1});
question_step({_, {kill, Nth}}, #world{open = Open, granted = Granted, refs = Refs} = W) ->
    case nth_key(Nth, maps:merge(Open, Granted)) of
        none ->
            W;
        Of ->
            {_, Sender} = maps:get(Of, Refs),
            Monitor = monitor(process, Sender),
            exit(Sender, kill),
            receive {'DOWN', Monitor, process, _, _} -> W#world{dead = [Of | W#world.dead]} end
    end;
question_step({N, {tick, MayAsk}}, #world{open = Open, granted = Granted, late = Late} = W) ->
    {Killed, Commands, Questions} = trunkline_questions:tick(MayAsk, W#world.questions),
    IsDead = fun(Of) -> lists:member(Of, W#world.dead) end,
    Sent = [To || {To, 1} <- maps:values(Granted)],
    Older = maps:from_list([{Of, {To, length([dead || IsDead(Of)])}}
                            || {Of, {To, 0}} <- maps:to_list(Granted)]),
    NewlyLate = [Of || Of <- maps:keys(Open) -- Late, IsDead(Of)],
    NotSent = [element(1, maps:get(Of, Open)) || Of <- NewlyLate],
    bad(Killed =/= length(Sent)
            orelse lists:sort(Commands) =/= lists:sort(lists:flatmap(fun cancelled/1,
                                                                     Sent ++ NotSent))
            orelse trunkline_questions:are_granted(Questions) =/= (map_size(Older) > 0)
            orelse not trunkline_questions:are_none_known(Questions), N,
        W#world{questions = Questions, granted = Older, said = #{}, late = NewlyLate ++ Late});
question_step({N, refuse}, #world{open = Open, refs = Refs, late = Late} = W) ->
    Questions = trunkline_questions:refuse(W#world.questions),
    Told = [Of || {Of, {Ref, _}} <- maps:to_list(Refs), told(Ref) =:= no],
    bad(lists:sort(Told) =/= lists:sort(maps:keys(Open) -- Late), N,
        #world{questions = Questions, refs = Refs, bad = W#world.bad}).

is_call(To) -> is_tuple(To) andalso element(1, To) =:= call.

cancelled({call, Server, Pid, Caller}) -> [{cancel, Pid, [{cancel, Server, Caller}]}];
cancelled(_) -> [].

%% What the sender of that question has been told.
told(Ref) ->
    receive {Ref, Answer} -> Answer
    after 0 -> none
    end.

nth_question(Nth, Map, #world{refs = Refs}) ->
    case nth_key(Nth, Map) of
        none -> {none, make_ref()};
        N -> {N, element(1, maps:get(N, Refs))}
    end.

%% A name may belong to another process at any time.
said(To, What, #world{said = Said} = W) ->
    Receiver = receiver(To),
    case is_pid(Receiver) andalso What =/= nothing of
        true -> W#world{said = Said#{Receiver => What}};
        false -> W
    end.

%% Whether a question about that receiver is late.
is_silent(To, #world{open = Open, late = Late}) ->
    lists:any(fun({Other, _}) -> receiver(Other) =:= receiver(To) end,
              maps:values(maps:with(Late, Open))).

bad(true, N, #world{bad = Bad} = W) -> W#world{bad = [N | Bad]};
bad(false, _, W) -> W.

nth_key(_, Map) when map_size(Map) =:= 0 -> none;
nth_key(Nth, Map) -> nth(Nth, lists:sort(maps:keys(Map))).

%% --- turns: a message waits for those it must not overtake, and for no others -------------

turns(_) -> check(prop_turns()).

prop_turns() ->
    ?ALL(Commands, ?SIZED(Size, resize(3 * Size, list(turns_command()))),
         run_turns(Commands, trunkline_turns:new(), [], 1)).

turns_command() ->
    frequency([{3, {enter, range(1, 3), receiver(), oneof([time, time, no_time])}},
               {2, {done, range(0, 20)}}]).

receiver() -> frequency([{6, range(1, 4)}, {1, any}]).

%% The model: {N, Sender, Receiver, Takes, State}, oldest first, until delivered; its
%% state is that it waits, or that it is being delivered.
run_turns([], Turns, [], _) ->
    Turns =:= trunkline_turns:new();
run_turns([], Turns, Model, N) ->
    run_turns([{done, N}], Turns, Model, N);
run_turns([{enter, S, R, Takes} | Commands], Turns, Model, N) ->
    are_free(process(S), Turns, Model) orelse error(is_free),
    {Expected, Model1} = deliver(process(S), Model ++ [{N, process(S), process(R), Takes, waits}]),
    {Now, Turns1} = trunkline_turns:enter(process(S), process(R), {Takes, N}, Turns),
    Now =:= Expected
        andalso (Turns1 =:= trunkline_turns:new()) =:= (Model1 =:= [])
        andalso run_turns(Commands, Turns1, Model1, N + 1);
run_turns([{done, K} | Commands], Turns, Model, N) ->
    case [Message || {_, _, _, _, delivering} = Message <- Model] of
        [] ->
            Model =:= [] andalso run_turns(Commands, Turns, Model, N);      % or all wait for nobody
        Out ->
            {_, Sender, Receiver, _, _} = Message = lists:nth(1 + K rem length(Out), Out),
            {Expected, Model1} = deliver(Sender, lists:delete(Message, Model)),
            {Now, Turns1} = trunkline_turns:done(Sender, Receiver, Turns),
            Now =:= Expected
                andalso (Turns1 =:= trunkline_turns:new()) =:= (Model1 =:= [])
                andalso run_turns(Commands, Turns1, Model1, N)
    end.

process(N) when is_integer(N) -> list_to_pid("<0." ++ integer_to_list(N) ++ ".0>");
process(Name) -> Name.

%% Who could get a message of this sender now.
are_free(Sender, Turns, Model) ->
    lists:all(fun(R) ->
                      {Now, _} = deliver(Sender,
                                         Model ++ [{next, Sender, process(R), no_time, waits}]),
                      trunkline_turns:is_free(Sender, process(R), Turns) =:= lists:member(next, Now)
              end, [1, 2, 3, 4]).

%% Of this sender, all that have nobody before them whom they must not overtake.
deliver(Sender, Model) -> deliver(Sender, Model, [], []).

deliver(_, [], Before, Now) ->
    {lists:reverse(Now), lists:reverse(Before)};
deliver(Sender, [{N, Sender, Receiver, Takes, waits} = Message | Model], Before, Now) ->
    Conflicts = [Other || {_, S, Other, _, _} <- Before, S =:= Sender,
                          Other =:= Receiver orelse Other =:= any orelse Receiver =:= any],
    case Takes of
        _ when Conflicts =/= [] -> deliver(Sender, Model, [Message | Before], Now);
        time ->
            deliver(Sender, Model, [{N, Sender, Receiver, Takes, delivering} | Before], [N | Now]);
        no_time -> deliver(Sender, Model, Before, [N | Now])
    end;
deliver(Sender, [Message | Model], Before, Now) ->
    deliver(Sender, Model, [Message | Before], Now).

%% --- quantum: it finds out what a connection moves in a turn -------------------------------

-define(TURN, 32_000).                  % us
-define(LEAST, 65536).
-define(MOST, (8 bsl 20)).

quantum(_) ->
    check(prop_quantum()),
    check(prop_rate()).

%% Whatever it is told.
prop_quantum() ->
    ?ALL(Steps, list(measurement()), run_quantum(Steps, trunkline_quantum:new())).

measurement() ->
    {oneof([range(1, 20_000_000), range(1, 2000),
            {of_quantum, range(50, 200)}]),      % bytes, or % of the quantum
     oneof([0, 1, ?TURN, ?TURN + 1, range(0, 80_000), range(0, 10_000_000)])}.

run_quantum([], _) ->
    true;
run_quantum([{What, Microseconds} | Steps], Quantum) ->
    Before = trunkline_quantum:bytes(Quantum),
    Bytes = case What of
                {of_quantum, Percent} -> max(1, Before * Percent div 100);
                _ -> What
            end,
    Quantum1 = trunkline_quantum:sent(Bytes, Microseconds, Quantum),
    After = trunkline_quantum:bytes(Quantum1),
    After >= ?LEAST andalso After =< ?MOST andalso After =< 2 * Before
        %% what is quick is no reason for less, and what is slow none for more
        andalso (Microseconds > ?TURN orelse After >= Before)
        andalso (Microseconds =< ?TURN orelse After =< Before)
        %% a short time tells of the buffer only, unless it was long enough for much
        andalso (Microseconds > ?TURN orelse Bytes >= Before orelse After =:= Before)
        %% one slow fragment does not take more than half
        andalso 2 * After >= Before - 1
        andalso run_quantum(Steps, Quantum1).

%% A connection of so many bytes a second. After few steps, wherever it came from, a
%% fragment takes a turn: one as long as the quantum, or the others, of which some are
%% up to twice as long.
prop_rate() ->
    ?ALL({History, LogRate, Percents},
         {list(measurement()), float(6.0, 9.7),
          oneof([vector(40, 100), vector(40, range(100, 200)), vector(40, 200)])},
         begin
             Rate = math:pow(10, LogRate) / 1_000_000,               % bytes/us
             Ideal = min(?MOST, max(?LEAST, Rate * ?TURN)),
             Start = lists:foldl(fun({Bytes, Us}, Q) when is_integer(Bytes) ->
                                         trunkline_quantum:sent(Bytes, Us, Q);
                                    (_, Q) -> Q
                                 end, trunkline_quantum:new(), History),
             {Quanta, _} =
                 lists:mapfoldl(fun(Percent, Q) ->
                                        Bytes = trunkline_quantum:bytes(Q) * Percent div 100,
                                        Q1 = trunkline_quantum:sent(Bytes, trunc(Bytes / Rate), Q),
                                        {trunkline_quantum:bytes(Q1), Q1}
                                end, Start, Percents),
             Longest = lists:max(Percents) / 100,
             lists:all(fun(Q) -> Q =< 1.1 * Ideal andalso Q >= Ideal / Longest / 1.1 end,
                       lists:nthtail(11, Quanta))
                 %% as it starts, within a factor of two after four
                 andalso (History =/= [] orelse lists:nth(4, Quanta) =< 2 * Ideal
                          andalso lists:nth(4, Quanta) >= Ideal / Longest / 2)
         end).

%% --- wire: what comes from a socket may be anything ------------------------------------------

wire(_) ->
    check(prop_hello()),
    check(prop_frame()),
    check(prop_proof()).

-define(MAGIC, "TRUNKLN1").

prop_hello() ->
    ?ALL({Token, Nonce, Junk}, {binary(16), binary(16), almost(<<?MAGIC, 0:256>>)},
         begin
             Hello = trunkline_wire:hello(Token, Nonce),
             byte_size(Hello) =:= trunkline_wire:hello_bytes()
                 andalso {ok, Token, Nonce} =:= trunkline_wire:parse_hello(Hello)
                 andalso trunkline_wire:parse_hello(Junk) =:=
                     case Junk of
                         <<?MAGIC, T:16/binary, N:16/binary>> -> {ok, T, N};
                         _ -> error
                     end
                 %% what is secret is so long, and is not used twice
                 andalso lists:all(fun({Make, Bytes}) ->
                                           byte_size(Make()) =:= Bytes andalso Make() =/= Make()
                                   end,
                                   [{fun trunkline_wire:token/0, 16},
                                    {fun trunkline_wire:secret/0, 32},
                                    {fun trunkline_wire:nonce/0, 16}])
         end).

%% A binary with some bits inverted, or cut off, or more than there should be.
almost(Binary) ->
    oneof([binary(), binary(byte_size(Binary)),
           ?LET(Bit, range(0, bit_size(Binary) - 1), invert(Bit, Binary)),
           ?LET({At, Bytes}, {range(0, byte_size(Binary)), binary()},
                <<(binary:part(Binary, 0, At))/binary, Bytes/binary>>),
           ?LET(Bytes, non_empty(binary()), <<Binary/binary, Bytes/binary>>),
           %% the beginning is right, and the rest anything
           ?LET(Bytes, binary(byte_size(Binary) - 8),
                <<(binary:part(Binary, 0, 8))/binary, Bytes/binary>>)]).

invert(Bit, Binary) ->
    <<Before:Bit/bits, B:1, After/bits>> = Binary,
    <<Before/bits, (1 - B):1, After/bits>>.

prop_frame() ->
    ?ALL({Stream, Number, Offset, Data, More, Junk},
         {stream(), any_64(), any_64(), oneof([<<>>, binary(), list(binary())]),
          oneof([-1, 0, 1, range(-1000, 1000), any_64()]),
          oneof([almost(<<S:16, 1:64, 9:64, 0:64, "some data">>)
                 || S <- [0, 1, 16#7fff, 16#8000, 16#8001, 16#ffff]])},
         begin
             Length = iolist_size(Data),
             Size = min((1 bsl 64) - 1, max(0, Offset + Length + More)),
             <<Rest:32, Frame/binary>> =
                 iolist_to_binary(
                   trunkline_wire:frame({{Stream, Number}, Size, Offset, Length, Data})),
             Expected = case Length > 0 andalso Offset + Length =< Size
                            andalso Number > 0 andalso Stream > 0 of
                            true -> {ok, {Stream, Number}, Size, Offset, iolist_to_binary(Data)};
                            false -> error
                        end,
             Rest =:= byte_size(Frame)
                 andalso Expected =:= trunkline_wire:parse_frame(Frame)
                 andalso is_sound(trunkline_wire:parse_frame(Junk), Junk)
                 andalso <<0:32>> =:= trunkline_wire:heartbeat()
         end).

%% The number of a lane.
stream() -> oneof([0, 1, 16#7fff, range(1, 64), range(0, 16#7fff)]).

any_64() -> oneof([0, 1, (1 bsl 64) - 1, range(0, 1000), range(0, (1 bsl 64) - 1)]).

is_sound(heartbeat, Junk) ->
    Junk =:= <<>>;
is_sound(error, Junk) ->
    case Junk of
        <<0:16, _/binary>> -> true;
        <<1:1, _:15, _/binary>> -> true;
        <<_:16, 0:64, _/binary>> -> true;
        <<_:10/binary, Size:64, Offset:64, _, Data/binary>> -> Offset + 1 + byte_size(Data) > Size;
        _ -> Junk =/= <<>>
    end;
is_sound({ok, Id, Size, Offset, Data}, Junk) ->
    Length = byte_size(Data),
    Length > 0 andalso Offset + Length =< Size
        andalso iolist_to_binary(trunkline_wire:frame({Id, Size, Offset, Length, Data})) =:=
        <<(byte_size(Junk)):32, Junk/binary>>.

%% Nobody has a right proof but who knows the secret, and each side has its own.
prop_proof() ->
    ?ALL({Who, Secret, Ours, Theirs, Wrong, Bit},
         {oneof([connecting, listening]), binary(32), binary(16), binary(16),
          {binary(32), binary(16), binary(16)}, range(0, 255)},
         begin
             Right = trunkline_wire:proof(Who, Secret, Ours, Theirs),
             Others = [trunkline_wire:proof(W, S, O, T)
                       || W <- [connecting, listening],
                          {S, O, T} <- others(Secret, Ours, Theirs, Wrong),
                          {W, S, O, T} =/= {Who, Secret, Ours, Theirs}],
             Sizes = [<<Right/binary, 0>>, <<Right/binary, Right/binary>>
                     | [binary:part(Right, 0, N) || N <- [0, 1, 16, 31]]],
             byte_size(Right) =:= trunkline_wire:proof_bytes()
                 andalso 16 + byte_size(Right) =:= trunkline_wire:welcome_bytes()
                 andalso Right =:=
                 hmac(Secret, <<(atom_to_binary(Who))/binary, Ours/binary, Theirs/binary>>)
                 andalso trunkline_wire:is_proof(binary:copy(Right), Right)
                 andalso not lists:any(fun(Proof) -> trunkline_wire:is_proof(Proof, Right) end,
                                       [invert(Bit, Right) | Others ++ Sizes])
         end).

%% Each with something else, and the nonces exchanged.
others(Secret, Ours, Theirs, {Secret1, Ours1, Theirs1}) ->
    [{Secret, Ours, Theirs}, {Secret1, Ours, Theirs}, {Secret, Ours1, Theirs},
     {Secret, Ours, Theirs1}, {Secret, Theirs, Ours}].

%% By RFC 2104: a node of another release must come to the same.
hmac(Key, Data) ->
    Pad = fun(Byte) -> crypto:exor(<<Key/binary, 0:256>>, binary:copy(<<Byte>>, 64)) end,
    crypto:hash(sha256, [Pad(16#5c), crypto:hash(sha256, [Pad(16#36), Data])]).
