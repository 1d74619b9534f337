%% Who monitors what at other nodes, and the process that sees to it that nobody waits in vain.
%%
%% A table has a row for each monitor by lane (trunkline_monitor), from before the
%% command is handed over until its 'DOWN' has been delivered:
%%
%%     {{Caller, Ref}, Session, Object}
%%
%% and another one, small and often read, for each that the keeper, a process of this module, watches:
%%
%%     {Caller, {}}              when it dies its monitors are taken back
%%     {Session, Inlets}         when all of them have ended: noconnection
%%
%% A session is named by the first of its inlets. They deliver what has arrived before they
%% end, in no order among them; therefore all must have ended before a caller is told.
%%
%% Whoever enters a row looks afterwards whether its session is watched, and if not, asks
%% the keeper to. The keeper, at the end of a session, first takes away that mark, and then
%% looks for rows. So each row is seen by one of the two. A keeper that was killed has
%% a successor, which finds in the tables whom to watch; what has ended meanwhile it
%% hears at once. (A process that has monitored something is watched until it dies.)
%%
%% The tables belong to the process that starts and stops the application, so that they
%% outlive whoever is killed, and the callers can be told at the very end.
-module(trunkline_monitors).
-behaviour(gen_server).

-export([create/0, close/0, enter/3, lookup/1, leave/2]).
-export([start_link/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-type object() :: pid() | {RegisteredName :: atom(), node()}.

%% ms until the keeper is asked again after it has died.
-define(AGAIN, 1).

-define(WATCHED, trunkline_monitors_watched).

-record(keeper,
        {watched = #{} :: #{pid() => caller | {inlet_of, Session :: pid()}},
         sessions = #{} :: #{Session :: pid() => Inlets :: pos_integer()}}).     % that have not ended

-spec create() -> ok.
create() ->
    ?MODULE = ets:new(?MODULE, [named_table, public, ordered_set, {write_concurrency, true}]),
    ?WATCHED = ets:new(?WATCHED, [named_table, public, {read_concurrency, true}]),
    ok.

%% The application stops: who still waits is told, and nobody can enter.
-spec close() -> ok.
close() ->
    try ets:rename(?MODULE, trunkline_monitors_closed) of
        Table ->
            lists:foreach(fun({{_, Ref}, _, Object}) -> noconnection(Ref, Object) end, ets:tab2list(Table)),
            true = ets:delete(Table),
            true = ets:delete(?WATCHED),
            ok
    catch
        error:badarg -> ok
    end.

%% The calling process monitors that process, in the session with these inlets. `false':
%% Trunkline has stopped.
-spec enter(reference(), object(), Inlets :: tuple()) -> boolean().
enter(Ref, Object, Inlets) ->
    Session = element(1, Inlets),
    try
        %% Before, should this process be killed;
        is_watched(self()) orelse watch(Inlets),
        true = ets:insert(?MODULE, {{self(), Ref}, Session, Object}),
        %% after, should the session have ended.
        is_watched(Session) orelse watch(Inlets),
        true
    catch
        error:badarg -> false
    end.

is_watched(Pid) -> ets:member(?WATCHED, Pid).

watch(Inlets) ->
    try
        gen_server:call(?MODULE, {watch, self(), Inlets}, infinity)
    catch
        exit:_ ->
            receive after ?AGAIN -> ok end,
            _ = is_watched(self()),          % an error, if there will be no keeper any more
            watch(Inlets)
    end.

%% What the calling process monitors. `none': there is no such monitor, or its 'DOWN' has
%% been sent.
-spec lookup(reference()) -> {ok, object()} | none.
lookup(Ref) ->
    try {ok, ets:lookup_element(?MODULE, {self(), Ref}, 3)}
    catch error:badarg -> none
    end.

%% The 'DOWN' has been sent, or the server's node has been told that nobody waits for it: not
%% before, so that who finds no row finds the message, and that the keeper can do what a
%% process that is killed has not done.
-spec leave(Caller :: pid(), reference()) -> ok.
leave(Caller, Ref) ->
    try ets:delete(?MODULE, {Caller, Ref}) of
        true -> ok
    catch
        error:badarg -> ok
    end.

%% --- the keeper -------------------------------------------------------------------

-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-spec init([]) -> {ok, #keeper{}}.
init([]) ->
    Known = lists:foldl(fun({Pid, {}}, S) -> watch_caller(Pid, S);
                           ({_, Inlets}, S) -> watch_session(Inlets, S)
                        end, #keeper{}, ets:tab2list(?WATCHED)),
    {ok, ets:foldl(fun({_, Session, _}, S) ->
                           %% Without a mark either it has ended, or the caller is about to ask.
                           case is_watched(Session) of
                               true -> S;
                               false -> watch_session({Session}, S)
                           end
                   end, Known, ?MODULE)}.

-spec handle_call(term(), gen_server:from(), #keeper{}) -> {reply, ok | {error, badarg}, #keeper{}}.
handle_call({watch, Caller, Inlets}, _, S) when is_pid(Caller), is_tuple(Inlets) ->
    {reply, ok, watch_session(Inlets, watch_caller(Caller, S))};
handle_call(_, _, S) ->
    {reply, {error, badarg}, S}.

-spec handle_cast(term(), #keeper{}) -> {noreply, #keeper{}}.
handle_cast(_, S) ->
    {noreply, S}.

-spec handle_info(term(), #keeper{}) -> {noreply, #keeper{}}.
handle_info({'DOWN', _, process, Pid, _}, #keeper{watched = Watched, sessions = Sessions} = S) ->
    case maps:take(Pid, Watched) of
        {caller, Watched1} ->
            caller_ended(Pid),
            {noreply, S#keeper{watched = Watched1}};
        {{inlet_of, Session}, Watched1} ->
            S1 = S#keeper{watched = Watched1},
            case Sessions of
                #{Session := 1} ->
                    session_ended(Session),
                    {noreply, S1#keeper{sessions = maps:remove(Session, Sessions)}};
                #{Session := N} ->
                    {noreply, S1#keeper{sessions = Sessions#{Session := N - 1}}}
            end;
        error ->
            {noreply, S}
    end;
handle_info(_, S) ->
    {noreply, S}.

watch_caller(Caller, #keeper{watched = Watched} = S) when is_map_key(Caller, Watched) ->
    S;
watch_caller(Caller, #keeper{watched = Watched} = S) ->
    _ = monitor(process, Caller),
    true = ets:insert(?WATCHED, {Caller, {}}),
    S#keeper{watched = Watched#{Caller => caller}}.

watch_session(Inlets, #keeper{watched = Watched, sessions = Sessions} = S) ->
    Session = element(1, Inlets),
    case [Inlet || Inlet <- tuple_to_list(Inlets), not is_map_key(Inlet, Watched)] of
        [] ->
            S;
        New ->
            lists:foreach(fun(Inlet) -> monitor(process, Inlet) end, New),
            true = ets:insert(?WATCHED, {Session, Inlets}),
            S#keeper{watched = maps:merge(Watched, maps:from_keys(New, {inlet_of, Session})),
                     sessions = Sessions#{Session => maps:get(Session, Sessions, 0) + length(New)}}
    end.

%% Its row is the last one to go, should this process be killed meanwhile.
caller_ended(Caller) ->
    lists:foreach(fun([Ref, Object]) ->
                          true = ets:delete(?MODULE, {Caller, Ref}),
                          trunkline_monitor:cancel(Object, Caller, Ref)
                  end, ets:select(?MODULE, [{{{Caller, '$1'}, '_', '$2'}, [], [['$1', '$2']]}])),
    true = ets:delete(?WATCHED, Caller).

%% The mark has to go first, but a successor must find what this process has not done: in
%% the rows themselves. What the caller has handed over may come to the next session.
session_ended(Session) ->
    true = ets:delete(?WATCHED, Session),
    lists:foreach(fun([Caller, Ref, Object]) ->
                          noconnection(Ref, Object),
                          true = ets:delete(?MODULE, {Caller, Ref}),
                          trunkline_monitor:cancel(Object, Caller, Ref)
                  end, ets:select(?MODULE, [{{{'$1', '$2'}, Session, '$3'}, [], [['$1', '$2', '$3']]}])).

noconnection(Ref, Object) ->
    Ref ! {'DOWN', Ref, process, Object, noconnection},
    ok.
