%% What nodes of release 0.5.0 tell each other, and this node, of inboxes. When no such node is left
%% this can go.
%%
%%     here, trunkline_inboxes                              there, release 0.5.0
%%       | ── {introduce, Node} ──────────────────────────────> |  when both have spoken
%%       | <─────────────────────────── {introduced, Inboxes} ─ |  all that it has, and new ones
%%       |    monitors each inbox                               |
%%       | <──────────────────────────── {introduce, Node} ──── |  the same the other way
%%       | ── {introduced, Inboxes} ──────────────────────────> |
%%       | ── {full, Keeper, Number} ─────────────────────────> |
%%
%% A node of 0.5.0 expects to be told of all inboxes, and tells of all of its own. There are no
%% visits (trunkline_guests): each node monitors the inboxes that were introduced to it.
-module(trunkline_introductions).
-moduledoc false.

-export([new/0, has_spoken/2, asked/2, tell_all/2, tell/2]).
-export([heard_of/2, is_introduced/2, forget/2, down/3]).

-export_type([introductions/0]).

%% ms until it is tried again to send.
-define(LATER, 100).

-type keeper() :: pid().

-record(introductions,
        {nodes = #{} :: #{node() => []},                   % that want to be told
         keepers = #{} :: #{keeper() => []}}).             % of other nodes, introduced here
-opaque introductions() :: #introductions{}.

-spec new() -> introductions().
new() -> #introductions{}.

%% --- this node's inboxes --------------------------------------------------------------

%% That node runs Trunkline, and its capabilities are known now.
-spec has_spoken(node(), introductions()) -> introductions().
has_spoken(Node, #introductions{nodes = Nodes} = I) ->
    case trunkline_peers:can(Node, inboxes) of
        true ->
            I#introductions{nodes = maps:remove(Node, Nodes)};
        false ->
            ok = tell(Node, {introduce, node()}),
            asked(Node, I)
    end.

%% That node wants to know all inboxes.
-spec asked(node(), introductions()) -> introductions().
asked(Node, #introductions{nodes = Nodes} = I) ->
    case [Inbox || {Inbox, _} <- trunkline_own_inboxes:all()] of
        [] -> ok;
        Inboxes -> tell(Node, {introduced, Inboxes})
    end,
    I#introductions{nodes = Nodes#{Node => []}}.

%% A new inbox, or one that is full, or no longer full.
-spec tell_all(term(), introductions()) -> introductions().
tell_all(What, #introductions{nodes = Nodes} = I) ->
    Connected = maps:with(nodes(connected), Nodes),
    lists:foreach(fun(Node) -> tell(Node, What) end, maps:keys(Connected)),
    I#introductions{nodes = Connected}.

%% Sends at once, so that the node cannot learn of an inbox in another way before this. If the
%% connection is busy, and no process can be started that waits, this is tried again later: the
%% calling process gets {timeout, _, {tell, Node, What}}. (If no process there has the name, the
%% message is lost, as it should be.)
-spec tell(node(), term()) -> ok.
tell(Node, What) ->
    case trunkline_process:send_apart({trunkline_inboxes, Node}, What) of
        ok -> ok;
        {error, system_limit} -> _ = erlang:start_timer(?LATER, self(), {tell, Node, What}), ok
    end.

%% --- inboxes of other nodes -----------------------------------------------------------

%% An inbox is introduced to this node.
-spec heard_of(keeper(), introductions()) -> introductions().
heard_of(Keeper, #introductions{keepers = Keepers} = I) when is_map_key(Keeper, Keepers) ->
    I;
heard_of(Keeper, #introductions{keepers = Keepers} = I) ->
    _ = monitor(process, Keeper),
    I#introductions{keepers = Keepers#{Keeper => []}}.

-spec is_introduced(keeper(), introductions()) -> boolean().
is_introduced(Keeper, #introductions{keepers = Keepers}) -> is_map_key(Keeper, Keepers).

%% That inbox, introduced or not, has ended.
-spec forget(keeper(), introductions()) -> introductions().
forget(Keeper, #introductions{keepers = Keepers} = I) ->
    I#introductions{keepers = maps:remove(Keeper, Keepers)}.

%% A process of another node has ended, or the connection is lost. There may be a new connection
%% already, on which that node has introduced its inboxes. So it is asked to introduce them again.
-spec down(pid(), Reason :: term(), introductions()) -> introductions().
down(Pid, Reason, I) ->
    _ = is_introduced(Pid, I) andalso Reason =:= noconnection
        andalso tell(node(Pid), {introduce, node()}),
    forget(Pid, I).
