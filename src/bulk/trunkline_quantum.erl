%% How large a fragment should be, for one connection.
%%
%% While a fragment is on its way all others wait, so it should not take long. Each
%% fragment costs some work, so it should not be small. So its size follows from
%% the time that it may take. A connection next door moves ten megabytes in the
%% time in which one across a city moves sixty kilobytes.
%%
%% Thus a fast connection carries most messages in one piece, which need not be put
%% together again: that is what makes it fast (see docs/lab/large-messages-inside.md).
-module(trunkline_quantum).
-moduledoc false.

-export([new/0, bytes/1, sent/3]).

-export_type([quantum/0]).

-opaque quantum() :: pos_integer().

%% us that a fragment should take. (With 8 ms messages of 10 MB were cut where memory is slow, and
%% that made it slower: docs/lab/tried.md.)
-define(TURN, 32_000).
%% Bytes.
-define(LEAST, 65536).
-define(FIRST, 1 bsl 20).
-define(MOST, 8 bsl 20).

-spec new() -> quantum().
new() -> ?FIRST.

-spec bytes(quantum()) -> pos_integer().
bytes(Quantum) -> Quantum.

%% The connection took that many bytes in that many us. (It takes at once what it can
%% buffer, and only the next fragment has to wait. So the quantum grows by no more
%% than a factor of two at a time, and a short time says nothing unless the bytes
%% were as many as the quantum.)
-spec sent(Bytes :: pos_integer(), Microseconds :: non_neg_integer(), quantum()) -> quantum().
sent(Bytes, Microseconds, Quantum) when Microseconds > ?TURN ->
    max(?LEAST, min(Quantum, (Quantum + Bytes * ?TURN div Microseconds) div 2));
sent(Bytes, Microseconds, Quantum) when Bytes >= Quantum ->
    min(?MOST, min(2 * Quantum, Bytes * ?TURN div max(1, Microseconds)));
sent(_, _, Quantum) ->
    Quantum.
