%% Where the meaning could differ. A comment at the end of a line says which
%% warning there is, and `same line' nothing else is.
-module(?NAME).

-export([f/4, alternatives/2, waits/1, others/3, unknown/3, monitors/2, local/1, silent/1, records/0]).

-record(r, {pid, sent = {erlang:send(a, b), apply(gen_server, cast, lists:seq(1, 2))}}). % unknown_arguments

f(Pid, State, Other, X) ->
    Pid ! x,
    exit(Other, kill),
    element(1, State) ! x,
    exit(element(2, State), kill),
    exit(element(1, State), kill),              % order
    fun() -> exit(Pid, kill) end,               % order
    gen_server:cast(Other, X),                  % order
    gen_server:stop(X),
    Other ! x.                                  % order

%% One or the other is done.
alternatives(Pid, How) ->
    case How of
        softly -> Pid ! stop;
        _ -> exit(Pid, kill)
    end,
    receive
        Pid -> ok
    after 0 ->
        sys:suspend(Pid)                        % order
    end;
alternatives(_, Pid) ->
    exit(Pid, kill).

%% What has answered has seen everything.
waits(Server) ->
    gen_server:call(Server, x),
    gen_event:sync_notify(Server, x),
    sys:get_state(Server),
    gen_server:stop(Server, normal, 5000),
    gen_server:cast(Server, x),
    gen_statem:stop(Server).                    % order

others(Server, Handler, R) ->
    gen_event:notify(Server, x),
    gen_event:add_sup_handler(Server, Handler, []),  % order
    R#r.pid ! x,
    erlang:send_nosuspend(R#r.pid, x),          % order
    erlang:send_nosuspend(R#r.pid, x, []),      % order
    erlang:send_nosuspend(Handler, x).

unknown(F, Args, M) ->
    apply(gen_server, call, Args),              % unknown_arguments
    apply(erlang, send, Args),                  % unknown_arguments
    apply(erlang, abs, Args),
    apply(gen_server, start, Args),
    apply(gen_server, call, [M, Args]),
    apply(M, call, Args),
    apply(gen_server, F, Args),
    gen_server:F(Args),                         % unknown_function
    erpc:F(M, Args),                            % unknown_function
    erlang:F(Args),
    M:call(Args, x),
    spawn(gen_server, call, Args).

monitors(Pid, What) ->
    monitor(process, Pid),
    monitor(port, Pid),
    erlang:monitor(time_offset, clock_service),
    monitor(What, Pid),
    monitor(process, Pid, [{tag, x}]),          % options_of_monitor
    fun monitor/3.                              % options_of_monitor

%% Nothing goes anywhere.
local(Pid) ->
    self() ! x,
    exit(self(), x),
    registered ! x,
    exit(registered, x),
    Pid.

silent(Pid) ->
    Pid ! x,
    exit(Pid, kill).                            % order

records() ->
    #r{}.
