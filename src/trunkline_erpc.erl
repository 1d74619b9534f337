%% Remote procedure calls: erpc's functions, with the same arguments, results and
%% exceptions. (The reasons are erpc's own too: {erpc, noconnection} and the like.)
%%
%% To a node that runs Trunkline a request goes by lane, behind what the calling process
%% has sent to that node by Trunkline before, and is executed by a process of its own
%% (trunkline_executor draws the way there and back). The caller watches a local process
%% only, as in trunkline_call: the inlet that brings the outcome. To other nodes, and to
%% this one, requests are what erpc would send.
%%
%% As with erpc, who gives up waiting does not stop the execution; an outcome that comes
%% too late is dropped before it reaches the mailbox. Who sends a request waits for room in
%% the lane, and a call's time includes that.
%%
%% A request id is for the functions here, not for erpc's.
-module(trunkline_erpc).

-export([call/2, call/3, call/4, call/5, cast/2, cast/4]).
-export([multicall/2, multicall/3, multicall/4, multicall/5, multicast/2, multicast/4]).
-export([send_request/2, send_request/4, send_request/6]).
-export([receive_response/1, receive_response/2, receive_response/3]).
-export([wait_response/1, wait_response/2, wait_response/3, check_response/2, check_response/3]).
-export([reqids_new/0, reqids_size/1, reqids_add/3, reqids_to_list/1]).

-export_type([request_id/0, request_id_collection/0, timeout_time/0, outcome/0]).

-dialyzer({no_improper_lists, [ask/6, await/2, await_any/2]}).
%% What raises in every case.
-dialyzer({no_return, [badarg/0, raise/2]}).

-type timeout_time() :: trunkline_deadline:timeout_time().
-type outcome() :: trunkline_executor:outcome().
%% How the request was sent: by lane, or as erpc does, and then it is what marks the outcome.
-type way() :: lane | reference().
-opaque request_id() :: {reference(), way()}.
-opaque request_id_collection() :: #{reference() => {way(), Label :: term()}}.

-type mfargs() :: {module(), Function :: atom(), Args :: [term()]}.

-define(IS_CALL(Node, M, F, A), is_atom(Node), is_atom(M), is_atom(F), is_list(A)).
-define(IS_ID(Ref, Way), is_reference(Ref), (Way =:= lane orelse is_reference(Way))).
%% Of what erpc sends.
-define(SPAWN_OPTIONS, [{reply, error_only}, monitor]).

%% --- calls --------------------------------------------------------------------

-spec call(node(), fun(() -> Result)) -> Result.
call(Node, Fun) ->
    call(Node, Fun, infinity).

-spec call(node(), fun(() -> Result), timeout_time()) -> Result.
call(Node, Fun, Timeout) when is_function(Fun, 0) ->
    call(Node, erlang, apply, [Fun, []], Timeout);
call(_, _, _) ->
    badarg().

-spec call(node(), module(), Function :: atom(), Args :: [term()]) -> term().
call(Node, M, F, A) ->
    call(Node, M, F, A, infinity).

-spec call(node(), module(), Function :: atom(), Args :: [term()], timeout_time()) -> term().
call(Node, M, F, A, Timeout) when ?IS_CALL(Node, M, F, A), Node =/= node() ->
    [Outcome] = collect([Node], {M, F, A}, deadline(Timeout)),
    value(Outcome);
call(Node, M, F, A, Timeout) ->
    erpc:call(Node, M, F, A, Timeout).

-spec multicall([node()], fun(() -> term())) -> [outcome()].
multicall(Nodes, Fun) ->
    multicall(Nodes, Fun, infinity).

-spec multicall([node()], fun(() -> term()), timeout_time()) -> [outcome()].
multicall(Nodes, Fun, Timeout) when is_function(Fun, 0) ->
    multicall(Nodes, erlang, apply, [Fun, []], Timeout);
multicall(_, _, _) ->
    badarg().

-spec multicall([node()], module(), Function :: atom(), Args :: [term()]) -> [outcome()].
multicall(Nodes, M, F, A) ->
    multicall(Nodes, M, F, A, infinity).

-spec multicall([node()], module(), Function :: atom(), Args :: [term()], timeout_time()) -> [outcome()].
multicall(Nodes, M, F, A, Timeout) when length(Nodes) >= 0, ?IS_CALL(node(), M, F, A) ->
    case lists:all(fun is_atom/1, Nodes) of
        true -> collect(Nodes, {M, F, A}, deadline(Timeout));
        false -> badarg()
    end;
multicall(_, _, _, _, _) ->
    badarg().

-spec collect([node()], mfargs(), trunkline_deadline:deadline()) -> [outcome()].
collect(Nodes, MFA, Deadline) ->
    trunkline_gather:each(Nodes, MFA, Deadline, fun watch/2,
                          fun(Way, Node, Patience, Others) -> ask(Way, Node, Patience, Others, MFA, Deadline) end).

%% For trunkline_gather: it has the wait in the function that makes the reference.
ask(direct, Node, _, Others, {M, F, A}, Deadline) ->
    ok = fallback(Node),
    Mark = make_ref(),
    Ref = spawn_request(Node, erpc, execute_call, [Mark, M, F, A], ?SPAWN_OPTIONS),
    Outcomes = Others(),
    {receive
         {spawn_reply, Ref, error, Reason} -> {error, {erpc, Reason}};
         {'DOWN', Ref, process, _, Reason} -> ended_plain(Ref, Mark, Reason)
     after trunkline_deadline:left(Deadline) ->
             abandon({Ref, Mark})
     end, Outcomes};
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

%% --- casts --------------------------------------------------------------------

-spec cast(node(), fun(() -> term())) -> ok.
cast(Node, Fun) ->
    cast(Node, erlang, apply, [Fun, []]).

-spec cast(node(), module(), Function :: atom(), Args :: [term()]) -> ok.
cast(Node, M, F, A) when ?IS_CALL(Node, M, F, A) ->
    case trunkline_peers:can(Node, apply)
        andalso trunkline_sender:hand_over(Node, {apply, nobody, group_leader()}, {M, F, A}) of
        Plain when Plain =:= false; Plain =:= direct -> cast_plain(Node, M, F, A);
        _ -> ok                              % erpc does not tell either
    end;
cast(_, _, _, _) ->
    badarg().

cast_plain(Node, M, F, A) ->
    ok = fallback(Node),
    erpc:cast(Node, M, F, A).

-spec multicast([node()], fun(() -> term())) -> ok.
multicast(Nodes, Fun) ->
    multicast(Nodes, erlang, apply, [Fun, []]).

-spec multicast([node()], module(), Function :: atom(), Args :: [term()]) -> ok.
multicast(Nodes, M, F, A) when length(Nodes) >= 0, ?IS_CALL(node(), M, F, A) ->
    case lists:all(fun is_atom/1, Nodes) of
        true ->
            _ = trunkline_gather:each(Nodes, {M, F, A}, infinity, fun way/2,
                                      fun(Way, Node, Patience, Others) -> tell(Way, Node, Patience, Others, {M, F, A}) end),
            ok;
        false ->
            badarg()
    end;
multicast(_, _, _, _) ->
    badarg().

%% No session is waited for: the lanes keep what comes.
way(Node, _) ->
    case trunkline_peers:can(Node, apply) of
        true -> lane;
        false -> direct
    end.

tell(direct, Node, _, Others, {M, F, A}) ->
    {cast_plain(Node, M, F, A), Others()};
tell(lane, Node, Patience, Others, MFA) ->
    case trunkline_sender:hand_over(Node, {apply, nobody, group_leader()}, MFA, Patience, connect) of
        Refused when Refused =:= direct; Refused =:= nosuspend -> Refused;
        _ -> {ok, Others()}
    end;
tell(_, _, _, Others, _) ->
    {ok, Others()}.

%% --- requests -----------------------------------------------------------------

-spec send_request(node(), fun(() -> term())) -> request_id().
send_request(Node, Fun) when is_atom(Node), is_function(Fun, 0) ->
    request(Node, erlang, apply, [Fun, []]);
send_request(_, _) ->
    badarg().

-spec send_request(node(), module(), Function :: atom(), Args :: [term()]) -> request_id();
                  (node(), fun(() -> term()), Label :: term(), request_id_collection()) ->
          request_id_collection().
send_request(Node, M, F, A) when ?IS_CALL(Node, M, F, A) ->
    request(Node, M, F, A);
send_request(Node, Fun, Label, Collection) when is_atom(Node), is_function(Fun, 0), is_map(Collection) ->
    reqids_add(request(Node, erlang, apply, [Fun, []]), Label, Collection);
send_request(_, _, _, _) ->
    badarg().

-spec send_request(node(), module(), Function :: atom(), Args :: [term()], Label :: term(),
                   request_id_collection()) -> request_id_collection().
send_request(Node, M, F, A, Label, Collection) when ?IS_CALL(Node, M, F, A), is_map(Collection) ->
    reqids_add(request(Node, M, F, A), Label, Collection);
send_request(_, _, _, _, _, _) ->
    badarg().

request(Node, M, F, A) ->
    case watch(Node, infinity) of
        Inlet when is_pid(Inlet) ->
            Ref = monitor(process, Inlet, [{alias, reply_demonitor}]),
            case trunkline_sender:hand_over(Node, {apply, Ref, group_leader()}, {M, F, A}) of
                ok ->
                    {Ref, lane};
                Refused ->
                    demonitor(Ref, [flush]),
                    request_without(Refused, Node, M, F, A)
            end;
        Refused ->
            request_without(Refused, Node, M, F, A)
    end.

request_without(direct, Node, M, F, A) ->
    ok = fallback(Node),
    Mark = make_ref(),
    {spawn_request(Node, erpc, execute_call, [Mark, M, F, A], ?SPAWN_OPTIONS), Mark};
request_without(unreachable, _, _, _, _) ->
    Ref = make_ref(),
    self() ! {'DOWN', Ref, process, self(), noconnection},
    {Ref, lane}.

-spec receive_response(request_id()) -> term().
receive_response(Id) ->
    receive_response(Id, infinity).

-spec receive_response(request_id(), timeout_time()) -> term().
receive_response({Ref, Way} = Id, Timeout) when ?IS_ID(Ref, Way) ->
    value(case await(Id, trunkline_deadline:left(deadline(Timeout))) of
              timeout -> abandon(Id);
              Message -> outcome(Message, Id)
          end);
receive_response(_, _) ->
    badarg().

-spec receive_response(request_id_collection(), timeout_time(), Delete :: boolean()) ->
          {Result :: term(), Label :: term(), request_id_collection()} | no_request.
receive_response(Collection, Timeout, Delete) when is_map(Collection), is_boolean(Delete) ->
    case await_any(Collection, trunkline_deadline:left(deadline(Timeout))) of
        no_request ->
            no_request;
        timeout ->
            lists:foreach(fun({Id, _}) -> abandon(Id) end, reqids_to_list(Collection)),
            error({erpc, timeout});
        Message ->
            of_collection(Message, Collection, Delete, fun(Value) -> Value end)
    end;
receive_response(_, _, _) ->
    badarg().

-spec wait_response(request_id()) -> {response, Result :: term()} | no_response.
wait_response(Id) ->
    wait_response(Id, 0).

-spec wait_response(request_id(), timeout_time()) -> {response, Result :: term()} | no_response.
wait_response({Ref, Way} = Id, Timeout) when ?IS_ID(Ref, Way) ->
    case await(Id, trunkline_deadline:left(deadline(Timeout))) of
        timeout -> no_response;
        Message -> {response, value(outcome(Message, Id))}
    end;
wait_response(_, _) ->
    badarg().

-spec wait_response(request_id_collection(), timeout_time(), Delete :: boolean()) ->
          {{response, Result :: term()}, Label :: term(), request_id_collection()}
        | no_response | no_request.
wait_response(Collection, Timeout, Delete) when is_map(Collection), is_boolean(Delete) ->
    case await_any(Collection, trunkline_deadline:left(deadline(Timeout))) of
        no_request -> no_request;
        timeout -> no_response;
        Message -> of_collection(Message, Collection, Delete, fun(Value) -> {response, Value} end)
    end;
wait_response(_, _, _) ->
    badarg().

-spec check_response(Message :: term(), request_id()) -> {response, Result :: term()} | no_response.
check_response(Message, {Ref, Way} = Id) when ?IS_ID(Ref, Way) ->
    case reference_of(Message) of
        Ref -> {response, value(outcome(Message, Id))};
        _ -> no_response
    end;
check_response(_, _) ->
    badarg().

-spec check_response(Message :: term(), request_id_collection(), Delete :: boolean()) ->
          {{response, Result :: term()}, Label :: term(), request_id_collection()}
        | no_response | no_request.
check_response(_, Collection, Delete) when map_size(Collection) =:= 0, is_boolean(Delete) ->
    no_request;
check_response(Message, Collection, Delete) when is_map(Collection), is_boolean(Delete) ->
    case is_map_key(reference_of(Message), Collection) of
        true -> of_collection(Message, Collection, Delete, fun(Value) -> {response, Value} end);
        false -> no_response
    end;
check_response(_, _, _) ->
    badarg().

%% --- collections --------------------------------------------------------------

-spec reqids_new() -> request_id_collection().
reqids_new() ->
    #{}.

-spec reqids_size(request_id_collection()) -> non_neg_integer().
reqids_size(Collection) when is_map(Collection) ->
    map_size(Collection);
reqids_size(_) ->
    badarg().

-spec reqids_add(request_id(), Label :: term(), request_id_collection()) -> request_id_collection().
reqids_add({Ref, Way}, Label, Collection) when ?IS_ID(Ref, Way), is_map(Collection), not is_map_key(Ref, Collection) ->
    Collection#{Ref => {Way, Label}};
reqids_add(_, _, _) ->
    badarg().

-spec reqids_to_list(request_id_collection()) -> [{request_id(), Label :: term()}].
reqids_to_list(Collection) when is_map(Collection) ->
    maps:fold(fun(Ref, {Way, Label}, List) when ?IS_ID(Ref, Way) -> [{{Ref, Way}, Label} | List];
                 (_, _, _) -> badarg()
              end, [], Collection);
reqids_to_list(_) ->
    badarg().

%% --- outcomes -----------------------------------------------------------------

await({Ref, _}, Timeout) ->
    receive
        {[alias | Ref], _} = Message -> Message;
        {'DOWN', Ref, process, _, _} = Message -> Message;
        {spawn_reply, Ref, error, _} = Message -> Message
    after Timeout ->
            timeout
    end.

await_any(Collection, _) when map_size(Collection) =:= 0 ->
    no_request;
await_any(Collection, Timeout) ->
    receive
        {[alias | Ref], _} = Message when is_map_key(Ref, Collection) -> Message;
        {'DOWN', Ref, process, _, _} = Message when is_map_key(Ref, Collection) -> Message;
        {spawn_reply, Ref, error, _} = Message when is_map_key(Ref, Collection) -> Message
    after Timeout ->
            timeout
    end.

%% The reference by which a message names the request that it answers.
reference_of({[alias | Ref], _}) -> Ref;
reference_of({'DOWN', Ref, process, _, _}) -> Ref;
reference_of({spawn_reply, Ref, error, _}) -> Ref;
reference_of(_) -> none.

-spec outcome(Message :: term(), request_id()) -> outcome().
outcome({[alias | _], Outcome}, {_, lane}) -> Outcome;
outcome({'DOWN', _, process, Object, Reason}, {_, lane}) -> ended(Object, Reason);
outcome({'DOWN', Ref, process, _, Reason}, {Ref, Mark}) -> ended_plain(Ref, Mark, Reason);
outcome({spawn_reply, _, error, Reason}, _) -> {error, {erpc, Reason}}.

%% A 'DOWN' of a local process is of the inlet, and means that the session has ended; one
%% from the other side is of the executor, killed before it had an outcome.
ended(Object, _) when node(Object) =:= node() -> {error, {erpc, noconnection}};
ended(_, noconnection) -> {error, {erpc, noconnection}};
ended(_, Reason) -> {exit, {signal, Reason}}.

%% The process that erpc has started tells the outcome with its exit reason.
ended_plain(Ref, Mark, Reason) ->
    try
        {ok, erpc:call_result(down, Ref, Mark, Reason)}
    catch
        Class:Why -> {Class, Why}
    end.

%% The outcome is not wanted any more, unless it has come in the last moment.
abandon({Ref, Way} = Id) ->
    _ = Way =/= lane andalso erlang:spawn_request_abandon(Ref) orelse demonitor(Ref),
    case await(Id, 0) of
        timeout -> {error, {erpc, timeout}};
        Message -> outcome(Message, Id)
    end.

value({ok, Value}) -> Value;
value({Class, Reason}) -> raise(Class, Reason).

-spec raise(throw | exit | error, term()) -> no_return().
raise(throw, Term) -> throw(Term);
raise(exit, Reason) -> exit(Reason);
raise(error, Reason) -> error(Reason).

of_collection(Message, Collection, Delete, Wrap) ->
    Ref = reference_of(Message),
    case Collection of
        #{Ref := {Way, Label}} when ?IS_ID(Ref, Way) ->
            Rest = case Delete of
                       true -> maps:remove(Ref, Collection);
                       false -> Collection
                   end,
            case outcome(Message, {Ref, Way}) of
                {ok, Value} -> {Wrap(Value), Label, Rest};
                {Class, Reason} -> raise(Class, {Reason, Label, Rest})
            end;
        #{} ->
            badarg()
    end.

%% --- what is left -------------------------------------------------------------

%% The inlet to watch while something is executed there.
watch(Node, _) when Node =:= node() -> direct;
watch(Node, Deadline) -> trunkline_call:watch(Node, apply, Deadline).

fallback(Node) when Node =:= node() -> ok;
fallback(Node) -> trunkline_sender:fallback(Node).

-spec deadline(timeout_time()) -> trunkline_deadline:deadline().
deadline(Timeout) ->
    case trunkline_deadline:until(Timeout) of
        badarg -> badarg();
        Deadline -> Deadline
    end.

-spec badarg() -> no_return().
badarg() ->
    error({erpc, badarg}).
