%% The inboxes that this node's senders know, here and at other nodes, and where they wait
%% for room in one.
%%
%%     sender                     here                              keeper of the inbox
%%       |                         | <── introduced: name, bounds ── |
%%       | enter: a gate of ours   |                                 |
%%       | ── [Source, Charge | Message], by lane or not ──────────> |
%%       | enter: full             | <── credit: left, window ────── |
%%       | ── wait ──────────────> |                                 |
%%       | <───────── try again ── |                                 |
%%
%% Each node has a gate of its own for each inbox, so that a sender waits before it sends,
%% where it is, and nothing waits in a lane. The gate's window is what the keeper grants
%% (trunkline_share). A node learns of another's inboxes when the two meet, and of each new
%% one when it starts.
%%
%% A sender that is killed between the gate and the inbox, or a message that is lost on the
%% way, leaves its charge in the gate. Therefore, while anything is outstanding, the inbox is
%% asked each second what it holds. If for LOST that has never been all of it, the node begins
%% anew, with another gate and another source: what the old one counted is of no consequence.
-module(trunkline_inboxes).
-moduledoc false.
-behaviour(gen_server).

-export([has_spoken/1]).
-export([start_link/0, enter/3, cancel/2, are_there/0, is_bounded/1, is_refusing/1, keeper/1, senders/1]).
-export([register/5, handle/1, tell/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([key/0, patience/0]).

-dialyzer({no_improper_lists, [enter_gate/5]}).

-define(TABLE, ?MODULE).
%% ms between two looks at what is outstanding
-define(AUDIT, 1000).
-define(LOST, 10_000).
-define(AGAIN, 1).
-define(LATER, 100).
-define(SLOTS, 1024).

%% Cells of a gate: the level as trunkline_gate packs it, the window, whether the inbox
%% is full (an odd number), and how many messages have been refused.
-define(LEVEL, 1).
-define(BYTES, 2).
-define(MESSAGES, 3).
-define(FULL, 4).
-define(REFUSED, 5).

-type key() :: pid() | atom() | {atom(), node()}.
-type patience() :: nosuspend | infinity | integer().     % monotonic ms
-type policy() :: trunkline_mail:policy().
-type inbox() :: {Keeper :: pid(), Name :: atom(), policy(), Bound :: trunkline_share:window()}.

-record(row,
        {key :: key(),
         keeper :: pid(),
         gate :: atomics:atomics_ref(),
         source :: trunkline_share:source(),
         policy :: policy()}).
-record(own, {keeper :: pid(), inbox :: inbox(), work :: trunkline_inbox_server:handle(), server :: pid() | none}).

%% What this node's gate for an inbox has seen.
-record(account,
        {keys :: [key()],
         waiters = trunkline_waiters:new() :: trunkline_waiters:waiters(),
         missing = none :: none | integer()}).  % ms: since when the inbox has had less
-record(state, {accounts = #{} :: #{Keeper :: pid() => #account{}}}).

-spec start_link() -> gen_server:start_ret().
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% --- for senders ------------------------------------------------------------------

%% `none': it is not an inbox that bounds its senders: send as ever. Otherwise who gets what,
%% once there is room. `refused': there is none, and the inbox does not want its senders to
%% wait.
-spec enter(key(), term(), patience()) -> none | {pid(), Wrapped :: term()} | refused | nosuspend | timeout.
enter(Key, Message, Patience) ->
    case may_be(Key) of
        false -> none;
        true -> find_and_enter(Key, Message, Patience, new)
    end.

%% Most destinations are no inboxes. That is seen in an array of numbers: how many of the keys
%% that have this hash are. A look at the table itself costs three times as much.
may_be(Key) ->
    case persistent_term:get(?MODULE, none) of
        none -> false;                     % this node has never heard of an inbox
        Filter -> atomics:get(Filter, slot(Key)) > 0
    end.

slot(Key) -> erlang:phash2(Key, ?SLOTS) + 1.

filter() ->
    case persistent_term:get(?MODULE, none) of
        none ->
            Filter = atomics:new(?SLOTS, [{signed, true}]),
            ok = persistent_term:put(?MODULE, Filter),
            Filter;
        Filter ->
            Filter
    end.

find_and_enter(Key, Message, Patience, Ticket) ->
    case lookup(Key) of
        none -> none;
        Row -> enter_gate(Row, Key, Message, Patience, Ticket)
    end.

enter_gate(#row{gate = Gate, keeper = Keeper, source = Source, policy = Policy}, Key, Message, Patience, Ticket) ->
    Charge = trunkline_gate:charge(Message),
    Level = atomics:add_get(Gate, ?LEVEL, Charge) - Charge,
    case is_below(Level, Gate) andalso not (Policy =:= reject andalso is_full(Gate)) of
        true ->
            {Keeper, ['$inbox', Source, Charge | Message]};
        false ->
            atomics:sub(Gate, ?LEVEL, Charge),
            IsOwn = is_own(Keeper),
            if Patience =:= nosuspend -> nosuspend;
               Policy =:= reject -> atomics:add(Gate, ?REFUSED, 1), refused;
               IsOwn ->
                    %% Who else should make room for it?
                    atomics:add(Gate, ?LEVEL, Charge),
                    {Keeper, ['$inbox', Source, Charge | Message]};
               true ->
                    What = {room, Keeper, trunkline_gate:bytes(Charge), Ticket},
                    case trunkline_room:wait(?MODULE, What, Patience) of
                        {again, Ticket1} -> find_and_enter(Key, Message, Patience, Ticket1);
                        timeout -> timeout;
                        down -> receive after ?AGAIN -> find_and_enter(Key, Message, Patience, new) end
                    end
            end
    end.

%% (A level below zero borrows from the bytes: its messages are no number.)
is_below(Level, _) when Level < 0 ->
    true;
is_below(Level, Gate) ->
    trunkline_gate:bytes(Level) < atomics:get(Gate, ?BYTES)
        andalso trunkline_gate:messages(Level) < atomics:get(Gate, ?MESSAGES).

is_full(Gate) -> atomics:get(Gate, ?FULL) band 1 =:= 1.

%% Whether the inbox is the calling process's own.
is_own(Keeper) ->
    trunkline_inbox_server:is_behind(Keeper) orelse get({trunkline_inbox, Keeper}) =/= undefined.

%% It could not be sent after all.
-spec cancel(Keeper :: pid(), Wrapped :: term()) -> ok.
cancel(Keeper, ['$inbox', Source, Charge | _]) ->
    case lookup(Keeper) of
        #row{gate = Gate, source = Source} -> atomics:sub(Gate, ?LEVEL, Charge);
        _ -> ok
    end.

%% Whether this node has ever heard of an inbox.
-spec are_there() -> boolean().
are_there() -> persistent_term:get(?MODULE, none) =/= none.

%% Whether it is an inbox that bounds its senders: they have to enter.
-spec is_bounded(key()) -> boolean().
is_bounded(Key) -> may_be(Key) andalso lookup(Key) =/= none.

%% Whether a call should not even be tried.
-spec is_refusing(key()) -> boolean().
is_refusing(Key) ->
    case may_be(Key) andalso lookup(Key) of
        #row{policy = reject, gate = Gate} ->
            is_full(Gate) orelse not is_below(atomics:get(Gate, ?LEVEL), Gate);
        _ ->
            false
    end.

lookup(Key) ->
    try ets:lookup(?TABLE, Key) of
        [Row] -> Row;
        [] -> none
    catch
        error:badarg -> none               % not running
    end.

%% --- for links ----------------------------------------------------------------------

%% That node runs Trunkline, as is known now.
-spec has_spoken(node()) -> ok.
has_spoken(Node) -> gen_server:cast(?MODULE, {has_spoken, Node}).

%% --- for inboxes ------------------------------------------------------------------

%% By a keeper, of itself and its server, if that is one.
-spec register(Name :: atom(), policy(), Bound :: trunkline_share:window(), Work :: trunkline_inbox_server:handle(),
               Server :: pid() | none) ->
          ok | {error, not_started}.
register(Name, Policy, Bound, Work, Server) ->
    try gen_server:call(?MODULE, {register, {self(), Name, Policy, Bound}, Work, Server}, infinity)
    catch
        exit:{noproc, _} -> {error, not_started}
    end.

%% How the consumer tells the keeper what it has done.
-spec handle(pid()) -> trunkline_inbox_server:handle().
handle(Keeper) ->
    #own{work = Handle} = ets:lookup_element(?TABLE, {own, Keeper}, 3),
    Handle.

%% The keeper of a name or pid of this node.
-spec keeper(key()) -> pid() | none.
keeper(Key) ->
    Pid = case Key of
              Name when is_atom(Name) -> whereis(Name);
              _ -> Key
          end,
    case is_pid(Pid) andalso lookup({own, Pid}) of
        {own, _, _} -> Pid;
        _ -> none
    end.

%% What that inbox has made of this node's senders: who waits for room now, and the number
%% of messages that have been refused.
-spec senders(Keeper :: pid()) -> #{waiting := non_neg_integer(), refused := non_neg_integer()}.
senders(Keeper) ->
    #{waiting => gen_server:call(?MODULE, {waiting, Keeper}),
      refused => case lookup(Keeper) of
                     #row{gate = Gate} -> atomics:get(Gate, ?REFUSED);
                     none -> 0
                 end}.

%% --- the process --------------------------------------------------------------------

-spec init([]) -> {ok, #state{}}.
init([]) ->
    ?TABLE = ets:new(?TABLE, [named_table, protected, {keypos, #row.key}, {read_concurrency, true}]),
    %% (Of the one before, if there was.)
    are_there()
        andalso lists:foreach(fun(Slot) -> atomics:put(filter(), Slot, 0) end, lists:seq(1, ?SLOTS)),
    ok = net_kernel:monitor_nodes(true, [{node_type, all}]),
    lists:foreach(fun(Node) -> tell(Node, {introduce, node()}) end, trunkline_peers:audience()),
    _ = erlang:start_timer(?AUDIT, self(), audit),
    {ok, #state{}}.

-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call({register, Inbox, Work, Server}, _, S) ->
    {reply, ok, own(Inbox, Work, Server, S)};
handle_call({waiting, Keeper}, _, #state{accounts = Accounts} = S) ->
    {reply, case Accounts of
                #{Keeper := #account{waiters = Waiters}} -> trunkline_waiters:size(Waiters);
                #{} -> 0
            end, S};
handle_call(_, _, S) ->
    {reply, {error, badarg}, S}.

-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast({has_spoken, Node}, S) ->
    %% A node that is not hidden has been told when it came.
    case lists:member(Node, nodes(hidden)) of
        true -> tell(Node, {introduce, node()}), introduce(Node);
        false -> ok
    end,
    {noreply, S};
handle_cast(Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    {noreply, S}.

-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info({wait, Ref, {room, Keeper, Bytes, Ticket}}, #state{accounts = Accounts} = S) when is_reference(Ref) ->
    {noreply, case Accounts of
                  #{Keeper := #account{waiters = Waiters} = Account} ->
                      update(Keeper, release(Keeper, Account#account{waiters = trunkline_waiters:add(Ref, Ticket, Bytes, Waiters)}), S);
                  #{} ->
                      ok = trunkline_room:answer(Ref, {again, new}),
                      S
              end};
handle_info({unwait, Ref, {room, Keeper, _, _}}, #state{accounts = Accounts} = S) ->
    {noreply, case Accounts of
                  #{Keeper := #account{waiters = Waiters} = Account} ->
                      update(Keeper, Account#account{waiters = trunkline_waiters:remove(Ref, Waiters)}, S);
                  #{} ->
                      S
              end};
handle_info({credit, Keeper, Source, Left, {Bytes, Messages}}, #state{accounts = Accounts} = S) when is_integer(Left) ->
    {noreply, case lookup(Keeper) of
                  #row{gate = Gate, source = Source} ->
                      #{Keeper := Account} = Accounts,
                      atomics:sub(Gate, ?LEVEL, Left),
                      atomics:put(Gate, ?BYTES, Bytes),
                      atomics:put(Gate, ?MESSAGES, Messages),
                      update(Keeper, release(Keeper, Account), S);
                  _ ->
                      S                        % of an earlier beginning
              end};
handle_info({full, Keeper, Number}, S) when is_integer(Number) ->
    case lookup(Keeper) of
        #row{gate = Gate} -> atomics:put(Gate, ?FULL, max(Number, atomics:get(Gate, ?FULL)));
        none -> ok
    end,
    {noreply, S};
handle_info({register, Inbox, Work, Server}, S) ->
    {noreply, own(Inbox, Work, Server, S)};
handle_info({introduce, Node}, S) when is_atom(Node) ->
    introduce(Node),
    {noreply, S};
handle_info({introduced, Inboxes}, S) when is_list(Inboxes) ->
    {noreply, lists:foldl(fun introduced/2, S, Inboxes)};
handle_info({nodeup, Node, _}, S) ->
    trunkline_peers:is_audience(Node) andalso introduce(Node),
    {noreply, S};
handle_info({'DOWN', _, process, Keeper, Reason}, #state{accounts = Accounts} = S) ->
    %% The next connection may be there already, and what was said on it.
    Reason =:= noconnection andalso tell(node(Keeper), {introduce, node()}),
    Reason =:= killed andalso kill_server(Keeper),
    true = ets:delete(?TABLE, {own, Keeper}),
    {noreply, case maps:take(Keeper, Accounts) of
                  {#account{keys = Keys, waiters = Waiters}, Accounts1} ->
                      lists:foreach(fun(Key) -> forget(Key, Keeper) end, Keys),
                      {Ws, _} = trunkline_waiters:release_all(Waiters),
                      lists:foreach(fun({Ref, _}) -> trunkline_room:answer(Ref, {again, new}) end, Ws),
                      S#state{accounts = Accounts1};
                  error ->
                      S
              end};
handle_info({timeout, _, audit}, #state{accounts = Accounts} = S) ->
    _ = erlang:start_timer(?AUDIT, self(), audit),
    {noreply, S#state{accounts = maps:map(fun look/2, Accounts)}};
handle_info({timeout, _, {tell, Node, What}}, S) when is_atom(Node) ->
    ok = tell(Node, What),
    {noreply, S};
handle_info({held, Keeper, Source, Held}, #state{accounts = Accounts} = S) when is_integer(Held) ->
    {noreply, case lookup(Keeper) of
                  #row{source = Source} = Row ->
                      #{Keeper := Account} = Accounts,
                      update(Keeper, audited(Held, Row, Account), S);
                  _ ->
                      S
              end};
handle_info({nodedown, _, _}, S) ->
    {noreply, S};                            % the monitors of its inboxes tell
handle_info(Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    {noreply, S}.

update(Keeper, Account, #state{accounts = Accounts} = S) -> S#state{accounts = Accounts#{Keeper := Account}}.

own({Keeper, _, _, _} = Inbox, Work, Server, S) ->
    true = ets:insert(?TABLE, {own, {own, Keeper}, #own{keeper = Keeper, inbox = Inbox, work = Work, server = Server}}),
    lists:foreach(fun(Node) -> tell(Node, {introduced, [Inbox]}) end, trunkline_peers:audience()),
    introduced(Inbox, S).

introduce(Node) ->
    case [Inbox || #own{inbox = Inbox} <- ets:select(?TABLE, [{{own, {own, '_'}, '$1'}, [], ['$1']}])] of
        [] -> ok;
        Inboxes -> tell(Node, {introduced, Inboxes})
    end.

%% Its supervisor has killed the keeper, and means the server, which may trap exits.
kill_server(Keeper) ->
    case lookup({own, Keeper}) of
        {own, _, #own{server = Server}} when is_pid(Server) -> exit(Server, kill);
        _ -> true
    end.

%% At once, so that nobody hears of an inbox before; but if the connection is busy, not by
%% itself. (Where nobody has that name it is lost, as it should be.)
-spec tell(node(), term()) -> ok.
tell(Node, What) ->
    case erlang:send({?MODULE, Node}, What, [noconnect, nosuspend]) of
        nosuspend -> tell_later(Node, What);
        _ -> ok
    end.

%% Without a process that could wait it is tried again.
tell_later(Node, What) ->
    Tell = fun() -> erlang:send({?MODULE, Node}, What, [noconnect]) end,
    case trunkline_process:start(fun() -> spawn(Tell) end) of
        {ok, _} -> ok;
        {error, system_limit} -> _ = erlang:start_timer(?LATER, ?MODULE, {tell, Node, What}), ok
    end.

%% An inbox whose policy is to drop bounds nobody. A name that has two belongs to the newer.
introduced({Keeper, Name, Policy, {Bytes, Messages} = Bound}, #state{accounts = Accounts} = S)
  when is_pid(Keeper), is_atom(Name), is_integer(Bytes), is_integer(Messages), not is_map_key(Keeper, Accounts),
       (Policy =:= block orelse Policy =:= reject) ->
    Filter = filter(),
    _ = monitor(process, Keeper),
    Gate = atomics:new(?REFUSED, [{signed, true}]),
    {B, M} = trunkline_share:first(Bound, Policy),
    atomics:put(Gate, ?BYTES, B),
    atomics:put(Gate, ?MESSAGES, M),
    Keys = [Keeper | names(Name, node(Keeper))],
    Source = {node(), epoch()},
    lists:foreach(fun(Key) -> atomics:add(Filter, slot(Key), 1) end, Keys),
    true = ets:insert(?TABLE, [#row{key = Key, keeper = Keeper, gate = Gate, policy = Policy, source = Source} || Key <- Keys]),
    S#state{accounts = Accounts#{Keeper => #account{keys = Keys}}};
introduced({Keeper, _, _, _}, #state{accounts = Accounts} = S)
  when is_pid(Keeper), node(Keeper) =:= node(), not is_map_key(Keeper, Accounts) ->
    _ = monitor(process, Keeper),
    S;
introduced(_, S) ->
    S.

%% Greater than any before, also than those of an earlier life of this node.
epoch() -> (erlang:system_time(second) bsl 32) bor (erlang:unique_integer([positive, monotonic]) band 16#ffffffff).

names(undefined, _) -> [];
names(Name, Node) when Node =:= node() -> [Name, {Name, Node}];
names(Name, Node) -> [{Name, Node}].

%% (A name may belong to another one already.)
forget(Key, Keeper) ->
    atomics:sub(filter(), slot(Key), 1),
    case lookup(Key) of
        #row{keeper = Keeper} -> ets:delete(?TABLE, Key);
        _ -> true
    end.

%% --- what is outstanding --------------------------------------------------------------

%% Whoever was told of room and killed before he took it has left it to the others.
look(Keeper, Account) ->
    #row{gate = Gate, source = Source} = lookup(Keeper),
    case atomics:get(Gate, ?LEVEL) of
        0 ->
            release(Keeper, Account#account{missing = none});
        _ ->
            _ = erlang:send(Keeper, ['$inbox_audit', self(), Source], [noconnect, nosuspend]),
            release(Keeper, Account)
    end.

audited(Held, #row{gate = Gate, keeper = Keeper} = Row, #account{missing = Missing} = Account) ->
    Now = erlang:monotonic_time(millisecond),
    case atomics:get(Gate, ?LEVEL) of
        Held -> Account#account{missing = none};
        _ when Missing =:= none -> Account#account{missing = Now};
        _ when Now - Missing < ?LOST -> Account;
        _ -> release(Keeper, begin_anew(Row, Account))
    end.

%% Whoever has the old row still enters the old gate, once.
begin_anew(#row{gate = Gate, keeper = Keeper}, #account{keys = Keys} = Account) ->
    New = atomics:new(?REFUSED, [{signed, true}]),
    lists:foreach(fun(Cell) -> atomics:put(New, Cell, atomics:get(Gate, Cell)) end, [?BYTES, ?MESSAGES, ?FULL, ?REFUSED]),
    Source = {node(), epoch()},
    lists:foreach(fun(Key) ->
                          case lookup(Key) of
                              #row{keeper = Keeper} = Row -> ets:insert(?TABLE, Row#row{gate = New, source = Source});
                              _ -> true
                          end
                  end, Keys),
    Account#account{missing = none}.

%% Those who fit are told.
release(Keeper, #account{waiters = Waiters} = Account) ->
    case trunkline_waiters:is_empty(Waiters) of
        true ->
            Account;
        false ->
            #row{gate = Gate} = lookup(Keeper),
            Level = max(0, atomics:get(Gate, ?LEVEL)),
            Room = case trunkline_gate:messages(Level) < atomics:get(Gate, ?MESSAGES) of
                       true -> atomics:get(Gate, ?BYTES) - trunkline_gate:bytes(Level);
                       false -> 0
                   end,
            {Released, Waiters1} = trunkline_waiters:release(Room, Waiters),
            lists:foreach(fun({Ref, Ticket}) -> trunkline_room:answer(Ref, {again, Ticket}) end, Released),
            Account#account{waiters = Waiters1}
    end.
