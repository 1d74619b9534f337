%% This node's gate for one inbox: how much its senders have outstanding there, and how much they
%% may have.
%%
%% Senders share it, with atomic operations. trunkline_accounts sets what the keeper of the inbox
%% says. The level is packed as in trunkline_gate. But here the window bounds both bytes and
%% messages, and it changes.
-module(trunkline_inbox_gate).
-moduledoc false.

-export([new/2, again/1]).
-export([enter/3, force/2, leave/2, is_refusing/1]).
-export([credit/3, level/1, room/1, set_full/2, full/1]).
-export([count_refused/1, refused/1, watch/2, is_watched/1]).

-export_type([gate/0]).

-opaque gate() :: atomics:atomics_ref().

%% Cells: the level, the window, whether the inbox is full (an odd number), how many messages have
%% been refused, and 1 while the gate is checked from time to time.
-define(LEVEL, 1).
-define(BYTES, 2).
-define(MESSAGES, 3).
-define(FULL, 4).
-define(REFUSED, 5).
-define(WATCHED, 6).

%% With the window that a node has before the keeper has granted it one.
-spec new(Bound :: trunkline_share:window(), trunkline_mail:policy()) -> gate().
new(Bound, Policy) ->
    Gate = atomics:new(?WATCHED, [{signed, true}]),
    ok = set_window(trunkline_share:first(Bound, Policy), Gate),
    Gate.

%% The same gate, but empty. (A sender that has read the old one still enters that, once.)
-spec again(gate()) -> gate().
again(Gate) ->
    New = atomics:new(?WATCHED, [{signed, true}]),
    lists:foreach(fun(Cell) -> atomics:put(New, Cell, atomics:get(Gate, Cell)) end,
                  [?BYTES, ?MESSAGES, ?FULL, ?REFUSED, ?WATCHED]),
    New.

set_window({Bytes, Messages}, Gate) ->
    atomics:put(Gate, ?BYTES, Bytes),
    atomics:put(Gate, ?MESSAGES, Messages).

%% --- for senders ------------------------------------------------------------------

%% Whether a message with that charge is admitted. If not, everything is as it was.
-spec enter(trunkline_gate:charge(), trunkline_mail:policy(), gate()) -> boolean().
enter(Charge, Policy, Gate) ->
    Level = atomics:add_get(Gate, ?LEVEL, Charge) - Charge,
    case is_below(Level, Gate) andalso not (Policy =:= reject andalso is_full(Gate)) of
        true -> true;
        false -> ok = leave(Charge, Gate), false
    end.

%% (A level below zero borrows from the bytes, so that its number of messages means nothing.)
is_below(Level, _) when Level < 0 ->
    true;
is_below(Level, Gate) ->
    trunkline_gate:is_below(Level, {atomics:get(Gate, ?BYTES), atomics:get(Gate, ?MESSAGES)}).

is_full(Gate) -> full(Gate) band 1 =:= 1.

%% Admits it in any case.
-spec force(trunkline_gate:charge(), gate()) -> ok.
force(Charge, Gate) -> atomics:add(Gate, ?LEVEL, Charge).

%% It could not be sent after all.
-spec leave(trunkline_gate:charge(), gate()) -> ok.
leave(Charge, Gate) -> atomics:sub(Gate, ?LEVEL, Charge).

%% Whether an inbox whose policy is to reject would reject a message.
-spec is_refusing(gate()) -> boolean().
is_refusing(Gate) -> is_full(Gate) orelse not is_below(level(Gate), Gate).

%% --- what the keeper says ---------------------------------------------------------

%% So much has left the inbox, and this is the window from here on. Returns the level.
-spec credit(Left :: trunkline_gate:charge(), trunkline_share:window(), gate()) -> integer().
credit(Left, Window, Gate) ->
    Level = atomics:sub_get(Gate, ?LEVEL, Left),
    ok = set_window(Window, Gate),
    Level.

%% What is outstanding: below zero if more has left than this gate knows.
-spec level(gate()) -> integer().
level(Gate) -> atomics:get(Gate, ?LEVEL).

%% For how much there is room.
-spec room(gate()) -> {Bytes :: integer(), Messages :: integer()}.
room(Gate) ->
    Level = max(0, level(Gate)),
    {atomics:get(Gate, ?BYTES) - trunkline_gate:bytes(Level),
     atomics:get(Gate, ?MESSAGES) - trunkline_gate:messages(Level)}.

%% The inbox is full (an odd number), or no longer full. Changes may overtake each other. Therefore
%% each has a number, and the greatest counts.
-spec set_full(non_neg_integer(), gate()) -> ok.
set_full(Number, Gate) -> atomics:put(Gate, ?FULL, max(Number, full(Gate))).

-spec full(gate()) -> non_neg_integer().
full(Gate) -> atomics:get(Gate, ?FULL).

%% --- counts and marks ---------------------------------------------------------------

%% A message has been refused.
-spec count_refused(gate()) -> ok.
count_refused(Gate) -> atomics:add(Gate, ?REFUSED, 1).

-spec refused(gate()) -> non_neg_integer().
refused(Gate) -> atomics:get(Gate, ?REFUSED).

%% Whether the gate is checked from time to time.
-spec watch(boolean(), gate()) -> ok.
watch(true, Gate) -> atomics:put(Gate, ?WATCHED, 1);
watch(false, Gate) -> atomics:put(Gate, ?WATCHED, 0).

-spec is_watched(gate()) -> boolean().
is_watched(Gate) -> atomics:get(Gate, ?WATCHED) =:= 1.
