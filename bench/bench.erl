%% What all benchmarks share: a second real node, variants measured in turn, a
%% table for people, and one JSON object for programs as the last line.
%%
%% The machine is noisy, so that no figure stands alone: every round measures
%% each variant once, one after the other (A B C, C B A, A B C ...), and what counts
%% is the median over the rounds and the ratio of medians of the same run. Every second
%% round goes backwards, because a variant may find what the one before it has left
%% behind: memory, say, that is fresh or not.
%%
%% In the environment, ROUNDS is how many rounds there are, and SECONDS how long
%% one measurement takes, more or less.
-module(bench).

-export([run/1, rounds/0, seconds/0, in_turn/1, in_turn/2, all_in_turn/1, all_in_turn/3]).
-export([sized/1, sized/2]).
-export([start_peer/1, stop_peer/1, await_up/2, lanes_on/2, bulk_on/2, resume_for/2, tune/2]).
-export([poll/2, set_socket/2, collect_garbage/0, collect_garbage/1]).
-export([processors/1, used/1, log_briefly/0]).
-export([callers/0, callers/4, calls/3]).
-export([a_case/4, tables/4, by_unit/2, results/2]).
-export([median/1, percentile/2, ratio/3, target/4, targets/2, say/2, table/3, overview/1,
         finish/3, number/1]).

-export_type([variant/0, result/0, figures/0, target/0]).

-type variant() :: atom().
%% Of one case: what was measured of each variant, a value a round.
-type result() :: {Case :: string(), [{variant(), [number()]}]}.
%% The same in each of several units.
-type figures() :: #{Unit :: string() => [{variant(), [number()]}]}.
-type target() :: #{name := string(), at_least | at_most := number(), measured := number()}.

%% OTP's defaults for inet:setopts/2 of what Trunkline sets: bytes.
-define(DEFAULTS, [{buffer, 1460}, {high_watermark, 8192}, {low_watermark, 4096}]).
%% However long they take.
-define(LEAST_ROUNDS, 5).
%% Of a term in the log.
-define(DEPTH, 50).
%% For lanes to open, ms.
-define(UP, 10_000).

%% Runs a benchmark and ends the node; an error makes the command fail. In a
%% process of its own: the one that -s gives us traps exits, and every process that
%% a benchmark starts would leave a message in its mailbox.
-spec run(fun(() -> ok)) -> no_return().
run(Fun) ->
    ok = log_briefly(),
    {Pid, Ref} = spawn_monitor(Fun),
    receive
        {'DOWN', Ref, process, Pid, normal} ->
            erlang:halt(0);
        {'DOWN', Ref, process, Pid, Reason} ->
            io:format(standard_error, "~nfailed: ~tP~n", [Reason, ?DEPTH]),
            erlang:halt(1)
    end.

%% Warnings and errors only, and no message of 10 MB in any of them.
-spec log_briefly() -> ok.
log_briefly() ->
    ok = logger:set_primary_config(level, warning),
    ok = logger:update_formatter_config(default, depth, ?DEPTH).

-spec rounds() -> pos_integer().
rounds() -> round(env("ROUNDS", 5)).

-spec seconds() -> number().
seconds() -> env("SECONDS", 0.7).

env(Name, Default) ->
    case os:getenv(Name) of
        false -> Default;
        Value -> try list_to_float(Value) catch error:badarg -> list_to_integer(Value) end
    end.

%% Measures each variant once a round. The first round does not count: code is
%% loaded, atoms get into the distribution's cache, memory is allocated.
-spec in_turn([{variant(), fun(() -> T)}]) -> [{variant(), [T]}].
in_turn(Variants) -> in_turn(rounds(), Variants).

%% The same in so many rounds.
-spec in_turn(pos_integer(), [{variant(), fun(() -> T)}]) -> [{variant(), [T]}].
in_turn(Rounds, Variants) ->
    _ = [F() || {_, F} <- Variants],
    all_in_turn(Rounds, infinity, Variants).

%% The same, where each measurement has a first time of its own that does not count.
-spec all_in_turn([{variant(), fun(() -> T)}]) -> [{variant(), [T]}].
all_in_turn(Variants) -> all_in_turn(rounds(), infinity, Variants).

%% The same, but after five rounds none begins later than so many seconds after the first.
-spec all_in_turn(pos_integer(), number() | infinity, [{variant(), fun(() -> T)}]) ->
          [{variant(), [T]}].
all_in_turn(Rounds, Seconds, Variants) ->
    Until = case Seconds of
                infinity -> infinity;            % later than any time
                _ -> erlang:monotonic_time(millisecond) + round(1000 * Seconds)
            end,
    Measured = round_by_round(1, Rounds, Until, Variants),
    [{Variant, [V || {V1, V} <- Measured, V1 =:= Variant]} || {Variant, _} <- Variants].

round_by_round(Round, Rounds, Until, Variants) ->
    case Round > Rounds
        orelse Round > ?LEAST_ROUNDS andalso erlang:monotonic_time(millisecond) >= Until of
        true ->
            [];
        false ->
            Measured = [{Variant, F()} || {Variant, F} <- in_order(Round, Variants)],
            Measured ++ round_by_round(Round + 1, Rounds, Until, Variants)
    end.

in_order(Round, Variants) when Round rem 2 =:= 1 -> Variants;
in_order(_, Variants) -> lists:reverse(Variants).

%% Turns a measurement of N things, which answers how many there were a second
%% (or a list that starts with it), into one with an N that takes as long as it
%% should, found once.
-spec sized(fun((pos_integer()) -> Figures)) -> fun(() -> Figures)
          when Figures :: number() | [number()].
sized(Measure) ->
    PerSecond = case Measure(5000) of
                    [Rate | _] -> Rate;
                    Rate -> Rate
                end,
    N = max(1000, round(PerSecond * seconds())),
    fun() -> Measure(N) end.

%% The same for things of any size: begins with First of them, and takes more until that takes long
%% enough to tell how many it should be.
-spec sized(fun((pos_integer()) -> Figures), pos_integer()) -> fun(() -> Figures)
          when Figures :: [number()].
sized(Measure, First) ->
    [Rate | _] = Measure(First),
    case First / Rate < seconds() / 8 of
        true ->
            sized(Measure, 8 * First);
        false ->
            N = max(1, round(Rate * seconds())),
            fun() -> Measure(N) end
    end.

%% --- nodes --------------------------------------------------------------------

%% A second node, with the same code, connected; with Trunkline up on both.
-spec start_peer([string()]) -> {pid(), node()}.
start_peer(Args) ->
    {ok, Peer, Node} =
        peer:start_link(#{name => peer:random_name(trunkline_bench),
                          connection => standard_io,
                          args => ["-setcookie", atom_to_list(erlang:get_cookie()), "-pa"]
                          ++ code:get_path() ++ Args}),
    true = net_kernel:connect_node(Node),
    ok = erpc:call(Node, ?MODULE, log_briefly, []),
    {ok, _} = application:ensure_all_started(trunkline),
    {ok, _} = erpc:call(Node, application, ensure_all_started, [trunkline]),
    ok = await_up(node(), Node),
    {Peer, Node}.

%% Waits until Trunkline is up between two nodes, at both of them.
-spec await_up(node(), node()) -> ok.
await_up(A, B) ->
    ok = erpc:call(A, trunkline, await_up, [B, ?UP]),
    ok = erpc:call(B, trunkline, await_up, [A, ?UP]).

%% Trunkline says goodbye first, and so has nothing to report as lost.
-spec stop_peer({pid(), node()}) -> ok.
stop_peer({Peer, Node}) ->
    ok = erpc:call(Node, application, stop, [trunkline]),
    peer:stop(Peer).

%% Lets this node's lanes to Node use that transport from now on.
-spec lanes_on(dist | tcp, node()) -> ok.
lanes_on(Transport, Node) ->
    case restart_with(lane_transport, Transport, dist, Node) of
        unchanged -> ok;
        ok -> poll(fun() -> are_on(Transport, Node) end, 5000)
    end.

are_on(Transport, Node) ->
    #{batches := #{by := By}} = trunkline:info(Node),
    (By =:= connections) =:= (Transport =/= dist).

%% Waits until it is so, for so many ms at most.
-spec poll(fun(() -> boolean()), pos_integer()) -> ok.
poll(IsSo, Time) ->
    poll_until(IsSo, erlang:monotonic_time(millisecond) + Time).

poll_until(IsSo, Deadline) ->
    case IsSo() of
        true ->
            ok;
        false ->
            true = erlang:monotonic_time(millisecond) < Deadline,
            receive after 10 -> poll_until(IsSo, Deadline) end
    end.

%% The same for this node's large messages.
-spec bulk_on(auto | dist, node()) -> ok.
bulk_on(Transport, Node) ->
    _ = restart_with(bulk_transport, Transport, auto, Node),
    ok.

%% Lets sessions outlive their connection for so long (ms), or as long as that node does.
-spec resume_for(non_neg_integer(), node()) -> ok.
resume_for(Time, Node) ->
    _ = restart_with(resume_time, Time, 0, Node),
    ok.

restart_with(Option, Value, Default, Node) ->
    case application:get_env(trunkline, Option, Default) of
        Value ->
            unchanged;
        _ ->
            ok = logger:set_primary_config(level, none),       % "stopped"
            ok = application:stop(trunkline),
            log_briefly(),
            ok = application:set_env(trunkline, Option, Value),
            ok = application:start(trunkline),
            await_up(node(), Node)
    end.

%% Gives both sockets of the connection to Node what the variant has: those of plain distribution
%% have OTP's buffer, and not Trunkline's.
-spec tune(node(), variant()) -> ok.
tune(Node, Variant) ->
    ok = set_socket(Node, Variant),
    ok = erpc:call(Node, ?MODULE, set_socket, [node(), Variant]).

-spec set_socket(node(), variant()) -> ok.
set_socket(Node, Variant) ->
    {Node, Socket} = lists:keyfind(Node, 1, erlang:system_info(dist_ctrl)),
    ok = inet:setopts(Socket, [{delay_send, Variant =:= tuned} | ?DEFAULTS]),
    is_plain(Variant) orelse trunkline_socket:tune_distribution(Node),
    ok.

is_plain(Variant) ->
    lists:member(Variant, [stock, again, tuned, stock_bbr, rpc, relay, sketch, qr]).

%% In every process of these nodes, so that no measurement pays for the large
%% binaries of the one before.
-spec collect_garbage([node()]) -> ok.
collect_garbage(Nodes) ->
    lists:foreach(fun(Node) -> erpc:call(Node, ?MODULE, collect_garbage, []) end, Nodes).

-spec collect_garbage() -> ok.
collect_garbage() ->
    lists:foreach(fun erlang:garbage_collect/1, processes()).

%% us of processor time that both nodes have used so far.
-spec processors(node()) -> non_neg_integer().
processors(Node) -> used([os:getpid(), erpc:call(Node, os, getpid, [])]).

%% The same of these processes of the operating system. The kernel counts the nanoseconds of each
%% thread. (What it says of the whole process is in ticks of 10 ms. Another process reads it, so
%% that this one does not count the time for that.)
-spec used(Pids :: [string()]) -> non_neg_integer().
used(Pids) ->
    Files = [["/proc/", Pid, "/task/*/schedstat "] || Pid <- Pids],
    Threads = os:cmd(lists:flatten(["cat ", Files, "2> /dev/null"])),
    lists:sum([nanoseconds(Thread) || Thread <- string:lexemes(Threads, "\n")]) div 1000.

nanoseconds(Thread) ->
    [Running, _Waiting, _Switches] = string:lexemes(Thread, " "),
    list_to_integer(Running).

%% --- calls --------------------------------------------------------------------

%% How many at a time.
-spec callers() -> [pos_integer()].
callers() ->
    case os:getenv("CALLERS") of
        false -> [1, 10, 100, 1000];
        Callers -> [list_to_integer(C) || C <- string:lexemes(Callers, " ")]
    end.

%% A variant of that: in turn with others, as many calls as take long enough.
-spec callers(variant(), node(), pos_integer(), fun((pos_integer(), N) -> N)) ->
          {variant(), fun(() -> [number()])}.
callers(Variant, Node, Callers, Call) ->
    {Variant, sized(fun(Calls) ->
                            tune(Node, Variant),
                            calls(Callers, max(20, Calls div Callers), Call)
                    end)}.

%% So many callers make so many calls each, one after the other. Call gets the number of the caller
%% and that of the call, which it must answer. [calls a second, p50 in us, p99 in us]
-spec calls(pos_integer(), pos_integer(), fun((pos_integer(), N) -> N)) -> [number()].
calls(Callers, Each, Call) ->
    Self = self(),
    Pids = [spawn_link(fun() ->
                               receive go -> ok end,
                               Self ! {self(), caller(fun(N) -> Call(I, N) end, Each, [])}
                       end) || I <- lists:seq(1, Callers)],
    T0 = erlang:monotonic_time(),
    _ = [P ! go || P <- Pids],
    Latencies = lists:append([receive {P, Ls} -> Ls end || P <- Pids]),
    T1 = erlang:monotonic_time(),
    [Callers * Each / us(T1 - T0) * 1.0e6, percentile(50, Latencies), percentile(99, Latencies)].

caller(_, 0, Latencies) ->
    Latencies;
caller(Call, N, Latencies) ->
    T0 = erlang:monotonic_time(),
    N = Call(N),
    caller(Call, N - 1, [us(erlang:monotonic_time() - T0) | Latencies]).

us(Native) -> erlang:convert_time_unit(Native, native, nanosecond) / 1000.

%% --- figures ------------------------------------------------------------------

%% Measures the variants in turn, which have a figure in each of these units, and shows them.
-spec a_case(string(), [string()], [variant()], [{variant(), fun(() -> [number()])}]) ->
          {Case :: string(), figures()}.
a_case(Case, Units, Bases, Variants) -> tables(Case, Units, Bases, in_turn(Variants)).

%% A table for each unit.
-spec tables(string(), [string()], [variant()], [{variant(), [[number()]]}]) ->
          {Case :: string(), figures()}.
tables(Case, Units, Bases, Measured) ->
    Figures = by_unit(Units, Measured),
    lists:foreach(fun(Unit) -> table(Unit, Bases, {Case, maps:get(Unit, Figures)}) end, Units),
    {Case, Figures}.

%% For finish/3.
-spec results([string()], [{Case :: string(), figures()}]) -> [{Unit :: string(), [result()]}].
results(Units, Cases) ->
    [{Unit, [{Case, maps:get(Unit, Figures)} || {Case, Figures} <- Cases]} || Unit <- Units].

-spec median([number(), ...]) -> number().
median(Values) -> trunkline_compare:median(Values).

-spec percentile(number(), [number(), ...]) -> number().
percentile(Percent, Values) -> trunkline_compare:percentile(Percent, Values).

%% Of measurements that have a figure in each of these units: the variants' figures by unit.
-spec by_unit([string()], [{variant(), [[number()]]}]) -> figures().
by_unit(Units, Measured) ->
    maps:from_list([{Unit, [{V, [lists:nth(I, M) || M <- Ms]} || {V, Ms} <- Measured]}
                    || {I, Unit} <- lists:zip(lists:seq(1, length(Units)), Units)]).

%% The ratio of two variants' medians.
-spec ratio(variant(), variant(), [{variant(), [number()]}]) -> float().
ratio(A, B, Variants) ->
    median(proplists:get_value(A, Variants)) / median(proplists:get_value(B, Variants)).

-spec target(string(), at_least | at_most, number(), number()) -> target().
target(Name, Kind, Bound, Measured) ->
    #{name => Name, Kind => Bound, measured => Measured}.

%% Of Trunkline to that base, where that case has been measured.
-spec targets([{Case, figures()}],
              [{Name :: string(), at_least | at_most, number(), {Case, string(), variant()}}]) ->
          [target()] when Case :: string().
targets(Cases, Rows) ->
    [target(Name, Kind, Bound, ratio(trunkline, Base, Variants))
     || {Name, Kind, Bound, {Case, Unit, Base}} <- Rows,
        {C, #{Unit := Variants}} <- Cases, C =:= Case].

%% --- output -------------------------------------------------------------------

-spec say(io:format(), [term()]) -> ok.
say(Format, Args) -> io:format(Format ++ "~n", Args).

%% A table of one result: median, spread, and the ratio to the variants named.
-spec table(string(), [variant()], result()) -> ok.
table(Unit, Bases, {Case, Variants}) ->
    say("~n~ts", [Case]),
    say("  ~-40ts ~12ts ~23ts~ts", ["", Unit, "lowest .. highest",
                                    [io_lib:format(" ~14ts", [["/ ", atom_to_list(B)]])
                                     || B <- Bases]]),
    lists:foreach(
      fun({Variant, Values}) ->
              say("  ~-40ts ~12ts ~10ts .. ~10ts~ts",
                  [title(Variant, Variants), number(median(Values)), number(lists:min(Values)),
                   number(lists:max(Values)),
                   [io_lib:format(" ~14.2f", [ratio(Variant, Base, Variants)]) || Base <- Bases]])
      end, Variants).

%% Many results of the same variants in one table: a line for each result.
-spec overview([{Unit :: string(), result()}]) -> ok.
overview([{_, {_, Variants}} | _] = Results) ->
    say("  ~-52ts~ts",
        ["median (lowest .. highest)",
         [io_lib:format(" ~34ts", [title(V, Variants)]) || {V, _} <- Variants]]),
    lists:foreach(
      fun({Unit, {Case, Vs}}) ->
              say("  ~-52ts~ts", [[Case, ", ", Unit],
                                  [io_lib:format(" ~34ts", [spread(Values)]) || {_, Values} <- Vs]])
      end, Results).

spread(Values) ->
    case {lists:min(Values), lists:max(Values)} of
        {Same, Same} -> number(Same);
        {Min, Max} -> [number(median(Values)), " (", number(Min), " .. ", number(Max), ")"]
    end.

%% How many nodes there are is said only where there is a difference.
title(Variant, Variants) ->
    case Variant =/= same andalso lists:keymember(same, 1, Variants) of
        true -> "two nodes, " ++ name(Variant);
        false -> name(Variant)
    end.

name(same) -> "same node, !";
name(stock) -> "!";
name(tuned) -> "!, delay_send";
name(sketch) -> "the sketch";
name(qr) -> "qr (100 messages, 200 ms)";
name(trunkline) -> "Trunkline";
name(trunkline_tcp) -> "Trunkline, lanes on tcp";
name(trunkline_next_door) -> "Trunkline, next door";
name(trunkline_cubic) -> "Trunkline, without BBR";
name(stock_bbr) -> "!, BBR by route";
name(unobserved) -> "nobody looks";
name(unobserved_again) -> "nobody looks, once more";
name(observed) -> "everybody looks";
name(Other) -> atom_to_list(Other).

%% For people.
-spec number(number()) -> iodata().
number(X) when is_integer(X), X < 1000 -> integer_to_list(X);
number(X) when X >= 100 -> thousands(integer_to_list(round(X)));
number(X) -> io_lib:format("~.2f", [float(X)]).

thousands(Digits) when length(Digits) > 3 ->
    {Head, Tail} = lists:split(length(Digits) - 3, Digits),
    thousands(Head) ++ "," ++ Tail;
thousands(Digits) ->
    Digits.

%% The targets, met or missed, and the JSON object.
-spec finish(string(), [{Unit :: string(), [result()]}], [target()]) -> ok.
finish(Bench, Results, Targets) ->
    Targets =/= [] andalso say("~ntargets", []),
    lists:foreach(
      fun(#{name := Name, measured := Measured} = Target) ->
              say("  ~-64ts ~8.2f  ~ts", [Name, float(Measured), verdict(Target)])
      end, Targets),
    say("", []),
    Json = #{bench => list_to_binary(Bench),
             otp => list_to_binary(erlang:system_info(otp_release)),
             schedulers => erlang:system_info(schedulers_online),
             rounds => rounds(),
             results => [json_result(Unit, Result) || {Unit, Rs} <- Results, Result <- Rs],
             targets => [json_target(T) || T <- Targets]},
    say("~ts", [trunkline_json:encode(Json)]).

verdict(#{at_least := Bound, measured := M}) when M >= Bound ->
    io_lib:format("met (at least ~p)", [Bound]);
verdict(#{at_least := Bound}) -> io_lib:format("MISSED (at least ~p)", [Bound]);
verdict(#{at_most := Bound, measured := M}) when M =< Bound ->
    io_lib:format("met (at most ~p)", [Bound]);
verdict(#{at_most := Bound}) -> io_lib:format("MISSED (at most ~p)", [Bound]).

json_result(Unit, {Case, Variants}) ->
    #{'case' => unicode:characters_to_binary(Case), unit => list_to_binary(Unit),
      variants => maps:from_list(
                    [{Variant, #{median => median(Values), min => lists:min(Values),
                                 max => lists:max(Values),
                                 ratios => maps:from_list([{Base, ratio(Variant, Base, Variants)}
                                                           || {Base, Bs} <- Variants,
                                                              Base =/= Variant,
                                                              median(Bs) /= 0])}}
                     || {Variant, Values} <- Variants])}.

json_target(#{name := Name} = Target) ->
    Target#{name := unicode:characters_to_binary(Name),
            met => case lists:flatten(verdict(Target)) of "met" ++ _ -> true; _ -> false end}.
