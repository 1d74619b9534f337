%% An inlet that has retired: its session has ended in good order, and callers wait for replies.
%%
%%     caller <──────────── reply ────────────── retired lane <── server
%%        │ watches                                                 ^
%%        v                                                         │ watches
%%     retired inlet <── they end together ──> its counterpart, the agent
%%
%% If the links have said goodbye in good order, everything has been delivered, and the nodes stay
%% connected, nothing has happened to the servers. So the inlet goes on as agent, and as what
%% callers watch. So does its counterpart, the inlet at the peer to which their requests went. The
%% inlet ends when the connection or the counterpart ends, or when no process waits at either of the
%% two. Its lanes retire, too (trunkline_retired_lane). If a reply may still come when the
%% counterpart has ended, by a lane of a later session, the inlet stays as long as that session. So
%% an inlet may outlive its link, and the application.
%%
%% This module is a part of the inlet, whose process calls it, and gets its messages: 'DOWN', and
%% the timeouts `awaited', at which it looks whether a process still waits.
-module(trunkline_retired_inlet).
-moduledoc false.

-include("../gate/trunkline_route.hrl").

-export([retire/2, is_watched/1, look_again/0, down/2]).

-export_type([retired/0]).

%% ms between two looks.
-define(AWAITED, 500).

%% The inlet ends together with these processes: its lanes, its counterpart or the inlets of a later
%% session.
-opaque retired() :: [pid()].
-type ends() :: {retired, retired()} | over.
-type down() :: {'DOWN', reference(), process, pid(), Reason :: term()}.

%% The calling inlet's session has ended, and its link, which gets {retired, self()}, need not wait
%% for it.
-spec retire(Counterpart :: pid(), trunkline_route:route()) -> ends().
retire(Counterpart, #route{link = Link, lanes = Lanes}) ->
    ok = trunkline_watched:retired(self()),
    Lanes1 = tuple_to_list(Lanes),
    ok = monitor_all(Lanes1),
    unlink(Link),
    Link ! {retired, self()},
    ok = look_again(),
    case trunkline_process:monitor_connected(Counterpart) of
        noconnection -> over;
        _ -> {retired, [Counterpart | Lanes1]}
    end.

monitor_all(Pids) -> lists:foreach(fun(Pid) -> monitor(process, Pid) end, Pids).

-spec look_again() -> ok.
look_again() ->
    _ = erlang:start_timer(?AWAITED, self(), awaited),
    ok.

%% Whether a caller watches the inlet. The lanes and the counterpart monitor it for their own sake,
%% and so may others: none of these is a caller.
-spec is_watched(retired()) -> boolean().
is_watched(Retired) ->
    {monitored_by, By} = process_info(self(), monitored_by),
    lists:any(fun(Pid) ->
                      is_pid(Pid) andalso node(Pid) =:= node()
                          andalso not lists:member(Pid, Retired)
                          andalso not trunkline_watched:is_watching(Pid)
              end, By).

%% `other': the inlet does not end together with that process.
-spec down(down(), retired()) -> ends() | other.
down({'DOWN', _, process, Pid, Reason} = Down, Retired) ->
    case lists:member(Pid, Retired) of
        true when Reason =:= normal, node(Pid) =/= node() -> counterpart_ended(Down, Retired);
        true -> over;
        false -> other
    end.

%% No process waits at the counterpart any more. But its last replies may be on their way by the
%% lanes of a later session, with which this inlet ends then. (Without lanes they have come before.)
counterpart_ended({'DOWN', _, process, Pid, _} = Down, Retired) ->
    case {trunkline_peers:session(node(Pid)), trunkline_peers:lookup(node(Pid))} of
        {none, #{state := State}} when State =:= greeting; State =:= opening ->
            _ = erlang:send_after(?AWAITED, self(), Down),
            {retired, Retired};
        {none, _} ->
            over;
        {Inlets, _} ->
            Later = tuple_to_list(Inlets),
            ok = monitor_all(Later),
            {retired, Later ++ lists:delete(Pid, Retired)}
    end.
