%% Real nodes for the tests: started with peer, controlled over their standard
%% input and output, so that their distribution connections are the test's own to
%% make, break and stall.
-module(cluster).

-export([start/0, start/1, start/2, start/3, start/4, start_at/4, start_all/1, start_all/2, stop/1,
         node_of/1, call/4, call/2, info/2]).
-export([connect/2, await_up/2, await_lanes/2, await_state/3, await_no_state/3, await_thin/2,
         pair/1, pair/2, pair/3,
         pair_on_the_distribution/0, pair_on_the_distribution/2, with_and_without/0,
         stop_all/1]).
-export([suspend/1, continue/1, kill/1, await/1, await/2]).
-export([start_trunkline/1, stop_trunkline/0, lane_transport/0, dist_arguments/0, close/1,
         find/2, by_module/1, kill_openers/0, hold/1, release/0, is_a/2, in_loop/1, writers/1,
         is_at_rest/1, hibernates/1, await_suspended/2, is_awaited/2, agent/2, count_calls/3]).
-export([break_channels/1, channel_ports/0, tls_connections/0]).

-include("../src/gate/trunkline_route.hrl").

-define(DEADLINE, 120_000).
%% (The defaults of peer are 15 and 5 seconds.)
-define(BOOT, 120_000).

%% A node is {Peer, Node, OsPid}.
%%
%% `none' is a node without Trunkline, a list is Trunkline's environment.
start() -> start([]).

start(Env) -> start(Env, peer:random_name("trunkline_test")).

start(Env, Name) ->
    start(Env, Name, dist_arguments()).

%% With more arguments for the emulator.
start(Env, Name, Args) -> start(Env, Name, Args, code:get_path()).

%% And with that code path. The name may be {Name, Host}, which is a long one.
start(Env, NameOrBoth, Args, Path) ->
    {Name, Long} = case NameOrBoth of
                       {N, Host} -> {N, #{host => Host, longnames => true}};
                       N -> {N, #{}}
                   end,
    ok = await(fun() -> is_free(Name) end),
    {ok, Peer, Node} =
        peer:start(Long#{name => Name,
                         connection => standard_io,
                         shutdown => halt,
                         wait_boot => ?BOOT,
                         args => Args ++ ["-setcookie", "trunkline_test_" ++ os:getpid(),
                                          "-connect_all", "false", "-pa" | Path]}),
    ok = peer:call(Peer, logger, set_primary_config, [level, error], ?BOOT),
    OsPid = peer:call(Peer, os, getpid, [], ?BOOT),
    ok = left_nodes:started(Peer, OsPid),
    case Env of
        none -> ok;
        _ -> ok = peer:call(Peer, ?MODULE, start_trunkline, [Env], ?BOOT)
    end,
    {Peer, Node, OsPid}.

%% In a network namespace of its own (tools/wan).
start_at(Wan, Site, Env, Args) ->
    Node = wan:start_node(Wan, Site, peer:random_name(atom_to_list(Site)),
                          Args ++ ["-setcookie", "trunkline_test_" ++ os:getpid()]),
    ok = call(Node, logger, set_primary_config, [level, error]),
    ok = call(Node, ?MODULE, start_trunkline, [Env]),
    Node.

%% Who had it before may not have ended yet.
is_free(Name) ->
    case erl_epmd:names() of
        {ok, Names} -> not lists:keymember(Name, 1, Names);
        {error, _} -> true
    end.

%% All suites can be run with the lanes on connections of their own: make ct LANES=tcp, or tls
lane_transport() ->
    case os:getenv("LANES", "") of
        "" -> dist;
        Transport -> list_to_atom(Transport)
    end.

dist_arguments() ->
    case lane_transport() of
        tls -> certificates:dist_arguments();
        _ -> []
    end.

%% Runs at the node.
start_trunkline(Env) ->
    _ = application:load(trunkline),
    lists:foreach(fun({Key, _}) -> application:unset_env(trunkline, Key) end,
                  application:get_all_env(trunkline)),
    lists:foreach(fun({Key, Value}) -> application:set_env(trunkline, Key, Value) end,
                  %% A loaded machine may take its neighbour for far: the number of connections is
                  %% the same. And messages of 70 kB are large.
                  [{lane_transport, lane_transport()}, {far_connections, 1}, {large_bytes, 65_536}
                   | Env]),
    case application:ensure_all_started(trunkline) of
        {ok, _} -> ok;
        {error, {trunkline, Reason}} -> {error, Reason}
    end.

stop_trunkline() ->
    logger:set_primary_config(level, none),       % the report of the exit
    ok = application:stop(trunkline),
    logger:set_primary_config(level, error).

%% Several at once, as each takes most of a second.
start_all(Envs) -> start_all(Envs, dist_arguments()).

start_all(Envs, Args) ->
    Test = self(),
    Starting = [spawn_monitor(fun() ->
                                      Test ! {self(),
                                              start(Env, peer:random_name("trunkline_test"), Args)}
                              end) || Env <- Envs],
    [receive
         {Pid, Node} -> demonitor(Ref, [flush]), Node;
         {'DOWN', Ref, process, Pid, Reason} -> error({not_started, Reason})
     end || {Pid, Ref} <- Starting].

stop({Peer, _, OsPid}) ->
    _ = os:cmd("kill -CONT " ++ OsPid ++ " 2>/dev/null"),
    try peer:stop(Peer)
    catch exit:_ -> ok            % it has ended already
    end.

stop_all(Nodes) -> lists:foreach(fun stop/1, Nodes).

node_of({_, Node, _}) -> Node.

%% (What hangs ends with the test case's time.)
call({Peer, _, _}, Module, Function, Args) ->
    peer:call(Peer, Module, Function, Args, infinity).

call(Node, Fun) ->
    call(Node, erlang, apply, [Fun, []]).

%% What A says of B.
info(A, B) -> call(A, trunkline, info, [node_of(B)]).

connect(A, B) ->
    true = call(A, net_kernel, connect_node, [node_of(B)]),
    ok.

%% Two connected nodes whose lanes are up.
pair(Env) -> pair(Env, Env).

pair(EnvA, EnvB) -> pair(EnvA, EnvB, dist_arguments()).

pair(EnvA, EnvB, Args) ->
    [A, B] = start_all([EnvA, EnvB], Args),
    connect(A, B),
    await_up(A, B),
    {A, B}.

%% A node, connected to one without Trunkline and to one with lanes.
with_and_without() ->
    {A, Lanes} = pair([]),
    Plain = start(none),
    connect(A, Plain),
    {A, Plain, Lanes}.

await_up(A, B) ->
    await_lanes(A, B),
    await_lanes(B, A),
    lane_transport() =:= dist orelse release(A, B) =/= release(B, A)
        orelse lists:foreach(fun await_connections/1, [{A, B}, {B, A}]),
    ok.

%% B's. (Between 0.5.0 and later ones batches go by the distribution.)
release(A, B) ->
    #{release := Release} = info(A, B),
    Release.

%% Two nodes with one lane each that has no connections of its own, whatever LANES says.
pair_on_the_distribution() -> pair_on_the_distribution([], []).

pair_on_the_distribution(Others, Args) ->
    Env = [{lanes, 1}, {lane_transport, dist} | Others],
    [A, B] = start_all([Env, Env], Args ++ dist_arguments()),
    connect(A, B),
    true = await_lanes(A, B),
    true = await_lanes(B, A),
    {A, B}.

%% One side.
await_lanes(A, B) ->
    case call(A, erlang, function_exported, [trunkline, await_up, 2]) of
        true ->
            call(A, trunkline, await_up, [node_of(B), ?DEADLINE]) =:= ok
                orelse error({timeout, info(A, B)});
        false ->                             % 0.5.0 and before
            await_state(A, B, up)
    end.

await_connections({A, B}) ->
    await(fun() ->
                  case info(A, B) of
                      #{batches := #{by := connections, connections := N}} when N > 0 -> true;
                      Info -> {false, Info}
                  end
          end).

%% Until nearly all messages to that node go past its one lane.
await_thin(A, B) ->
    Counts = fun() ->
                     #{lanes := [#{messages := M, batches := N}]} = info(A, B),
                     {M, N}
             end,
    await(fun() ->
                  {M, N} = Counts(),
                  await(fun() -> element(1, Counts()) >= M + 100 end),
                  {M1, N1} = Counts(),
                  M1 - M > 10 * (N1 - N) orelse {M1 - M, N1 - N}
          end).

await_state(A, B, State) -> await_state_if(A, B, fun(Now) -> Now =:= State end).

%% Until the state is another one. (The one that follows may be over before the next look.)
await_no_state(A, B, State) -> await_state_if(A, B, fun(Now) -> Now =/= State end).

await_state_if(A, B, IsIt) ->
    await(fun() ->
                  case info(A, B) of
                      #{state := State} = Info -> IsIt(State) orelse {false, Info};
                      None -> {false, None}
                  end
          end).

%% A stopped node neither reads nor writes, but its connections stay. It would
%% also outlive a test that fails. (On a loaded machine its threads go on for a while
%% after the signal, until the first of them has got a processor.)
suspend({_, _, OsPid} = Node) ->
    Test = self(),
    spawn(fun() ->
                  Ref = monitor(process, Test),
                  receive {'DOWN', Ref, process, Test, _} -> continue(Node) end
          end),
    signal("STOP", OsPid),
    await(fun() -> is_stopped(OsPid) end).

is_stopped(OsPid) ->
    Tasks = "/proc/" ++ OsPid ++ "/task/",
    case file:list_dir(Tasks) of
        {ok, Threads} ->
            lists:all(fun(Thread) -> thread_state(Tasks ++ Thread ++ "/stat") =:= $T end, Threads);
        {error, _} -> true                   % this system does not tell
    end.

thread_state(File) ->
    case file:read_file(File) of
        {ok, Stat} -> binary:first(lists:last(binary:split(Stat, <<") ">>, [global])));
        {error, _} -> $T                     % it has ended
    end.

continue({_, _, OsPid}) -> signal("CONT", OsPid).
kill({_, _, OsPid}) -> signal("KILL", OsPid).

signal(Signal, OsPid) ->
    _ = os:cmd("kill -" ++ Signal ++ " " ++ OsPid),
    ok.

%% A port that may have closed already.
close(Port) ->
    try port_close(Port)
    catch error:badarg -> true
    end.

%% Trunkline's processes for that peer, or the one of that name. Runs at the node. (A link that
%% waits, and a lane that has slept, run no code of their own module.)
find(link, Node) ->
    [Link || #{link := Link} <- [trunkline_peers:lookup(Node)], is_pid(Link)];
find(inlets, Node) ->
    lists:append([Inlets || #{inlets := Inlets} <- [trunkline_peers:lookup(Node)]]);
find(lanes, Node) ->
    lists:append([tuple_to_list(Lanes)
                  || #route{lanes = Lanes} <- [trunkline_route:lookup(Node)]]);
find(dock, Node) ->
    [Pid || Link <- find(link, Node), {links, Links} <- [process_info(Link, links)],
            Pid <- Links, is_a(trunkline_dock, Pid)];
find(trunk, Node) ->
    %% One that is held cannot be asked what it carries, but the link knows.
    [Pid || Link <- find(link, Node), Pid <- tuple_to_list(sys:get_state(Link, ?DEADLINE)),
            is_a(trunkline_trunk, Pid)];
find(Name, _) ->
    [Pid || Pid <- [whereis(Name)], is_pid(Pid)].

%% Processes that run this module's code. Runs at the node.
by_module(Module) ->
    [Pid || Pid <- processes(),
            {current_stacktrace, Stack} <- [process_info(Pid, current_stacktrace)],
            lists:keymember(Module, 1, Stack)].

%% All that there are, and all that come. Runs at the node, for ever.
kill_openers() ->
    lists:foreach(fun(Pid) -> exit(Pid, kill) end, openers()),
    kill_openers().

%% (And not an inlet that is just starting one.)
openers() ->
    [Pid || Pid <- by_module(trunkline_opener),
            {current_stacktrace, [_ | _] = Stack} <- [process_info(Pid, current_stacktrace)],
            element(1, lists:last(Stack)) =:= trunkline_opener].

%% They are suspended until release/0, or until the test ends the node. Runs at the node.
hold(Pids) ->
    Self = self(),
    Holder = spawn(fun() ->
                           lists:foreach(fun erlang:suspend_process/1, Pids),
                           Self ! {held, self()},
                           receive release -> ok end
                   end),
    true = register(holder, Holder),
    receive {held, Holder} -> ok end.

release() ->
    Ref = monitor(process, holder),
    holder ! release,
    receive {'DOWN', Ref, process, _, _} -> ok end.

%% Whether that is a process of this node that runs that module.
is_a(Module, Pid) ->
    is_pid(Pid) andalso node(Pid) =:= node() andalso
        case process_info(Pid, dictionary) of
            {dictionary, D} -> proplists:get_value('$initial_call', D) =:= {Module, init, 1};
            undefined -> false
        end.

%% Until that process of A is suspended: its connection is busy.
await_suspended(A, Pid) ->
    await(fun() -> call(A, erlang, process_info, [Pid, status]) =:= {status, suspended} end).

%% Runs at the node.
hibernates(Pid) ->
    process_info(Pid, current_function) =:= {current_function, {erlang, hibernate, 3}}.

%% Whether it has taken everything out of its mailbox. Runs at the node.
is_at_rest(Pid) ->
    process_info(Pid, [message_queue_len, status]) =:= [{message_queue_len, 0}, {status, waiting}].

%% Whether that inlet at B, as an agent, waits for a reply.
is_awaited(Inlet, B) -> trunkline_agent:is_awaited(agent(Inlet, B)).

agent(Inlet, B) ->
    [Agent] = [Part || Part <- tuple_to_list(call(B, sys, get_state, [Inlet])),
                       is_tuple(Part), element(1, Part) =:= agent],
    Agent.

%% How often these functions are called at that node while Fun is executed.
count_calls(A, Functions, Fun) ->
    Trace = fun(F, How) -> 1 = call(A, erlang, trace_pattern, [F, How, [local, call_count]]) end,
    [Trace(F, true) || F <- Functions],
    _ = Fun(),
    Counts = [call(A, erlang, trace_info, [F, call_count]) || F <- Functions],
    [Trace(F, false) || F <- Functions],
    lists:sum([N || {call_count, N} <- Counts]).

%% Those that write to connections for batches, or for large messages: lanes or trunks own them.
%% Runs at the node.
writers(Cargo) ->
    [Pid || Pid <- in_loop(trunkline_writer),
            {monitors, Monitors} <- [process_info(Pid, monitors)],
            %% (From OTP 27 on it monitors the port, too, while it sends.)
            lists:any(fun(Owner) -> is_a(trunkline_trunk, Owner) end,
                      [Owner || {process, Owner} <- Monitors])
                =:= (Cargo =:= large)].

%% Of writers: those whose connection has been made. Runs at the node.
in_loop(Module) ->
    [Pid || Pid <- processes(),
            {current_stacktrace, Stack} <- [process_info(Pid, current_stacktrace)],
            lists:any(fun({M, F, _, _}) -> {M, F} =:= {Module, loop} end, Stack)].

%% Breaks all connections of lanes that end here, and answers how many there were: kills those who
%% write to them, or closes the sockets at this end, whichever that is. Runs at the node.
break_channels(writers) ->
    length([exit(Writer, kill) || Writer <- writers(batches)]);
break_channels(sockets) ->
    length([close(Port) || Port <- channel_ports()]
           ++ [exit(Pid, kill) || Pid <- tls_connections()]).

%% Their sockets at this node, those of TLS excepted.
channel_ports() ->
    Inlets = lists:append([I || #{inlets := I} <- maps:values(trunkline_peers:all())]),
    Owners = Inlets ++ writers(batches),
    [Port || Port <- erlang:ports(), {connected, Owner} <- [erlang:port_info(Port, connected)],
             lists:member(Owner, Owners)].

%% The processes of ssl that are not the distribution's.
tls_connections() ->
    case whereis(tls_connection_sup) of
        undefined ->
            [];
        Supervisor ->
            [Pid || {_, Sup, supervisor, _} <- supervisor:which_children(Supervisor), is_pid(Sup),
                    {_, Pid, worker, _} <- children(Sup), is_pid(Pid)]
    end.

%% The supervisor of one connection ends with it.
children(Sup) ->
    try supervisor:which_children(Sup)
    catch exit:_ -> []
    end.

%% Polls until Done answers true, and returns; fails with what it answered last.
await(Done) -> await(Done, ?DEADLINE).

await(Done, Timeout) ->
    poll(Done, erlang:monotonic_time(millisecond) + Timeout).

poll(Done, Deadline) ->
    case Done() of
        true ->
            ok;
        Other ->
            erlang:monotonic_time(millisecond) < Deadline orelse error({timeout, Other}),
            receive after 5 -> poll(Done, Deadline) end
    end.
