%% How an inbox shares its bound among the nodes that send to it.
%%
%%     senders' node                                    inbox
%%       |  <--------------------- introduced: a little -- |
%%       | ── message, charged ──────────────────────────> |  it is active: its
%%       |  <------------------------- window: its share -- |  share of the bound
%%       | ── message ─> ── message ─> ── message ───────> |
%%       |  <------- credit: what has left, and the window  |  by a quarter of the
%%       |                                                 |  window, or a little later
%%
%% Each node's senders have at most a window of messages on their way and waiting here. Of
%% the bound each active node has the same share, and so has one that nobody is yet; but no
%% more than the others leave of it, who have been told of larger shares before. So the sum is
%% never above the bound by more than the little that each node has to begin with. With a
%% window outstanding there is a quarter here, or a credit under way.
%%
%% A source is a node, and a number that it takes for each new beginning: what is left of
%% an earlier one is of no consequence.
%%
%% This module decides, and does nothing.
-module(trunkline_share).

-export([new/2, first/1, arrived/4, left/4, flush/2, is_owing/1, held/2, arrived/2, sources/1]).

-export_type([share/0, source/0, window/0, credit/0]).

-type charge() :: trunkline_gate:charge().
-type milliseconds() :: integer().
-type source() :: {node(), Epoch :: integer()}.
-type window() :: {Bytes :: pos_integer(), Messages :: pos_integer()}.
-type credit() :: {source(), Left :: charge(), window()}.

-record(source,
        {window :: window(),
         told :: window(),
         held = 0 :: charge(),                   % what has arrived and not left
         owed = 0 :: charge(),                   % what has left and it does not know
         arrived = 1 :: pos_integer(),           % messages, ever
         last :: milliseconds()}).
-record(share,
        {bound :: window(),
         share :: window(),
         sources = #{} :: #{source() => #source{}},
         counted = none :: none | milliseconds()}).    % when the active ones were
-opaque share() :: #share{}.

%% A node that has not sent for so long, in ms, is not active.
-define(ACTIVE, 10_000).
-define(RECOUNT, 1000).
%% So many nodes that are not active may have as much as one that is.
-define(IDLE, 64).

-spec new(Bytes :: pos_integer(), Messages :: pos_integer()) -> share().
new(Bytes, Messages) -> #share{bound = {Bytes, Messages}, share = part(2, {Bytes, Messages})}.

part(N, {Bytes, Messages}) -> {max(1, Bytes div N), max(1, Messages div N)}.

%% What a node has before it has sent anything.
-spec first({Bytes :: pos_integer(), Messages :: pos_integer()}) -> window().
first(Bound) -> part(?IDLE, Bound).

-spec arrived(milliseconds(), source(), charge(), share()) -> {[credit()], share()}.
arrived(Now, Name, Charge, #share{sources = Sources} = S) ->
    case Sources of
        #{Name := #source{held = Held, arrived = N} = Source} ->
            {[], S#share{sources = Sources#{Name := Source#source{held = Held + Charge, arrived = N + 1, last = Now}}}};
        #{} ->
            First = first(S#share.bound),
            Source = #source{window = First, told = First, held = Charge, last = Now},
            S1 = recount(Now, S#share{sources = Sources#{Name => Source}}),
            credit(Name, S1)
    end.

-spec left(milliseconds(), source(), charge(), share()) -> {[credit()], share()}.
left(_, Name, Charge, #share{sources = Sources} = S) ->
    case Sources of
        #{Name := #source{held = Held, owed = Owed, told = Told} = Source} ->
            S1 = S#share{sources = Sources#{Name := Source#source{held = Held - Charge, owed = Owed + Charge}}},
            case is_quarter(Owed + Charge, Told) of
                true -> credit(Name, S1);
                false -> {[], S1}
            end;
        #{} ->
            {[], S}
    end.

is_quarter(Charge, {Bytes, Messages}) ->
    trunkline_gate:bytes(Charge) * 4 >= Bytes orelse trunkline_gate:messages(Charge) * 4 >= Messages.

%% From time to time: whatever is owed, and every window that is another one now.
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
    #{Name := #source{owed = Owed, window = Window} = Source} = Sources,
    {[{Name, Owed, Window}], S#share{sources = Sources#{Name := Source#source{owed = 0, told = Window}}}}.

recount(Now, #share{bound = Bound, sources = Sources} = S) ->
    IsActive = fun(#source{held = Held, last = Last}) -> Held > 0 orelse Now - Last < ?ACTIVE end,
    Active = length([active || Source <- maps:values(Sources), IsActive(Source)]),
    Share = part(Active + 1, Bound),
    IsOver = fun(#source{owed = Owed, told = Told} = Source) ->
                     Owed =:= 0 andalso Told =:= first(Bound) andalso not IsActive(Source)
             end,
    Sources1 = maps:filter(fun(_, Source) -> not IsOver(Source) end, Sources),
    Promised = lists:foldl(fun(Source, Sum) -> add(promised(Source), Sum) end, {0, 0}, maps:values(Sources1)),
    S#share{share = Share, counted = Now,
            sources = maps:map(fun(_, Source) ->
                                       Source#source{window = case IsActive(Source) of
                                                                  true -> window(Share, Promised, Source, Bound);
                                                                  false -> first(Bound)
                                                              end}
                               end, Sources1)}.

%% What a source may have here, or has.
promised(#source{held = Held, told = {Bytes, Messages}}) ->
    {max(Bytes, trunkline_gate:bytes(Held)), max(Messages, trunkline_gate:messages(Held))}.

window({Bytes, Messages}, Promised, Source, Bound) ->
    {FreeBytes, FreeMessages} = add(subtract(Bound, Promised), promised(Source)),
    {LeastBytes, LeastMessages} = first(Bound),
    {min(Bytes, max(LeastBytes, FreeBytes)), min(Messages, max(LeastMessages, FreeMessages))}.

add({A, B}, {C, D}) -> {A + C, B + D}.
subtract({A, B}, {C, D}) -> {A - C, B - D}.

%% Whether there is anything to flush, now or when a source becomes quiet.
-spec is_owing(share()) -> boolean().
is_owing(#share{sources = Sources}) ->
    lists:any(fun(#source{owed = Owed, told = Told, window = Window}) -> Owed > 0 orelse Told =/= Window end,
              maps:values(Sources)).

%% What is here of it, and what it does not know to have left.
-spec held(source(), share()) -> charge().
held(Name, #share{sources = Sources}) ->
    case Sources of
        #{Name := #source{held = Held, owed = Owed}} -> Held + Owed;
        #{} -> 0
    end.

%% How many of its messages have come.
-spec arrived(source(), share()) -> non_neg_integer().
arrived(Name, #share{sources = Sources}) ->
    case Sources of
        #{Name := #source{arrived = N}} -> N;
        #{} -> 0
    end.

-spec sources(share()) -> #{source() => #{window := window(), held := charge()}}.
sources(#share{sources = Sources}) ->
    maps:map(fun(_, #source{window = Window, held = Held}) -> #{window => Window, held => Held} end, Sources).
