%% What is documented, and whether it is up to date.
-module(docs_SUITE).

-include_lib("kernel/include/eep48.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([options_page/1, states/1, public/1, internal/1, in_the_shell/1]).

suite() -> [{timetrap, {minutes, 5}}].

all() -> [options_page, states, public, internal, in_the_shell].

%% The options' page says what the table in the source says: tools/options does not find anything
%% to change, and finds it when there is something.
options_page(Config) ->
    Page = filename:join(command:root(), "docs/operate/configuration.md"),
    ?assertEqual({0, ""}, check(Page)),
    {ok, Text} = file:read_file(Page),
    [?assertNotEqual(nomatch, string:find(Text, ["\n### `", atom_to_list(Name), "`\n"]))
     || Name <- maps:keys(trunkline:options())],
    Old = filename:join(proplists:get_value(priv_dir, Config), "configuration.md"),
    ok = file:write_file(Old, string:replace(Text, "Since: 0.1.0", "Since: 0.1.1")),
    {1, Said} = check(Old),
    ?assertNotEqual(nomatch, string:find(Said, "run make options")).

%% Each state that trunkline:info/1 can show is explained, and no other.
states(_) ->
    {ok, Page} = file:read_file(filename:join(command:root(), "docs/operate/observe.md")),
    [_, Section | _] = re:split(Page, "^## States of a peer$|^## Processes$", [multiline]),
    Row = "^\\| `(?!state)([a-z]+)` \\| [^|]+ \\| [^|]+ \\| [^|]+ \\|$",
    {match, Explained} = re:run(Section, Row, [global, multiline, {capture, [1], binary}]),
    ?assertEqual(lists:sort([atom_to_binary(State) || State <- union(trunkline_peers, state)]),
                 lists:sort(lists:append(Explained))),
    #{state := OfInfo} = maps:from_list(fields(trunkline, peer_info)),
    ?assertEqual(lists:sort(union(trunkline_peers, state)), lists:sort(OfInfo)).

%% The atoms of a type that is a union of them.
union(Module, Type) -> atoms(type(Module, Type)).

%% The keys of a type that is a map, each with the atoms of its value, if it is a union of these.
fields(Module, Type) ->
    {type, _, map, Fields} = type(Module, Type),
    [{Key, atoms(Value)} || {type, _, map_field_exact, [{atom, _, Key}, Value]} <- Fields].

atoms({type, _, union, Types}) -> [Atom || {atom, _, Atom} <- Types];
atoms(_) -> [].

type(Module, Name) ->
    {ok, {_, [{abstract_code, {_, Forms}}]}} = beam_lib:chunks(code:which(Module), [abstract_code]),
    [Type] = [Type || {attribute, _, type, {N, Type, []}} <- Forms, N =:= Name],
    Type.

%% What a user calls. All other modules are Trunkline's own.
modules() ->
    [trunkline, trunkline_erpc, trunkline_rpc, trunkline_pg, trunkline_inbox, trunkline_gen,
     trunkline_gen_server, trunkline_gen_statem, trunkline_gen_event, trunkline_transform,
     trunkline_adopt, trunkline_top, trunkline_observer_cli, trunkline_web, trunkline_metrics].

%% Each function and each type that others can use has a text, and says since when it exists;
%% each function has an example.
public(_) ->
    lists:foreach(
      fun(Module) ->
              {ok,
               #docs_v1{format = Format, module_doc = About, metadata = Metadata, docs = Docs}} =
                  code:get_doc(Module),
              ?assertEqual(<<"text/markdown">>, Format),
              ?assertMatch({Module, #{<<"en">> := <<_:50/binary, _/binary>>},
                            #{since := <<_, _/binary>>}}, {Module, About, Metadata}),
              {ok, {_, [{abstract_code, {_, Forms}}]}} =
                  beam_lib:chunks(code:which(Module), [abstract_code]),
              Functions =
                  [{function, F, A} || {F, A} <- Module:module_info(exports), F =/= module_info],
              Types = [{type, T, A} || {attribute, _, export_type, Ts} <- Forms, {T, A} <- Ts],
              ?assertNotEqual([], Functions),
              Documented = maps:from_list([{What, {Text, Since, Signature}}
                                           || {What, _, Signature, #{<<"en">> := Text},
                                               #{since := Since}} <- Docs]),
              ?assertEqual({Module, []}, {Module, (Functions ++ Types) -- maps:keys(Documented)}),
              ?assertEqual({Module, []},
                           {Module,
                            [What || {What, {Text, _, _}} <- maps:to_list(Documented),
                                     byte_size(Text) < 20]}),
              ?assertEqual({Module, []},
                           {Module, [What || {What, {_, Since, _}} <- maps:to_list(Documented),
                                             re:run(Since, "^[01]\\.[0-9]\\.0$") =:= nomatch]}),
              ?assertEqual({Module, []},
                           {Module,
                            [What
                             || {{function, _, _} = What, {Text, _, _}} <- maps:to_list(Documented),
                                string:find(Text, "```erlang\n") =:= nomatch]}),
              ?assertEqual({Module, []},
                           {Module, [What || {What, {_, _, []}} <- maps:to_list(Documented)]})
      end, modules()).

%% The documentation does not show these.
internal(_) ->
    _ = application:load(trunkline),
    {ok, All} = application:get_key(trunkline, modules),
    Own = [M || M <- All -- modules(), lists:prefix("trunkline", atom_to_list(M))],
    ?assert(length(Own) > 40),
    ?assertEqual([], [Module || Module <- Own, not is_hidden(Module)]).

%% Before OTP 27 they have nothing to show but the attribute.
is_hidden(Module) ->
    {ok, #docs_v1{module_doc = About}} = code:get_doc(Module),
    About =:= hidden
        orelse About =:= none
        andalso proplists:get_value(moduledoc, Module:module_info(attributes)) =:= [false].

%% What h/1,2,3 print.
in_the_shell(_) ->
    {ok, Docs} = code:get_doc(trunkline),
    Text = fun(Chars) ->
                   re:replace(unicode:characters_to_list(Chars), "\e\\[[0-9;]*m", "",
                              [global, unicode, {return, list}])
           end,
    lists:foreach(
      fun({Printed, Words}) ->
              [?assertMatch({W, S} when is_list(S), {W, string:find(Text(Printed), W)})
               || W <- Words]
      end,
      [{shell_docs:render(trunkline, Docs),
        ["Messages between Erlang nodes, batched, ordered and bounded."]},
       {shell_docs:render(trunkline, send, Docs),
        ["send(", "Sends a message, as", "nosuspend", "trunkline:send(Pid, {price, 17})."]},
       {shell_docs:render(trunkline, call, 3, Docs), ["call(", "1000", "0.1.0"]},
       {shell_docs:render_type(trunkline, peer_info, Docs), ["peer_info()", "round_trip"]}]).

check(Page) ->
    command:run(command:root(), [{"ERL_LIBS", filename:dirname(code:lib_dir(trunkline))}],
                ["escript", "tools/options", "--check", Page]).
