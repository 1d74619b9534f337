%% What the makefile, tools/ and rebar.config do on machines, and in projects, that are not the
%% author's.
-module(build_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([help/1, not_root/1, folder_with_a_space/1, warnings_of_a_dependency/1]).

suite() -> [{timetrap, {minutes, 10}}].

all() -> [help, not_root, folder_with_a_space, warnings_of_a_dependency].

%% With no other program than sed, which every Debian has.
help(Config) ->
    Bin = bin(Config, [{"sed", os:find_executable("sed")}]),
    {0, Said} = command:run(command:root(), [{"PATH", Bin}], [os:find_executable("make"), "help"]),
    [?assertNotEqual(nomatch, string:find(Said, "\n  make " ++ Target ++ " "))
     || Target <- ["test", "ct", "bench-flood", "clean"]].

%% Who may not install anything, and has no sudo, is told what to install; and everybody what is
%% still not found after it was installed.
not_root(Config) ->
    Bin = bin(Config, [{"id", "#!/bin/sh\necho 1000\n"}, {"apt-get", "#!/bin/sh\nexit 77\n"}]),
    {1, Said} = command:run(command:root(), [{"PATH", Bin}], ["tools/need", "gnuplot"]),
    ?assertNotEqual(nomatch, string:find(Said, "as root, apt-get install gnuplot-nox")),
    Sudo = "#!/bin/sh\necho sudo \"$@\"\n",
    Bin = bin(Config, [{"sudo", Sudo}]),
    {1, Said1} = command:run(command:root(), [{"PATH", Bin}], ["tools/need", "gnuplot"]),
    ?assertNotEqual(nomatch, string:find(Said1, "sudo apt-get update")),
    ?assertNotEqual(nomatch, string:find(Said1, "still not found: gnuplot-nox")),
    Install = "[ \"$2\" != install ] || /bin/cp \"$0\" " ++ filename:join(Bin, "gnuplot") ++ "\n",
    Bin = bin(Config, [{"sudo", Sudo ++ Install}]),
    {0, _} = command:run(command:root(), [{"PATH", Bin}], ["tools/need", "gnuplot"]).

%% Mix is told the right folder.
folder_with_a_space(Config) ->
    Mix = "#!/bin/sh\nprintf '<%s>\\n' \"$PWD\" \"$MIX_HOME\" \"$@\"\n",
    Bin = bin(Config, [{"mix", Mix}, {"elixir", "#!/bin/sh\n"}, {"rebar3", "#!/bin/sh\n"}]),
    Copy = copy(Config, ["Makefile", "tools", "elixir"]),
    {0, Said} = command:run(Copy, [{"PATH", Bin ++ ":" ++ os:getenv("PATH")}], ["make", "elixir"]),
    Elixir = filename:join(Copy, "elixir"),
    [?assertNotEqual(nomatch, string:find(Said, "<" ++ Word ++ ">"))
     || Word <- [Elixir, filename:join(Elixir, "trunkline_pubsub"),
                 filename:join(Elixir, "_build/home"), "test"]].

%% A warning, which another compiler may have, is an error for Trunkline's own builds, and
%% none for those of a project that uses it.
warnings_of_a_dependency(Config) ->
    Copy = copy(Config, ["rebar.config", "src"]),
    ok = file:write_file(filename:join(Copy, "src/channel/trunkline_wire.erl"),
                         "\nunused() -> ok.\n", [append]),
    [?assertMatch({Profile, {1, _}},
                  {Profile, command:run(Copy, [], ["rebar3", "as", Profile, "compile"])})
     || Profile <- ["strict", "test", "bench"]],
    User = filename:join(?config(priv_dir, Config), "user"),
    Checkouts = filename:join(User, "_checkouts"),
    ok = filelib:ensure_path(filename:join(User, "src")),
    ok = filelib:ensure_path(Checkouts),
    ok = file:make_symlink(Copy, filename:join(Checkouts, "trunkline")),
    ok = file:write_file(filename:join(User, "rebar.config"), "{deps, [trunkline]}.\n"),
    ok = file:write_file(
           filename:join(User, "src/user.app.src"),
           "{application, user, [{vsn, \"1\"}, {applications, [kernel, stdlib, trunkline]}]}.\n"),
    ?assertMatch({0, _}, command:run(User, [], ["rebar3", "compile"])),
    [_] = filelib:wildcard(filename:join(User, "_build/default/**/trunkline_wire.beam")).

%% --- tools --------------------------------------------------------------------------

%% A folder with these programs: scripts, or links to others.
bin(Config, Programs) ->
    Bin = filename:join(?config(priv_dir, Config), "bin"),
    ok = filelib:ensure_path(Bin),
    lists:foreach(fun({Name, "#!" ++ _ = Script}) ->
                          File = filename:join(Bin, Name),
                          ok = file:write_file(File, Script),
                          ok = file:change_mode(File, 8#755);
                     ({Name, Program}) ->
                          ok = file:make_symlink(Program, filename:join(Bin, Name))
                  end, Programs),
    Bin.

%% Of the project, in a folder whose name has a space.
copy(Config, Names) ->
    Copy = filename:join(?config(priv_dir, Config), "a copy"),
    ok = filelib:ensure_path(Copy),
    {0, _} = command:run(command:root(), [], ["cp", "-rL"] ++ Names ++ [Copy]),
    Copy.
