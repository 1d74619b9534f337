%% A session as one of its two peers sees it: all of the decisions, and no process.
%%
%% An event goes in; out come the new state and the effects that follow from it, in order:
%%
%%     {Session1, Effects} = step(Event, Session)
%%
%% trunkline_link is the process around this module. It turns messages into events, carries the
%% effects out, and decides nothing. This module reads no clock, table or counter, and takes nothing
%% from outside but new references. So a property test can play two sessions against each other,
%% thousands of times a second (session_SUITE).
%%
%% The protocol. A session begins when two links greet each other, and ends with either of them, or
%% with the connection:
%%
%%     link at A                                   link at B
%%       | -- hello (what I can do, my session) ---> |    each, when the nodes connect
%%       | <--- hello (what I can do, my session) -- |    (by way of trunkline_links)
%%       |                                           |
%%       | -- open (my lanes) ---------------------> |    each for its own lanes
%%       | <------- opened (inlets for them, dock) - |
%%       |                                           |
%%       | == batches ==============> inlets         |    up: my lanes have inlets,
%%       | <============== batches == lanes          |    and so have yours
%%       |                                           |
%%       | -- goodbye -----------------------------> |    to stop, or to drain: both close their
%%       | == what the lanes hold =================> |    gates, and deliver what is inside
%%       | <================ what its lanes hold === |
%%       | <--------------------------- goodbye_ok - |    its lanes are done
%%       |                                           |
%%       |       from here on: plain distribution    |
%%
%% Both may say goodbye at the same time. Each then answers the other when its own lanes are done.
%%
%% The phases. The path tells a refused sender what to do; the order is the last one that the lanes
%% were given:
%%
%%     phase      what is going on                        path             order to the lanes
%%     -------------------------------------------------------------------------------------------
%%     down       no connection; what is sent makes one   down; lanes,     absent
%%                                                        while it is made
%%     greeting   connected, without lanes                direct           none, direct, or send
%%     holding    will the peer have lanes again?         lanes            hold
%%     opening    agreed; lanes and inlets are prepared   as before, or    hold (direct first, if
%%                                                        direct; wait, if the lanes must change)
%%                                                        we leave
%%     up         messages go by lane                     lanes            send
%%     suspended  the connection is lost; both keep all,  as before        suspend, or as before
%%                and connect again
%%     closing    the lanes deliver what they have, and   wait, or direct; drain (send), direct,
%%                then the inlets, if we leave            lanes, if the    or absent
%%                                                        peer is silent
%%     drained    without lanes until they connect again  direct           send, or direct
%%     ended      the link ends too
%%
%%     down ── nodeup ──> greeting ── hello ──> opening ── opened ──> up ── goodbye ──> closing
%%                                                                                      │
%%     greeting <──────────── the peer has left, or has no Trunkline ───────────────────┤
%%     drained <───────────── we drain ─────────────────────────────────────────────────┤
%%     ended <─────────────── we stop ──────────────────────────────────────────────────┘
%%
%%     opening, up ── the peer's link dies ──> holding ── hello ──> opening
%%     down ── nodeup, with lanes ───────────> holding ── no Trunkline there ──> closing
%%     drained ── Trunkline stops there ─────> greeting
%%     opening, up ── the connection is lost ──> suspended ── hello ──> opening, up
%%     any of them ── the connection is lost ──> down
%%
%% A fault ends the session in one of two ways:
%%
%%   * The connection is lost for good. What the lanes hold is lost with it, and counted. Nothing
%%     that was meant for one connection may travel on the next one, so the next session has another
%%     name.
%%   * The peer's link dies, or Trunkline stops there. The lanes keep what they have. If another
%%     link says hello they go on with that link. If the peer no longer runs Trunkline they deliver
%%     by plain distribution, and senders then use it, too.
%%
%% In both cases the inlets deliver what has arrived, and no new ones start before they have ended.
%% So nothing is overtaken.
%%
%% If both peers have agreed on a resume_time, a session outlives its connection. Each side finds
%% out for itself that the connection is lost, perhaps only when the next one is there. It suspends
%% its lanes and connects again: at once, or after a pause if the last connection did not last. On
%% each new connection it says hello under the name of its session, and names the peer's session:
%%
%%     link at A                                       link at B
%%       | -- hello (session a, that resumes b) --------> |    is in session b with a: goes on
%%       | <-------- (session b, that resumes a) hello -- |
%%       |                                                |
%%     lanes -- resume -----------------------------> inlets   each lane asks,
%%       | <---------------------- resumed (expects 17) - |    as soon as its link goes on
%%       | == batches from 17 on =======================> |
%%
%% Neither side needs to know the other's phase. A side that is up already also answers the question
%% of a lane, and a hello. A side that hears of the next connection before it has noticed the loss
%% of the last one suspends the session first. The session ends if a hello comes from another link
%% or in another session, if the time runs out, or at the news that the node is gone. A side that
%% was opening the session goes on opening it. If a side is leaving when the connection is lost, the
%% session ends.
%%
%% A stop is a drain, after which the link ends. Neither begins while the session opens: what the
%% peer's inlets received in the session before may not have been delivered yet, and plain
%% distribution would overtake it. Neither begins while the session is suspended.
%%
%% Patience ends when nothing has moved for a while (effect patience, event stalled). A stop then
%% ends the session without the peer, and a second later without its own inlets, which may wait for
%% the peer as well. If the peer has answered, a stop has new patience for its inlets. A drain
%% answers its callers, and goes on: if senders used plain distribution now they would overtake what
%% the peer has not delivered. But they should not wait for a peer that stands still. So the gates
%% open again, up to their bounds, and close with the next sign that the drain can be completed.
%% Requests that come meanwhile join the one that is under way.
%%
%% After a drain the session stays, for replies to requests that were under way and for news of
%% monitored processes, until the connection is lost.
%%
%% While the node is down the lanes keep what comes. The first message makes a connection. If that
%% fails, what the lanes hold is lost.
-module(trunkline_session).
-moduledoc false.

-export([new/1, step/2]).
-export([phase/1, peer/1, agreement/1, capabilities/1]).

-export_type([session/0, phase/0, event/0, role/0, layout/0]).

-type phase() :: down | greeting | holding | opening | up | suspended | closing | drained | ended.

%% The number of lanes, the charge from which on a message is large, and the limit of all large
%% messages together.
-type layout() :: {Lanes :: pos_integer(), Large :: trunkline_gate:charge(),
                  Limit :: trunkline_gate:charge()}.

-type config() ::
        #{link := pid(),                                 % this one
          hello := trunkline_handshake:hello(),
          large_bytes := pos_integer(),
          node := down | {connected | drained, trunkline_peers:connection(),
                          IsAudience :: boolean()},
          lanes := none | {layout(), [pid()]},            % empty ones
          capabilities := [trunkline_handshake:capability()],   % the last agreed
          has_met := boolean()}.                         % there was a session with the peer

%% What a link watches: the peer's link; Trunkline's supervisor there, without which the peer does
%% not run Trunkline, or no longer; a name that no process has, which only Erlang nodes answer.
-type role() :: peer | supervisor | asked.
-type timer() :: retry | finish | forget | connect | resume | settled.

-type event() ::
        %% The node. If it is not an audience it may not be an Erlang node: it is sent nothing until
        %% it has spoken of Trunkline itself. A nodeup for the connection that the session already
        %% has means that a message of the peer's link may have been missed.
        {nodeup, trunkline_peers:connection(), IsAudience :: boolean()} | nodedown
      | {down, role(), Reason :: term()}
      | gone                             % the node's host says that the node has ended
        %% From the peer's link.
      | {hello, pid(), Session :: reference(), trunkline_handshake:hello(), Answer :: boolean()}
      | {open, pid(), Session :: reference(), reference(), Lanes :: [pid()]}
      | {opened, reference(), Inlets :: [pid()], Dock :: pid()}
      | {goodbye, pid(), reference()}
      | {goodbye_ok, reference()}
        %% From this node.
      | connect                          % a lane has a message for a node that is down
      | stop
      | {drain, Caller :: gen_server:from()}
        %% Outcomes of effects.
      | {started, lanes, [pid()]}
      | {started, inlets, {[pid()], Dock :: pid()}}
      | {started, trunk}
      | system_limit                     % one of these could not be started
      | lanes_ready                      % all have carried out their last order
      | finished                         % no inlet of an earlier session is left
      | stalled                          % patience has ended
      | {timeout, timer()}.

-type effect() ::
        %% What is said and watched from here on is for another connection, with this name. The
        %% speaker drops what it has not carried out yet.
        {connection, reference()}
      | ask_if_gone                      % find out whether the node has ended; maybe event gone
      | {say, links | pid(), Message :: tuple()}
        %% `watch' uses the existing connection. `connect' watches the supervisor, over a new
        %% connection if there is none.
      | {watch, role(), supervisor | nobody | pid()} | {connect, role()} | {unwatch, role()}
      | {path, trunkline_gate:path()}
        %% To the lanes, if there are any; see lanes_ready.
      | {order, hold | direct | drain | suspend | resume | {absent, trunkline_room:lost()}
              | {send, Inlets :: [pid()], WindowBytes :: pos_integer(),
                 trunkline_channels:sent()}}
        %% Answered by an event, before any other event. Existing lanes end, new ones hold.
      | {start, {lanes, layout()}
              | {inlets, Lanes :: [pid()], WindowBytes :: pos_integer()}
              | {trunk, Dock :: pid()}}
        %% The inlets deliver and end, or outlive the session with their counterparts, for callers
        %% that wait for replies. Everything else of the session ends. `lost': with its connection.
      | {end_session, finish | lost | {retire, Counterparts :: [pid()]}}
      | {dismiss, again | {gone, trunkline_room:lost()}}     % all who wait for room or a session
      | {enter, phase()}
      | {count, sessions | resumed}
      | {patience, start | cancel}       % it ends with event stalled
      | {timer, timer(), Milliseconds :: pos_integer()}
      | {answer, gen_server:from(), ok | timeout | noconnection}
      | {refused, malformed | incompatible, Hello :: term()}
      | forget                           % the peer
      | stop.

%% ms
-define(AGAIN, 200).               % when there was no process left
-define(FINISH, 1000).             % for the inlets of a session whose peer is silent
-define(FORGET, 3_600_000).        % after which a peer that is gone is forgotten
-define(FORGET_STRANGER, 1000).    % the same, of a node with which there was no session
-define(PAUSE, 50).                % before another attempt to connect; longer each time
-define(LONGEST_PAUSE, 1000).
-define(SETTLED, 1000).            % a connection that ends sooner did not last
-define(LONGEST_UNSETTLED, 500).

-record(peer,
        {link :: pid(),
         session :: reference(),                     % its name there
         agreement :: trunkline_handshake:agreement()}).

-record(session,
        {config :: config(),
         phase = down :: phase(),
         name = make_ref() :: reference(),
         connection = none :: none | trunkline_peers:connection(),
         is_audience = true :: boolean(),            % see event()
         has_met :: boolean(),                       % there was a session
         supervisor = none :: none | connecting | watched,   % how the one there is watched
         peer = none :: none | #peer{},
         capabilities :: [trunkline_handshake:capability()],
         %% Our lanes; their last order, and whether they have carried it out; our request that the
         %% peer open inlets for them, and its inlets.
         lanes = none :: none | {layout(), [pid()]},
         path = direct :: trunkline_gate:path(),
         mode = hold :: hold | direct | absent | send,
         is_ready = true :: boolean(),
         our_open = none :: none | reference(),
         their_inlets = none :: none | {Inlets :: [pid()], Dock :: pid()},
         %% The peer's lanes, and our inlets for them.
         their_open = none :: none | {reference(), [pid()]},
         our_inlets = none :: none | {[pid()], Dock :: pid()},
         is_finishing = false :: boolean(),          % inlets of earlier sessions are left
         %% Goodbyes that have not been answered: ours, and the peer's.
         our_goodbye = none :: none | reference(),
         their_goodbye = none :: none | reference() | answered,
         %% How long to wait before the next attempt to connect while it is suspended. 0: the last
         %% connection has lasted for a while.
         pause = 0 :: non_neg_integer(),
         %% Whether we are to leave, and have begun; and who is told of it. A drain without callers
         %% has stalled, and goes on.
         leaving = none :: none | drain | stop,
         has_begun = false :: boolean(),
         callers = [] :: [gen_server:from()],
         %% The effect patience is in force (and need not begin again).
         is_patient = false :: boolean(),
         effects = [] :: [effect()]}).               % of this step, the last one first
-opaque session() :: #session{}.

-spec new(config()) -> {session(), [effect()]}.
new(#{node := Node, lanes := Lanes, capabilities := Capabilities, has_met := HasMet} = Config) ->
    S0 = #session{config = Config, lanes = Lanes, capabilities = Capabilities, has_met = HasMet},
    S = connection(S0),
    effects(case Node of
                down -> down(lost_queued, S);
                {connected, Connection, IsAudience} ->
                    connected(set_connection(Connection, IsAudience, S));
                %% The previous link may not have answered a hello.
                {drained, Connection, IsAudience} ->
                    decline(be_drained(set_connection(Connection, IsAudience, S)))
            end).

-spec step(event(), session()) -> {session(), [effect()]}.
step(Event, S) -> effects(next(event(Event, S))).

-spec phase(session()) -> phase().
phase(#session{phase = Phase}) -> Phase.

-spec peer(session()) -> pid() | none.
peer(#session{peer = #peer{link = Link}}) -> Link;
peer(_) -> none.

-spec agreement(session()) -> trunkline_handshake:agreement() | none.
agreement(#session{peer = #peer{agreement = Agreement}}) -> Agreement;
agreement(_) -> none.

%% What the peer and this node agreed on last.
-spec capabilities(session()) -> [trunkline_handshake:capability()].
capabilities(#session{capabilities = Capabilities}) -> Capabilities.

%% --- events ---------------------------------------------------------------

-spec event(event(), #session{}) -> #session{}.
event(_, #session{phase = ended} = S) ->
    S;

%% The node comes and goes.
event({nodeup, Connection, IsAudience}, #session{phase = down} = S) ->
    connected(set_connection(Connection, IsAudience, S));
event(Change, #session{phase = closing, leaving = stop, supervisor = connecting} = S)
  when Change =:= nodedown; element(1, Change) =:= nodeup ->
    S;                                 % we leave a node that is down, and wait for a connection
event({nodeup, Connection, IsAudience}, #session{phase = suspended} = S) ->
    %% What was meant for the connection before is not done on this one.
    S1 = connection(set_connection(Connection, IsAudience, S)),
    hello_or_probe(watch_supervisor(S1));
event({nodeup, Connection, _}, #session{connection = Connection, phase = drained} = S) ->
    stay_drained(S);
event({nodeup, Connection, IsAudience}, #session{connection = Connection} = S) ->
    say_open(hello_or_probe(S#session{is_audience = IsAudience}));
event({nodeup, _, _} = Up, S) ->
    %% If there is a session it belongs to an earlier connection. The news that this was lost has
    %% been missed, or is still under way.
    case lost(S) of
        #session{phase = Phase} = S1 when Phase =:= down; Phase =:= suspended -> event(Up, S1);
        S1 -> S1
    end;
event(nodedown, #session{phase = down, path = lanes} = S) ->
    connect(S);                        % a connection may have been made, and its nodeup missed
event(nodedown, #session{phase = Phase, peer = Peer} = S)
  when Phase =:= greeting; Phase =:= drained; Phase =/= down, Peer =:= none ->
    disconnected(S);
event(nodedown, S) ->
    S;                                 % the watch on the peer's link will tell
event(connect, #session{phase = down, supervisor = none, lanes = {_, _}} = S) ->
    connect(path(lanes, S));
event(connect, S) ->
    S;

%% What is watched does not exist, or ends.
event({down, peer, noconnection}, #session{peer = #peer{}} = S) ->
    lost(S);
event({down, peer, noproc}, #session{peer = #peer{}, phase = opening} = S) ->
    %% Its hello has come late: it had been killed. That of its successor may have come before,
    %% which then counts on a session that has ended here.
    begin_again(S);
event({down, peer, _}, #session{peer = #peer{}} = S) ->
    peer_link_down(S);
event({down, supervisor, noconnection}, #session{phase = down} = S) ->
    down(lost_unreachable, S#session{supervisor = none});
event({down, supervisor, noconnection}, #session{phase = suspended} = S) ->
    connect_later(?LONGEST_PAUSE, effect(ask_if_gone, S#session{supervisor = none}));
event({down, supervisor, noconnection}, #session{phase = holding, supervisor = connecting} = S) ->
    %% Our attempt to connect has failed, and another connection was made meanwhile.
    watch_supervisor(S#session{supervisor = none});
event({down, supervisor, noconnection}, S) ->
    disconnected(S#session{supervisor = none});
event({down, supervisor, _}, #session{phase = suspended} = S) ->
    over(S);
event({down, supervisor, _}, #session{phase = drained} = S) ->
    %% It may have started again, and been declined.
    hello_or_probe(enter(greeting, S#session{supervisor = none}));
event({down, supervisor, _}, S) ->
    without_lanes(S#session{supervisor = none});
event({down, asked, noproc}, #session{phase = Phase} = S)
  when Phase =:= greeting; Phase =:= holding; Phase =:= suspended ->
    say_hello(true, S);
event(gone, #session{phase = suspended} = S) ->
    over(S);
event(gone, S) ->
    S;
event({down, _, _}, S) ->
    S;

%% The handshake.
event({hello, Link, Name, #{resume := Ours}, Answer},
      #session{phase = suspended, name = Ours, peer = #peer{link = Link, session = Name}} = S) ->
    resumed(reply(Answer, S));
event({hello, _, _, _, _} = Hello, #session{phase = down} = S) ->
    %% It came by a connection whose nodeup was missed, or whose nodedown is still under way.
    event(Hello, connected(S#session{is_audience = true}));
event({hello, _, _, _, _} = Hello, #session{phase = suspended} = S) ->
    event(Hello, disconnected(S));
event({hello, Link, Name, _, Answer}, #session{peer = #peer{link = Link, session = Name}} = S) ->
    case S#session.phase of
        _ when not Answer -> S;
        drained -> S;
        _ -> say_open(say_hello(false, S))
    end;
event({hello, _, _, _, _} = Hello, #session{phase = drained, peer = #peer{}} = S) ->
    event(Hello, peer_link_down(S));         % the news that the peer's link has died is under way
event({hello, _, _, _, true}, #session{phase = drained} = S) ->
    stay_drained(S#session{is_audience = true});
event({hello, _, _, _, false}, #session{phase = drained} = S) ->
    S;
event({hello, _, _, _, _} = Hello, S) ->
    greeted(Hello, S#session{is_audience = true});
event({open, Link, Name, Ref, Lanes}, #session{name = Name, peer = #peer{link = Link}} = S) ->
    wanted(Ref, Lanes, S);
event({open, _, _, _, _}, S) ->
    S;
event({opened, Ref, Inlets, Dock},
      #session{phase = opening, our_open = Ref, their_inlets = none,
               peer = #peer{agreement = #{lanes := N}}} = S) when length(Inlets) =:= N ->
    proceed(S#session{their_inlets = {Inlets, Dock}});
event({opened, Ref, Inlets, _}, #session{our_open = Ref, their_inlets = {Others, _}} = S)
  when Inlets =/= Others ->
    begin_again(S);                    % the peer did, and what it said of that was lost
event({opened, _, _, _}, S) ->
    S;

%% Goodbyes.
event({goodbye, Link, Ref}, #session{phase = Phase, peer = #peer{link = Link}} = S)
  when S#session.our_inlets =/= none,
       Phase =:= opening orelse Phase =:= up orelse Phase =:= closing ->
    %% It has been up, and so has our inlets. (If its `opened' was lost it says that again.)
    peer_leaves(S#session{their_goodbye = Ref});
event({goodbye, Link, Ref}, #session{phase = suspended, peer = #peer{link = Link}} = S) ->
    S#session{their_goodbye = Ref};    % the peer has resumed before us
event({goodbye, Link, Ref}, S) ->
    say(Link, {goodbye_ok, Ref}, S);
event({goodbye_ok, Ref}, #session{phase = closing, our_goodbye = Ref} = S) ->
    closing(S#session{our_goodbye = none});
event({goodbye_ok, _}, S) ->
    S;

%% A request to leave joins the one that is under way. A stop turns a drain into a stop.
event(stop, S) ->
    wait_again(S#session{leaving = stop});
event({drain, _} = Drain, #session{leaving = none} = S) ->
    event(Drain, S#session{leaving = drain});
event({drain, _}, #session{leaving = stop, has_begun = true, peer = none} = S) ->
    S;                                 % its caller hears that the link has ended
event({drain, Caller}, #session{callers = Callers} = S) ->
    wait_again(S#session{callers = [Caller | Callers]});
event(stalled, S) ->
    stalled(S#session{is_patient = false});

%% Outcomes of effects.
event({started, lanes, Lanes}, #session{phase = opening} = S) ->
    S1 = S#session{lanes = {layout(S), Lanes}, mode = hold, is_ready = true},
    proceed(path(direct, S1));
event({started, inlets, Inlets}, #session{phase = opening} = S) ->
    proceed(say_opened(S#session{our_inlets = Inlets}));
event({started, trunk}, #session{phase = opening} = S) ->
    be_up(S);
event(system_limit, S) ->
    effect({timer, retry, ?AGAIN}, S);
event(lanes_ready, S) ->
    go_on(S#session{is_ready = true});
event(finished, #session{phase = drained} = S) ->
    stay_drained(S#session{is_finishing = false});
event(finished, S) ->
    go_on(S#session{is_finishing = false});
event({timeout, retry}, S) ->
    go_on(S);
event({timeout, connect}, #session{phase = suspended, supervisor = none} = S) ->
    connect(S);
event({timeout, settled}, #session{phase = Phase} = S) when Phase =/= suspended ->
    S#session{pause = 0};
event({timeout, resume}, #session{phase = suspended} = S) ->
    over(S);
event({timeout, finish}, #session{leaving = stop} = S) ->
    stalled(S);
event({timeout, forget}, #session{phase = down, supervisor = none} = S) ->
    %% The runtime system may still list the node as connected: then the link is not ended yet.
    forget_later(effect(forget, S));
event({timeout, forget}, #session{phase = down} = S) ->
    forget_later(S);
event({timeout, _}, S) ->
    S.

%% Does what can be done next on the way up, or on the way down.
go_on(#session{phase = opening} = S) -> proceed(S);
go_on(#session{phase = closing} = S) -> closing(S);
go_on(S) -> S.

%% Begins to leave, as soon as that is possible.
next(#session{phase = ended} = S) ->
    S;
next(#session{leaving = Leaving, has_begun = false, phase = Phase} = S)
  when Leaving =/= none, Phase =/= opening, Phase =/= holding, Phase =/= suspended ->
    next(leave(S));
next(S) ->
    patience(hold_senders(S)).

%% Senders that use plain distribution while the session opens may fill the connection, so that the
%% peer is heard too late. Once a request to leave waits, they wait as well, as they do when the
%% link leaves in phase up.
hold_senders(#session{phase = opening, path = direct} = S) ->
    case is_awaited(S) of
        true -> path(wait, S);
        false -> S
    end;
hold_senders(S) ->
    S.

%% In force while a request waits, or while senders wait for lanes that deliver.
patience(#session{is_patient = IsPatient} = S) ->
    case is_awaited(S) of
        IsPatient -> S;
        true -> effect({patience, start}, S#session{is_patient = true});
        false -> effect({patience, cancel}, S#session{is_patient = false})
    end.

is_awaited(#session{phase = closing, path = wait}) -> true;
is_awaited(#session{leaving = Leaving, callers = Callers}) ->
    Leaving =:= stop orelse Callers =/= [].

%% The peer has not been heard for a while.
stalled(#session{callers = [_ | _]} = S) ->
    stalled(answer(timeout, S));
stalled(#session{leaving = stop, has_begun = false, phase = suspended} = S) ->
    leave(over(S));
stalled(#session{leaving = stop, has_begun = false} = S) ->
    %% (An attempt to connect may be under way that was begun before there was this connection.)
    leave(unwatch_supervisor(end_session(finish, S)));
stalled(#session{leaving = stop, peer = #peer{}} = S) ->
    %% What its lanes still have is lost.
    S1 = effect({timer, finish, ?FINISH}, end_session(finish, S)),
    closing(S1#session{is_ready = true});
stalled(#session{leaving = stop} = S) ->
    effect(stop, S#session{phase = ended});
stalled(#session{leaving = drain, has_begun = false, path = wait, mode = Mode} = S)
  when Mode =/= direct ->
    path(direct, S);                   % as before they were held: see hold_senders/1
stalled(#session{phase = closing, path = wait, their_goodbye = Theirs} = S)
  when Theirs =/= answered ->
    %% Senders go on, up to the bound of the lanes, unless the peer was told that these are empty.
    path(lanes, S);
stalled(S) ->
    S.

%% They wait again, until what they have sent meanwhile is delivered, too.
wait_again(#session{phase = closing, path = lanes} = S) -> order(drain, wait(S));
wait_again(S) -> S.

%% --- the connection -------------------------------------------------------

set_connection(Connection, IsAudience, S) ->
    S#session{connection = Connection, is_audience = IsAudience}.

connected(S) -> hold(hello_or_probe(S)).

%% Says hello to a node that may have a link, too. A hidden node may not be an Erlang node but, for
%% example, a C node. Such nodes do not know monitors, and the runtime system sends them none. An
%% Erlang node answers at once that it has no process of this name, which no process can have.
hello_or_probe(#session{is_audience = true} = S) -> say_hello(true, unwatch(asked, S));
hello_or_probe(S) -> watch(asked, nobody, S).

%% Waits until the peer says hello, or until it is clear that it will not.
hold(#session{lanes = none} = S) -> enter(greeting, S);
hold(S) -> enter(holding, watch_supervisor(order(hold, path(lanes, S)))).

%% The connection is lost. The session may outlive it, unless one side is leaving; but lanes that
%% deliver by plain distribution must not go on with that on the next connection.
lost(#session{phase = Phase, mode = Mode, peer = #peer{agreement = #{resume_time := Time}}} = S)
  when Time > 0, Phase =:= up orelse Phase =:= opening andalso Mode =:= hold ->
    S1 = connection(unwatch(peer, unwatch(asked, S))),
    S2 = case Phase of
             up -> order(suspend, S1);
             opening -> S1
         end,
    connect_again(Time, effect({timer, resume, Time}, enter(suspended, S2)));
lost(S) ->
    disconnected(S).

%% OTP itself may disconnect the nodes each time that they connect: if one of them cannot reach a
%% third node (see prevent_overlapping_partitions in global(3)).
connect_again(_, #session{pause = 0} = S) -> connect(S#session{pause = ?PAUSE});
connect_again(Time, S) -> connect_later(max(1, min(?LONGEST_UNSETTLED, Time div 4)), S).

connect_later(Longest, #session{pause = Pause} = S) ->
    Now = min(Pause, Longest),
    effect({timer, connect, Now}, S#session{pause = 2 * Now}).

%% The peer goes on with the session. (If it was opening, the lanes hold.)
resumed(#session{mode = Mode, peer = #peer{link = Link}} = S) ->
    S1 = watch(peer, Link, unwatch(asked, unwatch_supervisor(S))),
    S2 = effect({count, resumed}, effect({timer, settled, ?SETTLED}, S1)),
    case Mode of
        hold -> proceed(say_open(enter(opening, S2)));
        send -> peer_leaves(enter(up, order(resume, S2)))
    end.

%% The suspended session ends. There may be a connection for another one already.
over(#session{supervisor = Supervisor} = S) ->
    case disconnected(S) of
        #session{phase = down} = S1 when Supervisor =:= watched -> connected(S1);
        S1 -> S1
    end.

%% The connection is lost, and with it the session. Callers of a drain are told. A stop waits until
%% what has arrived is delivered, and what is lost is counted.
disconnected(S) ->
    S1 = connection(unwatch(asked, unwatch_supervisor(end_session(lost, S)))),
    case S1#session{name = make_ref()} of
        #session{has_begun = true, leaving = stop} = S2 ->
            S3 = wait(answer(noconnection, S2#session{is_patient = false})),
            S4 = dismiss({gone, lost_queued}, order({absent, lost_queued}, S3)),
            closing(enter(closing, S4));
        #session{leaving = stop} = S2 ->
            answer(noconnection, down(lost_queued, S2));
        S2 ->
            left(noconnection, down(lost_queued, S2))
    end.

%% What was meant for the connection that was lost, or could not be made, is lost.
down(Lost, S) ->
    S1 = dismiss({gone, Lost}, path(down, order({absent, Lost}, S))),
    forget_later(enter(down, S1)).

%% There is nothing to keep of a peer with which there was no session.
forget_later(#session{has_met = true} = S) -> effect({timer, forget, ?FORGET}, S);
forget_later(S) -> effect({timer, forget, ?FORGET_STRANGER}, S).

%% Finds out whether a peer that had lanes will have lanes again. If Trunkline's supervisor is not
%% there it will not; otherwise its link says hello.
watch_supervisor(#session{phase = down, supervisor = connecting} = S) -> S;   % it may connect yet
watch_supervisor(S) -> watch(supervisor, supervisor, S#session{supervisor = watched}).

%% The same for a peer that is down: makes a connection. If that fails, event
%% {down, supervisor, noconnection} says so. (Nothing else connects: a node that was disconnected on
%% purpose stays disconnected.)
connect(S) -> effect({connect, supervisor}, S#session{supervisor = connecting}).

unwatch_supervisor(#session{supervisor = none} = S) -> S;
unwatch_supervisor(S) -> unwatch(supervisor, S#session{supervisor = none}).

%% --- the way up -----------------------------------------------------------

%% A link at the peer that we did not know has said hello.
greeted({hello, Link, Name, Hello, Answer} = Event, #session{peer = Peer} = S) ->
    #session{config = #{hello := Ours}} = S,
    case {trunkline_handshake:agree(Ours, Hello), Peer} of
        {{error, malformed}, #peer{}} ->
            effect({refused, malformed, Hello}, S);        % no link says that
        {_, #peer{link = Link}} when S#session.phase =:= closing ->
            %% The same link, in another session: the connection was lost, and the peer has given
            %% the session up. Its inlets may still have to deliver, and what our lanes would
            %% deliver by plain distribution could overtake that.
            event(Event, disconnected(S));
        {_, #peer{link = Link}} when S#session.our_inlets =/= none ->
            %% The same link, in another session. It may have our inlets, which end now. So it has
            %% to hear that ours is another session, too.
            event(setelement(5, Event, true), (peer_link_down(S))#session{name = make_ref()});
        {_, #peer{}} ->
            %% The news that the session before has ended is still under way.
            event(Event, peer_link_down(S));
        {_, none} when S#session.has_begun ->
            S;                         % the peer is told in the end, or finds out
        {{ok, Agreement}, none} ->
            Agreed = #peer{link = Link, session = Name, agreement = Agreement},
            agreed(watch(peer, Link, unwatch_supervisor(reply(Answer, S#session{peer = Agreed}))));
        {{error, drained}, none} ->
            without_lanes(unwatch_supervisor(reply(Answer, S)));
        {{error, Why}, none} ->
            %% An older release agrees to our hello, and would wait for lanes.
            S1 = decline(effect({refused, Why, Hello}, reply(Answer, S))),
            without_lanes(unwatch_supervisor(S1))
    end.

reply(true, S) -> say_hello(false, S);
reply(false, S) -> S.

%% If the peer could do more before, the lanes may hold what it can no longer handle.
agreed(#session{capabilities = Before} = S) ->
    #session{peer = #peer{agreement = #{capabilities := Capabilities}}} = S,
    S1 = enter(opening, S#session{capabilities = Capabilities, pause = 0}),
    proceed(case Before -- Capabilities of
                [] -> S1;
                _ -> order(direct, S1)
            end).

%% Does what can be done next on the way up.
proceed(#session{is_ready = false} = S) ->
    S;
proceed(#session{lanes = Lanes, mode = Mode, path = Path} = S) ->
    case {layout(S), Lanes} of
        {Layout, {Layout, _}} -> open(S);
        {Layout, none} -> effect({start, {lanes, Layout}}, S);
        {Layout, _} when Mode =:= direct, Path =/= lanes -> effect({start, {lanes, Layout}}, S);
        %% New lanes must not start before the old ones have delivered and no sender enters those.
        _ -> order(direct, wait(S))
    end.

open(#session{our_open = none} = S) ->
    open(say_open(S#session{our_open = make_ref()}));
open(#session{mode = direct} = S) ->
    %% A server may reply to a request of the new session before the lanes may send.
    order(hold, S);
open(#session{their_open = {_, Lanes}, our_inlets = none, is_finishing = false} = S) ->
    effect({start, {inlets, Lanes, window(S)}}, S);
open(#session{their_inlets = {_, Dock}, our_inlets = {_, _}} = S) ->
    effect({start, {trunk, Dock}}, S);
open(S) ->
    S.

be_up(#session{their_inlets = {Inlets, _}} = S) ->
    S1 = order({send, Inlets, window(S), sent(S)}, S#session{has_met = true}),
    peer_leaves(dismiss(again, enter(up, effect({count, sessions}, path(lanes, S1))))).

%% The peer names its lanes. It may ask again, if it does not know whether we have heard it.
wanted(Ref, Lanes, #session{their_open = {Ref, Lanes}, our_inlets = {_, _}} = S) ->
    say_opened(S);
wanted(Ref, Lanes, #session{phase = opening, our_inlets = none,
                            peer = #peer{agreement = #{lanes := N}}} = S)
  when length(Lanes) =:= N ->
    proceed(S#session{their_open = {Ref, Lanes}});
wanted(_, _, S) ->
    S.

window(#session{peer = #peer{agreement = #{window_bytes := Window}}}) -> Window.

%% How often a batch may be sent by the distribution.
sent(#session{peer = #peer{agreement = #{resume_time := 0}}}) -> once;
sent(#session{peer = #peer{}}) -> again.

%% The layout that the lanes to this peer must have.
layout(#session{config = #{large_bytes := LargeBytes},
                peer = #peer{agreement = #{lanes := N, bulk_bytes := BulkBytes}}}) ->
    {N, trunkline_gate:least(LargeBytes), trunkline_gate:limit(BulkBytes)}.

%% --- the way down ---------------------------------------------------------

%% The peer's link is gone, but the connection is not. After a goodbye callers go on waiting for
%% replies, if the counterpart of their inlet is still there.
peer_link_down(#session{phase = closing} = S) ->
    closing(order(direct, end_session(retire, S)));
peer_link_down(#session{phase = drained} = S) ->
    %% The hello of its successor may have been missed.
    stay_drained(order(direct, end_session(retire, S)));
peer_link_down(#session{phase = greeting} = S) ->
    order(direct, end_session(retire, S));
peer_link_down(#session{phase = suspended} = S) ->
    over(S);
peer_link_down(#session{path = direct} = S) ->
    plain(order(direct, end_session(finish, S)));
peer_link_down(S) ->
    hold(end_session(finish, S)).

%% Ends this session, and asks the peer for another one. By its name the peer knows that it is one.
begin_again(#session{connection = Connection, is_audience = IsAudience} = S) ->
    event({nodeup, Connection, IsAudience}, (peer_link_down(S))#session{name = make_ref()}).

%% The peer will not have lanes. Senders use plain distribution, once lanes that hold messages have
%% delivered them that way.
without_lanes(#session{phase = holding} = S) ->
    closing(enter(closing, order(direct, path(wait, S))));
without_lanes(S) ->
    S.

plain(S) -> dismiss(again, enter(greeting, path(direct, S))).

%% Leaves the session, too, if the peer has said goodbye.
peer_leaves(#session{their_goodbye = none} = S) ->
    S;
peer_leaves(#session{phase = up} = S) ->
    closing(enter(closing, order(drain, path(wait, S))));
peer_leaves(#session{phase = closing} = S) ->
    closing(S);
peer_leaves(#session{phase = opening} = S) ->
    S.                                 % be_up/1 comes back to this

leave(#session{leaving = drain, phase = down} = S) ->
    left(noconnection, S);
leave(#session{leaving = drain, phase = drained} = S) ->
    left(ok, S);
leave(#session{leaving = drain, phase = greeting, peer = #peer{}} = S) ->
    %% The peer has left already. Its lanes may still deliver.
    left(ok, be_drained(S));
leave(S) ->
    closing(enter(closing, farewell(S#session{has_begun = true}))).

left(Result, S) -> (answer(Result, S))#session{leaving = none, has_begun = false}.

%% In a session both sides deliver what they have. Without one our lanes deliver by plain
%% distribution.
farewell(#session{lanes = none} = S) ->
    S;
farewell(#session{peer = #peer{link = Link}, mode = send, phase = Phase} = S) ->
    #session{config = #{link := Self}} = S,
    Ref = make_ref(),
    S1 = say(Link, {goodbye, Self, Ref}, wait(S#session{our_goodbye = Ref})),
    case Phase of
        closing -> S1;
        _ -> order(drain, S1)
    end;
farewell(S) ->
    order(direct, wait(S)).

wait(#session{path = direct} = S) -> S;
wait(S) -> path(wait, S).

%% Goes on when our lanes are done, and the peer has answered our goodbye, if there was one; and if
%% the session has ended, when everything that has arrived is delivered.
closing(#session{path = lanes} = S) ->
    wait_again(S);
closing(#session{is_ready = false} = S) ->
    S;
closing(#session{their_goodbye = Theirs, peer = #peer{link = Link}} = S)
  when is_reference(Theirs) ->
    closing(say(Link, {goodbye_ok, Theirs}, S#session{their_goodbye = answered}));
closing(#session{our_goodbye = none} = S) ->
    delivered(S);
closing(S) ->
    S.

delivered(#session{leaving = none} = S) ->
    plain(S);
delivered(#session{leaving = drain, peer = #peer{}} = S) ->
    left(ok, be_drained(S));
delivered(#session{leaving = stop, peer = #peer{}} = S) ->
    %% Inlets may have to deliver, and to wait for replies. There is new patience for that.
    delivered(end_session(retire, done_with_lanes(S#session{is_patient = false})));
delivered(#session{is_finishing = true} = S) ->
    S;
delivered(#session{leaving = drain} = S) ->
    %% The session has ended here, so it must end there, too.
    decline(left(ok, be_drained(S)));
delivered(#session{leaving = stop} = S) ->
    effect(stop, (answer(ok, done_with_lanes(S)))#session{phase = ended}).

%% From here on no sender needs the lanes, and others see that.
done_with_lanes(S) -> effect({enter, drained}, path(direct, S)).

%% Another link of the peer is told so. If it used plain distribution before our inlets have
%% delivered, that could overtake what they have: see event finished.
stay_drained(#session{peer = none, is_finishing = false} = S) -> decline(S);
stay_drained(S) -> S.

%% Lasts until the connection is lost, or Trunkline stops at the peer.
be_drained(S) -> enter(drained, watch_supervisor(path(direct, S))).

%% Ends what is left of the session. After a goodbye that was answered, or will not be, the inlets
%% retire.
end_session(_, #session{peer = none} = S) ->
    S;
end_session(How, #session{our_inlets = Ours, their_inlets = Theirs} = S) ->
    S1 = (unwatch(peer, S))#session{peer = none, our_open = none, their_inlets = none,
                                    their_open = none, our_inlets = none, our_goodbye = none,
                                    their_goodbye = none},
    End = case {How, Theirs} of
              {retire, {Counterparts, _}} -> {retire, Counterparts};
              _ -> How
          end,
    effect({end_session, End},
           S1#session{is_finishing = S#session.is_finishing orelse Ours =/= none}).

%% --- effects --------------------------------------------------------------

effects(#session{effects = Effects} = S) -> {S#session{effects = []}, lists:reverse(Effects)}.

effect(Effect, #session{effects = Effects} = S) -> S#session{effects = [Effect | Effects]}.

enter(Phase, S) -> effect({enter, Phase}, S#session{phase = Phase}).

connection(S) -> effect({connection, make_ref()}, S).

say(To, Message, S) -> effect({say, To, Message}, S).

%% Names the peer's session if it is known, because it may be suspended there.
say_hello(Answer, #session{config = #{link := Link, hello := Hello}, name = Name} = S) ->
    Ours = case S#session.peer of
               #peer{session = Theirs, agreement = #{resume_time := Time}} when Time > 0 ->
                   Hello#{resume => Theirs};
               _ ->
                   Hello
           end,
    say(links, {hello, Link, Name, Ours, Answer}, S).

%% Says that there are to be no lanes, whatever has been said before.
decline(#session{is_audience = false} = S) ->
    S;
decline(#session{config = #{link := Link, hello := Hello}} = S) ->
    say(links, {hello, Link, make_ref(), trunkline_handshake:no_hello(Hello), false}, S).

say_open(#session{config = #{link := Link}, our_open = Ref, their_inlets = none, lanes = {_, Lanes},
                  peer = #peer{session = Name}} = S) when Ref =/= none ->
    say(links, {open, Link, Name, Ref, Lanes}, S);
say_open(S) ->
    S.

say_opened(#session{their_open = {Ref, _}, our_inlets = {Inlets, Dock}, peer = Peer} = S) ->
    say(Peer#peer.link, {opened, Ref, Inlets, Dock}, S).

watch(Role, Whom, S) -> effect({watch, Role, Whom}, S).

unwatch(Role, S) -> effect({unwatch, Role}, S).

path(_, #session{lanes = none} = S) ->
    S#session{path = direct};
path(Path, #session{path = wait} = S) when Path =:= lanes; Path =:= direct ->
    dismiss(again, effect({path, Path}, S#session{path = Path}));
path(Path, S) ->
    effect({path, Path}, S#session{path = Path}).

%% Lanes drain in the mode that they have, and keep it while they are suspended.
order(_, #session{lanes = none} = S) ->
    S;
order(Order, #session{mode = Mode} = S) ->
    Mode1 = case Order of
                _ when Order =:= drain; Order =:= suspend; Order =:= resume -> Mode;
                {absent, _} -> absent;
                {send, _, _, _} -> send;
                _ -> Order
            end,
    effect({order, Order}, S#session{mode = Mode1, is_ready = false}).

dismiss(Answer, S) -> effect({dismiss, Answer}, S).

%% All who wait for a drain.
answer(Result, #session{callers = Callers} = S) ->
    lists:foldr(fun(Caller, S1) -> effect({answer, Caller, Result}, S1) end,
                S#session{callers = []}, Callers).
