%% What a module says to processes of another node with OTP's functions. Compiled
%% twice, as it is and with trunkline_transform: both must have the same answers.
%% Nothing here depends on who asks.
-module(?NAME).

-export([send/1, order/1, exit_signals/1, gen/1, gen_server/1, gen_server_exits/1,
         gen_server_requests/1, gen_statem/1, gen_event/1, erpc/1, rpc/1, monitor/1]).

-import(gen_server, [call/2]).

send(#{node := Node, echo := Echo}) ->
    {Echo ! {echo, self(), 1},
     erlang:send({echo, Node}, {echo, self(), 2}),
     erlang:send(Echo, {echo, self(), 3}, [nosuspend]),
     apply(erlang, send, [Echo, {echo, self(), 4}]),
     [Echo ! {echo, self(), N} || N <- [5, 6]],
     lists:foldl(fun erlang:send/2, {echo, self(), 7}, [Echo]),
     catch Echo ! {echo, self(), 8},
     catch "no destination" ! 9,
     catch erlang:send(Echo, 10, [no_option]),
     [receive {echoed, N} -> N end || N <- lists:seq(1, 8)]}.

%% Whether it is a send or a call, what comes later arrives later.
order(#{gen_server := Server}) ->
    [begin
         Server ! {N, 1},
         gen_server:cast(Server, {N, 2}),
         erlang:send(Server, {N, 3}),
         call(Server, {echo, N})
     end || N <- lists:seq(1, 100)],
    gen_server:call(Server, seen).

%% Whoever is monitored first ends with the reason.
exit_signals(#{node := Node}) ->
    Trapping = spawn(Node, fun() ->
                                   process_flag(trap_exit, true),
                                   receive {From, ready} -> From ! ready end,
                                   receive {'EXIT', From, Why} -> From ! {'EXIT', Why} end
                           end),
    Trapping ! {self(), ready},
    receive ready -> ok end,
    exit(Trapping, why),
    [receive {'EXIT', Why} -> Why end,
     catch erlang:exit("no process", x),
     catch erlang:exit(make_ref(), x)
     | [begin
            P = spawn(Node, fun() -> receive never -> ok end end),
            R = monitor(process, P),
            exit(P, why),
            receive {'DOWN', R, process, P, Why} -> Why end
        end || _ <- lists:seq(1, 100)]].

%% What a behaviour of one's own calls.
gen(#{node := Node, gen_server := Server, gen_statem := Statem, gen_event := Manager}) ->
    [A, B, C] = [gen:send_request(Server, '$gen_call', {echo, N}) || N <- [a, b, c]],
    Never = gen:send_request(Server, '$gen_call', never),
    Ids = lists:foldl(fun(N, Ids) -> gen:send_request(Server, '$gen_call', {echo, N}, N, Ids) end,
                      gen:reqids_add(C, c, gen:reqids_new()), [d, e]),
    None = gen:send_request({no_such_name, Node}, '$gen_call', x),
    [gen:call(Server, '$gen_call', {echo, 1}),
     gen:call({test_gen_server, Node}, '$gen_call', {echo, 2}, infinity),
     gen:call(Statem, '$gen_call', {echo, 3}, 60_000),
     gen:call(Manager, self(), which_handlers),
     apply(gen, call, [Server, '$gen_call', {echo, 4}]),
     gen:wait_response(A, 60_000),
     gen:receive_response(B, {abs, erlang:monotonic_time(millisecond) + 60_000}),
     gen:receive_response(Never, 1),
     gen:receive_response(None, 60_000),
     gen:reqids_size(Ids),
     length(gen:reqids_to_list(Ids)),
     gen:wait_response(gen:reqids_new(), 0, true),
     catch gen:call({no_such_name, Node}, '$gen_call', x),
     catch gen:call(Server, '$gen_call', never, 1),
     catch gen:call(Server, '$gen_call', {exit, wanted}, 60_000),
     catch gen:call(self(), '$gen_call', x),
     catch gen:call({x, 'no_such_node@localhost'}, '$gen_call', x),
     catch gen:call({global, no_such_name}, '$gen_call', x),
     begin
         {'EXIT', {function_clause, _}} = (catch gen:call(Server, '$gen_call', x, no_timeout)),
         function_clause
     end,
     begin
         {'EXIT', {function_clause, _}} = (catch gen:call("no server", '$gen_call', x)),
         function_clause
     end
     | gen_responses(Ids)].

gen_responses(Ids) ->
    receive
        Message ->
            case gen:check_response(Message, Ids, true) of
                no_reply -> gen_responses(Ids);
                {Response, Label, Left} ->
                    no_request = gen:check_response(x, gen:reqids_new(), true),
                    lists:sort([{Response, Label} | case gen:reqids_size(Left) of
                                                        0 -> [];
                                                        _ -> gen_responses(Left)
                                                    end])
            end
    end.

gen_server(#{node := Node, gen_server := Server}) ->
    [gen_server:call(Server, {echo, 1}),
     gen_server:call({test_gen_server, Node}, {echo, 2}, infinity),
     call(Server, {echo, 3}),
     gen_server:cast(Server, {cast, 4}),
     gen_server:abcast([Node], test_gen_server, 5),
     gen_server:multi_call([Node], test_gen_server, {echo, 6}),
     gen_server:multi_call([Node], test_gen_server, {echo, 7}, 60_000),
     gen_server:multi_call([Node], no_such_name, {echo, 8}, 60_000),
     [gen_server:call(S, {echo, 9}) || S <- [Server]],
     (fun gen_server:call/2)(Server, {echo, 10}),
     call(Server, {echo, 11}),
     apply(gen_server, call, [Server, {echo, 12}]),
     gen_server:call(Server, seen)].

gen_server_exits(#{node := Node, gen_server := Server}) ->
    [catch gen_server:call({no_such_name, Node}, x),
     catch gen_server:call({no_such_name, Node}, x, 60_000),
     catch gen_server:call(Server, never, 1),
     catch gen_server:call(Server, x, no_timeout),
     catch gen_server:call({x, 'no_such_node@localhost'}, x),
     catch gen_server:call("no server", x),
     try gen_server:call({test_gen_server, Node}, {exit, wanted})
     catch exit:{wanted, {gen_server, call, Args}} -> Args
     end].

gen_server_requests(#{gen_server := Server}) ->
    [A, B, C] = [gen_server:send_request(Server, {echo, N}) || N <- [a, b, c]],
    Ids = lists:foldl(fun(N, Ids) -> gen_server:send_request(Server, {echo, N}, N, Ids) end,
                      gen_server:reqids_add(C, c, gen_server:reqids_new()), [d, e]),
    Never = gen_server:send_request(Server, never),
    [gen_server:wait_response(A, 60_000),
     gen_server:receive_response(B, {abs, erlang:monotonic_time(millisecond) + 60_000}),
     gen_server:receive_response(Never, 1),
     gen_server:reqids_size(Ids) | responses(Ids)].

responses(Ids) ->
    case gen_server:receive_response(Ids, 60_000, true) of
        no_request -> [];
        {Response, Label, Left} -> lists:sort([{Response, Label} | responses(Left)])
    end.

gen_statem(#{node := Node, gen_statem := Statem}) ->
    Id = gen_statem:send_request(Statem, {echo, 1}),
    [gen_statem:call(Statem, {echo, 2}),
     gen_statem:call({test_gen_statem, Node}, {echo, 3}, {clean_timeout, 60_000}),
     gen_statem:cast(Statem, 4),
     gen_statem:receive_response(Id),
     begin
         Message = receive_one(gen_statem:send_request(Statem, {echo, 5})),
         Message
     end,
     catch gen_statem:call({no_such_name, Node}, 6)].

%% What check_response is for: whatever comes in is asked about.
receive_one(Id) ->
    receive
        Message ->
            case gen_statem:check_response(Message, Id) of
                no_reply -> receive_one(Id);
                Response -> Response
            end
    end.

gen_event(#{node := Node, gen_event := Manager}) ->
    Handler = transform_SUITE,
    [gen_event:add_handler(Manager, Handler, []),
     gen_event:notify(Manager, 1),
     gen_event:sync_notify({test_gen_event, Node}, 2),
     gen_event:call(Manager, Handler, events),
     gen_event:call(Manager, Handler, events, 60_000),
     gen_event:call(Manager, no_handler, events),
     gen_event:receive_response(gen_event:send_request(Manager, Handler, events), 60_000),
     gen_event:which_handlers(Manager),
     gen_event:swap_handler(Manager, {Handler, swapped}, {Handler, [2]}),
     gen_event:call(Manager, Handler, events),
     gen_event:delete_handler(Manager, Handler, deleted),
     catch gen_event:call({no_such_name, Node}, Handler, x)].

erpc(#{node := Node}) ->
    Id = erpc:send_request(Node, erlang, abs, [-1]),
    [erpc:receive_response(Id),
     erpc:call(Node, erlang, abs, [-2]),
     erpc:call(Node, fun node/0, 60_000),
     erpc:cast(Node, erlang, abs, [-3]),
     erpc:multicall([Node, Node], erlang, abs, [-4]),
     erpc:multicast([Node], fun node/0),
     [try erpc:call(Node, erlang, Class, [wanted])
      catch C:Reason -> {C, Reason}
      end || Class <- [exit, throw]],
     try erpc:call('no_such_node@localhost', erlang, node, [])
     catch C:Reason -> {C, Reason}
     end].

rpc(#{node := Node}) ->
    [rpc:yield(rpc:async_call(Node, erlang, abs, [-1])),
     rpc:call(Node, erlang, abs, [-2]),
     rpc:block_call(Node, erlang, abs, [-3], 60_000),
     rpc:cast(Node, erlang, abs, [-4]),
     rpc:multicall([Node, Node], erlang, abs, [-5]),
     rpc:abcast([Node], no_such_name, x),
     rpc:call(Node, erlang, exit, [wanted]),
     rpc:call('no_such_node@localhost', erlang, node, [])].

%% A 'DOWN' is no earlier than what the process has sent.
monitor(#{node := Node, echo := Echo}) ->
    Dying = spawn(Node, fun() -> receive From -> From ! last_words end end),
    Ref = monitor(process, Dying),
    None = erlang:monitor(process, {no_such_name, Node}),
    Gone = monitor(process, Echo),
    Dying ! self(),
    [receive last_words -> ok end,
     receive {'DOWN', Ref, process, Dying, Normal} -> Normal end,
     receive {'DOWN', None, process, {no_such_name, Node}, NoProc} -> NoProc end,
     demonitor(Gone),
     demonitor(Gone, [flush]),
     demonitor(monitor(process, Echo), [flush, info]),
     is_reference(monitor(time_offset, clock_service)),
     catch monitor(process, "no process")].
