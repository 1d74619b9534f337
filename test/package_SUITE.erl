%% Projects that use Trunkline, made from what its package contains: rebar3 and Mix build them and
%% their releases, without git and without a network, and two nodes of each exchange messages.
-module(package_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2]).
-export([contents/1, project/1, release/1, private_release/1]).

suite() -> [{timetrap, {minutes, 10}}].

all() -> [contents, {group, rebar3}, {group, mix}].

groups() -> [{Tool, [], [project, release, private_release]} || Tool <- [rebar3, mix]].

%% --- the package ------------------------------------------------------------------------

init_per_suite(Config) ->
    Root = command:root(),
    Tar = filename:join(?config(priv_dir, Config), "trunkline.tar.gz"),
    Files = [{Name, filename:join(Root, Name)}
             || File <- files(Root), Name <- filelib:wildcard(File, Root)],
    ok = erl_tar:create(Tar, Files, [compressed]),
    [{tar, Tar} | Config].

end_per_suite(_) -> ok.

files(Root) ->
    {ok, [{application, trunkline, Properties}]} =
        file:consult(filename:join(Root, "src/trunkline.app.src")),
    proplists:get_value(files, Properties).

%% All that is named is there, and all that a package needs is named.
contents(Config) ->
    Root = command:root(),
    [?assertNotEqual({File, []}, {File, filelib:wildcard(File, Root)}) || File <- files(Root)],
    {ok, Names} = erl_tar:table(?config(tar, Config), [compressed]),
    [?assert(lists:member(Name, Names))
     || Name <- ["src/trunkline.app.src", "src/trunkline.erl", "rebar.config", "README.md",
                 "CHANGELOG.md", "LICENSE"]].

%% --- projects -----------------------------------------------------------------------------

init_per_group(rebar3, Config) ->
    Project = unpack("erlang", "_checkouts/trunkline", Config),
    build(["rebar3", "compile"], [{tool, rebar3}, {project, Project} | Config]);
init_per_group(mix, Config) ->
    case os:find_executable("mix") of
        false ->
            {skip, "no Elixir"};
        _ ->
            Project = unpack("elixir", "trunkline", Config),
            %% Another compiler may warn where this one does not.
            Source = filename:join(Project, "trunkline/src/channel/trunkline_wire.erl"),
            ok = file:write_file(Source, "\nunused() -> ok.\n", [append]),
            build(["mix", "do", "deps.get,", "compile"], [{tool, mix}, {project, Project} | Config])
    end.

end_per_group(_, Config) ->
    ?assertEqual({error, enoent}, file:read_file(mark(Config))).

%% The project, with the package in it.
unpack(Name, Package, Config) ->
    Project = filename:join(?config(priv_dir, Config), Name),
    {0, _} = command:run("/", [],
                         ["cp", "-rL", filename:join(?config(data_dir, Config), Name), Project]),
    ok =
        erl_tar:extract(?config(tar, Config), [compressed, {cwd, filename:join(Project, Package)}]),
    Project.

build(Command, Config) ->
    {0, _} = run(Command, Config),
    Config.

run(Command, Config) -> command:run(?config(project, Config), env(Config), Command).

%% No package can be fetched, and git leaves a mark.
env(Config) ->
    Home = ?config(priv_dir, Config),
    Bin = filename:join(Home, "bin"),
    Git = filename:join(Bin, "git"),
    ok = filelib:ensure_dir(Git),
    ok = file:write_file(Git, ["#!/bin/sh\necho \"$@\" >>'", mark(Config), "'\nexit 1\n"]),
    ok = file:change_mode(Git, 8#755),
    [{"PATH", Bin ++ ":" ++ os:getenv("PATH")}, {"HOME", Home}, {"LC_ALL", "C.UTF-8"},
     {"MIX_HOME", Home}, {"MIX_ENV", "prod"}, {"MIX_REBAR3", os:find_executable("rebar3")}
     | [{Name, "http://127.0.0.1:1"}
        || Name <- ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"]]].

mark(Config) -> filename:join(?config(priv_dir, Config), "git.was.run").

%% --- nodes ----------------------------------------------------------------------------------

project(Config) ->
    ?assertNot(lists:member(ssl, exchange(project, [], Config))).

%% A release does not contain ssl, unless it says so.
release(Config) ->
    Folder = make_release("fresh", Config),
    ?assertEqual([], filelib:wildcard("lib/ssl-*", Folder)),
    ?assertNot(lists:member(ssl, exchange({release, Folder}, [], Config))).

%% If it does, ssl runs where the distribution uses TLS, and nowhere else.
private_release(Config) ->
    Folder = make_release("private", Config),
    ?assertMatch([_], filelib:wildcard("lib/ssl-*", Folder)),
    ?assertNot(lists:member(ssl, exchange({release, Folder}, [], Config))),
    Flags = lists:join(" ", ["-proto_dist", "inet_tls" | certificates:dist_arguments()]),
    ?assert(
      lists:member(ssl, exchange({release, Folder}, [{"ERL_FLAGS", lists:append(Flags)}], Config))).

make_release(Name, Config) ->
    {Command, Folder} = case ?config(tool, Config) of
                            rebar3 -> {["rebar3", "release", "-n", Name], "_build/default/rel"};
                            mix -> {["mix", "release", Name], "_build/prod/rel"}
                        end,
    {0, _} = run(Command, Config),
    filename:join([?config(project, Config), Folder, Name]).

%% Two nodes, in which messages go by lane and, if they are large, by a connection. The applications
%% that run there.
exchange(What, Env, Config) ->
    Start = fun(Name, Peer) ->
                    {NodeEnv, Command} = node(?config(tool, Config), What, Name),
                    command:start(?config(project, Config),
                                  Peer ++ NodeEnv ++ Env ++ env(Config), Command)
            end,
    Receiver = Start(peer:random_name("fresh"), []),
    {ok, Said} = command:await_line(Receiver, "{ready,"),
    {ready, Node} = term(Said, "{ready,"),
    {0, Report} =
        command:await_exit(Start(peer:random_name("fresh"), [{"FRESH_PEER", atom_to_list(Node)}]),
                           []),
    {done, Way, Running} = term(Report, "{done,"),
    ?assertEqual(#{fallbacks => 0, large => 1, by => connections, received => 1}, Way),
    {0, _} = command:await_exit(Receiver, Said),
    Running.

term(Said, Start) ->
    {match, [Line]} = re:run(Said, "^" ++ Start ++ ".*$", [multiline, {capture, first, list}]),
    {ok, Tokens, _} = erl_scan:string(Line),
    {ok, Term} = erl_parse:parse_term(Tokens),
    Term.

node(rebar3, project, Name) ->
    {[{"ERL_LIBS", "_build/default/lib:_build/default/checkouts"}],
     ["erl", "-noinput", "-sname", Name, "-setcookie", "fresh",
      "-eval", "{ok, _} = application:ensure_all_started(fresh)."]};
node(mix, project, Name) ->
    {[], ["elixir", "--sname", Name, "--cookie", "fresh", "-S", "mix", "run", "--no-halt"]};
node(rebar3, {release, Folder}, Name) ->
    {[{"FRESH_NAME", Name}, {"FRESH_COOKIE", "fresh"}],
     [filename:join([Folder, "bin", filename:basename(Folder)]), "foreground"]};
node(mix, {release, Folder}, Name) ->
    {[{"RELEASE_NODE", Name}, {"RELEASE_COOKIE", "fresh"}, {"RELEASE_DISTRIBUTION", "sname"}],
     [filename:join([Folder, "bin", filename:basename(Folder)]), "start"]}.
