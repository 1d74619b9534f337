%% A process that callers monitor in place of an inlet when they make a request while there is no
%% session with that node. Their requests wait in a lane.
%%
%% A stand-in ends, and its callers stop waiting, when the connection cannot be made or is lost,
%% when the session that has carried the requests ends, or when their link dies before there is a
%% session. If it turns out that the peer has no lanes, the requests go by plain distribution, and
%% the stand-in lasts as long as the connection. All callers that ask before the session share one.
%% It also ends when no process monitors it.
-module(trunkline_stand_in).
-moduledoc false.
-behaviour(gen_server).

-export([start/0, session/2, plain/2, stop/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

%% ms
-define(AWAITED, 10_000).
-define(HIBERNATE, 500).

%% The processes that the stand-in depends on now. It ends with the last of them. It also monitors
%% those on which it has depended before.
-record(stand_in, {watched :: [pid()]}).

%% Starts a stand-in for the calling link. `none': no process could be started.
-spec start() -> pid() | none.
start() ->
    Link = self(),
    case trunkline_process:start(fun() ->
                                         gen_server:start(?MODULE, Link,
                                                          [{hibernate_after, ?HIBERNATE}])
                                 end) of
        {ok, {ok, StandIn}} -> StandIn;
        {error, system_limit} -> none
    end.

%% This session carries the requests.
-spec session(pid(), Inlets :: [pid()]) -> ok.
session(StandIn, Inlets) ->
    gen_server:cast(StandIn, {session, Inlets}).

-spec plain(pid(), node()) -> ok.
plain(StandIn, Node) ->
    gen_server:cast(StandIn, {plain, Node}).

-spec stop(pid()) -> ok.
stop(StandIn) ->
    gen_server:cast(StandIn, stop).

-spec init(pid()) -> {ok, #stand_in{}}.
init(Link) ->
    ok = trunkline_process:outlive(self()),
    {ok, watch([Link])}.

watch(Pids) ->
    lists:foreach(fun(Pid) -> monitor(process, Pid) end, Pids),
    #stand_in{watched = Pids}.

-spec handle_call(term(), gen_server:from(), #stand_in{}) -> {reply, {error, badarg}, #stand_in{}}.
handle_call(_, _, S) ->
    {reply, {error, badarg}, S}.

-spec handle_cast(term(), #stand_in{}) -> {noreply, #stand_in{}} | {stop, normal, #stand_in{}}.
handle_cast({session, Inlets}, _) ->
    look(),
    {noreply, watch(Inlets)};
handle_cast({plain, Node}, S) ->
    %% Monitoring a node that is not connected would connect it.
    case trunkline_process:is_connected(Node) of
        true ->
            look(),
            true = monitor_node(Node, true),
            {noreply, watch([])};
        false ->
            {stop, normal, S}
    end;
handle_cast(stop, S) ->
    {stop, normal, S};
handle_cast(Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    {noreply, S}.

-spec handle_info(term(), #stand_in{}) -> {noreply, #stand_in{}} | {stop, normal, #stand_in{}}.
handle_info({'DOWN', _, process, Pid, _}, #stand_in{watched = Watched} = S) ->
    case lists:delete(Pid, Watched) of
        [] when Watched =/= [] -> {stop, normal, S};
        Left -> {noreply, S#stand_in{watched = Left}}
    end;
handle_info({are_waiting, Agent, Requests}, S) ->
    ok = trunkline_waiting:are_waiting(Agent, Requests),
    {noreply, S};
handle_info({nodedown, _}, S) ->
    {stop, normal, S};
handle_info(look, S) ->
    {monitored_by, By} = process_info(self(), monitored_by),
    case By of
        [] ->
            {stop, normal, S};
        _ ->
            look(),
            {noreply, S}
    end;
handle_info(Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    {noreply, S}.

look() -> erlang:send_after(?AWAITED, self(), look).
