%% Decides in which order messages are delivered that come behind a large one.
%%
%% A large message travels outside its lane and takes longer. In its place the
%% lane carries a notice, and what the same sender has sent afterwards is marked
%% with the sender's pid (see trunkline_notices). Here such messages wait for those
%% before them, if they go to the same receiver:
%%
%%     sender 1   A large   A small   B small   A small
%%                   │         │         │         │
%%     receiver A    x ········x·········│·········x     in this order
%%     receiver B                        x               at once
%%
%% If its receiver is not known, a message waits for everything that the sender has sent before, and
%% all messages behind it wait for it. That is so for an alias, which may belong to any process, and
%% for a registered name, which any process may have by then: `!' looks a name up once, when the
%% message arrives, and so does the inlet, when the message's turn comes. A small message to a name
%% needs no line if it can be delivered at once, to the process that has the name now (is_free/3).
%%
%% Every message that is handed out must be followed by done/3 if it `takes' time: the next ones
%% wait for that.
%%
%% This module is pure: it decides, and has no side effects.
-module(trunkline_turns).
-moduledoc false.

-export([new/0, enter/4, done/3, is_free/3]).

-export_type([turns/1, receiver/0]).

-type receiver() :: pid() | any.
-type takes() :: time | no_time.
%% The messages of one sender: a line for each receiver, whose first message is being
%% delivered; and everything behind a message whose receiver is not known.
-record(sender,
        {lines = #{} :: #{receiver() => queue:queue({takes(), term()})},
         behind = queue:new() :: queue:queue({receiver(), takes(), term()})}).
-opaque turns(_Message) :: #{pid() => #sender{}}.

-spec new() -> turns(_).
new() -> #{}.

%% Whether a message of this sender for that process could be delivered now.
-spec is_free(Sender :: pid(), pid(), turns(_)) -> boolean().
is_free(Sender, Receiver, Turns) ->
    case Turns of
        #{Sender := #sender{lines = Lines, behind = Behind}} ->
            not is_map_key(Receiver, Lines) andalso not is_map_key(any, Lines)
                andalso queue:is_empty(Behind);
        #{} ->
            true
    end.

%% Returns what is to be delivered now: the message, or nothing.
-spec enter(Sender :: pid(), receiver(), {takes(), Message}, turns(Message)) ->
          {[Message], turns(Message)}.
enter(Sender, Receiver, {Takes, Message}, Turns) ->
    S = maps:get(Sender, Turns, #sender{}),
    case queue:is_empty(S#sender.behind) of
        true ->
            {Now, S1} = line_up(Receiver, {Takes, Message}, S),
            {Now, update(Sender, S1, Turns)};
        false ->
            Behind = queue:in({Receiver, Takes, Message}, S#sender.behind),
            {[], Turns#{Sender := S#sender{behind = Behind}}}
    end.

%% The message of this sender for this receiver that took time has been delivered,
%% or is lost. Returns what is to be delivered now, in this order.
-spec done(Sender :: pid(), receiver(), turns(Message)) -> {[Message], turns(Message)}.
done(Sender, Receiver, Turns) ->
    #{Sender := #sender{lines = Lines} = S} = Turns,
    #{Receiver := Line} = Lines,
    {Now, S1} = case advance(queue:drop(Line), []) of
                    {Next, none} -> {Next, S#sender{lines = maps:remove(Receiver, Lines)}};
                    {Next, Rest} -> {Next, S#sender{lines = Lines#{Receiver := Rest}}}
                end,
    {More, S2} = catch_up(S1, []),
    {Now ++ More, update(Sender, S2, Turns)}.

%% All messages that take no time, and the first that does.
advance(Line, Now) ->
    case queue:peek(Line) of
        empty -> {lists:reverse(Now), none};
        {value, {no_time, Message}} -> advance(queue:drop(Line), [Message | Now]);
        {value, {time, Message}} -> {lists:reverse(Now, [Message]), Line}
    end.

line_up(Receiver, {Takes, Message} = Entry, #sender{lines = Lines, behind = Behind} = S) ->
    case Lines of
        #{Receiver := Line} when Receiver =/= any ->
            {[], S#sender{lines = Lines#{Receiver := queue:in(Entry, Line)}}};
        #{} when is_map_key(any, Lines); Receiver =:= any, map_size(Lines) > 0 ->
            {[], S#sender{behind = queue:in({Receiver, Takes, Message}, Behind)}};
        #{} when Takes =:= time ->
            {[Message], S#sender{lines = Lines#{Receiver => queue:from_list([Entry])}}};
        #{} ->
            {[Message], S}
    end.

%% The messages behind, as far as nothing is in the way of the first of them.
catch_up(#sender{behind = Behind} = S, Now) ->
    case queue:out(Behind) of
        {empty, _} ->
            {lists:append(lists:reverse(Now)), S};
        {{value, {Receiver, Takes, Message}}, Rest} ->
            case line_up(Receiver, {Takes, Message}, S#sender{behind = queue:new()}) of
                {Deliver, #sender{behind = Blocked} = S1} ->
                    case queue:is_empty(Blocked) of
                        true -> catch_up(S1#sender{behind = Rest}, [Deliver | Now]);
                        false -> {lists:append(lists:reverse(Now)), S}
                    end
            end
    end.

update(Sender, #sender{lines = Lines}, Turns) when map_size(Lines) =:= 0 ->
    maps:remove(Sender, Turns);
update(Sender, S, Turns) ->
    Turns#{Sender => S}.
