%% Makes a server wait whose replies are more than the peer takes.
%%
%% gen_server:reply/2 sends to a lane, a process of this node: it cannot be refused at the gate, as
%% send/2 can. (In OTP it would be suspended when the connection is busy.) So the lane takes every
%% reply, and has a process for each server that is beyond the bound, which suspends it until
%% there is room:
%%
%%     server                 lane                        throttle              link
%%       | -- reply ----------> |                             |                   |
%%       |                      | beyond the bound: starts -> |                   |
%%       | <--------------------------------------- suspends -|                   |
%%       |                      |                             | -- wait, room --> |
%%       |                      | leaves ── room ─────────────┼────────────────>  |
%%       |                      |                             | <-------- again - |
%%       |                      | <------------------- ends - |
%%
%% What a process has suspended is resumed when it ends, for whatever reason: a server is not left
%% suspended. Of replies there is at most the bound, and for each server those that it gives before
%% it stands still: one, most often.
-module(trunkline_throttle).
-moduledoc false.

-export([start/3]).
-export([hold/3]).

%% The calling process, a lane, monitors it.
-spec start(node(), Server :: pid(), trunkline_gate:charge()) ->
          {ok, {pid(), reference()}} | {error, system_limit}.
start(Node, Server, Charge) ->
    trunkline_process:start(fun() -> spawn_monitor(?MODULE, hold, [Node, Server, Charge]) end).

-spec hold(node(), pid(), trunkline_gate:charge()) -> ok.
hold(Node, Server, Charge) ->
    try erlang:suspend_process(Server) of
        true ->
            %% The lane counts the reply, should the node go.
            Wanted = trunkline_gate:without_message(Charge),
            _ = trunkline_sender:await_room(Node, Server, Wanted, infinity),
            ok
    catch
        error:badarg -> ok                   % it has ended
    end.
