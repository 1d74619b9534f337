%% What callers of gen_server, gen_statem and gen_event get, they get from our modules of
%% these names: each dialogue of a table is held through OTP's module and through ours, with a
%% local server, one at a node without Trunkline, one at a node that has it, and both must end in
%% the same way: with the same values, exits and errors, and with nothing left in the mailbox.
-module(gen_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2]).
-export([calls/1, server_ends/1, requests/1, collections/1, request_errors/1, events/1, managers/1,
         casts/1, multi_calls/1]).
-export([odd_arguments/1, foreign_ids/1, names_once/1, name_of_many/1, everywhere/1, bad_nodes/1,
         late_replies/1, mixed_collection/1, order/1, long_mailbox/1, server_dies/1,
         processes_killed/1, node_goes/1, not_alive/1, stopped_host/1, asked_while_down/1]).
-export([held/3, alone/0, counting/1, foreign/2, asked/0]).

-define(NOWHERE, 'no_such_node@localhost').
%% ms: for what is not going to take so long.
-define(LONG, 60_000).

suite() -> [{timetrap, {minutes, 6}}].

all() -> [{group, local}, {group, plain}, {group, lanes},
          odd_arguments, foreign_ids, names_once, name_of_many, everywhere, bad_nodes, late_replies,
          mixed_collection, order, long_mailbox, server_dies, processes_killed, node_goes,
          not_alive, stopped_host, asked_while_down].

groups() ->
    Table = [calls, server_ends, requests, collections, request_errors, events, managers, casts,
             multi_calls],
    [{local, [], Table}, {plain, [], Table}, {lanes, [], Table}].

init_per_suite(Config0) ->
    Config = comparison:start(Config0),
    [_, Plain, Lanes] = Nodes = comparison:all(Config),
    cluster:connect(Lanes, Plain),
    _ = [ok = cluster:call(N, logger, set_primary_config, [level, none]) || N <- Nodes],
    Config.

end_per_suite(Config) -> comparison:stop(Config).

init_per_group(local, Config) ->
    comparison:init_per_group(local, Config);
init_per_group(Group, Config) ->
    [{before, way(Group, Config)} | comparison:init_per_group(Group, Config)].

%% The table went the way that it was meant to go.
end_per_group(local, _) ->
    ok;
end_per_group(plain, Config) ->
    {Messages, Fallbacks} = ?config(before, Config),
    {Messages, After} = way(plain, Config),
    true = After > Fallbacks;
end_per_group(lanes, Config) ->
    {Messages, Fallbacks} = ?config(before, Config),
    {After, Fallbacks} = way(lanes, Config),
    true = After > Messages.

way(Group, Config) ->
    There = cluster:node_of(?config(Group, Config)),
    #{fallbacks := All, peers := #{There := #{lanes := Lanes, fallbacks := Fallbacks}}} =
        cluster:call(?config(a, Config), trunkline, info, []),
    {lists:sum([N || #{messages := N} <- Lanes]),
     case Group of plain -> All; lanes -> Fallbacks end}.

%% --- how a dialogue is held ---------------------------------------------------------

%% Each of our modules that has the functions of OTP's.
ours(gen_server) -> [trunkline, trunkline_gen_server];
ours(gen_statem) -> [trunkline_gen_statem];
ours(gen_event) -> [trunkline_gen_event];
ours(gen) -> [trunkline_gen].

%% Each dialogue with each form of the server's name; answers how they ended.
both(Config, Kind, Dialogues) ->
    both(Config, Kind, names(Config, Kind), Dialogues).

both(Config, Kind, Names, Dialogues) ->
    fresh(Config, Kind),
    [compare(Config, Kind, Name, Dialogue, To) || {Name, Dialogue} <- Dialogues, To <- Names].

compare(Config, Kind, Name, Dialogue, To) ->
    [Expected | Ends] = [begin
                             serving(Config, Kind),
                             cluster:call(?config(a, Config), ?MODULE, held, [Dialogue, M, To])
                         end || M <- [Kind | ours(Kind)]],
    _ = [?assertEqual({Name, To, M, Expected}, {Name, To, M, End})
         || {M, End} <- lists:zip(ours(Kind), Ends)],
    {Name, element(1, Expected)}.

%% One that has died is replaced. (Its name stands for it in what is compared.)
serving(Config, Kind) ->
    Name = name(Kind),
    case cluster:call(?config(there, Config), erlang, whereis, [Name]) of
        undefined -> fresh(Config, Kind);
        Pid -> introduce(Config, Pid)
    end.

fresh(Config, Kind) ->
    ok = cluster:call(?config(there, Config), server, stop_all, []),
    {ok, Pid} = cluster:call(?config(there, Config), server, start, [Kind]),
    introduce(Config, Pid).

introduce(Config, Pid) ->
    ok = cluster:call(?config(a, Config), persistent_term, put, [via_test, Pid]).

name(gen) -> name(gen_server);
name(Kind) -> list_to_atom("test_" ++ atom_to_list(Kind)).

names(Config, Kind) ->
    Node = cluster:node_of(?config(there, Config)),
    [pid, {name(Kind), Node}, {via, via_test, known}]
        ++ [name(Kind) || Node =:= cluster:node_of(?config(a, Config))].

%% At the caller's node, in a process of its own. How it ends, and its mail. (After an error nobody
%% has waited for the reply: it may be there, or not yet.)
held(Dialogue, Module, pid) ->
    held(Dialogue, Module, persistent_term:get(via_test));
held(Dialogue, Module, To) ->
    Server = persistent_term:get(via_test),
    {Pid, Ref} = spawn_monitor(fun() ->
                                       case ending(Dialogue, Module, To) of
                                           {error, _} = End -> exit({End, any});
                                           {exit, {timeout_value, _}, _} = End -> exit({End, any});
                                           End -> exit({End, mail(5)})
                                       end
                               end),
    receive {'DOWN', Ref, process, Pid, End} -> without(Server, End) end.

ending(Dialogue, Module, To) ->
    try Dialogue(Module, To) of
        Result -> {ok, Result}
    catch
        exit:{Reason, {M, F, Args}} when M =:= trunkline, Module =:= trunkline ->
            {exit, without_stack(Reason), {gen_server, F, Args}};
        exit:{Reason, {M, _, _} = Who} when M =:= gen_server; M =:= gen_statem; M =:= gen_event ->
            {exit, without_stack(Reason), Who};
        Class:Reason -> {Class, without_stack(Reason)}
    end.

without_stack({Reason, [{_, _, _, _} | _]}) -> {Reason, stack};
without_stack({'EXIT', {Reason, [{_, _, _, _} | _]}}) -> {'EXIT', {Reason, stack}};
without_stack(Reason) -> Reason.

%% A server that dies is another one for the next dialogue, and so are requests.
without(Pid, Pid) -> server;
without(Pid, [Head | Tail]) -> [without(Pid, Head) | without(Pid, Tail)];
without(Pid, Tuple) when is_tuple(Tuple) -> list_to_tuple(without(Pid, tuple_to_list(Tuple)));
without(_, Ref) when is_reference(Ref) -> ref;
without(_, Term) -> Term.

mail(Wait) ->
    receive Message -> [Message | mail(Wait)]
    after Wait -> []
    end.

%% How each of them ends.
each(Funs) -> [catching(F) || F <- Funs].

catching(Fun) ->
    try {ok, Fun()}
    catch
        exit:{Reason, {trunkline, Name, Args}} ->
            {exit, {without_stack(Reason), {gen_server, Name, Args}}};
        Class:Reason -> {Class, without_stack(Reason)}
    end.

%% --- the table ------------------------------------------------------------------------

calls(Config) ->
    Large = binary:copy(<<"large">>, 50_000),
    Times = [infinity, ?LONG, bad, -1, 1.5, 16#100000000, {abs, 5}],
    Statem = [{clean_timeout, ?LONG}, {clean_timeout, infinity}, {dirty_timeout, ?LONG},
              {dirty_timeout, infinity}, {clean_timeout, bad}, {dirty_timeout, -1},
              {other_timeout, 5}],
    Short = [0, 20, 30],
    ShortStatem = [{clean_timeout, 20}, {dirty_timeout, 20}],
    lists:foreach(
      fun(Kind) ->
              Ends = both(
                       Config, Kind,
                       [{echo, fun(M, To) -> M:call(To, {echo, hello}) end},
                        {large, fun(M, To) -> M:call(To, {echo, Large}) end},
                        {elsewhere, fun(M, To) -> M:call(To, {elsewhere, hello}) end},
                        {by_hand, fun(M, To) -> M:call(To, {by_hand, hello}, ?LONG) end},
                        {late,
                         fun(M, To) ->
                                 {catching(fun() -> M:call(To, {echo_told, late, alias()}, 10) end),
                                  server:tell(1),
                                  M:call(To, {echo_late, two, 30})} end}]
                       ++ [{{echo, T}, fun(M, To) -> M:call(To, {echo, T}, T) end}
                           || T <- Times ++ [T || Kind =:= gen_statem, T <- Statem]]
                       ++ [{{never, T}, fun(M, To) -> M:call(To, never, T) end}
                           || T <- Short ++ [T || Kind =:= gen_statem, T <- ShortStatem]]),
              ?assertMatch({_, {ok, hello}}, lists:keyfind(echo, 1, Ends)),
              ?assertMatch({_, {ok, Large}}, lists:keyfind(large, 1, Ends)),
              ?assertMatch({_, {exit, timeout, {Kind, call, [_, never, 20]}}},
                           lists:keyfind({never, 20}, 1, Ends)),
              _ = both(Config, Kind, [pid],
                       [{Bad, fun(M, _) -> M:call(Bad, x, ?LONG) end} || Bad <- nobody(Config)])
      end, [gen_server, gen_statem]).

%% Servers that are not there, and what is no server.
nobody(Config) ->
    There = cluster:node_of(?config(there, Config)),
    Dead = cluster:call(?config(there, Config), fun() -> {P, R} = spawn_monitor(fun() -> ok end),
                                                         receive {'DOWN', R, _, _, _} -> P end end),
    [Dead, no_such_name, {no_such_name, There}, {global, no_such_name}, {via, via_test, unknown},
     {via, via_test, ends}, {via, no_such_module, x}, {x, ?NOWHERE}, "nonsense", {a, b, c},
     {"a", There}, {a, "node"}, 17].

%% It dies of the request: its reason is the caller's.
server_ends(Config) ->
    lists:foreach(
      fun(Kind) ->
              Requests = [{stop, normal}, {stop, shutdown}, {stop, {shutdown, why}}, {exit, killed},
                          {exit, {a, reason}}],
              Ends = both(Config, Kind,
                          [{R, fun(M, To) -> M:call(To, R) end} || R <- Requests]
                          ++ [{{id, R},
                               fun(M, To) -> M:receive_response(M:send_request(To, R), ?LONG) end}
                              || R <- Requests]
                          ++ [{{ids, R}, fun(M, To) -> receive_all(M, [{To, R, one}]) end}
                              || R <- Requests]),
              ?assertMatch({_,
                            {exit, {shutdown, why},
                             {Kind, call, [_, {stop, {shutdown, why}} | _]}}},
                           lists:keyfind({stop, {shutdown, why}}, 1, Ends))
      end, [gen_server, gen_statem]).

requests(Config) ->
    lists:foreach(fun(Kind) -> requests(Config, Kind) end, [gen_server, gen_statem, gen_event]).

requests(Config, Kind) ->
    Times = [infinity, ?LONG, {abs, ?LONG}, bad, -1, 16#100000000, {abs, bad}, {abs, 16#200000000}],
    Ends = both(
             Config, Kind,
             [{{Receive, T}, fun(M, To) -> M:Receive(request(M, To, {echo, T}), from_now(T)) end}
              || Receive <- [wait_response, receive_response], T <- Times]
             ++ [{wait_again,
                  fun(M, To) -> Id = request(M, To, {echo_told, x, self()}),
                                Early =
                                    [M:wait_response(Id, T) || T <- [0, 5, from_now({abs, -9})]],
                                ok = server:tell(1),
                                Early ++ [M:wait_response(Id, ?LONG)] end},
                 {too_late,
                  fun(M, To) -> Id = request(M, To, {echo_told, x, self()}),
                                {M:receive_response(Id, 5), server:tell(1),
                                 answer(M, request(M, To, {echo_late, y, 40}))} end},
                 {past,
                  fun(M, To) ->
                          {M:receive_response(request(M, To, {echo_told, x, self()}),
                                              from_now({abs, -9})), server:tell(1)}
                  end},
                 {check,
                  fun(M, To) ->
                          Id = request(M, To, {echo, 1}),
                          receive
                              Message ->
                                  [M:check_response(Mail, Id)
                                   || Mail <- [unrelated, {make_ref(), x},
                                               {[alias | make_ref()], x},
                                               {'DOWN', make_ref(), process, self(), x}, Message]]
                          end
                  end},
                 {check_bad, fun(M, _) -> M:check_response(unrelated, no_id) end},
                 {many,
                  fun(M, To) -> Ids = [{N, request(M, To, {echo, N})} || N <- lists:seq(1, 100)],
                                [{N, answer(M, Id)} || {N, Id} <- lists:reverse(Ids)] end}]
             ++ [{by_hand, fun(M, To) -> answer(M, request(M, To, {by_hand, x})) end}
                 || Kind =/= gen_event]
             ++ [{one_arity,
                  fun(M, To) ->
                          {M:wait_response(request(M, To, {echo, 1})),
                           M:receive_response(request(M, To, {echo, 2}))}
                  end}
                 || Kind =:= gen_statem]),
    ?assertEqual({wait_again, {ok, [timeout, timeout, timeout, {reply, x}]}},
                 lists:keyfind(wait_again, 1, Ends)),
    ?assertEqual({check, {ok, [no_reply, no_reply, no_reply, no_reply, {reply, 1}]}},
                 lists:keyfind(check, 1, Ends)),
    ?assertEqual({{wait_response, bad}, {error, badarg}},
                 lists:keyfind({wait_response, bad}, 1, Ends)).

request(M, To, Request) when M =:= gen_event; M =:= trunkline_gen_event ->
    M:send_request(To, manager, Request);
request(M, To, Request) when M =:= gen; M =:= trunkline_gen ->
    M:send_request(To, '$gen_call', Request);
request(M, To, Request) -> M:send_request(To, Request).

request(M, To, Request, Label, Ids) when M =:= gen_event; M =:= trunkline_gen_event ->
    M:send_request(To, manager, Request, Label, Ids);
request(M, To, Request, Label, Ids) when M =:= gen; M =:= trunkline_gen ->
    M:send_request(To, '$gen_call', Request, Label, Ids);
request(M, To, Request, Label, Ids) ->
    M:send_request(To, Request, Label, Ids).

answer(M, Id) -> M:receive_response(Id, ?LONG).

from_now({abs, T}) when is_integer(T) -> {abs, erlang:monotonic_time(millisecond) + T};
from_now(T) -> T.

%% All answers to a collection, by label.
receive_all(M, Requests) ->
    Ids = lists:foldl(fun({To, Request, Label}, Ids) -> request(M, To, Request, Label, Ids) end,
                      M:reqids_new(), Requests),
    lists:sort(receive_rest(M, receive_response, Ids)).

receive_rest(M, Receive, Ids) ->
    case M:Receive(Ids, ?LONG, true) of
        {Response, Label, Rest} -> [{Label, Response} | receive_rest(M, Receive, Rest)];
        Other -> [{M:reqids_size(Ids), Other}]
    end.

collections(Config) ->
    lists:foreach(fun(Kind) -> collections(Config, Kind) end, [gen_server, gen_statem, gen_event]).

collections(Config, Kind) ->
    Three = fun(M, To) ->
                    lists:foldl(fun(N, Ids) -> request(M, To, {echo, N}, {label, N}, Ids) end,
                                M:reqids_new(), [1, 2, 3])
            end,
    Ends = both(
             Config, Kind,
             [{empty,
               fun(M, _) -> Ids = M:reqids_new(),
                            {M:reqids_size(Ids), M:reqids_to_list(Ids),
                             M:wait_response(Ids, infinity, true),
                             M:receive_response(Ids, infinity, false),
                             M:check_response(x, Ids, true)} end},
              {bad, fun(M, To) ->
                            Ids = M:reqids_new(),
                            Id = request(M, To, {echo, 1}),
                            One = M:reqids_add(Id, one, Ids),
                            {each([fun() -> M:wait_response(Ids, bad, true) end,
                                   fun() -> M:receive_response(Ids, -1, true) end,
                                   fun() -> M:wait_response(Ids, 0, maybe_) end,
                                   fun() -> M:receive_response(Ids, 0, maybe_) end,
                                   fun() -> M:check_response(x, Ids, maybe_) end,
                                   fun() -> M:wait_response(x, 0, true) end,
                                   fun() -> M:receive_response(x, 0, true) end,
                                   fun() -> M:check_response(x, x, true) end,
                                   fun() -> M:wait_response(One, bad, true) end,
                                   fun() -> M:receive_response(One, {abs, bad}, true) end,
                                   fun() -> M:reqids_size(x) end,
                                   fun() -> M:reqids_to_list(x) end,
                                   fun() -> M:reqids_add(x, l, Ids) end,
                                   fun() -> M:reqids_add(Id, l, x) end,
                                   fun() -> M:reqids_add(Id, l, One) end,
                                   fun() -> request(M, To, {echo, 2}, l, x) end]),
                             M:receive_response(Id, ?LONG)}
                    end},
              {add, fun(M, To) ->
                            Ids =
                                M:reqids_add(request(M, To, {echo, 1}), a,
                                             M:reqids_add(request(M, To, {echo, 2}), a,
                                                          M:reqids_new())),
                            Labels = [L || {_, L} <- M:reqids_to_list(Ids)],
                            Answers = [answer(M, Id) || {Id, _} <- M:reqids_to_list(Ids)],
                            {M:reqids_size(Ids), Labels, lists:sort(Answers)}
                    end},
              {delete,
               fun(M, To) ->
                       Ids = Three(M, To),
                       {M:reqids_size(Ids), lists:sort(receive_rest(M, receive_response, Ids))}
               end},
              {wait_delete,
               fun(M, To) -> lists:sort(receive_rest(M, wait_response, Three(M, To))) end},
              {keep, fun(M, To) ->
                             Ids = Three(M, To),
                             Answers = [M:receive_response(Ids, ?LONG, false) || _ <- [1, 2, 3]],
                             {lists:sort([{L, R} || {R, L, Same} <- Answers, Same =:= Ids]),
                              M:wait_response(Ids, 0, true), M:receive_response(Ids, 0, true),
                              M:reqids_size(Ids)}
                     end},
              {wait_again, fun(M, To) ->
                                   Ids = request(M, To, {echo_told, x, self()}, l, M:reqids_new()),
                                   timeout = M:wait_response(Ids, 5, true),
                                   ok = server:tell(1),
                                   {R, L, Ids} = M:wait_response(Ids, ?LONG, false),
                                   {R, L}
                           end},
              {too_late,
               fun(M, To) ->
                       Ids = request(M, To, {echo_told, x, self()}, l,
                                     request(M, To, {echo_told, y, self()}, l, M:reqids_new())),
                       Timeout = M:receive_response(Ids, 5, true),
                       ok = server:tell(2),
                       {Timeout, answer(M, request(M, To, {echo_late, z, 60}))}
               end},
              {times, fun(M, To) ->
                              Ids = Three(M, To),
                              {_, _, Ids1} = M:receive_response(Ids, from_now({abs, ?LONG}), true),
                              {_, _, Ids2} = M:wait_response(Ids1, infinity, true),
                              {_, _, Ids3} = M:receive_response(Ids2, infinity, true),
                              Late = request(M, To, {echo_told, x, self()}, l, Ids3),
                              timeout = M:wait_response(Late, from_now({abs, -9}), true),
                              ok = server:tell(1),
                              {Reply, l, Ids4} = M:wait_response(Late, ?LONG, true),
                              {M:reqids_size(Ids3),
                               M:receive_response(Ids3, from_now({abs, -9}), true), Reply,
                               M:reqids_size(Ids4)}
                      end},
              {check,
               fun(M, To) ->
                       Ids = Three(M, To),
                       no_reply = M:check_response(unrelated, Ids, true),
                       no_reply = M:check_response({[alias | make_ref()], x}, Ids, true),
                       no_reply =
                           M:check_response({'DOWN', make_ref(), process, self(), x}, Ids, true),
                       {R, L, Ids} = receive First -> M:check_response(First, Ids, false) end,
                       {R1, L1, Ids1} = receive Second -> M:check_response(Second, Ids, true) end,
                       {R2, L2, Ids2} = receive Third -> M:check_response(Third, Ids1, true) end,
                       {lists:sort([{L, R}, {L1, R1}, {L2, R2}]), M:reqids_size(Ids2)}
               end},
              {many,
               fun(M, To) -> receive_all(M, [{To, {echo, N}, N} || N <- lists:seq(1, 200)]) end},
              {others,
               fun(M, To) -> receive_all(M, [{To, {echo, 1}, 1}, {To, {echo, 2}, 2}
                                             | [{Nobody, {echo, 1}, {3, Nobody}}
                                                || Nobody <- lists:sublist(nobody_now(), 5)]]) end}]
             ++ [{by_hand,
                  fun(M, To) -> receive_all(M, [{To, {by_hand, N}, N} || N <- [1, 2, 3]]) end}
                 || Kind =/= gen_event]),
    ?assertEqual({delete,
                  {ok, {3, [{0, no_request} | [{{label, N}, {reply, N}} || N <- [1, 2, 3]]]}}},
                 lists:keyfind(delete, 1, Ends)),
    ?assertMatch({keep, {ok, {[_, _, _], timeout, timeout, 3}}}, lists:keyfind(keep, 1, Ends)),
    ?assertMatch({too_late, {ok, {timeout, {reply, z}}}}, lists:keyfind(too_late, 1, Ends)).

%% As nobody/1, at the node of the caller.
nobody_now() ->
    {P, R} = spawn_monitor(fun() -> ok end),
    receive {'DOWN', R, _, _, _} -> ok end,
    persistent_term:put(dead, persistent_term:get(dead, P)),
    [persistent_term:get(dead), no_such_name, {no_such_name, node(persistent_term:get(via_test))},
     {global, no_such_name},
     {x, ?NOWHERE}].

request_errors(Config) ->
    lists:foreach(
      fun(Kind) ->
              _ = both(Config, Kind, [pid],
                       lists:append(
                         [[{{id, Nobody},
                            fun(M, _) -> answer(M, request(M, Nobody, {echo, 1})) end},
                           {{ids, Nobody},
                            fun(M, _) -> receive_all(M, [{Nobody, {echo, 1}, l}]) end}]
                          || Nobody <- nobody(Config)]))
      end, [gen_server, gen_statem, gen_event]).

events(Config) ->
    Large = binary:copy(<<"large">>, 50_000),
    Ends = both(
             Config, gen_event,
             [{echo, fun(M, To) -> M:call(To, manager, {echo, hello}) end},
              {large, fun(M, To) -> M:call(To, manager, {echo, Large}, infinity) end},
              {bad_handler, fun(M, To) -> M:call(To, no_handler, x) end},
              {notify,
               fun(M, To) ->
                       ok = M:notify(To, one),
                       ok = M:sync_notify(To, two),
                       ok = M:notify(To, Large),
                       M:call(To, manager, seen)
               end},
              {late,
               fun(M, To) ->
                       {catching(fun() -> M:call(To, manager, {echo_told, x, alias()}, 10) end),
                        server:tell(1),
                        M:call(To, manager, {echo_late, y, 30})} end},
              {error_reply,
               fun(M, To) ->
                       [answer(M, request(M, To, {echo, E}))
                        || E <- [{error, why}, error, {error, a, b}]]
               end},
              {error_wait,
               fun(M, To) -> M:wait_response(M:send_request(To, no_handler, x), ?LONG) end},
              {error_check,
               fun(M, To) ->
                       Id = M:send_request(To, no_handler, x),
                       receive Mail -> M:check_response(Mail, Id) end
               end},
              {error_labels,
               fun(M, To) ->
                       Ids = M:send_request(To, no_handler, x, l, M:reqids_new()),
                       {R, l, Ids} = M:wait_response(Ids, ?LONG, false),
                       Ids1 = M:send_request(To, no_handler, x, l, M:reqids_new()),
                       {R1, l, _} = receive Mail -> M:check_response(Mail, Ids1, true) end,
                       {R, R1, receive_all(M, [{To, {echo, {error, why}}, l}])}
               end}]
             ++ [{{time, T}, fun(M, To) -> M:call(To, manager, {echo, x}, T) end}
                 || T <- [?LONG, bad, -1, {abs, 5}]]),
    _ = both(Config, gen_event, [pid],
             [{{F, Nobody}, fun(M, _) -> apply(M, F, [Nobody | Args]) end}
                 || Nobody <- nobody(Config),
                    {F, Args} <- [{call, [manager, x]}, {call, [manager, x, ?LONG]}, {notify, [x]},
                                  {sync_notify, [x]}, {which_handlers, []},
                                  {add_handler, [manager, []]}, {delete_handler, [manager, []]}]]),
    ?assertEqual({notify, {ok, [{event, one}, {event, two}, {event, Large}]}},
                 lists:keyfind(notify, 1, Ends)),
    ?assertEqual({error_wait, {ok, {error, bad_module}}}, lists:keyfind(error_wait, 1, Ends)).

%% What is done to the handlers. (Each dialogue leaves the manager as it was, or ends it.)
managers(Config) ->
    Two = {manager, two},
    Ends = both(
             Config, gen_event,
             [{which, fun(M, To) -> M:which_handlers(To) end},
              {add,
               fun(M, To) ->
                       {M:add_handler(To, Two, []), M:which_handlers(To),
                        M:delete_handler(To, Two, x), M:delete_handler(To, Two, x)}
               end},
              {add_bad,
               fun(M, To) ->
                       {M:add_handler(To, Two, fail), without_stack(M:add_handler(To, Two, crash)),
                        element(1, M:add_handler(To, no_such_module, []))} end},
              {swap, fun(M, To) ->
                             ok = M:add_handler(To, Two, []),
                             ok = M:notify(To, one),
                             {M:swap_handler(To, {Two, x}, {{manager, three}, y}),
                              M:call(To, {manager, three}, seen),
                              M:swap_handler(To, {{manager, four}, x}, {{manager, five}, fail}),
                              M:delete_handler(To, {manager, five}, x),
                              M:delete_handler(To, {manager, three}, x),
                              M:call(To, manager, seen)}
                     end},
              {supervised,
               fun(M, To) ->
                       ok = M:add_sup_handler(To, Two, []),
                       ok = M:swap_sup_handler(To, {Two, x}, {{manager, three}, y}),
                       [] = M:delete_handler(To, {manager, three}, done),
                       Self = self(),
                       %% (They may come behind the last reply.)
                       {receive {gen_event_EXIT, Two, {swapped, Handler, Self}} -> Handler end,
                        receive {gen_event_EXIT, {manager, three}, Reason} -> Reason end}
               end},
              {crash, fun(M, To) ->
                              ok = M:add_handler(To, Two, []),
                              {element(1, M:call(To, Two, crash)), element(1, M:call(To, Two, x)),
                               M:which_handlers(To)}
                      end},
              {remove,
               fun(M, To) ->
                       ok = M:add_handler(To, Two, []),
                       {M:call(To, Two, remove), M:which_handlers(To)}
               end},
              {no_answer,
               fun(M, To) ->
                       ok = M:add_handler(To, Two, []),
                       {element(1, M:call(To, Two, nonsense)), M:which_handlers(To)}
               end},
              {ends,
               fun(M, To) ->
                       gen_event:stop(To, why, infinity),
                       element(1, catching(fun() -> M:which_handlers(To) end))
               end}]),
    ?assertEqual({which, {ok, [manager]}}, lists:keyfind(which, 1, Ends)),
    ?assertEqual({supervised, {ok, {{manager, three}, normal}}},
                 lists:keyfind(supervised, 1, Ends)),
    %% With the caller its handlers go.
    serving(Config, gen_event),
    To = {test_gen_event, cluster:node_of(?config(there, Config))},
    ok = cluster:call(?config(a, Config),
                      fun() -> trunkline_gen_event:add_sup_handler(To, Two, []) end),
    cluster:await(
      fun() -> case cluster:call(?config(a, Config), trunkline_gen_event, which_handlers, [To]) of
                   [manager] -> true;
                   Other -> Other
               end end).

casts(Config) ->
    lists:foreach(
      fun(Kind) ->
              _ = both(Config, Kind, [pid],
                       [{{cast, Nobody}, fun(M, _) -> M:cast(Nobody, x) end}
                        || Nobody <- nobody(Config)])
      end, [gen_server, gen_statem]),
    Ends = both(Config, gen_server,
                [{cast, fun(M, To) -> {M:cast(To, one), M:cast(To, two), M:call(To, seen)} end}]),
    ?assertMatch([{cast, {ok, {ok, ok, [{cast, one}, {cast, two}]}}} | _], Ends).

%% Of one node; more in everywhere/1.
multi_calls(Config) ->
    There = cluster:node_of(?config(there, Config)),
    Name = test_gen_server,
    Large = binary:copy(<<"large">>, 50_000),
    Ends = both(
             Config, gen_server, [pid],
             [{one, fun(M, _) -> M:multi_call([There], Name, {echo, x}) end},
              {large, fun(M, _) -> M:multi_call([There], Name, {echo, Large}) end},
              {timeout, fun(M, _) -> M:multi_call([There], Name, never, 20) end},
              {zero, fun(M, _) -> M:multi_call([There], Name, never, 0) end},
              {long, fun(M, _) -> M:multi_call([There], Name, {echo, x}, 16#100000000) end},
              {nobody, fun(M, _) -> M:multi_call([There, ?NOWHERE], no_such_name, x, ?LONG) end},
              {nobody_infinity, fun(M, _) -> M:multi_call([There, ?NOWHERE], no_such_name, x) end},
              {none, fun(M, _) -> {M:multi_call([], Name, x), M:multi_call([], Name, x, 0)} end},
              {twice, fun(M, _) -> M:multi_call([There, There], Name, {echo, x}) end},
              {no_node, fun(M, _) -> no_node(M, [There, "node", 17], Name) end},
              {ends, fun(M, _) -> M:multi_call([There], Name, {stop, normal}) end},
              {by_hand, fun(M, _) -> M:multi_call([There], Name, {echo, x}) end},
              {late,
               fun(M, _) ->
                       {M:multi_call([There], Name, {echo_told, x, self()}, 10), server:tell(1),
                        M:call({Name, There}, {echo_late, y, 40})} end},
              {bad, fun(M, _) -> each([fun() -> M:multi_call(There, Name, x) end,
                                       fun() -> M:multi_call([There], "name", x) end,
                                       fun() -> M:multi_call([There], Name, x, bad) end,
                                       fun() -> M:multi_call([There], Name, x, -1) end,
                                       fun() -> M:multi_call("name", x) end,
                                       fun() -> M:abcast("name", x) end,
                                       fun() -> M:abcast(There, Name, x) end,
                                       fun() -> M:abcast([There], "name", x) end,
                                       fun() -> M:abcast([There, "node"], Name, x) end]) end},
              {myself, fun(M, _) -> register(myself, self()), myself(M) end},
              {abcast,
               fun(M, _) ->
                       serve_no_more(M, Name, There),
                       {M:abcast([There, ?NOWHERE], Name, one), M:abcast([There], Name, two),
                        M:abcast([There], no_such_name, x), M:call({Name, There}, seen)} end}]),
    ?assertEqual({one, {ok, {[{There, x}], []}}}, lists:keyfind(one, 1, Ends)),
    ?assertEqual({nobody, {ok, {[], [There, ?NOWHERE]}}}, lists:keyfind(nobody, 1, Ends)),
    ?assertEqual({abcast, {ok, {abcast, abcast, abcast, [{cast, one}, {cast, two}]}}},
                 lists:keyfind(abcast, 1, Ends)).

%% OTP 25 passes over what is no node, OTP 27 does not.
no_node(M, Nodes, Name) ->
    case {M, erlang:system_info(otp_release)} of
        {gen_server, Release} when Release < "27" -> error(badarg);
        _ -> M:multi_call(Nodes, Name, {echo, x})
    end.

%% Since then a process waits for itself for ever there.
myself(M) ->
    case {M, erlang:system_info(otp_release)} of
        {gen_server, Release} when Release >= "27" -> {[], [node()]};
        _ -> M:multi_call([node()], myself, x)
    end.

%% Nothing that was seen before.
serve_no_more(M, Name, There) -> _ = M:call({Name, There}, seen), ok.

%% --- odd arguments ----------------------------------------------------------------------

%% Whatever is not right is answered as OTP's modules answer it on the release that runs.
odd_arguments(Config) ->
    A = ?config(a, Config),
    _ = [true = cluster:call(?config(There, Config),
                             fun() -> register(silent, spawn(timer, sleep, [infinity])) end)
         || There <- [a, plain, lanes]],
    Compared = [begin
                    Node = cluster:node_of(?config(There, Config)),
                    _ = [fresh([{there, ?config(There, Config)}, {a, A}], K)
                         || K <- [gen_server, gen_statem, gen_event]],
                    {Differences, N} =
                        cluster:call(A,
                                     fun() ->
                                             odd:differences(Kind, Ours,
                                                             odd_table(Kind, Node), Which)
                                     end),
                    ?assertEqual({There, Ours, []}, {There, Ours, Differences}),
                    {There, Ours, N}
                end || {There, Which} <- [{a, pairs}, {plain, singles}, {lanes, singles}],
                       Kind <- [gen_server, gen_statem, gen_event, gen], Ours <- ours(Kind)],
    ct:log("~p", [Compared]).

odd_table(Kind, Node) ->
    To = {name(Kind), Node},
    Silent = {silent, Node},                 % does not answer
    Echo = {just, {echo, x}},
    Handler =
        [{just, Second} || {K, Second} <- [{gen_event, manager}, {gen, '$gen_call'}], K =:= Kind],
    Id = fun(M) -> request(M, Silent, x) end,
    Ids = fun(M) -> request(M, Silent, x, label, M:reqids_new()) end,
    [{send_request, fun(_) -> [Silent | Handler] ++ [Echo] end},
     {send_request, fun(M) -> [Silent | Handler] ++ [Echo, {just, label}, M:reqids_new()] end},
     {call, fun(_) -> [To | Handler] ++ [Echo] end},
     {call, fun(_) -> [Silent | Handler] ++ [Echo, 20] end},
     {reqids_new, fun(_) -> [] end},
     {reqids_size, fun(M) -> [Ids(M)] end},
     {reqids_to_list, fun(M) -> [Ids(M)] end},
     {reqids_add, fun(M) -> [Id(M), {just, label}, Ids(M)] end},
     {check_response, fun(M) -> [unrelated, Id(M)] end},
     {check_response, fun(M) -> [unrelated, Ids(M), true] end}]
        ++ [{Wait, fun(M) -> [Id(M), 0] end} || Wait <- [wait_response, receive_response]]
        ++ [{Wait, fun(M) -> [Ids(M), 0, true] end} || Wait <- [wait_response, receive_response]]
        ++ odd_table(Kind, Node, To, Echo).

odd_table(gen_server, Node, To, Echo) ->
    %% What OTP 25 says of odd nodes and times is not what OTP 27 says, and Trunkline.
    {Nodes, Time} = case erlang:system_info(otp_release) < "27" of
                        true -> {{just, [Node]}, {just, 20}};
                        false -> {[Node], 20}
                    end,
    [{cast, fun(_) -> [To, {just, x}] end},
     {abcast, fun(_) -> [test_gen_server, {just, x}] end},
     {abcast, fun(_) -> [[Node], test_gen_server, {just, x}] end},
     {multi_call, fun(_) -> [test_gen_server, Echo] end},
     {multi_call, fun(_) -> [Nodes, test_gen_server, Echo] end},
     {multi_call, fun(_) -> [Nodes, silent, Echo, Time] end}];
odd_table(gen_statem, _, To, Echo) ->
    %% (For what is no request they wait for ever.)
    Once = [{Wait, fun(M) -> [{just, M:send_request(To, element(2, Echo))}] end}
            || Wait <- [wait_response, receive_response]],
    [{cast, fun(_) -> [To, {just, x}] end} | Once];
odd_table(gen, _, _, _) ->
    [];
odd_table(gen_event, _, To, _) ->
    Two = {just, {manager, two}},
    [{notify, fun(_) -> [To, {just, x}] end},
     {sync_notify, fun(_) -> [To, {just, x}] end},
     {which_handlers, fun(_) -> [To] end},
     {add_handler, fun(_) -> [To, Two, {just, []}] end},
     {add_sup_handler, fun(_) -> [To, Two, {just, []}] end},
     {delete_handler, fun(_) -> [To, Two, {just, x}] end},
     {swap_handler, fun(_) -> [To, {no_such_handler, x}, {no_such_handler, y}] end},
     {swap_sup_handler, fun(_) -> [To, {no_such_handler, x}, {no_such_handler, y}] end}].

%% Requests that have not been answered, in the hands of another module than the one that made them:
%% of OTP's or ours, for servers or for functions. Ours do with every id and collection what OTP's
%% do with OTP's. OTP's do not know an id that went by lane: they say what they say of anything that
%% is no id, which is mostly badarg, and sometimes timeout. (With a collection of ours OTP's may be
%% content, as long as nothing is answered, and so may our modules that are for something else.)
foreign_ids(Config) ->
    A = ?config(a, Config),
    [begin
         At = ?config(There, Config),
         Silent = cluster:call(At, erlang, spawn, [timer, sleep, [infinity]]),
         Asked = cluster:call(At, erlang, spawn, [?MODULE, asked, []]),
         {Compared, Different} = cluster:call(A, ?MODULE, foreign, [Silent, There =:= lanes]),
         ct:log("~p: ~b were compared", [There, Compared]),
         ?assertEqual({There, []}, {There, Different}),
         %% And nothing has happened to them.
         Makers = [gen_server, gen_statem, trunkline, trunkline_gen_server, trunkline_gen_statem],
         [?assertEqual({There, Maker, Taker, {{reply, answer}, []}},
                       {There, Maker, Taker,
                        cluster:call(A, fun() -> through_all_hands(Maker, Taker, Asked) end)})
          || Maker <- Makers, Taker <- Makers -- [gen_server, gen_statem]]
     end || There <- [a, plain, lanes]].

%% Runs at the node. How many there were, and those that ended otherwise than they may:
%% {Maker, Function, Taker, how they may end, how it has ended}
foreign(Silent, IsByLane) ->
    Ours = [trunkline_erpc | [M || Kind <- kinds(), M <- ours(Kind)]],
    Compared = [{Maker, Use, Taker, may_end(Maker, Use, Taker, Silent, IsByLane),
                 ended_with_id(Maker, Use, Taker, Silent)}
                || {Takers, Makers} <- [{Ours, [erpc | kinds()] ++ Ours}, {[erpc | kinds()], Ours}],
                   Taker <- Takers, Maker <- Makers, Use <- uses()],
    {length(Compared), [C || {_, _, _, May, Ended} = C <- Compared, not lists:member(Ended, May)]}.

may_end(Maker, {How, Name} = Use, Taker, Silent, IsByLane) ->
    AsOtp = ended_with_id(otps(Maker), Use, otps(Taker), Silent),
    Bad = {error, case otps(Taker) of erpc -> {erpc, badarg}; _ -> badarg end},
    IsOtp = otps(Taker) =:= Taker,
    case is_ours(Maker) of
        true when How =:= one, IsByLane, IsOtp ->
            NoId = ended_with(Taker, Name, one, {no, id}),
            true = lists:member(NoId, [Bad, {ok, timeout}]),
            [NoId];
        true when How =:= collection, IsOtp -> [AsOtp, Bad];
        true when How =:= collection -> [AsOtp | [Bad || is_erpc(Maker) =/= is_erpc(Taker)]];
        _ -> [AsOtp]
    end.

is_ours(Module) -> otps(Module) =/= Module.

is_erpc(Module) -> otps(Module) =:= erpc.

kinds() -> [gen_server, gen_statem, gen_event, gen].

otps(trunkline_erpc) -> erpc;
otps(Module) -> hd([Kind || Kind <- kinds(), lists:member(Module, ours(Kind))] ++ [Module]).

uses() ->
    [{How, Function} || How <- [one, collection],
                        Function <- [wait_response, receive_response, check_response]].

%% In a process that has asked nothing else.
ended_with_id(Maker, {How, Name}, Taker, Silent) ->
    {Pid, Ref} = spawn_monitor(fun() ->
                                       Id = unanswered(How, Maker, Silent),
                                       exit({ended, ended_with(Taker, Name, How, Id)})
                               end),
    receive
        {'DOWN', Ref, process, Pid, {ended, End}} -> End;
        {'DOWN', Ref, process, Pid, Reason} -> {killed, Reason}
    after ?LONG ->
            exit(Pid, kill),
            blocks
    end.

unanswered(one, M, Silent) when M =:= erpc; M =:= trunkline_erpc ->
    M:send_request(node(Silent), timer, sleep, [?LONG]);
unanswered(one, M, Silent) ->
    request(M, Silent, x);
unanswered(collection, M, Silent) when M =:= erpc; M =:= trunkline_erpc ->
    M:send_request(node(Silent), timer, sleep, [?LONG], label, M:reqids_new());
unanswered(collection, M, Silent) ->
    request(M, Silent, x, label, M:reqids_new()).

ended_with(Module, Name, How, Id) ->
    Args = case Name of
               check_response -> [unrelated, Id];
               _ -> [Id, 0]
           end ++ [true || How =:= collection],
    try {ok, apply(Module, Name, Args)}
    catch Class:Reason -> {Class, Reason}
    end.

%% The answer, and what is in the mailbox then.
through_all_hands(Maker, Last, Asked) ->
    {Pid, Ref} =
        spawn_monitor(fun() ->
                              Id = Maker:send_request(Asked, x),
                              [ended_with(M, Name, one, Id)
                               || Kind <- kinds(), M <- [erpc, trunkline_erpc, Kind | ours(Kind)],
                                  Name <- [wait_response, check_response]],
                              Asked ! go,
                              Response = Last:receive_response(Id, ?LONG),
                              exit({ended, {Response, mail(5)}})
                      end),
    receive {'DOWN', Ref, process, Pid, {ended, End}} -> End;
            {'DOWN', Ref, process, Pid, Reason} -> {killed, Reason} end.

%% A server that answers when it is told to.
asked() ->
    receive
        {'$gen_call', From, x} -> receive go -> gen_server:reply(From, answer) end, asked()
    end.

%% A name is looked up once: a second answer could be another one. (Also where there are inboxes,
%% which may refuse a call.)
names_once(Config) ->
    A = ?config(a, Config),
    lists:foreach(
      fun(There) ->
              ok = cluster:call(?config(There, Config), server, stop_all, []),
              {ok, Pid} = cluster:call(?config(There, Config), server, start, [gen_server]),
              Lookups = cluster:call(
                          A, fun() ->
                                     {ok, _} = trunkline_inbox:open(#{}),
                                     [begin
                                          Counter = counters:new(1, []),
                                          Call({via, via_test, {counted, Counter, Pid}}),
                                          counters:get(Counter, 1)
                                      end
                                      || Call <- [fun(To) ->
                                                          hello = trunkline:call(To, {echo, hello})
                                                  end,
                                                  fun(To) -> ok = trunkline:cast(To, hello) end,
                                                  fun(To) ->
                                                          _ = trunkline:send_request(To,
                                                                                     {echo, hello})
                                                  end]]
                             end),
              ?assertEqual({There, [1, 1, 1]}, {There, Lookups})
      end, [a, plain, lanes]).

%% A registry may send to several processes, of which it does not know one by that name.
name_of_many(_) ->
    To = {via, via_test, {all, [self(), self()]}},
    [begin
         ok = Send(To, hello),
         [receive Expected -> ok after ?LONG -> error({Expected, missing}) end || _ <- [1, 2]]
     end || {Send, Expected} <- [{fun gen_server:cast/2, {'$gen_cast', hello}},
                                 {fun trunkline_gen_server:cast/2, {'$gen_cast', hello}},
                                 {fun trunkline_gen_statem:cast/2, {'$gen_cast', hello}},
                                 {fun trunkline_gen_event:notify/2, {notify, hello}}]].

%% --- many nodes -------------------------------------------------------------------------

%% All nodes, in any order, with servers at some.
everywhere(Config) ->
    [A, Plain, Lanes] = Nodes = [?config(N, Config) || N <- [a, plain, lanes]],
    _ = [begin ok = cluster:call(N, server, stop_all, []),
               {ok, _} = cluster:call(N, server, start, [gen_server]) end || N <- Nodes],
    [NodeA, NodeP, NodeL] = Names = [cluster:node_of(N) || N <- Nodes],
    Each = fun(Dialogue) ->
                   introduce([{a, A}], none),
                   [Expected | Ends] = [cluster:call(A, ?MODULE, held, [Dialogue, M, none])
                                        || M <- [gen_server | ours(gen_server)]],
                   _ = [?assertEqual(Expected, End) || End <- Ends],
                   {End, []} = Expected,
                   End
           end,
    Answers = fun(In) -> [{N, N} || N <- In] end,
    Node = {apply, node},
    lists:foreach(
      fun(In) ->
              ?assertEqual({ok, {Answers(In), []}},
                           Each(fun(M, _) -> M:multi_call(In, test_gen_server, Node) end)),
              ?assertEqual({ok, {Answers(In), []}},
                           Each(fun(M, _) -> M:multi_call(In, test_gen_server, Node, ?LONG) end)),
              ?assertEqual({ok, {Answers(In), [?NOWHERE, 'another@localhost']}},
                           Each(fun(M, _) ->
                                        M:multi_call([?NOWHERE | In] ++ ['another@localhost'],
                                                     test_gen_server, Node, ?LONG)
                                end))
      end,
      [Names, lists:reverse(Names), [NodeP, NodeA, NodeL], [NodeL, NodeL, NodeA, NodeP, NodeL]]),
    {ok, {Replies, []}} = Each(fun(M, _) -> M:multi_call(test_gen_server, Node) end),
    ?assertEqual(lists:sort(Answers(Names)), lists:sort(Replies)),
    %% (to be connected for it)
    ?assertEqual({ok, {Answers(Names), []}},
                 Each(fun(M, _) ->
                              true = erlang:disconnect_node(NodeP),
                              M:multi_call(Names, test_gen_server, Node, ?LONG)
                      end)),
    {ok, {[_, _], [NodeL]}} =
        begin ok = cluster:call(Lanes, server, stop_all, []),
              Each(fun(M, _) -> M:multi_call(Names, test_gen_server, Node) end) end,
    {ok, {[_], [NodeP, NodeL]}} =
        begin ok = cluster:call(Plain, server, stop_all, []),
              Each(fun(M, _) -> M:multi_call(Names, test_gen_server, Node, ?LONG) end) end,
    _ = [{ok, _} = cluster:call(N, server, start, [gen_server]) || N <- [Plain, Lanes]],
    {ok, [abcast, abcast, {[{_, Seen}, {_, Seen}, {_, Seen}], []}]} =
        Each(fun(M, _) -> _ = M:multi_call(Names, test_gen_server, seen),
                          [M:abcast(test_gen_server, one), M:abcast(Names, test_gen_server, two),
                           M:multi_call(Names, test_gen_server, seen)] end),
    ?assertEqual([{cast, one}, {cast, two}], Seen),
    _ = [ok = cluster:call(N, server, stop_all, []) || N <- Nodes].

%% A node that stands still, one whose connection is lost, one that stands still without: those
%% that can answer do, in whatever place of the list.
bad_nodes(_) ->
    [A, B, C, D] = Nodes = cluster:start_all([[], [], [], []]),
    [NodeA, NodeB, NodeC, NodeD] = Names = [cluster:node_of(N) || N <- Nodes],
    _ = [{ok, _} = cluster:call(N, server, start, [gen_server]) || N <- Nodes],
    _ = [begin cluster:connect(A, N), cluster:await_up(A, N) end || N <- [B, C, D]],
    Ask = fun(In, Timeout) ->
                  introduce([{a, A}], none),
                  {End, Mail} =
                      cluster:call(A, ?MODULE, held,
                                   [fun(M, _) ->
                                            M:multi_call(In, test_gen_server,
                                                         {apply, node}, Timeout)
                                    end, trunkline, none]),
                  ?assertEqual([], Mail),
                  End
          end,
    %% Those who answer may take long, on a machine that is slow.
    Answers = fun Answers(Expected, In, Timeout) ->
                      case Ask(In, Timeout) of
                          {ok, Expected} -> ok;
                          _ when Timeout < 10_000 -> Answers(Expected, In, 4 * Timeout);
                          Other -> ?assertEqual({ok, Expected}, Other)
                      end
              end,
    ?assertEqual({ok, {[{N, N} || N <- Names], []}}, Ask(Names, ?LONG)),
    cluster:suspend(B),
    Answers({[{N, N} || N <- [NodeA, NodeC, NodeD]], [NodeB]}, Names, 2000),
    %% its connection is gone, and another cannot be made now
    true = cluster:call(A, erlang, disconnect_node, [NodeB]),
    cluster:await_state(A, B, down),
    Answers({[{N, N} || N <- [NodeD, NodeC, NodeA]], [NodeB]}, [NodeB, NodeD, NodeC, NodeA], 2000),
    %% others have lost theirs too
    _ = [begin true = cluster:call(A, erlang, disconnect_node, [cluster:node_of(N)]),
               cluster:await_state(A, N, down),
               cluster:await_state(N, A, down) end || N <- [C, D]],
    Answers({[{N, N} || N <- [NodeC, NodeA, NodeD]], [NodeB]}, [NodeB, NodeC, NodeA, NodeD], 4000),
    cluster:continue(B),
    cluster:await(fun() -> case Ask(Names, 5000) of
                               {ok, {_, []}} -> true;
                               Other -> Other
                           end end),
    %% a full lane
    cluster:await_up(A, B),
    cluster:suspend(B),
    ok = cluster:call(A, fun() -> fill({nobody, NodeB}, 100_000) end),
    Answers({[{N, N} || N <- [NodeC, NodeD]], [NodeB]}, [NodeB, NodeC, NodeD], 1000),
    cluster:continue(B),
    cluster:kill(D),
    cluster:await_state(A, D, down),
    ?assertEqual({ok, {[{N, N} || N <- [NodeB, NodeC]], [NodeD]}},
                 Ask([NodeB, NodeD, NodeC], infinity)),
    cluster:stop_all(Nodes).

%% All lanes, each by a sender of its own, until each says no.
fill(To, N) ->
    Senders = [spawn_monitor(fun() -> fill_one(To, N) end) || _ <- lists:seq(1, 30)],
    lists:foreach(fun({_, Ref}) -> receive {'DOWN', Ref, process, _, normal} -> ok end end,
                  Senders).

fill_one(To, N) when N > 0 ->
    case trunkline:send(To, binary:copy(<<"x">>, 3000), [nosuspend]) of
        ok -> fill_one(To, N - 1);
        nosuspend -> ok
    end.

%% Replies that come after all is over reach nobody.
late_replies(Config) ->
    A = ?config(a, Config),
    Nodes = [?config(N, Config) || N <- [a, plain, lanes]],
    Names = [cluster:node_of(N) || N <- Nodes],
    _ = [begin ok = cluster:call(N, server, stop_all, []),
               {ok, _} = cluster:call(N, server, start, [gen_server]) end || N <- Nodes],
    introduce(Config, none),
    {{ok, End}, Mail} =
        cluster:call(A, ?MODULE, held,
                     [fun(M, _) ->
                              {[], Names} =
                                  M:multi_call(Names, test_gen_server, {echo_told, x, self()}, 10),
                              Ids = lists:foldl(
                                      fun(N, Ids) ->
                                              M:send_request({test_gen_server, N},
                                                             {echo_told, y, self()}, N, Ids)
                                      end,
                                      M:reqids_new(), Names),
                              timeout = M:receive_response(Ids, 10, true),
                              ok = server:tell(2 * length(Names)),
                              M:multi_call(Names, test_gen_server, {echo_late, z, 100})
                      end, trunkline, none]),
    ?assertEqual({{[{N, z} || N <- Names], []}, []}, {End, Mail}),
    _ = [ok = cluster:call(N, server, stop_all, []) || N <- Nodes].

%% Requests of one collection go different ways.
mixed_collection(Config) ->
    A = ?config(a, Config),
    Nodes = [?config(N, Config) || N <- [a, plain, lanes]],
    _ = [begin ok = cluster:call(N, server, stop_all, []),
               _ = [{ok, _} = cluster:call(N, server, start, [Kind])
                    || Kind <- [gen_server, gen_statem]] end || N <- Nodes],
    Requests = [{{Name, cluster:node_of(N)}, {echo, {Name, I}}, {cluster:node_of(N), Name, I}}
                || N <- Nodes, Name <- [test_gen_server, test_gen_statem], I <- lists:seq(1, 50)]
        ++ [{{no_such_name, cluster:node_of(N)}, x, {cluster:node_of(N), none, 0}} || N <- Nodes],
    introduce(Config, none),
    [End, End] = [cluster:call(A, ?MODULE, held,
                               [fun(M, _) -> receive_all(M, Requests) end, Module, none])
                  || Module <- [gen_server, trunkline]],
    ?assertMatch({{ok, [{0, no_request} | _]}, []}, End),
    ?assertEqual(304, length(element(2, element(1, End)))),
    _ = [ok = cluster:call(N, server, stop_all, []) || N <- Nodes].

%% What one process sends to one server arrives in that order, whichever function it is.
order(Config) ->
    A = ?config(a, Config),
    Lanes = ?config(lanes, Config),
    There = cluster:node_of(Lanes),
    Large = binary:copy(<<"large">>, 30_000),
    lists:foreach(
      fun(Kind) ->
              ok = cluster:call(Lanes, server, stop_all, []),
              {ok, Pid} = cluster:call(Lanes, server, start, [Kind]),
              Seen =
                  cluster:call(A, fun() -> sent_in_order(Kind, Pid, name(Kind), There, Large) end),
              ?assertEqual(lists:seq(1, 1000), [N || {_, {N, _}} <- Seen])
      end, [gen_server, gen_event]),
    ok = cluster:call(Lanes, server, stop_all, []).

sent_in_order(Kind, Pid, Name, There, Large) ->
    lists:foreach(
      fun(N) ->
              Term = {N, case N rem 17 of 0 -> Large; _ -> small end},
              To = case N rem 2 of 0 -> Pid; 1 -> {Name, There} end,
              case {Kind, N rem 5} of
                  {gen_server, 0} -> noted = trunkline_gen_server:call(To, {note, Term});
                  {gen_server, 1} -> abcast = trunkline_gen_server:abcast([There], Name, Term);
                  {gen_server, 2} -> _ = trunkline_gen_server:send_request(To, {note, Term});
                  {gen_server, 3} ->
                      {[{There, noted}], []} =
                          trunkline_gen_server:multi_call([There], Name, {note, Term});
                  {gen_server, 4} -> ok = trunkline_gen_server:cast(To, Term);
                  {gen_event, 0} -> noted = trunkline_gen_event:call(To, manager, {note, Term});
                  {gen_event, 1} -> ok = trunkline_gen_event:sync_notify(To, Term);
                  {gen_event, 2} -> _ = trunkline_gen_event:send_request(To, manager, {note, Term});
                  {gen_event, _} -> ok = trunkline_gen_event:notify(To, Term)
              end
      end, lists:seq(1, 1000)),
    case Kind of
        gen_server -> trunkline:call(Pid, seen);
        gen_event -> trunkline_gen_event:call(Pid, manager, seen)
    end.

%% With mail of its own a process calls as with none. (A receive that searches the mailbox costs
%% a reduction for each message.)
long_mailbox(Config) ->
    Nodes = [?config(N, Config) || N <- [a, lanes, plain]],
    _ = [begin ok = cluster:call(N, server, stop_all, []),
               _ = [{ok, _} = cluster:call(N, server, start, [Kind])
                    || Kind <- [gen_server, gen_statem, gen_event]] end || N <- Nodes],
    Names = [cluster:node_of(N) || N <- Nodes],
    There = lists:nth(2, Names),
    Work = fun() ->
                   {reductions, Before} = process_info(self(), reductions),
                   _ = [begin
                            N = trunkline_gen_server:call({test_gen_server, There}, {echo, N}),
                            N = trunkline_gen_statem:call({test_gen_statem, There}, {echo, N},
                                                          {clean_timeout, ?LONG}),
                            N = trunkline_gen_event:call({test_gen_event, There}, manager,
                                                         {echo, N}),
                            {[_, _, _], []} = trunkline:multi_call(
                                                Names, test_gen_server, {echo, N}, ?LONG)
                        end || N <- lists:seq(1, 20)],
                   {reductions, After} = process_info(self(), reductions),
                   After - Before
           end,
    {Short, Long} = cluster:call(?config(a, Config),
                                 fun() ->
                                         Short = Work(),
                                         _ = [self() ! {mail, N} || N <- lists:seq(1, 100_000)],
                                         {Short, Work()}
                                 end),
    ct:log("reductions: ~b with no mail, ~b with 100,000 messages", [Short, Long]),
    ?assert(Long < Short + 100_000),
    _ = [ok = cluster:call(N, server, stop_all, []) || N <- Nodes].

%% --- faults -------------------------------------------------------------------------------

%% Many wait for a server, in every way there is, and it dies. Each hears of it once.
server_dies(Config) ->
    A = ?config(a, Config),
    lists:foreach(
      fun(Group) ->
              There = ?config(Group, Config),
              ok = cluster:call(There, server, stop_all, []),
              {ok, Pid} = cluster:call(There, server, start, [gen_server]),
              Waiting = waiters(A, Pid, cluster:node_of(There)),
              cluster:await(
                fun() -> 5 =:= cluster:call(There, fun() -> gen_server:call(Pid, waiting) end) end),
              true = cluster:call(There, erlang, exit, [Pid, kill]),
              Expected = [{call, {exit, {killed, gen_server}}},
                          {collection, [{1, {error, {killed, Pid}}}, {2, {error, {killed, Pid}}}]},
                          {multi_call, {[], [node(Pid)]}}, {request, {error, {killed, Pid}}}],
              ?assertEqual(Expected, outcomes(Waiting))
      end, [a, plain, lanes]).

%% Each kind of process that a request depends on is killed while it is under way.
processes_killed(_) ->
    {A, B} = cluster:pair([{lanes, 2}]),
    _ = [ok = cluster:call(N, logger, set_primary_config, [level, none]) || N <- [A, B]],
    NodeB = cluster:node_of(B),
    {ok, Pid} = cluster:call(B, server, start, [gen_server]),
    Expected = [{call, {exit, {{nodedown, NodeB}, gen_server}}},
                {collection,
                 [{1, {error, {noconnection, Pid}}}, {2, {error, {noconnection, Pid}}}]},
                {multi_call, {[], [NodeB]}}, {request, {error, {noconnection, Pid}}}],
    lists:foreach(
      fun({Victim, At, Other}) ->
              anew:lanes(
                A, B,
                fun() ->
                        Waiting = waiters(A, Pid, NodeB),
                        cluster:await(
                          fun() ->
                                  5 =:= cluster:call(B, fun() -> gen_server:call(Pid, waiting) end)
                          end),
                        cluster:call(At, fun() -> kill(Victim, cluster:node_of(Other)) end),
                        ?assertEqual({Victim, Expected}, {Victim, outcomes(Waiting)})
                end),
              ?assertEqual([hello, hello, {[{NodeB, hello}], []}],
                           cluster:call(A,
                                        fun() ->
                                                [trunkline_gen_server:call(Pid, {echo, hello}),
                                                 trunkline_gen_statem:call(Pid, {echo, hello}),
                                                 trunkline:multi_call(
                                                   [NodeB], test_gen_server, {echo, hello})] end)),
              _ = cluster:call(B, fun() -> gen_server:call(Pid, forget) end)
      end, [{Victim, At, Other}
            || Victim <- [inlets, link, lanes], {At, Other} <- [{A, B}, {B, A}]]),
    cluster:stop_all([A, B]).

%% One of them.
kill(Victim, Node) -> exit(hd(cluster:find(Victim, Node)), kill).

%% The node ends, or the connection does.
node_goes(_) ->
    lists:foreach(
      fun({Env, End}) ->
              [A, B] = cluster:start_all([[], Env]),
              NodeB = cluster:node_of(B),
              cluster:connect(A, B),
              Env =:= none orelse cluster:await_up(A, B),
              {ok, Pid} = cluster:call(B, server, start, [gen_server]),
              Waiting = waiters(A, Pid, NodeB),
              cluster:await(
                fun() -> 5 =:= cluster:call(B, fun() -> gen_server:call(Pid, waiting) end) end),
              End(A, B),
              ?assertEqual([{call, {exit, {{nodedown, NodeB}, gen_server}}},
                            {collection,
                             [{1, {error, {noconnection, Pid}}},
                              {2, {error, {noconnection, Pid}}}]},
                            {multi_call, {[], [NodeB]}}, {request, {error, {noconnection, Pid}}}],
                           outcomes(Waiting)),
              cluster:stop_all([A, B])
      end, [{Env, End} || Env <- [[], none],
                          End <- [fun(_, B) -> cluster:kill(B) end,
                                  fun(A, B) ->
                                          true = cluster:call(A, erlang, disconnect_node,
                                                              [cluster:node_of(B)])
                                  end]]).

%% Processes at a node that wait for a server; each tells how its wait ended, and what else
%% came.
waiters(A, Pid, Node) ->
    Waits = [{call,
              fun() ->
                      try trunkline_gen_server:call(Pid, {wait, 1}, infinity)
                      catch
                          exit:{Reason, {Module, _, _}} -> {exit, {Reason, Module}}
                      end
              end},
             {collection,
              fun() ->
                      lists:sort([{L, R}
                                  || {L, R} <- receive_all(trunkline,
                                                           [{Pid, {wait, 2}, 1},
                                                            {Pid, {wait, 3}, 2}]),
                                     R =/= no_request])
              end},
             {multi_call,
              fun() -> trunkline:multi_call([Node], test_gen_server, {wait, 4}, 60_000) end},
             {request,
              fun() ->
                      trunkline:receive_response(trunkline:send_request(Pid, {wait, 5}), infinity)
              end}],
    {A,
     cluster:call(A,
                  fun() -> [spawn(fun() -> kept(Name, Wait()) end) || {Name, Wait} <- Waits] end)}.

kept(Name, End) ->
    receive {ended, From} ->
            From ! {self(), case mail(20) of
                                [] -> {Name, End};
                                Mail -> {Name, End, Mail}
                            end}
    end.

outcomes({A, Pids}) ->
    cluster:call(A,
                 fun() ->
                         [begin P ! {ended, self()},
                                receive {P, End} -> End after 120_000 -> timeout end end
                          || P <- Pids]
                 end).

%% Without distribution there are local servers, and no others.
not_alive(_) ->
    {ok, Peer, _} =
        peer:start(
          #{connection => standard_io, wait_boot => ?LONG, args => ["-pa" | code:get_path()]}),
    ?assertEqual(nonode@nohost, peer:call(Peer, erlang, node, [])),
    ok = peer:call(Peer, ?MODULE, alone, [], ?LONG),
    peer:stop(Peer).

alone() ->
    {ok, _} = server:start(gen_server),
    {ok, _} = server:start(gen_event),
    persistent_term:put(via_test, none),
    Dialogue = fun(M, _) ->
                       {M:multi_call([?NOWHERE, node()], test_gen_server, {echo, 1}),
                        M:multi_call([?NOWHERE, node()], test_gen_server, {echo, 1}, ?LONG),
                        M:call(test_gen_server, {echo, 2}),
                        catching(fun() -> M:call({x, ?NOWHERE}, y) end),
                        receive_all(M, [{test_gen_server, {echo, 3}, 1}, {{x, ?NOWHERE}, y, 2}])}
               end,
    [{{ok, _}, []} = End, End] =
        [held(Dialogue, Module, none) || Module <- [gen_server, trunkline_gen_server]],
    3 = trunkline_gen_event:call(test_gen_event, manager, {echo, 3}),
    ok.

%% A host that does not answer: to send a request takes no time, and who waits for what comes of
%% it hears that there is no connection.
stopped_host(_) ->
    {A, B} = cluster:pair([], [], cluster:dist_arguments() ++ ["-kernel", "net_setuptime", "20"]),
    NodeB = cluster:node_of(B),
    cluster:suspend(B),
    true = cluster:call(A, erlang, disconnect_node, [NodeB]),
    cluster:await_state(A, B, down),
    {Time, {Ids, ErpcIds}} =
        cluster:call(
          A, fun() ->
                     timer:tc(
                       fun() ->
                               Self = self(),
                               Pid = spawn(fun() -> stopped_host(Self, {nobody, NodeB}, NodeB) end),
                               receive {Pid, Sent} -> Sent end
                       end)
             end),
    %% (An attempt to connect takes 20 s.)
    ?assert(Time < 15_000_000),
    ?assertEqual({3, 2}, {Ids, ErpcIds}),
    cluster:await(
      fun() ->
              cluster:call(A,
                           fun() ->
                                   case whereis(stopped_host) of
                                       undefined ->
                                           false;
                                       Pid ->
                                           Pid ! {ask, self()},
                                           receive {Pid, Got} -> {got, Got} end
                                   end
                           end)
                   =:= {got,
                        [noconnection, noconnection, noconnection, noconnection,
                         noconnection]} end),
    cluster:continue(B),
    cluster:stop_all([A, B]).

%% At the node: asks, tells how many requests there are, waits, and tells what came of them.
stopped_host(To, Name, Node) ->
    register(stopped_host, self()),
    Ids = [M:send_request(Name, hello)
           || M <- [trunkline, trunkline_gen_server, trunkline_gen_statem]],
    ErpcIds = [trunkline_erpc:send_request(Node, erlang, node, []) || _ <- [1, 2]],
    ok = trunkline_erpc:cast(Node, erlang, node, []),
    ok = trunkline:cast(Name, hello),
    To ! {self(), {length(Ids), length(ErpcIds)}},
    Got = [begin {error, {Why, _}} = trunkline:receive_response(Id, infinity), Why end || Id <- Ids]
        ++ [try trunkline_erpc:receive_response(Id) catch error:{erpc, Why} -> Why end
            || Id <- ErpcIds],
    receive {ask, From} -> From ! {self(), Got} end.

%% Requests make a connection, and keep their place among messages, also when the peer
%% has lost its Trunkline meanwhile.
asked_while_down(_) ->
    {A, B} = cluster:pair([]),
    NodeB = cluster:node_of(B),
    lists:foreach(
      fun(How) ->
              Server = cluster:call(B, fun() -> spawn(?MODULE, counting, [0]) end),
              true = cluster:call(A, erlang, disconnect_node, [NodeB]),
              [cluster:await_state(X, Y, down) || {X, Y} <- [{A, B}, {B, A}]],
              How =:= plain andalso (ok = cluster:call(B, cluster, stop_trunkline, [])),
              Got = cluster:call(
                      A, fun() ->
                                 Ids = [begin
                                            [trunkline:cast(Server, x) || _ <- lists:seq(1, 10)],
                                            {trunkline:send_request(Server, count),
                                             trunkline_erpc:send_request(NodeB, erlang, abs, [-N])}
                                        end || N <- lists:seq(1, 20)],
                                 [{trunkline:receive_response(Id, infinity),
                                   trunkline_erpc:receive_response(ErpcId)} || {Id, ErpcId} <- Ids]
                         end),
              ?assertEqual([{{reply, 10 * N}, N} || N <- lists:seq(1, 20)], Got),
              How =:= plain andalso (ok = cluster:call(B, cluster, start_trunkline, [[]])),
              cluster:await_up(A, B)
      end, [lanes, plain, lanes]),
    cluster:stop_all([A, B]).

counting(N) ->
    receive
        {'$gen_cast', x} -> counting(N + 1);
        {'$gen_call', From, count} -> gen_server:reply(From, N), counting(N)
    end.
