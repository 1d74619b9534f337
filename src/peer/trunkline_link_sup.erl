%% The supervisor of the links, which has one child for each peer.
-module(trunkline_link_sup).
-moduledoc false.
-behaviour(supervisor).

-export([start_link/0, ensure/2, forget/1, leave/0]).
-export([init/1, start_link/2]).

%% ms until a link that could not be started is tried again.
-define(AGAIN, 200).

-spec start_link() -> supervisor:startlink_ret().
start_link() ->
    supervisor:start_link({local, ?MODULE}, ?MODULE, []).

%% The link for that node, started if there is none. `none': it cannot be started now, and
%% trunkline_links will try again.
-spec ensure(node(), trunkline_options:options()) -> pid() | none.
ensure(Node, Options) ->
    Child = #{id => Node,
              start => {?MODULE, start_link, [Options, Node]},
              restart => transient,
              shutdown => 5000},
    case supervisor:start_child(?MODULE, Child) of
        {ok, undefined} -> none;
        {ok, Link} -> Link;
        {error, {already_started, Link}} -> Link;
        {error, already_present} ->
            ok = supervisor:delete_child(?MODULE, Node),
            ensure(Node, Options)
    end.

%% Hides failures from the supervisor. It would try again and again without a pause, and then give
%% up, together with the links to all other nodes.
-spec start_link(trunkline_options:options(), node()) -> {ok, pid()} | ignore.
start_link(Options, Node) ->
    case trunkline_process:start(fun() -> trunkline_link:start_link(Options, Node) end) of
        {ok, {ok, Link}} ->
            {ok, Link};
        _ ->
            _ = erlang:send_after(?AGAIN, trunkline_links, {again, Node}),
            ignore
    end.

%% Ends the link for that node.
-spec forget(node()) -> ok.
forget(Node) ->
    _ = supervisor:terminate_child(?MODULE, Node),
    _ = supervisor:delete_child(?MODULE, Node),
    ok.

%% Ends all links in good order, at the same time, including those that are being restarted.
-spec leave() -> ok.
leave() ->
    case [Child || {_, Child, _, _} <- supervisor:which_children(?MODULE), Child =/= undefined] of
        [] ->
            ok;
        Children ->
            ok = trunkline_link:leave([Link || Link <- Children, is_pid(Link)]),
            leave()
    end.

-spec init([]) -> {ok, {supervisor:sup_flags(), []}}.
init([]) ->
    %% A link that is killed again and again should not take the others with it.
    {ok, {#{strategy => one_for_one, intensity => 100, period => 10}, []}}.
