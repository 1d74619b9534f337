%% What a refused sender does.
%%
%% It learns that there are no lanes now, and falls back to plain distribution. Or it waits at the
%% link until there is room, or until it is clear whether there are lanes. How long it waits at most
%% is its patience. If the node goes meanwhile, the message is lost.
%%
%% A process of Trunkline's own, in which a user's log handler sends, does not wait here. It uses
%% plain distribution: the link may be that process, or may wait for it.
%%
%% A sender may have a long mailbox. It waits for a reference that was made after those messages
%% came, so the runtime system need not search them.
-module(trunkline_refused).
-moduledoc false.

-include("trunkline_route.hrl").

-export([retry/6, await_session/2, try_again/3, count_nosuspend/1, await_room/4]).

-export_type([patience/0]).

%% How long to wait for room: not at all, or until a deadline.
-type patience() :: nosuspend | trunkline_deadline:deadline().
-type ticket() :: new | trunkline_waiters:ticket().

%% ms between two looks at the route table after the link itself has died.
-define(AGAIN, 1).
%% ms that a request waits for lanes, at most, if it could go by plain distribution.
-define(OPENING, 1000).
%% ms that a sender which must not be suspended waits while a node leaves, at most.
-define(CHANGE, 1000).

%% The level numbered Full has refused the calling process, whose lane is Ix. `again': it should try
%% once more, with that ticket. The other answers are those of trunkline_sender:hand_over/5.
-spec retry(trunkline_route:route(), Ix :: pos_integer(), Full :: pos_integer(),
            trunkline_gate:charge(), patience(), ticket()) ->
          {again, ticket()} | direct | unreachable | nosuspend | timeout.
retry(#route{gate = Gate, link = Link, stats = Stats}, Ix, Full, Charge, Patience, Ticket) ->
    case trunkline_gate:path(Gate) of
        direct ->
            direct;
        _ when Patience =:= nosuspend ->
            nosuspend;
        _ ->
            trunkline_stats:add(Stats, {lane, Ix}, waits, 1),
            wait_for_room(Link, Full, Charge, Ticket, Patience, Stats)
    end.

%% If the node goes meanwhile the message is lost, and counted.
wait_for_room(Link, Full, Charge, Ticket, Patience, Stats) ->
    case wait(Link, {room, Full, trunkline_gate:bytes(Charge), Ticket}, Patience) of
        {gone, Lost} ->
            trunkline_stats:add(Stats, peer, Lost, trunkline_gate:messages(Charge)),
            unreachable;
        Answer ->
            Answer
    end.

wait(Link, What, Patience) ->
    case trunkline_process:is_own() orelse trunkline_room:wait(Link, What, Patience) of
        true ->
            direct;
        down ->
            %% Another link takes over within milliseconds, and publishes
            %% another route.
            receive after ?AGAIN -> {again, new} end;
        Answer ->
            Answer
    end.

%% Waits until it is clear whether there are lanes to that node.
-spec await_session(node(), patience()) -> ok | direct | unreachable | nosuspend | timeout.
await_session(Node, Patience) ->
    case trunkline_route:lookup(Node) of
        none ->
            direct;
        #route{gate = Gate, link = Link} ->
            Answer = case trunkline_gate:path(Gate) of
                         direct -> await_opening(Node, Link, Patience);
                         _ when Patience =:= nosuspend -> nosuspend;
                         _ -> wait(Link, session, Patience)
                     end,
            case Answer of
                {again, _} -> ok;
                {gone, _} -> unreachable;
                _ -> Answer
            end
    end.

%% Messages go by plain distribution until the lanes are up. A request waits for the lanes, once the
%% peer has said that it will have some: that takes a round trip or two. By plain distribution the
%% reply could overtake what the server has sent before by its lanes, which may be up earlier than
%% ours.
await_opening(Node, Link, Patience) ->
    case trunkline_peers:lookup(Node) of
        #{state := opening} when Patience =/= nosuspend ->
            case wait(Link, session, min(Patience, trunkline_deadline:in(?OPENING))) of
                timeout ->
                    case trunkline_deadline:has_passed(Patience) of
                        true -> timeout;
                        false -> direct
                    end;
                Answer ->
                    Answer
            end;
        _ ->
            direct
    end.

%% While a node leaves, messages go neither by lane nor by plain distribution. That is no lack of
%% room, and with `!' it does not happen. So a sender that must not be suspended waits, too, for
%% CHANGE at most, and tries again: also if that is over since it was refused.
-spec try_again(HandOver :: fun(() -> Answer | nosuspend), node(),
                Charge :: fun(() -> trunkline_gate:charge())) -> Answer | nosuspend.
try_again(HandOver, Node, Charge) ->
    case HandOver() of
        nosuspend ->
            case await_change(Node, Charge()) of
                true -> HandOver();
                false -> nosuspend
            end;
        Answer ->
            Answer
    end.

await_change(Node, Charge) ->
    case trunkline_route:lookup(Node) of
        #route{gate = Gate, link = Link} = Route ->
            case trunkline_gate:path(Gate) of
                wait -> wait(Link, session, trunkline_deadline:in(?CHANGE)) =/= timeout;
                direct -> true;
                _ ->
                    Ix = level(self(), Charge, Route),
                    trunkline_gate:fill(Gate, Ix) < trunkline_route:limit(Ix, Route)
            end;
        none ->
            true
    end.

%% The calling process is told so.
-spec count_nosuspend(node()) -> ok.
count_nosuspend(Node) ->
    case trunkline_route:lookup(Node) of
        #route{lanes = Lanes, stats = Stats} ->
            trunkline_stats:add(Stats, {lane, ?LANE_OF(self(), Lanes)}, nosuspend, 1);
        none ->
            ok
    end.

%% Waits until there may be room for so much: at that level, or where a message of that sender goes.
-spec await_room(node(), Level :: pos_integer() | Sender :: pid(), trunkline_gate:charge(),
                 trunkline_deadline:deadline()) -> ok | direct | unreachable | timeout.
await_room(Node, Where, Charge, Deadline) ->
    case trunkline_route:lookup(Node) of
        none ->
            direct;
        #route{link = Link, stats = Stats} = Route ->
            Full = if is_integer(Where) -> Where;
                      true -> level(Where, Charge, Route)
                   end,
            case wait_for_room(Link, Full, Charge, new, Deadline, Stats) of
                {again, _} -> ok;
                Answer -> Answer
            end
    end.

%% Where a message of that sender goes.
level(Sender, Charge, #route{lanes = Lanes, large = Large}) when Charge < Large ->
    ?LANE_OF(Sender, Lanes);
level(_, _, Route) ->
    trunkline_route:bulk_ix(Route).
