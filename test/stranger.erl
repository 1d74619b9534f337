%% The connecting side of a connection for large messages, played by the test:
%% rightly, or not. It uses nothing of Trunkline but the bytes (trunkline_wire).
%%
%% A connection is {Module, Socket}, of gen_tcp or ssl.
-module(stranger).

-export([connect/1, connect/2, secure/2, close/1, reset/1, say/2, hear/2, is_closed/1, is_closed/2,
         await_closed/1]).
-export([hello/2, welcome/1, prove/3, admitted/2]).
-export([invitation/1, invitation/2, owned/1]).

-define(LONG, 30_000).

connect(Port) -> connect({127, 0, 0, 1}, Port).

connect(Address, Port) ->
    case gen_tcp:connect(Address, Port, [binary, {active, false}, {nodelay, true}], ?LONG) of
        {ok, Socket} -> {gen_tcp, Socket};
        {error, _} = Error -> Error
    end.

secure({gen_tcp, Socket}, Options) ->
    case ssl:connect(Socket, [{active, false}, {log_level, none} | Options], ?LONG) of
        {ok, Secure} -> {ssl, Secure};
        {error, _} = Error -> Error
    end.

close({Module, Socket}) -> Module:close(Socket).

%% Without a farewell.
reset({gen_tcp, Socket}) ->
    ok = inet:setopts(Socket, [{linger, {true, 0}}]),
    gen_tcp:close(Socket).

%% It does not matter here whether anybody listens any more.
say({Module, Socket}, Data) ->
    _ = Module:send(Socket, Data),
    ok.

hear({Module, Socket}, Bytes) -> Module:recv(Socket, Bytes, ?LONG).

%% The other side closes it, and says nothing before.
is_closed(Connection) -> is_closed(Connection, ?LONG).

is_closed({Module, Socket} = Connection, Timeout) ->
    case Module:recv(Socket, 0, Timeout) of
        {error, timeout} -> {false, timeout};
        {error, _} -> ok = close(Connection), true;
        {ok, Data} -> {false, Data}
    end.

%% Whatever it says before.
await_closed(Connection) ->
    case is_closed(Connection) of
        true -> ok;
        {false, Data} when is_binary(Data) -> await_closed(Connection);
        {false, timeout} -> {error, timeout}
    end.

%% --- the handshake ----------------------------------------------------------------

%% Answers our nonce.
hello(Connection, Token) ->
    Ours = crypto:strong_rand_bytes(16),
    ok = say(Connection, <<"TRUNKLN1", Token/binary, Ours/binary>>),
    Ours.

welcome(Connection) ->
    case hear(Connection, 48) of
        {ok, <<Theirs:16/binary, Proof:32/binary>>} -> {ok, Theirs, Proof};
        {error, _} = Error -> Error
    end.

prove(Connection, Secret, {Ours, Theirs}) ->
    say(Connection, crypto:mac(hmac, sha256, Secret, ["connecting", Ours, Theirs])).

%% All of it, with a right invitation.
admitted(Connection, #{token := Token, secret := Secret}) ->
    Ours = hello(Connection, Token),
    {ok, Theirs, Proof} = welcome(Connection),
    Proof = crypto:mac(hmac, sha256, Secret, ["listening", Ours, Theirs]),
    prove(Connection, Secret, {Ours, Theirs}).

%% --- at the node ------------------------------------------------------------------

%% For a connection to this node that a process of the test's own will get:
%% answers the invitation and that process.
invitation(Node) -> invitation(Node, auto).

invitation(Node, Wanted) ->
    cluster:call(Node, fun() ->
                               Owner = spawn(fun() -> own([]) end),
                               {ok, Invitation} = trunkline_listener:invite({large, Wanted}, Owner),
                               {Invitation, Owner}
                       end).

own(Sockets) ->
    receive
        {socket, _, Transport, Socket} -> own([{Transport, Socket} | Sockets]);
        {owned, From} -> From ! {self(), length(Sockets)}, own(Sockets);
        stop -> ok
    end.

%% How many connections it has got.
owned(Owner) ->
    Owner ! {owned, self()},
    receive {Owner, N} -> N end.
