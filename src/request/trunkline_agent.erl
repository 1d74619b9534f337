%% The request agent calls a local server on behalf of a caller at another node.
%%
%%     caller ── {call, ...} ──> lane ══> inlet, the agent ── '$gen_call' ──> server
%%       ^                                    ^  ^ monitor                    │
%%       │                           answered │                               │
%%       └──── reply <══ inlet <══════════ lane <──────────── reply ──────────┘
%%
%% The server sees the request that gen_server:call/2 would have sent (or a function of gen_event,
%% with another label), with the caller's own pid in From. The tag in From has OTP's own form for
%% proxies, `[[alias | Lane] | ...]'. So gen_server:reply/2 sends the reply to a lane, whichever
%% process calls it. That is the lane that the server's own messages to the caller's node take, so
%% that the reply keeps its place among them. A server that replies to the pid by hand reaches the
%% caller directly.
%%
%% Only the server's node monitors the server. When the server ends, the agent tells, by lane, those
%% callers for whom no lane has reported a reply. (If a report is late, a caller is sent both. The
%% reply leaves the lane first, and deactivates the caller's alias.)
%%
%% The agent is the inlet itself, because only the process that delivers a sender's messages can
%% deliver the sender's requests in order with them. This module has the agent's state and its
%% steps, and the inlet calls them. A server is monitored once, however many calls are under way.
%%
%% For remote procedure calls (trunkline_erpc) there is no server. The agent starts a process for
%% each call, which sends the outcome itself (see trunkline_executor). If the process ends without
%% an outcome, the agent tells the caller.
-module(trunkline_agent).
-moduledoc false.

-include("../gate/trunkline_route.hrl").

-export([new/1, step/3, called/2, arrived/3, look/1, time_to_look/2, tick/1, lease_over/3,
         address/2, delivered/1, broken/3, answered/2, unannounced/2, executed_by/3,
         monitored_ended/5, down/3, server_ended/3, sweep/1, ended/1]).
-export([is_awaited/1]).

-export_type([agent/0]).

-dialyzer({no_improper_lists, [address/2]}).

%% Whether the reply goes by lane, to a caller that waits for it or that may not, or by plain
%% distribution. Or the request was announced by a caller that has a lease, and may be killed before
%% it has sent it. `watching': by lane, and the reply shows that the server knows of that watch.
-type way() :: by_lane | past | {watching, trunkline_plain_reply:watch()} | not_awaited | plain
             | announced.
%% Two seconds at least.
-define(LEASED, 3).
-record(server,
        {monitor :: reference(),
         lane :: reference(),                        % the alias, for replies
         %% Ticks in which a caller may use a lease (trunkline_lease). A reference: none may any
         %% more, but the server's lane may still have news of a request.
         leased = 0 :: 0..?LEASED | reference(),
         plain = trunkline_plain_reply:new() :: trunkline_plain_reply:server(),
         %% Of its callers, those whose replies go by lane and who may not wait for them.
         others = 0 :: non_neg_integer(),
         %% Those that have no reply yet.
         callers = #{} :: #{trunkline_command:caller() => {way(), Caller :: pid()}}}).
-record(agent,
        {route :: trunkline_route:route(),
         servers = #{} :: #{pid() => #server{}},
         %% About which servers lanes have been asked.
         asked = #{} :: #{trunkline_plain_reply:question() => Server :: pid()},
         waiting = trunkline_waiting:new() :: trunkline_waiting:waiting(),
         executors = #{} :: #{pid() => trunkline_command:caller()},
         monitored = trunkline_monitored:new() :: trunkline_monitored:monitored()}).
-opaque agent() :: #agent{}.

%% The calling process is the agent for the callers at one node, and answers them by the route to
%% that node.
-spec new(trunkline_route:route()) -> agent().
new(Route) ->
    ok = trunkline_owed:clean_up(),
    #agent{route = Route}.

%% Carries out a command that has come by lane.
-spec step(trunkline_command:command(), Message :: term(), agent()) -> agent().
step(Command, Message, Agent) when element(1, Command) =:= apply ->
    case {trunkline_executor:start(Command, Message), element(2, Command)} of
        {system_limit, nobody} ->
            Agent;                               % erpc ignores it, too
        {system_limit, Caller} ->
            send({reply, Caller}, {error, {erpc, system_limit}}, self(), Agent),
            Agent;
        {Executor, _} ->
            executed_by(Executor, Command, Agent)
    end;
step({ended, Object, Caller, Ref}, noproc, Agent) ->
    ok = trunkline_watcher:noproc({Caller, Ref, Object}),
    Agent;
step({ended, Object, Caller, Ref}, Reason, Agent) ->
    ok = trunkline_monitor_rows:down(Caller, Ref, Object, Reason),
    Agent;
step({turn, Command, Ref, Lane}, What, Agent) when is_tuple(Command) ->
    case address(Command, Agent) of
        {nobody, Agent1} ->
            ok = trunkline_in_turn:noproc(Lane, Ref),
            Agent1;
        {To, Wrap, Agent1} ->
            Receiver = case Command of
                           {reply, _} -> waits;
                           {reply, _, Pid} -> Pid;
                           _ -> To
                       end,
            ok = trunkline_in_turn:answer(Lane, Ref, Receiver, {go, To, Wrap}, What),
            leased(Command, Agent1)
    end;
step({turn, To, Ref, Lane}, What, Agent) ->
    ok = trunkline_in_turn:answer(Lane, Ref, To, go, What),
    Agent;
step({exit, Pid, _}, kill, Agent) ->
    true = erlang:exit(Pid, kill),           % other reasons: see trunkline_exit
    Agent;
step(Command, Message, Agent) ->
    case address(Command, Agent) of
        {nobody, Agent1} ->
            Agent1;
        {To, Wrap, Agent1} ->
            ok = trunkline_process:deliver(To, trunkline_command:wrap(Wrap, Message)),
            Agent1
    end.

%% The answer to a question about a request may become a lease.
leased(Request, #agent{servers = Servers} = Agent)
  when element(1, Request) =:= call, is_pid(element(2, Request)) ->
    Server = element(2, Request),
    #{Server := Known} = Servers,
    Agent#agent{servers = Servers#{Server := leased_now(Server, Known, Agent)}};
leased(_, Agent) ->
    Agent.

%% (The request that the answer is for may never be sent.)
leased_now(Server, #server{plain = Plain} = Known, #agent{route = Route}) ->
    Known#server{leased = ?LEASED,
                 plain = trunkline_plain_reply:other_request(Server, Route, Plain)}.

%% A caller with a lease is sending this request.
-spec called(trunkline_command:command(), agent()) -> agent().
called(Request, #agent{servers = Servers} = Agent) ->
    {Server, Pid, Caller, _} = trunkline_command:request(Request),
    case Servers of
        #{Server := #server{callers = #{Caller := _}} = Known} ->
            %% The request has come first, by lane after all.
            Agent#agent{servers = Servers#{Server := Known#server{leased = ?LEASED}}};
        #{} ->
            {_, _, #agent{servers = Servers1} = Agent1} =
                address({call, Server, Pid, Caller}, Agent),
            #{Server := Known} = Servers1,
            Known1 = waits(Caller, {announced, Pid}, Known#server{leased = ?LEASED}),
            Agent1#agent{servers = Servers1#{Server := Known1}}
    end.

%% To be called once a second. Returns the requests that have been announced, and not answered, and
%% whether there are leases, or servers that are watched.
-spec tick(agent()) -> {[trunkline_command:command()], boolean(), agent()}.
tick(#agent{servers = Servers0, route = Route} = Agent) ->
    Servers = maps:map(fun(Server, #server{plain = Plain, leased = Ticks} = Known) ->
                               Plain1 = trunkline_plain_reply:tick(Server, Route, Plain),
                               Known#server{plain = Plain1,
                                            leased = lease_tick(Ticks, Server, Agent)}
                       end, Servers0),
    Unanswered = [{call, Server, Pid, Caller}
                  || {Server, #server{callers = Callers}} <- maps:to_list(Servers),
                     {Caller, {announced, Pid}} <- maps:to_list(Callers)],
    IsUsed = lists:any(fun(#server{plain = Plain, leased = Ticks}) ->
                               Ticks =/= 0 orelse trunkline_plain_reply:is_watched(Plain)
                       end, maps:values(Servers)),
    {Unanswered, IsUsed, Agent#agent{servers = Servers}}.

lease_tick(1, Server, Agent) ->
    Ref = make_ref(),
    true = is_relayed(Server, {lease_over, Server, Ref}, Agent),
    Ref;
lease_tick(Ticks, _, _) when is_integer(Ticks), Ticks > 0 -> Ticks - 1;
lease_tick(Leased, _, _) -> Leased.

%% Asks for which plain replies callers still wait.
-spec look(agent()) -> ok.
look(#agent{waiting = Waiting}) -> trunkline_waiting:look(Waiting).

%% That timer has ended.
-spec time_to_look(Timer :: reference(), agent()) -> agent().
time_to_look(Timer, #agent{waiting = Waiting, servers = Servers, route = Route} = Agent) ->
    {Slow, Waiting1} = trunkline_waiting:time_to_look(Timer, Waiting),
    IsSlow = fun(Server, #server{plain = Plain} = Known) ->
                     Known#server{plain = trunkline_plain_reply:is_slow(Server, Route, Plain)}
             end,
    Servers1 = maps:map(IsSlow, maps:with(Slow, Servers)),
    Agent#agent{waiting = Waiting1, servers = maps:merge(Servers, Servers1)}.

%% This has come back from the server's lane, behind the news of all requests that were sent by a
%% lease.
-spec lease_over(Server :: pid(), reference(), agent()) -> agent().
lease_over(Server, Ref, #agent{servers = Servers} = Agent) ->
    case Servers of
        #{Server := #server{leased = Ref} = Known} ->
            Known1 = Known#server{leased = 0},
            owes_reply(Known1) orelse mark(Server, -1, Agent),
            Agent#agent{servers = Servers#{Server := Known1}};
        #{} ->
            Agent
    end.

%% The message of this command has been delivered.
-spec delivered(trunkline_lane:to()) -> ok.
delivered({ended, _, Caller, Ref}) -> trunkline_monitor_rows:leave(Caller, Ref);
delivered(_) -> ok.

%% Does what the command asks for, but does not send the message. Returns the process that the
%% message is for, and how it should be wrapped.
-spec address(trunkline_command:command(), agent()) ->
          {To :: pid() | reference(), trunkline_command:wrap(), agent()} | {nobody, agent()}.
address(Command, Agent) when element(1, Command) =:= reply ->
    {element(2, Command), {reply, element(2, Command)}, Agent};
address(Request, #agent{servers = Servers, route = Route} = Agent)
  when element(1, Request) =:= call, is_pid(element(2, Request)) ->
    {Server, Pid, Caller, Label} = trunkline_command:request(Request),
    Known = case Servers of
                #{Server := Before} -> Before;
                #{} -> #server{monitor = monitor(process, Server),
                               lane = trunkline_sender:alias_of_lane(Route, Server)}
            end,
    owes_reply(Known) orelse mark(Server, 1, Agent),
    {Way, Known1, Agent1} = way(Request, Known, Agent),
    Known2 = waits(Caller, {Way, Pid}, Known1),
    Alias = case Way of
                plain -> Caller;
                _ -> Known#server.lane
            end,
    Between = case Way of
                  past -> {Pid, Server, past};
                  _ -> {Pid, Server}
              end,
    {Server, {call, Label, {Pid, [[alias | Alias] | {Caller, Between, self()}]}},
     Agent1#agent{servers = Servers#{Server => Known2}}};
address(Request, Agent) when element(1, Request) =:= call ->
    {Name, _, Caller, _} = trunkline_command:request(Request),
    case whereis(Name) of
        Server when is_pid(Server) ->
            address(setelement(2, Request, Server), Agent);
        _ ->
            send({down, Name, Caller}, noproc, self(), Agent),
            {nobody, Agent}
    end;
address({cancel, Server, Caller}, Agent) when is_pid(Server) ->
    Request = {Caller, Server},
    %% It may have been announced, and the agent has not heard of that yet.
    _ = is_relayed(Server, {unannounced, Request}, Agent),
    {nobody, settle(cancelled, Request, Agent)};
address({cancel, Name, Caller}, Agent) ->
    %% If another process has the name by now, the request is remembered until the former
    %% one replies or ends. A late reply does no harm.
    case whereis(Name) of
        Server when is_pid(Server) -> address({cancel, Server, Caller}, Agent);
        _ -> {nobody, Agent}
    end;
address({tell, Name}, Agent) ->
    case whereis(Name) of
        Pid when is_pid(Pid) -> {Pid, plain, Agent};
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
address({demonitor, Ref}, #agent{monitored = Monitored} = Agent) ->
    ok = trunkline_monitored:remove(Ref, Monitored),
    {nobody, Agent};
address({ended, Object, _, Ref}, Agent) ->
    {Ref, {down, Object, Ref}, Agent}.

%% Which way the reply should go. (A plain one could overtake one by lane for which its caller does
%% not wait. And a caller with a lease may have announced a request unseen.)
way({call, _, _, _}, Known, Agent) ->
    {by_lane, Known, Agent};
way({call, _, _, _, _, past}, Known, Agent) ->
    {past, Known, Agent};
way({call, Server, Pid, Request, _, Inlet}, #server{plain = Plain} = Known,
    #agent{waiting = Waiting, route = Route} = Agent) ->
    case may_be_plain(Known)
        andalso trunkline_plain_reply:request(Server, {Pid, Request}, Route, Plain) of
        {plain, Plain1} ->
            Waiting1 = trunkline_waiting:add({Request, Server}, {Inlet, Pid}, Waiting),
            {plain, Known#server{plain = Plain1}, Agent#agent{waiting = Waiting1}};
        {{asked, _} = Asked, Plain1} ->
            {by_lane, Known#server{plain = Plain1}, asked(Asked, Server, Agent)};
        {look, Plain1} ->
            ok = look(Agent),
            {by_lane, Known#server{plain = Plain1}, Agent};
        {ByLane, Plain1} ->
            {ByLane, Known#server{plain = Plain1}, Agent};
        false ->
            {by_lane, Known, Agent}
    end;
way(_, Known, Agent) ->
    {not_awaited, Known, Agent}.

asked(none, _, Agent) ->
    Agent;
asked({asked, Question}, Server, #agent{asked = Asked} = Agent) ->
    Agent#agent{asked = Asked#{Question => Server}}.

may_be_plain(#server{leased = Leased, others = Others}) -> Leased =:= 0 andalso Others =:= 0.

%% (A caller that has announced a request may send it by lane after all.)
waits(Caller, Waits, #server{others = Others, callers = Callers} = Known) ->
    Before = case Callers of
                 #{Caller := WaitsAlready} -> other(WaitsAlready);
                 #{} -> 0
             end,
    Known#server{others = Others - Before + other(Waits), callers = Callers#{Caller => Waits}}.

other({not_awaited, _}) -> 1;
other({announced, _}) -> 1;
other(_) -> 0.

%% A lane has answered a question.
-spec arrived(trunkline_plain_reply:question(), trunkline_in_turn:answer() | no, agent()) ->
          agent().
arrived(Question, Answer, #agent{servers = Servers, asked = Asked, route = Route} = Agent) ->
    case maps:take(Question, Asked) of
        {Server, Asked1} ->
            Lane = trunkline_sender:lane_of(Route, Server),
            HaveArrived = trunkline_in_turn:have_arrived(Lane, Question, Answer),
            Agent1 = Agent#agent{asked = Asked1},
            case Servers of
                #{Server := #server{plain = Plain} = Known} ->
                    Plain1 = trunkline_plain_reply:arrived(Question, HaveArrived, {Server, Route},
                                                           Plain),
                    Agent1#agent{servers = Servers#{Server := Known#server{plain = Plain1}}};
                #{} ->
                    Agent1
            end;
        error ->
            Agent
    end.

add_monitor(Server, Object, Caller, Ref, #agent{monitored = Monitored} = Agent) ->
    Agent#agent{monitored = trunkline_monitored:add(Server, Object, Caller, Ref, Monitored)}.

%% The message of this command, which has come by that lane of the peer, was lost at this node. For
%% the caller that is as if the connection had been lost. (A process that it monitors has ended.)
-spec broken(trunkline_command:command(), Lane :: pid(), agent()) -> agent().
broken(Command, Lane, Agent) when element(1, Command) =:= reply ->
    broken({down, Lane, element(2, Command)}, Lane, Agent);
broken({down, Object, Caller}, _, Agent) ->
    ok = trunkline_process:deliver(Caller, trunkline_command:wrap({down, Object, Caller},
                                                                noconnection)),
    Agent;
broken(Command, _, Agent) when element(1, Command) =:= call ->
    {Server, _, Caller, _} = trunkline_command:request(Command),
    send({down, Server, Caller}, noconnection, self(), Agent),
    {nobody, Agent1} = address({cancel, Server, Caller}, Agent),
    Agent1;
broken({ended, Object, Caller, Ref}, _, Agent) ->
    ok = trunkline_monitor_rows:down(Caller, Ref, Object, noproc),
    Agent;
broken(Command, _, Agent) when element(1, Command) =:= apply, element(2, Command) =/= nobody ->
    send({down, self(), element(2, Command)}, noconnection, self(), Agent),
    Agent;
broken(_, _, Agent) ->
    Agent.

%% A lane reports that these servers have replied to these callers.
-spec answered([{trunkline_command:caller(), Server :: pid()}], agent()) -> agent().
answered(Requests, Agent) ->
    lists:foldl(fun(Request, Agent0) -> settle(answered, Request, Agent0) end, Agent, Requests).

%% The caller of a request that was announced has given up. (If the same request has come by lane
%% meanwhile, it stays.)
-spec unannounced({trunkline_command:caller(), Server :: pid()}, agent()) -> agent().
unannounced({Caller, Server} = Request, #agent{servers = Servers} = Agent) ->
    case Servers of
        #{Server := #server{callers = #{Caller := {announced, _}}}} ->
            settle(cancelled, Request, Agent);
        #{} -> Agent
    end.

settle(How, {Caller, Server}, #agent{servers = Servers} = Agent) ->
    case Servers of
        #{Server := #server{callers = #{Caller := Waits} = Callers, others = Others} = Known} ->
            {Plain, Agent1} = settled(How, Caller, Waits, Server, {Known#server.plain, Agent}),
            Known1 = Known#server{callers = maps:remove(Caller, Callers), plain = Plain,
                                  others = Others - other(Waits)},
            owes_reply(Known1) orelse mark(Server, -1, Agent),
            Agent1#agent{servers = Servers#{Server := Known1}};
        #{} ->
            Agent
    end.

settled(How, Caller, {plain, Pid}, Server,
        {Plain, #agent{waiting = Waiting, route = Route} = Agent}) ->
    {trunkline_plain_reply:settle(How, Server, {Pid, Caller}, Route, Plain),
     Agent#agent{waiting = trunkline_waiting:remove({Caller, Server}, Waiting)}};
settled(answered, _, {{watching, Watch}, _}, Server, {Plain, #agent{route = Route} = Agent}) ->
    {Asked, Plain1} = trunkline_plain_reply:replied(Server, Watch, Route, Plain),
    {Plain1, asked(Asked, Server, Agent)};
settled(_, _, Waits, Server, {Plain, #agent{route = Route} = Agent}) ->
    case other(Waits) of
        %% A plain reply could overtake what has left the lane just now.
        1 -> {trunkline_plain_reply:other_request(Server, Route, Plain), Agent};
        0 -> {Plain, Agent}
    end.

%% No reply comes any more.
forget(How, Server, #server{callers = Callers, plain = Plain0} = Known,
       #agent{asked = Asked, route = Route} = Agent0) ->
    _ = owes_reply(Known) andalso mark(Server, -1, Agent0),
    {Plain, Agent} = maps:fold(fun(Caller, Waits, Acc) ->
                                       settled(How, Caller, Waits, Server, Acc)
                               end, {Plain0, Agent0}, Callers),
    case trunkline_plain_reply:ended(Server, Route, Plain) of
        none ->
            Agent;
        Question ->
            Lane = trunkline_sender:lane_of(Route, Server),
            ok = trunkline_in_turn:ask_no_more(Lane, Question),
            Agent#agent{asked = maps:remove(Question, Asked)}
    end.

%% This process, which the agent monitors, is going to execute the command.
-spec executed_by(pid(), trunkline_command:apply(), agent()) -> agent().
executed_by(_, {apply, nobody, _}, Agent) ->
    Agent;
executed_by(Executor, Command, #agent{executors = Executors} = Agent) ->
    Agent#agent{executors = Executors#{Executor => element(2, Command)}}.

%% A process has ended that a caller monitors.
-spec monitored_ended(trunkline_command:ended(), reference(), pid(), Reason :: term(), agent()) ->
          agent().
monitored_ended({ended, _, _, Ref} = Command, Monitor, Pid, Reason,
                #agent{monitored = Monitored} = Agent) ->
    _ = trunkline_monitored:has_ended(Ref, Monitor, Monitored)
        andalso send(Command, Reason, Pid, Agent),
    Agent.

%% A process has ended that should have sent a reply or an outcome.
-spec down(pid(), Reason :: term(), agent()) -> agent().
down(Executor, Reason, #agent{executors = Executors} = Agent)
  when is_map_key(Executor, Executors) ->
    {Caller, Executors1} = maps:take(Executor, Executors),
    %% (With that reason it ends when it has sent the outcome.)
    Reason =:= Caller orelse send({down, Executor, Caller}, Reason, Executor, Agent),
    Agent#agent{executors = Executors1};
down(Process, Reason, #agent{waiting = Waiting} = Agent) ->
    case trunkline_waiting:ended(Process, Waiting) of
        {Requests, Waiting1} ->
            answered(Requests, Agent#agent{waiting = Waiting1});
        unknown ->
            case is_relayed(Process, {server_ended, Process, Reason}, Agent) of
                true -> Agent;
                false -> server_ended(Process, Reason, Agent)
            end
    end.

%% What must come behind the requests that may have been announced takes their way, and comes back.
is_relayed(Server, Message, #agent{servers = Servers}) ->
    case Servers of
        #{Server := #server{leased = Ticks, lane = Lane}} when Ticks =/= 0 ->
            Lane ! {relay, self(), Message},
            true;
        #{} ->
            false
    end.

-spec server_ended(pid(), Reason :: term(), agent()) -> agent().
server_ended(Server, Reason, #agent{servers = Servers} = Agent) ->
    case maps:take(Server, Servers) of
        {#server{callers = Callers} = Known, Servers1} ->
            Agent1 = forget(ended, Server, Known, Agent),
            maps:foreach(fun(Caller, _) -> send({down, Server, Caller}, Reason, Server, Agent) end,
                         Callers),
            Agent1#agent{servers = Servers1};
        error ->
            Agent
    end.

%% Forgets servers that no caller waits for. (This is not done at every reply, because the next call
%% is most often to the same server.) There are no leases.
-spec sweep(agent()) -> agent().
sweep(#agent{servers = Servers} = Agent) ->
    maps:fold(fun(Server, #server{monitor = Monitor} = Known, #agent{servers = Left} = Agent0)
                    when map_size(Known#server.callers) =:= 0 ->
                      demonitor(Monitor),
                      Agent1 = Agent0#agent{servers = maps:remove(Server, Left)},
                      forget(over, Server, Known, Agent1);
                 (_, _, Agent0) ->
                      Agent0
              end, Agent, Servers).

%% The inlet ends. Who replies now replies to no caller.
-spec ended(agent()) -> ok.
ended(#agent{servers = Servers} = Agent) ->
    _ = maps:fold(fun(Server, Known, Agent0) -> forget(over, Server, Known, Agent0) end, Agent,
                  Servers),
    ok.

%% Or may owe one, for all that the agent knows.
owes_reply(#server{callers = Callers, leased = Ticks}) -> Ticks =/= 0 orelse map_size(Callers) > 0.

mark(Server, N, #agent{route = #route{bypass = Bypass}}) ->
    trunkline_bypass:called(Server, N, Bypass).

%% Whether a caller waits for a reply or an outcome, as far as is known.
-spec is_awaited(agent()) -> boolean().
is_awaited(#agent{servers = Servers, executors = Executors}) ->
    map_size(Executors) > 0
        orelse lists:any(fun(#server{callers = Callers}) -> map_size(Callers) > 0 end,
                         maps:values(Servers)).

%% This never waits for room: the inlet must go on delivering, or two nodes could wait for each
%% other for ever. It takes the lane to which the server has replied, also when inlet and lane have
%% retired: what the lane passes on keeps its order.
send(Command, Message, Server, #agent{route = Route}) ->
    trunkline_sender:force(Route, {Command, Message}, Server).
