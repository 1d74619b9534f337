%% The checks of nemesis_SUITE: what was sent against what has arrived. Pure.
%%
%% A log is made of runs of numbers, [{First, Last}]: of what was sent in increasing order, of what
%% has arrived in the order of arrival. See nemesis_traffic for Key.
-module(nemesis_check).

-export([order/1, missing/2, odd/2, covered/2]).

-export_type([run/0]).

-type run() :: {pos_integer(), pos_integer()}.

%% What has arrived twice, and what has arrived behind a later one.
-spec order([run()]) -> #{doubled := [pos_integer()], disordered := [run()]}.
order(Runs) ->
    {_, _, Doubled, Disordered} =
        lists:foldl(fun({First, Last} = Run, {Top, Seen, D, O}) ->
                            Again = [N || First =< Top, N <- lists:seq(First, min(Last, Top)),
                                          is_in(N, Seen)],
                            Behind = First =< Top andalso length(Again) < Last - First + 1,
                            {max(Top, Last), [Run | Seen], Again ++ D, [Run || Behind] ++ O}
                    end, {0, [], [], []}, Runs),
    #{doubled => lists:sort(Doubled), disordered => lists:reverse(Disordered)}.

is_in(N, Runs) -> lists:any(fun({First, Last}) -> N >= First andalso N =< Last end, Runs).

%% The numbers of these runs that have not arrived.
-spec missing([run()], Arrived :: [run()]) -> [run()].
missing(Sent, Arrived) -> subtract(lists:sort(Sent), merged(lists:sort(Arrived))).

merged([{A, B}, {C, D} | Runs]) when C =< B + 1 -> merged([{A, max(B, D)} | Runs]);
merged([Run | Runs]) -> [Run | merged(Runs)];
merged([]) -> [].

subtract([], _) -> [];
subtract(Sent, []) -> Sent;
subtract([{_, B} = Run | Sent], [{C, _} | _] = Arrived) when B < C ->
    [Run | subtract(Sent, Arrived)];
subtract([{A, _} | _] = Sent, [{_, D} | Arrived]) when D < A -> subtract(Sent, Arrived);
subtract([{A, B} | Sent], [{C, D} | _] = Arrived) ->
    [{A, C - 1} || A < C] ++ subtract([{D + 1, B} || B > D] ++ Sent, Arrived).

%% What is wrong with the logs of one Key: of what was `sent', `answered', `uncertain' and
%% `refused', and of what has arrived.
-spec odd(#{atom() => [run()]}, [run()]) -> [term()].
odd(Sent, Arrived) ->
    Of = fun(How) -> maps:get(How, Sent, []) end,
    Unsent = missing(Arrived, lists:append(maps:values(Sent))),
    Refused = count(Of(refused)) - count(missing(Of(refused), Arrived)),
    [{answered_but_not_received, M} || M <- [missing(Of(answered), Arrived)], M =/= []]
        ++ [{refused_but_received, Refused} || Refused > 0]
        ++ [{received_but_not_sent, Unsent} || Unsent =/= []].

count(Runs) -> lists:sum([Last - First + 1 || {First, Last} <- Runs]).

%% Whether so many may be missing from one node to another.
%%
%%   lost        what is counted as lost there
%%   broken      their connection was broken: what had gone by the distribution is not counted
%%   fallbacks   so much went by it, if that is known: lanes that are given up use it too
%%   uncounted   the counters themselves were killed
-spec covered(Missing :: non_neg_integer(), map()) -> boolean().
covered(0, _) -> true;
covered(Missing, #{lost := Lost}) when Missing =< Lost -> true;
covered(_, #{uncounted := true}) -> true;
covered(_, #{broken := true, fallbacks := unknown}) -> true;
covered(Missing, #{broken := true, fallbacks := Fallbacks, lost := Lost}) ->
    Missing =< Lost + Fallbacks;
covered(_, _) -> false.
