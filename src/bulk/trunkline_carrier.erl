%% The connecting side's end of a connection for large messages: makes it, and writes frames
%% to it.
%%
%%     trunk                        carrier                  the peer's dock
%%       |                            | -- invite ------------> |
%%       |                            | <--------- invitation - |
%%       |                            | ══ connects, proves ══> (trunkline_connection)
%%       | <----------- ready, token -|
%%       | -- fragments ------------> | ════════ frames ══════> (trunkline_dock)
%%       | <------------------ sent - |  the connection has taken them, in how many us
%%
%% A carrier belongs to a trunkline_trunk, and ends with the trunk and with the connection.
-module(trunkline_carrier).
-moduledoc false.

-export([start/2, send/2]).
-export([loop/1]).

-record(carrier,
        {trunk :: pid(),
         connection :: trunkline_connection:connection(),
         beats = 0 :: non_neg_integer()}).       % how many more heartbeats

%% The calling process is the trunk, and monitors the carrier, whose exit reason
%% says why there is no connection.
-spec start(Dock :: pid(), trunkline_connection:settings()) ->
          {ok, {pid(), reference()}} | {error, system_limit}.
start(Dock, Settings) ->
    Trunk = self(),
    trunkline_process:start(
      fun() -> spawn_monitor(fun() -> start(Trunk, Dock, Settings) end) end).

start(Trunk, Dock, Settings) ->
    ok = trunkline_process:label({trunkline_carrier, node(Dock)}),
    _ = monitor(process, Trunk),
    #{token := Token, congestion_control := CongestionControl} = Connection =
        trunkline_connection:connect(Dock, Trunk, Settings),
    Trunk ! {ready, self(), Token, CongestionControl},
    loop(#carrier{trunk = Trunk, connection = Connection}).

%% When `{sent, Carrier, Bytes, Microseconds}' has come, the trunk may give the carrier
%% the next fragments.
-spec send(pid(), [trunkline_fragments:fragment(), ...]) -> ok.
send(Carrier, Fragments) ->
    Carrier ! {carry, Fragments},
    ok.

-spec loop(#carrier{}) -> no_return().
loop(#carrier{trunk = Trunk, connection = Connection, beats = Beats} = S) ->
    receive
        {carry, Fragments} ->
            Start = erlang:monotonic_time(microsecond),
            ok = trunkline_connection:send(Connection, [trunkline_wire:frame(F) || F <- Fragments]),
            Bytes = trunkline_fragments:bytes(Fragments),
            Trunk ! {sent, self(), Bytes, erlang:monotonic_time(microsecond) - Start},
            %% These may have been the last fragments for a long time, and a fragment, however
            %% small, refers to the whole binary that it is part of.
            true = garbage_collect(),
            ?MODULE:loop(S#carrier{beats = trunkline_connection:beats(Connection)});
        {'DOWN', _, process, _, _} ->
            exit({shutdown, closed});                    % the trunk
        {system, From, Request} ->
            trunkline_process:system(From, Request, fun ?MODULE:loop/1, S);
        Other ->
            ok = trunkline_connection:other(?MODULE, Other),
            loop(S)
    after trunkline_connection:pause(Beats) ->
            ok = trunkline_connection:beat(Connection),
            loop(S#carrier{beats = Beats - 1})
    end.
