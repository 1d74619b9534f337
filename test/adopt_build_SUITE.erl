%% Applications are adopted when a project is built: by trunkline_adopt:write/2 into a directory, by
%% Mix's compiler, and by the hook of rebar3. In a directory there is what is needed now and nothing
%% else, and what is right already is not made again. The projects are in the data of this suite:
%% each has a dependency of its own, `shop'.
-module(adopt_build_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("kernel/include/file.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_testcase/2, end_per_testcase/2]).
-export([unchanged/1, changed/1, no_longer_needed/1, sources_damaged/1, of_another_release/1,
         in_the_code_path/1, by_another_name/1, umbrella/1, mix_release/1, mix/1, rebar3/1,
         bad_names/1]).

suite() -> [{timetrap, {minutes, 10}}].

all() -> [unchanged, changed, no_longer_needed, sources_damaged, of_another_release,
          in_the_code_path, by_another_name, umbrella, mix_release, mix, rebar3, bad_names].

init_per_testcase(Case, Config) ->
    [{dir, filename:join(?config(priv_dir, Config), Case)} | Config].

end_per_testcase(_, _) -> ok.

%% --- a directory --------------------------------------------------------------------------

%% The second time nothing is compiled, and nothing is written.
unchanged(Config) ->
    {Shop, Dir} = shop(Config, [{seller, "send(P) -> P ! x."}, {clerk, "call(S) -> S ! y."},
                                {quiet, "sum(L) -> lists:sum(L)."}]),
    ?assertEqual({[clerk, seller], [clerk, seller]}, write(Shop, Dir)),
    ?assertEqual(["clerk.beam", "seller.beam"], beams(Dir)),
    Old = {{2020, 1, 1}, {0, 0, 0}},
    Files = [filename:join(Dir, File) || File <- filelib:wildcard("*", Dir)],
    [ok = file:change_time(File, Old) || File <- Files],
    ?assertEqual({[clerk, seller], []}, write(Shop, Dir)),
    [?assertMatch({File, {ok, #file_info{mtime = Old}}}, {File, file:read_file_info(File)})
     || File <- Files],
    %% But for what somebody has damaged, or removed.
    [Clerk, Seller] = [filename:join(Dir, Beam) || Beam <- beams(Dir)],
    {ok, Was} = file:read_file(Clerk),
    ok = file:write_file(Clerk, "damaged"),
    ?assertEqual({[clerk, seller], [clerk]}, write(Shop, Dir)),
    ?assertEqual({ok, Was}, file:read_file(Clerk)),
    ok = file:delete(Seller),
    ?assertEqual({[clerk, seller], [seller]}, write(Shop, Dir)),
    ok = file:write_file(filename:join(Dir, "trunkline_adopted.sources"), "damaged"),
    ?assertEqual({[clerk, seller], [clerk, seller]}, write(Shop, Dir)).

%% A module that has changed, and one that nothing was to be changed in before.
changed(Config) ->
    {Shop, Dir} = shop(Config, [{seller, "send(P) -> P ! x."}, {clerk, "call(S) -> S ! y."},
                                {quiet, "sum(L) -> lists:sum(L)."}]),
    {[clerk, seller], [_, _]} = write(Shop, Dir),
    compile(Shop, seller, "send(P) -> P ! another."),
    ?assertEqual({[clerk, seller], [seller]}, write(Shop, Dir)),
    ?assertEqual(another, sent(Dir, seller)),
    compile(Shop, quiet, "send(P) -> P ! loud."),
    ?assertEqual({[clerk, quiet, seller], [quiet]}, write(Shop, Dir)),
    ?assertEqual(loud, sent(Dir, quiet)).

%% What was written and would hide a module that is as good now, or gone. Files of others stay.
no_longer_needed(Config) ->
    {Shop, Dir} = shop(Config, [{seller, "send(P) -> P ! x."}, {clerk, "call(S) -> S ! y."},
                                {quiet, "sum(L) -> lists:sum(L)."}]),
    {[clerk, seller], [_, _]} = write(Shop, Dir),
    {ok, _} = file:copy(filename:join(Dir, "seller.beam"), filename:join(Dir, "other.beam")),
    compile(Shop, seller, "send(_) -> nothing."),
    ?assertEqual({[clerk], []}, write(Shop, Dir)),
    ?assertEqual(["clerk.beam", "other.beam"], beams(Dir)),
    ?assertEqual({ok, #{written => [], compiled => [], problems => #{}}},
                 trunkline_adopt:write([], Dir)),
    ?assertEqual(["other.beam"], beams(Dir)).

%% Without the list it is known all the same what was written there, and is not needed any more.
sources_damaged(Config) ->
    {Shop, Dir} = shop(Config, [{seller, "send(P) -> P ! x."}, {clerk, "call(S) -> S ! y."},
                                {quiet, "sum(L) -> lists:sum(L)."}]),
    {[clerk, seller], [_, _]} = write(Shop, Dir),
    Sources = filename:join(Dir, "trunkline_adopted.sources"),
    {ok, Text} = file:read_file(Sources),
    Others = ["no_module.beam", "other.beam", "quiet.beam"],
    ok = file:write_file(filename:join(Dir, "no_module.beam"), "no module"),
    {ok, _} = file:copy(filename:join(Dir, "seller.beam"), filename:join(Dir, "other.beam")),
    {ok, _} = file:copy(filename:join(Shop, "quiet.beam"), filename:join(Dir, "quiet.beam")),
    lists:foreach(
      fun(Damaged) ->
              compile(Shop, seller, "send(P) -> P ! x."),
              {[clerk, seller], _} = write(Shop, Dir),
              compile(Shop, seller, "send(_) -> nothing."),
              ok = case Damaged of
                       gone -> file:delete(Sources);
                       _ -> file:write_file(Sources, Damaged)
                   end,
              ?assertEqual({Damaged, {[clerk], [clerk]}}, {Damaged, write(Shop, Dir)}),
              ?assertEqual({Damaged, ["clerk.beam" | Others]}, {Damaged, beams(Dir)}),
              ?assertEqual({[clerk], []}, write(Shop, Dir))
      end, [gone, "", binary:part(Text, 0, byte_size(Text) div 2), "{a, b}.", "{a, [b]}.",
            "{a, [{\"seller\", <<>>, <<>>}]}.", "a. b."]),
    ?assertEqual(["trunkline_adopted.sources"], filelib:wildcard("*.sources*", Dir)).

%% What another release of Trunkline, or of OTP, has made is made again.
of_another_release(Config) ->
    {Shop, Dir} = shop(Config, [{seller, "send(P) -> P ! x."}, {quiet, "sum(L) -> lists:sum(L)."}]),
    {[seller], [seller]} = write(Shop, Dir),
    Sources = filename:join(Dir, "trunkline_adopted.sources"),
    {ok, [{{Otp, Erts, _}, Made}]} = file:consult(Sources),
    ok = file:write_file(Sources, io_lib:format("~p.~n", [{{Otp, Erts, [<<"another">>]}, Made}])),
    ?assertEqual({[seller], [seller]}, write(Shop, Dir)),
    ?assertEqual({[seller], []}, write(Shop, Dir)).

%% In a shell in which a project is built again the directory is first in the path already.
in_the_code_path(Config) ->
    {Shop, Dir} = shop(Config, [{seller, "send(P) -> P ! x."}, {quiet, "sum(L) -> lists:sum(L)."}]),
    {[seller], [seller]} = write(Shop, Dir),
    true = code:add_patha(Dir),
    try
        ?assertEqual({[seller], []}, write(Shop, Dir)),
        compile(Shop, seller, "send(P) -> P ! another."),
        ?assertEqual({[seller], [seller]}, write(Shop, Dir)),
        ?assertEqual(filename:join(Dir, "seller.beam"), code:where_is_file("seller.beam"))
    after
        code:del_path(Dir)
    end,
    ?assertEqual(another, sent(Dir, seller)).

%% The path may have the directory by a name other than the one to write to.
by_another_name(Config) ->
    {Shop, Dir} = shop(Config, [{seller, "send(P) -> P ! x."}, {quiet, "sum(L) -> lists:sum(L)."}]),
    {[seller], [seller]} = write(Shop, Dir),
    Link = Dir ++ "_link",
    ok = file:make_symlink(Dir, Link),
    true = code:add_patha(Dir),
    try
        ?assertEqual({[seller], []}, write(Shop, list_to_binary(Dir))),
        ?assertEqual({[seller], []}, write(Shop, Link)),
        %% Also when the list is lost.
        ok = file:delete(filename:join(Dir, "trunkline_adopted.sources")),
        ?assertEqual({[seller], [seller]}, write(Shop, Link)),
        compile(Shop, seller, "send(P) -> P ! another."),
        ?assertEqual({[seller], [seller]}, write(Shop, list_to_binary(Link)))
    after
        code:del_path(Dir)
    end,
    ?assertEqual(another, sent(Dir, seller)).

%% Two applications of a project adopt the same: each has it in its own directory, in any order.
umbrella(Config) ->
    {Shop, A} = shop(Config, [{seller, "send(P) -> P ! x."}, {quiet, "sum(L) -> lists:sum(L)."}]),
    B = A ++ "_b",
    Say = fun(How, Text) -> ct:log("~p ~ts", [How, Text]) end,
    Build = fun(Dir) -> trunkline_adopted:build(shop, Dir, Say) end,
    true = code:add_pathz(Shop),
    try
        ?assertEqual([ok, ok, noop, noop], [Build(Dir) || Dir <- [A, B, A, B]]),
        ?assertEqual([["seller.beam"], ["seller.beam"]], [beams(Dir) || Dir <- [A, B]]),
        compile(Shop, seller, "send(P) -> P ! another."),
        ?assertEqual([ok, ok, noop, noop], [Build(Dir) || Dir <- [A, B, B, A]]),
        %% The path is in order.
        Path = code:get_path(),
        ?assertMatch([A, B | _], Path),
        {ok, _} = trunkline_adopt:write([shop], B),
        ?assertEqual(Path, code:get_path())
    after
        lists:foreach(fun code:del_path/1, [Shop, A, B])
    end,
    ?assertEqual([another, another], [sent(Dir, seller) || Dir <- [A, B]]).

%% An application with these modules in a folder of the case, and a directory for the adopted ones.
shop(Config, Modules) ->
    Case = ?config(dir, Config),
    Ebin = filename:join([Case, "shop", "ebin"]),
    ok = filelib:ensure_path(Ebin),
    ok = file:write_file(filename:join(Ebin, "shop.app"),
                         io_lib:format("~p.~n", [{application, shop,
                                                  [{modules, [M || {M, _} <- Modules]}]}])),
    [compile(Ebin, Module, Text) || {Module, Text} <- Modules],
    {Ebin, filename:join(Case, "adopted")}.

compile(Ebin, Module, Text) ->
    File = filename:join(filename:dirname(Ebin), atom_to_list(Module) ++ ".erl"),
    ok = file:write_file(File, io_lib:format("-module(~p).~n-compile([export_all, "
                                             "nowarn_export_all]).~n~s~n", [Module, Text])),
    {ok, Module} = compile:file(File, [{outdir, Ebin}, debug_info]).

%% What the directory has then, and what was compiled for it.
write(Ebin, Dir) ->
    true = code:add_pathz(Ebin),
    try
        {ok, #{written := Written, compiled := Compiled, problems := Problems}} =
            trunkline_adopt:write([shop], Dir),
        ?assertEqual(#{}, Problems),
        {Written, Compiled}
    after
        code:del_path(Ebin)
    end.

beams(Dir) -> filelib:wildcard("*.beam", Dir).

%% What the module there sends to a process.
sent(Dir, Module) ->
    {ok, Beam} = file:read_file(filename:join(Dir, atom_to_list(Module) ++ ".beam")),
    {module, Module} = code:load_binary(Module, "", Beam),
    ?assertMatch({adopted, _}, trunkline_beams:mark(Module)),
    _ = Module:send(self()),
    true = code:delete(Module),
    _ = code:purge(Module),
    receive Message -> Message end.

%% --- projects ------------------------------------------------------------------------------

%% The project runs what is adopted, and so does its release: also the first time, when a module has
%% been loaded for its macros before it was adopted; and after a change of the dependency.
mix(Config) ->
    case os:find_executable("mix") of
        false -> {skip, "no Elixir"};
        _ -> mix_project(Config)
    end.

mix_project(Config) ->
    Project = project(Config, "elixir", "trunkline"),
    {0, _} = command:run(Project, [], ["cp", "-r", data(Config, "erlang/_checkouts/shop"), "shop"]),
    Run = fun(Command) -> command:run(Project, env(Config), ["mix" | Command]) end,
    Hello = ["run", "-e", "Kiosk.hello()"],
    {0, First} = Run(Hello),
    ?assertEqual({adopted, ['Elixir.Tea', shop], 3}, said(First)),
    ?assertNotEqual(nomatch, string:find(First, "Adopted 2 modules")),
    {0, Second} = Run(Hello),
    ?assertEqual({adopted, ['Elixir.Tea', shop], 3}, said(Second)),
    ?assertEqual(nomatch, string:find(Second, "Adopted")),
    {0, _} = Run(["release"]),
    Release = filename:join(Project, "_build/prod/rel/kiosk/bin/kiosk"),
    {0, Third} = command:run(Project, env(Config), [Release, "eval", "Kiosk.hello()"]),
    ?assertEqual({adopted, ['Elixir.Tea', shop], 3}, said(Third)),
    Adopted = filename:join(Project, "_build/prod/adopted/kiosk_adopted"),
    ?assertEqual(["Elixir.Tea.beam", "shop.beam"], beams(Adopted)),
    silence(filename:join(Project, "shop")),
    {0, Fourth} = Run(Hello),
    ?assertEqual({adopted, ['Elixir.Tea'], 3}, said(Fourth)),
    {0, _} = Run(["clean"]),
    ?assertEqual([], beams(Adopted)).

%% In a release each adopted module takes the place of its own namesake. Names of modules and
%% folders may have characters that mean something in a pattern. (Mix's own part of it is where the
%% build is, and what it says.)
mix_release(Config) ->
    Case = filename:join(?config(dir, Config), "a[b] {c,d} *?"),
    Build = filename:join(Case, "build"),
    Dir = filename:join(Build, "adopted/kiosk_adopted"),
    Release = filename:join(Case, "rel"),
    Places = [Shop, Odd, Plain] = [filename:join(Release, Place)
                                   || Place <- ["lib/shop-1/ebin/shop.beam",
                                                "lib/odd-1/ebin/odd[1].beam",
                                                "lib/plain-1/ebin/odd1.beam"]],
    Adopted = [filename:join(Dir, Name) || Name <- ["shop.beam", "odd[1].beam", "gone*.beam"]],
    [begin
         ok = filelib:ensure_dir(File),
         ok = file:write_file(File, Text)
     end || {Text, Files} <- [{"adopted", Adopted}, {"stock", Places}], File <- Files],
    Mix = [{'Elixir.Mix', "shell() -> adopt_build_SUITE_shell."},
           {'Elixir.Mix.Project', io_lib:format("build_path() -> ~p.", [list_to_binary(Build)])},
           {adopt_build_SUITE_shell, "error(Text) -> put(adopt_build_SUITE_shell, Text)."}],
    Ebin = filename:join(?config(dir, Config), "mix/ebin"),
    ok = filelib:ensure_path(Ebin),
    [begin
         ?assertEqual(false, code:is_loaded(Module)),
         {ok, Module} = compile(Ebin, Module, Text),
         {module, Module} = code:load_abs(filename:join(Ebin, atom_to_list(Module)))
     end || {Module, Text} <- Mix],
    Of = #{path => list_to_binary(Release), applications => #{kiosk => []}},
    try ?assertEqual(Of, 'Elixir.Mix.Tasks.Compile.Trunkline':release(Of))
    after
        [begin
             true = code:delete(Module),
             code:purge(Module)
         end || {Module, _} <- Mix]
    end,
    ?assertEqual([{ok, <<"adopted">>}, {ok, <<"adopted">>}, {ok, <<"stock">>}],
                 [file:read_file(Place) || Place <- [Shop, Odd, Plain]]),
    ?assertEqual(<<"trunkline: gone*.beam is not in the release">>,
                 erase(adopt_build_SUITE_shell)).

rebar3(Config) ->
    Project = project(Config, "erlang", "_checkouts/trunkline"),
    Run = fun() -> command:run(Project, env(Config), ["rebar3", "release"]) end,
    {0, First} = Run(),
    ?assertNotEqual(nomatch, string:find(First, "Adopted")),
    Adopted = filename:join(Project, "_build/default/adopted"),
    ?assert(lists:member("shop.beam", beams(Adopted))),
    ?assert(lists:member("tftp_engine.beam", beams(Adopted))),
    ?assertNot(lists:member("shop_till.beam", beams(Adopted))),
    ?assertEqual({adopted, [shop], 3}, started(Project, Config)),
    {0, Second} = Run(),
    ?assertEqual(nomatch, string:find(Second, "Adopted")),
    %% The copy in the release goes, too: it would hide the module as it is now.
    silence(filename:join(Project, "_checkouts/shop")),
    {0, _} = Run(),
    ?assertNot(lists:member("shop.beam", beams(Adopted))),
    ?assertEqual({adopted, [], 3}, started(Project, Config)).

started(Project, Config) ->
    {0, Said} = command:run(Project, [{"KIOSK_NAME", peer:random_name("kiosk")} | env(Config)],
                            ["_build/default/rel/kiosk/bin/kiosk", "foreground"]),
    said(Said).

%% The build fails, and says why.
bad_names(Config) ->
    Project = project(Config, "erlang", "_checkouts/trunkline"),
    File = filename:join(Project, "rebar.config"),
    {ok, Text} = file:read_file(File),
    ok = file:write_file(File, string:replace(Text, "adopt shop", "adopt shops 'x y' shop")),
    {1, Said} = command:run(Project, env(Config), ["rebar3", "compile"]),
    ?assertNotEqual(nomatch, string:find(Said, "cannot adopt [shops,\"x y\"]")).

%% A project of the data, with Trunkline and `shop'.
project(Config, Name, Trunkline) ->
    Project = filename:join(?config(dir, Config), Name),
    ok = filelib:ensure_dir(Project),
    {0, _} = command:run("/", [], ["cp", "-r", data(Config, Name), Project]),
    ok = file:make_symlink(command:root(), filename:join(Project, Trunkline)),
    Project.

data(Config, Name) -> filename:join(?config(data_dir, Config), Name).

%% In the next version of the dependency it sends nothing itself.
silence(Shop) ->
    File = filename:join(Shop, "src/shop.erl"),
    ok = file:write_file(File, "-module(shop).\n-export([tell/2]).\n\n"
                         "tell(_, What) -> self() ! What.\n").

said(Said) ->
    {match, [Line]} = re:run(Said, "^{adopted,.*$", [multiline, {capture, first, list}]),
    {ok, Tokens, _} = erl_scan:string(Line),
    {ok, Term} = erl_parse:parse_term(Tokens),
    Term.

env(Config) ->
    Home = ?config(priv_dir, Config),
    [{"HOME", Home}, {"LC_ALL", "C.UTF-8"}, {"MIX_HOME", Home}, {"MIX_ENV", "prod"},
     {"MIX_REBAR3", os:find_executable("rebar3")}].
