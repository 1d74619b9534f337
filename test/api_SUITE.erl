%% Every form of the API does what OTP's own function of that name does: to a
%% local process, to a process at a node without Trunkline, and to one at a node
%% with it. The same table runs against all three, and against OTP.
-module(api_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1,
         init_per_group/2, end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([send/1, send_errors/1, send_options/1, send_alias/1, cast/1, call/1, call_exits/1,
         call_names/1, call_timeout/1, replies/1, requests/1, request_errors/1, check/1]).
-export([second_reply/1, not_started/1, abandoned_calls/1, session_ends/1, reply_at_the_end/1,
         long_mailbox/1, options/1, loaded/1, info/1, info_without/1, send_options_down/1]).
-export([here/3, has_request/1]).

suite() -> [{timetrap, {minutes, 6}}].

all() -> [{group, local}, {group, plain}, {group, lanes},
          not_started, abandoned_calls, session_ends, reply_at_the_end, long_mailbox, options,
          loaded, info, info_without, send_options_down].

groups() ->
    Cases = [send, send_errors, send_options, send_alias, cast, call, call_exits, call_names,
             call_timeout, replies, requests, request_errors, check],
    [{local, [], Cases}, {plain, [], Cases}, {lanes, [], Cases ++ [second_reply]}].

init_per_suite(Config) -> comparison:start(Config).

end_per_suite(Config) -> comparison:stop(Config).

init_per_group(Group, Config) -> comparison:init_per_group(Group, Config).

end_per_group(_, _) -> ok.

init_per_testcase(_, Config) ->
    case ?config(there, Config) of
        undefined ->
            Config;
        There ->
            [begin {ok, Pid} = cluster:call(There, server, start, [Kind]), {Kind, Pid} end
             || Kind <- [gen_server, gen_statem]] ++ Config
    end.

end_per_testcase(_, Config) ->
    case ?config(there, Config) of
        undefined -> ok;
        There -> cluster:call(There, server, stop_all, [])
    end.

-define(LONG, 60_000).

%% Runs Fun(Module) at node A for OTP's function and for ours; both must end the
%% same way. What is special to either is in same/1.
both(Config, Otp, Ours, Args) ->
    Expected = at(Config, Otp, Args),
    ?assertEqual({Args, Expected}, {Args, at(Config, Ours, Args)}),
    Expected.

at(Config, {Module, Function}, Args) ->
    cluster:call(?config(a, Config), ?MODULE, here, [Module, Function, Args]).

%% How a call ends, in a form that does not depend on which module it was.
here(Module, Function, Args) ->
    logger:set_primary_config(level, none),
    try apply(Module, Function, Args) of
        Result -> {ok, Result}
    catch
        exit:{Reason, {M, F, A}} when M =:= gen_server; M =:= trunkline -> {exit, Reason, F, A};
        Class:Reason -> {Class, Reason}
    end.

seen(Config) ->
    cluster:call(?config(there, Config), gen_server, call, [test_gen_server, seen, infinity]).

await_seen(Config, Expected) ->
    Key = {seen, make_ref()},
    put(Key, []),
    cluster:await(fun() ->
                          put(Key, get(Key) ++ seen(Config)),
                          get(Key) =:= Expected orelse {false, get(Key)}
                  end).

destinations(Config) ->
    [?config(gen_server, Config), {test_gen_server, cluster:node_of(?config(there, Config))}].

send(Config) ->
    lists:foreach(
      fun(To) ->
              {ok, {hello, To}} =
                  both(Config, {erlang, send}, {trunkline, send}, [To, {hello, To}]),
              await_seen(Config, [{info, {hello, To}}, {info, {hello, To}}])
      end, destinations(Config)).

send_errors(Config) ->
    There = cluster:node_of(?config(there, Config)),
    {error, badarg} = both(Config, {erlang, send}, {trunkline, send}, [no_such_name, x]),
    {ok, x} = both(Config, {erlang, send}, {trunkline, send}, [{no_such_name, There}, x]),
    {error, badarg} = both(Config, {erlang, send}, {trunkline, send}, ["not a destination", x]),
    {error, badarg} = both(Config, {erlang, send}, {trunkline, send}, [{a, b, c}, x]),
    {error, badarg} = both(Config, {erlang, send}, {trunkline, send}, [{"a", There}, x]),
    {error, badarg} = both(Config, {erlang, send}, {trunkline, send}, [{a, "node"}, x]),
    Dead = cluster:call(?config(there, Config), fun() -> {P, R} = spawn_monitor(fun() -> ok end),
                                                         receive {'DOWN', R, _, _, _} -> P end end),
    {ok, x} = both(Config, {erlang, send}, {trunkline, send}, [Dead, x]),
    {error, badarg} = both(Config, {erlang, send}, {trunkline, send}, [Dead, x, [no_such_option]]),
    {error, badarg} = both(Config, {erlang, send}, {trunkline, send}, [Dead, x, nosuspend]),
    {error, badarg} =
        both(Config, {erlang, send}, {trunkline, send}, [Dead, x, [nosuspend | noconnect]]),
    %% And whatever else is odd. (To a list, send/2 is a multicast.)
    Odd = fun() ->
                  odd:differences(erlang, trunkline,
                                  [{send, fun(_) -> [{no_such_name, There}, {just, x}] end},
                                   {send, fun(_) -> [{no_such_name, There}, {just, x}, []] end},
                                   {exit, fun(_) -> [Dead, {just, why}] end},
                                   {monitor, fun(_) -> [process, {no_such_name, There}] end},
                                   {demonitor,
                                    fun(M) -> [M:monitor(process, {no_such_name, There})] end},
                                   {demonitor,
                                    fun(M) -> [M:monitor(process, {no_such_name, There}), []] end}],
                                  pairs)
          end,
    {Differences, N} = cluster:call(?config(a, Config), Odd),
    ct:log("~b calls", [N]),
    ?assertEqual([],
                 [D || {Name, Args, _, _} = D <- Differences,
                       not (Name =:= send andalso length(Args) =:= 2 andalso is_list(hd(Args)))]).

send_options(Config) ->
    lists:foreach(
      fun(Options) ->
              lists:foreach(
                fun(To) ->
                        {ok, ok} =
                            both(Config, {erlang, send}, {trunkline, send}, [To, Options, Options]),
                        await_seen(Config, [{info, Options}, {info, Options}])
                end, destinations(Config))
      end,
      [[], [nosuspend], [noconnect], [nosuspend, noconnect], [noconnect, nosuspend, noconnect]]),
    Nowhere = {test_gen_server, 'no_such_node@localhost'},
    {ok, noconnect} = both(Config, {erlang, send}, {trunkline, send}, [Nowhere, x, [noconnect]]).

%% The same to a node that is not connected: what erlang:send/3 answers, and at once.
send_options_down(_) ->
    %% No attempt to connect fails while the test lasts.
    {A, B} = cluster:pair([], [], cluster:dist_arguments() ++ ["-kernel", "net_setuptime", "100"]),
    To = {nobody, cluster:node_of(B)},
    Absent = fun() ->
                     _ = cluster:call(A, erlang, disconnect_node, [cluster:node_of(B)]),
                     [cluster:await_state(X, Y, down) || {X, Y} <- [{A, B}, {B, A}]]
             end,
    Silent = fun() -> Absent(), cluster:suspend(B) end,
    Up = fun() -> cluster:continue(B), cluster:connect(A, B), cluster:await_up(A, B) end,
    Send = fun(Module, Before, Options) ->
                   cluster:call(
                     A, fun() ->
                                Start = erlang:monotonic_time(millisecond),
                                [ok = Module:send(To, first, []) || before <- [Before]],
                                Answer = Module:send(To, x, Options),
                                {Answer, erlang:monotonic_time(millisecond) - Start < 50_000}
                        end)
           end,
    Table = [{{Situation, Options},
              [begin Up(), Prepare(), Send(Module, Before, Options) end
               || Module <- [erlang, trunkline]]}
             || {Situation, Prepare, Before} <- [{connected, fun() -> ok end, none},
                                                 {absent, Absent, none},
                                                 {connecting, Absent, before},
                                                 {silent, Silent, none},
                                                 {connecting_to_silent, Silent, before}],
                Options <- [[], [nosuspend], [noconnect], [nosuspend, noconnect]]],
    Up(),
    cluster:suspend(B),
    cluster:kill(B),
    cluster:await_state(A, B, down),
    Dead = [{{dead, Options}, [Send(Module, none, Options) || Module <- [erlang, trunkline]]}
            || Options <- [[noconnect], [nosuspend, noconnect], [], [nosuspend]]],
    ct:log("~p", [Table ++ Dead]),
    [?assertEqual({Case, Otp}, {Case, Ours}) || {Case, [Otp, Ours]} <- Table ++ Dead],
    ?assertMatch([noconnect, noconnect, noconnect, noconnect, noconnect, noconnect],
                 [Answer || {_, [{Answer, _}, _]} <- Table ++ Dead, Answer =/= ok]),
    ?assertEqual([],
                 [Late
                  || {_, Answers} = Late <- Table ++ Dead, lists:keymember(false, 2, Answers)]),
    cluster:stop(A).

send_alias(Config) ->
    There = ?config(there, Config),
    Alias = cluster:call(There, fun() ->
                                        Pid = spawn(fun alias_owner/0),
                                        Pid ! {alias, self()},
                                        receive {Pid, Alias} -> Alias end
                                end),
    %% By one process: what two have sent has no order.
    [one, two] =
        cluster:call(?config(a, Config),
                     fun() -> [trunkline:send(Alias, Message) || Message <- [one, two]] end),
    ?assertEqual([one, two], cluster:call(There, fun() -> alias_owner ! {got, self()},
                                                          receive {got, Got} -> Got end
                                                 end)).

alias_owner() ->
    register(alias_owner, self()),
    receive {alias, From} -> From ! {self(), alias()} end,
    One = receive A when is_atom(A) -> A end,              % the question may overtake a lane
    Two = receive B when is_atom(B) -> B end,
    receive {got, To} -> To ! {got, [One, Two]} end.

cast(Config) ->
    There = cluster:node_of(?config(there, Config)),
    lists:foreach(
      fun(To) ->
              {ok, ok} = both(Config, {gen_server, cast}, {trunkline, cast}, [To, {hello, To}]),
              await_seen(Config, [{cast, {hello, To}}, {cast, {hello, To}}])
      end, destinations(Config)),
    {ok, ok} = both(Config, {gen_server, cast}, {trunkline, cast}, [no_such_name, x]),
    {ok, ok} = both(Config, {gen_server, cast}, {trunkline, cast}, [{no_such_name, There}, x]),
    {ok, ok} = both(Config, {gen_server, cast}, {trunkline, cast}, [{global, no_such_name}, x]),
    {ok, ok} = both(Config, {gen_server, cast}, {trunkline, cast}, [{via, no_such_module, x}, x]),
    {error, function_clause} = both(Config, {gen_server, cast}, {trunkline, cast}, ["nonsense", x]).

call(Config) ->
    There = cluster:node_of(?config(there, Config)),
    lists:foreach(
      fun(To) ->
              {ok, hello} =
                  both(Config, {gen_server, call}, {trunkline, call}, [To, {echo, hello}]),
              {ok, hello} = both(Config, {gen_server, call}, {trunkline, call},
                                 [To, {echo, hello}, infinity]),
              {ok, hello} =
                  both(Config, {gen_server, call}, {trunkline, call}, [To, {echo, hello}, 10000]),
              {ok, hello} =
                  both(Config, {gen_server, call}, {trunkline, call}, [To, {elsewhere, hello}]),
              {ok, hello} = both(Config, {gen_server, call}, {trunkline, call},
                                 [To, {by_hand, hello}, 10000]),
              {ok, hello} =
                  both(Config, {gen_server, call}, {trunkline, call}, [To, {echo_late, hello, 20}]),
              {ok, {Pid, Node}} = at(Config, {trunkline, call}, [To, from_pid]),
              ?assertEqual({true, cluster:node_of(?config(a, Config))}, {is_pid(Pid), Node})
      end, [?config(gen_statem, Config), {test_gen_statem, There} | destinations(Config)]).

call_exits(Config) ->
    There = cluster:node_of(?config(there, Config)),
    Stop = fun(Request, Kind, Name) ->
                   %% The server dies of it: a new one for OTP's call and for ours.
                   [begin
                        Result = at(Config, {Module, call}, [Name, Request]),
                        server_gone(Config),
                        {ok, _} = cluster:call(?config(there, Config), server, start, [Kind]),
                        Result
                    end || Module <- [gen_server, trunkline]]
           end,
    Names = [{Kind, {list_to_atom("test_" ++ atom_to_list(Kind)), There}}
             || Kind <- [gen_server, gen_statem]],
    lists:foreach(
      fun({Kind, Name}) ->
              _ = cluster:call(?config(there, Config), server, stop_all, []),
              {ok, _} = cluster:call(?config(there, Config), server, start, [Kind]),
              lists:foreach(
                fun(Request) ->
                        [Expected, Ours] = Stop(Request, Kind, Name),
                        ?assertEqual(Expected, Ours),
                        {exit, _, call, _} = Ours
                end,
                [{stop, normal}, {stop, shutdown}, {stop, {shutdown, why}}, {exit, killed},
                 {exit, {a, reason}}])
      end, Names),
    {exit, noproc, call, _} =
        both(Config, {gen_server, call}, {trunkline, call}, [{no_such_name, There}, x]),
    {exit, noproc, call, _} =
        both(Config, {gen_server, call}, {trunkline, call}, [no_such_name, x]),
    {exit, noproc, call, _} =
        both(Config, {gen_server, call}, {trunkline, call}, [?config(gen_server, Config), x]),
    {exit, {nodedown, 'no_such_node@localhost'}, call, _} =
        both(Config, {gen_server, call}, {trunkline, call}, [{x, 'no_such_node@localhost'}, x]).

server_gone(Config) ->
    cluster:await(
      fun() ->
              cluster:call(?config(there, Config),
                           fun() -> [] =:= [N || N <- [test_gen_server, test_gen_statem],
                                                 whereis(N) =/= undefined] end) end).

%% Names of other registries.
call_names(Config) ->
    Pid = ?config(gen_server, Config),
    ok = cluster:call(?config(a, Config), persistent_term, put, [via_test, Pid]),
    {ok, hello} = both(Config, {gen_server, call}, {trunkline, call},
                       [{via, via_test, known}, {echo, hello}]),
    {exit, noproc, call, _} = both(Config, {gen_server, call}, {trunkline, call},
                                   [{via, via_test, unknown}, {echo, hello}]),
    {exit, noproc, call, _} =
        both(Config, {gen_server, call}, {trunkline, call}, [{global, unknown}, {echo, hello}]),
    {ok, ok} = both(Config, {gen_server, cast}, {trunkline, cast}, [{via, via_test, known}, hi]),
    await_seen(Config, [{cast, hi}, {cast, hi}]).

call_timeout(Config) ->
    lists:foreach(
      fun(To) ->
              {exit, timeout, call, _} =
                  both(Config, {gen_server, call}, {trunkline, call}, [To, never, 50]),
              {exit, timeout, call, _} =
                  both(Config, {gen_server, call}, {trunkline, call}, [To, never, 0]),
              {exit, _, call, _} = at(Config, {gen_server, call}, [To, never, bad]),
              {exit, _, call, _} = at(Config, {trunkline, call}, [To, never, bad])
      end, destinations(Config)).

%% A reply that comes after the timeout reaches nobody.
replies(Config) ->
    lists:foreach(
      fun(To) ->
              Mail = cluster:call(
                       ?config(a, Config),
                       fun() ->
                               {exit, {timeout, _}} =
                                   traffic:attempt(
                                     fun() ->
                                             trunkline:call(To, {echo_told, late, self()}, 20)
                                     end),
                               ok = server:tell(1),
                               two = trunkline:call(To, {echo_late, two, 100}),
                               receive Any -> Any after 100 -> none end
                       end),
              ?assertEqual(none, Mail)
      end, destinations(Config)).

%% Nor does a second reply. (With plain distribution it may.)
second_reply(Config) ->
    Mail = cluster:call(?config(a, Config),
                        fun() ->
                                _ = [one = trunkline:call(To, {twice, one})
                                     || _ <- lists:seq(1, 100), To <- destinations(Config)],
                                receive Any -> Any after 100 -> none end
                        end),
    ?assertEqual(none, Mail).

%% The same dialogue at the caller's node, by OTP or by Trunkline.
each_module(Config, Dialogue) ->
    fun(Module) -> cluster:call(?config(a, Config), fun() -> Dialogue(Module) end) end.

requests(Config) ->
    lists:foreach(
      fun(To) ->
              Run = each_module(
                      Config,
                      fun(M) ->
                                      [{reply, 1} =
                                           M:receive_response(M:send_request(To, {echo, 1}), ?LONG),
                                       {reply, 2} =
                                           M:wait_response(M:send_request(To, {echo, 2}), infinity),
                                       {reply, 3} =
                                           M:receive_response(M:send_request(To, {echo, 3}),
                                                              {abs,
                                                               erlang:monotonic_time(millisecond)
                                                                   + ?LONG}),
                                       begin
                                           Late = M:send_request(To, {echo_told, 4, self()}),
                                           timeout = M:wait_response(Late, 0),
                                           timeout = M:wait_response(Late, 10),
                                           ok = server:tell(1),
                                           {reply, 4} = M:wait_response(Late, ?LONG)
                                       end,
                                       begin
                                           Never = M:send_request(To, {echo_told, 5, self()}),
                                           timeout = M:receive_response(Never, 0),
                                           ok = server:tell(1),
                                           receive Any -> Any after 150 -> none end
                                       end,
                                       %% many at a time, answers taken in another order
                                       begin
                                           Ids = [{N, M:send_request(To, {echo, N})}
                                                  || N <- lists:seq(1, 100)],
                                           [{reply, N} = M:receive_response(Id, ?LONG)
                                            || {N, Id} <- lists:reverse(Ids)]
                                       end]
                      end),
              ?assertEqual(Run(gen_server), Run(trunkline))
      end, destinations(Config)).

request_errors(Config) ->
    There = cluster:node_of(?config(there, Config)),
    lists:foreach(
      fun(To) ->
              Run =
                  each_module(Config,
                              fun(M) ->
                                      M:receive_response(M:send_request(To, {echo, 1}), ?LONG)
                              end),
              ?assertEqual({To, Run(gen_server)}, {To, Run(trunkline)})
      end,
      [{no_such_name, There}, no_such_name, {global, no_such_name}, {x, 'no_such_node@localhost'}]).

check(Config) ->
    lists:foreach(
      fun(To) ->
              Run = each_module(
                      Config,
                      fun(M) ->
                                      Id = M:send_request(To, {echo, 1}),
                                      no_reply = M:check_response(unrelated, Id),
                                      no_reply = M:check_response({make_ref(), x}, Id),
                                      receive Message -> M:check_response(Message, Id) end
                      end),
              ?assertEqual({reply, 1}, Run(gen_server)),
              ?assertEqual({reply, 1}, Run(trunkline))
      end, destinations(Config)).

%% --- beside the table -----------------------------------------------------------

%% A node on which Trunkline was never started has it all as well.
not_started(_) ->
    [A, B] = cluster:start_all([none, none]),
    cluster:connect(A, B),
    {ok, Pid} = cluster:call(B, server, start, [gen_server]),
    hello = cluster:call(A, trunkline, send, [Pid, hello]),
    ok = cluster:call(A, trunkline, send, [Pid, hello, [nosuspend]]),
    ok = cluster:call(A, trunkline, cast, [Pid, hello]),
    world = cluster:call(A, trunkline, call, [Pid, {echo, world}]),
    #{peers := Peers} = cluster:call(A, trunkline, info, []),
    ?assertEqual(#{}, Peers),
    cluster:stop_all([A, B]).

%% A call that nobody waits for any more leaves nothing behind in the agent.
abandoned_calls(Config) ->
    A = ?config(a, Config),
    There = ?config(lanes, Config),
    {ok, Pid} = cluster:call(There, server, start, [gen_server]),
    Inlets = fun() -> cluster:call(
                        There,
                        fun() ->
                                #{inlets := Pids} = trunkline_peers:lookup(cluster:node_of(A)),
                                lists:sum([begin garbage_collect(P),
                                                 {memory, M} = process_info(P, memory), M end
                                           || P <- Pids])
                        end) end,
    Before = Inlets(),
    cluster:call(A, fun() ->
                            _ = [traffic:attempt(fun() -> trunkline:call(Pid, never, 0) end)
                                 || _ <- lists:seq(1, 20000)],
                            _ = [timeout = trunkline:receive_response(
                                             trunkline:send_request(Pid, never), 0)
                                 || _ <- lists:seq(1, 20000)],
                            _ = [trunkline:call(Pid, {by_hand, hello}, infinity)
                                 || _ <- lists:seq(1, 5000)],
                            ok
                    end),
    %% Kept, each would be some 100 bytes.
    cluster:await(fun() -> case Inlets() of
                               M when M < Before + 200_000 -> true;
                               M -> {Before, M}
                           end end),
    cluster:call(There, server, stop_all, []).

%% Who waits for a reply hears of the end of the session, in gen_server's words.
session_ends(_) ->
    lists:foreach(
      fun(End) ->
              {A, B} = cluster:pair([]),
              {ok, Pid} = cluster:call(B, server, start, [gen_server]),
              NodeB = cluster:node_of(B),
              ok = cluster:call(A, fun() -> waiters(Pid) end),
              cluster:await(
                fun() -> #{lanes := Ls} = cluster:info(B, A),
                         2 =:= lists:sum([N || #{received_messages := N} <- Ls]) end),
              End(A, B),
              ?assertEqual([{error, {noconnection, Pid}}, {nodedown, NodeB}],
                           cluster:call(A, fun waited/0)),
              cluster:stop_all([A, B])
      end,
      [fun(_, B) -> cluster:kill(B) end,
       fun(A, B) -> true = cluster:call(A, erlang, disconnect_node, [cluster:node_of(B)]) end,
       %% The stop itself ends no request: the server is still there.
       fun(A, B) ->
               ok = cluster:call(B, cluster, stop_trunkline, []),
               true = cluster:call(A, erlang, disconnect_node, [cluster:node_of(B)])
       end,
       fun(A, B) -> cluster:call(B, fun() -> kill_link(cluster:node_of(A)) end) end,
       fun(A, B) -> cluster:call(A, fun() -> kill_link(cluster:node_of(B)) end) end]).

%% A reply has arrived when the session ends, but the inlet that brings it is not the one that its
%% caller watches. The caller gets it.
reply_at_the_end(_) ->
    Env = [{lanes, 2}, {lane_transport, dist}],
    [A, B] = cluster:start_all([Env, Env], cluster:dist_arguments()),
    cluster:connect(A, B),
    [cluster:await_lanes(X, Y) || {X, Y} <- [{A, B}, {B, A}]],
    NodeB = cluster:node_of(B),
    Server = cluster:call(B, fun() -> spawn(fun reply_when_told/0) end),
    Lane = erlang:phash2(Server, 2),
    {Caller, Inlet, Other} =
        cluster:call(
          A, fun() ->
                     Inlets = trunkline_peers:session(NodeB),
                     [Caller | Others] =
                         lists:filter(fun(P) -> erlang:phash2(P, 2) =/= Lane end,
                                      [spawn(fun() -> call_when_told(Server) end)
                                       || _ <- lists:seq(1, 50)]),
                     [exit(P, kill) || P <- Others],
                     {Caller, element(Lane + 1, Inlets), element(2 - Lane, Inlets)}
             end),
    Caller = cluster:call(A, erlang, apply, [fun() -> Caller ! call, Caller end, []]),
    cluster:await(fun() -> cluster:call(B, ?MODULE, has_request, [Server]) end),
    Suspender = cluster:call(A, order_SUITE, suspended, [Inlet]),
    reply = cluster:call(B, erlang, send, [Server, reply]),
    cluster:await(fun() ->
                          {messages, Messages} =
                              cluster:call(A, erlang, process_info, [Inlet, messages]),
                          [] =/= [M || M <- Messages, element(1, M) =:= batch]
                  end),
    true = cluster:call(A, erlang, disconnect_node, [NodeB]),
    cluster:await_state(A, B, down),
    %% The other inlet has delivered everything by the third answer.
    [_ = cluster:call(A, traffic, attempt, [fun() -> sys:get_state(Other) end])
     || _ <- [1, 2, 3]],
    resume = cluster:call(A, erlang, send, [Suspender, resume]),
    ?assertEqual({ok, late}, cluster:call(A, fun() ->
                                                     Caller ! {tell, self()},
                                                     receive {Caller, Result} -> Result end
                                             end)),
    %% Both end.
    cluster:await(fun() ->
                          not cluster:call(A, erlang, is_process_alive, [Inlet])
                              andalso not cluster:call(A, erlang, is_process_alive, [Other])
                  end),
    cluster:stop_all([A, B]).

reply_when_told() ->
    receive
        {'$gen_call', From, _} ->
            put(request, From),
            receive reply -> gen_server:reply(From, late) end,
            receive after infinity -> ok end
    end.

has_request(Server) ->
    {dictionary, Dictionary} = process_info(Server, dictionary),
    lists:keymember(request, 1, Dictionary).

call_when_told(Server) ->
    receive call -> ok end,
    Result = traffic:attempt(fun() -> trunkline:call(Server, hello, infinity) end),
    receive {tell, To} -> To ! {self(), Result} end.

%% The dialogue of session_ends/1 at the nodes.
waiters(Pid) ->
    Collector = spawn(fun() -> collect([]) end),
    register(waited, Collector),
    spawn(fun() ->
                  Collector ! trunkline:receive_response(
                                trunkline:send_request(Pid, never), infinity)
          end),
    spawn(fun() ->
                  {exit, {Reason, {trunkline, call, _}}} =
                      traffic:attempt(fun() -> trunkline:call(Pid, never, infinity) end),
                  Collector ! Reason
          end),
    ok.

collect(Got) when length(Got) =:= 2 ->
    receive
        {got, From} ->
            From ! {got, lists:sort(fun(X, Y) -> element(1, X) < element(1, Y) end, Got)}
    end;
collect(Got) ->
    receive
        Reason when not is_pid(Reason), element(1, Reason) =/= got -> collect([Reason | Got])
    end.

waited() ->
    waited ! {got, self()},
    receive {got, Got} -> Got after 120_000 -> timeout end.

kill_link(Node) ->
    #{link := Link} = trunkline_peers:lookup(Node),
    exit(Link, kill).

%% With mail of its own a process calls and sends as with none: no call searches
%% the mailbox. (A receive that does costs a reduction for each message.)
long_mailbox(Config) ->
    A = ?config(a, Config),
    There = ?config(lanes, Config),
    {ok, Pid} = cluster:call(There, server, start, [gen_server]),
    {Short, Long} =
        cluster:call(A, fun() ->
                                Short = reductions(Pid),
                                _ = [self() ! {mail, N} || N <- lists:seq(1, 100_000)],
                                {Short, reductions(Pid)}
                        end),
    ct:log("reductions of 100 calls, sends and casts: ~b with no mail, ~b with 100,000 messages",
           [Short, Long]),
    ?assert(Long < Short + 100_000),
    cluster:call(There, server, stop_all, []).

reductions(Pid) ->
    {reductions, Before} = process_info(self(), reductions),
    _ = [begin
             N = trunkline:call(Pid, {echo, N}, infinity),
             N = trunkline:call(Pid, {echo, N}, ?LONG),
             trunkline:send(Pid, N),
             trunkline:cast(Pid, N)
         end || N <- lists:seq(1, 100)],
    {reductions, After} = process_info(self(), reductions),
    After - Before.

%% Options are checked, and a bad one is named.
options(_) ->
    {ok, Defaults} = trunkline_options:check([]),
    ?assertMatch(#{lanes := _, queue_bytes := _, window_bytes := _, batch_bytes := _}, Defaults),
    ?assertEqual({ok, Defaults#{lanes := 7}}, trunkline_options:check([{lanes, 7}])),
    lists:foreach(
      fun({Key, Value} = Bad) ->
              ?assertEqual({error, {bad_option, Key, Value}}, trunkline_options:check([Bad])),
              Words = lists:flatten(trunkline_options:explain({bad_option, Key, Value})),
              ?assertNotEqual(nomatch, string:find(Words, atom_to_list(Key)))
      end,
      [{congestion_control, nonsense}, {listen_address, {192, 0, 2, 1}},
       {listen_address, "192.0.2.1"}, {advertise_port, 9100}, {lanes, 0}, {lanes, 65}, {lanes, "4"},
       {bulk_idle, "1500"}, {queue_bytes, -1}, {queue_bytes, infinity}, {window_bytes, 1.5},
       {batch_bytes, 1 bsl 40},
       {no_such_option, 1}]),
    %% Sizes, times and addresses as people write them.
    lists:foreach(
      fun({Key, Text, Value}) ->
              ?assertEqual({ok, Defaults#{Key := Value}}, trunkline_options:check([{Key, Text}])),
              ?assertEqual({ok, Defaults#{Key := Value}},
                           trunkline_options:check([{Key, unicode:characters_to_binary(Text)}]))
      end,
      [{queue_bytes, "2048", 2048}, {queue_bytes, "2048 B", 2048}, {queue_bytes, "64KB", 65536},
       {window_bytes, " 64 mb ", 64 bsl 20}, {window_bytes, "64MiB", 64 bsl 20},
       {bulk_bytes, "2GB", 2 bsl 30}, {bulk_idle, "1500ms", 1500},
       {connection_timeout, "10s", 10_000}, {connection_timeout, "2 min", 120_000},
       {bulk_idle, "24h", 86_400_000}, {bulk_idle, "1d", 86_400_000},
       {listen_address, "127.0.0.1", {127, 0, 0, 1}},
       {advertise_address, "10.0.0.3", {10, 0, 0, 3}},
       {advertise_address, "fd00::3", {16#fd00, 0, 0, 0, 0, 0, 0, 3}}]),
    ?assertEqual({ok, Defaults#{listen_ports := {9100, 9100}, advertise_port := 9200}},
                 trunkline_options:check([{advertise_port, 9200}, {listen_ports, 9100}])),
    Node = cluster:start(none),
    Value = fun(Option) ->
                    maps:get(value, maps:get(Option, cluster:call(Node, trunkline, options, [])))
            end,
    ok = cluster:call(Node, logger, set_primary_config, [level, none]),
    ok = cluster:call(Node, application, load, [trunkline]),
    ok = cluster:call(Node, application, set_env, [trunkline, large_bytes, "4KB"]),
    ?assertEqual(4096, Value(large_bytes)),
    ?assertMatch({error, {{bad_option, lanes, 0}, _}},
                 cluster:call(Node, cluster, start_trunkline, [[{lanes, 0}]])),
    ?assertEqual(0, Value(lanes)),
    ok = cluster:call(Node, cluster, start_trunkline,
                      [[{lanes, 1}, {connection_timeout, <<"7s">>}]]),
    %% What it uses, whatever the environment has become.
    ok = cluster:call(Node, application, set_env, [trunkline, lanes, 5]),
    ?assertEqual({1, 7000, maps:get(queue_bytes, Defaults)},
                 {Value(lanes), Value(connection_timeout), Value(queue_bytes)}),
    ?assertMatch(#{default := 10_000, unit := <<"ms">>, must_be := <<"a time from", _/binary>>,
                   what := <<_, _/binary>>,
                   when_to_change := <<_, _/binary>>, since := <<"0.3.0">>},
                 maps:get(connection_timeout, cluster:call(Node, trunkline, options, []))),
    cluster:stop(Node).

%% No function has to be loaded when it is first used, at either node: all of this is done while
%% the code servers stand still.
loaded(_) ->
    {A, B} = cluster:pair([]),
    There = cluster:node_of(B),
    {ok, Server} = cluster:call(B, server, start, [gen_server]),
    Sleeper = cluster:call(B, erlang, spawn, [timer, sleep, [infinity]]),
    Stop = fun() ->
                   true = erlang:suspend_process(whereis(code_server)),
                   receive after infinity -> ok end
           end,
    Use = fun() ->
                  Ref = trunkline:monitor(process, Sleeper),
                  true = trunkline:demonitor(Ref),
                  1 = trunkline:call(Server, {echo, 1}, ?LONG),
                  {[{There, 2}], []} =
                      trunkline:multi_call([There], test_gen_server, {echo, 2}, ?LONG),
                  There = trunkline_erpc:call(There, erlang, node, []),
                  [{ok, There}] = trunkline_erpc:multicall([There], erlang, node, []),
                  x = trunkline:send(Sleeper, x),
                  Large = binary:copy(<<0>>, 1_000_000),
                  Large = trunkline:send(Sleeper, Large),
                  Large = trunkline:call(Server, {echo, Large}, ?LONG),
                  ok = trunkline:cast(Server, x),
                  ok = trunkline:multicast([Sleeper, Server], x),
                  #{running := true} = trunkline:info(),
                  trunkline:drain()
          end,
    _ = [cluster:call(N, erlang, spawn, [Stop]) || N <- [A, B]],
    [cluster:await(
       fun() -> cluster:call(N, fun() -> erlang:process_info(whereis(code_server), status) end)
                    =:= {status, suspended} end) || N <- [A, B]],
    ?assertEqual(ok, cluster:call(A, Use)),
    cluster:stop_all([A, B]).

%% A node without Trunkline, or where it has stopped, does not look like a healthy one.
info_without(_) ->
    Node = cluster:start(none),
    Info = fun() ->
                   #{running := Running, peers := #{}, release := Release,
                     options := #{lanes := _}} = cluster:call(Node, trunkline, info, []),
                   ?assert(not Running orelse is_list(Release)),
                   Running
           end,
    ?assertEqual(false, Info()),
    ok = cluster:call(Node, cluster, start_trunkline, [[]]),
    ?assertEqual(true, Info()),
    ok = cluster:call(Node, cluster, stop_trunkline, []),
    ?assertEqual(false, Info()),
    cluster:stop(Node).

info(Config) ->
    A = ?config(a, Config),
    {B, Plain} = {?config(lanes, Config), ?config(plain, Config)},
    {NodeB, NodePlain} = {cluster:node_of(B), cluster:node_of(Plain)},
    Sum = fun(Field, #{lanes := Lanes}) -> lists:sum([maps:get(Field, L) || L <- Lanes]) end,
    %% What the cases before have sent has left the lanes.
    AllSent = fun() -> Info = cluster:call(A, trunkline, info, [NodeB]),
                       [0, 0]
                           =:= [Sum(Field, Info) || Field <- [queued_messages, in_flight_messages]]
                           orelse Info end,
    cluster:await(AllSent),
    #{peers := Before, fallbacks := Fallbacks} = cluster:call(A, trunkline, info, []),
    [Pid] = cluster:call(B, traffic, start_receivers, [1]),
    [PlainPid] = cluster:call(Plain, traffic, start_receivers, [1]),
    [normal, normal] =
        cluster:call(A, traffic, play_all,
                     [[{Id, [{send, Pid, 10} || _ <- lists:seq(1, 500)]} || Id <- [1, 2]]]),
    [normal] = cluster:call(A, traffic, play_all,
                            [[{1, [{send, PlainPid, 10} || _ <- lists:seq(1, 50)]}]]),
    cluster:await(fun() -> 1000 =:= cluster:call(B, traffic, count, [Pid]) end),
    cluster:await(AllSent),
    #{peers := #{NodeB := Peer}, fallbacks := Fallbacks1} = cluster:call(A, trunkline, info, []),
    ?assertEqual(Fallbacks + 50, Fallbacks1),
    ?assertMatch(#{state := up, protocol := 2, release := [_ | _]}, Peer),
    ?assertEqual(1000, Sum(messages, Peer) - Sum(messages, maps:get(NodeB, Before))),
    ?assertEqual({0, 0, 0},
                 {Sum(queued_messages, Peer), Sum(queued_bytes, Peer), Sum(in_flight_bytes, Peer)}),
    ?assert(Sum(batches, Peer) > Sum(batches, maps:get(NodeB, Before))),
    #{peers := #{} = Theirs} = cluster:call(B, trunkline, info, []),
    ?assert(Sum(received_messages, maps:get(cluster:node_of(A), Theirs)) >= 1000),
    ?assertMatch(#{state := greeting, lanes := []}, cluster:call(A, trunkline, info, [NodePlain])),
    ?assertEqual(undefined, cluster:call(A, trunkline, info, ['no_such_node@localhost'])),
    %% Every field is documented.
    #{peer := PeerFields, lane := LaneFields} = trunkline_stats:fields(),
    [?assertMatch({_, Type, _, [_ | _]} when Type =:= counter; Type =:= gauge; Type =:= peak, F)
     || F <- PeerFields ++ LaneFields].
