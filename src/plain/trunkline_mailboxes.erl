%% Which receivers of a lane's messages have their mailbox on the heap.
%%
%% Only to these may a message go past the lane (trunkline_in_turn): see trunkline_opener. The lane
%% finds that out, and senders read it from a table. It learns it from what the inlet answers to a
%% sender that asks for its turn, and from openers. And while little comes to a lane, its processes
%% cost a short message more than batches save. So the lane asks by itself then, and no sender waits
%% for an answer:
%%
%%     sender              lane                      inlet         receiver
%%       | -- message ----> | ══ message ═══════════> | -----------> |
%%       |                  |   the eighth batch to it|              |
%%       |                  | ══ turn ══════════════> |              |
%%       |                  | <─────────────────── go |              |
%%       |     on the heap <|                         |              |
%%       | ───────────────────── message, by `!' ──────────────────> |
%%
%% A process may change where its mailbox is. So what the lane knows is two seconds old at most.
%% Once a second it asks again about the receivers that many messages were sent to, and forgets the
%% others. That a mailbox is not on the heap, or has an inbox, it believes for longer. It remembers
%% nothing of a registered name, which another process may have at any time; only that a question
%% about it has no answer.
%%
%% This module is a part of the lane, which owns the table.
-module(trunkline_mailboxes).
-moduledoc false.

-export([may_receive/2]).
-export([new/0, table/1, known/2, know/3, silent/2, seen/2, answer/3, tick/1, are_none_known/1,
         clear/1]).

-export_type([mailboxes/0, table/0, known/0, question/0]).

%% The rows of the table are {Receiver, Sent}. Senders count in it, up to MANY.
-define(SENT, 2).

-type question() :: reference().
%% `look': the lane does not know.
-type known() :: go | no | look.

-opaque table() :: ets:tid().
-record(mailboxes,
        {table :: table(),
         ticks = 0 :: non_neg_integer(),
         %% How many batches since the last tick began with a message to each receiver.
         seen = #{} :: #{pid() => pos_integer()},
         %% Until the answer comes it does not ask about that receiver again. (One that does not run
         %% may never answer, and a process at the peer waits for it.)
         pending = #{} :: #{question() => pid()},
         %% Nor does it before that tick about one that is not suited.
         unsuited = #{} :: #{pid() | atom() | reference() => Ticks :: pos_integer()}}).
-opaque mailboxes() :: #mailboxes{}.

%% A receiver of fewer messages in a second is not worth a question.
-define(MANY, 8).
%% Ticks before it asks again about a receiver that is not suited.
-define(PATIENCE, 10).

%% --- for senders ------------------------------------------------------------------

%% Whether it is known that the mailbox of this process is on the heap. If so, the calling process
%% means to send to it.
-spec may_receive(pid(), table()) -> boolean().
may_receive(Receiver, Table) ->
    try
        case ets:lookup(Table, Receiver) of
            [{_, ?MANY}] -> true;
            [_] -> ets:update_counter(Table, Receiver, {?SENT, 1, ?MANY, ?MANY}) > 0;
            [] -> false
        end
    catch
        error:badarg -> false                % the row has been deleted, or the table
    end.

%% --- for the lane -----------------------------------------------------------------

-spec new() -> mailboxes().
new() -> #mailboxes{table = ets:new(?MODULE, [public])}.

-spec table(mailboxes()) -> table().
table(#mailboxes{table = Table}) -> Table.

%% Whether the mailbox is on the heap of the process that gets what is sent so. (One that waits for
%% an outcome does not care for the place of it in its mailbox.)
-spec known(trunkline_in_turn:addressee(), mailboxes()) -> known().
known({reply, _}, _) ->
    go;
known(To, #mailboxes{table = Table, unsuited = Unsuited}) ->
    Receiver = receiver(To),
    case Unsuited of
        #{Receiver := _} ->
            no;
        #{} ->
            case is_pid(Receiver) andalso may_receive(Receiver, Table) of
                true -> go;
                false -> look
            end
    end.

receiver({reply, _, Pid}) -> Pid;
receiver(Command) when is_tuple(Command) -> element(2, Command);
receiver(To) -> To.

%% It has come out.
-spec know(trunkline_in_turn:addressee(), go | no, mailboxes()) -> mailboxes().
know(To, What, M) ->
    case receiver(To) of
        Receiver when is_pid(Receiver) -> know_pid(Receiver, What, M);
        _ -> M
    end.

know_pid(Receiver, go, #mailboxes{table = Table, unsuited = Unsuited} = M) ->
    _ = ets:insert_new(Table, {Receiver, 0}),
    M#mailboxes{unsuited = maps:remove(Receiver, Unsuited)};
know_pid(Receiver, no, #mailboxes{table = Table} = M) ->
    true = ets:delete(Table, Receiver),
    not_before(?PATIENCE, Receiver, M).

%% The lane should not ask about it, nor send to it, before so many ticks.
not_before(Ticks, Receiver, #mailboxes{unsuited = Unsuited, ticks = Now} = M) ->
    M#mailboxes{unsuited = Unsuited#{Receiver => Now + Ticks}}.

%% Questions about these have no answer. Until the next tick, the lane does not ask again.
-spec silent([trunkline_in_turn:addressee()], mailboxes()) -> mailboxes().
silent(Addressees, M) ->
    lists:foldl(fun(To, M1) -> not_before(1, receiver(To), M1) end, M, Addressees).

%% A batch begins with a message to that receiver. Returns what the inlet should be asked.
-spec seen(pid(), mailboxes()) -> {[{question(), pid()}], mailboxes()}.
seen(Receiver, #mailboxes{seen = Seen, pending = Pending, unsuited = Unsuited,
                         table = Table} = M) ->
    N = maps:get(Receiver, Seen, 0) + 1,
    M1 = M#mailboxes{seen = Seen#{Receiver => N}},
    case N =:= ?MANY andalso not is_map_key(Receiver, Unsuited)
        andalso not ets:member(Table, Receiver)
        andalso not lists:member(Receiver, maps:values(Pending)) of
        true -> ask([Receiver], M1);
        false -> {[], M1}
    end.

ask(Receivers, #mailboxes{pending = Pending} = M) ->
    Questions = [{make_ref(), Receiver} || Receiver <- Receivers],
    {Questions, M#mailboxes{pending = maps:merge(Pending, maps:from_list(Questions))}}.

%% The answer to a question, or to that of another module.
-spec answer(question(), trunkline_in_turn:answer(), mailboxes()) -> {ok, mailboxes()} | unknown.
answer(Ref, Answer, #mailboxes{pending = Pending} = M) ->
    case maps:take(Ref, Pending) of
        {Receiver, Pending1} ->
            What = case Answer of
                       go -> go;
                       _ -> no
                   end,
            {ok, know_pid(Receiver, What, M#mailboxes{pending = Pending1})};
        error ->
            unknown
    end.

%% To be called once a second. Returns what the inlet should be asked. A receiver about which it has
%% not answered since the last tick is not known any more.
-spec tick(mailboxes()) -> {[{question(), pid()}], mailboxes()}.
tick(#mailboxes{table = Table, pending = Pending, unsuited = Unsuited, ticks = Before} = M) ->
    Used = [Receiver || {Receiver, ?MANY} <- ets:tab2list(Table)] -- maps:values(Pending),
    Ticks = Before + 1,
    Unsuited1 = maps:filter(fun(_, Until) -> Until > Ticks end, Unsuited),
    true = ets:delete_all_objects(Table),
    true = ets:insert(Table, [{Receiver, 0} || Receiver <- Used]),
    ask(Used, M#mailboxes{ticks = Ticks, seen = #{}, unsuited = Unsuited1}).

%% Otherwise tick/1 must be called once more: what is known would become too old.
-spec are_none_known(mailboxes()) -> boolean().
are_none_known(#mailboxes{table = Table}) -> ets:info(Table, size) =:= 0.

%% Nothing is known.
-spec clear(mailboxes()) -> mailboxes().
clear(#mailboxes{table = Table}) ->
    true = ets:delete_all_objects(Table),
    #mailboxes{table = Table}.
