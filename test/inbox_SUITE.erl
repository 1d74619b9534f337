%% Inboxes: what is behind one works as it did before, nobody has more than the bound, and
%% nobody waits for ever.
-module(inbox_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, groups/0, suite/0]).
-export([names/1, name_taken/1, statem_modes/1, thrown_results/1, start_answers/1, start_reports/1,
         supervised/1,
         ends_together/1, ends_for_its_server/1, parent_ends/1, exit_signals/1, crash_loop/1]).
-export([system_messages/1, shown_by_its_module/1, new_code/1, sleeps/1, looks_again/1]).
-export([short_mailbox/1, slow_start/1, overload/1, all_lost/1, own_requests/1,
         takes_by_itself/1, few_long_ones/1, block/1,
         block_bytes/1, reject/1, drop_newest/1, drop_oldest/1, drop_flood/1, burst/1,
         urgent_burst/1, behind_no_more/1, quick_server/1, calls_stay/1, urgent/1]).
-export([work/1, no_more_done/1, not_an_inbox/1, bad_options/1, odd_arguments/1, told_of_drops/1,
         no_run/1, closed/1, topped_up/1, asked_by_tools/1, name_passed_on/1, name_moves/1,
         info_connects_to_no_node/1, without_trunkline/1,
         requests_refused/1, wrong_server_options/1, done_alone/1, opened_again/1]).
-export([stalled_beside_lane/1, replies_bounded/1]).
-export([consumer_dies/1, producers_killed/1, killed_when_told/1, sending_node_dies/1,
         receiving_node_dies/1, lanes_killed/1, inboxes_killed/1, opened_meanwhile/1,
         application_restarted/1,
         killed_and_started_again/1, killed_and_known_later/1, starter_killed/1, waiters_killed/1,
         keeper_killed/1, disconnected/1, stopped_and_continued/1, late_introduction/1]).
-export([is_urgent/1, crash_report/1, last_state/1]).

-define(NAME, post).
%% ms: for what needs an audit or two
-define(LONG, 90_000).
%% The tests' own calls, which are not bounded.
-define(CALLS, 3).

suite() -> [{timetrap, {minutes, 10}}].

all() -> [{group, servers}, {group, tools}, {group, floods}, {group, processes}, {group, lanes},
          {group, faults}].

groups() ->
    [{servers, [names, name_taken, statem_modes, thrown_results, start_answers, start_reports,
               supervised,
                ends_together, ends_for_its_server, parent_ends, exit_signals, crash_loop]},
     {tools, [system_messages, shown_by_its_module, new_code, sleeps, looks_again]},
     {floods, [short_mailbox, slow_start, overload, all_lost, own_requests, takes_by_itself,
               few_long_ones, block, block_bytes, reject, drop_newest, drop_oldest,
               drop_flood, burst, urgent_burst, behind_no_more, quick_server, calls_stay,
               urgent]},
     {processes, [work, no_more_done, not_an_inbox, bad_options, odd_arguments, told_of_drops,
                  closed, topped_up, asked_by_tools, name_passed_on, name_moves,
                  info_connects_to_no_node, without_trunkline, requests_refused,
                  wrong_server_options, done_alone, opened_again, no_run]},
     {lanes, [stalled_beside_lane, replies_bounded]},
     {faults, [consumer_dies, producers_killed, killed_when_told, sending_node_dies,
               receiving_node_dies, lanes_killed, inboxes_killed, opened_meanwhile,
               application_restarted,
               killed_and_started_again, killed_and_known_later, starter_killed, waiters_killed,
               keeper_killed, disconnected, stopped_and_continued, late_introduction]}].

%% A keeper to which nothing comes sleeps. When more comes it looks once a second again, for events
%% and counters.
looks_again(_) ->
    B = cluster:start([]),
    ok = cluster:call(
           B, fun() ->
                      {ok, Keeper} = mailroom:start({local, ?NAME}, #{}, #{}),
                      _ = trunkline:send(?NAME, {from, 1, 1, x}),
                      cluster:await(fun() -> sleeps_now(Keeper) end),
                      1 = erlang:trace_pattern({erlang, start_timer, 3}, true, []),
                      1 = erlang:trace(Keeper, true, [call]),
                      _ = trunkline:send(?NAME, {from, 1, 2, x}),
                      receive
                          {trace, _, call, {erlang, start_timer, [1000, _, '$inbox_quiet']}} -> ok
                      after ?LONG -> exit(not_started)
                      end
              end),
    cluster:stop(B).

%% --- servers ------------------------------------------------------------------------

%% With every kind of name, from here and from another node, by gen_server and by Trunkline.
names(_) ->
    {A, B} = cluster:pair([]),
    ok = cluster:call(B, fun() -> persistent_term:put(mailroom_statem, handle_event_function) end),
    Via = {via, mailroom, {post_via, cluster:node_of(B)}},
    lists:foreach(
      fun({Module, {Name, Local, Remote}}) ->
              {ok, Pid} = cluster:call(B, mailroom, start, [Name, Module, #{list => true}, #{}]),
              %% What is meant for the one before is lost.
              is_atom(Local) andalso await_known([A], B),
              ok = cluster:call(B, fun() -> talk(Local) end),
              ok = cluster:call(A,
                                fun() -> talk(case Remote of its_pid -> Pid; _ -> Remote end) end),
              ok = cluster:call(B, fun() -> talk(Pid) end),
              ok = cluster:call(A, fun() -> talk(Pid) end),
              List = cluster:call(B, gen_server, call, [Local, list, ?LONG]),
              ?assertEqual(4, length([x || {cast_by_gen, 1} <- untyped(List)])),
              ?assertEqual(4, length([x || {cast_by_trunkline, 1} <- untyped(List)])),
              %% send/2 takes no global names.
              ?assertEqual(length([x || To <- [Local, Remote, its_pid, its_pid], is_sendable(To)]),
                           length([x || {sent, 1} <- untyped(List)])),
              is_atom(Local) andalso multi(A, B, Local),
              ok = cluster:call(B, fun() -> stop(Pid) end)
      end, [{Module, Name} || Module <- [mailroom, mailroom_statem],
                              Name <- [{{local, ?NAME}, ?NAME, {?NAME, cluster:node_of(B)}},
                                       %% (These nodes do not tell each other of global names.)
                                       {{global, post_all}, {global, post_all}, its_pid},
                                       {Via, Via, Via}]]),
    cluster:stop_all([A, B]).

%% A gen_statem also says how it came.
untyped(List) -> [case Item of {_, Tag, N} -> {Tag, N}; _ -> Item end || Item <- List].

is_sendable(To) ->
    not lists:member(element(1, if is_tuple(To) -> To; true -> {To} end), [global, via]).

talk(To) ->
    1 = gen_server:call(To, {echo, 1}, infinity),
    2 = trunkline:call(To, {echo, 2}, infinity),
    {reply, 3} = gen_server:receive_response(gen_server:send_request(To, {echo, 3}), ?LONG),
    {reply, 4} = trunkline:receive_response(trunkline:send_request(To, {echo, 4}), ?LONG),
    5 = gen_statem:call(To, {echo, 5}, infinity),
    ok = gen_server:cast(To, {from, cast_by_gen, 1, x}),
    ok = trunkline:cast(To, {from, cast_by_trunkline, 1, x}),
    _ = [{from, sent, 1, x} = trunkline:send(To, {from, sent, 1, x}) || is_sendable(To)],
    %% By now all of it has come: trunkline's and gen_server's ways are not one.
    6 = gen_server:call(To, {echo, 6}, infinity),
    7 = trunkline:call(To, {echo, 7}, infinity),
    ok.

multi(A, B, Name) ->
    Nodes = [cluster:node_of(N) || N <- [A, B]],
    ?assertEqual({[{cluster:node_of(B), x}], [cluster:node_of(A)]},
                 cluster:call(A, gen_server, multi_call, [Nodes, Name, {echo, x}, ?LONG])).

stop(Pid) ->
    Ref = monitor(process, Pid),
    stopping = gen_server:call(Pid, {stop, shutdown}, infinity),
    receive {'DOWN', Ref, process, Pid, shutdown} -> ok after ?LONG -> timeout end.

%% When it ends, its name may be another process's already, or nobody's.
name_taken(_) ->
    B = cluster:start([]),
    ok = cluster:call(
           B,
           fun() ->
                   Successor = spawn(fun() -> receive end_of_test -> ok end end),
                   lists:foreach(
                     fun({Name, IsTaken}) ->
                             {ok, Pid} = mailroom:start(Name, #{}, #{}),
                             true = unregister(?NAME),
                             IsTaken andalso register(?NAME, Successor),
                             ok = stop(Pid),
                             IsTaken = whereis(?NAME) =:= Successor,
                             IsTaken andalso unregister(?NAME)
                     end, [{Name, IsTaken} || Name <- [{local, ?NAME},
                                                       {via, mailroom, {?NAME, node()}}],
                                              IsTaken <- [true, false]])
           end),
    cluster:stop(B).

%% Every callback mode; what is postponed comes later, once, in order, and holds nothing up:
%% it is more than the server may have at a time.
statem_modes(_) ->
    B = cluster:start([]),
    lists:foreach(
      fun(Mode) ->
              ok = cluster:call(B, persistent_term, put, [mailroom_statem, Mode]),
              {ok, Pid} = cluster:call(B, mailroom, start,
                                       [{local, ?NAME}, mailroom_statem, #{}, #{work => 4}]),
              {Entered, List} =
                  cluster:call(
                    B, fun() ->
                               ok = gen_statem:call(?NAME, {go, shut}, infinity),
                               _ = [trunkline:send(?NAME, {from, info, N, x})
                                    || N <- lists:seq(1, 30)],
                               _ = [gen_statem:cast(?NAME, {from, cast, N, x})
                                    || N <- lists:seq(1, 30)],
                               ok = gen_statem:call(?NAME, {go, open}, infinity),
                               through = gen_statem:call(?NAME, {thrown, through}, infinity),
                               {gen_statem:call(?NAME, entered, infinity),
                                gen_statem:call(?NAME, list, infinity)}
                       end),
              ?assertEqual([{info, info, N} || N <- lists:seq(1, 30)]
                           ++ [{cast, cast, N} || N <- lists:seq(1, 30)], List),
              ?assertEqual(case is_list(Mode) of
                               true -> [{open, open}, {open, shut}, {shut, open}];
                               false -> []
                           end, Entered),
              cluster:await(fun() -> idle(B) end),
              ok = cluster:call(B, fun() -> stop(Pid) end)
      end, [state_functions, handle_event_function, [state_functions, state_enter],
            [state_enter, handle_event_function]]),
    cluster:stop(B).

%% Nothing is in it, and the server has done all it got.
idle(Node) -> cluster:call(Node, fun idle/0).

idle() ->
    case trunkline_inbox:info(?NAME) of
        #{queued_messages := 0, queued_bytes := 0, in_work := 0} -> true;
        Info -> Info
    end.

%% A callback may throw what it answers. More often than messages may be in work.
thrown_results(_) ->
    B = cluster:start([]),
    lists:foreach(
      fun(Module) ->
              ok = cluster:call(B, persistent_term, put, [mailroom_statem, handle_event_function]),
              {ok, Pid} = cluster:call(B, mailroom, start,
                                       [{local, ?NAME}, Module, #{list => true}, #{work => 4}]),
              ok = cluster:call(
                     B, fun() ->
                                lists:foreach(
                                  fun(N) -> N = gen_server:call(?NAME, {thrown, N}, infinity),
                                            ?NAME ! {thrown, {from, a, N, x}},
                                            gen_server:cast(?NAME, {thrown, {from, b, N, x}})
                                  end, lists:seq(1, 20))
                        end),
              cluster:await(fun() -> idle(B) end),
              ok = cluster:call(B, fun() -> stop(Pid) end)
      end, [mailroom, mailroom_statem]),
    cluster:stop(B).

%% What does not start says so as it would without an inbox, to who waits and to who is linked.
start_answers(_) ->
    B = cluster:start([]),
    ok = cluster:call(B, logger, set_primary_config, [level, none]),
    ok = cluster:call(B, persistent_term, put, [mailroom_statem, handle_event_function]),
    lists:foreach(
      fun({Module, Kind, Name, How}) ->
              Plain = cluster:call(
                        B, fun() -> ends(fun() -> Kind:start_link(Name, Module, How, []) end) end),
              Ours = cluster:call(
                       B,
                       fun() ->
                               ends(fun() -> trunkline_inbox:start_link(Name, Module, How, []) end)
                       end),
              ?assertEqual(Plain, Ours),
              ?assertEqual(undefined, cluster:call(B, erlang, whereis, [?NAME]))
      end, [{Module, Kind, Name, How}
            || {Module, Kind} <- [{mailroom, gen_server}, {mailroom_statem, gen_statem}],
               Name <- [{local, ?NAME}, {global, ?NAME}],
               How <- [#{init => ignore}, #{init => {stop, gone}}, #{init => {stop, normal}},
                       #{init => {stop, shutdown}}, #{init => {error, gone}}, #{init => crash},
                       #{init => nonsense}]]
      ++ [{mailroom, gen_server, {local, code_server}, #{}},
          {mailroom_statem, gen_statem, {local, code_server}, #{}}]),
    %% Without a name.
    {ok, Pid} =
        cluster:call(
          B, fun() -> mailroom:own(fun() -> trunkline_inbox:start_link(mailroom, #{}, []) end) end),
    x = cluster:call(B, gen_server, call, [Pid, {echo, x}]),
    cluster:stop(B).

%% A start that fails is reported as without an inbox.
start_reports(_) ->
    B = cluster:start([]),
    ok = cluster:call(B, kept_log, keep, [error, #{}, fun ?MODULE:crash_report/1]),
    lists:foreach(
      fun(How) ->
              Reports = fun(Module) ->
                                _ = ends(fun() -> Module:start_link(mailroom, How, []) end),
                                length(kept_log:kept())
                        end,
              [Before, Plain, Ours] = cluster:call(B, fun() -> [length(kept_log:kept()),
                                                               Reports(gen_server),
                                                               Reports(trunkline_inbox)] end),
              ?assertEqual({How, Plain - Before}, {How, Ours - Plain})
      end, [#{init => ignore}, #{init => {stop, gone}}, #{init => {stop, normal}},
            #{init => crash}, #{init => nonsense}]),
    [_ | _] = cluster:call(B, kept_log, kept, []),
    cluster:stop(B).

%% The handler takes its time.
crash_report(#{msg := {report, #{label := {proc_lib, crash}}}}) ->
    receive after 100 -> {true, crash} end;
crash_report(_) ->
    false.

%% The answer, and with which reason what was started has ended.
ends(Start) ->
    mailroom:own(fun() ->
                         Answer = case Start() of
                                      {error, {Reason, [{_, _, _, _} | _]}} ->
                                          {error, {Reason, stack}};
                                      Other -> Other
                                  end,
                         %% Nothing started is left, and what there is to hear of it has come.
                         cluster:await(fun() -> process_info(self(), links) =:= {links, []} end),
                         receive
                             %% (A gen_statem's own has a stack where its answer has none.)
                             {'EXIT', _, {Why, [{_, _, _, _} | _]}} -> {Answer, Why};
                             {'EXIT', _, Why} -> {Answer, Why}
                         after 0 ->
                                 {Answer, nothing}
                         end
                 end).

%% A supervisor takes it for the server, and ends it as one.
supervised(_) ->
    B = cluster:start([]),
    ok = cluster:call(B, logger, set_primary_config, [level, none]),
    ok = cluster:call(
           B,
           fun() ->
                   Self = self(),
                   Spec = #{id => post, shutdown => ?LONG,
                            start =>
                                {trunkline_inbox, start_link,
                                 [{local, ?NAME}, mailroom, #{trap => true, tell => Self}, []]}},
                   {ok, Sup} = mailroom:supervise([Spec]),
                   Pid = whereis(?NAME),
                   [{post, Pid, worker, [trunkline_inbox]}] = supervisor:which_children(Sup),
                   Server = gen_server:call(?NAME, self, infinity),
                   {mailroom, init, 1} = proc_lib:translate_initial_call(Server),
                   %% Full, and standing still until it is told: the supervisor waits for it.
                   ok = mailroom:hold(?NAME),
                   Ender = spawn_monitor(fun() -> exit(supervisor:terminate_child(Sup, post)) end),
                   {Ending, _} = Ender,
                   true = is_process_alive(Ending),
                   Server ! release,
                   receive {terminated, Server, shutdown} -> ok end,
                   receive {'DOWN', _, process, Ending, ok} -> ok end,
                   [false, false] = [is_process_alive(P) || P <- [Pid, Server]],
                   undefined = whereis(?NAME),
                   {ok, Again} = supervisor:restart_child(Sup, post),
                   x = gen_server:call(?NAME, {echo, x}, infinity),
                   ok = supervisor:terminate_child(Sup, post),
                   false = is_process_alive(Again),
                   receive {terminated, _, shutdown} -> ok end,
                   ok = supervisor:delete_child(Sup, post),
                   %% brutal_kill: the server goes too.
                   {ok, Brutal} = supervisor:start_child(
                                    Sup, Spec#{shutdown => brutal_kill,
                                               start => {trunkline_inbox, start_link,
                                                         [{local, ?NAME}, mailroom, #{}, []]}}),
                   Server2 = gen_server:call(Brutal, self, infinity),
                   Ref = monitor(process, Server2),
                   ok = supervisor:terminate_child(Sup, post),
                   receive {'DOWN', Ref, process, Server2, killed} -> ok end,
                   ok = supervisor:delete_child(Sup, post),
                   %% Or when it does not end in time, one that traps exits and does nothing any
                   %% more.
                   lists:foreach(
                     fun(Shutdown) ->
                             {ok, Stuck} = supervisor:start_child(Sup, Spec#{shutdown => Shutdown}),
                             Server3 = gen_server:call(Stuck, self, infinity),
                             Ref3 = monitor(process, Server3),
                             ok = mailroom:hold(?NAME),
                             ok = supervisor:terminate_child(Sup, post),
                             receive
                                 {'DOWN', Ref3, process, Server3, killed} -> ok
                             after ?LONG -> exit(survived)
                             end,
                             receive
                                 {terminated, _, _} = Terminated -> exit(Terminated)
                             after 0 -> ok
                             end,
                             ok = supervisor:delete_child(Sup, post)
                     end, [brutal_kill, 100])
           end),
    cluster:stop(B).

%% Whichever of the two ends, and however, the other does with the same reason; callers and
%% monitors at both nodes are told that of the server.
ends_together(_) ->
    {A, B} = cluster:pair([]),
    ok = cluster:call(B, logger, set_primary_config, [level, none]),
    ok = cluster:call(B, persistent_term, put, [mailroom_statem, handle_event_function]),
    To = {?NAME, cluster:node_of(B)},
    lists:foreach(
      fun({Module, How, Reason}) ->
              {ok, Pid} = cluster:call(B, mailroom, start, [{local, ?NAME}, Module, #{}, #{}]),
              Told = cluster:call(A, fun() -> watcher(Pid) end),
              {Server, Ends} = cluster:call(B, fun() -> ended(How, Pid) end),
              ?assertEqual([Reason, Reason], Ends),
              ?assertEqual(Reason,
                           cluster:call(A, fun() ->
                                                   Told ! {tell, self()},
                                                   receive {Told, R} -> R after ?LONG -> timeout end
                                           end)),
              ?assertMatch(
                 {exit, {noproc, _}},
                 cluster:call(
                   B, fun() -> traffic:attempt(fun() -> gen_server:call(Server, x) end) end)),
              ?assertMatch(
                 {exit, {noproc, _}},
                 cluster:call(A, fun() -> traffic:attempt(fun() -> trunkline:call(To, x) end) end))
      end, [{Module, How, Reason}
            || Module <- [mailroom, mailroom_statem],
               {How, Reason} <- [{{server, kill}, killed}, {{keeper, kill}, killed},
                                 {{server, oops}, oops}, {{keeper, oops}, oops},
                                 {{call, {stop, normal}}, normal},
                                 {{call, {stop, {shutdown, x}}}, {shutdown, x}},
                                 {{call, {exit, boom}}, boom}, {{call, {exit, kill}}, kill},
                                 {{call, {stop, reason}}, reason}]]),
    %% Who is calling hears of the same.
    {ok, _} = cluster:call(B, mailroom, start, [{local, ?NAME}, mailroom, #{}, #{}]),
    ?assertMatch({exit, {boom, {trunkline, call, [To, {exit, boom}]}}},
                 cluster:call(
                   A, fun() -> traffic:attempt(fun() -> trunkline:call(To, {exit, boom}) end) end)),
    cluster:stop_all([A, B]).

%% Its reason is the server's, whatever becomes of those that are linked to it at the same moment.
ends_for_its_server(_) ->
    B = cluster:start([]),
    ok = cluster:call(B, logger, set_primary_config, [level, none]),
    [ok = cluster:call(B, fun() -> ends_with(10) end) || _ <- lists:seq(1, 30)],
    cluster:stop(B).

ends_with(N) ->
    {ok, Pid} = mailroom:start({local, ?NAME}, #{}, #{}),
    Server = gen_server:call(Pid, self, infinity),
    Self = self(),
    Linked = [spawn(fun() ->
                            link(Pid),
                            Ref = monitor(process, Server),
                            Self ! {self(), linked},
                            receive {'DOWN', Ref, process, _, _} -> exit({linked, I}) end
                    end) || I <- lists:seq(1, N)],
    [receive {P, linked} -> ok end || P <- Linked],
    Ref = monitor(process, Pid),
    ok = gen_server:stop(Pid, {some, reason}, infinity),
    receive {'DOWN', Ref, process, Pid, Reason} -> {some, reason} = Reason end,
    ok.

%% It watches when this returns.
watcher(Pid) ->
    Self = self(),
    Watcher = spawn(fun() ->
                            Ref = monitor(process, Pid),
                            true = is_pid(gen_server:call(Pid, self, infinity)),
                            Self ! {self(), ready},
                            receive
                                {'DOWN', Ref, process, Pid, Reason} ->
                                    receive {tell, From} -> From ! {self(), Reason} end
                            end
                    end),
    receive {Watcher, ready} -> Watcher end.

ended(How, Pid) ->
    Server = gen_server:call(Pid, self, infinity),
    Refs = [monitor(process, P) || P <- [Pid, Server]],
    %% (The runtime system may hold a monitor signal back, and exit signals overtake it.)
    [cluster:await(fun() ->
                           {monitored_by, By} = process_info(P, monitored_by),
                           lists:member(self(), By)
                   end) || P <- [Pid, Server]],
    _ = case How of
            {server, Reason} -> exit(Server, Reason);
            {keeper, Reason} -> exit(Pid, Reason);
            {call, What} -> traffic:attempt(fun() -> gen_server:call(Pid, What) end)
        end,
    {Server, [receive {'DOWN', Ref, process, _, R} -> R after ?LONG -> timeout end || Ref <- Refs]}.

%% Who has started it ends normally: a server that does not trap exits stays, as it would
%% without an inbox; one that does ends, in its own way, whatever the reason.
parent_ends(_) ->
    B = cluster:start([]),
    ok = cluster:call(
           B, fun() ->
                      Start = fun(How) ->
                                      {Pid, Ref} =
                                          spawn_monitor(
                                            fun() -> {ok, P} = trunkline_inbox:start_link(
                                                                 {local, ?NAME}, mailroom, How, []),
                                                     exit({shutdown, P}) end),
                                      receive {'DOWN', Ref, process, Pid, {shutdown, P}} -> P end
                              end,
                      Normal = fun(How) ->
                                       Self = self(),
                                       {Pid, Ref} =
                                           spawn_monitor(
                                             fun() ->
                                                     {ok, P} = trunkline_inbox:start_link(
                                                                 {local, ?NAME}, mailroom, How, []),
                                                     Self ! {started, P}
                                             end),
                                       receive {'DOWN', Ref, process, Pid, normal} -> ok end,
                                       receive {started, P} -> P end
                               end,
                      Down = fun(P) -> Ref = monitor(process, P),
                                       receive
                                           {'DOWN', Ref, process, P, R} -> R
                                       after ?LONG -> timeout
                                       end end,
                      First = Start(#{}),
                      true = lists:member(Down(First), [{shutdown, First}, noproc]),
                      Second = Normal(#{trap => true}),
                      true = lists:member(Down(Second), [normal, noproc]),
                      Test = self(),
                      {Parent, _} =
                          spawn_monitor(
                            fun() -> {ok, _} = trunkline_inbox:start_link(
                                                 mailroom, #{trap => true, tell => Test}, []),
                                     exit(kill) end),
                      receive {'DOWN', _, process, Parent, kill} -> ok end,
                      receive {terminated, _, kill} -> ok after ?LONG -> exit(not_told) end,
                      Third = Normal(#{}),
                      x = gen_server:call(Third, {echo, x}, infinity),
                      true = is_process_alive(Third),
                      exit(Third, kill),
                      ok
              end),
    cluster:stop(B).

%% A link to it is one to the server.
exit_signals(_) ->
    B = cluster:start([]),
    ok = cluster:call(
           B,
           fun() ->
                   Linked = fun(Reason) ->
                                    {Pid, Ref} = spawn_monitor(
                                                   fun() -> link(whereis(?NAME)), exit(Reason) end),
                                    receive {'DOWN', Ref, process, Pid, Reason} -> Pid end
                            end,
                   %% It traps exits: it is told by whom.
                   {ok, First} = mailroom:start({local, ?NAME}, #{trap => true, list => true}, #{}),
                   %% (One after the other: signals of different processes have no order.)
                   Told = fun(Exits) -> cluster:await(
                                          fun() -> case gen_server:call(?NAME, list, infinity) of
                                                       Exits -> true;
                                                       Other -> Other
                                                   end end) end,
                   P1 = Linked(normal),
                   Told([{'EXIT', P1, normal}]),
                   P2 = Linked(oops),
                   Told([{'EXIT', P1, normal}, {'EXIT', P2, oops}]),
                   exit(First, hello),
                   Told([{'EXIT', P1, normal}, {'EXIT', P2, oops}, {'EXIT', self(), hello}]),
                   exit(First, kill),
                   cluster:await(fun() -> whereis(?NAME) =:= undefined end),
                   %% It does not: normal ends are nothing to it.
                   {ok, Second} = mailroom:start({local, ?NAME}, #{}, #{}),
                   _ = Linked(normal),
                   Server = gen_server:call(?NAME, self, infinity),
                   Ref = monitor(process, Second),
                   Ref2 = monitor(process, Server),
                   _ = Linked(oops),
                   receive {'DOWN', Ref, process, Second, oops} -> ok end,
                   receive {'DOWN', Ref2, process, Server, oops} -> ok end,
                   %% And its own end is told to who is linked to it.
                   {ok, Third} = mailroom:start({local, ?NAME}, #{}, #{}),
                   away = mailroom:own(
                            fun() ->
                                    link(Third),
                                    _ = traffic:attempt(
                                          fun() -> gen_server:call(Third, {stop, away}) end),
                                    receive {'EXIT', Third, R} -> R after ?LONG -> timeout end
                            end),
                   ok
           end),
    cluster:stop(B).

%% It crashes, again and again, with a full inbox: the name comes back, and who waited goes on.
crash_loop(_) ->
    {A, B} = cluster:pair([]),
    ok = cluster:call(B, logger, set_primary_config, [level, none]),
    {ok, _} = cluster:call(B, mailroom, supervise, [[spec(#{messages => 200})]]),
    To = {?NAME, cluster:node_of(B)},
    Senders = [{N,
                cluster:call(N, mailroom, senders,
                             [To, [{cluster:node_of(N), I} || I <- lists:seq(1, 8)], infinity, 50])}
               || N <- [A, B]],
    lists:foreach(fun(Round) ->
                          Before = await_server(B, undefined),
                          cluster:await(fun() -> tags(B) =:= 16 end),
                          Round rem 2 =:= 0
                              andalso begin ok = cluster:call(B, mailroom, hold, [?NAME]), ok end,
                          true = cluster:call(B, fun() -> exit(Before, crash) end),
                          _ = await_server(B, Before)
                  end, lists:seq(1, 20)),
    cluster:await(fun() -> tags(B) =:= 16 end),
    stopped(Senders),
    cluster:stop_all([A, B]).

spec(Inbox) -> spec(#{}, Inbox).

spec(How, Inbox) ->
    #{id => post,
      start => {trunkline_inbox, start_link, [{local, ?NAME}, mailroom, How, [{inbox, Inbox}]]}}.

%% The server itself, when it is another one than before.
await_server(B, Before) ->
    Server = fun() ->
                     cluster:call(
                       B,
                       fun() ->
                               traffic:attempt(fun() -> gen_server:call(?NAME, self, infinity) end)
                       end)
             end,
    Test = self(),
    cluster:await(fun() -> case Server() of
                               {ok, Pid} when Pid =/= Before -> Test ! {server, Pid}, true;
                               Other -> Other
                           end end),
    receive {server, Pid} -> Pid end.

%% How many have been heard of.
tags(B) -> map_size(summary(B)).

summary(B) ->
    case cluster:call(B, fun() -> traffic:attempt(fun() -> mailroom:summary(?NAME) end) end) of
        {ok, Summary} -> Summary;
        _ -> #{}
    end.

%% None of them is stuck.
stopped(Senders) ->
    lists:foreach(fun({Node, Pids}) ->
                          Sent = cluster:call(Node, mailroom, collect, [Pids, stop]),
                          ?assertEqual([], [Other || Other <- Sent, not is_integer(Other)])
                  end, Senders).

%% --- tools ----------------------------------------------------------------------------

%% They pass the mail, and are about the module's own state.
system_messages(_) ->
    B = cluster:start([]),
    ok = cluster:call(B, persistent_term, put,
                      [mailroom_statem, [handle_event_function, state_enter]]),
    ok = cluster:call(
           B, fun() ->
                      {ok, _} = mailroom:start({local, ?NAME}, #{}, #{work => 4}),
                      #{summary := #{}} = sys:get_state(?NAME),
                      #{summary := changed} =
                          sys:replace_state(?NAME, fun(S) -> S#{summary := changed} end),
                      changed = gen_server:call(?NAME, summary, infinity),
                      _ = sys:replace_state(?NAME, fun(S) -> S#{summary := #{}} end),
                      ok = sys:suspend(?NAME),
                      Pids = mailroom:senders(?NAME, [a, b], 100, 10),
                      {status, _, {module, gen_server}, [_, suspended | _]} = sys:get_status(?NAME),
                      {exit, {timeout, _}} =
                          traffic:attempt(fun() -> gen_server:call(?NAME, {echo, x}, 50) end),
                      ok = sys:change_code(?NAME, mailroom, vsn, extra),
                      ok = sys:resume(?NAME),
                      [100, 100] = mailroom:collect(Pids, finish),
                      cluster:await(
                        fun() -> case mailroom:summary(?NAME) of
                                     #{a := {100, 100, []}, b := {100, 100, []}} -> true;
                                     Other -> Other end end),
                      ok = sys:terminate(?NAME, normal),
                      cluster:await(fun() -> whereis(?NAME) =:= undefined end),
                      %% Shown as the module wants it, with what is postponed as it was sent.
                      {ok, _} = mailroom:start({local, ?NAME}, mailroom_statem, #{}, #{work => 4}),
                      {open, #{list := []}} = sys:get_state(?NAME),
                      ok = gen_statem:call(?NAME, {go, shut}, infinity),
                      _ = [trunkline:send(?NAME, {from, seen, N, x}) || N <- lists:seq(1, 10)],
                      cluster:await(fun() -> idle() end),
                      ok = sys:suspend(?NAME),
                      {status, _, _, [_, suspended, _, _, Misc]} = sys:get_status(?NAME),
                      Text = lists:flatten(io_lib:format("~w", [Misc])),
                      {match, _} = re:run(Text, "shown"),
                      {match, _} = re:run(Text, "from,seen,10,x"),
                      nomatch = re:run(Text, "\\$inbox"),
                      ok = sys:resume(?NAME),
                      ok = sys:terminate(?NAME, normal),
                      ok
              end),
    cluster:stop(B).

%% What tools and the log show of a server is what they show without an inbox, whichever callback
%% its module has for that.
shown_by_its_module(_) ->
    B = cluster:start([]),
    ok = cluster:call(B, kept_log, keep, [error, #{}, fun ?MODULE:last_state/1]),
    lists:foreach(
      fun(Kind) ->
              [?assertEqual({Kind, Callback, shown(B, Kind, Kind, Callback)},
                            {Kind, Callback, shown(B, trunkline_inbox, Kind, Callback)})
               || Callback <- ["",
                               "format_status(M) -> M#{state := {shown, maps:keys(M)}}.",
                               "format_status(#{}) -> none.",
                               "format_status(M) -> maps:get(no, M).",
                               "format_status(Why, [[_ | _] | Shown]) -> {Why, Shown}.",
                               "format_status(_, [_ | S]) -> [{data, [{\"State\", {is, S}}]}].",
                               "format_status(_, _) -> throw(thrown).",
                               "format_status(_, _) -> exit(no)."]]
      end, [gen_server, gen_statem]),
    cluster:stop(B).

%% By sys:get_status/1, and when it ends by an error.
shown(B, How, Kind, Callback) ->
    cluster:call(
      B, fun() ->
                 ok = load(showing,
                           ["-compile([export_all, nowarn_export_all])."]
                           ++ ["callback_mode() -> handle_event_function."
                               || Kind =:= gen_statem]
                           ++ [case Kind of
                                   gen_server -> "init(_) -> {ok, own_state}.";
                                   gen_statem -> "init(_) -> {ok, own_state, own_data}."
                               end,
                               "handle_cast(end_it, _) -> exit(asked).",
                               "handle_event(cast, end_it, _, _) -> exit(asked).", Callback]),
                 Before = length(kept_log:kept()),
                 {ok, Pid} = mailroom:own(fun() -> How:start_link(showing, [], []) end),
                 {status, _, {module, Kind}, [_, running, _, _, [_, _ | Shown]]} =
                     sys:get_status(Pid),
                 gen_server:cast(Pid, end_it),
                 cluster:await(fun() -> not is_process_alive(Pid) end),
                 {Shown, lists:nthtail(Before, kept_log:kept())}
         end).

last_state(#{msg := {report, #{label := {_, terminate}, state := State}}}) -> {true, State};
last_state(_) -> false.

%% Another version of the module is loaded beneath it, as release_handler does it.
new_code(_) ->
    B = cluster:start([]),
    lists:foreach(
      fun(Kind) ->
              ok = cluster:call(
                     B,
                     fun() ->
                             load_version(Kind, 1),
                             {ok, Pid} = mailroom:start({local, ?NAME}, changing, [], #{work => 4}),
                             Server = maps:get(consumer, trunkline_inbox:info(?NAME)),
                             1 = gen_server:call(?NAME, version, infinity),
                             ok = sys:suspend(Pid),
                             Calls = [gen_server:send_request(?NAME, version)
                                      || _ <- lists:seq(1, 20)],
                             load_version(Kind, 2),
                             ok = sys:change_code(Pid, changing, undefined, []),
                             ok = sys:resume(Pid),
                             [{reply, {1, 2}}] =
                                 lists:usort([gen_server:receive_response(C, ?LONG) || C <- Calls]),
                             %% Nobody runs the old code any more.
                             true = code:soft_purge(changing),
                             load_version(Kind, 2),
                             true = code:soft_purge(changing),
                             {Pid, Server} =
                                 {whereis(?NAME), maps:get(consumer, trunkline_inbox:info(?NAME))},
                             ok = sys:terminate(Pid, normal),
                             cluster:await(fun() -> whereis(?NAME) =:= undefined end)
                     end)
      end, [gen_server, gen_statem]),
    cluster:stop(B).

load_version(Kind, Version) ->
    load(changing,
         ["-export([init/1, handle_call/3, handle_cast/2, code_change/3, code_change/4, go/3])."]
         ++ ["-export([callback_mode/0]).\ncallback_mode() -> state_functions."
             || Kind =:= gen_statem]
         ++ [case Kind of
                 gen_server -> "init(_) -> {ok, " ++ integer_to_list(Version) ++ "}.";
                 gen_statem -> "init(_) -> {ok, go, " ++ integer_to_list(Version) ++ "}."
             end,
             "handle_call(version, _, S) -> {reply, S, S}.", "handle_cast(_, S) -> {noreply, S}.",
             "go({call, From}, version, D) -> {keep_state_and_data, {reply, From, D}}.",
             "code_change(_, S, _) -> {ok, {S, " ++ integer_to_list(Version) ++ "}}.",
             "code_change(_, S, D, _) -> {ok, S, {D, " ++ integer_to_list(Version) ++ "}}."]).

load(Module, Lines) ->
    Head = "-module(" ++ atom_to_list(Module) ++ ").",
    {ok, Tokens, _} = erl_scan:string(lists:flatten(lists:join("\n", [Head | Lines]))),
    {ok, Module, Binary} = compile:forms(forms(Tokens), []),
    true = code:soft_purge(Module),
    {module, Module} = code:load_binary(Module, atom_to_list(Module) ++ ".erl", Binary),
    ok.

forms(Tokens) ->
    case lists:splitwith(fun(T) -> element(1, T) =/= dot end, Tokens) of
        {Form, [Dot | Rest]} -> {ok, F} = erl_parse:parse_form(Form ++ [Dot]), [F | forms(Rest)];
        {[], []} -> []
    end.

%% Both sleep when nothing is going on, and wake.
sleeps(_) ->
    B = cluster:start([]),
    ok = cluster:call(
           B, fun() ->
                      {ok, Pid} = mailroom:start({local, ?NAME}, #{list => true}, #{}),
                      Server = gen_server:call(?NAME, self, infinity),
                      ok = gen_server:call(?NAME, hibernate, infinity),
                      cluster:await(fun() -> lists:all(fun sleeps_now/1, [Pid, Server]) end),
                      _ = trunkline:send(?NAME, {from, a, 1, x}),
                      [{a, 1}] = gen_server:call(?NAME, list, infinity),
                      ok = gen_server:call(?NAME, hibernate, infinity),
                      x = gen_server:call(?NAME, {echo, x}, infinity),
                      ok
              end),
    cluster:stop(B).

%% In erlang:hibernate/3, or, since OTP 28, in a function of gen_server's that hibernates.
sleeps_now(Pid) ->
    {current_function, {Module, Function, _}} = process_info(Pid, current_function),
    {Module, Function} =:= {erlang, hibernate}
        orelse {Module, Function} =:= {gen_server, loop_hibernate}.

%% --- floods -----------------------------------------------------------------------------

%% Three nodes, each connected with each; the inbox is at the last.
three() ->
    {A, B} = cluster:pair([]),
    C = cluster:start([]),
    [begin cluster:connect(N, C), cluster:await_up(N, C) end || N <- [A, B]],
    {A, C, B}.

flood({A, C, B}, EachNode, Messages, Bytes) ->
    case cluster:call(B, ets, member, [trunkline_inboxes, {?NAME, cluster:node_of(B)}]) of
        true -> await_known([A, C], B);
        false -> ok                                   % it bounds nobody
    end,
    To = {?NAME, cluster:node_of(B)},
    [{N, cluster:call(N, mailroom, senders, [To, tags(N, EachNode), Messages, Bytes])}
     || N <- [A, C, B]].

tags(N, EachNode) -> [{cluster:node_of(N), I} || I <- lists:seq(1, EachNode)].

%% All of them have sent all they had.
finished(Senders, Messages) ->
    lists:foreach(fun({Node, Pids}) ->
                          ?assertEqual([Messages || _ <- Pids],
                                       cluster:call(Node, mailroom, collect, [Pids, finish]))
                  end, Senders).

%% All came, in order.
all_in_order(B, Senders, Messages) ->
    All = maps:from_list([{Tag, {Messages, Messages, []}}
                          || {N, Pids} <- Senders, Tag <- tags(N, length(Pids))]),
    cluster:await(fun() -> case summary(B) of
                               All -> true;
                               Other ->
                                   maps:filter(fun(K, V) -> maps:get(K, All, none) =/= V end, Other)
                           end end,
                  ?LONG).

%% Senders of every node wait.
await_waiting(B, Nodes) -> await_waiting(B, Nodes, 1).

await_waiting(B, Nodes, AtLeast) ->
    cluster:await(fun() ->
                          Waiting = cluster:call(B, mailroom, waiting, [?NAME]),
                          case lists:all(fun(N) -> W = maps:get(cluster:node_of(N), Waiting, 0),
                                                   is_integer(W) andalso W >= AtLeast end, Nodes) of
                              true -> true;
                              false -> Waiting
                          end
                  end, ?LONG).

%% The server's own is short all the time, though as much as may be is before it.
short_mailbox(_) ->
    {A, C, B} = Nodes = three(),
    [short_mailbox(B, Nodes, Options, Most)
     || {Options, Most} <- [{#{}, 256}, {#{work => 8}, 8}]],
    cluster:stop_all([A, B, C]).

short_mailbox(B, Nodes, Options, Most) ->
    {ok, Inbox} = cluster:call(B, mailroom, start,
                               [{local, ?NAME}, #{}, Options#{messages => 1000}]),
    Watch = cluster:call(B, mailroom, watch, [?NAME]),
    Senders = flood(Nodes, 8, 2000, 100),
    finished(Senders, 2000),
    all_in_order(B, Senders, 2000),
    {Messages, _, Length} = cluster:call(B, mailroom, most, [Watch]),
    ct:log("at most ~b in the inbox, ~b in the mailbox", [Messages, Length]),
    ?assert(Length =< Most + 2),                    % and a system message or two
    ?assert(Messages =< 1000 + ?CALLS),
    cluster:await(fun() -> idle(B) end),
    ok = cluster:call(B, gen_server, stop, [Inbox]).

%% While init/1 runs, senders are bounded as they are later.
slow_start(_) ->
    {A, B} = cluster:pair([]),
    To = {?NAME, cluster:node_of(B)},
    Start = fun(How) ->
                    cluster:call(B, mailroom, start, [{local, ?NAME}, How, #{messages => 100}])
            end,
    {ok, First} = Start(#{}),
    await_known([A], B),
    ok = cluster:call(B, gen_server, stop, [First]),
    _ = spawn_link(fun() -> {ok, _} = Start(#{until_go => true}) end),
    cluster:await(fun() -> is_pid(cluster:call(B, erlang, whereis, [starting])) end),
    Keeper = cluster:call(B, erlang, whereis, [?NAME]),
    cluster:await(fun() -> cluster:call(A, trunkline_bounded, is_bounded, [Keeper]) end),
    Senders = [{N, cluster:call(N, mailroom, senders, [To, tags(N, 4), 1000, 100])}
               || N <- [A, B]],
    cluster:await(fun() ->
                          Waiting = [cluster:call(N, trunkline_inboxes, senders, [Keeper])
                                     || N <- [A, B]],
                          [4, 4] =:= [Each || #{waiting := Each} <- Waiting] orelse Waiting
                  end),
    {message_queue_len, Length} =
        cluster:call(B, erlang, process_info, [Keeper, message_queue_len]),
    ?assert(Length =< 200),                          % also what is no message of a sender
    cluster:call(B, erlang, send, [starting, go]),
    finished(Senders, 1000),
    all_in_order(B, Senders, 1000),
    ?assertMatch(#{dropped := 0}, cluster:call(B, trunkline_inbox, info, [?NAME])),
    cluster:stop_all([A, B]).

%% Processes flood the inbox with `!', so that it drops nearly everything. The server gets what it
%% can do all the same, though its word is behind all that.
overload(_) ->
    B = cluster:start([]),
    {ok, Inbox} = cluster:call(B, mailroom, start,
                               [{local, ?NAME}, #{}, #{policy => drop_newest, messages => 1000}]),
    Flood = fun Flood() -> Inbox ! {from, x, 1, x}, Flood() end,
    Floods = cluster:call(B, fun() -> [spawn(Flood) || _ <- [1, 2]] end),
    Passed = fun() ->
                     #{passed := N, dropped := Dropped} =
                         cluster:call(B, trunkline_inbox, info, [?NAME]),
                     {N, Dropped}
             end,
    %% (Before, one of some 1,000 was passed on.)
    cluster:await(fun() ->
                          {N, Dropped} = Passed(),
                          Dropped > 100_000 andalso N > Dropped div 300 orelse {N, Dropped}
                  end),
    _ = [cluster:call(B, erlang, exit, [Pid, kill]) || Pid <- Floods],
    cluster:stop(B).

%% All that was outstanding is lost with the lanes. Calls are refused only until that is known.
all_lost(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    To = {?NAME, cluster:node_of(B)},
    {ok, _} = cluster:call(B, mailroom, start,
                           [{local, ?NAME}, #{}, #{policy => reject, messages => 10}]),
    await_known([A], B),
    cluster:await(fun() -> idle(B) end),
    cluster:call(A, fun() ->
                            [Lane] = cluster:find(lanes, element(2, To)),
                            true = erlang:suspend_process(Lane),
                            _ = [ok = trunkline:send(To, {from, x, N, x}, [nosuspend])
                                 || N <- lists:seq(1, 10)],
                            exit(Lane, kill)
                    end),
    cluster:await_up(A, B),
    cluster:await(fun() ->
                          try cluster:call(A, trunkline, call, [To, {echo, hello}]) of
                              hello -> true
                          catch
                              exit:Reason -> Reason
                          end
                  end, ?LONG),
    cluster:stop_all([A, B]).

%% A server that takes messages out of its mailbox by itself gets the others all the same, when one
%% more comes.
takes_by_itself(_) ->
    B = cluster:start([]),
    Send = fun(N) -> _ = cluster:call(B, trunkline, cast, [?NAME, {from, x, N, y}]), ok end,
    {ok, _} = cluster:call(B, mailroom, start, [{local, ?NAME}, #{list => true}, #{}]),
    ok = cluster:call(B, mailroom, hold, [?NAME]),
    lists:foreach(Send, lists:seq(1, 30)),
    Take = fun Next(N) -> receive {'$gen_cast', _} -> Next(N + 1) after 0 -> N end end,
    Taken = cluster:call(B, mailroom, run, [?NAME, fun() ->
                                                           cluster:await(fun() -> has(7) end),
                                                           Take(0)
                                                   end]),
    ?assertEqual(7, Taken),
    ok = cluster:call(B, mailroom, release, [?NAME]),
    Send(31),
    cluster:await(fun() ->
                          [{x, N} || N <- lists:seq(8, 31)]
                              =:= cluster:call(B, gen_server, call, [?NAME, list])
                  end),
    cluster:await(fun() ->
                          #{in_work := InWork} = cluster:call(B, trunkline_inbox, info, [?NAME]),
                          InWork =:= 0
                  end),
    cluster:stop(B).

%% A server has at most an eighth of the inbox's bytes, and less than one message more.
few_long_ones(_) ->
    B = cluster:start([]),
    {ok, _} = cluster:call(B, mailroom, start, [{local, ?NAME}, #{list => true}, #{}]),
    ok = cluster:call(B, mailroom, hold, [?NAME]),
    Long = binary:copy(<<"x">>, 600_000),
    Each = [cluster:call(B, gen_server, cast, [?NAME, {from, x, N, Long}]) || N <- lists:seq(1, 5)],
    ?assertEqual([ok, ok, ok, ok, ok], Each),
    InWork = fun() ->
                     #{queued_messages := Queued, in_work := N} =
                         cluster:call(B, trunkline_inbox, info, [?NAME]),
                     {Queued, N}
             end,
    %% The call that holds it is one of three.
    cluster:await(fun() -> InWork() =:= {3, 3} end),
    %% It takes what it has by itself. What it is done with then is less than it seems.
    Take = fun() -> [receive {'$gen_cast', _} -> taken end || _ <- [1, 2]] end,
    [taken, taken] = cluster:call(B, mailroom, run, [?NAME, Take]),
    ok = cluster:call(B, mailroom, release, [?NAME]),
    cluster:await(fun() -> InWork() =:= {0, 0} end),
    ?assertEqual([{x, 3}, {x, 4}, {x, 5}], cluster:call(B, gen_server, call, [?NAME, list])),
    cluster:await(fun() -> InWork() =:= {0, 0} end),
    cluster:stop(B).

has(N) -> process_info(self(), message_queue_len) =:= {message_queue_len, N}.

%% Its own calls, and the replies to them, are no mail.
own_requests(_) ->
    {A, C, B} = Nodes = three(),
    {ok, _} = cluster:call(B, mailroom, start, [{local, ?NAME}, #{}, #{messages => 1000}]),
    {ok, _} = cluster:call(A, mailroom, start, [{local, other}, #{}, #{}]),
    Other = {other, cluster:node_of(A)},
    ok = cluster:call(B, mailroom, hold, [?NAME]),
    Senders = flood(Nodes, 4, 500, 100),
    await_waiting(B, [A, C, B]),
    Replies = cluster:call(
                B, fun() ->
                           mailroom:run(?NAME,
                                        fun() ->
                                                {message_queue_len, Length} =
                                                    process_info(self(), message_queue_len),
                                                Id = gen_server:send_request(Other, {echo, 3}),
                                                {Length =< 9,
                                                 gen_server:call(Other, {echo, 1}, ?LONG),
                                                 trunkline:call(Other, {echo, 2}, ?LONG),
                                                 gen_server:receive_response(Id, ?LONG)}
                                        end)
                   end),
    ?assertEqual({true, 1, 2, {reply, 3}}, Replies),
    ok = cluster:call(B, mailroom, release, [?NAME]),
    finished(Senders, 500),
    all_in_order(B, Senders, 500),
    cluster:stop_all([A, B, C]).

%% Nobody loses anything, and the bound holds while the server stands still, whichever node
%% comes first.
block(_) ->
    {A, C, B} = three(),
    lists:foreach(
      fun(Order) ->
              {ok, Pid} =
                  cluster:call(B, mailroom, start, [{local, ?NAME}, #{}, #{messages => 600}]),
              Watch = cluster:call(B, mailroom, watch, [?NAME]),
              ok = cluster:call(B, mailroom, hold, [?NAME]),
              await_known([A, C], B),
              To = {?NAME, cluster:node_of(B)},
              Senders = [begin
                             Pids = cluster:call(N, mailroom, senders, [To, tags(N, 4), 1000, 100]),
                             await_waiting(B, [N], 4),
                             {N, Pids}
                         end || N <- Order],
              await_waiting(B, Order, 4),
              %% (Each of them waits for a moment before it has heard of its share, too.)
              cluster:await(fun() -> case cluster:call(B, trunkline_inbox, info, [?NAME]) of
                                         #{queued_messages := Held} when Held >= 300 -> true;
                                         Info -> Info
                                     end end, ?LONG),
              ok = cluster:call(B, mailroom, release, [?NAME]),
              finished(Senders, 1000),
              all_in_order(B, Senders, 1000),
              {Messages, _, Length} = cluster:call(B, mailroom, most, [Watch]),
              ct:log("at most ~b in the inbox, ~b in the mailbox", [Messages, Length]),
              ?assert(Messages =< 600 + ?CALLS),
              %% (The inbox decides where nobody waits: what came beyond the bound at the same time
              %% it drops.)
              ok = cluster:call(B, fun() -> stop(Pid) end)
      end, [[A, C, B], [B, A, C], [C, B, A]]),
    cluster:stop_all([A, B, C]).

%% The same in bytes: each node may be above its share by less than a message.
block_bytes(_) ->
    {A, C, B} = Nodes = three(),
    {ok, _} = cluster:call(B, mailroom, start, [{local, ?NAME}, #{}, #{bytes => 300_000}]),
    Watch = cluster:call(B, mailroom, watch, [?NAME]),
    ok = cluster:call(B, mailroom, hold, [?NAME]),
    Senders = flood(Nodes, 4, 500, 2000),
    await_waiting(B, [A, C, B], 4),
    ok = cluster:call(B, mailroom, release, [?NAME]),
    finished(Senders, 500),
    all_in_order(B, Senders, 500),
    {_, Bytes, _} = cluster:call(B, mailroom, most, [Watch]),
    ct:log("at most ~b bytes", [Bytes]),
    ?assert(Bytes =< 300_000 + 3 * 2500),
    cluster:stop_all([A, B, C]).

%% Nobody waits: who asks is told, who does not is counted, who calls hears of it at once.
reject(_) ->
    {A, C, B} = Nodes = three(),
    {ok, Pid} = cluster:call(B, mailroom, start,
                             [{local, ?NAME}, #{}, #{policy => reject, messages => 60}]),
    Watch = cluster:call(B, mailroom, watch, [?NAME]),
    ok = cluster:call(B, mailroom, hold, [?NAME]),
    To = {?NAME, cluster:node_of(B)},
    finished(flood(Nodes, 4, 500, 100), 500),
    Full = fun(N) -> cluster:call(N, trunkline, send, [To, {from, extra, 1, x}, [nosuspend]]) end,
    %% Until then a node knows only what it has outstanding itself.
    lists:foreach(fun(N) -> cluster:await(fun() -> is_told_full(N, To) end, ?LONG) end, [A, C, B]),
    %% While there is room it is taken.
    lists:foreach(
      fun(N) ->
              cluster:await(fun() -> case Full(N) of nosuspend -> true; Other -> Other end end)
      end, [A, C, B]),
    lists:foreach(
      fun({N, Server}) ->
              Call = fun(Args) ->
                             cluster:call(
                               N, fun() ->
                                          traffic:attempt(fun() -> apply(trunkline, call, Args) end)
                                  end)
                     end,
              lists:foreach(
                fun(Args) ->
                        ?assertEqual({exit, {overload, {trunkline, call, Args}}}, Call(Args))
                end,
                [[Server, {echo, x}], [Server, {echo, x}, infinity], [Server, {echo, x}, 5000]])
      end, [{N, Server} || {N, Servers} <- [{A, [To, Pid]}, {C, [To]}, {B, [?NAME, To, Pid]}],
                           Server <- [{via, mailroom, To} | Servers]]),
    %% A call that does not ask is in nevertheless.
    Call = cluster:call(
             A,
             fun() ->
                     mailroom:callers(fun(I) -> gen_server:call(To, {echo, I}, infinity) end, [17])
             end),
    cluster:await(
      fun() -> Info = cluster:call(B, trunkline_inbox, info, [?NAME]),
               Sum = lists:sum([R || #{refused := R} <- maps:values(maps:get(nodes, Info))]),
               #{queued_messages := Q, passed := P, dropped := D} = Info,
               case Q + P + Sum + D of
                   %% hold, the call, and those that were tried above
                   N when N >= 12 * 500 + 2, N =< 12 * 500 + 2 + 60 -> true;
                   N -> {N, Info}
               end end),
    ok = cluster:call(B, mailroom, release, [?NAME]),
    ?assertEqual([17], cluster:call(A, mailroom, collect, [Call, finish])),
    {Messages, _, _} = cluster:call(B, mailroom, most, [Watch]),
    ct:log("at most ~b", [Messages]),
    ?assert(Messages =< 60 + ?CALLS),
    %% (The inbox decides where nobody waits: what came beyond the bound at the same time it drops.)
    ?assertEqual([], [Odd || {_, {_, N, _} = Odd} <- maps:to_list(summary(B)), N > 500]),
    %% There is room again, and everybody knows.
    lists:foreach(
      fun(N) ->
              cluster:await(
                fun() -> case cluster:call(
                                N, fun() ->
                                           traffic:attempt(
                                             fun() -> trunkline:call(To, {echo, x}, infinity) end)
                                   end) of
                             {ok, x} -> true;
                             Other -> Other
                         end end),
              cluster:await(fun() -> case Full(N) of ok -> true; Other -> Other end end)
      end, [A, C, B]),
    cluster:stop_all([A, B, C]).

%% Which ones: 7 are with the server beside the one that holds it, 50 are kept.
drop_newest(_) -> dropping(drop_newest, lists:seq(1, 57)).
drop_oldest(_) -> dropping(drop_oldest, lists:seq(1, 7) ++ lists:seq(151, 200)).

dropping(Policy, Kept) ->
    {A, B} = cluster:pair([]),
    To = {?NAME, cluster:node_of(B)},
    lists:foreach(
      fun(From) ->
              {ok, Pid} = cluster:call(B, mailroom, start,
                                       [{local, ?NAME}, #{list => true},
                                        #{policy => Policy, messages => 50, tell_dropped => true}]),
              ok = cluster:call(B, mailroom, hold, [?NAME]),
              Senders = cluster:call(From, mailroom, senders, [To, [x], 200, 100]),
              finished([{From, Senders}], 200),
              cluster:await(fun() -> accounted(B, 200 + 1) end),
              ?assertMatch(#{dropped := 143, queued_messages := 50},
                           cluster:call(B, trunkline_inbox, info, [?NAME])),
              ok = cluster:call(B, mailroom, release, [?NAME]),
              List = cluster:call(B, gen_server, call, [?NAME, list, ?LONG]),
              ?assertEqual([{x, N} || N <- Kept], [{x, N} || {x, N} <- List]),
              %% It is told before what comes next.
              ?assertEqual({trunkline_inbox, Pid, {dropped, 143}}, lists:nth(8, List)),
              ?assertEqual(58, length(List)),
              cluster:await(fun() -> idle(B) end),
              ok = cluster:call(B, fun() -> stop(Pid) end)
      end, [B, A]),
    cluster:stop_all([A, B]).

%% What has been sent is in it, has passed it, or has been dropped.
accounted(B, Sent) ->
    #{queued_messages := Q, passed := P, dropped := D} = Info =
        cluster:call(B, trunkline_inbox, info, [?NAME]),
    case Q + P + D of
        Sent -> true;
        Sum -> {Sent, Sum, Info}
    end.

%% By three nodes and at the same time, in messages and in bytes.
drop_flood(_) ->
    {A, C, B} = Nodes = three(),
    lists:foreach(
      fun({Policy, Bound}) ->
              {ok, Pid} =
                  cluster:call(B, mailroom, start, [{local, ?NAME}, #{}, Bound#{policy => Policy}]),
              Watch = cluster:call(B, mailroom, watch, [?NAME]),
              ok = cluster:call(B, mailroom, hold, [?NAME]),
              Senders = flood(Nodes, 4, 1000, 1000),
              finished(Senders, 1000),
              cluster:await(fun() -> accounted(B, 12 * 1000 + 1) end),
              {Messages, Bytes, Length} = cluster:call(B, mailroom, most, [Watch]),
              ct:log("at most ~b, ~b bytes, ~b in the mailbox", [Messages, Bytes, Length]),
              ?assert(Messages =< maps:get(messages, Bound, 1 bsl 22) + ?CALLS),
              ?assert(Bytes =< maps:get(bytes, Bound, 1 bsl 32) + 1500),
              %% (A server that goes on and is quick gets more at a time.)
              ?assert(Length =< 10),
              ok = cluster:call(B, mailroom, release, [?NAME]),
              cluster:await(fun() -> idle(B) end),
              Summary = summary(B),
              #{dropped := Dropped} = cluster:call(B, trunkline_inbox, info, [?NAME]),
              ?assertEqual(12 * 1000,
                           Dropped + lists:sum([N || {_, N, _} <- maps:values(Summary)])),
              %% There are gaps, but nothing is out of order.
              ?assertEqual([], [Gap || {_, _, Gaps} <- maps:values(Summary),
                                       {Last, N} = Gap <- Gaps, N =< Last]),
              ok = cluster:call(B, fun() -> stop(Pid) end)
      end, [{Policy, Bound} || Policy <- [drop_newest, drop_oldest],
                               Bound <- [#{messages => 100}, #{bytes => 100_000}]]),
    cluster:stop_all([A, B, C]).

%% As many messages as fit are kept, also if all come at once, from senders that do not wait.
burst(_) ->
    B = cluster:start([]),
    Most = 20_000,
    lists:foreach(
      fun(Policy) ->
              Bound = #{policy => Policy, messages => Most, bytes => 100_000_000},
              {ok, Pid} = cluster:call(B, mailroom, start, [{local, ?NAME}, #{}, Bound]),
              ok = cluster:call(B, mailroom, hold, [?NAME]),
              ok = cluster:call(B, fun() ->
                                           true = erlang:suspend_process(Pid),
                                           [Pid ! {from, x, N, y} || N <- lists:seq(1, Most)],
                                           true = erlang:resume_process(Pid),
                                           ok
                                   end),
              cluster:await(fun() -> accounted(B, Most + 1) end),
              ?assertMatch(#{dropped := 0}, cluster:call(B, trunkline_inbox, info, [?NAME])),
              ok = cluster:call(B, mailroom, release, [?NAME]),
              cluster:await(fun() -> idle(B) end),
              ?assertMatch(#{x := {Most, Most, []}}, summary(B)),
              ok = cluster:call(B, fun() -> stop(Pid) end)
      end, [block, drop_newest, drop_oldest]),
    cluster:stop(B).

%% The urgent ones of many more than fit.
urgent_burst(_) ->
    B = cluster:start([]),
    Inbox = #{policy => drop_oldest, messages => 100, urgent => fun is_urgent/1},
    {ok, Pid} = cluster:call(B, mailroom, start, [{local, ?NAME}, #{list => true}, Inbox]),
    ok = cluster:call(B, mailroom, hold, [?NAME]),
    ok = cluster:call(B, fun() ->
                                 true = erlang:suspend_process(Pid),
                                 [Pid ! if N rem 500 =:= 0 -> {from, urgent, N, y};
                                           true -> {from, x, N, y}
                                        end || N <- lists:seq(1, 10_000)],
                                 true = erlang:resume_process(Pid),
                                 ok
                         end),
    cluster:await(fun() -> accounted(B, 10_000 + 1) end),
    ok = cluster:call(B, mailroom, release, [?NAME]),
    cluster:await(fun() -> idle(B) end),
    List = cluster:call(B, gen_server, call, [?NAME, list, ?LONG]),
    ?assertEqual(lists:seq(500, 10_000, 500), [N || {urgent, N} <- List]),
    cluster:stop(B).

%% What has been behind for a while, by calls, is not behind any more.
behind_no_more(_) ->
    B = cluster:start([]),
    Inbox = #{policy => drop_oldest, messages => 10, work => 8},
    {ok, Pid} = cluster:call(B, mailroom, start, [{local, ?NAME}, #{}, Inbox]),
    ok = cluster:call(B, fun() ->
                                 true = erlang:suspend_process(Pid),
                                 _ = Pid ! {from, x, 0, y},
                                 Self = self(),
                                 [spawn(fun() ->
                                                x = gen_server:call(Pid, {echo, x}, infinity),
                                                Self ! answered
                                        end) || _ <- lists:seq(1, 3000)],
                                 cluster:await(fun() -> length_of_mailbox(Pid) > 3000 end),
                                 true = erlang:resume_process(Pid),
                                 [receive answered -> ok end || _ <- lists:seq(1, 3000)],
                                 ok
                         end),
    ok = cluster:call(B, mailroom, hold, [?NAME]),
    ok = cluster:call(B, fun() -> [?NAME ! {from, x, N, y} || N <- lists:seq(1, 100)], ok end),
    cluster:await(fun() -> accounted(B, 3000 + 1 + 1 + 100) end),
    ok = cluster:call(B, mailroom, release, [?NAME]),
    cluster:await(fun() -> idle(B) end),
    #{x := {Last, _, _}} = summary(B),
    ?assertEqual(100, Last),
    cluster:stop(B).

length_of_mailbox(Pid) ->
    {message_queue_len, Length} = process_info(Pid, message_queue_len),
    Length.

%% A server that is quick keeps its inbox empty. Senders that do not wait must not fill the mailbox
%% of the inbox instead: it answers in time, and drops what is too much.
quick_server(_) ->
    B = cluster:start([]),
    lists:foreach(
      fun(Bound) ->
              {ok, Pid} = cluster:call(B, mailroom, start, [{local, ?NAME}, #{}, Bound]),
              Senders = cluster:call(B, fun() -> [spawn(fun() -> send_endlessly(Pid, I, 1) end)
                                                  || I <- lists:seq(1, 8)] end),
              cluster:await(fun() ->
                                    Info = cluster:call(B, trunkline_inbox, info, [?NAME]),
                                    #{dropped := Dropped} = Info,
                                    Dropped > 100_000 orelse Info
                            end),
              ok = cluster:call(B, mailroom, kill, [Senders]),
              cluster:await(fun() -> idle(B) end),
              cluster:await(fun() -> {priority, P} = cluster:call(B, erlang, process_info,
                                                                  [Pid, priority]),
                                     P =:= normal orelse P
                            end),
              ok = cluster:call(B, fun() -> stop(Pid) end)
      end, [#{policy => Policy, messages => N}
            || Policy <- [block, drop_oldest], N <- [200, 10_000]]),
    cluster:stop(B).

send_endlessly(To, I, N) ->
    To ! {from, I, N, x},
    send_endlessly(To, I, N + 1).

%% Calls are kept, whatever the policy, and what is sent with `!' to a full one is not.
calls_stay(_) ->
    {A, B} = cluster:pair([]),
    To = {?NAME, cluster:node_of(B)},
    lists:foreach(
      fun(Policy) ->
              {ok, Pid} = cluster:call(B, mailroom, start, [{local, ?NAME}, #{list => true},
                                                            #{policy => Policy, messages => 20}]),
              ok = cluster:call(B, mailroom, hold, [?NAME]),
              ok = cluster:call(B, fun() ->
                                           lists:foreach(fun(N) -> ?NAME ! {from, x, N, y} end,
                                                         lists:seq(1, 100))
                                   end),
              Calls = fun(N, Call) ->
                              cluster:call(N, mailroom, callers, [Call, lists:seq(1, 50)])
                      end,
              Gen = fun(I) -> gen_server:call(To, {echo, I}, infinity) end,
              Trunk = fun(I) -> trunkline:call(To, {echo, I}, infinity) end,
              Callers = [{A, Calls(A, Gen)}, {B, Calls(B, Gen)}]
                  ++ [{N, Calls(N, Trunk)} || N <- [A, B], Policy =/= reject],
              Sent = lists:sum([length(Pids) || {_, Pids} <- Callers]) + 100 + 1,
              cluster:await(fun() -> accounted(B, Sent) end),
              ?assertMatch(#{dropped := 73}, cluster:call(B, trunkline_inbox, info, [?NAME])),
              %% After the calls nothing may go but what is new.
              ok = cluster:call(B, fun() ->
                                           lists:foreach(fun(N) -> ?NAME ! {from, z, N, y} end,
                                                         lists:seq(1, 30))
                                   end),
              cluster:await(fun() -> accounted(B, Sent + 30) end),
              ok = cluster:call(B, mailroom, release, [?NAME]),
              _ = [?assertEqual(lists:seq(1, 50),
                                cluster:call(N, mailroom, collect, [Pids, finish]))
                   || {N, Pids} <- Callers],
              cluster:await(fun() -> idle(B) end),
              ok = cluster:call(B, fun() -> stop(Pid) end),
              %% Who knows the one before may take the next one for as full.
              [cluster:await(fun() -> not is_known(N, To) end) || N <- [A, B]]
      end, [block, reject, drop_newest, drop_oldest]),
    cluster:stop_all([A, B]).

%% It overtakes others, and keeps the order among its like.
urgent(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    {ok, _} = cluster:call(B, mailroom, start,
                           [{local, ?NAME}, #{list => true},
                            #{messages => 3200, urgent => fun ?MODULE:is_urgent/1}]),
    await_known([A], B),
    ok = cluster:call(B, mailroom, hold, [?NAME]),
    To = {?NAME, cluster:node_of(B)},
    ok = cluster:call(A,
                      fun() ->
                              lists:foreach(fun(N) -> trunkline:send(To, {from, normal, N, x}) end,
                                            lists:seq(1, 30)),
                              lists:foreach(fun(N) -> trunkline:send(To, {from, urgent, N, x}) end,
                                            lists:seq(1, 4)),
                              trunkline:cast(To, {from, urgent, 5, x})
                      end),
    cluster:await(fun() -> accounted(B, 36) end),
    ok = cluster:call(B, mailroom, release, [?NAME]),
    ?assertEqual([{normal, N} || N <- lists:seq(1, 7)] ++ [{urgent, N} || N <- lists:seq(1, 5)]
                 ++ [{normal, N} || N <- lists:seq(8, 30)],
                 cluster:call(B, gen_server, call, [?NAME, list, ?LONG])),
    cluster:stop_all([A, B]).

is_urgent({from, urgent, _, _}) -> true;
is_urgent({'$gen_cast', Message}) -> is_urgent(Message);
%% For others it crashes, and they are normal.
is_urgent(Message) when is_tuple(Message), element(1, Message) =:= from -> false.

%% --- processes ------------------------------------------------------------------------------

%% Never more than it may have, whatever it is done with.
work(_) ->
    {A, B} = cluster:pair([]),
    lists:foreach(
      fun(Work) ->
              {Pid, Inbox} = cluster:call(B, mailroom, open,
                                          [{local, ?NAME}, #{work => Work, messages => 100}]),
              await_known([A], B),
              Senders = cluster:call(A, mailroom, senders,
                                     [{?NAME, cluster:node_of(B)}, [x], 300, 10]),
              Here = fun(N) ->
                             cluster:await(fun() -> case cluster:call(B, mailroom, state, [Pid]) of
                                                        {_, N, _} -> true;
                                                        Other -> Other
                                                    end end)
                     end,
              Here(Work),
              lists:foreach(fun(N) ->
                                    ok = cluster:call(B, mailroom, done, [Pid, N]),
                                    %% All is given back, or half: more comes.
                                    Here(Work)
                            end, [Work, (Work + 1) div 2, Work]),
              ok = cluster:call(B, mailroom, go_on, [Pid]),
              finished([{A, Senders}], 300),
              cluster:await(fun() ->
                                    {Got, _, _} = cluster:call(B, mailroom, state, [Pid]),
                                    length(Got) =:= 300
                            end),
              {Got, 0, Most} = cluster:call(B, mailroom, state, [Pid]),
              ?assertEqual([{x, N} || N <- lists:seq(1, 300)],
                           [{Tag, N} || {from, Tag, N, _} <- Got]),
              ?assertEqual(Work, Most),
              ok = cluster:call(B, trunkline_inbox, close, [Inbox])
      end, [1, 2, 3, 8]),
    cluster:stop_all([A, B]).

%% It stops: senders wait, which can be seen; it goes on: they do, though nobody says more.
no_more_done(_) ->
    {A, C, B} = Nodes = three(),
    {Pid, Inbox} = cluster:call(B, mailroom, open, [{local, ?NAME}, #{messages => 100}]),
    Senders = flood(Nodes, 5, 100, 100),
    await_waiting(B, [A, B, C], 5),
    all_waiting(B, [5, 5, 5]),
    #{queued_messages := Queued, in_work := 1, consumer := Pid} =
        cluster:call(B, trunkline_inbox, info, [Inbox]),
    ?assert(Queued =< 100),
    %% From elsewhere, too.
    [?assertMatch(#{in_work := 1, consumer := Pid}, cluster:call(A, trunkline_inbox, info, [I]))
     || I <- [Inbox, {?NAME, cluster:node_of(B)}]],
    {exit_value, badarg} = cluster:call(A, fun() -> try trunkline_inbox:info({nobody, node(Inbox)})
                                                    catch error:R -> {exit_value, R}
                                                    end end),
    ok = cluster:call(B, mailroom, go_on, [Pid]),
    finished(Senders, 100),
    cluster:await(
      fun() -> {Got, _, _} = cluster:call(B, mailroom, state, [Pid]), length(Got) =:= 1500 end),
    cluster:await(fun() -> idle(B) end),
    all_waiting(B, [0, 0, 0]),
    cluster:stop_all([A, B, C]).

%% (Whoever is told to look for room does not wait meanwhile, and a node may not answer in time.)
all_waiting(B, Expected) ->
    cluster:await(fun() -> case maps:values(cluster:call(B, mailroom, waiting, [?NAME])) of
                               Expected -> true;
                               Other -> Other
                           end end, ?LONG).

%% Of what is none nothing is known.
not_an_inbox(_) ->
    B = cluster:start([]),
    ok = cluster:call(
           B, fun() ->
                      {_, Inbox} = mailroom:open(none, #{}),
                      ok = trunkline_inbox:close(Inbox),
                      %% Who keeps the list hears of it, too.
                      cluster:await(fun() -> trunkline_own_inboxes:inbox(Inbox) =:= none end),
                      Try = fun(F, Args) -> try apply(trunkline_inbox, F, Args)
                                            catch error:badarg -> badarg
                                            end end,
                      Expected = [badarg || _ <- lists:seq(1, 10)],
                      ok = trunkline_inbox:close(Inbox),
                      Consumer = spawn_link(fun() -> receive stop -> ok end end),
                      [badarg, badarg, badarg, badarg, badarg] =
                          [Try(close, [P]) || P <- [self(), Consumer, whereis(code_server),
                                                    code_server, nobody]],
                      true = is_process_alive(Consumer),
                      Expected = [Try(info, [P]) || P <- [self(), whereis(code_server), code_server,
                                                          nobody, Inbox]]
                          ++ [Try(done, [P, 1])
                              || P <- [self(), whereis(code_server), code_server, nobody, Inbox]],
                      ["not an inbox of this node"] =
                          explained:texts(trunkline_inbox, done, [self(), 1]),
                      ["not an inbox, or its node is without Trunkline"] =
                          explained:texts(trunkline_inbox, info, [self()]),
                      {P, Inbox2} = mailroom:open(none, #{}),
                      [badarg, badarg, badarg, badarg] =
                          [Try(done, [Inbox2, N]) || N <- [0, -1, x, 1.0]],
                      #{consumer := P} = trunkline_inbox:info(Inbox2),
                      {_, Inbox3} = mailroom:open({local, ?NAME}, #{}),
                      ok = trunkline_inbox:close(?NAME),
                      false = is_process_alive(Inbox3),
                      ok
              end),
    %% A node without Trunkline has none, either.
    Cookie = atom_to_list(cluster:call(B, erlang, get_cookie, [])),
    {ok, Peer, Node} = peer:start(#{name => peer:random_name(?MODULE), connection => standard_io,
                                    wait_boot => 120_000, args => ["-setcookie", Cookie]}),
    ?assertEqual(badarg, cluster:call(B, fun() -> try trunkline_inbox:info({?NAME, Node})
                                                  catch error:Reason -> Reason
                                                  end end)),
    ok = peer:stop(Peer),
    cluster:stop(B).

%% What gen_server says of what it should start, and with which name and options, is said here too.
odd_arguments(_) ->
    A = cluster:start([]),
    ok = cluster:call(A, logger, set_primary_config, [level, none]),
    Name = fun() ->
                   {local,
                    list_to_atom("odd_" ++ integer_to_list(erlang:unique_integer([positive])))}
           end,
    {Differences, N} =
        cluster:call(A, fun() ->
                                odd:differences(
                                  gen_server, trunkline_inbox,
                                  [{start_link, fun(_) -> [mailroom, {just, #{}}, []] end},
                                   {start_link, fun(_) -> [Name(), mailroom, {just, #{}}, []] end}],
                                  pairs)
                        end),
    ct:log("~b calls", [N]),
    %% (A global name may be that of the one before for a while.)
    ?assertEqual([], [D || {_, [Who | _], _, _} = D <- Differences,
                           not is_tuple(Who) orelse element(1, Who) =/= global]),
    cluster:stop(A).

%% Requests do not wait. But where senders are refused, so are they.
requests_refused(_) ->
    {A, B} = cluster:pair([]),
    {ok, Inbox} = cluster:call(B, mailroom, start,
                               [{local, ?NAME}, #{}, #{messages => 10, policy => reject}]),
    await_known([A, B], B),
    ok = cluster:call(B, mailroom, hold, [?NAME]),
    lists:foreach(
      fun({At, To}) ->
              {Refused, Counted} = cluster:call(
                          At, fun() ->
                                      [_ = trunkline:send_request(To, {echo, N})
                                       || N <- lists:seq(1, 100)],
                                      cluster:await(fun() -> trunkline_inboxes:is_refusing(To) end),
                                      Before = refused(Inbox),
                                      Last = trunkline:send_request(To, {echo, last}),
                                      Answer = trunkline:receive_response(Last, ?LONG),
                                      _ = traffic:attempt(fun() -> trunkline:call(To, x) end),
                                      {Answer, refused(Inbox) - Before}
                              end),
              ?assertEqual({error, {overload, To}}, Refused),
              ?assertEqual(2, Counted)
      end, [{B, ?NAME}, {A, {?NAME, cluster:node_of(B)}}]),
    cluster:stop_all([A, B]).

%% Runs at a node that sends.
refused(Inbox) -> maps:get(refused, trunkline_inboxes:senders(Inbox)).

%% An option of the server that is wrong is an error, as with gen_server.
wrong_server_options(_) ->
    B = cluster:start([]),
    [?assertEqual(cluster:call(B, fun() -> raised(gen_server, How, Options) end),
                  cluster:call(B, fun() -> raised(trunkline_inbox, How, Options) end))
     || {How, Options} <- [{#{}, [{spawn_opt, [monitor]}]}, {#{}, [{spawn_opt, wrong}]},
                           {#{}, [{timeout, wrong}]}, {#{}, [{timeout, -1}]},
                           {#{wait => true}, [{timeout, 50}]}]],
    %% Nor does a server stay that has no inbox.
    cluster:await(fun() -> cluster:call(B, fun behind_inboxes/0) =:= [] end),
    cluster:stop(B).

%% (The calling process does not trap exits.)
raised(Module, How, Options) ->
    {trap_exit, false} = process_info(self(), trap_exit),
    try Module:start_link(mailroom, How, Options)
    catch Class:Reason -> {Class, Reason}
    end.

behind_inboxes() ->
    [P || P <- processes(), {_, Dictionary} <- [process_info(P, dictionary)],
          lists:keymember('$trunkline_inbox', 1, Dictionary)].

%% Refused, with the one that is wrong, and nothing has been started.
bad_options(_) ->
    B = cluster:start([]),
    ok = cluster:call(
           B, fun() ->
                      Bad = [{policy, wait}, {bytes, 0}, {bytes, 1 bsl 32}, {bytes, many},
                             {bytes, "4GB"}, {bytes, "8 PB"},
                             {messages, 0}, {messages, 1 bsl 22}, {work, 0}, {work, 1.5},
                             {urgent, yes}, {urgent, fun() -> true end}, {tell_dropped, 1},
                             {unknown, x}],
                      Before = processes(),
                      lists:foreach(
                        fun({Key, Value}) ->
                                {error, {bad_option, Key, Value}} =
                                    trunkline_inbox:open(#{Key => Value}),
                                {error, {bad_option, Key, Value}} =
                                    trunkline_inbox:open({local, ?NAME}, #{Key => Value}),
                                Answer = {error, {bad_option, Key, Value}},
                                Answer = trunkline_inbox:start_link(
                                           {local, ?NAME}, mailroom, #{tell => self()},
                                           [{inbox, #{Key => Value}}]),
                                Answer = trunkline_inbox:start_link(
                                           mailroom, #{}, [{inbox, #{bytes => 1000, Key => Value}}])
                        end, Bad),
                      [{error, {bad_option, Key, Value}} =
                           trunkline_inbox:start_link({local, ?NAME}, mailroom, #{}, Options)
                       || {Key, Value, Options} <- [{inbox, x, [{inbox, x}]},
                                                    {inbox, [x | y], [{inbox, [x | y]}]},
                                                    {inbox, [5], [{inbox, [5]}]},
                                                    {inbox, {inbox, #{}, x}, [{inbox, #{}, x}]},
                                                    {x, true, [{inbox, [x]}]},
                                                    {name, ?NAME, [{name, ?NAME}, {inbox, #{}}]},
                                                    {inbx, #{}, [{timeout, 5000}, {inbx, #{}}]}]],
                      undefined = whereis(?NAME),
                      %% (Others of this node may come and go.)
                      cluster:await(fun() -> case processes() -- Before of
                                                 [] -> true;
                                                 New -> [process_info(P) || P <- New]
                                             end end),
                      %% Nor is it without Trunkline.
                      cluster:stop_trunkline(),
                      {error, not_started} =
                          mailroom:own(fun() -> trunkline_inbox:open({local, ?NAME}, #{}) end),
                      {error, not_started} = mailroom:start({local, ?NAME}, #{}, #{}),
                      %% (A process that does not trap exits lives on, too.)
                      {_, Ref} = spawn_monitor(
                                   fun() -> exit({has, trunkline_inbox:open(#{})}) end),
                      receive
                          {'DOWN', Ref, process, _, {has, {error, not_started}}} -> ok
                      end,
                      StartLink = fun() -> trunkline_inbox:start_link(mailroom, #{}, []) end,
                      {_, Ref2} = spawn_monitor(fun() -> exit({has, StartLink()}) end),
                      receive
                          {'DOWN', Ref2, process, _, {has, {error, not_started}}} -> ok
                      end,
                      cluster:await(fun() -> whereis(?NAME) =:= undefined end)
              end),
    cluster:stop(B).

%% The notice counts as a message: with it, too, the process has no more than it may have.
told_of_drops(_) ->
    B = cluster:start([]),
    {Pid, Inbox} = cluster:call(B, mailroom, open,
                                [{local, ?NAME},
                                 #{policy => drop_oldest, messages => 10, work => 2}]),
    ok = cluster:call(
           B, fun() -> lists:foreach(fun(N) -> ?NAME ! {from, x, N, y} end, lists:seq(1, 100)) end),
    cluster:await(fun() -> accounted(B, 100) end),
    ok = cluster:call(B, mailroom, done, [Pid, 1]),
    cluster:await(
      fun() -> {Got, _, _} = cluster:call(B, mailroom, state, [Pid]), length(Got) >= 3 end),
    ok = cluster:call(
           B,
           fun() -> lists:foreach(fun(N) -> ?NAME ! {from, x, N, y} end, lists:seq(101, 200)) end),
    %% (What the process has done may overtake them.)
    cluster:await(fun() -> case cluster:call(B, trunkline_inbox, info, [Inbox]) of
                               #{dropped := 188} -> true;
                               Info -> Info
                           end end),
    ok = cluster:call(B, mailroom, done, [Pid, 2]),
    ok = cluster:call(B, mailroom, go_on, [Pid]),
    cluster:await(fun() -> idle(B) end),
    {Got, _, Most} = cluster:call(B, mailroom, state, [Pid]),
    ?assertEqual(2, Most),
    #{dropped := Dropped} = cluster:call(B, trunkline_inbox, info, [Inbox]),
    ?assertEqual(Dropped,
                 lists:sum([N || {trunkline_inbox, From, {dropped, N}} <- Got, From =:= Inbox])),
    ?assertEqual(200, Dropped + length([x || {from, x, _, _} <- Got])),
    ?assertMatch([{from, x, 1, y}, {from, x, 2, y}, {trunkline_inbox, _, {dropped, 88}},
                  {trunkline_inbox, _, {dropped, 100}}, {from, x, 191, y} | _], Got),
    cluster:stop(B).

%% Who waited for it waits no longer.
%% The process gets what looks like several messages of a lane, and is not.
no_run(_) ->
    {A, B} = cluster:pair([]),
    ok = cluster:call(
           B, fun() ->
                      {ok, Inbox} = trunkline_inbox:open(#{}),
                      Source = {node(), 1},
                      Odd = [['$inbox_run', Source, Sum | Run]
                             || {Sum, Run} <- [{1, [x]}, {1, [[2 | x]]}, {1, [[1 | x] | y]},
                                               {2, [[1 | x]]}, {1, [[0 | x], [1 | x]]}, {x, []}]],
                      lists:foreach(fun(Message) ->
                                            Inbox ! Message,
                                            receive Message -> ok end,
                                            ok = trunkline_inbox:done(Inbox, 1)
                                    end, Odd),
                      ok = trunkline_inbox:close(Inbox)
              end),
    cluster:stop_all([A, B]).

closed(_) ->
    {A, B} = cluster:pair([]),
    {Pid, Inbox} = cluster:call(B, mailroom, open, [{local, ?NAME}, #{messages => 100}]),
    await_known([A], B),
    Senders = [{N, cluster:call(N, mailroom, senders, [{?NAME, cluster:node_of(B)},
                                                       [{x, I} || I <- lists:seq(1, 5)], 200, 10])}
               || N <- [A, B]],
    await_waiting(B, [A, B], 5),
    ok = cluster:call(B, trunkline_inbox, close, [Inbox]),
    finished(Senders, 200),
    %% The process lives if it was not linked any more: here another one has closed it.
    cluster:await(fun() -> not cluster:call(B, erlang, is_process_alive, [Pid]) end),
    ok = cluster:call(B, fun() ->
                                 {ok, I} = trunkline_inbox:open({local, ?NAME}, #{}),
                                 {ok, J} = trunkline_inbox:open(#{}),
                                 {error, {already_started, I}} =
                                     trunkline_inbox:open({local, ?NAME}, #{}),
                                 ?NAME ! one,
                                 J ! two,
                                 receive one -> ok end,
                                 receive two -> ok end,
                                 [ok, ok] = [trunkline_inbox:done(P, 1) || P <- [?NAME, J]],
                                 [ok, ok] = [trunkline_inbox:close(P) || P <- [I, J]],
                                 undefined = whereis(?NAME),
                                 ok
                         end),
    %% The end of the process is the end of its inbox, whether these are linked or not.
    ok = cluster:call(B, fun() ->
                                 {Owner, Monitor} = spawn_monitor(fun owner_unlinks/0),
                                 receive {'DOWN', Monitor, process, Owner, normal} -> ok end,
                                 cluster:await(fun() -> whereis(?NAME) =:= undefined end)
                         end),
    ?assertEqual([last], cluster:call(B, fun remembered/0)),
    cluster:stop_all([A, B]).

owner_unlinks() ->
    {ok, Inbox} = trunkline_inbox:open({local, ?NAME}, #{}),
    true = unlink(Inbox).

%% What a process remembers of inboxes that others have ended.
remembered() ->
    process_flag(trap_exit, true),
    Ended = [begin
                 {ok, I} = trunkline_inbox:open(#{}),
                 exit(I, kill),
                 receive {'EXIT', I, killed} -> I end
             end || _ <- lists:seq(1, 10)],
    {ok, Last} = trunkline_inbox:open(#{}),
    Remembered = [Pid || {{trunkline_inbox, Pid}, _} <- get()],
    ok = trunkline_inbox:close(Last),
    [case Pid of
         Last -> last;
         _ -> {ended, lists:member(Pid, Ended)}
     end || Pid <- Remembered].

%% A process that is done with one of eight may be busy with the other seven for long. It gets one
%% more at once.
topped_up(_) ->
    {B, Pid, Got} = open_to_eight(20),
    ok = cluster:call(B, mailroom, done, [Pid, 1]),
    Got(9),
    ok = cluster:call(B, mailroom, done, [Pid, 2]),
    Got(11),
    cluster:stop(B).

%% What OTP's tools say to a process is not dropped, however full its inbox is.
asked_by_tools(_) ->
    B = cluster:start([]),
    {Pid, Inbox} = cluster:call(B, mailroom, open, [{local, ?NAME}, #{messages => 10}]),
    ok = cluster:call(B, fun() ->
                                 lists:foreach(fun(N) -> ?NAME ! {from, x, N, y} end,
                                               lists:seq(1, 20)),
                                 #{dropped := Dropped} = trunkline_inbox:info(Inbox),
                                 true = Dropped > 0,
                                 ?NAME ! {system, {self(), make_ref()}, get_state},
                                 #{dropped := Dropped} = trunkline_inbox:info(Inbox),
                                 ok
                         end),
    ok = cluster:call(B, mailroom, go_on, [Pid]),
    cluster:await(fun() ->
                          {Got, _, _} = cluster:call(B, mailroom, state, [Pid]),
                          [x || {system, _, get_state} <- Got] =:= [x]
                  end),
    cluster:stop(B).

%% Whoever has the name gets what is sent to it within the node, as with `!'.
name_passed_on(_) ->
    B = cluster:start([]),
    {Pid, _} = cluster:call(B, mailroom, open, [{local, ?NAME}, #{}]),
    [Other] = cluster:call(B, traffic, start_watchers, [1]),
    true = cluster:call(B, fun() -> unregister(?NAME), register(?NAME, Other) end),
    Send = fun(To, N) -> fun() -> trunkline:send(To, {from, N, 1, x}) end end,
    Sent = [cluster:call(B, Send(To, To)) || To <- [?NAME, {?NAME, cluster:node_of(B)}]],
    cluster:await(fun() -> cluster:call(B, traffic, count, [Other]) =:= length(Sent) end),
    ?assertEqual({[], 0, 0}, cluster:call(B, mailroom, state, [Pid])),
    cluster:stop(B).

%% So it does from other nodes that have sent to the inbox by its name, soon. When the inbox has the
%% name again, it is bounded again.
name_moves(_) ->
    {A, B} = cluster:pair([]),
    To = {?NAME, cluster:node_of(B)},
    {Pid, Inbox} = cluster:call(B, mailroom, open, [{local, ?NAME}, #{}]),
    await_known([A], B),
    [Other] = cluster:call(B, traffic, start_watchers, [1]),
    true = cluster:call(B, fun() -> unregister(?NAME), register(?NAME, Other) end),
    %% (Each message has another sender.)
    Send = fun(Tag) -> cluster:call(A, trunkline, send, [To, {from, Tag, 1, x}]) end,
    cluster:await(fun() ->
                          _ = Send(soon),
                          cluster:call(B, traffic, count, [Other]) > 0
                  end),
    ?assertNot(is_known(A, To)),
    _ = Send(later),
    cluster:await(fun() -> case cluster:call(B, traffic, summary, [Other]) of
                               #{later := {1, 1, []}} -> true;
                               Summary -> Summary
                           end end),
    {Got, _, _} = cluster:call(B, mailroom, state, [Pid]),
    ?assertEqual([], [Message || {from, later, _, _} = Message <- Got]),
    true = cluster:call(B, fun() -> unregister(?NAME), register(?NAME, Inbox) end),
    cluster:await(fun() ->
                          _ = cluster:call(A, trunkline, send, [Inbox, {from, inbox, 1, x}]),
                          is_known(A, To)
                  end),
    cluster:stop_all([A, B]).

%% To ask how the senders of other nodes fare does not connect to them.
info_connects_to_no_node(_) ->
    {A, B} = cluster:pair([]),
    {_, Inbox} = cluster:call(B, mailroom, open, [{local, ?NAME}, #{}]),
    _ = cluster:call(A, trunkline, send, [Inbox, {from, a, 1, x}]),
    NodeA = cluster:node_of(A),
    cluster:await(fun() ->
                          #{nodes := Nodes} = cluster:call(B, trunkline_inbox, info, [Inbox]),
                          is_map_key(NodeA, Nodes)
                  end),
    ?assertEqual([], cluster:call(B, fun() ->
                                             true = erlang:disconnect_node(NodeA),
                                             #{} = trunkline_inbox:info(Inbox),
                                             nodes(connected) -- [node()]
                                     end) -- cluster:call(B, erlang, nodes, [hidden])),
    cluster:stop_all([A, B]).

%% A node that calls, and may be a program in another language, is told nothing of the inbox.
without_trunkline(_) ->
    [A, B] = [cluster:start(none), cluster:start([])],
    {ok, _} = cluster:call(B, mailroom, start, [{local, ?NAME}, #{}, #{policy => reject}]),
    ok = cluster:call(
           A, fun() ->
                      true = register(trunkline_inboxes, self()),
                      hello = gen_server:call({?NAME, cluster:node_of(B)}, {echo, hello}),
                      _ = sys:get_state({trunkline_inboxes, cluster:node_of(B)}),
                      receive Message -> {told, Message} after 0 -> ok end
              end),
    cluster:stop_all([A, B]).

%% With so many messages. Returns the consumer, and how to wait until it has got some.
open_to_eight(Messages) ->
    B = cluster:start([]),
    {Pid, _} = cluster:call(B, mailroom, open, [{local, ?NAME}, #{work => 8}]),
    ok = cluster:call(
           B, fun() ->
                      lists:foreach(fun(N) -> ?NAME ! {from, x, N, y} end, lists:seq(1, Messages))
              end),
    Got = fun(N) ->
                  cluster:await(fun() ->
                                        {Got, _, _} = cluster:call(B, mailroom, state, [Pid]),
                                        length(Got) =:= N
                                end)
          end,
    Got(8),
    {B, Pid, Got}.

%% It does not depend on the application, nor on who keeps the list of inboxes.
done_alone(_) ->
    {B, Pid, Got} = open_to_eight(40),
    ok = cluster:call(B, fun() -> mailroom:kill([whereis(trunkline_inboxes)]) end),
    ok = cluster:call(B, mailroom, done, [Pid, 8]),
    Got(16),
    ok = cluster:call(B, cluster, stop_trunkline, []),
    ok = cluster:call(B, mailroom, done, [Pid, 8]),
    Got(24),
    %% Another process says so.
    ok = cluster:call(B, trunkline_inbox, done, [?NAME, 8]),
    Got(32),
    ok = cluster:call(B, mailroom, go_on, [Pid]),
    Got(40),
    cluster:stop(B).

%% When a process has ended, the name of its inbox is free, however much is in the inbox.
opened_again(_) ->
    B = cluster:start([]),
    Senders = cluster:call(B, fun() -> [spawn(fun() -> send_while_there(?NAME) end)
                                        || _ <- lists:seq(1, 4)] end),
    {Opened, Ends} =
        cluster:call(B, fun() -> {[open_and_end() || _ <- lists:seq(1, 50)], reasons(50)} end),
    ?assertEqual([], [Other || Other <- Opened, Other =/= {ok, end_of_owner}]),
    ?assertEqual([{ok, end_of_owner}], Ends),
    ok = cluster:call(B, mailroom, kill, [Senders]),
    cluster:stop(B).

open_and_end() ->
    Self = self(),
    {Owner, Monitor} =
        spawn_monitor(fun() ->
                              {Result, Inbox} = trunkline_inbox:open({local, ?NAME}, #{}),
                              receive {sent, _} -> Self ! {inbox, Inbox} end,
                              receive go -> exit({Result, end_of_owner}) end
                      end),
    receive {inbox, Inbox} -> _ = monitor(process, Inbox) end,
    Owner ! go,
    receive {'DOWN', Monitor, process, _, Reason} -> Reason end.

%% How so many inboxes have ended.
reasons(N) ->
    lists:usort([receive {'DOWN', _, process, _, Reason} -> Reason end || _ <- lists:seq(1, N)]).

send_while_there(Name) ->
    _ = try Name ! {sent, x} catch error:badarg -> none end,
    send_while_there(Name).

%% --- lanes -------------------------------------------------------------------------------

%% All by one lane: an inbox that takes nothing does not hold up what goes elsewhere.
stalled_beside_lane(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    {ok, _} = cluster:call(B, mailroom, start, [{local, ?NAME}, #{}, #{messages => 100}]),
    {ok, _} = cluster:call(B, mailroom, start, [{local, brisk}, #{}, #{messages => 100}]),
    [Plain] = cluster:call(B, traffic, start_receivers, [1]),
    ok = cluster:call(B, mailroom, hold, [?NAME]),
    await_known([A], B),
    NodeB = cluster:node_of(B),
    await_known(brisk, [A], B),
    Stalled = cluster:call(A, mailroom, senders,
                           [{?NAME, NodeB}, [{x, I} || I <- lists:seq(1, 20)], 200, 1000]),
    await_waiting(B, [A], 20),
    Others = cluster:call(A, mailroom, senders,
                          [Plain, [{y, I} || I <- lists:seq(1, 5)], 2000, 100]),
    Brisk = cluster:call(A, mailroom, senders,
                         [{brisk, NodeB}, [{z, I} || I <- lists:seq(1, 5)], 2000, 100]),
    finished([{A, Others}, {A, Brisk}], 2000),
    cluster:await(fun() -> cluster:call(B, traffic, count, [Plain]) =:= 10_000 end),
    cluster:await(fun() ->
                          lists:usort(maps:values(cluster:call(B, mailroom, summary, [brisk])))
                              =:= [{2000, 2000, []}]
                  end),
    x = cluster:call(A, trunkline, call, [{brisk, NodeB}, {echo, x}, ?LONG]),
    ?assertEqual(20, cluster:call(A, mailroom, alive, [Stalled])),
    await_waiting(B, [A], 20),
    ok = cluster:call(B, mailroom, release, [?NAME]),
    finished([{A, Stalled}], 200),
    cluster:stop_all([A, B]).

%% --- faults --------------------------------------------------------------------------------

%% Endless senders at both nodes, eight each.
endless(A, B) ->
    await_known([A], B),
    To = {?NAME, cluster:node_of(B)},
    Senders = [{N, cluster:call(N, mailroom, senders, [To, tags(N, 8), infinity, 50])}
               || N <- [A, B]],
    _ = heard(A, B),
    Senders.

%% The summary that has each of them.
heard(A, B) ->
    Test = self(),
    Ref = make_ref(),
    cluster:await(
      fun() -> Summary = summary(B),
               case [Tag || N <- [A, B], Tag <- tags(N, 8), not is_map_key(Tag, Summary)] of
                   [] -> Test ! {Ref, Summary}, true;
                   Missing -> {missing, Missing}
               end end, ?LONG),
    receive {Ref, Summary} -> Summary end.

%% Of each of them there is news.
flowing(A, B) ->
    Before = heard(A, B),
    cluster:await(fun() -> Now = summary(B),
                           case [Tag || N <- [A, B], Tag <- tags(N, 8),
                                        not is_later(maps:get(Tag, Now, none),
                                                     element(1, maps:get(Tag, Before)))] of
                               [] -> true;
                               Stuck -> {stuck, Stuck,
                                         cluster:call(B, fun() -> try trunkline_inbox:info(?NAME)
                                                                  catch error:badarg -> none
                                                                  end end)}
                           end end, ?LONG).

is_later({Now, _, _}, Last) -> Now > Last;
is_later(none, _) -> false.

%% All are through, none is stuck; nothing is left in it, and as much as ever goes through it.
afterwards(A, B, Senders) ->
    stopped(Senders),
    cluster:await(fun() -> idle(B) end, ?LONG),
    await_known([A], B),
    To = {?NAME, cluster:node_of(B)},
    New = [{N, cluster:call(N, mailroom, senders,
                            [To, [{new, cluster:node_of(N), I} || I <- lists:seq(1, 8)], 200, 50])}
           || N <- [A, B]],
    finished(New, 200),
    cluster:await(
      fun() ->
              case [Other || {{new, _, _}, {200, 200, []} = Other} <- maps:to_list(summary(B))] of
                  All when length(All) =:= 16 -> true;
                  Some ->
                      {length(Some),
                       [cluster:call(B, fun() -> trunkline_inbox:info(?NAME) end)
                        | [maps:get(lost, cluster:info(A, B))]]}
              end
      end, ?LONG),
    ok.

%% A server behind an inbox that replies to a node that stands still is suspended as any other.
replies_bounded(_) ->
    {A, B} = cluster:pair([{bulk_bytes, 8_000_000}]),
    {ok, Pid} = cluster:call(B, mailroom, start, [{local, ?NAME}, #{}, #{}]),
    ok = cluster:call(B, mailroom, hold, [?NAME]),
    To = {?NAME, cluster:node_of(B)},
    Size = fun(I) -> byte_size(trunkline:call(To, {bytes, 1_000_000 + I}, infinity)) end,
    Calls = lists:seq(1, 100),
    Callers = cluster:call(A, mailroom, callers, [Size, Calls]),
    cluster:await(fun() -> #{queued_messages := Q, in_work := N} =
                               cluster:call(B, trunkline_inbox, info, [?NAME]),
                           Q + N =:= 1 + length(Calls) orelse {Q, N}
                  end),
    Server = cluster:call(B, mailroom, consumer, [Pid]),
    cluster:suspend(A),
    ok = cluster:call(B, mailroom, release, [Pid]),
    cluster:await_suspended(B, Server),
    #{large := #{pending_bytes := Pending}} = cluster:info(B, A),
    ?assert(Pending < 20_000_000),
    cluster:continue(A),
    ?assertEqual([1_000_000 + I || I <- Calls],
                 cluster:call(A, mailroom, collect, [Callers, finish])),
    cluster:stop_all([A, B]).

%% With its process go all who wait.
consumer_dies(_) ->
    {A, B} = cluster:pair([]),
    To = {?NAME, cluster:node_of(B)},
    lists:foreach(
      fun(_) ->
              {Pid, _} = cluster:call(B, mailroom, open, [{local, ?NAME}, #{messages => 100}]),
              await_known([A], B),
              Senders = [{N, cluster:call(N, mailroom, senders, [To, tags(N, 8), 500, 50])}
                         || N <- [A, B]],
              await_waiting(B, [A, B], 8),
              true = cluster:call(B, erlang, exit, [Pid, kill]),
              finished(Senders, 500),
              undefined = cluster:call(B, erlang, whereis, [?NAME])
      end, [1, 2, 3]),
    {ok, _} = cluster:call(B, mailroom, start, [{local, ?NAME}, #{}, #{messages => 100}]),
    afterwards(A, B, endless(A, B)),
    cluster:stop_all([A, B]).

%% Many of them, while they wait, while they run: nothing that they have left behind stays.
producers_killed(_) ->
    {A, B} = cluster:pair([]),
    {ok, _} = cluster:call(B, mailroom, start, [{local, ?NAME}, #{}, #{messages => 100}]),
    await_known([A], B),
    To = {?NAME, cluster:node_of(B)},
    Some = fun() ->
                   [{N, cluster:call(N, mailroom, senders,
                                     [To, [{gone, I} || I <- lists:seq(1, 100)], infinity, 50])}
                    || N <- [A, B]]
           end,
    lists:foreach(fun(_) ->
                          ok = cluster:call(B, mailroom, hold, [?NAME]),
                          Waiting = Some(),
                          await_waiting(B, [A, B], 50),
                          _ = [ok = cluster:call(N, mailroom, kill, [Pids])
                               || {N, Pids} <- Waiting],
                          ok = cluster:call(B, mailroom, release, [?NAME]),
                          Running = Some(),
                          cluster:await(fun() -> tags(B) >= 100 end, ?LONG),
                          _ = [ok = cluster:call(N, mailroom, kill, [Pids]) || {N, Pids} <- Running]
                  end, lists:seq(1, 5)),
    afterwards(A, B, endless(A, B)),
    cluster:stop_all([A, B]).

%% They are told that there is room, and killed before they take it: the others get it.
killed_when_told(_) ->
    {A, B} = cluster:pair([]),
    {ok, _} = cluster:call(B, mailroom, start, [{local, ?NAME}, #{}, [{bytes, "1000 B"}]]),
    await_known([A], B),
    To = {?NAME, cluster:node_of(B)},
    lists:foreach(
      fun(At) ->
              ok = cluster:call(B, mailroom, hold, [?NAME]),
              Doomed = cluster:call(At, mailroom, senders,
                                    [To, [{doomed, I} || I <- lists:seq(1, 20)], infinity, 10]),
              await_waiting(B, [At], 20),
              Holder = cluster:call(
                         At, fun() ->
                                     mailroom:own(
                                       fun() ->
                                               lists:foreach(fun erlang:suspend_process/1, Doomed),
                                               self()
                                       end)
                             end),
              Others = cluster:call(At, mailroom, senders,
                                    [To, [{At, I} || I <- lists:seq(1, 5)], 100, 10]),
              %% (Some of the others may have been told already.)
              await_waiting(B, [At], 1),
              ok = cluster:call(B, mailroom, release, [?NAME]),
              %% Those who have been told, or will be, do nothing any more.
              cluster:await(fun() -> idle(B) end),
              ok = cluster:call(At, mailroom, kill, [Doomed]),
              true = cluster:call(At, erlang, is_process_alive, [Holder]),
              finished([{At, Others}], 100)
      end, [A, B]),
    cluster:stop_all([A, B]).

%% With a node go its charges; those of others stay as they are.
sending_node_dies(_) ->
    {A, B} = cluster:pair([]),
    Name = peer:random_name("trunkline_sender"),
    {ok, _} = cluster:call(B, mailroom, start, [{local, ?NAME}, #{}, #{messages => 100}]),
    Watch = cluster:call(B, mailroom, watch, [?NAME]),
    To = {?NAME, cluster:node_of(B)},
    Senders = endless(A, B),
    lists:foreach(fun(_) ->
                          C = cluster:start([], Name),
                          cluster:connect(C, B),
                          cluster:await_up(C, B),
                          await_known([A, C], B),
                          ok = cluster:call(B, mailroom, hold, [?NAME]),
                          _ = cluster:call(C, mailroom, senders, [To, tags(C, 8), infinity, 50]),
                          await_waiting(B, [A, B, C], 8),
                          cluster:kill(C),
                          cluster:await_state(B, C, down),
                          ok = cluster:call(B, mailroom, release, [?NAME]),
                          flowing(A, B),
                          cluster:stop(C)
                  end, [1, 2, 3]),
    {Messages, _, _} = cluster:call(B, mailroom, most, [Watch]),
    ct:log("at most ~b", [Messages]),
    ?assert(Messages =< 100 + ?CALLS),
    afterwards(A, B, Senders),
    cluster:stop_all([A, B]).

%% Who waits for room at a node that is gone goes on, and finds the one that comes back.
receiving_node_dies(_) ->
    Name = peer:random_name("trunkline_receiver"),
    A = cluster:start([]),
    lists:foreach(
      fun(_) ->
              B = cluster:start([], Name),
              cluster:connect(A, B),
              cluster:await_up(A, B),
              {ok, _} = cluster:call(B, mailroom, start, [{local, ?NAME}, #{}, #{messages => 100}]),
              await_known([A], B),
              To = {?NAME, cluster:node_of(B)},
              ok = cluster:call(B, mailroom, hold, [?NAME]),
              Senders = cluster:call(A, mailroom, senders, [To, tags(A, 8), 300, 50]),
              Endless = cluster:call(A, mailroom, senders,
                                     [To, [{endless, I} || I <- lists:seq(1, 8)], infinity, 50]),
              await_waiting(B, [A], 16),
              cluster:kill(B),
              finished([{A, Senders}], 300),
              cluster:await_state(A, B, down),
              B2 = cluster:start([], Name),
              {ok, _} = cluster:call(B2, mailroom, start,
                                     [{local, ?NAME}, #{}, #{messages => 100}]),
              cluster:connect(A, B2),
              cluster:await(fun() -> tags(B2) =:= 8 end, ?LONG),
              afterwards(A, B2, [{A, Endless}]),
              cluster:stop_all([B, B2]),
              %% Its next connection must not be taken for this one.
              cluster:await_state(A, B2, down)
      end, [1, 2]),
    cluster:stop(A).

%% Under load, with senders that wait and without.
faulty(Fault) ->
    {A, B} = cluster:pair([]),
    {ok, _} = cluster:call(B, mailroom, supervise, [[spec(#{messages => 200})]]),
    Watch = cluster:call(B, mailroom, watch, [?NAME]),
    Senders = endless(A, B),
    lists:foreach(fun({At, Hold}) ->
                          _ = [begin
                                   ok = cluster:call(B, mailroom, hold, [?NAME]),
                                   await_waiting(B, [A, B])
                               end || Hold],
                          Fault(At, A, B),
                          _ = [ok = cluster:call(
                                      B, fun() ->
                                                 try mailroom:release(?NAME) catch _:_ -> ok end,
                                                 ok
                                         end) || Hold],
                          cluster:await_up(A, B),
                          flowing(A, B)
                  end, [{At, Hold} || At <- [A, B], Hold <- [true, false]]),
    Most = cluster:call(B, fun() -> is_process_alive(Watch) andalso mailroom:most(Watch) end),
    ct:log("at most ~p", [Most]),
    afterwards(A, B, Senders),
    cluster:stop_all([A, B]),
    Most.

lanes_killed(_) ->
    faulty(fun(At, A, B) ->
                   Other = cluster:node_of(case At of A -> B; B -> A end),
                   Link = cluster:call(At,
                                       fun() ->
                                               #{link := Pid} = trunkline_peers:lookup(Other),
                                               {_, Route} =
                                                   lists:keyfind(Other, 1, trunkline_route:all()),
                                               %% (One that sleeps runs no code of its own module.)
                                               mailroom:kill(tuple_to_list(element(3, Route))),
                                               Pid
                                       end),
                   %% Another link has taken over: nothing that is sent from now on may be lost.
                   cluster:await(fun() -> case cluster:call(At, trunkline_peers, lookup, [Other]) of
                                              #{link := Link} -> Link;
                                              #{link := New} -> is_pid(New)
                                          end end)
           end).

%% Another one takes over, and knows all inboxes.
inboxes_killed(_) ->
    faulty(
      fun(At, _, B) ->
              Released = cluster:call(B, mailroom, consumer, [?NAME]),
              Old = cluster:call(
                      At, fun() -> P = whereis(trunkline_inboxes), mailroom:kill([P]), P end),
              cluster:await(fun() -> case cluster:call(At, erlang, whereis, [trunkline_inboxes]) of
                                         Old -> old;
                                         Pid -> is_pid(Pid)
                                     end end),
              known(B),
              Released = cluster:call(B, mailroom, consumer, [?NAME])
      end).

%% As an inbox of that node.
known(B) ->
    cluster:await(fun() ->
                          cluster:call(B, fun() -> try is_map(trunkline_inbox:info(?NAME))
                                                   catch error:badarg -> false
                                                   end end)
                  end).

%% The process with which an inbox registers ends while it does so, and just after.
opened_meanwhile(_) ->
    B = cluster:start([]),
    ?assertEqual({error, not_started}, cluster:call(B, fun() -> open_while(killed_before) end)),
    ?assertMatch({ok, _}, cluster:call(B, fun() -> open_while(registered) end)),
    known(B),
    cluster:stop(B).

open_while(When) ->
    Inboxes = whereis(trunkline_inboxes),
    true = erlang:suspend_process(Inboxes),
    Self = self(),
    spawn(fun() ->
                  Self ! {opened, trunkline_inbox:open({local, ?NAME}, #{})},
                  receive after infinity -> ok end
          end),
    has_message(Inboxes),
    Keeper = whereis(?NAME),
    When =:= registered andalso begin
        true = erlang:suspend_process(Keeper),
        true = erlang:resume_process(Inboxes),
        has_message(Keeper)
    end,
    mailroom:kill([Inboxes]),
    cluster:await(fun() -> is_pid(whereis(trunkline_inboxes)) end),
    When =:= registered andalso erlang:resume_process(Keeper),
    receive {opened, Opened} -> Opened end.

has_message(Pid) ->
    cluster:await(fun() -> process_info(Pid, message_queue_len) > {message_queue_len, 0} end).

application_restarted(_) ->
    faulty(fun(At, A, B) ->
                   ok = cluster:call(At, cluster, stop_trunkline, []),
                   At =:= A andalso flowing_if_free(A, B),
                   ok = cluster:call(At, cluster, start_trunkline, [[]]),
                   known(B)
           end).

%% (The server may be held.)
flowing_if_free(A, B) ->
    case cluster:call(
           B, fun() -> traffic:attempt(fun() -> gen_server:call(?NAME, {echo, x}, 100) end) end) of
        {ok, x} -> flowing(A, B);
        _ -> ok
    end.

%% The server goes with it, and a new one comes with a new one.
%% Then its server has ended when it starts again, although the server ends after it.
killed_and_started_again(_) ->
    B = cluster:start([]),
    [ok = cluster:call(
            B, fun() ->
                       process_flag(trap_exit, true),
                       [begin
                            {ok, Pid} = trunkline_inbox:start_link({local, ?NAME}, mailroom, How,
                                                                   []),
                            ok = gen_server:call(Pid, hold, infinity),
                            exit(Pid, kill),
                            receive {'EXIT', Pid, killed} -> ok end
                        end || _ <- lists:seq(1, 100)],
                       ok
               end) || How <- [#{table => ?NAME}, #{table => ?NAME, trap => true}]],
    cluster:stop(B).

%% It was killed before the next process of the inboxes knew it. That ends the server, too: the next
%% one of that name waits for its end.
killed_and_known_later(_) ->
    B = cluster:start([]),
    ok = cluster:call(
           B, fun() ->
                      process_flag(trap_exit, true),
                      {ok, Pid} = trunkline_inbox:start_link({local, ?NAME}, mailroom,
                                                             #{trap => true}, []),
                      ok = gen_server:call(Pid, hold, infinity),
                      true = erlang:suspend_process(Pid),
                      Inboxes = whereis(trunkline_inboxes),
                      exit(Inboxes, kill),
                      cluster:await(fun() ->
                                            Next = whereis(trunkline_inboxes),
                                            is_pid(Next) andalso Next =/= Inboxes
                                    end),
                      Next = whereis(trunkline_inboxes),
                      true = erlang:suspend_process(Next),
                      true = erlang:resume_process(Pid),
                      cluster:await(fun() ->
                                            {messages, Messages} = process_info(Next, messages),
                                            [] =/= [R || {'$gen_cast', {register, R}} <- Messages]
                                    end),
                      exit(Pid, kill),
                      receive {'EXIT', Pid, killed} -> ok end,
                      true = erlang:resume_process(Next),
                      {ok, _} = trunkline_inbox:start_link({local, ?NAME}, mailroom, #{}, []),
                      ok
              end),
    cluster:stop(B).

%% Who starts the server is killed meanwhile: so is the server, as with gen_server.
starter_killed(_) ->
    B = cluster:start([]),
    ok = cluster:call(
           B, fun() ->
                      Starter = spawn(fun() ->
                                              trunkline_inbox:start_link({local, ?NAME}, mailroom,
                                                                         #{wait => self()}, [])
                                      end),
                      Waiting = fun() ->
                                        [P || P <- processes(),
                                              {_, {mailroom, init, 1}}
                                                  <- [process_info(P, current_function)]]
                                end,
                      cluster:await(fun() -> Waiting() =/= [] end),
                      mailroom:kill([Starter]),
                      cluster:await(fun() -> Waiting() =:= [] end),
                      cluster:await(fun() -> whereis(?NAME) =:= undefined end)
              end),
    cluster:stop(B).

%% Very many senders are killed while they wait. Then one that lives does not wait behind them.
waiters_killed(_) ->
    B = cluster:start([]),
    Bytes = 10_000,
    {ok, _} = cluster:call(B, mailroom, start, [{local, ?NAME}, #{}, #{bytes => Bytes}]),
    ok = cluster:call(B, mailroom, hold, [?NAME]),
    Senders = cluster:call(B, mailroom, senders, [?NAME, lists:seq(1, 300), 100, 1000]),
    await_waiting(B, [B], 300),
    ok = cluster:call(B, mailroom, kill, [Senders]),
    [Living] = cluster:call(B, mailroom, senders, [?NAME, [living], 1, 1000]),
    ok = cluster:call(B, mailroom, release, [?NAME]),
    ?assertEqual([1], cluster:call(B, mailroom, collect, [[Living], finish])),
    cluster:stop(B).

keeper_killed(_) ->
    faulty(fun(_, _, B) ->
                   Before = cluster:call(B, fun() -> P = whereis(?NAME), mailroom:kill([P]), P end),
                   cluster:await(fun() -> case cluster:call(B, erlang, whereis, [?NAME]) of
                                              Before -> old;
                                              Pid -> is_pid(Pid)
                                          end end),
                   known(B)
           end).

disconnected(_) ->
    faulty(fun(At, A, B) ->
                   Other = case At of A -> B; B -> A end,
                   anew:lanes(A, B, fun() ->
                                            cluster:call(At, erlang, disconnect_node,
                                                         [cluster:node_of(Other)])
                                    end)
           end).

%% A node that stands still for longer than it takes to look for what is missing.
stopped_and_continued(_) ->
    {Messages, _, Length} =
        faulty(fun(At, _, _) ->
                       cluster:suspend(At),
                       receive after 3500 -> ok end,      % of standing still
                       cluster:continue(At)
               end),
    ?assert(Messages =< 200 + ?CALLS),
    ?assert(Length =< 256 + 2).

%% A node that comes late gets to know of an inbox that is full, and of its end.
late_introduction(_) ->
    [A, B] = cluster:start_all([[], []]),
    To = {?NAME, cluster:node_of(B)},
    {ok, _} = cluster:call(B, mailroom, start, [{local, ?NAME}, #{}, #{messages => 100}]),
    ok = cluster:call(B, mailroom, hold, [?NAME]),
    cluster:connect(A, B),
    cluster:await_up(A, B),
    await_known([A], B),
    Senders = cluster:call(A, mailroom, senders, [To, tags(A, 8), 500, 50]),
    await_waiting(B, [A], 8),
    ok = cluster:call(B, mailroom, release, [?NAME]),
    finished([{A, Senders}], 500),
    all_in_order(B, [{A, Senders}], 500),
    ok = cluster:call(B, fun() -> stop(whereis(?NAME)) end),
    cluster:await(fun() -> not is_known(A, To) end),
    {ok, _} = cluster:call(B, mailroom, start,
                           [{local, ?NAME}, #{}, #{policy => drop_newest, messages => 100}]),
    ok = cluster:call(B, mailroom, hold, [?NAME]),
    finished([{A, cluster:call(A, mailroom, senders, [To, [x], 500, 50])}], 500),
    cluster:await(fun() -> accounted(B, 501) end),
    cluster:stop_all([A, B]).

%% Those who send before their node knows of an inbox are not bounded. The first message makes
%% it known, and is one more for tests that count: here it is as if there had been one.
await_known(Nodes, B) -> await_known(?NAME, Nodes, B).

await_known(Name, Nodes, B) ->
    Key = {Name, cluster:node_of(B)},
    Keeper = cluster:call(B, erlang, whereis, [Name]),
    lists:foreach(
      fun(N) ->
              cluster:await(fun() ->
                                    N =:= B orelse meet(Keeper, N, B),
                                    case cluster:call(N, ets, lookup, [trunkline_inboxes, Key]) of
                                        [Row] -> element(3, Row) =:= Keeper;
                                        [] -> unknown
                                    end
                            end)
      end, Nodes).

meet(Keeper, N, B) -> cluster:call(B, trunkline_inboxes, met, [Keeper, cluster:node_of(N)]).

%% (There is no other way to see it.)
is_known(Node, To) ->
    cluster:call(Node, ets, member, [trunkline_inboxes, To]).

%% (Nor this.)
is_told_full(Node, To) ->
    cluster:call(Node, fun() ->
                               [Row] = ets:lookup(trunkline_inboxes, To),
                               atomics:get(element(4, Row), 4) rem 2 =:= 1
                       end).
