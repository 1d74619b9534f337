%% What Trunkline's own connections are made of: sockets of gen_tcp, or of ssl.
%%
%% A connection begins as plain TCP on both sides; secure/4 turns it into what the transport
%% promises. The transport is the module of OTP that has the functions for such a socket, as far as
%% both have the same: controlling_process/2, send/2, recv/3. All functions may block, so only
%% processes that have nothing else to do call them.
-module(trunkline_transport).
-moduledoc false.

-export([prepare/1, module/1, choose/1, secure/4, frames/2, more/2, watch/2, event/1, close/2]).

-export_type([name/0, transport/0, socket/0, event/0]).

-type name() :: tcp | tls.
-type transport() :: gen_tcp | ssl.
-type socket() :: gen_tcp:socket() | ssl:sslsocket().
-type reason() :: term().
-type event() :: {frame, transport(), socket(), binary()}
               | {passive, transport(), socket()}    % the owner should ask for more
               | {closed, socket()}.

%% Frames that are read from a connection before its owner asks for more. The windows bound what is
%% read; and a socket that is read without a break costs much less: the runtime system then polls it
%% within a scheduler, and not in a separate thread (see docs/lab/tried.md).
-define(AT_A_TIME, 1000).
%% Bytes of a frame: a batch with the largest options, and one message beyond it.
-define(LONGEST, (1 bsl 30)).

%% Starts what connections may need, and nothing else, when Trunkline starts. The first connection
%% could be too late: the application controller does not answer while it stops Trunkline, whose
%% last messages may need a connection.
-spec prepare(trunkline_options:options()) -> ok | {error, {ssl, reason()}}.
prepare(#{bulk_transport := dist, lane_transport := dist}) ->
    ok;
prepare(_) ->
    trunkline_tls:prepare().

-spec module(name()) -> transport().
module(tcp) -> gen_tcp;
module(tls) -> ssl.

%% A client knows the name of the host that it wants to talk to. The timeout is in ms.
-spec secure(transport(), {client, Host :: string()} | server, gen_tcp:socket(), timeout()) ->
          {ok, socket()} | {error, reason()}.
secure(gen_tcp, _, Socket, _) -> {ok, Socket};
secure(ssl, Side, Socket, Timeout) -> trunkline_tls:secure(Side, Socket, Timeout).

-spec close(transport(), socket()) -> ok.
close(gen_tcp, Socket) -> gen_tcp:close(Socket);
close(ssl, Socket) -> trunkline_tls:close(Socket).

%% From here on the owner gets each frame as a message: what stands behind a length of 32 bits. Now
%% and then it gets `passive', and should ask for more/2.
-spec frames(transport(), socket()) -> ok | {error, reason()}.
frames(Transport, Socket) ->
    setopts(Transport, Socket,
            [{packet, 4}, {packet_size, ?LONGEST}, {active, ?AT_A_TIME}]).

-spec more(transport(), socket()) -> ok | {error, reason()}.
more(Transport, Socket) -> setopts(Transport, Socket, [{active, ?AT_A_TIME}]).

%% If the other side closes the connection, or sends anything, the owner gets one message.
-spec watch(transport(), socket()) -> ok | {error, reason()}.
watch(Transport, Socket) -> setopts(Transport, Socket, [{active, once}]).

setopts(gen_tcp, Socket, Options) -> inet:setopts(Socket, Options);
setopts(ssl, Socket, Options) -> ssl:setopts(Socket, Options).

%% What a message to the owner of a socket means. The socket in it is the one that the owner has.
-spec event(term()) -> event() | unknown.
event({tcp, Socket, Frame}) -> {frame, gen_tcp, Socket, Frame};
event({ssl, Socket, Frame}) -> {frame, ssl, Socket, Frame};
event({tcp_passive, Socket}) -> {passive, gen_tcp, Socket};
event({ssl_passive, Socket}) -> {passive, ssl, Socket};
event({How, Socket}) when How =:= tcp_closed; How =:= ssl_closed -> {closed, Socket};
event({How, Socket, _}) when How =:= tcp_error; How =:= ssl_error -> {closed, Socket};
event(_) -> unknown.

%% The transport of a node's connections; never less private than the cluster's.
-spec choose(auto | tcp | tls) -> {ok, name()} | {error, plaintext_beside_tls | {tls, reason()}}.
choose(Wanted) ->
    case {Wanted, trunkline_tls:is_cluster_private()} of
        {tcp, true} -> {error, plaintext_beside_tls};
        {auto, false} -> {ok, tcp};
        {tcp, false} -> {ok, tcp};
        {_, _} ->
            case trunkline_tls:usable() of
                ok -> {ok, tls};
                {error, Reason} -> {error, {tls, Reason}}
            end
    end.
