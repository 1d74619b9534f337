-module(bench_echo).
-export([measure/1]).
measure(_) -> [].
