%% Makes a connection to a peer that invites it.
%%
%%     connecting side                      listening side
%%       | -- invite, by distribution ---> |    the peer's dock, or its trunkline_listener
%%       | <------------------ invitation - |
%%       | ══ connects, proves ══════════> |    (trunkline_wire)
%%       | ══ frames ════════════════════> |    read by the process that it was invited for
%%
%% All of this may block, so only processes that have nothing else to do call it. The calling
%% process owns the socket, and exits with the reason if there is no connection.
-module(trunkline_connection).
-moduledoc false.

-export([settings/4, is_far/1, most/2, more/1, show/3, connect/3, invited/3, not_made/3]).
-export([send/2]).

-export_type([connection/0, settings/0]).

-type settings() :: #{cargo := batches | large,
                      transport := auto | trunkline_transport:name(),
                      timeout := pos_integer(),        % ms, until a dead path is noticed
                      is_far := boolean() | unknown,
                      far := default | atom()}.        % the congestion control, if the peer is far
-type connection() :: #{transport := trunkline_transport:transport(),
                        socket := trunkline_transport:socket(),
                        token := trunkline_wire:token(),
                        congestion_control := binary(),
                        must_beat := boolean()}.

-define(AT_ONCE, 4).
%% ms
-define(INVITE, 5000).
-define(CONNECT, 5000).

%% The settings of a connection to that peer.
-spec settings(Cargo :: batches | large, Transport :: auto | trunkline_transport:name(),
               trunkline_options:options(), trunkline_stats:stats()) -> settings().
settings(Cargo, Transport, #{connection_timeout := Timeout, congestion_control := Name}, Stats) ->
    #{cargo => Cargo, transport => Transport, timeout => Timeout,
      is_far => case trunkline_stats:get(Stats, peer, round_trip) of
                    0 -> unknown;
                    _ -> is_far(Stats)
                end,
      far => case Name of
                 auto -> bbr;
                 _ -> Name
             end}.

%% Whether the link has found the peer to be far.
-spec is_far(trunkline_stats:stats()) -> boolean().
is_far(Stats) -> trunkline_stats:get(Stats, peer, far) =:= 1.

%% How many connections there may be, at most. One has at most 4 MB under way (Linux), and with
%% loss-based congestion control much less after a packet was lost, so a far peer needs several.
-spec most(IsFar :: boolean(), trunkline_options:options()) -> pos_integer().
most(true, #{far_connections := Far, bulk_connections := Near}) -> max(Far, Near);
most(false, #{bulk_connections := Near}) -> Near.

%% How many more to make to a far peer that has so many. To make one takes three round trips, so
%% several are made at a time.
-spec more(non_neg_integer()) -> pos_integer().
more(Connections) -> max(?AT_ONCE, Connections).

%% The counter of a congestion control has the first eight bytes of its name (see trunkline_info).
-spec show(trunkline_stats:stats(), atom(), CongestionControl :: binary()) -> ok.
show(Stats, Field, CongestionControl) ->
    <<Name:64, _/binary>> = <<CongestionControl/binary, 0:64>>,
    trunkline_stats:put(Stats, peer, Field, Name).

%% Reader is the process at the peer that reads what the connection carries: an inlet, or a dock,
%% which gives the invitation itself, and is told who wants it.
%%
%% Nothing here may connect the nodes, as a monitor of a process at the peer would: they may just
%% have been disconnected on purpose.
-spec connect(Reader :: pid(), Owner :: pid(), settings()) -> connection().
connect(Reader, Owner, #{cargo := Cargo, transport := Wanted} = Settings) ->
    Node = node(Reader),
    {To, For} = case Cargo of
                    batches -> {{trunkline_listener, Node}, Reader};
                    large -> {Reader, Owner}
                end,
    Ref = make_ref(),
    erlang:send(To, {invite, self(), Ref, {Cargo, Wanted}, For}, [noconnect]) =:= ok
        orelse exit({shutdown, noconnection}),
    receive
        {invitation, Ref, {ok, Invitation}} -> use(Node, Invitation, Settings);
        {invitation, Ref, {error, Reason}} -> exit({shutdown, Reason});
        {'DOWN', _, process, _, _} -> exit({shutdown, closed})         % the lane or the trunk
    after ?INVITE ->
            exit({shutdown, not_invited})
    end.

%% The answer to a process at the peer that wants a connection, and waits in connect/3 over there.
%% The calling process serves other peers, too, and must not wait for this one. (If there is no
%% process left the peer asks again later.)
-spec invited(Connecting :: pid(), reference(),
              {ok, trunkline_listener:invitation()} | {error, term()}) -> ok.
invited(Connecting, Ref, Invitation) ->
    trunkline_process:send_apart(Connecting, {invitation, Ref, Invitation}).

%% Logs why a connection could not be made: the reason for which the process that called connect/3
%% has ended, or could not be started. That the nodes are not connected is no news.
-spec not_made(Reason :: term(), node(), Cargo :: batches | large) -> ok.
not_made({shutdown, noconnection}, _, _) ->
    ok;
not_made({shutdown, Reason}, Peer, Cargo) ->
    not_made(Reason, Peer, Cargo);
not_made(Reason, Peer, Cargo) ->
    trunkline_log:write(no_connection, #{peer => Peer, cargo => Cargo, reason => Reason}).

use(Node, #{address := Address, port := Port, transport := Name} = Invitation, Settings) ->
    %% Never plaintext beside TLS, whatever the peer says.
    Name =:= tcp andalso trunkline_tls:is_cluster_private()
        andalso exit({shutdown, plaintext_beside_tls}),
    Host = case Address of
               any -> address(Node);
               _ -> Address
           end,
    Start = erlang:monotonic_time(microsecond),
    Options = trunkline_socket:connect_options() ++ [inet6 || tuple_size(Host) =:= 8],
    case gen_tcp:connect(Host, Port, Options, ?CONNECT) of
        {ok, TcpSocket} ->
            IsFar = case Settings of
                        %% To connect took a round trip, at least.
                        #{is_far := unknown} ->
                            Took = erlang:monotonic_time(microsecond) - Start,
                            RoundTrip = min(Took, trunkline_socket:round_trip(TcpSocket)),
                            trunkline_distance:is_far(RoundTrip);
                        #{is_far := Known} -> Known
                    end,
            ok = trunkline_socket:tune(TcpSocket, tuning(IsFar, Settings)),
            Transport = trunkline_transport:module(Name),
            [_, HostName] = string:split(atom_to_list(Node), "@"),
            Socket = must(trunkline_transport:secure(Transport, {client, HostName}, TcpSocket,
                                                     ?CONNECT)),
            prove(Transport, Socket, Invitation),
            CongestionControl = trunkline_socket:congestion_control(TcpSocket),
            ok = trunkline_events:connection(#{peer => Node, cargo => maps:get(cargo, Settings),
                                               transport => Name,
                                               congestion_control => CongestionControl}),
            #{transport => Transport, socket => Socket, token => maps:get(token, Invitation),
              congestion_control => CongestionControl,
              must_beat => IsFar andalso CongestionControl =/= <<"bbr">>};
        {error, Reason} ->
            exit({shutdown, {connect, Host, Port, Reason}})
    end.

tuning(true, #{far := Name} = Settings) when Name =/= default ->
    tuning(false, Settings#{congestion_control => Name});
tuning(_, Settings) ->
    maps:with([timeout, cargo, congestion_control], Settings).

%% The address at which the distribution has found the node.
address(Node) ->
    case net_kernel:node_info(Node, address) of
        {ok, {net_address, {Address, _}, _, _, _}} when is_tuple(Address) -> Address;
        _ -> exit({shutdown, no_address})
    end.

prove(Transport, Socket, #{token := Token, secret := Secret}) ->
    Ours = trunkline_wire:nonce(),
    done(Transport:send(Socket, trunkline_wire:hello(Token, Ours))),
    <<Theirs:16/binary, Proof/binary>> =
        must(Transport:recv(Socket, trunkline_wire:welcome_bytes(), ?CONNECT)),
    trunkline_wire:is_proof(Proof, trunkline_wire:proof(listening, Secret, Ours, Theirs))
        orelse exit({shutdown, not_the_peer}),
    done(Transport:send(Socket, trunkline_wire:proof(connecting, Secret, Ours, Theirs))),
    %% The other side sends nothing. If it closes the connection, this process gets a message.
    done(trunkline_transport:watch(Transport, Socket)).

-spec send(connection(), iodata()) -> ok.
send(#{transport := Transport, socket := Socket}, Data) ->
    done(Transport:send(Socket, Data)).

must({ok, Value}) -> Value;
must({error, Reason}) -> exit({shutdown, Reason}).

done(ok) -> ok;
done({error, Reason}) -> exit({shutdown, Reason}).
