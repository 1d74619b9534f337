%% The pure parts of a lane's channels: what is sent again, in which order it arrives, and what
%% a destination's number stands for.
-module(channels_properties_SUITE).

-include_lib("common_test/include/ct.hrl").
-include("counterexample.hrl").

-define(WINDOW, 10_000).

-export([all/0, resending/1, way_back/1, unused/1, arrivals/1, resumed/1, dictionary/1,
         damaged/1]).

all() -> [resending, way_back, unused, arrivals, resumed, dictionary, damaged].

check(Tests, Property) -> counterexample:check(Tests, 60, Property).

%% --- resending -----------------------------------------------------------------------

%% Batches go by the distribution or by channels that delay, break and lose what they had. The
%% inlet has each of them once, and in order; nothing is kept for longer than it takes to hear
%% that it has arrived; and when all is quiet nothing waits.
resending(_) -> check(1000, prop_resending()).

-record(model,
        {outbox = trunkline_outbox:new(),
         serial = 1,
         %% Under way by each, the oldest first.
         channels = #{} :: #{pos_integer() => [pos_integer()]},
         distribution = [] :: [pos_integer()],                    % the same
         last = 0,                                                % channel
         next = 1,                                                % at the inlet
         early = [] :: [pos_integer()],
         acks = [] :: [non_neg_integer()]}).                      % under way, the oldest first

command() ->
    frequency([{8, send}, {2, send_by_distribution}, {8, {give, nat()}}, {8, {deliver, nat()}},
               {3, deliver_by_distribution}, {4, ack}, {2, open}, {2, {break, nat()}}, {1, leave}]).

prop_resending() ->
    ?ALL(Commands, list(command()),
         begin
             M = quiet(lists:foldl(fun step/2, #model{}, Commands)),
             conjunction([{all_have_arrived, M#model.next =:= M#model.serial},
                          {nothing_waits, not trunkline_outbox:is_waiting(M#model.outbox)},
                          {nothing_is_kept, trunkline_outbox:bytes(M#model.outbox) =:= 0}])
         end).

frame(Serial) -> {8, <<Serial:64>>}.

serial({8, <<Serial:64>>}) -> Serial.

step(send, #model{serial = N, outbox = O} = M) ->
    M#model{serial = N + 1, outbox = trunkline_outbox:add(N, frame(N), O)};
step(send_by_distribution, #model{serial = N, distribution = D} = M) ->
    M#model{serial = N + 1, distribution = D ++ [N]};
step(open, #model{last = Last, channels = Cs} = M) ->
    M#model{last = Last + 1, channels = Cs#{Last + 1 => []}};
step({give, R}, #model{outbox = O} = M) ->
    case pick(R, M) of
        none -> M;
        C ->
            Waits = trunkline_outbox:is_waiting(O),
            case trunkline_outbox:take(C, O) of
                {_, Frame, O1} ->
                    true = Waits,
                    #{C := UnderWay} = Cs = M#model.channels,
                    M#model{outbox = O1, channels = Cs#{C := UnderWay ++ [serial(Frame)]}};
                empty ->
                    false = Waits,
                    M
            end
    end;
step({deliver, R}, M) ->
    case pick(R, M) of
        none -> M;
        C ->
            case M#model.channels of
                #{C := [Serial | Others]} = Cs ->
                    arrive(Serial, M#model{channels = Cs#{C := Others}});
                #{} -> M
            end
    end;
step(deliver_by_distribution, #model{distribution = [Serial | Others]} = M) ->
    arrive(Serial, M#model{distribution = Others});
step(ack, #model{acks = [Ack | Others], outbox = O} = M) ->
    Before = trunkline_outbox:bytes(O),
    O1 = trunkline_outbox:arrived(Ack, O),
    true = trunkline_outbox:bytes(O1) =< Before,
    M#model{acks = Others, outbox = O1};
step({break, R}, M) ->
    case pick(R, M) of
        none -> M;
        %% The lane hears of it at some time; what was under way is lost.
        C -> M#model{channels = maps:remove(C, M#model.channels),
                     outbox = trunkline_outbox:broken(C, M#model.outbox)}
    end;
%% All that waits goes by the distribution.
step(leave, #model{outbox = O, distribution = D} = M) ->
    {Serials, O1} = take_all(O),
    true = Serials =:= lists:usort(Serials),
    false = trunkline_outbox:is_waiting(O1),
    M#model{outbox = O1, distribution = D ++ Serials};
step(_, M) ->
    M.

take_all(O) ->
    case trunkline_outbox:take(distribution, O) of
        {_, Frame, O1} ->
            {Serials, O2} = take_all(O1),
            {[serial(Frame) | Serials], O2};
        empty ->
            {[], O}
    end.

pick(R, #model{channels = Cs}) ->
    case maps:keys(Cs) of
        [] -> none;
        Keys -> lists:nth(1 + R rem length(Keys), Keys)
    end.

%% As the inlet does it.
arrive(Serial, #model{next = Next} = M) when Serial < Next -> M;
arrive(Serial, #model{next = Serial, early = Early, acks = Acks} = M) ->
    case lists:member(Serial + 1, Early) of
        true ->
            arrive(Serial + 1, M#model{next = Serial + 1, early = lists:delete(Serial + 1, Early)});
        false -> M#model{next = Serial + 1, acks = Acks ++ [Serial]}
    end;
arrive(Serial, #model{early = Early} = M) -> M#model{early = lists:usort([Serial | Early])}.

%% Nothing breaks any more.
quiet(#model{channels = Cs} = M) when map_size(Cs) =:= 0 -> quiet(step(open, M));
quiet(M) ->
    case settle(M) of
        M -> M;
        M1 -> quiet(M1)
    end.

settle(#model{channels = Cs} = M) ->
    lists:foldl(
      fun step/2, M, [deliver_by_distribution, ack]
      ++ lists:append([[{give, R}, {deliver, R}] || R <- lists:seq(0, map_size(Cs) - 1)])).

%% What is sent again goes first, and in order.
way_back(_) ->
    O = lists:foldl(fun(N, O0) -> trunkline_outbox:add(N, frame(N), O0) end, trunkline_outbox:new(),
                    lists:seq(1, 9)),
    Take = fun(C, {Times, O0}) ->
                   {Time, F, O1} = trunkline_outbox:take(C, O0),
                   {Times ++ [{Time, serial(F)}], O1}
           end,
    Takes = fun(Cs, O0) ->
                    {Times, O1} = lists:foldl(Take, {[], O0}, Cs),
                    {lists:usort([Time || {Time, _} <- Times]), [S || {_, S} <- Times], O1}
            end,
    {[first], [1, 2, 3, 4, 5, 6], O1} = Takes([a, b, a, b, a, b], O),
    O2 = trunkline_outbox:broken(b, trunkline_outbox:broken(a, trunkline_outbox:arrived(2, O1))),
    O2 = trunkline_outbox:broken(b, O2),
    {[again, first], [3, 4, 5, 6, 7], O3} = Takes([c, c, c, c, c], O2),
    {[8, 9], _} = take_all(O3),
    %% What has arrived by another way is not sent again.
    {[first], [8], _} = Takes([d], trunkline_outbox:arrived(7, trunkline_outbox:broken(c, O3))).

%% --- connections -----------------------------------------------------------------------

%% A connection that has been given nothing for a while is closed when it has delivered everything,
%% and not before: it may be slow, or the inlet may be held up.
unused(_) ->
    Stats = trunkline_stats:new(1),
    ok = trunkline_stats:put(Stats, peer, far, 1),
    Options = (trunkline_options:defaults())#{bulk_idle := 1, far_connections := 2},
    C = trunkline_channels:open(self(), once, trunkline_channels:new(1, Options, Stats)),
    C1 = ready(trunkline_channels:event({way, connections}, C)),
    %% One of these is enough for a connection: the next one waits for another.
    Send = fun(N, C0) ->
                   Batch = {N, later, 1, [[self() | binary:copy(<<N>>, 100_000)]]},
                   trunkline_channels:send(connections, Batch, C0)
           end,
    C2 = ready(another(Send(2, Send(1, C1)))),
    2 = connections(Stats),
    C3 = lists:foldl(fun idle/2, C2, lists:seq(1, 4)),
    2 = connections(Stats),
    C4 = lists:foldl(fun idle/2, trunkline_channels:arrived(2, C3), lists:seq(1, 2)),
    1 = connections(Stats),
    0 = trunkline_stats:get(Stats, {lane, 1}, sent_again),
    _ = trunkline_channels:close(C4),
    ok.

connections(Stats) -> trunkline_stats:get(Stats, {lane, 1}, connections).

%% Writers find no listener here. They wait for one longer than this takes.
ready(C) ->
    {monitors, Monitors} = process_info(self(), monitors),
    lists:foldl(fun({process, Writer}, C0) ->
                        Ready = {channel, Writer, {ready, <<>>, <<"cubic">>}},
                        case trunkline_channels:event(Ready, C0) of
                            unknown -> C0;               % it has been
                            C1 -> C1
                        end
                end, C, lists:reverse(Monitors)).

%% The lane hears of its writer until another one is made, because more waits than that one takes.
another(C) ->
    {monitors, [{process, First} | Others]} = process_info(self(), monitors),
    case Others of
        [] -> another(trunkline_channels:event({channel, First, {written, 0, 0}}, C));
        _ -> C
    end.

idle(_, C) ->
    receive {timeout, _, {channels, idle}} = Timeout -> trunkline_channels:event(Timeout, C) end.

%% --- arrivals ------------------------------------------------------------------------

%% Batches come as terms and as frames, early, late, twice and damaged. Each is taken once, in the
%% order of the numbers, and what is damaged is refused.
arrivals(_) -> check(1000, prop_arrivals()).

prop_arrivals() ->
    ?ALL({Batches, Coming},
         {list({oneof([term, frame]), list({destination(), message()})}),
          list({nat(), oneof([whole, whole, damaged])})},
         begin
             {Sent, _} = lists:mapfoldl(fun sent/2, trunkline_dictionary:new(),
                                        lists:enumerate(Batches)),
             At = fun(N) -> lists:nth(1 + N rem length(Sent), Sent) end,
             All = [{At(N), How} || Sent =/= [], {N, How} <- Coming]
                 ++ [{Each, whole} || Each <- Sent],
             {Taken, Refused, A} =
                 lists:foldl(fun arrives/2, {[], 0, trunkline_arrivals:new()}, All),
             Expected = [{later, N, [[To | Message] || {To, Message} <- Entries]}
                         || {N, {_, Entries}} <- lists:enumerate(Batches)],
             %% (A damaged one is not seen before its turn, and then a whole one may have taken its
             %% place.)
             Damaged = length([x || {{_, frame, _}, damaged} <- All]),
             conjunction([{each_once, lists:reverse(Taken) =:= Expected},
                          {next, trunkline_arrivals:next(A) =:= length(Batches) + 1},
                          {refused, Refused =< Damaged}])
         end).

sent({N, {term, Entries}}, D) ->
    {{N, term, {later, N, [[To | Message] || {To, Message} <- Entries]}}, D};
sent({N, {frame, Entries}}, D) ->
    {{_, Frame}, D1} = trunkline_dictionary:encode({N, later, N, [[To | Message]
                                                                 || {To, Message} <- Entries]}, D),
    {{N, frame, iolist_to_binary(Frame)}, D1}.

arrives({{N, term, Batch}, _}, {Taken, Refused, A}) ->
    taken(Taken, Refused, trunkline_arrivals:batch(N, Batch, A));
arrives({{_, frame, Frame}, How}, {Taken, Refused, A}) ->
    Arrived = case How of
                  whole -> Frame;
                  damaged -> <<(binary:part(Frame, 0, 8))/binary, "damaged">>
              end,
    {ok, A1} = trunkline_arrivals:frame(distribution, Arrived, A),
    taken(Taken, Refused, A1).

taken(Taken, Refused, A) ->
    case trunkline_arrivals:take(A) of
        {batch, Batch, A1} -> taken([Batch | Taken], Refused, A1);
        {refused, distribution, A1} -> taken(Taken, Refused + 1, A1);
        none -> {Taken, Refused, A}
    end.

%% --- resuming ------------------------------------------------------------------------

%% A lane and its inlet, whose only channel is the distribution. When it breaks, batches and
%% acknowledgements are lost. Then the inlet says how things stand, and after that each batch has
%% come once, in order, nothing is kept, and nothing counts as in flight.
resumed(_) -> check(1000, prop_resumed()).

-record(pair,
        {outbox = trunkline_outbox:new(),
         sender = trunkline_window:sender(?WINDOW),
         receiver = trunkline_window:receiver(?WINDOW),
         serial = 1,
         next = 1,                                           % at the inlet
         to = [] :: [{pos_integer(), trunkline_gate:charge()}],
         back = [] :: [{trunkline_gate:charge(), non_neg_integer()}],
         charges = #{} :: #{pos_integer() => trunkline_gate:charge()}}).

pair_command() ->
    frequency([{8, {send, range(1, 3 * ?WINDOW div 4)}}, {6, {deliver, oneof([now, later])}},
               {4, ack}, {2, flush}, {1, break}]).

prop_resumed() ->
    ?ALL(Commands, list(pair_command()),
         begin
             P = rest(lists:foldl(fun pair_step/2, #pair{}, Commands)),
             conjunction([{all_have_arrived, P#pair.next =:= P#pair.serial},
                          {nothing_is_kept, trunkline_outbox:bytes(P#pair.outbox) =:= 0},
                          {nothing_is_in_flight,
                           trunkline_window:in_flight(P#pair.sender) =:= 0}])
         end).

pair_step({send, Bytes}, #pair{serial = N, sender = Sender, charges = Charges} = P) ->
    case trunkline_window:is_open(Sender) of
        true ->
            Charge = trunkline_gate:limit(Bytes) + 1,
            given(P#pair{serial = N + 1, charges = Charges#{N => Charge},
                         sender = trunkline_window:sent(N, Charge, Sender),
                         outbox = trunkline_outbox:add(N, frame(N), P#pair.outbox)});
        false ->
            P
    end;
pair_step({deliver, Ack}, #pair{to = [{N, Charge} | To], next = N, receiver = Receiver} = P) ->
    P1 = P#pair{to = To, next = N + 1},
    case trunkline_window:delivered(Ack, Charge, Receiver) of
        {ack, Acked, Receiver1} -> acks(Acked, P1#pair{receiver = Receiver1});
        {later, Receiver1} -> P1#pair{receiver = Receiver1}
    end;
pair_step({deliver, _}, #pair{to = [{N, _} | To], next = Next} = P) when N < Next ->
    P#pair{to = To};
pair_step(ack, #pair{back = [{Charge, Arrived} | Back]} = P) ->
    P#pair{back = Back, sender = trunkline_window:acked(P#pair.serial, Charge, 0, P#pair.sender),
           outbox = trunkline_outbox:arrived(Arrived, P#pair.outbox)};
pair_step(flush, #pair{receiver = Receiver} = P) ->
    case trunkline_window:flush(Receiver) of
        {ack, Acked, Receiver1} -> acks(Acked, P#pair{receiver = Receiver1});
        none -> P
    end;
pair_step(break, #pair{serial = N, next = Next, outbox = Outbox, receiver = Receiver} = P) ->
    Total = trunkline_window:acknowledged(Receiver),
    Waiting = trunkline_outbox:broken(distribution, Outbox),
    P1 = given(P#pair{to = [], back = [], outbox = trunkline_outbox:arrived(Next - 1, Waiting),
                      sender = trunkline_window:resumed(N, Total, 0, P#pair.sender)}),
    %% What is in flight is what is on its way, and what the inlet has not acknowledged.
    Unacked = case trunkline_window:flush(Receiver) of
                  {ack, Charge, _} -> Charge;
                  none -> 0
              end,
    Under = Unacked + lists:sum([Charge || {_, Charge} <- P1#pair.to]),
    Under = trunkline_window:in_flight(P1#pair.sender),
    P1;
pair_step(_, P) ->
    P.

acks(Charge, #pair{back = Back, next = Next} = P) -> P#pair{back = Back ++ [{Charge, Next - 1}]}.

given(#pair{outbox = Outbox, to = To, charges = Charges} = P) ->
    case trunkline_outbox:take(distribution, Outbox) of
        {_, Frame, Outbox1} ->
            N = serial(Frame),
            given(P#pair{outbox = Outbox1, to = To ++ [{N, maps:get(N, Charges)}]});
        empty ->
            P
    end.

rest(P) ->
    case lists:foldl(fun pair_step/2, P, [{deliver, later}, flush, ack]) of
        P -> P;
        P1 -> rest(P1)
    end.

%% --- dictionary -------------------------------------------------------------------------

%% Whatever is encoded is what is decoded, in the order of the numbers, also when there are more
%% destinations than are remembered.
dictionary(_) -> check(300, prop_dictionary()).

prop_dictionary() ->
    ?ALL(Batches, list({list({destination(), message()}), range(0, 1)}),
         begin
             {_, _, Same} =
                 lists:foldl(fun({Entries, Many}, {D, R, Same}) ->
                                     All = [[To | Message] || {To, Message} <- Entries]
                                         ++ [[list_to_atom("n" ++ integer_to_list(N)) | N]
                                             || Many =:= 1, N <- lists:seq(1, 3000)],
                                     {D1, R1, Decoded} = there(7, All, D, R),
                                     {D1, R1, Same andalso Decoded =:= All}
                             end, {trunkline_dictionary:new(), trunkline_dictionary:reader(), true},
                             Batches),
             Same
         end).

there(Serial, Entries, D, R) ->
    {{Bytes, Iodata}, D1} = trunkline_dictionary:encode({Serial, later, 12345, Entries}, D),
    Frame = iolist_to_binary(Iodata),
    Bytes = byte_size(Frame),
    {batch, Serial, Term} = trunkline_dictionary:serial(Frame),
    {later, 12345, Decoded, R1} = trunkline_dictionary:decode(Term, R),
    {D1, R1, Decoded}.

destination() ->
    oneof([?LAZY(oneof(lists:sublist(processes(), 50))), name, other_name, ?LAZY(make_ref()),
           {call, self(), make_ref()}, {behind, 1, self(), name}]).

message() -> oneof([any(), ?LAZY(self()), binary(100)]).

%% Neither side remembers without bound. Whatever is damaged is an error, and not a crash.
damaged(_) ->
    {D, R} = lists:foldl(fun(N, {D0, R0}) ->
                                 Entries = [[list_to_atom("d" ++ integer_to_list(256 * N + I)) | I]
                                            || I <- lists:seq(1, 256)],
                                 {D1, R1, Entries} = there(N, Entries, D0, R0),
                                 {D1, R1}
                         end, {trunkline_dictionary:new(), trunkline_dictionary:reader()},
                         lists:seq(1, 60)),
    true = map_size(D) =< 4096 + 256,
    true = map_size(R) =< 4096 + 256,
    heartbeat = trunkline_dictionary:serial(<<>>),
    [error = trunkline_dictionary:serial(Bad) || Bad <- [<<0>>, <<0:56>>, <<0:64>>, <<0:64, "x">>]],
    [error = trunkline_dictionary:decode(Bad, R)
     || Bad <- [<<>>, <<"no term">>, <<131>>, term_to_binary(x),
                term_to_binary({later, 1, {more, []}}), term_to_binary({later, x, {more, []}, []}),
                term_to_binary({later, 1, {other, []}, []}),
                term_to_binary({later, 1, {more, x}, []}),
                term_to_binary({later, 1, {more, []}, x}),
                term_to_binary({later, 1, {more, []}, [x]}),
                term_to_binary({later, 1, {anew, []}, [[1 | x]]})]],
    true = counterexample:check(500, 60, prop_damaged()).

prop_damaged() ->
    ?ALL({Entries, At, Byte}, {list({destination(), message()}), nat(), byte()},
         begin
             {{_, Iodata}, _} =
                 trunkline_dictionary:encode({1, later, 1, [[T | M] || {T, M} <- Entries]},
                                             trunkline_dictionary:new()),
             <<_:64, Term/binary>> = iolist_to_binary(Iodata),
             Place = At rem byte_size(Term),
             <<Before:Place/binary, _, After/binary>> = Term,
             case trunkline_dictionary:decode(<<Before/binary, Byte, After/binary>>,
                                              trunkline_dictionary:reader()) of
                 error -> true;
                 {_, Charge, List, _} -> is_integer(Charge) andalso is_list(List)
             end
         end).
