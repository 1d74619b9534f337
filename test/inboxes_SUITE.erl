%% Very many inboxes at one node of a cluster: what they cost the other nodes, what is left of
%% them when something ends, and what happens before a node knows of an inbox.
-module(inboxes_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([many/1, node_gone/1, ends/1, same_name/1, process_killed/1, application_stopped/1,
         keeper_killed/1, disconnected/1, at_once/1, first_messages/1, first_of_all_kinds/1,
         callers_are_told/1, leak_that_is_refused/1, wrong_terms/1,
         code_replaced/1]).

-define(MANY, 10_000).
-define(TABLE, trunkline_inboxes).
%% The process, with which each of two nodes monitors the other.
-define(PROCESS, trunkline_inboxes).

suite() -> [{timetrap, {minutes, 5}}].

all() ->
    [many, node_gone, ends, same_name, process_killed, application_stopped, keeper_killed,
     disconnected, at_once, first_messages, first_of_all_kinds, callers_are_told,
     leak_that_is_refused, wrong_terms, code_replaced].

%% Trunkline is stopped, its code is replaced, and it is started again. Another module may have had
%% the inboxes before. Nobody asks that one any more.
code_replaced(_) ->
    {A, B} = cluster:pair([]),
    [Inbox] = open(B, 1),
    gets_known(A, Inbox),
    lists:foreach(
      fun(At) ->
              ok = cluster:call(At, cluster, stop_trunkline, []),
              cluster:call(At, fun() -> [persistent_term:put(Key, {Filter, Slots, none_of_ours})
                                         || {Key, {Filter, Slots, trunkline_inbox_rows}}
                                                <- persistent_term:get()] end),
              ok = cluster:call(At, cluster, start_trunkline, [[]])
      end, [A, B]),
    cluster:await_lanes(A, B),
    exchange:both_ways(A, B),
    [Other] = open(B, 1),
    gets_known(A, Other),
    cluster:stop_all([A, B]).

%% --- nodes --------------------------------------------------------------------------------

%% The last one has the inboxes.
three(Inboxes) ->
    [A, C, B] = Nodes = cluster:start_all([[], [], []]),
    [begin cluster:connect(X, Y), cluster:await_up(X, Y) end || {X, Y} <- [{A, B}, {C, B}, {A, C}]],
    {Nodes, open(B, Inboxes)}.

%% Each in front of a process of its own, which is done with everything.
open(B, N) ->
    cluster:call(B, fun() ->
                            [begin
                                 {Pid, Inbox} = mailroom:open(none, #{}),
                                 ok = mailroom:go_on(Pid),
                                 Inbox
                             end || _ <- lists:seq(1, N)]
                    end).

%% What a node pays for inboxes: rows of its table, monitors, memory of the process and of the
%% table; and whether it has a filter at all, and one that its own processes have to pass.
cost(Node) ->
    cluster:call(
      Node, fun() ->
                    Pid = whereis(?PROCESS),
                    true = erlang:garbage_collect(Pid),
                    [{monitors, Monitors}, {monitored_by, By}, {memory, Memory}] =
                        process_info(Pid, [monitors, monitored_by, memory]),
                    #{rows => rows(),
                      monitors => length([M || {process, M} <- Monitors, is_elsewhere(M)]),
                      monitored_by => length([M || M <- By, is_elsewhere(M)]),
                      memory => Memory + ets:info(?TABLE, memory) * erlang:system_info(wordsize),
                      filter => trunkline_bounded:are_there(),
                      own_filter => persistent_term:get(trunkline_bounded_here, none) =/= none}
            end).

is_elsewhere({_, Node}) -> Node =/= node();
is_elsewhere(Pid) -> node(Pid) =/= node().

%% Of inboxes of other nodes.
rows() -> length([x || Row <- ets:tab2list(?TABLE), element(1, Row) =:= row,
                       is_elsewhere(element(3, Row))]).

rows(Node) -> cluster:call(Node, fun rows/0).

await_rows(Node, N) ->
    cluster:await(fun() -> case rows(Node) of
                               N -> true;
                               Other -> {N, Other}
                           end end).

%% The other node's monitor may be set a moment later.
costs(Node, Expected) -> costs(Node, [], Expected).

%% The same, while it sends to these inboxes. (What it knew may be forgotten only when it hears of
%% the end of the process that it knew that from.)
costs(Node, Inboxes, Expected) ->
    cluster:await(fun() ->
                          ok = lists:foreach(fun(Inbox) -> send(Node, Inbox) end, Inboxes),
                          Cost = cost(Node),
                          maps:with(maps:keys(Expected), Cost) =:= Expected orelse Cost
                  end).

%% Nothing is left of what two nodes knew of each other.
await_nothing(Node) -> costs(Node, #{rows => 0, monitors => 0, monitored_by => 0}).

send(Node, To) -> cluster:call(Node, fun() -> trunkline:send(To, {hello, node()}), ok end).

is_known(Node, To) -> cluster:call(Node, trunkline_bounded, is_bounded, [To]).

gets_known(Node, To) ->
    cluster:await(fun() -> ok = send(Node, To), is_known(Node, To) end).

%% --- how many -----------------------------------------------------------------------------

%% They cost the other nodes nothing; the one to which a node sends costs that node a row.
many(_) ->
    {[A, C, B] = Nodes, []} = three(0),
    [CostA, CostC] = [cost(N) || N <- [A, C]],
    Inboxes = [First, Second | _] = open(B, ?MANY),
    ?MANY = length(Inboxes),
    [costs(N, #{rows => 0, monitors => 0, monitored_by => 0, filter => false}) || N <- [A, C]],
    costs(B, #{monitors => 0, monitored_by => 0, own_filter => true}),
    %% (It has monitors of its own inboxes only while it is told of their end.)
    [?assert(maps:get(memory, cost(N)) =< maps:get(memory, Cost) + 10_000)
     || {N, Cost} <- [{A, CostA}, {C, CostC}]],
    gets_known(A, First),
    costs(A, #{rows => 1, monitors => 1, monitored_by => 1, filter => true, own_filter => false}),
    gets_known(A, Second),
    costs(A, #{rows => 2, monitors => 1, monitored_by => 1}),
    costs(C, #{rows => 0, monitors => 0, monitored_by => 0, filter => false}),
    costs(B, #{monitors => 1, monitored_by => 1}),
    ct:log("before ~p~nwith two of ~b ~p~nwithout ~p~nwhere they are ~p",
           [CostA, ?MANY, cost(A), cost(C), cost(B)]),
    %% One that sends to all of them has a row for each, and that one monitor.
    ok = cluster:call(C, fun() -> [trunkline:send(I, x) || I <- Inboxes], ok end),
    await_rows(C, ?MANY),
    costs(C, #{rows => ?MANY, monitors => 1, monitored_by => 1}),
    costs(A, #{rows => 2}),
    %% Nothing is going on, and nobody looks.
    [await_calm(N) || N <- Nodes],
    ct:log("who has sent to all ~p", [cost(C)]),
    cluster:stop_all(Nodes).

%% No timer is set.
await_calm(Node) ->
    cluster:await(fun() ->
                          State = cluster:call(Node, sys, get_state, [?PROCESS]),
                          case {watched(State), audit_timer(State)} of
                              {0, false} -> true;
                              Other -> Other
                          end
                  end).

%% (There is no other way to see it.)
watched(State) -> map_size(element(3, accounts(State))).
audit_timer(State) -> is_map_key(audit, element(4, accounts(State))).
accounts(State) -> element(2, State).

%% --- what is left -------------------------------------------------------------------------

%% Of whoever goes: the node with the inboxes, and one that has sent. And another incarnation is
%% another node.
node_gone(_) ->
    A = cluster:start([]),
    Name = peer:random_name("trunkline_inboxes"),
    Inboxes = lists:map(
      fun(End) ->
              B = cluster:start([], Name),
              cluster:connect(A, B),
              cluster:await_up(A, B),
              [There] = open(B, 1),
              [Here] = open(A, 1),
              gets_known(A, There),
              gets_known(B, Here),
              costs(A, #{rows => 1, monitors => 2, monitored_by => 2}),
              ok = End(B),
              await_nothing(A),
              cluster:stop(B),
              cluster:await_state(A, B, down),
              ?assertNot(is_known(A, There)),
              Here
      end, [fun cluster:stop/1, fun cluster:kill/1]),
    %% After a while the inboxes do not know it any more either.
    Here = [cluster:node_of(A)],
    [cluster:await(fun() -> #{nodes := Nodes} = cluster:call(A, trunkline_inbox, info, [I]),
                            case maps:keys(Nodes) of
                                Here -> true;
                                Others -> Others
                            end
                   end) || I <- Inboxes],
    cluster:stop(A).

%% The end of an inbox is told to who knows it.
ends(_) ->
    {[A, C, B] = Nodes, Inboxes} = three(20),
    {Some, Others} = lists:split(10, Inboxes),
    [gets_known(A, I) || I <- Inboxes],
    [gets_known(C, I) || I <- Some],
    Close = fun(Is) -> [ok = cluster:call(B, trunkline_inbox, close, [I]) || I <- Is] end,
    Close(Others),
    await_rows(A, 10),
    ?assertEqual(10, rows(C)),
    Close(Some),
    [await_rows(N, 0) || N <- [A, C]],
    %% What is sent to it now is for nobody.
    ok = send(A, hd(Some)),
    ?assertNot(is_known(A, hd(Some))),
    cluster:stop_all(Nodes).

%% Who knew the one before knows the next one that has its name, before it sends.
same_name(_) ->
    {[A, C, B] = Nodes, []} = three(0),
    To = {post, cluster:node_of(B)},
    Start =
        fun() -> {ok, Pid} = cluster:call(B, mailroom, start, [{local, post}, #{}, #{}]), Pid end,
    First = Start(),
    gets_known(A, To),
    ok = cluster:call(B, mailroom, kill, [[First]]),
    await_rows(A, 0),
    Second = Start(),
    cluster:await(fun() -> is_known(A, To) end),
    ?assert(is_known(A, Second)),
    ?assertNot(is_known(A, First)),
    ?assertEqual([0, 2], [rows(N) || N <- [C, A]]),
    cluster:stop_all(Nodes).

%% --- faults -------------------------------------------------------------------------------

%% The process that keeps all this, here or there: nothing stale stays, and all is known again
%% with the next message.
process_killed(_) ->
    {[A, C, B] = Nodes, [First, Second]} = three(2),
    [gets_known(N, I) || N <- [A, C], I <- [First, Second]],
    lists:foreach(
      fun(At) ->
              kill_process(At),
              [gets_known(N, I) || N <- [A, C], I <- [First, Second]],
              [costs(N, [First, Second], #{rows => 2, monitors => 1, monitored_by => 1})
               || N <- [A, C]],
              costs(B, #{rows => 0, monitors => 2, monitored_by => 2})
      end, [B, A, B, C]),
    ok = cluster:call(B, trunkline_inbox, close, [First]),
    [await_rows(N, 1) || N <- [A, C]],
    cluster:stop_all(Nodes).

%% There is another one when this returns.
kill_process(At) ->
    Old = cluster:call(At, erlang, whereis, [?PROCESS]),
    ok = cluster:call(At, mailroom, kill, [[Old]]),
    cluster:await(fun() -> case cluster:call(At, erlang, whereis, [?PROCESS]) of
                               Old -> old;
                               Pid -> is_pid(Pid)
                           end end).

application_stopped(_) ->
    {[A, C, B] = Nodes, [Inbox]} = three(1),
    [gets_known(N, Inbox) || N <- [A, C]],
    lists:foreach(
      fun(At) ->
              ok = cluster:call(At, cluster, stop_trunkline, []),
              [await_rows(N, 0) || N <- [A, C], At =:= B],
              ok = cluster:call(At, cluster, start_trunkline, [[]]),
              [cluster:await_up(At, N) || N <- Nodes, N =/= At],
              [gets_known(N, Inbox) || N <- [A, C]],
              [costs(N, #{rows => 1, monitors => 1, monitored_by => 1}) || N <- [A, C]]
      end, [B, A]),
    ok = cluster:call(B, trunkline_inbox, close, [Inbox]),
    [await_rows(N, 0) || N <- [A, C]],
    cluster:stop_all(Nodes).

%% Senders that wait for it do so no more, and are not counted any more. Those that wait for another
%% inbox of that node are.
keeper_killed(_) ->
    {A, B} = cluster:pair([]),
    [Post, Parcels] =
        [begin
             {ok, Keeper} = cluster:call(B, mailroom, start, [{local, Name}, #{},
                                                              #{messages => 100}]),
             ok = cluster:call(B, mailroom, hold, [Name]),
             gets_known(A, Keeper),
             Keeper
         end || Name <- [post, parcels]],
    await_peer_waiting(A, B, 0),
    [Senders, Others] = [cluster:call(A, mailroom, senders, [Keeper, Names, 1000, 10])
                         || {Keeper, Names} <- [{Post, [1, 2, 3]}, {Parcels, [4, 5]}]],
    [cluster:await(fun() -> cluster:call(A, ?PROCESS, senders, [Keeper])
                                =:= #{waiting => N, refused => 0} end)
     || {Keeper, N} <- [{Post, 3}, {Parcels, 2}]],
    await_peer_waiting(A, B, 5),
    ok = cluster:call(B, mailroom, kill, [[Post]]),
    ?assertEqual([1000, 1000, 1000], cluster:call(A, mailroom, collect, [Senders, finish])),
    await_peer_waiting(A, B, 2),
    ok = cluster:call(B, mailroom, kill, [[Parcels]]),
    ?assertEqual([1000, 1000], cluster:call(A, mailroom, collect, [Others, finish])),
    await_rows(A, 0),
    await_peer_waiting(A, B, 0),
    cluster:stop_all([A, B]).

%% So many senders at A wait for inboxes of B.
await_peer_waiting(A, B, Expected) ->
    cluster:await(fun() ->
                          #{inboxes := #{waiting := N}} = cluster:info(A, B),
                          N =:= Expected orelse N
                  end).

%% Again and again, with messages: nothing is left when the connection is gone, nor is anything
%% stale when it is there.
disconnected(_) ->
    {[A, C, B] = Nodes, Inboxes} = three(20),
    lists:foldl(
      fun(Round, [Inbox | Rest]) ->
              [gets_known(N, I) || N <- [A, C], I <- [Inbox | Rest]],
              [Breaks, Other] = if Round rem 2 =:= 0 -> [A, B]; true -> [B, A] end,
              true = anew:lanes(A, B, fun() ->
                                              cluster:call(Breaks, erlang, disconnect_node,
                                                           [cluster:node_of(Other)])
                                      end),
              cluster:await_up(A, B),
              ?assertEqual(length(Rest) + 1, rows(C)),
              ok = cluster:call(B, trunkline_inbox, close, [Inbox]),
              [gets_known(A, I) || I <- Rest],
              [await_rows(N, length(Rest)) || N <- [A, C]],
              Rest
      end, Inboxes, lists:seq(1, 10)),
    %% Without a connection there is nothing.
    true = cluster:call(A, erlang, disconnect_node, [cluster:node_of(B)]),
    await_nothing(A),
    cluster:stop_all(Nodes).

%% Inboxes come and go, all nodes send to all of them, connections break, and the process is
%% killed, all at the same time. Then each node knows those that are there, and no others.
at_once(_) ->
    {[A, C, B] = Nodes, Inboxes} = three(200),
    Send = [cluster:call(N, fun() -> spawn(fun() -> endless(Inboxes) end) end) || N <- [A, C]],
    {Gone, Stay} = lists:split(150, Inboxes),
    lists:foreach(
      fun({Round, Some}) ->
              [ok = cluster:call(B, trunkline_inbox, close, [I]) || I <- Some],
              case Round rem 3 of
                  %% (They may not be connected again since the last time.)
                  0 -> cluster:call(A, erlang, disconnect_node, [cluster:node_of(B)]);
                  1 -> kill_process(C);
                  2 -> kill_process(B)
              end
      end, [{R, lists:sublist(Gone, R * 15 + 1, 15)} || R <- lists:seq(0, 9)]),
    [cluster:await(fun() -> lists:all(fun(I) -> is_known(N, I) end, Stay) end) || N <- [A, C]],
    [await_rows(N, 50) || N <- [A, C]],
    [true = cluster:call(N, erlang, exit, [P, kill]) || {N, P} <- lists:zip([A, C], Send)],
    [ok = cluster:call(B, trunkline_inbox, close, [I]) || I <- Stay],
    [await_rows(N, 0) || N <- [A, C]],
    cluster:stop_all(Nodes).

endless(Inboxes) ->
    [trunkline:send(I, x, [nosuspend]) || I <- Inboxes],
    receive after 1 -> endless(Inboxes) end.

%% --- the first messages --------------------------------------------------------------------

%% A node sends for the first time to an inbox that others have filled with `!'. What any node
%% may send to begin with is not dropped. Then it has its share, beyond which it waits.
first_messages(_) ->
    {[A, C, B] = Nodes, []} = three(0),
    {ok, _} = cluster:call(B, mailroom, start, [{local, post}, #{}, #{messages => 640}]),
    To = {post, cluster:node_of(B)},
    Watch = cluster:call(B, mailroom, watch, [post]),
    ok = cluster:call(B, mailroom, hold, [post]),
    ok = cluster:call(C, fun() -> [To ! {from, filled, N, x} || N <- lists:seq(1, 700)], ok end),
    %% All have come, and what holds the server: none of them is dropped later.
    cluster:await(fun() -> case cluster:call(B, trunkline_inbox, info, [post]) of
                               #{queued_messages := 640, dropped := Dropped, passed := Passed}
                                 when Dropped + Passed =:= 61 -> true;
                               Info -> Info
                           end end),
    #{dropped := Before} = cluster:call(B, trunkline_inbox, info, [post]),
    %% The first is among the 64th that a node may send.
    ok = cluster:call(A, fun() -> trunkline:send(To, {from, a, 1, x}), ok end),
    cluster:await(fun() -> is_known(A, To) end),
    ?assertMatch(#{queued_messages := 641, dropped := Before},
                 cluster:call(B, trunkline_inbox, info, [post])),
    %% From now on it waits.
    [Sender] = cluster:call(A, mailroom, senders, [To, [b], 1000, 10]),
    cluster:await(fun() ->
                          cluster:call(A, ?PROCESS, senders,
                                       [cluster:call(B, erlang, whereis, [post])])
                              =:= #{waiting => 1, refused => 0}
                  end),
    ?assertMatch(#{dropped := Before}, cluster:call(B, trunkline_inbox, info, [post])),
    ok = cluster:call(B, mailroom, release, [post]),
    ?assertEqual([1000], cluster:call(A, mailroom, collect, [[Sender], finish])),
    cluster:await(fun() -> case cluster:call(B, mailroom, summary, [post]) of
                               #{a := {1, 1, []}, b := {1000, 1000, []}} -> true;
                               Other -> Other
                           end end),
    {Most, _, _} = cluster:call(B, mailroom, most, [Watch]),
    ct:log("at most ~b", [Most]),
    ?assert(Most =< 640 + 10 + 320 + 3),
    cluster:stop_all(Nodes).

%% Messages to pids and names, casts, multicasts and large messages, each as the first one.
first_of_all_kinds(_) ->
    {A, B} = cluster:pair([]),
    NodeB = cluster:node_of(B),
    Large = binary:copy(<<"x">>, 1_000_000),
    lists:foreach(
      fun(Send) ->
              {ok, Keeper} =
                  cluster:call(B, mailroom, start, [{local, post}, #{list => true}, #{}]),
              await_rows(A, 0),
              ok = cluster:call(A, fun() -> _ = Send(Keeper), ok end),
              cluster:await(fun() -> is_known(A, Keeper) end),
              %% It came as it was sent.
              cluster:await(fun() -> case cluster:call(B, gen_server, call, [post, list]) of
                                         [{a, 1}] -> true;
                                         Other -> Other
                                     end end),
              ok = cluster:call(B, mailroom, kill, [[Keeper]]),
              %% Another connection: the name is not known from before.
              await_rows(A, 0),
              true = anew:connection(A, B),
              cluster:await_up(A, B)
      end, [fun(Keeper) -> trunkline:send(Keeper, {from, a, 1, x}) end,
            fun(_) -> trunkline:send({post, NodeB}, {from, a, 1, x}) end,
            fun(_) -> trunkline:cast({post, NodeB}, {from, a, 1, x}) end,
            fun(Keeper) -> trunkline:multicast([Keeper, self()], {from, a, 1, x}) end,
            fun(_) -> trunkline:multicast([{post, NodeB}, self()], {from, a, 1, x}) end,
            fun(_) -> trunkline:send({post, NodeB}, {from, a, 1, Large}) end,
            fun(Keeper) -> trunkline:multicast([Keeper, self()], {from, a, 1, Large}) end]),
    cluster:stop_all([A, B]).

%% Where senders do not wait, a node that only calls hears of the inbox, and of that it is full.
callers_are_told(_) ->
    {A, B} = cluster:pair([]),
    To = {post, cluster:node_of(B)},
    {ok, _} = cluster:call(B, mailroom, start,
                           [{local, post}, #{}, #{policy => reject, messages => 20}]),
    ok = cluster:call(B, mailroom, hold, [post]),
    ok = cluster:call(B, fun() -> [post ! {from, x, N, y} || N <- lists:seq(1, 40)], ok end),
    cluster:await(fun() -> case cluster:call(B, trunkline_inbox, info, [post]) of
                               #{queued_messages := 20} -> true;
                               Info -> Info
                           end end),
    %% The first one is in, and waits for its turn.
    Caller = cluster:call(A, mailroom, callers,
                          [fun(I) -> trunkline:call(To, {echo, I}, infinity) end, [17]]),
    cluster:await(
      fun() ->
              case cluster:call(
                     A, fun() ->
                                traffic:attempt(fun() -> trunkline:call(To, {echo, x}, 100) end)
                        end) of
                  {exit, {overload, _}} -> true;
                  Other -> Other
              end
      end),
    ok = cluster:call(B, mailroom, release, [post]),
    ?assertEqual([17], cluster:call(A, mailroom, collect, [Caller, finish])),
    cluster:await(
      fun() ->
              cluster:call(
                A,
                fun() -> traffic:attempt(fun() -> trunkline:call(To, {echo, x}, infinity) end) end)
                  =:= {ok, x}
      end),
    cluster:stop_all([A, B]).

%% What a sender that was killed has left behind fills the gate, and no message is in the inbox
%% that could bring credit. Nobody waits, and it is found out nevertheless.
leak_that_is_refused(_) ->
    {A, B} = cluster:pair([]),
    {ok, Keeper} = cluster:call(B, mailroom, start, [{local, post}, #{}, #{messages => 10}]),
    gets_known(A, Keeper),
    await_calm(A),
    ok = cluster:call(A, fun() ->
                                 [Row] = ets:lookup(?TABLE, Keeper),
                                 trunkline_inbox_gate:force(10 * trunkline_gate:charge(x),
                                                            element(4, Row))
                         end),
    nosuspend = cluster:call(A, trunkline, send, [Keeper, x, [nosuspend]]),
    cluster:await(fun() -> cluster:call(A, trunkline, send, [Keeper, x, [nosuspend]]) =:= ok end),
    cluster:stop_all([A, B]).

%% Terms that no release sends change nothing. (Another node may send what it likes, also of inboxes
%% of a third one.)
wrong_terms(_) ->
    {[A, C | _] = Nodes, [Inbox]} = three(1),
    gets_known(A, Inbox),
    Host = cluster:call(C, erlang, whereis, [?PROCESS]),
    ok = cluster:call(
           A, fun() ->
                      Pid = whereis(?PROCESS),
                      Ref = make_ref(),
                      [Pid ! Term
                       || Term <- [{credit, Inbox, {x, 1}, 1, x},
                                   {credit, Inbox, {x, 1}, 1, {x, 1}},
                                   {inboxes, Ref, self(), []},
                                   {inboxes, Ref, Host, x}, {inboxes, Ref, Host, [x | y]},
                                   {inboxes, Ref, Host, [{Host, n, block, {1, 1}, full}]},
                                   {inboxes, Ref, Host, [{Inbox, ended}]},
                                   {introduced, [x | y]}, {visiting, Ref, "x"}]],
                      _ = sys:get_state(Pid),
                      Pid = whereis(?PROCESS),
                      ok
              end),
    true = is_known(A, Inbox),
    cluster:stop_all(Nodes).
