%% Nodes that have telemetry: a stand-in of its module, which keeps what is executed. The functions
%% without a node run there.
-module(telemetry_node).

-export([pair/1, pair/2, start/1]).
-export([events/0, events/1, events_of/1, block/1, break/0, stop/0, then/1]).
-export([keep/3]).

%% Two connected nodes with Trunkline, of which the first has telemetry.
pair(EnvA) -> pair(EnvA, []).

pair(EnvA, EnvB) ->
    [A, B] = [start(EnvA), cluster:start(EnvB)],
    ok = cluster:connect(A, B),
    cluster:await_up(A, B),
    {A, B}.

start(Env) ->
    Node = cluster:start(none),
    ok = cluster:call(Node, fun install/0),
    ok = cluster:call(Node, cluster, start_trunkline, [Env]),
    Node.

install() ->
    Self = self(),
    Owner = spawn(fun() ->
                          ?MODULE = ets:new(?MODULE, [named_table, public, ordered_set]),
                          true = register(telemetry_handler_table, self()),
                          Self ! {self(), ready},
                          receive stop -> ok end
                  end),
    receive {Owner, ready} -> ok end,
    load("telemetry_node:keep(Name, Measurements, Metadata)").

load(Body) ->
    Forms = [parse(Text) || Text <- ["-module(telemetry).", "-export([execute/3]).",
                                     "execute(Name, Measurements, Metadata) -> " ++ Body ++ "."]],
    {ok, telemetry, Code} = compile:forms(Forms, [nowarn_unused_vars]),
    {module, telemetry} = code:load_binary(telemetry, "", Code),
    ok.

parse(Text) ->
    {ok, Tokens, _} = erl_scan:string(Text),
    {ok, Form} = erl_parse:parse_form(Tokens),
    Form.

keep([trunkline | _] = Name, Measurements, Metadata)
  when is_map(Measurements), is_map(Metadata) ->
    Event = {erlang:unique_integer([monotonic]), {Name, Measurements, Metadata}},
    true = ets:insert(?MODULE, Event),
    case ets:lookup(?MODULE, then) of
        [{then, Then}] -> Then();
        [] -> ok
    end,
    wait().

wait() ->
    case ets:lookup(?MODULE, block) of
        [{block, true}] -> receive after 5 -> wait() end;
        _ -> ok
    end.

%% Handlers do not return, or do again.
block(How) ->
    true = ets:insert(?MODULE, {block, How}),
    ok.

%% They do that, too.
then(Then) ->
    true = ets:insert(?MODULE, {then, Then}),
    ok.

%% They cannot be executed any more.
break() -> load("error({Name, Measurements, Metadata})").

%% As if the application telemetry had stopped.
stop() ->
    true = unregister(telemetry_handler_table),
    ok.

%% In the order in which they were executed.
events() -> [Event || {N, Event} <- ets:tab2list(?MODULE), is_integer(N)].

events(Kind) -> [Event || {[_, K | _], _, _} = Event <- events(), K =:= Kind].

%% Their measurements and metadata.
events_of(Name) ->
    [{Measurements, Metadata} || {[_ | N], Measurements, Metadata} <- events(), N =:= Name].
