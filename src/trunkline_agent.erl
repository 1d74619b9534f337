%% The request agent: calls a local server on behalf of a caller elsewhere.
%%
%%     caller ── {call, ...} ──> lane ══> inlet, the agent ── '$gen_call' ──> server
%%       ^                                 │  ^ monitor                         │
%%       └──── {reply, ...} <══ lane <─────┘  └──────────── reply ──────────────┘
%%
%% The server sees the request that gen_server:call/2 would have sent, with the
%% caller's own pid in From. The tag beside it makes gen_server:reply/2 send the
%% reply to the agent, from whatever process it is given: OTP's own form for
%% proxies, `[[alias | Agent] | ...]'. A server that answers to the pid by hand
%% reaches the caller directly. Only the server's node watches the server. The
%% reply, or the news that the server is down, goes to the caller's alias over
%% the lane that the server's own messages to that node take, so that they stay
%% in order.
%%
%% The agent is the inlet itself: only the process that delivers a sender's
%% messages can deliver its requests in order with them. This module is the
%% agent's state and its steps; the inlet takes them. A server is monitored once,
%% however many calls are under way to it.
-module(trunkline_agent).

-export([new/2, step/3, reply/4, down/3, sweep/1]).
-export([refuse/1]).

-export_type([agent/0, command/0, caller/0, tag/0]).

-dialyzer({no_improper_lists, step/3}).

%% The caller's alias, which names the request.
-type caller() :: reference().
%% What travels in the place of an addressee; the message is the request, the
%% reply, or the reason.
-type command() :: {call, Server :: pid() | atom(), Caller :: pid(), caller()}
                 | {cancel, Server :: pid() | atom(), caller()}
                 | {reply, caller()}
                 | {down, Server :: pid() | atom(), caller()}.
%% The tag in From, beside the caller's pid.
-type tag() :: nonempty_improper_list(nonempty_improper_list(alias, reference()),
                                      {caller(), Server :: pid()}).

-record(agent,
        {node :: node(),
         route :: trunkline_route:route(),
         alias :: reference(),
         servers = #{} :: #{pid() => {Monitor :: reference(), #{caller() => []}}}}).
-opaque agent() :: #agent{}.

%% The calling process is the agent for the callers at that node, and answers by
%% that route.
-spec new(node(), trunkline_route:route()) -> agent().
new(Node, Route) ->
    #agent{node = Node, route = Route, alias = alias([explicit_unalias])}.

%% A command has come by lane.
-spec step(command(), Message :: term(), agent()) -> agent().
step({reply, Caller}, Reply, Agent) ->
    Caller ! {[alias | Caller], Reply},
    Agent;
step({call, Server, Pid, Caller}, Request, Agent) when is_pid(Server) ->
    #agent{alias = Alias, servers = Servers} = Agent,
    {Monitor, Callers} = case Servers of
                             #{Server := Known} -> Known;
                             #{} -> {monitor(process, Server), #{}}
                         end,
    Server ! {'$gen_call', {Pid, [[alias | Alias] | {Caller, Server}]}, Request},
    Agent#agent{servers = Servers#{Server => {Monitor, Callers#{Caller => []}}}};
step({call, Name, Pid, Caller}, Request, Agent) ->
    case whereis(Name) of
        Server when is_pid(Server) ->
            step({call, Server, Pid, Caller}, Request, Agent);
        _ ->
            send({down, Name, Caller}, noproc, self(), Agent),
            Agent
    end;
step({cancel, Server, Caller}, _, #agent{servers = Servers} = Agent) when is_pid(Server) ->
    case Servers of
        #{Server := {Monitor, Callers}} ->
            Agent#agent{servers = Servers#{Server := {Monitor, maps:remove(Caller, Callers)}}};
        #{} ->
            Agent
    end;
step({cancel, Name, Caller}, _, Agent) ->
    %% If another process has the name by now, the request is remembered until
    %% the one before replies or ends. A late reply does no harm.
    case whereis(Name) of
        Server when is_pid(Server) -> step({cancel, Server, Caller}, [], Agent);
        _ -> Agent
    end;
step({down, Server, Caller}, Reason, Agent) ->
    Caller ! {'DOWN', Caller, process, Server, Reason},
    Agent.

%% The server, or another process for it, has replied.
-spec reply(caller(), pid(), term(), agent()) -> agent().
reply(Caller, Server, Reply, #agent{servers = Servers} = Agent) ->
    case Servers of
        #{Server := {Monitor, Callers}} when is_map_key(Caller, Callers) ->
            send({reply, Caller}, Reply, Server, Agent),
            Agent#agent{servers = Servers#{Server := {Monitor, maps:remove(Caller, Callers)}}};
        #{} ->
            Agent              % a second reply, or a reply after a cancellation
    end.

%% A server has died: nobody will reply.
-spec down(pid(), Reason :: term(), agent()) -> agent().
down(Server, Reason, #agent{servers = Servers} = Agent) ->
    case maps:take(Server, Servers) of
        {{_, Callers}, Servers1} ->
            maps:foreach(fun(Caller, []) -> send({down, Server, Caller}, Reason, Server, Agent) end,
                         Callers),
            Agent#agent{servers = Servers1};
        error ->
            Agent
    end.

%% Lets go of servers that nobody waits for. (Not at every reply: the next call
%% would most often be to the same server.)
-spec sweep(agent()) -> agent().
sweep(#agent{servers = Servers} = Agent) ->
    Agent#agent{servers = maps:filter(fun(_, {Monitor, Callers}) when map_size(Callers) =:= 0 ->
                                              demonitor(Monitor), false;
                                         (_, _) ->
                                              true
                                      end, Servers)}.

%% At the sending node: there is no agent that the command could reach.
-spec refuse(command()) -> ok.
refuse({call, Server, _, Caller}) ->
    Caller ! {'DOWN', Caller, process, Server, noconnection},
    ok;
refuse(_) ->
    ok.

%% An answer never waits for room: the inlet must go on delivering, or two nodes
%% could stand still, each waiting for the other. There is at most one answer to
%% each request that is under way.
send(Command, Message, Server, #agent{route = Route}) ->
    trunkline_sender:force(Route, {Command, Message}, Server).
