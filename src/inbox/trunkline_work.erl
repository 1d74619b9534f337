%% Counts the messages that the process behind an inbox, the consumer, has and is not done with. The
%% counter is an array that the keeper and the consumer both write.
%%
%%     keeper                                   consumer
%%       | -- messages, at most so many -------> |
%%       |   (waits)                             |  done with one, with two, with enough of them:
%%       | <------------------- '$inbox_more' -- |
%%       | <------------------- '$inbox_idle' -- |  its mailbox is empty
%%
%% The consumer sends a message only if the keeper waits, and only when it has few enough left. Now
%% and then the keeper looks by itself. A callback of a server may receive messages itself. These
%% count as done together with the next message that the server is given. So the server also says
%% when it has nothing left, and then gets at least one message.
%%
%% How many messages the consumer may have is the window. A server whose window is not fixed gets as
%% many as it can do until the keeper has its turn on a processor, but not many more. If it has
%% nothing left to do while messages are waiting, its window was too small, and becomes twice as
%% large. Each time that it has done some, but not all, the window shrinks by an eighth. So a slow
%% server's mailbox stays as short as it can be, and a fast server does not wait for the keeper.
%%
%% What a server has is also bounded in bytes. They are counted in units of 128, rounded down, so
%% that the sum of all that it has ever had remains a small integer. (A process that has opened an
%% inbox only says how many messages it is done with.)
-module(trunkline_work).
-moduledoc false.

-export([new/3, keeper/1, room/2, idle/2, less/2, add/2, done/2, wait/1, size/1]).

-export_type([work/0, window/0, cost/0]).

-type window() :: {Least :: pos_integer(), Most :: pos_integer()}.
%% Messages and units, packed as in trunkline_gate.
-type cost() :: trunkline_gate:charge().

-record(work,
        {keeper :: pid(),
         kind :: server | process,
         cells :: atomics:atomics_ref(),
         window :: window(),
         units :: pos_integer()}).
-opaque work() :: #work{}.

-define(LEVEL, 1).                    % what the consumer has
-define(AWAITED, 2).                  % 1 while the keeper waits for it to have less
-define(WINDOW, 3).                   % in messages
-define(FEW, 4).                      % so few that it asks for more
-define(FULL, 5).                     % 1: the last time it had enough bytes
-define(UNIT, 7).                     % bits

%% The calling process is the keeper. A process asks for more when it is done with one message, and
%% a server when it is done with half of its window.
-spec new(server | process, window(), Bytes :: non_neg_integer()) -> work().
new(Kind, {Least, _} = Window, Bytes) ->
    Work = #work{keeper = self(), kind = Kind, cells = atomics:new(?FULL, [{signed, true}]),
                 window = Window, units = max(1, Bytes bsr ?UNIT)},
    ok = set_window(Least, Work),
    Work.

set_window(Messages, #work{kind = Kind, cells = Cells}) ->
    ok = atomics:put(Cells, ?WINDOW, Messages),
    atomics:put(Cells, ?FEW, case Kind of
                                 process -> Messages - 1;
                                 server -> Messages div 2
                             end).

-spec keeper(work()) -> pid().
keeper(#work{keeper = Keeper}) -> Keeper.

%% How much more the consumer may have; 0: nothing. AreWaiting: whether messages are waiting for it.
-spec room(AreWaiting :: boolean(), work()) -> cost().
room(AreWaiting, #work{cells = Cells, units = Most} = Work) ->
    {Units, Messages} = unpack(atomics:get(Cells, ?LEVEL)),
    Window = atomics:get(Cells, ?WINDOW),
    Fitted = if AreWaiting -> fitted(Messages, Window, Work);
                true -> Window
             end,
    Fitted =:= Window orelse set_window(Fitted, Work),
    if Units >= Most -> ok = atomics:put(Cells, ?FULL, 1), 0;
       Messages >= Fitted -> ok = atomics:put(Cells, ?FULL, 0), 0;
       true -> trunkline_gate:packed(Most - Units, Fitted - Messages)
    end.

%% (If it had enough bytes, a larger window would not have helped.)
fitted(Messages, Window, #work{cells = Cells, window = {Least, Most}}) ->
    if Messages =< 0 ->
            case atomics:get(Cells, ?FULL) of
                0 -> min(Most, 2 * Window);
                1 -> Window
            end;
       Messages < Window -> max(Least, Window - Window div 8);
       true -> Window
    end.

%% The same for a consumer that has nothing left.
-spec idle(AreWaiting :: boolean(), work()) -> cost().
idle(AreWaiting, Work) ->
    case room(AreWaiting, Work) of
        0 -> trunkline_gate:packed(1, 1);
        Room -> Room
    end.

%% (A process may say that it is done with more than it had.)
unpack(Level) when Level < 0 -> {0, Level};
unpack(Level) -> {trunkline_gate:bytes(Level), trunkline_gate:messages(Level)}.

%% What is left of that room when the consumer has got one more message.
-spec less(cost(), Room :: cost()) -> cost().
less(Cost, Room) ->
    {Units, 1} = unpack(Cost),
    case unpack(Room) of
        {Free, Messages} when Units < Free, Messages > 1 -> Room - Cost;
        _ -> 0
    end.

%% The consumer gets one more. Returns what that costs.
-spec add(trunkline_gate:charge(), work()) -> cost().
add(Charge, #work{kind = Kind, cells = Cells}) ->
    Cost = case Kind of
               process -> 1;
               server -> trunkline_gate:packed(trunkline_gate:bytes(Charge) bsr ?UNIT, 1)
           end,
    ok = atomics:add(Cells, ?LEVEL, Cost),
    Cost.

%% The consumer is done with that.
-spec done(work(), cost()) -> ok.
done(#work{keeper = Keeper, cells = Cells} = Work, Cost) ->
    Left = atomics:sub_get(Cells, ?LEVEL, Cost),
    Word = atomics:get(Cells, ?AWAITED) =:= 1 andalso word(Left, Work),
    case Word =/= false andalso atomics:exchange(Cells, ?AWAITED, 0) of
        1 -> Keeper ! Word, ok;
        _ -> ok
    end.

word(Left, Work) ->
    case is_little(Left, Work) of
        true -> '$inbox_more';
        false -> is_idle(Work) andalso '$inbox_idle'
    end.

is_little(Level, #work{cells = Cells, units = Most}) ->
    {Units, Messages} = unpack(Level),
    Messages =< atomics:get(Cells, ?FEW) andalso 2 * Units =< Most.

is_idle(#work{kind = server}) ->
    process_info(self(), message_queue_len) =:= {message_queue_len, 0};
is_idle(#work{kind = process}) ->
    false.

%% The keeper waits for '$inbox_more', unless the consumer has done enough already. The mark is set
%% before the level is read, so that a consumer that is done with one in between sees the mark.
-spec wait(work()) -> wait | more.
wait(#work{cells = Cells} = Work) ->
    case atomics:get(Cells, ?AWAITED) of
        1 ->
            wait;
        0 ->
            atomics:put(Cells, ?AWAITED, 1),
            case is_little(atomics:get(Cells, ?LEVEL), Work) of
                true -> more;
                false -> wait
            end
    end.

%% How many messages the consumer has. (It may have reported more as done than it had.)
-spec size(work()) -> non_neg_integer().
size(#work{cells = Cells}) ->
    {_, Messages} = unpack(atomics:get(Cells, ?LEVEL)),
    max(0, Messages).
