%% A link: everything that this node has to do with one peer node.
%%
%% It agrees with the peer's link on how to work together, owns the lanes to
%% the peer and the inlets for the peer's lanes, opens and closes the gates, and
%% is where senders wait for room.
%%
%%     link at A                                   link at B
%%       | -- hello (what I can do, my session) ---> |    both, at nodeup (see hail/1);
%%       | <--- hello (what I can do, my session) -- |    by way of trunkline_links
%%       |                                           |
%%       | -- open (my lanes) ---------------------> |    each for its own lanes
%%       | <------------- opened (inlets, dock) ---- |
%%       |                                           |
%%       | == batches ==============> inlets         |    up: when my lanes have
%%       | <============== batches == lanes          |    inlets, and so have yours
%%       |                                           |
%%       | -- goodbye -----------------------------> |    on an orderly stop, or to drain
%%       | <--------------------------- goodbye_ok - |    the link (see trunkline_leave)
%%
%% A session is what two links share from hello to the end of either, on one
%% connection: after the connection was lost a link names its next session anew,
%% so that what was said on the one before is not taken for an answer. All that
%% goes wrong ends the session, in one of two ways:
%%
%%   * The connection is lost. What the lanes hold is lost with it and counted.
%%     Nothing that was meant for one connection travels on the next one.
%%   * The peer's link has died, or Trunkline has stopped there. The lanes hold
%%     what they have. If another link says hello they go on with it; if there is
%%     no trunkline_links any more they deliver by plain distribution, and senders
%%     follow them.
%%
%% In both cases the inlets deliver what has arrived, and there are no other
%% inlets before these have ended.
%%
%% If a lane or an inlet dies, which nothing but a bug or a kill does, the link
%% dies with it. The supervisor starts another, which counts what was lost.
%%
%%     down ──nodeup──> greeting ──hello──> opening ──opened──> up
%%      ^ │                ^  ^                ^                │ │
%%      │ └─nodeup, with   │  └─ no Trunkline ── holding <───────┘ │ goodbye
%%      │   lanes: holding └────────────────── closing <──────────┘
%%      └── nodedown
%%
%% A link can be drained: it takes leave as for a stop, but stays. What is sent from
%% then on goes by plain distribution, at both sides, and this one answers whoever says
%% hello there that there is nothing to agree on. Thus it remains until the connection
%% is lost, or Trunkline has stopped at the peer: its top supervisor is monitored. The
%% session remains too, for what follows from the messages before: replies to
%% requests that were under way, and news of monitored processes. A peer that does not
%% know of this (capability `drain') is told that the session has ended, as by a stop.
%%
%% To be down is not to wait: the lanes keep what comes. The first message makes the link
%% connect, and when that fails what the lanes have is lost. When the nodes are connected the
%% lanes hold until it is clear whether the peer will have lanes: if it will, they send it what
%% they have, and else deliver it by plain distribution.
%%
%% With the state go the path, which tells refused senders what to do, and the
%% mode of the lanes:
%%
%%     state      path                          mode
%%     down       down; lanes, while a          absent
%%                connection is being made
%%     greeting   direct                        hold
%%     opening    as before: direct or lanes;   hold
%%                wait, while lanes are
%%                replaced
%%     up         lanes                         send
%%     holding    lanes, then wait              hold, then direct
%%     closing    wait                          send
%%     drained    direct                        send, or no lanes
%%     greeting   direct                        send, where the peer has drained the link
-module(trunkline_link).
-moduledoc false.
-behaviour(gen_statem).

-include("../lane/trunkline_route.hrl").
-include_lib("kernel/include/logger.hrl").

-export([start_link/2, notify/2, leave/1, drain/2]).
-export([callback_mode/0, init/1, handle_event/4, terminate/3]).

-export_type([event/0]).

-type event() :: nodeup | nodedown
               | again                          % an event may have been missed
               | leave                          % end, after all is delivered
               | {drain, Answer :: reference(), trunkline_deadline:deadline()}   % the same, but stay
               | connect                        % a lane has a message for a node that is down
               | {hello, pid(), Session :: reference(), trunkline_handshake:hello(), Answer :: boolean()}
               | {open, pid(), Session :: reference(), reference(), Lanes :: [pid()]}.

%% ms
-define(RETIRE, 1000).             % to deliver what has arrived
-define(RECHECK, 100).             % a sender that was told may have died
-define(AGAIN, 200).               % when there was no process left
-define(REPORT, 10_000).           % between two reports of losses
-define(FORGET, 3_600_000).        % a peer that is gone for so long,
-define(FORGET_STRANGER, 1000).    % or one that never was more than a node

-record(peer,
        {pid :: pid(),
         monitor :: reference(),
         session :: reference(),                     % the peer's
         agreement :: trunkline_handshake:agreement()}).

-record(link,
        {node :: node(),
         options :: trunkline_options:options(),
         stats :: trunkline_stats:stats(),
         session :: reference(),                     % ours
         speaker :: pid(),
         peer = none :: none | #peer{},
         absence = none :: none | reference(),       % the speaker watches the peer's trunkline_links, or its
                                                     % trunkline_sup
         asked = none :: none | reference(),         % whether a hidden node is an Erlang node
         %% Our lanes, and the inlets for them at the peer.
         route = none :: none | #route{},
         mode = hold :: hold | direct | absent | send,
         changing = none :: none | {reference(), [pid()]},     % lanes that have not answered
         opening = none :: none | reference(),
         opened = none :: none | {Inlets :: [pid()], Dock :: pid() | none},
         bulk = none :: none | pid(),                % trunks: for large messages,
         trunk = none :: none | pid(),               % and for batches
         reach :: trunkline_reach:reach(),
         capabilities = [] :: [trunkline_handshake:capability()],   % the last agreed
         %% The peer's lanes, and our inlets for them, and where large messages arrive.
         wanted = none :: none | {reference(), [pid()]},
         inlets = [] :: [pid()],
         dock = none :: none | pid(),
         finishing = [] :: [pid()],                  % inlets of earlier sessions
         stand_in = none :: none | pid(),            % what callers watch until there are inlets
         retired = [] :: [pid()],                    % of these, which are through: for those who wait
         goodbye = none :: none | {pid(), reference(), Drain :: reference(), [pid()]},
         hasty = false :: boolean(),                 % has waited long enough for a session
         %% Who waits.
         room = trunkline_room:new() :: trunkline_room:room(),
         lost = {0, 0} :: {Queued :: non_neg_integer(), Unconfirmed :: non_neg_integer()},
         reported = false :: boolean()}).                      % not long ago

-spec start_link(trunkline_options:options(), node()) -> gen_statem:start_ret().
start_link(Options, Node) ->
    gen_statem:start_link(?MODULE, {Options, Node}, [{spawn_opt, [{message_queue_data, on_heap}]}]).

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

%% Drains these links, all at the same time.
-spec drain([pid()], trunkline_deadline:deadline()) -> [ok | {error, Reason :: term()}].
drain(Links, Deadline) ->
    Refs = [monitor(process, Link, [{alias, reply_demonitor}]) || Link <- Links],
    lists:foreach(fun({Link, Ref}) -> notify(Link, {drain, Ref, Deadline}) end, lists:zip(Links, Refs)),
    [receive
         {Ref, ok} -> ok;
         {Ref, Why} -> {error, Why};
         {'DOWN', Ref, process, _, Reason} -> {error, Reason}
     end || Ref <- Refs].

-spec callback_mode() -> gen_statem:callback_mode_result().
callback_mode() -> handle_event_function.

-spec init({trunkline_options:options(), node()}) -> gen_statem:init_result(atom()).
init({#{lanes := Lanes} = Options, Node}) ->
    process_flag(trap_exit, true),
    Connected = lists:member(Node, nodes(connected)),
    {Stats, Drained, Capabilities} =
        case trunkline_peers:lookup(Node) of
            #{state := State0, stats := Kept, inlets := Inlets, finishing := Finishing} = Before ->
                %% Nothing must overtake what those of the link before deliver.
                lists:foreach(fun await_end/1, Inlets ++ Finishing),
                {Kept, Connected andalso State0 =:= drained, maps:get(capabilities, Before)};
            none ->
                {trunkline_stats:new(Lanes), false, []}
        end,
    Session = make_ref(),
    D = #link{node = Node, session = Session, speaker = speaker(Session),
              options = Options, stats = Stats, reach = trunkline_reach:new(Node, Options, Stats),
              capabilities = Capabilities},
    {next_state, State, D1, Actions} =
        case trunkline_route:lookup(Node) of
            #route{} = Old when Drained ->
                be_drained(without_route(lost_crashed, D#link{route = Old}));
            none when Drained ->
                be_drained(D);
            #route{} = Old when Connected ->
                hold(set_path(lanes, succeed(Old, D)));
            #route{} = Old ->
                down(lost_queued, succeed(Old, D));
            none when Connected ->
                hold(D);
            none ->
                down(lost_queued, D)
        end,
    case Connected andalso not Drained of
        true -> {ok, State, hail(D1), Actions};
        false -> {ok, State, D1, Actions}
    end.

%% Without a process for it there is no link, until it is tried again.
speaker(Session) ->
    case trunkline_process:start(fun() -> trunkline_speaker:start_link(Session) end) of
        {ok, Speaker} -> Speaker;
        {error, system_limit} -> throw(ignore)
    end.

%% The nodes remain connected, and all has been delivered: who waits for a reply goes on to wait.
retire(#link{inlets = Inlets, opened = {Counterparts, _}, finishing = Finishing} = D) when Inlets =/= [] ->
    lists:foreach(fun({Inlet, Counterpart}) ->
                          ok = trunkline_process:outlive(Inlet),
                          trunkline_inlet:retire(Inlet, Counterpart)
                  end, lists:zip(Inlets, Counterparts)),
    D#link{inlets = [], finishing = Inlets ++ Finishing};
retire(D) ->
    D.

await_retired(#link{finishing = []} = D) ->
    D;
await_retired(#link{finishing = Finishing} = D) ->
    receive
        {retired, Inlet} -> await_retired(retired(Inlet, D));
        {'EXIT', Pid, _} -> await_retired(D#link{finishing = lists:delete(Pid, Finishing)})
    after ?RETIRE ->
            D
    end.

retired(Inlet, #link{finishing = Finishing, retired = Retired} = D) ->
    D#link{finishing = lists:delete(Inlet, Finishing), retired = [Inlet | lists:filter(fun is_process_alive/1, Retired)]}.

%% It was linked to the link that was killed.
await_end(Inlet) ->
    exit(Inlet, kill),
    Ref = monitor(process, Inlet),
    receive {'DOWN', Ref, process, Inlet, _} -> ok end.

%% The link before this one was killed and left its route behind, with lanes
%% that are dead. Nobody enters its gates from here on; what is inside is lost. Without
%% processes for new lanes there is no link either, until it is tried again.
succeed(#route{lanes = Lanes, large = Large, bulk_limit = Limit} = Route, D) ->
    count_lost(lost_crashed, dead, set_path(wait, D#link{route = Route})),
    case make_lanes(tuple_size(Lanes), {Large, Limit}, D) of
        {ok, D1} -> D1;
        {error, system_limit} -> throw(ignore)
    end.

%% What dead lanes leave behind. Those that retire do what they can with what they have, and count the
%% rest themselves; what they have sent last has not been acknowledged yet, and may well arrive.
count_lost(Field, Are, #link{node = Node, stats = Stats, route = #route{gate = Gate, lanes = Lanes}}) ->
    Left = [left_behind(Gate, Ix, Stats) || Ix <- lists:seq(1, tuple_size(Lanes))],
    InFlight = lists:sum([F || {F, _} <- Left]),
    Lost = InFlight + lists:sum([Inside || {_, Inside} <- Left]),
    case Are of
        retired ->
            trunkline_stats:add(Stats, peer, lost_unconfirmed, InFlight);
        dead when Lost > 0 ->
            trunkline_stats:add(Stats, peer, Field, Lost),
            ?LOG_WARNING("trunkline: the lanes to ~ts ended with ~b messages in them that had "
                         "not been acknowledged", [Node, Lost]);
        dead ->
            ok
    end.

left_behind(Gate, Ix, Stats) ->
    InFlight = trunkline_stats:get(Stats, {lane, Ix}, in_flight_messages),
    trunkline_stats:put(Stats, {lane, Ix}, in_flight_messages, 0),
    trunkline_stats:put(Stats, {lane, Ix}, in_flight_bytes, 0),
    {InFlight, trunkline_gate:messages(max(0, trunkline_gate:close(Gate, Ix)))}.

%% --- events ---------------------------------------------------------------

-spec handle_event(gen_statem:event_type(), term(), atom(), #link{}) ->
          gen_statem:event_handler_result(atom()).
%% Senders first: under load nearly everything that comes is this.
handle_event(info, {room, Ix}, _, #link{route = Route, room = Room} = D) ->
    {keep_state, D#link{room = trunkline_room:release(Ix, Route, Room)}};
handle_event(info, {wait, Ref, session}, opening, #link{room = Room} = D) when is_reference(Ref) ->
    {keep_state, D#link{room = trunkline_room:add(Ref, session, Room)}};
handle_event(info, {wait, Ref, What}, _, D) when is_reference(Ref) ->
    await(Ref, What, D);
handle_event(info, {unwait, Ref, What}, _, #link{room = Room} = D) ->
    {keep_state, D#link{room = trunkline_room:remove(Ref, What, Room)}};
handle_event({timeout, recheck}, _, _, #link{route = Route, room = Room} = D) ->
    D1 = D#link{room = trunkline_room:recheck(Route, Room)},
    {keep_state, D1, [recheck() || trunkline_room:is_awaited(D1#link.room)]};

%% The node comes and goes.
handle_event(info, connect, down, D) ->
    {keep_state, connect(D)};
handle_event(info, Event, down, D) when Event =:= nodeup; Event =:= again ->
    connected(D);
handle_event(info, nodeup, _, D) ->
    %% If there is a session it belongs to an earlier connection, and the news of
    %% its end is still under way.
    {next_state, _, D1, _} = gone(D),
    connected(D1);
handle_event(info, again, drained, _) ->
    keep_state_and_data;
handle_event(info, again, State, D) ->
    State =:= opening andalso say_open(D),
    {keep_state, hail(D)};
handle_event(info, {'DOWN', Asked, process, _, Reason}, State, #link{asked = Asked} = D) ->
    Reason =:= noproc andalso (State =:= greeting orelse State =:= holding) andalso say_hello(true, D),
    {keep_state, D#link{asked = none}};
handle_event(info, nodedown, State, D) when State =:= greeting; State =:= holding; State =:= drained ->
    gone(D);
handle_event(info, nodedown, _, _) ->
    keep_state_and_data;      % the monitor of the peer's link will tell
handle_event(info, {'DOWN', Monitor, process, _, Reason}, State,
             #link{peer = #peer{monitor = Monitor}} = D) ->
    case Reason of
        noconnection -> gone(D);
        _ -> bereaved(State, D)
    end;
handle_event(info, {'DOWN', Absence, process, _, Reason}, State, #link{absence = Absence} = D) ->
    D1 = D#link{absence = none},
    case State of
        down when Reason =:= noconnection -> down(lost_unreachable, D1);
        _ when Reason =:= noconnection -> gone(D1);
        drained -> enter(greeting, D1);
        _ when State =:= greeting; State =:= holding -> without_lanes(State, D1);
        _ -> {keep_state, D1}
    end;

%% The handshake.
handle_event(info, {hello, Pid, Session, _, Answer}, State,
             #link{peer = #peer{pid = Pid, session = Session}} = D) ->
    State =/= drained andalso Answer andalso say_hello(false, D),
    Answer andalso say_open(D),
    keep_state_and_data;
handle_event(info, {hello, _, _, _, Answer}, drained, D) ->
    Answer andalso decline(D),
    keep_state_and_data;
handle_event(info, {hello, Pid, Session, Hello, Answer}, State, D) ->
    greeted(Pid, Session, Hello, Answer, State, D);
handle_event(info, {open, Pid, Ours, Ref, Lanes}, State,
             #link{peer = #peer{pid = Pid, agreement = #{lanes := N}}, session = Ours} = D)
  when State =:= opening, length(Lanes) =:= N; State =:= up, length(Lanes) =:= N ->
    case D#link.wanted of
        {Ref, Lanes} ->
            D#link.inlets =/= [] andalso say(Pid, opened(D), D),
            keep_state_and_data;
        _ ->
            proceed(D#link{wanted = {Ref, Lanes}})
    end;
handle_event(info, {opened, Ref, Inlets}, opening,
             #link{opening = Ref, peer = #peer{agreement = #{lanes := N}}} = D)
  when length(Inlets) =:= N ->
    proceed(D#link{opened = {Inlets, none}});
handle_event(info, {opened, Ref, Inlets, Dock}, opening,
             #link{opening = Ref, peer = #peer{agreement = #{lanes := N}}} = D)
  when length(Inlets) =:= N, is_pid(Dock) ->
    proceed(D#link{opened = {Inlets, Dock}});
handle_event(info, {goodbye, Pid, Ref}, up, #link{peer = #peer{pid = Pid}} = D) ->
    D1 = set_path(wait, D),
    enter(closing, D1#link{goodbye = {Pid, Ref, drain(D1), lanes(D1)}});
handle_event(info, {goodbye, Pid, _}, opening, #link{peer = #peer{pid = Pid}, opened = {_, _}}) ->
    {keep_state_and_data, [postpone]};      % as soon as the lanes are ready this is up
handle_event(info, {goodbye, Pid, Ref}, _, D) ->
    ok = say(Pid, {goodbye_ok, Ref}, D),
    keep_state_and_data;

%% How far is the peer?
handle_event(info, {ping, Pid, Ref}, _, #link{peer = #peer{pid = Pid}} = D) ->
    ok = say(Pid, {pong, Ref}, D),
    keep_state_and_data;
handle_event(info, {pong, Ref}, up, #link{reach = Reach} = D) ->
    {keep_state, D#link{reach = trunkline_reach:pong(Ref, Reach)}};
handle_event(info, {measured, Ref, RoundTrip}, up, #link{reach = Reach} = D) ->
    reached(trunkline_reach:measured(Ref, RoundTrip, Reach), D);
handle_event({timeout, ping}, _, up, #link{reach = Reach} = D) ->
    reached(trunkline_reach:ping(Reach), D);
handle_event({timeout, look}, _, up, #link{reach = Reach} = D) ->
    Reach1 = trunkline_reach:look(Reach),
    {keep_state, D#link{reach = Reach1}, [wake(T) || {look, _} = T <- trunkline_reach:timers(Reach1)]};

%% There may be processes again.
handle_event({timeout, proceed}, _, opening, D) ->
    proceed(D);

%% The lanes answer.
handle_event(info, {lane_mode, Ref, Lane, {Queued, Unconfirmed}}, State,
             #link{changing = {Ref, Lanes}, lost = {Q, U}} = D) ->
    D1 = D#link{lost = {Q + Queued, U + Unconfirmed}},
    case lists:delete(Lane, Lanes) of
        [] -> changed(State, report(D1#link{changing = none}));
        Rest -> {keep_state, D1#link{changing = {Ref, Rest}}}
    end;
handle_event(info, {lane_mode, _, Lane, {Queued, Unconfirmed}}, _, #link{lost = {Q, U}} = D)
  when is_pid(Lane), node(Lane) =:= node() ->
    {keep_state, D#link{lost = {Q + Queued, U + Unconfirmed}}};
handle_event(info, {lane_drained, Drain, Lane}, closing,
             #link{goodbye = {Pid, Ref, Drain, Lanes}} = D) ->
    case lists:delete(Lane, Lanes) of
        [] ->
            ok = say(Pid, {goodbye_ok, Ref}, D),
            plain(D#link{goodbye = none});
        Rest ->
            {keep_state, D#link{goodbye = {Pid, Ref, Drain, Rest}}}
    end;
handle_event(info, {'EXIT', Pid, Reason}, State, D) ->
    case lists:member(Pid, D#link.finishing) of
        true ->
            D1 = D#link{finishing = lists:delete(Pid, D#link.finishing)},
            case State of
                opening -> proceed(D1);
                _ -> {keep_state, D1}
            end;
        false ->
            case lists:member(Pid, [D#link.bulk, D#link.trunk, D#link.dock | lanes(D) ++ D#link.inlets]) of
                true -> {stop, {shutdown_of, Pid, Reason}, D};
                false -> keep_state_and_data
            end
    end;

handle_event(info, {retired, Inlet}, State, D) ->
    case State of
        opening -> proceed(retired(Inlet, D));
        _ -> {keep_state, retired(Inlet, D)}
    end;

%% Time has passed.
handle_event(state_timeout, forget, down, #link{node = Node, absence = Connecting} = D) ->
    Connecting =:= none andalso trunkline_links:forget(Node),
    %% The runtime system may still name the node among those that are connected.
    {keep_state_and_data, timeouts(down, D)};
%% What the peer has got in the session before may not be delivered yet, and plain distribution
%% would overtake it. When the next session opens it has been.
handle_event(info, leave, State, #link{stats = Stats, hasty = false})
  when State =:= opening; State =:= holding ->
    {keep_state_and_data, [postpone, patience(Stats, infinity)]};
handle_event(info, leave, _, D) ->
    {stop, {shutdown, leave}, D};
handle_event(info, {drain, Ref, _}, down, _) ->
    answer_drain(Ref, noconnection),
    keep_state_and_data;
handle_event(info, {drain, Ref, _}, drained, _) ->
    answer_drain(Ref, ok),
    keep_state_and_data;
handle_event(info, {drain, _, Deadline}, State, #link{stats = Stats, hasty = false})
  when State =:= opening; State =:= holding ->
    {keep_state_and_data, [postpone, patience(Stats, Deadline)]};
handle_event({timeout, opening}, {Before, Deadline}, State, #link{stats = Stats} = D)
  when State =:= opening; State =:= holding ->
    %% Who takes leave waits no longer for the peer than in a session.
    case trunkline_leave:progress(Stats) =:= Before orelse trunkline_deadline:has_passed(Deadline) of
        true when State =:= opening -> bereaved(opening, D#link{hasty = true});
        true -> without_lanes(holding, unexpect(D#link{hasty = true}));
        false -> {keep_state_and_data, [patience(Stats, Deadline)]}
    end;
handle_event(info, {drain, Ref, Deadline}, _, D) when is_reference(Ref) ->
    drain(Ref, Deadline, D);
handle_event(info, {timeout, _, report}, _, D) ->
    {keep_state, report(D#link{reported = false})};
handle_event(info, Event, _, _) ->
    is_late(Event) orelse trunkline_process:unexpected(?MODULE, Event),
    keep_state_and_data;
handle_event(_, _, _, _) ->
    keep_state_and_data.

%% Of a session that has ended, or in the wrong state.
is_late(Event) when is_tuple(Event), tuple_size(Event) > 0 ->
    lists:member(element(1, Event), [hello, open, opened, goodbye, goodbye_ok, ping, pong,
                                     lane_mode, lane_drained, room, wait, unwait, drain, 'DOWN', timeout]);
is_late(Event) ->
    lists:member(Event, [nodeup, nodedown, again, connect]).

-spec terminate(term(), atom(), #link{}) -> ok.
terminate(Reason, State, #link{node = Node, route = Route} = D) ->
    Orderly = case Reason of
                  shutdown -> true;
                  {shutdown, _} -> true;
                  _ -> false
              end,
    case Route of
        #route{} when Orderly ->
            D1 = case take_leave(infinity, D) of
                     Through when Through =:= ok; Through =:= bereaved -> await_retired(retire(stand_in(drained, D)));
                     _ -> D
                 end,
            trunkline_leave:finish(D1#link.inlets ++ D1#link.finishing),
            ok = trunkline_speaker:finish(D1#link.speaker),
            _ = without_route(lost_queued, D1),
            trunkline_peers:delete(Node);
        none when Orderly; State =/= drained ->
            trunkline_peers:delete(Node);
        _ ->
            _ = set_path(wait, D),
            ok                % the next link does the rest: see init/1
    end.

%% --- the session ----------------------------------------------------------

say_hello(Answer, #link{session = Session, options = Options} = D) ->
    tell({hello, self(), Session, trunkline_handshake:hello(Options), Answer}, D).

say_open(#link{opening = none}) ->
    ok;
say_open(#link{opening = Ref, opened = none, peer = #peer{session = Session}} = D) ->
    tell({open, self(), Session, Ref, lanes(D)}, D);
say_open(_) ->
    ok.

%% To the link for this node, at the peer. Lost if there is none.
tell(Event, #link{node = Node} = D) -> say({trunkline_links, Node}, {trunkline, node(), Event}, D).

say(D) -> fun(To, Message) -> say(To, Message, D) end.

say(To, Message, #link{speaker = Speaker, session = Session}) ->
    trunkline_speaker:say(Speaker, Session, To, Message).

%% A link at the peer that we did not know has said hello.
greeted(Pid, Session, Hello, Answer, State, #link{options = Options} = D) ->
    case {trunkline_handshake:agree(trunkline_handshake:hello(Options), Hello), D#link.peer} of
        {{error, malformed}, #peer{}} ->
            %% No link says that.
            refuse(malformed, Hello, D),
            keep_state_and_data;
        {_, #peer{}} ->
            %% The news that the session before has ended is still under way.
            {next_state, State1, D1, Actions} = bereaved(State, D),
            case greeted(Pid, Session, Hello, Answer, State1, D1) of
                {keep_state, D2} -> {next_state, State1, D2, Actions};
                Next -> Next
            end;
        {{ok, Agreement}, none} ->
            Answer andalso say_hello(false, D),
            Next = agreed((unexpect(D))#link{peer = #peer{pid = Pid, monitor = watch(Pid, D),
                                                          session = Session, agreement = Agreement}}),
            %% Behind that, which others can see: if inboxes are about to start they look there.
            ok = trunkline_inboxes:has_spoken(D#link.node),
            Next;
        {{error, Why}, none} ->
            Answer andalso say_hello(false, D),
            refuse(Why, Hello, D),
            without_lanes(State, unexpect(D))
    end.

%% What the lanes hold may be more than the peer can do, if it could do more before.
agreed(#link{peer = #peer{agreement = #{capabilities := Capabilities}}, capabilities = Before} = D) ->
    D1 = D#link{capabilities = Capabilities},
    proceed(case Before -- Capabilities of
                [] -> D1;
                _ -> change_mode(direct, D1)
            end).

refuse(drained, _, _) ->
    ok;
refuse(Why, Hello, #link{node = Node}) ->
    ?LOG_WARNING("trunkline: no lanes to ~ts, whose hello is ~ts: ~tP",
                 [Node, Why, Hello, 30]).

%% On a new connection.
connected(D) ->
    hold(set_path(lanes, hail(D))).

%% Until the peer says hello, or it is clear that it will not.
hold(#link{route = none} = D) -> enter(greeting, D);
hold(D) -> enter(holding, expect(change_mode(hold, D))).

%% Says hello to a node that may have such a link. A hidden node may be none of Erlang's, as C
%% nodes are: those do not know of monitors, and the runtime system sends them none, while an
%% Erlang node answers at once that it has no process of this name, which none can have.
hail(#link{asked = Before, node = Node} = D) ->
    ok = unwatch(Before, D),
    case trunkline_peers:is_audience(Node) of
        true ->
            say_hello(true, D),
            D#link{asked = none};
        false ->
            D#link{asked = watch({undefined, Node}, D)}
    end.

%% It will not have lanes: senders use plain distribution, once lanes that hold
%% messages have delivered them so.
without_lanes(holding, D) -> {keep_state, change_mode(direct, set_path(wait, D))};
without_lanes(_, D) -> plain(D).

plain(D) -> enter(greeting, dismiss(again, set_path(direct, D))).

%% There is a message for a node that is down. To monitor a process there
%% sets up a connection, as `!' does, while this one goes on; and it tells when
%% that has failed.
connect(#link{absence = none} = D) -> expect(set_path(lanes, D));
connect(D) -> D.

%% With a peer that had lanes before it must become clear whether it will have
%% lanes again. If no process there has the name, it will not; else a link of
%% its says hello.
expect(#link{route = none} = D) ->
    D;
expect(#link{node = Node} = D) ->
    (unexpect(D))#link{absence = watch({trunkline_links, Node}, D)}.

watch(Object, #link{speaker = Speaker, session = Session}) ->
    trunkline_speaker:watch(Speaker, Session, Object).

unwatch(none, _) -> ok;
unwatch(Watch, #link{speaker = Speaker}) -> trunkline_speaker:unwatch(Speaker, Watch).

unexpect(#link{absence = Absence} = D) ->
    ok = unwatch(Absence, D),
    D#link{absence = none}.

%% Does what can be done next on the way up.
proceed(#link{changing = {_, _}} = D) ->
    enter(opening, D);
proceed(#link{peer = #peer{agreement = #{lanes := N} = Agreement}, route = Route, mode = Mode} = D) ->
    {Large, Limit} = Bulk = bulk(Agreement, D),
    case Route of
        none ->
            proceed(direct, make_lanes(N, Bulk, D), D);
        #route{lanes = Lanes, large = Large, bulk_limit = Limit} when tuple_size(Lanes) =:= N ->
            proceed_open(D);
        #route{} when Mode =:= direct ->
            Path = case path(D) of
                       direct -> direct;
                       _ -> lanes
                   end,
            proceed(Path, make_lanes(N, Bulk, D), D);
        #route{} ->
            %% Other lanes must not start before these have delivered.
            enter(opening, change_mode(direct, set_path(wait, D)))
    end.

proceed(Path, {ok, D}, _) -> proceed(set_path(Path, D));
proceed(_, {error, system_limit}, D) -> later(D).

%% There was no process left for what comes next.
later(D) ->
    {next_state, opening, D1, Actions} = enter(opening, D),
    {next_state, opening, D1, [{{timeout, proceed}, ?AGAIN, []} | Actions]}.

proceed_open(#link{opening = none} = D) ->
    D1 = D#link{opening = make_ref()},
    say_open(D1),
    proceed_open(D1);
proceed_open(#link{mode = direct} = D) ->
    %% A server may reply to a request of the new session before the lanes may send.
    enter(opening, change_mode(hold, D));
proceed_open(#link{wanted = {_, Theirs}, inlets = [], finishing = []} = D) ->
    #link{peer = #peer{pid = Pid, agreement = #{window_bytes := Window}}, route = Route} = D,
    Start = fun() ->
                    Inlets = [trunkline_inlet:start_link(Ix, Lane, Window, Route)
                              || {Ix, Lane} <- lists:zip(lists:seq(1, length(Theirs)), Theirs)],
                    {Inlets, case Route of
                                 #route{large = infinity} -> none;
                                 _ -> trunkline_dock:start_link(Inlets, D#link.stats)
                             end}
            end,
    case trunkline_process:start_all(Start) of
        {ok, {Inlets, Dock}} ->
            D1 = D#link{inlets = Inlets, dock = Dock},
            _ = enter(opening, D1),
            ok = trunkline_monitors:lanes(D1#link.node),
            ok = say(Pid, opened(D1), D1),
            proceed_open(D1);
        {error, system_limit} ->
            later(D)
    end;
proceed_open(#link{opened = {Opened, Dock}, inlets = [_ | _]} = D) ->
    #link{node = Node, options = Options, stats = Stats} = D,
    Start = fun() ->
                    [trunkline_trunk:start_link(Cargo, Node, Dock, {Options, Stats})
                     || Cargo <- [large, batches]]
            end,
    case Dock =:= none orelse trunkline_process:start_all(Start) of
        true -> be_up(Opened, none, none, D);
        {ok, [Bulk, Trunk]} -> be_up(Opened, Bulk, Trunk, D);
        {error, system_limit} -> later(D)
    end;
proceed_open(D) ->
    enter(opening, D).

be_up(Opened, Bulk, Trunk, #link{peer = Peer, stats = Stats} = D) ->
    #peer{pid = Pid, agreement = #{window_bytes := Window}} = Peer,
    Ref = make_ref(),
    lists:foreach(fun({Lane, Inlet}) ->
                          trunkline_lane:set_mode(Lane, Ref, {send, {Inlet, Bulk, Trunk}, Window})
                  end, lists:zip(lanes(D), Opened)),
    trunkline_stats:add(Stats, peer, sessions, 1),
    D1 = set_path(lanes, D#link{mode = send, hasty = false, changing = {Ref, lanes(D)}, bulk = Bulk, trunk = Trunk}),
    {next_state, up, D2, Actions} = enter(up, dismiss(again, D1)),
    Reach = trunkline_reach:up(Pid, Trunk, D2#link.reach),
    {next_state, up, D2#link{reach = Reach}, [wake(T) || T <- trunkline_reach:timers(Reach)] ++ Actions}.

%% A peer that does not know of a dock does not ask for one.
opened(#link{wanted = {Ref, _}, inlets = Inlets, dock = none}) -> {opened, Ref, Inlets};
opened(#link{wanted = {Ref, _}, inlets = Inlets, dock = Dock}) -> {opened, Ref, Inlets, Dock}.

%% From what charge on a message is large, to this peer, and the limit for all of them.
bulk(#{capabilities := Capabilities, bulk_bytes := Limit}, #link{options = #{large_bytes := Bytes}}) ->
    {case lists:member(large, Capabilities) of
         true -> trunkline_gate:least(Bytes);
         false -> infinity
     end, trunkline_gate:limit(Limit)}.

%% The lanes are all in the mode that was asked for.
changed(opening, D) ->
    proceed(D);
changed(holding, #link{mode = direct} = D) ->
    plain(D);
changed(_, D) ->
    {keep_state, D}.

%% The connection is lost.
gone(D) ->
    Session = make_ref(),
    ok = trunkline_speaker:session(D#link.speaker, Session),
    D1 = end_session(D#link{session = Session, hasty = false, reach = trunkline_reach:disconnected(D#link.reach)}),
    down(lost_queued, unexpect(D1)).

%% What was to go by the connection that was lost, or that could not be made, is lost.
down(Lost, D) ->
    enter(down, dismiss({gone, Lost}, set_path(down, change_mode({absent, Lost}, no_stand_in(D))))).

%% The peer's link is gone, the connection is not.
bereaved(State, D) ->
    D1 = end_session(case State of
                         _ when State =:= greeting; State =:= drained -> retire(D);     % we have taken leave
                         _ -> D
                     end),
    case path(D1) of
        direct when State =:= drained -> enter(drained, change_mode(direct, D1));
        direct -> enter(greeting, dismiss(again, change_mode(direct, D1)));
        _ when State =:= closing -> enter(holding, change_mode(direct, D1));
        _ -> hold(D1)
    end.

end_session(#link{peer = Peer, inlets = Inlets, finishing = Finishing} = D) ->
    lists:foreach(fun trunkline_inlet:finish/1, Inlets),
    lists:foreach(fun end_with_session/1, [P || P <- [D#link.bulk, D#link.trunk, D#link.dock], P =/= none]),
    trunkline_trunk:ended(D#link.stats),
    case Peer of
        #peer{monitor = Monitor} -> unwatch(Monitor, D);
        none -> ok
    end,
    D#link{peer = none, opening = none, opened = none, wanted = none, goodbye = none,
           bulk = none, trunk = none, dock = none, reach = trunkline_reach:down(D#link.reach),
           inlets = [], finishing = Inlets ++ Finishing}.

%% What it has is of no use in another session.
end_with_session(Pid) ->
    unlink(Pid),
    exit(Pid, kill).

%% Both sides deliver what they have.
take_leave(Deadline, #link{stats = Stats} = D) ->
    case trunkline_leave:take(farewell(set_path(wait, D)), Stats, Deadline) of
        bereaved ->
            %% The peer's link has died, or has left without an answer.
            case trunkline_leave:take(farewell(D#link{mode = hold}), Stats, Deadline) of
                ok -> bereaved;
                Result -> Result
            end;
        Result ->
            Result
    end.

farewell(#link{mode = send, peer = #peer{pid = Pid, monitor = Monitor}, goodbye = Goodbye} = D) ->
    Owed = case Goodbye of
               {Peer, Theirs, _, _} -> [{Peer, Theirs}];
               none -> []
           end,
    #{session => {Pid, Monitor, Owed}, say => say(D), ref => drain(D), lanes => lanes(D)};
farewell(#link{route = none} = D) ->
    #{session => none, say => say(D), ref => make_ref(), lanes => []};
farewell(#link{route = Route} = D) ->
    %% What the lanes of a peer that is down keep goes with the connection that is being made.
    Connecting = case lists:any(fun({_, Level}) -> Level > 0 end, trunkline_route:levels(Route)) of
                     true when D#link.mode =:= absent -> expect(D);
                     _ -> D
                 end,
    #link{changing = {Ref, Lanes}} = change_mode(direct, Connecting),
    #{session => none, say => say(D), ref => Ref, lanes => Lanes}.

%% The peer may be sending already: its messages are for inlets of this session.
patience(Stats, Deadline) ->
    {{timeout, opening}, trunkline_leave:patience(Deadline), {trunkline_leave:progress(Stats), Deadline}}.

%% It takes as long as a stop, and as then nothing else is done meanwhile.
drain(Ref, Deadline, D) ->
    Result = case path(D) of
                 direct -> ok;                   % the peer has been quicker, or there are no lanes
                 _ -> take_leave(Deadline, D)
             end,
    D1 = unexpect(D#link{goodbye = none}),
    case D1 of
        _ when Result =:= noconnection ->
            answer_drain(Ref, noconnection),
            gone(D1);
        #link{peer = #peer{agreement = #{capabilities := Capabilities}}, mode = send}
          when Result =:= ok; Result =:= bereaved ->
            case lists:member(drain, Capabilities) of
                true ->
                    {next_state, drained, D2, Actions} = be_drained(D1),
                    answer_drain(Ref, ok),
                    case Result of
                        ok -> {next_state, drained, D2, Actions};
                        bereaved -> bereaved(drained, D2)      % its 'DOWN' has been here
                    end;
                false ->
                    drained_alone(Ref, ok, D1)
            end;
        _ when Result =:= bereaved ->
            drained_alone(Ref, ok, D1);
        _ ->
            drained_alone(Ref, Result, D1)
    end.

%% The session has ended here: so it must there.
drained_alone(Ref, Result, #link{inlets = Inlets, finishing = Finishing} = D) ->
    trunkline_leave:finish(Inlets ++ Finishing),
    Next = be_drained(without_route(lost_queued, end_session(D))),
    answer_drain(Ref, Result),
    trunkline_peers:is_audience(D#link.node) andalso decline(D),
    Next.

be_drained(#link{node = Node} = D) ->
    Drained = dismiss(again, set_path(direct, D)),
    enter(drained, Drained#link{absence = watch({trunkline_sup, Node}, Drained)}).

answer_drain(Ref, Result) ->
    Ref ! {Ref, Result},
    ok.

%% Whatever has been said before.
decline(#link{options = Options} = D) ->
    tell({hello, self(), make_ref(), trunkline_handshake:no_hello(Options), false}, D).

%% Also what was to be done by a timer is done earlier: it starts anew.
reached(Reach, D) ->
    {keep_state, D#link{reach = Reach}, [wake(T) || T <- trunkline_reach:timers(Reach)]}.

wake({Name, Time}) -> {{timeout, Name}, Time, []}.

%% --- the lanes ------------------------------------------------------------

%% The lanes before them, if there are any, end.
make_lanes(N, {Large, _} = Bulk, #link{node = Node, options = Options, stats = Stats} = D) ->
    Gate = trunkline_gate:new(N),
    Start = fun() ->
                    [trunkline_lane:start_link(Ix, Node, #{gate => Gate, bulk => {N + 1, Large},
                                                           stats => Stats, options => Options})
                     || Ix <- lists:seq(1, N)]
            end,
    case trunkline_process:start_all(Start) of
        {ok, Started} -> {ok, publish(Started, Gate, Bulk, end_lanes(D))};
        {error, _} = Error -> Error
    end.

publish(Started, Gate, {Large, Limit}, #link{node = Node, options = Options, stats = Stats} = D) ->
    {Lanes, Aliases} = lists:unzip(Started),
    Route = #route{link = self(), gate = Gate, stats = Stats,
                   lanes = list_to_tuple(Lanes), aliases = list_to_tuple(Aliases),
                   limit = trunkline_gate:limit(maps:get(queue_bytes, Options)),
                   large = Large,
                   bulk_limit = Limit},
    ok = trunkline_route:publish(Node, Route),
    D#link{route = Route, mode = hold}.

%% From here on senders use plain distribution.
without_route(_, #link{route = none} = D) ->
    D;
without_route(Why, #link{node = Node} = D) ->
    count_lost(Why, do_without_lanes(kill, D), D),
    _ = set_path(direct, D),
    _ = trunkline_route:withdraw(Node),
    D#link{route = none, mode = hold, changing = none}.

%% Only of lanes whose gates have been closed and that hold nothing, unless a
%% sender has been on its way in for all this time.
end_lanes(#link{route = none} = D) ->
    D;
end_lanes(#link{route = #route{gate = Gate}} = D) ->
    ok = trunkline_gate:set_path(Gate, wait),
    count_lost(lost_queued, do_without_lanes(shutdown, D), D),
    D#link{route = none}.

%% Servers reply to a lane.
do_without_lanes(Reason, #link{retired = Retired} = D) ->
    Inlets = lists:filter(fun is_process_alive/1, Retired),
    lists:foreach(fun(Lane) when Inlets =:= [] -> unlink(Lane), exit(Lane, Reason);
                     (Lane) -> ok = trunkline_process:outlive(Lane), unlink(Lane), trunkline_lane:retire(Lane, Inlets)
                  end, lanes(D)),
    case Inlets of
        [] -> dead;
        _ -> retired
    end.

lanes(#link{route = #route{lanes = Lanes}}) -> tuple_to_list(Lanes);
lanes(_) -> [].

path(#link{route = #route{gate = Gate}}) -> trunkline_gate:path(Gate);
path(_) -> direct.

set_path(_, #link{route = none} = D) ->
    D;
set_path(Path, #link{route = Route} = D) ->
    ok = trunkline_route:set_path(Path, Route),
    D.

%% They answer with the reference.
drain(D) ->
    Ref = make_ref(),
    lists:foreach(fun(Lane) -> trunkline_lane:drain(Lane, Ref) end, lanes(D)),
    Ref.

%% A newer change overtakes one that is not complete.
change_mode(_, #link{route = none} = D) ->
    D;
change_mode(Mode, D) ->
    Ref = make_ref(),
    lists:foreach(fun(Lane) -> trunkline_lane:set_mode(Lane, Ref, Mode) end, lanes(D)),
    D#link{mode = case Mode of
                      {absent, _} -> absent;
                      _ -> Mode
                  end, changing = {Ref, lanes(D)}}.

%% --- who waits ------------------------------------------------------------

await(Ref, What, #link{route = Route, room = Room} = D) ->
    case {path(D), What} of
        {direct, _} ->
            answer(Ref, {again, new});
        {lanes, session} when D#link.inlets =/= [] ->
            answer(Ref, {again, new});
        {down, session} ->
            {keep_state, connect(D#link{room = trunkline_room:add(Ref, What, Room)})};
        {_, session} ->
            {keep_state, D#link{room = trunkline_room:add(Ref, What, Room)}};
        {_, {room, Ix, _, _}} when Ix > tuple_size(Route#route.lanes) + 1 ->
            answer(Ref, {again, new});             % there were more lanes
        {_, {room, Ix, _, _}} ->
            Room1 = trunkline_room:release(Ix, Route, trunkline_room:add(Ref, What, Room)),
            {keep_state, D#link{room = Room1},
             [recheck() || not trunkline_room:is_awaited(Room), trunkline_room:is_awaited(Room1)]};
        _ ->
            keep_state_and_data                % nobody of ours says that
    end.

answer(Ref, Answer) ->
    ok = trunkline_room:answer(Ref, Answer),
    keep_state_and_data.

dismiss(Answer, #link{room = Room} = D) ->
    D#link{room = trunkline_room:dismiss(Answer, Room)}.

recheck() -> {{timeout, recheck}, ?RECHECK, []}.

%% --- what others see ------------------------------------------------------

enter(State, #link{node = Node, peer = Peer} = D0) ->
    D = stand_in(State, D0),
    ok = trunkline_peers:put(
           Node, #{state => State, link => self(), stats => D#link.stats,
                   since => erlang:system_time(millisecond),
                   inlets => D#link.inlets, finishing => D#link.finishing, stand_in => D#link.stand_in,
                   agreement => case Peer of
                                    #peer{agreement = Agreement} -> Agreement;
                                    none -> none
                                end,
                   capabilities => D#link.capabilities}),
    {next_state, State, D, timeouts(State, D)}.

%% Requests that are in the lanes before there is a session, or none.
stand_in(_, #link{route = none, stand_in = none} = D) ->
    D;
stand_in(State, #link{inlets = [], stand_in = none} = D) when State =:= down; State =:= holding; State =:= opening ->
    D#link{stand_in = trunkline_stand_in:start(self())};
stand_in(_, #link{stand_in = none} = D) ->
    D;
stand_in(State, #link{inlets = [_ | _] = Inlets, stand_in = StandIn} = D) when State =:= opening; State =:= up ->
    ok = trunkline_stand_in:session(StandIn, Inlets),
    D#link{stand_in = none};
stand_in(State, #link{node = Node, stand_in = StandIn} = D) when State =:= greeting; State =:= drained ->
    ok = trunkline_stand_in:plain(StandIn, Node),
    D#link{stand_in = none};
stand_in(_, D) ->
    D.

%% The requests of those who watch it are lost.
no_stand_in(#link{stand_in = none} = D) ->
    D;
no_stand_in(#link{stand_in = StandIn} = D) ->
    ok = trunkline_stand_in:stop(StandIn),
    D#link{stand_in = none}.

%% Of a peer with which there has been no session there is nothing to keep.
timeouts(down, #link{stats = Stats}) ->
    [{state_timeout, case trunkline_stats:get(Stats, peer, sessions) of
                         0 -> ?FORGET_STRANGER;
                         _ -> ?FORGET
                     end, forget}];
timeouts(_, _) ->
    [].

%% What has been lost, as soon as it is known, but not more often than that.
report(#link{lost = {0, 0}} = D) ->
    D;
report(#link{reported = true} = D) ->
    D;
report(#link{node = Node, lost = {0, Unconfirmed}} = D) ->
    ?LOG_NOTICE("trunkline: ~ts had not acknowledged ~b messages when the session ended; they may "
                "have arrived", [Node, Unconfirmed]),
    reported(D);
report(#link{node = Node, lost = {Queued, Unconfirmed}} = D) ->
    ?LOG_WARNING("trunkline: ~b messages to ~ts were lost, which were queued; it had not acknowledged "
                 "another ~b, which may have arrived", [Queued, Node, Unconfirmed]),
    reported(D).

reported(D) ->
    _ = erlang:start_timer(?REPORT, self(), report),
    D#link{lost = {0, 0}, reported = true}.
