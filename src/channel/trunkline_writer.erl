%% A connection of Trunkline's own: makes it, and writes to it.
%%
%%     owner              writer                       the peer
%%       | -- open ------> |                              |
%%       |                 | -- invite -----------------> | trunkline_listener, or the dock
%%       |                 | <-------------- invitation - |
%%       |                 | ══ connects, proves ═══════> |
%%       | <------- ready - |                              |
%%       | -- frames ----> |                              |
%%       | -- frames ----> | ═══════ both at once ══════> | an inlet, or the dock
%%       | <----- written - |                              |
%%
%% Its owner is a lane, whose frames are batches, or a trunk (as one of its carriers), whose frames
%% are fragments of large messages. The owner goes on while the connection takes data. Frames that
%% come meanwhile wait here, and leave with one system call. The owner sees to it that not much
%% waits here.
%%
%% A writer ends with its owner, and with the connection.
%%
%% TCP goes back to slow start, with ten packets, when a connection has been idle for longer than
%% its retransmission timeout, unless its congestion control is BBR. To a far peer that costs time
%% after every pause. So a connection that `must_beat' sends heartbeats for a while after its last
%% use.
-module(trunkline_writer).
-moduledoc false.

-export([open/2, send/3, close/1]).
-export([loop/1]).

-export_type([frame/0]).

%% Something encoded, and how many bytes that is to the owner.
-type frame() :: {Bytes :: pos_integer(), iodata()}.

%% Bytes that are written at once.
-define(AT_ONCE, 262144).
%% A writer that has had nothing to do for that many ms collects its garbage.
-define(QUIET, 1000).
%% ms: less than the shortest retransmission timeout, which is 200 (Linux).
-define(HEARTBEAT, 100).
-define(HEARTBEATS, 100).              % for ten seconds

-record(writer,
        {owner :: pid(),
         cargo :: batches | large,
         connection :: trunkline_connection:connection(),
         written = 0 :: non_neg_integer(),                 % bytes
         beats = 0 :: non_neg_integer(),                   % how many more heartbeats
         quiet = true :: boolean()}).

%% A writer for the calling process, which gets
%%
%%     {channel, Writer, {ready, Token, CongestionControl}}   frames may come
%%     {channel, Writer, {written, Bytes, Microseconds}}      so much has left, in all; and how long
%%                                                            the connection took for the last part
%%     {'DOWN', Monitor, process, Writer, Reason}             it is broken, or was never ready
%%
%% Reader is the process at the peer that reads the frames.
-spec open(Reader :: pid(), trunkline_connection:settings()) ->
          {ok, {pid(), Monitor :: reference()}} | {error, system_limit}.
open(Reader, Settings) ->
    Owner = self(),
    Start = fun() -> init(Owner, Reader, Settings) end,
    trunkline_process:start(fun() -> spawn_opt(Start, [monitor, {fullsweep_after, 10}]) end).

%% `tell': the owner is told when that has been `written'. `silent': it need not be.
-spec send(pid(), frame(), tell | silent) -> ok.
send(Writer, Frame, Tell) ->
    Writer ! {write, Frame, Tell},
    ok.

%% What the writer still has is not needed.
-spec close(pid()) -> ok.
close(Writer) ->
    exit(Writer, kill),
    ok.

init(Owner, Reader, #{cargo := Cargo} = Settings) ->
    ok = trunkline_process:label({trunkline_writer, node(Reader), Cargo}),
    _ = monitor(process, Owner),
    #{token := Token, congestion_control := CongestionControl} = Connection =
        trunkline_connection:connect(Reader, Owner, Settings),
    Owner ! {channel, self(), {ready, Token, CongestionControl}},
    loop(#writer{owner = Owner, cargo = Cargo, connection = Connection}).

-spec loop(#writer{}) -> no_return().
loop(S) ->
    receive
        Message -> message(Message, S)
    after case S of
              #writer{beats = 0, quiet = false} -> ?QUIET;
              #writer{beats = 0} -> infinity;
              _ -> ?HEARTBEAT
          end ->
            loop(nothing(S))
    end.

nothing(#writer{beats = 0} = S) ->
    true = garbage_collect(),
    S#writer{quiet = true};
nothing(#writer{connection = Connection, beats = Beats} = S) ->
    ok = trunkline_connection:send(Connection, trunkline_wire:heartbeat()),
    S#writer{beats = Beats - 1}.

message({write, {Bytes, Frames}, Tell}, S) ->
    gather(Bytes, [Frames], Tell, S);
message({'DOWN', _, process, _, _}, _) ->
    exit({shutdown, closed});                            % the owner
message(Other, S) ->
    %% The other side sends nothing: any message from the socket means the end of the connection.
    trunkline_transport:event(Other) =:= unknown orelse exit({shutdown, closed}),
    trunkline_process:other(Other, fun ?MODULE:loop/1, S).

%% Adds what has come since.
gather(Bytes, Frames, Tell, S) when Bytes < ?AT_ONCE ->
    receive
        {write, {More, Others}, Tell1} ->
            gather(Bytes + More, [Others | Frames],
                   case Tell1 of
                       tell -> tell;
                       silent -> Tell
                   end, S);
        Other ->
            message(Other, write(Bytes, Frames, Tell, S))
    after 0 ->
            loop(write(Bytes, Frames, Tell, S))
    end;
gather(Bytes, Frames, Tell, S) ->
    loop(write(Bytes, Frames, Tell, S)).

write(Bytes, Frames, Tell, #writer{owner = Owner, connection = Connection, written = Before} = S) ->
    Start = erlang:monotonic_time(microsecond),
    ok = trunkline_connection:send(Connection, lists:reverse(Frames)),
    Written = Before + Bytes,
    Tell =:= tell
        andalso (Owner ! {channel, self(),
                          {written, Written, erlang:monotonic_time(microsecond) - Start}}),
    %% These may have been the last fragments for a long time, and a fragment, however small, refers
    %% to the whole binary that it is part of.
    S#writer.cargo =:= large andalso garbage_collect(),
    S#writer{written = Written, quiet = false, beats = case Connection of
                                                           #{must_beat := true} -> ?HEARTBEATS;
                                                           #{must_beat := false} -> 0
                                                       end}.
