%% The port for large messages is open to anybody. What strangers do there
%% concerns nobody else; and where there is no port, or none that can be reached,
%% large messages arrive all the same.
-module(listener_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2]).
-export([port_scan/1, half_open/1, slow_handshake/1, garbage/1, unknown_token/1, replayed_token/1,
         wrong_proof/1, gone_owner/1, broken_off/1, bad_frames/1, frames_for_nobody/1, given_up/1,
         late_guest/1, reported_now_and_then/1]).
-export([listener_killed/1, acceptor_dies/1, stopped/1, ports_in_range/1, ports_taken/1,
         own_address/1, all_addresses/1, address_of_distribution/1, ipv6_distribution/1,
         advertised/1, bad_options/1, no_port/1, unreachable_port/1, said_once/1, impostor/1,
         lanes_without_port/1, busy_peer/1]).
-export([hook_controlling_process/0, load_all/0, install_log/0, entry/1, mislead/2, misleading/2,
         frames/3, bad_frames/0]).

suite() -> [{timetrap, {minutes, 8}}].

all() -> [{group, strangers},
          listener_killed, acceptor_dies, stopped, ports_in_range, ports_taken, own_address,
          all_addresses, address_of_distribution, ipv6_distribution, advertised, bad_options,
          no_port, unreachable_port, said_once, impostor, lanes_without_port, busy_peer].

%% All of these happen to the same two nodes.
groups() ->
    [{strangers, [], [port_scan, half_open, slow_handshake, garbage, unknown_token, replayed_token,
                      wrong_proof, gone_owner, broken_off, bad_frames, frames_for_nobody, given_up,
                      late_guest, reported_now_and_then]}].

%% A connection that is made is kept for the whole test.
-define(KEPT, {bulk_idle, 3_600_000}).
-define(LONG, 60_000).
%% Of the listener: ms for a handshake, and how many may be in it; ms that an
%% invitation is valid; ms between two reports.
-define(HANDSHAKE, 5000).
-define(HANDLERS, 64).
-define(VALID, 30_000).
-define(REPORT, 10_000).
%% From 64 kB to 10 MB, with small ones between them.
-define(ALL_SIZES, [10, 65_536, 1, 10_000_000, 2, 100_000, 3, 3_000_000, 4, 65_537, 700_000, 5]).

init_per_suite(Config) ->
    case cluster:lane_transport() of
        dist -> Config;
        _ -> {skip, "who has which connections is tested here"}
    end.

end_per_suite(_) -> ok.

%% Two nodes, with a connection from A to B's port and one from B to A's. B has
%% loaded all of the code that it could need, so that nothing has to make an atom.
init_per_group(strangers, Config) ->
    {A, B, Port} = with_port([]),
    ok = cluster:call(B, ?MODULE, load_all, []),
    exchange:await_connection(B, A),
    ok = cluster:call(B, ?MODULE, install_log, []),
    [{a, A}, {b, B}, {port, Port}, {guest, guest(B)} | Config].

%% With the time when it had been invited.
guest(B) ->
    {Invitation, Owner} = stranger:invitation(B),
    {Invitation, Owner, now_ms()}.

end_per_group(strangers, Config) ->
    cluster:stop_all([?config(a, Config), ?config(b, Config)]).

load_all() ->
    _ = erlang:memory(),               % which has atoms of its own
    code:ensure_modules_loaded(
      lists:append([Modules || App <- [kernel, stdlib, crypto, public_key, ssl, trunkline],
                               {ok, Modules} <- [application:get_key(App, modules)]])
      ++ [?MODULE, exchange, freight, kept_log, stranger, cluster, traffic, peer]).

%% Hundreds of connections that are closed at once, orderly or not.
port_scan(Config) ->
    hostile(Config, fun(_, Port) ->
                            lists:foreach(fun(_) -> stranger:close(stranger:connect(Port)) end,
                                          lists:seq(1, 300)),
                            lists:foreach(fun(_) -> stranger:reset(stranger:connect(Port)) end,
                                          lists:seq(1, 100)),
                            %% When the last one has been refused all have had their turn.
                            Last = stranger:connect(Port),
                            stranger:say(Last, binary:copy(<<0>>, 40)),
                            ?assertEqual(true, stranger:is_closed(Last)),
                            301               % a connection that is reset need not be seen
                    end).

%% Many connections that say nothing. There is room for some of them, and for a
%% few seconds; the others are closed, without a wait for anybody. A peer that has
%% no connection yet does without for so long.
half_open(Config) -> half_open(Config, 5).

half_open(Config, Tries) ->
    {A, B, Port} = nodes_of(Config),
    C = joined(B),
    Before = seen(A, B),
    Refused = refused(B),
    Start = now_ms(),
    Silent = silent(Port, ?HANDLERS + 40),
    %% There is no room now: one more is closed before the time of any other is over.
    ?assertEqual(true, stranger:is_closed(stranger:connect(Port), ?LONG)),
    _ = one_large(C, B),
    BySecond = exchange:by(C, B),
    _ = one_large(A, B),
    ByFirst = exchange:by(A, B),
    AtOnce = refused(B) - Refused,
    Time = now_ms() - Start,
    ct:log("~b refused, and all of this within ~b ms", [AtOnce, Time]),
    %% All others are closed too, when their time is over.
    Times = lists:sort([T - Start || T <- closed(Silent)]),
    ct:log("closed after ~w ms", [Times]),
    await_refused(B, Refused + ?HANDLERS + 41),
    if Time < ?HANDSHAKE ->
            ?assertEqual({{distribution, 0}, {connections, 1}}, {BySecond, ByFirst}),
            %% (The one more, and C's.)
            Held = ?HANDLERS + 42 - AtOnce,
            ?assert(Held =< ?HANDLERS + 1),
            ?assert(Held >= ?HANDLERS div 2),
            ?assert(length([T || T <- Times, T >= ?HANDSHAKE - 500]) >= ?HANDLERS div 2),
            ?assert(lists:max(Times) < ?LONG),
            %% And then C gets its connection.
            exchange:await_connection(C, B),
            exchange:both_ways(C, B),
            ?assertEqual({connections, 1}, exchange:by(C, B)),
            cluster:stop(C),
            unharmed(Before, A, B);
       Tries > 1 ->
            %% The machine has been so slow that this says nothing.
            cluster:stop(C),
            cluster:await_state(B, C, down),
            half_open(Config, Tries - 1)
    end.

%% Connections of one process, which notes when each is closed.
silent(Port, N) ->
    Test = self(),
    Pid = spawn_link(fun() ->
                             Sockets = [begin
                                            {_, S} = stranger:connect(Port),
                                            ok = inet:setopts(S, [{active, true}]),
                                            S
                                        end
                                        || _ <- lists:seq(1, N)],
                             Test ! {self(), Sockets},
                             note_closed(Test)
                     end),
    receive {Pid, Sockets} -> {Pid, Sockets} end.

note_closed(Test) ->
    receive
        {tcp_closed, S} -> Test ! {closed, self(), S, now_ms()};
        {tcp_error, _, _} -> ok
    end,
    note_closed(Test).

%% When each of them was closed.
closed({Pid, Sockets}) ->
    Times = [receive {closed, Pid, S, Time} -> Time after ?LONG -> error({still_open, S}) end
             || S <- Sockets],
    unlink(Pid),
    exit(Pid, kill),
    Times.

%% One byte a second is too slow, however right it is.
slow_handshake(Config) ->
    hostile(Config, fun(B, Port) ->
                    {#{token := Token}, Owner} = stranger:invitation(B),
                    Start = now_ms(),
                    Connections = [stranger:connect(Port) || _ <- lists:seq(1, 5)],
                    Said = slowly(Connections, <<"TRUNKLN1", Token/binary, 0:128>>, Start, 0),
                    ct:log("closed after ~b bytes and ~b ms", [Said, now_ms() - Start]),
                    ?assert(Said < 40),                 % before it was a hello
                    stop(B, Owner),
                    5
            end).

slowly([First | _] = Connections, <<Byte, Rest/binary>>, Start, N) ->
    case stranger:is_closed(First, max(0, Start + 1000 * N - now_ms())) of
        true ->
            lists:foreach(fun(C) -> ?assertEqual(true, stranger:is_closed(C)) end, tl(Connections)),
            N;
        {false, timeout} ->
            lists:foreach(fun(C) -> stranger:say(C, [Byte]) end, Connections),
            slowly(Connections, Rest, Start, N + 1)
    end.

%% What comes along.
garbage(Config) ->
    Said = [<<0>>, binary:copy(<<0>>, 40), binary:copy(<<255>>, 72),
            "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n       ",
            "SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u2\r\n..", <<"TRUNKLN2", 0:256>>,
            <<"trunkln1", 0:256>>, term_to_binary({hello, an_atom, #{a => b}, lists:seq(1, 20)}),
            crypto:strong_rand_bytes(100_000), <<131, 119, 20, "a_new_atom_for_b....", 0:200>>,
            <<22, 3, 1, 1, 200, 1, 0, 1, 196, 3, 3, 0:800>>],
    hostile(Config,
            fun(_, Port) ->
                    lists:foreach(fun(Bytes) ->
                                          C = stranger:connect(Port),
                                          stranger:say(C, Bytes),
                                          %% It may have been less than a hello.
                                          iolist_size(Bytes) < 40 andalso stranger:close(C),
                                          iolist_size(Bytes) < 40
                                              orelse ?assertEqual(true, stranger:is_closed(C))
                                  end, Said),
                    length(Said)
            end).

%% The form is right, but nobody has been invited.
unknown_token(Config) ->
    hostile(Config, fun(_, Port) ->
                    lists:foreach(fun(_) ->
                                          C = stranger:connect(Port),
                                          _ = stranger:hello(C, crypto:strong_rand_bytes(16)),
                                          ?assertEqual(true, stranger:is_closed(C))
                                  end, lists:seq(1, 50)),
                    50
            end).

%% An invitation is for one connection.
replayed_token(Config) ->
    hostile(Config,
            fun(B, Port) ->
                    {#{token := Token, secret := Secret} = Invitation, Owner} =
                        stranger:invitation(B),
                    C = stranger:connect(Port),
                    ok = stranger:admitted(C, Invitation),
                    await_owned(B, Owner, 1),
                    lists:foreach(fun(_) ->
                                          Again = stranger:connect(Port),
                                          Ours = stranger:hello(Again, Token),
                                          stranger:prove(Again, Secret, {Ours, <<0:128>>}),
                                          ?assertEqual(true, stranger:is_closed(Again))
                                  end, lists:seq(1, 10)),
                    %% The one that has been admitted is still there.
                    ?assertEqual({false, timeout}, stranger:is_closed(C, 100)),
                    await_owned(B, Owner, 1),
                    stop(B, Owner),
                    ?assertEqual(true, stranger:is_closed(C)),
                    10
            end).

%% Whoever has seen a token, but not the secret. The token is used up.
wrong_proof(Config) ->
    hostile(Config, fun(B, Port) ->
                    {#{token := Token} = Invitation, Owner} = stranger:invitation(B),
                    C = stranger:connect(Port),
                    Ours = stranger:hello(C, Token),
                    {ok, Theirs, _} = stranger:welcome(C),
                    stranger:prove(C, <<"guessed">>, {Ours, Theirs}),
                    ?assertEqual(true, stranger:is_closed(C)),
                    Late = stranger:connect(Port),
                    ?assertError({badmatch, {error, _}}, stranger:admitted(Late, Invitation)),
                    %% What the listening side has said proves nothing.
                    {#{token := Token2}, Owner2} = stranger:invitation(B),
                    Mirror = stranger:connect(Port),
                    _ = stranger:hello(Mirror, Token2),
                    {ok, _, Proof} = stranger:welcome(Mirror),
                    stranger:say(Mirror, Proof),
                    ?assertEqual(true, stranger:is_closed(Mirror)),
                    ?assertEqual({0, 0}, {owned(B, Owner), owned(B, Owner2)}),
                    [stop(B, O) || O <- [Owner, Owner2]],
                    3
            end).

%% Whom the connection is for may be gone. Nor is that the fault of whoever has been invited.
gone_owner(Config) ->
    invited(
      Config,
      fun(B, Port) ->
              {Invitation, Owner} = stranger:invitation(B),
              stop(B, Owner),
              cluster:await(fun() -> not cluster:call(B, erlang, is_process_alive, [Owner]) end),
              C = stranger:connect(Port),
              ok = stranger:admitted(C, Invitation),
              ?assertEqual(true, stranger:is_closed(C))
      end).

%% A peer that was invited, and breaks off: its session has ended, or the machine is too busy.
broken_off(Config) ->
    invited(Config, fun(B, Port) ->
                    [begin
                         {#{token := Token}, Owner} = stranger:invitation(B),
                         C = stranger:connect(Port),
                         _ = stranger:hello(C, Token),
                         {ok, _, _} = stranger:welcome(C),
                         Half =:= half andalso stranger:say(C, <<"half of a proof">>),
                         ok = stranger:End(C),
                         stop(B, Owner)
                     end || End <- [close, reset], Half <- [half, none]]
            end).

%% What somebody does who was invited is no refusal, and not in the log.
invited(Config, Do) ->
    {_, B, Port} = nodes_of(Config),
    Refused = refused(B),
    _ = Do(B, Port),
    cluster:await(fun() -> cluster:call(B, fun handlers/0) =:= [] end, ?LONG),
    ?assertEqual(Refused, refused(B)),
    hostile(Config, fun(_, _) -> 0 end).

%% Who speaks with strangers now. Runs at the node.
handlers() ->
    [Pid || Pid <- cluster:by_module(trunkline_listener),
            {current_stacktrace, Stack} <- [process_info(Pid, current_stacktrace)],
            lists:any(fun({M, F, _, _}) ->
                              M =:= trunkline_listener andalso lists:member(F, [handle, handshake])
                      end, Stack)].

%% Whoever has been admitted, and then says what no peer says. That ends the
%% connection, and nothing else.
bad_frames(Config) ->
    {_, _, Port} = nodes_of(Config),
    frames(Config, fun() -> stranger:connect(Port) end, bad_frames()).

bad_frames() ->
    Id = <<1:16, (1 bsl 40):64>>,
    Most = 1 bsl 64 - 1,
    Longest = 1 bsl 30,
    Frame = fun(Size, Offset, Data) ->
                    <<(26 + byte_size(Data)):32, Id/binary, Size:64, Offset:64, Data/binary>>
            end,
    Of = fun(Stream, Number) -> <<27:32, Stream:16, Number:64, 1:64, 0:64, "x">> end,
    Bad = #{no_lane => Of(0, 1),
            stream_without_lane => Of(16#8000, 1),
            no_number => Of(1, 0),
            stream_of_batches => Of(16#8001, 1),
            bad_after_heartbeats => [<<0:32>>, <<0:32>>, Of(1, 0)],
            no_header => <<1:32, 0>>,
            short_header => <<25:32, Id/binary, 0:64, 0:56>>,
            no_data => Frame(1000, 0, <<>>),
            no_size => Frame(0, 0, <<>>),
            longest_length => <<(1 bsl 32 - 1):32, Id/binary, Most:64, 0:64>>,
            long_length => <<(Longest + 1):32, Id/binary, Most:64, 0:64>>,
            longer_than_the_message => Frame(1000, 0, <<0:8008>>),
            behind_the_message => Frame(1000, 1000, <<0>>),
            across_the_end => Frame(1000, 999, <<0, 0>>),
            offset_around => Frame(1000, Most, <<0, 0>>),
            all_ones => binary:copy(<<255>>, 30),
            text => "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"},
    Header = <<Id/binary, Most:64, 0:64>>,
    Truncated = #{nothing => <<>>,
                  half_a_length => <<0:16>>,
                  length => <<1000:32>>,
                  half_a_header => <<1026:32, Id/binary, 0:32>>,
                  header => <<1026:32, Header/binary>>,
                  half_the_data => <<1026:32, Header/binary, 0:4000>>,
                  much_less => <<(1 bsl 26):32, Header/binary, 0:800_000>>,
                  longest => <<Longest:32, Header/binary, 0:800_000>>},
    [{What, Bytes, closed_by_them} || {What, Bytes} <- maps:to_list(Bad)]
        ++ [{What, Bytes, close} || {What, Bytes} <- maps:to_list(Truncated)]
        ++ [{heartbeats, binary:copy(<<0:32>>, 1000), stays}].

%% The form is right, but there is no such lane: it is ignored.
frames_for_nobody(Config) ->
    {_, _, Port} = nodes_of(Config),
    Whole = fun(Lane, Number, Data) ->
                    <<(26 + byte_size(Data)):32, Lane:16, Number:64, (byte_size(Data)):64, 0:64,
                      Data/binary>>
            end,
    Batch = term_to_binary({later, trunkline_gate:charge(x), [[self() | x]]}),
    %% There are 64 lanes at most.
    frames(
      Config, fun() -> stranger:connect(Port) end,
      [{{stream, Stream, Number}, [Whole(Stream, Number, Data), Whole(Stream, Number, Data)], stays}
       || {Stream, Number, Data} <- [{65, 1, <<"x">>}, {16#7fff, 1, binary:copy(<<"x">>, 100_000)},
                                     {16#7fff, 1 bsl 63, Batch}]]).

frames(Config, Connect, Frames) ->
    {A, B, _} = nodes_of(Config),
    Dock = dock(A, B),
    Refused = refused(B),
    Before = seen(A, B),
    lists:foreach(fun(_) ->
                          lists:foreach(fun(Frame) -> framed(Frame, Connect, Dock, B) end, Frames)
                  end, lists:seq(1, 5)),
    %% They were not refused: they had been invited.
    ?assertEqual(Refused, refused(B)),
    unharmed(Before, A, B).

framed({What, Bytes, End}, Connect, Dock, B) ->
    {Invitation, Keeper} = cluster:call(B, fun() -> invited_by(Dock) end),
    C = Connect(),
    ok = stranger:admitted(C, Invitation),
    stranger:say(C, Bytes),
    case End of
        closed_by_them -> ?assertEqual({What, true}, {What, stranger:is_closed(C)});
        stays ->
            ?assertEqual({What, {false, timeout}}, {What, stranger:is_closed(C, 100)}),
            stranger:close(C);
        close -> stranger:close(C)
    end,
    cluster:await(fun() -> case cut(B, Keeper) of
                               0 -> true;
                               Other -> {What, Other}
                           end end, ?LONG),
    stop(B, Keeper).

%% As if we were the peer's trunkline_trunk.
invited_by(Dock) ->
    Caller = self(),
    Keeper = spawn(fun() ->
                           Ref = make_ref(),
                           Dock ! {invite, self(), Ref, {large, auto}, self()},
                           receive
                               {invitation, Ref, {ok, #{token := Token} = Invitation}} ->
                                   Caller ! {self(), Invitation},
                                   keep_cut(Token, not_yet)
                           end
                   end),
    receive {Keeper, Invitation} -> {Invitation, Keeper} end.

keep_cut(Token, Cut) ->
    receive
        {cut, Token, Arrived} -> keep_cut(Token, Arrived);
        {cut, From} -> From ! {self(), Cut}, keep_cut(Token, Cut);
        stop -> ok
    end.

%% A connection of which the peer was told that nothing has come by it is closed when it comes.
given_up(Config) ->
    {A, B, Port} = nodes_of(Config),
    Dock = dock(A, B),
    {#{token := Token} = Invitation, Keeper} = cluster:call(B, fun() -> invited_by(Dock) end),
    cluster:call(B, fun() -> Dock ! {cut, Keeper, Token}, ok end),
    cluster:await(fun() -> cut(B, Keeper) =:= 0 end),
    C = stranger:connect(Port),
    ok = stranger:admitted(C, Invitation),
    ?assertEqual(true, stranger:is_closed(C)),
    stop(B, Keeper).

cut(B, Keeper) ->
    cluster:call(B, fun() -> Keeper ! {cut, self()}, receive {Keeper, Cut} -> Cut end end).

%% An invitation is valid for half a minute. (This one is that of the group.)
late_guest(Config) ->
    {Invitation, Owner, Time} = ?config(guest, Config),
    receive after max(0, Time + ?VALID + 5000 - now_ms()) -> ok end,     % of being late
    hostile(Config, fun(B, Port) ->
                            C = stranger:connect(Port),
                            ?assertError({badmatch, {error, _}}, stranger:admitted(C, Invitation)),
                            ?assertEqual(0, owned(B, Owner)),
                            1
                    end),
    stop(?config(b, Config), Owner).

%% However many are refused, the log has a line every ten seconds: with the number
%% of those that no other line has told of.
reported_now_and_then(Config) ->
    {A, B, Port} = nodes_of(Config),
    Earlier = length(log_of(B)),
    Lines = fun(N) ->
                    cluster:await(fun() ->
                                          [stranger:close(stranger:connect(Port))
                                           || _ <- lists:seq(1, 5)],
                                          Log = log_of(B),
                                          length(Log) >= Earlier + N orelse Log
                                  end, ?LONG)
            end,
    Lines(1),
    Lines(2),
    %% When they were written, and not when somebody has seen them.
    [First, Second | _] = [T div 1000 || {T, _, _} <- lists:nthtail(Earlier, log_of(B))],
    %% (The next ten seconds begin before it writes the line.)
    ?assert(Second - First > ?REPORT div 2),
    replaced(B, fun() -> whereis(trunkline_listener) end),
    {_, Owner} = stranger:invitation(B),
    stop(B, Owner),
    await_refusals(B),
    Log = log_of(B),
    ct:log("~p", [Log]),
    %% (Its supervisor has told of the end of the other.)
    Numbers = [list_to_integer(N)
               || {_, warning, Text} <- Log,
                  {match, [N]} <- [re:run(Text, "^trunkline: ([0-9]+) connections",
                                          [{capture, [1], list}])]],
    ?assertMatch({Told, Refused} when Told =< Refused, {lists:sum(Numbers), refused(B)}),
    exchange:both_ways(A, B).

%% One line more, by another listener.
await_refusals(B) ->
    Lines = length(log_of(B)),
    cluster:await(fun() ->
                          [stranger:close(stranger:connect(port(B))) || _ <- lists:seq(1, 5)],
                          length(log_of(B)) > Lines
                  end, ?LONG).

%% Another listener takes its place, on another port or on the same; connections
%% that have been made go on, and others can be made.
listener_killed(_) ->
    lists:foreach(fun listener_killed_on/1, [{0, 0}, one_port()]).

listener_killed_on(Ports) ->
    {A, B, Port} = with_port([{listen_ports, Ports}]),
    C = joined(B),
    Before = seen(A, B),
    {_, Owner} = stranger:invitation(B),
    InHandshake = stranger:connect(Port),
    Listener = fun() -> whereis(trunkline_listener) end,
    lists:foreach(
      fun(Victim) ->
              replaced(B, Victim),
              exchange:both_ways(A, B),
              ?assertEqual({connections, 1}, exchange:by(A, B))
      end, [Listener, Listener, Listener]),
    ?assertEqual(true, stranger:is_closed(InHandshake)),
    exchange:await_connection(C, B),
    Ports =:= {0, 0} orelse ?assertEqual(Port, port(B)),
    replaced(B, fun acceptor/0),
    exchange:both_ways(C, B),
    ?assertEqual({connections, 1}, exchange:by(C, B)),
    cluster:stop(C),
    D = joined(B),
    exchange:await_connection(D, B),
    cluster:stop(D),
    stop(B, Owner),
    unharmed(maps:without([atoms, memory, ports], Before), A, B),
    cluster:stop_all([A, B]).

%% Kills that process at the node; then there is another listener.
replaced(Node, Victim) -> replaced(Node, Victim, fun(Pid) -> exit(Pid, kill) end).

replaced(Node, Victim, Kill) ->
    Old = cluster:call(Node, fun() ->
                                     Listener = whereis(trunkline_listener),
                                     Ref = monitor(process, Listener),
                                     Kill(Victim()),
                                     receive {'DOWN', Ref, process, _, _} -> Listener end
                             end),
    cluster:await(fun() -> case cluster:call(Node, erlang, whereis, [trunkline_listener]) of
                               New when is_pid(New), New =/= Old -> true;
                               Other -> Other
                           end end).

acceptor() ->
    Sup = whereis(trunkline_sup),
    {links, Links} = process_info(whereis(trunkline_listener), links),
    [Acceptor] = [P || P <- Links, is_pid(P), P =/= Sup],
    Acceptor.

%% An acceptor that dies between two steps leaves neither a process behind nor a place that is
%% taken for ever: at 0.5.0 sixty-four of them had closed the port.
acceptor_dies(_) ->
    {A, B, _} = with_port([]),
    ok = cluster:call(B, ?MODULE, hook_controlling_process, []),
    lists:foreach(
      fun(_) ->
              ok = cluster:call(B, persistent_term, put, [die_when_accepted, true]),
              replaced(
                B,
                fun() ->
                        Listener = whereis(trunkline_listener),
                        {ok, _} = gen_tcp:connect(
                                    {127, 0, 0, 1},
                                    maps:get(tcp, maps:get(ports, trunkline_listener:info())), []),
                        Listener
                end, fun(_) -> ok end),
              ok = cluster:call(B, persistent_term, put, [die_when_accepted, false]),
              C = joined(B),
              exchange:await_connection(C, B),           % it listens again
              cluster:stop(C)
      end, [1, 2]),
    %% (The listener and its acceptor.)
    cluster:await(
      fun() ->
              case cluster:call(B, fun() ->
                                           [P || P <- cluster:by_module(trunkline_listener),
                                                 P =/= whereis(trunkline_listener)]
                                   end) of
                  [_] -> true;
                  Others -> Others
              end
      end, ?LONG),
    exchange:both_ways(A, B),
    cluster:stop_all([A, B]).

%% gen_tcp:controlling_process/2 can kill its caller. Runs at the node.
hook_controlling_process() ->
    {ok, {_, [{abstract_code, {_, Forms}}]}} =
        beam_lib:chunks(code:which(gen_tcp), [abstract_code]),
    Hooked = [case Form of
                  {function, L, controlling_process, 2, Clauses} ->
                      Kill = merl:quote(
                               L,
                               "persistent_term:get(die_when_accepted, false) andalso exit(kill)"),
                      {function, L, controlling_process, 2,
                       [{clause, CL, Ps, Gs, [Kill | Body]}
                        || {clause, CL, Ps, Gs, Body} <- Clauses]};
                  _ ->
                      Form
              end || Form <- Forms],
    {ok, gen_tcp, Code} = compile:forms(Hooked),
    true = code:unstick_mod(gen_tcp),
    {module, gen_tcp} = code:load_binary(gen_tcp, "gen_tcp", Code),
    ok.

%% Without Trunkline nobody listens, nor is said to. When it starts again somebody
%% does, with the first invitation.
stopped(_) ->
    {A, B, Port} = with_port([{listen_ports, one_port()}]),
    Silent = stranger:connect(Port),
    ok = cluster:call(B, cluster, stop_trunkline, []),
    %% (A socket closes a little later than its owner ends.)
    cluster:await(fun() -> case stranger:connect(Port) of
                               {error, econnrefused} -> true;
                               C -> stranger:close(C), C
                           end end),
    ?assertMatch(#{ports := Ports} when map_size(Ports) =:= 0,
                 cluster:call(B, trunkline_listener, info, [])),
    exchange:one_way(A, B, [1, 100_000, 2]),
    ?assertEqual(true, stranger:is_closed(Silent)),
    ok = cluster:call(B, cluster, start_trunkline, [[?KEPT, {listen_ports, {Port, Port}}]]),
    cluster:await_up(A, B),
    ?assertEqual({error, econnrefused}, stranger:connect(Port)),
    exchange:await_connection(A, B),
    ?assertEqual(Port, port(B)),
    exchange:both_ways(A, B),
    cluster:stop_all([A, B]).

%% --- where it listens ----------------------------------------------------------------

%% The lowest port of the range that is free.
ports_in_range(_) ->
    {Low, Sockets} = taken_ports(4),
    {[Taken], Free} = lists:split(1, Sockets),
    lists:foreach(fun gen_tcp:close/1, Free),
    {A, B, Port} = with_port([{listen_ports, {Low, Low + 3}}]),
    ?assertEqual(Low + 1, Port),
    %% The other node of the machine takes the next one.
    exchange:both_ways(A, B),
    C = cluster:start([?KEPT, {listen_ports, {Low, Low + 3}}]),
    cluster:connect(A, C),
    cluster:await_up(A, C),
    exchange:await_connection(A, C),
    ?assertEqual(Low + 2, port(C)),
    gen_tcp:close(Taken),
    cluster:stop_all([A, B, C]).

%% No port is free: by distribution, until one is.
ports_taken(_) ->
    {Low, Sockets} = taken_ports(2),
    {A, B} = cluster:pair([?KEPT, {listen_ports, {Low, Low + 1}}]),
    exchange:both_ways(A, B, ?ALL_SIZES),
    exchange:all_by_distribution(A, B),
    lists:foreach(fun gen_tcp:close/1, Sockets),
    exchange:await_connection(A, B),
    ?assert(lists:member(port(B), [Low, Low + 1])),
    exchange:both_ways(A, B),
    ?assertMatch({#{sessions := 1, state := up}, #{sessions := 1, state := up}},
                 {cluster:info(A, B), cluster:info(B, A)}),
    cluster:stop_all([A, B]).

%% It can be reached at its address and at no other one. (All of 127/8 is this
%% machine.)
own_address(_) ->
    {A, B, Port} = with_port([]),
    {gen_tcp, _} = Other = stranger:connect({127, 0, 0, 2}, Port),
    stranger:close(Other),
    cluster:stop_all([A, B]),
    Addresses = [{127, 0, 0, 1}, {127, 0, 0, 3}] ++ [{0, 0, 0, 0, 0, 0, 0, 1} || has_ipv6()],
    lists:foreach(
      fun(Address) ->
              {A1, B1, Port1} = with_port([{listen_address, Address}]),
              [?assertMatch({Address, {error, _}}, {Address, stranger:connect(Local, Port1)})
               || Local <- [{127, 0, 0, 1}, {127, 0, 0, 2}, {127, 0, 0, 3}], Local =/= Address],
              {_, Socket} = Right = reach(Address, Port1),
              ?assertEqual({ok, {Address, Port1}}, inet:peername(Socket)),
              stranger:close(Right),
              exchange:both_ways(A1, B1),
              cluster:stop_all([A1, B1])
      end, Addresses).

reach(Address, Port) ->
    {ok, Socket} = gen_tcp:connect(Address, Port, [binary, {active, false}
                                                   | [inet6 || tuple_size(Address) =:= 8]]),
    {gen_tcp, Socket}.

has_ipv6() ->
    case gen_tcp:listen(0, [inet6, {ip, {0, 0, 0, 0, 0, 0, 0, 1}}]) of
        {ok, Socket} -> gen_tcp:close(Socket), true;
        {error, _} -> false
    end.

%% Zeros mean all addresses of this machine, of which the peer takes the one at which
%% it has found the node: to connect to zeros would lead it to itself.
all_addresses(_) ->
    lists:foreach(fun({Env, Args}) ->
                          {A, B} = pair_with(Env, Args),
                          exchange:await_connection(A, B),
                          lists:foreach(fun(Local) ->
                                                stranger:close(stranger:connect(Local, port(B)))
                                        end, [{127, 0, 0, 1}, {127, 0, 0, 2}]),
                          {Invitation, Owner} = stranger:invitation(B),
                          stop(B, Owner),
                          ?assertMatch({_, _, #{address := any}}, {Env, Args, Invitation}),
                          cluster:stop_all([A, B])
                  end,
                  [{[{listen_address, {0, 0, 0, 0}}], []},
                   {[], ["-kernel", "inet_dist_use_interface", "{0,0,0,0}"]}]
                  ++ [{[{listen_address, {0, 0, 0, 0, 0, 0, 0, 0}}], []} || has_ipv6()]).

%% Without an address of its own it listens where the distribution does.
address_of_distribution(_) ->
    lists:foreach(fun({Parameter, Value}) ->
                          {A, B} = pair_with([], ["-kernel", Parameter, Value]),
                          exchange:await_connection(A, B),
                          ?assertMatch({error, _}, stranger:connect({127, 0, 0, 2}, port(B))),
                          stranger:close(stranger:connect(port(B))),
                          exchange:both_ways(A, B),
                          cluster:stop_all([A, B])
                  end, [{"inet_dist_use_interface", "{127,0,0,1}"},
                        {"inet_dist_use_interface", "loopback"},
                        {"inet_dist_listen_options", "[{ip,{127,0,0,1}}]"}]).

%% The distribution over IPv6, and Trunkline's connections with it. (The host of the nodes' names
%% is an address: this machine's name need not have one of IPv6.)
ipv6_distribution(_) ->
    case has_ipv6() of
        true ->
            [A, B] = [cluster:start([?KEPT | Env], {peer:random_name("ipv6"), "::1"},
                                    ["-proto_dist", "inet6_tcp"])
                      || Env <- [[], [{listen_address, "::1"}]]],
            cluster:connect(A, B),
            cluster:await_up(A, B),
            lists:foreach(
              fun({From, To}) ->
                      exchange:await_connection(From, To),
                      stranger:close(reach({0, 0, 0, 0, 0, 0, 0, 1}, port(To)))
              end, [{A, B}, {B, A}]),
            exchange:both_ways(A, B),
            cluster:stop_all([A, B]);
        false ->
            {skip, "this machine has no IPv6 loopback"}
    end.

%% Between the nodes is something that leads from another address and another port to this node's,
%% as an address translation or a sidecar does. Peers are told of that one only.
advertised(_) ->
    {ok, Gate} = gen_tcp:listen(0, [binary, {active, false}, {ip, {127, 0, 0, 9}}]),
    {ok, GatePort} = inet:port(Gate),
    {Port, _} = one_port(),
    {A, B} = cluster:pair([?KEPT], [?KEPT, {listen_address, <<"127.0.0.1">>}, {listen_ports, Port},
                                    {advertise_address, "127.0.0.9"}, {advertise_port, GatePort}]),
    %% It does not lead anywhere yet.
    exchange:both_ways(A, B, ?ALL_SIZES),
    {Invitation, Owner} = stranger:invitation(B),
    stop(B, Owner),
    ?assertMatch(#{address := {127, 0, 0, 9}, port := GatePort}, Invitation),
    Counter = counters:new(1, []),
    Forwarder = spawn_link(fun() -> forward_all(Gate, Port, Counter) end),
    ok = gen_tcp:controlling_process(Gate, Forwarder),
    exchange:await_connection(A, B),
    exchange:both_ways(A, B),
    ?assertEqual(Port, port(B)),
    ?assert(counters:get(Counter, 1) > 1_500_000),         % a large message went that way
    unlink(Forwarder),
    exit(Forwarder, kill),
    cluster:stop_all([A, B]).

%% The connections belong to this process, and end with it.
forward_all(Gate, Port, Counter) ->
    {ok, Outside} = gen_tcp:accept(Gate),
    Pid = spawn_link(fun() ->
                             receive go -> ok end,
                             {ok, Inside} =
                                 gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, once}]),
                             ok = inet:setopts(Outside, [{active, once}]),
                             forward(Outside, Inside, Counter)
                     end),
    ok = gen_tcp:controlling_process(Outside, Pid),
    Pid ! go,
    forward_all(Gate, Port, Counter).

forward(Outside, Inside, Counter) ->
    receive
        {tcp, From, Data} ->
            From =:= Outside andalso counters:add(Counter, 1, byte_size(Data)),
            _ = gen_tcp:send(if From =:= Outside -> Inside; true -> Outside end, Data),
            _ = inet:setopts(From, [{active, once}]),
            forward(Outside, Inside, Counter);
        {tcp_closed, _} ->
            ok;                              % and the other one with this process
        {tcp_error, _, _} ->
            ok
    end.

pair_with(Env, Args) -> cluster:pair([?KEPT | Env], [?KEPT | Env], Args).

%% The start says what is wrong.
bad_options(_) ->
    Node = cluster:start(none),
    ok = cluster:call(Node, logger, set_primary_config, [level, none]),
    lists:foreach(
      fun({Key, Value} = Bad) ->
              ?assertMatch({error, {{bad_option, Key, Value}, _}},
                           cluster:call(Node, cluster, start_trunkline, [[Bad]]))
      end,
      [{listen_ports, P} || P <- [0, 65536, "9100", {1}, {2, 1}, {-1, 0}, {0, 65536}, {0, 9100},
                                  {a, b},
                                  [1, 2], {1.0, 2.0}, undefined]]
      ++ [{listen_address, A}
          || A <- ["127.0.0", "127.1", <<"localhost">>, [localhost], "", "192.0.2.1", {127, 0, 0},
                   {127, 0, 0, 256}, {0, 0, 0, 0, 0, 0, 0, 65536}, localhost, any,
                   %% Addresses that are kept for documents are no host's.
                   {192, 0, 2, 1}, {16#2001, 16#db8, 0, 0, 0, 0, 0, 1}]]
      ++ [{advertise_address, A}
          || A <- ["0.0.0.0", <<"::">>, {0, 0, 0, 0}, "b.example", "10.0.0", any, {1, 2, 3}]]
      %% The port where it listens is not known, or the system's choice.
      ++ [{advertise_port, P} || P <- [0, 65536, "9100", 9100]]
      ++ [{bulk_transport, T} || T <- [udp, "tcp", undefined]]
      ++ [{lane_transport, T} || T <- [udp, "tcp", []]]
      ++ [{large_bytes, N} || N <- [1023, 1 bsl 29 + 1, infinity, 65536.0, "1GB", "64 MB/s", "MB",
                                    "1.5MB", "-64KB", "10s", [64, 'KB'], <<255>>]]
      ++ [{bulk_bytes, N} || N <- [0, 1 bsl 35]] ++ [{bulk_connections, N} || N <- [0, 65, auto]]
      ++ [{bulk_idle, N}
          || N <- [0, infinity, 86_400_001, "0s", "25h", "10 minutes", "64KB", <<"s">>]]
      ++ [{far_connections, N} || N <- [0, 65, auto]]
      ++ [{congestion_control, C}
          || C <- ["bbr", <<"bbr">>, 1, nonsense, '', a_name_that_is_too_long_for_the_kernel]]
      ++ [{connection_timeout, N} || N <- [0, 999, 86_400_001, infinity]]),
    ok = cluster:call(Node, cluster, start_trunkline,
                      [[{listen_ports, {65535, 65535}}, {bulk_transport, tcp}, {bulk_idle, 1},
                        {lane_transport, auto}, {far_connections, 64}, {congestion_control, reno},
                        {connection_timeout, 1000}]]),
    ok = cluster:call(Node, cluster, stop_trunkline, []),
    %% One port cannot be that of two transports; and what leads to a port must know it.
    Certified =
        cluster:start(none, peer:random_name("trunkline_test"), certificates:dist_arguments()),
    ok = cluster:call(Certified, logger, set_primary_config, [level, none]),
    Tls = [{lane_transport, tls}, {bulk_transport, tcp}],
    [?assertMatch({error, {{bad_option, listen_ports, Ports}, _}},
                  cluster:call(Certified, cluster, start_trunkline,
                               [Tls ++ [{listen_ports, Ports}]]))
     || Ports <- [65535, {65535, 65535}]],
    ?assertMatch({error, {{bad_option, advertise_port, 9100}, _}},
                 cluster:call(Certified, cluster, start_trunkline,
                              [[{advertise_port, 9100}, {listen_ports, {65534, 65535}}]])),
    [begin
         ok = cluster:call(Certified, cluster, start_trunkline, [Tls ++ Env]),
         ok = cluster:call(Certified, cluster, stop_trunkline, [])
     end || Env <- [[{listen_ports, {65534, 65535}}],
                    [{lane_transport, tcp}, {listen_ports, 65535}, {advertise_port, 9100}]]],
    cluster:stop_all([Node, Certified]).

%% --- no port ------------------------------------------------------------------------

%% One of the nodes wants no other connection: then there is none in either
%% direction to it or from it.
no_port(_) ->
    lists:foreach(fun({EnvA, EnvB}) ->
                          {A, B} = cluster:pair([?KEPT | EnvA], [?KEPT | EnvB]),
                          exchange:both_ways(A, B, ?ALL_SIZES),
                          exchange:all_by_distribution(A, B),
                          cluster:stop_all([A, B])
                  end, [{[], [{bulk_transport, dist}]},
                        {[{bulk_transport, dist}], []},
                        {[{bulk_transport, dist}], [{bulk_transport, dist}]}]).

%% Invitations that lead nowhere: a port where nobody is, one that drops what
%% comes, one where nobody ever says anything, one that closes. The log says what to do.
unreachable_port(_) ->
    {ok, Nobody} = gen_tcp:listen(0, []),
    {ok, NobodysPort} = inet:port(Nobody),
    gen_tcp:close(Nobody),
    {Full, FullPort} = full_port(),
    {ok, Silent} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}, {backlog, 1000}]),
    {ok, SilentPort} = inet:port(Silent),
    {Closing, ClosingPort} = answering(fun(S) -> gen_tcp:close(S) end),
    lists:foreach(
      fun({Why, Port, Sizes, Advice}) ->
              {A, B} = misled_pair(Why, Port, 5),
              exchange:both_ways(A, B, Sizes),
              cluster:await(fun() -> is_logged(A, Advice) end),
              ?assertEqual({{distribution, 0}, {distribution, 0}},
                           {exchange:by(A, B), exchange:by(B, A)}),
              ?assertMatch({#{sessions := 1, state := up}, #{sessions := 1, state := up}},
                           {cluster:info(A, B), cluster:info(B, A)}),
              %% The way becomes free.
              follow(B),
              exchange:await_connection(A, B),
              exchange:both_ways(A, B),
              cluster:stop_all([A, B])
      end, [{nobody, NobodysPort, ?ALL_SIZES, "No process listens there at port "},
            {full, FullPort, [1, 70_000, 2], "Nothing reaches port "},
            {silent, SilentPort, [1, 700_000, 2], "by distribution: timeout. Look at the log"},
            {closing, ClosingPort, [1, 70_000, 2], "by distribution: closed. Look at the log"}]),
    Full ! stop,
    gen_tcp:close(Silent),
    Closing ! stop.

%% It says so once, however often it has nothing to send for a while, and tries again.
said_once(_) ->
    Tries = counters:new(1, []),
    {Closing, Port} = answering(fun(S) ->
                                        ok = counters:add(Tries, 1, 1),
                                        gen_tcp:close(S)
                                end),
    {A, B} = cluster:pair([{bulk_idle, 100}]),
    ok = cluster:call(A, ?MODULE, install_log, []),
    ok = misled(B, Port),
    cluster:await(fun() ->
                          exchange:large(A, B),
                          N = counters:get(Tries, 1),
                          N >= 3 orelse N
                  end),
    Lines = [Text || {_, warning, Text} <- log_of(A),
                     string:find(Text, "by distribution: closed") =/= nomatch],
    ?assertMatch([_], Lines),
    Closing ! stop,
    cluster:stop_all([A, B]).

is_logged(Node, Words) ->
    Texts = [Text || {_, warning, Text} <- log_of(Node)],
    lists:any(fun(Text) -> string:find(Text, Words) =/= nomatch end, Texts) orelse Texts.

%% The attempt to connect has five seconds; a message does not wait for it. (A machine that is slow
%% may have been so slow with one of them, and with the next one not.)
misled_pair(Why, Port, Tries) ->
    {A, B} = cluster:pair([?KEPT]),
    ok = cluster:call(A, ?MODULE, install_log, []),
    ok = misled(A, Port),
    ok = misled(B, Port),
    Time = one_large(A, B),
    ct:log("~s: the first message after ~b ms", [Why, Time]),
    if Time < 4500 ->
            exchange:large(A, B),
            {A, B};
       Tries > 1 ->
            cluster:stop_all([A, B]),
            misled_pair(Why, Port, Tries - 1)
    end.

%% Returns how long it takes, in ms.
one_large(A, B) ->
    Answering = cluster:call(B, fun() -> spawn(fun() -> receive {Pid, _} -> Pid ! arrived end end)
                                end),
    Send = fun() ->
                   trunkline:send(Answering, {self(), binary:copy(<<0>>, 200_000)}),
                   receive arrived -> ok end
           end,
    {Microseconds, ok} = cluster:call(A, timer, tc, [Send]),
    Microseconds div 1000.

%% Whoever listens there and does not know the secret gets no message.
impostor(_) ->
    Heard = ets:new(heard, [public, ordered_set]),
    {Impostor, Port} = answering(fun(S) ->
                                         {ok, Hello} = gen_tcp:recv(S, 40, ?LONG),
                                         _ = gen_tcp:send(S, crypto:strong_rand_bytes(48)),
                                         More = gen_tcp:recv(S, 1, ?LONG),
                                         true = ets:insert(Heard, {now_ms(), Hello, More})
                                 end),
    {A, B} = cluster:pair([?KEPT]),
    ok = misled(B, Port),
    exchange:large(A, B),
    cluster:await(fun() -> ets:info(Heard, size) > 0 end),
    exchange:large(A, B),
    ?assertEqual({distribution, 0}, exchange:by(A, B)),
    lists:foreach(fun({_, Hello, More}) ->
                          ?assertMatch({<<"TRUNKLN1", _:32/binary>>, {error, closed}},
                                       {Hello, More})
                  end,
                  ets:tab2list(Heard)),
    Impostor ! stop,
    cluster:stop_all([A, B]).

%% Lanes that want connections of their own and cannot have them stay where they are.
lanes_without_port(_) ->
    {Low, Sockets} = taken_ports(2),
    {A, B} = cluster:pair([?KEPT, {lane_transport, tcp}, {listen_ports, {Low, Low + 1}}]),
    exchange:both_ways(A, B),
    exchange:all_by_distribution(A, B),
    ?assertEqual([{distribution, 0}, {distribution, 0}], batches_by(A, B)),
    lists:foreach(fun gen_tcp:close/1, Sockets),
    %% They try again by themselves.
    Connected = fun() -> case batches_by(A, B) of
                             [{connections, N}, {connections, M}] when N > 0, M > 0 -> true;
                             Other -> Other
                         end end,
    %% at most a minute and a half from the last time on
    cluster:await(Connected, 3 * ?LONG),
    exchange:both_ways(A, B),
    ?assertEqual(true, Connected()),
    ?assertMatch({#{sessions := 1, state := up}, #{sessions := 1, state := up}},
                 {cluster:info(A, B), cluster:info(B, A)}),
    cluster:stop_all([A, B]).

batches_by(A, B) ->
    [{By, N} || {From, To} <- [{A, B}, {B, A}],
                #{batches := #{by := By, connections := N}} <- [cluster:info(From, To)]].

%% Somebody else takes the listener's place at the node, who invites to that port.
misled(Node, Port) ->
    cluster:call(Node, ?MODULE, mislead, [tcp, Port]).

mislead(Transport, Port) ->
    ok = supervisor:terminate_child(trunkline_sup, trunkline_listener),
    true = register(trunkline_listener, spawn(?MODULE, misleading, [Transport, Port])),
    ok.

misleading(Transport, Port) ->
    receive
        {'$gen_call', From, {invite, _, _}} ->
            gen_server:reply(
              From, {ok, #{transport => Transport, address => {127, 0, 0, 1}, port => Port,
                           token => trunkline_wire:token(), secret => trunkline_wire:secret()}})
    end,
    misleading(Transport, Port).

follow(Node) ->
    ok = cluster:call(Node, fun() ->
                                    exit(whereis(trunkline_listener), kill),
                                    start_again()
                            end).

start_again() ->
    case supervisor:restart_child(trunkline_sup, trunkline_listener) of
        {ok, _} -> ok;
        {error, _} -> start_again()           % the name is taken still
    end.

%% A peer that asks for an invitation, and reads nothing any more, does not keep others waiting.
busy_peer(_) ->
    {A, B} = cluster:pair([]),
    Asking = cluster:call(B, erlang, whereis, [init]),
    cluster:suspend(B),
    {ok, _} = cluster:call(
                A, fun() ->
                           fill_distribution(Asking),
                           trunkline_listener ! {invite, Asking, make_ref(), {large, tcp}, self()},
                           trunkline_listener:invite({large, tcp}, self())
                   end),
    cluster:continue(B),
    cluster:stop_all([A, B]).

fill_distribution(To) ->
    case erlang:send(To, binary:copy(<<0>>, 100_000), [nosuspend]) of
        ok -> fill_distribution(To);
        nosuspend -> ok
    end.

%% A port whose queue is full: connections are not even made.
full_port() ->
    with_owner(fun() ->
                       {ok, Socket} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}, {backlog, 0}]),
                       {ok, Port} = inet:port(Socket),
                       fill(Port),
                       Port
               end).

fill(Port) ->
    case gen_tcp:connect({127, 0, 0, 1}, Port, [], 500) of
        {ok, _} -> fill(Port);
        {error, _} -> ok
    end.

%% Does this with every connection.
answering(Fun) ->
    with_owner(fun() ->
                       {ok, Socket} = gen_tcp:listen(0, [binary, {active, false},
                                                         {ip, {127, 0, 0, 1}}, {backlog, 100}]),
                       {ok, Port} = inet:port(Socket),
                       spawn_link(fun() -> answer(Socket, Fun) end),
                       Port
               end).

answer(Listening, Fun) ->
    {ok, Socket} = gen_tcp:accept(Listening),
    Fun(Socket),
    answer(Listening, Fun).

%% Sockets end with the process.
with_owner(Fun) ->
    Test = self(),
    Pid = spawn_link(fun() ->
                             Test ! {self(), Fun()},
                             receive stop -> exit(shutdown) end
                     end),
    unlink(Pid),
    receive {Pid, Port} -> {Pid, Port} end.

%% --- what is common ------------------------------------------------------------------

nodes_of(Config) -> {?config(a, Config), ?config(b, Config), ?config(port, Config)}.

%% Two nodes, with a connection from A to B's port.
with_port(Env) ->
    {A, B} = cluster:pair([?KEPT], [?KEPT | Env]),
    exchange:await_connection(A, B),
    {A, B, port(B)}.

%% Another node, without a connection for large messages.
joined(B) ->
    C = cluster:start([?KEPT]),
    cluster:connect(C, B),
    cluster:await_up(C, B),
    C.

%% What a stranger does to B's port, who must be refused so many times: it is to
%% change nothing, and to be in the log in a line or two.
hostile(Config, Do) ->
    {A, B, Port} = nodes_of(Config),
    Before = seen(A, B),
    Earlier = length(log_of(B)),
    Refused = refused(B),
    N = Do(B, Port),
    await_refused(B, Refused + N),
    unharmed(Before, A, B),
    Log = lists:nthtail(Earlier, log_of(B)),
    ct:log("the log: ~p", [Log]),
    [?assertMatch({_, warning, "trunkline: " ++ _}, Line) || Line <- Log],
    ?assert(length(Log) =< 1 + (now_ms() - maps:get(time, Before)) div ?REPORT).

await_refused(B, N) ->
    cluster:await(fun() -> refused(B) >= N orelse {refused(B), 'of', N} end, ?LONG).

seen(A, B) ->
    #{time => now_ms(),
      atoms => cluster:call(B, erlang, system_info, [atom_count]),
      ports => cluster:call(B, fun() -> length(erlang:ports()) end),
      processes => cluster:call(B, fun() -> length(processes()) end),
      memory => memory(B),
      kept => #{link => hd(cluster:call(B, cluster, find, [link, cluster:node_of(A)])),
                dock => dock(A, B),
                sessions => {anew:sessions(A, B), anew:sessions(B, A)},
                by => exchange:by(A, B)}}.

%% Messages flow as before, and nothing is left behind.
unharmed(#{kept := Kept} = Before, A, B) ->
    exchange:both_ways(A, B),
    ?assertMatch(#{kept := Kept}, seen(A, B)),
    cluster:await(
      fun() ->
              Now = seen(A, B),
              case [What || What <- [atoms, ports, processes, memory], is_map_key(What, Before),
                            maps:get(What, Now) > maps:get(What, Before) + spare(What)] of
                  [] -> true;
                  More -> {more, More, before, Before, now, Now}
              end
      end, ?LONG),
    ct:log("before: ~p~nafter:  ~p", [Before, seen(A, B)]).

spare(memory) -> 1_000_000;
spare(_) -> 0.

memory(Node) ->
    cluster:call(Node, fun() ->
                               lists:foreach(fun garbage_collect/1, processes()),
                               erlang:memory(total)
                       end).

%% All that the node would log.
install_log() ->
    ok = logger:remove_handler(default),
    kept_log:keep(notice, #{}, fun ?MODULE:entry/1).

%% {When, Level, Text}
entry(#{level := Level, msg := Msg, meta := #{time := Time}}) ->
    Text = case Msg of
               {Format, Args} when is_list(Format) -> lists:flatten(io_lib:format(Format, Args));
               {report, #{what := _} = Report} ->
                   {Format, Args} = trunkline_log:text(Report),
                   lists:flatten(io_lib:format(Format, Args));
               _ -> Msg
           end,
    {true, {Time, Level, Text}}.

log_of(Node) -> cluster:call(Node, kept_log, kept, []).

%% The process at B where large messages of A arrive.
dock(A, B) ->
    [Dock] = cluster:call(B, cluster, find, [dock, cluster:node_of(A)]),
    Dock.

port(Node) ->
    #{ports := #{tcp := Port}} = cluster:call(Node, trunkline_listener, info, []),
    Port.

refused(Node) -> maps:get(refused, cluster:call(Node, trunkline_listener, info, [])).

%% (The test's own node is not distributed.)
stop(Node, Pid) -> cluster:call(Node, erlang, send, [Pid, stop]).

owned(Node, Owner) -> cluster:call(Node, stranger, owned, [Owner]).

await_owned(Node, Owner, N) ->
    cluster:await(fun() -> owned(Node, Owner) =:= N end).

now_ms() -> erlang:monotonic_time(millisecond).

%% So many ports in a row that nobody else has, with their sockets. They are not among those
%% that the system gives to whoever connects: such a one would soon be somebody else's, once
%% its socket is closed.
taken_ports(N) ->
    Low = 10_000 + rand:uniform(20_000),
    Sockets = [S || P <- lists:seq(Low, Low + N - 1),
                    {ok, S} <- [gen_tcp:listen(P, [{reuseaddr, true}])]],
    case length(Sockets) of
        N ->
            {Low, Sockets};
        _ ->
            lists:foreach(fun gen_tcp:close/1, Sockets),
            taken_ports(N)
    end.

one_port() ->
    {Port, [Socket]} = taken_ports(1),
    gen_tcp:close(Socket),
    {Port, Port}.
