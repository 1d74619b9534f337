%% A hook of Common Test: the nodes of a case that has failed are stopped when it ends. Otherwise
%% they would be busy beside all later cases, which may fail for that.
-module(left_nodes).

-export([started/2]).
-export([init/2, pre_init_per_testcase/4, post_end_per_testcase/5]).

%% A node that cluster:start has started.
started(Peer, OsPid) ->
    ets:info(?MODULE, owner) =:= undefined orelse ets:insert(?MODULE, {Peer, OsPid}),
    ok.

%% The table is there for all suites.
init(_, _) ->
    Self = self(),
    {Pid, Ref} = spawn_monitor(fun() ->
                                       ets:info(?MODULE, owner) =:= undefined
                                           andalso ets:new(?MODULE, [named_table, public]),
                                       Self ! {self(), ready},
                                       receive never -> ok end
                               end),
    receive
        {Pid, ready} -> demonitor(Ref, [flush]), {ok, none};
        {'DOWN', Ref, process, Pid, Reason} -> error(Reason)
    end.

%% Nodes that were started before are the suite's.
pre_init_per_testcase(_, _, Config, State) ->
    true = ets:delete_all_objects(?MODULE),
    {Config, State}.

post_end_per_testcase(_, _, _, Result, State) ->
    case Result of
        Failed when element(1, Failed) =:= failed; element(1, Failed) =:= error;
                    element(1, Failed) =:= timetrap_timeout; element(1, Failed) =:= 'EXIT' ->
            lists:foreach(fun cluster:stop/1, [{Peer, left, OsPid}
                                               || {Peer, OsPid} <- ets:tab2list(?MODULE)]);
        _ ->
            ok
    end,
    {Result, State}.
