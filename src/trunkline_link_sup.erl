%% The supervisor of the links, which has one child for each peer.
-module(trunkline_link_sup).
-behaviour(supervisor).

-export([start_link/0, ensure/2, forget/1, leave/0]).
-export([init/1]).

-spec start_link() -> supervisor:startlink_ret().
start_link() ->
    supervisor:start_link({local, ?MODULE}, ?MODULE, []).

%% The link for that node, started if there is none.
-spec ensure(node(), trunkline_options:options()) -> pid().
ensure(Node, Options) ->
    Child = #{id => Node,
              start => {trunkline_link, start_link, [Options, Node]},
              restart => transient,
              shutdown => 5000},
    case supervisor:start_child(?MODULE, Child) of
        {ok, Link} -> Link;
        {error, {already_started, Link}} -> Link;
        {error, already_present} ->
            ok = supervisor:delete_child(?MODULE, Node),
            ensure(Node, Options)
    end.

%% Ends the link for that node.
-spec forget(node()) -> ok.
forget(Node) ->
    _ = supervisor:terminate_child(?MODULE, Node),
    _ = supervisor:delete_child(?MODULE, Node),
    ok.

%% Ends all links in good order, at the same time.
-spec leave() -> ok.
leave() ->
    trunkline_link:leave([Link || {_, Link, _, _} <- supervisor:which_children(?MODULE), is_pid(Link)]).

-spec init([]) -> {ok, {supervisor:sup_flags(), []}}.
init([]) ->
    %% A link that is killed again and again should not take the others with it.
    {ok, {#{strategy => one_for_one, intensity => 100, period => 10}, []}}.
