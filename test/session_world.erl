%% Two peers, a and b, without a process or a node: each has a session (trunkline_session), and
%% what a link does around it is done symbolically. The world is played step by step, and every
%% queue in it can take its time:
%%
%%     sender ── gate ──> lane ══ batch ══╗              ╔══> inlet ──> what b has got
%%                          ^            wire (a to b)   ║
%%     link <── mailbox     │             ║              ╠══> trunkline_links ──> link
%%       └──> speaker ──────┼─────────────╝              ╠══> news of monitors ─> link
%%                                                       ╚══> link, by its mailbox
%%
%% A wire keeps the order, breaks with what is on it, and tells both ends of that behind what has
%% arrived. News that a process has ended comes behind what it has sent. Lanes keep messages in
%% lists; a batch is one message, and its acknowledgement is one too. What a lane has not seen
%% acknowledged it keeps, and sends again when its session is resumed.
%%
%% A connection that breaks loses nothing if both peers are in a session that may outlive it. What
%% else a break may cost is in bad/1 and hasty/1.
%%
%% run/2 plays a history: commands, which are faults and whatever users do, and `{go, Ns}', which
%% lets some of the queues go on, by their numbers. Then it lets all of them go on until nothing is
%% left to do, and looks at how things stand. It raises an exception as soon as something is not as
%% promised.
-module(session_world).

-export([run/2]).

-define(PEERS, [a, b]).
-define(SENDERS, [1, 2, 3]).
-define(OTHER(X), case X of a -> b; b -> a end).

%% A process is {Kind, Peer, Number}.
-record(lane, {mode = hold, to = none, backlog = [], flight = [], serial = 1, drain = none,
               asked = none, mailbox = []}).
-record(inlet, {lane, next = 1, finishing = false, mailbox = []}).
-record(link, {session, connection = none, mailbox = [], speech = [], news = [], watched = #{},
               order = none,
               lanes = [], inlets = [], finishing = [], timers = [], is_patient = false,
               room = [], knows = none,
               is_late = false,              % somebody has not waited for a drain
               is_down = false,              % it has been told that there is no connection
               was_up = false}).             % in this session
-record(peer, {life = 1,                     % incarnation
               app = running,                % stopping, stopped
               release = new,
               is_full = false,
               sees = none,                  % the connection, as net_kernel does, and
               other = none,                 % the other's incarnation
               connecting = [],              % watches that wait for a connection
               links = [],                   % the mailbox of trunkline_links
               pid = none, link = none,      % the link
               route = none, shape = none,   % {Path, Lanes}
               row = none,                   % the state that the link has shown
               lanes = #{}, inlets = #{},
               watches = #{},                % our monitors: Ref => link
               watched = [],                 % theirs: {Ref, object}
               senders = #{},                % number => {last, waiting message or none}
               answers = [], asked = 0}).
-record(world, {peers, wire = #{a => [], b => []},        % to that peer
                connection = none, next = 1,
                held = [],                   % what does not go on for a while
                got = #{}, sent = #{},           % by senders
                is_good = true,              % nothing may be lost
                is_hasty = false}).          % somebody did not wait: order is not promised

%% --- a history ------------------------------------------------------------

%% Both peers are of some release.
run({ReleaseA, ReleaseB}, Commands) ->
    W = connect(#world{peers = #{a => #peer{release = ReleaseA}, b => #peer{release = ReleaseB}}}),
    Connected = lists:foldl(fun(X, W1) -> act({wire, X}, W1) end, W, ?PEERS),
    settled(lists:foldl(fun command/2, Connected, Commands)).

command({go, Ns}, W) ->
    lists:foldl(fun one_goes/2, W, Ns);
command({send, X, I}, W) ->
    send(X, I, W);
command({stop, X}, W) ->
    case peer(X, W) of
        #peer{app = running, pid = dead} = P ->
            put_peer(X, P#peer{app = stopping}, W);      % it is started again, and then leaves
        #peer{app = running, link = none} = P ->
            stopped(X, put_peer(X, P#peer{app = stopping, route = none}, W));
        #peer{app = running} = P ->
            mail(X, leave, put_peer(X, P#peer{app = stopping}, leaves(X, W)));
        _ ->
            W
    end;
command({start, X}, W) ->
    case peer(X, W) of
        #peer{app = stopped} = P -> look(X, put_peer(X, P#peer{app = running}, W));
        _ -> W
    end;
command({drain, X}, W) ->
    case peer(X, W) of
        #peer{app = running, link = #link{}, sees = C, asked = Asked} = P when C =/= none ->
            mail(X, {drain, make_ref()},
                 put_peer(X, P#peer{asked = Asked + 1}, leaves(X, W)));
        %% It gets an answer, or hears of the end of the link.
        #peer{app = stopping, link = #link{}, sees = C, asked = Asked} = P when C =/= none ->
            mail(X, {drain, make_ref()}, put_peer(X, P#peer{asked = Asked + 1}, W));
        _ ->
            W
    end;
command({full, X}, W) ->
    change(X, fun(#peer{is_full = IsFull} = P) -> P#peer{is_full = not IsFull} end, W);
command({hold, Kind, X}, #world{held = Held} = W) ->
    W#world{held = case lists:member({Kind, X}, Held) of
                       true -> lists:delete({Kind, X}, Held);
                       false -> [{Kind, X} | Held]
                   end};
command({again, X}, W) ->                    % its trunkline_links was killed
    case peer(X, W) of
        #peer{app = running} = P -> look(X, put_peer(X, P#peer{links = []}, W));
        _ -> W
    end;
command({late, X}, W) ->                     % for those who drain
    case peer(X, W) of
        #peer{app = running, link = #link{is_patient = true}} ->
            IsLate = fun(L) -> L#link{is_late = true, is_patient = false} end,
            step(X, stalled, change_link(X, IsLate, W));
        _ ->
            W
    end;
%% From here on all is allowed to lose messages.
command({unreachable, X}, W) ->
    #peer{connecting = Connecting} = P = peer(X, W),
    lists:foldl(fun({Ref, _}, W1) -> news(X, Ref, noconnection, W1) end,
                put_peer(X, P#peer{connecting = []}, bad(W)), Connecting);
command(connect, W) ->
    connect(W);
command({break, Keep}, W) ->
    break(Keep, case is_lasting(W) of
                    true -> W;
                    false -> bad(W)
                end);
command({expire, X}, W) ->
    case peer(X, W) of
        #peer{link = #link{timers = Timers}} ->
            case lists:member(resume, Timers) of
                true -> fire(X, resume, bad(W));
                false -> W
            end;
        _ ->
            W
    end;
command({gone, X}, W) ->
    case phase(peer(X, W)) of
        suspended -> step(X, gone, bad(W));
        _ -> W
    end;
command({crash, X}, W) ->
    crash(X, bad(W));
command({kill, X, Release}, W) ->
    kill(X, Release, bad(W));
command({stall, X}, W) ->
    case peer(X, W) of
        #peer{app = stopping, link = #link{is_patient = true}} -> step(X, stalled, hasty(W));
        _ -> command({late, X}, W)
    end.

one_goes(N, W) ->
    case actions(W) of
        [] -> W;
        Actions -> act(lists:nth(N rem length(Actions) + 1, Actions), W)
    end.

bad(W) -> W#world{is_good = false}.
hasty(W) -> W#world{is_good = false, is_hasty = true}.

%% Whether nothing is lost if the connection breaks now: both are in the same session, which may
%% outlive it, and nobody leaves.
is_lasting(#world{connection = none}) ->
    true;
is_lasting(W) ->
    %% That both know each other's link does not mean that they know of the same session yet. Who
    %% has been up knows.
    lists:any(fun(X) -> was_up(peer(X, W)) end, ?PEERS)
        andalso lists:all(fun(X) -> is_lasting(peer(X, W), peer(?OTHER(X), W)) end, ?PEERS).

is_late(#peer{link = #link{is_late = IsLate}}) -> IsLate;
is_late(_) -> false.

was_up(#peer{link = #link{was_up = WasUp}}) -> WasUp;
was_up(_) -> false.

is_lasting(#peer{app = running, asked = N, answers = Answers, pid = Pid,
                 link = #link{session = S, is_late = false}},
           #peer{link = #link{session = Theirs}})
  when length(Answers) =:= N ->
    case trunkline_session:agreement(S) of
        #{resume_time := Time} when Time > 0 ->
            trunkline_session:peer(Theirs) =:= Pid
                andalso lists:member(trunkline_session:phase(S), [opening, up, suspended]);
        _ ->
            false
    end;
is_lasting(_, _) ->
    false.

%% Who leaves before it has heard that the connection is lost has lost it.
leaves(X, #world{wire = Wire} = W) ->
    #peer{sees = C, links = Links, link = #link{mailbox = Mailbox, news = News}} = peer(X, W),
    case C =:= W#world.connection
        andalso [I || I <- maps:get(X, Wire), lists:member(element(1, I), [up, broken])]
        ++ [M || M <- Links ++ Mailbox, M =:= nodedown orelse element(1, M) =:= nodeup]
        ++ [M || {'DOWN', _, noconnection} = M <- News ++ Mailbox] of
        [] -> W;
        _ -> bad(W)
    end.

%% Who stops while there is no connection cannot wait for what the other has not delivered yet.
out_of_touch(W) -> hasty(W).

%% A link hears that the connection was lost, which it may do after it was told to stop.
lost(X, W) ->
    case peer(X, W) of
        #peer{app = stopping} -> out_of_touch(W);
        _ -> W
    end.

%% Whatever can go on goes on, until nothing can.
settled(W0) ->
    W1 = lists:foldl(fun(X, W) -> change(X, fun(P) -> P#peer{is_full = false} end, W) end,
                     W0, ?PEERS),
    W2 = quiet(20_000, W1#world{held = []}),
    ok = at_rest(W2),
    W3 = quiet(20_000, connect(W2)),
    ok = at_rest(W3),
    agreed(W3).

quiet(0, W) ->
    error({no_rest, actions(W)});
quiet(N, W) ->
    case actions(W) of
        [] ->
            case lasts(W) of
                [] -> W;
                Lasts when W#world.is_good -> error({waits_in_vain, Lasts});
                [Last | _] -> quiet(N - 1, command(Last, W))
            end;
        Actions ->
            quiet(N - 1, act(lists:nth(N * 7919 rem length(Actions) + 1, Actions), W))
    end.

%% --- how things must be -----------------------------------------------------

at_rest(#world{is_good = IsGood, sent = Sent, got = Got} = W) ->
    lists:foreach(
      fun(X) ->
              #peer{senders = Senders, lanes = Lanes, app = App, answers = Answers, asked = Asked} =
                  peer(X, W),
              [error({still_waits, X, I})
               || {I, {_, Waiting}} <- maps:to_list(Senders), Waiting =/= none],
              [error({left_in_lane, X, Id, L})
               || {Id, L} <- maps:to_list(Lanes),
                  L#lane.backlog =/= [] orelse L#lane.mailbox =/= []],
              App =:= stopping andalso error({does_not_stop, X}),
              length(Answers) =:= Asked orelse error({no_answer, X, Answers, Asked}),
              [error({not_drained, X, Why}) || IsGood, Why <- Answers, Why =/= ok,
                                               Why =/= timeout orelse not is_late(peer(X, W))]
      end, ?PEERS),
    [error({lost, Key, N, length(maps:get(Key, Got, []))})
     || IsGood, {Key, N} <- maps:to_list(Sent), length(maps:get(Key, Got, [])) =/= N],
    ok.

%% With a connection: both have lanes, or neither has, and one of them has given them up.
agreed(W) ->
    [A, B] = Both = [phase(peer(X, W)) || X <- ?PEERS],
    case Both of
        [up, up] -> ok;
        [stopped, _] when B =:= stopped; B =:= greeting -> ok;
        [greeting, stopped] -> ok;
        [drained, _] when B =:= greeting; B =:= drained -> ok;
        [greeting, drained] -> ok;
        [greeting, greeting] -> [_ | _] = [X || X <- ?PEERS, (peer(X, W))#peer.release =:= '0.4.0'];
        _ -> error({do_not_agree, A, B})
    end,
    [error({sends_to_nobody, X, Id})
     || Both =:= [up, up], X <- ?PEERS,
        #peer{link = #link{lanes = Ids}, lanes = Lanes} <- [peer(X, W)],
        Id <- Ids, #lane{to = To} <- [maps:get(Id, Lanes)],
        not lists:member(To, (peer(?OTHER(X), W))#peer.link#link.inlets)],
    case [maps:remove(release, trunkline_session:agreement((peer(X, W))#peer.link#link.session))
          || X <- ?PEERS, Both =:= [up, up]] of
        [] -> ok;
        [Agreement, Agreement] -> ok
    end.

phase(#peer{link = none}) -> stopped;
phase(#peer{link = #link{session = S}}) -> trunkline_session:phase(S).

%% --- what can go on -----------------------------------------------------------

actions(#world{wire = Wire, held = Held} = W) ->
    All = [{wire, X} || X <- ?PEERS, maps:get(X, Wire) =/= []]
        ++ lists:append([actions(X, peer(X, W)) || X <- ?PEERS]),
    [Action || Action <- All, not lists:member({element(1, Action), element(2, Action)}, Held)].

actions(X, #peer{link = Link, lanes = Lanes, inlets = Inlets, connecting = Connecting} = P) ->
    [{links, X} || P#peer.links =/= []]
        ++ case Link of
        none when P#peer.app =/= stopped, P#peer.pid =:= dead -> [{restart, X}];
        none -> [];
        #link{mailbox = Mailbox, speech = Speech, news = News, timers = Timers} ->
            [{link, X} || Mailbox =/= []] ++ [{speaker, X} || Speech =/= []]
                ++ [{news, X} || News =/= []]
                ++ [{timer, X, Name} || Name <- Timers, Name =:= retry orelse Name =:= connect]
    end
        ++ [{lane, X, Id} || {Id, #lane{mailbox = [_ | _]}} <- lists:sort(maps:to_list(Lanes))]
        ++ [{inlet, X, Id} || {Id, I} <- lists:sort(maps:to_list(Inlets)),
                              I#inlet.mailbox =/= [] orelse I#inlet.finishing]
        ++ [{connect, X} || Connecting =/= []].

%% What only the end of patience would end.
lasts(W) ->
    [{stall, X} || X <- ?PEERS, #link{is_patient = true} <- [(peer(X, W))#peer.link]].

act({wire, X}, #world{wire = Wire} = W) ->
    [Item | Items] = maps:get(X, Wire),
    arrives(Item, X, W#world{wire = Wire#{X := Items}});
act({restart, X}, W) ->
    #peer{senders = Senders, app = App} = peer(X, W),
    W1 = try_again(X, maps:keys(Senders), start_link(X, W)),
    case App of
        stopping -> mail(X, leave, W1);
        running -> W1
    end;
act({links, X}, W) ->
    #peer{app = App, links = [Event | Links]} = P = peer(X, W),
    W1 = put_peer(X, P#peer{links = Links}, W),
    case App of
        running -> ensure(X, Event, W1);
        stopping -> mail(X, Event, W1)
    end;
act({link, X}, W) ->
    #peer{link = #link{mailbox = [Message | Mailbox]}} = peer(X, W),
    message(Message, X, change_link(X, fun(L) -> L#link{mailbox = Mailbox} end, W));
act({news, X}, W) ->
    #peer{link = #link{news = [Message | News]}} = peer(X, W),
    mail(X, Message, change_link(X, fun(L) -> L#link{news = News} end, W));
act({speaker, X}, W) ->
    #peer{link = #link{speech = [Said | Speech]}} = peer(X, W),
    speak(Said, X, change_link(X, fun(L) -> L#link{speech = Speech} end, W));
act({timer, X, Name}, W) ->
    fire(X, Name, W);
act({lane, X, Id}, W) ->
    #lane{mailbox = [Item | Mailbox]} = get_lane(X, Id, W),
    lane(Item, X, Id, change_lane(X, Id, fun(L) -> L#lane{mailbox = Mailbox} end, W));
act({inlet, X, Id}, W) ->
    inlet(X, Id, W);
act({connect, X}, W) ->
    P = peer(X, W),
    Refs = P#peer.connecting,
    W1 = connect(put_peer(X, P#peer{connecting = []}, W)),
    lists:foldl(fun({Ref, Object}, W2) -> put_on(?OTHER(X), {watch, Ref, Object}, W2) end,
                W1, Refs).

fire(X, Name, W) ->
    Fired = fun(#link{timers = Timers} = L) -> L#link{timers = lists:delete(Name, Timers)} end,
    step(X, {timeout, Name}, change_link(X, Fired, W)).

%% --- the connection -----------------------------------------------------------

connect(#world{connection = none, next = C} = W) ->
    lists:foldl(fun(X, W1) ->
                        #peer{life = Life} = peer(?OTHER(X), W1),
                        put_on(X, {up, C, Life}, W1)
                end, W#world{connection = C, next = C + 1}, ?PEERS);
connect(W) ->
    W.

%% So many items on each wire still arrive.
break(_, #world{connection = none} = W) ->
    W;
break(Keep, #world{connection = C, wire = Wire} = W) ->
    %% That it was there is known in any case.
    Cut = fun(_, Items) ->
                  IsBefore = fun(Item) -> element(1, Item) =/= up end,
                  {Before, Now} = case lists:splitwith(IsBefore, Items) of
                                      {_, []} -> {[], Items};
                                      {Others, [Up | Rest]} -> {Others ++ [Up], Rest}
                                  end,
                  Before ++ lists:sublist(Now, Keep) ++ [{broken, C}]
          end,
    W1 = W#world{connection = none, wire = maps:map(Cut, Wire),
                 is_good = W#world.is_good
                     andalso not lists:any(fun(Items) -> lists:keymember(plain, 1, Items) end,
                                           maps:values(Wire))},
    lists:foldl(fun(X, W2) -> change(X, fun(P) -> P#peer{watched = []} end, W2) end, W1, ?PEERS).

put_on(X, Item, #world{wire = Wire} = W) ->
    W#world{wire = Wire#{X := maps:get(X, Wire) ++ [Item]}}.

%% From X to the other peer, if there is the connection that X sees.
transmit(X, Item, #world{connection = C} = W) ->
    case peer(X, W) of
        #peer{sees = C} when C =/= none -> put_on(?OTHER(X), Item, W);
        _ when element(1, Item) =:= plain -> bad(W);
        _ -> W
    end.

is_connected(X, #world{connection = C} = W) -> C =/= none andalso (peer(X, W))#peer.sees =:= C.

arrives({up, C, Life}, X, W) ->
    to_links(X, {nodeup, C, Life}, change(X, fun(P) -> P#peer{sees = C, other = Life} end, W));
arrives({broken, _}, X, W0) ->
    #peer{watches = Watches, app = App} = P = peer(X, W0),
    W = case App of
            stopping -> out_of_touch(W0);
            _ -> W0
        end,
    W1 = put_peer(X, P#peer{sees = none, watches = #{}}, W),
    lists:foldl(fun(Ref, W2) -> news(X, Ref, noconnection, W2) end, to_links(X, nodedown, W1),
                lists:sort(maps:keys(Watches)));
arrives({to, links, Event}, X, W) ->
    to_links(X, {event, Event}, W);
arrives({to, Pid, Event}, X, W) ->
    case peer(X, W) of
        #peer{pid = Pid} -> mail(X, {event, Event}, W);
        _ -> W
    end;
arrives({watch, Ref, Object}, X, W) ->
    #peer{watched = Watched} = P = peer(X, W),
    case is_there(Object, P) of
        true -> put_peer(X, P#peer{watched = [{Ref, Object} | Watched]}, W);
        false -> transmit(X, {'DOWN', Ref, noproc}, W)
    end;
arrives({'DOWN', Ref, Reason}, X, W) ->
    #peer{watches = Watches} = P = peer(X, W),
    case maps:take(Ref, Watches) of
        {_, Watches1} ->
            news(X, Ref, Reason, put_peer(X, P#peer{watches = Watches1}, W));
        error ->
            W
    end;
arrives({batch, Inlet, Batch}, X, W) ->
    #peer{inlets = Inlets} = peer(X, W),
    case Inlets of
        #{Inlet := #inlet{mailbox = Mailbox} = I} ->
            put_inlets(X, Inlets#{Inlet := I#inlet{mailbox = Mailbox ++ [Batch]}}, W);
        #{} ->
            W
    end;
arrives({ack, Lane, Inlet, Serial}, X, W) ->
    to_lane(X, Lane, {ack, Inlet, Serial}, W);
arrives({resumed, Lane, Ref, Expects}, X, W) ->
    to_lane(X, Lane, {resumed, Ref, Expects}, W);
arrives({plain, Message}, X, W) ->
    got(X, Message, W).

is_there(supervisor, #peer{app = App}) -> App =/= stopped;
is_there(nobody, _) -> false;
is_there(Pid, #peer{pid = Pid}) -> true;
is_there(_, _) -> false.

%% Those who watch them hear of it.
ended(X, Objects, Reason, W) ->
    #peer{watched = Watched} = P = peer(X, W),
    {Told, Left} = lists:partition(fun({_, Object}) -> lists:member(Object, Objects) end, Watched),
    lists:foldl(fun({Ref, _}, W1) -> transmit(X, {'DOWN', Ref, Reason}, W1) end,
                put_peer(X, P#peer{watched = Left}, W), lists:reverse(Told)).

%% --- nodes and links ------------------------------------------------------------

to_links(X, Event, W) ->
    case peer(X, W) of
        #peer{app = stopped} -> W;
        #peer{links = Links} = P -> put_peer(X, P#peer{links = Links ++ [Event]}, W)
    end.

%% trunkline_links passes something to the link, and starts one if there is none.
ensure(X, Event, W) ->
    case peer(X, W) of
        #peer{app = running, link = none, pid = Pid} when Pid =/= dead ->
            mail(X, Event, start_link(X, W));
        _ ->
            mail(X, Event, W)
    end.

%% trunkline_links, which has just been started, tells the link how things stand.
look(X, W) ->
    case peer(X, W) of
        #peer{sees = none} -> mail(X, nodedown, W);
        #peer{sees = C, other = Life} -> ensure(X, {nodeup, C, Life}, W)
    end.

start_link(X, W) ->
    #peer{route = Route, shape = Shape, row = Row, sees = C, other = Knows, release = Release} =
        peer(X, W),
    {Pid, W1} = new(link, X, W),
    Node = if C =:= none -> down;
              Row =:= drained -> {drained, C, true};
              true -> {connected, C, true}
           end,
    %% The lanes of the link before are dead.
    {Lanes, W2} = case Route of
                      {_, Old} when Row =/= drained; C =:= none -> new_lanes(X, length(Old), W1);
                      _ -> {[], W1}
                  end,
    W3 = change(X, fun(P) ->
                           P#peer{pid = Pid,
                                  route = case Lanes of
                                              [] -> none;
                                              _ -> {wait, Lanes}
                                          end}
                   end, W2),
    Hello = hello(Release),
    {Session, Effects} =
        trunkline_session:new(#{link => Pid, hello => Hello,
                                large_bytes => 65536, node => Node,
                                lanes => case Lanes of
                                             [] -> none;
                                             _ -> {Shape, Lanes}
                                         end,
                                capabilities => [], has_met => Row =/= none}),
    L = #link{session = Session, lanes = Lanes, knows = Knows},
    carried_out(X, Effects, change(X, fun(P) -> P#peer{link = L} end, W3)).

new_lanes(X, N, W) ->
    {Ids, W1} = lists:mapfoldl(fun(_, W0) -> new(lane, X, W0) end, W, lists:seq(1, N)),
    New = maps:from_list([{Id, #lane{}} || Id <- Ids]),
    Add = fun(#peer{lanes = Lanes} = P) -> P#peer{lanes = maps:merge(Lanes, New)} end,
    {Ids, change(X, Add, W1)}.

hello(Release) ->
    All = [request, large, multicast, apply, label, monitor, drain],
    {N, Capabilities} = case Release of
                            wide -> {3, [v1 | All]};
                            '0.5.0' -> {2, All};
                            %% It agrees to less than the others need.
                            '0.4.0' -> {3, [request, large, multicast]};
                            _ -> {2, [v1 | All]}
                        end,
    Lasting = case Release of
                  new -> #{resume_time => 2000};
                  wide -> #{resume_time => 1000};
                  brief -> #{resume_time => 0};
                  _ -> #{}
              end,
    Lasting#{protocol => {2, 2}, capabilities => Capabilities, lanes => N, window_bytes => 1000,
      bulk_bytes => 1000 * N, release => atom_to_list(Release)}.

%% The link is killed, and with it its lanes, and the inlets.
crash(X, W) ->
    case peer(X, W) of
        #peer{link = none} ->
            W;
        #peer{pid = Pid, link = L} = P ->
            P1 = without_link(P, L),
            W1 = ended(X, [Pid], killed, put_peer(X, P1#peer{pid = dead}, W)),
            try_again(X, maps:keys(P#peer.senders), W1)
    end.

without_link(#peer{lanes = Lanes, inlets = Inlets} = P, L) ->
    P#peer{link = none, lanes = maps:without(L#link.lanes, Lanes),
           inlets = maps:without(L#link.inlets ++ L#link.finishing, Inlets),
           %% Whoever has asked sees that it ends.
           watches = #{}, connecting = [], answers = [], asked = 0}.

%% The node comes back at once as another incarnation, with that release, or without Trunkline.
kill(X, Release, W) ->
    W1 = break(0, W),
    #peer{life = Life} = peer(X, W1),
    %% Its mail is lost with it. The other side hears of the end.
    P = #peer{life = Life + 1},
    P1 = case Release of
             none -> P#peer{app = stopped};
             _ -> P#peer{release = Release}
         end,
    W2 = put_peer(X, P1, W1),
    W2#world{wire = (W2#world.wire)#{X := []}}.

%% Trunkline is stopped there.
stopped(X, W) ->
    #peer{senders = Senders} = peer(X, W),
    W1 = change(X, fun(P) -> P#peer{app = stopped, row = none, pid = none, links = []} end, W),
    try_again(X, maps:keys(Senders), ended(X, [supervisor], shutdown, W1)).

%% --- a link ---------------------------------------------------------------------

mail(X, Message, W) ->
    case peer(X, W) of
        #peer{link = none} ->
            W;
        _ ->
            change_link(X, fun(#link{mailbox = Mailbox} = L) ->
                                   L#link{mailbox = Mailbox ++ [Message]}
                           end, W)
    end.

%% That a monitor has fired is told by the speaker, which may take its time.
news(X, Ref, Reason, W) ->
    case peer(X, W) of
        #peer{link = none} ->
            W;
        _ ->
            change_link(X, fun(#link{news = News} = L) ->
                                   L#link{news = News ++ [{'DOWN', Ref, Reason}]}
                           end, W)
    end.

message({nodeup, C, Life}, X, W) ->
    step(X, {nodeup, C, true}, change_link(X, fun(L) -> L#link{knows = Life} end, lost(X, W)));
message(leave, X, W) ->
    W1 = case phase(peer(X, W)) of
             down -> out_of_touch(W);
             _ -> W
         end,
    case not_empty(X, W) of
        [] -> step(X, stop, W1);
        _ -> step(X, stop, step(X, connect, W1))
    end;
message({event, {opened, Ref, Inlets}}, X, W) ->
    step(X, {opened, Ref, Inlets, none}, W);
message({event, Event}, X, W) ->
    step(X, Event, W);
message({'DOWN', Ref, Reason}, X, W) ->
    #peer{link = #link{watched = Watched}} = peer(X, W),
    case [Role || {Role, R} <- maps:to_list(Watched), R =:= Ref] of
        [Role] when Reason =:= noconnection ->
            step(X, {down, Role, Reason}, not_watched(X, Role, lost(X, W)));
        [Role] ->
            step(X, {down, Role, Reason}, not_watched(X, Role, W));
        [] -> W
    end;
message({ready, Ref, Lane}, X, W) ->
    case (peer(X, W))#peer.link of
        #link{order = {Ref, [Lane]}} ->
            step(X, lanes_ready, change_link(X, fun(L) -> L#link{order = none} end, W));
        #link{order = {Ref, Lanes}} ->
            Left = lists:delete(Lane, Lanes),
            change_link(X, fun(L) -> L#link{order = {Ref, Left}} end, W);
        _ ->
            W
    end;
message({finished, Inlet}, X, W) ->
    #peer{link = #link{finishing = Finishing}} = peer(X, W),
    W1 = change_link(X, fun(L) -> L#link{finishing = lists:delete(Inlet, Finishing)} end, W),
    case Finishing of
        [Inlet] -> step(X, finished, W1);
        _ -> W1
    end;
message({wait, I}, X, W) ->
    case peer(X, W) of
        #peer{route = {wait, _}} ->
            change_link(X, fun(#link{room = Room} = L) -> L#link{room = [I | Room]} end, W);
        _ ->
            try_again(X, [I], W)
    end;
message(Event, X, W) ->
    step(X, Event, W).

step(X, Event, W) ->
    #peer{link = #link{session = Before}} = peer(X, W),
    {Session, Effects} = trunkline_session:step(Event, Before),
    carried_out(X, Effects, change_link(X, fun(L) -> L#link{session = Session} end, W)).

watched(X, Role, Ref, W) ->
    change_link(X, fun(#link{watched = Watched} = L) -> L#link{watched = Watched#{Role => Ref}} end,
                W).

not_watched(X, Role, W) ->
    change_link(X, fun(#link{watched = Watched} = L) ->
                           L#link{watched = maps:remove(Role, Watched)}
                   end, W).

%% Our lanes that have something.
not_empty(X, W) ->
    #peer{link = #link{lanes = Ids}, lanes = Lanes} = peer(X, W),
    [Id || Id <- Ids, #lane{backlog = Backlog, mailbox = Mailbox} <- [maps:get(Id, Lanes)],
           Backlog =/= [] orelse Mailbox =/= []].

carried_out(X, Effects, W) ->
    {Events, W1} = lists:foldl(fun(Effect, {Es, W0}) ->
                                       case effect(Effect, X, W0) of
                                           {Event, W2} -> {Es ++ [Event], W2};
                                           W2 -> {Es, W2}
                                       end
                               end, {[], W}, Effects),
    case {Events, (peer(X, W1))#peer.link} of
        {[Event], _} ->
            step(X, Event, W1);
        {[], #link{session = S}} ->
            case trunkline_session:phase(S) of
                ended -> ends(X, W1);
                _ -> none_waits_in_vain(X, W1)
            end;
        {[], none} ->
            W1
    end.

%% Senders wait as long as the path is `wait'.
none_waits_in_vain(X, W) ->
    case peer(X, W) of
        #peer{route = {Path, _}, link = #link{room = [_ | _]}} when Path =/= wait ->
            error({waiting, X, Path});
        _ ->
            W
    end.

effect({connection, Name}, X, W) ->
    change_link(X, fun(L) -> L#link{connection = Name} end, W);
effect({Nothing, _}, _, W) when Nothing =:= count ->
    W;
effect(ask_if_gone, _, W) ->
    W;                                       % see the command gone
effect({say, _, _} = Say, X, W) ->
    said(X, Say, W);
effect({watch, Role, Whom}, X, W) ->
    Ref = make_ref(),
    said(X, {watch, Ref, Whom}, watched(X, Role, Ref, W));
effect({connect, Role}, X, W) ->
    Ref = make_ref(),
    said(X, {connect, Ref}, watched(X, Role, Ref, W));
effect({unwatch, Role}, X, W) ->
    not_watched(X, Role, W);
effect({path, Path}, X, W) ->
    change(X, fun(#peer{route = {_, Lanes}} = P) -> P#peer{route = {Path, Lanes}} end, W);
effect({order, Order}, X, W0) ->
    #peer{link = #link{lanes = [_ | _] = Lanes}} = peer(X, W0),
    W = case Order of
            {send, _, _, _} -> change_link(X, fun(L) -> L#link{was_up = true} end, W0);
            {absent, _} -> change_link(X, fun(L) -> L#link{is_down = true} end, W0);
            _ -> W0
        end,
    Ref = make_ref(),
    Item = fun(Ix) ->
                   case Order of
                       drain -> {drain, Ref};
                       {send, Inlets, _, _} -> {mode, Ref, {send, lists:nth(Ix, Inlets)}};
                       {absent, _} -> {mode, Ref, absent};
                       Mode -> {mode, Ref, Mode}
                   end
           end,
    lists:foldl(fun({Ix, Lane}, W1) -> to_lane(X, Lane, Item(Ix), W1) end,
                change_link(X, fun(L) -> L#link{order = {Ref, Lanes}} end, W),
                lists:enumerate(Lanes));
effect({start, What}, X, W) ->
    case peer(X, W) of
        #peer{is_full = true} -> {system_limit, W};
        _ -> start(What, X, W)
    end;
effect({end_session, _}, X, W) ->
    #peer{link = #link{inlets = Ended, finishing = Finishing}} = peer(X, W),
    change(X, fun(#peer{inlets = Inlets} = P) ->
                      Finish = fun(Id, I) ->
                                       I#inlet{finishing = lists:member(Id, Ended ++ Finishing)}
                               end,
                      P#peer{inlets = maps:map(Finish, Inlets)}
              end,
           change_link(X, fun(L) ->
                                  L#link{inlets = [], finishing = Ended ++ Finishing,
                                         was_up = false}
                          end, W));
effect({dismiss, Answer}, X, W) ->
    #peer{link = #link{room = Room}} = peer(X, W),
    W1 = change_link(X, fun(L) -> L#link{room = []} end, W),
    case Answer of
        again -> try_again(X, Room, W1);
        {gone, _} -> lists:foldl(fun(I, W2) -> waits(X, I, none, W2) end, W1, Room)
    end;
effect({enter, Phase}, X, W0) ->
    W = case lists:member(Phase, [greeting, holding, opening]) of
            true -> change_link(X, fun(L) -> L#link{is_down = false} end, W0);
            false -> W0
        end,
    change(X, fun(P) -> P#peer{row = Phase} end, W);
effect({patience, What}, X, W) ->
    change_link(X, fun(L) -> L#link{is_patient = What =:= start} end, W);
effect({timer, Name, _}, _, W) when Name =:= forget; Name =:= settled ->
    W;
effect({timer, Name, _}, X, W) ->
    change_link(X, fun(#link{timers = Timers} = L) ->
                           L#link{timers = [Name | lists:delete(Name, Timers)]}
                   end, W);
effect({answer, _, Result}, X, W) ->
    #peer{link = #link{is_down = IsDown}} = peer(X, W),
    IsDown andalso Result =:= ok andalso error({has_not_drained, X}),
    change(X, fun(#peer{answers = Answers} = P) -> P#peer{answers = [Result | Answers]} end, W);
effect({refused, incompatible, _}, _, W) ->
    W;
effect(stop, _, W) ->
    W.

start({lanes, {N, _, _} = Shape}, X, W) ->
    [error({lanes_not_empty, X, Ids}) || [_ | _] = Ids <- [not_empty(X, W)]],
    #peer{link = #link{lanes = Old}} = peer(X, W),
    {Ids, W1} = new_lanes(X, N, W),
    W2 = change(X, fun(#peer{lanes = Lanes} = P) ->
                           P#peer{route = {wait, Ids}, shape = Shape,
                                  lanes = maps:without(Old, Lanes)}
                   end, W1),
    {{started, lanes, Ids}, change_link(X, fun(L) -> L#link{lanes = Ids, order = none} end, W2)};
start({inlets, Theirs, _}, X, W) ->
    #peer{link = #link{finishing = Finishing}} = peer(X, W),
    Finishing =:= [] orelse error({inlets_too_early, X}),
    {Ids, W1} = lists:mapfoldl(fun(_, W0) -> new(inlet, X, W0) end, W, Theirs),
    New = maps:from_list([{Id, #inlet{lane = Lane}} || {Id, Lane} <- lists:zip(Ids, Theirs)]),
    W2 = change(X, fun(#peer{inlets = Inlets} = P) -> P#peer{inlets = maps:merge(Inlets, New)} end,
                W1),
    {{started, inlets, {Ids, {dock, X}}}, change_link(X, fun(L) -> L#link{inlets = Ids} end, W2)};
start({trunk, _}, _, W) ->
    {{started, trunk}, W}.

%% The session has ended, and the link ends in good order: what it has said leaves before that.
ends(X, W) ->
    #peer{link = #link{speech = Speech}, sees = C} = peer(X, W),
    W0 = case C of
             none -> out_of_touch(W);
             _ -> W
         end,
    W1 = lists:foldl(fun(Said, W2) -> speak(Said, X, W2) end, W0, Speech),
    #peer{pid = Pid, link = L} = P = peer(X, W1),
    P1 = without_link(P, L),
    stopped(X, ended(X, [Pid], shutdown, put_peer(X, P1#peer{route = none}, W1))).

said(X, What, W) ->
    change_link(X, fun(#link{connection = Name, speech = Speech} = L) ->
                           L#link{speech = Speech ++ [{Name, What}]}
                   end, W).

%% Only what is meant for the connection that the link knows of.
speak({Name, What}, X, W) ->
    case peer(X, W) of
        #peer{link = #link{connection = Name}} -> spoken(What, X, W);
        _ -> W
    end.

spoken({say, To, Message}, X, W) ->
    transmit(X, {to, To, Message}, W);
spoken({connect, Ref}, X, W) ->
    case peer(X, W) of
        #peer{sees = none, watches = Watches, connecting = Connecting, pid = Pid} = P ->
            put_peer(X, P#peer{watches = Watches#{Ref => Pid},
                               connecting = Connecting ++ [{Ref, supervisor}]}, W);
        _ ->
            spoken({watch, Ref, supervisor}, X, W)
    end;
spoken({watch, Ref, Object}, X, W) ->
    #peer{watches = Watches, sees = C, pid = Pid} = P = peer(X, W),
    P1 = P#peer{watches = Watches#{Ref => Pid}},
    case is_connected(X, W) of
        true ->
            transmit(X, {watch, Ref, Object}, put_peer(X, P1, W));
        false when C =:= none ->
            news(X, Ref, noconnection, W);
        false ->
            put_peer(X, P1, W)               % the news that it is broken comes
    end.

%% --- senders and lanes ------------------------------------------------------------

%% A message is {Sender, Number}. In another incarnation of the node the sender is another, too.
send(X, I, #world{sent = Sent} = W) ->
    #peer{senders = Senders, life = Life} = P = peer(X, W),
    case maps:get(I, Senders, {0, none}) of
        {Last, none} ->
            N = Last + 1,
            W1 = put_peer(X, P#peer{senders = Senders#{I => {N, none}}}, W),
            hand_over(X, I, {{X, I, Life}, N}, W1#world{sent = Sent#{{X, I, Life} => N}});
        _ ->
            W                                      % it waits
    end.

%% For which incarnation a message is that is handed over now, if that is known, and what the peer
%% must be able to do.
stamp(#peer{link = #link{session = S, knows = Life}}) ->
    {case trunkline_session:phase(S) of
         down -> any;
         _ -> Life
     end, trunkline_session:capabilities(S)};
stamp(_) ->
    {any, []}.

hand_over(X, I, Message, W) ->
    #peer{route = Route} = P = peer(X, W),
    case Route of
        none -> transmit(X, {plain, Message}, W);
        {direct, _} -> transmit(X, {plain, Message}, W);
        {wait, _} ->
            mail(X, {wait, I}, waits(X, I, Message, W));
        {_, Lanes} ->
            {Sender, N} = Message,
            Lane = lists:nth(I rem length(Lanes) + 1, Lanes),
            to_lane(X, Lane, {message, {Sender, N, stamp(P)}}, W)
    end.

try_again(X, Is, W) -> lists:foldl(fun(I, W1) -> tries_again(X, I, W1) end, W, Is).

tries_again(X, I, W) ->
    #peer{senders = Senders, route = Route, link = Link} = peer(X, W),
    case maps:get(I, Senders) of
        {_, none} -> W;
        %% Nobody is there to wait at; it comes back.
        _ when Link =:= none, element(1, Route) =:= wait -> W;
        {_, Message} -> hand_over(X, I, Message, waits(X, I, none, W))
    end.

waits(X, I, Message, W) ->
    change(X, fun(#peer{senders = #{I := {Last, _}} = Senders} = P) ->
                      P#peer{senders = Senders#{I := {Last, Message}}}
              end, W).

to_lane(X, Lane, Item, W) ->
    case (peer(X, W))#peer.lanes of
        #{Lane := #lane{mailbox = Mailbox}} ->
            change_lane(X, Lane, fun(L) -> L#lane{mailbox = Mailbox ++ [Item]} end, W);
        #{} ->
            W
    end.

lane({message, Message}, X, Id, W) ->
    #lane{mode = Mode, backlog = Backlog} = get_lane(X, Id, W),
    case Mode of
        send -> batch(X, Id, Message, W);
        direct -> drained(X, Id, plain(X, Id, Message, W));
        _ ->
            W1 = change_lane(X, Id, fun(L) -> L#lane{backlog = Backlog ++ [Message]} end, W),
            case Mode =:= absent andalso Backlog =:= [] of
                true -> mail(X, connect, W1);
                false -> W1
            end
    end;
lane({ack, Inlet, Serial}, X, Id, W) ->
    drained(X, Id, change_lane(X, Id, fun(#lane{to = To} = L) when To =:= Inlet ->
                                              arrived(Serial, L);
                                         (L) ->
                                              L
                                      end, W));
lane({mode, Ref, suspend}, X, Id, W) ->
    #lane{mode = Mode} = get_lane(X, Id, W),
    Mode =:= send orelse Mode =:= suspended orelse error({nothing_to_suspend, X, Mode}),
    mail(X, {ready, Ref, Id},
         change_lane(X, Id, fun(L) -> L#lane{mode = suspended, asked = none} end, W));
lane({mode, Ref, resume}, X, Id, W) ->
    #lane{mode = suspended, to = Inlet} = get_lane(X, Id, W),
    W1 = change_lane(X, Id, fun(L) -> L#lane{asked = Ref} end, W),
    transmit(X, {batch, Inlet, {resume, Ref}}, mail(X, {ready, Ref, Id}, W1));
lane({resumed, Ref, Expects}, X, Id, W) ->
    case get_lane(X, Id, W) of
        #lane{mode = suspended, asked = Ref, to = Inlet, backlog = Backlog} = Asked ->
            #lane{flight = Flight} = L = arrived(Expects - 1, Asked),
            W1 = change_lane(X, Id, fun(_) -> L#lane{mode = send, backlog = []} end, W),
            W2 = lists:foldr(fun(Batch, W0) -> transmit(X, {batch, Inlet, Batch}, W0) end,
                             W1, Flight),
            drained(X, Id, lists:foldl(fun(M, W0) -> batch(X, Id, M, W0) end, W2, Backlog));
        _ ->
            W
    end;
lane({drain, Ref}, X, Id, W) ->
    drained(X, Id, change_lane(X, Id, fun(L) -> L#lane{drain = Ref} end, W));
lane({mode, Ref, Mode}, X, Id, W) ->
    #lane{backlog = Backlog} = get_lane(X, Id, W),
    W1 = change_lane(X, Id, fun(L) ->
                             L1 = L#lane{flight = [], drain = none, backlog = []},
                             case Mode of
                                 {send, Inlet} -> L1#lane{mode = send, to = Inlet, serial = 1};
                                 hold -> L1#lane{mode = hold, backlog = Backlog};
                                 _ -> L1#lane{mode = Mode}
                             end
                     end, W),
    W2 = case Mode of
             {send, _} -> lists:foldl(fun(M, W0) -> batch(X, Id, M, W0) end, W1, Backlog);
             direct -> lists:foldl(fun(M, W0) -> plain(X, Id, M, W0) end, W1, Backlog);
             _ -> W1
         end,
    mail(X, {ready, Ref, Id}, W2).

arrived(Serial, #lane{flight = Flight} = L) ->
    L#lane{flight = [Batch || {S, _} = Batch <- Flight, S > Serial]}.

get_lane(X, Id, W) -> maps:get(Id, (peer(X, W))#peer.lanes).

change_lane(X, Id, Fun, W) ->
    #peer{lanes = Lanes} = P = peer(X, W),
    #{Id := L} = Lanes,
    put_peer(X, P#peer{lanes = Lanes#{Id := Fun(L)}}, W).

batch(X, Id, Message, W) ->
    #lane{to = Inlet, serial = Serial, flight = Flight} = get_lane(X, Id, W),
    Batch = {Serial, Message},
    Sent = fun(L) -> L#lane{serial = Serial + 1, flight = [Batch | Flight]} end,
    transmit(X, {batch, Inlet, Batch}, change_lane(X, Id, Sent, W)).

%% Nothing that was meant for one connection travels on the next one, unless the lane is late: the
%% link has told it so already.
plain(X, Id, {Sender, N, {Stamp, _}}, W) ->
    #lane{mailbox = Mailbox} = get_lane(X, Id, W),
    case peer(X, W) of
        #peer{link = #link{knows = Life}} when Stamp =/= any, Stamp =/= Life ->
            lists:keymember(mode, 1, Mailbox)
                orelse error({for_another_incarnation, X, {Sender, N}}),
            W;
        _ ->
            transmit(X, {plain, {Sender, N}}, W)
    end.

drained(X, Id, W) ->
    case get_lane(X, Id, W) of
        #lane{drain = Ref, flight = [], backlog = [], mailbox = Mailbox} when Ref =/= none ->
            case [M || {message, M} <- Mailbox] of
                [] ->
                    mail(X, {ready, Ref, Id},
                         change_lane(X, Id, fun(L) -> L#lane{drain = none} end, W));
                _ ->
                    W
            end;
        _ ->
            W
    end.

inlet(X, Id, W) ->
    #peer{inlets = Inlets, life = Life, release = Release} = peer(X, W),
    #{Id := #inlet{mailbox = Mailbox, next = Next, lane = Lane} = I} = Inlets,
    case Mailbox of
        [{resume, Ref} | Left] ->
            transmit(X, {resumed, Lane, Ref, Next},
                     put_inlets(X, Inlets#{Id := I#inlet{mailbox = Left}}, W));
        [{Next, {Sender, N, {Stamp, Needed}}} | Left] ->
            Needed -- maps:get(capabilities, hello(Release)) =:= []
                orelse error({cannot_do, X, {Sender, N}}),
            Stamp =:= any orelse Stamp =:= Life
                orelse error({at_another_incarnation, X, {Sender, N}}),
            W1 = put_inlets(X, Inlets#{Id := I#inlet{mailbox = Left, next = Next + 1}}, W),
            transmit(X, {ack, Lane, Id, Next}, got(X, {Sender, N}, W1));
        [_ | Left] ->
            put_inlets(X, Inlets#{Id := I#inlet{mailbox = Left}}, W);
        [] ->
            mail(X, {finished, Id}, put_inlets(X, maps:remove(Id, Inlets), W))
    end.

put_inlets(X, Inlets, W) -> change(X, fun(P) -> P#peer{inlets = Inlets} end, W).

%% Once, and in order.
got(X, {Sender, N}, #world{got = Got, is_hasty = IsHasty} = W) ->
    Ns = maps:get(Sender, Got, []),
    not lists:member(N, Ns) orelse error({twice, X, Sender, N}),
    IsHasty orelse Ns =:= [] orelse N > hd(Ns) orelse error({overtaken, X, Sender, N, hd(Ns)}),
    W#world{got = Got#{Sender => [N | Ns]}}.

%% ------------------------------------------------------------------------------

peer(X, #world{peers = Peers}) -> maps:get(X, Peers).

put_peer(X, P, #world{peers = Peers} = W) -> W#world{peers = Peers#{X := P}}.

change(X, Fun, W) -> put_peer(X, Fun(peer(X, W)), W).

change_link(X, Fun, W) -> change(X, fun(#peer{link = L} = P) -> P#peer{link = Fun(L)} end, W).

new(Kind, X, #world{next = N} = W) -> {{Kind, X, N}, W#world{next = N + 1}}.
