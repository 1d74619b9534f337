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
%% closes its gate, as if it were full, until it is below half, and has the lane look for charges of
%% killed senders.
%%
%% The number of waiting senders and their waiting times are counted here, not by the senders
%% (trunkline_wait_time). So the counts are right while they wait. One that is killed counts until
%% its turn comes.
-module(trunkline_room).
-moduledoc false.

-include("trunkline_route.hrl").

-export([wait/3, offer/2]).
-export([new/1, add/4, remove/3, is_awaited/1, release/3, recheck/2, wake/2, dismiss/2, answer/2]).

-export_type([room/0, what/0, answer/0, lost/0]).

%% So often the link looks while senders wait and no room is reported, before it closes the gate.
-define(PASSED, 5).

-type what() :: session
              | {room, Ix :: pos_integer() | Inbox :: pid(), Bytes :: pos_integer(),
                 new | trunkline_waiters:ticket()}.
-type answer() :: {again, new | trunkline_waiters:ticket()}   % it makes sense to try again
                | {gone, lost()}.                             % the node of the message is gone
%% The counter of such losses.
-type lost() :: lost_queued | lost_unreachable.

-record(level,
        {waiters = trunkline_waiters:new() :: trunkline_waiters:waiters(),
         wait_time :: trunkline_wait_time:wait_time(),
         %% How often the waiting senders have been looked at since one of them could go on.
         passed = none :: none | {Looks :: pos_integer(), trunkline_gate:gate()}}).
-record(room,
        {stats :: trunkline_stats:stats(),
         levels = #{} :: #{Ix :: pos_integer() => #level{}},
         %% The level of large messages at the last look, if nothing else was there.
         rest = none :: none | integer(),
         session = #{} :: #{reference() => []}}).
-opaque room() :: #room{}.

%% --- for a sender -----------------------------------------------------------

%% `down': the link has died. `timeout': the deadline has passed.
-spec wait(Where :: pid() | {Name :: atom(), node()}, what(), trunkline_deadline:deadline()) ->
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
add(Ref, {room, Ix, Bytes, Ticket}, #route{lanes = All}, #room{levels = Levels} = R) ->
    #level{waiters = Waiters} = Level =
        case Levels of
            #{Ix := Known} -> Known;
            #{} -> #level{wait_time = wait_time(Ix, tuple_size(All), R#room.stats)}
        end,
    Added = trunkline_waiters:add(Ref, Ticket, Bytes, Waiters),
    R#room{levels = Levels#{Ix => set(Ix, Added, Level)}}.

wait_time(Ix, Lanes, Stats) when Ix =< Lanes ->
    trunkline_wait_time:new(Stats, {lane, Ix}, {waiting, wait_time});
wait_time(_, _, Stats) ->
    trunkline_wait_time:new(Stats, peer, {large_waiting, large_wait_time}).

-spec remove(Waiter :: reference(), what(), room()) -> room().
remove(Ref, session, #room{session = Session} = R) ->
    R#room{session = maps:remove(Ref, Session)};
remove(Ref, {room, Ix, _, _}, #room{levels = Levels} = R) when is_map_key(Ix, Levels) ->
    #{Ix := #level{waiters = Waiters} = Level} = Levels,
    R#room{levels = Levels#{Ix := set(Ix, trunkline_waiters:remove(Ref, Waiters), Level)}};
remove(_, _, R) ->
    R.

%% These senders wait at that level.
set(Ix, Waiters, Level) ->
    Counted = count(Level#level{waiters = Waiters}),
    case trunkline_waiters:is_empty(Waiters) of
        true -> open(Ix, Counted);
        false -> Counted
    end.

count(#level{waiters = Waiters, wait_time = Time} = Level) ->
    Level#level{wait_time = trunkline_wait_time:set(trunkline_waiters:size(Waiters), Time)}.

%% (Only the link closes a gate while the path is open.)
open(Ix, #level{passed = Passed} = Level) ->
    _ = [trunkline_gate:open(Gate, Ix) || {_, Gate} <- [Passed], is_open(Gate)],
    Level#level{passed = none}.

is_open(Gate) -> trunkline_route:is_open(trunkline_gate:path(Gate)).

%% How full it is. What a session has closed is beyond any limit.
fill(Ix, Gate) ->
    case is_open(Gate) of
        true -> trunkline_gate:level(Gate, Ix);
        false -> trunkline_gate:fill(Gate, Ix)
    end.

%% Whether any sender waits for room.
-spec is_awaited(room()) -> boolean().
is_awaited(#room{levels = Levels}) ->
    not lists:all(fun(#level{waiters = Waiters}) -> trunkline_waiters:is_empty(Waiters) end,
                  maps:values(Levels)).

%% Wakes the senders that fit into lane Ix.
-spec release(pos_integer(), trunkline_route:route() | none, room()) -> room().
release(Ix, #route{} = Route, #room{levels = Levels} = R) when is_map_key(Ix, Levels) ->
    R#room{levels = maps:update_with(Ix, fun(Level) -> released(Ix, Route, Level) end, Levels)};
release(_, _, R) ->
    R.

released(Ix, #route{gate = Gate} = Route, #level{waiters = Waiters} = Level) ->
    Limit = trunkline_route:limit(Ix, Route),
    %% First the mark, then the level: if a message leaves in between, the lane sees the mark.
    trunkline_waiters:is_empty(Waiters) orelse trunkline_gate:await(Gate, Ix, true),
    case fill(Ix, Gate) of
        Fill when Fill < Limit div 2 ->
            Opened = open(Ix, Level),
            Room = trunkline_gate:bytes(Limit - Fill),
            {Released, Left} = trunkline_waiters:release(Room, trunkline_waiters:size(Waiters),
                                                         Waiters),
            lists:foreach(fun(Waiter) -> tell(again, Waiter) end, Released),
            trunkline_waiters:is_empty(Left) andalso trunkline_gate:await(Gate, Ix, false),
            set(Ix, Left, Opened);
        _ ->
            count(Level)
    end.

%% Called from time to time, for all lanes.
-spec recheck(trunkline_route:route() | none, room()) -> room().
recheck(none, R) ->
    R;
recheck(Route, #room{levels = Levels} = R) ->
    Rest = mend(Route, R),
    R#room{rest = Rest,
           levels = maps:map(fun(Ix, Level) -> recheck(Ix, Route, Level) end, Levels)}.

recheck(Ix, #route{gate = Gate} = Route, #level{waiters = Waiters} = Level) ->
    case fill(Ix, Gate) =< 0 of
        true ->
            set(Ix, tell_all(again, Waiters), Level);
        false ->
            #level{waiters = Left} = Released = released(Ix, Route, Level),
            case trunkline_waiters:size(Left) =:= trunkline_waiters:size(Waiters)
                andalso not trunkline_waiters:is_empty(Waiters) of
                true -> passed(Ix, Route, Released);
                false -> Released
            end
    end.

%% The waiting senders have been looked at, and none could go on. The lane may be asleep, with what
%% killed senders have left behind in its level.
passed(Ix, #route{gate = Gate, lanes = Lanes}, #level{passed = Passed} = Level) ->
    Looks = case Passed of
                {Before, Gate} -> Before + 1;
                _ -> 1
            end,
    _ = Looks >= ?PASSED andalso is_open(Gate) andalso trunkline_gate:close(Gate, Ix),
    _ = Looks =:= ?PASSED andalso Ix =< tuple_size(Lanes) andalso (element(Ix, Lanes) ! look),
    Level#level{passed = {Looks, Gate}}.

%% What killed senders have left behind of the level of large messages. (The lanes look after their
%% own levels.)
mend(#route{gate = Gate} = Route, #room{levels = Levels, rest = Rest}) ->
    Bulk = trunkline_route:bulk_ix(Route),
    case is_map_key(Bulk, Levels) andalso is_idle(Route)
        andalso trunkline_gate:mend(Gate, Bulk, Rest) of
        {look, Level} -> Level;
        _ -> none
    end.

is_idle(#route{stats = Stats} = Route) ->
    InFlight = fun(Ix) -> trunkline_stats:get(Stats, {lane, Ix}, in_flight_messages) end,
    lists:all(fun({Ix, Level}) -> Level =:= 0 andalso InFlight(Ix) =:= 0 end,
              trunkline_route:levels(Route)).

%% Ends all waiting: the senders should try `again', or their messages were for a
%% node that is gone.
-spec dismiss(again | {gone, lost()}, room()) -> room().
dismiss(Answer, #room{session = Session} = R) ->
    lists:foreach(fun(Ref) -> tell(Answer, {Ref, new}) end, maps:keys(Session)),
    wake(Answer, R#room{session = #{}}).

%% Ends the waiting for room. Other lanes may come now: then the levels have other numbers.
-spec wake(again | {gone, lost()}, room()) -> room().
wake(Answer, #room{levels = Levels} = R) ->
    maps:foreach(fun(Ix, #level{waiters = Waiters} = Level) ->
                         set(Ix, tell_all(Answer, Waiters), Level)
                 end, Levels),
    R#room{levels = #{}}.

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
