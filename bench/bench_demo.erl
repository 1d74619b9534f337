%% `make demo': what a user gains, in words and figures, in under a minute: two real nodes on
%% this machine, and what trunkline:compare/2 measures between them.
-module(bench_demo).

-export([main/0]).

-spec main() -> no_return().
main() -> bench:run(fun run/0).

run() ->
    {_, Node} = Peer = bench:start_peer([]),
    bench:say("Two Erlang nodes run on this machine, with Trunkline on both. Three things~n"
              "are measured between them, in turn by distributed Erlang (!, gen_server:call)~n"
              "and by Trunkline:~n~n"
              "  * eight processes send small messages, as many as they can;~n"
              "  * fifty processes call one server;~n"
              "  * one process calls a server while messages of 10 MB go the same way.~n", []),
    page(),
    {ok, #{one_way := OneWay, calls := Calls, ping := Ping}} =
        trunkline:compare(Node, #{force => true}),
    bench:say("~nHere Trunkline carries ~ts messages and ~ts calls.~n~ts~n"
              "Between your own nodes: trunkline:compare(Node).~n",
              [times(OneWay), times(Calls), slowest(Ping)]),
    bench:stop_peer(Peer).

%% Any port will do. Without inets the demo goes on.
page() ->
    case trunkline_web:start(#{port => 0}) of
        {ok, Url} -> bench:say("~nFor the next ten seconds, ~ts shows what they do.~n~n", [Url]);
        {error, _} -> ok
    end.

times(#{clear := false}) -> "about as many";
times(#{ratio := Ratio}) -> io_lib:format("~.1f times the", [Ratio]).

slowest(#{clear := false}) ->
    "Calls beside large messages differ too much in this run to tell: see docs/lab/benchmarks.md.";
slowest(#{ratio := Ratio}) ->
    io_lib:format("Beside large messages, the slowest calls take ~b % of the time.",
                  [round(Ratio * 100)]).
