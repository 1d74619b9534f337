%% Large messages that are arriving in fragments.
%%
%% Fragments of one parcel may come by several carriers and in any order. A
%% fragment that is there already is ignored.
%%
%% This module is pure: it decides, and has no side effects.
-module(trunkline_reassembly).
-moduledoc false.

-export([new/0, add/5, segments/2]).

-export_type([reassembly/0, parts/0]).

-type parts() :: [{Offset :: non_neg_integer(), binary()}].     % in order
-record(arriving, {missing :: non_neg_integer(),                % bytes
                   parts = #{} :: #{non_neg_integer() => binary()}}).
-opaque reassembly() :: #{trunkline_fragments:id() => #arriving{}}.

-spec new() -> reassembly().
new() -> #{}.

%% A fragment of a parcel of that Size has come.
-spec add(trunkline_fragments:id(), Size :: pos_integer(), Offset :: non_neg_integer(), binary(),
          reassembly()) ->
          {complete, parts(), reassembly()} | {incomplete, reassembly()}.
add(Id, Size, Offset, Binary, R) ->
    case maps:get(Id, R, #arriving{missing = Size}) of
        #arriving{parts = #{Offset := _}} ->
            {incomplete, R};
        #arriving{missing = Missing, parts = Parts} when Missing =< byte_size(Binary) ->
            {complete, lists:sort(maps:to_list(Parts#{Offset => Binary})), maps:remove(Id, R)};
        #arriving{missing = Missing, parts = Parts} ->
            {incomplete, R#{Id => #arriving{missing = Missing - byte_size(Binary),
                                            parts = Parts#{Offset => Binary}}}}
    end.

%% The parcel's segments, which have these sizes. A segment that came in one piece is
%% not copied.
-spec segments(parts(), Sizes :: [trunkline_parcel:size_bytes()]) -> [binary()].
segments(Parts, Sizes) ->
    segments([Binary || {_, Binary} <- Parts], Sizes, [], 0).

segments(_, [], [], 0) ->
    [];
segments(Parts, [Size | Sizes], Pieces, Size) ->
    [case Pieces of
         [Binary] -> Binary;
         _ -> iolist_to_binary(lists:reverse(Pieces))
     end | segments(Parts, Sizes, [], 0)];
segments([Part | Parts], Sizes, Pieces, Bytes) ->
    segments(Parts, Sizes, [Part | Pieces], Bytes + byte_size(Part)).
