%% The process that tells this node's senders of inboxes, at this node and at others
%% (trunkline_inbox_rows). Senders wait here for room in an inbox.
%%
%%     sender                     here                              keeper of the inbox
%%       | the first message ──────────────────────── by lane ───> |
%%       |                         | <── what it is, its bounds ── |  by trunkline_inboxes
%%       | enter: a gate of ours   |                               |  there
%%       | ── [Source, Charge | Message], by lane or not ────────> |
%%       | enter: full             | <── credit: left, window ──── |
%%       | ── wait ──────────────> |                               |
%%       | <───────── try again ── |                               |
%%
%% Each node has a gate of its own for each inbox that it knows (trunkline_inbox_gate). So a sender
%% waits at its own node, before it sends, and its message does not wait in a lane. The gate's
%% window is what the keeper grants (trunkline_share).
%%
%% A node knows its own inboxes, and those to which it has sent. A keeper that gets a message from a
%% node that does not know the inbox yet has the node told (met/2). trunkline_guests at the node of
%% the inboxes, and trunkline_hosts at the node of the senders, decide what the two nodes tell each
%% other, and when they forget it. Each node monitors the other's process of this module, and no
%% inboxes. (A node of release 0.5.0 expects to be told of all inboxes, and tells of all of its own.
%% Then each inbox has a monitor.)
%%
%% A sender that is killed between the gate and the inbox leaves its charge in the gate, and so does
%% a message that is lost on the way. Therefore, while anything is outstanding, the inbox is asked
%% every second what it holds. If that has differed from what is outstanding for LOST ms, the node
%% starts to count again, with another gate and another epoch, so that the old count does no harm.
%% (Under dense traffic something is always on its way. Then the node starts again every ten seconds
%% although nothing is lost, and may have one more window outstanding for a moment.) A gate is
%% checked until nothing is outstanding.
%%
%% Senders that wait for inboxes of another node are counted with that peer (trunkline_wait_time).
-module(trunkline_inboxes).
-moduledoc false.
-behaviour(gen_server).

-export([start_link/0, has_spoken/1]).
-export([enter/3, cancel/2, is_bounded/1, is_refusing/1]).
-export([register/1, register_again/2, take_name_back/2, held/3, met/2, full/2, renamed/1,
         senders/1, who_knows/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

%% ms between two looks at what is outstanding
-define(AUDIT, 1000).
-define(LOST, 10_000).
-define(SILENCE, 5_000).
%% ms until a busy connection is tried again.
-define(LATER, 100).
%% ms from one update of the waiting times to the next.
-define(REFRESH, 100).

-type key() :: trunkline_bounded:key().
-type registration() :: trunkline_own_inboxes:registration().

%% What is known of this node's gate for one inbox.
-record(account,
        {keys :: [key()],
         is_introduced = false :: boolean(),       % by a node of 0.5.0, not in a visit
         waiters = trunkline_waiters:new() :: trunkline_waiters:waiters(),
         %% While senders wait for an inbox of a peer: with the peer's other inboxes.
         wait_time = none :: none | trunkline_wait_time:wait_time(),
         %% ms: since when the inbox has held less than what is outstanding, and when that was last
         %% seen.
         missing = none :: none | {Since :: integer(), Seen :: integer()}}).
-record(state,
        {accounts = #{} :: #{Keeper :: pid() => #account{}},
         watched = #{} :: #{Keeper :: pid() => []},
         timers = #{} :: #{audit | busy | refresh => reference()},
         guests = trunkline_guests:new() :: trunkline_guests:guests(),
         hosts = trunkline_hosts:new() :: trunkline_hosts:hosts(),
         %% Nodes of release 0.5.0.
         old = #{} :: #{node() => []}}).

-spec start_link() -> gen_server:start_ret().
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% That node runs Trunkline, and its capabilities are known now.
-spec has_spoken(node()) -> ok.
has_spoken(Node) -> gen_server:cast(?MODULE, {has_spoken, Node}).

%% --- for senders in code of release 0.5.0, while that is replaced -------------------

-spec enter(key(), term(), infinity | nosuspend) -> trunkline_bounded:entered().
enter(Key, Message, Patience) -> trunkline_inbox_rows:enter(Key, Message, Patience).

-spec cancel(Keeper :: pid(), Wrapped :: term()) -> ok.
cancel(Keeper, Wrapped) -> trunkline_inbox_rows:cancel(Keeper, Wrapped).

-spec is_bounded(key()) -> boolean().
is_bounded(Key) -> trunkline_inbox_rows:is_bounded(Key).

-spec is_refusing(key()) -> boolean().
is_refusing(Key) -> trunkline_inbox_rows:is_refusing(Key).

%% --- for inboxes ------------------------------------------------------------------

%% A keeper registers itself, and its server if there is one.
-spec register(registration()) -> ok | {error, not_started}.
register(Registration) ->
    try gen_server:call(?MODULE, {register, Registration}, infinity)
    catch
        exit:_ -> {error, not_started}
    end.

%% The same, at the successor of a process that has ended. The keeper does not wait for an answer:
%% it has messages to pass on.
-spec register_again(pid(), registration()) -> ok.
register_again(Inboxes, Registration) ->
    Inboxes ! {register, Registration},
    ok.

%% If the process behind the keeper has ended, and the keeper still has that name, unregisters it.
%% (This process does it for all who want the name, so that none takes it from another.)
-spec take_name_back(atom(), Keeper :: pid()) -> ok.
take_name_back(Name, Keeper) ->
    try gen_server:call(?MODULE, {take_name_back, Name, Keeper}, infinity)
    catch
        exit:_ -> ok
    end.

%% A keeper's answer when it is audited (look/2), maybe by another node. A busy connection must not
%% suspend the keeper.
-spec held(pid(), trunkline_share:source(), trunkline_gate:charge()) -> ok.
held(Inboxes, Source, Held) ->
    _ = erlang:send(Inboxes, {held, self(), Source, Held}, [noconnect, nosuspend]),
    ok.

%% For a keeper: a node has sent to it that does not know what it is.
-spec met(Keeper :: pid(), node()) -> ok.
met(Keeper, Node) -> gen_server:cast(?MODULE, {met, Keeper, Node}).

%% For a keeper: it has no longer its name, or has it again.
-spec renamed(Keeper :: pid()) -> ok.
renamed(Keeper) -> gen_server:cast(?MODULE, {renamed, Keeper}).

%% For a keeper whose senders do not wait: it is full (an odd number), or no longer full.
-spec full(Keeper :: pid(), non_neg_integer()) -> ok.
full(Keeper, Number) -> gen_server:cast(?MODULE, {full, Keeper, Number}).

%% How this node's senders fare with that inbox: how many wait for room now, and how many of their
%% messages have been refused.
-spec senders(Keeper :: pid()) -> #{waiting := non_neg_integer(), refused := non_neg_integer()}.
senders(Keeper) ->
    #{waiting => gen_server:call(?MODULE, {waiting, Keeper}),
      refused => case trunkline_inbox_rows:gate(Keeper) of
                     {Gate, _} -> trunkline_inbox_gate:refused(Gate);
                     none -> 0
                 end}.

%% The other nodes that know that inbox of this node.
-spec who_knows(Keeper :: pid()) -> [node()].
who_knows(Keeper) ->
    try gen_server:call(?MODULE, {who_knows, Keeper})
    catch exit:_ -> []                      % it has just ended
    end.

%% --- the process --------------------------------------------------------------------

-spec init([]) -> {ok, #state{}}.
init([]) ->
    ok = trunkline_inbox_rows:new(),
    ok = trunkline_own_inboxes:new(),
    Peers = maps:to_list(trunkline_peers:all()),
    lists:foreach(fun({_, #{stats := Stats}}) ->
                          trunkline_stats:put(Stats, peer, inbox_waiting, 0)
                  end, Peers),
    {ok, lists:foldl(fun has_spoken/2, #state{},
                     [Node || {Node, #{agreement := #{}}} <- Peers])}.

-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call({register, Registration}, _, S) ->
    {reply, ok, registered(Registration, S)};
handle_call({take_name_back, Name, Keeper}, _, S) ->
    _ = whereis(Name) =:= Keeper andalso trunkline_own_inboxes:is_abandoned(Keeper)
        andalso trunkline_name:give_back({local, Name}),
    {reply, ok, S};
handle_call({waiting, Keeper}, _, #state{accounts = Accounts} = S) ->
    {reply, case Accounts of
                #{Keeper := #account{waiters = Waiters}} -> trunkline_waiters:size(Waiters);
                #{} -> 0
            end, S};
handle_call({who_knows, Keeper}, _, #state{guests = Guests} = S) ->
    {reply, trunkline_guests:who_knows(Keeper, Guests), S};
handle_call(_, _, S) ->
    {reply, {error, badarg}, S}.

-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast({met, Keeper, Node}, S) ->
    {noreply, met(Keeper, Node, S)};
handle_cast({watch, Keeper}, #state{accounts = Accounts} = S) when is_map_key(Keeper, Accounts) ->
    {noreply, watch(Keeper, S)};
handle_cast({watch, _}, S) ->
    {noreply, S};
handle_cast({full, Keeper, Number}, S) ->
    {noreply, own_is_full(Keeper, Number, S)};
handle_cast({renamed, Keeper}, #state{guests = Guests} = S) ->
    {noreply, flush(S#state{guests = trunkline_guests:changed(Keeper, Guests)})};
handle_cast({has_spoken, Node}, S) ->
    {noreply, has_spoken(Node, S)};
handle_cast(Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    {noreply, S}.

-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info({wait, Ref, {room, Keeper, Bytes, Ticket}}, #state{accounts = Accounts} = S)
  when is_reference(Ref) ->
    {noreply, case Accounts of
                  #{Keeper := #account{waiters = Waiters} = Account} ->
                      Added = trunkline_waiters:add(Ref, Ticket, Bytes, Waiters),
                      watch(Keeper, update(Keeper,
                                           release(Keeper, Account#account{waiters = Added}), S));
                  #{} ->
                      ok = trunkline_room:answer(Ref, {again, new}),
                      S
              end};
handle_info({credit, Keeper, Source, Left, {Bytes, Messages} = Window}, S)
  when is_integer(Left), is_integer(Bytes), is_integer(Messages) ->
    {noreply, credit(Keeper, Source, Left, Window, S)};
handle_info({full, Keeper, Number}, S) when is_integer(Number) ->
    ok = set_full(Keeper, Number),
    {noreply, S};
handle_info({register, Registration}, S) ->
    {noreply, registered(Registration, S)};
handle_info({inboxes, Visit, Host, Inboxes}, S)
  when is_reference(Visit), is_pid(Host), node(Host) =/= node(),
       length(Inboxes) >= 0 ->                                           % a proper list
    {noreply, heard(Host, Visit, Inboxes, S)};
handle_info({visiting, Visit, Node}, #state{guests = Guests} = S)
  when is_reference(Visit), is_atom(Node) ->
    {noreply, flush(S#state{guests = trunkline_guests:speaks_of(Node, Visit, Guests)})};
handle_info({over, Visit}, #state{hosts = Hosts} = S) ->
    {noreply, lists:foldl(fun forget/2, S, trunkline_hosts:over(Visit, Hosts))};
handle_info({introduce, Node}, S) when is_atom(Node) ->
    {noreply, introduce_all(Node, S)};
handle_info({introduced, Inboxes}, S) when length(Inboxes) >= 0 ->
    {noreply, lists:foldl(fun introduced/2, S, Inboxes)};
handle_info({'DOWN', Monitor, process, Object, Reason}, S) ->
    {noreply, down(Monitor, Object, Reason, S)};
handle_info({timeout, Ref, Name}, #state{timers = Timers} = S) when map_get(Name, Timers) =:= Ref ->
    {noreply, timeout(Name, S#state{timers = maps:remove(Name, Timers)})};
handle_info({timeout, _, {tell, Node, What}}, S) when is_atom(Node) ->
    ok = tell(Node, What),
    {noreply, S};
handle_info({held, Keeper, Source, Held}, #state{accounts = Accounts} = S) when is_integer(Held) ->
    {noreply, case trunkline_inbox_rows:gate(Keeper) of
                  {Gate, Source} ->
                      #{Keeper := Account} = Accounts,
                      update(Keeper, audited(Held, Keeper, Gate, Account), S);
                  _ ->
                      S
              end};
handle_info(Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    {noreply, S}.

timeout(audit, S) -> audit(S);
timeout(busy, S) -> flush(S);
timeout(refresh, S) -> refresh(S).

%% Starts a timer, unless it runs.
timer(Name, _, #state{timers = Timers} = S) when is_map_key(Name, Timers) ->
    S;
timer(Name, Time, #state{timers = Timers} = S) ->
    S#state{timers = Timers#{Name => erlang:start_timer(Time, self(), Name)}}.

update(Keeper, #account{waiters = Waiters} = Account, #state{accounts = Accounts} = S) ->
    #{Keeper := #account{waiters = Before}} = Accounts,
    case {trunkline_waiters:size(Before), trunkline_waiters:size(Waiters)} of
        {Waiting, Waiting} ->
            S#state{accounts = Accounts#{Keeper := Account}};
        {_, Waiting} ->
            Counted = counted(Waiting, Keeper, Account),
            timer(refresh, ?REFRESH, S#state{accounts = Accounts#{Keeper := Counted}})
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

%% (An inbox for which senders wait is watched.)
refresh(#state{accounts = Accounts, watched = Watched} = S) ->
    case maps:filter(fun(_, #account{wait_time = Time}) -> Time =/= none end,
                     maps:with(maps:keys(Watched), Accounts)) of
        None when map_size(None) =:= 0 ->
            S;
        Awaited ->
            Refreshed = maps:map(fun(_, #account{wait_time = Time} = Account) ->
                                         Account#account{
                                           wait_time = trunkline_wait_time:refresh(Time)}
                                 end, Awaited),
            timer(refresh, ?REFRESH, S#state{accounts = maps:merge(Accounts, Refreshed)})
    end.

%% --- inboxes of this node -------------------------------------------------------------

registered({{Keeper, _, _, _} = Inbox, _, Stats, _} = Registration, S) ->
    IsKnown = trunkline_own_inboxes:inbox(Keeper) =/= none,
    ok = trunkline_own_inboxes:add(Registration),
    case IsKnown of
        true ->
            S;                               % its server has started
        false ->
            ok = trunkline_inbox_stats:waiting(Stats, 0),
            _ = monitor(process, Keeper),
            named(Inbox, tell_old({introduced, [Inbox]}, row(Inbox, S)))
    end.

named({Keeper, Name, Policy, _}, #state{guests = Guests} = S) ->
    case Name =/= undefined andalso is_bounding(Policy) of
        true -> flush(S#state{guests = trunkline_guests:named(Keeper, Name, Guests)});
        false -> S
    end.

%% An inbox whose policy is to drop does not bound its senders.
is_bounding(Policy) -> Policy =:= block orelse Policy =:= reject.

met(Keeper, Node, #state{guests = Guests} = S) ->
    case trunkline_own_inboxes:inbox(Keeper) of
        {_, Name, _, _} ->
            case trunkline_peers:can(Node, inboxes) of
                true -> flush(S#state{guests = trunkline_guests:met(Node, Keeper, Name, Guests)});
                false -> S
            end;
        none ->
            S
    end.

own_is_full(Keeper, Number, #state{guests = Guests} = S) ->
    case trunkline_inbox_rows:gate(Keeper) of
        {Gate, _} ->
            ok = trunkline_inbox_gate:set_full(Number, Gate),
            tell_old({full, Keeper, Number},
                     flush(S#state{guests = trunkline_guests:changed(Keeper, Guests)}));
        none ->
            S
    end.

%% --- inboxes of other nodes -----------------------------------------------------------

heard(Host, Visit, Inboxes, #state{hosts = Hosts} = S) ->
    S1 = case trunkline_hosts:heard(Host, Visit, Hosts) of
             same -> S;
             Hosts1 -> (forget(node(Host), S))#state{hosts = Hosts1}
         end,
    flush(lists:foldl(fun(Inbox, S2) -> heard_of(Inbox, node(Host), S2) end, S1, Inboxes)).

heard_of({Keeper, ended}, Node, S) when node(Keeper) =:= Node ->
    forget_one(Keeper, S);
heard_of({Keeper, Name, Policy, Bound, Full}, Node, S)
  when node(Keeper) =:= Node, is_integer(Full) ->
    S1 = row({Keeper, Name, Policy, Bound}, S),
    ok = set_full(Keeper, Full),
    named_now(Keeper, Name, S1);
heard_of(_, _, S) ->
    S.

%% The visit to that node, if there is one, is over.
forget(Node, #state{accounts = Accounts, hosts = Hosts} = S) ->
    lists:foldl(fun forget_one/2, S#state{hosts = trunkline_hosts:is_away(Node, Hosts)},
                [Keeper || {Keeper, #account{is_introduced = false}} <- maps:to_list(Accounts),
                           node(Keeper) =:= Node]).

%% --- rows of inboxes, of any node -----------------------------------------------------

row({Keeper, Name, Policy, {Bytes, Messages}} = Inbox, #state{accounts = Accounts} = S)
  when is_pid(Keeper), is_atom(Name), is_integer(Bytes), is_integer(Messages),
       not is_map_key(Keeper, Accounts), (Policy =:= block orelse Policy =:= reject) ->
    Keys = trunkline_inbox_rows:add(Inbox),
    S1 = S#state{accounts = Accounts#{Keeper => #account{keys = Keys}}},
    trunkline_bounded:is_crowded() andalso trunkline_bounded:grow(all_keys(S1)),
    S1;
row(_, S) ->
    S.

%% The inbox may have lost its name, or have it again.
named_now(Keeper, Name, #state{accounts = Accounts} = S) when is_map_key(Keeper, Accounts) ->
    #{Keeper := #account{keys = Before} = Account} = Accounts,
    Now = trunkline_inbox_rows:names(Before, Keeper, Name),
    S#state{accounts = Accounts#{Keeper := Account#account{keys = Now}}};
named_now(_, _, S) ->
    S.

all_keys(#state{accounts = Accounts}) ->
    lists:append([Keys || #account{keys = Keys} <- maps:values(Accounts)]).

set_full(Keeper, Number) ->
    case trunkline_inbox_rows:gate(Keeper) of
        {Gate, _} -> trunkline_inbox_gate:set_full(Number, Gate);
        none -> ok
    end.

forget_one(Keeper, #state{accounts = Accounts, watched = Watched} = S) ->
    case maps:take(Keeper, Accounts) of
        {#account{keys = Keys, waiters = Waiters} = Account, Accounts1} ->
            ok = trunkline_inbox_rows:remove(Keys, Keeper),
            {Ws, _} = trunkline_waiters:release_all(Waiters),
            lists:foreach(fun({Ref, _}) -> trunkline_room:answer(Ref, {again, new}) end, Ws),
            _ = counted(0, Keeper, Account),
            S#state{accounts = Accounts1, watched = maps:remove(Keeper, Watched)};
        error ->
            S
    end.

%% An inbox has ended, or the process of this module at a host or at a guest.
down(Monitor, {?MODULE, _}, _, #state{guests = Guests} = S) ->
    flush(S#state{guests = trunkline_guests:down(Monitor, Guests)});
down(_, Pid, Reason, #state{guests = Guests} = S) when node(Pid) =:= node() ->
    case trunkline_own_inboxes:server_ended(Pid) of
        true ->
            S;
        false ->
            ok = trunkline_own_inboxes:ended(Pid, Reason),
            forget_one(Pid, flush(S#state{guests = trunkline_guests:ended(Pid, Guests)}))
    end;
down(Monitor, Pid, Reason, #state{accounts = Accounts, hosts = Hosts} = S) ->
    %% There may be a new connection to a node of release 0.5.0 already, on which that node
    %% has introduced its inboxes. So it is asked to introduce them again.
    _ = is_map_key(Pid, Accounts) andalso Reason =:= noconnection
        andalso tell(node(Pid), {introduce, node()}),
    forget_one(Pid, lists:foldl(fun forget/2, S, trunkline_hosts:down(Monitor, Hosts))).

%% --- messages to other nodes ----------------------------------------------------------

%% Sends what is due, as far as the connections take it at once.
flush(#state{guests = Guests, hosts = Hosts} = S) ->
    Guests1 = lists:foldl(fun({Node, News}, G) -> tell_guest(Node, News, G) end, Guests,
                          trunkline_guests:due(Guests)),
    S1 = lists:foldl(fun tell_host/2, S#state{guests = Guests1}, trunkline_hosts:due(Hosts)),
    case {trunkline_guests:due(S1#state.guests), trunkline_hosts:due(S1#state.hosts)} of
        {[], []} -> S1;
        _ -> timer(busy, ?LATER, S1)
    end.

tell_guest(_, [], Guests) ->
    Guests;
tell_guest(Node, [News | Others], Guests) ->
    case trunkline_sender:tell(Node, ?MODULE, in_full(News)) of
        ok ->
            case trunkline_guests:told(Node, News, Guests) of
                {ok, Guests1} ->
                    tell_guest(Node, Others, Guests1);
                {monitor, Guests1} ->
                    %% (A busy connection would suspend this process here, too.)
                    Monitor = trunkline_monitor:watch({?MODULE, Node}),
                    tell_guest(Node, Others, trunkline_guests:monitored(Node, Monitor, Guests1))
            end;
        nosuspend ->
            Guests;
        noconnect ->
            trunkline_guests:is_away(Node, Guests)
    end.

in_full({over, Visit}) -> {over, Visit};
in_full({inboxes, Visit, Keepers}) -> {inboxes, Visit, self(), [in_full(K) || K <- Keepers]};
in_full(Keeper) ->
    case trunkline_own_inboxes:inbox(Keeper) of
        {_, Name, Policy, Bound} ->
            {Keeper, still(Name, Keeper), Policy, Bound, number(Keeper)};
        none ->
            {Keeper, ended}
    end.

%% (Another process may have that name by now.)
still(Name, Keeper) ->
    case Name =/= undefined andalso whereis(Name) of
        Keeper -> Name;
        _ -> undefined
    end.

%% Which change it was that the inbox is full, or no longer full.
number(Keeper) ->
    case trunkline_inbox_rows:gate(Keeper) of
        {Gate, _} -> trunkline_inbox_gate:full(Gate);
        none -> 0                            % it does not bound its senders
    end.

tell_host({Host, Visit}, #state{hosts = Hosts} = S) ->
    case trunkline_sender:tell(node(Host), ?MODULE, {visiting, Visit, node()}) of
        ok ->
            Monitor = trunkline_monitor:watch(Host),
            S#state{hosts = trunkline_hosts:monitored(Host, Monitor, Hosts)};
        nosuspend -> S;
        noconnect -> forget(node(Host), S)
    end.

%% --- nodes of release 0.5.0 -----------------------------------------------------------

%% These nodes introduce all of their inboxes, and monitor all inboxes that are introduced to them.
has_spoken(Node, #state{old = Old} = S) ->
    case trunkline_peers:can(Node, inboxes) of
        true ->
            S#state{old = maps:remove(Node, Old)};
        false ->
            ok = tell(Node, {introduce, node()}),
            introduce_all(Node, S)
    end.

introduce_all(Node, #state{old = Old} = S) ->
    case [Inbox || {Inbox, _} <- trunkline_own_inboxes:all()] of
        [] -> ok;
        Inboxes -> tell(Node, {introduced, Inboxes})
    end,
    S#state{old = Old#{Node => []}}.

introduced({Keeper, _, _, _} = Inbox, #state{accounts = Accounts} = S)
  when is_pid(Keeper), node(Keeper) =/= node(), not is_map_key(Keeper, Accounts) ->
    _ = monitor(process, Keeper),
    #state{accounts = Accounts1} = S1 = row(Inbox, S),
    case Accounts1 of
        #{Keeper := Account} ->
            S1#state{accounts = Accounts1#{Keeper := Account#account{is_introduced = true}}};
        #{} ->
            S1
    end;
introduced(_, S) ->
    S.

tell_old(What, #state{old = Old} = S) ->
    Connected = maps:with(nodes(connected), Old),
    lists:foreach(fun(Node) -> tell(Node, What) end, maps:keys(Connected)),
    S#state{old = Connected}.

%% Sends at once, so that the node cannot learn of an inbox in another way before this. If the
%% connection is busy, and no process can be started that waits, this is tried again later. (If no
%% process there has the name, the message is lost, as it should be.)
tell(Node, What) ->
    case trunkline_process:send_apart({?MODULE, Node}, What) of
        ok -> ok;
        {error, system_limit} -> _ = erlang:start_timer(?LATER, ?MODULE, {tell, Node, What}), ok
    end.

%% --- outstanding messages -------------------------------------------------------------

credit(Keeper, Source, Left, Window, #state{accounts = Accounts} = S) ->
    case trunkline_inbox_rows:gate(Keeper) of
        {Gate, Source} ->
            #{Keeper := Account} = Accounts,
            Level = trunkline_inbox_gate:credit(Left, Window, Gate),
            S1 = update(Keeper, release(Keeper, Account), S),
            if Level =:= 0 -> S1;
               true -> watch(Keeper, S1)
            end;
        _ ->
            S                                % of an earlier epoch
    end.

watch(Keeper, #state{watched = Watched} = S) when is_map_key(Keeper, Watched) ->
    S;
watch(Keeper, #state{watched = Watched} = S) ->
    {Gate, _} = trunkline_inbox_rows:gate(Keeper),
    ok = trunkline_inbox_gate:watch(true, Gate),
    timer(audit, ?AUDIT, S#state{watched = Watched#{Keeper => []}}).

audit(#state{watched = Watched} = S) ->
    case lists:foldl(fun look/2, S, maps:keys(Watched)) of
        #state{watched = Left} = S1 when map_size(Left) =:= 0 -> S1;
        S1 -> timer(audit, ?AUDIT, S1)
    end.

%% A sender may have been told of room, and killed before it took that room. Then the others get it:
%% all of them, if nothing is outstanding, since many may have been killed.
look(Keeper, #state{accounts = Accounts, watched = Watched} = S) ->
    #{Keeper := #account{waiters = Waiters} = Account} = Accounts,
    {Gate, Source} = trunkline_inbox_rows:gate(Keeper),
    case {trunkline_inbox_gate:level(Gate), trunkline_waiters:is_empty(Waiters)} of
        {0, true} ->
            ok = trunkline_inbox_gate:watch(false, Gate),
            update(Keeper, Account#account{missing = none},
                   S#state{watched = maps:remove(Keeper, Watched)});
        {0, false} ->
            {All, None} = trunkline_waiters:release_all(Waiters),
            ok = tell_of_room(All),
            update(Keeper, Account#account{missing = none, waiters = None}, S);
        _ ->
            _ = erlang:send(Keeper, ['$inbox_audit', self(), Source], [noconnect, nosuspend]),
            update(Keeper, release(Keeper, Account), S)
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
