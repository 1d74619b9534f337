%% For suites that compare one of our modules with the OTP module that it stands in for. The
%% suite starts three nodes: `a', which calls; `plain', without Trunkline; and `lanes', with it. The
%% same test cases run in a group for each node that is called: `a' itself (local), `plain' and
%% `lanes'.
%%
%% What does the same as a function of the module erlang is compared in a table of its own: a
%% node with a lane to the other, and one without.
-module(comparison).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([start/1, stop/1, all/1, init_per_group/2, table/3, outcome/1]).
-export([as_erlang/1, as_erlang_without_trunkline/1, results/4, in_process/1]).

-type ending() :: {ok | throw | error | exit, term()}.
-type row() :: {Name :: term(),
                fun((module(), node()) -> term()),
                Is :: fun((ending()) -> boolean())}.

%% For init_per_suite/1 and end_per_suite/1.
start(Config) ->
    {A, Plain, Lanes} = cluster:with_and_without(),
    [{a, A}, {plain, Plain}, {lanes, Lanes} | Config].

stop(Config) ->
    cluster:stop_all(all(Config)).

all(Config) ->
    [?config(Name, Config) || Name <- [a, plain, lanes]].

%% `there' is the node that the group's cases call.
init_per_group(local, Config) -> [{there, ?config(a, Config)} | Config];
init_per_group(Group, Config) -> [{there, ?config(Group, Config)} | Config].

%% Each row has a name, a fun that calls a module at a node, and a check of how that ends. Both
%% modules must end the same way, and pass the check. Each call runs in a process of its own, and
%% must leave no message behind.
-spec table({Theirs :: module(), Ours :: module()}, Config :: list(), [row()]) -> ok.
table({Theirs, Ours}, Config, Rows) ->
    A = ?config(a, Config),
    Node = cluster:node_of(?config(there, Config)),
    lists:foreach(
      fun({Name, Fun, Is}) ->
              [Expected, Got] = [cluster:call(A, fun() -> run(Fun, Module, Node) end)
                                 || Module <- [Theirs, Ours]],
              ?assertEqual({Name, Expected, []}, {Name, Got, []}),
              {Ending, Left} = Got,
              ?assertEqual({Name, Got, true, []}, {Name, Got, Is(Ending), Left})
      end, Rows).

run(Fun, Module, Node) ->
    {Pid, Ref} = spawn_monitor(fun() ->
                                       Ending = outcome(fun() -> Fun(Module, Node) end),
                                       exit({Ending, element(2, process_info(self(), messages))})
                               end),
    receive {'DOWN', Ref, process, Pid, Result} -> Result end.

%% How a call ends.
-spec outcome(fun(() -> term())) -> ending().
outcome(Fun) ->
    try {ok, Fun()}
    catch Class:Reason -> {Class, Reason}
    end.

%% --- beside the module erlang ---------------------------------------------------------

%% Suite:table(Module, Node) runs at the first node, and answers results/4.
as_erlang(Suite) ->
    {A, B} = cluster:pair([]),
    same_table(Suite, A, B),
    ?assertMatch(#{fallbacks := 0}, cluster:info(A, B)),
    cluster:stop_all([A, B]).

as_erlang_without_trunkline(Suite) ->
    [A, B] = cluster:start_all([[], none]),
    cluster:connect(A, B),
    same_table(Suite, A, B),
    cluster:stop_all([A, B]).

same_table(Suite, A, B) ->
    [Erlang, Ours] =
        [cluster:call(A, Suite, table, [M, cluster:node_of(B)]) || M <- [erlang, trunkline]],
    ?assertEqual(length(Erlang), length(Ours)),
    lists:foreach(fun({Expected, Got}) -> ?assertEqual(Expected, Got) end, lists:zip(Erlang, Ours)).

%% Every case with this module's functions, [{Name, Result}].
results(M, Node, Cases, LocalCases) ->
    [{{Name, Place}, in_process(fun() -> Case(M, At) end)}
     || {Place, At} <- [{there, Node}, {here, node()}], {Name, Case} <- Cases]
        ++ [{{local, Name}, in_process(fun() -> Case(M) end)} || {Name, Case} <- LocalCases].

in_process(Fun) ->
    {_, Ref} = spawn_monitor(fun() -> exit({result, Fun()}) end),
    receive {'DOWN', Ref, process, _, {result, Result}} -> Result;
            {'DOWN', Ref, process, _, Reason} -> {crash, Reason} end.
