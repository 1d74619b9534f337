%% The messages that wait in an inbox: a bounded queue with two priority classes, and a policy
%% for what to do when it is full.
%%
%%                 urgent    calls  ──┐
%%                           others ──┴─> first ──┐
%%                 normal    calls  ──┐           ├──> out
%%                           others ──┴─> then  ──┘
%%
%% Within a class messages leave in the order in which they came. As at a gate (trunkline_gate), a
%% message is admitted while the queue is below both bounds. Calls are always admitted and never
%% dropped, because a caller waits for each. The same is true for messages whose room was `granted'
%% before they were sent (trunkline_share).
%%
%% This module is pure: it decides, and has no side effects.
-module(trunkline_mail).
-moduledoc false.

-export([new/2, in/4, is_refusing/1, will_be_full/2, refused/1, out/1, level/1, is_full/1,
         is_half_empty/1, take_dropped/1, dropped/1]).

-export_type([mail/0, policy/0]).

%% Messages: enough for the consumer while others are refused.
-define(SOME, 1000).

-type policy() :: block | reject | drop_newest | drop_oldest.
-type class() :: urgent | normal.
-type kind() :: call | granted | other.
-type charge() :: trunkline_gate:charge().
-type item(Any) :: {charge(), Any}.
-type numbered(Any) :: {pos_integer(), item(Any)}.
-type queues() :: {queue:queue(numbered(any())), queue:queue(numbered(any()))}.

-record(mail,
        {bound :: {Bytes :: pos_integer(), Messages :: pos_integer()},
         policy :: policy(),
         next = 1 :: pos_integer(),
         level = 0 :: charge(),
         %% For each class: the messages that may not be dropped, and those that may.
         urgent = {queue:new(), queue:new()} :: queues(),
         normal = {queue:new(), queue:new()} :: queues(),
         dropped = 0 :: non_neg_integer(),
         told = 0 :: non_neg_integer()}).        % of these: see take_dropped/1
-opaque mail() :: #mail{}.

-spec new({Bytes :: pos_integer(), Messages :: pos_integer()}, policy()) -> mail().
new(Bound, Policy) -> #mail{bound = Bound, policy = Policy}.

%% Returns what had to be dropped. If the new message is not among these, it is in the queue.
-spec in(class(), kind(), item(Any), mail()) -> {Dropped :: [item(Any)], mail()}.
in(Class, Kind, Item, M) when Kind =:= call; Kind =:= granted ->
    {[], put(Class, kept, Item, M)};
in(Class, other, Item, #mail{policy = drop_oldest} = M) ->
    make_room(Class, Item, [], M);
in(Class, other, Item, M) ->
    case is_full(M) of
        true -> drop([Item], M);
        false -> {[], put(Class, other, Item, M)}
    end.

%% Whether in/4 would drop a message of kind `other'.
-spec is_refusing(mail()) -> boolean().
is_refusing(#mail{policy = drop_oldest}) -> false;
is_refusing(M) -> is_full(M).

%% Whether so many messages behind one of kind `other' will fill the queue, which has enough for a
%% while. (Under drop_oldest the message would be dropped for these. A queue that becomes long is
%% slow, because it is copied with each garbage collection.)
-spec will_be_full(Behind :: pos_integer(), mail()) -> boolean().
will_be_full(Behind, #mail{policy = Policy, level = Level, bound = {_, Most}}) ->
    Queued = trunkline_gate:messages(Level),
    Queued >= min(?SOME, Most)
        andalso case Policy of
                    drop_oldest -> Behind >= Most;
                    _ -> Queued + Behind >= Most
                end.

%% A message was dropped before it came here.
-spec refused(mail()) -> mail().
refused(#mail{dropped = Dropped} = M) -> M#mail{dropped = Dropped + 1}.

%% Drops the oldest messages, normal ones first. If none may be dropped, there is no room for the
%% new one.
make_room(Class, Item, Dropped, M) ->
    case is_full(M) of
        false ->
            drop(Dropped, put(Class, other, Item, M));
        true ->
            case drop_first([normal, urgent], M) of
                {First, M1} -> make_room(Class, Item, [First | Dropped], M1);
                none -> drop([Item | Dropped], M)
            end
    end.

drop_first([], _) ->
    none;
drop_first([Class | Classes], M) ->
    {Kept, Others} = class(Class, M),
    case queue:out(Others) of
        {{value, {_, {Charge, _} = Item}}, Others1} ->
            {Item, set_class(Class, {Kept, Others1}, M#mail{level = M#mail.level - Charge})};
        {empty, _} ->
            drop_first(Classes, M)
    end.

drop(Dropped, #mail{dropped = N} = M) ->
    {lists:reverse(Dropped), M#mail{dropped = N + length(Dropped)}}.

put(Class, Where, {Charge, _} = Item, #mail{next = N, level = Level} = M) ->
    {Kept, Others} = class(Class, M),
    set_class(Class, case Where of
                         kept -> {queue:in({N, Item}, Kept), Others};
                         other -> {Kept, queue:in({N, Item}, Others)}
                     end, M#mail{next = N + 1, level = Level + Charge}).

-spec out(mail()) -> {item(any()), mail()} | empty.
out(M) -> out([urgent, normal], M).

out([], _) ->
    empty;
out([Class | Classes], #mail{level = Level} = M) ->
    {Kept, Others} = class(Class, M),
    case {queue:peek(Kept), queue:peek(Others)} of
        {empty, empty} ->
            out(Classes, M);
        {{value, {A, {Charge, _} = Item}}, {value, {B, _}}} when A < B ->
            {Item, set_class(Class, {queue:drop(Kept), Others}, M#mail{level = Level - Charge})};
        {_, {value, {_, {Charge, _} = Item}}} ->
            {Item, set_class(Class, {Kept, queue:drop(Others)}, M#mail{level = Level - Charge})};
        {{value, {_, {Charge, _} = Item}}, empty} ->
            {Item, set_class(Class, {queue:drop(Kept), Others}, M#mail{level = Level - Charge})}
    end.

class(urgent, #mail{urgent = Queues}) -> Queues;
class(normal, #mail{normal = Queues}) -> Queues.

set_class(urgent, Queues, M) -> M#mail{urgent = Queues};
set_class(normal, Queues, M) -> M#mail{normal = Queues}.

-spec level(mail()) -> charge().
level(#mail{level = Level}) -> Level.

-spec is_full(mail()) -> boolean().
is_full(#mail{level = Level, bound = Bound}) -> not trunkline_gate:is_below(Level, Bound).

-spec is_half_empty(mail()) -> boolean().
is_half_empty(#mail{level = Level, bound = {Bytes, Messages}}) ->
    trunkline_gate:bytes(Level) * 2 =< Bytes andalso trunkline_gate:messages(Level) * 2 =< Messages.

%% How many messages have been dropped since the last call.
-spec take_dropped(mail()) -> {non_neg_integer(), mail()}.
take_dropped(#mail{dropped = Dropped, told = Told} = M) ->
    {Dropped - Told, M#mail{told = Dropped}}.

%% How many in all.
-spec dropped(mail()) -> non_neg_integer().
dropped(#mail{dropped = Dropped}) -> Dropped.
