%% What it costs to be looked at: messages one way between two nodes, while nobody looks, and while
%% everybody does.
%%
%% Observed means, at both nodes: a handler of telemetry counts all events, measure/0 runs each
%% second, and so does trunkline_top; the page of trunkline_web is open, and Prometheus reads the
%% metrics each second. Those who read over HTTP are in a third node, whose time is not counted.
%%
%% (Telemetry is a stand-in with one handler. It is there when Trunkline starts, or it is not, so
%% each measurement starts Trunkline again, also the two that nobody looks at.)
-module(bench_observed).

-export([main/0]).
-export([start/1, top/0, count/0, read/1, answer/1]).

%% ms, as the page and a scraper do
-define(PAGE, 2_000).
-define(SCRAPE, 1_000).
%% A measurement takes so long, at least: several looks.
-define(SECONDS, 4).

main() ->
    bench:run(fun run/0).

run() ->
    {_, Node} = Peer = bench:start_peer([]),
    {ok, Reader, _} = peer:start_link(#{connection => standard_io,
                                        args => ["-pa" | code:get_path()]}),
    %% Its clients are killed.
    ok = peer:call(Reader, logger, set_primary_config, [level, none]),
    bench:say("8 to 8, looked at or not; ~b rounds", [bench:rounds()]),
    _ = started(unobserved, Node),
    N = round(?SECONDS * bench_throughput:run(trunkline, 8, ping, Node, 50_000)),
    Units = ["messages/s", "us of both nodes"],
    Case = bench:a_case("8 to 8, {ping, N, 1}", Units, [unobserved],
                        [{V, fun() -> measure(V, Reader, Node, N) end}
                         || V <- [unobserved, unobserved_again, observed]]),
    peer:stop(Reader),
    bench:stop_peer(Peer),
    Results = [{_, [{_, Rates}]} | _] = bench:results(Units, [Case]),
    bench:finish("observed", Results,
                 [bench:target("rate observed / unobserved", at_least, 0.98,
                               bench:ratio(observed, unobserved, Rates))]).

%% Messages a second, and the processor time of one.
measure(Variant, Reader, Node, N) ->
    Readers = [peer:call(Reader, ?MODULE, read, [Address])
               || Address <- started(Variant, Node), Address =/= none],
    Before = bench:processors(Node),
    Rate = bench_throughput:run(trunkline, 8, ping, Node, N div 8),
    Used = bench:processors(Node) - Before,
    lists:foreach(fun(Pid) -> peer:call(Reader, erlang, exit, [Pid, kill]) end, Readers),
    [Rate, Used / N].

%% The addresses of both nodes' pages.
started(Variant, Node) ->
    Addresses = [erpc:call(At, ?MODULE, start, [Variant]) || At <- [node(), Node]],
    ok = bench:await_up(node(), Node),
    Addresses.

%% Starts Trunkline again. The page's address, if there is one.
-spec start(observed | unobserved | unobserved_again) -> string() | none.
start(Variant) ->
    ok = logger:set_primary_config(level, none),       % "stopped"
    _ = application:stop(trunkline),
    bench:log_briefly(),
    lists:foreach(fun(Name) -> ended(whereis(Name)) end, [bench_top, bench_count]),
    _ = code:delete(telemetry),
    _ = code:purge(telemetry),
    Variant =:= observed andalso load(),
    ok = application:start(trunkline),
    case Variant of
        observed ->
            lists:foreach(fun(F) ->
                                  Pid = spawn(?MODULE, F, []),
                                  group_leader(spawn(?MODULE, answer, [Pid]), Pid)
                          end, [top, count]),
            {ok, Address} = trunkline_web:start(#{port => 0}),
            Address;
        _ ->
            none
    end.

ended(undefined) ->
    ok;
ended(Pid) ->
    Ref = monitor(process, Pid),
    exit(Pid, kill),
    receive {'DOWN', Ref, process, Pid, _} -> ok end.

load() ->
    Forms = [begin
                 {ok, Tokens, _} = erl_scan:string(Text),
                 {ok, Form} = erl_parse:parse_form(Tokens),
                 Form
             end || Text <- ["-module(telemetry).", "-export([execute/3]).",
                             "execute(_, _, _) -> "
                             "counters:add(persistent_term:get(bench_observed), 1, 1)."]],
    persistent_term:put(?MODULE, counters:new(1, [])),
    {ok, telemetry, Code} = compile:forms(Forms),
    {module, telemetry} = code:load_binary(telemetry, "", Code).

%% A screen each second.
-spec top() -> no_return().
top() ->
    whereis(bench_top) =:= self() orelse register(bench_top, self()),
    ok = trunkline_top:once(),
    top().

%% As telemetry_poller does.
-spec count() -> no_return().
count() ->
    whereis(bench_count) =:= self() orelse register(bench_count, self()),
    _ = trunkline_metrics:measure(),
    receive after ?SCRAPE -> count() end.

%% The terminal, as long as that process lives: takes everything.
-spec answer(pid()) -> ok.
answer(Pid) ->
    Ref = monitor(process, Pid),
    answer_all(Ref).

answer_all(Ref) ->
    receive
        {'DOWN', Ref, process, _, _} -> ok;
        {io_request, From, Reply, Request} ->
            From ! {io_reply, Reply, case Request of
                                         {get_geometry, _} -> {error, enotsup};
                                         _ -> ok
                                     end},
            answer_all(Ref)
    end.

%% At the third node: reads what a page and a scraper read, until it is killed.
-spec read(string()) -> pid().
read(Address) ->
    {ok, _} = application:ensure_all_started(inets),
    spawn(fun() ->
                  Page = self(),
                  _ = spawn(fun() -> scrape(monitor(process, Page), Address) end),
                  page(Address, "0")
          end).

scrape(Ref, Address) ->
    _ = get(Address, "metrics"),
    receive {'DOWN', Ref, process, _, _} -> ok after ?SCRAPE -> scrape(Ref, Address) end.

page(Address, Since) ->
    Body = get(Address, "samples?since=" ++ Since),
    Numbers = case re:run(Body, "\"n\":([0-9]+)", [global, {capture, all_but_first, list}]) of
                  {match, Matches} -> [list_to_integer(N) || [N] <- Matches];
                  nomatch -> []
              end,
    receive after ?PAGE -> ok end,
    page(Address, integer_to_list(lists:max([list_to_integer(Since) | Numbers]))).

get(Address, What) ->
    {ok, {{_, 200, _}, _, Body}} = httpc:request(Address ++ What),
    Body.
