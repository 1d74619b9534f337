%% trunkline_web: real requests over a socket, and the page in a real browser.
-module(web_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([json/1, requests/1, figures/1, passwords/1, other_hosts/1, starts_and_stops/1,
         comes_back/1, arguments/1, garbage/1, slow_clients/1, browser/1, many_peers/1, folders/1,
         no_inets/1]).
-export([many/0]).

%% ms
-define(BROWSER, 200_000).

suite() -> [{timetrap, {minutes, 15}}].

all() -> [json, requests, figures, passwords, other_hosts, starts_and_stops, comes_back, arguments,
          garbage, slow_clients, browser, many_peers, folders, no_inets].

init_per_suite(Config) ->
    {A, B} = cluster:pair([]),
    [{a, A}, {b, B} | Config].

end_per_suite(Config) -> cluster:stop_all([?config(a, Config), ?config(b, Config)]).

end_per_testcase(_, Config) -> web(Config, stop, []).

web(Config, Function, Args) -> cluster:call(?config(a, Config), trunkline_web, Function, Args).

start(Config, Options) ->
    {ok, "http://127.0.0.1:" ++ Rest} = web(Config, start, [Options#{port => 0}]),
    {Port, "/"} = string:to_integer(Rest),
    Port.

%% --- requests -------------------------------------------------------------------------

get(Port, Path) -> get(Port, Path, []).

get(Port, Path, Header) -> request(Port, ["GET ", Path, " HTTP/1.1"], ["Host: localhost" | Header]).

%% {Status, Header, Body}
request(Port, Line, Header) ->
    Answer = visitor:ask(Port, [Line, "\r\n", [[H, "\r\n"] || H <- Header],
                                "Connection: close\r\n\r\n"]),
    [Head, Body] = string:split(Answer, "\r\n\r\n"),
    ["HTTP/1.1 " ++ Status | Fields] = string:split(Head, "\r\n", all),
    {Code, _} = string:to_integer(Status),
    {Code, maps:from_list([begin
                               [Key, Value] = string:split(Field, ":"),
                               {string:lowercase(Key), string:trim(Value)}
                           end || Field <- Fields]), Body}.

%% --- cases -----------------------------------------------------------------------------

json(_) ->
    Encode = fun(Value) ->
                     unicode:characters_to_list(iolist_to_binary(trunkline_json:encode(Value)))
             end,
    %% (A map of more than one key has no order from OTP 26 on.)
    ?assertEqual("{\"a\":[1.5,-2,true,null,\"x\"]}", Encode(#{a => [1.5, -2, true, undefined, x]})),
    ?assert(lists:member(Encode(#{a => 1, b => 2}), ["{\"a\":1,\"b\":2}", "{\"b\":2,\"a\":1}"])),
    ?assertEqual("[0.0,123456789.123,1.0]", Encode([0.0, 123456789.1234, 1.0])),
    ?assertEqual("\"a\\\"\\\\\\u000a\\u0000\\u007f\"", Encode(<<"a\"\\\n", 0, 127>>)),
    ?assertEqual([$", 246, 8364, $"], Encode(unicode:characters_to_binary([246, 8364]))),
    ?assertEqual([$", 246, $"], Encode(<<246>>)),
    ?assertEqual("{\"b@host\":{}}", Encode(#{'b@host' => #{}})).

requests(Config) ->
    Port = start(Config, #{}),
    {200, #{"content-type" := "text/html" ++ _, "content-security-policy" := _}, Page} =
        get(Port, "/"),
    ?assertMatch([_ | _], string:find(Page, "</html>")),
    %% It fetches nothing from elsewhere.
    ?assertEqual(nomatch, re:run(Page, "(src|href)=\"(?!data:)|https?://|@import|url\\(")),
    ?assertMatch({200, #{"content-type" := "application/json"}, "{" ++ _}, get(Port, "/samples")),
    {200, #{"content-type" := "text/plain; version=0.0.4" ++ _}, Metrics} = get(Port, "/metrics"),
    ?assertMatch([_ | _], string:find(Metrics, "# TYPE trunkline_messages_sent_total counter")),
    Bytes = integer_to_list(length(Page)),
    ?assertMatch({200, #{"content-length" := Bytes}, ""},
                 request(Port, "HEAD / HTTP/1.1", ["Host: localhost"])),
    [?assertMatch({Path, {404, _, _}}, {Path, get(Port, Path)})
     || Path <- ["/nothing", "/../../etc/passwd", "/%2e%2e/ebin", "/trunkline.html", "/ebin/",
                 "/samples/", "/index.html"]],
    [?assertMatch({Path, {400, _, _}}, {Path, get(Port, Path)})
     || Path <- ["/samples?since=x", "/samples?since=-1", "/samples?since=", "/samples?x=1"]],
    [?assertMatch({M, {405, #{"allow" := "GET, HEAD"}, _}},
                  {M, request(Port, [M, " / HTTP/1.1"], ["Host: localhost", "Content-Length: 0"])})
     || M <- ["POST", "PUT", "DELETE"]].

%% What was sent is in the figures, each view once, and older ones when they are asked for.
figures(Config) ->
    [A, B] = [?config(Node, Config) || Node <- [a, b]],
    Port = start(Config, #{}),
    [Pid] = cluster:call(B, traffic, start_receivers, [1]),
    await_views(Port, 1),
    Send = fun(N) -> trunkline:send(Pid, {from, x, N, y}) end,
    cluster:call(A, fun() -> lists:foreach(Send, lists:seq(1, 1000)) end),
    cluster:await(fun() ->
                          {200, _, Text} = get(Port, "/samples"),
                          case re:run(Text, "\"messages_out\":([0-9.]+)",
                                      [global, {capture, [1], list}]) of
                              {match, Rates} -> lists:any(fun([R]) -> R =/= "0.0" end, Rates);
                              nomatch -> {no_peer, Text}
                          end
                  end),
    NodeB = atom_to_list(cluster:node_of(B)),
    {200, _, Text} = get(Port, "/samples"),
    ?assertMatch([_ | _], string:find(Text, ["\"peer\":\"", NodeB, "\""])),
    ?assertMatch([_ | _], string:find(Text, "\"state\":\"up\"")),
    Numbers = numbers(Text),
    ?assertEqual(lists:seq(1, length(Numbers)), Numbers),
    {200, _, Newer} = get(Port, "/samples?since=1"),
    ?assertEqual(2, hd(numbers(Newer))),
    {200, _, None} = get(Port, "/samples?since=1000000"),
    ?assertEqual([], numbers(None)).

await_views(Port, N) ->
    cluster:await(fun() ->
                          {200, _, Text} = get(Port, "/samples"),
                          length(numbers(Text)) >= N orelse Text
                  end).

numbers(Text) ->
    case re:run(Text, "\"n\":([0-9]+)", [global, {capture, [1], list}]) of
        {match, Ns} -> [list_to_integer(N) || [N] <- Ns];
        nomatch -> []
    end.

passwords(Config) ->
    Port = start(Config, #{password => "correct horse"}),
    Basic = fun(Text) -> ["Authorization: Basic " ++ base64:encode_to_string(Text)] end,
    [?assertMatch({Header, {401, #{"www-authenticate" := "Basic" ++ _}, _}},
                  {Header, get(Port, Path, Header)})
     || Path <- ["/", "/samples", "/metrics", "/nothing"],
        Header <- [[], Basic("trunkline:wrong one"), Basic("trunkline:correct hors"),
                   Basic("trunkline:correct horse2"), Basic("other:correct horse"), Basic(""),
                   ["Authorization: Basic !!!"], ["Authorization: Bearer x"],
                   ["Authorization:  "]]],
    [?assertMatch({200, _, _}, get(Port, Path, Basic("trunkline:correct horse")))
     || Path <- ["/", "/samples", "/metrics"]],
    %% With a password the host may have any name; and no crash report could tell the password.
    ?assertMatch({200, _, _}, request(Port, "GET / HTTP/1.1",
                                      ["Host: a.example" | Basic("trunkline:correct horse")])),
    State = cluster:call(?config(a, Config), sys, get_state, [trunkline_web_server]),
    {ok, Child} = cluster:call(?config(a, Config), supervisor, get_childspec,
                               [trunkline_sup, trunkline_web_server]),
    ?assertEqual(nomatch, string:find(io_lib:format("~p ~p", [State, Child]), "horse")).

%% A page from elsewhere cannot read this one by a name of its own.
other_hosts(Config) ->
    Port = start(Config, #{}),
    [?assertMatch({Host, {200, _, _}}, {Host, request(Port, "GET / HTTP/1.1", ["Host: " ++ Host])})
     || Host <- ["localhost", "LocalHost:8080", "127.0.0.1:1", "[::1]:80"]],
    [?assertMatch({Host, {403, _, _}}, {Host, request(Port, "GET / HTTP/1.1", ["Host: " ++ Host])})
     || Host <- ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "[::2]"]].

starts_and_stops(Config) ->
    Port = start(Config, #{}),
    ?assertEqual({error, already_started}, web(Config, start, [#{}])),
    ?assertEqual(ok, web(Config, stop, [])),
    ?assertEqual(ok, web(Config, stop, [])),
    ?assertEqual({error, econnrefused}, gen_tcp:connect({127, 0, 0, 1}, Port, [])),
    {ok, Socket} = gen_tcp:listen(Port, [{ip, {127, 0, 0, 1}}, {reuseaddr, true}]),
    ?assertEqual({error, {listen, eaddrinuse}}, web(Config, start, [#{port => Port}])),
    ok = gen_tcp:close(Socket),
    ?assertMatch({ok, _}, web(Config, start, [#{port => Port, address => "127.0.0.1"}])),
    ok = web(Config, stop, []),
    [?assertEqual({Address, {error, password_needed}},
                  {Address, web(Config, start, [#{address => Address}])})
     || Address <- [{0, 0, 0, 0}, "::", "10.0.0.1"]],
    %% Trunkline takes it along.
    A = ?config(a, Config),
    Again = start(Config, #{}),
    ok = cluster:call(A, cluster, stop_trunkline, []),
    ?assertEqual({error, econnrefused}, gen_tcp:connect({127, 0, 0, 1}, Again, [])),
    ?assertEqual({{error, stopped}, ok}, {web(Config, start, [#{}]), web(Config, stop, [])}),
    ok = cluster:call(A, cluster, start_trunkline, [[]]),
    cluster:await_up(A, ?config(b, Config)).

%% When its process, the web server or another process of Trunkline is killed the page is there
%% again, at the same port, if that was named.
comes_back(Config) ->
    A = ?config(a, Config),
    Port = start(Config, #{}),
    ok = web(Config, stop, []),
    {ok, _} = web(Config, start, [[{port, Port}]]),
    cluster:call(A, logger, set_primary_config, [level, none]),
    Server = fun() -> cluster:call(A, erlang, whereis, [trunkline_web_server]) end,
    %% (The page of the one before may be there a little longer.)
    ComesBack = fun(Kill) ->
                        Before = Server(),
                        cluster:call(A, Kill),
                        cluster:await(fun() -> not lists:member(Server(), [Before, undefined]) end),
                        await_page(Port)
                end,
    [ComesBack(fun() -> exit(whereis(Name), kill) end)
     || Name <- [trunkline_web_server, trunkline_monitors]],
    cluster:call(A, fun() ->
                            {links, Links} = process_info(whereis(trunkline_web_server), links),
                            [exit(Pid, kill) || Pid <- Links, Pid =/= whereis(trunkline_sup)]
                    end),
    await_page(Port),
    cluster:call(A, logger, set_primary_config, [level, error]).

await_page(Port) ->
    cluster:await(fun() ->
                          try get(Port, "/samples") of
                              {200, _, _} -> true;
                              Other -> Other
                          catch
                              error:Reason -> Reason      % nobody listens, or it ends just now
                          end
                  end).

arguments(Config) ->
    [?assertError(badarg, trunkline_web:start(Options))
     || Options <- [7, #{port => -1}, #{port => 65536}, #{address => "b@host"},
                    #{address => {1, 2}}, #{password => "short"}, #{password => 7},
                    #{colour => red}]],
    %% Neither the error nor what is said of it tells a password, wherever it stands.
    [begin
         {[{1, Text}], Stack} = explained:call(trunkline_web, start, [Options]),
         ?assertEqual({Options, Said}, {Options, Text}),
         ?assertEqual(nomatch, string:find(io_lib:format("~p ~ts", [Stack, Text]), "horse"))
     end || {Options, Said} <-
                [{#{password => "horse"},
                  "option password must be a string of at least 8 characters"},
                 {#{port => 65536, password => "correct horse"},
                  "option port is 65536, but must be an integer from 0 to 65535"},
                 {#{pasword => <<"correct horse">>},
                  "there is no option pasword; there are address, port, password"},
                 {[{port, 65536}, {password, "correct horse"}],
                  "option port is 65536, but must be an integer from 0 to 65535"},
                 {[{password, "horse"}],
                  "option password must be a string of at least 8 characters"},
                 {[{port, 1}, "correct horse"], "neither a map nor a property list"}]],
    ?assertMatch({error, stopped}, trunkline_web:start(#{})),          % not at this node
    ok = web(Config, stop, []).

%% Whatever comes, the page goes on.
garbage(Config) ->
    Port = start(Config, #{}),
    cluster:call(?config(a, Config), logger, set_primary_config, [level, none]),
    [_ = visitor:ask(Port, Junk)
     || Junk <- ["\r\n\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
                 <<0, 1, 2, 255, "\r\n\r\n">>,
                 ["GET /", lists:duplicate(5000, $x), " HTTP/1.1\r\nHost: localhost\r\n\r\n"],
                 ["GET / HTTP/1.1\r\nX: ", lists:duplicate(20000, $x), "\r\n\r\n"]]],
    ?assertMatch({200, _, _}, get(Port, "/samples")),
    cluster:call(?config(a, Config), logger, set_primary_config, [level, error]).

%% Who asks and does not read keeps neither memory nor the connection. Who reads gets it all.
slow_clients(Config) ->
    A = ?config(a, Config),
    Port = start(Config, #{}),
    Size = 20_000_000,
    Before = cluster:call(A, fun() ->
                                     View = binary:copy(<<"x">>, Size),
                                     _ = sys:replace_state(trunkline_web_server,
                                                           fun(S) -> with_view(View, S) end),
                                     erlang:memory(binary)
                             end),
    Clients = [begin
                   {ok, Client} = gen_tcp:connect({127, 0, 0, 1}, Port,
                                                  [{active, false}, {recbuf, 8192}]),
                   ok = gen_tcp:send(Client, "GET /samples HTTP/1.1\r\nHost: localhost\r\n\r\n"),
                   Client
               end || _ <- lists:seq(1, 5)],
    Unread = fun() -> cluster:call(A, fun() -> unread(Port) end) end,
    cluster:await(fun() -> case Unread() of
                               [_, _, _, _, _] = Five -> lists:min(Five) > Size div 2 orelse Five;
                               Others -> Others
                           end end),
    After = cluster:call(A, erlang, memory, [binary]),
    ?assert(After - Before < Size),
    {200, _, Text} = get(Port, "/samples"),
    ?assert(length(Text) > Size),
    cluster:await(fun() -> Unread() =:= [] orelse Unread() end, 120_000),
    lists:foreach(fun gen_tcp:close/1, Clients).

%% The state's last field is what it keeps.
with_view(View, State) -> setelement(tuple_size(State), State, queue:from_list([{1, View}])).

%% What is in the sockets at that port for those who are connected. Runs at the node.
unread(Port) ->
    [Size || Socket <- erlang:ports(),
             {{ok, {_, Local}}, {ok, _}} <- [{inet:sockname(Socket), inet:peername(Socket)}],
             Local =:= Port, {queue_size, Size} <- [erlang:port_info(Socket, queue_size)]].

%% --- a browser ---------------------------------------------------------------------------

%% Its script draws the peers, and shows that one has gone.
browser(Config) ->
    case os:find_executable("chromium") of
        false -> {skip, "no chromium"};
        Chromium -> browser(Chromium, Config)
    end.

browser(Chromium, Config) ->
    A = ?config(a, Config),
    C = cluster:start(),
    cluster:connect(A, C),
    cluster:await_up(A, C),
    Port = start(Config, #{}),
    await_views(Port, 1),
    [NodeB, NodeC] = [atom_to_list(cluster:node_of(N)) || N <- [?config(b, Config), C]],
    Shown = fun() -> dom(Chromium, Port, Config) end,
    %% (A busy machine may need more time than the page has.)
    cluster:await(fun() ->
                          Dom = Shown(),
                          IsRight = [state(Node, Dom) || Node <- [NodeB, NodeC]] =:= ["up", "up"]
                              andalso string:find(Dom, "Messages a second") =/= nomatch
                              andalso re:run(Dom, "<span id=\"gone\"[^>]*>[^<]") =:= nomatch,
                          IsRight orelse Dom
                  end, ?BROWSER),
    cluster:stop(C),
    cluster:await(fun() ->
                          Now = Shown(),
                          lists:member(state(NodeC, Now), ["down", "gone"])
                              andalso state(NodeB, Now) =:= "up"
                              orelse Now
                  end, ?BROWSER).

%% Trunkline's folder may have any name. What is missing there is named.
folders(Config) ->
    Ours = filename:dirname(filename:dirname(code:which(trunkline_web))),
    Other = filename:join(?config(priv_dir, Config), "lanes-of-ours"),
    [begin
         {ok, Content} = file:read_file(filename:join(Ours, File)),
         ok = filelib:ensure_dir(filename:join(Other, File)),
         ok = file:write_file(filename:join(Other, File), Content)
     end || File <- ["priv/trunkline.html" | filelib:wildcard("ebin/*.{app,beam}", Ours)]],
    Path = [filename:join(Other, "ebin")
            | lists:delete(filename:join(Ours, "ebin"), code:get_path())],
    Node = cluster:start([], peer:random_name("other_folder"), cluster:dist_arguments(), Path),
    ?assertNotEqual(Other, cluster:call(Node, code, lib_dir, [trunkline])),
    {ok, Url} = cluster:call(Node, trunkline_web, start, [#{port => 0}]),
    {match, [Port]} = re:run(Url, ":([0-9]+)/", [{capture, [1], list}]),
    ?assertMatch({200, _, _}, get(list_to_integer(Port), "/")),
    ok = cluster:call(Node, trunkline_web, stop, []),
    Page = filename:join(Other, "priv/trunkline.html"),
    ok = file:delete(Page),
    ?assertEqual({error, {missing, Page}}, cluster:call(Node, trunkline_web, start, [#{}])),
    cluster:stop(Node).

%% A release need not have it. When it has, the page starts.
no_inets(_) ->
    Node = cluster:start(),
    Inets = cluster:call(Node, code, lib_dir, [inets]),
    true = cluster:call(Node, code, del_path, [inets]),
    Start = fun() -> cluster:call(Node, trunkline_web, start, [#{port => 0}]) end,
    ?assertEqual([{error, no_inets}, {error, no_inets}], [Start(), Start()]),
    true = cluster:call(Node, code, add_path, [filename:join(Inets, "ebin")]),
    ?assertMatch({ok, _}, Start()),
    cluster:stop(Node).

%% Of 101 peers 100 are shown, and these stay while the other has hardly more to tell. The one that
%% is not shown any more, when the other has, is not called gone.
many_peers(Config) ->
    A = ?config(a, Config),
    {module, trunkline_sample} = cluster:call(A, code, load_binary, [trunkline_sample, "test",
                                                                     stand_in()]),
    try
        Port = start(Config, #{}),
        await_views(Port, 5),
        {200, _, Text} = get(Port, "/samples"),
        %% In a view, hints stand before the peers or behind them, as the release has it.
        [One, Two, Three | Later] = [shown(Part) || Part <- string:split(Text, "\"hints\":", all),
                                                    string:find(Part, "\"peer\":") =/= nomatch],
        ?assertEqual({100, One, One}, {length(One), Two, Three}),
        Last = lists:last(Later),
        ?assertMatch({100, ["n101@host"], [_]}, {length(Last), Last -- One, One -- Last}),
        case os:find_executable("chromium") of
            false -> ok;
            Chromium -> not_gone(Chromium, Port, hd(One -- Last), Config)
        end
    after
        cluster:call(A, fun() -> code:purge(trunkline_sample), code:load_file(trunkline_sample) end)
    end.

not_gone(Chromium, Port, Absent, Config) ->
    cluster:await(fun() ->
                          Dom = dom(Chromium, Port, Config),
                          {state("n101@host", Dom), state(Absent, Dom)} =:= {"up", "not shown"}
                              orelse Dom
                  end, 200_000).

shown(View) ->
    {match, Names} = re:run(View, "\"peer\":\"([^\"]*)\"", [global, {capture, [1], list}]),
    lists:sort(lists:append(Names)).

%% A trunkline_sample whose views are those of many/0.
stand_in() ->
    Forms = [begin
                 {ok, Tokens, _} = erl_scan:string(Text),
                 {ok, Form} = erl_parse:parse_form(Tokens),
                 Form
             end || Text <- ["-module(trunkline_sample).", "-export([here/0, view/2]).",
                             "here() -> none_yet.", "view(_, _) -> web_SUITE:many()."]],
    {ok, trunkline_sample, Binary} = compile:forms(Forms),
    Binary.

%% The third view is the last one in which they are nearly equal. Runs in the page's process.
many() ->
    N = case get(?MODULE) of
            undefined -> 1;
            Before -> Before + 1
        end,
    put(?MODULE, N),
    Rate = fun(101) when N > 3 -> 1000.0;
              (101) when N > 1 -> 2.0;
              (101) -> 0.0;
              (Ix) -> 1.0 + (N + Ix) rem 2
           end,
    #{node => node(), time => erlang:system_time(millisecond), interval => 2.0, release => "1.0.0",
      running => true, uptime => 1, refused => 0, refused_now => 0, inboxes => [],
      more_inboxes => 0, limits => #{bulk_bytes => 1000, resume_time => 0},
      peers => [many(list_to_atom("n" ++ integer_to_list(Ix) ++ "@host"), Rate(Ix))
                || Ix <- lists:seq(1, 101)]}.

many(Peer, Rate) ->
    #{peer => Peer, state => up, release => "1.0.0", way => dist, large_way => none,
      connections => 0, round_trip => 1, messages_out => Rate, messages_in => 0.0, bytes_out => 0.0,
      bytes_in => 0.0, large_out => 0.0, batch => 1.0, queued_messages => 0, queued_bytes => 0,
      in_flight_bytes => 0, window_bytes => 1, waiting => 0, waited => 0.0, waits => 0.0,
      inbox_waiting => 0, inbox_waited => 0.0,
      large_pending => 0, lost => 0, lost_now => 0, sent_again => 0,
      sent_again_now => 0, resumed => 0, lanes => []}.

dom(Chromium, Port, Config) ->
    Data = filename:join(?config(priv_dir, Config), "chromium"),
    {0, Dom} = command:run(?config(priv_dir, Config), [],
                           [Chromium, "--headless", "--no-sandbox", "--disable-gpu",
                            "--user-data-dir=" ++ Data,
                            "--virtual-time-budget=5000", "--dump-dom",
                            "http://127.0.0.1:" ++ integer_to_list(Port) ++ "/"]),
    Dom.

%% What stands at that peer.
state(Node, Dom) ->
    case re:run(Dom, ["<h2>", Node, "</h2><span class=\"state [a-z]+\">([^<]*)<"],
                [{capture, [1], list}]) of
        {match, [State]} -> State;
        nomatch -> none
    end.
