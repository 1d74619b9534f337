%% The behaviour of a channel: what carries batches from a lane to its inlet. (This folder has the
%% channels, the connections that they and large messages use, and the port that accepts these.)
%%
%%     lane                      channel                       inlet
%%       | -- open -------------> |                              |
%%       | <-------------- ready - |                              |
%%       | -- send, batch 17 ---> | ═════════ batch 17 ════════> |
%%       | <------------ written - |                              |
%%       | <------------- broken - |
%%
%% Batches are numbered. A channel promises little: what it delivers is whole, and unchanged. It
%% may break, and then it is not known which of its last batches have arrived. The lane sends them
%% again by another channel, and the inlet drops those that it has had (trunkline_outbox).
%%
%% There are two kinds. trunkline_dist is the connection of the distribution: it is always ready,
%% needs no process, takes batches as terms, and breaks with the session. trunkline_writer is a
%% connection of the lane's own. It takes batches as frames (trunkline_dictionary), and is made of
%% a transport (trunkline_transport), TCP or TLS.
%%
%% A channel sends to the process that has opened it
%%
%%     {channel, Channel, {ready, CongestionControl}}     batches may come
%%     {channel, Channel, {written, Bytes}}               so much has left, in all
%%     {'DOWN', Monitor, process, Channel, Reason}        it is broken, or was never ready
%%
%% and to the inlet
%%
%%     {batch, Serial, Ack, Charge, Entries}     a batch, as a term
%%     {frame, Frame}                            a batch, as a frame, by distribution
%%     what trunkline_transport:event/1 knows    the same, by a connection
-module(trunkline_channel).
-moduledoc false.

-export_type([channel/0, settings/0, batch/0, frame/0]).

-type channel() :: pid().
-type settings() ::
        #{inlet := pid(),
          transport => auto | tcp | tls,
          timeout => pos_integer(),                  % ms, until a dead path is noticed
          is_far => boolean() | unknown,
          far => default | atom()}.                  % the congestion control, if the peer is far
%% A batch's number in its lane, how to acknowledge it, what it was charged, and its messages.
-type batch() :: {Serial :: pos_integer(), Ack :: atom(), Charge :: non_neg_integer(),
                  Entries :: [term()]}.
%% The same, encoded, and how many bytes that is. It can be sent by any channel, and more than
%% once.
-type frame() :: {Bytes :: pos_integer(), iodata()}.

%% The calling process owns the channel, which ends with that process. The monitor is the caller's.
-callback open(settings()) ->
    {ok, {channel(), Monitor :: reference() | none}} | {error, system_limit}.
%% `tell': the owner is told when that has been `written'. `silent': it need not be.
-callback send(channel(), {batch, batch()} | {frame, frame()}, tell | silent) -> ok.
-callback close(channel()) -> ok.
