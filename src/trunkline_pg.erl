%% Messages to the members of a group of `pg'.
%%
%% Who is in a group, pg knows, at every node; here is only who gets a message. It goes once to
%% each node that has members, and to no other (trunkline_multicast). As in pg, the scope is
%% `pg' where none is named, and a process that joined twice is a member twice.
-module(trunkline_pg).

-export([send_members/2, send_members/3, send_local_members/2, send_local_members/3,
         send_random_member/2, send_random_member/3]).

-export_type([scope/0, group/0]).

-type scope() :: atom().
-type group() :: term().

-spec send_members(group(), term()) -> ok.
send_members(Group, Message) ->
    send_members(pg, Group, Message).

%% To all members. In order with whatever else the calling process sends to them with Trunkline.
-spec send_members(scope(), group(), term()) -> ok.
send_members(Scope, Group, Message) ->
    trunkline:multicast(pg:get_members(Scope, Group), Message).

-spec send_local_members(group(), term()) -> ok.
send_local_members(Group, Message) ->
    send_local_members(pg, Group, Message).

%% To those at this node.
-spec send_local_members(scope(), group(), term()) -> ok.
send_local_members(Scope, Group, Message) ->
    trunkline:multicast(pg:get_local_members(Scope, Group), Message).

-spec send_random_member(group(), term()) -> ok | {error, {no_such_group, group()}}.
send_random_member(Group, Message) ->
    send_random_member(pg, Group, Message).

%% To one of them, each as likely as the others. `no_such_group': nobody is in it.
-spec send_random_member(scope(), group(), term()) -> ok | {error, {no_such_group, group()}}.
send_random_member(Scope, Group, Message) ->
    case pg:get_members(Scope, Group) of
        [] ->
            {error, {no_such_group, Group}};
        Members ->
            _ = trunkline:send(lists:nth(rand:uniform(length(Members)), Members), Message),
            ok
    end.
