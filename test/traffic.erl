%% Senders and receivers for the tests. These functions run at the nodes.
%%
%% A receiver is a gen_server that keeps what it got, in whatever form it came:
%% as a message, a cast or a call. A watcher keeps a summary. A sender plays a
%% script, one step after the other, and numbers what it sends.
-module(traffic).
-behaviour(gen_server).

-export([start_receivers/1, received/1, count/1, start_watchers/1, summary/1]).
-export([play_all/1, payload/1, attempt/1, await_lease/2]).
-export([stream/3, trickle/3, drip/3, sent/1, stop_stream/1]).
-export([fill/0, fill_connection/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

%% --- receivers --------------------------------------------------------------

start_receivers(N) ->
    [begin {ok, Pid} = gen_server:start(?MODULE, [], []), Pid end || _ <- lists:seq(1, N)].

%% [{Sender, Number}] in the order of arrival. (Much may be in the mailbox before the question.)
received(Pid) -> gen_server:call(Pid, received, infinity).

count(Pid) -> gen_server:call(Pid, count, infinity).

start_watchers(N) ->
    [begin {ok, Pid} = gen_server:start(?MODULE, #{}, []), Pid end || _ <- lists:seq(1, N)].

%% #{Sender => {Last, Count, [{Number, next Number} that are not in order]}}
summary(Pid) -> gen_server:call(Pid, summary, infinity).

%% (A watcher comes before its senders: with streams both ways it would fall millions of messages
%% behind, and be lost in its garbage collections.)
init(Got) ->
    is_map(Got) andalso process_flag(priority, high),
    {ok, Got}.

handle_call(received, _, Got) -> {reply, lists:reverse(Got), Got};
handle_call(count, _, Got) when is_list(Got) -> {reply, length(Got), Got};
handle_call(count, _, Got) -> {reply, lists:sum([N || {_, N, _} <- maps:values(Got)]), Got};
handle_call(summary, _, Got) -> {reply, Got, Got};
handle_call({from, Id, N, _}, _, Got) -> {reply, {ok, Id, N}, got(Id, N, Got)}.

handle_cast({from, Id, N, _}, Got) -> {noreply, got(Id, N, Got)}.

handle_info({from, Id, N, _}, Got) -> {noreply, got(Id, N, Got)};
handle_info(_, Got) -> {noreply, Got}.

got(Id, N, Got) when is_list(Got) ->
    [{Id, N} | Got];
got(Id, N, Got) ->
    case Got of
        #{Id := {Last, Count, Odd}} when N > Last -> Got#{Id := {N, Count + 1, Odd}};
        #{Id := {Last, Count, Odd}} -> Got#{Id := {N, Count + 1, [{Last, N} | Odd]}};
        #{} -> Got#{Id => {N, 1, []}}
    end.

%% --- senders ----------------------------------------------------------------

%% Calls the server until the calling process has a lease of it (trunkline_lease), which a peer that
%% does not answer at once does not give. Returns the lane, the agent and the inlet.
await_lease(Server, Call) ->
    Key = {trunkline_lease, node(Server)},
    cluster:await(fun() ->
                          _ = Call(),
                          case get(Key) of
                              {lease, Server, _, _} -> true;
                              Other -> {no_lease, Other}
                          end
                  end),
    {lease, Server, _, Way} = get(Key),
    Way.

%% A script is [{Kind, Receiver, Bytes}]; of a multicast, [Receiver]. Plays scripts at the same
%% time, and answers when all are through.
play_all(Scripts) ->
    Pids = [spawn_monitor(fun() -> steps(Script, Id, 1) end) || {Id, Script} <- Scripts],
    [receive {'DOWN', Ref, process, Pid, Reason} -> Reason end || {Pid, Ref} <- Pids].

steps([], _, _) ->
    ok;
steps([{Kind, To, Bytes} | Script], Id, N) ->
    step(Kind, To, {from, Id, N, payload(Bytes)}, Id, N),
    steps(Script, Id, N + 1).

step(send, To, Message, _, _) -> Message = trunkline:send(To, Message);
step(cast, To, Message, _, _) -> ok = trunkline:cast(To, Message);
step(call, To, Message, Id, N) -> {ok, Id, N} = trunkline:call(To, Message, infinity);
step(multicast, Tos, Message, _, _) -> ok = trunkline:multicast(Tos, Message);
step(request, To, Message, _, _) -> _ = trunkline:send_request(To, Message);
step(retry, To, Message, Id, N) ->
    case trunkline:send(To, Message, [nosuspend]) of
        ok -> ok;
        nosuspend -> erlang:yield(), step(retry, To, Message, Id, N)
    end.

%% Terms of different make: binaries are sent by reference, lists are copied.
payload(Bytes) when Bytes rem 3 =:= 0 -> binary:copy(<<"x">>, Bytes);
payload(Bytes) when Bytes rem 3 =:= 1 -> lists:duplicate(Bytes, $x);
payload(Bytes) ->
    {Bytes, binary:copy(<<"y">>, Bytes div 2), #{list => lists:duplicate(Bytes div 2, $z)}}.

%% How it ends.
attempt(Fun) ->
    try {ok, Fun()}
    catch exit:Reason -> {exit, Reason}
    end.

%% A process that sends {Tag, 1}, {Tag, 2}, ... to To until it is stopped.
stream(To, Tag, Bytes) ->
    spawn(fun() -> stream(To, Tag, payload(Bytes), fun(_) -> 0 end, 1) end).

%% The same, some 4,000 a second.
trickle(To, Tag, Bytes) ->
    spawn(fun() ->
                  stream(To, Tag, payload(Bytes), fun(N) -> 5 * (1 - min(1, N rem 20)) end, 1)
          end).

%% The same, less than 1,000 a second: thin traffic, which goes past its lane.
drip(To, Tag, Bytes) ->
    spawn(fun() -> stream(To, Tag, payload(Bytes), fun(_) -> 1 end, 1) end).

stream(To, Tag, Payload, Pause, N) ->
    _ = trunkline:send(To, {from, Tag, N, Payload}),
    receive
        {stop, From} -> From ! {self(), N};
        {sent, From} -> From ! {self(), N}, stream(To, Tag, Payload, Pause, N + 1)
    after Pause(N) ->
            stream(To, Tag, Payload, Pause, N + 1)
    end.

%% How many it has sent until now.
sent(Pid) -> ask(sent, Pid).

%% The same, when it has stopped.
stop_stream(Pid) -> ask(stop, Pid).

ask(What, Pid) ->
    Pid ! {What, self()},
    receive {Pid, N} -> N end.

%% A process that keeps the connection to that node busy.
fill_connection(Node) ->
    Message = binary:copy(<<0>>, 100_000),
    spawn(fun Fill() -> {nobody, Node} ! Message, Fill() end).

%% A process that sees to it that there are no more processes to be had; when it is killed they end.
fill() ->
    Self = self(),
    Filler = spawn(fun() -> fill(Self) end),
    receive filled -> Filler end.

fill(Self) ->
    try spawn_link(fun() -> receive after infinity -> ok end end) of
        _ -> fill(Self)
    catch
        error:system_limit ->
            Self ! filled,
            receive after 1 -> fill(Self) end
    end.
