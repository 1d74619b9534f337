%% Sessions that outlive their connection (option resume_time): single cases. Connections that break
%% under load, hundreds of times, are in nemesis_SUITE (make breaks).
-module(resume_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([streams_go_on/1, calls_wait/1, calls_time_out/1, monitors/1, large_messages/1,
         inbox/1, multicast/1, senders_wait/1, replies_wait/1,
         time_runs_out/1, another_incarnation/1, crash_is_noticed/1, one_side_does_not/1,
         stop_while_suspended/1, drain_while_suspended/1, drain_runs_out/1,
         killed_while_suspended/1, counts_are_kept/1]).

%% ms
-define(LONG, 60_000).
-define(PATIENT, [{resume_time, 600_000}]).
-define(BREAKS, 10).

suite() -> [{timetrap, {minutes, 5}}].

all() ->
    [streams_go_on, calls_wait, calls_time_out, monitors, large_messages, inbox, multicast,
     senders_wait, replies_wait, time_runs_out, another_incarnation, crash_is_noticed,
     one_side_does_not, stop_while_suspended, drain_while_suspended, drain_runs_out,
     killed_while_suspended, counts_are_kept].

%% --- nodes --------------------------------------------------------------------------------

pair() -> cluster:pair(?PATIENT).

stop(A, B) -> cluster:stop_all([A, B]).

disconnect(A, B) -> cluster:call(A, erlang, disconnect_node, [cluster:node_of(B)]).

%% The connection breaks, and until together/2 no other can be made: the cookies differ.
apart(A, B) ->
    [cookie(X, Y, cluster:node_of(X)) || {X, Y} <- [{A, B}, {B, A}]],
    _ = disconnect(A, B),
    [cluster:await_state(X, Y, suspended) || {X, Y} <- [{A, B}, {B, A}]],
    ok.

%% They connect of themselves.
together(A, B) ->
    reunite(A, B),
    cluster:await_up(A, B).

reunite(A, B) ->
    [cookie(X, Y, cluster:call(X, erlang, get_cookie, [])) || {X, Y} <- [{A, B}, {B, A}]],
    ok.

%% By another attempt, if one has failed.
connect(A, B) ->
    cluster:await(fun() -> cluster:call(A, net_kernel, connect_node, [cluster:node_of(B)]) end).

%% Attempts to connect are in the log as errors.
cookie(X, Y, Cookie) ->
    ok = cluster:call(X, logger, set_primary_config, [level, none]),
    true = cluster:call(X, erlang, set_cookie, [cluster:node_of(Y), Cookie]).

%% It is the one session, nothing is lost, and nothing went another way.
still_the_first(A, B) ->
    [?assertMatch(#{state := up, sessions := 1, fallbacks := 0,
                    lost := #{queued := 0, unconfirmed := 0, crashed := 0, unreachable := 0}},
                  cluster:info(X, Y)) || {X, Y} <- [{A, B}, {B, A}]].

resumed(A, B) -> maps:get(resumed, cluster:info(A, B)).

%% A process at the node that does this; await/1 has the outcome.
start(Node, Fun) ->
    Self = self(),
    Pid = spawn(fun() -> exit({outcome, cluster:call(Node, traffic, attempt, [Fun]), Self}) end),
    {Pid, monitor(process, Pid)}.

outcome({Pid, Ref}) ->
    receive {'DOWN', Ref, process, Pid, {outcome, Outcome, _}} -> Outcome
    after ?LONG -> error(no_outcome)
    end.

is_waiting({Pid, _}) -> is_process_alive(Pid).

%% --- what goes on ---------------------------------------------------------------------------

%% Others see the connection break, and messages do not.
streams_go_on(_) ->
    {A, B} = pair(),
    Loads = streams:both_ways(A, B),
    lists:foreach(fun(N) ->
                          streams:flowing(Loads, ?LONG),
                          Before = {resumed(A, B), resumed(B, A)},
                          _ = case N rem 3 of
                                  0 -> disconnect(B, A);
                                  1 -> disconnect(A, B);
                                  2 -> cluster:call(A, nemesis_node, close_distribution,
                                                    [cluster:node_of(B)])
                              end,
                          await_resumed(A, B, Before)
                  end, lists:seq(1, ?BREAKS)),
    streams:flowing(Loads, ?LONG),
    ?assertEqual(0, streams:finish(Loads, ?LONG)),
    still_the_first(A, B),
    stop(A, B).

await_resumed(A, B, {Before, BeforeThere}) ->
    cluster:await(fun() -> resumed(A, B) > Before andalso resumed(B, A) > BeforeThere end),
    cluster:await_up(A, B).

%% Requests of all kinds: made before the break and answered during it, and made during it. For
%% OTP's own monitor the connection is lost.
calls_wait(_) ->
    {A, B} = pair(),
    NodeB = cluster:node_of(B),
    {ok, Server} = cluster:call(B, server, start, [gen_server]),
    Asker = cluster:call(B,
                         fun() -> spawn(fun() -> receive {tell, N} -> server:tell(N) end end) end),
    Held = [start(A, fun() -> trunkline:call(Server, {echo_told, N, Asker}, infinity) end)
            || N <- lists:seq(1, 5)],
    {held, 5} = cluster:call(B, fun() -> await_mail(Asker, 5) end),
    Otp = start(A, fun() ->
                           Ref = erlang:monitor(process, Server),
                           receive {'DOWN', Ref, process, _, Why} -> Why end
                   end),
    apart(A, B),
    ?assertEqual({ok, noconnection}, outcome(Otp)),
    Asker2 = Asker,
    cluster:call(B, fun() -> Asker2 ! {tell, 5} end),
    Name = test_gen_server,
    New =
        [{start(A, Fun), Result}
         || {Fun, Result} <-
                [{fun() -> trunkline:call(Server, {echo, 1}, infinity) end, 1},
                 {fun() -> trunkline:call({Name, NodeB}, {echo, 2}, infinity) end, 2},
                 {fun() ->
                          Id = trunkline:send_request(Server, {echo, 3}),
                          trunkline:receive_response(Id, infinity)
                  end, {reply, 3}},
                 {fun() -> trunkline:multi_call([NodeB], Name, {echo, 4}) end, {[{NodeB, 4}], []}},
                 {fun() -> trunkline_erpc:call(NodeB, erlang, node, []) end, NodeB},
                 {fun() -> trunkline_erpc:multicall([NodeB], erlang, node, []) end, [{ok, NodeB}]},
                 {fun() -> byte_size(trunkline:call(Server, {echo, <<0:8_000_000>>}, infinity)) end,
                  1_000_000}]],
    [?assert(is_waiting(P)) || P <- Held ++ [P || {P, _} <- New]],
    together(A, B),
    ?assertEqual([{ok, N} || N <- lists:seq(1, 5)], [outcome(P) || P <- Held]),
    [?assertEqual({ok, Result}, outcome(P)) || {P, Result} <- New],
    still_the_first(A, B),
    stop(A, B).

await_mail(Pid, N) ->
    ok =
        cluster:await(fun() -> process_info(Pid, message_queue_len) =:= {message_queue_len, N} end),
    {held, N}.

%% A call keeps its time, and its reply does not come later.
calls_time_out(_) ->
    {A, B} = pair(),
    {ok, Server} = cluster:call(B, server, start, [gen_server]),
    apart(A, B),
    Caller = start(A, fun() ->
                              Timed = traffic:attempt(
                                        fun() -> trunkline:call(Server, {note, early}, 200) end),
                              true = register(timed, self()),
                              Seen = trunkline:call(Server, seen, infinity),
                              {Timed, Seen, process_info(self(), messages)}
                      end),
    cluster:await(fun() -> is_pid(cluster:call(A, erlang, whereis, [timed])) end),
    together(A, B),
    ?assertMatch({ok, {{exit, {timeout, _}}, [{call, early}], {messages, []}}}, outcome(Caller)),
    still_the_first(A, B),
    stop(A, B).

%% No 'DOWN' for a process that lives; for one that ends the reason, behind its last message.
monitors(_) ->
    {A, B} = pair(),
    Start = fun() -> spawn(fun() -> receive {end_with, To, Reason} ->
                                            _ = [trunkline:send(To, {self(), N}) || N <- [1, 2, 3]],
                                            exit(Reason)
                                    end end) end,
    [Lives, Before, During, Named] = [cluster:call(B, Start) || _ <- lists:seq(1, 4)],
    true = cluster:call(B, erlang, register, [named, Named]),
    NodeB = cluster:node_of(B),
    Watcher = cluster:call(A, fun() -> spawn(fun() -> watch([], []) end) end),
    Watch = fun(What) -> cluster:call(A, fun() -> Watcher ! {watch, What}, ok end) end,
    Got = fun() ->
                  cluster:call(A, fun() -> Watcher ! {got, self()}, receive {got, G} -> G end end)
          end,
    [ok = Watch(P) || P <- [Lives, Before, {named, NodeB}]],
    ?assertEqual([], Got()),
    apart(A, B),
    ok = Watch(During),
    cluster:call(
      B, fun() -> [P ! {end_with, Watcher, {told, P}} || P <- [Before, During, Named]], ok end),
    cluster:call(B, fun() -> cluster:await(fun() -> not is_process_alive(Before) end) end),
    ?assertEqual([], Got()),
    together(A, B),
    cluster:await(fun() -> length(Got()) =:= 12 orelse Got() end),
    All = Got(),
    [?assertEqual([1, 2, 3, {down, {told, P}}], [M || {Q, M} <- All, Q =:= P])
     || P <- [Before]],
    ?assertEqual([1, 2, 3], [M || {Q, M} <- All, Q =:= Named, is_integer(M)]),
    ?assertEqual([{down, {told, Named}}], [M || {Q, M} <- All, Q =:= {named, NodeB}]),
    %% It was monitored when it had ended.
    ?assertEqual([1, 2, 3], [M || {Q, M} <- All, Q =:= During, is_integer(M)]),
    ?assertMatch([{down, _}], [M || {Q, M} <- All, Q =:= During, not is_integer(M)]),
    ok = cluster:call(B, fun() -> Lives ! {end_with, Watcher, {told, Lives}}, ok end),
    cluster:await(fun() ->
                          [1, 2, 3, {down, {told, Lives}}] =:= [M || {Q, M} <- Got(), Q =:= Lives]
                  end),
    still_the_first(A, B),
    stop(A, B).

watch(Refs, Got) ->
    receive
        {watch, What} -> watch([{trunkline:monitor(process, What), What} | Refs], Got);
        {got, From} -> From ! {got, lists:reverse(Got)}, watch(Refs, Got);
        {'DOWN', Ref, process, _, Reason} ->
            {Ref, What} = lists:keyfind(Ref, 1, Refs),
            watch(Refs, [{What, {down, Reason}} | Got]);
        {Pid, N} -> watch(Refs, [{Pid, N} | Got])
    end.

%% Large and small ones, requests and replies, while the connection breaks again and again.
large_messages(_) ->
    {A, B} = cluster:pair([{bulk_bytes, 8_000_000}, {large_bytes, 65_536} | ?PATIENT]),
    To = cluster:call(B, freight, start_receivers, [2]),
    Makes = [10, 70_000, {rows, 100_000}, {list, 3_000}, 2_000_000, 100, {pieces, 500_000},
             {rows, 1_000_000}, 1],
    Kinds = [send, cast, {call, 10}, {request, 300_000}, {call, 1_000_000}],
    Steps = [{Kind, R, Make} || _ <- lists:seq(1, 3), Kind <- Kinds, Make <- Makes, R <- To],
    Scripts = [{Id, Steps} || Id <- [1, 2, 3]],
    Playing = start(A, fun() -> freight:play_all(Scripts) end),
    breaks_while(fun() -> is_waiting(Playing) end, A, B),
    ?assertEqual({ok, [normal, normal, normal]}, outcome(Playing)),
    Numbers = lists:enumerate(Steps),
    [begin
         Expected = [N || {N, {_, R1, _}} <- Numbers, R1 =:= R],
         cluster:await(fun() -> cluster:call(B, freight, count, [R]) =:= 3 * length(Expected) end),
         Received = cluster:call(B, freight, received, [R]),
         [?assertEqual(Expected, [N || {I, N} <- Received, I =:= Id]) || Id <- [1, 2, 3]]
     end || R <- To],
    ?assert(resumed(A, B) > 0),
    still_the_first(A, B),
    stop(A, B).

%% One after the other, as long as that is so.
breaks_while(Is, A, B) ->
    Before = {resumed(A, B), resumed(B, A)},
    _ = disconnect(A, B),
    await_resumed(A, B, Before),
    Is() andalso breaks_while(Is, A, B).

%% Senders to an inbox know it still, and its bound holds; nothing is dropped.
inbox(_) ->
    {A, B} = pair(),
    {ok, _} = cluster:call(B, mailroom, start, [{local, room}, #{}, #{messages => 100}]),
    To = {room, cluster:node_of(B)},
    IsKnown = fun() -> cluster:call(A, trunkline_bounded, is_bounded, [To]) end,
    cluster:await(fun() -> _ = cluster:call(A, trunkline, send, [To, hello]), IsKnown() end),
    Senders = cluster:call(A, mailroom, senders, [To, [a, b, c], 3_000, 100]),
    Count = fun() ->
                    lists:sum(
                      [N || {_, N, _} <- maps:values(cluster:call(B, mailroom, summary, [room]))])
            end,
    cluster:await(fun() -> Count() > 300 end),
    Watch = cluster:call(B, mailroom, watch, [room]),
    lists:foreach(
      fun(N) ->
              ok = cluster:call(B, mailroom, hold, [room]),
              apart(A, B),
              ?assert(IsKnown()),
              together(A, B),
              ok = cluster:call(B, mailroom, release, [room]),
              Next = Count() + 300,
              cluster:await(fun() -> Count() > min(9_000 - 1, Next) orelse {N, Count()} end)
      end, lists:seq(1, 3)),
    ?assertEqual([3_000, 3_000, 3_000], cluster:call(A, mailroom, collect, [Senders, finish])),
    cluster:await(fun() -> Count() =:= 9_000 orelse Count() end),
    ?assertEqual([{a, {3_000, 3_000, []}}, {b, {3_000, 3_000, []}}, {c, {3_000, 3_000, []}}],
                 lists:sort(maps:to_list(cluster:call(B, mailroom, summary, [room])))),
    {Messages, _, _} = cluster:call(B, mailroom, most, [Watch]),
    %% (The test's own calls are not bounded.)
    ?assert(Messages =< 100 + 3),
    ?assertMatch(#{dropped := 0}, cluster:call(B, trunkline_inbox, info, [room])),
    still_the_first(A, B),
    stop(A, B).

multicast(_) ->
    {A, B} = pair(),
    To = cluster:call(B, traffic, start_receivers, [50]),
    apart(A, B),
    Sent = cluster:call(A, traffic, play_all, [[{1, [{multicast, To, 100}, {multicast, To, 200_000},
                                                     {multicast, To, 10}]}]]),
    ?assertEqual([normal], Sent),
    together(A, B),
    [cluster:await(fun() ->
                           cluster:call(B, traffic, received, [R]) =:= [{1, 1}, {1, 2}, {1, 3}]
                   end)
     || R <- To],
    still_the_first(A, B),
    stop(A, B).

%% --- bounds ---------------------------------------------------------------------------------

%% At the bound a sender waits, or is told; it goes on when the session does.
senders_wait(_) ->
    Limit = 65_536,
    {A, B} = cluster:pair([{queue_bytes, Limit}, {lanes, 2}, {window_bytes, Limit} | ?PATIENT]),
    [To] = cluster:call(B, traffic, start_receivers, [1]),
    apart(A, B),
    Sent = cluster:call(A, fun() -> fill(To, 1) end),
    Waiting = start(A, fun() -> traffic:play_all([{waits, [{send, To, 1_000}]}]) end),
    Many = start(
             A,
             fun() -> traffic:play_all([{{flood, Id}, [{send, To, 1_000} || _ <- lists:seq(1, 200)]}
                                        || Id <- lists:seq(1, 20)]) end),
    %% Each lane has what it may have, and less than one message more.
    cluster:await(fun() ->
                          case [Q || #{queued_bytes := Q} <- maps:get(lanes, cluster:info(A, B))] of
                              [Q1, Q2] when Q1 >= Limit - 2_000, Q2 >= Limit - 2_000 -> true;
                              Other -> Other
                          end
                  end),
    [begin
         ?assert(Q =< Limit + 2_000),
         ?assert(Kept =< Limit + 2_000)
     end || #{queued_bytes := Q, kept_bytes := Kept} <- maps:get(lanes, cluster:info(A, B))],
    ?assert(is_waiting(Many)),
    together(A, B),
    ?assertEqual({ok, [normal]}, outcome(Waiting)),
    ?assertMatch({ok, [normal | _]}, outcome(Many)),
    cluster:await(fun() -> cluster:call(B, traffic, count, [To]) =:= Sent + 1 + 20 * 200 end),
    Received = cluster:call(B, traffic, received, [To]),
    ?assertEqual(lists:seq(1, Sent), [N || {fill, N} <- Received]),
    [?assertEqual(lists:seq(1, 200), [N || {{flood, I}, N} <- Received, I =:= Id])
     || Id <- lists:seq(1, 20)],
    still_the_first(A, B),
    stop(A, B).

%% Runs at the node: how many fit.
fill(To, N) ->
    case trunkline:send(To, {from, fill, N, traffic:payload(1_000)}, [nosuspend]) of
        ok -> fill(To, N + 1);
        nosuspend -> N - 1
    end.

%% What is replied meanwhile is kept as well.
replies_wait(_) ->
    {A, B} = pair(),
    {ok, Server} = cluster:call(B, server, start, [gen_server]),
    Asker = cluster:call(B,
                         fun() -> spawn(fun() -> receive {tell, N} -> server:tell(N) end end) end),
    Term = lists:duplicate(100_000, x),
    Callers =
        [start(A, fun() -> length(trunkline:call(Server, {echo_told, Term, Asker}, infinity)) end)
         || _ <- lists:seq(1, 20)],
    {held, 20} = cluster:call(B, fun() -> await_mail(Asker, 20) end),
    apart(A, B),
    cluster:call(B, fun() -> Asker ! {tell, 20} end),
    cluster:call(B, fun() -> cluster:await(fun() -> not is_process_alive(Asker) end) end),
    together(A, B),
    [?assertEqual({ok, 100_000}, outcome(C)) || C <- Callers],
    still_the_first(A, B),
    stop(A, B).

%% --- when it ends -------------------------------------------------------------------------

%% As it does without resuming: what is lost is counted, calls and monitors hear of it.
time_runs_out(_) ->
    {A, B} = cluster:pair([{resume_time, 20_000}]),
    NodeB = cluster:node_of(B),
    [To] = cluster:call(B, traffic, start_receivers, [1]),
    Down = start(A, fun() ->
                            Ref = trunkline:monitor(process, To),
                            receive {'DOWN', Ref, process, To, Why} -> Why end
                    end),
    apart(A, B),
    ?assertEqual([normal], cluster:call(A, traffic, play_all,
                                        [[{1, [{send, To, 100} || _ <- lists:seq(1, 10)]}]])),
    Call = start(A, fun() -> trunkline:call(To, count, infinity) end),
    ?assertMatch({exit, {{nodedown, NodeB}, _}}, outcome(Call)),
    ?assertEqual({ok, noconnection}, outcome(Down)),
    cluster:await_state(A, B, down),
    %% The lanes count, a moment later.
    cluster:await(fun() ->
                          #{lost := #{queued := Queued, unconfirmed := Unconfirmed}} =
                              cluster:info(A, B),
                          Queued + Unconfirmed >= 10 orelse {Queued, Unconfirmed}
                  end),
    ?assertMatch(#{resumed := 0}, cluster:info(A, B)),
    reunite(A, B),
    connect(A, B),
    anew:await_session(A, B, 1),
    anew:await_session(B, A, 1),
    ?assertEqual(0, cluster:call(B, traffic, count, [To])),
    stop(A, B).

%% It has the name of the node that was there, and gets nothing that was meant for that.
another_incarnation(_) ->
    {A, B} = pair(),
    NodeB = cluster:node_of(B),
    [Short, _] = string:split(atom_to_list(NodeB), "@"),
    [To] = cluster:call(B, traffic, start_receivers, [1]),
    true = cluster:call(B, erlang, register, [receiver, To]),
    Down = start(A, fun() ->
                            Ref = trunkline:monitor(process, To),
                            receive {'DOWN', Ref, process, To, Why} -> Why end
                    end),
    %% What A tries to connect to does not answer.
    ok = cluster:suspend(B),
    _ = disconnect(A, B),
    cluster:await_state(A, B, suspended),
    Name = {receiver, NodeB},
    ?assertEqual([normal], cluster:call(A, traffic, play_all,
                                        [[{1, [{send, Name, 100} || _ <- lists:seq(1, 10)]}]])),
    Call = start(A, fun() -> trunkline:call(Name, count, infinity) end),
    cluster:await(
      fun() -> case [Q || #{queued_messages := Q} <- maps:get(lanes, cluster:info(A, B)), Q > 0] of
                   [] -> false;
                   _ -> true
               end end),
    ok = cluster:suspend(A),
    ok = cluster:kill(B),
    New = cluster:start(?PATIENT, Short),
    [To1] = cluster:call(New, traffic, start_receivers, [1]),
    true = cluster:call(New, erlang, register, [receiver, To1]),
    ok = cluster:continue(A),
    ?assertMatch({exit, {{nodedown, NodeB}, _}}, outcome(Call)),
    ?assertEqual({ok, noconnection}, outcome(Down)),
    connect(A, New),
    anew:await_session(A, New, 1),
    ?assertEqual({reply, 0}, cluster:call(A, fun() ->
                                                     Id = trunkline:send_request(Name, count),
                                                     trunkline:receive_response(Id, ?LONG)
                                             end)),
    ?assertMatch(#{resumed := 0}, cluster:info(A, New)),
    #{lost := #{queued := Queued, unconfirmed := Unconfirmed}} = cluster:info(A, New),
    ?assert(Queued + Unconfirmed >= 10),
    cluster:stop_all([A, B, New]).

%% A node that has ended is not waited for: also if it ends while it is away.
crash_is_noticed(_) ->
    lists:foreach(
      fun(Prepare) ->
              {A, B} = cluster:pair([{resume_time, "1d"}]),
              {ok, To} = cluster:call(B, server, start, [gen_server]),
              Down = start(A, fun() ->
                                      Ref = trunkline:monitor(process, To),
                                      receive {'DOWN', Ref, process, To, Why} -> Why end
                              end),
              Call = start(A, fun() -> trunkline:call(To, {wait, here}, infinity) end),
              await_waiting(B),
              Prepare(A, B),
              ok = cluster:kill(B),
              ?assertEqual({ok, noconnection}, outcome(Down)),
              ?assertMatch({exit, {{nodedown, _}, _}}, outcome(Call)),
              cluster:await_state(A, B, down),
              stop(A, B)
      end, [fun(_, _) -> ok end, fun apart/2]).

%% The server has the request.
await_waiting(B) ->
    cluster:await(fun() -> cluster:call(B, gen_server, call, [test_gen_server, waiting]) =:= 1 end).

%% Then the session ends with the connection, as ever, at both.
one_side_does_not(_) ->
    lists:foreach(fun({EnvA, EnvB}) ->
                          {A, B} = cluster:pair(EnvA, EnvB),
                          {ok, To} = cluster:call(B, server, start, [gen_server]),
                          Call = start(A, fun() -> trunkline:call(To, {wait, here}, infinity) end),
                          Down = start(A, fun() ->
                                                  Ref = trunkline:monitor(process, To),
                                                  receive {'DOWN', Ref, process, To, Why} -> Why end
                                          end),
                          await_waiting(B),
                          true = anew:connection(A, B),
                          ?assertMatch({exit, {{nodedown, _}, _}}, outcome(Call)),
                          ?assertEqual({ok, noconnection}, outcome(Down)),
                          [?assertMatch(#{resumed := 0, sessions := 2}, cluster:info(X, Y))
                           || {X, Y} <- [{A, B}, {B, A}]],
                          stop(A, B)
                  end, [{?PATIENT, []}, {[], ?PATIENT}]).

%% --- who leaves, and who is killed, meanwhile -----------------------------------------------

stop_while_suspended(_) ->
    {A, B} = pair(),
    [To] = cluster:call(B, traffic, start_receivers, [1]),
    apart(A, B),
    ?assertEqual([normal], cluster:call(A, traffic, play_all,
                                        [[{1, [{send, To, 100} || _ <- lists:seq(1, 10)]}]])),
    Call = start(A, fun() -> trunkline:call(To, count, infinity) end),
    Stop = start(A, fun() -> application:stop(trunkline) end),
    ?assertEqual({ok, ok}, outcome(Stop)),
    ?assertMatch({exit, _}, outcome(Call)),
    reunite(A, B),
    %% B finds that Trunkline does not run there any more, and uses plain distribution.
    connect(B, A),
    cluster:await_state(B, A, greeting),
    ok = cluster:call(A, cluster, start_trunkline, [?PATIENT]),
    cluster:await_up(A, B),
    ?assertEqual(0, cluster:call(A, trunkline, call, [To, count])),
    stop(A, B).

%% It waits until the session goes on, and then nothing is lost.
drain_while_suspended(_) ->
    {A, B} = pair(),
    [To] = cluster:call(B, traffic, start_receivers, [1]),
    apart(A, B),
    ?assertEqual([normal], cluster:call(A, traffic, play_all,
                                        [[{1, [{send, To, 100} || _ <- lists:seq(1, 10)]}]])),
    Drain = start(A, fun() -> trunkline:drain(cluster:node_of(B)) end),
    reunite(A, B),
    ?assertEqual({ok, ok}, outcome(Drain)),
    ?assertEqual([{1, N} || N <- lists:seq(1, 10)], cluster:call(B, traffic, received, [To])),
    cluster:await_state(A, B, drained),
    stop(A, B).

%% Its peer does not come back in time.
drain_runs_out(_) ->
    {A, B} = pair(),
    apart(A, B),
    Drain = start(A, fun() -> trunkline:drain(cluster:node_of(B)) end),
    ?assertMatch({ok, {error, Why}} when Why =:= noconnection; Why =:= timeout, outcome(Drain)),
    stop(A, B).

%% The session is lost, and what was in it counted; the next one works.
killed_while_suspended(_) ->
    {A, B} = pair(),
    [To] = cluster:call(B, traffic, start_receivers, [1]),
    _ = cluster:call(A, traffic, play_all, [[{large, [{send, To, 300_000}]}]]),
    lists:foreach(
      fun({N, {Who, Module}}) ->
              apart(A, B),
              At = case Who of here -> A; there -> B end,
              ok = cluster:call(At, logger, set_primary_config, [level, none]),
              _ = cluster:call(A, traffic, play_all,
                               [[{N, [{send, To, 100} || _ <- lists:seq(1, 10)]}]]),
              ?assertEqual({Module, killed},
                           {Module, cluster:call(At, nemesis_node, kill, [Module, 1])}),
              reunite(A, B),
              connect(A, B),
              cluster:await_up(A, B),
              ?assertEqual([normal],
                           cluster:call(A, traffic, play_all, [[{{N, again}, [{call, To, 10}]}]])),
              Got = [M || {I, M} <- cluster:call(B, traffic, received, [To]), I =:= N],
              ?assertEqual(lists:sublist(lists:seq(1, 10), length(Got)), Got)
      end,
      lists:enumerate([{Who, Module} || Who <- [here, there],
                                        Module <- [trunkline_link, trunkline_lane, trunkline_inlet,
                                                   trunkline_trunk, trunkline_dock]])),
    stop(A, B).

%% What the dock says of a carrier may be lost with the connection: it says the same again.
counts_are_kept(_) ->
    {A, B} = pair(),
    Dock = cluster:call(B, fun() -> hd(nemesis_node:by_kind(trunkline_dock)) end),
    Answers = cluster:call(
                A, fun() ->
                           Name = self(),
                           Ask = fun() -> Dock ! {cut, self(), Name},
                                          receive {cut, Name, N} -> N end end,
                           _ = [Dock ! {fragment, Name, {1, 1_000_000}, 1_000, Offset, <<0:80>>}
                                || Offset <- [0, 10, 20]],
                           Three = [Ask(), Ask()],
                           Dock ! {forget, Name},
                           Three ++ [Ask()]
                   end),
    ?assertEqual([3, 3, 0], Answers),
    %% By the distribution each has a number. Number 3 is lost with a connection.
    Numbered = cluster:call(A, fun() ->
                                       Trunk = self(),
                                       _ = [Dock ! {fragment, {Trunk, N}, {1, 1_000_001}, 1_000,
                                                    10 * N, <<0:80>>} || N <- [1, 2, 4, 5]],
                                       Dock ! {cut, Trunk, Trunk},
                                       receive {cut, Trunk, Count} -> Count end
                               end),
    ?assertEqual(2, Numbered),
    stop(A, B).
