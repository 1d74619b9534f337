-module(trunkline_top).
-moduledoc "
What the peers of a node do, like `top`: a line for each peer, every second, in a terminal.

It works in a shell, in a remote shell, and in IEx, and looks at this node or at another one that
runs Trunkline. `once/0` prints one screen and returns, for scripts and for `bin/app rpc`.

Type a key and press Enter: `s` sorts by the next column, `p`, `l` and `i` show peers, lanes and
inboxes, `?` explains the columns, a number sets the seconds between two looks, and `q` quits.

```erlang
1> trunkline_top:start().
2> trunkline_top:start('b@host').
3> trunkline_top:once().
ok
```

It reads counters. Messages between the nodes do not become slower by it.
".
-moduledoc #{since => <<"1.0.0">>}.
-compile({parse_transform, trunkline_docs}).

-include("../trunkline_errors.hrl").

-export([start/0, start/1, start/2, once/0, once/1]).

-export_type([options/0]).

-doc "
How to begin, as a map or a property list: the `interval` between two looks (100 to 60,000 ms; the
default is 1,000), what to `show` (`peers`, `lanes` or `inboxes`), and the column to `sort` by
(`name`, `messages_out`, `messages_in`, `bytes_out`, `bytes_in`, `queued_bytes`, `waited`,
`large_pending` or `lost` of peers).
".
-doc #{since => <<"1.0.0">>}.
-type options() :: #{interval => 100..60_000, show => peers | lanes | inboxes, sort => atom()}.

-define(INTERVAL, 1000).
%% The size without a terminal, in which nearly all names and all rows fit.
-define(COLUMNS, 120).
-define(ROWS, 1_000_000).
%% The line of the cursor, and the one that Enter adds.
-define(LINES_BELOW, 2).

-record(top,
        {node :: node(),
         interval :: pos_integer(),
         show :: trunkline_screen:show(),
         sort :: trunkline_screen:sort(),
         reader :: reference(),
         before :: none | trunkline_sample:sample(),
         %% The last view, or the last error.
         seen = none :: none | {view, trunkline_sample:view()} | {error, term()}}).

-doc "
Shows the peers of this node until the user quits.

```erlang
1> trunkline_top:start().
ok
```
".
-doc #{since => <<"1.0.0">>}.
-spec start() -> ok.
start() -> run(node(), #{}).

-doc "
The same of another node, or with options.

The error is `badarg` if the argument is neither a node nor options.

```erlang
1> trunkline_top:start('b@host').
ok
```
".
-doc #{since => <<"1.0.0">>}.
-spec start(node() | options() | [proplists:property()]) -> ok.
start(Node) when is_atom(Node) ->
    run(Node, #{});
start(Options) ->
    case trunkline_function_options:check(trunkline_screen, Options) of
        {ok, Map} -> run(node(), Map);
        error -> ?BAD_ARGUMENT(badarg, [Options])
    end.

-doc "
The same of another node, with options. A node that does not answer is asked again.

The error is `badarg` if the options are not right.

```erlang
1> trunkline_top:start('b@host', #{interval => 5000, sort => waited}).
ok
```
".
-doc #{since => <<"1.0.0">>}.
-spec start(node(), options() | [proplists:property()]) -> ok.
start(Node, Options) ->
    case is_atom(Node) andalso trunkline_function_options:check(trunkline_screen, Options) of
        {ok, Map} -> run(Node, Map);
        _ -> ?BAD_ARGUMENT(badarg, [Node, Options])
    end.

-doc "
Looks at this node for a second, and prints what it has seen.

```erlang
1> trunkline_top:once().
ok
```
".
-doc #{since => <<"1.0.0">>}.
-spec once() -> ok.
once() ->
    ok = once(node()).

-doc "
The same of another node. The result is `{error, Reason}` if that node does not answer, or is
without this module (`no_trunkline`). The error is `badarg` if `Node` is no node.

```erlang
1> trunkline_top:once('b@host').
ok
```
".
-doc #{since => <<"1.0.0">>}.
-spec once(node()) -> ok | {error, noconnection | timeout | no_trunkline | term()}.
once(Node) when is_atom(Node) ->
    case trunkline_sample:take(Node) of
        {ok, Before} ->
            receive after ?INTERVAL -> ok end,
            case trunkline_sample:take(Node) of
                {ok, After} ->
                    View = trunkline_sample:view(Before, After),
                    print(trunkline_screen:lines(View, trunkline_hints:hints(View),
                                                 #{columns => columns(), rows => ?ROWS,
                                                   show => peers, sort => name, keys => false}));
                {error, _} = Error ->
                    Error
            end;
        {error, _} = Error ->
            Error
    end;
once(Node) ->
    ?BAD_ARGUMENT(badarg, [Node]).

%% --- the loop --------------------------------------------------------------------------

run(Node, Options) ->
    Ref = make_ref(),
    Top = self(),
    Reader = spawn_link(fun() -> read(Top, Ref) end),
    is_terminal() andalso io:put_chars("\e[2J"),
    ok = look(#top{node = Node, reader = Ref, before = none,
                   interval = maps:get(interval, Options, ?INTERVAL),
                   show = maps:get(show, Options, peers), sort = maps:get(sort, Options, name)}),
    unlink(Reader),
    receive {'EXIT', Reader, _} -> ok after 0 -> ok end.

%% Reads lines until it is told to quit, so that it never takes one from the shell afterwards.
read(Top, Ref) ->
    case io:get_line("") of
        Line when is_list(Line); is_binary(Line) ->
            Key = string:trim(unicode:characters_to_list(Line)),
            Top ! {Ref, Key},
            Key =:= "q" orelse read(Top, Ref);
        _ ->
            Top ! {Ref, "q"}                    % there is no input
    end.

look(#top{node = Node, before = Before} = S) ->
    Next = trunkline_deadline:in(S#top.interval),
    S1 = case trunkline_sample:take(Node) of
             {ok, Sample} when Before =:= none -> S#top{before = Sample};
             {ok, Sample} ->
                 S#top{before = Sample, seen = {view, trunkline_sample:view(Before, Sample)}};
             {error, Reason} -> S#top{before = none, seen = {error, Reason}}
         end,
    draw(S1),
    %% The first view comes soon.
    wait(S1, case S1#top.seen of
                 none -> trunkline_deadline:in(min(300, S1#top.interval));
                 _ -> Next
             end).

wait(#top{reader = Ref} = S, Next) ->
    receive
        {Ref, "q"} ->
            ok;
        {Ref, "?"} ->
            paint(trunkline_screen:help(columns())),
            wait(S, infinity);
        {Ref, Key} ->
            S1 = key(Key, S),
            draw(S1),
            %% (While the help is shown, no next look is planned.)
            wait(S1, min(Next, trunkline_deadline:in(S1#top.interval)))
    after trunkline_deadline:left(Next) ->
            look(S)
    end.

key("s", #top{show = Show, sort = Sort} = S) ->
    [_ | Later] = lists:dropwhile(fun(Other) -> Other =/= Sort end, trunkline_screen:sorts(Show)),
    S#top{sort = hd(Later ++ [name])};
key("p", S) -> show(peers, S);
key("l", S) -> show(lanes, S);
key("i", S) -> show(inboxes, S);
key(Key, S) ->
    case string:to_integer(Key) of
        {Seconds, ""} when Seconds >= 1, Seconds =< 60 -> S#top{interval = Seconds * 1000};
        _ -> S
    end.

show(Show, #top{sort = Sort} = S) ->
    S#top{show = Show, sort = case lists:member(Sort, trunkline_screen:sorts(Show)) of
                                  true -> Sort;
                                  false -> name
                              end}.

%% --- the terminal ------------------------------------------------------------------------

draw(#top{seen = none}) ->
    ok;
draw(#top{seen = {error, Reason}, node = Node, interval = Interval}) ->
    paint([io_lib:format("~ts ~ts", [Node, why(Reason)]),
           io_lib:format("Trying again every ~w s. Type q and Enter to quit",
                         [Interval / 1000])]);
draw(#top{seen = {view, View}, show = Show, sort = Sort}) ->
    paint(trunkline_screen:lines(View, trunkline_hints:hints(View),
                                 #{columns => columns(), rows => rows(), show => Show,
                                   sort => Sort, keys => true})).

why(no_trunkline) -> "does not have this release of Trunkline";
why(noconnection) -> "is not connected";
why(timeout) -> "does not answer";
why(Reason) -> io_lib:format("cannot be asked: ~0tP", [Reason, 10]).

%% Draws over the previous lines in a terminal, and below them otherwise.
paint(Lines) ->
    case is_terminal() of
        true -> io:put_chars(["\e[H", [[Line, "\e[K\n"] || Line <- Lines], "\e[J"]);
        false -> print(Lines)
    end.

print(Lines) -> io:put_chars([[Line, "\n"] || Line <- Lines]).

is_terminal() -> io:rows() =/= {error, enotsup}.

columns() ->
    case io:columns() of
        {ok, Columns} -> Columns;
        {error, enotsup} -> ?COLUMNS
    end.

rows() ->
    case io:rows() of
        {ok, Rows} -> max(1, Rows - ?LINES_BELOW);
        {error, enotsup} -> ?ROWS
    end.
