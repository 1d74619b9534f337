%% The whole field: is anything slower than with `!'?
%%
%% Every size of message by every number of senders, every kind of request, fan-out, monitors,
%% replies, destinations of the same node, inboxes, and thin traffic. Beside each rate stands the
%% processor time that both nodes need for one: the two nodes share the machine, and a rate may
%% only say how the processors were shared.
%%
%% The variants of a case are measured in turn, ROUNDS times, and only ratios of their medians say
%% something. How much of a ratio is noise says a control: `!' is measured twice, and its second
%% figure divided by its first is `! / !'. The rounds are many and short, because the machine is not
%% as fast at one time as at another. (A case that takes long has fewer.)
%%
%% SHORT=1 measures the corners in three minutes. ONLY="one way" takes the cases whose name begins
%% so. With LANES=tcp, Trunkline's lanes have connections of their own.
%%
%% Besides the table and the JSON object there is a page with heat maps, _build/sweep.html, and a
%% picture, _build/sweep.svg (bench_sweep_page).
-module(bench_sweep).

-export([main/0]).
-export([thin_receiver/2, start_inbox/0]).

-define(TIME, "us of both nodes' processors").
%% Targets of rate and time, divided by those of `!'.
-define(LEAST_RATE, 0.95).
-define(MOST_TIME, 1.05).

-record(case_of,
        {group :: string(),
         row :: string(),
         column :: string(),
         first :: pos_integer(),                         % how many to begin with
         variants = variants() :: [bench:variant()],
         %% How many there were, and [how many a second, p50 in us, p99 in us] or only the first.
         measure :: fun((bench:variant(), pos_integer()) -> {pos_integer(), [number()]})}).

-spec main() -> no_return().
main() ->
    set("SECONDS", "0.06"),
    set("ROUNDS", pick("25", "15")),
    bench:run(fun run/0).

is_short() -> os:getenv("SHORT", "") =/= "".

set(Name, Value) ->
    true = os:putenv(Name, os:getenv(Name, Value)).

run() ->
    {_, Node} = Peer = bench:start_peer([]),
    ok = sketch:start(Node),
    bench:lanes_on(list_to_existing_atom(os:getenv("LANES", "dist")), Node),
    bench:say("The whole field; up to ~b rounds, ~p s each, two cores shared by both nodes~n~n"
              "  ~-54ts ~10ts ~7ts ~7ts ~7ts ~8ts ~7ts ~8ts ~8ts",
              [bench:rounds(), bench:seconds(), "", "a second", "/ !", "! / !",
               "/ tuned", "time / !", "! / !", "p50 / !", "p99 / !"]),
    Only = os:getenv("ONLY", ""),
    Results = [measure(Case, Node) || Case <- cases(Node), lists:prefix(Only, name(Case))],
    bench:stop_peer(Peer),
    say_missed(Results),
    ok = bench_sweep_page:write(Results),
    bench:finish("sweep",
                 [{Unit, [{bench_sweep_page:name(Result), maps:get(Unit, Figures)}
                          || #{figures := Figures} = Result <- Results,
                             is_map_key(Unit, Figures)]} || Unit <- units()],
                 targets(Results)).

units() -> ["a second", ?TIME, "us p50", "us p99"].

name(#case_of{group = Group, row = Row, column = Column}) ->
    bench_sweep_page:name(#{group => Group, row => Row, column => Column}).

%% --- one case -------------------------------------------------------------------------

measure(#case_of{first = First, variants = Variants, measure = Measure} = Case, Node) ->
    bench:collect_garbage([node(), Node]),
    Measured = bench:all_in_turn(
                 bench:rounds(), 2 * length(Variants) * bench:rounds() * bench:seconds(),
                 [{V, bench:sized(fun(N) -> figures(V, N, Measure, Node) end, First)}
                  || V <- Variants]),
    Units = lists:sublist(units(), length(hd(element(2, hd(Measured))))),
    Result = #{group => Case#case_of.group, row => Case#case_of.row,
               column => Case#case_of.column, figures => bench:by_unit(Units, Measured)},
    say(Result),
    Result.

figures(Variant, N, Measure, Node) ->
    bench:tune(Node, Variant),
    Before = bench:processors(Node),
    {Count, [Rate | Times]} = Measure(Variant, N),
    [Rate, (bench:processors(Node) - Before) / Count | Times].

say(#{figures := #{"a second" := Rates}} = Result) ->
    Ratio = fun(Unit, Variant, Base) ->
                    two(bench_sweep_page:ratio(Unit, Variant, Base, Result))
            end,
    bench:say("  ~-54ts ~10ts ~7ts ~7ts ~7ts ~8ts ~7ts ~8ts ~8ts",
              [bench_sweep_page:name(Result),
               bench:number(bench:median(proplists:get_value(trunkline, Rates))),
               Ratio("a second", trunkline, stock), Ratio("a second", again, stock),
               Ratio("a second", trunkline, tuned),
               Ratio(?TIME, trunkline, stock), Ratio(?TIME, again, stock)
               | [Ratio(Unit, trunkline, stock) || Unit <- ["us p50", "us p99"]]]).

two(none) -> "";
two(Ratio) -> io_lib:format("~.2f", [Ratio]).

%% How many cases miss the target of the rate, or that of the processors' time; and how many would
%% if nothing but noise made a difference.
say_missed(Results) ->
    bench:say("~n~b of ~b cases miss a target of rate or time against !; "
              "of ! measured once more, ~b do",
              [missed(trunkline, Results), length(Results), missed(again, Results)]).

missed(Variant, Results) ->
    length([R || R <- Results,
                 bench_sweep_page:ratio("a second", Variant, stock, R) < ?LEAST_RATE
                     orelse is_more(?MOST_TIME, bench_sweep_page:ratio(?TIME, Variant, stock, R))]).

is_more(Most, Ratio) -> is_number(Ratio) andalso Ratio > Most.

%% Of all that was measured, by how far is the worst from what it should be?
targets(Results) ->
    [bench:target(lists:concat([What, " / ", Base, ", the worst: ", Case]), Kind, Bound, Ratio)
     || {What, Unit, Base, Kind, Bound} <-
            [{"rate", "a second", stock, at_least, ?LEAST_RATE},
             {"rate", "a second", tuned, at_least, 0.9},
             {"time", ?TIME, stock, at_most, ?MOST_TIME},
             {"p50", "us p50", stock, at_most, 1.05},
             {"p99", "us p99", stock, at_most, 1.1}],
        {Ratio, Case} <- worst(Kind, [{bench_sweep_page:ratio(Unit, trunkline, Base, R),
                                       bench_sweep_page:name(R)} || R <- Results])].

worst(Kind, Ratios) ->
    case lists:sort([R || {Ratio, _} = R <- Ratios, Ratio =/= none]) of
        [] -> [];
        [First | _] when Kind =:= at_least -> [First];
        Sorted -> [lists:last(Sorted)]
    end.

%% --- all cases ------------------------------------------------------------------------

variants() -> pick([same, stock, tuned, trunkline, again], [stock, tuned, trunkline, again]).

%% All of them, or the corners.
pick(All, Corners) ->
    case is_short() of
        true -> Corners;
        false -> All
    end.

cases(Node) ->
    Servers = #{node() => bench_call:start_servers(16),
                Node => erpc:call(Node, bench_call, start_servers, [16])},
    At = fun(same) -> node(); (_) -> Node end,
    lists:append(
      [one_way("one way, binaries", bytes, Node,
               pick([1, 1000, 4000, 16_000, 64_000, 100_000, 256_000, 1_000_000, 10_000_000],
                    [1, 16_000, 64_000, 256_000, 10_000_000]), pick([1, 8, 100], [1, 8])),
       one_way("one way, lists of integers", integers, Node,
               pick([1000, 16_000, 64_000, 256_000, 1_000_000, 10_000_000], [64_000]),
               pick([1, 8], [1])),
       one_way("one way, lists of maps", maps, Node,
               pick([1000, 16_000, 64_000, 256_000, 1_000_000, 10_000_000], [16_000]),
               pick([1, 8], [1])),
       one_way("one way, documents", documents, Node, pick([1000, 4000, 16_000], [4000]),
               pick([1, 8], [1])),
       one_way("one way, strings", strings, Node, pick([1000, 4000, 16_000], [1000]),
               pick([1, 8], [1])),
       calls("calls", At, Servers, pick([{1, 1}, {4, 1}, {10, 1}, {100, 1}, {1000, 1},
                                         {1, 16}, {10, 16}, {100, 16}, {1000, 16}],
                                        [{1, 1}, {100, 1}])),
       erpc(At, pick([1, 4, 10, 100, 1000], [1, 100])),
       replies(At, Servers, pick([{B, C} || B <- [16_000, 64_000, 256_000, 1_000_000, 10_000_000],
                                            C <- [1, 8]], [{256_000, 1}])),
       requests_of_maps(At, Servers,
                        pick([{B, C} || B <- [16_000, 64_000, 256_000, 1_000_000, 10_000_000],
                                        C <- [1, 8]], [{64_000, 1}])),
       casts(At, Servers, pick([1, 8, 100], [8])),
       multicast("one message to many processes", {ping, 1, 1}, At,
                 pick([10, 1000, 10_000], [1000])),
       multicast("one document of 4 kB to many", bench_throughput:message({documents, 4000}), At,
                 pick([10, 1000], [])),
       monitors(At, pick([{1, 20_000}, {100, 20_000}, {100, 100}], [{100, 20_000}])),
       thin(At, pick([1, 10], [1])),
       inbox(Node, pick([1, 8, 100], [8])),
       same_node(Servers, pick([1, 8], [8]))]).

one_way(Group, Kind, Node, Sizes, Senders) ->
    [#case_of{group = Group, row = amount(Size), column = senders(S),
              first = max(S, min(1000, 1_000_000 div Size)),
              variants = variants() ++ [sketch || Size =< 1000],
              measure = fun(V, N) ->
                                Each = each(N, S),
                                {Each * S, [bench_throughput:run(V, S, {Kind, Size},
                                                                 case V of
                                                                     same -> node();
                                                                     _ -> Node
                                                                 end, Each)]}
                        end}
     || Size <- Sizes, S <- Senders].

each(N, Parts) -> max(1, N div Parts).

amount(1) -> "1 B";
amount(Bytes) when Bytes rem 1_000_000 =:= 0 -> lists:concat([Bytes div 1_000_000, " MB"]);
amount(Bytes) -> lists:concat([Bytes div 1000, " kB"]).

senders(1) -> "1 sender";
senders(N) -> lists:concat([N, " senders"]).

callers(1) -> "1 caller";
callers(N) -> lists:concat([N, " callers"]).

requests(Group, Row, Callers, First, Variants, Call) ->
    #case_of{group = Group, row = Row, column = callers(Callers), first = First,
             variants = Variants,
             measure = fun(V, N) ->
                               Each = each(N, Callers),
                               {Each * Callers,
                                bench:calls(Callers, Each, fun(I, T) -> Call(V, I, T) end)}
                       end}.

calls(Group, At, Servers, Cases) ->
    [requests(Group, case N of 1 -> "1 server"; _ -> lists:concat([N, " servers"]) end,
              Callers, 2000, variants(),
              fun(V, I, Term) -> call(V, server(I, N, At(V), Servers), {echo, Term}) end)
     || {Callers, N} <- Cases].

server(I, Of, Node, Servers) -> lists:nth(I rem Of + 1, maps:get(Node, Servers)).

call(trunkline, Server, Request) -> trunkline:call(Server, Request, 60_000);
call(_, Server, Request) -> gen_server:call(Server, Request, 60_000).

erpc(At, Cases) ->
    [requests("erpc", "", Callers, 2000, variants(),
              fun(V, _, Term) -> echo(V, At(V), Term) end)
     || Callers <- Cases].

echo(trunkline, Node, Term) -> trunkline_erpc:call(Node, bench_erpc, echo, [Term]);
echo(_, Node, Term) -> erpc:call(Node, bench_erpc, echo, [Term], 60_000).

replies(At, Servers, Cases) ->
    [requests("large replies", amount(Bytes), Callers, max(8, 10_000_000 div Bytes), variants(),
              fun(V, I, Term) ->
                      Reply = call(V, server(I, Callers, At(V), Servers), {reply, {bytes, Bytes}}),
                      Bytes = byte_size(Reply),
                      Term
              end)
     || {Bytes, Callers} <- Cases].

%% A list of maps as a request, as a reply, and both ways by erpc.
requests_of_maps(At, Servers, Cases) ->
    [requests(Group, amount(Bytes), Callers, max(8, 1_000_000 div Bytes), variants(),
              fun(V, I, Term) ->
                      Server = server(I, Callers, At(V), Servers),
                      length(Request(V, Server, {maps, Bytes})) > 0 andalso Term
              end)
     || {Group, Request} <-
            [{"requests with lists of maps",
              fun(V, Server, Kind) ->
                      Maps = bench_call:made(Kind),
                      ok = call(V, Server, {take, Maps}),
                      Maps
              end},
             {"replies with lists of maps",
              fun(V, Server, Kind) -> call(V, Server, {reply, Kind}) end},
             {"erpc with lists of maps, both ways",
              fun(V, Server, Kind) ->
                      echo(V, node(Server), bench_call:made(Kind))
              end}],
        {Bytes, Callers} <- Cases].

%% Until the servers have had them.
casts(At, Servers, Senders) ->
    [#case_of{group = "casts", row = "", column = senders(S), first = 2000,
              measure = fun(V, N) ->
                                Each = each(N, S),
                                {S * Each,
                                 together(S, Each,
                                          fun(I) ->
                                                  cast(V, server(I, 16, At(V), Servers), Each)
                                          end)}
                        end}
     || S <- Senders].

cast(V, Server, 0) ->
    ok = call(V, Server, {echo, ok});
cast(trunkline, Server, N) ->
    ok = trunkline:cast(Server, {ping, N, 1}),
    cast(trunkline, Server, N - 1);
cast(V, Server, N) ->
    ok = gen_server:cast(Server, {ping, N, 1}),
    cast(V, Server, N - 1).

%% So many processes do that, Each times: how often in a second.
together(Processes, Each, Fun) ->
    Refs = [spawn_monitor(fun() -> receive go -> Fun(I) end end)
            || I <- lists:seq(1, Processes)],
    T0 = erlang:monotonic_time(),
    lists:foreach(fun({Pid, _}) -> Pid ! go end, Refs),
    lists:foreach(fun({Pid, Ref}) -> receive {'DOWN', Ref, process, Pid, normal} -> ok end end,
                  Refs),
    [Processes * Each * 1.0e6 / us(erlang:monotonic_time() - T0)].

us(Native) -> max(1, erlang:convert_time_unit(Native, native, microsecond)).

multicast(Group, Message, At, Cases) ->
    [begin
         Places = maps:from_list([{Node, bench_fanout:start(Node, Receivers)}
                                  || Node <- [At(same), At(stock)]]),
         #case_of{group = Group, row = "",
                  column = lists:concat(["to ", Receivers]),
                  first = 4 * Receivers,
                  measure = fun(V, N) ->
                                    Times = each(N, Receivers),
                                    [Rate | _] =
                                        bench_fanout:fan_outs(V, [maps:get(At(V), Places)],
                                                              Message, Times),
                                    {Times * Receivers, [Rate]}
                            end}
     end || Receivers <- Cases].

%% Of as many processes as there are monitors, or each caller of the same hundred.
monitors(At, Cases) ->
    [begin
         Monitors = case Servers of
                        100 -> 100 * Callers;
                        _ -> Servers
                    end,
         #case_of{group = "monitors, set and fired",
                  row = lists:concat([Servers, " processes"]), column = callers(Callers),
                  first = Monitors,
                  measure = fun(V, _) ->
                                    [Ms | _] =
                                        bench_monitor:round(V, Callers, Servers, Monitors, At(V)),
                                    {Monitors, [Monitors * 1000 / Ms]}
                            end}
     end || {Callers, Servers} <- Cases].

%% Open loop: processes that each send once in a millisecond, whatever becomes of it. The time of
%% the operating system is the same at both nodes.
thin(At, Cases) ->
    [#case_of{group = "thin traffic, sent until received", row = "",
              column = lists:concat([Thousands, ",000/s"]), first = 500 * Thousands,
              measure = fun(V, _) ->
                                Each = max(1000, round(1000 * bench:seconds())),
                                {Each * Thousands, thin(V, Thousands, At(V), Each)}
                        end}
     || Thousands <- Cases].

thin(V, Senders, Node, Each) ->
    Receiver = spawn_link(Node, ?MODULE, thin_receiver, [self(), Senders * Each]),
    [Rate] = together(Senders, Each,
                      fun(_) -> thin_sender(V, Receiver, Each,
                                            erlang:monotonic_time(millisecond) + 2) end),
    receive {Receiver, Times} -> [Rate | Times] end.

thin_sender(_, _, 0, _) ->
    ok;
thin_sender(V, To, N, Due) ->
    receive after max(0, Due - erlang:monotonic_time(millisecond)) -> ok end,
    Message = {ping, os:system_time(microsecond)},
    _ = case V of
            trunkline -> trunkline:send(To, Message);
            _ -> To ! Message
        end,
    thin_sender(V, To, N - 1, Due + 1).

-spec thin_receiver(pid(), pos_integer()) -> ok.
thin_receiver(Parent, N) ->
    Times = [receive {ping, Sent} -> os:system_time(microsecond) - Sent end
             || _ <- lists:seq(1, N)],
    Parent ! {self(), [max(1, bench:percentile(P, Times)) || P <- [50, 99]]},
    ok.

%% Casts to a server behind an inbox, against casts to one without.
inbox(Node, Senders) ->
    Inbox = erpc:call(Node, ?MODULE, start_inbox, []),
    [Plain] = erpc:call(Node, bench_call, start_servers, [1]),
    [#case_of{group = "casts through an inbox", row = "", column = senders(S), first = 2000,
              variants = [stock, tuned, trunkline, again],
              measure = fun(V, N) ->
                                Each = each(N, S),
                                To = case V of trunkline -> Inbox; _ -> Plain end,
                                {S * Each, together(S, Each, fun(_) -> cast(V, To, Each) end)}
                        end}
     || S <- Senders].

-spec start_inbox() -> pid().
start_inbox() ->
    {ok, Inbox} = trunkline_inbox:start_link(bench_call, [], []),
    unlink(Inbox),
    Inbox.

%% What the API costs where there is nothing to gain.
same_node(Servers, Senders) ->
    [#case_of{group = "on one node", row = "sends", column = senders(S), first = 20_000,
              variants = [stock, trunkline, again],
              measure = fun(V, N) ->
                                Each = each(N, S),
                                {Each * S, [bench_throughput:run(V, S, ping, node(), Each)]}
                        end}
     || S <- Senders]
        ++ [requests("on one node", "calls", C, 20_000, [stock, trunkline, again],
                     fun(V, I, Term) ->
                             call(V, server(I, 16, node(), Servers), {echo, Term})
                     end)
            || C <- Senders].
