%% Mix's compiler `:trunkline': adopts dependencies when a project is built.
%%
%%     def project do
%%       [compilers: Mix.compilers() ++ [:trunkline], trunkline: [adopt: [:shop]], ...]
%%
%% Mix looks for a module of this name, and for its function `__info__', which each Elixir module
%% has. This module is written in Erlang, so that Trunkline does not need Elixir. Without Mix it is
%% never loaded.
-module('Elixir.Mix.Tasks.Compile.Trunkline').
-moduledoc false.

-export([run/1, clean/0, release/1, '__info__'/1]).

-define(MIX, 'Elixir.Mix').
-define(PROJECT, 'Elixir.Mix.Project').

%% Runs after the other compilers, because the project's own applications may be adopted, too.
-spec run([binary()]) -> {ok | noop | error, []}.
run(_) ->
    Project = call(?PROJECT, config, []),
    {trunkline_adopted:build(names(Project), dir(app(Project)), fun say/2), []}.

names(Project) ->
    case lists:keyfind(trunkline, 1, Project) of
        {trunkline, Options} -> proplists:get_value(adopt, Options, []);
        false -> []
    end.

%% mix clean
-spec clean() -> ok.
clean() ->
    _ = file:del_dir_r(dir(app(call(?PROJECT, config, [])))),
    ok.

%% A step of a release, after `:assemble': the adopted modules replace the original ones there. (A
%% release loads each module from the folder of its application, whatever else is in the path.)
-spec release(Release) -> Release
              when Release :: #{path := file:name_all(), applications := #{atom() => _}, _ => _}.
release(#{path := Path, applications := Applications} = Release) ->
    lists:foreach(fun(File) -> replace(File, text(Path)) end,
                  [filename:join(dir(App), Beam) || App <- maps:keys(Applications),
                                                    Beam <- filelib:wildcard("*.beam", dir(App))]),
    Release.

replace(File, Path) ->
    Name = filename:basename(File),              % may have any characters, so it is no pattern
    Places = [filename:join([Path, Ebin, Name]) || Ebin <- filelib:wildcard("lib/*/ebin", Path)],
    case lists:filter(fun filelib:is_regular/1, Places) of
        [] -> say(error, "trunkline: " ++ Name ++ " is not in the release");
        There -> [{ok, _} = file:copy(File, Place) || Place <- There]
    end.

%% What Mix asks a task. An umbrella project runs it in each of its applications.
-spec '__info__'(atom()) -> [{atom(), [term()]}].
'__info__'(attributes) ->
    [{recursive, [true]}, {shortdoc, [<<"Adopts dependencies by Trunkline">>]}];
'__info__'(_) -> [].

app(Project) ->
    {app, App} = lists:keyfind(app, 1, Project),
    App.

%% The applications of an umbrella project share the folder of the build. The folder must not have
%% the name of the application: OTP 27 would take it for the application's own.
dir(App) ->
    Name = atom_to_list(App) ++ "_adopted",
    filename:join([text(call(?PROJECT, build_path, [])), "adopted", Name]).

text(Path) -> unicode:characters_to_list(Path).

say(How, Text) -> call(call(?MIX, shell, []), How, [unicode:characters_to_binary(Text)]).

%% Dialyzer and xref need not know Mix.
call(Module, Function, Arguments) -> apply(Module, Function, Arguments).
