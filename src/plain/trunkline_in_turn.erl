%% Sends a long term by plain distribution, when its turn has come. (This folder has what goes past
%% the lanes and keeps its order all the same: long terms, thin traffic, and calls of few callers.)
%%
%% For a long term no way is better than `!': the sender encodes it, the receiver decodes it, both
%% with the distribution's atom cache, and no process in between copies it. To keep its order the
%% sender first asks for its turn:
%%
%%     sender            lane                    inlet          receiver
%%       | -- ask -------> | ══ turn ═════════════> |               |
%%       |                 | <-------------------go |               |
%%       | <-----------go  |                        |               |
%%       | ─────────────── the message, by `!' ───────────────────> |
%%       | -- sent ------> | ══ a batch ══════════> |               |
%%
%% The lane answers by itself if nothing is in flight in it, so that a stream of long terms costs no
%% round trips between the nodes. Otherwise the question travels in the lane like a message to the
%% receiver, and is answered when everything has been delivered that the sender has sent to it
%% before. What the sender sends afterwards is in a batch that comes behind the message: the lane's
%% next batch reports the message, and goes by the distribution. When the batch is acknowledged, the
%% message has arrived. If it is lost with the connection, the message counts as
%% lost, too. (If there is no other batch, the lane sends one with nothing else, within a second.)
%%
%% If the lane knows that the receiver's mailbox is on the heap (trunkline_mailboxes), a sender need
%% not ask, as long as nothing is ahead of its messages (trunkline_bypass): it sends, and counts
%% what it has sent. The lane reports that at its next tick. A long list or map need not even be
%% measured for that, which would take its sender a fifth of the time. Two kinds of messages
%% that are as fast by lane are sent so, too: binaries of more than half a batch that are not large,
%% and terms that take much memory for their size. If something is ahead of such a message, its
%% sender asks only if the lane has little to send, if no question of the sender was refused within
%% the last second, and if questions take at most a fifth of the sender's time. Otherwise the
%% message goes by lane.
%%
%% Short messages go by lane. But while few come to a lane, those that meet an empty one are sent
%% past it, too.
%%
%% A request (trunkline_call) is asked about in the same way. The agent at the peer then waits for
%% its reply, and the answer says in which form the server gets the request. For a while it holds
%% for further requests to that server, too (trunkline_lease). If the caller does not send the
%% request, the lane cancels it. If there is no such server, the caller has been told. A process
%% that has executed a function for trunkline_erpc asks so about its outcome.
%%
%% A term may be of any length: the distribution sends it in fragments, suspends the sender while
%% more than 1 MB (`+zdbbl') waits, and takes turns between several senders. But from a process that
%% must not be suspended it takes the whole message at once, and all others wait behind that. So
%% what is sent with `nosuspend', or as an exit reason, should not be too long. Nor should what a
%% lane sends: while the lane is suspended, everything in it waits. A request with a timeout is sent
%% with `nosuspend', so that its caller does not wait beyond the timeout. The caller of a long
%% request is suspended all the same, as by gen_server:call/3. (But a peer that has stopped before
%% does not suspend the caller: it does not answer the question.)
%%
%% The message and the lane's messages are put into the receiver's mailbox by two processes, so the
%% mailbox must be on the heap (see trunkline_opener). The answer is `no' if it is not, or if the
%% receiver has an inbox. Then the term goes by lane, or as a large message. So it does to a far
%% peer, whose distance one connection does not bridge well, and in a session that may outlive its
%% connection, because a message of the distribution does not.
-module(trunkline_in_turn).
-moduledoc false.

-include("../gate/trunkline_route.hrl").

-export([most_at_once/0, may_go_at_once/1, may_go_by_lane/1, is_long_reply/1, is_whole/2]).
-export([is_near/1, are_terms_suited/2]).
-export([send/7, send_heavy/4, start_short/4, send_short/5, send_past/5, send_request/6]).
-export([sent_direct/1, sent_for/3]).
-export([ask_whether_arrived/2, ask_no_more/2, have_arrived/3]).
-export([send_for_lane/6, send_short_reply/2]).
-export([await/4, answer/5, noproc/2, not_used/1]).
-export([look/4]).

-export_type([addressee/0, answer/0]).

%% Bytes, in the message or in memory. A shorter term is as fast by lane, if its sender has to ask.
-define(FROM, 16000).
%% The same for the outcome of a request, and for a request if the caller has to ask and may get no
%% lease: that costs a round trip between the nodes for each.
-define(REQUEST_FROM, 48000).
%% Binaries: a batch of the default size has no room for two. From `large_bytes' on they have
%% connections of their own.
-define(BINARY_FROM, 33_000).
%% More than that, given to the distribution at once, would keep it busy.
-define(AT_ONCE, 2_100_000).
%% The distribution sends so much whole, and what is longer in fragments.
-define(WHOLE, 64_512).
%% Takes a lane 0.13 s if the network has 1 Gbit/s.
-define(BY_LANE, 16_000_000).
%% ms that a sender waits for its turn.
-define(WAIT, 100).
%% us that a sender does not ask about such a message to the same receiver any more after it was
%% refused.
-define(REFUSED, 1_000_000).
%% The same after another answer, as a multiple of the time that it took. (Far away questions take
%% longer than the way by lane.)
-define(PAUSE, 4).
%% A sender of a binary does not ask a lane with a longer queue.
-define(SHORT_QUEUE, (trunkline_gate:limit(65_536))).

%% Who gets the message: a process, the server of a request, or the caller of an outcome.
-type addressee() :: pid() | atom() | trunkline_command:command().
%% Whose mailbox it is; `waits': that of a process which waits for an outcome.
-type receiver() :: pid() | atom() | waits.
%% `{go, To, Wrap}': to that process, in that form.
-type go() :: go | {go, pid() | reference(), trunkline_command:wrap()}.
%% `noproc': there is no such server, and the caller has been told.
-type answer() :: go() | noproc | {no, go()}.

%% Bytes that the distribution should take at once.
-spec most_at_once() -> pos_integer().
most_at_once() -> ?AT_ONCE.

-spec may_go_at_once(trunkline_gate:charge()) -> boolean().
may_go_at_once(Charge) -> trunkline_gate:bytes(Charge) =< ?AT_ONCE.

%% Whether a lane may send a term of that size by the distribution.
-spec may_go_by_lane(trunkline_gate:charge()) -> boolean().
may_go_by_lane(Charge) -> trunkline_gate:bytes(Charge) =< ?BY_LANE.

%% Whether a reply has a size for which `!' is best.
-spec is_long_reply(trunkline_gate:charge()) -> boolean().
is_long_reply(Charge) ->
    trunkline_gate:bytes(Charge) >= ?REQUEST_FROM andalso may_go_by_lane(Charge).

%% Whether the distribution sends it whole, where messages are large from that charge on. (A large
%% one has connections of its own.)
-spec is_whole(trunkline_gate:charge(), Large :: trunkline_gate:charge()) -> boolean().
is_whole(Charge, Large) -> Charge < min(trunkline_gate:limit(?WHOLE), Large).

%% Whether long terms should go to that peer by the distribution.
-spec are_terms_suited(node(), trunkline_stats:stats()) -> boolean().
are_terms_suited(Node, Stats) -> trunkline_peers:takes_turns(Node) andalso is_near(Stats).

-spec is_near(trunkline_stats:stats()) -> boolean().
is_near(Stats) -> not trunkline_connection:is_far(Stats).

%% `no': it was not sent, and has to go another way: because of its size, or of the peer, or because
%% its turn has not come.
-spec send(trunkline_route:route(), Ix :: pos_integer(), node(), addressee(), term(),
           trunkline_shape:size(), trunkline_deadline:deadline()) ->
          ok | no.
send(Route, Ix, Node, To0, Message, Size, Deadline) ->
    To = trunkline_command:by_lane(To0),
    Charge = trunkline_shape:charge(Size),
    case is_long(To, Size)
        andalso turn(trunkline_shape:kind(Size, Message), To, Node, Ix, Size, Route) of
        now ->
            case send_now(To, Node, Message, options(Size, Deadline)) of
                ok -> bypassed(Route, Ix, Node, Charge);
                announced -> bypassed(Route, Ix, Node, 0), no;  % what comes by lane is behind it
                _ -> ok = trunkline_bypass:cancel(Ix, Route#route.bypass), no
            end;
        ask ->
            case trunkline_gate:path(Route#route.gate) =:= lanes
                andalso not trunkline_bypass:is_late(Ix, Route#route.bypass)
                andalso are_terms_suited(Node, Route#route.stats)
                andalso is_worth_asking(To, Charge, Node) of
                true -> ask(Route, Ix, Node, To, Message, Size, Deadline);
                false -> no
            end;
        _ ->
            no
    end.

%% Sends one that takes much memory, and has not been measured, if nothing is ahead of it. (Its size
%% matters only to the counters.)
-spec send_heavy(trunkline_route:route(), Ix :: pos_integer(), To :: pid(), Message :: term()) ->
          ok | no.
send_heavy(#route{bypass = Bypass} = Route, Ix, To, Message) ->
    case bypasses(To, node(To), Ix, 0, Route) of
        true ->
            case erlang:send(To, Message, [noconnect]) of
                ok ->
                    bypassed(Route, Ix, node(To), trunkline_bypass:sampled(Message, Ix, Bypass));
                noconnect ->
                    ok = trunkline_bypass:cancel(Ix, Bypass),
                    no
            end;
        false ->
            no
    end.

%% Whether a short message that has entered the gate, with that charge, should be sent past its
%% lane: few are sent, for which the lane's processes would cost more than they save, the mailbox is
%% on the heap, and nothing is ahead of it. If so, it must leave the gate, and send_short/5 must
%% follow.
-spec start_short(trunkline_route:route(), Ix :: pos_integer(), To :: trunkline_lane:to(),
                  trunkline_gate:charge()) -> boolean().
start_short(#route{bypass = Bypass} = Route, Ix, To, Charge) ->
    is_pid(To) andalso trunkline_bypass:is_quiet(Ix, Bypass)
        andalso bypasses(To, node(To), Ix, Charge, Route).

%% Sends a request with that charge straight to its agent, if nothing is ahead of it. If the
%% distribution is busy it is not sent. The caller watches that inlet. It must be one of the agent's
%% session: then the caller hears of it if the request is lost with that. (The lanes learn of the
%% end of a session later than callers do.)
-spec send_request(trunkline_route:route(), Ix :: pos_integer(), Inlet :: pid(),
                   trunkline_command:command(), Request :: term(), trunkline_gate:charge()) ->
          ok | no.
send_request(#route{gate = Gate, bypass = Bypass, agents = Agents} = Route, Ix, Inlet, Command,
             Request, Charge) ->
    case trunkline_bypass:start(Gate, Ix, 0, Bypass) of
        true ->
            case send_agent(agent(Ix, Inlet, Agents), {past, Command, Request}) of
                {ok, Node} -> bypassed(Route, Ix, Node, Charge);
                _ -> ok = trunkline_bypass:cancel(Ix, Bypass), no
            end;
        false ->
            no
    end.

send_agent(none, _) -> none;
send_agent(Agent, Message) -> {erlang:send(Agent, Message, [noconnect, nosuspend]), node(Agent)}.

%% (Without its link the table is gone.)
agent(Ix, Inlet, Agents) ->
    try ets:lookup_element(Agents, Inlet, Ix + 1)
    catch error:badarg -> none
    end.

%% Sends a message past the lane, although that may not be idle. `false': there is no connection.
-spec send_past(trunkline_route:route(), Ix :: pos_integer(), To :: pid(), Message :: term(),
                trunkline_refused:patience()) -> ok | nosuspend | false.
send_past(#route{bypass = Bypass} = Route, Ix, To, Message, Patience) ->
    ok = trunkline_bypass:started(Ix, Bypass),
    case erlang:send(To, Message, [noconnect | [nosuspend || Patience =:= nosuspend]]) of
        ok ->
            bypassed(Route, Ix, node(To), trunkline_bypass:sampled(Message, Ix, Bypass));
        NotSent ->
            ok = trunkline_bypass:cancel(Ix, Bypass),
            NotSent =:= nosuspend andalso nosuspend
    end.

%% Sends it. If the distribution is busy it is not sent, so that the calling process is not
%% suspended.
-spec send_short(trunkline_route:route(), Ix :: pos_integer(), To :: pid(), Message :: term(),
                 trunkline_gate:charge()) -> ok | nosuspend | noconnect.
send_short(#route{bypass = Bypass} = Route, Ix, To, Message, Charge) ->
    case erlang:send(To, Message, [noconnect, nosuspend]) of
        ok ->
            ok = trunkline_bypass:sent_short(Ix, Bypass),
            bypassed(Route, Ix, node(To), Charge);
        NotSent ->
            ok = trunkline_bypass:cancel(Ix, Bypass),
            NotSent
    end.

is_long(Outcome, Size) when element(1, Outcome) =:= reply ->
    trunkline_gate:bytes(trunkline_shape:charge(Size)) >= ?REQUEST_FROM;
is_long(_, {heavy, _, _}) ->
    true;
is_long(_, Size) ->
    trunkline_gate:bytes(trunkline_shape:charge(Size)) >= ?FROM.

%% One request gains less than the question costs, unless it is long. With a lease many gain.
is_worth_asking(Request, Charge, Node) when element(1, Request) =:= call ->
    trunkline_gate:bytes(Charge) >= ?REQUEST_FROM orelse trunkline_lease:is_wanted(Request, Node);
is_worth_asking(_, _, _) ->
    true.

turn(terms, To, Node, Ix, {heavy, _, Bytes}, Route) when Bytes < ?FROM; not is_tuple(To) ->
    turn_if_idle(To, Node, Ix, Route);
turn(terms, To, Node, Ix, Size, Route) ->
    %% (A long request suspends its caller, so it must not go to a peer that has stopped: that one
    %% does not answer the question.)
    Charge = trunkline_shape:charge(Size),
    case (may_go_at_once(Charge) orelse not trunkline_command:is_request(To))
        andalso bypasses(To, Node, Ix, 0, Route) of
        true -> now;
        false -> ask
    end;
turn(binaries, To, Node, Ix, Size, #route{large = Large} = Route) ->
    Charge = trunkline_shape:charge(Size),
    case is_pid(To) andalso Charge < Large andalso trunkline_gate:bytes(Charge) >= ?BINARY_FROM of
        true -> turn_if_idle(To, Node, Ix, Route);
        false -> no
    end.

%% If the sender has to ask, a binary or a heavy term is as fast by lane. But the lane
%% learns about the receiver's mailbox. And if all go by lane, it never becomes idle.
turn_if_idle(To, Node, Ix, #route{gate = Gate} = Route) ->
    case bypasses(To, Node, Ix, 0, Route) of
        true ->
            now;
        false ->
            case is_pid(To) andalso trunkline_gate:fill(Gate, Ix) < ?SHORT_QUEUE
                andalso may_ask(To, Node) of
                true -> ask;
                false -> no
            end
    end.

bypasses(To, Node, Ix, Own, #route{gate = Gate, bypass = Bypass} = Route) ->
    is_known(To, Node, Ix, Route) andalso trunkline_bypass:start(Gate, Ix, Own, Bypass).

may_ask(To, Node) ->
    case get({?MODULE, Node}) of
        {To, Until} -> erlang:monotonic_time(microsecond) >= Until;
        _ -> true
    end.

asked(To, Node, Began, Sent) when is_pid(To) ->
    Now = erlang:monotonic_time(microsecond),
    Until = case Sent of
                ok -> Now + ?PAUSE * (Now - Began);
                _ -> Now + ?REFUSED
            end,
    _ = put({?MODULE, Node}, {To, Until}),
    ok;
asked(_, _, _, _) ->
    ok.

ask(#route{lanes = Lanes, stats = Stats, bypass = Bypass} = Route, Ix, Node, To, Message, Size,
    Deadline) ->
    Charge = trunkline_shape:charge(Size),
    Lane = element(Ix, Lanes),
    Began = erlang:monotonic_time(microsecond),
    Asked = {Began div 1000, trunkline_lease:session(To, Node)},
    Time = min(?WAIT, trunkline_deadline:left(Deadline)),
    {Answer, Ref} = question(Lane, To, give_up(Ix, Bypass), Time),
    ok = trunkline_lease:keep(Answer, To, Node, Asked),
    Options = options(Size, Deadline),
    Sent = case Answer of
               go -> send_now(To, Node, Message, Options);
               {go, Receiver, Wrap} -> send_wrapped(Wrap, Receiver, Message, Options);
               noproc -> noproc;
               _ -> no
           end,
    ok = asked(To, Node, Began, Sent),
    case Sent of
        ok ->
            trunkline_stats:add(Stats, {lane, Ix}, bytes, trunkline_gate:bytes(Charge)),
            Lane ! {sent_plain, Ref},
            sent_meanwhile(self(), Node, Route);
        noproc -> ok;
        no -> no;
        _ ->
            Lane ! {not_sent, Ref},
            no
    end.

%% Whether that lane says that everything has been delivered that the calling process has sent. (It
%% does not matter to whom: the caller waits for an outcome. There is no timeout: a second question
%% would be behind what is in the lane by then.)
-spec await(Lane :: pid(), Ix :: pos_integer(), trunkline_bypass:bypass(),
            trunkline_deadline:deadline()) -> boolean().
await(Lane, Ix, Bypass, Deadline) ->
    Time = trunkline_deadline:left(Deadline),
    {Answer, Question} = question(Lane, {reply, make_ref()}, give_up(Ix, Bypass), Time),
    have_arrived(Lane, Question, Answer).

%% The same for the calling process, an inlet, about what another process has sent. It does not
%% wait: it gets {Question, Answer}, if there is an answer.
-spec ask_whether_arrived(Lane :: pid(), Sender :: pid()) -> Question :: reference().
ask_whether_arrived(Lane, Sender) ->
    Question = alias([reply]),
    Lane ! {ask, Question, Sender, {reply, make_ref()}},
    Question.

-spec ask_no_more(Lane :: pid(), Question :: reference()) -> ok.
ask_no_more(Lane, Question) ->
    _ = unalias(Question),
    Lane ! {not_sent, Question},
    ok.

%% Whether that answer says so.
-spec have_arrived(Lane :: pid(), Question :: reference(), answer() | no | down | timeout) ->
          boolean().
have_arrived(Lane, Question, Go) when Go =:= go; element(1, Go) =:= go ->
    Lane ! {not_sent, Question},
    true;
have_arrived(_, _, _) ->
    false.

give_up(Ix, Bypass) ->
    fun(Ref) ->
            ok = trunkline_bypass:not_answered(Ix, Bypass),
            {not_sent, Ref}
    end.

question(Lane, To, GiveUp, Timeout) ->
    trunkline_process:ask(Lane, fun(Ref) -> {ask, Ref, self(), To} end, GiveUp, Timeout).

send_now(To, Node, Request, Options) when element(1, To) =:= call ->
    trunkline_lease:send(To, Node, Request, Options);
send_now(To, _, Message, Options) when is_tuple(To) ->
    send_wrapped({reply, element(2, To)}, element(2, To), Message, Options);
send_now(To, Node, Message, Options) ->
    send_wrapped(plain, trunkline_by_node:destination(To, Node), Message, Options).

send_wrapped(Wrap, To, Message, Options) ->
    erlang:send(To, trunkline_command:wrap(Wrap, Message), Options).

options(Size, Deadline) ->
    [noconnect | [nosuspend || Deadline =/= infinity,
                               may_go_at_once(trunkline_shape:charge(Size))]].

%% The calling process has sent by plain distribution, and not by way of the lanes. If there are
%% lanes by now, what it sends next must not overtake that on a connection of its lane's own.
-spec sent_direct(node()) -> ok.
sent_direct(Node) -> sent_direct(self(), Node).

sent_direct(Sender, Node) ->
    case trunkline_route:lookup(Node) of
        #route{gate = Gate} = Route ->
            case trunkline_gate:path(Gate) =:= lanes andalso trunkline_peers:takes_turns(Node) of
                true -> sent_for(Sender, Node, Route);
                false ->
                    ok
            end;
        none ->
            ok
    end.

%% The same for what that process has sent.
-spec sent_for(pid(), node(), trunkline_route:route()) -> ok.
sent_for(Sender, Node, #route{lanes = Lanes, bypass = Bypass} = Route) ->
    Ix = ?LANE_OF(Sender, Lanes),
    ok = trunkline_bypass:started(Ix, Bypass),
    ok = bypassed(Route, Ix, 0),
    sent_meanwhile(Sender, Node, Route).

bypassed(Route, Ix, Node, Charge) ->
    ok = bypassed(Route, Ix, Charge),
    sent_meanwhile(self(), Node, Route).

bypassed(#route{lanes = Lanes, bypass = Bypass, stats = Stats}, Ix, Charge) ->
    trunkline_stats:add(Stats, {lane, Ix}, messages, 1),
    _ = Charge =:= 0
        orelse trunkline_stats:add(Stats, {lane, Ix}, bytes, trunkline_gate:bytes(Charge)),
    _ = trunkline_bypass:sent(Ix, Bypass) andalso (element(Ix, Lanes) ! look),
    ok.

%% If there are other lanes by now, they have to know. (Both count it, then.)
sent_meanwhile(Sender, Node, #route{bypass = Bypass}) ->
    case trunkline_route:lookup(Node) of
        #route{bypass = Bypass} -> ok;
        _ -> sent_direct(Sender, Node)
    end.

%% The calling process, a lane, sends a term of so many bytes. If the connection is lost, so is the
%% message, and it is counted.
-spec send_for_lane(To :: term(), trunkline_command:wrap(), term(), Bytes :: pos_integer(),
                    [nosuspend], trunkline_stats:stats()) -> ok | nosuspend.
send_for_lane(To, Wrap, Term, Bytes, Options, Stats) ->
    case send_wrapped(Wrap, To, Term, [noconnect | Options]) of
        nosuspend ->
            nosuspend;
        _ ->
            trunkline_stats:add(Stats, peer, large_messages, 1),
            trunkline_stats:add(Stats, peer, large_bytes, Bytes),
            trunkline_stats:add(Stats, peer, large_carried_bytes, Bytes),
            ok
    end.

%% The same for a short reply, which the lane counts.
-spec send_short_reply(trunkline_command:caller(), Reply :: term()) -> ok | nosuspend | noconnect.
send_short_reply(Caller, Reply) ->
    send_wrapped({reply, Caller}, Caller, Reply, [noconnect, nosuspend]).

%% Whether that mailbox is known to be on the heap: a process that waits for an outcome takes it out
%% of its mailbox, wherever it is; of the server of a request its agent has said so, and of another
%% process the lane. (Of a name it knows nothing.)
is_known({reply, _}, _, _, #route{stats = Stats}) ->
    is_near(Stats);
is_known(Request, Node, _, _) when element(1, Request) =:= call ->
    trunkline_lease:is_held(Request, Node);
is_known(To, _, Ix, #route{mailboxes = Mailboxes, stats = Stats}) ->
    is_pid(To) andalso is_near(Stats)
        andalso trunkline_mailboxes:may_receive(To, element(Ix, Mailboxes)).

%% The inlet has come to a question about a process. `known': its mailbox is on the heap. One that
%% waits for an outcome takes that out of its mailbox, wherever it is. What came before is there.
-spec answer(Lane :: pid(), reference(), receiver(), go(), known | look) -> ok.
answer(Lane, Ref, waits, Go, _) ->
    tell(Lane, Ref, Go);
answer(Lane, Ref, Receiver, Go, What) ->
    case trunkline_bounded:may_be(Receiver) of
        true ->
            tell(Lane, Ref, {no, Go});
        false when What =:= known ->
            tell(Lane, Ref, Go);
        false ->
            %% A process that does not get to run does not answer process_info/2.
            Look = fun() -> spawn(?MODULE, look, [Lane, Ref, Receiver, Go]) end,
            case trunkline_process:start(Look) of
                {ok, _} -> ok;
                {error, system_limit} -> tell(Lane, Ref, {no, Go})
            end
    end.

-spec look(Lane :: pid(), reference(), pid() | atom(), go()) -> ok.
look(Lane, Ref, Name, Go) when is_atom(Name) ->
    case whereis(Name) of
        Pid when is_pid(Pid) -> look(Lane, Ref, Pid, Go);
        _ -> tell(Lane, Ref, {no, Go})
    end;
look(Lane, Ref, Receiver, Go) ->
    tell(Lane, Ref, case trunkline_process:is_on_heap(Receiver)
                        andalso not trunkline_bounded:may_be(Receiver) of
                        true -> Go;
                        false -> {no, Go}
                    end).

%% The answer comes too late: the session of the lane has ended. The inlet may live on (see
%% trunkline_inlet), and should not wait for that request.
-spec not_used(answer()) -> ok.
not_used({no, Go}) ->
    not_used(Go);
not_used({go, Server, {call, _, {_, [_ | {Caller, _, Agent}]}}}) ->
    trunkline_process:send_connected(Agent, {answered, [{Caller, Server}]});
not_used(_) ->
    ok.

%% The process is not there, and the caller of a request has been told.
-spec noproc(Lane :: pid(), reference()) -> ok.
noproc(Lane, Ref) -> tell(Lane, Ref, noproc).

tell(Lane, Ref, Answer) ->
    trunkline_process:send_connected(Lane, {answer, Ref, Answer}).
