%% Questions that a lane asks its inlet about the receivers of messages that go past the lane: the
%% part of a lane that knows who has asked, and what has been answered.
%%
%% A sender asks for its turn (trunkline_in_turn), or the lane asks by itself whether a mailbox is
%% on the heap (trunkline_mailboxes). Both questions travel in the lane like messages of the sender,
%% or of the lane:
%%
%%     sender                       lane                          inlet         receiver
%%       | -- ask ----------------> | ══ turn, in its place ═════> | -- looks ---> |
%%       | <------------- go, or no | <-------------------- answer |               |
%%       | ──────────────────────────── the message, by `!' ─────────────────────> |
%%       | -- sent_plain, not_sent  |                              |               |
%%       |                          |                              |               |
%%       | -- a short message ----> | ══ turn ═══════════════════> | -- looks ---> |
%%       | reads a table <--------- | <-------------------- answer |               |
%%
%% What a lane is told, and what it does then:
%%
%%     ask           the answer if that is known and nothing is in flight, or a question
%%     answer        tells the sender, if one waits; remembers what it says of the mailbox
%%     sent_plain    the message has gone past the lane, and has to be reported
%%     not_sent      the sender has given up, or could not send: the agent need not wait for the
%%                   request (`cancel')
%%
%% A question may find no answer for a long time, because the receiver does not get to run, the peer
%% stands still, or a large message of the sender is before it. Its sender gives up, or is killed.
%% Then the question is late. So that there are not ever more of them, and no sender waits in vain
%% again and again, none may ask about that receiver until all late answers are there.
%%
%% A sender that was told `go' says so when it has sent. One that is killed meanwhile says nothing,
%% though its message may have gone. The lane takes it as sent at the second tick after its end: by
%% then it would have heard of it.
%%
%% What is known of mailboxes is in trunkline_mailboxes. This module tells senders their answers.
%% What should travel in the lane it returns, as commands.
-module(trunkline_questions).
-moduledoc false.

-export([new/0, table/1, known/2, are_granted/1, are_none_known/1]).
-export([ask/5, seen/3, answered/3, learned/3, sent/2, not_sent/2, cancel/1]).
-export([tick/2, refuse/1]).

-export_type([questions/0, command/0]).

-type addressee() :: trunkline_in_turn:addressee().
-record(questions,
        {%% Those that the inlet has not answered: who asks, about whom, and whether it has to look
         %% at the mailbox. `late': nobody waits for the answer.
         pending = #{} :: #{reference() => {pid() | late, addressee(), known | look}},
         %% How many of these are late about a receiver.
         silent = #{} :: #{trunkline_mailboxes:receiver() => pos_integer()},
         %% Who was told `go', and has not sent; `dead': that was so at the last tick.
         granted = #{} :: #{reference() => {Sender :: pid() | dead, addressee()}},
         mailboxes :: trunkline_mailboxes:mailboxes()}).                    % of receivers
-opaque questions() :: #questions{}.

%% What should travel like a message of that process. (What is in flight before a question should be
%% acknowledged at once: until then it could be overtaken.)
-type command() :: {question, Sender :: pid(), nonempty_improper_list(tuple(), known | look)}
                 | {cancel, Sender :: pid(), [trunkline_command:command()]}.

-dialyzer({no_improper_lists, asked/4}).

%% The calling process owns the table of mailboxes.
-spec new() -> questions().
new() -> #questions{mailboxes = trunkline_mailboxes:new()}.

-spec table(questions()) -> trunkline_mailboxes:table().
table(#questions{mailboxes = Mailboxes}) -> trunkline_mailboxes:table(Mailboxes).

%% Whether that addressee's mailbox is on the heap. While a question about it is late, it counts as
%% one that is not. (A process that waits for an outcome takes it out of its mailbox, wherever it is
%% there.)
-spec known(addressee(), questions()) -> trunkline_mailboxes:known().
known({reply, _}, _) ->
    go;
known(To, #questions{silent = Silent, mailboxes = Mailboxes}) ->
    case is_map_key(trunkline_mailboxes:receiver(To), Silent) of
        true -> no;
        false -> trunkline_mailboxes:known(To, Mailboxes)
    end.

%% Whether a sender has been told to send, and may be sending now.
-spec are_granted(questions()) -> boolean().
are_granted(#questions{granted = Granted}) -> map_size(Granted) > 0.

%% Otherwise tick/2 must be called once more.
-spec are_none_known(questions()) -> boolean().
are_none_known(#questions{mailboxes = Mailboxes}) ->
    trunkline_mailboxes:are_none_known(Mailboxes).

%% A sender asks for its turn. IsIdle: nothing is in flight in the lane. `known' means that the
%% inlet need not look at the mailbox. A request is always a question, because only the inlet can
%% say how its server should see it.
-spec ask(reference(), Sender :: pid(), addressee(), IsIdle :: boolean(), questions()) ->
          {[command()], questions()}.
ask(Ref, Sender, To, IsIdle, Q) ->
    IsAnswered = IsIdle andalso not trunkline_command:is_request(To),
    case known(To, Q) of
        no ->
            ok = tell(Ref, no),
            {[], Q};
        go when IsAnswered ->
            {[], grant(go, Ref, Sender, To, Q)};
        go ->
            asked(Sender, known, [{Ref, To}], Q);
        look ->
            asked(Sender, look, [{Ref, To}], Q)
    end.

grant(Answer, Ref, Sender, To, #questions{granted = Granted} = Q) ->
    ok = tell(Ref, Answer),
    Q#questions{granted = Granted#{Ref => {Sender, To}}}.

asked(Asking, What, Asked, #questions{pending = Pending} = Q) ->
    {[{question, Asking, [{turn, To, Ref, self()} | What]} || {Ref, To} <- Asked],
     Q#questions{pending = lists:foldl(fun({Ref, To}, P) -> P#{Ref => {Asking, To, What}} end,
                                       Pending, Asked)}}.

%% There is something for that receiver, as trunkline_mailboxes:seen/3 counts it.
-spec seen(short | long, Receiver :: pid(), questions()) -> {[command()], questions()}.
seen(Kind, Receiver, #questions{mailboxes = Mailboxes} = Q) ->
    asked_by_lane(trunkline_mailboxes:seen(Kind, Receiver, Mailboxes), Q).

asked_by_lane({Receivers, Mailboxes}, Q) ->
    asked(self(), look, [{make_ref(), Receiver} || Receiver <- Receivers],
          Q#questions{mailboxes = Mailboxes}).

%% The inlet has answered: a question of the lane's own, of a sender, or of an earlier session.
-spec answered(reference(), trunkline_in_turn:answer(), questions()) -> {[command()], questions()}.
answered(Ref, Answer, #questions{pending = Pending, silent = Silent} = Q) ->
    case maps:take(Ref, Pending) of
        {{Asking, Asked, What}, Pending1} ->
            To = served(Asked, Answer),
            Silent1 = case Asking of
                          late -> one_less(trunkline_mailboxes:receiver(Asked), Silent);
                          _ -> Silent
                      end,
            Q1 = Q#questions{pending = Pending1, silent = Silent1},
            tell_sender(Asking, Ref, To, Answer, about(Asking, To, says(Answer, What), Q1));
        error ->
            ok = trunkline_in_turn:not_used(Answer),
            {[], Q}
    end.

one_less(Receiver, Silent) ->
    case Silent of
        #{Receiver := 1} -> maps:remove(Receiver, Silent);
        #{Receiver := N} -> Silent#{Receiver := N - 1}
    end.

about(Lane, Receiver, What, #questions{mailboxes = Mailboxes} = Q) when Lane =:= self() ->
    Q#questions{mailboxes = trunkline_mailboxes:answered(Receiver, What, Mailboxes)};
about(_, To, What, Q) ->
    learned(To, What, Q).

tell_sender(Nobody, _, _, _, Q) when Nobody =:= late; Nobody =:= self() ->
    {[], Q};
tell_sender(_, Ref, To, {no, _}, Q) ->
    ok = tell(Ref, no),
    {cancel(To), Q};
tell_sender(_, Ref, _, noproc, Q) ->
    ok = tell(Ref, noproc),
    {[], Q};
tell_sender(Sender, Ref, To, Go, Q) ->
    {[], grant(Go, Ref, Sender, To, Q)}.

%% (The name of a server is its pid by then.)
served(To, {no, Go}) ->
    served(To, Go);
served(To, {go, Server, _}) ->
    case trunkline_command:is_request(To) of
        true -> setelement(2, To, Server);
        false -> To
    end;
served(To, _) ->
    To.

%% What an answer says of the mailbox. (If that was known, the inlet has not looked.)
says({no, _}, _) -> no;
says(noproc, _) -> nothing;
says(_, look) -> go;
says(_, known) -> nothing.

%% That addressee's mailbox has been looked at. `no': it is not on the heap.
-spec learned(addressee(), go | no | nothing, questions()) -> questions().
learned(To, What, #questions{mailboxes = Mailboxes} = Q) ->
    Q#questions{mailboxes = trunkline_mailboxes:know(To, What, Mailboxes)}.

%% The sender has sent. `unknown': it was told to in an earlier session.
-spec sent(reference(), questions()) -> {granted | unknown, questions()}.
sent(Ref, #questions{granted = Granted} = Q) ->
    case maps:take(Ref, Granted) of
        {_, Granted1} -> {granted, Q#questions{granted = Granted1}};
        error -> {unknown, Q}
    end.

%% The sender has given up, or could not send.
-spec not_sent(reference(), questions()) -> {[command()], questions()}.
not_sent(Ref, #questions{pending = Pending, granted = Granted} = Q) ->
    case {Pending, maps:take(Ref, Granted)} of
        {#{Ref := {Sender, To, _}}, _} when Sender =/= late -> {cancel(To), late(Ref, Q)};
        {_, {{_, To}, Granted1}} -> {cancel(To), Q#questions{granted = Granted1}};
        _ -> {[], Q}
    end.

late(Ref, #questions{pending = Pending, silent = Silent} = Q) ->
    #{Ref := {_, To, What}} = Pending,
    Q#questions{pending = Pending#{Ref := {late, To, What}},
                silent = maps:update_with(trunkline_mailboxes:receiver(To), fun(N) -> N + 1 end, 1,
                                          Silent)}.

%% The agent at the peer need not wait for a request that its caller has not sent, or for a caller
%% that is dead.
-spec cancel(addressee()) -> [command()].
cancel(To) ->
    case trunkline_command:is_request(To) of
        true -> [{cancel, element(3, To), [{cancel, element(2, To), element(4, To)}]}];
        false -> []
    end.

%% To be called once a second. Returns how many senders were killed that count as having sent.
%% MayAsk: there is an inlet that answers. Without one nothing is known any more.
-spec tick(MayAsk :: boolean(), questions()) ->
          {Killed :: non_neg_integer(), [command()], questions()}.
tick(MayAsk, #questions{pending = Pending, granted = Granted, mailboxes = Mailboxes} = Q) ->
    Sent = [To || {dead, To} <- maps:values(Granted)],
    Left = maps:filtermap(fun(_, {dead, _}) -> false;
                             (_, {Sender, To}) -> {true, {or_dead(Sender), To}}
                          end, Granted),
    {Refs, NotSent} = lists:unzip([{Ref, To} || {Ref, {Sender, To, _}} <- maps:to_list(Pending),
                                                Sender =/= late, or_dead(Sender) =:= dead]),
    {Questions, Q1} = asked_by_lane(case MayAsk of
                                        true -> trunkline_mailboxes:tick(Mailboxes);
                                        false -> {[], trunkline_mailboxes:clear(Mailboxes)}
                                    end,
                                    lists:foldl(fun late/2, Q#questions{granted = Left}, Refs)),
    {length(Sent), Questions ++ lists:flatmap(fun cancel/1, Sent ++ NotSent), Q1}.

or_dead(Sender) ->
    case is_process_alive(Sender) of
        true -> Sender;
        false -> dead
    end.

%% The session has ended: no inlet will answer, and nothing is known.
-spec refuse(questions()) -> questions().
refuse(#questions{pending = Pending, mailboxes = Mailboxes}) ->
    _ = [tell(Ref, no) || {Ref, {Sender, _, _}} <- maps:to_list(Pending), Sender =/= late],
    #questions{mailboxes = trunkline_mailboxes:clear(Mailboxes)}.

tell(Ref, Answer) ->
    Ref ! {Ref, Answer},
    ok.
