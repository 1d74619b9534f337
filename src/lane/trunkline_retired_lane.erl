%% A lane that has retired (see trunkline_lanes): its session has ended in good order, and the link
%% does not use it any more. But callers at the peer may still wait for replies to it.
%%
%%     server ── reply ──> retired lane ── the lane of a later session, or plain `!' ──> caller
%%
%% It passes on what is for callers: replies, and news of servers. Both take the same way, so that
%% they stay in order. No process waits for anything else that still comes: a message is lost and
%% counted, and a command is dropped. The lane ends together with the retired inlets that serve
%% these callers. No process is linked to it.
-module(trunkline_retired_lane).
-moduledoc false.

-export([become/1, loop/1]).

-export_type([retired/0]).

-dialyzer({no_improper_lists, [handle/2, pass_on/4]}).

-type retired() :: #{ix := pos_integer(),
                     node := node(),
                     stats := trunkline_stats:stats(),
                     replies := trunkline_replies:replies(),
                     inlets := [pid()]}.

%% ms: after so long without a message it gives its memory back.
-define(QUIET, 1000).

%% For a lane whose backlog is empty.
-spec become(retired()) -> no_return().
become(#{inlets := Inlets} = R) ->
    lists:foreach(fun(Inlet) -> monitor(process, Inlet) end, Inlets),
    proc_lib:hibernate(?MODULE, loop, [R]).

-spec loop(retired()) -> ok | no_return().
loop(#{inlets := []}) ->
    ok;
loop(R) ->
    receive
        {system, From, Request} -> trunkline_process:system(From, Request, fun ?MODULE:loop/1, R);
        Message -> ?MODULE:loop(handle(Message, R))
    after ?QUIET -> proc_lib:hibernate(?MODULE, loop, [R])
    end.

handle([Place, Sender, {parcel, _, To} | Parcel], R) ->
    handle([Place, Sender, To | trunkline_parcel:unpack_sent(Parcel)], R);
handle([_, Sender, To | Message], #{node := Node, stats := Stats} = R) ->
    _ = case trunkline_command:is_news(To) of
            true -> pass_on(To, Message, Sender, R);
            false -> trunkline_leftovers:dispose([To], lost_queued, Node, Stats)
        end,
    R;
handle({[[alias | _] | {_, _, Agent} = Tag], Reply}, R) when is_pid(Agent) ->
    {Caller, {Pid, Server}, Agent} = trunkline_replies:request(Tag),
    ok = pass_on({reply, Caller, Pid}, Reply, Server, R),
    ok = trunkline_inlet:answered(Agent, [{Caller, Server}]),
    R;
handle({relay, Agent, Message}, R) ->
    Agent ! Message,
    R;
handle({'DOWN', _, process, Pid, _} = Down, #{replies := Replies, inlets := Inlets} = R) ->
    case trunkline_replies:event(Down, Replies) of
        unknown -> R#{inlets := lists:delete(Pid, Inlets)};
        Replies1 -> R#{replies := Replies1}
    end;
handle(Event, #{replies := Replies} = R)
  when element(1, element(1, Event)) =:= stopped; element(1, Event) =:= looked_through ->
    R#{replies := trunkline_replies:event(Event, Replies)};
%% Senders of long terms, and openers.
handle({ask, Ref, _, _}, R) ->
    Ref ! {Ref, no},
    R;
handle({answer, _, Answer}, R) ->
    ok = trunkline_in_turn:not_used(Answer),
    R;
handle({sent_plain, _}, #{ix := Ix, stats := Stats} = R) ->
    trunkline_stats:add(Stats, {lane, Ix}, messages, 1),
    R;
handle({fetch, _, _, {Opener, _}, _}, R) ->
    ok = trunkline_process:send_connected(Opener, missing),
    R;
%% What concerned the session.
handle(Late, R) when is_tuple(Late), tuple_size(Late) > 1 ->
    lists:member(element(1, Late), [ack, delivered, resumed, way, channel, timeout, unanswered,
                                    not_sent, probe, order])
        orelse trunkline_process:unexpected(?MODULE, Late),
    R;
handle(look, R) ->
    R;
handle(Unexpected, R) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    R.

%% If there are new lanes by now, it takes the lane of that sender's messages. (A very large reply
%% may still be under way by plain distribution then, and what its server sends next may overtake
%% it.)
pass_on(To, Message, Sender, #{node := Node, stats := Stats}) ->
    _ = case trunkline_route:lookup(Node) of
            none -> trunkline_leftovers:dispose([To | Message], direct, Node, Stats);
            Route -> trunkline_sender:force(Route, {To, Message}, Sender)
        end,
    ok.
