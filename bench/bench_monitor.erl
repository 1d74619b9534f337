%% 100,000 monitors of processes at another node: how long it takes to set them, and to hear
%% of the end of all these processes; erlang's monitors, and those by lane.
-module(bench_monitor).

-export([main/0]).
-export([round/5, start_servers/2]).

-define(MONITORS, 100_000).

-spec main() -> no_return().
main() ->
    bench:run(fun run/0).

run() ->
    {_, Node} = Peer = bench:start_peer([]),
    bench:say("~b monitors of processes on another node; ~b rounds, two cores shared by both nodes",
              [?MONITORS, bench:rounds()]),
    Cases = [measure(Name, Callers, Servers, Node)
             || {Name, Callers, Servers} <- [{"1 process monitors 100,000", 1, ?MONITORS},
                                             {"100 processes monitor 1,000 each", 100, ?MONITORS},
                                             {"1,000 processes monitor the same 100", 1000, 100}]],
    bench:stop_peer(Peer),
    bench:finish("monitor", bench:results(units(), Cases),
                 lists:append([targets(Case, Figures) || {Case, Figures} <- Cases])).

units() -> ["ms, set and fired", "ms, set", "ms, fired"].

measure(Name, Callers, Servers, Node) ->
    Variants = [{V, fun() ->
                            bench:tune(Node, V),
                            At = case V of same -> node(); _ -> Node end,
                            round(V, Callers, Servers, ?MONITORS, At)
                    end} || V <- [same, stock, tuned, trunkline]],
    bench:a_case(Name, units(), [stock, tuned], Variants).

targets(Case, #{"ms, set and fired" := Variants}) ->
    [bench:target(lists:concat([Case, ": Trunkline / ", Base]), at_most, 1,
                  bench:ratio(trunkline, Base, Variants))
     || Base <- [stock, tuned]].

%% [ms until all has been heard, of it until they are set, and after that]. Set are they when
%% every caller has an answer to a message that follows them.
-spec round(bench:variant(), Callers :: pos_integer(), Servers :: pos_integer(),
            Monitors :: pos_integer(), node()) -> [number()].
round(Variant, Callers, N, Monitors, Node) ->
    {Parent, Pids} = erpc:call(Node, ?MODULE, start_servers, [self(), N]),
    Each = Monitors div Callers,
    bench:collect_garbage([node(), Node]),
    Self = self(),
    Refs = [spawn_monitor(fun() ->
                                  Mine = case N of
                                             Monitors ->
                                                 lists:sublist(Pids, (I - 1) * Each + 1, Each);
                                             _ -> Pids
                                         end,
                                  caller(Variant, Self, Parent, Mine)
                          end) || I <- lists:seq(1, Callers)],
    lists:foreach(fun({P, _}) -> receive {P, ready} -> ok end end, Refs),
    T0 = erlang:monotonic_time(),
    lists:foreach(fun({P, _}) -> P ! go end, Refs),
    lists:foreach(fun({P, _}) -> receive {P, set} -> ok end end, Refs),
    T1 = erlang:monotonic_time(),
    Parent ! stop,
    lists:foreach(fun({P, R}) -> receive {'DOWN', R, process, P, normal} -> ok end end, Refs),
    T2 = erlang:monotonic_time(),
    [ms(T2 - T0), ms(T1 - T0), ms(T2 - T1)].

ms(Native) -> erlang:convert_time_unit(Native, native, microsecond) / 1000.

caller(Variant, Bench, Parent, Pids) ->
    Bench ! {self(), ready},
    receive go -> ok end,
    Refs = case Variant of
               trunkline ->
                   Set = [trunkline:monitor(P) || P <- Pids],
                   trunkline:send(Parent, {ask, self()}),
                   Set;
               _ ->
                   Set = [erlang:monitor(process, P) || P <- Pids],
                   Parent ! {ask, self()},
                   Set
           end,
    receive {Parent, yes} -> ok end,
    Bench ! {self(), set},
    hear(length(Refs)).

hear(0) -> ok;
hear(N) -> receive {'DOWN', _, process, _, stopped} -> hear(N - 1) end.

%% --- at the other node -------------------------------------------------------------

%% They end when their parent does.
-spec start_servers(pid(), pos_integer()) -> {pid(), [pid()]}.
start_servers(Bench, N) ->
    Self = self(),
    Parent = spawn(fun() ->
                           Pids = [spawn_link(fun() -> receive after infinity -> ok end end)
                                   || _ <- lists:seq(1, N)],
                           Self ! {self(), Pids},
                           _ = monitor(process, Bench),
                           parent()
                   end),
    receive {Parent, Pids} -> {Parent, Pids} end.

parent() ->
    receive
        {ask, From} -> From ! {self(), yes}, parent();
        _ -> exit(stopped)
    end.
