%% The options of the application. All are declared in one table, table/0. The check at the start,
%% trunkline:options/0 and the table in docs/operate/configuration.md (tools/options) are made from
%% it.
%%
%% With an invalid value the application does not start. The error is `{bad_option, Key, Value}',
%% with a sentence that says what the value must be. Two nodes may have different settings:
%% trunkline_handshake says which one counts.
-module(trunkline_options).
-moduledoc false.

-export([load/0, check/1, defaults/0, explain/1, use/1, current/0, table/0, type/1, text/2]).
-export([ip_address/1, wrong/3]).

-export_type([options/0, type/0]).

-type options() ::
        #{lanes := 1..64,
          queue_bytes := pos_integer(),
          window_bytes := pos_integer(),
          batch_bytes := pos_integer(),
          large_bytes := pos_integer(),
          bulk_bytes := pos_integer(),
          bulk_connections := pos_integer(),
          far_connections := pos_integer(),
          bulk_idle := pos_integer(),              % ms
          bulk_transport := auto | tcp | tls | dist,
          lane_transport := auto | dist | tcp | tls,
          congestion_control := auto | default | atom(),
          connection_timeout := pos_integer(),     % ms
          resume_time := non_neg_integer(),        % ms
          listen_address := undefined | inet:ip_address(),
          listen_ports := {inet:port_number(), inet:port_number()},
          advertise_address := undefined | inet:ip_address(),
          advertise_port := undefined | inet:port_number(),
          adopt := [trunkline_applications:name()]}.

-type bad_option() :: {bad_option, Key :: atom(), Value :: term()}.

%% The type of a value. Sizes are in bytes and times in milliseconds.
-type type() :: {integer | size | time, Least :: integer(), Most :: integer()}
              | {transport, [atom()]} | congestion_control
              | own_address | address | ports | port | applications.

-type entry() :: #{name := atom(),
                   type := type(),
                   default := term(),
                   default_text => string(),       % if the default depends on the machine
                   unit := string(),               % of the value in options(); "" has none
                   what := string(),
                   touch := string(),              % when to change it
                   since := string()}.

-define(DAY, 86_400_000).
-define(QUEUE_BYTES, (1 bsl 20)).
-define(MOST_QUEUE_BYTES, (1 bsl 29)).

%% In the order in which people should read them.
-spec table() -> [entry()].
table() ->
    [#{name => lanes, type => {integer, 1, 64}, default => default_lanes(),
       unit => "lanes", since => "0.1.0",
       default_text => "number of schedulers, at least 2 and at most 8",
       what => "Lanes to each peer. The smaller value of the two nodes counts.",
       touch => "Rarely. More lanes use more schedulers at both nodes; "
                "fewer lanes make larger batches."},
     #{name => queue_bytes, type => {size, 1 bsl 10, ?MOST_QUEUE_BYTES}, default => ?QUEUE_BYTES,
       unit => "bytes", since => "0.1.0",
       default_text => "`\"1MB\"`. With the option `adopt`: what the distribution holds for a "
                       "connection (`+zdbbl`), divided by `lanes`, if that is more",
       what => "Bytes that may wait in one lane. At this bound senders wait.",
       touch => "Raise it for bursts, if `waits` of `trunkline:info/1` grows while the network "
                "is idle. Lower it to bound memory: each peer can take `lanes` times as much."},
     #{name => window_bytes, type => {size, 1 bsl 10, 1 bsl 29}, default => 64 bsl 20,
       unit => "bytes", since => "0.1.0",
       what => "Bytes of one lane that may be in flight, at most. The window begins with 4 MB and "
               "follows bandwidth and distance. The smaller value of the two nodes counts.",
       touch => "Raise it for a path on which bandwidth times round trip is more. "
                "Lower it to bound what a slow peer can make this node keep."},
     #{name => batch_bytes, type => {size, 1 bsl 8, 1 bsl 26}, default => 64 bsl 10,
       unit => "bytes", since => "0.1.0",
       what => "Bytes in one batch, at most.",
       touch => "Rarely. On a slow network smaller batches let a message of another lane "
                "leave sooner."},
     #{name => large_bytes, type => {size, 1 bsl 10, 1 bsl 29}, default => 128 bsl 10,
       unit => "bytes", since => "0.2.0",
       what => "A message of this external size or more is large: it travels beside the lanes.",
       touch => "Lower it if messages just below it delay the small ones. "
                "Raise it if most messages are just above it."},
     #{name => bulk_bytes, type => {size, 1 bsl 10, 1 bsl 33}, default => 64 bsl 20,
       unit => "bytes", since => "0.2.0",
       what => "Bytes of large messages to one peer, waiting and in flight. At this bound their "
               "senders wait. The smaller value of the two nodes counts.",
       touch => "Raise it if many processes send large messages to a far peer. "
                "Lower it to bound memory."},
     #{name => bulk_connections, type => {integer, 1, 64}, default => 1,
       unit => "connections", since => "0.2.0",
       what => "Connections for large messages to each near peer.",
       touch => "Raise it if one connection cannot fill the network, and processors are idle."},
     #{name => far_connections, type => {integer, 1, 64}, default => 16,
       unit => "connections", since => "0.3.0",
       what => "Connections for large messages, and as many for batches, to each far peer, "
               "at most. (Each lane may have one for its batches, however many lanes there are.)",
       touch => "Lower it if a firewall or an address translation limits the number of "
                "connections. Raise it for paths that lose many packets."},
     #{name => bulk_idle, type => {time, 1, ?DAY}, default => 60_000,
       unit => "ms", since => "0.2.0",
       what => "A connection that has nothing to do is closed after this time.",
       touch => "Lower it if connections are scarce. "
                "Raise it if large messages are rare, and the time to connect matters."},
     #{name => bulk_transport, type => {transport, [auto, tcp, tls, dist]}, default => auto,
       unit => "", since => "0.2.0",
       what => "How large messages travel. `auto`: by TLS connections if the distribution uses "
               "TLS, else by TCP connections. `dist`: by the distribution's own connection.",
       touch => "Use `dist` if peers can reach no port but the distribution's. "
                "Use `tls` to encrypt large messages beside a distribution without TLS."},
     #{name => lane_transport, type => {transport, [auto, dist, tcp, tls]}, default => auto,
       unit => "", since => "0.2.0",
       what => "How batches travel. `auto`: by the distribution's own connection, and to a far "
               "peer by other connections when the distribution is the limit.",
       touch => "Use `dist` if peers can reach no port but the distribution's. "
                "Use `tcp` or `tls` to keep batches away from the distribution's connection. "
                "(Long terms, and what meets an idle lane, may go by the distribution all the "
                "same.)"},
     #{name => congestion_control, type => congestion_control, default => auto,
       unit => "", since => "0.3.0",
       what => "Congestion control of the connections to far peers. `auto`: BBR where the kernel "
               "has it. `default`: the kernel's own. Linux only.",
       touch => "Use `default` if BBR is not wanted in your network."},
     #{name => connection_timeout, type => {time, 1000, ?DAY}, default => 10_000,
       unit => "ms", since => "0.3.0",
       what => "A connection whose path is dead is given up after this time.",
       touch => "Lower it to leave a dead path sooner. "
                "Raise it if your network often pauses for longer."},
     #{name => resume_time, type => {time, 0, ?DAY}, default => 0,
       unit => "ms", since => "1.0.0",
       what => "How long a session outlives a lost connection: if the same nodes connect again "
               "in time, nothing is lost. 0: the session ends with the connection. The smaller "
               "value of the two nodes counts.",
       touch => "Set it where connections break and come back, and messages, calls and monitors "
                "should not notice. It costs memory and some throughput, and it changes what "
                "`nodedown` means."},
     #{name => listen_address, type => own_address, default => undefined,
       unit => "", since => "0.2.0",
       what => "The address of this host where peers connect. "
               "`undefined`: where the distribution listens.",
       touch => "Set it on a host with several networks."},
     #{name => listen_ports, type => ports, default => {0, 0},
       unit => "", since => "0.2.0",
       what => "The port where peers connect: the first free one from the lowest to the highest. "
               "`{0, 0}`: the system chooses. If batches and large messages use different "
               "transports, there must be two ports at least.",
       touch => "Set it where a firewall or a network policy must allow the port."},
     #{name => advertise_address, type => address, default => undefined,
       unit => "", since => "1.0.0",
       what => "The address that peers are told to connect to. `undefined`: `listen_address`, or "
               "the address at which the peer has found the distribution.",
       touch => "Set it if peers reach this node at another address than its own: behind an "
                "address translation, a load balancer or a sidecar."},
     #{name => advertise_port, type => port, default => undefined,
       unit => "", since => "1.0.0",
       what => "The port that peers are told to connect to. "
               "`undefined`: the port where this node listens. Otherwise `listen_ports` must be "
               "one port.",
       touch => "Set it if something between the nodes maps the port to another one."},
     #{name => adopt, type => applications, default => [],
       unit => "", since => "1.0.0",
       what => "Applications whose modules are loaded as the parse transform makes them, so that "
               "they send by Trunkline. Trunkline must start before they do.",
       touch => "Set it to let a dependency send by Trunkline, without its source. "
                "Set it alike on all nodes."}].

%% One lane can keep a scheduler busy, and eight can fill a connection.
default_lanes() ->
    max(2, min(8, erlang:system_info(schedulers_online))).

%% --- the check -----------------------------------------------------------------------

%% The options of this node.
-spec load() -> {ok, options()} | {error, bad_option()}.
load() -> check(env()).

%% OTP itself puts included_applications into every environment.
env() -> proplists:delete(included_applications, application:get_all_env(trunkline)).

-spec check([{atom(), term()}]) -> {ok, options()} | {error, bad_option()}.
check(Env) ->
    check(Env, Env, defaults()).

-spec defaults() -> options().
defaults() ->
    maps:from_list([{Name, Default} || #{name := Name, default := Default} <- table()]).

check([{Name, Value} | Rest], Env, Options) ->
    case parse(Name, Value) of
        {ok, Parsed} -> check(Rest, Env, Options#{Name := Parsed});
        error -> {error, {bad_option, Name, Value}}
    end;
check([], Env, Options) ->
    case [Name || Name <- [listen_ports, advertise_port], not fits(Name, Options)] of
        [] -> {ok, with_room(Env, Options)};
        [Name | _] -> {error, {bad_option, Name, proplists:get_value(Name, Env)}}
    end.

%% Adopted code was tuned with +zdbbl, and may send with `nosuspend'. Therefore all lanes to a peer
%% together hold as much as the distribution would (if the peer has as many lanes).
with_room(Env, #{adopt := [_ | _], lanes := Lanes} = Options) ->
    case proplists:is_defined(queue_bytes, Env) of
        true ->
            Options;
        false ->
            Held = erlang:system_info(dist_buf_busy_limit) div Lanes,
            Options#{queue_bytes := min(?MOST_QUEUE_BYTES, max(?QUEUE_BYTES, Held))}
    end;
with_room(_, Options) ->
    Options.

%% Whether the value fits the other options. Two transports need two ports. With advertise_port
%% something maps one port to another, so this node must listen at a known port.
fits(listen_ports, #{listen_ports := {Port, Port}, lane_transport := Lanes, bulk_transport := Bulk})
  when Port > 0 ->
    length(lists:usort([trunkline_transport:choose(T) || T <- [Lanes, Bulk], T =/= dist])) < 2;
fits(advertise_port, #{advertise_port := Port, listen_ports := {Lowest, Highest}})
  when Port =/= undefined ->
    Lowest =:= Highest andalso Lowest > 0;
fits(_, _) ->
    true.

parse(Name, Value) ->
    case entry(Name) of
        #{type := Type} -> value(Type, Value);
        none -> error
    end.

entry(Name) ->
    case [Entry || #{name := N} = Entry <- table(), N =:= Name] of
        [Entry] -> Entry;
        [] -> none
    end.

%% Checks a value, and returns it in the form that Trunkline uses.
value({integer, Least, Most}, Value) -> in_range(Value, Least, Most);
value({Kind, Least, Most}, Value) when Kind =:= size; Kind =:= time ->
    in_range(trunkline_quantity:parse(Kind, Value), Least, Most);
value({transport, Values}, Value) ->
    ok_if(lists:member(Value, Values)
          andalso (not lists:member(Value, [tcp, tls])
                   orelse element(1, trunkline_transport:choose(Value)) =:= ok), Value);
value(congestion_control, Value) ->
    ok_if(is_atom(Value)
          andalso (lists:member(Value, [auto, default]) orelse trunkline_socket:accepts(Value)),
          Value);
value(Type, undefined) when Type =:= own_address; Type =:= address; Type =:= port ->
    {ok, undefined};
value(own_address, Value) ->
    Address = ip_address(Value),
    ok_if(Address =/= error andalso trunkline_socket:is_own(Address), Address);
value(address, Value) ->
    Address = ip_address(Value),
    ok_if(Address =/= error andalso lists:usort(tuple_to_list(Address)) =/= [0], Address);
value(ports, {Lowest, Highest}) ->
    ok_if(is_port_number(Lowest) andalso is_port_number(Highest) andalso Lowest =< Highest
          andalso (Lowest > 0 orelse Highest =:= 0),
          {Lowest, Highest});
value(ports, Port) ->
    ok_if(is_port_number(Port) andalso Port > 0, {Port, Port});
value(port, Port) ->
    ok_if(is_port_number(Port) andalso Port > 0, Port);
value(applications, Names) when length(Names) >= 0 ->
    ok_if(lists:all(fun trunkline_applications:is_name/1, Names), Names);
value(applications, _) ->
    error.

ok_if(true, Value) -> {ok, Value};
ok_if(false, _) -> error.

in_range(Value, Least, Most) ->
    ok_if(is_integer(Value) andalso Value >= Least andalso Value =< Most, Value).

is_port_number(Port) -> is_integer(Port) andalso Port >= 0 andalso Port =< 65535.

%% An address, or a string that is one.
-spec ip_address(term()) -> inet:ip_address() | error.
ip_address(Value) when is_list(Value); is_binary(Value) ->
    try inet:parse_strict_address(unicode:characters_to_list(Value)) of
        {ok, Address} -> Address;
        {error, einval} -> error
    catch
        error:_ -> error             % not a string
    end;
ip_address(Value) ->
    case inet:is_ip_address(Value) of
        true -> Value;
        false -> error
    end.

%% --- in words ----------------------------------------------------------------------------

-spec explain(bad_option()) -> iolist().
explain({bad_option, Name, Value}) ->
    case entry(Name) of
        #{type := Type} ->
            case parse(Name, Value) of
                {ok, _} -> unfit(Name, Value);
                error -> wrong(Name, Value, [type(Type), offered(Type)])
            end;
        none ->
            io_lib:format("there is no option ~tp (with value ~tp); there are ~ts",
                          [Name, Value,
                           lists:join(", ", [atom_to_list(N) || #{name := N} <- table()])])
    end.

%% The value is right in itself, but does not fit another option.
unfit(listen_ports, Value) ->
    io_lib:format("option listen_ports is ~0tp, but batches and large messages use different "
                  "transports: there must be two ports at least", [Value]);
unfit(advertise_port, Value) ->
    io_lib:format("option advertise_port is ~0tp, so listen_ports must be one port, too", [Value]).

%% In words for any option: what it is, and what it must be.
-spec wrong(Name :: atom(), Value :: term(), What :: iolist()) -> iolist().
wrong(Name, Value, What) ->
    io_lib:format("option ~tp is ~0tP, but must be ~ts", [Name, Value, 20, What]).

%% What a value of this type must be, in words.
-spec type(type()) -> iolist().
type({integer, Least, Most}) -> io_lib:format("an integer from ~b to ~b", [Least, Most]);
type({size, Least, Most} = Type) -> ["a size from ", text(Type, Least), " to ", text(Type, Most)];
type({time, Least, Most} = Type) -> ["a time from ", text(Type, Least), " to ", text(Type, Most)];
type({transport, Values}) ->
    ["one of ", lists:join(", ", [atom_to_list(V) || V <- Values]),
     " (tcp only if the distribution does not use TLS, and tls only with the application ssl, "
     "and a certificate in -ssl_dist_optfile or -ssl_dist_opt)"];
type(congestion_control) ->
    "auto, default, or a name that the kernel has loaded and lets this user take";
type(own_address) ->
    "undefined, or an address of this host, as \"10.0.0.3\", \"::1\" or {10,0,0,3}";
type(address) -> "undefined, or an address to connect to, as \"10.0.0.3\", \"::1\" or {10,0,0,3}";
type(ports) ->
    "a port, or a pair {Lowest, Highest} of ports";
type(port) -> "undefined, or a port";
type(applications) ->
    "a list of applications, as [rabbit, {otp, mnesia}] (with otp if they are OTP's), without "
    "those that Trunkline itself needs".

offered(congestion_control) ->
    case trunkline_socket:offered() of
        [] -> "";
        Names -> [": ", lists:join(", ", Names)]
    end;
offered({size, _, _}) -> ", in bytes, or as a string with the unit B, KB, MB or GB";
offered({time, _, _}) -> ", in ms, or as a string with the unit ms, s, min, h or d";
offered(_) -> "".

%% A value as people write it.
-spec text(type(), term()) -> iolist().
text({Kind, _, _}, N) when Kind =:= size; Kind =:= time -> trunkline_quantity:text(Kind, N);
text(_, Value) -> io_lib:format("~0tp", [Value]).

%% --- options in use -----------------------------------------------------------------------

%% Later changes of the environment have no effect before the next start.
-spec use(options()) -> ok.
use(Options) -> persistent_term:put(?MODULE, Options).

%% The options that the application uses or, if it does not run, would use now. A value that it
%% would refuse is returned as it is in the environment.
-spec current() -> #{atom() => term()}.
current() ->
    case whereis(trunkline_sup) of
        undefined ->
            case load() of
                {ok, Options} -> Options;
                {error, _} -> lists:foldl(fun current/2, defaults(), env())
            end;
        _ ->
            persistent_term:get(?MODULE)
    end.

current({Name, Value}, Options) ->
    case parse(Name, Value) of
        {ok, Parsed} -> Options#{Name := Parsed};
        error when is_map_key(Name, Options) -> Options#{Name := Value};
        error -> Options
    end.
