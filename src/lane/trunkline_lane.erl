%% A lane: one process that takes messages out of its mailbox and hands them
%% over in batches. (This folder has the way of a small message: sender, gate, lane, inlet,
%% receiver; and what bounds it.)
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
%% A lane lives as long as its link. What it does with messages is its mode,
%% which the link sets:
%%
%%     {send, Outlets, Window, Sent}
%%                             batches to the inlet, within a window of at most Window
%%     suspend                 the connection is lost: keeps messages, and all unacknowledged ones
%%     resume                  there is another one: asks the inlet what it has had, and goes on
%%     hold                    keeps messages (the other side is being set up again)
%%     {absent, Lost}          counts what it has as lost (the node is gone). Keeps what comes
%%                             from then on, and asks for a connection at the first message
%%     direct                  plain `!', one by one, in order
%%     retired                 replies by plain `!', and nothing else (the link no longer uses it)
%%
%% The mailbox may be long, so every receive here takes the first message, whatever it is. Only what
%% is sent to the peer by the distribution may suspend the process, on a busy port; the gate bounds
%% what queues up meanwhile.
%%
%% Batches are numbered, and go by the distribution or by connections of the lane's own
%% (trunkline_channels), which make no promise about the order: the inlet restores it. A batch that
%% was given to a connection is kept, encoded, until the inlet has said that it has arrived.
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
%% Servers reply here, to the lane's alias (see trunkline_agent). Such a reply has passed no gate:
%% it is counted when the lane takes it, and beyond the bound its server is suspended until there is
%% room (trunkline_throttle). The server is also suspended while a large reply is packed, because
%% packing one takes longer than making one. A long term takes many times the bytes of its encoding:
%% then the server stays suspended until the lane has packed all replies that it sent before.
%%
%%     server                       lane
%%       | -- reply, a long term ---> |
%%       | <--------------- suspends  | packs, and sends itself a message, which comes when
%%       |                            |   it has looked through its mailbox
%%       | <---------------- resumes  | when it has, and there is room for another such term
%%
%% The link, which owns the lane, gets {lane_mode, ...} when the lane has changed its mode,
%% {lane_drained, ...} when nothing is left in it, and `connect' when it has a message for a node
%% that is down.
%%
%% A large message comes as a parcel, and leaves the lane when its turn comes: the parcel goes to
%% trunkline_trunk, and a notice takes its place in the batch. From then until the inlet says that
%% the large message has been delivered, everything that its sender sends is marked with the
%% sender's pid, so that the inlet knows what has to wait (see trunkline_turns). Without large
%% messages nothing is marked:
%%
%%     [To | Message]                                      a message
%%     [{notice, Charge, Number, Sender, To} | Sizes]      the notice of a large one, or of a term
%%     [{behind, Charge, Sender, To} | Message]            comes behind a large one
%%
%% Senders of long terms ask for their turn here, and then use plain distribution. The next batch
%% reports what they have sent: trunkline_in_turn draws that, and trunkline_asks decides. A long
%% term that is handed over here, a reply above all, is a large message, but it stays here until its
%% opener asks for it (trunkline_opener). A reply that nothing is ahead of is sent at once.
%%
%% The mailbox must be on the heap, whatever the node's default is (`erl +hmqd'). A busy `off_heap'
%% mailbox keeps the order of each sender only (the parallel signal optimisation of OTP 25), and the
%% news that a server has ended, which comes from an inlet, could overtake the server's last message
%% or reply. (Only a monitor of the lane's own would be in order by itself. The lane would need one
%% for each monitor that an inlet has, and their 'DOWN' messages would come here by the thousand.)
-module(trunkline_lane).
-moduledoc false.

-include("trunkline_route.hrl").

-export([start_link/3, set_mode/3, way/2, drain/2, retire/2]).
-export([init/2, loop/1]).

-export_type([entry/0, to/0, marked/0, mode/0]).

-dialyzer({no_improper_lists, [loop/1, collected/5, reply/3, dispose/3, mark/4, notice/2,
                               control/2]}).

%% The addressee at the other node.
-type to() :: pid()
            | atom()                                     % a registered name
            | reference()                                % an alias
            | trunkline_command:command()
            | trunkline_multicast:command().             % and the message is encoded
-type entry() :: nonempty_improper_list(to() | marked(), Message :: term()).
-type serial() :: pos_integer().                   % of a large message, or of a batch, in its lane
-type marked() :: {parcel, trunkline_gate:charge(), serial(), Sender :: pid(), to()}   % in the lane
                | {notice, trunkline_gate:charge(), serial(), Sender :: pid(), to()}   % in a batch
                | {behind, trunkline_gate:charge(), Sender :: pid(), to()}.
%% Where messages go. Bulk is the trunk for large messages.
-type outlets() :: {Inlet :: pid(), Bulk :: pid()}.
-type mode() :: {send, outlets(), WindowBytes :: pos_integer(), trunkline_channels:sent()}
              | suspend | resume | hold | {absent, trunkline_room:lost()} | direct.

%% The most messages of a batch: the receiving side should start on a batch while
%% the next one is being made (measured in docs/lab/how-it-works.md).
-define(BATCH_MESSAGES, 256).
%% ms: a lane that has done nothing for this long gives its memory back.
-define(QUIET, 1000).

%% A system message has come while a batch was being made.
-type system() :: {system, gen_server:from(), Request :: term(), State :: tuple()}.

-record(lane,
        {ix :: pos_integer(),
         link :: pid(),
         gate :: trunkline_gate:gate(),
         low :: trunkline_gate:charge(),        % level below which waiting senders may go on
         batch :: trunkline_gate:charge(),      % the limit of one batch
         bulk_ix :: pos_integer(),              % the level of large messages
         large :: trunkline_gate:charge(),
         stats :: trunkline_stats:stats(),
         node :: node(),
         mode = hold :: hold | absent | direct | {send, outlets()} | {retired, Inlets :: [pid()]}
                      | {suspended, outlets(), Asked :: none | reference()},
         window = trunkline_window:sender(1) :: trunkline_window:sender(),
         pace = trunkline_pace:new() :: trunkline_pace:pace(),
         backlog :: trunkline_backlog:backlog(),
         options :: trunkline_options:options(),
         %% Large messages: how many each sender has here or under way; those that are
         %% not in a batch yet, and those under way, with what they have been charged.
         senders = #{} :: #{pid() => pos_integer()},
         parcels = #{} :: #{serial() => {Sender :: pid(), trunkline_gate:charge()}},
         under_way = #{} :: #{serial() => {Sender :: pid(), trunkline_gate:charge(),
                                           Batch :: serial()}},
         next = 1 :: serial(),
         terms = #{} :: #{serial() => trunkline_parcel:parcel()},      % that openers will fetch
         most :: {Small :: trunkline_gate:charge(), Large :: trunkline_gate:charge()},
         throttled = #{} :: #{reference() => Server :: pid()},     % at the bounds `most'
         %% Servers that are suspended because their replies were long terms, and what these took.
         replied = [] :: [{Server :: pid(), Term :: trunkline_gate:charge()}],
         answered = #{} :: #{Agent :: pid() => [{trunkline_command:caller(), Server :: pid()}]},
         serial = 1 :: serial(),                       % of the next batch
         asks = trunkline_asks:new() :: trunkline_asks:asks(),       % of senders, for their turn
         by = undecided :: undecided | trunkline_channels:way(),     % which way batches go
         %% Messages that senders have sent by plain distribution, and that no batch has reported.
         plain = 0 :: non_neg_integer(),
         sent = once :: trunkline_channels:sent(),
         channels = none :: none | trunkline_channels:channels(),
         %% When it was sent, and how many messages are still ahead of it.
         probe = none :: none | {Microseconds :: integer(), Before :: integer()},
         drain = none :: none | reference(),    % tell the link when everything is delivered
         active = false :: boolean(),           % since the last tick
         ticking = false :: boolean()}).

%% The lane number Ix to Node, in mode hold, and its alias. `bulk' is the number of the level of
%% large messages, the charge from which on a message is large, and the limit of all of them.
-spec start_link(pos_integer(), node(), #{gate := trunkline_gate:gate(),
                                          bulk := {pos_integer(), trunkline_gate:charge(),
                                                   Limit :: trunkline_gate:charge()},
                                          stats := trunkline_stats:stats(),
                                          options := trunkline_options:options()}) ->
          {pid(), reference()}.
start_link(Ix, Node, #{gate := Gate, bulk := {BulkIx, Large, Limit}, stats := Stats,
                       options := Options}) ->
    #{queue_bytes := QueueBytes, batch_bytes := BatchBytes} = Options,
    Lane = #lane{ix = Ix, link = self(), gate = Gate, stats = Stats, node = Node,
                 bulk_ix = BulkIx, large = Large,
                 low = trunkline_gate:limit(max(1, QueueBytes div 2)),
                 most = {trunkline_gate:limit(2 * QueueBytes), Limit},
                 batch = trunkline_gate:limit(BatchBytes), options = Options,
                 backlog = trunkline_backlog:new(?BATCH_MESSAGES, BatchBytes)},
    proc_lib:start_link(?MODULE, init, [self(), Lane], infinity, [{message_queue_data, on_heap}]).

%% The lane answers {lane_mode, Ref, Lane, {Queued, Unconfirmed}}, with the numbers
%% of messages that were lost by the change.
-spec set_mode(pid(), reference(), mode()) -> ok.
set_mode(Lane, Ref, Mode) ->
    Lane ! {mode, Ref, Mode},
    ok.

%% Tells the lane which way batches should go. Not called for a peer that cannot have connections.
-spec way(pid(), trunkline_channels:way()) -> ok.
way(Lane, Way) ->
    Lane ! {way, Way},
    ok.

%% The lane answers {lane_drained, Ref, Lane} once all messages that were
%% admitted have been acknowledged.
-spec drain(pid(), reference()) -> ok.
drain(Lane, Ref) ->
    Lane ! {drain, Ref},
    ok.

-spec init(pid(), #lane{}) -> no_return().
init(Parent, #lane{ix = Ix, stats = Stats} = Lane) ->
    ok = trunkline_process:label({trunkline_lane, Lane#lane.node, Ix}),
    ok = trunkline_channels:none(Ix, Stats),
    proc_lib:init_ack(Parent, {self(), alias([explicit_unalias])}),
    loop(Lane).

%% The lane lives on for these inlets, whose callers wait for replies. No process is linked to it.
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
            loop(data(Charge, Entry1, S1));
        {[[alias | _] | {Caller, Whose, Agent}], Reply}
          when is_pid(Agent), element(1, S#lane.mode) =:= retired ->
            Route = trunkline_route:lookup(S#lane.node),
            ok = trunkline_agent:pass_on(Route, Caller, Whose, Reply, S#lane.node),
            ok = trunkline_inlet:answered(Agent, [{Caller, element(2, Whose)}]),
            loop(S);
        {[[alias | _] | {_, _, Agent} = Request], Reply} when is_pid(Agent) ->
            {Charge, Entry, S1} = reply(Request, Reply, S),
            loop(data(Charge, Entry, S1));
        {system, From, Request} ->
            loop({system, From, Request, S});
        Control ->
            loop(control(Control, S))
    end.

data(Charge, Entry, #lane{mode = {send, _}} = S) ->
    case is_reply_at_once(Entry, S) of
        true ->
            reply_at_once(Charge, Entry, S);
        false ->
            case trunkline_window:is_open(S#lane.window) of
                true -> collect(?BATCH_MESSAGES - 1, Charge, [Entry], S);
                false -> keep(Charge, Entry, S)
            end
    end;
data(Charge, Entry, #lane{mode = Mode} = S) when Mode =:= hold; element(1, Mode) =:= suspended ->
    keep(Charge, Entry, S);
data(Charge, Entry, #lane{mode = absent, backlog = Backlog, link = Link} = S) ->
    case is_of_session(Entry) of
        true ->
            {_, S1} = dispose(Entry, lost_queued, S),
            left(Charge, S1);
        false ->
            trunkline_backlog:is_empty(Backlog) andalso (Link ! connect),
            keep(Charge, Entry, S)
    end;
data(Charge, Entry, #lane{mode = direct} = S) ->
    {_, S1} = dispose(Entry, direct, S),
    left(Charge, S1);
data(Charge, Entry, #lane{mode = {retired, _}} = S) ->
    {_, S1} = dispose(Entry, retired, S),
    left(Charge, S1).

%% A long term is the reply, and nothing is in flight that it could overtake.
is_reply_at_once([{parcel, _, _, Server, {reply, _, Pid}} | Parcel],
                 #lane{sent = once, senders = Senders, asks = Asks} = S) ->
    trunkline_parcel:is_term(Parcel) andalso map_get(Server, Senders) =:= 1 andalso is_idle(S)
        andalso trunkline_asks:is_known(Pid, Asks)
        andalso trunkline_in_turn:are_terms_suited(S#lane.node, S#lane.stats);
is_reply_at_once(_, _) ->
    false.

%% As trunkline_in_turn sends a message.
reply_at_once(Charge, [{parcel, _, N, _, {reply, Caller, _}} | Parcel], #lane{plain = Plain} = S) ->
    ok = send_term(Caller, {reply, Caller}, Parcel, S),
    to_report(left(Charge, settle(N, S#lane{plain = Plain + 1}))).

%% If the connection is lost, so is the message, and it is counted.
send_term(To, Wrap, Parcel, #lane{stats = Stats}) ->
    Bytes = trunkline_parcel:bytes(Parcel),
    trunkline_stats:add(Stats, peer, large_messages, 1),
    trunkline_stats:add(Stats, peer, large_bytes, Bytes),
    trunkline_stats:add(Stats, peer, large_carried_bytes, Bytes),
    Message = trunkline_command:wrap(Wrap, trunkline_parcel:unpack_sent(Parcel)),
    _ = erlang:send(To, Message, [noconnect]),
    ok.

is_news([{parcel, _, _, _, To} | _]) -> trunkline_command:is_news(To);
is_news([{behind, _, _, To} | _]) -> trunkline_command:is_news(To);
is_news([To | _]) -> trunkline_command:is_news(To).

%% Whether it concerns a session that has ended. (A request does not: its caller may watch a
%% stand-in.)
is_of_session([{parcel, _, _, _, To} | _]) -> is_of_session(To);
is_of_session([{behind, _, _, To} | _]) -> is_of_session(To);
is_of_session([To | _]) -> is_of_session(To);
is_of_session({each, _}) -> false;
is_of_session({exit, _, _}) -> false;
is_of_session(To) when element(1, To) =:= call; element(1, To) =:= apply -> false;
is_of_session(To) -> is_tuple(To).

%% Takes the rest of the batch from the mailbox. (The window is open, hence the
%% backlog is empty: see flush/1.)
collect(More, Charge, Entries, #lane{batch = Most} = S) when More > 0, Charge < Most ->
    receive
        Next -> collected(Next, More, Charge, Entries, S)
    after 0 ->
            case trunkline_pace:is_waiting(trunkline_gate:messages(Charge), S#lane.pace) of
                true -> receive Next -> collected(Next, More, Charge, Entries, S) end;
                false -> transmit(Charge, lists:reverse(Entries), S)
            end
    end;
collect(_, Charge, Entries, S) ->
    transmit(Charge, lists:reverse(Entries), S).

collected([C, Sender | Entry], More, Charge, Entries, S) ->
    case Entry of
        %% Nearly always. (To call mark/4 for nothing costs a quarter of the lane's time.)
        [To | _] when not is_tuple(To), map_size(S#lane.senders) =:= 0 ->
            add(C, Entry, More, Charge, Entries, S);
        _ ->
            {Entry1, S1} = mark(C, Sender, Entry, S),
            add(C, Entry1, More, Charge, Entries, S1)
    end;
collected({[[alias | _] | {_, _, Agent} = Request], Reply}, More, Charge, Entries, S)
  when is_pid(Agent) ->
    {C, Entry, S1} = reply(Request, Reply, S),
    add(C, Entry, More, Charge, Entries, S1);
collected({ack, _, _, _, _} = Ack, More, Charge, Entries, S) ->
    collect(More, Charge, Entries, control(Ack, S));
collected({channel, _, {written, _}} = Written, More, Charge, Entries, S) ->
    collect(More, Charge, Entries, control(Written, S));
collected({fetch, _, _, _, _} = Fetch, More, Charge, Entries, S) ->
    collect(More, Charge, Entries, control(Fetch, S));
collected({sent_plain, _} = Sent, More, Charge, Entries, S) ->
    collect(More, Charge, Entries, control(Sent, S));
collected({ask, _, _, _} = Ask, _, Charge, Entries, S) ->
    control(Ask, transmit(Charge, lists:reverse(Entries), S));
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

%% A server has replied. The reply is more urgent than the news of it for the agent, which comes
%% when the reply has left. (A large reply is packed here: no other process has it. If it is a term
%% that an opener can fetch, it is not packed.) Senders cannot
%% fill the lane to twice its limit: beyond that it is full of replies.
reply({Caller, {Pid, Server}, Agent}, Reply,
      #lane{gate = Gate, ix = Ix, answered = Answered} = S) ->
    S1 = S#lane{answered = Answered#{Agent => [{Caller, Server} | maps:get(Agent, Answered, [])]}},
    case charge(Reply, S#lane.large) of
        Charge when Charge < S#lane.large ->
            ok = trunkline_gate:force(Gate, Ix, Charge),
            {Charge, case S#lane.senders of
                         #{Server := _} -> [{behind, Charge, Server, {reply, Caller, Pid}} | Reply];
                         #{} -> [{reply, Caller} | Reply]
                     end, throttle(Server, Charge, Ix, element(1, S#lane.most), S1)};
        Charge ->
            _ = trunkline_throttle:suspend(Server),
            {Parcel, Charge1} =
                trunkline_sender:as_parcel(S#lane.node, Reply, Charge, S#lane.large, S#lane.stats),
            Place = trunkline_gate:charge(trunkline_parcel:sizes(Parcel)),
            ok = trunkline_gate:force(Gate, S#lane.bulk_ix, Charge1),
            ok = trunkline_gate:force(Gate, Ix, Place),
            {Entry, S2} = mark(Place, Server, [{parcel, Charge1, {reply, Caller, Pid}} | Parcel],
                               S1),
            Term = case trunkline_parcel:is_term(Parcel) of
                       true -> Charge1;
                       false -> trunkline_gate:term(Reply)
                   end,
            {Place, Entry, case Term > Charge of
                               true -> replied(Server, Term, S2);
                               false -> resume(Server, Charge, S#lane.most, S2)
                           end}
    end.

%% To measure the encoding of a long list takes as long as to copy it. It is estimated if it is
%% large anyway: what counts then is the term.
charge(Reply, Large) ->
    case trunkline_shape:is_long_list(Reply)
        andalso trunkline_gate:charge(trunkline_shape:estimate(Reply), 1) of
        Charge when is_integer(Charge), Charge >= Large -> Charge;
        _ -> trunkline_gate:charge(Reply)
    end.

%% The reply is a long term. There may be more of these in the mailbox.
replied(Server, Term, #lane{replied = Replied} = S) ->
    Replied =:= [] andalso look_through(1),
    S#lane{replied = [{Server, Term} | Replied]}.

look_through(Replied) ->
    self() ! {looked_through, Replied},
    ok.

%% There were no more long terms. Without a garbage collection they would stay on the heap until
%% another one comes.
resume_servers(#lane{replied = Replied, most = {Small, Limit}} = S) ->
    true = garbage_collect(),
    lists:foldr(fun({Server, Term}, S1) -> resume(Server, Term, {Small, Limit - Term}, S1) end,
                S#lane{replied = []}, Replied).

%% The server goes on when there is room for another such reply.
resume(Server, Another, {_, Most}, S) ->
    S1 = throttle(Server, Another, S#lane.bulk_ix, Most, S),
    _ = trunkline_throttle:resume(Server),
    S1.

%% If no process is left to wait for room, the next reply tries again. (A process that is suspended
%% twice must be resumed twice.)
throttle(Server, Charge, Level, Most, #lane{gate = Gate, throttled = Throttled} = S) ->
    case trunkline_gate:level(Gate, Level) >= Most
        andalso not lists:member(Server, maps:values(Throttled))
        andalso trunkline_throttle:start(S#lane.node, Server, Charge) of
        {ok, {_, Ref}} ->
            _ = trunkline_throttle:suspend(Server),
            trunkline_stats:add(S#lane.stats, {lane, S#lane.ix}, waits, 1),
            S#lane{throttled = Throttled#{Ref => Server}};
        _ ->
            S
    end.

%% From a large message on, until it has been delivered, the messages of its sender are marked.
mark(Place, Sender, [{parcel, Charge, To} | Parcel],
     #lane{senders = Senders, parcels = Parcels, next = N} = S) ->
    {[{parcel, Place, N, Sender, To} | Parcel],
     S#lane{senders = Senders#{Sender => maps:get(Sender, Senders, 0) + 1},
            parcels = Parcels#{N => {Sender, Charge}}, next = N + 1}};
mark(_, _, Entry, #lane{senders = Senders} = S) when map_size(Senders) =:= 0 ->
    {Entry, S};
mark(Charge, Sender, [To | Message], #lane{senders = Senders} = S)
  when is_map_key(Sender, Senders) ->
    {[{behind, Charge, Sender, To} | Message], S};
mark(_, _, Entry, S) ->
    {Entry, S}.

%% A large message leaves the lane.
notice([{parcel, Place, N, Sender, To} | Parcel], S) ->
    {{From, Charge}, Parcels} = maps:take(N, S#lane.parcels),
    UnderWay = (S#lane.under_way)#{N => {From, Charge, S#lane.serial}},
    {Sizes, S1} = leaves(N, Parcel, S#lane{parcels = Parcels, under_way = UnderWay}),
    {[{notice, Place, N, Sender, To} | Sizes], S1};
notice(Entry, S) ->
    {Entry, S}.

%% Terms that can go by the distribution stay here until they are fetched.
leaves(N, Parcel, #lane{mode = {send, {_, Bulk}}, ix = Ix, terms = Terms} = S) ->
    case trunkline_parcel:is_term(Parcel) of
        true ->
            case trunkline_in_turn:are_terms_suited(S#lane.node, S#lane.stats) of
                true ->
                    {{term, trunkline_parcel:bytes(Parcel)}, S#lane{terms = Terms#{N => Parcel}}};
                false ->
                    Packed = trunkline_parcel:pack(trunkline_parcel:unpack_sent(Parcel)),
                    leaves(N, Packed, S)
            end;
        false ->
            ok = trunkline_trunk:parcel(Bulk, {Ix, N}, Parcel),
            {trunkline_parcel:sizes(Parcel), S}
    end.

%% A large message is neither here nor under way any more.
settle(N, #lane{parcels = Parcels, under_way = UnderWay, senders = Senders, gate = Gate,
                bulk_ix = BulkIx, link = Link} = S) ->
    {Sender, Charge} = case UnderWay of
                           #{N := {S0, C0, _}} -> {S0, C0};
                           #{} -> maps:get(N, Parcels)
                       end,
    _ = trunkline_gate:leave(Gate, BulkIx, Charge),
    trunkline_gate:awaited(Gate, BulkIx) andalso trunkline_room:offer(Link, BulkIx),
    S#lane{parcels = maps:remove(N, Parcels), under_way = maps:remove(N, UnderWay),
           terms = maps:remove(N, S#lane.terms),
           senders = case Senders of
                         #{Sender := 1} -> maps:remove(Sender, Senders);
                         #{Sender := More} -> Senders#{Sender := More - 1}
                     end}.

transmit(Charge, Entries, #lane{parcels = Parcels} = S) when map_size(Parcels) > 0 ->
    {Entries1, S1} = lists:mapfoldl(fun notice/2, S, Entries),
    hand_over(Charge, Entries1, S1);
transmit(Charge, Entries, S) ->
    hand_over(Charge, Entries, S).

%% The report of messages that went by plain distribution goes by the distribution, behind them. The
%% inlet delivers no later batch before it. Nor may news of a sender's end overtake what it was
%% sending: meanwhile all batches go by the distribution.
hand_over(Charge, Entries, #lane{plain = 0} = S) ->
    hand_over(Charge, Entries, trunkline_gate:messages(Charge), is_by_channels(S), S);
hand_over(Charge, Entries, #lane{plain = N, gate = Gate, ix = Ix} = S) ->
    Report = trunkline_gate:packed(0, N),
    ok = trunkline_gate:force(Gate, Ix, Report),
    hand_over(Charge + Report, [[{plain}] | Entries], trunkline_gate:messages(Charge),
              is_by_channels(S), S#lane{plain = 0}).

is_by_channels(#lane{sent = again, channels = Channels}) -> Channels =/= none;
is_by_channels(#lane{by = By, plain = N, asks = Asks}) ->
    By =:= connections andalso N =:= 0 andalso not trunkline_asks:are_granted(Asks).

hand_over(Charge, Entries, Messages, ByChannels,
          #lane{mode = {send, {Inlet, _}}, ix = Ix, stats = Stats, serial = Serial} = S) ->
    Now = erlang:monotonic_time(nanosecond),
    Window = trunkline_window:sent(Now, Charge, S#lane.window),
    {Ack, Pace} = case trunkline_window:is_open(Window) of
                      true -> trunkline_pace:sent(Now, S#lane.pace);
                      false -> {full, S#lane.pace}     % a wait for the window teaches nothing
                  end,
    Scope = {lane, Ix},
    trunkline_stats:observe(Stats, Scope, batches, Messages),
    trunkline_stats:add(Stats, Scope, messages, trunkline_gate:messages(Charge)),
    trunkline_stats:add(Stats, Scope, bytes, trunkline_gate:bytes(Charge)),
    trunkline_stats:peak(Stats, Scope, largest_batch, Messages),
    in_flight(Window, S),
    Batch = {Serial, Ack, Charge, Entries},
    S1 = S#lane{window = Window, pace = Pace, serial = Serial + 1},
    left(Charge, case ByChannels of
                     true ->
                         S1#lane{channels = trunkline_channels:send(Batch, S#lane.channels)};
                     false ->
                         ok = trunkline_dist:send(Inlet, {batch, Batch}, silent),
                         S1
                 end).

report(#lane{plain = N, mode = {send, _}} = S) when N > 0 -> hand_over(0, [], S);
report(S) -> S.

%% A report can wait for a batch, or for the next tick.
to_report(#lane{plain = N, drain = Drain} = S) when N >= ?BATCH_MESSAGES; Drain =/= none ->
    report(S);
to_report(S) ->
    ticking(S).

%% So many messages will not be reported: they were sent in a session that has ended. Returns how
%% many are lost: none if the connection is not.
unreported(N, How, #lane{stats = Stats, ix = Ix} = S) ->
    trunkline_stats:add(Stats, {lane, Ix}, messages, N),
    case How of
        direct -> 0;
        Lost -> lost(N, Lost, S)
    end.

%% The window is full, or there is no inlet to send to.
keep(Charge, Entry, S) ->
    S#lane{backlog = trunkline_backlog:in(Charge, Entry, S#lane.backlog)}.

%% Sends as much of the backlog as the window lets through. So while the window is
%% open the backlog is empty.
flush(#lane{mode = {send, _}} = S) ->
    case trunkline_window:is_open(S#lane.window) andalso trunkline_backlog:take(S#lane.backlog) of
        {Charge, Entries, Backlog} ->
            S1 = transmit(Charge, Entries, S#lane{backlog = Backlog}),
            flush(before_probe(-trunkline_gate:messages(Charge), S1));
        _ -> S
    end;
flush(S) ->
    S.

%% The lane measures how long messages wait here with one message to itself each second. It waits
%% in the mailbox as they do, and then until those ahead of it in the backlog have left.
before_probe(_, #lane{probe = none} = S) ->
    S;
before_probe(More, #lane{probe = {Sent, Before}} = S) when Before + More > 0 ->
    S#lane{probe = {Sent, Before + More}};
before_probe(_, #lane{probe = {Sent, _}, stats = Stats, ix = Ix} = S) ->
    Time = erlang:monotonic_time(microsecond) - Sent,
    trunkline_stats:observe(Stats, {lane, Ix}, time_in_lane, Time),
    trunkline_stats:add(Stats, {lane, Ix}, time_in_lane_sum, Time),
    S#lane{probe = none}.

%% That much has left the lane: there may be room for a waiting sender.
left(Charge, #lane{gate = Gate, ix = Ix, link = Link} = S) ->
    case trunkline_gate:leave(Gate, Ix, Charge) < S#lane.low
        andalso trunkline_gate:awaited(Gate, Ix) of
        true -> ok = trunkline_room:offer(Link, Ix);
        false -> ok
    end,
    S1 = tell_agents(S),
    case S1 of
        #lane{ticking = true} -> S1#lane{active = true};
        #lane{ticking = false} -> tick(S1)
    end.

tell_agents(#lane{answered = Answered} = S) when map_size(Answered) =:= 0 ->
    S;
tell_agents(#lane{answered = Answered} = S) ->
    maps:foreach(fun trunkline_inlet:answered/2, Answered),
    S#lane{answered = #{}}.

control({ack, Ack, Inlet, Charge, Arrived}, #lane{mode = {send, {Inlet, _}}} = S) ->
    Now = erlang:monotonic_time(nanosecond),
    RoundTrip = trunkline_stats:get(S#lane.stats, peer, round_trip),
    Window = trunkline_window:acked(Now, Charge, RoundTrip, S#lane.window),
    in_flight(Window, S),
    Pace = case Ack of
               now -> trunkline_pace:arrived(Now, S#lane.pace);
               _ -> S#lane.pace
           end,
    drained(flush(arrived(Arrived, S#lane{window = Window, pace = Pace})));
control({ask, Ref, Sender, To}, #lane{mode = {send, _}, sent = once} = S) ->
    case trunkline_asks:ask(Ref, Sender, To, is_idle(S), S#lane.asks) of
        {answer, Answer, Asks} ->
            Ref ! {Ref, Answer},
            ticking(S#lane{asks = Asks});
        {question, What, Asks} ->
            command(Sender, [{turn, To, Ref, self()} | What], S#lane{asks = Asks})
    end;
control({ask, Ref, _, _}, S) ->
    Ref ! {Ref, no},
    S;
control({answer, Ref, Answer}, S) ->
    case trunkline_asks:answer(Ref, Answer, S#lane.asks) of
        {awaited, To, Asks} ->
            ticking(case Answer of
                        {no, _} ->
                            S1 = cancel(To, S#lane{asks = Asks}),
                            Ref ! {Ref, no},
                            S1;
                        _ ->
                            Ref ! {Ref, Answer},
                            S#lane{asks = Asks}
                    end);
        {late, Asks} ->
            S#lane{asks = Asks};
        {unknown, _} ->
            ok = trunkline_in_turn:not_used(Answer),
            S
    end;
control({sent_plain, Ref}, #lane{plain = N} = S) ->
    case trunkline_asks:used(Ref, S#lane.asks) of
        {granted, Asks} -> to_report(S#lane{asks = Asks, plain = N + 1});
        {unknown, _} ->
            %% Its turn was in an earlier session.
            _ = unreported(1, case S#lane.mode of
                                  absent -> lost_unconfirmed;
                                  {send, _} -> lost_unconfirmed;
                                  _ -> direct
                              end, S),
            S
    end;
control({not_sent, Ref}, #lane{asks = Asks} = S) ->
    case trunkline_asks:unused(Ref, Asks) of
        {none, Asks1} -> drained(S#lane{asks = Asks1});
        {To, Asks1} -> drained(cancel(To, S#lane{asks = Asks1}))
    end;
control({way, Way}, #lane{channels = Channels} = S) when Channels =/= none ->
    by(trunkline_channels:way(Way, Channels), S);
control({channel, _, _} = Event, S) ->
    channels(Event, S);
control({timeout, Timer, {channels, What}}, #lane{channels = Channels} = S)
  when Channels =/= none ->
    by(trunkline_channels:timeout(Timer, What, Channels), S);
control({fetch, Inlet, N, Opener, {To, Receiver, Wrap}},
        #lane{mode = {send, {Inlet, _}}, terms = Terms, asks = Asks} = S)
  when is_map_key(N, Terms) ->
    ok = send_term(To, Wrap, map_get(N, Terms), S),
    To =:= Opener orelse erlang:send(Opener, sent, [noconnect]),
    S1 = S#lane{terms = maps:remove(N, Terms)},
    case is_pid(Receiver) of
        true -> ticking(S1#lane{asks = trunkline_asks:know(Receiver, go, Asks)});
        false -> S1
    end;
control({fetch, _, _, Opener, _}, S) ->
    _ = erlang:send(Opener, missing, [noconnect]),           % of an earlier session
    S;
control({delivered, Inlet, Numbers}, #lane{mode = {send, {Inlet, Bulk}}, ix = Ix,
                                           under_way = UnderWay} = S) ->
    Delivered = [N || N <- Numbers, is_map_key(N, UnderWay)],
    ok = trunkline_trunk:done(Bulk, [{Ix, N} || N <- Delivered]),
    lists:foldl(fun settle/2, S, Delivered);
control({mode, Ref, suspend}, #lane{mode = Mode, channels = Channels} = S) ->
    %% An acknowledgement that was asked for will not come.
    Suspended = S#lane{mode = {suspended, element(2, Mode), none}, pace = trunkline_pace:new()},
    S1 = case Channels of
             none -> Suspended;
             _ -> by(trunkline_channels:suspend(Channels), Suspended)
         end,
    S#lane.link ! {lane_mode, Ref, self(), {0, 0}},
    S1;
control({mode, Ref, resume}, #lane{mode = {suspended, {Inlet, _} = Outlets, _}} = S) ->
    ok = trunkline_inlet:resume(Inlet, Ref),
    S#lane.link ! {lane_mode, Ref, self(), {0, 0}},
    S#lane{mode = {suspended, Outlets, Ref}};
control({resumed, Ref, Expects, Acknowledged, Missing},
        #lane{mode = {suspended, Outlets, Ref}} = S) ->
    resumed(Expects, Acknowledged, Missing, S#lane{mode = {send, Outlets}});
control({mode, Ref, Mode}, S0) ->
    Plain = unreported(S0#lane.plain, case Mode of
                                          {absent, _} -> lost_unconfirmed;
                                          _ -> direct
                                      end, S0),
    S = lists:foldl(fun settle/2, without_asks(S0), maps:keys(S0#lane.under_way)),
    InFlight = trunkline_gate:messages(trunkline_window:in_flight(S#lane.window)),
    trunkline_stats:add(S#lane.stats, peer, lost_unconfirmed, InFlight),
    Window = trunkline_window:sender(1),
    in_flight(Window, S),
    S2 = S#lane{window = Window, pace = trunkline_pace:new(), drain = none, probe = none},
    {Queued, S1} = change(Mode, without_channels(S2)),
    S#lane.link ! {lane_mode, Ref, self(), {Queued, InFlight + Plain}},
    S1;
control({drain, Ref}, S) ->
    drained(report(S#lane{drain = Ref}));
control({retire, Inlets}, S) ->
    lists:foreach(fun(Inlet) -> monitor(process, Inlet) end, Inlets),
    {_, S1} = dispose_all(retired, (without_asks(S))#lane{mode = {retired, Inlets}}),
    S1;
control({'DOWN', Ref, process, _, _}, #lane{throttled = Throttled} = S)
  when is_map_key(Ref, Throttled) ->
    {Server, Throttled1} = maps:take(Ref, Throttled),
    _ = trunkline_throttle:resume(Server),
    S#lane{throttled = Throttled1};
control({'DOWN', _, process, Inlet, _}, #lane{mode = {retired, Inlets}} = S) ->
    case lists:delete(Inlet, Inlets) of
        [] -> exit(normal);
        Left -> S#lane{mode = {retired, Left}}
    end;
control({'DOWN', _, process, _, _} = Down, S) ->
    channels(Down, S);
control({looked_through, N}, #lane{replied = Replied} = S) ->
    case length(Replied) of
        N -> resume_servers(S);
        More -> ok = look_through(More), S
    end;
control({timeout, _, tick}, #lane{active = true} = S) ->
    S#lane.probe =:= none andalso (self() ! {probe, erlang:monotonic_time(microsecond)}),
    tick(tick_asks(S));
control({probe, Sent}, #lane{mode = {send, _}, backlog = Backlog} = S) ->
    Before = trunkline_gate:messages(trunkline_backlog:charge(Backlog)),
    before_probe(Before, S#lane{probe = {Sent, 0}});
control({probe, _}, S) ->
    S;
control({timeout, _, tick}, S) ->
    quiet(tick_asks(S));
control(Late, S) when element(1, Late) =:= ack; element(1, Late) =:= delivered;
                      element(1, Late) =:= way; element(1, Late) =:= resumed ->
    S;                                       % of an earlier session, or connection
control({timeout, _, {channels, _}}, S) ->
    S;
control(Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    S.

%% Senders that have been killed count as having sent.
tick_asks(#lane{asks = Asks, plain = N} = S) ->
    {Killed, Asks1} = trunkline_asks:tick(fun erlang:is_process_alive/1, Asks),
    lists:foldl(fun cancel/2, report(S#lane{asks = Asks1, plain = N + length(Killed)}), Killed).

%% The agent at the peer need not wait for a request that its caller has not sent, or for a caller
%% that is dead.
cancel(To, S) when element(1, To) =:= call ->
    command(element(3, To), [{cancel, element(2, To), element(4, To)}], S);
cancel(_, S) ->
    S.

%% Everything that has come here before has been delivered.
is_idle(#lane{backlog = Backlog, window = Window}) ->
    trunkline_backlog:is_empty(Backlog)
        andalso trunkline_gate:is_less_than_a_message(trunkline_window:in_flight(Window)).

%% A command that travels like a message of this sender.
command(Sender, Command, #lane{gate = Gate, ix = Ix} = S) ->
    Charge = trunkline_gate:packed(1, 0),
    ok = trunkline_gate:force(Gate, Ix, Charge),
    {Entry, S1} = mark(Charge, Sender, Command, S),
    flush(keep(Charge, Entry, S1)).

without_asks(#lane{asks = Asks} = S) ->
    {Refs, Asks1} = trunkline_asks:refuse(Asks),
    lists:foreach(fun(Ref) -> Ref ! {Ref, no} end, Refs),
    S#lane{asks = Asks1, plain = 0}.

change({send, {Inlet, _} = Outlets, WindowBytes, Sent},
       #lane{options = Options, stats = Stats} = S) ->
    Channels = trunkline_channels:new(S#lane.ix, Inlet, Sent, Options, Stats),
    {0, flush(S#lane{mode = {send, Outlets}, window = trunkline_window:sender(WindowBytes),
                     serial = 1, sent = Sent, channels = Channels})};
change(hold, S) ->
    {0, S#lane{mode = hold}};
change({absent, lost_queued}, S) ->
    dispose_all(lost_queued, S#lane{mode = absent});
change({absent, Lost}, S) ->
    %% As with `!', this loss is not reported.
    {_, S1} = dispose_all(Lost, S#lane{mode = absent}),
    {0, S1};
change(direct, S) ->
    dispose_all(direct, S#lane{mode = direct}).

%% The inlet expects batch number Expects, and has acknowledged so much in all. All large messages
%% whose notice it has had have been delivered, except for Missing.
resumed(Expects, Acknowledged, Missing, #lane{mode = {send, {_, Bulk}}, ix = Ix, stats = Stats,
                                              under_way = UnderWay} = S) ->
    RoundTrip = trunkline_stats:get(Stats, peer, round_trip),
    Window = trunkline_window:resumed(erlang:monotonic_time(nanosecond), Acknowledged, RoundTrip,
                                      S#lane.window),
    in_flight(Window, S),
    Delivered = [N || {N, {_, _, Batch}} <- maps:to_list(UnderWay), Batch < Expects] -- Missing,
    Delivered =:= [] orelse trunkline_trunk:done(Bulk, [{Ix, N} || N <- Delivered]),
    S1 = lists:foldl(fun settle/2, S#lane{window = Window}, Delivered),
    drained(flush(case S1#lane.channels of
                      none -> S1;
                      Channels -> by(trunkline_channels:resume(Expects - 1, Channels), S1)
                  end)).

dispose_all(How, #lane{backlog = Backlog} = S) ->
    case trunkline_backlog:take(Backlog) of
        {Charge, Entries, Backlog1} ->
            {Lost, S1} = lists:mapfoldl(fun(Entry, S0) -> dispose(Entry, How, S0) end, S, Entries),
            {More, S2} = dispose_all(How, left(Charge, S1#lane{backlog = Backlog1})),
            {lists:sum(Lost) + More, S2};
        empty ->
            {0, S}
    end.

%% A message from a connection, which may belong to an earlier session.
channels(Event, #lane{channels = Channels} = S) ->
    case Channels =/= none andalso trunkline_channels:event(Event, Channels) of
        Known when Known =/= false, Known =/= unknown -> by(Known, S);
        _ -> S
    end.

%% The way of the batches may have changed, and the window with it: without connections to a far
%% peer the lane uses a careful window.
by(Channels, #lane{by = Before, window = Window} = S) ->
    case trunkline_channels:by(Channels) of
        Before ->
            S#lane{channels = Channels};
        By ->
            Before =:= undecided
                orelse trunkline_events:tell([lane, way], #{}, #{peer => S#lane.node,
                                                                 lane => S#lane.ix,
                                                                 from => Before, to => By}),
            RoundTrip = trunkline_stats:get(S#lane.stats, peer, round_trip),
            flush(S#lane{channels = Channels, by = By,
                         window = trunkline_window:by(By, RoundTrip, Window)})
    end.

without_channels(#lane{channels = none} = S) ->
    S;
without_channels(#lane{channels = Channels} = S) ->
    ok = trunkline_channels:close(Channels),
    S#lane{channels = none, by = undecided}.

arrived(_, #lane{channels = none} = S) ->
    S;
arrived(Serial, #lane{channels = Channels} = S) ->
    S#lane{channels = trunkline_channels:arrived(Serial, Channels)}.

drained(#lane{drain = Ref, gate = Gate, ix = Ix} = S) when is_reference(Ref) ->
    case trunkline_window:in_flight(S#lane.window) =:= 0
        andalso trunkline_backlog:is_empty(S#lane.backlog)
        andalso not trunkline_asks:are_granted(S#lane.asks)
        andalso trunkline_gate:level(Gate, Ix) =< 0 of
        true ->
            S#lane.link ! {lane_drained, Ref, self()},
            %% What comes from here on, for callers that still wait, has to keep its order with what
            %% the servers send by plain distribution.
            without_channels(S#lane{drain = none});
        false ->
            %% The level may be kept up by a sender that will never send (see quiet/1).
            ticking(S)
    end;
drained(S) ->
    S.

%% Delivers an entry by plain distribution, or counts it as lost in that field. Returns how many
%% messages were lost.
dispose(Entry, retired, S) ->
    dispose(Entry, case is_news(Entry) of
                       true -> direct;
                       false -> lost_queued
                   end, S);
dispose([{parcel, _, N, _, To} | Parcel], How, S) ->
    Message = case How of
                  direct -> trunkline_parcel:unpack_sent(Parcel);
                  _ -> []
              end,
    dispose(trunkline_multicast:entry(To, Message), How, settle(N, S));
dispose([{behind, _, _, To} | Message], How, S) ->
    dispose([To | Message], How, S);
dispose([{each, Tos} | Encoded], direct, S) ->
    Message = trunkline_multicast:decode(Encoded),
    {Lost, S1} = lists:mapfoldl(fun(To, S0) -> dispose([To | Message], direct, S0) end, S, Tos),
    {lists:sum(Lost), S1};
dispose([{each, Tos} | _], Lost, S) ->
    {lost(length(Tos), Lost, S), S};
dispose([To | Message], direct, #lane{node = Node} = S) ->
    case direct(To, Message, Node) of
        ok -> {0, S};
        noconnect -> dispose([To], lost_queued, S)
    end;
dispose([To | _], Lost, S) ->
    case trunkline_command:is_missed(To) of
        true -> {lost(1, Lost, S), S};
        false -> {0, S}
    end.

lost(Messages, Field, #lane{stats = Stats}) ->
    trunkline_stats:add(Stats, peer, Field, Messages),
    Messages.

direct(To, Message, _) when is_pid(To); is_reference(To) ->
    erlang:send(To, Message, [noconnect]);
direct(Name, Message, Node) when is_atom(Name) ->
    erlang:send({Name, Node}, Message, [noconnect]);
direct(Command, Message, Node) ->
    trunkline_agent:direct(Command, Message, Node).

in_flight(Window, #lane{stats = Stats, ix = Ix}) ->
    Charge = trunkline_window:in_flight(Window),
    trunkline_stats:put(Stats, {lane, Ix}, in_flight_messages, trunkline_gate:messages(Charge)),
    trunkline_stats:put(Stats, {lane, Ix}, in_flight_bytes, trunkline_gate:bytes(Charge)),
    trunkline_stats:put(Stats, {lane, Ix}, window_bytes, trunkline_window:bytes(Window)).

ticking(#lane{ticking = true} = S) -> S;
ticking(S) -> tick(S).

tick(S) ->
    _ = erlang:start_timer(?QUIET, self(), tick),
    S#lane{ticking = true, active = false}.

%% A sender that is killed between entering the gate and sending leaves its
%% charge behind. After a second in which nothing came, what the gate still
%% counts has been left behind so. If the sender lives and is only very slow, the
%% level goes below zero for that time, and is corrected here, too.
quiet(#lane{gate = Gate, ix = Ix, backlog = Backlog} = S) ->
    case trunkline_backlog:is_empty(Backlog) andalso not trunkline_asks:are_granted(S#lane.asks)
        andalso process_info(self(), message_queue_len) =:= {message_queue_len, 0} of
        true ->
            _ = trunkline_gate:leave(Gate, Ix, trunkline_gate:level(Gate, Ix)),
            S1 = drained(S#lane{ticking = false, active = false}),
            proc_lib:hibernate(?MODULE, loop, [S1]);
        false ->
            tick(S)
    end.
