%% The receiving end of a lane: delivers its messages in order, grants credit,
%% and is the request agent for the calls that come with it.
%%
%% An inlet lives for one session of a link. At its end finish/1 lets it deliver
%% what has arrived. It also is what local callers watch while they wait for a
%% reply from that node: with the session the inlet ends, and with it the wait.
-module(trunkline_inlet).

-include("trunkline_route.hrl").

-export([start_link/4, finish/1]).
-export([init/4, loop/1]).

%% ms: what is delivered is acknowledged so much later when nothing else does
%% it, and a quiet inlet gives its memory back.
-define(ACK_DELAY, 20).
-define(QUIET, 1000).

-record(inlet,
        {ix :: pos_integer(),
         lane :: pid(),
         stats :: trunkline_stats:stats(),
         window :: trunkline_window:receiver(),
         agent :: trunkline_agent:agent(),
         ack_timer = false :: boolean(),
         quiet_timer = false :: boolean(),
         active = false :: boolean()}).         % since the last quiet timer

%% The inlet for the peer's lane number Ix, whose pid is Lane. Replies go back by
%% Route.
-spec start_link(pos_integer(), Lane :: pid(), WindowBytes :: pos_integer(),
                 trunkline_route:route()) -> pid().
start_link(Ix, Lane, WindowBytes, Route) ->
    proc_lib:spawn_link(?MODULE, init, [Ix, Lane, WindowBytes, Route]).

-spec init(pos_integer(), pid(), pos_integer(), trunkline_route:route()) -> no_return() | ok.
init(Ix, Lane, WindowBytes, #route{stats = Stats} = Route) ->
    loop(#inlet{ix = Ix, lane = Lane, stats = Stats,
                window = trunkline_window:receiver(WindowBytes),
                agent = trunkline_agent:new(Route)}).

%% To deliver what has arrived and then to end with reason normal.
-spec finish(pid()) -> ok.
finish(Inlet) ->
    Inlet ! finish,
    ok.

-spec loop(#inlet{}) -> no_return() | ok.
loop(S) ->
    receive
        {batch, Ack, Charge, Entries} ->
            Agent = deliver(Entries, S#inlet.agent),
            loop(delivered(Ack, Charge, S#inlet{agent = Agent}));
        {answered, Requests} when is_list(Requests) ->
            loop(S#inlet{agent = trunkline_agent:answered(Requests, S#inlet.agent)});
        {'DOWN', _, process, Server, Reason} ->
            loop(S#inlet{agent = trunkline_agent:down(Server, Reason, S#inlet.agent)});
        {timeout, _, Timer} when Timer =:= ack; Timer =:= quiet ->
            loop(timeout(Timer, S));
        finish ->
            ok;
        _ ->
            %% Nobody else has a reason to send here; whatever it is, it must
            %% not stay in the mailbox.
            loop(S)
    end.

deliver([[To | Message] | Entries], Agent) when is_pid(To); is_reference(To) ->
    To ! Message,
    deliver(Entries, Agent);
deliver([[Name | Message] | Entries], Agent) when is_atom(Name) ->
    case whereis(Name) of
        Pid when is_pid(Pid) -> Pid ! Message;
        _ -> ok                              % as plain distribution does
    end,
    deliver(Entries, Agent);
deliver([[Command | Message] | Entries], Agent) ->
    deliver(Entries, trunkline_agent:step(Command, Message, Agent));
deliver([], Agent) ->
    Agent.

delivered(Ack, Charge, #inlet{ix = Ix, stats = Stats} = S) ->
    trunkline_stats:add(Stats, {lane, Ix}, received_batches, 1),
    trunkline_stats:add(Stats, {lane, Ix}, received_messages, trunkline_gate:messages(Charge)),
    S1 = timer(quiet, S#inlet{active = true}),
    case trunkline_window:delivered(Ack, Charge, S#inlet.window) of
        {ack, Delivered, Window} -> ack(Ack, Delivered, S1#inlet{window = Window});
        {later, Window} -> timer(ack, S1#inlet{window = Window})
    end.

ack(Ack, Charge, #inlet{lane = Lane} = S) ->
    _ = erlang:send(Lane, {ack, Ack, self(), Charge}, [noconnect]),
    S.

timer(ack, #inlet{ack_timer = false} = S) ->
    _ = erlang:start_timer(?ACK_DELAY, self(), ack),
    S#inlet{ack_timer = true};
timer(quiet, #inlet{quiet_timer = false} = S) ->
    _ = erlang:start_timer(?QUIET, self(), quiet),
    S#inlet{quiet_timer = true};
timer(_, S) ->
    S.

timeout(ack, S) ->
    case trunkline_window:flush(S#inlet.window) of
        {ack, Charge, Window} ->
            ack(later, Charge, S#inlet{window = Window, ack_timer = false});
        none ->
            S#inlet{ack_timer = false}
    end;
timeout(quiet, #inlet{active = true} = S) ->
    timer(quiet, S#inlet{active = false, quiet_timer = false});
timeout(quiet, S) ->
    Agent = trunkline_agent:sweep(S#inlet.agent),
    proc_lib:hibernate(?MODULE, loop, [S#inlet{quiet_timer = false, agent = Agent}]).
