%% Links that are drained: nothing is lost, all keeps its order, and what was under way ends as
%% if nothing had happened.
-module(drain_SUITE).

-include_lib("stdlib/include/assert.hrl").
-include("../src/gate/trunkline_route.hrl").

-export([all/0, suite/0]).
-export([under_load/1, thin_traffic/1, sends_past/1, both_at_once/1, all_forms/1, large/1,
         requests_answered/1, servers_die/1, monitors_go_on/1, all_go_on/1, all_peers/1,
         nothing_to_drain/1, just_connected/1, stays/1,
         started_anew/1, stands_still/1, connections/1, peer_killed/1, peer_stops/1, link_killed/1,
         peers_link_killed/1, stopped_under_load/1, stopped_under_flood/1, stopped_while_opening/1,
         stopped_after_crash/1, reconnected_while_stopping/1,
         stopped_while_down/1, refusals_are_no_progress/1, full_lanes/1,
         senders_wait/1, busy_connection/1, nobody_misses/1, one_patience/1, late_answer/1,
         by_a_later_session/1, replies_at_the_end/1, never_refused/1, moved/1]).
-export([late/1, kill/2, answering/1, watching/3, has_looked/1]).

-define(DEADLINE, 60_000).

suite() -> [{timetrap, {minutes, 20}}].

all() -> [under_load, thin_traffic, sends_past, both_at_once, all_forms, large, requests_answered,
          servers_die, monitors_go_on, all_go_on, all_peers, nothing_to_drain, just_connected,
          stays, started_anew, stands_still, connections, peer_killed, peer_stops, link_killed,
          peers_link_killed, stopped_under_load, stopped_under_flood, stopped_while_opening,
          stopped_after_crash, reconnected_while_stopping, stopped_while_down,
          refusals_are_no_progress, full_lanes, senders_wait, busy_connection, nobody_misses,
          one_patience, late_answer, by_a_later_session, replies_at_the_end, never_refused, moved].

%% Short messages that are sent past their lane.
thin_traffic(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    [Pid] = cluster:call(B, traffic, start_watchers, [1]),
    lists:foreach(fun({At, Other}) ->
                          Stream = cluster:call(A, traffic, drip, [Pid, At, 100]),
                          cluster:await_thin(A, B),
                          ?assertEqual(ok, drained(At, Other)),
                          N = cluster:call(A, traffic, stop_stream, [Stream]),
                          cluster:await(fun() -> case cluster:call(B, traffic, summary, [Pid]) of
                                                     #{At := {N, N, []}} -> true;
                                                     Summary -> {N, Summary}
                                                 end end),
                          reconnect(A, B)
                  end, [{A, B}, {B, A}]),
    cluster:stop_all([A, B]).

%% A sender stands still while it sends past its lane. The lane is drained when that is done, and
%% hears of it at once.
sends_past(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    Node = cluster:node_of(B),
    ?assertEqual(ok, cluster:call(A, fun() -> drained_by_sender(Node) end)),
    cluster:stop_all([A, B]).

drained_by_sender(Node) ->
    #route{gate = Gate, lanes = {Lane}, bypass = Bypass} = trunkline_route:lookup(Node),
    cluster:await(fun() -> trunkline_bypass:start(Gate, 1, 0, Bypass) end),
    %% From here on the lane ticks.
    trunkline:send({nobody, Node}, message),
    References = references(Lane),
    {_, Drain} = spawn_monitor(fun() -> exit(trunkline:drain(Node)) end),
    cluster:await(fun() -> length(references(Lane)) > length(References) end),
    true = trunkline_bypass:sent(1, Bypass),
    Lane ! look,
    receive {'DOWN', Drain, process, _, Result} -> Result end.

%% It has one more while it is drained.
references(Lane) -> [Ref || Ref <- tuple_to_list(sys:get_state(Lane)), is_reference(Ref)].

%% From either side, and again, while messages go both ways. A new connection brings the lanes back.
under_load(_) ->
    {A, B} = cluster:pair([]),
    lists:foreach(
      fun({At, Other}) ->
              Loads = loads(A, B),
              ?assertEqual(ok, drained(At, Other)),
              ?assertMatch(#{state := drained}, cluster:info(At, Other)),
              cluster:await_state(Other, At, greeting),
              Before = [fallbacks(At, Other), fallbacks(Other, At)],
              streams:flowing(Loads, ?DEADLINE),
              ?assertEqual(ok, drained(At, Other)),
              streams:flowing(Loads, ?DEADLINE),
              cluster:await(
                fun() ->
                        lists:all(fun({Old, New}) -> New > Old end,
                                  lists:zip(Before, [fallbacks(At, Other), fallbacks(Other, At)]))
                end),
              ?assertEqual(0, streams:finish(Loads, ?DEADLINE)),
              no_loss(A, B),
              reconnect(A, B),
              exchange:both_ways(A, B)
      end, [{A, B}, {B, A}, {A, B}]),
    cluster:stop_all([A, B]).

both_at_once(_) ->
    {A, B} = cluster:pair([]),
    lists:foreach(
      fun(_) ->
              Loads = loads(A, B),
              Self = self(),
              Pids = [spawn_link(fun() -> Self ! {self(), drained(X, Y)} end)
                      || {X, Y} <- [{A, B}, {B, A}]],
              ?assertEqual([ok, ok], [receive {Pid, Result} -> Result end || Pid <- Pids]),
              [?assertMatch(#{state := drained}, cluster:info(X, Y)) || {X, Y} <- [{A, B}, {B, A}]],
              streams:flowing(Loads, ?DEADLINE),
              ?assertEqual(0, streams:finish(Loads, ?DEADLINE)),
              no_loss(A, B),
              reconnect(A, B)
      end, lists:seq(1, 5)),
    cluster:stop_all([A, B]).

%% Small and large messages, casts, calls and multicasts of the same senders, before, during and
%% after.
all_forms(_) ->
    {A, B} = cluster:pair([{lanes, 2}]),
    lists:foreach(
      fun(Round) ->
              Receivers = [R1, R2] = cluster:call(B, traffic, start_receivers, [2]),
              Once = [{send, R1, 20}, {multicast, Receivers, 300}, {send, R2, 70_000},
                      {cast, R1, 100}, {call, R1, 30}, {multicast, Receivers, 80_000},
                      {send, R1, 200_000}, {request, R2, 10}, {cast, R2, 7}, {retry, R1, 100}],
              Script = lists:append(lists:duplicate(20, Once)),
              %% (What has gone past a lane in the last second before the nodes were disconnected,
              %% in the round before, may count as unconfirmed.)
              Losses = fun() -> [maps:get(lost, cluster:info(X, Y))
                                 || {X, Y} <- [{A, B}, {B, A}]] end,
              Before = Losses(),
              Self = self(),
              Player = spawn_link(fun() ->
                                          Self ! {self(),
                                                  cluster:call(A, traffic, play_all,
                                                               [[{Id, Script} || Id <- [1, 2, 3]]])}
                                  end),
              cluster:await(fun() -> cluster:call(B, traffic, count, [R1]) > 20 * Round end),
              ?assertEqual(ok, drained(A, B)),
              receive {Player, Ends} -> ?assertEqual([normal, normal, normal], Ends) end,
              lists:foreach(
                fun(R) ->
                        Numbers = [N || {N, {_, To, _}} <- lists:enumerate(Script),
                                        To =:= R orelse is_list(To)],
                        cluster:await(
                          fun() ->
                                  cluster:call(B, traffic, count, [R]) =:= 3 * length(Numbers)
                          end),
                        Got = cluster:call(B, traffic, received, [R]),
                        [?assertEqual(Numbers, [N || {I, N} <- Got, I =:= Id]) || Id <- [1, 2, 3]]
                end, Receivers),
              [?assertMatch(#{queued := 0, crashed := 0, unreachable := 0}, Lost)
               || Lost <- Before],
              ?assertEqual(Before, Losses()),
              reconnect(A, B)
      end, [1, 2, 3]),
    cluster:stop_all([A, B]).

%% Large messages that are under way, or wait for room, are waited for.
large(_) ->
    {A, B} = cluster:pair([{lanes, 2}]),
    [To] = cluster:call(B, traffic, start_watchers, [1]),
    NodeB = cluster:node_of(B),
    N = 60,
    ok = cluster:call(
           A, fun() ->
                      Payload = binary:copy(<<"x">>, 2_000_000),
                      Pids = [spawn_monitor(fun() -> [trunkline:send(To, {from, Id, I, Payload})
                                                      || I <- lists:seq(1, N)] end)
                              || Id <- [1, 2]],
                      await_pending(NodeB),
                      ok = trunkline:drain(NodeB),
                      [receive {'DOWN', R, process, P, normal} -> ok end || {P, R} <- Pids],
                      ok
              end),
    cluster:await(fun() -> case cluster:call(B, traffic, summary, [To]) of
                               #{1 := {N, N, []}, 2 := {N, N, []}} -> true;
                               Other -> Other
                           end end, ?DEADLINE),
    no_loss(A, B),
    cluster:stop_all([A, B]).

%% Or they have been sent already, which is too much to ask for, but not wrong.
await_pending(Node) ->
    cluster:await(fun() ->
                          #{large := #{pending_messages := N, messages := Sent}} =
                              trunkline:info(Node),
                          N + Sent > 0
                  end).

%% Whoever waits for a reply gets it, however late, and whatever its size.
requests_answered(_) ->
    {A, B} = cluster:pair([]),
    lists:foreach(
      fun({At, Other}) ->
              {Large, Waiting, Holding} = late_callers(A, B),
              ?assertEqual(ok, drained(At, Other)),
              Told = Holding(),
              ?assertEqual(4, length(Told)),
              cluster:call(B, fun() -> [Pid ! go || Pid <- Told], ok end),
              Got = fun() -> [cluster:call(A, fun() -> ask(Pid) end) || Pid <- Waiting] end,
              ?assertEqual([{ok, small}, {ok, Large}, {ok, {late, small}}, {ok, {late, Large}}],
                           Got()),
              no_loss(A, B),
              ok = cluster:call(B, server, stop_all, []),
              reconnect(A, B)
      end, [{A, B}, {B, A}]),
    cluster:stop_all([A, B]).

%% Processes at A that wait for a small and a large reply of a server at B, and a small and a large
%% outcome of a function. Those whom they wait for are told by `go'.
late_callers(A, B) ->
    NodeB = cluster:node_of(B),
    Large = binary:copy(<<"reply">>, 100_000),
    {ok, Server} = cluster:call(B, server, start, [gen_server]),
    Waiting =
        cluster:call(
          A, fun() ->
                     [spawn(fun() -> receive_and_keep(traffic:attempt(Fun)) end)
                      || Fun <- [fun() ->
                                         trunkline:call(Server, {echo_told, small, self()},
                                                        infinity)
                                 end,
                                 fun() ->
                                         trunkline:call({test_gen_server, NodeB},
                                                        {echo_told, Large, self()}, infinity)
                                 end,
                                 fun() ->
                                         trunkline_erpc:call(NodeB, ?MODULE, late, [small])
                                 end,
                                 fun() ->
                                         trunkline_erpc:call(NodeB, ?MODULE, late, [Large])
                                 end]]
             end),
    Holding = fun() ->
                      cluster:call(B, fun() -> [Pid || Pid <- processes(),
                                                       {current_function, F} <-
                                                           [process_info(Pid, current_function)],
                                                       F =:= {server, hold, 1}
                                                           orelse F =:= {?MODULE, late, 1}] end)
              end,
    cluster:await(fun() -> length(Holding()) =:= 4 end),
    {Large, Waiting, Holding}.

%% The node of the server stops Trunkline. Its lanes are drained, and it has said goodbye, when the
%% replies come. The large ones cannot go beside the lanes any more: the end of the session would
%% take them with it, unseen.
replies_at_the_end(_) ->
    {A, B} = cluster:pair([]),
    {Large, Waiting, Holding} = late_callers(A, B),
    Link = find_link(A, cluster:node_of(B)),
    [ok = cluster:call(A, sys, suspend, [Pid])
     || Pid <- [Link | cluster:call(A, nemesis_node, by_kind, [trunkline_dock])]],
    Patient = patient(B, A),
    Stopping = spawn_monitor(fun() -> cluster:call(B, cluster, stop_trunkline, []) end),
    cluster:await(fun() ->
                          {messages, Said} = cluster:call(A, erlang, process_info,
                                                          [Link, messages]),
                          lists:any(fun(M) -> is_tuple(M) andalso element(1, M) =:= goodbye end,
                                    Said)
                  end),
    Sent = fun() ->
                   #{lanes := Lanes} = cluster:info(B, A),
                   lists:sum([N || #{messages := N} <- Lanes])
           end,
    Before = Sent(),
    Told = Holding(),
    ok = cluster:call(B, fun() -> [Pid ! go || Pid <- Told], ok end),
    %% (The outcomes go by plain distribution.)
    cluster:await(fun() -> Sent() >= Before + 2 orelse Sent() end),
    ok = cluster:call(A, sys, resume, [Link]),
    true = cluster:call(B, erlang, exit, [Patient, kill]),
    ?assertEqual([{ok, small}, {ok, Large}, {ok, {late, small}}, {ok, {late, Large}}],
                 [cluster:call(A, fun() -> ask(Pid) end) || Pid <- Waiting]),
    {Pid, Ref} = Stopping,
    receive {'DOWN', Ref, process, Pid, normal} -> ok end,
    ?assertMatch(#{lost := #{queued := 0, unconfirmed := 0, crashed := 0, unreachable := 0}},
                 cluster:info(A, B)),
    cluster:stop_all([A, B]).

late(Term) ->
    receive go -> {late, Term} end.

receive_and_keep(Result) ->
    receive {ask, From} -> From ! {self(), Result} end.

ask(Pid) ->
    Pid ! {ask, self()},
    receive {Pid, Result} -> Result end.

%% Who waits for a server that dies after the drain hears of it; and of the connection.
servers_die(_) ->
    {A, B} = cluster:pair([]),
    NodeB = cluster:node_of(B),
    lists:foreach(
      fun({At, Other, Ends, Expected}) ->
              {ok, Server} = cluster:call(B, server, start, [gen_server]),
              Caller =
                  cluster:call(
                    A, fun() ->
                               spawn(fun() ->
                                             receive_and_keep(
                                               traffic:attempt(
                                                 fun() ->
                                                         trunkline:call(Server, {wait, x}, infinity)
                                                 end))
                                     end)
                       end),
              cluster:await(fun() ->
                                    cluster:call(B, gen_server, call, [Server, waiting]) =:= 1
                            end),
              ?assertEqual(ok, drained(At, Other)),
              Ends(Server),
              {exit, {Reason, {trunkline, call, _}}} = cluster:call(A, fun() -> ask(Caller) end),
              ?assertEqual(Expected, Reason),
              ok = cluster:call(B, server, stop_all, []),
              reconnect(A, B)
      end,
      [{At, Other, Ends, Expected}
       || {At, Other} <- [{A, B}, {B, A}],
          {Ends, Expected} <-
              [{fun(Server) -> cluster:call(B, erlang, exit, [Server, kill]) end, killed},
               {fun(_) -> cluster:call(A, erlang, disconnect_node, [NodeB]) end, {nodedown, NodeB}},
               {fun(Server) -> cluster:call(B, cluster, stop_trunkline, []),
                               cluster:call(B, cluster, start_trunkline, [[]]),
                               cluster:await_up(A, B),
                               cluster:call(B, erlang, exit, [Server, late]) end, late}]]),
    cluster:stop_all([A, B]).

%% What was monitored by lane before is monitored still.
monitors_go_on(_) ->
    {A, B} = cluster:pair([]),
    NodeB = cluster:node_of(B),
    lists:foreach(
      fun({At, Other}) ->
              Caller = cluster:call(
                         A, fun() -> spawn(fun() -> receive_and_keep(monitored(NodeB)) end) end),
              cluster:await(
                fun() ->
                        cluster:call(A, fun() -> element(2, process_info(Caller, messages)) end)
                            =:= [ready]
                end),
              ?assertEqual(ok, drained(At, Other)),
              cluster:call(A, fun() -> Caller ! go_on end),
              ?assertEqual([bye, killed, taken_back, noproc, noconnection],
                           cluster:call(A, fun() -> ask(Caller) end)),
              cluster:await(
                fun() -> not lists:member(NodeB, cluster:call(A, erlang, nodes, [connected])) end),
              reconnect(A, B)
      end, [{A, B}, {B, A}]),
    cluster:stop_all([A, B]).

%% How they end, the last one with the connection.
monitored(Node) ->
    Loop = fun Loop() ->
                   receive {exit, Reason} -> exit(Reason); {tell, Pid} -> Pid ! ready, Loop() end
           end,
    [P1, P2, P3, P4] = Pids = [spawn(Node, Loop) || _ <- [1, 2, 3, 4]],
    [R1, R2, R3, R4] = [trunkline:monitor(Pid) || Pid <- Pids],
    trunkline:send(P4, {tell, self()}),            % by the same lane: all are monitored
    receive go_on -> receive ready -> ok end end,
    Down = fun(Ref, Pid) -> receive {'DOWN', Ref, process, Pid, Reason} -> Reason end end,
    trunkline:send(P1, {exit, bye}),
    exit(P2, kill),
    Bye = [Down(R1, P1), Down(R2, P2)],
    true = trunkline:demonitor(R3),
    trunkline:send(P3, {exit, silently}),
    P3End = Down(trunkline:monitor(P3), P3),
    true = lists:member(P3End, [silently, noproc]),
    Taken = receive {'DOWN', R3, _, _, _} -> still_there after 0 -> taken_back end,
    Nobody = Down(trunkline:monitor({nobody, Node}), {nobody, Node}),
    true = erlang:disconnect_node(Node),
    Bye ++ [Taken, Nobody, Down(R4, P4)].

%% Whoever takes leave, and however: 200 monitors and 50 requests go on. Nothing comes of it, and
%% later each brings one message, after all that the same process has sent before.
all_go_on(_) ->
    {A, B} = cluster:pair([{lanes, 3}]),
    lists:foreach(
      fun({How, At, Other}) ->
              Servers = cluster:call(
                          B,
                          fun() -> [spawn(?MODULE, answering, [[]]) || _ <- lists:seq(1, 200)] end),
              {Asked, _} = lists:split(5, Servers),
              Watcher = cluster:call(A,
                                     fun() -> spawn(?MODULE, watching, [Servers, Asked, 10]) end),
              Tell = fun(Pids, What) ->
                             cluster:call(B, fun() -> [Pid ! What || Pid <- Pids], ok end)
                     end,
              Got = fun() -> cluster:call(A, fun() -> ask(Watcher) end) end,
              cluster:await(
                fun() ->
                        cluster:call(B, fun() -> lists:all(fun(Pid) ->
                                                                   Pid ! {requests, self()},
                                                                   receive {Pid, N} -> N =:= 10 end
                                                           end, Asked) end)
                end),
              cluster:await(fun() -> length(Got()) =:= 200 end),             % each has said hello
              case How of
                  drain ->
                      ?assertEqual(ok, drained(At, Other));
                  _ ->
                      ok = cluster:call(At, cluster, stop_trunkline, [])
              end,
              How =:= stop_start
                  andalso (ok = cluster:call(At, cluster, start_trunkline, [[{lanes, 2}]])),
              How =:= stop_start andalso cluster:await_up(A, B),
              Tell(Asked, answer),
              cluster:await(fun() -> length([N || {reply, N} <- Got()]) =:= 50 end),
              ?assertEqual([], [Down || {down, _, _} = Down <- Got()]),
              %% On a loaded machine a stop may seem to meet a node that does not respond. Then the
              %% monitors move, one by one, and why a process has ended before that is not known
              %% (noproc).
              cluster:await(
                fun() ->
                        cluster:call(B, fun() -> [] =:= [Pid || Pid <- Servers,
                                                                process_info(Pid, monitored_by)
                                                                    =:= {monitored_by, []}] end)
                end),
              Tell(Servers, {exit, bye}),
              cluster:await(
                fun() -> case length([x || {down, _, _} <- Got()]) of 200 -> true; N -> N end end),
              All = Got(),
              ?assertEqual([{down, N, bye} || N <- lists:seq(1, 200)],
                           lists:sort([Down || {down, _, _} = Down <- All])),
              lists:foreach(fun(Server) ->
                                    {Replies, Sent} =
                                        lists:partition(fun({reply, _}) -> true; (_) -> false end,
                                                        [what(X) || X <- All, Server =:= whose(X)]),
                                    Requests = [N || Server =< 5, N <- lists:seq(1, 10)],
                                    ?assertEqual([hello] ++ [{before, N} || N <- Requests]
                                                 ++ [1, 2, 3, 4, 5, down], Sent),
                                    ?assertEqual([{reply, N} || N <- Requests], Replies)
                            end, lists:seq(1, 200)),
              %% A reply comes after what its server has sent before.
              Places = maps:from_list([{X, Place} || {Place, X} <- lists:enumerate(All)]),
              [?assert(maps:get({before, N}, Places) < maps:get({reply, N}, Places))
               || N <- lists:seq(1, 50)],
              How =:= stop andalso (ok = cluster:call(At, cluster, start_trunkline, [[]])),
              How =:= drain andalso reconnect(A, B),
              cluster:await_up(A, B)
      end, [{How, At, Other} || How <- [drain, stop, stop_start], {At, Other} <- [{A, B}, {B, A}]]),
    %% Nobody waits any more: nothing is left of sessions that have ended.
    [cluster:await(fun() -> #{inlets := Inlets} =
                                cluster:call(X, trunkline_peers, lookup, [cluster:node_of(Y)]),
                            case cluster:call(X, cluster, by_module, [trunkline_inlet]) -- Inlets of
                                [] -> true;
                                More -> More
                            end end)
     || {X, Y} <- [{A, B}, {B, A}]],
    cluster:stop_all([A, B]).

whose({reply, N}) -> (N - 1) div 10 + 1;
whose({before, N}) -> (N - 1) div 10 + 1;
whose({_, Server, _}) -> Server.

what({reply, N}) -> {reply, (N - 1) rem 10 + 1};
what({before, N}) -> {before, (N - 1) rem 10 + 1};
what({down, _, _}) -> down;
what({_, _, What}) -> What.

answering(Requests) ->
    receive
        {hello, Number, Watcher} ->
            trunkline:send(Watcher, {from, Number, hello}),
            answering([{Number, Watcher} | Requests]);
        {'$gen_call', From, N} ->
            answering([{From, N} | Requests]);
        {requests, Pid} ->
            Pid ! {self(), length(Requests) - 1},
            answering(Requests);
        answer ->
            {Asked, [{Number, Watcher}]} =
                lists:partition(fun({From, _}) -> is_tuple(From) end, Requests),
            [begin trunkline:send(Watcher, {before, N}), gen_server:reply(From, N) end
             || {From, N} <- lists:keysort(2, Asked)],
            answering([{Number, Watcher}]);
        {exit, Reason} ->
            {Number, Watcher} = lists:last(Requests),
            [trunkline:send(Watcher, {from, Number, K}) || K <- lists:seq(1, 5)],
            exit(Reason)
    end.

%% What comes, in order. Requests are asked for before anything of them can come.
watching(Servers, Asked, N) ->
    Refs = maps:from_list([{trunkline:monitor(S), I} || {I, S} <- lists:enumerate(Servers)]),
    [trunkline:send(S, {hello, I, self()}) || {I, S} <- lists:enumerate(Servers)],
    Ids = [trunkline:send_request(S, (I - 1) * N + K)
           || {I, S} <- lists:enumerate(Asked), K <- lists:seq(1, N)],
    watch(Refs, Ids, []).

watch(Refs, Ids, Got) ->
    receive
        {ask, From} ->
            From ! {self(), lists:reverse(Got)},
            watch(Refs, Ids, Got);
        {'DOWN', Ref, process, _, Reason} when is_map_key(Ref, Refs) ->
            watch(Refs, Ids, [{down, maps:get(Ref, Refs), Reason} | Got]);
        {What, _} = Message when What =:= before ->
            watch(Refs, Ids, [Message | Got]);
        {from, _, _} = Message ->
            watch(Refs, Ids, [Message | Got]);
        Message ->
            case lists:search(fun(Id) -> trunkline:check_response(Message, Id) =/= no_reply end,
                              Ids) of
                {value, Id} ->
                    case trunkline:check_response(Message, Id) of
                        {reply, N} -> watch(Refs, Ids, [{reply, N} | Got]);
                        {error, Reason} -> watch(Refs, Ids, [{down, request, Reason} | Got])
                    end;
                false ->
                    watch(Refs, Ids, [{down, unexpected, Message} | Got])
            end
    end.

all_peers(_) ->
    [A, B, C] = Nodes = cluster:start_all([[], [], []]),
    [begin cluster:connect(X, Y), cluster:await_up(X, Y) end || {X, Y} <- [{A, B}, {A, C}, {B, C}]],
    Loads = [loads(X, Y) || {X, Y} <- [{A, B}, {A, C}, {B, C}]],
    ?assertEqual(ok, cluster:call(A, trunkline, drain, [])),
    [?assertMatch(#{state := drained}, cluster:info(A, X)) || X <- [B, C]],
    ?assertMatch(#{state := up}, cluster:info(B, C)),
    lists:foreach(fun(Load) -> streams:flowing(Load, ?DEADLINE) end, Loads),
    ?assertEqual(0, streams:finish(lists:append(Loads), ?DEADLINE)),
    cluster:stop_all(Nodes).

nothing_to_drain(_) ->
    [A, B] = cluster:start_all([[], none]),
    NodeB = cluster:node_of(B),
    Drain = fun(Args) ->
                    cluster:call(A, fun() -> try apply(trunkline, drain, Args)
                                             catch Class:Reason -> {Class, Reason}
                                             end end)
            end,
    ?assertEqual({error, noconnection}, Drain(['nobody@nowhere'])),
    ?assertEqual({error, noconnection}, Drain([NodeB])),
    ?assertEqual(ok, Drain([])),
    lists:foreach(fun(Args) -> ?assertEqual({error, badarg}, Drain(Args)) end,
                  [["b"], [NodeB, -1], [NodeB, soon], [1, 1], [cluster:node_of(A)]]),
    %% A node without Trunkline, which can start it later.
    cluster:connect(A, B),
    ?assertEqual(ok, Drain([NodeB])),
    ?assertEqual(ok, Drain([])),
    %% (A has heard that it is not there now.)
    cluster:await_state(A, B, greeting),
    ok = cluster:call(B, cluster, start_trunkline, [[]]),
    cluster:await_up(A, B),
    true = cluster:call(A, erlang, disconnect_node, [NodeB]),
    cluster:await_state(A, B, down),
    ?assertEqual({error, noconnection}, Drain([NodeB])),
    %% Trunkline begins to stop, and has stopped.
    ok = cluster:call(A, trunkline_links, close, []),
    ?assertEqual({error, stopped}, Drain([NodeB])),
    ?assertEqual({error, stopped}, Drain([])),
    ok = cluster:call(A, cluster, stop_trunkline, []),
    ?assertEqual({error, stopped}, Drain([NodeB])),
    ?assertEqual({error, stopped}, Drain([])),
    cluster:stop_all([A, B]).

%% The node that is down is left alone.
stopped_while_down(_) ->
    {A, B} = cluster:pair([]),
    NodeB = cluster:node_of(B),
    true = cluster:call(A, erlang, disconnect_node, [NodeB]),
    [cluster:await_state(X, Y, down) || {X, Y} <- [{A, B}, {B, A}]],
    ok = cluster:call(A, cluster, stop_trunkline, []),
    %% A stand-in ends a little later.
    cluster:await(fun() -> cluster:call(A, nemesis_node, by_kind, [trunkline_stand_in]) =:= [] end),
    ?assertNot(lists:member(NodeB, cluster:call(A, erlang, nodes, [connected]))),
    cluster:stop_all([A, B]).

%% In whatever state of the handshake.
just_connected(_) ->
    {A, B} = cluster:pair([]),
    NodeB = cluster:node_of(B),
    lists:foreach(
      fun(Round) ->
              true = cluster:call(A, erlang, disconnect_node, [NodeB]),
              cluster:await_state(A, B, down),
              cluster:await_state(B, A, down),
              ?assertEqual(
                 ok, cluster:call(A, fun() ->
                                             true = net_kernel:connect_node(NodeB),
                                             _ = [erlang:yield() || _ <- lists:seq(1, 5 * Round)],
                                             trunkline:drain(NodeB)
                                     end)),
              cluster:await_state(B, A, greeting),
              plain(A, B)
      end, lists:seq(1, 30)),
    cluster:stop_all([A, B]).

%% Whatever is killed, at either node, does not bring the lanes back.
stays(_) ->
    {A, B} = cluster:pair([]),
    ok = drained(A, B),
    cluster:await_state(B, A, greeting),
    plain(A, B),
    ?assertEqual([{error, drained}, {error, no_trunkline}],
                 [cluster:call(X, trunkline, await_up, [cluster:node_of(Y), 0])
                  || {X, Y} <- [{A, B}, {B, A}]]),
    [cluster:call(X, logger, set_primary_config, [level, none]) || X <- [A, B]],
    lists:foreach(
      fun({At, Other, Which}) ->
              Find = fun() ->
                             [cluster:call(At, cluster, find, [W, cluster:node_of(Other)])
                              || W <- [Which, link]]
                     end,
              [_, OldLink] = Find(),
              Old = cluster:call(At, ?MODULE, kill, [Which, cluster:node_of(Other)]),
              %% With all but trunkline_links the link goes too.
              cluster:await(fun() ->
                                    [New, Link] = Find(),
                                    New =/= [] andalso New =/= Old andalso Link =/= []
                                        andalso (Link =/= OldLink orelse Which =:= trunkline_links)
                            end),
              cluster:await_state(B, A, greeting),
              plain(A, B)
      end, [{At, Other, Which} || Which <- [link, trunkline_links, link, trunkline_link_sup, link],
                                  {At, Other} <- [{A, B}, {B, A}]]),
    reconnect(A, B),
    exchange:both_ways(A, B),
    cluster:stop_all([A, B]).

kill(Which, Node) ->
    [Pid] = Found = cluster:find(Which, Node),
    ok = trunkline_process:kill(Pid),
    Found.

%% Neither side has lanes, and messages and calls arrive.
plain(A, B) ->
    lists:foreach(
      fun({From, To}) ->
              [Receiver] = cluster:call(To, traffic, start_watchers, [1]),
              [normal] = cluster:call(From, traffic, play_all,
                                      [[{1, [{send, Receiver, 10}, {call, Receiver, 10}]}]]),
              ?assertMatch(#{1 := {2, 2, []}}, cluster:call(To, traffic, summary, [Receiver]))
      end, [{A, B}, {B, A}]),
    ?assertMatch(#{state := drained}, cluster:info(A, B)),
    %% It may have been in it before, and may be told only now.
    cluster:await_state(B, A, greeting).

%% Trunkline at either node: that ends it.
started_anew(_) ->
    {A, B} = cluster:pair([]),
    lists:foreach(
      fun(At) ->
              Loads = loads(A, B),
              ok = drained(A, B),
              streams:flowing(Loads, ?DEADLINE),
              ok = cluster:call(At, cluster, stop_trunkline, []),
              streams:flowing(Loads, ?DEADLINE),
              ok = cluster:call(At, cluster, start_trunkline, [[]]),
              cluster:await_up(A, B),
              streams:flowing(Loads, ?DEADLINE),
              ?assertEqual(0, streams:finish(Loads, ?DEADLINE))
      end, [A, B, B, A]),
    exchange:both_ways(A, B),
    cluster:stop_all([A, B]).

%% A peer that stands still: a drain returns, and senders do not wait for it. The drain goes on when
%% the peer does, nothing is lost, and what is sent from then on overtakes nothing.
stands_still(_) ->
    {A, B} = cluster:pair([{lanes, 2}]),
    NodeB = cluster:node_of(B),
    [To] = cluster:call(B, traffic, start_watchers, [1]),
    lists:foreach(
      fun({Args, Round}) ->
              Send = fun(From, Until) ->
                             lists:foreach(fun(N) -> trunkline:send(To, {from, Round, N, x}) end,
                                           lists:seq(From, Until))
                     end,
              cluster:suspend(B),
              Sender = cluster:call(A, fun() ->
                                               spawn(fun() ->
                                                             Send(1, 5000),
                                                             receive_and_keep(before),
                                                             receive go_on -> Send(5001, 6000) end,
                                                             receive_and_keep(behind)
                                                     end)
                                       end),
              ?assertEqual(before, cluster:call(A, fun() -> ask(Sender) end)),
              ?assertEqual({error, timeout}, cluster:call(A, trunkline, drain, [NodeB | Args])),
              cluster:await_state(A, B, closing),
              %% Senders do not wait for a node that is silent. (This is one of another order.)
              Late = {late, Round},
              cluster:await(fun() ->
                                    cluster:call(A, trunkline, send,
                                                 [To, {from, Late, 1, x}, [nosuspend]]) =:= ok
                            end),
              %% Another one waits for the same drain, and not for longer than it wants to.
              ?assertEqual({error, timeout}, cluster:call(A, trunkline, drain, [NodeB, 10])),
              Next = draining(A, B),
              go_on = cluster:call(A, fun() -> Sender ! go_on end),
              cluster:continue(B),
              ?assertEqual(ok, cluster:call(A, fun() -> ask(Next) end)),
              ?assertEqual(behind, cluster:call(A, fun() -> ask(Sender) end)),
              plain(A, B),
              cluster:await(fun() -> case cluster:call(B, traffic, summary, [To]) of
                                         #{Round := {6000, 6000, []}, Late := {1, 1, []}} -> true;
                                         Other -> Other
                                     end end),
              no_loss(A, B),
              reconnect(A, B)
      end, [{[100], 1}, {[0], 2}, {[], 3}]),
    cluster:stop_all([A, B]).

%% Lanes on connections of their own.
connections(_) ->
    {A, B} = cluster:pair([{lane_transport, tcp}, {far_connections, 2}]),
    [cluster:await(fun() -> case cluster:info(X, Y) of
                                #{batches := #{by := connections}} -> true;
                                Info -> Info
                            end end) || {X, Y} <- [{A, B}, {B, A}]],
    Loads = loads(A, B),
    ?assertEqual(ok, drained(A, B)),
    streams:flowing(Loads, ?DEADLINE),
    ?assertEqual(0, streams:finish(Loads, ?DEADLINE)),
    no_loss(A, B),
    reconnect(A, B),
    exchange:both_ways(A, B),
    cluster:stop_all([A, B]).

%% While it is drained, and stands still so that this is certain.
peer_killed(_) ->
    {A, B} = cluster:pair([]),
    Load = streams:trickle(A, B, 50),
    streams:flowing(Load, B, ?DEADLINE),
    Caller = draining(A, B),
    cluster:kill(B),
    ?assertEqual({error, noconnection}, cluster:call(A, fun() -> ask(Caller) end)),
    cluster:await_state(A, B, down),
    cluster:stop(A).

%% A process at A that drains the link to B, which stands still. It does not give up after three
%% seconds, since messages seem to arrive all the time.
draining(A, B) ->
    NodeB = cluster:node_of(B),
    cluster:suspend(B),
    Caller =
        cluster:call(A, fun() ->
                                spawn(fun() ->
                                              #{stats := Stats} = trunkline_peers:lookup(NodeB),
                                              Pretending = spawn_link(fun() -> pretend(Stats) end),
                                              Result = trunkline:drain(NodeB),
                                              unlink(Pretending),
                                              exit(Pretending, kill),
                                              receive_and_keep(Result)
                                      end)
                        end),
    cluster:await(fun() ->
                          cluster:call(A,
                                       fun() -> trunkline:send({nobody, NodeB}, x, [nosuspend]) end)
                              =:= nosuspend
                  end),
    %% The link answers meanwhile.
    _ = cluster:call(A, sys, get_state, [find_link(A, NodeB), ?DEADLINE]),
    ?assertMatch(#{state := closing}, cluster:info(A, B)),
    Caller.

%% The node does not run out of patience with the other one.
patient(Node, Other) ->
    cluster:call(Node, fun() ->
                               #{stats := Stats} = trunkline_peers:lookup(cluster:node_of(Other)),
                               spawn(fun() -> pretend(Stats) end)
                       end).

pretend(Stats) ->
    ok = trunkline_stats:add(Stats, {lane, 1}, received_messages, 1),
    receive after 50 -> pretend(Stats) end.

%% That somebody tries to send, and is refused, does not make it wait.
refusals_are_no_progress(_) ->
    {A, B} = cluster:pair([{lanes, 2}]),
    NodeB = cluster:node_of(B),
    Refused = fun(End, Expected) ->
                      cluster:suspend(B),
                      Knocking =
                          cluster:call(A, fun() -> spawn(fun() -> knock({nobody, NodeB}) end) end),
                      Start = erlang:monotonic_time(millisecond),
                      ?assertEqual(Expected, End()),
                      %% (It took until the nodes noticed that they did not hear of each other.)
                      ?assert(erlang:monotonic_time(millisecond) - Start < 20_000),
                      true = cluster:call(A, erlang, exit, [Knocking, kill]),
                      cluster:continue(B),
                      cluster:await_state(B, A, greeting)
              end,
    Refused(fun() -> drain(A, B) end, {error, timeout}),
    reconnect(A, B),
    Refused(fun() -> cluster:call(A, cluster, stop_trunkline, []) end, ok),
    cluster:stop_all([A, B]).

%% Nor does it, or a stop, wait for ever when the lanes are full: many senders wait for room, and
%% one that does not is refused all the time.
full_lanes(_) ->
    {A, B} = cluster:pair([{lanes, 2}, {queue_bytes, 16_384}, {window_bytes, 65_536}]),
    [To] = cluster:call(B, traffic, start_watchers, [1]),
    Full = fun(Round, End, Expected) ->
                   cluster:suspend(B),
                   Senders = cluster:call(A, fun() -> senders(To, Round, 32, 100) end),
                   bounds_SUITE:await_blocked(A, B, Senders),
                   Before = refusals(A, B),
                   Knocking = cluster:call(A, fun() -> spawn(fun() -> knock(To) end) end),
                   cluster:await(fun() -> refusals(A, B) > Before + 2 end),
                   Start = erlang:monotonic_time(millisecond),
                   ?assertEqual(Expected, End()),
                   %% (As in refusals_are_no_progress. B does not take part: it stands still.)
                   ?assert(erlang:monotonic_time(millisecond) - Start < 20_000),
                   true = cluster:call(A, erlang, exit, [Knocking, kill]),
                   cluster:continue(B),
                   cluster:await_state(B, A, greeting),
                   %% And nobody waits any longer.
                   cluster:await(fun() -> [] =:= cluster:call(A, lists, filter,
                                                              [fun is_process_alive/1, Senders])
                                 end)
           end,
    Full(drain, fun() -> drain(A, B) end, {error, timeout}),
    %% (What a stop beside a node that stands still has in flight is lost.)
    cluster:await(fun() -> case cluster:call(B, traffic, summary, [To]) of
                               #{{drain, 32} := _} = Summary ->
                                   [{100, 100, []}] =:= lists:usort(maps:values(Summary))
                                       orelse Summary;
                               Summary -> Summary
                           end end),
    no_loss(A, B),
    reconnect(A, B),
    Full(stop, fun() -> cluster:call(A, cluster, stop_trunkline, []) end, ok),
    cluster:stop_all([A, B]).

%% So many senders of so many messages. Runs at the node.
senders(To, Tag, Senders, Messages) ->
    [spawn(fun() -> [trunkline:send(To, {from, {Tag, Id}, N, traffic:payload(1000)})
                     || N <- lists:seq(1, Messages)] end)
     || Id <- lists:seq(1, Senders)].

refusals(A, B) ->
    #{lanes := Lanes} = cluster:info(A, B),
    lists:sum([N || #{nosuspend := N} <- Lanes]).

%% Several drains of a node that stands still, and a stop behind them, wait for it once.
one_patience(_) ->
    {A, B} = cluster:pair([]),
    cluster:suspend(B),
    x = cluster:call(A, trunkline, send, [{nobody, cluster:node_of(B)}, x]),
    Start = erlang:monotonic_time(millisecond),
    Self = self(),
    Drains = [spawn_link(fun() -> Self ! {self(), drain(A, B)} end) || _ <- lists:seq(1, 8)],
    ?assertEqual([{error, timeout}],
                 lists:usort([receive {Pid, Result} -> Result end || Pid <- Drains])),
    ok = cluster:call(A, cluster, stop_trunkline, []),
    %% (One after the other they would take 27 seconds.)
    ?assert(erlang:monotonic_time(millisecond) - Start < 20_000),
    cluster:continue(B),
    cluster:stop_all([A, B]).

%% A reply to a request of a session that has ended takes the lanes of a later one, before the news
%% that the server has ended. It may be under way for long: meanwhile no process at the server's
%% node knows that anybody waits for it.
by_a_later_session(_) ->
    {A, B} = cluster:pair_on_the_distribution(),
    Answer = fun() ->
                     From = receive {'$gen_call', F, question} -> F end,
                     receive go -> gen_server:reply(From, answer) end
             end,
    Server = cluster:call(B, erlang, spawn, [Answer]),
    Self = self(),
    Call = fun() -> traffic:attempt(fun() -> trunkline:call(Server, question, infinity) end) end,
    spawn_link(fun() -> Self ! {answered, cluster:call(A, Call)} end),
    [AtA, AtB] = [Inlet || {X, Y} <- [{A, B}, {B, A}],
                           {Inlet} <- [cluster:call(X, trunkline_peers, session,
                                                    [cluster:node_of(Y)])]],
    cluster:await(fun() -> cluster:is_awaited(AtB, B) end),
    Retiring = cluster:call(B, order_SUITE, lane_to, [cluster:node_of(A)]),
    cluster:call(B, cluster, stop_trunkline, []),
    cluster:call(B, cluster, start_trunkline, [[{lanes, 1}, {lane_transport, dist}]]),
    true = cluster:await_lanes(A, B),
    true = cluster:await_lanes(B, A),
    Suspender = cluster:call(B, order_SUITE, suspended_lane, [AtA]),
    %% The lane to which the server replies does not run until the inlet knows of the server's end.
    First = cluster:call(B, order_SUITE, suspended, [Retiring]),
    true = cluster:call(B, fun() -> Server ! go, true end),
    cluster:await(fun() -> not cluster:call(B, erlang, is_process_alive, [AtB]) end),
    %% The inlet at A hears of that, too.
    ok = cluster:call(B, erpc, call, [cluster:node_of(A), ?MODULE, has_looked, [AtA]]),
    cluster:call(B, fun() -> First ! resume end),
    cluster:await(fun() -> not cluster:call(B, erlang, is_process_alive, [Retiring]) end),
    cluster:call(B, fun() -> Suspender ! resume end),
    receive {answered, Reply} -> ?assertEqual({ok, answer}, Reply) end,
    cluster:await(fun() -> not cluster:call(A, erlang, is_process_alive, [AtA]) end),
    cluster:stop_all([A, B]).

%% That process has taken out of its mailbox what was there before.
has_looked(Pid) ->
    try sys:get_state(Pid) of
        _ -> ok
    catch
        exit:{Reason, _} when Reason =:= noproc; Reason =:= normal -> ok
    end.

%% Trunkline stops and starts, at either node in turn. Who sends with `nosuspend', to one or to
%% many, is not refused for that, as by `!' it would not be. (ejabberd drops what is refused.)
never_refused(_) ->
    {A, B} = cluster:pair([]),
    Offers = [begin
                  [To] = cluster:call(Y, traffic, start_watchers, [1]),
                  {X, Y, To, cluster:call(X, fun() -> spawn(fun() -> offer(To, 1, []) end) end)}
              end || {X, Y} <- [{A, B}, {B, A}]],
    [begin
         ok = cluster:call(At, cluster, stop_trunkline, []),
         ok = cluster:call(At, cluster, start_trunkline, [[]]),
         cluster:await_up(A, B)
     end || _ <- lists:seq(1, 10), At <- [A, B]],
    [begin
         {N, Refused} = cluster:call(X, fun() -> ask(Offer) end),
         ?assertEqual([], Refused),
         cluster:await(fun() -> case cluster:call(Y, traffic, summary, [To]) of
                                    #{one := {N, N, []}} -> true;
                                    Other -> {N, Other}
                                end end)
     end || {X, Y, To, Offer} <- Offers],
    cluster:stop_all([A, B]).

offer(To, N, Refused0) ->
    Before = erlang:monotonic_time(millisecond),
    Send = case N rem 2 of
               0 -> fun trunkline:send/3;
               1 -> fun(T, M, Options) -> trunkline:multicast([T], M, Options) end
           end,
    Refused = case Send(To, {from, one, N, x}, [nosuspend, noconnect]) of
                  ok -> Refused0;
                  Answer -> Waited = erlang:monotonic_time(millisecond) - Before,
                            [{N, Answer, Waited} | Refused0]
              end,
    receive {ask, From} -> From ! {self(), {N, Refused}} after 1 -> offer(To, N + 1, Refused) end.

%% A long term that leaves by the distribution is progress, and so is whatever comes.
moved(_) ->
    {A, B} = cluster:pair([]),
    NodeB = cluster:node_of(B),
    [To] = cluster:call(B, traffic, start_watchers, [1]),
    Moved = fun(At, Other) ->
                    cluster:call(At, trunkline_socket, moved, [cluster:node_of(Other)])
            end,
    {Before, There} = {Moved(A, B), Moved(B, A)},
    _ = cluster:call(A, erlang, send, [To, binary:copy(<<1>>, 2_000_000)]),
    cluster:await(fun() -> Moved(A, B) >= Before + 30 end),
    cluster:await(fun() -> Moved(B, A) >= There + 2_000_000 end),
    true = cluster:call(A, erlang, disconnect_node, [NodeB]),
    ?assertEqual(unknown, Moved(A, B)),
    cluster:stop_all([A, B]).

%% What a drain has asked for, and comes when the drain has ended, is nothing to report.
late_answer(_) ->
    {A, B} = cluster:pair([]),
    ok = drained(A, B),
    Link = find_link(A, cluster:node_of(B)),
    {moved, 1} = cluster:call(A, fun() -> Link ! {moved, 1} end),
    _ = cluster:call(A, sys, get_state, [Link]),
    {dictionary, Dictionary} = cluster:call(A, erlang, process_info, [Link, dictionary]),
    ?assertNot(lists:keymember(trunkline_process, 1, Dictionary)),
    cluster:stop_all([A, B]).

%% Senders that wait for room then go on by plain distribution, behind what they have sent before.
senders_wait(_) ->
    {A, B} = cluster:pair([{lanes, 2}, {queue_bytes, 16_384}, {window_bytes, 65_536}]),
    [To] = cluster:call(B, traffic, start_watchers, [1]),
    lists:foreach(
      fun(Round) ->
              Scripts = [{{Round, I}, lists:duplicate(500, {send, To, 200})}
                         || I <- lists:seq(1, 8)],
              cluster:suspend(B),
              Senders = cluster:call(
                          A, fun() ->
                                     spawn(fun() -> receive_and_keep(traffic:play_all(Scripts)) end)
                             end),
              cluster:await(fun() ->
                                    #{lanes := Lanes} = cluster:info(A, B),
                                    case lists:sum([N || #{waiting := N} <- Lanes]) of
                                        8 -> true;
                                        Fewer -> Fewer
                                    end
                            end),
              Caller = draining(A, B),
              cluster:continue(B),
              ?assertEqual(ok, cluster:call(A, fun() -> ask(Caller) end)),
              ?assertEqual([normal], lists:usort(cluster:call(A, fun() -> ask(Senders) end))),
              cluster:await(fun() -> case cluster:call(B, traffic, count, [To]) of
                                         N when N =:= 4_000 * Round -> true;
                                         Other -> Other
                                     end end),
              ?assert(maps:get(fallbacks, cluster:info(A, B)) > 0),
              no_loss(A, B),
              reconnect(A, B)
      end, [1, 2, 3]),
    ?assertEqual([{500, 500, []}],
                 lists:usort(maps:values(cluster:call(B, traffic, summary, [To])))),
    cluster:stop_all([A, B]).

%% A connection on which nothing moves suspends its senders. They are not Trunkline: it can be
%% drained, stopped and started beside that, and gets sessions with others.
busy_connection(_) ->
    [A, B, C] = Nodes = cluster:start_all([[], [], []]),
    [begin cluster:connect(A, N), cluster:await_up(A, N) end || N <- [B, C]],
    cluster:suspend(B),
    Full = cluster:call(A, traffic, fill_connection, [cluster:node_of(B)]),
    cluster:await_suspended(A, Full),
    Start = erlang:monotonic_time(millisecond),
    ?assertEqual({error, timeout}, drain(A, B)),
    ?assertEqual(ok, cluster:call(A, cluster, stop_trunkline, [])),
    ?assertEqual(ok, cluster:call(A, cluster, start_trunkline, [[]])),
    cluster:await_up(A, C),
    %% (It took until the nodes noticed that they did not hear of each other.)
    ?assert(erlang:monotonic_time(millisecond) - Start < 30_000),
    true = cluster:call(A, erlang, exit, [Full, kill]),
    cluster:continue(B),
    cluster:await_up(A, B),
    cluster:stop_all(Nodes).

knock(To) ->
    _ = trunkline:send(To, x, [nosuspend]),
    receive after 20 -> knock(To) end.

%% Trunkline is stopped and started, at either node in turn, while messages go both ways.
stopped_under_load(_) ->
    {A, B} = cluster:pair([]),
    ?assertEqual(0, stopped_and_started(A, B, loads(A, B), "100")),
    cluster:stop_all([A, B]).

%% The same, while six senders at each node send as fast as they can. Without lanes that is a flood
%% of the distribution, which then hardly reads: the other node may not be heard for seconds.
stopped_under_flood(_) ->
    {A, B} = cluster:pair([]),
    Loads = [{A, B, streams:start(A, B, 50)}, {B, A, streams:start(B, A, 50)}],
    ?assertEqual(0, stopped_and_started(A, B, Loads, "20")),
    cluster:stop_all([A, B]).

%% How many messages are missing.
stopped_and_started(A, B, Loads, DefaultRounds) ->
    Rounds = list_to_integer(os:getenv("ROUNDS", DefaultRounds)),
    Times = [begin
                 At = lists:nth(Round rem 2 + 1, [A, B]),
                 Since = erlang:monotonic_time(millisecond),
                 ok = cluster:call(At, cluster, stop_trunkline, []),
                 Time = erlang:monotonic_time(millisecond) - Since,
                 ok = cluster:call(At, cluster, start_trunkline, [[]]),
                 %% In whatever state the next one finds them.
                 receive after rand:uniform(30) -> ok end,
                 Round rem 10 =:= 0 andalso streams:flowing(Loads, ?DEADLINE),
                 Time
             end || Round <- lists:seq(1, Rounds)],
    ct:pal("the longest stop took ~b ms", [lists:max(Times)]),
    streams:finish(Loads, ?DEADLINE).

%% A is stopped when it has told B where to send, and has not been told by B. B has an inlet that
%% has not delivered what it got by the connection before.
stopped_while_opening(_) ->
    {A, B} = cluster:pair([]),
    NodeA = cluster:node_of(A),
    NodeB = cluster:node_of(B),
    [To] = cluster:call(A, traffic, start_watchers, [1]),
    ok = cluster:call(B, fun() -> cluster:hold(cluster:find(inlets, NodeA)) end),
    true = cluster:call(A, erlang, disconnect_node, [NodeB]),
    [cluster:await_state(X, Y, down) || {X, Y} <- [{A, B}, {B, A}]],
    cluster:connect(A, B),
    cluster:await_state(B, A, opening),
    cluster:await(fun() -> case cluster:call(A, trunkline_peers, lookup, [NodeB]) of
                               #{state := opening, inlets := [_ | _]} -> true;
                               Peer -> Peer
                           end end),
    Link = find_link(A, NodeB),
    ok = cluster:call(A, cluster, hold, [[Link]]),
    Stopping = spawn_monitor(fun() -> ok = cluster:call(A, cluster, stop_trunkline, []) end),
    cluster:await(fun() ->
                          cluster:call(A, fun() ->
                                                  {messages, Ms} = process_info(Link, messages),
                                                  lists:member(leave, Ms)
                                          end)
                  end),
    Stream = cluster:call(B, traffic, stream, [To, 1, 50]),
    ok = cluster:call(B, cluster, release, []),
    cluster:await_lanes(B, A),
    cluster:await(fun() -> cluster:call(A, traffic, count, [To]) > 1000 end),
    ok = cluster:call(A, cluster, release, []),
    {Pid, Ref} = Stopping,
    receive {'DOWN', Ref, process, Pid, Reason} -> ?assertEqual(normal, Reason) end,
    N = cluster:call(B, traffic, stop_stream, [Stream]),
    cluster:await(fun() -> case cluster:call(A, traffic, summary, [To]) of
                               #{1 := {N, N, []}} -> true;
                               Other -> {N, Other}
                           end end),
    cluster:stop_all([A, B]).

%% B has inlets that have not delivered what they got when A's link is killed, and A is stopped
%% before it has another session. What goes by plain distribution from then on must not overtake
%% that.
stopped_after_crash(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    {NodeA, NodeB} = {cluster:node_of(A), cluster:node_of(B)},
    [To] = cluster:call(B, traffic, start_watchers, [1]),
    ok = cluster:call(B, fun() -> cluster:hold(cluster:find(inlets, NodeA)) end),
    Stream = cluster:call(A, traffic, trickle, [To, 1, 50]),
    cluster:await(fun() -> #{lanes := [#{in_flight_messages := N}]} = cluster:info(A, B),
                           N > 100
                  end),
    true = cluster:call(A, erlang, exit, [find_link(A, NodeB), kill]),
    {Pid, Ref} = spawn_monitor(fun() -> ok = cluster:call(A, cluster, stop_trunkline, []) end),
    %% It waits, or something has overtaken by now.
    cluster:await(fun() -> is_closed(A) orelse cluster:call(B, traffic, count, [To]) > 0 end),
    ok = cluster:call(B, cluster, release, []),
    receive {'DOWN', Ref, process, Pid, Reason} -> ?assertEqual(normal, Reason) end,
    %% What goes by plain distribution arrives: the last message is not one that was lost.
    Before = cluster:call(B, traffic, count, [To]),
    cluster:await(fun() -> cluster:call(B, traffic, count, [To]) > Before + 1000 end),
    N = cluster:call(A, traffic, stop_stream, [Stream]),
    %% (What was in the lane that was killed is lost.)
    cluster:await(fun() -> case cluster:call(B, traffic, summary, [To]) of
                               #{1 := {N, _, Gaps}} ->
                                   [] =:= [Gap || {Last, Next} = Gap <- Gaps, Next < Last]
                                       orelse Gaps;
                               Other -> {N, Other}
                           end end),
    cluster:stop_all([A, B]).

%% A node's stop takes long, because of another one. Meanwhile the connection to a third one breaks,
%% and is made again. That one does not wait until the stop is over.
reconnected_while_stopping(_) ->
    [A, B, C] = Nodes = cluster:start_all([[], [], []]),
    [begin cluster:connect(X, B), cluster:await_up(X, B) end || X <- [A, C]],
    [NodeA, NodeB, NodeC] = [cluster:node_of(X) || X <- Nodes],
    {ok, _} = cluster:call(B, server, start, [gen_server]),
    ok = cluster:call(B, fun() -> cluster:hold(cluster:find(link, NodeC)) end),
    {Pid, Ref} = spawn_monitor(fun() -> ok = cluster:call(B, cluster, stop_trunkline, []) end),
    cluster:await(fun() -> is_closed(B) andalso [] =:= cluster:call(B, cluster, find, [link, NodeA])
                  end),
    true = cluster:call(A, erlang, disconnect_node, [NodeB]),
    cluster:connect(A, B),
    ?assertEqual(noted, cluster:call(A, trunkline, call,
                                     [{test_gen_server, NodeB}, {note, x}, ?DEADLINE])),
    ?assert(is_process_alive(Pid)),
    ok = cluster:call(B, cluster, release, []),
    receive {'DOWN', Ref, process, Pid, Reason} -> ?assertEqual(normal, Reason) end,
    cluster:stop_all(Nodes).

is_closed(At) ->
    cluster:call(At, fun() -> try sys:get_state(trunkline_links) of
                                  {closed, _} -> true;
                                  _ -> false
                              catch exit:_ -> false
                              end end).

find_link(At, Node) ->
    [Link] = cluster:call(At, cluster, find, [link, Node]),
    Link.

%% Trunkline there is stopped at the same time.
peer_stops(_) ->
    {A, B} = cluster:pair([]),
    lists:foreach(
      fun(_) ->
              Loads = loads(A, B),
              Self = self(),
              Pids = [spawn_link(fun() -> Self ! {self(), Fun()} end)
                      || Fun <- [fun() -> drain(A, B) end,
                                 fun() -> cluster:call(B, cluster, stop_trunkline, []) end]],
              ?assertEqual([ok, ok], [receive {Pid, Result} -> Result end || Pid <- Pids]),
              streams:flowing(Loads, ?DEADLINE),
              ?assertEqual(0, streams:finish(Loads, ?DEADLINE)),
              ok = cluster:call(B, cluster, start_trunkline, [[]]),
              cluster:await_up(A, B)
      end, lists:seq(1, 5)),
    cluster:stop_all([A, B]).

%% The link itself dies: who drains it hears of it, and there are lanes again.
link_killed(_) ->
    {A, B} = cluster:pair([]),
    anew:lanes(A, B,
               fun() ->
                       Caller = draining(A, B),
                       _ = cluster:call(A, ?MODULE, kill, [link, cluster:node_of(B)]),
                       ?assertEqual({error, killed}, cluster:call(A, fun() -> ask(Caller) end)),
                       cluster:continue(B)
               end),
    ?assertEqual(ok, drained(A, B)),
    plain(A, B),
    cluster:stop_all([A, B]).

%% B's link is killed before it has answered that A takes leave. Who waits for a reply hears of
%% that.
peers_link_killed(_) ->
    {A, B} = cluster:pair([]),
    {NodeA, NodeB} = {cluster:node_of(A), cluster:node_of(B)},
    Server = cluster:call(B, fun() -> spawn(fun() -> receive after infinity -> ok end end) end),
    Caller = cluster:call(A, fun() -> spawn(fun() -> trunkline:call(Server, x, infinity) end) end),
    cluster:await(fun() ->
                          cluster:call(B, erlang, process_info, [Server, message_queue_len])
                              =:= {message_queue_len, 1}
                  end),
    Link = find_link(B, NodeA),
    ok = cluster:call(B, cluster, hold, [[Link]]),
    {Pid, Ref} = spawn_monitor(fun() -> exit(drained(A, B)) end),
    cluster:await(
      fun() -> cluster:call(A, fun() -> #route{gate = Gate} = trunkline_route:lookup(NodeB),
                                        trunkline_gate:path(Gate) =:= wait end) end),
    true = cluster:call(B, erlang, exit, [Link, kill]),
    receive {'DOWN', Ref, process, Pid, Result} -> ?assertEqual(ok, Result) end,
    cluster:await(fun() -> not cluster:call(A, erlang, is_process_alive, [Caller]) end),
    cluster:stop_all([A, B]).

%% --- steps ----------------------------------------------------------------------------

loads(A, B) ->
    Loads = streams:both_ways(A, B),
    streams:flowing(Loads, ?DEADLINE),
    Loads.

drain(A, B) -> cluster:call(A, trunkline, drain, [cluster:node_of(B)]).

%% (If a loaded machine gives B no processor for three seconds the drain's time is over, but it goes
%% on.)
drained(A, B) -> drained(A, B, 3).

drained(A, B, Times) ->
    case drain(A, B) of
        {error, timeout} when Times > 1 -> drained(A, B, Times - 1);
        Result -> Result
    end.

fallbacks(A, B) -> maps:get(fallbacks, cluster:info(A, B)).

%% Since the last start, both ways.
no_loss(A, B) ->
    [?assertMatch(#{lost := #{queued := 0, unconfirmed := 0, crashed := 0, unreachable := 0}},
                  cluster:info(X, Y)) || {X, Y} <- [{A, B}, {B, A}]].

%% What has arrived has been acknowledged too: it would count as lost.
reconnect(A, B) ->
    [cluster:await(
       fun() -> #{lanes := Lanes} = Info = cluster:info(X, Y),
                lists:all(fun(#{in_flight_messages := N}) -> N =:= 0 end, Lanes) orelse Info end)
     || {X, Y} <- [{A, B}, {B, A}]],
    anew:lanes(A, B, fun() ->
                             _ = cluster:call(A, erlang, disconnect_node, [cluster:node_of(B)]),
                             cluster:await(
                               fun() ->
                                       not lists:member(cluster:node_of(A),
                                                        cluster:call(B, erlang, nodes, [connected]))
                               end),
                             cluster:connect(A, B)
                     end).

%% What is taken back when the lanes are through, and ends with them, is no message that was lost.
nobody_misses(_) ->
    {A, B} = cluster:pair([{lanes, 2}]),
    NodeB = cluster:node_of(B),
    Lost = cluster:call(
             A,
             fun() ->
                     #route{lanes = Lanes, stats = Stats} = Route = trunkline_route:lookup(NodeB),
                     [true = erlang:suspend_process(Lane) || Lane <- tuple_to_list(Lanes)],
                     [ok = trunkline_sender:force(Route, {Command, []}, self())
                      || Command <- [{demonitor, make_ref()}, {cancel, self(), make_ref()}]],
                     ok = application:stop(trunkline),
                     [trunkline_stats:get(Stats, peer, Field)
                      || Field <- [lost_queued, lost_unconfirmed, lost_crashed]]
             end),
    ?assertEqual([0, 0, 0], Lost),
    cluster:stop_all([A, B]).
