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
%% inboxes.
%%
%% A node of release 0.5.0 is a guest, too, but knows no visits. It is told in other words what an
%% inbox is ({introduced, Inboxes}) and when it is full ({full, Keeper, Number}), and monitors the
%% inbox. It goes on knowing the inbox when this process ends, or Trunkline stops here. So when it
%% has spoken, or has asked ({introduce, Node}), it is a guest of all inboxes, and then of each that
%% registers again: else it would not hear that one is not full any more. It tells of all inboxes
%% that it has when it is asked, and this node monitors each of them.
%%
%% Who waits for room, what is outstanding, and what killed senders have left is the matter of
%% trunkline_accounts.
-module(trunkline_inboxes).
-moduledoc false.
-behaviour(gen_server).

-export([start_link/0, has_spoken/1]).
-export([enter/3, cancel/2, is_bounded/1, is_refusing/1]).
-export([register/1, register_again/1, take_name_back/2, held/3, met/2, changed/2, senders/1,
         who_knows/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

%% ms until a busy connection is tried again.
-define(LATER, 100).

-type key() :: trunkline_bounded:key().
-type registration() :: trunkline_own_inboxes:registration().

-record(state,
        {accounts = trunkline_accounts:new() :: trunkline_accounts:accounts(),
         guests = trunkline_guests:new() :: trunkline_guests:guests(),
         hosts = trunkline_hosts:new() :: trunkline_hosts:hosts(),
         busy = none :: none | reference()}).              % a timer: a connection was busy

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

%% A keeper registers itself.
-spec register(registration()) -> ok | {error, not_started}.
register(Registration) ->
    try gen_server:call(?MODULE, {register, Registration}, infinity)
    catch
        exit:_ -> {error, not_started}
    end.

%% The same when its server has started, and at the successor of a process that has ended. The
%% keeper does not wait for an answer: it has messages to pass on.
-spec register_again(registration()) -> ok.
register_again(Registration) -> gen_server:cast(?MODULE, {register, Registration}).

%% If the process behind the keeper has ended, and the keeper still has that name, unregisters it.
%% (This process does it for all who want the name, so that none takes it from another.)
-spec take_name_back(atom(), Keeper :: pid()) -> ok.
take_name_back(Name, Keeper) ->
    try gen_server:call(?MODULE, {take_name_back, Name, Keeper}, infinity)
    catch
        exit:_ -> ok
    end.

%% A keeper's answer when it is audited (trunkline_accounts), maybe by another node. A busy
%% connection must not suspend the keeper.
-spec held(pid(), trunkline_share:source(), trunkline_gate:charge()) -> ok.
held(Inboxes, Source, Held) ->
    _ = erlang:send(Inboxes, {held, self(), Source, Held}, [noconnect, nosuspend]),
    ok.

%% For a keeper: a node has sent to it that does not know what it is.
-spec met(Keeper :: pid(), node()) -> ok.
met(Keeper, Node) -> gen_server:cast(?MODULE, {met, Keeper, Node}).

%% For a keeper: it has no longer its name, or has it again; or, if its senders do not wait, it is
%% full (an odd number), or no longer full.
-spec changed(Keeper :: pid(), Full :: non_neg_integer()) -> ok.
changed(Keeper, Full) -> gen_server:cast(?MODULE, {changed, Keeper, Full}).

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
    maps:foreach(fun(_, #{stats := Stats}) ->
                         trunkline_stats:put(Stats, peer, inbox_waiting, 0)
                 end, trunkline_peers:all()),
    lists:foreach(fun ask_old/1, with_session()),
    {ok, #state{}}.

-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call({register, Registration}, _, S) ->
    {reply, ok, registered(Registration, S)};
handle_call({take_name_back, Name, Keeper}, _, S) ->
    _ = whereis(Name) =:= Keeper andalso trunkline_own_inboxes:is_abandoned(Keeper)
        andalso trunkline_name:give_back({local, Name}),
    {reply, ok, S};
handle_call({waiting, Keeper}, _, #state{accounts = Accounts} = S) ->
    {reply, trunkline_accounts:waiting(Keeper, Accounts), S};
handle_call({who_knows, Keeper}, _, #state{guests = Guests} = S) ->
    {reply, trunkline_guests:who_knows(Keeper, Guests), S};
handle_call(_, _, S) ->
    {reply, {error, badarg}, S}.

-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast({register, Registration}, S) ->
    {noreply, registered_again(Registration, S)};
handle_cast({met, Keeper, Node}, S) ->
    {noreply, flush(met(Keeper, Node, S))};
handle_cast({watch, Keeper}, #state{accounts = Accounts} = S) ->
    {noreply, S#state{accounts = trunkline_accounts:watch(Keeper, Accounts)}};
handle_cast({changed, Keeper, Full}, #state{guests = Guests} = S) ->
    ok = set_full(Keeper, Full),
    {noreply, flush(S#state{guests = trunkline_guests:changed(Keeper, Guests)})};
handle_cast({has_spoken, Node}, S) ->
    ok = ask_old(Node),
    {noreply, introduce(Node, S)};
handle_cast(Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    {noreply, S}.

-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info({wait, Ref, {room, _, _, _} = What}, #state{accounts = Accounts} = S)
  when is_reference(Ref) ->
    {noreply, S#state{accounts = trunkline_accounts:wait(Ref, What, Accounts)}};
handle_info({credit, Keeper, Source, Left, {Bytes, Messages} = Window},
            #state{accounts = Accounts} = S)
  when is_integer(Left), is_integer(Bytes), is_integer(Messages) ->
    {noreply, S#state{accounts = trunkline_accounts:credit(Keeper, Source, Left, Window,
                                                           Accounts)}};
handle_info({held, Keeper, Source, Held}, #state{accounts = Accounts} = S) when is_integer(Held) ->
    {noreply, S#state{accounts = trunkline_accounts:held(Keeper, Source, Held, Accounts)}};
handle_info({full, Keeper, Number}, S) when is_integer(Number) ->
    ok = set_full(Keeper, Number),
    {noreply, S};
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
    {noreply, introduce(Node, S)};
handle_info({introduced, Inboxes}, S) when length(Inboxes) >= 0 ->
    {noreply, lists:foldl(fun introduced/2, S, Inboxes)};
handle_info({'DOWN', Monitor, process, Object, Reason}, S) ->
    {noreply, down(Monitor, Object, Reason, S)};
handle_info({{server_ended, Server}, _, process, _, _}, S) ->
    ok = trunkline_own_inboxes:server_ended(Server),
    {noreply, S};
handle_info({timeout, Timer, busy}, #state{busy = Timer} = S) ->
    {noreply, flush(S#state{busy = none})};
handle_info({timeout, _, {ask_old, Node}}, S) ->
    ok = ask_old(Node),
    {noreply, S};
handle_info({timeout, Timer, Name}, #state{accounts = Accounts} = S)
  when Name =:= audit; Name =:= refresh ->
    {noreply, S#state{accounts = trunkline_accounts:timeout(Timer, Name, Accounts)}};
handle_info(Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    {noreply, S}.

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
            named(Inbox, known(Inbox, S))
    end.

%% Nodes of release 0.5.0 may know this inbox, if another process has told them of it.
registered_again({{Keeper, _, _, _}, _, _, _} = Registration, S) ->
    Old = [Node || trunkline_own_inboxes:inbox(Keeper) =:= none, Node <- with_session(),
                   is_old(Node)],
    flush(lists:foldl(fun(Node, S1) -> met(Keeper, Node, S1) end, registered(Registration, S),
                      Old)).

named({Keeper, Name, Policy, _}, #state{guests = Guests} = S) ->
    case Name =/= undefined andalso is_bounding(Policy) of
        true -> flush(S#state{guests = trunkline_guests:named(Keeper, Name, Guests)});
        false -> S
    end.

%% An inbox whose policy is to drop does not bound its senders.
is_bounding(Policy) -> Policy =:= block orelse Policy =:= reject.

%% (A node without Trunkline, which may be a program in another language, is told nothing.)
met(Keeper, Node, #state{guests = Guests} = S) ->
    case trunkline_peers:has_spoken(Node) andalso trunkline_own_inboxes:inbox(Keeper) of
        {_, Name, _, _} -> S#state{guests = trunkline_guests:met(Node, Keeper, Name, Guests)};
        _ -> S
    end.

%% If that node is of release 0.5.0 it meets all inboxes.
introduce(Node, S) ->
    Keepers = [Keeper || is_old(Node), {{Keeper, _, Policy, _}, _} <- trunkline_own_inboxes:all(),
                         is_bounding(Policy)],
    flush(lists:foldl(fun(Keeper, S1) -> met(Keeper, Node, S1) end, S, Keepers)).

is_old(Node) -> not trunkline_peers:can(Node, v1).

%% The nodes with which there is a session.
with_session() -> [Node || {Node, #{agreement := #{}}} <- maps:to_list(trunkline_peers:all())].

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
    #state{accounts = Accounts} = S1 = known({Keeper, Name, Policy, Bound}, S),
    ok = set_full(Keeper, Full),
    %% (It may have lost its name, or have it again.)
    S1#state{accounts = trunkline_accounts:name(Keeper, Name, Accounts)};
heard_of(_, _, S) ->
    S.

%% The visit to that node, if there is one, is over.
forget(Node, #state{accounts = Accounts, hosts = Hosts} = S) ->
    lists:foldl(fun forget_one/2, S#state{hosts = trunkline_hosts:is_away(Node, Hosts)},
                trunkline_accounts:of_node(Node, Accounts)).

%% If that node is of release 0.5.0 it is asked which inboxes it has. This process must not wait for
%% a busy connection.
ask_old(Node) ->
    case is_old(Node) andalso trunkline_sender:tell(Node, ?MODULE, {introduce, node()}) of
        nosuspend -> _ = erlang:start_timer(?LATER, self(), {ask_old, Node}), ok;
        _ -> ok
    end.

introduced({Keeper, _, _, _} = Inbox, S) when is_pid(Keeper), node(Keeper) =/= node() ->
    case known(Inbox, S) of
        S -> S;
        S1 -> _ = monitor(process, Keeper), S1
    end;
introduced(_, S) ->
    S.

%% --- inboxes of any node --------------------------------------------------------------

known({Keeper, Name, Policy, {Bytes, Messages}} = Inbox, #state{accounts = Accounts} = S)
  when is_pid(Keeper), is_atom(Name), is_integer(Bytes), is_integer(Messages),
       (Policy =:= block orelse Policy =:= reject) ->
    S#state{accounts = trunkline_accounts:add(Inbox, Accounts)};
known(_, S) ->
    S.

set_full(Keeper, Number) ->
    case trunkline_inbox_rows:gate(Keeper) of
        {Gate, _} -> trunkline_inbox_gate:set_full(Number, Gate);
        none -> ok
    end.

forget_one(Keeper, #state{accounts = Accounts} = S) ->
    S#state{accounts = trunkline_accounts:remove(Keeper, Accounts)}.

%% An inbox has ended, or the process of this module at a host or at a guest.
down(Monitor, {?MODULE, _}, _, #state{guests = Guests} = S) ->
    flush(S#state{guests = trunkline_guests:down(Monitor, Guests)});
down(_, Pid, Reason, #state{guests = Guests} = S) when node(Pid) =:= node() ->
    ok = trunkline_own_inboxes:ended(Pid, Reason),
    forget_one(Pid, flush(S#state{guests = trunkline_guests:ended(Pid, Guests)}));
down(Monitor, Pid, Reason, #state{hosts = Hosts} = S) ->
    %% (Of an inbox of release 0.5.0. There may be a new connection already, on which that node has
    %% told of its inboxes.)
    _ = Reason =:= noconnection andalso ask_old(node(Pid)),
    forget_one(Pid, lists:foldl(fun forget/2, S, trunkline_hosts:down(Monitor, Hosts))).

%% --- messages to other nodes ----------------------------------------------------------

%% Sends what is due, as far as the connections take it at once.
flush(#state{guests = Guests, hosts = Hosts} = S) ->
    Guests1 = lists:foldl(fun({Node, News}, G) -> tell_guest(Node, News, G) end, Guests,
                          trunkline_guests:due(Guests)),
    S1 = lists:foldl(fun tell_host/2, S#state{guests = Guests1}, trunkline_hosts:due(Hosts)),
    case {trunkline_guests:due(S1#state.guests), trunkline_hosts:due(S1#state.hosts)} of
        {[], []} -> S1;
        _ when S1#state.busy =:= none ->
            S1#state{busy = erlang:start_timer(?LATER, self(), busy)};
        _ -> S1
    end.

tell_guest(_, [], Guests) ->
    Guests;
tell_guest(Node, [News | Others], Guests) ->
    case tell_all(Node, in_its_words(News, Node)) of
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

tell_all(Node, Messages) ->
    lists:foldl(fun(Message, ok) -> trunkline_sender:tell(Node, ?MODULE, Message);
                   (_, NotSent) -> NotSent
                end, ok, Messages).

in_its_words(News, Node) ->
    case {is_old(Node), News} of
        {false, _} -> [in_full(News)];
        {true, {over, _}} -> [];
        {true, {inboxes, _, Keepers}} ->
            Inboxes = [{Keeper, still(Name, Keeper), Policy, Bound}
                       || {Keeper, Name, Policy, Bound} <-          % those that have not ended
                              lists:map(fun trunkline_own_inboxes:inbox/1, Keepers)],
            [{introduced, Inboxes}
             | [{full, Keeper, number(Keeper)} || {Keeper, _, _, _} <- Inboxes]]
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
