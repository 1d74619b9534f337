%% Whether a sender may bypass its lane without asking it (see trunkline_in_turn).
%%
%% It may if nothing is ahead of its message: the lane is idle, and the sender has no reply in the
%% lane's mailbox.
%%
%%     the lane is idle   its level in the gate is zero, and nothing is in flight. (And the peer can
%%                        say whose turn it is: the lane sets no mark otherwise.) The lane clears
%%                        its mark before it subtracts a batch from the level, and a sender reads
%%                        the level first. So the sender sees one of the two
%%     no replies         a reply of gen_server:reply/2 passes no gate, so only the lane knows of
%%                        it. A process that owes a reply, or may get a request unseen
%%                        (trunkline_lease), has to ask. (The marks of these are counted by hash:
%%                        another process may have to ask, too)
%%
%%     sender                                       lane
%%       | started + 1
%%       | is the level zero, is the mark set?
%%       | ── the message, by `!' ──>
%%       | sent + 1                                  | at each tick: takes what was sent
%%       | -- if the lane does not tick: sent -----> |
%%
%% As long as more are started than sent, a sender may be sending. One that is killed meanwhile
%% leaves the two apart. If nothing changes from one tick to the next, or if the session ends, these
%% senders count as having sent. If they were only suspended, their messages still count once.
%%
%% This module has the shared words, and decides. What the lane remembers is `taken/0'.
-module(trunkline_bypass).
-moduledoc false.

-export([new/1, may/3, start/3, sent/2, cancel/2]).
-export([called/3]).
-export([clear/2, set/2, ticks/3]).
-export([new_taken/0, take/3, take_all/3, is_sending/3, tick/3, all_sent/2]).

-export_type([bypass/0, taken/0]).

-opaque bypass() :: atomics:atomics_ref().
%% What the lane has taken; `ghosts': of these, how many had not said that they have sent, when as
%% many as `sent' had. And what the counts were at the last tick.
-record(taken,
        {all = 0 :: non_neg_integer(),
         ghosts = 0 :: non_neg_integer(),
         sent = 0 :: non_neg_integer(),
         last = {0, 0} :: {Started :: non_neg_integer(), Sent :: non_neg_integer()}}).
-opaque taken() :: #taken{}.

%% 8 kB. While a thousand servers owe replies, most processes have to ask.
-define(MARKS, 1024).
-define(MARK(Pid), (erlang:phash2(Pid, ?MARKS) + 1)).
%% Each lane has a cache line.
-define(IDLE(Ix), (?MARKS + 16 * (Ix))).
-define(TICKS(Ix), (?MARKS + 16 * (Ix) + 1)).
-define(STARTED(Ix), (?MARKS + 16 * (Ix) + 2)).
-define(SENT(Ix), (?MARKS + 16 * (Ix) + 3)).

-spec new(Lanes :: pos_integer()) -> bypass().
new(Lanes) -> atomics:new(?SENT(Lanes), [{signed, true}]).

%% --- for a sender whose lane is Ix ------------------------------------------------

%% Whether nothing is ahead of what the calling process sends now.
-spec may(trunkline_gate:gate(), Ix :: pos_integer(), bypass()) -> boolean().
may(Gate, Ix, Bypass) ->
    trunkline_gate:fill(Gate, Ix) =:= 0
        andalso atomics:get(Bypass, ?MARK(self())) =:= 0
        andalso atomics:get(Bypass, ?IDLE(Ix)) =:= 1.

%% The same for a message that should be counted. If so, sent/2 or cancel/2 must follow.
-spec start(trunkline_gate:gate(), Ix :: pos_integer(), bypass()) -> boolean().
start(Gate, Ix, Bypass) ->
    atomics:add(Bypass, ?STARTED(Ix), 1),
    case may(Gate, Ix, Bypass) of
        true -> true;
        false -> ok = cancel(Ix, Bypass), false
    end.

%% It has sent. Returns whether the lane should be told.
-spec sent(Ix :: pos_integer(), bypass()) -> boolean().
sent(Ix, Bypass) ->
    atomics:add(Bypass, ?SENT(Ix), 1),
    atomics:get(Bypass, ?TICKS(Ix)) =:= 0.

%% It could not send.
-spec cancel(Ix :: pos_integer(), bypass()) -> ok.
cancel(Ix, Bypass) -> atomics:sub(Bypass, ?STARTED(Ix), 1).

%% --- for the inlets ---------------------------------------------------------------

%% From now on that process may owe a reply to a caller of this inlet (1), or it does not any more
%% (-1). By then its replies have left the lane.
-spec called(pid(), 1 | -1, bypass()) -> ok.
called(Server, N, Bypass) -> atomics:add(Bypass, ?MARK(Server), N).

%% --- for lane Ix ------------------------------------------------------------------

%% Something may be in flight.
-spec clear(Ix :: pos_integer(), bypass()) -> ok.
clear(Ix, Bypass) -> atomics:put(Bypass, ?IDLE(Ix), 0).

%% Nothing is.
-spec set(Ix :: pos_integer(), bypass()) -> ok.
set(Ix, Bypass) -> atomics:put(Bypass, ?IDLE(Ix), 1).

%% Whether the lane ticks by itself. (If it stops, it has to look once more.)
-spec ticks(boolean(), Ix :: pos_integer(), bypass()) -> ok.
ticks(true, Ix, Bypass) -> atomics:put(Bypass, ?TICKS(Ix), 1);
ticks(false, Ix, Bypass) -> atomics:put(Bypass, ?TICKS(Ix), 0).

-spec new_taken() -> taken().
new_taken() -> #taken{}.

%% How many messages have been sent since the last time.
-spec take(Ix :: pos_integer(), bypass(), taken()) -> {non_neg_integer(), taken()}.
take(Ix, Bypass, Taken) -> taken(counts(Ix, Bypass), Taken).

%% The same with those that are being sent, of which it is not known what becomes of them.
-spec take_all(Ix :: pos_integer(), bypass(), taken()) -> {non_neg_integer(), taken()}.
take_all(Ix, Bypass, Taken) -> taken_all(counts(Ix, Bypass), Taken).

%% Whether a sender may be sending.
-spec is_sending(Ix :: pos_integer(), bypass(), taken()) -> boolean().
is_sending(Ix, Bypass, Taken) ->
    {Started, Sent} = counts(Ix, Bypass),
    Started - Sent > ghosts(Sent, Taken).

%% How many have been sent in all. It grows before the sender sends anything else: what a lane has
%% got by then is not behind any other message.
-spec all_sent(Ix :: pos_integer(), bypass()) -> non_neg_integer().
all_sent(Ix, Bypass) -> atomics:get(Bypass, ?SENT(Ix)).

%% To be called once a second.
-spec tick(Ix :: pos_integer(), bypass(), taken()) -> {non_neg_integer(), taken()}.
tick(Ix, Bypass, #taken{last = Last} = Taken) ->
    case counts(Ix, Bypass) of
        Last -> taken_all(Last, Taken);
        Counts -> taken(Counts, Taken#taken{last = Counts})
    end.

%% (Sent is read first: what is sent has been started.)
counts(Ix, Bypass) ->
    Sent = atomics:get(Bypass, ?SENT(Ix)),
    {atomics:get(Bypass, ?STARTED(Ix)), Sent}.

taken({Started, Sent}, Taken) -> up_to(Sent, min(Started - Sent, ghosts(Sent, Taken)), Taken).

taken_all({Started, Sent}, Taken) -> up_to(Sent, Started - Sent, Taken).

%% Whoever has sent meanwhile may have been a ghost.
ghosts(Sent, #taken{ghosts = Ghosts, sent = Before}) -> max(0, Ghosts - (Sent - Before)).

%% (If it was none, or a ghost could not send, another message has been taken too early.)
up_to(Sent, Ghosts, #taken{all = Before} = Taken) ->
    All = max(Before, Sent + Ghosts),
    {All - Before, Taken#taken{all = All, ghosts = Ghosts, sent = Sent}}.
