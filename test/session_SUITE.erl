%% Two sessions against each other, in worlds without a process or a node (session_world): whatever
%% happens, and in whatever order, they agree in the end, nothing arrives twice or out of order or
%% at another incarnation, nobody waits for what will not come, and who leaves in good order loses
%% nothing.
%%
%%     make properties        100,000 histories of each kind
-module(session_SUITE).

-include("counterexample.hrl").

-export([all/0, suite/0]).
-export([in_good_order/1, with_faults/1, any_event/1]).

suite() -> [{timetrap, {hours, 2}}].

all() -> [in_good_order, with_faults, any_event].

histories() -> list_to_integer(os:getenv("HISTORIES", "2000")).

check(Tests, Property) -> counterexample:check(Tests, 2000, Property).

%% Longer than PropEr's lists are, from the start.
many(Type) -> resize(250, list(Type)).

%% Trunkline stops and starts, links are drained, nodes are full, and the connection stays.
in_good_order(_) -> check(histories(), prop_history(good())).

%% Connections break, nodes die, links crash, and patience ends.
with_faults(_) -> check(histories(), prop_history(frequency([{20, good()}, {1, bad()}]))).

prop_history(Command) ->
    ?ALL({Releases, Commands}, {releases(), many(Command)},
         session_world:run(Releases, Commands) =:= ok).

releases() -> {release(), release()}.

release() -> oneof([new, new, new, wide, '0.5.0', '0.4.0', ancient]).

good() ->
    frequency([{30, {go, range(0, 1000)}}, {8, {send, peer(), range(1, 3)}},
               {1, {stop, peer()}}, {2, {start, peer()}}, {1, {drain, peer()}},
               {1, {full, peer()}}, {1, {again, peer()}},
               {3, {hold, oneof([wire, link, speaker, news, lane, inlet, inlet]), peer()}}]).

bad() ->
    frequency([{4, {break, range(0, 20)}}, {4, connect}, {3, {crash, peer()}},
               {2, {kill, peer(), oneof([none, release()])}}, {1, {stall, peer()}},
               {1, {give_up, peer()}}, {1, {unreachable, peer()}}]).

peer() -> oneof([a, b]).

%% --- every event in every state -------------------------------------------------------------

%% A walk: at each step every event is tried, and one of them is taken. What was said or watched
%% before may come late, and what nobody should say comes too.
any_event(_) ->
    check(histories() div 5,
          ?ALL({Node, Steps}, {node_at_first(), list({range(0, 10_000), boolean()})},
               walk(Steps, start(Node)))).

node_at_first() -> oneof([down, {connected, true}, {connected, false}, {drained, true}]).

start(Node) ->
    Hello = hello([large, drain], 2),
    done(trunkline_session:new(#{link => here, hello => Hello,
                                 no_hello => Hello#{protocol := {0, 0}}, large_bytes => 1000,
                                 node => Node, lanes => none, capabilities => [],
                                 has_met => false}),
         true, #{refs => [stray], lanes => none}).

hello(Capabilities, Lanes) ->
    #{protocol => {2, 2}, capabilities => Capabilities, lanes => Lanes, window_bytes => 1000,
      bulk_bytes => 1000, release => "x"}.

walk([], _) ->
    true;
walk([{N, IsFull} | Steps], {Session, Known}) ->
    Tried = [done(trunkline_session:step(Event, Session), IsFull, Known) || Event <- events(Known)],
    walk(Steps, lists:nth(N rem length(Tried) + 1, Tried)).

events(#{refs := Refs}) ->
    Links = [there, another],
    Hellos = [hello([large, drain], 2), hello([], 3), (hello([], 1))#{protocol := {0, 0}},
              (hello([], 1))#{protocol := {7, 8}}, #{}],
    [{Up, Is} || Up <- [nodeup, again], Is <- [true, false]]
        ++ [{down, Role, Reason} || Role <- [peer, absence, asked],
                                    Reason <- [noconnection, noproc, killed]]
        ++ [{hello, Link, Name, Hello, Answer}
            || Link <- Links, Name <- [one, two], Hello <- Hellos, Answer <- [true, false]]
        ++ [{open, Link, Ref, theirs, Pids} || Link <- Links, Ref <- Refs, Pids <- some_pids()]
        ++ [{opened, Ref, Pids, Dock} || Ref <- Refs, Pids <- some_pids(), Dock <- [none, dock]]
        ++ [{goodbye, Link, theirs} || Link <- Links]
        ++ [{goodbye_ok, Ref} || Ref <- Refs]
        ++ [nodedown, connect, stop, {drain, me, infinity}, lanes_ready, finished, stalled,
            {timeout, retry}, {timeout, finish}, {timeout, forget}].

some_pids() -> [[p1], [p1, p2], [p1, p2, p3]].

%% The effects make sense: lanes are told something only while there are any, and what is to be
%% started comes once in a step. It is answered.
done({Session, Effects}, IsFull, Known) ->
    Known1 = lists:foldl(fun effect/2, Known, Effects),
    case {[What || {start, What} <- Effects], IsFull} of
        {[], _} ->
            IsEnded = trunkline_session:phase(Session) =:= ended,
            maps:is_key(stop, Known1) =:= IsEnded orelse error({ended, Effects}),
            {Session, Known1};
        {[What], true} ->
            answered({system_limit, element(1, What)}, Session, true, Known1);
        {[{lanes, {N, _, _}}], false} ->
            Lanes = lists:seq(1, N),
            answered({started, lanes, Lanes}, Session, false, Known1#{lanes := Lanes});
        {[{inlets, Theirs, _}], false} ->
            answered({started, inlets, {Theirs, here}}, Session, false, Known1);
        {[{trunks, _}], false} ->
            answered({started, trunks}, Session, false, Known1)
    end.

answered(Event, Session, IsFull, Known) ->
    done(trunkline_session:step(Event, Session), IsFull, Known).

effect({session, Name}, Known) -> knows(Name, Known);
effect({say, there, {goodbye, here, Ref}}, Known) -> knows(Ref, Known);
effect({say, links, {open, here, _, Ref, Lanes}}, #{lanes := Lanes} = Known) -> knows(Ref, Known);
effect({order, {send, Inlets, _}}, #{lanes := Lanes} = Known) ->
    true = length(Inlets) =:= length(Lanes),
    Known;
effect({Told, _}, #{lanes := Lanes} = Known) when Told =:= path; Told =:= order ->
    true = is_list(Lanes),
    Known;
effect(give_up_lanes, Known) -> Known#{lanes := none};
effect(stop, Known) -> Known#{stop => true};
effect(_, Known) -> Known.

knows(Ref, #{refs := Refs} = Known) ->
    Known#{refs := lists:sublist([Ref | lists:delete(Ref, Refs)], 4)}.
