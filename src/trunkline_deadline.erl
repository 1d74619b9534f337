%% How long to wait, as OTP's functions take it, and the point in time that it means.
%%
%% A function that waits more than once, or that lets others wait for it, makes a deadline of
%% its timeout at the start, and asks before each wait what is left of it.
-module(trunkline_deadline).
-moduledoc false.

-export([is_timeout/1, in/1, until/1, left/1, has_passed/1]).

-export_type([deadline/0, timeout_time/0]).

%% As erlang:monotonic_time(millisecond) tells it.
-type deadline() :: infinity | integer().
%% ms, or a point in time as that function tells it.
-type timeout_time() :: timeout() | {abs, integer()}.

%% The longest time in ms that `receive' can wait (the reference manual, "receive").
-define(LONGEST, 16#FFFFFFFF).

%% What `receive' can wait for.
-spec is_timeout(term()) -> boolean().
is_timeout(infinity) -> true;
is_timeout(Timeout) -> is_integer(Timeout) andalso Timeout >= 0 andalso Timeout =< ?LONGEST.

-spec in(timeout()) -> deadline().
in(infinity) -> infinity;
in(Timeout) -> now_ms() + Timeout.

%% `badarg' is what `receive' could not wait for. A point in time may have passed.
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

%% For `receive' to wait.
-spec left(deadline()) -> timeout().
left(infinity) -> infinity;
left(Deadline) -> min(?LONGEST, max(0, Deadline - now_ms())).

-spec has_passed(deadline()) -> boolean().
has_passed(infinity) -> false;
has_passed(Deadline) -> now_ms() >= Deadline.

now_ms() -> erlang:monotonic_time(millisecond).
