%% How many gen_server calls a second, and how long each takes: 1, 10, 100 and
%% 1,000 callers, to one server and to sixteen.
-module(bench_call).
-behaviour(gen_server).

-export([main/0]).
-export([made/1]).
-export([start_servers/1, init/1, handle_call/3, handle_cast/2]).

-spec main() -> no_return().
main() ->
    bench:run(fun run/0).

run() ->
    {_, Node} = Peer = bench:start_peer([]),
    bench:say("gen_server calls; ~b rounds, two cores shared by both nodes", [bench:rounds()]),
    Servers = #{node() => start_servers(16), Node => erpc:call(Node, ?MODULE, start_servers, [16])},
    Cases = [measure(Callers, N, Node, Servers) || N <- [1, 16], Callers <- bench:callers()],
    bench:stop_peer(Peer),
    bench:finish("call", bench:results(units(), Cases),
                 bench:targets(
                   Cases,
                   [{"100 to 1, calls/s: Trunkline / stock", at_least, 4,
                     {"100 to 1", "calls/s", stock}},
                    {"100 to 1, calls/s: Trunkline / tuned", at_least, 2.5,
                     {"100 to 1", "calls/s", tuned}},
                    {"100 to 1, p99: Trunkline / stock", at_most, 0.5,
                     {"100 to 1", "us p99", stock}},
                    {"1 to 1, p50: Trunkline / stock", at_most, 1.15,
                     {"1 to 1", "us p50", stock}}])).

units() -> ["calls/s", "us p50", "us p99"].

measure(Callers, N, Node, Servers) ->
    Variant =
        fun(V) ->
                At = case V of same -> node(); _ -> Node end,
                To = lists:sublist(maps:get(At, Servers), N),
                bench:callers(V, Node, Callers,
                              fun(I, Term) -> call(V, lists:nth(I rem N + 1, To), Term) end)
        end,
    bench:a_case(lists:concat([Callers, " to ", N]), units(), [stock, tuned],
                 [Variant(V) || V <- [same, stock, tuned, trunkline]]).

call(trunkline, Server, Term) -> trunkline:call(Server, {echo, Term}, 60000);
call(_, Server, Term) -> gen_server:call(Server, {echo, Term}, 60000).

%% --- the servers ----------------------------------------------------------------

-spec start_servers(pos_integer()) -> [pid()].
start_servers(N) ->
    [element(2, {ok, _} = gen_server:start(?MODULE, [], [])) || _ <- lists:seq(1, N)].

-spec init([]) -> {ok, []}.
init([]) -> {ok, []}.

-spec handle_call({echo | take, term()} | {reply, bench_throughput:kind()}, gen_server:from(),
                  []) ->
          {reply, term(), []}.
handle_call({echo, Term}, _, S) -> {reply, Term, S};
handle_call({take, _}, _, S) -> {reply, ok, S};
handle_call({reply, Kind}, _, S) -> {reply, made(Kind), S}.

%% What the calling process has made once.
-spec made(bench_throughput:kind()) -> term().
made(Kind) ->
    case get(Kind) of
        undefined -> put(Kind, bench_throughput:message(Kind)), made(Kind);
        Term -> Term
    end.

-spec handle_cast(term(), []) -> {noreply, []}.
handle_cast(_, S) -> {noreply, S}.
