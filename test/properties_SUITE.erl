%% The pure modules, each against a model: no process, no node.
-module(properties_SUITE).

-include_lib("proper/include/proper.hrl").
-include("../src/gate/trunkline_route.hrl").

-export([all/0]).
-export([gate/1, gate_shared/1, bypass/1, past_the_lane/1, many_short/1, mailboxes/1,
         concurrency/1, heap/1, window/1, window_link/1, distance/1, way/1, waiters/1, passed_by/1,
         rests/1, backlog/1, pace/1, patience/1, handshake/1, stats/1]).

all() -> [stats, gate, gate_shared, bypass, past_the_lane, many_short, mailboxes, concurrency, heap,
          window, window_link, distance, way, waiters, passed_by, rests, backlog, pace, patience,
          handshake].

check(Property) -> check(1000, Property).

check(Tests, Property) ->
    counterexample:check(Tests, 200, Property).

%% --- stats: a cell for each field ---------------------------------------------------

%% No two share one, also if there are more fields than today.
stats(_) ->
    lists:foreach(fun(More) ->
                          Stats = with_fields(More),
                          Counters = Stats:new(3),
                          #{peer := Peer, lane := Lane} = Stats:fields(),
                          Cells = lists:enumerate(
                                    [{peer, F} || {F, _, _, _} <- Peer]
                                    ++ [{{lane, Ix}, F} || Ix <- [1, 2, 3], {F, _, _, _} <- Lane]),
                          [Stats:put(Counters, Scope, F, N) || {N, {Scope, F}} <- Cells],
                          [{Scope, F, N} = {Scope, F, Stats:get(Counters, Scope, F)}
                           || {N, {Scope, F}} <- Cells],
                          Sum = lists:sum([N || {N, {{lane, _}, messages}} <- Cells]),
                          Sum = Stats:sum(Counters, messages)
                  end, [0, 1, 4, 5, 12, 13, 30]).

%% The module, with so many fields more for the peer and for a lane.
with_fields(More) ->
    {ok, {_, [{abstract_code, {_, Forms}}]}} =
        beam_lib:chunks(code:which(trunkline_stats), [abstract_code]),
    Name = list_to_atom("trunkline_stats_" ++ integer_to_list(More)),
    {ok, Name, Code} = compile:forms([case Form of
                                          {attribute, L, module, _} -> {attribute, L, module, Name};
                                          _ -> with_fields(More, Form)
                                      end || Form <- Forms]),
    {module, Name} = code:load_binary(Name, "", Code),
    Name.

with_fields(More,
            {cons, L,
             {tuple, _, [{atom, _, First}, {atom, _, _}, {string, _, _}, {string, _, _}]} = Field,
             Others}) when First =:= fallbacks; First =:= messages ->
    lists:foldl(fun(N, List) ->
                        {cons, L, erl_parse:abstract({list_to_atom("more_" ++ integer_to_list(N)),
                                                      counter, "more", "more"}), List}
                end, {cons, L, Field, Others}, lists:seq(1, More));
with_fields(More, Form) when is_tuple(Form) ->
    list_to_tuple([with_fields(More, Part) || Part <- tuple_to_list(Form)]);
with_fields(More, [Part | Parts]) -> [with_fields(More, Part) | with_fields(More, Parts)];
with_fields(_, Other) -> Other.

%% --- gate: a count of bytes and messages, and a door -------------------------------

gate(_) -> check(prop_gate()).

prop_gate() ->
    ?FORALL({Limit, Commands}, {range(1, 2000), list(gate_command())},
            begin
                Gate = trunkline_gate:new(2),
                lists:foreach(fun(Ix) -> trunkline_gate:open(Gate, Ix) end, [1, 2]),
                run_gate(Commands, Gate, Limit, #{1 => {[], open}, 2 => {[], open}})
            end).

gate_command() ->
    {oneof([enter, enter, enter, leave, leave, force, close, open]), range(1, 2), range(0, 500)}.

run_gate([], _, _, _) ->
    true;
run_gate([{Command, Ix, Size} | Commands], Gate, Limit, Model) ->
    {Inside, Door} = maps:get(Ix, Model),
    Message = binary:copy(<<0>>, Size),
    Charge = trunkline_gate:charge(Message),
    Bytes = lists:sum([trunkline_gate:bytes(C) || C <- Inside]),
    Model1 =
        case Command of
            enter ->
                Packed = trunkline_gate:limit(Limit),
                Expected = Door =:= open andalso lists:sum(Inside) < Packed,
                Admitted = case Inside of
                               [] -> {alone, Charge};
                               _ -> Charge
                           end,
                case trunkline_gate:enter(Gate, Ix, Message, Packed, 1 bsl 30) of
                    Admitted when Expected -> Model#{Ix := {[Charge | Inside], Door}};
                    {refused, Charge} when not Expected -> Model
                end;
            force ->
                ok = trunkline_gate:force(Gate, Ix, Charge),
                Model#{Ix := {[Charge | Inside], Door}};
            leave when Inside =:= [] ->
                Model;
            leave ->
                [First | Rest] = Inside,
                Level = trunkline_gate:leave(Gate, Ix, First),
                Level = lists:sum(Rest),
                Model#{Ix := {Rest, Door}};
            close ->
                Level = trunkline_gate:close(Gate, Ix),
                Level = lists:sum(Inside),
                Model#{Ix := {Inside, closed}};
            open ->
                ok = trunkline_gate:open(Gate, Ix),
                Model#{Ix := {Inside, open}}
        end,
    {Inside1, _} = maps:get(Ix, Model1),
    Level1 = trunkline_gate:level(Gate, Ix),
    trunkline_gate:messages(Level1) =:= length(Inside1)
        andalso trunkline_gate:bytes(Level1) =:=
        lists:sum([trunkline_gate:bytes(C) || C <- Inside1])
        %% never more than one message beyond the limit, but for what was forced
        andalso (Command =/= enter orelse Bytes < Limit orelse Inside1 =:= Inside)
        andalso run_gate(Commands, Gate, Limit, Model1).

%% Many processes at once: what came in goes out, nobody sees more inside than the
%% limit and the messages of those who are at the door.
gate_shared(_) ->
    Gate = trunkline_gate:new(1),
    ok = trunkline_gate:open(Gate, 1),
    Limit = trunkline_gate:limit(100_000),
    Most =
        trunkline_gate:limit(100_000 + 8 * trunkline_gate:bytes(trunkline_gate:charge(<<0:8000>>))),
    Pids = [spawn_monitor(fun() -> passers(Gate, Limit, Most, 5000, 0) end)
            || _ <- lists:seq(1, 8)],
    [receive {'DOWN', Ref, process, Pid, Reason} -> {passed, N} = Reason, true = N > 0 end
     || {Pid, Ref} <- Pids],
    0 = trunkline_gate:level(Gate, 1),
    0 = trunkline_gate:close(Gate, 1).

passers(_, _, _, 0, Passed) ->
    exit({passed, Passed});
passers(Gate, Limit, Most, N, Passed) ->
    %% Some stay inside until they are refused, so that the gate fills.
    Message = binary:copy(<<0>>, N rem 1000),
    Charges = fill(Gate, Limit, Message, N rem 50, []),
    true = trunkline_gate:level(Gate, 1) =< Most,
    lists:foreach(fun(Charge) -> trunkline_gate:leave(Gate, 1, Charge) end, Charges),
    passers(Gate, Limit, Most, N - 1, Passed + length(Charges)).

fill(_, _, _, 0, Charges) ->
    Charges;
fill(Gate, Limit, Message, N, Charges) ->
    case trunkline_gate:enter(Gate, 1, Message, Limit, 1 bsl 30) of
        {refused, _} -> Charges;
        {alone, Charge} -> fill(Gate, Limit, Message, N - 1, [Charge | Charges]);
        Charge -> fill(Gate, Limit, Message, N - 1, [Charge | Charges])
    end.

%% --- bypass: what senders start, and what the lane takes -----------------------------

%% Each message is taken once. At the end of a session it is told which may still be being sent. If
%% the lane gives somebody up, something has to follow.
bypass(_) -> check(prop_bypass()).

prop_bypass() ->
    ?FORALL(
       Commands, list(frequency([{6, start}, {6, sent}, {1, cancel}, {1, kill}, {3, take},
                                 {1, ended}, {3, tick}])),
       begin
           Gate = trunkline_gate:new(1),
           ok = trunkline_gate:open(Gate, 1),
           Bypass = trunkline_bypass:new(1),
           Past = trunkline_bypass:past(1, Bypass),
           ok = trunkline_bypass:set_idle(true, Past),
           World = lists:foldl(fun(Command, W) -> bypass(Command, Gate, Bypass, W) end,
                               #{started => 0, sent => 0, sending => 0, killed => 0, cancelled => 0,
                                 got => 0, past => Past}, Commands),
           %% Those that live send. Two ticks later the lane does not count on the others.
           Ended = lists:foldl(fun(Command, W) -> bypass(Command, Gate, Bypass, W) end, World,
                               lists:duplicate(maps:get(sending, World), sent)
                               ++ [tick, tick, tick]),
           #{got := Got, sent := Sent, past := EndedPast} = Ended,
           ?WHENFAIL(io:format("~p~n", [Ended]),
                     Got =:= Sent
                         andalso not trunkline_bypass:is_sending(EndedPast)
                         andalso {0, 0} =:= unsettled(EndedPast)
                         andalso not trunkline_bypass:start(trunkline_gate:new(1), 1, 0, Bypass))
       end).

bypass(start, Gate, Bypass, #{started := Started, sending := Sending} = W) ->
    true = trunkline_bypass:start(Gate, 1, 0, Bypass),
    W#{started := Started + 1, sending := Sending + 1};
bypass(sent, _, Bypass, #{sent := Sent, sending := Sending} = W) when Sending > 0 ->
    _ = trunkline_bypass:sent(1, Bypass),
    W#{sent := Sent + 1, sending := Sending - 1};
bypass(cancel, _, Bypass, #{cancelled := Cancelled, sending := Sending} = W) when Sending > 0 ->
    ok = trunkline_bypass:cancel(1, Bypass),
    W#{cancelled := Cancelled + 1, sending := Sending - 1};
bypass(kill, _, _, #{killed := Killed, sending := Sending} = W) when Sending > 0 ->
    W#{killed := Killed + 1, sending := Sending - 1};
bypass(Take, _, _, #{got := Got, past := Past, sent := Sent} = W)
  when Take =:= take; Take =:= tick ->
    WasSending = trunkline_bypass:is_sending(Past),
    Past1 = trunkline_bypass:Take(Past),
    N = trunkline_bypass:unreported(Past1),
    Sent = Got + N,
    true = trunkline_bypass:must_follow(Past1)
        orelse WasSending =:= trunkline_bypass:is_sending(Past1),
    Past2 = trunkline_bypass:followed(trunkline_bypass:reported(Past1)),
    false = trunkline_bypass:must_follow(Past2),
    W#{got := Sent, past := Past2};
bypass(ended, _, _, #{got := Got, past := Past, sent := Sent, sending := Sending,
                      killed := Killed} = W) ->
    IsSending = trunkline_bypass:is_sending(Past),
    {N, Left, Past1} = trunkline_bypass:ended(0, Past),
    false = trunkline_bypass:is_sending(Past1),
    {0, 0} = unsettled(Past1),
    {Sent, IsSending} = {Got + N, Left > 0},
    true = Left =< Sending + Killed,
    W#{got := Sent, past := Past1};
bypass(_, _, _, W) ->
    W.

unsettled(Past) ->
    {Unreported, Sending, _} = trunkline_bypass:ended(0, Past),
    {Unreported, Sending}.

%% What has gone past the lane is still to be reported when a session ends and the connection does
%% not. If it is lost before there is another session, all of it counts.
past_the_lane(_) ->
    Bypass = trunkline_bypass:new(1),
    Stats = trunkline_stats:new(1),
    Options = trunkline_options:defaults(),
    Batches = trunkline_batches:passed(3, trunkline_batches:new(1, node(), Bypass, Options, Stats)),
    ok = trunkline_bypass:started(1, Bypass),
    End = fun(How, Before) ->
                  Lost = trunkline_stats:get(Stats, peer, lost_unconfirmed),
                  After = trunkline_batches:end_bypass(How, Before),
                  {trunkline_stats:get(Stats, peer, lost_unconfirmed) - Lost, After}
          end,
    {0, Kept} = End(kept, Batches),
    3 = trunkline_batches:unreported(Kept),
    {4, Lost} = End(lost, Kept),
    {0, _} = End(lost, Lost),
    {0, Over} = End(over, Batches),
    {0, _} = End(lost, Over).

%% Short messages bypass a lane until many do at a time, and again when the lane says so.
many_short(_) ->
    Bypass = trunkline_bypass:new(2),
    Past = trunkline_bypass:past(1, Bypass),
    false = trunkline_bypass:is_quiet(1, Bypass),
    lists:foreach(fun(_) ->
                          ok = trunkline_bypass:set_quiet(true, Past),
                          true = trunkline_bypass:is_quiet(1, Bypass),
                          _ = [trunkline_bypass:sent_short(1, Bypass) || _ <- lists:seq(1, 10_000)],
                          false = trunkline_bypass:is_quiet(1, Bypass)
                  end, [first, again]),
    false = trunkline_bypass:is_quiet(2, Bypass),
    %% So many are not many.
    ok = trunkline_bypass:set_quiet(true, trunkline_bypass:past(2, Bypass)),
    _ = [trunkline_bypass:sent_short(2, Bypass) || _ <- lists:seq(1, 80)],
    true = trunkline_bypass:is_quiet(2, Bypass).

%% --- mailboxes: which receivers the lane knows to have theirs on the heap ------------

%% A receiver is known if the last answer was `go' and is not older than two ticks. The lane asks
%% after eight batches, or with the second long reply, and again as long as eight messages are sent
%% in a tick. While there is no answer, and for ten ticks after another one, it does not ask; nor
%% for one tick if a sender's question has had another answer. Of a name it remembers nothing.
mailboxes(_) -> check(prop_mailboxes()).

prop_mailboxes() ->
    ?FORALL(
       Commands,
       resize(100, list(frequency([{4, {seen, short, range(1, 2), range(1, 8)}},
                                   {1, {seen, long, range(1, 2), range(1, 2)}},
                                   {3, {answer, oneof([first, last]), oneof([go, no])}},
                                   {4, {send, range(1, 3), range(1, 8)}},
                                   {2, {know, range(1, 3), oneof([go, no, nothing])}},
                                   {4, tick}]))),
       begin
           Receivers = {spawn(fun() -> ok end), spawn(fun() -> ok end), name},
           World = #{receivers => Receivers, mailboxes => trunkline_mailboxes:new(),
                     asked => [], seen => [], ages => #{}, sent_to => [], closed => #{}},
           #{mailboxes := Mailboxes} = lists:foldl(fun mailbox/2, World, Commands),
           true = ets:delete(trunkline_mailboxes:table(Mailboxes)),
           not trunkline_mailboxes:may_receive(self(), trunkline_mailboxes:table(Mailboxes))
       end).

mailbox({seen, Kind, R, Times}, W) ->
    lists:foldl(fun mailbox/2, W, lists:duplicate(Times, {seen, Kind, R}));
mailbox({seen, Kind, R}, #{mailboxes := M, asked := Asked, seen := Seen, ages := Ages,
                     closed := Closed} = W) ->
    To = receiver(R, W),
    {Questions, M1} = trunkline_mailboxes:seen(Kind, To, M),
    Before = length([S || S <- Seen, S =:= R]),
    IsDue = case Kind of
                short -> Before =:= 7;
                long -> Before >= 1
            end,
    Expected = [To || IsDue, not is_map_key(To, Closed), not is_map_key(To, Ages),
                      not lists:member(To, Asked)],
    Expected = Questions,
    W#{mailboxes := M1, seen := [R | Seen], asked := Asked ++ Questions};
mailbox({answer, Which, Answer}, #{mailboxes := M, asked := [_ | _] = Asked} = W) ->
    To = case Which of
             first -> hd(Asked);
             last -> lists:last(Asked)
         end,
    M1 = trunkline_mailboxes:answered(To, Answer, M),
    known(To, Answer, 10, W#{mailboxes := M1, asked := lists:delete(To, Asked)});
mailbox({know, R, What}, #{mailboxes := M} = W) ->
    To = receiver(R, W),
    Addressee = case What of
                    go -> {call, To, self(), make_ref()};
                    no -> {reply, make_ref(), To};
                    nothing -> To
                end,
    M1 = trunkline_mailboxes:know(Addressee, What, M),
    known(To, What, 1, W#{mailboxes := M1});
mailbox({send, R, Times}, #{mailboxes := M, ages := Ages, closed := Closed,
                            sent_to := SentTo} = W) ->
    To = receiver(R, W),
    IsKnown = is_map_key(To, Ages),
    Known = if is_map_key(To, Closed) -> no;
               IsKnown -> go;
               true -> look
            end,
    Known = trunkline_mailboxes:known(To, M),
    Table = trunkline_mailboxes:table(M),
    lists:foreach(fun(_) -> IsKnown = trunkline_mailboxes:may_receive(To, Table) end,
                  lists:seq(1, Times)),
    W#{sent_to := [To || IsKnown, _ <- lists:seq(1, Times)] ++ SentTo};
mailbox(tick, #{mailboxes := M, asked := Asked, ages := Ages, sent_to := SentTo,
                closed := Closed} = W) ->
    {Questions, M1} = trunkline_mailboxes:tick(M),
    Left = maps:from_list([{To, Age + 1} || {To, Age} <- maps:to_list(Ages),
                                            length([S || S <- SentTo, S =:= To]) >= 8,
                                            not lists:member(To, Asked)]),
    true = lists:all(fun(Age) -> Age =< 1 end, maps:values(Left)),
    {Same, Same} = {lists:sort(maps:keys(Left)), lists:sort(Questions)},
    true = trunkline_mailboxes:are_none_known(M1) =:= (Left =:= #{}),
    W#{mailboxes := M1, asked := Asked ++ Questions, ages := Left, seen := [], sent_to := [],
       closed := maps:from_list([{To, Ticks - 1} || {To, Ticks} <- maps:to_list(Closed),
                                                   Ticks > 1])};
mailbox(_, W) ->
    W.

receiver(R, #{receivers := Receivers}) -> element(R, Receivers).

known(To, What, _, W) when To =:= name; What =:= nothing -> W;
known(To, go, _, #{ages := Ages, closed := Closed} = W) ->
    W#{ages := Ages#{To => 0}, closed := maps:remove(To, Closed)};
known(To, no, Ticks, #{ages := Ages, closed := Closed, sent_to := SentTo} = W) ->
    W#{ages := maps:remove(To, Ages),
       closed := Closed#{To => max(Ticks, maps:get(To, Closed, 0))},
       sent_to := [Pid || Pid <- SentTo, Pid =/= To]}.

%% --- concurrency: callers that call again when their call has ended ------------------

%% Three callers are few, and eight are many, whatever was before. Those whose calls take 20 ms
%% hardly count. Those that bypass the lanes and are killed count until the next look.
concurrency(_) -> check(prop_concurrency()).

prop_concurrency() ->
    ?FORALL(
       {Before, Callers, Slow, Killed, Time},
       {range(1, 30), range(1, 30), range(0, 30), range(0, 20), range(20, 900)},
       begin
           Concurrency = trunkline_concurrency:new(),
           T = calls(lists:duplicate(Before, Time), trunkline_concurrency:clock(), Concurrency),
           WasLow = is_low(Concurrency),
           _ = [trunkline_concurrency:bypass(true, Concurrency) || _ <- lists:seq(1, Killed)],
           true = Killed < 7 orelse not is_low(Concurrency),
           SlowTimes = [20_000 + 1000 * N || N <- lists:seq(1, Slow)],
           _ = calls(lists:duplicate(Callers, Time) ++ SlowTimes, T, Concurrency),
           IsLow = is_low(Concurrency),
           ?WHENFAIL(io:format("~p~n", [{WasLow, IsLow}]),
                     %% Of the slow ones up to eleven end within 10 ms.
                     if Callers < 4 -> IsLow;
                        Callers > 7 -> not IsLow;
                        Callers =:= 6, Slow =:= 0 -> IsLow =:= WasLow;
                        true -> true
                     end)
       end).

%% Whether a call might bypass the lanes; none does.
is_low(Concurrency) ->
    case trunkline_concurrency:bypass(false, Concurrency) of
        true ->
            Now = trunkline_concurrency:clock(),
            ok = trunkline_concurrency:bypassed(Concurrency),
            ok = trunkline_concurrency:ended(1, Now, Now, Concurrency),
            true;
        false ->
            false
    end.

%% For 60 ms from T on. Times has the us that the calls of each caller take.
calls(Times, T, Concurrency) ->
    ended(lists:sort([{T + Time, Time} || Time <- Times]), T + 60_000, Concurrency).

ended([{Ended, _} | _], Until, _) when Ended > Until ->
    Until;
ended([{Ended, Time} | Callers], Until, Concurrency) ->
    ok = trunkline_concurrency:ended(1, Ended - Time, Ended, Concurrency),
    ended(lists:sort([{Ended + Time, Time} | Callers]), Until, Concurrency).

%% --- heap: it has room for what was passed on in the last two seconds ----------------

heap(_) ->
    Sizes = [1, 500, 1100, 5000, 40_000, 70_000, 300_000, 900_000],
    check(300, ?FORALL(Steps, list(oneof([tick, {room_for, elements(Sizes)}])),
                       begin
                           {Pid, Ref} = spawn_opt(fun() -> exit(rooms(Steps)) end,
                                                  [monitor | trunkline_heap:options()]),
                           receive {'DOWN', Ref, process, Pid, Wrong} -> Wrong =:= [] end
                       end)).

%% Where the process has less room than it should have, or much more.
rooms(Steps) ->
    {_, _, Wrong} =
        lists:foldl(fun(tick, {Heap, [Now, _], Wrong}) ->
                            Heap1 = trunkline_heap:tick(Heap),
                            {Heap1, [0, Now], wrong(tick, Now, Wrong)};
                       ({room_for, Bytes}, {Heap, [Now, Before], Wrong}) ->
                            Heap1 = trunkline_heap:room_for(trunkline_gate:limit(Bytes), Heap),
                            Most = max(Bytes, Now),
                            {Heap1, [Most, Before], wrong(Bytes, max(Most, Before), Wrong)}
                    end, {trunkline_heap:new(), [0, 0], []}, Steps),
    Wrong.

wrong(Step, Bytes, Wrong) ->
    {garbage_collection, Options} = process_info(self(), garbage_collection),
    Room = proplists:get_value(min_heap_size, Options),
    %% (4,096 are always there, and there is a limit. The runtime system rounds up.)
    [{Step, Bytes, Room} || Room < min(max(Bytes, 4096), 524_288)
                                orelse Room > min(2 * max(Bytes, 4096), 1_000_000)]
        ++ Wrong.

%% --- window: two ends and the messages between them ---------------------------------

%% Bytes, as charged, of a window before it has grown.
-define(FIRST, (4 bsl 20)).

window(_) ->
    check(prop_window(wide(0, 1_000_000))),
    check(prop_window_near()).

%% Whatever the batches and however acknowledgements and batches are delayed, the
%% lane never has more than a window and a batch under way, never stands still,
%% and in the end everything is acknowledged. The window is never smaller than at
%% first, and never larger than it may be.
prop_window(RoundTrip) ->
    ?FORALL({{Most, Batches}, Steps, Trip},
            {batches(), list({boolean(), nanoseconds()}), RoundTrip},
            run_window(Batches, Steps, #{most => Most, highest => Most, now => 0, trip => Trip})).

%% To a peer that is near 4 MB are enough, and it does not grow by acknowledgements
%% that were held up and come all at once.
prop_window_near() ->
    ?FORALL({{Most, Batches}, Steps, Trip},
            {batches(), list({boolean(), nanoseconds()}), wide(0, 1999)},
            run_window(Batches, Steps,
                       #{most => Most, highest => min(?FIRST, Most), now => 0, trip => Trip})).

%% The largest window, and what there is to send: several windows, as a rule.
batches() ->
    oneof([{wide(1, 5000), list({wide(1, 3000), oneof([now, later])})},
           {wide(?FIRST - 1000, 16 * ?FIRST), list({wide(1, ?FIRST), oneof([now, later])})}]).

%% Between two steps.
nanoseconds() -> oneof([0, wide(0, 1000), wide(0, 100_000_000), wide(0, 10_000_000_000)]).

%% As large as they may be, whatever PropEr's size.
wide(Least, Most) -> resize(Most, range(Least, Most)).

run_window(Batches, Steps, #{most := Most} = Link) ->
    run_window(Batches, Steps, Link, trunkline_window:sender(Most), trunkline_window:receiver(Most),
               [], []).

%% To: batches under way; Back: acknowledgements under way.
run_window([], _, Link, Sender, Receiver, [], []) ->
    case trunkline_window:flush(Receiver) of
        none -> trunkline_window:in_flight(Sender) =:= 0;
        {ack, Charge, _} -> trunkline_window:in_flight(acked(Charge, Link, Sender)) =:= 0
    end;
run_window(Batches, Steps, #{most := Most, highest := Highest, now := Before} = Link0, Sender,
           Receiver, To, Back) ->
    {{Slow, Later}, Steps1} =
        case Steps of [] -> {{false, 1}, []}; [Step | Rest] -> {Step, Rest} end,
    #{now := Now} = Link = Link0#{now := Before + Later},
    Window = trunkline_window:bytes(Sender),
    Sound = Window >= min(?FIRST, Most) andalso Window =< Highest,
    case {Batches, trunkline_window:is_open(Sender)} of
        _ when not Sound ->
            false;
        {[{Bytes, Ack} | Batches1], true} when Slow; To =:= [], Back =:= [] ->
            Charge = trunkline_gate:limit(Bytes) + 1,
            Sender1 = trunkline_window:sent(Now, Charge, Sender),
            Under = trunkline_gate:bytes(trunkline_window:in_flight(Sender1)),
            Under < Window + Bytes andalso run_window(Batches1, Steps1, Link, Sender1, Receiver,
                                                      To ++ [{Ack, Charge}], Back);
        _ when Back =/= [], Slow orelse To =:= [] ->
            [Charge | Back1] = Back,
            run_window(Batches, Steps1, Link, acked(Charge, Link, Sender), Receiver, To, Back1);
        _ when To =/= [] ->
            [{Ack, Charge} | To1] = To,
            case trunkline_window:delivered(Ack, Charge, Receiver) of
                {ack, Acked, Receiver1} ->
                    run_window(Batches, Steps1, Link, Sender, Receiver1, To1, Back ++ [Acked]);
                {later, Receiver1} when Ack =:= later ->
                    run_window(Batches, Steps1, Link, Sender, Receiver1, To1, Back)
            end;
        _ ->
            false            % nothing under way, and the window is shut: stuck
    end.

acked(Charge, #{now := Now, trip := Trip}, Sender) ->
    trunkline_window:acked(Now, Charge, Trip, Sender).

%% On a way with so much room and such a round trip, with a lane that always has
%% something to send: the window becomes as large as what the way can hold, if it may,
%% and never much larger than it makes use of. Less than it may be is enough next door.
window_link(_) -> check(200, prop_window_link()).

prop_window_link() ->
    ?FORALL({Rate, Trip, Most, Batch},
            {oneof([wide(1_000_000, 100_000_000), wide(100_000_000, 4_000_000_000)]),
             oneof([0, wide(1, 1999), wide(2000, 20_000), wide(20_000, 300_000)]),
             oneof([wide(1000, ?FIRST), wide(?FIRST, 64 * ?FIRST)]), wide(10_000, 65_536)},
            begin
                Holds = Rate * Trip div 1_000_000,
                Window = trunkline_window:bytes(drive(Rate, Trip, Most, Batch)),
                conjunction(
                  [{large_enough, Trip < 2000 orelse Window >= min(Most, Holds)},
                   %% four times what it holds; what is acknowledged at a time is a part of a round
                   {not_too_large, Window =< max(min(?FIRST, Most), min(Most, 5 * Holds))},
                   {near, Trip >= 2000 orelse Window =:= min(?FIRST, Most)}])
            end).

%% Twelve round trips (a window that doubles needs six to become 64 times as large), or
%% more where what is acknowledged late is not acknowledged within one.
drive(Rate, Trip, Most, Least) ->
    Till = 12 * max(Trip * 1000, 40_000_000),
    Batch = max(Least, Rate * Till div 1_000_000_000 div 5000),     % not too many of them
    drive(#{now => 0, till => Till, trip => Trip, rate => Rate, free => 0,
            charge => trunkline_gate:limit(Batch) + 1, batch => Batch,
            sender => trunkline_window:sender(Most), receiver => trunkline_window:receiver(Most),
            to => queue:new(), back => queue:new(), flush => none}).

%% What happens next: a batch leaves as long as the window is open; one arrives; an
%% acknowledgement does; or the inlet's timer for what is not acknowledged yet.
drive(#{now := Now, till := Till, sender := Sender}) when Now >= Till ->
    Sender;
drive(#{now := Now, trip := Trip, rate := Rate, free := Free, charge := Charge, batch := Batch,
        sender := Sender, receiver := Receiver, to := To, back := Back, flush := Flush} = L) ->
    Way = Trip * 500,
    %% What waits for the way is under way, too.
    case trunkline_window:is_open(Sender) of
        true ->
            Gone = max(Now, Free) + Batch * 1_000_000_000 div Rate,
            drive(L#{free := Gone, to := queue:in(Gone + Way, To),
                     sender := trunkline_window:sent(Now, Charge, Sender)});
        false ->
            Next = fun(Queue) -> case queue:peek(Queue) of
                                     {value, {Time, _}} -> Time;
                                     {value, Time} -> Time;
                                     empty -> infinity
                                 end end,
            Arrives = Next(To),
            Acked = Next(Back),
            case lists:min([Arrives, Acked, Flush]) of          % a number is less than an atom
                Acked ->
                    {{value, {_, Sum}}, Back1} = queue:out(Back),
                    drive(L#{now := Acked, back := Back1,
                             sender := trunkline_window:acked(Acked, Sum, Trip, Sender)});
                Arrives ->
                    L1 = L#{now := Arrives, to := queue:drop(To)},
                    case trunkline_window:delivered(later, Charge, Receiver) of
                        {ack, Sum, Receiver1} ->
                            drive(L1#{receiver := Receiver1,
                                      back := queue:in({Arrives + Way, Sum}, Back)});
                        {later, Receiver1} ->
                            drive(L1#{receiver := Receiver1,
                                      flush := min(Flush, Arrives + 20_000_000)})
                    end;
                Flush ->
                    L1 = L#{now := Flush, flush := none},
                    case trunkline_window:flush(Receiver) of
                        {ack, Sum, Receiver1} ->
                            drive(L1#{receiver := Receiver1,
                                      back := queue:in({Flush + Way, Sum}, Back)});
                        none ->
                            drive(L1)
                    end
            end
    end.

%% --- distance: the shortest round trip of late ---------------------------------------

distance(_) -> check(prop_distance()).

%% Five say how far it is, twelve count, and those that a loaded machine has answered
%% late do not. A peer that was near once is not far for being slow.
prop_distance() ->
    ?FORALL({Before, Real, Late, Slow},
            {list(wide(0, 100_000)), oneof([wide(1, 100_000), wide(1990, 2010)]),
             vector(12, wide(0, 1_000_000)), range(1, 12)},
            begin
                Measure = fun(Trips) ->
                                  lists:foldl(fun trunkline_distance:add/2,
                                              trunkline_distance:new(), Trips)
                          end,
                Distance = Measure(Before),
                Last = lists:sublist(lists:reverse(Before), 12),
                Expected = if length(Before) < 5 -> 0;
                              true -> lists:min(Last)
                           end,
                %% One in twelve is what it is; the others take longer.
                {Some, Others} = lists:split(Slow - 1, [Real + L || L <- Late]),
                Now = Measure(Before ++ Some ++ [Real | tl(Others)]),
                trunkline_distance:round_trip(Distance) =:= Expected
                    andalso trunkline_distance:round_trip(Now) =:= Real
                    %% of a peer of which nothing is known nobody says that it is far
                    andalso not trunkline_distance:is_far(trunkline_distance:new())
                    andalso trunkline_distance:is_far(Now) =:= (lists:min([Real | Before]) >= 2000)
                    andalso trunkline_distance:is_far(Real) =:= (Real >= 2000)
            end).

%% --- way: the distribution, unless it is the limit --------------------------------------

way(_) -> check(prop_way()).

%% Seconds, in each of which packets are lost or not, the window is the limit or not, much
%% or little is under way; and how much connections carry, if the distribution carries 1000
%% bytes a second.
prop_way() ->
    ?FORALL(
       {Seconds, Connections},
       {non_empty(list({oneof([fine, fine, fine, lost, limited, small_buffer, slow_receiver]),
                        range(1, 60)})), oneof([900, 2000])},
       begin
           All = lists:append([lists:duplicate(N, What) || {What, N} <- Seconds]),
           {Ways, _} = lists:mapfoldl(
                         fun({Now, What}, {Last, Way, Sent, Retransmitted, Limited}) ->
                                 R = Retransmitted + case What of lost -> 1; _ -> 0 end,
                                 {{LS, LR} = L, Unacked} =
                                     case {What, Limited} of
                                         {limited, {A, B}} -> {{A, B + 600_000}, 2 bsl 20};
                                         {small_buffer, {A, B}} -> {{A + 600_000, B}, 1000};
                                         {slow_receiver, {A, B}} -> {{A, B + 1_000_000}, 1000};
                                         _ -> {Limited, 2 bsl 20}
                                     end,
                                 S = Sent + case Last of
                                                distribution -> 1000;
                                                connections -> Connections
                                            end,
                                 Sample = {S, #{retransmitted => R, limited => LS,
                                                receiver_limited => LR, unacked_bytes => Unacked}},
                                 {Decided, Way1} = trunkline_way:look(Now * 1000, Sample, Way),
                                 {Decided, {Decided, Way1, S, R, L}}
                         end, {distribution, trunkline_way:new(), 0, 0, {0, 0}},
                         lists:zip(lists:seq(1, length(All)), All)),
           %% The first look sees what was before.
           hd(Ways) =:= distribution
               andalso follows({distribution, -1000},
                               lists:zip(Ways, [case W of small_buffer -> limited; _ -> W end
                                                || W <- [fine | tl(All)]]), 0, Connections > 1000)
               andalso element(1, trunkline_way:look(0, {0, unknown}, trunkline_way:new())) =:=
               connections
       end).

%% It leaves the distribution at once, when there is a reason and only then. It comes back
%% after half a minute or more; or after a few seconds, if the window was the limit and that
%% was no help, and then it stays although the window is the limit.
follows(_, [], _, _) -> true;
follows({distribution, Vain}, [{distribution, What} | Rest], Now, Help) ->
    (What =:= fine orelse What =:= slow_receiver orelse What =:= limited andalso Now - Vain =< 600)
        andalso follows({distribution, Vain}, Rest, Now + 1, Help);
follows({distribution, Vain}, [{connections, What} | Rest], Now, Help) ->
    (What =:= lost orelse What =:= limited andalso Now - Vain >= 600)
        andalso follows({connections, What, Now, Vain}, Rest, Now + 1, Help);
follows({connections, Why, Since, Vain}, [{connections, _} | Rest], Now, Help) ->
    Now - Since < case Why of limited when not Help -> 7; _ -> 601 end
        andalso follows({connections, Why, Since, Vain}, Rest, Now + 1, Help);
follows({connections, Why, Since, Vain}, [{distribution, _} | Rest], Now, Help) ->
    IsVain = Why =:= limited andalso not Help,
    case IsVain of
        true -> Now - Since >= 4 andalso follows({distribution, Now}, Rest, Now + 1, Help);
        false -> Now - Since >= 30 andalso follows({distribution, Vain}, Rest, Now + 1, Help)
    end.

%% --- waiters: a queue in which those who return stand first --------------------------

waiters(_) ->
    check(prop_waiters()),
    check(prop_tickets()).

%% Whatever tickets they bring, from other links perhaps, nobody is forgotten.
prop_tickets() ->
    ?FORALL(Tickets, list(oneof([new, range(1, 10)])),
            begin
                Named = lists:zip(lists:seq(1, length(Tickets)), Tickets),
                W = lists:foldl(fun({Name, Ticket}, W) ->
                                        trunkline_waiters:add(Name, Ticket, 1, W)
                                end, trunkline_waiters:new(), Named),
                {Out, W1} = trunkline_waiters:release_all(W),
                trunkline_waiters:is_empty(W1)
                    andalso lists:sort([Name || {Name, _} <- Out]) =:= [Name || {Name, _} <- Named]
            end).

prop_waiters() ->
    ?FORALL(Commands, list(oneof([{add, range(1, 100)},
                                  {release, range(-50, 300), oneof([all, range(-2, 5)])},
                                  {remove, range(1, 10)}, return, release_all])),
            run_waiters(Commands, trunkline_waiters:new(), [], [], 1)).

%% Model: the waiting, oldest first, as {Name, Bytes}; the released, with tickets.
run_waiters([], W, Waiting, _, _) ->
    trunkline_waiters:size(W) =:= length(Waiting)
        andalso trunkline_waiters:is_empty(W) =:= (Waiting =:= []);
run_waiters([{add, Bytes} | Commands], W, Waiting, Released, N) ->
    run_waiters(Commands, trunkline_waiters:add(N, new, Bytes, W), Waiting ++ [{N, Bytes}],
                Released, N + 1);
run_waiters([{remove, Name} | Commands], W, Waiting, Released, N) ->
    run_waiters(Commands, trunkline_waiters:remove(Name, W), lists:keydelete(Name, 1, Waiting),
                Released, N);
run_waiters([return | Commands], W, Waiting, [{Name, Ticket} | Released], N) ->
    %% It was overtaken, and comes back; it is older than whoever came after it.
    {Older, Younger} = lists:partition(fun({Other, _}) -> Other < Name end, Waiting),
    run_waiters(Commands, trunkline_waiters:add(Name, Ticket, 10, W),
                Older ++ [{Name, 10}] ++ Younger, Released, N);
run_waiters([return | Commands], W, Waiting, [], N) ->
    run_waiters(Commands, W, Waiting, [], N);
run_waiters([release_all | Commands], W, Waiting, Released, N) ->
    {Out, W1} = trunkline_waiters:release_all(W),
    [Name || {Name, _} <- Out] =:= [Name || {Name, _} <- Waiting]
        andalso trunkline_waiters:is_empty(W1)
        andalso run_waiters(Commands, W1, [], Out ++ Released, N);
run_waiters([{release, Room, Most} | Commands], W, Waiting, Released, N) ->
    {Out, W1} = trunkline_waiters:release(Room, case Most of
                                                    all -> trunkline_waiters:size(W);
                                                    _ -> Most
                                                end, W),
    {Go, Stay} = lists:split(length(Out), Waiting),
    Sums = lists:foldl(fun({_, Bytes}, [Sum | _] = Acc) -> [Sum + Bytes | Acc] end, [0], Go),
    [Name || {Name, _} <- Out] =:= [Name || {Name, _} <- Go]
        %% all before the last fit; the next would have gone if there was room
        andalso (Go =:= [] orelse lists:nth(2, Sums) < Room)
        andalso (Most =:= all orelse length(Go) =< max(0, Most))
        andalso (Stay =:= [] orelse hd(Sums) >= Room
                 orelse is_integer(Most) andalso length(Go) >= Most)
        andalso run_waiters(Commands, W1, Stay, Out ++ Released, N).

%% --- room: what a killed sender has left behind of a large message --------------------

rests(_) -> check(prop_rests()).

%% Large messages come and go while somebody waits. One that is there for less than two
%% looks, or while anything is in a lane or under way, stays counted; what stays on is
%% not, in the end.
prop_rests() ->
    ?FORALL({Rest, Steps}, {range(0, 100), list(oneof([message, look, lane, in_flight]))},
            begin
                Gate = trunkline_gate:new(1),
                Stats = trunkline_stats:new(1),
                Route = #route{link = self(), lanes = {self()}, aliases = {make_ref()}, gate = Gate,
                               stats = Stats, limit = trunkline_gate:limit(100), large = 0,
                               bulk_limit = trunkline_gate:limit(100)},
                ok = trunkline_route:set_path(lanes, Route),
                Bulk = trunkline_route:bulk_ix(Route),
                ok = trunkline_gate:force(Gate, Bulk, Rest),
                Look = fun(Room) ->
                               Waiting = trunkline_room:add(make_ref(), {room, Bulk, 1, new}, Route,
                                                            Room),
                               trunkline_room:recheck(Route, Waiting)
                       end,
                Step = fun({Charge, message}, Room) ->
                               Before = trunkline_gate:level(Gate, Bulk),
                               ok = trunkline_gate:force(Gate, Bulk, Charge),
                               Room1 = Look(Room),
                               true = trunkline_gate:level(Gate, Bulk) =:= Before + Charge,
                               _ = trunkline_gate:leave(Gate, Bulk, Charge),
                               Room1;
                          ({_, lane}, Room) ->
                               Before = trunkline_gate:level(Gate, Bulk),
                               ok = trunkline_gate:force(Gate, 1, 1),
                               Room1 = Look(Look(Look(Room))),
                               true = trunkline_gate:level(Gate, Bulk) =:= Before,
                               _ = trunkline_gate:leave(Gate, 1, 1),
                               Room1;
                          ({_, in_flight}, Room) ->
                               Before = trunkline_gate:level(Gate, Bulk),
                               trunkline_stats:put(Stats, {lane, 1}, in_flight_messages, 1),
                               Room1 = Look(Look(Look(Room))),
                               true = trunkline_gate:level(Gate, Bulk) =:= Before,
                               trunkline_stats:put(Stats, {lane, 1}, in_flight_messages, 0),
                               Room1;
                          ({_, look}, Room) ->
                               Look(Room)
                       end,
                Room = lists:foldl(Step, trunkline_room:new(Stats),
                                   lists:zip(lists:seq(1, length(Steps)), Steps)),
                _ = Look(Look(Room)),
                trunkline_gate:level(Gate, Bulk) =:= 0
            end).

%% While newcomers take all room that there is, and leave no less than half, others wait in vain.
%% Then the gate is closed until they do, or have given up.
passed_by(_) ->
    [passed_by(Then, Ix) || Then <- [room, give_up, session_ends], Ix <- [1, 2]].

passed_by(Then, Ix) ->
    Gate = trunkline_gate:new(1),
    Stats = trunkline_stats:new(1),
    Limit = trunkline_gate:limit(10_000),
    Route = #route{link = self(), lanes = {self()}, aliases = {make_ref()}, gate = Gate,
                   stats = Stats, limit = Limit, large = 0, bulk_limit = Limit},
    ok = trunkline_route:set_path(lanes, Route),
    Charge = trunkline_gate:limit(1000),
    Enter = fun() -> trunkline_gate:enter_large(Gate, Ix, Charge, Limit) end,
    [ok = Enter() || _ <- lists:seq(1, 10)],
    refused = Enter(),
    %% (Nothing looks as if a killed sender had left it behind.)
    trunkline_stats:put(Stats, {lane, 1}, in_flight_messages, 1),
    Waiter = alias(),
    What = {room, Ix, 1000, new},
    Waiting = trunkline_room:add(Waiter, What, Route, trunkline_room:new(Stats)),
    %% One leaves, and another one comes.
    Pass = fun(_, Room) ->
                   _ = trunkline_gate:leave(Gate, Ix, Charge),
                   ok = Enter(),
                   trunkline_room:recheck(Route, Room)
           end,
    Room1 = lists:foldl(Pass, Waiting, lists:seq(1, 5)),
    _ = trunkline_gate:leave(Gate, Ix, Charge),
    refused = Enter(),
    true = 9 * Charge =:= trunkline_gate:level(Gate, Ix),
    case Then of
        room ->
            [trunkline_gate:leave(Gate, Ix, Charge) || _ <- lists:seq(1, 4)],
            Room2 = trunkline_room:release(Ix, Route, Room1),
            refused = Enter(),
            _ = trunkline_gate:leave(Gate, Ix, Charge),
            Room3 = trunkline_room:release(Ix, Route, Room2),
            receive {Waiter, {again, _}} -> ok after 0 -> exit(not_woken) end,
            false = trunkline_room:is_awaited(Room3),
            ok = Enter();
        give_up ->
            false = trunkline_room:is_awaited(trunkline_room:remove(Waiter, What, Room1)),
            ok = Enter();
        session_ends ->
            ok = trunkline_route:set_path(wait, Route),
            _ = trunkline_room:dismiss(again, trunkline_room:recheck(Route, Room1)),
            receive {Waiter, {again, _}} -> ok after 0 -> exit(not_woken) end,
            refused = Enter(),
            ok = trunkline_route:set_path(lanes, Route),
            ok = Enter()
    end.

%% --- backlog: a queue that is cut into batches ----------------------------------------

backlog(_) -> check(prop_backlog()).

prop_backlog() ->
    ?FORALL({Messages, Bytes, Commands},
            {range(1, 5), range(1, 1000),
             list(oneof([{in, range(1, 500)}, {in_batch, list(range(1, 300))}, take]))},
            run_backlog(Commands, trunkline_backlog:new(Messages, Bytes), {Messages, Bytes}, [],
                        1)).

run_backlog([], B, Limits, Model, _) ->
    drain(B, Limits, Model);
run_backlog([{in, Bytes} | Commands], B, Limits, Model, N) ->
    Item = {one, trunkline_gate:limit(Bytes) + 1, N},
    {one, Charge, N} = Item,
    run_backlog(Commands, trunkline_backlog:in(Charge, N, B), Limits, Model ++ [Item], N + 1);
run_backlog([{in_batch, []} | Commands], B, Limits, Model, N) ->
    run_backlog(Commands, B, Limits, Model, N);
run_backlog([{in_batch, Sizes} | Commands], B, Limits, Model, N) ->
    Charge = lists:sum([trunkline_gate:limit(Bytes) + 1 || Bytes <- Sizes]),
    Entries = lists:seq(N, N + length(Sizes) - 1),
    run_backlog(Commands, trunkline_backlog:in_batch(Charge, Entries, B), Limits,
                Model ++ [{batch, Charge, Entries}], N + length(Sizes));
run_backlog([take | Commands], B, Limits, Model, N) ->
    case take(B, Limits, Model) of
        {B1, Model1} -> run_backlog(Commands, B1, Limits, Model1, N);
        Verdict -> Verdict andalso run_backlog(Commands, B, Limits, Model, N)
    end.

drain(B, Limits, Model) ->
    case take(B, Limits, Model) of
        {B1, Model1} -> drain(B1, Limits, Model1);
        Verdict -> Verdict
    end.

%% Takes a batch from both; or says whether both are empty.
take(B, {Messages, Bytes}, Model) ->
    Sum = lists:sum([Charge || {_, Charge, _} <- Model]),
    Sum = trunkline_backlog:charge(B),
    case trunkline_backlog:take(B) of
        empty ->
            Model =:= [] andalso trunkline_backlog:is_empty(B);
        {Charge, Entries, B1} ->
            {Taken, Model1} = model_take(length(Entries), Model, []),
            true = Entries =:= lists:append([case E of {one, _, N} -> [N]; {batch, _, Ns} -> Ns end
                                             || E <- Taken]),
            true = Charge =:= lists:sum([C || {_, C, _} <- Taken]),
            %% a batch that was put in as one comes out as it is; others keep the limits
            true = case Taken of
                       [{batch, _, _}] -> true;
                       [{one, _, _}] -> true;
                       _ ->
                           length(Entries) =< Messages andalso trunkline_gate:bytes(Charge) =< Bytes
                   end,
            {B1, Model1}
    end.

model_take(0, Model, Taken) -> {lists:reverse(Taken), Model};
model_take(N, [{one, _, _} = Item | Model], Taken) -> model_take(N - 1, Model, [Item | Taken]);
model_take(N, [{batch, _, Ns} = Item | Model], Taken) ->
    model_take(N - length(Ns), Model, [Item | Taken]).

%% --- pace: a lane waits only for what is sure to come ----------------------------------

pace(_) -> check(prop_pace()).

prop_pace() ->
    ?FORALL(Steps, list({range(0, 300_000), oneof([send, arrive]), range(1, 100)}),
            run_pace(Steps, 0, trunkline_pace:new(), #{last => none, probe => none, trips => []})).

run_pace([], _, _, _) ->
    true;
run_pace([{Later, What, Messages} | Steps], Before, Pace,
         #{last := Last, probe := Probe, trips := Trips} = Model) ->
    Now = Before + Later,
    Waiting = trunkline_pace:is_waiting(Messages, Pace),
    %% It never waits without a probe under way, nor before it knows how near the
    %% inlet is, nor for an inlet that has never been near, nor with a full batch.
    Sound = not Waiting orelse (Probe =/= none andalso Trips =/= []
                                andalso lists:min(Trips) < 1_000_000 andalso Messages < 32),
    Sound andalso
        case What of
            send ->
                {Ack, Pace1} = trunkline_pace:sent(Now, Pace),
                Dense = Last =/= none andalso Now - Last < 30_000,
                Expected = case Probe of none when Dense -> now; _ -> later end,
                Ack =:= Expected
                    andalso run_pace(Steps, Now, Pace1,
                                     Model#{last := Now,
                                            probe := case Ack of now -> Now; later -> Probe end});
            arrive when Probe =:= none ->
                run_pace(Steps, Now, trunkline_pace:arrived(Now, Pace), Model);
            arrive ->
                Pace1 = trunkline_pace:arrived(Now, Pace),
                %% with no probe under way it does not wait
                not trunkline_pace:is_waiting(1, Pace1)
                    andalso run_pace(Steps, Now, Pace1,
                                     Model#{probe := none, trips := [Now - Probe | Trips]})
        end.

%% --- patience: for three seconds in which nothing moves, nor comes -------------------

patience(_) -> check(prop_patience()).

%% What happens, and how many ms after the event before it.
prop_patience() ->
    ?FORALL(Events, list({oneof([moves, comes, silent, look]), range(0, 2000)}),
            play_patience(Events, 1000, {0, 1000, 0, 1000}, trunkline_patience:new(0, 1000))).

%% The model keeps how often something has moved, and when last, and the same of what has come.
play_patience([], _, _, _) ->
    true;
play_patience([{Event, Later} | Events], Before, {Moves, Moved, Bytes, Came}, P) ->
    Now = Before + Later,
    case Event of
        moves -> play_patience([{look, 0} | Events], Now, {Moves + 1, Now, Bytes, Came}, P);
        comes -> play_patience(Events, Now, {Moves, Moved, Bytes + 1, came(Bytes, Now, Came)},
                               trunkline_patience:heard(Bytes + 1, Now, P));
        silent -> play_patience(Events, Now, {Moves, Moved, Bytes, Came},
                                case Bytes of
                                    0 -> P;
                                    _ -> trunkline_patience:heard(Bytes, Now, P)
                                end);
        look ->
            IsQuiet = Now - Moved >= 3000 andalso (Now - Came >= 3000 orelse Now - Moved >= 23_000),
            case trunkline_patience:look(Moves, Now, P) of
                stalled -> IsQuiet;
                {again, Time, P1} when not IsQuiet, Time > 0, Time =< 1000 ->
                    play_patience(Events, Now, {Moves, Moved, Bytes, Came}, P1);
                _ -> false
            end
    end.

%% The first number says nothing.
came(0, _, Came) -> Came;
came(_, Now, _) -> Now.

%% --- handshake: both ends come to the same agreement --------------------------------------

-define(REQUIRED, [request, large, multicast, apply, label, monitor, drain]).

handshake(_) -> check(prop_handshake()).

prop_handshake() ->
    ?FORALL({Mine, Theirs, Junk}, {hello(), hello(), junk()},
            begin
                Symmetric = case {trunkline_handshake:agree(Mine, Theirs),
                                  trunkline_handshake:agree(Theirs, Mine)} of
                                {{ok, A}, {ok, B}} ->
                                    maps:without([release, capabilities], A) =:=
                                        maps:without([release, capabilities], B)
                                        andalso lists:usort(maps:get(capabilities, A)) =:=
                                        lists:usort(maps:get(capabilities, B))
                                        andalso within(A, Mine) andalso within(A, Theirs);
                                {A, B}
                                  when A =:= {error, incompatible}; B =:= {error, incompatible} ->
                                    #{protocol := {L1, H1}, capabilities := C1} = Mine,
                                    #{protocol := {L2, H2}, capabilities := C2} = Theirs,
                                    H1 < L2 orelse H2 < L1 orelse ?REQUIRED -- C1 =/= []
                                        orelse ?REQUIRED -- C2 =/= []
                            end,
                Symmetric andalso {error, malformed} =:= trunkline_handshake:agree(Mine, Junk)
            end).

within(#{protocol := P, lanes := L, window_bytes := W, resume_time := T, capabilities := Cs},
       #{protocol := {Low, High}, lanes := Lanes, window_bytes := Window,
         capabilities := Capabilities} = Hello) ->
    P >= Low andalso P =< High andalso L =< Lanes andalso W =< Window
        andalso T =< maps:get(resume_time, Hello, 0)
        andalso lists:all(fun(C) -> lists:member(C, Capabilities) end, Cs).

hello() ->
    ?LET({Low, More, Lanes, Window, Capabilities, Extra, Resume},
         {range(1, 5), range(0, 3), range(1, 64), range(1, 1 bsl 30), capabilities(), nat(),
          oneof([#{}, #{resume_time => nat()}])},
         Resume#{protocol => {Low, Low + More}, lanes => Lanes, window_bytes => Window,
                 bulk_bytes => 2 * Window, capabilities => Capabilities, release => "x",
                 {unknown, key} => Extra}).

capabilities() ->
    ?LET({More, Lacks},
         {list(oneof([v1, heaps, unknown])), frequency([{4, []}, {1, list(oneof(?REQUIRED))}])},
         (?REQUIRED -- Lacks) ++ More).

%% Not a hello, though some come near to one.
junk() ->
    oneof([term_without_map(), #{},
           ?LET({Key, Bad, Hello}, {oneof([protocol, lanes, window_bytes, capabilities]),
                                    oneof([nonsense, 0, -1, [a | b], {2, 1}]), hello()},
                case {Key, Bad} of
                    _ -> Hello#{Key := Bad}
                end),
           ?LET({Key, Hello}, {oneof([protocol, lanes, window_bytes, capabilities]), hello()},
                maps:remove(Key, Hello))]).

term_without_map() -> oneof([nonsense, 17, "text", {a, tuple}, <<"bits">>]).
