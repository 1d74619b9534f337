%% The distribution's connection, as the way of a lane's batches. It is always ready, until the
%% session ends. A send may suspend the caller when the connection is busy.
-module(trunkline_dist).
-moduledoc false.

-export([send_batch/2, send_frame/2, protocol/0]).

-export_type([batch/0]).

%% A batch's number in its lane, how to acknowledge it, what it was charged, and its messages.
-type batch() :: {Serial :: pos_integer(), Ack :: atom(), Charge :: non_neg_integer(),
                  Entries :: [term()]}.

%% Without a connection this sends nothing: the batch stays unconfirmed, and the link is about to
%% hear that the node is gone.
-spec send_batch(Inlet :: pid(), batch()) -> ok.
send_batch(Inlet, {Serial, Ack, Charge, Entries}) ->
    trunkline_process:send_connected(Inlet, {batch, Serial, Ack, Charge, Entries}).

%% The same for a batch that was encoded for a connection.
-spec send_frame(Inlet :: pid(), trunkline_writer:frame()) -> ok.
send_frame(Inlet, {_, Frame}) ->
    trunkline_process:send_connected(Inlet, {frame, iolist_to_binary(Frame)}).

%% The protocol of the distribution, as `-proto_dist' names it.
-spec protocol() -> string().
protocol() ->
    case init:get_argument(proto_dist) of
        {ok, Protocols} -> lists:last(lists:last(Protocols));
        error -> "inet_tcp"
    end.
