%% What bench_distance lets a node do to another one, which may be far away.
%%
%% All of it lasts for a time and not for a number of messages: at first a
%% connection does not know yet what it can carry, so that what counts begins after a
%% while. Senders go on until all is measured, and end before the next measurement
%% starts.
-module(bench_site).
-behaviour(gen_server).

-export([small/4, calls/4, large/4, open_loop/4, tune/2, configure/1, disconnect/1, connect/1,
         settle/1]).
-export([start_counter/2, start_server/0, init/1, handle_call/3, handle_cast/2]).

-type how() :: '!' | trunkline.
%% ms that do not count, and ms that do
-type times() :: {Warm :: non_neg_integer(), Time :: pos_integer()}.

-define(PAIRS, 8).                      % of the open loop
-define(SERVERS, 8).
-define(LARGE_SENDERS, 2).
-define(CALL, 600_000).

%% --- one way ------------------------------------------------------------------

%% Messages a second: {ping, N, 1} from so many processes to as many others.
-spec small(how(), node(), pos_integer(), times()) -> float().
small(How, Node, Pairs, Times) ->
    {Counter, Receivers} = start_counting(Pairs, Node),
    Senders = [spawn_link(fun() -> send_small(How, R, 1) end) || R <- Receivers],
    Rate = count(Counter, Times),
    stop(How, Senders, Counter),
    Rate.

%% It looks for the end now and then: a receive for each message would cost as much as
%% the message.
send_small(How, To, N) when N rem 256 =:= 0 ->
    receive {stop, From} -> From ! {stopped, self()}
    after 0 -> send(How, To, {ping, N, 1}), send_small(How, To, N + 1)
    end;
send_small(How, To, N) ->
    send(How, To, {ping, N, 1}),
    send_small(How, To, N + 1).

%% MB a second: binaries of so many bytes, from two processes to two others, so many
%% from each: their number makes the time.
-spec large(how(), node(), pos_integer(), Each :: pos_integer()) -> float().
large(How, Node, Bytes, Each) ->
    {Counter, Receivers} = start_counting(?LARGE_SENDERS, Node),
    Binary = binary:copy(<<"x">>, Bytes),
    Start = erlang:monotonic_time(microsecond),
    Senders = [spawn_link(fun() ->
                                  _ = [send(How, R, Binary) || _ <- lists:seq(1, Each)],
                                  receive {stop, From} -> From ! {stopped, self()} end
                          end) || R <- Receivers],
    Counter ! {await, self(), ?LARGE_SENDERS * Each},
    receive {all, Counter} -> ok end,
    Time = erlang:monotonic_time(microsecond) - Start,
    stop(How, Senders, Counter),
    ?LARGE_SENDERS * Each * Bytes / Time.

send(trunkline, To, Message) ->
    _ = trunkline:send(To, Message),
    ok;
send('!', To, Message) ->
    _ = erlang:send(To, Message),
    ok.

stop(How, Senders, Counter) ->
    _ = [S ! {stop, self()} || S <- Senders],
    _ = [receive {stopped, S} -> unlink(S) end || S <- Senders],
    send(How, Counter, {stop, self()}),
    receive {stopped, Counter} -> ok end.

%% A process at the node that knows how much its receivers have got.
start_counting(N, Node) ->
    Counter = spawn(Node, ?MODULE, start_counter, [self(), N]),
    receive {receivers, Counter, Receivers} -> {Counter, Receivers} end.

start_counter(Parent, N) ->
    Count = counters:new(N, []),
    Receivers = [spawn_opt(fun() -> receiver(Count, I) end, [link, {message_queue_data, off_heap}])
                 || I <- lists:seq(1, N)],
    Parent ! {receivers, self(), Receivers},
    counter(Count, N).

receiver(Count, I) ->
    receive _ -> counters:add(Count, I, 1) end,
    receiver(Count, I).

counter(Count, N) ->
    receive
        {count, From, {Warm, Time}} ->
            timer:sleep(Warm),
            T0 = erlang:monotonic_time(microsecond),
            Before = sum(Count, N),
            timer:sleep(Time),
            After = sum(Count, N),
            From ! {rate, self(),
                    (After - Before) / (erlang:monotonic_time(microsecond) - T0) * 1.0e6},
            counter(Count, N);
        {await, From, Number} ->
            await(Count, N, Number),
            From ! {all, self()},
            counter(Count, N);
        {stop, From} ->
            From ! {stopped, self()},
            exit(shutdown)
    end.

sum(Count, N) -> lists:sum([counters:get(Count, I) || I <- lists:seq(1, N)]).

await(Count, N, Number) ->
    sum(Count, N) >= Number orelse (timer:sleep(1) =:= ok andalso await(Count, N, Number)).

count(Counter, Times) ->
    Counter ! {count, self(), Times},
    receive {rate, Counter, Rate} -> Rate end.

%% --- calls ---------------------------------------------------------------------

%% Calls a second to eight servers, with so many outstanding.
-spec calls(how(), node(), Callers :: pos_integer(), times()) -> float().
calls(How, Node, Callers, {Warm, Time}) ->
    Servers = [erpc:call(Node, ?MODULE, start_server, []) || _ <- lists:seq(1, ?SERVERS)],
    Count = counters:new(1, [write_concurrency]),
    Pids = [spawn_monitor(fun() -> caller(How, lists:nth(I rem ?SERVERS + 1, Servers), Count) end)
            || I <- lists:seq(1, Callers)],
    timer:sleep(Warm),
    T0 = erlang:monotonic_time(microsecond),
    Before = counters:get(Count, 1),
    timer:sleep(Time),
    Calls = counters:get(Count, 1) - Before,
    Rate = Calls / (erlang:monotonic_time(microsecond) - T0) * 1.0e6,
    %% After the reply that it is waiting for, so that nothing is left over.
    counters:put(Count, 1, -1 bsl 60),
    _ = [receive {'DOWN', Ref, process, Pid, normal} -> ok end || {Pid, Ref} <- Pids],
    _ = [exit(S, kill) || S <- Servers],
    Rate.

caller(How, Server, Count) ->
    ok = case How of
             trunkline -> trunkline:call(Server, echo, ?CALL);
             _ -> gen_server:call(Server, echo, ?CALL)
         end,
    counters:add(Count, 1, 1),
    counters:get(Count, 1) >= 0 andalso caller(How, Server, Count).

start_server() ->
    {ok, Pid} = gen_server:start(?MODULE, [], []),
    Pid.

init([]) -> {ok, state}.
handle_call(echo, _, S) -> {reply, ok, S}.
handle_cast(_, S) -> {noreply, S}.

%% --- open loop -----------------------------------------------------------------

%% So many messages a second are due, whether the ones before have gone or not; how
%% many us after that each arrived: [p50, p99, p99.9, longest]. Both nodes read the
%% clock of the same machine.
-spec open_loop(how(), node(), Rate :: pos_integer(), times()) -> [number()].
open_loop(How, Node, Rate, {Warm, Time}) ->
    Self = self(),
    Each = Rate div ?PAIRS,
    Receivers = [spawn(Node, fun() -> late(Self, #{}) end) || _ <- lists:seq(1, ?PAIRS)],
    Start = os:system_time(microsecond) + 20_000,
    Senders = [spawn_link(fun() ->
                                  due(How, R, Start, 0, Each, Each * (Warm + Time) div 1000,
                                      Warm * 1000)
                          end)
               || R <- Receivers],
    Late = lists:foldl(fun(R, Sum) ->
                               receive
                                   {late, R, L} ->
                                       maps:merge_with(fun(_, A, B) -> A + B end, Sum, L)
                               end
                       end, #{}, Receivers),
    _ = [unlink(S) || S <- Senders],
    Sorted = lists:keysort(1, maps:to_list(Late)),
    Total = lists:sum([N || {_, N} <- Sorted]),
    [quantile(Total * Q, Sorted) || Q <- [0.5, 0.99, 0.999]] ++ [element(1, lists:last(Sorted))].

%% A message that is due is sent; then the process looks at the clock again.
due(How, To, Start, N, Each, Last, Warm) ->
    Elapsed = os:system_time(microsecond) - Start,
    Now = min(Last, Elapsed * Each div 1_000_000),
    send_due(How, To, Start, N, Now, Each, Warm),
    case Now < Last of
        true -> timer:sleep(1), due(How, To, Start, max(N, Now), Each, Last, Warm);
        false -> send(How, To, last)
    end.

%% One in sixteen is looked at: to look costs more than the message.
send_due(How, To, Start, N, Now, Each, Warm) when N < Now ->
    case N band 15 of
        0 -> After = N * 1_000_000 div Each,
             send(How, To, {due, Start + After, After >= Warm});
        _ -> send(How, To, {ping, N, 1})
    end,
    send_due(How, To, Start, N + 1, Now, Each, Warm);
send_due(_, _, _, _, _, _, _) ->
    ok.

%% Counted in steps of 100 us.
late(Parent, Late) ->
    receive
        {ping, _, _} ->
            late(Parent, Late);
        {due, Time, true} ->
            Step = (os:system_time(microsecond) - Time) div 100 * 100,
            late(Parent, Late#{Step => maps:get(Step, Late, 0) + 1});
        {due, _, false} ->
            late(Parent, Late);
        last ->
            Parent ! {late, self(), Late}
    end.

quantile(_, [{Value, _}]) -> Value;
quantile(Rank, [{Value, N} | _]) when Rank =< N -> Value;
quantile(Rank, [{_, N} | Rest]) -> quantile(Rank - N, Rest).

%% --- the connection --------------------------------------------------------------

%% Trunkline with these settings, and defaults else, on this node.
-spec configure([{atom(), term()}]) -> ok.
configure(Env) ->
    ok = logger:set_primary_config(level, none),           % "stopped", and what it cost
    _ = application:stop(trunkline),
    _ = application:load(trunkline),
    lists:foreach(fun({Key, _}) -> application:unset_env(trunkline, Key) end,
                  application:get_all_env(trunkline)),
    lists:foreach(fun({Key, Value}) -> application:set_env(trunkline, Key, Value) end, Env),
    {ok, _} = application:ensure_all_started(trunkline),
    %% Not that the other side's stop has cost something.
    logger:set_primary_config(level, error).

-spec disconnect(node()) -> ok.
disconnect(Node) ->
    _ = net_kernel:disconnect(Node),
    await(fun() -> nodes() =:= [] end),
    ok.

%% A new connection. Trunkline is up, knows how far it is, and has ready what it needs for that.
-spec connect(node()) -> ok.
connect(Node) ->
    true = net_kernel:connect_node(Node),
    bench:await_up(node(), Node),
    await(fun() ->
                  is_known(trunkline:info(Node))
                      andalso is_known(erpc:call(Node, trunkline, info, [node()]))
          end),
    ok.

is_known(#{round_trip := undefined}) -> false;
is_known(#{round_trip := Time, batches := #{connections := N}}) ->
    N > 0 orelse not trunkline_distance:is_far(Time).

await(Fun) -> Fun() orelse (timer:sleep(10) =:= ok andalso await(Fun)).

-spec tune(node(), bench:variant()) -> ok.
tune(Node, Variant) -> bench:tune(Node, Variant).

%% Nothing of the last measurement is under way any more, and nobody holds its binaries.
-spec settle(node()) -> ok.
settle(Node) ->
    _ = [erpc:call(Node, erlang, node, []) || _ <- lists:seq(1, 2)],
    bench:collect_garbage([node(), Node]).
