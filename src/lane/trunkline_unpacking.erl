%% The large messages of an inlet, from their notices until they are delivered, and what waits
%% behind them.
%%
%% A large message arrives outside the lane, which brings a notice in its place. An opener
%% (trunkline_opener), one process for each large message, decodes it, and delivers it when the
%% inlet says that its turn has come:
%%
%%     lane ══ notice ══> inlet <── arrived, fragments ── trunkline_dock
%%                        │  ^
%%                deliver │  │ delivered, or dead
%%                        v  │
%%                       opener ── the message ──> receiver
%%
%% Messages that must not overtake a large message wait here (trunkline_turns). They are not
%% acknowledged while they wait, so the window bounds them.
%%
%% A registered name is looked up once, as for `!': when the message's turn comes. The turn of a
%% small message comes when no message of the same sender is in its way to the process that has the
%% name. The turn of a large message comes with the message itself. Until then it is not known which
%% process will have the name, so everything that its sender sends behind it waits, whatever the
%% receiver. What is sent behind a small message to a name waits, too, if that message is held up.
%% So what one process sends to another is in order, whether it was sent to a pid or to a name, and
%% whichever process takes the name meanwhile.
%%
%% This module is a part of the inlet, whose process calls it. It starts the openers. What happens
%% goes in, and the steps that the inlet has to take come out, in their order:
%%
%%     inlet                                      this module
%%       | -- notice, fragments, news of openers -> |
%%       | <- turn -------------------------------- |  an opener is told where to deliver
%%       | <- delivered, or broken ---------------- |  an opener has delivered, or has died before
%%       | <- message ----------------------------- |  one that has waited is delivered
%%       | <- done -------------------------------- |  the lane is told of the large message
-module(trunkline_unpacking).
-moduledoc false.

-export([new/2, noticed/3, behind/3, arrived/3, news/2, is_opener/2]).
-export([finish/1, is_done/1, undelivered/1]).

-export_type([unpacking/0, step/0]).

-dialyzer({no_improper_lists, [behind/3]}).

%% ms until an opener is tried again when there was no process left.
-define(AGAIN, 100).

-type serial() :: trunkline_notices:serial().
-type receiver() :: trunkline_turns:receiver().
-type sizes() :: trunkline_opener:sizes().
-type charge() :: trunkline_gate:charge().
-type to() :: trunkline_lane:to().
%% What waits for its turn: a message, or a large message.
-type item() :: {message, charge(), trunkline_lane:entry()} | {large, serial()}.
%% What the inlet gets from openers, and of them. `missing': the lane has the message no more;
%% `lost': it is lost with the session. The timer ends when an opener is to be tried again: to open
%% the message, or in place of one that has died.
-type news() :: {opener, pid(), delivered | missing | lost}
              | trunkline_opener:ended()
              | {timeout, reference(), {opener, {open, trunkline_opener:parts()} | died}}.
-type step() :: {turn, Opener :: pid(), to(), receiver()}
              | {message, charge(), trunkline_lane:entry()}
              | {delivered, to()}
              | {broken, to()}
              | {done, serial(), charge(), sizes()}.

-record(large,
        {sender :: pid(),
         receiver :: receiver(),
         to :: to(),                         % `nobody': it is not delivered any more
         sizes :: sizes(),
         charge :: charge(),
         turn = false :: boolean(),
         %% `lost': with the session. It is not acknowledged, so that the lane counts it.
         opener = none :: none | later | pid() | ended | lost}).
-record(unpacking,
        {lane :: pid(),
         stats :: trunkline_stats:stats(),
         turns = trunkline_turns:new() :: trunkline_turns:turns(item()),
         large = #{} :: #{serial() => #large{}},                   % of which a notice has come
         arrived = #{} :: #{serial() => trunkline_reassembly:parts()},   % before its notice
         openers = #{} :: #{pid() | Later :: reference() => serial()},
         is_finishing = false :: boolean(),
         steps = [] :: [step()]}).           % of this call, the last one first
-opaque unpacking() :: #unpacking{}.

%% Of the calling inlet, for the peer's lane.
-spec new(Lane :: pid(), trunkline_stats:stats()) -> unpacking().
new(Lane, Stats) -> #unpacking{lane = Lane, stats = Stats}.

%% --- what the lane and the dock bring ---------------------------------------------

%% The notice of a large message, with its sizes.
-spec noticed(trunkline_notices:marked(), sizes(), unpacking()) -> {[step()], unpacking()}.
noticed({notice, Charge, Number, Sender, To}, Sizes, #unpacking{large = All, lane = Lane} = U) ->
    Receiver = receiver(To),
    Large = #large{sender = Sender, receiver = Receiver, to = To, sizes = Sizes, charge = Charge},
    {Items, Turns} = trunkline_turns:enter(Sender, Receiver, {time, {large, Number}},
                                           U#unpacking.turns),
    U1 = items(Items, U#unpacking{turns = Turns, large = All#{Number => Large}}),
    steps(case maps:take(Number, U1#unpacking.arrived) of
              {Parts, Arrived} -> open(Number, Parts, U1#unpacking{arrived = Arrived});
              error when U1#unpacking.is_finishing -> has_ended(Number, lost, U1);
              error when element(1, Sizes) =:= term -> open(Number, {term, Lane, Number}, U1);
              error -> U1
          end).

%% A message that comes behind a large one. Its turn is now, with this entry, or later.
-spec behind(trunkline_notices:marked(), Message :: term(), unpacking()) ->
          {now, trunkline_lane:entry(), unpacking()} | {later, unpacking()}.
behind({behind, Charge, Sender, To}, Message, #unpacking{turns = Turns} = U) ->
    {To1, Receiver} = receiver_now(To, Sender, Turns),
    Entry = [To1 | Message],
    case trunkline_turns:enter(Sender, Receiver, {no_time, {message, Charge, Entry}}, Turns) of
        {[], Turns1} -> {later, U#unpacking{turns = Turns1}};
        {[_], Turns1} -> {now, Entry, U#unpacking{turns = Turns1}}
    end.

%% The process that will get the message, if that can be known before its turn.
receiver(To) when is_pid(To) -> To;
receiver(To) when is_reference(To); is_atom(To) -> any;
receiver(Command) ->
    case trunkline_command:receiver(Command) of
        Receiver when is_pid(Receiver) -> Receiver;
        _ -> any
    end.

%% The receiver of a message that takes no time. If nothing is in its way to the process that has
%% the name now, its turn has come, and from here on it is for that process.
receiver_now(Name, Sender, Turns) when is_atom(Name) ->
    case whereis(Name) of
        Pid when is_pid(Pid) ->
            case trunkline_turns:is_free(Sender, Pid, Turns) of
                true -> {Pid, Pid};
                false -> {Name, any}
            end;
        _ ->
            {Name, any}
    end;
receiver_now({turn, Name, _, _} = To, _, _) when is_atom(Name) ->
    %% The sender has the term, which takes time: by then another process may have the name.
    {To, any};
receiver_now(To, Sender, Turns) when is_tuple(To) ->
    case trunkline_command:receiver(To) of
        {name, Name} ->
            case receiver_now(Name, Sender, Turns) of
                {_, any} -> {To, any};
                {Pid, Pid} -> {trunkline_command:for(Pid, To), Pid}
            end;
        _ ->
            {To, receiver(To)}
    end;
receiver_now(To, _, _) ->
    {To, receiver(To)}.

%% All fragments of that message have arrived.
-spec arrived(serial(), trunkline_reassembly:parts(), unpacking()) -> {[step()], unpacking()}.
arrived(Number, Parts, U) -> steps(open(Number, Parts, U)).

%% --- openers ----------------------------------------------------------------------

%% Has it decoded before its turn comes, in parallel with everything else.
open(Number, {term, _, _}, #unpacking{is_finishing = true} = U) ->
    has_ended(Number, lost, U);
open(Number, Parts, #unpacking{large = All, arrived = Arrived, is_finishing = IsFinishing} = U) ->
    case All of
        #{Number := #large{opener = none, sizes = Sizes} = Large} ->
            {Opener, Started} = start_opener(Parts, Sizes, {open, Parts}),
            turn(Number, U#unpacking{large = All#{Number := Large#large{opener = Opener}},
                                     openers = (U#unpacking.openers)#{Started => Number}});
        #{} when IsFinishing; is_map_key(Number, All) ->
            U;
        #{} ->
            U#unpacking{arrived = Arrived#{Number => Parts}}
    end.

%% If there is no process left, that timer ends later.
start_opener(Parts, Sizes, Again) ->
    case trunkline_opener:start(Parts, Sizes) of
        {ok, {Pid, _}} -> {Pid, Pid};
        {error, system_limit} -> {later, erlang:start_timer(?AGAIN, self(), {opener, Again})}
    end.

%% Whether that process has a message that has not been delivered.
-spec is_opener(pid(), unpacking()) -> boolean().
is_opener(Pid, #unpacking{openers = Openers}) -> is_map_key(Pid, Openers).

-spec news(news(), unpacking()) -> {[step()], unpacking()}.
news({timeout, Timer, {opener, Again}}, U) -> news(Again, Timer, U);
news({opener_ended, _, process, Opener, _}, U) -> news(broken, Opener, U);
news({opener, Opener, What}, U) -> news(What, Opener, U).

news(What, Opener, #unpacking{openers = Openers} = U) ->
    case maps:take(Opener, Openers) of
        {Number, Openers1} -> steps(happened(What, Number, U#unpacking{openers = Openers1}));
        error -> {[], U}                     % its message has been delivered, or is lost
    end.

happened(delivered, Number, #unpacking{large = All} = U) ->
    #{Number := #large{to = To, sizes = Sizes}} = All,
    ok = fetched(Sizes, U),
    has_ended(Number, ended, step({delivered, To}, U));
happened(missing, Number, U) ->
    has_ended(Number, ended, U);
happened(lost, Number, U) ->
    has_ended(Number, lost, U);
happened({open, Parts}, Number, #unpacking{large = All} = U) ->
    #{Number := Large} = All,
    open(Number, Parts, U#unpacking{large = All#{Number := Large#large{opener = none}}});
%% The opener has died with its message. A caller that waits for it, or for a reply to it, is told.
%% (A reply that the lane has sent straight to the caller just then comes too late.)
happened(broken, Number, #unpacking{large = All, stats = Stats} = U) ->
    trunkline_stats:add(Stats, peer, large_broken, 1),
    happened(died, Number, case All of
                               #{Number := #large{to = To}} when is_tuple(To) ->
                                   step({broken, To}, U);
                               #{} ->
                                   U
                           end);
%% The opener of a term may have asked the lane to send the term to its receiver. What comes behind
%% waits until it has arrived, or never will. So another opener asks for it, and drops what it gets.
happened(died, Number, #unpacking{openers = Openers, large = All, lane = Lane} = U) ->
    case All of
        #{Number := #large{sizes = {term, _} = Sizes, turn = true} = Large} ->
            {Another, Started} = start_opener({term, Lane, Number}, Sizes, died),
            _ = is_pid(Another) andalso trunkline_opener:deliver(Another, nobody),
            U#unpacking{openers = Openers#{Started => Number},
                        large = All#{Number := Large#large{to = nobody, opener = later}}};
        #{} ->
            has_ended(Number, ended, U)
    end.

fetched({term, Bytes}, #unpacking{stats = Stats}) ->
    trunkline_stats:add(Stats, peer, large_arrived_bytes, Bytes);
fetched(_, _) ->
    ok.

%% `ended': it has been delivered, or never will be.
has_ended(Number, How, #unpacking{large = All} = U) ->
    #{Number := Large} = All,
    turn(Number, U#unpacking{large = All#{Number := Large#large{opener = How}}}).

%% --- turns ------------------------------------------------------------------------

%% First all of the items, and only then what follows from those that are lost already.
items(Items, U) ->
    {Ended, U1} = lists:foldl(fun item/2, {[], U}, Items),
    lists:foldl(fun done/2, U1, lists:reverse(Ended)).

item({large, Number}, {Ended, #unpacking{large = All} = U}) ->
    case All of
        #{Number := #large{opener = Opener}} when Opener =:= ended; Opener =:= lost ->
            {[Number | Ended], U};
        #{Number := Large} ->
            {Ended, turn(Number, U#unpacking{large = All#{Number := Large#large{turn = true}}})}
    end;
item({message, _, _} = Message, {Ended, U}) ->
    {Ended, step(Message, U)}.

%% A large message is delivered when its turn has come and it is here.
turn(Number, #unpacking{large = All} = U) ->
    case All of
        #{Number := #large{turn = true, opener = Opener, to = To, receiver = Receiver}}
          when is_pid(Opener) ->
            step({turn, Opener, To, Receiver}, U);
        #{Number := #large{turn = true, opener = Opener}} when Opener =:= ended; Opener =:= lost ->
            done(Number, U);
        _ ->
            U
    end.

%% It is the turn of those behind it. (They are delivered before the lane is told: a reply of the
%% same sender, which the lane may send by the distribution then, must not overtake them.)
done(Number, #unpacking{large = All} = U) ->
    {#large{sender = Sender, receiver = Receiver} = Large, All1} = maps:take(Number, All),
    {Items, Turns} = trunkline_turns:done(Sender, Receiver, U#unpacking.turns),
    U1 = items(Items, U#unpacking{large = All1, turns = Turns}),
    case Large of
        #large{opener = lost} -> U1;
        #large{charge = Charge, sizes = Sizes} -> step({done, Number, Charge, Sizes}, U1)
    end.

step(Step, #unpacking{steps = Steps} = U) -> U#unpacking{steps = [Step | Steps]}.

steps(#unpacking{steps = Steps} = U) -> {lists:reverse(Steps), U#unpacking{steps = []}}.

%% --- the end of the session --------------------------------------------------------

%% What is not here now will not come any more.
-spec finish(unpacking()) -> {[step()], unpacking()}.
finish(#unpacking{large = All} = U) ->
    steps(lists:foldl(fun without_missing/2, U#unpacking{is_finishing = true, arrived = #{}},
                      lists:sort(maps:keys(All)))).

without_missing(Number, #unpacking{large = All} = U) ->
    case All of
        #{Number := #large{opener = none}} ->
            has_ended(Number, lost, U);
        #{Number := #large{opener = Opener, sizes = {term, _}, turn = false}} when is_pid(Opener) ->
            ok = trunkline_opener:finish(Opener),
            U;
        #{} ->
            U
    end.

%% Whether everything has been delivered that has arrived.
-spec is_done(unpacking()) -> boolean().
is_done(#unpacking{openers = Openers}) -> map_size(Openers) =:= 0.

%% Those whose notices have come, and which have not been delivered.
-spec undelivered(unpacking()) -> [serial()].
undelivered(#unpacking{large = Large}) -> maps:keys(Large).
