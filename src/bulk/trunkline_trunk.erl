%% Carries large messages, as parcels, to one peer over a bundle of connections. (This folder has
%% the way of a large message, from the parcel to its turn at the receiver.)
%%
%%     lanes ── parcels ──> trunk ── fragments ──> carriers ══> the peer's dock
%%       │                    ^                                       │
%%       └── done ────────────┘ <──────────────── cut ────────────────┘
%%
%% trunkline_fragments decides which fragment is next; this module looks after the carriers. These
%% are the writers of connections (trunkline_writer). Each gets a fragment when it has sent the one
%% before, so that a slow carrier does not hold up the others. Connections are made when there is
%% more to send than the existing ones can take, up to a number that depends on the distance. They
%% are closed when there has been nothing to send for a while.
%%
%% If no connection can be made, the trunk itself sends the fragments to the dock, as plain terms by
%% the distribution, and tries a connection again now and then. The dock says when it has taken a
%% fragment, and only a few are sent before that, so that everything else on the distribution waits
%% for no more than these.
%%
%% A carrier that breaks costs nothing: the dock says how many of its fragments have arrived, and
%% the others go by another carrier.
%%
%% While the session is suspended there are no carriers. When the session goes on, new ones are
%% made, and the trunk asks the dock again for what it has not answered: questions and answers may
%% have been lost with the connection. The dock keeps a count until it has heard that the answer
%% came.
%%
%% A trunk lives for one session of a link. It has no bound of its own: what comes
%% here has passed the gate, and is counted there until it has been delivered.
-module(trunkline_trunk).
-moduledoc false.
-behaviour(gen_server).

-export([start_link/3, parcel/3, done/2, suspend/1, resume/1, ended/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, format_status/1]).

%% ms
-define(PATIENCE, 200).              % until fragments go by the distribution meanwhile
-define(QUIET, 1000).
-define(MORE, 5).                    % of too much to send, before more connections are made
%% Bytes of a large message that a connection to a far peer gets at once: the message
%% should use all connections.
-define(SHARE, 262144).
%% By distribution: bytes of a fragment, and how many are sent before the dock has taken one.
%% To a far peer these limit the throughput.
-define(PLAIN_BYTES, 65536).
-define(PLAIN, 8).
-define(FAR_PLAIN, 64).

-record(carrier,
        {name :: trunkline_wire:token() | pid(),       % at the dock
         busy = 0 :: non_neg_integer(),                % bytes of fragments that it has
         since = erlang:monotonic_time(millisecond) :: integer(),
         quantum = trunkline_quantum:new() :: trunkline_quantum:quantum()}).

-record(trunk,
        {node :: node(),
         dock :: pid(),
         options :: trunkline_options:options(),
         stats :: trunkline_stats:stats(),
         fragments = trunkline_fragments:new() :: trunkline_fragments:fragments(),
         carriers = #{} :: #{pid() => #carrier{}},     % self(): by distribution
         plain = 0 :: non_neg_integer(),               % fragments that the dock has not taken
         number = 0 :: non_neg_integer(),              % of the last such fragment
         %% Carriers of which it is not known how many fragments have arrived.
         asked = #{} :: #{Name :: trunkline_wire:token() | pid() => []},
         suspended = false :: boolean(),
         opening = [] :: [pid()],                      % carriers that are making a connection
         retry = trunkline_retry:new(retry) :: trunkline_retry:retry(),
         waiting = none :: none | integer(),           % since when there is too much to send
         idle = none :: none | reference()}).

-spec start_link(node(), Dock :: pid(), {trunkline_options:options(), trunkline_stats:stats()}) ->
          pid().
start_link(Node, Dock, {Options, Stats}) ->
    {ok, Trunk} = gen_server:start_link(?MODULE, {Node, Dock, Options, Stats},
                                        [{hibernate_after, ?QUIET}]),
    Trunk.

%% A large message, which the trunk has to carry.
-spec parcel(pid(), trunkline_fragments:id(), trunkline_parcel:parcel()) -> ok.
parcel(Trunk, Id, Parcel) ->
    Trunk ! {parcel, Id, Parcel},
    ok.

%% These large messages have been delivered.
-spec done(pid(), [trunkline_fragments:id()]) -> ok.
done(Trunk, Ids) ->
    Trunk ! {done, Ids},
    ok.

%% The connection between the nodes is lost: nothing can be sent.
-spec suspend(pid()) -> ok.
suspend(Trunk) -> gen_server:cast(Trunk, suspend).

%% The nodes are connected again, and the dock is the same.
-spec resume(pid()) -> ok.
resume(Trunk) -> gen_server:cast(Trunk, resume).

%% info/1 should show nothing of a trunk that has ended.
-spec ended(trunkline_stats:stats()) -> ok.
ended(Stats) ->
    lists:foreach(fun(Field) -> trunkline_stats:put(Stats, peer, Field, 0) end,
                  [bulk_by_distribution, bulk_connections, bulk_congestion_control]).

-spec init({node(), Dock :: pid(), trunkline_options:options(), trunkline_stats:stats()}) ->
          {ok, #trunk{}}.
init({Node, Dock, Options, Stats}) ->
    ok = trunkline_process:label({trunkline_trunk, Node}),
    {ok, show(#trunk{node = Node, dock = Dock, options = Options, stats = Stats})}.

-spec handle_call(term(), gen_server:from(), #trunk{}) -> {reply, {error, badarg}, #trunk{}}.
handle_call(_, _, S) ->
    {reply, {error, badarg}, S}.

-spec handle_cast(term(), #trunk{}) -> {noreply, #trunk{}}.
handle_cast(suspend, #trunk{opening = Opening, carriers = Carriers, asked = Asked} = S) ->
    lists:foreach(fun trunkline_writer:close/1, Opening),
    Suspended = S#trunk{suspended = true, opening = [], waiting = none,
                        asked = Asked#{self() => []}},
    {noreply, lists:foldl(fun close/2, Suspended, maps:keys(Carriers))};
handle_cast(resume, #trunk{asked = Asked} = S) ->
    lists:foreach(fun(Name) -> ask(Name, S) end, maps:keys(Asked)),
    %% If a connection could not be made, or ended, that was due to the same break.
    {noreply, pump(S#trunk{suspended = false, retry = trunkline_retry:new(retry)})};
handle_cast(Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    {noreply, S}.

-spec handle_info(term(), #trunk{}) -> {noreply, #trunk{}}.
handle_info({parcel, Id, Parcel}, #trunk{fragments = Fragments} = S) ->
    count(Parcel, S),
    {noreply, pump(S#trunk{fragments = trunkline_fragments:add(Id, Parcel, Fragments)})};
handle_info({done, Ids}, #trunk{fragments = Fragments} = S) ->
    Fragments1 = lists:foldl(fun trunkline_fragments:done/2, Fragments, Ids),
    {noreply, idle(S#trunk{fragments = Fragments1})};
handle_info({channel, Pid, {written, _, Microseconds}}, #trunk{carriers = Carriers} = S) ->
    case Carriers of
        #{Pid := #carrier{busy = Bytes, quantum = Quantum} = Carrier} ->
            Quantum1 = trunkline_quantum:sent(Bytes, Microseconds, Quantum),
            Carrier1 = Carrier#carrier{busy = 0, quantum = Quantum1},
            {noreply, pump(S#trunk{carriers = Carriers#{Pid := Carrier1}})};
        #{} ->
            {noreply, S}
    end;
handle_info({channel, Pid, {ready, Token, CongestionControl}}, #trunk{opening = Opening} = S) ->
    case lists:member(Pid, Opening) of
        true -> {noreply, ready(Pid, Token, CongestionControl, S)};
        false -> {noreply, S}                % it was given up
    end;
handle_info({cut, Trunk, Received}, #trunk{asked = Asked} = S) when Trunk =:= self() ->
    {noreply, case Asked of
                  #{Trunk := _} -> pump(counted(Received, S));
                  #{} -> S                   % it was asked twice
              end};
handle_info({cut, Name, Received},
            #trunk{carriers = Carriers, fragments = Fragments, asked = Asked} = S) ->
    confirm(Name, S),
    S1 = case [Pid || {Pid, #carrier{name = N}} <- maps:to_list(Carriers), N =:= Name] of
             [Pid] ->
                 %% The connection is gone; the dock knows already.
                 ok = trunkline_writer:close(Pid),
                 without(Pid, S);
             [] ->
                 S
         end,
    {noreply, pump(S1#trunk{fragments = trunkline_fragments:cut(Name, Received, Fragments),
                            asked = maps:remove(Name, Asked)})};
handle_info({'DOWN', _, process, Pid, Reason}, S) ->
    #trunk{carriers = Carriers, opening = Opening} = S,
    case lists:member(Pid, Opening) of
        true ->
            S1 = S#trunk{opening = lists:delete(Pid, Opening)},
            {noreply, pump(not_connected(Reason, S1))};
        false when is_map_key(Pid, Carriers) -> {noreply, pump(close(Pid, S))};
        false -> {noreply, S}
    end;
handle_info({timeout, _, patience}, #trunk{opening = Opening, carriers = Carriers} = S)
  when Opening =/= [], map_size(Carriers) =:= 0 ->
    {noreply, case trunkline_fragments:is_waiting(S#trunk.fragments) of
                  true -> pump(by_distribution(S));
                  false -> S
              end};
handle_info({timeout, Idle, idle}, #trunk{idle = Idle, carriers = Carriers, retry = Retry} = S) ->
    %% (If only the distribution was in use, the next connection may fail as the last one did.)
    Retry1 = case connections(S) of
                 0 -> Retry;
                 _ -> trunkline_retry:lasted(Retry)
             end,
    {noreply, lists:foldl(fun close/2, S#trunk{idle = none, retry = Retry1}, maps:keys(Carriers))};
handle_info({timeout, Timer, retry}, #trunk{retry = Retry} = S) ->
    {noreply, pump(S#trunk{retry = trunkline_retry:timeout(Timer, Retry)})};
handle_info({timeout, _, _}, S) ->
    {noreply, S};                            % too late
handle_info({taken, Dock}, #trunk{dock = Dock, plain = N} = S) when N > 0 ->
    {noreply, pump(S#trunk{plain = N - 1})};
handle_info(Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    {noreply, S}.

%% --- carriers -------------------------------------------------------------------

count(Parcel, #trunk{stats = Stats}) ->
    trunkline_stats:add(Stats, peer, large_messages, 1),
    trunkline_stats:add(Stats, peer, large_bytes, trunkline_parcel:bytes(Parcel)).

ready(Pid, Token, CongestionControl,
      #trunk{opening = Opening, carriers = Carriers, stats = Stats} = S) ->
    ok = trunkline_connection:show(Stats, bulk_congestion_control, CongestionControl),
    %% Fragments need no longer go by the distribution.
    Others = maps:remove(self(), Carriers),
    Carrier = #carrier{name = Token},
    pump(show(S#trunk{opening = lists:delete(Pid, Opening), carriers = Others#{Pid => Carrier}})).

%% As the carrier by the distribution this process has the same name over all connections. So the
%% dock goes on counting, and nothing is sent between the question and the answer.
counted(Received, #trunk{fragments = Fragments, asked = Asked} = S) ->
    S#trunk{fragments = trunkline_fragments:counted(self(), Received, Fragments), plain = 0,
            number = Received, asked = maps:remove(self(), Asked)}.

%% Gives every carrier that is not busy something to do.
pump(#trunk{suspended = true} = S) ->
    S;
pump(#trunk{carriers = Carriers} = S) ->
    Free = [Pid || {Pid, #carrier{busy = 0}} <- maps:to_list(Carriers)],
    S1 = lists:foldl(fun give/2, idle(S), Free),
    case trunkline_fragments:is_waiting(S1#trunk.fragments) of
        true -> more(waiting(S1));
        false -> S1#trunk{waiting = none}
    end.

give(Pid, S) when Pid =:= self() ->
    give_plain(S);
give(Pid, #trunk{carriers = Carriers, fragments = Fragments, stats = Stats} = S) ->
    #{Pid := #carrier{name = Name, quantum = Quantum} = Carrier} = Carriers,
    Bytes = min(share(S), trunkline_quantum:bytes(Quantum)),
    case gather(Name, Bytes, Bytes, Fragments, []) of
        {[], _} ->
            S;
        {Some, Fragments1} ->
            Sent = trunkline_fragments:bytes(Some),
            trunkline_stats:add(Stats, peer, large_carried_bytes, Sent),
            ok = trunkline_writer:send(Pid, {Sent, [trunkline_wire:frame(F) || F <- Some]}, tell),
            S#trunk{fragments = Fragments1,
                    carriers = Carriers#{Pid := Carrier#carrier{busy = Sent}}}
    end.

give_plain(#trunk{dock = Dock, stats = Stats, plain = N, fragments = Fragments} = S) ->
    Most = case is_far(S) of
               true -> ?FAR_PLAIN;
               false -> ?PLAIN
           end,
    case N < Most andalso trunkline_fragments:next(self(), ?PLAIN_BYTES, Fragments) of
        {{_, _, _, Length, _} = Fragment, Fragments1} ->
            {Name, S1} = numbered(S),
            ok = trunkline_dock:fragment(Dock, Name, Fragment),
            trunkline_stats:add(Stats, peer, large_carried_bytes, Length),
            give_plain(S1#trunk{plain = N + 1, fragments = Fragments1});
        _ ->
            S
    end.

%% If the session may go on over another connection, the dock should notice what is missing.
numbered(#trunk{node = Node, number = N} = S) ->
    case trunkline_peers:can(Node, v1) of
        true -> {{self(), N + 1}, S#trunk{number = N + 1}};
        false -> {self(), S}
    end.

share(S) ->
    case is_far(S) of
        true -> ?SHARE;
        false -> infinity                    % larger than any number
    end.

%% One fragment, or as many small ones as are worth one.
gather(Name, Bytes, Missing, Fragments, Some) when Missing > 0 ->
    case trunkline_fragments:next(Name, Bytes, Fragments) of
        {{_, _, _, Length, _} = Fragment, Fragments1} ->
            gather(Name, Bytes, Missing - Length, Fragments1, [Fragment | Some]);
        none ->
            {lists:reverse(Some), Fragments}
    end;
gather(_, _, _, Fragments, Some) ->
    {lists:reverse(Some), Fragments}.

%% Without a carrier, fragments begin to wait for one now, perhaps for one that was being
%% made before there was anything to send.
waiting(#trunk{waiting = none, carriers = Carriers} = S) ->
    map_size(Carriers) =:= 0 andalso erlang:start_timer(?PATIENCE, self(), patience),
    S#trunk{waiting = erlang:monotonic_time(millisecond)};
waiting(S) -> S.

%% There is more to send than the carriers take now.
more(#trunk{opening = [], carriers = Carriers} = S) ->
    Connections = connections(S),
    IsSoon = Connections > 0 andalso erlang:monotonic_time(millisecond) - S#trunk.waiting < ?MORE,
    case not IsSoon andalso Connections < most(S) andalso may_connect(S) of
        true ->
            case open(more_connections(Connections, S), S) of
                #trunk{opening = []} = S1 -> more(S1);       % none has started: later
                S1 -> S1#trunk{waiting = none}
            end;
        false when map_size(Carriers) =:= 0 ->
            by_distribution(S);
        false ->
            S
    end;
more(S) ->
    S.

more_connections(Connections, S) ->
    case is_far(S) of
        true -> min(trunkline_connection:more(Connections), most(S) - Connections);
        false -> 1
    end.

open(N, S) when N > 0 ->
    case may_connect(S) of
        true -> open(N - 1, open(S));
        false -> S
    end;
open(0, S) ->
    S.

open(#trunk{dock = Dock, options = Options} = S) ->
    #{bulk_transport := Transport} = Options,
    Settings = trunkline_connection:settings(large, Transport, Options, S#trunk.stats),
    case trunkline_writer:open(Dock, Settings) of
        {ok, {Pid, _}} -> S#trunk{opening = [Pid | S#trunk.opening]};
        {error, Reason} -> not_connected(Reason, S)
    end.

is_far(#trunk{stats = Stats}) -> trunkline_connection:is_far(Stats).

most(#trunk{options = Options} = S) -> trunkline_connection:most(is_far(S), Options).

connections(#trunk{carriers = Carriers}) -> map_size(maps:remove(self(), Carriers)).

by_distribution(#trunk{asked = Asked} = S) when is_map_key(self(), Asked) ->
    S;
by_distribution(S) ->
    Carrier = #carrier{name = self()},
    give(self(), show(S#trunk{carriers = #{self() => Carrier}})).

may_connect(#trunk{options = #{bulk_transport := dist}}) -> false;
may_connect(#trunk{retry = Retry}) -> trunkline_retry:may(Retry).

not_connected(Reason, #trunk{retry = Retry, node = Node} = S) ->
    trunkline_retry:is_first(Retry) andalso connections(S) =:= 0
        andalso trunkline_connection:not_made(Reason, Node, large),
    S#trunk{retry = trunkline_retry:failed(Retry)}.

%% One connection less. If no carrier is left, fragments start to wait for one again.
without(Pid, #trunk{carriers = Carriers, retry = Retry} = S) ->
    {#carrier{since = Since}, Others} = maps:take(Pid, Carriers),
    show(S#trunk{carriers = Others, retry = trunkline_retry:ended(Since, Retry),
                 waiting = case map_size(Others) of
                               0 -> none;
                               _ -> S#trunk.waiting
                           end}).

%% The carrier is not used any more. Until the dock has answered what has arrived by it, its
%% fragments are neither under way nor waiting. The dock takes nothing from it after the answer.
close(Pid, #trunk{carriers = Carriers} = S) when Pid =:= self() ->
    show(S#trunk{carriers = maps:remove(Pid, Carriers)});
close(Pid, #trunk{carriers = Carriers, asked = Asked} = S) ->
    #{Pid := #carrier{name = Name}} = Carriers,
    ok = trunkline_writer:close(Pid),
    ask(Name, S),
    without(Pid, S#trunk{asked = Asked#{Name => []}}).

ask(Name, #trunk{dock = Dock}) ->
    trunkline_dock:cut(Dock, Name).

%% The dock may forget that carrier.
confirm(Name, #trunk{node = Node, dock = Dock}) ->
    trunkline_peers:can(Node, v1) andalso trunkline_dock:forget(Dock, Name),
    ok.

%% When there is nothing to do, connections are kept for a while.
idle(#trunk{idle = Timer, carriers = Carriers, options = #{bulk_idle := Time}} = S) ->
    case trunkline_fragments:is_empty(S#trunk.fragments) of
        true when Timer =:= none, map_size(Carriers) > 0 ->
            S#trunk{idle = erlang:start_timer(Time, self(), idle)};
        false when Timer =/= none ->
            _ = erlang:cancel_timer(Timer),
            S#trunk{idle = none};
        _ ->
            S
    end.

%% For info/1.
show(#trunk{carriers = Carriers, stats = Stats} = S) ->
    Connections = connections(S),
    trunkline_stats:put(Stats, peer, bulk_connections, Connections),
    trunkline_stats:put(Stats, peer, bulk_by_distribution, map_size(Carriers) - Connections),
    S.

%% Keeps the users' data out of all reports.
-spec format_status(gen_server:format_status()) -> gen_server:format_status().
format_status(Status) ->
    trunkline_process:without_data(fun(#trunk{node = Node, carriers = Carriers}) ->
                                           {Node, maps:keys(Carriers)}
                                   end, Status).
