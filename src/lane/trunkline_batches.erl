%% What a lane has sent to its inlet in this session.
%%
%%     lane                                      inlet
%%       | ══ 17, what queued up ══════════════>   |      by the distribution, or by connections of
%%       | ══ 18, and two messages by `!' ═════>   |      the lane's own (trunkline_channels)
%%       | <─────── ack: so much, up to 17 ──────  |
%%
%% Batches are numbered from 1. The lane may send the next one while less than a window is in flight
%% (trunkline_window). Under dense traffic it waits until the one before has arrived
%% (trunkline_pace).
%%
%% What has gone past the lane, by plain distribution, is reported by the next batch. This batch
%% goes by the distribution as well, behind these messages, and the inlet delivers no later batch
%% before it. Nor may news of a sender's end overtake what that sender was sending. So as long as
%% any sender may be sending, all batches go by the distribution. While nothing is in flight, a mark
%% lets senders bypass the lane (trunkline_bypass).
%%
%% This module is a part of the lane, which calls it, and gets the messages of its connections.
-module(trunkline_batches).
-moduledoc false.

-export([new/5, open/4, close/1, close_channels/1, suspend/1, resumed/3]).
-export([is_open/1, is_waiting/2, next/1, arrived/1, in_flight/1, is_idle/1, have_arrived/1]).
-export([send/4, fence/2, acked/4, event/2]).
-export([takes_turns/1, is_quiet/1, passed/2, unreported/1, report/2, is_sending/1]).
-export([end_bypass/2, exact/2, tick/2, answers/1, ticks/2, rest/1]).

-export_type([batches/0, batch/0, event/0]).

-record(batches,
        {ix :: pos_integer(),
         node :: node(),
         stats :: trunkline_stats:stats(),
         window = trunkline_window:sender(1) :: trunkline_window:sender(),
         pace = trunkline_pace:new() :: trunkline_pace:pace(),
         next = 1 :: pos_integer(),                    % the number of the next one
         %% The last one that has arrived, with all before it: what is in them has been delivered,
         %% except for large messages and what comes behind these.
         arrived = 0 :: non_neg_integer(),
         by = undecided :: undecided | trunkline_channels:way(),     % which way they go
         channels :: trunkline_channels:channels(),
         %% Whether messages may go to the peer by the distribution when their turn has come.
         takes_turns = false :: boolean(),
         past :: trunkline_bypass:past(),              % what has gone past the lane
         messages = 0 :: non_neg_integer(),            % in all, at the last tick
         %% Whether the gate's level is that of what is in the lane.
         exact = true :: boolean()}).
-opaque batches() :: #batches{}.

%% ms that the end of a session waits for senders if its connection is lost.
-define(SOON, 100).

-type charge() :: trunkline_gate:charge().
-type batch() :: {Number :: pos_integer(), trunkline_window:ack(), charge(),
                  [trunkline_lane:entry()]}.
%% What the lane gets from its link and its connections.
-type event() :: {way, trunkline_channels:way()}
               | {channel, pid(), term()}
               | {timeout, reference(), {channels, term()}}
               | {'DOWN', reference(), process, pid(), term()}.

%% There is no session.
-spec new(pos_integer(), node(), trunkline_bypass:bypass(), trunkline_options:options(),
          trunkline_stats:stats()) -> batches().
new(Ix, Node, Bypass, Options, Stats) ->
    #batches{ix = Ix, node = Node, stats = Stats, past = trunkline_bypass:past(Ix, Bypass),
             channels = trunkline_channels:new(Ix, Options, Stats)}.

%% A session begins, of batches that have been closed.
-spec open(Inlet :: pid(), WindowBytes :: pos_integer(), trunkline_channels:sent(), batches()) ->
          batches().
open(Inlet, WindowBytes, Sent, #batches{node = Node, channels = Channels} = B) ->
    show(B#batches{window = trunkline_window:sender(WindowBytes), next = 1, arrived = 0,
                   by = undecided, channels = trunkline_channels:open(Inlet, Sent, Channels),
                   %% (Another session may have begun by now.)
                   takes_turns = Sent =:= once andalso trunkline_peers:takes_turns(Node)}).

%% It has ended. What is in flight may have arrived, or not.
-spec close(batches()) -> batches().
close(B) ->
    show((close_channels(B))#batches{takes_turns = false, window = trunkline_window:sender(1),
                                     pace = trunkline_pace:new()}).

%% From here on all batches go by the distribution.
-spec close_channels(batches()) -> batches().
close_channels(#batches{channels = Channels} = B) ->
    B#batches{channels = trunkline_channels:close(Channels), by = distribution}.

%% The connection is lost. An acknowledgement that was asked for will not come.
-spec suspend(batches()) -> batches().
suspend(#batches{channels = Channels} = B) ->
    by(trunkline_channels:suspend(Channels), B#batches{pace = trunkline_pace:new()}).

%% There is another one. The inlet expects batch number Expects, and has acknowledged so much in
%% all.
-spec resumed(Expects :: pos_integer(), trunkline_window:total(), batches()) -> batches().
resumed(Expects, Acknowledged, #batches{window = Window, channels = Channels} = B) ->
    Now = erlang:monotonic_time(nanosecond),
    Window1 = trunkline_window:resumed(Now, Acknowledged, round_trip(B), Window),
    by(trunkline_channels:resume(Expects - 1, Channels),
       show(B#batches{window = Window1, arrived = Expects - 1})).

%% --- what may be sent -------------------------------------------------------------

%% Whether the window has room for a batch.
-spec is_open(batches()) -> boolean().
is_open(#batches{window = Window}) -> trunkline_window:is_open(Window).

%% Whether a batch of so much should wait for more.
-spec is_waiting(charge(), batches()) -> boolean().
is_waiting(Charge, #batches{pace = Pace}) ->
    trunkline_pace:is_waiting(trunkline_gate:messages(Charge), Pace).

-spec next(batches()) -> pos_integer().
next(#batches{next = Next}) -> Next.

-spec arrived(batches()) -> non_neg_integer().
arrived(#batches{arrived = Arrived}) -> Arrived.

%% Whether all have arrived, acknowledged or not.
-spec have_arrived(batches()) -> boolean().
have_arrived(#batches{next = Next, arrived = Arrived}) -> Arrived =:= Next - 1.

-spec in_flight(batches()) -> charge().
in_flight(#batches{window = Window}) -> trunkline_window:in_flight(Window).

%% Whether everything has been acknowledged that is more than a command.
-spec is_idle(batches()) -> boolean().
is_idle(B) -> trunkline_gate:is_less_than_a_message(in_flight(B)).

%% --- batches ----------------------------------------------------------------------

%% `AreGranted' says whether a sender has been told to send past the lane, and may be doing so.
-spec send(charge(), [trunkline_lane:entry()], AreGranted :: boolean(), batches()) -> batches().
send(Charge, Entries, AreGranted, B) ->
    transmit(Charge, Entries, later, way(AreGranted, B)).

%% An empty one, which the inlet acknowledges at once.
-spec fence(AreGranted :: boolean(), batches()) -> batches().
fence(AreGranted, B) -> transmit(0, [], full, way(AreGranted, B)).

%% If anything has been sent past the lane since a batch last went by the distribution, this one
%% does: it may be behind that message, and what comes later is behind the batch. (What was sent is
%% counted before its sender sends anything else. What is counted from here on the next batch
%% reports: this one may go by a connection.) So does the first batch, which is behind what was sent
%% by plain distribution before the session. And so do all while plain replies are owed, which
%% are not counted (trunkline_plain_reply).
way(AreGranted, #batches{by = By, next = Next, past = Before} = B0) ->
    Past = trunkline_bypass:take(Before),
    B = B0#batches{past = Past},
    case By =:= connections andalso Next > 1 andalso not trunkline_bypass:must_follow(Past)
        andalso not trunkline_bypass:are_owed(Past) andalso not AreGranted
        andalso not is_sending(B) of
        true -> {connections, B};
        false -> {distribution, B#batches{past = trunkline_bypass:followed(Past)}}
    end.

%% Each batch reports what has gone past the lane: with its charge, which the inlet acknowledges. It
%% does so at once, since more may go past the lane as soon as nothing is in flight.
transmit(Charge, Entries, Urgent,
         {Way, #batches{ix = Ix, stats = Stats, next = Number, past = Past} = B}) ->
    Unreported = trunkline_bypass:unreported(Past),
    %% The token of the last message that the lane has received is not that of all others.
    _ = seq_trace:set_token([]),
    Now = erlang:monotonic_time(nanosecond),
    Messages = trunkline_gate:messages(Charge),
    Reported = Charge + trunkline_gate:packed(0, Unreported),
    Window = trunkline_window:sent(Now, Reported, B#batches.window),
    {Ack, Pace} = case Urgent =:= later andalso Unreported =:= 0
                      andalso trunkline_window:is_open(Window) of
                      true -> trunkline_pace:sent(Now, B#batches.pace);
                      false -> {full, B#batches.pace}  % a wait for the window teaches nothing
                  end,
    Scope = {lane, Ix},
    trunkline_stats:observe(Stats, Scope, batches, Messages),
    trunkline_stats:add(Stats, Scope, messages, Messages),
    trunkline_stats:add(Stats, Scope, batched_messages, Messages),
    trunkline_stats:add(Stats, Scope, bytes, trunkline_gate:bytes(Charge)),
    trunkline_stats:peak(Stats, Scope, largest_batch, Messages),
    B1 = show(B#batches{window = Window, pace = Pace, next = Number + 1,
                        past = trunkline_bypass:reported(Past)}),
    B1#batches{channels = trunkline_channels:send(Way, {Number, Ack, Reported, Entries},
                                                  B1#batches.channels)}.

%% The inlet has acknowledged so much, as it was asked to, and all up to number Arrived are there.
-spec acked(trunkline_window:ack(), charge(), Arrived :: non_neg_integer(), batches()) -> batches().
acked(Ack, Charge, Arrived, #batches{window = Window, pace = Pace, channels = Channels} = B) ->
    Now = erlang:monotonic_time(nanosecond),
    show(B#batches{window = trunkline_window:acked(Now, Charge, round_trip(B), Window),
                   pace = case Ack of
                              now -> trunkline_pace:arrived(Now, Pace);
                              _ -> Pace
                          end,
                   arrived = Arrived,
                   channels = trunkline_channels:arrived(Arrived, Channels)}).

%% The way of the batches may have changed, or there may be room on a connection. `unknown': a
%% message of an earlier session's, or none of these.
-spec event(event(), batches()) -> {ok, batches()} | unknown.
event(Event, #batches{channels = Channels} = B) ->
    case trunkline_channels:event(Event, Channels) of
        unknown -> unknown;
        Channels1 -> {ok, by(Channels1, B)}
    end.

%% With the way the window changes: without connections to a far peer the lane uses a careful one.
by(Channels, #batches{by = Before, ix = Ix, node = Node, window = Window} = B) ->
    case trunkline_channels:by(Channels) of
        Before ->
            B#batches{channels = Channels};
        By ->
            Before =:= undecided
                orelse trunkline_events:tell([lane, way], #{}, #{peer => Node, lane => Ix,
                                                                 from => Before, to => By}),
            show(B#batches{channels = Channels, by = By,
                           window = trunkline_window:by(By, round_trip(B), Window)})
    end.

round_trip(#batches{stats = Stats}) -> trunkline_stats:get(Stats, peer, round_trip).

%% --- what goes past the lane ------------------------------------------------------

-spec takes_turns(batches()) -> boolean().
takes_turns(#batches{takes_turns = TakesTurns}) -> TakesTurns.

%% Whether short messages should rather bypass the lane.
-spec is_quiet(batches()) -> boolean().
is_quiet(#batches{past = Past}) -> trunkline_bypass:is_quiet(Past).

%% So many messages have gone past the lane, by the distribution. (Senders that bypass it count for
%% themselves.)
-spec passed(non_neg_integer(), batches()) -> batches().
passed(N, #batches{past = Past, ix = Ix, stats = Stats} = B) ->
    trunkline_stats:add(Stats, {lane, Ix}, messages, N),
    B#batches{past = trunkline_bypass:more(N, Past)}.

-spec unreported(batches()) -> non_neg_integer().
unreported(#batches{past = Past}) -> trunkline_bypass:unreported(Past).

%% Reports what has been sent, in a batch of its own, if there is anything.
-spec report(AreGranted :: boolean(), batches()) -> batches().
report(AreGranted, #batches{past = Past} = B) ->
    B1 = B#batches{past = trunkline_bypass:take(Past)},
    case unreported(B1) of
        0 -> B1;
        _ -> send(0, [], AreGranted, B1)
    end.

%% Whether a sender may be bypassing the lane now.
-spec is_sending(batches()) -> boolean().
is_sending(#batches{past = Past}) -> trunkline_bypass:is_sending(Past).

%% From here on no sender starts to bypass the lane. What has been sent so
%%
%%     lost        is lost with the connection, unless a batch has reported it. So is what senders
%%                 are sending, if they do not find soon that they cannot
%%     kept        will be reported in the next session, or is lost with the connection before that
%%     over        arrives by plain distribution
%%
%% What is lost is counted.
-spec end_bypass(lost | kept | over, batches()) -> batches().
end_bypass(How, #batches{past = Past, ix = Ix, stats = Stats} = B) ->
    ok = trunkline_bypass:set_idle(false, Past),
    ok = trunkline_bypass:set_quiet(false, Past),
    B1 = B#batches{takes_turns = false},
    case How of
        lost ->
            {Unreported, Sending, Past1} = trunkline_bypass:ended(?SOON, Past),
            trunkline_stats:add(Stats, {lane, Ix}, messages, Sending),
            trunkline_stats:add(Stats, peer, lost_unconfirmed, Unreported + Sending),
            B1#batches{past = Past1};
        kept ->
            B1;
        over ->
            {_, _, Past1} = trunkline_bypass:ended(0, Past),
            B1#batches{past = Past1}
    end.

%% Whether the gate's level is right: if not, it may be zero although a message is in the lane.
-spec exact(boolean(), batches()) -> batches().
exact(Exact, B) -> show(B#batches{exact = Exact}).

%% Once a second. `Killed' senders that had been told to send count as having sent.
-spec tick(Killed :: non_neg_integer(), batches()) -> batches().
tick(Killed, #batches{past = Past, ix = Ix, stats = Stats, messages = Before} = B) ->
    Messages = trunkline_stats:get(Stats, {lane, Ix}, messages),
    IsQuiet = takes_turns(B) andalso trunkline_bypass:are_few(Messages - Before),
    ok = trunkline_bypass:set_quiet(IsQuiet, Past),
    passed(Killed, B#batches{past = trunkline_bypass:tick(Past), messages = Messages}).

%% The lane has taken a question that its sender has given up, and answers questions again. (A
%% sender may be killed before it has sent that. So this is called at each tick, too.)
-spec answers(batches()) -> ok.
answers(#batches{past = Past}) -> trunkline_bypass:answers(Past).

%% Whether tick/2 will be called.
-spec ticks(boolean(), batches()) -> ok.
ticks(Ticks, #batches{past = Past}) -> trunkline_bypass:ticks(Ticks, Past).

%% It will not, unless a sender has sent before it could see that (such a sender has not told the
%% lane), or an acknowledgement will wake the lane: then it would keep its memory.
-spec rest(batches()) -> {rest | tick, batches()}.
rest(#batches{past = Past} = B) ->
    ok = trunkline_bypass:ticks(false, Past),
    B1 = B#batches{past = trunkline_bypass:take(Past)},
    case unreported(B1) =:= unreported(B) andalso in_flight(B) =:= 0 of
        true -> {rest, B1};
        false -> {tick, B1}
    end.

show(#batches{window = Window, stats = Stats, ix = Ix} = B) ->
    InFlight = trunkline_window:in_flight(Window),
    ok = mark(InFlight, B),
    trunkline_stats:put(Stats, {lane, Ix}, in_flight_messages, trunkline_gate:messages(InFlight)),
    trunkline_stats:put(Stats, {lane, Ix}, in_flight_bytes, trunkline_gate:bytes(InFlight)),
    trunkline_stats:put(Stats, {lane, Ix}, window_bytes, trunkline_window:bytes(Window)),
    B.

%% Whether senders may bypass the lane while it is empty.
mark(InFlight, #batches{takes_turns = TakesTurns, exact = Exact, past = Past}) ->
    trunkline_bypass:set_idle(TakesTurns andalso Exact
                              andalso trunkline_gate:is_less_than_a_message(InFlight), Past).
