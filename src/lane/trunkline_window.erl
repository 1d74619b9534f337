%% The window of a lane: how many of its bytes may be in flight.
%%
%%     lane                                   inlet
%%      | batch, 60 kB     in flight  60 kB    |
%%      |=====================================>|  unacknowledged  60 kB
%%      | batch, 60 kB     in flight 120 kB    |
%%      |=====================================>|  unacknowledged 120 kB
%%      |                                      |  ... a quarter of FIRST
%%      |<------------------------- ack 120 kB |  delivered, unacknowledged 0
%%      |  in flight 0                         |
%%
%% The lane sends while less than a window is in flight, so that the inlet
%% never holds more than a window and one batch. The inlet acknowledges what it
%% has delivered when that makes a quarter of the first window, when it is asked to
%% (see trunkline_pace), or a little later. Hence a lane is never stuck: with a window
%% in flight there is a quarter at the inlet, or an acknowledgement under way.
%%
%% The window follows the bandwidth-delay product: the highest recent delivery rate, times the round
%% trip to the peer, times AMPLE. The factor allows for acknowledgements that come late and all at
%% once, and for the round trip that a lost packet costs. So while the window is the limit, it
%% quadruples with each round trip. A slow receiver lowers the rate and does not lengthen the round
%% trip, so its window does not grow. Nor does that of a near peer: there FIRST is enough, and
%% acknowledgements that a busy lane takes out of its mailbox in quick succession would look like a
%% rate that does not exist.
%%
%% Data that a single connection holds back because of packet loss arrive late, and so does
%% everything behind them. Hence the window of a lane whose batches go to a far peer by the
%% distribution starts at CAREFUL, and grows as above. Whenever such a window is the limit, the
%% batch that fills it asks to be acknowledged at once.
%%
%% When the connection breaks, acknowledgements are lost. If the session resumes, the inlet says how
%% much it has acknowledged in all, and the lane takes the difference as acknowledged now.
%%
%% This module is pure: it decides, and has no side effects. Amounts are charges as
%% trunkline_gate packs them: they count bytes and messages at the same time.
-module(trunkline_window).
-moduledoc false.

-export([sender/1, by/3, is_open/1, sent/3, acked/4, resumed/4, in_flight/1, bytes/1]).
-export([receiver/1, delivered/3, flush/1, acknowledged/1]).

-export_type([sender/0, receiver/0, total/0, ack/0]).

-type charge() :: trunkline_gate:charge().
-type bytes() :: non_neg_integer().
-type nanoseconds() :: integer().

-type microseconds() :: non_neg_integer().
-record(round,
        {start :: nanoseconds(),
         before :: bytes(),                      % delivered at its start
         till :: bytes()}).                      % and at its end, at least
-record(sender,
        {window :: charge(),
         in_flight = 0 :: charge(),
         least :: bytes(),
         most :: bytes(),
         delivered = 0 :: bytes(),
         acked = 0 :: total(),
         round = none :: none | #round{},
         %% The highest rate (bytes a second) of the last period, and of the one before.
         rate = 0 :: bytes(),
         rate_before = 0 :: bytes(),
         period = none :: none | nanoseconds()}).
-opaque sender() :: #sender{}.
-opaque receiver() :: {Quarter :: charge(), Unacknowledged :: charge(), Acknowledged :: total()}.
%% How a batch should be acknowledged: in time, at once since the lane waits for it
%% (trunkline_pace), or at once since the window is full or the batch is a fence.
-type ack() :: trunkline_pace:ack() | full.
%% The sum of all charges that were acknowledged. It wraps around: it stays a small integer, and
%% what is in flight is always less.
-type total() :: non_neg_integer().

%% Bytes, as charged, of a window whose lane has delivered nothing yet.
-define(FIRST, (4 bsl 20)).
-define(CAREFUL, (256 bsl 10)).
-define(AMPLE, 4).
%% No rate counts for more than two periods.
-define(PERIOD, 10_000_000_000).
-define(WRAP(Total), ((Total) band (1 bsl 58 - 1))).

%% The sending side of a window of at most that many bytes.
-spec sender(Most :: pos_integer()) -> sender().
sender(Most) ->
    Least = min(?FIRST, Most),
    #sender{window = trunkline_gate:limit(Least), least = Least, most = Most}.

%% From now on batches go that way, over that distance.
-spec by(distribution | connections, RoundTrip :: microseconds(), sender()) -> sender().
by(distribution, RoundTrip, #sender{most = Most} = S) ->
    case trunkline_distance:is_far(RoundTrip) of
        true -> start(min(?CAREFUL, Most), S);
        false -> S
    end;
by(connections, _, #sender{window = Window, most = Most} = S) ->
    Least = min(?FIRST, Most),
    S#sender{least = Least, window = max(Window, trunkline_gate:limit(Least))}.

start(Least, S) ->
    S#sender{window = trunkline_gate:limit(Least), least = Least, round = none, rate = 0,
             rate_before = 0, period = none}.

-spec is_open(sender()) -> boolean().
is_open(#sender{window = Window, in_flight = InFlight}) -> InFlight < Window.

-spec sent(Now :: nanoseconds(), charge(), sender()) -> sender().
sent(Now, Charge, #sender{in_flight = InFlight, round = none} = S) ->
    start_round(Now, S#sender{in_flight = InFlight + Charge});
sent(_, Charge, #sender{in_flight = InFlight} = S) ->
    S#sender{in_flight = InFlight + Charge}.

%% RoundTrip, to the peer, is measured apart from the batches; 0: not known.
-spec acked(Now :: nanoseconds(), charge(), RoundTrip :: microseconds(), sender()) -> sender().
acked(Now, Charge, RoundTrip,
      #sender{in_flight = InFlight, delivered = Delivered, round = Round} = S) ->
    S1 = S#sender{in_flight = InFlight - Charge, acked = ?WRAP(S#sender.acked + Charge),
                  delivered = Delivered + trunkline_gate:bytes(Charge)},
    case Round of
        #round{till = Till} when S1#sender.delivered >= Till ->
            S2 = end_round(Now, RoundTrip, Round, S1),
            case S2#sender.in_flight of
                0 -> S2#sender{round = none};
                _ -> start_round(Now, S2)
            end;
        _ ->
            S1
    end.

%% Total is what the inlet had acknowledged in all when the connection broke.
-spec resumed(Now :: nanoseconds(), total(), RoundTrip :: microseconds(), sender()) -> sender().
resumed(Now, Total, RoundTrip, #sender{acked = Acked} = S) ->
    acked(Now, ?WRAP(Total - Acked), RoundTrip, S).

%% The round ends when all that is in flight now has been delivered.
start_round(Now, #sender{delivered = Delivered, in_flight = InFlight} = S) ->
    S#sender{round = #round{start = Now, before = Delivered,
                            till = Delivered + trunkline_gate:bytes(InFlight)}}.

%% Acknowledgements that were held up come all at once: no round is shorter than the
%% way there and back.
end_round(Now, RoundTrip, #round{start = Start, before = Before},
          #sender{delivered = Delivered, least = Least, most = Most} = S) ->
    Time = max(1, max(Now - Start, RoundTrip * 1000)),
    #sender{rate = Rate, rate_before = RateBefore} = S1 =
        rate(Now, (Delivered - Before) * 1_000_000_000 div Time, S),
    Ample = case trunkline_distance:is_far(RoundTrip) of
                true -> ?AMPLE * max(Rate, RateBefore) * RoundTrip div 1_000_000;
                false -> ?FIRST
            end,
    S1#sender{window = trunkline_gate:limit(max(Least, min(Most, Ample)))}.

rate(Now, Rate, #sender{period = Period} = S) when Period =:= none; Now - Period >= ?PERIOD ->
    S#sender{period = Now, rate = Rate, rate_before = S#sender.rate};
rate(_, Rate, #sender{rate = Before} = S) ->
    S#sender{rate = max(Rate, Before)}.

-spec in_flight(sender()) -> charge().
in_flight(#sender{in_flight = InFlight}) -> InFlight.

%% The size of the window now.
-spec bytes(sender()) -> bytes().
bytes(#sender{window = Window}) -> trunkline_gate:bytes(Window).

%% The receiving side of the same window.
-spec receiver(Most :: pos_integer()) -> receiver().
receiver(Most) -> {trunkline_gate:limit(max(1, min(?FIRST, Most) div 4)), 0, 0}.

%% A batch has been delivered, whose lane wants to know `now' or `later'.
-spec delivered(ack(), charge(), receiver()) ->
          {ack, charge(), receiver()} | {later, receiver()}.
delivered(Ack, Charge, {Quarter, Unacked, Acked})
  when Ack =/= later; Unacked + Charge >= Quarter ->
    acknowledge({Quarter, Unacked + Charge, Acked});
delivered(later, Charge, {Quarter, Unacked, Acked}) ->
    {later, {Quarter, Unacked + Charge, Acked}}.

%% Acknowledges the rest, because there is nothing else to do.
-spec flush(receiver()) -> {ack, charge(), receiver()} | none.
flush({_, 0, _}) -> none;
flush(Receiver) -> acknowledge(Receiver).

acknowledge({Quarter, Unacked, Acked}) -> {ack, Unacked, {Quarter, 0, ?WRAP(Acked + Unacked)}}.

%% How much was acknowledged in all.
-spec acknowledged(receiver()) -> total().
acknowledged({_, _, Acked}) -> Acked.
