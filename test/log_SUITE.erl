%% What is in the log: reports in Trunkline's domain, with a text that says what to do. That each
%% text is in docs/operate/logs.md is checked by guides_SUITE.
-module(log_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([texts/1, connections/1, every_what/1, default_handler/1, no_default_handler/1,
         come_and_go/1, handler_calls/1, handler_sends/1, lost/1, link_killed/1]).
-export([log/2, report/1]).

suite() -> [{timetrap, {minutes, 2}}].

all() -> [texts, connections, every_what, default_handler, no_default_handler, come_and_go,
          handler_calls, handler_sends, lost, link_killed].

%% One of each.
reports() ->
    [#{what => up, peer => b@host, release => "1.0.0-rc", lanes => 4},
     #{what => down, peer => b@host, reason => connection_lost},
     #{what => suspended, peer => b@host, resume_time => 60_000},
     #{what => resumed, peer => b@host, milliseconds => 812},
     #{what => not_executed, event => [trunkline, peer, up], reason => {error, badarg}},
     #{what => lost, peer => b@host, queued => 2, unconfirmed => 3},
     #{what => unconfirmed, peer => b@host, messages => 3},
     #{what => lanes_ended, peer => b@host, messages => 3},
     #{what => lanes_killed, peer => b@host, messages => 3},
     #{what => no_connection, peer => b@host, cargo => large, reason => not_wanted},
     #{what => no_connection, peer => b@host, cargo => batches, reason => not_wanted},
     #{what => refused, peer => b@host, reason => incompatible, hello => #{protocol => {1, 1}}},
     #{what => refused, peer => b@host, reason => malformed, hello => nonsense},
     #{what => missing_applications, applications => [rabit]}, #{what => adopted, modules => 7},
     #{what => not_adopted, problems => [{bare, no_debug_info}]},
     #{what => strangers, connections => 7},
     #{what => unexpected, module => trunkline_lane, pid => self(), message => "a list"},
     #{what => no_handle_info, module => orders, message => hello},
     #{what => bad_option, reason => x, explained => "trunkline: there is no option"},
     #{what => missing_modules, modules => [trunkline_errors]}].

text(Report) ->
    {Format, Args} = trunkline_log:text(Report),
    lists:flatten(io_lib:format(Format, Args)).

%% A text begins with the application's name; only what gen_server says, too, is said as there.
texts(_) ->
    [?assertMatch({_, "trunkline: " ++ _}, {What, text(Report)})
     || #{what := What} = Report <- reports(), What =/= no_handle_info],
    [?assertEqual(nomatch, string:find(text(Report), "\n")) || Report <- reports()].

%% What is written in the source has a text, and the other way round.
every_what(_) ->
    Root = command:root(),
    Written = lists:append(
                [begin
                     {ok, Source} = file:read_file(filename:join(Root, File)),
                     case re:run(Source, "trunkline_log:write\\(\\s*([a-z_]+)",
                                 [global, {capture, [1], list}]) of
                         {match, Found} -> [list_to_atom(What) || [What] <- Found];
                         nomatch -> []
                     end
                 end || File <- filelib:wildcard("src/**/*.erl", Root)]),
    ?assertEqual(lists:usort([What || #{what := What} <- reports()]), lists:usort(Written)).

%% Why there is no connection, and what would help.
connections(_) ->
    Cure = fun(Reason) -> text(#{what => no_connection, peer => b@host, cargo => large,
                                 reason => Reason}) end,
    Address = {10, 0, 0, 3},
    [?assertMatch({_, [_ | _]}, {Reason, string:find(Cure(Reason), Words)})
     || {Reason, Words} <- [{{connect, Address, 9100, timeout}, "Nothing reaches port 9100"},
                            {{connect, Address, 9100, etimedout}, "bulk_transport to dist"},
                            {{connect, Address, 9100, econnrefused}, "set advertise_address"},
                            {{listen, eaddrinuse}, "listen_ports of b@host are taken"},
                            {not_wanted, "set the same here"},
                            {tls_wanted, "the same TLS options"},
                            {{tls, no_certificate}, "the same TLS options"},
                            {{shutdown, noconnection}, "Look at the log"}, {[x], "Look at the log"},
                            {{}, "Look at the log"}]].

%% A fresh node, whose default handler nobody has configured, shows the text, and what is shown is a
%% report in the domain.
default_handler(Config) ->
    {1, Said} = run("application:set_env(trunkline, lanes, 100)", "ok", Config),
    ?assertMatch({match, [_]}, re:run(Said, "trunkline: option lanes is 100, but must be ",
                                      [global, {capture, first}])),
    {0, Known} = run("logger:add_handler(x, log_SUITE, #{})",
                     "whereis(trunkline_links) ! hello, sys:get_state(trunkline_links)", Config),
    ?assertMatch([_ | _], string:find(Known, "got an unexpected message")),
    ?assertMatch([_ | _], string:find(Known, "{[trunkline],unexpected,trunkline_links}")).

%% There may be none.
no_default_handler(Config) ->
    {0, Said} = run("logger:remove_handler(default)",
                    "whereis(trunkline_links) ! hello, sys:get_state(trunkline_links)", Config),
    ?assertEqual(nomatch, string:find(Said, "means nothing")).

%% A node of its own, in which that is done before Trunkline starts, and behind that. How it ends,
%% and what it says.
run(Before, After, Config) ->
    Expression = lists:flatten(["application:load(trunkline), ", Before, ", "
                                "case application:start(crypto) of ok -> ok end, "
                                "Started = application:start(trunkline), ",
                                "case Started of ok -> ", After, "; _ -> failed end, ",
                                "catch logger_std_h:filesync(default), ",
                                "halt(case Started of ok -> 0; _ -> 1 end)."]),
    command:run(?config(priv_dir, Config), [],
                ["erl", "-noinput", "-pa", filename:dirname(code:which(trunkline)),
                 "-pa", filename:dirname(code:which(?MODULE)), "-eval", Expression]).

%% A line says that a peer comes, and another one that it goes, and why: at the level info, with
%% the data.
come_and_go(_) ->
    [A, B] = cluster:start_all([[{lanes, 2}], []]),
    ok = cluster:call(A, kept_log, keep, [info, #{}, fun ?MODULE:report/1]),
    Said = fun(What) -> [Report || {info, #{what := W} = Report}
                                       <- cluster:call(A, kept_log, kept, []), W =:= What] end,
    NodeB = cluster:node_of(B),
    cluster:connect(A, B),
    cluster:await_up(A, B),
    cluster:await(fun() -> Said(up) =/= [] end),
    ?assertMatch([#{peer := NodeB, release := [_ | _], lanes := 2}], Said(up)),
    ok = cluster:call(B, cluster, stop_trunkline, []),
    cluster:await(fun() -> Said(down) =/= [] end),
    ?assertMatch([#{peer := NodeB, reason := peer_left}], Said(down)),
    ok = cluster:call(B, cluster, start_trunkline, [[]]),
    cluster:await(fun() -> length(Said(up)) =:= 2 end),
    cluster:stop(B),
    cluster:await(fun() -> length(Said(down)) =:= 2 end),
    ?assertMatch(#{reason := connection_lost}, lists:last(Said(down))),
    %% A user who has not asked for that does not see it.
    ?assertNot(cluster:call(A, fun() ->
                                       ok = logger:set_primary_config(level, notice),
                                       logger:allow(info, trunkline_log)
                               end)),
    cluster:stop(A).

%% A handler calls a server at the peer by Trunkline, for all that the link writes. The link must
%% not wait for itself.
handler_calls(_) ->
    {A, B} = with_handler(call, []),
    NodeB = cluster:node_of(B),
    true = anew:connection(A, B),
    ?assertMatch({ok, _}, cluster:call(A, logger, get_handler_config, [?MODULE])),
    ?assertEqual(hello, cluster:call(A, trunkline, call, [{mailroom, NodeB}, {echo, hello}])),
    ok = cluster:call(A, application, stop, [trunkline]),
    cluster:stop_all([A, B]).

%% A handler sends to the peer while that takes nothing.
handler_sends(_) ->
    {A, B} = with_handler(send, [{lanes, 1}, {queue_bytes, 4096}]),
    NodeB = cluster:node_of(B),
    cluster:suspend(B),
    _ = flood(A, NodeB),
    cluster:await(fun() -> #{lanes := [#{waiting := N}]} = cluster:info(A, B), N > 0 end),
    cluster:kill(B),
    cluster:await(fun() ->
                          #{state := State} = cluster:info(A, B),
                          State =:= down orelse State
                  end),
    ok = cluster:call(A, application, stop, [trunkline]),
    cluster:stop(A).

%% More than lane and connection take.
flood(A, NodeB) ->
    Message = binary:copy(<<0>>, 1000),
    Send = fun() -> [trunkline:send({nobody, NodeB}, Message) || _ <- lists:seq(1, 1000)] end,
    cluster:call(A, fun() -> [spawn(Send) || _ <- lists:seq(1, 20)] end).

with_handler(How, Options) ->
    {A, B} = cluster:pair(Options),
    {ok, _} = cluster:call(B, gen_server, start, [{local, mailroom}, mailroom, #{}, []]),
    Server = {mailroom, cluster:node_of(B)},
    ok = cluster:call(A, fun() ->
                                 ok = logger:set_application_level(trunkline, info),
                                 logger:add_handler(?MODULE, ?MODULE, #{config => {How, Server}})
                         end),
    {A, B}.

%% What is counted as lost when a node ends is in the log: what was in the lane, and what senders
%% waited with.
lost(_) ->
    {A, B} = cluster:pair([{lanes, 1}, {queue_bytes, 4096}]),
    ok = cluster:call(A, kept_log, keep, [notice, #{}, fun ?MODULE:report/1]),
    NodeB = cluster:node_of(B),
    cluster:suspend(B),
    Senders = flood(A, NodeB),
    %% (What the connection takes may be all that some have to send, if others begin later.)
    Waiting = fun() -> #{lanes := [#{waiting := N}]} = cluster:info(A, B), N end,
    cluster:await(fun() ->
                          Alive = [Pid || Pid <- Senders,
                                          cluster:call(A, erlang, is_process_alive, [Pid])],
                          N = Waiting(),
                          (N > 0 andalso N =:= length(Alive)) orelse {N, Alive}
                  end),
    Least = Waiting(),
    cluster:kill(B),
    Logged = fun() -> lists:sum([maps:get(queued, Report, 0)
                                 || {_, #{what := lost} = Report} <-
                                        cluster:call(A, kept_log, kept, [])])
             end,
    %% (Some may be in the next line, ten seconds later.)
    cluster:await(fun() ->
                          #{lost := #{queued := Queued}} = cluster:info(A, B),
                          (Queued >= Least andalso Logged() =:= Queued) orelse {Queued, Logged()}
                  end),
    cluster:stop(A).

%% A link is killed, and its lanes with it: what is lost is not blamed on the peer.
link_killed(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    ok = cluster:call(A, kept_log, keep, [warning, #{}, fun ?MODULE:report/1]),
    NodeB = cluster:node_of(B),
    cluster:suspend(B),
    true = cluster:call(A, fun() ->
                                   [x = trunkline:send({nobody, NodeB}, x)
                                    || _ <- lists:seq(1, 10)],
                                   #{link := Link} = trunkline_peers:lookup(NodeB),
                                   exit(Link, kill)
                           end),
    Said = fun() -> [Line || {_, #{what := What}} = Line <- cluster:call(A, kept_log, kept, []),
                             What =:= lanes_killed orelse What =:= lanes_ended] end,
    cluster:await(fun() -> Said() =/= [] end),
    ?assertMatch([{warning, #{what := lanes_killed, peer := NodeB, messages := 10}}], Said()),
    #{lost := #{crashed := Crashed, unconfirmed := Unconfirmed}} =
        cluster:call(A, trunkline, info, [NodeB]),
    ?assertEqual(10, Crashed + Unconfirmed),
    cluster:continue(B),
    cluster:stop_all([A, B]).

%% What is kept of an event.
report(#{level := Level, msg := {report, #{what := _} = Report}}) -> {true, {Level, Report}};
report(_) -> false.

%% A handler. Runs at the node.
log(#{msg := {report, #{what := _}}}, #{config := {call, Server}}) ->
    try trunkline:call(Server, {echo, logged}, infinity)
    catch exit:{{nodedown, _}, _} -> lost
    end,
    true = trunkline:exit(spawn(element(2, Server), timer, sleep, [1]), kill);
log(#{msg := {report, #{what := _}}}, #{config := {send, Server}}) ->
    trunkline:send(Server, logged);
log(#{msg := {report, #{what := What, module := Module}}, meta := #{domain := Domain}}, _) ->
    io:format(user, "~0p~n", [{Domain, What, Module}]);
log(_, _) ->
    ok.
