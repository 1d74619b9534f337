%% A queue as RabbitMQ has it: gen_server2, a behaviour of its own, makes casts of gen_server's, and
%% calls of gen's.
-module(broker).

-export([start/0, got/2]).
-export([init/0]).

publish(Queue, Message) -> gen_server:cast(Queue, {publish, self(), Message}).

fetch(Queue) ->
    case catch gen:call(Queue, '$gen_call', {get, self()}, 60_000) of
        {ok, Reply} -> Reply;
        {'EXIT', Reason} -> exit({Reason, {?MODULE, fetch, [Queue]}})
    end.

%% A channel of its own for each: how many of N gets find what was published before.
got(Queue, N) ->
    lists:sum([begin
                   {_, Ref} = spawn_monitor(fun() -> exit({got, channel(Queue, M)}) end),
                   receive {'DOWN', Ref, process, _, {got, Got}} -> Got end
               end || M <- lists:seq(1, N)]).

channel(Queue, Message) ->
    publish(Queue, Message),
    case fetch(Queue) of
        {ok, Message} -> 1;
        empty -> 0
    end.

%% The server.
start() -> spawn(?MODULE, init, []).

init() -> loop(#{}).

loop(Queues) ->
    receive
        {'$gen_cast', {publish, Channel, Message}} ->
            loop(Queues#{Channel => Message});
        {'$gen_call', {_, Tag} = From, {get, Channel}} ->
            reply(From, Tag, case Queues of
                                 #{Channel := Message} -> {ok, Message};
                                 #{} -> empty
                             end),
            loop(maps:remove(Channel, Queues))
    end.

%% gen_server2 replies by hand, and a module that was changed since by gen:reply/2.
reply({To, Tag}, Tag, {ok, Message} = Reply) when Message rem 2 =:= 0 -> catch To ! {Tag, Reply};
reply(From, _, Reply) -> gen:reply(From, Reply).
