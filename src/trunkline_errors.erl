%% Error descriptions for the shell, like OTP's own (EEP 54): which argument is wrong, and why.
%%
%% The functions only raise the error (trunkline_errors.hrl). When it is printed, the arguments are
%% checked again here.
-module(trunkline_errors).
-moduledoc false.

-export([format_error/2, are_nodes/1]).

-type kind() :: any | applications | atom | list | node | other_node | nodes | name | boolean
              | function | count | own_inbox | destination | destinations | manager
              | {send_options, More :: [atom()]}
              | {options, module()} | inbox | top | server_name | proper_list | time | deadline
              | statem_time | call_time | request | erpc_request | requests.

-spec format_error(Reason :: term(), erlang:stacktrace()) -> #{pos_integer() => unicode:chardata()}.
format_error(_, [{Module, Function, Args, _} | _]) when is_list(Args) ->
    Places = lists:zip3(lists:seq(1, length(Args)), kinds(Module, Function, Args), Args),
    case [{N, text(Kind, Arg)} || {N, Kind, Arg} <- Places, not is_right(Kind, Arg)] of
        [] -> maps:from_list([{N, text(Kind)} || {N, Kind, _} <- Places, is_suspicious(Kind)]);
        Wrong -> maps:from_list(Wrong)
    end;
format_error(_, _) ->
    #{}.

%% What the arguments must be, for each function that raises such errors.
-spec kinds(module(), Function :: atom(), Args :: [term()]) -> [kind()].
kinds(trunkline_erpc, send_request, [_, Fun, _, Ids]) when is_function(Fun); is_map(Ids) ->
    [node, function, any, requests];
kinds(trunkline_erpc, Function, Args) ->
    case {Function, length(Args)} of
        {call, 3} -> [node, function, call_time];
        {call, 5} -> [node, atom, atom, list, call_time];
        {cast, 2} -> [node, any];
        {cast, 4} -> [node, atom, atom, list];
        {multicall, 3} -> [nodes, function, call_time];
        {multicall, 5} -> [nodes, atom, atom, list, call_time];
        {multicast, 2} -> [nodes, any];
        {multicast, 4} -> [nodes, atom, atom, list];
        {send_request, 2} -> [node, function];
        {send_request, 4} -> [node, atom, atom, list];
        {send_request, 6} -> [node, atom, atom, list, any, requests];
        {_, 1} when Function =:= receive_response; Function =:= wait_response -> [erpc_request];
        _ -> [case Kind of
                  request -> erpc_request;
                  _ -> Kind
              end || Kind <- kinds(Function, length(Args))]
    end;
kinds(trunkline, info, [_]) ->
    [node];
kinds(trunkline_adopt, write, [_, _]) ->
    [applications, any];
kinds(trunkline_adopt, _, [_]) ->
    [applications];
kinds(trunkline_top, start, [_]) ->
    [top];
kinds(trunkline_top, start, [_, _]) ->
    [node, {options, trunkline_screen}];
kinds(trunkline_web, start, [_]) ->
    [{options, trunkline_web_server}];
kinds(trunkline_top, once, [_]) ->
    [node];
kinds(_, advise, [_]) ->
    [{options, trunkline_advise}];
kinds(_, compare, [_, _]) ->
    [other_node, {options, trunkline_compare}];
kinds(_, Function, Args) ->
    kinds(Function, length(Args)).

kinds(send, 3) -> [destination, any, {send_options, priority()}];
kinds(multicast, 2) -> [destinations, any];
kinds(multicast, 3) -> [destinations, any, {send_options, []}];
kinds(multi_call, 4) -> [nodes, name, any, time];
kinds(call, 3) -> [any, any, statem_time];
kinds(notify, 2) -> [manager, any];
kinds(Wait, 1) when Wait =:= wait_response; Wait =:= receive_response -> [request];
kinds(Wait, 2) when Wait =:= wait_response; Wait =:= receive_response -> [request, deadline];
kinds(Wait, 3) when Wait =:= wait_response; Wait =:= receive_response ->
    [requests, deadline, boolean];
kinds(check_response, 2) -> [any, request];
kinds(check_response, 3) -> [any, requests, boolean];
kinds(Of, 1) when Of =:= reqids_size; Of =:= reqids_to_list -> [requests];
kinds(reqids_add, 3) -> [request, any, requests];
kinds(drain, 2) -> [other_node, time];
kinds(await_up, 2) -> [other_node, time];
kinds(start_link, 3) -> [atom, any, proper_list];
kinds(start_link, 4) -> [server_name, atom, any, proper_list];
kinds(open, 2) -> [server_name, any];
kinds(done, 2) -> [own_inbox, count];
kinds(info, 1) -> [inbox];
kinds(close, 1) -> [own_inbox].

%% Whether an argument is valid, as far as its value alone tells.
-spec is_right(kind(), term()) -> boolean().
is_right(Kind, Value) when Kind =:= atom; Kind =:= node; Kind =:= name -> is_atom(Value);
is_right(other_node, Value) -> is_atom(Value) andalso Value =/= node();
is_right(applications, Value) -> trunkline_applications:are_adoptable(Value);
is_right(nodes, Value) -> are_nodes(Value);
is_right(list, Value) -> is_list(Value);
is_right(proper_list, Value) -> is_list_of(fun(_) -> true end, Value);
is_right(server_name, Value) -> trunkline_name:is_name(Value);
is_right(boolean, Value) -> is_boolean(Value);
is_right(function, Value) -> is_function(Value, 0);
is_right(count, Value) -> is_integer(Value) andalso Value > 0;
is_right(own_inbox, Value) -> is_pid(Value) orelse is_atom(Value);
is_right(destination, Value) -> is_right(destinations, [Value]);
is_right(destinations, Value) ->
    try is_map(trunkline_by_node:group(Value))
    catch error:_ -> false
    end;
is_right(manager, Value) -> not is_list(Value);
is_right({send_options, More}, Value) ->
    is_list_of(fun(Option) -> lists:member(Option, [nosuspend, noconnect | More]) end, Value);
is_right(top, Value) -> is_atom(Value) orelse is_right({options, trunkline_screen}, Value);
is_right({options, Module}, Value) -> trunkline_function_options:check(Module, Value) =/= error;
is_right(time, Value) ->
    Value =:= infinity orelse is_integer(Value) andalso Value >= 0 andalso Value < 1 bsl 50;
is_right(deadline, Value) -> trunkline_deadline:until(Value) =/= badarg;
is_right(call_time, Value) -> is_map(Value) orelse is_right(deadline, Value);
is_right(statem_time, {Kind, _}) -> lists:member(Kind, [clean_timeout, dirty_timeout]);
is_right(request, {Ref, Node, _}) -> is_reference(Ref) andalso is_atom(Node);
is_right(request, Value) -> is_reference(Value);
is_right(erpc_request, {Ref, lane}) -> is_reference(Ref);
is_right(erpc_request, [Mark | Ref]) -> is_reference(Mark) andalso is_reference(Ref);
is_right(erpc_request, _) -> false;
is_right(requests, Value) -> is_map(Value);
is_right(_, _) -> true.

%% An option of erlang:send/3 since OTP 28.
priority() -> [priority || list_to_integer(erlang:system_info(otp_release)) >= 28].

-spec are_nodes(term()) -> boolean().
are_nodes(Value) -> is_list_of(fun is_atom/1, Value).

is_list_of(IsRight, Values) when length(Values) >= 0 -> lists:all(IsRight, Values);
is_list_of(_, _) -> false.

%% If each value is valid in itself, the error is about one of these: it names something that does
%% not exist, or no longer does.
is_suspicious(Kind) ->
    lists:member(Kind, [call_time, inbox, own_inbox, request, erpc_request, requests]).

%% What is wrong with an argument, or what it should be.
text(top, Value) ->
    case trunkline_function_options:to_map(Value) of
        error -> "not a node, a map or a property list";
        Options -> wrong_option(trunkline_screen, Options)
    end;
text({send_options, _}, Value) when not is_list(Value) ->
    "not a list";
text({options, Module}, Value) ->
    case trunkline_function_options:to_map(Value) of
        error -> "neither a map nor a property list";
        Options -> wrong_option(Module, Options)
    end;
text(applications, Value) ->
    Names = case io_lib:printable_unicode_list(Value) of
                true -> [Value || Value =/= []];
                false -> trunkline_applications:as_list(Value)
            end,
    case [{Name, Why} || {_, Name} <- numbered(Names, 1),
                         Why <- [trunkline_applications:may_adopt(Name)], Why =/= true] of
        [{Name, Why} | _] -> io_lib:format("~0tP ~ts", [Name, 20, unadoptable(Why, Name)]);
        [] -> "not a list of applications"
    end;
text(destinations, [_ | _] = Value) ->
    case [{N, To} || {N, To} <- numbered(Value, 1), not is_right(destination, To)] of
        [{N, To} | _] -> io_lib:format("element ~b is not a destination: ~0tP", [N, To, 20]);
        [] -> text(destinations)
    end;
text(Kind, _) ->
    text(Kind).

%% (The password is not known here: trunkline_web hides it. So it always looks wrong, and is blamed
%% only if nothing else is.)
wrong_option(Module, Options) ->
    Wrong = trunkline_function_options:wrong(Module, Options),
    case [W || W <- Wrong, element(2, W) =/= password] ++ Wrong of
        [{unknown, Name, Names} | _] ->
            io_lib:format("there is no option ~0tP; there are ~ts",
                          [Name, 20, lists:join(", ", [atom_to_list(N) || N <- Names])]);
        [{value, password, _, What} | _] -> ["option password must be ", What];
        [{value, Name, Value, What} | _] -> trunkline_options:wrong(Name, Value, What);
        [] -> "invalid options"
    end.

unadoptable(no_name, _) -> "is not the name of an application";
unadoptable(no_application, _) -> "is not in the code path";
unadoptable(of_otp, Name) -> io_lib:format("belongs to OTP: write {otp, ~tw}", [Name]);
unadoptable(not_of_otp, _) -> "is not an application of OTP that can be adopted";
unadoptable(needed, _) -> "is Trunkline, or an application that it needs itself".

numbered([Element | Rest], N) -> [{N, Element} | numbered(Rest, N + 1)];
numbered(_, _) -> [].                        % the list may be improper

text(atom) -> "not an atom";
text(list) -> "not a list";
text(proper_list) -> "not a list";
text(server_name) -> "invalid server name";
text(node) -> "not a node";
text(other_node) -> "not another node";
text(nodes) -> "not a list of nodes";
text(name) -> "not a registered name";
text(boolean) -> "not a boolean value";
text(function) -> "not a fun that takes no arguments";
text(count) -> "not a positive integer";
text(own_inbox) -> "not an inbox of this node";
text(inbox) -> "not an inbox, or its node is without Trunkline";
text(Kind) when Kind =:= destination; Kind =:= manager -> "invalid destination";
text(destinations) -> "not a list of destinations";
text({send_options, More}) ->
    ["invalid option in list: the options are ",
     lists:join(" and ", [atom_to_list(Option) || Option <- [nosuspend, noconnect | More]])];
text(call_time) -> "invalid time value, or a map with an invalid option, or before OTP 28";
text(Kind) when Kind =:= time; Kind =:= deadline; Kind =:= statem_time -> "invalid time value";
text(Kind) when Kind =:= request; Kind =:= erpc_request ->
    "not a request id of this module, or its response is not expected any more";
text(requests) -> "not a collection of request ids of this module, or it has that id already".
