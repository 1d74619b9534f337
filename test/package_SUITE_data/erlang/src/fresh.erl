%% Two nodes run this. One waits for a large message, and answers; the other, which knows the name
%% of the first, sends it, and says which way the messages went. Both end by themselves.
-module(fresh).
-behaviour(application).

-export([start/2, stop/1]).

-define(LONG, 60_000).

start(_, _) ->
    {ok, spawn_link(fun() ->
                            register(fresh, self()),
                            case os:getenv("FRESH_PEER") of
                                false -> receiver();
                                Peer -> sender(list_to_atom(Peer))
                            end,
                            init:stop(),
                            receive after infinity -> ok end
                    end)}.

stop(_) -> ok.

receiver() ->
    io:format("~0p.~n", [{ready, node()}]),
    receive
        {large, Sender, Large} ->
            monitor_node(node(Sender), true),
            ok = trunkline:await_up(node(Sender), ?LONG),
            trunkline:send(Sender, {received, byte_size(Large)}),
            receive {nodedown, _} -> ok after ?LONG -> ok end
    after ?LONG ->
            ok
    end.

sender(Peer) ->
    true = net_kernel:connect_node(Peer),
    ok = trunkline:await_up(Peer, ?LONG),
    trunkline:send({fresh, Peer}, {large, self(), binary:copy(<<"x">>, 1_000_000)}),
    receive {received, 1_000_000} -> ok end,
    Received = received(Peer, erlang:monotonic_time(millisecond) + ?LONG),
    #{fallbacks := Fallbacks, large := #{messages := Large, by := By}} = trunkline:info(Peer),
    Running = [App || {App, _, _} <- application:which_applications()],
    io:format(
      "~0p.~n",
      [{done, #{fallbacks => Fallbacks, large => Large, by => By, received => Received}, Running}]).

%% A message is counted a moment after it has been delivered.
received(Peer, Deadline) ->
    #{lanes := Lanes} = trunkline:info(Peer),
    case lists:sum([N || #{received_messages := N} <- Lanes]) of
        0 ->
            true = erlang:monotonic_time(millisecond) < Deadline,
            receive after 5 -> received(Peer, Deadline) end;
        Received ->
            Received
    end.
