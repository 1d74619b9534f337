%% README.md and the pages of docs/: every code block runs, and no link is dead. See guides.erl
%% for what a block can say.
-module(guides_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([likeness/1, extraction/1, links/1, tags/1, contents/1, erlang_blocks/1, elixir_blocks/1,
         arguments/1, yaml/1, shell_commands/1, log/1]).

%% As the blocks of all pages together may be: each has its reason.
-define(NOT_RUN, 8).
-define(TIMEOUT, 120_000).
%% What trunkline_options explains stands before it.
-define(EXPLAINED, "trunkline: ~ts. Trunkline does not start, nor does a release that contains it").

suite() -> [{timetrap, {minutes, 10}}].

all() -> [likeness, extraction, links, tags, contents, erlang_blocks, elixir_blocks,
          arguments, yaml, shell_commands, log].

init_per_suite(Config) ->
    Root = command:root(),
    [A, B] = cluster:start_all([none, none], []),
    [{ok, _} = cluster:call(Node, application, ensure_all_started, [trunkline]) || Node <- [A, B]],
    await_up(A, B),
    Usual = cluster:call(B, guides, usual, []),
    %% (Groups are known everywhere a moment later.)
    {ok, _} = cluster:call(A, pg, start, [pg]),
    cluster:await(fun() -> length(cluster:call(A, pg, get_members, [guide_group])) =:= 3 end),
    [{root, Root}, {a, A}, {b, B}, {usual, Usual#{'Others' => [cluster:node_of(B)]}} | Config].

end_per_suite(Config) -> cluster:stop_all([?config(a, Config), ?config(b, Config)]).

await_up(A, B) ->
    cluster:connect(A, B),
    [cluster:await_state(X, Y, up) || {X, Y} <- [{A, B}, {B, A}]].

%% --- what the other cases rely on --------------------------------------------------

likeness(_) ->
    Like = fun(How, Shown, Value) -> guides:like({How, guides:as_term(Shown, no_term)}, Value) end,
    ?assert(Like(exactly, "{ok,[...]}", {ok, [kernel, ssl]})),
    ?assert(Like(exactly, "[#Port<0.6>,<0.1.0>,#Fun<erl_eval.43.3>,#Ref<0.1.2.3>]",
                 [hd(erlang:ports()), self(), fun() -> ok end, make_ref()])),
    ?assert(Like(exactly, "#{a => 1,b => [x,\"y\"]}", #{a => 1, b => [x, "y"]})),
    ?assertNot(Like(exactly, "#{a => 1,b => 2}", #{a => 1})),
    ?assertNot(Like(exactly, "#{a => 1}", #{a => 1, b => 2})),
    ?assertNot(Like(exactly, "137", 138)),
    ?assert(Like(roughly, "137", 138)),
    ?assertNot(Like(roughly, "137", ok)),
    ?assert(Like(roughly, "{\"1.0.0\",[1,2],7.5}", {"1.0.1-rc", [2, 3], 9.0})),
    ?assertNot(Like(roughly, "[1,2]", [1, 2, 3])),
    ?assert(Like(keys, "#{a => 1,b => #{c => x}}", #{a => y, b => #{c => 2}})),
    ?assertNot(Like(keys, "#{a => 1,b => #{c => x}}", #{a => y, b => #{d => 2}})),
    ?assertNot(Like(keys, "#{a => 1}", [])),
    ?assertNot(Like(exactly, "{ok,<0.1.0>}", {ok, 1})),
    ?assertNot(Like(exactly, "ok", {error, timeout})).

extraction(_) ->
    Text = "# A title!\n\n<!-- with: X = 1; then run: X + 1 -->\n```erlang\nfoo(X).\n```\ntext\n\n"
        "<!-- not run:\n it is\n an example -->\n\n```sh\nrm -rf /\n```\n\n"
        "```text\n# no title\n```\n## B c_d-e `f/1`\n",
    [Erlang, Sh, Plain] = guides:blocks(Text),
    ?assertMatch(#{line := 4, tag := "erlang", text := "foo(X).\n",
                   directives := #{"with" := "X = 1", "run" := "X + 1"}}, Erlang),
    ?assertMatch(#{line := 13, tag := "sh", directives := #{"not run" := "it is  an example"}}, Sh),
    ?assertMatch(#{tag := "text", directives := D} when D =:= #{}, Plain),
    ?assertEqual(["a-title", "b-c_d-e-f1"], guides:headings(Text)),
    ?assertEqual([{a, "X = \"a. b\",\n X.", "\"a. b\"\n"}, {b, "1.", "1\n"}],
                 guides:sessions("1> X = \"a. b\",\n X.\n\"a. b\"\n(b@host)2> 1.\n1\n")),
    ?assertEqual([{a, "f(1,\n  2)", "\n:ok\n"}, {b, "2", "\n2\n"}],
                 guides:iex_sessions(
                   "iex(a@host)1> f(1,\n...(a@host)1>   2)\n:ok\niex(b@host)10> 2\n2\n")),
    ?assert(guides:is_inspected(exactly, "\n{:ok, #PID<0.1.0>, [...]}\n",
                                "{:ok, #PID<0.2.0>, [1,\n 2]}")),
    ?assertNot(guides:is_inspected(exactly, "{:ok, 1}", "{:ok, 2}")),
    ?assert(guides:is_inspected(roughly, "{:ok, 1}", "{:ok, 2}")),
    ?assertNot(guides:is_inspected(roughly, "{:ok, 1}", "{:error, 1}")).

%% --- pages ------------------------------------------------------------------------

%% Every link within the project leads somewhere.
links(Config) ->
    Root = ?config(root, Config),
    Pages = ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "elixir/trunkline_pubsub/README.md"
             | guides:pages(Root)],
    Dead = [{Page, Link}
            || Page <- Pages, Link <- guides:links(read(Root, Page)), not is_external(Link),
                            not leads_somewhere(Root, Page, string:split(Link, "#"))],
    ?assertEqual([], Dead).

is_external(Link) -> re:run(Link, "^[a-z]+:") =/= nomatch.

leads_somewhere(Root, Page, [Target | Anchor]) ->
    File = case Target of
               "" -> filename:join(Root, Page);
               _ -> filename:join([Root, filename:dirname(Page), Target])
           end,
    filelib:is_file(File) andalso
        (Anchor =:= [] orelse filename:extension(File) =/= ".md"
         orelse lists:member(hd(Anchor), guides:headings(read("/", File)))).

%% Every block says what it is, and nearly every one can be run.
tags(Config) ->
    Blocks = blocks(Config),
    Known = ["erl", "erlang", "elixir", "iex", "vm.args", "sys.config.src", "yaml", "sh",
             "log", "text"],
    ?assertEqual([], [{at(B), Tag} || #{tag := Tag} = B <- Blocks, not lists:member(Tag, Known)]),
    Directives =
        ["not run", "numbers vary", "values vary", "takes a moment", "with", "compile with", "run"],
    ?assertEqual([], [{at(B), D} || #{directives := Ds, tag := Tag} = B <- Blocks, Tag =/= "text",
                                    D <- maps:keys(Ds), not lists:member(D, Directives)]),
    NotRun = [{at(B), Why} || #{directives := #{"not run" := Why}} = B <- Blocks],
    ct:pal("~b blocks, of which are not run: ~p", [length(Blocks), NotRun]),
    ?assertEqual([], [At || {At, Why} <- NotRun, length(Why) < 10]),
    ?assert(length(NotRun) =< ?NOT_RUN),
    %% Code that is only indented says nothing.
    Indented = [{Page, Line} || Page <- guides:pages(?config(root, Config)),
                                Line <- indented(read(?config(root, Config), Page))],
    ?assertEqual([], Indented).

indented(Text) ->
    Plain =
        re:replace(Text, "^```.*?^```", "", [global, multiline, dotall, unicode, {return, list}]),
    case re:run(Plain, "(?:^|\n)\n(    .*)", [global, unicode, {capture, all_but_first, list}]) of
        {match, Lines} -> lists:append(Lines);
        nomatch -> []
    end.

%% Both tables of contents have every page.
contents(Config) ->
    Root = ?config(root, Config),
    Pages = lists:sort(guides:pages(Root) -- ["README.md"]),
    {match, Nav} = re:run(read(Root, "mkdocs.yml"), ": ([a-z/-]+\\.md)$",
                          [global, multiline, {capture, all_but_first, list}]),
    ?assertEqual([], Pages -- ["docs/" ++ P || [P] <- Nav]),
    {ok, Terms} = file:consult(filename:join(Root, "rebar.config")),
    Docs = proplists:get_value(docs, proplists:get_value(profiles, Terms)),
    Extras = [case E of {File, _} -> File; _ -> E end
              || E <- proplists:get_value(extras, proplists:get_value(ex_doc, Docs))],
    ?assertEqual([], Pages -- Extras),
    ?assertEqual([], [E || E <- Extras, not filelib:is_file(filename:join(Root, E))]).

%% --- blocks -----------------------------------------------------------------------

blocks(Config) ->
    [B#{page => Page} || Page <- guides:pages(?config(root, Config)),
                         B <- guides:blocks(read(?config(root, Config), Page))].

blocks(Config, Tags) ->
    [B || #{tag := Tag, directives := D} = B <- blocks(Config), lists:member(Tag, Tags),
          not is_map_key("not run", D)].

at(#{page := Page, line := Line}) -> Page ++ ":" ++ integer_to_list(Line).

read(Root, File) ->
    {ok, Text} = file:read_file(filename:join(Root, File)),
    unicode:characters_to_list(Text).

%% Page by page.
erlang_blocks(Config) -> run_pages(Config, ["erl", "erlang"], fun run_erlang/2).

run_pages(Config, Tags, Run) ->
    {A, B} = {?config(a, Config), ?config(b, Config)},
    Blocks = blocks(Config, Tags),
    ?assert(length(Blocks) > 10),
    Failed = [Failure || Page <- guides:pages(?config(root, Config)),
                         Failure <- run_page([B1 || #{page := P} = B1 <- Blocks, P =:= Page], Run,
                                             A, B, Config)],
    ?assertEqual([], Failed).

run_page([], _, _, _, _) ->
    [];
run_page(Blocks, Run, A, B, Config) ->
    [ok = cluster:call(Node, guides, start_session, [?config(usual, Config)]) || Node <- [A, B]],
    Failed = lists:append([try Run(Block, Config), [] of
                               Ok -> Ok
                           catch _:Reason:Stack ->
                                   ct:pal("~ts:~n~ts~n~p~n~p",
                                          [at(Block), maps:get(text, Block), Reason, Stack]),
                                   [{at(Block), Reason}]
                           end || Block <- Blocks]),
    [ok = cluster:call(Node, guides, end_session, []) || Node <- [A, B]],
    again(A, B),
    Failed.

%% Some pages end what the others need.
again(A, B) ->
    [{ok, _} = cluster:call(Node, application, ensure_all_started, [trunkline]) || Node <- [A, B]],
    case cluster:info(A, B) of
        #{state := up} -> ok;
        _ -> cluster:call(A, erlang, disconnect_node, [cluster:node_of(B)])
    end,
    await_up(A, B).

run_erlang(#{text := Text} = Block, Config) ->
    case guides:is_session(Text) of
        true -> run_session(Block, Config);
        false -> run_code(Block, Config)
    end.

run_session(#{text := Text, directives := Directives} = Block, Config) ->
    How = case Directives of
              #{"numbers vary" := _} -> roughly;
              #{"values vary" := _} -> keys;
              #{} -> exactly
          end,
    Sessions = guides:sessions(Text),
    ?assertNotEqual([], Sessions),
    [begin
         Done = fun() -> answers_as_shown(How, Session, Config) end,
         case Directives of
             #{"takes a moment" := _} -> cluster:await(Done);
             #{} -> ?assertEqual(true, Done())
         end
     end || Session <- Sessions],
    then_run(erlang, Block, Config).

run_code(#{text := Text} = Block, Config) ->
    prepare(Block, Config),
    case kind(Text) of
        module -> load(module, Text, Block, Config);
        expressions -> [check_value(V, Config) || V <- value(evaluate(a, erlang, Text, Config))];
        functions -> load(functions, Text, Block, Config)
    end,
    then_run(erlang, Block, Config).

answers_as_shown(How, {Where, Input, Output}, Config) ->
    {Answer, Said} = evaluate(Where, shell, Input, Config),
    case Answer of
        {ok, Value} ->
            is_shown(How, string:trim(named(Output, Config)), Value, Said)
                orelse {Input, {shown, Output}, {is, Value}, {said, Said}};
        Error ->
            {Input, Error}
    end.

prepare(#{directives := #{"with" := Bindings}}, Config) ->
    {{ok, _}, _} = evaluate(a, usual, Bindings ++ ".", Config);
prepare(_, _) ->
    ok.

then_run(Kind, #{directives := #{"run" := Expression}}, Config) ->
    End = case Kind of erlang -> "."; elixir -> "" end,
    _ = value(evaluate(a, Kind, Expression ++ End, Config)),
    ok;
then_run(_, _, _) ->
    ok.

evaluate(Where, Kind, Text, Config) ->
    cluster:call(?config(Where, Config), guides, evaluate, [Kind, named(Text, Config), ?TIMEOUT]).

value({{ok, Value}, _}) -> Value;
value({Error, _}) -> error(Error).

%% The nodes' names in the pages, and here.
named(Text, Config) ->
    lists:foldl(fun(X, T) ->
                        [Name, _] = string:split(name(X, Config), "@"),
                        T1 = replace(T, atom_to_list(X) ++ "@host", name(X, Config)),
                        replace(T1, "\"" ++ atom_to_list(X) ++ "@\"", "\"" ++ Name ++ "@\"")
                end, Text, [a, b]).

replace(Text, From, To) -> lists:append(string:replace(Text, From, To, all)).

name(X, Config) -> atom_to_list(cluster:node_of(?config(X, Config))).

%% What is shown is what was printed, if anything, and the value.
is_shown(_, "", _, _) ->
    true;
is_shown(How, Shown, Value, Said) ->
    case guides:as_term(Shown, none) of
        none ->
            case string:split(Shown, "\n") of
                [Line, Rest] ->
                    is_printed(string:trim(Line), Said)
                        andalso is_shown(How, string:trim(Rest), Value, Said);
                _ -> false
            end;
        Term ->
            guides:like({How, Term}, Value)
    end.

%% But for the figures.
is_printed("", _) -> true;
is_printed(Line, Said) -> string:find(figures(Said), figures(Line)) =/= nomatch.

figures(Text) -> re:replace(Text, "[0-9][0-9.,]*", "0", [global, unicode, {return, list}]).

kind(Text) ->
    IsModule = re:run(Text, "^-module\\(", [multiline]) =/= nomatch,
    IsAttribute = re:run(Text, "^-[a-z]+\\(", [multiline]) =/= nomatch,
    case IsModule orelse IsAttribute orelse not is_expressions(Text) of
        true when IsModule -> module;
        true -> functions;
        false -> expressions
    end.

is_expressions(Text) ->
    case erl_scan:tokens([], Text, 1) of
        {done, {ok, Tokens, _}, Rest} ->
            element(1, erl_parse:parse_exprs(Tokens)) =:= ok andalso is_expressions(Rest);
        _ -> true
    end.

%% A module is loaded at both nodes. Functions are compiled.
load(Kind, Text, #{directives := Directives} = Block, Config) ->
    Module = case Kind of
                 module ->
                     {match, [M]} = re:run(Text, "^-module\\(([a-z_]+)\\)",
                                           [multiline, {capture, all_but_first, list}]),
                     M;
                 functions ->
                     "guide_fragment"
             end,
    File = filename:join(?config(priv_dir, Config), Module ++ ".erl"),
    Head = case Kind of
               module -> "";
               functions -> "-module(guide_fragment).\n-compile([export_all, nowarn_export_all]).\n"
           end,
    ok = file:write_file(File, unicode:characters_to_binary([Head, named(Text, Config)])),
    Options = [{parse_transform, list_to_atom(T)} || #{"compile with" := T} <- [Directives]],
    case compile:file(File, [binary, return | Options]) of
        {ok, Name, Beam, []} ->
            [ok = cluster:call(?config(X, Config), guides, load, [Name, File, Beam])
             || X <- [a, b]];
        Failed ->
            error({does_not_compile, at(Block), Failed})
    end.

%% A configuration is one that is accepted.
check_value([{Application, [_ | _]} | _] = Applications, Config) when is_atom(Application) ->
    [check_options(Options, Config) || {trunkline, Options} <- Applications],
    ok;
check_value({erl_opts, Options}, _) ->
    Forms = [{attribute, 1, module, guide_fragment}],
    {ok, guide_fragment, _} = compile:forms(Forms, Options),
    ok;
check_value(_, _) ->
    ok.

check_options(Options, Config) ->
    {ok, _} = cluster:call(?config(a, Config), trunkline_options, check, [Options]).

%% --- Elixir -----------------------------------------------------------------------

elixir_blocks(Config) ->
    with_elixir(Config, fun() -> run_pages(Config, ["elixir", "iex"], fun run_elixir/2) end).

with_elixir(Config, Do) ->
    case elixir() of
        none ->
            {skip, "Elixir is not installed"};
        Paths ->
            [begin
                 ok = cluster:call(Node, code, add_pathsa, [Paths]),
                 {ok, _} = cluster:call(Node, application, ensure_all_started, [elixir])
             end || Node <- [?config(a, Config), ?config(b, Config)]],
            _ = Do(),
            ok
    end.

%% Of another OTP's Elixir this one could not run the code.
elixir() ->
    case os:find_executable("elixir") of
        false ->
            none;
        _ ->
            Said =
                os:cmd(
                  "LC_ALL=C.UTF-8 elixir -e 'IO.puts(\"dir=\" <> "
                  "to_string(:code.lib_dir(:elixir)))'"),
            case re:run(Said, "dir=(.*)", [{capture, all_but_first, list}]) of
                {match, [Dir]} ->
                    filelib:wildcard(filename:join([filename:dirname(Dir), "*", "ebin"]));
                nomatch -> none
            end
    end.

run_elixir(#{tag := "iex", text := Text, directives := Directives} = Block, Config) ->
    How = case Directives of #{"numbers vary" := _} -> roughly; #{} -> exactly end,
    Sessions = guides:iex_sessions(Text),
    ?assertNotEqual([], Sessions),
    [begin
         Done = fun() ->
                        Value = value(evaluate(Where, iex, Input, Config)),
                        guides:is_inspected(How, named(Output, Config), Value)
                            orelse {Input, {shown, Output}, {is, Value}}
                end,
         case Directives of
             #{"takes a moment" := _} -> cluster:await(Done);
             #{} -> ?assertEqual(true, Done())
         end
     end || {Where, Input, Output} <- Sessions],
    then_run(elixir, Block, Config);
run_elixir(#{text := Text} = Block, Config) ->
    prepare(Block, Config),
    case re:run(Text, "^import Config", [multiline]) of
        nomatch ->
            value(evaluate(a, elixir, Text, Config));
        _ ->
            Value = value(evaluate(a, configuration, Text, Config)),
            ?assertMatch([_ | _], proplists:get_value(trunkline, Value)),
            check_options(proplists:get_value(trunkline, Value), Config)
    end,
    then_run(elixir, Block, Config).

%% --- configurations -----------------------------------------------------------------

%% erl starts with them, and the options are accepted.
arguments(Config) ->
    VmArgs = blocks(Config, ["vm.args"]),
    SysConfigs = blocks(Config, ["sys.config.src"]),
    ?assert(length(VmArgs) > 3),
    ?assert(length(SysConfigs) > 0),
    [try check_options(started_with(Text, Config), Config)
     catch error:Reason -> error({at(B), Reason})
     end || #{text := Text} = B <- VmArgs],
    [begin
         {ok, Tokens, _} = erl_scan:string(substituted(Text)),
         {ok, [{trunkline, Options}]} = erl_parse:parse_term(Tokens),
         check_options(Options, Config)
     end || #{text := Text} <- SysConfigs],
    ok.

started_with(Text, Config) ->
    File = filename:join(?config(priv_dir, Config), "vm.args"),
    ok = file:write_file(File, Text),
    Said = os:cmd("erl -noinput -args_file '" ++ File ++
                  "' -pa '" ++ filename:dirname(code:which(trunkline)) ++
                  "' -eval 'ok = application:load(trunkline), "
                  "io:format(\"options=~w.\", [application:get_all_env(trunkline)]), halt().'"),
    {match, [Options]} = re:run(Said, "options=(.*\\.)", [{capture, all_but_first, list}, dotall]),
    {ok, Tokens, _} = erl_scan:string(Options),
    {ok, Term} = erl_parse:parse_term(Tokens),
    proplists:delete(included_applications, Term).

%% As the release's start script does it.
substituted(Text) ->
    Quoted = re:replace(Text, "\"\\$\\{[A-Z_]+\\}\"", "\"127.0.0.1\"", [global, {return, list}]),
    re:replace(Quoted, "\\$\\{[A-Z_]+\\}", "9100", [global, {return, list}]).

%% There is no parser in OTP. Each line is a key, a pair or an item, indented as the lines around it
%% allow; where Python has a parser it has the last word.
yaml(Config) ->
    Blocks = blocks(Config, ["yaml"]),
    ?assertNotEqual([], Blocks),
    [begin
         Lines = [L || L <- string:split(Text, "\n", all), string:trim(L) =/= "", L =/= "---"],
         ?assertEqual([], [{at(B), L} || L <- Lines,
                                         re:run(L,
                                                "^(?:  )*(?:- )?(?:[A-Za-z][A-Za-z0-9_./-]*:(?: "
                                                ".+)?|[A-Za-z0-9\"].*)$") =:= nomatch]),
         by_python(Text, Config)
     end || #{text := Text} = B <- Blocks],
    ok.

by_python(Text, Config) ->
    File = filename:join(?config(priv_dir, Config), "block.yaml"),
    ok = file:write_file(File, Text),
    case os:cmd("python3 -c 'import yaml' 2>&1") of
        "" ->
            Said =
                os:cmd(
                  "python3 -c 'import yaml, sys; print(all(isinstance(d, dict) for d in "
                  "yaml.safe_load_all(open(sys.argv[1]))))' '" ++ File ++ "' 2>&1"),
            ?assertEqual("True\n", Said);
        _ ->
            no_parser
    end.

%% The shell can read them, and what is made can be made.
shell_commands(Config) ->
    Blocks = blocks(Config, ["sh"]),
    ?assertNotEqual([], Blocks),
    Makefile = read(?config(root, Config), "Makefile"),
    File = filename:join(?config(priv_dir, Config), "block.sh"),
    [begin
         ok = file:write_file(File, Text),
         ?assertEqual({at(B), ""}, {at(B), os:cmd("sh -n '" ++ File ++ "' 2>&1")}),
         [?assert(is_target(Target, Makefile), {at(B), Target})
          || {match, Found} <- [re:run(Text, "\\bmake ([a-z-]+)",
                                       [global, {capture, all_but_first, list}])],
             [Target] <- Found]
     end || #{text := Text} = B <- Blocks],
    ok.

is_target("bench-" ++ Bench, Makefile) ->
    re:run(Makefile, "^BENCHES = .*\\b" ++ Bench ++ "\\b", [multiline]) =/= nomatch;
is_target(Target, Makefile) ->
    re:run(Makefile, "^" ++ Target ++ ":", [multiline]) =/= nomatch.

%% docs/operate/logs.md has each message of the source, and no other.
log(Config) ->
    Lines = [Line || #{page := "docs/operate/logs.md", text := Text} <- blocks(Config, ["log"]),
                     Line <- string:split(string:trim(joined(Text)), "\n", all)],
    Source = fun(File) -> read(?config(root, Config), File) end,
    Formats = [F || F <- formats("\\{", Source("src/trunkline_log.erl")), F =/= ?EXPLAINED]
        ++ [lists:flatten(string:replace(?EXPLAINED, "~ts", F))
            || F <- formats("io_lib:format\\(", Source("src/trunkline_options.erl")),
               string:find(F, "option") =/= nomatch],
    ?assert(length(Formats) >= 12),
    ?assertEqual([], [F || F <- Formats, not lists:any(fun(Line) -> is_of(F, Line) end, Lines)]),
    ?assertEqual([], [Line || Line <- Lines, not lists:any(fun(F) -> is_of(F, Line) end, Formats)]).

%% Two blanks continue a line.
joined(Text) -> replace(Text, "\n  ", " ").

%% Strings in the source behind something, as one.
formats(Behind, Source) ->
    {match, Found} = re:run(Source, Behind ++ "\\s*((?:\"(?:[^\"\\\\]|\\\\.)*\"\\s*)+)",
                            [global, unicode, {capture, all_but_first, list}]),
    [lists:append([S || {string, _, S} <- Tokens])
     || [Strings] <- Found, {ok, Tokens, _} <- [erl_scan:string(Strings)]].

is_of(Format, Line) ->
    Parts = re:split(Format, "~[0-9]*t?[a-zA-Z]", [{return, list}, unicode]),
    Pattern = "^" ++ lists:append(lists:join(".*", [quoted(P) || P <- Parts])) ++ "$",
    re:run(Line, Pattern, [unicode]) =/= nomatch.

quoted(Text) -> re:replace(Text, "[][\\\\.^$*+?(){}|]", "\\\\&", [global, unicode, {return, list}]).
