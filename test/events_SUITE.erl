%% Events for telemetry: each is executed when it should be, with the keys that the table and the
%% page say; and what handlers do harms nobody.
-module(events_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([page/1, without/1, peers/1, left/1, crashed/1, lost_for_good/1, refused/1, drained/1,
         resumed/1, large/1, lanes/1, strangers/1, waits/1, inboxes/1, slow/1, bad/1, killed/1,
         blocked/1, nested/1, flood/1, not_running/1]).
-export([log/2]).

-define(SMALL, [{lanes, 2}, {queue_bytes, 65536}, {window_bytes, 65536}]).

suite() -> [{timetrap, {minutes, 3}}].

all() ->
    [page, without, peers, left, crashed, lost_for_good, refused, drained, resumed, large, lanes,
     strangers, waits, inboxes, slow, bad, killed, blocked, nested, flood, not_running].

%% The page has each event, with its measurements and metadata.
page(_) ->
    {ok, Page} = file:read_file(filename:join(command:root(), "docs/operate/metrics.md")),
    Row = "^\\| `\\[trunkline, ([a-z, ]+)\\]` \\| ([^|]*)\\| ([^|]*)\\| [^|]+ \\|$",
    {match, Rows} = re:run(Page, Row, [global, multiline, {capture, all_but_first, list}]),
    Atoms = fun(Text) -> lists:sort([list_to_atom(A) || A <- string:lexemes(Text, "`, ")]) end,
    Explained = [{[list_to_atom(A) || A <- string:lexemes(Name, ", ")], Atoms(Measurements),
                  Atoms(Metadata)} || [Name, Measurements, Metadata] <- Rows],
    Table = [{Name, lists:sort(Measurements), lists:sort(Metadata)}
             || {[Kind | _] = Name, Measurements, Metadata} <- trunkline_events:table(),
                Kind =/= stats],
    ?assertEqual(lists:sort(Table), lists:sort(Explained)),
    ?assertEqual(length(trunkline_events:table()), length(trunkline_metrics:events())).

%% No telemetry: no process, and nothing happens.
without(_) ->
    A = cluster:start([]),
    ?assertEqual(undefined, cluster:call(A, erlang, whereis, [trunkline_events])),
    ?assertEqual(false, cluster:call(A, trunkline_events, are_wanted, [])),
    ?assertEqual(ok, cluster:call(A, trunkline_events, tell, [[peer, up], #{}, #{}])),
    ?assertEqual(ok, cluster:call(A, trunkline_events, execute, [[peer, up], #{}, #{}])),
    cluster:stop(A).

peers(_) ->
    {A, B} = telemetry_node:pair(?SMALL),
    NodeB = cluster:node_of(B),
    [{Up, #{peer := NodeB, protocol := 2, release := [_ | _]}}] = await(A, [peer, up], 1),
    ?assertEqual(#{lanes => 2}, Up),
    [Pid] = cluster:call(B, traffic, start_receivers, [1]),
    cluster:suspend(B),
    Stream = cluster:call(A, traffic, stream, [Pid, 1, 1000]),
    cluster:await(fun() -> #{lanes := Lanes} = cluster:call(A, trunkline, info, [NodeB]),
                           lists:any(fun(#{waiting := N}) -> N > 0 end, Lanes) end),
    cluster:kill(B),
    [{#{duration := Time}, #{peer := NodeB, reason := connection_lost}}] =
        await(A, [peer, down], 1),
    ?assert(Time > 0),
    _ = cluster:call(A, traffic, stop_stream, [Stream]),
    cluster:await_state(A, B, down),
    %% All that is counted has been told.
    cluster:await(fun() ->
                          #{lost := Lost} = cluster:call(A, trunkline, info, [NodeB]),
                          Told = [L || {L, _} <- events(A, [peer, lost])],
                          Sum = maps:map(fun(Why, _) -> lists:sum([maps:get(Why, L) || L <- Told])
                                         end, Lost),
                          Sum =:= Lost andalso maps:get(queued, Lost) > 0 orelse {Lost, Told}
                  end),
    stop(A, []).

left(_) ->
    {A, B} = telemetry_node:pair([]),
    NodeB = cluster:node_of(B),
    ok = cluster:call(B, cluster, stop_trunkline, []),
    [{_, #{peer := NodeB, reason := peer_left}}] = await(A, [peer, down], 1),
    ok = cluster:call(B, cluster, start_trunkline, [[]]),
    [_, _] = await(A, [peer, up], 2),
    ok = cluster:call(A, cluster, stop_trunkline, []),
    [_, {_, #{peer := NodeB, reason := stopped}}] = await(A, [peer, down], 2),
    ok = cluster:call(A, cluster, start_trunkline, [[]]),
    [_, _, _] = await(A, [peer, up], 3),
    stop(A, [B]).

crashed(_) ->
    {A, B} = telemetry_node:pair([]),
    Kill = fun(X, Y) -> cluster:call(X, fun() ->
                                                #{link := Link} = trunkline_peers:lookup(Y),
                                                exit(Link, kill)
                                        end) end,
    [_] = await(A, [peer, up], 1),
    true = Kill(A, cluster:node_of(B)),
    [{_, #{reason := crashed}}] = await(A, [peer, down], 1),
    [_, _] = await(A, [peer, up], 2),
    true = Kill(B, cluster:node_of(A)),
    [_, {_, #{reason := peer_restarted}}] = await(A, [peer, down], 2),
    [_, _, _] = await(A, [peer, up], 3),
    stop(A, [B]).

%% Whatever comes after it: here a connection on which the peer says nothing.
lost_for_good(_) ->
    Env = [{resume_time, 500}],
    {A, B} = telemetry_node:pair(Env, Env),
    NodeA = cluster:node_of(A),
    [_] = await(A, [peer, up], 1),
    Holder = cluster:call(
               B, fun() ->
                          [Link] = cluster:find(link, NodeA),
                          spawn(fun() -> erlang:suspend_process(Link), receive stop -> ok end end)
                  end),
    cluster:await(fun() -> cluster:call(B, erlang, process_info, [Holder, status])
                               =:= {status, waiting} end),
    true = cluster:call(A, erlang, disconnect_node, [cluster:node_of(B)]),
    [{_, #{reason := connection_lost}}] = await(A, [peer, down], 1),
    cluster:await_state(A, B, holding),
    stop = cluster:call(B, erlang, send, [Holder, stop]),
    [_, _] = await(A, [peer, up], 2),
    stop(A, [B]).

refused(_) ->
    A = telemetry_node:start([]),
    B = cluster:start(none),
    NodeB = cluster:node_of(B),
    ok = cluster:connect(A, B),
    cluster:await_state(A, B, greeting),
    Link = cluster:call(A, fun() -> maps:get(link, trunkline_peers:lookup(NodeB)) end),
    cluster:call(B, fun() -> Link ! {hello, self(), make_ref(), nonsense, false} end),
    [{_, #{peer := NodeB, reason := malformed}}] = await(A, [peer, refused], 1),
    stop(A, [B]).

drained(_) ->
    {A, B} = telemetry_node:pair([]),
    NodeB = cluster:node_of(B),
    ok = cluster:call(A, trunkline, drain, [NodeB]),
    [{_, #{peers := [NodeB]}}] = await(A, [drain, start], 1),
    [{#{duration := _}, #{peers := [NodeB], result := [{NodeB, ok}]}}] = await(A, [drain, stop], 1),
    [{_, #{reason := drained}}] = await(A, [peer, down], 1),
    stop(A, [B]).

resumed(_) ->
    Env = [{resume_time, 60_000}],
    {A, B} = telemetry_node:pair(Env, Env),
    NodeB = cluster:node_of(B),
    true = cluster:call(A, erlang, disconnect_node, [NodeB]),
    [{_, #{peer := NodeB}}] = await(A, [session, suspended], 1),
    [{#{duration := Time}, #{peer := NodeB}}] = await(A, [session, resumed], 1),
    ?assert(Time >= 0),
    ?assertEqual([], events(A, [peer, down])),
    %% A session whose connection breaks before it is up: neither event is without the other.
    ok = cluster:call(A, fun() ->
                                 R = trunkline_report:new(NodeB, trunkline_stats:new(1)),
                                 ok = trunkline_report:suspended(#{resume_time => 60_000}, R),
                                 trunkline_report:resumed(10, R)
                         end),
    ok = cluster:call(A, trunkline_events, tell, [[peer, refused], #{}, #{peer => NodeB,
                                                                          reason => malformed}]),
    [_] = await(A, [peer, refused], 1),
    ?assertMatch({[_], [_]}, {events(A, [session, suspended]), events(A, [session, resumed])}),
    stop(A, [B]).

%% A connection for large messages, and its end.
large(_) ->
    {A, B} = telemetry_node:pair([{bulk_transport, tcp}]),
    NodeB = cluster:node_of(B),
    [Pid] = cluster:call(B, traffic, start_receivers, [1]),
    cluster:call(A, fun() -> trunkline:send(Pid, {from, 1, 1, binary:copy(<<0>>, 1_000_000)}) end),
    [{_, #{peer := NodeB, transport := tcp}}] = await_large(A, [connection, open]),
    cluster:await(fun() -> cluster:call(B, traffic, count, [Pid]) =:= 1 end),
    true = cluster:call(A, erlang, disconnect_node, [NodeB]),
    [{#{duration := Time}, #{peer := NodeB, reason := _}}] = await_large(A, [connection, close]),
    ?assert(Time > 0),
    stop(A, [B]).

%% Connections for batches: the way changes when they are there, and when they break.
lanes(_) ->
    Env = [{lanes, 1}, {lane_transport, tcp}],
    {A, B} = telemetry_node:pair(Env, Env),
    NodeB = cluster:node_of(B),
    [{_, #{peer := NodeB, cargo := batches, transport := tcp}}] = await(A, [connection, open], 1),
    [{_, #{peer := NodeB, lane := 1, from := distribution, to := connections}} | _] =
        await(A, [lane, way], 1),
    1 = cluster:call(A, cluster, break_channels, [writers]),
    [{#{duration := _}, #{reason := unused, cargo := batches}}] = await(A, [connection, close], 1),
    [_, {_, #{from := connections, to := distribution}}, {_, #{to := connections}} | _] =
        await(A, [lane, way], 3),
    stop(A, [B]).

%% Somebody who is no peer connects to the port.
strangers(_) ->
    A = cluster:start([]),
    B = telemetry_node:start([{bulk_transport, tcp}]),
    ok = cluster:connect(A, B),
    cluster:await_up(A, B),
    [Pid] = cluster:call(B, traffic, start_receivers, [1]),
    cluster:call(A, fun() -> trunkline:send(Pid, {from, 1, 1, binary:copy(<<0>>, 1_000_000)}) end),
    cluster:await(fun() -> cluster:call(B, traffic, count, [Pid]) =:= 1 end),
    #{listener := #{ports := #{tcp := Port}}} = cluster:call(B, trunkline, info, []),
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, []),
    ok = gen_tcp:close(Socket),
    [{#{count := 1}, Nothing}] = await(B, [listener, refused], 1),
    ?assertEqual(#{}, Nothing),
    stop(B, [A]).

%% Senders that had to wait, and why they did not any more.
waits(_) ->
    {A, B} = telemetry_node:pair(?SMALL),
    NodeB = cluster:node_of(B),
    [Pid] = cluster:call(B, traffic, start_receivers, [1]),
    cluster:suspend(B),
    Stream = cluster:call(A, traffic, stream, [Pid, 1, 1000]),
    cluster:await(fun() -> #{lanes := Lanes} = cluster:call(A, trunkline, info, [NodeB]),
                           lists:any(fun(#{waiting := N}) -> N > 0 end, Lanes) end),
    Waits = fun(Result, Cargo) ->
                    [E || {#{bytes := _}, #{peer := P, result := R, cargo := C}} = E
                              <- events(A, [sender, wait]), P =:= NodeB, R =:= Result, C =:= Cargo]
            end,
    ?assertEqual([], Waits(timeout, batches)),
    %% So many that some take the lane of the stream.
    Call = fun() -> try trunkline:call({nobody, NodeB}, x, 100)
                    catch exit:{timeout, _} -> ok
                    end
           end,
    cluster:call(A, fun() -> [spawn(Call) || _ <- lists:seq(1, 30)] end),
    cluster:await(fun() -> Waits(timeout, batches) =/= [] end),
    ?assertMatch([{#{duration := Time}, _} | _] when Time > 0, Waits(timeout, batches)),
    cluster:continue(B),
    cluster:await(fun() -> Waits(ok, batches) =/= [] end),
    _ = cluster:call(A, traffic, stop_stream, [Stream]),
    stop(A, [B]).

inboxes(_) ->
    B = telemetry_node:start([]),
    Options = #{messages => 100, policy => drop_newest},
    {ok, Inbox} = cluster:call(B, mailroom, start, [{local, post}, #{}, Options]),
    ok = cluster:call(B, mailroom, hold, [post]),
    cluster:call(B, fun() -> [post ! {from, 1, N, x} || N <- lists:seq(1, 500)] end),
    [{#{queued_messages := N, queued_bytes := _}, Who}] = await(B, [inbox, overload, start], 1),
    ?assertEqual(#{inbox => Inbox, name => post, policy => drop_newest}, Who),
    ?assert(N > 50),
    cluster:await(fun() ->
                          #{dropped := Dropped} = cluster:call(B, trunkline_inbox, info, [post]),
                          Counts = [D || {#{count := D}, _} <- events(B, [inbox, dropped])],
                          Dropped > 300 andalso lists:sum(Counts) =:= Dropped orelse Counts
                  end),
    ok = cluster:call(B, mailroom, release, [post]),
    [{#{duration := Time}, Who}] = await(B, [inbox, overload, stop], 1),
    ?assert(Time > 0),
    stop(B, []).

%% A handler that takes too long: what is more than a bound is dropped, and counted, and nobody
%% of Trunkline waits for it.
slow(_) ->
    {A, B} = telemetry_node:pair([]),
    [_] = await(A, [peer, up], 1),
    ok = cluster:call(A, telemetry_node, block, [true]),
    cluster:call(A, fun() -> [ok = trunkline_events:tell([listener, refused], #{count => N}, #{})
                              || N <- lists:seq(1, 1500)] end),
    Dropped = cluster:call(A, trunkline_events, dropped, []),
    ?assert(Dropped >= 499),
    ?assert(Dropped =< 500),
    %% Messages go on.
    {ok, Server} = cluster:call(B, server, start, [gen_server]),
    ?assertEqual(hello, cluster:call(A, trunkline, call, [Server, {echo, hello}])),
    ok = cluster:call(A, telemetry_node, block, [false]),
    Expected = [{#{count => N}, #{}} || N <- lists:seq(1, 1500 - Dropped)],
    cluster:await(fun() -> events(A, [listener, refused]) =:= Expected end),
    Text = cluster:call(A, fun() -> iolist_to_binary(trunkline_metrics:prometheus()) end),
    Line = iolist_to_binary(["trunkline_events_dropped_total ", integer_to_list(Dropped), "\n"]),
    ?assertNotEqual(nomatch, binary:match(Text, Line)),
    stop(A, [B]).

%% A module of that name that does not work: the log says so, and all goes on.
bad(_) ->
    {A, B} = telemetry_node:pair([]),
    [_] = await(A, [peer, up], 1),
    Events = cluster:call(A, erlang, whereis, [trunkline_events]),
    ok = cluster:call(A, telemetry_node, break, []),
    ok = cluster:call(A, trunkline, drain, [cluster:node_of(B)]),
    ok = cluster:call(A, trunkline_metrics, measure, []),
    ?assertEqual(Events, cluster:call(A, erlang, whereis, [trunkline_events])),
    cluster:stop_all([A, B]).

%% A handler that ends its process with each event: nothing else ends, however often that is.
killed(_) ->
    {A, B} = telemetry_node:pair([]),
    [_] = await(A, [peer, up], 1),
    Others = fun() -> [whereis(Name) || Name <- [trunkline_sup, trunkline_link_sup, trunkline_links,
                                                 trunkline_listener, trunkline_inboxes]] end,
    Before = cluster:call(A, Others),
    ok = cluster:call(A, fun() -> telemetry_node:then(fun() -> exit(self(), kill) end) end),
    lists:foreach(fun(_) -> ok = cluster:call(A, fun kill_events/0) end, lists:seq(1, 30)),
    ?assertEqual(Before, cluster:call(A, Others)),
    ?assertMatch(#{sessions := 1}, cluster:info(A, B)),
    ok = cluster:call(A, fun() -> telemetry_node:then(fun() -> ok end) end),
    ok = cluster:call(A, trunkline_events, tell, [[listener, refused], #{count => 1000}, #{}]),
    cluster:await(fun() -> lists:member({#{count => 1000}, #{}}, events(A, [listener, refused]))
                  end),
    stop(A, [B]).

kill_events() ->
    Pid = whereis(trunkline_events),
    Ref = monitor(process, Pid),
    ok = trunkline_events:tell([listener, refused], #{count => 1}, #{}),
    receive {'DOWN', Ref, process, _, killed} -> ok end,
    cluster:await(fun() -> is_pid(whereis(trunkline_events)) end).

%% Trunkline does not wait for handlers when it stops, but a moment.
blocked(_) ->
    A = telemetry_node:start([]),
    ok = cluster:call(A, telemetry_node, block, [true]),
    Shutdown = cluster:call(
                 A, fun() ->
                            Pid = whereis(trunkline_events),
                            {dictionary, Own} = process_info(Pid, dictionary),
                            [Sup | _] = proplists:get_value('$ancestors', Own),
                            {ok, #{shutdown := Time}} =
                                supervisor:get_childspec(Sup, trunkline_events),
                            Time
                    end),
    ?assert(is_integer(Shutdown) andalso Shutdown < 500),
    ok = cluster:call(A, trunkline_events, tell, [[listener, refused], #{count => 1}, #{}]),
    [_] = await(A, [listener, refused], 1),
    ok = cluster:call(A, cluster, stop_trunkline, []),
    ?assertEqual(undefined, cluster:call(A, erlang, whereis, [trunkline_events])),
    stop(A, []).

%% A handler that has to wait itself causes no event of its own.
nested(_) ->
    A = telemetry_node:start([]),
    ok = cluster:call(
           A, fun() ->
                      ok = telemetry_node:then(fun() -> trunkline_metrics:measure() end),
                      trunkline_metrics:measure()
              end),
    ?assertEqual(1, length(events(A, [stats, node]))),
    stop(A, []).

%% Many processes whose events fail at the same time: the log says so once.
flood(_) ->
    A = telemetry_node:start([]),
    ok = cluster:call(A, telemetry_node, break, []),
    Lines = cluster:call(
              A, fun() ->
                         Count = counters:new(1, []),
                         ok = logger:set_primary_config(level, warning),
                         ok = logger:add_handler(?MODULE, ?MODULE, #{config => Count}),
                         Refs = [element(2, spawn_monitor(trunkline_metrics, measure, []))
                                 || _ <- lists:seq(1, 100)],
                         [receive {'DOWN', Ref, process, _, normal} -> ok end || Ref <- Refs],
                         counters:get(Count, 1)
                 end),
    ?assertEqual(1, Lines),
    cluster:stop(A).

%% Called by logger.
log(#{msg := {report, #{what := not_executed}}}, #{config := Count}) -> counters:add(Count, 1, 1);
log(_, _) -> ok.

%% While telemetry does not run, its module is not called.
not_running(_) ->
    A = telemetry_node:start([]),
    ok = cluster:call(A, telemetry_node, stop, []),
    ok = cluster:call(A, trunkline_metrics, measure, []),
    ?assertEqual([], events(A, [stats, node])),
    stop(A, []).

%% --- helpers --------------------------------------------------------------------------

events(Node, Name) -> cluster:call(Node, telemetry_node, events_of, [Name]).

%% The first time that there are so many, all of them.
%% Lanes may have connections of their own.
await_large(Node, Name) ->
    ok = cluster:await(fun() -> large_events(Node, Name) =/= [] end),
    large_events(Node, Name).

large_events(Node, Name) ->
    [Event || {_, #{cargo := large}} = Event <- events(Node, Name)].

await(Node, Name, N) ->
    ok = cluster:await(fun() -> Events = events(Node, Name),
                                length(Events) >= N orelse {Name, Events} end),
    events(Node, Name).

%% No event has had other keys than the table says.
stop(Node, Others) ->
    Table = [{[trunkline | Name], lists:sort(Measurements), lists:sort(Metadata)}
             || {[Kind | _] = Name, Measurements, Metadata} <- trunkline_events:table(),
                Kind =/= stats],
    Events = cluster:call(Node, telemetry_node, events, []),
    Keys = fun(Map) -> lists:sort(maps:keys(Map)) end,
    Kinds = [{Name, Keys(Measurements), Keys(Metadata)}
             || {[_, Kind | _] = Name, Measurements, Metadata} <- Events, Kind =/= stats],
    ?assertEqual([], lists:usort(Kinds) -- Table),
    cluster:stop_all([Node | Others]).
