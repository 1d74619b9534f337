%% Large messages for the tests: senders and receivers that run at the nodes.
%%
%% A message is {freight, Sender, Number, Make, Payload}. The payload follows from
%% the three before it, in every byte, so that the receiver can tell one that is torn,
%% mixed up, or somebody else's from the right one without anything to compare with.
%%
%% A receiver is a gen_server. It keeps the numbers, a `torn' one if it was not
%% right, in the order of arrival, in whatever form they came, and when. A call may
%% ask for a reply of any size.
-module(freight).
-behaviour(gen_server).

-export([start_receivers/1, start_receivers/2, alias_of/1, register_as/2, received/1, times/1,
         count/1]).
-export([message/3, is_intact/1, binary/2, play_all/1, stream/3, summary/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

%% --- what is sent -------------------------------------------------------------------

%% Make is Bytes, for a binary, or {Kind, Bytes}.
message(Id, N, Make) -> {freight, Id, N, Make, payload(erlang:phash2({Id, N}), Make)}.

is_intact({freight, Id, N, Make, Payload}) -> Payload =:= payload(erlang:phash2({Id, N}), Make).

payload(Seed, {list, Bytes}) -> binary_to_list(binary(Seed, Bytes));
payload(Seed, {tuple, Bytes}) ->
    {Seed, binary(Seed, Bytes div 3), [x, binary(Seed + 1, Bytes div 3) | y],
     binary(Seed + 2, Bytes div 3)};
payload(Seed, {map, Bytes}) ->
    #{binary(Seed, Bytes div 2) => Seed, {Seed} => [binary(Seed, Bytes div 2)]};
%% Copies: a piece must not keep the wheels that it is a part of.
payload(Seed, {pieces, Bytes}) ->
    [binary:copy(binary(Seed + N, 1000)) || N <- lists:seq(1, Bytes div 1000)];
%% A long list that does not look like one, but like binaries. So it is packed.
payload(Seed, {parcel, Bytes}) -> [binary(Seed, 5_000) | payload(Seed, {list, Bytes})];
%% Many atoms: some 30 bytes each.
payload(Seed, {rows, Bytes}) ->
    [#{id => Seed + N, state => active} || N <- lists:seq(1, Bytes div 30 + 1)];
payload(Seed, Bytes) -> binary(Seed, Bytes).

%% So many bytes of a wheel whose size no fragment's is a multiple of.
binary(Seed, Bytes) ->
    Wheel = wheel(),
    Size = byte_size(Wheel),
    binary:part(binary:copy(Wheel, Bytes div Size + 2), Seed rem Size, Bytes).

wheel() ->
    case persistent_term:get(?MODULE, none) of
        none ->
            {Wheel, _} = rand:bytes_s(100_003, rand:seed_s(exsss, 1)),
            persistent_term:put(?MODULE, Wheel),
            Wheel;
        Wheel ->
            Wheel
    end.

%% --- receivers ----------------------------------------------------------------------

start_receivers(N) -> start_receivers(N, []).

%% With options of spawn_opt, `[{message_queue_data, off_heap}]' say.
start_receivers(N, Options) ->
    _ = wheel(),
    [begin {ok, Pid} = gen_server:start(?MODULE, [], [{spawn_opt, Options}]), Pid end
     || _ <- lists:seq(1, N)].

alias_of(Pid) -> gen_server:call(Pid, alias, infinity).

register_as(Pid, Name) -> true = register(Name, Pid), ok.

%% [{Sender, Number}] in the order of arrival.
received(Pid) -> gen_server:call(Pid, received, infinity).

%% #{{Sender, Number} => when it came}
times(Pid) -> gen_server:call(Pid, times, infinity).

count(Pid) -> gen_server:call(Pid, count, infinity).

%% #{Sender => {Last, Count, [what came out of order, twice, or torn]}}
summary(Pid) -> gen_server:call(Pid, summary, infinity).

init([]) -> {ok, {[], #{}}}.

handle_call(alias, _, S) -> {reply, alias(), S};
handle_call(received, _, {Got, _} = S) -> {reply, [{Id, N} || {Id, N, _} <- lists:reverse(Got)], S};
handle_call(times, _, {Got, _} = S) ->
    {reply, maps:from_list([{{Id, N}, Time} || {Id, N, Time} <- Got]), S};
handle_call(count, _, {Got, _} = S) -> {reply, length(Got), S};
handle_call(summary, _, {_, Summary} = S) -> {reply, Summary, S};
handle_call({answer, Make, Message}, _, S) ->
    {freight, Id, N, _, _} = Message,
    {reply, message({Id, reply}, N, Make), got(Message, S)};
handle_call({late, Time, Make}, From, S) ->
    _ = spawn(fun() ->
                      receive after Time -> gen_server:reply(From, message(late, 1, Make)) end
              end),
    {noreply, S};
%% The reply comes when somebody says `release', or {never, _}.
handle_call({when_released, {never, _}}, _, S) -> {noreply, S};
handle_call({when_released, Make}, From, S) ->
    put(held, [{From, Make} | held()]),
    {noreply, S};
handle_call(release, _, S) ->
    lists:foreach(fun({From, Make}) -> gen_server:reply(From, message(late, 1, Make)) end,
                  lists:reverse(held())),
    erase(held),
    {reply, ok, S};
handle_call({die, Reason}, _, S) -> {stop, {shutdown, Reason}, S};
handle_call({echo, Term}, _, S) -> {reply, Term, S}.

held() ->
    case get(held) of
        undefined -> [];
        Held -> Held
    end.

handle_cast(Message, S) -> {noreply, got(Message, S)}.

handle_info({freight, _, _, _, _} = Message, S) -> {noreply, got(Message, S)};
handle_info(_, S) -> {noreply, S}.

got({freight, Id, N, _, _} = Message, {Got, Summary}) ->
    Number = case is_intact(Message) of
                 true -> N;
                 false -> {torn, N}
             end,
    {[{Id, Number, erlang:monotonic_time()} | Got], summary(Id, Number, Summary)}.

summary(Id, N, Summary) ->
    case Summary of
        #{Id := {Last, Count, Odd}} when is_integer(N), N > Last ->
            Summary#{Id := {N, Count + 1, Odd}};
        #{Id := {Last, Count, Odd}} -> Summary#{Id := {N, Count + 1, [{Last, N} | Odd]}};
        #{} -> Summary#{Id => {N, 1, [{first, N} || not is_integer(N)]}}
    end.

%% --- senders ------------------------------------------------------------------------

%% Plays scripts [{Kind, To, Make}] at the same time, each with its Id, and answers how
%% they ended: with `normal', unless a reply was not what it should be, or not in its place.
play_all(Scripts) ->
    _ = wheel(),
    Pids = [spawn_monitor(fun() -> steps(Script, Id, 1, []) end) || {Id, Script} <- Scripts],
    [receive {'DOWN', Ref, process, Pid, Reason} -> Reason end || {Pid, Ref} <- Pids].

steps([], Id, _, Requests) ->
    replies(lists:reverse(Requests), Id);
steps([{Kind, To, Make} | Script], Id, N, Requests) ->
    steps(Script, Id, N + 1, step(Kind, To, message(Id, N, Make), N) ++ Requests).

step(send, To, Message, _) -> Message = trunkline:send(To, Message), [];
step(monitor, To, _, _) -> _ = trunkline:monitor(process, To), [];
step(cast, To, Message, _) -> ok = trunkline:cast(server(To), Message), [];
step(retry, To, Message, N) ->
    case trunkline:send(To, Message, [nosuspend]) of
        ok -> [];
        nosuspend -> receive after 1 -> step(retry, To, Message, N) end
    end;
step({call, Make}, To, {freight, Id, N, _, _} = Message, N) ->
    Reply = trunkline:call(server(To), {answer, Make, Message}, infinity),
    true = Reply =:= message({Id, reply}, N, Make),
    [];
step({request, Make}, To, Message, N) ->
    [{trunkline:send_request(server(To), {answer, Make, Message}), server(To), N, Make}].

%% Casts and calls need a server's pid or name.
server({server, _, Server}) -> Server;
server(To) when not is_reference(To) -> To.

%% The replies of each server must come in the order of the requests.
replies([], _) ->
    ok;
replies(Requests, Id) ->
    receive
        Message ->
            {Request, Server, N, Make} =
                Found = hd([R || {Ref, _, _, _} = R <- Requests,
                                 trunkline:check_response(Message, Ref) =/= no_reply]),
            {reply, Reply} = trunkline:check_response(Message, Request),
            true = Reply =:= message({Id, reply}, N, Make),
            N = hd([M || {_, S, M, _} <- Requests, S =:= Server]),
            replies(lists:delete(Found, Requests), Id)
    end.

%% A process that sends messages of these makes, over and over, numbered, until it is
%% stopped (traffic:stop_stream/1); some milliseconds apart, so that a test has other things to do
%% as well.
stream(To, Id, Makes) ->
    _ = wheel(),
    spawn(fun() -> stream(To, Id, Makes, Makes, 1) end).

stream(To, Id, [], Makes, N) ->
    stream(To, Id, Makes, Makes, N);
stream(To, Id, [Make | Next], Makes, N) ->
    _ = trunkline:send(To, message(Id, N, Make)),
    receive
        {stop, From} -> From ! {self(), N}
    after N rem 2 ->
            stream(To, Id, Next, Makes, N + 1)
    end.
