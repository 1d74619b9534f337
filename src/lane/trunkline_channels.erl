%% The channels of one lane: which way its batches go, and how many connections it has for them.
%%
%%                       way            ready
%%     distribution ────────────> (opening) ─────> connections, one or more
%%          ^                                          │
%%          └── the distribution is better, or no connection is left
%%
%% Batches go by the distribution until the link has said that connections are better
%% (trunkline_way), and one is ready; and again when none is left. A batch that was given to a
%% connection is kept until it has arrived (trunkline_outbox), so the way may change at any time,
%% and a connection may break.
%%
%% If the session may go on over another connection of the distribution (`again'), batches that go
%% by the distribution are kept, too. When the distribution's connection is lost, all connections of
%% this lane are of no use either; what was kept waits until the inlet has said which batch it
%% expects. Such batches are kept as terms, in a table of the lane's: the distribution encodes
%% faster than this module could, and no garbage collection moves what is in a table.
%%
%% A batch goes to the connection that has the least to write. When all have enough it waits here.
%% If that lasts, more connections are made: a near peer needs only one, a far one has up to
%% `far_connections' (for all lanes together, but one for each). Connections that have had nothing
%% to do for a while are closed.
%%
%% A connection is written by a process of its own (trunkline_writer).
%%
%% Neither way promises much: what it delivers is whole, and unchanged. A connection may break, and
%% then it is not known which of its last batches have arrived. They are sent again by another one,
%% and the inlet drops those that it has had.
%%
%% This module is a part of the lane. The lane's process calls it, starts writers, sends to them,
%% and gets their messages (event/2).
-module(trunkline_channels).
-moduledoc false.

-export([new/3, open/3, by/1, send/3, arrived/2, event/2, close/1]).
-export([suspend/1, resume/2]).

-export_type([channels/0, way/0, sent/0]).

%% How often a batch may be sent by the distribution.
-type sent() :: once | again.
-type way() :: distribution | connections.

-record(channel,
        {since = erlang:monotonic_time(millisecond) :: integer(),
         given = 0 :: non_neg_integer(),               % bytes given to the writer,
         written = 0 :: non_neg_integer(),             % and written by it, as far as is known
         used = true :: boolean()}).                   % since the last look

-record(channels,
        {ix :: pos_integer(),
         inlet = none :: none | pid(),
         suspended = false :: boolean(),
         options :: trunkline_options:options(),
         stats :: trunkline_stats:stats(),
         %% What the link has said is better. As soon as it says anything, a connection should be
         %% ready. `closed': it does not matter any more.
         way = closed :: closed | none | way(),
         ready = [] :: [{pid(), #channel{}}],          % the oldest first
         opening = [] :: [pid()],
         outbox = trunkline_outbox:new() :: trunkline_outbox:outbox(),
         dictionary = trunkline_dictionary:new() :: trunkline_dictionary:dictionary(),
         %% Batches that went by the distribution and may not have arrived, if they are kept; and
         %% their bytes.
         table = none :: none | ets:table(),
         bytes = 0 :: non_neg_integer(),
         %% Since when there is more to send than the connections take (monotonic, ms).
         waiting = none :: none | integer(),
         retry = trunkline_retry:new({channels, retry}) :: trunkline_retry:retry(),
         idle = none :: none | reference()}).
-opaque channels() :: #channels{}.

%% ms
-define(MORE, 5).                    % of too much to send, before more connections are made
%% Bytes that may wait in a writer. What is there waits for that connection, even when others have
%% nothing to do.
-define(FAR_BYTES, 65536).
-define(NEAR_BYTES, 262144).

%% All batches go by the distribution until open/3. (A lane that was killed may have left numbers
%% behind.)
-spec new(pos_integer(), trunkline_options:options(), trunkline_stats:stats()) -> channels().
new(Ix, Options, Stats) -> kept(show(#channels{ix = Ix, options = Options, stats = Stats})).

%% A session begins, of channels that are closed.
-spec open(Inlet :: pid(), sent(), channels()) -> channels().
open(Inlet, Sent, C) ->
    C#channels{inlet = Inlet, way = none,
               table = case Sent of
                           once -> none;
                           again -> ets:new(?MODULE, [ordered_set, private])
                       end}.

%% Which way batches go now.
-spec by(channels()) -> way().
by(#channels{way = connections, ready = [_ | _]}) -> connections;
by(_) -> distribution.

%% By connections only if by/1 says so.
-spec send(way(), trunkline_batches:batch(), channels()) -> channels().
send(distribution, Batch, #channels{table = none, inlet = Inlet} = C) ->
    ok = trunkline_inlet:batch(Inlet, Batch),
    C;
send(distribution, {_, _, Charge, _} = Batch, #channels{table = Table, inlet = Inlet} = C) ->
    true = ets:insert(Table, Batch),
    ok = trunkline_inlet:batch(Inlet, Batch),
    kept(C#channels{bytes = C#channels.bytes + trunkline_gate:bytes(Charge)});
send(connections, {Serial, _, _, _} = Batch, C) ->
    #channels{dictionary = Dictionary, outbox = Outbox} = C,
    {Frame, Dictionary1} = trunkline_dictionary:encode(Batch, Dictionary),
    Outbox1 = trunkline_outbox:add(Serial, Frame, Outbox),
    pump(kept(C#channels{dictionary = Dictionary1, outbox = Outbox1})).

%% All batches up to that number are at the inlet.
-spec arrived(non_neg_integer(), channels()) -> channels().
arrived(Serial, #channels{outbox = Outbox, bytes = Bytes} = C) ->
    C1 = forget(Serial, C#channels{outbox = trunkline_outbox:arrived(Serial, Outbox)}),
    case Bytes + trunkline_outbox:bytes(Outbox) of
        0 -> C1;                             % nothing is kept: this costs nothing
        _ -> kept(C1)
    end.

forget(_, #channels{table = none} = C) ->
    C;
forget(Serial, #channels{bytes = Bytes, table = Table} = C) ->
    case ets:first(Table) of
        First when is_integer(First), First =< Serial ->
            Charge = ets:lookup_element(Table, First, 3),
            true = ets:delete(Table, First),
            forget(Serial, C#channels{bytes = Bytes - trunkline_gate:bytes(Charge)});
        _ ->
            C
    end.

%% The distribution's connection is lost. What may not have arrived waits again.
-spec suspend(channels()) -> channels().
suspend(#channels{way = closed} = C) ->
    C;
suspend(#channels{ready = Ready, opening = Opening, outbox = Outbox} = C) ->
    show(closed(Opening ++ [Pid || {Pid, _} <- Ready],
                C#channels{suspended = true, way = none, ready = [], opening = [], waiting = none,
                           outbox = trunkline_outbox:broken(distribution, Outbox)})).

%% What these connections may not have delivered waits again.
closed(Writers, #channels{outbox = Outbox} = C) ->
    lists:foreach(fun trunkline_writer:close/1, Writers),
    C#channels{outbox = lists:foldl(fun trunkline_outbox:broken/2, Outbox, Writers)}.

%% There is another connection, and batches up to that number have arrived. (If connections could
%% not be made, or ended, that was due to the same break.)
-spec resume(non_neg_integer(), channels()) -> channels().
resume(Serial, C) ->
    Retry = trunkline_retry:new({channels, retry}),
    #channels{table = Table} = C1 = arrived(Serial, C#channels{suspended = false, retry = Retry}),
    Table =:= none orelse send_again(ets:first(Table), Table, C1),
    pump(C1).

send_again('$end_of_table', _, _) ->
    ok;
send_again(Serial, Table, #channels{inlet = Inlet} = C) ->
    [Batch] = ets:lookup(Table, Serial),
    count(again, C),
    ok = trunkline_inlet:batch(Inlet, Batch),
    send_again(ets:next(Table, Serial), Table, C).

%% A message that the lane has got. `unknown': it is not about these connections, or too late.
-spec event(term(), channels()) -> channels() | unknown.
event(_, #channels{way = closed}) ->
    unknown;
event({way, Way}, C) ->
    %% This way is better now. In either case a connection should be ready from now on.
    pump(first(show(C#channels{way = Way})));
event({timeout, Timer, {channels, retry}}, #channels{retry = Retry} = C) ->
    pump(first(C#channels{retry = trunkline_retry:timeout(Timer, Retry)}));
event({timeout, Timer, {channels, idle}}, #channels{idle = Timer} = C) ->
    idle(close_unused(C#channels{idle = none}));
event({channel, Pid, {written, Bytes, _}}, #channels{ready = Ready} = C) ->
    case lists:keyfind(Pid, 1, Ready) of
        {_, Channel} -> pump(put_channel(Pid, Channel#channel{written = Bytes}, C));
        false -> unknown
    end;
event({channel, Pid, {ready, _, CongestionControl}}, #channels{opening = Opening} = C) ->
    case lists:member(Pid, Opening) of
        true ->
            ok = trunkline_connection:show(C#channels.stats, lane_congestion_control,
                                           CongestionControl),
            pump(idle(show(C#channels{opening = lists:delete(Pid, Opening),
                                      ready = C#channels.ready ++ [{Pid, #channel{}}]})));
        false ->
            unknown
    end;
event({'DOWN', _, process, Pid, Reason}, #channels{opening = Opening, ready = Ready} = C) ->
    case {lists:member(Pid, Opening), lists:keytake(Pid, 1, Ready)} of
        {true, _} ->
            pump(not_connected(Reason, show(C#channels{opening = lists:delete(Pid, Opening)})));
        {false, {value, {_, Channel}, Ready1}} ->
            Outbox = trunkline_outbox:broken(Pid, C#channels.outbox),
            Retry = trunkline_retry:ended(Channel#channel.since, C#channels.retry),
            pump(first(show(C#channels{ready = Ready1, outbox = Outbox, retry = Retry})));
        {false, false} ->
            unknown
    end;
event(_, _) ->
    unknown.

%% What is kept here is no longer of any use. From here on all batches go by the distribution.
-spec close(channels()) -> channels().
close(#channels{ix = Ix, inlet = Inlet, options = Options, stats = Stats, table = Table} = C) ->
    Table =:= none orelse ets:delete(Table),
    _ = suspend(C),
    (new(Ix, Options, Stats))#channels{inlet = Inlet}.

%% --- giving batches to connections ------------------------------------------------

pump(#channels{suspended = true} = C) ->
    C;
pump(#channels{outbox = Outbox} = C) ->
    case trunkline_outbox:is_waiting(Outbox) of
        false -> C#channels{waiting = none};
        true -> pump(by(C), C)
    end.

pump(distribution, #channels{inlet = Inlet, outbox = Outbox} = C) ->
    case trunkline_outbox:take(distribution, Outbox) of
        {Time, Frame, Outbox1} ->
            count(Time, C),
            ok = trunkline_inlet:frame(Inlet, Frame),
            pump(distribution, C#channels{outbox = Outbox1});
        empty ->
            C#channels{waiting = none}
    end;
pump(connections, C) ->
    Most = case is_far(C) of
               true -> ?FAR_BYTES;
               false -> ?NEAR_BYTES
           end,
    give(least(C#channels.ready), Most, C).

count(first, _) -> ok;
count(again, #channels{ix = Ix, stats = Stats}) ->
    trunkline_stats:add(Stats, {lane, Ix}, sent_again, 1).

give({Pid, #channel{given = Given, written = Written} = Channel}, Most,
     #channels{outbox = Outbox} = C) when Given - Written < Most ->
    case trunkline_outbox:take(Pid, Outbox) of
        {Time, {Bytes, _} = Frame, Outbox1} ->
            count(Time, C),
            %% Asks at half of what may wait, so that the answer is there before the other half is
            %% given. (The figure of a far peer, because a near one may turn out to be far: then
            %% what was given without asking must not be too much.)
            Tell = if 2 * (Given + Bytes - Written) >= ?FAR_BYTES -> tell;
                      true -> silent
                   end,
            ok = trunkline_writer:send(Pid, {Bytes, trunkline_wire:batch(Frame)}, Tell),
            C1 = put_channel(Pid, Channel#channel{given = Given + Bytes, used = true},
                             C#channels{outbox = Outbox1}),
            give(least(C1#channels.ready), Most, C1);
        empty ->
            C#channels{waiting = none}
    end;
give(_, _, C) ->
    more(C).

%% The connection that has the least to write.
least([First | Others]) ->
    lists:foldl(fun({_, Channel} = This, {_, Least} = That) ->
                        case unwritten(Channel) < unwritten(Least) of
                            true -> This;
                            false -> That
                        end
                end, First, Others).

unwritten(#channel{given = Given, written = Written}) -> Given - Written.

put_channel(Pid, Channel, #channels{ready = Ready} = C) ->
    C#channels{ready = lists:keyreplace(Pid, 1, Ready, {Pid, Channel})}.

%% --- making connections -------------------------------------------------------------

%% The next batch should find a connection.
first(#channels{way = Way, ready = [], opening = []} = C) when Way =/= none -> open(1, C);
first(C) -> C.

more(#channels{waiting = none} = C) ->
    C#channels{waiting = erlang:monotonic_time(millisecond)};
more(#channels{waiting = Since, ready = Ready, opening = []} = C) ->
    case erlang:monotonic_time(millisecond) - Since >= ?MORE andalso is_far(C) of
        true -> open(trunkline_connection:more(length(Ready)), C#channels{waiting = none});
        false -> C
    end;
more(C) ->
    C.

open(0, C) ->
    C;
open(N, #channels{ready = Ready, opening = Opening, retry = Retry, options = Options,
                  stats = Stats} = C) ->
    case trunkline_retry:may(Retry)
        andalso (Ready =:= [] andalso Opening =:= [] orelse is_room(C)) of
        true ->
            Transport = map_get(lane_transport, Options),
            Settings = trunkline_connection:settings(batches, Transport, Options, Stats),
            case trunkline_writer:open(C#channels.inlet, Settings) of
                {ok, {Pid, _}} -> open(N - 1, show(C#channels{opening = [Pid | Opening]}));
                {error, Reason} -> not_connected(Reason, C)
            end;
        false ->
            C
    end.

%% The limit is for all lanes together.
is_room(#channels{stats = Stats, options = Options}) ->
    trunkline_stats:sum(Stats, connections) + trunkline_stats:sum(Stats, connecting)
        < trunkline_connection:most(true, Options).

is_far(#channels{stats = Stats}) -> trunkline_connection:is_far(Stats).

%% (All lanes connect to the same place, so only the first one logs.)
not_connected(Reason, #channels{retry = Retry, inlet = Inlet, ready = Ready} = C) ->
    trunkline_retry:is_first(Retry) andalso Ready =:= [] andalso C#channels.ix =:= 1
        andalso trunkline_connection:not_made(Reason, node(Inlet), batches),
    C#channels{retry = trunkline_retry:failed(Retry)}.

%% --- unused connections -------------------------------------------------------------

idle(#channels{idle = none, ready = [_ | _], options = #{bulk_idle := Time}} = C) ->
    C#channels{idle = erlang:start_timer(Time, self(), {channels, idle})};
idle(C) ->
    C.

%% All but the oldest: the next batch should find a connection. (One that still has to deliver
%% something is slow, or waits for the inlet. If its path were dead, it would have ended.)
close_unused(#channels{ready = [Oldest | Others], outbox = Outbox} = C) ->
    {Used, Unused} = lists:partition(fun({Pid, #channel{used = Used}}) ->
                                             Used orelse trunkline_outbox:is_owed(Pid, Outbox)
                                     end, Others),
    show(closed([Pid || {Pid, _} <- Unused],
                C#channels{ready = [Oldest | [{Pid, Channel#channel{used = false}}
                                              || {Pid, Channel} <- Used]]}));
close_unused(C) ->
    C.

%% For info/1.
kept(#channels{ix = Ix, stats = Stats, outbox = Outbox, bytes = Bytes} = C) ->
    trunkline_stats:put(Stats, {lane, Ix}, kept_bytes, Bytes + trunkline_outbox:bytes(Outbox)),
    C.

show(#channels{ix = Ix, stats = Stats, ready = Ready, opening = Opening} = C) ->
    trunkline_stats:put(Stats, {lane, Ix}, connections, length(Ready)),
    trunkline_stats:put(Stats, {lane, Ix}, connecting, length(Opening)),
    trunkline_stats:put(Stats, {lane, Ix}, by_connections, case by(C) of
                                                               connections -> 1;
                                                               distribution -> 0
                                                           end),
    C.
