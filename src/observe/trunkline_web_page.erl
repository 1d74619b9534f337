%% Answers the requests to OTP's web server (httpd): for the page, its figures and the metrics, and
%% nothing else.
%%
%%     GET /             priv/trunkline.html, which has its style and its script in it
%%     GET /samples      the views that are kept, as JSON; ?since=N those after number N
%%     GET /metrics      for Prometheus
%%
%% No request reads any other file or changes anything.
%%
%% An answer is not copied: it consists of the binaries that trunkline_web_server keeps. A client
%% that has not read it after SEND_TIME is disconnected. So slow clients occupy neither memory nor
%% connections, the number of which is bounded.
%%
%% Without a password only requests whose Host header names this host are answered. That prevents
%% DNS rebinding: a page from elsewhere, whose host name was made to resolve to this host, sends its
%% own name.
-module(trunkline_web_page).
-moduledoc false.

-export([do/1]).

%% The first fields of the record that httpd passes to its modules, as in its manual (httpd, "Web
%% server API data types"). The header file of inets is not included, so that Trunkline also
%% compiles where inets is not installed.
-record(mod,
        {init_data :: term(), data :: term(), socket_type :: term(), socket :: term(),
         config_db :: ets:tid(), method :: string(), absolute_uri :: string(),
         request_uri :: string(), http_version :: string(), request_line :: string(),
         parsed_header :: [{string(), string()}]}).

%% ms, for a whole answer.
-define(SEND_TIME, 30_000).

-spec do(tuple()) -> {proceed, [{response, {response, [{term(), term()}], term()}}]}.
do(Mod) ->
    [Socket, Method, Uri, Header, Config] =
        [element(Field, Mod) || Field <- [#mod.socket, #mod.method, #mod.request_uri,
                                          #mod.parsed_header, #mod.config_db]],
    _ = inet:setopts(Socket, [{send_timeout, ?SEND_TIME}, {send_timeout_close, true}]),
    {Code, More, Body} = case is_allowed(httpd_util:lookup(Config, trunkline_allow), Header) of
                             true -> answer(Method, string:split(Uri, "?"));
                             Refused -> Refused
                         end,
    Head = [{code, Code}, {content_length, integer_to_list(iolist_size(Body))},
            {cache_control, "no-store"}, {"X-Content-Type-Options", "nosniff"},
            {"Referrer-Policy", "no-referrer"}, {"X-Frame-Options", "DENY"},
            {"Content-Security-Policy",
             "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
             "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'"}
            | More],
    {proceed, [{response, {response, Head, case Method of
                                               "HEAD" -> nobody;
                                               _ -> {fun send/2, [Socket, Body]}
                                           end}}]}.

%% The socket takes the whole body at once. The empty packet behind it waits until nearly all of the
%% body has been read.
send(Socket, Body) ->
    case gen_tcp:send(Socket, Body) =:= ok andalso gen_tcp:send(Socket, <<>>) of
        ok -> sent;
        _ -> close
    end.

%% --- access ----------------------------------------------------------------------------

is_allowed(this_host, Header) ->
    case is_this_host(proplists:get_value("host", Header, "")) of
        true -> true;
        false -> text(403, "This page is for the host that it runs on.\n")
    end;
is_allowed(Allow, Header) ->
    case Allow(proplists:get_value("authorization", Header, "")) of
        true -> true;
        false ->
            text(401, "The user is trunkline, with the password of trunkline_web:start/1.\n",
                 [{"WWW-Authenticate", "Basic realm=\"Trunkline\", charset=\"UTF-8\""}])
    end.

is_this_host(Host) ->
    {match, [Name]} = re:run(Host, "^(\\[[^]]*\\]|[^:]*)", [{capture, [1], list}]),
    string:lowercase(Name) =:= "localhost"
        orelse lists:prefix("127.", Name) andalso is_address(Name)
        orelse Name =:= "[::1]".

is_address(Name) -> element(1, inet:parse_ipv4strict_address(Name)) =:= ok.

%% --- answers ---------------------------------------------------------------------------

answer(Method, _) when Method =/= "GET", Method =/= "HEAD" ->
    text(405, "Only GET and HEAD.\n", [{allow, "GET, HEAD"}]);
answer(_, ["/" | _]) ->
    case file:read_file(trunkline_web_server:page()) of
        {ok, Page} -> {200, [{content_type, "text/html; charset=utf-8"}], Page};
        {error, _} -> text(500, "The file priv/trunkline.html is missing in this release.\n")
    end;
answer(_, ["/samples"]) ->
    samples(0);
answer(_, ["/samples", "since=" ++ Number]) ->
    case string:to_integer(Number) of
        {N, ""} when is_integer(N), N >= 0 -> samples(N);
        _ -> text(400, "since is the number of a sample.\n")
    end;
answer(_, ["/samples", _]) ->
    text(400, "/samples?since=N\n");
answer(_, ["/metrics" | _]) ->
    {200, [{content_type, "text/plain; version=0.0.4; charset=utf-8"}],
     trunkline_metrics:prometheus()};
answer(_, _) ->
    text(404, "There are /, /samples and /metrics.\n").

samples(N) ->
    case trunkline_web_server:since(N) of
        {ok, JSON} -> {200, [{content_type, "application/json"}], JSON};
        {error, busy} -> text(503, "Try again.\n")
    end.

text(Code, Text) -> text(Code, Text, []).

text(Code, Text, More) -> {Code, More ++ [{content_type, "text/plain; charset=utf-8"}], Text}.
