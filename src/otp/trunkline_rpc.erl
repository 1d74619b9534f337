-module(trunkline_rpc).
-moduledoc "
Remote procedure calls with the results of `rpc`, by lane.

All functions of `rpc` for callers, with its arguments and results: `{badrpc, Reason}`,
`{Results, BadNodes}`, the error `badarg`. What is said of order and time in `m:trunkline_erpc`
holds here, too: at a node that runs Trunkline a function is executed after everything that the
caller has sent to that node before by Trunkline.

A key of `async_call/4` is for the functions of this module; keys of `rpc` are taken here, too.

```erlang
1> trunkline_rpc:call('b@host', erlang, node, []).
'b@host'
2> trunkline_rpc:call('c@host', erlang, node, []).
{badrpc,nodedown}
```
".
-moduledoc #{since => <<"1.0.0">>}.
-compile({parse_transform, trunkline_docs}).

%% rpc uses erpc, and messages to the server rex that every node has. This module uses
%% trunkline_erpc, and the same messages to rex, by lane:
%%
%%     call, cast, multicall, async_call      trunkline_erpc
%%     block_call                             a call of rex, by trunkline_gen_server
%%     sbcast, multi_server_call              monitors and messages, by trunkline
%%
%% rex answers sbcast with a message by the distribution. That message names the node, and no node
%% answers twice, so nothing depends on its order. It may come after the 'DOWN' of a server that
%% replied by `!' and ended at once: then the node counts as a bad one.

-export([call/4, call/5, block_call/4, block_call/5, server_call/4, cast/4]).
-export([abcast/2, abcast/3, sbcast/2, sbcast/3, eval_everywhere/3, eval_everywhere/4]).
-export([multi_server_call/2, multi_server_call/3, multicall/3, multicall/4, multicall/5]).
-export([async_call/4, yield/1, nb_yield/1, nb_yield/2]).
-export([parallel_eval/1, pmap/3, pinfo/1, pinfo/2]).

-export_type([key/0]).

-doc "
Names a call of `async_call/4`.
".
-doc #{since => <<"1.0.0">>}.
-opaque key() :: trunkline_erpc:request_id().

%% The server of rpc at every node.
-define(REX, rex).
-define(IS_TIME(Time),
        (Time =:= infinity orelse is_integer(Time) andalso Time >= 0 andalso Time =< 16#FFFFFFFF)).

-dialyzer({no_return, [badarg/0]}).

%% --- calls --------------------------------------------------------------------

-doc "
Executes a function at a node and returns its result. It waits without a limit in time. See
`call/5`.

```erlang
1> trunkline_rpc:call('b@host', erlang, node, []).
'b@host'
```
".
-doc #{since => <<"1.0.0">>}.
-spec call(node(), module(), Function :: atom(), Args :: [term()]) ->
          term() | {badrpc, Reason :: term()}.
call(Node, M, F, A) ->
    call(Node, M, F, A, infinity).

-doc "
Executes a function at a node and returns its result, as `rpc:call/5` does. What the function throws
is its result; if it exits or fails the result is `{badrpc, {'EXIT', Reason}}`. After `Timeout`
milliseconds it is `{badrpc, timeout}`, and without a connection `{badrpc, nodedown}`.

```erlang
1> trunkline_rpc:call('b@host', erlang, node, [], 1000).
'b@host'
```
".
-doc #{since => <<"1.0.0">>}.
-spec call(node(), module(), Function :: atom(), Args :: [term()], timeout()) ->
          term() | {badrpc, Reason :: term()}.
call(Node, M, F, A, Timeout) ->
    result(fun() -> trunkline_erpc:call(Node, M, F, A, Timeout) end).

-doc "
Like `call/4`, but `rpc`'s own server executes the function, as `rpc:block_call/4` has it: one after
the other.

```erlang
1> trunkline_rpc:block_call('b@host', erlang, node, []).
'b@host'
```
".
-doc #{since => <<"1.0.0">>}.
-spec block_call(node(), module(), Function :: atom(), Args :: [term()]) ->
          term() | {badrpc, Reason :: term()}.
block_call(Node, M, F, A) ->
    block_call(Node, M, F, A, infinity).

-doc "
Like `block_call/4`, with a timeout in milliseconds.

```erlang
1> trunkline_rpc:block_call('b@host', erlang, node, [], 1000).
'b@host'
```
".
-doc #{since => <<"1.0.0">>}.
-spec block_call(node(), module(), Function :: atom(), Args :: [term()], timeout()) ->
          term() | {badrpc, Reason :: term()}.
block_call(Node, M, F, A, Timeout)
  when is_atom(Node), is_atom(M), is_list(A), ?IS_TIME(Timeout) ->
    Request = {block_call, M, F, A, group_leader()},
    try trunkline_gen_server:call({?REX, Node}, Request, Timeout) of
        Result -> no_exit(Result)
    catch
        exit:{timeout, _} when Timeout =/= infinity -> {badrpc, timeout};
        exit:{{nodedown, _}, _} -> {badrpc, nodedown};
        exit:Reason -> {badrpc, {'EXIT', Reason}}
    end.

-doc "
Sends `{self(), Message}` to a server at a node and waits for the message `{ReplyWrapper, Node,
Reply}`, as `rpc:server_call/4` does. The result is `{error, nodedown}` if the server is not there
or ends. It may be that, too, if the server ends as soon as it has replied with `!`: then the reply
may come later.

```erlang
1> trunkline_rpc:server_call('b@host', no_such_name, reply, count).
{error,nodedown}
```
".
-doc #{since => <<"1.0.0">>}.
-spec server_call(node(), Name :: atom(), ReplyWrapper :: term(), term()) ->
          Reply :: term() | {error, nodedown}.
server_call(Node, Name, ReplyWrapper, Message) when is_atom(Node), is_atom(Name) ->
    case answer(ReplyWrapper, ask(Node, Name, Message)) of
        {reply, Reply} -> Reply;
        down -> {error, nodedown}
    end.

-doc "
Executes a function at a node and does not wait for it, as `rpc:cast/4` does. The result is always
`true`.

```erlang
1> trunkline_rpc:cast('b@host', cache, flush, []).
true
```
".
-doc #{since => <<"1.0.0">>}.
-spec cast(node(), module(), Function :: atom(), Args :: [term()]) -> true.
cast(Node, M, F, A) ->
    ok = no_erpc(fun() -> trunkline_erpc:cast(Node, M, F, A) end),
    true.

%% --- to many nodes ------------------------------------------------------------

-doc "
Sends a message to a name at this node and at all connected nodes. See `abcast/3`.

```erlang
1> trunkline_rpc:abcast(stock, hello).
abcast
```
".
-doc #{since => <<"1.0.0">>}.
-spec abcast(Name :: atom(), term()) -> abcast.
abcast(Name, Message) ->
    abcast([node() | nodes()], Name, Message).

-doc "
Sends a message to a name at each of these nodes, as `rpc:abcast/3` does.

```erlang
1> trunkline_rpc:abcast(['b@host', 'c@host'], stock, hello).
abcast
```
".
-doc #{since => <<"1.0.0">>}.
-spec abcast([node()], Name :: atom(), term()) -> abcast.
abcast(Nodes, Name, Message) ->
    lists:foreach(fun(Node) -> say({Name, Node}, Message) end, Nodes),
    abcast.

-doc "
Sends a message to a name at this node and at all connected nodes, and waits until it is there. See
`sbcast/3`.

```erlang
1> trunkline_rpc:sbcast(stock, hello).
{['b@host'],[]}
```
".
-doc #{since => <<"1.0.0">>}.
-spec sbcast(Name :: atom(), term()) -> {Good :: [node()], Bad :: [node()]}.
sbcast(Name, Message) ->
    sbcast([node() | nodes()], Name, Message).

-doc "
Sends a message to a name at each of these nodes, and waits until it is there, as `rpc:sbcast/3`
does. The result is `{GoodNodes, BadNodes}`. Bad nodes are those that are not connected, or where
no process has the name.

```erlang
1> trunkline_rpc:sbcast(['b@host', 'c@host'], stock, hello).
{['b@host'],['c@host']}
```
".
-doc #{since => <<"1.0.0">>}.
-spec sbcast([node()], Name :: atom(), term()) -> {Good :: [node()], Bad :: [node()]}.
sbcast(Nodes, Name, Message) ->
    ask_all(Nodes, ?REX, {sbcast, Name, Message}).

-doc "
Executes a function at this node and at all connected nodes. See `eval_everywhere/4`.

```erlang
1> trunkline_rpc:eval_everywhere(cache, flush, []).
abcast
```
".
-doc #{since => <<"1.0.0">>}.
-spec eval_everywhere(module(), Function :: atom(), Args :: [term()]) -> abcast.
eval_everywhere(M, F, A) ->
    eval_everywhere([node() | nodes()], M, F, A).

-doc "
Executes a function at each of these nodes and does not wait for it, as `rpc:eval_everywhere/4`
does.

```erlang
1> trunkline_rpc:eval_everywhere(['b@host', 'c@host'], cache, flush, []).
abcast
```
".
-doc #{since => <<"1.0.0">>}.
-spec eval_everywhere([node()], module(), Function :: atom(), Args :: [term()]) -> abcast.
eval_everywhere(Nodes, M, F, A) ->
    lists:foreach(fun(Node) -> cast(Node, M, F, A) end, Nodes),
    abcast.

-doc "
Calls the servers of a name at this node and at all connected nodes. See `multi_server_call/3`.

```erlang
1> trunkline_rpc:multi_server_call(no_such_name, count).
{[],['b@host']}
```
".
-doc #{since => <<"1.0.0">>}.
-spec multi_server_call(Name :: atom(), term()) -> {Replies :: [term()], BadNodes :: [node()]}.
multi_server_call(Name, Message) ->
    multi_server_call([node() | nodes()], Name, Message).

-doc "
Sends `{self(), Message}` to the servers of a name at these nodes, and waits for the message `{Name,
Node, Reply}` of each, as `rpc:multi_server_call/3` does. The result is `{Replies, BadNodes}`.

```erlang
1> trunkline_rpc:multi_server_call(['b@host'], no_such_name, count).
{[],['b@host']}
```
".
-doc #{since => <<"1.0.0">>}.
-spec multi_server_call([node()], Name :: atom(), term()) ->
          {Replies :: [term()], BadNodes :: [node()]}.
multi_server_call(Nodes, Name, Message) when is_list(Nodes), is_atom(Name) ->
    ask_all(Nodes, Name, Message).

-doc "
Executes a function at this node and at all connected nodes. It waits without a limit in time. See
`multicall/5`.

```erlang
1> trunkline_rpc:multicall(erlang, node, []).
{['a@host','b@host'],[]}
```
".
-doc #{since => <<"1.0.0">>}.
-spec multicall(module(), Function :: atom(), Args :: [term()]) ->
          {Results :: [term()], BadNodes :: [node()]}.
multicall(M, F, A) ->
    multicall(M, F, A, infinity).

-doc "
Executes a function at these nodes, without a limit in time; or, with a timeout as the last
argument, at this node and at all connected nodes. See `multicall/5`.

```erlang
1> trunkline_rpc:multicall(['b@host', 'c@host'], erlang, node, []).
{['b@host'],['c@host']}
```
".
-doc #{since => <<"1.0.0">>}.
-spec multicall([node()], module(), Function :: atom(), Args :: [term()]) ->
          {Results :: [term()], BadNodes :: [node()]};
               (module(), Function :: atom(), Args :: [term()], timeout()) ->
          {Results :: [term()], BadNodes :: [node()]}.
multicall(Nodes, M, F, A) when is_list(Nodes) ->
    multicall(Nodes, M, F, A, infinity);
multicall(M, F, A, Timeout) ->
    multicall([node() | nodes()], M, F, A, Timeout).

-doc "
Executes a function at these nodes, as `rpc:multicall/5` does. The result is `{Results, BadNodes}`,
both in the order of the nodes. Bad nodes are those that are not connected, or have not answered
within `Timeout` milliseconds.

```erlang
1> trunkline_rpc:multicall(['b@host', 'c@host'], erlang, node, [], 1000).
{['b@host'],['c@host']}
```
".
-doc #{since => <<"1.0.0">>}.
-spec multicall([node()], module(), Function :: atom(), Args :: [term()], timeout()) ->
          {Results :: [term()], BadNodes :: [node()]}.
multicall(Nodes, M, F, A, Timeout) ->
    Outcomes = no_erpc(fun() -> trunkline_erpc:multicall(Nodes, M, F, A, Timeout) end),
    {Results, Bad} = lists:partition(fun({_, {error, {erpc, Why}}}) ->
                                             Why =/= timeout andalso Why =/= noconnection;
                                        (_) -> true
                                     end, lists:zip(Nodes, Outcomes)),
    {[result_of(Outcome) || {_, Outcome} <- Results], [Node || {Node, _} <- Bad]}.

%% --- asynchronous calls -------------------------------------------------------

-doc "
Starts the execution of a function at a node, as `rpc:async_call/4` does. The result is a key, by
which `yield/1` or `nb_yield/1,2` get the result.

```erlang
1> Key = trunkline_rpc:async_call('b@host', erlang, node, []).
2> trunkline_rpc:yield(Key).
'b@host'
```
".
-doc #{since => <<"1.0.0">>}.
-spec async_call(node(), module(), Function :: atom(), Args :: [term()]) -> key().
async_call(Node, M, F, A) ->
    no_erpc(fun() -> trunkline_erpc:send_request(Node, M, F, A) end).

-doc "
Waits for the result of `async_call/4`, which is that of `call/4`.

```erlang
1> trunkline_rpc:yield(trunkline_rpc:async_call('b@host', erlang, node, [])).
'b@host'
```
".
-doc #{since => <<"1.0.0">>}.
-spec yield(key()) -> term() | {badrpc, Reason :: term()}.
yield(Key) ->
    result(fun() -> trunkline_erpc:receive_response(Key) end).

-doc "
Whether the result of `async_call/4` is there: `{value, Result}`, or `timeout`. See `nb_yield/2`.

```erlang
1> trunkline_rpc:nb_yield(trunkline_rpc:async_call('b@host', timer, sleep, [1000])).
timeout
```
".
-doc #{since => <<"1.0.0">>}.
-spec nb_yield(key()) -> {value, term() | {badrpc, Reason :: term()}} | timeout.
nb_yield(Key) ->
    nb_yield(Key, 0).

-doc "
Waits for the result of `async_call/4` for up to `Timeout` milliseconds, as `rpc:nb_yield/2` does.
After `timeout` one may wait for it again.

```erlang
1> trunkline_rpc:nb_yield(trunkline_rpc:async_call('b@host', erlang, node, []), 1000).
{value,'b@host'}
```
".
-doc #{since => <<"1.0.0">>}.
-spec nb_yield(key(), timeout()) -> {value, term() | {badrpc, Reason :: term()}} | timeout.
nb_yield(Key, Timeout) ->
    try trunkline_erpc:wait_response(Key, Timeout) of
        no_response -> timeout;
        {response, Result} -> {value, no_exit(Result)}
    catch
        Class:Reason -> {value, result_of({Class, Reason})}
    end.

-doc "
Executes each of a list of functions, each at another one of all nodes, and returns their results in
the same order, as `rpc:parallel_eval/1` does.

```erlang
1> trunkline_rpc:parallel_eval([{erlang, abs, [-1]}, {erlang, abs, [-2]}]).
[1,2]
```
".
-doc #{since => <<"1.0.0">>}.
-spec parallel_eval([{module(), Function :: atom(), Args :: [term()]}]) -> [term()].
parallel_eval(Calls) ->
    All = [node() | nodes()],
    [yield(Key) || Key <- spread(Calls, All, All)].

-doc "
Executes a function for each element of a list, each at another one of all nodes: the element is its
first argument. The result is that of `lists:map/2`. It exits with `badrpc` if one of them fails, as
`rpc:pmap/3` does.

```erlang
1> trunkline_rpc:pmap({lists, nth}, [[a, b, c]], [1, 2, 3]).
[a,b,c]
```
".
-doc #{since => <<"1.0.0">>}.
-spec pmap({module(), Function :: atom()}, ExtraArgs :: [term()], [term()]) -> [term()].
pmap({M, F}, ExtraArgs, List) when is_atom(M), is_atom(F) ->
    Results = parallel_eval(each(M, F, ExtraArgs, List)),
    case [Bad || {badrpc, _} = Bad <- Results] of
        [] -> Results;
        _ -> exit(badrpc)
    end.

-doc "
What `process_info/1` tells of a process, at whatever node it is.

```erlang
1> is_list(trunkline_rpc:pinfo(self())).
true
```
".
-doc #{since => <<"1.0.0">>}.
-spec pinfo(pid()) -> [{Item :: atom(), Info :: term()}] | undefined | {badrpc, Reason :: term()}.
pinfo(Pid) when node(Pid) =:= node() ->
    process_info(Pid);
pinfo(Pid) ->
    call(node(Pid), erlang, process_info, [Pid]).

-doc "
What `process_info/2` tells of a process, at whatever node it is.

```erlang
1> trunkline_rpc:pinfo(self(), trap_exit).
{trap_exit,false}
```
".
-doc #{since => <<"1.0.0">>}.
-spec pinfo(pid(), Item :: atom() | [atom()]) ->
          {Item :: atom(), Info :: term()} | [{Item :: atom(), Info :: term()}] | undefined
        | {badrpc, Reason :: term()}.
pinfo(Pid, Item) when node(Pid) =:= node() ->
    process_info(Pid, Item);
pinfo(Pid, Item) ->
    block_call(node(Pid), erlang, process_info, [Pid, Item]).

%% --- results, as rpc has them ---------------------------------------------------

-spec result(fun(() -> term())) -> term() | {badrpc, Reason :: term()}.
result(Fun) ->
    try Fun() of
        Result -> no_exit(Result)
    catch
        Class:Reason -> result_of({Class, Reason})
    end.

%% As always in rpc, a result that looks like what `catch' makes of an exit is taken for an exit.
no_exit({'EXIT', _} = Exit) -> {badrpc, Exit};
no_exit(Result) -> Result.

-spec result_of(trunkline_erpc:outcome() | {exit | error, term()}) ->
          term() | {badrpc, Reason :: term()}.
result_of({ok, Result}) -> no_exit(Result);
result_of({throw, Thrown}) -> no_exit(Thrown);
result_of({exit, {exception, Reason}}) -> {badrpc, {'EXIT', Reason}};
result_of({exit, {signal, Reason}}) -> {badrpc, {'EXIT', Reason}};
result_of({exit, Reason}) -> exit(Reason);
result_of({error, {exception, Reason, Stack}}) -> {badrpc, {'EXIT', {Reason, Stack}}};
result_of({error, {erpc, badarg}}) -> badarg();
result_of({error, {erpc, noconnection}}) -> {badrpc, nodedown};
result_of({error, {erpc, Reason}}) when Reason =:= timeout; Reason =:= notsup -> {badrpc, Reason};
result_of({error, {erpc, Reason}}) -> {badrpc, {'EXIT', Reason}};
result_of({error, Reason}) -> error(Reason).

%% For functions that only a bad argument can make fail.
no_erpc(Fun) ->
    try Fun()
    catch error:{erpc, badarg} -> badarg()
    end.

-spec badarg() -> no_return().
badarg() ->
    error(badarg).

%% --- helpers ------------------------------------------------------------------

%% rpc ignores an invalid destination.
say(To, Message) ->
    try trunkline:send(To, Message)
    catch error:_ -> Message
    end.

%% All nodes are asked before the first answer is waited for. Elements that are not nodes are
%% skipped.
ask_all(Nodes, Name, Message) ->
    Asked = lists:filtermap(fun(Node) when is_atom(Node) -> {true, ask(Node, Name, Message)};
                               (_) -> false
                            end, Nodes),
    %% From the last to the first, as rpc does: a node that is asked twice answers twice.
    lists:foldr(fun({Node, _} = Each, {Replies, Bad}) ->
                        case answer(Name, Each) of
                            {reply, {nonexisting_name, _}} when Name =:= ?REX ->     % to sbcast
                                {Replies, [Node | Bad]};
                            {reply, Reply} -> {[Reply | Replies], Bad};
                            down -> {Replies, [Node | Bad]}
                        end
                end, {[], []}, Asked).

%% Returns the node and the monitor of the process that was asked there.
ask(Node, Name, Message) ->
    Ref = monitor_at(Node, Name),
    _ = say({Name, Node}, {self(), Message}),
    {Node, Ref}.

monitor_at(Node, _) when node() =:= nonode@nohost, Node =/= nonode@nohost ->
    Ref = make_ref(),
    self() ! {'DOWN', Ref, process, Node, noconnection},
    Ref;
monitor_at(Node, Name) ->
    trunkline:monitor(process, {Name, Node}).

answer(Name, {Node, Ref}) ->
    receive
        {'DOWN', Ref, _, _, _} ->
            down;
        {Name, Node, Reply} ->
            true = trunkline:demonitor(Ref, [flush]),
            {reply, Reply}
    end.

each(M, F, ExtraArgs, [Element | List]) ->
    [{M, F, [Element | ExtraArgs]} | each(M, F, ExtraArgs, List)];
each(_, _, _, []) ->
    [].

spread([], _, _) -> [];
spread(Calls, [], All) -> spread(Calls, All, All);
spread([{M, F, A} | Calls], [Node | Nodes], All) ->
    [async_call(Node, M, F, A) | spread(Calls, Nodes, All)].
