%% The bound of a lane, as one number that senders and the lane share. (This folder has what bounds
%% senders: how they find the gate, and where they wait when they are refused.)
%%
%% A gate counts what has been handed to a lane and has not left it yet. Every
%% message is charged its external size plus a fixed sum for what the runtime
%% system keeps beside it. Bytes and messages are counted in the same 64-bit
%% word, so that a sender pays for one atomic operation, and so that the number
%% of messages that were in a lane is known even after the lane was killed:
%%
%%      59   58                  23 22                0
%%     +----+----------------------+-------------------+
%%     | C  |  bytes charged       |  messages         |     C: the gate is closed
%%     +----+----------------------+-------------------+
%%
%% The word stays below 2^59, the largest small integer: nothing is allocated.
%% A closed gate is one whose bytes are beyond any limit, so that the hot path
%% needs no second test. Gates are open during a session, and also while there is
%% none but may be one soon: then the lanes keep what comes.
%%
%% A message is admitted while the level before it is below the limit. One that
%% is larger than the whole limit therefore passes an empty gate, and the level
%% exceeds the limit by less than one message.
%%
%% The levels are sixteen words apart, so that no two of them share a cache line,
%% wherever the runtime system has put the array.
%%
%%     slot 1               the path: what a refused sender should do
%%     slot 16 * Ix         the level of lane Ix
%%     slot 16 * Ix + 1     1 while a sender waits for room in lane Ix
%%
%% The levels of the lanes are followed by one more, numbered like that of another
%% lane: for the large messages to the peer, whichever lane they came by.
-module(trunkline_gate).
-moduledoc false.

-export([new/1, limit/1, least/1, charge/1, charge/2, term/1]).
-export([with_addressees/2, without_message/1]).
-export([packed/2, bytes/1, messages/1, is_below/2, is_less_than_a_message/1]).
-export([enter/5, enter/4, enter_large/4, force/3, leave/3, level/2, fill/2, close/2, open/2]).
-export([mend/3]).
-export([path/1, set_path/2, await/3, awaited/2]).

-export_type([gate/0, charge/0, path/0]).

-compile({inline, [admit/4, enter/4]}).

-type gate() :: atomics:atomics_ref().
-type charge() :: non_neg_integer().  % packed: see above
-type path() :: lanes                 % the gates are open
              | down                  % open, too, but there is no connection
              | direct                % closed, no lanes now: use plain distribution
              | wait.                 % closed, between the two: ask the link

-define(SHIFT, 23).
-define(CLOSED, (1 bsl 58)).
%% What a queued message costs beside its own bytes: in ERTS 13 to 16, on 64
%% bits, a message reference is 5 words, a heap fragment header 4, and our
%% envelope (two cons cells and an external pid) 8.
-define(OVERHEAD, 128).
%% The same, of each of several addressees of a message: a list cell and an external pid are 7
%% words. (With 9 the bytes reach any limit before the number of messages outgrows its part of the
%% level.)
-define(ADDRESSEE, 72).
-define(LEAST(Bytes), (((Bytes) + ?OVERHEAD) bsl ?SHIFT)).
-define(CHARGE(Message), (((erlang:external_size(Message) + ?OVERHEAD) bsl ?SHIFT) + 1)).

-define(LEVEL(Ix), (16 * (Ix))).
-define(AWAITED(Ix), (16 * (Ix) + 1)).

%% All levels are closed, and senders wait until a path is set.
-spec new(pos_integer()) -> gate().
new(Lanes) ->
    Gate = atomics:new(?AWAITED(Lanes + 1), [{signed, true}]),
    ok = set_path(Gate, wait),
    lists:foreach(fun(Ix) -> atomics:put(Gate, ?LEVEL(Ix), ?CLOSED) end,
                  lists:seq(1, Lanes + 1)),
    Gate.

%% The limit, in the form that enter/5 compares with.
-spec limit(Bytes :: pos_integer()) -> charge().
limit(Bytes) -> Bytes bsl ?SHIFT.

%% Messages of that many bytes, or more, are charged at least this; smaller ones
%% are charged less.
-spec least(Bytes :: pos_integer()) -> charge().
least(Bytes) -> ?LEAST(Bytes).

%% What one message is charged.
-spec charge(term()) -> charge().
charge(Message) -> ?CHARGE(Message).

%% What one message takes that is kept as a term, and not encoded.
-spec term(Message :: term()) -> charge().
term(Message) ->
    packed(erts_debug:flat_size(Message) * erlang:system_info(wordsize), 1).

%% What a message of that many bytes to that many processes is charged.
-spec charge(Bytes :: non_neg_integer(), Addressees :: pos_integer()) -> charge().
charge(Bytes, Addressees) ->
    with_addressees(Addressees, ((Bytes + ?OVERHEAD) bsl ?SHIFT) + 1).

%% The charge for that many addressees, from the charge for one.
-spec with_addressees(pos_integer(), charge()) -> charge().
with_addressees(1, Charge) -> Charge;
with_addressees(Addressees, Charge) ->
    Charge + ((Addressees * ?ADDRESSEE) bsl ?SHIFT) + Addressees - 1.

%% What a command is charged that should count as little, or not as a message.
-spec packed(Bytes :: non_neg_integer(), Messages :: non_neg_integer()) -> charge().
packed(Bytes, Messages) -> (Bytes bsl ?SHIFT) + Messages.

%% Whether there can be nothing but such commands in a sum of charges.
-spec is_less_than_a_message(charge()) -> boolean().
is_less_than_a_message(Charge) -> bytes(Charge) < ?OVERHEAD.

%% The same bytes, but no message.
-spec without_message(charge()) -> charge().
without_message(Charge) -> bytes(Charge) bsl ?SHIFT.

-spec bytes(charge()) -> non_neg_integer().
bytes(Charge) -> Charge bsr ?SHIFT.

-spec messages(charge()) -> non_neg_integer().
messages(Charge) -> Charge band ((1 bsl ?SHIFT) - 1).

%% Whether it is below both bounds.
-spec is_below(charge(), {Bytes :: integer(), Messages :: integer()}) -> boolean().
is_below(Charge, {Bytes, Messages}) -> bytes(Charge) < Bytes andalso messages(Charge) < Messages.

%% Admits a message and returns what it is charged, or leaves everything as it
%% was and returns what it would have been charged. `alone': it is admitted, and nothing else is in
%% the lane. `exactly': it has so many bytes or more, and is not admitted here. (One function,
%% because this is the hot path.)
-spec enter(gate(), pos_integer(), Message :: term(), Limit :: charge(), Bytes :: pos_integer()) ->
          charge() | {alone | refused | exactly, charge()}.
enter(Gate, Ix, Message, Limit, Bytes) ->
    case ?CHARGE(Message) of
        Charge when Charge < ?LEAST(Bytes) -> enter(Gate, Ix, Charge, Limit);
        Charge -> {exactly, Charge}
    end.

%% The same for a message whose charge is known.
-spec enter(gate(), pos_integer(), charge(), Limit :: charge()) ->
          charge() | {alone | refused, charge()}.
enter(Gate, Ix, Charge, Limit) ->
    case admit(Gate, Ix, Charge, Limit) of
        Charge -> {alone, Charge};
        refused -> {refused, Charge};
        _ -> Charge
    end.

%% The same for one of which it does not matter whether it is alone.
-spec enter_large(gate(), pos_integer(), charge(), Limit :: charge()) -> ok | refused.
enter_large(Gate, Ix, Charge, Limit) ->
    case admit(Gate, Ix, Charge, Limit) of
        refused -> refused;
        _ -> ok
    end.

%% Returns the level with that charge, if it is admitted.
admit(Gate, Ix, Charge, Limit) ->
    case atomics:add_get(Gate, ?LEVEL(Ix), Charge) of
        Level when Level < Limit + Charge ->
            Level;
        _ ->
            atomics:sub(Gate, ?LEVEL(Ix), Charge),
            refused
    end.

%% Counts a message that must not wait (a reply, a cancellation).
-spec force(gate(), pos_integer(), charge()) -> ok.
force(Gate, Ix, Charge) ->
    atomics:add(Gate, ?LEVEL(Ix), Charge).

%% Takes out what has left the lane; returns the level after that.
-spec leave(gate(), pos_integer(), charge()) -> integer().
leave(Gate, Ix, Charge) ->
    open_level(atomics:sub_get(Gate, ?LEVEL(Ix), Charge)).

%% The level, without the mark of a closed gate.
-spec level(gate(), pos_integer()) -> integer().
level(Gate, Ix) ->
    open_level(atomics:get(Gate, ?LEVEL(Ix))).

%% To be called when nothing is behind the gate. A level that is not zero then, and was the same at
%% the look before, is taken out: a sender has left it behind that was killed between the gate and
%% the lane. (One look is not enough. It may come while a sender enters, or while one that is
%% refused takes its charge out again. Then the level would be too low from there on. If a sender
%% stays there for longer than that, the level goes below zero, and is corrected in the same way.)
%% `look': what the next look is to be compared with.
-spec mend(gate(), pos_integer(), Before :: none | integer()) -> exact | mended | {look, integer()}.
mend(Gate, Ix, Before) ->
    case level(Gate, Ix) of
        0 -> exact;
        Before -> _ = leave(Gate, Ix, Before), mended;
        Level -> {look, Level}
    end.

%% The level as senders see it: that of a closed gate is beyond any limit.
-spec fill(gate(), pos_integer()) -> integer().
fill(Gate, Ix) ->
    atomics:get(Gate, ?LEVEL(Ix)).

%% From here on no sender enters. Returns exactly what is inside: a sender that
%% was admitted before is counted, one that comes later is refused.
-spec close(gate(), pos_integer()) -> integer().
close(Gate, Ix) ->
    case atomics:get(Gate, ?LEVEL(Ix)) of
        Level when Level >= ?CLOSED div 2 ->
            open_level(Level);
        _ ->
            open_level(atomics:add_get(Gate, ?LEVEL(Ix), ?CLOSED))
    end.

-spec open(gate(), pos_integer()) -> ok.
open(Gate, Ix) ->
    case atomics:get(Gate, ?LEVEL(Ix)) of
        Level when Level >= ?CLOSED div 2 -> atomics:sub(Gate, ?LEVEL(Ix), ?CLOSED);
        _ -> ok
    end.

-spec path(gate()) -> path().
path(Gate) ->
    case atomics:get(Gate, 1) of
        0 -> lanes;
        1 -> direct;
        2 -> wait;
        3 -> down
    end.

-spec set_path(gate(), path()) -> ok.
set_path(Gate, lanes) -> atomics:put(Gate, 1, 0);
set_path(Gate, direct) -> atomics:put(Gate, 1, 1);
set_path(Gate, wait) -> atomics:put(Gate, 1, 2);
set_path(Gate, down) -> atomics:put(Gate, 1, 3).

%% Sets whether the lane should tell its link when there is room again.
-spec await(gate(), pos_integer(), boolean()) -> ok.
await(Gate, Ix, true) -> atomics:put(Gate, ?AWAITED(Ix), 1);
await(Gate, Ix, false) -> atomics:put(Gate, ?AWAITED(Ix), 0).

-spec awaited(gate(), pos_integer()) -> boolean().
awaited(Gate, Ix) -> atomics:get(Gate, ?AWAITED(Ix)) =:= 1.

open_level(Level) when Level >= ?CLOSED div 2 -> Level - ?CLOSED;
open_level(Level) -> Level.
