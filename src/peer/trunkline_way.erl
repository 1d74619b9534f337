%% Which way batches go to a peer that is far: by the distribution, or by connections of
%% their own (see trunkline_channels).
%%
%% The distribution needs a third less processor time for a message, because there is one connection
%% less to serve, and because it has an atom cache. But it is a single connection. After a packet
%% loss it waits for the retransmission, and then sends more slowly for a long time; and no more
%% than one TCP window is in flight. As long as neither is a problem, it is the better way at any
%% distance.
%%
%%                    a packet was sent again, or the window has been the limit
%%     distribution ─────────────────────────────────────────────────────> connections
%%          ^                                                                  │ │
%%          │─────────── TRIAL later, if no more is sent than before ──────────┘ │
%%          └─────────── HOLD later, to see whether it is still so ──────────────┘
%%
%% A node that sends as much as it can is always limited by the window, even if its processors would
%% not let it send more. Hence the trial. Each time that the distribution has to be left again soon
%% after the return to it, the next stay with connections is twice as long, up to LONGEST. If
%% connections did not help against the limit, the limit is ignored for LONGEST.
%%
%% This module is pure: it decides, and has no side effects.
-module(trunkline_way).
-moduledoc false.

-export([new/0, look/3]).

-export_type([way/0]).

-type milliseconds() :: integer().
%% The bytes sent to the peer either way, and the kernel's figures for the distribution's connection
%% since it was made, if there are any.
-type sample() :: {SentBytes :: non_neg_integer(),
                   #{retransmitted := non_neg_integer(),      % packets
                     limited := non_neg_integer(),            % us, by the send buffer,
                     receiver_limited := non_neg_integer(),   % and by the receiver's window
                     unacked_bytes := non_neg_integer()}      % now
                   | unknown}.

-record(way,
        {retransmitted = none :: none | non_neg_integer(),
         second = {0, 0, 0, 0} :: {Start :: milliseconds(), SentBytes :: non_neg_integer(),
                                   Limited :: non_neg_integer(),
                                   ReceiverLimited :: non_neg_integer()},
         until = none :: none | milliseconds(),     % end of the stay with connections, if on one
         since = none :: none | milliseconds(),     % last return to the distribution
         hold = 0 :: milliseconds(),
         trial = none :: none | {milliseconds(), ToBeat :: number()},      % bytes a ms
         unlimited = none :: none | milliseconds()}).
-opaque way() :: #way{}.

-define(HOLD, 30_000).
-define(LONGEST, 600_000).
%% New connections need some round trips.
-define(TRIAL, 4000).
-define(BETTER, 1.1).
%% While a connection is young its window is often the limit, and grows.
-define(SECOND, 1000).
%% A slow receiver shrinks its window, and then little is unacknowledged.
-define(MUCH, 1 bsl 20).

-spec new() -> way().
new() -> #way{}.

%% Called several times a second.
-spec look(milliseconds(), sample(), way()) -> {distribution | connections, way()}.
look(_, {_, unknown}, W) ->
    {connections, W};
look(Now, {_, #{retransmitted := R}} = Sample, #way{retransmitted = none} = W) ->
    {distribution, begin_second(Now, Sample, W#way{retransmitted = R})};
look(Now, {_, #{retransmitted := R}} = Sample, #way{until = none, retransmitted = Before} = W0) ->
    {Second, W} = second(Now, Sample, W0#way{retransmitted = R}),
    if R > Before ->
            leave(Now, W);
       true ->
            case Second of
                #{limited := true, rate := Rate}
                  when W#way.unlimited =:= none; Now >= W#way.unlimited ->
                    leave(Now, W#way{trial = {Now + ?TRIAL, Rate * ?BETTER}});
                _ ->
                    {distribution, W}
            end
    end;
look(Now, {_, #{retransmitted := R}} = Sample, #way{until = Until, trial = Trial} = W0) ->
    {Second, W} = second(Now, Sample, W0#way{retransmitted = R}),
    case {Second, Trial} of
        _ when Now >= Until ->
            return(Now, Sample, W);
        {#{start := Start, rate := Rate}, {End, ToBeat}} when Start >= End, Rate < ToBeat ->
            return(Now, Sample, W#way{unlimited = Now + ?LONGEST});
        {#{start := Start}, {End, _}} when Start >= End ->
            {connections, W#way{trial = none}};
        _ ->
            {connections, W}
    end.

return(Now, Sample, W) ->
    {distribution, begin_second(Now, Sample, W#way{until = none, since = Now, trial = none})}.

%% The return to the distribution was in vain if it lasted less than the stay before it.
leave(Now, #way{since = Since, hold = Hold} = W) ->
    Hold1 = if Since =:= none; Now - Since > Hold -> ?HOLD;
               true -> min(?LONGEST, 2 * Hold)
            end,
    {connections, W#way{until = Now + Hold1, hold = Hold1}}.

%% The figures of a second, when it has ended.
second(Now, _, #way{second = {Start, _, _, _}} = W) when Now - Start < ?SECOND ->
    {none, W};
second(Now, Sample, #way{second = {Start, _, _, _}} = W) when Now - Start > 2 * ?SECOND ->
    {none, begin_second(Now, Sample, W)};                % there was a pause in it
second(Now, {Sent, #{limited := L, receiver_limited := R, unacked_bytes := Unacked}} = Sample,
       #way{second = {Start, S0, L0, R0}} = W) ->
    Limited = L - L0 + if Unacked >= ?MUCH -> R - R0;
                          true -> 0
                       end,
    {#{start => Start, rate => (Sent - S0) / (Now - Start),
       limited => Limited >= (Now - Start) * 500},
     begin_second(Now, Sample, W)}.

begin_second(Now, {Sent, #{limited := L, receiver_limited := R}}, W) ->
    W#way{second = {Now, Sent, L, R}}.
