%% The inboxes of this node: a table that any process may read. trunkline_inboxes writes it.
%%
%%     inbox     by its keeper: what it is, its counters, and the process behind it
%%     server    by its name, until it has ended
%%
%% A supervisor that kills a keeper means the server. The server may trap exits, so it is killed. It
%% ends after its keeper, and the supervisor may start both again before that. So the next keeper of
%% that name waits (await_predecessor/1).
-module(trunkline_own_inboxes).
-moduledoc false.

-export([new/0, add/1, ended/2, server_ended/1]).
-export([await_predecessor/1, is_abandoned/1, all/0, inbox/1, stats/1, work/1, keeper/1,
         behind/1]).

-export_type([inbox/0, registration/0, server/0]).

-type inbox() :: {Keeper :: pid(), Name :: atom(), trunkline_mail:policy(),
                  Bound :: trunkline_share:window()}.
-type registration() :: {inbox(), trunkline_work:work(), trunkline_inbox_stats:stats(), behind()}.
%% A server, or a process that has opened the inbox; none while a server starts.
-type behind() :: {server, trunkline_name:name(), pid()} | {process, pid()} | none.

-record(own,
        {keeper :: pid(),
         inbox :: inbox(),
         work :: trunkline_work:work(),
         stats :: trunkline_inbox_stats:stats(),
         behind :: behind()}).
-record(server,
        {name :: trunkline_name:name(),
         keeper :: pid(),
         pid :: pid()}).
-opaque server() :: #server{}.

-define(TABLE, ?MODULE).

%% --- for trunkline_inboxes ------------------------------------------------------------

%% The table of the calling process.
-spec new() -> ok.
new() ->
    ?TABLE = ets:new(?TABLE, [named_table, protected, {keypos, #own.keeper},
                              {read_concurrency, true}]),
    ok.

-spec add(registration()) -> ok.
add({{Keeper, _, _, _} = Inbox, Work, Stats, Behind}) ->
    _ = [ets:insert(?TABLE, #server{name = Name, keeper = Keeper, pid = Pid})
         || {server, Name, Pid} <- [Behind], Name =/= none],
    true = ets:insert(?TABLE, #own{keeper = Keeper, inbox = Inbox, work = Work, stats = Stats,
                                   behind = Behind}),
    ok.

%% That keeper has ended. When the server behind it has ended, too, the calling process gets
%% {{server_ended, Server}, _, process, _, _}, and calls server_ended/1.
-spec ended(pid(), Reason :: term()) -> ok.
ended(Keeper, Reason) ->
    case ets:take(?TABLE, Keeper) of
        [#own{behind = {server, Name, Pid}}] ->
            %% (`noproc': it may have been killed before this process knew it.)
            _ = lists:member(Reason, [killed, noproc]) andalso exit(Pid, kill),
            Server = #server{name = Name, keeper = Keeper, pid = Pid},
            _ = monitor(process, Pid, [{tag, {server_ended, Server}}]),
            ok;
        _ ->
            ok
    end.

-spec server_ended(server()) -> ok.
server_ended(Server) ->
    true = ets:delete_object(?TABLE, Server),
    ok.

%% --- for all --------------------------------------------------------------------------

%% Waits until the server has ended that was behind the last inbox with that name.
-spec await_predecessor(trunkline_name:name()) -> ok.
await_predecessor(Name) ->
    case lookup(Name) of
        #server{keeper = Keeper, pid = Pid} ->
            case is_process_alive(Keeper) of
                true ->
                    ok;                      % it has given its name away
                false ->
                    Ref = monitor(process, Pid),
                    receive {'DOWN', Ref, process, _, _} -> ok end
            end;
        none ->
            ok
    end.

%% Whether that is a keeper whose process has ended, and which has not yet come to that news.
-spec is_abandoned(pid()) -> boolean().
is_abandoned(Keeper) ->
    case lookup(Keeper) of
        #own{behind = {process, Pid}} -> not is_process_alive(Pid);
        _ -> false
    end.

%% Empty if Trunkline does not run.
-spec all() -> [{inbox(), trunkline_inbox_stats:stats()}].
all() ->
    try ets:tab2list(?TABLE) of
        Rows -> [{Inbox, Stats} || #own{inbox = Inbox, stats = Stats} <- Rows]
    catch
        error:badarg -> []
    end.

-spec inbox(Keeper :: pid()) -> inbox() | none.
inbox(Keeper) -> element_of(#own.inbox, Keeper).

-spec stats(Keeper :: pid()) -> trunkline_inbox_stats:stats() | none.
stats(Keeper) -> element_of(#own.stats, Keeper).

%% The counter of messages that the consumer has and is not done with.
-spec work(pid() | Name :: atom()) -> trunkline_work:work() | none.
work(Inbox) -> element_of(#own.work, Inbox).

%% The keeper of a pid or name of this node.
-spec keeper(pid() | Name :: atom()) -> pid() | none.
keeper(Inbox) -> element_of(#own.keeper, Inbox).

%% The process behind that keeper. Another process stands for itself.
-spec behind(pid()) -> pid().
behind(Pid) ->
    case lookup(Pid) of
        #own{behind = {server, _, Server}} -> Server;
        #own{behind = {process, Process}} -> Process;
        _ -> Pid
    end.

element_of(_, undefined) ->
    none;
element_of(N, Name) when is_atom(Name) ->
    element_of(N, whereis(Name));
element_of(N, Keeper) when is_pid(Keeper) ->
    case lookup(Keeper) of
        #own{} = Own -> element(N, Own);
        _ -> none
    end;
element_of(_, _) ->
    none.                                    % a port, or what is no name of this node

lookup(Key) ->
    try ets:lookup(?TABLE, Key) of
        [Row] -> Row;
        [] -> none
    catch
        error:badarg -> none
    end.
