%% The heap of a process that passes on long messages: it has room for these.
%%
%% A message that comes is a fragment outside of the heap. If the heap has not as much room left as
%% the fragment takes, the next call of a built-in function collects garbage, and copies the
%% message. That can take longer than to pass it on. So the process says how much it passes on at a
%% time. Its heap has room for the largest amount of the last second or two: one word for each byte,
%% which is ample for lists of maps, but 7 MB at most (the runtime system rounds up). The figures
%% are in docs/lab/tried.md.
%%
%% A node that limits the heaps of its processes (`erl +hmax') is left alone: a process with more
%% room than the limit would be killed.
%%
%% All functions are for the process itself.
-module(trunkline_heap).
-moduledoc false.

-export([options/0, new/0, room_for/2, tick/1]).

-export_type([heap/0]).

-record(heap,
        {room :: trunkline_gate:charge(),              % how much it has
         most :: trunkline_gate:charge()}).            % since the last tick
-opaque heap() :: #heap{}.

%% Bytes, and words, that the process always has room for. (With as little as the runtime system
%% gives a process, a lane that sends short replies one by one collects with every fourth.)
-define(ROOM, 4096).
-define(LITTLE, (trunkline_gate:limit(?ROOM))).
-define(MOST_WORDS, 524_288).

%% For the start of the process.
-spec options() -> [proc_lib:spawn_option()].
options() -> [{min_heap_size, ?ROOM} || not trunkline_process:is_heap_limited()].

-spec new() -> heap().
new() -> #heap{room = ?LITTLE, most = ?LITTLE}.

%% The process passes on so much.
-spec room_for(trunkline_gate:charge(), heap()) -> heap().
room_for(Charge, #heap{room = Room}) when Charge > Room ->
    ok = set(Charge),
    #heap{room = Charge, most = Charge};
room_for(Charge, #heap{most = Most} = H) when Charge > Most ->
    H#heap{most = Charge};
room_for(_, H) ->
    H.

%% To be called once a second.
-spec tick(heap()) -> heap().
tick(#heap{room = Room, most = Room}) ->
    #heap{room = Room, most = ?LITTLE};
tick(#heap{most = Most}) ->
    ok = set(Most),
    #heap{room = Most, most = ?LITTLE}.

set(Charge) ->
    {min_heap_size, Least} = erlang:system_info(min_heap_size),
    Words = min(trunkline_gate:bytes(Charge), ?MOST_WORDS),
    _ = trunkline_process:is_heap_limited()
        orelse process_flag(min_heap_size, max(Least, Words)),
    ok.
