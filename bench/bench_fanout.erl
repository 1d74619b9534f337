%% One message to ten thousand processes of other nodes: how many are delivered a second, and
%% how long the caller takes for it.
%%
%% A fan-out begins when the one before has reached all. Relay: the list goes as one message to
%% a process at the other node, which sends it on in a loop.
-module(bench_fanout).

-export([main/0]).
-export([start/2, fan_outs/4, stop/1]).
-export([start_receivers/1]).

-define(RECEIVERS, 10_000).
%% Fan-outs of one measurement.
-define(TIMES, 20).

-record(place, {pids :: [pid()], relay :: pid(), owner :: pid()}).

-spec main() -> no_return().
main() ->
    bench:run(fun run/0).

run() ->
    Peers = [bench:start_peer([]) || _ <- lists:seq(1, 4)],
    Nodes = [Node || {_, Node} <- Peers],
    bench:say("One message to ~b processes; ~b rounds of ~b, two cores shared by all nodes",
              [?RECEIVERS, bench:rounds(), ?TIMES]),
    Kilobyte = {message, crypto:strong_rand_bytes(1024)},
    Cases = [measure("one node, {ping, 1, 1}", [hd(Nodes)], {ping, 1, 1}),
             measure("one node, 1 KB", [hd(Nodes)], Kilobyte),
             measure("four nodes, 1 KB", Nodes, Kilobyte)],
    lists:foreach(fun bench:stop_peer/1, Peers),
    Results = [{_, [{_, Rates} | _]}, {_, Times}] = bench:results(units(), Cases),
    bench:finish("fanout", Results,
                 [bench:target("one node, delivered/s: Trunkline / !", at_least, 8,
                               bench:ratio(trunkline, stock, Rates)),
                  bench:target("one node, delivered/s: Trunkline / relay", at_least, 1.2,
                               bench:ratio(trunkline, relay, Rates))
                  | [bench:target(Case ++ ", caller's time: Trunkline / !", at_most, 0.02,
                                  bench:ratio(trunkline, stock, Variants))
                     || {Case, Variants} <- Times]]).

units() -> ["delivered/s", "us, caller"].

measure(Case, Nodes, Message) ->
    Here = [start(node(), ?RECEIVERS)],
    There = [start(Node, ?RECEIVERS div length(Nodes)) || Node <- Nodes],
    Variant = fun(V) ->
                      Places = case V of same -> Here; _ -> There end,
                      {V, fun() ->
                                  lists:foreach(fun(Node) -> bench:tune(Node, V) end,
                                                Nodes),
                                  fan_outs(V, Places, Message, ?TIMES)
                          end}
              end,
    Measured = bench:a_case(Case, units(), [stock, tuned, relay],
                            [Variant(V) || V <- [same, stock, tuned, relay, trunkline]]),
    lists:foreach(fun stop/1, Here ++ There),
    Measured.

%% So many processes at that node.
-spec start(node(), pos_integer()) -> #place{}.
start(Node, N) -> erpc:call(Node, ?MODULE, start_receivers, [{N, {?MODULE, node()}}]).

-spec stop(#place{}) -> ok.
stop(#place{owner = Owner}) ->
    exit(Owner, kill),
    ok.

%% [messages delivered a second, the caller's time for one fan-out in us], by a process that has
%% nothing else. Its list has the nodes' processes mixed, as a user's would.
-spec fan_outs(bench:variant(), [#place{}, ...], Message :: term(), Times :: pos_integer()) ->
          [number()].
fan_outs(Variant, Places, Message, Count) ->
    Pids = mixed([P || #place{pids = P} <- Places]),
    %% (In the same order: it decides how well the receiving node's caches work.)
    Relays = [{Relay, [Pid || Pid <- Pids, node(Pid) =:= node(Relay)]}
              || #place{relay = Relay} <- Places],
    Send = case Variant of
               trunkline -> fun() -> trunkline:multicast(Pids, Message) end;
               relay ->
                   fun() ->
                           lists:foreach(fun({Relay, Ps}) -> Relay ! {each, Ps, Message} end,
                                         Relays)
                   end;
               _ -> fun() -> lists:foreach(fun(Pid) -> Pid ! Message end, Pids) end
           end,
    {Pid, Ref} = spawn_monitor(fun() ->
                                       true = register(?MODULE, self()),
                                       exit([fan_out(Send, length(Places))
                                             || _ <- lists:seq(1, Count)])
                               end),
    receive
        {'DOWN', Ref, process, Pid, Times} ->
            [length(Pids) / bench:median([All || {_, All} <- Times]) * 1.0e6,
             bench:median([Caller || {Caller, _} <- Times])]
    end.

fan_out(Send, Places) ->
    T0 = erlang:monotonic_time(),
    ok = Send(),
    T1 = erlang:monotonic_time(),
    lists:foreach(fun(_) -> receive delivered -> ok end end, lists:seq(1, Places)),
    T2 = erlang:monotonic_time(),
    {us(T1 - T0), us(T2 - T0)}.

us(Native) -> erlang:convert_time_unit(Native, native, nanosecond) / 1000.

mixed(Lists) ->
    [Pid || {_, Pid} <- lists:sort([{erlang:phash2(Pid), Pid} || Pids <- Lists, Pid <- Pids])].

%% --- the receivers --------------------------------------------------------------

-spec start_receivers({pos_integer(), {atom(), node()}}) -> #place{}.
start_receivers({N, Tell}) ->
    Starter = self(),
    Owner = spawn(fun() ->
                          Count = atomics:new(1, []),
                          Pids = [spawn_link(fun() -> receiver(Count, N, Tell) end)
                                  || _ <- lists:seq(1, N)],
                          Starter ! #place{pids = Pids, relay = spawn_link(fun relay/0),
                                           owner = self()},
                          receive after infinity -> ok end
                  end),
    receive #place{owner = Owner} = Place -> Place end.

%% The last one says that all have it.
receiver(Count, N, Tell) ->
    receive
        _ -> atomics:add_get(Count, 1, 1) rem N =:= 0 andalso (Tell ! delivered)
    end,
    receiver(Count, N, Tell).

relay() ->
    receive
        {each, Pids, Message} -> lists:foreach(fun(Pid) -> Pid ! Message end, Pids)
    end,
    relay().
