%% Nodes that have telemetry: a stand-in of its module, which keeps what is executed.
-module(telemetry_node).

-export([pair/1, start/1, events/1, await/2]).
-export([keep/3]).

%% Two connected nodes with Trunkline, of which the first has telemetry.
pair(Env) ->
    [A, B] = [start(Env), cluster:start(Env)],
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
                          Self ! {self(), ready},
                          receive stop -> ok end
                  end),
    receive {Owner, ready} -> ok end,
    Forms = [parse(Text) || Text <- ["-module(telemetry).", "-export([execute/3]).",
                                     "execute(Name, Measurements, Metadata) -> "
                                     "telemetry_node:keep(Name, Measurements, Metadata)."]],
    {ok, telemetry, Code} = compile:forms(Forms),
    {module, telemetry} = code:load_binary(telemetry, "", Code),
    ok.

parse(Text) ->
    {ok, Tokens, _} = erl_scan:string(Text),
    {ok, Form} = erl_parse:parse_form(Tokens),
    Form.

keep([trunkline | _] = Name, Measurements, Metadata)
  when is_map(Measurements), is_map(Metadata) ->
    Key = {erlang:unique_integer([monotonic])},
    true = ets:insert(?MODULE, {Key, {Name, Measurements, Metadata}}),
    ok.

%% Those that begin so, in order.
events(Second) ->
    [Event || {_, {[trunkline, S | _], _, _} = Event} <- ets:tab2list(?MODULE), S =:= Second].

%% Until there is such an event at that node.
await(Node, Name) ->
    cluster:await(fun() ->
                          Events = cluster:call(Node, fun() -> ets:tab2list(?MODULE) end),
                          [] =/= [N || {_, {[trunkline | N], _, _}} <- Events, N =:= Name]
                              orelse Events
                  end).
