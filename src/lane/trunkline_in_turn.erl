%% Sends a long term by plain distribution, when its turn has come.
%%
%% For a long term that is no binary no way is better than `!': the sender encodes it, the receiver
%% decodes it, both with the distribution's atom cache, and no process in between copies it. To
%% keep its order the sender first asks for its turn:
%%
%%     sender            lane                    inlet          receiver
%%       | -- ask -------> | ══ turn ═════════════> |               |
%%       |                 | <-------------------go |               |
%%       | <-----------go  |                        |               |
%%       | ─────────────── the message, by `!' ───────────────────> |
%%       | -- sent ------> | ══ plain ════════════> |               |
%%
%% The lane answers by itself if nothing is in flight in it, so that a stream of long terms costs no
%% round trips between the nodes. Otherwise the question travels in the lane like a message to the
%% receiver, and is answered when everything has been delivered that the sender has sent to it
%% before. What the sender sends afterwards is in a batch that comes behind the message: the lane's
%% next batch begins with the command `plain', and goes by the distribution. When the batch is
%% acknowledged, the message has arrived. If it is lost with the connection, the message counts as
%% lost, too. (If there is no other batch, the lane sends one with nothing else, within a second.)
%%
%% The message and the lane's messages are put into the receiver's mailbox by two processes, so the
%% mailbox must be on the heap (see trunkline_opener). The answer is `no' if it is not, or if the
%% receiver has an inbox. Then the term goes by lane, or as a large message. So it does to a far
%% peer, whose distance one connection does not bridge well, and in a session that may outlive its
%% connection, because a message of the distribution does not.
-module(trunkline_in_turn).
-moduledoc false.

-include("trunkline_route.hrl").

-export([is_suited/3, send/6, answer/4]).
-export([look/3]).

%% Bytes. A shorter term is as fast by lane. A longer one would hold up everything behind it on the
%% distribution.
-define(FROM, 16000).
-define(MOST, 2_100_000).
%% ms that a sender waits for its turn.
-define(WAIT, 100).

%% Whether a term of that size may be sent so to that peer.
-spec is_suited(node(), trunkline_route:route(), trunkline_gate:charge()) -> boolean().
is_suited(Node, #route{gate = Gate, stats = Stats}, Charge) ->
    Bytes = trunkline_gate:bytes(Charge),
    Bytes >= ?FROM andalso Bytes =< ?MOST
        andalso trunkline_gate:path(Gate) =:= lanes
        andalso trunkline_peers:can(Node, turn)
        andalso not trunkline_peers:resumes(Node)
        andalso not trunkline_distance:is_far(trunkline_stats:get(Stats, peer, round_trip)).

%% `no': it was not sent, and has to go another way.
-spec send(trunkline_route:route(), Ix :: pos_integer(), node(), To :: pid() | atom(), term(),
           trunkline_gate:charge()) -> ok | no.
send(#route{lanes = Lanes, stats = Stats}, Ix, Node, To, Message, Charge) ->
    Lane = element(Ix, Lanes),
    case ask(Lane, To) of
        {go, Ref} ->
            case erlang:send(trunkline_by_node:destination(To, Node), Message, [noconnect]) of
                ok ->
                    trunkline_stats:add(Stats, {lane, Ix}, bytes, trunkline_gate:bytes(Charge)),
                    sent_plain(Lane, Ref);
                noconnect ->
                    Lane ! {not_sent, Ref},
                    no
            end;
        no ->
            no
    end.

sent_plain(Lane, Ref) ->
    Lane ! {sent_plain, Ref},
    ok.

ask(Lane, To) ->
    Ref = monitor(process, Lane, [{alias, reply_demonitor}]),
    Lane ! {ask, Ref, self(), To},
    receive
        {Ref, go} -> {go, Ref};
        {Ref, no} -> no;
        {'DOWN', Ref, process, _, _} -> no
    after ?WAIT ->
            demonitor(Ref, [flush]),
            receive {Ref, go} -> {go, Ref};
                    {Ref, no} -> no
            after 0 ->
                    Lane ! {not_sent, Ref},
                    no
            end
    end.

%% The inlet has come to a question. `go': the receiver's mailbox is known to be on the heap.
-spec answer(Lane :: pid(), reference(), To :: pid() | atom(), go | look) -> ok.
answer(Lane, Ref, To, What) ->
    case trunkline_bounded:may_be(To) of
        true ->
            tell(Lane, Ref, no);
        false when What =:= go ->
            tell(Lane, Ref, go);
        false ->
            %% A process that does not get to run does not answer process_info/2.
            case trunkline_process:start(fun() -> spawn(?MODULE, look, [Lane, Ref, To]) end) of
                {ok, _} -> ok;
                {error, system_limit} -> tell(Lane, Ref, no)
            end
    end.

-spec look(Lane :: pid(), reference(), To :: pid() | atom()) -> ok.
look(Lane, Ref, Name) when is_atom(Name) ->
    case whereis(Name) of
        Pid when is_pid(Pid) -> look(Lane, Ref, Pid);
        _ -> tell(Lane, Ref, no)
    end;
look(Lane, Ref, To) ->
    IsOnHeap = process_info(To, message_queue_data) =:= {message_queue_data, on_heap},
    tell(Lane, Ref, case IsOnHeap andalso not trunkline_bounded:may_be(To) of
                        true -> go;
                        false -> no
                    end).

tell(Lane, Ref, Answer) ->
    _ = erlang:send(Lane, {answer, Ref, Answer}, [noconnect]),
    ok.
