%% Where the cluster is private, so are Trunkline's own connections: they use TLS
%% with the settings of the distribution, or there are none.
-module(tls_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").
-include_lib("public_key/include/public_key.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([options_in_file/1, options_as_arguments/1, both_kinds_of_options/1, newest_version/1,
         strangers/1, silent_strangers/1, bad_frames/1, quiet_log/1, foreign_peer/1,
         verify_fun_of_distribution/1, no_server_certificate/1, tcp_beside_tls/1, insisting_peer/1,
         tls_beside_plain/1, nothing_for_tls/1, only_where_it_is_used/1, without_ssl/1,
         without_settings/1,
         wrong_settings/1, lanes_over_tls/1, connection_broken/1, distributions_socket/1]).
-export([closed_before_tls/1]).
-export([verify/3, closed_sockets/1]).

suite() -> [{timetrap, {minutes, 12}}].

all() -> [options_in_file, options_as_arguments, both_kinds_of_options, newest_version, strangers,
          silent_strangers, bad_frames, quiet_log, foreign_peer, verify_fun_of_distribution,
          no_server_certificate, tcp_beside_tls, insisting_peer, tls_beside_plain, nothing_for_tls,
          only_where_it_is_used, without_ssl, without_settings, wrong_settings, lanes_over_tls,
          connection_broken, distributions_socket, closed_before_tls].

-define(KEPT, {bulk_idle, 3_600_000}).
-define(LONG, 60_000).
-define(ALL_SIZES, [10, 65_536, 1, 10_000_000, 2, 100_000, 3, 3_000_000, 4, 65_537, 700_000, 5]).
-define(INSIST, [{verify, verify_peer}, {fail_if_no_peer_cert, true}]).

%% Two authorities, and what each has certified for this machine's name.
init_per_suite(Config) ->
    case cluster:lane_transport() of
        dist ->
            {ok, _} = application:ensure_all_started(ssl),
            Dir = ?config(priv_dir, Config),
            [{ours, certificates:make(Dir, "ours")}, {foreign, certificates:make(Dir, "foreign")},
             {dir, Dir} | Config];
        _ ->
            {skip, "who has which connections is tested here"}
    end.

end_per_suite(_) ->
    application:stop(ssl).

%% --- a private cluster ---------------------------------------------------------------

%% The usual case: an options file, both sides are verified.
options_in_file(Config) ->
    {A, B} = private_pair([], file(Config, whole(Config))),
    exchange:both_ways(A, B, ?ALL_SIZES),
    over_tls(A, B),
    cluster:stop_all([A, B]).

%% The socket of the distribution's connection, which a process of ssl has: at who has made it, and
%% at the other node.
distributions_socket(Config) ->
    {A, B} = private_pair([], file(Config, whole(Config))),
    Moved = fun(X, Y) -> cluster:call(X, trunkline_socket, moved, [cluster:node_of(Y)]) end,
    lists:foreach(
      fun({X, Y}) ->
              Port = cluster:call(X, trunkline_socket, distribution, [cluster:node_of(Y)]),
              ?assertMatch({ok, _}, cluster:call(X, inet, peername, [Port])),
              cluster:await(fun() -> case cluster:call(X, inet, getopts, [Port, [buffer]]) of
                                         {ok, [{buffer, 65536}]} -> true;
                                         Other -> Other
                                     end
                            end),
              Before = Moved(X, Y),
              pong = cluster:call(X, net_adm, ping, [cluster:node_of(Y)]),
              cluster:await(fun() -> Moved(X, Y) > Before end)
      end, [{A, B}, {B, A}]),
    cluster:stop_all([A, B]).

options_as_arguments(Config) ->
    {A, B} = private_pair([], arguments(whole(Config))),
    exchange:both_ways(A, B, ?ALL_SIZES),
    over_tls(A, B),
    cluster:stop_all([A, B]).

%% Which of the two counts depends on the release of OTP: it must be the same as for
%% the distribution.
both_kinds_of_options(Config) ->
    [{server, Server}, Client] = whole(Config),
    Careless = ["-ssl_dist_opt", "server_verify", "verify_none"],
    {A, B} = private_pair([],
                          file(Config,
                               [{server, lists:keydelete(fail_if_no_peer_cert, 1, Server)}, Client])
                          ++ Careless),
    exchange:both_ways(A, B),
    over_tls(A, B),
    Foreign = careless(client(whole([{ours, ?config(foreign, Config)}]))),
    Distribution = case stranger:secure(stranger:connect(distribution_port(A, B)), Foreign) of
                       %% With TLS 1.3 a client hears after the handshake that it is refused.
                       {ssl, _} = C -> case stranger:is_closed(C, 5000) of
                                           true -> refused;
                                           {false, timeout} -> stranger:close(C), admitted
                                       end;
                       {error, _} -> refused
                   end,
    ct:log("a foreign certificate is ~s by the distribution", [Distribution]),
    {Invitation, Owner} = stranger:invitation(B, tls),
    ?assertEqual(Distribution, attempt(port(B), Foreign, Invitation)),
    stop(B, Owner),
    cluster:stop_all([A, B]).

careless(Options) -> [{verify, verify_none} | lists:keydelete(verify, 1, Options)].

distribution_port(A, B) ->
    {ok, {net_address, {_, Port}, _, _, _}} =
        cluster:call(A, net_kernel, node_info, [cluster:node_of(B), address]),
    Port.

newest_version(Config) ->
    Newest = [{Side, [{versions, ['tlsv1.3']} | Options]} || {Side, Options} <- whole(Config)],
    {A, B} = private_pair([], file(Config, Newest)),
    exchange:both_ways(A, B, ?ALL_SIZES),
    over_tls(A, B),
    strangers_are_refused(Config, A, B),
    cluster:stop_all([A, B]).

%% Who speaks in plain text, or has the wrong certificate or none, is refused, even
%% with a right invitation; and so is who has a certificate and no invitation.
strangers(Config) ->
    {A, B} = private_pair([], file(Config, whole(Config))),
    over_tls(A, B),
    strangers_are_refused(Config, A, B),
    over_tls(A, B),
    exchange:both_ways(A, B),
    cluster:stop_all([A, B]).

strangers_are_refused(Config, A, B) ->
    Port = port(B),
    Link = link_of(A, B),
    Processes = processes_of(A, B),
    Before = Processes(),
    Ours = client(whole(Config)),
    NoCertificate = remove([certfile, keyfile], client, whole(Config)),
    Foreign = client(whole([{ours, ?config(foreign, Config)}])),
    lists:foreach(
      fun({Who, Secure, WithToken}) ->
              Refused = refused(B),
              {Invitation, Owner} = stranger:invitation(B, tls),
              ?assertMatch(#{transport := tls, port := Port}, Invitation),
              Token = case WithToken of
                          right -> Invitation;
                          wrong -> Invitation#{token := <<0:128>>}
                      end,
              ?assertEqual({Who, refused}, {Who, attempt(Port, Secure, Token)}),
              cluster:await(fun() -> refused(B) > Refused end, ?LONG),
              ?assertEqual({Who, 0}, {Who, cluster:call(B, stranger, owned, [Owner])}),
              stop(B, Owner)
      end,
      [{plain_text, plain, right}, {plain_garbage, garbage, right},
       {no_certificate, NoCertificate, right}, {nothing_at_all, careless([]), right},
       {foreign, careless(Foreign), right}, {no_invitation, Ours, wrong}]),
    %% The same client, certified and invited.
    {Invitation, Owner} = stranger:invitation(B, tls),
    ?assertEqual(admitted, attempt(Port, Ours, Invitation)),
    cluster:await(fun() -> cluster:call(B, stranger, owned, [Owner]) =:= 1 end),
    stop(B, Owner),
    ?assertEqual(Link, link_of(A, B)),
    cluster:await(fun() -> case Processes() of N when N =< Before -> true; N -> {Before, N} end end,
                  ?LONG).

attempt(Port, plain, Invitation) ->
    admitted(stranger:connect(Port), Invitation);
attempt(Port, garbage, _) ->
    C = stranger:connect(Port),
    stranger:say(C, crypto:strong_rand_bytes(5000)),
    Heard = stranger:hear(C, 48),
    stranger:close(C),
    case Heard of
        {error, _} -> refused;
        {ok, Bytes} -> {heard, Bytes}
    end;
attempt(Port, Options, Invitation) ->
    case stranger:secure(stranger:connect(Port), [{server_name_indication, host()} | Options]) of
        {ssl, _} = C -> admitted(C, Invitation);
        {error, _} -> refused
    end.

admitted(C, #{token := Token, secret := Secret}) ->
    Ours = stranger:hello(C, Token),
    case stranger:welcome(C) of
        {ok, Theirs, _} ->
            stranger:prove(C, Secret, {Ours, Theirs}),
            case stranger:is_closed(C, 500) of
                {false, timeout} -> stranger:close(C), admitted;
                true -> refused
            end;
        {error, _} ->
            stranger:close(C),
            refused
    end.

%% Whoever does not go on with the handshake of TLS, or with that of Trunkline after
%% it, has a few seconds.
silent_strangers(Config) ->
    {A, B} = private_pair([], file(Config, whole(Config))),
    over_tls(A, B),
    Port = port(B),
    Processes = processes_of(A, B),
    Before = Processes(),
    Silent = [stranger:connect(Port) || _ <- lists:seq(1, 10)],
    Stopped = [begin C = stranger:connect(Port), stranger:say(C, <<22, 3, 1, 1, 200, 1, 0>>), C end
               || _ <- lists:seq(1, 10)],
    %% (On a slow machine the time may be over before the handshake is.)
    Options = [{server_name_indication, host()} | client(whole(Config))],
    Secure = [C || _ <- lists:seq(1, 5),
                   {ssl, _} = C <- [stranger:secure(stranger:connect(Port), Options)]],
    ?assertMatch([_ | _], Secure),
    exchange:both_ways(A, B),
    Start = erlang:monotonic_time(millisecond),
    lists:foreach(fun(C) -> ok = stranger:await_closed(C) end, Silent ++ Stopped ++ Secure),
    Time = erlang:monotonic_time(millisecond) - Start,
    ct:log("all closed ~b ms after the last message", [Time]),
    ?assert(Time < 60_000),
    cluster:await(fun() -> refused(B) >= 25 orelse refused(B) end, ?LONG),
    cluster:await(fun() -> case Processes() of N when N =< Before -> true; N -> {Before, N} end end,
                  ?LONG),
    over_tls(A, B),
    cluster:stop_all([A, B]).

%% Whoever has been admitted, and then says what no peer says.
bad_frames(Config) ->
    {A, B} = private_pair([], file(Config, whole(Config))),
    ok = cluster:call(B, listener_SUITE, load_all, []),
    over_tls(A, B),
    Port = port(B),
    Connect = fun() ->
                      stranger:secure(stranger:connect(Port),
                                      [{server_name_indication, host()} | client(whole(Config))])
              end,
    listener_SUITE:frames([{a, A}, {b, B}, {port, Port}], Connect, listener_SUITE:bad_frames()),
    over_tls(A, B),
    cluster:stop_all([A, B]).

%% Strangers do not fill the log.
quiet_log(Config) ->
    {A, B} = private_pair([], file(Config, whole(Config))),
    exchange:both_ways(A, B),
    Port = port(B),
    ok = cluster:call(B, listener_SUITE, install_log, []),
    Start = erlang:monotonic_time(millisecond),
    Refused = refused(B),
    [attempt(Port, garbage, none) || _ <- lists:seq(1, 20)],
    [_ = stranger:secure(stranger:connect(Port), careless([])) || _ <- lists:seq(1, 20)],
    cluster:await(fun() -> refused(B) >= Refused + 40 orelse refused(B) end, ?LONG),
    Log = cluster:call(B, kept_log, kept, []),
    ct:log("~p", [Log]),
    ?assert(length(Log) =< 1 + (erlang:monotonic_time(millisecond) - Start) div 10_000),
    cluster:stop_all([A, B]).

%% A node whose invitation leads to somebody that another authority has certified
%% does not talk to him.
foreign_peer(Config) ->
    {A, B} = private_pair([], file(Config, whole(Config))),
    Test = self(),
    {_, Server} = lists:keyfind(server, 1, whole([{ours, ?config(foreign, Config)}])),
    Foreign = spawn_link(
                fun() ->
                        {ok, Listening} =
                            gen_tcp:listen(0, [binary, {active, false}, {ip, {127, 0, 0, 1}}]),
                        {ok, Port} = inet:port(Listening),
                        Test ! {self(), Port},
                        foreign(Listening,
                                careless(lists:keydelete(fail_if_no_peer_cert, 1, Server)), Test)
                end),
    Port = receive {Foreign, P} -> P end,
    ok = cluster:call(B, listener_SUITE, mislead, [tls, Port]),
    exchange:one_way(A, B, ?ALL_SIZES),
    receive
        {foreign, Heard} -> ?assertMatch({error, _}, Heard)
    after ?LONG -> error(nobody_came)
    end,
    ?assertEqual({distribution, 0}, exchange:by(A, B)),
    unlink(Foreign),
    exit(Foreign, kill),
    cluster:stop_all([A, B]).

foreign(Listening, Options, Test) ->
    {ok, Socket} = gen_tcp:accept(Listening),
    Test ! {foreign,
            case ssl:handshake(Socket, [{active, false}, {log_level, none} | Options], ?LONG) of
                {ok, Secure} -> ssl:recv(Secure, 1, ?LONG);
                {error, _} = Error -> Error
            end},
    foreign(Listening, Options, Test).

%% --- no connections of their own --------------------------------------------------------

%% A function that works only within the distribution: large messages stay there. One
%% that works everywhere is used.
verify_fun_of_distribution(Config) ->
    Whole = [{server, Server}, {client, Client}] = whole(Config),
    InFile = fun(Fun) ->
                     file(Config, [{server, [{verify_fun, {Fun, []}} | Server]}, {client, Client}])
             end,
    AsArgument = fun(Text) -> arguments(Whole) ++ ["server_verify_fun", Text] end,
    lists:foreach(
      fun(Files) ->
              {A, B} = private_pair([], Files),
              exchange:both_ways(A, B),
              exchange:all_by_distribution(A, B),
              ?assertEqual({error, {tls, verify_fun_of_the_distribution}}, not_invited(B)),
              cluster:stop_all([A, B])
      end,
      [InFile(fun inet_tls_dist:verify_client/3), AsArgument("{inet_tls_dist,verify_client,[]}")]),
    lists:foreach(
      fun(Files) ->
              {A, B} = private_pair([], Files),
              exchange:both_ways(A, B),
              over_tls(A, B),
              strangers_are_refused(Config, A, B),
              cluster:stop_all([A, B])
      end, [InFile(fun ?MODULE:verify/3), AsArgument("{" ?MODULE_STRING ",verify,[]}")]).

not_invited(Node) ->
    cluster:call(Node, fun() -> trunkline_listener:invite({large, auto}, self()) end).

verify(_, {bad_cert, _} = Reason, _) -> {fail, Reason};
verify(_, {extension, _}, S) -> {unknown, S};
verify(_, _, S) -> {valid, S}.

%% A node that can connect and cannot be connected to: what goes to it goes by
%% distribution.
no_server_certificate(Config) ->
    Whole = whole(Config),
    A = private([], file(Config, [{client, client(Whole)}])),
    B = private([], file(Config, Whole)),
    cluster:connect(A, B),
    cluster:await_up(A, B),
    exchange:both_ways(A, B, ?ALL_SIZES),
    ?assertMatch({error, {tls, _}}, not_invited(A)),
    ?assertEqual(#{}, ports(A)),
    ?assertEqual({distribution, 0}, exchange:by(B, A)),
    exchange:await_connection(A, B),
    ?assertMatch([tls], maps:keys(ports(B))),
    cluster:stop_all([A, B]).

%% Whoever asks for plain text in a private cluster does not get it: the start is
%% refused.
tcp_beside_tls(Config) ->
    Files = file(Config, whole(Config)),
    B = private([], Files),
    A = refused_start([{bulk_transport, tcp}], private_arguments(Files)),
    ?assertMatch({error, {{bad_option, lane_transport, tcp}, _}},
                 cluster:call(A, cluster, start_trunkline, [[{lane_transport, tcp}]])),
    cluster:connect(A, B),
    exchange:one_way(B, A, [10, 100_000]),
    ?assertEqual({error, not_running}, not_invited(A)),
    ok = cluster:call(A, cluster, start_trunkline, [[?KEPT, {bulk_transport, dist}]]),
    cluster:await_up(A, B),
    exchange:both_ways(A, B),
    exchange:all_by_distribution(A, B),
    ok = cluster:call(A, cluster, stop_trunkline, []),
    ok = cluster:call(A, cluster, start_trunkline, [[?KEPT, {bulk_transport, tls}]]),
    cluster:await_up(A, B),
    exchange:both_ways(A, B),
    exchange:await_connection(A, B),
    exchange:await_connection(B, A),
    ?assertEqual([[tls], [tls]], [maps:keys(ports(N)) || N <- [A, B]]),
    %% Nor does a peer that asks for it.
    ?assertEqual({error, plaintext_beside_tls},
                 cluster:call(B, fun() -> trunkline_listener:invite({large, tcp}, self()) end)),
    cluster:stop_all([A, B]).

%% A node on which Trunkline does not start with that option, and is not running.
refused_start([{Key, Value}] = Env, Args) ->
    Node = cluster:start(none, peer:random_name("trunkline_test"), Args),
    ok = cluster:call(Node, logger, set_primary_config, [level, none]),
    ?assertMatch({error, {{bad_option, Key, Value}, _}},
                 cluster:call(Node, cluster, start_trunkline, [Env])),
    ok = cluster:call(Node, logger, set_primary_config, [level, error]),
    Node.

%% A node does not believe an invitation to plain text.
insisting_peer(Config) ->
    {A, B} = private_pair([], file(Config, whole(Config))),
    Test = self(),
    Plain = spawn_link(fun() ->
                               {ok, Listening} = gen_tcp:listen(0, [binary, {active, false},
                                                                    {ip, {127, 0, 0, 1}}]),
                               {ok, Port} = inet:port(Listening),
                               Test ! {self(), Port},
                               {ok, _} = gen_tcp:accept(Listening),
                               Test ! somebody_came,
                               receive stop -> ok end
                       end),
    Port = receive {Plain, P} -> P end,
    ok = cluster:call(B, listener_SUITE, mislead, [tcp, Port]),
    exchange:one_way(A, B, ?ALL_SIZES),
    ?assertEqual({distribution, 0}, exchange:by(A, B)),
    receive somebody_came -> error(somebody_came) after 0 -> ok end,
    unlink(Plain),
    exit(Plain, kill),
    cluster:stop_all([A, B]).

%% --- beside the plain distribution -----------------------------------------------------

%% TLS for large messages alone.
tls_beside_plain(Config) ->
    lists:foreach(
      fun({Args, Sizes}) ->
              {A, B} = pair_with([{bulk_transport, tls}], Args),
              exchange:both_ways(A, B, Sizes),
              over_tls(A, B),
              strangers_are_refused(Config, A, B),
              cluster:stop_all([A, B])
      end, [{file(Config, whole(Config)), ?ALL_SIZES}, {arguments(whole(Config)), [1, 70_000, 2]}]).

%% There is nothing to make TLS of: the start is refused. With other options it is
%% not, whatever there is for TLS.
nothing_for_tls(Config) ->
    #{cert := Cert, key := Key} = ?config(ours, Config),
    lists:foreach(
      fun(Args) ->
              [A, B] = Nodes = [refused_start([{bulk_transport, tls}], Args) || _ <- [a, b]],
              ?assertMatch({error, {{bad_option, lane_transport, tls}, _}},
                           cluster:call(A, cluster, start_trunkline, [[{lane_transport, tls}]])),
              [ok = cluster:call(Node, cluster, start_trunkline, [[?KEPT]]) || Node <- Nodes],
              cluster:connect(A, B),
              cluster:await_up(A, B),
              exchange:await_connection(A, B),
              cluster:stop_all(Nodes)
      end, [[],
            ["-ssl_dist_optfile", filename:join(?config(dir, Config), "no.such.file")],
            file(Config, "this is no Erlang term"),
            file(Config, [{server, [{verify, verify_none}]}, {client, [{verify, verify_none}]}]),
            file(Config, [{client, [{certfile, Cert}, {keyfile, Key}]}]),
            ["-ssl_dist_opt", "server_certfile"],
            ["-ssl_dist_opt", "server_no_such_option", "value"]]).

%% The application ssl runs where connections may use TLS, and nowhere else.
only_where_it_is_used(Config) ->
    Private = private_arguments(file(Config, whole(Config))),
    NoConnections = [{bulk_transport, dist}, {lane_transport, dist}],
    Certificate = file(Config, whole(Config)),
    lists:foreach(
      fun({Expected, Env, Args}) ->
              {A, B} = Pair = pair_with([?KEPT | Env], Args),
              exchange:both_ways(A, B),
              ?assertEqual({Expected, Env, Args}, {runs_ssl(A), Env, Args}),
              ok = cluster:call(A, application, stop, [trunkline]),
              ok = cluster:call(A, application, start, [trunkline]),
              cluster:stop_all(tuple_to_list(Pair))
      end,
      [{false, [], []}, {false, NoConnections, Private}, {true, [], Private},
       %% A peer may want TLS.
       {true, [], Certificate}]).

runs_ssl(Node) -> lists:keymember(ssl, 1, cluster:call(Node, application, which_applications, [])).

%% A release without ssl, where no TLS is wanted and where it is.
without_ssl(Config) ->
    [{server, Server}, _] = whole(Config),
    A = cluster:start(none, peer:random_name("trunkline_test"),
                      arguments([{server, Server}, {client, []}])),
    true = cluster:call(A, code, del_path, [ssl]),
    ?assertMatch({error, {{bad_option, bulk_transport, tls}, _}},
                 cluster:call(A, cluster, start_trunkline, [[{bulk_transport, tls}]])),
    ok = cluster:call(A, cluster, start_trunkline, [[]]),
    ?assertNot(runs_ssl(A)),
    cluster:stop(A).

%% A peer wants TLS, and this node has nothing but the application. Whether that is enough depends
%% on OTP: since 26 a client wants to verify whom it connects to.
without_settings(Config) ->
    #{cert := Cert, key := Key} = ?config(ours, Config),
    A = cluster:start([?KEPT], peer:random_name("trunkline_test"), []),
    B = cluster:start([?KEPT, {bulk_transport, tls}], peer:random_name("trunkline_test"),
                      file(Config, [{server, [{certfile, Cert}, {keyfile, Key}]},
                                    {client, [{verify, verify_none}]}])),
    ?assertNot(runs_ssl(A)),
    cluster:connect(A, B),
    cluster:await_up(A, B),
    exchange:both_ways(A, B),
    cluster:await(fun() -> runs_ssl(A) end),
    ?assertEqual([tls], maps:keys(ports(B))),
    cluster:stop_all([A, B]).

%% Settings that look right, and with which no connection can be made: large messages
%% go by distribution.
wrong_settings(Config) ->
    Ours = [{server, Server}, Client] = whole(Config),
    Foreign = whole([{ours, ?config(foreign, Config)}]),
    #{ca := Ca} = ?config(ours, Config),
    KeyIn = fun(File) ->
                    [{server, lists:keystore(keyfile, 1, Server, {keyfile, File})}, Client]
            end,
    lists:foreach(
      fun({Why, FileA, FileB}) ->
              [A, B] = [cluster:start([?KEPT, {bulk_transport, tls}],
                                      peer:random_name("trunkline_test"), file(Config, F))
                        || F <- [FileA, FileB]],
              cluster:connect(A, B),
              cluster:await_up(A, B),
              exchange:both_ways(A, B),
              ?assertEqual({Why, {distribution, 0}, {distribution, 0}},
                           {Why, exchange:by(A, B), exchange:by(B, A)}),
              ?assertMatch(#{state := up, sessions := 1}, cluster:info(A, B)),
              cluster:stop_all([A, B])
      end,
      [{foreign, Ours, Foreign}, {no_key, KeyIn(Ca ++ ".missing"), KeyIn(Ca ++ ".missing")},
       {no_key_in_it, KeyIn(Ca), KeyIn(Ca)}]).

%% Lanes by TLS, beside either distribution.
lanes_over_tls(Config) ->
    Files = file(Config, whole(Config)),
    lists:foreach(
      fun({Args, Sizes}) ->
              {A, B} = pair_with([{lane_transport, tls}, {bulk_transport, tls}], Args),
              cluster:await(fun() -> lanes_connected(A, B) end, ?LONG),
              exchange:both_ways(A, B, Sizes),
              ?assertEqual(true, lanes_connected(A, B)),
              over_tls(A, B),
              strangers_are_refused(Config, A, B),
              cluster:stop_all([A, B])
      end, [{private_arguments(Files), ?ALL_SIZES}, {Files, [1, 70_000, 2]}]).

lanes_connected(A, B) ->
    Batches = [maps:get(batches, cluster:info(From, To))
               || {From, To} <- [{A, B}, {B, A}]],
    case Batches of
        [#{by := connections, connections := N}, #{by := connections, connections := M}]
          when N > 0, M > 0 -> true;
        _ -> Batches
    end.

%% A TLS connection that breaks is replaced, and nothing is missing.
connection_broken(Config) ->
    {A, B} = private_pair([], file(Config, whole(Config))),
    over_tls(A, B),
    {Pid, Ref} = spawn_monitor(fun() -> exchange:both_ways(A, B, ?ALL_SIZES) end),
    %% The first ones before anything can have ended.
    Broken = broken_until_ended(Ref, Pid, B, cluster:call(B, fun() -> break() end)),
    ct:log("~b processes of connections were killed", [Broken]),
    ?assert(Broken > 0),
    over_tls(A, B),
    cluster:stop_all([A, B]).

broken_until_ended(Ref, Pid, Node, Broken) ->
    receive
        {'DOWN', Ref, process, Pid, Reason} ->
            ?assertEqual(normal, Reason),
            Broken
    after 300 ->                                   % of going on
            broken_until_ended(Ref, Pid, Node, Broken + cluster:call(Node, fun() -> break() end))
    end.

break() -> length([exit(Pid, kill) || Pid <- cluster:tls_connections()]).

%% --- what is common ---------------------------------------------------------------------

private_pair(Env, Files) -> pair_with(Env, private_arguments(Files)).

private(Env, Files) ->
    cluster:start([?KEPT | Env], peer:random_name("trunkline_test"), private_arguments(Files)).

private_arguments(Files) -> ["-proto_dist", "inet_tls" | Files].

pair_with(Env, Args) -> cluster:pair([?KEPT | Env], [?KEPT | Env], Args).

%% Large messages travel by connections, and nobody listens for any others than TLS.
over_tls(A, B) ->
    lists:foreach(fun({From, To}) ->
                          exchange:await_connection(From, To),
                          ?assertEqual([tls], maps:keys(ports(To))),
                          ?assertMatch(#{state := up, sessions := 1}, cluster:info(From, To))
                  end, [{A, B}, {B, A}]).

%% Counts B's processes, from when on no connection is being made between the two any more:
%% it would be one more there.
processes_of(A, B) ->
    lists:foreach(
      fun({From, To}) ->
              cluster:await(
                fun() ->
                        #{batches := #{connections := N}, large := #{connections := M}} =
                            cluster:info(From, To),
                        case length(cluster:call(From, cluster, by_module, [trunkline_writer])) of
                            Carriers when Carriers =:= N + M -> true;
                            Carriers -> {Carriers, N, M}
                        end
                end, ?LONG)
      end, [{A, B}, {B, A}]),
    fun() -> cluster:call(B, fun() -> length(processes()) end) end.

ports(Node) -> maps:get(ports, cluster:call(Node, trunkline_listener, info, [])).

port(Node) -> maps:get(tls, ports(Node)).

refused(Node) -> maps:get(refused, cluster:call(Node, trunkline_listener, info, [])).

stop(Node, Pid) -> cluster:call(Node, erlang, send, [Pid, stop]).

link_of(A, B) -> hd(cluster:call(B, cluster, find, [link, cluster:node_of(A)])).

%% The socket has gone when it is to become a TLS connection: an error, and no crash.
closed_before_tls(Config) ->
    A = cluster:start([], peer:random_name("trunkline_test"), file(Config, whole(Config))),
    ?assertMatch([{error, _}, {error, _}], cluster:call(A, ?MODULE, closed_sockets, [host()])),
    cluster:stop(A).

closed_sockets(Host) ->
    [begin
         {ok, Listening} = gen_tcp:listen(0, [{active, false}]),
         {ok, Port} = inet:port(Listening),
         {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [{active, false}]),
         ok = gen_tcp:close(Socket),
         ok = gen_tcp:close(Listening),
         trunkline_tls:secure(Side, Socket, 1000)
     end || Side <- [{client, Host}, server]].

host() ->
    {ok, Host} = inet:gethostname(),
    Host.

%% --- settings ------------------------------------------------------------------------------

whole(Config) ->
    #{cert := Cert, key := Key, ca := Ca} = ?config(ours, Config),
    Files = [{certfile, Cert}, {keyfile, Key}, {cacertfile, Ca}],
    [{server, Files ++ ?INSIST}, {client, Files ++ [{verify, verify_peer}]}].

client(Options) -> proplists:get_value(client, Options).

remove(Keys, Side, Options) ->
    [O || {Key, _} = O <- proplists:get_value(Side, Options), not lists:member(Key, Keys)].

file(Config, Options) ->
    File = filename:join(?config(dir, Config),
                         "options." ++ integer_to_list(erlang:unique_integer([positive]))),
    ok = file:write_file(File, case Options of
                                   [{_, _} | _] -> io_lib:format("~p.~n", [Options]);
                                   Text -> Text
                               end),
    ["-ssl_dist_optfile", File].

arguments(Options) ->
    ["-ssl_dist_opt" | lists:append([[lists:concat([Side, "_", Key]), lists:concat([Value])]
                                     || {Side, Values} <- Options, {Key, Value} <- Values])].

