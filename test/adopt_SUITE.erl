%% trunkline_adopt: applications that others compiled send by lane, and nothing else about them
%% changes. The applications are made here: `shop' has a queue as RabbitMQ's (the data of
%% transform_SUITE), a module that sends nothing, and one without debug information. `till'
%% calls it.
-module(adopt_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([reports/1, get_after_publish/1, checks/1, hot_code/1, lingering/1, other_code/1, writes/1,
         odd_modules/1, adopter_killed/1, restarted/1, options/1, room/1, chunks/1, elixir/1,
         tasks/1, mnesia/1, archive/1]).

-export([core_transform/2]).

suite() -> [{timetrap, {minutes, 5}}].

all() -> [reports, get_after_publish, checks, hot_code, lingering, other_code, writes,
          odd_modules, adopter_killed, restarted, options, room, chunks, elixir, tasks, mnesia,
          archive].

init_per_suite(Config) ->
    Dir = filename:join(?config(priv_dir, Config), "lib"),
    Broker = filename:join([command:root(), "test/transform_SUITE_data/broker.erl"]),
    application(Dir, shop, [{broker, read(Broker), [debug_info]},
                            {quiet, "sum(L) -> lists:sum(L).", [debug_info]},
                            {bare, "send(P) -> P ! x.", []}]),
    application(Dir, till, [{till, "got(Q) -> broker:got(Q, 10).", [debug_info]},
                            {loop, loop("v1"), [debug_info]}]),
    Ebins = [filename:join([Dir, App, "ebin"]) || App <- ["shop", "till"]],
    true = lists:all(fun(Ebin) -> code:add_patha(Ebin) end, Ebins),
    [{ebins, Ebins} | Config].

end_per_suite(Config) -> lists:foreach(fun code:del_path/1, ?config(ebins, Config)).

read(File) ->
    {ok, Text} = file:read_file(File),
    Text.

loop(Version) ->
    "start() -> spawn(?MODULE, loop, []).\n"
        "loop() -> receive {version, P} -> P ! {version, " ++ Version ++ "}, loop();"
        " go_on -> ?MODULE:loop() end.".

application(Dir, Name, Modules) ->
    Ebin = filename:join([Dir, Name, "ebin"]),
    ok = filelib:ensure_path(Ebin),
    [compile(Ebin, Module, Text, Options) || {Module, Text, Options} <- Modules],
    ok = file:write_file(filename:join(Ebin, atom_to_list(Name) ++ ".app"),
                         io_lib:format("~p.~n", [{application, Name,
                                                  [{vsn, "1"},
                                                   {modules, [M || {M, _, _} <- Modules]},
                                                   {applications, [kernel, stdlib]}]}])).

compile(Ebin, Module, Text, Options) ->
    File = filename:join(filename:dirname(Ebin), atom_to_list(Module) ++ ".erl"),
    ok = file:write_file(File, case Text of
                                   <<_/binary>> -> Text;
                                   _ -> io_lib:format("-module(~p).\n-compile(export_all).\n"
                                                      "-compile(nowarn_export_all).\n~s\n",
                                                      [Module, Text])
                               end),
    Compiled = compile:file(File, [{outdir, Ebin} | Options]),
    {ok, Module} = {element(1, Compiled), element(2, Compiled)}.     % with warnings, or without

pair(Env) ->
    cluster:pair(Env).

%% What would go by lane, what cannot, and who sends for these and is not among them.
reports(_) ->
    Report = trunkline_adopt:report(shop),
    ?assertMatch(#{modules := 3, changed := [broker], problems := #{bare := no_debug_info},
                   others := Others} when Others =:= #{}, Report),
    ByLane = [MFA || {broker, Line, MFA} <- maps:get(by_lane, Report), Line > 0],
    ?assertEqual([{erlang, send, 2}, {gen, call, 4}, {gen_server, cast, 2}], lists:usort(ByLane)),
    ?assertMatch(#{changed := [loop], others := #{broker := [till]}},
                 trunkline_adopt:report([till])),
    ?assertMatch(#{others := None} when None =:= #{}, trunkline_adopt:report([till, shop])),
    %% What stays with OTP is told with its line.
    #{by_distribution := Left} = trunkline_adopt:report({otp, mnesia}),
    ?assert(lists:any(fun({{Module, Line, {M, _, _}}, Text}) ->
                              is_atom(Module) andalso Line > 0 andalso is_atom(M)
                                  andalso length(Text) > 20
                      end, Left)),
    [?assertError(badarg, trunkline_adopt:report(Bad))
     || Bad <- [no_such_app, stdlib, mnesia, {otp, shop}, [shop | x], "shop", 1]],
    %% Which one, and why.
    [?assertEqual({Bad, [Said]}, {Bad, explained:texts(trunkline_adopt, load, [Bad])})
     || {Bad, Said} <- [{no_such_app, "no_such_app is not in the code path"},
                        {[shop, stdlib],
                         "stdlib is Trunkline, or an application that it needs itself"},
                        {mnesia, "mnesia belongs to OTP: write {otp, mnesia}"},
                        {[{otp, shop}],
                         "{otp,shop} is not an application of OTP that can be adopted"},
                        {["shop"], "\"shop\" is not the name of an application"},
                        {"shop", "\"shop\" is not the name of an application"},
                        {[shop | x], "not a list of applications"}]].

%% One option, and the trap of 0.5.0 is closed.
get_after_publish(_) ->
    {A, B} = pair([{adopt, [shop]}]),
    Queue = cluster:call(B, broker, start, []),
    ?assertEqual(1000, cluster:call(A, broker, got, [Queue, 1000])),
    ?assert(by_lane(A, B) >= 2000),
    ?assertEqual(45, cluster:call(A, quiet, sum, [lists:seq(0, 9)])),
    cluster:stop_all([A, B]).

by_lane(A, B) ->
    #{lanes := Lanes} = cluster:info(A, B),
    lists:sum([N || #{messages := N} <- Lanes]).

checks(_) ->
    [A, B, C, D] = cluster:start_all([[{adopt, [shop]}], [{adopt, [shop]}], [], none]),
    [cluster:connect(A, Other) || Other <- [B, C, D]],
    [cluster:await_up(A, Other) || Other <- [B, C]],
    ?assertEqual(#{applications => [shop], adopted => [broker],
                   problems => #{bare => no_debug_info},
                   nodes => #{cluster:node_of(B) => same,
                              cluster:node_of(C) => #{only_here => [broker], only_there => [],
                                                      differ => []},
                              %% It has the modules, but has not adopted any.
                              cluster:node_of(D) => #{only_here => [broker], only_there => [],
                                                      differ => []}},
                   plain => 0},
                 cluster:call(A, trunkline_adopt, check, [])),
    %% What goes by the distribution is counted.
    There = cluster:call(D, erlang, whereis, [init]),
    cluster:call(A, fun() -> [trunkline:send(There, x) || _ <- lists:seq(1, 5)] end),
    ?assertMatch(#{plain := 5}, cluster:call(A, trunkline_adopt, check, [])),
    %% At run time, too.
    ?assertMatch({ok, #{applications := [shop], adopted := [broker]}},
                 cluster:call(C, trunkline_adopt, load, [[shop]])),
    #{nodes := Nodes} = cluster:call(A, trunkline_adopt, check, []),
    ?assertEqual(same, maps:get(cluster:node_of(C), Nodes)),
    ?assertEqual({error, stopped}, cluster:call(D, trunkline_adopt, load, [[shop]])),
    cluster:stop_all([A, B, C, D]).

%% New code is stock code at first. It is adopted as soon as somebody asks, or some seconds later.
hot_code(Config) ->
    Ebin = lists:last(?config(ebins, Config)),
    A = cluster:start([{adopt, [till]}]),
    Loop = cluster:call(A, loop, start, []),
    ?assertEqual(v1, version(A, Loop)),
    {ok, loop} = compile(Ebin, loop, loop("v2"), [debug_info]),
    ?assertMatch({module, loop},
                 cluster:call(A, fun() -> code:purge(loop), code:load_file(loop) end)),
    %% (A process that never calls the new code would keep it from being adopted: see lingering.)
    cluster:call(A, fun() -> Loop ! go_on end),
    cluster:await(fun() -> is_adopted(A, loop) end),
    ?assertMatch(#{adopted := [loop], problems := #{}},
                 cluster:call(A, trunkline_adopt, check, [])),
    New = cluster:call(A, loop, start, []),
    ?assertEqual(v2, version(A, New)),
    {ok, loop} = compile(Ebin, loop, loop("v1"), [debug_info]),
    cluster:stop(A).

is_adopted(A, Module) ->
    cluster:call(A, trunkline_beams, mark, [Module]) =/= none.

version(A, Pid) ->
    cluster:call(A, fun() -> Pid ! {version, self()}, receive {version, V} -> V end end).

%% A process that still runs the code before the last is not killed for it.
lingering(Config) ->
    Ebin = lists:last(?config(ebins, Config)),
    A = cluster:start([]),
    Loop = cluster:call(A, loop, start, []),
    ?assertEqual(v1, version(A, Loop)),
    {ok, loop} = compile(Ebin, loop, loop("v2"), [debug_info]),
    {module, loop} = cluster:call(A, code, load_file, [loop]),
    ?assertMatch({ok, #{adopted := [], problems := #{loop := old_code}}},
                 cluster:call(A, trunkline_adopt, load, [[till]])),
    ?assertEqual(v1, version(A, Loop)),
    %% When it has left, all is well.
    cluster:call(A, fun() -> Loop ! go_on end),
    ?assertEqual(v2, version(A, Loop)),
    ?assertMatch(#{adopted := [loop], problems := #{}},
                 cluster:call(A, trunkline_adopt, check, [])),
    ?assertEqual(v2, version(A, Loop)),
    {ok, loop} = compile(Ebin, loop, loop("v1"), [debug_info]),
    cluster:stop(A).

%% Code from somewhere else is not replaced by what lies in the path.
other_code(Config) ->
    Ebin = filename:join(?config(priv_dir, Config), "other"),
    ok = filelib:ensure_path(Ebin),
    {ok, loop} = compile(Ebin, loop, loop("other"), [debug_info]),
    A = cluster:start([]),
    {module, loop} = cluster:call(A, code, load_abs, [filename:join(Ebin, "loop")]),
    ?assertMatch({ok, #{problems := #{loop := other_code}}},
                 cluster:call(A, trunkline_adopt, load, [[till]])),
    Loop = cluster:call(A, loop, start, []),
    ?assertEqual(other, version(A, Loop)),
    cluster:stop(A).

%% Modules that were compiled, or stripped, in ways that concern them alone: each is adopted as it
%% was, or is a problem, and the application starts.
odd_modules(Config) ->
    Dir = filename:join(?config(priv_dir, Config), "odd"),
    Send = "send(P) -> P ! x.",
    Text = fun(Name, Attributes) ->
                   iolist_to_binary(io_lib:format("-module(~s).\n~s~s\n", [Name, Attributes, Send]))
           end,
    Exported = "-export([send/1]).\n",
    OnLoad = Exported ++ "-on_load(count/0).\n"
        "count() -> persistent_term:put(?MODULE, 1 + persistent_term:get(?MODULE, 0)), ok.\n",
    Strict = "-compile(warnings_as_errors).\n-export([one/1]).\none(X) -> 1.\n",
    Core = Exported ++ "-compile({core_transform, adopt_SUITE}).\n",
    Calls = "-export([call/1, self/1]).\ncall(Tuple) -> Tuple:self().\nself(Tuple) -> Tuple.\n",
    application(Dir, odd,
                [{all_exported, Text("all_exported", ""),
                  [debug_info, export_all, nowarn_export_all]},
                 {stripped, Text("stripped", Exported), [debug_info]},
                 {unknown_form, Text("unknown_form", Exported), [debug_info]},
                 {strict, Text("strict", Exported ++ Strict), [debug_info, nowarn_unused_vars]},
                 {core, Text("core", Core), [debug_info]},
                 {returns, Text("returns", Exported ++ "-compile([return]).\n"), [debug_info]},
                 {tuples, Text("tuples", Exported ++ Calls), [debug_info, tuple_calls]},
                 {at_load, Text("at_load", OnLoad), [debug_info]}]),
    Ebin = filename:join([Dir, "odd", "ebin"]),
    Beam = fun(Name) -> filename:join(Ebin, Name ++ ".beam") end,
    {ok, _} = beam_lib:strip_files([Beam("stripped")], ["Dbgi"]),
    {ok, Known} = file:read_file(Beam("unknown_form")),
    {ok, unknown_form, Chunks} = beam_lib:all_chunks(Known),
    Odd = term_to_binary({debug_info_v1, erl_abstract_code, {no_forms, []}}),
    {ok, Unknown} = beam_lib:build_module(lists:keyreplace("Dbgi", 1, Chunks, {"Dbgi", Odd})),
    ok = file:write_file(Beam("unknown_form"), Unknown),
    true = code:add_patha(Ebin),
    A = cluster:start([]),
    _ = cluster:call(A, at_load, module_info, []),
    Calling = fun() -> try tuples:call({tuples, x}) catch Class:Reason -> {Class, Reason} end end,
    CalledBefore = cluster:call(A, Calling),
    {ok, #{adopted := Adopted, problems := Problems}} =
        cluster:call(A, trunkline_adopt, load, [[odd]]),
    %% What can be seen without the compiler is said before.
    #{changed := Changed, problems := Foreseen} = trunkline_adopt:report(odd),
    true = code:del_path(Ebin),
    ?assertMatch(#{core := {not_compiled, core_transform}, unknown_form := {not_compiled, _}},
                 Foreseen),
    ?assertNot(lists:member(core, Changed)),
    ?assertEqual({[all_exported, returns, strict, stripped, tuples], Problems},
                 {Adopted, Problems}),
    ?assertMatch(#{core := {not_compiled, core_transform}, at_load := on_load,
                   unknown_form := {not_compiled, _}}, Problems),
    ?assertEqual(3, map_size(Problems)),
    ?assertEqual(1, cluster:call(A, persistent_term, get, [at_load])),
    [?assertEqual(x, cluster:call(A, fun() -> Module:send(self()), receive X -> X end end))
     || Module <- [all_exported, returns, strict, stripped, core, at_load]],
    ?assertEqual(CalledBefore, cluster:call(A, Calling)),
    %% It is mended, and its code is the same.
    ok = file:write_file(Beam("unknown_form"), Known),
    {ok, #{adopted := Again}} = cluster:call(A, trunkline_adopt, load, [[odd]]),
    ?assert(lists:member(unknown_form, Again)),
    cluster:stop(A).

core_transform(Core, _) -> Core.

%% Its successor goes on with what it was asked for; after a stop nothing is left of that.
adopter_killed(_) ->
    A = cluster:start([]),
    {ok, _} = cluster:call(A, trunkline_adopt, load, [shop]),
    Before = cluster:call(A, erlang, whereis, [trunkline_adopter]),
    true = cluster:call(A, erlang, exit, [Before, kill]),
    cluster:await(fun() ->
                          Now = cluster:call(A, erlang, whereis, [trunkline_adopter]),
                          is_pid(Now) andalso Now =/= Before
                  end),
    ?assertMatch(#{applications := [shop], adopted := [broker]},
                 cluster:call(A, trunkline_adopt, check, [])),
    ok = cluster:call(A, application, stop, [trunkline]),
    ok = cluster:call(A, application, start, [trunkline]),
    ?assertMatch(#{applications := [], adopted := [broker]},
                 cluster:call(A, trunkline_adopt, check, [])),
    cluster:stop(A).

%% What is adopted already is not compiled again: here that could not be done.
restarted(_) ->
    A = cluster:start([{adopt, [shop]}]),
    ok = cluster:call(A, application, stop, [trunkline]),
    true = cluster:call(A, code, del_path, [compiler]),
    true = cluster:call(A, code, unstick_mod, [compile]),
    true = cluster:call(A, code, delete, [compile]),
    _ = cluster:call(A, code, purge, [compile]),
    ok = cluster:call(A, application, start, [trunkline]),
    ?assertMatch(#{adopted := [broker], problems := Problems}
                   when Problems =:= #{bare => no_debug_info},
                 cluster:call(A, trunkline_adopt, check, [])),
    cluster:stop(A).

%% A directory that goes first in the code path; and where stock code runs, it is told.
writes(Config) ->
    Dir = filename:join(?config(priv_dir, Config), "adopted"),
    ?assertEqual({ok, #{written => [broker], compiled => [broker],
                        problems => #{bare => no_debug_info}}},
                 trunkline_adopt:write([shop], Dir)),
    ?assertMatch({error, _}, trunkline_adopt:write(shop, "/dev/null/no_directory")),
    ?assertError(badarg, trunkline_adopt:write([no_such_app], Dir)),
    A = cluster:start([]),
    cluster:call(A, broker, start, []),
    ?assertMatch(#{applications := [], adopted := []},
                 cluster:call(A, trunkline_adopt, check, [])),
    cluster:stop(A),
    B = cluster:start([]),
    true = cluster:call(B, code, add_patha, [Dir]),
    cluster:call(B, broker, start, []),
    ?assertMatch(#{applications := [], adopted := [broker]},
                 cluster:call(B, trunkline_adopt, check, [])),
    ?assertMatch({ok, #{adopted := [broker]}}, cluster:call(B, trunkline_adopt, load, [[shop]])),
    cluster:stop(B).

options(_) ->
    [?assertMatch({ok, #{adopt := Names}}, trunkline_options:check([{adopt, Names}]))
     || Names <- [[], [shop], [shop, till, {otp, mnesia}], [no_such_app]]],
    [begin
         Bad = {bad_option, adopt, Names},
         ?assertEqual({error, Bad}, trunkline_options:check([{adopt, Names}])),
         ?assertNotEqual(nomatch, string:find(trunkline_options:explain(Bad), "{otp, mnesia}"))
     end || Names <- [shop, [stdlib], [{otp, stdlib}], [mnesia], [trunkline],
                      [shop | till], ["shop"]]],
    %% A name that nothing has does not keep Trunkline from starting, but is told.
    A = cluster:start([{adopt, [no_such_app, shop]}]),
    ?assertMatch(#{adopted := [broker], problems := #{no_such_app := no_application}},
                 cluster:call(A, trunkline_adopt, check, [])),
    cluster:stop(A).

%% A lane of adopted code holds what the distribution would, so that what must not wait (nosuspend)
%% is not refused earlier.
room(_) ->
    Limit = 64 bsl 20,
    [A, B] = cluster:start_all([[{adopt, [shop]}, {lanes, 2}], [{lanes, 2}]],
                               ["+zdbbl", integer_to_list(Limit bsr 10)
                                | cluster:dist_arguments()]),
    cluster:connect(A, B),
    cluster:await_up(A, B),
    ?assertMatch(#{queue_bytes := #{value := Half}} when Half =:= Limit div 2,
                 cluster:call(A, trunkline, options, [])),
    ?assertMatch(#{queue_bytes := #{value := 1_048_576}}, cluster:call(B, trunkline, options, [])),
    To = cluster:call(B, erlang, whereis, [init]),
    cluster:suspend(B),
    %% (Beside what the lane holds, some MB may be in flight.)
    ?assert(10_000 * cluster:call(A, fun() -> sent_at_once(To, <<0:80_000>>, 0) end)
            >= Limit div 2 - 1_000_000),
    cluster:continue(B),
    cluster:stop_all([A, B]),
    %% What is set counts.
    [?assertMatch({ok, #{queue_bytes := 4096}},
                  trunkline_options:check([{adopt, [shop]}, {queue_bytes, Size}]))
     || Size <- [4096, "4KB"]],
    {ok, #{queue_bytes := Default}} = trunkline_options:check([{adopt, []}]),
    ?assertMatch({ok, #{queue_bytes := Most}} when Most >= Default,
                 trunkline_options:check([{adopt, [shop]}, {lanes, 64}])).

sent_at_once(To, Message, N) ->
    case trunkline:send(To, Message, [nosuspend]) of
        ok -> sent_at_once(To, Message, N + 1);
        nosuspend -> N
    end.

%% What others read in a module's file is still there, and twice is as good as once.
chunks(Config) ->
    Dir = filename:join(?config(priv_dir, Config), "twice"),
    {ok, #{written := [broker]}} = trunkline_adopt:write([shop], Dir),
    Old = filename:join(hd(?config(ebins, Config)), "broker.beam"),
    New = filename:join(Dir, "broker.beam"),
    [?assertEqual(beam_lib:chunks(Old, [Chunk]), beam_lib:chunks(New, [Chunk]))
     || Chunk <- [exports, debug_info]],
    %% As in a release, where it has taken the place of the other one.
    Release = filename:join(?config(priv_dir, Config), "release"),
    ok = filelib:ensure_path(Release),
    {ok, _} = file:copy(New, filename:join(Release, "broker.beam")),
    true = code:add_patha(Release),
    try
        ?assertEqual({ok, #{written => [], compiled => [],
                            problems => #{bare => no_debug_info}}},
                     trunkline_adopt:write([shop], Dir ++ "2"))
    after
        code:del_path(Release)
    end.

%% Elixir's modules are as good as Erlang's.
elixir(_) -> with_elixir(fun elixir_calls/0).

%% A task at another node: its result comes before the news of its end, whoever has adopted Elixir.
tasks(_) ->
    with_elixir(fun() ->
                        Both = [[elixir], []],
                        lists:foreach(fun tasks_between/1,
                                      [{Here, There} || Here <- Both, There <- Both])
                end).

tasks_between({Here, There}) ->
    {A, B} = cluster:pair([{adopt, Here}], [{adopt, There}]),
    [{ok, _} = cluster:call(N, application, ensure_all_started, [elixir]) || N <- [A, B]],
    true = cluster:call(B, fun() ->
                                   {ok, Pid} = 'Elixir.Task.Supervisor':start_link([{name, tasks}]),
                                   unlink(Pid)
                           end),
    Tasks = {tasks, cluster:node_of(B)},
    Results = cluster:call(A, fun() -> [await_task(How, Tasks) || _ <- lists:seq(1, 100),
                                                                  How <- [async, async_nolink]]
                              end),
    ?assertEqual([300], lists:usort(Results)),
    cluster:stop_all([A, B]).

await_task(How, Tasks) ->
    Task = 'Elixir.Task.Supervisor':How(Tasks, erlang, abs, [-300]),
    'Elixir.Task':await(Task, 60_000).

with_elixir(Test) ->
    case os:find_executable("elixir") of
        false ->
            {skip, "no Elixir"};
        _ ->
            Lib = string:trim(os:cmd("elixir -e 'IO.puts(:code.lib_dir(:elixir))'")),
            Ebin = filename:join(Lib, "ebin"),
            true = code:add_pathz(Ebin),
            try Test()
            after
                code:del_path(Ebin)
            end
    end.

elixir_calls() ->
    {A, B} = pair([{adopt, [elixir]}]),
    #{adopted := Adopted, problems := Problems} = cluster:call(A, trunkline_adopt, check, []),
    ?assert(lists:member('Elixir.GenServer', Adopted)),
    ?assertEqual(#{}, Problems),
    {ok, Server} = cluster:call(B, server, start, [gen_server]),
    Before = by_lane(A, B),
    [Ours, Theirs] = [cluster:call(A, fun() -> ask(M, Server) end)
                      || M <- ['Elixir.GenServer', gen_server]],
    ?assertEqual(Theirs, Ours),
    ?assert(by_lane(A, B) > Before),
    %% Exits are Elixir's own.
    Gone = {no_such_name, cluster:node_of(B)},
    ?assertEqual({exit, {noproc, {'Elixir.GenServer', call, [Gone, x, 5000]}}},
                 cluster:call(A, fun() ->
                                         try 'Elixir.GenServer':call(Gone, x)
                                         catch C:R -> {C, R}
                                         end
                                 end)),
    cluster:stop_all([A, B]).

ask(Module, Server) ->
    try Module:call(Server, {echo, 1}, 60_000)
    catch C:R -> {C, element(1, R)}
    end.

%% One of OTP's own: writes of a replicated table are there, and went by lane.
mnesia(Config) ->
    {A, B} = pair([{adopt, [{otp, mnesia}]}]),
    [begin
         Dir = filename:join(?config(priv_dir, Config), atom_to_list(cluster:node_of(N))),
         ok = cluster:call(N, application, set_env, [mnesia, dir, Dir]),
         ok = cluster:call(N, mnesia, start, [])
     end || N <- [A, B]],
    Nodes = [cluster:node_of(N) || N <- [A, B]],
    {ok, _} = cluster:call(A, mnesia, change_config, [extra_db_nodes, Nodes]),
    {atomic, ok} = cluster:call(A, mnesia, create_table, [stock, [{ram_copies, Nodes}]]),
    Before = by_lane(A, B),
    ok = cluster:call(A, fun() ->
                                 lists:foreach(fun(N) -> mnesia:dirty_write({stock, N, N}) end,
                                               lists:seq(1, 500))
                         end),
    {atomic, ok} = cluster:call(A, fun() ->
                                           mnesia:transaction(
                                             fun() -> mnesia:write({stock, 501, 501}) end)
                                   end),
    cluster:await(fun() -> 501 =:= cluster:call(B, mnesia, table_info, [stock, size]) end),
    ?assert(by_lane(A, B) - Before >= 500),
    cluster:stop_all([A, B]).

%% An application in an archive is found before it is loaded, where the code server takes archives.
archive(Config) ->
    Dir = filename:join(?config(priv_dir, Config), "archives"),
    application(Dir, packed, [{packed_sender, "send(P) -> P ! x.", [debug_info]}]),
    Archive = filename:join(Dir, "packed.ez"),
    {ok, _} = zip:create(Archive, ["packed"], [{cwd, Dir}]),
    Ebin = filename:join([Archive, "packed", "ebin"]),
    _ = code:add_patha(Ebin),
    Found = code:where_is_file("packed.app"),
    Modules = trunkline_applications:modules([packed]),
    _ = code:del_path(Ebin),
    case Found of
        non_existing -> {skip, "no archives"};
        _ -> ?assertEqual([packed_sender], Modules)
    end.
