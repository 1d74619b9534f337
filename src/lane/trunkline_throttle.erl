%% Suspends servers that reply faster than the peer can take their replies.
%%
%% gen_server:reply/2 sends to a lane, a process of this node, so it cannot be refused at the gate
%% as send/2 can. (In OTP the server would be suspended when the connection is busy.) So the lane
%% takes every reply, and suspends the server: for a large reply until it has been packed (see
%% trunkline_lane), and at the bound until there is room. In the second case another process beside
%% the lane waits at the link, as a sender does:
%%
%%     server                 lane                          throttle            link
%%       | -- reply ----------> |                              |                  |
%%       | <---------- suspends | beyond the bound: starts --> | -- wait, room -> |
%%       |                      | leaves -- room --------------+----------------> |
%%       |                      |                              | <------- again - |
%%       | <----------- resumes | <---------------------- ends |                  |
%%
%% When a process ends, for whatever reason, the runtime system resumes the processes that it has
%% suspended. So no server stays suspended. The replies to a peer take at most the bound, and one or
%% two replies more for each server: those that it sends before it is suspended.
%%
%% A term may take many times the bytes of its encoding: a list of small numbers eight times. So
%% room for another reply means room for the term.
-module(trunkline_throttle).
-moduledoc false.

-export([suspend/1, resume/1, start/3]).
-export([await/3]).

%% The server may be running; it stops at the next opportunity.
-spec suspend(pid()) -> boolean().
suspend(Server) ->
    try erlang:suspend_process(Server, [asynchronous])
    catch error:badarg -> false              % it has ended
    end.

-spec resume(pid()) -> boolean().
resume(Server) ->
    try erlang:resume_process(Server)
    catch error:badarg -> false
    end.

%% The calling process, a lane, monitors the process that is started, which ends when there is room.
-spec start(node(), Server :: pid(), trunkline_gate:charge()) ->
          {ok, {pid(), reference()}} | {error, system_limit}.
start(Node, Server, Charge) ->
    trunkline_process:start(fun() -> spawn_monitor(?MODULE, await, [Node, Server, Charge]) end).

%% Waits for the bytes only: if the node goes, it is the lane that counts the reply.
-spec await(node(), pid(), trunkline_gate:charge()) -> ok.
await(Node, Server, Charge) ->
    Wanted = trunkline_gate:without_message(Charge),
    _ = trunkline_sender:await_room(Node, Server, Wanted, infinity),
    ok.
