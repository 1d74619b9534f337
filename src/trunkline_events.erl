%% Events for telemetry, if it is installed.
%%
%% Trunkline does not depend on telemetry. When the application starts, it finds out once whether
%% the module can be loaded. If not, an event costs one read of a persistent term, and this process
%% is not started. There are no events on the hot path. If the module is loaded but its application
%% does not run, no event is executed, because telemetry would write a warning for each.
%%
%%     link, lane, connection ── tell ──> this process ── telemetry:execute/3 ──> handlers
%%     sender that had to wait, ... ──────── execute ───────────────────────────> handlers
%%
%% Handlers are users' code. They may be slow, or send messages by Trunkline themselves and wait for
%% room. A link must never do that, so this process executes the events of Trunkline's own
%% processes. At most MOST events wait here; others are dropped and counted. An event that concerns
%% a user's process is executed by that process.
%%
%% A handler may also kill this process. When it is restarted, the events that waited are counted as
%% dropped, too. Connections that were open at that time have no event when they close.
%%
%% This process monitors open connections, because the end of a connection is an event, too.
-module(trunkline_events).
-moduledoc false.
-behaviour(gen_server).

-export([table/0, start/0, start_link/0, are_wanted/0, execute/3, tell/3, connection/1, dropped/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-type name() :: [atom(), ...].               % without `trunkline'
-type measurements() :: #{atom() => number()}.
-type metadata() :: #{atom() => term()}.

%% The persistent term: {Module, Cells}, or none.
-define(SINK, ?MODULE).
-define(MOST, 1000).
%% Cells: the number of events that wait, the number of events dropped, and the time (in seconds, or
%% 0) of the last log entry about an event that was not executed.
-define(WAITING, 1).
-define(DROPPED, 2).
-define(LOGGED, 3).
%% Seconds between two such log entries.
-define(PAUSE, 60).
%% In the dictionary of a process while handlers run in it: what they do causes no events.
-define(RUNNING, '$trunkline_event').

-record(state,
        {open = #{} :: #{reference() => {Since :: integer(), metadata()}}}).

%% All events: {Name, Measurements, Metadata}. Durations are in native time units.
-spec table() -> [{name(), Measurements :: [atom()], Metadata :: [atom()]}].
table() ->
    [{[peer, up], [lanes], [peer, release, protocol]},
     {[peer, down], [duration], [peer, reason]},
     {[peer, refused], [], [peer, reason]},
     {[peer, lost], [queued, unconfirmed, crashed, unreachable], [peer]},
     {[session, suspended], [duration], [peer]},
     {[session, resumed], [duration], [peer]},
     {[lane, way], [], [peer, lane, from, to]},
     {[connection, open], [], [peer, cargo, transport, congestion_control]},
     {[connection, close], [duration], [peer, cargo, transport, congestion_control, reason]},
     {[listener, refused], [count], []},
     {[sender, wait], [duration, bytes], [peer, cargo, inbox, result]},
     {[inbox, overload, start], [queued_messages, queued_bytes], [inbox, name, policy]},
     {[inbox, overload, stop], [duration, queued_messages, queued_bytes], [inbox, name, policy]},
     {[inbox, dropped], [count], [inbox, name, policy]},
     {[drain, start], [], [peers]},
     {[drain, stop], [duration], [peers, result]},
     {[stats, node], [], []},
     {[stats, peer], [], [peer, state]},
     {[stats, lane], [], [peer, lane]},
     {[stats, inbox], [], [inbox]}].

%% Called before any process of Trunkline starts. The persistent term is written only if it has to
%% change, because that is expensive.
-spec start() -> ok.
start() ->
    Module = telemetry,
    case {code:ensure_loaded(Module), persistent_term:get(?SINK, none)} of
        {{module, _}, none} -> persistent_term:put(?SINK, {Module, atomics:new(3, [])});
        {{error, _}, {_, _}} -> persistent_term:put(?SINK, none);
        _ -> ok
    end.

-spec start_link() -> gen_server:start_ret().
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-spec are_wanted() -> boolean().
are_wanted() -> persistent_term:get(?SINK, none) =/= none.

%% How many events were dropped because too many others waited.
-spec dropped() -> non_neg_integer().
dropped() ->
    case persistent_term:get(?SINK, none) of
        none -> 0;
        {_, Cells} -> atomics:get(Cells, ?DROPPED)
    end.

%% For users' processes: the handlers run in the calling process.
-spec execute(name(), measurements(), metadata()) -> ok.
execute(Name, Measurements, Metadata) ->
    case persistent_term:get(?SINK, none) of
        none -> ok;
        {Module, Cells} ->
            get(?RUNNING) =:= true orelse whereis(telemetry_handler_table) =:= undefined
                orelse run(Module, Cells, Name, Measurements, Metadata),
            ok
    end.

run(Module, Cells, Name, Measurements, Metadata) ->
    _ = put(?RUNNING, true),
    try Module:execute([trunkline | Name], Measurements, Metadata)
    catch
        Class:Reason ->
            may_log(Cells)
                andalso trunkline_log:write(not_executed, #{event => [trunkline | Name],
                                                            reason => {Class, Reason}})
    after
        erase(?RUNNING)
    end.

%% Every sender that waits may get here at the same time: only one of them writes to the log.
may_log(Cells) ->
    Now = erlang:monotonic_time(second),
    Last = atomics:get(Cells, ?LOGGED),
    (Last =:= 0 orelse Now - Last >= ?PAUSE)
        andalso atomics:compare_exchange(Cells, ?LOGGED, Last, Now) =:= ok.

%% For Trunkline's own processes: the event is executed elsewhere, so that the caller does not wait.
-spec tell(name(), measurements(), metadata()) -> ok.
tell(Name, Measurements, Metadata) -> tell({event, Name, Measurements, Metadata}).

%% The calling process owns a connection, which lasts as long as the process.
-spec connection(metadata()) -> ok.
connection(Metadata) -> tell({connection, self(), Metadata}).

tell(Message) ->
    case persistent_term:get(?SINK, none) of
        none -> ok;
        {_, Cells} ->
            case atomics:add_get(Cells, ?WAITING, 1) =< ?MOST andalso whereis(?MODULE) of
                Pid when is_pid(Pid) ->
                    Pid ! Message,
                    ok;
                _ ->
                    atomics:sub(Cells, ?WAITING, 1),
                    atomics:add(Cells, ?DROPPED, 1)
            end
    end.

%% --- the process ------------------------------------------------------------------------

-spec init([]) -> {ok, #state{}}.
init([]) ->
    process_flag(trap_exit, true),           % a handler may link this process to another
    {_, Cells} = persistent_term:get(?SINK),
    ok = atomics:add(Cells, ?DROPPED, max(0, atomics:exchange(Cells, ?WAITING, 0))),
    {ok, #state{}}.

-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, {error, badarg}, #state{}}.
handle_call(_, _, S) ->
    {reply, {error, badarg}, S}.

-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast(Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    {noreply, S}.

-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info({event, Name, Measurements, Metadata}, S) ->
    done(),
    ok = execute(Name, Measurements, Metadata),
    {noreply, S};
handle_info({connection, Pid, Metadata}, #state{open = Open} = S) ->
    done(),
    Since = erlang:monotonic_time(),
    Ref = monitor(process, Pid),
    ok = execute([connection, open], #{}, Metadata),
    {noreply, S#state{open = Open#{Ref => {Since, Metadata}}}};
handle_info({'DOWN', Ref, process, _, Reason}, #state{open = Open} = S)
  when is_map_key(Ref, Open) ->
    {{Since, Metadata}, Open1} = maps:take(Ref, Open),
    ok = execute([connection, close], #{duration => erlang:monotonic_time() - Since},
                 Metadata#{reason => why(Reason)}),
    {noreply, S#state{open = Open1}};
handle_info({'EXIT', _, _}, S) ->
    {noreply, S};
handle_info(Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    {noreply, S}.

done() ->
    {_, Cells} = persistent_term:get(?SINK),
    atomics:sub(Cells, ?WAITING, 1).

%% A connection that is no longer needed is ended by killing its process.
why(killed) -> unused;
why({shutdown, Reason}) -> Reason;
why(Reason) -> Reason.
