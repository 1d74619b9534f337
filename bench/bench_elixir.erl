%% Elixir's own building blocks between two nodes, as they are and adopted: make real.
%%
%% The operations are those of bench/real/elixir/lib/blocks.ex: processes of one node do them with
%% servers, agents, tasks and subscribers of the other one.
%%
%%     GenServer.call         one server, which answers
%%     GenServer.cast         one server. A call after each 100 casts asks for the last one, and so
%%                            there are never more of them under way
%%     Task.Supervisor.async  Task.await of a function at the other node
%%     Registry.dispatch      a call of a server that looks up a name in its node's Registry, and
%%                            lets the process that has the name answer
%%     Agent                  an update of a map, and a get of what has been put there
%%     PubSub.broadcast       to 10 subscribers, which answer after each 100 broadcasts. Stock, with
%%                            what Phoenix.PubSub.PG2 does; adopted, with Trunkline's adapter
%%
%% First it is counted how many operations of each kind are right. Kinds of which some are not, in
%% one of the variants, are measured no further, and the command fails at the end. Then the rates
%% are measured. At last Trunkline stops and starts on either node while all operations are under
%% way at the same time.
-module(bench_elixir).

-export([main/0]).
-export([wrong/2, load/2, start_workers/2, progress/1, stop_workers/1]).

-define(BLOCKS, 'Elixir.Blocks').
-define(EACH, 20).                % operations of each process, to see whether they are right
-define(PROGRESS, 20).            % the same between two faults
-define(DEADLINE, 50_000).        % below that of bench_adopted:call/4

%% Processes do `per' things at a time with one call of this function.
-type operation() :: #{function := atom(), processes := pos_integer(), per := pos_integer()}.

-spec main() -> no_return().
main() ->
    bench:run(fun run/0).

run() ->
    bench:say("~nElixir ~ts, two nodes; ~b rounds. p50 and p99 of casts and of broadcasts are~n"
              "those of ~b of them, with the answer.",
              [version(), bench:rounds(), ?BLOCKS:window()]),
    Pairs = [{Variant, pair(Variant)} || Variant <- bench_adopted:variants()],
    Right = [{Case, [{Variant, [right(Case, Operation, Variant, Pair)]}
                     || {Variant, Pair} <- Pairs]}
             || {Case, Operation} <- cases()],
    bench:say("", []),
    bench:overview([{"% right", Result} || Result <- Right]),
    {Sound, Unsound} = lists:partition(fun({Case, _}) -> is_right(Case, Right) end, cases()),
    Cases = [{Case, measure(Operation, Pairs)} || {Case, Operation} <- Sound],
    ok = bench_adopted:tables(Cases),
    [_, _] = Adopted = proplists:get_value(adopted, Pairs),
    Done = faults([Operation || {_, Operation} <- Sound], Adopted),
    bench:say("~nTrunkline stopped and started under load, ~b times; all of ~b operations were "
              "right", [2 * bench:rounds(), Done]),
    _ = [bench_adopted:stop(Node) || {_, Pair} <- Pairs, Node <- Pair],
    bench:finish("elixir", [{"% right", Right} | bench_adopted:results(Cases)], []),
    Unsound =:= [] orelse error({not_right, [Case || {Case, _} <- Unsound]}),
    ok.

version() ->
    {ok, _} = application:ensure_all_started(elixir),
    'Elixir.System':version().

cases() ->
    Window = ?BLOCKS:window(),
    [{"GenServer.call", #{function => call, processes => 100, per => 1}},
     {"GenServer.cast", #{function => casts, processes => 8, per => Window}},
     {"Task.Supervisor.async", #{function => task, processes => 50, per => 1}},
     {"Registry.dispatch", #{function => registry, processes => 100, per => 1}},
     {"Agent.update and get", #{function => agent, processes => 100, per => 2}},
     {"PubSub.broadcast", #{function => broadcasts, processes => 8, per => Window}}].

%% --- nodes ------------------------------------------------------------------------

pair(Variant) ->
    [A, #{node := Node} = B] = Pair = [start(Variant, IsOther) || IsOther <- [false, true]],
    true = call(A, net_kernel, connect_node, [Node]),
    ok = bench_adopted:await(A, B),
    ok = bench:poll(fun() -> length(members(A)) =:= 2 end, ?DEADLINE),
    Pair.

start(Variant, HasSubscribers) ->
    Name = peer:random_name(lists:concat(["elixir_", Variant])),
    Started = bench_adopted:start(Variant, Name, [elixir, blocks]),
    {ok, _} = call(Started, application, ensure_all_started, [blocks]),
    ok = call(Started, ?BLOCKS, start, [adapter(Variant), HasSubscribers]),
    Started.

adapter(stock) -> 'Elixir.Phoenix.PubSub.PG2';
adapter(adopted) -> 'Elixir.Trunkline.PubSub'.

%% PubSub broadcasts to the nodes that it has heard of.
members(Node) ->
    call(Node, pg, get_members, ['Elixir.Phoenix.PubSub', 'Elixir.Blocks.PubSub.Adapter']).

call(Node, M, F, Args) -> bench_adopted:call(Node, M, F, Args).

%% --- right ------------------------------------------------------------------------

%% In percent.
right(Case, #{processes := Processes} = Operation, Variant, [A, #{node := Other}]) ->
    Wrong = call(A, ?MODULE, wrong, [Operation, Other]),
    _ = [bench:say("~n~ts, ~s: ~0P", [Case, Variant, Why, 30]) || Why <- lists:sublist(Wrong, 1)],
    100 * (1 - length(Wrong) / (Processes * ?EACH)).

is_right(Case, Right) ->
    {Case, Variants} = lists:keyfind(Case, 1, Right),
    lists:all(fun({_, [Percent]}) -> Percent == 100 end, Variants).

%% At a node: in what way operations were not right.
-spec wrong(operation(), node()) -> [term()].
wrong(#{processes := Processes} = Operation, Other) ->
    Self = self(),
    Do = fun(I, N) ->
                 try N = do(Operation, Other, I, N)
                 catch Class:Reason -> Self ! {wrong, {Class, Reason}}, N
                 end
         end,
    _ = bench:calls(Processes, ?EACH, Do),
    wrong().

wrong() ->
    receive {wrong, Why} -> [Why | wrong()]
    after 0 -> []
    end.

do(#{function := Function}, Other, I, N) -> ?BLOCKS:Function(Other, I, N).

%% --- rates ------------------------------------------------------------------------

measure(Operation, Pairs) ->
    bench_adopted:measure(fun(N, Pair) -> rate(Operation, N, Pair) end, Pairs).

rate(#{processes := Processes, per := Per} = Operation, N, [A, #{node := Other}] = Pair) ->
    Each = max(1, N div (Processes * Per)),
    Load = fun() -> call(A, ?MODULE, load, [Operation#{each => Each}, Other]) end,
    bench_adopted:with_cost(Load, Processes * Per * Each, Pair).

%% At a node. What is measured fails if it is not right.
-spec load(#{each := pos_integer(), _ => _}, node()) -> [number()].
load(#{processes := Processes, per := Per, each := Each} = Operation, Other) ->
    [Rate | Latencies] =
        bench:calls(Processes, Each, fun(I, N) -> do(Operation, Other, I, N) end),
    [Per * Rate | Latencies].

%% --- faults -----------------------------------------------------------------------

%% How many operations were done.
faults(Operations, [A, #{node := Other} = B]) ->
    Workers = call(A, ?MODULE, start_workers, [Operations, Other]),
    _ = [begin
             ok = call(Node, application, stop, [trunkline]),
             ok = call(A, ?MODULE, progress, [Workers]),
             ok = call(Node, application, start, [trunkline]),
             ok = bench_adopted:await(A, B),
             ok = call(A, ?MODULE, progress, [Workers])
         end || _ <- lists:seq(1, bench:rounds()), Node <- [A, B]],
    call(A, ?MODULE, stop_workers, [Workers]).

%% At the node of those that do the operations.
-spec start_workers([operation()], node()) -> [pid()].
start_workers(Operations, Other) ->
    [spawn(fun() -> worker(fun(N) -> N = do(Operation, Other, I, N) end, Per, 0) end)
     || #{processes := Processes, per := Per} = Operation <- Operations,
        I <- lists:seq(1, Processes)].

worker(Do, Per, Done) ->
    receive
        {progress, From} ->
            _ = [Do(N) || N <- lists:seq(Done + 1, Done + ?PROGRESS)],
            From ! {progressed, self()},
            worker(Do, Per, Done + ?PROGRESS);
        {stop, From} ->
            From ! {stopped, self(), Done * Per}
    after 0 ->
            _ = Do(Done + 1),
            worker(Do, Per, Done + 1)
    end.

%% Each of them does so much more.
-spec progress([pid()]) -> ok.
progress(Workers) ->
    lists:foreach(fun({Worker, Monitor}) ->
                          receive
                              {progressed, Worker} -> demonitor(Monitor, [flush]);
                              {'DOWN', Monitor, _, _, Why} -> error({failed, Why})
                          after ?DEADLINE -> error({no_progress, process_info(Worker)})
                          end
                  end, told(progress, Workers)).

-spec stop_workers([pid()]) -> Done :: non_neg_integer().
stop_workers(Workers) ->
    lists:sum([receive
                   {stopped, Worker, Done} -> demonitor(Monitor, [flush]), Done;
                   {'DOWN', Monitor, _, _, Why} -> error({failed, Why})
               after ?DEADLINE -> error({no_end, process_info(Worker)})
               end || {Worker, Monitor} <- told(stop, Workers)]).

told(What, Workers) ->
    [begin
         Monitor = monitor(process, Worker),
         Worker ! {What, self()},
         {Worker, Monitor}
     end || Worker <- Workers].
