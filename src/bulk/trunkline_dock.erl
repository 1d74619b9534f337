%% The dock: where the fragments of a peer's large messages arrive.
%%
%% It reads all connections from that peer's carriers, puts the fragments together
%% (trunkline_reassembly), and tells the inlet concerned when a message is complete. It counts the
%% fragments of each carrier: when a carrier breaks, the peer sends again what has not arrived.
%%
%%     carriers   trunkline_trunk   dock                      inlet
%%       | -- invite ------------->  |
%%       | <----------- invitation - |  when it is used, the listener sends the socket
%%       | == fragments ===========> |
%%       |           |               | -- arrived ------------> |
%%       |           | -- cut -----> |  this carrier is broken
%%       |           | <-cut, count- |  how many have come by it
%%       |           | -- forget --> |  the trunk knows that
%%
%% Fragments that come by the distribution are from the trunk itself, which does not know at once
%% that there is another connection. So they have numbers, and those behind a missing one do not
%% count.
%%
%% The answer to `cut' may be lost with the connection between the nodes, and the session may go on
%% over another one. Then the trunk asks again, so the dock keeps the count of a carrier until the
%% trunk says `forget'. (A trunk that does not resume sessions never says that, nor asks again.)
%%
%% Nothing that comes by a connection counts once its count has been told. But release 0.5.0 has
%% carriers that send by the distribution. Its trunk says `cut' when it knows that such a process
%% has ended, and no fragment of that may come behind it. So the mailbox must be on the heap,
%% whatever the node's default is (see trunkline_lane).
%%
%% Data are in a binary of their own, into which the runtime system has read them from the socket.
%%
%% A dock and its connections live for one session of a link, as the peer's trunk does. What is not
%% complete at the end is dropped: the notice was in the same session.
-module(trunkline_dock).
-moduledoc false.
-behaviour(gen_server).

-export([start_link/2, fragment/3, cut/2, forget/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, handle_continue/2, format_status/1]).

%% The name of a carrier: for a connection its token, for the distribution the pid of the peer's
%% trunk, or in release 0.5.0 of a process beside the trunk.
-type carrier() :: trunkline_wire:token() | pid().

-record(dock,
        {link :: pid(),
         inlets :: tuple(),                                    % of pids
         stats :: trunkline_stats:stats(),
         reassembly = trunkline_reassembly:new() :: trunkline_reassembly:reassembly(),
         trunk = none :: none | pid(),                         % the peer's
         connections = #{} :: #{trunkline_transport:socket() =>
                                    {trunkline_transport:transport(), trunkline_wire:token()}},
         %% Connections that may still come, and until when (ms).
         invited = #{} :: #{trunkline_wire:token() => integer()},
         %% How many fragments have come, also by carriers that have ended.
         received = #{} :: #{carrier() => pos_integer()}}).

%% ms
-define(QUIET, 1000).
-define(VALID, 60_000).              % longer than an invitation is valid at the listener
%% Bytes.
-define(MUCH, 1 bsl 20).
-define(IS_LANE(Lane, S), is_integer(Lane), Lane > 0, Lane =< tuple_size((S)#dock.inlets)).

-spec start_link(Inlets :: [pid()], trunkline_stats:stats()) -> pid().
start_link(Inlets, Stats) ->
    %% Not by gen_server:start_link: when the link ends, the dock should end without a report.
    {ok, Dock} = gen_server:start(?MODULE, {self(), list_to_tuple(Inlets), Stats},
                                  [{hibernate_after, ?QUIET},
                                   {spawn_opt, [{fullsweep_after, 0},
                                                {message_queue_data, on_heap}]}]),
    Dock.

%% --- for the peer's trunk -------------------------------------------------------

%% A fragment, by the distribution. It has a number if the session may outlive the connection.
-spec fragment(pid(), pid() | {Trunk :: pid(), Number :: pos_integer()},
               trunkline_fragments:fragment()) -> ok.
fragment(Dock, Name, {Id, Size, Offset, _, Data}) ->
    trunkline_process:send_connected(Dock, {fragment, Name, Id, Size, Offset, whole(Data)}).

whole([Binary]) -> Binary;
whole(Data) -> iolist_to_binary(Data).

%% Asks how many fragments of that carrier have arrived. The calling trunk gets
%% {cut, Carrier, Received}.
-spec cut(pid(), carrier()) -> ok.
cut(Dock, Carrier) -> trunkline_process:send_connected(Dock, {cut, self(), Carrier}).

%% The trunk has had that answer.
-spec forget(pid(), carrier()) -> ok.
forget(Dock, Carrier) -> trunkline_process:send_connected(Dock, {forget, Carrier}).

%% --- the process ----------------------------------------------------------------

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

-spec handle_info(term(), #dock{}) ->
          {noreply, #dock{}} | {noreply, #dock{}, {continue, collect}}
              | {stop, {shutdown, link}, #dock{}}.
handle_info({fragment, Carrier, {Lane, _} = Id, Size, Offset, Data}, S)
  when is_pid(Carrier), ?IS_LANE(Lane, S), is_binary(Data) ->
    trunkline_process:send_connected(Carrier, {taken, self()}),
    {noreply, fragment(Carrier, Id, Size, Offset, Data, S)};
handle_info({fragment, {Trunk, N}, {Lane, _} = Id, Size, Offset, Data}, S)
  when is_pid(Trunk), is_integer(N), ?IS_LANE(Lane, S), is_binary(Data) ->
    trunkline_process:send_connected(Trunk, {taken, self()}),
    case maps:get(Trunk, S#dock.received, 0) of
        Before when N =:= Before + 1 ->
            {noreply, fragment(Trunk, Id, Size, Offset, Data, S)};
        _ ->
            %% An earlier fragment was lost with a connection. It is sent again, and so is this one.
            {noreply, S}
    end;
%% If there is no invitation the peer's trunk will ask again. Release 0.5 has a trunk for batches,
%% too: these stay on the distribution.
handle_info({invite, Carrier, Ref, {batches, _}, _}, S) ->
    ok = trunkline_connection:invited(Carrier, Ref, {error, not_wanted}),
    {noreply, S};
handle_info({invite, Carrier, Ref, Wanted, Trunk}, S) ->
    Invitation = trunkline_listener:invite(Wanted, self()),
    ok = trunkline_connection:invited(Carrier, Ref, Invitation),
    {noreply, invited(Invitation, S#dock{trunk = Trunk})};
handle_info({socket, Token, Transport, Socket},
            #dock{invited = Invited, connections = Connections} = S)
  when is_map_key(Token, Invited) ->
    S1 = S#dock{invited = maps:remove(Token, Invited),
                connections = Connections#{Socket => {Transport, Token}}},
    {noreply, case trunkline_transport:frames(Transport, Socket) of
                  ok -> S1;
                  {error, _} -> closed(Socket, S1)
              end};
handle_info({socket, _, Transport, Socket}, S) ->
    ok = trunkline_transport:close(Transport, Socket),   % it was given up before it came
    {noreply, S};
handle_info({cut, Trunk, Carrier}, #dock{invited = Invited, connections = Connections} = S) ->
    S1 = S#dock{trunk = Trunk, invited = maps:remove(Carrier, Invited)},
    {noreply, case [Socket || {Socket, {_, T}} <- maps:to_list(Connections), T =:= Carrier] of
                  [Socket] -> close(Socket, S1);
                  [] -> tell_count(Carrier, S1)
              end};
handle_info({forget, Carrier}, #dock{received = Received} = S) ->
    {noreply, S#dock{received = maps:remove(Carrier, Received)}};
handle_info({'EXIT', Link, _}, #dock{link = Link} = S) ->
    {stop, {shutdown, link}, S};
handle_info({'EXIT', Socket, _}, S) ->
    {noreply, closed(Socket, S)};
handle_info(Message, S) ->
    case trunkline_transport:event(Message) of
        {frame, _, _, Frame} = Event when byte_size(Frame) >= ?MUCH ->
            {noreply, event(Event, Message, S), {continue, collect}};
        Event ->
            {noreply, event(Event, Message, S)}
    end.

%% It may take long until the next frame comes, and this process keeps what it has read until it
%% collects its garbage.
-spec handle_continue(collect, #dock{}) -> {noreply, #dock{}}.
handle_continue(collect, S) ->
    true = garbage_collect(),
    {noreply, S}.

%% There may be messages in the mailbox of a connection that has been closed, and counted.
event({frame, _, Socket, Frame}, _, #dock{connections = Connections} = S) ->
    case Connections of
        #{Socket := {_, Token}} -> frame(trunkline_wire:parse_frame(Frame), Token, Socket, S);
        #{} -> S
    end;
event({passive, Transport, Socket}, _, #dock{connections = Connections} = S) ->
    %% (Or it is closed.)
    _ = is_map_key(Socket, Connections) andalso trunkline_transport:more(Transport, Socket),
    S;
event({closed, Socket}, _, S) ->
    closed(Socket, S);
event(unknown, Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    S.

frame({ok, {Lane, _} = Id, Size, Offset, Data}, Token, _, S) when ?IS_LANE(Lane, S) ->
    fragment(Token, Id, Size, Offset, Data, S);
frame({ok, Id, _, _, _}, _, _, S) ->
    ok = trunkline_process:unexpected(?MODULE, {fragment, Id}),
    S;
frame(heartbeat, _, _, S) ->
    S;
frame(error, _, Socket, S) ->
    close(Socket, S).

invited({ok, #{token := Token}}, #dock{invited = Invited} = S) ->
    Now = erlang:monotonic_time(millisecond),
    Others = maps:filter(fun(_, Until) -> Until > Now end, Invited),
    S#dock{invited = Others#{Token => Now + ?VALID}};
invited({error, _}, S) ->
    S.

close(Socket, #dock{connections = Connections} = S) ->
    #{Socket := {Transport, _}} = Connections,
    ok = trunkline_transport:close(Transport, Socket),
    closed(Socket, S).

closed(Socket, #dock{connections = Connections} = S) ->
    case maps:take(Socket, Connections) of
        {{_, Token}, Others} -> tell_count(Token, S#dock{connections = Others});
        error -> S
    end.

fragment(Carrier, {Lane, Number} = Id, Size, Offset, Data, S) ->
    #dock{inlets = Inlets, received = Received, reassembly = Reassembly, stats = Stats} = S,
    trunkline_stats:add(Stats, peer, large_arrived_bytes, byte_size(Data)),
    S1 = S#dock{received = Received#{Carrier => maps:get(Carrier, Received, 0) + 1}},
    case trunkline_reassembly:add(Id, Size, Offset, Data, Reassembly) of
        {complete, Parts, Reassembly1} ->
            ok = trunkline_inlet:arrived(element(Lane, Inlets), Number, Parts),
            S1#dock{reassembly = Reassembly1};
        {incomplete, Reassembly1} ->
            S1#dock{reassembly = Reassembly1}
    end.

%% Tells the final count of a carrier. A trunk that does not resume sessions does not ask again.
tell_count(Carrier, #dock{trunk = Trunk, received = Received} = S) ->
    trunkline_process:send_connected(Trunk, {cut, Carrier, maps:get(Carrier, Received, 0)}),
    case trunkline_peers:can(node(Trunk), v1) of
        true -> S;
        false -> S#dock{received = maps:remove(Carrier, Received)}
    end.

%% Keeps the users' data out of all reports.
-spec format_status(gen_server:format_status()) -> gen_server:format_status().
format_status(Status) ->
    trunkline_process:without_data(fun(#dock{connections = Connections}) ->
                                           {dock, maps:size(Connections)}
                                   end, Status).
