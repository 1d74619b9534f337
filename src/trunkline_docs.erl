%% A parse transform for public modules. It gives h/1,2,3 in the shell and IEx their documentation
%% also before OTP 27, when the compiler did not know -moduledoc and -doc.
%%
%% The compiler of OTP 27 and newer puts these attributes into the BEAM file (EEP 48 and 59), and
%% this transform changes nothing. On older releases, where -doc would be an error, it removes the
%% attributes and writes the documentation to the file where the shell looks for it: for
%% `Dir/ebin/Module.beam' that is `Dir/doc/chunks/Module.chunk'.
-module(trunkline_docs).
-moduledoc false.

-export([parse_transform/2]).

-type forms() :: [erl_parse:abstract_form() | erl_parse:form_info()].
%% A text, metadata, or `false' for what is hidden.
-type doc() :: string() | #{atom() => binary()} | false.

-spec parse_transform(forms(), CompilerOptions :: [term()]) -> forms().
parse_transform(Forms, Options) ->
    case list_to_integer(erlang:system_info(otp_release)) < 27 of
        true ->
            [Module] = [Name || {attribute, _, module, Name} <- Forms],
            ok = write(Module, chunk(Forms), proplists:get_value(outdir, Options, "")),
            [Form || Form <- Forms, not is_doc(Form)];
        false ->
            Forms
    end.

is_doc({attribute, _, Name, _}) -> Name =:= moduledoc orelse Name =:= doc;
is_doc(_) -> false.

%% The module works without its documentation, so a file that cannot be written is not an error.
write(Module, Chunk, OutDir) ->
    Dir = filename:join([filename:dirname(OutDir), "doc", "chunks"]),
    File = filename:join(Dir, atom_to_list(Module) ++ ".chunk"),
    _ = filename:basename(OutDir) =:= "ebin"
        andalso filelib:ensure_path(Dir) =:= ok
        andalso file:write_file(File, term_to_binary(Chunk, [compressed])),
    ok.

chunk(Forms) ->
    Module = [Doc || {attribute, _, moduledoc, Doc} <- Forms],
    Specs = maps:from_list([{Of, Spec} || {attribute, _, spec, {Of, _}} = Spec <- Forms]),
    Exported = lists:append([Functions || {attribute, _, export, Functions} <- Forms]),
    Types = lists:append([Ts || {attribute, _, export_type, Ts} <- Forms]),
    {docs_v1, erl_anno:new(0), erlang, <<"text/markdown">>, text(Module), metadata(Module),
     [Entry || {{Kind, Name, Arity}, _, _, _, _} = Entry <- entries(Forms, [], Specs),
               lists:member({Name, Arity}, case Kind of type -> Types; function -> Exported end)]}.

%% A -doc attribute belongs to the function or the type that follows.
entries([{attribute, _, doc, Doc} | Forms], Docs, Specs) ->
    entries(Forms, [Doc | Docs], Specs);
entries([{attribute, Anno, Kind, {Name, _, Args}} = Type | Forms], Docs, Specs)
  when Kind =:= type; Kind =:= opaque ->
    [entry({type, Name, length(Args)}, Anno, [Type], Docs) | entries(Forms, [], Specs)];
entries([{function, Anno, Name, Arity, _} | Forms], Docs, Specs) ->
    Spec = [maps:get({Name, Arity}, Specs) || is_map_key({Name, Arity}, Specs)],
    [entry({function, Name, Arity}, Anno, Spec, Docs) | entries(Forms, [], Specs)];
entries([_ | Forms], Docs, Specs) ->
    entries(Forms, Docs, Specs);
entries([], _, _) ->
    [].

entry(What, Anno, Signature, Docs) ->
    {What, Anno, [one_line(erl_pp:form(Form)) || Form <- Signature], text(Docs), metadata(Docs)}.

%% The shell breaks the line where it wants.
one_line(Text) ->
    unicode:characters_to_binary(lists:join(" ", string:lexemes(lists:flatten(Text), " \n"))).

-spec text([doc()]) -> #{binary() => binary()} | none | hidden.
text(Docs) ->
    case [Doc || Doc <- Docs, not is_map(Doc)] of
        [] -> none;
        [false] -> hidden;
        [Text] -> #{<<"en">> => unicode:characters_to_binary(string:trim(Text))}
    end.

-spec metadata([doc()]) -> #{atom() => binary()}.
metadata(Docs) ->
    lists:foldl(fun maps:merge/2, #{}, [Doc || Doc <- Docs, is_map(Doc)]).
