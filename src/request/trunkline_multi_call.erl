%% One request to the servers that have the same name at many nodes, and their replies.
-module(trunkline_multi_call).
-moduledoc false.

-export([multi_call/4]).

%% As gen_server:multi_call/4: both lists are in the order of the nodes.
-spec multi_call([node()], Name :: atom(), term(), timeout()) ->
          {[{node(), Reply :: term()}], Bad :: [node()]} | badarg.
multi_call([Node], Name, Request, infinity) when Node =:= node() ->
    %% The server may be the caller itself, which would wait for ever.
    try trunkline_call:call(Name, '$gen_call', Request, infinity, none) of
        Reply -> {[{Node, Reply}], []}
    catch
        exit:_ -> {[], [Node]}
    end;
multi_call(Nodes, Name, Request, Timeout) ->
    case are_nodes(Nodes) andalso is_time(Timeout) of
        true -> multi_call_all(Nodes, Name, Request, trunkline_deadline:in(Timeout));
        false -> badarg
    end.

multi_call_all(Nodes, Name, Request, Deadline) ->
    Answers = trunkline_gather:each(Nodes, Request, Deadline,
                                    fun trunkline_call:watch/2,
                                    fun(Way, Node, Patience, Others) ->
                                            ask(Way, Node, Patience, Others, Name, Request,
                                                Deadline)
                                    end),
    {[Reply || {_, _} = Reply <- Answers], [Node || {Node} <- Answers]}.

are_nodes(Nodes) when length(Nodes) >= 0 -> lists:all(fun is_atom/1, Nodes);
are_nodes(_) -> false.                         % an improper list

%% The limit is how long a timer can run, which is longer than a process can wait.
is_time(Timeout) -> Timeout =:= infinity orelse Timeout < 1 bsl 50.

%% Returns {Node, Reply}, or {Node} for a bad node.
ask(direct, Node, _, Others, _, _, _) when Node =/= node(), node() =:= nonode@nohost ->
    {{Node}, Others()};
ask(Way, Node, Patience, Others, Name, Request, Deadline) when is_pid(Way); Way =:= direct ->
    {Watched, Alias} = case Way of
                           direct -> {{Name, Node}, demonitor};
                           Inlet -> {Inlet, reply_demonitor}
                       end,
    Ref = monitor(process, Watched, [{alias, Alias}]),
    case trunkline_call:submit(Way, Ref, Node, Name, Request, Patience) of
        {ok, Id} ->
            Answers = Others(),
            Response = receive
                           {[alias | Ref], _} = Message ->
                               trunkline_call:check_response(Message, Id);
                           {[[alias | _] | {Ref, _, _}], _} = Message ->
                               trunkline_call:check_response(Message, Id);
                           {'DOWN', Ref, process, _, _} -> bad
                       after trunkline_deadline:left(Deadline) ->
                               trunkline_call:receive_response(Id, 0)
                       end,
            {case Response of
                 {reply, Reply} -> {Node, Reply};
                 _ -> {Node}
             end, Answers};
        Refused ->
            demonitor(Ref, [flush]),
            Refused
    end;
ask(_, Node, _, Others, _, _, _) ->
    {{Node}, Others()}.
