%% Small and large messages both ways between two nodes, of several senders to
%% several receivers, as messages, casts and calls. Each must arrive whole, and in
%% order.
-module(exchange).
-behaviour(gen_server).

-include_lib("stdlib/include/assert.hrl").

-export([both_ways/2, both_ways/3, one_way/3, large/2]).
-export([await_connection/2, by/2, all_by_distribution/2]).
-export([start/1, play/2, report/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

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
    Receivers = [R1, R2] = [cluster:call(B, ?MODULE, start, [Sizes]) || _ <- [1, 2]],
    Script = [{Kind, To, Bytes}
              || Bytes <- Sizes,
                 {Kind, To} <- [{send, R1}, {cast, R1}, {send, R2}, {call, R1}, {cast, R2}]],
    Senders = [1, 2, 3],
    ?assertEqual([normal || _ <- Senders], cluster:call(A, ?MODULE, play, [Senders, Script])),
    Expected = [{To, lists:sort([{Id, N} || Id <- Senders,
                                            {N, {_, R, _}} <- lists:enumerate(Script), R =:= To])}
                || To <- Receivers],
    lists:foreach(
      fun({To, Numbers}) ->
              cluster:await(fun() -> case length(cluster:call(B, ?MODULE, report, [To])) of
                                         N when N =:= length(Numbers) -> true;
                                         N -> {arrived, N, 'of', length(Numbers)}
                                     end end, ?DEADLINE),
              Got = cluster:call(B, ?MODULE, report, [To]),
              ?assertEqual([], [{Id, N} || {Id, N, broken} <- Got]),
              [?assertEqual([N || {I, N} <- Numbers, I =:= Id], [N || {I, N, _} <- Got, I =:= Id])
               || Id <- Senders],
              ok = cluster:call(B, gen_server, stop, [To])
      end, Expected).

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

%% --- at the nodes -----------------------------------------------------------------

start(_) ->
    {ok, Pid} = gen_server:start(?MODULE, [], []),
    Pid.

%% [{Sender, Number, whole | broken}] in the order of arrival.
report(Pid) -> gen_server:call(Pid, report, infinity).

play(Ids, Script) ->
    Pids = [spawn_monitor(fun() -> steps(Script, Id, 1) end) || Id <- Ids],
    [receive {'DOWN', Ref, process, Pid, Reason} -> Reason end || {Pid, Ref} <- Pids].

steps([], _, _) ->
    ok;
steps([{Kind, To, Bytes} | Script], Id, N) ->
    Payload = payload(Bytes),
    Message = {exchange, Id, N, erlang:phash2(Payload), Payload},
    case Kind of
        send -> Message = trunkline:send(To, Message);
        cast -> ok = trunkline:cast(To, Message);
        call -> {got, N, Payload} = trunkline:call(To, Message, infinity)
    end,
    steps(Script, Id, N + 1).

%% Of different make. No two are alike, nor are two parts of one.
payload(Bytes) ->
    Random = crypto:strong_rand_bytes(Bytes),
    case Bytes rem 3 of
        _ when Bytes > 2_000_000 -> Random;
        0 -> Random;
        1 -> {1, #{bytes => [Random, Bytes]}};
        2 -> [binary_to_list(Random, 1, Bytes div 2), Random]
    end.

init(Got) -> {ok, Got}.

handle_call(report, _, Got) -> {reply, lists:reverse(Got), Got};
handle_call({exchange, _, N, _, Payload} = Message, _, Got) ->
    {reply, {got, N, Payload}, got(Message, Got)}.

handle_cast(Message, Got) -> {noreply, got(Message, Got)}.

handle_info(Message, Got) -> {noreply, got(Message, Got)}.

got({exchange, Id, N, Hash, Payload}, Got) ->
    [{Id, N, case erlang:phash2(Payload) of
                 Hash -> whole;
                 _ -> broken
             end} | Got].
