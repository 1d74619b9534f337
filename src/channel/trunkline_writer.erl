%% A connection of a lane's own: makes it, and writes frames to it (trunkline_dictionary).
%%
%%     lane               writer                       the peer
%%       | -- open ------> |                              |
%%       |                 | -- invite, for this inlet -> | trunkline_listener
%%       |                 | <-------------- invitation - |
%%       |                 | ══ connects, proves ═══════> |
%%       | <------- ready - |                              |
%%       | -- frame -----> |                              |
%%       | -- frame -----> | ═══════ both at once ══════> | trunkline_inlet
%%       | <----- written - |                              |
%%
%% The lane goes on while the connection takes data. Frames that come meanwhile wait here, and leave
%% with one system call. The lane sees to it that not much waits here.
%%
%% A writer ends with its lane, and with the connection, which the inlet owns at the other end.
-module(trunkline_writer).
-moduledoc false.

-export([open/2, send/3, close/1]).
-export([loop/1]).

-export_type([frame/0]).

%% A batch, encoded, and how many bytes that is. It can go any way, and more than once.
-type frame() :: {Bytes :: pos_integer(), iodata()}.

%% Bytes that are written at once.
-define(AT_ONCE, 262144).
%% A writer that has had nothing to do for that many ms collects its garbage.
-define(QUIET, 1000).

-record(writer,
        {lane :: pid(),
         connection :: trunkline_connection:connection(),
         written = 0 :: non_neg_integer(),                 % bytes
         beats = 0 :: non_neg_integer(),                   % how many more heartbeats
         quiet = true :: boolean()}).

%% A writer for the calling process, the lane, which gets
%%
%%     {channel, Writer, {ready, CongestionControl}}     frames may come
%%     {channel, Writer, {written, Bytes}}               so much has left, in all
%%     {'DOWN', Monitor, process, Writer, Reason}        it is broken, or was never ready
-spec open(Inlet :: pid(), trunkline_connection:settings()) ->
          {ok, {pid(), Monitor :: reference()}} | {error, system_limit}.
open(Inlet, Settings) ->
    Lane = self(),
    Start = fun() -> init(Lane, Inlet, Settings) end,
    trunkline_process:start(fun() -> spawn_opt(Start, [monitor, {fullsweep_after, 10}]) end).

%% `tell': the lane is told when that has been `written'. `silent': it need not be.
-spec send(pid(), frame(), tell | silent) -> ok.
send(Writer, Frame, Tell) ->
    Writer ! {write, Frame, Tell},
    ok.

%% What the writer still has is not needed.
-spec close(pid()) -> ok.
close(Writer) ->
    exit(Writer, kill),
    ok.

init(Lane, Inlet, Settings) ->
    ok = trunkline_process:label({trunkline_writer, node(Inlet)}),
    _ = monitor(process, Lane),
    #{congestion_control := CongestionControl} = Connection =
        trunkline_connection:connect({trunkline_listener, node(Inlet)}, Inlet, Settings),
    Lane ! {channel, self(), {ready, CongestionControl}},
    loop(#writer{lane = Lane, connection = Connection}).

-spec loop(#writer{}) -> no_return().
loop(#writer{beats = Beats} = S) ->
    receive
        Message -> message(Message, S)
    after case S of
              #writer{beats = 0, quiet = false} -> ?QUIET;
              _ -> trunkline_connection:pause(Beats)
          end ->
            loop(nothing(S))
    end.

nothing(#writer{beats = 0} = S) ->
    true = garbage_collect(),
    S#writer{quiet = true};
nothing(#writer{connection = Connection, beats = Beats} = S) ->
    ok = trunkline_connection:beat(Connection),
    S#writer{beats = Beats - 1}.

message({write, {Bytes, _} = Frame, Tell}, S) ->
    gather(Bytes, [trunkline_wire:batch(Frame)], Tell, S);
message({'DOWN', _, process, _, _}, _) ->
    exit({shutdown, closed});                            % the lane
message({system, From, Request}, S) ->
    trunkline_process:system(From, Request, fun ?MODULE:loop/1, S);
message(Other, S) ->
    ok = trunkline_connection:other(?MODULE, Other),
    loop(S).

%% Adds what has come since.
gather(Bytes, Frames, Tell, S) when Bytes < ?AT_ONCE ->
    receive
        {write, {More, _} = Frame, Tell1} ->
            gather(Bytes + More, [trunkline_wire:batch(Frame) | Frames],
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

write(Bytes, Frames, Tell, #writer{lane = Lane, connection = Connection, written = Before} = S) ->
    ok = trunkline_connection:send(Connection, lists:reverse(Frames)),
    Written = Before + Bytes,
    Tell =:= tell andalso (Lane ! {channel, self(), {written, Written}}),
    S#writer{written = Written, beats = trunkline_connection:beats(Connection), quiet = false}.
