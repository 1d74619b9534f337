%% Exit signals by lane: what a process gets is what erlang:exit/2 sends, in the sender's name,
%% and in order with monitors and messages.
-module(exit_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([as_erlang/1, as_erlang_without_trunkline/1, monitored_before/1, order/1,
         to_name_and_large/1, when_lanes_open/1, connects/1, connects_without_lanes/1,
         lost_without_lanes/1,
         trap_exit_changes/1, one_that_does_not_run/1, drained/1, stopped_and_continued/1,
         before_lanes_open/1]).
-export([ahead_of_report/1, is_through/2]).
-export([table/2, rounds/2, mixed/2, changes/2, trapping/2, waits/0, busy/0, changing/1, run/1,
         while/2]).

-define(DEADLINE, 60_000).

suite() -> [{timetrap, {minutes, 10}}].

all() -> [as_erlang, as_erlang_without_trunkline, monitored_before, order, to_name_and_large,
          when_lanes_open, connects, connects_without_lanes, lost_without_lanes, trap_exit_changes,
          one_that_does_not_run, drained, stopped_and_continued, before_lanes_open].

%% --- what OTP documents ---------------------------------------------------------------

as_erlang(_) -> comparison:as_erlang(?MODULE).

as_erlang_without_trunkline(_) -> comparison:as_erlang_without_trunkline(?MODULE).

%% Runs at the node.
table(M, Node) ->
    logger:set_primary_config(level, none),
    comparison:results(M, Node, cases(), local_cases()).

reasons() ->
    [normal, kill, killed, shutdown, {shutdown, x}, {some, "reason"},
     {large, binary:copy(<<1>>, 100_000)}].

cases() ->
    [{{waiting, Reason},
      fun(M, Node) ->
              P = spawn(Node, ?MODULE, waits, []),
              R = M:monitor(process, P),
              True = M:exit(P, Reason),
              M:send(P, over),
              {True, down(R)}
      end} || Reason <- reasons()] ++
    [{{trapping, Reason},
      fun(M, Node) ->
              P = trapping_at(Node),
              R = M:monitor(process, P),
              M:send(P, one),
              True = M:exit(P, Reason),
              M:send(P, two),
              {True, reported(M, P, R)}
      end} || Reason <- reasons()] ++
    [{{linked, Trap, Reason},
      fun(M, Node) ->
              process_flag(trap_exit, Trap),
              P = trapping_at(Node),
              link(P),
              ok = is_there(erlang, P),                % and linked
              R = M:monitor(process, P),
              True = M:exit(P, Reason),
              {True, reported(M, P, R), signal_of(P, Trap)}
      end} || Trap <- [true, false], Reason <- [normal, kill, shutdown]] ++
    [{twice,
      fun(M, Node) ->
              P = trapping_at(Node),
              R = M:monitor(process, P),
              [M:exit(P, N) || N <- lists:seq(1, 20)],
              reported(M, P, R)
      end},
     {dead,
      fun(M, Node) ->
              {P, R} = spawn_monitor(Node, fun() -> ok end),
              down(R),
              [M:exit(P, Reason) || Reason <- [normal, kill, x]]
      end},
     {from_another,
      fun(M, Node) ->
              P = trapping_at(Node),
              Self = self(),
              Q = spawn(fun() -> M:exit(P, from_q), Self ! {self(), is_there(M, P)} end),
              receive {Q, ok} -> ok end,
              R = M:monitor(process, P),
              [{'EXIT', Who, from_q}] = reported(M, P, R),
              Who =:= Q
      end}].

local_cases() ->
    [{{bad, N}, fun(M) -> try M:exit(To, x) catch Class:Reason -> {Class, Reason} end end}
     || {N, To} <- lists:enumerate([x, 1, "x", {x, node()}, [self()], make_ref(), #{}])] ++
    [{{self, Trap, Reason},
      fun(M) ->
              process_flag(trap_exit, Trap),
              True = M:exit(self(), Reason),
              {True, receive {'EXIT', P, Why} -> {P =:= self(), Why} after 100 -> none end}
      end} || Trap <- [true, false], Reason <- [normal, kill, x]] ++
    [{port,
      fun(M) ->
              process_flag(trap_exit, true),
              Port = open_port({spawn, "cat"}, []),
              True = M:exit(Port, x),
              {True, receive {'EXIT', Port, Why} -> Why end}
      end}].

waits() -> receive over -> ok end.

trapping_at(Node) ->
    Self = self(),
    P = spawn(Node, ?MODULE, trapping, [Self, []]),
    receive {P, ready} -> P end.

%% Tells what it has got; a signal of the one who has started it as `me'.
trapping(Starter, []) ->
    process_flag(trap_exit, true),
    Starter ! {self(), ready},
    got(Starter, []).

got(Starter, Got) ->
    receive
        {report, By, From} -> By:send(From, {self(), lists:reverse(Got)});
        {is_there, From} -> From ! {self(), yes}, got(Starter, Got);
        {'EXIT', Starter, Why} -> got(Starter, [{'EXIT', me, Why} | Got]);
        Message -> got(Starter, [Message | Got])
    end.

is_there(M, P) ->
    M:send(P, {is_there, self()}),
    receive {P, yes} -> ok end.

%% `Monitor' is the module by which it is monitored: what it tells comes before its end.
reported(M, P, Ref) -> reported(M, P, Ref, M).

reported(M, P, Ref, Monitor) ->
    M:send(P, {report, Monitor, self()}),
    receive {P, Got} -> Got;
            {'DOWN', Ref, process, P, Why} -> {down, Why}
    end.

%% The end of the link, which may come before the 'DOWN' or after it, as what has come by lane may.
signal_of(P, true) ->
    receive {'EXIT', P, Why} -> Why end;
signal_of(P, false) ->
    cluster:await(fun() -> not lists:member(P, element(2, process_info(self(), links))) end),
    none.

down(Ref) -> receive {'DOWN', Ref, process, _, Why} -> Why after ?DEADLINE -> no_down end.

%% --- order -----------------------------------------------------------------------------

%% A process that is monitored and then told to exit was there: it ends with the reason.
monitored_before(_) ->
    {A, B} = cluster:pair([]),
    ?assertEqual(#{{why, kill} => 500, {why, x} => 500},
                 cluster:call(A, ?MODULE, rounds, [cluster:node_of(B), 1000])),
    cluster:stop_all([A, B]).

rounds(Node, N) ->
    lists:foldl(fun(I, Count) ->
                        P = spawn(Node, ?MODULE, waits, []),
                        R = trunkline:monitor(process, P),
                        Reason = element(I rem 2 + 1, {kill, x}),
                        true = trunkline:exit(P, Reason),
                        Key = case down(R) of
                                  killed when Reason =:= kill -> {why, kill};
                                  Why -> {why, Why}
                              end,
                        maps:update_with(Key, fun(C) -> C + 1 end, 1, Count)
                end, #{}, lists:seq(1, N)).

%% Also in the moment in which lanes open: what is monitored by OTP's means, or by lane, gets the
%% signal behind that, by whatever way.
when_lanes_open(_) ->
    [A, B] = cluster:start_all([[], []]),
    Node = cluster:node_of(B),
    lists:foreach(
      fun(_) ->
              Counts = cluster:call(A, fun() -> opening(Node) end),
              ?assertEqual([], [Count || Count <- Counts,
                                         maps:without([{why, kill}, {why, x}], Count) =/= #{}]),
              cluster:await_up(A, B),
              true = cluster:call(A, erlang, disconnect_node, [Node]),
              cluster:await_state(A, B, down)
      end, lists:seq(1, 20)),
    cluster:stop_all([A, B]).

opening(Node) ->
    true = net_kernel:connect_node(Node),
    Rounds = [spawn_monitor(fun() -> exit(rounds(Node, 100)) end) || _ <- lists:seq(1, 8)],
    [receive {'DOWN', R, process, P, Counts} -> Counts end || {P, R} <- Rounds].

%% What is sent behind a signal does not overtake it by plain distribution. (The signal does not
%% wait for lanes for ever: a round that is too slow says nothing, nor one in which the link
%% cannot be stopped. But one of sixty is neither.)
before_lanes_open(_) -> before_lanes_open(60, []).

before_lanes_open(0, Why) ->
    ct:fail(Why);
before_lanes_open(Rounds, Why) ->
    [A, B] = Nodes = cluster:start_all([[{lanes, 1}], none]),
    NodeB = cluster:node_of(B),
    cluster:connect(A, B),
    cluster:await_state(A, B, greeting),
    #{link := Link} = cluster:call(A, trunkline_peers, lookup, [NodeB]),
    ok = cluster:call(A, sys, install, [Link, {fun order_SUITE:stop_at_opened/3, NodeB}]),
    ok = cluster:call(B, cluster, start_trunkline, [[{lanes, 1}]]),
    cluster:await_lanes(B, A),
    Result = case cluster:call(A, fun() -> state(NodeB) end) of
                 opening ->
                     Start = erlang:monotonic_time(millisecond),
                     Sender =
                         cluster:call(A, fun() -> spawn(?MODULE, ahead_of_report, [NodeB]) end),
                     cluster:await(
                       fun() -> cluster:call(A, ?MODULE, is_through, [Sender, Link]) end),
                     cluster:call(A, erlang, send, [Link, go_on]),
                     cluster:await_lanes(A, B),
                     Time = erlang:monotonic_time(millisecond) - Start,
                     case cluster:call(A, ?MODULE, run, [{got, Sender}]) of
                         [one, {'EXIT', me, why}, two] -> in_order;
                         _ when Time > 900 -> too_slow;
                         Got -> ct:fail(Got)
                     end;
                 up ->
                     too_early
             end,
    cluster:stop_all(Nodes),
    Result =:= in_order orelse before_lanes_open(Rounds - 1, [Result | Why]).

ahead_of_report(Node) ->
    P = trapping_at(Node),
    R = erlang:monitor(process, P),
    trunkline:send(P, one),
    true = trunkline:exit(P, why),
    trunkline:send(P, two),
    Got = reported(trunkline, P, R, erlang),
    receive {got, From} -> From ! {self(), Got} end.

%% It has its answer, or waits at the link.
is_through(Sender, Link) ->
    {messages, Messages} = process_info(Link, messages),
    lists:keymember(wait, 1, Messages)
        orelse process_info(Sender, current_function)
        =:= {current_function, {?MODULE, ahead_of_report, 1}}.

%% A signal to a node that is not connected waits in the lane, as a message does.
connects(_) ->
    {A, B} = cluster:pair([]),
    Node = cluster:node_of(B),
    Got = cluster:call(A, fun() ->
                                  P = trapping_at(Node),
                                  true = disconnect_node(Node),
                                  cluster:await(fun() -> state(Node) =:= down end),
                                  trunkline:send(P, one),
                                  trunkline:exit(P, why),
                                  trunkline:send(P, two),
                                  trunkline:send(P, {report, trunkline, self()}),
                                  receive {P, Got} -> Got after 120_000 -> none end
                          end),
    ?assertEqual([one, {'EXIT', me, why}, two], Got),
    cluster:stop_all([A, B]).

%% Lanes keep what is sent to a node that is down. If it has no Trunkline when it is connected
%% again, all goes by plain distribution.
connects_without_lanes(_) ->
    {A, B} = cluster:pair([]),
    Node = cluster:node_of(B),
    Sends = fun() ->
                    P = trapping_at(Node),
                    true = disconnect_node(Node),
                    receive {go_on, Caller} ->
                            [begin
                                 trunkline:exit(P, N),
                                 trunkline:send(P, N)
                             end || N <- lists:seq(1, 20)],
                            trunkline:send(P, {report, trunkline, self()}),
                            Caller ! {self(), receive {P, Got} -> Got end}
                    end
            end,
    Sender = cluster:call(A, fun() -> spawn(Sends) end),
    cluster:await(fun() -> cluster:call(A, fun() -> state(Node) end) =:= down end),
    ok = cluster:call(B, cluster, stop_trunkline, []),
    Got = cluster:call(A, fun() ->
                                  Sender ! {go_on, self()},
                                  receive {Sender, Got} -> Got after 120_000 -> none end
                          end),
    ?assertEqual(lists:append([[{'EXIT', me, N}, N] || N <- lists:seq(1, 20)]), Got),
    cluster:stop_all([A, B]).

%% A lane that delivers by plain distribution when the connection is lost counts what nobody waits
%% for.
lost_without_lanes(_) ->
    {A, B} = cluster:pair([]),
    Node = cluster:node_of(B),
    [P, Alias] = cluster:call(B, fun() -> [self(), alias()] end),
    cluster:stop(B),
    cluster:await(fun() -> cluster:call(A, erlang, nodes, []) =:= [] end),
    Entries = [[P | message], [{exit, P, self()} | kill], [{exit, P, self()} | reason],
               [{reply, Alias} | reply], [{apply, nobody, P} | {erlang, node, []}],
               [{down, P, Alias} | reason], [{cancel, P, Alias}]],
    Lost = cluster:call(A, fun() ->
                                   [begin
                                        Stats = trunkline_stats:new(1),
                                        [] = trunkline_leftovers:dispose(Entry, direct, Node,
                                                                         Stats),
                                        trunkline_stats:get(Stats, peer, lost_queued)
                                    end || Entry <- Entries]
                           end),
    ?assertEqual([1, 1, 1, 1, 1, 0, 0], Lost),
    ?assertEqual([], cluster:call(A, erlang, nodes, [])),
    cluster:stop(A).

state(Node) ->
    #{state := State} = trunkline:info(Node),
    State.

%% Messages of all sizes and signals are one sequence, whatever the receiver's mailbox is.
order(_) ->
    {A, B} = cluster:pair([]),
    Mixed = fun(What) -> cluster:call(A, ?MODULE, mixed, [cluster:node_of(B), What]) end,
    [?assertEqual({Flag, Items}, {Flag, Mixed({Flag, Items})})
     || Flag <- [on_heap, off_heap], _ <- lists:seq(1, 5),
        Items <- [lists:append([[N, {exit, N}, N + 1] || N <- lists:seq(1, 300)]),
                  lists:append([[200_000, {exit, N}, 10, {exit, normal}, 1_000_000]
                                || N <- lists:seq(1, 10)])]],
    cluster:stop_all([A, B]).

%% An integer is a message of so many bytes.
mixed(Node, {Flag, Items}) ->
    comparison:in_process(fun() ->
                                  Self = self(),
                                  P = spawn_opt(Node, fun() -> trapping(Self, []) end,
                                                [{message_queue_data, Flag}]),
                                  receive {P, ready} -> ok end,
                                  R = trunkline:monitor(process, P),
                                  lists:foreach(fun({exit, Reason}) -> trunkline:exit(P, Reason);
                                                   (Size) -> trunkline:send(P, <<0:Size/unit:8>>)
                                                end, Items),
                                  [case Got of
                                       {'EXIT', me, Reason} -> {exit, Reason};
                                       _ -> byte_size(Got)
                                   end || Got <- reported(trunkline, P, R)]
                          end).

%% Behind what goes to the process by its name, and is large.
to_name_and_large(_) ->
    {A, B} = cluster:pair([]),
    Node = cluster:node_of(B),
    ?assertEqual([[200_000, {'EXIT', me, x}, 3] || _ <- lists:seq(1, 50)],
                 cluster:call(A, fun() ->
                                         [comparison:in_process(fun() -> by_name(Node) end)
                                          || _ <- lists:seq(1, 50)]
                                 end)),
    cluster:stop_all([A, B]).

by_name(Node) ->
    Self = self(),
    P = spawn(Node, fun() -> register(receiver, self()), trapping(Self, []) end),
    receive {P, ready} -> ok end,
    R = trunkline:monitor(process, P),
    trunkline:send({receiver, Node}, <<0:200_000/unit:8>>),
    trunkline:exit(P, x),
    trunkline:send({receiver, Node}, <<1, 2, 3>>),
    Got = [case G of Binary when is_binary(Binary) -> byte_size(Binary); _ -> G end
           || G <- reported(trunkline, P, R)],
    down(R),
    Got.

%% --- who does not hold still -----------------------------------------------------------

%% A process that traps exits now and then either ends of the signal or gets it in the
%% sender's name.
trap_exit_changes(_) ->
    {A, B} = cluster:pair([]),
    Ends = cluster:call(A, ?MODULE, changes, [cluster:node_of(B), 500]),
    ?assertEqual([], [End || End <- Ends, not lists:member(End, [why, {trapped, sender}])]),
    cluster:stop_all([A, B]).

changes(Node, N) ->
    [comparison:in_process(fun() ->
                                   P = spawn(Node, ?MODULE, changing, [self()]),
                                   R = trunkline:monitor(process, P),
                                   true = trunkline:exit(P, why),
                                   down(R)
                           end) || _ <- lists:seq(1, N)].

changing(Sender) ->
    process_flag(trap_exit, true),
    trapped(Sender),
    process_flag(trap_exit, false),
    trapped(Sender),
    changing(Sender).

trapped(Sender) ->
    receive {'EXIT', Sender, why} -> exit({trapped, sender});
            {'EXIT', Other, why} -> exit({trapped, Other})
    after 0 -> ok
    end.

%% It gets the signal when it runs, and nobody else waits for it. (Whoever is suspended answers
%% nevertheless. So this one has no processor: its priority is low, and others are busy.)
one_that_does_not_run(_) ->
    {A, B} = cluster:pair([]),
    [Low, Other] = cluster:call(B, fun() -> [spawn(?MODULE, waits, []) || _ <- [1, 2]] end),
    Busy = cluster:call(B, fun() ->
                                   [spawn_opt(?MODULE, busy, [], [{priority, low}])
                                    || _ <- lists:seq(1, 4 * erlang:system_info(schedulers))]
                           end),
    over = cluster:call(A, fun() ->
                                   R = trunkline:monitor(process, Other),
                                   [begin trunkline:exit(P, x), trunkline:send(P, behind) end
                                    || P <- [Low | Busy]],
                                   trunkline:exit(Other, over),
                                   down(R)
                           end),
    [cluster:await(fun() -> cluster:call(B, erlang, is_process_alive, [P]) =:= false end)
     || P <- [Low | Busy]],
    cluster:stop_all([A, B]).

busy() -> busy().

%% --- faults ------------------------------------------------------------------------------

%% When the lanes are given up what is in them goes by the distribution.
drained(_) -> ended_while(fun(A, B) -> cluster:call(A, trunkline, drain, [cluster:node_of(B)]) end).

stopped_and_continued(_) ->
    ended_while(fun(A, _) -> cluster:call(A, cluster, stop_trunkline, []),
                             ok = cluster:call(A, cluster, start_trunkline, [[]]) end).

ended_while(Do) ->
    {A, B} = cluster:pair([]),
    NodeB = cluster:node_of(B),
    Ending = cluster:call(A, fun() -> spawn(?MODULE, while, [NodeB, 3000]) end),
    cluster:await(fun() -> cluster:call(A, ?MODULE, run, [{done, Ending}]) > 100 end),
    _ = Do(A, B),
    cluster:await(fun() -> cluster:call(A, ?MODULE, run, [{done, Ending}]) =:= 3000 end),
    ?assertEqual([], cluster:call(A, ?MODULE, run, [{wrong, Ending}])),
    cluster:stop_all([A, B]).

run({What, Pid}) ->
    Pid ! {What, self()},
    receive {Pid, Answer} -> Answer end.

%% The distribution's own monitors tell how each has ended, and messages who has sent the signal.
while(Node, N) ->
    report(lists:foldl(
             fun(I, Wrong) ->
                     receive {done, From} -> From ! {self(), I} after 0 -> ok end,
                     End = comparison:in_process(fun() -> one(Node, I) end),
                     case End of
                         ok -> Wrong;
                         _ -> [{I, End} | Wrong]
                     end
             end, [], lists:seq(1, N)), N).

one(Node, I) when I rem 2 =:= 0 ->
    {P, R} = spawn_monitor(Node, ?MODULE, waits, []),
    true = trunkline:exit(P, {why, I}),
    case down(R) of
        {why, I} -> ok;
        Other -> Other
    end;
one(Node, I) ->
    P = trapping_at(Node),
    R = erlang:monitor(process, P),
    trunkline:send(P, one),
    true = trunkline:exit(P, {why, I}),
    case reported(trunkline, P, R, erlang) of
        [one, {'EXIT', me, {why, I}}] -> ok;
        Other -> Other
    end.

report(Wrong, N) ->
    receive
        {done, From} -> From ! {self(), N};
        {wrong, From} -> From ! {self(), Wrong}
    end,
    report(Wrong, N).
