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
%% Who has asked is in trunkline_asks, and what is known of mailboxes in trunkline_mailboxes. This
%% module tells senders their answers. What should travel in the lane it returns, as commands.
-module(trunkline_questions).
-moduledoc false.

-export([new/0, table/1, known/2, are_granted/1, are_none_known/1]).
-export([ask/5, seen/3, answered/3, learned/3, sent/2, not_sent/2, cancel/1]).
-export([tick/2, refuse/1]).

-export_type([questions/0, command/0]).

-record(questions,
        {asks = trunkline_asks:new() :: trunkline_asks:asks(),              % of senders
         mailboxes :: trunkline_mailboxes:mailboxes()}).                    % of receivers
-opaque questions() :: #questions{}.

%% What should travel like a message of that process. (What is in flight before a question should be
%% acknowledged at once: until then it could be overtaken.)
-type command() :: {question, Sender :: pid(), nonempty_improper_list(tuple(), known | look)}
                 | {cancel, Sender :: pid(), [trunkline_command:command()]}.
-type addressee() :: trunkline_in_turn:addressee().

-dialyzer({no_improper_lists, question/4}).

%% The calling process owns the table of mailboxes.
-spec new() -> questions().
new() -> #questions{mailboxes = trunkline_mailboxes:new()}.

-spec table(questions()) -> trunkline_mailboxes:table().
table(#questions{mailboxes = Mailboxes}) -> trunkline_mailboxes:table(Mailboxes).

%% Whether that addressee's mailbox is on the heap. If it has not answered a question in time, it
%% counts as one that is not.
-spec known(addressee(), questions()) -> trunkline_mailboxes:known().
known(To, #questions{asks = Asks, mailboxes = Mailboxes}) ->
    case trunkline_asks:is_late(To, Asks) of
        true -> no;
        false -> trunkline_mailboxes:known(To, Mailboxes)
    end.

%% Whether a sender has been told to send, and may be sending now.
-spec are_granted(questions()) -> boolean().
are_granted(#questions{asks = Asks}) -> trunkline_asks:are_granted(Asks).

%% Otherwise tick/2 must be called once more.
-spec are_none_known(questions()) -> boolean().
are_none_known(#questions{mailboxes = Mailboxes}) ->
    trunkline_mailboxes:are_none_known(Mailboxes).

%% A sender asks for its turn. IsIdle: nothing is in flight in the lane.
-spec ask(reference(), Sender :: pid(), addressee(), IsIdle :: boolean(), questions()) ->
          {[command()], questions()}.
ask(Ref, Sender, To, IsIdle, #questions{asks = Asks} = Q) ->
    case trunkline_asks:ask(Ref, Sender, To, known(To, Q), IsIdle, Asks) of
        {answer, Answer, Asks1} ->
            ok = tell(Ref, Answer),
            {[], Q#questions{asks = Asks1}};
        {question, What, Asks1} ->
            {[question(Sender, To, Ref, What)], Q#questions{asks = Asks1}}
    end.

%% There is something for that receiver, as trunkline_mailboxes:seen/3 counts it.
-spec seen(short | long, Receiver :: pid(), questions()) -> {[command()], questions()}.
seen(Kind, Receiver, #questions{mailboxes = Mailboxes} = Q) ->
    asked(trunkline_mailboxes:seen(Kind, Receiver, Mailboxes), Q).

asked({Questions, Mailboxes}, Q) ->
    {[question(self(), Receiver, Ref, look) || {Ref, Receiver} <- Questions],
     Q#questions{mailboxes = Mailboxes}}.

question(Sender, To, Ref, What) -> {question, Sender, [{turn, To, Ref, self()} | What]}.

%% The inlet has answered: a question of the lane's own, of a sender, or of an earlier session.
-spec answered(reference(), trunkline_in_turn:answer(), questions()) -> {[command()], questions()}.
answered(Ref, Answer, #questions{mailboxes = Mailboxes} = Q) ->
    case trunkline_mailboxes:answer(Ref, Answer, Mailboxes) of
        {ok, Mailboxes1} -> {[], Q#questions{mailboxes = Mailboxes1}};
        unknown -> answered_sender(Ref, Answer, Q)
    end.

answered_sender(Ref, Answer, #questions{asks = Asks} = Q) ->
    case trunkline_asks:answer(Ref, Answer, Asks) of
        {awaited, To, Learned, Asks1} ->
            {Told, Commands} = case Answer of
                                   {no, _} -> {no, cancel(To)};
                                   _ -> {Answer, []}
                               end,
            ok = tell(Ref, Told),
            {Commands, learned(To, Learned, Q#questions{asks = Asks1})};
        {late, To, Learned, Asks1} ->
            {[], learned(To, Learned, Q#questions{asks = Asks1})};
        unknown ->
            ok = trunkline_in_turn:not_used(Answer),
            {[], Q}
    end.

%% Somebody has looked at that addressee's mailbox. `no': it is not on the heap.
-spec learned(addressee(), go | no | nothing, questions()) -> questions().
learned(To, What, #questions{mailboxes = Mailboxes} = Q) ->
    Q#questions{mailboxes = trunkline_mailboxes:know(To, What, Mailboxes)}.

%% The sender has sent. `unknown': it was told to in an earlier session.
-spec sent(reference(), questions()) -> {granted | unknown, questions()}.
sent(Ref, #questions{asks = Asks} = Q) ->
    {How, Asks1} = trunkline_asks:used(Ref, Asks),
    {How, Q#questions{asks = Asks1}}.

%% The sender has given up, or could not send.
-spec not_sent(reference(), questions()) -> {[command()], questions()}.
not_sent(Ref, #questions{asks = Asks} = Q) ->
    case trunkline_asks:unused(Ref, Asks) of
        {To, Asks1} -> {cancel(To), Q#questions{asks = Asks1}};
        none -> {[], Q}
    end.

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
tick(MayAsk, #questions{asks = Asks, mailboxes = Mailboxes} = Q) ->
    {Killed, GivenUp, Asks1} = trunkline_asks:tick(fun erlang:is_process_alive/1, Asks),
    {Questions, Q1} = asked(case MayAsk of
                                true -> trunkline_mailboxes:tick(Mailboxes);
                                false -> {[], trunkline_mailboxes:clear(Mailboxes)}
                            end, Q#questions{asks = Asks1}),
    {length(Killed), Questions ++ lists:flatmap(fun cancel/1, Killed ++ GivenUp), Q1}.

%% The session has ended: no inlet will answer, and nothing is known.
-spec refuse(questions()) -> questions().
refuse(#questions{asks = Asks, mailboxes = Mailboxes} = Q) ->
    {Refs, Asks1} = trunkline_asks:refuse(Asks),
    lists:foreach(fun(Ref) -> ok = tell(Ref, no) end, Refs),
    Q#questions{asks = Asks1, mailboxes = trunkline_mailboxes:clear(Mailboxes)}.

tell(Ref, Answer) ->
    Ref ! {Ref, Answer},
    ok.
