%% One message to many destinations.
%%
%% The message goes to each node once, encoded, with the list of its addressees there, as one entry
%% of the calling process's lane. The inlet decodes it, and delivers it to each addressee:
%%
%%     sender ── [Charge, Sender, {each, Addressees} | Encoded] ──> lane ══> inlet ──> receiver
%%                                                                            │ └────> receiver
%%                                                                            └──────> receiver
%%
%% The lane and the inlet are the same as for the process's other messages, so the order between the
%% sender and each receiver is kept. The caller encodes the message, once for all nodes. The lanes
%% encode the lists of addressees, which is what takes time. A large message is packed once, and
%% travels outside the lanes like any other.
%%
%% Local destinations, and the processes of a node without lanes, get a plain send each. Inboxes
%% (trunkline_inbox) get a send by lane each, because each of them has a gate.
-module(trunkline_multicast).
-moduledoc false.

-export([send/3, deliver/2, foldl/4, entry/2]).

-export_type([command/0]).

-dialyzer({no_improper_lists, [entry/2]}).

-type addressees() :: [trunkline_by_node:addressee()].
-type groups() :: #{node() => addressees()}.
-type destinations() :: [trunkline:destination()].
%% What travels in the place of an addressee. The message is encoded then.
-type command() :: {each, addressees()}.
-type not_sent() :: [{nosuspend | noconnect, destinations()}].

%% At most this many addressees are handed over together: meanwhile a lane does nothing else.
-define(TOGETHER, 16384).
%% A process is scheduled out after 4,000 reductions: after it has copied 256 kB. (Measured, with
%% other figures, too: docs/lab/tried.md.)
-define(WORDS_A_REDUCTION, 8).

-record(cast,
        {message :: term(),
         packed = none :: none | trunkline_sender:packed(),
         how :: trunkline_sender:how(),
         not_sent = [] :: not_sent()}).

%% Returns the destinations to which nothing was sent because there was no room, or no connection,
%% and the options forbid to wait, or to connect.
-spec send(groups(), term(), trunkline_sender:how()) -> not_sent().
send(Groups, Message, How) ->
    {Singles, Together} = singles(Groups),
    {Here, Others} = case maps:take(node(), Together) of
                         error -> {[], Together};
                         Taken -> Taken
                     end,
    lists:foreach(fun(To) -> trunkline_by_node:destination(To, node()) ! Message end, Here),
    Cast = rounds(maps:to_list(Others), #cast{message = Message, how = How}),
    #cast{not_sent = NotSent} = singly(Singles, Cast),
    NotSent.

%% Separates inboxes, each of which has a gate of its own, from all others.
singles(Groups) ->
    case trunkline_bounded:are_there() of
        false -> {[], Groups};
        true -> maps:fold(fun single/3, {[], #{}}, Groups)
    end.

single(Node, Addressees, {Singles, Groups}) ->
    IsBounded = fun(To) ->
                        Destination = trunkline_by_node:destination(To, Node),
                        trunkline_bounded:is_bounded(Destination)
                end,
    {Inboxes, Others} = lists:partition(IsBounded, Addressees),
    {destinations(Node, Inboxes) ++ Singles, Groups#{Node => Others}}.

singly(Destinations, #cast{message = Message, how = How} = Cast) ->
    lists:foldl(fun(To, C) ->
                        case trunkline_send:send(To, Message, How) of
                            ok -> C;
                            Why -> not_sent(Why, [To], C)
                        end
                end, Cast, Destinations).

not_sent(Why, Destinations, #cast{not_sent = NotSent} = Cast) ->
    Cast#cast{not_sent = case lists:keytake(Why, 1, NotSent) of
                             {value, {Why, Others}, Rest} -> [{Why, Destinations ++ Others} | Rest];
                             false -> [{Why, Destinations} | NotSent]
                         end}.

%% All nodes get their first part before any gets its second, which may have to wait for room.
rounds([], Cast) ->
    Cast;
rounds(Groups, Cast) ->
    {Later, Cast1} = lists:mapfoldl(fun part/2, Cast, Groups),
    rounds(lists:append(Later), Cast1).

part({_, []}, Cast) ->
    {[], Cast};
part({Node, Addressees}, Cast) ->
    case trunkline_route:lookup(Node) of
        none -> {[], singly(destinations(Node, Addressees), Cast)};
        Route -> together(Node, Addressees, pack(Route, Cast))
    end.

destinations(Node, Addressees) -> [trunkline_by_node:destination(To, Node) || To <- Addressees].

together(Node, Addressees, #cast{packed = Packed, how = How} = Cast) ->
    {Part, N, Rest} = split(Addressees, length(Addressees)),
    case hand_over(Node, Part, N, Packed, How) of
        direct -> {[], singly(destinations(Node, Addressees), Cast)};
        nosuspend ->
            ok = trunkline_refused:count_nosuspend(Node),
            {[], not_sent(nosuspend, destinations(Node, Addressees), Cast)};
        noconnect ->
            {[], not_sent(noconnect, destinations(Node, Addressees), Cast)};
        _ ->
            {[{Node, Rest} || Rest =/= []], Cast}              % or it was lost, and counted
    end.

hand_over(Node, Part, N, Packed, How) ->
    trunkline_refused:try_again(
      fun() -> trunkline_sender:hand_over_packed(Node, {each, Part}, N, Packed, How) end,
      Node, fun() -> trunkline_sender:packed_charge(Packed, N) end).

split(Addressees, N) when N =< ?TOGETHER ->
    {Addressees, N, []};
split(Addressees, _) ->
    {Part, Rest} = lists:split(?TOGETHER, Addressees),
    {Part, ?TOGETHER, Rest}.

%% Packs the message when the first node needs that.
pack(Route, #cast{packed = none, message = Message} = Cast) ->
    Cast#cast{packed = trunkline_sender:pack(Route, Message)};
pack(_, Cast) ->
    Cast.

%% --- at the other end -----------------------------------------------------------

%% (A flat term to one process comes in this form, too.)
-spec deliver(addressees(), term()) -> ok.
deliver(Addressees, Message) ->
    foldl(fun(To, ok) -> trunkline_process:deliver(To, Message) end, ok, Addressees, Message).

%% Calls Deliver for each addressee. Each copy of the message counts as work of the calling process.
%% So receivers get to run before much has queued up: a garbage collection copies all that is in its
%% process's mailbox.
-spec foldl(fun((trunkline_by_node:addressee(), Acc) -> Acc), Acc, addressees(), term()) -> Acc.
foldl(Deliver, Acc0, Addressees, Message) ->
    Reductions = erts_debug:flat_size(Message) div ?WORDS_A_REDUCTION,
    lists:foldl(fun(To, Acc) ->
                        Reductions =:= 0 orelse erlang:bump_reductions(Reductions),
                        Deliver(To, Acc)
                end, Acc0, Addressees).

%% The entry of a batch that brings this message: to one, or to each of many.
-spec entry(trunkline_lane:to(), term()) -> trunkline_lane:entry().
entry({each, _} = To, Message) -> [To | term_to_binary(Message)];
entry(To, Message) -> [To | Message].
