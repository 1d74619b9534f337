%% The connecting side's end of a connection to a peer: makes it, and writes frames
%% to it.
%%
%%     owner                        carrier                  the peer's dock
%%       |                            | -- invite ------------> |
%%       |                            | <--------- invitation - |
%%       |                            | ══ connects, proves ══> (trunkline_listener)
%%       | <----------- ready, token -|
%%       | -- frames ---------------> | ════════ frames ══════> (trunkline_receiver)
%%       | <------------------ sent - |  the connection has taken them; so many us
%%
%% Its owner is trunkline_bulk, or a lane (which is not told of `sent': it has a
%% window). It ends with its owner, and with the connection.
-module(trunkline_carrier).

-export([start/3, send/2]).

-export_type([owner/0, frame/0]).

-type owner() :: bulk | {lane, Inlet :: pid()}.        % the inlet gets what the lane sends

%% A fragment, or a lane's batch.
-type frame() :: trunkline_fragments:fragment()
               | {{Lane :: pos_integer(), 0}, Size :: non_neg_integer(), 0, Length :: non_neg_integer(), iodata()}.

%% ms
-define(CONNECT, 5000).

%% The calling process is the owner, and monitors the carrier. The reason of its end
%% says why there is no connection.
-spec start(owner(), Dock :: pid(), auto | tcp | tls) -> {pid(), reference()}.
start(Kind, Dock, Wanted) ->
    Owner = self(),
    spawn_monitor(fun() -> start(Owner, Kind, Dock, Wanted) end).

start(Owner, Kind, Dock, Wanted) ->
    _ = monitor(process, Owner),
    Ref = monitor(process, Dock),
    For = case Kind of
              bulk -> {bulk, Owner};
              {lane, _} -> Kind
          end,
    _ = erlang:send(Dock, {invite, self(), Ref, Wanted, For}, [noconnect]),
    receive
        {invitation, Ref, {ok, Invitation}} -> connect(Owner, Kind, node(Dock), Invitation);
        {invitation, Ref, {error, Reason}} -> exit({shutdown, Reason});
        {'DOWN', _, process, _, Reason} -> exit({shutdown, Reason})
    after ?CONNECT ->
            exit({shutdown, not_invited})
    end.

%% When `{sent, Carrier, Bytes, Microseconds}' has come, trunkline_bulk may give it
%% the next.
-spec send(pid(), [frame(), ...]) -> ok.
send(Carrier, Fragments) ->
    Carrier ! {carry, Fragments},
    ok.

connect(Owner, Kind, Node, #{address := Address, port := Port, transport := Name} = Invitation) ->
    %% Whatever the peer says.
    Name =:= tcp andalso trunkline_tls:is_cluster_private() andalso exit({shutdown, plaintext_beside_tls}),
    Host = case Address of
               any -> address(Node);
               _ -> Address
           end,
    case gen_tcp:connect(Host, Port, [binary, {active, false}, {packet, raw}, {nodelay, true}, {keepalive, true}
                                     | [inet6 || tuple_size(Host) =:= 8]], ?CONNECT) of
        {ok, TcpSocket} ->
            Transport = trunkline_transport:module(Name),
            [_, HostName] = string:split(atom_to_list(Node), "@"),
            prove(Owner, Kind, Transport, must(Transport:secure({client, HostName}, TcpSocket, ?CONNECT)), Invitation);
        {error, Reason} -> exit({shutdown, {connect, Host, Port, Reason}})
    end.

%% Where the distribution has found it.
address(Node) ->
    case net_kernel:node_info(Node, address) of
        {ok, {net_address, {Address, _}, _, _, _}} when is_tuple(Address) -> Address;
        _ -> exit({shutdown, no_address})
    end.

prove(Owner, Kind, Transport, {ok, Socket}, #{token := Token, secret := Secret}) ->
    Ours = trunkline_wire:nonce(),
    ok = must(Transport:send(Socket, trunkline_wire:hello(Token, Ours))),
    {ok, <<Theirs:16/binary, Proof/binary>>} = must(Transport:recv(Socket, trunkline_wire:welcome_bytes(), ?CONNECT)),
    trunkline_wire:is_proof(Proof, trunkline_wire:proof(listening, Secret, Ours, Theirs))
        orelse exit({shutdown, not_the_peer}),
    ok = must(Transport:send(Socket, trunkline_wire:proof(connecting, Secret, Ours, Theirs))),
    ok = must(Transport:watch(Socket)),
    Owner ! {ready, self(), Token},
    loop(Owner, Kind, Transport, Socket).

must({error, Reason}) -> exit({shutdown, Reason});
must(Ok) -> Ok.

loop(Owner, Kind, Transport, Socket) ->
    receive
        {carry, Fragments} ->
            Start = erlang:monotonic_time(microsecond),
            ok = must(Transport:send(Socket, [trunkline_wire:frame(Id, Size, Offset, Length, Data)
                                              || {Id, Size, Offset, Length, Data} <- Fragments])),
            taken(Kind, Owner, Fragments, Start),
            loop(Owner, Kind, Transport, Socket);
        _ ->
            %% The owner or the dock has ended, or the other side has closed the
            %% connection: it never says anything.
            exit({shutdown, closed})
    end.

taken({lane, _}, _, _, _) ->
    ok;
taken(bulk, Owner, Fragments, Start) ->
    Owner ! {sent, self(), trunkline_fragments:bytes(Fragments), erlang:monotonic_time(microsecond) - Start},
    %% They may have been the last ones for long, and each, however small, refers to
    %% the whole binary that it is of.
    true = garbage_collect().
