%% Which senders have asked a lane for their turn (see trunkline_in_turn): a part of
%% trunkline_questions.
%%
%%     sender ── ask ──> lane ── nothing in flight, the mailbox is known ──> go, at once
%%                        │
%%                        └────── a question to the inlet, in the sender's place ──> go, or no
%%
%% What the lane knows of mailboxes is in trunkline_mailboxes.
%%
%% A question may find no answer for a long time, because the receiver does not get to run, or the
%% peer stands still. Its sender gives up (unused/2), or is killed. Then the question is late. So
%% that there are not ever more of them, no sender should ask about that receiver until all late
%% answers are there (is_late/2).
%%
%% A sender that was told `go' says so when it has sent. One that is killed meanwhile says nothing,
%% though its message may have gone. The lane takes it as sent at the second tick after its end: by
%% then it would have heard of it.
%%
%% This module is pure: it decides, and has no side effects.
-module(trunkline_asks).
-moduledoc false.

-export([new/0, ask/6, answer/3, is_late/2, unused/2, used/2, are_granted/1, refuse/1, tick/2]).

-export_type([asks/0]).

-type sender() :: pid().
-type to() :: trunkline_in_turn:addressee().
%% What an answer tells of the receiver's mailbox. (If it was known, the inlet has not looked.)
-type learned() :: go | no | nothing.
-record(asks,
        {pending = #{} :: #{reference() => {sender(), to(), known | look}},
         late = #{} :: #{reference() => {to(), known | look}},
         %% How many of these are about a receiver: there may be very many.
         receivers = #{} :: #{trunkline_mailboxes:receiver() => pos_integer()},
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
answer(Ref, Answer, #asks{pending = Pending, late = Late} = A) ->
    case {maps:take(Ref, Pending), maps:take(Ref, Late)} of
        {{{Sender, To, What}, Pending1}, _} ->
            To1 = served(To, Answer),
            {awaited, To1, learned(Answer, What),
             answered(Answer, Ref, Sender, To1, A#asks{pending = Pending1})};
        {_, {{To, What}, Late1}} ->
            {late, served(To, Answer), learned(Answer, What),
             one_less(trunkline_mailboxes:receiver(To), A#asks{late = Late1})};
        {error, error} ->
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

%% Whether a question about that receiver is late. (A process that waits for an outcome is never
%% looked at.)
-spec is_late(to(), asks()) -> boolean().
is_late(_, #asks{receivers = Receivers}) when map_size(Receivers) =:= 0 -> false;
is_late({reply, _}, _) -> false;
is_late(To, #asks{receivers = Receivers}) ->
    is_map_key(trunkline_mailboxes:receiver(To), Receivers).

%% The sender has given up, or could not send. Returns whom its message was for.
-spec unused(reference(), asks()) -> {to(), asks()} | none.
unused(Ref, #asks{pending = Pending, granted = Granted} = A) ->
    case {Pending, maps:take(Ref, Granted)} of
        {#{Ref := {_, To, _}}, _} -> {To, late(Ref, A)};
        {_, {{_, To}, Granted1}} -> {To, A#asks{granted = Granted1}};
        {_, error} -> none
    end.

late(Ref, #asks{pending = Pending, late = Late, receivers = Receivers} = A) ->
    {{_, To, What}, Pending1} = maps:take(Ref, Pending),
    A#asks{pending = Pending1, late = Late#{Ref => {To, What}},
           receivers = maps:update_with(trunkline_mailboxes:receiver(To), fun(N) -> N + 1 end, 1,
                                        Receivers)}.

one_less(Receiver, #asks{receivers = Receivers} = A) ->
    A#asks{receivers = case Receivers of
                           #{Receiver := 1} -> maps:remove(Receiver, Receivers);
                           #{Receiver := N} -> Receivers#{Receiver := N - 1}
                       end}.

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

%% The session has ended: no inlet will answer these, whose senders wait.
-spec refuse(asks()) -> {[reference()], asks()}.
refuse(#asks{pending = Pending}) -> {maps:keys(Pending), new()}.

%% To be called once a second. Returns whom the messages were for that count as sent now, and those
%% that will not be sent, since their senders were killed before they had an answer.
-spec tick(IsAlive :: fun((sender()) -> boolean()), asks()) -> {[to()], [to()], asks()}.
tick(IsAlive, #asks{pending = Pending, granted = Granted} = A) ->
    GivenUp = [{Ref, To} || {Ref, {Sender, To, _}} <- maps:to_list(Pending), not IsAlive(Sender)],
    {Refs, Tos} = lists:unzip(GivenUp),
    Left = maps:filter(fun(_, {Who, _}) -> Who =/= dead end, Granted),
    {[To || {dead, To} <- maps:values(Granted)], Tos,
     lists:foldl(fun late/2, A#asks{granted = maps:map(fun(_, {Sender, To}) ->
                                                               case IsAlive(Sender) of
                                                                   true -> {Sender, To};
                                                                   false -> {dead, To}
                                                               end
                                                       end, Left)}, Refs)}.
