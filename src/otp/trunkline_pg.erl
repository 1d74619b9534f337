-module(trunkline_pg).
-moduledoc "
Messages to the members of a group of `pg`.

`pg` knows at every node who is in a group. A message goes once to each node that has members, and
to no other. As in `pg`, the scope is `pg` unless another one is named, and a process that has
joined twice is a member twice.

If the scope is not started, a function does what `pg:get_members/2` does: in OTP 25 to 28 the group
has no members, and nothing is sent.

```erlang
1> pg:start_link().
2> trunkline_pg:send_members(traders, {price, 17}).
ok
```
".
-moduledoc #{since => <<"0.5.0">>}.
-compile({parse_transform, trunkline_docs}).

-export([send_members/2, send_members/3, send_local_members/2, send_local_members/3,
         send_random_member/2, send_random_member/3]).

-export_type([scope/0, group/0]).

-doc "
A scope of `pg`, as `pg:start_link/1` names it.
".
-doc #{since => <<"0.5.0">>}.
-type scope() :: atom().

-doc "
The name of a group of `pg`: any term.
".
-doc #{since => <<"0.5.0">>}.
-type group() :: term().

-doc "
Sends to all members of a group in the scope `pg`.

```erlang
1> trunkline_pg:send_members(traders, {price, 17}).
ok
```
".
-doc #{since => <<"0.5.0">>}.
-spec send_members(group(), term()) -> ok.
send_members(Group, Message) ->
    send_members(pg, Group, Message).

-doc "
Sends to all members of a group, in order with everything else that the caller sends to them by
Trunkline. It waits like `trunkline:send/2`.

```erlang
1> trunkline_pg:send_members(my_scope, traders, {price, 17}).
ok
```
".
-doc #{since => <<"0.5.0">>}.
-spec send_members(scope(), group(), term()) -> ok.
send_members(Scope, Group, Message) ->
    trunkline:multicast(pg:get_members(Scope, Group), Message).

-doc "
Sends to the members of a group in the scope `pg` that are at this node.

```erlang
1> trunkline_pg:send_local_members(traders, {price, 17}).
ok
```
".
-doc #{since => <<"0.5.0">>}.
-spec send_local_members(group(), term()) -> ok.
send_local_members(Group, Message) ->
    send_local_members(pg, Group, Message).

-doc "
Sends to the members of a group that are at this node.

```erlang
1> trunkline_pg:send_local_members(my_scope, traders, {price, 17}).
ok
```
".
-doc #{since => <<"0.5.0">>}.
-spec send_local_members(scope(), group(), term()) -> ok.
send_local_members(Scope, Group, Message) ->
    trunkline:multicast(pg:get_local_members(Scope, Group), Message).

-doc "
Sends to one member of a group in the scope `pg`. See `send_random_member/3`.

```erlang
1> trunkline_pg:send_random_member(traders, {price, 17}).
ok
```
".
-doc #{since => <<"0.5.0">>}.
-spec send_random_member(group(), term()) -> ok | {error, {no_such_group, group()}}.
send_random_member(Group, Message) ->
    send_random_member(pg, Group, Message).

-doc "
Sends to one member of a group, at whatever node; each is as likely as the others. The result is
`ok`, or `{error, {no_such_group, Group}}` if the group has no members.

```erlang
1> trunkline_pg:send_random_member(my_scope, nobody_here, {price, 17}).
{error,{no_such_group,nobody_here}}
```
".
-doc #{since => <<"0.5.0">>}.
-spec send_random_member(scope(), group(), term()) -> ok | {error, {no_such_group, group()}}.
send_random_member(Scope, Group, Message) ->
    case pg:get_members(Scope, Group) of
        [] ->
            {error, {no_such_group, Group}};
        Members ->
            _ = trunkline:send(lists:nth(rand:uniform(length(Members)), Members), Message),
            ok
    end.
