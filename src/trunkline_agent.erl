%% The request agent: calls a local server on behalf of a caller elsewhere.
%%
%%     caller ── {call, ...} ──> lane ══> inlet, the agent ── '$gen_call' ──> server
%%       ^                                    ^  ^ monitor                    │
%%       │                           answered │                               │
%%       └──── reply <══ inlet <══════════ lane <──────────── reply ──────────┘
%%
%% The server sees the request that gen_server:call/2 would have sent, with the
%% caller's own pid in From. The tag beside it makes gen_server:reply/2 send the
%% reply to a lane, from whatever process it is given: OTP's own form for proxies,
%% `[[alias | Lane] | ...]'. It is the lane that the server's own messages to that
%% node take, so that a reply keeps its place among them. A server that answers
%% to the pid by hand reaches the caller directly.
%%
%% Only the server's node watches the server. When it ends, those callers are told
%% by lane whose reply no lane has reported. (If the report comes late a caller is
%% told twice; the reply is first in the lane, and with it the caller's alias
%% is gone.)
%%
%% Each monitor (trunkline_monitor) is one of the inlet's own, until the server ends or it is
%% taken back: what the caller sends after it finds the server monitored. The news takes the
%% lane of the server's own messages. There may be very many; therefore they are in a table of
%% the inlet's, where no garbage collection moves them.
%%
%% The agent is the inlet itself: only the process that delivers a sender's
%% messages can deliver its requests in order with them. This module is the
%% agent's state and its steps; the inlet takes them. A server is monitored once,
%% however many calls are under way to it.
-module(trunkline_agent).

-export([new/1, step/3, address/2, wrap/2, delivered/1, broken/2, answered/2, down/4, sweep/1]).
-export([receiver/1, refuse/1]).

-export_type([agent/0, command/0, caller/0, tag/0, request/0, wrap/0]).

-dialyzer({no_improper_lists, [address/2, wrap/2]}).

%% The caller's alias, which names the request.
-type caller() :: reference().
%% What travels in the place of an addressee; the message is the request, the
%% reply, or the reason.
-type command() :: {call, Server :: pid() | atom(), Caller :: pid(), caller()}
                 | {cancel, Server :: pid() | atom(), caller()}
                 | {reply, caller()}
                 | {reply, caller(), Pid :: pid()}            % behind a large message
                 | {down, Server :: pid() | atom(), caller()}
                 | {monitor, Server :: pid() | atom(), Caller :: pid(), reference()}
                 | {demonitor, reference()}
                 | {ended, object(), Caller :: pid(), reference()}.
%% What is monitored, as 'DOWN' names it.
-type object() :: pid() | {RegisteredName :: atom(), node()}.
%% The tag in From, beside the caller's pid.
-type tag() :: nonempty_improper_list(nonempty_improper_list(alias, Lane :: reference()), request()).
-type request() :: {caller(), {Pid :: pid(), Server :: pid()}, Agent :: pid()}.
%% What makes of a command's message the one that somebody gets.
-type wrap() :: {call, gen_server:from()} | {reply, caller()} | {down, object() | atom(), caller()}.

-record(server,
        {monitor :: reference(),
         lane :: reference(),                        % the alias, for replies
         callers = #{} :: #{caller() => []}}).       % whose reply is awaited
-record(agent,
        {route :: trunkline_route:route(),
         servers = #{} :: #{pid() => #server{}},
         %% {caller's reference, monitor}, {monitor, caller's reference, Caller, object()}
         monitors = none :: none | ets:table()}).
-opaque agent() :: #agent{}.

%% The calling process is the agent for the callers at a node, and answers by the
%% route to it.
-spec new(trunkline_route:route()) -> agent().
new(Route) ->
    #agent{route = Route}.

%% A command has come by lane.
-spec step(command(), Message :: term(), agent()) -> agent().
step(Command, Message, Agent) ->
    case address(Command, Agent) of
        {nobody, Agent1} ->
            Agent1;
        {To, Wrap, Agent1} ->
            To ! wrap(Wrap, Message),
            ok = delivered(Command),
            Agent1
    end.

%% The message that the command has brought.
-spec delivered(trunkline_lane:to()) -> ok.
delivered({ended, _, Caller, Ref}) -> trunkline_monitors:leave(Caller, Ref);
delivered(_) -> ok.

%% Does what the command asks for, but does not send the message; answers to whom
%% it should be sent and how.
-spec address(command(), agent()) -> {To :: pid() | reference(), wrap(), agent()} | {nobody, agent()}.
address({reply, Caller}, Agent) ->
    {Caller, {reply, Caller}, Agent};
address({reply, Caller, _}, Agent) ->
    {Caller, {reply, Caller}, Agent};
address({call, Server, Pid, Caller}, #agent{servers = Servers, route = Route} = Agent)
  when is_pid(Server) ->
    #server{lane = Lane, callers = Callers} = Known =
        case Servers of
            #{Server := Before} -> Before;
            #{} -> #server{monitor = monitor(process, Server),
                           lane = trunkline_sender:alias_of_lane(Route, Server)}
        end,
    Agent1 = Agent#agent{servers = Servers#{Server => Known#server{callers = Callers#{Caller => []}}}},
    {Server, {call, {Pid, [[alias | Lane] | {Caller, {Pid, Server}, self()}]}}, Agent1};
address({call, Name, Pid, Caller}, Agent) ->
    case whereis(Name) of
        Server when is_pid(Server) ->
            address({call, Server, Pid, Caller}, Agent);
        _ ->
            send({down, Name, Caller}, noproc, self(), Agent),
            {nobody, Agent}
    end;
address({cancel, Server, Caller}, Agent) when is_pid(Server) ->
    {nobody, settle({Caller, Server}, Agent)};
address({cancel, Name, Caller}, Agent) ->
    %% If another process has the name by now, the request is remembered until
    %% the one before replies or ends. A late reply does no harm.
    case whereis(Name) of
        Server when is_pid(Server) -> address({cancel, Server, Caller}, Agent);
        _ -> {nobody, Agent}
    end;
address({down, Server, Caller}, Agent) ->
    {Caller, {down, Server, Caller}, Agent};
address({monitor, Name, Caller, Ref}, Agent) when is_atom(Name) ->
    case whereis(Name) of
        Server when is_pid(Server) ->
            {nobody, add_monitor(Server, {Name, node()}, Caller, Ref, Agent)};
        _ ->
            send({ended, {Name, node()}, Caller, Ref}, noproc, self(), Agent),
            {nobody, Agent}
    end;
address({monitor, Server, Caller, Ref}, Agent) ->
    {nobody, add_monitor(Server, Server, Caller, Ref, Agent)};
address({demonitor, Ref}, #agent{monitors = Monitors} = Agent) ->
    case Monitors =/= none andalso ets:take(Monitors, Ref) of
        [{Ref, Monitor}] ->
            true = ets:delete(Monitors, Monitor),
            demonitor(Monitor);              % if its message is here, it means nothing
        _ ->
            true                             % it has ended
    end,
    {nobody, Agent};
address({ended, Object, _, Ref}, Agent) ->
    {Ref, {down, Object, Ref}, Agent}.

add_monitor(Server, Object, Caller, Ref, #agent{monitors = none} = Agent) ->
    add_monitor(Server, Object, Caller, Ref, Agent#agent{monitors = ets:new(?MODULE, [private])});
add_monitor(Server, Object, Caller, Ref, #agent{monitors = Monitors} = Agent) ->
    Monitor = monitor(process, Server),
    true = ets:insert(Monitors, [{Ref, Monitor}, {Monitor, Ref, Caller, Object}]),
    Agent.

-spec wrap(wrap(), Message :: term()) -> term().
wrap({call, From}, Request) -> {'$gen_call', From, Request};
wrap({reply, Caller}, Reply) -> {[alias | Caller], Reply};
wrap({down, Object, Ref}, Reason) -> {'DOWN', Ref, process, Object, Reason}.

%% What the command brings is lost on this side: the caller need not wait for a reply.
-spec broken(command(), agent()) -> agent().
broken({call, Server, _, Caller}, Agent) ->
    send({down, Server, Caller}, lost, self(), Agent),
    {nobody, Agent1} = address({cancel, Server, Caller}, Agent),
    Agent1;
broken({ended, _, _, _} = Command, Agent) ->
    step(Command, lost, Agent);
broken(_, Agent) ->
    Agent.

%% Who gets what the command brings, as far as this node knows.
-spec receiver(command()) -> pid() | atom() | unknown.
receiver({call, Server, _, _}) -> Server;
receiver({cancel, Server, _}) -> Server;
receiver({reply, _, Pid}) -> Pid;
receiver({monitor, Server, _, _}) -> Server;
receiver({ended, _, Caller, _}) -> Caller;
receiver(_) -> unknown.

%% A lane has taken these servers' replies to these callers.
-spec answered([{caller(), Server :: pid()}], agent()) -> agent().
answered(Requests, Agent) ->
    lists:foldl(fun settle/2, Agent, Requests).

settle({Caller, Server}, #agent{servers = Servers} = Agent) ->
    case Servers of
        #{Server := #server{callers = Callers} = Known} ->
            Agent#agent{servers = Servers#{Server := Known#server{callers = maps:remove(Caller, Callers)}}};
        #{} ->
            Agent
    end.

%% A server has died: nobody will reply, and who monitors it is told.
-spec down(reference(), pid(), Reason :: term(), agent()) -> agent().
down(Monitor, Server, Reason, #agent{servers = Servers, monitors = Monitors} = Agent) ->
    case Servers of
        #{Server := #server{monitor = Monitor, callers = Callers}} ->
            maps:foreach(fun(Caller, []) -> send({down, Server, Caller}, Reason, Server, Agent) end,
                         Callers),
            Agent#agent{servers = maps:remove(Server, Servers)};
        #{} ->
            case Monitors =/= none andalso ets:take(Monitors, Monitor) of
                [{Monitor, Ref, Caller, Object}] ->
                    true = ets:delete(Monitors, Ref),
                    send({ended, Object, Caller, Ref}, Reason, Server, Agent);
                _ ->
                    ok
            end,
            Agent
    end.

%% Lets go of servers that nobody waits for. (Not at every reply: the next call
%% would most often be to the same server.)
-spec sweep(agent()) -> agent().
sweep(#agent{servers = Servers} = Agent) ->
    Agent#agent{servers = maps:filter(fun(_, #server{monitor = Monitor, callers = Callers})
                                                when map_size(Callers) =:= 0 ->
                                              demonitor(Monitor), false;
                                         (_, _) ->
                                              true
                                      end, Servers)}.

%% At the sending node: the command cannot reach an agent, nor a reply its caller
%% (who knows that the session has ended).
-spec refuse(command()) -> ok.
refuse({call, Server, _, Caller}) ->
    Caller ! {'DOWN', Caller, process, Server, noconnection},
    ok;
refuse(_) ->
    ok.

%% This never waits for room: the inlet must go on delivering, or two nodes could
%% stand still, each waiting for the other.
send(Command, Message, Server, #agent{route = Route}) ->
    trunkline_sender:force(Route, {Command, Message}, Server).
