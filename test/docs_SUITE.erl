%% What is documented, and whether it is up to date.
-module(docs_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([options_page/1]).

suite() -> [{timetrap, {minutes, 5}}].

all() -> [options_page].

%% The options' page says what the table in the source says: tools/options does not find anything
%% to change, and finds it when there is something.
options_page(Config) ->
    Root = root(filename:dirname(code:which(?MODULE))),
    Page = filename:join(Root, "docs/operate/configuration.md"),
    ?assertEqual({0, ""}, check(Root, Page)),
    {ok, Text} = file:read_file(Page),
    [?assertNotEqual(nomatch, string:find(Text, ["\n### `", atom_to_list(Name), "`\n"]))
     || Name <- maps:keys(trunkline:options())],
    Old = filename:join(proplists:get_value(priv_dir, Config), "configuration.md"),
    ok = file:write_file(Old, string:replace(Text, "Since: 0.1.0", "Since: 0.1.1")),
    {1, Said} = check(Root, Old),
    ?assertNotEqual(nomatch, string:find(Said, "run make options")).

check(Root, Page) ->
    Port = open_port({spawn_executable, os:find_executable("escript")},
                     [{args, [filename:join(Root, "tools/options"), "--check", Page]}, exit_status, stderr_to_stdout,
                      {env, [{"ERL_LIBS", filename:dirname(code:lib_dir(trunkline))}]}]),
    said(Port, "").

said(Port, Said) ->
    receive
        {Port, {data, Data}} -> said(Port, Said ++ Data);
        {Port, {exit_status, Status}} -> {Status, Said}
    end.

%% Where the makefile is.
root(Dir) ->
    case filelib:is_regular(filename:join(Dir, "Makefile")) of
        true -> Dir;
        false when Dir =/= "/" -> root(filename:dirname(Dir))
    end.
