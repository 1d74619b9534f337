%% Promise 1: what one process sends to another arrives in the order in which it
%% was sent, whatever the sizes, the lanes, and the state of the link.
-module(order_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").
-include_lib("proper/include/proper.hrl").
-include("../src/gate/trunkline_route.hrl").

-export([all/0, suite/0]).
-export([sizes/1, weights/1, long_terms/1, in_turn/1, past_an_idle_lane/1]).
-export([binary_past_an_idle_lane/1,
         heavy_past_an_idle_lane/1, heavy_bytes/1, heavy_beside_others/1,
         short_past_an_idle_lane/1, given_up/1, reply_in_the_lane/1, with_a_lease/1,
         reply_to_a_lease/1, lease_ends/1, lease_is_over/1, lease_of_another_session/1,
         not_in_turn/1, not_asked/1, name_of_another/1]).
-export([heavy_replies/1,
         heavy_replies_if_busy/1, reply_behind_messages/1, reply_to_mailbox_off_heap/1]).
-export([late_term/1, opener_dies/1, lane_dies/1, drain_goes_on/1, any_traffic/1]).
-export([replies_among_messages/1, tokens_of_others/1]).
-export([full_while_lanes_come_up/1]).
-export([lanes_come_up/1, peer_stops_and_starts/1, sender_stops_and_starts/1, both_stop/1]).
-export([connection_breaks/1, lane_connections_break/1, mailboxes_off_heap/1]).
-export([replies_at_the_start/1]).
-export([last_words/0, stop_at_opened/3, suspended/1, replying/0, callers/1, serving/0,
         resumed_at_the_end/2, suspended_lane/1, lane_to/1, heavy_replying/0, heavy_later/1]).

suite() -> [{timetrap, {minutes, 20}}].

all() -> [sizes, weights, long_terms, in_turn, past_an_idle_lane, binary_past_an_idle_lane,
          heavy_past_an_idle_lane, heavy_bytes, heavy_beside_others,
          short_past_an_idle_lane, given_up, reply_in_the_lane, with_a_lease,
          reply_to_a_lease, lease_ends, lease_is_over, lease_of_another_session,
          not_asked, name_of_another, heavy_replies, heavy_replies_if_busy,
          reply_behind_messages,
          reply_to_mailbox_off_heap, not_in_turn, late_term, opener_dies, lane_dies,
          drain_goes_on, any_traffic, replies_among_messages, tokens_of_others,
          full_while_lanes_come_up, lanes_come_up, peer_stops_and_starts, sender_stops_and_starts,
          both_stop, connection_breaks, lane_connections_break, mailboxes_off_heap,
          replies_at_the_start].

%% The token of a traced message (seq_trace) is not put on messages of others in the same lane.
tokens_of_others(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    NodeB = cluster:node_of(B),
    Receiver = cluster:call(B, fun() ->
                                       Note = fun(Who) -> {Who, seq_trace:get_token()} end,
                                       Pid = spawn(fun() -> notes(Note, []) end),
                                       true = register(tokens, Pid),
                                       Pid
                               end),
    Send = fun(Who) -> trunkline:send({tokens, NodeB}, Who) end,
    Traced = fun() -> seq_trace:set_token(label, 42), Send(traced) end,
    cluster:call(A, fun() ->
                            ok = cluster:hold([lane_to(NodeB)]),
                            [begin
                                 {_, Ref} = spawn_monitor(Sender),
                                 receive {'DOWN', Ref, _, _, Why} -> normal = Why end
                             end || Sender <- [fun() -> Send(other) end, Traced]],
                            cluster:release()
                    end),
    cluster:await(fun() -> length(noted(B, Receiver)) =:= 2 end),
    ?assertEqual([{other, []}, {traced, []}], noted(B, Receiver)),
    cluster:stop_all([A, B]).

%% A receiver that notes something of each message.
notes(Note, Got) ->
    receive
        {tell, From} -> From ! {self(), lists:reverse(Got)}, notes(Note, Got);
        Message -> notes(Note, [Note(Message) | Got])
    end.

noted(B, Receiver) ->
    cluster:call(B, fun() ->
                            Receiver ! {tell, self()},
                            receive {Receiver, Notes} -> Notes end
                    end).

%% A long list is not measured, and its size is estimated all the same. What is known of its
%% elements says of which kind it is.
sizes(_) ->
    Binary = binary:copy(<<"x">>, 5000),
    Near = fun(Charge, Term) ->
                   Ratio = trunkline_gate:bytes(Charge) / erlang:external_size(Term),
                   Ratio > 0.7 andalso Ratio < 1.4
           end,
    [begin
         {about, Charge, Kind} = Size = trunkline_shape:size(Term),
         ?assert(Near(Charge, Term)),
         ?assertEqual(Charge, trunkline_shape:charge(Size)),
         ?assertEqual(Kind, trunkline_shape:kind(Size, Term))
     end || {Kind, Terms} <- [{terms, [lists:seq(1, 9999), [#{key => N} || N <- lists:seq(1, 9999)],
                                       [{N, <<"value">>} || N <- lists:seq(1, 9999)]]},
                              {binaries, [[{N, Binary} || N <- lists:seq(1, 99)]]}],
            List <- Terms, Term <- [List, {row, List}, {'$gen_cast', {row, List}}, {m, f, [List]}]],
    [begin
         {exactly, Charge} = Size = trunkline_shape:size(Term),
         ?assertEqual(trunkline_gate:charge(Term), Charge),
         ?assertEqual(Charge, trunkline_shape:charge(Size)),
         ?assertEqual(Kind, trunkline_shape:kind(Size, Term))
     end || {Kind, Terms} <- [{terms, [x, [], [1, 2, 3], #{key => lists:seq(1, 9999)},
                                       [#{key => N} || N <- lists:seq(1, 64)]]},
                              {binaries, [Binary, {row, Binary}, [Binary], [Binary | Binary]]}],
            Term <- Terms],
    %% A binary beside a long list of short elements.
    Beside = {Binary, lists:seq(1, 9999)},
    ?assertMatch({about, _, binaries}, trunkline_shape:size(Beside)),
    [begin
         Charge = trunkline_gate:charge(Term),
         Bytes = erts_debug:flat_size(Term) * erlang:system_info(wordsize),
         ?assertEqual(case IsHeavy of
                          true -> {heavy, Charge, Bytes};
                          false -> {exactly, Charge}
                      end, trunkline_shape:weighed(Charge, Term))
     end || {IsHeavy, Terms} <- [{true, [lists:duplicate(200, $a), lists:duplicate(300, $a) ++ tail,
                                         {m, [[N | x] || N <- lists:seq(1, 150)]},
                                         maps:from_keys(lists:seq(1, 250), [])]},
                                 {false, [lists:duplicate(199, $a), Binary, {m, Binary},
                                          lists:duplicate(20_000, $a)]}],
            Term <- Terms],
    %% A large binary behind many characters.
    Behind = lists:duplicate(999, $a) ++ [binary:copy(<<"x">>, 1_000_000)],
    ?assertEqual({exactly, trunkline_gate:charge(Behind)}, trunkline_shape:size(Behind)).

%% The beginning of a message tells whether it is heavy. To look at that takes a bounded time.
weights(_) ->
    Binary = binary:copy(<<"x">>, 5000),
    Document = #{<<"items">> => [#{<<"name">> => <<"some name">>, <<"price">> => N / 7}
                                 || N <- lists:seq(1, 99)]},
    Many = lists:seq(1, 100_000),
    Rows = fun(N) -> [{row, I} || I <- lists:seq(1, N)] end,
    Bytes = fun(N) -> [<<I>> || I <- lists:seq(1, N)] end,
    Heavy = [lists:seq(1, 200), lists:duplicate(300, $a) ++ tail, Rows(99), Bytes(150),
             [[N | x] || N <- lists:seq(1, 150)], maps:from_keys(lists:seq(1, 250), []),
             [list_to_tuple(lists:seq(1, 500))], Document, [Document],
             [{<<"short">>, <<"short">>} || _ <- lists:seq(1, 40)]],
    Light = [[], #{}, [a | b], lists:seq(1, 199), Rows(60), Bytes(60), #{key => lists:seq(1, 150)},
             #{a => [], b => []}],
    Binaries = [[Binary], [{N, Binary} || N <- lists:seq(1, 9999)], [<<"short">>, Binary],
                #{value => Binary}, #{Binary => 1}, [{Binary, <<"short">>}],
                #{a => Binary, b => <<"short">>},
                #{a => lists:seq(1, 20), b => {c, Binary}, d => lists:seq(1, 9999)},
                maps:from_keys(lists:seq(1, 250), Binary), [list_to_tuple([Binary || _ <- Many])],
                [{0, null} | [{N, Binary} || N <- Many]], [[], [Binary] | Many],
                [#{data => null} | [#{data => Binary} || _ <- Many]],
                lists:append([[$<, Binary] || _ <- Many])],
    Forms = [fun(T) -> T end, fun(T) -> {row, T} end, fun(T) -> {'$gen_cast', {row, T}} end,
             fun(T) -> {m, f, [T]} end],
    [?assertEqual(Weight, trunkline_shape:weight(Form(Term)), io_lib:format("~P", [Term, 9]))
     || {Weight, Terms} <- [{heavy, Heavy}, {light, Light}, {binaries, Binaries}],
        Term <- Terms, Form <- Forms],
    [?assertEqual(light, trunkline_shape:weight(Term))
     || Term <- [x, self(), Binary, {row, Binary}]],
    Nested = lists:foldl(fun(_, T) -> [T] end, [], Many),
    [?assert(reductions(fun() -> trunkline_shape:weight(Term) end) < 2000)
     || Long <- [Many, maps:from_keys(Many, []), list_to_tuple(Many), Nested, [Binary | Many],
                 [<<"short">> || _ <- Many]],
        Term <- [Long, [Long], #{a => Long}, [{Binary, Long}, Long]]],
    true = proper:quickcheck(heavy_takes_much(), [{numtests, 1000}, noshrink, quiet]).

%% (The first element of a list stands for all of them, so only lists of equal ones are made here.)
heavy_takes_much() ->
    ?FORALL(Term, uniform(),
            case trunkline_shape:weight(Term) of
                heavy -> erts_debug:flat_size(Term) >= 400;
                light -> is_tuple(Term) orelse erts_debug:flat_size(Term) < 800
            end).

uniform() -> ?SIZED(Size, uniform(min(Size, 5))).

uniform(0) ->
    proper_types:oneof([integer(-100, 100), atom(), float(), binary(8)]);
uniform(Size) ->
    Part = uniform(Size div 3),
    proper_types:oneof([uniform(0),
                        ?LET({N, Term}, {integer(1, 300), Part}, lists:duplicate(N, Term)),
                        ?LET(Terms, vector(4, Part), list_to_tuple(Terms)),
                        ?LET(Terms, vector(4, Part),
                             maps:from_list(lists:enumerate(Terms)))]).

reductions(Fun) ->
    {reductions, Before} = process_info(self(), reductions),
    _ = Fun(),
    {reductions, After} = process_info(self(), reductions),
    After - Before.

%% A long term takes one of several ways. It keeps its place, to a pid, a name and an alias, and the
%% receiver gets the same term.
long_terms(_) ->
    {A, B} = cluster:pair([]),
    Shapes = [{flat, [lists:seq(1, 5000), {row, lists:seq(1, 5000)},
                      [{N, N * 1.5} || N <- lists:seq(1, 999)]]},
              {mixed, [[#{key => N} || N <- lists:seq(1, 999)], lists:duplicate(5000, atom),
                       [binary:copy(<<"x">>, 100) || _ <- lists:seq(1, 99)],
                       [#{key => N} || N <- lists:seq(1, 9999)]]},
              {binaries, [{row, binary:copy(<<"x">>, 9000)}, #{row => binary:copy(<<"x">>, 9000)},
                          [binary:copy(<<"x">>, 5000) || _ <- lists:seq(1, 99)]]}],
    [?assertEqual({Shape, Term}, {trunkline_shape:shape(Term), Term})
     || {Shape, Of} <- Shapes, Term <- Of],
    Long = lists:append([Of || {_, Of} <- Shapes]),
    Terms = lists:append([[N, Term] || {N, Term} <- lists:enumerate(Long)]),
    All = Terms ++ Terms ++ Terms,
    Collect = fun(Caller) ->
                      true = register(collector, self()),
                      Caller ! {self(), alias()},
                      Getter = receive {get, Pid} -> Pid end,
                      Getter ! {self(), [receive Term -> Term end || _ <- All]}
              end,
    {Collector, Alias} = cluster:call(B, fun() ->
                                                 Self = self(),
                                                 Pid = spawn(fun() -> Collect(Self) end),
                                                 receive {Pid, _} = Started -> Started end
                                         end),
    ok = cluster:call(A, fun() ->
                                 _ = [trunkline:send(To, Term)
                                      || To <- [Collector, {collector, node(Alias)}, Alias],
                                         Term <- Terms],
                                 ok
                         end),
    Got = cluster:call(B, fun() ->
                                  Collector ! {get, self()},
                                  receive {Collector, Received} -> Received end
                          end),
    Got = All,
    cluster:stop_all([A, B]).

%% Long terms go by plain distribution when their turn has come. Several senders, each with short
%% and long messages, to a pid and to a name; also when everything is busy.
in_turn(_) ->
    {A, B} = cluster:pair([{large_bytes, 100000}]),
    [To] = cluster:call(B, traffic, start_receivers, [1]),
    true = cluster:call(B, erlang, register, [collector, To]),
    Sizes = [10, 60001, 10, 200002, 60002, 150000, 10, 20001, 120001, 10, 30001],
    Scripts = [{Id, [{Kind, Where, Size} || Kind <- [send, cast, send],
                                            Where <- [To, {collector, node(To)}], Size <- Sizes]}
               || Id <- lists:seq(1, 8)],
    Sent = count_sent_plain(A, fun() ->
                                       Ends = cluster:call(A, traffic, play_all, [Scripts]),
                                       true = lists:all(fun(End) -> End =:= normal end, Ends)
                               end),
    Each = 6 * length(Sizes),
    cluster:await(fun() -> cluster:call(B, traffic, count, [To]) =:= 8 * Each end),
    Got = cluster:call(B, traffic, received, [To]),
    [?assertEqual({Id, lists:seq(1, Each)}, {Id, [N || {I, N} <- Got, I =:= Id]})
     || Id <- lists:seq(1, 8)],
    %% How many depends on the load: a sender does not wait for its turn for long.
    ?assert(Sent > 0),
    cluster:stop_all([A, B]).

%% A sender that has asked once need not ask again while its lane is idle: its long term arrives
%% though the lane does not run. While something waits in the lane, or at the inlet, the term waits
%% behind it.
past_an_idle_lane(_) -> on_both_ways(fun past_an_idle_lane/2).

past_an_idle_lane(A, B) ->
    To = cluster:call(B, fun() -> spawn(fun() -> collect([]) end) end),
    #{lanes := [#{messages := Before}]} = cluster:call(A, trunkline, info, [node(To)]),
    Sent = cluster:call(
             A, fun() ->
                        {Lane, N} = send_past(To, fun(_) -> long() end),
                        _ = [trunkline:send(To, Message) || Message <- [before, long(), behind]],
                        true = erlang:resume_process(Lane),
                        cluster:await(fun() -> length(got(To)) =:= N + 3 end),
                        ?assertEqual([before, long, behind], lists:nthtail(N, got(To))),
                        N + 3
                end),
    [Inlet] = cluster:call(B, cluster, by_module, [trunkline_inlet]),
    true = cluster:call(A, fun() ->
                                   _ = trunkline:send(To, long()),
                                   cluster:await(fun() -> may_bypass(To) end),
                                   Resume = erpc:call(node(Inlet), order_SUITE, suspended, [Inlet]),
                                   _ = trunkline:send(To, before),
                                   cluster:await(fun() -> is_empty(To) end),
                                   _ = trunkline:send(To, long()),
                                   Resume ! resume,
                                   cluster:await(fun() -> length(got(To)) =:= Sent + 3 end),
                                   [long, before, long] =:= lists:nthtail(Sent, got(To))
                           end),
    %% All of them are counted, within a second or two.
    cluster:await(fun() ->
                          #{lanes := [#{messages := Now, in_flight_messages := InFlight}]} =
                              cluster:call(A, trunkline, info, [node(To)]),
                          {Now - Before, InFlight} =:= {Sent + 3, 0} orelse {Now, InFlight}
                  end).

%% The same for a binary that is not large.
binary_past_an_idle_lane(_) ->
    {A, B} = cluster:pair_on_the_distribution([{large_bytes, 10_000_000}], []),
    To = cluster:call(B, fun() -> spawn(fun() -> collect([]) end) end),
    Binary = binary:copy(<<"x">>, 3_000_000),
    true = cluster:call(A, fun() ->
                                   {Lane, _} = send_past(To, fun(_) -> Binary end),
                                   erlang:resume_process(Lane)
                           end),
    cluster:stop_all([A, B]).

%% The same for a message that takes much more memory than its size tells, however many are sent.
heavy_past_an_idle_lane(_) -> on_both_ways(fun heavy_past_an_idle_lane/2).

heavy_past_an_idle_lane(A, B) ->
    To = cluster:call(B, fun() -> spawn(fun() -> collect([]) end) end),
    ok = cluster:call(A, fun() -> heavy_past(To, 0, tries()) end).

heavy() -> lists:duplicate(450, $a).

%% While few are sent a short message goes past the lane, too. Then it tries again.
heavy_past(To, N, Tries) when Tries > 0 ->
    Burst = 10_000,
    _ = [trunkline:send(To, short) || _ <- lists:seq(1, Burst)],
    _ = trunkline:send(To, heavy()),
    cluster:await(fun() -> may_bypass(To) end),
    Lane = suspend_lane(To),
    #route{bypass = Bypass} = trunkline_route:lookup(node(To)),
    IsQuiet = trunkline_bypass:is_quiet(1, Bypass),
    _ = trunkline:send(To, heavy()),
    Past = length(got(To)) - N,
    _ = trunkline:send(To, behind),
    PastWithShort = length(got(To)) - N,
    true = erlang:resume_process(Lane),
    All = Burst + 3,
    cluster:await(fun() -> length(got(To)) =:= N + All end),
    ?assertEqual([long, long, behind], lists:nthtail(N + Burst, got(To))),
    case not IsQuiet andalso Past =:= All - 1 of
        true -> ?assertEqual(Past, PastWithShort);
        false -> heavy_past(To, N + All, Tries - 1)
    end.

%% These are not measured, but for one of sixteen. All of their bytes are counted, about.
heavy_bytes(_) ->
    {A, B} = cluster:pair_on_the_distribution(),
    To = cluster:call(B, fun() -> spawn(fun() -> collect([]) end) end),
    Counted = fun() ->
                      #{lanes := [#{messages := Messages, bytes := Bytes}]} = cluster:info(A, B),
                      {Messages, Bytes}
              end,
    N = 5000,
    {Messages, Bytes} = Counted(),
    ok = cluster:call(A, fun() ->
                                 _ = [trunkline:send(To, heavy()) || _ <- lists:seq(1, N)],
                                 cluster:await(fun() -> length(got(To)) =:= N end)
                         end),
    cluster:await(fun() -> element(1, Counted()) =:= Messages + N end),
    Mean = (element(2, Counted()) - Bytes) / N,
    Each = trunkline_gate:bytes(trunkline_gate:charge(heavy())),
    ?assert(Mean > 0.6 * Each andalso Mean < 1.5 * Each, {Mean, Each}),
    cluster:stop_all([A, B]).

%% A busy connection suspends the sender of a heavy message, as it does with `!'. What it sends
%% behind that one waits, too, and nothing is lost.
heavy_beside_others(_) ->
    {A, B} = cluster:pair_on_the_distribution(),
    To = cluster:call(B, fun() -> spawn(fun() -> collect([]) end) end),
    Keep = fun() -> trunkline:send(To, heavy()), cluster:await(fun() -> may_bypass(To) end) end,
    cluster:call(A, Keep),
    cluster:suspend(B),
    Others = cluster:call(A, fun() -> spawn(fun() -> fill({nobody, node(To)}) end) end),
    Reductions = fun() -> process_info(Others, reductions) end,
    %% The kernel still takes some of it after the first time that it is suspended.
    IsStuck = fun() ->
                      Before = Reductions(),
                      receive after 200 -> ok end,
                      {status, suspended} =:= process_info(Others, status)
                          andalso Before =:= Reductions()
              end,
    cluster:call(A, fun() -> cluster:await(IsStuck) end),
    cluster:call(A, fun() ->
                            Sender = spawn(fun() ->
                                                   _ = trunkline:send(To, heavy()),
                                                   trunkline:send(To, behind)
                                           end),
                            %% (Or the lane has forgotten the mailbox meanwhile, and has it.)
                            cluster:await(fun() ->
                                                  lists:member(process_info(Sender, status),
                                                               [{status, suspended}, undefined])
                                          end)
                    end),
    cluster:continue(B),
    true = cluster:call(A, erlang, exit, [Others, kill]),
    cluster:call(A, fun() -> cluster:await(fun() -> got(To) =:= [long, long, behind] end) end),
    #{lost := Lost} = cluster:info(A, B),
    ?assertEqual([], [N || N <- maps:values(Lost), N > 0]),
    cluster:stop_all([A, B]).

fill(To) ->
    To ! binary:copy(<<"x">>, 1 bsl 20),
    fill(To).

%% The same for short messages, while few are sent. After many of them the next ones go by lane, in
%% order. None goes past the lane to a mailbox off the heap.
short_past_an_idle_lane(_) -> on_both_ways(fun short_past_an_idle_lane/2).

short_past_an_idle_lane(A, B) ->
    Collect = fun() -> collect([]) end,
    [To, Other] = [cluster:call(B, fun() -> spawn(Collect) end) || _ <- [1, 2]],
    OffHeap = cluster:call(B, fun() -> spawn_opt(Collect, [{message_queue_data, off_heap}]) end),
    Burst = 20_000,
    cluster:call(
      A, fun() ->
                 {Lane, N} = send_short_past(To, OffHeap, 0),
                 1 = trunkline:send(Other, 1),
                 _ = trunkline:send(To, N + 1),
                 ?assertEqual(N, length(got(To))),
                 true = erlang:resume_process(Lane),
                 cluster:await(fun() -> length(got(To)) =:= N + 1 end),
                 _ = [trunkline:send(To, M) || M <- lists:seq(N + 2, N + Burst)],
                 cluster:await(fun() -> length(got(To)) =:= N + Burst end),
                 ?assertEqual(lists:seq(1, N + Burst), got(To)),
                 %% It becomes quiet again.
                 {Lane1, Last} = send_short_past(To, OffHeap, N + Burst),
                 true = erlang:resume_process(Lane1),
                 ?assertEqual(lists:seq(1, Last), got(To)),
                 #route{mailboxes = {Table}} = trunkline_route:lookup(node(To)),
                 ?assertNot(trunkline_mailboxes:may_receive(OffHeap, Table)),
                 %% When nothing is sent any more it knows nothing that could become too old.
                 cluster:await(fun() -> ets:info(Table, size) =:= 0 end),
                 ok
         end).

%% As send_past/2, with numbers as messages. The other receiver gets some of them, too, while the
%% lane runs.
send_short_past(To, Other, N) ->
    send_past(To, fun(M) ->
                          _ = (M - N) rem 2 =:= 1 andalso trunkline:send(Other, M),
                          M
                  end, N, tries()).

%% With batches that go by the distribution, and by connections. There is one lane.
on_both_ways(Fun) ->
    lists:foreach(fun({A, B}) ->
                          Fun(A, B),
                          cluster:stop_all([A, B])
                  end, [cluster:pair_on_the_distribution(), pair_on_connections()]).

pair_on_connections() ->
    {A, B} = cluster:pair([{lanes, 1}, {lane_transport, tcp}]),
    await_lane_connection(A, B),
    await_lane_connection(B, A),
    {A, B}.

%% Returns the suspended lane, and how many that receiver has got. (It tries again if the lane was
%% not idle any more, or if it is a second since the sender has asked.)
send_past(To, Message) -> send_past(To, Message, 0, tries()).

tries() -> 1000.

send_past(To, Message, N, Tries) when Tries > 0 ->
    _ = trunkline:send(To, Message(N + 1)),
    cluster:await(fun() -> may_bypass(To) end),
    Lane = suspend_lane(To),
    _ = trunkline:send(To, Message(N + 2)),
    case length(got(To)) - N of
        2 ->
            {Lane, N + 2};
        _ ->
            true = erlang:resume_process(Lane),
            cluster:await(fun() -> length(got(To)) =:= N + 2 end),
            send_past(To, Message, N + 2, Tries - 1)
    end.

%% A sender stands still before it sends past its lane, and after a second or two the lane does not
%% count on it any more. Then it sends, or cannot send. What it sends behind that one waits all the
%% same.
given_up(_) ->
    on_both_ways(
      fun(A, B) ->
              [begin
                   To = cluster:call(B, fun() -> spawn(fun() -> collect([]) end) end),
                   ?assertEqual({How, [long, behind]},
                                {How, cluster:call(A, fun() -> given_up(How, To) end)})
               end || How <- [late, never]]
      end).

given_up(How, To) ->
    #route{gate = Gate, bypass = Bypass, lanes = {Lane}} = trunkline_route:lookup(node(To)),
    Long = [#{key => N, value => [N, N + 1, foo]} || N <- lists:seq(1, 40_000)],
    ok = ask_and_report(To),
    cluster:await(fun() -> trunkline_bypass:start(Gate, 1, 0, Bypass) end),
    spawn(trunkline, send, [To, other]),
    cluster:await(fun() -> cluster:hibernates(Lane) end),
    case How of
        late ->
            _ = erlang:send(To, Long),
            _ = trunkline_bypass:sent(1, Bypass);
        never ->
            ok = trunkline_bypass:cancel(1, Bypass),
            ok = ask_and_report(To),
            _ = trunkline:send(To, Long)
    end,
    _ = trunkline:send(To, behind),
    All = case How of
              late -> 5;
              never -> 7
          end,
    cluster:await(fun() -> length(got(To)) =:= All orelse got(To) end),
    lists:nthtail(All - 2, got(To)).

%% From here on this process may send past its lane, for a second.
ask_and_report(To) ->
    _ = trunkline:send(To, long()),
    _ = trunkline:send(To, other),
    cluster:await(fun() -> may_bypass(To) end).

%% Nothing but the lane knows of a reply of gen_server:reply/2. What the server sends behind it
%% waits, too.
reply_in_the_lane(_) -> on_both_ways(fun reply_in_the_lane/2).

reply_in_the_lane(A, B) ->
    Server = cluster:call(B, fun() -> spawn(fun reply_between/0) end),
    ok = cluster:call(A, fun() ->
                                 Id = trunkline:send_request(Server, reply),
                                 [[_ | _], Reply, [_ | _]] =
                                     [receive Message -> Message end || _ <- [1, 2, 3]],
                                 ?assertEqual({reply, ok}, trunkline:check_response(Reply, Id)),
                                 ok
                         end).

reply_between() ->
    {Caller, _} = From = receive {'$gen_call', F, reply} -> F end,
    _ = trunkline:send(Caller, long()),
    cluster:await(fun() -> another_may_bypass(Caller) end),
    Lane = suspend_lane(Caller),
    gen_server:reply(From, ok),
    _ = trunkline:send(Caller, long()),
    true = erlang:resume_process(Lane).

%% A caller that has had a long request for a server need not ask for the next: it arrives though
%% the lane does not run. While something waits in the lane the request waits behind it.
with_a_lease(_) ->
    on_both_ways(fun(A, B) ->
                         Server = cluster:call(B, erlang, spawn, [?MODULE, serving, []]),
                         [before] = cluster:call(A, fun() -> call_past(Server) end)
                 end).

call_past(Server) ->
    Lane = suspended_with_lease(Server),
    Id = trunkline:send_request(Server, {reply, long()}),
    Response = trunkline:wait_response(Id, 1000),
    true = erlang:resume_process(Lane),
    case Response of
        {reply, ok} ->
            Lane = suspended_with_lease(Server),
            _ = trunkline:send(Server, before),
            Id1 = trunkline:send_request(Server, {got, long()}),
            true = erlang:resume_process(Lane),
            {reply, Got} = trunkline:receive_response(Id1, infinity),
            Got;
        timeout ->                           % the lease had ended, or the lane was not idle
            {reply, ok} = trunkline:receive_response(Id, infinity),
            call_past(Server)
    end.

%% Returns the lane of this process, which is the only one.
suspended_with_lease(Server) ->
    ok = trunkline:call(Server, {reply, long()}),
    cluster:await(fun() -> may_bypass(Server) end),
    suspend_lane(Server).

%% Such a request has come, and its agent has not heard of it. What the server sends behind the
%% reply waits all the same.
reply_to_a_lease(_) ->
    on_both_ways(fun(A, B) ->
                         Server = cluster:call(B, erlang, spawn, [?MODULE, serving, []]),
                         [long, reply, long] =
                             cluster:call(A, fun() -> agent_suspended(Server) end)
                 end).

agent_suspended(Server) ->
    ok = trunkline:call(Server, {reply, long()}),
    [Inlet] = erpc:call(node(Server), cluster, by_module, [trunkline_inlet]),
    Suspender = erpc:call(node(Server), ?MODULE, suspended, [Inlet]),
    cluster:await(fun() -> may_bypass(Server) end),
    Id = trunkline:send_request(Server, {between, long()}),
    Got = fun() ->
                  receive
                      [_ | _] -> long;
                      Message -> ?assertEqual({reply, ok}, trunkline:check_response(Message, Id)),
                                 reply
                  end
          end,
    HasLease = has_come(2000),
    _ = HasLease orelse (Suspender ! resume),
    case [Got() || _ <- [1, 2, 3]] of
        All when HasLease -> Suspender ! resume, All;
        _ -> agent_suspended(Server)
    end.

%% Whether a message comes in that time (ms).
has_come(Left) ->
    case process_info(self(), message_queue_len) of
        {message_queue_len, 0} when Left > 0 -> receive after 1 -> has_come(Left - 1) end;
        {message_queue_len, N} -> N > 0
    end.

%% The server ends when it gets such a request, and its caller hears of that, though the agent
%% hears of the request last. The next caller hears that there is no server.
lease_ends(_) ->
    {A, B} = cluster:pair_on_the_distribution(),
    [begin
         Server = cluster:call(B, erlang, spawn, [?MODULE, serving, []]),
         ?assertMatch([{exit, {because, _}}, {exit, {noproc, _}}],
                      cluster:call(A, fun() -> call_until_it_ends(Server) end))
     end || _ <- lists:seq(1, 10)],
    cluster:stop_all([A, B]).

%% A lease is over while the server's lane stands still. Until that goes on, the server has to ask:
%% a request, and its reply, may be there.
lease_is_over(_) ->
    {A, B} = cluster:pair_on_the_distribution(),
    NodeA = cluster:node_of(A),
    Server = cluster:call(B, erlang, spawn, [?MODULE, serving, []]),
    [Inlet] = cluster:call(B, cluster, find, [inlets, NodeA]),
    %% {server, Monitor, Lane, Leased, Callers}
    Leased = fun() ->
                     Servers = element(3, cluster:agent(Inlet, B)),
                     case Servers of
                         #{Server := Known} -> element(4, Known);
                         #{} -> unknown
                     end
             end,
    Marks = fun() ->
                    cluster:call(B, fun() ->
                                            #route{bypass = Bypass} = trunkline_route:lookup(NodeA),
                                            atomics:get(Bypass, erlang:phash2(Server, 1024) + 1)
                                    end)
            end,
    End = fun() ->
                  ok = cluster:call(A, fun() -> trunkline:call(Server, {reply, long()}) end),
                  ok = cluster:call(B, fun() -> cluster:hold([lane_to(NodeA)]) end),
                  cluster:await(fun() -> L = Leased(), is_reference(L) orelse L =:= 0 orelse L end),
                  is_reference(Leased())
          end,
    %% (On a slow machine the lease may be over before the lane stands still.)
    cluster:await(fun() -> End() orelse begin cluster:call(B, cluster, release, []), false end end),
    ?assertEqual(1, Marks()),
    cluster:call(B, cluster, release, []),
    cluster:await(fun() -> {Leased(), Marks()} =:= {0, 0} end),
    cluster:stop_all([A, B]).

%% A lane stands still. Senders of long terms ask it once each, and not again until it goes on.
not_asked(_) ->
    {A, B} = cluster:pair_on_the_distribution(),
    Server = cluster:call(B, erlang, spawn, [?MODULE, serving, []]),
    NodeB = cluster:node_of(B),
    Lane = cluster:call(A, ?MODULE, lane_to, [NodeB]),
    ok = cluster:call(A, cluster, hold, [[Lane]]),
    Attempt = fun() -> try trunkline:call(Server, {reply, long()}, 150) of
                           ok -> ok
                       catch
                           exit:{timeout, _} -> timeout
                       end
              end,
    Attempts = cluster:call(A, fun() ->
                                       Pids = [spawn_monitor(fun() ->
                                                   exit([Attempt() || _ <- lists:seq(1, 10)])
                                               end) || _ <- lists:seq(1, 5)],
                                       [receive {'DOWN', Ref, _, _, Outcomes} -> Outcomes end
                                        || {_, Ref} <- Pids]
                               end),
    ?assertEqual([timeout || _ <- lists:seq(1, 50)], lists:append(Attempts)),
    {messages, Messages} = cluster:call(A, erlang, process_info, [Lane, messages]),
    Asks = [Ask || Ask <- Messages, element(1, Ask) =:= ask],
    ?assert(length(Asks) =< 5),
    cluster:call(A, cluster, release, []),
    ok = cluster:call(A, fun() -> trunkline:call(Server, {reply, long()}) end),
    MayAsk = fun() ->
                     #route{bypass = Bypass} = trunkline_route:lookup(NodeB),
                     not trunkline_bypass:is_late(1, Bypass)
             end,
    cluster:await(fun() -> cluster:call(A, MayAsk) end),
    cluster:stop_all([A, B]).

%% A long term to a name stays behind a large message of the same sender: by the time that it
%% arrives the receiver of that may have the name.
name_of_another(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    To = {of_another, cluster:node_of(B)},
    Kind = fun(Message) when is_binary(Message) -> binary;
              (Message) when is_list(Message) -> list
           end,
    [First, Second] = [cluster:call(B, fun() -> spawn(fun() -> notes(Kind, []) end) end)
                       || _ <- [1, 2]],
    true = cluster:call(B, erlang, register, [of_another, First]),
    ok = cluster:call(B, fun() -> cluster:hold(cluster:find(dock, cluster:node_of(A))) end),
    cluster:call(A, fun() ->
                            trunkline:send(Second, binary:copy(<<7>>, 1_000_000)),
                            trunkline:send(To, long())
                    end),
    true = cluster:call(B, fun() -> unregister(of_another), register(of_another, Second) end),
    cluster:call(B, cluster, release, []),
    cluster:await(fun() ->
                          Got = [noted(B, Pid) || Pid <- [First, Second]],
                          Got =:= [[], [binary, list]] orelse Got
                  end),
    cluster:stop_all([A, B]).

%% The session ends before a lease does.
lease_of_another_session(_) ->
    {A, B} = cluster:pair_on_the_distribution(),
    Server = cluster:call(B, erlang, spawn, [?MODULE, serving, []]),
    Request = {call, Server, self(), make_ref()},
    Call = fun() -> ok = trunkline:call(Server, {reply, long()}) end,
    {Lane, Agent, Inlet} = cluster:call(A, fun() -> traffic:await_lease(Server, Call) end),
    From = {self(), [[alias | Lane] | {make_ref(), {self(), Server}, Agent}]},
    Keep = fun() ->
                   Asked = {erlang:monotonic_time(millisecond), Inlet},
                   ok = trunkline_lease:keep({go, Server, {call, '$gen_call', From}}, Request,
                                             node(Server), Asked),
                   trunkline_lease:is_held(Request, node(Server))
           end,
    true = cluster:call(A, Keep),
    cluster:call(B, cluster, stop_trunkline, []),
    cluster:call(B, cluster, start_trunkline, [[{lanes, 1}, {lane_transport, dist}]]),
    cluster:await_lanes(A, B),
    false = cluster:call(A, Keep),
    cluster:stop_all([A, B]).

call_until_it_ends(Server) ->
    Call = fun(What) ->
                   traffic:attempt(fun() -> trunkline:call(Server, {What, long()}, infinity) end)
           end,
    {ok, ok} = Call(reply),
    cluster:await(fun() -> may_bypass(Server) end),
    _ = erpc:call(node(Server), ?MODULE, resumed_at_the_end, [self(), Server]),
    End = Call(exit),
    [End, Call(reply)].

%% The lane to the caller's node does not run as long as that process lives.
resumed_at_the_end(Caller, Pid) ->
    Suspender = suspended_lane(Caller),
    spawn(fun() ->
                  Ref = monitor(process, Pid),
                  receive {'DOWN', Ref, process, Pid, _} -> Suspender ! resume end
          end).

%% A server that gets long requests.
serving() -> serving([]).

serving(Got) ->
    receive
        {'$gen_call', From, {reply, _}} ->
            gen_server:reply(From, ok),
            serving(Got);
        {'$gen_call', From, {got, _}} ->
            gen_server:reply(From, lists:reverse(Got)),
            serving([]);
        {'$gen_call', {Caller, _} = From, {between, _}} ->
            _ = trunkline:send(Caller, long()),
            cluster:await(fun() -> another_may_bypass(Caller) end),
            Lane = suspend_lane(Caller),
            gen_server:reply(From, ok),
            _ = trunkline:send(Caller, long()),
            true = erlang:resume_process(Lane),
            serving(Got);
        {'$gen_call', _, {exit, _}} ->
            exit(because);
        Message ->
            serving([Message | Got])
    end.

%% A long reply goes by plain distribution, but only when everything has been delivered that its
%% server has sent before. What the server sends behind it waits, too.
reply_behind_messages(_) ->
    on_both_ways(fun(A, B) ->
                         Server = cluster:call(B, erlang, spawn, [?MODULE, replying, []]),
                         kept(A, B, fun() -> [cluster:call(A, fun() -> reply_behind(Server) end)]
                                    end)
                 end).

%% A heavy reply goes by plain distribution if everything has arrived that its server has sent
%% before, and by lane otherwise. It keeps its place among the server's messages.
heavy_replies(_) -> on_both_ways(fun heavy_replies/2).

heavy_replies(A, B) ->
    Server = cluster:call(B, erlang, spawn, [?MODULE, heavy_replying, []]),
    Calls = [{1, 600}, {8, 75}, {1, 600}],
    [ok = cluster:call(A, fun() -> heavy_calls(Server, Callers, Each) end)
     || {Callers, Each} <- Calls],
    %% Both happen.
    #{large := #{messages := Plain}} = cluster:info(B, A),
    ?assert(Plain > 0 andalso Plain < 1800, Plain).

heavy_calls(Server, Callers, Each) ->
    Pids = [spawn_monitor(fun() -> heavy_calls(Server, Each) end) || _ <- lists:seq(1, Callers)],
    lists:foreach(fun({Pid, Ref}) ->
                          receive {'DOWN', Ref, process, Pid, How} -> normal = How end
                  end, Pids).

heavy_calls(_, 0) ->
    ok;
heavy_calls(Server, N) ->
    Id = trunkline:send_request(Server, N),
    Script = heavy_script(N),
    Got = [receive Message -> Message end || _ <- Script],
    ?assertEqual([case Step of
                      reply -> {reply, heavy_reply()};
                      _ -> Step
                  end || Step <- Script],
                 [case is_atom(Message) of
                      true -> Message;
                      false -> trunkline:check_response(Message, Id)
                  end || Message <- Got]),
    heavy_calls(Server, N - 1).

heavy_script(N) when N rem 3 =:= 0 -> [before, reply, behind];
heavy_script(N) when N rem 3 =:= 1 -> [reply, behind];
heavy_script(_) -> [reply].

heavy_reply() -> lists:seq(1001, 4000).

heavy_replying() ->
    {{Caller, _} = From, N} = receive {'$gen_call', F, S} -> {F, S} end,
    lists:foreach(fun(reply) -> gen_server:reply(From, heavy_reply());
                     (Message) -> trunkline:send(Caller, Message)
                  end, heavy_script(N)),
    heavy_replying().

%% A connection that is busy, for the peer has stopped, does not suspend servers for their heavy
%% replies: these wait in the lane, within its bound.
heavy_replies_if_busy(_) ->
    {A, B} = cluster:pair_on_the_distribution([{queue_bytes, 1 bsl 26}], []),
    Servers = [cluster:call(B, erlang, spawn, [?MODULE, heavy_later, [[]]])
               || _ <- lists:seq(1, 8)],
    N = 400,
    Caller = cluster:call(A, fun() -> spawn(fun() -> heavy_at_once(Servers, N) end) end),
    Asked = fun() -> [heavy_asked(Server) || Server <- Servers] end,
    cluster:call(B, fun() -> cluster:await(fun() -> lists:usort(Asked()) =:= [N] end) end),
    cluster:suspend(A),
    cluster:call(B, fun() ->
                            _ = [Server ! go || Server <- Servers],
                            ?assertEqual([0], lists:usort(Asked()))
                    end),
    cluster:continue(A),
    done = cluster:call(A, fun() -> Caller ! {tell, self()}, receive done -> done end end),
    #{lost := Lost} = cluster:info(B, A),
    ?assertEqual([], [Some || Some <- maps:values(Lost), Some > 0]),
    cluster:stop_all([A, B]).

heavy_at_once(Servers, N) ->
    _ = [heavy_now(Server) || Server <- Servers, _ <- lists:seq(1, 5)],
    Ids = [trunkline:send_request(Server, later) || _ <- lists:seq(1, N), Server <- Servers],
    _ = [?assertEqual({reply, heavy_reply()}, trunkline:receive_response(Id, infinity))
         || Id <- Ids],
    receive {tell, Pid} -> Pid ! done end.

heavy_now(Server) -> ?assertEqual(heavy_reply(), trunkline:call(Server, now)).

%% How many requests it still has to reply to.
heavy_asked(Server) ->
    Ref = make_ref(),
    Server ! {self(), Ref},
    receive {Ref, N} -> N after 10_000 -> process_info(Server, [status, message_queue_len]) end.

heavy_later(Later) ->
    receive
        {'$gen_call', From, now} ->
            gen_server:reply(From, heavy_reply()),
            heavy_later(Later);
        {'$gen_call', From, later} ->
            heavy_later([From | Later]);
        go ->
            _ = [gen_server:reply(From, heavy_reply()) || From <- Later],
            heavy_later([]);
        {Pid, Ref} ->
            Pid ! {Ref, length(Later)},
            heavy_later(Later)
    end.

%% The lane keeps replies for their turn. That to a mailbox off the heap goes by lane then.
reply_to_mailbox_off_heap(_) ->
    {A, B} = cluster:pair_on_the_distribution(),
    Servers = [cluster:call(B, erlang, spawn, [?MODULE, replying, []]) || _ <- [1, 2]],
    kept(A, B, fun() -> cluster:call(A, fun() -> replies_kept(Servers) end) end),
    cluster:stop_all([A, B]).

%% Fun returns a caller whose reply the lane at B should keep for its turn, and callers for whom it
%% should not. (It may not have kept the first: it had just forgotten that the caller's mailbox is
%% on the heap. Then this is done again.)
kept(A, B, Fun) ->
    Tracer = cluster:call(B, erlang, spawn, [?MODULE, callers, [[]]]),
    Lane = cluster:call(B, fun() ->
                                   Lane = lane_to(cluster:node_of(A)),
                                   1 = erlang:trace_pattern({trunkline_lane, send_kept, 2}, true,
                                                            [local]),
                                   1 = erlang:trace(Lane, true, [call, {tracer, Tracer}]),
                                   Lane
                           end),
    cluster:await(fun() ->
                          [Caller | Others] = Fun(),
                          Callers = cluster:call(B, fun() -> traced(Lane, Tracer) end),
                          ?assertEqual([], [Pid || Pid <- Others, lists:member(Pid, Callers)]),
                          lists:member(Caller, Callers)
                  end).

traced(Lane, Tracer) ->
    Ref = erlang:trace_delivered(Lane),
    receive {trace_delivered, Lane, Ref} -> ok end,
    Tracer ! {get, self()},
    receive {Tracer, Callers} -> Callers end.

callers(Callers) ->
    receive
        {trace, _, call, {_, send_kept, [[{parcel, _, _, _, {reply, _, Pid}} | _], _]}} ->
            callers([Pid | Callers]);
        {get, From} ->
            From ! {self(), Callers},
            callers(Callers)
    end.

%% Runs at the callers' node, as reply_behind/1.
replies_kept([Server1, Server2]) ->
    [_ | _] = trunkline:call(Server1, [reply]),
    [Inlet] = cluster:by_module(trunkline_inlet),
    Suspender = suspended(Inlet),
    Id = trunkline:send_request(Server1, [before, reply]),
    receive has_replied -> ok end,
    Self = self(),
    Ask = fun() ->
                  Id2 = trunkline:send_request(Server2, [reply, behind]),
                  receive has_replied -> Self ! has_replied end,
                  Self ! trunkline:receive_response(Id2, infinity)
          end,
    OffHeap = spawn_opt(Ask, [{message_queue_data, off_heap}]),
    receive has_replied -> ok end,
    Suspender ! resume,
    ?assertEqual({reply, long()}, trunkline:receive_response(Id, infinity)),
    receive before -> ok end,
    receive {reply, Reply} -> ?assertEqual(long(), Reply) end,
    [Self, OffHeap].

%% Runs at the caller's node, whose inlet stands still until the server has done everything.
reply_behind(Server) ->
    [_ | _] = trunkline:call(Server, [reply]),
    [Inlet] = cluster:by_module(trunkline_inlet),
    Suspender = suspended(Inlet),
    Id = trunkline:send_request(Server, [before, reply, behind, other]),
    receive has_replied -> ok end,
    Suspender ! resume,
    Got = [receive Message -> Message end || _ <- [before, reply, behind, other]],
    [Before, Reply, Behind] = lists:delete(other(), Got),
    ?assertEqual([before, behind], [Before, Behind]),
    ?assertEqual({reply, long()}, trunkline:check_response(Reply, Id)),
    self().

%% Does in this order what it is asked for; the lane has got each before the next comes.
replying() ->
    {{Caller, _} = From, Script} = receive {'$gen_call', F, S} -> {F, S} end,
    [begin
         _ = case Step of
                 reply -> gen_server:reply(From, long());
                 other -> start_other(Caller);
                 _ -> trunkline:send(Caller, Step)
             end,
         ok = wait_for_lane(node(Caller))
     end || Step <- Script],
    length(Script) > 1 andalso (Caller ! has_replied),
    replying().

%% Another sender asks for its turn meanwhile.
start_other(To) ->
    Pid = spawn(trunkline, send, [To, other()]),
    cluster:await(fun() ->
                          case process_info(Pid, status) of
                              {status, Status} -> Status =:= waiting;
                              undefined -> true
                          end
                  end).

other() -> [other | long()].

%% Until it has taken everything out of its mailbox.
wait_for_lane(Node) ->
    Lane = lane_to(Node),
    cluster:await(fun() -> cluster:is_at_rest(Lane) end).

another_may_bypass(To) ->
    {Pid, Ref} = spawn_monitor(fun() -> exit(may_bypass(To)) end),
    receive {'DOWN', Ref, process, Pid, Answer} -> Answer end.

%% Whether this process may send a long term to that one past its lane, which is the only one.
may_bypass(To) ->
    #route{gate = Gate, bypass = Bypass} = trunkline_route:lookup(node(To)),
    trunkline_bypass:may(Gate, 1, 0, Bypass).

%% The lane has handed over what it had.
is_empty(To) ->
    #route{gate = Gate} = trunkline_route:lookup(node(To)),
    trunkline_gate:level(Gate, 1) =:= 0.

%% Returns the process that has suspended that one: until it is told to resume it, or is killed.
suspended(Pid) ->
    Self = self(),
    Suspender = spawn(fun() ->
                              true = erlang:suspend_process(Pid),
                              Self ! {self(), suspended},
                              receive resume -> ok end
                      end),
    receive {Suspender, suspended} -> Suspender end.

%% Whether a gate with that number is ever open while the path says `direct', until the path is what
%% it should become.
watch_path(Until, Ix, Limit, Gate) ->
    IsOpen = fun() -> trunkline_gate:fill(Gate, Ix) < Limit end,
    case trunkline_gate:path(Gate) of
        direct ->
            case IsOpen() andalso trunkline_gate:path(Gate) =:= direct of
                true -> open;
                false when Until =:= direct -> ok;
                false -> watch_path(Until, Ix, Limit, Gate)
            end;
        Until ->
            ok;
        _ ->
            watch_path(Until, Ix, Limit, Gate)
    end.

change_path(Path, Ix, #route{gate = Gate, limit = Limit} = Route) ->
    Self = self(),
    {Pid, Ref} = spawn_monitor(fun() ->
                                       Self ! {self(), watches},
                                       exit(watch_path(Path, Ix, Limit, Gate))
                               end),
    receive {Pid, watches} -> ok end,
    ok = trunkline_route:set_path(Path, Route),
    receive {'DOWN', Ref, process, Pid, Result} -> Result end.

suspend_lane(To) ->
    Lane = lane_to(node(To)),
    true = erlang:suspend_process(Lane),
    Lane.

suspended_lane(To) -> suspended(lane_to(node(To))).

lane_to(Node) ->
    #route{lanes = {Lane}} = trunkline_route:lookup(Node),
    Lane.

got(To) ->
    To ! {get, self()},
    receive {To, All} -> All end.

long() -> [#{key => N} || N <- lists:seq(1, 5000)].

%% By lane go terms to a mailbox off the heap, to a far peer even if the lane is idle and knows the
%% mailbox, and in a session that may outlive its connection.
not_in_turn(_) ->
    Term = [#{key => N} || N <- lists:seq(1, 5000)],
    Expected = lists:append([[N, Term] || N <- [1, 2, 3]]),
    Collect = fun() ->
                      Getter = receive {get, Pid} -> Pid end,
                      Getter ! {self(), [receive Next -> Next end || _ <- Expected]}
              end,
    Start = fun(B, Options) -> cluster:call(B, erlang, spawn_opt, [Collect, Options]) end,
    Send = fun(A, To) -> count_sent_plain(A, fun() -> send_both(A, To, Term) end) end,
    Finish = fun(B, To) ->
                     Got = cluster:call(B, fun() ->
                                                   To ! {get, self()},
                                                   receive {To, Messages} -> Messages end
                                           end),
                     ?assertEqual(Expected, Got)
             end,
    {A, B} = cluster:pair([{lanes, 1}]),
    OffHeap = Start(B, [{message_queue_data, off_heap}]),
    ?assertEqual(0, Send(A, OffHeap)),
    Finish(B, OffHeap),
    ToFar = Start(B, []),
    SendFar = fun() -> cluster:call(A, fun() -> send_far(ToFar, Expected) end) end,
    ?assertEqual(0, count_sent_plain(A, SendFar)),
    Finish(B, ToFar),
    cluster:stop_all([A, B]),
    {C, D} = cluster:pair([{resume_time, 5000}]),
    OnHeap = Start(D, []),
    ?assertEqual(0, Send(C, OnHeap)),
    Finish(D, OnHeap),
    cluster:stop_all([C, D]).

send_far(To, Messages) ->
    #route{link = Link, stats = Stats, mailboxes = {Table}, gate = Gate, bypass = Bypass} =
        trunkline_route:lookup(node(To)),
    true = erlang:suspend_process(Link),            % which would measure the distance
    trunkline_stats:put(Stats, peer, far, 1),
    lists:foreach(fun(Message) ->
                          cluster:await(fun() -> trunkline_bypass:may(Gate, 1, 0, Bypass) end),
                          true = ets:insert(Table, {To, 0}),
                          Message = trunkline:send(To, Message)
                  end, Messages).

%% A lane has announced a long term, and does not run. Meanwhile Trunkline stops at the peer. What
%% was sent behind the term does not come before it.
late_term(_) ->
    {A, B} = cluster:pair([]),
    To = cluster:call(B, fun() -> spawn(fun() -> collect([]) end) end),
    Suspender = cluster:call(A, fun() -> suspend_at_notice(To) end),
    cluster:call(B, cluster, stop_trunkline, []),
    true = cluster:call(A, fun() -> exit(Suspender, kill) end),
    cluster:await_no_state(A, B, up),
    %% Behind what the lane has sent meanwhile.
    Got = cluster:call(A, fun() -> got(To) end),
    ct:log("~p", [Got]),
    ?assertNotEqual([behind, long], Got),
    cluster:stop_all([A, B]).

%% An opener has asked the lane for a term, and is killed. The lane sends the term later. What was
%% sent behind it does not come before it, and is not lost.
opener_dies(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    Peer = cluster:node_of(A),
    To = cluster:call(B, fun() -> spawn(fun() -> collect([]) end) end),
    {Inlet, Suspender} = cluster:call(B, fun() ->
                                                 {I} = trunkline_peers:session(Peer),
                                                 {I, suspended(I)}
                                         end),
    Lane = cluster:call(A, fun() ->
                                   #route{lanes = {Lane}} = trunkline_route:lookup(node(To)),
                                   ok = trunkline:send(To, large_term(), [nosuspend]),
                                   behind = trunkline:send(To, behind),
                                   cluster:await(fun() -> cluster:is_at_rest(Lane) end),
                                   suspended(Lane)
                           end),
    true = cluster:call(B, fun() -> exit(Suspender, kill) end),
    Opener = another_opener(none, B),
    cluster:await(fun() -> cluster:call(A, fun() -> has_asked(Opener, node(To)) end) end),
    true = cluster:call(B, erlang, exit, [Opener, kill]),
    Second = another_opener(Opener, B),
    cluster:await(fun() -> cluster:call(A, fun() -> has_asked(Second, node(To)) end) end),
    cluster:await(fun() -> cluster:call(B, fun() -> cluster:is_at_rest(Inlet) end) end),
    ?assertEqual([], cluster:call(B, fun() -> got(To) end)),
    true = cluster:call(A, fun() -> exit(Lane, kill) end),
    cluster:await(fun() -> cluster:call(B, fun() -> got(To) end) =:= [long, behind] end),
    cluster:stop_all([A, B]).

large_term() -> large_term(20_000).

large_term(Rows) -> [#{key => N} || N <- lists:seq(1, Rows)].

%% A lane is killed while it sends a long term, of which the connection does not take all at once.
%% The runtime system sends the rest after the lane's end (docs/reference/otp-defects.md). The term
%% does not come behind what goes by the next lane.
lane_dies(_) ->
    {A, B} = cluster:pair([{lanes, 1}], [{lanes, 1}], cluster:dist_arguments() ++ ["+zdbbl", "1"]),
    To = cluster:call(B, fun() -> spawn(fun() -> collect([]) end) end),
    NodeB = node(To),
    Fillers = [cluster:call(A, traffic, fill_connection, [NodeB]) || _ <- lists:seq(1, 4)],
    Got = fun() -> cluster:call(A, fun() -> got(To) end) end,
    Rounds = lists:seq(1, 10),
    [begin
         ok = cluster:await_up(A, B),
         ok = cluster:call(A, fun() -> lane_dies(To, {N, long, large_term(400_000)}) end),
         {N, behind} = cluster:call(A, trunkline, send, [To, {N, behind}]),
         cluster:await(fun() -> lists:member({N, behind}, Got()) end)
     end || N <- Rounds],
    [true = cluster:call(A, erlang, exit, [Filler, kill]) || Filler <- Fillers],
    All = Got(),
    ?assertEqual([{N, behind} || N <- Rounds], [Behind || {_, behind} = Behind <- All]),
    ?assertEqual([], [N || {N, long} <- All, is_before({N, behind}, {N, long}, All)]),
    cluster:stop_all([A, B]).

lane_dies(To, Message) ->
    ok = trunkline:send(To, Message, [nosuspend]),
    Lane = lane_to(node(To)),
    ok = await_sending(Lane, erlang:monotonic_time(millisecond) + 10_000),
    true = exit(Lane, kill),
    cluster:await(fun() -> lane_to(node(To)) =/= Lane end).

%% It waits for the connection, and has more of a message to send. (That is an instant.)
await_sending(Lane, Deadline) ->
    case process_info(Lane, [current_function, status]) of
        [{_, {erts_internal, dsend_continue_trap, 1}}, {status, suspended}] -> ok;
        _ -> true = erlang:monotonic_time(millisecond) < Deadline, await_sending(Lane, Deadline)
    end.

is_before(One, Other, All) -> lists:member(Other, lists:dropwhile(fun(X) -> X =/= One end, All)).

another_opener(Before, B) ->
    All = fun() -> cluster:call(B, cluster, by_module, [trunkline_opener]) end,
    cluster:await(fun() -> [] =/= All() -- [Before] end),
    [Opener] = All() -- [Before],
    Opener.

has_asked(Opener, Node) ->
    {messages, Messages} = process_info(lane_to(Node), messages),
    [] =/= [Asked || {fetch, _, _, {Asked, _}, _} <- Messages, Asked =:= Opener].

%% A drain waits for the link at the peer, which does not run. Meanwhile the gates are open again,
%% and two large messages are sent. One is under way, the other one is in the lane when the drain
%% goes on. It does not overtake the first.
drain_goes_on(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    {NodeA, NodeB} = {cluster:node_of(A), cluster:node_of(B)},
    Path = fun() ->
                   cluster:call(A, fun() ->
                                           #route{gate = Gate} = trunkline_route:lookup(NodeB),
                                           trunkline_gate:path(Gate)
                                   end)
           end,
    To = cluster:call(B, fun() -> spawn(fun() -> collect([]) end) end),
    Link = cluster:call(B, fun() ->
                                   #{link := Link} = trunkline_peers:lookup(NodeA),
                                   suspended(Link)
                           end),
    {error, timeout} = cluster:call(A, trunkline, drain, [NodeB, 100]),
    cluster:await_state(A, B, closing),
    cluster:await(fun() -> Path() =:= lanes end),
    Dock = cluster:call(B, fun() ->
                                   [Dock] = [Pid || Pid <- processes(),
                                                    cluster:is_a(trunkline_dock, Pid)],
                                   suspended(Dock)
                           end),
    {Sender, Lane, Suspender} =
        cluster:call(A, fun() ->
                                #route{lanes = {Lane}} = trunkline_route:lookup(NodeB),
                                Pid = spawn(fun() -> send_large(To, [300_000, 400_000]) end),
                                Pid ! next,
                                cluster:await(fun() -> cluster:is_at_rest(Pid) end),
                                cluster:await(fun() -> cluster:is_at_rest(Lane) end),
                                Suspender = suspended(Lane),
                                Pid ! next,
                                cluster:await(fun() -> waits_in(Lane, Pid) end),
                                %% A batch ends before the lane hears of the drain.
                                [small = trunkline:send(To, small) || _ <- lists:seq(1, 300)],
                                {Pid, Lane, Suspender}
                        end),
    true = cluster:call(B, fun() -> exit(Link, kill) end),
    cluster:await(fun() -> Path() =:= wait end),
    true = cluster:call(A, fun() -> exit(Suspender, kill) end),
    cluster:await(fun() -> cluster:call(A, fun() -> cluster:is_at_rest(Lane) end) end),
    true = cluster:call(B, fun() -> exit(Dock, kill) end),
    Got = fun() ->
                  [byte_size(L) || L <- cluster:call(B, fun() -> got(To) end), is_binary(L)]
          end,
    cluster:await(fun() -> length(Got()) =:= 2 end),
    ?assertEqual([300_000, 400_000], Got()),
    true = cluster:call(A, fun() -> exit(Sender, kill) end),
    cluster:stop_all([A, B]).

%% Each when it is told.
send_large(_, []) -> receive after infinity -> ok end;
send_large(To, [Bytes | Sizes]) ->
    receive next -> _ = trunkline:send(To, binary:copy(<<"x">>, Bytes)) end,
    send_large(To, Sizes).

waits_in(Lane, Sender) ->
    {messages, Messages} = process_info(Lane, messages),
    [] =/= [Pid || [_, Pid | _] <- Messages, Pid =:= Sender].

collect(Got) ->
    receive
        {get, From} -> From ! {self(), lists:reverse(Got)}, collect(Got);
        [_ | _] -> collect([long | Got]);
        {N, long, _} -> collect([{N, long} | Got]);
        Message -> collect([Message | Got])
    end.

%% The lane of this process. Returns the process that has suspended it.
suspend_at_notice(To) ->
    Self = self(),
    #route{lanes = Lanes} = trunkline_route:lookup(node(To)),
    Watch = fun Watch() ->
                    receive
                        {trace, Lane, send, Message, _} when element(1, Message) =:= batch;
                                                             element(1, Message) =:= frame;
                                                             element(1, Message) =:= write ->
                            true = erlang:suspend_process(Lane),
                            Self ! {suspended, self()},
                            receive after infinity -> ok end;
                        _ -> Watch()
                    end
            end,
    Suspender = spawn(fun() -> process_flag(priority, max), Watch() end),
    [1 = erlang:trace(Lane, true, [send, {tracer, Suspender}]) || Lane <- tuple_to_list(Lanes)],
    ok = trunkline:send(To, large_term(), [nosuspend]),
    behind = trunkline:send(To, behind),
    receive {suspended, Suspender} -> Suspender end.

send_both(A, To, Term) ->
    cluster:call(A, fun() ->
                            _ = [trunkline:send(To, Message) || N <- [1, 2, 3],
                                                                Message <- [N, Term]],
                            ok
                    end).

%% Runs Fun, and returns how many messages A has sent by plain distribution in their turn.
count_sent_plain(A, Fun) ->
    cluster:count_calls(A, [{trunkline_in_turn, sent_meanwhile, 3}], Fun).

%% Random senders, receivers, kinds, sizes, lanes and limits; small limits, so
%% that senders wait and windows fill.
any_traffic(_) ->
    [A, B] = cluster:start_all([[], []]),
    cluster:connect(A, B),
    proper:quickcheck(prop_any_traffic(A, B), [{numtests, 60}, quiet, {max_size, 60}])
        orelse ct:fail({counterexample, proper:counterexample()}),
    cluster:stop_all([A, B]).

prop_any_traffic(A, B) ->
    ?FORALL(
       {{EnvA, EnvB}, Receivers, Scripts}, {{env(), env()}, range(1, 4), scripts()},
       begin
           restart(A, EnvA),
           restart(B, EnvB),
           cluster:await_up(A, B),
           Pids = cluster:call(B, traffic, start_receivers, [Receivers]),
           Play = [{Id, [{Kind, lists:nth(To rem Receivers + 1, Pids), Bytes}
                         || {Kind, To, Bytes} <- Script]}
                   || {Id, Script} <- lists:zip(lists:seq(1, length(Scripts)), Scripts)],
           Ends = cluster:call(A, traffic, play_all, [Play]),
           Expected = [{Pid, Id,
                        [N || {N, {_, To, _}} <- lists:zip(lists:seq(1, length(Script)), Script),
                              To =:= Pid]}
                       || Pid <- Pids, {Id, Script} <- Play],
           Total = lists:sum([length(Script) || Script <- Scripts]),
           cluster:await(
             fun() -> lists:sum([cluster:call(B, traffic, count, [P]) || P <- Pids]) =:= Total end),
           Got = maps:from_list([{P, cluster:call(B, traffic, received, [P])} || P <- Pids]),
           lists:all(fun(End) -> End =:= normal end, Ends)
               andalso lists:all(fun({Pid, Id, Ns}) ->
                                         [N || {I, N} <- maps:get(Pid, Got), I =:= Id] =:= Ns
                                 end,
                                 Expected)
       end).

restart(Node, Env) ->
    cluster:call(Node, cluster, stop_trunkline, []),
    ok = cluster:call(Node, cluster, start_trunkline, [Env]).

env() ->
    ?LET({Lanes, Queue, Window, Batch}, {range(1, 5), oneof([1024, 8192, 1_048_576]),
                                         oneof([1024, 16384, 4194304]), oneof([256, 4096, 65536])},
         [{lanes, Lanes}, {queue_bytes, Queue}, {window_bytes, Window}, {batch_bytes, Batch}]).

scripts() ->
    ?LET(N, range(1, 8), vector(N, list({kind(), nat(), bytes()}))).

kind() -> frequency([{6, send}, {2, cast}, {1, call}, {1, request}, {1, retry}]).

bytes() -> frequency([{10, range(0, 100)}, {3, range(100, 5000)}, {1, range(5000, 300000)}]).

%% What a server sends to a caller before its reply comes before it, and what it
%% sends after the reply comes after it, as with one connection.
replies_among_messages(_) ->
    {A, B} = cluster:pair([{lanes, 4}]),
    Servers = cluster:call(B, fun() -> [spawn(fun talkative/0) || _ <- lists:seq(1, 20)] end),
    ok = cluster:call(
           A, fun() -> lists:foreach(fun(N) -> talk(lists:nth(N rem 20 + 1, Servers), N) end,
                                     lists:seq(1, 2000)) end),
    cluster:stop_all([A, B]).

talkative() ->
    receive
        {'$gen_call', {Pid, _} = From, N} ->
            trunkline:send(Pid, {said, N, 1}),
            trunkline:cast(Pid, {said, N, 2}),
            gen_server:reply(From, {replied, N}),
            trunkline:send(Pid, {said, N, 3})
    end,
    talkative().

talk(Server, N) -> in_their_places(trunkline:send_request(Server, N), N).

in_their_places(Id, N) ->
    Mail = [receive Message -> Message end || _ <- [1, 2, 3, 4]],
    [{said, N, 1}, {'$gen_cast', {said, N, 2}}, Reply, {said, N, 3}] = Mail,
    {reply, {replied, N}} = trunkline:check_response(Reply, Id).

%% A sender that a full lane refuses, and that finds the path `direct', sends by plain distribution.
%% So no gate is open as long as the path is that.
full_while_lanes_come_up(_) ->
    {A, B} = cluster:pair([{lanes, 64}]),
    Peer = cluster:node_of(B),
    Results =
        cluster:call(
          A, fun() ->
                     #route{} = Route = trunkline_route:lookup(Peer),
                     [{change_path(direct, trunkline_route:bulk_ix(Route), Route),
                       change_path(lanes, 1, Route)} || _ <- lists:seq(1, 2000)]
             end),
    ?assertEqual([{ok, ok}], lists:usort(Results)),
    cluster:stop_all([A, B]).

%% From plain distribution to lanes, while messages flow.
lanes_come_up(_) ->
    lists:foreach(
      fun(_) ->
              [A, B] = cluster:start_all([[], none]),
              cluster:connect(A, B),
              flow(A, B, fun() ->
                                 ok = cluster:call(B, cluster, start_trunkline, [[]]),
                                 cluster:await_up(A, B)
                         end, complete),
              cluster:stop_all([A, B])
      end, lists:seq(1, 5)).

%% And back, and again, many times; nothing may be lost either.
peer_stops_and_starts(_) ->
    {A, B} = cluster:pair([]),
    flow(A, B, fun() -> restarts(B, A, 20) end, complete),
    cluster:stop_all([A, B]).

sender_stops_and_starts(_) ->
    {A, B} = cluster:pair([]),
    flow(A, B, fun() -> restarts(A, B, 20) end, complete),
    cluster:stop_all([A, B]).

restarts(_, _, 0) ->
    ok;
restarts(Node, Other, N) ->
    restart(Node, [{lanes, N rem 3 + 1}]),
    cluster:await_up(Node, Other),
    restarts(Node, Other, N - 1).

%% Both at the same time, with messages both ways. (Not floods: plain distribution,
%% which takes them in between, lets one direction starve the other.)
both_stop(_) ->
    {A, B} = cluster:pair([]),
    flow(trickle, B, A, fun() -> flow(trickle, A, B, fun() -> stops(A, B, 10) end, complete) end,
         complete),
    cluster:stop_all([A, B]).

stops(_, _, 0) ->
    ok;
stops(A, B, N) ->
    Stops = [spawn_monitor(fun() -> restart(Node, [{lanes, N rem 3 + 1}]) end) || Node <- [A, B]],
    lists:foreach(fun({Pid, Ref}) -> receive {'DOWN', Ref, process, Pid, normal} -> ok end end,
                  Stops),
    cluster:await_up(A, B),
    stops(A, B, N - 1).

%% Messages may be lost with the connection; those that arrive are in order.
connection_breaks(_) ->
    {A, B} = cluster:pair([]),
    flow(A, B, fun() -> breaks(A, B, 20) end, ordered),
    cluster:stop_all([A, B]).

%% A connection of the lanes' own is another matter: another one takes its place, and
%% nothing is missing, in whatever way it breaks.
lane_connections_break(_) ->
    {A, B} = cluster:pair([{lane_transport, case cluster:lane_transport() of
                                                dist -> tcp;
                                                Transport -> Transport
                                            end}]),
    await_lane_connection(A, B),
    flow(A, B, fun() -> lane_breaks(A, B, 16, 0) end, complete),
    [?assertMatch(#{state := up, sessions := 1,
                    lost := #{queued := 0, unconfirmed := 0, crashed := 0}},
                  cluster:info(From, To))
     || {From, To} <- [{A, B}, {B, A}]],
    cluster:stop_all([A, B]).

lane_breaks(_, _, 0, Broken) ->
    ct:log("~b connections were broken", [Broken]),
    ?assert(Broken >= 16);
lane_breaks(A, B, N, Broken) ->
    await_lane_connection(A, B),
    More = case N rem 4 of
               0 -> cluster:call(A, cluster, break_channels, [writers]);
               1 -> cluster:call(B, cluster, break_channels, [sockets]);
               2 -> cluster:call(A, cluster, break_channels, [sockets]);
               3 -> cluster:call(B, cluster, break_channels, [writers])
           end,
    lane_breaks(A, B, case More of 0 -> N; _ -> N - 1 end, Broken + More).

await_lane_connection(A, B) ->
    cluster:await(fun() -> case cluster:info(A, B) of
                               #{batches := #{by := connections}} -> true;
                               #{batches := Batches} -> Batches
                           end end).

breaks(_, _, 0) ->
    ok;
breaks(A, B, N) ->
    anew:connection(A, B),
    breaks(A, B, N - 1).

%% Nodes on which mailboxes are off the heap, where messages of two processes to a third may be
%% swapped, however they have agreed on an order. Where Trunkline relies on that, it must say so.
mailboxes_off_heap(_) ->
    {A, B} = cluster:pair([], [], ["+hmqd", "off_heap" | cluster:dist_arguments()]),
    ?assertEqual(off_heap, cluster:call(B, erlang, system_info, [message_queue_data])),
    [To] = cluster:call(B, traffic, start_watchers, [1]),
    Kinds = [trunkline_lane, trunkline_dock, trunkline_link, trunkline_links],
    [?assertEqual([{Kind, on_heap} || Kind <- lists:sort(Kinds)],
                  cluster:call(N, fun() -> mailboxes(Kinds) end))
     || N <- [A, B]],
    %% The last message, the last reply, and then the end.
    ok = cluster:call(
           A, fun() -> lists:foreach(fun(N) -> last_words(To, N) end, lists:seq(1, 300)) end),
    cluster:stop_all([A, B]).

mailboxes(Kinds) ->
    lists:usort([{Kind, Where}
                 || Pid <- processes(), {Kind, init, _} <- [proc_lib:translate_initial_call(Pid)],
                    lists:member(Kind, Kinds),
                    {message_queue_data, Where} <- [process_info(Pid, message_queue_data)]]).

last_words(To, N) ->
    Server = spawn(node(To), ?MODULE, last_words, []),
    Ref = trunkline:monitor(Server),
    Id = trunkline:send_request(Server, {N, self()}),
    Mail = [receive Message -> Message end || _ <- [1, 2, 3, 4]],
    [{N, first}, {N, last}, Reply, {'DOWN', Ref, process, Server, {ended, N}}] = Mail,
    {reply, N} = trunkline:check_response(Reply, Id).

last_words() ->
    receive
        {'$gen_call', From, {N, Pid}} ->
            trunkline:send(Pid, {N, first}),
            trunkline:send(Pid, {N, last}),
            gen_server:reply(From, N),
            exit({ended, N})
    end.

%% The server's lanes are up earlier than the caller's, and what it has sent is held up
%% there: a reply by plain distribution would be first. So the request waits for the lanes. (Not
%% for ever: a round that is too slow says nothing, nor one in which the link cannot be stopped.
%% But one of sixty is neither.)
replies_at_the_start(_) -> replies_at_the_start(60, []).

replies_at_the_start(0, Why) ->
    ct:fail(Why);
replies_at_the_start(Rounds, Why) ->
    [A, B] = Nodes = cluster:start_all([[{lanes, 1}], none]),
    cluster:connect(A, B),
    Server = cluster:call(B, fun() -> spawn(fun talkative/0) end),
    cluster:await_state(A, B, greeting),
    Link = link_to(A, B),
    ok = cluster:call(A, sys, install, [Link, {fun ?MODULE:stop_at_opened/3, cluster:node_of(B)}]),
    ok = cluster:call(B, cluster, start_trunkline, [[{lanes, 1}]]),
    cluster:await_lanes(B, A),
    Result = case cluster:info(A, B) of
                 #{state := opening} -> reply_at_the_start(A, B, Link, Server);
                 #{state := up} -> too_early
             end,
    cluster:stop_all(Nodes),
    Result =:= in_order orelse replies_at_the_start(Rounds - 1, [Result | Why]).

reply_at_the_start(A, B, Link, Server) ->
    Sleeper = cluster:call(B, fun() -> sleep(trunkline_route:lookup(cluster:node_of(A))) end),
    Start = erlang:monotonic_time(millisecond),
    Caller = cluster:call(A, fun() ->
        spawn(fun() ->
                      Id = trunkline:send_request(Server, 1),
                      put(sent, true),
                      in_their_places(Id, 1),
                      put(sent, in_order),
                      receive after infinity -> ok end
              end)
    end),
    cluster:await(
      fun() ->
              cluster:call(A, fun() -> is_waiting(Link) orelse progress(Caller) =/= waiting end)
      end),
    cluster:call(A, erlang, send, [Link, go_on]),
    cluster:await_lanes(A, B),
    Time = erlang:monotonic_time(millisecond) - Start,
    true = cluster:call(B, erlang, exit, [Sleeper, kill]),
    cluster:await(
      fun() -> lists:member(cluster:call(A, fun() -> progress(Caller) end), [in_order, dead]) end),
    case cluster:call(A, fun() -> progress(Caller) end) of
        in_order -> in_order;
        dead when Time > 900 -> too_slow;
        dead -> ct:fail(not_in_order)
    end.

%% In the link, a gen_statem, when its inlets are there. What comes next stays in its mailbox.
stop_at_opened(Node, {in, Opened}, _) when element(1, Opened) =:= opened ->
    case trunkline_peers:lookup(Node) of
        #{inlets := []} -> done;
        #{} -> receive go_on -> done end
    end;
stop_at_opened(Node, _, _) ->
    Node.

link_to(A, B) ->
    [Link] = cluster:call(A, cluster, find, [link, cluster:node_of(B)]),
    Link.

sleep(#route{lanes = {Lane}}) -> suspended(Lane).

is_waiting(Link) ->
    {messages, Messages} = process_info(Link, messages),
    lists:keymember(wait, 1, Messages).

%% `dead': what came was not in order.
progress(Caller) ->
    case process_info(Caller, dictionary) of
        {dictionary, Entries} -> proplists:get_value(sent, Entries, waiting);
        undefined -> dead
    end.

%% Streams from ten senders at A to three receivers at B while Disturb runs.
flow(A, B, Disturb, What) -> flow(stream, A, B, Disturb, What).

flow(Kind, A, B, Disturb, What) ->
    Pids = cluster:call(B, traffic, start_watchers, [3]),
    Streams = [begin
                   To = lists:nth(Id rem 3 + 1, Pids),
                   {Id, To, cluster:call(A, traffic, Kind, [To, Id, 50])}
               end || Id <- lists:seq(1, 10)],
    Count = fun(P) -> cluster:call(B, traffic, count, [P]) end,
    cluster:await(fun() -> lists:all(fun(P) -> Count(P) > 100 end, Pids) end),
    Disturb(),
    Before = [{P, Count(P)} || P <- Pids],
    cluster:await(fun() -> lists:all(fun({P, N}) -> Count(P) > N + 100 end, Before) end),
    Sent = [{Id, P, cluster:call(A, traffic, stop_stream, [S])} || {Id, P, S} <- Streams],
    lists:foreach(
      fun({Id, P, N}) ->
              Summary = fun() -> maps:get(Id, cluster:call(B, traffic, summary, [P]), none) end,
              cluster:await(fun() ->
                                    case Summary() of {N, _, _} -> true; Other -> {N, Other} end
                            end, 120_000),
              {N, Arrived, Odd} = Summary(),
              ct:log("stream ~b: ~b sent, ~b arrived, out of order ~p", [Id, N, Arrived, Odd]),
              ?assertEqual([], Odd),
              What =:= complete andalso ?assertEqual(N, Arrived)
      end, Sent).
