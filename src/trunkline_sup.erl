%% The top supervisor.
%%
%%     trunkline_sup (rest_for_one, owner of the table of peers)
%%      ├── trunkline_events
%%      ├── trunkline_link_sup (one_for_one)
%%      │    └── trunkline_link, one for each peer
%%      │         ├── trunkline_lane, linked, one or more, and its writers
%%      │         ├── trunkline_trunk, linked, and its carriers
%%      │         ├── trunkline_inlet, linked, one for each lane of the peer
%%      │         └── trunkline_dock, linked, and its receivers
%%      ├── trunkline_links
%%      ├── trunkline_listener
%%      ├── trunkline_inboxes
%%      ├── trunkline_monitors
%%      └── trunkline_adopter
-module(trunkline_sup).
-moduledoc false.
-behaviour(supervisor).

-export([start_link/1]).
-export([init/1]).

-spec start_link(trunkline_options:options()) -> supervisor:startlink_ret().
start_link(Options) ->
    supervisor:start_link({local, ?MODULE}, ?MODULE, Options).

-spec init(trunkline_options:options()) ->
          {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init(Options) ->
    ok = trunkline_peers:create(),
    {ok, {#{strategy => rest_for_one, intensity => 10, period => 10},
          [#{id => trunkline_events,                   % only if there is telemetry
             start => {trunkline_events, start_link, []}},
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
