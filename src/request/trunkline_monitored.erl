%% The monitors of callers at another node for processes of this one (trunkline_monitor).
%%
%% For each of them the agent has a monitor of its own, until the process ends or the caller
%% demonitors it. So what the caller sends afterwards finds the process monitored. In place of
%% 'DOWN' that monitor's message has the command that tells the caller, and it takes the lane of the
%% process's own messages, behind them.
%%
%% There may be very many. So they are in a table of the agent's, {the caller's reference, the
%% agent's}: no garbage collection copies them.
-module(trunkline_monitored).
-moduledoc false.

-export([new/0, add/5, remove/2, has_ended/3]).

-export_type([monitored/0]).

-opaque monitored() :: none | ets:table().

-spec new() -> monitored().
new() -> none.

%% The calling process is the agent. It gets {Command, Monitor, process, Server, Reason}: see
%% has_ended/3.
-spec add(Server :: pid(), Object :: pid() | {atom(), node()}, trunkline_command:caller(),
          reference(), monitored()) -> monitored().
add(Server, Object, Caller, Ref, none) ->
    add(Server, Object, Caller, Ref, ets:new(?MODULE, [private]));
add(Server, Object, Caller, Ref, Monitored) ->
    %% The caller's node may ask for it twice when a session begins.
    _ = ets:member(Monitored, Ref)
        orelse ets:insert(Monitored, {Ref, monitor(process, Server,
                                                   [{tag, {ended, Object, Caller, Ref}}])}),
    Monitored.

%% (A message that is here already is ignored.)
-spec remove(reference(), monitored()) -> ok.
remove(Ref, Monitored) ->
    case take(Ref, Monitored) of
        [{Ref, Monitor}] -> true = demonitor(Monitor), ok;
        [] -> ok                                                   % it has ended
    end.

%% Whether that ends the caller's monitor.
-spec has_ended(reference(), Monitor :: reference(), monitored()) -> boolean().
has_ended(Ref, Monitor, Monitored) ->
    case take(Ref, Monitored) of
        [{Ref, Monitor}] -> true;
        [Another] -> not ets:insert(Monitored, Another);           % it has been monitored again
        [] -> false                                                % it is demonitored
    end.

take(_, none) -> [];
take(Ref, Monitored) -> ets:take(Monitored, Ref).
