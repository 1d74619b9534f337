%% Experiment 1, the flood of the qr article: 200,000 processes are spawned, each
%% sends one ping to a `pong' process, which answers a collector. The time is from
%% the first spawn until the collector has all pongs.
-module(bench_flood).

-export([main/0]).
-export([pong/1]).

-define(N, 200000).

-spec main() -> no_return().
main() ->
    bench:run(fun run/0).

run() ->
    {_, Node} = Peer = bench:start_peer([]),
    ok = bench_qr:start(),
    ok = erpc:call(Node, bench_qr, start, []),
    Pongs = maps:from_list([{V, pong_of(V, Node)} || V <- variants()]),
    bench:say("~nThe flood: ~b processes here each send one ping to a process on another node, "
              "which~nanswers a collector here. "
              "Two nodes on this machine, ~b rounds, each variant once a round.",
              [?N, bench:rounds()]),
    Case = "pings answered",
    Result =
        {Case,
         bench:in_turn([{V, fun() -> flood(V, Node, maps:get(V, Pongs)) end} || V <- variants()])},
    bench:stop_peer(Peer),
    bench:table("/minute", [same, stock, tuned], Result),
    explain(),
    bench:finish("flood", [{"pongs/minute", [Result]}], targets(Result)).

variants() -> [same, stock, tuned, qr, trunkline].

pong_of(Variant, Node) ->
    At = case Variant of same -> node(); _ -> Node end,
    Pid = erlang:spawn(At, ?MODULE, pong, [Variant]),
    true = erpc:call(At, erlang, register, [name(Variant), Pid]),
    {name(Variant), At}.

name(Variant) -> list_to_atom("pong_" ++ atom_to_list(Variant)).

-spec pong(bench:variant()) -> no_return().
pong(Variant) ->
    receive
        {ping, Collector} -> send(Variant, Collector, pong)
    end,
    pong(Variant).

%% Pongs a minute.
flood(Variant, Node, Pong) ->
    bench:tune(Node, Variant),
    erlang:garbage_collect(),
    Self = self(),
    T0 = erlang:monotonic_time(),
    Collector = spawn_link(fun() -> collect(?N), Self ! {self(), erlang:monotonic_time()} end),
    spawn_pings(?N, Variant, Pong, Collector),
    T1 = receive {Collector, Time} -> Time end,
    ?N / (erlang:convert_time_unit(T1 - T0, native, microsecond) / 60.0e6).

spawn_pings(0, _, _, _) ->
    ok;
spawn_pings(N, Variant, Pong, Collector) ->
    _ = spawn(fun() -> send(Variant, Pong, {ping, Collector}) end),
    spawn_pings(N - 1, Variant, Pong, Collector).

collect(0) -> ok;
collect(N) -> receive pong -> collect(N - 1) end.

send(trunkline, To, Message) -> trunkline:send(To, Message);
send(qr, To, Message) -> bench_qr:send(To, Message);
send(_, To, Message) -> To ! Message.

explain() ->
    bench:say(
      "~nWhat this shows~n"
      "  Between two nodes, `!' makes a system call for every message, there and back: the second~n"
      "  line against the first. With delay_send on the distribution's sockets the runtime system~n"
      "  gathers some of them. qr gathers 100 at a time in one process. Trunkline sends what has~n"
      "  queued up while its lanes were busy, without waiting for more.~n"
      "~nThe same experiment in 2009 (messages/minute, Roberto Ostinelli and his readers)~n"
      "  machine                                            same node   two nodes, !"
      "   two nodes, qr~n"
      "  MacBook 2.0 GHz Core 2 Duo, OS X, R12B-5              5.3 M        0.70 M         2.1 M~n"
      "  the same, R13B01                                      3.6 M        0.7  M         2.3 M~n"
      "  Ubuntu 8.10, 2.5 GHz Core 2 Duo                      11.7 M        4.8  M         3.6 M~n"
      "  Ubuntu 9.04, virtual machine, 1 processor             4.6 M        1.6  M         0.96 M~n"
      "  Windows XP, 3.0 GHz E8400                            24.7 M        2.2  M         5.1 M~n"
      "  2 x HP DL380, Ubuntu 8.04, one machine                5.3 M        1.7  M         3.1 M~n"
      "  Athlon64 X2, R13B, 1 M pings                          5.46 M       3.14 M         2.68 M",
      []).

targets({_, Variants}) ->
    [bench:target("flood: Trunkline / " ++ Name, at_least, Bound,
                  bench:ratio(trunkline, Base, Variants))
     || {Base, Name, Bound} <- [{same, "same node", 0.8}, {stock, "stock", 3},
                                {tuned, "tuned", 1.7}]].
