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
    bench:say("remote procedure calls; ~b rounds, two cores shared by both nodes", [bench:rounds()]),
    Cases = [measure(Callers, Node) || Callers <- callers()],
    bench:stop_peer(Peer),
    bench:finish("erpc",
                 [{Unit, [{Case, maps:get(Unit, Figures)} || {Case, Figures} <- Cases]} || Unit <- units()],
                 targets(maps:from_list(Cases))).

units() -> ["calls/s", "us p50", "us p99"].

callers() ->
    case os:getenv("CALLERS") of
        false -> [1, 10, 100, 1000];
        Callers -> [list_to_integer(C) || C <- string:lexemes(Callers, " ")]
    end.

measure(Callers, Node) ->
    Variant =
        fun(V) ->
                {V, bench:sized(fun(Calls) ->
                                        bench:tune(Node, V =:= tuned),
                                        calls(V, Node, Callers, max(20, Calls div Callers))
                                end)}
        end,
    Measured = bench:in_turn([Variant(V) || V <- [same, stock, tuned, rpc, trunkline]]),
    Figures = maps:from_list([{Unit, [{V, [lists:nth(I, M) || M <- Ms]} || {V, Ms} <- Measured]}
                              || {I, Unit} <- lists:zip([1, 2, 3], units())]),
    Case = case Callers of
               1 -> "1 caller";
               _ -> case Callers of
               1 -> "1 caller";
               _ -> lists:concat([Callers, " callers"])
           end
           end,
    lists:foreach(fun(Unit) -> bench:table(Unit, [stock, tuned], {Case, maps:get(Unit, Figures)}) end, units()),
    {Case, Figures}.

%% [calls a second, p50 in us, p99 in us]
calls(Variant, Node, Callers, Each) ->
    Self = self(),
    Pids = [spawn_link(fun() ->
                               receive go -> ok end,
                               Self ! {self(), caller(Variant, Node, Each, [])}
                       end) || _ <- lists:seq(1, Callers)],
    T0 = erlang:monotonic_time(),
    _ = [P ! go || P <- Pids],
    Latencies = lists:append([receive {P, Ls} -> Ls end || P <- Pids]),
    T1 = erlang:monotonic_time(),
    [Callers * Each / us(T1 - T0) * 1.0e6,
     bench:percentile(50, Latencies), bench:percentile(99, Latencies)].

caller(_, _, 0, Latencies) ->
    Latencies;
caller(Variant, Node, N, Latencies) ->
    T0 = erlang:monotonic_time(),
    N = call(Variant, Node, [N]),
    caller(Variant, Node, N - 1, [us(erlang:monotonic_time() - T0) | Latencies]).

%% With a limit in time erpc executes a function for this node in a process of its own, as
%% it does elsewhere.
call(same, _, Args) -> erpc:call(node(), ?MODULE, echo, Args, 60000);
call(rpc, Node, Args) -> rpc:call(Node, ?MODULE, echo, Args, 60000);
call(trunkline, Node, Args) -> trunkline_erpc:call(Node, ?MODULE, echo, Args, 60000);
call(_, Node, Args) -> erpc:call(Node, ?MODULE, echo, Args, 60000).

-spec echo(Term) -> Term.
echo(Term) -> Term.

us(Native) -> erlang:convert_time_unit(Native, native, nanosecond) / 1000.

targets(Cases) ->
    Of = fun(Callers, Unit, Base) ->
                 case Cases of
                     #{Callers := #{Unit := Variants}} -> bench:ratio(trunkline, Base, Variants);
                     _ -> none
                 end
         end,
    [bench:target(Name, Kind, Bound, Measured)
     || {Name, Kind, Bound, Measured} <-
            [{"100 callers, calls/s: Trunkline / stock", at_least, 3, Of("100 callers", "calls/s", stock)}],
        Measured =/= none].
