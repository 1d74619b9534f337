%% Carries fragments of large messages over a connection of its own: the
%% connecting side's end of it.
%%
%%     trunkline_bulk               carrier
%%       | <--------------- ready - |  connected, and both have proved who they are
%%       | -- fragments ----------> |
%%       | <---------------- sent - |  the connection has taken it; so many us
%%
%% It is linked to trunkline_bulk, and ends with the connection.
-module(trunkline_carrier).

-export([start_link/2, send/2]).

%% ms
-define(CONNECT, 5000).

-spec start_link(node(), trunkline_listener:invitation()) -> pid().
start_link(Node, Invitation) ->
    Bulk = self(),
    spawn_link(fun() -> connect(Bulk, Node, Invitation) end).

%% When `{sent, Carrier, Bytes, Microseconds}' has come, the next.
-spec send(pid(), [trunkline_fragments:fragment(), ...]) -> ok.
send(Carrier, Fragments) ->
    Carrier ! {carry, Fragments},
    ok.

connect(Bulk, Node, #{address := Address, port := Port, transport := Name} = Invitation) ->
    %% What has been agreed with the peer may be less than this node insists on.
    Name =:= tcp andalso trunkline_tls:is_cluster_private() andalso exit({shutdown, plaintext_beside_tls}),
    Host = case Address of
               any -> address(Node);
               _ -> Address
           end,
    case gen_tcp:connect(Host, Port, [binary, {active, false}, {packet, raw}, {nodelay, true}, {keepalive, true}
                                     | [inet6 || tuple_size(Host) =:= 8]], ?CONNECT) of
        {ok, TcpSocket} -> prove(Bulk, trunkline_transport:module(Name), TcpSocket, Invitation);
        {error, Reason} -> exit({shutdown, {connect, Host, Port, Reason}})
    end.

%% Where the distribution has found it.
address(Node) ->
    case net_kernel:node_info(Node, address) of
        {ok, {net_address, {Address, _}, _, _, _}} when is_tuple(Address) -> Address;
        _ -> exit({shutdown, no_address})
    end.

prove(Bulk, Transport, TcpSocket, #{token := Token, secret := Secret}) ->
    Ours = trunkline_wire:nonce(),
    {ok, Socket} = must(Transport:secure(client, TcpSocket, ?CONNECT)),
    ok = must(Transport:send(Socket, trunkline_wire:hello(Token, Ours))),
    {ok, <<Theirs:16/binary, Proof/binary>>} = must(Transport:recv(Socket, trunkline_wire:welcome_bytes(), ?CONNECT)),
    trunkline_wire:is_proof(Proof, trunkline_wire:proof(listening, Secret, Ours, Theirs))
        orelse exit({shutdown, not_the_peer}),
    ok = must(Transport:send(Socket, trunkline_wire:proof(connecting, Secret, Ours, Theirs))),
    ok = must(Transport:watch(Socket)),
    Bulk ! {ready, self()},
    loop(Bulk, Transport, Socket).

must({error, Reason}) -> exit({shutdown, Reason});
must(Ok) -> Ok.

loop(Bulk, Transport, Socket) ->
    receive
        {carry, Fragments} ->
            Start = erlang:monotonic_time(microsecond),
            ok = must(Transport:send(Socket, [trunkline_wire:frame(Id, Size, Offset, Length, Data)
                                              || {Id, Size, Offset, Length, Data} <- Fragments])),
            Bulk ! {sent, self(), lists:sum([Length || {_, _, _, Length, _} <- Fragments]),
                    erlang:monotonic_time(microsecond) - Start},
            loop(Bulk, Transport, Socket);
        _ ->
            %% The other side never says anything: it has closed the connection.
            exit({shutdown, closed})
    end.
