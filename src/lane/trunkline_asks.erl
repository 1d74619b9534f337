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
%% peer stands still. Its sender gives up (late/2). So that there are not ever more of them, the
%% lane asks no further question about that receiver.
%%
%% This module is pure: it decides, and has no side effects.
-module(trunkline_asks).
-moduledoc false.

-export([new/0, ask/4, answer/3, late/2, refuse/1, tick/1]).

-export_type([asks/0]).

-type receiver() :: pid() | atom().
-type known() :: go | no.
-record(asks,
        {pending = #{} :: #{reference() => receiver()},
         known = #{} :: #{receiver() => known()}}).         % since the last tick
-opaque asks() :: #asks{}.

-spec new() -> asks().
new() -> #asks{}.

%% The answer, or the question that the inlet has to answer: `go' means that it need not look at the
%% mailbox.
-spec ask(reference(), receiver(), IsIdle :: boolean(), asks()) ->
          {answer, known()} | {question, go | look, asks()}.
ask(Ref, To, IsIdle, #asks{pending = Pending, known = Known} = A) ->
    case Known of
        #{To := no} -> {answer, no};
        #{To := go} when IsIdle -> {answer, go};
        #{To := go} -> {question, go, A#asks{pending = Pending#{Ref => To}}};
        #{} -> {question, look, A#asks{pending = Pending#{Ref => To}}}
    end.

%% The inlet has answered. Returns whether the sender is still to be told.
-spec answer(reference(), known(), asks()) -> {boolean(), asks()}.
answer(Ref, Answer, #asks{pending = Pending, known = Known} = A) ->
    case maps:take(Ref, Pending) of
        {To, Pending1} when is_pid(To) ->
            {true, A#asks{pending = Pending1, known = Known#{To => Answer}}};
        {_, Pending1} ->
            {true, A#asks{pending = Pending1}};
        error ->
            {false, A}
    end.

%% The sender has given up. The others should not wait as long.
-spec late(reference(), asks()) -> asks().
late(Ref, #asks{pending = Pending, known = Known} = A) ->
    case Pending of
        #{Ref := To} -> A#asks{known = Known#{To => no}};
        #{} -> A
    end.

%% The session has ended: no inlet will answer these.
-spec refuse(asks()) -> {[reference()], asks()}.
refuse(#asks{pending = Pending}) -> {maps:keys(Pending), new()}.

%% To be called once a second.
-spec tick(asks()) -> asks().
tick(#asks{pending = Pending} = A) ->
    A#asks{known = maps:from_list([{To, no} || To <- maps:values(Pending)])}.
