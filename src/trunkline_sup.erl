%% The top supervisor.
%%
%%     trunkline_sup (rest_for_one, owner of the table of peers)
%%      ├── trunkline_events_sup (one_for_one, temporary, if there is telemetry)
%%      │    └── trunkline_events
%%      ├── trunkline_link_sup (one_for_one)
%%      │    └── trunkline_link, one for each peer
%%      │         ├── trunkline_lane, linked, one or more, and its writers
%%      │         ├── trunkline_trunk, linked, and its writers
%%      │         ├── trunkline_inlet, linked, one for each lane of the peer
%%      │         ├── trunkline_dock, linked
%%      │         └── trunkline_speaker, linked
%%      ├── trunkline_links
%%      ├── trunkline_listener
%%      ├── trunkline_inboxes
%%      ├── trunkline_monitors
%%      ├── trunkline_adopter
%%      └── trunkline_web_server, while the page is served
%%
%% Users' handlers run in trunkline_events, and may kill it with each event. Therefore it has a
%% supervisor of its own. That one is temporary, so that nothing else is restarted when it ends, and
%% the first child, so that it is not restarted when another one ends.
-module(trunkline_sup).
-moduledoc false.
-behaviour(supervisor).

-export([start_link/1, start_events/0]).
-export([init/1]).

-spec start_link(trunkline_options:options()) -> supervisor:startlink_ret().
start_link(Options) ->
    supervisor:start_link({local, ?MODULE}, ?MODULE, Options).

-spec start_events() -> supervisor:startlink_ret().
start_events() ->
    case trunkline_events:are_wanted() of
        true -> supervisor:start_link({local, trunkline_events_sup}, ?MODULE, events);
        false -> ignore
    end.

-spec init(events | trunkline_options:options()) ->
          {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init(events) ->
    %% Events are dropped during a restart, so this intensity is not reached. The event `peer down'
    %% comes when Trunkline stops: handlers have a moment for it, and no more.
    {ok, {#{strategy => one_for_one, intensity => 1000, period => 1},
          [#{id => trunkline_events, shutdown => 100,
             start => {trunkline_events, start_link, []}}]}};
init(Options) ->
    ok = trunkline_peers:create(),
    {ok, {#{strategy => rest_for_one, intensity => 10, period => 10},
          [#{id => trunkline_events_sup, type => supervisor, restart => temporary,
             shutdown => infinity,
             start => {?MODULE, start_events, []}},
           #{id => trunkline_link_sup, type => supervisor, shutdown => infinity,
             start => {trunkline_link_sup, start_link, []}},
           #{id => trunkline_links,
             start => {trunkline_links, start_link, [Options]}},
           #{id => trunkline_listener,
             start => {trunkline_listener, start_link, [Options]}},
           #{id => trunkline_inboxes,
             start => {trunkline_inboxes, start_link, []}},
           #{id => trunkline_monitors,
             start => {trunkline_monitors, start_link, []}},
           #{id => trunkline_adopter,
             start => {trunkline_adopter, start_link, [Options]}}]}}.
