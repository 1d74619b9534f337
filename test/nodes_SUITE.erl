%% What Trunkline takes other nodes for. Hidden nodes may be C nodes, or shells and control
%% commands that come and go; neighbours that have too much to do are not far away.
-module(nodes_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([c_node/1, hidden/1, both_hidden/1, short_lived/1, gone_before_a_session/1,
         late_neighbour/1, former_life/1, comes_and_goes/1, sockets/1]).
-export([log/2]).

suite() -> [{timetrap, {minutes, 6}}].

all() -> [c_node, hidden, both_hidden, short_lived, gone_before_a_session, late_neighbour,
          former_life, comes_and_goes, sockets].

%% A C node gets what it is sent, and nothing else, whatever Trunkline has to say to others.
c_node(Config) ->
    cluster:lane_transport() =:= tls andalso throw({skip, "C nodes do not speak TLS"}),
    Program = filename:join(?config(priv_dir, Config), "cnode"),
    case compile(Program, filename:join(?config(data_dir, Config), "cnode.c")) of
        ok -> c_node_of(Program);
        {error, Why} -> {skip, Why}
    end.

c_node_of(Program) ->
    {A, B} = cluster:pair([]),
    ok = open_inbox(A, before),
    {Port, CNode} = start_c_node(Program, A),
    await_link(A, CNode),
    ok = open_inbox(A, meanwhile),
    ok = cluster:call(A, cluster, stop_trunkline, []),
    ok = cluster:call(A, cluster, start_trunkline, [[]]),
    cluster:await_up(A, B),
    await_link(A, CNode),
    ok = cluster:call(A, trunkline, drain, []),
    x = cluster:call(A, trunkline, send, [{any, CNode}, x]),
    enough = cluster:call(A, erlang, send, [{any, CNode}, enough]),
    ?assertEqual({0, "got x\ngot enough\n"}, said(Port, "")),
    await_forgotten(A, CNode),
    cluster:stop_all([A, B]).

%% Those who might speak to a node that has come have done so when this returns.
await_link(A, Node) ->
    cluster:await(fun() -> undefined =/= cluster:call(A, trunkline, info, [Node]) end),
    #{link := Link} = cluster:call(A, trunkline_peers, lookup, [Node]),
    lists:foreach(fun(P) -> cluster:call(A, sys, get_state, [P]) end,
                  [trunkline_links, Link, trunkline_inboxes]).

%% The distribution's sockets read more at a time than OTP's default, and gather what is sent, with
%% more room, also on the next connection. What a user has set counts: a buffer if it is larger.
sockets(_) ->
    Options = fun(X, Y) ->
                      Port = cluster:call(X, trunkline_socket, distribution, [cluster:node_of(Y)]),
                      {ok, Set} = cluster:call(X, inet, getopts,
                                               [Port, [buffer, delay_send, high_watermark]]),
                      Set
              end,
    Has = fun(X, Y, Bytes, Delays) ->
                  cluster:await(fun() ->
                                        case Options(X, Y) of
                                            [{buffer, Bytes}, {delay_send, Delays},
                                             {high_watermark, 131_072}] -> true;
                                            Others -> Others
                                        end
                                end)
          end,
    {A, B} = cluster:pair([]),
    [Has(X, Y, 65536, true) || {X, Y} <- [{A, B}, {B, A}]],
    true = cluster:call(A, erlang, disconnect_node, [cluster:node_of(B)]),
    [cluster:await_state(X, Y, down) || {X, Y} <- [{A, B}, {B, A}]],
    cluster:connect(A, B),
    cluster:await_up(A, B),
    [Has(X, Y, 65536, true) || {X, Y} <- [{A, B}, {B, A}]],
    C = cluster:start([], peer:random_name("more"),
                      cluster:dist_arguments()
                      ++ ["-kernel", "inet_dist_connect_options",
                          "[{buffer,200000},{delay_send,false}]"]),
    cluster:connect(C, A),
    cluster:await_up(C, A),
    Has(A, C, 65536, true),
    Has(C, A, 200_000, false),
    cluster:stop_all([A, B, C]).

%% A node may get its name while Trunkline runs there, and give it up again. Then nobody can be
%% reached, and it is no reason to crash.
comes_and_goes(_) ->
    B = cluster:start([]),
    NodeB = cluster:node_of(B),
    {ok, Peer, _} =
        peer:start(#{connection => standard_io, wait_boot => 120_000,
                     args => cluster:dist_arguments()
                         ++ ["-connect_all", "false", "-pa" | code:get_path()]}),
    A = {Peer, undefined, peer:call(Peer, os, getpid, [])},
    ok = cluster:call(A, logger, set_primary_config, [level, none]),
    ok = cluster:call(A, cluster, start_trunkline, [[]]),
    Name = list_to_atom(peer:random_name("comes")),
    %% (Seen from here, its processes change with its name.)
    Links = fun() ->
                    cluster:call(A, fun() -> [{Node, pid_to_list(Link)}
                                              || {Node, Link, _, _} <-
                                                     supervisor:which_children(trunkline_link_sup)]
                                    end)
            end,
    Cookie = cluster:call(B, erlang, get_cookie, []),
    Come = fun() ->
                   {ok, _} = cluster:call(A, net_kernel, start, [[Name, shortnames]]),
                   true = cluster:call(A, erlang, set_cookie, [Cookie]),
                   ok = cluster:connect(A, B),
                   true = cluster:await_lanes(A, B)
           end,
    Come(),
    #{peers := Peers} = cluster:call(A, trunkline, info, []),
    ?assertEqual([NodeB], maps:keys(Peers)),
    [{NodeB, _}] = Before = Links(),
    %% (The first may be in flight still when the link hears that the node is gone: `unconfirmed'.)
    Lost = fun() -> lists:sum(maps:values(maps:get(lost, cluster:info(A, B)))) end,
    ok = cluster:call(A, net_kernel, stop, []),
    lists:foreach(fun(N) ->
                          hello = cluster:call(A, trunkline, send, [{nobody, NodeB}, hello]),
                          cluster:await(fun() -> Lost() =:= N orelse Lost() end)
                  end, lists:seq(1, 20)),
    ?assertEqual(Before, Links()),
    Come(),
    ?assertEqual(Before, Links()),
    cluster:stop_all([A, B]).

open_inbox(Node, Name) ->
    {ok, _} = cluster:call(Node, mailroom, start, [{local, Name}, #{}, #{}]),
    ok.

compile(Program, Source) ->
    Ei = code:lib_dir(erl_interface),
    case {os:find_executable("cc"),
          is_list(Ei) andalso filelib:is_regular(filename:join(Ei, "include/ei.h"))} of
        {false, _} ->
            {error, "there is no C compiler"};
        {_, false} ->
            {error, "there is no erl_interface"};
        _ ->
            Said = os:cmd(
                     io_lib:format("cc -pthread -o '~ts' '~ts' -I'~ts/include' -L'~ts/lib' -lei",
                                   [Program, Source, Ei, Ei])),
            case filelib:is_regular(Program) of
                true -> ok;
                false -> error({not_compiled, Said})
            end
    end.

start_c_node(Program, A) ->
    Cookie = atom_to_list(cluster:call(A, erlang, get_cookie, [])),
    Port = open_port({spawn_executable, Program},
                     [{args,
                       [peer:random_name("trunkline_c"), Cookie, atom_to_list(cluster:node_of(A))]},
                      {line, 10_000}, exit_status]),
    receive
        {Port, {data, {eol, "connected " ++ CNode}}} -> {Port, list_to_atom(CNode)};
        {Port, Other} -> error(Other)
    end.

said(Port, Said) ->
    receive
        {Port, {data, {_, Line}}} -> said(Port, Said ++ Line ++ "\n");
        {Port, {exit_status, Status}} -> {Status, Said}
    after 60_000 -> error({timeout, Said})
    end.

%% A hidden node that runs Trunkline has lanes, and its inboxes are known, as those of others.
hidden(_) -> lanes_and_inboxes([], ["-hidden"]).

both_hidden(_) -> lanes_and_inboxes(["-hidden"], ["-hidden"]).

lanes_and_inboxes(ArgsA, ArgsB) ->
    [A, B] = [start([], Args) || Args <- [ArgsA, ArgsB]],
    ok = open_inbox(A, before),
    ok = open_inbox(B, before),
    cluster:connect(A, B),
    await_all(A, B, [before]),
    ok = open_inbox(A, meanwhile),
    ok = open_inbox(B, meanwhile),
    await_all(A, B, [before, meanwhile]),
    lists:foreach(fun(Node) ->
                          ok = cluster:call(Node, cluster, stop_trunkline, []),
                          ok = cluster:call(Node, cluster, start_trunkline, [[]]),
                          await_all(A, B, [before, meanwhile])
                  end, [A, B]),
    true = anew:connection(A, B),
    await_all(A, B, [before, meanwhile]),
    cluster:stop_all([A, B]).

await_all(A, B, Names) ->
    cluster:await_up(A, B),
    [cluster:await(fun() -> gets_known(X, {Name, cluster:node_of(Y)}) end)
     || {X, Y} <- [{A, B}, {B, A}], Name <- Names].

%% By the first message.
gets_known(X, Inbox) ->
    hello = cluster:call(X, trunkline, send, [Inbox, hello]),
    cluster:call(X, trunkline_bounded, is_bounded, [Inbox]).

start(Env, Args) ->
    cluster:start(Env, peer:random_name("trunkline_test"), cluster:dist_arguments() ++ Args).

%% Shells and control commands leave nothing behind, however they end.
short_lived(_) ->
    A = cluster:start(),
    [begin
         Node = start(none, Args),
         cluster:connect(Node, A),
         await_link(A, cluster:node_of(Node)),
         x = cluster:call(A, trunkline, send, [{any, cluster:node_of(Node)}, x]),
         End(Node),
         await_forgotten(A, cluster:node_of(Node)),
         cluster:stop(Node)
     end || Args <- [["-hidden"], []],
            End <- [fun cluster:stop/1, fun cluster:kill/1,
                    fun(N) -> cluster:call(N, erlang, disconnect_node, [cluster:node_of(A)]) end]],
    cluster:stop(A).

%% Nor does one that has said hello, and goes before there has been a session.
gone_before_a_session(_) ->
    A = cluster:start(),
    Node = start(none, ["-hidden"]),
    cluster:connect(Node, A),
    Links = {trunkline_links, cluster:node_of(A)},
    ok = cluster:call(
           Node, fun() ->
                         {ok, Options} = trunkline_options:check([]),
                         Link = spawn(timer, sleep, [infinity]),
                         Hello = trunkline_handshake:hello(Options),
                         Links ! {trunkline, node(), {hello, Link, make_ref(), Hello, true}},
                         ok
                 end),
    cluster:await_state(A, Node, opening),
    cluster:kill(Node),
    await_forgotten(A, cluster:node_of(Node)),
    cluster:stop_all([Node, A]).

await_forgotten(A, Node) ->
    cluster:await(
      fun() ->
              {[], none, false} =:=
                  cluster:call(
                    A, fun() ->
                               {[N
                                 || N <- maps:keys(maps:get(peers, trunkline:info())), N =:= Node],
                                trunkline_route:lookup(Node),
                                lists:keymember(Node, 1,
                                                supervisor:which_children(trunkline_link_sup))}
                       end)
      end).

%% A neighbour that answers late, for all the time there is, is near: the kernels know. So there
%% are no more connections to it than to others, and the kernel's own congestion control.
late_neighbour(_) ->
    case os:type() of
        {unix, linux} -> late_neighbours();
        _ -> {skip, "this system does not tell the kernel's round trips"}
    end.

late_neighbours() ->
    {ok, Own} = file:read_file("/proc/sys/net/ipv4/tcp_congestion_control"),
    Others = [binary_to_atom(Name) || Name <- trunkline_socket:offered(), Name =/= string:trim(Own),
                                      trunkline_socket:accepts(binary_to_atom(Name))],
    Env = [{lane_transport, auto}, {far_connections, 16}]
        ++ [{congestion_control, hd(Others)} || Others =/= []],
    [A, B] = [start(Env, []) || _ <- "AB"],
    [ok = cluster:call(Node, fun answer_late/0) || Node <- [A, B]],
    cluster:connect(A, B),
    cluster:await_lanes(A, B),
    Info = fun() -> cluster:info(A, B) end,
    cluster:await(fun() -> case Info() of
                               #{round_trip := undefined} = I -> I;
                               #{round_trip := Time} when is_integer(Time) -> true
                           end end),
    ?assertMatch(#{round_trip := Time, batches := #{by := distribution, connections := 0}}
  when Time < 2000, Info()),
    [To] = cluster:call(B, traffic, start_receivers, [1]),
    cluster:await(fun() ->
                          _ = cluster:call(A, trunkline, send, [To, binary:copy(<<0>>, 1_000_000)]),
                          case Info() of
                              #{large := #{connections := 0}} = I -> I;
                              #{large := #{congestion_control := Name}} -> Name =:= string:trim(Own)
                          end
                  end),
    cluster:stop_all([A, B]).

%% Runs at the node: from now on its links answer pings 20 ms later.
answer_late() ->
    Module = trunkline_reach,
    {ok, {_, [{abstract_code, {_, Forms}}]}} = beam_lib:chunks(code:which(Module), [abstract_code]),
    Late =
        "answer(Peer, Ref) -> spawn(fun() -> timer:sleep(20), answer_at_once(Peer, Ref) end), ok.",
    {ok, Tokens, _} = erl_scan:string(Late),
    {ok, Answer} = erl_parse:parse_form(Tokens),
    Changed = lists:flatmap(fun({function, Line, answer, 2, Clauses}) ->
                                    [{function, Line, answer_at_once, 2, Clauses}, Answer];
                               (Form) -> [Form]
                            end, Forms),
    {ok, Module, Code} = compile:forms(Changed, []),
    {module, Module} = code:load_binary(Module, "late", Code),
    ok.

%% What is sent to pids and aliases of a node's former life is dropped, as with `!', and nothing of
%% it comes into the log.
former_life(_) ->
    Name = peer:random_name("trunkline_life"),
    A = cluster:start([]),
    B1 = cluster:start([], Name),
    Node = cluster:node_of(B1),
    cluster:connect(A, B1),
    cluster:await_up(A, B1),
    Old = cluster:call(B1, fun() ->
                                   Self = self(),
                                   Pid = spawn(fun() -> Self ! alias(), receive stop -> ok end end),
                                   receive Alias -> [Pid, Alias] end
                           end),
    cluster:kill(B1),
    cluster:await_state(A, B1, down),
    B2 = cluster:start([], Name),
    ok = cluster:call(B2, fun() ->
                                  true = register(log_events, spawn(fun() -> count(0) end)),
                                  logger:add_handler(log_events, ?MODULE, #{})
                          end),
    cluster:connect(A, B2),
    cluster:await_up(A, B2),
    Messages = [small, binary:copy(<<"x">>, 1000), binary:copy(<<"x">>, 1_000_000),
                lists:seq(1, 20_000), lists:duplicate(20_000, #{a => "b"})],
    ok = cluster:call(
           A, fun() ->
                      [begin
                           [trunkline:send(To, M) || _ <- lists:seq(1, 20)],
                           trunkline:multicast(Old, M),
                           trunkline:cast(hd(Old), M)
                       end || M <- Messages, To <- Old],
                      [?assertExit({noproc, _}, trunkline:call(hd(Old), M)) || M <- Messages],
                      trunkline:drain(Node)
              end),
    ?assertEqual(0, cluster:call(B2, fun() ->
                                             log_events ! {get, hd(Old), self()},
                                             receive {count, N} -> N end
                                     end)),
    cluster:stop_all([A, B2]).

log(#{msg := Message}, _) ->
    Text = lists:flatten(io_lib:format("~0p", [Message])),
    case {string:find(Text, "old incarnation"), string:find(Text, "the_last_one")} of
        {nomatch, _} -> ok;
        {_, nomatch} -> log_events ! event;
        _ -> log_events ! last
    end.

count(N) ->
    receive
        event -> count(N + 1);
        {get, To, From} ->
            %% The runtime system logs this behind what it has logged already.
            To ! the_last_one,
            receive last -> From ! {count, events(N)} end
    end.

events(N) ->
    receive event -> events(N + 1)
    after 0 -> N
    end.
