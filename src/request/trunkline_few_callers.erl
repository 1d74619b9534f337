%% Requests past the lanes, while few callers call at a time.
%%
%% Each lane and each inlet is one more process that has to be woken. For many callers it is worth
%% it, because of the batches; for a few it is not. So their requests go straight to the agent, an
%% inlet, and the replies straight from the server's lane:
%%
%%     caller                 agent               server               lane
%%       | ── the request ──────> | -- request -----> | -- reply -------> |
%%       | <──────────────────────────────────────── the reply, by `!' ── |
%%
%% The request may do so if nothing is ahead of it (trunkline_bypass), and the reply if nothing is
%% in flight. Otherwise they go by lane, and are acknowledged at once, so that the next ones may.
%% The agent also delivers what comes by lane, so the request keeps its place, wherever the mailbox
%% of the server is. The reply does if its caller's mailbox is on the heap. (News that the server
%% has ended, which comes from an inlet, may overtake it otherwise.)
%%
%% How many calls are few says trunkline_concurrency.
-module(trunkline_few_callers).
-moduledoc false.

-include("../gate/trunkline_route.hrl").

-export([started/2, hand_over/5]).

%% A call begins that stands for N, as to how many are under way. Only some are measured, and none
%% that may have a plain reply: these take long.
-spec started(plain | by_lane, N :: non_neg_integer()) -> trunkline_concurrency:time() | none.
started(by_lane, N) when N > 0 -> trunkline_concurrency:clock();
started(_, _) -> none.

%% Hands over the request of a call, for which its caller waits, and watches that inlet, as
%% trunkline_sender:hand_over/5 does. Returns which way it has gone, `bypass' for past the
%% lane. Then trunkline_plain_call:ended/4 must follow. (It may for a call by lane, if that is
%% measured.)
-spec hand_over(node(), Inlet :: pid(), trunkline_command:command(), Request :: term(),
                trunkline_deadline:deadline()) -> lane | bypass | direct | unreachable | timeout.
hand_over(Node, Inlet, Command, Request, Deadline) ->
    case trunkline_command:past(Command) of
        none ->
            by_lane(Node, Command, Request, Deadline);
        Past ->
            case send(trunkline_route:lookup(Node), Inlet, Past, Request) of
                ok -> bypass;
                no -> by_lane(Node, Command, Request, Deadline);
                not_now -> by_lane(Node, next_may(Node, Past, Command), Request, Deadline)
            end
    end.

by_lane(Node, Command, Request, Deadline) ->
    case trunkline_sender:hand_over(Node, Command, Request, Deadline, connect) of
        ok -> lane;
        Refused -> Refused
    end.

%% The lane acknowledges the one that could go past it.
next_may(Node, Past, Command) ->
    case trunkline_peers:takes_turns(Node) of
        true -> Past;
        false -> Command
    end.

%% `no': nor may the next one.
send(#route{concurrency = Concurrency} = Route, Inlet, Past, Request) ->
    case trunkline_concurrency:bypass(false, Concurrency) of
        true ->
            case send_few(Route, Inlet, Past, Request) of
                ok -> ok;
                Not -> ok = trunkline_concurrency:bypassed(Concurrency), Not
            end;
        false ->
            no
    end;
send(none, _, _, _) ->
    no.

%% (A server that is watched must say what it sends: trunkline_owed.)
send_few(#route{lanes = Lanes, bypass = Bypass, stats = Stats} = Route, Inlet, Past, Request) ->
    Ix = ?LANE_OF(self(), Lanes),
    case trunkline_in_turn:is_near(Stats) andalso trunkline_process:is_on_heap(self())
        andalso not trunkline_owed:is_watched(Ix, Bypass)
        andalso trunkline_shape:weight(Request) =:= light
        andalso send_light(Route, Ix, Inlet, Past, Request) of
        ok ->
            ok;
        no ->
            case trunkline_bypass:is_marked(Bypass) of
                true -> no;
                false -> not_now
            end;
        false ->
            no
    end.

send_light(#route{large = Large} = Route, Ix, Inlet, Past, Request) ->
    Charge = trunkline_gate:charge(Request),
    trunkline_in_turn:is_whole(Charge, Large)
        andalso trunkline_in_turn:send_request(Route, Ix, Inlet, Past, Request, Charge).
