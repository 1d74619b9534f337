%% Long replies that go straight to the caller (trunkline_plain_reply): to whom they are granted,
%% that they keep the promises of those by lane, and that nothing of them is left.
%%
%% A server sees which way its reply goes by the node of the alias in the caller's tag, and says so
%% in the reply.
-module(plain_reply_SUITE).
-behaviour(gen_server).

-include_lib("stdlib/include/assert.hrl").
-include("../src/gate/trunkline_route.hrl").

-export([all/0, suite/0]).
-export([granted/1, granted_soon/1, granted_when_seen/1, slow_or_seldom/1, message_before/1,
         to_another/1, silence/1, sent_earlier/1,
         not_granted/1, not_granted_if_session_resumes/1, async_before/1, async_under_way/1,
         message_behind/1, server_ends/1, server_ends_while_busy/1, ends_without_reply/1,
         nothing_left/0, nothing_left/1, looks_go_on/1, agent_killed/1, no_table/1, two_timers/1,
         end_in_good_order/1, started_again/1, connection_lost/1]).
-export([start/0, start/1, ways/1, until/4, requests/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-define(NAME, plain_replier).
%% Of the shared words, that of a lane which says how many are owed (trunkline_bypass).
-define(OWED(Ix), (1024 + 2 * 256 + 16 * (Ix) + 7)).
%% Calls within which a server gets to plain replies, or back to lanes.
-define(SOON, 200).

suite() -> [{timetrap, {minutes, 2}}].

all() -> [granted, granted_soon, granted_when_seen, slow_or_seldom, message_before,
          to_another, silence, sent_earlier, not_granted,
          not_granted_if_session_resumes, async_before, async_under_way, message_behind,
          server_ends, server_ends_while_busy, ends_without_reply, nothing_left, looks_go_on,
          agent_killed, no_table, two_timers, end_in_good_order, started_again,
          connection_lost].

%% --- which replies --------------------------------------------------------------------

%% Long replies are plain, to one caller or to many at a time, by the server's pid or its name.
%% Short ones bring it back to lanes soon, however many long ones there were.
granted(_) ->
    on_all_ways(fun granted/2).

granted(A, B) ->
    Pid = cluster:call(B, ?MODULE, start, [?NAME]),
    lists:foreach(
      fun(Server) ->
              Until = fun(What, Way) ->
                              cluster:call(A, ?MODULE, until, [Server, What, Way, ?SOON])
                      end,
              Until(list, plain),
              Many = cluster:call(A, fun() -> many_calls(Server, 8, 100) end),
              ?assert(length([plain || plain <- Many]) > 400, Many),
              Until(short, by_lane),
              ?assertEqual([by_lane], lists:usort(ways_of(A, Server, {binary, 1000}, ?SOON))),
              Until({binary, 262_144}, plain),
              Until({binary, 1000}, by_lane),
              Until(list, plain),
              Until(short, by_lane)
      end, [Pid, {?NAME, cluster:node_of(B)}]).

%% One very long reply says enough of a server. The next call asks, and one of those that follow is
%% the first with a plain reply.
granted_soon(_) ->
    on_all_ways(fun(A, B) ->
                        Server = cluster:call(B, ?MODULE, start, []),
                        ok = cluster:call(A, ?MODULE, until, [Server, very_long, plain, 6])
                end).

%% A server may have looked before it was watched, and send something unseen, until it has had a
%% request that came later. So there must have been a reply to such a request before the lane is
%% asked.
granted_when_seen(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    [{watching, Watch}, {watching, Watch}, none, {asked, _}, by_lane, plain] =
        cluster:call(B, ?MODULE, requests, [cluster:node_of(A), self()]),
    cluster:stop_all([A, B]).

%% What happens with two requests; with the reply to one that came before the watch began, and to
%% the first; and with two requests more, before and after the lane's answer.
requests(NodeA, Caller) ->
    #route{lanes = {Lane}} = Route = trunkline_route:lookup(NodeA),
    Server = spawn(fun() -> receive after infinity -> ok end end),
    Request = fun(Plain) ->
                      trunkline_plain_reply:request(Server, {Caller, make_ref()}, Route, Plain)
              end,
    {{watching, Watch} = First, Plain1} = Request(trunkline_plain_reply:new()),
    {Second, Plain2} = Request(Plain1),
    {Earlier, Plain3} = trunkline_plain_reply:replied(Server, make_ref(), Route, Plain2),
    {{asked, Question} = Asked, Plain4} =
        trunkline_plain_reply:replied(Server, Watch, Route, Plain3),
    {Third, Plain5} = Request(Plain4),
    HaveArrived = receive {Question, Answer} ->
                              trunkline_in_turn:have_arrived(Lane, Question, Answer)
                  end,
    {Fourth, _} = Request(trunkline_plain_reply:arrived(Question, HaveArrived, {Server, Route},
                                                        Plain5)),
    true = exit(Server, kill),
    [First, Second, Earlier, Asked, Third, Fourth].

%% Servers that take more than a second for each reply, or have a request every few seconds.
slow_or_seldom(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    ok = long_by_name(A, B),
    Server = cluster:call(B, ?MODULE, start, [?NAME]),
    Named = {?NAME, cluster:node_of(B)},
    ok = cluster:call(A, ?MODULE, until, [Named, {late, 1200}, plain, 12]),
    receive after 3000 -> ok end,                    % (this is the case, not a wait for something)
    ok = cluster:call(A, ?MODULE, until, [Named, list, plain, 1]),
    stop(B, Server),
    cluster:stop_all([A, B]).

many_calls(Server, Callers, Each) ->
    Pids = [spawn_monitor(fun() -> exit([way_of(Server, list) || _ <- lists:seq(1, Each)]) end)
            || _ <- lists:seq(1, Callers)],
    lists:append([receive {'DOWN', Ref, _, _, Ways} -> Ways end || {_, Ref} <- Pids]).

ways_of(A, Server, What, N) ->
    cluster:call(A, fun() -> [way_of(Server, What) || _ <- lists:seq(1, N)] end).

%% A server with an unanswered request of send_request, a caller whose mailbox is off the heap, and
%% a server behind an inbox.
not_granted(_) ->
    {A, B} = cluster:pair([{lanes, 1}]),
    Server = cluster:call(B, ?MODULE, start, []),
    Until = fun(What, Way) -> cluster:call(A, ?MODULE, until, [Server, What, Way, ?SOON]) end,
    Until(list, plain),
    Requester = cluster:call(A, fun() -> spawn(fun() -> request(Server) end) end),
    cluster:await(fun() -> waiting(B, Server) =:= [by_lane] end),
    ?assertEqual([by_lane], lists:usort(ways_of(A, Server, list, ?SOON))),
    reply(B, Server),
    cluster:await(fun() -> not cluster:call(A, erlang, is_process_alive, [Requester]) end),
    Until(list, plain),
    OffHeap = cluster:call(A, fun() ->
        {_, Ref} = spawn_opt(fun() -> exit([way_of(Server, list) || _ <- lists:seq(1, ?SOON)]) end,
                             [monitor, {message_queue_data, off_heap}]),
        receive {'DOWN', Ref, _, _, Ways} -> Ways end
    end),
    ?assertEqual([by_lane], lists:usort(OffHeap)),
    Until(list, plain),
    {ok, _} = cluster:call(B, fun() ->
        mailroom:own(fun() -> trunkline_inbox:start_link({local, ?NAME}, ?MODULE, [], []) end)
    end),
    ?assertEqual([by_lane],
                 lists:usort(ways_of(A, {?NAME, cluster:node_of(B)}, list, ?SOON))),
    cluster:stop_all([A, B]).

request(Server) ->
    {reply, _} = trunkline:receive_response(trunkline:send_request(Server, wait), infinity).

%% Such a session may lose what goes by the distribution.
not_granted_if_session_resumes(_) ->
    {A, B} = cluster:pair([{lanes, 1}, {resume_time, 600_000}]),
    Server = cluster:call(B, ?MODULE, start, []),
    ?assertEqual([by_lane], lists:usort(ways_of(A, Server, list, ?SOON))),
    cluster:stop_all([A, B]).

%% --- order ----------------------------------------------------------------------------

%% What the server sends to the caller before its reply arrives before it, in whatever way it is
%% sent. Its lane stands still meanwhile. Messages to the caller's pid do not take that, and for
%% others the server waits.
message_before(_) ->
    on_both_ways(fun(A, B) ->
                         [message_past(Form, A, B) || Form <- forms_past()],
                         [message_before(Form, A, B) || Form <- forms(cluster:node_of(A))]
                 end).

forms_past() ->
    [{pid, fun(Pid) -> trunkline:send(Pid, before) end},
     {cast, fun(Pid) -> trunkline:cast(Pid, before) end},
     {long, fun(Pid) -> trunkline:send(Pid, rows(plain)) end},
     {large, fun(Pid) -> trunkline:send(Pid, large()) end},
     {with_options, fun(Pid) -> ok = trunkline:send(Pid, before, [noconnect, nosuspend]) end}].

forms(NodeA) ->
    [{name, fun(_, _) -> trunkline:send({?NAME, NodeA}, before) end},
     {name_nosuspend, fun(_, _) -> ok = trunkline:send({?NAME, NodeA}, before, [nosuspend]) end},
     {alias, fun(_, Alias) -> trunkline:send(Alias, before) end},
     {request, fun(Pid, _) -> trunkline:send_request(Pid, before) end},
     {multicast, fun(Pid, _) -> trunkline:multicast([{nobody, NodeA}, Pid], before) end},
     {multicast_name, fun(_, _) -> trunkline:multicast([{?NAME, NodeA}], before) end},
     {exit, fun(Pid, _) -> trunkline:exit(Pid, before) end},
     {large_to_name, fun(_, _) -> trunkline:send({?NAME, NodeA}, large()) end}].

large() -> binary:copy(<<1>>, 1_000_000).

message_past({Form, Send}, A, B) ->
    Server = cluster:call(B, ?MODULE, start, []),
    Caller = owed(A, B, Server),
    ok = hold_lanes(B, A),
    tell(B, Server, fun(Froms) -> _ = Send(Caller), answer(Froms) end),
    {Result, Mail} = result(A, Caller),
    ?assertMatch({_, {ok, [#{way := plain} | _]}, [_]}, {Form, Result, Mail}),
    cluster:call(B, cluster, release, []).

message_before({Form, Send}, A, B) ->
    Server = cluster:call(B, ?MODULE, start, []),
    Caller = owed(A, B, Server),
    Alias = cluster:call(A, fun() -> value(alias, Caller) end),
    ok = hold_lanes(B, A),
    tell(B, Server, fun(Froms) -> _ = Send(Caller, Alias), answer(Froms) end),
    cluster:await(fun() -> waits(B, Server) orelse waiting(B, Server) =:= [] end),
    ?assertEqual({Form, waits, []}, {Form, progress(A, Caller), mail(A, Caller)}),
    cluster:call(B, cluster, release, []),
    {Result, Mail} = result(A, Caller),
    ?assertMatch({_, {ok, [#{way := plain} | _]}, [_]}, {Form, Result, Mail}).

%% While a server owes one process a reply, it does not wait for a message to another one.
to_another(_) ->
    {A, B} = cluster:pair_on_the_distribution(),
    Server = cluster:call(B, ?MODULE, start, []),
    Caller = owed(A, B, Server),
    Other = cluster:call(A, fun idle/0),
    ok = hold_lanes(B, A),
    tell(B, Server, fun(Froms) ->
                            trunkline:send(Other, message),
                            ok = trunkline:multicast([], message),
                            ok = trunkline:send(Other, message, [nosuspend]),
                            answer(Froms)
                    end),
    ?assertMatch({{ok, [#{way := plain} | _]}, []}, result(A, Caller)),
    ?assertEqual([], mail(A, Other)),
    cluster:call(B, cluster, release, []),
    cluster:await(fun() -> mail(A, Other) =:= [message, message] end),
    cluster:stop_all([A, B]).

%% When a server has waited its replies go by lane, for ten seconds. What it sends to others, or to
%% its callers' pids, does not matter.
silence(_) ->
    {A, B} = cluster:pair_on_the_distribution(),
    NodeA = cluster:node_of(A),
    Server = cluster:call(B, ?MODULE, start, []),
    Other = cluster:call(A, fun idle/0),
    Send = fun(To) ->
                   Caller = owed(A, B, Server),
                   tell(B, Server, fun(Froms) ->
                                           trunkline:send(Other, message),
                                           trunkline:send(To(Caller), message),
                                           answer(Froms)
                                   end),
                   {{ok, [#{way := plain} | _]}, [message]} = result(A, Caller)
           end,
    Send(fun(Caller) -> Caller end),
    cluster:await(fun() -> lists:member(plain, ways_of(A, Server, list, 10)) end),
    Start = erlang:monotonic_time(millisecond),
    Send(fun(_) -> {?NAME, NodeA} end),
    Ways = ways_of(A, Server, list, ?SOON),
    Time = erlang:monotonic_time(millisecond) - Start,
    ?assert(lists:usort(Ways) =:= [by_lane] orelse Time > 9000, {Time, Ways}),
    cluster:await(fun() -> lists:member(plain, ways_of(A, Server, list, 10)) end),
    cluster:stop_all([A, B]).

%% What the server has sent to the caller before the agent knew it has not arrived yet.
sent_earlier(_) ->
    on_both_ways(
      fun(A, B) ->
              ok = long_by_name(A, B),
              [begin
                   Server = cluster:call(B, ?MODULE, start, [?NAME]),
                   Caller = cluster:call(A, fun() -> spawn(fun() -> told(B) end) end),
                   ok = hold_inlets(A, B),
                   ok = cluster:call(B, gen_server, call, [Server, {do, fun(Froms) ->
                       trunkline:send(Caller, Message),
                       Froms
                   end}]),
                   overtakes_nothing(A, B, Server, Caller)
               end || Message <- [message, rows(plain)]]
      end).

%% Runs at A: calls the server by its name when it is told to.
told({_, NodeB, _}) ->
    receive go -> ok end,
    keep(traffic:attempt(fun() -> trunkline:call({?NAME, NodeB}, {reply, list}, infinity) end)).

%% Something for the caller is held. It calls the server, whose reply waits, too.
overtakes_nothing(A, B, Server, Caller) ->
    Before = calls(B, Server),
    cluster:call(A, erlang, send, [Caller, go]),
    cluster:await(fun() -> calls(B, Server) > Before end),
    ?assertEqual({waits, []}, {progress(A, Caller), mail(A, Caller)}),
    [cluster:call(N, fun() -> whereis(holder) =:= undefined orelse cluster:release() end)
     || N <- [A, B]],
    ?assertMatch({{ok, [#{way := by_lane} | _]}, [_]}, result(A, Caller)),
    stop(B, Server).

%% The reply to an earlier request of send_request is in the server's lane.
async_before(_) ->
    on_both_ways(fun(A, B) -> async(A, B, fun() -> hold_lanes(B, A) end, fun() -> ok end) end).

%% It has left the lane, and its agent knows that, but it has not arrived.
async_under_way(_) ->
    on_both_ways(
      fun(A, B) ->
              NodeA = cluster:node_of(A),
              [Inlet] = cluster:call(B, cluster, find, [inlets, NodeA]),
              async(A, B, fun() -> hold_inlets(A, B) end,
                    fun() -> cluster:await(fun() -> not owes_async(Inlet, B) end) end)
      end).

%% {agent, Route, Servers, ...}, and a server ends with #{Caller => {Way, Pid}}.
owes_async(Inlet, B) ->
    Servers = maps:values(element(3, cluster:agent(Inlet, B))),
    lists:any(fun(Server) ->
                      Callers = element(tuple_size(Server), Server),
                      lists:keymember(not_awaited, 1, maps:values(Callers))
              end, Servers).

async(A, B, Hold, Await) ->
    ok = long_by_name(A, B),
    Server = cluster:call(B, ?MODULE, start, [?NAME]),
    ok = granted_to(A, Server),
    Caller = cluster:call(A, fun() -> spawn(fun() -> _ = trunkline:send_request(Server, wait),
                                                     told(B)
                                            end)
                             end),
    cluster:await(fun() -> waiting(B, Server) =:= [by_lane] end),
    ok = Hold(),
    reply(B, Server),
    Await(),
    overtakes_nothing(A, B, Server, Caller).

%% What the server sends behind its reply does not overtake that, though the distribution is busy,
%% and its lane has a connection of its own. (Who has ended is told to the caller as well.)
message_behind(_) ->
    {A, B} = pair_on_connections(),
    NodeA = cluster:node_of(A),
    Filler = cluster:call(B, traffic, fill_connection, [NodeA]),
    lists:foreach(
      fun(Behind) ->
              Server = cluster:call(B, ?MODULE, start, []),
              Caller = owed(A, B, Server),
              Tracer = cluster:call(A, fun() -> traced(Caller) end),
              tell(B, Server, fun(Froms) -> Left = answer(Froms), Behind(Caller), Left end),
              {{ok, [#{way := plain} | _]}, _} = result(A, Caller),
              cluster:await(fun() -> length(mail(A, Caller)) =:= 1 end),
              [_ | _] = Got = cluster:call(A, fun() -> received(Caller, Tracer) end),
              ?assertEqual([reply, behind], [What || What <- Got, What =/= other])
      end, lists:append(lists:duplicate(15, [fun(To) -> trunkline:send(To, behind) end,
                                             fun(_) -> trunkline:send({?NAME, NodeA}, behind) end
                                            ]))),
    true = cluster:call(B, erlang, exit, [Filler, kill]),
    cluster:stop_all([A, B]).

%% A process that keeps what that one receives. Runs at A.
traced(Pid) ->
    Tracer = idle(),
    1 = erlang:trace(Pid, true, ['receive', {tracer, Tracer}]),
    Tracer.

received(Pid, Tracer) ->
    Ref = erlang:trace_delivered(Pid),
    receive {trace_delivered, Pid, Ref} -> ok end,
    {messages, Traces} = process_info(Tracer, messages),
    [case Message of
         {[[alias | _] | _], _} -> reply;
         behind -> behind;
         _ -> other
     end || {trace, _, 'receive', Message} <- Traces].

%% --- ends -----------------------------------------------------------------------------

%% A server replies, and ends at once. The news of that does not overtake the reply.
server_ends(_) ->
    on_all_ways(fun(A, B) -> last_replies(A, B, 200) end).

%% Also where the distribution is busy, and lanes have connections of their own.
server_ends_while_busy(_) ->
    {A, B} = pair_on_connections(),
    ok = long_by_name(A, B),
    Filler = cluster:call(B, traffic, fill_connection, [cluster:node_of(A)]),
    last_replies(A, B, 50),
    true = cluster:call(B, erlang, exit, [Filler, kill]),
    cluster:stop_all([A, B]).

last_replies(A, B, N) ->
    ok = long_by_name(A, B),
    NodeB = cluster:node_of(B),
    Ways = [begin
                Server = cluster:call(B, ?MODULE, start, [?NAME]),
                ok = granted_to(A, {?NAME, NodeB}),
                Last = cluster:call(A, fun() ->
                    traffic:attempt(fun() ->
                        trunkline:call({?NAME, NodeB}, reply_and_stop, infinity)
                    end)
                end),
                {ok, [#{way := Way} | _]} = Last,
                cluster:await(fun() -> not cluster:call(B, erlang, is_process_alive, [Server]) end),
                Way
            end || _ <- lists:seq(1, N)],
    ct:log("~b of ~b were plain", [length([plain || plain <- Ways]), N]),
    ?assert(lists:member(plain, Ways)).

%% A server that owes a plain reply ends: the caller gets the reason as from gen_server:call/3.
ends_without_reply(_) ->
    on_both_ways(
      fun(A, B) ->
              [begin
                   Server = cluster:call(B, ?MODULE, start, []),
                   Caller = owed(A, B, Server),
                   Local = cluster:call(B, fun() -> local_exit(End) end),
                   tell(B, Server, End),
                   {{exit, {Reason, {trunkline, call, _}}}, []} = result(A, Caller),
                   ?assertEqual(Local, Reason)
               end || End <- [fun(_) -> exit({shutdown, why}) end,
                              fun(_) -> exit(normal) end,
                              fun(_) -> exit(self(), kill), receive never -> ok end end]]
      end).

%% With which reason gen_server:call/3 exits.
local_exit(End) ->
    Server = start(),
    {_, Ref} = spawn_monitor(fun() -> gen_server:call(Server, wait, infinity) end),
    cluster:await(fun() -> ways(Server) =/= [] end),
    Server ! {do, End},
    receive {'DOWN', Ref, _, _, {Reason, {gen_server, call, _}}} -> Reason end.

%% When no caller waits any more, nothing is owed, nothing is watched, and the agent has forgotten
%% the server.
nothing_left() -> [{timetrap, {minutes, 6}}].       % a server stays watched for five seconds

nothing_left(_) ->
    on_all_ways(fun nothing_left/2).

nothing_left(A, B) ->
    ?assertEqual([], left(A, B)),
    lists:foreach(
      fun(End) ->
              Server = cluster:call(B, ?MODULE, start, []),
              Caller = owed(A, B, Server),
              ?assertMatch([_ | _], left(A, B)),
              End(Server, Caller),
              await_nothing_left(A, B)
      end,
      [fun(Server, Caller) ->                % it has the reply, and lives
               reply(B, Server),
               {{ok, _}, []} = result(A, Caller)
       end,
       fun(Server, Caller) ->                % it has the reply, and does other things
               reply(B, Server),
               {{ok, _}, []} = result(A, Caller),
               _ = cluster:call(A, fun() -> trunkline:send(Server, nothing) end)
       end,
       fun(_, Caller) -> true = cluster:call(A, erlang, exit, [Caller, kill]) end,
       fun(Server, _) -> true = cluster:call(B, erlang, exit, [Server, kill]) end,
       fun(Server, Caller) ->                % a timeout
               true = cluster:call(A, erlang, exit, [Caller, kill]),
               timeout = cluster:call(A, fun() -> timed_out(Server, 50) end),
               cluster:call(A, fun() -> idle() end)
       end,
       fun(Server, Caller) ->                % it has said something meanwhile
               Other = cluster:call(A, fun idle/0),
               tell(B, Server, fun(Froms) -> trunkline:send(Other, message), answer(Froms) end),
               {{ok, _}, []} = result(A, Caller)
       end]).

%% As long as a plain reply is owed the agent looks whether its caller has it, less and less often.
looks_go_on(_) ->
    {A, B} = cluster:pair_on_the_distribution(),
    Server = cluster:call(B, ?MODULE, start, []),
    Caller = owed(A, B, Server),
    await_calls(2, {trunkline_waiting, look, 1}, B),
    ?assertMatch([_ | _], left(A, B)),
    reply(B, Server),
    {{ok, _}, []} = result(A, Caller),
    await_nothing_left(A, B),
    cluster:stop_all([A, B]).

%% What an agent leaves that is killed is gone with the next session. So the server's messages to
%% the former caller go by lane.
agent_killed(_) ->
    {A, B} = cluster:pair_on_the_distribution(),
    Server = cluster:call(B, ?MODULE, start, []),
    Caller = owed(A, B, Server),
    [Inlet] = cluster:call(B, cluster, find, [inlets, cluster:node_of(A)]),
    true = cluster:call(B, erlang, exit, [Inlet, kill]),
    {{exit, {_, {trunkline, call, _}}}, []} = result(A, Caller),
    cluster:await(fun() -> Inlets = cluster:call(B, cluster, find, [inlets, cluster:node_of(A)]),
                           Inlets =/= [] andalso not lists:member(Inlet, Inlets)
                  end),
    ?assertEqual([], cluster:call(B, ets, tab2list, [trunkline_owed])),
    cluster:stop_all([A, B]).

%% Without the table nothing is granted.
no_table(_) ->
    {A, B} = cluster:pair([]),
    Server = cluster:call(B, ?MODULE, start, []),
    ok = granted_to(A, Server),
    true = cluster:call(B, ets, delete, [trunkline_owed]),
    ?assertEqual([by_lane], lists:usort(ways_of(A, Server, list, 20))),
    cluster:stop_all([A, B]).

%% A timer that was cancelled when its message was here already does nothing.
two_timers(_) ->
    {A, B} = cluster:pair_on_the_distribution(),
    Server = cluster:call(B, ?MODULE, start, []),
    [Inlet] = cluster:call(B, cluster, find, [inlets, cluster:node_of(A)]),
    Caller = owed(A, B, Server),
    ok = late_timer(B, Inlet),
    reply(B, Server),
    {{ok, _}, []} = result(A, Caller),
    await_nothing_left(A, B),
    ok = late_timer(B, Inlet),
    ok = granted_to(A, Server),
    ?assertEqual([Inlet], cluster:call(B, cluster, find, [inlets, cluster:node_of(A)])),
    cluster:stop_all([A, B]).

late_timer(B, Inlet) ->
    _ = cluster:call(B, erlang, send, [Inlet, {timeout, make_ref(), look}]),
    ok.

%% Until that function has been called so often at that node.
await_calls(Calls, Function, Node) ->
    1 = cluster:call(Node, erlang, trace_pattern, [Function, true, [local, call_count]]),
    cluster:await(fun() ->
                          case cluster:call(Node, erlang, trace_info, [Function, call_count]) of
                              {call_count, N} when N >= Calls -> true;
                              Other -> Other
                          end
                  end).

timed_out(Server, Time) ->
    Self = self(),
    %% It lives on.
    _ = spawn(fun() ->
                      {exit, {timeout, _}} =
                          traffic:attempt(fun() -> trunkline:call(Server, wait, Time) end),
                      Self ! {self(), timeout},
                      receive after infinity -> ok end
              end),
    receive {_, timeout} -> timeout end.

await_nothing_left(A, B) ->
    cluster:await(fun() -> case left(A, B) of [] -> true; Left -> Left end end).

%% What is in the shared words of B, and what B's agents know of servers.
left(A, B) ->
    NodeA = cluster:node_of(A),
    cluster:call(
      B, fun() ->
                 #route{bypass = Bypass, lanes = Lanes} = trunkline_route:lookup(NodeA),
                 Ixs = lists:seq(1, tuple_size(Lanes)),
                 ets:tab2list(trunkline_owed)
                     ++ [{owed, Ix} || Ix <- Ixs, atomics:get(Bypass, ?OWED(Ix)) =/= 0]
                     ++ [{watched, Ix} || Ix <- Ixs, trunkline_bypass:is_watched(Ix, Bypass)]
                     ++ [{marked, Ix} || Ix <- lists:seq(1, 1024), atomics:get(Bypass, Ix) =/= 0]
                     ++ lists:append([known(Inlet) || Inlet <- cluster:find(inlets, NodeA)])
         end).

%% {agent, Route, Servers, Asked, {waiting, Requests, ...}, ...}
known(Inlet) ->
    [Agent] = [Part || Part <- tuple_to_list(sys:get_state(Inlet)),
                       is_tuple(Part), element(1, Part) =:= agent],
    {agent, _, Servers, Asked, {waiting, Requests, _, _}, _, _} = Agent,
    [{What, maps:size(Of)} || {What, Of} <- [{servers, Servers}, {asked, Asked},
                                             {requests, Requests}],
                              maps:size(Of) > 0].

%% One of the nodes drains the other, or stops Trunkline. The caller gets its reply, and then
%% nothing of the session is left.
end_in_good_order(_) ->
    Ends = [{drain, fun(X, Y) -> ok = cluster:call(X, trunkline, drain, [cluster:node_of(Y)]) end},
            {stop, fun(X, _) -> ok = cluster:call(X, cluster, stop_trunkline, []) end}],
    lists:foreach(
      fun({{How, End}, At}) ->
              {A, B} = cluster:pair([{lanes, 2}]),
              Server = cluster:call(B, ?MODULE, start, []),
              Caller = owed(A, B, Server),
              {X, Y} = case At of caller -> {A, B}; server -> {B, A} end,
              End(X, Y),
              goes_on(How, A, B),
              ?assertEqual({How, At, waits}, {How, At, progress(A, Caller)}),
              reply(B, Server),
              ?assertMatch({How, At, {{ok, [#{way := plain} | _]}, []}},
                           {How, At, result(A, Caller)}),
              [cluster:await(fun() -> case retired(N) of
                                          [] -> true;
                                          Left -> {How, At, Left}
                                      end end) || N <- [A, B]],
              cluster:stop_all([A, B])
      end, [{End, At} || End <- Ends, At <- [caller, server]]).

%% Trunkline stops at the server's node, and starts again. What the server sends to its caller by
%% the new lanes comes before a reply that it has owed since the session before. Then nothing is
%% left.
started_again(_) ->
    lists:foreach(
      fun({Form, Send}) ->
              {A, B} = cluster:pair([{lanes, 1}]),
              Server = cluster:call(B, ?MODULE, start, []),
              Caller = owed(A, B, Server),
              Alias = cluster:call(A, fun() -> value(alias, Caller) end),
              cluster:call(B, cluster, stop_trunkline, []),
              {ok, _} = cluster:call(B, application, ensure_all_started, [trunkline]),
              [ok = cluster:call(X, trunkline, await_up, [cluster:node_of(Y), 20_000])
               || {X, Y} <- [{A, B}, {B, A}]],
              ok = hold_lanes(B, A),
              tell(B, Server, fun(Froms) -> _ = Send(Caller, Alias), answer(Froms) end),
              cluster:await(fun() -> waits(B, Server) orelse waiting(B, Server) =:= [] end),
              cluster:call(B, cluster, release, []),
              {Result, Mail} = result(A, Caller),
              ?assertMatch({_, {ok, [#{way := plain} | _]}, [_]}, {Form, Result, Mail}),
              await_nothing_left(A, B),
              cluster:stop_all([A, B])
      end, [{pid, fun(Pid, _) -> trunkline:send(Pid, before) end},
            {alias, fun(_, Alias) -> trunkline:send(Alias, before) end}]).

%% After a drain the inlets stay. If Trunkline has stopped, those for which somebody waits retire.
%% They have looked whether anybody does when this returns.
goes_on(drain, _, B) ->
    await_calls(1, {trunkline_waiting, look, 1}, B);
goes_on(stop, A, B) ->
    [cluster:await(fun() -> retired(N) =/= [] end) || N <- [A, B]],
    await_calls(3, {trunkline_retired_inlet, is_watched, 1}, A).

%% The inlets that belong to no session.
retired(N) ->
    cluster:call(N, fun() ->
        Nodes = case whereis(trunkline_links) of
                    undefined -> [];
                    _ -> maps:values(trunkline_peers:all())
                end,
        [Pid || Pid <- processes(),
                proc_lib:translate_initial_call(Pid) =:= {trunkline_inlet, init, 4}]
            -- lists:append([Inlets || #{inlets := Inlets} <- Nodes])
    end).

%% The caller hears that the node has gone, whether the connection is lost or the node dies.
connection_lost(_) ->
    lists:foreach(
      fun(Lose) ->
              on_both_ways(
                fun(A, B) ->
                        Server = cluster:call(B, ?MODULE, start, []),
                        Caller = owed(A, B, Server),
                        Lose(A, B),
                        {{exit, {Reason, {trunkline, call, _}}}, []} = result(A, Caller),
                        ?assertEqual({nodedown, cluster:node_of(B)}, Reason)
                end)
      end,
      [fun(A, B) -> true = cluster:call(A, erlang, disconnect_node, [cluster:node_of(B)]) end,
       fun(A, B) -> true = cluster:call(B, erlang, disconnect_node, [cluster:node_of(A)]) end,
       fun(_, B) -> ok = cluster:kill(B) end]).

%% --- nodes ----------------------------------------------------------------------------

%% With one lane: by the distribution, and on a connection of its own.
on_both_ways(Fun) ->
    on(Fun, [fun() -> cluster:pair_on_the_distribution() end, fun pair_on_connections/0]).

%% Also with several lanes.
on_all_ways(Fun) ->
    on(Fun, [fun() -> cluster:pair([]) end]),
    on_both_ways(Fun).

on(Fun, Pairs) ->
    lists:foreach(fun(Pair) ->
                          {A, B} = Pair(),
                          _ = Fun(A, B),
                          cluster:stop_all([A, B])
                  end, Pairs).

pair_on_connections() ->
    {A, B} = cluster:pair([{lanes, 1}, {lane_transport, tcp}]),
    [cluster:await(fun() -> case cluster:info(X, Y) of
                                #{batches := #{by := connections}} -> true;
                                #{batches := Batches} -> Batches
                            end end) || {X, Y} <- [{A, B}, {B, A}]],
    {A, B}.

%% The lanes stand still, and at least one of them is not idle: so nothing goes past it.
hold_lanes(B, A) ->
    NodeA = cluster:node_of(A),
    cluster:call(B, fun() ->
                            ok = cluster:hold(cluster:find(lanes, NodeA)),
                            _ = trunkline:send({nobody, NodeA}, message),
                            ok
                    end).

hold_inlets(A, B) ->
    cluster:call(A, fun() -> ok = cluster:hold(cluster:find(inlets, cluster:node_of(B))) end).

%% --- callers, at A --------------------------------------------------------------------

%% Calls until the reply comes that way.
until(Server, What, Way, N) when N > 0 ->
    case way_of(Server, What) of
        Way -> ok;
        _ -> until(Server, What, Way, N - 1)
    end;
until(Server, What, Way, 0) ->
    error({never, Server, What, Way}).

way_of(Server, {late, Time}) -> way_in(trunkline:call(Server, {late, Time, list}, infinity));
way_of(Server, What) -> way_in(trunkline:call(Server, {reply, What}, infinity)).

way_in({short, Way}) -> Way;
way_in([#{way := Way} | _]) -> Way;
way_in(<<0, _/binary>>) -> by_lane;
way_in(<<1, _/binary>>) -> plain.

%% Callers of that name get plain replies of later servers, too.
long_by_name(A, B) ->
    Server = cluster:call(B, ?MODULE, start, [?NAME]),
    ok = cluster:call(A, ?MODULE, until, [{?NAME, cluster:node_of(B)}, list, plain, ?SOON]),
    stop(B, Server).

granted_to(A, Server) ->
    ok = cluster:call(A, ?MODULE, until, [Server, list, plain, ?SOON]).

%% A process to which the server owes a plain reply.
owed(A, B, Server) ->
    ok = granted_to(A, Server),
    Caller = cluster:call(A, fun() ->
        Pid = spawn(fun() -> receive go -> calling(Server) end end),
        _ = whereis(?NAME) =:= undefined orelse unregister(?NAME),
        true = register(?NAME, Pid),
        Pid ! go,
        Pid
    end),
    cluster:await(fun() -> length(waiting(B, Server)) =:= 1 end),
    case waiting(B, Server) of
        [plain] ->
            Caller;
        [by_lane] ->
            reply(B, Server),
            _ = result(A, Caller),
            owed(A, B, Server)
    end.

calling(Server) ->
    process_flag(trap_exit, true),
    put(alias, alias()),
    keep(traffic:attempt(fun() -> trunkline:call(Server, wait, infinity) end)).

%% Keeps the result, and what was in the mailbox then.
keep(Result) ->
    {messages, Mail} = process_info(self(), messages),
    put(result, {Result, Mail}),
    receive stop -> ok end.

result(A, Caller) ->
    cluster:await(fun() -> progress(A, Caller) =:= done end),
    cluster:call(A, fun() -> value(result, Caller) end).

progress(A, Caller) ->
    case cluster:call(A, fun() -> value(result, Caller) end) of
        undefined -> waits;
        _ -> done
    end.

mail(A, Pid) ->
    {messages, Mail} = cluster:call(A, erlang, process_info, [Pid, messages]),
    Mail.

%% Of that process's dictionary.
value(Key, Pid) ->
    {dictionary, Entries} = process_info(Pid, dictionary),
    proplists:get_value(Key, Entries).

idle() -> spawn(fun() -> receive stop -> ok end end).

%% --- the server, at B -----------------------------------------------------------------

start() ->
    {ok, Pid} = gen_server:start(?MODULE, [], []),
    Pid.

start(Name) ->
    {ok, Pid} = gen_server:start({local, Name}, ?MODULE, [], []),
    Pid.

stop(B, Server) -> ok = cluster:call(B, gen_server, stop, [Server]).

%% Which ways those wait who are not answered.
ways(Server) -> gen_server:call(Server, ways, infinity).

%% (It may stand still. It keeps that also where others can read it.)
waiting(B, Server) ->
    case cluster:call(B, fun() -> value(ways, Server) end) of
        undefined -> [];
        Ways -> Ways
    end.

calls(B, Server) -> cluster:call(B, fun() -> value(calls, Server) end).

%% Lets the server do that with those who wait. It returns those who still do.
tell(B, Server, Do) -> {do, Do} = cluster:call(B, erlang, send, [Server, {do, Do}]).

%% The server replies to all.
reply(B, Server) -> ok = cluster:call(B, gen_server, call, [Server, {do, fun answer/1}]).

answer(Froms) ->
    lists:foreach(fun(From) -> gen_server:reply(From, rows(way(From))) end, Froms),
    [].

%% Whether it waits until what it has sent has arrived.
waits(B, Server) ->
    {current_stacktrace, Stack} =
        cluster:call(B, erlang, process_info, [Server, current_stacktrace]),
    lists:keymember(trunkline_plain_call, 1, Stack).

init(_) ->
    put(calls, 0),
    {ok, []}.

handle_call({reply, What}, From, Froms) ->
    called(Froms),
    {reply, make(What, way(From)), Froms};
handle_call({late, Time, What}, From, Froms) ->
    receive after Time -> ok end,
    handle_call({reply, What}, From, Froms);
handle_call(wait, From, Froms) ->
    called([From | Froms]),
    {noreply, [From | Froms]};
handle_call(reply_and_stop, From, Froms) ->
    {stop, normal, rows(way(From)), Froms};
handle_call(ways, _, Froms) ->
    {reply, get(ways), Froms};
handle_call({do, Do}, _, Froms) ->
    Froms1 = Do(Froms),
    waiting(Froms1),
    {reply, ok, Froms1}.

handle_cast(_, Froms) -> {noreply, Froms}.

handle_info({do, Do}, Froms) ->
    Froms1 = Do(Froms),
    waiting(Froms1),
    {noreply, Froms1};
handle_info(_, Froms) ->
    {noreply, Froms}.

called(Froms) ->
    put(calls, get(calls) + 1),
    waiting(Froms).

waiting(Froms) -> put(ways, [way(From) || From <- Froms]).

way({Pid, [[alias | Ref] | _]}) when node(Ref) =:= node(Pid), node(Pid) =/= node() -> plain;
way(_) -> by_lane.

make(short, Way) -> {short, Way};
make(list, Way) -> rows(Way);
make(very_long, Way) -> rows(10_000, Way);
make({binary, Bytes}, plain) -> binary:copy(<<1>>, Bytes);
make({binary, Bytes}, by_lane) -> binary:copy(<<0>>, Bytes).

%% 64 kB
rows(Way) -> rows(1500, Way).

rows(Many, Way) -> [#{way => Way, number => N, name => <<"name">>} || N <- lists:seq(1, Many)].
