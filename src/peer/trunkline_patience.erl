%% Decides how long a stop or a drain waits for a peer, and then a stop for its own inlets.
%%
%%       moved        moved                          stalled
%%         |            | <--------- QUIET ----------> |          nothing moves any more
%%         |            |  bytes   bytes               |
%%         |            |    |       | <---- QUIET ---------> |   it is there, and late
%%
%% The wait goes on as long as something moves in the session, because large messages may take their
%% time. If nothing moves, the peer may hang. Or its messages are behind a flood of plain messages,
%% which also makes it read late, or a long term is on its way to it. In the last two cases bytes
%% move by the distribution, and the wait goes on. But bytes also move to a peer whose Trunkline
%% does not work. So they prolong the wait by LISTEN at most.
%%
%% Times are in ms, as erlang:monotonic_time(millisecond) tells them.
-module(trunkline_patience).
-moduledoc false.

-export([new/2, heard/3, look/3]).

-export_type([patience/0]).

-define(QUIET, 3000).
-define(LISTEN, 20_000).
-define(LOOK, 1000).

-record(patience,
        {progress :: term(),
         moved :: integer(),                       % when something last moved
         heard :: integer(),                       % when bytes last moved by the distribution
         bytes = unknown :: non_neg_integer() | unknown}).
-opaque patience() :: #patience{}.

%% Progress is any term that changes when something has moved.
-spec new(Progress :: term(), Now :: integer()) -> patience().
new(Progress, Now) ->
    #patience{progress = Progress, moved = Now, heard = Now}.

%% Notes how much has moved by the distribution, in all (trunkline_socket).
-spec heard(non_neg_integer() | unknown, Now :: integer(), patience()) -> patience().
heard(Bytes, Now, #patience{bytes = Before} = P) ->
    P#patience{bytes = Bytes,
               heard = case is_integer(Before) andalso is_integer(Bytes) andalso Bytes > Before of
                           true -> Now;
                           false -> P#patience.heard
                       end}.

%% When to look again, or that it is not worth while to wait any longer.
-spec look(Progress :: term(), Now :: integer(), patience()) ->
          {again, Milliseconds :: pos_integer(), patience()} | stalled.
look(Progress, Now, #patience{progress = Before} = P) when Progress =/= Before ->
    look(Progress, Now, P#patience{progress = Progress, moved = Now});
look(_, Now, #patience{moved = Moved, heard = Heard} = P) ->
    case max(Moved, min(Heard, Moved + ?LISTEN)) + ?QUIET - Now of
        Left when Left > 0 -> {again, min(?LOOK, Left), P};
        _ -> stalled
    end.
