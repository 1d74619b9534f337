%% qr, the queue-and-route server of 2009, as its author describes it: one
%% process on each node keeps a queue for every other node, and sends the whole
%% queue to the other node's qr when it has 100 messages, or when nothing came for
%% 200 ms. The other qr passes each message on. Written for the comparison.
-module(bench_qr).
-behaviour(gen_server).

-export([start/0, stop/0, send/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-define(LENGTH, 100).
-define(IDLE, 200).

-spec start() -> ok.
start() ->
    {ok, _} = gen_server:start({local, ?MODULE}, ?MODULE, [], []),
    ok.

-spec stop() -> ok.
stop() ->
    gen_server:stop(?MODULE).

-spec send(pid() | {atom(), node()}, term()) -> ok.
send(To, Message) ->
    case node_of(To) of
        Node when Node =:= node() -> To ! Message;
        Node -> ?MODULE ! {route, Node, To, Message}
    end,
    ok.

node_of({_, Node}) -> Node;
node_of(Pid) -> node(Pid).

-spec init([]) -> {ok, #{}}.
init([]) -> {ok, #{}}.

-spec handle_info(term(), map()) -> {noreply, map(), timeout()}.
handle_info({route, Node, To, Message}, Queues) ->
    case maps:get(Node, Queues, {0, []}) of
        {N, Queue} when N + 1 >= ?LENGTH ->
            flush(Node, [{To, Message} | Queue]),
            {noreply, Queues#{Node => {0, []}}, ?IDLE};
        {N, Queue} ->
            {noreply, Queues#{Node => {N + 1, [{To, Message} | Queue]}}, ?IDLE}
    end;
handle_info({routed, Queue}, Queues) ->
    lists:foreach(fun({To, Message}) -> To ! Message end, Queue),
    {noreply, Queues, ?IDLE};
handle_info(timeout, Queues) ->
    maps:foreach(fun(_, {0, []}) -> ok;
                    (Node, {_, Queue}) -> flush(Node, Queue)
                 end, Queues),
    {noreply, #{}, infinity}.

flush(Node, Queue) ->
    {?MODULE, Node} ! {routed, lists:reverse(Queue)}.

-spec handle_call(term(), gen_server:from(), map()) -> {reply, ok, map()}.
handle_call(_, _, Queues) -> {reply, ok, Queues}.

-spec handle_cast(term(), map()) -> {noreply, map()}.
handle_cast(_, Queues) -> {noreply, Queues}.
