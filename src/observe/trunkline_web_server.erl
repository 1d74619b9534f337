%% The process behind trunkline_web: it looks at the node every two seconds, keeps what it has seen
%% for ten minutes, and owns OTP's web server, whose requests trunkline_web_page answers.
%%
%%     trunkline_sample ── view, as JSON ──> this process <── since/1 ── trunkline_web_page
%%                                                │                            │
%%                                                └──── starts, is linked ── httpd <── browser
%%
%% When Trunkline restarts, so does this process. It tries every second to listen, so the page is
%% back as soon as the port is free. It keeps at most KEPT views, each of at most PEERS peers and
%% INBOXES inboxes: the busiest ones.
-module(trunkline_web_server).
-moduledoc false.
-behaviour(gen_server).

-export([start/1, stop/0, options/1, since/1, page/0]).
-export([start_link/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-define(PORT, 9669).
-define(INTERVAL, 2000).           % ms between two looks
-define(KEPT, 300).
-define(PEERS, 100).
-define(INBOXES, 50).
%% How many times busier a row must be than one that was shown before, to take its place.
-define(STAYS, 10).
-define(AGAIN, 1000).
-define(CLIENTS, 20).
-define(SHORTEST, 8).              % password

-type checked() :: #{address := inet:ip_address(), port := inet:port_number(),
                     allow := trunkline_web_password:allow()}.
-type shown() :: #{node() | pid() => shown}.
-record(server,
        {options :: checked(),
         httpd = none :: none | pid(),
         error = none :: term(),
         before = none :: none | trunkline_sample:sample(),
         number = 0 :: non_neg_integer(),
         shown = #{} :: shown(),                   % in the newest view
         %% The newest is last.
         views = queue:new() :: queue:queue({Number :: pos_integer(), JSON :: binary()})}).

%% --- for trunkline_web -------------------------------------------------------------------

-spec options(term()) -> [trunkline_function_options:declared()].
options(_) ->
    [{address, "an address, as \"10.0.0.3\", \"::1\" or {10,0,0,3}",
      fun(Address) -> trunkline_options:ip_address(Address) =/= error end},
     {port, "an integer from 0 to 65535",
      fun(Port) -> is_integer(Port) andalso Port >= 0 andalso Port < 65536 end},
     {password, io_lib:format("a string of at least ~b characters", [?SHORTEST]),
      fun(Password) -> password(Password) =/= error end}].

password(Password) when is_list(Password); is_binary(Password) ->
    try unicode:characters_to_binary(Password) of
        Text when is_binary(Text), byte_size(Text) >= ?SHORTEST -> Text;
        _ -> error
    catch
        error:_ -> error
    end;
password(_) -> error.

-spec start(trunkline_web:options()) -> {ok, string()} | {error, trunkline_web:start_error()}.
start(Options) ->
    Address = trunkline_options:ip_address(maps:get(address, Options, {127, 0, 0, 1})),
    Password = case Options of
                   #{password := Given} -> password(Given);
                   #{} -> none
               end,
    case Password =/= none orelse is_loopback(Address) of
        true -> start_checked(#{address => Address, port => maps:get(port, Options, ?PORT),
                                allow => trunkline_web_password:allow(Password)});
        false -> {error, password_needed}
    end.

is_loopback({127, _, _, _}) -> true;
is_loopback({0, 0, 0, 0, 0, 0, 0, 1}) -> true;
is_loopback(_) -> false.

start_checked(Options) ->
    Child = #{id => ?MODULE, restart => transient, start => {?MODULE, start_link, [Options]}},
    Page = page(),
    case {code:which(httpd), filelib:is_regular(Page)} of
        {non_existing, _} -> {error, no_inets};
        {_, false} -> {error, {missing, Page}};
        {_, true} -> started(start_child(Child))
    end.

started({ok, Pid}) ->
    case gen_server:call(Pid, url, infinity) of
        {ok, _} = Started -> Started;
        {error, _} = Error -> ok = stop(), Error
    end;
started({error, {already_started, _}}) ->
    {error, already_started};
started({error, already_present}) ->
    {error, already_started};
started({error, stopped}) ->
    {error, stopped}.

start_child(Child) ->
    try supervisor:start_child(trunkline_sup, Child)
    catch exit:_ -> {error, stopped}
    end.

-spec stop() -> ok.
stop() ->
    try
        _ = supervisor:terminate_child(trunkline_sup, ?MODULE),
        _ = supervisor:delete_child(trunkline_sup, ?MODULE),
        ok
    catch
        exit:_ -> ok                       % Trunkline does not run
    end.

%% Trunkline's folder. Its name need not be that of the application.
-spec folder() -> file:filename_all().
folder() ->
    case {code:which(?MODULE), code:lib_dir(trunkline)} of
        {[_ | _] = Beam, _} -> filename:dirname(filename:dirname(filename:absname(Beam)));
        {_, [_ | _] = Folder} -> Folder;             % for instance, it is cover_compiled
        {_, _} -> filename:absname("")
    end.

%% The file that is served at `/'.
-spec page() -> file:filename_all().
page() -> filename:join([folder(), "priv", "trunkline.html"]).

%% The views that are newer than the one with that number, as JSON.
-spec since(non_neg_integer()) -> {ok, iodata()} | {error, busy}.
since(Number) ->
    try gen_server:call(?MODULE, {since, Number}) of
        Views ->
            Begin = io_lib:format("{\"interval\":~b,\"kept\":~b,\"views\":[",
                                  [?INTERVAL, ?KEPT]),
            {ok, [Begin, lists:join($,, Views), "]}"]}
    catch
        exit:_ -> {error, busy}
    end.

%% --- the process ---------------------------------------------------------------------------

-spec start_link(checked()) -> gen_server:start_ret().
start_link(Options) ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, Options, []).

-spec init(checked()) -> {ok, #server{}}.
init(Options) ->
    process_flag(trap_exit, true),
    _ = erlang:send_after(0, self(), look),
    {ok, listen(#server{options = Options})}.

-spec handle_call(term(), gen_server:from(), #server{}) -> {reply, term(), #server{}}.
handle_call(url, _, #server{httpd = none, error = Error} = S) ->
    {reply, {error, Error}, S};
handle_call(url, _, #server{options = #{address := Address, port := Port}} = S) ->
    Host = case Address of
               {_, _, _, _} -> inet:ntoa(Address);
               _ -> ["[", inet:ntoa(Address), "]"]
           end,
    {reply, {ok, lists:flatten(io_lib:format("http://~ts:~b/", [Host, Port]))}, S};
handle_call({since, Number}, _, #server{views = Views} = S) ->
    {reply, [JSON || {N, JSON} <- queue:to_list(Views), N > Number], S};
handle_call(_, _, S) ->
    {reply, {error, badarg}, S}.

-spec handle_cast(term(), #server{}) -> {noreply, #server{}}.
handle_cast(Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    {noreply, S}.

-spec handle_info(term(), #server{}) -> {noreply, #server{}}.
handle_info(look, S) ->
    _ = erlang:send_after(?INTERVAL, self(), look),
    {noreply, look(S)};
handle_info(listen, #server{httpd = none} = S) ->
    {noreply, listen(S)};
handle_info({'EXIT', Httpd, Reason}, #server{httpd = Httpd} = S) ->
    {noreply, again(S#server{httpd = none, error = {listen, Reason}})};
handle_info({'EXIT', _, _}, S) ->
    {noreply, S};                              % of a web server that could not listen
handle_info(Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    {noreply, S}.

-spec terminate(term(), #server{}) -> ok.
terminate(_, #server{httpd = none}) ->
    ok;
terminate(_, #server{httpd = Httpd}) ->
    _ = inets:stop(stand_alone, Httpd),
    ok.

%% --- the web server ------------------------------------------------------------------------

%% If the web server cannot listen it writes long reports. So this tries first, and also finds out
%% which port is free.
listen(#server{options = #{address := Address, port := Port} = Options} = S) ->
    Family = case Address of
                 {_, _, _, _} -> inet;
                 _ -> inet6
             end,
    case gen_tcp:listen(Port, [Family, {ip, Address}, {reuseaddr, true}]) of
        {ok, Socket} ->
            {ok, Free} = inet:port(Socket),
            ok = gen_tcp:close(Socket),
            serve(Family, S#server{options = Options#{port => Free}});
        {error, Reason} ->
            again(S#server{error = {listen, Reason}})
    end.

serve(Family, #server{options = #{address := Address, port := Port, allow := Allow}} = S) ->
    {module, _} = code:ensure_loaded(trunkline_web_page),
    %% (httpd needs these folders, but reads nothing there: none of its modules is for files.)
    Folder = folder(),
    Config = [{port, Port}, {bind_address, Address}, {ipfamily, Family}, {server_name, "trunkline"},
              {server_root, Folder}, {document_root, Folder}, {server_tokens, none},
              {modules, [trunkline_web_page]}, {trunkline_allow, Allow},
              {max_clients, ?CLIENTS}, {max_header_size, 8192}, {max_uri_size, 1024},
              {max_body_size, 1024},
              {keep_alive_timeout, 30}, {minimum_bytes_per_second, 100}],
    case inets:start(httpd, Config, stand_alone) of
        {ok, Httpd} -> S#server{httpd = Httpd, error = none};
        {error, Reason} -> again(S#server{error = {listen, Reason}})
    end.

again(S) ->
    _ = erlang:send_after(?AGAIN, self(), listen),
    S.

%% --- views -----------------------------------------------------------------------------------

look(#server{before = Before, number = N, views = Views, shown = Shown} = S) ->
    Sample = trunkline_sample:here(),
    case Before of
        none ->
            S#server{before = Sample};
        _ ->
            View = busiest(trunkline_sample:view(Before, Sample), Shown),
            JSON = iolist_to_binary(json(N + 1, View)),
            S#server{before = Sample, number = N + 1, shown = shown(View),
                     views = shortened(queue:in({N + 1, JSON}, Views))}
    end.

shortened(Views) ->
    case queue:len(Views) > ?KEPT of
        true -> queue:drop(Views);
        false -> Views
    end.

json(N, #{peers := Peers, inboxes := Inboxes, release := Release} = View) ->
    #{interval := Interval} = View,
    trunkline_json:encode(
      (maps:with([node, time, running, uptime, refused, more_peers, more_inboxes, hints], View))
          #{n => N, interval_us => round(Interval * 1.0e6),
            release => unicode:characters_to_binary(Release),
            peers => [maps:without([lanes, release], Peer) || Peer <- Peers],
            inboxes => [(maps:without([inbox], Inbox))
                            #{name => unicode:characters_to_binary(
                                        trunkline_screen:name(Name, Pid))}
                        || #{name := Name, inbox := Pid} = Inbox <- Inboxes]}).

%% The hints are about all peers and inboxes, not only the busiest.
busiest(#{peers := Peers, inboxes := Inboxes, more_inboxes := More} = View, Shown) ->
    View#{peers := busiest(?PEERS, fun traffic/1, Peers, Shown),
          more_peers => max(0, length(Peers) - ?PEERS),
          inboxes := busiest(?INBOXES, fun fullness/1, Inboxes, Shown),
          more_inboxes := More + max(0, length(Inboxes) - ?INBOXES),
          hints => [unicode:characters_to_binary(Hint) || Hint <- trunkline_hints:some(View)]}.

traffic(#{peer := Peer, messages_out := Out, messages_in := In, queued_messages := Queued}) ->
    {Peer, [Out + In + Queued]}.

fullness(#{inbox := Inbox, full := Full, passed := Passed}) -> {Inbox, [Full, Passed]}.

%% The N busiest rows, in the order in which they came. A row that was shown before stays unless
%% another one is far busier: otherwise rows that are nearly equal would come and go with each view.
busiest(N, _, Rows, _) when length(Rows) =< N -> Rows;
busiest(N, Key, Rows, Shown) ->
    Ranked = [{rank(Key(Row), Shown), Ix, Row}
              || {Ix, Row} <- lists:enumerate(Rows)],
    Sorted = lists:sort(fun({A, _, _}, {B, _, _}) -> A >= B end, Ranked),
    [Row || {_, _, Row} <- lists:keysort(2, lists:sublist(Sorted, N))].

rank({Name, Figures}, Shown) when is_map_key(Name, Shown) ->
    {[?STAYS * Figure || Figure <- Figures], true};
rank({_, Figures}, _) ->
    {Figures, false}.

shown(#{peers := Peers, inboxes := Inboxes}) ->
    maps:from_keys([Peer || #{peer := Peer} <- Peers] ++ [Inbox || #{inbox := Inbox} <- Inboxes],
                   shown).
