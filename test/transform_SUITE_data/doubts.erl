%% Where the meaning could differ. A comment at the end of a line says which
%% warning there is, and `same line' nothing else is.
-module(?NAME).

-export([f/4, alternatives/2, waits/1, others/3, unknown/3, monitors/2, local/1, silent/1,
         records/0]).
-export([left/4, results/4, stays/2, monitored/2, last_words/1, ends/1]).

-import(global, [send/2]).

-record(r, {pid,
            sent = {erlang:send(a, b),
                    apply(gen_server, cast, lists:seq(1, 2))}}).  % unknown_arguments

f(Pid, State, Other, X) ->
    Pid ! x,
    erlang:send_nosuspend(Other, kill),         % left
    element(1, State) ! x,
    sys:suspend(element(2, State)),             % left
    sys:suspend(element(1, State)),             % order
    fun() -> sys:resume(Pid) end,               % order
    gen_server:cast(Other, X),                  % order
    gen_server:stop(X),                         % left
    Other ! x.                                  % order

%% One or the other is done.
alternatives(Pid, How) ->
    case How of
        softly -> Pid ! stop;
        _ -> gen_statem:stop(Pid)               % left
    end,
    receive
        Pid -> ok
    after 0 ->
        sys:suspend(Pid)                        % order
    end;
alternatives(_, Pid) ->
    gen_statem:stop(Pid).                       % left

%% What has answered has seen everything.
waits(Server) ->
    gen_server:call(Server, x),
    gen_event:sync_notify(Server, x),
    sys:get_state(Server),                      % left
    gen_server:stop(Server, normal, 5000),      % left
    gen_server:cast(Server, x),
    gen_statem:stop(Server).                    % order

others(Server, Handler, R) ->
    gen_event:notify(Server, x),
    gen_event:add_sup_handler(Server, Handler, []),  % order
    R#r.pid ! x,
    erlang:send_nosuspend(R#r.pid, x),          % order
    erlang:send_nosuspend(R#r.pid, x, []),      % order
    erlang:send_nosuspend(Handler, x).          % left

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
    monitor(process, Pid, [{tag, x}]),          % left
    fun monitor/3.                              % left

%% Nothing goes anywhere.
local(Pid) ->
    self() ! x,
    exit(self(), x),
    registered ! x,
    sys:suspend(registered),
    {registered, node()} ! x,
    sys:suspend({registered, node()}),
    Pid.

silent(Pid) ->
    Pid ! x,
    sys:suspend(Pid).                           % order

records() ->
    #r{}.

%% What is not transformed.
left(Pid, Server, Name, Sup) ->
    send(Name, x),                              % left
    global:send(the_one, x),                    % left
    global_group:send(Name, x),                 % left
    pool:pspawn(m, f, []),                      % left
    pool:pspawn_link(m, f, []),                 % left
    link(Pid),                                  % left
    erlang:group_leader(Pid, Server),           % left
    group_leader(Pid, self()),
    timer:send_after(10, Pid, x),               % left
    timer:kill_after(10, Pid),                  % left
    supervisor:which_children(Sup),             % left
    proc_lib:stop(Server),                      % left
    gen:stop(Server, normal, 10),               % left
    gen_event:stop(Server),                     % left
    gen_event:swap_sup_handler(Server, a, b),   % left
    sys:get_status(Server),                     % left
    sys:change_code(Server, m, vsn, []),        % left
    apply(sys, terminate, [Server, x]),         % left
    [sys:no_debug(P) || P <- [Server]],         % left
    gen_fsm:send_event(Server, x),              % left
    rpc:abcast(somebody, x),
    fun gen_server:stop/1.                      % left

results(Node, Pid, Fun, Options) ->
    rpc:call(Node, m, f, []),
    rpc:async_call(Node, m, f, []),
    rpc:multicall(m, f, []),
    rpc:cast(Node, m, f, []),
    spawn(Node, Fun),                           % left
    spawn(Node, m, f, []),                      % left
    spawn_link(Node, Fun),                      % left
    spawn_monitor(Node, Fun),                   % left
    spawn_opt(Node, Fun, Options),              % left
    spawn_request(Node, Fun),                   % left
    spawn_request(Node, Fun, Options),          % left
    spawn_request(Node, m, f, Options),         % left
    spawn_request(m, f, [], Options),
    spawn_request(Node, m, f, [], Options),     % left
    proc_lib:spawn_link(Node, Fun),             % left
    erlang:monitor_node(Node, true),            % left
    net_kernel:monitor_nodes(true),             % left
    Pid.

%% What stays on this node, or sends nothing.
stays(Fun, From) ->
    gen_server:reply(From, x),
    gen_statem:reply({reply, From, x}),
    gen:reply(From, x),
    proc_lib:init_ack(From, x),
    link(self()),
    sys:suspend(?MODULE),
    gen_server:stop(?MODULE),
    supervisor:which_children(a_supervisor),
    sys:handle_debug([], Fun, x, x),
    erlang:send_after(1, From, x),
    erlang:start_timer(1, From, x),
    timer:send_after(10, self(), x),
    timer:send_after(10, x),
    timer:sleep(10),
    rpc:call(node(), m, f, []),
    rpc:yield(From),
    spawn(node(), Fun),
    spawn(Fun),
    spawn(m, f, []),
    spawn_link(Fun),
    spawn_link(m, f, []),
    spawn_monitor(Fun),
    spawn_opt(Fun, [link]),
    spawn_opt(m, f, [], [link]),
    spawn_request(fun() -> ok end, []),
    spawn_request(m, f, []),
    erlang:monitor_node(From, false),
    net_kernel:monitor_nodes(false),
    global:register_name(x, self()).

%% It has to be monitored before it is told to end.
monitored(Pid, Server) ->
    monitor(process, Pid),
    erlang:send_nosuspend(Pid, x),              % order
    monitor(port, Server),
    gen_server:stop(Server).                    % left

%% What is in a lane when the node halts is lost.
last_words(Pid) ->
    Pid ! bye,
    halt().                                     % left

ends(Server) ->
    gen_server:call(Server, x),
    halt(1).
