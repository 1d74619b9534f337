%% Large messages to another node, and what they do to whatever else goes there.
%%
%% Six senders stream messages of 10 MB to six receivers, as fast as they can.
%% Meanwhile three probes on the node of the senders each ask the other node
%% something, wait for the answer, rest for a millisecond, and ask again:
%%
%%     a ping by !           to a process that answers by !
%%     a ping by Trunkline   to a process that answers by Trunkline
%%     net_adm:ping/1        which net_kernel answers
%%
%% The variants differ only in how the large messages go; all three probes run in
%% each of them, and in one with no large messages at all. `plain' is Trunkline without
%% connections for them (bulk_transport dist). Since a probe waits for
%% its answer, it asks seldom where answers are slow: with fewer than a hundred
%% of them the p99 is the longest.
%%
%% With OF=maps the large messages are lists of maps, and fewer.
-module(bench_isolation).

-export([main/0]).
-export([receiver/3, echo/1]).

-define(SENDERS, 6).
-define(LARGE, 10_000_000).       % bytes
-define(IDLE, 3000).              % ms, about as long as the large messages take

-spec main() -> no_return().
main() ->
    bench:run(fun run/0).

run() ->
    {_, Node} = Peer = bench:start_peer([]),
    {_, Each} = Large = large(os:getenv("OF")),
    bench:say("~nIsolation: ~b senders each stream ~b messages of ~b MB to another node; "
              "three probes ask~n"
              "that node something each millisecond. ~b rounds, each variant once a round.",
              [?SENDERS, Each, ?LARGE div 1_000_000, bench:rounds()]),
    Measured = bench:in_turn([{V, fun() -> isolation(V, Node, Large) end}
                              || V <- [idle, stock, tuned, trunkline, plain]]),
    bench:stop_peer(Peer),
    Rate = {"large messages", figure(rate, proplists:delete(idle, Measured))},
    Results = [{Unit, {Name ++ ", " ++ Figure, figure({Probe, Key}, Measured)}}
               || {Key, Figure, Unit} <- figures(), {Probe, Name} <- probes()],
    bench:table("MB/s", [stock, tuned], Rate),
    bench:say("~nthe probes, beside large messages on", []),
    bench:overview(Results),
    bench:finish("isolation", [{"MB/s", [Rate]} | [{Unit, [Result]} || {Unit, Result} <- Results]],
                 targets(Rate, figure({stock, p99}, Measured))).

%% A message, and how many of these each sender sends.
large("maps") -> {bench_throughput:message({maps, ?LARGE}), 10};
large(_) -> {bench_throughput:message({bytes, ?LARGE}), 50}.

probes() ->
    [{stock, "a ping by !"},
     {trunkline, "a ping by Trunkline"},
     {net_adm, "net_adm:ping"}].

figures() ->
    [{p50, "p50", "us"},
     {p99, "p99", "us"},
     {max, "longest", "us"},
     {answered, "answered", "times"}].

figure(Key, Measured) -> [{V, [maps:get(Key, M) || M <- Ms]} || {V, Ms} <- Measured].

targets({_, Rates}, P99s) ->
    [bench:target("MB/s: Trunkline / stock", at_least, 1.5, bench:ratio(trunkline, stock, Rates)),
     bench:target("p99 of a ping by ! beside it: Trunkline / stock", at_most, 0.125,
                  bench:ratio(trunkline, stock, P99s))].

%% --- one measurement ----------------------------------------------------------------

isolation(Variant, Node, Large) ->
    bench:bulk_on(case Variant of plain -> dist; _ -> auto end, Node),
    bench:tune(Node, Variant),
    bench:collect_garbage([node(), Node]),
    Self = self(),
    Probes = [{Kind, spawn_link(fun() -> probe(Self, Kind, Node) end)} || {Kind, _} <- probes()],
    _ = [receive {ready, P} -> ok end || {_, P} <- Probes],
    Rate = load(Variant, Node, Large, [P || {_, P} <- Probes]),
    _ = [P ! stop || {_, P} <- Probes],
    maps:from_list([{rate, Rate} | lists:append([times(Kind, receive {times, P, Times} -> Times end)
                                                 || {Kind, P} <- Probes])]).

times(Kind, Times) ->
    [{{Kind, p50}, bench:percentile(50, Times)},
     {{Kind, p99}, bench:percentile(99, Times)},
     {{Kind, max}, lists:max(Times)},
     {{Kind, answered}, length(Times)}].

%% MB a second, from the first send until every receiver has its last message.
load(idle, _, _, Probes) ->
    _ = [P ! go || P <- Probes],
    timer:sleep(?IDLE),
    none;
load(Variant, Node, {Large, Each}, Probes) ->
    Receivers = [erlang:spawn_opt(Node, ?MODULE, receiver, [self(), Each, size_of(Large)],
                                  [link, monitor])
                 || _ <- lists:seq(1, ?SENDERS)],
    Senders = [spawn_opt(fun() -> receive go -> stream(Variant, To, 1, Each, Large) end end,
                         [link, monitor])
               || {To, _} <- Receivers],
    T0 = now_us(),
    _ = [P ! go || P <- [S || {S, _} <- Senders] ++ Probes],
    _ = [receive {arrived, R} -> ok end || {R, _} <- Receivers],
    T1 = now_us(),
    _ = [receive {'DOWN', Ref, process, P, _} -> ok end || {P, Ref} <- Senders ++ Receivers],
    ?SENDERS * Each * ?LARGE / (T1 - T0).

stream(_, _, N, Each, _) when N > Each ->
    ok;
stream(Variant, To, N, Each, Large) ->
    _ = send(Variant, To, {large, self(), N, Large}),
    stream(Variant, To, N + 1, Each, Large).

size_of(Binary) when is_binary(Binary) -> byte_size(Binary);
size_of(List) -> length(List).

send(Variant, To, Message) when Variant =:= stock; Variant =:= tuned -> To ! Message;
send(_, To, Message) -> trunkline:send(To, Message).

%% Each message in its order, and whole.
-spec receiver(pid(), pos_integer(), pos_integer()) -> ok.
receiver(Parent, Each, Size) ->
    lists:foreach(
      fun(N) -> receive {large, _, Number, Large} -> {N, Size} = {Number, size_of(Large)} end end,
      lists:seq(1, Each)),
    Parent ! {arrived, self()},
    ok.

%% --- the probes ---------------------------------------------------------------------

probe(Parent, Kind, Node) ->
    Echo = erlang:spawn_link(Node, ?MODULE, echo, [Kind]),
    Parent ! {ready, self()},
    receive go -> ok end,
    Times = ask_and_ask(Kind, Echo, []),
    Echo ! stop,
    Parent ! {times, self(), Times}.

ask_and_ask(Kind, Echo, Times) ->
    T0 = now_us(),
    pong = ask(Kind, Echo),
    Times1 = [now_us() - T0 | Times],
    receive
        stop -> Times1
    after 1 ->
            ask_and_ask(Kind, Echo, Times1)
    end.

ask(net_adm, Echo) ->
    net_adm:ping(node(Echo));
ask(Kind, Echo) ->
    _ = send(Kind, Echo, {ping, self()}),
    receive {Echo, Answer} -> Answer end.

-spec echo(stock | trunkline | net_adm) -> ok.
echo(Kind) ->
    receive
        {ping, From} -> _ = send(Kind, From, {self(), pong}), echo(Kind);
        stop -> ok
    end.

now_us() -> erlang:monotonic_time(microsecond).
