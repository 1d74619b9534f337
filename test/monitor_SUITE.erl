%% Monitors by lane do what erlang:monitor does, come in order with messages, and are not
%% forgotten, whoever is killed.
-module(monitor_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([as_erlang/1, as_erlang_without_trunkline/1, order/1, order_with_large/1, large_reason/1,
         overseer_killed/1, killed/1, disconnected/1, stopped_and_continued/1, new_incarnation/1,
         application_stops/1, start_fails/1, supervisor_killed/1, caller_dies/1,
         demonitored_while_ending/1, session_ends_while_monitoring/1, nothing_left_behind/1,
         many_servers/1, one_server/1, stopped_host/1, set_at_nodeup/1, ends_at_nodeup/1,
         held_by_lanes/1, set_before_link_notices/1, demonitored_when_gone/1, no_process_left/1,
         killed_while_moving/1, demonitored_while_moving/1, stopped_at_both/1,
         plain_and_overseer_killed/1, known_for_long/1, taken_before/1, killed_when_missing/1]).
-export([known/1, taken/1, missing/1]).
-export([monitor_often/2, heard/1, kill_when/2, take_back_at_session/3, of_sessions/0]).
-export([table/2, watcher/3, sender/2, set/2, held/1, take_back/2, ended/1, race/2, at_nodeup/2,
         answering/0, set_and_see/2, says_and_ends/2, hears/1, gone/4, obeys/1,
         ask/2]).

-define(DEADLINE, 60_000).
%% Monitors that are moved for some time.
-define(MANY, 20_000).

suite() -> [{timetrap, {minutes, 15}}].

all() -> [as_erlang, as_erlang_without_trunkline, order, order_with_large, large_reason,
          overseer_killed, killed, disconnected, stopped_and_continued, new_incarnation,
          application_stops, start_fails, supervisor_killed, caller_dies, demonitored_while_ending,
          session_ends_while_monitoring, nothing_left_behind, many_servers, one_server,
          stopped_host, set_at_nodeup, ends_at_nodeup, held_by_lanes,
          set_before_link_notices, demonitored_when_gone, no_process_left, killed_while_moving,
          demonitored_while_moving, stopped_at_both, plain_and_overseer_killed, known_for_long,
          taken_before, killed_when_missing].

%% --- what OTP documents ---------------------------------------------------------------

as_erlang(_) -> comparison:as_erlang(?MODULE).

as_erlang_without_trunkline(_) -> comparison:as_erlang_without_trunkline(?MODULE).

%% Runs at the node.
table(M, Node) -> comparison:results(M, Node, cases(), local_cases()).

cases() ->
    [{{ended_with, Reason},
      fun(M, Node) ->
              P = waiting(Node),
              R = M:monitor(process, P),
              M:send(P, {exit, Reason}),
              down(R, P)
      end}
     || Reason <- [normal, shutdown, {shutdown, x}, {some, "reason"}, #{a => 1}]] ++
    [{{killed_with, Reason},
      fun(M, Node) ->
              P = waiting(Node),
              R = M:monitor(process, P),
              is_there(M, P),
              exit(P, Reason),
              down(R, P)
      end}
     || Reason <- [kill, {some, reason}]] ++
    [{dead, fun(M, Node) -> P = dead(Node), R = M:monitor(process, P), down(R, P) end},
     {name,
      fun(M, Node) ->
              P = named(Node),
              Object = {test_name, Node},
              R = M:monitor(process, Object),
              M:send(P, {exit, x}),
              down(R, Object)
      end},
     {no_name,
      fun(M, Node) ->
              Object = {nobody_has_this, Node},
              R = M:monitor(process, Object),
              down(R, Object)
      end},
     {name_and_pid,
      fun(M, Node) ->
              P = named(Node),
              Object = {test_name, Node},
              [R1, R2] = [M:monitor(process, O) || O <- [P, Object]],
              M:send(P, {exit, x}),
              {down(R1, P), down(R2, Object)}
      end},
     {name_given_away,
      fun(M, Node) ->
              P = named(Node),
              Object = {test_name, Node},
              R = M:monitor(process, Object),
              true = M:demonitor(M:monitor(process, Object)),
              is_there(M, P),
              true = erpc:call(Node, erlang, unregister, [test_name]),
              Q = named(Node),
              Other = erlang:monitor(process, Q),
              _ = M:send(Q, {exit, other}),
              receive {'DOWN', Other, process, Q, _} -> ok end,         % and nobody has the name
              None = none(),
              M:send(P, {exit, x}),
              {None, down(R, Object)}
      end},
     {twice,
      fun(M, Node) ->
              P = waiting(Node),
              [R1, R2] = [M:monitor(process, P) || _ <- [1, 2]],
              M:send(P, {exit, x}),
              {down(R1, P), down(R2, P), none()}
      end},
     {twice_demonitored_once,
      fun(M, Node) ->
              P = waiting(Node),
              [R1, R2] = [M:monitor(process, P) || _ <- [1, 2]],
              X = M:demonitor(R1),
              M:send(P, {exit, x}),
              {X, down(R2, P), none()}
      end},
     {demonitored,
      fun(M, Node) ->
              P = waiting(Node),
              R = M:monitor(process, P),
              X = M:demonitor(R),
              M:send(P, {exit, x}),
              {X, none()}
      end},
     {demonitored_twice,
      fun(M, Node) ->
              P = waiting(Node),
              R = M:monitor(process, P),
              [M:demonitor(R) || _ <- [1, 2]]
      end}] ++
    [{{demonitored, Options},
      fun(M, Node) ->
              P = waiting(Node),
              R = M:monitor(process, P),
              X = M:demonitor(R, Options),
              M:send(P, {exit, x}),
              {X, none()}
      end}
     || Options <- option_lists()] ++
    [{{demonitored_after, Options},
      fun(M, Node) ->
              P = waiting(Node),
              R = M:monitor(process, P),
              M:send(P, {exit, x}),
              here(R),
              {M:demonitor(R, Options), here_now(R), M:demonitor(R, Options)}
      end}
     || Options <- option_lists()] ++
    [{{demonitored_when_received, Options},
      fun(M, Node) ->
              P = waiting(Node),
              R = M:monitor(process, P),
              M:send(P, {exit, x}),
              {down(R, P), M:demonitor(R, Options)}
      end}
     || Options <- option_lists()] ++
    [{{bad_option, Options},
      fun(M, Node) ->
              P = waiting(Node),
              R = M:monitor(process, P),
              X = error_of(fun() -> M:demonitor(R, Options) end),
              M:send(P, {exit, x}),
              {X, down(R, P)}
      end}
     || Options <- [[x], x, [flush | info], [flush, x]]] ++
    [{{somebody_else, Options},
      fun(M, Node) ->
              P = waiting(Node),
              R = M:monitor(process, P),
              Demonitor = fun() -> M:demonitor(R, Options) end,
              _ = comparison:in_process(fun() -> error_of(Demonitor) end),
              M:send(P, {exit, x}),
              down(R, P)
      end} || Options <- option_lists()].

option_lists() -> [[], [flush], [info], [flush, info], [info, flush, flush]].

local_cases() ->
    [{{bad, N}, fun(M) -> error_of(fun() -> M:monitor(process, Item) end) end}
     || {N, Item} <- lists:enumerate([1, "x", {a, b, c}, {1, node()}, {a, 1}, make_ref(), <<>>])] ++
    [{{bad_type, Type}, fun(M) -> error_of(fun() -> M:monitor(Type, self()) end) end}
     || Type <- [x, 1]] ++
    [{{bad_ref, Ref}, fun(M) -> error_of(fun() -> M:demonitor(Ref) end) end}
     || Ref <- [x, 1, {}]] ++
    [{{unknown_ref, Options}, fun(M) -> M:demonitor(make_ref(), Options) end}
     || Options <- option_lists()] ++
    [{self,
      fun(M) -> R = M:monitor(process, self()), {is_reference(R), M:demonitor(R, [info])} end},
     {name,
      fun(M) ->
              P = named(node()),
              R = M:monitor(process, test_name),
              M:send(P, {exit, x}),
              down(R, {test_name, node()})
      end},
     {no_name,
      fun(M) -> R = M:monitor(process, nobody_has_this), down(R, {nobody_has_this, node()}) end},
     {erlangs_own,
      fun(M) ->
              P = waiting(node()),
              R = erlang:monitor(process, P),
              X = M:demonitor(R, [info]),
              M:send(P, {exit, x}),
              {X, none()}
      end},
     {port,
      fun(M) ->
              Port = open_port({spawn, "cat"}, []),
              R = M:monitor(port, Port),
              port_close(Port),
              receive {'DOWN', R, port, Port, Why} -> Why end
      end},
     {time_offset,
      fun(M) -> R = M:monitor(time_offset, clock_service), M:demonitor(R, [info]) end}].

error_of(Fun) ->
    try {ok, Fun()}
    catch Class:Reason -> {Class, Reason}
    end.

waiting(Node) -> spawn(Node, ?MODULE, ended, [none]).

ended(Name) ->
    is_atom(Name) andalso Name =/= none andalso register(Name, self()),
    receive
        {exit, Reason} -> exit(Reason);
        {is_there, From} -> From ! {self(), yes}, ended(none)
    end.

named(Node) ->
    P = spawn(Node, ?MODULE, ended, [test_name]),
    is_there(erlang, P).

%% It has got what was sent before in the same way.
is_there(M, P) ->
    M:send(P, {is_there, self()}),
    receive {P, yes} -> P end.

dead(Node) ->
    P = waiting(Node),
    R = erlang:monitor(process, P),
    P ! {exit, x},
    receive {'DOWN', R, process, P, _} -> P end.

down(Ref, Object) ->
    receive {'DOWN', Ref, Type, Item, Reason} -> {Type, Item =:= Object, Reason}
    after ?DEADLINE -> no_down
    end.

here(Ref) -> cluster:await(fun() -> here_now(Ref) end).

here_now(Ref) ->
    {messages, Messages} = process_info(self(), messages),
    lists:keymember(Ref, 2, Messages).

none() -> receive Message -> {got, Message} after 50 -> none end.

%% --- order -----------------------------------------------------------------------------

%% The last message is the DOWN, whatever the receiver's mailbox is.
order(_) ->
    {A, B} = cluster:pair([]),
    [?assertEqual({down, Sizes}, ordered(A, B, Flags, Sizes))
     || Flags <- [on_heap, off_heap], _ <- lists:seq(1, 5),
        Sizes <- [lists:duplicate(10_000, 3), [3], []]],
    cluster:stop_all([A, B]).

order_with_large(_) ->
    {A, B} = cluster:pair([]),
    Mixed = lists:append([[1, 200, 80_000, 5, 5] || _ <- lists:seq(1, 40)]),
    [?assertEqual({down, Sizes}, ordered(A, B, Flags, Sizes))
     || Flags <- [on_heap, off_heap], _ <- lists:seq(1, 3),
        Sizes <- [Mixed, Mixed ++ [3_000_000], [5_000_000, 1]]],
    cluster:stop_all([A, B]).

%% Eight pairs at a time.
ordered(A, B, Flags, Sizes) ->
    NodeB = cluster:node_of(B),
    Answers = cluster:call(
                A, fun() ->
                           Watchers = [spawn_monitor(?MODULE, watcher, [NodeB, Flags, Sizes])
                                       || _ <- lists:seq(1, 8)],
                           [receive {'DOWN', R, process, P, Answer} -> Answer end
                            || {P, R} <- Watchers]
                   end),
    [Answer] = lists:usort(Answers),
    Answer.

watcher(Node, Flags, Sizes) ->
    process_flag(message_queue_data, Flags),
    Sender = spawn(Node, ?MODULE, sender, [self(), Sizes]),
    Ref = trunkline:monitor(process, Sender),
    trunkline:send(Sender, go),
    exit({down, all(Ref, Sizes)}).

all(Ref, Sizes) ->
    Got = receive_all(Ref, []),
    case [byte_size(Payload) || {_, Payload} <- Got] of
        Sizes -> Sizes;
        Other -> {length(Other), 'of', length(Sizes)}
    end.

%% Up to the DOWN.
receive_all(Ref, Got) ->
    receive
        {'DOWN', Ref, process, _, ended} -> lists:reverse(Got);
        {'DOWN', _, _, _, _} = Other -> exit({unexpected, Other});
        Message -> receive_all(Ref, [Message | Got])
    end.

sender(To, Sizes) ->
    receive go -> ok end,
    lists:foreach(fun({N, Size}) -> trunkline:send(To, {N, binary:copy(<<N:8>>, Size)}) end,
                  lists:enumerate(Sizes)),
    exit(ended).

%% A reason may be as large as a message.
large_reason(_) ->
    {A, B} = cluster:pair([]),
    Reason = {stopped, binary:copy(<<"x">>, 2_000_000)},
    lists:foreach(
      fun(_) ->
              Hash = erlang:phash2(Reason),
              Got = cluster:call(
                      A, fun() ->
                                 P = waiting(cluster:node_of(B)),
                                 R1 = trunkline:monitor(P),
                                 R2 = trunkline:monitor(P),
                                 trunkline:send(P, {exit, Reason}),
                                 [receive {'DOWN', R, process, P, Why} -> erlang:phash2(Why) end
                                  || R <- [R1, R2]]
                         end),
              ?assertEqual([Hash, Hash], Got)
      end, lists:seq(1, 5)),
    nothing_left(A, B),
    cluster:stop_all([A, B]).

%% At nodeup, before there are lanes, of a process that answers later, by lane, and ends then.
%% Whether the nodes have had lanes before or not.
set_at_nodeup(_) ->
    [A, B] = cluster:start_all([[], []]),
    NodeB = cluster:node_of(B),
    lists:foreach(
      fun(Round) ->
              Watchers =
                  cluster:call(A,
                               fun() ->
                                       [spawn(?MODULE, at_nodeup, [NodeB, self()])
                                        || _ <- lists:seq(1, 4)]
                               end),
              cluster:call(B, fun() -> register(answering, spawn(?MODULE, answering, [])) end),
              cluster:connect(A, B),
              Got = [cluster:call(A, ?MODULE, held, [W]) || W <- Watchers],
              ?assertEqual({Round, [[{1000, answered} || _ <- lists:seq(1, 3)] || _ <- Watchers]},
                           {Round, Got}),
              cluster:await_up(A, B),
              nothing_left(A, B),
              true = cluster:call(A, erlang, disconnect_node, [NodeB]),
              [cluster:await_state(X, Y, down) || {X, Y} <- [{A, B}, {B, A}]]
      end, [1, 2, 3]),
    cluster:stop_all([A, B]).

%% How many messages came before each 'DOWN' of that process, and why it came.
at_nodeup(Node, _) ->
    ok = net_kernel:monitor_nodes(true),
    receive {nodeup, Node} -> ok end,
    Name = {answering, Node},
    Ref = trunkline:monitor(Name),
    trunkline:send(Name, {to, self()}),
    Pid = receive {answering, P} -> P end,
    Refs = [trunkline:monitor(Pid), trunkline:monitor(Name), Ref],
    trunkline:send(Pid, go),
    Got = count_down(Refs, 0),
    receive {report, From} -> From ! {self(), Got} end.

count_down([], _) ->
    [];
count_down(Refs, N) ->
    receive
        {number, _} -> count_down(Refs, N + 1);
        {'DOWN', Ref, process, _, Reason} ->
            true = lists:member(Ref, Refs),
            [{N, Reason} | count_down(lists:delete(Ref, Refs), N)]
    end.

answering() ->
    Tos = [receive {to, Pid} -> Pid end || _ <- [1, 2, 3, 4]],
    [To ! {answering, self()} || To <- Tos],
    [receive go -> ok end || _ <- Tos],
    receive after 300 -> ok end,
    [trunkline:send(To, {number, N}) || N <- lists:seq(1, 1000), To <- Tos],
    exit(answered).

%% It ends at any time while the lanes come up, and why is known.
ends_at_nodeup(_) ->
    {A, B} = cluster:pair([]),
    NodeB = cluster:node_of(B),
    lists:foreach(
      fun(Round) ->
              true = cluster:call(A, erlang, disconnect_node, [NodeB]),
              [cluster:await_state(X, Y, down) || {X, Y} <- [{A, B}, {B, A}]],
              Ps = servers(B, 50),
              cluster:call(B,
                           fun() ->
                                   spawn(fun() ->
                                                 net_kernel:monitor_nodes(true),
                                                 receive {nodeup, _} -> ok end,
                                                 [begin
                                                      receive after 1 -> P ! {exit, Round} end
                                                  end || P <- lists:droplast(Ps)],
                                                 Last = lists:last(Ps),
                                                 Watched = fun() ->
                                                                   process_info(Last, monitored_by)
                                                                       =/= {monitored_by, []}
                                                           end,
                                                 cluster:await(Watched),
                                                 Last ! {exit, Round}
                                         end)
                           end),
              Holder = cluster:call(A, ?MODULE, set, [Ps, under_way]),
              cluster:await(
                fun() ->
                        lists:all(fun(Why) -> Why =:= Round orelse Why =:= noproc end,
                                  cluster:call(A, ?MODULE, held, [Holder]))
                end),
              %% The first may have ended before they were monitored.
              ?assertEqual(Round, lists:last(cluster:call(A, ?MODULE, held, [Holder]))),
              cluster:await_up(A, B),
              nothing_left(A, B)
      end, lists:seq(1, 10)),
    cluster:stop_all([A, B]).

%% A host that does not answer, with and without a connection: to monitor takes no time.
stopped_host(_) ->
    {A, B} = cluster:pair([]),
    NodeB = cluster:node_of(B),
    Ps = servers(B, 20),
    Objects = Ps ++ [{somebody, NodeB}],
    cluster:suspend(B),
    Connected = cluster:call(A, ?MODULE, set, [Objects, under_way]),
    true = cluster:call(A, erlang, disconnect_node, [NodeB]),
    cluster:await_state(A, B, down),
    await_held(A, Connected, [noconnection || _ <- Objects]),
    {Times, Holders} =
        lists:unzip([timer:tc(fun() -> cluster:call(A, ?MODULE, set, [Objects, under_way]) end)
                     || _ <- lists:seq(1, 3)]),
    %% (An attempt to connect takes 7 s.)
    ?assert(lists:nth(2, lists:sort(Times)) < 3_500_000),
    [await_held(A, H, [noconnection || _ <- Objects]) || H <- Holders],
    cluster:continue(B),
    cluster:stop_all([A, B]).

%% --- what is held at the nodes ------------------------------------------------------------

%% A process at this node that has monitored these, and reports what it gets: the reasons in
%% the order of the processes, `none' of those that live. `there': the last one lives, and all has
%% arrived there.
set(Pids, How) ->
    Self = self(),
    Pid = spawn(fun() ->
                        Refs = [trunkline:monitor(P) || P <- Pids],
                        How =:= there andalso is_there(trunkline, lists:last(Pids)),
                        Self ! {self(), set},
                        hold(Refs, #{})
                end),
    receive {Pid, set} -> Pid end.

hold(Refs, Got) ->
    receive
        {'DOWN', Ref, process, _, Reason} ->
            hold(Refs, maps:update_with(Ref, fun(Rs) -> [Reason | Rs] end, [Reason], Got));
        {report, From} ->
            From ! {self(),
                    [case Got of #{R := [One]} -> One; #{R := More} -> {more, More}; #{} -> none end
                     || R <- Refs]},
            hold(Refs, Got);
        {take_back, From, N} ->
            From ! {self(), trunkline:demonitor(lists:nth(N, Refs), [info])},
            hold(Refs, Got)
    end.

held(Holder) ->
    Holder ! {report, self()},
    receive {Holder, Reasons} -> Reasons end.

servers(At, N) ->
    cluster:call(At, fun() -> [spawn(?MODULE, ended, [none]) || _ <- lists:seq(1, N)] end).

await_held(At, Holder, Expected) ->
    cluster:await(fun() -> case cluster:call(At, ?MODULE, held, [Holder]) of
                               Expected -> true;
                               Other -> {lists:zip(lists:seq(1, length(Other)), Other), Expected}
                           end end).

finish(At, Pids, Reason) ->
    cluster:call(At, fun() -> lists:foreach(fun(P) -> P ! {exit, Reason} end, Pids) end).

%% No rows but of those that are watched, and no monitors: neither by the overseer nor by an agent.
nothing_left(A, B) ->
    cluster:await(fun() ->
                          case {rows(A), monitored(B, A), watched(A)} of
                              {0, 0, 0} -> true;
                              Left -> {rows_and_monitored, Left}
                          end
                  end, ?DEADLINE).

%% What is monitored at A by OTP's means.
watched(At) ->
    cluster:call(
      At, fun() ->
                  Watchers =
                      [W || {{node, _}, W} <- ets:tab2list(trunkline_monitors_watched)],
                  lists:sum([length(Ms)
                             || {monitors, Ms} <- [process_info(W, monitors) || W <- Watchers]])
          end).

rows(At) ->
    cluster:call(At, ets, info, [trunkline_monitors, size]).

%% What A's agents at B monitor, and have rows of.
monitored(B, A) ->
    NodeA = cluster:node_of(A),
    cluster:call(
      B, fun() ->
                 lists:sum([length(Ms) || Inlet <- cluster:find(inlets, NodeA),
                                          {monitors, Ms} <- [process_info(Inlet, monitors)]])
                     + lists:sum([Size || T <- ets:all(), ets:info(T, name) =:= trunkline_monitored,
                                          Size <- [ets:info(T, size)], is_integer(Size)])
         end).

kill(At, Fun) ->
    cluster:call(At, fun() ->
                             Pid = Fun(),
                             ok = trunkline_process:kill(Pid),
                             Pid
                     end).

%% --- faults ----------------------------------------------------------------------------------

%% Another one goes on, and has forgotten nothing: neither servers that end, nor callers, nor a
%% session.
overseer_killed(_) ->
    {A, B} = cluster:pair([]),
    Overseer = fun() -> whereis(trunkline_monitors) end,
    KillOverseer = fun() ->
                           Old = kill(A, Overseer),
                           cluster:await(fun() ->
                                                 New = cluster:call(A, Overseer),
                                                 is_pid(New) andalso New =/= Old
                                         end)
                   end,
    Ps = [P1, P2, P3, P4] = servers(B, 4),
    Holder = cluster:call(A, ?MODULE, set, [Ps, there]),
    KillOverseer(),
    finish(B, [P1], one),
    await_held(A, Holder, [one, none, none, none]),
    %% There is none.
    ok = cluster:call(A, supervisor, terminate_child, [trunkline_sup, trunkline_monitors]),
    finish(B, [P2], two),
    await_held(A, Holder, [one, two, none, none]),
    {ok, _} = cluster:call(A, supervisor, restart_child, [trunkline_sup, trunkline_monitors]),
    %% A caller that dies meanwhile leaves nothing.
    Other = cluster:call(A, ?MODULE, set, [[P3, P4], there]),
    ok = cluster:call(A, supervisor, terminate_child, [trunkline_sup, trunkline_monitors]),
    _ = kill(A, fun() -> Other end),
    {ok, _} = cluster:call(A, supervisor, restart_child, [trunkline_sup, trunkline_monitors]),
    cluster:await(fun() -> rows(A) =:= 2 end),
    %% Nor is a session forgotten.
    ok = cluster:call(A, supervisor, terminate_child, [trunkline_sup, trunkline_monitors]),
    _ = cluster:call(A, erlang, disconnect_node, [cluster:node_of(B)]),
    cluster:await_state(A, B, down),
    {ok, _} = cluster:call(A, supervisor, restart_child, [trunkline_sup, trunkline_monitors]),
    await_held(A, Holder, [one, two, noconnection, noconnection]),
    cluster:connect(A, B),
    cluster:await_up(A, B),
    %% Whoever monitors while there is none waits for one.
    ok = cluster:call(A, supervisor, terminate_child, [trunkline_sup, trunkline_monitors]),
    [P5] = servers(B, 1),
    cluster:call(A,
                 fun() -> spawn(fun() -> register(late, self()), exit(set([P5], there)) end) end),
    cluster:await(fun() -> is_pid(cluster:call(A, erlang, whereis, [late])) end),
    {ok, _} = cluster:call(A, supervisor, restart_child, [trunkline_sup, trunkline_monitors]),
    cluster:await(fun() -> rows(A) =:= 1 end),
    finish(B, [P5], five),
    nothing_left(A, B),
    cluster:stop_all([A, B]).

%% Whatever is killed at either node, the processes live and are monitored still: each monitor
%% brings one message, with how its process has ended.
killed(_) ->
    {A, B} = cluster:pair([{lanes, 2}]),
    lists:foreach(
      fun({Victim, At, Other}) ->
              Ps = servers(B, 20),
              Holder = cluster:call(A, ?MODULE, set, [Ps, there]),
              Node = cluster:node_of(Other),
              Find = fun() -> lists:last(cluster:find(Victim, Node)) end,
              anew:lanes(A, B, fun() -> kill(At, Find) end),
              Again = cluster:call(A, ?MODULE, set, [Ps, there]),
              [?assertEqual([none || _ <- Ps], cluster:call(A, ?MODULE, held, [H]))
               || H <- [Holder, Again]],
              finish(B, Ps, Victim),
              [await_held(A, H, [Victim || _ <- Ps]) || H <- [Holder, Again]],
              nothing_left(A, B)
      end, [{V, At, Other} || V <- [lanes, inlets, link], {At, Other} <- [{A, B}, {B, A}]]),
    cluster:stop_all([A, B]).

disconnected(_) ->
    {A, B} = cluster:pair([]),
    Ps = servers(B, 10),
    lists:foreach(fun(At) ->
                          Holder = cluster:call(A, ?MODULE, set, [Ps, there]),
                          [Other] = [A, B] -- [At],
                          true =
                              cluster:call(At, erlang, disconnect_node, [cluster:node_of(Other)]),
                          await_held(A, Holder, [noconnection || _ <- Ps]),
                          cluster:await_state(A, B, down),
                          %% Which makes a connection.
                          [P | _] = Ps,
                          Next = cluster:call(A, ?MODULE, set, [[P], there]),
                          cluster:await_up(A, B),
                          await_held(A, Next, [none]),
                          await_held(A, Holder, [noconnection || _ <- Ps]),
                          cluster:call(A, erlang, exit, [Next, kill]),
                          nothing_left(A, B)
                  end, [A, B, A, B]),
    cluster:kill(B),
    cluster:await_state(A, B, down),
    [P | _] = Ps,
    await_held(A, cluster:call(A, ?MODULE, set, [[P], under_way]), [noconnection]),
    cluster:stop_all([A, B]).

stopped_and_continued(_) ->
    {A, B} = cluster:pair([]),
    Ps = [P | _] = servers(B, 10),
    Holder = cluster:call(A, ?MODULE, set, [Ps, there]),
    lists:foreach(fun(Node) ->
                          cluster:suspend(Node),
                          receive after 300 -> ok end,      % of standing still
                          cluster:continue(Node)
                  end, [A, B, B]),
    cluster:suspend(B),
    Late = cluster:call(A, ?MODULE, set, [Ps, under_way]),
    cluster:continue(B),
    %% Whoever is monitored later than he ends has another reason.
    cluster:await(
      fun() ->
              case cluster:call(B,
                                fun() ->
                                        [length(By)
                                         || Q <- Ps,
                                            {monitored_by, By} <- [process_info(Q, monitored_by)]]
                                end) of
                  [2, 2, 2, 2, 2, 2, 2, 2, 2, 2] -> true;
                  Other -> Other
              end end),
    finish(B, [P], first),
    [await_held(A, H, [first | [none || _ <- tl(Ps)]]) || H <- [Holder, Late]],
    finish(B, tl(Ps), rest),
    [await_held(A, H, [first | [rest || _ <- tl(Ps)]]) || H <- [Holder, Late]],
    nothing_left(A, B),
    cluster:stop_all([A, B]).

%% The node comes back under its name, and knows nothing of what was before.
new_incarnation(_) ->
    Name = peer:random_name("trunkline_again"),
    A = cluster:start([]),
    lists:foreach(
      fun(_) ->
              B = cluster:start([], Name),
              cluster:connect(A, B),
              cluster:await_up(A, B),
              [P] = servers(B, 1),
              true = cluster:call(B, erlang, register, [target, P]),
              Objects = [{target, cluster:node_of(B)}, P],
              Holder = cluster:call(A, ?MODULE, set, [Objects, there]),
              cluster:suspend(B),
              %% These are under way, or will never be.
              More = [cluster:call(A, ?MODULE, set, [Objects, under_way]) || _ <- lists:seq(1, 10)],
              cluster:kill(B),
              cluster:await_state(A, B, down),
              B2 = cluster:start([], Name),
              [P2] = servers(B2, 1),
              true = cluster:call(B2, erlang, register, [target, P2]),
              cluster:connect(A, B2),
              cluster:await_up(A, B2),
              [await_held(A, H, [noconnection, noconnection]) || H <- [Holder | More]],
              New = cluster:call(A, ?MODULE, set, [Objects, under_way]),
              await_held(A, New, [none, noproc]),
              finish(B2, [P2], x),
              await_held(A, New, [x, noproc]),
              [await_held(A, H, [noconnection, noconnection]) || H <- [Holder | More]],
              nothing_left(A, B2),
              cluster:stop_all([B, B2]),
              %% Its next connection must not be taken for this one.
              cluster:await_state(A, B2, down)
      end, lists:seq(1, 3)),
    cluster:stop(A).

%% Trunkline stops and starts at either node: nothing has happened to the processes. Those that end
%% meanwhile are told of, those that are not wanted any more are not.
application_stops(_) ->
    {A, B} = cluster:pair([]),
    lists:foreach(fun(At) ->
                          Ps = [P1, P2 | _] = servers(B, 10),
                          Holder = cluster:call(A, ?MODULE, set, [Ps, there]),
                          Other = cluster:call(A, ?MODULE, set, [Ps, there]),
                          ok = cluster:call(At, cluster, stop_trunkline, []),
                          Next = cluster:call(A, ?MODULE, set, [Ps, there]),
                          [?assertEqual([none || _ <- Ps], cluster:call(A, ?MODULE, held, [H]))
                           || H <- [Holder, Next]],
                          finish(B, [P1], meanwhile),
                          [await_held(A, H, [meanwhile | [none || _ <- tl(Ps)]])
                           || H <- [Holder, Next]],
                          true = cluster:call(A, ?MODULE, take_back, [Holder, 2]),
                          finish(B, [P2], unheard),
                          ?assertEqual(none,
                                       lists:nth(2, cluster:call(A, ?MODULE, held, [Holder]))),
                          cluster:call(A, erlang, exit, [Other, kill]),
                          ok = cluster:call(At, cluster, start_trunkline, [[]]),
                          cluster:await_up(A, B),
                          Rest = tl(tl(Ps)),
                          [?assertEqual([meanwhile, Second | [none || _ <- Rest]],
                                        cluster:call(A, ?MODULE, held, [H]))
                           || {H, Second} <- [{Holder, none}, {Next, unheard}]],
                          finish(B, Rest, over),
                          [await_held(A, H, [meanwhile, Second | [over || _ <- Rest]])
                           || {H, Second} <- [{Holder, none}, {Next, unheard}]],
                          nothing_left(A, B)
                  end, [B, A, B, A]),
    cluster:stop_all([A, B]).

take_back(Holder, N) ->
    Holder ! {take_back, self(), N},
    receive {Holder, Result} -> Result end.

%% After a stop the application cannot start again at first.
start_fails(_) ->
    {A, B} = cluster:pair([]),
    [P | Ps] = servers(B, 2),
    Holder = cluster:call(A, ?MODULE, set, [[P | Ps], there]),
    ok = cluster:call(A, cluster, stop_trunkline, []),
    cluster:call(A, logger, set_primary_config, [level, none]),
    ?assertMatch({error, {{shutdown, {failed_to_start_child, _, _}}, _}},
                 cluster:call(A, fun() -> true = register(trunkline_links, self()),
                                          application:start(trunkline)
                                 end)),
    ?assertEqual(2, rows(A)),
    finish(B, [P], meanwhile),
    await_held(A, Holder, [meanwhile, none]),
    ok = cluster:call(A, cluster, start_trunkline, [[]]),
    cluster:await_up(A, B),
    finish(B, Ps, over),
    await_held(A, Holder, [meanwhile, over]),
    nothing_left(A, B),
    cluster:stop_all([A, B]).

supervisor_killed(_) ->
    {A, B} = cluster:pair([]),
    lists:foreach(
      fun(At) ->
              Ps = servers(B, 10),
              Holder = cluster:call(A, ?MODULE, set, [Ps, there]),
              cluster:call(At, logger, set_primary_config, [level, none]),
              _ = kill(At, fun() -> whereis(trunkline_sup) end),
              cluster:await(
                fun() ->
                        not lists:keymember(trunkline, 1,
                                            cluster:call(At, application, which_applications,
                                                         [?DEADLINE]))
                end),
              %% Nor do those live who end on their own.
              cluster:await(fun() -> case [Name || Name <- cluster:call(At, erlang, registered, []),
                                                   lists:prefix("trunkline", atom_to_list(Name))] of
                                         [] -> true;
                                         Names -> Names
                                     end end),
              ?assertEqual([none || _ <- Ps], cluster:call(A, ?MODULE, held, [Holder])),
              finish(B, [hd(Ps)], meanwhile),
              await_held(A, Holder, [meanwhile | [none || _ <- tl(Ps)]]),
              ok = cluster:call(At, cluster, start_trunkline, [[]]),
              cluster:await_up(A, B),
              finish(B, tl(Ps), over),
              await_held(A, Holder, [meanwhile | [over || _ <- tl(Ps)]]),
              nothing_left(A, B)
      end, [A, B]),
    cluster:stop_all([A, B]).

%% --- nothing stays behind ------------------------------------------------------------------------

caller_dies(_) ->
    {A, B} = cluster:pair([]),
    Ps = servers(B, 50),
    lists:foreach(fun(_) ->
                          Holders =
                              [cluster:call(A, ?MODULE, set, [Ps, there]) || _ <- lists:seq(1, 5)],
                          ?assertEqual(250, rows(A)),
                          cluster:await(fun() -> monitored(B, A) > 0 end),
                          cluster:call(A, fun() -> [exit(H, kill) || H <- Holders] end),
                          nothing_left(A, B)
                  end, [1, 2]),
    %% In the middle of it.
    [cluster:call(A, fun() ->
                             Pid = spawn(fun() -> set_and_see(Ps, forever) end),
                             receive after N -> exit(Pid, kill) end
                     end) || N <- lists:seq(1, 20)],
    nothing_left(A, B),
    %% But for the session.
    cluster:await(
      fun() -> cluster:call(A, ets, info, [trunkline_monitors_watched, size]) =:= 1 end),
    cluster:stop_all([A, B]).

set_and_see(Ps, forever) ->
    Refs = [trunkline:monitor(P) || P <- Ps],
    [trunkline:demonitor(R) || R <- Refs, erlang:phash2(R, 2) =:= 0],
    set_and_see(Ps, forever).

%% After a demonitor with flush there is no message, and without there is at most one.
demonitored_while_ending(_) ->
    {A, B} = cluster:pair([]),
    ?assertEqual([ok], lists:usort(cluster:call(A, ?MODULE, race, [cluster:node_of(B), 300]))),
    nothing_left(A, B),
    cluster:stop_all([A, B]).

race(Node, Rounds) ->
    Pids = [spawn_monitor(fun() -> exit(race(Node, Rounds, N)) end) || N <- lists:seq(1, 8)],
    [receive {'DOWN', R, process, P, Answer} -> Answer end || {P, R} <- Pids].

race(_, 0, _) ->
    receive Message -> {got, Message} after 200 -> ok end;
race(Node, Round, N) ->
    P = waiting(Node),
    R0 = trunkline:monitor(P),
    trunkline:send(P, {exit, x}),
    Refs = [{trunkline:monitor(P), K} || K <- lists:seq(1, 10)],
    %% As long as it takes, more or less.
    receive after (Round + N) rem 3 -> ok end,
    lists:foreach(
      fun({R, K}) when K rem 2 =:= 0 ->
              _ = trunkline:demonitor(R, [flush, info]);
         ({R, _}) ->
              case trunkline:demonitor(R, [info]) of
                  true -> ok;
                  false ->
                      receive {'DOWN', R, process, P, Why} when Why =:= x; Why =:= noproc -> ok end
              end
      end, Refs),
    receive {'DOWN', R0, process, P, x} -> ok; {'DOWN', R0, process, P, noproc} -> ok end,
    race(Node, Round - 1, N).

%% What is demonitored when the node has gone: before its 'DOWN' is in the mailbox, when it is
%% there, and when it has been taken from there. As with OTP's monitors, which one run sets in the
%% same place. (Nobody can hold up OTP's 'DOWN'. For it, before that is before the node goes.)
demonitored_when_gone(_) ->
    {A, B} = cluster:pair([]),
    NodeB = cluster:node_of(B),
    ByA = fun() -> true = erlang:disconnect_node(NodeB) end,
    ByB = fun() -> ok = erpc:cast(NodeB, erlang, disconnect_node, [node()]) end,
    Disconnected = fun(M, When, Break) ->
                           [P] = servers(B, 1),
                           anew:lanes(A, B, fun() ->
                                                    cluster:call(A, ?MODULE, gone,
                                                                 [M, P, When, Break])
                                            end)
                   end,
    [?assertEqual({When, Disconnected(erlang, When, Break)},
                  {When, Disconnected(trunkline, When, Break)})
     || When <- [before, here, received], Break <- [ByA, ByB]],
    nothing_left(A, B),
    cluster:stop(B),
    Killed = fun(M, When) ->
                     C = cluster:start([]),
                     cluster:connect(A, C),
                     cluster:await_up(A, C),
                     [P] = servers(C, 1),
                     Gone = cluster:call(A, ?MODULE, gone,
                                         [M, P, When, fun() -> cluster:kill(C) end]),
                     cluster:stop(C),
                     Gone
             end,
    [?assertEqual({When, Killed(erlang, When)}, {When, Killed(trunkline, When)})
     || When <- [before, here, received]],
    cluster:await(fun() -> rows(A) =:= 0 orelse rows(A) end),
    cluster:stop(A).

%% What demonitor answers, and whether the 'DOWN' is there after it; the reason of a monitor that
%% was kept; and what is in the mailbox at last. Runs at the node.
gone(M, P, When, Break) ->
    comparison:in_process(fun() -> demonitor_gone(M, P, When, Break) end).

demonitor_gone(M, P, When, Break) ->
    Kept = M:monitor(process, P),
    Monitors = [{Options, M:monitor(process, P)} || Options <- [none | option_lists()]],
    P = is_there(M, P),
    Demonitor = fun() -> [{Options, demonitor(M, R, Options), here_now(R)}
                          || {Options, R} <- Monitors] end,
    Results = gone(M, Monitors, P, When, Break, Demonitor),
    Reason = receive {'DOWN', Kept, process, P, Why} -> Why end,
    {Results, Reason, rest(P)}.

gone(erlang, _, _, before, Break, Demonitor) ->
    Results = Demonitor(),
    _ = Break(),
    Results;
gone(trunkline, _, P, before, Break, Demonitor) ->
    Inlets = inlets(P),
    %% It sends the 'DOWN's.
    ok = sys:suspend(trunkline_monitors),
    _ = Break(),
    cluster:await(fun() -> not lists:any(fun is_process_alive/1, Inlets) end),
    Results = Demonitor(),
    ok = sys:resume(trunkline_monitors),
    Results;
gone(_, Monitors, _, When, Break, Demonitor) ->
    _ = Break(),
    lists:foreach(fun({_, R}) -> here(R) end, Monitors),
    When =:= received andalso [receive {'DOWN', R, _, _, _} -> ok end || {_, R} <- Monitors],
    Demonitor().

demonitor(M, R, none) -> M:demonitor(R);
demonitor(M, R, Options) -> M:demonitor(R, Options).

%% Those of the session with that process's node.
inlets(P) ->
    case trunkline_peers:lookup(node(P)) of
        #{inlets := Inlets} -> Inlets;
        none -> []
    end.

rest(P) ->
    receive
        {'DOWN', _, process, P, Reason} -> [Reason | rest(P)];
        Other -> [Other | rest(P)]
    after 50 -> []
    end.

%% Connections and links that go while monitors are set: none is without an answer.
session_ends_while_monitoring(_) ->
    {A, B} = cluster:pair([{lanes, 2}]),
    [P] = servers(B, 1),
    NodeB = cluster:node_of(B),
    Setters = [cluster:call(A, fun() -> spawn(fun() -> set_until_stopped(P, []) end) end)
               || _ <- lists:seq(1, 4)],
    lists:foreach(
      fun(What) ->
              anew:lanes(
                A, B,
                fun() ->
                        case What of
                            disconnect -> cluster:call(A, erlang, disconnect_node, [NodeB]);
                            At ->
                                [Other] = [cluster:node_of(X) || X <- [A, B], X =/= At],
                                kill(At, fun() -> hd(cluster:find(link, Other)) end)
                        end
                end)
      end, lists:append(lists:duplicate(8, [disconnect, A, B]))),
    Counts =
        cluster:call(A,
                     fun() ->
                             [begin S ! {stop, self()}, receive {S, N} -> N end end || S <- Setters]
                     end),
    ct:log("~p", [Counts]),
    finish(B, [P], x),
    %% Each has all its messages, one for each monitor.
    cluster:await(
      fun() ->
              case cluster:call(A,
                                fun() ->
                                        [begin S ! {missing, self()}, receive {S, N} -> N end end
                                         || S <- Setters]
                                end) of
                  [{0, 0}, {0, 0}, {0, 0}, {0, 0}] -> true;
                  Missing -> {missing_and_doubled, Missing}
              end end),
    nothing_left(A, B),
    cluster:stop_all([A, B]).

set_until_stopped(P, Refs) ->
    receive
        {stop, From} -> From ! {self(), length(Refs)}, account(maps:from_keys(Refs, 0))
    after 1 ->
            set_until_stopped(P, [trunkline:monitor(P) || _ <- [1, 2, 3]] ++ Refs)
    end.

account(Got) ->
    receive
        {'DOWN', Ref, process, _, _} ->
            #{Ref := N} = Got,
            account(Got#{Ref := N + 1});
        {missing, From} ->
            Numbers = maps:values(Got),
            From ! {self(), {length([x || 0 <- Numbers]), length([x || N <- Numbers, N > 1])}},
            account(Got)
    end.

%% The overseer is killed while it moves very many monitors: from lanes to the watcher, or back.
killed_while_moving(_) ->
    {A, B} = cluster:pair([]),
    Stop = fun() -> cluster:call(B, cluster, stop_trunkline, []) end,
    Start = fun() ->
                    ok = cluster:call(B, cluster, start_trunkline, [[]]),
                    cluster:await_up(A, B)
            end,
    ToWatcher = fun(Move) -> Move(fun is_tuple/1, Stop) end,
    ToLanes = fun(Move) -> Move(fun is_pid/1, Start) end,
    [ok = moved(A, B, How) || _ <- [1, 2], How <- [ToWatcher, ToLanes]],
    cluster:stop_all([A, B]).

moved(A, B, How) ->
    [Server] = servers(B, 1),
    {Caller, Row} = cluster:call(A, ?MODULE, monitor_often, [Server, ?MANY]),
    Overseer = cluster:call(A, erlang, whereis, [trunkline_monitors]),
    How(fun(IsThere, Change) ->
                ok = cluster:call(A, ?MODULE, kill_when, [IsThere, Row]),
                ok = Change()
        end),
    cluster:await(fun() -> not cluster:call(A, erlang, is_process_alive, [Overseer]) end),
    finish(B, [Server], because),
    cluster:await(fun() -> cluster:call(A, ?MODULE, heard, [Caller]) =:= ?MANY end),
    cluster:await(fun() -> rows(A) =:= 0 end),
    true = cluster:call(A, erlang, exit, [Caller, kill]),
    ok.

%% These run at the node. Returns one row of the middle, too.
monitor_often(Server, Times) ->
    Self = self(),
    Caller = spawn(fun() ->
                           Refs = [trunkline:monitor(Server) || _ <- lists:seq(1, Times)],
                           Self ! {self(), lists:nth(Times div 4, Refs)},
                           hear_all(0)
                   end),
    receive {Caller, Ref} -> {Caller, {Caller, Ref}} end.

hear_all(N) ->
    receive
        {'DOWN', _, process, _, _} -> hear_all(N + 1);
        {heard, From} -> From ! {self(), N}, hear_all(N)
    end.

heard(Caller) ->
    Caller ! {heard, self()},
    receive {Caller, N} -> N end.

%% Kills the overseer when that row has been moved.
kill_when(IsThere, Row) ->
    Overseer = whereis(trunkline_monitors),
    _ = spawn(fun() -> kill_at(IsThere, Row, Overseer) end),
    ok.

kill_at(IsThere, Row, Overseer) ->
    case IsThere(ets:lookup_element(trunkline_monitors, Row, 2)) of
        true -> exit(Overseer, kill);
        false -> erlang:yield(), kill_at(IsThere, Row, Overseer)
    end.

%% A process is monitored before there is a connection, and by another overseer later: that one
%% does not take the connection for a new one.
plain_and_overseer_killed(_) ->
    [A, B] = cluster:start_all([[], none]),
    [Server] = servers(B, 1),
    Holder = cluster:call(A, ?MODULE, set, [[Server], there]),
    Overseer = fun() -> whereis(trunkline_monitors) end,
    Old = kill(A, Overseer),
    cluster:await(fun() -> New = cluster:call(A, Overseer), is_pid(New) andalso New =/= Old end),
    finish(B, [Server], because),
    await_held(A, Holder, [because]),
    cluster:stop_all([A, B]).

%% A process ends when lanes have its monitor, and they find that only after a long time: the
%% watcher still knows the reason.
known_for_long(_) -> by_watcher(known).

known(Node) ->
    P = waiting(Node),
    {Watcher, Ref} = plain(P),
    ok = to_lanes(Watcher, Ref, P),
    Other = erlang:monitor(process, P),
    P ! {exit, x},
    receive {'DOWN', Other, process, P, x} -> ok end,
    %% The watcher has had its own 'DOWN' when that process is monitored and found dead.
    cluster:await(fun() -> {monitors, Ms} = process_info(Watcher, monitors), Ms =:= [] end),
    _ = sys:get_state(Watcher),
    Monitor = {self(), Ref, P},
    [Watcher ! {moved, [Monitor]} || _ <- [1, 2]],         % the time is over
    none = trunkline_agent:step({ended, P, self(), Ref}, noproc, none),
    {process, true, x} = down(Ref, P),
    cluster:await(fun() -> trunkline_monitor_rows:lookup(Ref) =:= none end),
    %% It forgets what nobody wants to know.
    Q = waiting(Node),
    {Watcher, Unwanted} = plain(Q),
    ok = to_lanes(Watcher, Unwanted, Q),
    Q ! {exit, x},
    cluster:await(fun() -> {monitors, Ms} = process_info(Watcher, monitors), Ms =:= [] end),
    ok = trunkline_monitor_rows:leave(self(), Unwanted),
    Watcher ! {moved, [{self(), Unwanted, Q}]},
    is_empty(Watcher).

%% The overseer is killed when a row has been entered, and before the watcher is asked: its
%% successor asks as well. The process is monitored once.
taken_before(_) -> by_watcher(taken).

taken(Node) ->
    P = waiting(Node),
    Watcher = gen_server:call(trunkline_monitors, {plain, self(), Node}),
    Ref = alias([reply]),
    ok = trunkline_monitor_rows:enter(Ref, {plain, Watcher}, P),
    ok = trunkline_watcher:take(Watcher, trunkline_process:controller(Node), [{self(), Ref, P}]),
    ok = trunkline_watcher:monitor(Watcher, Ref, P),
    {monitors, [_]} = process_info(Watcher, monitors),
    true = trunkline:demonitor(Ref),
    is_empty(Watcher).

%% The watcher is to tell the caller, and is killed: nobody knows the reason.
killed_when_missing(_) -> by_watcher(missing).

missing(Node) ->
    P = waiting(Node),
    {Watcher, Ref} = plain(P),
    ok = sys:suspend(Watcher),
    ok = to_lanes(Watcher, Ref, P),
    none = trunkline_agent:step({ended, P, self(), Ref}, noproc, none),
    ok = trunkline_process:kill(Watcher),
    {process, true, noproc} = down(Ref, P),
    cluster:await(fun() -> trunkline_monitor_rows:lookup(Ref) =:= none end),
    true = exit(P, kill),
    ok.

by_watcher(Test) ->
    [A, B] = cluster:start_all([[], none]),
    cluster:connect(A, B),
    ok = cluster:call(A, ?MODULE, Test, [cluster:node_of(B)]),
    cluster:stop_all([A, B]).

%% What trunkline:monitor/1 does without a session.
plain(P) ->
    Ref = trunkline:monitor(P),
    {ok, P, {plain, Watcher}} = trunkline_monitor_rows:lookup(Ref),
    {Watcher, Ref}.

%% This process stands for the first inlet.
to_lanes(Watcher, Ref, P) ->
    Monitor = {self(), Ref, P},
    true = trunkline_monitor_rows:move(Monitor, {plain, Watcher}, self()),
    trunkline_watcher:moved(Watcher, [Monitor]).

%% It has no monitor, and no row.
is_empty(Watcher) ->
    cluster:await(fun() ->
                          _ = sys:get_state(Watcher),
                          Rows = [ets:info(T, size) || T <- ets:all(),
                                                       ets:info(T, owner) =:= Watcher],
                          case {process_info(Watcher, monitors), Rows} of
                              {{monitors, []}, [0]} -> true;
                              Left -> Left
                          end
                  end).

%% Monitors are taken back just while they are moved to lanes: none stays at the peer.
demonitored_while_moving(_) ->
    [A, B] = cluster:start_all([[], []]),
    [Server] = servers(B, 1),
    Node = cluster:node_of(B),
    ok = cluster:call(B, sys, suspend, [trunkline_links]),
    cluster:connect(A, B),
    Self = self(),
    Caller = spawn_link(fun() -> Self ! {self(), cluster:call(A, ?MODULE, take_back_at_session,
                                                              [Server, Node, ?MANY])} end),
    cluster:await(fun() -> rows(A) =:= ?MANY end),
    ok = cluster:call(B, sys, resume, [trunkline_links]),
    receive {Caller, ok} -> ok end,
    ?assertEqual(0, rows(A)),
    cluster:await(fun() -> {_, By} = cluster:call(B, erlang, process_info, [Server, monitored_by]),
                           By =:= [] orelse length(By)
                  end),
    cluster:stop_all([A, B]).

take_back_at_session(Server, Node, Times) ->
    Refs = [trunkline:monitor(Server) || _ <- lists:seq(1, Times)],
    at_session(Node),
    lists:foreach(fun(Ref) -> true = trunkline:demonitor(Ref) end, Refs).

at_session(Node) ->
    case trunkline_peers:session(Node) of
        none -> at_session(Node);
        _ -> ok
    end.

%% Both nodes stop while each monitors a process of the other: no lane and no inlet stays.
stopped_at_both(_) ->
    {A, B} = Pair = cluster:pair([]),
    Holders = [{X, cluster:call(X, ?MODULE, set, [servers(Y, 1), there])}
               || {X, Y} <- [Pair, {B, A}]],
    Self = self(),
    Stops = [spawn_link(fun() -> ok = cluster:call(X, cluster, stop_trunkline, []),
                                 Self ! {self(), stopped}
                        end) || X <- [A, B]],
    [receive {Stop, stopped} -> ok end || Stop <- Stops],
    [cluster:await(fun() -> cluster:call(X, ?MODULE, of_sessions, []) =:= [] end) || X <- [A, B]],
    [true = cluster:call(X, erlang, is_process_alive, [Holder]) || {X, Holder} <- Holders],
    cluster:stop_all([A, B]).

%% Lanes and inlets.
of_sessions() ->
    [Module || P <- processes(), {_, Dictionary} <- [process_info(P, dictionary)],
               {_, {Module, _, _}} <- [lists:keyfind('$initial_call', 1, Dictionary)],
               Module =:= trunkline_inlet orelse Module =:= trunkline_lane].

nothing_left_behind(_) ->
    {A, B} = cluster:pair([]),
    Round = fun(_) ->
                    Ps = servers(B, 100),
                    Holder = cluster:call(A, ?MODULE, set, [Ps, there]),
                    true =
                        cluster:call(A,
                                     fun() ->
                                             lists:all(
                                               fun(P) ->
                                                       trunkline:demonitor(
                                                         trunkline:monitor(P), [info])
                                               end, Ps)
                                     end),
                    {Some, Others} = lists:split(50, Ps),
                    finish(B, Some, x),
                    await_held(A, Holder, [x || _ <- Some] ++ [none || _ <- Others]),
                    true = anew:connection(A, B),
                    await_held(A, Holder, [x || _ <- Some] ++ [noconnection || _ <- Others]),
                    cluster:call(A, erlang, exit, [Holder, kill]),
                    finish(B, Others, x)
            end,
    lists:foreach(Round, lists:seq(1, 20)),
    nothing_left(A, B),
    %% Nobody is watched: all that was is dead.
    cluster:await(fun() ->
                          case cluster:call(A, ets, tab2list, [trunkline_monitors_watched]) of
                              %% peer's own process
                              [{Holder, {}}] ->
                                  cluster:call(A, erlang, is_process_alive, [Holder]);
                              Rows ->
                                  Rows =:= [] orelse Rows
                          end
                  end),
    cluster:stop_all([A, B]).

%% --- many ------------------------------------------------------------------------------------

%% Lanes may hold what the process has said until they open; its end is not heard of before that.
held_by_lanes(_) ->
    {A, B} = cluster:pair([]),
    NodeB = cluster:node_of(B),
    lists:foreach(
      fun(_) ->
              Before = anew:sessions(A, B),
              _ = cluster:call(A, erlang, disconnect_node, [NodeB]),
              cluster:await_state(A, B, down),
              cluster:await_state(B, A, down),
              Server = cluster:call(B, fun() -> spawn(?MODULE, says_and_ends, [5, told]) end),
              ok = cluster:call(A, sys, suspend, [trunkline_links]),      % no session
              Watcher = cluster:call(A, fun() -> spawn(?MODULE, hears, [Server]) end),
              cluster:await(
                fun() -> cluster:call(B, erlang, process_info, [Server, monitored_by])
                             =/= {monitored_by, []}
                end),
              {go, _} = cluster:call(B, erlang, send, [Server, {go, Watcher}]),
              cluster:await(fun() -> not cluster:call(B, erlang, is_process_alive, [Server]) end),
              receive after 300 -> ok end,                % for its end to be heard of
              ok = cluster:call(A, sys, resume, [trunkline_links]),
              anew:await_session(A, B, Before),
              cluster:await(
                fun() -> case cluster:call(A, erlang, process_info, [Watcher, messages]) of
                             {messages, Ms} when length(Ms) =:= 6 -> true;
                             Other -> Other
                         end end),
              {messages, Messages} = cluster:call(A, erlang, process_info, [Watcher, messages]),
              ?assertMatch([1, 2, 3, 4, 5, {'DOWN', _, process, Server, told}], Messages),
              cluster:call(A, erlang, exit, [Watcher, kill])
      end, lists:seq(1, 3)),
    cluster:stop_all([A, B]).

says_and_ends(N, Reason) ->
    receive
        {go, To} ->
            lists:foreach(fun(M) -> trunkline:send(To, M) end, lists:seq(1, N)),
            exit(Reason)
    end.

hears(Server) ->
    _ = trunkline:monitor(process, Server),
    receive stop -> ok end.

%% The link has not noticed that the connection is lost: what is monitored from then on is
%% monitored by the connection that there is, or is made for it, and does not end with the
%% session before.
set_before_link_notices(_) ->
    {A, B} = cluster:pair([]),
    NodeB = cluster:node_of(B),
    lists:foreach(
      fun(Connected) ->
              [P] = Ps = servers(B, 1),
              Before = anew:sessions(A, B),
              Lost = cluster:call(A, ?MODULE, set, [Ps, there]),
              [Link] = cluster:call(A, cluster, find, [link, NodeB]),
              ok = cluster:call(A, sys, suspend, [Link]),
              true = cluster:call(A, erlang, disconnect_node, [NodeB]),
              cluster:await(fun() -> cluster:call(B, erlang, nodes, []) =:= [] end),
              Connected andalso cluster:connect(A, B),
              Holder = cluster:call(A, ?MODULE, set, [[P, {nobody_has_this, NodeB}], under_way]),
              ok = cluster:call(A, sys, resume, [Link]),
              await_held(A, Lost, [noconnection]),
              anew:await_session(A, B, Before),
              await_held(A, Holder, [none, noproc]),
              finish(B, Ps, over),
              await_held(A, Holder, [over, noproc]),
              await_held(A, Lost, [noconnection]),
              nothing_left(A, B)
      end, [true, false, true]),
    cluster:stop_all([A, B]).

%% A has no free process: none that would monitor the processes of a node without lanes, nor those
%% of one whose Trunkline stops. There is one 'DOWN' for each monitor all the same. (A is full: what
%% it does is asked for by C. When a process ends there may be room for a moment: such a round
%% shows nothing.)
no_process_left(_) ->
    [B, C] = cluster:start_all([[], none]),
    A = cluster:start([], peer:random_name("trunkline_full"),
                      ["+P", "1024" | cluster:dist_arguments()]),
    [ok = cluster:connect(A, X) || X <- [B, C]],
    no_process_left(A, B, C, 20),
    cluster:stop_all([A, B, C]).

no_process_left(_, _, _, 0) ->
    ct:fail(always_a_process);
no_process_left(A, B, C, Rounds) ->
    cluster:await_up(A, B),
    [NodeA, NodeB, NodeC] = [cluster:node_of(X) || X <- [A, B, C]],
    Ps = [P1 | _] = servers(B, 10),
    Qs = [Q1 | _] = servers(C, 10),
    Holder = cluster:call(A, ?MODULE, set, [Ps, there]),
    [Looks, First, Next] =
        [cluster:call(A, fun() -> spawn(?MODULE, obeys, [Pids]) end) || Pids <- [[], Qs, Ps]],
    Ask = fun(Fun) -> cluster:call(C, ?MODULE, ask, [Looks, Fun]) end,
    None = [none || _ <- tl(Ps)],
    IsSet = fun(Pid) ->
                    set = cluster:call(C, erlang, send, [Pid, set]),
                    ?assertEqual([none | None], cluster:call(C, ?MODULE, held, [Pid]))
            end,
    Overseer = {trunkline_monitors, NodeA},
    Shown = faults_SUITE:full(
              {C, A},
              fun() ->
                      Ask(fun is_full/0),
                      IsSet(First),
                      %% As OTP does it, without one of Trunkline's processes.
                      Plain = Ask(fun() -> monitors_at(NodeC) end) =:= [],
                      %% When it hears of the stop, what ends by that has ended.
                      ok = cluster:call(C, sys, suspend, [Overseer, ?DEADLINE]),
                      ok = cluster:call(B, cluster, stop_trunkline, []),
                      cluster:await(fun() -> Ask(fun() -> trunkline_peers:session(NodeB) end)
                                                 =:= none
                                    end),
                      Ask(fun is_full/0),
                      ok = cluster:call(C, sys, resume, [Overseer, ?DEADLINE]),
                      cluster:await(fun() -> Ask(fun() -> whose(NodeB) end) =/= lanes end),
                      Whose = Ask(fun() -> whose(NodeB) end),
                      IsSet(Next),
                      finish(B, [P1], full),
                      finish(C, [Q1], full),
                      ct:log("without lanes: ~p, after the stop: ~p", [Plain, Whose]),
                      Plain andalso Whose =:= nobody
              end),
    Over = [over || _ <- None],
    %% (Before there was a watcher none may have learned of the reason: see promises.md.)
    Ended = fun(Reasons) ->
                    [cluster:await(fun() -> case cluster:call(A, ?MODULE, held, [H]) of
                                                [R | Reasons] when R =:= full; R =:= noproc -> true;
                                                Other -> Other
                                            end end) || H <- [First, Next, Holder]]
            end,
    Ended(None),
    finish(B, tl(Ps), over),
    finish(C, tl(Qs), over),
    Ended(Over),
    cluster:call(A, fun() -> exit(Looks, kill) end),
    ok = cluster:call(B, cluster, start_trunkline, [[]]),
    cluster:await_up(A, B),
    nothing_left(A, B),
    Ended(Over),                               % once
    cluster:call(A, fun() -> [exit(P, kill) || P <- watchers()] end),
    cluster:await(fun() -> cluster:call(A, fun watchers/0) =:= [] end),
    Shown orelse no_process_left(A, B, C, Rounds - 1).

%% Takes what is left, for as long as the calling process lives. (The filler comes for that once in
%% a ms.) Runs at the node.
is_full() ->
    try spawn_link(fun() -> receive after infinity -> ok end end) of
        _ -> is_full()
    catch
        error:system_limit -> full
    end.

%% Monitors these when it is told to.
obeys(Pids) ->
    receive
        set -> hold([trunkline:monitor(P) || P <- Pids], #{});
        {ask, From, Fun} -> From ! {self(), Fun()}, obeys(Pids)
    end.

ask(Pid, Fun) ->
    Pid ! {ask, self(), Fun},
    receive {Pid, Answer} -> Answer end.

watchers() -> [W || {{node, _}, W} <- ets:tab2list(trunkline_monitors_watched)].

%% The sessions of the monitors at that node. (Not OTP's own.)
monitors_at(Node) ->
    lists:usort([Session || {_, Session, P, _} <- ets:tab2list(trunkline_monitors),
                            node(P) =:= Node]).

%% Who watches the monitors at that node.
whose(Node) ->
    Sessions = monitors_at(Node),
    case {[S || S <- Sessions, ets:member(trunkline_monitors_watched, S)], Sessions} of
        {[], [_]} -> nobody;
        {[{plain, _} | _], [_]} -> watcher;
        _ -> lanes
    end.

%% 100,000 monitors of as many processes, which end at once.
many_servers(_) ->
    {A, B} = cluster:pair([]),
    N = 100_000,
    Parent =
        cluster:call(B,
                     fun() ->
                             spawn(fun() ->
                                           receive
                                               {all, From} ->
                                                   From ! {self(),
                                                           [spawn_link(timer, sleep, [infinity])
                                                            || _ <- lists:seq(1, N)]}
                                           end,
                                           receive stop -> exit(done) end
                                   end)
                     end),
    Reasons =
        cluster:call(A, fun() ->
                                Parent ! {all, self()},
                                Ps = receive {Parent, All} -> All end,
                                reasons(maps:from_list([{trunkline:monitor(P), P} || P <- Ps]),
                                        fun() -> trunkline:send(Parent, stop) end)
                        end),
    %% One that does not go by lane may come too late.
    #{fallbacks := Fallbacks} = cluster:info(A, B),
    ?assertEqual({#{done => N}, 0}, {Reasons, Fallbacks}),
    nothing_left(A, B),
    cluster:stop_all([A, B]).

%% 100,000 monitors of one.
one_server(_) ->
    {A, B} = cluster:pair([]),
    N = 100_000,
    ?assertEqual(#{done => N}, cluster:call(
                                 A, fun() ->
                                            P = waiting(cluster:node_of(B)),
                                            reasons(
                                              maps:from_list([{trunkline:monitor(P), P}
                                                              || _ <- lists:seq(1, N)]),
                                              fun() -> trunkline:send(P, {exit, done}) end)
                                    end)),
    nothing_left(A, B),
    cluster:stop_all([A, B]).

reasons(Refs, Fire) ->
    Fire(),
    reasons(Refs, #{}, map_size(Refs)).

reasons(_, Reasons, 0) ->
    receive {'DOWN', _, _, _, _} = Message -> {too_many, Message} after 100 -> Reasons end;
reasons(Refs, Reasons, N) ->
    receive
        {'DOWN', Ref, process, Pid, Reason} ->
            {Pid, Refs1} = maps:take(Ref, Refs),
            reasons(Refs1, maps:update_with(Reason, fun(K) -> K + 1 end, 1, Reasons), N - 1)
    after ?DEADLINE ->
            {missing, N, Reasons}
    end.
