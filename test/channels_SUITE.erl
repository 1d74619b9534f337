%% What may go wrong with the connections of lanes: nothing is lost, doubled or out of order as
%% long as only they break. And whoever says nonsense on one loses the connection.
-module(channels_SUITE).

-include_lib("stdlib/include/assert.hrl").
-include("../src/gate/trunkline_route.hrl").

-export([all/0, suite/0]).
-export([one_for_each_lane/1, first_batch/1, each_end_in_turn/1, one_of_them/1,
         peer_stands_still/1, peer_killed/1, garbage/1, ports_are_lost/1, stays_apart/1,
         peer_without_channels/1]).
-export([attempts/1]).

suite() -> [{timetrap, {minutes, 8}}].

all() -> [one_for_each_lane, first_batch, each_end_in_turn, one_of_them, peer_stands_still,
          peer_killed, garbage, ports_are_lost, stays_apart, peer_without_channels].

-define(LONG, 120_000).

pair(Env) -> cluster:pair([{lane_transport, transport()}, {lanes, 3} | Env]).

transport() ->
    case cluster:lane_transport() of
        dist -> tcp;
        Transport -> Transport
    end.

%% To a near peer, and whoever has it on, messages of all kinds go by it. After an orderly end it
%% is closed.
one_for_each_lane(_) ->
    {A, B} = pair([]),
    await_channels(A, B),
    ?assertMatch(#{batches := #{connections := 3}}, cluster:info(A, B)),
    Load = streams:both_ways(A, B),
    exchange:both_ways(A, B),
    streams:flowing(Load, ?LONG),
    ?assertMatch(#{batches := #{connections := 3}}, cluster:info(A, B)),
    ?assertEqual(0, streams:finish(Load, ?LONG)),
    ok = cluster:call(A, trunkline, drain, [cluster:node_of(B)]),
    cluster:await(fun() -> case [cluster:call(N, fun() ->
                                                         {length(cluster:writers(batches)),
                                                          length(cluster:channel_ports())}
                                                 end)
                                 || N <- [A, B]] of
                               [{0, 0}, {0, 0}] -> true;
                               Left -> Left
                           end end),
    cluster:stop_all([A, B]).

%% The first batch of a session goes by the distribution, as what was sent before the session did.
%% So does the next one after a message that a process was sending when the session began.
first_batch(_) ->
    lists:foreach(
      fun(Env) ->
              {A, B} = pair([{lanes, 1} | Env]),
              await_channels(A, B),
              [To] = cluster:call(B, traffic, start_receivers, [1]),
              Sent = cluster:call(A, fun() -> [sent_by_lane(To, N) || N <- [1, 2]] end),
              ?assertMatch([{batch, 1}, {write, _}], Sent),
              Behind = cluster:call(A, fun() ->
                                               ok = trunkline_in_turn:sent_direct(node(To)),
                                               [sent_by_lane(To, N) || N <- [3, 4]]
                                       end),
              %% (In a session that may be resumed batches are kept, and go by connections.)
              Env =:= [] andalso ?assertMatch([{batch, _}, {write, _}], Behind),
              cluster:await(fun() -> cluster:call(B, traffic, count, [To]) =:= 4 end),
              cluster:stop_all([A, B])
      end, [[], [{resume_time, 60_000}]]).

%% The first that the lane sends, with the number of the batch.
sent_by_lane(To, N) ->
    #route{lanes = {Lane}} = trunkline_route:lookup(node(To)),
    1 = erlang:trace(Lane, true, [send]),
    _ = trunkline:send(To, {from, 1, N, x}),
    Sent = first_sent(Lane),
    1 = erlang:trace(Lane, false, [send]),
    Sent.

first_sent(Lane) ->
    receive
        {trace, Lane, send, Message, _} when element(1, Message) =:= batch;
                                             element(1, Message) =:= write ->
            {element(1, Message), element(2, Message)};
        {trace, _, _, _, _} -> first_sent(Lane)
    end.

%% All of them, at either end, in whichever way.
each_end_in_turn(_) ->
    {A, B} = pair([]),
    Sessions = sessions(A, B),
    Load = streams:start(A, B, 50),
    Back = streams:start(B, A, 3000),
    [begin
         await_channels(From, To),
         cluster:await(fun() -> cluster:call(At, cluster, break_channels, [What]) > 0 end, ?LONG),
         streams:flowing(Load, B, ?LONG),
         streams:flowing(Back, A, ?LONG)
     end || _ <- lists:seq(1, 6),
            {From, To, At, What} <- [{A, B, A, writers}, {A, B, B, sockets}, {B, A, B, writers},
                                     {B, A, A, sockets}]],
    unharmed(Sessions, Load, Back, A, B).

%% One, while the others go on.
one_of_them(_) ->
    {A, B} = pair([]),
    Sessions = sessions(A, B),
    Load = streams:start(A, B, 50),
    Back = streams:start(B, A, 50),
    [begin
         await_channels(A, B),
         await_channels(B, A),
         %% All may be dead before their lanes have heard of it.
         cluster:await(fun() -> cluster:call(At, fun() -> kill_one(N) end) =:= killed end, ?LONG)
     end || N <- lists:seq(1, 20), At <- [A, B]],
    streams:flowing(Load, B, ?LONG),
    unharmed(Sessions, Load, Back, A, B).

kill_one(N) ->
    case cluster:writers(batches) of
        [] -> none;
        Writers ->
            Writer = lists:nth(1 + N rem length(Writers), Writers),
            Ref = monitor(process, Writer),
            exit(Writer, kill),
            receive {'DOWN', Ref, process, Writer, _} -> killed end
    end.

%% Its connections fill, and the senders wait. Then all arrives.
peer_stands_still(_) ->
    {A, B} = pair([]),
    await_channels(A, B),
    Sessions = sessions(A, B),
    Load = streams:start(A, B, 3000),
    Back = streams:start(B, A, 50),
    [begin
         cluster:suspend(B),
         cluster:await(fun() ->
                               Before = waits(A, B),
                               receive after 100 -> ok end,
                               waits(A, B) > 0 andalso Before =:= waits(A, B)
                       end, ?LONG),
         %% Some end meanwhile.
         N rem 2 =:= 0 andalso cluster:call(A, cluster, break_channels, [writers]),
         cluster:continue(B),
         streams:flowing(Load, B, ?LONG)
     end || N <- [1, 2, 3, 4]],
    unharmed(Sessions, Load, Back, A, B).

waits(A, B) -> lists:sum([W || #{waits := W} <- maps:get(lanes, cluster:info(A, B))]).

%% What had not arrived is counted, and the next incarnation gets none of it.
peer_killed(_) ->
    {A, B} = pair([]),
    await_channels(A, B),
    _ = streams:start(A, B, 3000),
    {_, Name, _} = B,
    cluster:kill(B),
    cluster:await(fun() -> case cluster:call(A, trunkline, info, [Name]) of
                               #{state := down, batches := #{connections := 0}} -> true;
                               Other -> Other
                           end end, ?LONG),
    ?assertEqual(0, cluster:call(A, fun() -> length(cluster:writers(batches)) end)),
    cluster:stop_all([A, B]).

%% By whoever has been invited to write to an inlet. It is closed, or nothing happens.
garbage(_) ->
    {A, B} = cluster:pair([]),
    NodeA = cluster:node_of(A),
    Before = {sessions(A, B), cluster:call(B, cluster, find, [inlets, NodeA])},
    Atoms = cluster:call(B, erlang, system_info, [atom_count]),
    Term = fun(T) -> term_to_binary(T) end,
    Good = Term({later, trunkline_gate:charge(x), {more, []}, []}),
    Frames = [{closed, <<1:32, 0>>}, {closed, <<8:32, 0:64>>}, {closed, <<7:32, 1:56>>},
              {closed, <<9:32, 0:64, 1>>}, {closed, <<(1 bsl 32 - 1):32, 1:64>>},
              {closed, <<(1 bsl 30 + 1):32, 1:64>>},
              {closed, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"},
              %% (The number is the next one if nothing has been sent.)
              {closed,
               [<<(8 + byte_size(Bad)):32, (1 bsl 40):64, Bad/binary>> || Bad <- [<<"no term">>]]
               ++ [<<8:32, 0:64>>]},
              {stays, binary:copy(<<0:32>>, 1000)},
              %% Of a far future, and never decoded.
              {stays, <<(8 + byte_size(Good)):32, (1 bsl 40):64, Good/binary>>},
              {stays, <<1000:32, 1:64, "half of it">>}],
    [begin
         {ok, Invitation} =
             cluster:call(B, fun() ->
                                     [Inlet | _] = cluster:find(inlets, NodeA),
                                     trunkline_listener:invite({large, tcp}, Inlet)
                             end),
         #{port := Port} = Invitation,
         C = stranger:connect(Port),
         ok = stranger:admitted(C, Invitation),
         stranger:say(C, Frame),
         case Expected of
             closed -> ?assertEqual({Frame, true}, {Frame, stranger:is_closed(C)});
             stays ->
                 ?assertEqual({Frame, {false, timeout}}, {Frame, stranger:is_closed(C, 100)}),
                 stranger:close(C)
         end
     end || {Expected, Frame} <- Frames, cluster:lane_transport() =/= tls],
    exchange:both_ways(A, B),
    ?assert(cluster:call(B, erlang, system_info, [atom_count]) < Atoms + 200),
    ?assertEqual(Before, {sessions(A, B), cluster:call(B, cluster, find, [inlets, NodeA])}),
    cluster:stop_all([A, B]).

%% To make a connection does not connect the nodes: these may have been disconnected on purpose.
stays_apart(_) ->
    [A, B] = cluster:start_all([none, none]),
    ok = cluster:connect(A, B),
    Pid = cluster:call(B, erlang, whereis, [init]),
    true = cluster:call(A, erlang, disconnect_node, [cluster:node_of(B)]),
    cluster:await(fun() -> cluster:call(B, erlang, nodes, []) =:= [] end),
    ?assertEqual([{shutdown, noconnection}, {shutdown, noconnection}],
                 cluster:call(A, ?MODULE, attempts, [Pid])),
    ?assertEqual([], cluster:call(A, erlang, nodes, [connected])),
    cluster:stop_all([A, B]).

%% Of a lane, and of a trunk.
attempts(Pid) ->
    Settings = #{transport => transport(), timeout => 10_000, is_far => unknown, far => default},
    [begin
         {ok, {Process, Monitor}} = Open(),
         receive {'DOWN', Monitor, process, Process, Reason} -> Reason end
     end || Cargo <- [batches, large],
            Open <- [fun() -> trunkline_writer:open(Pid, Settings#{cargo => Cargo}) end]].

%% Where the listener has gone and nobody can connect, batches go by the distribution, with what the
%% connections had not delivered; and back again.
ports_are_lost(_) ->
    {A, B} = pair([]),
    ok = cluster:call(A, logger, set_primary_config, [level, none]),
    await_channels(A, B),
    Sessions = sessions(A, B),
    Load = streams:start(A, B, 50),
    Back = streams:start(B, A, 50),
    ok = cluster:call(B, supervisor, terminate_child, [trunkline_sup, trunkline_listener]),
    cluster:await(fun() -> cluster:call(A, cluster, break_channels, [writers]) > 0 end, ?LONG),
    %% One that had its invitation before may be made after that.
    cluster:await(fun() -> case cluster:info(A, B) of
                               #{batches := #{by := distribution, connections := 0}} -> true;
                               Other -> cluster:call(A, cluster, break_channels, [writers]), Other
                           end end, ?LONG),
    streams:flowing(Load, B, ?LONG),
    {ok, _} = cluster:call(B, supervisor, restart_child, [trunkline_sup, trunkline_listener]),
    await_channels(A, B),
    streams:flowing(Load, B, ?LONG),
    unharmed(Sessions, Load, Back, A, B).

%% Then they go by the distribution, whatever the option says.
peer_without_channels(_) ->
    [A, B] = cluster:start_all([[{lane_transport, transport()}], none]),
    ok = cluster:call(B,
                      fun() ->
                              {ok, {_, [{abstract_code, {_, Forms}}]}} =
                                  beam_lib:chunks(code:which(trunkline_handshake), [abstract_code]),
                              {ok, Module, Beam} = compile:forms(without_v1(Forms), []),
                              {module, Module} = code:load_binary(Module, "older", Beam),
                              ok
                      end),
    ok = cluster:call(B, cluster, start_trunkline, [[{lane_transport, transport()}]]),
    cluster:connect(A, B),
    [cluster:await_lanes(From, To) || {From, To} <- [{A, B}, {B, A}]],
    Load = streams:both_ways(A, B),
    exchange:both_ways(A, B),
    ?assertEqual(0, streams:finish(Load, ?LONG)),
    [?assertMatch(#{state := up, batches := #{by := distribution, connections := 0}},
                  cluster:info(From, To))
     || {From, To} <- [{A, B}, {B, A}]],
    cluster:stop_all([A, B]).

without_v1({cons, _, {atom, _, v1}, Tail}) -> Tail;
without_v1(Tuple) when is_tuple(Tuple) ->
    list_to_tuple(without_v1(tuple_to_list(Tuple)));
without_v1([H | T]) -> [without_v1(H) | without_v1(T)];
without_v1(Other) -> Other.

%% --- what is common -----------------------------------------------------------------

unharmed(Sessions, Load, Back, A, B) ->
    ?assertEqual(0, streams:finish([{A, B, Load}, {B, A, Back}], ?LONG)),
    ?assertEqual(Sessions, sessions(A, B)),
    [begin
         #{lost := Lost} = cluster:info(From, To),
         ?assertEqual([0], lists:usort(maps:values(Lost)))
     end || {From, To} <- [{A, B}, {B, A}]],
    cluster:stop_all([A, B]).

sessions(A, B) -> [anew:sessions(A, B), anew:sessions(B, A)].

await_channels(A, B) ->
    cluster:await(fun() -> case cluster:info(A, B) of
                               #{batches := #{by := connections}} -> true;
                               Other -> Other
                           end end, ?LONG).
