%% The settings of Trunkline's own sockets, and why. The first one, buffer, is also set on the
%% sockets of the distribution. These get others, too: see tune_distribution/1.
%%
%%   * buffer: the most bytes that one read takes; OTP's default is 1,460. After each read the port
%%     waits for its turn on a scheduler. A node that was busy sending read 0.3 MB a second.
%%     (A binary of 48 to 64 kB that came alone keeps a buffer of 64 kB.)
%%   * nodelay: batches are made earlier; a message does not wait for others here.
%%   * No sndbuf and no recbuf: the kernel finds better sizes by itself, and stops
%%     tuning when one is set.
%%   * At most UNSENT unsent bytes in the socket of a connection for batches: what
%%     waits there has to wait for this connection, what waits in front of it can
%%     take the first that is free. What is in flight is not limited by this.
%%   * keepalive and a user timeout: a dead path is noticed after connection_timeout,
%%     and not after the kernel's quarter of an hour.
%%   * Congestion control. The loss-based algorithms (cubic, reno) take a packet that
%%     is lost by accident for a full queue: at 10 ms and 1 % they carry 2 MB a second
%%     at most. BBR does not. It is set where it matters, to far peers. If the kernel
%%     does not have it, or does not allow it, the kernel's own stays.
%%
%% All but buffer, nodelay and keepalive are Linux's. What a kernel does not know is left out.
-module(trunkline_socket).
-moduledoc false.

-export([connect_options/0, listen_options/0, tune/2, congestion_control/1, sample/1]).
-export([protocol/0, distribution_address/0, distribution/1, tune_distribution/1, gather/2,
         moved/1, round_trip/1]).
-export([accepts/1, offered/0, is_own/1]).

-type settings() :: #{timeout := pos_integer(),               % ms
                      cargo => batches | large,               % on the sending side
                      congestion_control => atom()}.

-define(BUFFER, 65536).
%% Bytes that a port of the distribution may keep.
-define(HIGH, 131072).
-define(UNSENT, 131072).

-define(TCP, 6).
-define(TCP_KEEPIDLE, 4).
-define(TCP_KEEPINTVL, 5).
-define(TCP_KEEPCNT, 6).
-define(TCP_INFO, 11).
-define(TCP_CONGESTION, 13).
-define(TCP_USER_TIMEOUT, 18).
-define(TCP_NOTSENT_LOWAT, 25).
-define(NAME_MAX, 16).

-spec connect_options() -> [gen_tcp:connect_option()].
connect_options() ->
    [binary, {active, false}, {packet, raw}, {buffer, ?BUFFER}, {nodelay, true}, {keepalive, true}].

-spec listen_options() -> [gen_tcp:listen_option()].
listen_options() -> [{reuseaddr, true} | connect_options()].

%% To be called when the socket is connected: a route's own congestion control
%% overrides what was set before.
-spec tune(gen_tcp:socket(), settings()) -> ok.
tune(Socket, Settings) ->
    case os:type() of
        {unix, linux} ->
            lists:foreach(fun(Option) -> inet:setopts(Socket, [Option]) end, linux(Settings));
        _ ->
            ok
    end.

linux(#{timeout := Timeout} = Settings) ->
    %% Three probes in the second half of the time.
    Seconds = fun(Ms) -> max(1, Ms div 1000) end,
    [number(?TCP_KEEPIDLE, Seconds(Timeout div 2)), number(?TCP_KEEPINTVL, Seconds(Timeout div 6)),
     number(?TCP_KEEPCNT, 3), number(?TCP_USER_TIMEOUT, Timeout)]
        ++ [number(?TCP_NOTSENT_LOWAT, ?UNSENT) || #{cargo := batches} <- [Settings]]
        ++ [{raw, ?TCP, ?TCP_CONGESTION, atom_to_binary(Name)}
            || #{congestion_control := Name} <- [Settings]].

number(Option, Value) -> {raw, ?TCP, Option, <<Value:32/native>>}.

%% The congestion control in use, if the system tells.
-spec congestion_control(gen_tcp:socket()) -> binary().
congestion_control(Socket) ->
    case os:type() of
        {unix, linux} ->
            case inet:getopts(Socket, [{raw, ?TCP, ?TCP_CONGESTION, ?NAME_MAX}]) of
                {ok, [{raw, _, _, Name}]} -> hd(binary:split(Name, <<0>>));
                _ -> <<>>
            end;
        _ ->
            <<>>
    end.

%% Where the distribution listens.
-spec distribution_address() -> inet:ip_address() | any.
distribution_address() ->
    Options = application:get_env(kernel, inet_dist_listen_options, []),
    IsIpv6 = lists:prefix("inet6", protocol()),
    case application:get_env(kernel, inet_dist_use_interface,
                             proplists:get_value(ip, Options,
                                                 proplists:get_value(ifaddr, Options))) of
        loopback when IsIpv6 -> {0, 0, 0, 0, 0, 0, 0, 1};
        loopback -> {127, 0, 0, 1};
        Address when tuple_size(Address) =:= 4; tuple_size(Address) =:= 8 -> Address;
        _ -> any
    end.

%% The protocol of the distribution, as `-proto_dist' names it.
-spec protocol() -> string().
protocol() ->
    case init:get_argument(proto_dist) of
        {ok, Protocols} -> lists:last(lists:last(Protocols));
        error -> "inet_tcp"
    end.

%% The socket of the distribution's connection to a node. With TLS the controller is a process, and
%% the socket belongs to another process under the same supervisor. (Both are linked to it. The
%% controller is also linked to net_kernel, which has the socket that listens.)
-spec distribution(node()) -> port() | none.
distribution(Node) ->
    case trunkline_process:controller(Node) of
        Pid when is_pid(Pid) ->
            Near = processes(Pid),
            Processes = lists:append([Near | [processes(P) || P <- Near]]),
            hd([Port || P <- lists:usort(Processes), Port <- links(P), is_port(Port)] ++ [none]);
        PortOrNone ->
            PortOrNone
    end.

processes(Pid) -> [P || P <- links(Pid), is_pid(P), P =/= whereis(net_kernel)].

links(Pid) ->
    case process_info(Pid, links) of
        {links, Links} -> Links;
        undefined -> []
    end.

%% From here on the distribution's connection to a node
%%
%%   * reads more at a time (buffer, as above);
%%   * gathers what is sent while the port waits for its turn (delay_send): with it few messages
%%     take no longer, and many take up to half of the time;
%%   * has room in the port for more than two messages of 4 kB (the watermarks). What finds none
%%     waits in a queue before the port: messages of several senders cost more then, and when the
%%     node disconnects, it discards that queue, and sends what is in the port.
%%
%% What inet_dist_connect_options or inet_dist_listen_options say counts: larger sizes, and whatever
%% is said of delay_send. Another process does it, because with TLS processes of ssl have to answer.
-spec tune_distribution(node()) -> ok.
tune_distribution(Node) ->
    _ = trunkline_process:start(fun() -> spawn(fun() -> tune_socket(distribution(Node)) end) end),
    ok.

tune_socket(none) ->
    ok;
tune_socket(Port) ->
    Least = [{buffer, ?BUFFER}, {high_watermark, ?HIGH}, {low_watermark, ?HIGH div 2}],
    Larger = [Option || {Name, Bytes} = Option <- Least,
                        {ok, [{_, Is}]} <- [inet:getopts(Port, [Name])], Is < Bytes],
    _ = inet:setopts(Port, Larger),
    set_gather(Port, true).

%% Whether the distribution's connection to a node gathers what is sent, unless the options say it.
-spec gather(node(), boolean()) -> ok.
gather(Node, Gathers) -> set_gather(distribution(Node), Gathers).

set_gather(none, _) ->
    ok;
set_gather(Port, Gathers) ->
    _ = is_chosen(delay_send) orelse inet:setopts(Port, [{delay_send, Gathers}]),
    ok.

is_chosen(Option) ->
    lists:any(fun(Name) ->
                      Options = application:get_env(kernel, Name, []),
                      is_list(Options) andalso proplists:is_defined(Option, Options)
              end, [inet_dist_connect_options, inet_dist_listen_options]).

%% A number that grows while bytes come from a node by the distribution's connection, or many leave
%% for it: bytes, and 64 kB. (Few always leave: the link's own pings.)
-spec moved(node()) -> non_neg_integer() | unknown.
moved(Node) ->
    case distribution(Node) of
        none ->
            unknown;
        Port ->
            case inet:getstat(Port, [recv_oct, send_oct, send_pend]) of
                {ok, [{recv_oct, Received}, {send_oct, Sent}, {send_pend, Waiting}]} ->
                    Received + ((Sent - Waiting) bsr 16);
                {error, _} ->
                    unknown
            end
    end.

%% The shortest round trip of a socket, or of the distribution's connection to a node, that the
%% kernel has seen, in us (Linux 4.6 and newer; of the last five minutes). `infinity': the kernel
%% does not tell.
-spec round_trip(gen_tcp:socket() | node()) -> pos_integer() | infinity.
round_trip(Of) ->
    Option = {raw, ?TCP, ?TCP_INFO, 152},
    Answer = case os:type() of
                 {unix, linux} when is_atom(Of) -> net_kernel:getopts(Of, [Option]);
                 {unix, linux} -> inet:getopts(Of, [Option]);
                 _ -> unknown
             end,
    case Answer of
        {ok, [{raw, _, _, <<_:148/binary, Time:32/native>>}]} when Time < 16#ffffffff ->
            max(1, Time);
        _ ->
            infinity
    end.

%% Whether our sockets can have that congestion control. Only the kernel knows: its module
%% of that name must be loaded (if root asks, that loads it), and the system may reserve it
%% for root.
-spec accepts(atom()) -> boolean().
accepts(Name) ->
    os:type() =:= {unix, linux} andalso
        case gen_tcp:listen(0, [{ip, loopback}]) of
            {ok, Socket} ->
                ok = inet:setopts(Socket, [{raw, ?TCP, ?TCP_CONGESTION, atom_to_binary(Name)}]),
                %% The kernel refuses silently.
                Answer = congestion_control(Socket) =:= atom_to_binary(Name),
                ok = gen_tcp:close(Socket),
                Answer;
            {error, _} ->
                true               % it cannot be asked now
        end.

%% The names that the kernel has now, for people to read.
-spec offered() -> [binary()].
offered() ->
    case file:read_file("/proc/sys/net/ipv4/tcp_available_congestion_control") of
        {ok, Names} -> binary:split(Names, [<<" ">>, <<"\n">>], [global, trim_all]);
        {error, _} -> []
    end.

%% Whether this host lets a process listen at that address.
-spec is_own(inet:ip_address()) -> boolean().
is_own(Address) ->
    case gen_tcp:listen(0, [{ip, Address} | [inet6 || tuple_size(Address) =:= 8]]) of
        {ok, Socket} -> gen_tcp:close(Socket) =:= ok;
        {error, Reason} -> not lists:member(Reason, [eaddrnotavail, eafnosupport, einval])
    end.

%% The state of the distribution's connection to a node, if it is plain TCP and the system tells
%% (Linux 4.10 and newer; struct tcp_info in linux/tcp.h).
-spec sample(node()) ->
          #{retransmitted := non_neg_integer(), limited := non_neg_integer(),
            receiver_limited := non_neg_integer(), unacked_bytes := non_neg_integer()}
        | unknown.
sample(Node) ->
    case {os:type(), trunkline_process:controller(Node)} of
        {{unix, linux}, Port} when is_port(Port) ->
            case inet:getopts(Port, [{raw, ?TCP, ?TCP_INFO, 192}]) of
                {ok, [{raw, _, _, <<_:16/binary, Mss:32/native, _:32, Unacked:32/native,
                                    _:72/binary, Retransmitted:32/native, _:72/binary,
                                    Receiver:64/native, Sender:64/native>>}]} ->
                    #{retransmitted => Retransmitted, limited => Sender,
                      receiver_limited => Receiver, unacked_bytes => Unacked * Mss};
                _ ->
                    unknown
            end;
        _ ->
            unknown
    end.
