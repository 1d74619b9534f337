%% The shape of the source: which folder of src/ may call which, that no modules call each other
%% in a circle, and that lines are short. What is allowed all the same stands in `exceptions/0',
%% with the reason.
-module(house_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([folders/1, no_circles/1, short_lines/1]).

-define(COLUMNS, 100).

suite() -> [{timetrap, {minutes, 5}}].

all() -> [folders, no_circles, short_lines].

%% A folder calls those that are named here, and the modules that lie in src/ itself.
may_call(channel) -> [];
may_call(bulk) -> [channel];
may_call(gate) -> [];
may_call(plain) -> [gate, channel];
may_call(lane) -> [plain, gate, bulk, channel];
may_call(request) -> [lane, plain, gate];
may_call(otp) -> [request, lane, plain, api];    % some of them are only names for the API
may_call(inbox) -> [request, lane, gate];
may_call(peer) -> [request, lane, plain, gate, bulk, channel];    % starts and connects all of these
may_call(observe) -> [peer, inbox, gate, channel, api];    % looks at all these, and steers none
may_call(root) -> [];
may_call(api) -> [peer, inbox, otp, request, lane, plain, gate, bulk, channel].

%% These of src/ call the folders. The others are what all folders use.
api() ->
    [trunkline, trunkline_app, trunkline_sup, trunkline_info, trunkline_advise,
     trunkline_compare, trunkline_options, trunkline_errors].

%% {Caller, Called}, both modules.
exceptions() ->
    [%% Both ends of a lane have to know requests. An inlet is the agent of those that it delivers;
     %% what is for an opener may be a function to execute, or an exit signal; and what a lane
     %% leaves behind may be a request whose caller waits.
     {trunkline_inlet, trunkline_agent},
     {trunkline_retired_inlet, trunkline_watched},
     {trunkline_leftovers, trunkline_direct},
     {trunkline_opener, trunkline_executor},
     {trunkline_opener, trunkline_exit},
     %% Large messages have to find their place in the lane.
     {trunkline_dock, trunkline_inlet},
     %% A link says what kind of node it has greeted: one of 0.5.0 is asked for its inboxes.
     {trunkline_link, trunkline_inboxes}].

%% Where no line is longer than ?COLUMNS characters.
short() -> [Folder ++ "/**/*.{erl,hrl}" || Folder <- ["src", "bench", "test", "tools"]].

init_per_suite(Config) ->
    Ebin = filename:dirname(code:which(trunkline)),
    Root = command:root(),
    {ok, _} = xref:start(?MODULE, [{xref_mode, functions}]),
    ok = xref:set_default(?MODULE, [{warnings, false}]),
    {ok, Modules} = xref:add_directory(?MODULE, Ebin),
    {ok, Calls} = xref:q(?MODULE, "E || AM"),
    stopped = xref:stop(?MODULE),
    Edges = lists:usort([{From, To} || {{From, _, _}, {To, _, _}} <- Calls, From =/= To,
                                       lists:member(From, Modules), lists:member(To, Modules)]),
    [{root, Root}, {folders, folders_of(Root)}, {edges, Edges} | Config].

end_per_suite(_) -> ok.

folders(Config) ->
    Folders = ?config(folders, Config),
    Upwards = [Edge || {From, To} = Edge <- ?config(edges, Config),
                       not is_allowed(maps:get(From, Folders), maps:get(To, Folders))],
    ?assertEqual([], Upwards -- exceptions()),
    ?assertEqual({no_longer_needed, []}, {no_longer_needed, exceptions() -- Upwards}).

is_allowed(Folder, Folder) -> true;
is_allowed(_, root) -> true;
is_allowed(From, To) -> lists:member(To, may_call(From)).

no_circles(Config) ->
    Graph = digraph:new(),
    {From, To} = lists:unzip(?config(edges, Config)),
    lists:foreach(fun(Module) -> digraph:add_vertex(Graph, Module) end, From ++ To),
    lists:foreach(fun({A, B}) -> digraph:add_edge(Graph, A, B) end, ?config(edges, Config)),
    Circles = [lists:sort(Circle)
               || Circle <- digraph_utils:strong_components(Graph), length(Circle) > 1],
    ?assertEqual([], Circles).

short_lines(Config) ->
    Root = ?config(root, Config),
    Found = [{Where, filelib:wildcard(Where, Root)} || Where <- short()],
    ?assertEqual({no_such_file, []}, {no_such_file, [Where || {Where, []} <- Found]}),
    ?assertEqual([], [{File, Number} || {_, Files} <- Found, File <- Files,
                                        Number <- long_lines(filename:join(Root, File))]).

%% Their numbers. Characters count, not bytes.
long_lines(File) ->
    {ok, Text} = file:read_file(File),
    Lines = string:split(Text, "\n", all),
    [Number || {Number, Line} <- lists:enumerate(Lines),
               string:length(Line) > ?COLUMNS].

%% The folder of each module: `api' or `root' for those in src/ itself.
folders_of(Root) ->
    Sources = filelib:wildcard("src/**/*.erl", Root),
    maps:from_list([begin
                        Module = list_to_atom(filename:basename(Source, ".erl")),
                        {Module, folder(filename:split(Source), Module)}
                    end || Source <- Sources]).

folder(["src", _], Module) ->
    case lists:member(Module, api()) of
        true -> api;
        false -> root
    end;
folder(["src", Folder, _], _) ->
    list_to_atom(Folder).
