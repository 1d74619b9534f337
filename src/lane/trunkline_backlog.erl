%% What a lane holds while it may not send, cut into batches.
%%
%% A first-in first-out queue. Messages are put in one by one, or as a batch that was about to
%% leave. They are taken out as batches. A batch is limited in messages and in bytes; only a single
%% message may exceed the limit in bytes.
-module(trunkline_backlog).
-moduledoc false.

-export([new/2, in/3, in_batch/3, take/1, is_empty/1, charge/1]).

-export_type([backlog/0]).

-type charge() :: trunkline_gate:charge().
-type entry() :: trunkline_lane:entry().

-record(backlog,
        {most_messages :: pos_integer(),
         most_charge :: charge(),
         sum = 0 :: charge(),                                % of everything inside
         batches = queue:new() :: queue:queue({charge(), [entry()]}),
         last_charge = 0 :: charge(),                        % of the batch that is being filled,
         last = [] :: [entry()]}).                           % and its entries, newest first
-opaque backlog() :: #backlog{}.

-spec new(Messages :: pos_integer(), Bytes :: pos_integer()) -> backlog().
new(Messages, Bytes) ->
    #backlog{most_messages = Messages, most_charge = trunkline_gate:limit(Bytes)}.

-spec is_empty(backlog()) -> boolean().
is_empty(#backlog{sum = Sum}) -> Sum =:= 0.

%% The sum of the charges inside.
-spec charge(backlog()) -> charge().
charge(#backlog{sum = Sum}) -> Sum.

-spec in(charge(), entry(), backlog()) -> backlog().
in(Charge, Entry, B) ->
    #backlog{sum = Sum, last_charge = Last} = B1 = close_for(Charge, B),
    B1#backlog{sum = Sum + Charge, last_charge = Last + Charge, last = [Entry | B1#backlog.last]}.

%% Entries in order, with the sum of their charges.
-spec in_batch(charge(), [entry(), ...], backlog()) -> backlog().
in_batch(Charge, Entries, B) ->
    #backlog{sum = Sum, batches = Batches} = B1 = close(B),
    B1#backlog{sum = Sum + Charge, batches = queue:in({Charge, Entries}, Batches)}.

%% The oldest batch.
-spec take(backlog()) -> {charge(), [entry(), ...], backlog()} | empty.
take(#backlog{sum = 0}) ->
    empty;
take(#backlog{sum = Sum, batches = Batches} = B) ->
    case queue:out(Batches) of
        {{value, {Charge, Entries}}, Batches1} ->
            {Charge, Entries, B#backlog{sum = Sum - Charge, batches = Batches1}};
        {empty, _} ->
            take(close(B))
    end.

%% Begins another batch if this message would make the last one too large.
close_for(Charge, #backlog{last_charge = Last} = B) ->
    case trunkline_gate:messages(Last) >= B#backlog.most_messages
        orelse Last + Charge > B#backlog.most_charge of
        true -> close(B);
        false -> B
    end.

close(#backlog{last = []} = B) ->
    B;
close(#backlog{batches = Batches, last_charge = Charge, last = Last} = B) ->
    B#backlog{batches = queue:in({Charge, lists:reverse(Last)}, Batches),
              last_charge = 0, last = []}.
