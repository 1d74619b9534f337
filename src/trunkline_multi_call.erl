%% One request to the servers that have the same name at many nodes, and their replies.
%%
%% The calling process itself asks, so that its requests keep their place among its other
%% messages, and no reply can come late: each is sent to an alias. A node whose lane is full, or
%% whose session has yet to begin, does not keep the others from being asked: it is put off until
%% they have been. Then the sessions begin in whatever order they can.
-module(trunkline_multi_call).

-export([multi_call/4]).

-type place() :: {pos_integer(), node()}.          % in the list of nodes
-type answer() :: {pos_integer(), node(), {reply, term()} | bad}.

-record(call,
        {name :: atom(),
         request :: term(),
         deadline :: trunkline_deadline:deadline()}).

%% As gen_server:multi_call/4: both lists are in the order of the nodes.
-spec multi_call([node()], Name :: atom(), term(), timeout()) -> {[{node(), Reply :: term()}], Bad :: [node()]}.
multi_call([Node], Name, Request, infinity) when Node =:= node() ->
    %% That one may be the caller: it would wait for ever.
    try trunkline_call:call(Name, '$gen_call', Request, infinity, none) of
        Reply -> {[{Node, Reply}], []}
    catch
        exit:_ -> {[], [Node]}
    end;
multi_call(Nodes, Name, Request, Timeout) ->
    are_nodes(Nodes) andalso is_time(Timeout) orelse error(badarg),
    Deadline = trunkline_deadline:in(Timeout),
    Places = lists:enumerate(Nodes),
    Answers = lists:sort(ask(Places, nosuspend, [], #call{name = Name, request = Request, deadline = Deadline})),
    {[{Node, Reply} || {_, Node, {reply, Reply}} <- Answers], [Node || {_, Node, bad} <- Answers]}.

are_nodes(Nodes) when length(Nodes) >= 0 -> lists:all(fun is_atom/1, Nodes);
are_nodes(_) -> false.                         % no proper list

%% As long as a timer can run, which is longer than a process can wait.
is_time(Timeout) -> Timeout =:= infinity orelse Timeout < 1 bsl 50.

%% Later: the places that were put off; or, when all others have been asked, the waits for
%% their sessions.
-spec ask([place()], trunkline_sender:patience(), [place()] | #{reference() => place()}, #call{}) -> [answer()].
ask([{_, Node} = Place | Places], Patience, Later, Call) ->
    ask(trunkline_call:watch(Node, request, Patience), Place, Places, Patience, Later, Call);
ask([], _, Later, Call) when is_list(Later) ->
    await(maps:from_list([{await_session(Node, Call), Place} || {_, Node} = Place <- Later]), Call);
ask([], _, Later, Call) ->
    await(Later, Call).

%% Each level of the recursion waits for the reference that it has made, so that the wait can
%% skip all mail that is older.
ask(nosuspend, Place, Places, Patience, Later, Call) ->
    ask(Places, Patience, [Place | Later], Call);
ask(direct, {N, Node}, Places, Patience, Later, Call) when Node =/= node(), node() =:= nonode@nohost ->
    [{N, Node, bad} | ask(Places, Patience, Later, Call)];
ask(Way, {N, Node} = Place, Places, Patience, Later, #call{name = Name, request = Request} = Call)
  when is_pid(Way); Way =:= direct ->
    {Watched, Alias} = case Way of
                           direct -> {{Name, Node}, demonitor};
                           Inlet -> {Inlet, reply_demonitor}
                       end,
    Ref = monitor(process, Watched, [{alias, Alias}]),
    case trunkline_call:submit(Way, Ref, Node, Name, Request, Patience) of
        {ok, Id} ->
            Others = ask(Places, Patience, Later, Call),
            Response = receive
                           {[alias | Ref], _} = Message -> trunkline_call:check_response(Message, Id);
                           {[[alias | _] | {Ref, _, _}], _} = Message -> trunkline_call:check_response(Message, Id);
                           {'DOWN', Ref, process, _, _} -> bad
                       after trunkline_deadline:left(Call#call.deadline) ->
                               trunkline_call:receive_response(Id, 0)
                       end,
            case Response of
                {reply, _} -> [{N, Node, Response} | Others];
                _ -> [{N, Node, bad} | Others]
            end;
        Refused ->
            demonitor(Ref, [flush]),
            ask(Refused, Place, Places, Patience, Later, Call)
    end;
ask(_, {N, Node}, Places, Patience, Later, Call) ->
    [{N, Node, bad} | ask(Places, Patience, Later, Call)].

%% Whichever is ready next is asked; it waits for room if it must.
await(Waits, _) when map_size(Waits) =:= 0 ->
    [];
await(Waits, #call{deadline = Deadline} = Call) ->
    receive
        {'DOWN', Ref, process, _, _} when is_map_key(Ref, Waits) ->
            {Place, Waits1} = maps:take(Ref, Waits),
            ask([Place], Deadline, Waits1, Call)
    end.

await_session(Node, #call{deadline = Deadline}) ->
    Await = fun() -> _ = trunkline_sender:await_session(Node, Deadline), ok end,
    case trunkline_process:start(fun() -> spawn_monitor(Await) end) of
        {ok, {_, Ref}} ->
            Ref;
        {error, system_limit} ->
            ok = Await(),
            Ref = make_ref(),
            self() ! {'DOWN', Ref, process, self(), normal},
            Ref
    end.
