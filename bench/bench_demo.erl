%% `make demo': what a user gains, in words and figures, in under a minute: two real nodes on
%% this machine, and what trunkline:compare/2 measures between them.
-module(bench_demo).

-export([main/0]).

-spec main() -> no_return().
main() -> bench:run(fun run/0).

run() ->
    {_, Node} = Peer = bench:start_peer([]),
    bench:say("Two Erlang nodes run on this machine, with Trunkline on both. Three things are measured between~n"
              "them, in turn by distributed Erlang (`!', gen_server:call) and by Trunkline:~n~n"
              "  * eight processes send small messages, as many as they can;~n"
              "  * fifty processes call one server;~n"
              "  * one process calls a server while messages of 10 MB go the same way.~n", []),
    {ok, #{one_way := OneWay, calls := Calls, ping := Ping} = Report} = trunkline:compare(Node, #{force => true}),
    bench:say("~nHere Trunkline carries ~.1f times the messages and ~.1f times the calls, and beside large messages~n"
              "a slow call takes ~.2f of the time. Between your own nodes: trunkline:compare(Node).~n",
              [maps:get(ratio, M) || M <- [OneWay, Calls, Ping]]),
    bench:stop_peer(Peer),
    bench:say("~ts", [bench:encode(Report#{bench => <<"demo">>})]).
