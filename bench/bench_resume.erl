%% What it costs that a session may outlive its connection: messages a second one way, and the
%% processor time of both nodes for each, with resume_time at 0 and above.
%%
%% A lane keeps a copy of each batch until the batch has arrived.
-module(bench_resume).

-export([main/0, resume_time/0]).

main() ->
    bench:run(fun run/0).

%% ms
-spec resume_time() -> pos_integer().
resume_time() -> 60_000.

run() ->
    %% The smaller time of the two nodes counts.
    Time = integer_to_list(resume_time()),
    {_, Node} = Peer = bench:start_peer(["-trunkline", "resume_time", Time]),
    bench:say("One way; ~b rounds, two cores shared by both nodes", [bench:rounds()]),
    Cases = [measure(Pairs, Kind, Node) || Kind <- [ping, b100, b1000], Pairs <- [1, 8, 100]],
    bench:stop_peer(Peer),
    Results = [{_, Rates} | _] = bench:results(units(), Cases),
    bench:finish("resume", Results,
                 [bench:target(Case ++ ": with resume_time / without", at_least, 0.9,
                               bench:ratio(resuming, trunkline, Variants))
                  || {Case, Variants} <- Rates, lists:prefix("8 to 8", Case)]).

units() -> ["messages/s", "us of both nodes' processors"].

measure(Pairs, Kind, Node) ->
    bench:a_case(lists:concat([Pairs, " to ", Pairs, ", ", Kind]), units(), [trunkline],
                 [{V, bench:sized(fun(N) -> figures(V, Pairs, Kind, Node, N) end)}
                  || V <- [trunkline, resuming]]).

figures(Variant, Pairs, Kind, Node, N) ->
    Each = max(1, N div Pairs),
    %% Its lanes are set up before.
    _ = bench_throughput:rate(Variant, Pairs, Kind, Node, 1),
    Before = bench:processors(Node),
    Rate = bench_throughput:rate(Variant, Pairs, Kind, Node, Each),
    [Rate, (bench:processors(Node) - Before) / (Pairs * Each)].
