%% Certificates that the tests make for themselves.
-module(certificates).

-include_lib("public_key/include/public_key.hrl").

-export([make/2, dist_arguments/0]).

%% An authority, and a certificate of its for this machine, as files.
make(Dir, Name) ->
    Options = [{digest, sha256}, {key, {namedCurve, secp256r1}}],
    {ok, Host} = inet:gethostname(),
    Names = #'Extension'{extnID = ?'id-ce-subjectAltName', critical = false,
                         extnValue = [{dNSName, Host}, {dNSName, net_adm:localhost()}]},
    Root = public_key:pkix_test_root_cert(Name, Options),
    Chain = #{root => Root, intermediates => [], peer => [{extensions, [Names]} | Options]},
    #{server_config := Server} =
        public_key:pkix_test_data(#{server_chain => Chain, client_chain => Chain}),
    {KeyType, Key} = proplists:get_value(key, Server),
    #{cert => pem(Dir, Name ++ ".cert.pem",
                  [{'Certificate', proplists:get_value(cert, Server), not_encrypted}]),
      key => pem(Dir, Name ++ ".key.pem", [{KeyType, Key, not_encrypted}]),
      ca => pem(Dir, Name ++ ".ca.pem",
                [{'Certificate', C, not_encrypted} || C <- proplists:get_value(cacerts, Server)])}.

pem(Dir, Name, Entries) ->
    File = filename:join(Dir, Name),
    ok = file:write_file(File, public_key:pem_encode(Entries)),
    File.

%% The arguments of an emulator whose lanes can use TLS, over a plain distribution.
%% The files lie beside the tests' code, and are made once.
dist_arguments() ->
    Dir = filename:join(filename:dirname(code:which(?MODULE)), "certificates"),
    File = filename:join(Dir, "options"),
    filelib:is_regular(File) orelse
        begin
            ok = filelib:ensure_dir(File),
            #{cert := Cert, key := Key, ca := Ca} = make(Dir, "run"),
            Options = [{certfile, Cert}, {keyfile, Key}, {cacertfile, Ca}, {verify, verify_peer}],
            ok = file:write_file(File,
                                 io_lib:format("~p.~n",
                                               [[{server, [{fail_if_no_peer_cert, true} | Options]},
                                                {client, Options}]]))
        end,
    ["-ssl_dist_optfile", File].
