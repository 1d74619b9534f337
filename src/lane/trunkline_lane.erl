%% A lane: one process that takes messages out of its mailbox and hands them
%% over in batches. (This folder has the way of a message: sender, lane, inlet, receiver.)
%%
%%     sender ── [Charge, Sender, To | Message] ──> lane ══ {batch, ...} ══> inlet
%%       │ enter                                     │ leave                │
%%       └─────────> gate <──────────────────────────┘ <────── ack ─────────┘
%%
%% A batch is what has queued up while the lane was busy with the one before (see
%% trunkline_pace for what counts as busy): no timer holds a message back, and a
%% message that is alone leaves alone. All messages of one sender take the same
%% lane, so that they stay in order.
%%
%% A lane lives as long as its link. What it does with messages is its mode. The link gives orders:
%%
%%     {send, Outlets, Window, Sent}
%%                             batches to the inlet, within a window of at most Window
%%     suspend                 the connection is lost: keeps messages, and all unacknowledged ones
%%     resume                  there is another one: asks the inlet what it has had, and goes on
%%     hold                    keeps messages (the other side is being set up again)
%%     {absent, Lost}          counts what it has as lost (the node is gone). Keeps what comes
%%                             from then on, and asks for a connection at the first message
%%     direct                  plain `!', one by one, in order
%%     drain                   says when nothing is left in it
%%
%% When the link no longer uses it, it may retire (trunkline_retired_lane).
%%
%% The mailbox may be long, so every receive here takes the first message, whatever it is. (The
%% exceptions are requests and exit signals that are left over when their session has ended: see
%% trunkline_direct and trunkline_exit.) Only what is sent to the peer by the distribution may
%% suspend the process, on a busy port; the gate bounds what queues up meanwhile.
%%
%% Batches are numbered, and go by the distribution or by connections of the lane's own
%% (trunkline_batches, trunkline_channels), which make no promise about the order: the inlet
%% restores it. A batch that was given to a connection is kept, encoded, until the inlet has said
%% that it has arrived.
%%
%% If the session may outlive its connection, batches that go by the distribution are kept, too:
%%
%%     link ── suspend, resume ──> lane                           inlet
%%                                  | -- resume ------------------> |
%%                                  | <- resumed, expects 17, ...-- |
%%                                  | ══ 17, 18, 19 again ════════> |
%%
%% Anything may be lost with the connection: batches, acknowledgements, news of large messages. So
%% the inlet reports its whole state, and nothing depends on what was said before.
%%
%% Servers reply here, to the lane's alias. How a reply goes, and when its server is suspended, is
%% in trunkline_replies.
%%
%% Messages to an agent that must be in order with the news of replies are relayed by the lane, too
%% (trunkline_lease).
%%
%% The link, which owns the lane, gets {lane_ready, ...} when an order has been carried out, and
%% `connect' when the lane has a message for a node that is down.
%%
%% A large message comes as a parcel, and leaves the lane when its turn comes: the parcel goes to
%% trunkline_trunk, and a notice takes its place in the batch (trunkline_notices).
%%
%% Senders of long terms ask for their turn here, and then use plain distribution. The next batch
%% reports what they have sent: trunkline_in_turn draws that. While little comes, senders send short
%% messages past the lane, too. Whose turn it is, and to whom they may send, trunkline_questions
%% finds out, whose questions travel here. A long term that is handed over here, a reply above all,
%% is a large message, but it stays here until its opener asks for it (trunkline_opener).
%%
%% The mailbox must be on the heap, whatever the node's default is (`erl +hmqd'). A busy `off_heap'
%% mailbox keeps the order of each sender only (the parallel signal optimisation of OTP 25), and the
%% news that a server has ended, which comes from an inlet, could overtake the server's last message
%% or reply. (Only a monitor of the lane's own would be in order by itself. The lane would need one
%% for each monitor that an inlet has, and their 'DOWN' messages would come here by the thousand.)
-module(trunkline_lane).
-moduledoc false.

-export([start_link/3, order/3, way/2, retire/2]).
-export([init/2, loop/1]).

-export_type([entry/0, to/0, order/0]).

-dialyzer({no_improper_lists, [loop/1, collected/5, notice/2]}).

%% The addressee at the other node.
-type to() :: pid()
            | atom()                                     % a registered name
            | reference()                                % an alias
            | trunkline_command:command()
            | trunkline_multicast:command().             % and the message is encoded
-type entry() :: nonempty_improper_list(to() | trunkline_notices:marked(), Message :: term()).
%% Where messages go. Bulk is the trunk for large messages.
-type outlets() :: {Inlet :: pid(), Bulk :: pid()}.
-type order() :: {send, outlets(), WindowBytes :: pos_integer(), trunkline_channels:sent()}
               | suspend | resume | hold | {absent, trunkline_room:lost()} | direct | drain.

%% The most messages of a batch: the receiving side should start on a batch while
%% the next one is being made (measured in docs/lab/tried.md).
-define(BATCH_MESSAGES, 256).
%% Messages in flight, if there are only calls of a few callers.
-define(FEW, 8).
%% ms: a lane that has done nothing for this long gives its memory back.
-define(QUIET, 1000).
%% ms until it looks again whether a charge has been left behind.
-define(LOOK_AGAIN, 200).
%% ms until it looks again for what takes an instant: whether the session has ended, if its
%% connection has; whether a sender is gone that was being refused.
-define(AGAIN, 10).

%% A system message has come while a batch was being made.
-type system() :: {system, gen_server:from(), Request :: term(), State :: tuple()}.

-record(lane,
        {ix :: pos_integer(),
         link :: pid(),
         gate :: trunkline_gate:gate(),
         low :: trunkline_gate:charge(),        % level below which waiting senders may go on
         batch :: trunkline_gate:charge(),      % the limit of one batch
         bulk_ix :: pos_integer(),              % the level of large messages
         stats :: trunkline_stats:stats(),
         node :: node(),
         mode = hold :: hold | absent | direct | {send, outlets()}
                      | {suspended, outlets(), Asked :: none | reference()},
         %% Of the nodes' connection, when the session began.
         controller = none :: trunkline_process:controller(),
         batches :: trunkline_batches:batches(),       % what has been sent to the inlet
         backlog :: trunkline_backlog:backlog(),
         notices = trunkline_notices:new() :: trunkline_notices:notices(),   % of large messages
         replies :: trunkline_replies:replies(),
         questions = none :: none | trunkline_questions:questions(),     % about mailboxes
         %% No message is sent until this batch has arrived.
         fence = none :: none | pos_integer(),
         heap = trunkline_heap:new() :: trunkline_heap:heap(),     % for batches and replies
         %% When it was sent, and how many messages are still ahead of it.
         probe = none :: none | {Microseconds :: integer(), Before :: integer()},
         drain = none :: none | reference(),    % tell the link when everything is delivered
         drained = false :: boolean(),          % everything was; see is_closed/1
         active = false :: boolean(),           % since the last tick
         %% The level at the last tick, if nothing was here, and it was not zero.
         rest = none :: none | integer(),
         ticking = false :: boolean()}).

%% The lane number Ix to Node, in mode hold, its alias, and its table of mailboxes. `bulk' is the
%% number of the level of large messages, the charge from which on a message is large, and the limit
%% of all of them.
-spec start_link(pos_integer(), node(), #{gate := trunkline_gate:gate(),
                                          bypass := trunkline_bypass:bypass(),
                                          bulk := {pos_integer(), trunkline_gate:charge(),
                                                   Limit :: trunkline_gate:charge()},
                                          stats := trunkline_stats:stats(),
                                          options := trunkline_options:options()}) ->
          {pid(), reference(), trunkline_mailboxes:table()}.
start_link(Ix, Node, #{gate := Gate, bypass := Bypass, bulk := {BulkIx, _, _} = Bulk,
                       stats := Stats, options := Options}) ->
    #{queue_bytes := QueueBytes, batch_bytes := BatchBytes} = Options,
    Lane = #lane{ix = Ix, link = self(), gate = Gate, stats = Stats, node = Node,
                 batches = trunkline_batches:new(Ix, Node, Bypass, Options, Stats),
                 bulk_ix = BulkIx, low = trunkline_gate:limit(max(1, QueueBytes div 2)),
                 replies = trunkline_replies:new(#{node => Node, gate => Gate, stats => Stats,
                                                   lane => {Ix, QueueBytes}, bulk => Bulk}),
                 batch = trunkline_gate:limit(BatchBytes),
                 backlog = trunkline_backlog:new(?BATCH_MESSAGES, BatchBytes)},
    proc_lib:start_link(?MODULE, init, [self(), Lane], infinity,
                        [{message_queue_data, on_heap} | trunkline_heap:options()]).

%% The lane answers {lane_ready, Ref, Lane} when it has done so, and has counted what was lost.
-spec order(pid(), reference(), order()) -> ok.
order(Lane, Ref, Order) ->
    Lane ! {order, Ref, Order},
    ok.

%% Tells the lane which way batches should go. Not called for a peer that cannot have connections.
-spec way(pid(), trunkline_channels:way()) -> ok.
way(Lane, Way) ->
    Lane ! {way, Way},
    ok.

-spec init(pid(), #lane{}) -> no_return().
init(Parent, #lane{ix = Ix} = Lane) ->
    ok = trunkline_process:label({trunkline_lane, Lane#lane.node, Ix}),
    Questions = trunkline_questions:new(),
    proc_lib:init_ack(Parent, {self(), alias([explicit_unalias]),
                               trunkline_questions:table(Questions)}),
    proc_lib:hibernate(?MODULE, loop, [Lane#lane{questions = Questions}]).

%% The lane lives on for these inlets, whose callers wait for replies (trunkline_retired_lane).
-spec retire(pid(), Inlets :: [pid(), ...]) -> ok.
retire(Lane, Inlets) ->
    Lane ! {retire, Inlets},
    ok.

-spec loop(#lane{} | system()) -> no_return().
loop({system, From, Request, S}) ->
    trunkline_process:system(From, Request, fun ?MODULE:loop/1, S);
loop(S) ->
    receive
        [Charge, Sender | Entry] ->
            {Entry1, S1} = mark(Charge, Sender, Entry, S),
            loop(seen(hd(Entry), data(Charge, Entry1, S1)));
        {[[alias | _] | {_, _, Agent} = Request], Reply} when is_pid(Agent) ->
            loop(replied(trunkline_shape:size(Reply), Request, Reply, S));
        {system, From, Request} ->
            loop({system, From, Request, S});
        {timeout, _, tick} = Tick ->
            %% Once a second it moves on to code that has been loaded meanwhile.
            ?MODULE:loop(control(Tick, S));
        Control ->
            loop(control(Control, S))
    end.

%% Anything but a message or a reply, in the order of who sends it. From the link:
control({order, Ref, Order}, S) ->
    obey(Order, Ref, S);
control({way, _} = Way, S) ->
    way_event(Way, S);
control({retire, Inlets}, S) ->
    retired(Inlets, S);
%% From the inlet, and from openers at the peer:
control({ack, Ack, Inlet, Charge, Arrived}, #lane{mode = {send, {Inlet, _}}} = S) ->
    Batches = trunkline_batches:acked(Ack, Charge, Arrived, S#lane.batches),
    drained(flush(S#lane{batches = Batches}));
control({delivered, Inlet, Numbers}, #lane{mode = {send, {Inlet, _}}} = S) ->
    settle_all(trunkline_notices:under_way(Numbers, S#lane.notices), S);
control({resumed, Ref, Expects, Acknowledged, Missing},
        #lane{mode = {suspended, Outlets, Ref}} = S) ->
    resumed(Expects, Acknowledged, Missing, S#lane{mode = {send, Outlets}});
control({unanswered, Requests}, #lane{mode = {send, _}} = S) ->
    cancel_dead(Requests, S);
control({answer, Ref, Answer}, #lane{questions = Questions} = S) ->
    ticking(carry_out(trunkline_questions:answered(Ref, Answer, Questions), S));
control({fetch, Inlet, N, Opener, Where}, S) ->
    fetch(Inlet, N, Opener, Where, S);
control(Late, S) when element(1, Late) =:= ack; element(1, Late) =:= delivered;
                      element(1, Late) =:= resumed; element(1, Late) =:= unanswered ->
    S;                                       % of an earlier session, or connection
%% From the lane's own connections, and about servers that are suspended (trunkline_throttle):
control({channel, _, _} = Event, S) ->
    way_event(Event, S);
control({timeout, _, {channels, _}} = Timeout, S) ->
    way_event(Timeout, S);
control({{stopped, _}, _} = Stopped, S) ->
    reply_event(Stopped, S);
control({looked_through, _} = Looked, S) ->
    reply_event(Looked, S);
control({'DOWN', _, process, _, _} = Down, S) ->
    reply_event(Down, S);
%% From senders that use plain distribution, and from callers and agents with a lease:
control({ask, Ref, Sender, To}, S) ->
    ask(Ref, Sender, To, S);
control({sent_plain, Ref}, S) ->
    sent_plain(Ref, S);
control({not_sent, Ref}, #lane{questions = Questions, batches = Batches} = S) ->
    ok = trunkline_batches:answers(Batches),
    drained(carry_out(trunkline_questions:not_sent(Ref, Questions), S));
control({relay, Agent, Message}, S) ->
    Agent ! Message,
    S;
%% From a sender that has bypassed the lane, from the link for one that waits (trunkline_room), and
%% from the lane itself:
control(look, S) ->
    drained(ticking(S));
%% From the lane itself:
control({timeout, _, tick}, S) ->
    ticked(S);
control({probe, Sent}, S) ->
    probe(Sent, S);
control(Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    S.

%% --- messages, in batches -------------------------------------------------------

data(Charge, Entry, #lane{mode = {send, _}, fence = Fence, batches = Batches} = S) ->
    case Fence =:= none andalso trunkline_batches:is_open(Batches) of
        true -> collect(?BATCH_MESSAGES - 1, Charge, [Entry], S);
        false -> keep(Charge, Entry, S)
    end;
data(Charge, Entry, #lane{mode = Mode} = S) when Mode =:= hold; element(1, Mode) =:= suspended ->
    keep(Charge, Entry, S);
data(Charge, Entry, #lane{mode = absent, backlog = Backlog, link = Link} = S) ->
    case trunkline_leftovers:is_of_session(Entry) of
        true ->
            left(Charge, dispose(Entry, lost_queued, S));
        false ->
            trunkline_backlog:is_empty(Backlog) andalso (Link ! connect),
            keep(Charge, Entry, S)
    end;
data(Charge, Entry, #lane{mode = direct} = S) ->
    drained(left(Charge, dispose(Entry, direct, S))).

%% Takes the rest of the batch from the mailbox. (The window is open, hence the
%% backlog is empty: see flush/1.)
collect(More, Charge, Entries, #lane{batch = Most} = S) when More > 0, Charge < Most ->
    receive
        Next -> collected(Next, More, Charge, Entries, S)
    after 0 ->
            case trunkline_batches:is_waiting(Charge, S#lane.batches) of
                true -> receive Next -> collected(Next, More, Charge, Entries, S) end;
                false -> transmit(Charge, lists:reverse(Entries), S)
            end
    end;
collect(_, Charge, Entries, S) ->
    transmit(Charge, lists:reverse(Entries), S).

collected([C, Sender | Entry], More, Charge, Entries, S) ->
    case not is_tuple(hd(Entry)) andalso trunkline_notices:is_empty(S#lane.notices) of
        true ->                   % nearly always (mark/4 would take a quarter of the lane's time)
            add(C, Entry, More, Charge, Entries, S);
        false ->
            {Entry1, S1} = mark(C, Sender, Entry, S),
            add(C, Entry1, More, Charge, Entries, S1)
    end;
collected({[[alias | _] | {_, _, Agent} = Request], Reply}, More, Charge, Entries, S)
  when is_pid(Agent) ->
    {C, Entry, S1} = reply(trunkline_shape:size(Reply), Request, Reply, S),
    add(C, Entry, More, Charge, Entries, S1);
collected(Control, More, Charge, Entries, S)
  when element(1, Control) =:= ack; element(1, Control) =:= fetch;
       element(1, Control) =:= sent_plain; element(1, Control) =:= relay;
       element(1, Control) =:= channel, element(1, element(3, Control)) =:= written ->
    collect(More, Charge, Entries, control(Control, S));
collected({system, From, Request}, _, Charge, Entries, S) ->
    {system, From, Request, transmit(Charge, lists:reverse(Entries), S)};
collected(Control, _, Charge, Entries, #lane{backlog = Backlog} = S) ->
    %% This message may change what should happen to the batch.
    Backlog1 = trunkline_backlog:in_batch(Charge, lists:reverse(Entries), Backlog),
    flush(control(Control, S#lane{backlog = Backlog1})).

%% A message that would make the batch too large begins the next one: the distribution sends up to
%% 64 kB whole, and more than that in fragments, which the receiving node has to put together.
add(C, Entry, _, Charge, Entries, #lane{batch = Most} = S) when Charge + C > Most ->
    data(C, Entry, transmit(Charge, lists:reverse(Entries), S));
add(C, Entry, More, Charge, Entries, S) ->
    collect(More - 1, Charge + C, [Entry | Entries], S).

mark(Charge, Sender, Entry, #lane{notices = Notices} = S) ->
    case trunkline_notices:mark(Charge, Sender, Entry, Notices) of
        {Entry1, Notices} -> {Entry1, S};                     % nearly always: no copy of the state
        {Entry1, Notices1} -> {Entry1, S#lane{notices = Notices1}}
    end.

transmit(Charge, Entries, #lane{notices = Notices} = S) ->
    case trunkline_notices:are_in_lane(Notices) of
        true ->
            {Entries1, S1} = lists:mapfoldl(fun notice/2, S, Entries),
            send_batch(Charge, Entries1, S1);
        false ->
            send_batch(Charge, Entries, S)
    end.

send_batch(Charge, Entries, #lane{questions = Questions, batches = Batches, heap = Heap} = S) ->
    AreGranted = trunkline_questions:are_granted(Questions),
    Batches1 = trunkline_batches:send(Charge, Entries, AreGranted, Batches),
    left(Charge, S#lane{batches = Batches1, heap = trunkline_heap:room_for(Charge, Heap)}).

%% The window is full, or there is no inlet to send to.
keep(Charge, Entry, S) ->
    S#lane{backlog = trunkline_backlog:in(Charge, Entry, S#lane.backlog)}.

%% Sends as much of the backlog as the window lets through. So while the window is
%% open the backlog is empty.
flush(#lane{mode = {send, _}, fence = Fence} = S) when Fence =/= none ->
    case trunkline_batches:arrived(S#lane.batches) >= Fence of
        true -> pass_fence(S);
        false -> S
    end;
flush(#lane{mode = {send, _}} = S) ->
    case trunkline_batches:is_open(S#lane.batches)
        andalso trunkline_backlog:take(S#lane.backlog) of
        {Charge, Entries, Backlog} ->
            S1 = transmit(Charge, Entries, S#lane{backlog = Backlog}),
            flush(before_probe(-trunkline_gate:messages(Charge), S1));
        _ -> S
    end;
flush(S) ->
    S.

%% That much has left the lane: there may be room for a waiting sender.
left(Charge, #lane{gate = Gate, ix = Ix, link = Link} = S) ->
    Level = trunkline_gate:leave(Gate, Ix, Charge),
    case Level < S#lane.low andalso trunkline_gate:awaited(Gate, Ix) of
        true -> ok = trunkline_room:offer(Link, Ix);
        false -> ok
    end,
    S1 = tell_agents(if Level < 0 -> exact(false, S);
                        true -> S
                     end),
    case S1 of
        #lane{ticking = true} -> S1#lane{active = true};
        #lane{ticking = false} -> tick(S1)
    end.

%% --- large messages -------------------------------------------------------------

%% A large message leaves the lane. (Only the outcome of a function may still come when the lane is
%% closed: see is_closed/1.)
notice([{parcel, Place, N, Sender, To} | Parcel], #lane{notices = Notices} = S) ->
    case is_closed(S) of
        true ->
            {trunkline_multicast:entry(To, trunkline_parcel:unpack_sent(Parcel)), settle(N, S)};
        false ->
            Batch = trunkline_batches:next(S#lane.batches),
            %% (If the lane had been drained, it is open again.)
            S1 = S#lane{notices = trunkline_notices:leave(N, Batch, Notices), drained = false},
            {Sizes, S2} = leaves(N, Parcel, S1),
            {[{notice, Place, N, Sender, To} | Sizes], S2}
    end;
notice(Entry, S) ->
    {Entry, S}.

%% Whether the lane has been drained and not been opened again. Then only replies and news come
%% here, until the session ends: at once if a node stops Trunkline, or as late as the connection
%% after a drain. The end takes the trunk and the dock with it, and what is on its way between them.
%% So large replies travel in the lane from here on, as all other messages travel by the
%% distribution.
is_closed(#lane{drained = Drained, gate = Gate}) ->
    Drained andalso trunkline_gate:path(Gate) =/= lanes.

%% Terms that can go by the distribution stay here until they are fetched.
leaves(N, Parcel, #lane{mode = {send, {_, Bulk}}, ix = Ix, notices = Notices} = S) ->
    case trunkline_parcel:is_term(Parcel) of
        true ->
            case may_send_terms(S) of
                true ->
                    {{term, trunkline_parcel:bytes(Parcel)},
                     S#lane{notices = trunkline_notices:keep_term(N, Parcel, Notices)}};
                false ->
                    Packed = trunkline_parcel:pack(trunkline_parcel:unpack_sent(Parcel)),
                    leaves(N, Packed, S)
            end;
        false ->
            ok = trunkline_trunk:parcel(Bulk, {Ix, N}, Parcel),
            {trunkline_parcel:sizes(Parcel), S}
    end.

%% A large message is neither here nor under way any more.
settle(N, #lane{notices = Notices, gate = Gate, bulk_ix = BulkIx, link = Link} = S) ->
    {Charge, Notices1} = trunkline_notices:settle(N, Notices),
    _ = trunkline_gate:leave(Gate, BulkIx, Charge),
    trunkline_gate:awaited(Gate, BulkIx) andalso trunkline_room:offer(Link, BulkIx),
    S#lane{notices = Notices1}.

%% These have been delivered.
settle_all(Numbers, #lane{mode = {send, {_, Bulk}}, ix = Ix} = S) ->
    Numbers =:= [] orelse trunkline_trunk:done(Bulk, [{Ix, N} || N <- Numbers]),
    lists:foldl(fun settle/2, S, Numbers).

%% An opener asks for a term, which goes straight to the receiver, or to the opener. What the opener
%% knows of the receiver's mailbox, senders may know, too.
fetch(Inlet, N, Opener, Where, #lane{mode = {send, {Inlet, _}}} = S) ->
    case is_connected(S) of
        true ->
            fetched(trunkline_notices:term(N, S#lane.notices), N, Opener, Where, S);
        false ->
            _ = erlang:send_after(?AGAIN, self(), {fetch, Inlet, N, Opener, Where}),
            S
    end;
fetch(_, N, Opener, Where, S) ->
    fetched(none, N, Opener, Where, S).      % of an earlier session

fetched(none, _, {Opener, _}, _, S) ->
    ok = trunkline_process:send_connected(Opener, missing),
    S;
fetched(Term, N, Opener, Where, #lane{notices = Notices} = S) ->
    ok = send_term(Where, Opener, Term, S),
    S1 = S#lane{notices = trunkline_notices:without_term(N, Notices)},
    case Where of
        {no, Pid} -> learned(Pid, no, S1);
        {_, Pid, _} -> learned(Pid, go, S1);
        any -> S1
    end.

%% To its receiver at once, and whole (see trunkline_opener), or to the opener.
send_term({To, _, Wrap}, {Opener, _} = Asking, Term, S) ->
    case trunkline_parcel:bytes(Term) =< trunkline_in_turn:most_at_once()
        andalso send_parcel(To, Wrap, Term, [nosuspend], S) of
        ok -> trunkline_process:send_connected(Opener, sent);
        _ -> send_term(any, Asking, Term, S)
    end;
send_term(_, {Opener, Ref}, Term, S) ->
    send_parcel(Opener, {reply, Ref}, Term, [], S).

%% Whether the nodes still have the connection with which the session has begun. If not, what waited
%% behind a term may have been delivered, so that the term must not go by the next connection. It is
%% lost, but counts as that only when the link has ended the session, as it will do now. (If the
%% connection is lost right after this, and there is another one before the next call is made, the
%% term goes by that all the same.)
is_connected(#lane{node = Node, controller = Controller}) ->
    Controller =/= none andalso trunkline_process:controller(Node) =:= Controller.

send_parcel(To, Wrap, Parcel, Options, #lane{stats = Stats}) ->
    trunkline_in_turn:send_for_lane(To, Wrap, trunkline_parcel:unpack_sent(Parcel),
                                    trunkline_parcel:bytes(Parcel), Options, Stats).

%% --- replies --------------------------------------------------------------------

replied(Size, Request, Reply, S) ->
    case trunkline_replies:weight(Size, Request, Reply, S#lane.replies) of
        short ->
            reply_by_lane(Size, Request, Reply, S);
        Weight ->
            Plain = trunkline_replies:request(Request),
            past_lane(Weight, trunkline_shape:charge(Size), Size, Plain, Reply, S)
    end.

%% A reply that should go past the lane.
past_lane(Weight, Charge, Size, {_, {Pid, Server}, _} = Request, Reply,
          #lane{questions = Questions} = S) ->
    Known = case may_send_terms(S) of
                true when Weight =:= past -> go;         % its caller waits for it
                true -> trunkline_questions:known(Pid, Questions);
                false -> no
            end,
    case trunkline_replies:way(Weight, before(Server, S), Known) of
        now when Weight =:= past ->
            send_reply(Weight, Charge, Size, Request, Reply, S);
        now ->
            send_reply(Weight, Charge, Size, Request, Reply, for_caller(Pid, Charge, S));
        fence ->
            S1 = fence(for_caller(Pid, Charge, S)),
            {Place, Entry, S2} = reply_as_term(Charge, Request, Reply, S1),
            keep(Place, Entry, S2);
        term ->
            {Place, Entry, S1} = reply_as_term(Charge, Request, Reply, S),
            data(Place, Entry, S1);
        ask ->
            seen(long, Pid, reply_by_lane(Size, Request, Reply, S));
        next when Weight =:= past ->
            next_may_pass(reply_by_lane(Size, Request, Reply, S));
        next ->
            acknowledge_now(reply_by_lane(Size, Request, Reply, S));
        by_lane ->
            reply_by_lane(Size, Request, Reply, S)
    end.

%% (A caller that gets many replies is not forgotten.)
for_caller(Pid, Charge, #lane{questions = Questions} = S) ->
    true = trunkline_mailboxes:may_receive(Pid, trunkline_questions:table(Questions)),
    with_room(Charge, S).

reply_by_lane(Size, Request, Reply, S) ->
    {Place, Entry, S1} = reply(Size, Request, Reply, S),
    data(Place, Entry, S1).

%% Whether terms may go to the peer by the distribution.
may_send_terms(#lane{batches = Batches, stats = Stats}) ->
    trunkline_batches:takes_turns(Batches) andalso trunkline_in_turn:is_near(Stats).

%% What has become of all that this server has sent before its reply. (Large messages of others do
%% not matter, which may be under way for long.)
before(_, #lane{fence = Fence}) when Fence =/= none ->
    fenced;
before(Server, #lane{backlog = Backlog, notices = Notices, batches = Batches}) ->
    case trunkline_backlog:is_empty(Backlog) andalso trunkline_batches:is_open(Batches)
        andalso not trunkline_notices:is_marked(Server, Notices) of
        true ->
            case trunkline_batches:have_arrived(Batches) of
                true -> arrived;
                false -> in_flight
            end;
        false ->
            queued
    end.

send_reply(Weight, Charge, Size, Request, Reply, #lane{batches = Batches, replies = Replies} = S) ->
    case trunkline_replies:send(Weight, Charge, Request, Reply, Replies) of
        busy ->
            reply_by_lane(Size, Request, Reply, S);
        Replies1 ->
            to_report(tell_agents(S#lane{batches = trunkline_batches:passed(1, Batches),
                                         replies = Replies1}))
    end.

%% A reply that has come, as it should be in the lane.
reply(Size, Request, Reply, #lane{notices = Notices, replies = Replies} = S) ->
    entered(trunkline_replies:enter(Size, Request, Reply, is_closed(S), Notices, Replies), S).

reply_as_term(Charge, Request, Reply, #lane{notices = Notices, replies = Replies} = S) ->
    entered(trunkline_replies:enter_term(Charge, Request, Reply, Notices, Replies), S).

entered({Place, Entry, Notices, Replies}, S) ->
    {Place, Entry, S#lane{notices = Notices, replies = Replies}}.

%% An empty batch, which the inlet acknowledges at once. Until then all that comes is kept.
fence(#lane{fence = none, batches = Batches} = S) ->
    (empty_batch(S))#lane{fence = trunkline_batches:next(Batches)};
fence(S) ->
    S.

empty_batch(#lane{questions = Questions, batches = Batches} = S) ->
    AreGranted = trunkline_questions:are_granted(Questions),
    S#lane{batches = trunkline_batches:fence(AreGranted, Batches)}.

%% Everything that was sent before the fence has arrived.
pass_fence(#lane{backlog = Backlog} = S) ->
    {Charge, Entries, Backlog1} = trunkline_backlog:take(Backlog),
    {Replies, Others} = trunkline_replies:first(Entries, S#lane.notices, S#lane.questions),
    S1 = lists:foldl(fun send_kept/2, S#lane{fence = none, backlog = Backlog1}, Replies),
    Rest = Charge - lists:sum([Place || [{parcel, Place, _, _, _} | _] <- Replies]),
    S2 = case Others of
             [] -> S1;
             _ -> transmit(Rest, Others, S1)
         end,
    flush(before_probe(-trunkline_gate:messages(Charge), S2)).

send_kept([{parcel, Place, N, _, {reply, Caller, _}} | Parcel], #lane{batches = Batches} = S) ->
    ok = send_parcel(Caller, {reply, Caller}, Parcel, [], S),
    left(Place, settle(N, S#lane{batches = trunkline_batches:passed(1, Batches)})).

tell_agents(#lane{replies = Replies} = S) ->
    case trunkline_replies:left(Replies) of
        none -> S;
        Replies1 -> S#lane{replies = Replies1}
    end.

%% Something about servers that are suspended; or, if not, about the ways of the batches.
reply_event(Event, #lane{replies = Replies} = S) ->
    case trunkline_replies:event(Event, Replies) of
        unknown -> way_event(Event, S);
        Replies1 -> S#lane{replies = Replies1}
    end.

%% --- what goes past the lane ----------------------------------------------------

%% While little comes, the lane finds out to whom short messages may be sent past it.
seen(To, #lane{mode = {send, _}, batches = Batches} = S) when is_pid(To) ->
    case trunkline_batches:is_quiet(Batches) of
        true -> seen(short, To, S);
        false -> S
    end;
seen({call, _, _, _, _, past}, S) ->
    next_may_pass(S);
seen(_, S) ->
    S.

seen(Kind, To, #lane{batches = Batches, questions = Questions} = S) ->
    case may_ask(S) andalso trunkline_batches:takes_turns(Batches) of
        true -> carry_out(trunkline_questions:seen(Kind, To, Questions), S);
        false -> S
    end.

%% Whether there is an inlet that will answer.
may_ask(#lane{mode = {send, _}, drain = none, drained = false}) -> true;
may_ask(_) -> false.

%% A sender asks for its turn.
ask(Ref, Sender, To, #lane{batches = Batches, questions = Questions} = S) ->
    case trunkline_batches:takes_turns(Batches) of
        true ->
            IsIdle = is_idle(S),
            ticking(carry_out(trunkline_questions:ask(Ref, Sender, To, IsIdle, Questions), S));
        false ->
            Ref ! {Ref, no},
            S
    end.

%% What trunkline_questions has decided.
carry_out({[], Questions}, S) ->
    S#lane{questions = Questions};
carry_out({Commands, Questions}, S) ->
    S1 = flush(lists:foldl(fun command/2, S#lane{questions = Questions}, Commands)),
    case lists:keymember(question, 1, Commands) of
        true -> acknowledge_now(S1);
        false -> S1
    end.

%% A command travels like a message of its sender.
command({_, Sender, Command}, #lane{gate = Gate, ix = Ix} = S) ->
    Charge = trunkline_gate:packed(1, 0),
    ok = trunkline_gate:force(Gate, Ix, Charge),
    {Entry, S1} = mark(Charge, Sender, Command, S),
    keep(Charge, Entry, S1).

acknowledge_now(#lane{fence = none, batches = Batches} = S) ->
    case is_idle(S) orelse not trunkline_batches:is_open(Batches) of
        true -> S;
        false -> empty_batch(S)
    end;
acknowledge_now(S) ->
    S.

%% A request or reply of few callers could not go past the lane. If it is for these alone, the next
%% one may. (If much else is sent, it is not worth a batch.)
next_may_pass(#lane{mode = {send, _}, batches = Batches} = S) ->
    case trunkline_gate:messages(trunkline_batches:in_flight(Batches)) =< ?FEW of
        true -> acknowledge_now(S);
        false -> S
    end;
next_may_pass(S) ->
    S.

%% Everything that has come here before has been delivered.
is_idle(#lane{backlog = Backlog, batches = Batches}) ->
    trunkline_backlog:is_empty(Backlog) andalso trunkline_batches:is_idle(Batches).

learned(Receiver, What, #lane{questions = Questions} = S) ->
    ticking(S#lane{questions = trunkline_questions:learned(Receiver, What, Questions)}).

%% The inlet waits for replies to these requests. Their callers may have been killed.
cancel_dead(Requests, #lane{questions = Questions} = S) ->
    Dead = [Request || {call, _, Caller, _} = Request <- Requests, not is_process_alive(Caller)],
    carry_out({lists:flatmap(fun trunkline_questions:cancel/1, Dead), Questions}, S).

%% A sender has sent, when it was its turn.
sent_plain(Ref, #lane{questions = Questions, batches = Batches, mode = Mode, stats = Stats,
                      ix = Ix} = S) ->
    case trunkline_questions:sent(Ref, Questions) of
        {granted, Questions1} ->
            to_report(S#lane{questions = Questions1,
                             batches = trunkline_batches:passed(1, Batches)});
        {unknown, _} ->
            %% Its turn was in an earlier session. It may be lost, or still be under way.
            _ = was_lost(Mode) andalso trunkline_stats:add(Stats, peer, lost_unconfirmed, 1),
            case Mode =:= hold orelse trunkline_batches:takes_turns(Batches) of
                true -> to_report(S#lane{batches = trunkline_batches:passed(1, Batches)});
                false -> trunkline_stats:add(Stats, {lane, Ix}, messages, 1), S
            end
    end.

%% Whether the connection of an earlier session has been lost.
was_lost(absent) -> true;
was_lost({send, _}) -> true;
was_lost(_) -> false.

%% Reports what has gone past the lane.
report(#lane{mode = {send, _}, questions = Questions, batches = Batches} = S) ->
    AreGranted = trunkline_questions:are_granted(Questions),
    S#lane{batches = trunkline_batches:report(AreGranted, Batches)};
report(S) ->
    S.

%% A report can wait for a batch, or for the next tick.
to_report(#lane{batches = Batches, drain = Drain} = S) ->
    case Drain =/= none orelse trunkline_batches:unreported(Batches) >= ?BATCH_MESSAGES of
        true -> report(S);
        false -> ticking(S)
    end.

%% Whether a sender may be sending by plain distribution.
is_plain_sending(#lane{batches = Batches, questions = Questions}) ->
    trunkline_questions:are_granted(Questions) orelse trunkline_batches:is_sending(Batches).

%% --- orders of the link ---------------------------------------------------------

%% Carries out an order, and tells the link. (The session goes on after the first three. The others
%% end it, or begin another one.)
obey(suspend, Ref, #lane{mode = Mode, batches = Batches} = S) ->
    Batches1 = trunkline_batches:suspend(Batches),
    ok = ready(Ref, S),
    ticking(S#lane{mode = {suspended, element(2, Mode), none}, batches = Batches1});
obey(resume, Ref, #lane{mode = {suspended, {Inlet, _} = Outlets, _}} = S) ->
    ok = trunkline_inlet:resume(Inlet, Ref),
    ok = ready(Ref, S),
    S#lane{mode = {suspended, Outlets, Ref}};
obey(drain, Ref, #lane{batches = Batches} = S) ->
    %% From here on each sender that has sent past the lane tells the lane.
    ok = trunkline_batches:ticks(false, Batches),
    drained(S#lane{drain = Ref, drained = false});
obey(Mode, Ref, Before) ->
    S = end_session(past(Mode, Before), Before),
    InFlight = trunkline_gate:messages(trunkline_batches:in_flight(S#lane.batches)),
    trunkline_stats:add(S#lane.stats, peer, lost_unconfirmed, InFlight),
    S1 = change(Mode, S#lane{batches = trunkline_batches:close(S#lane.batches),
                             drain = none, probe = none}),
    ticking(case Mode of
                direct ->
                    %% Senders use plain distribution as soon as this lane is ready. (One that is
                    %% just being refused has gone when it looks again.)
                    _ = erlang:send_after(?AGAIN, self(), look),
                    drained(S1#lane{drain = Ref});
                _ ->
                    ok = ready(Ref, S1),
                    S1
            end).

%% What becomes of what has gone past the lane.
past({absent, _}, _) -> lost;
past(direct, _) -> over;
past(_, #lane{mode = absent}) -> over;       % and has been counted as lost
past(_, _) -> kept.

%% From here on nothing goes past the lane, and no large message is under way.
end_session(Past, #lane{batches = Batches} = S) ->
    S1 = without_questions(S#lane{batches = trunkline_batches:end_bypass(Past, Batches)}),
    lists:foldl(fun settle/2, S1, trunkline_notices:under_way(S1#lane.notices)).

change({send, {Inlet, _} = Outlets, WindowBytes, Sent},
       #lane{batches = Batches, node = Node} = S) ->
    Batches1 = trunkline_batches:open(Inlet, WindowBytes, Sent, Batches),
    flush(S#lane{mode = {send, Outlets}, fence = none, drained = false, batches = Batches1,
                 controller = trunkline_process:controller(Node)});
change(hold, S) ->
    S#lane{mode = hold};
change({absent, Lost}, S) ->
    dispose_all(Lost, S#lane{mode = absent});
change(direct, S) ->
    dispose_all(direct, S#lane{mode = direct}).

%% The inlet expects batch number Expects, and has acknowledged so much in all. All large messages
%% whose notice it has had have been delivered, except for Missing.
resumed(Expects, Acknowledged, Missing, #lane{mode = {send, _}, batches = Batches} = S) ->
    Delivered = trunkline_notices:under_way_before(Expects, S#lane.notices) -- Missing,
    Batches1 = trunkline_batches:resumed(Expects, Acknowledged, Batches),
    drained(flush(settle_all(Delivered, S#lane{batches = Batches1}))).

without_questions(#lane{questions = Questions} = S) ->
    S#lane{questions = trunkline_questions:refuse(Questions)}.

dispose(Entry, How, #lane{node = Node, stats = Stats} = S) ->
    lists:foldl(fun settle/2, S, trunkline_leftovers:dispose(Entry, How, Node, Stats)).

dispose_all(How, #lane{backlog = Backlog} = S) ->
    case trunkline_backlog:take(Backlog) of
        {Charge, Entries, Backlog1} ->
            S1 = lists:foldl(fun(Entry, S0) -> dispose(Entry, How, S0) end, S, Entries),
            dispose_all(How, left(Charge, S1#lane{backlog = Backlog1}));
        empty ->
            S
    end.

drained(#lane{drain = Ref} = S0) when is_reference(Ref) ->
    %% (Who is not sending any more has been counted by then.)
    IsSending = is_plain_sending(S0),
    S = report(S0),
    case not IsSending
        andalso trunkline_batches:in_flight(S#lane.batches) =:= 0
        andalso trunkline_backlog:is_empty(S#lane.backlog)
        andalso not may_come(S) of
        true ->
            ok = ready(Ref, S),
            %% What comes from here on, for callers that still wait, has to keep its order with what
            %% the servers send by plain distribution.
            S#lane{drain = none, drained = S#lane.drained orelse S#lane.mode =/= direct,
                   batches = trunkline_batches:close_channels(S#lane.batches)};
        false ->
            %% The level may be kept up by a sender that will never send (see quiet/1).
            ticking(S)
    end;
drained(S) ->
    S.

%% Whether a sender that has been admitted may not have sent yet. (By plain distribution the lane
%% need not wait for senders if they use that already, or if they may enter again.)
may_come(#lane{mode = Mode, gate = Gate, ix = Ix}) ->
    trunkline_gate:level(Gate, Ix) > 0
        andalso (Mode =/= direct orelse trunkline_gate:path(Gate) =:= wait).

ready(Ref, #lane{link = Link}) ->
    Link ! {lane_ready, Ref, self()},
    ok.

-spec retired([pid(), ...], #lane{}) -> no_return().
retired(Inlets, #lane{batches = Batches} = S) ->
    S1 = without_questions(S#lane{batches = trunkline_batches:end_bypass(over, Batches)}),
    #lane{ix = Ix, node = Node, stats = Stats, replies = Replies} = dispose_all(retired, S1),
    trunkline_retired_lane:become(#{ix => Ix, node => Node, stats => Stats, inlets => Inlets,
                                    replies => Replies}).

%% Something about the ways of the batches.
way_event(Event, #lane{batches = Batches} = S) ->
    case trunkline_batches:event(Event, Batches) of
        {ok, Batches1} -> ticking(flush(S#lane{batches = Batches1}));
        unknown -> S
    end.

%% --- ticks ----------------------------------------------------------------------

ticking(#lane{ticking = true} = S) -> S;
ticking(S) -> tick(S).

tick(S) -> tick(?QUIET, S).

tick(Time, #lane{batches = Batches, drain = Drain} = S) ->
    ok = trunkline_batches:ticks(Drain =:= none, Batches),
    _ = erlang:start_timer(Time, self(), tick),
    S#lane{ticking = true, active = false}.

%% (Something may come all the time, replies for example, while a drain waits for the level.)
ticked(#lane{active = true, drain = none} = S) ->
    S#lane.probe =:= none andalso (self() ! {probe, erlang:monotonic_time(microsecond)}),
    tick(tick_all(S#lane{rest = none}));
ticked(S) ->
    quiet(drained(tick_all(S))).

%% Senders that have been killed count as having sent.
tick_all(#lane{batches = Batches, questions = Questions, heap = Heap} = S) ->
    {Killed, Commands, Questions1} = trunkline_questions:tick(may_ask(S), Questions),
    ok = trunkline_batches:answers(Batches),
    S1 = report(S#lane{questions = Questions1, batches = trunkline_batches:tick(Killed, Batches),
                       heap = trunkline_heap:tick(Heap)}),
    carry_out({Commands, Questions1}, S1).

%% Nothing has come for a second. A killed sender may have left its charge behind (trunkline_gate).
%% While the level is wrong it may be zero although a message is in the lane. So no sender bypasses
%% the lane until there is nothing to correct. (If the level is too low the lane may count as
%% drained with a message in its mailbox.) While senders use plain distribution they are all refused
%% here, and their charges come and go. Then nothing is corrected.
quiet(#lane{gate = Gate, ix = Ix, backlog = Backlog, questions = Questions, rest = Before} = S) ->
    IsUsed = S#lane.drain =/= none orelse trunkline_gate:path(Gate) =/= direct,
    Rest = if IsUsed -> Before;
              true -> none
           end,
    case trunkline_backlog:is_empty(Backlog) andalso not is_plain_sending(S)
        andalso trunkline_questions:are_none_known(Questions)
        andalso process_info(self(), message_queue_len) =:= {message_queue_len, 0}
        andalso trunkline_gate:mend(Gate, Ix, Rest) of
        exact -> rest(exact(true, S#lane{rest = none}));
        false -> tick(S#lane{rest = none});
        mended -> tick(drained(exact(false, S#lane{rest = none})));
        {look, _} when not IsUsed -> rest(exact(false, S#lane{rest = none}));
        {look, Level} -> tick(?LOOK_AGAIN, exact(false, S#lane{rest = Level}))
    end.

exact(Exact, #lane{batches = Batches} = S) ->
    S#lane{batches = trunkline_batches:exact(Exact, Batches)}.

rest(#lane{batches = Batches} = S) ->
    case trunkline_batches:rest(Batches) of
        {rest, Batches1} ->
            S1 = drained(S#lane{batches = Batches1, ticking = false, active = false}),
            proc_lib:hibernate(?MODULE, loop, [S1]);
        {tick, Batches1} ->
            tick(S#lane{batches = Batches1})
    end.

with_room(Charge, #lane{heap = Heap} = S) ->
    S#lane{heap = trunkline_heap:room_for(Charge, Heap), active = true}.

probe(Sent, #lane{mode = {send, _}, backlog = Backlog} = S) ->
    Before = trunkline_gate:messages(trunkline_backlog:charge(Backlog)),
    before_probe(Before, S#lane{probe = {Sent, 0}});
probe(_, S) ->
    S.

%% Once a second the lane sends a message (the probe) to itself, and measures how long it waits:
%% in the mailbox, and then until the messages ahead of it in the backlog have left.
before_probe(_, #lane{probe = none} = S) ->
    S;
before_probe(More, #lane{probe = {Sent, Before}} = S) when Before + More > 0 ->
    S#lane{probe = {Sent, Before + More}};
before_probe(_, #lane{probe = {Sent, _}, stats = Stats, ix = Ix} = S) ->
    Time = erlang:monotonic_time(microsecond) - Sent,
    trunkline_stats:observe(Stats, {lane, Ix}, time_in_lane, Time),
    trunkline_stats:add(Stats, {lane, Ix}, time_in_lane_sum, Time),
    S#lane{probe = none}.
