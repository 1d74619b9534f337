%% Sends the large messages to one peer, beside the lanes.
%%
%%     lanes ── parcels ──> bulk ── fragments ──> carriers ══> the peer's dock
%%       │                   ^                                       │
%%       └── done ───────────┘ <──────────────── cut ────────────────┘
%%
%% Which fragment is next is decided in trunkline_fragments; here are the carriers.
%% Connections are made when there is something to send, as many as are wanted and
%% are busy, and are closed when there has been nothing for a while. Where none can
%% be made, the fragments go by distribution (trunkline_carrier_dist), and now and
%% then a connection is tried again.
%%
%% A carrier that breaks costs nothing: the dock says how many of its fragments
%% have arrived, and the others go by another one.
%%
%% A bulk lives for one session of a link. It has no bound of its own: what comes
%% here has passed the gate, and is counted there until it has been delivered.
-module(trunkline_bulk).
-behaviour(gen_server).

-include_lib("kernel/include/logger.hrl").

-export([start_link/4]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, format_status/1]).

-record(carrier,
        {name :: trunkline_wire:token() | pid(),       % at the dock
         kind :: connection | distribution,
         busy = false :: boolean(),
         quantum = trunkline_quantum:new() :: trunkline_quantum:quantum()}).

-record(bulk,
        {node :: node(),
         dock :: pid(),
         options :: trunkline_options:options(),
         stats :: trunkline_stats:stats(),
         fragments = trunkline_fragments:new() :: trunkline_fragments:fragments(),
         carriers = #{} :: #{pid() => #carrier{}},
         retired = #{} :: #{pid() => Name :: trunkline_wire:token() | pid()},   % not dead yet
         opening = none :: none | pid(),               % a carrier that is making a connection
         %% When it makes sense to try a connection again (monotonic, ms), and how
         %% long to wait if that fails too. `never': they are not wanted.
         retry = now :: now | never | integer(),
         pause :: pos_integer(),
         idle = none :: none | reference()}).

%% ms
-define(PATIENCE, 200).              % from when on fragments go by distribution meanwhile
-define(PAUSE, 1000).
-define(LONGEST_PAUSE, 60_000).

-spec start_link(node(), Dock :: pid(), trunkline_options:options(), trunkline_stats:stats()) -> pid().
start_link(Node, Dock, Options, Stats) ->
    {ok, Bulk} = gen_server:start_link(?MODULE, {Node, Dock, Options, Stats}, [{hibernate_after, ?PAUSE}]),
    Bulk.

-spec init({node(), pid(), trunkline_options:options(), trunkline_stats:stats()}) -> {ok, #bulk{}}.
init({Node, Dock, #{bulk_transport := Transport} = Options, Stats}) ->
    {ok, show(#bulk{node = Node, dock = Dock, options = Options, stats = Stats, pause = ?PAUSE,
                    retry = case Transport of
                                dist -> never;
                                _ -> now
                            end})}.

-spec handle_call(term(), gen_server:from(), #bulk{}) -> {reply, {error, badarg}, #bulk{}}.
handle_call(_, _, S) ->
    {reply, {error, badarg}, S}.

-spec handle_cast(term(), #bulk{}) -> {noreply, #bulk{}}.
handle_cast(_, S) ->
    {noreply, S}.

-spec handle_info(term(), #bulk{}) -> {noreply, #bulk{}}.
handle_info({parcel, Id, Parcel}, #bulk{fragments = Fragments, stats = Stats} = S) ->
    trunkline_stats:add(Stats, peer, large_messages, 1),
    trunkline_stats:add(Stats, peer, large_bytes, trunkline_parcel:bytes(Parcel)),
    {noreply, pump(S#bulk{fragments = trunkline_fragments:add(Id, Parcel, Fragments)})};
handle_info({done, Ids}, #bulk{fragments = Fragments} = S) ->
    {noreply, rest(S#bulk{fragments = lists:foldl(fun trunkline_fragments:done/2, Fragments, Ids)})};
handle_info({sent, Pid, Bytes, Microseconds}, #bulk{carriers = Carriers, stats = Stats} = S) ->
    trunkline_stats:add(Stats, peer, large_carried_bytes, Bytes),
    case Carriers of
        #{Pid := #carrier{quantum = Quantum} = Carrier} ->
            Quantum1 = trunkline_quantum:sent(Bytes, Microseconds, Quantum),
            {noreply, pump(S#bulk{carriers = Carriers#{Pid := Carrier#carrier{busy = false, quantum = Quantum1}}})};
        #{} ->
            {noreply, S}
    end;
handle_info({ready, Pid, Token}, #bulk{opening = Pid, carriers = Carriers} = S) ->
    %% Nothing needs the distribution any more.
    S1 = maps:fold(fun(Other, #carrier{kind = distribution}, S0) -> retire(Other, S0);
                      (_, _, S0) -> S0
                   end, S#bulk{opening = none, pause = ?PAUSE, retry = now}, Carriers),
    Carrier = #carrier{name = Token, kind = connection},
    {noreply, pump(show(S1#bulk{carriers = (S1#bulk.carriers)#{Pid => Carrier}}))};
handle_info({cut, Name, Received}, #bulk{carriers = Carriers, fragments = Fragments} = S) ->
    S1 = case [Pid || {Pid, #carrier{name = N}} <- maps:to_list(Carriers), N =:= Name] of
             [Pid] ->
                 %% The connection is gone; the dock knows already.
                 exit(Pid, kill),
                 show(S#bulk{carriers = maps:remove(Pid, Carriers)});
             [] ->
                 S
         end,
    {noreply, pump(S1#bulk{fragments = trunkline_fragments:cut(Name, Received, Fragments)})};
handle_info({'DOWN', _, process, Pid, Reason}, #bulk{opening = Pid} = S) ->
    {noreply, pump(not_connected(Reason, S))};
handle_info({'DOWN', _, process, Pid, _}, #bulk{carriers = Carriers} = S) when is_map_key(Pid, Carriers) ->
    {noreply, pump(retired(Pid, retire(Pid, S)))};
handle_info({'DOWN', _, process, Pid, _}, S) ->
    {noreply, retired(Pid, S)};
handle_info({timeout, _, patience}, #bulk{opening = Opening, carriers = Carriers} = S)
  when Opening =/= none, map_size(Carriers) =:= 0 ->
    {noreply, pump(by_distribution(S))};
handle_info({timeout, Idle, idle}, #bulk{idle = Idle, carriers = Carriers} = S) ->
    {noreply, lists:foldl(fun retire/2, S#bulk{idle = none}, maps:keys(Carriers))};
handle_info(_, S) ->
    {noreply, S}.

%% --- carriers -------------------------------------------------------------------

%% Gives every carrier that is not busy something to do.
pump(#bulk{carriers = Carriers} = S) ->
    S1 = lists:foldl(fun give/2, stir(S), [Pid || {Pid, #carrier{busy = false}} <- maps:to_list(Carriers)]),
    case trunkline_fragments:is_waiting(S1#bulk.fragments) of
        true -> more(S1);
        false -> rest(S1)
    end.

give(Pid, #bulk{carriers = Carriers, fragments = Fragments} = S) ->
    #{Pid := #carrier{name = Name, kind = Kind, quantum = Quantum} = Carrier} = Carriers,
    Bytes = case Kind of
                connection -> trunkline_quantum:bytes(Quantum);
                distribution -> trunkline_courtesy:fragment_bytes()
            end,
    case gather(Name, Bytes, Bytes, Fragments, []) of
        {[], _} ->
            S;
        {Some, Fragments1} ->
            ok = trunkline_carrier:send(Pid, Some),
            S#bulk{fragments = Fragments1, carriers = Carriers#{Pid := Carrier#carrier{busy = true}}}
    end.

%% One fragment, or as many small ones as make one.
gather(Name, Bytes, Missing, Fragments, Some) when Missing > 0 ->
    case trunkline_fragments:next(Name, Bytes, Fragments) of
        {{_, _, _, Length, _} = Fragment, Fragments1} ->
            gather(Name, Bytes, Missing - Length, Fragments1, [Fragment | Some]);
        none ->
            {lists:reverse(Some), Fragments}
    end;
gather(_, _, _, Fragments, Some) ->
    {lists:reverse(Some), Fragments}.

%% There is more to send than the carriers take now.
more(#bulk{opening = none, carriers = Carriers,
           options = #{bulk_connections := Most, bulk_transport := Transport}} = S) ->
    Connections = length([C || #carrier{kind = connection} = C <- maps:values(Carriers)]),
    case Connections < Most andalso may_connect(S) of
        true ->
            {Pid, _} = trunkline_carrier:start(bulk, S#bulk.dock, Transport),
            map_size(Carriers) =:= 0 andalso erlang:start_timer(?PATIENCE, self(), patience),
            S#bulk{opening = Pid};
        false when map_size(Carriers) =:= 0 ->
            by_distribution(S);
        false ->
            S
    end;
more(S) ->
    S.

by_distribution(S) ->
    {Pid, _} = trunkline_carrier_dist:start(S#bulk.dock),
    give(Pid, show(S#bulk{carriers = #{Pid => #carrier{name = Pid, kind = distribution}}})).

may_connect(#bulk{retry = now}) -> true;
may_connect(#bulk{retry = never}) -> false;
may_connect(#bulk{retry = Time}) -> erlang:monotonic_time(millisecond) >= Time.

not_connected(Reason, #bulk{pause = Pause, node = Node, carriers = Carriers} = S) ->
    Pause =:= ?PAUSE andalso map_size(Carriers) =:= 0 andalso
        ?LOG_WARNING("trunkline: there is no connection for large messages to ~ts, they go by distribution: ~tP",
                     [Node, Reason, 20]),
    S#bulk{opening = none, pause = min(?LONGEST_PAUSE, 2 * Pause),
           retry = erlang:monotonic_time(millisecond) + Pause}.

%% The carrier is not used any more. Until the dock has answered what has arrived
%% by it, its fragments are neither under way nor waiting.
retire(Pid, #bulk{carriers = Carriers, retired = Retired} = S) ->
    {#carrier{name = Name}, Carriers1} = maps:take(Pid, Carriers),
    exit(Pid, kill),
    show(S#bulk{carriers = Carriers1, retired = Retired#{Pid => Name}}).

%% Only when it is dead it has certainly sent nothing behind the question.
retired(Pid, #bulk{retired = Retired, dock = Dock} = S) ->
    case maps:take(Pid, Retired) of
        {Name, Retired1} ->
            _ = erlang:send(Dock, {cut, self(), Name}, [noconnect]),
            S#bulk{retired = Retired1};
        error ->
            S
    end.

%% When there is nothing to do, connections are kept for a while.
rest(#bulk{idle = none, carriers = Carriers, options = #{bulk_idle := Time}} = S) when map_size(Carriers) > 0 ->
    case trunkline_fragments:is_empty(S#bulk.fragments) of
        true -> S#bulk{idle = erlang:start_timer(Time, self(), idle)};
        false -> S
    end;
rest(S) ->
    S.

stir(#bulk{idle = none} = S) ->
    S;
stir(#bulk{idle = Timer, fragments = Fragments} = S) ->
    case trunkline_fragments:is_empty(Fragments) of
        true -> S;
        false -> _ = erlang:cancel_timer(Timer), S#bulk{idle = none}
    end.

%% For info/1.
show(#bulk{carriers = Carriers, stats = Stats} = S) ->
    Kinds = [Kind || #carrier{kind = Kind} <- maps:values(Carriers)],
    trunkline_stats:put(Stats, peer, bulk_connections, length([K || connection = K <- Kinds])),
    trunkline_stats:put(Stats, peer, bulk_by_distribution, length([K || distribution = K <- Kinds])),
    S.

%% No report has the users' data in it.
-spec format_status(gen_server:format_status()) -> gen_server:format_status().
format_status(Status) ->
    maps:map(fun(state, #bulk{node = Node, carriers = Carriers}) -> {bulk, Node, maps:keys(Carriers)};
                (message, _) -> not_shown;
                (log, _) -> [];
                (_, Value) -> Value
             end, Status).
