%% Calls of trunkline_erpc that go by plain distribution, past the lanes.
%%
%% A call may do so if everything that its caller has sent before has been delivered. Its executor
%% (trunkline_executor) ends, with the outcome as its exit reason, when all that it has sent itself
%% has been delivered. So these calls keep their order with what goes by lane.
%%
%% That is as fast as a lane, or faster, for long calls, and while few callers call at a time
%% (trunkline_concurrency). Large binaries travel as large messages. An outcome that would keep the
%% distribution busy is sent as a message instead, because the distribution takes an exit reason as
%% a whole (trunkline_in_turn).
-module(trunkline_plain_call).
-moduledoc false.

-include("../gate/trunkline_route.hrl").

-export([start/2, came/1, ended/4, may_end_with/2, await_delivery/2]).

%% Bytes of a long call. For that the lanes are no better, however many callers there are.
-define(LONG, 4096).
%% ms between two looks at whether everything has been delivered.
-define(AGAIN, 1).

%% Whether the calling process should make a call to that node by the distribution: everything that
%% it has sent before has been delivered, and no lane is better. If so the call begins, with a
%% message of about that many bytes. ended/4 follows when a call has ended.
-spec start(node(), Message :: term()) -> {true, Bytes :: non_neg_integer()} | false.
start(Node, Message) ->
    case trunkline_route:lookup(Node) of
        #route{lanes = Lanes, gate = Gate, bypass = Bypass, stats = Stats} = Route ->
            Ix = ?LANE_OF(self(), Lanes),
            trunkline_bypass:may(Gate, Ix, 0, Bypass)
                andalso trunkline_in_turn:is_near(Stats)
                andalso start(trunkline_shape:size(Message), Message, Ix, Route);
        none ->
            false
    end.

start(Size, Message, Ix, #route{stats = Stats, concurrency = Concurrency} = Route) ->
    Bytes = trunkline_gate:bytes(trunkline_shape:charge(Size)),
    case is_suited(Size, Message, Route)
        andalso trunkline_concurrency:bypass(Bytes >= ?LONG, Concurrency) of
        true ->
            ok = count(Stats, Ix, Bytes),
            {true, Bytes};
        false ->
            false
    end.

count(Stats, Ix, Bytes) ->
    trunkline_stats:add(Stats, {lane, Ix}, messages, 1),
    trunkline_stats:add(Stats, {lane, Ix}, bytes, Bytes).

%% Counts the outcome of a call that has come from that node by plain distribution.
-spec came(node()) -> ok.
came(Node) ->
    case trunkline_route:lookup(Node) of
        #route{} = Route -> count_received(Route);
        none -> ok
    end.

count_received(#route{lanes = Lanes, stats = Stats}) ->
    trunkline_stats:add(Stats, {lane, ?LANE_OF(self(), Lanes)}, received_messages, 1).

%% A call to that node has ended, whichever way it went. It stands for N of them. Started is when it
%% began; `none': it is not measured.
-spec ended(node(), bypass | lane, N :: non_neg_integer(), trunkline_concurrency:time() | none) ->
          ok.
ended(Node, Way, N, Started) ->
    case trunkline_route:lookup(Node) of
        #route{concurrency = Concurrency} ->
            _ = Way =:= bypass andalso trunkline_concurrency:bypassed(Concurrency),
            _ = Started =:= none
                orelse trunkline_concurrency:ended(N, Started, trunkline_concurrency:clock(),
                                                   Concurrency),
            ok;
        none ->
            ok
    end.

%% Whether the exit reason of an executor may tell that node the outcome. If so it does.
-spec may_end_with(Outcome :: term(), node()) -> boolean().
may_end_with(Outcome, Node) ->
    case trunkline_route:lookup(Node) of
        #route{lanes = Lanes, stats = Stats} = Route ->
            ok = count_received(Route),                  % the call
            Size = trunkline_shape:size(Outcome),
            Charge = trunkline_shape:charge(Size),
            case trunkline_in_turn:may_go_at_once(Charge)
                andalso is_suited(Size, Outcome, Route) of
                true ->
                    ok = count(Stats, ?LANE_OF(self(), Lanes), trunkline_gate:bytes(Charge)),
                    true;
                false ->
                    false
            end;
        none ->
            true
    end.

is_suited(Size, Message, #route{large = Large}) ->
    trunkline_shape:charge(Size) < Large orelse trunkline_shape:kind(Size, Message) =:= terms.

%% Waits until everything has been delivered that the calling process has sent to that node, or is
%% lost. Or for so many milliseconds.
-spec await_delivery(node(), timeout()) -> ok | timeout.
await_delivery(Node, Time) ->
    await(Node, trunkline_deadline:in(Time)).

await(Node, Deadline) ->
    case trunkline_route:lookup(Node) of
        #route{lanes = Lanes, gate = Gate, bypass = Bypass} ->
            Ix = ?LANE_OF(self(), Lanes),
            case trunkline_bypass:may(Gate, Ix, 0, Bypass)
                orelse lists:member(trunkline_gate:path(Gate), [direct, down])
                orelse trunkline_in_turn:await(element(Ix, Lanes), Ix, Bypass, Deadline)
                orelse not trunkline_peers:takes_turns(Node) of
                true ->
                    ok;
                false ->
                    case trunkline_deadline:left(Deadline) of
                        0 -> timeout;
                        _ -> receive after ?AGAIN -> await(Node, Deadline) end
                    end
            end;
        none ->
            ok
    end.
