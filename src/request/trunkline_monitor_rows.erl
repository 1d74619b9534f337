%% The table of all monitors of processes at other nodes (trunkline_monitor). A monitor has a row
%% from before it is set until its 'DOWN' has been delivered:
%%
%%     {{Caller, Ref}, Session, Object, Known}
%%
%% A session of lanes is identified by the first of its inlets; {plain, Watcher} stands for a
%% trunkline_watcher, which uses OTP's own monitors. Known is {watched_by, Watcher} if that watcher
%% has passed the monitor to lanes, and may know more of the process than they do. It is {missing,
%% Watcher} when lanes have found no process: then that watcher tells the caller.
%%
%% Every process may read and write the table, and each change is one operation on one row. So a
%% process that finds its row gone knows that another process has dealt with the monitor.
%% trunkline_monitors decides which process owns the table, and what is watched. If the table does
%% not exist there are no monitors, and only enter/3 fails.
-module(trunkline_monitor_rows).
-moduledoc false.

-include("trunkline_monitors.hrl").

-export([foldl/2, lost/0]).
-export([enter/3, lookup/1, leave/2, take/2, of_caller/1, of_session/1, move/3, node_of/1]).
-export([down/4, missing/2, is_missing/2, of_missing/1, is_plain/2, exists/2]).

-export_type([session/0, monitor/0]).

-type object() :: trunkline_command:object().
-type session() :: pid() | {plain, Watcher :: pid()}.
-type monitor() :: {Caller :: pid(), reference(), object()}.

-spec foldl(fun((session(), object(), Acc) -> Acc), Acc) -> Acc.
foldl(Fun, Acc0) ->
    ets:foldl(fun({_, Session, Object, _}, Acc) -> Fun(Session, Object, Acc) end, Acc0, ?ROWS).

%% No process can watch any more: every caller gets a 'DOWN'.
-spec lost() -> ok.
lost() ->
    lists:foreach(fun({{_, Ref}, _, Object, _}) -> tell(Ref, Object, noconnection) end,
                  ets:tab2list(?ROWS)).

%% Adds a monitor of the calling process. (Fails with badarg if there is no table.)
-spec enter(reference(), session(), object()) -> ok.
enter(Ref, Session, Object) ->
    true = ets:insert(?ROWS, {{self(), Ref}, Session, Object, none}),
    ok.

%% What the calling process monitors. `none': there is no such monitor, or its 'DOWN' has
%% been sent.
-spec lookup(reference()) -> {ok, object(), session()} | none.
lookup(Ref) ->
    try ets:lookup(?ROWS, {self(), Ref}) of
        [{_, Session, Object, _}] -> {ok, Object, Session};
        [] -> none
    catch
        error:badarg -> none
    end.

%% To be called after the 'DOWN' was sent, or after the server's node was told that the monitor is
%% not needed any more. So a process that finds no row finds the message. If the calling process is
%% killed before this, the overseer can still do the work.
-spec leave(Caller :: pid(), reference()) -> ok.
leave(Caller, Ref) ->
    _ = take(Caller, Ref),
    ok.

%% The same. Returns the session that the monitor had at last.
-spec take(Caller :: pid(), reference()) -> session() | none.
take(Caller, Ref) ->
    try ets:take(?ROWS, {Caller, Ref}) of
        [{_, Session, _, _}] -> Session;
        [] -> none
    catch
        error:badarg -> none
    end.

-spec of_caller(pid()) -> [{reference(), session(), object()}].
of_caller(Caller) ->
    ets:select(?ROWS, [{{{Caller, '$1'}, '$2', '$3', '_'}, [], [{{'$1', '$2', '$3'}}]}]).

-spec of_session(session()) -> [monitor()].
of_session(Session) ->
    ets:select(?ROWS, [{{{'$1', '$2'}, Session, '$3', '_'}, [], [{{'$1', '$2', '$3'}}]}]).

%% Moves a monitor to another session. `false': it was demonitored meanwhile, or has ended.
-spec move(monitor(), From :: session(), To :: session()) -> boolean().
move({Caller, Ref, Object}, From, To) ->
    Known = case From of
                {plain, Watcher} when is_pid(To) -> {const, {watched_by, Watcher}};
                _ -> '$1'
            end,
    1 =:= ets:select_replace(?ROWS, [{{{Caller, Ref}, From, '_', '$1'}, [],
                                        [{{{{Caller, Ref}}, {const, To}, {const, Object},
                                           Known}}]}]).

-spec node_of(object()) -> node().
node_of({_, Node}) -> Node;
node_of(Pid) -> node(Pid).

%% The process has ended: the caller is told.
-spec down(Caller :: pid(), reference(), object(), Reason :: term()) -> ok.
down(Caller, Ref, Object, Reason) ->
    tell(Ref, Object, Reason),
    leave(Caller, Ref).

tell(Ref, Object, Reason) ->
    Ref ! {'DOWN', Ref, process, Object, Reason},
    ok.

%% Lanes have found no process. Returns the watcher that has passed the monitor to them, if there is
%% one. It may be dead.
-spec missing(Caller :: pid(), reference()) -> Watcher :: pid() | none.
missing(Caller, Ref) ->
    case field(4, Caller, Ref) of
        {_, Watcher} ->
            try ets:update_element(?ROWS, {Caller, Ref}, {4, {missing, Watcher}}) of
                true -> Watcher;
                false -> none
            catch
                error:badarg -> none
            end;
        none ->
            none
    end.

%% Whether the calling watcher is to tell the caller of that.
-spec is_missing(Caller :: pid(), reference()) -> boolean().
is_missing(Caller, Ref) -> field(4, Caller, Ref) =:= {missing, self()}.

%% The monitors of which that watcher is, or was, to tell the callers.
-spec of_missing(Watcher :: pid()) -> [monitor()].
of_missing(Watcher) ->
    ets:select(?ROWS, [{{{'$1', '$2'}, '_', '$3', {missing, Watcher}}, [],
                        [{{'$1', '$2', '$3'}}]}]).

field(Position, Caller, Ref) ->
    try ets:lookup_element(?ROWS, {Caller, Ref}, Position)
    catch error:badarg -> none
    end.

%% Whether the calling watcher has the monitor: no lane has it, and it was not demonitored.
-spec is_plain(Caller :: pid(), reference()) -> boolean().
is_plain(Caller, Ref) -> field(2, Caller, Ref) =:= {plain, self()}.

%% `false': it was demonitored, or its 'DOWN' has been sent.
-spec exists(Caller :: pid(), reference()) -> boolean().
exists(Caller, Ref) -> field(2, Caller, Ref) =/= none.
