%% A lane: one process that takes messages out of its mailbox and hands them
%% over in batches.
%%
%%     sender ── [Charge, To | Message] ──> lane ══ {batch, ...} ══> inlet
%%       │ enter                              │ leave                  │
%%       └────────> gate <────────────────────┘ <─────── ack ──────────┘
%%
%% A batch is what has queued up while the lane was busy with the one before:
%% no timer holds a message back, and a message that is alone leaves alone. All
%% messages of one sender take the same lane, so that they stay in order.
%%
%% A lane lives as long as its link. What it does with messages is its mode,
%% which the link sets:
%%
%%     {send, Inlet, Window}   batches to the inlet, within the window
%%     hold                    keeps them (the other side is being set up again)
%%     direct                  plain `!', one by one, in order
%%     discard                 counts them as lost (the node is gone)
%%
%% The mailbox may be long, therefore every receive here takes whatever comes
%% first. Only erlang:send/3 to the inlet may suspend the process, on a busy
%% distribution port; the gate bounds what queues up meanwhile.
%%
%% The mailbox must stay on the heap. An `off_heap' mailbox under contention
%% keeps the order of each sender only (the parallel signal optimisation of
%% OTP 25), and the reply of a server, which comes through an inlet, could
%% overtake what the server itself has sent before.
-module(trunkline_lane).

-include("trunkline_route.hrl").

-export([start_link/3, set_mode/3, drain/2]).
-export([loop/1]).

-export_type([entry/0, to/0, mode/0]).

-dialyzer({no_improper_lists, [loop/1, data/3, collect/5, keep/3, direct/2]}).

%% To whom, at the other node.
-type to() :: pid()
            | atom()                                     % a registered name
            | reference()                                % an alias
            | trunkline_agent:command().
-type entry() :: nonempty_improper_list(to(), Message :: term()).
-type mode() :: {send, Inlet :: pid(), WindowBytes :: pos_integer()} | hold | direct | discard.

%% A batch has at most so many messages: the receiving side should start on a
%% batch while the next one is being made (measured in docs/how-it-works.md).
-define(BATCH_MESSAGES, 256).
%% A lane that has company lets others run before it sends a small batch: those
%% who are ready to send do so now, and one system call serves them all. It gives
%% way so many times, for a batch of fewer messages than that. A lane whose last
%% batch was a single message does not: nobody else was sending.
-define(GIVE_WAY, 4).
-define(SMALL_BATCH, 64).
%% A lane that did nothing for so long (ms) gives its memory back.
-define(QUIET, 1000).

-record(lane,
        {ix :: pos_integer(),
         link :: pid(),
         gate :: trunkline_gate:gate(),
         low :: trunkline_gate:charge(),        % level at which waiting senders are told
         batch :: trunkline_gate:charge(),      % most of one batch
         stats :: trunkline_stats:stats(),
         node :: node(),
         mode = hold :: hold | direct | discard | {send, pid()},
         window = trunkline_window:sender(1) :: trunkline_window:sender(),
         backlog = trunkline_backlog:new() :: trunkline_backlog:backlog(),
         last = 1 :: pos_integer(),             % messages in the last batch
         drain = none :: none | reference(),    % the link wants to know when all is through
         active = false :: boolean(),           % since the last tick
         ticking = false :: boolean()}).

%% The lane number Ix to Node, in mode hold.
-spec start_link(pos_integer(), node(), #{gate := trunkline_gate:gate(),
                                          stats := trunkline_stats:stats(),
                                          options := trunkline_options:options()}) -> pid().
start_link(Ix, Node, #{gate := Gate, stats := Stats, options := Options}) ->
    #{queue_bytes := QueueBytes, batch_bytes := BatchBytes} = Options,
    Lane = #lane{ix = Ix, link = self(), gate = Gate, stats = Stats, node = Node,
                 low = trunkline_gate:limit(max(1, QueueBytes div 2)),
                 batch = trunkline_gate:limit(BatchBytes)},
    proc_lib:spawn_link(?MODULE, loop, [Lane]).

%% The lane answers {lane_mode, Ref, Lane, Lost}, with the number of messages
%% {Queued, Unconfirmed} that the change has cost.
-spec set_mode(pid(), reference(), mode()) -> ok.
set_mode(Lane, Ref, Mode) ->
    Lane ! {mode, Ref, Mode},
    ok.

%% The lane answers {lane_drained, Ref, Lane} once all messages that were
%% admitted have been acknowledged.
-spec drain(pid(), reference()) -> ok.
drain(Lane, Ref) ->
    Lane ! {drain, Ref},
    ok.

-spec loop(#lane{}) -> no_return().
loop(S) ->
    receive
        [Charge | Entry] -> loop(data(Charge, Entry, S));
        Control -> loop(control(Control, S))
    end.

%% The rest of the batch is taken from the mailbox, not before the first
%% message of it is there.
data(Charge, Entry, #lane{mode = {send, _}} = S) ->
    case trunkline_window:is_open(S#lane.window) of
        true when S#lane.last > 1 -> collect(?BATCH_MESSAGES - 1, ?GIVE_WAY, Charge, [Entry], S);
        true -> collect(?BATCH_MESSAGES - 1, 0, Charge, [Entry], S);
        false -> keep(Charge, Entry, S)
    end;
data(Charge, Entry, #lane{mode = hold} = S) ->
    keep(Charge, Entry, S);
data(Charge, Entry, #lane{mode = direct} = S) ->
    direct(Entry, S),
    left(Charge, S);
data(Charge, _, #lane{mode = discard} = S) ->
    trunkline_stats:add(S#lane.stats, peer, lost_queued, trunkline_gate:messages(Charge)),
    left(Charge, S).

collect(More, Ways, Charge, Entries, #lane{batch = Most} = S) when More > 0, Charge < Most ->
    receive
        [C | Entry] -> collect(More - 1, Ways, Charge + C, [Entry | Entries], S);
        Control -> control(Control, transmit(Charge, lists:reverse(Entries), S))
    after 0 ->
            case Ways > 0 andalso More > ?BATCH_MESSAGES - ?SMALL_BATCH of
                true -> erlang:yield(), collect(More, Ways - 1, Charge, Entries, S);
                false -> transmit(Charge, lists:reverse(Entries), S)
            end
    end;
collect(_, _, Charge, Entries, S) ->
    transmit(Charge, lists:reverse(Entries), S).

transmit(Charge, Entries, #lane{mode = {send, Inlet}, ix = Ix, stats = Stats} = S) ->
    Messages = trunkline_gate:messages(Charge),
    Window = trunkline_window:sent(Charge, S#lane.window),
    Scope = {lane, Ix},
    trunkline_stats:add(Stats, Scope, batches, 1),
    trunkline_stats:add(Stats, Scope, messages, Messages),
    trunkline_stats:add(Stats, Scope, bytes, trunkline_gate:bytes(Charge)),
    trunkline_stats:peak(Stats, Scope, largest_batch, Messages),
    in_flight(Window, S),
    %% Without a connection this answers noconnect: the batch stays unconfirmed,
    %% and the link is about to hear that the node is gone.
    _ = erlang:send(Inlet, {batch, Charge, Entries}, [noconnect]),
    left(Charge, S#lane{window = Window, last = Messages}).

%% The window is full, or there is nobody to send to.
keep(Charge, Entry, S) ->
    S#lane{backlog = trunkline_backlog:in([Charge | Entry], S#lane.backlog)}.

%% As much of the backlog as the window lets through.
flush(#lane{mode = {send, _}, backlog = Backlog} = S) ->
    case trunkline_window:is_open(S#lane.window) andalso
        not trunkline_backlog:is_empty(Backlog) of
        true ->
            {Entries, Charge, Backlog1} =
                trunkline_backlog:take(?BATCH_MESSAGES, S#lane.batch, Backlog),
            flush(transmit(Charge, Entries, S#lane{backlog = Backlog1}));
        false ->
            S
    end.

%% So much has left the lane: there may be room for somebody who waits.
left(Charge, #lane{gate = Gate, ix = Ix, link = Link} = S) ->
    case trunkline_gate:leave(Gate, Ix, Charge) < S#lane.low
        andalso trunkline_gate:awaited(Gate, Ix) of
        true -> _ = Link ! {room, Ix}, ok;
        false -> ok
    end,
    case S of
        #lane{ticking = true} -> S#lane{active = true};
        #lane{ticking = false} -> tick(S)
    end.

control({ack, Inlet, Charge}, #lane{mode = {send, Inlet}} = S) ->
    Window = trunkline_window:acked(Charge, S#lane.window),
    in_flight(Window, S),
    drained(flush(S#lane{window = Window}));
control({mode, Ref, Mode}, S) ->
    Unconfirmed = trunkline_gate:messages(trunkline_window:in_flight(S#lane.window)),
    trunkline_stats:add(S#lane.stats, peer, lost_unconfirmed, Unconfirmed),
    Window = trunkline_window:sender(1),
    in_flight(Window, S),
    {Queued, S1} = change(Mode, S#lane{window = Window, drain = none}),
    S#lane.link ! {lane_mode, Ref, self(), {Queued, Unconfirmed}},
    S1;
control({drain, Ref}, S) ->
    drained(S#lane{drain = Ref});
control({timeout, _, tick}, #lane{active = true} = S) ->
    tick(S);
control({timeout, _, tick}, S) ->
    quiet(S);
control(_, S) ->
    %% An acknowledgement from an inlet of an earlier session.
    S.

change({send, Inlet, WindowBytes}, S) ->
    {0, flush(S#lane{mode = {send, Inlet}, window = trunkline_window:sender(WindowBytes)})};
change(hold, S) ->
    {0, S#lane{mode = hold}};
change(direct, #lane{backlog = Backlog} = S) ->
    Lost = direct_all(Backlog, S),
    {Lost, empty(S#lane{mode = direct})};
change(discard, #lane{backlog = Backlog, stats = Stats} = S) ->
    Lost = trunkline_gate:messages(trunkline_backlog:charge(Backlog)),
    trunkline_stats:add(Stats, peer, lost_queued, Lost),
    {Lost, empty(S#lane{mode = discard})}.

empty(#lane{backlog = Backlog} = S) ->
    left(trunkline_backlog:charge(Backlog), S#lane{backlog = trunkline_backlog:new()}).

drained(#lane{drain = Ref, gate = Gate, ix = Ix} = S) when is_reference(Ref) ->
    case trunkline_window:in_flight(S#lane.window) =:= 0
        andalso trunkline_backlog:is_empty(S#lane.backlog)
        andalso trunkline_gate:level(Gate, Ix) =< 0 of
        true ->
            S#lane.link ! {lane_drained, Ref, self()},
            S#lane{drain = none};
        false ->
            S
    end;
drained(S) ->
    S.

direct_all(Backlog, S) ->
    case trunkline_backlog:take(1, 1, Backlog) of
        {[Entry], _, Backlog1} ->
            direct(Entry, S) + direct_all(Backlog1, S);
        {[], _, _} ->
            0
    end.

%% One message without lanes; answers how many were lost by it.
direct([To | Message], S) ->
    case direct(To, Message, S#lane.node) of
        ok ->
            0;
        noconnect ->
            trunkline_stats:add(S#lane.stats, peer, lost_queued, 1),
            1
    end.

direct(To, Message, _) when is_pid(To); is_reference(To) ->
    erlang:send(To, Message, [noconnect]);
direct(Name, Message, Node) when is_atom(Name) ->
    erlang:send({Name, Node}, Message, [noconnect]);
direct(Command, _, _) ->
    %% There is no agent any more that could answer.
    trunkline_agent:refuse(Command).

in_flight(Window, #lane{stats = Stats, ix = Ix}) ->
    Charge = trunkline_window:in_flight(Window),
    trunkline_stats:put(Stats, {lane, Ix}, in_flight_messages, trunkline_gate:messages(Charge)),
    trunkline_stats:put(Stats, {lane, Ix}, in_flight_bytes, trunkline_gate:bytes(Charge)).

tick(S) ->
    _ = erlang:start_timer(?QUIET, self(), tick),
    S#lane{ticking = true, active = false}.

%% A sender that is killed between entering the gate and sending leaves its
%% charge behind. After a second in which nothing came, what the gate still
%% counts beside the backlog is such a rest. Should its sender live and only be
%% very slow, the level goes below zero for as long, and is mended here too.
quiet(#lane{gate = Gate, ix = Ix, backlog = Backlog} = S) ->
    Rest = trunkline_gate:level(Gate, Ix) - trunkline_backlog:charge(Backlog),
    _ = trunkline_gate:leave(Gate, Ix, Rest),
    erlang:hibernate(?MODULE, loop, [S#lane{ticking = false, active = false}]).
