%% When a lane holds a batch back so that more messages can join it.
%%
%% A batch costs two nodes some 15 us, most of it in system calls and wake-ups,
%% however small it is; a message in it costs less than 1. On a machine with a
%% processor to spare a lane is awake as soon as one message is there, and then
%% many small batches take more processor time than the messages. So, as Nagle's
%% algorithm does for TCP, a lane under dense traffic counts itself as busy until
%% the batch before has arrived at the inlet:
%%
%%     lane                          inlet
%%      | batch (alone) ───────────>  |
%%      | batch (now) ─────────────>  |  less than DENSE after the one before:
%%      |   :                         |  the lane asks to be told at once
%%      |   : what comes now waits    |
%%      | <─────────────────── ack ── |
%%      | batch ───────────────────>  |
%%
%% No timer is involved. Nothing waits when traffic is thin, nor with FULL
%% messages, nor for an inlet that is further away than NEAR: there the round
%% trip is latency, and not a measure of what the machines can take.
-module(trunkline_pace).
-moduledoc false.

-export([new/0, is_waiting/2, sent/2, arrived/2]).

-export_type([pace/0, ack/0]).

-type nanoseconds() :: integer().
-type ack() :: now | later.

-record(pace,
        {last = none :: none | nanoseconds(),        % when the last batch was sent
         %% When a batch was sent whose arrival is awaited.
         probe = none :: none | nanoseconds(),
         nearest = none :: none | nanoseconds()}).   % the shortest recent round trip
-opaque pace() :: #pace{}.

%% Measured in docs/lab/tried.md.
-define(DENSE, 30_000).
-define(NEAR, 1_000_000).
-define(FULL, 32).

-spec new() -> pace().
new() -> #pace{}.

%% Whether a batch with that many messages should wait for more.
-spec is_waiting(non_neg_integer(), pace()) -> boolean().
is_waiting(Messages, #pace{probe = Probe, nearest = Nearest}) ->
    Messages < ?FULL andalso Probe =/= none andalso Nearest < ?NEAR.   % none < NEAR is false

%% A batch leaves now; how should the inlet acknowledge it?
-spec sent(nanoseconds(), pace()) -> {ack(), pace()}.
sent(Now, #pace{probe = none, last = Last} = P) when is_integer(Last), Now - Last < ?DENSE ->
    {now, P#pace{last = Now, probe = Now}};
sent(Now, P) ->
    {later, P#pace{last = Now}}.

%% The batch that was sent with `now' has arrived. A loaded machine answers late
%% without being far away: what counts is the shortest round trip, which is
%% forgotten slowly, by a sixteenth each time.
-spec arrived(nanoseconds(), pace()) -> pace().
arrived(Now, #pace{probe = Probe, nearest = Nearest} = P) when is_integer(Probe) ->
    RoundTrip = Now - Probe,
    P#pace{probe = none,
           nearest = case Nearest of
                         none -> RoundTrip;
                         _ -> min(RoundTrip, Nearest + Nearest div 16 + 1)
                     end};
arrived(_, P) ->
    P.
