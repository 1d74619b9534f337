%% What can be configured, from the application environment.
%%
%% A value that makes no sense stops the application's start with
%% `{error, {bad_option, Key, Value}}' and a sentence that says what would have
%% made sense. Both ends of a link may have different settings: see
%% trunkline_handshake for which of the two counts.
-module(trunkline_options).

-export([load/0, check/1, defaults/0, explain/1]).

-export_type([options/0]).

-type options() ::
        #{lanes := 1..64,                  % lanes to each peer
          queue_bytes := pos_integer(),    % bytes waiting in one lane
          window_bytes := pos_integer(),   % bytes under way in one lane
          batch_bytes := pos_integer(),    % bytes in one batch
          large_bytes := pos_integer(),    % from this size on a message is large
          bulk_bytes := pos_integer(),     % bytes of large messages waiting and under way
          bulk_connections := pos_integer(),   % for large messages to each peer
          far_connections := pos_integer(),    % the same, and for batches, to a peer that is far
          bulk_idle := pos_integer(),      % ms until one that has nothing to do is closed
          bulk_transport := auto | tcp | tls | dist,
          lane_transport := auto | dist | tcp | tls,
          congestion_control := auto | default | atom(),
          connection_timeout := pos_integer(),     % ms until a dead path is noticed
          listen_address := undefined | inet:ip_address(),
          listen_ports := {inet:port_number(), inet:port_number()}}.

-type bad_option() :: {bad_option, Key :: atom(), Value :: term()}.
-type range() :: {integer, Least :: integer(), Most :: integer()}
               | {transport, [atom()]} | congestion_control
               | address | ports.

%% {Key, Default, Range, What}
-spec all() -> [{atom(), term(), range(), string()}].
all() ->
    [{lanes, default_lanes(), {integer, 1, 64}, "lanes to each peer"},
     {queue_bytes, 1 bsl 18, {integer, 1 bsl 10, 1 bsl 29}, "bytes waiting in one lane"},
     {window_bytes, 64 bsl 20, {integer, 1 bsl 10, 1 bsl 29}, "bytes under way in one lane, at most"},
     {batch_bytes, 64 bsl 10, {integer, 1 bsl 8, 1 bsl 26}, "bytes in one batch"},
     {large_bytes, 64 bsl 10, {integer, 1 bsl 10, 1 bsl 29}, "bytes from which on a message is large"},
     {bulk_bytes, 64 bsl 20, {integer, 1 bsl 10, 1 bsl 33}, "bytes of large messages waiting and under way"},
     {bulk_connections, 1, {integer, 1, 64}, "connections for large messages to each peer"},
     {far_connections, 16, {integer, 1, 64}, "connections for large messages, and for batches, to each peer that is far"},
     {bulk_idle, 60_000, {integer, 1, 86_400_000}, "ms until a connection that has nothing to do is closed"},
     {bulk_transport, auto, {transport, [auto, tcp, tls, dist]}, "how large messages travel"},
     {lane_transport, auto, {transport, [auto, dist, tcp, tls]}, "how batches travel"},
     {congestion_control, auto, congestion_control, "of connections to peers that are far"},
     {connection_timeout, 10_000, {integer, 1000, 86_400_000}, "ms until a connection whose path is dead is given up"},
     {listen_address, undefined, address, "where peers connect"},
     {listen_ports, {0, 0}, ports, "lowest and highest port where peers connect"}].

%% The options of this node.
-spec load() -> {ok, options()} | {error, bad_option()}.
load() ->
    %% OTP itself puts included_applications into every environment.
    check(proplists:delete(included_applications, application:get_all_env(trunkline))).

-spec check([{atom(), term()}]) -> {ok, options()} | {error, bad_option()}.
check(Env) ->
    check(Env, defaults()).

-spec defaults() -> options().
defaults() ->
    maps:from_list([{Key, Default} || {Key, Default, _, _} <- all()]).

%% One lane can keep a scheduler busy, and eight can fill a connection.
default_lanes() ->
    max(2, min(8, erlang:system_info(schedulers_online))).

check([], Options) ->
    {ok, Options};
check([{Key, Value} | Env], Options) ->
    case lists:keyfind(Key, 1, all()) of
        {_, _, Range, _} ->
            case is_in(Range, Value) of
                true -> check(Env, Options#{Key := Value});
                false -> {error, {bad_option, Key, Value}}
            end;
        false ->
            {error, {bad_option, Key, Value}}
    end.

is_in({integer, Least, Most}, Value) -> is_integer(Value) andalso Value >= Least andalso Value =< Most;
is_in({transport, Values}, Value) ->
    lists:member(Value, Values)
        andalso (not lists:member(Value, [tcp, tls]) orelse element(1, trunkline_transport:choose(Value)) =:= ok);
is_in(congestion_control, Value) ->
    is_atom(Value) andalso (lists:member(Value, [auto, default]) orelse trunkline_socket:accepts(Value));
is_in(address, undefined) -> true;
is_in(address, Value) -> inet:is_ip_address(Value) andalso trunkline_socket:is_own(Value);
is_in(ports, {Lowest, Highest}) -> is_port_number(Lowest) andalso is_port_number(Highest) andalso Lowest =< Highest;
is_in(ports, _) -> false.

is_port_number(Port) -> is_integer(Port) andalso Port >= 0 andalso Port =< 65535.

%% The same in words.
-spec explain(bad_option()) -> iolist().
explain({bad_option, Key, Value}) ->
    case lists:keyfind(Key, 1, all()) of
        {_, _, Range, What} ->
            io_lib:format("trunkline: option ~ts (~ts) must be ~ts, and is ~0tp", [Key, What, in_words(Range), Value]);
        false ->
            io_lib:format("trunkline: there is no option ~tp (with value ~tp); there are ~ts",
                          [Key, Value, lists:join(", ", [atom_to_list(K) || {K, _, _, _} <- all()])])
    end.

in_words({integer, Least, Most}) -> io_lib:format("an integer from ~b to ~b", [Least, Most]);
in_words({transport, Values}) ->
    ["one of ", lists:join(", ", [atom_to_list(V) || V <- Values]),
     " (tcp only if the distribution does not use TLS; tls only with a certificate in -ssl_dist_optfile or -ssl_dist_opt)"];
in_words(congestion_control) ->
    ["auto (bbr where the kernel allows it), default, or one that the kernel has loaded and lets this user take",
     case trunkline_socket:offered() of
         [] -> "";
         Names -> [": ", lists:join(", ", Names)]
     end];
in_words(address) -> "undefined, or an address of this host, as {127,0,0,1}";
in_words(ports) -> "a pair {Lowest, Highest} of port numbers".
