%% Timeouts as OTP's functions take them, and the deadlines that follow from them.
%%
%% A function that waits more than once, or has others wait on its behalf, turns its timeout into a
%% deadline at the start, and computes before each wait how much time is left.
-module(trunkline_deadline).
-moduledoc false.

-export([is_timeout/1, in/1, until/1, left/1, has_passed/1]).

-export_type([deadline/0, timeout_time/0]).

%% A time as erlang:monotonic_time(millisecond) returns it.
-type deadline() :: infinity | integer().
%% ms, or a point in time on the same clock.
-type timeout_time() :: timeout() | {abs, integer()}.

%% The longest time in ms that `receive' can wait (the reference manual, "receive").
-define(LONGEST, 16#FFFFFFFF).

%% Whether `receive' accepts this timeout.
-spec is_timeout(term()) -> boolean().
is_timeout(infinity) -> true;
is_timeout(Timeout) -> is_integer(Timeout) andalso Timeout >= 0 andalso Timeout =< ?LONGEST.

-spec in(timeout()) -> deadline().
in(infinity) -> infinity;
in(Timeout) -> now_ms() + Timeout.

%% `badarg': `receive' could not wait for that. A point in time may lie in the past.
-spec until(timeout_time()) -> deadline() | badarg.
until({abs, Time}) when is_integer(Time) ->
    case Time - now_ms() =< ?LONGEST of
        true -> Time;
        false -> badarg
    end;
until(Timeout) ->
    case is_timeout(Timeout) of
        true -> in(Timeout);
        false -> badarg
    end.

%% The timeout for a `receive' that ends at the deadline.
-spec left(deadline()) -> timeout().
left(infinity) -> infinity;
left(Deadline) -> min(?LONGEST, max(0, Deadline - now_ms())).

-spec has_passed(deadline()) -> boolean().
has_passed(infinity) -> false;
has_passed(Deadline) -> now_ms() >= Deadline.

now_ms() -> erlang:monotonic_time(millisecond).
