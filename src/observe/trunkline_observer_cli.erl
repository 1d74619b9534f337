-module(trunkline_observer_cli).
-moduledoc "
A page of `observer_cli` with the peers of a node: a plugin.

```erlang
{observer_cli, [{plugins, [#{module => trunkline_observer_cli, title => \"Trunkline\",
                             shortcut => \"T\", interval => 1500, sort_column => 3}]}]}.
```

Trunkline does not need `observer_cli`. The functions are those that `observer_cli_plugin` calls,
and are tested against what its documentation says of them, not with `observer_cli` itself.
".
-moduledoc #{since => <<"1.0.0">>}.
-compile({parse_transform, trunkline_docs}).

-export([attributes/1, sheet_header/0, sheet_body/1]).

-export_type([state/0]).

-doc "
What this module keeps between two calls.
".
-doc #{since => <<"1.0.0">>}.
-opaque state() :: trunkline_sample:sample() | undefined.

-define(WIDTH, 130).

-doc "
The lines above the table: the node as a whole, and what should be known of its peers.

```erlang
1> {Rows, State} = trunkline_observer_cli:attributes(undefined).
```
".
-doc #{since => <<"1.0.0">>}.
-spec attributes(state()) -> {[[#{content := string(), width := pos_integer()}]], state()}.
attributes(Before) ->
    {#{release := Release, peers := Peers, refused := Refused} = View, Sample} = look(Before),
    Up = length([up || #{state := up} <- Peers]),
    Lost = lists:sum([L || #{lost := L} <- Peers]),
    Summary = lists:flatten(io_lib:format("Trunkline ~ts: ~b peers, ~b up, ~b messages lost, "
                                          "~b connections refused",
                                          [Release, length(Peers), Up, Lost, Refused])),
    {[[#{content => Line, width => ?WIDTH}] || Line <- [Summary | trunkline_hints:some(View)]],
     Sample}.

-doc "
The columns of the table.

```erlang
1> [#{title := \"Peer\"} | _] = trunkline_observer_cli:sheet_header().
```
".
-doc #{since => <<"1.0.0">>}.
-spec sheet_header() -> [#{title := string(), width := pos_integer(), shortcut := string()}].
sheet_header() ->
    [#{title => Title, width => Width, shortcut => Shortcut}
     || {Title, Width, Shortcut, _} <- columns()].

-doc "
The table: a row for each peer, with numbers as integers, so that `observer_cli` can sort by them.

```erlang
1> {Rows, State} = trunkline_observer_cli:sheet_body(undefined).
```
".
-doc #{since => <<"1.0.0">>}.
-spec sheet_body(state()) -> {[[string() | integer()]], state()}.
sheet_body(Before) ->
    {#{peers := Peers}, Sample} = look(Before),
    {[[Cell(Peer) || {_, _, _, Cell} <- columns()] || Peer <- Peers], Sample}.

%% The first time there are no rates yet.
look(Before) ->
    Sample = trunkline_sample:here(),
    {trunkline_sample:view(case Before of
                               undefined -> Sample;
                               _ -> Before
                           end, Sample), Sample}.

columns() ->
    [{"Peer", 30, "P", fun(#{peer := Peer}) -> atom_to_list(Peer) end},
     {"State", 11, "S", fun(#{state := State}) -> atom_to_list(State) end},
     {"Out/s", 11, "O", rounded(messages_out)},
     {"In/s", 11, "I", rounded(messages_in)},
     {"Bytes out/s", 16, "BO", rounded(bytes_out)},
     {"Bytes in/s", 15, "BI", rounded(bytes_in)},
     {"Batch", 10, "A", rounded(batch)},
     {"Queue", 12, "U", rounded(queued_bytes)},
     {"Waiting", 12, "W", rounded(waiting)},
     {"Lost", 9, "L", rounded(lost)}].

rounded(Key) -> fun(Peer) -> round(maps:get(Key, Peer)) end.
