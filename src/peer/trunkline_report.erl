%% What operators hear of a peer: events (trunkline_events) and lines of the log (trunkline_log)
%% when its session comes and goes, and when messages to it are lost. Its link says what happens;
%% this module knows what has been told already.
-module(trunkline_report).
-moduledoc false.

-export([new/2, up/3, suspended/2, resumed/2, down/2, crashed/2, refused/3]).
-export([tell_lost/1, log_lost/1, lanes_ended/3]).

-export_type([report/0]).

-record(report,
        {node :: node(),
         stats :: trunkline_stats:stats(),
         up = none :: none | integer(),              % when the session came up (native)
         told :: trunkline_stats:lost(),             % losses for which there was an event
         logged :: trunkline_stats:lost()}).         % losses that are in the log
-opaque report() :: #report{}.

%% Losses that are counted already have been reported, unless the link before ended without that.
-spec new(node(), trunkline_stats:stats()) -> report().
new(Node, Stats) ->
    Lost = trunkline_stats:lost(Stats),
    #report{node = Node, stats = Stats, told = Lost, logged = Lost}.

-spec up(trunkline_handshake:agreement(), Lanes :: pos_integer(), report()) -> report().
up(#{release := Release, protocol := Protocol}, Lanes, #report{node = Node} = R) ->
    ok = trunkline_events:tell([peer, up], #{lanes => Lanes},
                               #{peer => Node, release => Release, protocol => Protocol}),
    ok = trunkline_log:write(up, #{peer => Node, release => Release, lanes => Lanes}),
    R#report{up = erlang:monotonic_time()}.

%% The connection is lost, and the session may go on by another one.
-spec suspended(trunkline_handshake:agreement(), report()) -> ok.
suspended(_, #report{up = none}) ->
    ok;                                              % it had not come up yet
suspended(#{resume_time := Time}, #report{node = Node, up = Since}) ->
    ok = trunkline_events:tell([session, suspended], #{duration => since(Since)},
                               #{peer => Node}),
    trunkline_log:write(suspended, #{peer => Node, resume_time => Time}).

%% It does, after so many milliseconds.
-spec resumed(Milliseconds :: integer(), report()) -> ok.
resumed(_, #report{up = none}) ->
    ok;
resumed(Time, #report{node = Node}) ->
    ok = trunkline_events:tell([session, resumed], #{duration => native(Time)}, #{peer => Node}),
    trunkline_log:write(resumed, #{peer => Node, milliseconds => Time}).

%% The session, if it was up, is over. The phase that follows says why.
-spec down(trunkline_session:phase(), report()) -> report().
down(_, #report{up = none} = R) ->
    R;
down(Phase, #report{up = Since} = R) ->
    ok = tell_down(since(Since), why(Phase), R),
    R#report{up = none}.

why(down) -> connection_lost;
why(opening) -> peer_restarted;
why(holding) -> peer_restarted;
why(greeting) -> peer_left;
why(drained) -> drained;
why(_) -> stopped.

%% The previous link was killed during a session, which had been in its state for so long.
-spec crashed(Milliseconds :: integer(), report()) -> ok.
crashed(Time, R) -> tell_down(native(Time), crashed, R).

tell_down(Duration, Why, #report{node = Node}) ->
    ok = trunkline_events:tell([peer, down], #{duration => Duration},
                               #{peer => Node, reason => Why}),
    trunkline_log:write(down, #{peer => Node, reason => Why}).

%% The peer's hello cannot be answered.
-spec refused(malformed | incompatible, Hello :: term(), report()) -> ok.
refused(Why, Hello, #report{node = Node}) ->
    ok = trunkline_events:tell([peer, refused], #{}, #{peer => Node, reason => Why}),
    trunkline_log:write(refused, #{peer => Node, reason => Why, hello => Hello}).

%% Tells of the losses counted since the last such event.
-spec tell_lost(report()) -> report().
tell_lost(#report{node = Node, stats = Stats, told = Told} = R) ->
    Lost = trunkline_stats:lost(Stats),
    Lost =:= Told
        orelse trunkline_events:tell([peer, lost],
                                     more(Lost, Told), #{peer => Node}),
    R#report{told = Lost}.

more(Lost, Before) -> maps:map(fun(Why, All) -> All - maps:get(Why, Before) end, Lost).

%% Writes a line of the log about the losses counted since the last one. (As with `!', it does not
%% tell of messages to a node that cannot be reached.) If there is nothing to say, it returns the
%% same report.
-spec log_lost(report()) -> report().
log_lost(#report{node = Node, stats = Stats, logged = Logged} = R) ->
    Lost = trunkline_stats:lost(Stats),
    case more(Lost, Logged) of
        #{queued := 0, unconfirmed := 0} ->
            R;
        #{queued := 0, unconfirmed := Unconfirmed} ->
            ok = trunkline_log:write(unconfirmed, #{peer => Node, messages => Unconfirmed}),
            R#report{logged = Lost};
        #{queued := Queued, unconfirmed := Unconfirmed} ->
            ok = trunkline_log:write(lost, #{peer => Node, queued => Queued,
                                             unconfirmed => Unconfirmed}),
            R#report{logged = Lost}
    end.

%% Dead lanes have left behind so many messages, which have been counted as Field.
-spec lanes_ended(trunkline_stats:field(), Messages :: pos_integer(), report()) -> report().
lanes_ended(Field, Messages, #report{node = Node, stats = Stats} = R) ->
    Report = #{peer => Node, messages => Messages},
    ok = case Field of
             lost_crashed -> trunkline_log:write(lanes_killed, Report);
             _ -> trunkline_log:write(lanes_ended, Report)
         end,
    R#report{logged = trunkline_stats:lost(Stats)}.

since(Then) -> erlang:monotonic_time() - Then.

native(Milliseconds) -> erlang:convert_time_unit(Milliseconds, millisecond, native).
