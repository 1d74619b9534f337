%% What grows, and what it costs: with the number of peers, of destinations, of messages in a
%% sender's mailbox, of lanes, of senders, and of sessions.
%%
%% In parts, of which ONLY="rest flap" chooses some; PEERS="2 10" chooses numbers of peers:
%%
%%     rest           a hub with 2, 10, 30 and 60 other nodes and nothing to do, with plain Erlang
%%                    or with Trunkline: processes, memory, wake-ups of its threads, runs of
%%                    Trunkline's processes. All hubs rest at the same time, and each is compared
%%                    with itself before it was connected.
%%     up             how long it takes until a hub has all of them, when it connects to all at
%%                    once; and until each of them has all others, when all begin at once
%%     flap           what goes to one peer, while another is lost and connected again ten times a
%%                    second
%%     destinations   messages to 1 to 100,000 processes of a peer, by eight senders
%%     mail           one message, or call, by a process with 0 to 1,000,000 messages in its mailbox
%%     lanes          messages by 1 to 8 lanes
%%     shared         what senders share, a gate and the mailbox of a lane: one operation by 1, 2, 4
%%                    and 8 processes at the same time, and by two that do not share it. (lcnt
%%                    cannot say it: a gate has no lock, and Debian's emulators count none.)
%%     sessions       100 to 10,000 pairs of sessions without processes (bench_growth_sessions)
%%
%% The hubs have two schedulers, the other nodes one each. None connects to others by itself. A
%% number of peers for which there is not enough memory is left out.
%%
%% The figures for the plots are in _build/growth.dat. Parts that are not run keep what they had.
-module(bench_growth).

-export([main/0]).
-export([connect/2, at_rest/2, gather/0, flap/2, throughput/3, to_many/4, receivers/3, with_mail/3,
         shared/3]).

%% ms at rest, alone and connected: in the latter each of Trunkline's links looks three times
%% whether to ping, and the distribution ticks twice.
-define(ALONE, 100).
-define(REST, 30_000).
%% ms. (What a new peer might need ends after ten seconds.)
-define(SETTLE, 12_000).
-define(BEFORE, 5_000).
-define(UP, 60_000).
-define(FLAP, 100).
%% At rest and in a mesh everything takes long.
-define(ROUNDS, min(3, bench:rounds())).
%% Nodes that are started at the same time.
-define(AT_ONCE, 4).
%% Bytes of memory for each of them, with the connections that it has in a mesh, and what is left
%% for others.
-define(NODE, 90_000_000).
-define(LEFT, 1_500_000_000).
-define(SENDERS, 8).
%% So many messages, calls, and operations on what is shared.
-define(SENDS, 20_000).
-define(CALLS, 1_000).
-define(OPERATIONS, 50_000).
-define(FILE_NAME, "_build/growth.dat").

-type variant() :: stock | trunkline.

-spec main() -> no_return().
main() ->
    bench:run(fun run/0).

run() ->
    Parts = parts(),
    Counts = counts(Parts),
    bench:say("What grows; ~b rounds", [bench:rounds()]),
    Results = with_peers(Counts, [P || P <- Parts, lists:member(P, ["rest", "up"])])
        ++ with_two([P || P <- Parts, not lists:member(P, ["rest", "up", "sessions"])])
        ++ lists:append([measured(P, fun sessions/0) || "sessions" = P <- Parts]),
    bench:say("~nthe figures for the plots are in " ?FILE_NAME, []),
    bench:finish("growth",
                 [{Unit, [R || {U, R} <- Results, U =:= Unit]}
                  || Unit <- lists:usort([U || {U, _} <- Results])],
                 targets(Results)).

parts() ->
    All = ["rest", "up", "flap", "destinations", "mail", "lanes", "shared", "sessions"],
    Parts = string:lexemes(os:getenv("ONLY", lists:join(" ", All)), " "),
    Parts -- All =:= [] orelse error({no_such_part, Parts -- All}),
    [P || P <- All, lists:member(P, Parts)].

%% So many peers as there is memory for.
counts(Parts) ->
    Wanted = [list_to_integer(P) || P <- string:lexemes(os:getenv("PEERS", "2 10 30 60"), " ")],
    Available = available(),
    Hubs = case lists:member("rest", Parts) of
               true -> 2 * length(Wanted);
               false -> 1
           end,
    Needed = fun(N) -> (N + Hubs) * ?NODE + ?LEFT end,
    {Counts, TooMany} = lists:partition(fun(N) -> Needed(N) =< Available end, Wanted),
    lists:foreach(fun(N) ->
                          bench:say("~b peers are left out: they need ~b MB of memory, and ~b MB "
                                    "are available.",
                                    [N, Needed(N) div 1_000_000, Available div 1_000_000])
                  end, TooMany),
    Counts.

available() ->
    {ok, Text} = file:read_file("/proc/meminfo"),
    {match, [KB]} = re:run(Text, "MemAvailable:\\s*([0-9]+) kB", [{capture, all_but_first, list}]),
    1024 * list_to_integer(KB).

with_peers(Counts, Parts) when Counts =:= []; Parts =:= [] ->
    [];
with_peers(Counts, Parts) ->
    Peers = start(lists:duplicate(lists:max(Counts), ["+S", "1"])),
    Results = [measured(Part, fun() ->
                                      case Part of
                                          "rest" -> rest(Counts, Peers);
                                          "up" -> up(Counts, Peers)
                                      end
                              end) || Part <- Parts],
    stop(Peers),
    lists:append(Results).

with_two([]) ->
    [];
with_two(Parts) ->
    [Hub, Peer, Other] = Nodes = start([["+S", "2"], ["+S", "1"], ["+S", "1"]]),
    Results = [measured(Part, fun() ->
                                      case Part of
                                          "flap" -> flapping(Hub, Peer, Other);
                                          "destinations" -> destinations(Hub, Peer);
                                          "mail" -> mail(Hub, Peer);
                                          "lanes" -> lanes(Hub, Peer);
                                          "shared" -> contention(Hub)
                                      end
                              end) || Part <- Parts],
    stop(Nodes),
    lists:append(Results).

measured(Part, Measure) ->
    T0 = erlang:monotonic_time(second),
    Results = Measure(),
    ok = write_data(Part, Results),
    bench:say("~n(part ~ts: ~b s)", [Part, erlang:monotonic_time(second) - T0]),
    Results.

%% For each peer, where there are most.
targets(Results) ->
    Most = fun(Unit, Of) ->
                   case [R || {U, R} <- Results, U =:= Unit] of
                       [] -> [];
                       Rs -> {Case, Variants} = lists:last(Rs),
                             [Of(list_to_integer(number_in(Case)),
                                 fun(V) -> bench:median(proplists:get_value(V, Variants)) end)]
                   end
           end,
    Most("kB", fun(_, Median) ->
                       bench:target("kB for each peer, beyond plain Erlang", at_most, 150,
                                    Median(trunkline) - Median(stock))
               end)
        ++ Most("wake-ups/s", fun(N, Median) ->
                                      bench:target("wake-ups/s for each peer, beyond plain Erlang",
                                                   at_most, 0.1,
                                                   (Median(trunkline) - Median(stock)) / N)
                              end)
        ++ Most("runs/s", fun(_, Median) ->
                                  bench:target("runs/s of Trunkline's processes for each peer",
                                               at_most, 0.1, Median(trunkline))
                          end).

%% --- nodes --------------------------------------------------------------------

start([]) ->
    [];
start(ArgsOfEach) ->
    Self = self(),
    {Now, Later} = lists:split(min(length(ArgsOfEach), ?AT_ONCE), ArgsOfEach),
    %% (A peer ends with the process that has started it by a link.)
    Pids = [spawn_link(fun() ->
                               Self ! {self(), node_of(Args)},
                               receive stop -> ok end
                       end) || Args <- Now],
    [receive {Pid, Node} -> Node end || Pid <- Pids] ++ start(Later).

node_of(Args) ->
    {ok, Peer, Node} =
        peer:start_link(#{name => peer:random_name(trunkline_bench),
                          connection => standard_io,
                          args => ["-setcookie", atom_to_list(erlang:get_cookie()),
                                   "-connect_all", "false", "-pa"] ++ code:get_path() ++ Args}),
    ok = peer:call(Peer, bench, log_briefly, [], ?UP),
    {ok, _} = peer:call(Peer, application, ensure_all_started, [trunkline], ?UP),
    {Peer, Node}.

stop(Nodes) -> lists:foreach(fun({Peer, _}) -> peer:stop(Peer) end, Nodes).

%% At all of them at the same time.
at_all(Nodes, M, F, A) -> together([fun() -> at(N, M, F, A) end || N <- Nodes]).

at({Peer, _}, M, F, A) -> peer:call(Peer, M, F, A, infinity).

together(Funs) ->
    Self = self(),
    Pids = [spawn_link(fun() -> Self ! {self(), Fun()} end) || Fun <- Funs],
    [receive {Pid, Result} -> Result end || Pid <- Pids].

names(Nodes) -> [Name || {_, Name} <- Nodes].

%% Trunkline starts again at these nodes, or ends.
set(Variant, Nodes) ->
    _ = at_all(Nodes, logger, set_primary_config, [level, none]),       % "stopped"
    _ = at_all(Nodes, application, stop, [trunkline]),
    _ = at_all(Nodes, bench, log_briefly, []),
    Variant =:= trunkline
        andalso at_all(Nodes, application, ensure_all_started, [trunkline]),
    ok.

%% (Trunkline may watch a node that it has just lost, which connects to it again.)
alone(Nodes) -> lists:foreach(fun(Node) -> alone(Node, ?UP div 10) end, Nodes).

alone(Node, Tries) ->
    case at(Node, erlang, nodes, [connected]) of
        [] ->
            ok;
        Connected when Tries > 0 ->
            _ = [at(Node, erlang, disconnect_node, [N]) || N <- Connected],
            timer:sleep(10),
            alone(Node, Tries - 1);
        Connected ->
            error({still_connected, Node, Connected})
    end.

%% At a node: connects to all of these at once. How many ms it takes.
-spec connect(variant(), [node()]) -> float().
connect(Variant, Nodes) ->
    T0 = erlang:monotonic_time(microsecond),
    _ = together([fun() -> ok = connected(Node, 20) end || Node <- Nodes]),
    lists:foreach(fun(Node) when Variant =:= trunkline -> ok = trunkline:await_up(Node, ?UP);
                     (_) -> ok
                  end, Nodes),
    (erlang:monotonic_time(microsecond) - T0) / 1000.

%% An attempt fails if the other node makes one at the same time and wins, but is late.
connected(Node, Tries) when Tries > 0 ->
    case net_kernel:connect_node(Node) of
        true -> ok;
        false -> connected(Node, Tries - 1)
    end.

%% --- at rest -----------------------------------------------------------------------

at_rest() ->
    [{"processes", "processes for each"}, {"kB", "memory for each"},
     {"wake-ups/s", "wake-ups of the hub"}, {"runs/s", "runs of Trunkline's processes for each"}].

rest(Counts, Peers) ->
    bench:say("~nAt rest; ~b rounds", [?ROUNDS]),
    Names = names(Peers),
    Which = [{N, V} || N <- Counts, V <- [stock, trunkline]],
    Hubs = lists:zip(Which, start([["+S", "2"] || _ <- Which])),
    %% Code is loaded.
    _ = [at(Hub, ?MODULE, connect, [V, lists:sublist(Names, N)]) || {{N, V}, Hub} <- Hubs],
    _ = at_all([Hub || {_, Hub} <- Hubs], ?MODULE, at_rest, [0, 100]),
    Rounds = [rested(Hubs, Names) || _ <- lists:seq(1, ?ROUNDS)],
    stop([Hub || {_, Hub} <- Hubs]),
    [begin
         Variants = [{V, [lists:nth(I, maps:get({N, V}, Round)) || Round <- Rounds]}
                     || V <- [stock, trunkline], I < 4 orelse V =:= trunkline],
         Result = {lists:concat([N, " peers, ", What]), Variants},
         bench:table(Unit, [], Result),
         {Unit, Result}
     end || {I, {Unit, What}} <- lists:enumerate(at_rest()), N <- Counts].

%% Of each hub: what each peer adds to the processes and the memory that it has alone. (It wakes up
%% alone, too, now more and now less often than peers wake it: so all wake-ups.)
rested(Hubs, Names) ->
    ok = set(stock, [Hub || {_, Hub} <- Hubs]),
    ok = alone([Hub || {_, Hub} <- Hubs]),
    _ = together([fun() -> set(V, [Hub]) end || {{_, V}, Hub} <- Hubs]),
    Rest = fun(Settle, Time) ->
                   at_all([Hub || {_, Hub} <- Hubs], ?MODULE, at_rest, [Settle, Time])
           end,
    Alone = Rest(?BEFORE, ?ALONE),
    _ = [at(Hub, ?MODULE, connect, [V, lists:sublist(Names, N)]) || {{N, V}, Hub} <- Hubs],
    Connected = Rest(?SETTLE, ?REST),
    maps:from_list([{{N, V}, [(Processes - P0) / N, (Memory - M0) / N, WakeUps, Runs / N]}
                    || {{{N, V}, _}, [P0, M0, _, _], [Processes, Memory, WakeUps, Runs]}
                           <- lists:zip3(Hubs, Alone, Connected)]).

%% At the hub: processes, kB of memory, wake-ups a second, and how often a second a process of
%% Trunkline begins to run.
-spec at_rest(pos_integer(), pos_integer()) -> [number()].
at_rest(Settle, Milliseconds) ->
    ok = bench:collect_garbage(),
    receive after Settle -> ok end,
    ok = bench:collect_garbage(),
    Processes = erlang:system_info(process_count),
    Memory = erlang:memory(total) / 1000,
    %% It does not run meanwhile: the news of a run would wake it up.
    Tracer = spawn_link(?MODULE, gather, []),
    true = erlang:suspend_process(Tracer),
    Ours = ours(),
    Trace = fun(Is) ->
                    _ = [catch erlang:trace(Pid, Is, [running, {tracer, Tracer}]) || Pid <- Ours]
            end,
    _ = Trace(true),
    Before = wake_ups(),
    receive after Milliseconds -> ok end,
    WakeUps = wake_ups() - Before,
    _ = Trace(false),
    Ref = erlang:trace_delivered(all),
    receive {trace_delivered, all, Ref} -> ok end,
    true = erlang:resume_process(Tracer),
    Tracer ! {count, self()},
    Runs = receive {runs, N} -> N end,
    [Processes, Memory, WakeUps * 1000 / Milliseconds, Runs * 1000 / Milliseconds].

-spec gather() -> ok.
gather() ->
    receive {count, To} -> To ! {runs, length(runs())}, ok end.

runs() ->
    receive
        {trace, Pid, in, _} -> [Pid | runs()];
        {trace, _, _, _} -> runs()
    after 0 -> []
    end.

%% What its top supervisor has started, and they.
ours() ->
    [Pid || Pid <- processes(), {dictionary, Dictionary} <- [process_info(Pid, dictionary)],
            lists:member(trunkline_sup, proplists:get_value('$ancestors', Dictionary, []))].

%% Of all threads, since they began: how often they have stopped to wait.
wake_ups() ->
    lists:sum([wake_ups(File) || File <- filelib:wildcard("/proc/self/task/*/status")]).

wake_ups(File) ->
    {ok, Status} = file:read_file(File),
    {match, [Number]} = re:run(Status, "\nvoluntary_ctxt_switches:\\s*([0-9]+)",
                               [{capture, all_but_first, list}]),
    list_to_integer(Number).

%% --- until all are up ------------------------------------------------------------------

up(Counts, Peers) ->
    [Hub] = start([["+S", "2"]]),
    Measure = fun(Case, Variants) ->
                      Result = {Case, Variants},
                      bench:table("ms", [stock], Result),
                      {"ms", Result}
              end,
    ok = set(trunkline, Peers),
    OfHub = [Measure(lists:concat([N, " peers of a hub, until all are up"]),
                     bench:in_turn([{V, fun() -> hub(V, Hub, lists:sublist(Peers, N)) end}
                                    || V <- [stock, trunkline]]))
             || N <- Counts],
    stop([Hub]),
    OfAll = [Measure(lists:concat([N, " peers of each other, until all are up"]),
                     bench:in_turn(?ROUNDS, [{V, fun() -> mesh(V, lists:sublist(Peers, N)) end}
                                             || V <- [stock, trunkline]]))
             || N <- Counts],
    OfHub ++ OfAll.

hub(Variant, Hub, Peers) ->
    ok = set(stock, [Hub]),
    ok = alone([Hub]),
    ok = set(Variant, [Hub]),
    at(Hub, ?MODULE, connect, [Variant, names(Peers)]).

%% Each connects to all others, as nodes do that start at the same time.
mesh(Variant, Peers) ->
    ok = set(stock, Peers),
    ok = alone(Peers),
    ok = set(Variant, Peers),
    T0 = erlang:monotonic_time(microsecond),
    _ = together([fun() -> at(P, ?MODULE, connect, [Variant, names(Peers -- [P])]) end
                  || P <- Peers]),
    (erlang:monotonic_time(microsecond) - T0) / 1000.

%% --- one that comes and goes -----------------------------------------------------------

%% 8 senders to 8 receivers at one peer, while the hub loses another one, and connects again.
flapping(Hub, Steady, Other) ->
    Variants =
        [{Name, bench:sized(fun(N) ->
                                    ok = set(V, [Hub]),
                                    _ = at(Hub, ?MODULE, connect, [V, names([Steady, Other])]),
                                    beside(Flaps, V, Hub, Steady, Other, N)
                            end)}
         || {Name, V, Flaps} <- [{stock, stock, none}, {'!, beside a flapping peer', stock, flaps},
                                 {trunkline, trunkline, none},
                                 {'Trunkline, beside a flapping peer', trunkline, flaps}]],
    Result = {"beside a flapping peer, {ping, N, 1}", bench:in_turn(Variants)},
    bench:table("messages/s", [stock, trunkline], Result),
    [{"messages/s", Result}].

beside(none, V, Hub, {_, Steady}, _, N) ->
    at(Hub, ?MODULE, throughput, [V, Steady, N]);
beside(flaps, V, Hub, Steady, {_, Other}, N) ->
    Flapping = at(Hub, erlang, spawn, [?MODULE, flap, [V, Other]]),
    Rate = beside(none, V, Hub, Steady, Other, N),
    true = at(Hub, erlang, exit, [Flapping, kill]),
    Rate.

%% At the hub.
-spec throughput(variant(), node(), pos_integer()) -> number().
throughput(Variant, Node, N) ->
    bench_throughput:run(Variant, ?SENDERS, ping, Node, max(1, N div ?SENDERS)).

%% At the same pace with Trunkline and without it, if they can keep it.
-spec flap(variant(), node()) -> no_return().
flap(Variant, Node) ->
    Next = erlang:monotonic_time(millisecond) + ?FLAP,
    _ = erlang:disconnect_node(Node),
    _ = net_kernel:connect_node(Node),
    _ = [trunkline:await_up(Node, ?UP) || Variant =:= trunkline],
    receive after max(0, Next - erlang:monotonic_time(millisecond)) -> ok end,
    flap(Variant, Node).

%% --- destinations -----------------------------------------------------------------------

%% All senders together reach each destination.
destinations(Hub, {_, Node} = Peer) ->
    ok = begin_with(Hub, Peer),
    [begin
         Variant = fun(V) ->
                           {V, bench:sized(fun(N) ->
                                                   at(Hub, ?MODULE, to_many, [V, Node, Count, N])
                                           end)}
                   end,
         Result = {lists:concat([Count, " destinations"]),
                   bench:in_turn([Variant(V) || V <- [stock, trunkline]])},
         bench:table("messages/s", [stock], Result),
         {"messages/s", Result}
     end || Count <- [1, 10, 100, 1_000, 10_000, 100_000]].

begin_with(Hub, Peer) ->
    ok = set(trunkline, [Hub, Peer]),
    _ = at(Hub, ?MODULE, connect, [trunkline, names([Peer])]),
    ok.

%% At the hub: each of the senders has a part of the destinations, or all have the only one that
%% there is, and sends to one after the other.
-spec to_many(variant(), node(), pos_integer(), pos_integer()) -> float().
to_many(Variant, Node, Count, N) ->
    Each = max(1, N div max(Count, ?SENDERS)),
    Times = case Count of 1 -> ?SENDERS; _ -> 1 end,
    Pids = erpc:call(Node, ?MODULE, receivers, [Count, Each * Times, self()], infinity),
    Parts = case Pids of
                [_] -> lists:duplicate(?SENDERS, Pids);
                _ -> [[P || {I, P} <- lists:enumerate(Pids), I rem ?SENDERS =:= Ix]
                      || Ix <- lists:seq(0, ?SENDERS - 1)]
            end,
    Senders = [spawn_link(fun() -> receive go -> send_each(Variant, Part, Each) end end)
               || Part <- Parts],
    T0 = erlang:monotonic_time(),
    lists:foreach(fun(Sender) -> Sender ! go end, Senders),
    receive all_received -> ok end,
    Each * Times * Count / seconds_since(T0).

send_each(_, _, 0) ->
    ok;
send_each(stock, Pids, N) ->
    lists:foreach(fun(Pid) -> Pid ! {ping, N, 1} end, Pids),
    send_each(stock, Pids, N - 1);
send_each(trunkline, Pids, N) ->
    lists:foreach(fun(Pid) -> trunkline:send(Pid, {ping, N, 1}) end, Pids),
    send_each(trunkline, Pids, N - 1).

%% At the peer: so many that get Each messages. The last one says so.
-spec receivers(pos_integer(), pos_integer(), pid()) -> [pid()].
receivers(Count, Each, Parent) ->
    Left = atomics:new(1, []),
    ok = atomics:put(Left, 1, Count),
    [spawn(fun() -> receive_each(Each, Left, Parent) end) || _ <- lists:seq(1, Count)].

receive_each(0, Left, Parent) ->
    case atomics:sub_get(Left, 1, 1) of
        0 -> Parent ! all_received;
        _ -> ok
    end;
receive_each(N, Left, Parent) ->
    receive {ping, _, 1} -> receive_each(N - 1, Left, Parent) end.

seconds_since(T0) ->
    erlang:convert_time_unit(erlang:monotonic_time() - T0, native, microsecond) / 1.0e6.

%% --- mail ------------------------------------------------------------------------------

mail(Hub, {_, Node} = Peer) ->
    ok = begin_with(Hub, Peer),
    [begin
         Us = fun(Way) -> fun() -> at(Hub, ?MODULE, with_mail, [Way, Length, Node]) end end,
         Result = {lists:concat([What, ", ", Length, " messages in the mailbox"]),
                   bench:in_turn([{stock, Us(Stock)}, {trunkline, Us(Ours)}])},
         bench:table("us", [stock], Result),
         {"us", Result}
     end || {What, Stock, Ours} <- [{"send", stock, send}, {"call", gen_call, call}],
            Length <- [0, 1_000, 10_000, 100_000, 1_000_000]].

%% At the hub: us of one message, or call.
-spec with_mail(stock | send | gen_call | call, non_neg_integer(), node()) -> number().
with_mail(Way, Length, Node) ->
    Server = erpc:call(Node, bench_mailbox, start, [plain, #{}]),
    N = case Way of
            stock -> ?SENDS;
            send -> ?SENDS;
            _ -> ?CALLS
        end,
    Us = bench_mailbox:us_each(Length, N, way(Way, Server), [Server]),
    ok = erpc:call(Node, bench_mailbox, kill, [[Server]]),
    Us.

way(stock, Server) -> fun(I) -> Server ! {item, I} end;
way(send, Server) -> fun(I) -> trunkline:send(Server, {item, I}) end;
way(gen_call, Server) -> fun(I) -> gen_server:call(Server, {echo, I}, infinity) end;
way(call, Server) -> fun(I) -> trunkline:call(Server, {echo, I}, infinity) end.

%% --- lanes --------------------------------------------------------------------------------

lanes(Hub, {_, Node} = Peer) ->
    With = fun(Lanes, N) ->
                   _ = at_all([Hub, Peer], application, set_env, [trunkline, lanes, Lanes]),
                   ok = set(trunkline, [Hub, Peer]),
                   _ = at(Hub, ?MODULE, connect, [trunkline, [Node]]),
                   at(Hub, ?MODULE, throughput, [trunkline, Node, N])
           end,
    Variants = [{'1 lane', 1}, {'2 lanes', 2}, {'4 lanes', 4}, {'8 lanes', 8}],
    Result = {"by lanes, 8 to 8, {ping, N, 1}",
              bench:in_turn([{V, bench:sized(fun(N) -> With(Lanes, N) end)}
                             || {V, Lanes} <- Variants])},
    bench:table("messages/s", ['2 lanes'], Result),
    _ = at_all([Hub, Peer], application, unset_env, [trunkline, lanes]),
    [{"messages/s", Result}].

%% --- what senders share ------------------------------------------------------------------

contention(Hub) ->
    [begin
         Ns = fun(Senders, Things) -> fun() -> at(Hub, ?MODULE, shared, [Op, Senders, Things]) end
              end,
         Result = {What, bench:in_turn([{'1 process', Ns(1, 1)}, {'2, each its own', Ns(2, 2)},
                                        {'2 processes', Ns(2, 1)}, {'4 processes', Ns(4, 1)},
                                        {'8 processes', Ns(8, 1)}])},
         bench:table("ns", ['1 process'], Result),
         {"ns", Result}
     end || {What, Op} <- [{"enter a gate and leave it", gate},
                           {"send to a lane's mailbox", mailbox}]].

%% At the hub: ns of a scheduler for one operation, by so many processes.
-spec shared(gate | mailbox, pos_integer(), pos_integer()) -> number().
shared(Op, Senders, Things) ->
    Each = ?OPERATIONS div Senders,
    Gate = trunkline_gate:new(Things),
    lists:foreach(fun(Ix) -> trunkline_gate:open(Gate, Ix) end, lists:seq(1, Things)),
    %% They do not run: only senders take the lock. (Messages are kept as lanes keep them.)
    Lanes = [spawn_opt(fun() -> receive stop -> ok end end, [{message_queue_data, on_heap}])
             || _ <- lists:seq(1, Things)],
    lists:foreach(fun(Lane) -> true = erlang:suspend_process(Lane) end, Lanes),
    Work = fun(Ix) ->
                   case Op of
                       gate -> enter(Gate, Ix, Each);
                       mailbox -> put_in(lists:nth(Ix, Lanes), Each)
                   end
           end,
    Pids = [spawn_monitor(fun() -> receive go -> Work(1 + I rem Things) end end)
            || I <- lists:seq(1, Senders)],
    T0 = erlang:monotonic_time(),
    lists:foreach(fun({Pid, _}) -> Pid ! go end, Pids),
    lists:foreach(fun({_, Ref}) -> receive {'DOWN', Ref, process, _, normal} -> ok end end,
                  Pids),
    Seconds = seconds_since(T0),
    lists:foreach(fun(Lane) -> exit(Lane, kill) end, Lanes),
    Seconds * 1.0e9 * min(Senders, erlang:system_info(schedulers_online)) / (Each * Senders).

enter(_, _, 0) ->
    ok;
enter(Gate, Ix, N) ->
    Limit = trunkline_gate:limit(1 bsl 34),
    Charge = case trunkline_gate:enter(Gate, Ix, {ping, N, 1}, Limit, 200) of
                 {alone, C} -> C;
                 C -> C
             end,
    _ = trunkline_gate:leave(Gate, Ix, Charge),
    enter(Gate, Ix, N - 1).

put_in(_, 0) ->
    ok;
put_in(Lane, N) ->
    Lane ! [N, Lane, Lane | {ping, N, 1}],
    put_in(Lane, N - 1).

%% --- sessions ----------------------------------------------------------------------------

sessions() ->
    Whats = [{"ns", "a step on the way up"}, {"ns", "a step at rest"},
             {"steps", "each, on the way up"}, {"bytes", "each, at rest"}],
    Results = [{N, bench:by_unit([What || {_, What} <- Whats],
                                 bench:in_turn([{trunkline, fun() -> played(N) end}]))}
               || N <- [100, 1_000, 10_000]],
    [begin
         Result = {lists:concat([N, " pairs of sessions, ", What]), maps:get(What, ByWhat)},
         bench:table(Unit, [], Result),
         {Unit, Result}
     end || {Unit, What} <- Whats, {N, ByWhat} <- Results].

%% In a process of its own, with a fresh heap.
played(N) ->
    [Figures] = together([fun() -> bench_growth_sessions:play(N) end]),
    Figures.

%% --- the plots ---------------------------------------------------------------------------

%% For those of docs/lab/growth.md (make plot-growth): a line for each variant of each case, in the
%% place of those that the part had before.
write_data(Part, Results) ->
    Before = case file:read_file(?FILE_NAME) of
                 {ok, Text} -> string:lexemes(Text, "\n");
                 {error, enoent} -> []
             end,
    Kept = [[Line, $\n] || Line <- Before, string:prefix(Line, "# ") =:= nomatch,
                           string:prefix(Line, Part ++ "\t") =:= nomatch],
    Lines = [io_lib:format("~ts\t~ts\t~ts\t~ts\t~ts\t~.3f\t~.3f\t~.3f~n",
                           [Part, Unit, without_number(Case), V, number_in(Case),
                            float(bench:median(Vs)), float(lists:min(Vs)), float(lists:max(Vs))])
             || {Unit, {Case, Variants}} <- Results, {V, Vs} <- Variants],
    file:write_file(?FILE_NAME,
                    ["# part, unit, case, variant, number, median, lowest, highest (tabs)\n",
                     Kept, Lines]).

%% "send, 1000 messages in the mailbox"
number_in(Case) ->
    case re:run(Case, "^(?:[a-z]+, )?([0-9]+) [a-z]+", [{capture, all_but_first, list}]) of
        {match, [Number]} -> Number;
        nomatch -> "-"
    end.

without_number(Case) ->
    case number_in(Case) of
        "-" -> Case;
        Number -> string:replace(Case, Number ++ " ", "")
    end.
