%% How many remote procedure calls a second, and how long each takes: 1, 10, 100 and
%% 1,000 callers, of a function that answers what it is given.
-module(bench_erpc).

-export([main/0]).
-export([echo/1]).

-spec main() -> no_return().
main() ->
    bench:run(fun run/0).

run() ->
    {_, Node} = Peer = bench:start_peer([]),
    bench:say("remote procedure calls; ~b rounds, two cores shared by both nodes",
              [bench:rounds()]),
    Cases = [measure(Callers, Node) || Callers <- bench:callers()],
    bench:stop_peer(Peer),
    bench:finish("erpc", bench:results(units(), Cases),
                 bench:targets(Cases, [{"100 callers, calls/s: Trunkline / stock", at_least, 3,
                                        {"100 callers", "calls/s", stock}}])).

units() -> ["calls/s", "us p50", "us p99"].

measure(Callers, Node) ->
    Case = case Callers of
               1 -> "1 caller";
               _ -> lists:concat([Callers, " callers"])
           end,
    bench:a_case(Case, units(), [stock, tuned],
                 [bench:callers(V, Node, Callers, fun(_, N) -> call(V, Node, [N]) end)
                  || V <- [same, stock, tuned, rpc, trunkline]]).

%% With a limit in time erpc executes a function for this node in a process of its own, as
%% it does elsewhere.
call(same, _, Args) -> erpc:call(node(), ?MODULE, echo, Args, 60000);
call(rpc, Node, Args) -> rpc:call(Node, ?MODULE, echo, Args, 60000);
call(trunkline, Node, Args) -> trunkline_erpc:call(Node, ?MODULE, echo, Args, 60000);
call(_, Node, Args) -> erpc:call(Node, ?MODULE, echo, Args, 60000).

-spec echo(Term) -> Term.
echo(Term) -> Term.
