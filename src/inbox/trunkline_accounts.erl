%% What this node's senders have at each inbox that the node knows, at this node and at others: who
%% of them waits for room there, and what they have outstanding. trunkline_inboxes calls this, and
%% the keepers answer to that process.
%%
%%     here, in trunkline_inboxes                  keeper of the inbox
%%       | <───── credit: what has left, a window ─── |
%%       | ── each second: what do you hold? ───────> |
%%       | <───────────────────────────────── held ── |
%%
%% A sender that is killed between the gate and the inbox leaves its charge in the gate, and so does
%% a message that is lost on the way. Therefore, while anything is outstanding, the inbox is asked
%% every second what it holds. If that has differed from what is outstanding for LOST ms, the node
%% starts to count again, with another gate and another epoch, so that the old count does no harm.
%% (Under dense traffic something is always on its way. Then the node starts again every ten seconds
%% although nothing is lost, and may have one more window outstanding for a moment.) A gate is
%% checked until nothing is outstanding.
%%
%% Senders that wait for an inbox of another node are counted with that peer (trunkline_wait_time),
%% those that wait for one of this node with the inbox.
-module(trunkline_accounts).
-moduledoc false.

-export([new/0, add/2, name/3, remove/2, of_node/2, waiting/2]).
-export([wait/3, watch/2, credit/5, held/4, timeout/3]).

-export_type([accounts/0, timer/0]).

%% ms between two looks at what is outstanding
-define(AUDIT, 1000).
-define(LOST, 10_000).
-define(SILENCE, 5_000).
%% ms from one update of the waiting times to the next.
-define(REFRESH, 100).

-type keeper() :: pid().
-type timer() :: audit | refresh.

-record(account,
        {keys :: [trunkline_bounded:key()],
         waiters = trunkline_waiters:new() :: trunkline_waiters:waiters(),
         %% While senders wait for an inbox of a peer: with the peer's other inboxes.
         wait_time = none :: none | trunkline_wait_time:wait_time(),
         %% ms: since when the inbox has held less than what is outstanding, and when that was last
         %% seen.
         missing = none :: none | {Since :: integer(), Seen :: integer()}}).
-record(accounts,
        {all = #{} :: #{keeper() => #account{}},
         %% Those where something may be outstanding, or senders wait.
         watched = #{} :: #{keeper() => []},
         timers = #{} :: #{timer() => reference()}}).
-opaque accounts() :: #accounts{}.

-spec new() -> accounts().
new() -> #accounts{}.

%% From now on senders have to enter the gate of that inbox, if they do not yet.
-spec add(trunkline_own_inboxes:inbox(), accounts()) -> accounts().
add({Keeper, _, _, _}, #accounts{all = All} = A) when is_map_key(Keeper, All) ->
    A;
add({Keeper, _, _, _} = Inbox, #accounts{all = All} = A) ->
    Added = All#{Keeper => #account{keys = trunkline_inbox_rows:add(Inbox)}},
    trunkline_bounded:is_crowded()
        andalso trunkline_bounded:grow(lists:append([Keys || #account{keys = Keys}
                                                                 <- maps:values(Added)])),
    A#accounts{all = Added}.

%% The inbox has that name now, or none (undefined).
-spec name(keeper(), Name :: atom(), accounts()) -> accounts().
name(Keeper, Name, #accounts{all = All} = A) when is_map_key(Keeper, All) ->
    #{Keeper := #account{keys = Before} = Account} = All,
    Now = trunkline_inbox_rows:names(Before, Keeper, Name),
    A#accounts{all = All#{Keeper := Account#account{keys = Now}}};
name(_, _, A) ->
    A.

%% Its senders do not enter any more, and those that wait try again.
-spec remove(keeper(), accounts()) -> accounts().
remove(Keeper, #accounts{all = All, watched = Watched} = A) ->
    case maps:take(Keeper, All) of
        {#account{keys = Keys, waiters = Waiters} = Account, Others} ->
            ok = trunkline_inbox_rows:remove(Keys, Keeper),
            {Ws, _} = trunkline_waiters:release_all(Waiters),
            lists:foreach(fun({Ref, _}) -> trunkline_room:answer(Ref, {again, new}) end, Ws),
            _ = counted(0, Keeper, Account),
            A#accounts{all = Others, watched = maps:remove(Keeper, Watched)};
        error ->
            A
    end.

%% The known inboxes of that node.
-spec of_node(node(), accounts()) -> [keeper()].
of_node(Node, #accounts{all = All}) -> [Keeper || Keeper <- maps:keys(All), node(Keeper) =:= Node].

%% How many senders wait for that inbox.
-spec waiting(keeper(), accounts()) -> non_neg_integer().
waiting(Keeper, #accounts{all = All}) ->
    case All of
        #{Keeper := #account{waiters = Waiters}} -> trunkline_waiters:size(Waiters);
        #{} -> 0
    end.

%% --- what is outstanding --------------------------------------------------------------

%% A sender has found the gate full, and waits (trunkline_room:wait/3).
-spec wait(Waiter :: reference(), trunkline_room:what(), accounts()) -> accounts().
wait(Ref, {room, Keeper, Bytes, Ticket}, #accounts{all = All} = A) ->
    case All of
        #{Keeper := #account{waiters = Waiters} = Account} ->
            Added = trunkline_waiters:add(Ref, Ticket, Bytes, Waiters),
            watched(Keeper, update(Keeper, release(Keeper, Account#account{waiters = Added}), A));
        #{} ->
            ok = trunkline_room:answer(Ref, {again, new}),
            A
    end.

%% A sender has been refused. If what is outstanding is lost, no credit comes.
-spec watch(keeper(), accounts()) -> accounts().
watch(Keeper, #accounts{all = All} = A) when is_map_key(Keeper, All) -> watched(Keeper, A);
watch(_, A) -> A.

watched(Keeper, #accounts{watched = Watched} = A) when is_map_key(Keeper, Watched) ->
    A;
watched(Keeper, #accounts{watched = Watched} = A) ->
    {Gate, _} = trunkline_inbox_rows:gate(Keeper),
    ok = trunkline_inbox_gate:watch(true, Gate),
    timer(audit, ?AUDIT, A#accounts{watched = Watched#{Keeper => []}}).

%% The keeper says what has left the inbox, and what this node may have outstanding.
-spec credit(keeper(), trunkline_share:source(), Left :: trunkline_gate:charge(),
             trunkline_share:window(), accounts()) -> accounts().
credit(Keeper, Source, Left, Window, #accounts{all = All} = A) ->
    case trunkline_inbox_rows:gate(Keeper) of
        {Gate, Source} ->
            #{Keeper := Account} = All,
            Level = trunkline_inbox_gate:credit(Left, Window, Gate),
            A1 = update(Keeper, release(Keeper, Account), A),
            if Level =:= 0 -> A1;
               true -> watched(Keeper, A1)
            end;
        _ ->
            A                                % of an earlier epoch
    end.

%% The keeper says what it holds.
-spec held(keeper(), trunkline_share:source(), trunkline_gate:charge(), accounts()) -> accounts().
held(Keeper, Source, Held, #accounts{all = All} = A) ->
    case trunkline_inbox_rows:gate(Keeper) of
        {Gate, Source} ->
            #{Keeper := Account} = All,
            update(Keeper, audited(Held, Keeper, Gate, Account), A);
        _ ->
            A
    end.

audited(Held, Keeper, Gate, #account{missing = Missing} = Account) ->
    Now = erlang:monotonic_time(millisecond),
    case trunkline_inbox_gate:level(Gate) of
        Held -> Account#account{missing = none};
        _ -> missing(Now, Missing, Keeper, Account)
    end.

%% After a silence the time begins again: until now, everything may have been on its way.
missing(Now, {Since, Seen}, Keeper, Account) when Now - Seen < ?SILENCE ->
    case Now - Since < ?LOST of
        true ->
            Account#account{missing = {Since, Now}};
        false ->
            ok = trunkline_inbox_rows:count_again(Account#account.keys, Keeper),
            release(Keeper, Account#account{missing = none})
    end;
missing(Now, _, _, Account) ->
    Account#account{missing = {Now, Now}}.

%% Tells the senders for which there is room.
release(Keeper, #account{waiters = Waiters} = Account) ->
    case trunkline_waiters:is_empty(Waiters) of
        true ->
            Account;
        false ->
            {Gate, _} = trunkline_inbox_rows:gate(Keeper),
            {Bytes, Messages} = trunkline_inbox_gate:room(Gate),
            {Released, Waiters1} = trunkline_waiters:release(Bytes, Messages, Waiters),
            ok = tell_of_room(Released),
            Account#account{waiters = Waiters1}
    end.

tell_of_room(Released) ->
    lists:foreach(fun({Ref, Ticket}) -> trunkline_room:answer(Ref, {again, Ticket}) end, Released).

%% --- from time to time ----------------------------------------------------------------

%% Starts a timer, unless it runs.
timer(Name, _, #accounts{timers = Timers} = A) when is_map_key(Name, Timers) ->
    A;
timer(Name, Time, #accounts{timers = Timers} = A) ->
    A#accounts{timers = Timers#{Name => erlang:start_timer(Time, self(), Name)}}.

-spec timeout(reference(), timer(), accounts()) -> accounts().
timeout(Ref, Name, #accounts{timers = Timers} = A) when map_get(Name, Timers) =:= Ref ->
    Stopped = A#accounts{timers = maps:remove(Name, Timers)},
    case Name of
        audit -> audit(Stopped);
        refresh -> refresh(Stopped)
    end;
timeout(_, _, A) ->
    A.

audit(#accounts{watched = Watched} = A) ->
    case lists:foldl(fun look/2, A, maps:keys(Watched)) of
        #accounts{watched = Left} = A1 when map_size(Left) =:= 0 -> A1;
        A1 -> timer(audit, ?AUDIT, A1)
    end.

%% A sender may have been told of room, and killed before it took that room. Then the others get it:
%% all of them, if nothing is outstanding, since many may have been killed.
look(Keeper, #accounts{all = All, watched = Watched} = A) ->
    #{Keeper := #account{waiters = Waiters} = Account} = All,
    {Gate, Source} = trunkline_inbox_rows:gate(Keeper),
    case {trunkline_inbox_gate:level(Gate), trunkline_waiters:is_empty(Waiters)} of
        {0, true} ->
            ok = trunkline_inbox_gate:watch(false, Gate),
            update(Keeper, Account#account{missing = none},
                   A#accounts{watched = maps:remove(Keeper, Watched)});
        {0, false} ->
            {Waiting, None} = trunkline_waiters:release_all(Waiters),
            ok = tell_of_room(Waiting),
            update(Keeper, Account#account{missing = none, waiters = None}, A);
        _ ->
            _ = erlang:send(Keeper, ['$inbox_audit', self(), Source], [noconnect, nosuspend]),
            update(Keeper, release(Keeper, Account), A)
    end.

%% (All inboxes for which senders wait are watched.)
refresh(#accounts{all = All, watched = Watched} = A) ->
    case [Keeper || Keeper <- maps:keys(Watched),
                    #{Keeper := #account{wait_time = Time}} <- [All], Time =/= none] of
        [] -> A;
        Awaited -> timer(refresh, ?REFRESH, lists:foldl(fun refresh/2, A, Awaited))
    end.

refresh(Keeper, #accounts{all = All} = A) ->
    #{Keeper := #account{wait_time = Time} = Account} = All,
    Refreshed = Account#account{wait_time = trunkline_wait_time:refresh(Time)},
    A#accounts{all = All#{Keeper := Refreshed}}.

%% --- how many wait ----------------------------------------------------------------------

update(Keeper, #account{waiters = Waiters} = Account, #accounts{all = All} = A) ->
    #{Keeper := #account{waiters = Before}} = All,
    case {trunkline_waiters:size(Before), trunkline_waiters:size(Waiters)} of
        {Waiting, Waiting} ->
            A#accounts{all = All#{Keeper := Account}};
        {_, Waiting} ->
            Counted = counted(Waiting, Keeper, Account),
            A1 = A#accounts{all = All#{Keeper := Counted}},
            case Counted of
                #account{wait_time = none} -> A1;
                _ -> timer(refresh, ?REFRESH, A1)
            end
    end.

%% So many senders wait for that inbox now.
counted(Waiting, Keeper, Account) when node(Keeper) =:= node() ->
    case trunkline_own_inboxes:stats(Keeper) of
        none -> ok;                          % the inbox has ended
        Stats -> ok = trunkline_inbox_stats:waiting(Stats, Waiting)
    end,
    Account;
counted(0, _, #account{wait_time = none} = Account) ->
    Account;
counted(0, _, #account{wait_time = Time} = Account) ->
    _ = trunkline_wait_time:set(0, Time),
    Account#account{wait_time = none};
counted(Waiting, Keeper, #account{wait_time = none} = Account) ->
    case trunkline_peers:lookup(node(Keeper)) of
        #{stats := Stats} ->
            Time = trunkline_wait_time:new(Stats, peer, {inbox_waiting, inbox_wait_time}),
            Account#account{wait_time = trunkline_wait_time:set(Waiting, Time)};
        none ->
            Account                          % it has just gone
    end;
counted(Waiting, _, #account{wait_time = Time} = Account) ->
    Account#account{wait_time = trunkline_wait_time:set(Waiting, Time)}.
