%% What the shell says of arguments that are not right: which one it is, and why.
-module(errors_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([trunkline/1, erpc/1, inbox/1, gen/1, gen_server/1, gen_statem/1, gen_event/1, adopt/1]).

suite() -> [{timetrap, {minutes, 10}}].

all() -> [trunkline, erpc, inbox, gen, gen_server, gen_statem, gen_event, adopt].

init_per_suite(Config) ->
    {A, B} = cluster:pair([]),
    ok = cluster:call(A, logger, set_primary_config, [level, none]),
    true = cluster:call(B, erlang, register,
                        [silent, cluster:call(B, erlang, spawn, [timer, sleep, [infinity]])]),
    [{a, A}, {b, B} | Config].

end_per_suite(Config) -> cluster:stop_all([?config(N, Config) || N <- [a, b]]).

-define(SOME, {just, x}).

trunkline(Config) ->
    named(Config, trunkline,
          fun(Node, M) ->
                  To = {silent, Node},
                  [{send, [To, ?SOME]}, {send, [To, ?SOME, []]}, {cast, [To, ?SOME]},
                   {multicast, [[To], ?SOME]}, {multicast, [[To], ?SOME, []]},
                   {call, [To, ?SOME, 20]}, {call, [To, ?SOME]} | servers(Node)]
                      ++ requests([To, ?SOME], M)
                      ++ [{monitor, [To]}, {monitor, [process, To]},
                          {demonitor, [M:monitor(To)]}, {demonitor, [M:monitor(To), []]},
                          {exit, [self(), normal]}, {drain, [no_such_node]},
                          {drain, [no_such_node, 0]}, {drain, []}, {info, []}, {info, [Node]},
                          {options, []}, {await_up, [Node, 0]}, {advise, []},
                          {advise, [#{time => 1}]}, {compare, [no_such_node]},
                          {compare, [no_such_node, #{}]}]
          end).

servers(Node) ->
    [{abcast, [silent, ?SOME]}, {abcast, [[Node], silent, ?SOME]},
     {multi_call, [no_such_name, ?SOME]}, {multi_call, [[Node], no_such_name, ?SOME]},
     {multi_call, [[Node], silent, ?SOME, 20]}].

%% Of request ids, where it takes those arguments to send a request.
requests(Args, M) ->
    Request = fun() -> apply(M, send_request, [value(A) || A <- Args]) end,
    Some = fun() -> apply(M, send_request, [value(A) || A <- Args] ++ [label, M:reqids_new()]) end,
    [{send_request, Args}, {send_request, Args ++ [?SOME, M:reqids_new()]},
     {reqids_new, []}, {reqids_size, [Some()]}, {reqids_to_list, [Some()]},
     {reqids_add, [Request(), ?SOME, Some()]}, {wait_response, [Request(), 0]},
     {wait_response, [Some(), 0, true]}, {receive_response, [Request(), 0]},
     {receive_response, [Some(), 0, true]}, {check_response, [unrelated, Request()]},
     {check_response, [unrelated, Some(), true]}].

value({just, Value}) -> Value;
value(Value) -> Value.

erpc(Config) ->
    named(Config, trunkline_erpc,
          fun(Node, M) ->
                  Fun = {just, fun() -> timer:sleep(200) end},
                  Sleep = [timer, sleep, [200]],
                  [{call, [Node, fun() -> ok end]}, {call, [Node, Fun, 20]},
                   {call, [Node, erlang, node, []]}, {call, [Node | Sleep] ++ [20]},
                   {cast, [Node, fun() -> ok end]}, {cast, [Node, erlang, node, []]},
                   {multicall, [[Node], fun() -> ok end]}, {multicall, [[Node], Fun, 20]},
                   {multicall, [[Node], erlang, node, []]}, {multicall, [[Node] | Sleep] ++ [20]},
                   {multicast, [[Node], fun() -> ok end]}, {multicast, [[Node], erlang, node, []]},
                   {send_request, [Node, fun() -> ok end]},
                   {send_request, [Node, erlang, node, [], ?SOME, M:reqids_new()]},
                   {receive_response, [M:send_request(Node, fun() -> ok end)]},
                   {wait_response, [M:send_request(Node, fun() -> ok end)]}
                   | requests([Node, value(Fun)], M)] ++ [{send_request, [Node, erlang, node, []]}]
          end).

inbox(Config) ->
    named(Config, trunkline_inbox,
          fun(_, M) ->
                  Name = fun() ->
                                 {local,
                                  list_to_atom("odd_"
                                                   ++ integer_to_list(
                                                        erlang:unique_integer([positive])))}
                         end,
                  {ok, Inbox} = M:open(#{}),
                  [{start_link, [mailroom, ?SOME, []]}, {start_link, [Name(), mailroom, ?SOME, []]},
                   {open, [#{}]}, {open, [Name(), #{}]}, {done, [Inbox, 1]}, {info, [Inbox]},
                   {close, [Inbox]}]
          end).

gen(Config) ->
    named(Config, trunkline_gen,
          fun(Node, M) ->
                  Args = [{silent, Node}, {just, '$gen_call'}, ?SOME],
                  [{call, Args}, {call, Args ++ [20]} | requests(Args, M)]
          end).

gen_server(Config) ->
    named(Config, trunkline_gen_server,
          fun(Node, M) ->
                  Args = [{silent, Node}, ?SOME],
                  [{call, Args}, {call, Args ++ [20]}, {cast, Args} | servers(Node)]
                      ++ requests(Args, M)
          end).

gen_statem(Config) ->
    named(Config, trunkline_gen_statem,
          fun(Node, M) ->
                  Args = [{silent, Node}, ?SOME],
                  Response = M:send_request({no_such_name, Node}, x),
                  [{call, Args}, {call, Args ++ [20]}, {cast, Args},
                   {wait_response, [Response]}, {receive_response, [Response]}
                   | requests(Args, M)]
          end).

gen_event(Config) ->
    named(Config, trunkline_gen_event,
          fun(Node, M) ->
                  To = {no_such_name, Node},
                  [{F, [To, {just, handler}, ?SOME]}
                   || F <- [call, add_handler, add_sup_handler, delete_handler]]
                      ++ [{F, [To, {handler, x}, {handler, y}]}
                          || F <- [swap_handler, swap_sup_handler]]
                      ++ [{F, [To, ?SOME]} || F <- [notify, sync_notify]]
                      ++ [{which_handlers, [To]},
                          {call, [{silent, Node}, {just, handler}, ?SOME, 20]}
                          | requests([{silent, Node}, {just, handler}, ?SOME], M)]
          end).

adopt(Config) ->
    named(Config, trunkline_adopt,
          fun(_, _) -> [{check, []}, {report, [[]]}, {load, [[]]},
                           {write, [[], {just, "no_such_folder/x"}]}]
          end).

%% Every badarg of that module names the argument that is odd, and says something about it.
named(Config, Module, Calls) ->
    Node = cluster:node_of(?config(b, Config)),
    Errors = cluster:call(?config(a, Config),
                          fun() ->
                                  N = length(Calls(Node, Module)),
                                  odd:errors(Module,
                                             [{element(1, lists:nth(I, Calls(Node, Module))),
                                               fun(M) ->
                                                       element(2, lists:nth(I, Calls(Node, M)))
                                               end}
                                              || I <- lists:seq(1, N)])
                          end),
    BadArgs = [{F, Args, Odd, Said} || {F, Args, Odd, Reason, Said} <- Errors,
                                       Reason =:= badarg orelse Reason =:= {erpc, badarg}],
    ct:log("~b calls end with badarg, ~b with another error: ~p",
           [length(BadArgs), length(Errors) - length(BadArgs),
            lists:usort([{F, length(Args), tag(Reason)} || {F, Args, _, Reason, _} <- Errors])]),
    ?assertNotEqual([], BadArgs),
    %% (What a function of OTP's raises is OTP's, and not all of these name an argument.)
    ?assertEqual([], [Bad || {_, _, _, Said} = Bad <- BadArgs,
                             string:find(Said, "in function  trunkline") =/= nomatch,
                             re:run(Said, "\\*\\*\\* argument [1-6]: .") =:= nomatch]),
    %% Where it is the function's own error, and not that of a function of OTP that it is for.
    Named = [{Bad, lists:sort([list_to_integer(N) || [N] <- Ns])}
             || {F, Args, _, Said} = Bad <- BadArgs,
                string:find(Said,
                            io_lib:format("in function  ~ts:~ts/~b", [Module, F, length(Args)]))
                    =/= nomatch,
                {match, Ns} <- [re:run(Said, "argument ([1-6]): ",
                                       [global, {capture, all_but_first, list}])]],
    ct:log("~b by functions of ~ts", [length(Named), Module]),
    %% (send_request/4 of erpc is two functions; which one was meant is not always clear.)
    ?assertEqual([], [{Bad, Ns} || {{F, Args, Odd, _} = Bad, Ns} <- Named, Ns =/= [Odd],
                                   {Module, F, length(Args)}
                                       =/= {trunkline_erpc, send_request, 4}]).

tag(Reason) when is_tuple(Reason) -> element(1, Reason);
tag(Reason) -> Reason.
