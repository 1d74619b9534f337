%% TLS, with the settings of the distribution: those of
%% `-ssl_dist_optfile' and `-ssl_dist_opt', which say whom a node trusts. There
%% are no other settings.
-module(trunkline_tls).
-moduledoc false.

-export([is_cluster_private/0, usable/0, prepare/0]).
-export([secure/3, close/1]).

%% Whether the distribution of this node runs over TLS.
-spec is_cluster_private() -> boolean().
is_cluster_private() ->
    lists:member(trunkline_socket:protocol(), ["inet_tls", "inet6_tls"]).

%% Whether a connection can be made with the settings.
-spec usable() -> ok | {error, no_settings | no_ssl | no_certificate
                              | verify_fun_of_the_distribution | {bad_settings, term()}}.
usable() ->
    try {settings(server), settings(client)} of
        {[], _} ->
            {error, no_settings};
        {Server, Client} ->
            Own = [F || {verify_fun, {F, _}} <- Server ++ Client,
                        erlang:fun_info(F, module) =:= {module, inet_tls_dist}],
            case [K || K <- [cert, certfile, certs_keys], proplists:is_defined(K, Server)] of
                _ when Own =/= [] -> {error, verify_fun_of_the_distribution};   % works only there
                [] -> {error, no_certificate};
                _ ->
                    case is_ssl_there() of
                        true -> ok;
                        false -> {error, no_ssl}
                    end
            end
    catch
        _:Reason -> {error, {bad_settings, Reason}}
    end.

%% The distribution does not need the application ssl to run, but connections do. A peer may want
%% TLS, whatever this node's own choice. A node that cannot be connected to may still connect.
-spec prepare() -> ok | {error, {ssl, term()}}.
prepare() ->
    case (is_cluster_private() orelse usable() =/= {error, no_settings}) andalso is_ssl_there() of
        true -> start_ssl();
        false -> ok
    end.

%% A release may leave out ssl.
is_ssl_there() -> code:where_is_file("ssl.app") =/= non_existing.

start_ssl() ->
    case application:ensure_all_started(ssl) of
        {ok, _} -> ok;
        {error, Reason} -> {error, {ssl, Reason}}
    end.

-spec secure({client, string()} | server, gen_tcp:socket(), timeout()) ->
          {ok, ssl:sslsocket()} | {error, term()}.
secure({client, Host}, Socket, Timeout) ->
    %% The name that the distribution checks.
    Settings = settings(client),
    Name = [{server_name_indication, Host}
            || not proplists:is_defined(server_name_indication, Settings)],
    %% A node without settings does not expect a peer to want TLS.
    case whereis(ssl_sup) =/= undefined orelse start_ssl() of
        Running when Running =:= true; Running =:= ok ->
            upgrade(fun() ->
                            ssl:connect(Socket, [{active, false} | Name ++ Settings], Timeout)
                    end);
        {error, _} = Error ->
            Error
    end;
secure(server, Socket, Timeout) ->
    %% Without this any client of the port could write into the log.
    Options = [{active, false}, {log_level, none} | settings(server)],
    upgrade(fun() -> ssl:handshake(Socket, Options, Timeout) end).

%% ssl reads the socket's options, and crashes if the socket has been closed meanwhile. If no
%% process is left, ssl returns what its supervisor says of that, against its specs, in a form that
%% depends on the release of OTP.
-dialyzer({no_match, upgrade/1}).
upgrade(Secure) ->
    try Secure() of
        {ok, _} = Ok -> Ok;
        {error, _} = Error -> Error;
        Other -> {error, Other}
    catch
        error:{badmatch, {error, _} = Error} -> Error
    end.

%% ssl:close/1 waits for the other side, from OTP 27 on for 5 s, and the process that closes a
%% connection has others to look after.
-spec close(ssl:sslsocket()) -> ok.
close(Socket) ->
    Close = fun() -> _ = ssl:close(Socket), ok end,
    case trunkline_process:start(fun() -> spawn(Close) end) of
        {ok, _} -> ok;
        {error, system_limit} -> Close()
    end.

%% --- settings -----------------------------------------------------------------

%% If the distribution uses TLS it has read the options file, into a table of its own. Otherwise the
%% file is read here. The distribution of OTP 25 ignores arguments beside a file; later releases do
%% not, as long as the file does not say otherwise.
settings(Side) ->
    Arguments = case init:get_argument(ssl_dist_opt) of
                    {ok, Lists} -> arguments(atom_to_list(Side) ++ "_", lists:append(Lists));
                    error -> []
                end,
    case from_file(Side) of
        [] -> complete(Arguments);
        Options -> complete([O || O <- Arguments, release() > 25] ++ Options)
    end.

complete([]) ->
    [];
complete(Options) ->
    %% ktls works only below the distribution.
    Kept = [O || O <- Options, element(1, O) =/= ktls],
    [{versions, versions()} || not proplists:is_defined(versions, Kept)] ++ Kept.

%% The versions that the distribution uses by default (inet_tls_dist of OTP 25, 27 and 29).
versions() ->
    case release() >= 29 of
        true -> ['tlsv1.3', 'tlsv1.2'];
        false -> ['tlsv1.2']
    end.

release() -> list_to_integer(erlang:system_info(otp_release)).

from_file(Side) ->
    case ets:whereis(ssl_dist_opts) of
        undefined ->
            case init:get_argument(ssl_dist_optfile) of
                {ok, Files} ->
                    File = lists:last(lists:last(Files)),
                    proplists:get_value(Side, ssl_dist_sup:consult(File), []);
                error ->
                    []
            end;
        Table ->
            case ets:lookup(Table, Side) of
                [{Side, Options}] -> Options;
                [] -> []
            end
    end.

%% `-ssl_dist_opt server_certfile "cert.pem" client_verify verify_peer ...'
arguments(Side, [Name, Value | Rest]) ->
    case string:prefix(Name, Side) of
        nomatch -> arguments(Side, Rest);
        Option -> [argument(Option, Value) | arguments(Side, Rest)]
    end;
arguments(_, []) ->
    [].

argument("verify_fun", Value) ->
    {Module, Function, State} = term(Value),
    {verify_fun, {fun Module:Function/3, State}};
argument("versions", Value) -> {versions, [list_to_existing_atom(Value)]};
argument("ciphers", Value) -> {ciphers, Value};
argument("crl_cache", Value) -> {crl_cache, term(Value)};
argument(Option, Value) when Option =:= "depth"; Option =:= "hibernate_after" ->
    {list_to_existing_atom(Option), list_to_integer(Value)};
argument(Option, Value) when Option =:= "verify"; Option =:= "crl_check";
                             Option =:= "reuse_sessions"; Option =:= "secure_renegotiate";
                             Option =:= "fail_if_no_peer_cert"; Option =:= "ktls" ->
    {list_to_atom(Option), list_to_atom(Value)};
argument(Option, Value) when Option =:= "certfile"; Option =:= "cacertfile"; Option =:= "keyfile";
                             Option =:= "password"; Option =:= "dhfile" ->
    {list_to_atom(Option), Value}.

term(String) ->
    {ok, Tokens, _} = erl_scan:string(String ++ "."),
    {ok, Term} = erl_parse:parse_term(Tokens),
    Term.
