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
%% way, leaves its charge in the gate. While somebody waits, the keeper is asked what it
%% holds; if twice the same is missing, while the level is the same too, it is taken out.
-module(trunkline_inboxes).
-behaviour(gen_server).

-export([start_link/0, enter/3, cancel/2, is_refusing/1, keeper/1, senders/1]).
-export([register/4, work/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([key/0, patience/0]).

-dialyzer({no_improper_lists, [enter_gate/5]}).

-define(TABLE, ?MODULE).
%% ms between two looks at what has been left behind
-define(AUDIT, 1000).
-define(AGAIN, 1).

%% Cells of a gate: the level as trunkline_gate packs it, the window, whether the inbox
%% is full, and how many messages have been refused.
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
%% This node's own are {own, ?OWN(Keeper), inbox(), trunkline_inbox_server:handle()}.
-define(OWN(Keeper), {own, Keeper}).

-record(state,
        {waiters = #{} :: #{Keeper :: pid() => trunkline_waiters:waiters()},
         %% What was missing at the last audit, at which level.
         missing = #{} :: #{Keeper :: pid() => {Level :: integer(), Missing :: integer()}}}).

-spec start_link() -> gen_server:start_ret().
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% --- for senders ------------------------------------------------------------------

%% `none': it is not an inbox that bounds its senders: send as ever. Otherwise who gets what,
%% once there is room. `refused': there is none, and the inbox does not want its senders to
%% wait.
-spec enter(key(), term(), patience()) -> none | {pid(), Wrapped :: term()} | refused | nosuspend | timeout.
enter(Key, Message, Patience) ->
    case persistent_term:get(?MODULE, none) of
        none -> none;
        some -> find_and_enter(Key, Message, Patience, new)
    end.

find_and_enter(Key, Message, Patience, Ticket) ->
    case lookup(Key) of
        none -> none;
        Row -> enter_gate(Row, Key, Message, Patience, Ticket)
    end.

enter_gate(#row{gate = Gate, keeper = Keeper, source = Source, policy = Policy}, Key, Message, Patience, Ticket) ->
    Charge = trunkline_gate:charge(Message),
    Level = atomics:add_get(Gate, ?LEVEL, Charge) - Charge,
    case is_below(Level, Gate) of
        true ->
            {Keeper, ['$inbox', Source, Charge | Message]};
        false ->
            atomics:sub(Gate, ?LEVEL, Charge),
            if Patience =:= nosuspend -> nosuspend;
               Policy =:= reject -> atomics:add(Gate, ?REFUSED, 1), refused;
               true ->
                    What = {room, Keeper, trunkline_gate:bytes(Charge), Ticket},
                    case trunkline_room:wait(?MODULE, What, Patience) of
                        {again, Ticket1} -> find_and_enter(Key, Message, Patience, Ticket1);
                        timeout -> timeout;
                        down -> receive after ?AGAIN -> find_and_enter(Key, Message, Patience, new) end
                    end
            end
    end.

is_below(Level, Gate) ->
    trunkline_gate:bytes(Level) < atomics:get(Gate, ?BYTES)
        andalso trunkline_gate:messages(Level) < atomics:get(Gate, ?MESSAGES).

%% It could not be sent after all.
-spec cancel(Keeper :: pid(), Wrapped :: term()) -> ok.
cancel(Keeper, ['$inbox', Source, Charge | _]) ->
    case lookup(Keeper) of
        #row{gate = Gate, source = Source} -> atomics:sub(Gate, ?LEVEL, Charge);
        _ -> ok
    end.

%% Whether a call should not even be tried.
-spec is_refusing(key()) -> boolean().
is_refusing(Key) ->
    case persistent_term:get(?MODULE, none) =:= some andalso lookup(Key) of
        #row{policy = reject, gate = Gate} ->
            atomics:get(Gate, ?FULL) =:= 1 orelse not is_below(atomics:get(Gate, ?LEVEL), Gate);
        _ ->
            false
    end.

lookup(Key) ->
    try ets:lookup(?TABLE, Key) of
        [#row{} = Row] -> Row;
        _ -> none
    catch
        error:badarg -> none               % not running
    end.

%% --- for inboxes ------------------------------------------------------------------

%% By a keeper, of itself.
-spec register(Name :: atom(), policy(), Bound :: trunkline_share:window(), Work :: trunkline_inbox_server:handle()) ->
          ok | {error, not_started}.
register(Name, Policy, Bound, Work) ->
    try gen_server:call(?MODULE, {register, {self(), Name, Policy, Bound}, Work}, infinity)
    catch
        exit:{noproc, _} -> {error, not_started}
    end.

%% The keeper of a name or pid of this node.
-spec keeper(key()) -> pid() | none.
keeper(Key) ->
    Pid = local(Key),
    case ets:member(?TABLE, ?OWN(Pid)) of
        true -> Pid;
        false -> none
    end.

%% What it counts together with its consumer.
-spec work(key()) -> trunkline_inbox_server:handle() | none.
work(Key) ->
    try ets:lookup_element(?TABLE, ?OWN(local(Key)), 4)
    catch error:badarg -> none
    end.

local(Name) when is_atom(Name) -> whereis(Name);
local(Key) -> Key.

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
    ok = net_kernel:monitor_nodes(true, [{node_type, all}]),
    lists:foreach(fun(Node) -> tell(Node, {introduce, node()}) end, nodes(connected)),
    {ok, #state{}}.

-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call({register, Inbox, Work}, _, S) ->
    {reply, ok, own(Inbox, Work, S)};
handle_call({waiting, Keeper}, _, #state{waiters = Waiters} = S) ->
    {reply, case Waiters of
                #{Keeper := W} -> trunkline_waiters:size(W);
                #{} -> 0
            end, S};
handle_call(_, _, S) ->
    {reply, {error, badarg}, S}.

-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast(_, S) ->
    {noreply, S}.

-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info({wait, Ref, {room, Keeper, Bytes, Ticket}}, #state{waiters = All} = S) ->
    case {lookup(Keeper), All} of
        {#row{}, #{Keeper := Waiters}} ->
            trunkline_waiters:is_empty(Waiters) andalso erlang:start_timer(?AUDIT, self(), {audit, Keeper}),
            {noreply, release(Keeper, S#state{waiters = All#{Keeper := trunkline_waiters:add(Ref, Ticket, Bytes, Waiters)}})};
        _ ->
            ok = trunkline_room:answer(Ref, {again, new}),
            {noreply, S}
    end;
handle_info({unwait, Ref, {room, Keeper, _, _}}, #state{waiters = All} = S) ->
    {noreply, case All of
                  #{Keeper := Waiters} -> S#state{waiters = All#{Keeper := trunkline_waiters:remove(Ref, Waiters)}};
                  #{} -> S
              end};
handle_info({credit, Keeper, Source, Left, {Bytes, Messages}}, S) ->
    case lookup(Keeper) of
        #row{gate = Gate, source = Source} ->
            atomics:sub(Gate, ?LEVEL, Left),
            atomics:put(Gate, ?BYTES, Bytes),
            atomics:put(Gate, ?MESSAGES, Messages),
            {noreply, release(Keeper, S)};
        _ ->
            {noreply, S}
    end;
handle_info({full, Keeper, Full}, S) ->
    case lookup(Keeper) of
        #row{gate = Gate} -> atomics:put(Gate, ?FULL, Full);
        none -> ok
    end,
    {noreply, S};
handle_info({register, Inbox, Work}, S) ->
    {noreply, own(Inbox, Work, S)};
handle_info({introduce, Node}, S) ->
    introduce(Node),
    {noreply, S};
handle_info({introduced, Inboxes}, S) ->
    {noreply, lists:foldl(fun introduced/2, S, Inboxes)};
handle_info({nodeup, Node, _}, S) ->
    introduce(Node),
    {noreply, S};
handle_info({'DOWN', _, process, Keeper, _}, #state{waiters = All, missing = Missing} = S) ->
    true = ets:match_delete(?TABLE, #row{keeper = Keeper, _ = '_'}),
    true = ets:delete(?TABLE, ?OWN(Keeper)),
    case maps:take(Keeper, All) of
        {Waiters, All1} ->
            {Ws, _} = trunkline_waiters:release_all(Waiters),
            lists:foreach(fun({Ref, _}) -> trunkline_room:answer(Ref, {again, new}) end, Ws),
            {noreply, S#state{waiters = All1, missing = maps:remove(Keeper, Missing)}};
        error ->
            {noreply, S}
    end;
handle_info({timeout, _, {audit, Keeper}}, #state{waiters = All} = S) ->
    case {lookup(Keeper), All} of
        {#row{gate = Gate, source = Source}, #{Keeper := Waiters}} ->
            case trunkline_waiters:is_empty(Waiters) of
                true ->
                    {noreply, S#state{missing = maps:remove(Keeper, S#state.missing)}};
                false ->
                    _ = erlang:send(Keeper, ['$inbox_audit', self(), Source | atomics:get(Gate, ?LEVEL)], [noconnect]),
                    _ = erlang:start_timer(?AUDIT, self(), {audit, Keeper}),
                    {noreply, S}
            end;
        _ ->
            {noreply, S}
    end;
handle_info({held, Keeper, Source, Level, Held}, #state{missing = Missing} = S) ->
    Before = maps:get(Keeper, Missing, none),
    case lookup(Keeper) of
        #row{gate = Gate, source = Source} when Before =:= {Level, Level - Held}, Level =/= Held ->
            case atomics:compare_exchange(Gate, ?LEVEL, Level, Held) of
                ok -> {noreply, release(Keeper, S#state{missing = maps:remove(Keeper, Missing)})};
                _ -> {noreply, S}
            end;
        #row{source = Source} ->
            {noreply, S#state{missing = Missing#{Keeper => {Level, Level - Held}}}};
        _ ->
            {noreply, S}
    end;
handle_info(_, S) ->
    {noreply, S}.

-spec own(inbox(), trunkline_inbox_server:handle(), #state{}) -> #state{}.
own({Keeper, _, _, _} = Inbox, Work, S) ->
    true = ets:insert(?TABLE, {own, ?OWN(Keeper), Inbox, Work}),
    lists:foreach(fun(Node) -> tell(Node, {introduced, [Inbox]}) end, nodes(connected)),
    introduced(Inbox, S).

introduce(Node) ->
    case ets:select(?TABLE, [{{own, ?OWN('_'), '$1', '_'}, [], ['$1']}]) of
        [] -> ok;
        Inboxes -> tell(Node, {introduced, Inboxes})
    end.

%% (Where nobody has that name it is lost, as it should be.)
tell(Node, What) ->
    _ = erlang:send({?MODULE, Node}, What, [noconnect]),
    ok.

%% An inbox whose policy is to drop bounds nobody. A name that has two belongs to the newer.
introduced({Keeper, Name, Policy, Bound}, #state{waiters = Waiters} = S)
  when Policy =:= block; Policy =:= reject ->
    case ets:member(?TABLE, Keeper) of
        true ->
            S;
        false ->
            persistent_term:put(?MODULE, some),
            _ = monitor(process, Keeper),
            Gate = atomics:new(?REFUSED, [{signed, true}]),
            {Bytes, Messages} = trunkline_share:first(Bound),
            atomics:put(Gate, ?BYTES, Bytes),
            atomics:put(Gate, ?MESSAGES, Messages),
            Row = #row{keeper = Keeper, gate = Gate, policy = Policy,
                       source = {node(), erlang:unique_integer([positive, monotonic])}, key = Keeper},
            true = ets:insert(?TABLE, [Row | [Row#row{key = Key} || Key <- names(Name, node(Keeper))]]),
            S#state{waiters = Waiters#{Keeper => trunkline_waiters:new()}}
    end;
introduced({Keeper, _, _, _}, S) ->
    _ = [monitor(process, Keeper) || node(Keeper) =:= node()],
    S.

names(undefined, _) -> [];
names(Name, Node) when Node =:= node() -> [Name, {Name, Node}];
names(Name, Node) -> [{Name, Node}].

%% Those who fit are told.
release(Keeper, #state{waiters = All} = S) ->
    #{Keeper := Waiters} = All,
    case trunkline_waiters:is_empty(Waiters) of
        true ->
            S;
        false ->
            #row{gate = Gate} = lookup(Keeper),
            Level = atomics:get(Gate, ?LEVEL),
            Bytes = atomics:get(Gate, ?BYTES),
            Messages = atomics:get(Gate, ?MESSAGES) - trunkline_gate:messages(max(0, Level)),
            {Released, Waiters1} = case Messages > 0 of
                                       true -> trunkline_waiters:release(Bytes - trunkline_gate:bytes(max(0, Level)), Waiters);
                                       false -> {[], Waiters}
                                   end,
            lists:foreach(fun({Ref, Ticket}) -> trunkline_room:answer(Ref, {again, Ticket}) end, Released),
            S#state{waiters = All#{Keeper := Waiters1}}
    end.
