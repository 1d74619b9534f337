%% Names that look like OTP's and are not, and names that are OTP's though they do
%% not look so.
-module(?NAME).

-compile({no_auto_import, [monitor/2]}).
-import(gen_server, [call/2, cast/2, stop/1]).
-import(erpc, [multicast/2]).
-import(lists, [member/2]).

-export([own/1, imported/1, exported/1]).

own(X) ->
    [monitor(process, X), send(X, 1), call(X, 2, 3), (fun monitor/2)(a, b), (fun send/2)(c, d),
     demonitor(1, 2, 3)].

monitor(A, B) -> {mine, A, B}.
send(A, B) -> {mine, A, B}.
call(A, B, C) -> {mine, A, B, C}.
demonitor(A, B, C) -> {mine, A, B, C}.

imported(X) ->
    cast(X, 1),
    [call(X, 2), call(X, 3), member(X, [X]), multicast([], fun node/0)].

exported(X) ->
    stop(X).
