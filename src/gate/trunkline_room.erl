%% The waiting room of a link: senders wait here for room in a lane, or until it is clear
%% whether there are lanes at all.
%%
%%     sender                          link                        lane
%%       | -- wait, {room, Ix, Bytes} --> |                           |
%%       |                                | sets the mark of the gate |
%%       |                                |   (trunkline_gate:await)  |
%%       |                                | <------------ {room, Ix} -| below half of
%%       | <------------- again, ticket - |                           | the limit
%%       | tries the gate; if it is overtaken it waits again, with its ticket
%%
%% A lane reports room only when it is below half of its limit. So a sender that goes on gets more
%% than one message in before it must wait again. A sender that gives up tells the link. A sender
%% that is killed does not, and the room that it was offered stays unused. So the link checks from
%% time to time, and if a lane is empty while senders wait for it, wakes all of them. If others come
%% so fast that a lane does not get below half, those that wait would wait for ever. Then the link
%% closes its gate, as if it were full, until it is below half.
%%
%% The number of waiting senders and their waiting times are counted here, not by the senders
%% (trunkline_wait_time). So the counts are right while they wait. One that is killed counts until
%% its turn comes.
-module(trunkline_room).
-moduledoc false.

-include("trunkline_route.hrl").

-export([wait/3, offer/2]).
-export([new/1, add/4, remove/3, is_awaited/1, release/3, recheck/2, dismiss/2, answer/2]).

-export_type([room/0, answer/0, lost/0]).

%% So often the link looks while senders wait and no room is reported, before it closes the gate.
-define(PASSED, 5).

-type what() :: session
              | {room, Ix :: pos_integer() | Inbox :: pid(), Bytes :: pos_integer(),
                 new | trunkline_waiters:ticket()}.
-type answer() :: {again, new | trunkline_waiters:ticket()}   % it makes sense to try again
                | {gone, lost()}.                             % the node of the message is gone
%% The counter of such losses.
-type lost() :: lost_queued | lost_unreachable.

-record(room,
        {stats :: trunkline_stats:stats(),
         lanes = #{} :: #{pos_integer() => trunkline_waiters:waiters()},
         passed = #{} :: #{pos_integer() => {Looks :: pos_integer(), trunkline_gate:gate()}},
         counts = #{} :: #{pos_integer() => {trunkline_stats:scope(),
                                             trunkline_wait_time:wait_time()}},
         %% The level of large messages at the last look, if nothing else was there.
         rest = none :: none | integer(),
         session = #{} :: #{reference() => []}}).
-opaque room() :: #room{}.

%% --- for a sender -----------------------------------------------------------

%% `down': the link has died. `timeout': the deadline has passed.
-spec wait(Where :: pid() | atom(), what(), trunkline_deadline:deadline()) ->
          answer() | timeout | down.
wait(Where, {room, Level, Bytes, _} = What, Deadline) ->
    Since = erlang:monotonic_time(),
    Answer = await(Where, What, Deadline),
    trunkline_events:are_wanted()
        andalso trunkline_events:execute([sender, wait],
                                         #{duration => erlang:monotonic_time() - Since,
                                           bytes => Bytes},
                                         (full(Where, Level))#{result => result(Answer)}),
    Answer;
wait(Where, session, Deadline) ->
    await(Where, session, Deadline).

%% What was full.
full(_, Inbox) when is_pid(Inbox) ->
    #{peer => node(Inbox), cargo => inbox, inbox => Inbox};
full(Link, Ix) ->
    Node = trunkline_peers:of_link(Link),
    #{peer => Node, inbox => undefined,
      cargo => case trunkline_route:lookup(Node) of
                   #route{lanes = Lanes} when Ix > tuple_size(Lanes) -> large;
                   _ -> batches
               end}.

result({gone, _}) -> lost;
result(timeout) -> timeout;
result(_) -> ok.

await(Where, What, Deadline) ->
    {Answer, _} = trunkline_process:ask(Where, fun(Ref) -> {wait, Ref, What} end,
                                        fun(Ref) -> {unwait, Ref, What} end,
                                        trunkline_deadline:left(Deadline)),
    Answer.

%% --- for a lane --------------------------------------------------------------

%% There is room at that level, and a sender waits for it.
-spec offer(Link :: pid(), Level :: pos_integer()) -> ok.
offer(Link, Ix) ->
    Link ! {room, Ix},
    ok.

%% --- for the link -----------------------------------------------------------

%% No sender waits, whatever the counters say: they may be left from a link that was killed.
-spec new(trunkline_stats:stats()) -> room().
new(Stats) ->
    ok = trunkline_stats:put(Stats, peer, large_waiting, 0),
    ok = trunkline_stats:clear(Stats, waiting),
    #room{stats = Stats}.

-spec add(Waiter :: reference(), what(), trunkline_route:route() | none, room()) -> room().
add(Ref, session, _, #room{session = Session} = R) ->
    R#room{session = Session#{Ref => []}};
add(Ref, {room, Ix, Bytes, Ticket}, #route{lanes = All}, #room{lanes = Lanes} = R) ->
    Scope = case Ix =< tuple_size(All) of
                true -> {lane, Ix};
                false -> peer
            end,
    Waiters = maps:get(Ix, Lanes, trunkline_waiters:new()),
    set(Ix, trunkline_waiters:add(Ref, Ticket, Bytes, Waiters), counted_in(Ix, Scope, R)).

-spec remove(Waiter :: reference(), what(), room()) -> room().
remove(Ref, session, #room{session = Session} = R) ->
    R#room{session = maps:remove(Ref, Session)};
remove(Ref, {room, Ix, _, _}, #room{lanes = Lanes} = R) when is_map_key(Ix, Lanes) ->
    set(Ix, trunkline_waiters:remove(Ref, maps:get(Ix, Lanes)), R);
remove(_, _, R) ->
    R.

%% These senders wait at that level.
set(Ix, Waiters, #room{lanes = Lanes} = R) ->
    R1 = count(Ix, R#room{lanes = Lanes#{Ix => Waiters}}),
    case trunkline_waiters:is_empty(Waiters) of
        true -> open(Ix, R1);
        false -> R1
    end.

%% (Only the link closes a gate while the path is open.)
open(Ix, #room{passed = Passed} = R) ->
    _ = [trunkline_gate:open(Gate, Ix) || #{Ix := {_, Gate}} <- [Passed], is_open(Gate)],
    R#room{passed = maps:remove(Ix, Passed)}.

is_open(Gate) -> trunkline_route:is_open(trunkline_gate:path(Gate)).

%% How full it is. What a session has closed is beyond any limit.
fill(Ix, Gate) ->
    case is_open(Gate) of
        true -> trunkline_gate:level(Gate, Ix);
        false -> trunkline_gate:fill(Gate, Ix)
    end.

%% The waiting senders have been looked at, and none could go on.
passed(Ix, Gate, #room{passed = Passed} = R) ->
    Looks = case Passed of
                #{Ix := {Before, Gate}} -> Before + 1;
                #{} -> 1
            end,
    _ = Looks >= ?PASSED andalso is_open(Gate) andalso trunkline_gate:close(Gate, Ix),
    R#room{passed = Passed#{Ix => {Looks, Gate}}}.

%% If there are fewer lanes than there were, the level of large messages has another number.
counted_in(Ix, Scope, #room{stats = Stats, counts = Counts} = R) ->
    case Counts of
        #{Ix := {Scope, _}} ->
            R;
        #{} ->
            _ = [trunkline_wait_time:set(0, Before) || #{Ix := {_, Before}} <- [Counts]],
            Count = trunkline_wait_time:new(Stats, Scope, fields(Scope)),
            R#room{counts = Counts#{Ix => {Scope, Count}}}
    end.

fields(peer) -> {large_waiting, large_wait_time};
fields({lane, _}) -> {waiting, wait_time}.

count(Ix, #room{counts = Counts, lanes = Lanes} = R) ->
    #{Ix := {Scope, Count}} = Counts,
    Waiting = trunkline_waiters:size(maps:get(Ix, Lanes)),
    R#room{counts = Counts#{Ix := {Scope, trunkline_wait_time:set(Waiting, Count)}}}.

%% Whether any sender waits for room.
-spec is_awaited(room()) -> boolean().
is_awaited(#room{lanes = Lanes}) ->
    not lists:all(fun trunkline_waiters:is_empty/1, maps:values(Lanes)).

%% Wakes the senders that fit into lane Ix.
-spec release(pos_integer(), trunkline_route:route() | none, room()) -> room().
release(Ix, #route{gate = Gate, lanes = All} = Route, #room{lanes = Lanes} = R)
  when is_map_key(Ix, Lanes), Ix =< tuple_size(All) + 1 ->
    Waiters = maps:get(Ix, Lanes),
    Limit = trunkline_route:limit(Ix, Route),
    %% First the mark, then the level: if a message leaves in between, the lane sees the mark.
    trunkline_waiters:is_empty(Waiters) orelse trunkline_gate:await(Gate, Ix, true),
    case fill(Ix, Gate) of
        Level when Level < Limit div 2 ->
            R1 = open(Ix, R),
            Room = trunkline_gate:bytes(Limit - Level),
            {Released, Waiters1} = trunkline_waiters:release(Room, Waiters),
            lists:foreach(fun(Waiter) -> tell(again, Waiter) end, Released),
            trunkline_waiters:is_empty(Waiters1) andalso trunkline_gate:await(Gate, Ix, false),
            set(Ix, Waiters1, R1);
        _ ->
            count(Ix, R)
    end;
release(_, _, R) ->
    R.

%% Called from time to time, for all lanes.
-spec recheck(trunkline_route:route() | none, room()) -> room().
recheck(none, R) ->
    R;
recheck(#route{gate = Gate, lanes = All} = Route, #room{lanes = Lanes} = R0) ->
    R = mend(Route, R0),
    lists:foldl(fun(Ix, R1) when Ix =< tuple_size(All) + 1 -> recheck(Ix, Gate, Route, R1);
                   (_, R1) -> R1
                end, R, maps:keys(Lanes)).

recheck(Ix, Gate, Route, #room{lanes = Lanes} = R) ->
    #{Ix := Waiters} = Lanes,
    case fill(Ix, Gate) =< 0 of
        true ->
            set(Ix, tell_all(again, Waiters), R);
        false ->
            #room{lanes = #{Ix := Waiters1}} = R1 = release(Ix, Route, R),
            case trunkline_waiters:size(Waiters1) =:= trunkline_waiters:size(Waiters)
                andalso not trunkline_waiters:is_empty(Waiters) of
                true -> passed(Ix, Gate, R1);
                false -> R1
            end
    end.

%% What killed senders have left behind of the level of large messages. (The lanes look after their
%% own levels.)
mend(#route{gate = Gate} = Route, #room{lanes = Lanes, rest = Rest} = R) ->
    Bulk = trunkline_route:bulk_ix(Route),
    case is_map_key(Bulk, Lanes) andalso is_idle(Route)
        andalso trunkline_gate:mend(Gate, Bulk, Rest) of
        {look, Level} -> R#room{rest = Level};
        _ -> R#room{rest = none}
    end.

is_idle(#route{stats = Stats} = Route) ->
    InFlight = fun(Ix) -> trunkline_stats:get(Stats, {lane, Ix}, in_flight_messages) end,
    lists:all(fun({Ix, Level}) -> Level =:= 0 andalso InFlight(Ix) =:= 0 end,
              trunkline_route:levels(Route)).

%% Ends all waiting: the senders should try `again', or their messages were for a
%% node that is gone.
-spec dismiss(again | {gone, lost()}, room()) -> room().
dismiss(Answer, #room{lanes = Lanes, session = Session} = R) ->
    lists:foreach(fun(Ref) -> tell(Answer, {Ref, new}) end, maps:keys(Session)),
    maps:fold(fun(Ix, Waiters, R1) -> set(Ix, tell_all(Answer, Waiters), R1) end,
              R#room{session = #{}}, Lanes).

tell_all(Answer, Waiters) ->
    {All, None} = trunkline_waiters:release_all(Waiters),
    lists:foreach(fun(Waiter) -> tell(Answer, Waiter) end, All),
    None.

tell(again, {Ref, Ticket}) -> answer(Ref, {again, Ticket});
tell({gone, _} = Answer, {Ref, _}) -> answer(Ref, Answer).

-spec answer(Waiter :: reference(), answer()) -> ok.
answer(Ref, Answer) ->
    Ref ! {Ref, Answer},
    ok.
