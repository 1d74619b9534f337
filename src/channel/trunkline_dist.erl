%% The distribution's connection, as a channel: always ready, until the session ends. A send may
%% suspend the caller when the connection is busy.
-module(trunkline_dist).
-moduledoc false.
-behaviour(trunkline_channel).

-export([open/1, send/3, close/1]).
-export([protocol/0]).

-spec open(trunkline_channel:settings()) -> {ok, {trunkline_channel:channel(), none}}.
open(#{inlet := Inlet}) -> {ok, {Inlet, none}}.

%% Without a connection this sends nothing: the batch stays unconfirmed, and the link is about to
%% hear that the node is gone.
-spec send(trunkline_channel:channel(), Batch, tell | silent) -> ok
              when Batch :: {batch, trunkline_channel:batch()} | {frame, trunkline_channel:frame()}.
send(Inlet, {batch, {Serial, Ack, Charge, Entries}}, _) ->
    _ = erlang:send(Inlet, {batch, Serial, Ack, Charge, Entries}, [noconnect]),
    ok;
send(Inlet, {frame, {_, Frame}}, _) ->
    _ = erlang:send(Inlet, {frame, iolist_to_binary(Frame)}, [noconnect]),
    ok.

-spec close(trunkline_channel:channel()) -> ok.
close(_) -> ok.

%% The protocol of the distribution, as `-proto_dist' names it.
-spec protocol() -> string().
protocol() ->
    case init:get_argument(proto_dist) of
        {ok, Protocols} -> lists:last(lists:last(Protocols));
        error -> "inet_tcp"
    end.
