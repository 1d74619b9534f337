%% Listens for Trunkline's own connections.
%%
%% No port is open until there is an invitation. The process that will own a connection asks here
%% for an invitation, and passes it to the peer over the distribution. The port opens with the
%% first one.
%%
%%     owner            listener                         connecting peer
%%       | -- invite ----> |                                  |
%%       | <- invitation - | (port, token, secret)            |
%%       | ----------------------- by distribution ---------> |
%%       |                 |        handler <=== TCP ======== | hello, proof
%%       | <---------------------- socket |                   | (trunkline_wire)
%%
%% Any client can connect to a port. Until a connection has proved that it was invited, it has a
%% process of its own, so that the acceptor does not wait for it. It is allowed a few seconds and
%% 72 bytes, and there are at most HANDLERS such connections for each port. All others are closed,
%% counted, and logged from time to time.
-module(trunkline_listener).
-moduledoc false.
-behaviour(gen_server).

-export([start_link/1, invite/2, info/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).
-export([accept/1]).

-export_type([invitation/0]).

%% For one connection. `any': the address at which the distribution finds the node.
-type invitation() ::
        #{transport := trunkline_transport:name(),
          address := any | inet:ip_address(),
          port := inet:port_number(),
          token := trunkline_wire:token(),
          secret := trunkline_wire:secret()}.

-record(listener,
        {options :: trunkline_options:options(),
         sockets = #{} :: #{trunkline_transport:name() => gen_tcp:socket()},
         tokens :: ets:table(),                % {token(), secret(), Owner :: pid()}
         counters :: counters:counters_ref(),
         reported = 0 :: non_neg_integer()}).

-record(acceptor,
        {listening :: gen_tcp:socket(),
         door :: {trunkline_transport:name(), ets:table(), counters:counters_ref(),
                  ConnectionTimeout :: pos_integer()},
         handlers = [] :: [pid()]}).                      % some of them may have ended

%% ms
-define(HANDSHAKE, 5000).            % the whole of it
-define(VALID, 30_000).              % an invitation
-define(REPORT, 10_000).             % between two reports
-define(AGAIN, 100).                 % when accept fails, for example without free descriptors
-define(HANDLERS, 64).
-define(LOOK, 1000).                 % an acceptor that waits cannot see its messages

-spec start_link(trunkline_options:options()) -> gen_server:start_ret().
start_link(Options) ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, Options, []).

%% An invitation for a connection that Owner will own: it gets `{socket, Token, Transport,
%% Socket}'.
-spec invite({batches | large, auto | trunkline_transport:name()}, Owner :: pid()) ->
          {ok, invitation()} | {error, term()}.
invite(Wanted, Owner) ->
    try gen_server:call(?MODULE, {invite, Wanted, Owner})
    catch exit:_ -> {error, not_running}
    end.

%% Where it listens, and how many connections have been refused.
-spec info() -> #{ports := #{trunkline_transport:name() => inet:port_number()},
                  refused := non_neg_integer()}.
info() ->
    case persistent_term:get(?MODULE, none) of
        none ->
            #{ports => #{}, refused => 0};
        Counters ->
            Ports = [{Name, counters:get(Counters, cell(Name))}
                     || Name <- [tcp, tls], whereis(?MODULE) =/= undefined],
            #{ports => maps:from_list([Open || {_, Port} = Open <- Ports, Port > 0]),
              refused => counters:get(Counters, cell(refused))}
    end.

-spec init(trunkline_options:options()) -> {ok, #listener{}}.
init(Options) ->
    Counters = counters(),
    {ok, #listener{options = Options, tokens = ets:new(tokens, [public]), counters = Counters,
                   reported = counters:get(Counters, cell(refused))}}.

%% For info/0, and for the handlers. They outlive this process.
counters() ->
    case persistent_term:get(?MODULE, none) of
        none ->
            Counters = counters:new(3, [atomics]),
            ok = persistent_term:put(?MODULE, Counters),
            Counters;
        Counters ->
            lists:foreach(fun(Cell) -> counters:put(Counters, cell(Cell), 0) end, [tcp, tls]),
            Counters
    end.

cell(refused) -> 1;
cell(tcp) -> 2;                      % the port
cell(tls) -> 3.

-spec handle_call(term(), gen_server:from(), #listener{}) -> {reply, term(), #listener{}}.
handle_call({invite, Wanted, Owner}, _, S) ->
    {Invitation, S1} = invited(Wanted, Owner, S),
    {reply, Invitation, S1};
handle_call(_, _, S) ->
    {reply, {error, badarg}, S}.

-spec handle_cast(term(), #listener{}) -> {noreply, #listener{}}.
handle_cast(Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    {noreply, S}.

-spec handle_info(term(), #listener{}) -> {noreply, #listener{}}.
handle_info({invite, Connecting, Ref, Wanted, Owner}, S) ->
    %% From the peer (trunkline_connection).
    {Invitation, S1} = invited(Wanted, Owner, S),
    ok = trunkline_connection:invited(Connecting, Ref, Invitation),
    {noreply, S1};
handle_info({expired, Token}, #listener{tokens = Tokens} = S) ->
    true = ets:delete(Tokens, Token),
    {noreply, S};
handle_info(report, #listener{counters = Counters, reported = Reported} = S) ->
    _ = erlang:send_after(?REPORT, self(), report),
    case counters:get(Counters, cell(refused)) of
        Reported ->
            {noreply, S};
        Now ->
            ok = trunkline_log:write(strangers, #{connections => Now - Reported}),
            ok = trunkline_events:tell([listener, refused], #{count => Now - Reported}, #{}),
            {noreply, S#listener{reported = Now}}
    end;
handle_info(Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    {noreply, S}.

invited({Cargo, Wanted}, Owner, S) when is_pid(Owner), node(Owner) =:= node() ->
    case choose(Wanted, own(Cargo, S#listener.options)) of
        {ok, Transport} ->
            case listen(Transport, S) of
                {ok, S1} -> {{ok, invitation(Owner, Transport, S1)}, S1};
                {error, _} = Error -> {Error, S}
            end;
        {error, _} = Error ->
            {Error, S}
    end;
invited(_, _, S) ->
    {{error, badarg}, S}.

own(large, #{bulk_transport := Transport}) -> Transport;
own(batches, #{lane_transport := Transport}) -> Transport;
own(_, _) -> dist.

%% There is a transport only if both sides want one, and it is not less private than either wants.
choose(_, dist) -> {error, not_wanted};
choose(auto, tls) -> trunkline_transport:choose(tls);
choose(tcp, tls) -> {error, tls_wanted};
choose(Wanted, _) -> trunkline_transport:choose(Wanted).

invitation(Owner, Transport, #listener{tokens = Tokens, sockets = Sockets, options = Options}) ->
    Token = trunkline_wire:token(),
    Secret = trunkline_wire:secret(),
    true = ets:insert(Tokens, {Token, Secret, Owner}),
    _ = erlang:send_after(?VALID, self(), {expired, Token}),
    {Address, Port} = advertised(Options, maps:get(Transport, Sockets)),
    #{transport => Transport, address => Address, port => Port, token => Token, secret => Secret}.

%% Where the peer should connect. Something between the nodes may forward connections from there.
advertised(#{advertise_address := Address, advertise_port := Port} = Options, Socket) ->
    {case Address of
         undefined -> known_as(address(Options));
         _ -> Address
     end,
     case Port of
         undefined -> port(Socket);
         _ -> Port
     end}.

%% The address where the distribution listens, unless the option says another one.
address(#{listen_address := undefined}) -> trunkline_socket:distribution_address();
address(#{listen_address := Address}) -> Address.

%% The address that stands for all addresses is not one to connect to.
known_as({0, 0, 0, 0}) -> any;
known_as({0, 0, 0, 0, 0, 0, 0, 0}) -> any;
known_as(Address) -> Address.

port(Socket) ->
    {ok, Port} = inet:port(Socket),
    Port.

%% --- listening ------------------------------------------------------------------

listen(Transport, #listener{sockets = Sockets} = S) when is_map_key(Transport, Sockets) ->
    {ok, S};
listen(Transport, #listener{options = #{listen_ports := {Lowest, Highest}} = Options} = S) ->
    Address = address(Options),
    At = [inet6 || is_ipv6(Address)] ++ [{ip, Address} || Address =/= any],
    case listen_on(Lowest, Highest, At) of
        {ok, Socket} ->
            #{connection_timeout := Timeout} = Options,
            Door = {Transport, S#listener.tokens, S#listener.counters, Timeout},
            listen(Socket, Door, Transport, S);
        {error, Reason} ->
            {error, {listen, Reason}}
    end.

listen(Socket, Door, Transport, #listener{sockets = Sockets} = S) ->
    Accept = fun() -> accept(#acceptor{listening = Socket, door = Door}) end,
    case trunkline_process:start(fun() -> spawn_link(Accept) end) of
        {ok, _} ->
            counters:put(S#listener.counters, cell(Transport), port(Socket)),
            map_size(Sockets) =:= 0 andalso erlang:send_after(?REPORT, self(), report),
            {ok, S#listener{sockets = Sockets#{Transport => Socket}}};
        {error, system_limit} ->
            ok = gen_tcp:close(Socket),
            {error, {listen, system_limit}}
    end.

is_ipv6(any) -> lists:prefix("inet6", trunkline_socket:protocol());
is_ipv6(Address) -> tuple_size(Address) =:= 8.

listen_on(Port, Highest, Options) ->
    case gen_tcp:listen(Port, trunkline_socket:listen_options() ++ [{backlog, 128} | Options]) of
        {ok, Socket} -> {ok, Socket};
        {error, _} when Port < Highest -> listen_on(Port + 1, Highest, Options);
        {error, _} = Error -> Error
    end.

-spec accept(#acceptor{}) -> no_return().
accept(#acceptor{listening = Listening} = S) ->
    receive
        Other ->
            trunkline_process:other(Other, fun ?MODULE:accept/1, S)
    after 0 ->
            case gen_tcp:accept(Listening, ?LOOK) of
                {ok, Socket} ->
                    %% (In code that has been loaded meanwhile.)
                    ?MODULE:accept(accepted(Socket, S));
                {error, closed} ->
                    exit(closed);
                {error, timeout} ->
                    ?MODULE:accept(S);
                {error, _} ->
                    receive after ?AGAIN -> accept(S) end
            end
    end.

accepted(Socket, #acceptor{door = {_, _, Counters, _} = Door, handlers = Handlers} = S) ->
    Alive = lists:filter(fun is_process_alive/1, Handlers),
    case length(Alive) < ?HANDLERS andalso handler(Door) of
        {ok, Handler} ->
            _ = gen_tcp:controlling_process(Socket, Handler),
            Handler ! {yours, Socket},
            S#acceptor{handlers = [Handler | Alive]};
        _ ->
            counters:add(Counters, cell(refused), 1),
            ok = gen_tcp:close(Socket),
            S#acceptor{handlers = Alive}
    end.

%% The node may have no process left.
handler(Door) ->
    Acceptor = self(),
    trunkline_process:start(fun() -> spawn(fun() -> handle(Acceptor, Door) end) end).

%% --- one connection, until it has an owner ------------------------------------------

handle(Acceptor, {Transport, Tokens, Counters, Timeout}) ->
    Ref = monitor(process, Acceptor),
    receive
        {'DOWN', Ref, process, _, _} ->
            ok;                              % and the socket with it
        {yours, Socket} ->
            Deadline = trunkline_deadline:in(?HANDSHAKE),
            try
                ok = trunkline_socket:tune(Socket, #{timeout => Timeout}),
                ok = handshake(trunkline_transport:module(Transport), Socket, Tokens, Deadline)
            catch
                _:_ -> counters:add(Counters, cell(refused), 1)
            end
    end.

%% Anything that is wrong ends this process, and the socket with it: the socket gets
%% another owner only at the very end.
handshake(Transport, TcpSocket, Tokens, Deadline) ->
    {ok, Socket} = trunkline_transport:secure(Transport, server, TcpSocket,
                                              trunkline_deadline:left(Deadline)),
    {ok, Hello} =
        Transport:recv(Socket, trunkline_wire:hello_bytes(), trunkline_deadline:left(Deadline)),
    {ok, Token, Theirs} = trunkline_wire:parse_hello(Hello),
    [{_, Secret, Owner}] = ets:take(Tokens, Token),
    %% A client that knows the token is the peer, unless its proof is wrong. The peer may break
    %% off, for example on a loaded machine, and the owner may be gone with its session.
    Ours = trunkline_wire:nonce(),
    [OurProof, TheirProof] = [trunkline_wire:proof(Side, Secret, Theirs, Ours)
                              || Side <- [listening, connecting]],
    case Transport:send(Socket, [Ours, OurProof]) =:= ok
        andalso Transport:recv(Socket, trunkline_wire:proof_bytes(),
                               trunkline_deadline:left(Deadline)) of
        {ok, Proof} ->
            true = trunkline_wire:is_proof(Proof, TheirProof),
            Transport:controlling_process(Socket, Owner) =:= ok
                andalso (Owner ! {socket, Token, Transport, Socket}),
            ok;
        _ ->
            ok
    end.
