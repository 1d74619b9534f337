%% The connecting side's end of a connection to a peer: makes it, and writes frames
%% to it.
%%
%%     trunk                        carrier                  the peer's dock
%%       |                            | -- invite ------------> |
%%       |                            | <--------- invitation - |
%%       |                            | ══ connects, proves ══> (trunkline_listener)
%%       | <----------- ready, token -|
%%       | -- fragments ------------> | ════════ frames ══════> (trunkline_receiver)
%%       | <------------------ sent - |  the connection has taken them; so many us
%%
%% It belongs to a trunkline_trunk, and ends with it, and with the connection.
%%
%% A connection that has been idle for longer than its retransmission time-out starts
%% from the beginning, with ten packets, unless its congestion control is BBR. Over a
%% distance that is felt after every pause; therefore, for a while after it was last
%% used, such a connection says now and then that it is still there.
-module(trunkline_carrier).
-moduledoc false.

-export([start/2, send/2]).
-export([loop/1]).

-export_type([settings/0]).

-type settings() :: #{transport := auto | tcp | tls,
                      cargo := batches | large,
                      timeout := pos_integer(),        % ms
                      is_far := boolean() | unknown,
                      far := default | atom()}.        % the congestion control, if the peer is far

-record(carrier,
        {trunk :: pid(),
         transport :: module(),
         socket :: trunkline_transport:socket(),
         cargo :: batches | large,
         beats :: never | non_neg_integer()}).       % how many times it will say that it is there

%% ms
-define(CONNECT, 5000).
%% Less than the shortest retransmission time-out, which is 200 (Linux).
-define(HEARTBEAT, 100).
-define(HEARTBEATS, 100).              % for ten seconds

%% The calling process is the trunk, and monitors the carrier. The reason of its end
%% says why there is no connection.
-spec start(Dock :: pid(), settings()) -> {ok, {pid(), reference()}} | {error, system_limit}.
start(Dock, Settings) ->
    Trunk = self(),
    trunkline_process:start(
      fun() -> spawn_monitor(fun() -> start(Trunk, Dock, Settings) end) end).

start(Trunk, Dock, #{transport := Wanted, cargo := Cargo} = Settings) ->
    _ = monitor(process, Trunk),
    Ref = monitor(process, Dock),
    _ = erlang:send(Dock, {invite, self(), Ref, {Cargo, Wanted}, Trunk}, [noconnect]),
    receive
        {invitation, Ref, {ok, Invitation}} -> connect(Trunk, Settings, node(Dock), Invitation);
        {invitation, Ref, {error, Reason}} -> exit({shutdown, Reason});
        {'DOWN', _, process, _, Reason} -> exit({shutdown, Reason})
    after ?CONNECT ->
            exit({shutdown, not_invited})
    end.

%% When `{sent, Carrier, Bytes, Microseconds}' has come, the trunk may give it the
%% next ones.
-spec send(pid(), [trunkline_fragments:fragment(), ...]) -> ok.
send(Carrier, Fragments) ->
    Carrier ! {carry, Fragments},
    ok.

connect(Trunk, Settings, Node, #{address := Address, port := Port, transport := Name} = Invitation) ->
    %% Whatever the peer says.
    Name =:= tcp andalso trunkline_tls:is_cluster_private() andalso exit({shutdown, plaintext_beside_tls}),
    Host = case Address of
               any -> address(Node);
               _ -> Address
           end,
    Start = erlang:monotonic_time(microsecond),
    case gen_tcp:connect(Host, Port, trunkline_socket:connect_options() ++ [inet6 || tuple_size(Host) =:= 8], ?CONNECT) of
        {ok, TcpSocket} ->
            IsFar = case Settings of
                        %% It took a round trip, at least.
                        #{is_far := unknown} ->
                            Took = erlang:monotonic_time(microsecond) - Start,
                            trunkline_distance:is_far(min(Took, trunkline_socket:round_trip(TcpSocket)));
                        #{is_far := Known} -> Known
                    end,
            ok = trunkline_socket:tune(TcpSocket, settings(IsFar, Settings)),
            Transport = trunkline_transport:module(Name),
            [_, HostName] = string:split(atom_to_list(Node), "@"),
            Socket = must(Transport:secure({client, HostName}, TcpSocket, ?CONNECT)),
            prove(Transport, Socket, Invitation),
            CongestionControl = trunkline_socket:congestion_control(TcpSocket),
            Trunk ! {ready, self(), maps:get(token, Invitation), CongestionControl},
            loop(#carrier{trunk = Trunk, transport = Transport, socket = Socket,
                          cargo = maps:get(cargo, Settings),
                          beats = case IsFar andalso CongestionControl =/= <<"bbr">> of
                                      true -> 0;
                                      false -> never
                                  end});
        {error, Reason} ->
            exit({shutdown, {connect, Host, Port, Reason}})
    end.

settings(true, #{far := Name} = Settings) when Name =/= default ->
    settings(false, Settings#{congestion_control => Name});
settings(_, Settings) ->
    maps:with([timeout, cargo, congestion_control], Settings).

%% Where the distribution has found it.
address(Node) ->
    case net_kernel:node_info(Node, address) of
        {ok, {net_address, {Address, _}, _, _, _}} when is_tuple(Address) -> Address;
        _ -> exit({shutdown, no_address})
    end.

prove(Transport, Socket, #{token := Token, secret := Secret}) ->
    Ours = trunkline_wire:nonce(),
    done(Transport:send(Socket, trunkline_wire:hello(Token, Ours))),
    <<Theirs:16/binary, Proof/binary>> = must(Transport:recv(Socket, trunkline_wire:welcome_bytes(), ?CONNECT)),
    trunkline_wire:is_proof(Proof, trunkline_wire:proof(listening, Secret, Ours, Theirs))
        orelse exit({shutdown, not_the_peer}),
    done(Transport:send(Socket, trunkline_wire:proof(connecting, Secret, Ours, Theirs))),
    done(Transport:watch(Socket)).

must({ok, Value}) -> Value;
must({error, Reason}) -> exit({shutdown, Reason}).

done(ok) -> ok;
done({error, Reason}) -> exit({shutdown, Reason}).

-spec loop(#carrier{}) -> no_return().
loop(#carrier{trunk = Trunk, transport = Transport, socket = Socket, beats = Beats} = S) ->
    receive
        {carry, Fragments} ->
            Start = erlang:monotonic_time(microsecond),
            done(Transport:send(Socket, [trunkline_wire:frame(F) || F <- Fragments])),
            Bytes = trunkline_fragments:bytes(Fragments),
            Trunk ! {sent, self(), Bytes, erlang:monotonic_time(microsecond) - Start},
            sent(S#carrier.cargo),
            loop(S#carrier{beats = if Beats =:= never -> never;
                                      true -> ?HEARTBEATS
                                   end});
        {'DOWN', _, process, _, _} ->
            exit({shutdown, closed});                    % the trunk, or the dock
        {Closed, _} when Closed =:= tcp_closed; Closed =:= ssl_closed ->
            exit({shutdown, closed});
        {Said, _, _} when Said =:= tcp; Said =:= ssl; Said =:= tcp_error; Said =:= ssl_error ->
            exit({shutdown, closed});                    % the other side has nothing to say
        {system, From, Request} ->
            trunkline_process:system(From, Request, fun ?MODULE:loop/1, S);
        Other ->
            ok = trunkline_process:unexpected(?MODULE, Other),
            loop(S)
    after pause(Beats) ->
            done(Transport:send(Socket, trunkline_wire:heartbeat())),
            loop(S#carrier{beats = Beats - 1})
    end.

pause(Beats) when is_integer(Beats), Beats > 0 -> ?HEARTBEAT;
pause(_) -> infinity.

%% They may have been the last ones for long, and a fragment, however small, refers to
%% the whole binary that it is of.
sent(large) -> true = garbage_collect();
sent(batches) -> true.
