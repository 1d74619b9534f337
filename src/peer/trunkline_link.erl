%% A link: the process that does everything for one peer that is not on the hot path. (This folder
%% has what there is once for each peer: how peers find each other, agree, and part, and the
%% processes that start and wire all others.)
%%
%% trunkline_session has the whole protocol between two links: what they say to each other, and what
%% each does in which state. This process decides none of that. It turns messages into events, and
%% carries out effects:
%%
%%     trunkline_links, the peer's link,          ┌─────────────────────┐
%%     lanes, inlets, monitors, timers ── event ─>│  trunkline_session  │
%%                                                └─────────────────────┘
%%     trunkline_speaker <── say, watch ───┐                │ effects
%%     lanes, gates      <── order, path ──┤                │
%%     inlets, trunk     <── start, end ───┼────────────────┘
%%     waiting processes <── dismiss ──────┘
%%
%% The link also looks after what is not part of the protocol: senders that wait for room
%% (trunkline_room), callers that wait for a session (trunkline_stand_in), how far the peer is
%% (trunkline_reach), and what operators hear (trunkline_report).
%%
%% If a lane, an inlet, the trunk or the dock dies, which takes a bug or a kill, the link dies with
%% it. The supervisor starts another link, which counts what was lost.
-module(trunkline_link).
-moduledoc false.
-behaviour(gen_server).

-include("../gate/trunkline_route.hrl").

-export([start_link/2, notify/2, leave/1, drain/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-type event() :: {nodeup, trunkline_peers:connection()} | nodedown
               | connect                        % a lane has a message for a node that is down
               | leave                          % end, once everything is delivered
               | {hello, pid(), Session :: reference(), trunkline_handshake:hello(),
                  Answer :: boolean()}
               | {open, pid(), Session :: reference(), reference(), Lanes :: [pid()]}.

%% ms
-define(RECHECK, 100).             % a sender that was woken may have died
-define(TOGETHER, 500).            % inlets that have delivered wait for those that have not
-define(LOG_LOST, 10_000).         % between two lines of the log about losses
-define(LOST, 100).                % dismissed senders count their own losses first

-record(link,
        {node :: node(),
         options :: trunkline_options:options(),
         stats :: trunkline_stats:stats(),
         session :: trunkline_session:session() | none,       % none: not yet
         connection = none :: none | reference(),    % its name at the speaker
         asking = none :: none | reference(),        % whether the node is gone
         speaker :: pid(),
         watched = #{} :: #{trunkline_session:role() => reference()},
         timers = #{} :: #{atom() => reference()},
         patience = none :: none | trunkline_patience:patience(),    % while it leaves or drains
         started = none :: none | trunkline_session:event(),   % the session's next event
         %% Lanes that have not carried out their last order yet.
         order = none :: none | {reference(), [pid()]},
         route = none :: none | #route{},
         %% Of the session: inlets and dock for what the peer sends, trunk for large messages to it.
         inlets = trunkline_inlets:new() :: trunkline_inlets:inlets(),
         dock = none :: none | pid(),
         trunk = none :: none | pid(),
         stand_in = none :: none | pid(),            % what callers watch until there are inlets
         shown = {none, 0} :: {trunkline_peers:state() | none, Since :: integer()},
         reach :: trunkline_reach:reach(),
         room :: trunkline_room:room(),
         report :: trunkline_report:report()}).

-spec start_link(trunkline_options:options(), node()) -> gen_server:start_ret().
start_link(Options, Node) ->
    gen_server:start_link(?MODULE, {Options, Node}, [{spawn_opt, [{message_queue_data, on_heap}]}]).

-spec notify(pid(), event()) -> ok.
notify(Link, Event) ->
    Link ! Event,
    ok.

%% Ends these links in good order, all at the same time.
-spec leave([pid()]) -> ok.
leave(Links) ->
    Monitored = [monitor(process, Link) || Link <- Links],
    lists:foreach(fun(Link) -> notify(Link, leave) end, Links),
    lists:foreach(fun(Ref) -> receive {'DOWN', Ref, process, _, _} -> ok end end, Monitored).

%% Drains these links, all at the same time. A drain whose time is over goes on.
-spec drain([pid()], trunkline_deadline:deadline()) -> [ok | {error, Reason :: term()}].
drain(Links, Deadline) ->
    Requests = [gen_server:send_request(Link, drain) || Link <- Links],
    [case gen_server:receive_response(Request, trunkline_deadline:left(Deadline)) of
         {reply, ok} -> ok;
         {reply, Why} -> {error, Why};
         {error, {Why, _}} -> {error, Why};      % the link has ended
         timeout -> {error, timeout}
     end || Request <- Requests].

-spec init({trunkline_options:options(), node()}) -> {ok, #link{}} | ignore.
init({#{lanes := Lanes, large_bytes := LargeBytes} = Options, Node}) ->
    ok = trunkline_process:label({trunkline_link, Node}),
    process_flag(trap_exit, true),
    Connection = trunkline_peers:connection(Node),
    Before = trunkline_peers:lookup(Node),
    {Stats, Drained, Capabilities} =
        case Before of
            #{state := State, stats := Kept, inlets := Inlets, finishing := Finishing} ->
                %% Nothing must overtake what the inlets of the previous link deliver. (They may
                %% outlive for a moment the link that was killed.)
                lists:foreach(fun trunkline_process:kill/1, Inlets ++ Finishing),
                {Kept, Connection =/= none andalso State =:= drained,
                 maps:get(capabilities, Before)};
            none ->
                {trunkline_stats:new(Lanes), false, []}
        end,
    case trunkline_process:start(fun trunkline_speaker:start_link/0) of
        {ok, Speaker} ->
            D = #link{node = Node, options = Options, stats = Stats, speaker = Speaker,
                      session = none, room = trunkline_room:new(Stats),
                      reach = trunkline_reach:new(Node, Options, Stats),
                      report = trunkline_report:new(Node, Stats)},
            case succeed(trunkline_route:lookup(Node), Drained, D) of
                {ok, OurLanes, D1} ->
                    ok = crashed(Before, D1),
                    D2 = tell_lost(D1),
                    IsAudience = trunkline_peers:is_audience(Node),
                    Config = #{link => self(),
                               hello => trunkline_handshake:hello(Options),
                               large_bytes => LargeBytes,
                               node => if Drained -> {drained, Connection, IsAudience};
                                          Connection =:= none -> down;
                                          true -> {connected, Connection, IsAudience}
                                       end,
                               lanes => OurLanes, capabilities => Capabilities,
                               has_met => trunkline_stats:get(Stats, peer, sessions) > 0},
                    {ok, carried_out(trunkline_session:new(Config), D2)};
                {error, system_limit} ->
                    ignore
            end;
        %% No process is left for the speaker: trunkline_links tries again.
        {error, system_limit} ->
            ignore
    end.

%% The previous link was killed and left its route behind, with dead lanes. No sender enters its
%% gates from here on; what is inside is lost. If no processes are left for new lanes the link does
%% not start, and trunkline_links tries again.
succeed(none, _, D) ->
    {ok, none, D};
succeed(Route, true, D) ->
    {ok, none, without_route(lost_crashed, D#link{route = Route})};
succeed(#route{lanes = Lanes, large = Large, bulk_limit = Limit} = Route, false, D) ->
    D1 = set_path(wait, D#link{route = Route}),
    lists:foreach(fun trunkline_process:kill/1, trunkline_lanes:pids(Route)),
    Layout = {tuple_size(Lanes), Large, Limit},
    case make_lanes(lost_crashed, Layout, D1) of
        {ok, Pids, D2} -> {ok, {Layout, Pids}, D2};
        {error, system_limit} = Error -> Error
    end.

%% --- messages -------------------------------------------------------------

-spec handle_call(term(), gen_server:from(), #link{}) ->
          {reply, {error, badarg}, #link{}} | {noreply, #link{}} | {stop, term(), #link{}}.
handle_call(drain, From, D) ->
    handle_info({'$gen_call', From, drain}, D);      % as it comes in terminate/2
handle_call(_, _, D) ->
    {reply, {error, badarg}, D}.

-spec handle_cast(term(), #link{}) -> {noreply, #link{}}.
handle_cast(Unexpected, D) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    {noreply, D}.

-spec handle_info(term(), #link{}) -> {noreply, #link{}} | {stop, term(), #link{}}.
handle_info(Message, D) ->
    case message(Message, D) of
        {stop, _, _} = Stop ->
            Stop;
        D1 ->
            case trunkline_session:phase(D1#link.session) of
                ended -> {stop, shutdown, D1};
                _ -> {noreply, D1}
            end
    end.

%% Senders first: under load nearly all messages are theirs.
message({room, Ix}, #link{route = Route, room = Room} = D) ->
    D#link{room = trunkline_room:release(Ix, Route, Room)};
message({wait, Ref, What}, D) when is_reference(Ref) ->
    await(Ref, What, D);
message({unwait, Ref, What}, #link{room = Room} = D) ->
    D#link{room = trunkline_room:remove(Ref, What, Room)};

%% From trunkline_links, from a lane, and from processes that ask the link to leave or to drain.
message({nodeup, Connection}, #link{node = Node} = D) ->
    step({nodeup, Connection, trunkline_peers:is_audience(Node)}, D);
message(Event, D) when Event =:= nodedown; Event =:= connect ->
    step(Event, D);
message(leave, D) ->
    %% If a lane has just got a message, its request to connect may still be on the way.
    step(stop, case trunkline_lanes:is_empty(D#link.route) of
                   true -> D;
                   false -> step(connect, D)
               end);
message({'$gen_call', From, drain}, D) ->
    step({drain, From}, D);

%% From the peer's link.
message({hello, _, _, _, _} = Hello, D) ->
    step(Hello, D);
message({open, _, _, _, _} = Open, D) ->
    step(Open, D);
message({opened, _, _, Dock} = Opened, D) when is_pid(Dock) ->
    step(Opened, D);
message({goodbye, Pid, _} = Goodbye, D) when is_pid(Pid) ->
    step(Goodbye, D);
message({goodbye_ok, _} = Goodbye, D) ->
    step(Goodbye, D);

%% From processes that this link has started, or watches.
message({lane_ready, Ref, Lane}, #link{order = {Ref, _}} = D) -> lane_ready(Lane, D);
message({lane_ready, _, _}, D) -> D;
message({finished, Inlet}, #link{inlets = Inlets} = D) ->
    end_together(D#link{inlets = trunkline_inlets:delivered(Inlet, Inlets)});
message({retired, Inlet}, #link{inlets = Inlets} = D) ->
    case trunkline_inlets:ended(Inlet, Inlets) of
        {Which, Inlets1} ->
            inlet_ended(Which, D#link{inlets = trunkline_inlets:retired(Inlet, Inlets1)});
        unknown ->
            D
    end;
message({'EXIT', Pid, Reason}, #link{inlets = Inlets} = D) ->
    case trunkline_inlets:ended(Pid, Inlets) of
        {Which, Inlets1} ->
            inlet_ended(Which, D#link{inlets = Inlets1});
        unknown ->
            Others = trunkline_lanes:pids(D#link.route) ++ trunkline_inlets:pids(Inlets),
            case lists:member(Pid, [D#link.trunk, D#link.dock, D#link.speaker | Others]) of
                true -> {stop, {shutdown_of, Pid, Reason}, D};
                false -> D
            end
    end;
message({'DOWN', Ref, process, _, Reason}, #link{asking = Ref} = D) ->
    case trunkline_presence:is_gone(Reason) of
        true -> step(gone, D#link{asking = none});
        false -> D#link{asking = none}
    end;
message({'DOWN', Ref, process, _, Reason}, #link{watched = Watched} = D) ->
    case [Role || {Role, R} <- maps:to_list(Watched), R =:= Ref] of
        [Role] -> step({down, Role, Reason}, D#link{watched = maps:remove(Role, Watched)});
        [] -> D
    end;

%% How far is the peer?
message({ping, Pid, Ref}, #link{session = Session} = D) ->
    case trunkline_session:peer(Session) of
        Pid -> say(Pid, {pong, Ref}, D);
        _ -> D
    end;
message({pong, Ref}, #link{reach = Reach} = D) ->
    D#link{reach = trunkline_reach:pong(Ref, Reach)};
message({measured, Ref, RoundTrip}, #link{reach = Reach} = D) ->
    reached(trunkline_reach:measured(Ref, RoundTrip, Reach), D);

%% Does anything move by the distribution, while this link leaves or drains?
message({moved, _}, #link{patience = none} = D) ->
    D;                                             % it does not any more
message({moved, Bytes}, #link{patience = Patience} = D) ->
    D#link{patience = trunkline_patience:heard(Bytes, now_ms(), Patience)};

message({timeout, Ref, Name}, #link{timers = Timers} = D) ->
    case Timers of
        #{Name := Ref} -> timeout(Name, D#link{timers = maps:remove(Name, Timers)});
        #{} -> D
    end;
message(Unexpected, D) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    D.

lane_ready(Lane, #link{order = {Ref, Lanes}} = D) ->
    case lists:delete(Lane, Lanes) of
        [] -> step(lanes_ready, lost(D#link{order = none}));
        Left -> D#link{order = {Ref, Left}}
    end.

inlet_ended(last, D) -> step(finished, D);
inlet_ended(more, D) -> end_together(D).

%% (They wait for each other while the timer runs.)
end_together(#link{inlets = Inlets, timers = Timers} = D) ->
    D#link{inlets = trunkline_inlets:end_together(is_map_key(together, Timers), Inlets)}.

timeout(recheck, #link{route = Route, room = Room} = D) ->
    D1 = D#link{room = trunkline_room:recheck(Route, Room)},
    case trunkline_room:is_awaited(D1#link.room) of
        true -> timer(recheck, ?RECHECK, D1);
        false -> D1
    end;
timeout(ping, #link{reach = Reach} = D) ->
    reached(trunkline_reach:ping(Reach), D);
timeout(look, #link{reach = Reach} = D) ->
    Reach1 = trunkline_reach:look(Reach),
    wake([T || {look, _} = T <- trunkline_reach:timers(Reach1)], D#link{reach = Reach1});
timeout(together, D) ->
    end_together(D);
timeout(lost, D) ->
    lost(D);
timeout(log_lost, D) ->
    log_lost(D);
timeout(patience, D) ->
    patience(D);
timeout(Name, D) ->
    step({timeout, Name}, D).

-spec terminate(term(), #link{}) -> ok.
terminate(Reason, D) ->
    _ = terminated(Reason, D),
    end_linked().

terminated(Reason, #link{session = Session} = D) ->
    Phase = trunkline_session:phase(Session),
    case Reason of
        _ when Phase =:= ended -> has_left(D);
        shutdown -> has_left(leave_now(message(leave, D)));
        {shutdown, _} -> has_left(leave_now(message(leave, D)));
        _ when D#link.route =:= none, Phase =/= drained -> trunkline_peers:delete(D#link.node);
        _ -> set_path(wait, D)                  % the next link does the rest: see init/1
    end.

%% What is still linked to the link ends before it: when the peer hears of the link's end it may use
%% plain distribution, which must not overtake what an inlet is delivering. The reason is an atom.
%% The link's own may be another term, which could hang the node (docs/reference/otp-defects.md).
end_linked() ->
    {links, Links} = process_info(self(), links),
    {parent, Parent} = process_info(self(), parent),
    Linked = [Pid || Pid <- Links, is_pid(Pid), Pid =/= Parent],
    lists:foreach(fun(Pid) -> exit(Pid, shutdown) end, Linked),
    lists:foreach(fun trunkline_process:kill/1, Linked).

%% The supervisor's shutdown comes without the request that trunkline_link_sup:leave/0 sends.
leave_now({stop, _, D}) ->
    D;
leave_now(#link{session = Session} = D) ->
    case trunkline_session:phase(Session) of
        ended -> D;
        _ -> receive Message -> leave_now(message(Message, D)) end
    end.

%% What the link has said should arrive before the news that the link has ended.
has_left(#link{node = Node, speaker = Speaker} = D) ->
    ok = trunkline_speaker:finish(Speaker),
    _ = without_route(lost_queued, log_rest(D)),
    trunkline_peers:delete(Node).

%% --- the session ----------------------------------------------------------

step(Event, #link{session = Session} = D) ->
    carried_out(trunkline_session:step(Event, Session), D).

carried_out({Session, Effects}, D) ->
    case lists:foldl(fun carry_out/2, D#link{session = Session}, Effects) of
        #link{started = none} = D1 -> D1;
        #link{started = Event} = D1 -> step(Event, D1#link{started = none})
    end.

carry_out({say, links, Message}, #link{node = Node} = D) ->
    say({trunkline_links, Node}, {trunkline, node(), Message}, D);
carry_out({say, Pid, Message}, D) ->
    say(Pid, Message, D);
carry_out({connection, Name}, #link{speaker = Speaker, reach = Reach} = D) ->
    ok = trunkline_speaker:connection(Speaker, Name),
    D#link{connection = Name, asking = none, reach = trunkline_reach:disconnected(Reach)};
carry_out(ask_if_gone, #link{asking = none, node = Node} = D) ->
    D#link{asking = trunkline_presence:ask(Node)};
carry_out(ask_if_gone, D) ->
    D;
carry_out({watch, Role, Whom}, D) ->
    watch(Role, watch, Whom, D);
carry_out({connect, Role}, D) ->
    watch(Role, connect, supervisor, D);
carry_out({unwatch, Role}, D) ->
    unwatch(Role, D);
carry_out({path, Path}, D) ->
    set_path(Path, D);
carry_out({order, Order}, D) ->
    order(Order, D);
carry_out({start, What}, D) ->
    {Event, D1} = start(What, D),
    D1#link{started = Event};
carry_out({end_session, lost}, D) ->
    end_session(finish, went(down, D));            % whatever comes next
carry_out({end_session, How}, D) ->
    end_session(How, went(D));
carry_out({dismiss, again}, #link{room = Room} = D) ->
    D#link{room = trunkline_room:dismiss(again, Room)};
carry_out({dismiss, Gone}, #link{room = Room, timers = Timers} = D) ->
    D1 = no_stand_in(D#link{room = trunkline_room:dismiss(Gone, Room)}),
    %% (Senders that try again and again are dismissed again and again, while the node is gone.)
    case trunkline_room:is_awaited(Room) andalso not is_map_key(lost, Timers) of
        true -> timer(lost, ?LOST, D1);
        false -> D1
    end;
carry_out({enter, Phase}, D) ->
    enter(Phase, D);
carry_out({count, Field}, #link{stats = Stats} = D) ->
    trunkline_stats:add(Stats, peer, Field, 1),
    came(Field, D);
carry_out({patience, start}, #link{stats = Stats} = D) ->
    timer(patience, 0, D#link{patience = trunkline_patience:new(progress(Stats), now_ms())});
carry_out({patience, cancel}, D) ->
    cancel(patience, D#link{patience = none});
carry_out({timer, Name, Time}, D) ->
    timer(Name, Time, D);
carry_out({answer, Caller, Result}, D) ->
    ok = gen_server:reply(Caller, Result),
    D;
carry_out({refused, Why, Hello}, #link{report = Report} = D) ->
    ok = trunkline_report:refused(Why, Hello, Report),
    D;
carry_out(forget, #link{node = Node} = D) ->
    ok = gen_server:cast(trunkline_links, {forget, Node}),
    D;
carry_out(stop, D) ->
    D.                                 % see handle_info/2

say(To, Message, #link{speaker = Speaker, connection = Connection} = D) ->
    ok = trunkline_speaker:say(Speaker, Connection, To, Message),
    D.

watch(Role, How, Whom, D) ->
    #link{speaker = Speaker, connection = Connection, watched = Watched} = D1 = unwatch(Role, D),
    Watch = trunkline_speaker:watch(How, Speaker, Connection, whom(Whom, D1)),
    D1#link{watched = Watched#{Role => Watch}}.

whom(supervisor, #link{node = Node}) -> {trunkline_sup, Node};
whom(nobody, #link{node = Node}) -> {undefined, Node};
whom(Pid, _) -> Pid.

unwatch(Role, #link{watched = Watched, speaker = Speaker} = D) ->
    case maps:take(Role, Watched) of
        {Watch, Watched1} ->
            ok = trunkline_speaker:unwatch(Speaker, Watch),
            D#link{watched = Watched1};
        error ->
            D
    end.

%% A newer order supersedes one that has not been carried out.
order(Order, #link{trunk = Trunk, route = #route{} = Route, inlets = Inlets} = D) ->
    Ref = make_ref(),
    ok = case Order of
             {send, Theirs, _, _} ->
                 trunkline_lanes:set_agents(trunkline_inlets:pids(Inlets), Theirs, Route);
             suspend when Trunk =/= none -> trunkline_trunk:suspend(Trunk);
             resume when Trunk =/= none -> trunkline_trunk:resume(Trunk);
             _ -> ok
         end,
    ok = trunkline_lanes:order(Ref, Order, Trunk, Route),
    D#link{order = {Ref, trunkline_lanes:pids(Route)}}.

start({lanes, Layout}, D) ->
    case make_lanes(lost_queued, Layout, D) of
        {ok, Lanes, D1} -> {{started, lanes, Lanes}, show(tell_lost(D1))};
        {error, system_limit} -> {system_limit, D}
    end;
start({inlets, Theirs, Window}, #link{node = Node, route = Route, stats = Stats} = D) ->
    Start = fun() ->
                    Inlets = trunkline_inlets:start(Theirs, Window, Route, D#link.inlets),
                    {Inlets, trunkline_dock:start_link(trunkline_inlets:pids(Inlets), Stats)}
            end,
    case trunkline_process:start_all(Start) of
        {ok, {Inlets, Dock}} ->
            D1 = show(D#link{inlets = Inlets, dock = Dock}),
            ok = trunkline_watched:lanes(Node),
            {{started, inlets, {trunkline_inlets:pids(Inlets), Dock}}, D1};
        {error, system_limit} ->
            {system_limit, D}
    end;
start({trunk, Dock}, #link{node = Node, options = Options, stats = Stats} = D) ->
    Start = fun() -> trunkline_trunk:start_link(Node, Dock, {Options, Stats}) end,
    case trunkline_process:start_all(Start) of
        {ok, Trunk} -> {{started, trunk}, D#link{trunk = Trunk}};
        {error, system_limit} -> {system_limit, D}
    end.

end_session(How, #link{inlets = Inlets, trunk = Trunk, dock = Dock, stats = Stats} = D) ->
    Inlets1 = trunkline_inlets:end_session(How, Inlets),
    lists:foreach(fun end_with_session/1, [P || P <- [Trunk, Dock], P =/= none]),
    trunkline_trunk:ended(Stats),
    write(out_of_reach(timer(together, ?TOGETHER,
                             D#link{inlets = Inlets1, trunk = none, dock = none}))).

out_of_reach(#link{reach = Reach} = D) ->
    cancel(ping, cancel(look, D#link{reach = trunkline_reach:down(Reach)})).

%% Its state is of no use in another session.
end_with_session(Pid) ->
    unlink(Pid),
    exit(Pid, kill).

enter(up, #link{node = Node, session = Session, reach = Reach} = D) ->
    ok = trunkline_watched:connected(Node),
    Lanes = case lists:member(v1, trunkline_session:capabilities(Session)) of
                true -> trunkline_lanes:pids(D#link.route);
                false -> []
            end,
    reached(trunkline_reach:up(trunkline_session:peer(Session), Lanes, Reach), show(up, D));
enter(opening, #link{node = Node} = D) ->
    D1 = show(opening, D),
    %% After show/2 has published it: if trunkline_inboxes is just starting it looks there.
    ok = trunkline_inboxes:has_spoken(Node),
    D1;
enter(suspended, #link{session = Session, report = Report} = D) ->
    ok = trunkline_report:suspended(trunkline_session:agreement(Session), Report),
    show(suspended, out_of_reach(D));
enter(drained, D) ->
    show(drained, went(D));             % the session stays for callers that wait for replies
enter(Phase, D) ->
    show(Phase, D).

%% What a timer was to do may have been done early, so all timers restart.
reached(Reach, #link{session = Session} = D) ->
    case trunkline_session:phase(Session) of
        up -> wake(trunkline_reach:timers(Reach), D#link{reach = Reach});
        _ -> D#link{reach = Reach}
    end.

wake(Timers, D) -> lists:foldl(fun({Name, Time}, D1) -> timer(Name, Time, D1) end, D, Timers).

timer(Name, Time, D) ->
    #link{timers = Timers} = D1 = cancel(Name, D),
    D1#link{timers = Timers#{Name => erlang:start_timer(Time, self(), Name)}}.

cancel(Name, #link{timers = Timers} = D) ->
    case maps:take(Name, Timers) of
        {Ref, Timers1} ->
            _ = erlang:cancel_timer(Ref),
            D#link{timers = Timers1};
        error ->
            D
    end.

%% Whether to wait longer while leaving. A separate process asks how much has moved: with TLS yet
%% another process has to answer, and it may be busy.
patience(#link{node = Node, stats = Stats, patience = Patience} = D) ->
    case trunkline_patience:look(progress(Stats), now_ms(), Patience) of
        {again, Time, Patience1} ->
            Link = self(),
            Ask = fun() -> Link ! {moved, trunkline_socket:moved(Node)} end,
            _ = trunkline_process:start(fun() -> spawn(Ask) end),
            timer(patience, Time, D#link{patience = Patience1});
        stalled ->
            step(stalled, D#link{patience = none})
    end.

now_ms() -> erlang:monotonic_time(millisecond).

%% Bytes acknowledged, carried or arrived, and messages received. Refused attempts to send are no
%% progress.
progress(Stats) ->
    [trunkline_stats:sum(Stats, bytes) - trunkline_stats:sum(Stats, in_flight_bytes),
     trunkline_stats:sum(Stats, received_messages)
     | [trunkline_stats:get(Stats, peer, Field)
        || Field <- [large_carried_bytes, large_arrived_bytes, batches_arrived_bytes]]].

%% --- the lanes ------------------------------------------------------------

%% The previous lanes, if there are any, end. Their gates have been closed, and they are empty,
%% unless a sender has been on its way in all this time, or the previous link was killed. A sender
%% that they refuse now waits here, and then finds the new lanes.
make_lanes(Field, Layout, #link{node = Node, options = Options, stats = Stats} = D) ->
    case trunkline_lanes:start(Layout, Node, Options, Stats) of
        {ok, Route} ->
            _ = set_path(wait, D),
            ok = trunkline_owed:concerns(Node, Route),
            ok = trunkline_route:publish(Node, Route),
            Room = trunkline_room:wake(again, D#link.room),
            D1 = end_lanes(Field, D#link{room = Room}),
            {ok, trunkline_lanes:pids(Route), D1#link{route = Route, order = none}};
        {error, system_limit} = Error ->
            Error
    end.

%% From here on senders use plain distribution.
without_route(_, #link{route = none} = D) ->
    D;
without_route(Field, #link{node = Node} = D) ->
    _ = set_path(direct, D),
    _ = trunkline_route:withdraw(Node),
    tell_lost((end_lanes(Field, D))#link{order = none}).

%% They end, or retire. Lanes that retire look for the route to the lanes that come after them:
%% their own must not be there any more.
end_lanes(_, #link{route = none} = D) ->
    D;
end_lanes(Field, D0) ->
    #link{route = Route, inlets = Inlets, report = Report} = D = log_rest(D0),
    Report1 = case trunkline_lanes:end_all(Field, Route, trunkline_inlets:retired(Inlets)) of
                  0 -> Report;
                  Lost -> trunkline_report:lanes_ended(Field, Lost, Report)
              end,
    D#link{route = none, report = Report1}.

path(#link{route = #route{gate = Gate}}) -> trunkline_gate:path(Gate);
path(_) -> direct.

set_path(_, #link{route = none} = D) ->
    D;
set_path(Path, #link{route = Route} = D) ->
    ok = trunkline_route:set_path(Path, Route),
    D.

%% --- waiting processes ----------------------------------------------------

await(Ref, What, #link{session = Session, route = Route, room = Room} = D) ->
    Inlets = trunkline_inlets:pids(D#link.inlets),
    IsOpening = trunkline_session:phase(Session) =:= opening,
    case {path(D), What} of
        {_, session} when IsOpening ->
            D#link{room = trunkline_room:add(Ref, session, Route, Room)};
        {direct, _} ->
            answer(Ref, {again, new}, D);
        {lanes, session} when Inlets =/= [] ->
            answer(Ref, {again, new}, D);
        {down, session} ->
            step(connect, D#link{room = trunkline_room:add(Ref, session, Route, Room)});
        {_, session} ->
            D#link{room = trunkline_room:add(Ref, session, Route, Room)};
        {_, {room, Ix, _, _}} when Ix > tuple_size(Route#route.lanes) + 1 ->
            answer(Ref, {again, new}, D);          % there were more lanes
        {_, {room, Ix, _, _}} ->
            Room1 = trunkline_room:release(Ix, Route, trunkline_room:add(Ref, What, Route, Room)),
            D1 = D#link{room = Room1},
            case not trunkline_room:is_awaited(Room) andalso trunkline_room:is_awaited(Room1) of
                true -> timer(recheck, ?RECHECK, D1);
                false -> D1
            end;
        _ ->
            D                                      % no sender says that
    end.

answer(Ref, Answer, D) ->
    ok = trunkline_room:answer(Ref, Answer),
    D.

%% --- what others see ------------------------------------------------------

show(State, #link{shown = {State, _}} = D) -> show(D);
show(State, D) -> show(D#link{shown = {State, erlang:system_time(millisecond)}}).

show(#link{shown = {State, _}, inlets = Inlets} = D) ->
    write(stand_in(State, trunkline_inlets:pids(Inlets), D)).

write(#link{node = Node, session = Session, shown = {State, Since}} = D) ->
    ok = trunkline_peers:put(
           Node, #{state => State, link => self(), stats => D#link.stats, since => Since,
                   inlets => trunkline_inlets:pids(D#link.inlets),
                   finishing => trunkline_inlets:finishing(D#link.inlets),
                   stand_in => D#link.stand_in,
                   agreement => trunkline_session:agreement(Session),
                   capabilities => trunkline_session:capabilities(Session)}),
    D.

%% For requests that are in the lanes before it is clear whether there will be a session.
stand_in(_, _, #link{route = none, stand_in = none} = D) ->
    D;
stand_in(State, [], #link{stand_in = none} = D)
  when State =:= down; State =:= holding; State =:= opening ->
    D#link{stand_in = trunkline_stand_in:start()};
stand_in(_, _, #link{stand_in = none} = D) ->
    D;
stand_in(State, [_ | _] = Inlets, #link{stand_in = StandIn} = D)
  when State =:= opening; State =:= up ->
    ok = trunkline_stand_in:session(StandIn, Inlets),
    D#link{stand_in = none};
stand_in(State, _, #link{node = Node, stand_in = StandIn} = D)
  when State =:= greeting; State =:= drained ->
    ok = trunkline_stand_in:plain(StandIn, Node),
    D#link{stand_in = none};
stand_in(_, _, D) ->
    D.

%% The requests of the callers that watch it are lost.
no_stand_in(#link{stand_in = none} = D) ->
    D;
no_stand_in(#link{stand_in = StandIn} = D) ->
    ok = trunkline_stand_in:stop(StandIn),
    D#link{stand_in = none}.

%% --- what operators hear -----------------------------------------------------

%% The peer is up, or up again over another connection.
came(sessions, #link{session = Session, route = Route, report = Report} = D) ->
    Lanes = length(trunkline_lanes:pids(Route)),
    D#link{report = trunkline_report:up(trunkline_session:agreement(Session), Lanes, Report)};
came(resumed, #link{shown = {_, Since}, report = Report} = D) ->
    ok = trunkline_report:resumed(erlang:system_time(millisecond) - Since, Report),
    D.

%% The session ends, and that phase follows: the last one of the step.
went(#link{session = Session} = D) -> went(trunkline_session:phase(Session), D).

went(Phase, #link{report = Report} = D) ->
    D#link{report = trunkline_report:down(Phase, Report)}.

%% The previous link was killed during a session.
crashed(#{state := State, since := Since}, #link{report = Report})
  when State =:= up; State =:= suspended ->
    trunkline_report:crashed(erlang:system_time(millisecond) - Since, Report);
crashed(_, _) ->
    ok.

%% The same at once: what comes next is logged in another way, or there is nothing more.
log_rest(#link{report = Report} = D) -> D#link{report = trunkline_report:log_lost(Report)}.

%% Reports losses, unless senders that were dismissed have still to count theirs.
lost(#link{timers = #{lost := _}} = D) -> D;
lost(D) -> tell_lost(log_lost(D)).

tell_lost(#link{report = Report} = D) -> D#link{report = trunkline_report:tell_lost(Report)}.

%% As soon as losses are known, but at most once every LOG_LOST ms.
log_lost(#link{timers = #{log_lost := _}} = D) ->
    D;
log_lost(D) ->
    case log_rest(D) of
        D -> D;
        D1 -> timer(log_lost, ?LOG_LOST, D1)
    end.
