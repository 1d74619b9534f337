%% Requests and casts to the servers that have the same name at many nodes: the same in trunkline
%% and in trunkline_gen_server.
-doc "
Calls the servers of a name at this node and at all connected nodes, and waits for all of them, as
`gen_server:multi_call/2` does.

```erlang
1> " ?MODULE_STRING ":multi_call(stock, {count, apples}).
{[{'a@host',17},{'b@host',3}],[]}
```
".
-doc #{since => <<"0.5.0">>}.
-spec multi_call(Name :: atom(), term()) -> {Replies :: [{node(), term()}], BadNodes :: [node()]}.
multi_call(Name, Request) ->
    multi_call([node() | nodes()], Name, Request).

-doc "
Calls the servers of a name at these nodes, and waits for all of them, as `gen_server:multi_call/3`
does.

```erlang
1> " ?MODULE_STRING ":multi_call(['b@host', 'c@host'], stock, {count, apples}).
{[{'b@host',3}],['c@host']}
```
".
-doc #{since => <<"0.5.0">>}.
-spec multi_call([node()], Name :: atom(), term()) ->
          {Replies :: [{node(), term()}], BadNodes :: [node()]}.
multi_call(Nodes, Name, Request) ->
    multi_call(Nodes, Name, Request, infinity).

-doc "
Calls the servers of a name at these nodes, and waits for up to `Timeout` milliseconds, as
`gen_server:multi_call/4` does. The result is `{Replies, BadNodes}`: the replies, and the nodes
without one, both in the order of the list. No reply arrives later.

The error is `badarg` if one of the list is no node, as in OTP 27.

```erlang
1> " ?MODULE_STRING ":multi_call(['b@host', 'c@host'], stock, {count, apples}, 1000).
{[{'b@host',3}],['c@host']}
```
".
-doc #{since => <<"0.5.0">>}.
-spec multi_call([node()], Name :: atom(), term(), timeout()) ->
          {Replies :: [{node(), term()}], BadNodes :: [node()]}.
multi_call(Nodes, Name, Request, Timeout)
  when is_list(Nodes), is_atom(Name), Timeout =:= infinity;
       is_list(Nodes), is_atom(Name), is_integer(Timeout), Timeout >= 0 ->
    case trunkline_multi_call:multi_call(Nodes, Name, Request, Timeout) of
        badarg -> ?BAD_ARGUMENT(badarg, [Nodes, Name, Request, Timeout]);
        Answers -> Answers
    end.

-doc "
Casts to the servers of a name at this node and at all connected nodes, as `gen_server:abcast/2`
does.

```erlang
1> " ?MODULE_STRING ":abcast(stock, close).
abcast
```
".
-doc #{since => <<"0.5.0">>}.
-spec abcast(Name :: atom(), term()) -> abcast.
abcast(Name, Request) when is_atom(Name) ->
    abcast([node() | nodes()], Name, Request).

-doc "
Casts to the servers of a name at these nodes, as `gen_server:abcast/3` does.

```erlang
1> " ?MODULE_STRING ":abcast(['b@host', 'c@host'], stock, close).
abcast
```
".
-doc #{since => <<"0.5.0">>}.
-spec abcast([node()], Name :: atom(), term()) -> abcast.
abcast(Nodes, Name, Request) when is_list(Nodes), is_atom(Name) ->
    lists:foreach(fun(Node) when is_atom(Node) -> cast({Name, Node}, Request) end, Nodes),
    abcast.
