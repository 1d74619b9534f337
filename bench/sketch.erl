%% The ceiling of the lanes' principle: batches, and nothing else.
%%
%%     senders ── [To | Message] ──> one of two processes ══ list ══> a process that delivers
%%
%% Each of the two sends what it finds in its mailbox, at most 256 messages, as one list. There is
%% no bound and no acknowledgement, and no message is looked at. What Trunkline needs beyond that
%% is the price of its promises.
-module(sketch).

-export([start/1, send/2]).
-export([start_lane/1, outlet/0]).

-dialyzer({no_improper_lists, send/2}).

-define(LANES, 2).
-define(MOST, 256).
-define(KEY(Node), {?MODULE, Node}).

%% They end when Node does.
-spec start(node()) -> ok.
start(Node) ->
    Lanes = [spawn(?MODULE, start_lane, [Node]) || _ <- lists:seq(1, ?LANES)],
    persistent_term:put(?KEY(Node), list_to_tuple(Lanes)).

-spec send(pid(), term()) -> ok.
send(To, Message) ->
    Lanes = persistent_term:get(?KEY(node(To))),
    element(erlang:phash2(self(), ?LANES) + 1, Lanes) ! [To | Message],
    ok.

-spec start_lane(node()) -> no_return().
start_lane(Node) -> lane(spawn_link(Node, ?MODULE, outlet, [])).

lane(Outlet) ->
    receive Entry -> Outlet ! collect(?MOST - 1, [Entry]) end,
    lane(Outlet).

collect(0, Entries) ->
    lists:reverse(Entries);
collect(More, Entries) ->
    receive Entry -> collect(More - 1, [Entry | Entries])
    after 0 -> lists:reverse(Entries)
    end.

-spec outlet() -> no_return().
outlet() ->
    receive Entries -> lists:foreach(fun([To | Message]) -> To ! Message end, Entries) end,
    outlet().
