%% How many messages a second go one way: from 1, 8 or 100 processes to as many
%% others, each to its own, small tuples and binaries of 100 bytes and 1 KB.
%%
%% The receivers of tuples check that every message comes in its order. The sketch says what the
%% principle of the lanes could give at most.
-module(bench_throughput).

-export([main/0]).
-export([rate/5, run/5, message/1, receiver/2]).

-export_type([kind/0]).

%% Lists of integers or of small maps, and documents, take about so many bytes in the external term
%% format. A document is a map as it is read from JSON.
-type kind() :: ping | b100 | b1000
              | {bytes | integers | maps | strings | documents, pos_integer()}.

-define(IS_OURS(V), V =:= trunkline; V =:= trunkline_tcp; V =:= resuming).

main() ->
    bench:run(fun run/0).

run() ->
    {_, Node} = Peer = bench:start_peer([]),
    ok = sketch:start(Node),
    bench:say("One way, messages a second; ~b rounds, two cores shared by both nodes",
              [bench:rounds()]),
    Results = [measure(Pairs, Kind, Node) || Kind <- kinds(), Pairs <- [1, 8, 100]],
    bench:stop_peer(Peer),
    bench:finish("throughput", [{"messages/s", Results}], targets(Results)).

kinds() ->
    case os:getenv("KINDS") of
        false -> [ping, b100, b1000];
        Kinds -> [list_to_existing_atom(K) || K <- string:lexemes(Kinds, " ")]
    end.

measure(Pairs, Kind, Node) ->
    Variant = fun(V) ->
                      {V,
                       bench:sized(fun(N) -> rate(V, Pairs, Kind, Node, max(1, N div Pairs)) end)}
              end,
    Result = {name(Pairs, Kind),
              bench:in_turn([Variant(V) || V <- [same, stock, tuned, sketch, trunkline,
                                                 trunkline_tcp]])},
    bench:table("messages/s", [same, stock, tuned, sketch], Result),
    Result.

name(Pairs, Kind) ->
    lists:concat([Pairs, " to ", Pairs, ", ", case Kind of
                                                  ping -> "{ping, N, 1}";
                                                  b100 -> "100 bytes";
                                                  b1000 -> "1 KB"
                                              end]).

-spec rate(bench:variant(), Pairs :: pos_integer(), kind(), node(), Each :: pos_integer()) ->
          float().
rate(Variant, Pairs, Kind, Node, Each) ->
    bench:tune(Node, Variant),
    bench:lanes_on(case Variant of trunkline_tcp -> tcp; _ -> dist end, Node),
    bench:resume_for(case Variant of resuming -> bench_resume:resume_time(); _ -> 0 end, Node),
    At = case Variant of same -> node(); _ -> Node end,
    run(Variant, Pairs, Kind, At, Each).

%% The same between processes of this node and of that one, which may be the same.
-spec run(bench:variant(), Pairs :: pos_integer(), kind(), node(), Each :: pos_integer()) ->
          float().
run(Variant, Pairs, Kind, At, Each) ->
    Self = self(),
    Receivers =
        [erlang:spawn(At, ?MODULE, receiver, [Self, {Kind, Each}]) || _ <- lists:seq(1, Pairs)],
    _ = [receive {ready, R} -> ok end || R <- Receivers],
    Senders =
        [spawn_link(fun() -> sender(Self, Variant, Kind, R, Each) end) || R <- Receivers],
    _ = [receive {ready, S} -> ok end || S <- Senders],
    T0 = erlang:monotonic_time(),
    _ = [S ! go || S <- Senders],
    _ = [receive {done, R} -> ok end || R <- Receivers],
    T1 = erlang:monotonic_time(),
    Pairs * Each / (erlang:convert_time_unit(T1 - T0, native, microsecond) / 1.0e6).

-spec message(kind()) -> term().
message(ping) -> ping;
message(b100) -> binary:copy(<<"x">>, 100);
message(b1000) -> binary:copy(<<"x">>, 1000);
message({bytes, Bytes}) -> binary:copy(<<"x">>, Bytes);
message({integers, Bytes}) -> lists:seq(1000, 1000 + Bytes div 5);
message({strings, Bytes}) -> lists:duplicate(Bytes, $x);
message({documents, Bytes}) ->
    #{<<"type">> => <<"order">>,
      <<"items">> => [#{<<"name">> => <<"some name">>, <<"count">> => N, <<"price">> => N / 7,
                        <<"tags">> => [<<"red">>, <<"blue">>]}
                      || N <- lists:seq(1, max(1, Bytes div 90))]};
message({maps, Bytes}) ->
    [#{id => N, name => <<"some name">>, status => active, kind => user, score => N / 7}
     || N <- lists:seq(1, max(1, Bytes div 80))].

%% To make a large message takes as long as to send it.
sender(Parent, Variant, Kind, To, Each) ->
    Message = message(Kind),
    Parent ! {ready, self()},
    receive go -> send(Variant, Kind, Message, To, Each) end.

send(_, _, _, _, 0) ->
    ok;
send(V, ping, M, To, N) when ?IS_OURS(V) ->
    _ = trunkline:send(To, {ping, N, 1}),
    send(V, ping, M, To, N - 1);
send(V, Kind, M, To, N) when ?IS_OURS(V) ->
    _ = trunkline:send(To, M),
    send(V, Kind, M, To, N - 1);
send(sketch, ping, M, To, N) ->
    ok = sketch:send(To, {ping, N, 1}),
    send(sketch, ping, M, To, N - 1);
send(sketch, Kind, M, To, N) ->
    ok = sketch:send(To, M),
    send(sketch, Kind, M, To, N - 1);
send(V, ping, M, To, N) ->
    To ! {ping, N, 1},
    send(V, ping, M, To, N - 1);
send(V, Kind, M, To, N) ->
    To ! M,
    send(V, Kind, M, To, N - 1).

-spec receiver(pid(), {kind(), pos_integer()}) -> ok.
receiver(Parent, {Kind, N}) ->
    Parent ! {ready, self()},
    receive_all(Kind, N),
    Parent ! {done, self()},
    ok.

receive_all(_, 0) ->
    ok;
receive_all(ping, N) ->
    receive {ping, M, 1} -> N = M end,
    receive_all(ping, N - 1);
receive_all(Kind, N) ->
    receive M when is_binary(M); is_list(M); is_map(M) -> ok end,
    receive_all(Kind, N - 1).

targets(Results) ->
    [bench:target(lists:concat([Case, ": Trunkline / ", Base]), at_least, Bound,
                  bench:ratio(trunkline, Base, Variants))
     || {Case, Base, Bound} <- [{name(8, ping), stock, 12}, {name(8, ping), tuned, 3},
                                {name(8, ping), same, 0.5},
                                {name(8, b100), stock, 7}, {name(8, b1000), stock, 4.5}],
        {C, Variants} <- Results, C =:= Case]
        ++ [bench:target(name(8, ping) ++ ": lanes on tcp / lanes on the distribution",
                         at_least, 0.9,
                         bench:ratio(trunkline_tcp, trunkline, Variants))
            || {C, Variants} <- Results, C =:= name(8, ping)].
