%% The receiving end of a lane: delivers its messages in order, grants credit, and is the agent for
%% the requests that the lane brings.
%%
%%     lane ══ batches ══════> inlet ── messages, in order ──> receivers
%%       ^                      │  │
%%       └── ack, delivered ────┘  └── requests (trunkline_agent) ──> servers
%%
%% A large message arrives outside the lane, which brings a notice in its place: see
%% trunkline_unpacking. Messages that must not overtake it wait there. They are not acknowledged
%% while they wait.
%%
%% Batches come by the distribution, or by connections of the lane's own, whose sockets this process
%% owns (trunkline_channels). They are delivered in the order of their numbers (trunkline_arrivals).
%% A connection that brings anything but batches is closed; the lane sends again what may be lost by
%% that.
%%
%% An inlet lives for one session of a link, which may outlive its connection. Then what the inlet
%% said to its lane may have been lost, and the lane asks for the inlet's state (resume/2). Nothing
%% else changes. At the end of the session finish/2 lets the inlet deliver what has arrived. Local
%% callers watch any inlet of the session while they wait for a reply from that node, which may come
%% by another one. So the inlets end together, when all have delivered, and so does every wait. (If
%% one takes long to deliver, the others do not wait for it.) Or, after an end in good order, they
%% retire, and stay for callers (trunkline_retired_inlet).
%%
%% Requests of few callers come here past the lane (trunkline_few_callers). The mailbox is on the
%% heap, whatever the node's default is: so they keep their order with the batches that are sent
%% after them. (An off-heap mailbox keeps the order of each sender only, see trunkline_lane. Where
%% very many monitored processes end at once it would be faster, since no garbage collection would
%% look at it: docs/lab/how-it-works.md.)
-module(trunkline_inlet).
-moduledoc false.

-include("../gate/trunkline_route.hrl").

-export([start_link/4, batch/2, frame/2, resume/2, finish/2, over/1, arrived/3, answered/2]).
-export([init/4, loop/1]).

%% ms: what is delivered is acknowledged after ACK_DELAY if not before, and an inlet that is idle
%% for QUIET gives its memory back.
-define(ACK_DELAY, 20).
-define(QUIET, 1000).
%% Bytes of delivered large messages of which the lane need not be told at once.
-define(TELL, 524288).

-dialyzer({no_improper_lists, [deliver_opened/3, past/3]}).

%% What an inlet does when everything is delivered that had arrived.
-type then() :: over | {retire, Counterpart :: pid()}.
-type serial() :: trunkline_notices:serial().

-record(inlet,
        {ix :: pos_integer(),
         lane :: pid(),
         route :: trunkline_route:route(),
         stats :: trunkline_stats:stats(),
         window :: trunkline_window:receiver(),
         agent :: trunkline_agent:agent(),
         unpacking :: trunkline_unpacking:unpacking(),
         delivered = [] :: [serial()],          % large messages: the lane has not been told yet
         delivered_bytes = 0 :: non_neg_integer(),
         %% At the end of the session: it delivers; the link knows that everything is delivered.
         ends = no :: no | {finishing, then()} | {told, then()}
                    | {retired, trunkline_retired_inlet:retired()} | over,
         arrivals = trunkline_arrivals:new() :: trunkline_arrivals:arrivals(),
         ack_timer = false :: boolean(),
         quiet_timer = false :: boolean(),
         active = false :: boolean()}).         % since the last quiet timer

%% The inlet for the peer's lane number Ix, whose pid is Lane. Replies go back by
%% Route.
-spec start_link(pos_integer(), Lane :: pid(), WindowBytes :: pos_integer(),
                 trunkline_route:route()) -> pid().
start_link(Ix, Lane, WindowBytes, Route) ->
    proc_lib:spawn_opt(?MODULE, init, [Ix, Lane, WindowBytes, Route],
                       [link, {message_queue_data, on_heap} | trunkline_heap:options()]).

-spec init(pos_integer(), pid(), pos_integer(), trunkline_route:route()) -> no_return() | ok.
init(Ix, Lane, WindowBytes, #route{stats = Stats} = Route) ->
    ok = trunkline_process:label({trunkline_inlet, node(Lane), Ix}),
    Inlet = #inlet{ix = Ix, lane = Lane, stats = Stats, route = Route,
                   window = trunkline_window:receiver(WindowBytes),
                   agent = trunkline_agent:new(Route),
                   unpacking = trunkline_unpacking:new(Lane, Stats)},
    proc_lib:hibernate(?MODULE, loop, [Inlet]).

%% Sends a batch by the distribution. That may suspend the caller while the connection is busy.
%% Without a connection nothing is sent: the batch stays unconfirmed, and the link is about to hear
%% that the node is gone.
-spec batch(pid(), trunkline_batches:batch()) -> ok.
batch(Inlet, {Number, Ack, Charge, Entries}) ->
    trunkline_process:send_connected(Inlet, {batch, Number, Ack, Charge, Entries}).

%% The same for a batch that was encoded for a connection.
-spec frame(pid(), trunkline_writer:frame()) -> ok.
frame(Inlet, {_, Frame}) ->
    trunkline_process:send_connected(Inlet, {frame, iolist_to_binary(Frame)}).

%% The inlet's lane calls this, and gets {resumed, Ref, Expects, Acknowledged, Missing}: which batch
%% is next, how much has been acknowledged in all (trunkline_window), and which large messages have
%% not been delivered although their notice has come. The question may be lost with a connection.
-spec resume(pid(), reference()) -> ok.
resume(Inlet, Ref) ->
    trunkline_process:send_connected(Inlet, {resume, Ref}).

%% Lets the inlet deliver what has arrived. Then it sends {finished, self()} to the link, and waits
%% until it is over/1.
-spec finish(pid(), then()) -> ok.
finish(Inlet, Then) ->
    Inlet ! {finish, Then, 2},
    ok.

%% The inlet ends, with reason normal. Or it sends {retired, self()} to the link, and lives on while
%% a process waits.
-spec over(pid()) -> ok.
over(Inlet) ->
    Inlet ! over,
    ok.

%% All fragments of that large message have arrived.
-spec arrived(pid(), serial(), trunkline_reassembly:parts()) -> ok.
arrived(Inlet, Number, Parts) ->
    Inlet ! {arrived, Number, Parts},
    ok.

%% Servers have replied to these requests. A lane calls this when the replies have left it.
-spec answered(pid(), [{trunkline_command:caller(), Server :: pid()}]) -> ok.
answered(Inlet, Requests) ->
    Inlet ! {answered, Requests},
    ok.

-spec loop(#inlet{}) -> no_return() | ok.
loop(#inlet{ends = over, agent = Agent}) ->
    trunkline_agent:ended(Agent);
loop(S) ->
    receive
        {batch, Serial, Ack, Charge, Entries} ->
            Batch = {Ack, Charge, Entries},
            loop(arrivals(trunkline_arrivals:batch(Serial, Batch, S#inlet.arrivals), S));
        {past, Command, Message} ->
            loop(past(Command, Message, S));
        {answered, Requests} when is_list(Requests) ->
            loop(S#inlet{agent = trunkline_agent:answered(Requests, S#inlet.agent)});
        {called, Request} ->
            Agent = trunkline_agent:called(Request, S#inlet.agent),
            loop(timer(quiet, S#inlet{agent = Agent, active = true}));
        {Question, Answer} when is_reference(Question) ->
            loop(S#inlet{agent = trunkline_agent:arrived(Question, Answer, S#inlet.agent)});
        look ->
            ok = trunkline_agent:look(S#inlet.agent),
            loop(S);
        {timeout, Timer, look} ->
            Agent = trunkline_agent:time_to_look(Timer, S#inlet.agent),
            loop(timer(quiet, S#inlet{agent = Agent}));
        {are_waiting, Agent, Requests} ->
            ok = trunkline_waiting:are_waiting(Agent, Requests),
            loop(S);
        {lease_over, Server, Ref} ->
            loop(S#inlet{agent = trunkline_agent:lease_over(Server, Ref, S#inlet.agent)});
        {server_ended, Server, Reason} ->
            loop(S#inlet{agent = trunkline_agent:server_ended(Server, Reason, S#inlet.agent)});
        {arrived, Number, Parts} ->
            Arrived = trunkline_unpacking:arrived(Number, Parts, S#inlet.unpacking),
            loop(timer(quiet, steps(Arrived, S)));
        {opener, _, _} = News ->
            loop(timer(quiet, news(News, S)));
        {opened, Opener, To, Message} ->
            loop(opened(Opener, To, Message, S));
        {timeout, _, {opener, _}} = News ->
            loop(news(News, S));
        {opener_ended, _, process, _, _} = News ->
            loop(timer(quiet, news(News, S)));
        {{ended, _, _, _} = Command, Monitor, process, Pid, Reason} ->
            loop(S#inlet{agent = trunkline_agent:monitored_ended(Command, Monitor, Pid, Reason,
                                                                 S#inlet.agent)});
        {'DOWN', _, process, _, _} = Down ->
            loop(down(Down, S));
        {resume, Ref} when is_reference(Ref) ->
            loop(resumed(Ref, S));
        over ->
            loop(ended(S));
        {unannounced, Request} ->
            loop(S#inlet{agent = trunkline_agent:unannounced(Request, S#inlet.agent)});
        {timeout, _, Timer} when Timer =:= ack; Timer =:= quiet; Timer =:= awaited ->
            %% Once a second, at least, it moves on to code that has been loaded meanwhile.
            ?MODULE:loop(timeout(Timer, S));
        {finish, Then, N} when N > 0 ->
            %% When the first message to itself is here, so are all batches that had arrived; when
            %% the second one is, these batches have been delivered.
            self() ! {finish, Then, N - 1},
            loop(S);
        {finish, Then, _} ->
            Arrivals = trunkline_arrivals:without_early(S#inlet.arrivals),
            S1 = S#inlet{ends = {finishing, Then}, arrivals = Arrivals},
            loop(finished(steps(trunkline_unpacking:finish(S#inlet.unpacking), S1)));
        {system, From, Request} ->
            trunkline_process:system(From, Request, fun ?MODULE:loop/1, S);
        {socket, _, Transport, Socket} ->
            _ = trunkline_transport:frames(Transport, Socket),
            loop(timer(quiet, S));
        {frame, Frame} ->
            loop(frame(distribution, Frame, S));
        Other ->
            loop(event(trunkline_transport:event(Other), Other, S))
    end.

event({frame, Transport, Socket, Frame}, _, #inlet{stats = Stats} = S) ->
    trunkline_stats:add(Stats, peer, batches_arrived_bytes, byte_size(Frame)),
    frame({Transport, Socket}, Frame, S);
event({passive, Transport, Socket}, _, S) ->
    _ = trunkline_transport:more(Transport, Socket),
    S;
event({closed, _}, _, S) ->
    S;
event(unknown, Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    S.

frame(From, Frame, #inlet{arrivals = Arrivals} = S) ->
    case trunkline_arrivals:frame(From, Frame, Arrivals) of
        {ok, Arrivals1} -> arrivals(Arrivals1, S);
        refused -> refused(From, S)
    end.

refused(distribution, S) ->
    S;
refused({Transport, Socket}, S) ->
    ok = trunkline_transport:close(Transport, Socket),
    S.

%% Delivers the batches whose turn has come.
arrivals(Arrivals, S) ->
    case trunkline_arrivals:take(Arrivals) of
        {batch, {Ack, Charge, Entries}, Arrivals1} ->
            {Waiting, S1} = deliver(arrived(Entries, S), S#inlet.agent, 0, S),
            S2 = delivered(Ack, Charge, Waiting, S1#inlet{arrivals = Arrivals1}),
            arrivals(S2#inlet.arrivals, S2);
        {refused, From, Arrivals1} ->
            arrivals(Arrivals1, refused(From, S));
        none ->
            S#inlet{arrivals = Arrivals}
    end.

%% Returns the charge of what has to wait for its turn.
deliver([[To | Message] | Entries], Agent, Waiting, S) when not is_tuple(To) ->
    ok = trunkline_process:deliver(To, Message),
    deliver(Entries, Agent, Waiting, S);
deliver([[{each, Addressees} | Encoded] | Entries], Agent, Waiting, S) ->
    ok = trunkline_multicast:deliver(Addressees, binary_to_term(Encoded)),
    deliver(Entries, Agent, Waiting, S);
deliver([[{behind, Charge, _, _} = Behind | Message] | Entries], Agent, Waiting, S) ->
    case trunkline_unpacking:behind(Behind, Message, S#inlet.unpacking) of
        {now, Entry, Unpacking} ->
            deliver(arrived([Entry], S) ++ Entries, Agent, Waiting, S#inlet{unpacking = Unpacking});
        {later, Unpacking} ->
            deliver(Entries, Agent, Waiting + Charge, S#inlet{unpacking = Unpacking})
    end;
deliver([[{notice, Charge, _, _, _} = Notice | Sizes] | Entries], Agent, Waiting, S) ->
    S1 = steps(trunkline_unpacking:noticed(Notice, Sizes, S#inlet.unpacking),
               S#inlet{agent = Agent}),
    deliver(Entries, S1#inlet.agent, Waiting + Charge, S1);
deliver([[Command | Message] | Entries], Agent, Waiting, S) ->
    deliver(Entries, trunkline_agent:step(Command, Message, Agent), Waiting, S);
deliver([], Agent, Waiting, S) ->
    {Waiting, S#inlet{agent = Agent}}.

%% A request that has come past the lane.
past(Command, Message, S) ->
    S1 = deliver_alone([Command | Message], S),
    timer(quiet, S1#inlet{active = true}).

%% An entry that is not in a batch.
deliver_alone(Entry, S) ->
    {0, S1} = deliver(arrived([Entry], S), S#inlet.agent, 0, S),
    S1.

%% Some may be for destinations that should have bounded their senders.
arrived(Entries, #inlet{lane = Lane}) -> trunkline_bounded:arrived(node(Lane), Entries).

%% --- large messages -----------------------------------------------------------

news({opener_ended, _, process, Opener, Reason} = News, S) ->
    S1 = steps(trunkline_unpacking:news(News, S#inlet.unpacking), S),
    finished(process_ended(Opener, Reason, S1));          % it may have executed a function
news(News, S) ->
    finished(steps(trunkline_unpacking:news(News, S#inlet.unpacking), S)).

steps({Steps, Unpacking}, S) -> lists:foldl(fun step/2, S#inlet{unpacking = Unpacking}, Steps).

step({turn, Opener, To, Receiver}, S) ->
    {Address, S1} = address(To, Receiver, Opener, S),
    ok = trunkline_opener:deliver(Opener, Address),
    S1;
step({message, Charge, Entry}, S) ->
    acknowledge(Charge, deliver_alone(Entry, S));
step({delivered, To}, S) ->
    ok = trunkline_agent:delivered(To),
    S;
step({broken, To}, #inlet{lane = Lane, agent = Agent} = S) ->
    S#inlet{agent = trunkline_agent:broken(To, Lane, Agent)};
step({done, Number, Charge, Sizes}, S) ->
    S1 = acknowledge(Charge, tell(Number, trunkline_opener:bytes(Sizes), S)),
    case Sizes of
        %% If the lane is idle now, the next term need not wait for its turn.
        {term, _} -> acknowledge_rest(S1);
        _ -> S1
    end.

address(To, Receiver, _, S) when is_pid(To); is_reference(To); is_atom(To) ->
    {{To, Receiver, plain}, S};
address({each, _} = To, _, _, S) ->
    {{To, any, plain}, S};
address(Command, _, Opener, S) when element(1, Command) =:= apply ->
    Agent = trunkline_agent:executed_by(Opener, Command, S#inlet.agent),
    {{executor, Command}, S#inlet{agent = Agent}};
address({exit, _, _} = Command, _, _, S) ->
    {{signal, Command}, S};
address(Command, Receiver, _, S) ->
    case trunkline_agent:address(Command, S#inlet.agent) of
        {nobody, Agent} ->
            {nobody, S#inlet{agent = Agent}};
        {To, Wrap, Agent} when is_pid(To) ->
            {{To, To, Wrap}, S#inlet{agent = Agent}};
        {To, Wrap, Agent} ->
            {{To, Receiver, Wrap}, S#inlet{agent = Agent}}
    end.

%% An opener has decoded the message, and leaves it to the inlet to deliver it: the receiver is not
%% known, or its mailbox is off heap, or there are several.
opened(Opener, To, Message, S) ->
    case trunkline_unpacking:is_opener(Opener, S#inlet.unpacking) of
        true -> news({opener, Opener, delivered}, deliver_opened(To, Message, S));
        false -> S                           % it is dead
    end.

deliver_opened({each, Addressees}, Message, S) ->
    trunkline_multicast:foldl(fun(Each, S0) -> deliver_opened(Each, Message, S0) end, S, Addressees,
                              Message);
deliver_opened(To, Message, S) ->
    deliver_alone([To | Message], S).

%% --- the end of the session -----------------------------------------------------

%% Tells the link when everything is delivered.
finished(#inlet{ends = {finishing, Then}, unpacking = Unpacking, route = Route} = S) ->
    case trunkline_unpacking:is_done(Unpacking) of
        true ->
            Route#route.link ! {finished, self()},
            S#inlet{ends = {told, Then}};
        false ->
            S
    end;
finished(S) ->
    S.

ended(#inlet{ends = {told, {retire, Counterpart}}, route = Route} = S) ->
    S#inlet{ends = trunkline_retired_inlet:retire(Counterpart, Route)};
ended(S) ->
    S#inlet{ends = over}.

%% A server has ended, or an executor, or a process with which this retired inlet ends.
down({'DOWN', _, process, Pid, Reason} = Down, #inlet{ends = {retired, Retired}} = S) ->
    case trunkline_retired_inlet:down(Down, Retired) of
        other -> process_ended(Pid, Reason, S);
        Ends -> S#inlet{ends = Ends}
    end;
down({'DOWN', _, process, Pid, Reason}, S) ->
    process_ended(Pid, Reason, S).

process_ended(Pid, Reason, #inlet{agent = Agent} = S) ->
    S#inlet{agent = trunkline_agent:down(Pid, Reason, Agent)}.

%% --- credit -------------------------------------------------------------------

%% Acknowledges a batch, except for what waits for its turn.
delivered(Ack, Charge, Waiting, #inlet{ix = Ix, stats = Stats} = S) ->
    trunkline_stats:add(Stats, {lane, Ix}, received_batches, 1),
    acknowledge(Ack, Charge - Waiting, timer(quiet, S#inlet{active = true})).

acknowledge(Charge, S) ->
    acknowledge(later, Charge, S).

acknowledge(Ack, Charge, #inlet{ix = Ix, stats = Stats} = S) ->
    trunkline_stats:add(Stats, {lane, Ix}, received_messages, trunkline_gate:messages(Charge)),
    trunkline_stats:add(Stats, {lane, Ix}, received_bytes, trunkline_gate:bytes(Charge)),
    case trunkline_window:delivered(Ack, Charge, S#inlet.window) of
        {ack, Delivered, Window} -> ack(Ack, Delivered, S#inlet{window = Window});
        {later, Window} -> timer(ack, S#inlet{window = Window})
    end.

acknowledge_rest(S0) ->
    S = tell(S0),              % also if there is nothing to acknowledge
    case trunkline_window:flush(S#inlet.window) of
        {ack, Charge, Window} -> ack(later, Charge, S#inlet{window = Window});
        none -> S
    end.

%% The lane is told of many large messages at a time if they are not so large: to tell of one costs
%% as much as the message itself.
tell(Number, Bytes, #inlet{delivered = Numbers, delivered_bytes = Sum} = S) ->
    S1 = S#inlet{delivered = [Number | Numbers], delivered_bytes = Sum + Bytes},
    if Sum + Bytes >= ?TELL -> tell(S1);
       true -> timer(ack, S1)
    end.

tell(#inlet{delivered = []} = S) ->
    S;
tell(#inlet{lane = Lane, delivered = Numbers} = S) ->
    ok = trunkline_process:send_connected(Lane, {delivered, self(), Numbers}),
    S#inlet{delivered = [], delivered_bytes = 0}.

%% Tells of large messages first: when everything that a lane has sent is acknowledged, it knows of
%% all large messages, too.
ack(Ack, Charge, S0) ->
    #inlet{lane = Lane, arrivals = Arrivals} = S = tell(S0),
    Arrived = trunkline_arrivals:next(Arrivals) - 1,
    ok = trunkline_process:send_connected(Lane, {ack, Ack, self(), Charge, Arrived}),
    S.

resumed(Ref, #inlet{lane = Lane, arrivals = Arrivals, window = Window} = S) ->
    Answer = {resumed, Ref, trunkline_arrivals:next(Arrivals),
              trunkline_window:acknowledged(Window),
              trunkline_unpacking:undelivered(S#inlet.unpacking)},
    ok = trunkline_process:send_connected(Lane, Answer),
    S#inlet{delivered = [], delivered_bytes = 0}.

timer(ack, #inlet{ack_timer = false} = S) ->
    _ = erlang:start_timer(?ACK_DELAY, self(), ack),
    S#inlet{ack_timer = true};
timer(quiet, #inlet{quiet_timer = false} = S) ->
    _ = erlang:start_timer(?QUIET, self(), quiet),
    S#inlet{quiet_timer = true};
timer(_, S) ->
    S.

timeout(ack, S) ->
    (acknowledge_rest(S))#inlet{ack_timer = false};
timeout(awaited, #inlet{agent = Agent, ends = {retired, Retired}} = S) ->
    case trunkline_agent:is_awaited(Agent) orelse trunkline_retired_inlet:is_watched(Retired) of
        true ->
            ok = trunkline_retired_inlet:look_again(),
            proc_lib:hibernate(?MODULE, loop, [S]);
        false ->
            S#inlet{ends = over}
    end;
timeout(quiet, #inlet{lane = Lane, active = Active} = S) ->
    {Unanswered, IsUsed, Agent} = trunkline_agent:tick(S#inlet.agent),
    %% The lane knows whether the callers live.
    _ = Unanswered =:= []
        orelse trunkline_process:send_connected(Lane, {unanswered, Unanswered}),
    S1 = S#inlet{active = false, quiet_timer = false, agent = Agent},
    case Active orelse IsUsed of
        true -> timer(quiet, S1);
        false ->
            S2 = S1#inlet{agent = trunkline_agent:sweep(Agent)},
            proc_lib:hibernate(?MODULE, loop, [S2])
    end.
