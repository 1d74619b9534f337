%% Load between two nodes: streams of numbered messages, six of them to three processes.
%% A test starts it, sees that it goes on whatever happens, and counts at the end.
-module(streams).

-include_lib("stdlib/include/assert.hrl").

-export([start/3, trickle/3, flowing/3, flowing/4, finish/4]).
-export([both_ways/2, flowing/2, finish/2]).

%% From A to B, messages of so many bytes: {Receivers, [{Id, Receiver, Stream}]}.
start(A, B, Bytes) -> start(stream, A, B, Bytes).

%% Some 4,000 a second each.
trickle(A, B, Bytes) -> start(trickle, A, B, Bytes).

start(How, A, B, Bytes) ->
    Pids = cluster:call(B, traffic, start_watchers, [3]),
    {Pids, [begin
                To = lists:nth(Id rem 3 + 1, Pids),
                {Id, To, cluster:call(A, traffic, How, [To, Id, Bytes])}
            end || Id <- lists:seq(1, 6)]}.

%% Small ones both ways, which plain distribution can carry too.
both_ways(A, B) -> [{A, B, trickle(A, B, 50)}, {B, A, trickle(B, A, 50)}].

flowing(Loads, Deadline) ->
    lists:foreach(fun({_, B, Load}) -> flowing(Load, B, Deadline) end, Loads).

%% Stops the streams, all of them before the last messages are waited for; answers how many
%% messages are missing. What came, came in order.
finish(Loads, Deadline) ->
    Stopped = [{B, stop(Load, A)} || {A, B, Load} <- Loads],
    lists:sum([missing(Streams, B, Deadline) || {B, Streams} <- Stopped]).

%% Every stream makes progress, in so many ms.
flowing(Load, B, Deadline) -> flowing(Load, B, 20, Deadline).

%% By more than so many messages. (The receivers of freight do as well.)
flowing({Pids, Streams}, B, More, Deadline) ->
    Before = summaries(Pids, B),
    cluster:await(fun() ->
                          Now = summaries(Pids, B),
                          case [Id || {Id, _, _} <- Streams,
                                      last(Id, Now) =< last(Id, Before) + More] of
                              [] -> true;
                              Slow -> {slow, Slow}
                          end
                  end, Deadline).

summaries(Pids, B) ->
    lists:foldl(fun maps:merge/2, #{}, [cluster:call(B, traffic, summary, [P]) || P <- Pids]).

last(Id, Summary) -> element(1, maps:get(Id, Summary, {0, 0, []})).

finish(Load, A, B, Deadline) -> finish([{A, B, Load}], Deadline).

stop({_, Streams}, A) ->
    [{Id, To, cluster:call(A, traffic, stop_stream, [Stream])} || {Id, To, Stream} <- Streams].

missing(Stopped, B, Deadline) ->
    lists:sum(
      [begin
           cluster:await(fun() -> case cluster:call(B, traffic, summary, [To]) of
                                      #{Id := {N, _, _}} -> true;
                                      Other -> {Id, N, Other}
                                  end end, Deadline),
           #{Id := {N, Arrived, Odd}} = cluster:call(B, traffic, summary, [To]),
           ?assertEqual({Id, []}, {Id, Odd}),
           N - Arrived
       end || {Id, To, N} <- Stopped]).
