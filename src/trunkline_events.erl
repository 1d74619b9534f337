%% What happens, for telemetry, if that is there.
%%
%% Trunkline does not depend on telemetry. Whether its module can be loaded is found out once, when
%% the application starts. Without it an event is one look at a persistent term, and there is no
%% process here. Nothing on the hot path has an event. While the module is there and its application
%% does not run, nothing is executed: telemetry would write a warning for each event.
%%
%%     link, lane, connection ── tell ──> this process ── telemetry:execute/3 ──> handlers
%%     sender that had to wait, ... ──────── execute ───────────────────────────> handlers
%%
%% Handlers are the users' code. They may be slow, or send messages by Trunkline themselves and wait
%% for room. A link must never do that, so the events of Trunkline's own processes are executed
%% here. At most MOST events wait; others are dropped and counted. An event that concerns a process
%% of the user is executed by that process.
%%
%% A handler may also kill this process. When it is restarted, the events that waited are counted as
%% dropped, too, and there will be no events when connections close that were open at that time.
%%
%% This process monitors open connections: when one closes, that is an event, too.
-module(trunkline_events).
-moduledoc false.
-behaviour(gen_server).

-export([table/0, start/0, start_link/0, are_wanted/0, execute/3, tell/3, connection/1, dropped/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([name/0]).

-type name() :: [atom(), ...].               % without `trunkline'
-type measurements() :: #{atom() => number()}.
-type metadata() :: #{atom() => term()}.

%% {Module, Cells}, or none.
-define(SINK, ?MODULE).
-define(MOST, 1000).
%% Cells: events that wait, how many have been dropped, and when (in seconds) the log was last told
%% that one was not executed, or 0.
-define(WAITING, 1).
-define(DROPPED, 2).
-define(LOGGED, 3).
%% Seconds from one such line in the log to the next.
-define(PAUSE, 60).
%% In the dictionary of a process whose handlers are running: what they do is no event.
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

%% Before any process of Trunkline starts. (A persistent term that changes is expensive.)
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

%% How many were not executed, since too many others waited.
-spec dropped() -> non_neg_integer().
dropped() ->
    case persistent_term:get(?SINK, none) of
        none -> 0;
        {_, Cells} -> atomics:get(Cells, ?DROPPED)
    end.

%% The calling process is one of the user's: handlers run in it.
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

%% Each sender that waits may come here: one of them writes.
may_log(Cells) ->
    Now = erlang:monotonic_time(second),
    Last = atomics:get(Cells, ?LOGGED),
    (Last =:= 0 orelse Now - Last >= ?PAUSE)
        andalso atomics:compare_exchange(Cells, ?LOGGED, Last, Now) =:= ok.

%% The calling process is one of Trunkline's own, and goes on at once.
-spec tell(name(), measurements(), metadata()) -> ok.
tell(Name, Measurements, Metadata) ->
    case persistent_term:get(?SINK, none) of
        none -> ok;
        {_, Cells} -> tell(Cells, {event, Name, Measurements, Metadata})
    end.

%% The calling process has a connection of its own as long as it lives.
-spec connection(metadata()) -> ok.
connection(Metadata) ->
    case persistent_term:get(?SINK, none) of
        none -> ok;
        {_, Cells} -> tell(Cells, {connection, self(), Metadata})
    end.

tell(Cells, Message) ->
    case atomics:add_get(Cells, ?WAITING, 1) =< ?MOST andalso whereis(?MODULE) of
        Pid when is_pid(Pid) ->
            Pid ! Message,
            ok;
        _ ->
            atomics:sub(Cells, ?WAITING, 1),
            atomics:add(Cells, ?DROPPED, 1)
    end.

%% --- the process ------------------------------------------------------------------------

-spec init([]) -> {ok, #state{}}.
init([]) ->
    process_flag(trap_exit, true),           % a handler may link it to something
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

%% Whoever has no use for a connection any more kills its process.
why(killed) -> unused;
why({shutdown, Reason}) -> Reason;
why(Reason) -> Reason.
