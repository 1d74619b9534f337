%% The large messages of a lane: those that are still in it, and those that are under way beside it.
%%
%%     in the lane                 in a batch                         at the inlet
%%     {parcel, ...} | Parcel ──> {notice, ...} | Sizes ──> ... ──> delivered
%%        mark/4                     leave/3                            settle/2
%%
%% A large message leaves the lane when its turn comes, and a notice takes its place in the batch.
%% From when it enters the lane until the inlet says that it has been delivered, everything that its
%% sender sends is marked with the sender's pid, so that the inlet knows what has to wait
%% (trunkline_turns is its part). Without large messages nothing is marked:
%%
%%     [To | Message]                                      a message
%%     [{notice, Charge, Number, Sender, To} | Sizes]      the notice of a large one, or of a term
%%     [{behind, Charge, Sender, To} | Message]            comes behind a large one
%%
%% A term that its opener will fetch is kept here (see trunkline_opener).
%%
%% This module is pure: it decides, and has no side effects.
-module(trunkline_notices).
-moduledoc false.

-export([new/0, is_empty/1, are_in_lane/1, is_marked/2, mark/4, leave/3, settle/2]).
-export([under_way/1, under_way/2, under_way_before/2, has_under_way/2]).
-export([keep_term/3, term/2, without_term/2]).

-export_type([notices/0, serial/0, marked/0]).

-dialyzer({no_improper_lists, [mark/4]}).

%% Of a large message, in its lane.
-type serial() :: pos_integer().
-type batch() :: pos_integer().
-type to() :: trunkline_lane:to().
-type marked() :: {parcel, trunkline_gate:charge(), serial(), Sender :: pid(), to()}   % in the lane
                | {notice, trunkline_gate:charge(), serial(), Sender :: pid(), to()}   % in a batch
                | {behind, trunkline_gate:charge(), Sender :: pid(), to()}.

-record(notices,
        {next = 1 :: serial(),
         %% How many each sender has in the lane or under way.
         senders = #{} :: #{pid() => pos_integer()},
         %% Those that are not in a batch yet, and those under way, with what they were charged.
         in_lane = #{} :: #{serial() => {Sender :: pid(), trunkline_gate:charge()}},
         under_way = #{} :: #{serial() => {Sender :: pid(), trunkline_gate:charge(), batch()}},
         terms = #{} :: #{serial() => trunkline_parcel:parcel()}}).
-opaque notices() :: #notices{}.

-spec new() -> notices().
new() -> #notices{}.

%% Whether nothing has to be marked.
-spec is_empty(notices()) -> boolean().
is_empty(#notices{senders = Senders}) -> map_size(Senders) =:= 0.

-spec are_in_lane(notices()) -> boolean().
are_in_lane(#notices{in_lane = InLane}) -> map_size(InLane) > 0.

%% Whether what this process sends comes behind a large message of it.
-spec is_marked(Sender :: pid(), notices()) -> boolean().
is_marked(Sender, #notices{senders = Senders}) -> is_map_key(Sender, Senders).

%% An entry, as it should be in the lane, and what it is charged there. (That of a large message has
%% its own charge, too.)
-spec mark(trunkline_gate:charge(), Sender :: pid(), Entry, notices()) ->
          {Entry, notices()} when Entry :: nonempty_improper_list(term(), term()).
mark(Place, Sender, [{parcel, Charge, To} | Parcel],
     #notices{senders = Senders, in_lane = InLane, next = N} = L) ->
    {[{parcel, Place, N, Sender, To} | Parcel],
     L#notices{senders = Senders#{Sender => maps:get(Sender, Senders, 0) + 1},
               in_lane = InLane#{N => {Sender, Charge}}, next = N + 1}};
mark(Charge, Sender, [To | Message], #notices{senders = Senders} = L)
  when is_map_key(Sender, Senders) ->
    {[{behind, Charge, Sender, To} | Message], L};
mark(_, _, Entry, L) ->
    {Entry, L}.

%% It leaves the lane, with that batch.
-spec leave(serial(), batch(), notices()) -> notices().
leave(N, Batch, #notices{in_lane = InLane, under_way = UnderWay} = L) ->
    {{Sender, Charge}, InLane1} = maps:take(N, InLane),
    L#notices{in_lane = InLane1, under_way = UnderWay#{N => {Sender, Charge, Batch}}}.

%% It is neither in the lane nor under way any more. Returns what it was charged.
-spec settle(serial(), notices()) -> {trunkline_gate:charge(), notices()}.
settle(N, #notices{in_lane = InLane, under_way = UnderWay, senders = Senders, terms = Terms} = L) ->
    {Sender, Charge} = case UnderWay of
                           #{N := {S, C, _}} -> {S, C};
                           #{} -> maps:get(N, InLane)
                       end,
    {Charge, L#notices{in_lane = maps:remove(N, InLane), under_way = maps:remove(N, UnderWay),
                       terms = maps:remove(N, Terms),
                       senders = case Senders of
                                     #{Sender := 1} -> maps:remove(Sender, Senders);
                                     #{Sender := More} -> Senders#{Sender := More - 1}
                                 end}}.

-spec under_way(notices()) -> [serial()].
under_way(#notices{under_way = UnderWay}) -> maps:keys(UnderWay).

%% Those of these numbers that are under way.
-spec under_way([serial()], notices()) -> [serial()].
under_way(Numbers, #notices{under_way = UnderWay}) ->
    [N || N <- Numbers, is_map_key(N, UnderWay)].

%% Those that left with an earlier batch.
-spec under_way_before(batch(), notices()) -> [serial()].
under_way_before(Batch, #notices{under_way = UnderWay}) ->
    [N || {N, {_, _, B}} <- maps:to_list(UnderWay), B < Batch].

-spec has_under_way(Sender :: pid(), notices()) -> boolean().
has_under_way(Sender, #notices{under_way = UnderWay}) ->
    lists:keymember(Sender, 1, maps:values(UnderWay)).

%% --- terms that stay here until they are fetched ---------------------------------------

-spec keep_term(serial(), trunkline_parcel:parcel(), notices()) -> notices().
keep_term(N, Term, #notices{terms = Terms} = L) -> L#notices{terms = Terms#{N => Term}}.

-spec term(serial(), notices()) -> trunkline_parcel:parcel() | none.
term(N, #notices{terms = Terms}) -> maps:get(N, Terms, none).

-spec without_term(serial(), notices()) -> notices().
without_term(N, #notices{terms = Terms} = L) -> L#notices{terms = maps:remove(N, Terms)}.
