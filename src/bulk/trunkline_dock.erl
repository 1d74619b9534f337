%% Where the fragments of a peer's large messages arrive.
%%
%% It puts them together (trunkline_reassembly), and tells the inlet concerned when
%% one is complete. Fragments come by several carriers, and of each it knows how
%% many have come: when one breaks, the peer sends what has not.
%%
%%     carriers   trunkline_trunk   dock                      inlet
%%       | -- invite ------------->  |  starts a receiver
%%       | <----------- invitation - |  (see trunkline_listener)
%%       | == fragments ===========> |
%%       |           |               | -- arrived ------------> |
%%       |           | -- cut -----> |  this carrier is broken
%%       |           | <-cut, count- |  so many have come by it
%%       |           | -- forget --> |  the trunk knows that
%%
%% What comes by the distribution is from the trunk itself, which does not know at once that there
%% is another connection. So these fragments have numbers, and those behind one that is missing do
%% not count.
%%
%% The answer may be lost with the connection between the nodes, and the session go on over another
%% one. Then the trunk asks again: what a carrier has brought is known here until it says forget.
%% (One that does not resume sessions never says that, nor does it ask again.)
%%
%% The mailbox must be on the heap, whatever the node's default is: the trunk says `cut' when
%% it knows that a carrier has ended, which at the peer is another process, and no fragment of
%% the carrier's may come behind that (see trunkline_lane).
%%
%% A dock lives for one session of a link, and its receivers with it. What is not
%% complete at the end is dropped: the notice was in the same session.
-module(trunkline_dock).
-moduledoc false.
-behaviour(gen_server).

-export([start_link/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, format_status/1]).

%% A carrier's name: that of a connection is its token, that of the distribution the pid of the
%% peer's trunk, or in release 0.5.0 of a process beside it.
-type carrier() :: trunkline_wire:token() | pid().

-record(dock,
        {link :: pid(),
         inlets :: tuple(),                                    % of pids
         stats :: trunkline_stats:stats(),
         reassembly = trunkline_reassembly:new() :: trunkline_reassembly:reassembly(),
         receivers = #{} :: #{pid() => {carrier(), Trunk :: pid()}},
         %% By a receiver, or by a carrier that is the distribution's or has ended.
         received = #{} :: #{pid() | carrier() => pos_integer()}}).

-define(QUIET, 1000).                % ms
-define(IS_LANE(Lane, S), is_integer(Lane), Lane > 0, Lane =< tuple_size((S)#dock.inlets)).

-spec start_link(Inlets :: [pid()], trunkline_stats:stats()) -> pid().
start_link(Inlets, Stats) ->
    %% Not by gen_server:start_link: with the link it should end without a report.
    {ok, Dock} = gen_server:start(?MODULE, {self(), list_to_tuple(Inlets), Stats},
                                  [{hibernate_after, ?QUIET},
                                   {spawn_opt, [{fullsweep_after, 0},
                                                {message_queue_data, on_heap}]}]),
    Dock.

-spec init({pid(), tuple(), trunkline_stats:stats()}) -> {ok, #dock{}}.
init({Link, Inlets, Stats}) ->
    process_flag(trap_exit, true),
    true = link(Link),
    {ok, #dock{link = Link, inlets = Inlets, stats = Stats}}.

-spec handle_call(term(), gen_server:from(), #dock{}) -> {reply, {error, badarg}, #dock{}}.
handle_call(_, _, S) ->
    {reply, {error, badarg}, S}.

-spec handle_cast(term(), #dock{}) -> {noreply, #dock{}}.
handle_cast(Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    {noreply, S}.

-spec handle_info(term(), #dock{}) -> {noreply, #dock{}} | {stop, {shutdown, link}, #dock{}}.
handle_info({fragment, Carrier, {Lane, _} = Id, Size, Offset, Data}, S)
  when is_pid(Carrier), ?IS_LANE(Lane, S), is_binary(Data) ->
    trunkline_stats:add(S#dock.stats, peer, large_arrived_bytes, byte_size(Data)),
    {noreply, fragment(Carrier, Id, Size, Offset, Data, S)};
handle_info({fragment, {Trunk, N}, {Lane, _} = Id, Size, Offset, Data}, S)
  when is_pid(Trunk), is_integer(N), ?IS_LANE(Lane, S), is_binary(Data) ->
    trunkline_stats:add(S#dock.stats, peer, large_arrived_bytes, byte_size(Data)),
    case maps:get(Trunk, S#dock.received, 0) of
        Before when N =:= Before + 1 ->
            {noreply, fragment(Trunk, Id, Size, Offset, Data, S)};
        _ ->
            %% One before it was lost with a connection. It is sent again, and so is this one.
            tell(Trunk, {taken, self()}),
            {noreply, S}
    end;
handle_info({invite, Carrier, Ref, Wanted, Trunk}, S) ->
    {Invitation, S1} = invite(Wanted, Trunk, S),
    tell(Carrier, {invitation, Ref, Invitation}),
    {noreply, S1};
handle_info({cut, Trunk, Carrier}, S) when is_pid(Carrier) ->
    {noreply, count(Carrier, Carrier, Trunk, S)};
handle_info({forget, Carrier}, #dock{received = Received} = S) ->
    {noreply, S#dock{received = maps:remove(Carrier, Received)}};
handle_info({cut, Trunk, Token}, #dock{receivers = Receivers, received = Received} = S) ->
    %% It must not receive more after it has been counted.
    case [R || {R, {T, _}} <- maps:to_list(Receivers), T =:= Token] of
        [Receiver] -> exit(Receiver, kill);
        [] -> tell(Trunk, {cut, Token, maps:get(Token, Received, 0)})
    end,
    {noreply, S};
handle_info({'EXIT', Link, _}, #dock{link = Link} = S) ->
    {stop, {shutdown, link}, S};
handle_info({'EXIT', Pid, _}, #dock{receivers = Receivers} = S) ->
    case maps:take(Pid, Receivers) of
        {{Token, Trunk}, Receivers1} ->
            {noreply, count(Pid, Token, Trunk, S#dock{receivers = Receivers1})};
        error ->
            {noreply, S}
    end;
handle_info(Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    {noreply, S}.

%% If there is no invitation the peer's trunk will ask again. Release 0.5 has a trunk for batches,
%% too: they stay on the distribution.
invite({batches, _}, _, S) ->
    {{error, not_wanted}, S};
invite(Wanted, Trunk, #dock{receivers = Receivers} = S) ->
    case trunkline_receiver:start_link(self()) of
        {ok, Receiver} ->
            case trunkline_listener:invite(Wanted, Receiver) of
                {ok, #{token := Token}} = Invitation ->
                    {Invitation, S#dock{receivers = Receivers#{Receiver => {Token, Trunk}}}};
                {error, _} = Error ->
                    unlink(Receiver),
                    exit(Receiver, kill),
                    {Error, S}
            end;
        {error, _} = Error ->
            {Error, S}
    end.

fragment(Carrier, Id, Size, Offset, Data, S) ->
    #dock{received = Received, reassembly = Reassembly} = S,
    node(Carrier) =:= node() orelse tell(Carrier, {taken, self()}),
    S1 = S#dock{received = Received#{Carrier => maps:get(Carrier, Received, 0) + 1}},
    case trunkline_reassembly:add(Id, Size, Offset, Data, Reassembly) of
        {complete, Parts, Reassembly1} ->
            ok = arrived(Id, Parts, S),
            S1#dock{reassembly = Reassembly1};
        {incomplete, Reassembly1} ->
            S1#dock{reassembly = Reassembly1}
    end.

arrived({Lane, Number}, Parts, #dock{inlets = Inlets}) ->
    trunkline_inlet:arrived(element(Lane, Inlets), Number, Parts).

%% The last word about a carrier.
count(Pid, Carrier, Trunk, #dock{received = Received} = S) ->
    Count = maps:get(Pid, Received, 0),
    tell(Trunk, {cut, Carrier, Count}),
    Others = maps:remove(Pid, Received),
    S#dock{received = case Count > 0 andalso trunkline_peers:can(node(Trunk), resume) of
                          true -> Others#{Carrier => Count};
                          false -> Others
                      end}.

tell(Pid, What) ->
    _ = erlang:send(Pid, What, [noconnect]),
    ok.

%% No report has the users' data in it.
-spec format_status(gen_server:format_status()) -> gen_server:format_status().
format_status(Status) ->
    maps:map(fun(state, #dock{receivers = Receivers}) -> {dock, maps:size(Receivers)};
                (message, _) -> not_shown;
                (log, _) -> [];
                (_, Value) -> Value
             end, Status).
