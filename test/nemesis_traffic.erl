%% Senders and receivers for nemesis_SUITE. These functions run at the nodes.
%%
%% A message tells everything that a receiver needs to judge it:
%%
%%     {n, Time, Form, Entries, Seed, Make, Payload}
%%
%% Time is when the sender began to send it, Form is `pid', `alias' or `name', as it was addressed.
%% There is an entry {Key, N} for each addressee; the Nth message of a Key = {Sender, Destination,
%% Incarnation} has the number N, whatever the form and the kind of sending. The payload follows
%% from Seed and Make.
%%
%% Sender = {Node, Incarnation, I}, Destination = {Node, Name}, where Node is the suite's short name
%% of it. The destinations of a node are the servers p1 and p2; n, which has only a name and is
%% restarted now and then; v, an event manager; and e, to which functions report that are executed
%% at the node (their order is not promised).
%%
%% All logs are runs of numbers: [{First, Last}].
-module(nemesis_traffic).
-behaviour(gen_server).

-export([start_destinations/3, publish/1, logs/0, restart_named/1]).
-export([start_sender/3, stop_senders/2, count/0, plain_replies/0]).
-export([executed/1, worker/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).
-export([keep_named/2, named/1]).

-define(DIRECTORY, {nemesis, directory}).
-define(COUNT, {nemesis, count}).
-define(SENT, 1).
-define(PLAIN, 2).
-define(WHEEL, {nemesis, wheel}).
%% ms
-define(STUCK, 60_000).            % a sender that has not ended, or a 'DOWN' that has not come
-define(ASK_AGAIN, 2_000).
-define(HUNG, 40_000).             % a call: everybody answers, or is known to be gone

%% --- destinations ---------------------------------------------------------------------

%% At the node Id, in its Incarnation. What others began to send to the names of the incarnation
%% before, until its End, must not arrive here. Answers this node's part of the directory.
start_destinations(Id, Incarnation, End) ->
    ok = persistent_term:put(?COUNT, counters:new(?PLAIN, [])),
    ok = persistent_term:put(?WHEEL, element(1, rand:bytes_s(4_000_000, rand:seed_s(exsss, 1)))),
    maps:from_list([{{Id, Name}, start_destination(Id, Name, Incarnation, End)}
                    || Name <- [p1, p2, n, v, e]]).

start_destination(Id, Name, Incarnation, End) ->
    {ok, Pid} = gen_server:start(?MODULE, {{Id, Name}, Incarnation, End}, []),
    Where = #{incarnation => Incarnation, node => node(), pid => none, alias => none},
    case Name of
        n ->
            true = register(nemesis_log, Pid),
            true = register(nemesis_keeper, spawn(?MODULE, keep_named, [Pid, 0])),
            Where;
        v ->
            true = register(nemesis_events_log, Pid),
            {ok, Events} = gen_event:start({local, v}),
            ok = gen_event:add_handler(Events, nemesis_events, Pid),
            Where;
        _ ->
            true = register(Name, Pid),
            Where#{pid := Pid, alias := gen_server:call(Pid, alias)}
    end.

%% #{Destination => where it is}, for the senders of this node.
publish(Directory) -> persistent_term:put(?DIRECTORY, Directory).

%% [{Key, Runs in the order of arrival}], what was wrong with single messages, and what is known of
%% those that came behind later ones.
logs() ->
    {Logs, Odd, Late} = lists:unzip3([gen_server:call(Name, log, ?STUCK)
                                      || Name <- [p1, p2, nemesis_log, nemesis_events_log, e]]),
    {lists:append(Logs), lists:append(Odd), lists:append(Late)}.

%% A process that does nothing but pass on what it gets, under a name that others take after it.
keep_named(Log, Away) ->
    receive after Away -> ok end,
    {Pid, Ref} = spawn_monitor(?MODULE, named, [Log]),
    receive
        {'DOWN', Ref, process, Pid, _} ->
            keep_named(Log, 0);
        {restart, Time, From} ->
            exit(Pid, kill),
            receive {'DOWN', Ref, process, Pid, _} -> From ! {self(), restarted} end,
            keep_named(Log, Time)
    end.

named(Log) ->
    true = register(n, self()),
    pass(Log).

pass(Log) ->
    receive Message -> Log ! Message end,
    pass(Log).

%% The process is killed; its successor takes the name so many ms later.
restart_named(Away) ->
    Keeper = whereis(nemesis_keeper),
    Keeper ! {restart, Away, self()},
    receive {Keeper, restarted} -> ok end.

-record(log, {destination, incarnation, ended, runs = #{}, newest = #{}, odd = [], late = []}).

init({Destination, Incarnation, End}) ->
    {ok, #log{destination = Destination, incarnation = Incarnation, ended = End}}.

handle_call(log, _, #log{runs = Runs, odd = Odd} = S) ->
    {reply, {[{Key, lists:reverse(R)} || {Key, R} <- maps:to_list(Runs)], Odd, S#log.late}, S};
handle_call(alias, _, S) ->
    {reply, alias(), S};
handle_call({Note, Make, Message}, From, S) ->
    ok = count_plain(From),
    Reply = {entries(Message), payload(seed(Message), Make)},
    %% A reply keeps its place among the server's messages, if the request came by lane.
    case {Note, From} of
        {{before, Ref}, {Caller, [[alias | _] | _]}} ->
            _ = trunkline:send(Caller, {note, Ref}),
            gen_server:reply(From, {{before, Ref}, Reply});
        {{later, Ref}, {Caller, [[alias | _] | _]}} ->
            gen_server:reply(From, {{later, Ref}, Reply}),
            trunkline:send(Caller, {note, Ref});
        _ ->
            gen_server:reply(From, {none, Reply})
    end,
    {noreply, got(Message, S)}.

%% How many of the requests ask for a plain reply (trunkline_plain_reply).
count_plain({_, [[alias | Ref] | {Ref, _, _}]}) ->
    counters:add(persistent_term:get(?COUNT), ?PLAIN, 1);
count_plain(_) ->
    ok.

handle_cast(Message, S) -> {noreply, got(Message, S)}.

handle_info(Message, S) -> {noreply, got(Message, S)}.

entries({n, _, _, Entries, _, _, _}) -> Entries.

%% Of what a reply to this is made of.
seed(Message) -> erlang:phash2(entries(Message), 1_000_000) + 1.

got({n, Time, Form, Entries, Seed, Make, Payload}, #log{destination = Destination} = S) ->
    case [Entry || {{_, D, _}, _} = Entry <- Entries, D =:= Destination] of
        [{{{From, Theirs, _}, _, Incarnation} = Key, N}] ->
            {Newest, Newer} = maps:get(From, S#log.newest, {Theirs, 0}),
            S1 = note([{torn, Key, N} || Payload =/= payload(Seed, Make)]
                      ++ [{wrong_incarnation, Key, N, Form} || Incarnation =/= S#log.incarnation,
                                                               Form =/= name]
                      %% from one that has ended, behind something of its successor
                      ++ [{stale, Key, N, Newer} || Theirs < Newest, element(2, Destination) =/= e]
                      ++ [{too_late, Key, N} || is_integer(S#log.ended), Time < S#log.ended], S),
            S1#log{late = [{Key, #{n => N, sent_to => Form, make => Make,
                                   microseconds => os:system_time(microsecond) - Time}}
                           || [{_, Last} | _] <- [maps:get(Key, S#log.runs, [])], Last > N]
                       ++ S#log.late,
                   newest = (S1#log.newest)#{From => if
                                                         Theirs > Newest -> {Theirs, 1};
                                                         Theirs =:= Newest -> {Newest, Newer + 1};
                                                         true -> {Newest, Newer}
                                                     end},
                   runs = add(Key, N, S1#log.runs)};
        _ ->
            note([{wrong_destination, Destination, Entries}], S)
    end;
got(Other, S) ->
    note([{unknown, Other}], S).

note(Odd, #log{odd = Before} = S) -> S#log{odd = Odd ++ Before}.

add(Key, N, Log) -> maps:update_with(Key, fun(Runs) -> add(N, Runs) end, [{N, N}], Log).

%% To the newest run, which is the first.
add(N, [{First, Last} | Runs]) when N =:= Last + 1 -> [{First, N} | Runs];
add(N, Runs) -> [{N, N} | Runs].

%% Executed at the node by trunkline_erpc. (A node that has come back has no destinations at first.)
executed(Message) ->
    case whereis(e) of
        undefined -> nobody;
        Pid -> Pid ! Message, entries(Message)
    end.

%% --- payloads -------------------------------------------------------------------------

payload(Seed, {list, Bytes}) ->
    binary_to_list(payload(Seed, Bytes));
payload(Seed, {tuple, Bytes}) ->
    {Seed, payload(Seed, Bytes div 2), #{made_of => [payload(Seed + 1, Bytes div 2) | Seed]}};
%% Many atoms: some 30 bytes each.
payload(Seed, {rows, Bytes}) ->
    [#{id => Seed + N, state => active} || N <- lists:seq(1, Bytes div 30)];
payload(Seed, Bytes) ->
    binary:part(persistent_term:get(?WHEEL), Seed rem 1_999_993, Bytes).

bytes() ->
    case rand:uniform(1000) of
        N when N =< 800 -> rand:uniform(200);
        N when N =< 950 -> 200 + rand:uniform(8_000);
        N when N =< 992 -> 8_000 + rand:uniform(100_000);
        _ -> 100_000 + rand:uniform(1_900_000)
    end.

%% What a reply is made of. A server whose replies are mostly long is asked for plain ones.
make(any) ->
    bytes();
make(long) ->
    case rand:uniform(10) of
        1 -> bytes();
        2 -> 131_072 + rand:uniform(300_000);
        3 -> {list, 20_000 + rand:uniform(100_000)};
        4 -> {rows, 100_000 + rand:uniform(900_000)};
        _ -> {rows, 3_000 + rand:uniform(30_000)}
    end.

make() ->
    case {bytes(), rand:uniform(10)} of
        {Bytes, 1} when Bytes < 100_000 -> {list, Bytes};
        {Bytes, 2} -> {tuple, Bytes};
        {Bytes, 3} when Bytes > 8_000 -> {rows, 4 * Bytes};
        {Bytes, _} -> Bytes
    end.

%% --- senders --------------------------------------------------------------------------

%% What it did with the numbers of each Key: `sent' (accepted), `answered' (they must have arrived),
%% `uncertain' (requests without an answer), `refused' (they must not arrive).
-record(sender,
        {id, mix, targets, replies,
         %% What that destination has sent after its last reply.
         later = #{} :: #{Key :: term() => reference()},
         numbers = #{} :: #{term() => pos_integer()},
         log = #{} :: #{{Key :: term(), How :: atom()} => [nemesis_check:run()]},
         reasons = #{} :: #{term() => pos_integer()},       % of calls that failed
         odd = []}).

%% What it does follows from the seed, and from how fast things go.
start_sender(Id, Seed, #{mix := Mix, targets := Targets, replies := Replies}) ->
    spawn(fun() ->
                  _ = rand:seed(exsss, Seed),
                  try loop(#sender{id = Id, mix = Mix, targets = Targets, replies = Replies})
                  catch
                      Class:Reason:Stack ->
                          Crashed = {crashed, Class, Reason, Stack},
                          receive {stop, From, _} -> From ! {self(), Crashed} end
                  end
          end).

%% Those of this node: each ends its step, makes sure by a call that all it has sent has arrived,
%% and answers what it did. A sender that does not is stuck.
stop_senders(Senders, Destinations) ->
    Refs = [{Pid, monitor(process, Pid)} || Pid <- Senders],
    lists:foreach(fun(Pid) -> Pid ! {stop, self(), Destinations} end, Senders),
    Timer = erlang:start_timer(2 * ?STUCK, self(), stuck),
    [receive
         {Pid, Result} -> Result;
         {'DOWN', Ref, process, Pid, Reason} -> {crashed, Reason};
         {timeout, Timer, stuck} ->
             self() ! {timeout, Timer, stuck},
             {stuck, process_info(Pid, current_stacktrace)}
     end || {Pid, Ref} <- Refs].

%% How many requests of all senders have got a plain reply here.
plain_replies() -> counters:get(persistent_term:get(?COUNT), ?PLAIN).

%% How many messages all senders here have sent.
count() -> counters:get(persistent_term:get(?COUNT), ?SENT).

loop(S) ->
    receive
        {stop, From, Destinations} ->
            #sender{log = Log, reasons = Reasons, odd = Odd} = late(flush(Destinations, S)),
            From ! {self(), #{log => maps:map(fun(_, Runs) -> lists:reverse(Runs) end, Log),
                              reasons => Reasons, odd => Odd}}
    after 0 ->
            loop(step(S))
    end.

step(#sender{mix = Mix, targets = Targets} = S) ->
    Directory = persistent_term:get(?DIRECTORY),
    Kind = pick(Mix),
    Times = case rand:uniform(10) of
                1 -> rand:uniform(50);
                _ -> 1
            end,
    Target = one(Targets),
    lists:foldl(fun(_, S1) -> step(Kind, Target, Directory, S1) end, S, lists:seq(1, Times)).

%% One for each kind of sending.
step(send, Target, Directory, S) ->
    {[{Form, To}], Message, S1} = message([Target], [pid, name, alias], Directory, S),
    Message = trunkline:send(To, Message),
    done(sent, Form, Message, S1);
step({send, Option}, Target, Directory, S) ->
    {[{Form, To}], Message, S1} = message([Target], [pid, name, alias], Directory, S),
    case trunkline:send(To, Message, [Option]) of
        ok -> done(sent, Form, Message, S1);
        Refused when Refused =:= nosuspend; Refused =:= noconnect ->
            done(refused, Form, Message, S1)
    end;
step(cast, Target, Directory, S) ->
    {[{Form, To}], Message, S1} = message([Target], [pid, name], Directory, S),
    ok = trunkline:cast(To, Message),
    done(sent, Form, Message, S1);
step(abcast, {_, Name} = Target, Directory, #sender{targets = Targets} = S) ->
    All = lists:usort([Target | [T || {_, N} = T <- Targets, N =:= Name]]),
    {Addresses, Message, S1} = message(All, [name], Directory, S),
    abcast = trunkline:abcast([Node || {_, {_, Node}} <- Addresses], Name, Message),
    done(sent, name, Message, S1);
step(multicast, Target, Directory, #sender{targets = Targets} = S) ->
    All = lists:usort([Target | [one(Targets) || _ <- lists:seq(1, 4)]]),
    {Addresses, Message, S1} = message(All, [one([pid, name, alias])], Directory, S),
    ok = trunkline:multicast([To || {_, To} <- Addresses], Message),
    done(sent, any, Message, S1);
step(call, Target, Directory, S) ->
    {[{_, To}], Message, S1} = message([Target], [pid, name], Directory, S),
    call(To, Message, one([200, 5_000, ?HUNG]), S1);
step(request, Target, Directory, #sender{targets = Targets} = S) ->
    {Requests, S1} =
        lists:mapfoldl(fun(T, S0) ->
                               {[{_, To}], Message, S2} = message([T], [pid, name], Directory, S0),
                               Make = make(S2#sender.replies),
                               Id = trunkline:send_request(To, {none, Make, Message}),
                               {{Id, Make, Message}, count_one(S2)}
                       end, S, [Target | [one(Targets) || _ <- lists:seq(1, rand:uniform(4) - 1)]]),
    lists:foldl(fun({Id, Make, Message}, S2) ->
                        case trunkline:receive_response(Id, ?HUNG) of
                            {reply, {none, Reply}} -> answered(Reply, Make, Message, S2);
                            {error, {Reason, _}} -> failed(request, Reason, Message, S2);
                            timeout -> failed(request, hung, Message, S2)
                        end
                end, S1, Requests);
step(multi_call, {_, Name} = Target, Directory, #sender{targets = Targets} = S) ->
    All = lists:usort([Target | [T || {_, N} = T <- Targets, N =:= Name]]),
    {Addresses, Message, S1} = message(All, [name], Directory, S),
    Nodes = [Node || {_, {_, Node}} <- Addresses],
    {Replies, Bad} = trunkline:multi_call(Nodes, Name, {none, 1, Message}, 10_000),
    [] = Nodes -- (Bad ++ [Node || {Node, _} <- Replies]),
    lists:foldl(fun({Node, Entry}, S2) ->
                        case lists:keyfind(Node, 1, Replies) of
                            {Node, {none, {_, _}}} -> log(answered, [Entry], S2);
                            false -> reason({multi_call, bad_node}, log(uncertain, [Entry], S2))
                        end
                end, count_one(S1), lists:zip(Nodes, entries(Message)));
step(erpc_call, {Node, _}, Directory, S) ->
    {[{_, {_, At}}], Message, S1} = message([{Node, e}], [name], Directory, S),
    try trunkline_erpc:call(At, ?MODULE, executed, [Message],
                             one([200, 10_000, infinity])) of
        Reply -> executed(Reply, Message, S1)
    catch
        error:{erpc, Reason} -> failed(erpc, Reason, Message, count_one(S1));
        exit:{signal, Reason} -> failed(erpc, Reason, Message, count_one(S1))
    end;
step(erpc_cast, {Node, _}, Directory, S) ->
    {[{_, {_, At}}], Message, S1} = message([{Node, e}], [name], Directory, S),
    ok = trunkline_erpc:cast(At, ?MODULE, executed, [Message]),
    done(sent, name, Message, S1);
step(notify, {Node, _}, Directory, S) ->
    {[{name, To}], Message, S1} = message([{Node, v}], [name], Directory, S),
    ok = trunkline_gen_event:notify(To, Message),
    done(sent, name, Message, S1);
step(erpc_request, {Node, _}, Directory, S) ->
    {[{_, {_, At}}], Message, S1} = message([{Node, e}], [name], Directory, S),
    Id = trunkline_erpc:send_request(At, ?MODULE, executed, [Message]),
    try trunkline_erpc:receive_response(Id, 10_000) of
        Reply -> executed(Reply, Message, S1)
    catch
        error:{erpc, Reason} -> failed(erpc, Reason, Message, count_one(S1));
        exit:{signal, Reason} -> failed(erpc, Reason, Message, count_one(S1))
    end;
step(erpc_multicast, _, Directory, #sender{targets = Targets} = S) ->
    All = lists:usort([{Node, e} || {Node, _} <- Targets]),
    {Addresses, Message, S1} = message(All, [name], Directory, S),
    ok = trunkline_erpc:multicast([Node || {_, {_, Node}} <- Addresses], ?MODULE, executed,
                                  [Message]),
    done(sent, name, Message, S1);
step(rpc_call, {Node, _}, Directory, S) ->
    {[{_, {_, At}}], Message, S1} = message([{Node, e}], [name], Directory, S),
    case trunkline_rpc:call(At, ?MODULE, executed, [Message], 10_000) of
        {badrpc, nodedown} -> failed(erpc, noconnection, Message, count_one(S1));
        {badrpc, {'EXIT', Reason}} -> failed(erpc, Reason, Message, count_one(S1));
        {badrpc, Reason} -> failed(erpc, Reason, Message, count_one(S1));
        Reply -> executed(Reply, Message, S1)
    end;
step(rpc_cast, {Node, _}, Directory, S) ->
    {[{_, {_, At}}], Message, S1} = message([{Node, e}], [name], Directory, S),
    true = trunkline_rpc:cast(At, ?MODULE, executed, [Message]),
    done(sent, name, Message, S1);
step(erpc_multicall, _, Directory, #sender{targets = Targets} = S) ->
    All = lists:usort([{Node, e} || {Node, _} <- Targets]),
    {Addresses, Message, S1} = message(All, [name], Directory, S),
    Nodes = [Node || {_, {_, Node}} <- Addresses],
    Results = trunkline_erpc:multicall(Nodes, ?MODULE, executed, [Message], 10_000),
    lists:foldl(fun({{ok, nobody}, Entry}, S2) -> log(uncertain, [Entry], S2);
                   ({{ok, _}, Entry}, S2) -> log(answered, [Entry], S2);
                   ({{error, {erpc, Reason}}, Entry}, S2) ->
                        reason({erpc, Reason}, log(uncertain, [Entry], S2))
                end, count_one(S1), lists:zip(Results, entries(Message)));
step(Kind, Target, Directory, S) when Kind =:= monitor; Kind =:= exit ->
    #{Target := #{node := At}} = Directory,
    try trunkline_erpc:call(At, ?MODULE, worker, [], 10_000) of
        Worker when Kind =:= monitor -> watch(Worker, S);
        Worker -> end_it(Worker, S)
    catch
        error:{erpc, Reason} -> reason({erpc, Reason}, S);
        error:{exception, system_limit, _} -> S
    end.

executed(nobody, Message, S) -> done(uncertain, name, Message, S);
executed(Reply, Message, S) ->
    answered({Reply, payload(seed(Message), 1)}, 1, Message, count_one(S)).

call(To, Message, Timeout, #sender{replies = Replies} = S) ->
    Make = make(Replies),
    Note = case lists:member(n, names(Message)) of
               true -> none;
               false -> one([{before, make_ref()}, {later, make_ref()}
                             | lists:duplicate(silent(Replies), none)])
           end,
    try trunkline:call(To, {Note, Make, Message}, Timeout) of
        {Noted, Reply} ->
            [{Key, _}] = entries(Message),
            noted(Noted, Key, had_later(Key, answered(Reply, Make, Message, count_one(S))))
    catch
        exit:{timeout, {trunkline, call, _}} when Timeout =:= ?HUNG ->
            failed(call, hung, Message, odd({hung, To, entries(Message)}, count_one(S)));
        exit:{Reason, {trunkline, call, _}} ->
            failed(call, Reason, Message, count_one(S))
    end.

%% (A server that sends much else gives no plain replies.)
silent(any) -> 2;
silent(long) -> 30.

%% What the server has sent before the reply is here, and what it has sent after the one before.
noted(none, _, S) -> S;
noted({before, Note}, Key, S) -> had(Note, Key, S);
noted({later, Note}, Key, #sender{later = Later} = S) -> S#sender{later = Later#{Key => Note}}.

had_later(Key, #sender{later = Later} = S) when is_map_key(Key, Later) ->
    {Note, Later1} = maps:take(Key, Later),
    had(Note, Key, S#sender{later = Later1});
had_later(_, S) ->
    S.

had(Note, Key, S) ->
    receive {note, Note} -> S
    after 0 -> odd({no_note, Key, Note}, S)
    end.

names(Message) -> [Name || {{_, {_, Name}, _}, _} <- entries(Message)].

answered({Entries, Payload}, Make, Message, S) ->
    S1 = log(answered, entries(Message), S),
    case {entries(Message), payload(seed(Message), Make)} of
        {Entries, Payload} -> S1;
        _ -> odd({wrong_reply, entries(Message), Entries}, S1)
    end.

failed(Kind, Reason, Message, S) -> reason({Kind, Reason}, log(uncertain, entries(Message), S)).

reason(What, #sender{reasons = Reasons} = S) ->
    S#sender{reasons = maps:update_with(What, fun(N) -> N + 1 end, 1, Reasons)}.

odd(What, #sender{odd = Odd} = S) -> S#sender{odd = [What | Odd]}.

%% To a destination that has only a name it is the name.
message(Targets, Forms, Directory, S) ->
    {Entries, S1} = lists:mapfoldl(fun(Target, #sender{id = Id, numbers = Numbers} = S0) ->
                                           #{Target := #{incarnation := Incarnation}} = Directory,
                                           Key = {Id, Target, Incarnation},
                                           N = maps:get(Key, Numbers, 0) + 1,
                                           {{Key, N}, S0#sender{numbers = Numbers#{Key => N}}}
                                   end, S, Targets),
    Form = one(Forms),
    Addresses = [address(Form, Target, maps:get(Target, Directory)) || Target <- Targets],
    %% If one of them is addressed by its name, whoever has the name may get it.
    Said = case lists:keymember(name, 1, Addresses) of true -> name; false -> Form end,
    Make = case S1#sender.replies of
               any -> make();
               long -> rand:uniform(200)         % no plain replies where requests are long, too
           end,
    Seed = rand:uniform(1_999_993),
    Time = os:system_time(microsecond),
    {Addresses, {n, Time, Said, Entries, Seed, Make, payload(Seed, Make)}, S1}.

address(_, {_, Name}, #{pid := none, node := Node}) -> {name, {Name, Node}};
address(pid, _, #{pid := Pid}) -> {pid, Pid};
address(alias, _, #{alias := Alias}) -> {alias, Alias};
address(name, {_, Name}, #{node := Node}) -> {name, {Name, Node}}.

done(How, _, Message, S) -> log(How, entries(Message), count_one(S)).

log(How, Entries, #sender{log = Log} = S) ->
    S#sender{log = lists:foldl(fun({Key, N}, L) -> add({Key, How}, N, L) end, Log, Entries)}.

count_one(S) ->
    counters:add(persistent_term:get(?COUNT), ?SENT, 1),
    S.

one(List) -> lists:nth(rand:uniform(length(List)), List).

pick(Mix) -> pick(rand:uniform(lists:sum([W || {_, W} <- Mix])), Mix).

pick(N, [{Kind, Weight} | _]) when N =< Weight -> Kind;
pick(N, [{_, Weight} | Mix]) -> pick(N - Weight, Mix).

%% The last message to each, behind all others: when it is answered they have arrived, or are lost.
flush(Destinations, S) ->
    Deadline = erlang:monotonic_time(millisecond) + ?STUCK,
    lists:foldl(fun(Destination, S0) -> flush(Destination, Deadline, S0) end, S, Destinations).

flush(Destination, Deadline, #sender{reasons = Reasons} = S) ->
    {[{_, To}], Message, S1} = message([Destination], [pid], persistent_term:get(?DIRECTORY), S),
    case call(To, Message, 10_000, S1) of
        #sender{reasons = Reasons} = S2 ->
            S2;
        #sender{reasons = Failed} = S2 ->
            case erlang:monotonic_time(millisecond) > Deadline of
                true -> odd({no_answer_at_last, Destination, Failed}, S2);
                false -> flush(Destination, Deadline, S2)
            end
    end.

%% What came after it should have.
late(S) ->
    receive
        {note, Note} -> late(odd({late_note, Note}, S));
        {worker, Worker, _} -> late(odd({behind_its_down, Worker}, S));
        {'DOWN', _, process, Process, Reason} -> late(odd({another_down, Process, Reason}, S));
        Other -> late(odd({unknown, Other}, S))
    after 0 -> S
    end.

%% --- monitors -------------------------------------------------------------------------

%% Says some things when it is asked to die, and dies. Or an exit signal tells it to: then its
%% reason says how many messages it has got before. (If the signal ended the process, the node might
%% hang: see docs/reference/otp-defects.md.)
worker() ->
    {Starter, Ref} = {self(), make_ref()},
    Worker = spawn(fun() ->
                           process_flag(trap_exit, true),
                           Starter ! Ref,
                           worker(0)
                   end),
    receive Ref -> Worker end.

worker(Got) ->
    receive
        another ->
            worker(Got + 1);
        {'EXIT', _, {told, _}} ->
            exit({told, Got});
        {die, To, Messages, Reason} ->
            lists:foreach(fun(N) -> trunkline:send(To, {worker, self(), N}) end,
                          lists:seq(1, Messages)),
            exit(Reason)
    after ?STUCK -> exit(idle)
    end.

%% An exit signal comes behind the messages before it.
end_it(Worker, S) ->
    Theirs = erlang:monitor(process, Worker),
    Ours = trunkline:monitor(process, Worker),
    Messages = rand:uniform(20),
    lists:foreach(fun(_) -> trunkline:send(Worker, another) end, lists:seq(1, Messages)),
    await_end(Worker, {Ours, Theirs}, Messages, erlang:monotonic_time(millisecond) + ?STUCK,
              count_one(S)).

await_end(Worker, {Ours, Theirs} = Refs, Messages, Deadline, S) ->
    true = trunkline:exit(Worker, {told, Messages}),
    receive
        {'DOWN', Ours, process, Worker, Reason} ->
            Expected = receive {'DOWN', Theirs, process, Worker, Why} -> Why
                       after 10_000 -> demonitor(Theirs, [flush]), none
                       end,
            case Reason of
                {told, Got} when Got < Messages ->
                    down(Reason, Expected, Worker, 0,
                         odd({exit_before, Messages - Got, Worker}, S));
                _ ->
                    down(Reason, Expected, Worker, 0, S)
            end
    after ?ASK_AGAIN ->
            %% The signal may be lost.
            case erlang:monotonic_time(millisecond) > Deadline of
                true ->
                    demonitor(Theirs, [flush]),
                    trunkline:demonitor(Ours, [flush]),
                    odd({no_down, Worker, Messages, exit}, S);
                false ->
                    await_end(Worker, Refs, Messages, Deadline, S)
            end
    end.

%% It must end for us as it ends for OTP's own monitor: for `noconnection' only if it does there.
watch(Worker, S) ->
    Theirs = erlang:monitor(process, Worker),
    Ours = trunkline:monitor(process, Worker),
    case rand:uniform(8) of
        1 ->
            true = trunkline:demonitor(Ours, [flush]),
            exit(Worker, kill),
            receive {'DOWN', Theirs, process, Worker, _} -> drop(Ours, S) end;
        _ ->
            Messages = rand:uniform(5),
            ask(Worker, Messages),
            Deadline = erlang:monotonic_time(millisecond) + ?STUCK,
            await_down(Worker, {Ours, Theirs}, Messages, Messages, Deadline, count_one(S))
    end.

ask(Worker, Messages) -> trunkline:send(Worker, {die, self(), Messages, {told, Messages}}).

drop(Ours, S) ->
    receive
        {'DOWN', Ours, process, _, Reason} -> odd({down_after_flush, Reason}, S)
    after 0 -> S
    end.

await_down(Worker, {Ours, Theirs} = Refs, All, Missing, Deadline, S) ->
    receive
        {worker, Worker, _} ->
            await_down(Worker, Refs, All, Missing - 1, Deadline, S);
        {'DOWN', Ours, process, Worker, Reason} ->
            receive
                {'DOWN', Theirs, process, Worker, Expected} ->
                    down(Reason, Expected, Worker, Missing, S)
            after 10_000 ->
                    demonitor(Theirs, [flush]),
                    odd({false_down, Reason, node(Worker)}, S)
            end
    after ?ASK_AGAIN ->
            %% It may not have been told, or what it said may be lost.
            case erlang:monotonic_time(millisecond) > Deadline of
                true ->
                    Expected = receive {'DOWN', Theirs, _, _, Why} -> Why after 0 -> none end,
                    demonitor(Theirs, [flush]),
                    trunkline:demonitor(Ours, [flush]),
                    odd({no_down, Worker, Missing, Expected}, S);
                false ->
                    ask(Worker, All),
                    await_down(Worker, Refs, All, Missing, Deadline, S)
            end
    end.

down({told, _}, {told, _}, Worker, Missing, S) when Missing > 0 ->
    odd({down_before, Missing, Worker}, S);
down(Reason, Reason, _, _, S) -> S;
down(noproc, noconnection, _, _, S) -> S;
down({told, _}, noconnection, _, _, S) -> S;
%% What goes by connections of their own may overtake OTP's monitor.
down({told, _}, noproc, _, _, S) -> S;
down(noconnection, noproc, _, _, S) -> S;
down(Reason, Expected, Worker, _, S) -> odd({false_down, Reason, Expected, node(Worker)}, S).
