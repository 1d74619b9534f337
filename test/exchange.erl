%% Small and large messages both ways between two nodes, of several senders to
%% several receivers, as messages, casts and calls. Each must arrive whole, and in
%% order.
-module(exchange).

-include_lib("stdlib/include/assert.hrl").

-export([both_ways/2, both_ways/3, one_way/3, large/2]).
-export([await_connection/2, by/2, all_by_distribution/2]).

-define(DEADLINE, 180_000).

%% Around the size from which on a message is large, and some more.
both_ways(A, B) ->
    both_ways(A, B, [20, 65_300, 3, 65_536, 1, 70_000, 200, 300_000, 5, 1_500_000, 10]).

both_ways(A, B, Sizes) ->
    Ways = [spawn_monitor(fun() -> one_way(From, To, Sizes) end) || {From, To} <- [{A, B}, {B, A}]],
    lists:foreach(fun({Pid, Ref}) ->
                          receive
                              {'DOWN', Ref, process, Pid, Reason} -> ?assertEqual(normal, Reason)
                          end
                  end, Ways).

%% Three senders, two receivers: each sender sends every size in every way.
one_way(A, B, Sizes) ->
    Receivers = [R1, R2] = cluster:call(B, freight, start_receivers, [2]),
    Script = [{Kind, To, Make}
              || Make <- [make(Bytes) || Bytes <- Sizes],
                 {Kind, To} <- [{send, R1}, {cast, R1}, {send, R2}, {{call, Make}, R1},
                                {cast, R2}]],
    Senders = [1, 2, 3],
    ?assertEqual([normal || _ <- Senders],
                 cluster:call(A, freight, play_all, [[{Id, Script} || Id <- Senders]])),
    lists:foreach(
      fun(To) ->
              Numbers = [N || {N, {_, R, _}} <- lists:enumerate(Script), R =:= To],
              All = length(Senders) * length(Numbers),
              cluster:await(fun() -> case cluster:call(B, freight, count, [To]) of
                                         All -> true;
                                         N -> {arrived, N, 'of', All}
                                     end end, ?DEADLINE),
              Got = cluster:call(B, freight, received, [To]),
              [?assertEqual({Id, Numbers}, {Id, [N || {I, N} <- Got, I =:= Id]}) || Id <- Senders],
              ok = cluster:call(B, gen_server, stop, [To])
      end, Receivers).

%% Of different make: a binary, a term with binaries, and one with a long list besides.
make(Bytes) when Bytes > 2_000_000; Bytes rem 3 =:= 0 -> Bytes;
make(Bytes) when Bytes rem 3 =:= 1 -> {map, Bytes};
make(Bytes) -> {parcel, Bytes}.

%% One large message, from A to B.
large(A, B) ->
    one_way(A, B, [100_000]).

%% How they travel from A to B: {connections | distribution | none, Connections}.
by(A, B) ->
    #{large := #{by := By, connections := N}} = cluster:info(A, B),
    {By, N}.

%% Until there is a connection from A to B.
await_connection(A, B) ->
    cluster:await(fun() ->
                          large(A, B),
                          case by(A, B) of
                              {connections, 1} -> true;
                              Other -> Other
                          end
                  end, ?DEADLINE).

%% There are no connections, nobody listens, and nothing else has gone wrong.
all_by_distribution(A, B) ->
    lists:foreach(fun({From, To}) ->
                          ?assertEqual({distribution, 0}, by(From, To)),
                          ?assertMatch(#{ports := Ports} when map_size(Ports) =:= 0,
                                       cluster:call(From, trunkline_listener, info, [])),
                          ?assertMatch(#{state := up, sessions := 1}, cluster:info(From, To))
                  end, [{A, B}, {B, A}]).
