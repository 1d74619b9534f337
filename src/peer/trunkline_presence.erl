%% Finds out whether a node that cannot be connected has ended, or may still be there.
%%
%% The node's host knows. When a node has ended, epmd no longer has a node of that name, or no
%% process listens on its port. If the host does not answer, cannot be reached, or cannot be asked
%% (a cluster may run without epmd, or with a distribution of its own), nothing is known, and only
%% the time limit counts.
%%
%%     link                     a process of its own            the node's host
%%       | -- ask -------------------> | -- the node's port? --------> |
%%       |                             | -- connects to it, or         |
%%       |                             |    asks for all names ------> |
%%       | <- 'DOWN', gone, unknown -- |                               |
%%
%% Each of these questions may take long, so a link does not ask them itself.
-module(trunkline_presence).
-moduledoc false.

-export([ask/1, is_gone/1]).
-export([answer/1]).

%% ms
-define(TIMEOUT, 5000).

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
    case trunkline_dist:protocol() of
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
        {ok, Ip} -> at_address(Epmd, Name, Ip, Family);
        _ -> unknown
    end.

%% erl_epmd says `noport' for a host that cannot be reached, too. Only the list of all names says
%% that epmd has been asked.
at_address(Epmd, Name, Ip, Family) ->
    case port_please(Epmd, Name, Ip) of
        {port, Port, _} ->
            at_port(Ip, Port, Family);
        noport ->
            case erlang:function_exported(Epmd, names, 1) andalso Epmd:names(Ip) of
                {ok, Names} when is_list(Names) ->
                    case lists:keymember(Name, 1, Names) of
                        true -> unknown;
                        false -> gone
                    end;
                _ -> unknown
            end;
        _ ->
            unknown
    end.

port_please(Epmd, Name, Ip) ->
    case erlang:function_exported(Epmd, port_please, 3) of
        true -> Epmd:port_please(Name, Ip, ?TIMEOUT);
        false -> Epmd:port_please(Name, Ip)
    end.

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
