%% What is counted is the same wherever one looks: trunkline:info/1, trunkline_top, the page's
%% /samples, /metrics, and what the senders and the receivers have counted themselves. It is so
%% under overload, while a peer is stopped, when it has gone, over a link that loses packets, and
%% where senders wait for room in an inbox.
-module(agree_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([overload/1, stopped/1, gone/1, inbox/1, loses_packets/1]).
-export([get/2]).

suite() -> [{timetrap, {minutes, 5}}].

all() -> [overload, stopped, gone, inbox, loses_packets].

-define(SENDERS, 4).
%% So little that senders wait.
-define(NARROW, [{lanes, 2}, {queue_bytes, 1 bsl 14}, {window_bytes, 1 bsl 14},
                 {bulk_bytes, 1 bsl 20}]).

%% --- cases -----------------------------------------------------------------------------

%% Far more than there is room for, in small messages and in large ones.
overload(_) ->
    {A, B} = Nodes = cluster:pair(?NARROW),
    Watched = watch(Nodes),
    Receivers = cluster:call(B, traffic, start_watchers, [?SENDERS]),
    Small = collect(A, start(A, Receivers, 2000, 300)),
    Large = collect(A, start(A, Receivers, 20, 200_000)),
    ?assertEqual(?SENDERS * 2020, Small + Large),
    await_received(B, Receivers, Small + Large),
    await_agreement(Watched, #{count => Small + Large, waiting => 0, inboxes => 0, lost => 0}),
    NodeB = cluster:node_of(B),
    ?assertMatch({#{large := Large, waited := Waited}, #{large := Large}} when Waited > 0,
                 {by_info(A, NodeB), by_metrics(A, NodeB)}),
    cluster:stop_all([A, B]).

%% Who waits for a peer that stands still is seen while it waits, and everything arrives when the
%% peer goes on.
stopped(_) ->
    {A, B} = Nodes = cluster:pair(?NARROW),
    Watched = watch(Nodes),
    Receivers = cluster:call(B, traffic, start_watchers, [?SENDERS]),
    Senders = all_wait(Watched, Receivers),
    ok = cluster:continue(B),
    Sent = collect(A, Senders),
    ?assertEqual(?SENDERS * 100, Sent),
    await_received(B, Receivers, Sent),
    await_agreement(Watched, #{count => Sent, waiting => 0, inboxes => 0, lost => 0}),
    cluster:stop_all([A, B]).

%% What was sent to a peer that stood still, and has ended then, is lost, all of it.
gone(_) ->
    {A, B} = Nodes = cluster:pair(?NARROW),
    Watched = watch(Nodes),
    NodeB = cluster:node_of(B),
    Receivers = cluster:call(B, traffic, start_watchers, [?SENDERS]),
    Before = collect(A, start(A, Receivers, 50, 300)),
    await_received(B, Receivers, Before),
    await_agreement(Watched, #{count => Before, waiting => 0, inboxes => 0, lost => 0}),
    cluster:await(fun() -> #{in_flight := N} = by_info(A, NodeB), N =:= 0 orelse N end),
    Senders = all_wait(Watched, Receivers),
    ok = cluster:kill(B),
    Lost = collect(A, Senders),
    ?assertEqual(?SENDERS * 100, Lost),
    await_waiting(Watched, #{waiting => 0, inboxes => 0, lost => Lost}),
    cluster:stop_all([A, B]).

%% The lanes have room, and the senders wait for the inbox. The process that counts them is killed,
%% too.
inbox(_) ->
    {A, B} = Nodes = cluster:pair([]),
    #{ports := #{b := PortB}} = Watched = watch(Nodes),
    [NodeA, NodeB] = [cluster:node_of(Node) || Node <- [A, B]],
    {ok, _} = cluster:call(B, mailroom, start, [{local, post}, #{}, #{messages => 1000}]),
    To = {post, NodeB},
    cluster:await(fun() -> page(B, PortB, inboxes, name, "post") =/= [] end),
    cluster:await(fun() -> _ = collect(A, start(A, [To], 1, 10)),
                           cluster:call(A, trunkline_bounded, is_bounded, [To]) end),
    ok = cluster:call(B, mailroom, hold, [post]),
    Senders = start(A, lists:duplicate(?SENDERS, To), 1000, 10),
    await_waiting(Watched, #{waiting => ?SENDERS, inboxes => ?SENDERS, lost => 0}),
    {ok, Text} = cluster:call(A, top_SUITE, printed, [once, []]),
    ?assertMatch({_, [_ | _]}, {Text, string:find(Text, "room in its inboxes")}),
    ok = cluster:call(B, mailroom, release, [post]),
    ?assertEqual(?SENDERS * 1000, collect(A, Senders)),
    cluster:await(fun() ->
                          #{passed := N, dropped := 0} =
                              cluster:call(B, trunkline_inbox, info, [post]),
                          Rows = page(B, PortB, inboxes, name, "post"),
                          #{count := Sent} = by_info(A, NodeB),
                          %% (To hold it was a call.)
                          Shown = [round(sum(passed, Rows)), Sent + 1,
                                   metric(metrics(B), "inbox_passed_total", "inbox=\"post\"")],
                          N > ?SENDERS * 1000 andalso Shown =:= [N, N, N] orelse {N, Shown}
                  end),
    #{count := All} = by_info(A, NodeB),
    await_agreement(Watched, #{count => All, waiting => 0, inboxes => 0, lost => 0}),
    ok = cluster:call(B, mailroom, hold, [post]),
    Again = start(A, lists:duplicate(?SENDERS, To), 1000, 10),
    await_waiting(Watched, #{waiting => ?SENDERS, inboxes => ?SENDERS, lost => 0}),
    true = cluster:call(A, fun() -> exit(whereis(trunkline_inboxes), kill) end),
    ok = cluster:call(B, mailroom, release, [post]),
    _ = collect(A, Again),
    cluster:await(fun() -> #{inboxes := N} = by_info(A, NodeB), N =:= 0 orelse {NodeA, N} end),
    cluster:stop_all([A, B]).

%% The two nodes are far from each other.
loses_packets(_) ->
    case wan:possible() of
        {error, Why} ->
            {skip, Why};
        ok ->
            Wan = wan:open([a, b], [{a, b}]),
            ok = wan:set(Wan, {a, b}, #{delay => 10, loss => 2}),
            Args = cluster:dist_arguments(),
            [A, B] = [cluster:start_at(Wan, Site, ?NARROW, Args) || Site <- [a, b]],
            cluster:connect(A, B),
            cluster:await_lanes(A, B),
            cluster:await_lanes(B, A),
            Watched = watch({A, B}),
            Receivers = cluster:call(B, traffic, start_watchers, [?SENDERS]),
            Sent = collect(A, start(A, Receivers, 200, 300)),
            ?assertEqual(?SENDERS * 200, Sent),
            await_received(B, Receivers, Sent),
            await_agreement(Watched, #{count => Sent, waiting => 0, inboxes => 0, lost => 0}),
            cluster:stop_all([A, B]),
            wan:close(Wan)
    end.

%% --- senders and receivers -------------------------------------------------------------

%% A sender for each.
start(A, Receivers, Messages, Bytes) ->
    cluster:call(A, fun() ->
                            [hd(mailroom:senders(To, [make_ref()], Messages, Bytes))
                             || To <- Receivers]
                    end).

%% B stands still from here on, and each sender waits.
all_wait(#{nodes := {A, B}} = Watched, Receivers) ->
    ok = cluster:suspend(B),
    Senders = start(A, Receivers, 100, 3000),
    await_waiting(Watched, #{waiting => ?SENDERS, inboxes => 0, lost => 0}),
    Senders.

%% How many they have sent.
collect(A, Senders) -> lists:sum(cluster:call(A, mailroom, collect, [Senders, finish])).

await_received(B, Receivers, N) ->
    cluster:await(fun() ->
                          Counts = [cluster:call(B, traffic, count, [Pid]) || Pid <- Receivers],
                          lists:sum(Counts) =:= N orelse Counts
                  end).

%% --- whoever looks ---------------------------------------------------------------------

%% From before the first message.
watch({A, B}) ->
    {PortA, PortB} = {page(A), page(B)},
    #{nodes => {A, B}, ports => #{a => PortA, b => PortB},
      first => #{a => sample(A), b => sample(B)}}.

page(Node) ->
    {ok, Url} = cluster:call(Node, trunkline_web, start, [#{port => 0}]),
    {match, [Digits]} = re:run(Url, ":([0-9]+)/", [{capture, [1], list}]),
    Port = list_to_integer(Digits),
    cluster:await(fun() -> views(Node, Port) =/= [] end),
    Port.

sample(Node) -> cluster:call(Node, trunkline_sample, here, []).

%% All see the same of what A has sent, and B has got.
await_agreement(#{nodes := {A, B}, ports := #{a := PortA, b := PortB},
                  first := #{a := FirstA, b := FirstB}}, Expected) ->
    {NodeA, NodeB} = {cluster:node_of(A), cluster:node_of(B)},
    Received = maps:with([count], Expected),
    await_all([{info, fun() -> by_info(A, NodeB) end, Expected},
               {top, fun() -> by_top(messages_out, A, FirstA, NodeB) end, Expected},
               {page, fun() -> by_page(messages_out, A, PortA, NodeB) end, Expected},
               {metrics, fun() -> by_metrics(A, NodeB) end, Expected},
               {info_b, fun() -> received_by_info(B, NodeA) end, Received},
               {top_b, fun() -> by_top(messages_in, B, FirstB, NodeA) end, Received},
               {page_b, fun() -> by_page(messages_in, B, PortB, NodeA) end, Received},
               {metrics_b, fun() -> received_by_metrics(B, NodeA) end, Received}]).

%% While B cannot be asked.
await_waiting(#{nodes := {A, B}, ports := #{a := PortA}, first := #{a := FirstA}}, Expected) ->
    NodeB = cluster:node_of(B),
    await_all([{info, fun() -> by_info(A, NodeB) end, Expected},
               {top, fun() -> by_top(messages_out, A, FirstA, NodeB) end, Expected},
               {screen, fun() -> by_screen(A) end, Expected},
               {page, fun() -> by_page(messages_out, A, PortA, NodeB) end, Expected},
               {metrics, fun() -> by_metrics(A, NodeB) end, Expected}]).

await_all(Views) ->
    cluster:await(fun() ->
                          Seen = [{Name, Look(), Expected} || {Name, Look, Expected} <- Views],
                          case [Other || {_, Is, Expected} = Other <- Seen,
                                         maps:with(maps:keys(Expected), Is) =/= Expected] of
                              [] -> true;
                              Others -> Others
                          end
                  end).

by_info(A, NodeB) ->
    #{lanes := Lanes, large := #{messages := Large, waiting := LargeWaiting, wait_time := Time},
      inboxes := #{waiting := Inboxes}, lost := Lost} = cluster:call(A, trunkline, info, [NodeB]),
    Sum = fun(Key) -> lists:sum([maps:get(Key, Lane) || Lane <- Lanes]) end,
    #{count => Sum(messages), large => Large, waiting => Sum(waiting) + LargeWaiting + Inboxes,
      inboxes => Inboxes, lost => lists:sum(maps:values(Lost)), waited => Sum(wait_time) + Time,
      in_flight => Sum(in_flight_messages)}.

received_by_info(B, NodeA) ->
    #{lanes := Lanes} = cluster:call(B, trunkline, info, [NodeA]),
    #{count => lists:sum([N || #{received_messages := N} <- Lanes])}.

by_top(Direction, Node, First, Peer) ->
    #{peers := Peers, interval := Interval} = trunkline_sample:view(First, sample(Node)),
    [#{Direction := Rate, waiting := Waiting, inbox_waiting := Inboxes, lost := Lost}] =
        [P || #{peer := Name} = P <- Peers, Name =:= Peer],
    #{count => round(Rate * Interval), waiting => Waiting, inboxes => Inboxes, lost => Lost}.

%% What stands there of the only peer. (Without a terminal the screen is wide.)
by_screen(Node) ->
    {ok, Text} = cluster:call(Node, top_SUITE, printed, [once, []]),
    [_, _, _, Row | _] = string:split(Text, "\n", all),
    [_, Lost, _, _, Inboxes, _, Waiting | _] = lists:reverse(string:lexemes(Row, " ")),
    maps:map(fun(_, Number) -> list_to_integer(Number) end,
             #{waiting => Waiting, inboxes => Inboxes, lost => Lost}).

by_page(Direction, Node, Port, Peer) ->
    case page(Node, Port, peers, peer, atom_to_list(Peer)) of
        [] -> #{};
        [{Last, _} | _] = Rows ->
            #{waiting := Waiting, inbox_waiting := Inboxes, lost := Lost} = Last,
            #{count => round(sum(Direction, Rows)), waiting => Waiting, inboxes => Inboxes,
              lost => Lost}
    end.

by_metrics(Node, Peer) ->
    Lines = metrics(Node),
    Labels = fun(More) -> "peer=\"" ++ atom_to_list(Peer) ++ "\"" ++ More end,
    #{count => metric(Lines, "messages_sent_total", Labels("")),
      large => metric(Lines, "large_messages_sent_total", Labels("")),
      waiting => metric(Lines, "senders_waiting", Labels("")),
      inboxes => metric(Lines, "senders_waiting", Labels(",cargo=\"inbox\"")),
      lost => metric(Lines, "lost_messages_total", Labels(""))}.

received_by_metrics(Node, Peer) ->
    #{count => metric(metrics(Node), "messages_received_total",
                      "peer=\"" ++ atom_to_list(Peer) ++ "\"")}.

%% --- /samples --------------------------------------------------------------------------

%% That peer or inbox in all views, each with the seconds that the view is about. The last comes
%% first.
page(Node, Port, List, Key, Name) ->
    [{Row, Interval / 1.0e6}
     || #{List := Rows, interval_us := Interval} <- lists:reverse(views(Node, Port)),
        #{Key := Is} = Row <- Rows, Is =:= Name].

%% Of a rate: how many that are in all.
sum(Key, Rows) -> lists:sum([maps:get(Key, Row) * Interval || {Row, Interval} <- Rows]).

%% JSON, of which no text has a brace or a backslash, is nearly an Erlang term.
views(Node, Port) ->
    Text = cluster:call(Node, ?MODULE, get, [Port, "/samples"]),
    Maps = string:replace(Text, "{", "#{", all),
    Term = re:replace(Maps, "\"([a-z_]+)\":", "\\1=>", [global, {return, list}]),
    {ok, Tokens, _} = erl_scan:string(Term ++ "."),
    {ok, #{views := Views}} = erl_parse:parse_term(Tokens),
    Views.

%% Runs at the node, which may be in a network of its own.
get(Port, Path) ->
    Answer = visitor:ask(Port, ["GET ", Path, " HTTP/1.1\r\nHost: localhost\r\n",
                                "Connection: close\r\n\r\n"]),
    ["HTTP/1.1 200" ++ _, Body] = string:split(Answer, "\r\n\r\n"),
    Body.

%% --- /metrics --------------------------------------------------------------------------

metrics(Node) ->
    Text = cluster:call(Node, fun() -> iolist_to_binary(trunkline_metrics:prometheus()) end),
    string:lexemes(unicode:characters_to_list(Text), "\n").

%% The sum of all whose labels begin like that.
metric(Lines, Name, Labels) ->
    Begin = "trunkline_" ++ Name ++ "{" ++ Labels,
    lists:sum([list_to_integer(lists:last(string:split(Line, " ", all)))
               || Line <- Lines, lists:prefix(Begin, Line)]).
