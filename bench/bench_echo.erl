%% Experiment 2, "throughput falls with distance", with plain TCP: what of it is the
%% closed loop's arithmetic, what the emulated link's packet queue, what TCP, and what
%% the processors.
%%
%% Two sites with tools/wan between them, and one node at each that is both its echo
%% server and its clients: on two processors, a node for each of them made no difference
%% to the processor time of a request that we could tell from noise. Every worker has a
%% connection to the server of each site ({packet, 2}, nodelay; the server
%% {active, once}), and again and again picks one uniformly at random, sends 1 KB and
%% waits for the same bytes. Its own site is always next door, over the namespace's own
%% address.
%%
%% A case has its own connections. They are opened while the link has neither delay nor
%% limit, then it gets both, the workers start, and after a while ROUNDS windows of half
%% of SECONDS are counted, one after the other: opening and warming up take longer than
%% a window. A request counts in the window in which its answer comes. All connections
%% are reset, and their processes gone, before the next case.
%%
%% The processor figures are the whole machine's: whatever else runs there is in them.
-module(bench_echo).
-behaviour(gen_server).

-export([main/0, measure/1]).
-export([start/2, connect/3, go/0, counts/0, rest/0, stop/0]).      % at a site
-export([init/1, handle_call/3, handle_cast/2]).

-type setting() ::
          #{workers := pos_integer(), round_trip := non_neg_integer(), limit := pos_integer(),
            congestion := binary()}.
%% Lists have a value a window, and all else is of all windows together. own and far
%% are mean latencies in ms of requests to a site; idle, emulator and others (who are not
%% of this benchmark, and what the kernel charges to nobody) are parts of the processors'
%% time; cost is what sites and emulator used of it, in us for each request.
-type figures() :: #{setting := setting(), rates | latencies := [float()],
                     rate | latency | own | far | idle | emulator | others | cost := float(),
                     retransmitted | timeouts | full | packets | most := non_neg_integer()}.

-define(SITES, [a, b]).
-define(LINK, {a, b}).
-define(WORKERS, [20, 50, 100, 200, 500, 1000, 2000]).
-define(ROUND_TRIPS, [0, 10, 50, 100]).
%% Few enough to wait for nothing but the way.
-define(UNLOADED, 4).
-define(QUEUE_WORKERS, [200, 1000, 2000]).
-define(QUEUES, [25, 50, 100, 1000]).
-define(QUEUE_ROUND_TRIP, 10).
%% Where TCP's settings could matter: segments are lost, and connections pause.
-define(TCP_CASE, #{workers => 1000, round_trip => ?QUEUE_ROUND_TRIP, limit => 50}).
%% Never full.
-define(NO_LIMIT, 100_000).

-define(PORT, 7007).
-define(REQUEST, 1024).
-define(OPTIONS, [binary, {packet, 2}, {nodelay, true}, {linger, {true, 0}}, {active, false}]).
-define(WARM, 700).
-define(PATIENCE, 60_000).

%% What the explanation calls the same, and what it calls busy.
-define(NEAR, 0.15).
-define(BUSY, 0.15).

-spec main() -> no_return().
main() -> bench:run(fun run/0).

run() ->
    Wan = wan:open(?SITES, [?LINK]),
    Results = measure(Wan),
    ok = wan:close(Wan),
    bench:finish("echo", Results, []).

%% At the first two sites of an emulated network, a and b, with a link between them,
%% which afterwards has no delay and no limit.
-spec measure(Wan :: pid()) -> [{Unit :: string(), [bench:result()]}].
measure(Wan) ->
    Nodes = [wan:start_node(Wan, Site, peer:random_name(echo),
                            ["+sbwt", "none", "+sbwtdcpu", "none", "+sbwtdio", "none"])
             || Site <- ?SITES],
    Peers = [Peer || {Peer, _, _} <- Nodes],
    ok = lists:foreach(fun(Peer) -> peer:call(Peer, bench, log_briefly, []) end, Peers),
    bench:say("~nEcho over plain TCP, 1 KB, closed loop, two sites; ~w windows of ~.2f s a case",
              [bench:rounds(), window() / 1000]),
    Unloaded = [figures(Wan, Peers, setting(?UNLOADED, RoundTrip, ?NO_LIMIT))
                || RoundTrip <- ?ROUND_TRIPS],
    Grid = grid(Wan, Peers, Unloaded),
    Queues = queues(Wan, Peers),
    Tcp = tcp(Wan, Peers),
    lists:foreach(fun peer:stop/1, Peers),
    explain(Unloaded, Grid, Queues, Tcp),
    results(Grid, Queues, Tcp).

setting(Workers, RoundTrip, Limit) ->
    #{workers => Workers, round_trip => RoundTrip, limit => Limit, congestion => <<"cubic">>}.

%% --- the cases -----------------------------------------------------------------

grid(Wan, Peers, Unloaded) ->
    bench:say("~nrequests/s, their mean latency (ms), the closed loop's requests/s "
              "(workers / latency when unloaded), idle processors~n"
              "~8ts~ts",
              ["workers",
               [io_lib:format("   ~32ts", [io_lib:format("~w ms round trip", [R])])
                || R <- ?ROUND_TRIPS]]),
    [begin
         Row = [figures(Wan, Peers, setting(Workers, RoundTrip, ?NO_LIMIT))
                || RoundTrip <- ?ROUND_TRIPS],
         bench:say("~8w~ts", [Workers, [cell(F, expected(F, Unloaded)) || F <- Row]]),
         Row
     end || Workers <- ?WORKERS].

cell(#{rate := Rate, latency := Latency, idle := Idle}, Expected) ->
    io_lib:format("   ~8w ~8.2f ~8w ~4w %", [round(Rate), Latency, round(Expected), percent(Idle)]).

%% What these workers do a second when nobody waits for anything but the way. Half of
%% the requests are to either site; what the unloaded workers happened to pick is not.
expected(#{setting := #{workers := Workers, round_trip := RoundTrip}}, Unloaded) ->
    [#{own := Own, far := Far}] =
        [U || #{setting := #{round_trip := R}} = U <- Unloaded, R =:= RoundTrip],
    Workers / ((Own + Far) / 2) * 1000.

queues(Wan, Peers) ->
    bench:say("~nThe same at ~w ms round trip, with a packet queue in the link~n"
              "~8ts ~8ts ~12ts ~12ts ~9ts ~9ts ~15ts ~10ts ~9ts ~5ts ~6ts ~9ts",
              [?QUEUE_ROUND_TRIP, "queue", "workers", "requests/s", "queue's cap", "own, ms",
               "far, ms", "retransmitted", "timeouts", "dropped", "most", "idle", "emulator"]),
    [[say_queue(figures(Wan, Peers, setting(Workers, ?QUEUE_ROUND_TRIP, Limit)))
      || Workers <- ?QUEUE_WORKERS]
     || Limit <- ?QUEUES].

say_queue(#{setting := #{workers := Workers, limit := Limit},
            retransmitted := Retransmitted} = F) ->
    #{rate := Rate, own := Own, far := Far, timeouts := Timeouts, full := Full, most := Most,
      idle := Idle, emulator := Emulator} = F,
    bench:say("~8w ~8w ~12w ~12w ~9.2f ~9.2f ~8w ~4.1f % ~10w ~9w ~5w ~4w % ~7w %",
              [Limit, Workers, round(Rate), round(cap(F)), Own, Far, Retransmitted,
               100 * part_retransmitted(F), Timeouts, Full, Most, percent(Idle),
               percent(Emulator)]),
    F.

%% The requests a second that a queue lets through: it passes limit / delay packets a
%% second each way, a far request is one each way, and half of the requests are far.
cap(#{setting := #{limit := Limit, round_trip := RoundTrip}}) -> 2 * Limit / (RoundTrip / 2 / 1000).

part_retransmitted(#{retransmitted := N, packets := Packets}) -> N / max(1, Packets).

tcp(Wan, Peers) ->
    #{workers := Workers, round_trip := RoundTrip, limit := Limit} = ?TCP_CASE,
    Cubic = setting(Workers, RoundTrip, Limit),
    bench:say("~nTCP's settings: ~w workers, ~w ms, a queue of ~w packets~n"
              "~40ts ~12ts ~15ts ~10ts ~6ts",
              [Workers, RoundTrip, Limit, "", "requests/s", "retransmitted", "timeouts", "idle"]),
    [{Name, say_tcp(Name, tcp(Name, Wan, Peers, Cubic))}
     || Name <- [cubic, no_idle_restart] ++ [bbr || has_bbr(Wan)]].

tcp(cubic, Wan, Peers, Setting) ->
    figures(Wan, Peers, Setting);
tcp(no_idle_restart, Wan, Peers, Setting) ->
    ok = idle_restart(Wan, 0),
    Figures = figures(Wan, Peers, Setting),
    ok = idle_restart(Wan, 1),
    Figures;
tcp(bbr, Wan, Peers, Setting) ->
    figures(Wan, Peers, Setting#{congestion := <<"bbr">>}).

idle_restart(Wan, Value) ->
    lists:foreach(
      fun(Site) ->
              "" = wan:run(Wan, Site,
                           io_lib:format("sh -c 'echo ~w > "
                                         "/proc/sys/net/ipv4/tcp_slow_start_after_idle'", [Value]))
      end, ?SITES).

say_tcp(Name,
        #{rate := Rate, retransmitted := Retransmitted, timeouts := Timeouts, idle := Idle} = F) ->
    bench:say("~40ts ~12w ~8w ~4.1f % ~10w ~4w %",
              [tcp_name(Name), round(Rate), Retransmitted, 100 * part_retransmitted(F), Timeouts,
               percent(Idle)]),
    F.

tcp_name(cubic) -> "cubic";
tcp_name(no_idle_restart) -> "cubic, tcp_slow_start_after_idle 0";
tcp_name(bbr) -> "bbr".

has_bbr(Wan) ->
    Known = string:lexemes(
              wan:run(Wan, hd(?SITES), "cat /proc/sys/net/ipv4/tcp_available_congestion_control"),
              " \n"),
    case lists:member("bbr", Known) of
        true -> true;
        false -> bench:say("(this kernel has no bbr)", []), false
    end.

%% --- one case --------------------------------------------------------------------

-spec figures(pid(), [pid()], setting()) -> figures().
figures(Wan, Peers,
        #{workers := Workers, round_trip := RoundTrip, limit := Limit,
          congestion := Congestion} = Setting) ->
    Addresses = [wan:address(N) || N <- lists:seq(1, length(?SITES))],
    Sites = lists:zip(Peers, Addresses),
    _ = [at(Peer, start, [Own, Congestion]) || {Peer, Own} <- Sites],
    _ = [at(Peer, connect, [Workers div length(?SITES), [Own | Addresses -- [Own]], Congestion])
         || {Peer, Own} <- Sites],
    ok = wan:set(Wan, ?LINK, #{delay => RoundTrip / 2, limit => Limit}),
    _ = [at(Peer, go, []) || Peer <- Peers],
    timer:sleep(?WARM + 5 * RoundTrip),
    Measured = count(Wan, Peers),
    _ = [at(Peer, rest, []) || Peer <- Peers],
    ok = wan:set(Wan, ?LINK, #{delay => 0, limit => ?NO_LIMIT}),
    _ = [at(Peer, stop, []) || Peer <- Peers],
    Measured#{setting => Setting}.

at(Peer, Function, Args) -> peer:call(Peer, ?MODULE, Function, Args, ?PATIENCE).

count(Wan, Peers) ->
    _ = wan:stats(Wan, ?LINK),
    Segments = segments(Wan),
    Processors = processors(),
    T0 = erlang:monotonic_time(microsecond),
    First = readings(Peers),
    Readings = [First | [timer:sleep(window()) =:= ok andalso readings(Peers)
                         || _ <- lists:seq(1, bench:rounds())]],
    Time = erlang:monotonic_time(microsecond) - T0,
    Idle = idle(Processors, processors()),
    [Retransmitted, Timeouts] =
        lists:zipwith(fun(After, Before) -> After - Before end, segments(Wan), Segments),
    #{cpu := Emulator, packets := Packets, full := Full, most := Most} = wan:stats(Wan, ?LINK),
    {Rate, [OwnN, OwnUs, FarN, FarUs, Sites]} = between(First, lists:last(Readings)),
    Used = (Sites + Emulator) / (Time * cores()),
    Windows = lists:zipwith(fun between/2, lists:droplast(Readings), tl(Readings)),
    Latencies = [mean(N1 + N2, Us1 + Us2) || {_, [N1, Us1, N2, Us2, _]} <- Windows],
    #{rates => [R || {R, _} <- Windows], latencies => Latencies,
      rate => Rate, latency => mean(OwnN + FarN, OwnUs + FarUs), own => mean(OwnN, OwnUs),
      far => mean(FarN, FarUs),
      retransmitted => Retransmitted, timeouts => Timeouts, full => Full, packets => Packets,
      most => Most,
      idle => Idle, emulator => Emulator / (Time * cores()), others => max(0.0, 1 - Idle - Used),
      cost => (Sites + Emulator) / max(1, OwnN + FarN)}.

window() -> round(bench:seconds() * 500).

%% Each site by its own clock, because the question may take a while to get there.
readings(Peers) -> [at(Peer, counts, []) || Peer <- Peers].

%% Requests a second, and all counters, of both sites.
between(Before, After) ->
    Differences = [{T1 - T0, lists:zipwith(fun erlang:'-'/2, C1, C0)}
                   || {{T0, C0}, {T1, C1}} <- lists:zip(Before, After)],
    Rate = lists:sum([(OwnN + FarN) / Us * 1.0e6 || {Us, [OwnN, _, FarN, _, _]} <- Differences]),
    {Rate,
     lists:foldl(fun({_, C}, Sum) -> lists:zipwith(fun erlang:'+'/2, C, Sum) end, [0, 0, 0, 0, 0],
                 Differences)}.

%% In ms.
mean(N, Us) -> Us / max(1, N) / 1000.

%% Segments sent again, and timeouts, at both sites.
segments(Wan) ->
    Counters = [string:lexemes(Line, " ")
                || Site <- ?SITES,
                   Line <- string:lexemes(
                             wan:run(Wan, Site, "nstat -asz TcpRetransSegs TcpExtTCPTimeouts"),
                             "\n")],
    [lists:sum([list_to_integer(Value) || [N, Value | _] <- Counters, N =:= Name])
     || Name <- ["TcpRetransSegs", "TcpExtTCPTimeouts"]].

%% user, nice, system, idle, iowait ... of all processors
processors() ->
    {ok, Text} = file:read_file("/proc/stat"),
    ["cpu" | Times] = string:lexemes(hd(string:lexemes(binary_to_list(Text), "\n")), " "),
    [list_to_integer(T) || T <- Times].

idle(Before, After) ->
    Times = lists:zipwith(fun(A, B) -> A - B end, After, Before),
    (lists:nth(4, Times) + lists:nth(5, Times)) / max(1, lists:sum(Times)).

cores() -> erlang:system_info(logical_processors_available).

percent(Part) -> round(100 * Part).

%% --- at a site -------------------------------------------------------------------

%% A process that everything at the site is linked to: its echo server, and its workers.
-spec start(Address :: string(), Congestion :: binary()) -> ok.
start(Address, Congestion) ->
    {ok, _} = gen_server:start({local, ?MODULE}, ?MODULE, {Address, Congestion},
                               [{spawn_opt, [{priority, high}]}]),
    ok.

%% So many workers, connected to the servers there, the own site's first.
-spec connect(Workers :: pos_integer(), Addresses :: [string()], Congestion :: binary()) -> ok.
connect(Workers, Addresses, Congestion) ->
    gen_server:call(?MODULE, {connect, Workers, Addresses, Congestion}, ?PATIENCE).

-spec go() -> ok.
go() -> gen_server:call(?MODULE, go).

%% Of the own site and the far one: requests, and us that they took, together; then the
%% node's processor time in us.
-spec counts() -> {Us :: integer(), [non_neg_integer()]}.
counts() -> gen_server:call(?MODULE, counts, ?PATIENCE).

%% The workers end. At both sites first, or those of the other would see a server end.
-spec rest() -> ok.
rest() -> gen_server:call(?MODULE, rest, ?PATIENCE).

-spec stop() -> ok.
stop() ->
    {links, Links} = process_info(whereis(?MODULE), links),
    Monitors = [monitor(process, Pid) || Pid <- Links, is_pid(Pid)],
    ok = gen_server:stop(?MODULE, shutdown, infinity),
    lists:foreach(fun await_end/1, Monitors).

await_end(Monitor) ->
    receive {'DOWN', Monitor, process, _, _} -> ok end.

init({Address, Congestion}) ->
    {ok, Ip} = inet:parse_address(Address),
    {ok, Listen} = gen_tcp:listen(?PORT, [{ip, Ip}, {backlog, 4096}, {reuseaddr, true} | ?OPTIONS]),
    Site = self(),
    _ = spawn(fun() -> accept(Site, Listen, Congestion) end),
    {ok, {[], counters:new(4, [write_concurrency])}}.

handle_call({connect, N, Addresses, Congestion}, _, {[], Counters}) ->
    Site = self(),
    Workers = [spawn_link(fun() -> worker(Site, Addresses, Congestion, Counters) end)
               || _ <- lists:seq(1, N)],
    lists:foreach(fun(Worker) -> receive {connected, Worker} -> ok end end, Workers),
    {reply, ok, {Workers, Counters}};
handle_call(go, _, {Workers, _} = State) ->
    lists:foreach(fun(Worker) -> Worker ! go end, Workers),
    {reply, ok, State};
handle_call(counts, _, {_, Counters} = State) ->
    {reply,
     {erlang:monotonic_time(microsecond),
      [counters:get(Counters, I) || I <- lists:seq(1, 4)] ++ [bench:used([os:getpid()])]}, State};
handle_call(rest, _, {Workers, Counters}) ->
    Monitors = [monitor(process, Worker) || Worker <- Workers],
    lists:foreach(fun(Worker) -> unlink(Worker), exit(Worker, kill) end, Workers),
    lists:foreach(fun await_end/1, Monitors),
    {reply, ok, {[], Counters}}.

handle_cast(_, State) -> {noreply, State}.

%% Whoever has accepted a connection starts who accepts the next, and owns it.
accept(Site, Listen, Congestion) ->
    case gen_tcp:accept(Listen) of
        {ok, Socket} ->
            link(Site),
            _ = spawn(fun() -> accept(Site, Listen, Congestion) end),
            ok = control(Socket, Congestion),
            echo(Socket);
        {error, closed} ->
            ok
    end.

%% A client that ends resets the connection, at whatever point of this.
echo(Socket) ->
    _ = inet:setopts(Socket, [{active, once}]),
    receive
        {tcp, Socket, Data} ->
            _ = gen_tcp:send(Socket, Data),
            echo(Socket);
        {tcp_closed, Socket} ->
            ok
    end.

worker(Site, Addresses, Congestion, Counters) ->
    Request = binary:copy(<<"x">>, ?REQUEST),
    Sockets = [connection(Address, Congestion) || Address <- Addresses],
    %% The server has accepted a connection when it answers, not when it is connected.
    lists:foreach(fun(Socket) -> ok = request(Socket, Request) end, Sockets),
    Site ! {connected, self()},
    receive go -> ok end,
    work(list_to_tuple(Sockets), Request, Counters).

connection(Address, Congestion) ->
    {ok, Socket} = gen_tcp:connect(Address, ?PORT, ?OPTIONS),
    ok = control(Socket, Congestion),
    Socket.

work(Sockets, Request, Counters) ->
    Which = rand:uniform(2),
    T0 = erlang:monotonic_time(microsecond),
    ok = request(element(Which, Sockets), Request),
    counters:add(Counters, 2 * Which - 1, 1),
    counters:add(Counters, 2 * Which, erlang:monotonic_time(microsecond) - T0),
    work(Sockets, Request, Counters).

request(Socket, Request) ->
    ok = gen_tcp:send(Socket, Request),
    {ok, Request} = gen_tcp:recv(Socket, 0),
    ok.

%% TCP_CONGESTION, once connected: until then the route's own would win. Read back,
%% because a setting that did not take would be measured as one that does nothing.
control(Socket, Congestion) ->
    ok = inet:setopts(Socket, [{raw, 6, 13, Congestion}]),
    {ok, [{raw, 6, 13, Got}]} = inet:getopts(Socket, [{raw, 6, 13, 16}]),
    Congestion = hd(binary:split(Got, <<0>>)),
    ok.

%% --- the explanation ---------------------------------------------------------------

explain(Unloaded, Grid, Queues, Tcp) ->
    bench:say("~nWhat explains it, by these figures:", []),
    explain_others(lists:append(Grid)),
    explain_loop(Unloaded, lists:append(Grid)),
    explain_distance(Grid),
    explain_queues(Queues),
    explain_tcp(Tcp).

explain_others(Cells) ->
    Others = bench:median([Part || #{others := Part} <- Cells]),
    Others > ?BUSY andalso
        bench:say("- Others have ~w % of the processors (a median): what the processors limit "
                  "would be more without them, and cases differ by what others did meanwhile.",
                  [percent(Others)]).

explain_loop(Unloaded, Cells) ->
    Parts = [{Rate / expected(F, Unloaded), F} || #{rate := Rate} = F <- Cells],
    {Near, Rest} = lists:partition(fun({Part, _}) -> Part >= 1 - ?NEAR end, Parts),
    bench:say("- Closed loop: ~w of ~w cells have at least ~.2f of workers / unloaded latency "
              "(a median of ~.2f).",
              [length(Near), length(Parts), 1 - ?NEAR, median_or_0([Part || {Part, _} <- Near])]),
    Rest =/= [] andalso explain_rest(Rest).

explain_rest(Rest) ->
    {Busy, Idle} = lists:partition(fun({_, F}) -> is_busy(F) end, Rest),
    bench:say("  The other ~w have ~.2f to ~.2f of it: "
              "in ~w of them the processors are the limit (idle for less than ~w %; "
              "others have ~w %, a median), in ~w not.",
              [length(Rest), lists:min([P || {P, _} <- Rest]), lists:max([P || {P, _} <- Rest]),
               length(Busy), percent(?BUSY),
               percent(median_or_0([Others || {_, #{others := Others}} <- Busy])), length(Idle)]).

median_or_0([]) -> 0.0;
median_or_0(Values) -> bench:median(Values).

is_busy(#{idle := Idle}) -> Idle < ?BUSY.

%% The most workers, with every round trip: the first is next door.
explain_distance(Grid) ->
    [NextDoor | Far] = lists:last(Grid),
    #{setting := #{workers := Workers}, rate := Rate, cost := Cost} = NextDoor,
    bench:say("- The VM and its processors, ~w workers: next door ~w requests/s, ~ts.",
              [Workers, round(Rate), load(NextDoor)]),
    lists:foreach(
      fun(#{setting := #{round_trip := RoundTrip}, rate := R, cost := C} = F) ->
              bench:say("  At ~w ms ~.2f of it, ~ts: ~ts.",
                        [RoundTrip, R / Rate, load(F), capacity(R / Rate, C / Cost, is_busy(F))])
      end, Far).

load(#{idle := Idle, cost := Cost, emulator := Emulator, others := Others}) ->
    io_lib:format("~.1f us of the processors for a request; "
                  "they are idle for ~w %, the emulator has ~w %, others have ~w %",
                  [Cost, percent(Idle), percent(Emulator), percent(Others)]).

capacity(Part, _, _) when Part >= 1 - ?NEAR -> "distance costs latency, not capacity";
capacity(_, Cost, true) ->
    io_lib:format("the processors are the limit, and a request costs them ~.2f times as much",
                  [Cost]);
capacity(_, _, false) -> "the processors are not the limit".

%% The longest queue is what the others are measured against.
explain_queues(Queues) ->
    Longest = lists:last(Queues),
    bench:say("- The link's queue, at ~w ms, ~w to ~w workers, against one of ~w packets:",
              [?QUEUE_ROUND_TRIP, hd(?QUEUE_WORKERS), lists:last(?QUEUE_WORKERS),
               lists:last(?QUEUES)]),
    lists:foreach(fun(Row) -> explain_queue(Row, Longest) end, Queues).

explain_queue([#{setting := #{limit := Limit}} | _] = Row, Longest) ->
    Rates = [Rate || #{rate := Rate} <- Row],
    Parts = [Rate / maps:get(rate, F) || {Rate, F} <- lists:zip(Rates, Longest)],
    [Dropped, Timeouts] = [lists:sum([maps:get(K, F) || F <- Row]) || K <- [full, timeouts]],
    bench:say("  ~w packets: ~w to ~w requests/s, ~.2f to ~.2f of limit / delay each way, "
              "~.2f to ~.2f of the longest queue's; ~ts.",
              [Limit, round(lists:min(Rates)), round(lists:max(Rates)),
               lists:min(Rates) / cap(hd(Row)), lists:max(Rates) / cap(hd(Row)), lists:min(Parts),
               lists:max(Parts), queue_limits(Dropped, Timeouts, Parts)]).

queue_limits(0, _, _) ->
    "it drops nothing, and is not the limit";
queue_limits(Dropped, Timeouts, Parts) ->
    Limited = length([Part || Part <- Parts, Part < 1 - ?NEAR]),
    io_lib:format("it drops ~w, TCP waits for ~w timeouts, and it is the limit in ~w of ~w cases",
                  [Dropped, Timeouts, Limited, length(Parts)]).

explain_tcp([{cubic, Base} | Others]) ->
    bench:say("- TCP, against cubic with restart after idle:", []),
    lists:foreach(
      fun({Name, #{rate := Rate} = F}) ->
              bench:say("  ~ts: ~.2f times as many requests/s, ~ts.",
                        [tcp_name(Name), Rate / maps:get(rate, Base), differs(Base, F)])
      end, Others).

%% Windows of the same case differ too.
differs(#{rates := [_]}, _) ->
    "and a single window does not say how much chance is in it";
differs(#{rates := As}, #{rates := Bs}) ->
    case lists:max(Bs) < lists:min(As) orelse lists:min(Bs) > lists:max(As) of
        true -> "which is more than the windows of a case differ";
        false -> "which is within what the windows of a case differ"
    end.

%% --- for bench_distance and finish/3 --------------------------------------------------

results(Grid, Queues, Tcp) ->
    Cells = [{title("echo, ~w workers", [Workers]),
              [{name("rtt_~w", R), F} || #{setting := #{round_trip := R}} = F <- Row]}
             || [#{setting := #{workers := Workers}} | _] = Row <- Grid],
    Rows = [{title("echo, ~w ms, a queue of ~w packets", [?QUEUE_ROUND_TRIP, Limit]),
             [{name("workers_~w", W), F} || #{setting := #{workers := W}} = F <- Row]}
            || [#{setting := #{limit := Limit}} | _] = Row <- Queues],
    Settings = [{"echo, TCP's settings", Tcp}],
    [{"requests/s", figure(rates, Cells ++ Rows ++ Settings)},
     {"ms", figure(latencies, Cells ++ Rows)},
     {"idle processors, %", figure(idle, Cells ++ Rows)},
     {"retransmitted", figure(retransmitted, Rows ++ Settings)},
     {"timeouts", figure(timeouts, Rows ++ Settings)},
     {"dropped", figure(full, Rows ++ Settings)}].

figure(Key, Cases) ->
    [{Case, [{Variant, values(maps:get(Key, F))} || {Variant, F} <- Variants]}
     || {Case, Variants} <- Cases].

values(Values) when is_list(Values) -> Values;
values(Part) when is_float(Part) -> [percent(Part)];
values(Number) -> [Number].

title(Format, Args) -> lists:flatten(io_lib:format(Format, Args)).

name(Format, Number) -> list_to_atom(title(Format, [Number])).
