%% Which of the batches that have arrived at an inlet is next.
%%
%%     by the distribution ── batch ─┐
%%                                   ├──> those that are early ── take, in order ──> inlet
%%     by connections ─────── frame ─┘
%%
%% Batches are numbered. One that comes before its turn waits. One that has been here before, and
%% was sent again because that was not known, is dropped. A frame is decoded when its turn comes,
%% since it may need names that earlier frames bring (trunkline_dictionary). One that cannot be
%% decoded is refused, and its number is still the next: the lane sends again what may be lost by
%% that.
%%
%% This module is pure: it decides, and has no side effects.
-module(trunkline_arrivals).
-moduledoc false.

-export([new/0, next/1, batch/3, frame/3, take/1, without_early/1]).

-export_type([arrivals/0, batch/0, from/0]).

-type serial() :: pos_integer().
-type batch() :: {trunkline_window:ack(), trunkline_gate:charge(), [trunkline_lane:entry()]}.
%% By which connection a frame has come.
-type from() :: distribution | {trunkline_transport:transport(), trunkline_transport:socket()}.

-record(arrivals,
        {next = 1 :: serial(),
         %% A batch, or a frame without its number.
         early = #{} :: #{serial() => batch() | {from(), binary()}},
         names = trunkline_dictionary:reader() :: trunkline_dictionary:reader()}).
-opaque arrivals() :: #arrivals{}.

-spec new() -> arrivals().
new() -> #arrivals{}.

%% The number of the next batch: all before it have been taken.
-spec next(arrivals()) -> serial().
next(#arrivals{next = Next}) -> Next.

-spec batch(serial(), batch(), arrivals()) -> arrivals().
batch(Serial, Batch, #arrivals{next = Next, early = Early} = A) when Serial >= Next ->
    A#arrivals{early = Early#{Serial => Batch}};
batch(_, _, A) ->
    A.

%% `refused': it is neither a batch nor a heartbeat.
-spec frame(from(), Frame :: binary(), arrivals()) -> {ok, arrivals()} | refused.
frame(From, Frame, #arrivals{next = Next, early = Early} = A) ->
    case trunkline_dictionary:serial(Frame) of
        {batch, Serial, Term} when Serial >= Next ->
            {ok, A#arrivals{early = Early#{Serial => {From, Term}}}};
        error -> refused;
        _ -> {ok, A}
    end.

%% The next batch, if it is here.
-spec take(arrivals()) -> {batch, batch(), arrivals()} | {refused, from(), arrivals()} | none.
take(#arrivals{early = Early}) when map_size(Early) =:= 0 ->
    none;
take(#arrivals{next = Next, early = Early, names = Names} = A) ->
    case maps:take(Next, Early) of
        {{From, Term}, Early1} ->
            case trunkline_dictionary:decode(Term, Names) of
                {Ack, Charge, Entries, Names1} ->
                    {batch, {Ack, Charge, Entries},
                     A#arrivals{next = Next + 1, early = Early1, names = Names1}};
                error ->
                    {refused, From, A#arrivals{early = Early1}}
            end;
        {Batch, Early1} ->
            {batch, Batch, A#arrivals{next = Next + 1, early = Early1}};
        error ->
            none
    end.

%% What is missing will not come any more.
-spec without_early(arrivals()) -> arrivals().
without_early(A) -> A#arrivals{early = #{}}.
