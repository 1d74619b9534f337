%% A flood to a node that stands still for five seconds (SIGSTOP) and goes on.
%%
%%     0 s              1 s                              6 s
%%      |  8 senders, as fast as they can                 |
%%      |                 |  the other node is stopped    |  it continues, until all has arrived
%%
%% What counts is what the sending node goes through meanwhile: how much memory it
%% takes, what a sender with `nosuspend' is told and how soon, how long it takes
%% until messages flow again, and whether all that was accepted arrives in order.
-module(bench_overload).

-export([main/0]).
-export([receiver/2, echo/0]).

-define(SENDERS, 8).
%% ms
-define(BEFORE, 1000).
-define(STOPPED, 5000).
-define(SAMPLE, 20).
-define(STEP, 500).               % of the table of memory over time

-spec main() -> no_return().
main() ->
    bench:run(fun run/0).

run() ->
    {_, Node} = Peer = bench:start_peer([]),
    bench:say("~nOverload: ~b senders flood another node, which is stopped after ~b s for ~b s.~n"
              "~b rounds, each variant once a round.",
              [?SENDERS, ?BEFORE div 1000, ?STOPPED div 1000, bench:rounds()]),
    Measured =
        bench:in_turn([{V, fun() -> overload(V, Node) end} || V <- [stock, tuned, trunkline]]),
    bench:stop_peer(Peer),
    Figure = fun(Key) -> [{V, [maps:get(Key, M) || M <- Ms]} || {V, Ms} <- Measured] end,
    Results = [{Unit, [{Case, Figure(Key)}]} || {Key, Case, Unit} <- figures()],
    bench:say("", []),
    bench:overview([{Unit, Result} || {Unit, [Result]} <- Results]),
    Times = lists:seq(0, ?BEFORE + ?STOPPED + 1000, ?STEP),
    Memory = [{lists:concat(["memory of the sending node at ", T, " ms"]),
               [{V, [memory_at(T, Samples) || Samples <- Ss]} || {V, Ss} <- Figure(samples)]}
              || T <- Times],
    over_time(Times, Memory),
    bench:finish("overload", Results ++ [{"MB", Memory}], targets(maps:from_list(Measured))).

figures() ->
    [{growth, "memory of the sending node, most above rest", "MB"},
     {rate, "accepted before the stop", "messages/s"},
     {while_stopped, "accepted while stopped", "messages"},
     {ok, "one nosuspend send each ms, answered ok", "times"},
     {nosuspend, "one nosuspend send each ms, answered nosuspend", "times"},
     {longest, "one nosuspend send each ms, longest", "us"},
     {echoed, "SIGCONT until a message is answered", "ms"},
     {recovered, "SIGCONT until half the rate of before", "ms"},
     {missing, "accepted and not arrived", "messages"},
     {odd, "arrived out of order", "messages"}].

over_time(Times, Memory) ->
    bench:say("~nmemory of the sending node over time, MB above that at rest (medians)", []),
    lists:foreach(
      fun({T, {_, Variants}}) ->
              bench:say("  ~5.1f s ~ts  ~ts",
                        [T / 1000,
                         [io_lib:format("  ~ts ~8.1f", [V, float(bench:median(Values))])
                          || {V, Values} <- Variants],
                         if T < ?BEFORE -> "flood";
                            T < ?BEFORE + ?STOPPED -> "flood, the other node is stopped";
                            true -> "flood, it has continued"
                         end])
      end, lists:zip(Times, Memory)).

%% What Trunkline may keep: for each lane the queue, what is under way (and by
%% one batch more), and as much again in the distribution's buffers.
targets(#{trunkline := Ms}) ->
    {ok, #{lanes := Lanes, queue_bytes := Queue, window_bytes := Window, batch_bytes := Batch}} =
        trunkline_options:load(),
    Bounds = Lanes * (Queue + Window + Batch) / 1.0e6,
    Most = fun(Key) -> lists:max([maps:get(Key, M) || M <- Ms]) end,
    [bench:target("most growth of memory, MB (bounds and 32 MB)", at_most, round(Bounds + 32),
                  Most(growth)),
     bench:target("accepted and not arrived, all rounds", at_most, 0, Most(missing)),
     bench:target("arrived out of order, all rounds", at_most, 0, Most(odd))].

%% --- one measurement ----------------------------------------------------------------

overload(Variant, Node) ->
    bench:tune(Node, Variant),
    OsPid = erpc:call(Node, os, getpid, []),
    bench:collect_garbage([node()]),
    Rest = erlang:memory(total),
    Sent = counters:new(?SENDERS, []),
    Stop = atomics:new(1, []),
    Receivers =
        [erlang:spawn(Node, ?MODULE, receiver, [self(), 0]) || _ <- lists:seq(1, ?SENDERS + 1)],
    Echo = erlang:spawn(Node, ?MODULE, echo, []),
    Start = now_ms(),
    Sampler = spawn_opt(fun() -> sampler(Start, Rest, Sent, []) end, [link, {priority, max}]),
    [Tried | Flooded] = Receivers,
    _ = [spawn_link(fun() -> flood(Variant, To, 1, {Sent, Ix}, Stop) end)
         || {Ix, To} <- lists:zip(lists:seq(1, ?SENDERS), Flooded)],
    Self = self(),
    Trier = spawn_opt(fun() -> Self ! {self(), try_each_ms(Variant, Tried, Stop)} end,
                      [link, {priority, high}]),
    pause_until(Start + ?BEFORE),
    "" = os:cmd("kill -STOP " ++ OsPid),
    StoppedAt = now_ms() - Start,
    pause_until(Start + ?BEFORE + ?STOPPED),
    ContinuedAt = now_ms() - Start,
    "" = os:cmd("kill -CONT " ++ OsPid),
    Echoed = echoed(Variant, Echo),
    %% The flood goes on for at least a second, and ends when it has got going again.
    pause_until(Start + ?BEFORE + ?STOPPED + 1200),
    atomics:put(Stop, 1, 1),
    {Ok, NoSuspend, Longest} = receive {Trier, Tries} -> Tries end,
    Arrived =
        [receive {arrived, R, Received, Odd, Last} -> {Last - Received, Odd} end || R <- Receivers],
    Samples = samples(Sampler),
    Rate = rate(200, StoppedAt, Samples),
    #{growth => lists:max([M || {_, M, _} <- Samples]),
      samples => Samples,
      rate => Rate,
      while_stopped => sent_at(ContinuedAt, Samples) - sent_at(StoppedAt, Samples),
      ok => Ok, nosuspend => NoSuspend, longest => Longest,
      echoed => Echoed,
      recovered => recovered(Rate / 2, ContinuedAt, Samples) - ContinuedAt,
      missing => lists:sum([M || {M, _} <- Arrived]),
      odd => lists:sum([O || {_, O} <- Arrived])}.

flood(Variant, To, N, {Sent, Ix} = Count, Stop) ->
    case atomics:get(Stop, 1) of
        0 ->
            _ = send(Variant, To, {ping, N, 1}),
            counters:put(Sent, Ix, N),
            flood(Variant, To, N + 1, Count, Stop);
        1 ->
            send(Variant, To, {last, N - 1})
    end.

send(trunkline, To, Message) -> trunkline:send(To, Message);
send(_, To, Message) -> To ! Message.

%% {Ok, NoSuspend, Longest in us}
try_each_ms(Variant, To, Stop) -> try_each_ms(Variant, To, Stop, {0, 0, 0}).

try_each_ms(Variant, To, Stop, {Ok, NoSuspend, Longest}) ->
    case atomics:get(Stop, 1) of
        0 ->
            T0 = erlang:monotonic_time(microsecond),
            Answer = case Variant of
                         trunkline -> trunkline:send(To, {ping, Ok + 1, 1}, [nosuspend]);
                         _ -> erlang:send(To, {ping, Ok + 1, 1}, [nosuspend])
                     end,
            Longest1 = max(Longest, erlang:monotonic_time(microsecond) - T0),
            receive after 1 -> ok end,
            try_each_ms(Variant, To, Stop, case Answer of
                                               ok -> {Ok + 1, NoSuspend, Longest1};
                                               nosuspend -> {Ok, NoSuspend + 1, Longest1}
                                           end);
        1 ->
            _ = send(Variant, To, {last, Ok}),
            {Ok, NoSuspend, Longest}
    end.

%% ms until a message sent now is answered.
echoed(Variant, Echo) ->
    T0 = now_ms(),
    _ = send(Variant, Echo, {echo, self()}),
    receive {Echo, echo} -> now_ms() - T0 end.

-spec echo() -> ok.
echo() ->
    receive {echo, From} -> From ! {self(), echo}, ok end.

%% Counts what arrives, and what does not arrive in its order.
-spec receiver(pid(), non_neg_integer()) -> ok.
receiver(Parent, Before) -> receiver(Parent, Before, 0, 0).

receiver(Parent, Before, Received, Odd) ->
    receive
        {ping, N, 1} when N =:= Before + 1 -> receiver(Parent, N, Received + 1, Odd);
        {ping, N, 1} -> receiver(Parent, N, Received + 1, Odd + 1);
        {last, Last} -> Parent ! {arrived, self(), Received, Odd, Last}, ok
    end.

%% --- samples: [{ms since the start, MB above that at rest, messages accepted}] ------

sampler(Start, Rest, Sent, Samples) ->
    Total = lists:sum([counters:get(Sent, Ix) || Ix <- lists:seq(1, ?SENDERS)]),
    Sample = {now_ms() - Start, (erlang:memory(total) - Rest) / 1.0e6, Total},
    receive
        {samples, From} -> From ! {samples, lists:reverse([Sample | Samples])}
    after ?SAMPLE ->
            sampler(Start, Rest, Sent, [Sample | Samples])
    end.

samples(Sampler) ->
    Sampler ! {samples, self()},
    receive {samples, Samples} -> Samples end.

at(Time, Samples) ->
    case lists:takewhile(fun({T, _, _}) -> T =< Time end, Samples) of
        [] -> hd(Samples);
        Until -> lists:last(Until)
    end.

memory_at(Time, Samples) -> element(2, at(Time, Samples)).

sent_at(Time, Samples) -> element(3, at(Time, Samples)).

%% Messages a second between two points in time.
rate(From, To, Samples) ->
    {T1, _, N1} = at(From, Samples),
    {T2, _, N2} = at(To, Samples),
    (N2 - N1) * 1000 / max(1, T2 - T1).

%% When the rate over 100 ms is so high again.
recovered(Rate, After, Samples) ->
    case [T || {T, _, _} <- Samples, T > After + 100, rate(T - 100, T, Samples) >= Rate] of
        [T | _] -> T - 100;
        [] -> error({not_recovered, Rate})
    end.

now_ms() -> erlang:monotonic_time(millisecond).

pause_until(Time) ->
    receive after max(0, Time - now_ms()) -> ok end.
