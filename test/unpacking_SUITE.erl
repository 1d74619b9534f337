%% Large messages as an inlet unpacks them, and what comes behind them (trunkline_unpacking): random
%% histories, with real openers, of which some are killed. A process plays the inlet and the lane.
-module(unpacking_SUITE).

-include("counterexample.hrl").

-export([all/0]).
-export([histories/1]).

all() -> [histories].

histories(_) -> counterexample:check(400, 200, prop_histories()).

%% Openers are processes, and so are two receivers, one with its mailbox off heap. A name changes
%% between these two, and each has an alias. The inlet is a process for each history. (Its peer is
%% not another node, so that openers of terms find no connection to its lane: terms are lost.)
prop_histories() ->
    ?ALL({Steps, End}, {?SIZED(Size, resize(3 * Size, list(step()))), oneof([everything, finish])},
         in_process(fun() -> run(Steps, End) end)).

step() ->
    frequency([{8, {send, range(1, 2), frequency([{4, small}, {3, large}, {1, term}]),
                    oneof([{pid, range(1, 2)}, {alias, range(1, 2)}, name])}},
               {6, {take, range(1, 4)}}, {4, {arrive, nat()}}, {2, settle}, {1, {kill, nat()}},
               {1, move}]).

in_process(Fun) ->
    {_, Ref} = spawn_monitor(fun() -> exit({result, Fun()}) end),
    Result = receive {'DOWN', Ref, process, _, Reason} -> Reason end,
    %% The next history needs the name.
    Named = monitor(process, ?MODULE),
    receive {'DOWN', Named, process, _, _} -> ok end,
    case Result of
        {result, Holds} -> Holds;
        _ -> error(Result)
    end.

%% The charge of each message is its number.
-record(inlet,
        {unpacking = trunkline_unpacking:new(self(), trunkline_stats:new(1)),
         notices = trunkline_notices:new(),
         receivers :: tuple(),                   % of {Pid, Alias}
         sent = [] :: list(),                    % {Number, Sender, Kind, To}
         lane = [] :: list(),                    % entries that the inlet has not got
         parts = [] :: list(),                   % {Number, Serial, Parts} that have not arrived
         done = [] :: list(),                    % serials of which the lane has not been told
         charged = [] :: list(), acknowledged = [] :: list(),
         kills = 0 :: integer(), moves = 0 :: integer()}).

run(Steps, End) ->
    Receivers = {receiver(on_heap), receiver(off_heap)},
    true = register(?MODULE, element(1, element(1, Receivers))),
    W = lists:foldl(fun(Step, W0) -> drain(step(Step, W0)) end,
                    #inlet{receivers = Receivers}, Steps ++ [{take, length(Steps)}]),
    W1 = finish(End, W),
    [] = trunkline_unpacking:undelivered(W1#inlet.unpacking),
    is_right(End, W1).

receiver(Mailbox) ->
    Self = self(),
    Pid = spawn_opt(fun() -> Self ! {self(), alias()}, received(Self, []) end,
                    [link, {message_queue_data, Mailbox}]),
    receive {Pid, Alias} -> {Pid, Alias} end.

received(Inlet, Messages) ->
    receive
        stop -> Inlet ! {self(), lists:reverse(Messages)};
        Message -> received(Inlet, [Message | Messages])
    end.

step({send, S, Kind, To}, #inlet{sent = Sent, notices = Notices} = W) ->
    N = length(Sent) + 1,
    Sender = sender(S),
    {Entry, Notices1} = trunkline_notices:mark(N, Sender, message(Kind, To, {S, N}, W), Notices),
    W1 = W#inlet{sent = [{N, S, Kind, To} | Sent], notices = Notices1},
    case Entry of
        [{parcel, N, Serial, Sender, Addressee} | Parcel] ->
            {Sizes, Parts} = parcel(Kind, Parcel),
            W1#inlet{lane = W1#inlet.lane ++ [[{notice, N, Serial, Sender, Addressee} | Sizes]],
                     parts = [{N, Serial, Parts} || Parts =/= none] ++ W1#inlet.parts};
        _ ->
            W1#inlet{lane = W1#inlet.lane ++ [Entry]}
    end;
step({take, N}, #inlet{lane = Lane} = W) ->
    {Taken, Rest} = lists:split(min(N, length(Lane)), Lane),
    lists:foldl(fun entry/2, W#inlet{lane = Rest}, Taken);
step({arrive, Nth}, #inlet{parts = [_ | _] = All, unpacking = U} = W) ->
    {_, Serial, Parts} = Arrived = nth(Nth, All),
    carry_out(trunkline_unpacking:arrived(Serial, Parts, U),
              W#inlet{parts = lists:delete(Arrived, All)});
step(settle, #inlet{done = Done, notices = Notices} = W) ->
    {_, Notices1} = lists:mapfoldl(fun trunkline_notices:settle/2, Notices, Done),
    W#inlet{done = [], notices = Notices1};
step({kill, Nth}, #inlet{kills = Kills} = W) ->
    case process_info(self(), monitors) of
        {monitors, []} ->
            W;
        {monitors, Openers} ->
            {process, Opener} = nth(Nth, Openers),
            exit(Opener, kill),
            W#inlet{kills = Kills + 1}
    end;
step(move, #inlet{receivers = Receivers, moves = Moves} = W) ->
    true = unregister(?MODULE),
    true = register(?MODULE, element(1, element(1 + (Moves + 1) rem 2, Receivers))),
    W#inlet{moves = Moves + 1};
step(_, W) ->
    W.

message(small, To, Message, W) ->
    [address(To, W) | Message];
message(large, To, Message, W) ->
    [{parcel, element(2, Message), address(To, W)} | trunkline_parcel:pack(Message)];
message(term, To, Message, W) ->
    [{parcel, element(2, Message), address(To, W)} | trunkline_parcel:term(Message, 100)].

address({pid, N}, #inlet{receivers = Receivers}) -> element(1, element(N, Receivers));
address({alias, N}, #inlet{receivers = Receivers}) -> element(2, element(N, Receivers));
address(name, _) -> ?MODULE.

parcel(large, Parcel) ->
    [Segment] = trunkline_parcel:segments(Parcel),
    {trunkline_parcel:sizes(Parcel), [{0, iolist_to_binary(Segment)}]};
parcel(term, Parcel) ->
    {{term, trunkline_parcel:bytes(Parcel)}, none}.

%% What the inlet does with an entry of a batch.
entry([{behind, N, _, _} = Behind | Message], #inlet{unpacking = U} = W) ->
    case trunkline_unpacking:behind(Behind, Message, U) of
        {now, Entry, U1} -> entry(Entry, W#inlet{unpacking = U1});
        {later, U1} -> W#inlet{unpacking = U1, charged = [N | W#inlet.charged]}
    end;
entry([{notice, N, _, _, _} = Notice | Sizes], #inlet{unpacking = U} = W) ->
    carry_out(trunkline_unpacking:noticed(Notice, Sizes, U),
              W#inlet{charged = [N | W#inlet.charged]});
entry([To | Message], W) ->
    ok = trunkline_process:deliver(To, Message),
    W.

carry_out({Steps, U}, W) -> lists:foldl(fun carry_out_step/2, W#inlet{unpacking = U}, Steps).

carry_out_step({turn, Opener, To, Receiver}, W) ->
    ok = trunkline_opener:deliver(Opener, {To, Receiver, plain}),
    W;
carry_out_step({message, N, Entry}, #inlet{acknowledged = Acknowledged} = W) ->
    entry(Entry, W#inlet{acknowledged = [N | Acknowledged]});
carry_out_step({delivered, _}, W) ->
    W;
carry_out_step({done, Serial, N, _}, #inlet{acknowledged = Acknowledged, done = Done} = W) ->
    W#inlet{acknowledged = [N | Acknowledged], done = [Serial | Done]}.

drain(W) -> drain(0, W).

drain(Timeout, #inlet{unpacking = U} = W) ->
    receive
        {opened, Opener, To, Message} ->
            case trunkline_unpacking:is_opener(Opener, U) of
                true ->
                    ok = trunkline_process:deliver(To, Message),
                    news({opener, Opener, delivered}, W);
                false ->
                    drain(W)
            end;
        News ->
            news(News, W)
    after Timeout ->
            Timeout =:= 0 orelse error(timeout),
            W
    end.

news(News, #inlet{unpacking = U} = W) ->
    drain(carry_out(trunkline_unpacking:news(News, U), W)).

finish(everything, #inlet{parts = [_ | _]} = W) ->
    finish(everything, step({arrive, 0}, W));
finish(finish, #inlet{unpacking = U} = W) ->
    finish(finished, carry_out(trunkline_unpacking:finish(U), W));
finish(End, #inlet{unpacking = U} = W) ->
    case trunkline_unpacking:is_done(U) of
        true -> W;
        false -> finish(End, drain(5000, W))
    end.

%% Each receiver has the messages of a sender in order, and none twice. What is not there is a
%% term, has not arrived, or was in an opener that was killed; or it was large, for a name that was
%% not registered for an instant. What is not acknowledged is a term, or has not arrived.
is_right(End, #inlet{receivers = Receivers, sent = Sent, parts = Parts} = W) ->
    All = [begin Pid ! stop, receive {Pid, Messages} -> Messages end end
           || {Pid, _} <- tuple_to_list(Receivers)],
    [begin Of = [N || {S, N} <- Messages, S =:= Sender], Of = lists:usort(Of) end
     || Messages <- All, Sender <- [1, 2]],
    Got = [N || {_, N} <- lists:append(All)],
    [] = Got -- lists:usort(Got),
    Small = [N || {N, _, small, _} <- Sent],
    Large = [N || {N, _, large, To} <- Sent, W#inlet.moves =:= 0 orelse To =/= name],
    Absent = case End of
                 everything -> [] = Parts;
                 finish -> [N || {N, _, _} <- Parts]
             end,
    [] = Small -- Got,
    true = length(Large -- Got) =< W#inlet.kills + length(Absent),
    [] = W#inlet.acknowledged -- W#inlet.charged,
    Lost = Absent ++ [N || {N, _, term, _} <- Sent],
    NotAcknowledged = W#inlet.charged -- W#inlet.acknowledged,
    NotAcknowledged -- Lost =:= [] andalso length(Lost -- NotAcknowledged) =< W#inlet.kills.

nth(N, List) -> lists:nth(N rem length(List) + 1, List).

sender(N) -> list_to_pid("<0." ++ integer_to_list(N) ++ ".0>").
