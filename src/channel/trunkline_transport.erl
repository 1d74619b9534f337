%% What a connection of Trunkline's own is made of.
%%
%% A connection begins as plain TCP on both sides; secure/3 makes of it what the
%% transport promises. All functions may block, hence only processes call them
%% that have nothing else to do.
-module(trunkline_transport).
-moduledoc false.

-export([prepare/1, module/1, choose/1, event/1]).

-export_type([name/0, socket/0, event/0]).

-type name() :: tcp | tls.
-type socket() :: term().
-type reason() :: term().
-type event() :: {frame, module(), socket(), binary()}
               | {passive, module(), socket()}       % it should be asked for more
               | {closed, socket()}.

%% From here on only the transport's functions are used. A client knows the name of
%% the host that it wants to talk to. The time is in ms.
-callback secure({client, Host :: string()} | server, gen_tcp:socket(), timeout()) ->
    {ok, socket()} | {error, reason()}.
%% Another process becomes the owner: the connection ends with it.
-callback give(socket(), pid()) -> ok | {error, reason()}.
-callback send(socket(), iodata()) -> ok | {error, reason()}.
%% Exactly so many bytes.
-callback recv(socket(), Bytes :: pos_integer(), timeout()) -> {ok, binary()} | {error, reason()}.
%% From here on the owner gets what stands behind each length (32 bits), which is at most so
%% much, as a message. After so many of them comes another message, and it should ask for more.
-callback frames(socket(), Longest :: pos_integer(), Frames :: pos_integer()) ->
    ok | {error, reason()}.
-callback more(socket(), Frames :: pos_integer()) -> ok | {error, reason()}.
%% If the other side closes it, or says anything, the owner gets one message.
-callback watch(socket()) -> ok | {error, reason()}.
%% What such a message means. The socket in it is the one that the owner has.
-callback event(Message :: term()) -> event() | unknown.
-callback close(socket()) -> ok.

%% When Trunkline starts: what its connections may need is started, and nothing else. The first
%% connection could be too late, since the application controller does not answer while it stops
%% Trunkline, whose last messages may need one.
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
