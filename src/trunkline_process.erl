%% What processes without an OTP behaviour have in common.
%%
%% At the process limit no process can be started. The functions here return an error then, so that
%% the caller can keep its state and try again later.
%%
%% A hand-written loop passes what it does not know to other/3. System messages (sys) are answered
%% as a gen_server does. All others are unexpected, and logged once for each process, since there
%% may be very many. Then the loop continues. Debugging options have no effect. A loop that has to
%% do more with such messages calls system/4 and unexpected/2 itself.
-module(trunkline_process).
-moduledoc false.

-export([start/1, start_all/1, ask/4, multicall/5]).
-export([label/1, is_own/0, other/3, system/4, unexpected/2]).
-export([outlive/1, kill/1, resume/1, is_on_heap/1, is_heap_limited/0]).
-export([is_connected/1, controller/1, monitor/1, monitor_connected/1, send_connected/2,
         send_apart/2, deliver/2]).
-export([without_data/2]).
-export([system_continue/3, system_terminate/4, system_code_change/4, system_get_state/1,
         system_replace_state/2, format_status/2]).

-export_type([controller/0]).

%% The process that calls returns its result as its exit reason.
-dialyzer({nowarn_function, multicall/5}).

%% What carries the signals to a node. Each connection has another one. `none': there is no
%% connection.
-type controller() :: port() | pid() | none.
-type loop() :: fun((State :: term()) -> term()).

%% Calls Start, which starts one process, and returns its result.
-spec start(fun(() -> Started)) -> {ok, Started} | {error, system_limit}.
start(Start) ->
    try {ok, Start()}
    catch error:system_limit -> {error, system_limit}
    end.

%% The same for several processes that Start links to the calling one: all of them start, or none.
-spec start_all(fun(() -> Started)) -> {ok, Started} | {error, system_limit}.
start_all(Start) ->
    {links, Before} = process_info(self(), links),
    case start(Start) of
        {ok, _} = Started ->
            Started;
        {error, _} = Error ->
            {links, After} = process_info(self(), links),
            lists:foreach(fun(Pid) -> unlink(Pid), exit(Pid, kill) end, After -- Before),
            Error
    end.

%% Sends a question to a process, and waits for the answer, {Ref, Answer}. If none comes in time the
%% process gets the second message. The calling process may have a long mailbox: the reference, an
%% alias for one answer, is new, so that the runtime system need not search what was there before.
-spec ask(Where :: pid() | {Name :: atom(), node()}, Question :: fun((reference()) -> term()),
          GiveUp :: fun((reference()) -> term()), timeout()) ->
          {Answer :: term() | down | timeout, reference()}.
ask(Where, Question, GiveUp, Timeout) ->
    Ref = monitor(process, Where, [{alias, reply_demonitor}]),
    Where ! Question(Ref),
    receive
        {Ref, Answer} -> {Answer, Ref};
        {'DOWN', Ref, process, _, _} -> {down, Ref}
    after Timeout ->
            demonitor(Ref, [flush]),
            receive {Ref, Answer} -> {Answer, Ref}
            after 0 ->
                    Where ! GiveUp(Ref),
                    {timeout, Ref}
            end
    end.

%% As erpc:multicall/5, but the time is kept even if a connection is busy, or is being made: what
%% may be suspended is a process for each node.
-spec multicall([node()], module(), Function :: atom(), Args :: [term()],
                Milliseconds :: non_neg_integer()) ->
          [{ok, Result :: term()} | {Class :: throw | exit | error, Reason :: term()}].
multicall(Nodes, M, F, A, Time) ->
    Deadline = trunkline_deadline:in(Time),
    Call = fun(Node) ->
                   try {ok, erpc:call(Node, M, F, A, Time)}
                   catch Class:Reason -> {Class, Reason}
                   end
           end,
    Called = [start(fun() -> spawn_monitor(fun() -> exit(Call(Node)) end) end) || Node <- Nodes],
    [outcome(Caller, Deadline) || Caller <- Called].

outcome({ok, {Pid, Ref}}, Deadline) ->
    receive
        {'DOWN', Ref, process, Pid, Outcome} -> Outcome
    after trunkline_deadline:left(Deadline) ->
            demonitor(Ref, [flush]),
            exit(Pid, kill),
            {error, {erpc, timeout}}
    end;
outcome({error, system_limit} = Error, _) ->
    Error.

%% Sets the label under which observer and the shell show the calling process, since OTP 27.
-spec label(term()) -> ok.
label(Label) -> label(proc_lib, set_label, [Label]).

label(Module, Function, Args) ->
    case erlang:function_exported(Module, Function, length(Args)) of
        true -> apply(Module, Function, Args);
        false -> ok
    end.

%% Whether the calling process is one of those below Trunkline's supervisor. It may run users' code
%% all the same: logger calls its handlers in the process that logs. If these send by Trunkline,
%% they must not wait: this process may be the only one that can end the wait. (The process of
%% trunkline_events is there so that handlers may wait.)
-spec is_own() -> boolean().
is_own() ->
    case get('$ancestors') of
        Ancestors when is_list(Ancestors) ->
            lists:member(trunkline_sup, Ancestors)
                andalso not lists:member(trunkline_events_sup, Ancestors);
        _ -> false
    end.

%% --- system messages ----------------------------------------------------------------

%% The calling process has received a message that its loop, an exported function, does not know. It
%% continues with Loop(State).
-spec other(Message :: term(), loop(), State :: term()) -> term().
other({system, From, Request}, Loop, State) ->
    system(From, Request, Loop, State);
other(Unexpected, Loop, State) ->
    {module, Module} = erlang:fun_info(Loop, module),
    ok = unexpected(Module, Unexpected),
    Loop(State).

%% The calling process has received `{system, From, Request}', and continues with Loop(State).
-spec system(gen_server:from(), Request :: term(), loop(), State :: term()) -> no_return().
system(From, Request, Loop, State) ->
    Parent = case process_info(self(), parent) of
                 {parent, Pid} when is_pid(Pid) -> Pid;
                 _ -> self()
             end,
    sys:handle_system_msg(Request, From, Parent, ?MODULE, [], {Loop, State}).

-spec system_continue(pid(), [sys:dbg_opt()], {loop(), State :: term()}) -> term().
system_continue(_, _, {Loop, State}) -> Loop(State).

-spec system_terminate(Reason :: term(), pid(), [sys:dbg_opt()], term()) -> no_return().
system_terminate(Reason, _, _, _) -> exit(Reason).

-spec system_code_change(Misc, module(), term(), term()) -> {ok, Misc}.
system_code_change(Misc, _, _, _) -> {ok, Misc}.

-spec system_get_state({loop(), State}) -> {ok, State}.
system_get_state({_, State}) -> {ok, State}.

-spec system_replace_state(fun((State) -> State), {loop(), State}) -> {ok, State, {loop(), State}}.
system_replace_state(Replace, {Loop, State}) ->
    State1 = Replace(State),
    {ok, State1, {Loop, State1}}.

%% Reports must not contain users' data, so the state is left out.
-spec format_status(normal | terminate, [term()]) -> term().
format_status(_, [_, Status, Parent, _, {Loop, _}]) ->
    {module, Module} = erlang:fun_info(Loop, module),
    [{header, lists:concat(["Status for ", Module])},
     {data, [{"Status", Status}, {"Parent", Parent}]}].

%% For format_status/1 of processes that have users' data: what may be shown of the state, and no
%% messages.
-spec without_data(fun((State :: term()) -> Shown :: term()), gen_server:format_status()) ->
          gen_server:format_status().
without_data(Shown, Status) ->
    maps:map(fun(state, State) -> Shown(State);
                (message, _) -> not_shown;
                (log, _) -> [];
                (_, Value) -> Value
             end, Status).

%% --- other messages -----------------------------------------------------------------

%% The calling process, which runs Module, has received this message and ignores it.
-spec unexpected(module(), term()) -> ok.
unexpected(Module, Message) ->
    case put(?MODULE, unexpected) of
        undefined ->
            trunkline_log:write(unexpected, #{module => Module, pid => self(),
                                              message => describe(Message)});
        unexpected ->
            ok
    end.

%% The content of the message may be users' data, so only its shape is described.
describe(Message) when is_tuple(Message), is_atom(element(1, Message)) ->
    io_lib:format("a tuple of ~b, ~tp", [tuple_size(Message), element(1, Message)]);
describe(Message) when is_tuple(Message) -> io_lib:format("a tuple of ~b", [tuple_size(Message)]);
describe(Message) when is_atom(Message) -> io_lib:format("~tp", [Message]);
describe(Message) when is_list(Message) -> "a list";
describe(Message) when is_map(Message) -> "a map";
describe(Message) when is_bitstring(Message) -> "a binary";
describe(_) -> "neither a tuple, a list, a map nor a binary".

%% When an application stops, all processes that have its group leader are killed. With another
%% group leader this process survives. (It may have ended already.)
-spec outlive(pid()) -> ok.
outlive(Pid) ->
    try group_leader(whereis(init), Pid) of
        true -> ok
    catch
        error:badarg -> ok
    end.

%% Kills that process, and returns when it has ended. (It may have ended already.)
-spec kill(pid()) -> ok.
kill(Pid) ->
    exit(Pid, kill),
    Ref = monitor(process, Pid),
    receive {'DOWN', Ref, process, Pid, _} -> ok end.

%% Resumes a process that the calling one has suspended. (It may have ended already.)
-spec resume(pid()) -> ok.
resume(Pid) ->
    try erlang:resume_process(Pid) of
        true -> ok
    catch
        error:badarg -> ok
    end.

-spec is_connected(node()) -> boolean().
is_connected(Node) -> lists:member(Node, nodes(connected)).

%% The controller of the distribution's connection to a node.
-spec controller(node()) -> controller().
controller(Node) ->
    case lists:keyfind(Node, 1, erlang:system_info(dist_ctrl)) of
        {Node, Controller} -> Controller;
        false -> none
    end.

%% Sends a message that is lost if the nodes are not connected.
-spec send_connected(pid() | reference() | {atom(), node()}, Message :: term()) -> ok.
send_connected(To, Message) ->
    _ = erlang:send(To, Message, [noconnect]),
    ok.

%% The same for a process that must not wait: while the connection is busy another process sends. If
%% none can be started, the message is lost, too.
-spec send_apart(pid() | {atom(), node()}, Message :: term()) -> ok.
send_apart(To, Message) ->
    _ = erlang:send(To, Message, [noconnect, nosuspend]) =:= nosuspend
        andalso start(fun() -> spawn(fun() -> send_connected(To, Message) end) end),
    ok.

%% Sends a message that has come from another node. A pid or an alias of a former life of this node
%% is that of a process that has ended. But the runtime system writes such a message to the log,
%% whole, so it is not sent. (What is of a former life has a pointer to its node. So a pid is more
%% than one word, and an alias has at least two words more than an ordinary reference of this life,
%% not one.)
-spec deliver(pid() | reference() | RegisteredName :: atom(), Message :: term()) -> ok.
deliver(Name, Message) when is_atom(Name) ->
    _ = case whereis(Name) of
            Pid when is_pid(Pid) -> Pid ! Message;
            _ -> ok                          % as plain distribution does
        end,
    ok;
deliver(To, Message) when is_reference(To) ->
    _ = erts_debug:flat_size(To) =< erts_debug:flat_size(make_ref()) + 1 andalso (To ! Message),
    ok;
deliver(To, Message) ->
    _ = erts_debug:flat_size(To) =:= 0 andalso (To ! Message),
    ok.

%% Monitors a process at another node only if the nodes are connected. A monitor would connect
%% them, and a node that has just been disconnected on purpose must not come back because of that.
%% (There is no option to prevent it: if the connection is lost right here, it is made again.)
-spec monitor_connected(pid() | {atom(), node()}) -> reference() | noconnection.
monitor_connected(Object) ->
    Node = case Object of
               {_, At} -> At;
               _ -> node(Object)
           end,
    case is_connected(Node) of
        true -> ?MODULE:monitor(Object);
        false -> noconnection
    end.

%% As erlang:monitor/2, which raises an error for a name at another node if this node has left the
%% distribution (net_kernel:stop/0).
-spec monitor(pid() | {atom(), node()}) -> reference() | noconnection.
monitor(Object) ->
    try erlang:monitor(process, Object)
    catch error:badarg when node() =:= nonode@nohost -> noconnection
    end.

%% Whether the mailbox of a process of this node is on its heap (trunkline_opener says why that
%% matters). `false' if the process has ended.
-spec is_on_heap(pid()) -> boolean().
is_on_heap(Pid) -> process_info(Pid, message_queue_data) =:= {message_queue_data, on_heap}.

%% Whether the calling process is killed when its heap becomes too large (`erl +hmax').
-spec is_heap_limited() -> boolean().
is_heap_limited() ->
    {max_heap_size, #{size := Size}} = process_info(self(), max_heap_size),
    Size > 0.
