%% Experiment 3, the ring of the teleport article: six nodes on this machine, and
%% six senders on each. Every sender sends a binary of 10 MB around the ring:
%%
%%     sender ──> next node ──> ... ──> the node before the sender's
%%       ^                                        │
%%       └──────────── seen, by whom ─────────────┘
%%
%% With the sender's own every node has seen the binary after five hops. The
%% acknowledgement, which is small, goes the sixth.
%%
%% On each node one process forwards for the first sender of every node, another
%% for the second, and so on: as many as there are senders, so that neither a
%% single process is what limits the ring, nor is there one for each message.
-module(bench_ring).

-export([main/0]).
-export([forwarder/2, sender/5]).

-define(NODES, 6).
-define(SENDERS, 6).              % on each node
-define(LARGE, 10_000_000).       % bytes
-define(HOPS, (?NODES - 1)).

-spec main() -> no_return().
main() ->
    bench:run(fun run/0).

run() ->
    Peers = [bench:start_peer(["-connect_all", "false"]) || _ <- lists:seq(2, ?NODES)],
    Nodes = [node() | [Node || {_, Node} <- Peers]],
    Ring = lists:zip(Nodes, tl(Nodes) ++ [hd(Nodes)]),
    bench:say("~nThe ring: ~b nodes, ~b senders on each, "
              "and every one sends ~b MB around, ~b hops.~n"
              "~b rounds, each variant once a round.",
              [?NODES, ?SENDERS, ?LARGE div 1_000_000, ?HOPS, bench:rounds()]),
    lists:foreach(fun connect/1, Ring),
    Forwarders = [erlang:spawn_link(Node, ?MODULE, forwarder, [Slot, Next])
                  || {Node, Next} <- Ring, Slot <- lists:seq(1, ?SENDERS)],
    Measured = bench:in_turn([{V, fun() -> ring(V, Ring) end} || V <- [stock, tuned, trunkline]]),
    lists:foreach(fun(F) -> unlink(F), exit(F, kill) end, Forwarders),
    lists:foreach(fun bench:stop_peer/1, Peers),
    Results = [{Unit, {Case, [{V, [maps:get(Key, M) || M <- Ms]} || {V, Ms} <- Measured]}}
               || {Key, Case, Unit} <- figures()],
    [{_, {_, Rates} = Rate} | Times] = Results,
    bench:table("MB/s", [stock, tuned], Rate),
    bench:say("", []),
    bench:overview(Times),
    bench:finish("ring", [{Unit, [Result]} || {Unit, Result} <- Results],
                 [bench:target("ring, MB/s: Trunkline / stock", at_least, 1.3,
                               bench:ratio(trunkline, stock, Rates))]).

%% (The p99 of 36 senders is the longest.)
figures() ->
    [{rate, "moved, all hops", "MB/s"},
     {total, "from the first send to the last acknowledgement", "s"},
     {p50, "one sender, p50", "ms"},
     {p90, "one sender, p90", "ms"},
     {max, "one sender, longest", "ms"}].

connect({Node, Next}) ->
    true = erpc:call(Node, net_kernel, connect_node, [Next]),
    ok = bench:await_up(Node, Next).

%% --- one measurement ----------------------------------------------------------------

ring(Variant, Ring) ->
    lists:foreach(fun({Node, Next}) ->
                          ok = erpc:call(Node, bench, tune, [Next, Variant])
                  end, Ring),
    bench:collect_garbage([Node || {Node, _} <- Ring]),
    %% The connections are in use before it begins: something small goes around.
    _ = go_around(Variant, 1, [hd(Ring)], 1),
    {Total, Times} = go_around(Variant, ?SENDERS, Ring, ?LARGE),
    #{rate => ?NODES * ?SENDERS * ?HOPS * ?LARGE / Total,
      total => Total / 1.0e6,
      p50 => bench:percentile(50, Times) / 1000,
      p90 => bench:percentile(90, Times) / 1000,
      max => lists:max(Times) / 1000}.

%% How long it takes in all, and for each sender, in us. The senders of this node
%% are the last to be told, so that what they send does not hold up the word to
%% the others.
go_around(Variant, Slots, Ring, Size) ->
    Senders = [erlang:spawn_opt(Node, ?MODULE, sender, [self(), Variant, Slot, Next, Size],
                                [link, monitor])
               || {Node, Next} <- tl(Ring) ++ [hd(Ring)], Slot <- lists:seq(1, Slots)],
    _ = [receive {ready, S} -> ok end || {S, _} <- Senders],
    T0 = now_us(),
    _ = [S ! go || {S, _} <- Senders],
    Times = [receive {seen_by_all, S, Time} -> Time end || {S, _} <- Senders],
    T1 = now_us(),
    _ = [receive {'DOWN', Ref, process, S, _} -> ok end || {S, Ref} <- Senders],
    {T1 - T0, Times}.

-spec sender(pid(), bench:variant(), pos_integer(), node(), pos_integer()) -> ok.
sender(Parent, Variant, Slot, Next, Size) ->
    Large = binary:copy(<<Slot>>, Size),
    Parent ! {ready, self()},
    receive go -> ok end,
    T0 = now_us(),
    _ = send(Variant, {name(Slot), Next}, {ring, Variant, self(), [node()], Large}),
    receive
        {seen, Nodes, Last} -> {?NODES, Size} = {length(lists:usort(Nodes)), Last}
    end,
    Parent ! {seen_by_all, self(), now_us() - T0},
    ok.

-spec forwarder(pos_integer(), node()) -> no_return().
forwarder(Slot, Next) ->
    true = register(name(Slot), self()),
    forward(name(Slot), Next).

forward(Name, Next) ->
    receive
        {ring, Variant, Sender, Nodes, Large} when node(Sender) =:= Next ->
            _ = send(Variant, Sender, {seen, [node() | Nodes], byte_size(Large)});
        {ring, Variant, Sender, Nodes, Large} ->
            _ = send(Variant, {Name, Next}, {ring, Variant, Sender, [node() | Nodes], Large})
    end,
    forward(Name, Next).

name(Slot) -> list_to_atom(lists:concat([?MODULE, "_", Slot])).

send(trunkline, To, Message) -> trunkline:send(To, Message);
send(_, To, Message) -> To ! Message.

now_us() -> erlang:monotonic_time(microsecond).
