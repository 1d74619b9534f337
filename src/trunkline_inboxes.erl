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
%% way, leaves its charge in the gate; one that is killed after it was told of room leaves
%% the room. While somebody waits, the keeper is asked what it holds and how many messages
%% have ever come. If for a while both are the same, and the level too, nothing is under way:
%% what is missing is taken out, and if there is room all are told to try again.
-module(trunkline_inboxes).
-behaviour(gen_server).

-export([start_link/0, enter/3, cancel/2, is_refusing/1, keeper/1, senders/1]).
-export([register/5, work/1]).
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
-record(own, {keeper :: pid(), inbox :: inbox(), work :: trunkline_inbox_server:handle(), server :: pid() | none}).

-record(state,
        {waiters = #{} :: #{Keeper :: pid() => trunkline_waiters:waiters()},
         %% Since when audits have found the same level, the same of it at the inbox, and the same number
         %% of messages that came. (Answers that were held up come together: it is their time that
         %% counts, not how many they are.)
         same = #{} :: #{Keeper :: pid() => {Since :: integer(), Found :: {Level :: integer(), Arrived :: integer()}, Held :: integer()}}}).

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

%% (A level below zero borrows from the bytes: its messages are no number.)
is_below(Level, _) when Level < 0 ->
    true;
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
-spec is_refusing(gen_server:server_ref()) -> boolean().
is_refusing({global, Name}) ->
    is_refusing({via, global, Name});
is_refusing({via, Module, Name}) ->
    persistent_term:get(?MODULE, none) =:= some andalso is_refusing(Module:whereis_name(Name));
is_refusing(Key) ->
    case persistent_term:get(?MODULE, none) =:= some andalso lookup(Key) of
        #row{policy = reject, gate = Gate} ->
            atomics:get(Gate, ?FULL) =:= 1 orelse not is_below(atomics:get(Gate, ?LEVEL), Gate);
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

%% What the keeper and its consumer count together.
-spec work(pid()) -> trunkline_inbox_server:handle().
work(Keeper) ->
    #own{work = Work} = ets:lookup_element(?TABLE, {own, Keeper}, 3),
    Work.

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
    ok = net_kernel:monitor_nodes(true, [{node_type, all}]),
    lists:foreach(fun(Node) -> tell(Node, {introduce, node()}) end, nodes(connected)),
    {ok, #state{}}.

-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call({register, Inbox, Work, Server}, _, S) ->
    {reply, ok, own(Inbox, Work, Server, S)};
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
handle_info({register, Inbox, Work, Server}, S) ->
    {noreply, own(Inbox, Work, Server, S)};
handle_info({introduce, Node}, S) ->
    introduce(Node),
    {noreply, S};
handle_info({introduced, Inboxes}, S) ->
    {noreply, lists:foldl(fun introduced/2, S, Inboxes)};
handle_info({nodeup, Node, _}, S) ->
    introduce(Node),
    {noreply, S};
handle_info({'DOWN', _, process, Keeper, Reason}, #state{waiters = All, same = Same} = S) ->
    Reason =:= killed andalso kill_server(Keeper),
    true = ets:match_delete(?TABLE, #row{keeper = Keeper, _ = '_'}),
    true = ets:delete(?TABLE, {own, Keeper}),
    case maps:take(Keeper, All) of
        {Waiters, All1} ->
            {Ws, _} = trunkline_waiters:release_all(Waiters),
            lists:foreach(fun({Ref, _}) -> trunkline_room:answer(Ref, {again, new}) end, Ws),
            {noreply, S#state{waiters = All1, same = maps:remove(Keeper, Same)}};
        error ->
            {noreply, S}
    end;
handle_info({timeout, _, {audit, Keeper}}, #state{waiters = All} = S) ->
    case {lookup(Keeper), All} of
        {#row{gate = Gate, source = Source}, #{Keeper := Waiters}} ->
            case trunkline_waiters:is_empty(Waiters) of
                true ->
                    {noreply, S#state{same = maps:remove(Keeper, S#state.same)}};
                false ->
                    _ = erlang:send(Keeper, ['$inbox_audit', self(), Source | atomics:get(Gate, ?LEVEL)], [noconnect, nosuspend]),
                    _ = erlang:start_timer(?AUDIT, self(), {audit, Keeper}),
                    {noreply, S}
            end;
        _ ->
            {noreply, S}
    end;
handle_info({held, Keeper, Source, {Level, _} = Found, Held}, #state{same = Same} = S) ->
    Now = erlang:monotonic_time(millisecond),
    case {lookup(Keeper), Same} of
        {#row{gate = Gate, source = Source}, #{Keeper := {Since, Found, Held}}} when Now - Since >= ?AUDIT ->
            _ = atomics:compare_exchange(Gate, ?LEVEL, Level, Held),
            {noreply, release_all(Keeper, Gate, S#state{same = maps:remove(Keeper, Same)})};
        {#row{source = Source}, #{Keeper := {_, Found, Held}}} ->
            {noreply, S};
        {#row{source = Source}, _} ->
            {noreply, S#state{same = Same#{Keeper => {Now, Found, Held}}}};
        _ ->
            {noreply, S}
    end;
handle_info(_, S) ->
    {noreply, S}.

own({Keeper, _, _, _} = Inbox, Work, Server, S) ->
    true = ets:insert(?TABLE, {own, {own, Keeper}, #own{keeper = Keeper, inbox = Inbox, work = Work, server = Server}}),
    lists:foreach(fun(Node) -> tell(Node, {introduced, [Inbox]}) end, nodes(connected)),
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

%% If there is any room: who was told of it before has not come.
release_all(Keeper, Gate, #state{waiters = All} = S) ->
    case is_below(atomics:get(Gate, ?LEVEL), Gate) of
        true ->
            #{Keeper := Waiters} = All,
            {Ws, None} = trunkline_waiters:release_all(Waiters),
            lists:foreach(fun({Ref, Ticket}) -> trunkline_room:answer(Ref, {again, Ticket}) end, Ws),
            S#state{waiters = All#{Keeper := None}};
        false ->
            S
    end.

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
