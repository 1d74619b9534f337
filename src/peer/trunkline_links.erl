%% Sees nodes come and go, and keeps one link for each.
%%
%% Other nodes address this process by its name: their links send the first messages of the
%% handshake here, and it passes them on to the link concerned. So each link sees nodeup, handshake
%% and nodedown in the order in which the runtime system reported them. (They come from several
%% processes, therefore the mailboxes of this process and of the links must be on the heap: see
%% trunkline_lane.)
%%
%% If this process is killed its mailbox is lost. Its successor tells each link whether the node is
%% connected, and by which connection. A link that knew that connection says hello again, and
%% repeats what its peer may have missed; the peer's link answers. For the other links it is news.
%%
%% A link whose node has been gone for a long time says so, by a message, and is ended from here: a
%% link that ended by itself could miss what is passed to it at that moment.
-module(trunkline_links).
-moduledoc false.
-behaviour(gen_server).

-export([start_link/1, links/1, close/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-type state() :: trunkline_options:options() | {closed, trunkline_options:options()}.

-spec start_link(trunkline_options:options()) -> gen_server:start_ret().
start_link(Options) ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, Options,
                          [{spawn_opt, [{message_queue_data, on_heap}]}]).

%% The links to those of these nodes, or of all nodes, that are connected or have a suspended
%% session. By the time of the answer each link has been told of its connection. `stopped':
%% Trunkline does not run.
-spec links([node()] | all) -> [{node(), pid()}] | stopped.
links(Which) ->
    try gen_server:call(?MODULE, {links, Which}, infinity)
    catch exit:_ -> stopped
    end.

%% From here on no new link starts, and peers that say hello are told so. Existing links still get
%% what their peers say: they may have to open a session before they can leave it.
-spec close() -> ok.
close() -> gen_server:call(?MODULE, close, infinity).

-spec init(trunkline_options:options()) -> {ok, state()}.
init(Options) ->
    ok = trunkline_peers:monitor_connections(),
    %% This process, or all links, may have been restarted. A published route needs a link, whether
    %% its node is up or down. The old mailbox is lost: links are told whether their nodes are
    %% connected, and ask each other for the rest.
    Connected = nodes(connected),
    lists:foreach(fun trunkline_socket:tune_distribution/1, Connected),
    Known = maps:keys(trunkline_peers:all()) ++ [Node || {Node, _} <- trunkline_route:all()],
    lists:foreach(fun(Node) -> pass(Node, present(Node), Options) end,
                  lists:usort(Known ++ Connected)),
    {ok, Options}.

-spec handle_call(term(), gen_server:from(), state()) ->
          {reply, [{node(), pid()}] | stopped | ok | {error, badarg}, state()}.
handle_call(close, _, Options) when is_map(Options) ->
    {reply, ok, {closed, Options}};
handle_call({links, _}, _, {closed, _} = S) ->
    {reply, stopped, S};
handle_call({links, Which}, _, Options) ->
    Suspended = [Node || {Node, #{state := suspended}} <- maps:to_list(trunkline_peers:all())],
    {reply, [{Node, Link} || Node <- lists:usort(nodes(connected) ++ Suspended),
                             Which =:= all orelse lists:member(Node, Which),
                             Link <- [trunkline_link_sup:ensure(Node, Options)], is_pid(Link)],
     Options};
handle_call(_, _, Options) ->
    {reply, {error, badarg}, Options}.

-spec handle_cast(term(), state()) -> {noreply, state()}.
handle_cast({forget, Node}, Options) ->
    trunkline_process:is_connected(Node) orelse trunkline_link_sup:forget(Node),
    {noreply, Options};
handle_cast(Unexpected, Options) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    {noreply, Options}.

-spec handle_info(term(), state()) -> {noreply, state()}.
handle_info({nodeup, Node, Info}, Options) ->
    %% (When this node gets its name, it is told of itself.)
    Node =:= node() orelse came(Node, Info, Options),
    {noreply, Options};
handle_info({nodedown, Node, _}, Options) ->
    %% (And when it loses its name.)
    node() =:= nonode@nohost andalso trunkline_peers:lookup(Node) =:= none
        orelse pass(Node, nodedown, Options),
    {noreply, Options};
handle_info({trunkline, Node, Event}, Options) ->
    is_from(Node, Event) andalso pass(Node, Event, Options),
    {noreply, Options};
handle_info({again, _}, {closed, _} = S) ->
    {noreply, S};
handle_info({again, Node}, Options) ->
    again(Node, Options),
    {noreply, Options};
handle_info(Unexpected, Options) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    {noreply, Options}.

came(Node, Info, Options) ->
    ok = trunkline_socket:tune_distribution(Node),
    pass(Node, {nodeup, trunkline_peers:connection_of(Info)}, Options).

%% The event that says whether the node is connected.
present(Node) ->
    case trunkline_peers:connection(Node) of
        none -> nodedown;
        Connection -> {nodeup, Connection}
    end.

%% A link that starts later finds out by itself what it has missed. If there will be none, because
%% Trunkline stops here, the peer should not wait until it has stopped.
pass(Node, Event, {closed, Options}) ->
    case {trunkline_peers:lookup(Node), Event} of
        {#{link := Link}, _} -> trunkline_link:notify(Link, Event);
        {none, {hello, _, _, _, true}} -> decline(Node, Options);
        _ -> ok
    end;
pass(Node, Event, Options) ->
    case trunkline_link_sup:ensure(Node, Options) of
        none -> ok;
        Link -> trunkline_link:notify(Link, Event)
    end.

decline(Node, Options) ->
    No = trunkline_handshake:no_hello(trunkline_handshake:hello(Options)),
    Hello = {hello, self(), make_ref(), No, false},
    trunkline_process:send_apart({?MODULE, Node}, {trunkline, node(), Hello}).

%% The link for that node could not be started: tries again, if there is still a reason to.
again(Node, Options) ->
    Event = present(Node),
    case Event =/= nodedown orelse trunkline_peers:lookup(Node) =/= none of
        true -> pass(Node, Event, Options);
        false -> ok
    end.

%% Whether a link of that node may have sent this.
is_from(Node, {hello, Link, Session, Hello, Answer}) ->
    is_link(Node, Link) andalso is_reference(Session) andalso is_map(Hello)
        andalso is_boolean(Answer);
is_from(Node, {open, Link, Session, Ref, Lanes}) when length(Lanes) > 0 ->   % a proper list
    is_link(Node, Link) andalso is_reference(Session) andalso is_reference(Ref)
        andalso lists:all(fun(Lane) -> is_link(Node, Lane) end, Lanes);
is_from(_, _) ->
    false.

is_link(Node, Pid) ->
    is_pid(Pid) andalso node(Pid) =:= Node andalso Node =/= node().
