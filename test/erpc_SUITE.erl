%% trunkline_erpc does what erpc does. One table runs with both modules: against a node with
%% Trunkline, against one without, and against the node itself; both must end the same way,
%% and as the table says. Then what erpc does not promise, and what happens to calls under
%% way when something is killed.
-module(erpc_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").
-include("../src/gate/trunkline_route.hrl").

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2]).
-export([calls/1, failures/1, bad_arguments/1, timeouts/1, executors/1, casts/1, multicalls/1,
         requests/1, collections/1, erpcs_collections/1,
         output/1]).
-export([by_lane/1, not_started/1, order/1, direct_outcome/1, outcome_of_linked/1,
         direct_with_uneven_list/1, direct_with_large_outcome/1, direct_burst/1,
         direct_and_waits/1, direct_calls/1, direct_are_counted/1, direct_to_limited_heaps/1,
         behind_large/1, large_is_killed/1, long_mailbox/1, many/1, no_process_left/1,
         dead_caller/1, killed_there/1, killed_here/1, disconnected/1, stopped_and_continued/1,
         restarted/1, leaves/1, casts_on_the_way/1, nothing_remembered/1, silent_node/1,
         full_nodes/1, odd_arguments/1]).
%% What is executed.
-export([add/2, fail/1, deep/1, wait/1, report/1, me/0, link_to_dead/0, helper/0, hold_for/2,
         start_counter/0, with_mail/1, rows/0, say_before/2, linked/0, direct_call/2,
         heap/1]).
-export([mixed/1, waiting/0, throw_large/0, to_pack/0, and_linked/1, asks_once/1]).

-define(LARGE, 1_000_000).
%% ms: longer than a case takes.
-define(LONG, 600_000).
%% Something that a case ends with.
-define(is(Pattern), fun(Pattern) -> true; (_) -> false end).

suite() -> [{timetrap, {minutes, 6}}].

all() -> [{group, local}, {group, plain}, {group, lanes},
          by_lane, not_started, order, direct_outcome, outcome_of_linked,
          direct_with_uneven_list, direct_with_large_outcome, direct_burst, direct_and_waits,
          direct_calls, direct_are_counted, direct_to_limited_heaps, behind_large, large_is_killed,
          long_mailbox, many, no_process_left, dead_caller, killed_there, killed_here, disconnected,
          stopped_and_continued, restarted, leaves, casts_on_the_way, nothing_remembered,
          silent_node, full_nodes, odd_arguments].

groups() ->
    Cases = [calls, failures, bad_arguments, timeouts, executors, casts, multicalls, requests,
             collections, erpcs_collections, output],
    [{local, [], Cases}, {plain, [], Cases}, {lanes, [], Cases}].

init_per_suite(Config) -> comparison:start(Config).

end_per_suite(Config) -> comparison:stop(Config).

init_per_group(Group, Config) -> comparison:init_per_group(Group, Config).

end_per_group(_, _) -> ok.

%% --- the table ----------------------------------------------------------------

table(Config, Rows) -> comparison:table({erpc, trunkline_erpc}, Config, Rows).

outcome(Fun) -> comparison:outcome(Fun).

calls(Config) ->
    table(Config,
          [{call_2, fun(E, N) -> E:call(N, fun() -> {1, node()} end) end, ?is({ok, {1, _}})},
           {call_3, fun(E, N) -> E:call(N, fun() -> node() end, 10000) end, ?is({ok, _})},
           {call_4, fun(E, N) -> E:call(N, ?MODULE, add, [1, 2]) end, ?is({ok, 3})},
           {call_5, fun(E, N) -> E:call(N, ?MODULE, add, [1, 2], infinity) end, ?is({ok, 3})},
           {call_5_time, fun(E, N) -> E:call(N, ?MODULE, add, [1, 2], 16#FFFFFFFF) end,
            ?is({ok, 3})},
           {call_5_abs, fun(E, N) -> E:call(N, ?MODULE, add, [1, 2], {abs, now_ms() + 10000}) end,
            ?is({ok, 3})},
           {bif, fun(E, N) -> E:call(N, erlang, length, [[a, b]]) end, ?is({ok, 2})},
           {returns_what_looks_like_an_error,
            fun(E, N) ->
                    [E:call(N, fun() -> T end)
                     || T <- [{error, {erpc, x}}, {exit, x}, {throw, x}, {ok, 1}, []]]
            end,
            ?is({ok, [{error, {erpc, x}}, {exit, x}, {throw, x}, {ok, 1}, []]})},
           {large_result,
            fun(E, N) -> E:call(N, fun() -> lists:seq(1, ?LARGE) end) =:= lists:seq(1, ?LARGE) end,
            ?is({ok, true})},
           {large_binary,
            fun(E, N) ->
                    B = binary:copy(<<"x">>, ?LARGE),
                    E:call(N, erlang, binary_part, [B, 1, ?LARGE - 1])
                        =:= binary:part(B, 1, ?LARGE - 1)
            end, ?is({ok, true})},
           {large_argument, fun(E, N) -> E:call(N, lists, sum, [lists:seq(1, ?LARGE)]) end,
            ?is({ok, _})},
           %% The process that executes the function has nothing else in its mailbox.
           {long_rows,
            fun(E, N) ->
                    Rows = rows(),
                    E:call(N, ?MODULE, with_mail, [Rows]) =:= {Rows, []}
            end, ?is({ok, true})},
           {long_outcomes,
            fun(E, N) ->
                    [E:receive_response(E:send_request(N, ?MODULE, rows, [])) =:= rows()
                     || _ <- lists:seq(1, 4)]
            end, ?is({ok, [true, true, true, true]})},
           {large_fun,
            fun(E, N) -> L = lists:seq(1, ?LARGE), E:call(N, fun() -> lists:sum(L) end) end,
            ?is({ok, _})}]).

failures(Config) ->
    LongStack = lists:seq(1, 50),
    table(Config,
          [{Name, fun(E, N) -> E:call(N, ?MODULE, fail, [What], Time) end, Is}
           || {Name, What, Is} <-
                  [{throw, throw, ?is({throw, thrown})},
                   {exit, exit, ?is({exit, {exception, exited}})},
                   {exit_normal, exit_normal, ?is({exit, {exception, normal}})},
                   {error, error,
                    ?is({error, {exception, {some, reason}, [{?MODULE, fail, 1, _}]}})},
                   {error_with_args, error_with_args,
                    ?is({error, {exception, reason, [{?MODULE, fail, [error_with_args], _}]}})},
                   {bif, bif, ?is({error, {exception, badarg, [{erlang, length, [x], _} | _]}})},
                   {arithmetic, arithmetic, ?is({error, {exception, badarith, [_, _ | _]}})},
                   {inner, inner,
                    ?is({error,
                         {exception, function_clause,
                          [{?MODULE, fail, [no_such_clause], _} | _]}})},
                   {tail, tail,
                    ?is({error,
                         {exception, undef,
                          [{no_such_module, f, [], []}, {?MODULE, fail, 1, []}]}})},
                   {in_a_fun, in_a_fun, ?is({error, {exception, {badmatch, 2}, _}})},
                   {system_limit, system_limit, ?is({error, {exception, system_limit, _}})},
                   {nested, nested, ?is({error, {exception, {exception, deep, _}, _}})}],
              Time <- [infinity, 20000]]
          ++ [{deep, fun(E, N) -> E:call(N, ?MODULE, deep, [LongStack]) end,
               ?is({error, {exception, deep, [_ | _]}})},
              {undef, fun(E, N) -> E:call(N, ?MODULE, no_such_function, [1]) end,
               ?is({error, {exception, undef, [{?MODULE, no_such_function, [1], []}]}})},
              {no_module, fun(E, N) -> E:call(N, no_such_module, f, [], 20000) end,
               ?is({error, {exception, undef, _}})},
              {fun_error, fun(E, N) -> E:call(N, fun() -> error(failed) end) end,
               ?is({error, {exception, failed, [_, {erlang, apply, 2, []}]}})},
              {fun_bif, fun(E, N) -> E:call(N, fun() -> hd(id([])) end) end,
               ?is({error, {exception, badarg, [{erlang, hd, [[]], _} | _]}})},
              {apply_error, fun(E, N) -> E:call(N, erlang, apply, [erlang, length, [x]]) end,
               ?is({error, {exception, badarg, _}})},
              {bif_error, fun(E, N) -> E:call(N, erlang, length, [x]) end,
               ?is({error, {exception, badarg, [{erlang, length, [x], _}]}})},
              {error_bif, fun(E, N) -> E:call(N, erlang, error, [a]) end,
               ?is({error, {exception, a, _}})},
              {raise, fun(E, N) -> E:call(N, erlang, raise, [error, a, [{m, f, 1, []}]]) end,
               ?is({error, {exception, a, _}})},
              {improper, fun(E, N) -> E:call(N, lists, sum, [[1] | x]) end,
               ?is({error, {exception, badarg, _}})},
              {too_many, fun(E, N) -> E:call(N, lists, sum, lists:seq(1, 300)) end,
               ?is({error, {exception, undef, _}})},
              {far_too_many, fun(E, N) -> E:call(N, lists, sum, lists:seq(1, 3000)) end,
               ?is({error, {erpc, system_limit}})}]).

bad_arguments(Config) ->
    F = fun() -> ok end,
    Col = #{},
    table(Config,
          [{{Name, Args}, fun(E, _) -> apply(E, Name, Args) end, ?is({error, {erpc, badarg}})}
           || {Name, Argss} <-
                  [{call,
                    [["n", F], [node(), x], [node(), fun(_) -> ok end], [node(), F, x],
                     [node(), F, -1], [node(), F, 16#100000000], [node(), F, 1.5],
                     [node(), F, {abs, x}], [node(), F, {abs, now_ms() + 16#200000000}],
                     [1, m, f, []], [node(), 1, f, []], [node(), m, 1, []], [node(), m, f, x],
                     [node(), m, f, [], x], [no@node, m, f, [], x],
                     [no@node, F, {abs, now_ms() + 16#200000000}], [no@node, F, -1]]},
                   {cast,
                    [[1, F], [1, m, f, []], [node(), 1, f, []], [node(), m, "f", []],
                     [node(), m, f, x]]},
                   {multicall,
                    [[[node(), 1], F], [node(), F], [[], x], [[node()], F, x], [[node()], F, -1],
                     [[node() | x], F], [[node()], 1, f, []], [[node()], m, 1, []],
                     [[node()], m, f, x], [[], m, f, [], x]]},
                   {multicast,
                    [[[node(), 1], F], [node(), F], [[], 1, f, []], [[], m, 1, []], [[], m, f, x],
                     [[node() | x], m, f, []]]},
                   {send_request,
                    [[1, F], [node(), x], [node(), fun(_) -> ok end], [1, m, f, []],
                     [node(), 1, f, []], [node(), m, f, x], [node(), F, label, x],
                     [1, F, label, Col], [node(), x, label, Col], [1, m, f, [], label, Col],
                     [node(), m, f, x, label, Col], [node(), m, f, [], label, x]]},
                   {receive_response,
                    [[x], [x, 0], [Col, x, true], [Col, 0, x], [x, 0, true], [Col, -1, false]]},
                   {wait_response, [[x], [x, 0], [Col, x, true], [Col, 0, x], [x, 0, true]]},
                   {check_response, [[m, x], [m, Col, x], [m, x, true]]},
                   {reqids_size, [[x]]},
                   {reqids_add, [[x, label, Col], [make_ref(), label, Col]]},
                   {reqids_to_list, [[x], [#{a => b}]]}],
              Args <- Argss]
          ++ [{{Name, Time}, fun(E, N) ->
                                     Id = E:send_request(N, ?MODULE, add, [1, 2]),
                                     Result = outcome(fun() -> apply(E, Name, [Id, Time]) end),
                                     {Result, E:receive_response(Id)}
                             end, ?is({ok, {{error, {erpc, badarg}}, 3}})}
              || Name <- [receive_response, wait_response], Time <- [x, -1, {abs, x}]]
          ++ [{added_twice,
               fun(E, N) ->
                       Id = E:send_request(N, ?MODULE, add, [1, 2]),
                       C = E:reqids_add(Id, a, E:reqids_new()),
                       Twice = outcome(fun() -> E:reqids_add(Id, b, C) end),
                       NoCollection = outcome(fun() -> E:reqids_add(Id, b, x) end),
                       {Twice, NoCollection, E:receive_response(Id)}
               end, ?is({ok, {{error, {erpc, badarg}}, {error, {erpc, badarg}}, 3}})}]).

timeouts(Config) ->
    Late = fun(E, N, Start) ->
                   %% The outcome comes after the caller has given up, and nobody sees it.
                   Given = Start(E, N, self()),
                   receive {executor, Pid} ->
                           Ref = monitor(process, Pid),
                           Pid ! go,
                           receive {'DOWN', Ref, process, Pid, _} -> ok end
                   end,
                   3 = E:call(N, ?MODULE, add, [1, 2], 20000),
                   [3, 3, 3] = [E:call(N, ?MODULE, add, [1, 2], 20000) || _ <- [1, 2, 3]],
                   Given
           end,
    table(Config,
          [{call, fun(E, N) -> E:call(N, timer, sleep, [?LONG], 20) end,
            ?is({error, {erpc, timeout}})},
           {call_fun, fun(E, N) -> E:call(N, fun() -> timer:sleep(?LONG) end, 20) end,
            ?is({error, {erpc, timeout}})},
           {call_zero, fun(E, N) -> E:call(N, timer, sleep, [?LONG], 0) end,
            ?is({error, {erpc, timeout}})},
           {call_abs, fun(E, N) -> E:call(N, timer, sleep, [?LONG], {abs, now_ms() + 20}) end,
            ?is({error, {erpc, timeout}})},
           {call_past, fun(E, N) -> E:call(N, timer, sleep, [?LONG], {abs, now_ms() - 20}) end,
            ?is({error, {erpc, timeout}})},
           {call_late,
            fun(E, N) ->
                    Late(E, N,
                         fun(_, _, Self) ->
                                 outcome(fun() -> E:call(N, ?MODULE, wait, [Self], 100) end)
                         end)
            end, ?is({ok, {error, {erpc, timeout}}})},
           {request_late,
            fun(E, N) ->
                    Late(E, N, fun(_, _, Self) ->
                                       Id = E:send_request(N, ?MODULE, wait, [Self]),
                                       no_response = E:wait_response(Id, 1),
                                       outcome(fun() -> E:receive_response(Id, 100) end)
                               end)
            end, ?is({ok, {error, {erpc, timeout}}})},
           {collection_late,
            fun(E, N) ->
                    Late(E, N,
                         fun(_, _, Self) ->
                                 C = E:send_request(N, ?MODULE, wait, [Self], label,
                                                    E:reqids_new()),
                                 no_response = E:wait_response(C, 1, true),
                                 outcome(fun() -> E:receive_response(C, 100, true) end)
                         end)
            end, ?is({ok, {error, {erpc, timeout}}})},
           {received_twice,
            fun(E, N) ->
                    Id = E:send_request(N, timer, sleep, [?LONG]),
                    Done = E:send_request(N, ?MODULE, add, [1, 2]),
                    3 = E:receive_response(Done),
                    [outcome(fun() -> E:receive_response(I, 20) end) || I <- [Id, Id, Done]]
            end,
            ?is({ok,
                 [{error, {erpc, timeout}}, {error, {erpc, badarg}}, {error, {erpc, badarg}}]})},
           {multicall_late,
            fun(E, N) ->
                    Late(E, N, fun(_, _, Self) -> E:multicall([N], ?MODULE, wait, [Self], 100) end)
            end, ?is({ok, [{error, {erpc, timeout}}]})}]).

%% The process that executes: how it begins, how it may end, and what ends with it.
executors(Config) ->
    table(Config,
          [{Reason,
            fun(E, N) ->
                    E:call(N, fun() -> exit(self(), Reason), receive after infinity -> ok end end,
                           20000)
            end, Is}
           || {Reason, Is} <- [{kill, ?is({exit, {signal, killed}})},
                               {stop, ?is({exit, {signal, stop}})},
                               {normal, ?is({exit, {signal, normal}})},
                               {{a, [term]}, ?is({exit, {signal, {a, [term]}}})},
                               {noconnection, ?is({error, {erpc, noconnection}})}]]
          ++ [{linked, fun(E, N) -> E:call(N, ?MODULE, link_to_dead, [], 20000) end,
               ?is({exit, {signal, linked_ended}})},
              %% The reason is its own pid.
              {itself,
               fun(E, N) ->
                       try E:call(N, fun() -> exit(self(), self()),
                                              receive after infinity -> ok end end, 20000)
                       catch exit:{signal, Pid} when node(Pid) =:= N -> {signal, its_own}
                       end
               end, ?is({ok, {signal, its_own}})},
              {fresh, fun(E, N) -> E:call(N, ?MODULE, me, [], 20000) end,
               ?is({ok,
                    [{dictionary, []}, {links, []}, {monitors, []}, {trap_exit, false},
                     {message_queue_len, 0}, {priority, normal}, {registered_name, []}, true]})},
              {another_one,
               fun(E, N) ->
                       Pids = [E:call(N, erlang, self, [], 20000) || _ <- [1, 2, 3]],
                       {length(lists:usort([self() | Pids])),
                        lists:usort([node(P) || P <- Pids]) =:= [N]}
               end, ?is({ok, {4, true}})},
              %% What is linked to the executor ends with it.
              {linked_to_it,
               fun(E, N) ->
                       Pid = E:call(N, fun() -> spawn_link(timer, sleep, [infinity]) end, 20000),
                       Ref = monitor(process, Pid),
                       receive {'DOWN', Ref, process, Pid, Reason} -> Reason =/= normal end
               end, ?is({ok, true})},
              {with_messages,
               fun(E, N) ->
                       E:call(N, fun() -> self() ! a, self() ! {b, make_ref()}, ok end, 20000)
               end, ?is({ok, ok})},
              {traps_exits,
               fun(E, N) ->
                       E:call(N, fun() -> process_flag(trap_exit, true), exit(self(), x),
                                          receive {'EXIT', _, R} -> {got, R} end end, 20000)
               end, ?is({ok, {got, x}})},
              {calls_on,
               fun(E, N) ->
                       Here = node(),
                       E:call(N,
                              fun() ->
                                      E:call(Here,
                                             fun() ->
                                                     {node() =:= Here,
                                                      E:call(N, ?MODULE, add, [1, 2])}
                                             end)
                              end, 20000)
               end, ?is({ok, {true, 3}})},
              {noconnection,
               fun(E, _) -> E:call('no_such_node@localhost', ?MODULE, add, [1, 2]) end,
               ?is({error, {erpc, noconnection}})}]).

casts(Config) ->
    table(Config,
          [{cast_2,
            fun(E, N) ->
                    S = self(),
                    {E:cast(N, fun() -> S ! {from, node()} end), receive {from, At} -> At =:= N end}
            end,
            ?is({ok, {ok, true}})},
           {cast_4,
            fun(E, N) -> {E:cast(N, ?MODULE, report, [self()]), receive {from, _, _} -> ok end} end,
            ?is({ok, {ok, ok}})},
           {leader, fun(E, N) ->
                            E:cast(N, ?MODULE, report, [self()]),
                            receive {from, _, Leader} -> Leader =:= group_leader() end
                    end, ?is({ok, true})},
           {large, fun(E, N) ->
                           L = lists:seq(1, ?LARGE),
                           S = self(),
                           E:cast(N, fun() -> S ! {sum, lists:sum(L)} end),
                           receive {sum, Sum} -> Sum =:= lists:sum(L) end
                   end, ?is({ok, true})},
           {fails, fun(E, N) ->
                           [ok, ok, ok] =
                               [E:cast(N, ?MODULE, F, A)
                                || {F, A} <- [{fail, [throw]}, {fail, [error]}, {undefined, []}]],
                           ok = E:cast(N, not_a_fun),
                           E:call(N, ?MODULE, add, [1, 2])
                   end, ?is({ok, 3})},
           {nowhere, fun(E, _) -> E:cast('no_such_node@localhost', ?MODULE, add, [1, 2]) end,
            ?is({ok, ok})},
           {multicast, fun(E, N) ->
                               ok = E:multicast([N, node(), 'no_such_node@localhost'], ?MODULE,
                                                report, [self()]),
                               ok = E:multicast([N], fun() -> ok end),
                               lists:sort([receive {from, At, _} -> At end || _ <- [1, 2]])
                                   =:= lists:sort([N, node()])
                       end, ?is({ok, true})},
           {multicast_none, fun(E, _) -> E:multicast([], ?MODULE, report, [self()]) end,
            ?is({ok, ok})}]).

multicalls(Config) ->
    Plain = cluster:node_of(?config(plain, Config)),
    table(Config,
          [{fun_2, fun(E, N) -> E:multicall([N, N], fun() -> 1 end) end,
            ?is({ok, [{ok, 1}, {ok, 1}]})},
           {none, fun(E, _) -> E:multicall([], ?MODULE, add, [1, 2]) end, ?is({ok, []})},
           {good_and_bad,
            fun(E, N) ->
                    Nodes = [N, 'no_such_node@localhost', Plain, node(), N],
                    [{ok, N1}, Bad, {ok, Plain1}, {ok, Self}, {ok, N2}] =
                        E:multicall(Nodes, erlang, node, [], 20000),
                    {[N1, Plain1, Self, N2] =:= [N, Plain, node(), N], Bad}
            end, ?is({ok, {true, {error, {erpc, noconnection}}}})},
           {failures,
            fun(E, N) ->
                    [E:multicall([N, Plain], ?MODULE, fail, [What], 20000)
                     || What <- [throw, exit, error]]
            end,
            ?is({ok, [[{throw, thrown}, {throw, thrown}],
                      [{exit, {exception, exited}}, {exit, {exception, exited}}],
                      [{error, {exception, {some, reason}, [_]}},
                       {error, {exception, {some, reason}, [_]}}]]})},
           {killed,
            fun(E, N) ->
                    E:multicall([N, Plain],
                                fun() -> exit(self(), kill), receive after infinity -> ok end end,
                                20000)
            end,
            ?is({ok, [{exit, {signal, killed}}, {exit, {signal, killed}}]})},
           {one_is_late,
            fun(E, N) ->
                    %% A machine may take long for what is not late.
                    Ask = fun Ask(Time) ->
                                  Ends =
                                      E:multicall([N, Plain],
                                                  fun() ->
                                                          node() =:= Plain orelse timer:sleep(?LONG)
                                                  end, Time),
                                  Late = [late || {error, {erpc, timeout}} <- Ends],
                                  case Late =:= [late || N =/= Plain] orelse Time > 10_000 of
                                      true -> list_to_tuple(Ends);
                                      false -> Ask(4 * Time)
                                  end
                          end,
                    Ask(1000)
            end, case cluster:node_of(?config(there, Config)) of
                     Plain -> ?is({ok, {{ok, true}, {ok, true}}});
                     _ -> ?is({ok, {{error, {erpc, timeout}}, {ok, true}}})
                 end},
           {abs, fun(E, N) -> E:multicall([N], ?MODULE, add, [1, 2], {abs, now_ms() + 20000}) end,
            ?is({ok, [{ok, 3}]})},
           {twenty,
            fun(E, N) ->
                    E:multicall(lists:duplicate(20, N), ?MODULE, add, [1, 2])
                        =:= lists:duplicate(20, {ok, 3})
            end,
            ?is({ok, true})}]).

requests(Config) ->
    Request = fun(E, N, F, Args) -> E:send_request(N, ?MODULE, F, Args) end,
    table(Config,
          [{receive_1, fun(E, N) -> E:receive_response(Request(E, N, add, [1, 2])) end,
            ?is({ok, 3})},
           {receive_2,
            fun(E, N) -> E:receive_response(E:send_request(N, fun() -> 4 end), 20000) end,
            ?is({ok, 4})},
           {wait_1, fun(E, N) -> E:wait_response(E:send_request(N, timer, sleep, [?LONG])) end,
            ?is({ok, no_response})},
           {wait_2, fun(E, N) -> E:wait_response(Request(E, N, add, [1, 2]), 20000) end,
            ?is({ok, {response, 3}})},
           {wait_again, fun(E, N) ->
                                Id = E:send_request(N, ?MODULE, wait, [self()]),
                                {E:wait_response(Id, 0), go(), E:wait_response(Id, infinity)}
                        end, ?is({ok, {no_response, go, {response, ok}}})},
           %% An id of erpc's own is as good.
           {of_erpc,
            fun(E, N) ->
                    Id = fun() -> erpc:send_request(N, ?MODULE, add, [1, 2]) end,
                    C = E:reqids_add(Id(), label,
                                     E:send_request(N, ?MODULE, add, [2, 2], label,
                                                    E:reqids_new())),
                    {A, label, C1} = E:receive_response(C, 20000, true),
                    {B, label, _} = E:receive_response(C1, 20000, true),
                    {E:receive_response(Id()), lists:sort([A, B])}
            end, ?is({ok, {3, [3, 4]}})},
           {in_any_order, fun(E, N) ->
                                  Ids = [Request(E, N, add, [I, I]) || I <- lists:seq(1, 20)],
                                  [E:receive_response(Id) || Id <- lists:reverse(Ids)]
                          end, ?is({ok, [40, 38 | _]})},
           {check, fun(E, N) ->
                           Id = Request(E, N, add, [1, 2]),
                           {E:check_response(something, Id),
                            receive M -> E:check_response(M, Id) end}
                   end, ?is({ok, {no_response, {response, 3}}})},
           {check_other,
            fun(E, N) ->
                    Id1 = Request(E, N, add, [1, 2]),
                    M = receive First -> First end,
                    Id2 = Request(E, N, add, [2, 2]),
                    {E:check_response(M, Id2), E:receive_response(Id2), E:check_response(M, Id1)}
            end, ?is({ok, {no_response, 4, {response, 3}}})},
           {nowhere,
            fun(E, _) -> E:receive_response(Request(E, 'no_such_node@localhost', add, [1, 2])) end,
            ?is({error, {erpc, noconnection}})},
           {nowhere_wait,
            fun(E, _) ->
                    E:wait_response(Request(E, 'no_such_node@localhost', add, [1, 2]), 20000)
            end,
            ?is({error, {erpc, noconnection}})},
           {nowhere_check, fun(E, _) ->
                                   Id = Request(E, 'no_such_node@localhost', add, [1, 2]),
                                   receive M -> E:check_response(M, Id) end
                           end, ?is({error, {erpc, noconnection}})}]
          ++ [{{What, Name}, fun(E, N) -> Take(E, Request(E, N, fail, [What])) end, Is}
              || {Name, Take} <- [{take, fun(E, Id) -> E:receive_response(Id, 20000) end},
                                  {wait, fun(E, Id) -> E:wait_response(Id, 20000) end},
                                  {check,
                                   fun(E, Id) -> receive M -> E:check_response(M, Id) end end}],
                 {What, Is} <- [{throw, ?is({throw, thrown})},
                                {exit, ?is({exit, {exception, exited}})},
                                {kill, ?is({exit, {signal, killed}})},
                                {error,
                                 ?is({error,
                                      {exception, {some, reason}, [{?MODULE, fail, 1, _}]}})}]]).

%% A collection of erpc's own, to which ours add.
erpcs_collections(Config) ->
    Node = cluster:node_of(?config(there, Config)),
    ?assertEqual({[one, seven, three, two],
                  [{3, three}, {7, seven},
                   {exit, {exception, x}, one}, {exit, {exception, y}, two}]},
                 cluster:call(?config(a, Config), ?MODULE, mixed, [Node])).

%% Runs at the node.
rows() -> [#{id => N, state => active} || N <- lists:seq(1, 20_000)].

with_mail(Term) ->
    receive Mail -> {Term, [Mail]}
    after 20 -> {Term, []}
    end.

mixed(Node) ->
    C1 = erpc:send_request(Node, ?MODULE, add, [1, 2], three, erpc:reqids_new()),
    C2 = erpc:send_request(Node, erlang, exit, [x], one, C1),
    C3 = trunkline_erpc:send_request(Node, ?MODULE, add, [3, 4], seven, C2),
    C4 = trunkline_erpc:send_request(Node, erlang, exit, [y], two, C3),
    {lists:sort([Label || {_, Label} <- trunkline_erpc:reqids_to_list(C4)]),
     lists:sort(receive_all(C4))}.

receive_all(Collection) ->
    try trunkline_erpc:receive_response(Collection, ?LONG, true) of
        no_request -> [];
        {Value, Label, Rest} -> [{Value, Label} | receive_all(Rest)]
    catch
        exit:{Reason, Label, Rest} -> [{exit, Reason, Label} | receive_all(Rest)]
    end.

%% What is opaque is compared by its labels.
collections(Config) ->
    Labels = fun(E, C) -> {E:reqids_size(C), lists:sort([L || {_, L} <- E:reqids_to_list(C)])} end,
    Three = fun(E, N) ->
                    C1 = E:send_request(N, ?MODULE, add, [1, 0], one, E:reqids_new()),
                    C2 = E:send_request(N, fun() -> 2 end, two, C1),
                    E:reqids_add(E:send_request(N, ?MODULE, add, [3, 0]), three, C2)
            end,
    All = fun All(_, C, Take) ->
                  case Take(C) of
                      {Response, Label, C1} -> [{Label, Response} | All(next, C1, Take)];
                      no_request -> []
                  end
          end,
    table(Config,
          [{empty, fun(E, _) ->
                           C = E:reqids_new(),
                           {Labels(E, C), E:receive_response(C, 0, true),
                            E:wait_response(C, infinity, false),
                            E:check_response(m, C, true)}
                   end, ?is({ok, {{0, []}, no_request, no_request, no_request}})},
           {labels,
            fun(E, N) ->
                    C = Three(E, N),
                    R = Labels(E, C),
                    _ = All(E, C, fun(X) -> E:receive_response(X, 20000, true) end),
                    R
            end,
            ?is({ok, {3, [one, three, two]}})},
           {receive_all,
            fun(E, N) ->
                    lists:sort(
                      All(E, Three(E, N), fun(C) -> E:receive_response(C, 20000, true) end))
            end,
            ?is({ok, [{one, 1}, {three, 3}, {two, 2}]})},
           {wait_all,
            fun(E, N) ->
                    lists:sort(All(E, Three(E, N), fun(C) -> E:wait_response(C, 20000, true) end))
            end,
            ?is({ok, [{one, {response, 1}}, {three, {response, 3}}, {two, {response, 2}}]})},
           {check_all,
            fun(E, N) ->
                    lists:sort(All(E, Three(E, N),
                                   fun(C) ->
                                           no_response = case E:reqids_size(C) of
                                                             0 -> no_response;
                                                             _ -> E:check_response(m, C, true)
                                                         end,
                                           case E:reqids_size(C) of
                                               0 -> E:check_response(m, C, true);
                                               _ -> receive M -> E:check_response(M, C, true) end
                                           end
                                   end))
            end, ?is({ok, [{one, {response, 1}}, {three, {response, 3}}, {two, {response, 2}}]})},
           {kept, fun(E, N) ->
                          C = E:send_request(N, ?MODULE, add, [1, 2], label, E:reqids_new()),
                          {3, label, C1} = E:receive_response(C, 20000, false),
                          Labels(E, C1)
                  end, ?is({ok, {1, [label]}})},
           {wait_time, fun(E, N) ->
                               C = E:send_request(N, ?MODULE, wait, [self()], label,
                                                  E:reqids_new()),
                               {E:wait_response(C, 0, true), go(),
                                element(1, E:wait_response(C, {abs, now_ms() + 20000}, true))}
                       end, ?is({ok, {no_response, go, {response, ok}}})},
           {mixed_nodes,
            fun(E, N) ->
                    C = lists:foldl(
                          fun(Node, C) -> E:send_request(Node, ?MODULE, add, [1, 2], Node, C) end,
                          E:reqids_new(), [N, node(), cluster:node_of(?config(plain, Config))]),
                    length(All(E, C, fun(X) -> E:receive_response(X, 20000, true) end))
            end, ?is({ok, 3})}]
          ++ [{{What, Name, Delete},
               fun(E, N) ->
                       C = E:send_request(N, ?MODULE, fail, [What], label, E:reqids_new()),
                       try Take(E, C, Delete)
                       catch Class:{Reason, Label, C1} -> {Class, Reason, Label, Labels(E, C1)}
                       end
               end, Is}
              || {Name, Take} <- [{take,
                                   fun(E, C, Delete) -> E:receive_response(C, 20000, Delete) end},
                                  {wait,
                                   fun(E, C, Delete) -> E:wait_response(C, 20000, Delete) end},
                                  {check,
                                   fun(E, C, Delete) ->
                                           receive M -> E:check_response(M, C, Delete) end
                                   end}],
                 {Delete, Left} <- [{true, {0, []}}, {false, {1, [label]}}],
                 {What, Is} <- [{throw, fun(R) -> R =:= {ok, {throw, thrown, label, Left}} end},
                                {exit,
                                 fun(R) ->
                                         R =:= {ok, {exit, {exception, exited}, label, Left}}
                                 end},
                                {kill,
                                 fun(R) -> R =:= {ok, {exit, {signal, killed}, label, Left}} end},
                                {error,
                                 fun({ok, {error, {exception, {some, reason}, [_]}, label, L}}) ->
                                         L =:= Left;
                                    (_) -> false end}]]).

%% What the function writes goes to where the caller's output goes.
output(Config) ->
    Written = fun(E, N, Do) ->
                      Leader = spawn_link(fun() -> leader([]) end),
                      group_leader(Leader, self()),
                      Do(E, N),
                      Leader ! {written, self()},
                      receive {written, Text} -> unicode:characters_to_binary(Text) end
              end,
    Hello = fun() -> io:put_chars("hello") end,
    table(Config,
          [{call, fun(E, N) -> Written(E, N, fun(_, _) -> E:call(N, Hello, 20000) end) end,
            ?is({ok, <<"hello">>})},
           {request,
            fun(E, N) ->
                    Written(E, N, fun(_, _) -> E:receive_response(E:send_request(N, Hello)) end)
            end, ?is({ok, <<"hello">>})},
           {multicall, fun(E, N) -> Written(E, N, fun(_, _) -> E:multicall([N, N], Hello) end) end,
            ?is({ok, <<"hellohello">>})},
           {cast, fun(E, N) ->
                          Written(E, N, fun(_, _) ->
                                                S = self(),
                                                E:cast(N, fun() -> Hello(), S ! written_it end),
                                                receive written_it -> ok end
                                        end)
                  end, ?is({ok, <<"hello">>})}]).

leader(Text) ->
    receive
        {io_request, From, ReplyAs, {put_chars, _, Chars}} ->
            From ! {io_reply, ReplyAs, ok},
            leader([Text, Chars]);
        {written, To} ->
            To ! {written, Text}
    end.

%% --- by lane ------------------------------------------------------------------

%% None of this was tested with erpc's own processes.
by_lane(Config) ->
    A = ?config(a, Config),
    Node = cluster:node_of(?config(lanes, Config)),
    Sent = fun() ->
                   #{lanes := Lanes, fallbacks := Fallbacks} =
                       cluster:call(A, trunkline, info, [Node]),
                   {lists:sum([M || #{messages := M} <- Lanes]), Fallbacks}
           end,
    {Before, Fallbacks} = Sent(),
    ok = cluster:call(
           A, fun() ->
                      %% (Without a timeout they may go past the lane.)
                      [3 = trunkline_erpc:call(Node, ?MODULE, add, [1, 2], 20_000)
                       || _ <- lists:seq(1, 10)],
                      [ok = trunkline_erpc:cast(Node, ?MODULE, add, [1, 2])
                       || _ <- lists:seq(1, 10)],
                      [{ok, 3}, {ok, 3}] =
                          trunkline_erpc:multicall([Node, Node], ?MODULE, add, [1, 2]),
                      ok = trunkline_erpc:multicast([Node, Node], ?MODULE, add, [1, 2]),
                      3 = trunkline_erpc:receive_response(
                            trunkline_erpc:send_request(Node, ?MODULE, add, [1, 2])),
                      ok
              end),
    cluster:await(fun() -> case Sent() of
                               {After, Fallbacks} when After - Before >= 25 -> true;
                               Other -> {Before, Fallbacks, Other}
                           end end).

%% Without the application all is erpc's.
not_started(_) ->
    [A, B] = cluster:start_all([none, []]),
    cluster:connect(A, B),
    ?assertEqual({3, [{ok, 3}], 3, ok},
                 cluster:call(
                   A, fun() ->
                              N = cluster:node_of(B),
                              {trunkline_erpc:call(N, ?MODULE, add, [1, 2], 20000),
                               trunkline_erpc:multicall([N], ?MODULE, add, [1, 2]),
                               trunkline_erpc:receive_response(
                                 trunkline_erpc:send_request(N, ?MODULE, add, [1, 2])),
                               trunkline_erpc:cast(N, ?MODULE, add, [1, 2])}
                      end)),
    cluster:stop_all([A, B]).

%% A function is executed after what the caller has sent before by Trunkline has been delivered,
%% of whatever size. What the function sends to the caller by Trunkline is there before its
%% outcome.
order(_) ->
    {A, B} = cluster:pair([{lanes, 4}]),
    Node = cluster:node_of(B),
    Round = fun(I) ->
                    Receiver = spawn(Node, ?MODULE, helper, []),
                    Large = binary:copy(<<I>>, 50_000 * (I rem 5)),
                    [trunkline:send(Receiver, {N, Large}) || N <- lists:seq(1, 5)],
                    Got = case I rem 3 of
                              0 ->
                                  trunkline_erpc:call(Node, ?MODULE, hold_for,
                                                      [Receiver, self()], 20000);
                              1 ->
                                  trunkline_erpc:receive_response(
                                    trunkline_erpc:send_request(
                                      Node, ?MODULE, hold_for, [Receiver, self()]), 20000);
                              2 ->
                                  [{ok, Messages}] =
                                      trunkline_erpc:multicall(
                                        [Node], ?MODULE, hold_for, [Receiver, self()], 20000),
                                  Messages
                          end,
                    %% What was sent to us before the outcome has arrived before it.
                    Behind = receive {sent_before, B1} -> byte_size(B1) after 0 -> nothing end,
                    {Got, Behind}
            end,
    Results = cluster:call(A, fun() -> in_parallel(lists:seq(1, 60), Round) end),
    ?assertEqual(lists:duplicate(60, {lists:seq(1, 5), 300_000}), Results),
    cluster:stop_all([A, B]).

%% A long call, or one of a few callers, may be made by plain distribution, and then the outcome is
%% the exit reason of its executor. But it does not overtake a message of the executor that is still
%% in its lane.
direct_outcome(_) ->
    {A, B} = cluster:pair_on_the_distribution(),
    Node = cluster:node_of(B),
    Calls = fun(List) ->
                    cluster:call(
                      A, fun() ->
                                 [begin
                                      List = trunkline_erpc:call(Node, ?MODULE, say_before,
                                                                 [self(), List]),
                                      ?assertEqual(said, receive S -> S after 0 -> nothing end),
                                      List = trunkline_erpc:call(Node, lists, reverse,
                                                                 [lists:reverse(List)])
                                  end || _ <- lists:seq(1, 10)],
                                 ok
                         end)
            end,
    [?assert(count_direct(B, fun() -> ok = Calls(List) end) > 0) || List <- [rows(), [short]]],
    cluster:stop_all([A, B]).

%% A process that the function has linked to itself ends when the function has returned, and its
%% outcome is on its way: that changes nothing.
outcome_of_linked(_) ->
    {A, B} = cluster:pair([]),
    Node = cluster:node_of(B),
    ?assertEqual([400_000 || _ <- lists:seq(1, 5)],
                 cluster:call(A, fun() ->
                                         [length(trunkline_erpc:call(Node, ?MODULE, linked, [],
                                                                     60_000))
                                          || _ <- lists:seq(1, 5)]
                                 end)),
    cluster:stop_all([A, B]).

linked() ->
    Self = self(),
    _ = spawn_link(fun() -> end_while_sent(Self) end),
    lists:seq(1, 400_000).

end_while_sent(Pid) ->
    {_, Stack} = process_info(Pid, current_stacktrace),
    case [M || {M, _, _, _} <- Stack, M =:= trunkline_sender orelse M =:= trunkline_parcel] of
        [] -> end_while_sent(Pid);
        _ -> exit(because)
    end.

%% The size of a list is estimated. If its first element is much longer than all others, the
%% executor does not get a heap of 100 GB.
direct_with_uneven_list(_) ->
    {A, B} = cluster:pair_on_the_distribution(),
    Node = cluster:node_of(B),
    300_001 = cluster:call(
                A, fun() ->
                           Rows = [#{id => N, state => active} || N <- lists:seq(1, 300_000)],
                           List = [#{id => 0, state => lists:seq(1, 300_000)} | Rows],
                           trunkline_erpc:call(Node, erlang, length, [List])
                   end),
    cluster:stop_all([A, B]).

%% A large outcome of such a call goes beside the lane, unless it is a long term.
direct_with_large_outcome(_) ->
    {A, B} = cluster:pair_on_the_distribution(),
    Node = cluster:node_of(B),
    Large = fun() ->
                    #{large := #{messages := N}} = cluster:info(B, A),
                    N
            end,
    Before = Large(),
    Call = fun(M, F, Args) -> outcome_and_rest(A, trunkline_erpc, [Node, M, F, Args]) end,
    Nothing = [{messages, []}, {monitors, []}],
    Direct = count_direct(
               B, fun() ->
                          [begin
                               {{ok, Binary}, Nothing} = Call(binary, copy, [<<"x">>, ?LARGE]),
                               ?assertEqual(?LARGE, byte_size(Binary)),
                               {{throw, Thrown}, Nothing} = Call(?MODULE, throw_large, []),
                               ?assertEqual(?LARGE, byte_size(Thrown))
                           end || _ <- lists:seq(1, 5)]
                  end),
    ?assert(Direct > 0),
    After = Large(),
    ?assert(After - Before >= Direct),
    {{ok, List}, Nothing} = Call(lists, seq, [1, ?LARGE]),
    ?assertEqual(?LARGE, length(List)),
    ?assertEqual(After, Large()),
    cluster:stop_all([A, B]).

throw_large() -> throw(binary:copy(<<"x">>, ?LARGE)).

%% Of a burst of short calls only a few are made so: the first ones, since none has ended.
direct_burst(_) ->
    {A, B} = cluster:pair_on_the_distribution(),
    Node = cluster:node_of(B),
    Burst = fun() ->
                    Sums = in_parallel(lists:seq(1, 100),
                                       fun(I) ->
                                               trunkline_erpc:call(Node, ?MODULE, add, [I, 0])
                                       end),
                    receive {results, To} -> To ! {results, Sums} end
            end,
    Direct = count_direct(
               B, fun() ->
                          cluster:suspend(B),
                          Caller = cluster:call(A, erlang, spawn, [Burst]),
                          cluster:await(fun() -> cluster:call(A, ?MODULE, waiting, []) =:= 100 end),
                          cluster:continue(B),
                          ?assertEqual(lists:seq(1, 100), results(A, Caller))
                  end),
    ?assert(Direct > 0 andalso Direct =< 7),
    cluster:stop_all([A, B]).

%% A process that the function has linked to itself does not change the outcome when it ends later,
%% while the executor waits. And the executor asks its lane once, however long that takes.
direct_and_waits(_) ->
    {A, B} = cluster:pair_on_the_distribution(),
    Node = cluster:node_of(B),
    Call = fun(Function, Bytes) ->
                   {{ok, Binary}, Rest} =
                       outcome_and_rest(A, trunkline_erpc, [Node, ?MODULE, Function, [Bytes]]),
                   {{ok, byte_size(Binary)}, Rest}
           end,
    Nothing = [{messages, []}, {monitors, []}],
    [begin
         Direct = count_direct(
                    B, fun() ->
                               [?assertEqual({{ok, N}, Nothing}, Call(Function, N))
                                || _ <- lists:seq(1, 5)]
                       end),
         ?assert(Direct > 0)
     end || {Function, N} <- [{and_linked, 1}, {and_linked, ?LARGE}, {asks_once, 1}]],
    cluster:stop_all([A, B]).

%% The linked process ends when the executor waits for the lane.
and_linked(Bytes) ->
    hold_lane(no_such_process, fun(_, _) -> exit(helper_done) end),
    binary:copy(<<"x">>, Bytes).

asks_once(Bytes) ->
    hold_lane(no_such_process,
              fun(Executor, Lane) ->
                      receive after 300 -> ok end,
                      {messages, Messages} = process_info(Lane, messages),
                      case [E || {ask, _, E, _} <- Messages, E =:= Executor] of
                          [Executor] -> ok;
                          _ -> exit(Executor, kill)
                      end
              end),
    binary:copy(<<"x">>, Bytes).

%% Sends to a process, or a name, at the other node. The lane does not run until this process waits
%% for it and Fun has been executed, or this process has ended.
hold_lane(To, Fun) ->
    Executor = self(),
    [{Node, #route{lanes = {Lane}}}] = trunkline_route:all(),
    Helper = spawn_link(fun() ->
                                true = erlang:suspend_process(Lane),
                                Executor ! {self(), suspended},
                                cluster:await(fun() -> process_info(Executor, current_function)
                                                           =:= {current_function,
                                                                {trunkline_process, ask, 4}}
                                              end),
                                Fun(Executor, Lane)
                        end),
    receive {Helper, suspended} -> ok end,
    said = trunkline:send(if is_atom(To) -> {To, Node}; true -> To end, said).

%% How a call from that node ends, and what it leaves with its caller.
outcome_and_rest(A, Module, Args) ->
    cluster:call(A, fun() ->
                            Outcome = outcome(fun() -> apply(Module, call, Args) end),
                            {Outcome, process_info(self(), [messages, monitors])}
                    end).

%% How many processes wait for an outcome.
waiting() ->
    length([P || P <- processes(),
                 {_, {trunkline_erpc, F, _}} <- [process_info(P, current_function)],
                 F =:= ask orelse F =:= bypass]).

%% How many calls have been made so while Fun ran.
count_direct(B, Fun) ->
    cluster:count_calls(B, [{trunkline_executor, execute_call, 4}], Fun).

say_before(To, Rows) ->
    hold_lane(To, fun(_, _) -> ok end),
    Rows.

%% The executor of a call with long arguments has a heap that has room for them, unless the nodes
%% limit the heaps of their processes.
direct_to_limited_heaps(_) ->
    Rows = [{N, binary:copy(<<"x">>, 120)} || N <- lists:seq(1, 8000)],
    [begin
         {A, B} = cluster:pair_on_the_distribution([], Args),
         Heap = fun(List) ->
                        cluster:call(A, fun() ->
                                                trunkline_erpc:call(cluster:node_of(B), ?MODULE,
                                                                    heap, [List])
                                        end)
                end,
         Least = Heap([]),
         1 = count_direct(B, fun() -> ?assertEqual(IsLimited, Heap(Rows) =:= Least) end),
         cluster:stop_all([A, B])
     end || {IsLimited, Args} <- [{false, []}, {true, ["+hmax", "900000", "+hmaxel", "false"]}]].

%% The garbage collection takes a second heap of that size.
heap(_) ->
    true = garbage_collect(),
    {garbage_collection, Options} = process_info(self(), garbage_collection),
    proplists:get_value(min_heap_size, Options).

%% They end as erpc's calls do, and leave nothing behind; also while Trunkline stops at either node.
direct_calls(_) ->
    {A, B} = cluster:pair_on_the_distribution(),
    Node = cluster:node_of(B),
    Call = fun(Module, List, End) ->
                   cluster:connect(A, B),
                   true = cluster:await_lanes(A, B),
                   true = cluster:await_lanes(B, A),
                   outcome_and_rest(A, Module, [Node, ?MODULE, direct_call, [List, End]])
           end,
    Ends = [return, throw, exit, normal, error, no_function, killed, disconnect],
    Compare = fun(List, End) ->
                      Expected = Call(erpc, List, End),
                      ?assertEqual({End, Expected}, {End, Call(trunkline_erpc, List, End)})
              end,
    [begin
         Direct = count_direct(B, fun() -> [Compare(List, End) || _ <- [1, 2], End <- Ends] end),
         ?assert(Direct > 0)
     end || List <- [rows(), [short]]],
    lists:foreach(
      fun({Stopping, List}) ->
              Caller = cluster:call(
                         A, fun() ->
                                    Self = self(),
                                    Pid = spawn(fun() ->
                                        Result = outcome(fun() ->
                                            trunkline_erpc:call(Node, ?MODULE, direct_call,
                                                                [List, {wait, Self}])
                                        end),
                                        receive {results, To} -> To ! {results, Result} end
                                    end),
                                    receive {executor, Executor} -> {Pid, Executor} end
                            end),
              {Pid, Executor} = Caller,
              cluster:call(Stopping, cluster, stop_trunkline, []),
              cluster:call(Stopping, cluster, start_trunkline,
                           [[{lanes, 1}, {lane_transport, dist}]]),
              true = cluster:await_lanes(A, B),
              true = cluster:await_lanes(B, A),
              cluster:call(B, erlang, send, [Executor, go]),
              ?assertEqual({ok, ok}, results(A, Pid))
      end, [{Peer, List} || Peer <- [A, B], List <- [rows(), [short]]]),
    cluster:stop_all([A, B]).

%% They are counted as what they are: a message there, and one back.
direct_are_counted(_) ->
    {A, B} = cluster:pair_on_the_distribution(),
    Node = cluster:node_of(B),
    Counts = fun() ->
                     [lists:sum([maps:get(Key, Lane) || Lane <- Lanes])
                      || #{lanes := Lanes} <- [cluster:info(A, B), cluster:info(B, A)],
                         Key <- [messages, received_messages]]
             end,
    Calls = fun() -> [ok = trunkline_erpc:call(Node, erlang, apply, [fun() -> ok end, []])
                      || _ <- lists:seq(1, 100)] end,
    Before = Counts(),
    Direct = count_direct(B, fun() -> cluster:call(A, Calls) end),
    ?assert(Direct > 0),
    %% (Those that go by lane are counted, too, and so are commands.)
    cluster:await(fun() ->
                          More = lists:zipwith(fun erlang:'-'/2, Counts(), Before),
                          lists:min(More) >= 100 orelse More
                  end),
    cluster:stop_all([A, B]).

direct_call([_ | _], return) -> returned;
direct_call([_ | _], throw) -> throw(thrown);
direct_call([_ | _], exit) -> exit(ended);
direct_call([_ | _], normal) -> exit(normal);
direct_call([_ | _], error) -> error(failed);
direct_call([_ | _], no_function) -> (module()):no_function(1);
direct_call([_ | _], {wait, Caller}) -> wait(Caller);
direct_call([_ | _], killed) -> exit(self(), kill), stay();
direct_call([_ | _], disconnect) ->
    [true = erlang:disconnect_node(Node) || Node <- nodes(connected)],
    stay().

%% Not known to the compiler, which would warn of a function that is not there.
module() -> hd([?MODULE || true <- [is_process_alive(self())]]).

stay() -> receive after infinity -> ok end.

%% Requests and outcomes of any size, from one process, each behind the others.
behind_large(_) ->
    {A, B} = cluster:pair([]),
    Node = cluster:node_of(B),
    ok = cluster:call(
           A, fun() ->
                      S = self(),
                      Sizes =
                          [Size || _ <- lists:seq(1, 20), Size <- [10, 3_000_000, 10, 100_000, 10]],
                      Ids = [begin
                                 Bin = binary:copy(<<"x">>, Size),
                                 ok =
                                     trunkline_erpc:cast(Node,
                                                         fun() -> S ! {cast, byte_size(Bin)} end),
                                 {Size,
                                  trunkline_erpc:send_request(Node, erlang, binary_part,
                                                              [Bin, 0, Size])}
                             end || Size <- Sizes],
                      [Size = byte_size(trunkline_erpc:receive_response(Id, 20000))
                       || {Size, Id} <- Ids],
                      Casts = [receive {cast, Size} -> Size end || _ <- Ids],
                      true = lists:sort(Casts) =:= lists:sort(Sizes),
                      ok
              end),
    nothing_left(B, A),
    cluster:stop_all([A, B]).

%% The process that has put a large request together executes it, and is killed.
large_is_killed(_) ->
    {A, B} = cluster:pair([]),
    Node = cluster:node_of(B),
    ?assertEqual([{exit, {signal, killed}}, {exit, {exception, exited}}, {ok, 5}],
                 cluster:call(
                   A, fun() ->
                              L = lists:seq(1, ?LARGE),
                              [outcome(
                                 fun() ->
                                         trunkline_erpc:call(Node,
                                                             fun() -> _ = length(L), F() end,
                                                             ?LONG)
                                 end)
                               || F <- [fun() ->
                                                exit(self(), kill),
                                                receive after infinity -> ok end
                                        end,
                                        fun() -> exit(exited) end, fun() -> 5 end]]
                      end)),
    %% Killed while it decodes.
    ok = cluster:call(
           A, fun() ->
                      L = lists:seq(1, ?LARGE),
                      Killer = spawn(Node, cluster, kill_openers, []),
                      Killed = fun Again() ->
                                       case outcome(
                                              fun() ->
                                                      trunkline_erpc:call(
                                                        Node, lists, sum, [L], ?LONG)
                                              end) of
                                           {ok, _} -> Again();
                                           {exit, {signal, Reason}} -> Reason;
                                           {error, {erpc, Reason}} -> Reason
                                       end
                               end(),
                      true = Killed =:= killed orelse Killed =:= noconnection,
                      exit(Killer, kill),
                      ok
              end),
    %% So does the outcome end with the process that puts it together, with a timeout and without
    %% (then it is the only thing that goes by lane).
    [?assertEqual(
        {{error, {erpc, noconnection}}, {messages, []}},
        cluster:call(
          A, fun() ->
                     Killer = spawn(cluster, kill_openers, []),
                     Lost = fun Again() ->
                                    case outcome(fun() ->
                                                         trunkline_erpc:call(
                                                           Node, ?MODULE, to_pack, [], Time)
                                                 end) of
                                        {ok, _} -> Again();
                                        Other -> Other
                                    end
                            end(),
                     exit(Killer, kill),
                     {Lost, process_info(self(), messages)}
             end)) || Time <- [?LONG, infinity]],
    nothing_left(B, A),
    cluster:stop_all([A, B]).

%% Large, and slow to put together: a binary makes it a parcel.
to_pack() -> [binary:copy(<<"x">>, 5_000) | lists:seq(1, 2_000_000)].

%% Waiting is not slower with a long mailbox. The search of a mailbox costs reductions: they are
%% what is measured.
long_mailbox(_) ->
    {A, B} = cluster:pair([]),
    Node = cluster:node_of(B),
    Reductions = fun(Mail) ->
                         cluster:call(
                           A, fun() ->
                                      [self() ! {mail, I} || I <- lists:seq(1, Mail)],
                                      Cost = fun() ->
                                                     {reductions, R0} =
                                                         process_info(self(), reductions),
                                                     [3 = trunkline_erpc:call(
                                                            Node, ?MODULE, add, [1, 2])
                                                      || _ <- lists:seq(1, 100)],
                                                     [[{ok, 3}, {ok, 3}] =
                                                          trunkline_erpc:multicall(
                                                            [Node, Node], ?MODULE, add, [1, 2])
                                                      || _ <- lists:seq(1, 100)],
                                                     {reductions, R1} =
                                                         process_info(self(), reductions),
                                                     R1 - R0
                                             end,
                                      _ = Cost(),
                                      Cost()
                              end)
                 end,
    Short = Reductions(0),
    Long = Reductions(50_000),
    ct:log("reductions: ~p, with a long mailbox ~p", [Short, Long]),
    ?assert(Long < 3 * Short),
    cluster:stop_all([A, B]).

many(_) ->
    {A, B} = cluster:pair([]),
    Node = cluster:node_of(B),
    ok = cluster:call(
           A, fun() ->
                      %% From one process, all under way at the same time, and from many.
                      Held = [trunkline_erpc:send_request(Node, ?MODULE, wait, [self()])
                              || _ <- lists:seq(1, 10_000)],
                      [receive {executor, Pid} -> Pid ! go end || _ <- Held],
                      [ok = trunkline_erpc:receive_response(Id, 60000) || Id <- Held],
                      Sums =
                          in_parallel(lists:seq(1, 10_000),
                                      fun(I) ->
                                              trunkline_erpc:call(Node, ?MODULE, add, [I, 1], 60000)
                                      end),
                      true = Sums =:= lists:seq(2, 10_001),
                      {messages, []} = process_info(self(), messages),
                      ok
              end),
    nothing_left(B, A),
    cluster:stop_all([A, B]).

%% A node without a process to spare says so, as erpc has it.
no_process_left(_) ->
    A = cluster:start([]),
    B = cluster:start([], peer:random_name("trunkline_full"),
                      ["+P", "1024" | cluster:dist_arguments()]),
    cluster:connect(A, B),
    cluster:await_up(A, B),
    Node = cluster:node_of(B),
    Filler = cluster:call(B, traffic, fill, []),
    lists:foreach(
      fun(E) ->
              cluster:await(
                fun() ->
                        ok = cluster:call(A, E, cast, [Node, ?MODULE, add, [1, 2]]),
                        case cluster:call(A,
                                          fun() ->
                                                  outcome(
                                                    fun() ->
                                                            E:call(
                                                              Node, ?MODULE, add, [1, 2], 20000)
                                                    end)
                                          end) of
                            {error, {erpc, system_limit}} -> true;
                            %% A process has ended, or the link is one of those that found none.
                            Other -> Other
                        end
                end)
      end, [erpc, trunkline_erpc]),
    cluster:call(A, fun() -> exit(Filler, kill) end),      % B has no process for that
    cluster:await(
      fun() ->
              case cluster:call(A,
                                fun() ->
                                        outcome(
                                          fun() ->
                                                  trunkline_erpc:call(
                                                    Node, ?MODULE, add, [1, 2], 20000)
                                          end)
                                end) of
                  {ok, 3} -> true;
                  Other -> Other
              end end),
    cluster:stop_all([A, B]).

%% The outcome of who is gone goes nowhere, and nothing is remembered of it.
dead_caller(_) ->
    {A, B} = cluster:pair([]),
    Node = cluster:node_of(B),
    cluster:call(
      A, fun() ->
                 Self = self(),
                 Callers =
                     [spawn(fun() -> trunkline_erpc:call(Node, ?MODULE, wait, [Self]) end)
                      || _ <- lists:seq(1, 100)],
                 Executors = [receive {executor, Pid} -> Pid end || _ <- Callers],
                 [exit(Pid, kill) || Pid <- Callers],
                 [Pid ! go || Pid <- Executors],
                 ok
         end),
    nothing_left(B, A),
    #{lost := Lost} = cluster:info(B, A),
    ?assertEqual(0, lists:sum(maps:values(Lost))),
    cluster:stop_all([A, B]).

%% --- faults -------------------------------------------------------------------

%% Executors are killed, among others that go on.
killed_there(_) ->
    {A, B} = cluster:pair([{lanes, 2}]),
    Node = cluster:node_of(B),
    Results = cluster:call(
                A, fun() ->
                           in_parallel(lists:seq(1, 300),
                                       fun(I) ->
                                               Self = self(),
                                               Id =
                                                   trunkline_erpc:send_request(
                                                     Node, ?MODULE, wait, [Self]),
                                               Pid = receive {executor, P} -> P end,
                                               case I rem 3 of
                                                   0 -> exit(Pid, kill);
                                                   1 -> exit(Pid, {for, I});
                                                   2 -> Pid ! go
                                               end,
                                               outcome(
                                                 fun() ->
                                                         trunkline_erpc:receive_response(Id, 20000)
                                                 end)
                                       end)
                   end),
    ?assertEqual([case I rem 3 of
                      0 -> {exit, {signal, killed}};
                      1 -> {exit, {signal, {for, I}}};
                      2 -> {ok, ok}
                  end || I <- lists:seq(1, 300)], Results),
    nothing_left(B, A),
    cluster:stop_all([A, B]).

%% Each process on the way is killed, at both ends: who waits is told, and what comes then succeeds.
killed_here(_) ->
    {A, B} = cluster:pair([{lanes, 2}]),
    Node = cluster:node_of(B),
    lists:foreach(
      fun({Victim, At, Other}) ->
              anew:lanes(
                A, B,
                fun() ->
                        Caller = under_way(A, Node),
                        ok = cluster:call(At,
                                          fun() -> kill(Victim, cluster:node_of(Other)) end),
                        ?assertEqual({Victim,
                                      lists:duplicate(10, {error, {erpc, noconnection}})},
                                     {Victim, results(A, Caller)})
                end),
              cluster:await(
                fun() ->
                        cluster:call(A,
                                     fun() ->
                                             outcome(
                                               fun() ->
                                                       trunkline_erpc:call(
                                                         Node, ?MODULE, add, [1, 2], 20000)
                                               end)
                                     end)
                             =:= {ok, 3} end)
      end, [{Victim, At, Other}
            || Victim <- [lanes, inlets, link], {At, Other} <- [{A, B}, {B, A}]]),
    cluster:stop_all([A, B]).

disconnected(_) ->
    {A, B} = cluster:pair([]),
    Node = cluster:node_of(B),
    Caller = under_way(A, Node),
    true = cluster:call(A, erlang, disconnect_node, [Node]),
    ?assertEqual(lists:duplicate(10, {error, {erpc, noconnection}}), results(A, Caller)),
    cluster:await_state(A, B, down),
    %% The next call connects, as erpc does.
    ?assertEqual(3,
                 cluster:call(A,
                              fun() -> trunkline_erpc:call(Node, ?MODULE, add, [1, 2], 20000) end)),
    cluster:await_up(A, B),
    %% The functions went on. Now they end, have nobody to tell, and do not connect to say so.
    true = cluster:call(A, erlang, disconnect_node, [Node]),
    cluster:await_state(B, A, down),
    Running = fun() -> cluster:call(B, cluster, by_module, [trunkline_executor]) end,
    cluster:await(fun() -> length(Running()) =:= 10 end),
    Executors = Running(),
    cluster:call(B, fun() -> [Pid ! go || Pid <- Executors], ok end),
    cluster:await(fun() -> Running() =:= [] end),
    ?assertEqual([], cluster:call(B, erlang, nodes, [])),
    cluster:stop_all([A, B]).

stopped_and_continued(_) ->
    {A, B} = cluster:pair([]),
    Node = cluster:node_of(B),
    cluster:suspend(B),
    %% A call's time includes the wait for a node that stands still, and for room.
    ?assertEqual(lists:duplicate(100, {error, {erpc, timeout}}),
                 cluster:call(
                   A, fun() ->
                              Bin = binary:copy(<<"x">>, 20_000),
                              in_parallel(lists:seq(1, 100),
                                          fun(_) ->
                                                  outcome(
                                                    fun() ->
                                                            trunkline_erpc:call(
                                                              Node, erlang, byte_size, [Bin], 300)
                                                    end)
                                          end)
                      end)),
    Caller = cluster:call(
               A, fun() ->
                          spawn(fun() ->
                                        Ids =
                                            [trunkline_erpc:send_request(Node, ?MODULE, add, [I, 0])
                                             || I <- lists:seq(1, 10)],
                                        receive
                                            {results, To} ->
                                                To ! {results,
                                                      [outcome(
                                                         fun() ->
                                                                 trunkline_erpc:receive_response(
                                                                   Id, 60000)
                                                         end) || Id <- Ids]}
                                        end
                                end)
                  end),
    cluster:continue(B),
    ?assertEqual([{ok, I} || I <- lists:seq(1, 10)], results(A, Caller)),
    nothing_left(B, A),
    cluster:stop_all([A, B]).

%% A node that comes back under its name executes nothing that was meant for the one before.
restarted(_) ->
    Name = peer:random_name("trunkline_again"),
    A = cluster:start([]),
    B1 = cluster:start([], Name),
    cluster:connect(A, B1),
    cluster:await_up(A, B1),
    Node = cluster:node_of(B1),
    Caller = under_way(A, Node),
    cluster:suspend(B1),
    Callers = cluster:call(
                A, fun() ->
                           [spawn(fun() ->
                                          Result =
                                              outcome(
                                                fun() ->
                                                        trunkline_erpc:call(Node, persistent_term,
                                                                            put, [executed, old])
                                                end),
                                          receive {results, To} -> To ! {results, Result} end
                                  end) || _ <- lists:seq(1, 20)]
                   end),
    cluster:await(
      fun() ->
              cluster:call(A,
                           fun() ->
                                   lists:all(
                                     fun(P) ->
                                             [{_, Status}, {_, {M, F, _}}] =
                                                 process_info(P, [status, current_function]),
                                             Status =:= waiting andalso M =:= trunkline_erpc
                                                 andalso lists:member(F, [ask, bypass])
                                     end, Callers) end) end),
    cluster:kill(B1),
    cluster:await_state(A, B1, down),
    B2 = cluster:start([], Name),
    ?assertEqual(lists:duplicate(10, {error, {erpc, noconnection}}), results(A, Caller)),
    ?assertEqual(lists:duplicate(20, {error, {erpc, noconnection}}),
                 [results(A, C) || C <- Callers]),
    ?assertEqual(3,
                 cluster:call(A,
                              fun() -> trunkline_erpc:call(Node, ?MODULE, add, [1, 2], 20000) end)),
    cluster:await_up(A, B2),
    ?assertEqual(none,
                 cluster:call(A,
                              fun() ->
                                      trunkline_erpc:call(Node, persistent_term, get,
                                                          [executed, none], 20000)
                              end)),
    cluster:stop_all([A, B1, B2]).

%% Trunkline is stopped at either end: calls in flight go on, and others go by erpc.
leaves(_) ->
    {A, B} = cluster:pair([]),
    Node = cluster:node_of(B),
    lists:foreach(
      fun(At) ->
              Caller = under_way(A, Node),
              ok = cluster:call(At, cluster, stop_trunkline, []),
              go = cluster:call(A, erlang, send, [Caller, go]),
              ?assertEqual(lists:duplicate(10, {ok, ok}), results(A, Caller)),
              %% A knows of the end of the session: who comes before that is told so.
              cluster:await(
                fun() -> cluster:call(A, trunkline_peers, session, [Node]) =:= none end),
              ?assertEqual(3,
                           cluster:call(A,
                                        fun() ->
                                                trunkline_erpc:call(
                                                  Node, ?MODULE, add, [1, 2], 20000)
                                        end)),
              ok = cluster:call(At, cluster, start_trunkline, [[]]),
              cluster:await_up(A, B)
      end, [B, A]),
    cluster:stop_all([A, B]).

%% Casts are executed once at most, with the caller's group leader, and what is missing has been
%% counted, while the other side's Trunkline is killed and started again.
casts_on_the_way(_) ->
    {A, B} = cluster:pair([{lanes, 2}, {window_bytes, 4096}]),
    Node = cluster:node_of(B),
    Counter = cluster:call(B, ?MODULE, start_counter, []),
    Counted = fun() ->
                      cluster:call(B,
                                   fun() ->
                                           Counter ! {get, self()},
                                           receive {counted, Counts} -> Counts end
                                   end)
              end,
    Number = fun() -> element(1, Counted()) end,
    More = fun(Than) ->
                   cluster:await(fun() -> Now = Number(), Now > Than + 300 orelse {Than, Now} end)
           end,
    Caster = cluster:call(A, fun() -> spawn(fun() -> keep_casting(Node, Counter, 1) end) end),
    More(0),
    lists:foreach(
      fun(_) ->
              Before = anew:sessions(A, B),
              ok =
                  cluster:call(B,
                               fun() ->
                                       logger:set_primary_config(level, none),
                                       exit(whereis(trunkline_sup), kill),
                                       ok
                               end),
              anew:await_stopped(B),
              More(Number()),
              ok = cluster:call(B, cluster, start_trunkline, [[{lanes, 2}, {window_bytes, 4096}]]),
              anew:await_session(A, B, Before),
              cluster:await_up(A, B),
              More(Number())
      end, [1, 2, 3]),
    {Sent, Leader} =
        cluster:call(A,
                     fun() -> Caster ! {stop, self()}, receive {stopped, N, L} -> {N, L} end end),
    cluster:await(fun() ->
                          #{lost := Lost} = cluster:call(A, trunkline, info, [Node]),
                          Missing = Sent - Number(),
                          Missing =< lists:sum(maps:values(Lost)) orelse {Missing, Lost}
                  end),
    ?assertMatch({_, [{1, Leader}], false}, Counted()),
    %% What a lane does with a command that it has when there is no agent any more.
    ?assertEqual({ok, 3},
                 cluster:call(
                   A, fun() ->
                              ok =
                                  trunkline_direct:send({apply, nobody, Leader},
                                                         {?MODULE, add, [1, 2]}, Node),
                              ok =
                                  trunkline_direct:send({apply, nobody, Leader},
                                                         {erlang, send,
                                                          [Counter, {cast, direct, x}]}, Node),
                              Alias = alias(),
                              ok =
                                  trunkline_direct:send({apply, Alias, Leader},
                                                         {?MODULE, add, [1, 2]}, Node),
                              receive {[alias | Alias], Outcome} -> Outcome end
                      end)),
    cluster:await(fun() -> element(3, Counted()) end),
    cluster:stop_all([A, B]).

keep_casting(Node, Counter, N) ->
    receive
        {stop, To} -> To ! {stopped, N - 1, group_leader()}
    after 10 ->
            [ok = trunkline_erpc:cast(Node, fun() -> Counter ! {cast, I, group_leader()} end)
             || I <- lists:seq(N, N + 99)],
            keep_casting(Node, Counter, N + 100)
    end.

start_counter() -> spawn(fun() -> count(#{}) end).

count(Counted) ->
    receive
        {cast, I, Leader} ->
            {N, _} = maps:get(I, Counted, {0, none}),
            count(Counted#{I => {N + 1, Leader}});
        {get, To} ->
            To ! {counted,
                  {map_size(Counted), lists:usort(maps:values(maps:remove(direct, Counted))),
                   is_map_key(direct, Counted)}},
            count(Counted)
    end.

%% The agent's state is after a call what it was before, whichever way the call has ended.
nothing_remembered(_) ->
    {A, B} = cluster:pair([]),
    NodeB = cluster:node_of(B),
    [true, true] = cluster:call(
                     A, fun() ->
                                [begin
                                     Agent = trunkline_agent:new(trunkline_route:lookup(NodeB)),
                                     Command = {apply, make_ref(), group_leader()},
                                     Under =
                                         trunkline_agent:step(Command,
                                                              {erlang, apply, [Fun, []]}, Agent),
                                     true = Under =/= Agent,
                                     receive
                                         {'DOWN', _, process, Pid, Reason} ->
                                             Agent =:= trunkline_agent:down(Pid, Reason, Under)
                                     end
                                 end || Fun <- [fun() -> ok end, fun() -> fail(kill) end]]
                        end),
    cluster:stop_all([A, B]).

%% Nobody waits for a node that does not answer: each of the others executes its call at once, and
%% what the caller is told of it is so.
silent_node(_) ->
    [A, B, C] = cluster:start_all([[], [], []],
                                  cluster:dist_arguments() ++ ["-kernel", "net_setuptime", "20"]),
    [NodeB, NodeC] = [cluster:node_of(N) || N <- [B, C]],
    _ = [begin cluster:connect(A, N), cluster:await_up(A, N) end || N <- [B, C]],
    Silence = fun() ->
                      cluster:suspend(B),
                      _ = cluster:call(A, erlang, disconnect_node, [NodeB]),
                      cluster:await_state(A, B, down)
              end,
    Silence(),
    Ask = fun Ask(E, Time) ->
                  case cluster:call(A,
                                    fun() ->
                                            E:multicall([NodeB, NodeC, NodeB], erlang,
                                                        node, [], Time)
                                    end) of
                      %% A slow machine.
                      [_, {error, {erpc, timeout}}, _] when Time < 10_000 -> Ask(E, 2 * Time);
                      Ends -> Ends
                  end
          end,
    Failed = {error, {erpc, timeout}},
    ?assertEqual([Failed, {ok, NodeC}, Failed], Ask(erpc, 1000)),
    ?assertEqual([Failed, {ok, NodeC}, Failed], Ask(trunkline_erpc, 1000)),
    %% It answers when C has executed its call: in time, unless the machine takes seconds.
    Late = fun Late(Tries) ->
                   Silence(),
                   Caller = cluster:call(
                              A, fun() -> Self = self(),
                                          Pid =
                                              spawn(
                                                fun() ->
                                                        keep(
                                                          trunkline_erpc:multicall(
                                                            [NodeB, NodeC],
                                                            fun() -> Self ! node() end))
                                                end),
                                          receive NodeC -> Pid end end),
                   cluster:continue(B),
                   case cluster:call(A,
                                     fun() ->
                                             Caller ! {get, self()},
                                             receive {got, Got} -> Got end
                                     end) of
                       [{error, {erpc, noconnection}}, {ok, NodeC}] when Tries > 1 ->
                           Late(Tries - 1);
                       Ends -> Ends
                   end
           end,
    ?assertEqual([{ok, NodeB}, {ok, NodeC}], Late(4)),
    cluster:stop_all([A, B, C]).

%% Whatever is not right is answered as erpc answers it on the release that runs.
odd_arguments(Config) ->
    lists:foreach(
      fun(There) ->
              Node = cluster:node_of(?config(There, Config)),
              {Differences, N} =
                  cluster:call(?config(a, Config),
                               fun() ->
                                       odd:differences(erpc, trunkline_erpc,
                                                       odd_table(Node), singles)
                               end),
              ct:log("~p: ~b calls", [There, N]),
              ?assertEqual({There, []}, {There, Differences})
      end, [a, plain, lanes]).

odd_table(Node) ->
    Fun = fun() -> ok end,
    Sleep = fun() -> timer:sleep(5000) end,
    MFA = [erlang, node, []],
    Id = fun(M) -> M:send_request(Node, timer, sleep, [1000]) end,
    Ids = fun(M) -> M:send_request(Node, timer, sleep, [1000], label, M:reqids_new()) end,
    [{call, fun(_) -> [Node, Fun] end},
     {call, fun(_) -> [Node, {just, Sleep}, 500] end},
     {call, fun(_) -> [Node | MFA] end},
     {call, fun(_) -> [Node, {just, timer}, {just, sleep}, {just, [5000]}, 500] end},
     {cast, fun(_) -> [Node, Fun] end},
     {cast, fun(_) -> [Node | MFA] end},
     {multicall, fun(_) -> [[Node], Fun] end},
     {multicall, fun(_) -> [[Node], Fun, ?LONG] end},
     {multicall, fun(_) -> [[Node] | MFA] end},
     {multicall, fun(_) -> [[Node] | MFA] ++ [?LONG] end},
     {multicast, fun(_) -> [[Node], Fun] end},
     {multicast, fun(_) -> [[Node] | MFA] end},
     {send_request, fun(_) -> [Node, Fun] end},
     {send_request, fun(_) -> [Node | MFA] end},
     {send_request, fun(M) -> [Node, Fun, {just, label}, M:reqids_new()] end},
     {send_request, fun(M) -> [Node | MFA] ++ [{just, label}, M:reqids_new()] end},
     {receive_response, fun(M) -> [M:send_request(Node, Fun)] end},
     {receive_response, fun(M) -> [Id(M), 0] end},
     {receive_response, fun(M) -> [Ids(M), 0, true] end},
     {wait_response, fun(M) -> [Id(M)] end},
     {wait_response, fun(M) -> [Id(M), 0] end},
     {wait_response, fun(M) -> [Ids(M), 0, true] end},
     {check_response, fun(M) -> [unrelated, Id(M)] end},
     {check_response, fun(M) -> [unrelated, Ids(M), true] end},
     {reqids_new, fun(_) -> [] end},
     {reqids_size, fun(M) -> [Ids(M)] end},
     {reqids_to_list, fun(M) -> [Ids(M)] end},
     {reqids_add, fun(M) -> [Id(M), {just, label}, Ids(M)] end}].

keep(Result) -> receive {get, To} -> To ! {got, Result} end.

%% The same with nodes whose lanes are full. They are served in whatever order there is room.
full_nodes(_) ->
    [A, B, C, D] = cluster:start_all([[], [], [], []]),
    [NodeB, NodeC, NodeD] = [cluster:node_of(N) || N <- [B, C, D]],
    _ = [begin cluster:connect(A, N), cluster:await_up(A, N) end || N <- [B, C, D]],
    lists:foreach(fun cluster:suspend/1, [B, C]),
    %% The lanes of the calling process.
    Fill = fun() -> _ = [ok = fill({no_such_name, Node}) || Node <- [NodeB, NodeC]] end,
    Ask = fun Ask(Time) ->
                  case cluster:call(A,
                                    fun() ->
                                            Fill(),
                                            trunkline_erpc:multicall(
                                              [NodeB, NodeC, NodeD], erlang, node, [], Time)
                                    end) of
                      [_, _, {error, {erpc, timeout}}] when Time < 10_000 -> Ask(2 * Time);
                      Ends -> Ends
                  end
          end,
    Failed = {error, {erpc, timeout}},
    ?assertEqual([Failed, Failed, {ok, NodeD}], Ask(1000)),
    Tell = fun(F) ->
                   cluster:call(
                     A, fun() -> Self = self(),
                                 Told = spawn(fun() -> told([]) end),
                                 spawn(fun() ->
                                               Fill(),
                                               F([NodeB, NodeC, NodeD],
                                                 fun() -> Told ! {told, node()} end),
                                               Self ! done,
                                               Told ! returned
                                       end),
                                 Told
                         end)
           end,
    Told = [Tell(F) || F <- [fun trunkline_erpc:multicast/2, fun trunkline_erpc:multicall/2]],
    Await = fun(Expected) ->
                    cluster:await(
                      fun() ->
                              case [cluster:call(A,
                                                 fun() ->
                                                         Pid ! {get, self()},
                                                         receive {got, Got} -> Got end
                                                 end) || Pid <- Told] of
                                  [Expected, Expected] -> true;
                                  Other -> Other
                              end end)
            end,
    Await([NodeD]),
    cluster:continue(C),
    Await(lists:sort([NodeC, NodeD])),
    cluster:continue(B),
    Await(lists:sort([NodeB, NodeC, NodeD, returned])),
    cluster:stop_all([A, B, C, D]).

told(All) ->
    receive
        {told, Node} -> told(lists:sort([Node | All]));
        returned -> told(lists:sort([returned | All]));
        {get, To} -> To ! {got, All}, told(All)
    end.

%% Until it stays full: the lane sends what its window lets through.
fill(To) -> fill(To, 20).

fill(_, 0) ->
    ok;
fill(To, N) ->
    case trunkline:send(To, binary:copy(<<"x">>, 3000), [nosuspend]) of
        ok -> fill(To, 20);
        nosuspend -> receive after 10 -> fill(To, N - 1) end
    end.

%% --- helpers ------------------------------------------------------------------

%% A process at A that has ten requests under way to Node, in functions that do not return until
%% it is told `go'.
under_way(A, Node) ->
    cluster:call(
      A, fun() ->
                 Self = self(),
                 Caller = spawn(fun() ->
                                        Ids =
                                            [trunkline_erpc:send_request(
                                               Node, ?MODULE, wait, [self()])
                                             || _ <- lists:seq(1, 10)],
                                        Executors =
                                            [receive {executor, Pid} -> Pid end || _ <- Ids],
                                        Self ! {self(), under_way},
                                        await_results(Ids, Executors)
                                end),
                 receive {Caller, under_way} -> Caller end
         end).

await_results(Ids, Executors) ->
    receive
        go ->
            lists:foreach(fun(Pid) -> Pid ! go end, Executors),
            await_results(Ids, Executors);
        {results, To} ->
            To ! {results,
                  [outcome(fun() -> trunkline_erpc:receive_response(Id, 20000) end) || Id <- Ids]}
    end.

results(A, Caller) ->
    cluster:call(A,
                 fun() ->
                         Caller ! {results, self()},
                         receive {results, Results} -> Results end
                 end).

in_parallel(List, Fun) ->
    Refs = [element(2, spawn_monitor(fun() -> exit({result, Fun(E)}) end)) || E <- List],
    [receive {'DOWN', Ref, process, _, {result, Result}} -> Result end || Ref <- Refs].

kill(Victim, Node) -> lists:foreach(fun(Pid) -> exit(Pid, kill) end, cluster:find(Victim, Node)).

%% At B no executor is left, and its agents for A remember none.
nothing_left(B, A) ->
    cluster:await(
      fun() ->
              cluster:call(
                B, fun() ->
                           case {cluster:by_module(trunkline_executor),
                                 cluster:by_module(trunkline_opener),
                                 [monitored_processes(Inlet)
                                  || Inlet <- cluster:find(inlets, cluster:node_of(A))]} of
                               {[], [], Monitors} ->
                                   lists:all(fun(Ms) -> Ms =:= [] end, Monitors) orelse Monitors;
                               Other -> Other
                           end
                   end)
      end).

monitored_processes(Pid) ->
    {monitors, Monitors} = process_info(Pid, monitors),
    Monitors.

%% --- what is executed ---------------------------------------------------------

add(X, Y) -> X + Y.

fail(throw) -> throw(thrown);
fail(exit) -> exit(exited);
fail(exit_normal) -> exit(normal);
fail(kill) -> exit(self(), kill), receive after infinity -> ok end;
fail(error) -> error({some, reason});
fail(error_with_args) -> error(reason, [error_with_args]);
fail(bif) -> [length(id(x))];
fail(arithmetic) -> [add(1, id(a))];
fail(inner) -> [fail(no_such_clause)];
fail(tail) -> no_such_module:f();
fail(in_a_fun) -> [begin 1 = id(X) end || X <- [1, 2]];
fail(system_limit) -> [list_to_atom(lists:duplicate(300, $a))];
fail(nested) -> [erpc:call(node(), fun() -> error(deep) end)].

deep([_ | List]) -> [deep(List)];
deep([]) -> error(deep).

id(X) -> X.

now_ms() -> erlang:monotonic_time(millisecond).

wait(Caller) ->
    Caller ! {executor, self()},
    receive go -> ok end.

%% Lets one that waits for this process go on.
go() ->
    receive {executor, Pid} -> Pid ! go end.

report(To) -> To ! {from, node(), group_leader()}, ok.

me() ->
    [process_info(self(), Item)
     || Item <- [dictionary, links, monitors, trap_exit, message_queue_len, priority]]
        ++ [{registered_name, case process_info(self(), registered_name) of [] -> [] end},
            is_pid(group_leader())].

link_to_dead() ->
    Pid = spawn(fun() -> receive go -> exit(linked_ended) end end),
    link(Pid),
    Pid ! go,
    receive after infinity -> ok end.

%% Keeps the numbers that it gets, for hold_for/2.
helper() ->
    helper([]).

helper(Numbers) ->
    receive
        {N, _} when is_integer(N) -> helper([N | Numbers]);
        {numbers, To} -> To ! {numbers, lists:reverse(Numbers)}, helper(Numbers)
    end.

hold_for(Receiver, Caller) ->
    Receiver ! {numbers, self()},
    Numbers = receive {numbers, Got} -> Got end,
    trunkline:send(Caller, {sent_before, binary:copy(<<"y">>, 300_000)}),
    Numbers.
