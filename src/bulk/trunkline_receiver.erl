%% The listening side's end of a connection for large messages: reads frames and passes them on.
%%
%% It waits for a socket from trunkline_listener. Its owner gets every frame as
%% `{fragment, Receiver, Id, Size, Offset, Data}', and is linked to it: this process
%% ends when the connection ends, after the owner was sent all that has come in
%% whole. Data are in a binary of their own, which the runtime system has read from the
%% socket in place.
-module(trunkline_receiver).
-moduledoc false.

-export([start_link/1]).
-export([await/1, loop/1]).

%% ms until somebody must have connected: an invitation is valid for so long.
-define(CONNECTED, 30_000).
%% Bytes.
-define(MUCH, 1 bsl 20).
%% Read from a socket before this process asks for more.
-define(FRAMES, 8).

-record(receiver,
        {owner :: pid(),
         timer = none :: none | reference(),
         transport = none :: none | module(),
         socket = none :: none | trunkline_transport:socket()}).

-spec start_link(Owner :: pid()) -> {ok, pid()} | {error, system_limit}.
start_link(Owner) ->
    trunkline_process:start(
      fun() -> spawn_opt(fun() -> init(Owner) end, [link, {fullsweep_after, 0}]) end).

init(Owner) ->
    Timer = erlang:start_timer(?CONNECTED, self(), connected),
    await(#receiver{owner = Owner, timer = Timer}).

-spec await(#receiver{}) -> no_return().
await(#receiver{timer = Timer} = S) ->
    receive
        {socket, Transport, Socket} ->
            _ = erlang:cancel_timer(Timer),
            done(Transport:frames(Socket, trunkline_wire:longest_frame(), ?FRAMES)),
            loop(S#receiver{transport = Transport, socket = Socket});
        {timeout, Timer, connected} ->
            exit({shutdown, nobody_came});
        {system, From, Request} ->
            trunkline_process:system(From, Request, fun ?MODULE:await/1, S);
        Other ->
            ok = trunkline_process:unexpected(?MODULE, Other),
            await(S)
    end.

-spec loop(#receiver{}) -> no_return().
loop(#receiver{transport = Transport, socket = Socket} = S) ->
    receive
        {timeout, Timer, connected} when Timer =:= S#receiver.timer ->
            loop(S);                         % it came together with the socket
        {system, From, Request} ->
            trunkline_process:system(From, Request, fun ?MODULE:loop/1, S);
        Other ->
            case trunkline_transport:event(Other) of
                {frame, _, _, Frame} ->
                    frame(trunkline_wire:parse_frame(Frame), S);
                {passive, _, _} ->
                    done(Transport:more(Socket, ?FRAMES)),
                    loop(S);
                closed ->
                    exit({shutdown, closed});
                unknown ->
                    ok = trunkline_process:unexpected(?MODULE, Other),
                    loop(S)
            end
    end.

frame({ok, Id, Size, Offset, Data}, #receiver{owner = Owner} = S) ->
    Owner ! {fragment, self(), Id, Size, Offset, Data},
    %% The next one may be long in coming, and this process holds on to what it has
    %% read until it collects its garbage.
    byte_size(Data) >= ?MUCH andalso garbage_collect(),
    loop(S);
frame(heartbeat, S) ->
    loop(S);
frame(error, _) ->
    exit({shutdown, bad_frame}).

done(ok) -> ok;
done({error, Reason}) -> exit({shutdown, Reason}).
