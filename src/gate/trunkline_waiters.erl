%% Senders that wait for room, in the order in which they came.
%%
%% A sender that finds its lane full asks the link for a ticket and sleeps. When
%% there is room, as many senders as fit are told to try again, oldest ticket
%% first. Nothing is reserved for them. One that tried and was overtaken by a
%% running sender comes back with the ticket it had, and so stands first again.
-module(trunkline_waiters).
-moduledoc false.

-export([new/0, is_empty/1, size/1, add/4, remove/2, release/3, release_all/1]).

-export_type([waiters/0, ticket/0]).

-type ticket() :: pos_integer().
-type waiter() :: reference().

-record(waiters,
        {next = 1 :: ticket(),
         %% Tickets of an earlier link remain valid, so two waiters may have the same one.
         queue = gb_trees:empty() :: gb_trees:tree({ticket(), waiter()}, Bytes :: pos_integer()),
         tickets = #{} :: #{waiter() => ticket()}}).
-opaque waiters() :: #waiters{}.

-spec new() -> waiters().
new() -> #waiters{}.

-spec is_empty(waiters()) -> boolean().
is_empty(#waiters{tickets = Tickets}) -> map_size(Tickets) =:= 0.

-spec size(waiters()) -> non_neg_integer().
size(#waiters{tickets = Tickets}) -> map_size(Tickets).

%% A sender wants to send that many bytes. Its ticket is `new', or the one that it had before.
-spec add(waiter(), new | ticket(), Bytes :: pos_integer(), waiters()) -> waiters().
add(Waiter, new, Bytes, #waiters{next = Next} = W) ->
    add(Waiter, Next, Bytes, W);
add(Waiter, Ticket, Bytes, #waiters{next = Next, queue = Queue, tickets = Tickets}) ->
    #waiters{next = max(Next, Ticket + 1),
             queue = gb_trees:insert({Ticket, Waiter}, Bytes, Queue),
             tickets = Tickets#{Waiter => Ticket}}.

%% The sender no longer waits.
-spec remove(waiter(), waiters()) -> waiters().
remove(Waiter, #waiters{queue = Queue, tickets = Tickets} = W) ->
    case maps:take(Waiter, Tickets) of
        {Ticket, Tickets1} ->
            W#waiters{queue = gb_trees:delete({Ticket, Waiter}, Queue), tickets = Tickets1};
        error ->
            W
    end.

%% Takes out the senders that fit into that many bytes of room, but at most so many: while there is
%% any room the next one goes, because a message may be larger than the whole queue.
-spec release(Room :: integer(), Most :: integer(), waiters()) ->
          {[{waiter(), ticket()}], waiters()}.
release(Room, Most, W) -> release(Room, Most, W, []).

release(Room, Most, #waiters{queue = Queue, tickets = Tickets} = W, Released) ->
    case Room > 0 andalso Most > 0 andalso not gb_trees:is_empty(Queue) of
        true ->
            {{Ticket, Waiter}, Bytes, Queue1} = gb_trees:take_smallest(Queue),
            release(Room - Bytes, Most - 1,
                    W#waiters{queue = Queue1, tickets = maps:remove(Waiter, Tickets)},
                    [{Waiter, Ticket} | Released]);
        false ->
            {lists:reverse(Released), W}
    end.

-spec release_all(waiters()) -> {[{waiter(), ticket()}], waiters()}.
release_all(#waiters{queue = Queue} = W) ->
    {[{Waiter, Ticket} || {Ticket, Waiter} <- gb_trees:keys(Queue)],
     W#waiters{queue = gb_trees:empty(), tickets = #{}}}.
