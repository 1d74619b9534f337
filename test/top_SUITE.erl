%% trunkline_top: what two samples show, how it is drawn, what it says in words, and a terminal.
-module(top_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([rates/1, counters_that_begin_again/1, numbers/1, widths/1, heading/1, sorting/1,
         few_rows/1, hints/1, two_nodes/1, inboxes/1, many_inboxes/1, stopped_node/1, plugin/1,
         arguments/1, terminal/1]).
-export([printed/2, inbox/1, open_many/1]).

suite() -> [{timetrap, {minutes, 5}}].

all() -> [rates, counters_that_begin_again, numbers, widths, heading, sorting, few_rows, hints,
          two_nodes, inboxes, many_inboxes, stopped_node, plugin, arguments, terminal].

%% --- samples that are made up ------------------------------------------------------------

sample(At, Peers) ->
    #{node => 'a@host', at => At, time => At div 1000, release => "1.0.0", running => true,
      uptime => 90061, refused => 0, transport => tcp,
      limits => #{bulk_bytes => 1000, resume_time => 0},
      peers => Peers, inboxes => #{}, more_inboxes => 0}.

peer(State, Lanes) -> peer(State, Lanes, #{}).

peer(State, Lanes, More) ->
    maps:merge(#{state => State, since => 0, release => "1.0.0", protocol => 2, round_trip => 98000,
                 lanes => Lanes,
                 batches => #{by => distribution, connections => 0,
                              congestion_control => undefined},
                 large => #{by => none, connections => 0, congestion_control => undefined,
                            pending_messages => 0, pending_bytes => 0, messages => 0, bytes => 0,
                            received_bytes => 0, waiting => 0, wait_time => 0, broken => 0},
                 inboxes => #{waiting => 0, wait_time => 0, refused => 0},
                 fallbacks => 0, sessions => 1, resumed => 0,
                 lost => #{queued => 0, unconfirmed => 0, crashed => 0, unreachable => 0}}, More).

lane(More) ->
    maps:merge(#{queued_messages => 0, queued_bytes => 0, in_flight_messages => 0,
                 in_flight_bytes => 0, batches => 0, messages => 0, batched_messages => 0,
                 bytes => 0, mean_batch => 0.0,
                 largest_batch => 0, window_bytes => 1000, waits => 0, waiting => 0, wait_time => 0,
                 nosuspend => 0, received_batches => 0, received_messages => 0, received_bytes => 0,
                 kept_bytes => 0, sent_again => 0, connections => 0}, More).

%% A view of two samples, two seconds apart.
view(Before, After) ->
    trunkline_sample:view(sample(0, Before), sample(2_000_000, After)).

view(After) -> view(After, After).

settings() -> #{columns => 80, rows => 1_000_000, show => peers, sort => name, keys => true}.

rates(_) ->
    Before = peer(up, [lane(#{messages => 100, batched_messages => 100, batches => 10,
                              bytes => 1000}), lane(#{})]),
    %% (Some went past the lane.)
    After = peer(up, [lane(#{messages => 300, batched_messages => 280, batches => 14, bytes => 5000,
                             waits => 2, wait_time => 500_000, waiting => 1,
                             received_messages => 40}),
                      lane(#{messages => 100, batched_messages => 100, batches => 1,
                             queued_bytes => 7})],
                 #{inboxes => #{waiting => 2, wait_time => 3_000_000, refused => 0}}),
    #{interval := 2.0, peers := [Peer]} = view(#{'b@host' => Before}, #{'b@host' => After}),
    ?assertMatch(#{peer := 'b@host', state := up, way := dist, messages_out := 150.0,
                   messages_in := 20.0, bytes_out := 2000.0, batch := 56.0, queued_bytes := 7,
                   waits := 1.0, waited := 1.75, waiting := 3,
                   inbox_waited := 1.5, inbox_waiting := 2,
                   lanes := [#{lane := 1, messages_out := 100.0, batch := 45.0},
                             #{lane := 2, messages_out := 50.0, batch := 100.0}]}, Peer).

%% A peer that is new, or was forgotten in between, or has other lanes, has no rate below 0.
counters_that_begin_again(_) ->
    One = peer(up, [lane(#{messages => 100, batched_messages => 100, batches => 10})]),
    Two = peer(up, [lane(#{messages => 3, batched_messages => 3, batches => 1}),
                    lane(#{messages => 5, batched_messages => 5, batches => 5})]),
    #{peers := [#{messages_out := New}]} = view(#{}, #{b => One}),
    #{peers := [#{messages_out := Other, batch := Batch}]} = view(#{b => One}, #{b => Two}),
    #{peers := [#{messages_out := Gone}]} = view(#{b => Two}, #{b => peer(down, [])}),
    ?assertEqual({0.0, 0.0, 0.0}, {New, Other, Batch}),
    ?assert(Gone == 0).

numbers(_) ->
    ?assertEqual(["0", "0", "0.1", "9.9", "10", "999", "1.0k", "9.9k", "10k", "412k", "1.0M", "38M",
                  "1.2G", "10T"],
                 [trunkline_screen:short(N)
                  || N <- [0, 0.01, 0.1, 9.94, 9.96, 999, 1000, 9949, 9999, 412_300, 999_600,
                           38.1e6, 1.2e9, 1.0e13]]),
    Random = [rand:uniform(1 bsl rand:uniform(60)) || _ <- lists:seq(1, 10_000)],
    ?assertEqual([], [N || N <- Random, length(trunkline_screen:short(N)) > 4]),
    ?assertEqual([], [N || N <- Random, length(trunkline_screen:short(N / 7)) > 4]),
    ?assertEqual(["-", "5us", "1.2ms", "98ms", "1.0s"],
                 [trunkline_screen:time(T) || T <- [undefined, 5, 1200, 98_000, 999_700]]).

%% Whatever the numbers and the names are, no line is too long, and columns stay apart.
widths(_) ->
    Names = [b, 'a_rather_long_name@a-rather-long-host.example.com',
             list_to_atom(lists:duplicate(127, $l) ++ "@" ++ lists:duplicate(127, $h))],
    Lane = lane(#{messages => 987_654_321_987, batches => 987_654_321, bytes => 987_654_321_987,
                  received_messages => 87_654_321_987, received_bytes => 876_543_219_876,
                  queued_bytes => 87_654_321, waiting => 999, wait_time => 87_654_321_000,
                  queued_messages => 999_499, in_flight_bytes => 999_499, window_bytes => 999_499,
                  sent_again => 999_499, connections => 64}),
    Batches = #{by => connections, connections => 2, congestion_control => <<"bbr">>},
    Peer = peer(up, [Lane, Lane], #{round_trip => 999, batches => Batches,
                                    lost => #{queued => 999_499_000},
                                    inboxes => #{waiting => 9999, wait_time => 87_654_321_000}}),
    Nobody = peer(suspended, [lane(#{}), lane(#{})]),
    View = view(maps:from_list([{N, Nobody} || N <- Names]),
                maps:from_list([{N, Peer} || N <- Names])),
    [begin
         Lines = trunkline_screen:lines(View, trunkline_hints:hints(View),
                                        (settings())#{show => Show, columns => Columns}),
         ?assertEqual([], [L || L <- Lines, length(L) > Columns]),
         [_, _, _ | Rows] = Lines,
         Words = length(string:lexemes(hd(Rows), " ")),
         ?assertEqual({Show, Columns, column_count(Show, Columns)}, {Show, Columns, Words})
     end || Columns <- [80, 100, 200], Show <- [peers, lanes]],
    ?assertEqual([], [L || L <- trunkline_screen:help(80), length(L) > 79]).

%% "up tcp" is two words; a lane's name is "b 1".
column_count(peers, 80) -> 15;
column_count(peers, _) -> 17;
column_count(lanes, _) -> 13.

%% However long the node's own name is, what is said of all peers has room beside it.
heading(_) ->
    [begin
         Sample = (sample(0, #{b => peer(up, [])}))#{node => Node},
         View = trunkline_sample:view(Sample, Sample),
         [Heading | _] = trunkline_screen:lines(View, [], settings()),
         ?assert(length(Heading) =< 80),
         ?assertEqual({Node, Told}, {Node, lists:nthtail(length(Heading) - length(Told), Heading)})
     end || {Node, Told} <-
                [{'a@host', "  a@host  1d 1:01:01  peers 1 (1 up)  lost 0  refused 0"},
                 {list_to_atom(lists:duplicate(127, $l) ++ "@" ++ lists:duplicate(127, $h)),
                  "lll~hhhhhhhh  1d 1:01:01  peers 1 (1 up)  lost 0  refused 0"}]].

sorting(_) ->
    Before = maps:from_list([{N, peer(up, [lane(#{})])} || N <- [b, c, d]]),
    After = #{b => peer(up, [lane(#{messages => 10, batches => 1, queued_bytes => 1})]),
              c => peer(up, [lane(#{messages => 30, batches => 1, queued_bytes => 3})]),
              d => peer(up, [lane(#{messages => 20, batches => 1, queued_bytes => 5})])},
    View = view(Before, After),
    Order = fun(Sort) ->
                    Lines = trunkline_screen:lines(View, [], (settings())#{sort => Sort}),
                    [hd(L) || L <- lists:sublist(Lines, 4, 3)]
            end,
    ?assertEqual({"bcd", "cdb", "dcb"}, {Order(name), Order(messages_out), Order(queued_bytes)}),
    [?assertMatch([_ | _], trunkline_screen:lines(View, [], (settings())#{show => S, sort => K}))
     || S <- [peers, lanes, inboxes], K <- trunkline_screen:sorts(S)].

%% What does not fit is counted; the keys are always there.
few_rows(_) ->
    View = view(maps:from_list([{list_to_atom("n" ++ integer_to_list(N)), peer(up, [])}
                                || N <- lists:seq(1, 50)])),
    Lines = trunkline_screen:lines(View, ["something"], (settings())#{rows => 20}),
    ?assertEqual(20, length(Lines)),
    ?assert(lists:member("and 37 more", Lines)),
    ?assertMatch("Enter after: " ++ _, lists:last(Lines)),
    [] = [L || L <- trunkline_screen:lines(View, [], (settings())#{rows => 3}), length(L) > 80],
    %% And hints leave room for the table.
    Hints = lists:duplicate(60, "a hint that is too long for one line, and says what is not as it "
                            "should be with a peer"),
    Hinted = trunkline_screen:lines(View, Hints, (settings())#{rows => 20}),
    ?assertEqual(20, length(Hinted)),
    ?assert(lists:member(">> and 57 more", Hinted)).

hints(_) ->
    Hints = fun(Before, After) ->
                    trunkline_hints:hints(view(#{'c@far' => Before}, #{'c@far' => After}))
            end,
    Up = peer(up, [lane(#{})]),
    ?assertEqual([], Hints(Up, Up)),
    Full = #{wait_time => 740_000, in_flight_bytes => 900},
    ?assertEqual(["senders to c@far wait 37 % of the time: it acknowledges nothing. "
                  "Does it stand still?"], Hints(Up, peer(up, [lane(Full)]))),
    %% The connection may be full before the window is.
    ?assertEqual(["senders to c@far wait 37 % of the time: it acknowledges nothing. "
                  "Does it stand still?"],
                 Hints(Up, peer(up, [lane(Full#{in_flight_bytes => 90})]))),
    ?assertEqual(["senders to c@far wait 37 % of the time: while a connection is made"],
                 Hints(Up, peer(down, [lane(#{wait_time => 740_000})]))),
    ?assertEqual(["senders to c@far wait 37 % of the time: it is slow to acknowledge. "
                  "Its receivers or the network are slow"],
                 Hints(Up, peer(up, [lane(Full#{messages => 9, batches => 1})]))),
    ?assertEqual(["about 2 senders to c@far wait at any time: they send faster than the nodes and "
                  "the network between them can carry"],
                 Hints(Up, peer(up, [lane(#{wait_time => 3_700_000})]))),
    %% What they wait for in inboxes is not the lanes' fault.
    ?assertEqual(["about 4 senders to c@far wait at any time for room in its inboxes: the "
                  "processes behind these are slower than their senders"],
                 Hints(Up, peer(up, [lane(#{})],
                                #{inboxes => #{waiting => 4, wait_time => 8_000_000}}))),
    #{large := Large} = Up,
    ?assertEqual(["senders to c@far wait 37 % of the time: as many large messages are pending as "
                  "bulk_bytes allows (1.0k bytes)"],
                 Hints(Up, peer(up, [lane(Full)], #{large => Large#{pending_bytes => 990}}))),
    ?assertEqual(["large messages to c@far go by the distribution: is its port open? See the log"],
                 Hints(Up, peer(up, [lane(#{})],
                                #{large => Large#{by => distribution, bytes => 1}}))),
    ?assertEqual(["12 messages to c@far were lost, or may be: the log says why"],
                 Hints(Up, peer(down, [], #{lost => #{queued => 12}}))),
    ?assertMatch(["c@far does not run Trunkline" ++ _],
                 Hints(peer(greeting, []), peer(greeting, []))),
    ?assertEqual(["2 batches to c@far were sent again: a connection broke"],
                 Hints(Up, peer(up, [lane(#{sent_again => 2})]))),
    Stopped = (sample(0, #{}))#{running => false},
    ?assertEqual(["Trunkline does not run on a@host: all messages go by plain distribution"],
                 trunkline_hints:hints(trunkline_sample:view(Stopped, Stopped))).

%% --- nodes ---------------------------------------------------------------------------------

%% What is printed is what was sent, from this side and from the other one. A peer without
%% Trunkline is shown, one that is hidden is not.
two_nodes(_) ->
    {A, Plain, B} = cluster:with_and_without(),
    Hidden = cluster:start(none, peer:random_name("hidden"), ["-hidden"]),
    cluster:connect(Hidden, A),
    [Pid] = cluster:call(B, traffic, start_receivers, [1]),
    {ok, Before} = cluster:call(A, trunkline_sample, take, [cluster:node_of(A)]),
    {ok, BeforeB} = cluster:call(A, trunkline_sample, take, [cluster:node_of(B)]),
    Send = fun(N) -> trunkline:send(Pid, {from, x, N, y}) end,
    cluster:call(A, fun() -> lists:foreach(Send, lists:seq(1, 1000)) end),
    cluster:await(fun() -> cluster:call(B, traffic, count, [Pid]) =:= 1000 end),
    %% (They are counted after they have arrived, and those that went past the lane a second later.)
    Received = fun() -> #{lanes := Lanes} = cluster:info(B, A),
                        lists:sum([N || #{received_messages := N} <- Lanes]) end,
    cluster:await(fun() -> Received() >= 1000 orelse Received() end),
    {ok, After} = cluster:call(A, trunkline_sample, take, [cluster:node_of(A)]),
    {ok, AfterB} = cluster:call(A, trunkline_sample, take, [cluster:node_of(B)]),
    {NodeA, NodeB, NodePlain} = {cluster:node_of(A), cluster:node_of(B), cluster:node_of(Plain)},
    #{peers := Peers, interval := Interval} = trunkline_sample:view(Before, After),
    #{peers := PeersB, interval := IntervalB} = trunkline_sample:view(BeforeB, AfterB),
    ?assertEqual(lists:sort([NodeB, NodePlain]), lists:sort([P || #{peer := P} <- Peers])),
    [#{messages_out := Out}] = [P || #{peer := P1} = P <- Peers, P1 =:= NodeB],
    [#{messages_in := In}] = [P || #{peer := P1} = P <- PeersB, P1 =:= NodeA],
    ?assertEqual({1000, 1000}, {round(Out * Interval), round(In * IntervalB)}),
    {ok, Text} = cluster:call(A, ?MODULE, printed, [once, []]),
    ct:log("~ts", [Text]),
    [?assertMatch([[_ | _]], [L || L <- string:split(Text, "\n", all),
                                   lists:prefix([Node, State], string:lexemes(L, " "))])
     || {Node, State} <- [{atom_to_list(NodeB), "up"}, {atom_to_list(NodePlain), "greet"}]],
    ?assertNotEqual(nomatch, string:find(Text, "does not run Trunkline")),
    {ok, TextB} = cluster:call(A, ?MODULE, printed, [once, [NodeB]]),
    ?assertNotEqual(nomatch, string:find(TextB, atom_to_list(NodeB))),
    ?assertMatch({{error, noconnection}, ""},
                 cluster:call(A, ?MODULE, printed, [once, ['no@where']])),
    %% Nobody can type anything: it ends at once.
    ?assertMatch({ok, _}, cluster:call(A, ?MODULE, printed, [start, []])),
    %% Without Trunkline.
    ok = cluster:call(A, cluster, stop_trunkline, []),
    {ok, Stopped} = cluster:call(A, ?MODULE, printed, [once, []]),
    ?assertNotEqual(nomatch, string:find(Stopped, "Trunkline does not run on")),
    cluster:stop_all([A, Plain, B, Hidden]).

%% A node that stands still, behind a busy connection, holds nobody up.
stopped_node(_) ->
    {A, B} = cluster:pair([]),
    NodeB = cluster:node_of(B),
    Sink = cluster:call(B, erlang, whereis, [init]),
    cluster:suspend(B),
    Sender = cluster:call(A, fun() ->
                                     Binary = binary:copy(<<0>>, 10_000_000),
                                     spawn(fun() -> [Sink ! Binary || _ <- lists:seq(1, 100)] end)
                             end),
    cluster:await_suspended(A, Sender),
    ?assertEqual({error, timeout}, cluster:call(A, trunkline_sample, take, [NodeB])),
    ?assertEqual({error, {erpc, timeout}},
                 cluster:call(A, fun() ->
                                         try trunkline_inbox:info({post, NodeB})
                                         catch error:Reason -> {error, Reason}
                                         end
                                 end)),
    cluster:stop_all([A, B]).

%% What a function of trunkline_top prints; there is no terminal, and no input. Runs at the node.
printed(Function, Args) ->
    Caller = group_leader(),
    Device = spawn(fun() -> device([]) end),
    group_leader(Device, self()),
    Result = apply(trunkline_top, Function, Args),
    group_leader(Caller, self()),
    Device ! {text, self()},
    receive {Device, Text} -> {Result, Text} end.

%% Erlang's I/O protocol, as far as it is needed.
device(Said) ->
    receive
        {io_request, From, As, {put_chars, unicode, Text}} ->
            From ! {io_reply, As, ok},
            device([Said, Text]);
        {io_request, From, As, {get_geometry, _}} ->
            From ! {io_reply, As, {error, enotsup}},
            device(Said);
        {io_request, From, As, {get_line, _, _}} ->
            From ! {io_reply, As, eof},
            device(Said);
        {text, From} ->
            From ! {self(), unicode:characters_to_list(Said)}
    end.

%% An inbox that is full is shown with its name, how full it is, and what it has dropped.
inboxes(_) ->
    {A, B} = cluster:pair([]),
    Name = {full_inbox, cluster:node_of(B)},
    Pid = cluster:call(B, ?MODULE, inbox, [self()]),
    {ok, Before} = cluster:call(A, trunkline_sample, take, [cluster:node_of(B)]),
    cluster:call(A, fun() -> [trunkline:send(Name, N) || N <- lists:seq(1, 20)], ok end),
    View = fun() ->
                   {ok, After} = cluster:call(A, trunkline_sample, take, [cluster:node_of(B)]),
                   trunkline_sample:view(Before, After)
           end,
    cluster:await(fun() -> case View() of
                               #{inboxes := [#{dropped := 9}]} -> true;
                               Other -> Other
                           end end),
    #{inboxes := [Inbox]} = Last = View(),
    ?assertMatch(#{name := full_inbox, policy := drop_newest, messages := 10, queued_messages := 10,
                   full := 1.0, in_work := 1, dropped := 9, dropped_now := 9}, Inbox),
    ?assertEqual(["inbox full_inbox is full and has dropped 9 messages"],
                 trunkline_hints:hints(Last)),
    ?assertMatch(#{waiting := 0}, Inbox),
    [_, _, _, Line | _] = trunkline_screen:lines(Last, [], (settings())#{show => inboxes}),
    ct:log("~ts", [Line]),
    ?assertMatch(["full_inbox", "drop_newest", "10" | _], string:lexemes(Line, " ")),
    %% An inbox that does not answer is shown, too.
    Keeper = cluster:call(B, erlang, whereis, [full_inbox]),
    ?assertMatch(#{inboxes := #{Keeper := #{queued_messages := 10, in_work := 1}}},
                 cluster:call(B, fun() ->
                                         true = erlang:suspend_process(Keeper),
                                         Sample = trunkline_sample:here(),
                                         true = erlang:resume_process(Keeper),
                                         Sample
                                 end)),
    cluster:call(B, erlang, exit, [Pid, kill]),
    cluster:stop_all([A, B]).

%% Not all of very many are shown, but those that are full are.
many_inboxes(_) ->
    Node = cluster:start(),
    Full = lists:sort(cluster:call(Node, ?MODULE, open_many, [self()])),
    cluster:await(fun() ->
                          #{inboxes := Inboxes, more_inboxes := More} =
                              cluster:call(Node, trunkline_sample, here, []),
                          HalfFull = [I || {I, #{queued_messages := 5}} <- maps:to_list(Inboxes)],
                          case lists:sort(HalfFull) of
                              Full -> {200, 200} =:= {map_size(Inboxes), More};
                              Some -> {length(Some), map_size(Inboxes), More}
                          end
                  end),
    cluster:stop(Node).

%% 400 inboxes, of which 20 are half full; these are the result. Runs at the node.
open_many(_) ->
    Self = self(),
    Pid = spawn(fun() ->
                        Open = fun(_) ->
                                       {ok, Inbox} = trunkline_inbox:open(#{messages => 10,
                                                                            work => 1}),
                                       Inbox
                               end,
                        Self ! {self(), lists:map(Open, lists:seq(1, 400))},
                        receive stop -> ok end
                end),
    receive
        {Pid, Inboxes} ->
            Full = lists:sublist(Inboxes, 100, 20),
            [trunkline:send(Inbox, N) || Inbox <- Full, N <- lists:seq(1, 6)],
            Full
    end.

%% A process that does nothing with its messages. Runs at the node.
inbox(_) ->
    Self = self(),
    Pid = spawn(fun() ->
                        {ok, _} = trunkline_inbox:open({local, full_inbox}, #{policy => drop_newest,
                                                                     messages => 10, work => 1}),
                        Self ! {self(), opened},
                        receive stop -> ok end
                end),
    receive {Pid, opened} -> Pid end.

%% The contract of observer_cli_plugin, as its documentation has it.
plugin(_) ->
    {A, B} = cluster:pair([]),
    Headers = cluster:call(A, trunkline_observer_cli, sheet_header, []),
    [?assertMatch(#{title := [_ | _], width := W, shortcut := [_ | _]} when is_integer(W), H)
     || H <- Headers],
    %% Those keys are observer_cli's own.
    Shortcuts = [S || #{shortcut := S} <- Headers],
    ?assertEqual({Shortcuts, Shortcuts},
                 {lists:uniq(Shortcuts), Shortcuts -- ["H", "B", "F", "q"]}),
    {Rows, State} = cluster:call(A, trunkline_observer_cli, sheet_body, [undefined]),
    NodeB = atom_to_list(cluster:node_of(B)),
    ?assertMatch([[NodeB, "up" | _]], Rows),
    {[Row], _} = cluster:call(A, trunkline_observer_cli, sheet_body, [State]),
    ?assertEqual(length(Headers), length(Row)),
    ?assertEqual([], [Cell || Cell <- Row, not is_integer(Cell), not io_lib:printable_list(Cell)]),
    {[[Attribute] | _], _} = cluster:call(A, trunkline_observer_cli, attributes, [undefined]),
    ?assertMatch(#{content := "Trunkline " ++ _, width := _}, Attribute),
    cluster:stop_all([A, B]).

arguments(_) ->
    [?assertError(badarg, apply(trunkline_top, F, Args))
     || {F, Args} <- [{start, [7]}, {start, [#{interval => 1}]}, {start, [#{show => all}]},
                      {start, [node(), #{sort => colour}]}, {start, ["b", #{}]}, {once, ["b"]}]],
    Explained = fun(F, Args) -> explained:texts(trunkline_top, F, Args) end,
    ?assertEqual([["not a node, a map or a property list"],
                  ["option interval is 1, but must be an integer from 100 to 60000"],
                  ["option show is all, but must be one of peers, lanes, inboxes"],
                  ["not a node", "neither a map nor a property list"], ["not a node"]],
                 [Explained(start, [7]), Explained(start, [#{interval => 1}]),
                  Explained(start, [[{show, all}]]),
                  Explained(start, ["b", 7]), Explained(once, ["b"])]),
    %% What can be sorted by depends on what is shown.
    ?assertEqual([["option sort is large_pending, but must be one of name, messages_out, "
                   "messages_in, queued_bytes, in_flight_bytes, waited"],
                  ["there is no option x; there are show, sort, interval"],
                  ["option show is all, but must be one of peers, lanes, inboxes"],
                  ["option sort is full, but must be one of name, messages_out, messages_in, "
                   "bytes_out, bytes_in, queued_bytes, waited, large_pending, lost"]],
                 [Explained(start, [Options])
                  || Options <- [#{show => lanes, sort => large_pending},
                                 #{show => lanes, sort => in_flight_bytes, x => 1},
                                 #{show => all, sort => lost}, #{sort => full}]]).

%% --- a terminal -------------------------------------------------------------------------------

%% In tmux, with 80 columns: the screen is drawn over itself, keys work, and q leaves the shell as
%% it was.
terminal(Config) ->
    case os:find_executable("tmux") of
        false -> {skip, "no tmux"};
        Tmux -> terminal(Tmux, Config)
    end.

terminal(Tmux, Config) ->
    B = cluster:start(),
    NodeB = atom_to_list(cluster:node_of(B)),
    Run = fun(Args) ->
                  Server = "trunkline" ++ os:getpid(),
                  command:run(?config(priv_dir, Config), [], [Tmux, "-L", Server | Args])
          end,
    Type = fun(Line) -> {0, _} = Run(["send-keys", "-t", "top", "-l", Line]),
                        {0, _} = Run(["send-keys", "-t", "top", "Enter"]) end,
    Screen = fun() -> {0, Text} = Run(["capture-pane", "-p", "-t", "top"]), Text end,
    Await = fun(What) -> cluster:await(fun() -> Text = Screen(),
                                                case string:find(Text, What) of
                                                    nomatch -> Text;
                                                    _ -> true
                                                end end) end,
    Shell = lists:flatten(["erl -sname ", peer:random_name("top"),
                           " -setcookie trunkline_test_", os:getpid(),
                           " -pa ", filename:dirname(code:which(trunkline))]),
    {0, _} = Run(["new-session", "-d", "-s", "top", "-x", "80", "-y", "24", Shell]),
    try
        Await("1>"),
        Type("application:ensure_all_started(trunkline)."),
        Type("net_kernel:connect_node('" ++ NodeB ++ "')."),
        Type("trunkline:await_up('" ++ NodeB ++ "', 60000)."),
        Await("\nok"),
        Type("trunkline_top:start()."),
        Await("up dist"),
        Lines = string:split(string:trim(Screen(), trailing), "\n", all),
        ct:log("~ts", [lists:join("\n", Lines)]),
        ?assertMatch("trunkline " ++ _, hd(Lines)),
        ?assertMatch([_], [L || L <- Lines, string:find(L, "up dist") =/= nomatch]),
        Type("s"), Await("s sort (messages out)"),
        Type("l"), Await("flight"),
        Type("i"), Await("(none)"),
        Type("?"), Await("Enter goes on"),
        Type("p"), Await("up dist"),
        Type("q"), Await("\nok\n"),
        Type("40 + 2."), Await("42")
    after
        _ = Run(["kill-server"]),
        cluster:stop(B)
    end.
