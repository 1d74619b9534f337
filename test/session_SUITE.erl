%% Two sessions against each other, in worlds without a process or a node (session_world): whatever
%% happens, and in whatever order, they agree in the end, nothing arrives twice or out of order or
%% at another incarnation, nobody waits for what will not come, and who leaves in good order loses
%% nothing.
%%
%%     make properties        100,000 histories of each kind
-module(session_SUITE).

-include_lib("stdlib/include/assert.hrl").
-include("counterexample.hrl").

-export([all/0, suite/0]).
-export([in_good_order/1, with_breaks/1, with_faults/1, once_failed/1, attempt_fails/1,
         asks_again/1, begins_again/1, does_not_last/1, held_for_drain/1, counts_before_it_stops/1,
         leaves_once/1, drain_and_stop/1, connects_again/1, stops_while_it_connects/1,
         goodbye_while_suspended/1, malformed_hello/1, peer_crashes_early/1, peer_has_left/1,
         stops_while_suspended/1, can_do_less/1, closes_gates_again/1, declines_its_next_session/1,
         other_inlets/1, late_hello/1, any_event/1]).

suite() -> [{timetrap, {hours, 2}}].

all() -> [in_good_order, with_breaks, with_faults, once_failed, attempt_fails, asks_again,
          begins_again, does_not_last, held_for_drain, counts_before_it_stops, leaves_once,
          drain_and_stop, connects_again, stops_while_it_connects, goodbye_while_suspended,
          malformed_hello, peer_crashes_early, peer_has_left, stops_while_suspended, can_do_less,
          closes_gates_again, declines_its_next_session, other_inlets, late_hello, any_event].

histories() -> list_to_integer(os:getenv("HISTORIES", "2000")).

check(Tests, Property) -> counterexample:check(Tests, 2000, Property).

%% Trunkline stops and starts, links are drained, nodes are full, and the connection stays.
in_good_order(_) -> check(histories(), prop_history(good())).

%% Connections break, too, and the sessions outlive them.
with_breaks(_) -> check(histories(), prop_history(new, good() ++ [{6, break()}, {4, connect}])).

%% Connections break, nodes die, links crash, and patience ends.
with_faults(_) -> check(histories(), prop_history(good() ++ bad())).

%% Histories that failed once, and are too rare to be found again soon.
once_failed(_) ->
    %% An attempt to connect failed while the peer made a connection: b had lanes that waited for a
    %% connection, took the news of its attempt for the loss of the one that was there, and
    %% stayed down.
    ok = session_world:run(
           {new, brief},
           [{go, [0, 0]}, {go, [0, 0, 1, 1, 1, 1, 0]}, {hold, news, b}, {kill, a, none},
            {go, [0, 0, 0, 0, 0, 0, 0]}, connect, {break, 0}, {go, lists:duplicate(23, 0)},
            {send, b, 1}, {go, [0, 0, 0]}, {unreachable, b}, connect]),
    %% A connection broke while the session opened, so that an answer was lost; and then the process
    %% was killed that has the peer's next question. That peer went on waiting for the answer.
    ok = session_world:run(
           {new, new},
           [{go, lists:duplicate(13, 0)}, {go, [0, 0, 1, 0, 0, 1, 0, 2, 0, 2]}, {break, 1},
            {hold, news, a}, {go, lists:duplicate(11, 1)}, {hold, links, a}, {go, [1]}, {drain, a},
            {hold, links, a}, {go, [1, 0, 0]}, {hold, links, a}, {go, lists:duplicate(10, 0)},
            {hold, links, a}, {go, [0, 0, 0, 0, 2, 2, 0, 2, 0, 0, 0]}, {hold, links, a},
            {go, lists:duplicate(28, 0)}, {again, a}]),
    %% A link took a new session after a break, and the news of that was lost with the other's
    %% trunkline_links. So b gave its inlets to a session that it did not know, and ended them when
    %% it heard of that. a went on sending to them, and b waited to be asked again.
    ok = session_world:run(
           {new, new},
           [{full, a}, {go, lists:duplicate(9, 0)}, {break, 0},
            {go, lists:duplicate(20, 0) ++ [1, 1, 1, 1, 1]}, {stop, a}, {full, a}, {go, [0]},
            {break, 3}, {go, [0, 1, 2]}, {full, a}, {go, [0, 1, 1, 1, 1]}, {start, a},
            {go, [0, 0, 0, 0, 0, 2, 2, 0, 0, 0, 2, 0, 2, 2] ++ lists:duplicate(19, 0)
                 ++ [1, 2, 2, 0, 1, 0, 1, 1, 2, 0, 0, 0, 1, 0, 0]},
            {again, b}, {send, a, 1}]),
    %% a gave a session up, whose inlet had a message that it had not delivered. b resumed that
    %% session, and stopped, before it heard so; and delivered by plain distribution.
    ok = session_world:run(
           {new, new},
           [{go, [0, 0, 0, 0]}, {go, [0]}, {send, a, 1}, {go, lists:duplicate(7, 0)}, {send, a, 1},
            {go, lists:duplicate(43, 0)}, {send, a, 1}, {go, [0]}, {send, a, 1}, {send, a, 1},
            {send, a, 1}, {go, [0, 0]}, {go, [0, 0, 0, 1]}, {go, [0]}, {hold, inlet, a},
            {send, b, 3}, {send, a, 1}, {go, [1, 0, 3, 0, 0]}, {go, [0, 0, 0]},
            {go, [0, 1, 0, 0, 4]}, {go, [0, 0, 0, 1, 0]}, {break, 0},
            {go, [0, 0, 0, 0, 0, 1, 1]}, {go, [0, 0, 1]}, {go, [2, 2]},
            {go, [2, 0, 2, 0, 1, 0, 3]}, {go, [0]}, {go, [0, 0, 0, 2, 3, 0]}, {send, a, 1},
            {go, [0, 0, 1, 0, 1]}, {expire, a}, {go, [4]}, {stop, b}, {send, b, 3},
            {hold, speaker, b}, {go, [5]}, {go, [5, 0]}, {go, lists:duplicate(18, 0)},
            {go, [0, 0, 1, 3, 4]}]),
    %% A link that stopped while it held what its lanes had lost patience, with an attempt to
    %% connect under way from the time before. It took no notice of the next incarnation of the
    %% node, to which its lanes delivered.
    ok = session_world:run(
           {new, new},
           [{go, lists:duplicate(2, 1)}, {go, [1, 0, 0, 0, 0, 0]}, {crash, a}, {go, [0]},
            {break, 0}, {go, lists:duplicate(8, 0)}, {send, a, 1}, {go, lists:duplicate(14, 0)},
            {stop, a}, {send, a, 1}, {go, [0]}, {kill, b, none}, {go, [0, 0]}, {send, a, 1},
            {go, [0]}, connect, {stall, a}]).

%% The first of these, step by step: the attempt's end says nothing of the connection that is there;
%% only if nothing can be watched by that is it lost.
attempt_fails(_) ->
    Shape = {2, trunkline_gate:least(1000), trunkline_gate:limit(1000)},
    {S1, _} = new(hello(2), down, {Shape, [l1, l2]}),
    {S2, Effects2} = trunkline_session:step(connect, S1),
    ?assert(lists:member({connect, supervisor}, Effects2)),
    {S3, Effects3} = trunkline_session:step({nodeup, one, true}, S2),
    ?assertEqual({holding, false},
                 {trunkline_session:phase(S3), lists:keymember(watch, 1, Effects3)}),
    {S4, Effects4} = trunkline_session:step({down, supervisor, noconnection}, S3),
    ?assertEqual({holding, [{watch, supervisor, supervisor}]},
                 {trunkline_session:phase(S4), Effects4}),
    {S5, _} = trunkline_session:step({down, supervisor, noconnection}, S4),
    ?assertEqual(down, trunkline_session:phase(S5)).

%% And the second: a link that drains says hello when it may have missed a question.
asks_again(_) ->
    {S, Said} = steps(up() ++ [{drain, make_ref()}]),
    ?assertEqual(closing, trunkline_session:phase(S)),
    {Again, Effects} = trunkline_session:step({nodeup, one, true}, S),
    ?assertMatch([_], [x || {say, links, {hello, here, _, _, true}} <- Effects]),
    {_, Effects1} = trunkline_session:step({open, there, name(Said), asked, [t1, t2]}, Again),
    ?assertEqual([{say, there, {opened, asked, [i1, i2], d1}}], Effects1).

%% A link that has another session, and may have our inlets, is told that we have another one, too.
%% (Its first hello may be lost with trunkline_links, so that we answer its question too early.)
begins_again(_) ->
    {S, Said} = steps([{hello, there, theirs, hello(2), false}, {started, lanes, [l1, l2]},
                       fun(Effects) -> {open, there, name(Effects), asked, [t1, t2]} end,
                       {started, inlets, {[i1, i2], d1}}]),
    {S1, Effects1} = trunkline_session:step({hello, there, anew, hello(2), false}, S),
    ?assertNotEqual(name(Said), name(Effects1)),
    {_, Effects2} = trunkline_session:step({open, there, name(Said), asked, [t1, t2]}, S1),
    ?assertEqual([], Effects2),
    %% (Its lanes deliver what they have, and then hold what comes.)
    S2 = lists:foldl(fun(Event, Before) -> element(1, trunkline_session:step(Event, Before)) end,
                     S1, [finished, lanes_ready, lanes_ready]),
    {_, Effects3} = trunkline_session:step({open, there, name(Effects1), again, [t1, t2]}, S2),
    ?assertMatch([{start, {inlets, [t1, t2], _}}], Effects3).

%% After the first break a session connects at once. If a connection does not last, it waits, and
%% longer each time; once one has lasted it does not wait.
does_not_last(_) ->
    Lasting = (hello(2))#{resume_time => 600_000},
    {Up, Effects0} = steps(Lasting, up(Lasting)),
    Break = fun(S) ->
                    {S1, Effects} = trunkline_session:step({down, peer, noconnection}, S),
                    ?assertEqual(suspended, trunkline_session:phase(S1)),
                    {S1, [Pause || {timer, connect, Pause} <- Effects]}
            end,
    Resume = fun(S) ->
                     Hello = {hello, there, theirs, Lasting#{resume => name(Effects0)}, false},
                     {S1, _} = trunkline_session:step(Hello, S),
                     ?assertEqual(up, trunkline_session:phase(S1)),
                     S1
             end,
    {S1, []} = Break(Up),
    {S2, [Pause]} = Break(Resume(S1)),
    {S3, [Longer]} = Break(Resume(S2)),
    ?assert(Longer > Pause),
    {Settled, []} = trunkline_session:step({timeout, settled}, Resume(S3)),
    {_, []} = Break(Settled).

%% A drain of a session that does not open gives up, and its senders use plain distribution again.
held_for_drain(_) ->
    {S, Effects} = steps([{hello, there, theirs, hello(2), false}, {started, lanes, [l1, l2]},
                          {drain, caller}]),
    ?assertEqual(wait, lists:last([Path || {path, Path} <- Effects])),
    {S1, Effects1} = trunkline_session:step(stalled, S),
    ?assertEqual([{answer, caller, timeout}, {path, direct}, {dismiss, again}],
                 Effects1 -- [{patience, cancel}]),
    {_, Effects2} = trunkline_session:step({drain, other}, S1),
    ?assertEqual([{path, wait}, {patience, start}], Effects2),
    %% Also if other lanes have to be started meanwhile.
    {Other, Effects3} = steps(up() ++ [{goodbye, there, make_ref()}, lanes_ready,
                                       {hello, there, again, hello(1), false}, {drain, caller},
                                       lanes_ready, {started, lanes, [n1]}]),
    ?assertEqual(opening, trunkline_session:phase(Other)),
    ?assert(lists:member({start, {lanes, {1, trunkline_gate:least(1000),
                                          trunkline_gate:limit(1000)}}}, Effects3)),
    {_, Effects4} = trunkline_session:step(stalled, Other),
    ?assertEqual(direct, lists:last([Path || {path, Path} <- Effects3 ++ Effects4])).

%% A link that stops when the connection is lost waits until its lanes have counted what is lost.
counts_before_it_stops(_) ->
    {S, _} = steps(up() ++ [stop, {down, peer, noconnection}, finished]),
    ?assertEqual(closing, trunkline_session:phase(S)),
    {S1, Effects} = trunkline_session:step(lanes_ready, S),
    ?assertEqual({ended, true}, {trunkline_session:phase(S1), lists:member(stop, Effects)}).

%% A stop joins a drain that is under way. It waits for its inlets, as long as there is patience.
leaves_once(_) ->
    Goodbyes = fun(Effects) -> [Ref || {say, there, {goodbye, here, Ref}} <- Effects] end,
    {S, Effects} = steps(up() ++ [{drain, caller}, stop, lanes_ready,
                                  fun(Said) -> {goodbye_ok, hd(Goodbyes(Said))} end]),
    ?assertMatch({closing, [_]}, {trunkline_session:phase(S), Goodbyes(Effects)}),
    ?assertEqual([{path, lanes}, {path, wait}, {path, direct}],
                 lists:nthtail(1, [Path || {path, _} = Path <- Effects])),
    ?assertEqual({patience, start}, lists:last(Effects)),
    [begin
         {S1, Last} = trunkline_session:step(Event, S),
         ?assertEqual(ended, trunkline_session:phase(S1)),
         ?assertEqual(Answers, [Answer || {answer, caller, Answer} <- Last])
     end || {Event, Answers} <- [{finished, [ok]}, {stalled, [timeout]}]],
    %% If the peer is silent, its inlets may wait for the peer, too: they get a second.
    {S2, Silent} = steps(up() ++ [stop, stalled]),
    ?assertEqual({closing, [1000]}, {trunkline_session:phase(S2),
                                     [Time || {timer, finish, Time} <- Silent]}),
    {S3, _} = trunkline_session:step({timeout, finish}, S2),
    ?assertEqual(ended, trunkline_session:phase(S3)).

%% A drain that waits together with a stop has failed when the connection is lost. One that is asked
%% for when the session has ended is not answered: its caller hears of the link's end.
drain_and_stop(_) ->
    Opening = [{hello, there, theirs, hello(2), false}, {started, lanes, [l1, l2]}],
    Answers = fun(Events) ->
                      {S, Effects} = steps(Events),
                      {trunkline_session:phase(S), [Answer || {answer, _, _} = Answer <- Effects]}
              end,
    Lost = {down, peer, noconnection},
    ?assertEqual({ended, [{answer, caller, noconnection}]},
                 Answers(Opening ++ [{drain, caller}, stop, Lost, lanes_ready])),
    ?assertEqual({ended, []}, Answers(up() ++ [stop, Lost, {drain, late}, finished, lanes_ready])),
    ?assertEqual({ended, []}, Answers(up() ++ [stop, stalled, {drain, late}, finished])).

%% What waits for a connection is not left to wait if one came and went, and trunkline_links was
%% killed with the news of it: there is another attempt.
connects_again(_) ->
    {S, _} = down_with([connect, {down, supervisor, noproc}]),
    {S1, Effects} = trunkline_session:step(nodedown, S),
    ?assertEqual({down, [{connect, supervisor}]}, {trunkline_session:phase(S1), Effects}),
    {_, Effects1} = trunkline_session:step({down, supervisor, noconnection}, S1),
    ?assert(lists:member({dismiss, {gone, lost_unreachable}}, Effects1)).

%% A stop delivers over the connection that a message has asked for: only if the attempt fails is
%% that message lost.
stops_while_it_connects(_) ->
    {S, Effects} = down_with([connect, stop]),
    ?assertEqual({closing, direct}, {trunkline_session:phase(S), lists:last(orders(Effects))}),
    [?assertEqual({S, []}, trunkline_session:step(News, S))
     || News <- [nodedown, {nodeup, one, true}]],
    {S1, _} = trunkline_session:step(lanes_ready, S),
    ?assertEqual(ended, trunkline_session:phase(S1)),
    {_, Failed} = trunkline_session:step({down, supervisor, noconnection}, S),
    ?assertEqual([{absent, lost_queued}], orders(Failed)).

%% A peer that has resumed before us, and leaves, is answered when our lanes have resumed and are
%% done: from then on plain distribution could overtake what they hold.
goodbye_while_suspended(_) ->
    {S, Said} = steps(lasting(), up(lasting()) ++ [{down, peer, noconnection}]),
    Bye = make_ref(),
    {S1, Effects1} = trunkline_session:step({goodbye, there, Bye}, S),
    ?assertEqual({suspended, []}, {trunkline_session:phase(S1), Effects1}),
    Hello = {hello, there, theirs, (lasting())#{resume => name(Said)}, false},
    {S2, Effects2} = trunkline_session:step(Hello, S1),
    ?assertEqual({closing, [resume, drain]}, {trunkline_session:phase(S2), orders(Effects2)}),
    {S3, Effects3} = trunkline_session:step(lanes_ready, S2),
    ?assertEqual(greeting, trunkline_session:phase(S3)),
    ?assertEqual([{goodbye_ok, Bye}], [Answer || {say, there, Answer} <- Effects2 ++ Effects3]).

%% What is no hello is refused, and the session goes on.
malformed_hello(_) ->
    {S, _} = steps(up()),
    {S1, Effects} = trunkline_session:step({hello, another, anew, #{}, true}, S),
    ?assertEqual({up, [{refused, malformed, #{}}]}, {trunkline_session:phase(S1), Effects}).

%% The peer's link dies before the first session is up: senders go on by plain distribution, and do
%% not wait for another link.
peer_crashes_early(_) ->
    {S, _} = steps([{hello, there, theirs, hello(2), false}, {started, lanes, [l1, l2]}]),
    {S1, Effects} = trunkline_session:step({down, peer, killed}, S),
    ?assertEqual({greeting, [direct]}, {trunkline_session:phase(S1), orders(Effects)}),
    ?assertEqual([{path, direct}, {dismiss, again}],
                 [Effect || {Kind, _} = Effect <- Effects, Kind =:= path orelse Kind =:= dismiss]).

%% After the goodbye of the peer there is nothing to wait for in a drain. When its link ends, our
%% inlets stay for callers that wait for replies.
peer_has_left(_) ->
    {S, _} = steps(up() ++ [{goodbye, there, make_ref()}, lanes_ready]),
    ?assertEqual({greeting, there}, {trunkline_session:phase(S), trunkline_session:peer(S)}),
    {Drained, Effects} = trunkline_session:step({drain, caller}, S),
    ?assertEqual({drained, [{answer, caller, ok}], []},
                 {trunkline_session:phase(Drained), [Answer || {answer, _, _} = Answer <- Effects],
                  [Said || {say, _, Said} <- Effects]}),
    {S1, Effects1} = trunkline_session:step({down, peer, shutdown}, S),
    ?assertEqual({greeting, [{retire, [o1, o2]}], [direct]},
                 {trunkline_session:phase(S1), ends(Effects1), orders(Effects1)}).

%% A stop that has waited in vain for a suspended session gives up what its lanes hold: delivered by
%% plain distribution it could arrive twice, or at another incarnation of the node.
stops_while_suspended(_) ->
    {S, _} = steps(lasting(), up(lasting()) ++ [{down, peer, noconnection}, stop]),
    ?assertEqual(suspended, trunkline_session:phase(S)),
    {S1, Effects} = trunkline_session:step(stalled, S),
    ?assertEqual({closing, [lost]},
                 {trunkline_session:phase(S1), ends(Effects)}),
    ?assertMatch([{absent, lost_queued} | _], orders(Effects)),
    {S2, _} = trunkline_session:step(finished, S1),
    {S3, _} = trunkline_session:step(lanes_ready, S2),
    ?assertEqual(ended, trunkline_session:phase(S3)).

%% The next link of the peer can do less: what the lanes hold goes by plain distribution. They hold
%% again before there are inlets, so that no reply overtakes what comes meanwhile.
can_do_less(_) ->
    Less = (hello(2))#{capabilities := maps:get(capabilities, hello(2)) -- [v1]},
    {S, Said} = steps(up() ++ [{down, peer, killed}, finished, lanes_ready]),
    ?assertEqual(holding, trunkline_session:phase(S)),
    {S1, Effects1} = trunkline_session:step({hello, another, anew, Less, false}, S),
    ?assertEqual({opening, [direct]}, {trunkline_session:phase(S1), orders(Effects1)}),
    {S2, []} = trunkline_session:step({open, another, name(Said), again, [t1, t2]}, S1),
    {S3, Effects3} = trunkline_session:step(lanes_ready, S2),
    ?assertEqual({[hold], []}, {orders(Effects3), [What || {start, What} <- Effects3]}),
    {_, Effects4} = trunkline_session:step(lanes_ready, S3),
    ?assertMatch([{start, {inlets, [t1, t2], _}}], Effects4).

%% A drain whose patience has ended lets senders go on. It is not completed before the gates have
%% closed again, and the lanes have delivered what came meanwhile.
closes_gates_again(_) ->
    {S, Said} = steps(up() ++ [{drain, caller}, stalled]),
    ?assertEqual({path, lanes}, lists:last([Path || {path, _} = Path <- Said])),
    [Ref] = [Ref || {say, there, {goodbye, here, Ref}} <- Said],
    {S1, Effects1} = trunkline_session:step({goodbye_ok, Ref}, S),
    ?assertEqual([{path, wait}, {order, drain}, {patience, start}], Effects1),
    {S2, _} = trunkline_session:step(lanes_ready, S1),
    ?assertEqual([closing, drained], [trunkline_session:phase(Then) || Then <- [S1, S2]]),
    %% Also if the lanes are done first.
    {S3, Effects3} = trunkline_session:step(lanes_ready, S),
    ?assertEqual({closing, Effects1}, {trunkline_session:phase(S3), Effects3}).

%% A link that has drained ends the session if its peer begins another one, and declines that, once
%% its inlets have delivered. (The peer may hold what is sent until it hears so.)
declines_its_next_session(_) ->
    Answer = fun(Said) -> hd([{goodbye_ok, Ref} || {say, there, {goodbye, _, Ref}} <- Said]) end,
    {S, _} = steps(up() ++ [{drain, caller}, lanes_ready, Answer]),
    ?assertEqual({drained, there}, {trunkline_session:phase(S), trunkline_session:peer(S)}),
    {S1, Effects1} = trunkline_session:step({hello, there, anew, hello(2), true}, S),
    ?assertEqual({drained, [{retire, [o1, o2]}]},
                 {trunkline_session:phase(S1), ends(Effects1)}),
    {_, Effects2} = trunkline_session:step(finished, S1),
    ?assertMatch([{say, links, {hello, here, _, #{protocol := {0, 0}}, false}}], Effects2).

%% The peer opens other inlets for the same question: it has ended the session meanwhile, and those
%% that our lanes send to are gone. We begin again, under another name. (One of 0.5.0 may do so,
%% after a late hello of a link that was killed.)
other_inlets(_) ->
    {S, Said} = steps(up()),
    [Ref] = [Ref || {say, links, {open, here, theirs, Ref, _}} <- Said],
    ?assertEqual({S, []}, trunkline_session:step({opened, Ref, [o1, o2], dock}, S)),
    {S1, Effects} = trunkline_session:step({opened, Ref, [o3, o4], dock}, S),
    ?assertEqual({holding, none, [finish], [hold]},
                 {trunkline_session:phase(S1), trunkline_session:peer(S1), ends(Effects),
                  orders(Effects)}),
    ?assertMatch([true], [Answer || {say, links, {hello, here, _, _, Answer}} <- Effects]),
    ?assertNotEqual(name(Said), name(Effects)).

%% The last hello of a link that was killed comes behind that of its successor. The session with
%% that one ends, since links say hello when they begin. So this node begins again, and the
%% successor hears from it: otherwise the one would wait, and the other send to inlets that are
%% gone.
late_hello(_) ->
    {S, Said} = steps(up()),
    {S1, _} = trunkline_session:step({hello, killed, before, hello(2), false}, S),
    ?assertEqual({opening, killed}, {trunkline_session:phase(S1), trunkline_session:peer(S1)}),
    {S2, Effects} = trunkline_session:step({down, peer, noproc}, S1),
    ?assertEqual({holding, none}, {trunkline_session:phase(S2), trunkline_session:peer(S2)}),
    [{hello, here, Name, Hello, true}] = [Hello || {say, links, Hello} <- Effects],
    ?assertNotEqual(name(Said), Name),
    %% There this is another session of the same link, which ends the one that is up.
    {Theirs, Before} = steps(up()),
    {Theirs1, Answer} = trunkline_session:step({hello, there, Name, Hello, true}, Theirs),
    ?assertEqual([finish], ends(Answer)),
    ?assertMatch([{_, false}], [{N, Ask} || {say, links, {hello, here, N, _, Ask}} <- Answer,
                                            N =/= name(Before)]),
    ?assertEqual({opening, there},
                 {trunkline_session:phase(Theirs1), trunkline_session:peer(Theirs1)}).

up() -> up(hello(2)).

up(Hello) ->
    [{hello, there, theirs, Hello, false}, {started, lanes, [l1, l2]},
     fun(Effects) -> {open, there, name(Effects), asked, [t1, t2]} end,
     {started, inlets, {[i1, i2], d1}},
     fun(Effects) ->
             [Ref] = [R || {say, links, {open, here, theirs, R, _}} <- Effects],
             {opened, Ref, [o1, o2], dock}
     end,
     {started, trunk}].

%% It outlives its connection.
lasting() -> (hello(2))#{resume_time => 600_000}.

%% What a session does that begins on a connection. An event may depend on that.
steps(Events) -> steps(hello(2), Events).

steps(Hello, Events) -> steps_from(new(Hello, {connected, one, true}, none), Events).

steps_from(First, Events) ->
    lists:foldl(fun(Event, {S, Before}) ->
                        {S1, Effects} = trunkline_session:step(case is_function(Event) of
                                                                   true -> Event(Before);
                                                                   false -> Event
                                                               end, S),
                        {S1, Before ++ Effects}
                end, First, Events).

%% The same, of one whose node is down, with lanes.
down_with(Events) ->
    Layout = {2, trunkline_gate:least(1000), trunkline_gate:limit(1000)},
    steps_from(new(hello(2), down, {Layout, [l1, l2]}), Events).

orders(Effects) -> [Order || {order, Order} <- Effects].

ends(Effects) -> [How || {end_session, How} <- Effects].

name(Effects) -> hd([Name || {say, links, {hello, here, Name, _, _}} <- Effects]).

new(Hello, Node, Lanes) ->
    trunkline_session:new(#{link => here, hello => Hello, large_bytes => 1000, node => Node,
                            lanes => Lanes, capabilities => [], has_met => false}).

prop_history(Commands) -> prop_history(release(), Commands).

prop_history(Release, Commands) ->
    ?ALL({ReleaseA, ReleaseB, History}, {Release, Release, history(Commands)},
         session_world:run({ReleaseA, ReleaseB}, History) =:= ok).

%% A session with a `brief' one ends with its connection, and so it does with earlier releases.
release() -> oneof([new, new, new, wide, wide, brief, '0.5.0', '0.4.0']).

%% Longer than PropEr's lists are, from the start. One of the commands is much more frequent than
%% usual: what is rare together with something else that is rare would hardly be seen.
history(Commands) ->
    ?LET(Often, oneof(Commands),
         resize(250, list(frequency([{60, {go, steps_to_go()}}, {20, {send, peer(), range(1, 3)}},
                                     {10, element(2, Often)} | Commands])))).

steps_to_go() -> ?LET(Steps, range(1, 7), vector(Steps, range(0, 250))).

good() ->
    [{2, {stop, peer()}}, {4, {start, peer()}}, {2, {drain, peer()}}, {2, {full, peer()}},
     {2, {again, peer()}}, {4, {hold, queue(), peer()}}, {2, {hold, inlet, peer()}},
     {1, {late, peer()}}].

bad() ->
    [{2, break()}, {2, connect}, {1, {expire, peer()}}, {1, {gone, peer()}}, {1, {crash, peer()}},
     {1, {kill, peer(), oneof([none, release()])}}, {1, {stall, peer()}},
     {1, {unreachable, peer()}}].

break() -> {break, range(0, 20)}.

queue() -> oneof([wire, links, link, speaker, news, lane, inlet]).

peer() -> oneof([a, b]).

%% --- every event in every state -------------------------------------------------------------

%% A walk: at each step every event is tried, and one of them is taken. What was said or watched
%% before may come late, and what nobody should say comes too.
any_event(_) ->
    check(histories() div 5,
          ?ALL({Node, Steps}, {node_at_first(), list({range(0, 10_000), boolean()})},
               walk(Steps, start(Node)))).

node_at_first() ->
    oneof([down, {connected, one, true}, {connected, one, false}, {drained, one, true}]).

start(Node) ->
    done(new((hello(2))#{resume_time => 500}, Node, none), true, #{refs => [stray], lanes => none}).

hello(Lanes) ->
    #{protocol => {2, 2}, lanes => Lanes, window_bytes => 1000, bulk_bytes => 1000, release => "x",
      capabilities => [request, large, multicast, apply, label, monitor, drain, v1]}.

walk([], _) ->
    true;
walk([{N, IsFull} | Steps], {Session, Known}) ->
    Tried = [done(trunkline_session:step(Event, Session), IsFull, Known) || Event <- events(Known)],
    walk(Steps, lists:nth(N rem length(Tried) + 1, Tried)).

events(#{refs := Refs}) ->
    Links = [there, another],
    Lasting = (hello(2))#{resume_time => 1000},
    Hellos = [hello(2), hello(3), (hello(1))#{protocol := {0, 0}}, (hello(1))#{protocol := {7, 8}},
              (hello(2))#{capabilities := [large]}, #{}, Lasting
              | [Lasting#{resume => Ref} || Ref <- Refs]],
    [{nodeup, Connection, Is} || Connection <- [one, two], Is <- [true, false]]
        ++ [{down, Role, Reason} || Role <- [peer, supervisor, asked],
                                    Reason <- [noconnection, noproc, killed]]
        ++ [{hello, Link, Name, Hello, Answer}
            || Link <- Links, Name <- [one, two], Hello <- Hellos, Answer <- [true, false]]
        ++ [{open, Link, Ref, theirs, Pids} || Link <- Links, Ref <- Refs, Pids <- some_pids()]
        ++ [{opened, Ref, Pids, dock} || Ref <- Refs, Pids <- some_pids()]
        ++ [{goodbye, Link, theirs} || Link <- Links]
        ++ [{goodbye_ok, Ref} || Ref <- Refs]
        ++ [nodedown, connect, stop, {drain, make_ref()}, lanes_ready, finished, stalled, gone]
        ++ [{timeout, Name} || Name <- [retry, finish, forget, connect, resume]].

some_pids() -> [[p1], [p1, p2], [p1, p2, p3]].

%% The effects make sense: lanes are told something only while there are any, and what is to be
%% started comes once in a step. It is answered. Only to a peer that is down is a connection made.
done({Session, Effects}, IsFull, Known) ->
    not lists:keymember(connect, 1, Effects)
        orelse lists:member(trunkline_session:phase(Session), [down, suspended])
        orelse error({connects, Effects}),
    Known1 = lists:foldl(fun effect/2, Known, Effects),
    case {[What || {start, What} <- Effects], IsFull} of
        {[], _} ->
            IsEnded = trunkline_session:phase(Session) =:= ended,
            maps:is_key(stop, Known1) =:= IsEnded orelse error({ended, Effects}),
            {Session, Known1};
        {[_], true} ->
            answered(system_limit, Session, true, Known1);
        {[{lanes, {N, _, _}}], false} ->
            Lanes = lists:seq(1, N),
            answered({started, lanes, Lanes}, Session, false, Known1#{lanes := Lanes});
        {[{inlets, Theirs, _}], false} ->
            answered({started, inlets, {Theirs, here}}, Session, false, Known1);
        {[{trunk, _}], false} ->
            answered({started, trunk}, Session, false, Known1)
    end.

answered(Event, Session, IsFull, Known) ->
    done(trunkline_session:step(Event, Session), IsFull, Known).

effect({say, links, {hello, here, Name, _, _}}, Known) -> knows(Name, Known);
effect({say, there, {goodbye, here, Ref}}, Known) -> knows(Ref, Known);
effect({say, links, {open, here, _, Ref, Lanes}}, #{lanes := Lanes} = Known) -> knows(Ref, Known);
effect({order, {send, Inlets, _, _}}, #{lanes := Lanes} = Known) ->
    true = length(Inlets) =:= length(Lanes),
    Known#{suspended => false};
effect({order, suspend}, #{lanes := Lanes, suspended := _} = Known) when is_list(Lanes) ->
    Known#{suspended := true};
effect({order, resume}, #{lanes := Lanes, suspended := true} = Known) when is_list(Lanes) ->
    Known;
effect({Told, _}, #{lanes := Lanes} = Known) when Told =:= path; Told =:= order ->
    true = is_list(Lanes),
    Known;
effect(stop, Known) -> Known#{stop => true};
effect(_, Known) -> Known.

knows(Ref, #{refs := Refs} = Known) ->
    Known#{refs := lists:sublist([Ref | lists:delete(Ref, Refs)], 4)}.
