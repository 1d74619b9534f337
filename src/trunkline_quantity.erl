%% Sizes and times as users write them: "64MB", <<"64 MB">>, "1h", "65536", or a number of bytes or
%% milliseconds.
-module(trunkline_quantity).
-moduledoc false.

-export([parse/2, text/2]).

-type kind() :: size | time.

%% ms
-define(DAY, 86_400_000).

%% Bytes, or milliseconds. `error': that is no such quantity.
-spec parse(kind(), term()) -> integer() | error.
parse(_, Value) when is_integer(Value) ->
    Value;
parse(Kind, Value) when is_list(Value); is_binary(Value) ->
    try
        {N, Rest} = string:to_integer(string:trim(unicode:characters_to_list(Value))),
        N * maps:get(string:lowercase(string:trim(Rest)), units(Kind))
    catch
        error:_ -> error             % not a string, no number, or no such unit
    end;
parse(_, _) ->
    error.

units(size) ->
    #{"" => 1, "b" => 1, "kb" => 1 bsl 10, "mb" => 1 bsl 20, "gb" => 1 bsl 30,
      "kib" => 1 bsl 10, "mib" => 1 bsl 20, "gib" => 1 bsl 30};
units(time) ->
    #{"ms" => 1, "s" => 1000, "min" => 60_000, "h" => 3_600_000, "d" => ?DAY}.

%% As people write it, with the largest unit that fits.
-spec text(kind(), non_neg_integer()) -> iolist().
text(Kind, N) ->
    {Factor, Unit} = hd([U || {F, _} = U <- written(Kind), N rem F =:= 0, N >= F orelse F =:= 1]),
    io_lib:format("\"~b~ts\"", [N div Factor, Unit]).

written(size) -> [{1 bsl 30, "GB"}, {1 bsl 20, "MB"}, {1 bsl 10, "KB"}, {1, "B"}];
written(time) -> [{?DAY, "d"}, {1000, "s"}, {1, "ms"}].
