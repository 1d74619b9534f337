%% What monitoring systems get: the text for Prometheus, measurements for telemetry, and the files
%% in priv/ that use them.
-module(metrics_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([text/1, page/1, promtool/1, agrees/1, inboxes/1, refused/1, nameless/1, names/1, hidden/1,
         stopped/1, refused_option/1, telemetry/1, rules/1, dashboard/1, scraped/1]).
-export([serve/0]).

suite() -> [{timetrap, {minutes, 3}}].

all() ->
    [text, page, promtool, agrees, inboxes, refused, nameless, names, hidden, stopped,
     refused_option, telemetry, rules, dashboard, scraped].

init_per_suite(Config) ->
    Root = command:root(),
    {A, B} = cluster:pair([]),
    [Pid] = cluster:call(B, traffic, start_receivers, [1]),
    Large = binary:copy(<<0>>, 200_000),
    Send = fun(N, Data) -> trunkline:send(Pid, {from, 1, N, Data}) end,
    cluster:call(A, fun() -> [Send(N, <<>>) || N <- lists:seq(1, 500)] ++ [Send(501, Large)] end),
    ok = send_past(A, B, fun(N) -> Send(N, lists:seq(1, 20_000)) end, Pid, 502),
    %% An inbox that is full: its server stands still, and has one more message.
    Inbox = #{messages => 100, work => 2, policy => drop_newest},
    {ok, _} = cluster:call(A, mailroom, start, [{local, post}, #{}, Inbox]),
    ok = cluster:call(A, mailroom, hold, [post]),
    cluster:call(A, fun() -> [post ! {from, 1, N, x} || N <- lists:seq(1, 150)] end),
    %% And two without a name.
    Open = fun() -> mailroom:own(fun() -> trunkline_inbox:open(#{}) end) end,
    [{ok, _} = cluster:call(A, Open) || _ <- [1, 2]],
    [{root, Root}, {a, A}, {b, B} | Config].

%% Long lists, until one of them has gone past the lanes.
send_past(A, B, Send, Pid, N) when N < 1000 ->
    cluster:call(A, fun() -> Send(N) end),
    cluster:await(fun() -> cluster:call(B, traffic, count, [Pid]) =:= N end),
    #{lanes := Lanes} = cluster:info(A, B),
    case lists:any(fun is_past/1, Lanes) of
        true -> ok;
        false -> send_past(A, B, Send, Pid, N + 1)
    end.

is_past(#{messages := Sent, batched_messages := Batched}) -> Sent > Batched.

end_per_suite(Config) -> cluster:stop_all([?config(a, Config), ?config(b, Config)]).

%% Each family has one HELP and one TYPE before its samples; no sample is there twice.
text(Config) ->
    Lines = lines(?config(a, Config)),
    {Names, Samples} = lists:foldl(fun line/2, {[], []}, Lines),
    ?assert(length(Names) > 30),
    ?assertEqual([], Names -- lists:usort(Names)),
    ?assertEqual([], Samples -- lists:usort(Samples)).

line(Line, {Names, Samples}) ->
    Comment = "^# (HELP|TYPE) (trunkline_[a-z_]+) (.+)$",
    case re:run(Line, Comment, [{capture, all_but_first, list}]) of
        {match, ["HELP", Name, _]} ->
            {[Name | Names], Samples};
        {match, ["TYPE", Name, Type]} ->
            ?assertEqual(Name, hd(Names)),
            ?assert(lists:member(Type, ["counter", "gauge", "histogram"])),
            ?assertEqual({Name, Type =:= "counter"}, {Name, lists:suffix("_total", Name)}),
            {Names, Samples};
        nomatch ->
            {match, [Sample, Name]} =
                re:run(Line, "^((trunkline_[a-z_]+)({[^ ]+})?) [-+.e0-9]+$",
                       [{capture, [1, 2], list}]),
            Suffixes = ["", "_bucket", "_sum", "_count"],
            ?assert(lists:member(Name, [hd(Names) ++ Suffix || Suffix <- Suffixes])),
            {Names, [Sample | Samples]}
    end.

%% The page explains each family, with its type and its labels, and no other.
page(Config) ->
    {ok, Page} = file:read_file(filename:join(?config(root, Config), "docs/operate/metrics.md")),
    Row = "^\\| `(trunkline_[a-z_]+)` \\| ([a-z]+) \\| ([^|]*)\\| [^|]+ \\|$",
    {match, Rows} = re:run(Page, Row, [global, multiline, {capture, all_but_first, list}]),
    Lines = lines(?config(a, Config)),
    Types = [list_to_tuple(string:lexemes(Line, " ")) || "# TYPE " ++ Line <- Lines],
    Exist = [{Name, Type, labels(Name, Lines)} || {Name, Type} <- Types],
    Explained = [{Name, Type, lists:sort(string:lexemes(Labels, "`, "))}
                 || [Name, Type, Labels] <- Rows],
    ?assertEqual(lists:sort(Exist), lists:sort(Explained)).

labels(Name, Lines) ->
    Found = [re:run(Labels, "([a-z_]+)=", [global, {capture, [1], list}])
             || Line <- Lines, lists:prefix(Name, Line),
                [Labels] <- [tl(string:split(Line, "{"))]],
    lists:usort(lists:append(lists:append([All || {match, All} <- Found]))) -- ["le"].

%% Prometheus' own tool has nothing to say against it.
promtool(Config) ->
    File = filename:join(?config(priv_dir, Config), "metrics.txt"),
    ok = file:write_file(File, prometheus(?config(a, Config))),
    run(Config, ["check", "metrics"], " <'" ++ File ++ "'").

%% It says what trunkline:info/1 says.
agrees(Config) ->
    {A, B} = {?config(a, Config), ?config(b, Config)},
    NodeB = cluster:node_of(B),
    Info = fun() -> maps:without([since], cluster:call(A, trunkline, info, [NodeB])) end,
    cluster:await(fun() -> #{lanes := Lanes} = Info(),
                           lists:all(fun(#{in_flight_messages := N}) -> N =:= 0 end, Lanes) end),
    #{lanes := Lanes, large := #{messages := Large}, state := up, sessions := Sessions} = Info(),
    Lines = lines(A),
    Peer = "peer=\"" ++ atom_to_list(NodeB) ++ "\"",
    Value = fun(Name, Labels) -> value(Lines, Name, lists:join(",", [Peer | Labels])) end,
    ?assertEqual(Large, Value("large_messages_sent_total", [])),
    ?assertEqual(Sessions, Value("sessions_total", [])),
    ?assertEqual([1, 0], [Value("peer_state", [State])
                          || State <- ["state=\"up\"", "state=\"down\""]]),
    lists:foreach(fun({Ix, #{messages := Messages, window_bytes := Window, waits := Waits}}) ->
                          Lane = ["lane=\"" ++ integer_to_list(Ix) ++ "\""],
                          ?assertEqual({Messages, Window, Waits},
                                       {Value("messages_sent_total", Lane),
                                        Value("window_bytes", Lane),
                                        Value("sender_waits_total", Lane)})
                  end, lists:enumerate(Lanes)),
    %% Long lists go past the lanes, and are in no batch.
    ?assert(lists:any(fun is_past/1, Lanes)),
    Batches = lists:sum([N || #{batches := N} <- Lanes]),
    ?assertEqual({Batches, Batches, lists:sum([N || #{batched_messages := N} <- Lanes])},
                 {Value("batch_messages_count", []),
                  Value("batch_messages_bucket", ["le=\"+Inf\""]),
                  Value("batch_messages_sum", [])}),
    %% Microseconds there. (It is measured beside the rest, maybe between the two looks.)
    cluster:await(fun() ->
                          #{round_trip := RoundTrip} = Info(),
                          Seconds = fun() -> value(lines(A), "round_trip_seconds", [Peer]) end,
                          is_integer(RoundTrip)
                              andalso round(Seconds() * 1_000_000) =:= RoundTrip
                  end).

%% And of inboxes what trunkline_inbox:info/1 says, a second later at most.
inboxes(Config) ->
    A = ?config(a, Config),
    #{queued_messages := Queued, queued_bytes := Bytes, dropped := Dropped,
      time_in_queue := Times} = cluster:call(A, trunkline_inbox, info, [post]),
    Passed = lists:sum([N || {_, N} <- Times]),
    ?assert(Passed > 0),
    ?assert(Dropped > 40),
    Value = fun(Name) -> value(lines(A), "inbox_" ++ Name, "inbox=\"post\"") end,
    cluster:await(fun() ->
                          Values = [Value(Name) || Name <- ["queue_messages", "queue_bytes",
                                                            "dropped_total", "passed_total",
                                                            "seconds_count"]],
                          Values =:= [Queued, Bytes, Dropped, Passed, Passed] orelse Values
                  end),
    ?assertEqual(0, value(lines(A), "inbox_queue_messages", "inbox=\"undefined\"")).

%% Senders that an inbox refuses, or makes wait, do not reach it.
refused(Config) ->
    {A, B} = {?config(a, Config), ?config(b, Config)},
    NodeA = cluster:node_of(A),
    Block = "inbox=\"block\",cargo=\"inbox\"",
    [begin
         {ok, _} = cluster:call(A, mailroom, start,
                                [{local, Policy}, #{}, #{messages => 5, work => 1,
                                                         policy => Policy}]),
         ok = cluster:call(A, mailroom, hold, [Policy])
     end || Policy <- [reject, block]],
    cluster:call(A, fun() -> [trunkline:send(reject, N) || N <- lists:seq(1, 100)], ok end),
    ?assert(value(lines(A), "inbox_refused_total", "inbox=\"reject\"") > 80),
    {ok, #{inboxes := Inboxes}} = cluster:call(A, trunkline_sample, take, [NodeA]),
    ?assertMatch([_], [x || #{name := reject, dropped := N} <- maps:values(Inboxes), N > 80]),
    %% A node that does not know the inbox learns of it.
    Peer = "peer=\"" ++ atom_to_list(NodeA) ++ "\"",
    cluster:await(fun() ->
                          _ = cluster:call(B, trunkline, send, [{reject, NodeA}, x]),
                          value(lines(B), "inbox_refused_total", Peer) > 0
                  end),
    ok = cluster:call(A, fun() ->
                                 _ = [spawn(trunkline, send, [block, N]) || N <- lists:seq(1, 50)],
                                 ok
                         end),
    cluster:await(fun() ->
                          %% (A node that does not answer in time has no count.)
                          #{nodes := #{NodeA := Node}} =
                              cluster:call(A, trunkline_inbox, info, [block]),
                          Waiting = maps:get(waiting, Node, 0),
                          Waiting > 40 andalso Waiting =:= value(lines(A), "senders_waiting", Block)
                  end),
    [ok = cluster:call(A, mailroom, release, [Policy]) || Policy <- [reject, block]],
    cluster:await(fun() -> value(lines(A), "senders_waiting", Block) =:= 0 end).

%% Inboxes without a name have no counters, which could fall; and a name is never theirs.
nameless(Config) ->
    A = ?config(a, Config),
    Has = fun(Name, Inbox) ->
                  Start = lists:flatten(["trunkline_inbox_", Name, "{inbox=\"", Inbox, "\""]),
                  lists:any(fun(Line) -> lists:prefix(Start, Line) end, lines(A))
          end,
    Families = ["queue_messages", "queue_bytes", "passed_total", "dropped_total",
                "seconds_bucket", "seconds_count"],
    ?assertEqual([true, true, false, false, false, false],
                 [Has(Family, "undefined") || Family <- Families]),
    {ok, _} = cluster:call(A, mailroom, start, [{local, unnamed}, #{}, #{}]),
    ?assertEqual([true || _ <- Families], [Has(Family, "unnamed") || Family <- Families]),
    {_, Samples} = lists:foldl(fun line/2, {[], []}, lines(A)),
    ?assertEqual([], Samples -- lists:usort(Samples)),
    ?assertEqual(1, length([Line || "# HELP trunkline_inbox_seconds " ++ Line <- lines(A),
                                    lists:suffix("without a _sum", Line)])).

%% A node may have any name.
names(Config) ->
    A = ?config(a, Config),
    Odd = list_to_atom("a\"\\\nb\x{e4}@host"),
    Text = cluster:call(
             A, fun() ->
                        #{stats := Stats} = Peer = hd(maps:values(trunkline_peers:all())),
                        true = trunkline_stats:get(Stats, peer, sessions) > 0,
                        ok = trunkline_peers:put(Odd, Peer),
                        Metrics = iolist_to_binary(trunkline_metrics:prometheus()),
                        ok = trunkline_peers:delete(Odd),
                        Metrics
                end),
    ?assertNotEqual(nomatch, binary:match(Text, <<"trunkline_sessions_total{peer=\""
                                                  "a\\\"\\\\\\nb\xc3\xa4@host\"} ">>)).

%% Remote shells are not there, and nodes that do not run Trunkline are.
hidden(Config) ->
    A = ?config(a, Config),
    [Plain, Shell] = Others = [cluster:start(none, peer:random_name(), Args)
                               || Args <- [[], ["-hidden"]]],
    lists:foreach(fun(Other) ->
                          ok = cluster:connect(A, Other),
                          cluster:await_state(A, Other, greeting)
                  end, Others),
    Has = fun(Other) ->
                  Name = atom_to_binary(cluster:node_of(Other)),
                  binary:match(prometheus(A), Name) =/= nomatch
          end,
    ?assertEqual([true, false], [Has(Plain), Has(Shell)]),
    %% As they would be for an hour.
    cluster:stop_all(Others),
    lists:foreach(fun(Other) -> cluster:await_state(A, Other, down) end, Others),
    ?assertEqual([false, false], [Has(Plain), Has(Shell)]).

%% Also one where it has not started, because of a value that no option may have.
refused_option(_) ->
    Node = cluster:start(none, peer:random_name(), []),
    ok = cluster:call(Node, application, load, [trunkline]),
    ok = cluster:call(Node, application, set_env, [trunkline, lane_transport, "tcp"]),
    {error, _} = cluster:call(Node, application, start, [trunkline]),
    Lines = lines(Node),
    ?assert(lists:member("trunkline_running 0", Lines)),
    ?assertMatch([_], [Line || "trunkline_options_info{" ++ Line <- Lines,
                               string:find(Line, "lane_transport=\"\\\"tcp\\\"\"") =/= nomatch]),
    cluster:stop(Node).

%% A node where Trunkline does not run says so.
stopped(_) ->
    Node = cluster:start(none),
    ?assertEqual(0, value(lines(Node), "running", [])),
    ok = cluster:call(Node, trunkline_metrics, measure, []),
    ok = cluster:call(Node, cluster, start_trunkline, [[]]),
    ?assertEqual(1, value(lines(Node), "running", [])),
    ok = cluster:call(Node, cluster, stop_trunkline, []),
    ?assertEqual(0, value(lines(Node), "running", [])),
    cluster:stop(Node).

%% Whoever has telemetry gets the counters as measurements, all of them numbers.
telemetry(_) ->
    {A, B} = telemetry_node:pair([]),
    ok = cluster:call(A, trunkline_metrics, measure, []),
    NodeB = cluster:node_of(B),
    Events = cluster:call(A, telemetry_node, events, [stats]),
    ?assertMatch([{[trunkline, stats, node], #{running := 1, refused := 0}, #{}}],
                 [Event || {[_, _, node], _, _} = Event <- Events]),
    ?assertMatch([{_, #{sessions := 1, lost_queued := 0}, #{peer := NodeB, state := up}}],
                 [Event || {[_, _, peer], _, _} = Event <- Events]),
    #{lanes := Lanes} = cluster:call(A, trunkline, info, [NodeB]),
    ?assertEqual([{NodeB, Ix} || Ix <- lists:seq(1, length(Lanes))],
                 [{Peer, Ix} || {[_, _, lane], #{messages := _, waiting := 0},
                                 #{peer := Peer, lane := Ix}} <- Events]),
    [?assert(is_number(N)) || {_, Measurements, _} <- Events, N <- maps:values(Measurements)],
    cluster:stop_all([A, B]).

%% --- the files in priv/ ---------------------------------------------------------------

rules(Config) ->
    Rules = filename:join(?config(root, Config), "priv/prometheus/trunkline.rules.yml"),
    run(Config, ["check", "rules", Rules], ""),
    {ok, Text} = file:read_file(filename:join(?config(data_dir, Config), "rules_test.yml")),
    Tests = filename:join(?config(priv_dir, Config), "rules_test.yml"),
    ok = file:write_file(Tests, string:replace(Text, "RULES", ["'", Rules, "'"])),
    run(Config, ["test", "rules", Tests], ""),
    used(Config, Rules).

dashboard(Config) ->
    Dashboard = filename:join(?config(root, Config), "priv/grafana/trunkline.json"),
    used(Config, Dashboard).

%% All metrics that a file uses exist.
used(Config, File) ->
    {ok, Text} = file:read_file(File),
    {match, Used} = re:run(Text, "trunkline_[a-z_]+", [global, {capture, first, binary}]),
    Exist = [hd(binary:split(iolist_to_binary(Line), [<<"{">>, <<" ">>]))
             || Line <- lines(?config(a, Config)), hd(Line) =/= $#],
    ?assertEqual([], lists:usort(lists:append(Used)) -- Exist).

%% A real Prometheus reads two nodes, and agrees with them.
scraped(Config) ->
    Nodes = [?config(a, Config), ?config(b, Config)],
    Ports = [cluster:call(Node, ?MODULE, serve, []) || Node <- Nodes],
    case tool(Config, "prometheus") of
        none ->
            {skip, "Prometheus is not installed"};
        Prometheus ->
            Dir = filename:join(?config(priv_dir, Config), "prometheus"),
            ok = filelib:ensure_path(Dir),
            Rules = filename:join(?config(root, Config), "priv/prometheus/trunkline.rules.yml"),
            Targets = lists:join(", ", [io_lib:format("'127.0.0.1:~b'", [Port]) || Port <- Ports]),
            ok = file:write_file(
                   filename:join(Dir, "prometheus.yml"),
                   ["global: {scrape_interval: 200ms, evaluation_interval: 200ms}\n",
                    "rule_files: ['", Rules, "']\n",
                    "scrape_configs:\n- job_name: trunkline\n  static_configs:\n  - targets: [",
                    Targets, "]\n"]),
            Web = free_port(),
            Address = "127.0.0.1:" ++ integer_to_list(Web),
            Server = command:start(Dir, [], [Prometheus, "--config.file=prometheus.yml",
                                             "--storage.tsdb.path=data",
                                             "--web.listen-address=" ++ Address]),
            {os_pid, OsPid} = erlang:port_info(Server, os_pid),
            try
                cluster:await(fun() -> ask(Web, "count(up == 1)") =:= {ok, 2} end),
                Total = fun(Name) -> lists:sum([value_sum(Node, Name) || Node <- Nodes]) end,
                Sent = Total("messages_sent_total"),
                Query = "sum(trunkline_messages_sent_total)",
                cluster:await(fun() -> ask(Web, Query) =:= {ok, Sent} end),
                ?assertEqual({ok, Total("batch_messages_sum")},
                             ask(Web, "sum(trunkline_batch_messages_sum)")),
                ?assertEqual({ok, 2}, ask(Web, "count(trunkline_peer_state{state='up'} == 1)"))
            after
                os:cmd("kill " ++ integer_to_list(OsPid)),
                command:await_exit(Server, [])
            end
    end.

%% One number.
ask(Port, Query) ->
    {ok, Socket} = connect(Port),
    ok = gen_tcp:send(Socket, ["GET /api/v1/query?query=", uri_string:quote(Query),
                               " HTTP/1.0\r\nHost: localhost\r\n\r\n"]),
    Answer = read(Socket, []),
    case re:run(Answer, "\"value\":\\[[0-9.]+,\"([0-9]+)\"\\]", [{capture, [1], list}]) of
        {match, [Number]} -> {ok, list_to_integer(Number)};
        nomatch -> Answer
    end.

%% It may not listen yet.
connect(Port) ->
    ok = cluster:await(fun() -> case gen_tcp:connect({127, 0, 0, 1}, Port, []) of
                                    {ok, Socket} -> gen_tcp:close(Socket) =:= ok;
                                    Error -> Error
                                end end),
    gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}]).

read(Socket, Got) ->
    case gen_tcp:recv(Socket, 0) of
        {ok, Data} -> read(Socket, [Got, Data]);
        {error, closed} -> iolist_to_binary(Got)
    end.

free_port() ->
    {ok, Socket} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Socket),
    ok = gen_tcp:close(Socket),
    Port.

%% Runs at a node: answers whatever is asked with the metrics.
serve() ->
    Self = self(),
    Pid = spawn(fun() ->
                        Options = [binary, {active, false}, {packet, http_bin},
                                   {ip, {127, 0, 0, 1}}],
                        {ok, Listen} = gen_tcp:listen(0, Options),
                        {ok, Port} = inet:port(Listen),
                        Self ! {self(), Port},
                        serve(Listen)
                end),
    receive {Pid, Port} -> Port end.

serve(Listen) ->
    {ok, Socket} = gen_tcp:accept(Listen),
    ok = request(Socket),
    ok = inet:setopts(Socket, [{packet, raw}]),
    _ = gen_tcp:send(Socket, ["HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\r\n",
                              trunkline_metrics:prometheus()]),
    ok = gen_tcp:close(Socket),
    serve(Listen).

request(Socket) ->
    case gen_tcp:recv(Socket, 0) of
        {ok, http_eoh} -> ok;
        {ok, _} -> request(Socket)
    end.

%% --- helpers --------------------------------------------------------------------------

prometheus(Node) ->
    cluster:call(Node, fun() -> iolist_to_binary(trunkline_metrics:prometheus()) end).

lines(Node) -> string:lexemes(unicode:characters_to_list(prometheus(Node)), "\n").

value(Lines, Name, Labels) ->
    Start = lists:flatten(["trunkline_", Name, case Labels of
                                                   [] -> "";
                                                   _ -> ["{", Labels, "}"]
                                               end, " "]),
    [Value] = [lists:nthtail(length(Start), Line) || Line <- Lines, lists:prefix(Start, Line)],
    number(Value).

value_sum(Node, Name) ->
    lists:sum([number(lists:last(string:split(Line, " ", all)))
               || Line <- lines(Node), lists:prefix("trunkline_" ++ Name ++ "{", Line)]).

number(Text) ->
    case string:to_integer(Text) of
        {N, []} -> N;
        _ -> list_to_float(Text)
    end.

run(Config, Args, Input) ->
    case tool(Config, "promtool") of
        none ->
            {skip, "promtool is not installed"};
        Promtool ->
            Command = lists:join(" ", [Promtool | ["'" ++ Arg ++ "'" || Arg <- Args]]) ++ Input,
            ?assertMatch({0, _}, command:run(?config(root, Config), [],
                                             ["sh", "-c", lists:flatten(Command)]))
    end.

%% Where tools/need puts it, or Debian.
tool(Config, Name) ->
    Own = filename:join([?config(root, Config), "_build/prometheus/usr/bin", Name]),
    case {filelib:is_regular(Own), os:find_executable(Name)} of
        {true, _} -> Own;
        {false, false} -> none;
        {false, Path} -> Path
    end.
