%% Encodes maps, lists, numbers, binaries and atoms as JSON (RFC 8259). OTP has a module for that
%% only since release 27.
-module(trunkline_json).
-moduledoc false.

-export([encode/1]).

%% Binaries are text in UTF-8. Keys and other atoms become strings.
-type value() :: #{atom() | binary() => value()} | [value()] | number() | binary() | boolean()
               | undefined | atom().

-spec encode(value()) -> iodata().
encode(true) -> "true";
encode(false) -> "false";
encode(undefined) -> "null";
encode(Atom) when is_atom(Atom) -> text(atom_to_binary(Atom));
encode(Text) when is_binary(Text) -> text(Text);
encode(N) when is_integer(N) -> integer_to_binary(N);
encode(N) when is_float(N) -> float_to_binary(N, [{decimals, 3}, compact]);
encode(Values) when is_list(Values) -> [$[, lists:join($,, [encode(V) || V <- Values]), $]];
encode(Map) when is_map(Map) ->
    [${, lists:join($,, [[key(Key), $:, encode(V)] || {Key, V} <- maps:to_list(Map)]), $}].

key(Key) when is_atom(Key) -> text(atom_to_binary(Key));
key(Key) -> text(Key).

text(Text) -> [$", << <<(escape(C))/binary>> || C <- characters(Text) >>, $"].

%% Text that is not valid UTF-8 is taken for Latin-1, in which all bytes are valid.
characters(Text) ->
    case unicode:characters_to_list(Text) of
        Chars when is_list(Chars) -> Chars;
        _ -> binary_to_list(Text)
    end.

escape($") -> <<"\\\"">>;
escape($\\) -> <<"\\\\">>;
escape(C) when C < 32; C =:= 127 -> iolist_to_binary(io_lib:format("\\u~4.16.0b", [C]));
escape(C) -> <<C/utf8>>.
