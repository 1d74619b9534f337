%% trunkline_rpc does what rpc does. One table runs with both modules: against a node with
%% Trunkline, against one without, and against the node itself; both must end the same way,
%% and as the table says. Then: what is called comes after what was sent, and goes by lane.
-module(rpc_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2]).
-export([calls/1, failures/1, timeouts/1, casts/1, servers/1, multicalls/1, keys/1,
         everywhere/1]).
-export([by_lane/1, order/1, odd_arguments/1]).
%% What is executed.
-export([fail/1, tell/2, answer/1, count/1]).

%% ms: longer than a case takes.
-define(LONG, 600_000).
-define(NOWHERE, 'no_such_node@localhost').
%% Something that a case ends with.
-define(is(Pattern), fun(Pattern) -> true; (_) -> false end).

suite() -> [{timetrap, {minutes, 5}}].

all() -> [{group, local}, {group, plain}, {group, lanes}, by_lane, order, odd_arguments].

groups() ->
    Cases = [calls, failures, timeouts, casts, servers, multicalls, keys, everywhere],
    [{local, [], Cases}, {plain, [], Cases}, {lanes, [], Cases}].

init_per_suite(Config0) ->
    Config = comparison:start(Config0),
    [begin
         cluster:call(Node, logger, set_primary_config, [level, none]),
         true = cluster:call(Node, fun() -> register(server, spawn(?MODULE, answer, [#{}])) end)
     end || Node <- comparison:all(Config)],
    Config.

end_per_suite(Config) -> comparison:stop(Config).

init_per_group(Group, Config) -> comparison:init_per_group(Group, Config).

end_per_group(_, _) -> ok.

table(Config, Rows) -> comparison:table({rpc, trunkline_rpc}, Config, Rows).

calls(Config) ->
    table(Config,
          [{{Call, Args}, fun(R, N) -> apply(R, Call, [N, lists, sum, [[1, 2]] | Args]) end,
            ?is({ok, 3})}
           || Call <- [call, block_call], Args <- [[], [infinity], [?LONG]]]
          ++ [{{Call, Value}, fun(R, N) -> R:Call(N, lists, last, [[Value]]) end, ?is({ok, _})}
              || Call <- [call, block_call],
                 Value <- [{badrpc, x}, {'EXIT', x}, {error, {erpc, timeout}}, {ok, 1}, []]]
          ++ [{executor, fun(R, N) -> node(R:call(N, erlang, self, [])) =:= N end, ?is({ok, true})},
              {blocking,
               fun(R, N) ->
                       R:block_call(N, erlang, process_info, [whereis(rex), registered_name])
               end, ?is({ok, _})},
              {nowhere, fun(R, _) -> R:call(?NOWHERE, erlang, node, []) end,
               ?is({ok, {badrpc, nodedown}})},
              {blocked_nowhere, fun(R, _) -> R:block_call(?NOWHERE, erlang, node, []) end,
               ?is({ok, {badrpc, nodedown}})},
              {blocked_nowhere_in_time,
               fun(R, _) -> R:block_call(?NOWHERE, erlang, node, [], ?LONG) end,
               ?is({ok, {badrpc, nodedown}})}]).

failures(Config) ->
    table(Config,
          [{{Call, What}, fun(R, N) -> apply(R, Call, [N, ?MODULE, fail, [What] | Time]) end, Is}
           || Call <- [call, block_call], Time <- [[], [?LONG]],
              {What, Is} <-
                  [{throw, ?is({ok, thrown})},
                   {throw_exit, ?is({ok, {badrpc, {'EXIT', thrown}}})},
                   {exit, ?is({ok, {badrpc, {'EXIT', exited}}})},
                   {error, ?is({ok, {badrpc, {'EXIT', {reason, [{?MODULE, fail, 1, _} | _]}}}})},
                   {bif, ?is({ok, {badrpc, {'EXIT', {badarg, [_ | _]}}}})}]]
          ++ [{{Call, undef}, fun(R, N) -> R:Call(N, no_such_module, f, [1]) end,
               ?is({ok, {badrpc, {'EXIT', {undef, [{no_such_module, f, [1], []} | _]}}}})}
              || Call <- [call, block_call]]
          ++ [{killed, fun(R, N) -> R:call(N, ?MODULE, fail, [kill], ?LONG) end,
               ?is({ok, {badrpc, {'EXIT', killed}}})}]).

timeouts(Config) ->
    table(Config,
          [{call, fun(R, N) -> R:call(N, timer, sleep, [?LONG], 20) end,
            ?is({ok, {badrpc, timeout}})},
           {zero, fun(R, N) -> R:call(N, timer, sleep, [?LONG], 0) end,
            ?is({ok, {badrpc, timeout}})},
           {blocked, fun(R, N) -> R:block_call(N, timer, sleep, [300], 20) end,
            ?is({ok, {badrpc, timeout}})},
           {multicall, fun(R, N) -> R:multicall([N], timer, sleep, [?LONG], 20) =:= {[], [N]} end,
            ?is({ok, true})},
           {nb_yield,
            fun(R, N) ->
                    Key = R:async_call(N, timer, sleep, [?LONG]),
                    Given = {R:nb_yield(Key), R:nb_yield(Key, 20)},
                    forget(Key),
                    Given
            end, ?is({ok, {timeout, timeout}})}]).

%% A key cannot be given up, by either module.
forget(Key) ->
    try trunkline_erpc:receive_response(Key, 0)
    catch error:{erpc, timeout} -> ok
    end.

casts(Config) ->
    table(Config,
          [{cast,
            fun(R, N) -> {R:cast(N, ?MODULE, tell, [self(), hello]), receive hello -> ok end} end,
            ?is({ok, {true, ok}})},
           {cast_nowhere, fun(R, _) -> R:cast(?NOWHERE, erlang, node, []) end, ?is({ok, true})},
           {abcast,
            fun(R, N) ->
                    {R:abcast([N, ?NOWHERE, "no node"], server, {tell, self(), hello}),
                     receive hello -> ok end}
            end, ?is({ok, {abcast, ok}})},
           {abcast_to_none, fun(R, N) -> R:abcast([N], no_such_name, hello) end, ?is({ok, abcast})},
           {sbcast,
            fun(R, N) ->
                    Nodes = R:sbcast([N, ?NOWHERE, "no node"], server, {tell, self(), hello}),
                    receive hello -> Nodes =:= {[N], [?NOWHERE]} end
            end, ?is({ok, true})},
           {sbcast_to_none, fun(R, N) -> R:sbcast([N], no_such_name, x) =:= {[], [N]} end,
            ?is({ok, true})}]).

%% These speak to rpc's servers: they take {From, Message}, and answer {Name, Node, Reply}.
servers(Config) ->
    table(Config,
          [{server_call, fun(R, N) -> R:server_call(N, server, server, {double, 4}) end,
            ?is({ok, 8})},
           {server_call_to_none, fun(R, N) -> R:server_call(N, no_such_name, server, x) end,
            ?is({ok, {error, nodedown}})},
           {server_call_nowhere, fun(R, _) -> R:server_call(?NOWHERE, server, server, x) end,
            ?is({ok, {error, nodedown}})},
           {server_call_of_rex,
            fun(R, N) -> R:server_call(N, rex, rex, {sbcast, no_such_name, x}) end,
            ?is({ok, {nonexisting_name, no_such_name}})},
           {multi_server_call_twice,
            fun(R, N) ->
                    {[Second, First], []} = R:multi_server_call([N, N], server, count),
                    Second > First
            end, ?is({ok, true})},
           {multi_server_call,
            fun(R, N) -> R:multi_server_call([?NOWHERE, N, "no node"], server, {double, 4}) end,
            ?is({ok, {[8], [?NOWHERE]}})},
           {multi_server_call_to_none,
            fun(R, N) -> R:multi_server_call([N], no_such_name, x) =:= {[], [N]} end,
            ?is({ok, true})}]).

multicalls(Config) ->
    Plain = cluster:node_of(?config(plain, Config)),
    table(Config,
          [{nodes,
            fun(R, N) ->
                    R:multicall([N, ?NOWHERE, Plain], erlang, node, [])
                        =:= {[N, Plain], [?NOWHERE]}
            end, ?is({ok, true})},
           {none, fun(R, _) -> R:multicall([], erlang, node, []) end, ?is({ok, {[], []}})},
           {failed, fun(R, N) -> R:multicall([N, N], ?MODULE, fail, [exit], ?LONG) end,
            ?is({ok, {[{badrpc, {'EXIT', exited}}, {badrpc, {'EXIT', exited}}], []}})},
           {thrown, fun(R, N) -> R:multicall([N], ?MODULE, fail, [throw_exit], ?LONG) end,
            ?is({ok, {[{badrpc, {'EXIT', thrown}}], []}})}]).

keys(Config) ->
    table(Config,
          [{yield, fun(R, N) -> R:yield(R:async_call(N, lists, sum, [[1, 2]])) end, ?is({ok, 3})},
           {of_rpc, fun(R, N) -> R:yield(rpc:async_call(N, lists, sum, [[1, 2]])) end,
            ?is({ok, 3})},
           {nb_yield, fun(R, N) -> R:nb_yield(R:async_call(N, lists, sum, [[1, 2]]), ?LONG) end,
            ?is({ok, {value, 3}})},
           {nb_yield_infinity,
            fun(R, N) -> R:nb_yield(R:async_call(N, lists, sum, [[1, 2]]), infinity) end,
            ?is({ok, {value, 3}})},
           {failed, fun(R, N) -> R:yield(R:async_call(N, ?MODULE, fail, [exit])) end,
            ?is({ok, {badrpc, {'EXIT', exited}}})},
           {failed_nb, fun(R, N) -> R:nb_yield(R:async_call(N, ?MODULE, fail, [exit]), ?LONG) end,
            ?is({ok, {value, {badrpc, {'EXIT', exited}}}})},
           {nowhere, fun(R, _) -> R:yield(R:async_call(?NOWHERE, erlang, node, [])) end,
            ?is({ok, {badrpc, nodedown}})}]).

%% At all nodes that are connected.
everywhere(Config) ->
    table(Config,
          [{eval_everywhere,
            fun(R, N) ->
                    {R:eval_everywhere([N, N], ?MODULE, tell, [self(), hello]),
                     [receive hello -> ok end || _ <- [1, 2]]}
            end, ?is({ok, {abcast, [ok, ok]}})},
           {eval_all, fun(R, _) -> R:eval_everywhere(erlang, node, []) end, ?is({ok, abcast})},
           {multicall,
            fun(R, _) ->
                    {Nodes, []} = R:multicall(erlang, node, []),
                    {Nodes, []} = R:multicall(erlang, node, [], ?LONG),
                    lists:sort(Nodes) =:= lists:sort([node() | nodes()])
            end, ?is({ok, true})},
           {sbcast,
            fun(R, _) ->
                    {Good, []} = R:sbcast(server, nothing),
                    lists:sort(Good) =:= lists:sort([node() | nodes()])
            end, ?is({ok, true})},
           {abcast, fun(R, _) -> R:abcast(server, nothing) end, ?is({ok, abcast})},
           {multi_server_call,
            fun(R, _) -> {Twice, []} = R:multi_server_call(server, {double, 1}), Twice end,
            ?is({ok, [2, 2 | _]})},
           {parallel_eval,
            fun(R, _) -> R:parallel_eval([{erlang, abs, [-I]} || I <- lists:seq(1, 9)]) end,
            ?is({ok, [1, 2, 3, 4, 5, 6, 7, 8, 9]})},
           {pmap, fun(R, _) -> R:pmap({lists, nth}, [[a, b, c, d]], [1, 2, 3, 4]) end,
            ?is({ok, [a, b, c, d]})},
           {pmap_of_nothing, fun(R, _) -> R:pmap({lists, nth}, [[a]], []) end, ?is({ok, []})},
           {pmap_fails, fun(R, _) -> R:pmap({lists, nth}, [[a]], [1, x]) end,
            ?is({exit, badrpc})},
           {pinfo,
            fun(R, N) ->
                    Server = R:call(N, erlang, whereis, [server]),
                    [{registered_name, server} = R:pinfo(Server, registered_name),
                     lists:keyfind(registered_name, 1, R:pinfo(Server))]
            end, ?is({ok, [Same, Same]})}]).

%% All of it goes by lane, and nothing by the distribution.
by_lane(Config) ->
    {A, B} = {?config(a, Config), ?config(lanes, Config)},
    Node = cluster:node_of(B),
    Lanes = fun() -> maps:get(lanes, cluster:call(A, trunkline, info, [Node])) end,
    lists:foreach(
      fun({Name, Least, Fun}) ->
              Before = lists:sum([N || #{messages := N} <- Lanes()]),
              _ = cluster:call(A, Fun),
              cluster:await(fun() ->
                                    By = lists:sum([N || #{messages := N} <- Lanes()]) - Before,
                                    By >= Least orelse {Name, By}
                            end)
      end,
      %% (Without a timeout a call may go past the lane.)
      [{Name, 1, fun() -> apply(trunkline_rpc, Name, [Node, erlang, node, [], 20_000]) end}
       || Name <- [call, block_call]]
      ++ [{Name, 1, fun() -> apply(trunkline_rpc, Name, [Node, erlang, node, []]) end}
          || Name <- [cast, async_call]]
      ++ [{server_call, 1,
           fun() -> trunkline_rpc:server_call(Node, server, server, {double, 1}) end},
          {abcast, 1, fun() -> trunkline_rpc:abcast([Node], server, nothing) end},
          {sbcast, 1, fun() -> trunkline_rpc:sbcast([Node], server, nothing) end},
          {multicall, 2, fun() -> trunkline_rpc:multicall([Node, Node], erlang, node, []) end},
          {eval, 1, fun() -> trunkline_rpc:eval_everywhere([Node], erlang, node, []) end}]).

%% What a process has sent before is there when its function is executed.
order(Config) ->
    {A, B} = {?config(a, Config), ?config(lanes, Config)},
    Node = cluster:node_of(B),
    Counter = cluster:call(B, fun() -> spawn(?MODULE, count, [0]) end),
    lists:foreach(
      fun(Call) ->
              ?assertEqual(
                 lists:seq(100, 2000, 100),
                 cluster:call(A, fun() ->
                                         [begin
                                              [trunkline:send(Counter, one)
                                               || _ <- lists:seq(1, 100)],
                                              counted(Call, Node, Counter)
                                          end || _ <- lists:seq(1, 20)]
                                 end))
      end, [call, block_call, async_call]).

%% The counter is asked by a message of the process that executes: it comes behind the others.
counted(async_call, Node, Counter) ->
    trunkline_rpc:yield(trunkline_rpc:async_call(Node, ?MODULE, tell, [Counter, {count, self()}])),
    receive {count, N} -> N end;
counted(Call, Node, Counter) ->
    trunkline_rpc:Call(Node, ?MODULE, tell, [Counter, {count, self()}]),
    receive {count, N} -> N end.

odd_arguments(Config) ->
    lists:foreach(
      fun(There) ->
              Node = cluster:node_of(?config(There, Config)),
              {Differences, N} =
                  cluster:call(?config(a, Config),
                               fun() ->
                                       odd:differences(rpc, trunkline_rpc, odd_table(Node), singles)
                               end),
              ct:log("~p: ~b calls", [There, N]),
              ?assertEqual({There, []}, {There, Differences})
      end, [a, plain, lanes]).

odd_table(Node) ->
    MFA = [erlang, node, []],
    Key = fun(M) -> M:async_call(Node, erlang, node, []) end,
    %% What all nodes would be asked for takes long where the arguments are right or wrong.
    [{Name, fun(_) -> [Node | MFA] end} || Name <- [call, block_call, cast, async_call]]
        ++ [{Name, fun(_) -> [Node | MFA] ++ [?LONG] end} || Name <- [call, block_call]]
        ++ [{server_call, fun(_) -> [Node, no_such_name, {just, x}, x] end},
            {abcast, fun(_) -> [no_such_name, x] end},
            {abcast, fun(_) -> [[Node], no_such_name, x] end},
            {sbcast, fun(_) -> [no_such_name, x] end},
            {sbcast, fun(_) -> [[Node], no_such_name, x] end},
            {eval_everywhere, fun(_) -> MFA end},
            {eval_everywhere, fun(_) -> [[Node] | MFA] end},
            {multi_server_call, fun(_) -> [no_such_name, x] end},
            {multi_server_call, fun(_) -> [[Node], no_such_name, x] end},
            {multicall, fun(_) -> MFA end},
            {multicall, fun(_) -> [[Node] | MFA] end},
            {multicall, fun(_) -> [[Node] | MFA] ++ [?LONG] end},
            {yield, fun(M) -> [Key(M)] end},
            {nb_yield, fun(M) -> [Key(M)] end},
            {nb_yield, fun(M) -> [Key(M), ?LONG] end},
            {parallel_eval, fun(_) -> [[{erlang, abs, [1]}]] end},
            {pmap, fun(_) -> [{erlang, abs}, [], [1]] end},
            {pinfo, fun(_) -> [self()] end},
            {pinfo, fun(_) -> [self(), trap_exit] end}].

%% --- what is executed -----------------------------------------------------------

fail(throw) -> throw(thrown);
fail(throw_exit) -> throw({'EXIT', thrown});
fail(exit) -> exit(exited);
fail(error) -> error(reason);
fail(bif) -> length(id(x));
fail(kill) -> exit(self(), kill), receive after infinity -> ok end.

id(X) -> X.

tell(To, Message) -> To ! Message, ok.

answer(State) ->
    receive
        {tell, To, Message} -> To ! Message;
        {From, {double, N}} -> From ! {server, node(), 2 * N};
        {From, count} -> From ! {server, node(), erlang:unique_integer([monotonic])};
        _ -> ok
    end,
    answer(State).

%% Answers how many it has got, and begins anew for the next one that counts to 2,000.
count(N) ->
    receive
        one -> count(N + 1);
        {count, To} ->
            To ! {count, N},
            count(case N of 2000 -> 0; _ -> N end)
    end.
