%% The receiving end of a lane: delivers its messages in order, grants credit, and is the agent for
%% the requests that the lane brings.
%%
%% Large messages arrive outside the lane, which brings a notice in the place of each. An opener
%% (trunkline_opener), one process for each large message, decodes it, and delivers it when the
%% inlet says that its turn has come:
%%
%%     lane ══ notice ══> inlet <── arrived, fragments ── trunkline_dock
%%                        │  ^
%%                deliver │  │ delivered, or dead
%%                        v  │
%%                       opener ── the message ──> receiver
%%
%% Messages that must not overtake a large message wait here. They are not acknowledged while they
%% wait, so the window bounds them.
%%
%% Batches come by the distribution, or by connections of the lane's own, whose sockets this process
%% owns (trunkline_channels). They are delivered in the order of their numbers (trunkline_arrivals).
%% A connection that brings anything but batches is closed; the lane sends again what may be lost by
%% that.
%%
%% A registered name is looked up once, as for `!': when the message's turn comes. The turn of a
%% small message comes when no message of the same sender is in its way to the process that has the
%% name. The turn of a large message comes with the message itself. Until then it is not known which
%% process will have the name, so everything that its sender sends behind it waits, whatever the
%% receiver (see trunkline_turns). What is sent behind a small message to a name waits, too, if that
%% message is held up. So what one process sends to another is in order, whether it was sent to a
%% pid or to a name, and whichever process takes the name meanwhile.
%%
%% An inlet lives for one session of a link, which may outlive its connection. Then what the inlet
%% said to its lane may have been lost, and the lane asks for the inlet's state (resume/2). Nothing
%% else changes. At the end of the session finish/2 lets the inlet deliver what has arrived. Local
%% callers watch any inlet of the session while they wait for a reply from that node, which may come
%% by another one. So the inlets end together, when all have delivered, and so does every wait. (If
%% one takes long to deliver, the others do not wait for it.)
%%
%% Or an inlet retires then, and stays for callers (trunkline_retired_inlet).
%%
%% The mailbox is off heap, because very many monitored processes may end at once, and each garbage
%% collection would look at everything in a mailbox on the heap. An off-heap mailbox keeps the order
%% of each sender only (see trunkline_lane): nothing here may depend on more.
-module(trunkline_inlet).
-moduledoc false.

-include("../gate/trunkline_route.hrl").

-export([start_link/4, batch/2, frame/2, resume/2, finish/2, over/1, arrived/3, answered/2]).
-export([init/4, loop/1]).

%% ms: what is delivered is acknowledged after ACK_DELAY if not before, and an inlet that is idle
%% for QUIET gives its memory back.
-define(ACK_DELAY, 20).
-define(QUIET, 1000).
%% Until an opener is tried again when there was no process left.
-define(AGAIN, 100).
%% Bytes of delivered large messages of which the lane need not be told at once.
-define(TELL, 524288).

-dialyzer({no_improper_lists, [deliver/4, deliver_opened/3]}).

-type serial() :: pos_integer().             % of a large message
%% What an inlet does when everything is delivered that had arrived.
-type then() :: over | {retire, Counterpart :: pid()}.
-type receiver() :: trunkline_turns:receiver().
%% What waits for its turn: a message, or a large message.
-type item() :: {message, trunkline_gate:charge(), trunkline_lane:entry()}
              | {large, serial()}.
-record(large,
        {sender :: pid(),
         receiver :: receiver(),
         to :: trunkline_lane:to(),
         sizes :: trunkline_opener:sizes(),
         charge :: trunkline_gate:charge(),
         turn = false :: boolean(),
         %% `lost': with the session. It is not acknowledged, so that the lane counts it.
         opener = none :: none | later | pid() | ended | lost}).

%% (An element of an atom makes a guard fail.)
-define(IS_FINISHING(S), (element(1, S#inlet.ends) =:= finishing
                          orelse element(1, S#inlet.ends) =:= told)).

-record(inlet,
        {ix :: pos_integer(),
         lane :: pid(),
         route :: trunkline_route:route(),
         stats :: trunkline_stats:stats(),
         window :: trunkline_window:receiver(),
         agent :: trunkline_agent:agent(),
         turns = trunkline_turns:new() :: trunkline_turns:turns(item()),
         large = #{} :: #{serial() => #large{}},                   % of which a notice has come
         arrived = #{} :: #{serial() => trunkline_reassembly:parts()},   % before its notice
         openers = #{} :: #{pid() | Later :: reference() => serial()},
         delivered = [] :: [serial()],                             % the lane has not been told yet
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
                       [link, {message_queue_data, off_heap}]).

-spec init(pos_integer(), pid(), pos_integer(), trunkline_route:route()) -> no_return() | ok.
init(Ix, Lane, WindowBytes, #route{stats = Stats} = Route) ->
    ok = trunkline_process:label({trunkline_inlet, node(Lane), Ix}),
    Inlet = #inlet{ix = Ix, lane = Lane, stats = Stats, route = Route,
                   window = trunkline_window:receiver(WindowBytes),
                   agent = trunkline_agent:new(Route)},
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
loop(#inlet{ends = {finishing, Then}, openers = Openers, route = Route} = S)
  when map_size(Openers) =:= 0 ->
    Route#route.link ! {finished, self()},
    loop(S#inlet{ends = {told, Then}});
loop(#inlet{ends = over, agent = Agent}) ->
    trunkline_agent:ended(Agent);
loop(S) ->
    receive
        {batch, Serial, Ack, Charge, Entries} ->
            Batch = {Ack, Charge, Entries},
            loop(arrivals(trunkline_arrivals:batch(Serial, Batch, S#inlet.arrivals), S));
        {answered, Requests} when is_list(Requests) ->
            loop(S#inlet{agent = trunkline_agent:answered(Requests, S#inlet.agent)});
        {called, Request} ->
            Agent = trunkline_agent:called(Request, S#inlet.agent),
            loop(timer(quiet, S#inlet{agent = Agent, active = true}));
        {lease_over, Server, Ref} ->
            loop(S#inlet{agent = trunkline_agent:lease_over(Server, Ref, S#inlet.agent)});
        {server_ended, Server, Reason} ->
            loop(S#inlet{agent = trunkline_agent:server_ended(Server, Reason, S#inlet.agent)});
        {arrived, Number, Parts} ->
            loop(timer(quiet, open(Number, Parts, S)));
        {opened, Opener, To, Message} when is_map_key(Opener, S#inlet.openers) ->
            %% The receiver is not known, or there are several: see trunkline_opener.
            S1 = deliver_opened(To, Message, S),
            loop(opener_ended(Opener, opener_delivered(Opener, S1)));
        {missing, Opener} ->
            loop(opener_ended(Opener, S));
        {lost, Opener} ->
            loop(opener_ended(Opener, lost, S));
        {delivered, Opener} ->
            loop(opener_ended(Opener, opener_delivered(Opener, S)));
        {'DOWN', Monitor, process, Opener, Reason} when is_map_key(Opener, S#inlet.openers) ->
            Down = {'DOWN', Monitor, process, Opener, Reason},
            loop(opener_died(Opener, down(Down, broken(Opener, S))));
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
        {timeout, Timer, {open, Parts}} when is_map_key(Timer, S#inlet.openers) ->
            loop(open_again(Timer, Parts, S));
        {timeout, Timer, died} when is_map_key(Timer, S#inlet.openers) ->
            loop(opener_died(Timer, S));
        {finish, Then, N} when N > 0 ->
            %% When the first message to itself is here, so are all batches that had arrived; when
            %% the second one is, these batches have been delivered.
            self() ! {finish, Then, N - 1},
            loop(S);
        {finish, Then, _} ->
            Arrivals = trunkline_arrivals:without_early(S#inlet.arrivals),
            loop(without_missing(S#inlet{ends = {finishing, Then}, arrived = #{},
                                         arrivals = Arrivals}));
        {system, From, Request} ->
            trunkline_process:system(From, Request, fun ?MODULE:loop/1, S);
        {socket, _, Transport, Socket} ->
            _ = trunkline_transport:frames(Transport, Socket),
            loop(timer(quiet, S));
        {frame, Frame} ->
            loop(frame(distribution, Frame, S));
        {opened, _, _, _} ->
            loop(S);                         % its opener is dead
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
deliver([[{behind, Charge, Sender, To} | Message] | Entries], Agent, Waiting, S) ->
    {To1, Receiver} = receiver_now(To, Sender, S#inlet.turns),
    Entry = [To1 | Message],
    {Items, Turns} = trunkline_turns:enter(Sender, Receiver, {no_time, {message, Charge, Entry}},
                                           S#inlet.turns),
    S1 = S#inlet{turns = Turns},
    case Items of
        [] -> deliver(Entries, Agent, Waiting + Charge, S1);
        [_] -> deliver(arrived([Entry], S) ++ Entries, Agent, Waiting, S1)
    end;
deliver([[{notice, Charge, Number, Sender, To} | Sizes] | Entries], Agent, Waiting, S) ->
    S1 = noticed(Number, #large{sender = Sender, receiver = receiver(To), to = To, sizes = Sizes,
                                charge = Charge}, S#inlet{agent = Agent}),
    deliver(Entries, S1#inlet.agent, Waiting + Charge, S1);
deliver([[Command | Message] | Entries], Agent, Waiting, S) ->
    deliver(Entries, trunkline_agent:step(Command, Message, Agent), Waiting, S);
deliver([], Agent, Waiting, S) ->
    {Waiting, S#inlet{agent = Agent}}.

%% Some may be for destinations that should have bounded their senders.
arrived(Entries, #inlet{lane = Lane}) -> trunkline_bounded:arrived(node(Lane), Entries).

%% A message that an opener has decoded.
deliver_opened({each, Addressees}, Message, S) ->
    trunkline_multicast:foldl(fun(Each, S0) -> deliver_opened(Each, Message, S0) end, S, Addressees,
                              Message);
deliver_opened(To, Message, S) ->
    {0, S1} = deliver(arrived([[To | Message]], S), S#inlet.agent, 0, S),
    S1.

%% --- large messages -----------------------------------------------------------

%% The process that will get the message, if that can be known before its turn.
receiver(To) when is_pid(To) -> To;
receiver(To) when is_reference(To); is_atom(To) -> any;
receiver(Command) ->
    case trunkline_command:receiver(Command) of
        Receiver when is_pid(Receiver) -> Receiver;
        _ -> any
    end.

%% The receiver of a message that takes no time. If nothing is in its way to the process that has
%% the name now, its turn has come, and from here on it is for that process.
receiver_now(Name, Sender, Turns) when is_atom(Name) ->
    case whereis(Name) of
        Pid when is_pid(Pid) ->
            case trunkline_turns:is_free(Sender, Pid, Turns) of
                true -> {Pid, Pid};
                false -> {Name, any}
            end;
        _ ->
            {Name, any}
    end;
receiver_now({turn, Name, _, _} = To, _, _) when is_atom(Name) ->
    %% The sender has the term, which takes time: by then another process may have the name.
    {To, any};
receiver_now(To, Sender, Turns) when is_tuple(To) ->
    case trunkline_command:receiver(To) of
        {name, Name} ->
            case receiver_now(Name, Sender, Turns) of
                {_, any} -> {To, any};
                {Pid, Pid} -> {trunkline_command:for(Pid, To), Pid}
            end;
        _ ->
            {To, receiver(To)}
    end;
receiver_now(To, _, _) ->
    {To, receiver(To)}.

noticed(Number, #large{sender = Sender, receiver = Receiver} = Large, S) ->
    {Items, Turns} = trunkline_turns:enter(Sender, Receiver, {time, {large, Number}},
                                           S#inlet.turns),
    S1 = items(Items, S#inlet{turns = Turns, large = (S#inlet.large)#{Number => Large}}),
    case maps:take(Number, S1#inlet.arrived) of
        {Parts, Arrived} -> open(Number, Parts, S1#inlet{arrived = Arrived});
        error when ?IS_FINISHING(S) -> ended(Number, lost, S1);
        error when element(1, Large#large.sizes) =:= term ->
            open(Number, {term, S#inlet.lane, Number}, S1);
        error -> S1
    end.

%% Has it decoded before its turn comes, in parallel with everything else.
open(Number, {term, _, _}, S) when ?IS_FINISHING(S) ->
    ended(Number, lost, S);
open(Number, Parts, #inlet{large = All} = S) ->
    case All of
        #{Number := #large{opener = none, sizes = Sizes} = Large} ->
            {Opener, Started} = start_opener(Parts, Sizes, {open, Parts}),
            turn(Number, S#inlet{large = All#{Number := Large#large{opener = Opener}},
                                 openers = (S#inlet.openers)#{Started => Number}});
        #{} when ?IS_FINISHING(S); is_map_key(Number, All) ->
            S;
        #{} ->
            S#inlet{arrived = (S#inlet.arrived)#{Number => Parts}}
    end.

%% If there is no process left, that timer ends later.
start_opener(Parts, Sizes, Again) ->
    case trunkline_opener:start(Parts, Sizes) of
        {ok, {Pid, _}} -> {Pid, Pid};
        {error, system_limit} -> {later, erlang:start_timer(?AGAIN, self(), Again)}
    end.

open_again(Timer, Parts, #inlet{openers = Openers, large = All} = S) ->
    {Number, Openers1} = maps:take(Timer, Openers),
    #{Number := Large} = All,
    open(Number, Parts, S#inlet{openers = Openers1,
                                large = All#{Number := Large#large{opener = none}}}).

%% First all of the items, and only then what follows from those that are lost already.
items(Items, S) ->
    {Ended, S1} = lists:foldl(fun item/2, {[], S}, Items),
    lists:foldl(fun done/2, S1, lists:reverse(Ended)).

item({large, Number}, {Ended, #inlet{large = All} = S}) ->
    case All of
        #{Number := #large{opener = Opener}} when Opener =:= ended; Opener =:= lost ->
            {[Number | Ended], S};
        #{Number := Large} ->
            {Ended, turn(Number, S#inlet{large = All#{Number := Large#large{turn = true}}})}
    end;
item({message, Charge, Entry}, {Ended, S}) ->
    {0, S1} = deliver(arrived([Entry], S), S#inlet.agent, 0, S),
    {Ended, acknowledge(Charge, S1)}.

%% A large message is delivered when its turn has come and it is here.
turn(Number, #inlet{large = All} = S) ->
    case All of
        #{Number := #large{turn = true, opener = Opener, to = To}} when is_pid(Opener) ->
            {Address, S1} = address(To, Opener, S),
            ok = trunkline_opener:deliver(Opener, Address),
            S1;
        #{Number := #large{turn = true, opener = Opener}} when Opener =:= ended; Opener =:= lost ->
            done(Number, S);
        _ ->
            S
    end.

address(To, _, S) when is_pid(To) ->
    {{To, To, plain}, S};
address(To, _, S) when is_reference(To); is_atom(To); element(1, To) =:= each ->
    {{To, any, plain}, S};
address(Command, Opener, S) when element(1, Command) =:= apply ->
    Agent = trunkline_agent:executed_by(Opener, Command, S#inlet.agent),
    {{executor, Command}, S#inlet{agent = Agent}};
address({exit, _, _} = Command, _, S) ->
    {{signal, Command}, S};
address(Command, _, S) ->
    case trunkline_agent:address(Command, S#inlet.agent) of
        {nobody, Agent} ->
            {nobody, S#inlet{agent = Agent}};
        {To, Wrap, Agent} when is_pid(To) ->
            {{To, To, Wrap}, S#inlet{agent = Agent}};
        {To, Wrap, Agent} ->
            {{To, receiver(Command), Wrap}, S#inlet{agent = Agent}}
    end.

%% The opener has died with its message. A caller that waits for it, or for a reply to it, is told.
%% (A reply that the lane has sent straight to the caller just then comes too late.)
broken(Opener, #inlet{stats = Stats, openers = Openers, large = All, lane = Lane,
                      agent = Agent} = S) ->
    trunkline_stats:add(Stats, peer, large_broken, 1),
    #{Opener := Number} = Openers,
    case All of
        #{Number := #large{to = To}} when is_tuple(To) ->
            S#inlet{agent = trunkline_agent:broken(To, Lane, Agent)};
        #{} -> S
    end.

%% The opener of a term may have asked the lane to send the term to its receiver. What comes behind
%% waits until it has arrived, or never will. So another opener asks for it, and drops what it gets.
opener_died(Opener, #inlet{openers = Openers, large = All, lane = Lane} = S) ->
    {Number, Openers1} = maps:take(Opener, Openers),
    case All of
        #{Number := #large{sizes = {term, _} = Sizes, turn = true} = Large} ->
            {Another, Started} = start_opener({term, Lane, Number}, Sizes, died),
            _ = is_pid(Another) andalso trunkline_opener:deliver(Another, nobody),
            S#inlet{openers = Openers1#{Started => Number},
                    large = All#{Number := Large#large{to = nobody, opener = later}}};
        #{} ->
            opener_ended(Opener, S)
    end.

opener_delivered(Opener, #inlet{openers = Openers, large = All} = S) ->
    case Openers of
        #{Opener := Number} ->
            #{Number := #large{to = To, sizes = Sizes}} = All,
            ok = fetched(Sizes, S),
            ok = trunkline_agent:delivered(To);
        #{} ->
            ok
    end,
    S.

fetched({term, Bytes}, #inlet{stats = Stats}) ->
    trunkline_stats:add(Stats, peer, large_arrived_bytes, Bytes);
fetched(_, _) ->
    ok.

%% The opener has delivered its message, or is dead: maybe before its turn.
opener_ended(Opener, S) -> opener_ended(Opener, ended, S).

opener_ended(Opener, How, #inlet{openers = Openers} = S) ->
    case maps:take(Opener, Openers) of
        {Number, Openers1} -> ended(Number, How, S#inlet{openers = Openers1});
        error -> S
    end.

ended(Number, How, #inlet{large = All} = S) ->
    #{Number := Large} = All,
    turn(Number, S#inlet{large = All#{Number := Large#large{opener = How}}}).

%% It is the turn of those behind it. (They are delivered before the lane is told: a reply of the
%% same sender, which the lane may send by the distribution then, must not overtake them.)
done(Number, #inlet{large = All} = S) ->
    {#large{sender = Sender, receiver = Receiver} = Large, All1} = maps:take(Number, All),
    {Items, Turns} = trunkline_turns:done(Sender, Receiver, S#inlet.turns),
    acknowledge_large(Number, Large, items(Items, S#inlet{large = All1, turns = Turns})).

acknowledge_large(_, #large{opener = lost}, S) ->
    S;
acknowledge_large(Number, #large{charge = Charge, sizes = Sizes}, S) ->
    S1 = acknowledge(Charge, tell(Number, trunkline_opener:bytes(Sizes), S)),
    case Sizes of
        %% If the lane is idle now, the next term need not wait for its turn.
        {term, _} -> acknowledge_rest(S1);
        _ -> S1
    end.

%% The lane is told of many at a time if they are not so large: to tell of one costs
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

%% What is not here now will not come any more.
without_missing(#inlet{large = All} = S) ->
    lists:foldl(fun(Number, #inlet{large = Large} = S1) ->
                        case Large of
                            #{Number := #large{opener = none}} -> ended(Number, lost, S1);
                            #{Number := #large{opener = Opener, sizes = {term, _}, turn = false}}
                              when is_pid(Opener) -> ok = trunkline_opener:finish(Opener), S1;
                            #{} -> S1
                        end
                end, S, lists:sort(maps:keys(All))).

%% --- the end of the session -----------------------------------------------------

ended(#inlet{ends = {_, {retire, Counterpart}}, route = Route} = S) ->
    S#inlet{ends = trunkline_retired_inlet:retire(Counterpart, Route)};
ended(S) ->
    S#inlet{ends = over}.

%% A server has ended, or an executor, or a process with which this retired inlet ends.
down(Down, #inlet{ends = {retired, Retired}} = S) ->
    case trunkline_retired_inlet:down(Down, Retired) of
        other -> process_ended(Down, S);
        Ends -> S#inlet{ends = Ends}
    end;
down(Down, S) ->
    process_ended(Down, S).

process_ended({'DOWN', _, process, Pid, Reason}, #inlet{agent = Agent} = S) ->
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

%% Tells of large messages first: when everything that a lane has sent is acknowledged, it knows of
%% all large messages, too.
ack(Ack, Charge, S0) ->
    #inlet{lane = Lane, arrivals = Arrivals} = S = tell(S0),
    Arrived = trunkline_arrivals:next(Arrivals) - 1,
    ok = trunkline_process:send_connected(Lane, {ack, Ack, self(), Charge, Arrived}),
    S.

resumed(Ref, #inlet{lane = Lane, arrivals = Arrivals, window = Window, large = Large} = S) ->
    Answer = {resumed, Ref, trunkline_arrivals:next(Arrivals),
              trunkline_window:acknowledged(Window), maps:keys(Large)},
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
    {Unanswered, HasLeases, Agent} = trunkline_agent:tick(S#inlet.agent),
    %% The lane knows whether the callers live.
    _ = Unanswered =:= []
        orelse trunkline_process:send_connected(Lane, {unanswered, Unanswered}),
    S1 = S#inlet{active = false, quiet_timer = false, agent = Agent},
    case Active orelse HasLeases of
        true -> timer(quiet, S1);
        false ->
            S2 = S1#inlet{agent = trunkline_agent:sweep(Agent)},
            proc_lib:hibernate(?MODULE, loop, [S2])
    end.
