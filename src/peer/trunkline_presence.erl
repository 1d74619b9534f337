%% Finds out whether a node that cannot be connected has ended, or may still be there.
%%
%% The node's host knows: when a node has ended, epmd no longer has a node of that name. Where epmd
%% is not used, no process listens on the node's port. If the host does not answer, cannot be
%% reached, or cannot be asked (a cluster may have a distribution of its own), nothing is known, and
%% only the time limit counts.
%%
%%     link                     a process of its own            the node's host
%%       | -- ask -------------------> | -- the node's port? --------> | epmd, or
%%       |                             | -- connects ----------------> | that port
%%       | <- 'DOWN', gone, unknown -- |                               |
%%
%% epmd is asked here (PORT_PLEASE2_REQ in "Distribution Protocol" of ERTS), because
%% erl_epmd:port_please/2 says `noport' for a host that cannot be reached, too.
%%
%% Each of these questions may take long, so a link does not ask them itself.
-module(trunkline_presence).
-moduledoc false.

-export([ask/1, is_gone/1]).
-export([answer/1]).

%% ms
-define(TIMEOUT, 5000).

-define(EPMD_PORT, 4369).
-define(PORT_PLEASE2_REQ, 122).
-define(PORT2_RESP, 119).

%% The caller gets a 'DOWN' with this reference, from which is_gone/1 takes the answer. `none':
%% there was no process left.
-spec ask(node()) -> reference() | none.
ask(Node) ->
    case trunkline_process:start(fun() -> spawn_monitor(?MODULE, answer, [Node]) end) of
        {ok, {_, Ref}} -> Ref;
        {error, system_limit} -> none
    end.

-spec is_gone(Reason :: term()) -> boolean().
is_gone({shutdown, Presence}) -> Presence =:= gone;
is_gone(_) -> false.

-spec answer(node()) -> no_return().
answer(Node) ->
    [Name, Host] = string:split(atom_to_list(Node), "@"),
    exit({shutdown, case family() of
                        unknown -> unknown;
                        Family -> at_host(Name, Host, Family)
                    end}).

%% The address family that the distribution uses.
family() ->
    case trunkline_socket:protocol() of
        "inet_" ++ Protocol when Protocol =:= "tcp"; Protocol =:= "tls" -> inet;
        "inet6_" ++ Protocol when Protocol =:= "tcp"; Protocol =:= "tls" -> inet6;
        _ -> unknown
    end.

at_host(Name, Host, Family) ->
    Epmd = net_kernel:epmd_module(),
    Address = case erlang:function_exported(Epmd, address_please, 3) of
                  true -> Epmd:address_please(Name, Host, Family);
                  false -> inet:getaddr(Host, Family)
              end,
    case Address of
        {ok, Ip, Port, _} -> at_port(Ip, Port, Family);
        {ok, Ip} ->
            case Epmd =:= erl_epmd andalso init:get_argument(erl_epmd_port) of
                error -> at_epmd(Ip, unicode:characters_to_binary(Name), Family);
                _ -> registered(Epmd:port_please(Name, Ip), Ip, Family)
            end;
        _ ->
            unknown
    end.

%% If epmd has a node of that name, the node may be there.
at_epmd(Ip, Name, Family) ->
    case gen_tcp:connect(Ip, epmd_port(), [Family, binary, {active, false}], ?TIMEOUT) of
        {ok, Socket} ->
            Size = byte_size(Name) + 1,
            Answer = case gen_tcp:send(Socket, <<Size:16, ?PORT_PLEASE2_REQ, Name/binary>>) of
                         ok -> gen_tcp:recv(Socket, 2, ?TIMEOUT);
                         {error, _} = Error -> Error
                     end,
            ok = gen_tcp:close(Socket),
            case Answer of
                {ok, <<?PORT2_RESP, Result>>} when Result > 0 -> gone;
                _ -> unknown
            end;
        {error, _} ->
            unknown
    end.

epmd_port() ->
    case init:get_argument(epmd_port) of
        {ok, [[Port | _] | _]} -> list_to_integer(Port);
        error -> ?EPMD_PORT
    end.

%% Without epmd.
registered({port, Port, _}, Ip, Family) -> at_port(Ip, Port, Family);
registered(noport, _, _) -> gone;
registered(_, _, _) -> unknown.

%% To the node this looks like a client that does not speak its protocol.
at_port(Ip, Port, Family) ->
    case gen_tcp:connect(Ip, Port, [Family], ?TIMEOUT) of
        {ok, Socket} ->
            ok = gen_tcp:close(Socket),
            unknown;
        {error, econnrefused} ->
            gone;
        {error, _} ->
            unknown
    end.
