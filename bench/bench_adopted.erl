%% Two nodes that run what others wrote, as it is and adopted. Each variant has nodes of its own,
%% which run all the time, so that they can be measured in turn.
-module(bench_adopted).

-export([variants/0, start/3, await/2, call/4, stop/1]).
-export([measure/3, with_cost/3, results/1]).

-export_type([variant/0, started/0]).

-type variant() :: stock | adopted.
-type started() :: #{variant := variant(), peer := pid(), node := node(), name := atom(),
                     pid := string()}.                  % of the operating system

-define(DEADLINE, 60_000).

-spec variants() -> [variant()].
variants() -> [stock, adopted].

%% Trunkline runs where these applications are adopted. (Not all nodes connect with all others: the
%% variants must not meet.)
-spec start(variant(), Name, [trunkline_adopt:name()]) -> started() when Name :: atom().
start(Variant, Name, Adopt) ->
    {ok, Peer, Node} =
        peer:start(#{name => Name, connection => standard_io, shutdown => halt,
                     args => ["-connect_all", "false", "-setcookie",
                              atom_to_list(erlang:get_cookie()), "-pa"]
                     ++ code:get_path()
                     ++ [Arg || adopted <- [Variant],
                                Arg <- ["-trunkline", "adopt",
                                        lists:flatten(io_lib:format("~w", [Adopt]))]]}),
    Started = #{variant => Variant, peer => Peer, node => Node, name => Name,
                pid => peer:call(Peer, os, getpid, [])},
    ok = call(Started, bench, log_briefly, []),
    ok = call(Started, logger, set_primary_config, [level, error]),
    Variant =:= adopted
        andalso ({ok, _} = call(Started, application, ensure_all_started, [trunkline])),
    Started.

%% Two nodes that are connected: where Trunkline runs it is up, and all is adopted.
-spec await(started(), started()) -> ok.
await(#{variant := stock}, _) ->
    ok;
await(#{node := NodeA} = A, #{node := NodeB} = B) ->
    ok = call(A, trunkline, await_up, [NodeB, ?DEADLINE]),
    ok = call(B, trunkline, await_up, [NodeA, ?DEADLINE]),
    #{problems := None, nodes := #{NodeB := same}} = call(A, trunkline_adopt, check, []),
    0 = map_size(None),
    ok.

-spec call(started(), module(), atom(), [term()]) -> term().
call(#{peer := Peer}, M, F, Args) -> peer:call(Peer, M, F, Args, ?DEADLINE).

-spec stop(started()) -> ok.
stop(#{peer := Peer}) -> peer:stop(Peer).

%% --- figures ------------------------------------------------------------------

%% Rate does so many operations between the two nodes, or about so many, with_cost/3.
-spec measure(Case :: string(), Rate, [{variant(), [started()]}]) -> {string(), bench:figures()}
              when Rate :: fun((pos_integer(), [started()]) -> [number()]).
measure(Case, Rate, Pairs) ->
    bench:a_case(Case, units(), [stock], [{Variant, bench:sized(fun(N) -> Rate(N, Pair) end)}
                                          || {Variant, Pair} <- Pairs]).

%% Load does exactly so many, and answers as bench:calls/3 does. In the order of units/0.
-spec with_cost(Load, pos_integer(), [started()]) -> [number()] when Load :: fun(() -> [number()]).
with_cost(Load, N, Pair) ->
    Before = used(Pair),
    [Rate | Latencies] = Load(),
    [Rate, (used(Pair) - Before) / N | Latencies].

used(Pair) -> bench:used([Pid || #{pid := Pid} <- Pair]).

units() -> ["operations/s", "us of CPU", "us p50", "us p99"].

%% For bench:finish/3.
-spec results([{Case :: string(), bench:figures()}]) -> [{Unit :: string(), [bench:result()]}].
results(Cases) -> bench:results(units(), Cases).
