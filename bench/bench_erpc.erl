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
    bench:finish("erpc",
                 [{Unit, [{Case, maps:get(Unit, Figures)} || {Case, Figures} <- Cases]}
                  || Unit <- units()],
                 targets(maps:from_list(Cases))).

units() -> ["calls/s", "us p50", "us p99"].

measure(Callers, Node) ->
    Variant =
        fun(V) ->
                {V, bench:sized(fun(Calls) ->
                                        bench:tune(Node, V =:= tuned),
                                        bench:calls(Callers, max(20, Calls div Callers),
                                                    fun(_, N) -> call(V, Node, [N]) end)
                                end)}
        end,
    Measured = bench:in_turn([Variant(V) || V <- [same, stock, tuned, rpc, trunkline]]),
    Figures = bench:by_unit(units(), Measured),
    Case = case Callers of
               1 -> "1 caller";
               _ -> lists:concat([Callers, " callers"])
           end,
    lists:foreach(fun(Unit) ->
                          bench:table(Unit, [stock, tuned], {Case, maps:get(Unit, Figures)})
                  end, units()),
    {Case, Figures}.

%% With a limit in time erpc executes a function for this node in a process of its own, as
%% it does elsewhere.
call(same, _, Args) -> erpc:call(node(), ?MODULE, echo, Args, 60000);
call(rpc, Node, Args) -> rpc:call(Node, ?MODULE, echo, Args, 60000);
call(trunkline, Node, Args) -> trunkline_erpc:call(Node, ?MODULE, echo, Args, 60000);
call(_, Node, Args) -> erpc:call(Node, ?MODULE, echo, Args, 60000).

-spec echo(Term) -> Term.
echo(Term) -> Term.

targets(Cases) ->
    Of = fun(Callers, Unit, Base) ->
                 case Cases of
                     #{Callers := #{Unit := Variants}} -> bench:ratio(trunkline, Base, Variants);
                     _ -> none
                 end
         end,
    [bench:target(Name, Kind, Bound, Measured)
     || {Name, Kind, Bound, Measured} <-
            [{"100 callers, calls/s: Trunkline / stock", at_least, 3,
              Of("100 callers", "calls/s", stock)}],
        Measured =/= none].
