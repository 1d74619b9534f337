%% Large messages: they arrive whole, in their place, and once; they hold up nobody;
%% and nothing of them is left behind.
-module(large_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").
-include("../src/gate/trunkline_route.hrl").

-export([all/0, suite/0]).
-export([sizes/1, terms/1, mixtures/1, names_change/1, names_come_and_go/1, contended_mailbox/1,
         replies_among_messages/1, small_ones_pass/1, smaller_overtakes/1,
         requests_and_replies/1, terms_of_megabytes/1, long_requests/1, long_request_to_stopped/1,
         long_request_with_lease_to_stopped/1,
         late_replies/1, servers_die/1, nosuspend_at_the_bound/1, waits_at_the_bound/1,
         replies_wait/1,
         reply_behind_large_message/1, reply_behind_what_waits/1, becomes_known/1,
         replies_wait_no_longer/1, short_terms_wait/1, many_large_replies/1,
         killed_senders/1, killed_callers/1, given_up/1, asked_in_vain/1, stays_disconnected/1,
         ends_killed/1, opener_killed/1,
         carriers_killed/1, two_carriers_killed/1, processes_killed/1,
         link_killed_while_opening/1, nothing_in_the_log/1, stopped_and_continued/1,
         connection_breaks/1, breaks_before_the_term/1, new_incarnation/1,
         stops/1, stops_by_distribution/1, memory/1,
         memory_after_one/1, idle_connection/1]).
-export([find/2, size_of/1]).

suite() -> [{timetrap, {minutes, 20}}].

all() -> [sizes, terms, mixtures, names_change, names_come_and_go, contended_mailbox,
          replies_among_messages, small_ones_pass, smaller_overtakes, requests_and_replies,
          terms_of_megabytes, long_requests, long_request_to_stopped,
          long_request_with_lease_to_stopped, late_replies, servers_die,
          nosuspend_at_the_bound,
          waits_at_the_bound, replies_wait,
          reply_behind_large_message, reply_behind_what_waits, becomes_known,
          replies_wait_no_longer, short_terms_wait, many_large_replies, killed_senders,
          killed_callers, given_up, asked_in_vain, stays_disconnected, ends_killed, opener_killed,
          carriers_killed, two_carriers_killed, processes_killed, link_killed_while_opening,
          nothing_in_the_log,
          stopped_and_continued,
          connection_breaks, breaks_before_the_term, new_incarnation, stops, stops_by_distribution,
          memory,
          memory_after_one, idle_connection].

-define(KB, 1024).
-define(MB, 1048576).
-define(LONG, 60_000).

%% --- whole ------------------------------------------------------------------------

%% Every size at which something changes: the threshold, the ends of fragments.
sizes(_) ->
    lists:foreach(
      fun({Env, Sizes}) ->
              {A, B} = cluster:pair(Env),
              [To] = cluster:call(B, freight, start_receivers, [1]),
              %% A binary of so many bytes takes six more on its way.
              Threshold = [64 * ?KB - erlang:external_size(freight:message(1, 1, 0)) - 2 + D
                           || D <- lists:seq(-6, 6)],
              lists:foreach(
                fun({Id, Makes}) ->
                        [normal] = cluster:call(A, freight, play_all,
                                                [[{Id, [{send, To, M} || M <- Makes]}]]),
                        await_received(B, To, Id, length(Makes))
                end, [{exact, Threshold}, {binary, Sizes},
                      {term, [{pieces, S} || S <- Sizes, S < ?MB div 2]}]),
              exact_threshold(A, B),
              cluster:stop_all([A, B])
      end,
      [{[],
        around([64 * ?KB, 128 * ?KB, ?MB, 2 * ?MB, 3 * ?MB, 4 * ?MB, 8 * ?MB, 16 * ?MB, 24 * ?MB])
        ++ [40 * ?MB]},
       {[{bulk_transport, dist}],
        around([64 * ?KB] ++ [30 * ?KB * K || K <- lists:seq(1, 8)] ++ [?MB, 8 * ?MB])},
       {[{bulk_connections, 3}, {large_bytes, 1024}],
        around([1024, 30 * ?KB, 60 * ?KB, 64 * ?KB, ?MB, 2 * ?MB, 16 * ?MB])}]).

around(Sizes) -> [S + D || S <- Sizes, D <- [-1, 0, 1]].

%% What has the external size of the threshold is large, what has less is not.
exact_threshold(A, B) ->
    Large = fun() -> counter(A, B, large_messages) end,
    [To] = cluster:call(B, freight, start_receivers, [1]),
    Least = large_bytes(A, B),
    lists:foreach(
      fun(D) ->
              Before = Large(),
              ok = cluster:call(
                     A,
                     fun() ->
                             Message = binary:copy(<<1>>, Least + D - erlang:external_size(<<>>)),
                             Least = erlang:external_size(Message) - D,
                             trunkline:send(To, Message),
                             ok = trunkline:call(To, {echo, ok})
                     end),
              ?assertEqual(case D >= 0 of true -> 1; false -> 0 end, Large() - Before)
      end, lists:seq(-3, 3)).

large_bytes(A, B) ->
    #route{large = Large} = route(A, B),
    trunkline_gate:bytes(Large) - 128.

await_received(B, To, Id, N) ->
    cluster:await(fun() -> count(B, To, Id) >= N orelse {missing, Id, count(B, To, Id), N} end,
                  ?LONG),
    ?assertEqual(lists:seq(1, N),
                 [M || {I, M} <- cluster:call(B, freight, received, [To]), I =:= Id]).

count(B, To, Id) ->
    {_, Count, _} = maps:get(Id, cluster:call(B, freight, summary, [To]), {0, 0, []}),
    Count.

%% Every kind of term, and those whose large binaries travel apart.
terms(_) ->
    lists:foreach(
      fun(Env) ->
              {A, B} = cluster:pair(Env),
              Echo = cluster:call(B, fun() -> spawn(fun echo/0) end),
              Sums = cluster:call(B, fun() -> spawn(fun sums/0) end),
              ok = cluster:call(
                     A,
                     fun() -> lists:foreach(fun({What, Term}) ->
                                                    true = erlang:external_size(Term) >= 64 * ?KB,
                                                    check_term(What, Term, Echo, Sums)
                                            end, kinds_of_terms()) end),
              cluster:stop_all([A, B])
      end, [[], [{bulk_transport, dist}]]).

echo() -> receive {From, Term} -> trunkline:send(From, {self(), Term}), echo() end.

sums() -> receive {From, Term} -> From ! {self(), sum(Term)}, sums() end.

sum(Term) -> erlang:md5(term_to_binary(without_funs(Term), [{minor_version, 2}])).

%% A fun as what it is. Its own bytes also name a process, since OTP 27 the init process of
%% whichever node encodes it.
without_funs(Fun) when is_function(Fun) ->
    without_funs({'fun', [erlang:fun_info(Fun, What)
                          || What <- [type, module, name, arity, env, new_index, new_uniq]]});
without_funs([Head | Tail]) -> [without_funs(Head) | without_funs(Tail)];
without_funs(Tuple) when is_tuple(Tuple) -> list_to_tuple(without_funs(tuple_to_list(Tuple)));
without_funs(Term) -> Term.

check_term(What, Term, Echo, Sums) ->
    trunkline:send(Echo, {self(), Term}),
    receive {Echo, Back} -> {What, true} = {What, Back =:= Term} end,
    trunkline:send(Sums, {self(), Term}),
    receive {Sums, Sum} -> {What, true} = {What, is_map(Term) orelse Sum =:= sum(Term)} end.

kinds_of_terms() ->
    B = fun(N) -> freight:binary(N, N) end,
    Big = B(300_000),
    Huge = B(3_000_000),
    Sub = binary:part(Huge, 1_000_001, 100_003),
    <<_:3, Bits:800_001/bitstring, _/bitstring>> = Huge,
    Local = fun(X) -> {X, Big, self()} end,
    [{binary, Huge},
     {two_of_the_same, {Big, Big}},
     {nested, {a, [{b, #{c => [Big, {d, Huge}]}}], Big}},
     {deep_tuple, lists:foldl(fun(N, T) -> {N, T} end, Big, lists:seq(1, 1000))},
     {deep_list, lists:foldl(fun(N, T) -> [T, N] end, [Big | Huge], lists:seq(1, 100_000))},
     {improper, [Big, x, Huge | Big]},
     {improper_short, [Big | Huge]},
     {improper_at_the_end, lists:seq(1, 50_000) ++ Big},
     {bitstring, Bits},
     {bitstrings, {Bits, [Bits | Bits]}},
     {sub_binaries, {Sub, [Sub, binary:part(Huge, 0, 70_000)], binary:part(Huge, 5, 65536),
                     binary:part(Huge, 5, 65535)}},
     {fun_with_binary, Local},
     {fun_among, {Local, fun lists:map/2, Big}},
     {pids, [self(), Big | lists:duplicate(10_000, self())]},
     {references, [make_ref() || _ <- lists:seq(1, 10_000)]},
     {ports, {hd(erlang:ports()), Big}},
     {map_of_large_values, maps:from_list([{N, B(70_000 + N)} || N <- lists:seq(1, 50)])},
     {map_of_large_keys, maps:from_list([{B(70_000 + N), N} || N <- lists:seq(1, 50)])},
     {map_of_both, maps:from_list([{B(70_000 + N), [B(80_000 + N)]} || N <- lists:seq(1, 20)])},
     {map_with_map_key, #{#{Big => Big} => #{Big => #{Big => Huge}}}},
     {large_map, maps:from_list([{N, {N, B(100)}} || N <- lists:seq(1, 10_000)])},
     {map_with_odd_keys, #{1 => Big, 1.0 => Huge, [] => B(65536), {} => B(65535), "x" => B(65537)}},
     {list_of_small, [B(10) || _ <- lists:seq(1, 20_000)]},
     {list_of_large, [B(65530 + N) || N <- lists:seq(1, 200)]},
     {string, binary_to_list(Big)},
     {atoms, lists:duplicate(40_000, 'an atom with a long name äöü')},
     {rows, [#{key => N, kind => row} || N <- lists:seq(1, 40_000)]},
     {many_rows, {rows, [#{key => N, kind => row} || N <- lists:seq(1, 200_000)]}},
     {integers, [1 bsl N || N <- lists:seq(1, 2000)]},
     {floats, [N / 7 || N <- lists:seq(1, 10_000)]},
     {big_tuple, list_to_tuple(lists:seq(1, 100_000))},
     {tuple_of_99, list_to_tuple([B(65536 + N) || N <- lists:seq(1, 99)])},
     {tuple_of_101, list_to_tuple([B(65536 + N) || N <- lists:seq(1, 101)])},
     {empties, {[], {}, #{}, <<>>, Big, [], {}, #{}, <<>>, [[], Huge, []]}},
     {looks_like_a_message,
      {batch, now, 1, [[self() | Big], [{notice, 1, 1, self(), self()} | [1]]]}},
     {looks_like_a_parcel, {{x, []}, [[{element, 2}]], Big}}].

%% --- in order ---------------------------------------------------------------------

%% Random senders, receivers of every kind under every name, lanes, bounds and
%% transports; small ones, large ones, requests, replies. The seed is in the log.
mixtures(_) ->
    [A, B] = cluster:start_all([[], []]),
    cluster:connect(A, B),
    lists:foreach(
      fun(Run) ->
              Seed = {Run, erlang:unique_integer([positive]), erlang:system_time()},
              _ = rand:seed(exsss, Seed),
              Case = {Env, _, _} = mixture(),
              ct:log("run ~b, seed ~w: ~p, ~w receivers, ~b messages",
                     [Run, Seed, Env, element(2, Case),
                      lists:sum([length(S) || {_, S} <- element(3, Case)])]),
              try mix(Case, A, B)
              catch Class:Reason:Stack ->
                      ct:pal("run ~b, seed ~w: ~P", [Run, Seed, {Class, Reason, Stack}, 200]),
                      ct:fail({seed, Seed})
              end
      end, lists:seq(1, 15)),
    cluster:stop_all([A, B]).

mixture() ->
    Env = [{lanes, pick([1, 2, 3, 4])}, {queue_bytes, pick([4096, 1_048_576])},
           {window_bytes, pick([16_384, 4 * ?MB])}, {batch_bytes, pick([256, 65_536])},
           {large_bytes, pick([1024, 65_536, 65_536])}, {bulk_bytes, pick([1024, ?MB, 64 * ?MB])},
           {bulk_connections, pick([1, 1, 3])}, {bulk_transport, pick([auto, auto, dist])}],
    Receivers = [pick([on_heap, off_heap]) || _ <- lists:seq(1, pick([1, 2, 4]))],
    Most = case Env of [_, _, _, _, _, _, _, {_, dist}] -> 3 * ?MB; _ -> 10 * ?MB end,
    {Env, Receivers, [{Id, [step(length(Receivers), Most) || _ <- lists:seq(1, rand:uniform(40))]}
                      || Id <- lists:seq(1, rand:uniform(6))]}.

step(Receivers, Most) ->
    Kind = pick([send, send, send, retry, cast, {call, make(?MB)}, {request, make(?MB)}]),
    {Kind, rand:uniform(Receivers), pick(case Kind of
                                             send -> [pid, name, name_node, alias];
                                             retry -> [pid, name, alias];
                                             _ -> [pid, name]
                                         end), make(Most)}.

make(Most) ->
    Bytes = case rand:uniform(100) of
                N when N =< 60 -> rand:uniform(1000);
                N when N =< 80 -> 60_000 + rand:uniform(20_000);
                N when N =< 98 -> rand:uniform(1_000_000);
                _ -> rand:uniform(Most)
            end,
    case pick([binary, binary, list, tuple, map, pieces, rows, rows]) of
        binary -> Bytes;
        list -> {list, min(Bytes, 300_000)};
        Kind -> {Kind, Bytes}
    end.

pick(List) -> lists:nth(rand:uniform(length(List)), List).

mix({Env, Kinds, Scripts}, A, B) ->
    restart(A, Env),
    restart(B, Env),
    cluster:await_up(A, B),
    NodeB = cluster:node_of(B),
    Receivers = cluster:call(
                  B, fun() ->
                             [begin
                                  [Pid] = freight:start_receivers(1, [{message_queue_data, Kind}]),
                                  Name = list_to_atom("receiver_" ++ integer_to_list(Nr)),
                                  whereis(Name) =:= undefined orelse unregister(Name),
                                  ok = freight:register_as(Pid, Name),
                                  #{pid => Pid, name => {Name, NodeB}, name_node => {Name, NodeB},
                                    alias => freight:alias_of(Pid)}
                              end || {Nr, Kind} <- lists:zip(lists:seq(1, length(Kinds)), Kinds)]
                     end),
    Play = [{Id, [{Kind, maps:get(How, lists:nth(Nr, Receivers)), Make}
                  || {Kind, Nr, How, Make} <- Script]}
            || {Id, Script} <- Scripts],
    Ends = cluster:call(A, freight, play_all, [Play]),
    ?assertEqual([], [End || End <- Ends, End =/= normal]),
    lists:foreach(
      fun({Nr, #{pid := Pid}}) ->
              Expected = [{Id, [N || {N, {_, To, _, _}} <- lists:zip(lists:seq(1, length(Script)),
                                                                     Script), To =:= Nr]}
                          || {Id, Script} <- Scripts],
              Total = lists:sum([length(Ns) || {_, Ns} <- Expected]),
              cluster:await(fun() -> case cluster:call(B, freight, count, [Pid]) of
                                         Total -> true;
                                         Count -> {Nr, Count, Total}
                                     end end, ?LONG),
              Got = cluster:call(B, freight, received, [Pid]),
              ?assertEqual(Expected, [{Id, [N || {I, N} <- Got, I =:= Id]} || {Id, _} <- Scripts])
      end, lists:zip(lists:seq(1, length(Receivers)), Receivers)),
    cluster:await(
      fun() -> level(A, B) =:= 0 andalso level(B, A) =:= 0 orelse {level(A, B), level(B, A)} end),
    %% With their names.
    cluster:call(B, fun() ->
        lists:foreach(fun(#{pid := Pid}) ->
                              Ref = monitor(process, Pid),
                              exit(Pid, kill),
                              receive {'DOWN', Ref, process, Pid, _} -> ok end
                      end, Receivers)
    end).

restart(Node, Env) ->
    cluster:call(Node, cluster, stop_trunkline, []),
    ok = cluster:call(Node, cluster, start_trunkline, [Env]).

%% A name is looked up when it is the message's turn: who has it then gets all of them, in
%% order, those that come to its pid too. The large message cannot arrive before the name
%% has changed its holder, since the dock sleeps.
names_change(_) ->
    lists:foreach(fun(Env) ->
                          {A, B} = cluster:pair([{lanes, 1} | Env]),
                          [?assertEqual({Before, First, lists:seq(1, 12)},
                                        {Before, First, names_change(Before, First, A, B)})
                           || Before <- [nobody, other, the_same], First <- [send, cast, request]],
                          cluster:stop_all([A, B])
                  end, [[], [{bulk_transport, dist}]]).

%% What the process got that has the name in the end.
names_change(Before, First, A, B) ->
    [Other, To] = cluster:call(B, freight, start_receivers, [2]),
    Name = {the_name, cluster:node_of(B)},
    take_name(B, case Before of nobody -> none; other -> Other; the_same -> To end),
    hold(B, A, dock),
    Sender = cluster:call(A, fun() -> spawn(fun puppet/0) end),
    play(A, Sender, [{1, First, Name, 200_000}]),
    all_has_come(A, Other),
    take_name(B, To),
    play(A, Sender,
         [{2, send, Name, 10}, {3, cast, Name, 10}, {4, send, To, 10}, {5, request, Name, 10},
          {6, multicast, [Name, Other], 10}, {7, send, To, 200_000}, {8, request, Name, 200_000},
          {9, send, Name, 10}, {10, multicast, [Other, To], 200_000}, {11, send, To, 10},
          {12, send, Name, 10}]),
    all_has_come(A, Other),
    release(B),
    cluster:await(
      fun() -> count(B, To, sender) =:= 12 orelse cluster:call(B, freight, received, [To]) end),
    take_name(B, none),
    [N || {sender, N} <- cluster:call(B, freight, received, [To])].

take_name(B, Pid) ->
    ok = cluster:call(B, fun() ->
                                 whereis(the_name) =:= undefined orelse unregister(the_name),
                                 Pid =:= none orelse register(the_name, Pid),
                                 ok
                         end).

%% The inlet has had all that has been sent: the only lane brings this, too.
all_has_come(A, Other) ->
    hello = cluster:call(A, fun() -> trunkline:call(Other, {echo, hello}, ?LONG) end).

puppet() ->
    receive {play, From, Steps} -> lists:foreach(fun puppet/1, Steps), From ! {self(), played} end,
    puppet().

puppet({N, Kind, To, Bytes}) ->
    Message = freight:message(sender, N, Bytes),
    case Kind of
        send -> trunkline:send(To, Message);
        cast -> trunkline:cast(To, Message);
        request -> trunkline:send_request(To, {answer, 10, Message});
        multicast -> ok = trunkline:multicast(To, Message)
    end.

play(A, Sender, Steps) ->
    ok = cluster:call(
           A, fun() -> Sender ! {play, self(), Steps}, receive {Sender, played} -> ok end end).

%% Names change their holders all the time. What is lost is lost as with `!'; the rest is in order.
names_come_and_go(_) ->
    {A, B} = cluster:pair([{lanes, 2}]),
    NodeB = cluster:node_of(B),
    Pids = cluster:call(B, freight, start_receivers, [2])
        ++ cluster:call(B, freight, start_receivers, [1, [{message_queue_data, off_heap}]]),
    Mover = cluster:call(B, fun() -> spawn(fun() -> move_names(Pids) end) end),
    Ids = [1, 2, 3, 4],
    ok = cluster:call(A, fun() ->
                                 Senders = [spawn_monitor(fun() -> to_names(Id, NodeB, Pids, 1) end)
                                            || Id <- Ids],
                                 [receive {'DOWN', Ref, process, Pid, Reason} -> normal = Reason end
                                  || {Pid, Ref} <- Senders],
                                 ok
                         end),
    true = cluster:call(B, erlang, exit, [Mover, kill]),
    Got = fun(Pid, Id) -> maps:get(Id, cluster:call(B, freight, summary, [Pid]), {0, 0, []}) end,
    [begin
         cluster:await(fun() -> case Got(Pid, Id) of {1000, _, _} -> true; Other -> Other end end),
         {1000, Count, Odd} = Got(Pid, Id),
         ct:log("~w of ~w to ~w: ~b messages", [Id, 1000, Pid, Count]),
         ?assertEqual([], Odd)
     end || Pid <- Pids, Id <- Ids],
    cluster:stop_all([A, B]).

to_names(Id, _, Pids, 400) ->
    %% All come to an end at each.
    [trunkline:send(Pid, freight:message(Id, 1000, 10)) || Pid <- Pids];
to_names(Id, Node, Pids, N) ->
    Message = freight:message(Id, N, pick([10, 10, 10, 70_000, 400_000])),
    To = pick([{name_1, Node}, {name_2, Node} | Pids]),
    case pick([send, cast, multicast]) of
        send -> trunkline:send(To, Message);
        cast -> trunkline:cast(To, Message);
        multicast -> trunkline:multicast([To], Message)
    end,
    receive after N rem 2 -> to_names(Id, Node, Pids, N + 1) end.

move_names(Pids) ->
    Name = pick([name_1, name_2]),
    Pid = pick(Pids),
    whereis(Name) =:= undefined orelse unregister(Name),
    receive after pick([0, 1, 2]) -> ok end,
    process_info(Pid, registered_name) =:= [] andalso register(Name, Pid),
    receive after pick([0, 1, 2]) -> move_names(Pids) end.

%% To a mailbox that is off the heap and in demand the runtime system brings messages of two
%% processes in any order, also if one of them was sent after the other. (The process sleeps
%% while they come.)
contended_mailbox(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    To = cluster:call(B,
                      fun() ->
                              erts_debug:set_internal_state(available_internal_state, true),
                              Self = self(),
                              Pid = spawn_opt(fun() ->
                                                      Self ! {self(), erts_debug:set_internal_state(
                                                                        proc_sig_buffers, true)},
                                                      keep([])
                                              end, [{message_queue_data, off_heap}]),
                              receive {Pid, Are} -> true = Are end,
                              Pid
                      end),
    lists:foreach(
      fun(_) ->
              Sleeper = cluster:call(B, fun() -> sleep(To) end),
              ok = cluster:call(
                     A, fun() ->
                                {_, Ref} =
                                    spawn_monitor(
                                      fun() -> [trunkline:send(To, {N, binary:copy(<<1>>, Bytes)})
                                                || {N, Bytes} <- lists:enumerate([10, 70_000, 10,
                                                                                  200_000, 70_000,
                                                                                  10, 10])] end),
                                receive {'DOWN', Ref, process, _, normal} -> ok end
                        end),
              cluster:await(fun() -> case cluster:call(B, erlang, process_info,
                                                       [To, message_queue_len]) of
                                         {message_queue_len, 7} -> true;
                                         Other -> Other
                                     end end),
              true = cluster:call(B, erlang, exit, [Sleeper, kill]),
              ?assertEqual(
                 lists:seq(1, 7),
                 cluster:call(B, fun() -> To ! {kept, self()}, receive {To, Kept} -> Kept end end))
      end, lists:seq(1, 20)),
    cluster:stop_all([A, B]).

keep(Kept) ->
    receive
        {kept, From} -> From ! {self(), lists:reverse(Kept)}, keep([]);
        {N, _} -> keep([N | Kept])
    end.

sleep(To) ->
    Self = self(),
    Pid = spawn(fun() ->
                        erlang:suspend_process(To),
                        Self ! {self(), asleep},
                        receive after infinity -> ok end
                end),
    receive {Pid, asleep} -> Pid end.

%% What a server says before and after its reply, all of any size.
replies_among_messages(_) ->
    {A, B} = cluster:pair([{lanes, 4}]),
    Servers = cluster:call(B, fun() -> [spawn(fun talkative/0) || _ <- lists:seq(1, 10)] end),
    ok = cluster:call(
           A, fun() ->
                      lists:foreach(
                        fun(N) ->
                                Sizes = [lists:nth((N div D) rem 4 + 1,
                                                   [10, 100_000, {rows, 300_000}, 1_500_000])
                                         || D <- [1, 4, 16, 64]],
                                talk(lists:nth(N rem 10 + 1, Servers), N, Sizes)
                        end, lists:seq(1, 256))
              end),
    cluster:stop_all([A, B]).

talkative() ->
    receive
        {'$gen_call', {Pid, _} = From, {N, [S1, S2, S3, S4]}} ->
            trunkline:send(Pid, {said, freight:message(N, 1, S1)}),
            trunkline:cast(Pid, {said, freight:message(N, 2, S2)}),
            gen_server:reply(From, {replied, freight:message(N, 3, S3)}),
            trunkline:send(Pid, {said, freight:message(N, 4, S4)})
    end,
    talkative().

talk(Server, N, Sizes) ->
    Id = trunkline:send_request(Server, {N, Sizes}),
    Mail = [receive Message -> Message end || _ <- [1, 2, 3, 4]],
    [{said, M1}, {'$gen_cast', {said, M2}}, Reply, {said, M4}] = Mail,
    {reply, {replied, M3}} = trunkline:check_response(Reply, Id),
    [{N, 1}, {N, 2}, {N, 3}, {N, 4}] =
        [{I, K} || {freight, I, K, _, _} = M <- [M1, M2, M3, M4], freight:is_intact(M)].

%% --- nobody is held up ---------------------------------------------------------------

%% While a large message is under way - it cannot arrive, since the dock sleeps -
%% everything else does, but what must come behind it.
small_ones_pass(_) ->
    lists:foreach(
      fun(Env) ->
              {A, B} = cluster:pair([{lanes, 1} | Env]),
              [To, Other] = cluster:call(B, freight, start_receivers, [2]),
              hold(B, A, dock),
              %% (Lists are encoded by their sender.)
              Steps = [{send, T, lists:nth(N rem 3 + 1, [10, {list, 10_000}, 20])}
                       || N <- lists:seq(1, 100), T <- [Other, To]],
              Monitor = {monitor, {init, cluster:node_of(B)}, 1},
              [normal] = cluster:call(
                           A, freight, play_all,
                           [[{large, [{send, To, 100_000_000}, Monitor | Steps]}]]),
              [normal] = cluster:call(A, freight, play_all,
                                      [[{small, [{send, To, 10} || _ <- lists:seq(1, 100)]}]]),
              %% A call by somebody else, too.
              hello = cluster:call(A, fun() -> trunkline:call(To, {echo, hello}, ?LONG) end),
              cluster:await(fun() ->
                                    {count(B, Other, large), count(B, To, small)} =:= {100, 100}
                            end, ?LONG),
              ?assertEqual(0, count(B, To, large)),
              release(B),
              await_received(B, To, large, 202 - 101, [2 | lists:seq(3, 201, 2)]),
              cluster:stop_all([A, B])
      end, [[], [{bulk_transport, dist}]]).

await_received(B, To, Id, N, Without) ->
    cluster:await(fun() -> count(B, To, Id) =:= N orelse {missing, count(B, To, Id), N} end, ?LONG),
    ?assertEqual(lists:seq(1, N + length(Without)) -- Without,
                 [M || {I, M} <- cluster:call(B, freight, received, [To]), I =:= Id]).

%% Messages take turns: a smaller one that starts later arrives first, and so do
%% small ones by lane, whoever sends them. (The trunk sleeps until all have been handed
%% over: else the huge one could be there before its sender's next turn.)
smaller_overtakes(_) ->
    lists:foreach(
      fun(Env) ->
              {A, B} = cluster:pair([{bulk_bytes, 1 bsl 30} | Env]),
              [To, Other] = cluster:call(B, freight, start_receivers, [2]),
              hold(A, B, trunk),
              [normal] =
                  cluster:call(
                    A,
                    fun() ->
                            Huge = freight:message(huge, 1, 100_000_000),
                            Medium = freight:message(medium, 1, 1_000_000),
                            {_, Ref} = spawn_monitor(
                                         fun() ->
                                                 trunkline:send(To, Huge),
                                                 trunkline:send(Other, freight:message(huge, 2, 1))
                                         end),
                            receive {'DOWN', Ref, _, _, normal} -> ok end,
                            trunkline:send(To, Medium),
                            freight:play_all([{small, [{send, To, 1}]}])
                    end),
              release(A),
              cluster:await(fun() ->
                                    cluster:call(B, freight, count, [To]) =:= 3
                                        andalso cluster:call(B, freight, count, [Other]) =:= 1
                            end, ?LONG),
              #{{huge, 1} := Huge, {medium, 1} := Medium, {small, 1} := Small} =
                  cluster:call(B, freight, times, [To]),
              #{{huge, 2} := Beside} = cluster:call(B, freight, times, [Other]),
              ?assert(Medium < Huge),
              ?assert(Small < Huge),
              ?assert(Beside < Huge),
              cluster:stop_all([A, B])
      end, [[], [{bulk_connections, 2}], [{bulk_transport, dist}]]).

%% --- requests and replies -----------------------------------------------------------

requests_and_replies(_) ->
    {A, B} = cluster:pair([]),
    [To] = cluster:call(B, freight, start_receivers, [1]),
    Makes = [1, 65_536, {list, 100_000}, {map, 300_000}, {pieces, 500_000},
             {rows, 60_000}, {rows, 4_000_000}, 5_000_000],
    Steps = [{Kind, To, Request}
             || Request <- Makes, Reply <- Makes, Kind <- [{call, Reply}, {request, Reply}],
                Request =/= Reply orelse Request =/= 5_000_000],
    ?assertEqual([normal, normal],
                 cluster:call(A, freight, play_all, [[{1, Steps}, {2, lists:reverse(Steps)}]])),
    await_received(B, To, 1, length(Steps)),
    await_received(B, To, 2, length(Steps)),
    cluster:await(fun() -> level(A, B) =:= 0 andalso level(B, A) =:= 0 end),
    cluster:stop_all([A, B]).

%% A term of some megabytes that is not of binaries is no parcel, whether it is a message, a request
%% with a timeout or without, a reply, or the arguments or the outcome of a function. It keeps its
%% place.
terms_of_megabytes(_) ->
    {A, B} = cluster:pair([]),
    [To] = cluster:call(B, freight, start_receivers, [1]),
    Rows = {rows, 6_000_000},
    Steps = [{send, To, 10}, {send, To, Rows}, {send, To, 10}, {{call, 10}, To, Rows},
             {{call, Rows}, To, 10}, {{request, Rows}, To, Rows}, {send, To, 10}],
    ?assertEqual([normal], cluster:call(A, freight, play_all, [[{1, Steps}]])),
    await_received(B, To, 1, length(Steps)),
    ok = cluster:call(
           A, fun() ->
                      {_, _, _, _, List} = Message = freight:message(2, 1, Rows),
                      {freight, _, _, _, _} =
                          trunkline:call(To, {answer, Rows, Message}, 60_000),
                      [List = trunkline_erpc:call(node(To), lists, reverse,
                                                  [lists:reverse(List)], Timeout)
                       || Timeout <- [infinity, 60_000]],
                      ok
              end),
    [?assertMatch(#{large := #{connections := 0}}, cluster:info(P, Q))
     || {P, Q} <- [{A, B}, {B, A}]],
    cluster:await(fun() -> level(A, B) =:= 0 andalso level(B, A) =:= 0 end),
    cluster:stop_all([A, B]).

%% A request of any length goes by plain distribution, with a timeout, too: no lane carries it, nor
%% a connection of Trunkline's own. (Under load its caller may not wait long enough for its turn.)
long_requests(_) ->
    {A, B} = cluster:pair([]),
    [To] = cluster:call(B, freight, start_receivers, [1]),
    ok = cluster:call(
           A, fun() ->
                      lists:foreach(
                        fun({N, Bytes}) ->
                                Message = freight:message(1, N, {rows, Bytes}),
                                {freight, _, _, _, _} =
                                    trunkline:call(To, {answer, 10, Message}, 60_000)
                        end,
                        lists:enumerate([1_000_000, 6_000_000, 6_000_000, 20_000_000]))
              end),
    await_received(B, To, 1, 4),
    ?assert(counter(A, B, large_messages) < 3),
    cluster:stop_all([A, B]).

%% To a peer that has stopped, a long request does not hold up its caller beyond the timeout.
long_request_to_stopped(_) ->
    {A, B} = cluster:pair([]),
    [To] = cluster:call(B, freight, start_receivers, [1]),
    Call = fun(N, Timeout) ->
                   Message = freight:message(1, N, {rows, 6_000_000}),
                   traffic:attempt(fun() -> trunkline:call(To, {answer, 10, Message}, Timeout) end)
           end,
    {ok, _} = cluster:call(A, fun() -> Call(1, 60_000) end),
    cluster:suspend(B),
    Caller = cluster:call(A, fun() ->
                                     spawn(fun() -> {exit, {timeout, _}} = Call(2, 500) end)
                             end),
    %% (Before the nodes take each other for dead, after 60 s.)
    cluster:await(fun() -> not cluster:call(A, erlang, is_process_alive, [Caller]) end, 45_000),
    cluster:continue(B),
    await_received(B, To, 1, 2),
    cluster:stop_all([A, B]).

%% Nor does it if that process has a lease.
long_request_with_lease_to_stopped(_) ->
    {A, B} = cluster:pair([{lanes, 1}, {lane_transport, dist}]),
    NodeB = cluster:node_of(B),
    [To] = cluster:call(B, freight, start_receivers, [1]),
    [First, Second] = [{answer, 10, freight:message(1, N, {rows, 12_000_000})} || N <- [1, 2]],
    Result = fun() -> cluster:call(A, persistent_term, get, [?FUNCTION_NAME, none]) end,
    Calls = fun() ->
                    {freight, _, _, _, _} = trunkline:call(To, First, 60_000),
                    #route{gate = Gate, bypass = Bypass} = trunkline_route:lookup(NodeB),
                    cluster:await(fun() -> trunkline_bypass:may(Gate, 1, 0, Bypass) end),
                    cluster:suspend(B),
                    Call = fun() -> trunkline:call(To, Second, 500) end,
                    persistent_term:put(?FUNCTION_NAME, traffic:attempt(Call))
            end,
    _ = cluster:call(A, erlang, spawn, [Calls]),
    try cluster:await(fun() -> Result() =/= none end, 20_000)
    after cluster:continue(B)
    end,
    ?assertMatch({exit, {timeout, _}}, Result()),
    cluster:stop_all([A, B]).

%% An opener has asked for a term, and the connection is lost before the lane comes to send it. What
%% waits behind the term is delivered. So the lane, which has not heard of that, must not send it by
%% the next connection.
breaks_before_the_term(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    NodeB = cluster:node_of(B),
    To = cluster:call(B, fun() -> spawn(fun() -> numbers([]) end) end),
    Got = fun() -> cluster:call(B, fun() -> To ! {got, self()}, receive {To, N} -> N end end) end,
    1 = element(1, cluster:call(A, trunkline, send, [To, {1}])),
    cluster:await(fun() -> Got() =:= [1] end),
    [Lane] = cluster:call(A, cluster, find, [lanes, NodeB]),
    cluster:suspend(B),
    Holder = cluster:call(
               A, fun() ->
                          %% (A sender that may wait would send it itself.)
                          Rows = freight:message(1, 1, {rows, 6_000_000}),
                          ok = trunkline:send(To, {2, Rows}, [nosuspend]),
                          _ = trunkline:send(To, {3}),
                          spawn(fun() ->
                                        receive {suspend, Test} ->
                                                erlang:suspend_process(Lane), Test ! suspended
                                        end,
                                        receive {resume, From} ->
                                                erlang:resume_process(Lane), From ! resumed
                                        end
                                end)
                  end),
    cluster:await(fun() -> [#{queued_messages := Queued}] = lanes(A, B), Queued =:= 0 end),
    ok = cluster:call(A, fun() -> Holder ! {suspend, self()}, receive suspended -> ok end end),
    cluster:continue(B),
    cluster:await(fun() ->
                          {messages, Mail} =
                              cluster:call(A, erlang, process_info, [Lane, messages]),
                          lists:any(fun(M) -> element(1, M) =:= fetch end, Mail)
                  end),
    true = cluster:call(A, erlang, disconnect_node, [NodeB]),
    cluster:await(fun() -> Got() =:= [1, 3] end),
    true = cluster:call(A, net_kernel, connect_node, [NodeB]),
    ok = cluster:call(A, fun() -> Holder ! {resume, self()}, receive resumed -> ok end end),
    ok = cluster:call(A, trunkline, await_up, [NodeB, ?LONG]),
    4 = element(1, cluster:call(A, trunkline, send, [To, {4}])),
    cluster:await(fun() -> lists:last(Got()) =:= 4 end),
    ?assertEqual([1, 3, 4], Got()),
    ?assertEqual(2, counter(A, B, lost_unconfirmed)),
    cluster:await(fun() -> level(A, B) =:= 0 end),
    cluster:stop_all([A, B]).

numbers(Numbers) ->
    receive
        {got, From} -> From ! {self(), lists:reverse(Numbers)}, numbers(Numbers);
        Message -> numbers([element(1, Message) | Numbers])
    end.

%% Nobody waits for it any more, and nobody gets it.
late_replies(_) ->
    {A, B} = cluster:pair([]),
    [To] = cluster:call(B, freight, start_receivers, [1]),
    ok = cluster:call(
           A, fun() ->
                      Large = freight:binary(1, 300_000),
                      lists:foreach(
                        fun(Make) ->
                                {exit, {timeout, {trunkline, call, _}}} =
                                    traffic:attempt(
                                      fun() -> trunkline:call(To, {when_released, Make}, 10) end),
                                Id = trunkline:send_request(To, {when_released, Make}),
                                timeout = trunkline:receive_response(Id, 10),
                                ok = trunkline:call(To, release, infinity),
                                %% The request is large as well, and nobody replies.
                                {exit, {timeout, _}} =
                                    traffic:attempt(
                                      fun() ->
                                              trunkline:call(To, {when_released, {never, Large}}, 0)
                                      end)
                        end, [100_000, 1_000_000, {list, 200_000}, {rows, 300_000}, 10]),
                      %% A reply of the same server that was asked for later.
                      true = freight:is_intact(trunkline:call(To, {late, 200, 200_000}, infinity)),
                      ok
              end),
    cluster:await(fun() -> level(B, A) =:= 0 andalso level(A, B) =:= 0 end),
    {ok, Mail} =
        cluster:call(
          A,
          fun() ->
                  Self = self(),
                  Pid = spawn(fun() ->
                                      [traffic:attempt(
                                         fun() -> trunkline:call(To, {late, 50, 500_000}, 5) end)
                                       || _ <- lists:seq(1, 20)],
                                      true = freight:is_intact(
                                               trunkline:call(To, {late, 100, 500_000}, infinity)),
                                      hello = trunkline:call(To, {echo, hello}, infinity),
                                      Self ! {mail, process_info(self(), messages)}
                              end),
                  receive {mail, {messages, M}} -> is_process_alive(Pid), {ok, M} end
          end),
    ?assertEqual([], Mail),
    cluster:stop_all([A, B]).

%% The reason is as large as may be, and comes behind a reply that left before it.
servers_die(_) ->
    {A, B} = cluster:pair([]),
    ok = cluster:call(B, logger, set_primary_config, [level, none]),
    lists:foreach(
      fun(Bytes) ->
              [To, Other] = cluster:call(B, freight, start_receivers, [2]),
              ok = cluster:call(
                     A,
                     fun() ->
                             Reason = freight:binary(Bytes, Bytes),
                             First = trunkline:send_request(
                                       To, {answer, Bytes, freight:message(1, 1, 1)}),
                             {exit, {{shutdown, Reason}, {trunkline, call, _}}} =
                                 traffic:attempt(
                                   fun() -> trunkline:call(To, {die, Reason}, infinity) end),
                             {reply, Reply} = trunkline:receive_response(First, 0),
                             true = freight:is_intact(Reply),
                             {exit, {noproc, _}} =
                                 traffic:attempt(
                                   fun() -> trunkline:call(To, {die, Reason}, infinity) end),
                             %% One that is watched by many.
                             Callers = [spawn_monitor(
                                          fun() ->
                                                  exit(traffic:attempt(
                                                         fun() -> trunkline:call(
                                                                    Other, {late, 1_000_000_000, 1},
                                                                    infinity) end))
                                          end)
                                        || _ <- lists:seq(1, 10)],
                             {exit, _} =
                                 traffic:attempt(
                                   fun() -> receive
                                            after 50 ->
                                                    trunkline:call(Other, {die, Reason}, infinity)
                                            end end),
                             [receive
                                  {'DOWN', Ref, process, Pid, {exit, {{shutdown, Reason}, _}}} ->
                                      ok;
                                  {'DOWN', Ref, process, Pid, {exit, {noproc, _}}} -> ok
                              end || {Pid, Ref} <- Callers],
                             ok
                     end)
      end, [10, 65_536, 2_000_000]),
    cluster:await(fun() -> level(A, B) =:= 0 andalso level(B, A) =:= 0 end),
    cluster:stop_all([A, B]).

%% --- the bound ------------------------------------------------------------------------

-define(TIGHT, [{lanes, 2}, {bulk_bytes, 300_000}]).

%% Those who were told so have sent nothing; small ones go on.
nosuspend_at_the_bound(_) ->
    {A, B} = cluster:pair(?TIGHT),
    [To] = cluster:call(B, freight, start_receivers, [1]),
    cluster:suspend(B),
    {Accepted, Refused} =
        cluster:call(
          A, fun() ->
                     lists:partition(fun(N) ->
                                             trunkline:send(To, freight:message(large, N, 100_000),
                                                            [nosuspend]) =:= ok
                                     end, lists:seq(1, 20))
             end),
    ?assertEqual([1, 2, 3], Accepted),
    ?assertEqual(17, length(Refused)),
    ?assertEqual(17, lists:sum([N || #{nosuspend := N} <- lanes(A, B)])),
    ok = cluster:call(A,
                      fun() -> trunkline:send(To, freight:message(small, 1, 10), [nosuspend]) end),
    cluster:continue(B),
    cluster:await(fun() -> cluster:call(B, freight, received, [To]) =:=
                               [{large, 1}, {large, 2}, {large, 3}, {small, 1}]
                               orelse lists:sort(cluster:call(B, freight, received, [To])) =:=
                               [{large, 1}, {large, 2}, {large, 3}, {small, 1}] end, ?LONG),
    cluster:await(fun() -> level(A, B) =:= 0 end),
    cluster:stop_all([A, B]).

%% More than there is room for: they wait, in turn, and all arrives; calls time out.
waits_at_the_bound(_) ->
    {A, B} = cluster:pair(?TIGHT),
    [To] = cluster:call(B, freight, start_receivers, [1]),
    cluster:suspend(B),
    Self = self(),
    Player = spawn_link(fun() -> Self ! {self(), cluster:call(A, freight, play_all,
                                                              [[{Id, [{send, To, 100_000 + 7 * N}
                                                                      || N <- lists:seq(1, 10)]}
                                                                || Id <- lists:seq(1, 20)]])} end),
    %% Everybody waits: also the three who had room for the first one.
    cluster:await(fun() ->
                          lists:sum([W || #{waits := W} <- lanes(A, B)]) >= 20 orelse lanes(A, B)
                  end, ?LONG),
    %% (Whoever is refused has been counted for a moment.)
    cluster:await(fun() -> bytes(level(A, B)) < 300_000 + 110_000 orelse bytes(level(A, B)) end),
    {exit, {timeout, _}} =
        cluster:call(
          A, fun() ->
                     traffic:attempt(
                       fun() -> trunkline:call(To, {echo, freight:binary(1, 100_000)}, 20) end)
             end),
    cluster:continue(B),
    receive {Player, Ends} -> ?assertEqual([normal], lists:usort(Ends)) end,
    [await_received(B, To, Id, 10) || Id <- lists:seq(1, 20)],
    cluster:await(fun() -> level(A, B) =:= 0 end),
    cluster:stop_all([A, B]).

%% To callers whose node stands still a server replies up to the bound, and stands still itself, as
%% with plain distribution. Then it goes on, and all replies arrive in order.
replies_wait(_) ->
    Bound = 8 * ?MB,
    {A, B} = cluster:pair([{bulk_bytes, Bound}]),
    lists:foreach(
      fun({Make, Replies, AtMost}) ->
              Server = cluster:call(B, fun() -> spawn(fun() -> answering(Make) end) end),
              Asking = cluster:call(A, fun() -> spawn(fun() -> asking(Server, Replies) end) end),
              Waiting = fun() ->
                                [{message_queue_len, N}, {status, Status}] =
                                    cluster:call(B, erlang, process_info,
                                                 [Server, [message_queue_len, status]]),
                                {N, Status}
                        end,
              cluster:await(fun() -> element(1, Waiting()) =:= Replies orelse Waiting() end, ?LONG),
              cluster:suspend(A),
              Rest = memory_of(B, total),
              ok = cluster:call(B, fun() -> Server ! go, ok end),
              Seen = ets:new(seen, [public]),
              %% (While the connection's buffers fill, the server goes on and is suspended again.)
              cluster:await(fun() ->
                                    ets:insert(Seen, {memory_of(B, total)}),
                                    case Waiting() of
                                        {0, _} -> error(never_suspended);
                                        {_, suspended} -> is_still(B) orelse Waiting();
                                        Other -> Other
                                    end
                            end, ?LONG),
              Most = lists:max([M || {M} <- ets:tab2list(Seen)]) - Rest,
              ct:log("~p: ~p replies wait; at most ~b KB more", [Make, Waiting(), Most div ?KB]),
              ?assert(Most < 2 * AtMost),
              cluster:continue(A),
              cluster:await(fun() -> cluster:call(A, fun() ->
                                                             Asking ! {got, self()},
                                                             receive {got, N} -> N end
                                                     end) =:= Replies orelse Waiting() end, ?LONG),
              %% (It goes on when the last one has left, which may have arrived by then.)
              cluster:await(fun() -> Waiting() =:= {0, waiting} orelse Waiting() end),
              cluster:await(fun() -> level(A, B) =:= 0 andalso level(B, A) =:= 0 end)
      end,
      [{1_000_000, 500, Bound},
       %% Not packed yet it is four times as long, and packing takes memory too.
       {{list, 200_000}, 100, 4 * Bound},
       {{rows, 10_000}, 100, 4 * Bound},
       %% What is in flight is beside the queue.
       {10_000, 20_000, 2 * Bound}]),
    cluster:stop_all([A, B]).

%% A server's long reply waits for the large message that the server has sent before, also if the
%% lane keeps another server's reply for its turn. That one does not wait for the large message.
reply_behind_large_message(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    past_the_lane(B, fun() -> reply_behind_large(A, B) end),
    cluster:stop_all([A, B]).

reply_behind_large(A, B) ->
    {Quick, Quicker} = served(A, B),
    {Slow, Slower} = served(A, B),
    hold(A, B, dock),
    ok = do(B, Slow, {send, Slower, <<0:2_000_000/unit:8>>}),
    Inlet = fun() -> order_SUITE:suspended(find(inlets, cluster:node_of(B))) end,
    Suspender = cluster:call(A, Inlet),
    ok = do(B, Quick, {send, Quicker, small}),
    ok = do(B, Quick, reply),
    ok = do(B, Slow, reply),
    cluster:call(A, fun() -> Suspender ! resume end),
    cluster:await(fun() -> kinds(A, Quicker) =:= [list, small, list] end),
    ?assertEqual([list], kinds(A, Slower)),
    release(A),
    cluster:await(fun() -> kinds(A, Slower) =:= [list, binary, list] end).

%% A server's large message has been delivered, and the inlet begins to deliver what waits behind
%% it. When the lane hears of that, the server's reply may go past the lane, but not before these.
reply_behind_what_waits(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    [past_the_lane(B, fun() -> reply_behind_waiting(A, B) end) || _ <- lists:seq(1, 5)],
    cluster:stop_all([A, B]).

reply_behind_waiting(A, B) ->
    Kinds = [list, binary] ++ lists:duplicate(6000, small) ++ [list],
    {Server, Caller} = served(A, B),
    hold(A, B, dock),
    ok = do(B, Server, {send, Caller, <<0:2_000_000/unit:8>>}),
    ok = do(B, Server, {send, 6000, Caller, small}),
    %% Another sender's message is acknowledged, and with it that all batches have arrived.
    ok = cluster:call(B, fun() -> _ = trunkline:send(Caller, other), ok end),
    cluster:await(fun() -> in_flight(B, A) =:= 6001 orelse in_flight(B, A) end),
    cluster:call(B, fun() -> Server ! {reply_when_settled, self()} end),
    release(A),
    cluster:await(fun() -> length(kinds(A, Caller)) =:= length(Kinds) end),
    ?assertEqual(Kinds, kinds(A, Caller)).

%% While something is in flight, replies to a caller whose mailbox is not known go by lane. With the
%% second one the lane asks about it.
becomes_known(_) ->
    {A, B} = cluster:pair([{lanes, 1}, {large_bytes, 128 * ?KB}]),
    Server = cluster:call(B, fun() -> spawn(fun() -> replying_with_maps(A) end) end),
    Caller = cluster:call(A, fun() -> spawn(fun() -> calling(Server) end) end),
    cluster:await(fun() -> in_flight(B, A) =:= 0 end),
    Inlet = fun() -> order_SUITE:suspended(find(inlets, cluster:node_of(B))) end,
    Suspender = cluster:call(A, Inlet),
    ok = do(B, Server, {send, Caller, small}),
    Learn = fun() ->
                    ok = do(B, Server, reply_twice),
                    cluster:call(A, fun() -> Suspender ! resume end),
                    cluster:await(fun() -> kinds(A, Caller) =:= [small, list, list] end),
                    cluster:await(fun() -> is_known(B, A, Caller) end)
            end,
    ?assertEqual(0, cluster:count_calls(B, [{trunkline_replies, enter_term, 5}], Learn)),
    cluster:stop_all([A, B]).

%% (Who asks means to send, so that it is not forgotten between two looks.)
is_known(B, A, Receiver) -> cluster:call(B, fun() -> is_known_here(A, Receiver) end).

is_known_here(A, Receiver) ->
    #route{mailboxes = {Table}} = trunkline_route:lookup(cluster:node_of(A)),
    trunkline_mailboxes:may_receive(Receiver, Table).

%% A server, and its caller, which has had a reply: so the lane knows that the caller's mailbox is
%% on the heap. (It would forget that after a second, if nothing asked.)
served(A, B) ->
    Server = cluster:call(B, fun() -> spawn(fun() -> replying_with_maps(A) end) end),
    Caller = cluster:call(A, fun() -> spawn(fun() -> calling(Server) end) end),
    cluster:await(fun() -> in_flight(B, A) =:= 0 end),
    ok = do(B, Server, reply),
    cluster:await(fun() -> kinds(A, Caller) =:= [list] end),
    _ = cluster:call(B, fun() -> spawn(fun() -> keep_known(A, Caller) end) end),
    {Server, Caller}.

keep_known(A, Receiver) ->
    _ = is_known_here(A, Receiver),
    receive after 100 -> keep_known(A, Receiver) end.

%% Again if no reply has gone past the lane, which may have just forgotten what it knew.
past_the_lane(B, Fun) ->
    Functions = [{trunkline_lane, send_kept, 2}, {trunkline_replies, send, 5}],
    cluster:await(fun() -> cluster:count_calls(B, Functions, Fun) > 0 end).

do(B, Server, Step) ->
    cluster:call(B, fun() ->
                            Server ! {Step, self()},
                            receive {done, Server} -> ok end
                    end).

kinds(A, Caller) ->
    cluster:call(A, fun() ->
                            Caller ! {got, self()},
                            receive {got, Kinds} -> Kinds end
                    end).

in_flight(B, A) ->
    #{lanes := [#{in_flight_messages := N}]} = cluster:info(B, A),
    N.

%% Replies, or sends something, when it is told so. Then the lane has got that.
replying_with_maps(A) ->
    Lane = find(lanes, cluster:node_of(A)),
    Reply = [#{key => N} || N <- lists:seq(1, 5000)],
    From = fun() -> receive {'$gen_call', Next, _} -> Next end end,
    {Step, Test} = receive {_, To} = Told when is_pid(To) -> Told end,
    _ = case Step of
            reply -> gen_server:reply(From(), Reply);
            %% (Between two ticks of the lane.)
            reply_twice -> [gen_server:reply(From(), Reply) || _ <- [1, 2]];
            reply_when_settled ->
                Next = From(),
                ok = wait_until_settled(trunkline_route:lookup(cluster:node_of(A))),
                gen_server:reply(Next, Reply);
            {send, Pid, Message} -> trunkline:send(Pid, Message);
            {send, N, Pid, Message} -> [trunkline:send(Pid, Message) || _ <- lists:seq(1, N)]
        end,
    cluster:await(fun() -> cluster:is_at_rest(Lane) end),
    Test ! {done, self()},
    replying_with_maps(A).

%% Until the lane has heard that its large message has been delivered: it replies at once.
wait_until_settled(#route{gate = Gate} = Route) ->
    case trunkline_gate:level(Gate, trunkline_route:bulk_ix(Route)) of
        0 -> ok;
        _ -> wait_until_settled(Route)
    end.

%% What the caller of two requests has got, in this order.
calling(Server) ->
    [_, _] = [trunkline:send_request(Server, N) || N <- [1, 2]],
    got([]).

got(Kinds) ->
    receive
        {got, To} -> To ! {got, lists:reverse(Kinds)}, got(Kinds);
        small -> got([small | Kinds]);
        other -> got(Kinds);
        Binary when is_binary(Binary) -> got([binary | Kinds]);
        {_, [_ | _]} -> got([list | Kinds])
    end.

%% With the default options, a thousand requests whose callers' node stands still. The server makes
%% 10 MB for each, or has a list which is so large as a term or encoded, and gives it to everybody.
%% When it stands still, too, all that is kept takes less than twice the bound of large messages.
many_large_replies(_) ->
    lists:foreach(
      fun({Make, Answering}) ->
              {A, B} = cluster:pair([]),
              Server = cluster:call(B, fun() -> spawn(fun() -> Answering(Make) end) end),
              _ = cluster:call(A, fun() -> spawn(fun() -> asking(Server, 1_000) end) end),
              Waiting = fun() ->
                                cluster:call(B, erlang, process_info, [Server, message_queue_len])
                        end,
              cluster:await(fun() -> Waiting() =:= {message_queue_len, 1_000} orelse Waiting() end,
                            ?LONG),
              cluster:suspend(A),
              Rest = memory_of(B, total),
              Watcher = cluster:call(B, fun() -> spawn(fun() -> watch_memory(0) end) end),
              ok = cluster:call(B, fun() -> Server ! go, ok end),
              cluster:await(fun() -> is_still(B) end, ?LONG),
              Most = cluster:call(
                       B, fun() -> Watcher ! {most, self()}, receive {most, M} -> M end end),
              Kept = fun() -> memory_of(B, total) - Rest end,
              ct:log("~p: ~p replies wait; ~b MB more, ~b MB at the most",
                     [Make, Waiting(), Kept() div ?MB, (Most - Rest) div ?MB]),
              ?assertMatch({message_queue_len, N} when N > 0, Waiting()),
              %% (What is garbage by now may still be there.)
              cluster:await(fun() -> Kept() < 2 * 64 * ?MB orelse Kept() end),
              cluster:stop_all([A, B])
      end, [{10 * ?MB, fun answering/1},
            {{list, 10 * ?MB div 16}, fun answering_the_same/1},
            {{list, 10 * ?MB div 5}, fun answering_the_same/1},
            {{rows, 50_000}, fun answering_the_same/1}]).

watch_memory(Most) ->
    receive {most, From} -> From ! {most, Most}
    after 1 -> watch_memory(max(Most, erlang:memory(total)))
    end.

%% A server waits for room at the bound, and the lanes have done all that they can.
is_still(B) ->
    is_throttled(B) andalso cluster:call(B, fun() -> lanes_wait() end).

lanes_wait() ->
    lists:all(fun(Pid) ->
                      process_info(Pid, [status, message_queue_len])
                          =:= [{status, waiting}, {message_queue_len, 0}]
              end, cluster:by_module(trunkline_lane)).

%% Whatever ends the wait, the server goes on; if only that process is killed, up to the bound
%% again.
replies_wait_no_longer(_) ->
    lists:foreach(
      fun(End) ->
              {A, B} = cluster:pair([{bulk_bytes, 4 * ?MB}]),
              NodeA = cluster:node_of(A),
              Server = cluster:call(B, fun() -> spawn(fun() -> answering(1_000_000) end) end),
              _ = cluster:call(A, fun() -> spawn(fun() -> asking(Server, 50) end) end),
              State = fun() ->
                              cluster:call(B, erlang, process_info,
                                           [Server, [message_queue_len, status]])
                      end,
              Length = fun() -> [{message_queue_len, N} | _] = State(), N end,
              Suspended =
                  fun() -> cluster:await(fun() -> is_throttled(B) orelse State() end, ?LONG) end,
              cluster:await(fun() -> Length() =:= 50 orelse State() end, ?LONG),
              cluster:suspend(A),
              ok = cluster:call(B, fun() -> Server ! go, ok end),
              Suspended(),
              Before = Length(),
              ok = cluster:call(B, fun() -> end_wait(End, NodeA) end),
              case End of
                  throttle ->
                      cluster:await(fun() -> Length() < Before orelse State() end, ?LONG),
                      Suspended(),
                      ?assert(Length() > 0);
                  killed_server ->
                      cluster:await(fun() -> State() =:= undefined end);
                  _ ->
                      cluster:await(fun() ->
                                            State() =:= [{message_queue_len, 0}, {status, waiting}]
                                                orelse State()
                                    end, ?LONG)
              end,
              cluster:continue(A),
              End =:= throttle
                  andalso cluster:await(
                            fun() ->
                                    State() =:= [{message_queue_len, 0}, {status, waiting}]
                                        orelse State()
                            end, ?LONG),
              cluster:await(fun() ->
                                    cluster:call(B, cluster, by_module, [trunkline_throttle]) =:= []
                            end, ?LONG),
              cluster:stop_all([A, B])
      end, [throttle, killed_server, lanes, link, disconnect, stop]).

%% A reply that is kept as a term counts among the large messages, even if it is no large message.
%% So that is where its server waits, though there is room in the lane.
short_terms_wait(_) ->
    {A, B} = cluster:pair([]),
    NodeB = cluster:node_of(B),
    Server = cluster:call(A, fun() -> spawn(fun() -> receive stop -> ok end end) end),
    Waiting = fun() ->
                      #{large := #{waiting := N}} = trunkline:info(NodeB),
                      {N, process_info(Server, status)}
              end,
    cluster:call(
      A, fun() ->
                 #route{gate = Gate, stats = Stats, link = Link, bulk_limit = Bound} = Route =
                     trunkline_route:lookup(NodeB),
                 Level = trunkline_route:bulk_ix(Route),
                 ok = trunkline_gate:force(Gate, Level, Bound),
                 Throttle = trunkline_throttle:new(#{node => NodeB, gate => Gate, stats => Stats,
                                                     small => {1, Bound},
                                                     large => {Level, Bound}}),
                 Server = trunkline_throttle:suspend(Server, Throttle),
                 Waits = trunkline_throttle:packed(Server, trunkline_gate:charge(50_000, 1),
                                                   Throttle),
                 cluster:await(fun() -> Waiting() =:= {1, {status, suspended}} end),
                 _ = trunkline_gate:leave(Gate, Level, Bound),
                 ok = trunkline_room:offer(Link, Level),
                 receive
                     {'DOWN', Ref, process, _, _} -> _ = trunkline_throttle:ended(Ref, Waits)
                 end,
                 cluster:await(fun() -> Waiting() =:= {0, {status, waiting}} end)
         end),
    cluster:stop_all([A, B]).

%% Until there is room, and not only while a reply is packed.
is_throttled(B) ->
    cluster:call(
      B, fun() -> cluster:by_module(trunkline_throttle) =/= [] andalso suspended() =/= [] end).

end_wait(throttle, _) ->
    lists:foreach(fun(P) -> exit(P, kill) end, cluster:by_module(trunkline_throttle));
end_wait(killed_server, _) -> lists:foreach(fun(P) -> exit(P, kill) end, suspended());
end_wait(disconnect, Node) -> true = erlang:disconnect_node(Node), ok;
end_wait(stop, _) -> cluster:stop_trunkline();
end_wait(Victim, Node) -> exit(find(Victim, Node), kill), ok.

suspended() -> [P || P <- processes(), process_info(P, status) =:= {status, suspended}].

answering(Make) ->
    receive go -> ok end,
    answer(Make).

%% The reply has been made before, and is on its heap.
answering_the_same(Make) ->
    Reply = made(Make, 1),
    true = garbage_collect(),
    receive go -> ok end,
    answer_the_same(Reply).

answer_the_same(Reply) ->
    receive {'$gen_call', From, N} -> gen_server:reply(From, {N, Reply}) end,
    answer_the_same(Reply).

made({list, Length}, _) -> lists:duplicate(Length, 200_000);
made({rows, Length}, _) -> [#{id => N, state => active} || N <- lists:seq(1, Length)];
made(Bytes, N) -> binary:copy(<<N:64>>, Bytes div 8).

answer(Make) ->
    receive {'$gen_call', From, N} -> gen_server:reply(From, {N, made(Make, N)}) end,
    answer(Make).

%% The replies must come in order.
asking(Server, Replies) ->
    _ = process_flag(message_queue_data, off_heap),
    Ids = [trunkline:send_request(Server, N) || N <- lists:seq(1, Replies)],
    got(lists:enumerate(Ids), 0).

got([{N, Id} | Ids] = All, Got) ->
    receive
        {got, From} -> From ! {got, Got}, got(All, Got)
    after 0 ->
            case trunkline:wait_response(Id, 100) of
                {reply, {N, _}} -> got(Ids, Got + 1);
                timeout -> got(All, Got)
            end
    end;
got([], Got) ->
    receive {got, From} -> From ! {got, Got}, got([], Got) end.

%% Long requests whose callers are killed while they wait for their turn, or for the reply: no agent
%% waits for them. A caller whose server is not there, or ends, is told.
killed_callers(_) ->
    {A, B} = cluster:pair([]),
    [To, Other] = cluster:call(B, freight, start_receivers, [2]),
    Make = {rows, 200_000},
    Ask = fun(Server, N) ->
                  trunkline:call(Server, {answer, 1, freight:message(N, 1, Make)}, infinity)
          end,
    Kill = fun(Server) ->
                   [begin
                        P = spawn(fun() -> Ask(Server, N) end),
                        receive after N rem 5 -> exit(P, kill) end
                    end || N <- lists:seq(1, 300)],
                   ok
           end,
    ok = cluster:call(A, fun() -> Kill(To) end),
    cluster:suspend(B),
    ok = cluster:call(A, fun() -> Kill(To) end),
    cluster:continue(B),
    ok = cluster:call(
           A, fun() ->
                      {exit, {noproc, _}} =
                          traffic:attempt(fun() -> Ask({there_is_none, node(To)}, 1) end),
                      Callers = [spawn_monitor(fun() -> exit(traffic:attempt(
                                                               fun() -> Ask(Other, N) end))
                                               end) || N <- lists:seq(1, 30)],
                      exit(Other, kill),
                      [receive
                           {'DOWN', Ref, process, P, {ok, {freight, _, _, _, _}}} -> ok;
                           {'DOWN', Ref, process, P, {exit, {killed, _}}} -> ok;
                           {'DOWN', Ref, process, P, {exit, {noproc, _}}} -> ok
                       end || {P, Ref} <- Callers],
                      ok
              end),
    %% Also one in a lane that has nothing else to do.
    cluster:suspend(B),
    %% (It asks for a tenth of a second. Then its request goes another way.)
    cluster:await(fun() -> cluster:call(A, fun() -> killed_while_it_asks(fun() -> Ask(To, 1) end)
                                           end) end),
    cluster:continue(B),
    %% And one that has a lease, and has announced a request.
    cluster:call(A, fun() ->
                            {Pid, Ref} = spawn_monitor(fun() -> announce(To, lease(To)) end),
                            receive {'DOWN', Ref, process, Pid, normal} -> ok end
                    end),
    await_no_callers(A, B),
    cluster:await(fun() -> level(A, B) =:= 0 andalso level(B, A) =:= 0 end),
    cluster:stop_all([A, B]).

%% Whether it asks its lane when it is killed.
killed_while_it_asks(Caller) ->
    {Pid, Ref} = spawn_monitor(Caller),
    receive {'DOWN', Ref, process, Pid, _} -> false
    after 5 ->
            Info = process_info(Pid, current_function),
            true = exit(Pid, kill),
            receive {'DOWN', Ref, process, Pid, _} -> ok end,
            Info =:= {current_function, {trunkline_process, ask, 4}}
    end.

%% A caller announces a request with its lease, and gives up. The agent hears of that first by the
%% lane of the caller, and does not wait though the caller lives.
given_up(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    [To] = cluster:call(B, freight, start_receivers, [1]),
    Caller = cluster:call(A, fun() ->
                                     Self = self(),
                                     Pid = spawn(fun() ->
                                                         ok = give_up(To),
                                                         Self ! {given_up, self()},
                                                         receive after infinity -> ok end
                                                 end),
                                     receive {given_up, Pid} -> Pid end
                             end),
    await_no_callers(A, B),
    true = cluster:call(A, erlang, is_process_alive, [Caller]),
    cluster:stop_all([A, B]).

give_up(To) ->
    {Lane, Agent} = lease(To),
    Suspender = erpc:call(node(To), order_SUITE, suspended_lane, [self()]),
    Ref = announce(To, {Lane, Agent}),
    ok = trunkline_sender:force(trunkline_route:lookup(node(To)), {{cancel, To, Ref}, []}, self()),
    ok = trunkline_plain_call:await_delivery(node(Lane), infinity),
    Suspender ! resume,
    ok.

lease(To) ->
    Message = {answer, 1, freight:message(1, 1, {rows, 200_000})},
    Call = fun() -> {freight, _, _, _, _} = trunkline:call(To, Message, infinity) end,
    {Lane, Agent, _} = traffic:await_lease(To, Call),
    {Lane, Agent}.

announce(To, {Lane, Agent}) ->
    Ref = make_ref(),
    Lane ! {relay, Agent, {called, {call, To, self(), Ref}}},
    Ref.

%% A caller asks for the turn of its request in vain, and so the request goes by lane. The agent
%% still tells the caller when the server has ended.
asked_in_vain(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    Server = cluster:call(B, fun() -> spawn_opt(fun() -> receive after infinity -> ok end end,
                                                [{message_queue_data, off_heap}])
                             end),
    AtA = cluster:call(A, erlang, self, []),
    Suspender = cluster:call(B, order_SUITE, suspended_lane, [AtA]),
    Asked = cluster:call(
              A, fun() ->
                         Request = freight:message(1, 1, {rows, 200_000}),
                         Call = fun() -> trunkline:call(Server, Request, infinity) end,
                         spawn(fun() ->
                                       Attempt = traffic:attempt(Call),
                                       receive {tell, Self} -> Self ! {self(), Attempt} end
                               end)
                 end),
    cluster:await(fun() ->
                          cluster:call(B, erlang, process_info, [Server, message_queue_len])
                              =:= {message_queue_len, 1}
                  end, ?LONG),
    %% The lane of the server brings the agent news of the question that was in vain.
    ?assertMatch([_ | _], cluster:call(B, fun() -> relays(node(AtA)) end)),
    resume = cluster:call(B, erlang, send, [Suspender, resume]),
    true = cluster:call(B, erlang, exit, [Server, kill]),
    {exit, {killed, _}} = cluster:call(A, fun() ->
                                                  Asked ! {tell, self()},
                                                  receive {Asked, Attempt} -> Attempt end
                                          end),
    cluster:stop_all([A, B]).

relays(Node) ->
    {messages, Messages} = process_info(order_SUITE:lane_to(Node), messages),
    [M || {relay, _, _} = M <- Messages].

%% The agents at B wait for no reply.
await_no_callers(A, B) ->
    Inlets = tuple_to_list(cluster:call(B, trunkline_peers, session, [cluster:node_of(A)])),
    cluster:await(fun() ->
                          not lists:any(fun(Inlet) -> cluster:is_awaited(Inlet, B) end, Inlets)
                  end, ?LONG).

%% The turn of a long term comes when its node has been disconnected on purpose. That stays so.
stays_disconnected(_) ->
    {A, B} = cluster:pair([]),
    NodeB = cluster:node_of(B),
    Lane = cluster:call(B, fun() -> spawn(timer, sleep, [infinity]) end),
    cluster:call(A, fun() ->
                            {ok, {Opener, _}} =
                                trunkline_opener:start({term, Lane, 1}, {term, 100_000}),
                            true = erlang:disconnect_node(NodeB),
                            ok = trunkline_opener:deliver(Opener, {self(), self(), plain}),
                            receive {opener, Opener, lost} -> ok end,
                            false = lists:member(NodeB, nodes(connected))
                    end),
    cluster:stop_all([A, B]).

%% Killed while they wait, pack, or hand over: no trace is left.
killed_senders(_) ->
    {A, B} = cluster:pair(?TIGHT),
    [To] = cluster:call(B, freight, start_receivers, [1]),
    lists:foreach(
      fun(Make) ->
              ok = cluster:call(A, fun() ->
                  _ = [begin
                           S = freight:stream(To, {Make, N}, [Make, 10]),
                           receive after N rem 4 -> exit(S, kill) end
                       end || N <- lists:seq(1, 250)],
                  ok
              end),
              cluster:suspend(B),
              ok =
                  cluster:call(
                    A,
                    fun() ->
                            Senders = [spawn_monitor(
                                         fun() ->
                                                 freight:play_all([]),
                                                 trunkline:send(
                                                   To, freight:message({waiting, Make, N}, 1, Make))
                                         end)
                                       || N <- lists:seq(1, 50)],
                            receive after 20 -> ok end,         % of waiting
                            [begin exit(P, kill), receive {'DOWN', Ref, process, P, _} -> ok end end
                             || {P, Ref} <- Senders],
                            ok
                    end),
              cluster:continue(B)
      end, [100_000, {pieces, 300_000}, {list, 70_000}, {rows, 300_000}]),
    cluster:await(fun() -> level(A, B) =:= 0 orelse {level, level(A, B)} end, ?LONG),
    cluster:await(fun() ->
                          lists:all(fun(#{queued_bytes := Q, in_flight_bytes := F}) ->
                                            {Q, F} =:= {0, 0}
                                    end, lanes(A, B))
                  end),
    [normal] = cluster:call(A, freight, play_all,
                            [[{last, [{send, To, 200_000} || _ <- lists:seq(1, 10)]}]]),
    await_received(B, To, last, 10),
    ?assertEqual(
       [], [Odd || {_, _, [_ | _] = Odd} <- maps:values(cluster:call(B, freight, summary, [To]))]),
    cluster:stop_all([A, B]).

%% --- what breaks --------------------------------------------------------------------

%% Sender or receiver is killed with a large message under way: it arrives, or nobody
%% wants it; nothing stays.
ends_killed(_) ->
    {A, B} = cluster:pair([]),
    lists:foreach(
      fun(N) ->
              [To, Dead] = cluster:call(B, freight, start_receivers, [2]),
              hold(B, A, dock),
              ok = cluster:call(A, fun() ->
                  {Pid, Ref} = spawn_monitor(fun() ->
                      [trunkline:send(T, freight:message(N, 1, 5_000_000)) || T <- [To, Dead]],
                      [trunkline:send(T, freight:message(N, 2, 10)) || T <- [To, Dead]],
                      receive never -> ok end
                  end),
                  receive after 1 -> exit(Pid, kill) end,
                  receive {'DOWN', Ref, process, Pid, killed} -> ok end
              end),
              true = cluster:call(B, erlang, exit, [Dead, kill]),
              release(B),
              cluster:await(fun() -> level(A, B) =:= 0 orelse {level, level(A, B)} end, ?LONG),
              %% It was killed before the first, between the two, or after them.
              cluster:await(fun() ->
                                    lists:member(cluster:call(B, freight, received, [To]),
                                                 [[], [{N, 1}], [{N, 1}, {N, 2}]])
                            end)
      end, lists:seq(1, 5)),
    cluster:stop_all([A, B]).

%% What an opener has when it is killed is lost: a request, a reply, or the reason of a 'DOWN'. The
%% session goes on, and for those who wait it is as if the connection had been lost.
opener_killed(_) ->
    {A, B} = cluster:pair([]),
    NodeB = cluster:node_of(B),
    {ok, Server} = cluster:call(B, server, start, [gen_server]),
    Session = cluster:call(A, trunkline_peers, session, [NodeB]),
    Call = fun() -> traffic:attempt(fun() -> byte_size(hd(packed(Server))) end) end,
    Request = fun() ->
                      Id = trunkline:send_request(Server, {echo, to_pack()}),
                      case trunkline:receive_response(Id, ?LONG) of
                          {reply, _} -> {ok, 5_000};
                          Other -> Other
                      end
              end,
    Monitor = fun() ->
                      Ending = spawn(NodeB, fun() -> receive {exit, Why} -> exit(Why) end end),
                      Ref = trunkline:monitor(process, Ending),
                      trunkline:send(Ending, {exit, to_pack()}),
                      receive
                          {'DOWN', Ref, process, Ending, [_ | _]} -> {ok, 5_000};
                          {'DOWN', Ref, process, Ending, Reason} -> Reason
                      end
              end,
    lists:foreach(
      fun({At, Try, Lost}) ->
              ?assertEqual(Lost, kill_openers(At, A, Try)),
              ?assertEqual(Session, cluster:call(A, trunkline_peers, session, [NodeB]))
      end,
      [{At, Try, Lost}
       || {Try, Lost, Ats} <- [{Call, {exit, {nodedown, NodeB}}, [A, B]},
                               {Request, {error, {noconnection, Server}}, [A, B]},
                               {Monitor, noproc, [A]}],
          At <- Ats]),
    cluster:stop_all([A, B]).

packed(Server) -> trunkline:call(Server, {echo, to_pack()}, infinity).

%% Large, and slow to put together: a binary makes it a parcel.
to_pack() -> [binary:copy(<<"x">>, 5_000) | lists:seq(1, 500_000)].

%% All openers at that node are killed until what is tried at A fails.
kill_openers(At, A, Try) ->
    Killer = cluster:call(At, erlang, spawn, [cluster, kill_openers, []]),
    Failed = cluster:call(A, fun() -> until_failed(Try) end),
    true = cluster:call(At, erlang, exit, [Killer, kill]),
    Failed.

until_failed(Try) ->
    case Try() of
        {ok, 5_000} -> until_failed(Try);
        {exit, {Reason, _}} -> {exit, Reason};
        Other -> Other
    end.

%% Under load, from either side, by the process and by the socket: nothing is lost,
%% nothing comes twice, and everything is in order.
carriers_killed(_) -> carriers_killed([], [carrier, socket], 6).

two_carriers_killed(_) -> carriers_killed([{bulk_connections, 3}], [carrier, socket], 6).

carriers_killed(Env, Victims, Times) ->
    {A, B} = cluster:pair([{lanes, 2} | Env]),
    Before = {anew:sessions(A, B), anew:sessions(B, A)},
    Load = load(A, B),
    lists:foreach(
      fun(Victim) -> cluster:await(fun() -> kill_carrier(Victim, A, B) > 0 end, ?LONG) end,
      lists:append(lists:duplicate(Times, Victims))),
    flowing(Load, B),
    ?assertEqual(0, finish(Load, A, B)),
    ?assertEqual(Before, {anew:sessions(A, B), anew:sessions(B, A)}),
    cluster:await(fun() -> level(A, B) =:= 0 orelse level(A, B) end),
    cluster:stop_all([A, B]).

%% Answers how many it found, of those that carry something: one that is killed while it
%% connects makes the next attempt later and later. A socket is one that is connected and
%% not the distribution's.
kill_carrier(socket, A, B) ->
    {At, Find} = pick([{A, fun() -> cluster:writers(large) end},
                       {B, fun docks/0}]),
    cluster:call(At, fun() -> length([cluster:close(Port) || Port <- sockets(Find())]) end);
kill_carrier(carrier, A, _) ->
    cluster:call(A, fun() ->
                            Find = fun() -> cluster:writers(large) end,
                            length([exit(Pid, kill) || Pid <- await_one(Find, 400)])
                    end).

docks() -> nemesis_node:by_kind(trunkline_dock).

%% Runs at the node.
sockets(Owners) ->
    [Port || Pid <- Owners, {links, Links} <- [process_info(Pid, links)],
             Port <- Links, is_port(Port)].

%% In the midst of work: as soon as there is one.
await_one(_, 0) ->
    [];
await_one(Find, N) ->
    case Find() of
        [] -> receive after 5 -> await_one(Find, N - 1) end;
        Pids -> receive after rand:uniform(20) -> Pids end
    end.

%% Everything else that large messages depend on. What is missing has been counted,
%% at one of the two nodes.
processes_killed(_) ->
    {A, B} = cluster:pair([{lanes, 2}]),
    Load = load(A, B),
    lists:foreach(fun({Victim, At, Other}) ->
                          Broken = kill(Victim, At, Other),
                          ct:log("~p at ~p: ~p", [Victim, cluster:node_of(At), Broken]),
                          cluster:await_up(A, B),
                          flowing(Load, B)
                  end, [{trunk, A, B}, {dock, B, A}, {trunk, A, B}, {dock, B, A}, {dock, A, B},
                        {trunk, B, A}, {opener, B, A}, {opener, B, A}, {opener, B, A},
                        {inlets, B, A}, {lanes, A, B}, {link, A, B}, {link, B, A},
                        {trunk, A, B}, {dock, B, A}]),
    Missing = finish(Load, A, B),
    #{lost := Lost} = cluster:info(A, B),
    Broken = counter(B, A, large_broken),
    ct:log("~b messages are missing; counted as lost: ~p, as broken: ~b", [Missing, Lost, Broken]),
    ?assert(Missing =< lists:sum(maps:values(Lost)) + Broken),
    cluster:await(fun() -> level(A, B) =:= 0 orelse level(A, B) end),
    cluster:stop_all([A, B]).

kill(opener, At, _) ->
    cluster:call(
      At, fun() ->
                  [exit(Pid, kill)
                   || Pid <- await_one(fun() -> cluster:by_module(trunkline_opener) end, 400)]
          end);
kill(Victim, At, Other) ->
    Node = cluster:node_of(Other),
    Pid = cluster:call(At, fun() ->
        Pid = find(Victim, Node),
        ok = trunkline_process:kill(Pid),
        Pid
    end),
    cluster:await(fun() -> case cluster:call(At, fun() -> try find(Victim, Node)
                                                          catch _:Reason -> Reason
                                                          end end) of
                               New when is_pid(New), New =/= Pid -> true;
                               Same -> Same
                           end end),
    Pid.

%% Runs at a node.
find(Victim, Node) -> hd(cluster:find(Victim, Node)).

%% An opener that is still busy when its link is killed does not deliver into the
%% next session.
link_killed_while_opening(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    [To] = cluster:call(B, freight, start_receivers, [1]),
    lists:foreach(
      fun(Round) ->
              {Id, Sender} = anew:lanes(A, B, fun() -> link_killed(A, B, To, {Round, 1}) end),
              ok = cluster:call(A, fun() -> [Sender ! 10 || _ <- lists:seq(1, 10)], ok end),
              cluster:await(fun() ->
                                    lists:member({Id, 11}, cluster:call(B, freight, received, [To]))
                            end, ?LONG),
              cluster:await(fun() ->
                                    cluster:call(B, cluster, by_module, [trunkline_opener]) =:= []
                            end, ?LONG),
              Got = [N || {I, N} <- cluster:call(B, freight, received, [To]), I =:= Id],
              ?assertEqual(lists:seq(2, 11), Got -- [1]),
              ?assertEqual(lists:sort(Got), Got)
      end, lists:seq(1, 3)),
    cluster:stop_all([A, B]).

%% Kills B's link while an opener is at a message of a sender's at A. One that nobody has
%% seen at work is of no use: then there is another sender.
link_killed(A, B, To, {Round, N} = Id) ->
    Sender = cluster:call(A, fun() -> spawn(fun() -> puppet(To, Id, 1) end) end),
    ok = cluster:call(A, fun() -> Sender ! {parcel, 30_000_000}, ok end),
    case cluster:call(
           B, fun() -> await_opener(To, Id) andalso exit(find(link, node(Sender)), kill) end) of
        true -> {Id, Sender};
        false when N < 10 -> link_killed(A, B, To, {Round, N + 1})
    end.

await_opener(To, Id) ->
    case {cluster:by_module(trunkline_opener), process_info(To, message_queue_len)} of
        {[_ | _], _} -> true;
        {[], {_, 0}} -> is_map_key(Id, freight:summary(To)) =:= false andalso await_opener(To, Id);
        {[], _} -> await_opener(To, Id)
    end.

%% Sends what it is told, numbered.
puppet(To, Id, N) ->
    receive Make -> trunkline:send(To, freight:message(Id, N, Make)) end,
    puppet(To, Id, N + 1).

%% What users say to each other is none of the log's business, and it may be long.
nothing_in_the_log(_) ->
    {A, B} = cluster:pair([{bulk_transport, dist}]),         % many fragments
    [To] = cluster:call(B, freight, start_receivers, [1]),
    [ok = cluster:call(At, kept_log, keep, [error, #{}, fun ?MODULE:size_of/1]) || At <- [A, B]],
    lists:foreach(
      fun({Victim, At, Other}) ->
              Sender = cluster:call(
                         A, fun() ->
                                    spawn(fun() ->
                                                  until_told(
                                                    fun() ->
                                                            trunkline:send(
                                                              To, freight:message(1, 1, 20_000_000))
                                                    end)
                                          end)
                            end),
              cluster:await(fun() -> cluster:call(B, fun() -> has_parts(node(Sender)) end) end,
                            ?LONG),
              hold(A, B, trunk),                               % in the midst of a message
              Parts = cluster:call(B, fun() -> has_parts(node(Sender)) end),
              ct:log("~p, with parts of a message: ~p", [Victim, Parts]),
              Dock = cluster:call(B, fun() -> find(dock, node(Sender)) end),
              _ = kill(Victim, At, Other),
              release(A),
              ok = cluster:call(A, fun() -> Sender ! stop, ok end),
              cluster:await(fun() -> not cluster:call(B, erlang, is_process_alive, [Dock])
                                         orelse {memory_of(B, total),
                                                 cluster:call(B, erlang, process_info,
                                                              [Dock, current_stacktrace])} end,
                            ?LONG),
              cluster:await_up(A, B),
              cluster:await(fun() -> not cluster:call(A, erlang, is_process_alive, [Sender]) end,
                            ?LONG)
      end, [{link, B, A}, {link, A, B}, {dock, B, A}, {trunk, A, B}, {inlets, B, A}, {lanes, A, B},
            {link, B, A}]),
    lists:foreach(
      fun(Node) ->
              Sizes = cluster:call(Node, kept_log, kept, []),
              ct:log("sizes of reports: ~w", [Sizes]),
              ?assertEqual([], [S || S <- Sizes, S > 20_000])
      end, [A, B]),
    cluster:stop_all([A, B]).

%% Over and over.
until_told(Do) ->
    _ = Do(),
    receive stop -> ok after 0 -> until_told(Do) end.

size_of(Event) -> {true, iolist_size(logger_formatter:format(Event, #{}))}.

%% Whether the dock has parts of a message.
has_parts(Node) ->
    lists:any(fun(Field) -> is_map(Field) andalso lists:any(fun is_tuple/1, maps:keys(Field)) end,
              tuple_to_list(sys:get_state(find(dock, Node), ?LONG))).

%% A receiver that stands still fills no memory, and nothing is lost.
stopped_and_continued(_) ->
    lists:foreach(
      fun(Env) ->
              {A, B} = cluster:pair([{bulk_bytes, 8 * ?MB}, {lanes, 2} | Env]),
              Load = load(A, B),
              lists:foreach(
                fun(_) ->
                        cluster:suspend(B),
                        cluster:await(fun() -> bytes(level(A, B)) >= 4 * ?MB orelse level(A, B) end,
                                      ?LONG),
                        Most = lists:max([begin receive after 10 -> ok end, kept(A) end
                                          || _ <- lists:seq(1, 50)]),
                        cluster:continue(B),
                        ct:log(
                          "binaries at the sending node while the other stood still: at most ~b",
                          [Most]),
                        %% beside the bound, what the senders have in their hands
                        ?assert(Most < 8 * ?MB + 32 * ?MB),
                        flowing(Load, B)
                end, [1, 2]),
              ?assertEqual(0, finish(Load, A, B)),
              cluster:await(fun() -> level(A, B) =:= 0 orelse level(A, B) end),
              cluster:stop_all([A, B])
      end, [[], [{bulk_transport, dist}]]).

%% What arrives is in order, and whole.
connection_breaks(_) ->
    {A, B} = cluster:pair([{lanes, 2}]),
    Load = load(A, B),
    lists:foreach(fun(_) ->
                          anew:connection(A, B),
                          flowing(Load, B)
                  end, lists:seq(1, 12)),
    Missing = finish(Load, A, B),
    #{lost := Lost} = cluster:info(A, B),
    ct:log("~b messages are missing; counted as lost: ~p", [Missing, Lost]),
    ?assert(Missing =< lists:sum(maps:values(Lost))),
    cluster:await(fun() -> level(A, B) =:= 0 orelse level(A, B) end),
    cluster:stop_all([A, B]).

%% A node that comes back under its name gets nothing large that was meant for the one before.
new_incarnation(_) ->
    Name = peer:random_name("trunkline_large"),
    A = cluster:start([{bulk_bytes, 4 * ?MB}]),
    lists:foreach(
      fun(Round) ->
              B = cluster:start([], Name),
              NodeB = cluster:node_of(B),
              cluster:connect(A, B),
              cluster:await_up(A, B),
              [Pid] = cluster:call(B, freight, start_receivers, [1]),
              ok = cluster:call(B, freight, register_as, [Pid, target]),
              cluster:suspend(B),
              %% As many as are taken at once.
              Taken = cluster:call(
                        A, fun() ->
                                   lists:sum([1 || N <- lists:seq(1, 20),
                                                   trunkline:send(
                                                     {target, NodeB},
                                                     freight:message({old, Round}, N, 1_000_000),
                                                     [nosuspend]) =:= ok])
                           end),
              ?assert(Taken > 0),
              Waits = fun() -> lists:sum([W || #{waits := W} <- lanes(A, B)]) end,
              Earlier = Waits(),
              Waiting = cluster:call(
                          A,
                          fun() ->
                                  [spawn(fun() ->
                                                 trunkline:send({target, NodeB},
                                                                freight:message({old, Round},
                                                                                100 + N, 1_000_000))
                                         end) || N <- lists:seq(1, 5)]
                          end),
              cluster:await(fun() -> Waits() >= Earlier + 5 orelse lanes(A, B) end),
              cluster:kill(B),
              cluster:await_state(A, B, down),
              cluster:await(
                fun() ->
                        cluster:call(A, fun() -> not lists:any(fun is_process_alive/1, Waiting) end)
                end),
              B2 = cluster:start([], Name),
              [Pid2] = cluster:call(B2, freight, start_receivers, [1]),
              ok = cluster:call(B2, freight, register_as, [Pid2, target]),
              cluster:connect(A, B2),
              cluster:await_up(A, B2),
              [normal] = cluster:call(
                           A, freight, play_all,
                           [[{new, [{send, {target, NodeB}, 500_000} || _ <- lists:seq(1, 10)]}]]),
              await_received(B2, Pid2, new, 10),
              ?assertEqual([{new, N} || N <- lists:seq(1, 10)],
                           cluster:call(B2, freight, received, [Pid2])),
              cluster:await(fun() -> level(A, B) =:= 0 orelse level(A, B) end),
              cluster:stop_all([B, B2]),
              %% The next one has the same name.
              cluster:await_state(A, B, down)
      end, [1, 2]),
    cluster:stop(A).

%% An orderly goodbye of either side: everything that was accepted arrives.
stops(_) -> stops([], [auto, auto, auto]).

%% Also where it takes a while.
stops_by_distribution(_) -> stops([{bulk_transport, dist}], [dist]).

stops(Env, Rounds) ->
    {A, B} = cluster:pair(Env),
    Load = load(A, B),
    Back = load(B, A),
    lists:foreach(fun({Node, Transport}) ->
                          Under = {bytes(level(A, B)), bytes(level(B, A))},
                          {Time, ok} =
                              timer:tc(fun() -> restart(Node, [{bulk_transport, Transport}]) end),
                          ct:log("~p stopped and started within ~b ms; bytes under way: ~p",
                                 [cluster:node_of(Node), Time div 1000, Under]),
                          cluster:await_up(A, B),
                          flowing(Load, B),
                          flowing(Back, A)
                  end, [{Node, Transport} || Transport <- Rounds, Node <- [A, B]]),
    ?assertEqual(0, streams:finish([{A, B, Load}, {B, A, Back}], ?LONG)),
    %% As much as may be under way.
    lists:foreach(
      fun({Leaving, From, To}) ->
              [Receiver] = cluster:call(To, freight, start_receivers, [1]),
              [normal] = cluster:call(
                           From, freight, play_all,
                           [[{1, [{send, Receiver, 6_000_000} || _ <- lists:seq(1, 10)]}]]),
              restart(Leaving, Env),
              await_received(To, Receiver, 1, 10),
              cluster:await_up(A, B)
      end, [{A, A, B}, {B, A, B}]),
    cluster:stop_all([A, B]).

%% --- memory ---------------------------------------------------------------------------

%% After it is quiet everything is as before: after a thousand messages both ways, after
%% broken carriers, and after a broken connection.
memory(_) ->
    {A, B} = cluster:pair([{lanes, 2}]),
    [ToB] = cluster:call(B, fun() -> [spawn(fun forgetful/0)] end),
    [ToA] = cluster:call(A, fun() -> [spawn(fun forgetful/0)] end),
    Traffic = fun(N) ->
                      ok = cluster:call(A, fun() -> ship(ToB, N) end),
                      ok = cluster:call(B, fun() -> ship(ToA, N) end)
              end,
    Rest = quiet(A, B),
    Traffic(20),
    await_rest("a few messages", Rest, A, B),
    ct:log("at rest: ~p", [Rest]),
    Traffic(500),
    await_rest("1000 messages", Rest, A, B),
    lists:foreach(fun(_) ->
                          Pid = cluster:call(A, fun() -> spawn(fun() -> ship(ToB, 10) end) end),
                          _ = kill_carrier(pick([carrier, socket]), A, B),
                          cluster:await(fun() ->
                                                not cluster:call(A, erlang, is_process_alive, [Pid])
                                        end, ?LONG)
                  end, lists:seq(1, 15)),
    await_rest("broken carriers", Rest, A, B),
    lists:foreach(
      fun(_) ->
              Pids = [cluster:call(From, fun() -> spawn(fun() -> ship(To, 10) end) end)
                      || {From, To} <- [{A, ToB}, {B, ToA}], _ <- [1, 2, 3]],
              receive after 10 -> ok end,                     % of traffic
              anew:connection(A, B),
              cluster:await(
                fun() ->
                        not lists:any(fun(P) ->
                                              cluster:call(case node(P) =:= cluster:node_of(A) of
                                                               true -> A;
                                                               false -> B
                                                           end, erlang, is_process_alive, [P])
                                      end, Pids)
                end, ?LONG)
      end, lists:seq(1, 5)),
    await_rest("broken connections", Rest, A, B),
    cluster:stop_all([A, B]).

%% Sends N messages of 100 KB to 2 MB, of one make or another, and waits for the last.
ship(To, N) ->
    {_, Ref} = spawn_monitor(
                 fun() ->
                         lists:foreach(
                           fun(I) ->
                                   trunkline:send(
                                     To, freight:message(
                                           I, 1,
                                           lists:nth(I rem 3 + 1, [100_000 + I, {tuple, 2_000_000},
                                                                   {pieces, 300_000}])))
                           end,
                           lists:seq(1, N)),
                         trunkline:call(To, sync, infinity)
                 end),
    receive {'DOWN', Ref, _, _, _} -> ok end.

forgetful() ->
    receive
        {'$gen_call', From, sync} -> gen_server:reply(From, ok), garbage_collect();
        _ -> ok
    end,
    forgetful().

%% Before anything large has been sent.
quiet(A, B) ->
    [cluster:call(Node, freight, binary, [1, 1]) || Node <- [A, B]],
    at_rest(A, B).

%% {binaries, total} in bytes.
at_rest(A, B) -> [{What, memory_of(Node, What)} || Node <- [A, B], What <- [binary, total]].

await_rest(After, Rest, A, B) ->
    cluster:await(fun() ->
                          Now = at_rest(A, B),
                          case [{What, N - R} || {{What, R}, {What, N}} <- lists:zip(Rest, Now),
                                                 N - R > 4 * ?MB] of
                              [] -> ct:log("after ~s: ~p", [After, Now]), true;
                              More -> {After, More, holders(A), holders(B)}
                          end
                  end, ?LONG),
    %% What has been delivered is acknowledged a little later.
    cluster:await(fun() ->
                          {level(A, B), level(B, A)} =:= {0, 0} orelse {level(A, B), level(B, A)}
                  end).

%% Binaries that somebody still wants: senders make garbage by the megabyte.
kept(Node) ->
    cluster:call(
      Node,
      fun() -> lists:foreach(fun erlang:garbage_collect/1, processes()), erlang:memory(binary) end).

memory_of(Node, What) -> cluster:call(Node, erlang, memory, [What]).

%% Processes that hold large binaries, with what they run.
holders(Node) ->
    cluster:call(Node,
                 fun() ->
                         [{F, Sum, Count}
                          || P <- processes(), {binary, Bs} <- [process_info(P, binary)],
                             Sum <- [lists:sum([S || {_, S, _} <- Bs])], Sum > 100_000,
                             Count <- [length(Bs)],
                             {current_stacktrace, St} <- [process_info(P, current_stacktrace)],
                             F <- [[M || {M, _, _, _} <- St]]]
                 end).

%% A single very large message is not kept by anybody on its way.
memory_after_one(_) ->
    lists:foreach(
      fun(Env) ->
              {A, B} = cluster:pair(Env),
              [ToB] = cluster:call(B, fun() -> [spawn(fun forgetful/0)] end),
              Rest = quiet(A, B),
              {_, normal} =
                  cluster:call(
                    A, fun() ->
                               {P, Ref} =
                                   spawn_monitor(
                                     fun() ->
                                             trunkline:send(ToB, freight:message(1, 1, 50_000_000)),
                                             trunkline:call(ToB, sync, infinity)
                                     end),
                               receive {'DOWN', Ref, _, _, Why} -> {P, Why} end
                       end),
              await_rest("one message", Rest, A, B),
              cluster:stop_all([A, B])
      end, [[], [{bulk_transport, dist}]]).

%% A connection that has nothing to do is closed, and made again.
idle_connection(_) ->
    {A, B} = cluster:pair([{bulk_idle, 100}]),
    [To] = cluster:call(B, freight, start_receivers, [1]),
    lists:foreach(
      fun(Id) ->
              [normal] = cluster:call(A, freight, play_all,
                                      [[{Id, [{send, To, 200_000} || _ <- lists:seq(1, 20)]}]]),
              await_received(B, To, Id, 20),
              cluster:await(fun() ->
                                    counter(A, B, bulk_connections) =:= 0
                                        orelse {open, counter(A, B, bulk_connections)}
                            end, ?LONG),
              cluster:await(fun() ->
                                    cluster:call(B, fun() -> sockets(docks()) end) =:= []
                            end)
      end, lists:seq(1, 5)),
    cluster:stop_all([A, B]).

%% --- load: streams from A to B ---------------------------------------------------------

%% Large and small messages of five senders to three receivers.
load(A, B) ->
    Pids = cluster:call(B, freight, start_receivers, [2])
        ++ cluster:call(B, freight, start_receivers, [1, [{message_queue_data, off_heap}]]),
    Makes = [[10, 100_000, 10, 3_000_000, 10, 10, {tuple, 900_000}],
             [1_000_000, 10, {pieces, 100_000}], [70_000], [10], [10, 10, 10, 5_000_000]],
    Streams = [begin
                   To = lists:nth(Id rem 3 + 1, Pids),
                   {Id, To, cluster:call(A, freight, stream, [To, Id, M])}
               end || {Id, M} <- lists:zip(lists:seq(1, length(Makes)), Makes)],
    Load = {Pids, Streams},
    flowing(Load, B),
    Load.

%% Every stream makes progress.
flowing(Load, B) -> streams:flowing(Load, B, 8, ?LONG).

%% Stops the streams; answers how many messages are missing. What came was in order, whole, and
%% came once.
finish(Load, A, B) -> streams:finish(Load, A, B, ?LONG).

%% --- what is inside --------------------------------------------------------------------

%% It sleeps until it is released. At B, for the peer A.
hold(B, A, Victim) ->
    Node = cluster:node_of(A),
    ok = cluster:call(B, fun() -> cluster:hold([find(Victim, Node)]) end).

release(B) -> ok = cluster:call(B, cluster, release, []).

route(A, B) -> cluster:call(A, trunkline_route, lookup, [cluster:node_of(B)]).

%% What the gate counts of large messages from A to B, waiting and under way.
level(A, B) ->
    Node = cluster:node_of(B),
    cluster:call(A, fun() ->
        #route{gate = Gate} = Route = trunkline_route:lookup(Node),
        trunkline_gate:level(Gate, trunkline_route:bulk_ix(Route))
    end).

bytes(Charge) -> trunkline_gate:bytes(max(0, Charge)).

lanes(A, B) ->
    #{lanes := Lanes} = cluster:info(A, B),
    Lanes.

counter(A, B, Field) ->
    Node = cluster:node_of(B),
    cluster:call(A, fun() ->
                            #{stats := Stats} = trunkline_peers:lookup(Node),
                            trunkline_stats:get(Stats, peer, Field)
                    end).
