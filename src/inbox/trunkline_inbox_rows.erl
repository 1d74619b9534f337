%% The table of the inboxes that this node's senders know, at this node and at others, and what a
%% sender does with it: it enters the gate of an inbox (trunkline_inbox_gate) before it sends.
%%
%% An inbox has a row for its keeper's pid, and one for each form of its name. Every process reads
%% the table, and trunkline_inboxes writes it. What a sender cannot do alone it leaves to that
%% process: to wait for room, and to have an inbox asked what it holds.
%%
%% A message by lane from a node that does not know the inbox yet is marked as a stranger's when it
%% arrives, so that the keeper sees it.
-module(trunkline_inbox_rows).
-moduledoc false.
-behaviour(trunkline_bounded).

-export([enter/3, cancel/2, is_bounded/1, is_refusing/1, refuses_call/1]).
-export([arrived/2, behind/1]).
-export([new/0, add/1, names/3, remove/2, gate/1, count_again/2]).

-dialyzer({no_improper_lists, [enter_gate/5, arrived/2, arrived_at_each/5, stranger/2]}).

%% The process that writes owns the table.
-define(TABLE, trunkline_inboxes).
-define(INBOXES, trunkline_inboxes).
%% ms
-define(AGAIN, 1).

%% A message whose sender has entered the gate, as it arrives by lane.
-define(CHARGED(Keeper, Source, Charge, Message), [Keeper, '$inbox', Source, Charge | Message]).
-define(IS_CHARGE(Charge), is_integer(Charge), Charge > 0).

-type key() :: trunkline_bounded:key().

-record(row,
        {key :: key(),
         keeper :: pid(),
         gate :: trunkline_inbox_gate:gate(),
         source :: trunkline_share:source(),
         policy :: trunkline_mail:policy()}).

%% --- for senders ------------------------------------------------------------------

-spec enter(key(), term(), infinity | nosuspend) -> trunkline_bounded:entered().
enter(Key, Message, Patience) -> find_and_enter(Key, Message, Patience, new).

find_and_enter(Key, Message, Patience, Ticket) ->
    case find(Key) of
        none -> none;
        Row -> enter_gate(Row, Key, Message, Patience, Ticket)
    end.

enter_gate(#row{gate = Gate, keeper = Keeper, source = Source, policy = Policy}, Key, Message,
           Patience, Ticket) ->
    Charge = trunkline_gate:charge(Message),
    case trunkline_inbox_gate:enter(Charge, Policy, Gate) of
        true ->
            {Keeper, ['$inbox', Source, Charge | Message]};
        false ->
            IsOwn = is_own(Keeper),
            if Patience =:= nosuspend ->
                    ok = watch_full(Keeper, Gate),
                    nosuspend;
               Policy =:= reject ->
                    ok = count_refused(Keeper, Gate),
                    ok = watch_full(Keeper, Gate),
                    refused;
               IsOwn ->
                    %% The owner may always send to itself: only it can make room. (So may a log
                    %% handler in a process of Trunkline, which senders may wait for.)
                    ok = trunkline_inbox_gate:force(Charge, Gate),
                    {Keeper, ['$inbox', Source, Charge | Message]};
               true ->
                    What = {room, Keeper, trunkline_gate:bytes(Charge), Ticket},
                    case trunkline_room:wait({?INBOXES, node()}, What, infinity) of
                        {again, Ticket1} ->
                            find_and_enter(Key, Message, Patience, Ticket1);
                        down ->
                            receive after ?AGAIN -> ok end,
                            find_and_enter(Key, Message, Patience, new)
                    end
            end
    end.

count_refused(Keeper, Gate) ->
    ok = trunkline_inbox_gate:count_refused(Gate),
    case node(Keeper) =:= node() andalso trunkline_own_inboxes:stats(Keeper) of
        none ->
            ok;
        false ->
            case trunkline_peers:lookup(node(Keeper)) of
                #{stats := Stats} -> trunkline_stats:add(Stats, peer, inbox_refused, 1);
                none -> ok
            end;
        Stats ->
            trunkline_inbox_stats:refused(Stats)
    end.

%% What is outstanding may be lost. Then no credit comes, which would start the checks.
watch_full(Keeper, Gate) ->
    case trunkline_inbox_gate:is_watched(Gate) of
        true -> ok;
        false -> gen_server:cast(?INBOXES, {watch, Keeper})
    end.

%% Whether the inbox is the calling process's own, or this is a process of Trunkline.
is_own(Keeper) ->
    trunkline_inbox_server:is_behind(Keeper) orelse get({trunkline_inbox, Keeper}) =/= undefined
        orelse trunkline_process:is_own().

%% Takes back the charge of a message that could not be sent after all.
-spec cancel(Keeper :: pid(), Wrapped :: term()) -> ok.
cancel(Keeper, ['$inbox', Source, Charge | _]) ->
    case lookup(Keeper) of
        #row{gate = Gate, source = Source} -> trunkline_inbox_gate:leave(Charge, Gate);
        _ -> ok
    end.

%% Whether it is an inbox that bounds its senders, so that they have to enter.
-spec is_bounded(key()) -> boolean().
is_bounded(Key) -> find(Key) =/= none.

%% Whether a call should not even be tried.
-spec is_refusing(key()) -> boolean().
is_refusing(Key) -> refusing(Key) =/= none.

%% The same for one that is not tried then, and counts.
-spec refuses_call(key()) -> boolean().
refuses_call(Key) ->
    case refusing(Key) of
        #row{keeper = Keeper, gate = Gate} -> ok = count_refused(Keeper, Gate), true;
        none -> false
    end.

refusing(Key) ->
    case find(Key) of
        #row{policy = reject, gate = Gate, keeper = Keeper} = Row ->
            case trunkline_inbox_gate:is_refusing(Gate) of
                true -> ok = watch_full(Keeper, Gate), Row;
                false -> none
            end;
        _ ->
            none
    end.

%% The row of what a sender sends to. (A name of this node may belong to another process already.)
find(Key) ->
    case lookup(Key) of
        #row{keeper = Keeper} = Row when not is_pid(Key), node(Keeper) =:= node() ->
            case whereis(name(Key)) of
                Keeper -> Row;
                _ -> none
            end;
        Found ->
            Found
    end.

name({Name, _}) -> Name;
name(Name) -> Name.

lookup(Key) ->
    try ets:lookup(?TABLE, Key) of
        [Row] -> Row;
        [] -> none
    catch
        error:badarg -> none               % not running
    end.

%% --- for inlets -----------------------------------------------------------------------

%% Marks each message for an inbox of this node that comes from a node that does not know the inbox.
%% (Calls are always admitted, and the keepers see which node a call comes from.)
-spec arrived(node(), [trunkline_lane:entry()]) -> [trunkline_lane:entry()].
arrived(Node, [?CHARGED(Keeper, Source, Charge, _), ?CHARGED(Keeper, Source, _, _) | _] = Entries)
  when is_pid(Keeper), ?IS_CHARGE(Charge) ->
    case is_known(Source) andalso is_keeper(Keeper) of
        true -> run(Keeper, Source, Entries, 0, [], Node);
        false -> [hd(Entries) | arrived(Node, tl(Entries))]
    end;
arrived(Node, [[_, '$inbox' | _] = Entry | Entries]) ->
    [Entry | arrived(Node, Entries)];
arrived(Node, [[_ | {'$gen_call', _, _}] = Entry | Entries]) ->
    [Entry | arrived(Node, Entries)];
arrived(Node, [[To | Message] = Entry | Entries]) when is_pid(To); is_atom(To) ->
    [case bounded_here(To) of
         none -> Entry;
         Keeper -> [Keeper | stranger(Node, Message)]
     end | arrived(Node, Entries)];
arrived(Node, [[{each, Addressees} | Encoded] = Entry | Entries]) ->
    case lists:partition(fun(To) -> bounded_here(To) =/= none end, Addressees) of
        {[], _} -> [Entry | arrived(Node, Entries)];
        {Inboxes, Others} -> arrived_at_each(Inboxes, Others, Encoded, arrived(Node, Entries), Node)
    end;
arrived(Node, [Entry | Entries]) ->
    [Entry | arrived(Node, Entries)];
arrived(_, []) ->
    [].

%% Messages one behind the other for the same inbox become one message.
run(Keeper, Source, [?CHARGED(Keeper, Source, Charge, Message) | Entries], Sum, Run, Node)
  when ?IS_CHARGE(Charge) ->
    run(Keeper, Source, Entries, Sum + Charge, [[Charge | Message] | Run], Node);
run(Keeper, Source, Entries, Sum, Run, Node) ->
    [[Keeper, '$inbox_run', Source, Sum | lists:reverse(Run)] | arrived(Node, Entries)].

is_known({Node, Epoch} = Source) when is_atom(Node), is_integer(Epoch) ->
    not trunkline_share:is_stranger(Source);
is_known(_) ->
    false.

is_keeper(Pid) -> trunkline_bounded:may_be(Pid) andalso lookup(Pid) =/= none.

arrived_at_each(Inboxes, Others, Encoded, Entries, Node) ->
    Message = binary_to_term(Encoded),
    arrived(Node, [[To | Message] || To <- Inboxes]) ++ [[{each, Others} | Encoded] | Entries].

bounded_here(To) ->
    case (is_pid(To) orelse is_atom(To)) andalso trunkline_bounded:may_be(To) andalso find(To) of
        #row{keeper = Keeper} -> Keeper;
        _ -> none
    end.

stranger(Node, Message) ->
    ['$inbox', trunkline_share:stranger(Node), trunkline_gate:charge(Message) | Message].

-spec behind(pid()) -> pid().
behind(Pid) -> trunkline_own_inboxes:behind(Pid).

%% --- for trunkline_inboxes ------------------------------------------------------------

%% The table of the calling process. (Its predecessor may have left entries elsewhere.)
-spec new() -> ok.
new() ->
    ?TABLE = ets:new(?TABLE, [named_table, protected, {keypos, #row.key},
                              {read_concurrency, true}]),
    trunkline_bounded:clear(?MODULE).

%% Returns the keys of the new inbox. If two inboxes have the same name it belongs to the newer one.
-spec add(trunkline_own_inboxes:inbox()) -> [key(), ...].
add({Keeper, Name, Policy, Bound}) ->
    Keys = keys(Keeper, Name),
    Gate = trunkline_inbox_gate:new(Bound, Policy),
    ok = insert(Keys, #row{key = Keeper, keeper = Keeper, gate = Gate, policy = Policy,
                           source = source()}),
    Keys.

insert(Keys, Row) ->
    lists:foreach(fun(Key) -> ok = trunkline_bounded:add(Key, ?MODULE) end, Keys),
    true = ets:insert(?TABLE, [Row#row{key = Key} || Key <- Keys]),
    ok.

%% The inbox with these keys has that name now, or none (undefined). Returns its keys from now on.
-spec names([key()], Keeper :: pid(), Name :: atom()) -> [key(), ...].
names(Before, Keeper, Name) ->
    Now = keys(Keeper, Name),
    ok = remove(Before -- Now, Keeper),
    ok = insert(Now -- Before, lookup(Keeper)),
    Now.

%% (A name may belong to another inbox already.)
-spec remove([key()], Keeper :: pid()) -> ok.
remove(Keys, Keeper) ->
    lists:foreach(fun(Key) ->
                          case lookup(Key) of
                              #row{keeper = Keeper} -> true = ets:delete(?TABLE, Key);
                              _ -> true
                          end,
                          ok = trunkline_bounded:remove(Key)
                  end, Keys).

-spec gate(Keeper :: pid()) -> {trunkline_inbox_gate:gate(), trunkline_share:source()} | none.
gate(Keeper) ->
    case lookup(Keeper) of
        #row{gate = Gate, source = Source} -> {Gate, Source};
        none -> none
    end.

%% The inbox with these keys gets another gate, where nothing is outstanding, and another source, so
%% that what comes of the old count does no harm.
-spec count_again([key()], Keeper :: pid()) -> ok.
count_again(Keys, Keeper) ->
    #row{gate = Gate} = lookup(Keeper),
    New = trunkline_inbox_gate:again(Gate),
    Source = source(),
    lists:foreach(fun(Key) ->
                          case lookup(Key) of
                              #row{keeper = Keeper} = Row ->
                                  ets:insert(?TABLE, Row#row{gate = New, source = Source});
                              _ ->
                                  true
                          end
                  end, Keys).

keys(Keeper, Name) -> [Keeper | keys_of(Name, node(Keeper))].

keys_of(undefined, _) -> [];
keys_of(Name, Node) when Node =:= node() -> [Name, {Name, Node}];
keys_of(Name, Node) -> [{Name, Node}].

%% Its epoch is greater than all before it, also those of an earlier incarnation of this node.
source() ->
    Unique = erlang:unique_integer([positive, monotonic]) band 16#ffffffff,
    {node(), (erlang:system_time(second) bsl 32) bor Unique}.
