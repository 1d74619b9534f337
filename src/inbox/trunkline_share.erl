%% How an inbox shares its bound among the nodes that send to it.
%%
%%     senders' node                                    inbox
%%       | ── message of a stranger ─────────────────────> |
%%       |  <--------------------- introduced: a little -- |
%%       | ── message, charged ──────────────────────────> |  it is active: its
%%       |  <------------------------- window: its share -- |  share of the bound
%%       | ── message ─> ── message ─> ── message ───────> |
%%       |  <------- credit: what has left, and the window  |  by a quarter of the
%%       |                                                 |  window, or a little later
%%
%% The senders of one node have at most one window of messages in flight or waiting here. All
%% active nodes have equal shares of the bound, and one more share is left free for the next node.
%% But no window is larger than what the others leave: making a node's window smaller frees nothing
%% until its messages have left. So the sum of all windows exceeds the bound by no more than the
%% initial window of each node, which is a 64th of the bound, and one message of each. A
%% credit is sent when a quarter of the window has left. So a node that has used up its window has
%% at least three quarters of it in flight or here, or its credit is on the way.
%%
%% If senders do not wait for room (policy `reject') there are no shares: each node may fill the
%% inbox, which drops what does not fit.
%%
%% A source is a node and an epoch, a number that grows each time the node starts to count again. So
%% charges of an earlier epoch do no harm. Epoch 0 is a stranger: a node that does not know the
%% inbox yet.
%%
%% A source that has sent nothing for a while is forgotten, and starts again like any unknown one. A
%% source whose session is suspended is not forgotten: as much as its window may be in flight, and
%% arrives when the nodes are connected again.
%%
%% This module is pure: it decides, and has no side effects.
-module(trunkline_share).
-moduledoc false.

-export([new/3, first/2, arrived/4, left/3, unpaid/2, flush/2, is_owing/1, held/2, sources/1,
         nodes/1]).
-export([stranger/1, is_stranger/1, is_granted/2]).

-export_type([share/0, source/0, window/0]).

-type charge() :: trunkline_gate:charge().
-type milliseconds() :: integer().
-type source() :: {node(), Epoch :: integer()}.
-type window() :: {Bytes :: pos_integer(), Messages :: pos_integer()}.
-type credit() :: {source(), Left :: charge(), window()}.

%% Whether the connection to that node is lost, and its session may go on.
-type is_away() :: fun((node()) -> boolean()).

-record(source,
        {window :: window(),
         told :: window() | {0, 0},
         %% What the node may have outstanding: a window that becomes smaller takes nothing back.
         may :: {Bytes :: integer(), Messages :: integer()},
         held = 0 :: charge(),                   % what has arrived and not left
         owed = 0 :: charge(),                   % what has left without the node's knowledge
         last :: milliseconds()}).
-record(share,
        {bound :: window(),
         policy :: trunkline_mail:policy(),
         is_away :: is_away(),
         sources = #{} :: #{source() => #source{}},
         counted = none :: none | milliseconds()}).    % when the active sources were counted
-opaque share() :: #share{}.

%% A node that has not sent for so many ms is not active.
-define(ACTIVE, 10_000).
-define(RECOUNT, 100).
%% A first window is the bound divided by this. Nodes that are not active have such a window, too.
-define(IDLE, 64).
%% The epoch of a stranger.
-define(STRANGER, 0).

-spec new(Bound :: window(), trunkline_mail:policy(), is_away()) -> share().
new(Bound, Policy, IsAway) -> #share{bound = Bound, policy = Policy, is_away = IsAway}.

part(N, {Bytes, Messages}) -> {max(1, Bytes div N), max(1, Messages div N)}.

%% The window that a node has before it has sent anything.
-spec first(Bound :: window(), trunkline_mail:policy()) -> window().
first(Bound, reject) -> Bound;
first(Bound, _) -> part(?IDLE, Bound).

-spec stranger(node()) -> source().
stranger(Node) -> {Node, ?STRANGER}.

-spec is_stranger(source()) -> boolean().
is_stranger({_, Epoch}) -> Epoch =:= ?STRANGER.

%% Whether to admit one more message of a stranger. It is admitted if the stranger has less here
%% than a first window, or than what the others leave of the bound.
-spec is_granted(source(), share()) -> boolean().
is_granted(Name, #share{bound = Bound, policy = Policy, sources = Sources}) ->
    Held = case Sources of
               #{Name := #source{held = H}} -> H;
               #{} -> 0
           end,
    trunkline_gate:is_below(Held, first(Bound, Policy))
        orelse trunkline_gate:is_below(Held, subtract(Bound, promised(maps:remove(Name, Sources)))).

promised(Sources) -> maps:fold(fun promised/3, {0, 0}, Sources).

promised(Name, #source{held = Held, may = May, window = Window}, Sum) ->
    add(Sum, case is_stranger(Name) of
                 true -> unpack(Held);
                 false -> most(May, Window)
             end).

-spec arrived(milliseconds(), source(), charge(), share()) -> {[credit()], share()}.
arrived(Now, Name, Charge, #share{sources = Sources} = S) ->
    case Sources of
        #{Name := #source{held = Held} = Source} ->
            Source1 = Source#source{held = Held + Charge, last = Now},
            {[], S#share{sources = Sources#{Name := Source1}}};
        #{} ->
            First = first(S#share.bound, S#share.policy),
            Source = #source{window = First, told = First, may = First, held = Charge, last = Now},
            S1 = recount(Now, S#share{sources = Sources#{Name => Source}}),
            credit(Name, S1)
    end.

-spec left(source(), charge(), share()) -> {[credit()], share()}.
left(Name, Charge, #share{sources = Sources} = S) ->
    case Sources of
        #{Name := #source{held = Held, owed = Owed, told = Told} = Source} ->
            Source1 = Source#source{held = Held - Charge, owed = Owed + Charge},
            S1 = S#share{sources = Sources#{Name := Source1}},
            case is_quarter(Owed + Charge, Told) of
                true -> credit(Name, S1);
                false -> {[], S1}
            end;
        #{} ->
            {[], S}
    end.

is_quarter(Charge, {Bytes, Messages}) ->
    trunkline_gate:bytes(Charge) * 4 >= Bytes
        orelse trunkline_gate:messages(Charge) * 4 >= Messages.

%% This credit could not be sent now.
-spec unpaid(credit(), share()) -> share().
unpaid({Name, Left, _}, #share{sources = Sources} = S) ->
    #{Name := #source{owed = Owed, may = May} = Source} = Sources,
    Source1 = Source#source{owed = Owed + Left, told = {0, 0}, may = add(May, unpack(Left))},
    S#share{sources = Sources#{Name := Source1}}.

%% Called from time to time: returns all credit that is owed, and all windows that have changed.
-spec flush(milliseconds(), share()) -> {[credit()], share()}.
flush(Now, S0) ->
    S = case S0#share.counted of
            Counted when is_integer(Counted), Now - Counted < ?RECOUNT -> S0;
            _ -> recount(Now, S0)
        end,
    maps:fold(fun(Name, #source{owed = Owed, told = Told, window = Window}, {Credits, S1})
                    when Owed > 0; Told =/= Window ->
                      {Some, S2} = credit(Name, S1),
                      {Some ++ Credits, S2};
                 (_, _, Acc) ->
                      Acc
              end, {[], S}, S#share.sources).

credit(Name, #share{sources = Sources} = S) ->
    #{Name := #source{owed = Owed, window = Window, may = May} = Source} = Sources,
    Left = most(Window, subtract(May, unpack(Owed))),
    Source1 = Source#source{owed = 0, told = Window, may = Left},
    {[{Name, Owed, Window}], S#share{sources = Sources#{Name := Source1}}}.

recount(Now, #share{bound = Bound, policy = Policy, is_away = IsAway} = S) ->
    Sources = maps:map(fun({Node, _}, #source{last = Last} = Source) ->
                               case Now - Last >= ?ACTIVE andalso IsAway(Node) of
                                   true -> Source#source{last = Now};
                                   false -> Source
                               end
                       end, S#share.sources),
    First = first(Bound, Policy),
    IsActive = fun(#source{held = Held, last = Last}) -> Held > 0 orelse Now - Last < ?ACTIVE end,
    Newest = maps:fold(fun({Node, Epoch}, _, Map) ->
                               Map#{Node => max(Epoch, maps:get(Node, Map, Epoch))}
                       end, #{}, Sources),
    IsOld = fun({Node, Epoch}) -> Epoch < maps:get(Node, Newest) end,
    IsOver = fun(Name, Source) ->
                     is_even(Source)
                         andalso (IsOld(Name)
                                  orelse not IsActive(Source) andalso knows(First, Source))
             end,
    %% Only a source that knows its window has a share.
    IsSharing = fun(Name, Source) ->
                        Policy =/= reject andalso not is_stranger(Name) andalso not IsOld(Name)
                            andalso IsActive(Source)
                end,
    Kept = maps:map(fun(Name, Source) ->
                            settle(is_stranger(Name) orelse IsOld(Name), Source)
                    end, maps:filter(fun(Name, Source) -> not IsOver(Name, Source) end, Sources)),
    Active = length([active || Source <- maps:values(Kept), IsActive(Source)]),
    Promised = maps:fold(fun(_, #source{may = May} = Source, Sum) ->
                                 add(Sum, case IsActive(Source) of
                                              true -> May;
                                              false -> most({0, 0}, subtract(May, First))
                                          end)
                         end, {0, 0}, Kept),
    Share = part(Active + 1, Bound),
    S#share{counted = Now,
            sources = maps:map(fun(Name, Source) ->
                                       Source#source{window =
                                                         case IsSharing(Name, Source) of
                                                             true -> window(Share, Promised, Source,
                                                                            {Bound, First});
                                                             false -> First
                                                         end}
                               end, Kept)}.

%% Whether the source has nothing here, and knows of everything that has left.
is_even(#source{held = Held, owed = Owed}) -> Held + Owed =:= 0.

knows(Window, #source{told = Told}) -> Told =:= Window.

%% A source of an earlier epoch has nothing outstanding but what is here. The same is true for a
%% stranger, which has no window.
settle(true, #source{held = Held, owed = Owed} = Source) ->
    Source#source{may = unpack(Held + Owed)};
settle(false, Source) ->
    Source.

window({Bytes, Messages}, Promised, #source{may = May}, {Bound, {LeastBytes, LeastMessages}}) ->
    {FreeBytes, FreeMessages} = add(subtract(Bound, Promised), May),
    {min(Bytes, max(LeastBytes, FreeBytes)), min(Messages, max(LeastMessages, FreeMessages))}.

most({A, B}, {C, D}) -> {max(A, C), max(B, D)}.

unpack(Charge) -> {trunkline_gate:bytes(Charge), trunkline_gate:messages(Charge)}.

add({A, B}, {C, D}) -> {A + C, B + D}.
subtract({A, B}, {C, D}) -> {A - C, B - D}.

%% Whether there is anything to flush.
-spec is_owing(share()) -> boolean().
is_owing(#share{sources = Sources}) ->
    lists:any(fun(#source{owed = Owed, told = Told, window = Window}) ->
                      Owed > 0 orelse Told =/= Window
              end,
              maps:values(Sources)).

%% What the source has here, and what has left without its knowledge.
-spec held(source(), share()) -> charge().
held(Name, #share{sources = Sources}) ->
    case Sources of
        #{Name := #source{held = Held, owed = Owed}} -> Held + Owed;
        #{} -> 0
    end.

-spec sources(share()) -> #{source() => #{window := window(), held := charge()}}.
sources(#share{sources = Sources}) ->
    maps:map(fun(_, #source{window = Window, held = Held}) ->
                     #{window => Window, held => Held}
             end, Sources).

%% The same of each node: the window of its present epoch, and what is here of all of them.
-spec nodes(share()) -> #{node() => #{window := window(), held := charge()}}.
nodes(Share) ->
    %% In the order of the epochs.
    lists:foldl(fun({{Node, _}, #{window := Window, held := Held}}, Nodes) ->
                        #{held := Before} = maps:get(Node, Nodes, #{held => 0}),
                        Nodes#{Node => #{window => Window, held => Before + Held}}
                end, #{}, lists:sort(maps:to_list(sources(Share)))).

