%% What distance costs: Trunkline against `!', over an emulated link (tools/wan) whose
%% delay and loss are given. Needs root, for the link's network namespaces.
%%
%%     small        messages a second, one way, from eight processes to eight others
%%     one          the same from one process to one other
%%     calls N      gen_server calls a second, with N outstanding
%%     10 MB        MB a second in binaries of 10 MB, from two processes to two others
%%     open loop    so many small messages are due each second, half of what the variant
%%                  carries at most: how much later than due does one arrive?
%%
%% Every measurement has new connections of its own, which know nothing of the one
%% before; what they learn in the first 100 round trips does not count (a loss-based
%% congestion control takes that long to come down to what it will be), except with 10 MB,
%% where all of it counts. The kernel's congestion control is cubic; Trunkline asks for
%% BBR at its own sockets. Two variants say what that does: `!' where the route says BBR,
%% and Trunkline where it may not have it.
%%
%% The whole of it takes forty minutes. LINKS="{10,1} {100,0}" (round trip in ms, loss in
%% per cent) and WORK="small large" choose a part of it, and leave out the targets that
%% need the rest. The first part is bench_echo.
-module(bench_distance).

-export([main/0]).

-type link() :: {RoundTripMs :: number(), LossPercent :: number()}.
-type work() :: small | one | {calls, pos_integer()} | large | open_loop.

-define(LARGE, 10_000_000).            % bytes
-define(LINK, {a, b}).

-spec main() -> no_return().
main() ->
    case wan:possible() of
        ok ->
            bench:run(fun run/0);
        {error, Why} ->
            io:format(standard_error, "~s~n", [Why]),
            erlang:halt(1)
    end.

run() ->
    Wan = wan:open([a, b], [?LINK]),
    Echo = case wanted("WORK", echo) of
               true -> bench_echo:measure(Wan);
               false -> []
           end,
    Arguments = ["-setcookie", atom_to_list(erlang:get_cookie())],
    [{A, _, _}, {_, B, _} = PeerB] =
        [wan:start_node(Wan, Site, atom_to_list(Site), Arguments) || Site <- [a, b]],
    Sites = {Wan, A, element(1, PeerB), B},
    bench:say("~nTwo sites, one link between them; ~b rounds, each variant once a round, "
              "two cores for all of it.",
              [bench:rounds()]),
    Results = [{{Link, Work}, measure(Link, Work, Sites)} || Link <- links(), Work <- works(Link)],
    Open = [{{Link, open_loop}, open_loop(Link, Results, Sites)}
            || Link <- [{10, 0}, {10, 1}], wanted("WORK", open_loop),
               lists:keymember({Link, small}, 1, Results)],
    lists:foreach(fun(Peer) -> peer:stop(Peer) end, [A, element(1, PeerB)]),
    ok = wan:close(Wan),
    write_data(Results),
    bench:finish("distance",
                 Echo ++ [{Unit, [{name(Link, Work), maps:get(Unit, Figures)}]}
                          || {{Link, Work}, Figures} <- Results ++ Open,
                             Unit <- lists:sort(maps:keys(Figures))],
                 targets(maps:from_list(Results ++ Open))).

-spec links() -> [link()].
links() ->
    [L || L <- [{0, 0}, {10, 0}, {50, 0}, {100, 0}, {10, 0.1}, {10, 1}, {100, 0.1}],
          wanted("LINKS", L)].

-spec works(link()) -> [work()].
works(Link) ->
    [W || W <- [small, one] ++ [{calls, N} || N <- outstanding(Link)] ++ [large],
          wanted("WORK", case W of {calls, _} -> calls; _ -> W end)].

outstanding({50, _}) -> [10_000];
outstanding({_, Loss}) when Loss > 0 -> [1000];
outstanding(_) -> [100, 1000, 10_000].

wanted(Variable, What) ->
    case os:getenv(Variable) of
        false -> true;
        Chosen ->
            lists:member(lists:flatten(io_lib:format("~w", [What])), string:lexemes(Chosen, " "))
    end.

%% The same node next door says what there is to win; what a lost packet costs depends on
%% the congestion control.
variants(Link, one) -> variants(Link, small);
variants({0, _}, large) -> [stock, tuned, trunkline];
variants({0, _}, small) -> [same, stock, tuned, trunkline, trunkline_tcp];
variants({0, _}, _) -> [same, stock, tuned, trunkline];
variants({_, Loss}, {calls, _}) when Loss > 0 -> [stock, tuned, trunkline];
variants({_, Loss}, large) when Loss > 0 -> [stock, stock_bbr, trunkline, trunkline_cubic];
variants({_, Loss}, _) when Loss > 0 -> [stock, tuned, stock_bbr, trunkline, trunkline_cubic];
variants(_, small) -> [stock, tuned, trunkline, trunkline_tcp, trunkline_next_door];
variants(_, {calls, _}) -> [stock, tuned, trunkline, trunkline_next_door];
variants(_, _) -> [stock, tuned, trunkline].

%% --- one measurement ------------------------------------------------------------

measure(Link, Work, Sites) ->
    Measured = bench:all_in_turn([{V, fun() -> once(V, Link, Work, Sites) end}
                                  || V <- variants(Link, Work)]),
    Unit = unit(Work),
    Values = [{V, [R || {R, _} <- Rs]} || {V, Rs} <- Measured],
    bench:table(Unit, [stock | [tuned || lists:keymember(tuned, 1, Values)]],
                {name(Link, Work), Values}),
    emulator([Stats || {_, Rs} <- Measured, {_, Stats} <- Rs]),
    #{Unit => Values}.

%% What is compared with next door must be measured beside it: within minutes this machine
%% becomes twice as fast, or half.
once(trunkline_next_door, _, Work, Sites) ->
    once(trunkline, {0, 0}, Work, Sites);
once(Variant, {RoundTrip, _} = Link, Work, {Wan, A, _, NodeB} = Sites) ->
    prepare(Variant, Link, Sites),
    _ = wan:stats(Wan, ?LINK),
    Start = erlang:monotonic_time(microsecond),
    Times = {500 + 100 * RoundTrip, 1200},
    How = how(Variant),
    Result = case Work of
                 small -> site(A, small, [How, node_of(Variant, A, NodeB), 8, Times]);
                 one -> site(A, small, [How, node_of(Variant, A, NodeB), 1, Times]);
                 {calls, N} -> site(A, calls, [How, node_of(Variant, A, NodeB), N, Times]);
                 large -> site(A, large, [How, NodeB, ?LARGE, pieces(Variant, element(2, Link))]);
                 {open_loop, Rate} -> site(A, open_loop, [How, NodeB, Rate, {2000, 3000}])
             end,
    Time = erlang:monotonic_time(microsecond) - Start,
    Stats = wan:stats(Wan, ?LINK),
    {Result, Stats#{share => maps:get(cpu, Stats) / Time}}.

%% New connections, made while no packet is lost.
prepare(Variant, {RoundTrip, Loss}, {Wan, A, B, NodeB}) ->
    ok = wan:set(Wan, ?LINK, #{delay => RoundTrip / 2, loss => 0}),
    ok = wan:congestion_control(Wan, case Variant of
                                         stock_bbr -> bbr;
                                         _ -> cubic
                                     end),
    ok = site(A, disconnect, [NodeB]),
    lists:foreach(fun(Site) -> ok = site(Site, configure, [environment(Variant)]) end, [A, B]),
    ok = site(A, connect, [NodeB]),
    ok = site(A, tune, [NodeB, Variant]),
    ok = site(A, settle, [NodeB]),
    wan:set(Wan, ?LINK, #{loss => Loss}).

how(Variant) ->
    case Variant of
        trunkline -> trunkline;
        trunkline_tcp -> trunkline;
        trunkline_cubic -> trunkline;
        _ -> '!'
    end.

environment(trunkline_cubic) -> [{congestion_control, default}];
environment(trunkline_tcp) -> [{lane_transport, tcp}];
environment(_) -> [].

site(Site, Function, Arguments) -> peer:call(Site, bench_site, Function, Arguments, infinity).

node_of(same, A, _) -> peer:call(A, erlang, node, []);
node_of(_, _, NodeB) -> NodeB.

%% How many binaries each process sends: what takes each variant about five seconds at
%% 100 ms. With packets lost, `!' needs many seconds for one.
pieces(stock, Loss) when Loss > 0 -> 1;
pieces(trunkline, _) -> 40;
pieces(_, _) -> 8.

%% The link itself must not be what is measured.
emulator(All) ->
    Most = fun(Key) -> lists:max([maps:get(Key, S) || S <- All]) end,
    bench:say("  emulator: at most ~.2f of a processor; "
              "~b packets dropped by a full queue, ~b at most in it; "
              "on the mean at most ~b us late", [Most(share), Most(full), Most(most), Most(late)]).

%% --- open loop ---------------------------------------------------------------------

open_loop(Link, Results, Sites) ->
    {_, #{"messages/s" := Capacities}} = lists:keyfind({Link, small}, 1, Results),
    Variants = [V || V <- [stock, tuned, trunkline], lists:keymember(V, 1, Capacities)],
    Measured = bench:all_in_turn([{V, fun() ->
                                              Rate = round(bench:median(
                                                             proplists:get_value(V, Capacities))
                                                           / 2),
                                              once(V, Link, {open_loop, Rate}, Sites)
                                      end} || V <- Variants]),
    Figures = maps:from_list(
                [{Unit, [{V, [lists:nth(I, Late) || {Late, _} <- Rs]} || {V, Rs} <- Measured]}
                 || {I, Unit} <- [{1, "us p50"}, {2, "us p99"}, {3, "us p99.9"},
                                  {4, "us longest"}]]),
    bench:say("~nhalf of each variant's capacity, ~s", [link_name(Link)]),
    bench:overview([{Unit, {"after it was due", maps:get(Unit, Figures)}}
                    || Unit <- lists:sort(maps:keys(Figures))]),
    emulator([Stats || {_, Rs} <- Measured, {_, Stats} <- Rs]),
    Figures.

%% --- names, targets, data -----------------------------------------------------------

unit(small) -> "messages/s";
unit(one) -> "messages/s";
unit({calls, _}) -> "calls/s";
unit(large) -> "MB/s".

name(Link, Work) ->
    lists:flatten([case Work of
                       small -> "small messages";
                       one -> "small messages, one sender";
                       {calls, N} -> io_lib:format("calls, ~b outstanding", [N]);
                       large -> "10 MB messages";
                       open_loop -> "open loop"
                   end, ", ", link_name(Link)]).

link_name({RoundTrip, Loss}) ->
    lists:flatten([case RoundTrip of
                       0 -> "next door";
                       _ -> io_lib:format("~b ms", [RoundTrip])
                   end, [io_lib:format(", ~w % lost", [Loss]) || Loss > 0]]).

targets(Results) ->
    lists:append(
      [ratio(Link, Work, trunkline_next_door, Least, Results)
       || {Link, Work, Least} <- [{{10, 0}, small, 0.95}, {{100, 0}, small, 0.95},
                                  {{10, 0}, {calls, 10_000}, 0.9}]]
      ++ [ratio(Link, Work, stock, Least, Results)
          || {Link, Work, Least} <- [{{100, 0}, large, 4}, {{10, 1}, small, 20},
                                     {{10, 1}, large, 20}, {{100, 0.1}, small, 50}]]
      ++ [[bench:target("open loop at half of capacity, 10 ms: p99 of Trunkline in ms", at_most, 10,
                        bench:median(proplists:get_value(trunkline, P99)) / 1000)]
          || #{{{10, 0}, open_loop} := #{"us p99" := P99}} <- [Results]]).

ratio(Link, Work, Base, Least, Results) ->
    Unit = unit(Work),
    case Results of
        #{{Link, Work} := #{Unit := Values}} ->
            Name = [name(Link, Work), ": Trunkline / ", case Base of
                                                            trunkline_next_door ->
                                                                "Trunkline next door";
                                                            stock -> "!"
                                                        end],
            [bench:target(lists:flatten(Name), at_least, Least,
                          bench:ratio(trunkline, Base, Values))];
        #{} ->
            []
    end.

%% For the plots of docs/lab/distance.md (make plot-distance): a line for each link and work,
%% and of each variant the median, the lowest and the highest value.
write_data(Results) ->
    File = "_build/distance.dat",
    Lines = [io_lib:format("~w ~w ~s ~s ~.1f ~.1f ~.1f~n",
                           [RoundTrip, Loss, work(Work), V, float(bench:median(Vs)),
                            float(lists:min(Vs)), float(lists:max(Vs))])
             || {{{RoundTrip, Loss}, Work}, Figures} <- Results,
                {V, Vs} <- maps:get(unit(Work), Figures)],
    ok =
        file:write_file(File,
                        ["# round trip (ms), loss (%), work, variant, median, lowest, highest\n"
                         | Lines]),
    bench:say("~nthe figures for the plots are in ~s", [File]).

work({calls, N}) -> io_lib:format("calls~b", [N]);
work(Work) -> atom_to_list(Work).
