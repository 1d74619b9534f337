%% Whether a call should ask for a plain reply (trunkline_plain_reply): the caller's side.
%%
%% It should if most replies of the server are long. Callers weigh some, and what they find is in a
%% shared word of the server (trunkline_bypass). A caller that asks, and gets a plain reply, cannot
%% tell the agent: to do anything with a long reply may take a garbage collection that copies it,
%% even to call a function. So it tells when it next uses a lane to that node.
-module(trunkline_long_reply).
-moduledoc false.

-include("../gate/trunkline_route.hrl").
-include("trunkline_long_reply.hrl").

-export([command/5, weigh/4, came_by_lane/3, by_hand/2, answered/1]).

%% In the process dictionary: the last request for a plain reply.
-define(LAST(Node), {?MODULE, Node}).

%% One of so many replies that come by lane is weighed, and one of so many that are plain.
-define(SAMPLE, 8).
-define(SAMPLE_PLAIN, 128).
%% A request that was asked in vain counts as so many short replies: those that follow do not ask.
-define(NOT_GRANTED, 4).
%% A very long reply, which takes so many words, counts as so many long ones: by lane it needs twice
%% the CPU time.
-define(VERY_LONG, 65_536).
-define(COUNTS_AS, 8).

%% The request of the calling process, which waits for the reply, and watches that inlet. And how
%% many replies this one stands for, if it should be weighed. (To do anything with a long reply,
%% even to call a function, may take a garbage collection that copies it. So few are weighed.)
-spec command(node(), trunkline_command:server(), trunkline_command:caller(),
              trunkline_command:label(), Inlet :: pid()) ->
          {trunkline_command:command(), plain | by_lane, Weighed :: non_neg_integer()}.
command(Node, Server, Caller, Label, Inlet) ->
    Sample = erlang:phash2(Caller, ?SAMPLE_PLAIN),
    case may_ask(Node, Server, Label) of
        true ->
            _ = put(?LAST(Node), {Server, Caller}),
            {trunkline_command:call_plain(Server, Caller, Label, Inlet), plain,
             stands_for(Sample, ?SAMPLE_PLAIN)};
        false ->
            {trunkline_command:call(Server, Caller, Label), by_lane, stands_for(Sample, ?SAMPLE)}
    end.

stands_for(Sample, N) when Sample rem N =:= 0 -> N;
stands_for(_, _) -> 0.

%% (What arrives in an off-heap mailbox may change places with what an inlet has delivered: see
%% trunkline_lane.)
may_ask(Node, Server, '$gen_call') ->
    case trunkline_route:lookup(Node) of
        #route{bypass = Bypass, stats = Stats} ->
            trunkline_bypass:are_long(Server, Bypass)
                andalso trunkline_process:is_on_heap(self())
                andalso trunkline_in_turn:is_near(Stats)
                andalso trunkline_peers:takes_turns(Node);
        none ->
            false
    end;
may_ask(_, _, _) ->
    false.

%% The reply stands for so many of that server.
-spec weigh(node(), trunkline_command:server(), Reply :: term(), pos_integer()) -> ok.
weigh(Node, Server, Reply, N) ->
    case is_long(Reply) of
        true -> weighed(Node, Server, true, counts_as(Reply) * N);
        false -> are_short(Node, Server, N)
    end.

are_short(Node, Server, N) -> weighed(Node, Server, false, N).

weighed(Node, Server, IsLong, N) ->
    case trunkline_route:lookup(Node) of
        #route{bypass = Bypass} -> trunkline_bypass:weighed(Server, IsLong, N, Bypass);
        none -> ok
    end.

counts_as(Reply) ->
    case trunkline_shape:takes(?VERY_LONG, Reply) of
        true -> ?COUNTS_AS;
        false -> 1
    end.

%% (Shorter binaries gain by batches, and longer ones as large messages.)
is_long(Binary) when ?IS_LONG_BINARY(Binary), byte_size(Binary) < 524_288 -> true;
is_long(Reply) -> trunkline_shape:weight(Reply) =:= heavy.

%% The calling process has asked for a plain reply, and has got one by lane.
-spec came_by_lane(node(), trunkline_command:server(), Reply :: term()) -> ok.
came_by_lane(Node, Server, Reply) ->
    _ = erase(?LAST(Node)),
    ok = weigh(Node, Server, Reply, 1),
    are_short(Node, Server, ?NOT_GRANTED).

%% The server does not reply in a way that could be plain.
-spec by_hand(node(), trunkline_command:server()) -> ok.
by_hand(Node, Server) -> are_short(Node, Server, ?SAMPLE_PLAIN).

%% The calling process may wait for something else from now on. So it tells the agent that it has
%% its last plain reply, which it could not tell when it got that.
-spec answered(node()) -> ok.
answered(Node) ->
    case get(?LAST(Node)) of
        {Server, Caller} ->
            _ = erase(?LAST(Node)),
            %% (A server that has replied by hand, to the pid, has left the monitor.)
            _ = demonitor(Caller, [info]) andalso by_hand(Node, Server),
            trunkline_sender:cancel(Node, Server, Caller);
        undefined ->
            ok
    end.
