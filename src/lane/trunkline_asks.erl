%% Which senders have asked a lane for their turn (see trunkline_in_turn).
%%
%%     sender ── ask ──> lane ── nothing in flight, the mailbox is known ──> go, at once
%%                        │
%%                        └────── a question to the inlet, in the sender's place ──> go, or no
%%
%% The lane remembers for at most a second or two whether the mailbox of a receiver is on the heap,
%% since a process may change that. It remembers nothing about a registered name, which another
%% process may have at any time.
%%
%% A question may find no answer for a long time, because the receiver does not get to run, or the
%% peer stands still. Its sender gives up (unused/2). So that there are not ever more of them, the
%% lane asks no further question about that receiver.
%%
%% A sender that was told `go' says so when it has sent. One that is killed meanwhile says nothing,
%% though its message may have gone. After two ticks the lane takes it as sent.
%%
%% This module is pure: it decides, and has no side effects.
-module(trunkline_asks).
-moduledoc false.

-export([new/0, ask/4, answer/3, know/3, is_known/2, unused/2, used/2, are_granted/1, refuse/1,
         tick/1]).

-export_type([asks/0]).

-type to() :: trunkline_in_turn:addressee().
-type receiver() :: pid() | atom().
-type known() :: go | no.
-record(asks,
        {pending = #{} :: #{reference() => to() | {late, receiver()}},
         known = #{} :: #{receiver() => known()},           % since the last tick
         %% Who was told `go', and has not sent; `counted': is taken for sent.
         granted = #{} :: #{reference() => {new | old | counted, to()}}}).
-opaque asks() :: #asks{}.

-spec new() -> asks().
new() -> #asks{}.

%% The answer, or the question that the inlet has to answer: `known' means that it need not look at
%% the mailbox. A request is always a question, because only the inlet can say how its server should
%% see it.
-spec ask(reference(), to(), IsIdle :: boolean(), asks()) ->
          {answer, known(), asks()} | {question, known | look, asks()}.
ask(Ref, To, IsIdle, #asks{pending = Pending, known = Known, granted = Granted} = A) ->
    Receiver = receiver(To),
    case Known of
        #{Receiver := no} ->
            {answer, no, A};
        #{Receiver := go} when IsIdle, Receiver =:= To ->
            {answer, go, A#asks{granted = Granted#{Ref => {new, To}}}};
        #{Receiver := go} ->
            {question, known, A#asks{pending = Pending#{Ref => To}}};
        #{} ->
            {question, look, A#asks{pending = Pending#{Ref => To}}}
    end.

receiver(To) when is_tuple(To) -> element(2, To);           % of a request
receiver(To) -> To.

%% The inlet has answered. Returns whose question that was, if its sender is still to be told.
%% `late': the sender has given up. `unknown': it was told at the end of the session.
-spec answer(reference(), trunkline_in_turn:answer(), asks()) ->
          {awaited, to(), asks()} | {late | unknown, asks()}.
answer(Ref, Answer, #asks{pending = Pending} = A) ->
    case maps:take(Ref, Pending) of
        {{late, _}, Pending1} ->
            {late, A#asks{pending = Pending1}};
        {To, Pending1} ->
            {awaited, To, answered(Answer, Ref, To, A#asks{pending = Pending1})};
        error ->
            {unknown, A}
    end.

answered(nobody, _, _, A) ->
    A;
answered(no, _, To, A) ->
    know(To, no, A);
answered(_, Ref, To, #asks{granted = Granted} = A) ->
    know(To, go, A#asks{granted = Granted#{Ref => {new, To}}}).

%% Whether that process may be sent to at once.
-spec is_known(pid(), asks()) -> boolean().
is_known(Pid, #asks{known = Known}) -> maps:get(Pid, Known, no) =:= go.

%% It has come out.
-spec know(to(), known(), asks()) -> asks().
know(To, What, #asks{known = Known} = A) ->
    case receiver(To) of
        Pid when is_pid(Pid) -> A#asks{known = Known#{Pid => What}};
        _ -> A
    end.

%% The sender has given up, or could not send. Returns whom its message was for. If no answer has
%% come, the others should not wait as long.
-spec unused(reference(), asks()) -> {to(), asks()} | {none, asks()}.
unused(Ref, #asks{pending = Pending, known = Known, granted = Granted} = A) ->
    case Pending of
        #{Ref := To} ->
            Receiver = receiver(To),
            {To, A#asks{pending = Pending#{Ref := {late, Receiver}},
                        known = Known#{Receiver => no}}};
        #{} ->
            case maps:take(Ref, Granted) of
                {{_, To}, Granted1} -> {To, A#asks{granted = Granted1}};
                error -> {none, A}
            end
    end.

%% The sender has sent. `counted': a tick has counted it as sent. `unknown': it was not
%% granted in this session.
-spec used(reference(), asks()) -> {granted | counted | unknown, asks()}.
used(Ref, #asks{granted = Granted} = A) ->
    case maps:take(Ref, Granted) of
        {{counted, _}, Granted1} -> {counted, A#asks{granted = Granted1}};
        {_, Granted1} -> {granted, A#asks{granted = Granted1}};
        error -> {unknown, A}
    end.

%% Whether a sender may be sending now.
-spec are_granted(asks()) -> boolean().
are_granted(#asks{granted = Granted}) ->
    lists:any(fun({Age, _}) -> Age =/= counted end, maps:values(Granted)).

%% The session has ended: no inlet will answer these.
-spec refuse(asks()) -> {[reference()], asks()}.
refuse(#asks{pending = Pending}) -> {maps:keys(Pending), new()}.

%% To be called once a second. Returns whom those messages were for that have been granted since the
%% last tick but one, and count as sent now.
-spec tick(asks()) -> {[to()], asks()}.
tick(#asks{pending = Pending, granted = Granted} = A) ->
    Stuck = [case To of {late, Receiver} -> Receiver; _ -> receiver(To) end
             || To <- maps:values(Pending)],
    {[To || {old, To} <- maps:values(Granted)],
     A#asks{known = maps:from_list([{Receiver, no} || Receiver <- Stuck]),
            granted = maps:map(fun(_, {new, To}) -> {old, To};
                                  (_, {_, To}) -> {counted, To}
                               end, Granted)}}.
