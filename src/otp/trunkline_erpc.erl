-module(trunkline_erpc).
-moduledoc "
Remote procedure calls: the functions of `erpc`, by lane.

They have the arguments, results and exceptions of those of `erpc`; the reasons are `{erpc,
noconnection}`, `{erpc, timeout}` and so on. At a node that runs Trunkline a function is executed
after everything that the caller has sent to that node before by Trunkline. To other nodes, and to
this one, requests go as those of `erpc` do. So does a call without a timeout, while its lane is
idle, if only few callers call at a time or if its arguments are long.

As with `erpc`, giving up does not stop the execution. A result that comes too late is dropped
before it reaches the mailbox. If the lane is full, a caller waits for room, and the timeout of a
call includes that wait.

A request id of this module is for its functions alone. Ids and collections of `erpc` are taken
here, too.

The error is `{erpc, badarg}` for an argument that is not right, in every function.

```erlang
1> trunkline_erpc:call('b@host', erlang, node, []).
'b@host'
2> trunkline_erpc:multicall(['b@host', 'c@host'], erlang, system_info, [otp_release], 1000).
[{ok,[50,53]},{error,{erpc,noconnection}}]
```
".
-moduledoc #{since => <<"0.5.0">>}.
-compile({parse_transform, trunkline_docs}).

%% A request by lane is executed by a process of its own (trunkline_executor draws the way there and
%% back). The caller monitors only a local process, as in trunkline_call. Arguments that this module
%% does not know are passed to erpc, so that the errors are those of the OTP release in use.

-include("../trunkline_errors.hrl").

-export([call/2, call/3, call/4, call/5, cast/2, cast/4]).
-export([multicall/2, multicall/3, multicall/4, multicall/5, multicast/2, multicast/4]).
-export([send_request/2, send_request/4, send_request/6]).
-export([receive_response/1, receive_response/2, receive_response/3]).
-export([wait_response/1, wait_response/2, wait_response/3, check_response/2, check_response/3]).
-export([reqids_new/0, reqids_size/1, reqids_add/3, reqids_to_list/1]).

-export_type([request_id/0, request_id_collection/0, timeout_time/0, options/0, outcome/0]).

-dialyzer({no_improper_lists, [bypass/3, delivered/1, spawned/4, known/2]}).
%% These look into erpc's own ids for the reference.
-dialyzer({no_opaque,
           [bypass/3, spawned/4, receive_response/1, receive_response/2, wait_response/1,
            wait_response/2, check_response/2, outcome/2, abandon/1, reference/1]}).
%% OTP 25 has no options.
-dialyzer({nowarn_function, call_deadline/1}).
%% These always raise. (Of erpc's functions Dialyzer only thinks so.)
-dialyzer({no_return, [badarg/0, raise/2, outcome/2, bypass/3]}).

-doc "
How long to wait: milliseconds, `infinity`, or `{abs, Time}`, a point in time as
`erlang:monotonic_time(millisecond)` tells it.
".
-doc #{since => <<"0.5.0">>}.
-type timeout_time() :: timeout() | {abs, integer()}.

-doc "
How an execution has ended, as `erpc:multicall/4` tells it: `{ok, Result}`, or `{Class, Reason}`.
".
-doc #{since => <<"0.5.0">>}.
-type outcome() :: {ok, Result :: term()}
                 | {throw, term()}
                 | {exit, {exception, Reason :: term()} | {signal, Reason :: term()}}
                 | {error,
                    {exception, Reason :: term(), Stack :: list()} | {erpc, Reason :: term()}}.

-doc "
Options in the place of a timeout, as `erpc` takes them since OTP 28.
".
-doc #{since => <<"0.5.0">>}.
-type options() :: #{timeout => timeout_time(), always_spawn => boolean()}.

-doc "
Names a request of `send_request/2,4`. It is for the functions of this module, not for those of
`erpc`.
".
-doc #{since => <<"0.5.0">>}.
-opaque request_id() :: {reference(), lane} | erpc:request_id().

-doc "
Request ids, each with a label. See `reqids_new/0`. A collection of `erpc` is one, too.
".
-doc #{since => <<"0.5.0">>}.
-opaque request_id_collection() ::
          trunkline_reqids:collection(request_id()) | erpc:request_id_collection().

-type mfargs() :: {module(), Function :: atom(), Args :: [term()]}.

-define(IS_CALL(Node, M, F, A), is_atom(Node), is_atom(M), is_atom(F), is_list(A)).
-define(IS_BY_LANE(Id), is_reference(element(1, Id)), element(2, Id) =:= lane,
        tuple_size(Id) =:= 2).
-define(BAD(Args), ?BAD_ARGUMENT({erpc, badarg}, Args)).
-define(NAMED(Args, Expression), ?NAMED({erpc, badarg}, Args, Expression)).
%% The options of erpc's own spawn requests.
-define(SPAWN_OPTIONS, [{reply, error_only}, monitor]).
%% Bytes of arguments from which on an executor gets a larger heap, and up to which it grows.
-define(LONG, 4096).
-define(MOST_ROOM, 2_100_000).

%% --- calls --------------------------------------------------------------------

-doc "
Executes a fun at a node and returns its result. It waits without a limit in time. See `call/5`.

```erlang
1> trunkline_erpc:call('b@host', fun() -> node() end).
'b@host'
```
".
-doc #{since => <<"0.5.0">>}.
-spec call(node(), fun(() -> Result)) -> Result.
call(Node, Fun) ->
    call(Node, Fun, infinity).

-doc "
Executes a fun at a node and returns its result, with a timeout in milliseconds. See `call/5`.

```erlang
1> trunkline_erpc:call('b@host', fun() -> node() end, 1000).
'b@host'
```
".
-doc #{since => <<"0.5.0">>}.
-spec call(node(), fun(() -> Result), timeout_time() | options()) -> Result.
call(Node, Fun, Timeout) when is_function(Fun, 0) ->
    ?NAMED([Node, Fun, Timeout], call(Node, erlang, apply, [Fun, []], Timeout));
call(Node, Fun, Timeout) ->
    ?BAD([Node, Fun, Timeout]).

-doc "
Executes a function at a node and returns its result. It waits without a limit in time. See
`call/5`.

```erlang
1> trunkline_erpc:call('b@host', erlang, node, []).
'b@host'
```
".
-doc #{since => <<"0.5.0">>}.
-spec call(node(), module(), Function :: atom(), Args :: [term()]) -> term().
call(Node, M, F, A) ->
    call(Node, M, F, A, infinity).

-doc "
Executes a function at a node and returns its result, as `erpc:call/5` does. What the function
throws, exits with or raises is raised here, as `erpc` does it. After `Timeout` milliseconds the
error is `{erpc, timeout}`; without a connection it is `{erpc, noconnection}`.

```erlang
1> trunkline_erpc:call('b@host', erlang, node, [], 1000).
'b@host'
```
".
-doc #{since => <<"0.5.0">>}.
-spec call(node(), module(), Function :: atom(), Args :: [term()], timeout_time() | options()) ->
          term().
call(Node, M, F, A, Timeout) when ?IS_CALL(Node, M, F, A), Node =/= node() ->
    Deadline = ?NAMED([Node, M, F, A, Timeout], call_deadline(Timeout)),
    Started = trunkline_concurrency:clock(),
    {Way, Outcome} = one(Node, {M, F, A}, Deadline),
    ok = trunkline_plain_call:ended(Node, Way, 1, Started),
    value(Outcome);
call(Node, M, F, A, Timeout) ->
    ?NAMED([Node, M, F, A, Timeout], erpc:call(Node, M, F, A, Timeout)).

%% A busy connection suspends a caller that bypasses the lanes for as long as it takes.
one(Node, MFA, Deadline) ->
    case Deadline =:= infinity andalso trunkline_plain_call:start(Node, MFA) of
        {true, Bytes} ->
            {bypass, bypass(Node, MFA, Bytes)};
        false ->
            [Outcome] = collect([Node], MFA, Deadline),
            {lane, Outcome}
    end.

-doc "
Executes a fun at many nodes and waits for all of them without a limit in time. See `multicall/5`.

```erlang
1> trunkline_erpc:multicall(['b@host', 'c@host'], fun() -> node() end).
[{ok,'b@host'},{ok,'c@host'}]
```
".
-doc #{since => <<"0.5.0">>}.
-spec multicall([node()], fun(() -> term())) -> [outcome()].
multicall(Nodes, Fun) ->
    multicall(Nodes, Fun, infinity).

-doc "
Executes a fun at many nodes, with a timeout in milliseconds. See `multicall/5`.

```erlang
1> trunkline_erpc:multicall(['b@host', 'c@host'], fun() -> node() end, 1000).
[{ok,'b@host'},{ok,'c@host'}]
```
".
-doc #{since => <<"0.5.0">>}.
-spec multicall([node()], fun(() -> term()), timeout_time() | options()) -> [outcome()].
multicall(Nodes, Fun, Timeout) when is_function(Fun, 0) ->
    ?NAMED([Nodes, Fun, Timeout], multicall(Nodes, erlang, apply, [Fun, []], Timeout));
multicall(Nodes, Fun, Timeout) ->
    ?BAD([Nodes, Fun, Timeout]).

-doc "
Executes a function at many nodes and waits for all of them without a limit in time. See
`multicall/5`.

```erlang
1> trunkline_erpc:multicall(['b@host', 'c@host'], erlang, node, []).
[{ok,'b@host'},{ok,'c@host'}]
```
".
-doc #{since => <<"0.5.0">>}.
-spec multicall([node()], module(), Function :: atom(), Args :: [term()]) -> [outcome()].
multicall(Nodes, M, F, A) ->
    multicall(Nodes, M, F, A, infinity).

-doc "
Executes a function at many nodes, as `erpc:multicall/5` does. The result has an outcome for each
node, in their order. After `Timeout` milliseconds those that have not ended are `{error, {erpc,
timeout}}`. No node is asked late because of one before it in the list.

```erlang
1> trunkline_erpc:multicall(['b@host', 'c@host'], erlang, node, [], 1000).
[{ok,'b@host'},{error,{erpc,noconnection}}]
```
".
-doc #{since => <<"0.5.0">>}.
-spec multicall([node()], module(), Function :: atom(), Args :: [term()],
                timeout_time() | options()) -> [outcome()].
multicall(Nodes, M, F, A, Timeout) ->
    is_multicall(Nodes, M, F, A) orelse ?BAD([Nodes, M, F, A, Timeout]),
    collect(Nodes, {M, F, A}, ?NAMED([Nodes, M, F, A, Timeout], call_deadline(Timeout))).

-spec collect([node()], mfargs(), trunkline_deadline:deadline()) -> [outcome()].
collect(Nodes, MFA, Deadline) ->
    trunkline_gather:each(Nodes, MFA, Deadline, fun trunkline_call:watch/2,
                          fun(Way, Node, Patience, Others) ->
                                  ask(Way, Node, Patience, Others, MFA, Deadline)
                          end).

%% For trunkline_gather: the function that makes the reference must also wait for it.
ask(direct, Node, _, Others, MFA, Deadline) ->
    ok = trunkline_sender:fallback(Node),
    spawned(Node, MFA, Others, Deadline);
ask(Inlet, Node, Patience, Others, MFA, Deadline) when is_pid(Inlet) ->
    Ref = monitor(process, Inlet, [{alias, reply_demonitor}]),
    case trunkline_sender:hand_over(Node, {apply, Ref, group_leader()}, MFA, Patience, connect) of
        ok ->
            Outcomes = Others(),
            {receive
                 {[alias | Ref], Outcome} -> Outcome;
                 {'DOWN', Ref, process, Object, Reason} -> ended(Object, Reason)
             after trunkline_deadline:left(Deadline) ->
                     abandon({Ref, lane})
             end, Outcomes};
        Refused ->
            demonitor(Ref, [flush]),
            Refused
    end;
ask(unreachable, _, _, Others, _, _) ->
    {{error, {erpc, noconnection}}, Others()};
ask(timeout, _, _, Others, _, _) ->
    {{error, {erpc, timeout}}, Others()}.

%% The outcome comes as it does by erpc, or by lane. (See trunkline_executor.)
bypass(Node, {M, F, A}, Bytes) ->
    Mark = alias([reply]),
    Ref = spawn_request(Node, trunkline_executor, execute_call, [Mark, M, F, A],
                        executor_options(Node, Bytes)),
    receive
        {spawn_reply, Ref, error, _} = Message ->
            _ = unalias(Mark),
            outcome(Message, [Mark | Ref]);
        {'DOWN', Ref, process, Executor, Reason} ->
            %% (It may have been killed after its outcome had been delivered.)
            Ended = case trunkline_executor:is_by_lane(Mark, Reason) orelse not unalias(Mark) of
                        true -> delivered(Mark);
                        false when Reason =:= noconnection -> Reason;
                        false -> ok = trunkline_plain_call:came(Node), Reason
                    end,
            outcome({'DOWN', Ref, process, Executor, Ended}, [Mark | Ref])
    end.

%% The arguments arrive outside of the executor's heap. If it has room for them, no garbage
%% collection copies them. (Lists of maps take about a word for two bytes of the encoding. But the
%% size is estimated, and other terms take less. So the room has a limit.)
executor_options(Node, Bytes) ->
    case Bytes >= ?LONG andalso trunkline_peers:can(Node, heaps) of
        true -> [{min_heap_size, min(Bytes, ?MOST_ROOM) div 2} | ?SPAWN_OPTIONS];
        false -> ?SPAWN_OPTIONS
    end.

delivered(Mark) ->
    receive
        {[alias | Mark], Outcome} -> Outcome;
        {'DOWN', Mark, process, _, Reason} -> Reason     % lost at this node
    after 0 ->
            _ = unalias(Mark),
            noconnection
    end.

%% Has the function executed by plain distribution, in erpc's protocol.
spawned(Node, {M, F, A}, Others, Deadline) ->
    Mark = make_ref(),
    Ref = spawn_request(Node, erpc, execute_call, [Mark, M, F, A], ?SPAWN_OPTIONS),
    Outcomes = Others(),
    {receive
         {spawn_reply, Ref, error, _} = Message -> outcome(Message, [Mark | Ref]);
         {'DOWN', Ref, process, _, _} = Message -> outcome(Message, [Mark | Ref])
     after trunkline_deadline:left(Deadline) ->
             abandon([Mark | Ref])
     end, Outcomes}.

%% --- casts --------------------------------------------------------------------

-doc "
Executes a fun at a node and does not wait for it, as `erpc:cast/2` does. The result is always `ok`.

```erlang
1> trunkline_erpc:cast('b@host', fun() -> cache:flush() end).
ok
```
".
-doc #{since => <<"0.5.0">>}.
-spec cast(node(), fun(() -> term())) -> ok.
cast(Node, Fun) ->
    ?NAMED([Node, Fun], cast(Node, erlang, apply, [Fun, []])).

-doc "
Executes a function at a node and does not wait for it, as `erpc:cast/4` does. The result is always
`ok`.

```erlang
1> trunkline_erpc:cast('b@host', cache, flush, []).
ok
```
".
-doc #{since => <<"0.5.0">>}.
-spec cast(node(), module(), Function :: atom(), Args :: [term()]) -> ok.
cast(Node, M, F, A) when ?IS_CALL(Node, M, F, A) ->
    case trunkline_sender:hand_over(Node, {apply, nobody, group_leader()}, {M, F, A}) of
        direct -> cast_plain(Node, M, F, A);
        _ -> ok                              % erpc ignores it, too
    end;
cast(Node, M, F, A) ->
    ?BAD([Node, M, F, A]).

cast_plain(Node, M, F, A) ->
    ok = trunkline_sender:fallback(Node),
    erpc:cast(Node, M, F, A).

-doc "
Executes a fun at many nodes and does not wait for it, as `erpc:multicast/2` does.

```erlang
1> trunkline_erpc:multicast(['b@host', 'c@host'], fun() -> cache:flush() end).
ok
```
".
-doc #{since => <<"0.5.0">>}.
-spec multicast([node()], fun(() -> term())) -> ok.
multicast(Nodes, Fun) ->
    ?NAMED([Nodes, Fun], multicast(Nodes, erlang, apply, [Fun, []])).

-doc "
Executes a function at many nodes and does not wait for it, as `erpc:multicast/4` does.

```erlang
1> trunkline_erpc:multicast(['b@host', 'c@host'], cache, flush, []).
ok
```
".
-doc #{since => <<"0.5.0">>}.
-spec multicast([node()], module(), Function :: atom(), Args :: [term()]) -> ok.
multicast(Nodes, M, F, A) ->
    is_multicall(Nodes, M, F, A) orelse ?BAD([Nodes, M, F, A]),
    %% This does not wait for sessions: the lanes keep what comes.
    _ = trunkline_gather:each(Nodes, {M, F, A}, infinity, fun(_, _) -> lane end,
                              fun(Way, Node, Patience, Others) ->
                                      tell(Way, Node, Patience, Others, {M, F, A})
                              end),
    ok.

tell(direct, Node, _, Others, {M, F, A}) ->
    {cast_plain(Node, M, F, A), Others()};
tell(lane, Node, Patience, Others, MFA) ->
    case trunkline_sender:hand_over(Node, {apply, nobody, group_leader()}, MFA, Patience,
                                    connect) of
        Refused when Refused =:= direct; Refused =:= nosuspend -> Refused;
        _ -> {ok, Others()}
    end;
tell(_, _, _, Others, _) ->
    {ok, Others()}.

%% --- requests -----------------------------------------------------------------

-doc "
Starts the execution of a fun at a node, as `erpc:send_request/2` does. The result is an id, by
which `receive_response/1,2`, `wait_response/1,2` or `check_response/2` get the result.

```erlang
1> Id = trunkline_erpc:send_request('b@host', fun() -> node() end).
2> trunkline_erpc:receive_response(Id, 1000).
'b@host'
```
".
-doc #{since => <<"0.5.0">>}.
-spec send_request(node(), fun(() -> term())) -> request_id().
send_request(Node, Fun) when is_atom(Node), is_function(Fun, 0) ->
    request(Node, erlang, apply, [Fun, []]);
send_request(Node, Fun) ->
    ?BAD([Node, Fun]).

-doc "
Starts the execution of a function at a node, as `erpc:send_request/4` does. The result is an id.

With a fun, a label and a collection in the place of the function: starts the execution of the fun,
and adds its id to the collection, with that label. The result is the new collection.

```erlang
1> Id = trunkline_erpc:send_request('b@host', erlang, node, []).
2> Ids = trunkline_erpc:send_request('b@host', fun() -> node() end, b, trunkline_erpc:reqids_new()).
```
".
-doc #{since => <<"0.5.0">>}.
-spec send_request(node(), module(), Function :: atom(), Args :: [term()]) -> request_id();
                  (node(), fun(() -> term()), Label :: term(), request_id_collection()) ->
          request_id_collection().
send_request(Node, M, F, A) when ?IS_CALL(Node, M, F, A) ->
    request(Node, M, F, A);
send_request(Node, Fun, Label, Collection)
  when is_atom(Node), is_function(Fun, 0), is_map(Collection) ->
    reqids_add(request(Node, erlang, apply, [Fun, []]), Label, Collection);
send_request(Node, Second, Third, Fourth) ->
    ?BAD([Node, Second, Third, Fourth]).

-doc "
Starts the execution of a function at a node, and adds its id to a collection, with a label, as
`erpc:send_request/6` does. The result is the new collection.

```erlang
1> Ids = trunkline_erpc:send_request('b@host', erlang, node, [], b, trunkline_erpc:reqids_new()).
```
".
-doc #{since => <<"0.5.0">>}.
-spec send_request(node(), module(), Function :: atom(), Args :: [term()], Label :: term(),
                   request_id_collection()) -> request_id_collection().
send_request(Node, M, F, A, Label, Collection) when ?IS_CALL(Node, M, F, A), is_map(Collection) ->
    reqids_add(request(Node, M, F, A), Label, Collection);
send_request(Node, M, F, A, Label, Collection) ->
    ?BAD([Node, M, F, A, Label, Collection]).

request(Node, M, F, A) ->
    Command = fun(Ref) ->
                      case trunkline_peers:can(Node, v1) of
                          true -> {apply, Ref, group_leader(), self()};
                          false -> {apply, Ref, group_leader()}
                      end
              end,
    case trunkline_call:request(Node, Command, {M, F, A}) of
        {ok, Ref} ->
            {Ref, lane};
        direct ->
            ok = trunkline_sender:fallback(Node),
            erpc:send_request(Node, M, F, A);
        unreachable ->
            {trunkline_call:failed(self(), noconnection), lane}
    end.

-doc "
Waits for the result of a request without a limit in time. See `receive_response/2`.

```erlang
1> trunkline_erpc:receive_response(Id).
'b@host'
```
".
-doc #{since => <<"0.5.0">>}.
-spec receive_response(request_id()) -> term().
receive_response(Id) -> ?NAMED([Id], receive_response(Id, infinity)).

-doc "
Waits for the result of a request for up to `Timeout` milliseconds, as `erpc:receive_response/2`
does. It returns or raises what `call/5` would. After `{erpc, timeout}` the result is given up: it
never arrives, and to wait for it again is the error `{erpc, badarg}`.

```erlang
1> trunkline_erpc:receive_response(Id, 1000).
'b@host'
```
".
-doc #{since => <<"0.5.0">>}.
-spec receive_response(request_id(), timeout_time()) -> term().
receive_response(Id, Timeout) when ?IS_BY_LANE(Id) ->
    ?NAMED([Id, Timeout],
           value(case await(Id, trunkline_deadline:left(deadline(Timeout))) of
                     timeout -> abandon(Id);
                     {Message, _} -> outcome(Message, Id)
                 end));
receive_response(Id, Timeout) ->
    ?NAMED([Id, Timeout], erpc:receive_response(Id, Timeout)).

-doc "
Waits for the next result of a collection of requests, as `erpc:receive_response/3` does. The result
is `{Result, Label, Ids}`, or `no_request` if the collection is empty. After `{erpc, timeout}` all
results of the collection are given up.

```erlang
1> {'b@host', b, Ids1} = trunkline_erpc:receive_response(Ids, 1000, true).
```
".
-doc #{since => <<"0.5.0">>}.
-spec receive_response(request_id_collection(), timeout_time(), Delete :: boolean()) ->
          {Result :: term(), Label :: term(), request_id_collection()} | no_request.
receive_response(Collection, Timeout, Delete) when map_size(Collection) > 0, is_boolean(Delete) ->
    Deadline = ?NAMED([Collection, Timeout, Delete], deadline(Timeout)),
    case trunkline_reqids:wait(Collection, trunkline_deadline:left(Deadline)) of
        timeout ->
            lists:foreach(fun({Id, _}) -> abandon(Id) end,
                          ?NAMED([Collection, Timeout, Delete], reqids_to_list(Collection))),
            error({erpc, timeout});
        Answer ->
            of_collection(Answer, Collection, Delete, fun(Value) -> Value end)
    end;
receive_response(Collection, Timeout, Delete) ->
    ?NAMED([Collection, Timeout, Delete], erpc:receive_response(Collection, Timeout, Delete)).

-doc "
Whether the result of a request has arrived: `{response, Result}` or `no_response`. See
`wait_response/2`.

```erlang
1> trunkline_erpc:wait_response(Id).
{response,'b@host'}
```
".
-doc #{since => <<"0.5.0">>}.
-spec wait_response(request_id()) -> {response, Result :: term()} | no_response.
wait_response(Id) -> ?NAMED([Id], wait_response(Id, 0)).

-doc "
Waits for the result of a request for up to `Timeout` milliseconds, as `erpc:wait_response/2` does.
The result is `{response, Result}`, or `no_response`, after which one may wait for it again. An
exception is raised as by `call/5`.

```erlang
1> trunkline_erpc:wait_response(Id, 1000).
{response,'b@host'}
```
".
-doc #{since => <<"0.5.0">>}.
-spec wait_response(request_id(), timeout_time()) -> {response, Result :: term()} | no_response.
wait_response(Id, Timeout) when ?IS_BY_LANE(Id) ->
    case await(Id, trunkline_deadline:left(?NAMED([Id, Timeout], deadline(Timeout)))) of
        timeout -> no_response;
        {Message, _} -> {response, value(outcome(Message, Id))}
    end;
wait_response(Id, Timeout) ->
    ?NAMED([Id, Timeout], erpc:wait_response(Id, Timeout)).

-doc "
Waits for the next result of a collection of requests, as `erpc:wait_response/3` does. The result is
`{{response, Result}, Label, Ids}`, `no_response`, or `no_request` if the collection is empty. If
`Delete` is `true` the request is not in the new collection any more.

```erlang
1> {{response, 'b@host'}, b, Ids1} = trunkline_erpc:wait_response(Ids, 1000, true).
```
".
-doc #{since => <<"0.5.0">>}.
-spec wait_response(request_id_collection(), timeout_time(), Delete :: boolean()) ->
          {{response, Result :: term()}, Label :: term(), request_id_collection()}
        | no_response | no_request.
wait_response(Collection, Timeout, Delete) when map_size(Collection) > 0, is_boolean(Delete) ->
    Deadline = ?NAMED([Collection, Timeout, Delete], deadline(Timeout)),
    case trunkline_reqids:wait(Collection, trunkline_deadline:left(Deadline)) of
        timeout -> no_response;
        Answer -> of_collection(Answer, Collection, Delete, fun(Value) -> {response, Value} end)
    end;
wait_response(Collection, Timeout, Delete) ->
    ?NAMED([Collection, Timeout, Delete], erpc:wait_response(Collection, Timeout, Delete)).

-doc "
Whether a message is the result of a request, as `erpc:check_response/2` says: `{response, Result}`
or `no_response`. An exception is raised as by `call/5`.

```erlang
1> receive Message -> trunkline_erpc:check_response(Message, Id) end.
{response,'b@host'}
```
".
-doc #{since => <<"0.5.0">>}.
-spec check_response(Message :: term(), request_id()) -> {response, Result :: term()} | no_response.
check_response(Message, {Ref, _} = Id) when ?IS_BY_LANE(Id) ->
    case trunkline_reqids:find(Message, #{Ref => Id}) of
        none -> no_response;
        _ -> {response, value(outcome(Message, Id))}
    end;
check_response(Message, Id) ->
    ?NAMED([Message, Id], erpc:check_response(Message, Id)).

-doc "
Whether a message is the result of one of a collection of requests, as `erpc:check_response/3` says.
The results are those of `wait_response/3`.

```erlang
1> receive Message -> trunkline_erpc:check_response(Message, Ids, true) end.
{{response,'b@host'},b,Ids1}
```
".
-doc #{since => <<"0.5.0">>}.
-spec check_response(Message :: term(), request_id_collection(), Delete :: boolean()) ->
          {{response, Result :: term()}, Label :: term(), request_id_collection()}
        | no_response | no_request.
check_response(Message, Collection, Delete) when map_size(Collection) > 0, is_boolean(Delete) ->
    case trunkline_reqids:find(Message, Collection) of
        none -> no_response;
        Answer -> of_collection(Answer, Collection, Delete, fun(Value) -> {response, Value} end)
    end;
check_response(Message, Collection, Delete) ->
    ?NAMED([Message, Collection, Delete], erpc:check_response(Message, Collection, Delete)).

%% --- collections --------------------------------------------------------------

-doc "
An empty collection of request ids, as `erpc:reqids_new/0`.

```erlang
1> Ids = trunkline_erpc:reqids_new().
```
".
-doc #{since => <<"0.5.0">>}.
-spec reqids_new() -> request_id_collection().
reqids_new() ->
    trunkline_reqids:new().

-doc "
How many ids there are in a collection.

```erlang
1> trunkline_erpc:reqids_size(Ids).
1
```
".
-doc #{since => <<"0.5.0">>}.
-spec reqids_size(request_id_collection()) -> non_neg_integer().
reqids_size(Collection) when is_map(Collection) -> trunkline_reqids:size(Collection);
reqids_size(Collection) -> ?BAD([Collection]).

-doc "
Adds an id to a collection, with a label. The error is `{erpc, badarg}` if the id is none, or is in
the collection already.

```erlang
1> Ids = trunkline_erpc:reqids_add(Id, b, trunkline_erpc:reqids_new()).
```
".
-doc #{since => <<"0.5.0">>}.
-spec reqids_add(request_id(), Label :: term(), request_id_collection()) -> request_id_collection().
reqids_add(Id, Label, Collection) ->
    try trunkline_reqids:add(reference(Id), Id, Label, Collection)
    catch error:_ -> ?BAD([Id, Label, Collection])
    end.

-doc "
The ids of a collection, each with its label.

```erlang
1> [{Id, b}] = trunkline_erpc:reqids_to_list(Ids).
```
".
-doc #{since => <<"0.5.0">>}.
-spec reqids_to_list(request_id_collection()) -> [{request_id(), Label :: term()}].
reqids_to_list(Collection) when is_map(Collection) ->
    List = [known(Id, Label) || {Id, Label} <- trunkline_reqids:to_list(Collection)],
    ok = ?NAMED([Collection], lists:foreach(fun({Id, _}) -> reference(Id) end, List)),
    List;
reqids_to_list(Collection) ->
    ?BAD([Collection]).

%% An entry of a collection. One of erpc's own has the half of the id beside the label.
-spec known(request_id() | reference(), Label :: term()) -> {request_id(), Label :: term()}.
known(Ref, [Mark | Label]) when is_reference(Ref), is_reference(Mark) -> {[Mark | Ref], Label};
known(Id, Label) -> {Id, Label}.

%% The reference in the answers to a request.
reference({Ref, _} = Id) when ?IS_BY_LANE(Id) -> Ref;
reference([Mark | Ref]) when is_reference(Mark), is_reference(Ref) -> Ref;
reference(_) -> badarg().

%% --- outcomes -----------------------------------------------------------------

await({Ref, lane} = Id, Timeout) -> trunkline_reqids:wait(#{Ref => Id}, Timeout).

-spec outcome(Message :: term(), request_id()) -> outcome().
outcome({[alias | _], Outcome}, {_, lane}) ->
    Outcome;
outcome({'DOWN', _, process, Object, Reason}, {_, lane}) ->
    ended(Object, Reason);
outcome(Message, Id) ->
    caught(fun() -> {response, Value} = erpc:check_response(Message, Id), Value end).

%% A 'DOWN' that names a local process is that of the inlet, and means that the session has ended.
%% Otherwise it is that of the executor, which was killed before it had an outcome.
ended(Object, _) when node(Object) =:= node() -> {error, {erpc, noconnection}};
ended(_, noconnection) -> {error, {erpc, noconnection}};
ended(_, Reason) -> {exit, {signal, Reason}}.

caught(Fun) ->
    try {ok, Fun()}
    catch Class:Reason -> {Class, Reason}
    end.

%% The caller does not want the outcome any more, unless it came at the last moment. As with erpc,
%% it is an error to abandon a request twice.
abandon({Ref, lane} = Id) ->
    IsAwaited = demonitor(Ref, [info]),
    case await(Id, 0) of
        timeout when IsAwaited -> {error, {erpc, timeout}};
        timeout -> {error, {erpc, badarg}};
        {Message, _} -> outcome(Message, Id)
    end;
abandon(Id) ->
    caught(fun() -> erpc:receive_response(Id, 0) end).

value({ok, Value}) -> Value;
value({Class, Reason}) -> raise(Class, Reason).

-spec raise(throw | exit | error, term()) -> no_return().
raise(throw, Term) -> throw(Term);
raise(exit, Reason) -> exit(Reason);
raise(error, Reason) -> error(Reason).

of_collection({Message, Ref}, Collection, Delete, Wrap) ->
    {Id0, Label0, Rest} = trunkline_reqids:take(Ref, Collection, Delete),
    {Id, Label} = known(Id0, Label0),
    Ref = reference(Id),
    case outcome(Message, Id) of
        {ok, Value} -> {Wrap(Value), Label, Rest};
        {Class, Reason} -> raise(Class, {Reason, Label, Rest})
    end.

%% --- helpers ------------------------------------------------------------------

is_multicall(Nodes, M, F, A) ->
    trunkline_errors:are_nodes(Nodes) andalso is_atom(M) andalso is_atom(F) andalso is_list(A).

-spec deadline(timeout_time()) -> trunkline_deadline:deadline().
deadline(Timeout) ->
    case trunkline_deadline:until(Timeout) of
        badarg -> badarg();
        Deadline -> Deadline
    end.

%% Since OTP 28 erpc takes options in place of a timeout.
call_deadline(#{} = Options) ->
    [] = erpc:multicall([], erlang, node, [], Options),
    deadline(maps:get(timeout, Options, infinity));
call_deadline(Timeout) ->
    deadline(Timeout).

-spec badarg() -> no_return().
badarg() ->
    error({erpc, badarg}).
