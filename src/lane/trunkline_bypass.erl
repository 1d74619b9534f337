%% Whether a sender may bypass its lane without asking it (see trunkline_in_turn).
%%
%% It may if nothing is ahead of its message: the lane is idle, there are no large messages, and the
%% sender has no reply in the lane's mailbox.
%%
%%     lane is idle       its level is zero and nothing is in flight. The lane takes its mark away
%%                        before a batch leaves the level, and a sender reads the level first. So
%%                        the sender sees one of the two
%%     no replies         a reply of gen_server:reply/2 passes no gate, so only the lane knows of
%%                        it. The inlet marks each process that it delivers a request to. Those
%%                        that are marked have to ask
%%
%% A mark of the second kind stands for all processes with the same hash, and stays: a process that
%% is taken for a server asks in vain.
%%
%% Senders count here what they have sent, and tell the lane of the first one. The lane takes the
%% count, and reports it to the inlet. If the lane has changed its mode meanwhile, the message was
%% sent in a use of the lane that has ended, and may be lost.
-module(trunkline_bypass).
-moduledoc false.

-export([new/1, use/4, sent/3]).
-export([called/2, next_use/2, is_idle/3, take/2]).

-export_type([bypass/0, use/0]).

-opaque bypass() :: atomics:atomics_ref().
%% Of a lane, from one change of its mode to the next.
-type use() :: non_neg_integer().

%% With so many marks, 8 kB, a hundred servers make one process in ten ask.
-define(MARKS, 1024).
-define(MARK(Pid), (erlang:phash2(Pid, ?MARKS) + 1)).
%% Each lane has a cache line. 2 * N: lane Ix is in its Nth use; 2 * N + 1: and idle.
-define(USE(Ix), (?MARKS + 16 * (Ix))).
%% Messages that have been sent, and not taken.
-define(SENT(Ix), (?MARKS + 16 * (Ix) + 1)).

-spec new(Lanes :: pos_integer()) -> bypass().
new(Lanes) -> atomics:new(?SENT(Lanes), [{signed, false}]).

%% --- for a sender -----------------------------------------------------------

%% The calling process, whose lane is Ix, may send. Bulk is the number of the level of large
%% messages.
-spec use(trunkline_gate:gate(), Ix :: pos_integer(), Bulk :: pos_integer(), bypass()) ->
          {ok, use()} | no.
use(Gate, Ix, Bulk, Bypass) ->
    case trunkline_gate:fill(Gate, Ix) =:= 0 andalso trunkline_gate:fill(Gate, Bulk) =:= 0
        andalso atomics:get(Bypass, ?MARK(self())) =:= 0
        andalso atomics:get(Bypass, ?USE(Ix)) of
        Use when is_integer(Use), Use rem 2 =:= 1 -> {ok, Use div 2};
        _ -> no
    end.

%% It has sent. `first': the lane should be told. `over': that use of the lane has ended.
-spec sent(use(), Ix :: pos_integer(), bypass()) -> ok | first | over.
sent(Use, Ix, Bypass) ->
    case atomics:get(Bypass, ?USE(Ix)) div 2 of
        Use ->
            case atomics:add_get(Bypass, ?SENT(Ix), 1) of
                1 -> first;
                _ -> ok
            end;
        _ ->
            over
    end.

%% --- for the inlets -----------------------------------------------------------

%% That process may reply by lane.
-spec called(pid(), bypass()) -> ok.
called(Server, Bypass) -> atomics:put(Bypass, ?MARK(Server), 1).

%% --- for lane Ix ----------------------------------------------------------------

%% It changes its mode, and is not idle.
-spec next_use(Ix :: pos_integer(), bypass()) -> ok.
next_use(Ix, Bypass) ->
    atomics:put(Bypass, ?USE(Ix), 2 * (atomics:get(Bypass, ?USE(Ix)) div 2 + 1)).

%% Whether nothing is in flight.
-spec is_idle(boolean(), Ix :: pos_integer(), bypass()) -> ok.
is_idle(IsIdle, Ix, Bypass) ->
    case {IsIdle, atomics:get(Bypass, ?USE(Ix))} of
        {true, Use} when Use rem 2 =:= 0 -> atomics:put(Bypass, ?USE(Ix), Use + 1);
        {false, Use} when Use rem 2 =:= 1 -> atomics:put(Bypass, ?USE(Ix), Use - 1);
        _ -> ok
    end.

%% The messages that were sent since the last time.
-spec take(Ix :: pos_integer(), bypass()) -> non_neg_integer().
take(Ix, Bypass) -> atomics:exchange(Bypass, ?SENT(Ix), 0).
