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
%% A server behind an inbox replies for the inbox, which got the request (trunkline_bounded). So it
%% is the server that is suspended, and it takes no more of what the inbox has.
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
%%       | -- stopped --------------> |                                     |
%%       |                            | <-------------------------- reply - |
%%       | <---------------- resumes  |                                     |
%%
%% Then it is not suspended any more, until there is room. What its workers reply is bounded by the
%% requests that it has taken. If no reply comes, there may be none that it could send. So it goes
%% on after a while, and is suspended again if it replies: each time for ten times as long, so that
%% these replies are few.
-module(trunkline_throttle).
-moduledoc false.

-export([new/1, small/3, suspend/2, packed/3, long_term/3, looked_through/2]).
-export([came/2, stopped/3, ended/2]).
-export([await/3]).

-export_type([throttle/0, suspended/0]).

-record(throttle,
        {node :: node(),
         gate :: trunkline_gate:gate(),
         stats :: trunkline_stats:stats(),
         ix :: pos_integer(),                   % of the lane
         bulk_ix :: pos_integer(),              % the level of large messages
         small :: trunkline_gate:charge(),      % the bounds of the two levels
         large :: trunkline_gate:charge(),
         %% For each of these servers a process waits for room. The server is being suspended; it
         %% has stopped; it may go on until it replies; or others reply for it. For how long (ms)
         %% it will be suspended.
         at_bound = #{} :: #{Server :: pid() => {reference(),
                                                 stopping | stopped | free | delegates,
                                                 pos_integer()}},
         waiters = #{} :: #{reference() => Server :: pid()},
         %% Servers whose replies were long terms, and what these took.
         long_terms = [] :: [{suspended(), Term :: trunkline_gate:charge()}]}).
-opaque throttle() :: #throttle{}.
-type suspended() :: pid() | none.

%% ms that a server is suspended for the first time, if there is no room.
-define(PAUSE, 1000).

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

%% A large reply has come, and is being packed. Returns which process is suspended meanwhile, for
%% packed/3 or long_term/3: none if others reply for the server. (It may be running; it stops at the
%% next opportunity.)
-spec suspend(Server :: pid(), throttle()) -> suspended().
suspend(Server, #throttle{at_bound = AtBound}) ->
    Replies = trunkline_bounded:behind(Server),
    case AtBound of
        #{Replies := {_, delegates, _}} -> none;
        #{} -> ok = suspend_process(Replies, asynchronous), Replies
    end.

%% It is packed. The server goes on when there is room for another such reply.
-spec packed(suspended(), trunkline_gate:charge(), throttle()) -> throttle().
packed(Suspended, Charge, T) -> resume(Suspended, Charge, 0, came(Suspended, T)).

%% The same for a long term. There may be more of these in the mailbox: the lane will get
%% {looked_through, N}.
-spec long_term(suspended(), Term :: trunkline_gate:charge(), throttle()) -> throttle().
long_term(Suspended, Term, #throttle{long_terms = Terms} = T) ->
    Terms =:= [] andalso look_through(1),
    (came(Suspended, T))#throttle{long_terms = [{Suspended, Term} | Terms]}.

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

%% News of a server at the bound: it has stopped, and all that it has sent is here, or it has ended
%% (then it stays as it is); or it has been suspended for a while.
-spec stopped(reference(), suspended | over | atom(), throttle()) -> throttle().
stopped(Ref, News, #throttle{at_bound = AtBound} = T) ->
    case {News, server(Ref, T)} of
        {suspended, {Server, {Ref, stopping, Pause}}} ->
            _ = erlang:send_after(Pause, self(), {{stopped, Ref}, over}),
            T#throttle{at_bound = AtBound#{Server := {Ref, stopped, 10 * Pause}}};
        {over, {Server, {Ref, stopped, Pause}}} ->
            ok = trunkline_process:resume(Server),
            T#throttle{at_bound = AtBound#{Server := {Ref, free, Pause}}};
        _ ->
            T
    end.

server(Ref, #throttle{waiters = Waiters, at_bound = AtBound}) ->
    case Waiters of
        #{Ref := Server} -> {Server, map_get(Server, AtBound)};
        #{} -> none
    end.

%% A process that was monitored has ended: if it waited for room, its server goes on.
-spec ended(reference(), throttle()) -> throttle() | unknown.
ended(Ref, #throttle{waiters = Waiters, at_bound = AtBound} = T) ->
    case server(Ref, T) of
        {Server, {_, State, _}} ->
            _ = (State =:= stopping orelse State =:= stopped)
                andalso trunkline_process:resume(Server),
            T#throttle{waiters = maps:remove(Ref, Waiters),
                       at_bound = maps:remove(Server, AtBound)};
        none ->
            unknown
    end.

%% So much must be free for another reply.
resume(none, _, _, T) ->
    T;
resume(Server, Another, Free, #throttle{bulk_ix = BulkIx, large = Bound} = T) ->
    T1 = at_bound(Server, Another, BulkIx, Bound - Free, T),
    ok = trunkline_process:resume(Server),
    T1.

at_bound(Server, Charge, Level, Bound, #throttle{gate = Gate} = T) ->
    case trunkline_gate:level(Gate, Level) >= Bound of
        true -> hold(trunkline_bounded:behind(Server), Charge, Level, T);
        false -> T
    end.

%% Suspends the server, for the level is at the bound. If no process is left to wait for room, the
%% next reply tries again. (A process that is suspended twice must be resumed twice.)
hold(Server, Charge, Level, #throttle{at_bound = AtBound} = T) ->
    case maps:get(Server, AtBound, none) of
        {Ref, free, Pause} ->
            stop(Ref, Server, Pause, T);
        none ->
            case start(T#throttle.node, Level, Charge) of
                {ok, {_, Ref}} ->
                    trunkline_stats:add(T#throttle.stats, {lane, T#throttle.ix}, waits, 1),
                    Waiters = (T#throttle.waiters)#{Ref => Server},
                    stop(Ref, Server, ?PAUSE, T#throttle{waiters = Waiters});
                {error, system_limit} ->
                    T
            end;
        _ ->
            T
    end.

%% (Its answer comes behind all that the server has sent before.)
stop(Ref, Server, Pause, #throttle{at_bound = AtBound} = T) ->
    ok = suspend_process(Server, {asynchronous, {stopped, Ref}}),
    T#throttle{at_bound = AtBound#{Server => {Ref, stopping, Pause}}}.

suspend_process(Server, How) ->
    try erlang:suspend_process(Server, [How]) of
        _ -> ok
    catch
        error:badarg -> ok                   % it has ended
    end.

%% A reply has come. If its server had stopped before, another process has sent it.
-spec came(Server :: pid() | none, throttle()) -> throttle().
came(Server, #throttle{at_bound = AtBound} = T) when Server =:= none; map_size(AtBound) =:= 0 ->
    T;
came(Server, #throttle{at_bound = AtBound} = T) ->
    Replies = trunkline_bounded:behind(Server),
    case AtBound of
        #{Replies := {Ref, stopped, Pause}} ->
            ok = trunkline_process:resume(Replies),
            T#throttle{at_bound = AtBound#{Replies := {Ref, delegates, Pause}}};
        #{} ->
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
