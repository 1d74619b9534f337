%% Which way batches go to a peer that is far: by the distribution, or by connections of
%% their own (see trunkline_trunk).
%%
%% The distribution takes less processor time for a message, by a third, since it is one
%% connection less to serve and knows atoms by number. But it is one connection: after a
%% packet was lost it waits for that, and then sends less for a long time; and no more is
%% under way than one window. Where neither is so it is the better way, at any distance.
%%
%%                    a packet was sent again, or the window was the limit
%%     distribution ─────────────────────────────────────────────────────> connections
%%          ^                                                                   │
%%          └───────────────────── HOLD later, to see whether it is still so ───┘
%%
%% Each time that it still is, it stays there for twice as long, up to LONGEST.
%%
%% This module decides, and does nothing.
-module(trunkline_way).

-export([new/0, look/3]).

-export_type([way/0, sample/0]).

-type milliseconds() :: integer().
%% What the kernel says of the distribution's connection, since it was made; unknown if
%% it does not say.
-type sample() :: #{retransmitted := non_neg_integer(),      % packets
                    limited := non_neg_integer(),            % us, by a window that was not for loss
                    unacked_bytes := non_neg_integer()}      % under way now
                | unknown.

-record(way,
        {last = none :: none | {milliseconds(), sample()},
         until = none :: none | milliseconds(),     % by connections; else by the distribution,
         since = none :: none | milliseconds(),     % from then on
         hold :: milliseconds()}).
-opaque way() :: #way{}.

-define(HOLD, 30_000).
-define(LONGEST, 600_000).
%% A receiver that is slow makes its window small, and then little is under way.
-define(MUCH, 1 bsl 20).

-spec new() -> way().
new() -> #way{hold = ?HOLD}.

%% To be asked some times a second.
-spec look(milliseconds(), sample(), way()) -> {distribution | connections, way()}.
look(_, unknown, W) ->
    {connections, W};
look(Now, Sample, #way{last = Last, until = Until} = W0) ->
    W = W0#way{last = {Now, Sample}},
    case Until of
        none ->
            case is_limit(Last, Now, Sample) of
                true -> leave(Now, W);
                false -> {distribution, W}
            end;
        _ when Now < Until -> {connections, W};
        _ -> {distribution, W#way{until = none, since = Now}}
    end.

%% The way back was in vain if it was for a shorter time than the one before.
leave(Now, #way{since = Since, hold = Hold} = W) ->
    Hold1 = if Since =:= none; Now - Since > Hold -> ?HOLD;
               true -> min(?LONGEST, 2 * Hold)
            end,
    {connections, W#way{until = Now + Hold1, hold = Hold1}}.

is_limit({Before, #{retransmitted := R0, limited := L0}}, Now, #{retransmitted := R, limited := L, unacked_bytes := Unacked}) ->
    R > R0 orelse (Unacked >= ?MUCH andalso L - L0 >= (Now - Before) * 500);
is_limit(none, _, _) ->
    false.
