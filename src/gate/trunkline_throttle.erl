%% Suspends servers that reply faster than the peer can take their replies: the part of a lane that
%% knows which servers stay suspended after a reply, and until when.
%%
%% gen_server:reply/2 sends to a lane, a process of this node, so it cannot be refused at the gate
%% as send/2 can. (In OTP the server would be suspended when the connection is busy.) So the lane
%% takes every reply, and suspends the server: for a large reply until it has been packed, because
%% packing one takes longer than making one, and at the bound until there is room. In the second
%% case another process beside the lane waits at the link, as a sender does:
%%
%%     server                 lane                           waiter             link
%%       | -- reply ----------> |                              |                  |
%%       | <---------- suspends | beyond the bound: starts --> | -- wait, room -> |
%%       |                      | leaves -- room --------------+----------------> |
%%       |                      |                              | <------- again - |
%%       | <----------- resumes | <---------------------- ends |                  |
%%
%% A long term takes many times the bytes of its encoding: a list of small numbers eight times. So
%% room for another reply means room for the term, and the server stays suspended until the lane has
%% packed all replies that it sent before:
%%
%%     server                       lane
%%       | -- reply, a long term ---> |
%%       | <--------------- suspends  | packs, and sends itself a message, which comes when
%%       |                            |   it has looked through its mailbox
%%       | <---------------- resumes  | when it has, and there is room for another such term
%%
%% When a process ends, for whatever reason, the runtime system resumes the processes that it has
%% suspended. So no server stays suspended. The replies to a peer take at most the bound, and one or
%% two replies more for each server: those that it sends before it is suspended.
%%
%% A server may let other processes reply to its requests. To suspend it would stop it for all of
%% its clients, and not those who reply. A reply does not say who has sent it. But if a server is
%% known to have stopped, and a reply to its request comes after that, another process has sent it:
%%
%%     server                       lane                                 worker
%%       | <--------------- suspends  |                                     |
%%       |                            | sees that it is suspended, and      |
%%       |                            |   sends itself a message: `stopped' |
%%       |                            | <-------------------------- reply - |
%%       | <---------------- resumes  | if this comes behind that message   |
%%
%% Then it is not suspended any more, until there is room. What its workers reply is bounded by the
%% requests that it has taken. If no reply comes, there may be none that it could send. So it goes
%% on after a while, and is suspended again if it replies: each time for twice as long, so that
%% these replies are few.
-module(trunkline_throttle).
-moduledoc false.

-export([new/1, small/3, suspend/2, packed/3, long_term/3, looked_through/2]).
-export([stopped/3, ended/2]).
-export([await/3]).

-export_type([throttle/0]).

-record(throttle,
        {node :: node(),
         gate :: trunkline_gate:gate(),
         stats :: trunkline_stats:stats(),
         ix :: pos_integer(),                   % of the lane
         bulk_ix :: pos_integer(),              % the level of large messages
         small :: trunkline_gate:charge(),      % the bounds of the two levels
         large :: trunkline_gate:charge(),
         %% The processes that wait for room, each for a server: it is being suspended; it has
         %% stopped; it may go on until it replies; or others reply for it. For how long (ms) it
         %% will be suspended.
         at_bound = #{} :: #{reference() => {Server :: pid(), stopping | stopped | free | delegates,
                                             pos_integer()}},
         %% Servers whose replies were long terms, and what these took.
         long_terms = [] :: [{Server :: pid(), Term :: trunkline_gate:charge()}]}).
-opaque throttle() :: #throttle{}.

%% ms between two looks whether a server has stopped.
-define(LOOK, 5).
%% ms that a server is suspended for the first time, if there is no room.
-define(PAUSE, 100).

%% The levels of small and of large messages, and the bounds that replies have there.
-spec new(#{node := node(), gate := trunkline_gate:gate(), stats := trunkline_stats:stats(),
            small := {Ix :: pos_integer(), trunkline_gate:charge()},
            large := {Ix :: pos_integer(), trunkline_gate:charge()}}) -> throttle().
new(#{node := Node, gate := Gate, stats := Stats,
      small := {Ix, Small}, large := {BulkIx, Large}}) ->
    #throttle{node = Node, gate = Gate, stats = Stats, ix = Ix, bulk_ix = BulkIx, small = Small,
              large = Large}.

%% A small reply of that server has entered the lane.
-spec small(Server :: pid(), trunkline_gate:charge(), throttle()) -> throttle().
small(Server, Charge, #throttle{ix = Ix, small = Bound} = T) ->
    at_bound(Server, Charge, Ix, Bound, came(Server, T)).

%% A large reply has come, and is being packed. (The server may be running; it stops at the next
%% opportunity.)
-spec suspend(Server :: pid(), throttle()) -> ok.
suspend(Server, T) ->
    case entry(Server, T) of
        {_, {_, delegates, _}} ->
            ok;
        _ ->
            try erlang:suspend_process(Server, [asynchronous]) of
                true -> ok
            catch
                error:badarg -> ok           % it has ended
            end
    end.

%% It is packed. The server goes on when there is room for another such reply.
-spec packed(Server :: pid(), trunkline_gate:charge(), throttle()) -> throttle().
packed(Server, Charge, T) -> resume(Server, Charge, 0, came(Server, T)).

%% The same for a long term. There may be more of these in the mailbox: the lane will get
%% {looked_through, N}.
-spec long_term(Server :: pid(), Term :: trunkline_gate:charge(), throttle()) -> throttle().
long_term(Server, Term, #throttle{long_terms = Terms} = T) ->
    Terms =:= [] andalso look_through(1),
    (came(Server, T))#throttle{long_terms = [{Server, Term} | Terms]}.

look_through(N) ->
    self() ! {looked_through, N},
    ok.

%% If there were no more long terms, their servers go on. (Without a garbage collection the terms
%% would stay on the heap until another one comes.)
-spec looked_through(N :: pos_integer(), throttle()) -> throttle().
looked_through(N, #throttle{long_terms = Terms} = T) when length(Terms) =:= N ->
    true = garbage_collect(),
    lists:foldr(fun({Server, Term}, T1) -> resume(Server, Term, Term, T1) end,
                T#throttle{long_terms = []}, Terms);
looked_through(_, #throttle{long_terms = Terms} = T) ->
    ok = look_through(length(Terms)),
    T.

%% News of a server at the bound. Whether it has stopped: it may have to run before it can be
%% suspended. `true': it had, when this was asked, and all has been looked at that it has sent.
%% `over': it has been suspended for a while.
-spec stopped(reference(), boolean() | over, throttle()) -> throttle().
stopped(Ref, News, #throttle{at_bound = AtBound} = T) ->
    case AtBound of
        #{Ref := {Server, stopping, Pause}} when News =:= true ->
            _ = erlang:send_after(Pause, self(), {stopped, Ref, over}),
            T#throttle{at_bound = AtBound#{Ref := {Server, stopped, 2 * Pause}}};
        #{Ref := {Server, stopping, _}} ->
            _ = case process_info(Server, status) of
                    {status, suspended} -> self() ! {stopped, Ref, true};
                    _ -> erlang:send_after(?LOOK, self(), {stopped, Ref, false})
                end,
            T;
        #{Ref := {Server, stopped, Pause}} when News =:= over ->
            ok = trunkline_process:resume(Server),
            T#throttle{at_bound = AtBound#{Ref := {Server, free, Pause}}};
        #{} ->
            T
    end.

%% A process that was monitored has ended: if it waited for room, its server goes on.
-spec ended(reference(), throttle()) -> throttle() | unknown.
ended(Ref, #throttle{at_bound = AtBound} = T) ->
    case maps:take(Ref, AtBound) of
        {{Server, State, _}, AtBound1} ->
            _ = is_suspended(State) andalso trunkline_process:resume(Server),
            T#throttle{at_bound = AtBound1};
        error ->
            unknown
    end.

is_suspended(State) -> State =:= stopping orelse State =:= stopped.

%% So much must be free for another reply.
resume(Server, Another, Free, #throttle{bulk_ix = BulkIx, large = Bound} = T) ->
    T1 = at_bound(Server, Another, BulkIx, Bound - Free, T),
    ok = trunkline_process:resume(Server),
    T1.

%% Suspends the server if the level is at the bound. If no process is left to wait for room, the
%% next reply tries again. (A process that is suspended twice must be resumed twice.)
at_bound(Server, Charge, Level, Bound, #throttle{gate = Gate} = T) ->
    case trunkline_gate:level(Gate, Level) >= Bound andalso entry(Server, T) of
        {Ref, {_, free, Pause}} ->
            stop(Ref, Server, Pause, T);
        none ->
            case start(T#throttle.node, Level, Charge) of
                {ok, {_, Ref}} ->
                    trunkline_stats:add(T#throttle.stats, {lane, T#throttle.ix}, waits, 1),
                    stop(Ref, Server, ?PAUSE, T);
                {error, system_limit} ->
                    T
            end;
        _ ->
            T
    end.

stop(Ref, Server, Pause, #throttle{at_bound = AtBound} = T) ->
    ok = suspend(Server, T),
    self() ! {stopped, Ref, false},
    T#throttle{at_bound = AtBound#{Ref => {Server, stopping, Pause}}}.

entry(Server, #throttle{at_bound = AtBound}) ->
    case [Entry || {_, {Pid, _, _}} = Entry <- maps:to_list(AtBound), Pid =:= Server] of
        [Entry] -> Entry;
        [] -> none
    end.

%% A reply has come. If its server had stopped before, another process has sent it.
came(_, #throttle{at_bound = AtBound} = T) when map_size(AtBound) =:= 0 ->
    T;
came(Server, #throttle{at_bound = AtBound} = T) ->
    case entry(Server, T) of
        {Ref, {_, stopped, Pause}} ->
            ok = trunkline_process:resume(Server),
            T#throttle{at_bound = AtBound#{Ref := {Server, delegates, Pause}}};
        _ ->
            T
    end.

start(Node, Level, Charge) ->
    trunkline_process:start(fun() -> spawn_monitor(?MODULE, await, [Node, Level, Charge]) end).

%% Waits for the bytes only: if the node goes, it is the lane that counts the reply.
-spec await(node(), Level :: pos_integer(), trunkline_gate:charge()) -> ok.
await(Node, Level, Charge) ->
    Wanted = trunkline_gate:without_message(Charge),
    _ = trunkline_refused:await_room(Node, Level, Wanted, infinity),
    ok.
