%% Which receivers of a lane's messages have their mailbox on the heap.
%%
%% Only to these may a message go past the lane (trunkline_in_turn); trunkline_opener says why. The
%% lane finds out which they are, and senders read that from a table. It learns it from openers, and
%% from the inlet's answers to senders that ask for their turn. While little comes to a lane, its
%% processes cost a short message more than batches save. So the lane then asks by itself, and no
%% sender waits for an answer:
%%
%%     sender              lane                      inlet         receiver
%%       | -- message ----> | ══ message ═══════════> | -----------> |
%%       |                  |   the eighth batch to it|              |
%%       |                  | ══ turn ══════════════> |              |
%%       |                  | <─────────────────── go |              |
%%       |     on the heap <|                         |              |
%%       | ───────────────────── message, by `!' ──────────────────> |
%%
%% It also asks about the caller of long replies, if these cannot go past the lane yet.
%%
%% A process may change where its mailbox is. So what the lane knows is two seconds old at most.
%% Once a second it asks again about the receivers that many messages were sent to, and forgets the
%% others. If it has asked by itself, and a mailbox is off the heap or has an inbox, it remembers
%% that for longer. It remembers nothing of a registered name, which another process may have at any
%% time. (If the lane does not get to run, because the connection is busy, it forgets later.)
%%
%% This module is a part of trunkline_questions. The lane owns the table.
-module(trunkline_mailboxes).
-moduledoc false.

-export([may_receive/2]).
-export([new/0, table/1, known/2, receiver/1, know/3, seen/3, answered/3, tick/1, are_none_known/1,
         clear/1]).

-export_type([mailboxes/0, table/0, known/0, receiver/0]).

%% The rows of the table are {Receiver, Sent}. Senders count in it, up to MANY.
-define(SENT, 2).

-type receiver() :: pid() | atom() | reference().
%% `look': the lane does not know.
-type known() :: go | no | look.

-opaque table() :: ets:tid().
-record(mailboxes,
        {table :: table(),
         %% How many batches since the last tick began with a message to each receiver, and how many
         %% long replies could not go past the lane because it is not known.
         seen = #{} :: #{pid() => pos_integer()},
         %% Until the answer comes it does not ask about that receiver again. (One that does not run
         %% may never answer, and a process at the peer waits for it.)
         asked = #{} :: #{pid() => []},
         %% Nor does it for so many ticks about one that is not suited.
         unsuited = #{} :: #{pid() => pos_integer()}}).
-opaque mailboxes() :: #mailboxes{}.

%% A receiver of fewer messages in a second is not worth a question.
-define(MANY, 8).
%% Ticks before it asks again about a receiver that is not suited.
-define(PATIENCE, 10).

%% --- for senders, and for the lane when it sends by itself ------------------------

%% Whether it is known that the mailbox of this process is on the heap. If so, the calling process
%% means to send to it.
-spec may_receive(pid(), table()) -> boolean().
may_receive(Receiver, Table) ->
    %% (To look up the row would copy the pid.)
    try
        ets:member(Table, Receiver)
            andalso (ets:lookup_element(Table, Receiver, ?SENT) =:= ?MANY
                     orelse ets:update_counter(Table, Receiver, {?SENT, 1, ?MANY, ?MANY}) > 0)
    catch
        error:badarg -> false                % the row has been deleted, or the table
    end.

%% --- for the lane -----------------------------------------------------------------

-spec new() -> mailboxes().
new() -> #mailboxes{table = ets:new(?MODULE, [public])}.

-spec table(mailboxes()) -> table().
table(#mailboxes{table = Table}) -> Table.

%% Whether the receiver's mailbox is known to be on the heap.
-spec known(trunkline_in_turn:addressee(), mailboxes()) -> known().
known(To, #mailboxes{table = Table, unsuited = Unsuited}) ->
    Receiver = receiver(To),
    case is_map_key(Receiver, Unsuited) of
        true ->
            no;
        false ->
            case ets:member(Table, Receiver) of
                true -> go;
                false -> look
            end
    end.

%% Whose mailbox it is. (Of a caller only the alias may be known.)
-spec receiver(trunkline_in_turn:addressee()) -> receiver().
receiver({reply, _, Pid}) -> Pid;
receiver(Command) when is_tuple(Command) -> element(2, Command);
receiver(To) -> To.

%% A sender's question about that addressee has been answered. `go' and `no': the peer has looked.
-spec know(trunkline_in_turn:addressee(), go | no | nothing, mailboxes()) -> mailboxes().
know(To, What, M) ->
    Receiver = receiver(To),
    case is_pid(Receiver) of
        true -> looked(Receiver, What, 1, M);
        false -> M
    end.

looked(_, nothing, _, M) ->
    M;
looked(Receiver, go, _, #mailboxes{table = Table, unsuited = Unsuited} = M) ->
    _ = ets:insert_new(Table, {Receiver, 0}),
    M#mailboxes{unsuited = maps:remove(Receiver, Unsuited)};
looked(Receiver, no, Patience, #mailboxes{table = Table, unsuited = Unsuited} = M) ->
    true = ets:delete(Table, Receiver),
    Ticks = max(Patience, maps:get(Receiver, Unsuited, 0)),
    M#mailboxes{unsuited = Unsuited#{Receiver => Ticks}}.

%% A batch begins with a message to that receiver, or there is a long reply for it. Returns about
%% whom the inlet should be asked.
-spec seen(short | long, pid(), mailboxes()) -> {[pid()], mailboxes()}.
seen(Kind, Receiver, #mailboxes{seen = Seen, asked = Asked, unsuited = Unsuited,
                                table = Table} = M) ->
    N = maps:get(Receiver, Seen, 0) + 1,
    M1 = M#mailboxes{seen = Seen#{Receiver => N}},
    case is_worth_a_question(Kind, N) andalso not is_map_key(Receiver, Unsuited)
        andalso not ets:member(Table, Receiver) andalso not is_map_key(Receiver, Asked) of
        true -> ask([Receiver], M1);
        false -> {[], M1}
    end.

%% (Many callers get one reply, and end. Short messages and long replies are counted together.)
is_worth_a_question(short, N) -> N =:= ?MANY;
is_worth_a_question(long, N) -> N > 1.

ask(Receivers, #mailboxes{asked = Asked} = M) ->
    {Receivers, M#mailboxes{asked = maps:merge(Asked, maps:from_keys(Receivers, []))}}.

%% The inlet has answered such a question.
-spec answered(pid(), go | no, mailboxes()) -> mailboxes().
answered(Receiver, What, #mailboxes{asked = Asked} = M) ->
    looked(Receiver, What, ?PATIENCE, M#mailboxes{asked = maps:remove(Receiver, Asked)}).

%% To be called once a second. Returns about whom the inlet should be asked. A receiver about which
%% it has not answered since the last tick is not known any more.
-spec tick(mailboxes()) -> {[pid()], mailboxes()}.
tick(#mailboxes{table = Table, asked = Asked, unsuited = Unsuited} = M) ->
    Used = ets:select(Table, [{{'$1', ?MANY}, [], ['$1']}]) -- maps:keys(Asked),
    Left = maps:filtermap(fun(_, Ticks) -> Ticks > 1 andalso {true, Ticks - 1} end, Unsuited),
    true = ets:delete_all_objects(Table),
    true = ets:insert(Table, [{Receiver, 0} || Receiver <- Used]),
    ask(Used, M#mailboxes{seen = #{}, unsuited = Left}).

%% Otherwise tick/1 must be called once more: what is known would become too old.
-spec are_none_known(mailboxes()) -> boolean().
are_none_known(#mailboxes{table = Table}) -> ets:info(Table, size) =:= 0.

%% Nothing is known.
-spec clear(mailboxes()) -> mailboxes().
clear(#mailboxes{table = Table}) ->
    true = ets:delete_all_objects(Table),
    #mailboxes{table = Table}.
