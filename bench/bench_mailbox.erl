%% Too much mail: what a process pays for a long mailbox, and what an inbox in front of it
%% (trunkline_inbox) costs and saves. Consumers and servers are on this node, and who sends
%% is here or at a second node.
%%
%%     producer ── 10,000 messages ──> consumer <── 10 requests and answers each ──> echo
%%
%%     asynchronous    producer ─────────────────> consumer       waits in its mailbox
%%     synchronous     producer <── each, ack ───> consumer       the producer waits
%%     queue_keeper    producer ──> a queue ─ 1 ─> consumer       waits in a queue without bound
%%     inbox           producer ──> inbox ── 1 ──> consumer       waits in the inbox, or before it
%%     inbox_eight     producer ──> inbox ── 8 ──> consumer       the same, eight messages at a time
%%
%%     1. The experiment "mailbox" (LShift, 2007): until the consumer is through. It finds the
%%        answer to a request by what it says, so that it searches its mailbox from the start.
%%     2. A gen_server that makes ten gen_server calls for each cast. Their references are
%%        new, so that nothing is searched.
%%     3. Calls and casts to a server that has nothing else to do, with and without an inbox.
%%     4. The memory of a slow server that is flooded for five seconds.
%%     5. Messages to another node over the one lane on which four senders send to an inbox
%%        there that is full.
%%     6. What sending costs a process that has a million messages in its own mailbox.
-module(bench_mailbox).
-behaviour(gen_server).

-export([main/0]).
-export([produce/3, ask/3, cast_all/4, flood/1, stalled/1, receive_all/2]).
-export([us_each/4, start/2, kill/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

%% 1 and 2
-define(MESSAGES, 10_000).
-define(INTERACTIONS, 10).
%% 4
-define(INBOX, 4_000_000).        % bytes
-define(ALLOWED, 16_000_000).     % bytes beyond that
-define(FLOOD, 5000).             % ms
-define(SLOW, 1).                 % ms, what the server needs for one message, at least
-define(SAMPLE, 20).              % ms
-define(ENOUGH, 1_000_000_000).   % bytes, at which a flood ends before its time
%% 5
-define(BLOCKED, 4).
-define(STALLED, 1000).           % messages in the inbox that is full
%% 6
-define(LONG, 1_000_000).         % messages
-define(SENDS, 20_000).
-define(CALLS, 2_000).

-spec main() -> no_return().
main() ->
    bench:run(fun run/0).

run() ->
    bench:say("~nMailbox; ~b rounds, each variant once a round, two cores shared by both nodes",
              [bench:rounds()]),
    Measured = with_peer([], [F || {Which, F} <- experiments(), Which =/= "5"])
        ++ one_lane([F || {"5", F} <- experiments()]),
    bench:finish("mailbox", [{Unit, [Result]} || {Unit, Result, _} <- Measured],
                 lists:append([Targets || {_, _, Targets} <- Measured])).

%% All, or those that EXPERIMENTS names: EXPERIMENTS="1 3".
experiments() ->
    All = [{"1", fun consumers/1}, {"2", fun servers/1}, {"3", fun idle/1}, {"4", fun flooded/1},
           {"5", fun beside_waiters/1}, {"6", fun long/1}],
    case os:getenv("EXPERIMENTS") of
        false -> All;
        Some ->
            [Experiment
             || {Which, _} = Experiment <- All, lists:member(Which, string:lexemes(Some, " "))]
    end.

with_peer(Args, Experiments) ->
    {_, Node} = Peer = bench:start_peer(Args),
    Measured = lists:append([Experiment(Node) || Experiment <- Experiments]),
    bench:stop_peer(Peer),
    Measured.

%% An experiment answers [{Unit, Result, Targets}].
measured(Unit, Bases, Result, Targets) ->
    bench:table(Unit, Bases, Result),
    {Unit, Result, Targets}.

places(Node) -> [{"one node", node()}, {"two nodes", Node}].

%% --- 1: a consumer that asks for each message -------------------------------------------

consumers(Node) ->
    [begin
         Ms = bench:in_turn([{V, fun() -> consumer_ms(V, At) end}
                             || V <- [asynchronous, synchronous, queue_keeper, inbox,
                                      inbox_eight]]),
         Case = lists:concat(["1. ", ?MESSAGES, " messages, ", ?INTERACTIONS,
                              " selective receives each, ", Where]),
         measured("ms", [synchronous], {Case, Ms},
                  [bench:target("1. ms, " ++ Where ++ ": inbox / synchronous", at_most, 1.0,
                                bench:ratio(inbox, synchronous, Ms))])
     end || {Where, At} <- places(Node)].

%% From the first message until the consumer is through with the last. The producer is at At.
consumer_ms(Variant, At) ->
    Self = self(),
    Echo = spawn_link(fun echo/0),
    Consumer = spawn_link(fun() ->
                                  {To, Done} = front(Variant, At),
                                  Self ! {to, self(), To},
                                  consume(?MESSAGES, Echo, Done),
                                  Self ! {through, self()}
                          end),
    To = receive {to, Consumer, T} -> T end,
    Producer = erlang:spawn_link(At, ?MODULE, produce, [Self, Variant, To]),
    receive {ready, Producer} -> ok end,
    T0 = erlang:monotonic_time(),
    Producer ! go,
    receive {through, Consumer} -> ok end,
    T1 = erlang:monotonic_time(),
    Echo ! stop,
    us(T1 - T0) / 1000.

%% By the consumer: where its messages should go, and what it does after each.
front(asynchronous, _) ->
    {self(), fun(_) -> ok end};
front(synchronous, _) ->
    {self(), fun(Producer) -> Producer ! ack end};
front(queue_keeper, _) ->
    Consumer = self(),
    Keeper = spawn_link(fun() -> queue_keeper(Consumer, queue:new(), idle) end),
    {Keeper, fun(_) -> Keeper ! done end};
front(Variant, At) ->
    {ok, Inbox} =
        trunkline_inbox:open(case Variant of inbox -> #{}; inbox_eight -> #{work => 8} end),
    ok = await_known(Inbox, At),
    {Inbox, fun(_) -> trunkline_inbox:done(Inbox, 1) end}.

consume(0, _, _) ->
    ok;
consume(N, Echo, Done) ->
    receive
        {work, Producer, I} ->
            lists:foreach(fun(J) ->
                                  Echo ! {echo, self(), {I, J}},
                                  receive {I, J} -> ok end
                          end, lists:seq(1, ?INTERACTIONS)),
            _ = Done(Producer),
            consume(N - 1, Echo, Done)
    end.

echo() ->
    receive
        {echo, From, Term} -> From ! Term, echo();
        stop -> ok
    end.

%% Keeps what comes and gives the consumer one at a time, as the experiment's readers
%% proposed. It ends with the consumer.
queue_keeper(Consumer, Queue, State) ->
    receive
        done ->
            case queue:out(Queue) of
                {{value, Message}, Queue1} ->
                    Consumer ! Message,
                    queue_keeper(Consumer, Queue1, busy);
                {empty, _} -> queue_keeper(Consumer, Queue, idle)
            end;
        Message when State =:= idle ->
            Consumer ! Message,
            queue_keeper(Consumer, Queue, busy);
        Message ->
            queue_keeper(Consumer, queue:in(Message, Queue), busy)
    end.

-spec produce(pid(), bench:variant(), pid()) -> ok.
produce(Parent, Variant, To) ->
    Parent ! {ready, self()},
    receive go -> ok end,
    lists:foreach(fun(I) -> produce_one(Variant, To, {work, self(), I}) end,
                  lists:seq(1, ?MESSAGES)).

produce_one(synchronous, To, Message) ->
    To ! Message,
    receive ack -> ok end;
produce_one(Inbox, To, Message) when Inbox =:= inbox; Inbox =:= inbox_eight ->
    trunkline:send(To, Message);
produce_one(_, To, Message) ->
    To ! Message.

%% --- 2: a gen_server that calls for each cast ----------------------------------------------

servers(Node) ->
    [begin
         Ms = bench:in_turn([{V, fun() -> server_ms(V, At) end} || V <- [plain, inbox]]),
         Case = lists:concat(["2. ", ?MESSAGES, " casts, ", ?INTERACTIONS,
                              " gen_server:calls each, ", Where]),
         measured("ms", [plain], {Case, Ms}, [])
     end || {Where, At} <- places(Node)].

server_ms(Variant, At) ->
    Echo = start(plain, #{}),
    Server = start(Variant, #{}),
    ok = case Variant of plain -> ok; inbox -> await_known(Server, At) end,
    Way = case Variant of plain -> gen_server; inbox -> trunkline end,
    PerSecond = erpc:call(At, ?MODULE, cast_all, [Way, Server, {ask, Echo}, ?MESSAGES]),
    ok = kill([Server, Echo]),
    ?MESSAGES * 1000 / PerSecond.

%% --- 3: a server with nothing else to do ---------------------------------------------------

idle(Node) ->
    Times =
        [call_times(Where, At, Most) || {{Where, At}, Most} <- lists:zip(places(Node), [2.0, 1.1])],
    Times ++ [cast_rates(Where, At) || {Where, At} <- places(Node)].

call_times(Where, At, Most) ->
    Way = if At =:= node() -> gen_server; true -> trunkline end,
    Us = with_both(At, fun(Server) ->
                               Measure =
                                   bench:sized(fun(N) ->
                                                       erpc:call(At, ?MODULE, ask, [Way, Server, N])
                                               end),
                               fun() -> lists:last(Measure()) end
                       end),
    Case = lists:concat(["3. p50 of a call to an idle server, ", Where, ", ", Way, ":call"]),
    measured("us", [plain], {Case, Us},
             [bench:target("3. us, p50 of a call, " ++ Where ++ ": inbox / plain", at_most, Most,
                           bench:ratio(inbox, plain, Us))]).

cast_rates(Where, At) ->
    Rates = with_both(At, fun(Server) ->
                                  bench:sized(fun(N) ->
                                                      erpc:call(At, ?MODULE, cast_all,
                                                                [trunkline, Server, item, N])
                                              end)
                          end),
    measured("messages/s", [plain],
             {"3. casts to a fast server, " ++ Where ++ ", trunkline:cast", Rates}, []).

%% Without and with an inbox, in turn.
with_both(At, ToMeasure) ->
    Servers = [{V, start(V, #{})} || V <- [plain, inbox]],
    ok = await_known(proplists:get_value(inbox, Servers), At),
    Measured = bench:in_turn([{V, ToMeasure(Server)} || {V, Server} <- Servers]),
    ok = kill([Server || {_, Server} <- Servers]),
    Measured.

%% [calls a second, p50 in us]
-spec ask(gen_server | trunkline, pid(), pos_integer()) -> [number()].
ask(Way, Server, N) ->
    T0 = erlang:monotonic_time(),
    Times = [begin
                 T1 = erlang:monotonic_time(),
                 I = Way:call(Server, {echo, I}, infinity),
                 us(erlang:monotonic_time() - T1)
             end || I <- lists:seq(1, N)],
    [N * 1.0e6 / us(erlang:monotonic_time() - T0), bench:median(Times)].

%% Messages a second, until the server has handled the last.
-spec cast_all(gen_server | trunkline, pid(), Request :: term(), pos_integer()) -> float().
cast_all(Way, Server, Request, N) ->
    T0 = erlang:monotonic_time(),
    lists:foreach(fun(_) -> Way:cast(Server, Request) end, lists:seq(1, N)),
    N = Way:call(Server, handled, infinity),
    N * 1.0e6 / us(erlang:monotonic_time() - T0).

%% --- 4: a slow server that is flooded ------------------------------------------------------

flooded(Node) ->
    bench:say("~n4. A server that needs ~b ms for a message, flooded for ~b s, or until the node "
              "has ~b MB more~n"
              "     plain            no inbox; "
              "4 senders here and 4 at the other node, by trunkline:cast~n"
              "     inbox            the same, with an inbox of ~b MB~n"
              "     inbox_and_stock  the same, and 2 senders more here, by gen_server:cast~n",
              [?SLOW, ?FLOOD div 1000, ?ENOUGH div 1_000_000, ?INBOX div 1_000_000]),
    Measured = bench:all_in_turn([{V, fun() -> flood_one(V, Node) end}
                                  || V <- [plain, inbox, inbox_and_stock]]),
    Figure = fun(Key) -> [{V, [maps:get(Key, M) || M <- Ms]} || {V, Ms} <- Measured] end,
    Results = [{Unit, {"4. " ++ Case, Figure(Key)},
                [target(V, Ms) || Key =:= memory, {V, Ms} <- Figure(Key), V =/= plain]}
               || {Key, Case, Unit} <- [{memory, "server and inbox, most memory", "MB"},
                                        {growth, "node, most above rest", "MB"},
                                        {server, "server, longest mailbox", "messages"},
                                        {keeper, "inbox, longest mailbox", "messages"},
                                        {dropped, "dropped by the inbox", "messages"},
                                        {ms, "the flood lasted", "ms"}]],
    bench:overview([{Unit, Result} || {Unit, Result, _} <- Results]),
    Results.

target(Variant, Ms) ->
    bench:target(lists:concat(["4. MB, memory of server and inbox, ", Variant]), at_most,
                 (?INBOX + ?ALLOWED) div 1_000_000, lists:max(Ms)).

flood_one(Variant, Node) ->
    Inbox = start(case Variant of plain -> plain; _ -> inbox end, #{bytes => ?INBOX}),
    Processes = case Variant of
                    plain ->
                        [{server, Inbox}];
                    _ ->
                        ok = await_known(Inbox, Node),
                        #{consumer := Server} = trunkline_inbox:info(Inbox),
                        [{server, Server}, {keeper, Inbox}]
                end,
    bench:collect_garbage([node(), Node]),
    Rest = erlang:memory(total),
    Priority = process_flag(priority, max),
    T0 = now_ms(),
    Senders = [erlang:spawn(At, ?MODULE, flood, [{trunkline, Inbox}])
               || At <- [node(), Node], _ <- lists:seq(1, 4)]
        ++ [spawn(?MODULE, flood, [{gen_server, Inbox}])
            || Variant =:= inbox_and_stock, _ <- [1, 2]],
    Most = sample(T0 + ?FLOOD, Rest, Processes, #{}),
    Ms = now_ms() - T0,
    ok = kill(Senders),
    _ = process_flag(priority, Priority),
    Dropped = case Variant of
                  plain -> 0;
                  _ -> maps:get(dropped, trunkline_inbox:info(Inbox))
              end,
    ok = kill([Inbox]),
    maps:merge(#{keeper => 0, ms => Ms, dropped => Dropped}, Most).

%% The most of each figure, until then.
sample(Until, Rest, Processes, Most) ->
    Seen = [{Name, process_info(Pid, [memory, message_queue_len])} || {Name, Pid} <- Processes],
    Growth = erlang:memory(total) - Rest,
    Now = maps:from_list([{growth, Growth / 1.0e6},
                          {memory, lists:sum([Bytes || {_, [{_, Bytes}, _]} <- Seen]) / 1.0e6}
                         | [{Name, Length} || {Name, [_, {_, Length}]} <- Seen]]),
    Most1 = maps:merge_with(fun(_, A, B) -> max(A, B) end, Most, Now),
    case now_ms() < Until andalso Growth < ?ENOUGH of
        true -> receive after ?SAMPLE -> sample(Until, Rest, Processes, Most1) end;
        false -> Most1
    end.

-spec flood({gen_server | trunkline, pid()}) -> no_return().
flood({Way, Server}) -> flood(Way, Server, 1).

flood(Way, Server, N) ->
    Way:cast(Server, {slow, N, <<0:400>>}),
    flood(Way, Server, N + 1).

%% --- 5: one lane, on which some wait for an inbox that is full -----------------------------

one_lane(Experiments) ->
    ok = set_lanes([{lanes, 1}]),
    Measured = with_peer(["-trunkline", "lanes", "1"], Experiments),
    ok = set_lanes([]),
    Measured.

beside_waiters(Node) ->
    #{lanes := [_]} = trunkline:info(Node),
    Rates = bench:in_turn([{alone, bench:sized(fun(N) -> rate(Node, N) end)},
                           {beside_blocked,
                            bench:sized(fun(N) ->
                                                beside_blocked(Node, fun() -> rate(Node, N) end)
                                        end)}]),
    Case =
        lists:concat(["5. one lane, on which ", ?BLOCKED, " senders are blocked by a full inbox"]),
    [measured("messages/s", [alone], {Case, Rates},
              [bench:target("5. messages/s on one lane: beside blocked senders / alone",
                            at_least, 0.9,
                            bench:ratio(beside_blocked, alone, Rates))])].

%% For peers that come later.
set_lanes(Env) ->
    ok = logger:set_primary_config(level, none),       % "stopped"
    ok = application:stop(trunkline),
    ok = bench:log_briefly(),
    ok = application:unset_env(trunkline, lanes),
    ok = application:set_env([{trunkline, Env}]).

%% Messages a second from one process to one at that node.
rate(Node, N) ->
    Receiver = erlang:spawn_link(Node, ?MODULE, receive_all, [self(), N]),
    receive {ready, Receiver} -> ok end,
    T0 = erlang:monotonic_time(),
    lists:foreach(fun(I) -> trunkline:send(Receiver, {item, I, 1}) end, lists:seq(1, N)),
    receive {all, Receiver} -> ok end,
    N * 1.0e6 / us(erlang:monotonic_time() - T0).

-spec receive_all(pid(), pos_integer()) -> ok.
receive_all(Parent, N) ->
    Parent ! {ready, self()},
    lists:foreach(fun(I) -> receive {item, Number, 1} -> I = Number end end, lists:seq(1, N)),
    Parent ! {all, self()},
    ok.

%% They are blocked when it begins, and still when it has ended.
beside_blocked(Node, Fun) ->
    Stalled = erlang:spawn_link(Node, ?MODULE, stalled, [self()]),
    Inbox = receive {inbox, Stalled, Pid} -> Pid end,
    ok = await_known(Inbox, node()),
    Senders = [spawn_link(?MODULE, flood, [{trunkline, Inbox}]) || _ <- lists:seq(1, ?BLOCKED)],
    ok = bench:poll(fun() -> waiting(Inbox) =:= ?BLOCKED end, 5000),
    Result = Fun(),
    ?BLOCKED = waiting(Inbox),
    ok = kill([Stalled | Senders]),
    Result.

waiting(Inbox) ->
    maps:get(waiting, trunkline_inboxes:senders(Inbox)).

%% Is never done with anything.
-spec stalled(pid()) -> no_return().
stalled(Parent) ->
    {ok, Inbox} = trunkline_inbox:open(#{messages => ?STALLED}),
    Parent ! {inbox, self(), Inbox},
    receive never -> exit(never) end.

%% --- 6: to send with a long mailbox --------------------------------------------------------

long(Node) ->
    Server = erpc:call(Node, ?MODULE, start, [plain, #{}]),
    Inbox = erpc:call(Node, ?MODULE, start, [inbox, #{}]),
    ok = await_known(Inbox, node()),
    Ways = [{"`!'", none, ?SENDS, fun(I) -> Server ! {item, I} end},
            {"trunkline:send", 1.5, ?SENDS, fun(I) -> trunkline:send(Server, {item, I}) end},
            {"trunkline:cast", none, ?SENDS, fun(_) -> trunkline:cast(Server, item) end},
            {"gen_server:call", none, ?CALLS,
             fun(I) -> gen_server:call(Server, {echo, I}, infinity) end},
            {"trunkline:call", 1.5, ?CALLS,
             fun(I) -> trunkline:call(Server, {echo, I}, infinity) end},
            {"trunkline:send, an inbox", none, ?SENDS,
             fun(I) -> trunkline:send(Inbox, {item, I}) end}],
    bench:say("~n6. One message or call to another node, "
              "from a process with ~b messages in its mailbox~n", [?LONG]),
    Results = [begin
                   Us = bench:in_turn([{V, fun() -> us_each(Length, N, Fun, [Server, Inbox]) end}
                                       || {V, Length} <- [{empty, 0}, {long, ?LONG}]]),
                   {"us", {"6. " ++ Way, Us},
                    [bench:target("6. us of a " ++ Way ++ ": long mailbox / empty", at_most, Most,
                                  bench:ratio(long, empty, Us))
                     || is_number(Most)]}
               end || {Way, Most, N, Fun} <- Ways],
    bench:overview([{Unit, Result} || {Unit, Result, _} <- Results]),
    erpc:call(Node, ?MODULE, kill, [[Server, Inbox]]),
    Results.

%% Of N times Fun, each, including the waits for room, in a process that has got so many messages.
-spec us_each(non_neg_integer(), pos_integer(), fun((pos_integer()) -> term()), [pid()]) ->
          number().
us_each(Length, N, Fun, Servers) ->
    Self = self(),
    Pid = spawn_link(fun() ->
                             lists:foreach(fun(I) -> self() ! {mail, I} end, lists:seq(1, Length)),
                             erlang:garbage_collect(),
                             T0 = erlang:monotonic_time(),
                             lists:foreach(Fun, lists:seq(1, N)),
                             Self ! {took, self(), us(erlang:monotonic_time() - T0)}
                     end),
    Us = receive {took, Pid, T} -> T end,
    %% Nothing of it is under way when the next one begins.
    _ = [trunkline:call(Server, handled, infinity) || Server <- Servers],
    Us / N.

%% --- servers -----------------------------------------------------------------------------

-spec start(plain | inbox, trunkline_inbox:options()) -> pid().
start(plain, _) ->
    {ok, Server} = gen_server:start(?MODULE, [], []),
    Server;
start(inbox, Options) ->
    {ok, Inbox} = trunkline_inbox:start_link(?MODULE, [], [{inbox, Options}]),
    unlink(Inbox),
    Inbox.

-spec init([]) -> {ok, Handled :: non_neg_integer()}.
init([]) -> {ok, 0}.

-spec handle_call(term(), gen_server:from(), non_neg_integer()) ->
          {reply, term(), non_neg_integer()}.
handle_call({echo, Term}, _, N) -> {reply, Term, N};
handle_call(handled, _, N) -> {reply, N, 0}.

-spec handle_cast(term(), non_neg_integer()) -> {noreply, non_neg_integer()}.
handle_cast(item, N) ->
    {noreply, N + 1};
handle_cast({slow, _, _}, N) ->
    receive after ?SLOW -> {noreply, N + 1} end;
handle_cast({ask, Echo}, N) ->
    lists:foreach(fun(I) -> I = gen_server:call(Echo, {echo, I}) end, lists:seq(1, ?INTERACTIONS)),
    {noreply, N + 1}.

-spec handle_info(term(), non_neg_integer()) -> {noreply, non_neg_integer()}.
handle_info({item, _}, N) -> {noreply, N + 1}.

-spec kill([pid()]) -> ok.
kill(Pids) ->
    lists:foreach(fun(Pid) ->
                          Ref = monitor(process, Pid),
                          unlink(Pid),
                          exit(Pid, kill),
                          receive {'DOWN', Ref, process, Pid, _} -> ok end
                  end, Pids).

%% Until senders at that node know of that inbox. The inbox's node tells them.
await_known(Inbox, Node) ->
    Home = node(Inbox),
    %% (Release 0.5.0 tells every node of every inbox.)
    Home =:= Node orelse not erlang:function_exported(trunkline_inboxes, met, 2)
        orelse (ok = erpc:call(Home, trunkline_inboxes, met, [Inbox, Node])),
    bench:poll(fun() -> erpc:call(Node, ets, member, [trunkline_inboxes, Inbox]) end, 5000).

us(Native) -> erlang:convert_time_unit(Native, native, nanosecond) / 1000.

now_ms() -> erlang:monotonic_time(millisecond).
