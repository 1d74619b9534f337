%% What the scripts in bench/real share: two nodes of a system that others wrote, stock and adopted
%% in turn, and tables of what was measured.
%%
%% A node is a child of this process, and ends with it: its standard input is this process'. A map
%% describes it, to which start/2 adds the port and the process id.
-module(real_nodes).

-export([in_turn/3, names/1, adoption/2]).
-export([start/2, stop/1, kill/1, check/2, restart_trunkline/2]).
-export([host/0, free_port/0, now_ms/0, now_us/0]).
-export([is_wanted/1, each_millisecond/1, figures/3, units/0, show_rates/4, target/5]).
-export([order/2, out_of_order/1]).

-export_type([mode/0, setup/0, starting/0, running/0, figures/0, order/0]).

-type mode() :: stock | adopted.
-type setup() :: #{mode := mode(), cookie := atom(), dir := file:filename(), _ => _}.
-type starting() :: #{mode := mode(), name := node(), own := file:filename(),
                      program := file:filename(), args := [string()],
                      env := [{string(), string()}], _ => _}.
-type running() :: #{mode := mode(), name := node(), process := port(), pid := string(), _ => _}.
%% In the order of units/0.
-type figures() :: [number()].
-type order() :: ok | disorder | loss.

-define(BOOT, 600_000).          % adoption takes minutes on a busy machine

%% Each round runs both modes. Run gets a directory of its own, and the cookie of this node.
-spec in_turn(string(), map(), fun((setup()) -> T)) -> [{mode(), T}].
in_turn(Rounds, #{dir := Dir} = Setup, Run) ->
    true = os:putenv("ROUNDS", Rounds),
    Cookie = list_to_atom("trunkline_real_" ++ os:getpid()),
    {ok, _} = net_kernel:start([Cookie, shortnames]),
    true = erlang:set_cookie(Cookie),
    [{Mode, Run(Setup#{mode => Mode, cookie => Cookie,
                       dir => filename:join(Dir, lists:concat([N, "-", Mode]))})}
     || N <- lists:seq(1, list_to_integer(Rounds)), Mode <- [stock, adopted]].

-spec names(System :: string()) -> [node()].
names(System) ->
    [list_to_atom(lists:concat([System, N, "_", os:getpid(), "@", host()])) || N <- [1, 2]].

-spec host() -> string().
host() ->
    {ok, Name} = inet:gethostname(),
    Name.

-spec free_port() -> inet:port_number().
free_port() ->
    {ok, Socket} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Socket),
    ok = gen_tcp:close(Socket),
    Port.

-spec now_ms() -> integer().
now_ms() -> erlang:monotonic_time(millisecond).

-spec now_us() -> integer().
now_us() -> erlang:monotonic_time(microsecond).

%% --- nodes ------------------------------------------------------------------------

%% Arguments of erl, for one line of configuration: where Trunkline is, what it adopts, and that it
%% starts.
-spec adoption(mode(), [atom()]) -> string().
adoption(stock, _) ->
    "";
adoption(adopted, Applications) ->
    Names = lists:join(",", [atom_to_list(Application) || Application <- Applications]),
    lists:append([" -pa ", filename:dirname(code:which(trunkline)),
                  " -trunkline adopt [", lists:append(Names), "]",
                  " -eval application:ensure_all_started(trunkline)"]).

%% IsRunning may fail, too, while the node is not there.
-spec start(starting(), IsRunning :: fun(() -> boolean())) -> running().
start(#{mode := Mode, name := Name, own := Own, program := Program, args := Args,
        env := Env} = Node, IsRunning) ->
    Process = open_port({spawn_executable, Program},
                        [{args, Args}, {env, [{"HOME", Own} | Env]}, {cd, Own}, exit_status,
                         stderr_to_stdout, binary]),
    ok = await_running(Name, IsRunning, Process, now_ms() + ?BOOT, []),
    Pid = erpc:call(Name, os, getpid, []),
    io:format("~s runs (~s), ~s~n", [Name, Pid, Mode]),
    Node#{process => Process, pid => Pid}.

await_running(Name, IsRunning, Process, Deadline, Said) ->
    case try IsRunning() catch _:_ -> false end of
        true ->
            ok;
        false ->
            Left = Deadline - now_ms(),
            receive
                {Process, {data, Data}} ->
                    await_running(Name, IsRunning, Process, Deadline, [Said, Data]);
                {Process, {exit_status, Status}} ->
                    error({not_started, Name, Status, unicode:characters_to_list(Said)})
            after min(500, max(0, Left)) ->
                    Left > 0 orelse error({not_started, Name, unicode:characters_to_list(Said)}),
                    await_running(Name, IsRunning, Process, Deadline, Said)
            end
    end.

-spec stop(running()) -> ok.
stop(#{name := Name, process := Process} = Node) ->
    _ = catch erpc:call(Name, init, stop, [], 10_000),
    receive {Process, {exit_status, _}} -> ok
    after 60_000 -> kill(Node)
    end.

-spec kill(running()) -> ok.
kill(#{process := Process, pid := Pid}) ->
    _ = os:cmd("kill -KILL " ++ Pid),
    receive {Process, {exit_status, _}} -> ok end.

%% Both nodes have adopted the same, and all of it.
-spec check(mode(), [running()]) -> ok.
check(stock, _) ->
    ok;
check(adopted, Nodes) ->
    Names = [Name || #{name := Name} <- Nodes],
    lists:foreach(
      fun(Name) ->
              #{adopted := Adopted, problems := Problems, nodes := Seen, plain := Plain} =
                  erpc:call(Name, trunkline_adopt, check, [], 60_000),
              Others = maps:with(Names, Seen),
              io:format("~s: ~b modules are adopted; problems: ~0p; other nodes: ~0p; "
                        "sent by the distribution: ~b~n",
                        [Name, length(Adopted), Problems, Others, Plain]),
              {0, [same]} = {map_size(Problems), maps:values(Others)}
      end, Names).

%% Trunkline stops and starts on one node after the other. Progress waits until more has arrived.
-spec restart_trunkline([running()], fun(() -> ok)) -> ok.
restart_trunkline(Nodes, Progress) ->
    lists:foreach(fun(Name) ->
                          ok = erpc:call(Name, application, stop, [trunkline]),
                          ok = Progress(),
                          ok = erpc:call(Name, application, start, [trunkline]),
                          ok = Progress()
                  end, [Name || #{mode := adopted, name := Name} <- Nodes]).

%% --- order ------------------------------------------------------------------------

%% Of the numbers from 1 on, of which each should have come once.
-spec order([term()], non_neg_integer()) -> order().
order(Got, N) ->
    All = lists:seq(1, N),
    case Got =:= All of
        true -> ok;
        false -> case lists:sort(Got) =:= All of
                     true -> disorder;
                     false -> loss
                 end
    end.

-spec out_of_order([integer()]) -> non_neg_integer().
out_of_order([A | [B | _] = Rest]) when A > B -> 1 + out_of_order(Rest);
out_of_order([_ | Rest]) -> out_of_order(Rest);
out_of_order([]) -> 0.

%% --- rates ------------------------------------------------------------------------

%% ONLY=rates in the environment leaves out the other parts.
-spec is_wanted(Part :: atom()) -> boolean().
is_wanted(Part) ->
    case os:getenv("ONLY", "") of
        "" -> true;
        Only -> Only =:= atom_to_list(Part)
    end.

-spec each_millisecond(fun(() -> _)) -> no_return().
each_millisecond(Do) -> each_millisecond(Do, now_ms()).

each_millisecond(Do, Next) ->
    receive after max(0, Next - now_ms()) -> ok end,
    _ = Do(),
    each_millisecond(Do, Next + 1).

-spec units() -> [string()].
units() -> ["messages/s", "us of CPU", "ms p50", "ms p99"].

%% Of a load that runs already. Taken answers of each message that comes until then how long it has
%% taken, in us. The first two seconds do not count: it does not run smoothly yet.
-spec figures([running()], pos_integer(), fun((Until :: integer()) -> [number()])) -> figures().
figures(Nodes, Seconds, Taken) ->
    _ = Taken(now_ms() + 2000),
    Start = now_ms(),
    Used = processors(Nodes),
    Times = Taken(Start + Seconds * 1000),
    UsedNow = processors(Nodes),
    Took = now_ms() - Start,
    N = length(Times),
    [N * 1000 / Took, (UsedNow - Used) / N,
     bench:percentile(50, Times) / 1000, bench:percentile(99, Times) / 1000].

processors(Nodes) -> bench:used([Pid || #{pid := Pid} <- Nodes]).

%% A table of each case and unit, and the JSON object. Without rates there is nothing to show.
-spec show_rates(System :: string(), Cases :: [string()],
                 [{mode(), [{Case :: string(), figures()}]}],
                 fun((Figures :: list()) -> [bench:target()])) -> ok.
show_rates(System, Cases, [_ | _] = Results, Targets) ->
    Of = fun(Case, Mode) ->
                 [proplists:get_value(Case, Rates) || {M, Rates} <- Results, M =:= Mode]
         end,
    Figures = [bench:tables(Case, units(), [stock],
                            [{Mode, Of(Case, Mode)} || Mode <- [stock, adopted]])
               || Case <- Cases],
    bench:finish(System, bench:results(units(), Figures), Targets(Figures));
show_rates(_, _, [], _) ->
    ok.

-spec target(Unit :: string(), at_least | at_most, number(), Case :: string(), Figures :: list()) ->
          bench:target().
target(Unit, Kind, Bound, Case, Figures) ->
    #{Unit := Variants} = proplists:get_value(Case, Figures),
    bench:target(Case ++ ", " ++ Unit ++ ": adopted / stock", Kind, Bound,
                 bench:ratio(adopted, stock, Variants)).
