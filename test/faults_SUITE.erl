%% What happens when processes are killed, nodes stop, and strangers talk.
-module(faults_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").
-include("../src/gate/trunkline_route.hrl").

-export([all/0, suite/0]).
-export([each_process_killed/1, supervisors_killed/1, stopped_and_continued/1, new_incarnation/1,
         different_settings/1, late_starter/1, garbage/1, incompatible_peer/1,
         nothing_left_behind/1, reported_once/1, many_nodes/1, reconnected_by_sending/1,
         stays_disconnected/1, loaded_again/1, sender_dies/1, called_while_holding/1,
         no_process_left/1, no_process_for_what_comes/1, silent_host/1, order_over_reconnection/1,
         comes_back_without/1, lost_and_tried_again/1, halts_after_replies/1, looked_at/1,
         told_nonsense/1, waits_and_answers/1, top_supervisor_killed/1, news_lost/1,
         ends_while_busy/1, ends_after_its_inlets/1]).
-export([blocks/0]).
-export([processes_of/1, full/2, load_again/0, in_old_code/0, kept_funs/1]).
-export([fake_links/1, install_log/0, install_log/1, line/1]).

-define(DEADLINE, 60_000).

suite() -> [{timetrap, {minutes, 20}}].

all() -> [each_process_killed, supervisors_killed, stopped_and_continued, new_incarnation,
          different_settings, late_starter, garbage, incompatible_peer, nothing_left_behind,
          reported_once, many_nodes, reconnected_by_sending, stays_disconnected, loaded_again,
          sender_dies, called_while_holding, no_process_left, no_process_for_what_comes,
          silent_host, order_over_reconnection, comes_back_without, lost_and_tried_again,
          halts_after_replies, looked_at, told_nonsense, waits_and_answers,
          top_supervisor_killed, news_lost, ends_while_busy, ends_after_its_inlets].

%% Every kind of process, at either end, under load: messages go on, in order, and
%% what is missing has been counted.
each_process_killed(_) ->
    {A, B} = cluster:pair([{lanes, 2}]),
    Load = load(A, B),
    lists:foreach(
      fun({Victim, At, Other}) ->
              case Victim of
                  trunkline_links -> kill(Victim, At, Other);        % the session goes on
                  _ -> anew:lanes(A, B, fun() -> kill(Victim, At, Other) end)
              end,
              flowing(Load, B)
      end,
      [{Victim, At, Other} || Victim <- [lanes, inlets, link, trunkline_links, trunkline_link_sup],
                              {At, Other} <- [{A, B}, {B, A}], _ <- [1, 2]]),
    Missing = finish(Load, A, B),
    #{lost := Lost} = cluster:info(A, B),
    ct:log("~b messages are missing; counted as lost: ~p", [Missing, Lost]),
    ?assert(Missing =< lists:sum(maps:values(Lost))),
    cluster:stop_all([A, B]).

%% Kills it, and waits until what had to go with it is new.
kill(Victim, At, Other) ->
    OtherNode = cluster:node_of(Other),
    Killed = cluster:call(At, fun() ->
                                      {Pid, _} = Found = find(Victim, OtherNode),
                                      ok = trunkline_process:kill(Pid),
                                      Found
                              end),
    Victim =:= trunkline_sup
        orelse cluster:await(
                 fun() ->
                         is_replaced(Victim, Killed,
                                     cluster:call(At, fun() -> find(Victim, OtherNode) end))
                 end).

%% And the link.
find(Victim, Node) -> {one(cluster:find(Victim, Node)), one(cluster:find(link, Node))}.

one([]) -> none;
one(Pids) -> lists:last(Pids).

is_replaced(_, _, {Pid, Link}) when not is_pid(Pid); not is_pid(Link) -> {waiting, Pid, Link};
is_replaced(trunkline_links, {Old, _}, {New, _}) -> Old =/= New;
is_replaced(_, {Old, OldLink}, {New, Link}) -> Old =/= New andalso OldLink =/= Link.

%% With the top supervisor the application ends. Messages go on by plain
%% distribution, and by lane again when it is started again.
supervisors_killed(_) ->
    {A, B} = cluster:pair([]),
    lists:foreach(
      fun({At, Other}) ->
              Load = load(A, B),
              cluster:call(At, logger, set_primary_config, [level, none]),
              Before = anew:sessions(Other, At),
              kill(trunkline_sup, At, Other),
              anew:await_stopped(At),
              flowing(Load, B),
              ok = cluster:call(At, cluster, start_trunkline, [[]]),
              anew:await_session(Other, At, Before),
              cluster:await_up(A, B),
              flowing(Load, B),
              _ = finish(Load, A, B)
      end, [{A, B}, {B, A}]),
    cluster:stop_all([A, B]).

%% The links, which outlive it, take leave as if they had been told to.
top_supervisor_killed(_) ->
    {A, B} = cluster:pair([]),
    exchange:both_ways(A, B, [10, 100_000, 20]),
    ok = cluster:call(A, listener_SUITE, install_log, []),
    kill(trunkline_sup, A, B),
    anew:await_stopped(A),
    Log = cluster:call(A, kept_log, kept, []),
    ?assertEqual([], [Entry || Entry <- Log, Word <- ["trunkline_peers", "trunkline_link,"],
                               string:find(io_lib:format("~0p", [Entry]), Word) =/= nomatch]),
    cluster:stop_all([A, B]).

%% The news that nodes have gone, or have come, is lost with the process that gets it.
news_lost(_) ->
    {A, B} = cluster:pair([]),
    [Goes, Comes] = [cluster:start(none), cluster:start(none)],
    cluster:connect(A, Goes),
    cluster:await_state(A, Goes, greeting),
    ok = cluster:call(A, sys, suspend, [trunkline_links]),
    cluster:stop(Goes),
    cluster:connect(A, Comes),
    ok = cluster:call(Comes, cluster, start_trunkline, [[]]),
    true = cluster:call(A, erlang, disconnect_node, [cluster:node_of(B)]),
    cluster:await(fun() ->
                          not lists:member(cluster:node_of(A), cluster:call(B, erlang, nodes, []))
                  end),
    cluster:connect(B, A),
    News = [{nodedown, cluster:node_of(Goes)}, {nodeup, cluster:node_of(Comes)},
            {trunkline, cluster:node_of(Comes)}, {nodedown, cluster:node_of(B)},
            {nodeup, cluster:node_of(B)}, {trunkline, cluster:node_of(B)}],
    cluster:await(fun() -> case News -- cluster:call(A, fun news/0) of
                               [] -> true;
                               Missing -> Missing
                           end end),
    true = cluster:call(A, fun() -> exit(whereis(trunkline_links), kill) end),
    %% (The one that has gone is forgotten.)
    cluster:await(fun() ->
                          cluster:info(A, Goes) =:= undefined
                  end),
    [begin
         cluster:await_up(A, X),
         exchange:both_ways(A, X)
     end || X <- [B, Comes]],
    cluster:stop_all([A, B, Comes]).

%% Runs at the node.
news() ->
    {messages, Messages} = process_info(whereis(trunkline_links), messages),
    [{element(1, M), element(2, M)} || M <- Messages, is_tuple(M), tuple_size(M) > 1].

%% A node that stands still for a while loses nothing.
stopped_and_continued(_) ->
    {A, B} = cluster:pair([]),
    Load = load(A, B),
    lists:foreach(fun(Node) ->
                          cluster:suspend(Node),
                          receive after 500 -> ok end,      % of standing still
                          cluster:continue(Node),
                          flowing(Load, B)
                  end, [A, B, B, A, B]),
    ?assertEqual(0, finish(Load, A, B)),
    cluster:stop_all([A, B]).

%% A node that comes back under its name gets nothing that was meant for the one
%% before, neither by name nor by pid.
new_incarnation(_) ->
    Name = peer:random_name("trunkline_again"),
    A = cluster:start([]),
    lists:foreach(
      fun(Round) ->
              B = cluster:start([], Name),
              cluster:connect(A, B),
              cluster:await_up(A, B),
              [Pid] = cluster:call(B, traffic, start_watchers, [1]),
              true = cluster:call(B, erlang, register, [target, Pid]),
              cluster:suspend(B),
              To = {target, cluster:node_of(B)},
              Old = cluster:call(A, fun() ->
                                            [spawn(fun() -> burst(D, {old, Round}, 500) end)
                                             || D <- [Pid, To], _ <- lists:seq(1, 5)]
                                    end),
              cluster:await(
                fun() ->
                        #{lanes := Ls} = cluster:info(A, B),
                        lists:sum([Q + F || #{queued_messages := Q, in_flight_messages := F} <- Ls])
                            > 0
                end),
              cluster:kill(B),
              %% all that is left of the old bursts has been disposed of
              cluster:await(
                fun() ->
                        cluster:call(A, fun() -> not lists:any(fun is_process_alive/1, Old) end)
                end),
              cluster:await_state(A, B, down),
              B2 = cluster:start([], Name),
              [Pid2] = cluster:call(B2, traffic, start_watchers, [1]),
              true = cluster:call(B2, erlang, register, [target, Pid2]),
              cluster:connect(A, B2),
              cluster:await_up(A, B2),
              ok = cluster:call(A, fun() -> burst(To, new, 100) end),
              cluster:await(fun() -> case cluster:call(B2, traffic, summary, [Pid2]) of
                                         #{new := {100, 100, []}} -> true;
                                         Other -> Other
                                     end end),
              Summary = maps:remove(new, cluster:call(B2, traffic, summary, [Pid2])),
              ?assertEqual(#{}, Summary),
              cluster:stop_all([B, B2]),
              cluster:await_state(A, B2, down)
      end, lists:seq(1, 5)),
    cluster:stop(A).

%% Each message is handed over while the old node was there: a send that waits
%% at the bound when the node goes is part of what is lost, and one that comes too late
%% does not connect to the new one.
burst(To, Tag, Messages) ->
    Node = case To of {_, N} -> N; _ -> node(To) end,
    lists:foreach(fun(N) ->
                          case Tag =:= new orelse trunkline_route:lookup(Node) of
                              none -> ok;
                              _ ->
                                  send_while_up(Tag, To, {from, Tag, N, traffic:payload(600)}, Node)
                          end
                  end, lists:seq(1, Messages)).

send_while_up(new, To, Message, _) -> trunkline:send(To, Message);
send_while_up(_, To, Message, Node) ->
    case trunkline:info(Node) of
        #{state := up, sessions := S} ->
            case get(session) of
                undefined -> put(session, S), trunkline:send(To, Message, [noconnect]);
                S -> trunkline:send(To, Message, [noconnect]);
                _ -> ok
            end;
        _ -> ok
    end.

%% Different numbers of lanes, and limits: the smaller counts, at both ends.
different_settings(_) ->
    lists:foreach(fun({EnvA, EnvB, Lanes}) ->
                          {A, B} = cluster:pair(EnvA, EnvB),
                          ?assertEqual({Lanes, Lanes}, {count_lanes(A, B), count_lanes(B, A)}),
                          #{agreement := Agreement} =
                              cluster:call(A, trunkline_peers, lookup, [cluster:node_of(B)]),
                          #{agreement := Theirs} =
                              cluster:call(B, trunkline_peers, lookup, [cluster:node_of(A)]),
                          ?assertEqual(Agreement, Theirs),
                          Load = load(A, B),
                          flowing(Load, B),
                          ?assertEqual(0, finish(Load, A, B)),
                          cluster:stop_all([A, B])
                  end,
                  [{[{lanes, 1}], [{lanes, 8}], 1},
                   {[{lanes, 7}], [{lanes, 3}], 3},
                   {[{lanes, 2}, {window_bytes, 4096}],
                    [{lanes, 2}, {window_bytes, 1048576}, {batch_bytes, 256}], 2}]).

count_lanes(A, B) ->
    #{lanes := Lanes} = cluster:info(A, B),
    length(Lanes).

%% A cluster in which Trunkline is started node by node, under load.
late_starter(_) ->
    [A, B] = cluster:start_all([none, none]),
    cluster:connect(A, B),
    Load = load(A, B),
    ok = cluster:call(A, cluster, start_trunkline, [[]]),
    flowing(Load, B),
    cluster:await_state(A, B, greeting),
    ok = cluster:call(B, cluster, start_trunkline, [[]]),
    cluster:await_up(A, B),
    flowing(Load, B),
    ?assertEqual(0, finish(Load, A, B)),
    cluster:stop_all([A, B]).

%% Messages that nobody should have sent change nothing.
garbage(_) ->
    {A, B} = cluster:pair([]),
    NodeA = cluster:node_of(A),
    NodeB = cluster:node_of(B),
    Load = load(A, B),
    Processes = fun() -> cluster:call(B, fun() ->
                                                 #{link := Link, inlets := Inlets} =
                                                     trunkline_peers:lookup(NodeA),
                                                 {whereis(trunkline_links), Link, Inlets}
                                         end) end,
    {Links, Link, Inlets} = Before = Processes(),
    ok = cluster:call(
           A, fun() ->
                      Pid = self(),
                      Ref = make_ref(),
                      Junk = [x, {}, [], [a | b], <<"bytes">>, #{}, fun() -> ok end, Pid, Ref,
                              {trunkline, x}, {trunkline, NodeA, x}, {trunkline, NodeA, nodedown},
                              {trunkline, NodeB, nodeup}, {trunkline, NodeA, {hello, x, y, z, w}},
                              {trunkline, NodeA, {hello, Pid, Ref, [], true}},
                              {trunkline, 'no@where', {hello, Pid, Ref, #{}, true}},
                              {trunkline, NodeA, {open, Pid, Ref, Ref, [Pid | Pid]}},
                              {trunkline, NodeA, {open, Pid, Ref, Ref, [x]}},
                              {trunkline, NodeA, {open, Pid, Ref, Ref, [Pid]}},
                              {'$gen_call', {Pid, Ref}, x}, {'$gen_cast', x}, {opened, Ref, [x]},
                              {goodbye, Pid, Ref}, {lane_ready, Ref, Pid},
                              {lane_ready, Ref}, {room, 1}, {room, 99},
                              {wait, Ref, nonsense}, {ack, now, Pid, 1}, {ack, now, Pid, 1, 1},
                              {timeout, Ref, nonsense}, {'EXIT', Pid, x},
                              {{ended, Pid, Pid, Ref}, Ref, process, Pid, x},
                              {'DOWN', Ref, process, Pid, x}, {[alias | Ref], x},
                              {[[alias | Ref] | {Ref, Pid}], x}],
                      _ = [To ! J || J <- Junk, To <- [Links, Link | Inlets]],
                      ok
              end),
    flowing(Load, B),
    ?assertEqual(Before, Processes()),
    ?assertEqual(0, finish(Load, A, B)),
    cluster:stop_all([A, B]).

%% A peer of a time to come, whose protocol we do not know: plain distribution.
incompatible_peer(_) ->
    [A, B] = cluster:start_all([[], none]),
    true = cluster:call(B, fun() ->
                                   register(trunkline_links,
                                            spawn(?MODULE, fake_links, [cluster:node_of(B)]))
                           end),
    ok = cluster:call(A, ?MODULE, install_log, []),
    cluster:connect(A, B),
    cluster:await(fun() -> case cluster:call(A, kept_log, kept, []) of
                               [{warning, "trunkline: no lanes to " ++ _} | _] -> true;
                               Log -> Log
                           end end),
    Load = load(A, B),
    flowing(Load, B),
    ?assertEqual(0, finish(Load, A, B)),
    ?assertMatch(#{state := greeting}, cluster:info(A, B)),
    cluster:stop_all([A, B]).

fake_links(Node) ->
    receive
        {trunkline, From, {hello, _, _, Hello, _}} ->
            {trunkline_links, From} ! {trunkline, Node,
                                       {hello, self(), make_ref(),
                                        Hello#{protocol := {17, 18}, new_key => x}, false}},
            fake_links(Node)
    end.

%% Sessions that come and go leave no process, no timer and no memory behind.
nothing_left_behind(_) ->
    {A, B} = cluster:pair([{lanes, 4}]),
    Break = fun(_) -> true = anew:connection(A, B) end,
    Count = fun() ->
                    {length(cluster:call(A, erlang, processes, [])),
                     length(cluster:call(B, erlang, processes, []))}
            end,
    %% (Nor does a session begin with all of its processes.)
    Counts = [begin Break(N), Count() end || N <- lists:seq(1, 5)],
    Before = {lists:max([N || {N, _} <- Counts]), lists:max([M || {_, M} <- Counts])},
    lists:foreach(Break, lists:seq(1, 50)),
    cluster:await(fun() -> case Count() of
                               {N, M} when N =< element(1, Before), M =< element(2, Before) -> true;
                               Now -> {Before, Now}
                           end end),
    cluster:stop_all([A, B]).

%% A loss is in the log once, with its number.
reported_once(_) ->
    {A, B} = cluster:pair([{lanes, 2}, {queue_bytes, 65536}, {window_bytes, 65536}]),
    ok = cluster:call(A, ?MODULE, install_log, []),
    [Pid] = cluster:call(B, traffic, start_watchers, [1]),
    cluster:suspend(B),
    _ = [cluster:call(A, traffic, stream, [Pid, N, 1000]) || N <- lists:seq(1, 4)],
    cluster:await(fun() -> #{lanes := Ls} = cluster:info(A, B),
                           lists:any(fun(#{waits := W}) -> W > 0 end, Ls) end),
    cluster:kill(B),
    cluster:await(fun() ->
                          case cluster:call(A, kept_log, kept, []) of [_] -> true; L -> L end
                  end),
    [{warning, Text}] = cluster:call(A, kept_log, kept, []),
    ct:log("~ts", [Text]),
    {match, [_, Queued, Unconfirmed]} =
        re:run(Text, "lost ([0-9]+) messages .* another ([0-9]+)", [{capture, all, list}]),
    ?assert(list_to_integer(Queued) + list_to_integer(Unconfirmed) > 0),
    cluster:stop(A).

install_log() -> install_log(warning).

install_log(Level) ->
    %% What the default handler would show.
    {ok, Default} = logger:get_handler_config(default),
    kept_log:keep(Level, maps:with([filters, filter_default], Default), fun ?MODULE:line/1).

line(#{level := Level, msg := {report, Report}, meta := #{domain := [trunkline]}}) ->
    {Format, Args} = trunkline_log:text(Report),
    {true, {Level, lists:flatten(io_lib:format(Format, Args))}};
line(_) ->
    false.

%% One node that stands still does not stall the others.
many_nodes(_) ->
    [A, B, C, D] = Nodes = cluster:start_all([[], [], [], []]),
    _ = [begin cluster:connect(A, N), cluster:await_up(A, N) end || N <- [B, C, D]],
    Loads = [{N, load(A, N)} || N <- [B, C, D]],
    cluster:suspend(C),
    lists:foreach(fun({N, Load}) -> N =:= C orelse [flowing(Load, N) || _ <- lists:seq(1, 5)] end,
                  Loads),
    cluster:continue(C),
    lists:foreach(fun({N, Load}) -> ?assertEqual(0, finish(Load, A, N)) end, Loads),
    cluster:stop_all(Nodes).

%% Whoever has something to say sets up the connection, as with `!', and it arrives.
reconnected_by_sending(_) ->
    {A, B} = cluster:pair([], [], cluster:dist_arguments() ++ ["-kernel", "net_setuptime", "100"]),
    [To] = cluster:call(B, traffic, start_receivers, [1]),
    Disconnect = fun() ->
                         _ = cluster:call(A, erlang, disconnect_node, [cluster:node_of(B)]),
                         cluster:await_state(A, B, down),
                         cluster:await_state(B, A, down)
                 end,
    Id = fun(Round, N) -> 100 * Round + N end,
    Arrived = fun(N) ->
                      cluster:await(fun() -> case cluster:call(B, traffic, count, [To]) of
                                                 N -> true;
                                                 Other -> {Other, N}
                                             end end)
              end,
    lists:foreach(
      fun(Round) ->
              Disconnect(),
              Ends = cluster:call(A, traffic, play_all,
                                  [[{Id(Round, N), [{send, To, 10}, {send, To, 10}]}
                                    || N <- lists:seq(1, 20)]]),
              [normal] = lists:usort(Ends),
              Arrived(41 * Round - 1),
              Disconnect(),
              {ok, Round, call} =
                  cluster:call(A,
                               fun() -> trunkline:call(To, {from, Round, call, x}, infinity) end),
              Disconnect(),
              ok = cluster:call(A, fun() -> trunkline:send(To, x, [nosuspend]) end),
              cluster:await_up(A, B),
              noconnect = begin
                              Disconnect(),
                              cluster:call(A, fun() -> trunkline:send(To, x, [noconnect]) end)
                          end
      end, lists:seq(1, 5)),
    %% A connection that cannot be made: everybody hears of it in time.
    Disconnect(),
    cluster:suspend(B),
    Still = cluster:call(A, fun() ->
                                    Connecting = spawn(net_kernel, connect_node, [node(To)]),
                                    ok = trunkline:send(To, x, [nosuspend]),
                                    {exit, {timeout, _}} =
                                        traffic:attempt(fun() -> trunkline:call(To, x, 100) end),
                                    is_process_alive(Connecting)
                            end),
    ?assert(Still),                            % the set-up, which takes 100 seconds
    cluster:continue(B),
    cluster:stop_all([A, B]).

%% None of Trunkline's processes connects what somebody has disconnected, though the news of that is
%% still on its way to it.
stays_disconnected(_) ->
    {A, B} = cluster:pair([]),
    Object = {init, cluster:node_of(B)},
    Speak = fun() ->
                    Speaker = trunkline_speaker:start_link(),
                    Connection = make_ref(),
                    ok = trunkline_speaker:connection(Speaker, Connection),
                    Watch = trunkline_speaker:watch(watch, Speaker, Connection, Object),
                    ok = trunkline_speaker:say(Speaker, Connection, self(), said),
                    receive said -> ok end,
                    receive {'DOWN', Watch, process, _, Reason} -> Reason
                    after 0 -> watched
                    end
            end,
    ?assert(is_reference(cluster:call(A, trunkline_process, monitor_connected, [Object]))),
    ?assertEqual(watched, cluster:call(A, Speak)),
    true = cluster:call(A, erlang, disconnect_node, [cluster:node_of(B)]),
    cluster:await_state(A, B, down),
    cluster:await_state(B, A, down),
    ?assertEqual(noconnection, cluster:call(A, trunkline_process, monitor_connected, [Object])),
    ?assertEqual(noconnection, cluster:call(A, Speak)),
    ?assertEqual([], cluster:call(A, erlang, nodes, [connected])),
    cluster:stop_all([A, B]).

%% The host of a node that was known does not answer: nobody waits for it, nor do others for
%% what goes to it. What was sent meanwhile arrives when it answers.
silent_host(_) ->
    [A, B, C] = cluster:start_all([[], [], []],
                                  cluster:dist_arguments() ++ ["-kernel", "net_setuptime", "100"]),
    [begin cluster:connect(A, X), cluster:await_up(A, X) end || X <- [B, C]],
    [NodeB, _] = Nodes = [cluster:node_of(X) || X <- [B, C]],
    [P, Q] = [begin
                  [Pid] = cluster:call(X, traffic, start_receivers, [1]),
                  true = cluster:call(X, erlang, register, [target, Pid]),
                  Pid
              end || X <- [B, C]],
    true = cluster:call(A, erlang, disconnect_node, [NodeB]),
    [cluster:await_state(X, Y, down) || {X, Y} <- [{A, B}, {B, A}]],
    cluster:suspend(B),
    Message = fun(N) -> {from, 1, N, x} end,
    {Time, ok} =
        timer:tc(
          fun() ->
                  cluster:call(
                    A, fun() ->
                               _ = trunkline:send(P, Message(1)),
                               ok = trunkline:send({target, NodeB}, Message(2), [nosuspend]),
                               ok = trunkline:cast(P, Message(3)),
                               abcast = trunkline:abcast(Nodes, target, Message(4)),
                               ok = trunkline:multicast([P, Q, {target, NodeB}], Message(5)),
                               ok = trunkline_erpc:cast(NodeB, erlang, send, [target, Message(6)]),
                               ok = trunkline_erpc:multicast(Nodes, erlang, send,
                                                             [target, Message(6)]),
                               _ = trunkline:send(P, {from, 1, 7, binary:copy(<<"x">>, 1_000_000)}),
                               _ = trunkline:send(P, Message(8)),
                               ok
                       end)
          end),
    ?assert(Time < 50_000_000),
    cluster:await(fun() -> cluster:call(C, traffic, count, [Q]) =:= 3 end),
    ?assertMatch(#{state := down, lost := #{unreachable := 0}},
                 cluster:call(A, trunkline, info, [NodeB])),
    cluster:continue(B),
    cluster:await(fun() -> case cluster:call(B, traffic, received, [P]) of
                               Got when length(Got) =:= 10 -> true;
                               Got -> Got
                           end end),
    Got = [N || {1, N} <- cluster:call(B, traffic, received, [P])],
    %% Other processes execute what erpc casts.
    ?assertEqual([1, 2, 3, 4, 5, 5, 7, 8], [N || N <- Got, N =/= 6]),
    ?assertEqual([4, 5], [N || {1, N} <- cluster:call(C, traffic, received, [Q]), N =/= 6]),
    cluster:stop_all([A, B, C]).

%% What is sent when the connection is lost does not overtake what has arrived by it.
order_over_reconnection(_) ->
    {A, B} = cluster:pair([{lanes, 2}]),
    NodeA = cluster:node_of(A),
    [To] = cluster:call(B, traffic, start_receivers, [1]),
    Sender = cluster:call(A, fun() -> spawn(fun() -> obey() end) end),
    Send = fun(Ns) ->
                   cluster:call(
                     A, fun() -> Sender ! {do, self(),
                                           fun() ->
                                                   [trunkline:send(To, {from, 1, N, x}) || N <- Ns]
                                           end},
                                 receive {done, Sender} -> ok end end)
           end,
    lists:foreach(
      fun(Round) ->
              Base = 200 * (Round - 1),
              ok = cluster:call(B, fun() -> cluster:hold(cluster:find(inlets, NodeA)) end),
              ok = Send(lists:seq(Base + 1, Base + 100)),
              cluster:await(fun() ->
                                    cluster:call(B, fun() -> batches(NodeA) end) >= in_session(A, B)
                            end),
              true = cluster:call(A, erlang, disconnect_node, [cluster:node_of(B)]),
              cluster:await_state(A, B, down),
              ok = Send(lists:seq(Base + 101, Base + 200)),
              cluster:await(fun() ->
                                    lists:member(NodeA, cluster:call(B, erlang, nodes, [connected]))
                            end),
              ok = cluster:call(B, cluster, release, []),
              cluster:await(fun() -> cluster:call(B, traffic, count, [To]) =:= 200 * Round end),
              cluster:await_up(A, B)
      end, [1, 2, 3]),
    ?assertEqual(lists:seq(1, 600), [N || {1, N} <- cluster:call(B, traffic, received, [To])]),
    cluster:stop_all([A, B]).

obey() ->
    receive {do, From, Fun} -> _ = Fun(), From ! {done, self()}, obey() end.

%% Messages in batches that the inlets at B have not taken: only one session's count.
in_session(A, B) ->
    #{lanes := Lanes} = cluster:info(A, B),
    case lists:sum([Q || #{queued_messages := Q} <- Lanes]) of
        0 -> lists:sum([1 || #{in_flight_messages := N} <- Lanes, N > 0]);
        _ -> not_yet                           % larger than any number
    end.

%% A peer that has no Trunkline when it comes back gets by plain distribution what was kept for it.
comes_back_without(_) ->
    {A, B} = cluster:pair([{lanes, 2}]),
    NodeB = cluster:node_of(B),
    [To] = cluster:call(B, traffic, start_receivers, [1]),
    true = cluster:call(B, erlang, register, [target, To]),
    ok = cluster:call(B, cluster, stop_trunkline, []),
    cluster:await_state(A, B, greeting),
    Play = fun(From) ->
                   lists:foreach(fun(N) -> trunkline:send(To, {from, 1, N, x}) end,
                                 lists:seq(From, From + 99)),
                   ok = trunkline:multicast([To, {target, NodeB}], {from, 1, From + 100, x}),
                   _ = trunkline:send(To, {from, 1, From + 101, binary:copy(<<"x">>, 1_000_000)}),
                   ok = trunkline:cast(To, {from, 1, From + 102, x}),
                   ok = trunkline_erpc:cast(NodeB, erlang, send, [target, {from, 2, From, x}])
           end,
    lists:foreach(
      fun(Round) ->
              true = cluster:call(A, erlang, disconnect_node, [NodeB]),
              cluster:await_state(A, B, down),
              ok = cluster:call(A, fun() -> Play(1000 * Round) end),
              cluster:await(fun() -> case cluster:call(B, traffic, count, [To]) of
                                         N when N =:= 105 * Round -> true;
                                         N -> N
                                     end end),
              cluster:await_state(A, B, greeting)
      end, [1, 2, 3]),
    Got = cluster:call(B, traffic, received, [To]),
    ?assertEqual([1000 * Round + N
                  || Round <- [1, 2, 3], N <- lists:seq(0, 100) ++ [100, 101, 102]],
                 [N || {1, N} <- Got]),
    ?assertEqual([1000, 2000, 3000], [N || {2, N} <- Got]),
    ?assertMatch(#{lost := #{queued := 0, unreachable := 0}},
                 cluster:call(A, trunkline, info, [NodeB])),
    cluster:stop_all([A, B]).

%% A node that is dead: what is sent is lost and counted, and each time somebody sends another
%% attempt is made.
lost_and_tried_again(_) ->
    Name = peer:random_name("trunkline_again"),
    A = cluster:start([]),
    B = cluster:start([], Name),
    NodeB = cluster:node_of(B),
    To = {target, NodeB},
    cluster:connect(A, B),
    cluster:await_up(A, B),
    Pid = cluster:call(B, erlang, whereis, [init]),
    cluster:kill(B),
    cluster:await_state(A, B, down),
    #{lost := #{queued := Queued, unconfirmed := Unconfirmed}} =
        cluster:call(A, trunkline, info, [NodeB]),
    Lost = fun(N) ->
                   cluster:await(fun() -> case cluster:call(A, trunkline, info, [NodeB]) of
                                              #{lost := #{unreachable := N, queued := Queued,
                                                          unconfirmed := Unconfirmed}} -> true;
                                              Info -> Info
                                          end end)
           end,
    ok = cluster:call(
           A, fun() -> lists:foreach(fun(_) -> trunkline:send(To, x) end, lists:seq(1, 10)) end),
    Lost(10),
    ok = cluster:call(A, fun() ->
                                 trunkline:multicast([To, Pid], x),
                                 trunkline:send(Pid, binary:copy(<<"x">>, 1_000_000)),
                                 ok
                         end),
    Lost(13),
    cluster:await(fun() ->
                          cluster:call(
                            A, fun() ->
                                       #{large := #{pending_messages := P}} = trunkline:info(NodeB),
                                       P
                               end) =:= 0
                  end),
    B2 = cluster:start([], Name),
    [Target] = cluster:call(B2, traffic, start_receivers, [1]),
    true = cluster:call(B2, erlang, register, [target, Target]),
    ok = cluster:call(A, fun() -> _ = trunkline:send(To, {from, 1, 1, x}), ok end),
    cluster:await(fun() -> cluster:call(B2, traffic, received, [Target]) =:= [{1, 1}] end),
    Lost(13),
    cluster:await_up(A, B2),
    cluster:stop_all([A, B2]).

%% All has arrived, and been answered; the last of it has not been acknowledged. That is no warning.
%% (A round in which all had been acknowledged shows nothing.)
halts_after_replies(_) ->
    A = cluster:start([{lanes, 1}]),
    ok = cluster:call(A, ?MODULE, install_log, [notice]),
    Unconfirmed = halts_after_reply(A, 5, 40),
    cluster:await(fun() -> case cluster:call(A, kept_log, kept, []) of
                               [] -> {no_notice, Unconfirmed};
                               _ -> true
                           end end),
    Log = cluster:call(A, kept_log, kept, []),
    ct:log("~p ~p", [Unconfirmed, Log]),
    ?assertEqual([], [Line || {warning, _} = Line <- Log]),
    ?assertEqual([], [Text
                      || {notice, Text} <- Log, string:find(Text, "may have arrived") =:= nomatch]),
    cluster:stop(A).

%% How many messages had not been acknowledged, in each of so many rounds at least, and in more of
%% them as long as there was none.
halts_after_reply(A, Least, Most) -> halts_after_reply(A, Least, Most, []).

halts_after_reply(A, Least, Most, Nodes) ->
    Unconfirmed = [begin
                       #{lost := #{queued := 0, unconfirmed := N}} =
                           cluster:call(A, trunkline, info, [Node]),
                       N
                   end || Node <- Nodes],
    case {length(Nodes), lists:sum(Unconfirmed)} of
        {Rounds, N} when Rounds >= Least, N > 0 ->
            Unconfirmed;
        {Most, 0} ->
            ct:fail(always_acknowledged);
        _ ->
            halts_after_reply(A, Least, Most, [halts_after_reply(A) | Nodes])
    end.

%% A node that ends as soon as its reply has come, and has been noticed to have.
halts_after_reply(A) ->
    B = cluster:start([{lanes, 1}]),
    NodeB = cluster:node_of(B),
    cluster:connect(A, B),
    cluster:await_up(A, B),
    Halt = fun() -> receive halt -> erlang:halt(0, [{flush, false}]) end end,
    _ = cluster:call(A,
                     fun() ->
                             %% By lane: with a timeout no call goes past it.
                             Pid = trunkline_erpc:call(NodeB, erlang, spawn, [Halt], 10_000),
                             Pid ! halt
                     end),
    cluster:await_state(A, B, down),
    cluster:stop(B),
    NodeB.

%% Modules that are loaded again and again, as rebar3's shell does, end no process.
loaded_again(_) ->
    {A, B} = cluster:pair([{lanes, 2}]),
    [To] = cluster:call(B, traffic, start_receivers, [1]),
    Sender = cluster:call(A, fun() -> spawn(fun() -> send_until_told(To, 1) end) end),
    Large = binary:copy(<<"x">>, 1_000_000),
    cluster:call(B, trunkline, send, [Sender, Large]),
    lists:foreach(fun(_) ->
                          [begin
                               ok = cluster:call(Node, ?MODULE, load_again, []),
                               cluster:await(fun() ->
                                                     cluster:call(Node, ?MODULE, in_old_code, [])
                                             end)
                           end || Node <- [A, B]]
                  end, [1, 2, 3]),
    N = cluster:call(A, fun() -> Sender ! {stop, self()}, receive {sent, N} -> N end end),
    cluster:await(fun() -> cluster:call(B, traffic, count, [To]) =:= N end),
    [begin
         #{sessions := 1} = cluster:info(Node, Other),
         ?assertEqual([], cluster:call(Node, ?MODULE, kept_funs, [cluster:node_of(Other)]))
     end || {Node, Other} <- [{A, B}, {B, A}]],
    cluster:stop_all([A, B]).

%% Functions that processes keep, and that they could not call when the module has changed twice.
kept_funs(Other) ->
    #route{link = Link, lanes = Lanes} = trunkline_route:lookup(Other),
    #{Other := #{inlets := Inlets}} = trunkline_peers:all(),
    [Fun || Pid <- [Link | tuple_to_list(Lanes)] ++ Inlets, Fun <- funs(sys:get_state(Pid)),
            erlang:fun_info(Fun, type) =:= {type, local}].

funs(Fun) when is_function(Fun) -> [Fun];
funs([Head | Tail]) -> funs(Head) ++ funs(Tail);
funs(Tuple) when is_tuple(Tuple) -> funs(tuple_to_list(Tuple));
funs(Map) when is_map(Map) -> funs(maps:to_list(Map));
funs(_) -> [].

send_until_told(To, N) ->
    _ = trunkline:send(To, {from, 1, N, x}),
    receive {stop, From} -> From ! {sent, N}
    after 5 -> send_until_told(To, N + 1)
    end.

load_again() ->
    lists:foreach(fun(M) -> _ = code:purge(M), {module, M} = code:load_file(M) end, loaded()).

loaded() ->
    {ok, Modules} = application:get_key(trunkline, modules),
    [M || M <- Modules, code:is_loaded(M) =/= false].

%% `true': no process is. (A writer may be. If it ends, its lane opens another connection.)
in_old_code() ->
    case [{M, process_info(P, [initial_call, current_stacktrace])}
          || M <- loaded() -- [trunkline_writer], P <- processes(),
             erlang:check_process_code(P, M)] of
        [] -> true;
        Old -> Old
    end.

%% What has arrived at a node is delivered, though its sender is gone.
sender_dies(_) ->
    {A, B} = cluster:pair([{lanes, 2}]),
    [To] = cluster:call(B, traffic, start_receivers, [1]),
    NodeA = cluster:node_of(A),
    ok = cluster:call(B, fun() -> cluster:hold(cluster:find(inlets, NodeA)) end),
    [normal] = cluster:call(A, traffic, play_all,
                            [[{1, [{send, To, 100} || _ <- lists:seq(1, 5000)]}]]),
    cluster:await(fun() -> cluster:call(B, fun() -> batches(NodeA) end) >= sent_batches(A, B) end),
    cluster:kill(A),
    cluster:await_state(B, A, down),
    ok = cluster:call(B, cluster, release, []),
    cluster:await(fun() -> cluster:call(B, traffic, count, [To]) =:= 5000 end),
    cluster:stop(B).

%% Batches that have arrived at held inlets.
batches(Node) ->
    lists:sum([N || Inlet <- cluster:find(inlets, Node),
                    {message_queue_len, N} <- [process_info(Inlet, message_queue_len)]]).

sent_batches(A, B) ->
    #{lanes := Lanes} = cluster:info(A, B),
    case lists:sum([Q || #{queued_messages := Q} <- Lanes]) of
        0 -> lists:sum([N || #{batches := N} <- Lanes]);
        _ -> not_yet                           % larger than any number
    end.

%% A caller that comes while the links are agreeing anew sleeps until they have.
called_while_holding(_) ->
    {A, B} = cluster:pair([]),
    NodeB = cluster:node_of(B),
    [To] = cluster:call(B, traffic, start_receivers, [1]),
    cluster:suspend(B),
    kill(link, A, B),
    cluster:await_state(A, B, holding),
    Caller = cluster:call(
               A, fun() ->
                          spawn(fun() -> exit(trunkline:call(To, {from, 1, 1, x}, infinity)) end)
                  end),
    Work = cluster:call(A, fun() ->
                                   #{link := Link} = trunkline_peers:lookup(NodeB),
                                   receive after 300 -> ok end,      % of waiting
                                   lists:sum([R || P <- [Caller, Link],
                                                   {_, R} <- [process_info(P, reductions)]])
                           end),
    ?assert(Work < 100_000),
    cluster:continue(B),
    cluster:await(fun() -> cluster:call(B, traffic, count, [To]) =:= 1 end),
    cluster:await_up(A, B),
    cluster:stop_all([A, B]).

%% A node that has no room for one more process cannot do what needs one; it keeps its
%% sessions, and the listener.
no_process_left(_) ->
    A = cluster:start([]),
    B = cluster:start([], peer:random_name("trunkline_full"),
                      ["+P", "1024" | cluster:dist_arguments()]),
    cluster:connect(A, B),
    cluster:await_up(A, B),
    exchange:await_connection(A, B),                       % now it listens
    Kept = fun() -> {whereis(trunkline_listener), trunkline_links:links(all)} end,
    {_, [{_, Link}]} = Before = cluster:call(B, Kept),
    [{_, Theirs}] = cluster:call(A, trunkline_links, links, [all]),
    #{ports := Ports, refused := Refused} = cluster:call(B, trunkline_listener, info, []),
    Closed = full({A, B},
                  fun() ->
                          ok = cluster:call(
                                 A, fun() ->
                                            lists:foreach(fun(_) ->
                                                                  Link ! {ping, Theirs, make_ref()}
                                                          end, lists:seq(1, 100))
                                    end),
                          [stranger:is_closed(stranger:connect(Port))
                           || _ <- lists:seq(1, 100), Port <- maps:values(Ports)]
                  end),
    ?assertEqual([true], lists:usort(Closed)),
    cluster:await(fun() -> cluster:call(B, Kept) =:= Before end),
    ?assert(maps:get(refused, cluster:call(B, trunkline_listener, info, []))
            >= Refused + length(Closed)),
    ?assertMatch(#{state := up, sessions := 1}, cluster:info(A, B)),
    cluster:stop_all([A, B]).

%% Whatever comes to a node without a free process waits for one, and costs nobody else
%% anything: neither another session nor another process of Trunkline's.
no_process_for_what_comes(_) ->
    [A, C, D] = cluster:start_all([[], [], []]),
    B = cluster:start([], peer:random_name("trunkline_full"),
                      ["+P", "1024" | cluster:dist_arguments()]),
    [begin cluster:connect(X, B), cluster:await_up(X, B) end || X <- [A, C]],
    Test = {A, B},
    NodeA = cluster:node_of(A),
    NodeB = cluster:node_of(B),
    [ToA] = cluster:call(A, traffic, start_watchers, [1]),
    [ToB] = cluster:call(B, traffic, start_watchers, [1]),
    Kept = fun() ->
                   cluster:call(B, fun() ->
                                           #{link := Link, inlets := Inlets} =
                                               trunkline_peers:lookup(cluster:node_of(C)),
                                           {Link, Inlets,
                                            [whereis(Name)
                                             || Name <- [trunkline_link_sup, trunkline_links,
                                                         trunkline_listener, trunkline_inboxes,
                                                         trunkline_monitors]]}
                                   end)
           end,
    Before = Kept(),
    Link = fun() -> hd(cluster:call(B, cluster, find, [link, NodeA])) end,
    LinkOfA = Link(),
    SendFromA = fun(Tag) ->
                        cluster:call(
                          A,
                          fun() ->
                                  [trunkline:send(ToB, {from, Tag, N, traffic:payload(100_000 + N)})
                                   || N <- [1, 2, 3]],
                                  ok
                          end)
                end,
    Arrived = fun(At, To, Tag) ->
                      cluster:await(fun() -> case cluster:call(At, traffic, summary, [To]) of
                                                 #{Tag := {3, 3, []}} -> true;
                                                 Other -> Other
                                             end end)
              end,
    ByDistribution = fun() ->
                             cluster:await(fun() -> case exchange:by(A, B) of
                                                        {distribution, _} -> true;
                                                        Other -> Other
                                                    end end)
                     end,
    %% A large message for which there is no receiver, nor an opener;
    full(Test, fun() -> SendFromA(receiver), ByDistribution() end),
    Arrived(B, ToB, receiver),
    %% one that has a connection already;
    exchange:await_connection(A, B),
    full(Test, fun() -> SendFromA(opener) end),
    Arrived(B, ToB, opener),
    %% one for which no process can be started that would make a connection.
    Sender = cluster:call(B,
                          fun() ->
                                  spawn(fun() ->
                                                receive go -> ok end,
                                                [trunkline:send(ToA, {from, carrier, N,
                                                                      traffic:payload(100_000 + N)})
                                                 || N <- [1, 2, 3]]
                                        end)
                          end),
    full(Test,
         fun() ->
                 normal = cluster:call(
                            A, fun() ->
                                       Ref = monitor(process, Sender),
                                       Sender ! go,
                                       receive {'DOWN', Ref, process, Sender, Reason} -> Reason end
                               end)
         end),
    Arrived(A, ToA, carrier),
    ?assertEqual(LinkOfA, Link()),
    ?assertMatch(#{state := up, sessions := 1}, cluster:call(A, trunkline, info, [NodeB])),
    ?assertEqual(Before, Kept()),
    %% A node comes,
    ok = cluster:call(B, sys, suspend, [trunkline_links]),
    cluster:connect(D, B),
    full(Test, fun() ->
                       ok = cluster:call(A, sys, resume, [{trunkline_links, NodeB}, 60_000]),
                       _ = cluster:call(A, sys, get_state, [{trunkline_links, NodeB}, 60_000])
               end),
    cluster:await_up(D, B),
    ?assertEqual(Before, Kept()),
    %% a session begins,
    Sessions = anew:sessions(B, A),
    full(Test, fun() ->
                       ok = cluster:call(A, cluster, stop_trunkline, []),
                       ok = cluster:call(A, cluster, start_trunkline, [[]]),
                       %% (It may get the processes of the one before.)
                       cluster:await(fun() ->
                                             case cluster:call(A, trunkline, info, [NodeB]) of
                                                 #{state := S} when S =:= opening; S =:= up -> true;
                                                 Info -> Info
                                             end
                                     end)
               end),
    anew:await_session(B, A, Sessions),
    cluster:await_up(A, B),
    ?assertEqual(Before, Kept()),
    %% and a link is killed.
    Last = anew:sessions(A, B),
    LastLink = Link(),
    full(Test, fun() ->
                       cluster:call(A, erlang, exit, [LastLink, kill]),
                       cluster:await_no_state(A, B, up)
               end),
    anew:await_session(A, B, Last),
    cluster:await_up(A, B),
    ?assertEqual(Before, Kept()),
    [exchange:both_ways(X, B, [10, 100_000, 20]) || X <- [A, C, D]],
    ?assertMatch(#{state := up, sessions := 1}, cluster:call(C, trunkline, info, [NodeB])),
    cluster:stop_all([A, B, C, D]).

%% B has no free process while Fun does something, nor can it be asked anything: that takes one.
full({A, B}, Fun) ->
    Filler = cluster:call(B, traffic, fill, []),
    Result = Fun(),
    cluster:call(A, erlang, exit, [Filler, kill]),
    cluster:await(fun() -> cluster:call(A, fun() -> try erpc:call(cluster:node_of(B), erlang,
                                                                  is_process_alive, [Filler]) of
                                                        IsAlive -> not IsAlive
                                                    catch
                                                        Class:Reason -> {Class, Reason}
                                                    end end) end),
    Result.

%% Every process can be looked at and stopped for a while, under load too, as OTP's own
%% processes can. (By observer, or when a release is upgraded.)
looked_at(_) -> lists:foreach(fun look_at/1, [auto, dist]).

look_at(Bulk) ->
    {A, B} = with_everything(Bulk),
    Load = load(A, B),
    Session = anew:sessions(A, B),
    [begin
         Processes = cluster:call(X, ?MODULE, processes_of, [all]),
         ct:log("~p", [Processes]),
         cluster:call(X,
                      fun() ->
                              lists:foreach(
                                fun({Module, P}) ->
                                        _ = sys:get_state(P, ?DEADLINE),
                                        {status, P, {module, _}, _} = sys:get_status(P, ?DEADLINE),
                                        _ = sys:replace_state(P, fun(S) -> S end, ?DEADLINE),
                                        ok = sys:suspend(P, ?DEADLINE),
                                        _ = sys:change_code(P, Module, [], [], ?DEADLINE),
                                        ok = sys:resume(P, ?DEADLINE)
                                end, Processes),
                              [sys:get_state(P, ?DEADLINE)
                               || _ <- lists:seq(1, 2), {M, P} <- Processes,
                                  M =:= trunkline_lane orelse M =:= trunkline_inlet]
                      end),
         are_there(Processes, X)
     end || X <- [A, B]],
    flowing(Load, B),
    ?assertEqual(0, finish(Load, A, B)),
    %% What is sent to a lane that stands still waits there.
    Lanes = [Lane
             || {trunkline_lane, Lane} <- cluster:call(A, ?MODULE, processes_of, [trunkline_lane])],
    ok = cluster:call(A, fun() -> [sys:suspend(Lane, ?DEADLINE) || Lane <- Lanes], ok end),
    [To] = cluster:call(B, traffic, start_watchers, [1]),
    ok = cluster:call(
           A, fun() -> [trunkline:send(To, {from, a, N, x}) || N <- lists:seq(1, 100)], ok end),
    ?assertEqual(0, cluster:call(B, traffic, count, [To])),
    ok = cluster:call(A, fun() -> [sys:resume(Lane, ?DEADLINE) || Lane <- Lanes], ok end),
    cluster:await(fun() -> case cluster:call(B, traffic, summary, [To]) of
                               #{a := {100, 100, []}} -> true;
                               Other -> Other
                           end end),
    ?assertEqual(Session, anew:sessions(A, B)),
    %% To terminate one ends the session.
    anew:lanes(A, B, fun() -> cluster:call(A, sys, terminate, [hd(Lanes), because]) end),
    exchange:both_ways(A, B, [10, 100_000, 20]),
    cluster:stop_all([A, B]).

%% A message that means nothing to a process ends nothing, and is in the log once.
told_nonsense(_) -> lists:foreach(fun tell_nonsense/1, [auto, dist]).

tell_nonsense(Bulk) ->
    {A, B} = with_everything(Bulk),
    Load = load(A, B),
    [begin
         ok = cluster:call(X, ?MODULE, install_log, []),
         Processes = cluster:call(X, ?MODULE, processes_of, [all]),
         cluster:call(X, fun() ->
                                 [P ! Nonsense || {_, P} <- Processes,
                                                  Nonsense <- [nonsense, {non, sense}, #{}, {}]],
                                 [sys:get_state(P, ?DEADLINE) || {_, P} <- Processes]
                         end),
         are_there(Processes, X),
         ?assertEqual([], [Line || {_, Line} <- cluster:call(X, kept_log, kept, []),
                                   string:find(Line, "unexpected message: nonsense") =:= nomatch]),
         ?assertEqual(length(Processes), length(cluster:call(X, kept_log, kept, [])))
     end || X <- [A, B]],
    exchange:both_ways(A, B, [10, 100_000, 20]),
    ?assertEqual(0, finish(Load, A, B)),
    ?assertMatch(#{state := up, sessions := 1}, cluster:info(A, B)),
    cluster:stop_all([A, B]).

%% So do those that wait for the turn of one large message, or for one reply.
waits_and_answers(_) ->
    {A, B} = cluster:pair([]),
    [Server] = cluster:call(B, traffic, start_watchers, [1]),
    ok = cluster:call(A, ?MODULE, install_log, []),
    cluster:call(A, fun() ->
                            {_, Opener} = start_opener({large, message}),
                            {ok, {Fetcher, _}} =
                                trunkline_opener:start({term, self(), 1}, {term, 9}),
                            {_, Asker} = ask(Server, node(Server)),
                            [begin
                                 P ! nonsense,
                                 _ = sys:get_state(P, ?DEADLINE),
                                 ok = sys:suspend(P, ?DEADLINE),
                                 ok = sys:resume(P, ?DEADLINE)
                             end || P <- [Opener, Fetcher, Asker]],
                            ok = trunkline_opener:deliver(Opener, {self(), self(), plain}),
                            receive {large, message} -> ok end,
                            ok = trunkline_opener:finish(Fetcher),
                            receive {opener, Fetcher, lost} -> ok end,
                            true = is_process_alive(Asker),
                            ok = gen_server:stop(Server),
                            receive {'DOWN', _, process, Server, normal} -> ok end
                    end),
    ?assertEqual([nonsense, nonsense, nonsense],
                 [nonsense || {_, Line} <- cluster:call(A, kept_log, kept, []),
                              string:find(Line, "unexpected message: nonsense") =/= nomatch]),
    cluster:stop_all([A, B]).

start_opener(Message) ->
    Parcel = trunkline_parcel:pack(Message),
    Data = iolist_to_binary(trunkline_parcel:segments(Parcel)),
    {complete, Parts, _} = trunkline_reassembly:add({1, 1}, byte_size(Data), 0, Data,
                                                    trunkline_reassembly:new()),
    {ok, {Opener, Ref}} = trunkline_opener:start(Parts, trunkline_parcel:sizes(Parcel)),
    {Ref, Opener}.

%% A process asks the server on behalf of this one. (The server does not know such a request.)
ask(Server, Node) ->
    Before = processes_of(trunkline_direct),
    Caller = alias(),
    ok = trunkline_direct:send({call, Server, self(), Caller, '$not_known'}, request, Node),
    [{_, Asker}] = processes_of(trunkline_direct) -- Before,
    {Caller, Asker}.

%% Two nodes with connections for batches and for large messages, which stay, and no more of them
%% under load, when the peer seems to be far; or large messages go by the distribution.
with_everything(Bulk) ->
    Env = [{lanes, 2}, {bulk_connections, 1}, {far_connections, 1}, {bulk_idle, 600_000},
           {lane_transport, case cluster:lane_transport() of dist -> tcp; Other -> Other end}],
    {A, B} = cluster:pair(Env, [{bulk_transport, Bulk} | Env]),
    [begin
         exchange:one_way(X, Y, [10, 100_000, 20]),
         cluster:await(fun() -> case cluster:info(X, Y) of
                                    #{batches := #{by := connections}} -> true;
                                    Info -> Info
                                end end),
         Bulk =:= dist orelse exchange:await_connection(X, Y)
     end || {X, Y} <- [{A, B}, {B, A}]],
    All = [dock, inboxes, inlet, lane, link, links, listener, monitors, trunk, writer],
    [?assertEqual([], [M || N <- All, M <- [list_to_atom("trunkline_" ++ atom_to_list(N))],
                            cluster:call(X, ?MODULE, processes_of, [M]) =:= []])
     || X <- [A, B]],
    {A, B}.

%% Those of Trunkline, or of one of its modules. Runs at the node. (What is at the bottom of a stack
%% says whose process it is, and a sender that waits has a deep one.)
processes_of(Wanted) ->
    _ = erlang:system_flag(backtrace_depth, 100),
    lists:sort([{Module, P} || P <- processes(),
                               {current_stacktrace, Stack} <- [process_info(P, current_stacktrace)],
                               Module <- [module_of(P, Stack)],
                               Wanted =:= all andalso not lists:member(Module, [none | passing()])
                                   orelse Module =:= Wanted]).

%% None has ended, and none has come.
are_there(Processes, At) ->
    Now = cluster:call(At, ?MODULE, processes_of, [all]),
    ?assertEqual({[], []}, {Processes -- Now, Now -- Processes}).

%% They end when nobody needs them any more.
passing() ->
    [trunkline_stand_in, trunkline_watcher, trunkline_opener, trunkline_executor, trunkline_reach].

module_of(P, Stack) ->
    {Initial, _, _} = proc_lib:translate_initial_call(P),
    case [M || M <- [Initial
                     | [M || {M, _, _, _} <- lists:nthtail(max(0, length(Stack) - 1), Stack)]],
               lists:prefix("trunkline_", atom_to_list(M))] of
        [] -> none;
        [M | _] -> M
    end.

%% --- load: streams from A to B -----------------------------------------------------

load(A, B) ->
    Load = streams:start(A, B, 50),
    flowing(Load, B),
    Load.

flowing(Load, B) -> streams:flowing(Load, B, ?DEADLINE).

finish(Load, A, B) -> streams:finish(Load, A, B, ?DEADLINE).

%% Processes of Trunkline end, which two processes of another node watch, while that node stands
%% still and the connection is busy. Before OTP 25.3.2.10 an exit signal with a certain reason makes
%% the node hang (docs/reference/otp-defects.md).
ends_while_busy(_) ->
    Inlets = fun(A, NodeB) -> cluster:call(A, cluster, find, [inlets, NodeB]) end,
    Keeper = fun(A, _) ->
                     {ok, Pid} = cluster:call(A, mailroom, start, [{local, x}, #{}, #{}]),
                     [Pid]
             end,
    lists:foreach(
      fun({Victims, End}) ->
              {{Peer, _, _} = A, B} = cluster:pair([]),
              NodeB = cluster:node_of(B),
              Pids = [_ | _] = Victims(A, NodeB),
              Before = [watchers(Pid, A) || Pid <- Pids],
              Watch = fun(Pid) -> spawn(fun() ->
                                                monitor(process, Pid),
                                                receive after infinity -> ok end
                                        end) end,
              cluster:call(B, fun() -> [Watch(Pid) || Pid <- Pids, _ <- [1, 2]] end),
              cluster:await(fun() -> Before =:= [watchers(Pid, A) - 2 || Pid <- Pids] end),
              exchange:both_ways(A, B),            % so that they do not hibernate
              cluster:suspend(B),
              Full = cluster:call(A, traffic, fill_connection, [NodeB]),
              cluster:await_suspended(A, Full),
              cluster:call(A, fun() -> spawn(fun() -> End(Pids, NodeB) end) end),
              cluster:await(
                fun() -> not lists:any(fun(Pid) -> cluster:call(A, erlang, is_process_alive, [Pid])
                                       end, Pids) end),
              cluster:continue(B),
              cluster:await(fun() -> cluster:call(A, erlang, process_info, [Full, status])
                                         =/= {status, suspended} end),
              true = cluster:call(A, erlang, exit, [Full, kill]),
              ?assertEqual(ok, peer:call(Peer, ?MODULE, blocks, [], ?DEADLINE)),
              cluster:stop_all([A, B])
      end,
      [{Keeper, fun([Pid], _) -> gen_server:stop(Pid, {some, reason}, infinity) end},
       {Inlets, fun(_, NodeB) -> [Dock] = cluster:find(dock, NodeB), exit(Dock, kill) end},
       {Inlets, fun([Inlet | _], _) -> exit(Inlet, kill) end}]).

%% A link ends after its inlets, whatever ends it. (The peer goes on by plain distribution when it
%% hears of the link's end. An inlet that was still delivering would be overtaken.)
ends_after_its_inlets(_) ->
    {A, B} = cluster:pair([{lanes, 2}]),
    Load = load(B, A),
    lists:foreach(
      fun(Victim) ->
              anew:lanes(A, B, fun() -> ?assertEqual(3, in_order(Victim, A, B)) end),
              flowing(Load, A)
      end, [inlets, dock, trunkline_link_sup]),
    _ = finish(Load, B, A),
    cluster:stop_all([A, B]).

%% Kills it. Returns how many of the link and its inlets have ended when the link has. (An inlet
%% that traps exits stands for one that does not end at once, because its scheduler does not run.)
in_order(Victim, A, B) ->
    NodeB = cluster:node_of(B),
    Trap = fun(State) -> process_flag(trap_exit, true), State end,
    cluster:call(A, fun() ->
                            [Link] = cluster:find(link, NodeB),
                            Inlets = cluster:find(inlets, NodeB),
                            [sys:replace_state(Inlet, Trap, ?DEADLINE) || Inlet <- Inlets],
                            All = [Link | Inlets],
                            [1 = erlang:trace(Pid, true, [procs, strict_monotonic_timestamp])
                             || Pid <- All],
                            exit(lists:last(cluster:find(Victim, NodeB)), kill),
                            {_, Pids} = lists:unzip(lists:sort([ended(Pid) || Pid <- All])),
                            length(lists:takewhile(fun(Pid) -> Pid =/= Link end, Pids)) + 1
                    end).

ended(Pid) ->
    receive
        {trace_ts, Pid, exit, _, When} -> {When, Pid}
    after ?DEADLINE -> error({has_not_ended, Pid})
    end.

watchers(Pid, A) ->
    {monitored_by, All} = cluster:call(A, erlang, process_info, [Pid, monitored_by]),
    length(All).

%% All schedulers can be stopped, so that none of them hangs.
blocks() ->
    blocked = erlang:system_flag(multi_scheduling, block),
    enabled = erlang:system_flag(multi_scheduling, unblock),
    ok.
