%% What trunkline_top and trunkline_web show: a sample is what a node counts at one moment, and a
%% view is what happened between two samples. (This folder has all that looks at a node: metrics,
%% the live view, the page.)
%%
%%     take ── interval ── take ──> view/2 ──> rates, shares, and trunkline_hints' sentences
%%
%% A sample reads counters, and asks no inbox: how full an inbox was, and what it has dropped, is
%% about a second old, or older if the inbox has much to do. (So at shorter intervals it jumps.)
%% view/2 is pure. A peer that is only in the second sample has rates of 0.
-module(trunkline_sample).
-moduledoc false.

-export([take/1, here/0, view/2]).

-export_type([sample/0, view/0]).

-type sample() :: #{node := node(), at := integer(),               % us, monotonic
                    time := integer(),                             % ms, system time
                    release := string(), running := boolean(),
                    uptime := non_neg_integer(),                   % s, of the node
                    refused := non_neg_integer(),
                    transport := tcp | tls,
                    limits := #{bulk_bytes | resume_time => term()},
                    peers := #{node() => trunkline:peer_info()},
                    inboxes := #{pid() => map()},
                    more_inboxes := non_neg_integer()}.            % that are not in it

%% Rates are per second. `waited' is how many senders were waiting on average: 1.0 is one sender
%% that waited the whole time, or two that waited for half of it.
-type lane() :: #{peer := node(), lane := pos_integer(),
                  queued_messages := non_neg_integer(), queued_bytes := non_neg_integer(),
                  in_flight_bytes := non_neg_integer(), window_bytes := non_neg_integer(),
                  messages_out := float(), messages_in := float(), bytes_out := float(),
                  bytes_in := float(), batch := float(), waiting := non_neg_integer(),
                  waits := float(), waited := float(), sent_again := non_neg_integer(),
                  connections := non_neg_integer()}.
-type peer() :: #{peer := node(), state := trunkline_peers:state(), release := string() | undefined,
                  way := dist | tcp | tls | none, large_way := connections | distribution | none,
                  connections := non_neg_integer(),
                  round_trip := pos_integer() | undefined,         % us
                  messages_out := float(), messages_in := float(),
                  bytes_out := float(), bytes_in := float(),
                  large_out := float(),                            % bytes, part of bytes_out
                  batch := float(),                                % mean, in messages
                  queued_messages := non_neg_integer(), queued_bytes := non_neg_integer(),
                  in_flight_bytes := non_neg_integer(), window_bytes := non_neg_integer(),
                  %% Waiting for room in lanes, for large messages and in inboxes. inbox_*: inboxes
                  %% alone.
                  waiting := non_neg_integer(), waited := float(), waits := float(),
                  inbox_waiting := non_neg_integer(), inbox_waited := float(),
                  large_pending := non_neg_integer(),
                  lost := non_neg_integer(), lost_now := non_neg_integer(),
                  sent_again := non_neg_integer(), sent_again_now := non_neg_integer(),
                  resumed := non_neg_integer(),
                  lanes := [lane()]}.
-type inbox() :: #{inbox := pid(), name := atom(), policy := atom(),
                   queued_messages := non_neg_integer(), queued_bytes := non_neg_integer(),
                   bytes := pos_integer(), messages := pos_integer(), full := float(),
                   in_work := non_neg_integer(), passed := float(),
                   waiting := non_neg_integer(),                   % senders of that node
                   dropped := non_neg_integer(), dropped_now := non_neg_integer(),
                   time := non_neg_integer() | undefined}.         % us in the queue, the median
-type view() :: #{node := node(), time := integer(), interval := float(),
                  release := string(), running := boolean(), uptime := non_neg_integer(),
                  refused := non_neg_integer(), refused_now := non_neg_integer(),
                  limits := map(),
                  peers := [peer()], inboxes := [inbox()], more_inboxes := non_neg_integer()}.

%% ms, for another node
-define(ASK, 5000).
%% How many inboxes a sample has at most.
-define(INBOXES, 200).

%% --- samples -------------------------------------------------------------------------

-spec take(node()) -> {ok, sample()} | {error, noconnection | timeout | no_trunkline | term()}.
take(Node) when Node =:= node() ->
    {ok, here()};
take(Node) ->
    case trunkline_process:multicall([Node], ?MODULE, here, [], ?ASK) of
        [{ok, Sample}] -> {ok, Sample};
        [{error, {exception, undef, [{?MODULE, here, _, _} | _]}}] -> {error, no_trunkline};
        [{error, {erpc, Reason}}] -> {error, Reason};
        [{_, Reason}] -> {error, Reason}
    end.

%% A sample of this node. This runs at the node that is observed.
-spec here() -> sample().
here() ->
    #{running := Running, release := Release, options := Options, peers := Peers,
      listener := #{refused := Refused}} = trunkline:info(),
    {Inboxes, More} = inboxes(),
    #{node => node(), at => erlang:monotonic_time(microsecond),
      time => erlang:system_time(millisecond), running => Running,
      release => case Release of
                     undefined -> "";
                     _ -> Release
                 end,
      uptime => element(1, erlang:statistics(wall_clock)) div 1000,
      refused => Refused, transport => transport(Options),
      limits => maps:with([bulk_bytes, resume_time], Options),
      peers => maps:filter(fun is_peer/2, Peers), inboxes => Inboxes, more_inboxes => More}.

%% Remote shells and the like are not peers.
is_peer(Node, #{state := greeting, sessions := 0}) -> lists:member(Node, nodes());
is_peer(_, _) -> true.

%% The transport of the lanes' own connections, if there are any.
transport(#{lane_transport := tls}) -> tls;
transport(#{lane_transport := tcp}) -> tcp;
transport(#{}) ->
    case trunkline_tls:is_cluster_private() of
        true -> tls;
        false -> tcp
    end.

inboxes() ->
    {Fullest, More} = fullest(trunkline_own_inboxes:all()),
    {maps:from_list([{Keeper, (counted(Stats))#{name => Name, policy => Policy,
                                                bytes => Bytes, messages => Messages,
                                                in_work => trunkline_work:size(Work)}}
                     || {{Keeper, Name, Policy, {Bytes, Messages}}, Stats} <- Fullest,
                        Work <- [trunkline_own_inboxes:work(Keeper)],
                        Work =/= none]),                           % it has just ended
     More}.

%% What is refused at the gate is dropped, too.
counted(Stats) ->
    #{dropped := Dropped, refused := Refused} = Counted = trunkline_inbox_stats:read(Stats),
    (maps:with([queued_messages, queued_bytes, passed, waiting], Counted))
        #{dropped => Dropped + Refused, time_in_queue => trunkline_inbox_stats:times(Stats)}.

%% If there are more than INBOXES, these are the ones with the fullest queues.
fullest(Inboxes) when length(Inboxes) =< ?INBOXES ->
    {Inboxes, 0};
fullest(Inboxes) ->
    Sorted = lists:reverse(lists:keysort(1, [{fullness(queued(Stats), Bound), Inbox}
                                             || {{_, _, _, Bound}, Stats} = Inbox <- Inboxes])),
    {[Inbox || {_, Inbox} <- lists:sublist(Sorted, ?INBOXES)], length(Inboxes) - ?INBOXES}.

queued(Stats) ->
    Level = trunkline_inbox_stats:level(Stats),
    {trunkline_gate:bytes(Level), trunkline_gate:messages(Level)}.

%% 1.0 is at the bound.
fullness({Bytes, Messages}, {MostBytes, MostMessages}) ->
    max(Bytes / MostBytes, Messages / MostMessages).

%% --- views ---------------------------------------------------------------------------

-spec view(sample(), sample()) -> view().
view(#{at := T0, peers := Before, inboxes := InboxesBefore} = First,
     #{at := T1, peers := Peers, inboxes := Inboxes} = Second) ->
    Seconds = max(T1 - T0, 1) / 1_000_000,
    #{refused := Refused, transport := Transport} = Second,
    (maps:with([node, time, release, running, uptime, limits, more_inboxes], Second))
        #{interval => Seconds, refused => Refused,
          refused_now => since(Refused, maps:get(refused, First)),
          peers => [peer(Node, maps:get(Node, Before, Info), Info, Transport, Seconds)
                    || {Node, Info} <- lists:sort(maps:to_list(Peers))],
          inboxes => lists:sort(fun(#{inbox := A}, #{inbox := B}) -> A =< B end,
                                [inbox(Pid, maps:get(Pid, InboxesBefore, Info), Info, Seconds)
                                 || {Pid, Info} <- maps:to_list(Inboxes)])}.

%% Counters start again when a peer was forgotten in between, or Trunkline has restarted.
since(Now, Before) -> max(0, Now - Before).

rate(Key, Before, Now, Seconds) ->
    since(maps:get(Key, Now), maps:get(Key, Before)) / Seconds.

waited(Before, Now, Seconds) -> rate(wait_time, Before, Now, Seconds) / 1.0e6.

peer(Node, Before, Now, Transport, Seconds) ->
    #{state := State, round_trip := RoundTrip, lanes := Lanes, batches := Batches, large := Large,
      inboxes := #{waiting := InboxWaiting} = AtInboxes, lost := Lost, resumed := Resumed} = Now,
    #{lanes := LanesBefore, large := LargeBefore, inboxes := AtInboxesBefore,
      lost := LostBefore} = Before,
    Rates = lanes(Node, LanesBefore, Lanes, Seconds),
    LargeOut = rate(bytes, LargeBefore, Large, Seconds),
    InboxWaited = waited(AtInboxesBefore, AtInboxes, Seconds),
    #{peer => Node, state => State, release => maps:get(release, Now),
      way => way(State, Batches, Transport), large_way => maps:get(by, Large),
      connections => maps:get(connections, Batches), round_trip => RoundTrip,
      %% (This includes large messages, of which a lane sends a notice, but not their bytes.)
      messages_out => sum(messages_out, Rates),
      messages_in => sum(messages_in, Rates),
      bytes_out => sum(bytes_out, Rates) + LargeOut,
      bytes_in => sum(bytes_in, Rates) + rate(received_bytes, LargeBefore, Large, Seconds),
      large_out => LargeOut,
      batch => mean_batch(LanesBefore, Lanes),
      queued_messages => sum(queued_messages, Lanes), queued_bytes => sum(queued_bytes, Lanes),
      in_flight_bytes => sum(in_flight_bytes, Lanes), window_bytes => sum(window_bytes, Lanes),
      waiting => sum(waiting, Lanes) + maps:get(waiting, Large) + InboxWaiting,
      waited => sum(waited, Rates) + waited(LargeBefore, Large, Seconds) + InboxWaited,
      waits => sum(waits, Rates),
      inbox_waiting => InboxWaiting, inbox_waited => InboxWaited,
      large_pending => maps:get(pending_bytes, Large),
      lost => total(Lost), lost_now => since(total(Lost), total(LostBefore)),
      sent_again => sum(sent_again, Lanes),
      sent_again_now => since(sum(sent_again, Lanes), sum(sent_again, LanesBefore)),
      resumed => Resumed, lanes => Rates}.

sum(Key, Lanes) -> lists:sum([maps:get(Key, Lane) || Lane <- Lanes]).

total(Lost) -> lists:sum(maps:values(Lost)).

way(up, #{by := connections}, Transport) -> Transport;
way(up, #{}, _) -> dist;
way(_, _, _) -> none.

%% Without batches there is no mean.
mean_batch(Before, Lanes) ->
    case since(sum(batches, Lanes), sum(batches, Before)) of
        0 -> 0.0;
        Batches -> since(sum(batched_messages, Lanes), sum(batched_messages, Before)) / Batches
    end.

lanes(Node, Before, Lanes, Seconds) ->
    [begin
         Then = case Ix =< length(Before) of
                    true -> lists:nth(Ix, Before);
                    false -> Lane
                end,
         Shown = maps:with([queued_messages, queued_bytes, in_flight_bytes, window_bytes, waiting,
                            sent_again, connections], Lane),
         Shown#{peer => Node, lane => Ix, messages_out => rate(messages, Then, Lane, Seconds),
                messages_in => rate(received_messages, Then, Lane, Seconds),
               bytes_out => rate(bytes, Then, Lane, Seconds),
               bytes_in => rate(received_bytes, Then, Lane, Seconds),
               waits => rate(waits, Then, Lane, Seconds),
               waited => waited(Then, Lane, Seconds),
               batch => mean_batch([Then], [Lane])}
     end || {Ix, Lane} <- lists:enumerate(Lanes)].

inbox(Pid, Before, Now, Seconds) ->
    #{queued_bytes := Queued, bytes := Bytes, queued_messages := QueuedMessages,
      messages := Messages, dropped := Dropped} = Now,
    (maps:with([name, policy, queued_messages, queued_bytes, bytes, messages, in_work, waiting,
                dropped], Now))
        #{inbox => Pid, full => fullness({Queued, QueuedMessages}, {Bytes, Messages}),
          passed => rate(passed, Before, Now, Seconds),
          dropped_now => since(Dropped, maps:get(dropped, Before)),
          time => median(maps:get(time_in_queue, Before), maps:get(time_in_queue, Now))}.

%% Each bucket is {Time, Number}: so many messages waited for less than that.
median(Before, Now) ->
    Counts = [{Time, N - proplists:get_value(Time, Before, 0)} || {Time, N} <- Now],
    case lists:sum([N || {_, N} <- Counts]) of
        0 -> undefined;
        Sum -> middle(Counts, Sum / 2)
    end.

middle([{_, N} | Counts], Left) when N < Left -> middle(Counts, Left - N);
middle([{Time, _} | _], _) -> Time.
