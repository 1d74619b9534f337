%% What an operator should know about a view (trunkline_sample), in sentences. Pure.
%%
%% A hint says what is wrong, the cause if the figures show it, and what to do or where to read
%% about it. The most urgent hints come first. What is normal gets no hint.
-module(trunkline_hints).
-moduledoc false.

-export([hints/1, some/1]).

%% How many are enough.
-define(MOST, 20).
%% Share of the time; less is not a problem.
-define(WAITED, 0.05).
%% Share of a bound from which on the bound is nearly reached.
-define(FULL, 0.8).

-spec hints(trunkline_sample:view()) -> [string()].
hints(#{running := false, node := Node}) ->
    [text("Trunkline does not run on ~ts: all messages go by plain distribution", [Node])];
hints(#{peers := Peers, inboxes := Inboxes, limits := Limits} = View) ->
    [T || Hint <- [fun lost/2, fun suspended/2, fun waits/2, fun waits_for_inboxes/2],
          Peer <- Peers, T <- Hint(Peer, Limits)]
        ++ [T || Inbox <- Inboxes, T <- inbox(Inbox)]
        ++ [T || Hint <- [fun by_distribution/2, fun sent_again/2, fun plain/2],
                 Peer <- Peers, T <- Hint(Peer, Limits)]
        ++ refused(View).

%% Enough of them, where all would take too much room.
-spec some(trunkline_sample:view()) -> [string()].
some(View) ->
    Hints = hints(View),
    case length(Hints) - ?MOST of
        More when More > 0 -> lists:sublist(Hints, ?MOST) ++ [text("and ~b more", [More])];
        _ -> Hints
    end.

lost(#{lost_now := 0}, _) -> [];
lost(#{lost_now := Lost, peer := Peer}, _) ->
    [text("~b messages to ~ts were lost, or may be: the log says why", [Lost, Peer])].

suspended(#{state := suspended, peer := Peer}, #{resume_time := Time}) when is_integer(Time) ->
    [text("the connection to ~ts is lost: its lanes keep what they have for up to ~.1f s",
          [Peer, Time / 1000])];
suspended(#{state := down, queued_messages := Queued, peer := Peer}, _) when Queued > 0 ->
    [text("~ts is not connected: its lanes keep ~b messages while a connection is made",
          [Peer, Queued])];
suspended(#{state := holding, peer := Peer}, _) ->
    [text("Trunkline starts again on ~ts: its lanes keep what they have", [Peer])];
suspended(_, _) -> [].

waits(#{waited := Waited, inbox_waited := InboxWaited, peer := Peer} = Of, Limits)
  when Waited - InboxWaited >= ?WAITED ->
    [text("~ts: ~ts", [who_waits(Waited - InboxWaited, Peer), why(Of, Limits)])];
waits(_, _) -> [].

waits_for_inboxes(#{inbox_waited := Waited, peer := Peer}, _) when Waited >= ?WAITED ->
    [text("~ts for room in its inboxes: the processes behind these are slower than their senders",
          [who_waits(Waited, Peer)])];
waits_for_inboxes(_, _) -> [].

who_waits(Waited, Peer) when Waited =< 1.0 ->
    text("senders to ~ts wait ~b % of the time", [Peer, round(100 * Waited)]);
who_waits(Waited, Peer) ->
    text("about ~b senders to ~ts wait at any time", [round(Waited), Peer]).

%% What senders wait for: the lanes are full because they may not send, or because they cannot.
why(#{large_pending := Pending}, #{bulk_bytes := Limit}) when Pending >= ?FULL * Limit ->
    text("as many large messages are pending as bulk_bytes allows (~ts)",
         [trunkline_screen:bytes(Limit)]);
why(#{state := State}, _) when State =:= down; State =:= suspended ->
    "while a connection is made";
why(#{state := State}, _) when State =/= up ->
    "until the two nodes have agreed";
%% (A lane may be suspended on the busy connection before its window is full.)
why(#{in_flight_bytes := InFlight, messages_out := Out}, _) when InFlight > 0, Out < 1 ->
    "it acknowledges nothing. Does it stand still?";
why(#{in_flight_bytes := InFlight, window_bytes := Window}, _) when InFlight >= ?FULL * Window ->
    "it is slow to acknowledge. Its receivers or the network are slow";
why(_, _) ->
    "they send faster than the nodes and the network between them can carry".

inbox(#{name := Name, inbox := Pid, dropped_now := Dropped}) when Dropped > 0 ->
    [text("inbox ~ts is full and has dropped ~b messages", [trunkline_screen:name(Name, Pid),
                                                            Dropped])];
inbox(#{name := Name, inbox := Pid, full := Full}) when Full >= ?FULL ->
    [text("inbox ~ts is ~b % full: its process is slower than its senders",
          [trunkline_screen:name(Name, Pid), round(100 * Full)])];
inbox(_) -> [].

by_distribution(#{large_way := distribution, large_out := Out, peer := Peer}, _) when Out > 0 ->
    [text("large messages to ~ts go by the distribution: is its port open? See the log", [Peer])];
by_distribution(_, _) -> [].

sent_again(#{sent_again_now := Batches, peer := Peer}, _) when Batches > 0 ->
    [text("~b batches to ~ts were sent again: a connection broke", [Batches, Peer])];
sent_again(_, _) -> [].

plain(#{state := greeting, peer := Peer}, _) ->
    [text("~ts does not run Trunkline, or was drained there: messages to it go by !", [Peer])];
plain(#{state := drained, peer := Peer}, _) ->
    [text("~ts was drained here: messages to it go by ! until the nodes connect again", [Peer])];
plain(_, _) -> [].

refused(#{refused_now := 0}) -> [];
refused(#{refused_now := Refused}) ->
    [text("~b connections to Trunkline's port were refused: they had no invitation", [Refused])].

text(Format, Args) -> lists:flatten(io_lib:format(Format, Args)).
