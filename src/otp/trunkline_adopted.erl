%% A directory of adopted modules, which a build makes, and updates when something has changed.
%%
%% A module is transformed again only if its file, Trunkline's transform or OTP has changed. The
%% directory has a file that says what each module was made from. Only adopted modules, which have
%% an attribute, are ever removed, when they are not needed any more: the module in the code path is
%% as good, or is gone. (A module that was left behind would hide the next release of its
%% application.)
%%
%% The directory may itself be in the code path, under any name, for instance in a shell that
%% compiles a project again. The same is true for the directories of the other applications of an
%% umbrella project. While modules are looked up, all of these are taken out of the code path. They
%% are recognized by that file, so it is written first.
-module(trunkline_adopted).
-moduledoc false.

-export([write/2, build/3, main/1]).

%% `written' are the modules that the directory has now, `compiled' those that were made just now.
-type result() :: #{written := [module()],
                    compiled := [module()],
                    problems := #{module() => trunkline_beams:problem()}}.
%% The MD5 of the module's file that was read, and of the adopted one that was written: `unchanged'
%% means that the transform changes nothing in it, so that none was written.
-type source() :: {module(), From :: binary(), Made :: binary() | unchanged}.
%% `adopted': the file that was read is an adopted one, so that there is nothing to do.
-type outcome() :: {kept | compiled, source()} | adopted | {error, problem()}.
-type problem() :: trunkline_beams:problem() | {file, file:posix()}.

-define(SOURCES, "trunkline_adopted.sources").

-spec write([trunkline_applications:name()], file:name_all()) ->
          {ok, result()} | {error, file:posix()}.
write(Names, Dir) ->
    case prepare(Dir) of
        ok -> without_adopted(fun() -> update(Names, Dir) end);
        {error, _} = Error -> Error
    end.

prepare(Dir) ->
    case filelib:ensure_path(Dir) of
        ok ->
            case is_adopted(Dir) of
                true -> ok;
                false -> file:write_file(filename:join(Dir, ?SOURCES), "")
            end;
        {error, _} = Error ->
            Error
    end.

%% Afterwards the code path is as it was before.
without_adopted(Do) ->
    Path = code:get_path(),
    lists:foreach(fun code:del_path/1, lists:filter(fun is_adopted/1, Path)),
    try Do()
    after
        true = code:set_path(Path)
    end.

is_adopted(Dir) -> filelib:is_regular(filename:join(Dir, ?SOURCES)).

update(Names, Dir) ->
    Before = sources(Dir),
    Known = maps:from_list([{Module, Source} || {Module, _, _} = Source <- Before]),
    Modules = trunkline_applications:modules(Names),
    Outcomes = trunkline_beams:each(fun(M) -> update(M, maps:get(M, Known, none), Dir) end,
                                    Modules),
    Sources = [Source || {_, {_, _, _} = Source} <- Outcomes],
    case [Why || {error, {file, Why}} <- Outcomes]
        ++ [Why || Module <- adopted(Dir) -- written(Sources),
                   {error, Why} <- [file:delete(file(Module, Dir))]]
        ++ [Why || Sources =/= Before, {error, Why} <- [save(Sources, Dir)]]
    of
        [] ->
            {ok, #{written => written(Sources),
                   compiled => written([Source || {compiled, Source} <- Outcomes]),
                   problems => maps:from_list(
                                 [{M, Why} || {M, {error, Why}} <- lists:zip(Modules, Outcomes)])}};
        [Why | _] ->
            {error, Why}
    end.

written(Sources) -> [Module || {Module, _, Made} <- Sources, Made =/= unchanged].

-spec update(module(), source() | none, file:name_all()) -> outcome().
update(Module, Known, Dir) ->
    case code:get_object_code(Module) of
        {Module, Beam, _} ->
            From = erlang:md5(Beam),
            case is_right(Known, From, Dir) of
                true -> {kept, Known};
                false -> make(Module, From, Dir)
            end;
        error ->
            {error, no_file}
    end.

is_right({_, From, unchanged}, From, _) ->
    true;
is_right({Module, From, Made}, From, Dir) ->
    case file:read_file(file(Module, Dir)) of
        {ok, File} -> erlang:md5(File) =:= Made;
        {error, _} -> false
    end;
is_right(_, _, _) ->
    false.

make(Module, From, Dir) ->
    case trunkline_beams:adopt(Module) of
        {changed, #{beam := Beam}} ->
            case file:write_file(file(Module, Dir), Beam) of
                ok -> {compiled, {Module, From, erlang:md5(Beam)}};
                {error, Why} -> {error, {file, Why}}
            end;
        unchanged -> {compiled, {Module, From, unchanged}};
        adopted -> adopted;
        {error, _} = Error -> Error
    end.

file(Module, Dir) -> filename:join(Dir, atom_to_list(Module) ++ ".beam").

%% --- sources of the modules ---------------------------------------------------------

%% With another release of the transform or the compiler, the adopted modules may be different.
version() ->
    {erlang:system_info(otp_release), erlang:system_info(version),
     [Module:module_info(md5) || Module <- [trunkline_transform, trunkline_beams, trunkline_gen,
                                            trunkline_gen_server, trunkline_gen_statem,
                                            trunkline_gen_event, trunkline_erpc, trunkline_rpc]]}.

%% If the file cannot be read, or is of another release, all modules are made again.
sources(Dir) ->
    Version = version(),
    case file:consult(filename:join(Dir, ?SOURCES)) of
        {ok, [{Version, Sources}]} -> Sources;
        _ -> []
    end.

%% The adopted modules that are there.
adopted(Dir) ->
    Files = case file:list_dir(Dir) of
                {ok, All} -> All;
                {error, _} -> []             % it cannot be read; what is written says why
            end,
    [Module || File <- Files, filename:extension(File) =:= ".beam",
               {ok, Beam} <- [file:read_file(filename:join(Dir, File))],
               {ok, {Module, [{attributes, Attributes}]}} <- [beam_lib:chunks(Beam, [attributes])],
               lists:keymember(trunkline_adopted, 1, Attributes),
               File =:= atom_to_list(Module) ++ ".beam"].

save(Sources, Dir) ->
    Text = io_lib:format("%% What trunkline_adopt:write/2 has made here, and from what.~n~tp.~n",
                         [{version(), Sources}]),
    File = filename:join(Dir, ?SOURCES),
    New = filename:join(Dir, ?SOURCES ".new"),
    case file:write_file(New, unicode:characters_to_binary(Text)) of
        ok -> file:rename(New, File);
        {error, _} = Error -> Error
    end.

%% --- builds --------------------------------------------------------------------------

%% Updates the directory, and puts it first in the code path. `ok': modules were compiled; `noop':
%% none was. Say prints the messages.
-spec build(Names :: term(), file:filename(), Say) -> ok | noop | error
              when Say :: fun((info | error, unicode:chardata()) -> term()).
build(NameOrNames, Dir, Say) ->
    Names = trunkline_applications:as_list(NameOrNames),
    case [Name || Name <- Names, not trunkline_applications:is_adoptable(Name)] of
        [] ->
            case write(Names, Dir) of
                {ok, Result} ->
                    built(Result, Dir, Say);
                {error, Why} ->
                    Say(error, io_lib:format("trunkline: ~ts: ~ts",
                                             [Dir, file:format_error(Why)])),
                    error
            end;
        Bad ->
            Say(error, io_lib:format("trunkline: cannot adopt ~0tp: not there, or Trunkline itself "
                                     "needs it. An application of OTP is {otp, mnesia}", [Bad])),
            error
    end.

built(#{written := Written, compiled := Compiled, problems := Problems}, Dir, Say) ->
    maps:foreach(fun(Module, Why) ->
                         Say(error, io_lib:format("trunkline: ~0tp is not adopted: ~0tP",
                                                  [Module, Why, 20]))
                 end, Problems),
    ok = reload(Written, Dir),
    case length(Compiled) of
        0 ->
            noop;
        N ->
            Say(info, io_lib:format("Adopted ~b module~s", [N, [$s || N > 1]])),
            ok
    end.

%% Reloads modules that are loaded already: a build tool has loaded some to execute their macros.
reload(Modules, Dir) ->
    true = code:add_patha(filename:absname(Dir)),
    lists:foreach(fun(Module) ->
                          erlang:module_loaded(Module)
                              andalso Module:module_info(md5) =/= trunkline_beams:stock(Module)
                              andalso trunkline_beams:is_free(Module)
                              andalso code:load_file(Module)
                  end, Modules).

%% For priv/adopt, which rebar3 runs. The arguments are the build's folder, and names as in the
%% option `adopt'.
-spec main([string()]) -> no_return().
main([Build | Names]) ->
    Dir = filename:join(Build, "adopted"),
    Say = fun(info, Text) -> io:format("~ts~n", [Text]);
             (error, Text) -> io:format(standard_error, "~ts~n", [Text])
          end,
    case build([name(Name) || Name <- Names], Dir, Say) of
        error -> halt(1);
        _ ->
            ok = clean(Build, filelib:wildcard("*.beam", Dir)),
            halt(0)
    end.

name(Text) ->
    try
        {ok, Tokens, _} = erl_scan:string(Text ++ "."),
        {ok, Name} = erl_parse:parse_term(Tokens),
        Name
    catch
        error:{badmatch, _} -> Text          % not a term, so not a name
    end.

%% Removes what an earlier build has copied into a release, because it would hide the right modules.
clean(Build, Files) ->
    lists:foreach(fun(Copy) ->
                          lists:member(filename:basename(Copy), Files)
                              orelse file:delete(filename:join(Build, Copy))
                  end, filelib:wildcard("rel/*/adopted/*.beam", Build)).
