%% Finds out what the modules in the code path send, and makes the same modules send by lane.
%%
%% A module's forms come from the debug information in its BEAM file, whichever compiler made it:
%% Erlang's, Elixir's, or another one whose backend can give Erlang's abstract code. The forms are
%% transformed, and compiled again. The new file has an attribute that says what it was made from
%% (`trunkline_adopted', with the MD5 of the module as it was), and keeps the debug information and
%% the documentation of the old one. So a module that is adopted already can be recognized.
%%
%%     BEAM file ── debug information ──> forms ── trunkline_transform ──> BEAM file
-module(trunkline_beams).
-moduledoc false.

-export([adopt/1, load/1, is_free/1, look/1, adopted/0, stock/1, mark/1, each/2]).

-export_type([stock/0, problem/0]).

%% The MD5 of a module before it was adopted.
-type stock() :: binary().
-type problem() :: no_application | no_file | no_debug_info | {not_compiled, term()}
                 | sticky | on_load | old_code | other_code | {not_loaded, term()}.
%% A module that has been transformed.
-type changed() :: #{stock := stock(), beam := binary(),
                     file := file:filename(),            % of the module as it was
                     on_load := boolean()}.              % it has an on_load function
%% Where something is sent.
-type found() :: {module(), Line :: non_neg_integer(), mfa()}.
-type look() :: #{changed := boolean(),
                  by_lane := [found()],
                  by_distribution := [{found(), Text :: string()}],
                  calls := [module()]}.

%% The workers exit with their results.
-dialyzer({nowarn_function, each/2}).

%% Modules that stay as they are. A caller links itself to its task, and then sends it what to do;
%% on a connection of the lanes' own that would overtake the link, and a task that has ended cannot
%% be linked to. The task sends its result and ends at once. Its caller hears of the end by OTP's
%% means (by monitor/3, or because the caller is not adopted), and must not hear of it before it has
%% the result.
-define(LEFT_ALONE, ['Elixir.Task.Supervised', 'Elixir.Task.Supervisor']).
%% Compiler options that must be given again. All others are in the forms, or do not change what the
%% forms mean.
-define(KEPT, [inline, inline_size, inline_list_funcs, inline_effort, no_auto_import, feature,
               deterministic, strict_record_tests, no_strict_record_tests, tuple_calls]).
%% Chunks that are taken from the old file, because other tools read them.
-define(CHUNKS, ["Dbgi", "Abst", "Docs", "ExCk"]).

%% The adopted module, if the transform changes anything in it.
-spec adopt(module()) -> {changed, changed()} | adopted | unchanged | {error, problem()}.
adopt(Module) -> with_forms(Module, fun adopt/4).

adopt(Module, File, Beam, Forms) ->
    case mark_in(chunk(attributes, Beam)) of
        {adopted, _} -> adopted;
        none ->
            case transformed(Forms) of
                {Forms, _} -> unchanged;
                {New, _} -> compiled(Module, Beam, File, New)
            end
    end.

%% Adopts the module and loads it. No process is killed for that: a process that still runs code
%% from before the last change must leave that code first. Code that was not loaded from the code
%% path is left alone.
-spec load(module()) -> adopted | unchanged | {error, problem()}.
load(Module) ->
    case mark(Module) =:= {adopted, stock(Module)} of
        true -> adopted;                     % it was loaded when Trunkline ran before
        false -> load_new(Module)
    end.

load_new(Module) ->
    case adopt(Module) of
        adopted ->
            load_file(Module);
        {changed, #{stock := Stock, on_load := OnLoad} = Changed} ->
            case not erlang:module_loaded(Module)
                orelse erlang:get_module_info(Module, md5) =:= Stock of
                true ->
                    case erlang:module_loaded(Module) andalso (OnLoad orelse has_nifs(Module)) of
                        true -> {error, on_load};         % it would have to be initialized again
                        false -> load(Module, Changed)
                    end;
                false -> {error, other_code}
            end;
        Result ->
            Result
    end.

%% A function of the module has loaded them.
has_nifs(Module) -> erlang:get_module_info(Module, nifs) =/= [].

%% The file is adopted, but the code that is loaded may be older.
load_file(Module) ->
    case code:is_loaded(Module) of
        {file, _} ->
            case mark(Module) of
                {adopted, _} -> adopted;
                none -> {error, other_code}
            end;
        false -> loaded(code:load_file(Module))
    end.

load(Module, #{beam := Beam, file := File}) ->
    IsFree = is_free(Module),
    case code:is_sticky(Module) of
        true -> {error, sticky};
        false when not IsFree -> {error, old_code};
        false -> loaded(code:load_binary(Module, File, Beam))
    end.

loaded({module, _}) -> adopted;
loaded({error, Why}) -> {error, {not_loaded, Why}}.

%% Whether no process runs code of the module from before the last change.
-spec is_free(module()) -> boolean().
is_free(Module) -> not erlang:check_old_code(Module) orelse code:soft_purge(Module).

%% It does not matter whether the module's file is adopted: what it sends can be seen in both.
-spec look(module()) -> {ok, look()} | {error, problem()}.
look(Module) -> with_forms(Module, fun look/4).

look(Module, _, Beam, Forms) ->
    {New, Warnings} = transformed(Forms),
    Calls = calls(New, []),
    case New =/= Forms andalso has_core_transform(chunk(compile_info, Beam), New) of
        true -> {error, {not_compiled, core_transform}};
        false -> {ok, look(Module, Forms, New, Calls, Warnings)}
    end.

look(Module, Forms, New, Calls, Warnings) ->
    #{changed => New =/= Forms,
      by_lane => [{Module, Line, Stock} || {Line, MFA} <- Calls,
                                           Stock <- trunkline_transform:stock(MFA)],
      by_distribution =>
          [{{Module, line(Location), element(2, Warning)},
            lists:flatten(trunkline_transform:format_error(Warning))}
           || {Location, _, Warning} <- Warnings]
          ++ [{{Module, Line, MFA}, "a task, its link and its end must keep their order"}
              || {Line, {erlang, send, _} = MFA} <- Calls, lists:member(Module, ?LEFT_ALONE)],
      calls => lists:usort([M || {_, {M, _, _}} <- Calls, M =/= Module])}.

%% The modules that are loaded and adopted.
-spec adopted() -> #{module() => stock()}.
adopted() ->
    maps:from_list([{Module, Stock} || {Module, _} <- code:all_loaded(),
                                       {adopted, Stock} <- [mark(Module)]]).

%% The MD5 of the file in the code path.
-spec stock(module()) -> stock() | none.
stock(Module) ->
    case code:get_object_code(Module) of
        {Module, Beam, _} -> md5(Beam);
        error -> none
    end.

%% Whether the code that is loaded is adopted code.
-spec mark(module()) -> {adopted, stock()} | none.
mark(Module) ->
    try mark_in(erlang:get_module_info(Module, attributes))
    catch error:badarg -> none               % not loaded any more
    end.

%% The chunk may have been stripped from the file.
chunk(Name, Beam) ->
    case beam_lib:chunks(Beam, [Name], [allow_missing_chunks]) of
        {ok, {_, [{Name, missing_chunk}]}} -> [];
        {ok, {_, [{Name, Content}]}} -> Content
    end.

mark_in(Attributes) ->
    case lists:keyfind(trunkline_adopted, 1, Attributes) of
        {_, [Stock]} -> {adopted, Stock};
        false -> none
    end.

%% The MD5 that module_info/1 returns for the loaded module, unless the chunks from which it is made
%% have been stripped from the file.
md5(Beam) ->
    case code:module_md5(Beam) of
        undefined -> erlang:md5(Beam);
        MD5 -> MD5
    end.

%% --- a module's forms ------------------------------------------------------------

%% (Debug information may have any form, and another tool may have written it. So an error concerns
%% this module alone.)
with_forms(Module, Do) ->
    try
        case code:get_object_code(Module) of
            {Module, Beam, File} ->
                case beam_lib:chunks(Beam, [abstract_code]) of
                    {ok, {_, [{abstract_code, {raw_abstract_v1, Forms}}]}} ->
                        Do(Module, File, Beam, Forms);
                    _ ->
                        {error, no_debug_info}     % or it is of a language that is not installed
                end;
            error ->
                {error, no_file}
        end
    catch
        _:Reason -> {error, {not_compiled, Reason}}
    end.

%% The forms are as they were, if nothing has changed but the options that plain/1 removes.
transformed(Forms) ->
    [Module | _] = [M || {attribute, _, module, M} <- Forms],
    Options = [{trunkline_transform, []} || lists:member(Module, ?LEFT_ALONE)],
    Plain = [plain(Form) || Form <- Forms],
    {New, Warnings} = case trunkline_transform:parse_transform(Plain, Options) of
                          {warning, Warned, Ws} -> {Warned, lists:append([W || {_, W} <- Ws])};
                          Silent -> {Silent, []}
                      end,
    {if New =:= Plain -> Forms; true -> New end, Warnings}.

%% Some forms have been through their own parse transforms already: these must not run twice. And
%% the module's warnings concern only the project that it comes from.
plain({attribute, Anno, compile, Options}) ->
    {attribute, Anno, compile, lists:foldl(fun proplists:delete/2, lists:flatten([Options]),
                                           [parse_transform, warnings_as_errors])};
plain(Form) ->
    Form.

compiled(Module, Old, File, Forms) ->
    Info = chunk(compile_info, Old),
    All = proplists:get_value(options, Info, []),
    Options = [O || O <- All, is_kept(O)] ++ [{source, Source} || {source, Source} <- Info],
    Stock = md5(Old),
    Marked = marked(exporting(chunk(exports, Old), Forms), Stock),
    case {has_core_transform(Info, Forms), code:ensure_loaded(compile)} of
        {true, _} ->
            {error, {not_compiled, core_transform}};
        {false, {error, _}} ->
            {error, {not_compiled, no_compiler}};
        {false, {module, _}} ->
            case compile:noenv_forms(Marked, [binary, return_errors | Options]) of
                {error, Errors, _} ->
                    {error, {not_compiled, Errors}};
                Compiled ->                  % with the warnings, if the forms say so
                    {ok, Module} = {element(1, Compiled), element(2, Compiled)},
                    New = with_chunks_of(Old, element(3, Compiled)),
                    {changed, #{stock => Stock, beam => New, file => File,
                                on_load => lists:any(fun is_on_load/1, Forms)}}
            end
    end.

%% A core transform has not been applied to these forms: it comes later in the compiler.
has_core_transform(CompileInfo, Forms) ->
    Said = proplists:get_value(options, CompileInfo, []),
    Attributes = lists:append([lists:flatten([O]) || {attribute, _, compile, O} <- Forms]),
    lists:keymember(core_transform, 1, [O || O <- Said ++ Attributes, is_tuple(O)]).

is_on_load({attribute, _, on_load, _}) -> true;
is_on_load(_) -> false.

%% Exports what the file exports although the forms do not: export_all was a compiler option.
exporting(Exports, Forms) ->
    Said = lists:append([E || {attribute, _, export, E} <- Forms]),
    More = [{F, A} || {function, _, F, A, _} <- Forms,
                      lists:member({F, A}, Exports), not lists:member({F, A}, Said)],
    lists:append([case Form of
                      {attribute, Anno, module, _} -> [Form, {attribute, Anno, export, More}];
                      _ -> [Form]
                  end || Form <- Forms]).

is_kept(Option) when is_tuple(Option) -> lists:member(element(1, Option), ?KEPT);
is_kept(Option) -> lists:member(Option, ?KEPT).

marked([{attribute, Anno, module, _} = Form | Forms], Stock) ->
    [Form, {attribute, Anno, trunkline_adopted, [Stock]} | Forms];
marked([Form | Forms], Stock) ->
    [Form | marked(Forms, Stock)].

with_chunks_of(Old, New) ->
    {ok, _, OldChunks} = beam_lib:all_chunks(Old),
    {ok, _, NewChunks} = beam_lib:all_chunks(New),
    Kept = [Chunk || {Name, _} = Chunk <- OldChunks, lists:member(Name, ?CHUNKS)],
    {ok, Beam} = beam_lib:build_module(
                   [Chunk || {Name, _} = Chunk <- NewChunks, not lists:keymember(Name, 1, Kept)]
                   ++ Kept),
    Beam.

%% --- calls in forms ----------------------------------------------------------------

calls({call, Anno, {remote, _, {atom, _, M}, {atom, _, F}}, Args}, Found) ->
    calls(Args, [{line(erl_anno:location(Anno)), {M, F, length(Args)}} | Found]);
calls({'fun', Anno, {function, {atom, _, M}, {atom, _, F}, {integer, _, A}}}, Found) ->
    [{line(erl_anno:location(Anno)), {M, F, A}} | Found];
calls([Form | Forms], Found) -> calls(Forms, calls(Form, Found));
calls(Form, Found) when is_tuple(Form) -> calls(tuple_to_list(Form), Found);
calls(_, Found) -> Found.

line({Line, _}) -> Line;
line(Line) when is_integer(Line) -> Line;
line(none) -> 0.

%% --- in parallel ---------------------------------------------------------------------

%% Returns the results in order. There is one process per scheduler, because the compiler takes a
%% while.
-spec each(fun((Element) -> Result), [Element]) -> [Result].
each(Fun, List) ->
    Workers = erlang:system_info(schedulers_online),
    Shares = [[Item || {N, _} = Item <- lists:enumerate(List), N rem Workers =:= Rest]
              || Rest <- lists:seq(0, Workers - 1)],
    Running = [spawn_monitor(fun() -> exit({done, [{N, Fun(Item)} || {N, Item} <- Share]}) end)
               || Share <- Shares, Share =/= []],
    Done = [receive
                {'DOWN', Ref, process, Pid, {done, Results}} -> Results;
                {'DOWN', Ref, process, Pid, Reason} -> exit(Reason)
            end || {Pid, Ref} <- Running],
    [Result || {_, Result} <- lists:keysort(1, lists:append(Done))].
