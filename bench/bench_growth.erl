%% What each peer costs: a hub with 2, 10, 30 and 60 other nodes (PEERS="2 10"), without Trunkline
%% and with it.
%%
%% Of the hub, with all of them connected and nothing to do: processes, memory, and how often a
%% second its threads wake up. How long it takes until it has all of them, when it connects to all
%% at once. And what it sends to one of them, while another comes and goes all the time.
%%
%% The hub is a node like the others, which have one scheduler each. None of them connects to others
%% by itself.
-module(bench_growth).

-export([main/0]).
-export([connect/2, at_rest/1, flap/2, throughput/3]).

%% ms
-define(SETTLE, 3_000).
-define(REST, 5_000).
-define(UP, 60_000).
%% Nodes that are started at the same time.
-define(AT_ONCE, 4).

main() ->
    bench:run(fun run/0).

run() ->
    Counts = counts(),
    {HubPeer, _} = Hub = node_of(["+S", "2"]),
    Peers = start(lists:max(Counts)),
    ok = peer:call(HubPeer, bench, log_briefly, [], ?UP),
    Nodes = [Node || {_, Node} <- Peers],
    bench:say("A hub with other nodes; ~b rounds", [bench:rounds()]),
    Costs = [costs(N, Hub, lists:sublist(Nodes, N)) || N <- Counts],
    Flapping = flapping(Hub, Nodes),
    lists:foreach(fun({Peer, _}) -> peer:stop(Peer) end, [Hub | Peers]),
    Of = fun(Unit) -> [Result || {U, Result} <- lists:append(Costs), U =:= Unit] end,
    bench:finish("growth",
                 [{"messages/s", [Flapping]} | [{Unit, Of(Unit)} || Unit <- units()]],
                 targets(Counts, Of)).

units() -> ["ms until all are up", "processes", "kB", "wake-ups/s"].

counts() ->
    case os:getenv("PEERS") of
        false -> [2, 10, 30, 60];
        Peers -> [list_to_integer(P) || P <- string:lexemes(Peers, " ")]
    end.

%% For each peer of the largest number.
targets(Counts, Of) ->
    N = lists:max(Counts),
    [begin
         {_, Variants} = lists:last(Of(Unit)),
         [Stock, Ours] =
             [bench:median(proplists:get_value(V, Variants)) || V <- [stock, trunkline]],
         bench:target(Unit ++ " for each peer, beyond those of distributed Erlang", at_most, Most,
                      (Ours - Stock) / N)
     end || {Unit, Most} <- [{"kB", 150}, {"wake-ups/s", 0.1}]].

%% --- nodes --------------------------------------------------------------------

start(0) ->
    [];
start(N) ->
    Self = self(),
    Some = min(N, ?AT_ONCE),
    %% (A peer ends with the process that has started it by a link.)
    Pids = [spawn_link(fun() ->
                               Self ! {self(), node_of(["+S", "1"])},
                               receive stop -> ok end
                       end) || _ <- lists:seq(1, Some)],
    [receive {Pid, Node} -> Node end || Pid <- Pids] ++ start(N - Some).

node_of(Args) ->
    {ok, Peer, Node} =
        peer:start_link(#{name => peer:random_name(trunkline_bench),
                          connection => standard_io,
                          args => ["-setcookie", atom_to_list(erlang:get_cookie()),
                                   "-connect_all", "false", "-pa"] ++ code:get_path() ++ Args}),
    ok = peer:call(Peer, bench, log_briefly, [], ?UP),
    {ok, _} = peer:call(Peer, application, ensure_all_started, [trunkline], ?UP),
    {Peer, Node}.

%% --- what they cost -------------------------------------------------------------

costs(N, {Hub, _}, Nodes) ->
    Measured = bench:in_turn([{V, fun() -> measure(V, Hub, Nodes) end} || V <- [stock, trunkline]]),
    Case = lists:concat([N, " peers"]),
    [begin
         Result = {Case, Values},
         bench:table(Unit, [stock], Result),
         {Unit, Result}
     end || Unit <- units(), {U, Values} <- maps:to_list(bench:by_unit(units(), Measured)),
            U =:= Unit].

measure(Variant, Hub, Nodes) ->
    ok = set(Variant, Hub),
    Took = peer:call(Hub, ?MODULE, connect, [Variant, Nodes], infinity),
    Rest = peer:call(Hub, ?MODULE, at_rest, [?REST], infinity),
    lists:foreach(fun(Node) -> peer:call(Hub, erlang, disconnect_node, [Node], ?UP) end, Nodes),
    [Took | Rest].

%% Whether the hub has Trunkline.
set(stock, Hub) ->
    _ = peer:call(Hub, application, stop, [trunkline], ?UP),
    ok;
set(trunkline, Hub) ->
    {ok, _} = peer:call(Hub, application, ensure_all_started, [trunkline], ?UP),
    ok.

%% At the hub. How many ms it takes.
-spec connect(stock | trunkline, [node()]) -> number().
connect(Variant, Nodes) ->
    T0 = erlang:monotonic_time(microsecond),
    Refs = [element(2, spawn_monitor(fun() -> true = net_kernel:connect_node(Node) end))
            || Node <- Nodes],
    lists:foreach(fun(Ref) -> receive {'DOWN', Ref, process, _, normal} -> ok end end, Refs),
    lists:foreach(fun(Node) when Variant =:= trunkline -> ok = trunkline:await_up(Node, ?UP);
                     (_) -> ok
                  end, Nodes),
    (erlang:monotonic_time(microsecond) - T0) / 1000.

%% At the hub: processes, kB of memory, and wake-ups a second.
-spec at_rest(pos_integer()) -> [number()].
at_rest(Milliseconds) ->
    receive after ?SETTLE -> ok end,
    ok = bench:collect_garbage(),
    Processes = erlang:system_info(process_count),
    Before = wake_ups(),
    receive after Milliseconds -> ok end,
    WakeUps = wake_ups() - Before,
    [Processes, erlang:memory(total) / 1000, WakeUps * 1000 / Milliseconds].

%% Of all threads, since they began: how often they have stopped to wait.
wake_ups() ->
    Files = filelib:wildcard("/proc/self/task/*/status"),
    lists:sum([wake_ups(File) || File <- Files]).

wake_ups(File) ->
    {ok, Status} = file:read_file(File),
    {match, [Number]} = re:run(Status, "\nvoluntary_ctxt_switches:\\s*([0-9]+)",
                               [{capture, all_but_first, list}]),
    list_to_integer(Number).

%% --- one that comes and goes ------------------------------------------------------

%% 8 senders to 8 receivers at one peer; `with a flapping peer' while the hub loses another one all
%% the time, and connects again.
flapping({Hub, _}, [Steady, Other | _]) ->
    Variants =
        [{Name, bench:sized(fun(N) ->
                                    ok = set(V, Hub),
                                    _ = peer:call(Hub, ?MODULE, connect, [V, [Steady, Other]], ?UP),
                                    throughput(V, Flaps, Hub, Steady, Other, N)
                            end)}
         || {Name, V, Flaps} <- [{stock, stock, none}, {'!, beside a flapping peer', stock, flaps},
                                 {trunkline, trunkline, none},
                                 {'Trunkline, beside a flapping peer', trunkline, flaps}]],
    Result = {"8 to 8, {ping, N, 1}", bench:in_turn(Variants)},
    bench:table("messages/s", [stock, trunkline], Result),
    Result.

throughput(V, none, Hub, Steady, _, N) ->
    peer:call(Hub, ?MODULE, throughput, [V, Steady, N], infinity);
throughput(V, flaps, Hub, Steady, Other, N) ->
    Flapping = peer:call(Hub, erlang, spawn, [?MODULE, flap, [V, Other]], ?UP),
    Rate = peer:call(Hub, ?MODULE, throughput, [V, Steady, N], infinity),
    true = peer:call(Hub, erlang, exit, [Flapping, kill], ?UP),
    Rate.

%% At the hub.
-spec throughput(stock | trunkline, node(), pos_integer()) -> number().
throughput(Variant, Node, N) ->
    bench_throughput:run(Variant, 8, ping, Node, max(1, N div 8)).

-spec flap(stock | trunkline, node()) -> no_return().
flap(Variant, Node) ->
    _ = erlang:disconnect_node(Node),
    _ = net_kernel:connect_node(Node),
    Variant =:= trunkline andalso trunkline:await_up(Node, ?UP),
    flap(Variant, Node).
