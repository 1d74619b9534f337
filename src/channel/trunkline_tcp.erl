%% Plain TCP, as a transport.
-module(trunkline_tcp).
-moduledoc false.
-behaviour(trunkline_transport).

-export([secure/3, give/2, send/2, recv/3, frames/3, more/2, watch/1, event/1, close/1]).

-spec secure({client, string()} | server, gen_tcp:socket(), timeout()) -> {ok, gen_tcp:socket()}.
secure(_, Socket, _) -> {ok, Socket}.

-spec give(gen_tcp:socket(), pid()) -> ok | {error, term()}.
give(Socket, Pid) -> gen_tcp:controlling_process(Socket, Pid).

-spec send(gen_tcp:socket(), iodata()) -> ok | {error, term()}.
send(Socket, Data) -> gen_tcp:send(Socket, Data).

-spec recv(gen_tcp:socket(), non_neg_integer(), timeout()) -> {ok, binary()} | {error, term()}.
recv(Socket, Bytes, Timeout) -> gen_tcp:recv(Socket, Bytes, Timeout).

-spec frames(gen_tcp:socket(), pos_integer(), pos_integer()) -> ok | {error, term()}.
frames(Socket, Longest, Frames) ->
    inet:setopts(Socket, [{packet, 4}, {packet_size, Longest}, {active, Frames}]).

-spec more(gen_tcp:socket(), pos_integer()) -> ok | {error, term()}.
more(Socket, Frames) -> inet:setopts(Socket, [{active, Frames}]).

-spec watch(gen_tcp:socket()) -> ok | {error, term()}.
watch(Socket) -> inet:setopts(Socket, [{active, once}]).

-spec event(term()) -> trunkline_transport:event() | unknown.
event({tcp, Socket, Frame}) -> {frame, ?MODULE, Socket, Frame};
event({tcp_passive, Socket}) -> {passive, ?MODULE, Socket};
event({tcp_closed, Socket}) -> {closed, Socket};
event({tcp_error, Socket, _}) -> {closed, Socket};
event(_) -> unknown.

-spec close(gen_tcp:socket()) -> ok.
close(Socket) -> gen_tcp:close(Socket).
