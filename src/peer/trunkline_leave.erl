%% Taking leave: how a link ends in good order, or is drained, and what it waits for.
%%
%%     this link                                   the peer's link
%%       | -- goodbye -----------------------------> |  both close their gates, and
%%       | == what the lanes hold ================>  |  deliver what is inside
%%       | <================ what its lanes hold === |
%%       | <--------------------------- goodbye_ok - |  its lanes are through
%%       |                                           |
%%       |       from here on: plain distribution    |
%%
%% The peer may take leave at the same time: then it is owed an answer too, as soon as our
%% lanes are through. The connection may be busy, the peer may stand still. So this
%% waits as long as messages move, and no longer than it may. That others try to send, and
%% are refused, is no movement.
-module(trunkline_leave).
-moduledoc false.

-export([take/3, finish/1, patience/1, progress/1]).

-export_type([farewell/0]).

%% Without a session what lanes hold is on its way by plain distribution. Of a session there
%% is the peer's link and its monitor, and what the peer is owed if it has said goodbye before.
-type farewell() ::
        #{session := {Peer :: pid(), Monitor :: reference(), Owed :: [{pid(), reference()}]} | none,
          say := fun((pid(), Message :: term()) -> ok),
          lanes := [pid()],
          ref := reference()}.                   % with which the lanes answer

%% ms
-define(GOODBYE, 3000).            % while nothing goes on
-define(FINISH, 1000).             % for what has arrived by then

%% `timeout': nothing moved for long, or the time has passed. `noconnection': the connection is
%% lost; `bereaved': only the peer's link is gone.
-spec take(farewell(), trunkline_stats:stats(), trunkline_deadline:deadline()) -> ok | timeout | noconnection | bereaved.
take(#{session := Session, say := Say, lanes := Lanes, ref := Ref}, Stats, Deadline) ->
    Patience = patience(Stats, Deadline),
    case Session of
        {Peer, Monitor, Owed} ->
            ok = Say(Peer, {goodbye, self(), Ref}),
            await([goodbye_ok | Lanes], Owed, Ref, {Say, Monitor}, Patience);
        none ->
            await(Lanes, [], Ref, {Say, none}, Patience)
    end.

%% Missing are lanes that are not through, and the peer's goodbye_ok.
await([], [], _, _, _) ->
    ok;
await(Missing, [{Pid, Theirs} | Owed], Ref, {Say, _} = With, Patience)
  when Missing =:= []; Missing =:= [goodbye_ok] ->
    ok = Say(Pid, {goodbye_ok, Theirs}),
    await(Missing, Owed, Ref, With, Patience);
await(Missing, Owed, Ref, {_, Monitor} = With, {Timer, Before, Stats, Deadline} = Patience) ->
    receive
        {lane_drained, Ref, Lane} ->
            await(lists:delete(Lane, Missing), Owed, Ref, With, Patience);
        {lane_mode, Ref, Lane, _} ->
            await(lists:delete(Lane, Missing), Owed, Ref, With, Patience);
        {goodbye_ok, Ref} ->
            await(lists:delete(goodbye_ok, Missing), Owed, Ref, With, Patience);
        {goodbye, Pid, Theirs} ->
            await(Missing, [{Pid, Theirs} | Owed], Ref, With, Patience);
        {'DOWN', Monitor, process, _, Reason} ->
            case Reason of
                noconnection -> noconnection;
                _ -> bereaved
            end;
        {timeout, Timer, goodbye} ->
            %% Large messages may take their time, as long as something goes on.
            case trunkline_deadline:has_passed(Deadline) orelse progress(Stats) of
                true -> timeout;
                Before -> timeout;
                _ -> await(Missing, Owed, Ref, With, patience(Stats, Deadline))
            end
    end.

%% For so long, and longer if there was any progress by then.
patience(Stats, Deadline) ->
    {erlang:start_timer(patience(Deadline), self(), goodbye), progress(Stats), Stats, Deadline}.

%% ms
-spec patience(trunkline_deadline:deadline()) -> non_neg_integer().
patience(Deadline) -> min(?GOODBYE, trunkline_deadline:left(Deadline)).

%% Bytes that were acknowledged, carried, or have arrived, and messages that were received.
-spec progress(trunkline_stats:stats()) -> [integer()].
progress(Stats) ->
    [trunkline_stats:sum(Stats, bytes) - trunkline_stats:sum(Stats, in_flight_bytes),
     trunkline_stats:sum(Stats, received_messages)
     | [trunkline_stats:get(Stats, peer, Field)
        || Field <- [large_carried_bytes, large_arrived_bytes, batches_arrived_bytes]]].

%% What has arrived is delivered, also if the peer has not said goodbye.
-spec finish(Inlets :: [pid()]) -> ok.
finish(Inlets) ->
    lists:foreach(fun trunkline_inlet:finish/1, Inlets),
    Timer = erlang:start_timer(?FINISH, self(), finish),
    lists:foreach(fun(Inlet) ->
                          Ref = monitor(process, Inlet),
                          receive
                              {'DOWN', Ref, process, _, _} -> ok;
                              {timeout, Timer, finish} -> self() ! {timeout, Timer, finish}, ok
                          end
                  end, Inlets).
