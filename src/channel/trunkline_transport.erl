%% The behaviour of a transport: what Trunkline's own connections are made of.
%%
%% A connection begins as plain TCP on both sides; secure/3 turns it into what
%% the transport promises. All functions may block, so only processes that have
%% nothing else to do call them.
-module(trunkline_transport).
-moduledoc false.

-export([prepare/1, module/1, choose/1, event/1]).

-export_type([name/0, socket/0, event/0]).

-type name() :: tcp | tls.
-type socket() :: term().
-type reason() :: term().
-type event() :: {frame, module(), socket(), binary()}
               | {passive, module(), socket()}       % the owner should ask for more
               | {closed, socket()}.

%% From here on only the transport's functions are used. A client knows the name of
%% the host that it wants to talk to. The timeout is in ms.
-callback secure({client, Host :: string()} | server, gen_tcp:socket(), timeout()) ->
    {ok, socket()} | {error, reason()}.
%% Another process becomes the owner: the connection ends with that process.
-callback give(socket(), pid()) -> ok | {error, reason()}.
-callback send(socket(), iodata()) -> ok | {error, reason()}.
%% Reads exactly that many bytes.
-callback recv(socket(), Bytes :: pos_integer(), timeout()) -> {ok, binary()} | {error, reason()}.
%% From here on the owner gets each frame as a message: what stands behind a length of 32 bits,
%% which is at most Longest. After that many frames it gets `passive', and should ask for more.
-callback frames(socket(), Longest :: pos_integer(), Frames :: pos_integer()) ->
    ok | {error, reason()}.
-callback more(socket(), Frames :: pos_integer()) -> ok | {error, reason()}.
%% If the other side closes the connection, or sends anything, the owner gets one message.
-callback watch(socket()) -> ok | {error, reason()}.
%% What such a message means. The socket in it is the one that the owner has.
-callback event(Message :: term()) -> event() | unknown.
-callback close(socket()) -> ok.

%% Starts what connections may need, and nothing else, when Trunkline starts. The first connection
%% could be too late: the application controller does not answer while it stops Trunkline, whose
%% last messages may need a connection.
-spec prepare(trunkline_options:options()) -> ok | {error, {ssl, reason()}}.
prepare(#{bulk_transport := dist, lane_transport := dist}) ->
    ok;
prepare(_) ->
    trunkline_tls:prepare().

-spec module(name()) -> module().
module(tcp) -> trunkline_tcp;
module(tls) -> trunkline_tls.

%% What a message to the owner of a socket means.
-spec event(term()) -> event() | unknown.
event(Message) ->
    case trunkline_tcp:event(Message) of
        unknown -> trunkline_tls:event(Message);
        Event -> Event
    end.

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
