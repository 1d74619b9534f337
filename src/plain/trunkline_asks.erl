%% Which senders have asked a lane for their turn (see trunkline_in_turn).
%%
%%     sender ── ask ──> lane ── nothing in flight, the mailbox is known ──> go, at once
%%                        │
%%                        └────── a question to the inlet, in the sender's place ──> go, or no
%%
%% What the lane knows of mailboxes is in trunkline_mailboxes.
%%
%% A question may find no answer for a long time, because the receiver does not get to run, or the
%% peer stands still. Its sender gives up (unused/2). So that there are not ever more of them, the
%% lane asks no further question about that receiver (unanswered/1).
%%
%% A sender that was told `go' says so when it has sent. One that is killed meanwhile says nothing,
%% though its message may have gone. The lane takes it as sent at the second tick after its end: by
%% then it would have heard of it.
%%
%% This module is pure: it decides, and has no side effects.
-module(trunkline_asks).
-moduledoc false.

-export([new/0, ask/6, answer/3, unanswered/1, unused/2, used/2, are_granted/1, refuse/1,
         tick/2]).

-export_type([asks/0]).

-type sender() :: pid().
-type to() :: trunkline_in_turn:addressee().
-record(asks,
        {pending = #{} :: #{reference() => {sender() | late, to()}},
         %% Who was told `go', and has not sent; `dead': that was so at the last tick.
         granted = #{} :: #{reference() => {sender(), to()} | {dead, to()}}}).
-opaque asks() :: #asks{}.

-spec new() -> asks().
new() -> #asks{}.

%% The answer, or the question that the inlet has to answer: `known' means that it need not look at
%% the mailbox. A request is always a question, because only the inlet can say how its server should
%% see it.
-spec ask(reference(), sender(), to(), trunkline_mailboxes:known(), IsIdle :: boolean(),
          asks()) ->
          {answer, go | no, asks()} | {question, known | look, asks()}.
ask(_, _, _, no, _, A) ->
    {answer, no, A};
ask(Ref, Sender, To, go, IsIdle, A) ->
    case IsIdle andalso not trunkline_command:is_request(To) of
        true -> {answer, go, grant(Ref, Sender, To, A)};
        false -> {question, known, pending(Ref, Sender, To, A)}
    end;
ask(Ref, Sender, To, look, _, A) ->
    {question, look, pending(Ref, Sender, To, A)}.

pending(Ref, Sender, To, #asks{pending = Pending} = A) ->
    A#asks{pending = Pending#{Ref => {Sender, To}}}.

grant(Ref, Sender, To, #asks{granted = Granted} = A) ->
    A#asks{granted = Granted#{Ref => {Sender, To}}}.

%% The inlet has answered. Returns whose question that was, if its sender is still to be told. (The
%% name of a server is its pid by then.) `late': the sender has given up. `unknown': it was told at
%% the end of the session.
-spec answer(reference(), trunkline_in_turn:answer(), asks()) ->
          {awaited, to(), asks()} | {late | unknown, asks()}.
answer(Ref, Answer, #asks{pending = Pending} = A) ->
    case maps:take(Ref, Pending) of
        {{late, _}, Pending1} ->
            {late, A#asks{pending = Pending1}};
        {{Sender, To}, Pending1} ->
            To1 = served(To, Answer),
            {awaited, To1, answered(Answer, Ref, Sender, To1, A#asks{pending = Pending1})};
        error ->
            {unknown, A}
    end.

served(To, {no, Go}) ->
    served(To, Go);
served(To, {go, Server, _}) ->
    case trunkline_command:is_request(To) of
        true -> setelement(2, To, Server);
        false -> To
    end;
served(To, _) ->
    To.

answered(noproc, _, _, _, A) -> A;
answered({no, _}, _, _, _, A) -> A;
answered(_, Ref, Sender, To, A) -> grant(Ref, Sender, To, A).

%% Whom the questions are about that have no answer.
-spec unanswered(asks()) -> [to()].
unanswered(#asks{pending = Pending}) -> [To || {_, To} <- maps:values(Pending)].

%% The sender has given up, or could not send. Returns whom its message was for. `unanswered': no
%% answer has come, and the others should not wait as long.
-spec unused(reference(), asks()) -> {unanswered | granted, to(), asks()} | none.
unused(Ref, #asks{pending = Pending, granted = Granted} = A) ->
    case {Pending, maps:take(Ref, Granted)} of
        {#{Ref := {_, To}}, _} ->
            {unanswered, To, A#asks{pending = Pending#{Ref := {late, To}}}};
        {_, {{_, To}, Granted1}} ->
            {granted, To, A#asks{granted = Granted1}};
        {_, error} ->
            none
    end.

%% The sender has sent. `unknown': it was not granted in this session.
-spec used(reference(), asks()) -> {granted | unknown, asks()}.
used(Ref, #asks{granted = Granted} = A) ->
    case maps:take(Ref, Granted) of
        {_, Granted1} -> {granted, A#asks{granted = Granted1}};
        error -> {unknown, A}
    end.

%% Whether a sender may be sending now.
-spec are_granted(asks()) -> boolean().
are_granted(#asks{granted = Granted}) -> map_size(Granted) > 0.

%% The session has ended: no inlet will answer these.
-spec refuse(asks()) -> {[reference()], asks()}.
refuse(#asks{pending = Pending}) -> {maps:keys(Pending), new()}.

%% To be called once a second. Returns whom the messages were for that count as sent now.
-spec tick(IsAlive :: fun((sender()) -> boolean()), asks()) -> {[to()], asks()}.
tick(IsAlive, #asks{granted = Granted} = A) ->
    Left = maps:filter(fun(_, {Who, _}) -> Who =/= dead end, Granted),
    {[To || {dead, To} <- maps:values(Granted)],
     A#asks{granted = maps:map(fun(_, {Sender, To}) ->
                                       case IsAlive(Sender) of
                                           true -> {Sender, To};
                                           false -> {dead, To}
                                       end
                               end, Left)}}.
