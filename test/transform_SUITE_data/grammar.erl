%% All of the language, with messages in it: whatever the transform does to these
%% must leave the rest as it is.
-module(?NAME).

-export([all/0, crash/1]).

-define(SAY(What), self_or(Self) ! What).

-record(letter, {to = helper() :: pid(), sent = helper() ! by_default :: term(), list = []}).

%% What all of it says, in the order in which it is said, and what each expression returns.
all() ->
    Self = self(),
    Values = [operators(Self), functions(Self), data(Self), control(Self), faults(Self),
              comprehensions(Self), order(Self), ?SAY(macro)],
    Self ! stop,
    {Values, flush()}.

flush() -> receive stop -> []; Message -> [Message | flush()] end.

helper() -> self().
self_or(Pid) -> Pid.

operators(To) ->
    Sum = 1 + begin To ! one, 2 end,
    [To ! two | [To ! three]] ++ [Sum, -Sum, not (Sum == (To ! 3)), (To ! a) =:= (To ! a),
                                  true andalso To ! b, false orelse (To ! c), (catch To ! d)].

functions(To) ->
    F = fun(Message) when is_atom(Message) -> To ! Message; (_) -> none end,
    G = fun Loop(0) -> To ! zero; Loop(N) -> To ! N, Loop(N - 1) end,
    [F(x), F(1), G(2), (fun erlang:send/2)(To, by_reference), (fun erlang:'!'/2)(To, by_operator),
     erlang:'!'(To, by_name), apply(erlang, '!', [To, applied]), local(To ! argument)].

local(X) -> X.

data(To) ->
    #letter{sent = Sent, to = Helper} = Letter = #letter{},
    Map = #{To ! key => To ! value, other => 1},
    <<Binary:8, _/binary>> = <<(To ! 7):8, "!":8, (length([To ! 1, 2])):8>>,
    {Sent, Helper =:= To, Letter#letter{list = [To ! listed]}#letter.list,
     Map#{other := To ! updated}, (Letter#letter.to) ! field, Binary, "Pid ! Message", $!, '!',
     {call, 1, {atom, 1, x}, []}}.

control(To) ->
    X = case To ! question of
            question when is_pid(To), node(To) =:= node() -> To ! answer;
            {op, _, '!', _, _} -> never
        end,
    Y = if X =:= answer -> To ! yes; true -> To ! no end,
    Z = receive not_there -> To ! never after 0 -> To ! timeout end,
    V = try To ! tried of
            tried -> To ! succeeded
        after
            To ! finally
        end,
    W = try throw(To ! thrown)
        catch
            throw:T -> To ! {caught, T}
        end,
    begin To ! block end,
    {X, Y, Z, V, W}.

faults(To) ->
    [try Fault() catch Class:Reason -> {Class, Reason} end
     || Fault <- [fun() -> no_such_process_anywhere ! x end,
                  fun() -> "not a destination" ! x end,
                  fun() -> exit(To ! reason) ! never end,
                  fun() -> erlang:send(To, x, not_a_list) end]].

comprehensions(To) ->
    {[To ! {list, X} || X <- [1, 2, 3], (To ! X) > 1],
     << <<(To ! X)>> || <<X>> <= <<4, 5>> >>,
     [X || {X, Y} <- [{1, To ! inner}], Y =:= inner]}.

%% The destination is evaluated first, whatever the two do.
order(To) ->
    Say = fun(What, Value) -> To ! What, Value end,
    [Say(destination, To) ! Say(message, told),
     erlang:send(Say(first, To), Say(second, told_again)),
     catch Say(third, nobody_here) ! Say(fourth, x)].

crash(To) ->
    _ = helper(),
    Local =
        helper(),
    _ = Local,
    [To
     ! message,
     not_reached].
