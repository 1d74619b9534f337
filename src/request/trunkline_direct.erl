%% Commands that are carried out from the sending node, by OTP's means.
%%
%% When a session ends, there is no agent any more for what is left in its lanes (see
%% trunkline_leftovers). Callers may still be waiting for a reply. A process that is started for the
%% request asks the server, as gen_server would, and passes on what comes.
-module(trunkline_direct).
-moduledoc false.

-export([send/3]).
-export([await/1]).

-dialyzer({no_improper_lists, [ask/6]}).

%% Returns when the message has been sent, or handed to a process that will do so. `noconnect':
%% there is no connection any more, and nobody has been told.
-spec send(trunkline_command:command(), Message :: term(), node()) -> ok | noconnect.
send(Command, Message, Node) when element(1, Command) =:= call ->
    {Server, Pid, Caller, Label} = trunkline_command:request(Command),
    Object = trunkline_by_node:destination(Server, Node),
    Sender = self(),
    Sent = make_ref(),
    Ask = fun() -> ask(Object, Label, Pid, Caller, Message, fun() -> Sender ! Sent end) end,
    case trunkline_process:is_connected(Node)
        andalso trunkline_process:start(fun() -> spawn_monitor(Ask) end) of
        {ok, {_, Monitor}} ->
            %% The request keeps its place among the messages of the calling process.
            receive
                Sent -> true = demonitor(Monitor, [flush]), ok;
                {'DOWN', Monitor, process, _, _} -> lost(Server, Caller)
            end;
        _ ->
            lost(Server, Caller)
    end;
send({apply, nobody, Leader}, {M, F, A}, Node) ->
    %% The function runs with the caller's group leader. (This must not make another connection.)
    case trunkline_process:is_connected(Node) of
        true -> cast_for(Leader, Node, M, F, A);
        false -> noconnect
    end;
send({exit, _, _} = Command, Reason, Node) ->
    trunkline_exit:direct(Command, Reason, Node);
send({apply, Caller, Leader, _}, Message, Node) ->
    send({apply, Caller, Leader}, Message, Node);
send({apply, Caller, Leader}, {M, F, A}, Node) ->
    Call = fun() ->
                   true = group_leader(Leader, self()),
                   Outcome = try {ok, erpc:call(Node, M, F, A)}
                             catch Class:Reason -> {Class, Reason}
                             end,
                   Caller ! trunkline_command:wrap({reply, Caller}, Outcome)
           end,
    case trunkline_process:is_connected(Node)
        andalso trunkline_process:start(fun() -> spawn(Call) end) of
        {ok, _} ->
            ok;
        _ ->
            Caller ! {'DOWN', Caller, process, self(), noconnection},
            ok
    end;
send(Command, Message, _) when element(1, Command) =:= reply ->
    Caller = element(2, Command),
    erlang:send(Caller, trunkline_command:wrap({reply, Caller}, Message), [noconnect]);
send({down, Server, Caller}, Reason, _) ->
    trunkline_process:send_connected(Caller,
                                     trunkline_command:wrap({down, Server, Caller}, Reason));
send({ended, Object, _, Ref}, Reason, _) ->
    trunkline_process:send_connected(Ref, trunkline_command:wrap({down, Object, Ref}, Reason));
send({tell, Name}, Message, Node) ->
    trunkline_process:send_connected({Name, Node}, Message);
send(_, _, _) ->
    ok.

lost(Server, Caller) ->
    Caller ! {'DOWN', Caller, process, Server, noconnection},
    ok.

%% Run by a process for this one request: it asks by OTP's means, and passes on the outcome.
ask(Object, Label, Pid, Caller, Message, Sent) ->
    Ref = monitor(process, Object, [{alias, reply_demonitor}]),
    _ = erlang:send(Object, {Label, {Pid, [alias | Ref]}, Message}, [noconnect]),
    Sent(),
    ok = trunkline_process:outlive(self()),
    await({Ref, monitor(process, Pid), Object, Caller}).

%% It may take long until the server replies.
-spec await({reference(), reference(), trunkline_command:object(), trunkline_command:caller()}) ->
          term().
await({Ref, Its, Object, Caller} = S) ->
    receive
        {[alias | Ref], Reply} ->
            Caller ! trunkline_command:wrap({reply, Caller}, Reply);
        {'DOWN', Ref, process, _, Reason} ->
            Caller ! trunkline_command:wrap({down, Object, Caller}, Reason);
        {'DOWN', Its, process, _, _} ->
            ok;
        Other ->
            trunkline_process:other(Other, fun ?MODULE:await/1, S)
    end.

%% The calling process makes the cast, because it may be impossible to start another process.
cast_for(Leader, Node, M, F, A) ->
    Own = group_leader(),
    true = group_leader(Leader, self()),
    try erpc:cast(Node, M, F, A)
    after group_leader(Own, self())
    end.
