%% Measures the way to a peer for its link: how far the peer is, and whether batches should go by
%% the distribution or by connections.
%%
%%     link                                 link at the peer
%%       | -- ping -------------------------> |    often until the distance is known,
%%       | <------------------------- pong -- |    then now and then, while messages are sent
%%       |
%%       | asks the kernel, too: an overloaded machine answers pings late, as long as the load
%%       | lasts, but its kernel does not acknowledge packets late
%%       |
%%       | from then on, to a peer that is far: looks at the distribution's connection,
%%       v and tells the lanes which way (trunkline_way)
%%
%% trunkline_distance and trunkline_way decide what follows from that. This module asks the peer,
%% the kernel and the clock.
-module(trunkline_reach).
-moduledoc false.

-export([new/3, up/3, down/1, disconnected/1, ping/1, pong/2, measured/3, look/1, timers/1]).

-export_type([reach/0]).

%% ms
-define(PING, 10_000).             % between two pings
-define(FIRST_PINGS, 50).          % the same, while the distance is not known
-define(LOOK, 100).

-record(reach,
        {node :: node(),
         transport :: auto | dist | tcp | tls,
         stats :: trunkline_stats:stats(),
         peer = none :: none | pid(),                                  % its link, in a session
         lanes = [] :: [pid()],                    % if they can have connections
         distance = trunkline_distance:new() :: trunkline_distance:distance(),
         ping = none :: none | {reference(), Sent :: integer()},       % us
         sent = 0 :: non_neg_integer(),            % bytes, at the time of the last ping
         way = none :: none | trunkline_way:way(),                     % none: it need not decide
         looked = none :: none | {SentBytes :: non_neg_integer(), distribution | connections}}).
-opaque reach() :: #reach{}.

-spec new(node(), trunkline_options:options(), trunkline_stats:stats()) -> reach().
new(Node, #{lane_transport := Transport}, Stats) ->
    #reach{node = Node, transport = Transport, stats = Stats}.

%% A session is up. These lanes can have connections.
-spec up(Peer :: pid(), Lanes :: [pid()], reach()) -> reach().
up(Peer, Lanes, R) -> ping(extend(R#reach{peer = Peer, lanes = Lanes})).

%% The session has ended. The distance stays valid while the connection lasts.
-spec down(reach()) -> reach().
down(R) -> R#reach{peer = none, lanes = [], ping = none, way = none}.

%% The connection is gone. The next one may take another path, so the distance is forgotten.
-spec disconnected(reach()) -> reach().
disconnected(R) -> show(R#reach{distance = trunkline_distance:new()}).

%% The timers that it needs now, in ms.
-spec timers(reach()) -> [{ping | look, pos_integer()}].
timers(#reach{distance = Distance, way = Way}) ->
    [{ping, case trunkline_distance:round_trip(Distance) of
                0 -> ?FIRST_PINGS;
                _ -> ?PING
            end}
     | [{look, ?LOOK} || Way =/= none]].

%% A known distance is measured again only if something has been sent since.
-spec ping(reach()) -> reach().
ping(#reach{stats = Stats, sent = Before, distance = Distance} = R) ->
    Sent = trunkline_stats:sum(Stats, bytes) + trunkline_stats:get(Stats, peer, large_bytes),
    case trunkline_distance:round_trip(Distance) > 0 andalso Sent =:= Before of
        true -> R;
        false -> do_ping(R#reach{sent = Sent})
    end.

%% A ping without an answer is given up after PING.
do_ping(#reach{peer = Peer, ping = Ping} = R) ->
    Now = erlang:monotonic_time(microsecond),
    case Ping of
        {_, Sent} when Now - Sent < ?PING * 1000 ->
            R;
        _ ->
            Ref = make_ref(),
            case erlang:send(Peer, {ping, self(), Ref}, [noconnect, nosuspend]) of
                ok -> R#reach{ping = {Ref, Now}};
                _ -> R#reach{ping = none}
            end
    end.

%% A separate process asks the kernel, and sends `{measured, Ref, RoundTrip}': with TLS yet another
%% process has to answer, and it may be busy.
-spec pong(reference(), reach()) -> reach().
pong(Ref, #reach{node = Node, ping = {Ref, Sent}} = R) ->
    RoundTrip = erlang:monotonic_time(microsecond) - Sent,
    Link = self(),
    Ask = fun() -> Link ! {measured, Ref, min(RoundTrip, trunkline_socket:round_trip(Node))} end,
    case trunkline_process:start(fun() -> spawn(Ask) end) of
        {ok, _} -> R;
        {error, system_limit} -> R#reach{ping = none}
    end;
pong(_, R) ->
    R.

-spec measured(reference(), trunkline_distance:microseconds(), reach()) -> reach().
measured(Ref, RoundTrip, #reach{ping = {Ref, _}, distance = Distance} = R) ->
    extend(show(R#reach{ping = none, distance = trunkline_distance:add(RoundTrip, Distance)}));
measured(_, _, R) ->
    R.

show(#reach{distance = Distance, stats = Stats} = R) ->
    trunkline_stats:put(Stats, peer, far, case trunkline_distance:is_far(Distance) of
                                              true -> 1;
                                              false -> 0
                                          end),
    trunkline_stats:put(Stats, peer, round_trip, trunkline_distance:round_trip(Distance)),
    R.

%% Batches to a far peer go by connections when that is better, unless the option `lane_transport'
%% says which way they go.
extend(#reach{lanes = Lanes, way = Way, transport = Transport} = R)
  when Lanes =:= []; Way =/= none; Transport =:= dist ->
    R;
extend(#reach{transport = auto, distance = Distance} = R) ->
    case trunkline_distance:is_far(Distance) of
        true -> look(R#reach{way = trunkline_way:new(), looked = none});
        false -> R
    end;
extend(R) ->
    tell(connections, R).

tell(Way, #reach{lanes = Lanes} = R) ->
    lists:foreach(fun(Lane) -> trunkline_lane:way(Lane, Way) end, Lanes),
    R.

%% Looks only if something has been sent since the last time.
-spec look(reach()) -> reach().
look(#reach{way = none} = R) ->
    R;
look(#reach{node = Node, way = Way, looked = Looked, stats = Stats} = R) ->
    case {trunkline_stats:sum(Stats, bytes), Looked} of
        {Sent, {Sent, _}} ->
            R;
        {Sent, _} ->
            Now = erlang:monotonic_time(millisecond),
            case {trunkline_way:look(Now, {Sent, trunkline_socket:sample(Node)}, Way), Looked} of
                {{Same, Way1}, {_, Same}} ->
                    R#reach{way = Way1, looked = {Sent, Same}};
                {{Decided, Way1}, _} ->
                    tell(Decided, R#reach{way = Way1, looked = {Sent, Decided}})
            end
    end.
