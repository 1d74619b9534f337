%% When to try again after a connection could not be made, or did not last: exponential backoff
%% with random pauses, because many others may try again after the same event. If several
%% connections fail at the same time, only the first one makes the pause longer.
%%
%% The process that calls this gets the message {timeout, Timer, Message}, and gives the timer to
%% timeout/2.
-module(trunkline_retry).
-moduledoc false.

-export([new/1, may/1, is_first/1, failed/1, ended/2, lasted/1, timeout/2]).

-export_type([retry/0]).

%% ms
-define(PAUSE, 1000).
-define(LONGEST_PAUSE, 60_000).

-record(retry,
        {message :: term(),
         timer = none :: none | reference(),
         pause = ?PAUSE :: pos_integer()}).      % if the next one fails
-opaque retry() :: #retry{}.

-spec new(Message :: term()) -> retry().
new(Message) -> #retry{message = Message}.

%% Whether a connection may be tried now.
-spec may(retry()) -> boolean().
may(#retry{timer = Timer}) -> Timer =:= none.

%% Whether no connection has failed since one lasted.
-spec is_first(retry()) -> boolean().
is_first(#retry{pause = Pause}) -> Pause =:= ?PAUSE.

%% A connection could not be made.
-spec failed(retry()) -> retry().
failed(#retry{pause = Pause} = R) -> later(Pause, min(?LONGEST_PAUSE, 2 * Pause), R).

%% A connection that was made at that time (monotonic, ms) has ended. If that was soon, whatever
%% ended it may end the next one, too.
-spec ended(Since :: integer(), retry()) -> retry().
ended(Since, #retry{pause = Pause} = R) ->
    case erlang:monotonic_time(millisecond) - Since < ?PAUSE of
        true -> later(?PAUSE, Pause, R);
        false -> lasted(R)
    end.

%% A connection has done what it was for.
-spec lasted(retry()) -> retry().
lasted(R) -> R#retry{pause = ?PAUSE}.

later(Pause, Next, #retry{timer = none, message = Message} = R) ->
    Timer = erlang:start_timer(Pause div 2 + rand:uniform(Pause), self(), Message),
    R#retry{timer = Timer, pause = Next};
later(_, _, R) ->
    R.

%% Other timers are ignored.
-spec timeout(reference(), retry()) -> retry().
timeout(Timer, #retry{timer = Timer} = R) -> R#retry{timer = none};
timeout(_, R) -> R.
