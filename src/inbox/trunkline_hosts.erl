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

-export([new/0, heard/3, over/2, down/2, due/1, monitored/3, is_away/2]).

-export_type([hosts/0]).

-type visit() :: trunkline_guests:visit().

-record(host,
        {pid :: pid(),                                 % the process there
         visit :: visit(),
         monitor = none :: none | reference()}).
-opaque hosts() :: #{node() => #host{}}.

-spec new() -> hosts().
new() -> #{}.

%% A message of this visit has come from that process. If it is not the present visit (`same'), what
%% is known of that node's inboxes is to be forgotten.
-spec heard(pid(), visit(), hosts()) -> same | hosts().
heard(Pid, Visit, H) ->
    Node = node(Pid),
    case H of
        #{Node := #host{visit = Visit}} -> same;
        #{} -> H#{Node => #host{pid = Pid, visit = Visit}}
    end.

%% A host says that this visit is over. Returns the node, if it is the present one.
-spec over(visit(), hosts()) -> [node()].
over(Visit, H) -> [Node || {Node, #host{visit = V}} <- maps:to_list(H), V =:= Visit].

%% A monitor reports that a visit is over. Returns the node.
-spec down(Monitor :: reference(), hosts()) -> [node()].
down(Monitor, H) -> [Node || {Node, #host{monitor = M}} <- maps:to_list(H), M =:= Monitor].

%% Which processes are to be told of which visit, and to be monitored.
-spec due(hosts()) -> [{pid(), visit()}].
due(H) -> [{Pid, Visit} || #host{pid = Pid, visit = Visit, monitor = none} <- maps:values(H)].

-spec monitored(pid(), Monitor :: reference(), hosts()) -> hosts().
monitored(Pid, Monitor, H) ->
    maps:update_with(node(Pid), fun(Host) -> Host#host{monitor = Monitor} end, H).

%% The visit to that node, if there is one, is over.
-spec is_away(node(), hosts()) -> hosts().
is_away(Node, H) -> maps:remove(Node, H).
