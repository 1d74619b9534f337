%% Senders that wait for room, in the order in which they came.
%%
%% A sender that finds its lane full asks the link for a ticket and sleeps. When
%% there is room, as many senders as fit are told to try again, oldest ticket
%% first. Nothing is reserved for them: a sender that was told and died in
%% between costs nothing. One that tried and was overtaken by a running sender
%% comes back with the ticket it had, and so stands first again.
-module(trunkline_waiters).

-export([new/0, is_empty/1, size/1, add/4, release/2, release_all/1]).

-export_type([waiters/0, ticket/0]).

-type ticket() :: pos_integer().
-type waiter() :: reference().
%% Tickets of an earlier link are welcome, hence two waiters may have the same.
-opaque waiters() :: {Next :: ticket(), gb_trees:tree({ticket(), waiter()}, Bytes :: pos_integer())}.

-spec new() -> waiters().
new() -> {1, gb_trees:empty()}.

-spec is_empty(waiters()) -> boolean().
is_empty({_, Tree}) -> gb_trees:is_empty(Tree).

-spec size(waiters()) -> non_neg_integer().
size({_, Tree}) -> gb_trees:size(Tree).

%% Somebody wants to send that many bytes; `new', or with the ticket it had.
-spec add(waiter(), new | ticket(), Bytes :: pos_integer(), waiters()) -> waiters().
add(Waiter, new, Bytes, {Next, Tree}) ->
    {Next + 1, gb_trees:insert({Next, Waiter}, Bytes, Tree)};
add(Waiter, Ticket, Bytes, {Next, Tree}) ->
    {max(Next, Ticket + 1), gb_trees:insert({Ticket, Waiter}, Bytes, Tree)}.

%% Those who fit into that many bytes of room: while there is any room the
%% next one goes, since a message may be larger than the whole queue.
-spec release(Room :: integer(), waiters()) -> {[{waiter(), ticket()}], waiters()}.
release(Room, {Next, Tree}) ->
    {Released, Tree1} = release(Room, Tree, []),
    {Released, {Next, Tree1}}.

release(Room, Tree, Released) ->
    case Room > 0 andalso not gb_trees:is_empty(Tree) of
        true ->
            {{Ticket, Waiter}, Bytes, Tree1} = gb_trees:take_smallest(Tree),
            release(Room - Bytes, Tree1, [{Waiter, Ticket} | Released]);
        false ->
            {lists:reverse(Released), Tree}
    end.

-spec release_all(waiters()) -> {[{waiter(), ticket()}], waiters()}.
release_all({Next, Tree}) ->
    {[{Waiter, Ticket} || {Ticket, Waiter} <- gb_trees:keys(Tree)], {Next, gb_trees:empty()}}.
