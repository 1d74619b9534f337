%% What is known of each peer: a table with one row for each, which all processes may read.
%%
%% The hot path does not use it (see trunkline_route). Callers look up which inlet to watch while
%% they wait for a reply, and info/0,1 reads the rest. Only a peer's link writes the peer's row. The
%% table belongs to the top supervisor, so that it survives when any other process is killed.
-module(trunkline_peers).
-moduledoc false.

-export([create/0, put/2, delete/1, lookup/1, all/0, watch/1, session/1, can/2,
         resumes/1, takes_turns/1, is_suspended/1, is_audience/1, has_spoken/1,
         states/0, of_link/1, monitor_connections/0, connection_of/1, connection/1]).

-export_type([peer/0, state/0, connection/0]).

-type state() :: down        % no connection
               | greeting    % connected; the peer has not said hello
               | opening     % the two links are agreeing
               | up          % messages go by lane
               | suspended   % the connection is lost; both sides keep everything, and reconnect
               | holding     % the peer's link has died; lanes keep what they have
               | closing     % one of the two nodes leaves; lanes deliver what they have
               | drained.    % nothing goes by lane until the nodes connect again
-type peer() ::
        #{state := state(),
          link := pid(),
          since := integer(),                    % system time, ms
          stats := trunkline_stats:stats(),
          inlets := [pid()],                     % of this session
          finishing := [pid()],                  % of earlier sessions
          stand_in := pid() | none,              % in place of inlets, while they may still come
          agreement := trunkline_handshake:agreement() | none,
          capabilities := [trunkline_handshake:capability()]}.     % of the last agreement

%% Each connection to a node has another value.
-type connection() :: integer() | reference().

-spec states() -> [state()].
states() -> [down, greeting, opening, up, suspended, holding, closing, drained].

-spec create() -> ok.
create() ->
    ?MODULE = ets:new(?MODULE, [named_table, public, {read_concurrency, true}]),
    ok.

-spec put(node(), peer()) -> ok.
put(Node, #{inlets := Inlets, agreement := Agreement, capabilities := Capabilities, state := State,
            stand_in := StandIn} = Peer) ->
    Session = case Agreement of
                  #{} when State =:= opening; State =:= up; State =:= suspended;
                           State =:= closing ->
                      list_to_tuple(Inlets);
                  _ -> {}
              end,
    Resumes = case Agreement of
                  #{resume_time := Time} when Time > 0 -> Inlets =/= [];
                  _ -> false
              end,
    Row = {Node, {Session, Capabilities, State, StandIn, Resumes}, Peer},
    in_table(fun() -> ets:insert(?MODULE, Row) end).

-spec delete(node()) -> ok.
delete(Node) ->
    in_table(fun() -> ets:delete(?MODULE, Node) end).

%% If the top supervisor was killed, say, the table is gone. Then no process reads it, either.
in_table(Write) ->
    try Write() of
        true -> ok
    catch
        error:badarg -> ok
    end.

-spec lookup(node()) -> peer() | none.
lookup(Node) -> element_of_row(3, Node, none).

-spec all() -> #{node() => peer()}.
all() ->
    case ets:whereis(?MODULE) of
        undefined -> #{};
        Table -> maps:from_list([{Node, Peer} || {Node, _, Peer} <- ets:tab2list(Table)])
    end.

%% The peer that this link is for.
-spec of_link(pid()) -> node() | undefined.
of_link(Link) ->
    case [Node || {Node, #{link := L}} <- maps:to_list(all()), L =:= Link] of
        [Node] -> Node;
        [] -> undefined
    end.

%% Whether Trunkline may send messages of its own to that node before it has received any from
%% there. A hidden node may be a program in another language, which expects only messages of its own
%% protocol. So Trunkline sends to a hidden node only after that node has shown that it runs
%% Trunkline.
-spec is_audience(node()) -> boolean().
is_audience(Node) ->
    not lists:member(Node, nodes(hidden)) orelse has_spoken(Node).

%% OTP numbers connections since release 25.1. On older releases each lookup returns another value.
-spec monitor_connections() -> ok.
monitor_connections() ->
    net_kernel:monitor_nodes(true, case are_numbered() of
                                       true -> #{node_type => all, connection_id => true};
                                       false -> [{node_type, all}]
                                   end).

%% The connection that a nodeup message is about, from the message's information.
-spec connection_of(map() | list()) -> connection().
connection_of(#{connection_id := Connection}) -> Connection;
connection_of(_) -> make_ref().

-spec connection(node()) -> connection() | none.
connection(Node) ->
    Connections = case are_numbered() of
                      true -> nodes(connected, #{connection_id => true});
                      false -> [{Other, []} || Other <- nodes(connected)]
                  end,
    case lists:keyfind(Node, 1, Connections) of
        {Node, Info} -> connection_of(Info);
        false -> none
    end.

are_numbered() -> erlang:function_exported(erlang, nodes, 2).

%% Whether that node runs Trunkline, or has run it.
-spec has_spoken(node()) -> boolean().
has_spoken(Node) ->
    case lookup(Node) of
        #{agreement := none, stats := Stats} -> trunkline_stats:get(Stats, peer, sessions) > 0;
        #{} -> true;
        none -> false
    end.

%% The process that the caller should monitor while a request of its own is in a lane to Node: an
%% inlet, or a stand-in as long as it is not clear whether there will be a session. It ends when the
%% session has ended, and all that had arrived is delivered. `none': there are no lanes.
-spec watch(node()) -> pid() | none.
watch(Node) ->
    case of_session(Node) of
        {{}, _, _, StandIn, _} -> StandIn;
        {_, _, opening, _, _} -> none;           % no request goes by lane before it can be sent
        {Inlets, _, _, _, _} -> element(erlang:phash2(self(), tuple_size(Inlets)) + 1, Inlets)
    end.

%% All inlets of the session. When all of them have ended, everything that has arrived in the
%% session is delivered. They are returned from the time when they are started, before the peer
%% knows them, until the peer says goodbye or they end.
-spec session(node()) -> tuple() | none.
session(Node) ->
    case of_session(Node) of
        {{}, _, _, _, _} -> none;
        {Inlets, _, _, _, _} -> Inlets
    end.

%% Whether the peer had this capability in the last agreement. A command that is handed to a lane
%% while there is no session goes by the next session, or by plain distribution if the peer does not
%% have the capability any more.
-spec can(node(), trunkline_handshake:capability()) -> boolean().
can(Node, Capability) ->
    {_, Capabilities, _, _, _} = of_session(Node),
    lists:member(Capability, Capabilities).

of_session(Node) -> element_of_row(2, Node, {{}, [], down, none, false}).

%% The default is for a node that is no peer, and if there is no table.
element_of_row(N, Node, Default) ->
    try ets:lookup_element(?MODULE, Node, N)
    catch error:badarg -> Default
    end.

%% Whether there is a session with that node that may outlive its connection. Then messages and
%% monitors that go by its lanes are not lost with the connection.
-spec resumes(node()) -> boolean().
resumes(Node) ->
    {_, _, _, _, Resumes} = of_session(Node),
    Resumes.

%% Whether messages may go to that peer by the distribution when their turn has come: it can say so,
%% and they are lost when all others are.
-spec takes_turns(node()) -> boolean().
takes_turns(Node) ->
    {_, Capabilities, _, _, Resumes} = of_session(Node),
    not Resumes andalso lists:member(v1, Capabilities).

%% Whether there is such a session without a connection at present.
-spec is_suspended(node()) -> boolean().
is_suspended(Node) ->
    {_, _, State, _, _} = of_session(Node),
    State =:= suspended.
