%% Load between two nodes: streams of numbered messages, six of them to three processes.
%% A test starts it, sees that it goes on whatever happens, and counts at the end.
-module(streams).

-include_lib("stdlib/include/assert.hrl").

-export([start/3, flowing/3, finish/4]).

%% From A to B, messages of so many bytes: {Receivers, [{Id, Receiver, Stream}]}.
start(A, B, Bytes) ->
    Pids = cluster:call(B, traffic, start_watchers, [3]),
    {Pids, [begin
                To = lists:nth(Id rem 3 + 1, Pids),
                {Id, To, cluster:call(A, traffic, stream, [To, Id, Bytes])}
            end || Id <- lists:seq(1, 6)]}.

%% Every stream makes progress, in so many ms.
flowing({Pids, Streams}, B, Deadline) ->
    Before = summaries(Pids, B),
    cluster:await(fun() ->
                          Now = summaries(Pids, B),
                          case [Id || {Id, _, _} <- Streams, last(Id, Now) =< last(Id, Before) + 20] of
                              [] -> true;
                              Slow -> {slow, Slow}
                          end
                  end, Deadline).

summaries(Pids, B) -> lists:foldl(fun maps:merge/2, #{}, [cluster:call(B, traffic, summary, [P]) || P <- Pids]).

last(Id, Summary) -> element(1, maps:get(Id, Summary, {0, 0, []})).

%% Stops the streams; answers how many messages are missing. What came, came in order.
finish({_, Streams}, A, B, Deadline) ->
    lists:sum(
      [begin
           N = cluster:call(A, traffic, stop_stream, [Stream]),
           cluster:await(fun() -> case cluster:call(B, traffic, summary, [To]) of
                                      #{Id := {N, _, _}} -> true;
                                      #{Id := Other} -> {Id, N, Other}
                                  end end, Deadline),
           #{Id := {N, Arrived, Odd}} = cluster:call(B, traffic, summary, [To]),
           ?assertEqual({Id, []}, {Id, Odd}),
           N - Arrived
       end || {Id, To, Stream} <- Streams]).
