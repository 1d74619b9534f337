-module(trunkline_metrics).
-moduledoc "
What Trunkline counts, for monitoring systems.

`prometheus/0` returns all of it in the text format of Prometheus, for whatever serves your metrics;
`measure/0` gives it to `telemetry`, for telemetry_poller. Counters are read, and no process of
Trunkline is asked, so that the answer comes while they are busy.

The page on metrics explains each of them. Times are in seconds, and sizes in bytes. Nodes are
named that are connected, or with which there has been a session; hidden nodes, such as remote
shells, only if they have run Trunkline.

```erlang
1> io:put_chars(trunkline_metrics:prometheus()).
# HELP trunkline_peer_state 1 for the state in which the peer is
# TYPE trunkline_peer_state gauge
trunkline_peer_state{peer=\"b@host\",state=\"up\"} 1
...
```
".
-moduledoc #{since => <<"1.0.0">>}.
-compile({parse_transform, trunkline_docs}).

-export([prometheus/0, measure/0, events/0]).

%% One number of a family, possibly with a label of its own.
-type labels() :: [{string(), iodata()}].
-type sample() :: {Suffix :: string(), labels(), number()}.
-type family() :: {Name :: string(), counter | gauge | histogram, Help :: string(), [sample()]}.
%% What is known of one peer, lane or node: its labels, and the values of its fields.
-type row() :: {labels(), #{atom() => term()}}.

%% {Field, Type, Metric, Help}, in addition to the fields that trunkline_stats declares.
-define(NODE_FIELDS,
        [{running, gauge, "running", "1 while Trunkline runs"},
         {fallbacks, counter, "other_fallback_messages_total",
          "messages sent with plain distribution to nodes that have had no lanes"},
         {refused, counter, "listener_refused_total",
          "connections that were refused, since they did not prove to be a peer's"},
         {events_dropped, counter, "events_dropped_total",
          "telemetry events that were dropped, since handlers were too slow"}]).
-define(PEER_LEVELS,
        [{since, gauge, "peer_state_timestamp_seconds", "when the peer came into its state"},
         {pending_messages, gauge, "large_pending_messages", "large messages queued or in flight"},
         {pending_bytes, gauge, "large_pending_bytes",
          "bytes of large messages queued or in flight"}]).
-define(LANE_LEVELS,
        [{queued_messages, gauge, "queue_messages", "messages that wait in the lane"},
         {queued_bytes, gauge, "queue_bytes", "bytes that wait in the lane, as charged"}]).

%% --- Prometheus -----------------------------------------------------------------------

-doc "
All metrics, in Prometheus' text exposition format 0.0.4. Serve it with the content type
`text/plain; version=0.0.4`.

```erlang
1> Text = iolist_to_binary(trunkline_metrics:prometheus()).
```
".
-doc #{since => <<"1.0.0">>}.
-spec prometheus() -> iodata().
prometheus() -> [text(Family) || Family <- together(families())].

-spec families() -> [family()].
families() ->
    #{peer := PeerFields, lane := LaneFields} = trunkline_stats:fields(),
    #{release := Release} = Node = of_node(),
    Options = trunkline_options:current(),
    Peers = peers(),
    Rows = [row(Peer) || Peer <- Peers],
    Lanes = lists:append([lanes(Peer) || Peer <- Peers]),
    Inboxes = inboxes(),
    [{"release_info", gauge, "1: its label is the release",
      [{"", [{"release", Release}], 1}]},
     {"options_info", gauge, "1: its labels are options",
      [{"", [{atom_to_list(Name), io_lib:format("~0tp", [maps:get(Name, Options)])}
             || Name <- [bulk_transport, lane_transport]], 1}]}]
        ++ declared(?NODE_FIELDS, [{[], Node}])
        ++ [{"peer_state", gauge, "1 for the state in which the peer is",
             [{"", Labels ++ [{"state", atom_to_list(State)}], one_if(State =:= Is)}
              || {Labels, #{state := Is}} <- Rows, State <- trunkline_peers:states()]}]
        ++ declared(?PEER_LEVELS ++ PeerFields, Rows)
        ++ declared(?LANE_LEVELS ++ LaneFields, Lanes)
        ++ [histogram(Histogram, Rows, Lanes) || Histogram <- trunkline_stats:histograms()]
        ++ declared(trunkline_inbox_stats:fields(), Inboxes)
        ++ [inbox_histogram(trunkline_inbox_stats:histogram(), Inboxes)].

%% A row need not have all fields: a family leaves out rows that lack its field.
declared(Fields, Rows) ->
    [begin
         {Name, Label} = name(Metric),
         {Name, type(Type), Help, [{"", Labels ++ Label, value(Name, Value)}
                                   || {Labels, #{Field := Value}} <- Rows]}
     end || {Field, Type, Metric, Help} <- Fields, Metric =/= none].

%% "lost_messages_total{reason=\"queued\"}" is a family and a label.
name(Metric) ->
    case string:split(Metric, "{") of
        [Name] ->
            {Name, []};
        [Name, Label] ->
            [Key, Value, _] = string:split(Label, "\"", all),
            {Name, [{lists:droplast(Key), Value}]}
    end.

type(peak) -> gauge;
type(Type) -> Type.

%% One histogram for all lanes to a peer: one for each lane would be very many.
histogram({Field, _, Sum, Name, Help}, Peers, Lanes) ->
    {Name, histogram, Help,
     lists:append([of_peer(Labels, [Lane || {[Peer, _], Lane} <- Lanes, [Peer] =:= Labels],
                           {Field, Sum, Name}) || {Labels, _} <- Peers])}.

of_peer(Labels, Lanes, {Field, Sum, Name}) ->
    Values = [maps:get(Field, Lane) || Lane <- Lanes],
    Counts = [{Bound, lists:sum([proplists:get_value(Bound, Value) || Value <- Values])}
              || {Bound, _} <- hd(Values)],
    [{"_sum", Labels, value(Name, lists:sum([maps:get(Sum, Lane) || Lane <- Lanes]))}
     | buckets(Name, Labels, Counts)].

%% (There is no _sum, because adding up the times would cost something for each message.)
inbox_histogram({Field, Name, Help}, Inboxes) ->
    {Name, histogram, Help,
     lists:append([buckets(Name, Labels, Counts) || {Labels, #{Field := Counts}} <- Inboxes])}.

buckets(Name, Labels, Counts) ->
    Add = fun({Bound, N}, Below) ->
                  {{"_bucket", Labels ++ [{"le", le(Name, Bound)}], Below + N}, Below + N}
          end,
    {Buckets, Count} = lists:mapfoldl(Add, 0, Counts),
    Buckets ++ [{"_count", Labels, Count}].

le(_, infinity) -> "+Inf";
le(Name, Bound) -> number(value(Name, Bound)).

%% Times are counted in microseconds.
value("peer_state_timestamp_seconds", Milliseconds) -> Milliseconds / 1000;
value(Name, Value) ->
    case lists:suffix("_seconds", Name) orelse lists:suffix("_seconds_total", Name) of
        true -> Value / 1_000_000;
        false -> Value
    end.

%% Merges families with the same name.
-spec together([family()]) -> [family()].
together([{Name, Type, Help, Samples} | Families]) ->
    {Same, Others} = lists:partition(fun({N, _, _, _}) -> N =:= Name end, Families),
    [{Name, Type, lists:join("; ", [Help | [H || {_, _, H, _} <- Same]]),
      lists:append([Samples | [S || {_, _, _, S} <- Same]])} | together(Others)];
together([]) ->
    [].

text({_, _, _, []}) ->
    [];
text({Name, Type, Help, Samples}) ->
    ["# HELP trunkline_", Name, " ", Help, "\n",
     "# TYPE trunkline_", Name, " ", atom_to_list(Type), "\n"
     | [["trunkline_", Name, Suffix, labels(Labels), " ", number(Value), "\n"]
        || {Suffix, Labels, Value} <- Samples]].

labels([]) ->
    [];
labels(Labels) ->
    ["{", lists:join(",", [[Key, "=\"", escaped(Value), "\""]
                           || {Key, Value} <- Labels]), "}"].

escaped(Value) ->
    [case C of
         $\\ -> "\\\\";
         $" -> "\\\"";
         $\n -> "\\n";
         _ -> <<C/utf8>>
     end || C <- unicode:characters_to_list(Value)].

number(Value) when is_float(Value) -> float_to_binary(Value, [short]);
number(Value) -> integer_to_binary(Value).

one_if(true) -> 1;
one_if(false) -> 0.

%% --- telemetry ------------------------------------------------------------------------

-doc "
Executes the `telemetry` events `[trunkline, stats, node]`, and `[trunkline, stats, peer]` for each
peer, `[trunkline, stats, lane]` for each lane, and `[trunkline, stats, inbox]` for each inbox of
this node, with all counters as measurements. Inboxes without a registered name are one, which has
only `queued_messages`, `queued_bytes` and `waiting`. Does nothing on a node without `telemetry`.

```erlang
telemetry_poller:start_link([{measurements, [{trunkline_metrics, measure, []}]},
                             {period, 10_000}]).
```
".
-doc #{since => <<"1.0.0">>}.
-spec measure() -> ok.
measure() ->
    measured(node, {[], of_node()}),
    lists:foreach(fun(Peer) ->
                          measured(peer, row(Peer)),
                          lists:foreach(fun(Lane) -> measured(lane, Lane) end, lanes(Peer))
                  end, peers()),
    lists:foreach(fun(Inbox) -> measured(inbox, Inbox) end, inboxes()).

-doc "
The names of all `telemetry` events of Trunkline, for `telemetry:attach_many/4`. The page on metrics
says what they measure.

```erlang
1> lists:member([trunkline, peer, down], trunkline_metrics:events()).
true
```
".
-doc #{since => <<"1.0.0">>}.
-spec events() -> [[atom(), ...]].
events() -> [[trunkline | Name] || {Name, _, _} <- trunkline_events:table()].

measured(What, {_, #{metadata := Metadata} = Values}) ->
    Numbers = maps:filter(fun(_, Value) -> is_number(Value) end, Values),
    trunkline_events:execute([stats, What], Numbers, Metadata).

%% --- rows -----------------------------------------------------------------------------

of_node() ->
    #{running := Running, release := Release, fallbacks := Fallbacks,
      listener := #{refused := Refused}} = trunkline_info:of_node(),
    #{metadata => #{}, running => one_if(Running), fallbacks => Fallbacks, refused => Refused,
      events_dropped => trunkline_events:dropped(),
      release => case Release of
                     undefined -> "";
                     _ -> Release
                 end}.

%% Hidden nodes are left out until they have run Trunkline: remote shells and probes have a new name
%% each time, and a monitoring system would keep them all.
peers() ->
    Visible = nodes(visible),
    [Peer || {Node, _} = Peer <- lists:sort(maps:to_list(trunkline_peers:all())),
             lists:member(Node, Visible) orelse trunkline_peers:has_spoken(Node)].

-spec row({node(), trunkline_peers:peer()}) -> row().
row({Node, #{stats := Stats, state := State, since := Since}}) ->
    Large = trunkline_route:bulk_level(trunkline_route:lookup(Node)),
    {[{"peer", atom_to_list(Node)}],
     (trunkline_stats:read(Stats, peer))
         #{metadata => #{peer => Node, state => State}, state => State, since => Since,
           pending_messages => trunkline_gate:messages(Large),
           pending_bytes => trunkline_gate:bytes(Large)}}.

%% All lanes that have existed, whether or not they exist now.
-spec lanes({node(), trunkline_peers:peer()}) -> [row()].
lanes({Node, #{stats := Stats}}) ->
    Levels = trunkline_route:levels(trunkline_route:lookup(Node)),
    [begin
         Level = proplists:get_value(Ix, Levels, 0),
         {[{"peer", atom_to_list(Node)}, {"lane", integer_to_list(Ix)}],
          (trunkline_stats:read(Stats, {lane, Ix}))
              #{metadata => #{peer => Node, lane => Ix},
                queued_messages => trunkline_gate:messages(Level),
                queued_bytes => trunkline_gate:bytes(Level)}}
     end || Ix <- trunkline_stats:lanes(Stats)].

%% The inboxes of this node. Those without a name share one row, called `undefined', which no
%% process can be called. That row has no counters, because their sum would shrink when an inbox
%% ends.
-spec inboxes() -> [row()].
inboxes() ->
    ByName = maps:groups_from_list(fun({{_, Name, _, _}, _}) -> Name end,
                                   fun({_, Stats}) -> trunkline_inbox_stats:read(Stats) end,
                                   trunkline_own_inboxes:all()),
    [{[{"inbox", atom_to_list(Name)}],
      (of_inboxes(Name, trunkline_inbox_stats:sum(Values)))#{metadata => #{inbox => Name}}}
     || {Name, Values} <- lists:sort(maps:to_list(ByName))].

of_inboxes(undefined, Sum) -> maps:with([queued_messages, queued_bytes, waiting], Sum);
of_inboxes(_, Sum) -> Sum.
