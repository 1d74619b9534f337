%% Which receivers of a lane's messages have their mailbox on the heap.
%%
%% While little comes to a lane, its processes cost a short message more than batches save. So a
%% sender that meets an empty lane then sends by plain distribution (trunkline_in_turn). It may, if
%% the receiver's mailbox is on the heap: see trunkline_opener. The lane finds that out, and senders
%% read it from a table. So no sender waits for an answer.
%%
%%     sender              lane                      inlet         receiver
%%       | -- message ----> | ══ message ═══════════> | -----------> |
%%       |                  |   the eighth one to it  |              |
%%       |                  | ══ turn ══════════════> |              |
%%       |                  | <─────────────────── go |              |
%%       |     on the heap <|                         |              |
%%       | ───────────────────── message, by `!' ──────────────────> |
%%
%% A process may change where its mailbox is. So what the lane knows is two seconds old at most.
%% Once a second it asks again about the receivers that have been sent to, and forgets the others.
%%
%% This module is a part of the lane, which owns the table.
-module(trunkline_mailboxes).
-moduledoc false.

-export([may_receive/2]).
-export([new/0, table/1, seen/2, answer/3, tick/1, is_empty/1, clear/1]).

-export_type([mailboxes/0, table/0, question/0]).

%% The rows of the table are {Receiver, IsUsed}. Senders write the second element.
-define(IS_USED, 2).

-type question() :: reference().

-opaque table() :: ets:tid().
-record(mailboxes,
        {table :: table(),
         %% How many messages to each receiver the lane has seen since the last tick.
         seen = #{} :: #{pid() => pos_integer()},
         pending = #{} :: #{question() => pid()},
         %% Receivers that did not answer within a tick. In this session they are not asked again:
         %% a process at the peer waits for each of them.
         silent = #{} :: #{pid() => []}}).
-opaque mailboxes() :: #mailboxes{}.

%% A receiver of fewer messages in a second is not worth a question.
-define(MANY, 8).

%% --- for senders ------------------------------------------------------------------

%% Whether it is known that the mailbox of this process is on the heap. If so, the calling process
%% means to send to it. (If the lane has ended, so has its table.)
-spec may_receive(pid(), table()) -> boolean().
may_receive(Receiver, Table) ->
    try
        ets:update_element(Table, Receiver, {?IS_USED, true})
    catch
        error:badarg -> false
    end.

%% --- for the lane -----------------------------------------------------------------

-spec new() -> mailboxes().
new() -> #mailboxes{table = ets:new(?MODULE, [public])}.

-spec table(mailboxes()) -> table().
table(#mailboxes{table = Table}) -> Table.

%% A message to that receiver goes by lane. Returns what the inlet should be asked.
-spec seen(pid(), mailboxes()) -> {[{question(), pid()}], mailboxes()}.
seen(Receiver, #mailboxes{seen = Seen} = M) ->
    N = maps:get(Receiver, Seen, 0) + 1,
    M1 = M#mailboxes{seen = Seen#{Receiver => N}},
    case N of
        ?MANY when not is_map_key(Receiver, M#mailboxes.silent) -> ask([Receiver], M1);
        _ -> {[], M1}
    end.

ask(Receivers, #mailboxes{pending = Pending} = M) ->
    Questions = [{make_ref(), Receiver} || Receiver <- Receivers],
    {Questions, M#mailboxes{pending = maps:merge(Pending, maps:from_list(Questions))}}.

%% The answer to a question, or to that of another module.
-spec answer(question(), trunkline_in_turn:answer(), mailboxes()) -> {ok, mailboxes()} | unknown.
answer(Ref, Answer, #mailboxes{table = Table, pending = Pending} = M) ->
    case maps:take(Ref, Pending) of
        {Receiver, Pending1} ->
            true = case Answer of
                       go -> ets:insert(Table, {Receiver, false});
                       _ -> ets:delete(Table, Receiver)
                   end,
            {ok, M#mailboxes{pending = Pending1}};
        error ->
            unknown
    end.

%% To be called once a second. Returns what the inlet should be asked. A receiver about which it has
%% not answered since the last tick is not known any more.
-spec tick(mailboxes()) -> {[{question(), pid()}], mailboxes()}.
tick(#mailboxes{table = Table, pending = Pending, silent = Silent} = M) ->
    Used = [Receiver || {Receiver, true} <- ets:tab2list(Table)] -- maps:values(Pending),
    New = maps:from_list([{Receiver, []} || Receiver <- maps:values(Pending)]),
    M1 = (clear(M))#mailboxes{silent = maps:merge(Silent, New)},
    true = ets:insert(Table, [{Receiver, false} || Receiver <- Used]),
    ask(Used, M1).

%% Whether nothing is known, and no answer can come. Otherwise tick/1 must be called once more: what
%% is known would become too old.
-spec is_empty(mailboxes()) -> boolean().
is_empty(#mailboxes{table = Table, pending = Pending}) ->
    map_size(Pending) =:= 0 andalso ets:info(Table, size) =:= 0.

%% Nothing is known.
-spec clear(mailboxes()) -> mailboxes().
clear(#mailboxes{table = Table} = M) ->
    true = ets:delete_all_objects(Table),
    M#mailboxes{seen = #{}, pending = #{}, silent = #{}}.
