%% (This folder has bounded mailboxes: the keeper in front of a server, and what the nodes know of
%% each other's inboxes, so that senders can be made to wait.)
-module(trunkline_inbox).
-moduledoc "
A bounded mailbox in front of a process.

`start_link/3,4` start a gen_server or a gen_statem as their own `start_link` do, with the callback
module unchanged, and an inbox in front of it. The inbox has the server's name, and is what its
supervisor knows. The server's own mailbox then holds a few messages only, so that its calls to
others stay fast. What it has no time for waits in the inbox, up to a bound.

```erlang
init([]) ->
    Options = [{inbox, #{bytes => 1 bsl 20}}],
    {ok, {#{}, [#{id => counter,
                  start => {trunkline_inbox, start_link,
                            [{local, counter}, counter, Args, Options]}}]}}.
```

What is sent to the server's own pid does not pass the inbox: replies to its requests, timers,
monitors.

`open/1,2` put an inbox in front of the calling process, which then says by `done/2` how many
messages it is done with.

When the inbox is full, its policy decides about messages that are sent by `trunkline:send/2,3` and
`trunkline:cast/2`, from any node that runs Trunkline:

- `block`: the sender waits. With `nosuspend`, `trunkline:send/3` returns `nosuspend` instead.
- `reject`: the sender does not wait. With `nosuspend`, `trunkline:send/3` returns `nosuspend`;
  `trunkline:call/2,3` exits at once, with the reason `overload`, and the response to a
  `trunkline:send_request/2` has that reason; `trunkline:send/2` and `trunkline:cast/2` drop the
  message and count it.
- `drop_newest`: a message that arrives is dropped, and counted.
- `drop_oldest`: the oldest message makes room for it, is dropped, and counted.

Calls, requests, system messages and exit signals are never dropped once they have been sent. A
process that sends by `!` or `gen_server:cast/2` cannot be made to wait. Beyond the bound its
messages are treated as with `drop_newest`, unless the policy is `drop_oldest`.
".
-moduledoc #{since => <<"0.4.0">>}.
-compile({parse_transform, trunkline_docs}).

-include("../trunkline_errors.hrl").

-export([start_link/3, start_link/4, open/1, open/2, done/2, close/1, info/1]).

-export_type([options/0, info/0]).

-doc "
Options of an inbox, a map or a property list, with their defaults in parentheses:

- `policy`: what happens when it is full (`block`);
- `bytes`: its bound, less than 4 GB, as a number or a string as `\"16MB\"` (8 MB). A message counts
  as its size and 128 bytes;
- `messages`: its bound in messages, less than 4,194,304 (100,000);
- `work`: how many messages the process may have at a time that it is not done with; less than
  4,194,304. (Without this option a server has 8. If it is done with these before the inbox passes
  on more, and there is no `urgent`, it has up to 256. For `open/1,2` it is 1.) A server gets no
  more while it has an eighth of `bytes`;
- `urgent`: a fun that says whether a message overtakes the others (none does);
- `tell_dropped`: whether the process gets `{trunkline_inbox, Inbox, {dropped, N}}` ahead of the
  next message when some have been dropped (`false`; for `open/1,2` `true`). This, too, is a message
  to be done with.
".
-doc #{since => <<"0.4.0">>}.
-type options() :: #{policy => block | reject | drop_newest | drop_oldest,
                     bytes => pos_integer() | string() | binary(),
                     messages => pos_integer(),
                     work => pos_integer(),
                     urgent => fun((Message :: term()) -> boolean()),
                     tell_dropped => boolean()}.

-doc "
What `info/1` returns:

- `queued_messages` and `queued_bytes`: what waits in the inbox;
- `in_work`: messages that the process has and is not done with;
- `passed` and `dropped`: how many messages went to the process, and were dropped, in all;
- `consumer`: the process behind the inbox;
- `nodes`: of each node that sends, the `window` of bytes and messages that it may have in flight or
  in the inbox, how many of its messages are in the inbox (`queued_messages`), how many of its
  senders are `waiting`, and how many of its messages were `refused`;
- `time_in_queue`: pairs of a time in us and the number of messages that waited for less than that,
  and not less than half of it.
".
-doc #{since => <<"0.4.0">>}.
-type info() :: #{queued_messages := non_neg_integer(), queued_bytes := non_neg_integer(),
                  in_work := non_neg_integer(),
                  passed := non_neg_integer(), dropped := non_neg_integer(),
                  consumer := pid(),
                  nodes := #{node() =>
                                 #{window => {Bytes :: pos_integer(), Messages :: pos_integer()},
                                   queued_messages => non_neg_integer(),
                                   waiting => non_neg_integer(),
                                   refused => non_neg_integer()}},
                  time_in_queue := [{Microseconds :: pos_integer(), non_neg_integer()}]}.

%% The less often a server waits for the inbox, the faster it is: twice as fast with 256 messages as
%% with 8, if it does next to nothing (docs/lab/tried.md). This is not true for a process that asks
%% other processes for each message, and searches its mailbox for the answer. With 8, the inbox and
%% the process are ready at the same time, on two schedulers, and so are the processes that it asks
%% (bench_mailbox, 1: 1.5 to 2.6 of the synchronous time with 8 messages, 0.8 to 1.2 with 1).
-define(SERVER, #{work => {8, 256}, tell_dropped => false}).
-define(PROCESS, #{work => {1, 1}, tell_dropped => true}).
%% ms: for info/1, the nodes that send, and the node of the inbox.
-define(ASK, 1000).
-define(ASK_INBOX, 5000).
%% What gen_server and gen_statem know. (They ignore the rest, such as a name in the wrong place.)
-define(SERVER_OPTIONS, [timeout, debug, spawn_opt, hibernate_after]).

-doc "
Starts a gen_server or a gen_statem without a name behind an inbox, as their own `start_link/3` do.
`Options` are theirs, and `{inbox, Options}` with those of the inbox. The pid of the result is the
inbox's.

The result is `{error, {bad_option, Key, Value}}` for an option that does not exist, or cannot have
this value, and `{error, not_started}` if Trunkline does not run. Other errors are those of
`gen_server:start_link/3`.

```erlang
1> {ok, Inbox} = trunkline_inbox:start_link(counter, [], [{inbox, #{policy => reject}}]).
```
".
-doc #{since => <<"0.4.0">>}.
-spec start_link(module(), Args :: term(), Options :: list()) ->
          {ok, pid()} | ignore | {error, term()}.
start_link(Module, Args, Options) when is_atom(Module), length(Options) >= 0 ->
    start(none, Module, Args, Options);
start_link(Module, Args, Options) ->
    %% This raises the same error as gen_server.
    ?NAMED(badarg, [Module, Args, Options], gen_server:start_link(Module, Args, Options)).

-doc "
Starts a gen_server or a gen_statem behind an inbox that has its name, as their own `start_link/4`
do. See `start_link/3`.

```erlang
1> {ok, Inbox} = trunkline_inbox:start_link({local, counter}, counter, [], []).
2> Inbox = whereis(counter).
```
".
-doc #{since => <<"0.4.0">>}.
-spec start_link(gen_server:server_name(), module(), Args :: term(), Options :: list()) ->
          {ok, pid()} | ignore | {error, term()}.
start_link(Name, Module, Args, Options) ->
    case trunkline_name:is_name(Name) of
        true when is_atom(Module), length(Options) >= 0 ->
            start(Name, Module, Args, Options);
        _ ->
            ?NAMED(badarg, [Name, Module, Args, Options],
                   gen_server:start_link(Name, Module, Args, Options))
    end.

start(Name, Module, Args, Options) ->
    {Inbox, Others} = proplists:split(Options, [inbox]),
    Odd = [{inbox, Option} || Option <- lists:append(Inbox), tuple_size(Option) =/= 2],
    case Odd ++ [{Key, Value} || {Key, Value} <- Others, not lists:member(Key, ?SERVER_OPTIONS)] of
        [] ->
            case check(proplists:get_value(inbox, lists:append(Inbox), #{}), ?SERVER) of
                {ok, Checked} ->
                    What = {server, behaviour(Module), Module, Args, Others},
                    case trunkline_keeper_start:start_link(Name, What, Checked) of
                        {ok, Keeper, _} -> {ok, Keeper};
                        Other -> Other
                    end;
                Error ->
                    Error
            end;
        [{Key, Value} | _] ->
            {error, {bad_option, Key, Value}}
    end.

%% A module that exports callback_mode/0 is a gen_statem.
behaviour(Module) ->
    _ = code:ensure_loaded(Module),
    case erlang:function_exported(Module, callback_mode, 0) of
        true -> gen_statem;
        false -> gen_server
    end.

-doc "
Opens an inbox for the calling process, linked to it. The process gets the messages as they were
sent, and never has more than `work` of them that it is not done with. The result is `{ok, Inbox}`,
`{error, {bad_option, Key, Value}}`, or `{error, not_started}` if Trunkline does not run.

```erlang
loop(Inbox) ->
    receive Message -> handle(Message) end,
    trunkline_inbox:done(Inbox, 1),
    loop(Inbox).

start() ->
    {ok, Inbox} = trunkline_inbox:open(#{messages => 1000}),
    loop(Inbox).
```
".
-doc #{since => <<"0.4.0">>}.
-spec open(options() | [proplists:property()]) -> {ok, Inbox :: pid()} | {error, term()}.
open(Options) -> open_named(none, Options).

-doc "
Like `open/1`, with a name for the inbox: `{local, Name}`, `{global, Name}` or `{via, Module,
Name}`. If a process has that name, the result is `{error, {already_started, Pid}}`. The error is
`badarg` if this is no such name.

```erlang
1> {ok, Inbox} = trunkline_inbox:open({local, feed}, #{messages => 1000}).
```
".
-doc #{since => <<"0.4.0">>}.
-spec open(gen_server:server_name(), options() | [proplists:property()]) ->
          {ok, Inbox :: pid()} | {error, term()}.
open(Name, Options) ->
    trunkline_name:is_name(Name) orelse ?BAD_ARGUMENT(badarg, [Name, Options]),
    open_named(Name, Options).

open_named(Name, Options) ->
    case check(Options, ?PROCESS) of
        {ok, Checked} ->
            case trunkline_keeper_start:start_link(Name, {process, self()}, Checked) of
                {ok, Inbox, Work} ->
                    %% For done/2, which must not depend on another process.
                    _ = [erase(Key) || {{?MODULE, Earlier} = Key, _} <- get(),
                                       not is_process_alive(Earlier)],
                    _ = put({?MODULE, Inbox}, Work),
                    {ok, Inbox};
                Other ->
                    Other
            end;
        Error ->
            Error
    end.

-doc "
The calling process is done with `N` messages of its inbox, and can get as many more. The error is
`badarg` if this is no inbox of this node, or has ended, or if `N` is not a positive integer. (The
process that has opened an inbox does not get an error soon after the end: the result is `ok`.)

```erlang
1> trunkline_inbox:done(Inbox, 1).
ok
```
".
-doc #{since => <<"0.4.0">>}.
-spec done(Inbox :: pid() | atom(), pos_integer()) -> ok.
done(Inbox, N) when is_integer(N), N > 0 ->
    Keeper = pid(Inbox),
    case get({?MODULE, Keeper}) of
        undefined -> done_by_another(Keeper, N) orelse ?BAD_ARGUMENT(badarg, [Inbox, N]), ok;
        Work -> trunkline_work:done(Work, N)
    end;
done(Inbox, N) ->
    ?BAD_ARGUMENT(badarg, [Inbox, N]).

%% Whether that is an inbox of this node. (Its counter may be unknown for a moment.)
done_by_another(Keeper, N) ->
    case trunkline_own_inboxes:work(Keeper) of
        none -> is_alive(Keeper) andalso trunkline_keeper:done(Keeper, N) =:= ok;
        Work -> trunkline_work:done(Work, N) =:= ok
    end.

pid(Inbox) when is_atom(Inbox) -> whereis(Inbox);
pid(Inbox) -> Inbox.

%% Whether that is an inbox of this node.
is_alive(Pid) ->
    is_pid(Pid) andalso node(Pid) =:= node() andalso trunkline_keeper_start:is_keeper(Pid).

-doc "
Ends an inbox of this node. What is in it is dropped, and senders do not wait for it any more. If it
has ended already, the result is `ok`, too. The error is `badarg` if this is another process, a name
that no process has, or no pid of this node.

```erlang
1> trunkline_inbox:close(Inbox).
ok
```
".
-doc #{since => <<"0.4.0">>}.
-spec close(Inbox :: pid() | atom()) -> ok.
close(Inbox) ->
    Keeper = pid(Inbox),
    %% (If it ends just now, it is not alive any more.)
    case is_alive(Keeper) orelse is_pid(Keeper) andalso node(Keeper) =:= node()
        andalso not is_process_alive(Keeper) of
        false ->
            ?BAD_ARGUMENT(badarg, [Inbox]);
        true ->
            unlink(Keeper),
            _ = erase({?MODULE, Keeper}),
            trunkline_process:kill(Keeper)
    end.

-doc "
What is going on in an inbox, at this node or at another one. The nodes that send are asked, for up
to a second, and the node of the inbox for up to five.

The error is `badarg` if this is no inbox, or its node is without Trunkline, and that of
`erpc:call/5` if the inbox's node cannot be asked, as `{erpc, timeout}`.

```erlang
1> #{queued_messages := N, dropped := 0} = trunkline_inbox:info(counter).
2> trunkline_inbox:info({counter, 'b@host'}).
```
".
-doc #{since => <<"0.4.0">>}.
-spec info(Inbox :: pid() | atom() | {atom(), node()}) -> info().
info({Name, Node}) when is_atom(Name), Node =:= node() -> info(Name);
info({Name, Node} = Inbox) when is_atom(Name), is_atom(Node) ->
    ?NAMED(badarg, [Inbox], info_of(Node, Name));
info(Inbox) when is_pid(Inbox), node(Inbox) =/= node() ->
    ?NAMED(badarg, [Inbox], info_of(node(Inbox), Inbox));
info(Inbox) ->
    case trunkline_own_inboxes:keeper(Inbox) of
        Keeper when is_pid(Keeper) ->
            #{nodes := Nodes} = Info = trunkline_keeper:info(Keeper),
            Senders = maps:keys(Nodes) ++ trunkline_inboxes:who_knows(Keeper),
            %% (To ask a node would connect to it.)
            All = [node() | [N || N <- lists:usort(Senders), trunkline_process:is_connected(N)]],
            Counts = trunkline_process:multicall(All, trunkline_inboxes, senders, [Keeper], ?ASK),
            Merge = fun({Node, {ok, Who}}, Map) ->
                            Map#{Node => maps:merge(maps:get(Node, Map, #{}), Who)};
                       (_, Map) ->
                            Map
                    end,
            Info#{nodes := lists:foldl(Merge, Nodes, lists:zip(All, Counts))};
        none ->
            ?BAD_ARGUMENT(badarg, [Inbox])
    end.

info_of(Node, There) ->
    case trunkline_process:multicall([Node], ?MODULE, info, [There], ?ASK_INBOX) of
        [{ok, Info}] -> Info;
        [{error, {exception, Why, _}}] when Why =:= badarg; Why =:= undef -> error(badarg);
        [{Class, Reason}] -> erlang:raise(Class, Reason, [])
    end.

%% --- options --------------------------------------------------------------------------

check(Options, Own) ->
    case trunkline_function_options:to_map(Options) of
        error -> {error, {bad_option, inbox, Options}};
        Map -> check(maps:to_list(Map), #{}, Own)
    end.

check([{Key, Value} | Options], Checked, Own) ->
    case value(Key, Value) of
        {ok, Parsed} -> check(Options, Checked#{Key => Parsed}, Own);
        error -> {error, {bad_option, Key, Value}}
    end;
check([], Checked, Own) ->
    Defaults = Own#{policy => block, bytes => 8 bsl 20, messages => 100_000, urgent => none},
    {ok, fixed(maps:merge(Defaults, Checked))}.

%% How many messages the process may have is fixed if the user has said how many, and if some are
%% urgent: these overtake only what is still in the inbox.
fixed(#{work := N} = Options) when is_integer(N) -> Options#{work := {N, N}};
fixed(#{work := {Least, _}, urgent := Urgent} = Options) when Urgent =/= none ->
    Options#{work := {Least, Least}};
fixed(Options) -> Options.

value(bytes, Bytes) -> below(1 bsl 32, trunkline_quantity:parse(size, Bytes));
value(Key, N) when Key =:= messages; Key =:= work -> below(1 bsl 22, N);
value(policy, Policy) when Policy =:= block; Policy =:= reject; Policy =:= drop_newest;
                           Policy =:= drop_oldest ->
    {ok, Policy};
value(urgent, Fun) when Fun =:= none; is_function(Fun, 1) -> {ok, Fun};
value(tell_dropped, Flag) when is_boolean(Flag) -> {ok, Flag};
value(_, _) -> error.

below(Bound, N) when is_integer(N), N > 0, N < Bound -> {ok, N};
below(_, _) -> error.
