%% Promise 3: every queue has a bound; at the bound a sender waits, fairly, or is
%% told; and what is lost when a node dies is counted.
-module(bounds_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").
-include("../src/gate/trunkline_route.hrl").

-export([all/0, suite/0]).
-export([stopped_peer/1, nosuspend/1, thousand_blocked/1, released_on_nodedown/1, losses_add_up/1,
         losses_of_long_terms_add_up/1, losses_of_thin_traffic_add_up/1, call_while_full/1,
         larger_than_all_bounds/1, batches_are_small/1, fair/1, killed_senders/1, slow_sender/1,
         left_behind/1, on_its_way/1, waiters_gave_up/1, binaries_do_not_keep_batches/1,
         bound_while_connecting/1, waiting/1, time_in_lane/1, waiting_unpacked/1,
         delegated_replies/1]).
-export([delegating/2]).
-export([await_blocked/3]).


suite() -> [{timetrap, {minutes, 6}}].

all() -> [stopped_peer, nosuspend, thousand_blocked, released_on_nodedown, losses_add_up,
          losses_of_long_terms_add_up, losses_of_thin_traffic_add_up, call_while_full,
          larger_than_all_bounds, fair, killed_senders, slow_sender, left_behind, on_its_way,
          waiters_gave_up, binaries_do_not_keep_batches, batches_are_small, bound_while_connecting,
          waiting, waiting_unpacked, delegated_replies, time_in_lane].


-define(SMALL, [{lanes, 2}, {queue_bytes, 65536}, {window_bytes, 65536}]).

%% Senders flood a node that has stopped. The sending node keeps no more than its
%% bounds, and when the other continues all arrives, in order.
stopped_peer(_) ->
    {A, B} = cluster:pair(?SMALL),
    Pids = cluster:call(B, traffic, start_watchers, [4]),
    Before = memory(A),
    cluster:suspend(B),
    %% So many that each lane gets some.
    Streams = [{Id, To, cluster:call(A, traffic, stream, [To, Id, 1000])}
               || Id <- lists:seq(1, 32), To <- [lists:nth(Id rem 4 + 1, Pids)]],
    await_blocked(A, B, [Stream || {_, _, Stream} <- Streams]),
    %% (The time of those who wait goes on.)
    Lanes = fun() -> [maps:remove(wait_time, Lane) || Lane <- lanes(A, B)] end,
    Still = Lanes(),
    Peak = lists:max([begin receive after 20 -> ok end, memory(A) end || _ <- lists:seq(1, 50)]),
    ?assertEqual(Still, Lanes()),
    lists:foreach(fun(#{queued_bytes := Q, in_flight_bytes := F}) ->
                          %% At half of the bound they would go on. One message goes beyond the
                          %% bound, one batch beyond the window.
                          ?assert(Q >= 65536 div 2),
                          ?assert(Q =< 65536 + 4000),
                          ?assert(F =< 2 * 65536 + 4000)
                  end, Still),
    ct:log("memory of the sending node: ~b before, at most ~b while blocked", [Before, Peak]),
    ?assert(Peak < Before + 2 * 3 * 65536 + 32_000_000),
    cluster:continue(B),
    cluster:await(
      fun() -> lists:sum([cluster:call(B, traffic, count, [P]) || P <- Pids]) > 20_000 end),
    Stopped =
        [{Id, To, cluster:call(A, traffic, stop_stream, [Stream])} || {Id, To, Stream} <- Streams],
    lists:foreach(
      fun({Id, To, N}) ->
              cluster:await(fun() -> case cluster:call(B, traffic, summary, [To]) of
                                         #{Id := {N, _, _}} -> true;
                                         Other -> {Id, N, Other}
                                     end end),
              ?assertMatch(#{Id := {N, N, []}}, cluster:call(B, traffic, summary, [To]))
      end, Stopped),
    cluster:stop_all([A, B]).

%% All these senders wait for room at the lanes to B, which stands still, and nothing moves any
%% more: the lanes and then the link have done all that the senders had asked for before.
await_blocked(A, B, Senders) ->
    NodeB = cluster:node_of(B),
    cluster:await(fun() -> cluster:call(A, fun() -> is_blocked(NodeB, Senders) end) end).

is_blocked(Node, Senders) ->
    #{link := Link} = trunkline_peers:lookup(Node),
    {_, Route} = lists:keyfind(Node, 1, trunkline_route:all()),
    %% (One that asks for its turn does not wait for room yet.)
    Waiting = fun() -> lists:all(
                         fun(P) ->
                                 [{status, Status}, {current_stacktrace, [{M, F, A, _} | Stack]}] =
                                     process_info(P, [status, current_stacktrace]),
                                 {Status, M, F, A} =:= {waiting, trunkline_process, ask, 4}
                                     andalso not lists:keymember(trunkline_in_turn, 1, Stack)
                         end, Senders) end,
    Waiting() andalso lists:all(fun cluster:is_at_rest/1, tuple_to_list(element(3, Route)))
        andalso cluster:is_at_rest(Link) andalso Waiting().

%% How many senders wait, and how long they have done so, is told while they do, and forgets those
%% who were killed.
waiting(_) ->
    {A, B} = cluster:pair(?SMALL),
    Waiting = fun() -> Lanes = lanes(A, B),
                       {lists:sum([N || #{waiting := N} <- Lanes]),
                        lists:sum([T || #{wait_time := T} <- Lanes])} end,
    ?assertEqual({0, 0}, Waiting()),
    Pids = cluster:call(B, traffic, start_watchers, [4]),
    cluster:suspend(B),
    Streams = [cluster:call(A, traffic, stream, [lists:nth(Id rem 4 + 1, Pids), Id, 1000])
               || Id <- lists:seq(1, 32)],
    await_blocked(A, B, Streams),
    {32, Time} = Waiting(),
    cluster:await(fun() -> case Waiting() of
                               {32, More} when More > Time + 32 * 300_000 -> true;
                               Other -> Other
                           end end),
    cluster:call(A, fun() -> lists:foreach(fun(P) -> exit(P, kill) end, Streams) end),
    cluster:continue(B),
    cluster:await(fun() -> case Waiting() of
                               {0, _} -> true;
                               Other -> Other
                           end end),
    cluster:stop_all([A, B]).

%% Under load a message is measured now and then, and each batch is counted by its size.
time_in_lane(_) ->
    {A, B} = cluster:pair(?SMALL),
    [Pid] = cluster:call(B, traffic, start_watchers, [1]),
    Stream = cluster:call(A, traffic, stream, [Pid, 1, 100]),
    Sum = fun(Pairs) -> lists:sum([N || {_, N} <- Pairs]) end,
    cluster:await(fun() -> lists:sum([Sum(Times) || #{time_in_lane := Times} <- lanes(A, B)]) > 1
                  end),
    _ = cluster:call(A, traffic, stop_stream, [Stream]),
    [begin
         ?assertEqual(Batches, Sum(Sizes)),
         ?assertEqual([1, 2, 4, 8, 16, 32, 64, 128, 256, infinity], [Size || {Size, _} <- Sizes])
     end || #{batches := Batches, batch_sizes := Sizes} <- lanes(A, B)],
    cluster:stop_all([A, B]).

%% With nosuspend nobody waits, and what was refused was not sent.
nosuspend(_) ->
    {A, B} = cluster:pair(?SMALL),
    [Pid] = cluster:call(B, traffic, start_receivers, [1]),
    cluster:suspend(B),
    {Ok, Refused} = cluster:call(A, fun() -> try_many(Pid, 2000, [], 0) end),
    ?assert(length(Ok) > 20),
    ?assert(Refused > 100),
    ?assertEqual(Refused, lists:sum([N || #{nosuspend := N} <- lanes(A, B)])),
    ?assertEqual(0, lists:sum([N || #{waits := N} <- lanes(A, B)])),
    cluster:continue(B),
    cluster:await(fun() -> cluster:call(B, traffic, count, [Pid]) =:= length(Ok) end),
    ?assertEqual([{1, N} || N <- Ok], cluster:call(B, traffic, received, [Pid])),
    cluster:stop_all([A, B]).

try_many(_, 0, Ok, Refused) ->
    {lists:reverse(Ok), Refused};
try_many(Pid, N, Ok, Refused) ->
    case trunkline:send(Pid, {from, 1, N, traffic:payload(999)}, [nosuspend]) of
        ok -> try_many(Pid, N - 1, [N | Ok], Refused);
        nosuspend -> try_many(Pid, N - 1, Ok, Refused + 1)
    end.

%% A thousand at the bound at once; each gets through.
thousand_blocked(_) ->
    {A, B, Pids} = blocked(1000, 5),
    cluster:continue(B),
    await_done(A, 1000),
    cluster:await(
      fun() -> lists:sum([cluster:call(B, traffic, count, [P]) || P <- Pids]) =:= 5000 end),
    Got = lists:append([cluster:call(B, traffic, received, [P]) || P <- Pids]),
    lists:foreach(fun(Id) -> ?assertEqual([1, 2, 3, 4, 5], [N || {I, N} <- Got, I =:= Id]) end,
                  lists:seq(1, 1000)),
    cluster:stop_all([A, B]).

%% A stopped node, four receivers there, and so many senders that wait for it.
blocked(Senders, Messages) ->
    {A, B} = cluster:pair(?SMALL),
    Pids = cluster:call(B, traffic, start_receivers, [4]),
    cluster:suspend(B),
    blocked_senders(A, B, Pids, Senders, Messages),
    {A, B, Pids}.

await_done(A, Senders) ->
    cluster:await(fun() -> cluster:call(A, fun() -> count_done() end) =:= Senders end).

%% Starts so many senders of so many messages, and waits until the most of them
%% are blocked. (Not nearly all: there is room for some 260 messages, and those who
%% are not preempted send all of theirs at once.)
blocked_senders(A, B, Pids, Senders, Messages) ->
    start_senders(A, Pids, Senders, Messages, 1000),
    cluster:await(fun() -> lists:sum([W || #{waits := W} <- lanes(A, B)]) > Senders div 2 end).

start_senders(A, Pids, Senders, Messages, Bytes) ->
    ok = cluster:call(
           A, fun() ->
                      register(done, spawn(fun() -> done(0) end)),
                      Play = fun(Id) -> [{send, lists:nth(Id rem length(Pids) + 1, Pids), Bytes}
                                         || _ <- lists:seq(1, Messages)] end,
                      _ = [spawn(fun() ->
                                         [normal] = traffic:play_all([{Id, Play(Id)}]),
                                         done ! done
                                 end)
                           || Id <- lists:seq(1, Senders)],
                      ok
              end).

done(N) ->
    receive
        done -> done(N + 1);
        {count, From} -> From ! {count, N}, done(N)
    end.

count_done() ->
    done ! {count, self()},
    receive {count, N} -> N end.

%% When the peer dies those who wait go on at once; nothing is kept for it.
released_on_nodedown(_) ->
    {A, B, _} = blocked(1000, 2),
    cluster:kill(B),
    await_done(A, 1000),
    cluster:await(fun() ->
                          lists:all(fun(#{queued_bytes := Q, in_flight_bytes := F}) ->
                                            Q + F =:= 0
                                    end, lanes(A, B))
                  end),
    cluster:await_state(A, B, down),
    cluster:stop(A).

%% What was accepted has arrived, or is counted as lost, to the last message.
losses_add_up(_) ->
    {A, B, _} = blocked(200, 5),
    cluster:kill(B),
    await_done(A, 200),
    await_sum(1000, A, B),
    #{lost := #{queued := Queued, unconfirmed := Unconfirmed}} = cluster:info(A, B),
    ?assert(Queued > 0),
    ?assert(Unconfirmed > 0),
    cluster:stop(A).

%% The same for long terms, which go by plain distribution in their turn.
losses_of_long_terms_add_up(_) ->
    {A, B} = cluster:pair([]),
    Pids = cluster:call(B, traffic, start_receivers, [4]),
    start_senders(A, Pids, 8, 20, 60001),
    await_done(A, 8),
    Counts = fun() -> lists:sum([cluster:call(B, traffic, count, [Pid]) || Pid <- Pids]) end,
    cluster:await(fun() -> Counts() =:= 160 end),
    cluster:suspend(B),
    true = cluster:call(A, fun() -> exit(whereis(done), kill) end),
    cluster:await(fun() -> cluster:call(A, erlang, whereis, [done]) =:= undefined end),
    start_senders(A, Pids, 8, 40, 60001),
    Sent = fun() -> lists:sum([N || #{messages := N} <- lanes(A, B)]) end,
    cluster:await(fun() -> Sent() > 160 orelse Sent() end),
    cluster:kill(B),
    await_done(A, 8),
    await_sum(160 + 320, A, B),
    #{lost := #{unconfirmed := Unconfirmed}} = cluster:info(A, B),
    ?assert(Unconfirmed > 0),
    cluster:stop(A).

%% The same for short messages of which few are sent. They go past their lane, which does not know
%% of them for a second. While the connection is busy they go by lane, in order.
losses_of_thin_traffic_add_up(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    [Pid] = cluster:call(B, traffic, start_watchers, [1]),
    Stream = cluster:call(A, traffic, drip, [Pid, 1, 100]),
    cluster:await_thin(A, B),
    cluster:suspend(B),
    Filler = cluster:call(A, traffic, fill_connection, [cluster:node_of(B)]),
    cluster:await(fun() -> [#{queued_messages := N}] = lanes(A, B), N > 100 orelse N end),
    true = cluster:call(A, erlang, exit, [Filler, kill]),
    cluster:continue(B),
    cluster:await_thin(A, B),
    #{1 := {Last, Last, []}} = cluster:call(B, traffic, summary, [Pid]),
    cluster:await(fun() -> [#{in_flight_messages := N}] = lanes(A, B), N =:= 0 orelse N end),
    cluster:suspend(B),
    %% What is sent from here on does not arrive. (The lane has not reported it, in most runs.)
    Before = cluster:call(A, traffic, sent, [Stream]),
    cluster:await(fun() -> cluster:call(A, traffic, sent, [Stream]) > Before + 100 end),
    cluster:kill(B),
    cluster:await_state(A, B, down),
    Sent = cluster:call(A, traffic, stop_stream, [Stream]),
    await_sum(Sent, A, B),
    #{lost := #{queued := Q, unconfirmed := U, unreachable := X}, fallbacks := F} =
        cluster:info(A, B),
    ?assert(Q + U + X + F >= Sent - Before),
    cluster:stop(A).

await_sum(Sent, A, B) ->
    cluster:await(fun() ->
                          #{lost := #{queued := Q, unconfirmed := U, unreachable := X,
                                      crashed := 0}} = Info = cluster:info(A, B),
                          Confirmed =
                              lists:sum([M || #{messages := M} <- maps:get(lanes, Info)]) - U,
                          Fallbacks = maps:get(fallbacks, Info),
                          case Q + U + X + Confirmed + Fallbacks of
                              Sent -> true;
                              Sum -> {Sum, Info}
                          end
                  end).

%% The timeout of a call includes the wait for room; nothing comes after it.
call_while_full(_) ->
    {A, B} = cluster:pair(?SMALL),
    {ok, Server} = cluster:call(B, server, start, [gen_server]),
    [Pid] = cluster:call(B, traffic, start_receivers, [1]),
    cluster:suspend(B),
    blocked_senders(A, B, [Pid], 200, 5),
    Results =
        cluster:call(A,
                     fun() ->
                             [traffic:attempt(fun() -> trunkline:call(Server, {echo, N}, 50) end)
                              || N <- lists:seq(1, 20)]
                     end),
    [?assertMatch({exit, {timeout, {trunkline, call, _}}}, R) || R <- Results],
    cluster:continue(B),
    cluster:await(
      fun() ->
              hello
                  =:= cluster:call(A,
                                   fun() -> trunkline:call(Server, {echo, hello}, infinity) end)
      end),
    cluster:stop_all([A, B]).

%% A message may be larger than the queue, the window and the batch.
larger_than_all_bounds(_) ->
    {A, B} =
        cluster:pair([{lanes, 1}, {queue_bytes, 1024}, {window_bytes, 1024}, {batch_bytes, 256}]),
    [Pid] = cluster:call(B, traffic, start_receivers, [1]),
    Script = [{Kind, Pid, Bytes}
              || Bytes <- [1, 5_000_000, 10, 3_000_001, 1_000_002, 255, 256, 257, 1024],
                                    Kind <- [send, call, cast]],
    [normal, normal] = cluster:call(A, traffic, play_all, [[{1, Script}, {2, Script}]]),
    cluster:await(fun() -> cluster:call(B, traffic, count, [Pid]) =:= 2 * length(Script) end),
    Got = cluster:call(B, traffic, received, [Pid]),
    [?assertEqual(lists:seq(1, length(Script)), [N || {I, N} <- Got, I =:= Id]) || Id <- [1, 2]],
    cluster:stop_all([A, B]).

%% No message makes a batch larger than it may be: two of these are more than the distribution sends
%% whole. (Longer ones need not go by lane.)
batches_are_small(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    [Pid] = cluster:call(B, traffic, start_receivers, [1]),
    Script = [{send, Pid, 32_799} || _ <- lists:seq(1, 300)],         % binaries
    [normal, normal] = cluster:call(A, traffic, play_all, [[{1, Script}, {2, Script}]]),
    cluster:await(fun() -> cluster:call(B, traffic, count, [Pid]) =:= 600 end),
    #{lanes := [#{largest_batch := Largest}]} = cluster:info(A, B),
    ?assertEqual(1, Largest),
    cluster:stop_all([A, B]).

%% Nobody starves at a lane that is full all the time.
fair(_) ->
    {A, B} = cluster:pair([{lanes, 1}, {queue_bytes, 8192}, {window_bytes, 8192}]),
    [Pid] = cluster:call(B, traffic, start_watchers, [1]),
    Ids = lists:seq(1, 16),
    _ = [cluster:call(A, traffic, stream, [Pid, Id, 100]) || Id <- Ids],
    Arrived = fun() -> Summary = cluster:call(B, traffic, summary, [Pid]),
                       [element(2, maps:get(Id, Summary, {0, 0, []})) || Id <- Ids] end,
    cluster:await(fun() -> lists:min(Arrived()) > 0 end),
    %% From when all of them are there; and a machine that stops one of them for a while makes it
    %% no one that starves.
    Before = Arrived(),
    cluster:await(fun() ->
                          Shares = [After - N || {After, N} <- lists:zip(Arrived(), Before)],
                          (lists:sum(Shares) > 10_000 andalso lists:min(Shares) * 5
                               > lists:max(Shares)) orelse {false, Shares}
                  end),
    cluster:stop_all([A, B]).

%% A sender is between entering the gate and sending, or being refused, at the moment at which the
%% lane looks for what killed senders have left behind. Its charge is not taken for that.
slow_sender(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    NodeB = cluster:node_of(B),
    Charge = trunkline_gate:charge(x),
    Level = fun() ->
                    #route{gate = Gate} = trunkline_route:lookup(NodeB),
                    trunkline_gate:level(Gate, 1)
            end,
    Tick = fun() ->
                   #route{gate = Gate, lanes = {Lane}} = trunkline_route:lookup(NodeB),
                   cluster:await(fun() -> cluster:hibernates(Lane) end),
                   ok = trunkline_gate:force(Gate, 1, Charge),
                   Lane ! {timeout, make_ref(), tick},
                   cluster:await(fun() -> not cluster:hibernates(Lane)
                                              andalso cluster:is_at_rest(Lane) end),
                   Gate
           end,
    Leave = fun() -> trunkline_gate:leave(Tick(), 1, Charge) end,
    %% (If the machine is so slow that the lane has looked twice, that says nothing.)
    cluster:await(fun() -> cluster:call(A, Leave) =:= 0 end),
    %% And what really has been left behind is taken out.
    cluster:call(A, Tick),
    cluster:await(fun() -> cluster:call(A, Level) =:= 0 end),
    cluster:stop_all([A, B]).

%% Killed senders have left more than the bound behind, and the lane is asleep. It looks because
%% another one waits.
left_behind(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    NodeB = cluster:node_of(B),
    [Pid] = cluster:call(B, traffic, start_watchers, [1]),
    ok = cluster:call(A, fun() ->
                                 #route{gate = Gate, lanes = {Lane}, limit = Limit} =
                                     trunkline_route:lookup(NodeB),
                                 cluster:await(fun() -> cluster:hibernates(Lane) end),
                                 ok = trunkline_gate:force(Gate, 1, Limit),
                                 cluster:await(fun() -> cluster:hibernates(Lane) end)
                         end),
    _ = cluster:call(A, fun() -> spawn(trunkline, send, [Pid, {from, last, 1, x}]) end),
    cluster:await(fun() -> is_map_key(last, cluster:call(B, traffic, summary, [Pid])) end),
    cluster:stop_all([A, B]).

%% A sender has entered the gate, and has not sent yet, when it turns out that the peer has no lanes
%% any more. Nobody uses plain distribution before the lane has got that message.
on_its_way(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    NodeB = cluster:node_of(B),
    To = cluster:call(B, erlang, spawn, [timer, sleep, [infinity]]),
    Links = [Link || {_, Link, _, _} <- cluster:call(B, supervisor, which_children,
                                                     [trunkline_link_sup])],
    Others = [cluster:call(B, erlang, whereis, [Name]) || Name <- [trunkline_sup,
                                                                   trunkline_link_sup]],
    ok = cluster:call(
           A, fun() ->
                      #route{gate = Gate, lanes = {Lane}, link = Link} =
                          trunkline_route:lookup(NodeB),
                      Charge = trunkline_gate:charge(first),
                      ok = trunkline_gate:force(Gate, 1, Charge),
                      lists:foreach(fun(Process) -> exit(Process, kill) end, Others ++ Links),
                      cluster:await(fun() -> trunkline_gate:path(Gate) =/= lanes end),
                      %% The lane has its order, and the link what the lane has said to that.
                      _ = [sys:get_state(Process) || Process <- [Lane, Link]],
                      case {trunkline_gate:path(Gate), trunkline_gate:level(Gate, 1)} of
                          {wait, _} -> ok;
                          {direct, 0} -> ok          % so slow that the charge was taken for a leak
                      end,
                      Lane ! [Charge, self(), To | first],
                      second = trunkline:send(To, second),
                      ok
              end),
    %% (If the link has had the time to say goodbye, the first one goes to an inlet that is killed.)
    Outcome = fun() ->
                      #{lost := #{unconfirmed := Lost}} = cluster:info(A, B),
                      {messages, Messages} = cluster:call(B, erlang, process_info, [To, messages]),
                      {Lost, Messages}
              end,
    cluster:await(fun() -> {Lost, Messages} = Outcome(), Lost + length(Messages) =:= 2 end),
    ?assert(lists:member(Outcome(), [{0, [first, second]}, {1, [second]}])),
    cluster:stop_all([A, B]).

%% Senders that are killed while they wait, or between entering and sending, do
%% not take room with them for ever.
killed_senders(_) ->
    {A, B} = cluster:pair(?SMALL),
    [Pid] = cluster:call(B, traffic, start_watchers, [1]),
    ok = cluster:call(A, fun() ->
                                 _ = [begin
                                          S = traffic:stream(Pid, N, 100),
                                          receive after N rem 3 -> exit(S, kill) end
                                      end || N <- lists:seq(1, 1000)],
                                 ok
                         end),
    cluster:await(fun() ->
                          lists:all(fun(#{queued_bytes := Q, in_flight_bytes := F}) ->
                                            {Q, F} =:= {0, 0}
                                    end, lanes(A, B))
                  end),
    ok = cluster:call(A, fun() -> trunkline:send(Pid, {from, last, 1, x}), ok end),
    cluster:await(fun() -> is_map_key(last, cluster:call(B, traffic, summary, [Pid])) end),
    cluster:stop_all([A, B]).

%% Who gives up, or is killed, while it waits for room is forgotten, and does not
%% stand in the way of the others.
waiters_gave_up(_) ->
    {A, B} = cluster:pair([{lanes, 1}, {queue_bytes, 65536}, {window_bytes, 65536}]),
    [Pid] = cluster:call(B, traffic, start_watchers, [1]),
    NodeB = cluster:node_of(B),
    Link = fun() ->
                   #{link := L} = trunkline_peers:lookup(NodeB),
                   garbage_collect(L),
                   element(2, process_info(L, memory))
           end,
    cluster:suspend(B),
    Stream = cluster:call(A, traffic, stream, [Pid, 1, 1000]),
    await_blocked(A, B, [Stream]),
    Before = cluster:call(A, Link),
    ok = cluster:call(
           A, fun() ->
                      %% (Between half of the bound and all of it there may be room for some.)
                      _ = [traffic:attempt(fun() -> trunkline:call(Pid, count, 0) end)
                           || _ <- lists:seq(1, 20000)],
                      ok
              end),
    cluster:await(fun() -> case cluster:call(A, Link) of
                               M when M < Before + 100_000 -> true;
                               M -> {Before, M}
                           end end),
    ok = cluster:call(
           A, fun() ->
                      Waiting = [spawn_monitor(fun() -> trunkline:send(Pid, x) end)
                                 || _ <- lists:seq(1, 2000)],
                      lists:foreach(fun({P, Ref}) ->
                                            exit(P, kill),
                                            receive {'DOWN', Ref, process, P, _} -> ok end
                                    end, Waiting)
              end),
    cluster:continue(B),
    N = cluster:call(A, traffic, stop_stream, [Stream]),
    cluster:await(fun() -> case cluster:call(B, traffic, summary, [Pid]) of
                               #{1 := {N, N, []}} -> true;
                               Other -> {N, Other}
                           end end),
    cluster:stop_all([A, B]).

%% A receiver that keeps a small binary out of every batch does not keep the
%% batches with it.
binaries_do_not_keep_batches(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    Keeper = cluster:call(B, fun() -> spawn(fun() -> keeper([], 0) end) end),
    ok = cluster:call(
           A, fun() ->
                      %% one in a hundred is kept: 300 bytes out of 30 kB
                      _ = [trunkline:send(Keeper, {case N rem 100 of 0 -> keep; _ -> drop end,
                                                   binary:copy(<<N:32>>, 75)})
                           || N <- lists:seq(1, 100_000)],
                      trunkline:send(Keeper, {report, self()}),
                      receive
                          {kept, Kept, Referenced} ->
                              {Kept, true} = {Kept, Referenced < 10 * Kept},
                              ok
                      end
              end),
    cluster:stop_all([A, B]).

keeper(Kept, N) ->
    receive
        {keep, Binary} ->
            keeper([Binary | Kept], N + byte_size(Binary));
        {drop, _} ->
            keeper(Kept, N);
        {report, To} ->
            garbage_collect(),
            To ! {kept, N, lists:sum([binary:referenced_byte_size(B) || B <- Kept])}
    end.

%% What waits for room is not encoded. (All senders share the list; its encodings they would not.)
waiting_unpacked(_) ->
    lists:foreach(
      fun(Length) ->
              {A, B} = cluster:pair([{lanes, 1}, {queue_bytes, "256KB"}, {bulk_bytes, "1MB"}]),
              [Pid] = cluster:call(B, traffic, start_receivers, [1]),
              ok = cluster:call(A, fun() -> persistent_term:put(list, lists:seq(1000, Length)) end),
              cluster:suspend(B),
              Before = cluster:call(A, erlang, memory, [binary]),
              Send = fun() -> trunkline:send(Pid, persistent_term:get(list)) end,
              Senders = cluster:call(A, fun() -> [spawn(Send) || _ <- lists:seq(1, 300)] end),
              AreAlive = fun() -> lists:filter(fun is_process_alive/1, Senders) end,
              cluster:await(fun() ->
                                    Alive = length(cluster:call(A, AreAlive)),
                                    Waiting = waiting(A, B),
                                    Waiting =:= Alive orelse {Waiting, Alive}
                            end),
              ?assert(waiting(A, B) > 100),
              %% (All of them would be 18 and 60 MB.)
              ?assert(cluster:call(A, erlang, memory, [binary]) - Before < 8_000_000),
              cluster:stop_all([A, B])
      end, [12_000, 40_000]).

waiting(A, B) ->
    #{lanes := [#{waiting := InLane}], large := #{waiting := Large}} = cluster:info(A, B),
    InLane + Large.

%% A server for which another process replies is not stopped for long if a peer does not take these
%% replies.
delegated_replies(_) ->
    lists:foreach(
      fun({Bytes, N}) ->
              {A, B} = cluster:pair([{lanes, 1}, {queue_bytes, "64KB"}, {bulk_bytes, "1MB"}]),
              [Lane] = cluster:call(B, cluster, find, [lanes, cluster:node_of(A)]),
              Server = cluster:call(B, fun() -> spawn(?MODULE, delegating, [Lane, #{}]) end),
              Asking = cluster:call(A, fun() -> spawn(fun() -> ask(Server, Bytes, N) end) end),
              Open = fun() ->
                             cluster:call(B, fun() -> gen_server:call(Server, open, infinity) end)
                     end,
              cluster:await(fun() -> Open() =:= N orelse Open() end),
              cluster:suspend(A),
              ok = cluster:call(B, fun() -> Server ! reply, ok end),
              cluster:await(fun() -> Open() =:= 0 orelse Open() end),
              cluster:continue(A),
              cluster:await(fun() -> not cluster:call(A, erlang, is_process_alive, [Asking]) end),
              cluster:stop_all([A, B])
      end, [{1000, 200}, {1000, 1000}, {200_000, 9}, {200_000, 40}]).

ask(Server, Bytes, N) ->
    Ids = [trunkline:send_request(Server, Bytes) || _ <- lists:seq(1, N)],
    lists:foreach(fun(Id) -> {reply, _} = trunkline:receive_response(Id, infinity) end, Ids).

%% Another process replies to all, one by one.
delegating(Lane, Open) ->
    receive
        {'$gen_call', From, open} ->
            gen_server:reply(From, map_size(Open)),
            delegating(Lane, Open);
        {'$gen_call', From, Bytes} ->
            delegating(Lane, Open#{From => Bytes});
        reply ->
            Server = self(),
            spawn(fun() ->
                          maps:foreach(fun(From, Bytes) ->
                                               gen_server:reply(From, <<0:Bytes/unit:8>>),
                                               cluster:await(fun() -> cluster:is_at_rest(Lane) end),
                                               Server ! {replied, From}
                                       end, Open)
                  end),
            delegating(Lane, Open);
        {replied, From} ->
            delegating(Lane, maps:remove(From, Open))
    end.

%% While a connection is being made the lanes keep no more than at any other time. Whoever sends
%% more waits, or is told. What was accepted arrives, or is counted when the node turns out to be
%% dead.
bound_while_connecting(_) ->
    {A, B} = cluster:pair(?SMALL, ?SMALL,
                          cluster:dist_arguments() ++ ["-kernel", "net_setuptime", "100"]),
    NodeB = cluster:node_of(B),
    [Pid] = cluster:call(B, traffic, start_receivers, [1]),
    Silent = fun() ->
                     true = cluster:call(A, erlang, disconnect_node, [NodeB]),
                     [cluster:await_state(X, Y, down) || {X, Y} <- [{A, B}, {B, A}]],
                     cluster:suspend(B)
             end,
    Silent(),
    {Ok, Refused} = cluster:call(A, fun() -> try_many(Pid, 2000, [], 0) end),
    ?assert(length(Ok) > 20),
    ?assert(Refused > 100),
    [?assert(Q =< 65536 + 4000) || #{queued_bytes := Q} <- lanes(A, B)],
    %% Large messages, up to their own bound.
    Large =
        cluster:call(A,
                     fun() ->
                             [trunkline:send(Pid, binary:copy(<<"x">>, 10_000_000), [nosuspend])
                              || _ <- lists:seq(1, 20)]
                     end),
    ?assertEqual([nosuspend, ok], lists:usort(Large)),
    blocked_senders(A, B, [Pid], 100, 5),
    cluster:continue(B),
    await_done(A, 100),
    cluster:await(fun() -> cluster:call(B, traffic, count, [Pid]) =:= length(Ok) + 500 end),
    Got = cluster:call(B, traffic, received, [Pid]),
    ?assertMatch([],
                 [Id
                  || Id <- lists:seq(2, 100), [N || {I, N} <- Got, I =:= Id] =/= [1, 2, 3, 4, 5]]),
    ?assertEqual(length(Got), length(lists:usort(Got))
                                  + length([N || N <- lists:seq(1, 5), lists:member(N, Ok)])),
    cluster:await_up(A, B),
    cluster:await(fun() ->
                          lists:all(fun(#{queued_bytes := Q, in_flight_bytes := F}) ->
                                            {Q, F} =:= {0, 0}
                                    end, lanes(A, B))
                  end),
    Silent(),
    ok = cluster:call(A, fun() -> unregister(done), ok end),
    blocked_senders(A, B, [Pid], 100, 5),
    cluster:kill(B),
    await_done(A, 100),
    cluster:await(fun() ->
                          #{lost := #{queued := Q, unreachable := X, crashed := 0}} = Info =
                              cluster:info(A, B),
                          {Q, X} =:= {0, 500} orelse Info
                  end),
    ?assertEqual([0, 0], [Q || #{queued_bytes := Q} <- lanes(A, B)]),
    cluster:stop(A).

lanes(A, B) -> maps:get(lanes, cluster:info(A, B)).

memory(A) -> cluster:call(A, erlang, memory, [total]).
