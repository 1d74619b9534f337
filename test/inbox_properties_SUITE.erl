%% The pure modules of an inbox, each against a model: no process, no node.
-module(inbox_properties_SUITE).

-include("counterexample.hrl").

-include_lib("stdlib/include/assert.hrl").

-export([all/0]).
-export([mail/1, work/1, share/1, away/1, flood/1, flood_in_turn/1, left_alone/1, visits/1]).

all() -> [mail, work, share, away, flood, flood_in_turn, left_alone, visits].

-define(TESTS, 300).

check(Property) -> counterexample:check(?TESTS, 50, Property).

%% As large as they may be, whatever PropEr's size.
wide(Least, Most) -> resize(Most, range(Least, Most)).

%% Longer than PropEr's lists are.
many(Type) -> ?SIZED(Size, resize(5 * Size, list(resize(Size, Type)))).

bytes(Charge) -> trunkline_gate:bytes(Charge).
messages(Charge) -> trunkline_gate:messages(Charge).
charge(Bytes) -> trunkline_gate:limit(Bytes) + 1.

%% --- mail: two classes, a bound, and what is too much ---------------------------------

mail(_) -> [check(prop_mail(Policy)) || Policy <- [block, reject, drop_newest, drop_oldest]].

prop_mail(Policy) ->
    ?ALL({Bound, Commands}, {{wide(1, 3000), range(1, 12)}, many(mail_command())},
         run_mail(Commands, trunkline_mail:new(Bound, Policy), {Policy, Bound}, [], {1, [], 0})).

mail_command() ->
    frequency([{10, {in, oneof([urgent, normal]), frequency([{1, call}, {1, granted}, {4, other}]),
                     wide(1, 900)}},
               {6, out}, {1, take_dropped}]).

%% Model: what is there, in the order in which it came, as {Class, Kind, Item}. Number: of the
%% next message; Gone: the numbers of those that came out or were dropped; Untold: how many
%% were dropped since that was asked for.
run_mail([], Mail, _, Model, {Number, Gone, Untold}) ->
    {Untold, Mail1} = trunkline_mail:take_dropped(Mail),
    {0, _} = trunkline_mail:take_dropped(Mail1),
    Rest = drain(Mail1),
    Rest =:= [Item || {_, _, Item} <- leaving(Model)]
        andalso lists:sort([N || {_, N} <- Rest] ++ Gone) =:= lists:seq(1, Number - 1);
run_mail([Command | Commands], Mail, {_, Bound} = Rules, Model, {Number, Gone, Untold}) ->
    {Mail1, Model1, Ledger} =
        case Command of
            {in, Class, Kind, Bytes} ->
                Item = {charge(Bytes), Number},
                {Dropped, Kept} = admit({Class, Kind, Item}, Rules, Model),
                {Dropped, In} = trunkline_mail:in(Class, Kind, Item, Mail),
                true = lists:member(Item, Dropped) orelse Kind =/= other
                    orelse not is_above(trunkline_mail:level(In) - element(1, Item), Bound),
                {In, Kept,
                 {Number + 1, [N || {_, N} <- Dropped] ++ Gone, Untold + length(Dropped)}};
            out ->
                case {leaving(Model), trunkline_mail:out(Mail)} of
                    {[], empty} ->
                        {Mail, Model, {Number, Gone, Untold}};
                    {[{_, _, {_, N} = Item} = First | _], {Item, Out}} ->
                        {Out, lists:delete(First, Model), {Number, [N | Gone], Untold}}
                end;
            take_dropped ->
                {Untold, Told} = trunkline_mail:take_dropped(Mail),
                {Told, Model, {Number, Gone, 0}}
        end,
    Level = level(Model1),
    trunkline_mail:level(Mail1) =:= Level
        andalso trunkline_mail:is_full(Mail1) =:= is_above(Level, Bound)
        andalso run_mail(Commands, Mail1, Rules, Model1, Ledger).

level(Model) -> lists:sum([Charge || {_, _, {Charge, _}} <- Model]).

is_above(Level, {Bytes, Messages}) -> bytes(Level) >= Bytes orelse messages(Level) >= Messages.

leaving(Model) -> [E || {urgent, _, _} = E <- Model] ++ [E || {normal, _, _} = E <- Model].

admit({_, Kind, Item} = New, {Policy, Bound} = Rules, Model) ->
    case is_above(level(Model), Bound) of
        Full when not Full; Kind =/= other ->
            {[], Model ++ [New]};
        true ->
            Droppable =
                [E || {normal, other, _} = E <- Model] ++ [E || {urgent, other, _} = E <- Model],
            case {Policy, Droppable} of
                {drop_oldest, [{_, _, Oldest} = First | _]} ->
                    {Dropped, Model1} = admit(New, Rules, lists:delete(First, Model)),
                    {[Oldest | Dropped], Model1};
                _ ->
                    {[Item], Model}
            end
    end.

drain(Mail) ->
    case trunkline_mail:out(Mail) of
        {Item, Mail1} -> [Item | drain(Mail1)];
        empty -> 0 = trunkline_mail:level(Mail), []
    end.

%% --- work: what the process behind an inbox has -----------------------------------------

work(_) -> [check(prop_work(Kind)) || Kind <- [server, process]].

prop_work(Kind) ->
    ?ALL({Least, More, Bytes, Commands},
         {range(1, 9), range(0, 40), wide(1, 20_000),
          many(frequency([{3, {come, wide(100, 9000)}}, {2, done}, {1, look}]))},
         begin
             Window = {Least, Least + More},
             run_work(Commands, trunkline_work:new(Kind, Window, Bytes),
                      {Kind, Window, max(1, Bytes div 128)},
                      #{waiting => [], given => [], room => 0, window => Least, full => false,
                        asked => false})
         end).

%% Model: the sizes of what is waiting, and the costs of what the consumer has, oldest first.
run_work([], _, _, _) ->
    true;
run_work([Command | Commands], Work, Rules, #{waiting := Waiting, given := Given} = M0) ->
    M = case Command of
            {come, Bytes} -> M0#{waiting := Waiting ++ [Bytes]};
            done when Given =:= [] -> M0;
            done -> ok = trunkline_work:done(Work, hd(Given)), M0#{given := tl(Given)};
            look -> M0
        end,
    Word = receive
               '$inbox_more' -> more;
               '$inbox_idle' -> idle
           after 0 -> none
           end,
    case M of
        #{room := awaited, given := Left, window := Window} when Word =:= none, Command =/= look ->
            %% The consumer has so much that it need not ask.
            not is_little(Left, Window, Rules) andalso run_work(Commands, Work, Rules, M);
        #{room := Room, waiting := Waiting1, given := Given1} ->
            Asked = case Word of
                        idle ->
                            Fitted = fitted(Waiting1, Given1, M, Rules),
                            More = trunkline_work:idle(Waiting1 =/= [], Work),
                            true = More > 0,
                            M#{room := More, window := Fitted,
                               full := is_full(Given1, Fitted, M, Rules),
                               asked := not has_room(Given1, Fitted, Rules)};
                        _ when Room =:= awaited ->
                            M#{room := 0};
                        _ ->
                            M
                    end,
            M1 = give(Asked, Work, Rules),
            trunkline_work:size(Work) =:= length(maps:get(given, M1))
                andalso run_work(Commands, Work, Rules, M1)
    end.

%% As the keeper does.
give(#{waiting := []} = M, _, _) ->
    M;
give(#{waiting := [_ | _] = Waiting, room := 0, given := Given} = M, Work, Rules) ->
    Fitted = fitted(Waiting, Given, M, Rules),
    M1 = M#{window := Fitted, full := is_full(Given, Fitted, M, Rules)},
    case trunkline_work:room(true, Work) of
        0 ->
            false = has_room(Given, Fitted, Rules),
            case trunkline_work:wait(Work) of
                more -> give(M1, Work, Rules);
                wait -> M1#{room := awaited}
            end;
        Room ->
            true = has_room(Given, Fitted, Rules),
            give(M1#{room := Room}, Work, Rules)
    end;
give(#{waiting := [Bytes | Waiting], room := Room, given := Given, window := Window} = M, Work,
     {Kind, _, _} = Rules) ->
    true = has_room(Given, Window, Rules) orelse maps:get(asked, M),
    Cost = trunkline_work:add(trunkline_gate:packed(Bytes, 1), Work),
    Cost = case Kind of
               server -> trunkline_gate:packed(Bytes div 128, 1);
               process -> 1
           end,
    give(M#{waiting := Waiting, given := Given ++ [Cost], asked := false,
            room := trunkline_work:less(Cost, Room)}, Work, Rules).

has_room(Given, Window, {_, _, Units}) ->
    length(Given) < Window andalso bytes(lists:sum(Given)) < Units.

%% Whether it has been refused because of the bytes, when that was last the case.
is_full(Given, Window, #{full := Before}, {_, _, Units}) ->
    case bytes(lists:sum(Given)) >= Units of
        true -> true;
        false when length(Given) >= Window -> false;
        false -> Before
    end.

is_little(Given, Window, {Kind, _, Units}) ->
    Few = case Kind of
              server -> Window div 2;
              process -> Window - 1
          end,
    length(Given) =< Few andalso 2 * bytes(lists:sum(Given)) =< Units.

fitted([], _, #{window := Window}, _) -> Window;
fitted(_, [], #{window := Window, full := true}, _) -> Window;
fitted(_, [], #{window := Window}, {_, {_, Most}, _}) -> min(Most, 2 * Window);
fitted(_, Given, #{window := Window}, {_, {Least, _}, _}) when length(Given) < Window ->
    max(Least, Window - Window div 8);
fitted(_, _, #{window := Window}, _) -> Window.

%% --- share: a keeper, nodes that send to it, and the way between ---------------------

-define(ACTIVE, 10_000).
-define(RECOUNT, 100).
-define(IDLE, 64).

-record(node, {source, level = 0, window}).
%% What the keeper should know of a source.
-record(known, {held, owed = 0, told, window, last}).
-record(sim, {bound, now, share,
              nodes = #{},        % number => #node{}
              to = [],            % {Node, Source, Charge}, oldest first
              here = [],          % {Source, Charge}
              back = [],          % {Node, Source, Charge, Window}, oldest first
              known = #{},        % Source => #known{}
              counted = none}).

share(_) -> check(prop_share()).

%% Whatever takes however long: nobody is stuck, what is outstanding is where it should be,
%% windows follow the clock, and in the end nothing is left.
prop_share() ->
    ?ALL({Bound, Start, Steps}, {bound(), oneof([0, -1_000_000]), many(share_step())},
         settle(lists:foldl(fun(Step, Sim) -> sound(share_step(Step, Sim)) end,
                            sim(5, Bound, Start), Steps))).

bound() -> {oneof([wide(1, 500), wide(500, 300_000)]), oneof([wide(1, 10), wide(10, 600)])}.

share_step() ->
    Node = range(1, 5),
    frequency([{3, {send, Node, size()}}, {3, {fill, Node, size()}},
               {3, {arrive, Node}}, {3, {arrive_all, Node}},
               {6, {leave, wide(1, 1000)}}, {1, leave_all},
               {3, {credit, Node}}, {2, {credit_all, Node}},
               {3, {pass, Node, size()}}, {1, {stray, Node, size()}}, {2, flush},
               {3, {wait, milliseconds()}}, {2, quiet}, {1, {restart, Node}}]).

size() -> oneof([wide(1, 200), wide(1, 5000)]).

milliseconds() -> oneof([wide(0, 50), wide(990, 1010), wide(9990, 10_010)]).

sim(Nodes, Bound, Now) ->
    #sim{bound = Bound, now = Now, share = trunkline_share:new(Bound, block, fun(_) -> false end),
         nodes = maps:from_list([{N, beginning(N, Bound)} || N <- lists:seq(1, Nodes)])}.

%% A number that no other beginning has.
beginning(N, Bound) ->
    #node{source = {list_to_atom("node" ++ integer_to_list(N)),
                    erlang:unique_integer([positive, monotonic])},
          window = trunkline_share:first(Bound, block)}.

share_step({send, N, Bytes}, #sim{nodes = Nodes, to = To} = Sim) ->
    #{N := #node{source = Source, level = Level} = Node} = Nodes,
    case is_above(Level, Node#node.window) of
        true -> Sim;
        false -> Sim#sim{nodes = Nodes#{N := Node#node{level = Level + charge(Bytes)}},
                         to = To ++ [{N, Source, charge(Bytes)}]}
    end;
share_step({fill, _, _} = Step, Sim) ->
    again(setelement(1, Step, send), Sim);
share_step({arrive, N}, #sim{to = To} = Sim) ->
    case lists:keytake(N, 1, To) of
        {value, {N, Source, Charge}, To1} -> arrive(Source, Charge, Sim#sim{to = To1});
        false -> Sim
    end;
share_step({arrive_all, N}, Sim) ->
    again({arrive, N}, Sim);
share_step({leave, _}, #sim{here = []} = Sim) ->
    Sim;
share_step({leave, Any}, #sim{here = Here} = Sim) ->
    {Before, [{Source, Charge} | After]} = lists:split(Any rem length(Here), Here),
    leave(Source, Charge, Sim#sim{here = Before ++ After});
share_step(leave_all, Sim) ->
    again({leave, 0}, Sim);
%% Of a process whose node does not know the inbox.
share_step({stray, N, Bytes}, #sim{nodes = Nodes} = Sim) ->
    #{N := #node{source = {Name, _}}} = Nodes,
    arrive(trunkline_share:stranger(Name), charge(Bytes), Sim);
share_step({credit, N}, #sim{nodes = Nodes, back = Back} = Sim) ->
    case lists:keytake(N, 1, Back) of
        {value, {N, Source, Left, Window}, Back1} ->
            Sim#sim{back = Back1,
                    nodes = case Nodes of
                                #{N := #node{source = Source, level = Level} = Node} ->
                                    Nodes#{N := Node#node{level = Level - Left, window = Window}};
                                #{} ->
                                    Nodes             % of an earlier beginning
                            end};
        false ->
            Sim
    end;
share_step({credit_all, N}, Sim) ->
    again({credit, N}, Sim);
share_step(flush, Sim) ->
    flush(Sim);
share_step({pass, N, Bytes}, Sim) ->
    #sim{here = Here} = Sim1 = share_step({arrive, N}, share_step({send, N, Bytes}, Sim)),
    share_step({leave, length(Here) - 1}, Sim1);
share_step(quiet, Sim) ->
    lists:foldl(fun share_step/2, Sim, [leave_all, {wait, ?ACTIVE}, flush]);
share_step({wait, Ms}, #sim{now = Now} = Sim) ->
    Sim#sim{now = Now + Ms};
share_step({restart, N}, #sim{nodes = Nodes, bound = Bound} = Sim) ->
    Sim#sim{nodes = Nodes#{N := beginning(N, Bound)}}.

again(Step, Sim) ->
    case share_step(Step, Sim) of
        Sim -> Sim;
        Sim1 -> again(Step, Sim1)
    end.

%% The keeper's part, and what it should be.

arrive(Source, Charge, #sim{now = Now, known = Known, bound = Bound, here = Here} = Sim) ->
    {Credits, Share} = trunkline_share:arrived(Now, Source, Charge, Sim#sim.share),
    Sim1 = Sim#sim{share = Share, here = Here ++ [{Source, Charge}]},
    case Known of
        #{Source := #known{held = Held} = K} ->
            [] = Credits,
            Sim1#sim{known = Known#{Source := K#known{held = Held + Charge, last = Now}}};
        #{} ->
            First = trunkline_share:first(Bound, block),
            New = #known{held = Charge, told = First, window = First, last = Now},
            credited([Source], Credits, recounted(Sim1#sim{known = Known#{Source => New}}))
    end.

%% What is owed is told when it is a quarter of the window.
leave(Source, Charge, #sim{known = Known} = Sim) ->
    {Credits, Share} = trunkline_share:left(Source, Charge, Sim#sim.share),
    #{Source := #known{held = Held, owed = Owed, told = {Bytes, Messages}} = K} = Known,
    K1 = K#known{held = Held - Charge, owed = Owed + Charge},
    Due = is_above(4 * bytes(K1#known.owed), 4 * messages(K1#known.owed), {Bytes, Messages}),
    credited([Source || Due], Credits, Sim#sim{share = Share, known = Known#{Source := K1}}).

is_above(Bytes, Messages, Bound) -> is_above(trunkline_gate:limit(Bytes) + Messages, Bound).

flush(#sim{now = Now, counted = Counted, share = Share0} = Sim) ->
    {Credits, Share} = trunkline_share:flush(Now, Share0),
    Sim1 = #sim{known = Known} = case Counted =:= none orelse Now - Counted >= ?RECOUNT of
                                     true -> recounted(Sim#sim{share = Share});
                                     false -> Sim#sim{share = Share}
                                 end,
    false = trunkline_share:is_owing(Share),
    credited([Source || {Source, K} <- maps:to_list(Known), is_owed(K)], Credits, Sim1).

is_owed(#known{owed = Owed, told = Told, window = Window}) -> Owed > 0 orelse Told =/= Window.

%% Credits are for these, each with all that it is owed, and its window.
credited(Sources, Credits, #sim{known = Known, back = Back} = Sim) ->
    Expected = [{Source, Owed, Window}
                || Source <- Sources,
                   #known{owed = Owed, window = Window} <- [maps:get(Source, Known)]],
    true = lists:sort(Credits) =:= lists:sort(Expected),
    Told = maps:from_list([{Source, K#known{owed = 0, told = Window}}
                           || Source <- Sources,
                              #known{window = Window} = K <- [maps:get(Source, Known)]]),
    Sim#sim{known = maps:merge(Known, Told),
            back = Back
            ++ [{number(Source), Source, Left, Window} || {Source, Left, Window} <- Credits]}.

number({Name, _}) -> "node" ++ N = atom_to_list(Name), list_to_integer(N).

%% The windows are what the module says; they are within these limits.
recounted(#sim{now = Now, bound = {Bytes, Messages} = Bound, known = Known, share = State} = Sim) ->
    First = trunkline_share:first(Bound, block),
    IsActive = fun(#known{held = Held, last = Last}) -> Held > 0 orelse Now - Last < ?ACTIVE end,
    Over = [Source
            || {Source, #known{held = 0, owed = 0, told = Told} = K} <- maps:to_list(Known),
               is_before_another(Source, Known) orelse not IsActive(K) andalso Told =:= First],
    Active = length(lists:filter(IsActive, maps:values(maps:without(Over, Known)))),
    Share = part(Active + 1, Bound),
    {B, M} = Share,
    %% With one that nobody has they are the bound, but that each may send something.
    true = (Active + 1) * B =< max(Bytes, Active + 1)
        andalso (Active + 1) * M =< max(Messages, Active + 1),
    Windows = trunkline_share:sources(State),
    {LeastB, LeastM} = First,
    Sim#sim{counted = Now,
            known = maps:map(
                      fun(Source, K) ->
                              #{Source := #{window := {WB, WM} = Window}} = Windows,
                              true = case IsActive(K) andalso not is_before_another(Source, Known)
                                         andalso not trunkline_share:is_stranger(Source) of
                                         true -> WB >= min(B, LeastB) andalso WB =< B
                                                     andalso WM >= min(M, LeastM) andalso WM =< M;
                                         false -> Window =:= First
                                     end,
                              K#known{window = Window}
                      end, maps:without(Over, Known))}.

is_before_another({Name, Epoch}, Known) ->
    lists:any(fun({N, E}) -> N =:= Name andalso E > Epoch end, maps:keys(Known)).

part(N, {Bytes, Messages}) -> {max(1, Bytes div N), max(1, Messages div N)}.

sound(#sim{share = Share, nodes = Nodes, known = Known, bound = Bound} = Sim) ->
    true = part(?IDLE, Bound) =:= trunkline_share:first(Bound, block),
    true = trunkline_share:sources(Share)
        =:= maps:map(fun(_, #known{window = W, held = Held}) -> #{window => W, held => Held} end,
                     Known),
    true = trunkline_share:is_owing(Share) =:= lists:any(fun is_owed/1, maps:values(Known)),
    lists:foreach(fun(Node) -> sound(Node, Sim) end, maps:values(Nodes)),
    Sim.

%% What it has outstanding is on the way, here, not told of yet, or told of; and if that is
%% a window, then more than three quarters are on the way or here, or something is told.
sound(#node{source = Source, level = Level, window = {Bytes, Messages} = Window},
      #sim{share = Share, to = To, here = Here, back = Back, known = Known, bound = Bound}) ->
    Waiting = lists:sum([Charge || {S, Charge} <- Here, S =:= Source]),
    UnderWay = lists:sum([Charge || {_, S, Charge} <- To, S =:= Source]),
    Credits = [Charge || {_, S, Charge, _} <- Back, S =:= Source],
    Owed = case Known of
               #{Source := #known{owed = O}} -> O;
               #{} -> 0
           end,
    true = Level =:= UnderWay + Waiting + Owed + lists:sum(Credits),
    true = trunkline_share:held(Source, Share) =:= Waiting + Owed,
    true = Credits =/= []
        orelse (bytes(Level) < Bytes orelse bytes(UnderWay + Waiting) * 4 > Bytes * 3)
        andalso (messages(Level) < Messages orelse messages(UnderWay + Waiting) * 4 > Messages * 3),
    %% It knows the window that it was told last.
    true = Credits =/= []
        orelse Window =:= case Known of
                              #{Source := #known{told = Told}} -> Told;
                              #{} -> trunkline_share:first(Bound, block)
                          end.

%% All arrives, leaves, and is told of: everybody can send. Then all are quiet, are told,
%% and forgotten.
settle(#sim{bound = Bound} = Sim) ->
    Sim1 = #sim{here = []} = steps([arrive_all, leave_all, flush, credit_all], Sim),
    true = lists:all(fun(#node{level = Level}) -> Level =:= 0 end, maps:values(Sim1#sim.nodes)),
    Quiet = steps([{wait, ?ACTIVE}, flush, credit_all], Sim1),
    First = trunkline_share:first(Bound, block),
    true = lists:all(fun(#node{window = Window}) -> Window =:= First end,
                     maps:values(Quiet#sim.nodes)),
    #sim{share = Share, back = []} = steps([{wait, ?RECOUNT}, flush], Quiet),
    trunkline_share:sources(Share) =:= #{}.

steps(Steps, #sim{nodes = Nodes} = Sim) ->
    lists:foldl(fun(Step, S) when Step =:= arrive_all; Step =:= credit_all ->
                        lists:foldl(fun(N, S1) -> sound(share_step({Step, N}, S1)) end, S,
                                    maps:keys(Nodes));
                   (Step, S) ->
                        sound(share_step(Step, S))
                end, Sim, Steps).

%% A node has sent, and its connection is lost with all that its window allows in its lanes, for
%% longer than a node that sends nothing is active. What two others get leaves room for that. (It
%% would not if the first were forgotten.)
away(_) ->
    Most = 64_000 + 3 * 1_000,
    ?assert(windows(fun(_) -> false end) > Most),
    ?assert(windows(fun(Node) -> Node =:= a end) =< Most).

windows(IsAway) ->
    Before = visited(a, 0, trunkline_share:new({64_000, 6_400}, block, IsAway)),
    After = visited(c, 20_200, visited(b, 20_000, Before)),
    bytes([a], Before) + bytes([b, c], After).

bytes(Nodes, Share) ->
    lists:sum(
      [Bytes || {{Node, _}, #{window := {Bytes, _}}}
                    <- maps:to_list(trunkline_share:sources(Share)), lists:member(Node, Nodes)]).

%% It sends a message, which leaves at once.
visited(Node, Now, Share) ->
    {_, Arrived} = trunkline_share:arrived(Now, {Node, 1}, charge(1), Share),
    {_, Left} = trunkline_share:left({Node, 1}, charge(1), Arrived),
    {_, Flushed} = trunkline_share:flush(Now, Left),
    Flushed.

%% --- share: how much it can be in all ---------------------------------------------------

-define(LARGEST, 3000).

flood(_) -> check(prop_flood()).

%% Where nothing takes time, and all are told when another one comes: the bound, and of each
%% node a 64th and a message. Once all have been told, and what was too much has left, those
%% who are active have no more than the bound, and each a message.
prop_flood() ->
    ?ALL({Nodes, Bound}, {range(1, 20), bound()},
         ?ALL(Steps, many(flood_step(Nodes)),
              begin
                  Sim = lists:foldl(fun(Step, S) -> within(flood_step(Step, S)) end,
                                    sim(Nodes, Bound, 0), Steps),
                  All = lists:seq(1, Nodes),
                  Active = steps([{wait, ?RECOUNT}, flush, credit_all],
                                 lists:foldl(
                                   fun(N, S) ->
                                           flood_step({send, N, 1}, flood_step(leave_all, S))
                                   end, Sim, All)),
                  Ready = steps([leave_all, flush, credit_all], Active),
                  Sum = outstanding(lists:foldl(fun(N, S) -> flood_step({fill, N, ?LARGEST}, S) end,
                                                Ready, All)),
                  {Bytes, Messages} = Bound,
                  bytes(Sum) < max(Bytes, Nodes) + Nodes * ?LARGEST
                      andalso messages(Sum) =< max(Messages, Nodes)
              end)).

flood_step(Nodes) ->
    Node = range(1, Nodes),
    frequency([{2, {send, Node, wide(1, ?LARGEST)}}, {6, {fill, Node, wide(1, ?LARGEST)}},
               {1, {stray, Node, wide(1, ?LARGEST)}}, {1, {flood, Node, wide(1, ?LARGEST)}},
               {3, {leave, wide(1, 1000)}}, {1, leave_all}, {1, flush},
               {2, {wait, milliseconds()}}]).

flood_step({fill, _, _} = Step, Sim) ->
    case flood_step(setelement(1, Step, send), Sim) of
        Sim -> Sim;
        Sim1 -> flood_step(Step, Sim1)
    end;
%% What a node sends that does not know the inbox yet is in, or it is not.
flood_step({stray, N, _} = Step, #sim{nodes = Nodes, known = Known} = Sim) ->
    #{N := #node{source = {Name, _}}} = Nodes,
    case trunkline_share:is_granted(trunkline_share:stranger(Name), Sim#sim.share) of
        true ->
            Sim1 = share_step(Step, Sim),
            told(case maps:keys(Sim1#sim.known) -- maps:keys(Known) of
                     [] -> Sim1;
                     [_] -> flush(Sim1)
                 end);
        false ->
            Sim
    end;
flood_step({flood, N, Bytes}, Sim) ->
    case flood_step({stray, N, Bytes}, Sim) of
        Sim -> Sim;
        Sim1 -> flood_step({flood, N, Bytes}, Sim1)
    end;
flood_step(leave_all, #sim{here = []} = Sim) ->
    Sim;
flood_step(leave_all, Sim) ->
    flood_step(leave_all, flood_step({leave, 0}, Sim));
flood_step({send, N, _} = Step, #sim{known = Known} = Sim) ->
    Sim1 = share_step({arrive, N}, share_step(Step, Sim)),
    told(case maps:keys(Sim1#sim.known) -- maps:keys(Known) of
             [] -> Sim1;
             [_] -> flush(Sim1)
         end);
flood_step(Step, Sim) ->
    told(share_step(Step, Sim)).

told(#sim{back = []} = Sim) -> Sim;
told(#sim{back = [{N, _, _, _} | _]} = Sim) -> told(share_step({credit, N}, Sim)).

within(#sim{nodes = Nodes, bound = Bound} = Sim) ->
    Sum = outstanding(Sim),
    {Bytes, Messages} = Bound,
    {B, M} = trunkline_share:first(Bound, block),
    %% (Each node may be known by some messages and unknown by others.)
    N = 2 * maps:size(Nodes),
    true = bytes(Sum) =< Bytes + N * (B + ?LARGEST) andalso messages(Sum) =< Messages + N * (M + 1),
    sound(Sim).

outstanding(#sim{nodes = Nodes, here = Here}) ->
    lists:sum([Level || #node{level = Level} <- maps:values(Nodes)]
              ++ [Charge || {Source, Charge} <- Here, trunkline_share:is_stranger(Source)]).

%% Also if nothing leaves while one after the other comes.
flood_in_turn(_) ->
    Messages = 6400,
    lists:foreach(
      fun(Nodes) ->
              All = lists:seq(1, Nodes),
              Sum = outstanding(lists:foldl(fun(N, S) -> flood_step({fill, N, 1}, S) end,
                                            sim(Nodes, {1 bsl 30, Messages}, 0), All)),
              true = messages(Sum) >= Messages div 2
                  andalso messages(Sum) =< Messages + Nodes * Messages div 64
      end, [1, 2, 3, 10, 30, 60]).

%% Nodes that have sent once, and do so no more, leave it all to the one that does.
left_alone(_) ->
    Bound = {1 bsl 23, 100_000},
    Last = lists:foldl(fun(N, Sim) ->
                               Sent = lists:foldl(fun(_, S) -> flood_step({send, N, 100}, S) end,
                                                  Sim, lists:seq(1, 200)),
                               Quiet = flood_step({wait, ?ACTIVE},
                                                  flood_step(flush, flood_step(leave_all, Sent))),
                               flood_step(flush,
                                          flood_step({wait, ?RECOUNT}, flood_step(flush, Quiet)))
                       end, sim(100, Bound, 0), lists:seq(1, 99)),
    Sends = flood_step(flush, flood_step({wait, ?RECOUNT}, flood_step({send, 100, 100}, Last))),
    #sim{nodes = #{100 := #node{window = Window}}} = Sends,
    true = Window =:= part(2, Bound).

%% --- guests and hosts: what two nodes know of each other's inboxes ---------------------------

%% Of two processes, whose connection breaks now and then, and with it what is on the way, and
%% which are killed now and then: when all has arrived, the rows there are those of the inboxes
%% that are here and that the guest is known to know; without a connection there are none. And
%% the next message makes any inbox known.
visits(_) -> counterexample:check(3000, 50, prop_visits()).

-record(side, {process, mailbox = [], monitors = #{}}).     % Monitor => the process there
-record(world,
        {guests, hosts,
         here = #side{}, there = #side{},
         inboxes = #{},                        % Inbox => Name
         rows = [],
         to_there = [], to_here = [],          % on the way, oldest first
         late = {[], []},                      % the same, news of deaths that may be overtaken
         connected = false, busy = false}).

prop_visits() ->
    ?ALL(Steps, many(visit_step()),
         begin
             World = #world{connected = Connected, inboxes = Inboxes} =
                 quiet_visit(lists:foldl(fun visit_step/2, world(), Steps)),
             Rows = lists:sort(World#world.rows),
             true = Rows =:= lists:sort([I || I <- maps:keys(Inboxes), is_known(I, World)]),
             true = Connected orelse Rows =:= [],
             All = quiet_visit(lists:foldl(fun(I, W) -> flush_visits(visit_step(met, I, W)) end,
                                           quiet_visit(visit_step(connect, World)),
                                           maps:keys(Inboxes))),
             lists:sort(All#world.rows) =:= lists:sort(maps:keys(Inboxes))
         end).

is_known(Inbox, #world{guests = Guests}) ->
    trunkline_guests:who_knows(Inbox, Guests) =:= [there].

visit_step() ->
    Any = range(1, 5),
    frequency([{6, {met, Any}}, {2, {start, range(1, 3)}}, {2, {stop, Any}}, {1, {changed, Any}},
               {8, {arrive, oneof([here, there])}},
               {8, {handle, oneof([here, there])}},
               {2, {break, wide(0, 3), wide(0, 3)}}, {3, connect}, {2, late},
               {1, {kill, oneof([here, there])}},
               {1, {busy, boolean()}}]).

world() ->
    #world{guests = trunkline_guests:new(), hosts = trunkline_hosts:new(),
           here = #side{process = process()}, there = #side{process = process()}, connected = true}.

process() -> spawn(fun() -> ok end).

visit_step({start, Name}, #world{inboxes = Inboxes, guests = G} = W) ->
    %% (They are looked at only as keys.)
    I = erlang:unique_integer([positive]),
    flush_visits(W#world{inboxes = Inboxes#{I => Name},
                         guests = trunkline_guests:named(I, Name, G)});
visit_step({What, Any}, #world{inboxes = Inboxes} = W)
  when What =:= met; What =:= stop; What =:= changed ->
    case maps:keys(Inboxes) of
        [] -> W;
        Is -> flush_visits(visit_step(What, lists:nth(Any rem length(Is) + 1, Is), W))
    end;
visit_step({arrive, there}, #world{to_there = [M | Ms], there = Side} = W) ->
    W#world{to_there = Ms, there = arrived(M, Side)};
visit_step({arrive, here}, #world{to_here = [M | Ms], here = Side} = W) ->
    W#world{to_here = Ms, here = arrived(M, Side)};
visit_step({handle, there}, #world{there = #side{mailbox = [M | Ms]} = Side} = W) ->
    flush_visits(there(M, W#world{there = Side#side{mailbox = Ms}}));
visit_step({handle, here}, #world{here = #side{mailbox = [M | Ms]} = Side} = W) ->
    flush_visits(here(M, W#world{here = Side#side{mailbox = Ms}}));
%% So many messages each way have arrived before, the others are lost.
visit_step({break, N, M}, #world{connected = true, to_there = ToThere, to_here = ToHere} = W) ->
    W1 = again(fun(W0) -> visit_step({arrive, there}, W0) end, N,
               W#world{to_there = lists:sublist(ToThere, N)}),
    W2 = again(fun(W0) -> visit_step({arrive, here}, W0) end, M,
               W1#world{to_here = lists:sublist(ToHere, M)}),
    W2#world{connected = false, to_there = [], to_here = [], late = {[], []}, busy = false,
             there = all_down(W2#world.there), here = all_down(W2#world.here)};
visit_step(connect, W) ->
    W#world{connected = true};
visit_step(late, #world{late = {LateThere, LateHere}, to_there = ToThere, to_here = ToHere} = W) ->
    W#world{late = {[], []}, to_there = ToThere ++ LateThere, to_here = ToHere ++ LateHere};
visit_step({busy, Busy}, W) ->
    flush_visits(W#world{busy = Busy});
visit_step({kill, there}, #world{there = #side{process = Pid}} = W) ->
    W1 = died(Pid, W),
    W1#world{there = #side{process = process()}, hosts = trunkline_hosts:new(), rows = []};
visit_step({kill, here}, #world{here = #side{process = Pid}} = W) ->
    W1 = died(Pid, W),
    W1#world{here = #side{process = process()}, guests = trunkline_guests:new()};
visit_step(_, W) ->
    W.

visit_step(met, I, #world{inboxes = Inboxes, guests = G} = W) ->
    W#world{guests = trunkline_guests:met(there, I, maps:get(I, Inboxes), G)};
visit_step(stop, I, #world{inboxes = Inboxes, guests = G} = W) ->
    W#world{inboxes = maps:remove(I, Inboxes), guests = trunkline_guests:ended(I, G)};
visit_step(changed, I, #world{guests = G} = W) ->
    W#world{guests = trunkline_guests:changed(I, G)}.

again(_, 0, W) -> W;
again(Step, N, W) -> again(Step, N - 1, Step(W)).

arrived({'DOWN', Monitor} = M, #side{mailbox = Box, monitors = Monitors} = Side) ->
    Side#side{mailbox = Box ++ [M], monitors = maps:remove(Monitor, Monitors)};
arrived(M, #side{mailbox = Box} = Side) ->
    Side#side{mailbox = Box ++ [M]}.

all_down(#side{mailbox = Box, monitors = Monitors} = Side) ->
    Side#side{mailbox = Box ++ [{'DOWN', M} || M <- maps:keys(Monitors)], monitors = #{}}.

%% News of that is behind all that it has sent, and perhaps behind what the next one sends.
died(_, #world{connected = false} = W) ->
    W;
died(Pid, #world{late = {LateThere, LateHere}, here = Here, there = There} = W) ->
    W#world{late = {LateThere ++ told_of(Pid, There), LateHere ++ told_of(Pid, Here)}}.

told_of(Pid, #side{monitors = Monitors}) ->
    [{'DOWN', M} || {M, P} <- maps:to_list(Monitors), P =:= Pid].

there({inboxes, Visit, Pid, List}, #world{hosts = H} = W) ->
    W1 = case trunkline_hosts:heard(Pid, Visit, H) of
             same -> W;
             H1 -> W#world{hosts = H1, rows = []}
         end,
    lists:foldl(
      fun({I, ended}, #world{rows = Rows} = W2) -> W2#world{rows = Rows -- [I]};
         ({I, here}, #world{rows = Rows} = W2) -> W2#world{rows = lists:usort([I | Rows])}
      end, W1, List);
there({over, Visit}, #world{hosts = H} = W) ->
    lists:foldl(fun gone/2, W, trunkline_hosts:over(Visit, H));
there({'DOWN', M}, #world{hosts = H} = W) ->
    lists:foldl(fun gone/2, W, trunkline_hosts:down(M, H)).

%% (There is only one host.)
gone(Node, #world{hosts = H} = W) -> W#world{hosts = trunkline_hosts:is_away(Node, H), rows = []}.

here({visiting, Visit}, #world{guests = G} = W) ->
    W#world{guests = trunkline_guests:speaks_of(there, Visit, G)};
here({'DOWN', M}, #world{guests = G} = W) ->
    W#world{guests = trunkline_guests:down(M, G)}.

%% What trunkline_inboxes does after each event.
flush_visits(#world{guests = G, hosts = H} = W) ->
    W1 = lists:foldl(fun({there, News}, W0) -> tell_guest(News, W0) end, W,
                     trunkline_guests:due(G)),
    lists:foldl(fun tell_host/2, W1, trunkline_hosts:due(H)).

tell_guest([], W) ->
    W;
tell_guest(_, #world{connected = false, guests = G} = W) ->
    W#world{guests = trunkline_guests:is_away(there, G)};
tell_guest(_, #world{busy = true} = W) ->
    W;
tell_guest([News | Rest],
           #world{guests = G, to_there = To, inboxes = Inboxes, here = Here, there = There} = W) ->
    Message = case News of
                  {over, _} -> News;
                  {inboxes, Visit, Is} ->
                      {inboxes, Visit, Here#side.process,
                       [case Inboxes of #{I := _} -> {I, here}; #{} -> {I, ended} end || I <- Is]}
              end,
    W1 = W#world{to_there = To ++ [Message]},
    case trunkline_guests:told(there, News, G) of
        {ok, G1} ->
            tell_guest(Rest, W1#world{guests = G1});
        {monitor, G1} ->
            M = make_ref(),
            tell_guest(Rest, W1#world{guests = trunkline_guests:monitored(there, M, G1),
                                      here = monitors(M, There#side.process, Here)})
    end.

monitors(M, Pid, #side{monitors = Monitors} = Side) -> Side#side{monitors = Monitors#{M => Pid}}.

tell_host({Pid, _}, #world{connected = false} = W) ->
    gone(node(Pid), W);
tell_host(_, #world{busy = true} = W) ->
    W;
tell_host({Pid, Visit}, #world{hosts = H, to_here = To, here = #side{process = Now}, there = There,
                              late = {LateThere, LateHere}} = W) ->
    M = make_ref(),
    W#world{hosts = trunkline_hosts:monitored(Pid, M, H), to_here = To ++ [{visiting, Visit}],
            there = monitors(M, Pid, There),
            late = {LateThere ++ [{'DOWN', M} || Pid =/= Now], LateHere}}.      % it has died

%% All that can arrive has arrived, and has been answered.
quiet_visit(W) ->
    Steps = [{busy, false}, late, {arrive, here}, {arrive, there}, {handle, here}, {handle, there}],
    case lists:foldl(fun visit_step/2, W, Steps) of
        #world{to_there = [], to_here = [], here = #side{mailbox = []},
               there = #side{mailbox = []}} = W1 ->
            case flush_visits(W1) of
                W1 -> W1;
                W2 -> quiet_visit(W2)
            end;
        W1 ->
            quiet_visit(W1)
    end.
