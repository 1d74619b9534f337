%% Sends one request to each of many nodes, and gathers the outcomes.
%%
%% The calling process itself sends the requests, so that they keep their place among its other
%% messages. Each reply goes to an alias, so that none can come late. A node whose lane is full, or
%% whose session has yet to begin, does not delay the others: it is postponed, and another process
%% waits for it (or the caller, if no process can be started). Such nodes are asked in the order in
%% which they become ready.
%%
%% The function is recursive, with one level for each request. Each level makes its reference and
%% sends its request, calls the next level, and only then waits for its own reference. So the
%% compiler sees that the receive can skip all older messages (the efficiency guide, "receive").
-module(trunkline_gather).
-moduledoc false.

-export([each/5]).

%% The process that waits returns its result as its exit reason.
-dialyzer({nowarn_function, wait/3}).

%% How to ask a node: by lane (a pid is the inlet to monitor meanwhile), or by plain distribution.
%% Otherwise, why it cannot be asked.
-type way() :: pid() | lane | direct | unreachable | timeout.
-type watch() :: fun((node(), trunkline_refused:patience()) -> way() | nosuspend).
%% Asks a node, calls Others to ask the rest, and then waits for the answer. Or it returns that the
%% node cannot be asked in this way.
-type ask(Answer) ::
          fun((way(), node(), trunkline_refused:patience(), Others :: fun(() -> answers(Answer))) ->
                     {Answer, answers(Answer)} | way() | nosuspend).
-type answers(Answer) :: [{pos_integer(), Answer}].
-type place() :: {pos_integer(), node()}.          % in the list of nodes

-record(each,
        {message :: term(),
         deadline :: trunkline_deadline:deadline(),
         watch :: watch(),
         ask :: ask(term())}).

%% Returns the answers in the order of the nodes. Message is sent to each of them.
-spec each([node()], Message :: term(), trunkline_deadline:deadline(), watch(), ask(Answer)) ->
          [Answer].
each(Nodes, Message, Deadline, Watch, Ask) ->
    Each = #each{message = Message, deadline = Deadline, watch = Watch, ask = Ask},
    [Answer || {_, Answer} <- lists:keysort(1, next(lists:enumerate(Nodes), #{}, Each))].

%% Waits has the nodes that were postponed.
-spec next([place()], Waits :: #{reference() => place()}, #each{}) -> answers(_).
next([{_, Node} = Place | Places], Waits, #each{watch = Watch, deadline = Deadline} = Each) ->
    %% For the last node the caller itself may wait.
    Patience = if Places =:= [], map_size(Waits) =:= 0 -> Deadline;
                  true -> nosuspend
               end,
    turn(Watch(Node, Patience), session, Place, Patience, Places, Waits, Each);
next([], Waits, _) when map_size(Waits) =:= 0 ->
    [];
next([], Waits, Each) ->
    receive
        {'DOWN', Ref, process, _, Reason} when is_map_key(Ref, Waits) ->
            {Place, Waits1} = maps:take(Ref, Waits),
            case lists:member(Reason, [direct, unreachable, timeout]) of
                true -> turn(Reason, session, Place, nosuspend, [], Waits1, Each);
                false -> next([Place], Waits1, Each)         % ok, or it was killed
            end
    end.

%% What says what to wait for: a session, or room in a lane.
turn(nosuspend, What, {_, Node} = Place, _, Places, Waits,
     #each{watch = Watch, deadline = Deadline} = Each) ->
    case wait(What, Node, Each) of
        {ok, {_, Ref}} -> next(Places, Waits#{Ref => Place}, Each);
        {error, system_limit} ->
            turn(Watch(Node, Deadline), session, Place, Deadline, Places, Waits, Each)
    end;
turn(Way, _, {N, Node} = Place, Patience, Places, Waits, #each{ask = Ask} = Each) ->
    case Ask(Way, Node, Patience, fun() -> next(Places, Waits, Each) end) of
        {Answer, Others} -> [{N, Answer} | Others];
        Refused -> turn(Refused, room, Place, Patience, Places, Waits, Each)
    end.

wait(What, Node, #each{message = Message, deadline = Deadline}) ->
    Sender = self(),
    Charge = trunkline_gate:charge(Message),
    Wait = case What of
               session -> fun() -> trunkline_refused:await_session(Node, Deadline) end;
               room -> fun() -> trunkline_refused:await_room(Node, Sender, Charge, Deadline) end
           end,
    trunkline_process:start(fun() -> spawn_monitor(fun() -> exit(Wait()) end) end).
