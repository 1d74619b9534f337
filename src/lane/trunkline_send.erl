%% Sends one message to one destination, for trunkline:send/2,3 and casts: by way of its inbox if it
%% has one, by lane if it is at another node that has lanes, and otherwise by plain distribution.
-module(trunkline_send).
-moduledoc false.

-export([send/2, send/3, via/3]).

-spec send(trunkline:destination(), Message) -> Message.
send(To, Message) ->
    case trunkline_bounded:enter(To, Message, infinity) of
        none when is_pid(To), node(To) =:= node() ->
            To ! Message;                    % at once: `!' itself takes only 8 ns
        Entered ->
            _ = entered(Entered, To, Message, {infinity, connect}),
            Message
    end.

-spec send(trunkline:destination(), term(), trunkline_sender:how()) ->
          ok | nosuspend | noconnect.
send(To, Message, {Patience, _} = How) ->
    entered(trunkline_bounded:enter(To, Message, Patience), To, Message, How).

%% Sends to the process that has the name in that registry. If there is none, the registry may know
%% better: some have names of many processes. Errors are ignored, as gen_server:cast/2 does.
-spec via(module(), Name :: term(), Message :: term()) -> ok.
via(Module, Name, Message) ->
    try
        case whereis_name(Module, Name) of
            Pid when is_pid(Pid) -> send(Pid, Message);
            _ -> Module:send(Name, Message)
        end
    of
        _ -> ok
    catch
        _:_ -> ok
    end.

whereis_name(Module, Name) ->
    try Module:whereis_name(Name)
    catch _:_ -> none
    end.

entered(none, To, Message, How) ->
    send_on(To, Message, How);
entered({Keeper, Wrapped}, _, _, How) ->
    case send_on(Keeper, Wrapped, How) of
        ok -> ok;
        Refused -> trunkline_bounded:cancel(Keeper, Wrapped), Refused
    end;
entered(refused, _, _, _) ->
    ok;                                      % and counted: see trunkline_inbox
entered(nosuspend, _, _, _) ->
    nosuspend.

send_on(To, Message, How) when is_pid(To), node(To) =/= node();
                               is_reference(To), node(To) =/= node() ->
    send_lane(node(To), To, To, Message, How);
send_on({Name, Node} = To, Message, How) when is_atom(Name), is_atom(Node), Node =/= node() ->
    send_lane(Node, Name, To, Message, How);
send_on(To, Message, {infinity, connect}) ->
    _ = To ! Message,                        % faster than erlang:send/3
    ok;
send_on(To, Message, How) ->
    erlang:send(To, Message, options(How)).

send_lane(Node, Addressee, To, Message, How) ->
    case hand_over(Node, Addressee, Message, How) of
        direct ->
            trunkline_sender:fallback(Node),
            case erlang:send(To, Message, options(How)) of
                ok -> trunkline_in_turn:sent_direct(Node);
                NotSent -> NotSent
            end;
        unreachable ->
            ok;                              % dropped, as erlang:send/3 does
        nosuspend ->
            ok = trunkline_refused:count_nosuspend(Node),
            nosuspend;
        Answer ->
            Answer
    end.

hand_over(Node, Addressee, Message, {infinity, connect}) ->
    trunkline_sender:hand_over(Node, Addressee, Message);
hand_over(Node, Addressee, Message, {Patience, Connect}) ->
    trunkline_refused:try_again(
      fun() -> trunkline_sender:hand_over(Node, Addressee, Message, Patience, Connect) end,
      Node, fun() -> trunkline_shape:charge(trunkline_shape:size(Message)) end).

%% The options of erlang:send/3.
options({Patience, Connect}) ->
    [nosuspend || Patience =:= nosuspend] ++ [noconnect || Connect =:= noconnect].
