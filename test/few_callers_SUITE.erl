%% Calls of few callers, which go past the lanes (trunkline_few_callers): that they do, that they
%% keep their order with what goes by lane, how they end, and that nothing of them is left.
-module(few_callers_SUITE).
-behaviour(gen_server).

-include_lib("stdlib/include/assert.hrl").
-include("../src/gate/trunkline_route.hrl").

-export([all/0, suite/0]).
-export([past/1, binaries/1, past_again/1, not_past/1, not_again/1, many/1, burst/1, long_calls/1,
         order_of_requests/1, order_of_replies/1, reply_waits/1, request_after_timeout/1,
         server_ends/1, last_replies/1, nothing_left/1, large_replies/1, stopped_and_started/1,
         links_killed/1, session_over/1, connection_lost/1]).
-export([start/1, call_at_once/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-define(NAME, few_callers_server).

suite() -> [{timetrap, {minutes, 2}}].

all() -> [past, binaries, past_again, not_past, not_again, many, burst, long_calls,
          order_of_requests, order_of_replies, reply_waits, request_after_timeout, server_ends,
          last_replies, nothing_left, large_replies, stopped_and_started, links_killed,
          session_over, connection_lost].

%% --- which calls ----------------------------------------------------------------------

%% Of one caller and of four, to a pid and to a name. Requests and replies: each node reports hardly
%% any batches.
past(_) ->
    on_all_ways(
      fun(A, B) ->
              Server = cluster:call(B, ?MODULE, start, [?NAME]),
              [await_past(A, B, To, Callers)
               || To <- [Server, {?NAME, cluster:node_of(B)}], Callers <- [1, 4]]
      end).

%% Binaries go past the lanes, too, as requests and replies, unless they are large.
binaries(_) ->
    Binary = binary:copy(<<7>>, 60_000),
    on_all_ways(fun(A, B) ->
                        Server = cluster:call(B, ?MODULE, start, [?NAME]),
                        await_past(A, B, Server, 1, Binary)
                end),
    all_by_lane([{large_bytes, 50_000}], Binary, []).

%% 200 calls between nodes with that environment, of a caller with these options.
all_by_lane(Env, Payload, Options) ->
    {A, B} = cluster:pair(Env),
    Server = cluster:call(B, ?MODULE, start, [?NAME]),
    Before = counts(A, B),
    ok = calls(A, Server, 1, 200, Payload, Options),
    [{Sent, _}, {Back, _}] = Counts = lists:zipwith(fun minus/2, counts(A, B), Before),
    ?assert(Sent >= 200 andalso Back >= 200, Counts),
    cluster:stop_all([A, B]).

await_past(A, B, To, Callers) -> await_past(A, B, To, Callers, []).

await_past(A, B, To, Callers, Payload) ->
    cluster:await(fun() ->
                          Before = counts(A, B),
                          ok = calls(A, To, Callers, 200, Payload, []),
                          [case Now of
                               {Batches, Messages}
                                 when Messages >= 180 * Callers, Batches =< 20 * Callers -> true;
                               _ -> {To, Callers, Now}
                           end || Now <- lists:zipwith(fun minus/2, counts(A, B), Before)]
                              =:= [true, true]
                  end).

%% {Batches with messages, messages} that went from A to B, and from B to A.
counts(A, B) ->
    [begin
         #{lanes := Lanes} = cluster:info(X, Y),
         {lists:sum([Batched || #{batched_messages := Batched} <- Lanes]),
          lists:sum([Messages || #{messages := Messages} <- Lanes])}
     end || {X, Y} <- [{A, B}, {B, A}]].

minus({A, B}, {C, D}) -> {A - C, B - D}.

calls(A, To, Callers, Each) -> calls(A, To, Callers, Each, [], []).

%% Each call is answered with its number and the payload.
calls(A, To, Callers, Each, Payload, Options) ->
    cluster:call(A, fun() ->
        Refs = [begin
                    {_, Ref} = spawn_opt(fun() ->
                        [{N, Payload} = trunkline:call(To, {echo, {N, Payload}})
                         || N <- lists:seq(1, Each)],
                        exit(done)
                    end, [monitor | Options]),
                    Ref
                end || _ <- lists:seq(1, Callers)],
        [receive {'DOWN', Ref, _, _, Reason} -> done = Reason end || Ref <- Refs],
        ok
    end).

%% A call that has to go by lane is acknowledged at once, so that the next ones go past it. (They
%% follow each other more closely than acknowledgements otherwise come.)
past_again(_) ->
    on_all_ways(
      fun(A, B) ->
              Server = cluster:call(B, ?MODULE, start, [?NAME]),
              await_past(A, B, Server, 1),
              [{Before, _}, {BeforeBack, _}] = counts(A, B),
              ok = cluster:call(A, fun() ->
                  [ok = trunkline:cast(Server, {log, N, []}) || N <- lists:seq(1, 3)],
                  [N = trunkline:call(Server, {echo, N}) || N <- lists:seq(1, 2000)],
                  ok
              end),
              [{Now, _}, {Back, _}] = counts(A, B),
              ?assert(Now - Before =< 500 andalso Back - BeforeBack =< 500,
                      {Now - Before, Back - BeforeBack})
      end).

%% In a session that may outlive its connection all go by lane; and those of a caller whose mailbox
%% is off the heap, where news of the server's end could overtake the reply.
not_past(_) ->
    all_by_lane([{resume_time, 10_000}], [], []),
    all_by_lane([], [], [{message_queue_data, off_heap}]).

%% A server that owes a reply to the other node calls back. Its requests cannot go past the lane,
%% nor can the next ones. So none asks for more acknowledgements than others: of 1,000 calls there
%% are not 2,000 batches.
not_again(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    [ServerA, ServerB] = [cluster:call(N, ?MODULE, start, [?NAME]) || N <- [A, B]],
    await_past(A, B, ServerB, 1),
    #{lanes := [#{batches := Before}]} = cluster:info(B, A),
    ok = cluster:call(A, fun() ->
        [ok = trunkline:call(ServerB, {call_back, ServerA}) || _ <- lists:seq(1, 1000)],
        ok
    end),
    #{lanes := [#{batches := Now}]} = cluster:info(B, A),
    ct:log("~b batches", [Now - Before]),
    ?assert(Now - Before =< 1500, Now - Before),
    cluster:stop_all([A, B]).

%% Of many callers most go by lane; and when few are left, past it again.
many(_) ->
    {A, B} = cluster:pair([]),
    Server = cluster:call(B, ?MODULE, start, [?NAME]),
    cluster:await(fun() ->
                          [{Before, _}, _] = counts(A, B),
                          ok = calls(A, Server, 100, 100),
                          [{Now, _}, _] = counts(A, B),
                          Now - Before > 8000 orelse Now - Before
                  end),
    await_past(A, B, Server, 1),
    cluster:stop_all([A, B]).

%% A thousand callers that begin at the same time: only so many requests go past the lanes as are
%% few. The server does not answer before all have come.
burst(_) ->
    {A, B} = cluster:pair([]),
    Server = cluster:call(B, ?MODULE, start, [?NAME]),
    await_past(A, B, Server, 1),
    [{Before, _}, _] = counts(A, B),
    Callers = cluster:call(A, ?MODULE, call_at_once, [Server, 1000]),
    cluster:await(fun() -> cluster:call(B, gen_server, call, [Server, waiting]) =:= 1000 end),
    await_by_lane(950, Before, A, B),
    ok = cluster:call(B, gen_server, call, [Server, answer]),
    cluster:await(fun() -> not lists:any(fun(Caller) ->
                                                 cluster:call(A, erlang, is_process_alive, [Caller])
                                         end, Callers)
                  end),
    cluster:stop_all([A, B]).

%% At least so many more than before have gone from A to B by lane.
await_by_lane(N, Before, A, B) ->
    cluster:await(fun() ->
                          [{Now, _}, _] = counts(A, B),
                          Now - Before >= N orelse Now - Before
                  end).

call_at_once(Server, N) ->
    Callers = [spawn(fun() -> receive go -> answered = trunkline:call(Server, wait, infinity) end
                     end) || _ <- lists:seq(1, N)],
    [Caller ! go || Caller <- Callers],
    Callers.

%% Calls that take long do not count as many. When they end, that does not make room for more than
%% before.
long_calls(_) ->
    {A, B} = cluster:pair([]),
    Server = cluster:call(B, ?MODULE, start, [?NAME]),
    await_past(A, B, Server, 1),
    _ = [begin
             _ = cluster:call(A, ?MODULE, call_at_once, [Server, 5]),
             ok = calls(A, Server, 1, 200)
         end || _ <- lists:seq(1, 40)],
    cluster:await(fun() -> cluster:call(B, gen_server, call, [Server, waiting]) =:= 200 end),
    ok = cluster:call(B, gen_server, call, [Server, answer]),
    [{Before, _}, _] = counts(A, B),
    _ = cluster:call(A, ?MODULE, call_at_once, [Server, 200]),
    cluster:await(fun() -> cluster:call(B, gen_server, call, [Server, waiting]) =:= 200 end),
    await_by_lane(180, Before, A, B),
    ok = cluster:call(B, gen_server, call, [Server, answer]),
    cluster:stop_all([A, B]).

%% --- order ----------------------------------------------------------------------------

%% Casts and calls by turns, short and long ones, arrive as they were sent.
order_of_requests(_) ->
    on_all_ways(
      fun(A, B) ->
              Server = cluster:call(B, ?MODULE, start, [?NAME]),
              Seeds = lists:seq(1, 3),
              Pids = cluster:call(A, fun() ->
                  [spawn(fun() -> requests(Server, Seed) end) || Seed <- Seeds]
              end),
              cluster:await(fun() -> cluster:call(A, fun() ->
                                         not lists:any(fun is_process_alive/1, Pids)
                                     end)
                            end),
              Log = lists:reverse(cluster:call(B, gen_server, call, [Server, log])),
              [?assertEqual(lists:seq(1, 2000), [N || {S, N} <- Log, S =:= Seed]) || Seed <- Seeds]
      end).

requests(Server, Seed) ->
    _ = rand:seed(exsss, Seed),
    requests(Server, Seed, 1).

requests(_, _, 2001) ->
    ok;
requests(Server, Seed, N) ->
    Load = case rand:uniform(20) of
               1 -> binary:copy(<<7>>, 20_000);
               2 -> lists:seq(1, 3000);
               _ -> []
           end,
    case rand:uniform(3) of
        1 -> ok = trunkline:cast(Server, {log, {Seed, N}, Load});
        2 -> trunkline:send(Server, {log, {Seed, N}, Load});
        3 -> ok = trunkline:call(Server, {log, {Seed, N}, Load}, infinity)
    end,
    requests(Server, Seed, N + 1).

%% What the server has sent to its caller before the reply is there when the reply is, whichever
%% way each of them goes.
order_of_replies(_) ->
    on_all_ways(
      fun(A, B) ->
              Server = cluster:call(B, ?MODULE, start, [?NAME]),
              ok = cluster:call(A, fun() ->
                  _ = rand:seed(exsss, 7),
                  [begin
                       Before = rand:uniform(4) - 1,
                       ok = trunkline:call(Server, {before, Before, N}),
                       [receive {before, N, I} -> ok after 0 -> exit({overtaken, N, I}) end
                        || I <- lists:seq(1, Before)]
                   end || N <- lists:seq(1, 2000)],
                  ok
              end)
      end).

%% As long as the inlets at the caller's node do not deliver, what the server has sent before is
%% under way, and the reply does not go past it.
reply_waits(_) ->
    on_all_ways(
      fun(A, B) ->
              Server = cluster:call(B, ?MODULE, start, [?NAME]),
              await_past(A, B, Server, 1),
              Inlets = cluster:call(A, cluster, find, [inlets, cluster:node_of(B)]),
              ok = cluster:call(A, cluster, hold, [Inlets]),
              Caller = cluster:call(A, fun() ->
                  spawn(fun() ->
                                ok = trunkline:call(Server, {before, 1, last}, infinity),
                                receive {before, last, 1} -> ok after 0 -> exit(overtaken) end,
                                receive stop -> ok end
                        end)
              end),
              %% All that B has sent until now is here when this is.
              Lanes = cluster:call(B, cluster, find, [lanes, cluster:node_of(A)]),
              cluster:await(fun() ->
                  cluster:call(B, gen_server, call, [Server, has_replied])
                      andalso lists:all(fun(Lane) ->
                                                cluster:call(B, cluster, is_at_rest, [Lane])
                                        end, Lanes)
              end),
              pong = cluster:call(B, net_adm, ping, [cluster:node_of(A)]),
              ?assert(is_waiting(A, Caller)),
              ok = cluster:call(A, cluster, release, []),
              cluster:await(fun() -> not is_waiting(A, Caller) end),
              ?assert(cluster:call(A, erlang, is_process_alive, [Caller])),
              true = cluster:call(A, erlang, exit, [Caller, kill])
      end).

%% A peer that has stopped: the call ends with a timeout. What the caller sends then comes behind
%% the request.
request_after_timeout(_) ->
    on_all_ways(
      fun(A, B) ->
              Server = cluster:call(B, ?MODULE, start, [?NAME]),
              [begin
                   await_past(A, B, Server, 1),
                   cluster:suspend(B),
                   timeout = cluster:call(A, fun() ->
                       {exit, {timeout, _}} =
                           traffic:attempt(fun() ->
                               trunkline:call(Server, {log, {N, request}, []}, 100)
                           end),
                       ok = trunkline:cast(Server, {log, {N, behind}, []}),
                       timeout
                   end),
                   cluster:continue(B),
                   cluster:await(fun() ->
                       case cluster:call(B, gen_server, call, [Server, log]) of
                           [{N, behind}, {N, request} | _] -> true;
                           Log -> lists:sublist(Log, 4)
                       end
                   end)
               end || N <- lists:seq(1, 5)]
      end).

%% --- ends -----------------------------------------------------------------------------

%% The caller gets the reason as from gen_server:call/3, and so does one that calls afterwards.
server_ends(_) ->
    on_all_ways(
      fun(A, B) ->
              NodeB = cluster:node_of(B),
              [begin
                   Server = cluster:call(B, ?MODULE, start, [?NAME]),
                   To = case Form of pid -> Server; name -> {?NAME, NodeB} end,
                   await_past(A, B, To, 1),
                   Got = cluster:call(A, fun() ->
                       [traffic:attempt(fun() -> trunkline:call(To, {exit, End}) end),
                        traffic:attempt(fun() -> trunkline:call(To, {echo, 1}) end)]
                   end),
                   ?assertMatch([{exit, {End, {trunkline, call, _}}},
                                 {exit, {noproc, {trunkline, call, _}}}], Got)
               end || End <- [normal, {shutdown, why}, killed], Form <- [pid, name]]
      end).

%% The news that a server has ended does not overtake its last reply.
last_replies(_) ->
    on_all_ways(
      fun(A, B) ->
              [begin
                   {ok, Server} = cluster:call(B, gen_server, start, [?MODULE, [], []]),
                   ok = calls(A, Server, 1, 5),
                   last = cluster:call(A, trunkline, call, [Server, last])
               end || _ <- lists:seq(1, 200)]
      end).

%% The agent has no caller, and the server no mark, when all have their replies or do not wait any
%% more.
nothing_left(_) ->
    on_all_ways(
      fun(A, B) ->
              lists:foreach(
                fun(End) ->
                        Server = cluster:call(B, ?MODULE, start, [?NAME]),
                        await_past(A, B, Server, 1),
                        [Caller] = cluster:call(A, ?MODULE, call_at_once, [Server, 1]),
                        cluster:await(fun() ->
                            cluster:call(B, gen_server, call, [Server, waiting]) =:= 1
                        end),
                        ?assertNotEqual([], left(A, B)),
                        End(A, B, Server, Caller),
                        cluster:await(fun() -> left(A, B) =:= [] orelse left(A, B) end),
                        cluster:call(B, fun() -> exit(Server, kill) end),
                        cluster:await(fun() -> not cluster:call(B, erlang, is_process_alive,
                                                                [Server])
                                      end)
                end,
                [fun(_, B1, Server, _) ->
                         ok = cluster:call(B1, gen_server, call, [Server, answer])
                 end,
                 fun(_, B1, Server, _) -> cluster:call(B1, erlang, exit, [Server, kill]) end,
                 fun(A1, B1, Server, Caller) ->
                         true = cluster:call(A1, erlang, exit, [Caller, kill]),
                         ok = cluster:call(B1, gen_server, call, [Server, answer])
                 end,
                 fun(A1, B1, Server, _) ->
                         {exit, {timeout, _}} = cluster:call(A1, fun() ->
                             traffic:attempt(fun() -> trunkline:call(Server, wait, 50) end)
                         end),
                         ok = cluster:call(B1, gen_server, call, [Server, answer])
                 end])
      end).

%% What B's agents know, and the marks of its servers.
left(A, B) ->
    NodeA = cluster:node_of(A),
    Inlets = cluster:call(B, cluster, find, [inlets, NodeA]),
    cluster:call(B, fun() ->
        #route{bypass = Bypass} = trunkline_route:lookup(NodeA),
        [{marked, Ix} || Ix <- lists:seq(1, 1024), atomics:get(Bypass, Ix) =/= 0]
    end) ++ [Inlet || Inlet <- Inlets, cluster:is_awaited(Inlet, B)].

%% Only replies that the distribution sends whole go so. Some of the others are large messages.
large_replies(_) ->
    {A, B} = cluster:pair([]),
    Server = cluster:call(B, ?MODULE, start, [?NAME]),
    await_past(A, B, Server, 1),
    #{large := #{messages := Before}} = cluster:info(B, A),
    [{_, _}, {BeforeBack, _}] = counts(A, B),
    ok = cluster:call(A, fun() ->
        [Bytes = byte_size(trunkline:call(Server, {binary, Bytes}))
         || Bytes <- [5_000_000, 20_000_000, 200_000, 100_000, 64_500], _ <- lists:seq(1, 4)],
        ok
    end),
    #{large := #{messages := Now}} = cluster:info(B, A),
    [{_, _}, {Back, _}] = counts(A, B),
    ?assert(Now - Before >= 12 andalso Back - BeforeBack >= 20, {Now - Before, Back - BeforeBack}),
    cluster:stop_all([A, B]).

%% Trunkline stops and starts at one of the nodes, again and again. No call fails, and none waits
%% for ever.
stopped_and_started(_) ->
    {A, B} = cluster:pair([]),
    Server = cluster:call(B, ?MODULE, start, [?NAME]),
    ok = cluster:call(A, fun() -> persistent_term:put(?MODULE, counters:new(3, [])) end),
    Callers = cluster:call(A, fun() ->
        [spawn(fun() -> keep_calling(Server, persistent_term:get(?MODULE), Ix, 1) end)
         || Ix <- lists:seq(1, 3)]
    end),
    Calls = fun() ->
                    cluster:call(A, fun() ->
                        Of = persistent_term:get(?MODULE),
                        [counters:get(Of, Ix) || Ix <- lists:seq(1, 3)]
                    end)
            end,
    [begin
         await_past(A, B, Server, 1),
         cluster:call(X, cluster, stop_trunkline, []),
         {ok, _} = cluster:call(X, application, ensure_all_started, [trunkline]),
         [ok = cluster:call(Y, trunkline, await_up, [cluster:node_of(Z), 20_000])
          || {Y, Z} <- [{A, B}, {B, A}]]
     end || X <- [A, B, A, B]],
    Last = Calls(),
    cluster:await(fun() ->
                          lists:all(fun({Before, Now}) -> Now > Before + 100 end,
                                    lists:zip(Last, Calls()))
                  end),
    ?assert(cluster:call(A, fun() -> lists:all(fun is_process_alive/1, Callers) end)),
    cluster:stop_all([A, B]).

keep_calling(Server, Counter, Ix, N) ->
    N = trunkline:call(Server, {echo, N}, infinity),
    ok = counters:put(Counter, Ix, N),
    keep_calling(Server, Counter, Ix, N + 1).

%% Without its link a route has no table of inlets. Calls go on, and then go past the lanes again.
%% (While a peer's link has no session, its lanes keep what comes, requests past the lane, too.)
links_killed(_) ->
    {A, B} = cluster:pair([]),
    Server = cluster:call(B, ?MODULE, start, [?NAME]),
    [begin
         await_past(A, B, Server, 1),
         [Link] = cluster:call(X, cluster, find, [link, cluster:node_of(Y)]),
         true = cluster:call(X, erlang, exit, [Link, kill]),
         Outcomes = cluster:call(A, fun() ->
             [traffic:attempt(fun() -> trunkline:call(Server, {echo, N}) end)
              || N <- lists:seq(1, 200)]
         end),
         %% A call that was under way may be lost with the session, as it says.
         [?assertMatch({exit, {{nodedown, _}, _}}, Other)
          || Other <- Outcomes, element(1, Other) =/= ok],
         ok = cluster:await_up(A, B)
     end || {X, Y} <- [{A, B}, {B, A}]],
    await_past(A, B, Server, 1),
    NodeB = cluster:node_of(B),
    cluster:stop(B),
    cluster:await_state(A, B, down),
    [Before] = cluster:call(A, cluster, find, [link, NodeB]),
    true = cluster:call(A, erlang, exit, [Before, kill]),
    cluster:await(fun() -> not lists:member(cluster:call(A, cluster, find, [link, NodeB]),
                                            [[], [Before]])
                  end),
    Lanes = cluster:call(A, cluster, find, [lanes, NodeB]),
    ok = cluster:call(A, fun() ->
        [begin
             Past = {call, ?NAME, self(), make_ref(), '$gen_call', past},
             ok = trunkline_sender:hand_over(NodeB, Past, request)
         end || _ <- lists:seq(1, 20)],
        ok
    end),
    cluster:await(fun() ->
                          #{lost := #{unreachable := Lost}} = cluster:info(A, B),
                          Lost >= 20 orelse Lost
                  end),
    ?assertEqual(Lanes, cluster:call(A, cluster, find, [lanes, NodeB])),
    cluster:stop(A).

%% The peer's link is killed. While the lanes do not know that yet, a caller watches what will be
%% the next session already. So its request must not go to an agent of the last one.
session_over(_) ->
    {A, B} = cluster:pair([]),
    [NodeA, NodeB] = [cluster:node_of(N) || N <- [A, B]],
    Server = cluster:call(B, ?MODULE, start, [?NAME]),
    await_past(A, B, Server, 1),
    ok = cluster:call(A, cluster, hold, [cluster:call(A, cluster, find, [lanes, NodeB])]),
    [Link] = cluster:call(B, cluster, find, [link, NodeA]),
    true = cluster:call(B, erlang, exit, [Link, kill]),
    %% (It holds, and then opens the next session, as soon as it hears of the peer's next link.)
    cluster:await_no_state(A, B, up),
    Caller = cluster:call(A, fun() ->
        spawn(fun() -> ok = trunkline:call(Server, {log, session_over, []}, infinity) end)
    end),
    cluster:await(fun() -> is_waiting(A, Caller) orelse nomatch end),
    ok = cluster:call(A, cluster, release, []),
    cluster:await(fun() -> not cluster:call(A, erlang, is_process_alive, [Caller]) end),
    ?assertEqual([session_over], cluster:call(B, gen_server, call, [Server, log])),
    cluster:stop_all([A, B]).

is_waiting(A, Caller) ->
    cluster:call(A, erlang, process_info, [Caller, current_function])
        =:= {current_function, {trunkline_call, call_lane, 5}}.

%% The caller hears that the node has gone.
connection_lost(_) ->
    on_all_ways(
      fun(A, B) ->
              Server = cluster:call(B, ?MODULE, start, [?NAME]),
              await_past(A, B, Server, 1),
              Reason = cluster:call(A, fun() ->
                  {_, Ref} = spawn_monitor(fun() -> trunkline:call(Server, wait, infinity) end),
                  cluster:await(fun() -> gen_server:call(Server, waiting) =:= 1 end),
                  true = erlang:disconnect_node(node(Server)),
                  receive {'DOWN', Ref, _, _, Reason} -> Reason end
              end),
              ?assertMatch({{nodedown, _}, {trunkline, call, _}}, Reason),
              cluster:connect(A, B),
              true = cluster:await_up(A, B) =:= ok
      end).

%% --- nodes and servers ------------------------------------------------------------------

%% With lanes by the distribution, and on connections of their own.
on_all_ways(Test) ->
    lists:foreach(fun(Env) ->
                          {A, B} = cluster:pair(Env),
                          Test(A, B),
                          cluster:stop_all([A, B])
                  end, [[{lane_transport, dist}], [{lane_transport, tcp}]]).

start(Name) ->
    {ok, Pid} = gen_server:start({local, Name}, ?MODULE, [], []),
    Pid.

%% Those who wait for a reply, and what was to be logged, the last one first.
init([]) -> {ok, {[], []}}.

handle_call({echo, What}, _, S) ->
    {reply, What, S};
handle_call({binary, Bytes}, _, S) ->
    {reply, binary:copy(<<7>>, Bytes), S};
handle_call({log, What, _}, _, {Waiting, Log}) ->
    {reply, ok, {Waiting, [What | Log]}};
handle_call({before, N, Tag}, {Pid, _}, {Waiting, Log}) ->
    [trunkline:send(Pid, {before, Tag, I}) || I <- lists:seq(1, N)],
    %% The reply should not be in the same batch each time.
    _ = (Tag =:= last orelse Tag rem 10 =:= 0) andalso await_rest(node(Pid)),
    {reply, ok, {Waiting, [Tag | Log]}};
handle_call(has_replied, _, {_, Log} = S) ->
    {reply, lists:member(last, Log), S};
handle_call({call_back, Server}, _, S) ->
    back = trunkline:call(Server, {echo, back}),
    {reply, ok, S};
handle_call({exit, killed}, _, _) ->
    exit(self(), kill);
handle_call({exit, Reason}, _, S) ->
    {stop, Reason, S};
handle_call(last, From, S) ->
    gen_server:reply(From, last),
    {stop, normal, S};
handle_call(wait, From, {Waiting, Log}) ->
    {noreply, {[From | Waiting], Log}};
handle_call(waiting, _, {Waiting, _} = S) ->
    {reply, length(Waiting), S};
handle_call(answer, _, {Waiting, Log}) ->
    [gen_server:reply(From, answered) || From <- Waiting],
    {reply, ok, {[], Log}};
handle_call(log, _, {_, Log} = S) ->
    {reply, Log, S}.

await_rest(Node) ->
    Lanes = cluster:find(lanes, Node),
    cluster:await(fun() -> lists:all(fun cluster:is_at_rest/1, Lanes) end).

handle_cast({log, What, _}, {Waiting, Log}) -> {noreply, {Waiting, [What | Log]}}.

handle_info({log, What, _}, {Waiting, Log}) -> {noreply, {Waiting, [What | Log]}};
handle_info(_, S) -> {noreply, S}.
