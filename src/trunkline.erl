-module(trunkline).
-moduledoc "
Messages between Erlang nodes, batched, ordered and bounded.

The functions have the names, arguments, results and errors of those of `erlang` and `gen_server`. A
message to a process at another node that runs Trunkline goes by lane: together with others that are
sent to that node at the same time. A message to any other process goes as `!` sends it, so it is
always right to use Trunkline.

Messages that one process sends to another by Trunkline arrive in the order in which they were sent,
whichever function has sent them. There is no order between them and messages sent with `!`.

```erlang
1> {ok, _} = application:ensure_all_started(trunkline).
2> net_kernel:connect_node('b@host').
true
3> trunkline:await_up('b@host', 5000).
ok
4> trunkline:send({prices, 'b@host'}, hello).
hello
5> trunkline:call({stock, 'b@host'}, {take, apples, 3}).
{ok, 3}
```

Timeouts are in milliseconds, sizes in bytes. `options/0` says what can be configured.
".
-moduledoc #{since => <<"0.1.0">>}.
-compile({parse_transform, trunkline_docs}).

-include("trunkline_errors.hrl").

-export([send/2, send/3, cast/2, multicast/2, multicast/3]).
-export([call/2, call/3, multi_call/2, multi_call/3, multi_call/4, abcast/2, abcast/3]).
-export([monitor/1, monitor/2, demonitor/1, demonitor/2, exit/2]).
-export([drain/0, drain/1, drain/2]).
-export([info/0, info/1, options/0, await_up/2]).
-export([advise/0, advise/1, compare/1, compare/2]).

-export_type([destination/0, send_option/0, info/0, peer_info/0, lane_info/0, large_info/0,
              batches_info/0, option_info/0, drain_error/0]).
-export_type([advise_options/0, advice/0, compare_options/0, comparison/0, compare_error/0]).

-define(OTP, "gen_server").
-define(LABEL, '$gen_call').
-define(SINCE, <<"0.1.0">>).
-define(SINCE_IDS, <<"0.5.0">>).
-define(RESPONSE(Response), Response).
-include("trunkline_requests.hrl").

-doc "
Where a message can go: a pid, an alias, a port, a registered name of this node, or a registered
name at a node.
".
-doc #{since => <<"0.1.0">>}.
-type destination() :: pid()
                     | reference()
                     | port()
                     | (RegisteredName :: atom())
                     | {RegisteredName :: atom(), node()}.

-doc "
`nosuspend`: do not wait while the lane is full. `noconnect`: do not set up a connection.
".
-doc #{since => <<"0.1.0">>}.
-type send_option() :: nosuspend | noconnect.

-doc "
Why a drain was not complete; see `drain/1`.
".
-doc #{since => <<"0.5.0">>}.
-type drain_error() :: stopped | noconnection | timeout | term().

-doc "
Options of `advise/1`, a map or a property list: `time`, how long to look (1 to 60,000 ms; the
default is 5,000), and `nodes` (default: all that are connected, and not hidden).
".
-doc #{since => <<"0.6.0">>}.
-type advise_options() :: #{time => 1..60_000, nodes => [node()]}.

-doc "
What `advise/1` returns for one connection: the `figures`, what there is to `gain` (`none`,
`batches`, `waits`, `large`; or `in_use`, if Trunkline carries most messages already), and the
`text`, as lines.
".
-doc #{since => <<"0.6.0">>}.
-type advice() :: trunkline_advise:advice().

-doc "
Options of `compare/2`, a map or a property list: `time`, how long all of it may take (1,000 to
10,000 ms; the default is 10,000), `bytes` of large messages in all, and `force`, to measure on a
busy system too.
".
-doc #{since => <<"0.6.0">>}.
-type compare_options() :: #{time => 1000..10_000, bytes => pos_integer(), force => boolean()}.

-doc "
The figures of `compare/2`: messages a second one way, calls a second, and the time of a ping beside
large messages (us, 99th percentile). Each has the results of the rounds by plain distribution
(`plain`) and by Trunkline (`lane`), the `ratio` of their medians, and whether the two ranges do not
overlap (`clear`).
".
-doc #{since => <<"0.6.0">>}.
-type comparison() :: trunkline_compare:report().

-doc "
Why `compare/2` has no figures: this node is not distributed (`not_alive`), Trunkline does not run
on it (`stopped`), there is no connection (`noconnection`), messages to that node do not go by lane
(`no_trunkline`) or do not do so any more (`drained`), the system is busy (`busy`), that node does
not respond (`timeout`), or a process has failed (`{failed, Reason}`).
".
-doc #{since => <<"0.6.0">>}.
-type compare_error() :: trunkline_compare:error().

-doc "
What `info/0` returns:

- `running`: whether Trunkline runs at this node, and its `release`;
- `options`: the options with the values in use (`options/0` says more of them);
- `peers`: what `info/1` says of each node;
- `fallbacks`: messages that were sent by plain distribution to nodes that have had no lanes yet;
- `listener`: the ports where this node listens, by transport, and how many connections were
  refused, since they did not prove to be a peer's.
".
-doc #{since => <<"0.1.0">>}.
-type info() :: #{running := boolean(),
                  release := string() | undefined,
                  options := #{atom() => term()},
                  peers := #{node() => peer_info()},
                  fallbacks := non_neg_integer(),
                  listener := #{ports := #{tcp | tls => inet:port_number()},
                                refused := non_neg_integer()}}.

-doc "
What is going on between this node and another one:

- `state`: `up` when messages go by lane. `greeting`: connected, and nothing has been heard of
  Trunkline there. `opening`, `holding`, `closing`: the two nodes are agreeing, or the other one
  starts again, or one of them leaves. `suspended`: the connection is lost, and the session goes on
  if the nodes connect again within `resume_time`. `drained`: see `drain/1`. `down`: not connected;
- `since`: when this state began (system time, ms);
- `release` and `protocol`: of Trunkline at the other node;
- `round_trip`: the shortest one of the last minutes in which something was sent (us);
- `lanes`, `batches` and `large`: see their types;
- `inboxes`: how many senders wait now for room in inboxes of the other node, how long all have
  waited in all (`wait_time`, us), and how many messages such inboxes have `refused`;
- `fallbacks`: messages that were sent by plain distribution since this node first had lanes to that
  one (before, they count in the `fallbacks` of `info/0`);
- `sessions`: how many there have been;
- `resumed`: how often one went on over a new connection;
- `lost`: messages that were accepted and not delivered. `queued`: they were in a lane, or their
  senders waited for room, when the connection was lost. `unconfirmed`: they were in flight, and may
  have arrived. `crashed`: they were in a lane that was killed. `unreachable`: they were kept for a
  connection that could not be made.
".
-doc #{since => <<"0.1.0">>}.
-type peer_info() ::
        #{state := down | greeting | opening | up | suspended | holding | drained | closing,
          since := integer(),
          release := string() | undefined,
          protocol := pos_integer() | undefined,
          round_trip := pos_integer() | undefined,
          lanes := [lane_info()],
          batches := batches_info(),
          large := large_info(),
          inboxes := #{waiting := non_neg_integer(), wait_time := non_neg_integer(),
                       refused := non_neg_integer()},
          fallbacks := non_neg_integer(),
          sessions := non_neg_integer(),
          resumed := non_neg_integer(),
          lost := #{queued | unconfirmed | crashed | unreachable => non_neg_integer()}}.

-doc "
Large messages to a peer: by which way they go (`none`: no connection is open now), over how many
connections and with which congestion control; how many messages and bytes are pending, that is,
queued or in flight; how many senders are `waiting` for room, and how long all have waited in all
(`wait_time`, us); how many messages and bytes there have been in all; how many bytes have come from
the peer (`received_bytes`), and how many messages from it were `broken`: they could not be
delivered.
".
-doc #{since => <<"0.2.0">>}.
-type large_info() ::
        #{by := connections | distribution | none,
          connections := non_neg_integer(),
          congestion_control := binary() | undefined,
          pending_messages := non_neg_integer(),
          pending_bytes := non_neg_integer(),
          waiting := non_neg_integer(),
          wait_time := non_neg_integer(),
          messages := non_neg_integer(),
          bytes := non_neg_integer(),
          received_bytes := non_neg_integer(),
          broken := non_neg_integer()}.

-doc "
How batches go to a peer: by the distribution's connection or, those of all lanes, by others; how
many of these there are, and the congestion control of the newest (the first eight bytes of its
name).
".
-doc #{since => <<"0.3.0">>}.
-type batches_info() ::
        #{by := distribution | connections,
          connections := non_neg_integer(),
          congestion_control := binary() | undefined}.

-doc "
One lane to a peer:

- `queued_messages` and `queued_bytes`: what waits in the lane;
- `in_flight_messages` and `in_flight_bytes`: what was sent and is not acknowledged;
- `window_bytes`: how much may be in flight now;
- `messages` and `bytes`: what was sent in all, also past the lane, by plain distribution;
- `batches` and `batched_messages`: what of that went in batches; `mean_batch` and `largest_batch`,
  in messages;
- `batch_sizes`: pairs of a number and how many batches had at most so many messages, and more than
  the number before;
- `waits` and `nosuspend`: how often a sender had to wait, or was answered `nosuspend`, since the
  lane was full;
- `waiting` and `wait_time`: how many senders wait for room in the lane now, and how long all of
  them have waited in all (us). It grows by a second each second for each sender that waits;
- `time_in_lane`: as `batch_sizes`, but of the time (us) that a message waits in the lane. One each
  second is measured, while there are any;
- `received_batches`, `received_messages`, `received_bytes`: what came from the peer's lane of the
  same number. What came past the lane counts as messages, but not as bytes;
- `kept_bytes` and `sent_again`: bytes of batches that are kept until they have arrived, and batches
  that were sent again, over another connection;
- `connections`: how many connections of its own it has for its batches.
".
-doc #{since => <<"0.1.0">>}.
-type lane_info() ::
        #{queued_messages := non_neg_integer(),
          queued_bytes := non_neg_integer(),
          in_flight_messages := non_neg_integer(),
          in_flight_bytes := non_neg_integer(),
          batches := non_neg_integer(),
          batched_messages := non_neg_integer(),
          messages := non_neg_integer(),
          bytes := non_neg_integer(),
          batch_sizes := [{pos_integer() | infinity, non_neg_integer()}],
          mean_batch := float(),
          largest_batch := non_neg_integer(),
          window_bytes := non_neg_integer(),
          waits := non_neg_integer(),
          waiting := non_neg_integer(),
          wait_time := non_neg_integer(),
          time_in_lane := [{pos_integer() | infinity, non_neg_integer()}],
          nosuspend := non_neg_integer(),
          received_batches := non_neg_integer(),
          received_messages := non_neg_integer(),
          received_bytes := non_neg_integer(),
          kept_bytes := non_neg_integer(),
          sent_again := non_neg_integer(),
          connections := non_neg_integer()}.

-doc "
One option of the application: the `value` in use, the `default`, the `unit` of both, what a value
`must_be`, `what` the option is, `when_to_change` it, and the version `since` which it exists.
".
-doc #{since => <<"1.0.0">>}.
-type option_info() ::
        #{value := term(), default := term(), unit := binary(), must_be := binary(),
          what := binary(), when_to_change := binary(), since := binary()}.

-doc "
Sends a message, as `erlang:send/2` and `!` do, and returns it.

While the lane to the node is full, the caller waits, as `!` waits on a busy connection. A message
to a node that is not connected is kept while a connection is made. It is dropped if none can be
made.

To a list of destinations it sends as `multicast/2` does (since 0.5.0).

The error is `badarg` if `To` is no destination, or a name of this node that no process has.

```erlang
1> trunkline:send(Pid, {price, 17}).
{price,17}
2> trunkline:send({stock, 'b@host'}, {price, 17}).
{price,17}
```
".
-doc #{since => <<"0.1.0">>}.
-spec send(destination() | [destination()], Message) -> Message.
send(To, Message) when is_list(To) ->
    ok = multicast(To, Message),
    Message;
send(To, Message) ->
    trunkline_send:send(To, Message).

-doc "
Sends a message, as `erlang:send/3` does.

- `nosuspend`: while the lane to the node, or an inbox, is full, the result is `nosuspend`, and
  nothing is sent. While Trunkline starts or stops at one of the two nodes, or one drains the other,
  this waits for up to a second.
- `noconnect`: if the node is not connected the result is `noconnect`, and nothing is sent. While a
  connection is being made for earlier messages, the message is kept, too, and the result is `ok`.
- `priority` (OTP 28): `erlang:send/3` sends the message. It may overtake others, and be overtaken.

Otherwise the result is `ok`. The errors are those of `send/2`, and `badarg` for another option, or
for a list of destinations (see `multicast/3`).

```erlang
1> trunkline:send(Pid, {price, 17}, [nosuspend]).
ok
```
".
-doc #{since => <<"0.1.0">>}.
-spec send(destination(), term(), [send_option() | priority]) -> ok | nosuspend | noconnect.
send(To, Message, Options) ->
    case options(Options, infinity, connect) of
        {_, _} = How ->
            trunkline_send:send(To, Message, How);
        priority ->
            ?NAMED(badarg, [To, Message, Options], erlang:send(To, Message, Options));
        badarg ->
            ?BAD_ARGUMENT(badarg, [To, Message, Options])
    end.

options([nosuspend | Options], _, Connect) -> options(Options, nosuspend, Connect);
options([noconnect | Options], Patience, _) -> options(Options, Patience, noconnect);
options([priority | _], _, _) -> priority;
options([], Patience, Connect) -> {Patience, Connect};
options(_, _, _) -> badarg.

-doc "
Sends one message to many destinations. It is encoded once, and goes once to each node, in order
with everything else that the caller sends by Trunkline.

Like `send/2`, it does not say whether a process is there. That holds for names of this node, too.
The error is `badarg` if one of the list is no destination; then nothing is sent.

```erlang
1> trunkline:multicast(Subscribers, {price, 17}).
ok
```
".
-doc #{since => <<"0.5.0">>}.
-spec multicast([destination()], term()) -> ok.
multicast(Destinations, Message) ->
    case multicast_to(Destinations, Message, {infinity, connect}) of
        [] -> ok;
        badarg -> ?BAD_ARGUMENT(badarg, [Destinations, Message])
    end.

-doc "
Like `multicast/2`, with the options of `send/3`. The result is `ok`, or `{not_sent, List}` with the
destinations that got nothing, by the reason: `{nosuspend, Destinations}` and `{noconnect,
Destinations}`.

```erlang
1> trunkline:multicast(Subscribers, {price, 17}, [nosuspend]).
{not_sent,[{nosuspend,[<9876.120.0>]}]}
```
".
-doc #{since => <<"0.5.0">>}.
-spec multicast([destination()], term(), [send_option()]) ->
          ok | {not_sent, [{send_option(), [destination()]}]}.
multicast(Destinations, Message, Options) ->
    case multicast_to(Destinations, Message, options(Options, infinity, connect)) of
        [] -> ok;
        badarg -> ?BAD_ARGUMENT(badarg, [Destinations, Message, Options]);
        NotSent -> {not_sent, NotSent}
    end.

multicast_to(_, _, Bad) when Bad =:= badarg; Bad =:= priority ->
    badarg;
multicast_to(Destinations, Message, How) ->
    try trunkline_by_node:group(Destinations) of
        Groups -> trunkline_multicast:send(Groups, Message, How)
    catch
        error:badarg -> badarg
    end.

-doc "
Sends a request to a server and does not wait for it, as `gen_server:cast/2` does. The result is
always `ok`, whether there is such a server or not.

```erlang
1> trunkline:cast({stock, 'b@host'}, {add, apples, 20}).
ok
```
".
-doc #{since => <<"0.1.0">>}.
-spec cast(server_ref(), term()) -> ok.
cast({global, Name}, Request) ->
    cast({via, global, Name}, Request);
cast({via, Module, Name}, Request) ->
    trunkline_send:via(Module, Name, {'$gen_cast', Request});
cast({Name, Node} = Server, Request) when is_atom(Name), is_atom(Node) ->
    do_cast(Server, Request);
cast(Server, Request) when is_atom(Server); is_pid(Server) ->
    do_cast(Server, Request).

do_cast(Server, Request) ->
    try send(Server, {'$gen_cast', Request}) of
        _ -> ok
    catch
        error:badarg -> ok            % no local process has that name
    end.

-doc "
Calls a server and waits up to 5,000 milliseconds for its reply, as `gen_server:call/2` does. The
server may be a gen_server, a gen_statem, or an Elixir GenServer or Agent.

If there is no reply the caller exits with `{Reason, {trunkline, call, Args}}`, and a `Reason` of
`gen_server:call/2`: `noproc`, `timeout`, `{nodedown, Node}`, `calling_self`, or that for which the
server has ended. It is `overload` if the server has an inbox that is full and does not let senders
wait (see `trunkline_inbox`). No reply arrives later.

```erlang
1> trunkline:call({stock, 'b@host'}, {take, apples, 3}).
{ok,3}
```
".
-doc #{since => <<"0.1.0">>}.
-spec call(server_ref(), term()) -> term().
call(ServerRef, Request) ->
    trunkline_call:call(ServerRef, Request, 5000, {?MODULE, call, [ServerRef, Request]}).

-doc "
Like `call/2`, with a timeout in milliseconds, or `infinity`. The time includes the wait for room
in the lane.

```erlang
1> trunkline:call({stock, 'b@host'}, {take, apples, 3}, 1000).
{ok,3}
```
".
-doc #{since => <<"0.1.0">>}.
-spec call(server_ref(), term(), timeout()) -> term().
call(ServerRef, Request, Timeout) ->
    trunkline_call:call(ServerRef, Request, Timeout,
                        {?MODULE, call, [ServerRef, Request, Timeout]}).

-include("trunkline_multi_call.hrl").

-doc "
Monitors a process: `monitor(process, Process)`.

```erlang
1> Ref = trunkline:monitor({stock, 'b@host'}).
```
".
-doc #{since => <<"0.5.0">>}.
-spec monitor(pid() | atom() | {RegisteredName :: atom(), node()}) -> reference().
monitor(Process) ->
    trunkline_monitor:monitor(Process).

-doc "
Monitors a process, as `erlang:monitor/2` does. The `'DOWN'` message comes after everything that the
process has sent to the caller by Trunkline. Its reason is `noconnection` if the connection to the
node is lost. Use `demonitor/1,2` of this module to end the monitor: `erlang:demonitor/1,2` has no
effect on one that goes by lane.

Ports and the time offset are monitored by `erlang:monitor/2`.

```erlang
1> Ref = trunkline:monitor(process, {stock, 'b@host'}).
2> receive {'DOWN', Ref, process, {stock, 'b@host'}, Reason} -> Reason end.
shutdown
```
".
-doc #{since => <<"0.5.0">>}.
-spec monitor(process, pid() | atom() | {RegisteredName :: atom(), node()}) -> reference();
             (port, port() | (RegisteredName :: atom())) -> reference();
             (time_offset, clock_service) -> reference().
monitor(process, Process) ->
    trunkline_monitor:monitor(Process);
monitor(Type, Item) ->
    erlang:monitor(Type, Item).

-doc "
Ends a monitor, of `monitor/1,2` or of `erlang:monitor/2,3`, as `erlang:demonitor/1` does.

```erlang
1> trunkline:demonitor(Ref).
true
```
".
-doc #{since => <<"0.5.0">>}.
-spec demonitor(reference()) -> true.
demonitor(Ref) ->
    trunkline_monitor:demonitor(Ref, []).

-doc "
Ends a monitor, of `monitor/1,2` or of `erlang:monitor/2,3`, with the options and the results of
`erlang:demonitor/2`.

```erlang
1> trunkline:demonitor(Ref, [flush]).
true
```
".
-doc #{since => <<"0.5.0">>}.
-spec demonitor(reference(), [flush | info]) -> boolean().
demonitor(Ref, Options) ->
    trunkline_monitor:demonitor(Ref, Options).

-doc "
Sends an exit signal, as `erlang:exit/2` does, in order with everything that the caller sends to
that process by Trunkline, and with its monitors.

If the process does not get to run for a second, what was sent to it later may come before the
signal. To a node whose Trunkline is older than 1.0 the signal goes by the distribution, and has
no order.

```erlang
1> trunkline:exit(Pid, shutdown).
true
```
".
-doc #{since => <<"0.6.0">>}.
-spec exit(pid() | port(), Reason :: term()) -> true.
exit(Process, Reason) ->
    trunkline_exit:exit(Process, Reason).

-doc "
Ends the lanes between this node and another one without a loss. What is in them, at both nodes, is
delivered, and requests are answered. Then messages between the two nodes go by plain distribution,
in order behind what was delivered, until the nodes connect again, or Trunkline is started again at
one of them.

The result is `ok`, or `{error, Reason}`:

- `noconnection`: there is no connection, nor a session that waits for one, or it was lost
  meanwhile;
- `timeout`: nothing has moved, and nothing has come from the other node, for three seconds, or only
  plain messages for 23 seconds. The drain goes on until the other node has delivered what it has,
  or the connection is lost. Meanwhile the lanes take messages up to their bounds.
  `erlang:disconnect_node/1` ends such a drain;
- `stopped`: Trunkline does not run at this node;
- another reason: a process of Trunkline has died for it meanwhile, and there are lanes again.

```erlang
1> trunkline:drain('b@host').
ok
```
".
-doc #{since => <<"0.5.0">>}.
-spec drain(node()) -> ok | {error, drain_error()}.
drain(Node) ->
    drain(Node, infinity).

-doc "
Like `drain/1`, for up to `Timeout` milliseconds. Then the result is `{error, timeout}`, and the
drain goes on. The error is `badarg` if this is not another node, or no timeout.

```erlang
1> trunkline:drain('b@host', 5000).
ok
```
".
-doc #{since => <<"0.5.0">>}.
-spec drain(node(), timeout()) -> ok | {error, drain_error()}.
drain(Node, Timeout) when is_atom(Node), Node =/= node(), Timeout =:= infinity;
                          is_atom(Node), Node =/= node(), is_integer(Timeout), Timeout >= 0 ->
    case drain_all([Node], Timeout) of
        {error, stopped} -> {error, stopped};
        [] -> {error, noconnection};
        [{Node, Result}] -> Result
    end;
drain(Node, Timeout) ->
    ?BAD_ARGUMENT(badarg, [Node, Timeout]).

-doc "
Ends the lanes to all peers, at the same time, as `drain/1` does. Nodes that connect later get
lanes. The result is `ok`, or `{error, List}` with the nodes for which it failed, and why; or
`{error, stopped}`, if Trunkline does not run.

```erlang
1> trunkline:drain().
ok
```
".
-doc #{since => <<"0.5.0">>}.
-spec drain() -> ok | {error, stopped | [{node(), drain_error()}]}.
drain() ->
    case drain_all(all, infinity) of
        {error, stopped} ->
            {error, stopped};
        Results ->
            case [{Node, Reason} || {Node, {error, Reason}} <- Results] of
                [] -> ok;
                Errors -> {error, Errors}
            end
    end.

drain_all(Which, Timeout) ->
    Deadline = trunkline_deadline:in(Timeout),
    case trunkline_links:links(Which) of
        stopped ->
            {error, stopped};
        Links ->
            {Nodes, Pids} = lists:unzip(Links),
            Since = erlang:monotonic_time(),
            ok = trunkline_events:execute([drain, start], #{}, #{peers => Nodes}),
            Results = lists:zip(Nodes, trunkline_link:drain(Pids, Deadline)),
            ok = trunkline_events:execute([drain, stop],
                                          #{duration => erlang:monotonic_time() - Since},
                                          #{peers => Nodes, result => Results}),
            Results
    end.

-doc "
What is going on at this node, and between this node and each other one (`peers`), whether or not
that runs Trunkline: see `state` in `t:peer_info/0`. No process is asked: the counters are read.

```erlang
1> #{running := true, peers := Peers} = trunkline:info().
2> maps:keys(Peers).
['b@host']
```
".
-doc #{since => <<"0.1.0">>}.
-spec info() -> info().
info() ->
    trunkline_info:all().

-doc "
What is going on between this node and another one. The result is `undefined` if nothing is known of
that node, or if it is this one. A node that is not connected is forgotten after an hour.

The error is `badarg` if this is no node.

```erlang
1> #{state := up, lost := Lost} = trunkline:info('b@host').
2> Lost.
#{crashed => 0,queued => 0,unconfirmed => 0,unreachable => 0}
```
".
-doc #{since => <<"0.1.0">>}.
-spec info(node()) -> peer_info() | undefined.
info(Node) when is_atom(Node) ->
    trunkline_info:peer(Node);
info(Node) ->
    ?BAD_ARGUMENT(badarg, [Node]).

-doc "
The options of the application: what each is set to, and what it means. While Trunkline runs the
values are those with which it was started. Otherwise they are those with which it would be started
now; a value that it would refuse is shown as it is.

```erlang
1> maps:map(fun(_, #{value := Value}) -> Value end, trunkline:options()).
#{advertise_address => undefined, lanes => 4, ...}
2> maps:get(bulk_idle, trunkline:options()).
#{default => 60000, must_be => <<...>>, unit => <<\"ms\">>, value => 60000, ...}
```
".
-doc #{since => <<"1.0.0">>}.
-spec options() -> #{atom() => option_info()}.
options() ->
    Values = trunkline_options:current(),
    maps:from_list(
      [{Name, #{value => maps:get(Name, Values), default => Default, unit => text(Unit),
                must_be => text(trunkline_options:type(Type)), what => text(What),
                when_to_change => text(Touch), since => text(Since)}}
       || #{name := Name, type := Type, default := Default, unit := Unit, what := What,
            touch := Touch, since := Since} <- trunkline_options:table()]).

text(Chars) -> unicode:characters_to_binary(Chars).

-doc "
Waits until messages to that node go by lane, for up to `Timeout` milliseconds. It does not connect
to the node. This is for tests and for scripts. You can send before that: messages then go by plain
distribution.

The result is `{error, stopped}` at once if Trunkline does not run at this node. When the time is
over, and not before, it is `{error, Reason}`: the nodes are not connected (`noconnection`), the
other node does not run Trunkline, or has drained this one (`no_trunkline`), this node has drained
the other one (`drained`), or the two are still agreeing (`timeout`).

The error is `badarg` if this is not another node, or no timeout.

```erlang
1> net_kernel:connect_node('b@host').
true
2> trunkline:await_up('b@host', 5000).
ok
```
".
-doc #{since => <<"0.6.0">>}.
-spec await_up(node(), timeout()) ->
          ok | {error, stopped | noconnection | no_trunkline | drained | timeout}.
await_up(Node, Timeout) when is_atom(Node), Node =/= node(), Timeout =:= infinity;
                             is_atom(Node), Node =/= node(), is_integer(Timeout), Timeout >= 0 ->
    await_up_until(Node, trunkline_deadline:in(Timeout));
await_up(Node, Timeout) ->
    ?BAD_ARGUMENT(badarg, [Node, Timeout]).

await_up_until(Node, Deadline) ->
    case trunkline_info:whether_up(Node) of
        up ->
            ok;
        stopped ->
            {error, stopped};
        Why ->
            case trunkline_deadline:has_passed(Deadline) of
                true when Why =:= opening -> {error, timeout};
                true -> {error, Why};
                false -> receive after 10 -> await_up_until(Node, Deadline) end
            end
    end.

-doc "
Looks for five seconds at what the distribution's connections do, prints what there is to gain, and
returns it. See `advise/1`.

```erlang
1> trunkline:advise().
```
".
-doc #{since => <<"0.6.0">>}.
-spec advise() -> [advice()].
advise() ->
    advise(#{}).

-doc "
Looks for some time at what the distribution's connections do, prints what there is to gain, and
returns it. It only reads counters, and sends nothing. Trunkline need not run, at this node or at
any other.

The error is `badarg` for an unknown option, or a value that is out of range.

```erlang
1> [#{gain := batches}] = trunkline:advise(#{time => 2000, nodes => ['b@host']}).
```
".
-doc #{since => <<"0.6.0">>}.
-spec advise(advise_options() | [proplists:property()]) -> [advice()].
advise(Options) ->
    case trunkline_function_options:check(trunkline_advise, Options) of
        {ok, Map} -> trunkline_advise:advise(Map);
        error -> ?BAD_ARGUMENT(badarg, [Options])
    end.

-doc "
Measures plain distribution and Trunkline in turn between this node and another one, in at most ten
seconds, prints a table, and returns the figures. See `compare/2`.

```erlang
1> {ok, Report} = trunkline:compare('b@host').
```
".
-doc #{since => <<"0.6.0">>}.
-spec compare(node()) -> {ok, comparison()} | {error, compare_error()}.
compare(Node) ->
    compare(Node, #{}).

-doc "
Measures plain distribution and Trunkline in turn between this node and another one, prints a table,
and returns the figures. It loads both nodes. On a busy system the result is `{error, busy}`, unless
`force` is `true`.

The error is `badarg` if this is not another node, for an unknown option, or a value that is out of
range.

```erlang
1> {ok, #{calls := #{ratio := Ratio}}} = trunkline:compare('b@host', #{time => 5000}).
```
".
-doc #{since => <<"0.6.0">>}.
-spec compare(node(), compare_options() | [proplists:property()]) ->
          {ok, comparison()} | {error, compare_error()}.
compare(Node, Options) ->
    case is_atom(Node) andalso Node =/= node()
        andalso trunkline_function_options:check(trunkline_compare, Options) of
        {ok, Map} -> trunkline_compare:compare(Node, Map);
        _ -> ?BAD_ARGUMENT(badarg, [Node, Options])
    end.
