%% For the tests of inboxes: a gen_server that keeps what it got and can be told to stand
%% still, processes that open an inbox, senders, and one that looks at the bounds. These
%% functions run at the nodes. (The gen_statem is mailroom_statem.)
-module(mailroom).
-behaviour(gen_server).

-export([own/1, start/3, start/4, supervise/1, hold/1, release/1, run/2, summary/1, consumer/1]).
-export([open/2, state/1, done/2, go_on/1]).
-export([senders/4, callers/2, collect/2, alive/1, kill/1]).
-export([watch/1, most/1, waiting/1]).
-export([register_name/2, unregister_name/1, whereis_name/1, send/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-define(DEADLINE, 90_000).

%% A process that does this, and stays with what it has started or linked.
own(Fun) ->
    Self = self(),
    Ref = make_ref(),
    _ = spawn(fun() ->
                      process_flag(trap_exit, true),
                      Self ! {Ref, Fun()},
                      receive {Ref, end_of_test} -> ok end
              end),
    receive {Ref, Result} -> Result end.

start(Name, How, Inbox) -> start(Name, ?MODULE, How, Inbox).

start(Name, Module, How, Inbox) ->
    own(fun() -> trunkline_inbox:start_link(Name, Module, How, [{inbox, Inbox}]) end).

%% Restarts as often as it must.
supervise(Specs) ->
    own(fun() -> supervisor:start_link(?MODULE, {supervisor, Specs}) end).

%% It stands still, in a callback, until it is told to go on by its own pid.
hold(Name) -> gen_server:call(Name, hold, infinity).
release(Name) -> consumer(Name) ! release, ok.

%% While it is held.
run(Name, Fun) ->
    Ref = make_ref(),
    consumer(Name) ! {run, self(), Ref, Fun},
    receive {Ref, Result} -> Result after ?DEADLINE -> exit(timeout) end.

%% #{Tag => {Last, Count, [what is not in order]}}
summary(Name) -> gen_server:call(Name, summary, infinity).

consumer(Name) ->
    #{consumer := Pid} = trunkline_inbox:info(Name),
    Pid.

%% --- a registry: {via, mailroom, {Name, Node}} ----------------------------------

register_name({Name, _}, Pid) ->
    try register(Name, Pid) of true -> yes
    catch error:badarg -> no
    end.

unregister_name({Name, _}) -> unregister(Name).

whereis_name({Name, Node}) -> erpc:call(Node, erlang, whereis, [Name]).

send(Name, Message) -> whereis_name(Name) ! Message.

%% --- the gen_server ---------------------------------------------------------

init({supervisor, Specs}) -> {ok, {#{intensity => 1000, period => 1}, Specs}};
init(#{init := crash}) -> error(crash);
init(#{init := Answer}) -> Answer;
init(How) ->
    _ = [process_flag(trap_exit, true) || is_map_key(trap, How)],
    _ = [ets:new(Table, [named_table]) || #{table := Table} <- [How]],
    _ = [receive never -> ok end || is_map_key(wait, How)],
    _ = [begin
             true = register(starting, self()),
             receive go -> unregister(starting) end
         end || is_map_key(until_go, How)],
    {ok, #{how => How, summary => #{}, list => []}}.

handle_call({echo, Term}, _, S) -> {reply, Term, S};
handle_call({thrown, Term}, _, S) -> throw({reply, Term, S});
handle_call({bytes, N}, _, S) -> {reply, binary:copy(<<"x">>, N), S};
handle_call(self, _, S) -> {reply, self(), S};
handle_call(summary, _, #{summary := Summary} = S) -> {reply, Summary, S};
handle_call(list, _, #{list := List} = S) -> {reply, lists:reverse(List), S};
handle_call(hold, From, S) -> gen_server:reply(From, ok), stand_still(), {noreply, S};
handle_call(hibernate, _, S) -> {reply, ok, S, hibernate};
handle_call({stop, Reason}, _, S) -> {stop, Reason, stopping, S};
handle_call({exit, Reason}, _, _) -> exit(Reason).

handle_cast({thrown, Message}, S) -> throw(handle_cast(Message, S));
handle_cast(Message, S) -> {noreply, got(Message, S)}.

handle_info({thrown, Message}, S) -> throw(handle_info(Message, S));
handle_info(Message, S) -> {noreply, got(Message, S)}.

terminate(Reason, #{how := #{tell := Pid}}) -> Pid ! {terminated, self(), Reason};
terminate(_, _) -> ok.

got({from, Tag, N, _}, #{summary := Summary} = S) ->
    list({Tag, N},
         S#{summary := maps:update_with(
                         Tag, fun({Last, Count, Odd}) when N =:= Last + 1 -> {N, Count + 1, Odd};
                                 ({Last, Count, Odd}) -> {N, Count + 1, [{Last, N} | Odd]}
                              end, {N, 1, []}, Summary)});
got(Other, S) ->
    list(Other, S).

list(Item, #{how := #{list := true}, list := List} = S) -> S#{list := [Item | List]};
list(_, S) -> S.

stand_still() ->
    receive
        release -> ok;
        {run, From, Ref, Fun} -> From ! {Ref, Fun()}, stand_still()
    end.

%% --- a process that opens an inbox ---------------------------------------------

%% It is not done with anything until it is told.
open(Name, Options) ->
    own(fun() ->
                Self = self(),
                Pid = spawn_link(fun() ->
                                         {ok, Inbox} = case Name of
                                                           none -> trunkline_inbox:open(Options);
                                                           _ -> trunkline_inbox:open(Name, Options)
                                                       end,
                                         Self ! {self(), Inbox},
                                         consume(Inbox, [], 0, 0, stop)
                                 end),
                receive {Pid, Inbox} -> {Pid, Inbox} end
        end).

%% {What it got, how much of it is not done, the most that ever was}
state(Pid) -> ask(Pid, state).
done(Pid, N) -> ask(Pid, {done, N}).
%% Done with everything, from now on.
go_on(Pid) -> ask(Pid, go_on).

ask(Pid, What) ->
    Ref = make_ref(),
    Pid ! {?MODULE, self(), Ref, What},
    receive {Ref, Answer} -> Answer after ?DEADLINE -> exit(timeout) end.

consume(Inbox, Got, Here, Most, Mode) ->
    receive
        {?MODULE, From, Ref, state} ->
            From ! {Ref, {lists:reverse(Got), Here, Most}},
            consume(Inbox, Got, Here, Most, Mode);
        {?MODULE, From, Ref, {done, N}} ->
            From ! {Ref, trunkline_inbox:done(Inbox, N)},
            consume(Inbox, Got, Here - N, Most, Mode);
        {?MODULE, From, Ref, go_on} ->
            Here =:= 0 orelse trunkline_inbox:done(Inbox, Here),
            From ! {Ref, ok},
            consume(Inbox, Got, 0, Most, go_on);
        Message when Mode =:= go_on ->
            ok = trunkline_inbox:done(Inbox, 1),
            consume(Inbox, [Message | Got], 0, Most, Mode);
        Message ->
            consume(Inbox, [Message | Got], Here + 1, max(Most, Here + 1), Mode)
    end.

%% --- senders -------------------------------------------------------------------

%% One for each tag, of so many messages.
senders(To, Tags, Messages, Bytes) ->
    Payload = binary:copy(<<"x">>, Bytes),
    [spawn(fun() -> sender(To, Tag, Messages, Payload, 1) end) || Tag <- Tags].

sender(To, Tag, Messages, Payload, N) ->
    _ = trunkline:send(To, {from, Tag, N, Payload}),
    receive
        stop -> exit({sent, N})
    after 0 ->
            case N of
                Messages -> receive _ -> exit({sent, N}) end;
                _ -> sender(To, Tag, Messages, Payload, N + 1)
            end
    end.

%% One for each; they are collected as senders are.
callers(Call, Numbers) ->
    [spawn(fun() -> Answer = Call(N), receive _ -> exit({sent, Answer}) end end) || N <- Numbers].

%% `stop' them, or let them `finish': how many each has sent; `stuck'.
collect(Pids, How) ->
    Refs = [begin Ref = monitor(process, Pid), Pid ! How, Ref end || Pid <- Pids],
    Deadline = erlang:monotonic_time(millisecond) + ?DEADLINE,
    [receive
         {'DOWN', Ref, process, _, {sent, N}} -> N;
         {'DOWN', Ref, process, _, Reason} -> Reason
     after max(0, Deadline - erlang:monotonic_time(millisecond)) ->
             stuck
     end || Ref <- Refs].

alive(Pids) -> length([Pid || Pid <- Pids, is_process_alive(Pid)]).

kill(Pids) ->
    Refs = [begin Ref = monitor(process, Pid), exit(Pid, kill), Ref end || Pid <- Pids],
    _ = [receive {'DOWN', Ref, process, _, _} -> ok end || Ref <- Refs],
    ok.

%% --- bounds ----------------------------------------------------------------------

%% Looks at an inbox again and again.
watch(Name) ->
    Keeper = whereis(Name),
    spawn(fun() -> watch(Keeper, {0, 0, 0}) end).

watch(Keeper, {Messages, Bytes, Length}) ->
    #{queued_messages := M, queued_bytes := B, consumer := Pid} = trunkline_keeper:info(Keeper),
    {message_queue_len, L} = process_info(Pid, message_queue_len),
    Most = {max(Messages, M), max(Bytes, B), max(Length, L)},
    receive
        {most, From} -> From ! {self(), Most}
    after 1 ->
            watch(Keeper, Most)
    end.

%% The most {messages, bytes} it has seen, and the most that the process itself had.
most(Watch) ->
    Watch ! {most, self()},
    receive {Watch, Most} -> Most end.

%% Who waits, by node.
waiting(Name) ->
    #{nodes := Nodes} = trunkline_inbox:info(Name),
    maps:map(fun(_, Node) -> maps:get(waiting, Node, unknown) end, Nodes).
