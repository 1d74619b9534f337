%% Sessions without processes: so many pairs of trunkline_session are played against each other, to
%% see what the protocol itself costs a node with more peers than a machine here can have.
%%
%% Each session gets what a link would tell it, in order, and what it says goes to the other one of
%% its pair. A pair knows of no other, so that one after the other comes up. Lanes, inlets and the
%% trunk are pids of processes that are not there, and are ready at once. What is not here:
%% processes, sockets, timers, and the mail between them.
-module(bench_growth_sessions).

-export([play/1]).

-record(side, {session :: trunkline_session:session(),
               link :: pid(),
               lanes :: [pid()],
               inlets :: [pid()],
               news = [] :: [trunkline_session:event()]}).     % from this node, before all else

-define(LANES, 2).
%% Each session is asked so often, while it is at rest.
-define(QUESTIONS, 10).

%% Of so many pairs: ns of a step on the way up, and of one at rest; steps of a session on the way
%% up; bytes of its state at rest.
-spec play(pos_integer()) -> [number()].
play(N) ->
    Pairs = [{side(I, a, b), [], side(I, b, a), []} || I <- lists:seq(1, N)],
    true = erlang:garbage_collect(),
    T0 = erlang:monotonic_time(),
    {Up, Steps} = lists:mapfoldl(fun turns/2, 0, Pairs),
    T1 = erlang:monotonic_time(),
    Sessions = [S#side.session || {A, [], B, []} <- Up, S <- [A, B]],
    %% All are up, and nobody has anything left to do.
    N2 = 2 * N,
    N2 = length([up || S <- Sessions, trunkline_session:phase(S) =:= up]),
    true = erlang:garbage_collect(),
    T2 = erlang:monotonic_time(),
    ok = asked(Sessions, ?QUESTIONS),
    T3 = erlang:monotonic_time(),
    Words = lists:sum([erts_debug:size(S) || S <- Sessions]),
    [ns(T1 - T0) / Steps, ns(T3 - T2) / (N2 * ?QUESTIONS), Steps / N2,
     Words * erlang:system_info(wordsize) / N2].

ns(Native) -> erlang:convert_time_unit(Native, native, nanosecond).

%% What comes late, and changes nothing.
asked(_, 0) ->
    ok;
asked(Sessions, Times) ->
    lists:foreach(fun(S) -> {_, []} = trunkline_session:step(lanes_ready, S) end, Sessions),
    asked(Sessions, Times - 1).

%% A node's side of pair I. The other one's processes are on another node, as seen from here.
side(I, Here, There) ->
    Link = pid(Here, 10 * I),
    Hello = trunkline_handshake:hello(#{lanes => ?LANES, window_bytes => 32_000_000,
                                        bulk_bytes => 64_000_000, resume_time => 0}),
    {Session, Effects} =
        trunkline_session:new(#{link => Link, hello => Hello,
                                no_hello => Hello#{protocol := {0, 0}},
                                large_bytes => 64_000, node => down, lanes => none,
                                capabilities => [], has_met => false}),
    %% (A node that is down has nothing to say.)
    [] = [Message || {say, _, Message} <- Effects],
    #side{session = Session, link = Link, news = [{nodeup, {There, I}, true}],
          lanes = [pid(Here, 10 * I + Ix) || Ix <- lists:seq(1, ?LANES)],
          inlets = [pid(Here, 10 * I + ?LANES + Ix) || Ix <- lists:seq(1, ?LANES)]}.

%% In the external term format: NEW_PID_EXT, of a node with a short name.
pid(Node, Number) ->
    Name = <<(atom_to_binary(Node))/binary, "@host">>,
    binary_to_term(<<131, 88, 119, (byte_size(Name)), Name/binary, Number:32, 0:32, 1:32>>).

%% Until neither has anything left to do.
turns(Pair, Steps) ->
    case turn(Pair) of
        {Pair1, 0} -> {Pair1, Steps};
        {Pair1, N} -> turns(Pair1, Steps + N)
    end.

%% An event of each side, and what follows from it at once.
turn({A, MailA, B, MailB}) ->
    {A1, MailA1, SaidA, StepsA} = turn(A, MailA),
    {B1, MailB1, SaidB, StepsB} = turn(B, MailB),
    {{A1, MailA1 ++ SaidB, B1, MailB1 ++ SaidA}, StepsA + StepsB}.

turn(#side{news = [Event | News]} = Side, Mail) ->
    {Side1, Said, Steps} = step(Event, Side#side{news = News}, 0),
    {Side1, Mail, Said, Steps};
turn(Side, [Event | Mail]) ->
    {Side1, Said, Steps} = step(Event, Side, 0),
    {Side1, Mail, Said, Steps};
turn(Side, []) ->
    {Side, [], [], 0}.

step(Event, #side{session = S} = Side, Steps) ->
    {S1, Effects} = trunkline_session:step(Event, S),
    effects(Effects, Side#side{session = S1}, [], Steps + 1).

effects([], Side, Said, Steps) ->
    {Side, lists:reverse(Said), Steps};
effects([{say, _, Message} | Effects], Side, Said, Steps) ->
    effects(Effects, Side, [Message | Said], Steps);
effects([{order, _} | Effects], #side{news = News} = Side, Said, Steps) ->
    effects(Effects, Side#side{news = News ++ [lanes_ready]}, Said, Steps);
effects([{start, What}], Side, Said, Steps) ->
    {Side1, Said1, Steps1} = step(started(What, Side), Side, Steps),
    {Side1, lists:reverse(Said, Said1), Steps1};
effects([_ | Effects], Side, Said, Steps) ->
    effects(Effects, Side, Said, Steps).

started({lanes, _}, #side{lanes = Lanes}) -> {started, lanes, Lanes};
started({inlets, _, _}, #side{inlets = Inlets, link = Link}) -> {started, inlets, {Inlets, Link}};
started({trunk, _}, _) -> {started, trunk}.
