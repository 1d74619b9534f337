%% Which senders have asked a lane for their turn (see trunkline_in_turn).
%%
%%     sender ── ask ──> lane ── nothing in flight, the mailbox is known ──> go, at once
%%                        │
%%                        └────── a question to the inlet, in the sender's place ──> go, or no
%%
%% What the lane knows of mailboxes is in trunkline_mailboxes.
%%
%% A question may find no answer for a long time, because the receiver does not get to run, or the
%% peer stands still. Its sender gives up (unused/2). So that there are not ever more of them, no
%% sender may ask about that receiver until the answer comes (late/2).
%%
%% A sender that was told `go' says so when it has sent. One that is killed meanwhile says nothing,
%% though its message may have gone. The lane takes it as sent at the second tick after its end: by
%% then it would have heard of it.
%%
%% This module is pure: it decides, and has no side effects.
-module(trunkline_asks).
-moduledoc false.

-export([new/0, ask/6, answer/3, late/2, unused/2, used/2, are_granted/1, refuse/1,
         tick/2]).

-export_type([asks/0]).

-type sender() :: pid().
-type to() :: trunkline_in_turn:addressee().
%% What an answer tells of the receiver's mailbox. (If it was known, the inlet has not looked.)
-type learned() :: go | no | nothing.
-record(asks,
        {pending = #{} :: #{reference() => {sender() | late, to(), known | look}},
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
        false -> question(known, Ref, Sender, To, A)
    end;
ask(Ref, Sender, To, look, _, A) ->
    question(look, Ref, Sender, To, A).

question(What, Ref, Sender, To, #asks{pending = Pending} = A) ->
    {question, What, A#asks{pending = Pending#{Ref => {Sender, To, What}}}}.

grant(Ref, Sender, To, #asks{granted = Granted} = A) ->
    A#asks{granted = Granted#{Ref => {Sender, To}}}.

%% The inlet has answered. Returns whom that question was about. (The name of a server is its pid by
%% then.) `awaited': its sender is still to be told. `late': it has given up. `unknown': it was told
%% at the end of the session.
-spec answer(reference(), trunkline_in_turn:answer(), asks()) ->
          {awaited | late, to(), learned(), asks()} | unknown.
answer(Ref, Answer, #asks{pending = Pending} = A) ->
    case maps:take(Ref, Pending) of
        {{Sender, To, What}, Pending1} ->
            To1 = served(To, Answer),
            Learned = learned(Answer, What),
            A1 = A#asks{pending = Pending1},
            case Sender of
                late -> {late, To1, Learned, A1};
                _ -> {awaited, To1, Learned, answered(Answer, Ref, Sender, To1, A1)}
            end;
        error ->
            unknown
    end.

learned({no, _}, _) -> no;
learned(noproc, _) -> nothing;
learned(_, look) -> go;
learned(_, known) -> nothing.

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

%% The addressees in the questions whose senders do not wait any more.
-spec late(IsAlive :: fun((sender()) -> boolean()), asks()) -> [to()].
late(IsAlive, #asks{pending = Pending}) ->
    [To || {Who, To, _} <- maps:values(Pending), Who =:= late orelse not IsAlive(Who)].

%% The sender has given up (`late'), or could not send. Returns whom its message was for.
-spec unused(reference(), asks()) -> {late | granted, to(), asks()} | none.
unused(Ref, #asks{pending = Pending, granted = Granted} = A) ->
    case {Pending, maps:take(Ref, Granted)} of
        {#{Ref := {_, To, What}}, _} ->
            {late, To, A#asks{pending = Pending#{Ref := {late, To, What}}}};
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
