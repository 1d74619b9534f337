%% Measures plain distribution and Trunkline in turn, between this node and another one.
%%
%% There are three experiments, each by `!' and by lane, A B A B ...: small messages one way, calls,
%% and pings beside large messages. While plain distribution is measured, the connection does not
%% gather what is sent (delay_send, see trunkline_socket), unless that is configured: without
%% Trunkline it would not. All of them together are bounded in time and in bytes. The processes at
%% the other node are linked to one process here, so that all of them end with that process or with
%% the connection.
-module(trunkline_compare).
-moduledoc false.

-export([options/1, compare/2]).
-export([median/1, percentile/2]).
-export([counter/1, server/0, sink/1]).

-export_type([report/0, error/0]).

-type result() :: #{plain := [number()], lane := [number()],
                    ratio := float(),                  % of medians
                    clear := boolean()}.               % the two ranges do not overlap
-type report() :: #{one_way := result(),               % messages a second
                    calls := result(),                 % calls a second
                    ping := result()}.                 % us, 99th percentile
-type error() :: not_alive | stopped | noconnection | no_trunkline | drained | busy | timeout
               | {failed, term()}.

-define(TIME, 10_000).
%% More ms, for a node that does not respond.
-define(GRACE, 5_000).
-define(BYTES, 2_000_000_000).
-define(ROUNDS, 3).
%% The share of the time that is measured. The rest goes to starting and ending the measurements.
-define(SHARE, 0.75).

-define(SENDERS, 8).
-define(CALLERS, 50).
-define(LARGE, 10_000_000).
%% Large messages, at most, whose arrival the other node has not reported.
-define(OUTSTANDING, 2).
%% Messages that are sent between two looks at the clock.
-define(CHUNK, 50).

%% A system with more work than this is busy: runnable processes per scheduler, and writes per
%% second on the connection.
-define(RUNNABLE, 0.5).
-define(WRITES, 1000).
-define(LOOK, 500).

%% Prints a table and returns the figures. It refuses if this node is not distributed (`not_alive'),
%% if Trunkline does not run here (`stopped') or messages to that node do not go by lane
%% (`no_trunkline') or do not any more (`drained'), without a connection (`noconnection'), and on a
%% busy system (`busy'). It gives up (`timeout') on a node that does not respond.
-spec compare(node(), trunkline:compare_options()) -> {ok, report()} | {error, error()}.
compare(Node, Options) ->
    Self = self(),
    {Pid, Ref} = spawn_monitor(fun() ->
                                       ok = end_with(Self),
                                       Self ! {self(), measured(Node, Options)}
                               end),
    receive
        {Pid, {ok, Report} = Measured} ->
            demonitor(Ref, [flush]),
            print(Node, Report),
            Measured;
        {Pid, {error, _} = Error} ->
            demonitor(Ref, [flush]),
            Error;
        {'DOWN', Ref, process, Pid, noconnection} ->
            {error, noconnection};
        {'DOWN', Ref, process, Pid, Reason} ->
            {error, {failed, Reason}}
    after maps:get(time, Options, ?TIME) + ?GRACE ->
            exit(Pid, kill),
            receive {'DOWN', Ref, process, Pid, _} -> ok end,
            receive {Pid, _} -> ok after 0 -> ok end,
            {error, timeout}
    end.

%% Another process kills the calling one when that one ends.
end_with(Caller) ->
    Measuring = self(),
    _ = spawn(fun() ->
                      Ref = monitor(process, Measuring),
                      Its = monitor(process, Caller),
                      receive
                          {'DOWN', Its, process, _, _} -> exit(Measuring, kill);
                          {'DOWN', Ref, process, _, _} -> ok
                      end
              end),
    ok.

%% Another process calls that when the calling one has ended, also if the application stops that the
%% caller of compare/2 belongs to.
at_end(Fun) ->
    Measuring = self(),
    trunkline_process:outlive(spawn(fun() ->
                                            Ref = monitor(process, Measuring),
                                            receive {'DOWN', Ref, process, _, _} -> Fun() end
                                    end)).

measured(Node, Options) ->
    case may(Node, maps:get(force, Options, false)) of
        ok ->
            ok = at_end(fun() -> gather(lane, Node) end),
            {ok, measure(Node, Options)};
        Refused -> {error, Refused}
    end.

-spec options(term()) -> [trunkline_function_options:declared()].
options(_) ->
    [{time, io_lib:format("an integer from 1000 to ~b", [?TIME]),
      fun(Ms) -> is_integer(Ms) andalso Ms >= 1000 andalso Ms =< ?TIME end},
     {bytes, "a positive integer", fun(Bytes) -> is_integer(Bytes) andalso Bytes > 0 end},
     {force, "a boolean", fun is_boolean/1}].

may(_, _) when node() =:= nonode@nohost ->
    not_alive;
may(Node, Force) ->
    case trunkline_info:whether_up(Node) of
        up when Force -> ok;
        up -> is_quiet(Node);
        opening -> no_trunkline;
        Why -> Why
    end.

is_quiet(Node) ->
    Runnable = [erpc:call(N, erlang, statistics, [total_run_queue_lengths])
                || N <- [node(), Node], _ <- lists:seq(1, 20)],
    Limit = ?RUNNABLE * 20 * 2 * erlang:system_info(schedulers_online),
    case lists:sum(Runnable) > Limit orelse trunkline_advise:look(?LOOK, [Node]) of
        true -> busy;
        [#{socket := #{writes := Writes}}] when Writes > ?WRITES -> busy;
        _ -> ok
    end.

measure(Node, Options) ->
    Each = ?SHARE * maps:get(time, Options, ?TIME) / (3 * 2 * ?ROUNDS),
    Bytes = maps:get(bytes, Options, ?BYTES) div (2 * ?ROUNDS),
    Way = fun(W) ->
                  ok = gather(W, Node),
                  #{one_way => one_way(W, Node, Each), calls => calls(W, Node, Each),
                    ping => ping(W, Node, Each, Bytes)}
          end,
    Measured = [{W, Way(W)} || _ <- lists:seq(1, ?ROUNDS), W <- [plain, lane]],
    maps:from_list([{What, result([{W, maps:get(What, Figures)} || {W, Figures} <- Measured])}
                    || What <- [one_way, calls, ping]]).

%% Both ends, if there is a connection. (To ask would make one.)
gather(Way, Node) ->
    ok = trunkline_socket:gather(Node, Way =:= lane),
    try lists:member(Node, nodes(connected))
             andalso erpc:call(Node, trunkline_socket, gather, [node(), Way =:= lane])
    of
        _ -> ok
    catch
        error:{erpc, _} -> ok;                % there is no connection any more
        error:{exception, undef, _} -> ok     % an earlier release, which does not set delay_send
    end.

result(Figures) ->
    Plain = [round(F) || {plain, F} <- Figures],
    Lane = [round(F) || {lane, F} <- Figures],
    #{plain => Plain, lane => Lane, ratio => round(100 * median(Lane) / median(Plain)) / 100,
      clear => lists:min(Lane) > lists:max(Plain) orelse lists:max(Lane) < lists:min(Plain)}.

%% --- one way -------------------------------------------------------------------

one_way(Way, Node, Time) ->
    Began = now_us(),
    Sent = in_parallel(?SENDERS,
                       fun() ->
                               Counter = spawn_link(Node, ?MODULE, counter, [self()]),
                               N = flood(Way, Counter, Began + round(Time * 1000), 0),
                               _ = send(Way, Counter, {done, N}),
                               receive {counted, Counter, N} -> N end
                       end),
    lists:sum(Sent) * 1.0e6 / (now_us() - Began).

flood(Way, To, Until, N) ->
    _ = [send(Way, To, {ping, I, 1}) || I <- lists:seq(N + 1, N + ?CHUNK)],
    case now_us() < Until of
        true -> flood(Way, To, Until, N + ?CHUNK);
        false -> N + ?CHUNK
    end.

-spec counter(pid()) -> ok.
counter(Parent) -> counter(Parent, 0).

counter(Parent, N) ->
    receive
        {ping, _, 1} -> counter(Parent, N + 1);
        {done, N} -> Parent ! {counted, self(), N}, ok
    end.

send(plain, To, Message) -> To ! Message;
send(lane, To, Message) -> trunkline_send:send(To, Message).

%% --- calls -----------------------------------------------------------------------

calls(Way, Node, Time) ->
    Server = spawn_link(Node, ?MODULE, server, []),
    Began = now_us(),
    Made = in_parallel(?CALLERS, fun() -> caller(Way, Server, Began + round(Time * 1000), 0) end),
    Rate = lists:sum(Made) * 1.0e6 / (now_us() - Began),
    Server ! stop,
    Rate.

caller(Way, Server, Until, N) ->
    N = call(Way, Server, N),
    case now_us() < Until of
        true -> caller(Way, Server, Until, N + 1);
        false -> N + 1
    end.

call(plain, Server, Request) -> gen_server:call(Server, Request, infinity);
call(lane, Server, Request) ->
    trunkline_call:call(Server, Request, infinity, {trunkline, call, [Server, Request]}).

%% Replies with the request.
-spec server() -> ok.
server() ->
    receive
        {'$gen_call', From, Request} -> gen_server:reply(From, Request), server();
        stop -> ok
    end.

%% --- pings beside large messages -----------------------------------------------------

ping(Way, Node, Time, Bytes) ->
    Server = spawn_link(Node, ?MODULE, server, []),
    Sink = spawn_link(Node, ?MODULE, sink, [self()]),
    Until = now_us() + round(Time * 1000),
    Self = self(),
    Pinger = spawn_link(fun() -> Self ! {self(), pinger(Way, Server, Until, [])} end),
    Large = binary:copy(<<0>>, ?LARGE),
    burden(Way, Sink, Large, Until, Bytes div ?LARGE, 0),
    Latencies = receive {Pinger, L} -> L end,
    Server ! stop,
    unlink(Sink),
    exit(Sink, kill),
    percentile(99, Latencies).

pinger(Way, Server, Until, Latencies) ->
    Began = now_us(),
    ping = call(Way, Server, ping),
    Ended = now_us(),
    %% A quiet sender, not a flood.
    receive after 1 -> ok end,
    case Ended < Until of
        true -> pinger(Way, Server, Until, [Ended - Began | Latencies]);
        false -> [Ended - Began | Latencies]
    end.

%% Sends as many large messages as time and budget allow, a few at a time.
burden(_, Sink, _, _, 0, Outstanding) ->
    settle(Sink, Outstanding);
burden(Way, Sink, Large, Until, Left, ?OUTSTANDING) ->
    receive {arrived, Sink} -> burden(Way, Sink, Large, Until, Left, ?OUTSTANDING - 1) end;
burden(Way, Sink, Large, Until, Left, Outstanding) ->
    case now_us() < Until of
        true ->
            _ = send(Way, Sink, Large),
            burden(Way, Sink, Large, Until, Left - 1, Outstanding + 1);
        false ->
            settle(Sink, Outstanding)
    end.

settle(_, 0) -> ok;
settle(Sink, N) -> receive {arrived, Sink} -> settle(Sink, N - 1) end.

-spec sink(pid()) -> no_return().
sink(Parent) ->
    receive _ -> Parent ! {arrived, self()} end,
    sink(Parent).

%% --- figures ---------------------------------------------------------------------------

in_parallel(N, Fun) ->
    Self = self(),
    Pids = [spawn_link(fun() -> Self ! {self(), Fun()} end) || _ <- lists:seq(1, N)],
    [receive {Pid, Result} -> Result end || Pid <- Pids].

now_us() -> erlang:monotonic_time(microsecond).

-spec median([number(), ...]) -> number().
median(Values) -> percentile(50, Values).

%% The value that Percent per cent of the values do not exceed.
-spec percentile(number(), [number(), ...]) -> number().
percentile(Percent, Values) ->
    lists:nth(max(1, ceil(length(Values) * Percent / 100)), lists:sort(Values)).

%% Two lines for each result: medians, and lowest .. highest. They fit into 80 columns.
print(Node, #{one_way := OneWay, calls := Calls, ping := Ping} = Report) ->
    io:format("~ts and ~ts, ~b rounds each.~n"
              "First line: the median. Second line: lowest .. highest.~n~n",
              [node(), Node, ?ROUNDS]),
    line("", ["OTP", "Trunkline"], "  ratio"),
    row("messages/s", ["~b senders; higher is better", ?SENDERS], OneWay),
    row("calls/s", ["~b callers; higher is better", ?CALLERS], Calls),
    row("microseconds, 99% of calls", ["beside 10 MB; lower is better"], Ping),
    [io:format("* The ranges overlap: no clear difference. The nodes may be too busy to tell.~n")
     || lists:any(fun(#{clear := Clear}) -> not Clear end, maps:values(Report))],
    ok.

row(What, [Format | Args], #{plain := Plain, lane := Lane, ratio := Ratio, clear := Clear}) ->
    line(What, [integer_to_list(round(median(Values))) || Values <- [Plain, Lane]],
         io_lib:format("  ~.2f~ts", [Ratio, case Clear of true -> ""; false -> "*" end])),
    line(["  ", io_lib:format(Format, Args)],
         [io_lib:format("~b .. ~b", [round(lists:min(Values)), round(lists:max(Values))])
          || Values <- [Plain, Lane]], ""),
    io:nl().

line(What, Values, Ratio) ->
    io:format("  ~-31ts~19ts~21ts~ts~n", [What | Values] ++ [Ratio]).
