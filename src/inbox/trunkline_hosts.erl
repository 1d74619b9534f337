%% The other nodes whose inboxes this node knows (*hosts*), and the visit by which it knows them.
%% trunkline_guests is the other side of this, and explains visits.
%%
%% A visit begins with its first message, which also ends the previous visit: the inboxes of that
%% one may have ended, or may have registered with another process there. This node then tells the
%% host which visit it takes for the present one, and monitors the process there. Both wait until
%% the connection is not busy (due/1, monitored/3).
%%
%% This module is pure: it decides, and has no side effects.
-module(trunkline_hosts).
-moduledoc false.

-export([new/0, heard/3, knows/3, forgets/3, over/2, down/2, due/1, monitored/3, is_away/2]).

-export_type([hosts/0]).

-type visit() :: trunkline_guests:visit().
-type inbox() :: pid().

-record(host,
        {pid :: pid(),                                 % the process there
         visit :: visit(),
         monitor = none :: none | reference(),
         inboxes = #{} :: #{inbox() => []}}).
-record(hosts,
        {nodes = #{} :: #{node() => #host{}},
         due = #{} :: #{node() => []}}).
-opaque hosts() :: #hosts{}.

-spec new() -> hosts().
new() -> #hosts{}.

%% A message of this visit has come from that process. Returns the inboxes to forget.
-spec heard(pid(), visit(), hosts()) -> {[inbox()], hosts()}.
heard(Pid, Visit, #hosts{nodes = Nodes, due = Due} = H) ->
    Node = node(Pid),
    case Nodes of
        #{Node := #host{visit = Visit}} ->
            {[], H};
        #{} ->
            {Forgotten, _} = is_away(Node, H),
            {Forgotten, #hosts{nodes = Nodes#{Node => #host{pid = Pid, visit = Visit}},
                               due = Due#{Node => []}}}
    end.

%% This node now has a row for that inbox of a host.
-spec knows(node(), inbox(), hosts()) -> hosts().
knows(Node, Inbox, #hosts{nodes = Nodes} = H) ->
    #{Node := #host{inboxes = Inboxes} = Host} = Nodes,
    H#hosts{nodes = Nodes#{Node := Host#host{inboxes = Inboxes#{Inbox => []}}}}.

-spec forgets(node(), inbox(), hosts()) -> hosts().
forgets(Node, Inbox, #hosts{nodes = Nodes} = H) ->
    case Nodes of
        #{Node := #host{inboxes = Inboxes} = Host} ->
            H#hosts{nodes = Nodes#{Node := Host#host{inboxes = maps:remove(Inbox, Inboxes)}}};
        #{} ->
            H
    end.

%% The host says that this visit is over. Returns the inboxes to forget.
-spec over(visit(), hosts()) -> {[inbox()], hosts()}.
over(Visit, H) -> first(fun(#host{visit = V}) -> V =:= Visit end, H).

%% A monitor reports that a visit is over. Returns the inboxes to forget.
-spec down(Monitor :: reference(), hosts()) -> {[inbox()], hosts()}.
down(Monitor, H) -> first(fun(#host{monitor = M}) -> M =:= Monitor end, H).

first(Is, #hosts{nodes = Nodes} = H) ->
    case [Node || {Node, Host} <- maps:to_list(Nodes), Is(Host)] of
        [Node] -> is_away(Node, H);
        [] -> {[], H}
    end.

%% Which processes are to be told of which visit, and to be monitored.
-spec due(hosts()) -> [{pid(), visit()}].
due(#hosts{nodes = Nodes, due = Due}) ->
    [{Pid, Visit} || Node <- maps:keys(Due),
                     #host{pid = Pid, visit = Visit} <- [maps:get(Node, Nodes)]].

-spec monitored(pid(), Monitor :: reference(), hosts()) -> hosts().
monitored(Pid, Monitor, #hosts{nodes = Nodes, due = Due}) ->
    Node = node(Pid),
    #{Node := Host} = Nodes,
    #hosts{nodes = Nodes#{Node := Host#host{monitor = Monitor}}, due = maps:remove(Node, Due)}.

%% The visit to that node, if there is one, is over. Returns the inboxes to forget.
-spec is_away(node(), hosts()) -> {[inbox()], hosts()}.
is_away(Node, #hosts{nodes = Nodes, due = Due} = H) ->
    case maps:take(Node, Nodes) of
        {#host{inboxes = Inboxes}, Nodes1} ->
            {maps:keys(Inboxes), #hosts{nodes = Nodes1, due = maps:remove(Node, Due)}};
        error ->
            {[], H}
    end.
