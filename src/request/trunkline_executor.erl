%% A process that executes one function for a caller at another node (trunkline_erpc).
%%
%%     caller ── {apply, ...} ──> lane ══> inlet ── spawn, monitor ──> executor
%%       ^                                   │ ^                          │
%%       │                    killed: {down} │ └──── its end ─────────────┤
%%       │                                   v                            │
%%       └──── outcome <══ inlet <══════════ lane <──────── outcome ──────┘
%%
%% The executor sends the outcome as any process sends its messages: it waits while the lane is
%% full, and a large outcome travels beside the lane. Messages that the function has sent to the
%% caller by Trunkline arrive before the outcome. The inlet never waits. It monitors executors only
%% to report those that end without an outcome.
%%
%% While its lane is idle, a caller with long arguments, or one of a few callers
%% (trunkline_concurrency), starts the executor by the distribution, as erpc does, and gets the
%% outcome as its exit reason. Only one that would keep the distribution busy goes by lane, and the
%% exit reason says so:
%%
%%     caller ── spawn_request, monitor ──> executor
%%       ^                                     │ waits until its messages have been delivered
%%       └──────────────── 'DOWN' ─────────────┘
%%
%% As with erpc, the function runs in a process of its own, with the caller's group leader. erpc's
%% own functions execute it, and say what the caller sees (they are exported, for rpc). So
%% exceptions and stacks are as with erpc.
%%
%% After the outcome the executor ends with an exit reason that is not `normal', so that processes
%% that the function has linked to itself end with it, also as with erpc. The reason is the caller's
%% alias for this outcome, which the function does not know. So it distinguishes this end from any
%% other, and from that of another executor that ends because it was linked to this one.
-module(trunkline_executor).
-moduledoc false.

-export([start/2, run/2]).
-export([execute_call/4, is_by_lane/2]).

%% The calling process is an inlet, and monitors the executor of a call. If anything is wrong with
%% the message, the new process fails, not the inlet.
-spec start(trunkline_command:apply(), Message :: term()) -> pid() | system_limit.
start({apply, nobody, _} = Command, Message) ->
    start(Command, Message, []);
start(Command, Message) ->
    case start(Command, Message, [monitor]) of
        {Pid, _} -> Pid;
        system_limit -> system_limit
    end.

start(Command, Message, Options) ->
    case trunkline_process:start(fun() ->
                                         spawn_opt(?MODULE, run, [Command, Message], Options)
                                 end) of
        {ok, Started} -> Started;
        {error, system_limit} -> system_limit
    end.

-spec run(trunkline_command:apply(), Message :: term()) -> term().
run({apply, nobody, Leader}, {M, F, A}) ->
    true = group_leader(Leader, self()),
    erpc:execute_cast(M, F, A);
run({apply, Caller, Leader}, MFA) ->
    run(Caller, {reply, Caller}, Leader, MFA);
run({apply, Caller, Leader, Pid}, MFA) ->
    run(Caller, {reply, Caller, Pid}, Leader, MFA).

-spec run(trunkline_command:caller(), trunkline_command:command(), pid(), term()) -> no_return().
run(Caller, Reply, Leader, {M, F, A}) ->
    true = group_leader(Leader, self()),
    Outcome = try
                  erpc:execute_call(Caller, M, F, A)
              catch
                  exit:Reason -> result(Caller, Reason)
              end,
    ok = without_links(),
    case trunkline_sender:hand_over(node(Caller), Reply, Outcome, infinity, noconnect) of
        direct ->
            %% The link may have been drained while the session goes on.
            _ = erlang:send(Caller, trunkline_command:wrap({reply, Caller}, Outcome), [noconnect]);
        _ ->
            %% A caller that cannot be reached any more knows already that it gets no outcome.
            ok
    end,
    exit(Caller).

%% What the caller would see of this exit reason, if erpc had started the executor.
result(Caller, Reason) ->
    try {ok, erpc:call_result(down, Caller, Caller, Reason)}
    catch Class:Of -> {Class, Of}
    end.

%% Started by the distribution. The mark is an alias of the caller.
-spec execute_call(Mark :: reference(), module(), Function :: atom(), Args :: [term()]) ->
          no_return().
execute_call(Mark, M, F, A) ->
    try
        erpc:execute_call(Mark, M, F, A)
    catch
        exit:Outcome ->
            ok = without_links(),
            MayEnd = trunkline_plain_call:may_end_with(Outcome, node(Mark)),
            Reason = outcome(MayEnd, Mark, Outcome),
            ok = trunkline_plain_call:await_delivery(node(Mark), infinity),
            exit(Reason)
    end.

%% The function has ended. So what it has linked to itself must not change the outcome.
without_links() ->
    _ = process_flag(trap_exit, true),
    ok.

outcome(true, _, Outcome) ->
    Outcome;
outcome(false, Mark, Outcome) ->
    case trunkline_sender:hand_over(node(Mark), {reply, Mark}, Outcome, infinity, noconnect) of
        direct -> Outcome;
        _ -> {Mark, by_lane}
    end.

%% Whether an executor that has ended with this reason has sent its outcome by lane. Then that has
%% been delivered, or is lost.
-spec is_by_lane(Mark :: reference(), ExitReason :: term()) -> boolean().
is_by_lane(Mark, Reason) -> Reason =:= {Mark, by_lane}.
