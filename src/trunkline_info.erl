%% What trunkline:info/0,1 return.
%%
%% No process is asked: the table of peers and the counters are enough. So they return even if all
%% processes of Trunkline are stuck.
-module(trunkline_info).
-moduledoc false.

-export([all/0, of_node/0, peer/1, whether_up/1]).

-spec all() -> trunkline:info().
all() ->
    (of_node())#{options => trunkline_options:current(),
                 peers => maps:map(fun peer/2, trunkline_peers:all())}.

%% The part of all/0 that is not about peers.
-spec of_node() -> #{running := boolean(), release := string() | undefined,
                     fallbacks := non_neg_integer(),
                     listener := #{ports := #{tcp | tls => inet:port_number()},
                                   refused := non_neg_integer()}}.
of_node() ->
    #{running => is_running(), release => release(), fallbacks => trunkline_sender:fallbacks(),
      listener => trunkline_listener:info()}.

-spec peer(node()) -> trunkline:peer_info() | undefined.
peer(Node) ->
    case trunkline_peers:lookup(Node) of
        none -> undefined;
        Peer -> peer(Node, Peer)
    end.

%% Whether messages to that node go by lane, and if not, why not: Trunkline does not run here, the
%% nodes are not connected, the other node has not said that it runs Trunkline, this node has
%% drained it, or the two are still agreeing.
-spec whether_up(node()) -> up | stopped | noconnection | no_trunkline | drained | opening.
whether_up(Node) ->
    IsConnected = trunkline_process:is_connected(Node),
    case is_running() andalso trunkline_peers:lookup(Node) of
        false -> stopped;
        _ when not IsConnected -> noconnection;
        #{state := up} -> up;
        #{state := greeting} -> no_trunkline;
        #{state := drained} -> drained;
        none -> no_trunkline;
        #{} -> opening
    end.

is_running() -> whereis(trunkline_sup) =/= undefined.

release() ->
    case application:get_key(trunkline, vsn) of
        {ok, Release} -> Release;
        undefined -> undefined              % not even loaded
    end.

peer(Node, #{state := State, since := Since, stats := Stats, agreement := Agreement}) ->
    #{fallbacks := Fallbacks, sessions := Sessions, resumed := Resumed, inbox_waiting := Waiting,
      inbox_wait_time := WaitTime, inbox_refused := Refused} = Counted =
        trunkline_stats:read(Stats, peer),
    Route = trunkline_route:lookup(Node),
    {Release, Protocol} = case Agreement of
                              #{release := R, protocol := P} -> {R, P};
                              none -> {undefined, undefined}
                          end,
    #{state => State, since => Since, release => Release, protocol => Protocol,
      round_trip => case Counted of
                        #{round_trip := 0} -> undefined;
                        #{round_trip := Time} -> Time
                    end,
      lanes => lanes(Route, Stats),
      batches => batches(Route, Stats, Counted),
      large => large(Route, Counted),
      inboxes => #{waiting => Waiting, wait_time => WaitTime, refused => Refused},
      fallbacks => Fallbacks, sessions => Sessions, resumed => Resumed,
      lost => trunkline_stats:lost(Stats)}.

lanes(Route, Stats) ->
    [lane(Level, trunkline_stats:read(Stats, {lane, Ix}))
     || {Ix, Level} <- trunkline_route:levels(Route)].

large(Route, #{bulk_connections := Connections, bulk_by_distribution := ByDistribution,
               bulk_congestion_control := CongestionControl,
               large_waiting := Waiting, large_wait_time := WaitTime,
               large_messages := Messages, large_bytes := Bytes,
               large_arrived_bytes := ReceivedBytes, large_broken := Broken}) ->
    Pending = trunkline_route:bulk_level(Route),
    #{by => if Connections > 0 -> connections;
               ByDistribution > 0 -> distribution;
               true -> none
            end,
      connections => Connections, congestion_control => name(CongestionControl),
      pending_messages => trunkline_gate:messages(Pending),
      pending_bytes => trunkline_gate:bytes(Pending),
      waiting => Waiting, wait_time => WaitTime,
      messages => Messages, bytes => Bytes, received_bytes => ReceivedBytes, broken => Broken}.

batches(Route, Stats, #{lane_congestion_control := CongestionControl}) ->
    ByConnections = trunkline_stats:sum(Stats, by_connections),
    #{by => case trunkline_route:levels(Route) of
                [_ | _] = Lanes when length(Lanes) =:= ByConnections -> connections;
                _ -> distribution
            end,
      connections => trunkline_stats:sum(Stats, connections),
      congestion_control => name(CongestionControl)}.

%% The name of a congestion control: a counter has its first eight bytes, as a number.
name(0) -> undefined;
name(Name) -> hd(binary:split(<<Name:64>>, <<0>>)).

lane(Level, #{batches := Sizes, batched_messages := Batched} = Lane) ->
    Batches = lists:sum([N || {_, N} <- Sizes]),
    (maps:without([connecting, by_connections, time_in_lane_sum], Lane))
        #{queued_messages => trunkline_gate:messages(Level),
          queued_bytes => trunkline_gate:bytes(Level),
          batches => Batches, batch_sizes => Sizes,
          mean_batch => Batched / max(1, Batches)}.
