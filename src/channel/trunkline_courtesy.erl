%% How many fragments may be under way on the distribution connection.
%%
%% Where large messages have no connection of their own, they share one with
%% everything else between two nodes, and should be in nobody's way. A queue is in
%% everybody's way, and shows as a delay: how much longer than the shortest time
%% seen does it take until a fragment is acknowledged? If that is little, one more
%% fragment may be under way; if it is more, a quarter less. (The idea is that of
%% LEDBAT, RFC 6817; like it, once for each round trip.)
%%
%% A fragment that is alone delays nobody: what it takes longer than the shortest time is the
%% doing of others, of busy processors for example. Fragments may add as much as that again:
%% else they would go one by one for as long as the others are busy.
%%
%% This module decides, and does nothing.
-module(trunkline_courtesy).
-moduledoc false.

-export([new/0, fragment_bytes/0, is_open/1, sent/2, acked/2]).

-export_type([courtesy/0]).

-type us() :: integer().
-record(courtesy,
        {window = 2 :: pos_integer(),                      % fragments
         shortest = infinity :: us() | infinity,
         usual = infinity :: us() | infinity,               % the same, since one was alone
         sent = queue:new() :: queue:queue(us()),           % when
         %% When the window was changed. Until what has been sent since then is
         %% acknowledged it says nothing about the change.
         changed = none :: us() | none,
         start = true :: boolean()}).                      % it has never been too much
-opaque courtesy() :: #courtesy{}.

%% us that the fragments may add to what a message takes.
-define(DELAY, 2000).
-define(MOST, 256).

-spec new() -> courtesy().
new() -> #courtesy{}.

%% Less than the 64 kB from which on the distribution itself cuts a message: it
%% could be overtaken then.
-spec fragment_bytes() -> pos_integer().
fragment_bytes() -> 30 * 1024.

-spec is_open(courtesy()) -> boolean().
is_open(#courtesy{window = Window, sent = Sent}) -> queue:len(Sent) < Window.

-spec sent(Now :: us(), courtesy()) -> courtesy().
sent(Now, #courtesy{sent = Sent} = C) ->
    C#courtesy{sent = queue:in(Now, Sent)}.

%% The oldest one has been acknowledged.
-spec acked(Now :: us(), courtesy()) -> courtesy().
acked(Now, #courtesy{sent = Sent, window = Window, changed = Changed, start = Start} = C) ->
    case queue:out(Sent) of
        {{value, Then}, Sent1} ->
            Took = Now - Then,
            New = Changed =:= none orelse Then >= Changed,
            Shortest = min(C#courtesy.shortest, Took),
            Usual = case Window =:= 1 andalso New andalso queue:is_empty(Sent1) of
                        true -> Took;
                        false -> min(C#courtesy.usual, Took)
                    end,
            C1 = C#courtesy{sent = Sent1, shortest = Shortest, usual = Usual},
            case Took - Usual < max(?DELAY, Usual - Shortest) of
                true when Start -> C1#courtesy{window = min(?MOST, Window + 1)};
                true when New -> C1#courtesy{window = min(?MOST, Window + 1), changed = Now};
                false when New -> C1#courtesy{window = max(1, Window * 3 div 4), changed = Now, start = false};
                _ -> C1
            end;
        {empty, _} ->
            C
    end.
