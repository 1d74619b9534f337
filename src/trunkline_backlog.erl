%% What a lane holds when it may not send, and how it is cut into batches.
%%
%% A first-in first-out queue of items, each `[Charge | Entry]' as it came from
%% a sender. A batch takes items from the front until it has as many messages
%% or bytes as a batch may have; it has at least one item, however large.
-module(trunkline_backlog).

-export([new/0, in/2, take/3, is_empty/1, charge/1]).

-export_type([backlog/0, item/0, entry/0]).

-type charge() :: trunkline_gate:charge().
-type entry() :: trunkline_lane:entry().
-type item() :: nonempty_improper_list(charge(), entry()).
-opaque backlog() :: {charge(), queue:queue(item())}.

-dialyzer({no_improper_lists, [in/2, take/5]}).

-spec new() -> backlog().
new() -> {0, queue:new()}.

-spec is_empty(backlog()) -> boolean().
is_empty({_, Queue}) -> queue:is_empty(Queue).

%% The sum of all charges inside.
-spec charge(backlog()) -> charge().
charge({Charge, _}) -> Charge.

-spec in(item(), backlog()) -> backlog().
in([Charge | _] = Item, {Sum, Queue}) ->
    {Sum + Charge, queue:in(Item, Queue)}.

%% The next batch, in order, with what it was charged.
-spec take(pos_integer(), charge(), backlog()) -> {[entry()], charge(), backlog()}.
take(MostMessages, MostCharge, {Sum, Queue}) ->
    {Entries, Charge, Queue1} = take(MostMessages, MostCharge, 0, [], Queue),
    {Entries, Charge, {Sum - Charge, Queue1}}.

take(Messages, MostCharge, Charge, Entries, Queue)
  when Messages > 0, Charge < MostCharge ->
    case queue:out(Queue) of
        {{value, [C | Entry]}, Queue1} ->
            take(Messages - 1, MostCharge, Charge + C, [Entry | Entries], Queue1);
        {empty, _} ->
            {lists:reverse(Entries), Charge, Queue}
    end;
take(_, _, Charge, Entries, Queue) ->
    {lists:reverse(Entries), Charge, Queue}.
