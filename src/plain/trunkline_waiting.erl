%% The callers at a node that wait for plain replies, and how their agent hears that they have them.
%%
%% A caller cannot tell that it has a plain reply (trunkline_long_reply) before it uses a lane next.
%% So the agent asks the inlet at the caller's node that the caller monitors while it waits:
%%
%%     caller                        its inlet                       agent
%%       | -- monitors ---------------> |                              |
%%       | ══ request, with the inlet ══════════════════════════════>  |
%%       |                              |             after 1 s, 2 s, 4 s ... 64 s
%%       |                              | <-- are these waiting? ----- |
%%       |                              | --- these are not ---------> |
%%
%% An inlet that ends takes its callers' monitors with it: they do not wait any more.
%%
%% It is a part of the agent, but for are_waiting/2, which is for inlets.
-module(trunkline_waiting).
-moduledoc false.

-export([new/0, add/3, remove/2, look/1, time_to_look/2, ended/2]).
-export([are_waiting/2]).

-export_type([waiting/0, request/0]).

%% ms between two looks, at first and at last; and that are long for a plain reply.
-define(OFTEN, 1000).
-define(MOST_RARELY, 64_000).
-define(LONG, 4000).

-type request() :: {trunkline_command:caller(), Server :: pid()}.

-record(waiting,
        {%% With the time from which on the caller has waited for long.
         requests = #{} :: #{request() => {Inlet :: pid(), Caller :: pid(),
                                           trunkline_deadline:deadline()}},
         %% Those that callers monitor, and their monitors.
         inlets = #{} :: #{Inlet :: pid() => reference() | noconnection},
         %% The next look, and how long it is after the one before (ms).
         look = none :: none | {Timer :: reference(), pos_integer()}}).
-opaque waiting() :: #waiting{}.

-spec new() -> waiting().
new() -> #waiting{}.

%% The calling process is the agent. It gets `{timeout, Timer, look}': see time_to_look/2.
-spec add(request(), {Inlet :: pid(), Caller :: pid()}, waiting()) -> waiting().
add(Request, {Inlet, Caller}, #waiting{requests = Requests, inlets = Inlets} = W) ->
    Inlets1 = case Inlets of
                  #{Inlet := _} -> Inlets;
                  #{} -> Inlets#{Inlet => trunkline_process:monitor_connected(Inlet)}
              end,
    Waits = {Inlet, Caller, trunkline_deadline:in(?LONG)},
    soon(W#waiting{requests = Requests#{Request => Waits}, inlets = Inlets1}).

soon(#waiting{look = {_, ?OFTEN}} = W) ->
    W;
soon(#waiting{look = {Timer, _}} = W) ->
    _ = erlang:cancel_timer(Timer),
    later(?OFTEN, W);
soon(#waiting{look = none} = W) ->
    later(?OFTEN, W).

later(Time, W) -> W#waiting{look = {erlang:start_timer(Time, self(), look), Time}}.

-spec remove(request(), waiting()) -> waiting().
remove(Request, #waiting{requests = Requests} = W) ->
    W#waiting{requests = maps:remove(Request, Requests)}.

%% Asks the inlets.
-spec look(waiting()) -> ok.
look(#waiting{requests = Requests}) ->
    Asked = maps:groups_from_list(fun({_, {Inlet, _, _}}) -> Inlet end,
                                  fun({Request, {_, Caller, _}}) -> {Request, Caller} end,
                                  maps:to_list(Requests)),
    maps:foreach(fun(Inlet, Of) ->
                         trunkline_process:send_connected(Inlet, {are_waiting, self(), Of})
                 end, Asked).

%% That timer has ended. Returns the servers that let a caller wait for long, too.
-spec time_to_look(Timer :: reference(), waiting()) -> {[Server :: pid()], waiting()}.
time_to_look(Timer, #waiting{look = {Timer, _}, requests = Requests} = W)
  when map_size(Requests) =:= 0 ->
    {[], W#waiting{look = none}};
time_to_look(Timer, #waiting{look = {Timer, Time}, requests = Requests} = W) ->
    ok = look(W),
    Slow = [Server || {{_, Server}, {_, _, Until}} <- maps:to_list(Requests),
                      trunkline_deadline:has_passed(Until)],
    {lists:usort(Slow), later(min(2 * Time, ?MOST_RARELY), W)};
time_to_look(_, W) ->
    {[], W}.                                 % it was cancelled too late

%% A process has ended. If it was an inlet: these do not wait any more.
-spec ended(pid(), waiting()) -> {[request()], waiting()} | unknown.
ended(Inlet, #waiting{requests = Requests, inlets = Inlets} = W)
  when is_map_key(Inlet, Inlets) ->
    Of = [Request || {Request, {At, _, _}} <- maps:to_list(Requests), At =:= Inlet],
    {Of, W#waiting{requests = maps:without(Of, Requests), inlets = maps:remove(Inlet, Inlets)}};
ended(_, _) ->
    unknown.

%% The calling process is an inlet. It tells the agent for which of these requests none waits.
-spec are_waiting(Agent :: pid(), [{request(), Caller :: pid()}]) -> ok.
are_waiting(Agent, Requests) ->
    {monitored_by, By} = process_info(self(), monitored_by),
    Waiting = maps:from_keys(By, []),
    case [Request || {Request, Caller} <- Requests, not is_map_key(Caller, Waiting)] of
        [] -> ok;
        Answered -> trunkline_process:send_connected(Agent, {answered, Answered})
    end.
