%% Hands a message to a lane, in the process of the sender.
%%
%% The hot path is one lookup of the route, one hash of the sender's pid, one atomic addition, one
%% local send. It is the same to a peer that is not connected: the lane keeps the message and asks
%% for a connection. A sender that is refused at the gate takes the slow path (trunkline_refused).
%% While few are sent, one that finds its lane empty is sent past it (trunkline_in_turn).
%% What cannot go by lane is counted here, too. (While the code of release 0.5.0 is replaced, its
%% senders call fallback/1.)
-module(trunkline_sender).
-moduledoc false.

-include("../gate/trunkline_route.hrl").

-export([hand_over/3, hand_over/5, hand_over_apart/3, pack/2, hand_over_packed/5, packed_charge/2,
         as_parcel/5, as_term/2]).
-export([force/3, force_apart/3, tell/3, cancel/3, alias_of_lane/2, lane_of/2]).
-export([count_fallbacks/0, fallback/1, fallbacks/0]).

-export_type([how/0, packed/0]).

-dialyzer({no_improper_lists, [offer/7, entry/2, force/3, send_parcel/6, enter_packed/7]}).

-type connect() :: connect | noconnect.
-type how() :: {infinity | nosuspend, connect()}.
%% A message that is encoded once, for many destinations.
-opaque packed() :: {encoded, binary()}
                  | {parcel, trunkline_parcel:parcel(), trunkline_gate:charge()}.

%% From so many bytes on it pays to look at what a message is made of; and from so many on, to find
%% out how much memory it takes, if its beginning does not tell (a record, say).
-define(LONG, 4096).
-define(MEDIUM, 200).

-spec hand_over(node(), trunkline_lane:to(), term()) -> ok | direct | unreachable.
hand_over(Node, To, Message) ->
    offer(Node, To, Message, {infinity, connect}, new).

%% `direct': there are no lanes, the caller should use plain distribution; everything that it handed
%% over before has been delivered, or is lost. `unreachable': the connection was lost, or could not
%% be made, while the sender waited for room; the message is lost, and counted. `nosuspend': there
%% is no room. `noconnect': there is no connection, and none is being made. `timeout': there was no
%% room in time.
-spec hand_over(node(), trunkline_lane:to(), term(), trunkline_refused:patience(), connect()) ->
          ok | direct | unreachable | noconnect | nosuspend | timeout.
hand_over(Node, To, Message, Patience, Connect) ->
    case may_connect(Node, Connect) of
        true -> offer(Node, To, Message, {Patience, Connect}, new);
        false -> noconnect
    end.

may_connect(_, connect) -> true;
may_connect(Node, noconnect) -> not is_down(trunkline_route:lookup(Node)).

%% As the calling process sees it: if its lane keeps something, that has asked for a connection.
is_down(#route{gate = Gate, lanes = Lanes}) ->
    trunkline_gate:path(Gate) =:= down
        andalso trunkline_gate:level(Gate, ?LANE_OF(self(), Lanes)) =< 0;
is_down(none) ->
    false.

offer(Node, To, Message, How, Ticket) ->
    case persistent_term:get(?ROUTE(Node), none) of
        #route{lanes = Lanes, bypass = Bypass} = Route ->
            Ix = ?LANE_OF(self(), Lanes),
            Offered = case trunkline_owed:is_watched(Ix, Bypass) of
                          false -> offer(Route, Ix, Node, To, Message, How, Ticket);
                          true -> watched(Route, Ix, Node, To, Message, How, Ticket)
                      end,
            case Offered of
                {again, Ticket1} -> offer(Node, To, Message, How, Ticket1);
                _ -> Offered
            end;
        none ->
            direct
    end.

offer(#route{lanes = Lanes, gate = Gate, limit = Limit, large = Large} = Route, Ix, Node, To,
      Message, How, Ticket) ->
    Entered = case trunkline_shape:weight(Message) of
                  light -> enter(Gate, Ix, Message, Limit, Large);
                  Weight -> Weight
              end,
    case Entered of
        Charge when is_integer(Charge) ->
            element(Ix, Lanes) ! [Charge, self(), To | Message],
            ok;
        {alone, Charge} -> alone(Route, Ix, To, Message, Charge, How, Ticket);
        {refused, Charge} -> refused(Route, Ix, Ix, Charge, How, Ticket);
        Long -> long(Long, Route, Ix, Node, To, Message, How, Ticket)
    end.

%% The calling process may be a server that owes plain replies.
watched(#route{bypass = Bypass} = Route, Ix, Node, To, Message, {Patience, _} = How, Ticket) ->
    case trunkline_owed:send(Route, Ix, To, Message, Patience) of
        false ->
            case offer(Route, Ix, Node, To, Message, How, Ticket) of
                ok -> trunkline_owed:sent(To, Ix, Node, Patience, Bypass);
                Other -> Other
            end;
        Sent ->
            Sent
    end.

%% A short message enters, unless it is heavy.
enter(Gate, Ix, Message, Limit, Large) ->
    case trunkline_gate:enter(Gate, Ix, Message, Limit, ?MEDIUM) of
        {exactly, Charge} ->
            Long = min(Large, trunkline_gate:limit(?LONG)),
            case trunkline_shape:weighed(Charge, Message) of
                {exactly, Charge} when Charge < Long ->
                    trunkline_gate:enter(Gate, Ix, Charge, Limit);
                Size ->
                    Size
            end;
        Entered ->
            Entered
    end.

%% The message has entered an empty lane. While little comes the lane is not worth it, so the
%% message leaves it again. (It does so before it is sent: whatever enters meanwhile goes by lane,
%% and keeps that busy until it is acknowledged.)
alone(#route{lanes = Lanes, gate = Gate, link = Link} = Route, Ix, To, Message, Charge, How,
      Ticket) ->
    case trunkline_in_turn:start_short(Route, Ix, To, Charge) of
        true ->
            _ = trunkline_gate:leave(Gate, Ix, Charge),
            _ = trunkline_gate:awaited(Gate, Ix) andalso trunkline_room:offer(Link, Ix),
            case trunkline_in_turn:send_short(Route, Ix, To, Message, Charge) of
                ok -> ok;
                _ -> by_lane(Route, Ix, fun() -> [To | Message] end, Charge, How, Ticket)
            end;
        false ->
            element(Ix, Lanes) ! [Charge, self(), To | Message],
            ok
    end.

%% The best way for a long message depends on what it is made of. Messages whose receiver is not
%% known, and commands other than requests and replies, must go by lane. A sender that has waited
%% for room takes it at once. A heavy message that meets an idle lane need not be measured.
long(heavy, Route, Ix, Node, To, Message, {infinity, _} = How, new) when is_pid(To) ->
    case trunkline_in_turn:send_heavy(Route, Ix, To, Message) of
        ok -> ok;
        no -> long(trunkline_shape:measure(Message), Route, Ix, Node, To, Message, How, new)
    end;
long(Weight, Route, Ix, Node, To, Message, How, Ticket) when is_atom(Weight) ->
    long(trunkline_shape:measure(Message), Route, Ix, Node, To, Message, How, Ticket);
long(Size, Route, Ix, Node, To, Message, {Patience, _} = How, Ticket) ->
    case is_known(To) andalso Patience =/= nosuspend andalso Ticket =:= new
        andalso trunkline_in_turn:send(Route, Ix, Node, To, Message, Size, Patience) of
        ok ->
            ok;
        _ ->
            Charge = trunkline_shape:charge(Size, Message, Route#route.large),
            case Charge >= Route#route.large of
                true -> large(Route, Ix, Node, To, Message, Charge, How, Ticket);
                false -> by_lane(Route, Ix, fun() -> entry(To, Message) end, Charge, How, Ticket)
            end
    end.

is_known(To) when is_tuple(To) ->
    trunkline_command:is_request(To) orelse element(1, To) =:= reply;
is_known(To) ->
    is_pid(To) orelse is_atom(To).

%% A flat term is more than its encoding, and would be copied into the lane. (A command goes by lane
%% as it is.)
entry(To, Message) ->
    case is_tuple(To) orelse trunkline_shape:shape(Message) of
        flat -> [{each, [To]} | term_to_binary(Message)];
        _ -> [To | Message]
    end.

%% (It is encoded when it has been admitted: senders that wait do not keep encoded messages.)
by_lane(#route{gate = Gate, limit = Limit, lanes = Lanes} = Route, Ix, Entry, Charge, How,
        Ticket) ->
    case trunkline_gate:enter_large(Gate, Ix, Charge, Limit) of
        ok ->
            element(Ix, Lanes) ! [Charge, self() | Entry()],
            ok;
        refused ->
            refused(Route, Ix, Ix, Charge, How, Ticket)
    end.

%% The same as hand_over/3, but the message does not travel in the lane, however small it is: a
%% process of its own delivers it.
-spec hand_over_apart(node(), trunkline_lane:to(), term()) -> ok | direct | unreachable.
hand_over_apart(Node, To, Message) ->
    How = {infinity, connect},
    enter_by(fun(Route, Ix, Ticket) ->
                     Charge = trunkline_gate:charge(Message),
                     large(Route, Ix, Node, To, Message, Charge, How, Ticket)
             end, Node, To, How, new).

%% What offer/5 does, off the hot path: Enter tries to enter the calling process's lane.
enter_by(Enter, Node, To, How, Ticket) ->
    case trunkline_route:lookup(Node) of
        #route{lanes = Lanes, bypass = Bypass} = Route ->
            Ix = ?LANE_OF(self(), Lanes),
            case Enter(Route, Ix, Ticket) of
                {again, Ticket1} -> enter_by(Enter, Node, To, How, Ticket1);
                ok -> trunkline_owed:sent(To, Ix, Node, element(1, How), Bypass);
                Answer -> Answer
            end;
        none ->
            direct
    end.

%% The sender packs the message, because that would stop the lane for everyone. The
%% message counts only when it is packed: a sender that is killed while it packs
%% leaves nothing behind.
large(#route{gate = Gate, bulk_limit = Limit, large = Large, stats = Stats} = Route, Ix, Node, To,
      Message, Charge, How, Ticket) ->
    Bulk = trunkline_route:bulk_ix(Route),
    case trunkline_gate:fill(Gate, Bulk) < Limit of
        true ->
            {Parcel, Charge1} = as_parcel(Node, Message, Charge, Large, Stats),
            parcel(Route, Ix, To, 1, Parcel, Charge1, How, Ticket);
        false -> refused(Route, Ix, Bulk, Charge, How, Ticket)
    end.

%% A message as it travels beside the lane, and what it is charged then. (The charge before may be
%% an estimate.) A large term with many atoms stays as it is, if the peer can fetch it.
-spec as_parcel(node(), Message :: term(), trunkline_gate:charge(),
                Large :: trunkline_gate:charge(), trunkline_stats:stats()) ->
          {trunkline_parcel:parcel(), trunkline_gate:charge()}.
as_parcel(Node, Message, Charge, Large, Stats) ->
    case Charge >= Large andalso trunkline_in_turn:may_go_by_lane(Charge)
        andalso trunkline_shape:shape(Message) =:= mixed
        andalso trunkline_in_turn:are_terms_suited(Node, Stats) of
        true ->
            as_term(Message, Charge);
        false ->
            Parcel = trunkline_parcel:pack(Message),
            {Parcel, trunkline_gate:charge(trunkline_parcel:bytes(Parcel), 1)}
    end.

%% The same for one that stays as it is.
-spec as_term(Message :: term(), trunkline_gate:charge()) ->
          {trunkline_parcel:parcel(), trunkline_gate:charge()}.
as_term(Message, Charge) ->
    {trunkline_parcel:term(Message, trunkline_gate:bytes(Charge)),
     max(Charge, trunkline_gate:term(Message))}.

%% The parcel has a place in the lane, among the sender's other messages. The place is not refused:
%% there are only as many as messages that are admitted here. It counts before the message is
%% admitted, so that a process that closes the gates and waits until the lanes are empty waits for
%% all messages that have been admitted.
parcel(Route, Ix, To, Addressees, Parcel, Charge, How, Ticket) ->
    #route{lanes = Lanes, gate = Gate, bulk_limit = Limit} = Route,
    Bulk = trunkline_route:bulk_ix(Route),
    Place = take_place(Gate, Ix, Addressees, Parcel),
    case trunkline_gate:enter_large(Gate, Bulk, Charge, Limit) of
        ok ->
            send_parcel(element(Ix, Lanes), Place, self(), To, Charge, Parcel);
        refused ->
            _ = trunkline_gate:leave(Gate, Ix, Place),
            %% Many may have packed at the same time, and wait: without their parcels.
            true = garbage_collect(self(), [{type, minor}]),
            refused(Route, Ix, Bulk, Charge, How, Ticket)
    end.

take_place(Gate, Ix, Addressees, Parcel) ->
    Place = trunkline_gate:charge(erlang:external_size(trunkline_parcel:sizes(Parcel)), Addressees),
    ok = trunkline_gate:force(Gate, Ix, Place),
    Place.

send_parcel(Lane, Place, Sender, To, Charge, Parcel) ->
    Lane ! [Place, Sender, {parcel, Charge, To} | Parcel],
    ok.

%% The result is for that node and any other: which messages are large is this node's option.
-spec pack(trunkline_route:route(), term()) -> packed().
pack(#route{large = Large}, Message) ->
    case trunkline_gate:charge(Message) of
        Charge when Charge < Large -> {encoded, term_to_binary(Message)};
        Charge -> {parcel, trunkline_parcel:pack(Message), Charge}
    end.

%% The same as hand_over/5, for a packed message and that many addressees.
-spec hand_over_packed(node(), trunkline_multicast:command(), Addressees :: pos_integer(),
                       packed(), how()) ->
          ok | direct | unreachable | noconnect | nosuspend | timeout.
hand_over_packed(Node, To, Addressees, Packed, {_, Connect} = How) ->
    case may_connect(Node, Connect) of
        true -> enter_by(fun(Route, Ix, Ticket) ->
                                 enter_packed(Route, Ix, To, Addressees, Packed, How, Ticket)
                         end, Node, To, How, new);
        false -> noconnect
    end.

%% What it is charged for that many addressees.
-spec packed_charge(packed(), Addressees :: pos_integer()) -> trunkline_gate:charge().
packed_charge({encoded, Binary}, Addressees) ->
    trunkline_gate:charge(byte_size(Binary), Addressees);
packed_charge({parcel, _, Charge}, Addressees) ->
    trunkline_gate:with_addressees(Addressees, Charge).

enter_packed(Route, Ix, To, Addressees, {encoded, Binary} = Packed, How, Ticket) ->
    by_lane(Route, Ix, fun() -> [To | Binary] end, packed_charge(Packed, Addressees), How, Ticket);
enter_packed(Route, Ix, {each, [To]}, 1, {parcel, Parcel, Charge}, How, Ticket) ->
    %% As a message to one process it need not hold up those to others.
    parcel(Route, Ix, To, 1, Parcel, Charge, How, Ticket);
enter_packed(Route, Ix, To, Addressees, {parcel, Parcel, _} = Packed, How, Ticket) ->
    parcel(Route, Ix, To, Addressees, Parcel, packed_charge(Packed, Addressees), How, Ticket).

refused(Route, Ix, Full, Charge, {Patience, _}, Ticket) ->
    trunkline_refused:retry(Route, Ix, Full, Charge, Patience, Ticket).

%% The calling process does not wait for the reply to that request any more.
-spec cancel(node(), trunkline_command:server(), trunkline_command:caller()) -> ok.
cancel(Node, Server, Caller) ->
    case trunkline_route:lookup(Node) of
        none -> ok;
        Route -> force(Route, {{cancel, Server, Caller}, []}, self())
    end.

%% The alias of the lane that this process hands its messages to.
-spec alias_of_lane(trunkline_route:route(), pid()) -> reference().
alias_of_lane(#route{aliases = Aliases}, Pid) ->
    element(?LANE_OF(Pid, Aliases), Aliases).

-spec lane_of(trunkline_route:route(), pid()) -> pid().
lane_of(#route{lanes = Lanes}, Pid) ->
    element(?LANE_OF(Pid, Lanes), Lanes).

%% Hands over what must not wait, in whatever state the lanes are, as if Sender
%% had sent it.
-spec force(trunkline_route:route(), {trunkline_lane:to(), Message :: term()}, Sender :: pid()) ->
          ok.
force(#route{lanes = Lanes, gate = Gate, large = Large} = Route, {To, Message}, Sender) ->
    Ix = ?LANE_OF(Sender, Lanes),
    case forced(To, trunkline_gate:charge(Message)) of
        Charge when Charge < Large ->
            ok = trunkline_gate:force(Gate, Ix, Charge),
            element(Ix, Lanes) ! [Charge, Sender, To | Message],
            ok;
        _ ->
            force_apart(Route, {To, Message}, Sender)
    end.

forced(To, Charge) ->
    case trunkline_command:is_missed(To) of
        true -> Charge;
        false -> trunkline_gate:without_message(Charge)
    end.

-spec force_apart(trunkline_route:route(), {trunkline_lane:to(), Message :: term()},
                  Sender :: pid()) -> ok.
force_apart(#route{lanes = Lanes, gate = Gate} = Route, {To, Message}, Sender) ->
    Ix = ?LANE_OF(Sender, Lanes),
    Charge = trunkline_gate:charge(Message),
    Parcel = trunkline_parcel:pack(Message),
    Place = take_place(Gate, Ix, 1, Parcel),
    ok = trunkline_gate:force(Gate, trunkline_route:bulk_ix(Route), Charge),
    send_parcel(element(Ix, Lanes), Place, Sender, To, Charge, Parcel).

%% For messages between Trunkline's own processes: neither waits nor makes a connection. If the
%% session may outlive its connection, the message outlives it, too, and keeps its order with
%% everything else that the calling process tells that node. Otherwise it is lost with the
%% connection.
-spec tell(node(), RegisteredName :: atom(), Message :: term()) -> ok | nosuspend | noconnect.
tell(Node, Name, Message) ->
    case trunkline_peers:resumes(Node) andalso trunkline_route:lookup(Node) of
        #route{} = Route ->
            force(Route, {{tell, Name}, Message}, self());
        _ ->
            erlang:send({Name, Node}, Message, [noconnect, nosuspend])
    end.

%% Fallbacks to nodes that never had a link are counted together, here.
-define(FALLBACKS, trunkline_fallbacks).

-spec count_fallbacks() -> ok.
count_fallbacks() ->
    case persistent_term:get(?FALLBACKS, none) of
        none -> persistent_term:put(?FALLBACKS, counters:new(1, [write_concurrency]));
        _ -> ok
    end.

%% (What goes to a process of this node has no lane in any case.)
-spec fallback(node()) -> ok.
fallback(Node) when Node =:= node() ->
    ok;
fallback(Node) ->
    case trunkline_route:lookup(Node) of
        #route{stats = Stats} ->
            trunkline_stats:add(Stats, peer, fallbacks, 1);
        none ->
            case persistent_term:get(?FALLBACKS, none) of
                none -> ok;
                Counter -> counters:add(Counter, 1, 1)
            end
    end.

-spec fallbacks() -> non_neg_integer().
fallbacks() ->
    case persistent_term:get(?FALLBACKS, none) of
        none -> 0;
        Counter -> counters:get(Counter, 1)
    end.
