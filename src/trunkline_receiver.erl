%% The listening side's end of a connection: reads frames and passes them on.
%%
%% It waits for a socket from trunkline_listener. Its owner gets every frame as
%% `{fragment, Receiver, Id, Size, Offset, Data}', and is linked to it: this process
%% ends when the connection ends, after the owner was sent all that has come in
%% whole. Data are in a binary of their own, which the runtime system has read from the
%% socket in place.
-module(trunkline_receiver).

-export([start_link/1]).

%% ms until somebody must have connected: an invitation is valid for so long.
-define(CONNECTED, 30_000).
%% Bytes.
-define(MUCH, 1 bsl 20).

-spec start_link(Owner :: pid()) -> {ok, pid()} | {error, system_limit}.
start_link(Owner) ->
    trunkline_process:start(
      fun() -> spawn_opt(fun() -> await(Owner) end, [link, {fullsweep_after, 0}]) end).

await(Owner) ->
    receive
        {socket, Transport, Socket} ->
            case Transport:frames(Socket, trunkline_wire:longest_frame()) of
                ok -> loop(Owner, Transport, Socket);
                {error, Reason} -> exit({shutdown, Reason})
            end
    after ?CONNECTED ->
            exit({shutdown, nobody_came})
    end.

loop(Owner, Transport, Socket) ->
    case Transport:recv(Socket, 0, infinity) of
        {ok, Frame} ->
            case trunkline_wire:parse_frame(Frame) of
                {ok, Id, Size, Offset, Data} ->
                    Owner ! {fragment, self(), Id, Size, Offset, Data},
                    %% The next one may be long in coming, and this process holds on
                    %% to what it has read until it collects its garbage.
                    byte_size(Data) >= ?MUCH andalso garbage_collect(),
                    loop(Owner, Transport, Socket);
                heartbeat ->
                    loop(Owner, Transport, Socket);
                error ->
                    exit({shutdown, bad_frame})
            end;
        {error, Reason} ->
            exit({shutdown, Reason})
    end.
