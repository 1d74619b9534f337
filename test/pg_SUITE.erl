%% Messages to groups of pg: who gets them, and which nodes hear of them.
-module(pg_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([members/1, local_members/1, random_member/1, uninterested_nodes/1, order/1, no_scope/1,
         odd_arguments/1]).
-export([join/3, send_members/2, send_members/3, send_local_members/2, send_local_members/3,
         send_random_member/2, send_random_member/3]).

suite() -> [{timetrap, {minutes, 10}}].

all() ->
    [members, local_members, random_member, uninterested_nodes, order, no_scope, odd_arguments].

%% All of them, once for each time that they have joined, in the default scope and in others.
members(_) ->
    Nodes = [A, B, C] = cluster_with([pg, rooms]),
    [two_each(Scope, Nodes) || Scope <- [pg, rooms]],
    Pids = members(rooms, A),
    [Twice | _] = [P || P <- Pids, node(P) =:= cluster:node_of(C)],
    ok = cluster:call(C, pg, join, [rooms, group, Twice]),
    cluster:await(fun() -> length(members(rooms, A)) =:= 7 end),
    ok = cluster:call(A, trunkline_pg, send_members, [group, {from, 1, 1, x}]),
    ok = cluster:call(A, trunkline_pg, send_members, [rooms, group, {from, 1, 1, x}]),
    [await_count(Node, P, 1)
     || Node <- Nodes, P <- members(pg, A), node(P) =:= cluster:node_of(Node)],
    [await_count(Node, P, case P of Twice -> 2; _ -> 1 end)
     || Node <- Nodes, P <- Pids, node(P) =:= cluster:node_of(Node)],
    ok = cluster:call(B, trunkline_pg, send_members, [nobody_is_in_it, x]),
    cluster:stop_all(Nodes).

local_members(_) ->
    Nodes = [A, B, C] = cluster_with([pg, rooms]),
    [two_each(Scope, Nodes) || Scope <- [pg, rooms]],
    ok = cluster:call(A, trunkline_pg, send_local_members, [group, {from, 1, 1, x}]),
    ok = cluster:call(A, trunkline_pg, send_local_members, [rooms, group, {from, 1, 1, x}]),
    %% And what comes after it by the same way comes after it.
    ok = cluster:call(A, trunkline_pg, send_members, [group, {from, 1, 2, x}]),
    ok = cluster:call(A, trunkline_pg, send_members, [rooms, group, {from, 1, 2, x}]),
    [await_count(Node, P, case Node of A -> 2; _ -> 1 end)
     || Scope <- [pg, rooms], Node <- [A, B, C], P <- members(Scope, A),
        node(P) =:= cluster:node_of(Node)],
    cluster:stop_all(Nodes).

%% One message each time, and in the end to everybody.
random_member(_) ->
    Nodes = [A | _] = cluster_with([pg]),
    two_each(pg, Nodes),
    ok =
        cluster:call(A,
                     fun() ->
                             [ok = trunkline_pg:send_random_member(group, {from, 1, N, x})
                              || N <- lists:seq(1, 600)],
                             ok
                     end),
    Counts = fun() ->
                     [cluster:call(Node, traffic, count, [P])
                      || Node <- Nodes, P <- members(pg, A), node(P) =:= cluster:node_of(Node)]
             end,
    cluster:await(fun() -> lists:sum(Counts()) =:= 600 end),
    ct:log("~p", [Counts()]),
    %% Less than 30 of 600 with six members: once in 10^18 times.
    ?assert(lists:min(Counts()) > 30),
    {error, {no_such_group, nobody}} =
        cluster:call(A, trunkline_pg, send_random_member, [nobody, x]),
    {error, {no_such_group, group}} = cluster:call(
                                        A, fun() ->
                                                   {ok, _} = pg:start(empty),
                                                   trunkline_pg:send_random_member(empty, group, x)
                                           end),
    cluster:stop_all(Nodes).

%% A node without members is not troubled.
uninterested_nodes(_) ->
    Nodes = [A, B, C] = cluster_with([pg]),
    [P] = cluster:call(B, ?MODULE, join, [pg, group, 1]),
    cluster:await(fun() -> members(pg, A) =:= [P] end),
    Before = messages(A, C),
    ok =
        cluster:call(A,
                     fun() ->
                             [ok = trunkline_pg:send_members(group, {from, 1, N, x})
                              || N <- lists:seq(1, 100)],
                             ok
                     end),
    await_count(B, P, 100),
    ?assertEqual(Before, messages(A, C)),
    ?assert(messages(A, B) >= 100),
    cluster:stop_all(Nodes).

messages(A, B) ->
    #{lanes := Lanes} = cluster:info(A, B),
    lists:sum([N || #{messages := N} <- Lanes]).

%% Broadcasts and single messages of one sender.
order(_) ->
    Nodes = [A, B, C] = cluster_with([pg]),
    two_each(pg, Nodes),
    Pids = members(pg, A),
    ok = cluster:call(
           A, fun() -> [case N rem 3 of
                            0 -> [trunkline:send(P, {from, 1, N, x}) || P <- Pids];
                            _ ->
                                trunkline_pg:send_members(
                                  group, {from, 1, N, traffic:payload(N rem 5 * 20_000)})
                        end || N <- lists:seq(1, 500)], ok end),
    [begin
         await_count(Node, P, 500),
         ?assertMatch(#{1 := {500, 500, []}}, cluster:call(Node, traffic, summary, [P]))
     end || Node <- [A, B, C], P <- Pids, node(P) =:= cluster:node_of(Node)],
    cluster:stop_all(Nodes).

%% In a scope that does not run nobody is in any group: so pg sees it.
no_scope(_) ->
    A = cluster:start([]),
    [] = cluster:call(A, pg, get_members, [none, group]),
    ok = cluster:call(A, trunkline_pg, send_members, [none, group, x]),
    ok = cluster:call(A, trunkline_pg, send_local_members, [none, group, x]),
    {error, {no_such_group, group}} =
        cluster:call(A, trunkline_pg, send_random_member, [none, group, x]),
    cluster:stop(A).

%% What pg says of the arguments, ours says too.
odd_arguments(_) ->
    [A, B] = cluster:start_all([[], []]),
    cluster:connect(A, B),
    cluster:await_up(A, B),
    Args = fun(_) -> [group, {just, message}] end,
    ArgsOfScope = fun(_) -> [pg, group, {just, message}] end,
    {Differences, N} =
        cluster:call(
          A, fun() ->
                     {_, _} =
                         spawn_monitor(
                           fun() -> {ok, _} = pg:start_link(), receive stop -> ok end end),
                     cluster:await(fun() -> is_pid(whereis(pg)) end),
                     odd:differences(?MODULE, trunkline_pg,
                                     [{F, T}
                                      || F <- [send_members, send_local_members,
                                               send_random_member],
                                         T <- [Args, ArgsOfScope]], pairs)
             end),
    ct:log("~b calls", [N]),
    ?assertEqual([], Differences),
    cluster:stop_all([A, B]).

send_members(Group, Message) -> send_members(pg, Group, Message).
send_members(Scope, Group, Message) -> send_all(pg:get_members(Scope, Group), Message).
send_local_members(Group, Message) -> send_local_members(pg, Group, Message).
send_local_members(Scope, Group, Message) -> send_all(pg:get_local_members(Scope, Group), Message).
send_random_member(Group, Message) -> send_random_member(pg, Group, Message).
send_random_member(Scope, Group, Message) ->
    case pg:get_members(Scope, Group) of
        [] -> {error, {no_such_group, Group}};
        Members -> send_all([hd(Members)], Message)
    end.

send_all(Members, Message) -> lists:foreach(fun(Member) -> Member ! Message end, Members).

%% --- nodes and members ------------------------------------------------------------------

cluster_with(Scopes) ->
    Nodes = cluster:start_all([[], [], []]),
    [begin cluster:connect(X, Y), cluster:await_up(X, Y) end || X <- Nodes, Y <- Nodes, X < Y],
    [ok = cluster:call(Node,
                       fun() ->
                               {_, _} =
                                   spawn_monitor(
                                     fun() ->
                                             {ok, _} = pg:start(Scope),
                                             receive stop -> ok end
                                     end),
                               cluster:await(fun() -> is_pid(whereis(Scope)) end),
                               ok
                       end)
     || Node <- Nodes, Scope <- Scopes],
    Nodes.

%% Two members at each node.
two_each(Scope, Nodes) ->
    [cluster:call(Node, ?MODULE, join, [Scope, group, 2]) || Node <- Nodes],
    [cluster:await(fun() -> length(members(Scope, Node)) =:= 6 end) || Node <- Nodes].

join(Scope, Group, N) ->
    Pids = traffic:start_watchers(N),
    ok = pg:join(Scope, Group, Pids),
    Pids.

members(Scope, Node) -> cluster:call(Node, pg, get_members, [Scope, group]).

await_count(Node, Pid, N) ->
    cluster:await(fun() ->
                          case cluster:call(Node, traffic, count, [Pid]) of
                              N -> true;
                              Other -> {Pid, N, Other}
                          end
                  end).
