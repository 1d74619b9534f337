%% What processes without an OTP behaviour have in common.
%%
%% At the process limit no process can be started. The functions here return an error then, so that
%% the caller can keep its state and try again later.
%%
%% A hand-written loop answers system messages (sys) as a gen_server does, and continues with the
%% function that it gives. Debugging options have no effect.
%%
%% Unexpected messages are logged once for each process, since there may be very many.
-module(trunkline_process).
-moduledoc false.

-export([start/1, start_all/1, label/1, system/4, unexpected/2]).
-export([outlive/1, monitor_connected/1]).
-export([system_continue/3, system_terminate/4, system_code_change/4, system_get_state/1,
         system_replace_state/2, format_status/2]).

-type loop() :: fun((State :: term()) -> term()).

%% What Start answers, which starts one process.
-spec start(fun(() -> Started)) -> {ok, Started} | {error, system_limit}.
start(Start) ->
    try {ok, Start()}
    catch error:system_limit -> {error, system_limit}
    end.

%% The same for several processes, linked to the calling one: all of them, or none.
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

%% What observer and the shell call the calling process, since OTP 27.
-spec label(term()) -> ok.
label(Label) -> label(proc_lib, set_label, [Label]).

label(Module, Function, Args) ->
    case erlang:function_exported(Module, Function, length(Args)) of
        true -> apply(Module, Function, Args);
        false -> ok
    end.

%% --- system messages ----------------------------------------------------------------

%% The calling process has got `{system, From, Request}', and goes on with Loop(State).
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

%% No report has the users' data in it.
-spec format_status(normal | terminate, [term()]) -> term().
format_status(_, [_, Status, Parent, _, {Loop, _}]) ->
    {module, Module} = erlang:fun_info(Loop, module),
    [{header, lists:concat(["Status for ", Module])},
     {data, [{"Status", Status}, {"Parent", Parent}]}].

%% --- other messages -----------------------------------------------------------------

%% The calling process, which runs that module, has got this and ignores it.
-spec unexpected(module(), term()) -> ok.
unexpected(Module, Message) ->
    case put(?MODULE, unexpected) of
        undefined ->
            trunkline_log:write(unexpected, #{module => Module, pid => self(),
                                              message => describe(Message)});
        unexpected ->
            ok
    end.

%% What is in it may be the users'.
describe(Message) when is_tuple(Message), is_atom(element(1, Message)) ->
    io_lib:format("a tuple of ~b, ~tp", [tuple_size(Message), element(1, Message)]);
describe(Message) when is_tuple(Message) -> io_lib:format("a tuple of ~b", [tuple_size(Message)]);
describe(Message) when is_atom(Message) -> io_lib:format("~tp", [Message]);
describe(Message) when is_list(Message) -> "a list";
describe(Message) when is_map(Message) -> "a map";
describe(Message) when is_bitstring(Message) -> "a binary";
describe(_) -> "neither a tuple, a list, a map nor a binary".

%% An application that stops kills all processes whose group leader is its own. This one stays,
%% if it is still there.
-spec outlive(pid()) -> ok.
outlive(Pid) ->
    try group_leader(whereis(init), Pid) of
        true -> ok
    catch
        error:badarg -> ok
    end.

%% Monitors a process elsewhere only over a connection that is there. To monitor makes one, and a
%% node that somebody has just disconnected must not come back for that. (There is no option
%% against it: a connection that is lost right here is made again.)
-spec monitor_connected(pid() | {atom(), node()}) -> reference() | noconnection.
monitor_connected(Object) ->
    Node = case Object of
               {_, At} -> At;
               _ -> node(Object)
           end,
    case lists:member(Node, nodes(connected)) of
        true -> monitor(process, Object);
        false -> noconnection
    end.
