%% Keeps what a test wants to see of what is logged. These functions run at the node.
-module(kept_log).

-export([keep/3, kept/0, log/2]).

%% From that level on, with that configuration of the handler: what Keep makes of an event,
%% {true, Kept}, or nothing, false.
keep(Level, Config, Keep) ->
    Caller = self(),
    Owner = spawn(fun() ->
                          ?MODULE = ets:new(?MODULE, [named_table, public, ordered_set]),
                          Caller ! {self(), ready},
                          receive stop -> ok end
                  end),
    receive {Owner, ready} -> ok end,
    ok = logger:set_primary_config(level, Level),
    logger:add_handler(?MODULE, ?MODULE, Config#{config => Keep}).

%% In order.
kept() -> [Kept || {_, Kept} <- ets:tab2list(?MODULE)].

%% The handler.
log(Event, #{config := Keep}) ->
    case Keep(Event) of
        {true, Kept} -> ets:insert(?MODULE, {erlang:unique_integer([monotonic]), Kept});
        false -> ok
    end.
