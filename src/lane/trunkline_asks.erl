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

-export([new/0, ask/4, answer/3, unused/2, used/2, are_granted/1, refuse/1, tick/1]).

-export_type([asks/0]).

-type receiver() :: pid() | atom().
-type known() :: go | no.
-record(asks,
        {pending = #{} :: #{reference() => receiver() | {late, receiver()}},
         known = #{} :: #{receiver() => known()},           % since the last tick
         %% Who was told `go', and has not sent; `counted': is taken for sent.
         granted = #{} :: #{reference() => new | old | counted}}).
-opaque asks() :: #asks{}.

-spec new() -> asks().
new() -> #asks{}.

%% The answer, or the question that the inlet has to answer: `go' means that it need not look at the
%% mailbox.
-spec ask(reference(), receiver(), IsIdle :: boolean(), asks()) ->
          {answer, known(), asks()} | {question, go | look, asks()}.
ask(Ref, To, IsIdle, #asks{pending = Pending, known = Known} = A) ->
    case Known of
        #{To := no} -> {answer, no, A};
        #{To := go} when IsIdle -> {answer, go, grant(go, Ref, A)};
        #{To := go} -> {question, go, A#asks{pending = Pending#{Ref => To}}};
        #{} -> {question, look, A#asks{pending = Pending#{Ref => To}}}
    end.

grant(go, Ref, #asks{granted = Granted} = A) -> A#asks{granted = Granted#{Ref => new}};
grant(no, _, A) -> A.

%% The inlet has answered. Returns whether the sender is still to be told.
-spec answer(reference(), known(), asks()) -> {boolean(), asks()}.
answer(Ref, Answer, #asks{pending = Pending, known = Known} = A) ->
    case maps:take(Ref, Pending) of
        {{late, _}, Pending1} ->
            {false, A#asks{pending = Pending1}};
        {To, Pending1} ->
            Known1 = case is_pid(To) of
                         true -> Known#{To => Answer};
                         false -> Known
                     end,
            {true, grant(Answer, Ref, A#asks{pending = Pending1, known = Known1})};
        error ->
            {false, A}
    end.

%% The sender has given up, or could not send. If no answer has come, the others should not wait as
%% long.
-spec unused(reference(), asks()) -> asks().
unused(Ref, #asks{pending = Pending, known = Known, granted = Granted} = A) ->
    case Pending of
        #{Ref := To} -> A#asks{pending = Pending#{Ref := {late, To}}, known = Known#{To => no}};
        #{} -> A#asks{granted = maps:remove(Ref, Granted)}
    end.

%% The sender has sent. `counted': a tick has counted it as sent. `unknown': it was not
%% granted in this session.
-spec used(reference(), asks()) -> {granted | counted | unknown, asks()}.
used(Ref, #asks{granted = Granted} = A) ->
    case maps:take(Ref, Granted) of
        {counted, Granted1} -> {counted, A#asks{granted = Granted1}};
        {_, Granted1} -> {granted, A#asks{granted = Granted1}};
        error -> {unknown, A}
    end.

%% Whether a sender may be sending now.
-spec are_granted(asks()) -> boolean().
are_granted(#asks{granted = Granted}) ->
    lists:any(fun(Age) -> Age =/= counted end, maps:values(Granted)).

%% The session has ended: no inlet will answer these.
-spec refuse(asks()) -> {[reference()], asks()}.
refuse(#asks{pending = Pending}) -> {maps:keys(Pending), new()}.

%% To be called once a second. Returns how many have been granted since the last tick but one, and
%% count as sent now.
-spec tick(asks()) -> {non_neg_integer(), asks()}.
tick(#asks{pending = Pending, granted = Granted} = A) ->
    Stuck = [case To of {late, Receiver} -> Receiver; _ -> To end || To <- maps:values(Pending)],
    {length([old || old <- maps:values(Granted)]),
     A#asks{known = maps:from_list([{To, no} || To <- Stuck]),
            granted = maps:map(fun(_, new) -> old; (_, _) -> counted end, Granted)}}.
