%% mnesia with a table in the memory of two nodes, as it is and adopted: make real.
%%
%% Each variant has two nodes of its own, which run all the time, so that they can be measured in
%% turn. Ten processes of the first node each write keys of their own:
%%
%%     dirty writes     mnesia:dirty_write/1. The last one of each process waits until the other
%%                      node has it, so that all that was written counts as written there.
%%     synchronous      mnesia:sync_dirty/1 with one write
%%     transactions     mnesia:transaction/1 with one write
%%     reads            mnesia:dirty_read/1 of a table that only the other node has
%%
%% After each measurement both nodes must have the same table. At the end one of the nodes is killed
%% while they are written to, and starts again: first the one that only has the replica, then the
%% one with the writers. Both tables must be the same then, and each synchronous transaction that
%% was done must be in them.
-module(bench_mnesia).

-export([main/0]).
-export([start_mnesia/0, join/1, load/2, content/0, missing/1, forget/1,
         start_writers/1]).

-define(WRITERS, 10).
-define(KEYS, 1000).              % of each writer
-define(BYTES, 100).
-define(DEADLINE, 60_000).
-define(PROGRESS, 500).           % transactions between two faults

-record(entry, {key, value}).

-spec main() -> no_return().
main() ->
    bench:run(fun run/0).

run() ->
    bench:say("~nmnesia, a table at two nodes, ~b processes with values of ~b B; ~b rounds",
              [?WRITERS, ?BYTES, bench:rounds()]),
    Pairs = [{Variant, pair(Variant)} || Variant <- bench_adopted:variants()],
    Cases = [measure(Case, Kind, Pairs) || {Case, Kind} <- cases()],
    {Done, PairsNow} = lists:mapfoldl(fun(_, Now) -> all_faults(Now) end, Pairs,
                                      lists:seq(1, bench:rounds())),
    bench:say("~nnodes that were killed under load and started again: ~b; after each the tables "
              "were the same,~nwith all that these numbers of synchronous transactions had "
              "written: ~0p",
              [4 * bench:rounds(), lists:append(Done)]),
    _ = [bench_adopted:stop(Node) || {_, Pair} <- PairsNow, Node <- Pair],
    bench:finish("mnesia", bench_adopted:results(Cases), []).

all_faults(Pairs) ->
    lists:unzip([begin
                     {Done, New} = faults(Pair),
                     {{Variant, Done}, {Variant, New}}
                 end || {Variant, Pair} <- Pairs]).

cases() ->
    [{"dirty writes", dirty}, {"synchronous writes", sync}, {"transactions", transaction},
     {"reads of the other node's table", read}].

%% --- nodes ------------------------------------------------------------------------

pair(Variant) ->
    [A, #{node := Node} = B] = Pair =
        [start(Variant, peer:random_name(lists:concat(["mnesia_", Variant]))) || _ <- [1, 2]],
    {ok, [_]} = call(A, mnesia, change_config, [extra_db_nodes, [Node]]),
    ok = bench_adopted:await(A, B),
    {atomic, ok} = call(A, mnesia, create_table, [entry, table(Pair)]),
    {atomic, ok} = call(A, mnesia, create_table, [elsewhere, [{record_name, entry} | table([B])]]),
    ok = call(B, mnesia, dirty_write, [elsewhere, #entry{key = 1, value = value()}]),
    Pair.

table(Nodes) ->
    [{ram_copies, [Node || #{node := Node} <- Nodes]},
     {attributes, record_info(fields, entry)}].

start(Variant, Name) ->
    Started = bench_adopted:start(Variant, Name, [{otp, mnesia}]),
    ok = call(Started, ?MODULE, start_mnesia, []),
    Started.

call(Node, M, F, Args) -> bench_adopted:call(Node, M, F, Args).

%% At the node. Its schema is in memory, too.
-spec start_mnesia() -> ok.
start_mnesia() ->
    ok = application:load(mnesia),
    ok = application:set_env(mnesia, schema_location, ram),
    ok = application:set_env(mnesia, dump_log_write_threshold, 100_000),
    mnesia:start().

%% A node that has been killed comes back.
-spec join(node()) -> ok.
join(Other) ->
    {ok, [Other]} = mnesia:change_config(extra_db_nodes, [Other]),
    ok = mnesia:wait_for_tables([entry], ?DEADLINE).

%% --- rates ------------------------------------------------------------------------

measure(Case, Kind, Pairs) ->
    bench_adopted:measure(Case, fun(N, Pair) -> rate(Kind, N, Pair) end, Pairs).

rate(Kind, N, [A, _] = Pair) ->
    Each = N div ?WRITERS,
    Figures = bench_adopted:with_cost(fun() -> call(A, ?MODULE, load, [Kind, Each]) end,
                                      ?WRITERS * Each, Pair),
    ok = same(Pair),
    Figures.

same(Pair) ->
    case [call(Node, ?MODULE, content, []) || Node <- Pair] of
        [Same, Same] -> ok;
        [Here, There] -> {error, {different, Here, There}}
    end.

%% At a node.
-spec content() -> {Size :: non_neg_integer(), Hash :: non_neg_integer()}.
content() ->
    All = lists:sort(ets:tab2list(entry)),
    {length(All), erlang:phash2(All, 1 bsl 32)}.

-spec load(dirty | sync | transaction | read, pos_integer()) -> [number()].
load(Kind, Each) ->
    Value = value(),
    bench:calls(?WRITERS, Each, fun(I, N) -> do(Kind, {I, N rem ?KEYS}, Each, N, Value) end).

do(read, _, _, N, _) ->
    [_] = mnesia:dirty_read(elsewhere, 1),
    N;
do(dirty, Key, Each, N, Value) when N > 1, N =< Each ->
    ok = mnesia:dirty_write(#entry{key = Key, value = [N | Value]}),
    N;
do(transaction, Key, _, N, Value) ->
    {atomic, ok} = mnesia:transaction(fun() -> write(Key, N, Value) end),
    N;
%% And the last one of dirty writes: bench:calls/3 counts down.
do(_, Key, _, N, Value) ->
    ok = mnesia:sync_dirty(fun() -> write(Key, N, Value) end),
    N.

write(Key, N, Value) -> mnesia:write(#entry{key = Key, value = [N | Value]}).

value() -> binary:copy(<<"x">>, ?BYTES).

%% --- faults -----------------------------------------------------------------------

%% How many synchronous transactions were done. The nodes' names are the same afterwards.
faults(Pair) ->
    {Replica, Pair1} = replica_killed(Pair),
    {Writer, Pair2} = writer_killed(Pair1),
    {Replica + Writer, Pair2}.

replica_killed([A, B]) ->
    Writers = writers(A),
    Done = done(?PROGRESS, []),
    ok = kill(B),
    Done1 = done(?PROGRESS, Done),
    Pair = [A, again(B, A)],
    Done2 = stopped(Writers, done(?PROGRESS, Done1)),
    {equal(Pair, Done2), Pair}.

writer_killed([A, B]) ->
    _ = writers(A),
    Done = done(?PROGRESS, []),
    ok = kill(A),
    Done1 = done(0, Done),
    [] = call(B, ?MODULE, missing, [Done1]),
    Pair = [A1, _] = [again(A, B), B],
    Writers = writers(A1),
    Done2 = stopped(Writers, done(?PROGRESS, Done1)),
    {equal(Pair, Done2), Pair}.

kill(#{pid := Pid, name := Name}) ->
    _ = os:cmd("kill -KILL " ++ Pid),
    bench:poll(fun() ->
                       {ok, Names} = erl_epmd:names(),
                       not lists:keymember(Name, 1, Names)
               end, ?DEADLINE).

again(#{variant := Variant, name := Name}, #{node := Other} = Survivor) ->
    Started = start(Variant, Name),
    ok = call(Started, ?MODULE, join, [Other]),
    ok = bench_adopted:await(Started, Survivor),
    Started.

%% The same tables, with all that these transactions have written.
equal(Pair, Done) ->
    ok = same(Pair),
    _ = [[] = call(Node, ?MODULE, missing, [Done]) || Node <- Pair],
    ok = call(hd(Pair), ?MODULE, forget, [Done]),
    length(Done).

%% At a node.
-spec missing([Key]) -> [Key].
missing(Keys) -> [Key || Key <- Keys, not ets:member(entry, Key)].

-spec forget([term()]) -> ok.
forget(Keys) ->
    lists:foreach(fun(Key) -> ok = mnesia:sync_dirty(fun() -> delete(Key) end) end, Keys).

delete(Key) -> mnesia:delete({entry, Key}).

writers(Node) -> call(Node, ?MODULE, start_writers, [self()]).

-spec start_writers(pid()) -> [pid()].
start_writers(Test) ->
    [spawn(fun() -> writer(Test, {erlang:system_time(), I}, 1) end)
     || I <- lists:seq(1, ?WRITERS)].

%% Dirty writes of its own keys, and one transaction after every ten of them. What is refused while
%% the other node goes or comes does not count.
writer(Test, Me, N) ->
    receive
        stop ->
            ok = mnesia:sync_dirty(fun() -> write(Me, N, []) end),
            Test ! {stopped, self()}
    after 0 ->
            _ = [try mnesia:dirty_write(#entry{key = {Me, K}, value = [N | value()]})
                 catch exit:{aborted, _} -> refused
                 end || K <- lists:seq(1, 10)],
            Key = {transaction, Me, N},
            case mnesia:sync_transaction(fun() -> write(Key, N, []) end) of
                {atomic, ok} -> Test ! {done, Key};
                {aborted, _} -> refused
            end,
            writer(Test, Me, N + 1)
    end.

%% So many more, and all that have come.
done(0, Done) ->
    receive {done, Key} -> done(0, [Key | Done])
    after 0 -> Done
    end;
done(N, Done) ->
    receive {done, Key} -> done(N - 1, [Key | Done])
    after ?DEADLINE -> error(no_progress)
    end.

stopped(Writers, Done) ->
    _ = [Writer ! stop || Writer <- Writers],
    _ = [receive {stopped, Writer} -> ok after ?DEADLINE -> error(no_end) end || Writer <- Writers],
    done(0, Done).
