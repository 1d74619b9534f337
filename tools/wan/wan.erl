%% Sites that are far from each other, on one machine: a network namespace for each,
%% and links between them (wan.c) with a delay, a loss, a rate and a queue.
%%
%%     W = wan:open([a, b], [{a, b}]),
%%     ok = wan:set(W, {a, b}, #{delay => 5, loss => 1}),        % 10 ms round trip
%%     {Peer, Node, OsPid} = wan:start_node(W, a, "name", []),
%%     Stats = wan:stats(W, {a, b}),
%%     ok = wan:close(W).
%%
%% Each namespace has its own epmd, and cubic is the congestion control of every
%% connection until it asks for another, whatever this machine's is. Needs root and /dev/net/tun
%% (possible/0). All of it is removed by close/1, at the end of the process that opened it, and,
%% after this node was killed, by the next open/2.
-module(wan).
-behaviour(gen_server).

-export([possible/0, open/2, close/1, set/3, set/4, congestion_control/2, stats/2, run/3,
         start_node/4, address/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-export_type([site/0, link/0, setting/0, stats/0]).

-type site() :: atom().
-type link() :: {site(), site()}.
%% delay in ms, one way; loss in per cent; rate in Mbit/s, 0 is none; limit in
%% packets that are in the link at once; with stall 1 packets go in and none comes out.
-type setting() :: delay | loss | rate | limit | stall.
%% Of both ways together, since the last time. cpu is the emulator's time in us, most
%% the packets that were in the link at once, late the mean in us.
-type stats() :: #{packets | bytes | full | lost | failed | most | late | cpu := non_neg_integer()}.

-record(state, {sites :: [site()], links = #{} :: #{link() => {port(), Device :: string()}}}).

%% A queue that is never full: 100,000 packets are 1.2 Gbit/s for a second.
-define(LIMIT, 100_000).
-define(PREFIX, "trunkline_").
%% ms, on a machine that is busy with other things.
-define(PATIENCE, 60_000).

-spec possible() -> ok | {error, string()}.
possible() ->
    case {string:trim(os:cmd("id -u")), element(1, file:read_file_info("/dev/net/tun")) =:= ok} of
        {"0", true} ->
            Name = namespace(probe),
            %% To execute something there takes a mount too, which a chroot refuses.
            Said = os:cmd("ip netns add " ++ Name ++ " && ip netns exec " ++ Name ++ " true"),
            _ = os:cmd("ip netns del " ++ Name),
            case Said of
                "" -> ok;
                Error ->
                    {error, "the emulated link needs network namespaces: " ++ string:trim(Error)}
            end;
        {"0", false} -> {error, "the emulated link needs /dev/net/tun, which is not there"};
        {User, _} ->
            {error,
             "the emulated link needs root (for network namespaces), and this is user " ++ User}
    end.

-spec open([site()], [link()]) -> pid().
open(Sites, Links) ->
    ok = possible(),
    {ok, Wan} = gen_server:start(?MODULE, {self(), Sites, Links}, []),
    Wan.

-spec close(pid()) -> ok.
close(Wan) -> gen_server:stop(Wan, normal, infinity).

-spec set(pid(), link(), #{setting() => number()}) -> ok.
set(Wan, Link, Settings) -> set(Wan, Link, both, Settings).

%% Only on the way from the site that is named.
-spec set(pid(), link(), both | site(), #{setting() => number()}) -> ok.
set(Wan, Link, From, Settings) -> gen_server:call(Wan, {set, Link, From, Settings}, infinity).

%% Of connections that are made from now on, and do not ask for another.
-spec congestion_control(pid(), atom()) -> ok.
congestion_control(Wan, Name) -> gen_server:call(Wan, {congestion_control, Name}, infinity).

-spec stats(pid(), link()) -> stats().
stats(Wan, Link) -> gen_server:call(Wan, {stats, Link}, infinity).

%% What a command says that runs at the site.
-spec run(pid(), site(), string()) -> string().
run(_, Site, Command) -> os:cmd("ip netns exec " ++ namespace(Site) ++ " " ++ Command).

%% A node at the site, controlled over its standard input and output.
-spec start_node(pid(), site(), string(), [string()]) -> {Peer :: pid(), node(), OsPid :: string()}.
start_node(Wan, Site, Name, Args) ->
    {ok, Peer, Node} =
        peer:start(#{name => Name, host => gen_server:call(Wan, {address, Site}, infinity),
                     longnames => true, connection => standard_io, shutdown => halt,
                     wait_boot => ?PATIENCE,
                     exec => {os:find_executable("ip"), ["netns", "exec", namespace(Site), "erl"]},
                     args => Args ++ ["-start_epmd", "false", "-connect_all", "false", "-pa"
                                      | code:get_path()]}),
    {Peer, Node, peer:call(Peer, os, getpid, [], ?PATIENCE)}.

%% Of the site with this number.
-spec address(pos_integer()) -> string().
address(N) -> "10.77.0." ++ integer_to_list(N).

%% --- the process -------------------------------------------------------------

init({Owner, Sites, Links}) ->
    process_flag(trap_exit, true),
    _ = monitor(process, Owner),
    remove_stale(),
    Program = program(),
    try
        S = lists:foldl(fun open_site/2, #state{sites = Sites}, Sites),
        {ok, lists:foldl(fun({Link, N}, S1) -> open_link(Program, Link, N, S1) end, S,
                         lists:zip(Links, lists:seq(1, length(Links))))}
    catch
        Class:Reason:Trace ->
            lists:foreach(fun(Site) -> remove(namespace(Site)) end, Sites),
            erlang:raise(Class, Reason, Trace)
    end.

open_site(Site, #state{sites = Sites} = S) ->
    Name = namespace(Site),
    %% One that was opened before, by a process that has just ended, may not be gone yet.
    await(fun() -> string:find(os:cmd("ip netns list"), Name) =:= nomatch end),
    must("ip netns add ~s", [Name]),
    must("ip -n ~s link set lo up", [Name]),
    must("ip -n ~s address add ~s/32 dev lo", [Name, address(number(Site, Sites))]),
    %% What one measurement learns of the link is not for the next one.
    must("ip netns exec ~s sh -c 'echo 1 > /proc/sys/net/ipv4/tcp_no_metrics_save'", [Name]),
    _ = open_port({spawn_executable, os:find_executable("ip")},
                  [{args, ["netns", "exec", Name, os:find_executable("epmd")]},
                   {env, [{"ERL_EPMD_ADDRESS", address(number(Site, Sites))}]}, stderr_to_stdout]),
    await(fun() ->
                  nomatch =/= string:find(os:cmd("ip netns exec " ++ Name ++ " epmd -names 2>&1"),
                                          "up and running")
          end),
    S.

open_link(Program, {A, B} = Link, N, #state{sites = Sites, links = Links} = S) ->
    Device = "wan" ++ integer_to_list(N),
    Port = open_port({spawn_executable, Program},
                     [{args, [namespace(A), namespace(B), Device]}, {line, 1000}]),
    "ready" = answer(Port),
    lists:foreach(fun(Site) ->
                          must("ip -n ~s link set ~s txqueuelen 20000 mtu 1500 up",
                               [namespace(Site), Device])
                  end,
                  [A, B]),
    routes(Link, Device, cubic, Sites),
    "ok" = tell(Port, "both", limit, ?LIMIT),
    S#state{links = Links#{Link => {Port, Device}}}.

%% By route: a namespace's own default must be one that is allowed to everybody outside,
%% and cubic may not be.
routes({A, B}, Device, CongestionControl, Sites) ->
    lists:foreach(fun({Here, There}) ->
                          must("ip -n ~s route replace ~s/32 dev ~s src ~s congctl ~s",
                               [namespace(Here), address(number(There, Sites)), Device,
                                address(number(Here, Sites)), CongestionControl])
                  end, [{A, B}, {B, A}]).

handle_call({set, {A, B} = Link, From, Settings}, _, #state{links = Links} = S) ->
    #{Link := {Port, _}} = Links,
    Way = case From of
              both -> "both";
              A -> "ab";
              B -> "ba"
          end,
    maps:foreach(fun(Setting, Value) -> "ok" = tell(Port, Way, Setting, Value) end, Settings),
    {reply, ok, S};
handle_call({stats, Link}, _, #state{links = Links} = S) ->
    #{Link := {Port, _}} = Links,
    true = port_command(Port, "stats\n"),
    ["stats" | Words] = string:lexemes(answer(Port), " "),
    [Cpu, P1, B1, F1, L1, E1, M1, T1, P2, B2, F2, L2, E2, M2, T2] =
        [list_to_integer(W) || W <- Words],
    {reply, #{cpu => Cpu, packets => P1 + P2, bytes => B1 + B2, full => F1 + F2, lost => L1 + L2,
              failed => E1 + E2, most => max(M1, M2), late => max(T1, T2)}, S};
handle_call({congestion_control, Name}, _, #state{sites = Sites, links = Links} = S) ->
    maps:foreach(fun(Link, {_, Device}) -> routes(Link, Device, Name, Sites) end, Links),
    {reply, ok, S};
handle_call({address, Site}, _, #state{sites = Sites} = S) ->
    {reply, address(number(Site, Sites)), S}.

handle_cast(_, S) ->
    {noreply, S}.

handle_info({'DOWN', _, process, _, _}, S) -> {stop, normal, S};
handle_info(_, S) -> {noreply, S}.

%% (A program that has died has closed its port.)
terminate(_, #state{sites = Sites, links = Links}) ->
    lists:foreach(fun({Port, _}) -> try port_close(Port) catch error:badarg -> true end end,
                  maps:values(Links)),
    lists:foreach(fun(Site) -> remove(namespace(Site)) end, Sites).

tell(Port, Way, Setting, Value) ->
    true = port_command(Port, io_lib:format("~s ~s ~w~n", [Way, Setting, Value])),
    answer(Port).

answer(Port) ->
    receive
        {Port, {data, {eol, Line}}} -> Line;
        {'EXIT', Port, Reason} -> exit({wan, Reason})
    after ?PATIENCE ->
            exit({wan, no_answer})
    end.

%% Compiled when it is newer than what was.
program() ->
    Source = filename:join(
               filename:dirname(proplists:get_value(source, ?MODULE:module_info(compile))),
               "wan.c"),
    Program = filename:join(filename:dirname(code:which(?MODULE)), "wan"),
    case filelib:last_modified(Program) > filelib:last_modified(Source) of
        true -> ok;
        false -> must("cc -O2 -Wall -o '~s' '~s'", [Program, Source])
    end,
    Program.

number(Site, Sites) -> length(lists:takewhile(fun(S) -> S =/= Site end, Sites)) + 1.

namespace(Site) -> ?PREFIX ++ os:getpid() ++ "_" ++ atom_to_list(Site).

%% Those of nodes that were killed. (A namespace has the process id of its node in its
%% name: runs at the same time do not meet.)
remove_stale() ->
    Names = [Name || Line <- string:lexemes(os:cmd("ip netns list"), "\n"),
                     [Name | _] <- [string:lexemes(Line, " ")],
                     string:prefix(Name, ?PREFIX) =/= nomatch],
    lists:foreach(fun(Name) ->
                          [Pid | _] = string:lexemes(string:prefix(Name, ?PREFIX), "_"),
                          filelib:is_file("/proc/" ++ Pid) orelse remove(Name)
                  end, Names).

%% With the processes in it, which are all ours.
remove(Name) ->
    lists:foreach(
      fun(Pid) -> os:cmd("kill -KILL " ++ Pid) end,
      [Pid || Pid <- string:lexemes(os:cmd("ip netns pids " ++ Name ++ " 2>/dev/null"), "\n"),
              lists:all(fun(C) -> C >= $0 andalso C =< $9 end, Pid)]),
    os:cmd("ip netns del " ++ Name).

must(Format, Args) ->
    Command = lists:flatten(io_lib:format(Format, Args)),
    case os:cmd(Command) of
        "" -> ok;
        Error -> exit({wan, Command, Error})
    end.

await(Fun) -> await(Fun, ?PATIENCE div 10).

await(Fun, Tries) when Tries > 0 ->
    Fun() orelse (timer:sleep(10) =:= ok andalso await(Fun, Tries - 1)).
