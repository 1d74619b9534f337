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
%%       | is the lane idle, are there no replies?
%%       | ── the message, by `!' ──>
%%       | sent + 1                                  | at each tick: takes what was sent
%%       | -- if the lane does not tick: sent -----> |
%%
%% Short messages go by lane, unless so few are sent that most batches would have one message
%% (is_quiet/2), or they take much memory (trunkline_shape). Whose mailbox may get them is in the
%% tables of trunkline_mailboxes.
%%
%% Plain replies (trunkline_plain_reply) have these words:
%%
%%     long       by how many more replies of a server were long than were not, for its callers: by
%%                the hash of the server
%%     watched    servers of a lane that are watched
%%     said       how often a process of such a lane has sent something, and how often it has waited
%%                then: by the hash of the process
%%     owed       plain replies of a lane's servers
%%
%% As long as more are started than sent, a sender may be sending. One that is killed meanwhile
%% leaves the two apart. So if nothing changes from one tick to the next, the lane does not count on
%% these senders any more, but something has to follow the messages that they may have sent
%% (must_follow/1). When the connection is lost, those that wait on it learn that they cannot send.
%% The lane waits for them for a moment. What is then still being sent counts as lost. (A sender of
%% a very long term may be given up, too. What it has sent is reported when it says so.)
%%
%% This module has the shared words, and decides. What the lane remembers is `past/0'. That includes
%% how many messages have gone past it, in this way or in another, and no batch has reported yet.
-module(trunkline_bypass).
-moduledoc false.

-export([new/1, may/4, start/4, started/2, sampled/3, is_quiet/2, sent_short/2, sent/2, cancel/2]).
-export([called/3, is_marked/1, is_late/2, not_answered/2]).
-export([are_long/2, weighed/4]).
-export([is_idle/3, watch/3, is_watched/2, say/1, wait/1, said/2, has_waited/2, owe/3]).
-export([past/2, set_idle/2, ticks/2, are_few/1, set_quiet/2, is_quiet/1, answers/1]).
-export([take/1, tick/1, ended/2, more/2, unreported/1, reported/1, is_sending/1]).
-export([must_follow/1, followed/1, are_owed/1]).

-export_type([bypass/0, past/0]).

-opaque bypass() :: atomics:atomics_ref().
-record(past,
        {ix :: pos_integer(),
         bypass :: bypass(),
         %% How many the lane has taken.
         sent = 0 :: non_neg_integer(),
         %% How many it did not count on any more then.
         given_up = 0 :: non_neg_integer(),
         %% How many had not sent when the last session ended.
         left = 0 :: non_neg_integer(),
         %% The counts at the last tick.
         last = {0, 0} :: counts(),
         unreported = 0 :: non_neg_integer(),
         %% Whether it has given up a sender since a batch last went by the distribution.
         follow = false :: boolean()}).
-opaque past() :: #past{}.
-type counts() :: {Started :: non_neg_integer(), Sent :: non_neg_integer()}.

%% 8 kB. While a thousand servers owe replies, most processes have to ask.
-define(MARKS, 1024).
-define(MARK(Pid), (erlang:phash2(Pid, ?MARKS) + 1)).
%% 2 kB each. (If one hash has several servers, what is said or found of one counts for all.)
-define(SERVERS, 256).
-define(SAID(Server), (?MARKS + erlang:phash2(Server, ?SERVERS) + 1)).
%% Each lane has a cache line.
-define(LONG(Server), (?MARKS + ?SERVERS + erlang:phash2(Server, ?SERVERS) + 1)).
-define(LANE(Ix), (?MARKS + 2 * ?SERVERS + 16 * (Ix))).
-define(IDLE(Ix), ?LANE(Ix)).
-define(STARTED(Ix), (?LANE(Ix) + 1)).
-define(SENT(Ix), (?LANE(Ix) + 2)).
-define(QUIET(Ix), (?LANE(Ix) + 3)).
-define(WINDOW(Ix), (?LANE(Ix) + 4)).
-define(LATE(Ix), (?LANE(Ix) + 5)).
-define(WATCHED(Ix), (?LANE(Ix) + 6)).
-define(OWED(Ix), (?LANE(Ix) + 7)).
%% What the word of those that have sent has more while the lane ticks.
-define(TICKING, (1 bsl 58)).

%% Messages of one lane in a second. (With more, its batches cost less than messages that go one by
%% one. That does not depend on how many lanes there are. Measured with `thin traffic' of
%% bench_sweep: docs/lab/tried.md.)
-define(FEW, 2500).
%% The same for the short messages in a window of 32 ms.
-define(WINDOW_BITS, 5).
-define(FEW_IN_WINDOW, (?FEW * (1 bsl ?WINDOW_BITS) div 1000)).
-define(SAMPLE, 16).
%% More than a server says while its agent does not look.
-define(WAITED, (1 bsl 32)).
%% Of the replies of a server.
-define(LONG_FROM, 4).
-define(LONG_MOST, 16).
%% The shared word has the number of the window, and how many there were.
-define(COUNT_BITS, 16).

-spec new(Lanes :: pos_integer()) -> bypass().
new(Lanes) -> atomics:new(?OWED(Lanes), [{signed, true}]).

%% --- for a sender whose lane is Ix ------------------------------------------------

%% Whether nothing is ahead of what the calling process sends now. It has entered the gate with the
%% charge `Own', or not at all.
-spec may(trunkline_gate:gate(), Ix :: pos_integer(), Own :: trunkline_gate:charge(), bypass()) ->
          boolean().
may(Gate, Ix, Own, Bypass) ->
    trunkline_gate:fill(Gate, Ix) =:= Own
        andalso not is_marked(Bypass)
        andalso atomics:get(Bypass, ?IDLE(Ix)) =:= 1.

%% Whether the calling process may have a reply in the lane's mailbox.
-spec is_marked(bypass()) -> boolean().
is_marked(Bypass) -> atomics:get(Bypass, ?MARK(self())) =/= 0.

%% The same for a message that should be counted. If so, sent/2 or cancel/2 must follow.
-spec start(trunkline_gate:gate(), Ix :: pos_integer(), Own :: trunkline_gate:charge(),
            bypass()) -> boolean().
start(Gate, Ix, Own, Bypass) ->
    ok = started(Ix, Bypass),
    case may(Gate, Ix, Own, Bypass) of
        true -> true;
        false -> ok = cancel(Ix, Bypass), false
    end.

%% The same for one that is sent in any case.
-spec started(Ix :: pos_integer(), bypass()) -> ok.
started(Ix, Bypass) -> atomics:add(Bypass, ?STARTED(Ix), 1).

%% Whether so little is sent that a short message should bypass the lane.
-spec is_quiet(Ix :: pos_integer(), bypass()) -> boolean().
is_quiet(Ix, Bypass) -> atomics:get(Bypass, ?QUIET(Ix)) =:= 1.

%% A short message has bypassed it. After many at a time it is not quiet any more, until the lane
%% finds that it is.
-spec sent_short(Ix :: pos_integer(), bypass()) -> ok.
sent_short(Ix, Bypass) ->
    Window = erlang:monotonic_time(millisecond) bsr ?WINDOW_BITS,
    Word = atomics:add_get(Bypass, ?WINDOW(Ix), 1),
    case Word - (Window bsl ?COUNT_BITS) of
        N when N > ?FEW_IN_WINDOW, N < 1 bsl ?COUNT_BITS -> atomics:put(Bypass, ?QUIET(Ix), 0);
        N when N > 0, N =< ?FEW_IN_WINDOW -> ok;
        _ -> atomics:put(Bypass, ?WINDOW(Ix), (Window bsl ?COUNT_BITS) + 1)
    end.

%% Whether the lane has not answered a question in time. Questions pass no gate. So no sender asks
%% until the lane goes on: each leaves at most one question there.
-spec is_late(Ix :: pos_integer(), bypass()) -> boolean().
is_late(Ix, Bypass) -> atomics:get(Bypass, ?LATE(Ix)) =:= 1.

%% To be called before the lane is told that its answer is not awaited any more.
-spec not_answered(Ix :: pos_integer(), bypass()) -> ok.
not_answered(Ix, Bypass) -> atomics:put(Bypass, ?LATE(Ix), 1).

%% Whether a server of that lane is watched.
-spec is_watched(Ix :: pos_integer(), bypass()) -> boolean().
is_watched(Ix, Bypass) -> atomics:get(Bypass, ?WATCHED(Ix)) =/= 0.

%% The calling process has sent something.
-spec say(bypass()) -> ok.
say(Bypass) -> atomics:add(Bypass, ?SAID(self()), 1).

%% And it waits.
-spec wait(bypass()) -> ok.
wait(Bypass) -> atomics:add(Bypass, ?SAID(self()), ?WAITED).

%% Whether replies of that server are long.
-spec are_long(Server :: pid() | atom(), bypass()) -> boolean().
are_long(Server, Bypass) -> atomics:get(Bypass, ?LONG(Server)) >= ?LONG_FROM.

%% N more replies of that server were long, or were not. (If two callers say so at the same time,
%% one of them may not count.)
-spec weighed(Server :: pid() | atom(), IsLong :: boolean(), N :: pos_integer(), bypass()) -> ok.
weighed(Server, IsLong, N, Bypass) ->
    Word = ?LONG(Server),
    Before = atomics:get(Bypass, Word),
    atomics:put(Bypass, Word, case IsLong of
                                  true -> min(?LONG_MOST, Before + N);
                                  false -> max(0, Before - N)
                              end).

%% Measures one of sixteen messages, which stands for all of them.
-spec sampled(Message :: term(), Ix :: pos_integer(), bypass()) -> trunkline_gate:charge().
sampled(Message, Ix, Bypass) ->
    %% (A hash, because messages of different kinds may take turns.)
    case erlang:phash2(atomics:get(Bypass, ?STARTED(Ix)), ?SAMPLE) of
        0 -> ?SAMPLE * trunkline_shape:charge(trunkline_shape:size(Message));
        _ -> 0
    end.

%% It has sent. Returns whether the lane should be told.
-spec sent(Ix :: pos_integer(), bypass()) -> boolean().
sent(Ix, Bypass) -> atomics:add_get(Bypass, ?SENT(Ix), 1) < ?TICKING.

%% It could not send.
-spec cancel(Ix :: pos_integer(), bypass()) -> ok.
cancel(Ix, Bypass) -> atomics:sub(Bypass, ?STARTED(Ix), 1).

%% --- for the inlets ---------------------------------------------------------------

%% From now on that process may owe a reply to a caller of this inlet (1), or it does not any more
%% (-1). By then its replies have left the lane.
-spec called(pid(), 1 | -1, bypass()) -> ok.
called(Server, N, Bypass) -> atomics:add(Bypass, ?MARK(Server), N).

%% Whether all has arrived that was sent by that lane, but for replies that are in its mailbox.
-spec is_idle(trunkline_gate:gate(), Ix :: pos_integer(), bypass()) -> boolean().
is_idle(Gate, Ix, Bypass) ->
    trunkline_gate:fill(Gate, Ix) =:= 0 andalso atomics:get(Bypass, ?IDLE(Ix)) =:= 1.

%% One more server of that lane is watched (1), or one less (-1).
-spec watch(1 | -1, Ix :: pos_integer(), bypass()) -> ok.
watch(N, Ix, Bypass) -> atomics:add(Bypass, ?WATCHED(Ix), N).

%% Another number, if the server has said something since.
-spec said(Server :: pid(), bypass()) -> integer().
said(Server, Bypass) -> atomics:get(Bypass, ?SAID(Server)).

%% Whether it has waited between these two.
-spec has_waited(integer(), integer()) -> boolean().
has_waited(Before, Now) -> Now - Before >= ?WAITED.

%% Servers of that lane owe one more plain reply (1), or one less (-1).
-spec owe(1 | -1, Ix :: pos_integer(), bypass()) -> ok.
owe(N, Ix, Bypass) -> atomics:add(Bypass, ?OWED(Ix), N).

%% --- for lane Ix ------------------------------------------------------------------

-spec past(Ix :: pos_integer(), bypass()) -> past().
past(Ix, Bypass) -> #past{ix = Ix, bypass = Bypass}.

%% Whether nothing is in flight.
-spec set_idle(boolean(), past()) -> ok.
set_idle(IsIdle, #past{ix = Ix, bypass = Bypass}) -> put(?IDLE(Ix), IsIdle, Bypass).

%% Whether the lane ticks by itself. (If it stops, it has to look once more.)
-spec ticks(boolean(), past()) -> ok.
ticks(Ticks, #past{ix = Ix, bypass = Bypass}) ->
    case atomics:get(Bypass, ?SENT(Ix)) >= ?TICKING of
        Ticks -> ok;
        false -> atomics:add(Bypass, ?SENT(Ix), ?TICKING);
        true -> atomics:sub(Bypass, ?SENT(Ix), ?TICKING)
    end.

%% Whether so many messages in a second are few.
-spec are_few(integer()) -> boolean().
are_few(N) -> N < ?FEW.

%% Whether few messages have come in the last second.
-spec set_quiet(boolean(), past()) -> ok.
set_quiet(IsQuiet, #past{ix = Ix, bypass = Bypass}) -> put(?QUIET(Ix), IsQuiet, Bypass).

%% The lane goes on.
-spec answers(past()) -> ok.
answers(#past{ix = Ix, bypass = Bypass}) -> put(?LATE(Ix), false, Bypass).

put(Word, true, Bypass) -> atomics:put(Bypass, Word, 1);
put(Word, false, Bypass) -> atomics:put(Bypass, Word, 0).

%% As is_quiet/2.
-spec is_quiet(past()) -> boolean().
is_quiet(#past{ix = Ix, bypass = Bypass}) -> is_quiet(Ix, Bypass).

%% Takes what has been sent since the last time.
-spec take(past()) -> past().
take(Past) -> take(counts(Past), Past).

%% Takes what has been sent. To be called once a second.
-spec tick(past()) -> past().
tick(#past{last = Last} = Past) ->
    case counts(Past) of
        {Started, Sent} = Last -> give_up(Started - Sent, take(Last, Past));
        Counts -> take(Counts, Past#past{last = Counts})
    end.

give_up(N, #past{given_up = N} = Past) -> Past;
give_up(N, Past) -> Past#past{given_up = N, follow = true}.

%% The session has ended: no sender starts any more. Waits for those that are sending, so many
%% milliseconds at most. Returns how many have not been reported, and how many may still be being
%% sent.
-spec ended(Milliseconds :: non_neg_integer(), past()) ->
          {Unreported :: non_neg_integer(), Sending :: non_neg_integer(), past()}.
ended(Milliseconds, #past{left = Before} = Past) ->
    {Started, Sent} = Counts = counts(Past),
    Left = Started - Sent,
    case Left > Before andalso Milliseconds > 0 of
        true ->
            receive after 1 -> ended(Milliseconds - 1, Past) end;
        false ->
            #past{given_up = GivenUp, unreported = Unreported} = Past1 = take(Counts, Past),
            {Unreported, max(0, Left - GivenUp),
             Past1#past{given_up = Left, left = Left, unreported = 0}}
    end.

%% So many more have been sent past the lane, in another way.
-spec more(non_neg_integer(), past()) -> past().
more(N, #past{unreported = Before} = Past) -> Past#past{unreported = Before + N}.

-spec unreported(past()) -> non_neg_integer().
unreported(#past{unreported = N}) -> N.

%% A batch reports all of them.
-spec reported(past()) -> past().
reported(Past) -> Past#past{unreported = 0}.

%% Whether the next batch must go by the distribution: it reports something, or a sender has been
%% given up. (A sender that is killed may be suspended, with its message in the distribution's queue
%% already. News of its end must not overtake that message.)
-spec must_follow(past()) -> boolean().
must_follow(#past{unreported = N, follow = Follow}) -> N > 0 orelse Follow.

%% Whether plain replies are owed. So must any batch then.
-spec are_owed(past()) -> boolean().
are_owed(#past{ix = Ix, bypass = Bypass}) -> atomics:get(Bypass, ?OWED(Ix)) =/= 0.

%% A batch goes by the distribution.
-spec followed(past()) -> past().
followed(Past) -> Past#past{follow = false}.

%% Whether a sender may be sending.
-spec is_sending(past()) -> boolean().
is_sending(Past) ->
    {Started, Sent} = Counts = counts(Past),
    Started - Sent > given_up(Counts, Past).

%% (Sent is read first: what is sent has been started.)
counts(#past{ix = Ix, bypass = Bypass}) ->
    Sent = atomics:get(Bypass, ?SENT(Ix)) band (?TICKING - 1),
    {atomics:get(Bypass, ?STARTED(Ix)), Sent}.

take({_, Sent} = Counts, #past{sent = Before} = Past) ->
    more(Sent - Before, Past#past{sent = Sent, given_up = given_up(Counts, Past)}).

%% One that has sent meanwhile may have been one of them, or could not send.
given_up({Started, Sent}, #past{given_up = GivenUp, sent = Before}) ->
    min(Started - Sent, max(0, GivenUp - (Sent - Before))).
