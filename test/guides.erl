%% The code blocks of README.md and docs/: extracted, and run as they stand.
%%
%% A block says by its tag what it is:
%%
%%     erl              a shell session: (a@host)1> Expression. and what the shell says
%%     erlang           a module, functions, attributes, expressions, or a configuration
%%     elixir           anything that Elixir can evaluate; with `import Config' a configuration
%%     iex              a session of its shell: iex(a@host)1> expression
%%     vm.args, sys.config.src, yaml, sh
%%     log              lines as the log has them; two blanks continue a line
%%     text             no code
%%
%% A comment right before a block may add what readers need not see. Several directives are
%% separated by `; then ':
%%
%%     <!-- not run: why -->             the reason, for people
%%     <!-- numbers vary -->             figures in the answers are examples
%%     <!-- values vary -->              so is all but the keys of maps
%%     <!-- takes a moment -->           the answers are not there at once
%%     <!-- with: X = 1, Y = 2 -->       bindings, beside the usual ones (usual/0)
%%     <!-- compile with: transform -->  a parse transform
%%     <!-- run: Expression -->          afterwards, at a
%%
%% a@host and b@host are two connected nodes with Trunkline. A page is a session: its modules,
%% its names and, in shell sessions, its variables last until the page ends.
-module(guides).

-export([pages/1, blocks/1, headings/1, links/1]).
-export([iex_sessions/1, is_inspected/3, is_session/1, sessions/1, like/2, as_term/2,
         session_input/1]).
-export([start_session/1, end_session/0, evaluate/3, load/3, usual/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-type block() ::
          #{page := file:filename(), line := pos_integer(), tag := string(), text := string(),
            directives := #{string() => string()}}.
-export_type([block/0]).

%% --- pages -------------------------------------------------------------------

%% README.md and all pages of docs/.
-spec pages(file:filename()) -> [file:filename()].
pages(Root) ->
    ["README.md"
     | lists:sort(["docs/" ++ F || F <- filelib:wildcard("**/*.md", filename:join(Root, "docs"))])].

%% In their order.
-spec blocks(string()) -> [block()].
blocks(Text) ->
    blocks(string:split(Text, "\n", all), 1, "", []).

blocks(["```" ++ Tag | Lines], N, Before, Blocks) ->
    {Code, [_ | Rest]} =
        lists:splitwith(fun(Line) -> string:trim(Line, trailing) =/= "```" end, Lines),
    Block = #{line => N, tag => string:trim(Tag),
              text => lists:append([Line ++ "\n" || Line <- Code]),
              directives => directives(Before)},
    blocks(Rest, N + length(Code) + 2, "", [Block | Blocks]);
blocks(["" | Lines], N, Before, Blocks) ->
    blocks(Lines, N + 1, Before, Blocks);
blocks(["<!--" ++ _ = Line | Lines], N, _, Blocks) ->
    {Comment, Rest} = comment(Line, Lines),
    blocks(Rest, N + 1 + length(Lines) - length(Rest), Comment, Blocks);
blocks([_ | Lines], N, _, Blocks) ->
    blocks(Lines, N + 1, "", Blocks);
blocks([], _, _, Blocks) ->
    lists:reverse(Blocks).

comment(Sofar, Lines) ->
    case {string:find(Sofar, "-->"), Lines} of
        {nomatch, [Line | Rest]} -> comment(Sofar ++ " " ++ Line, Rest);
        _ -> {Sofar, Lines}
    end.

directives("") ->
    #{};
directives(Comment) ->
    {match, [Inner]} =
        re:run(Comment, "<!--(.*)-->", [{capture, all_but_first, list}, dotall, unicode]),
    maps:from_list([case string:split(string:trim(D), ":") of
                        [Key, Value] -> {Key, string:trim(Value)};
                        [Key] -> {Key, ""}
                    end || D <- string:split(Inner, "; then ", all)]).

%% As GitHub and mkdocs name them.
-spec headings(string()) -> [string()].
headings(Text) ->
    Lines = string:split(without_code(Text), "\n", all),
    [anchor(Heading) || "#" ++ _ = Line <- Lines, Heading <- [string:trim(Line, leading, "# ")]].

anchor(Heading) ->
    Kept = [C || C <- string:lowercase(Heading), C =:= $  orelse C =:= $- orelse C =:= $_ orelse
                     (C >= $a andalso C =< $z) orelse (C >= $0 andalso C =< $9)],
    [case C of $  -> $-; _ -> C end || C <- string:trim(Kept)].

-spec links(string()) -> [string()].
links(Text) ->
    Found = [re:run(without_code(Text), Link, [global, {capture, all_but_first, list}, unicode])
             || Link <- ["\\]\\(([^)\\s]+)\\)", "(?:src|href)=\"([^\"]+)\""]],
    [Target || {match, Matches} <- Found, [Target] <- Matches].

without_code(Text) ->
    re:replace(Text, "^```.*?^```", "", [global, multiline, dotall, unicode, {return, list}]).

%% --- shell sessions --------------------------------------------------------------

%% The same of iex: a line, and those that go on with ...(a@host)1>
-spec iex_sessions(string()) -> [{a | b, string(), string()}].
iex_sessions(Text) ->
    [begin
         {match, [Where, Input, Output]} = re:run(Part,
                                                  "^iex\\(([ab])@host\\)\\d+> "
                                                  "(.*(?:\n\\.\\.\\.\\(.*)*)((?s:.*))$",
                                                  [unicode, {capture, all_but_first, list}]),
         Plain = re:replace(Input, "^\\.\\.\\.\\([ab]@host\\)\\d+> ", "",
                            [multiline, global, unicode, {return, list}]),
         {list_to_atom(Where), Plain, Output}
     end || Part <- re:split(Text, "^(?=iex\\()", [multiline, unicode, {return, list}]),
            string:trim(Part) =/= ""].

%% Whether what iex shows is like this.
-spec is_inspected(exactly | roughly, Shown :: string(), string()) -> boolean().
is_inspected(How, Shown, Inspected) ->
    [S, I] = [begin
                  Pids = re:replace(T, "#([A-Z][A-Za-z]*)<[^>]*>", "#\\1<>",
                                    [global, unicode, {return, list}]),
                  Figures = case How of
                                exactly -> Pids;
                                roughly ->
                                    re:replace(Pids, "[0-9][0-9._]*", "0", [global, {return, list}])
                            end,
                  string:trim(re:replace(Figures, "\\s+", " ", [global, unicode, {return, list}]))
              end || T <- [Shown, Inspected]],
    Parts = [re:replace(Part, "[][\\\\.^$*+?(){}|]", "\\\\&", [global, unicode, {return, list}])
             || Part <- string:split(S, "...", all)],
    re:run(I, "^" ++ lists:append(lists:join(".*", Parts)) ++ "$", [unicode]) =/= nomatch.

-spec is_session(string()) -> boolean().
is_session(Text) -> re:run(Text, "^(?:\\([ab]@host\\))?\\d+> ", [unicode]) =/= nomatch.

%% [{Where, Input, ExpectedOutput}]
-spec sessions(string()) -> [{a | b, string(), string()}].
sessions(Text) ->
    [session(Part)
     || Part <- re:split(Text, "^(?=(?:\\([ab]@host\\))?\\d+> )",
                         [multiline, unicode, {return, list}]),
                      string:trim(Part) =/= ""].

session(Part) ->
    {match, [Where, Rest]} = re:run(Part, "^(?:\\(([ab])@host\\))?\\d+> (.*)$",
                                    [dotall, unicode, {capture, all_but_first, list}]),
    {Input, Output} = session_input(Rest),
    {case Where of "b" -> b; _ -> a end, Input, Output}.

%% The input ends with the dot that ends the expressions.
-spec session_input(string()) -> {string(), string()}.
session_input(Text) ->
    {done, {ok, Tokens, _}, Rest} = erl_scan:tokens([], Text, {1, 1}),
    {dot, {Line, Column}} = lists:last(Tokens),
    Lines = string:split(Text, "\n", all),
    {Before, [Last | _]} = lists:split(Line - 1, Lines),
    {lists:append([L ++ "\n" || L <- Before]) ++ lists:sublist(Last, Column), Rest}.

%% What the shell shows as a term; processes and the like become atoms, as does `...'.
-spec as_term(string(), Default) -> term() | Default.
as_term(Shown, Default) ->
    Readable = lists:foldl(fun({From, To}, Text) ->
                                   re:replace(Text, From, To, [global, unicode, {return, list}])
                           end, Shown,
                           [{"<\\d+\\.\\d+\\.\\d+>", "'$pid'"}, {"#Port<[^>]*>", "'$port'"},
                            {"#Ref<[^>]*>", "'$ref'"}, {"#Fun<[^>]*>", "'$fun'"},
                            {"\\.\\.\\.", "'$any'"}]),
    case erl_scan:string(Readable ++ " .") of
        {ok, Tokens, _} ->
            case erl_parse:parse_term(Tokens) of
                {ok, Term} -> Term;
                {error, _} -> Default
            end;
        {error, _, _} ->
            Default
    end.

%% Whether a value is like the one that is shown.
-spec like({exactly | roughly | keys, Shown :: term()}, term()) -> boolean().
like({_, '$any'}, _) -> true;
like({_, ['$any']}, Value) -> is_list(Value);
like({_, '$pid'}, Value) -> is_pid(Value);
like({_, '$port'}, Value) -> is_port(Value);
like({_, '$ref'}, Value) -> is_reference(Value);
like({_, '$fun'}, Value) -> is_function(Value);
like({roughly, Shown}, Value) when is_number(Shown), is_number(Value) -> true;
like({How, Shown}, Value) when is_map(Shown), is_map(Value) ->
    lists:sort(maps:keys(Shown)) =:= lists:sort(maps:keys(Value))
        andalso lists:all(fun(Key) -> like({How, maps:get(Key, Shown)}, maps:get(Key, Value)) end,
                          maps:keys(Shown));
like({keys, Shown}, Value) when not is_map(Shown), not is_map(Value) ->
    true;
like({How, Shown}, Value)
  when is_tuple(Shown), is_tuple(Value), tuple_size(Shown) =:= tuple_size(Value) ->
    lists:all(fun({S, V}) -> like({How, S}, V) end,
              lists:zip(tuple_to_list(Shown), tuple_to_list(Value)));
like({How, [_ | _] = Shown}, [_ | _] = Value) ->
    (How =:= roughly andalso io_lib:printable_unicode_list(Shown)
         andalso io_lib:printable_unicode_list(Value))
        orelse (length(Shown) =:= length(Value)
                andalso lists:all(fun({S, V}) -> like({How, S}, V) end, lists:zip(Shown, Value)));
like({_, Shown}, Value) ->
    Shown =:= Value.

%% --- at the nodes ----------------------------------------------------------------

%% The process in which a page's expressions are evaluated at a node, so that its messages are its
%% own.
-spec start_session(#{atom() => term()}) -> ok.
start_session(Usual) ->
    Names = registered(),
    Starter = self(),
    {Pid, Ref} = spawn_monitor(
                   fun() ->
                           register(?MODULE, self()),
                           group_leader(spawn_link(fun() -> output([]) end), self()),
                           Starter ! {started, self()},
                           session_loop(
                             #{usual => Usual, names => Names, variables => [], iex => []})
                   end),
    receive {started, Pid} -> demonitor(Ref, [flush]), ok;
            {'DOWN', Ref, process, Pid, Reason} -> error(Reason)
    end.

session_loop(S) ->
    receive
        {evaluate, From, Ref, Kind, Text} ->
            group_leader() ! forget,
            {Answer, S1} = try evaluated(Kind, Text, S)
                           catch Class:Reason:Stack -> {{Class, Reason, Stack}, S}
                           end,
            From ! {Ref, Answer, said()},
            session_loop(S1);
        {end_session, From, Ref} ->
            From ! {Ref, maps:get(names, S)}
    end.

%% What is still registered of what the page has registered ends with it.
-spec end_session() -> ok.
end_session() ->
    Ref = monitor(process, ?MODULE),
    ?MODULE ! {end_session, self(), Ref},
    Names = receive {Ref, N} -> N; {'DOWN', Ref, process, _, Reason} -> error(Reason) end,
    receive {'DOWN', Ref, process, _, _} -> ok end,
    _ = [exit(Pid, kill) || Name <- registered() -- Names, Pid <- [whereis(Name)], is_pid(Pid)],
    ok.

%% {ok, Value} or {Class, Reason, Stack}; and what was printed.
-spec evaluate(shell | erlang | elixir | iex | configuration | usual, string(), timeout()) ->
          {{ok, term()} | {error | exit | throw, term(), term()}, string()}.
evaluate(Kind, Text, Timeout) ->
    Ref = monitor(process, ?MODULE),
    ?MODULE ! {evaluate, self(), Ref, Kind, Text},
    receive
        {Ref, Answer, Said} -> demonitor(Ref, [flush]), {Answer, Said};
        {'DOWN', Ref, process, _, Reason} -> {{exit, Reason, []}, ""}
    after Timeout ->
            error({timeout, Text, process_info(whereis(?MODULE), [current_stacktrace, messages])})
    end.

evaluated(shell, Text, #{variables := Variables} = S) ->
    {value, Value, Variables1} = erl_eval:exprs(parsed(Text), Variables),
    {{ok, Value}, S#{variables := Variables1}};
%% More bindings for the next block.
evaluated(usual, Text, #{usual := Usual} = S) ->
    {value, _, Bindings} = erl_eval:exprs(parsed(Text), []),
    {{ok, maps:from_list(Bindings)}, S#{usual := maps:merge(Usual, maps:from_list(Bindings))}};
evaluated(erlang, Text, #{usual := Usual} = S) ->
    {{ok, [begin
               Bound = [{Name, maps:get(Name, Usual)} || Name <- unbound(Exprs)],
               {value, Value, _} = erl_eval:exprs(Exprs, Bound),
               Value
           end || Exprs <- all_parsed(Text)]}, S};
evaluated(elixir, Text, #{usual := Usual} = S) ->
    Bindings = [{list_to_atom(string:lowercase(atom_to_list(Name))), Value}
                || {Name, Value} <- maps:to_list(Usual)],
    {Value, _} = 'Elixir.Code':eval_string(unicode:characters_to_binary(Text), Bindings),
    {{ok, Value}, S};
evaluated(iex, Text, #{iex := Variables} = S) ->
    {Value, Variables1} = 'Elixir.Code':eval_string(unicode:characters_to_binary(Text), Variables),
    {{ok, unicode:characters_to_list('Elixir.Kernel':inspect(Value))}, S#{iex := Variables1}};
evaluated(configuration, Text, S) ->
    {{ok,
      'Elixir.Config.Reader':'eval!'(<<"runtime.exs">>, unicode:characters_to_binary(Text))}, S}.

parsed(Text) ->
    [Exprs] = all_parsed(Text),
    Exprs.

all_parsed(Text) ->
    case erl_scan:tokens([], Text ++ "\n", 1) of
        {done, {ok, Tokens, _}, Rest} ->
            {ok, Exprs} = erl_parse:parse_exprs(Tokens),
            [Exprs | all_parsed(Rest)];
        _ ->
            {ok, [], _} = erl_scan:string(Text),       % nothing is left
            []
    end.

%% Variables that the reader has in mind, such as Pid.
unbound(Exprs) ->
    Forms = [{attribute, 1, module, guide}, {function, 1, f, 0, [{clause, 1, [], [], Exprs}]}],
    Errors = case erl_lint:module(Forms, "guide", []) of
                 {error, [{_, E}], _} -> E;
                 _ -> []
             end,
    lists:usort([Name || {_, erl_lint, {unbound_var, Name}} <- Errors]
                ++ [Name || {_, erl_lint, {unbound_var, Name, _}} <- Errors]).

-spec load(module(), file:filename(), binary()) -> ok.
load(Module, File, Beam) ->
    _ = code:purge(Module),
    {module, Module} = code:load_binary(Module, File, Beam),
    ok.

%% What the usual variables are, to be used at another node. Runs at b.
-spec usual() -> #{atom() => term()}.
usual() ->
    {ok, Server} = gen_server:start({local, guide_server}, ?MODULE, [], []),
    _ = pg:start(pg),
    Pids = [spawn(fun sink/0) || _ <- lists:seq(1, 3)],
    ok = pg:join(guide_group, Pids),
    #{'Node' => node(), 'Server' => Server, 'Name' => guide_server, 'Request' => {get, 1},
      'Message' => {hello, 1},
      'Pid' => hd(Pids), 'Pids' => Pids, 'Group' => guide_group}.

sink() -> receive _ -> sink() end.

%% A server that has an answer to everything.
init([]) -> {ok, []}.
handle_call(_, _, S) -> {reply, ok, S}.
handle_cast(_, S) -> {noreply, S}.
handle_info(_, S) -> {noreply, S}.

%% --- what is printed --------------------------------------------------------------

said() ->
    group_leader() ! {said, self()},
    receive {group_leader_said, Text} -> Text end.

output(Said) ->
    receive
        {io_request, From, As, Request} ->
            {Answer, More} = printed(Request),
            From ! {io_reply, As, Answer},
            output([Said, More]);
        forget -> output([]);
        {said, To} -> To ! {group_leader_said, unicode:characters_to_list(Said)}, output(Said)
    end.

printed({put_chars, _, Text}) -> {ok, Text};
printed({put_chars, _, M, F, A}) -> {ok, apply(M, F, A)};
printed({requests, Requests}) -> {ok, [element(2, printed(R)) || R <- Requests]};
printed(getopts) -> {[], []};
printed({get_geometry, _}) -> {{error, enotsup}, []};
printed(_) -> {{error, request}, []}.
