%% The request agent: calls a local server on behalf of a caller elsewhere.
%%
%%     caller ── lane ══> inlet, which is the agent ── '$gen_call' ──> server
%%       ^                        │ monitor, alias                      │
%%       └──────── lane <═════════┘ <──────────── reply ────────────────┘
%%
%% The server sees the request that gen_server:call/2 would have sent, with the
%% caller's own pid in From. The tag beside it, `[[alias | Agent] | Caller]',
%% makes gen_server:reply/2 answer to the agent's alias (the form is OTP's own,
%% for proxies), from whatever process the reply is given, while a server that
%% answers to the pid by hand reaches the caller. The monitor is local to the
%% server's node. The agent sends the reply, or the news that the server is
%% down, to the caller's alias, over the lane that the server's own messages to
%% that node take, so that they stay in order.
%%
%% The agent is the inlet itself, since only the process that delivers a
%% sender's messages can deliver its requests in order with them, and only the
%% owner of an alias can create it.
%%
%% This module holds the agent's state and its steps; the inlet runs them.
-module(trunkline_agent).

-export([new/2, command/3, reply/3, down/3, refuse/1]).

-export_type([agent/0, command/0]).

-dialyzer({no_improper_lists, [command/3, reply/3]}).

-type caller() :: reference().   % the caller's alias, which names the request
-type command() :: {call, Server :: pid() | atom(), Caller :: pid(), caller()}
                 | {cancel, caller()}.

-record(agent,
        {node :: node(),
         route :: trunkline_route:route(),
         calls = #{} :: #{caller() => {Agent :: reference(), Server :: pid()}}}).
-opaque agent() :: #agent{}.

%% An agent for the callers of that node, which answers by that route.
-spec new(node(), trunkline_route:route()) -> agent().
new(Node, Route) ->
    #agent{node = Node, route = Route}.

-spec command(command(), term(), agent()) -> agent().
command({call, Name, Pid, Caller}, Request, Agent) when is_atom(Name) ->
    case whereis(Name) of
        Server when is_pid(Server) ->
            command({call, Server, Pid, Caller}, Request, Agent);
        _ ->
            forward(self(), Caller, {'DOWN', Caller, process, Name, noproc}, Agent),
            Agent
    end;
command({call, Server, Pid, Caller}, Request, #agent{calls = Calls} = Agent) ->
    Alias = monitor(process, Server, [{alias, reply_demonitor}, {tag, {'DOWN', Caller}}]),
    Server ! {'$gen_call', {Pid, [[alias | Alias] | Caller]}, Request},
    Agent#agent{calls = Calls#{Caller => {Alias, Server}}};
command({cancel, Caller}, _, #agent{calls = Calls} = Agent) ->
    case maps:take(Caller, Calls) of
        {{Alias, _}, Calls1} ->
            %% Not flushed, which would search the inlet's mailbox: a reply or
            %% a 'DOWN' that is there already is dropped when it is read.
            _ = demonitor(Alias),
            Agent#agent{calls = Calls1};
        error ->
            Agent
    end.

%% The server, or somebody for it, has replied.
-spec reply(caller(), term(), agent()) -> agent().
reply(Caller, Reply, #agent{calls = Calls} = Agent) ->
    case maps:take(Caller, Calls) of
        {{_, Server}, Calls1} ->
            forward(Server, Caller, {[alias | Caller], Reply}, Agent),
            Agent#agent{calls = Calls1};
        error ->
            Agent
    end.

%% The server died before a reply.
-spec down(caller(), Reason :: term(), agent()) -> agent().
down(Caller, Reason, #agent{calls = Calls} = Agent) ->
    case maps:take(Caller, Calls) of
        {{_, Server}, Calls1} ->
            forward(Server, Caller, {'DOWN', Caller, process, Server, Reason}, Agent),
            Agent#agent{calls = Calls1};
        error ->
            Agent
    end.

%% At the caller's node: the command cannot reach an agent.
-spec refuse(command()) -> ok.
refuse({call, Server, _, Caller}) ->
    Caller ! {'DOWN', Caller, process, Server, noconnection},
    ok;
refuse({cancel, _}) ->
    ok.

%% A reply never waits for room: the inlet must go on delivering, or two nodes
%% could stand still waiting for each other. There is at most one reply for each
%% request that is under way.
forward(Server, Caller, Message, #agent{route = Route}) ->
    trunkline_sender:force(Route, {Caller, Message}, Server).
