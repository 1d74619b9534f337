%% Messages between Erlang nodes, batched, ordered and bounded.
%%
%% The functions here are those of `erlang' and `gen_server' with the same names,
%% arguments, results and errors; only the way is another. To a process at
%% another node that runs Trunkline a message goes by lane, together with others
%% that are on their way at the same time. To any other process it goes as `!'
%% would send it, so that it is always right to use Trunkline.
%%
%% Messages that one process sends to another through this module arrive in the
%% order in which they were sent, whichever of the functions sent them. Their
%% order against messages sent with `!' is not defined.
-module(trunkline).

-include("trunkline_errors.hrl").

-export([send/2, send/3, cast/2, multicast/2, multicast/3]).
-export([call/2, call/3, multi_call/2, multi_call/3, multi_call/4, abcast/2, abcast/3]).
-export([send_request/2, send_request/4, wait_response/2, wait_response/3,
         receive_response/2, receive_response/3, check_response/2, check_response/3]).
-export([reqids_new/0, reqids_size/1, reqids_add/3, reqids_to_list/1]).
-export([monitor/1, monitor/2, demonitor/1, demonitor/2, exit/2]).
-export([drain/0, drain/1, drain/2]).
-export([info/0, info/1, options/0, await_up/2]).
-export([advise/0, advise/1, compare/1, compare/2]).

-export_type([destination/0, server_ref/0, request_id/0, request_id_collection/0, response/0, response_timeout/0]).
-export_type([info/0, peer_info/0, lane_info/0, option_info/0, drain_error/0]).

-type destination() :: pid()
                     | reference()                     % an alias
                     | port()
                     | (RegisteredName :: atom())
                     | {RegisteredName :: atom(), node()}.
-type server_ref() :: gen_server:server_ref().
-opaque request_id() :: trunkline_call:request_id().
-opaque request_id_collection() :: trunkline_call:request_id_collection().
-type response() :: trunkline_call:response().
-type response_timeout() :: trunkline_deadline:timeout_time().

-type drain_error() :: stopped | noconnection | timeout | term().

-type info() :: #{running := boolean(),            % whether Trunkline is, at this node
                  peers := #{node() => peer_info()},
                  %% messages sent with `!' to nodes that have had no lanes yet
                  fallbacks := non_neg_integer(),
                  %% where peers can connect, and how many connections proved not to be theirs
                  listener := #{ports := #{tcp | tls => inet:port_number()},
                                refused := non_neg_integer()}}.
-type peer_info() ::
        #{state := trunkline_peers:state(),
          since := integer(),                % of this state; system time, ms
          release := string() | undefined,   % of Trunkline at the peer
          protocol := pos_integer() | undefined,
          round_trip := trunkline_distance:microseconds() | undefined,   % the shortest of late
          lanes := [lane_info()],
          batches := batches_info(),
          large := large_info(),
          fallbacks := non_neg_integer(),
          sessions := non_neg_integer(),
          lost := #{queued | unconfirmed | crashed | unreachable => non_neg_integer()}}.
%% Large messages to the peer.
-type large_info() ::
        #{by := connections | distribution | none,   % none are open
          connections := non_neg_integer(),
          congestion_control := binary() | undefined,
          pending_messages := non_neg_integer(),      % queued and under way
          pending_bytes := non_neg_integer(),
          messages := non_neg_integer(),
          bytes := non_neg_integer(),
          broken := non_neg_integer()}.               % from the peer: not delivered
-type batches_info() ::
        #{by := distribution | connections,
          connections := non_neg_integer(),           % of their own
          congestion_control := binary() | undefined}.   % of the newest: its name's first eight bytes
-type lane_info() ::
        #{queued_messages := non_neg_integer(),
          queued_bytes := non_neg_integer(),
          in_flight_messages := non_neg_integer(),
          in_flight_bytes := non_neg_integer(),
          batches := non_neg_integer(),
          messages := non_neg_integer(),
          bytes := non_neg_integer(),
          mean_batch := float(),
          largest_batch := non_neg_integer(),
          window_bytes := non_neg_integer(),  % that may be in flight now
          waits := non_neg_integer(),
          nosuspend := non_neg_integer(),
          received_batches := non_neg_integer(),
          received_messages := non_neg_integer()}.

-type option_info() ::
        #{value := term(), default := term(), unit := binary(), must_be := binary(),
          what := binary(), when_to_change := binary(), since := binary()}.

%% As erlang:send/2: answers Message; waits while the lane is full, as `!' waits
%% on a busy connection. To a list: as multicast/2.
-spec send(destination() | [destination()], Message) -> Message.
send(To, Message) when is_list(To) ->
    ok = multicast(To, Message),
    Message;
send(To, Message) ->
    case trunkline_inboxes:enter(To, Message, infinity) of
        none -> send_on(To, Message);
        {Keeper, Wrapped} -> _ = send_on(Keeper, Wrapped), Message;
        refused -> Message                   % and counted: see trunkline_inbox
    end.

send_on(To, Message) when is_pid(To), node(To) =/= node(); is_reference(To), node(To) =/= node() ->
    send_lane(node(To), To, To, Message);
send_on({Name, Node} = To, Message) when is_atom(Name), is_atom(Node), Node =/= node() ->
    send_lane(Node, Name, To, Message);
send_on(To, Message) ->
    erlang:send(To, Message).

send_lane(Node, Addressee, To, Message) ->
    case trunkline_sender:hand_over(Node, Addressee, Message) of
        ok ->
            Message;
        direct ->
            trunkline_sender:fallback(Node),
            erlang:send(To, Message);
        unreachable ->
            Message                          % dropped, as `!' does
    end.

%% As erlang:send/3. `nosuspend': answers so instead of waiting, and nothing is
%% sent. `noconnect': answers so instead of setting up a connection.
-spec send(destination(), term(), [nosuspend | noconnect]) -> ok | nosuspend | noconnect.
send(To, Message, Options) ->
    case options(Options, infinity, connect) of
        {Patience, _} = How ->
            case trunkline_inboxes:enter(To, Message, Patience) of
                none ->
                    send_on(To, Message, How, Options);
                {Keeper, Wrapped} ->
                    case send_on(Keeper, Wrapped, How, Options) of
                        ok -> ok;
                        Refused -> trunkline_inboxes:cancel(Keeper, Wrapped), Refused
                    end;
                refused ->
                    ok;
                nosuspend ->
                    nosuspend
            end;
        badarg ->
            ?BAD_ARGUMENT(badarg, [To, Message, Options])
    end.

send_on(To, Message, How, Options) when is_pid(To), node(To) =/= node();
                                        is_reference(To), node(To) =/= node() ->
    send_lane(node(To), To, To, Message, How, Options);
send_on({Name, Node} = To, Message, How, Options) when is_atom(Name), is_atom(Node), Node =/= node() ->
    send_lane(Node, Name, To, Message, How, Options);
send_on(To, Message, _, Options) ->
    erlang:send(To, Message, Options).

send_lane(Node, Addressee, To, Message, {Patience, Connect}, Options) ->
    case trunkline_sender:hand_over(Node, Addressee, Message, Patience, Connect) of
        direct ->
            trunkline_sender:fallback(Node),
            erlang:send(To, Message, Options);
        unreachable ->
            ok;                              % dropped, as erlang:send/3 does
        Answer ->
            Answer
    end.

options([nosuspend | Options], _, Connect) -> options(Options, nosuspend, Connect);
options([noconnect | Options], Patience, _) -> options(Options, Patience, noconnect);
options([], Patience, Connect) -> {Patience, Connect};
options(_, _, _) -> badarg.

%% Sends the message to each of these; it is encoded once, and goes to each of their nodes once.
%% In order with whatever else the process sends to one of them. As `send', it does not tell
%% whether a process is there: so it is with a name that nobody has, also here. The error is
%% badarg if there is no destination in the place of one, and nothing is sent.
-spec multicast([destination()], term()) -> ok.
multicast(Destinations, Message) ->
    case multicast(Destinations, Message, [], {infinity, connect}) of
        [] -> ok;
        badarg -> ?BAD_ARGUMENT(badarg, [Destinations, Message])
    end.

%% With the options of send/3: those whose messages would have had to wait, or to set up a
%% connection, are answered, and get none.
-spec multicast([destination()], term(), [nosuspend | noconnect]) -> ok | {not_sent, trunkline_multicast:not_sent()}.
multicast(Destinations, Message, Options) ->
    case multicast(Destinations, Message, Options, options(Options, infinity, connect)) of
        [] -> ok;
        badarg -> ?BAD_ARGUMENT(badarg, [Destinations, Message, Options]);
        NotSent -> {not_sent, NotSent}
    end.

multicast(_, _, _, badarg) ->
    badarg;
multicast(Destinations, Message, Options, How) ->
    try trunkline_by_node:group(Destinations) of
        Groups -> trunkline_multicast:send(Groups, Message, How, Options)
    catch
        error:badarg -> badarg
    end.

%% As gen_server:cast/2.
-spec cast(server_ref(), term()) -> ok.
cast({global, Name}, Request) ->
    cast({via, global, Name}, Request);
cast({via, Module, Name}, Request) ->
    try Module:whereis_name(Name) of
        Pid when is_pid(Pid) -> do_cast(Pid, Request);
        _ -> ok
    catch
        _:_ -> ok                     % gen_server does not tell either
    end;
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

%% As gen_server:call/2,3, to a gen_server or a gen_statem. Exits with {Reason,
%% {trunkline, call, Args}}, with the Reason that gen_server:call would give. The
%% time includes the wait for room. An inbox that is full and does not let its senders wait
%% (trunkline_inbox) is the reason `overload', at once.
-spec call(server_ref(), term()) -> term().
call(ServerRef, Request) ->
    trunkline_call:call(ServerRef, Request, 5000, {?MODULE, call, [ServerRef, Request]}).

-spec call(server_ref(), term(), timeout()) -> term().
call(ServerRef, Request, Timeout) ->
    trunkline_call:call(ServerRef, Request, Timeout, {?MODULE, call, [ServerRef, Request, Timeout]}).

%% As gen_server:multi_call/2,3,4, and its results in the order of the nodes. What is no node
%% is a badarg, as with OTP 27.
-spec multi_call(Name :: atom(), term()) -> {Replies :: [{node(), term()}], BadNodes :: [node()]}.
multi_call(Name, Request) ->
    multi_call([node() | nodes()], Name, Request).

-spec multi_call([node()], Name :: atom(), term()) -> {Replies :: [{node(), term()}], BadNodes :: [node()]}.
multi_call(Nodes, Name, Request) ->
    multi_call(Nodes, Name, Request, infinity).

-spec multi_call([node()], Name :: atom(), term(), timeout()) -> {Replies :: [{node(), term()}], BadNodes :: [node()]}.
multi_call(Nodes, Name, Request, Timeout)
  when is_list(Nodes), is_atom(Name), Timeout =:= infinity;
       is_list(Nodes), is_atom(Name), is_integer(Timeout), Timeout >= 0 ->
    case trunkline_multi_call:multi_call(Nodes, Name, Request, Timeout) of
        badarg -> ?BAD_ARGUMENT(badarg, [Nodes, Name, Request, Timeout]);
        Answers -> Answers
    end.

%% As gen_server:abcast/2,3.
-spec abcast(Name :: atom(), term()) -> abcast.
abcast(Name, Request) when is_atom(Name) ->
    abcast([node() | nodes()], Name, Request).

-spec abcast([node()], Name :: atom(), term()) -> abcast.
abcast(Nodes, Name, Request) when is_list(Nodes), is_atom(Name) ->
    lists:foreach(fun(Node) when is_atom(Node) -> cast({Name, Node}, Request) end, Nodes),
    abcast.

%% As gen_server:send_request/2,4. The request ids, and the collections of them, are for the
%% functions below, not for gen_server's.
-spec send_request(server_ref(), term()) -> request_id().
send_request(ServerRef, Request) ->
    trunkline_call:send_request(ServerRef, '$gen_call', Request).

-spec send_request(server_ref(), term(), Label :: term(), request_id_collection()) -> request_id_collection().
send_request(ServerRef, Request, Label, ReqIdCollection) ->
    trunkline_call:send_request(ServerRef, '$gen_call', Request, Label, ReqIdCollection).

%% As in gen_server: after `timeout' one may wait again.
-spec wait_response(request_id(), response_timeout()) -> response() | timeout.
wait_response(RequestId, Timeout) ->
    ?NAMED(badarg, [RequestId, Timeout], trunkline_call:wait_response(RequestId, Timeout)).

-spec wait_response(request_id_collection(), response_timeout(), Delete :: boolean()) ->
          {response(), Label :: term(), request_id_collection()} | no_request | timeout.
wait_response(ReqIdCollection, Timeout, Delete) ->
    ?NAMED(badarg, [ReqIdCollection, Timeout, Delete], trunkline_call:wait_response(ReqIdCollection, Timeout, Delete)).

%% As in gen_server: after `timeout' the reply will never arrive.
-spec receive_response(request_id(), response_timeout()) -> response() | timeout.
receive_response(RequestId, Timeout) ->
    ?NAMED(badarg, [RequestId, Timeout], trunkline_call:receive_response(RequestId, Timeout)).

-spec receive_response(request_id_collection(), response_timeout(), Delete :: boolean()) ->
          {response(), Label :: term(), request_id_collection()} | no_request | timeout.
receive_response(ReqIdCollection, Timeout, Delete) ->
    ?NAMED(badarg, [ReqIdCollection, Timeout, Delete], trunkline_call:receive_response(ReqIdCollection, Timeout, Delete)).

-spec check_response(Message :: term(), request_id()) -> response() | no_reply.
check_response(Message, RequestId) ->
    ?NAMED(badarg, [Message, RequestId], trunkline_call:check_response(Message, RequestId)).

-spec check_response(Message :: term(), request_id_collection(), Delete :: boolean()) ->
          {response(), Label :: term(), request_id_collection()} | no_request | no_reply.
check_response(Message, ReqIdCollection, Delete) ->
    ?NAMED(badarg, [Message, ReqIdCollection, Delete], trunkline_call:check_response(Message, ReqIdCollection, Delete)).

-spec reqids_new() -> request_id_collection().
reqids_new() -> trunkline_reqids:new().

-spec reqids_size(request_id_collection()) -> non_neg_integer().
reqids_size(ReqIdCollection) ->
    ?NAMED(badarg, [ReqIdCollection], trunkline_reqids:size(ReqIdCollection)).

-spec reqids_add(request_id(), Label :: term(), request_id_collection()) -> request_id_collection().
reqids_add(RequestId, Label, ReqIdCollection) ->
    ?NAMED(badarg, [RequestId, Label, ReqIdCollection], trunkline_call:reqids_add(RequestId, Label, ReqIdCollection)).

-spec reqids_to_list(request_id_collection()) -> [{request_id(), Label :: term()}].
reqids_to_list(ReqIdCollection) ->
    ?NAMED(badarg, [ReqIdCollection], trunkline_reqids:to_list(ReqIdCollection)).

%% As erlang:monitor/2. The 'DOWN' message comes after all that the monitored process has sent
%% to this one with Trunkline, and with noconnection as its reason when the session
%% with that node ends.
-spec monitor(pid() | atom() | {RegisteredName :: atom(), node()}) -> reference().
monitor(Process) ->
    trunkline_monitor:monitor(Process).

-spec monitor(process, pid() | atom() | {RegisteredName :: atom(), node()}) -> reference();
             (port, port() | (RegisteredName :: atom())) -> reference();
             (time_offset, clock_service) -> reference().
monitor(process, Process) ->
    trunkline_monitor:monitor(Process);
monitor(Type, Item) ->
    erlang:monitor(Type, Item).

%% As erlang:demonitor/1,2, of every monitor.
-spec demonitor(reference()) -> true.
demonitor(Ref) ->
    trunkline_monitor:demonitor(Ref, []).

-spec demonitor(reference(), [flush | info]) -> boolean().
demonitor(Ref, Options) ->
    trunkline_monitor:demonitor(Ref, Options).

%% As erlang:exit/2, in order with all that the calling process sends to that one by Trunkline,
%% and with its monitors. A process that does not get to run for a second may get what was sent
%% to it later before the signal. (To a process at a node whose Trunkline is older than 0.6.0 the
%% signal goes by the distribution, and has no order.)
-spec exit(pid() | port(), Reason :: term()) -> true.
exit(Process, Reason) ->
    trunkline_exit:exit(Process, Reason).

%% Gives up the lanes to and from Node without a loss: what is in them, on both sides, is
%% delivered, and from then on messages between the two nodes go by plain distribution, in order
%% behind that, until the nodes connect anew, or Trunkline is started anew at one of them.
%% Requests under way are answered. (A peer of version 0.4.0 ends them, as when it is
%% stopped.) `noconnection': there is no connection, or it has been lost meanwhile. `timeout': the
%% time has passed, or nothing moved for three seconds; the lanes are given up nevertheless, and what was
%% lost is counted and reported. `stopped': Trunkline does not run here. Any other reason is that
%% for which a process of Trunkline has died meanwhile: there are lanes again.
-spec drain(node()) -> ok | {error, drain_error()}.
drain(Node) ->
    drain(Node, infinity).

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

%% All peers, at the same time. Nodes that connect later get lanes.
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
            lists:zip(Nodes, trunkline_link:drain(Pids, Deadline))
    end.

%% What is going on, read without asking any process.
-spec info() -> info().
info() ->
    #{running => whereis(trunkline_sup) =/= undefined,
      peers => maps:map(fun peer_info/2, trunkline_peers:all()),
      fallbacks => trunkline_sender:fallbacks(),
      listener => trunkline_listener:info()}.

-spec info(node()) -> peer_info() | undefined.
info(Node) ->
    case trunkline_peers:lookup(Node) of
        none -> undefined;
        Peer -> peer_info(Node, Peer)
    end.

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

%% Waits until messages to that node go by lane. It does not connect to it.
-spec await_up(node(), timeout()) -> ok | {error, timeout}.
await_up(Node, Timeout) when is_atom(Node), Timeout =:= infinity;
                             is_atom(Node), is_integer(Timeout), Timeout >= 0 ->
    await_up_until(Node, trunkline_deadline:in(Timeout));
await_up(Node, Timeout) ->
    ?BAD_ARGUMENT(badarg, [Node, Timeout]).

await_up_until(Node, Deadline) ->
    case info(Node) of
        #{state := up} ->
            ok;
        _ ->
            case trunkline_deadline:has_passed(Deadline) of
                true -> {error, timeout};
                false -> receive after 10 -> await_up_until(Node, Deadline) end
            end
    end.

peer_info(Node, #{state := State, since := Since, stats := Stats, agreement := Agreement}) ->
    #{fallbacks := Fallbacks, sessions := Sessions, lost_queued := Queued,
      lost_unconfirmed := Unconfirmed, lost_crashed := Crashed,
      lost_unreachable := Unreachable} = Counted = trunkline_stats:read(Stats, peer),
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
      batches => batches(Counted),
      large => large(Route, Counted),
      fallbacks => Fallbacks, sessions => Sessions,
      lost => #{queued => Queued, unconfirmed => Unconfirmed, crashed => Crashed,
                unreachable => Unreachable}}.

lanes(none, _) ->
    [];
lanes(Route, Stats) ->
    [lane_info(Level, trunkline_stats:read(Stats, {lane, Ix}))
     || {Ix, Level} <- trunkline_route:levels(Route)].

large(Route, #{bulk_connections := Connections, bulk_by_distribution := ByDistribution,
               bulk_congestion_control := CongestionControl,
               large_messages := Messages, large_bytes := Bytes, large_broken := Broken}) ->
    Pending = case Route of
                  none -> 0;
                  _ -> trunkline_route:bulk_level(Route)
              end,
    #{by => if Connections > 0 -> connections;
               ByDistribution > 0 -> distribution;
               true -> none
            end,
      connections => Connections, congestion_control => name(CongestionControl),
      pending_messages => trunkline_gate:messages(Pending), pending_bytes => trunkline_gate:bytes(Pending),
      messages => Messages, bytes => Bytes, broken => Broken}.

batches(#{lane_connections := Connections, lane_by_connections := By, lane_congestion_control := CongestionControl}) ->
    #{by => case By of
                1 -> connections;
                0 -> distribution
            end,
      connections => Connections, congestion_control => name(CongestionControl)}.

%% What the system says of the newest connection.
name(0) -> undefined;
name(Name) -> hd(binary:split(<<Name:64>>, <<0>>)).

lane_info(Level, #{batches := Batches, messages := Messages} = Lane) ->
    Lane#{queued_messages => trunkline_gate:messages(Level),
          queued_bytes => trunkline_gate:bytes(Level),
          mean_batch => Messages / max(1, Batches)}.

%% Looks for five seconds, and only looks, at what the distribution does; prints and answers
%% what it is, and whether there is something to gain. Trunkline need not run. Options: `time'
%% (ms), `nodes' (default: all that are connected).
-spec advise() -> [trunkline_advise:advice()].
advise() ->
    advise(#{}).

-spec advise(trunkline_advise:options()) -> [trunkline_advise:advice()].
advise(Options) ->
    trunkline_advise:are_options(Options) orelse ?BAD_ARGUMENT(badarg, [Options]),
    trunkline_advise:advise(Options).

%% Measures plain distribution and Trunkline in turn between this node and that one, in at most
%% ten seconds; prints a table and answers the figures. It loads both nodes: on a busy system it
%% refuses. Options: `time' (ms), `bytes' (of large messages), `force' (also on a busy system).
-spec compare(node()) -> {ok, trunkline_compare:report()} | {error, trunkline_compare:error()}.
compare(Node) ->
    compare(Node, #{}).

-spec compare(node(), trunkline_compare:options()) ->
          {ok, trunkline_compare:report()} | {error, trunkline_compare:error()}.
compare(Node, Options) ->
    is_atom(Node) andalso trunkline_compare:are_options(Options) orelse ?BAD_ARGUMENT(badarg, [Node, Options]),
    trunkline_compare:compare(Node, Options).
