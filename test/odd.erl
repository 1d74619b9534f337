%% Two modules with the same functions, ours and the one that ours stands for, are given odd
%% arguments: each in the place of each argument that is right, and, if asked for, each pair of them
%% in the places of each two (which of them is complained of?). Both modules must answer with the
%% same class and the same reason. What the other module does on the release that runs is what is
%% right; nothing is written down here.
-module(odd).

-export([differences/4, errors/2]).

%% A function, and its arguments when they are right. They are made by the process that calls the
%% function, with the module that it calls. `just' is an argument that is right in any case.
-type table() :: [{Function :: atom(), fun((module()) -> [{just, term()} | term()])}].
-type ending() :: {ok | throw | error | exit, term()} | blocks.

%% ms: for what is not going to answer.
-define(BLOCKS, 1000).
-define(BLOCKS_FOR_SURE, 30_000).
%% And for what is no error, if only errors are asked for.
-define(WAITS, 300).

%% Each call that ends in another way. Runs at the node that calls. The table must have all
%% functions that both modules export.
-spec differences(Theirs :: module(), Ours :: module(), table(), singles | pairs) ->
          {[{atom(), Args :: [term()], Theirs :: ending(), Ours :: ending()}],
           Compared :: pos_integer()}.
differences(Theirs, Ours, Table, Which) ->
    [] = lists:usort([F || F <- Ours:module_info(exports), lists:member(F, exports(Theirs))])
        -- [{module_info, 0}, {module_info, 1}
            | [{Name, length(Right(Theirs))} || {Name, Right} <- Table]],
    Calls = lists:append([calls(Name, Right, Theirs, Which) || {Name, Right} <- Table]),
    {[{Name, args(Right, Places, Theirs), Expected, Given}
      || {Name, Right, Places} <- Calls,
         {Expected, Given} <- [endings(Theirs, Ours, {Name, Right, Places}, ?BLOCKS, 3)],
         Expected =/= Given],
     length(Calls)}.

%% (If one of them seems to block, it may have been slow. And some calls may end in two ways, OTP's
%% too: a node that is not there is found out while a time that is none is looked at.)
endings(Theirs, Ours, Call, Time, Again) ->
    [Expected, Given] = [without(Ours, Theirs, ending(M, Call, Time)) || M <- [Theirs, Ours]],
    case Expected =/= Given andalso lists:member(blocks, [Expected, Given]) of
        true when Time < ?BLOCKS_FOR_SURE -> endings(Theirs, Ours, Call, ?BLOCKS_FOR_SURE, Again);
        false when Expected =/= Given, Again > 0 -> endings(Theirs, Ours, Call, Time, Again - 1);
        _ -> {Expected, Given}
    end.

%% Each call that ends with an error, and the place of its odd argument: the reason, and what the
%% shell says.
%% Runs at the node that calls.
-spec errors(module(), table()) ->
          [{Function :: atom(), Args :: [term()], Odd :: pos_integer() | none, Reason :: term(),
            Said :: string()}].
errors(Module, Table) ->
    [] = lists:usort([F || {Name, _} = F <- Module:module_info(exports), Name =/= module_info])
        -- [{Name, length(Right(Module))} || {Name, Right} <- Table],
    [{Name, args(Right, Places, Module), hd(maps:keys(Places) ++ [none]), Reason, Said}
     || {Name0, Right0} <- Table, {Name, Right, Places} <- calls(Name0, Right0, Module, singles),
        {error, Reason, Said} <- [in_process(
                                    fun() -> said(Module, Name, args(Right, Places, Module)) end,
                                    ?WAITS)]].

said(Module, Name, Args) ->
    try apply(Module, Name, Args) of
        _ -> ok
    catch
        error:Reason:Stack ->
            {error, Reason, lists:flatten(erl_error:format_exception(error, Reason, Stack))};
        _:_ -> ok
    end.

exports(erlang) -> erlang:module_info(exports);
exports(Module) -> Module:module_info(exports).

%% Which argument is which of the odd ones.
calls(Name, Right, Module, Which) ->
    Args = lists:enumerate(Right(Module)),
    Places = [N || {N, Arg} <- Args, not is_just(Arg)],
    Odd = lists:seq(1, length(odd())),
    [{Name, Right, #{}}]
        ++ [{Name, Right, #{N => O}} || N <- Places, O <- Odd]
        ++ [{Name, Right, #{N1 => O1, N2 => O2}}
            || Which =:= pairs, N1 <- Places, N2 <- Places, N1 < N2, O1 <- Odd, O2 <- Odd].

is_just({just, _}) -> true;
is_just(_) -> false.

args(Right, Places, Module) ->
    Odd = odd(),
    [case {Places, Arg} of
         {#{N := O}, _} -> lists:nth(O, Odd);
         {_, {just, Value}} -> Value;
         _ -> Arg
     end || {N, Arg} <- lists:enumerate(Right(Module))].

odd() ->
    [odd, '', -1, 1.5, -0.5, 16#100000000, 1 bsl 70, "odd", [], [odd], ["odd"], [odd | odd],
     <<"odd">>, {}, {odd}, {odd, odd}, {odd, node()}, {"odd", node()}, {odd, "odd"},
     {odd, odd, odd}, {global, odd}, {global, {odd}}, {local, "odd"}, {via, no_such_module, odd},
     {via, "odd", odd}, {via, via_test, odd}, {via, ?MODULE, odd}, {abs, odd}, {abs, 1.5},
     {abs, 1 bsl 62}, {abs, -1 bsl 60}, {clean_timeout, odd}, {dirty_timeout, -1},
     make_ref(), {make_ref(), odd}, [make_ref() | make_ref()],
     {[alias | make_ref()], odd}, {'DOWN', make_ref(), process, self(), odd},
     #{}, #{odd => odd}, #{make_ref() => odd},
     fun() -> odd end, fun(_) -> odd end, dead()].

dead() ->
    {Pid, Ref} = spawn_monitor(fun() -> ok end),
    receive {'DOWN', Ref, process, Pid, _} -> Pid end.

ending(Module, {Name, Right, Places}, Time) ->
    in_process(fun() -> ended(Module, Name, args(Right, Places, Module)) end, Time).

in_process(Fun, Time) ->
    {Pid, Ref} = spawn_monitor(fun() ->
                                       %% What it starts may end at once.
                                       process_flag(trap_exit, true),
                                       exit({ended, Fun()})
                               end),
    receive
        {'DOWN', Ref, process, Pid, {ended, Ending}} -> Ending;
        {'DOWN', Ref, process, Pid, Reason} -> {killed, Reason}
    after Time ->
            exit(Pid, kill),
            receive {'DOWN', Ref, process, Pid, _} -> blocks end
    end.

%% What an opaque result is made of is not compared.
ended(Module, Name, Args) ->
    try apply(Module, Name, Args) of
        Result when is_atom(Result); is_number(Result); element(1, Result) =:= error ->
            {ok, Result};
        _ -> {ok, returns}
    catch
        Class:Reason -> {Class, Reason}
    end.

%% The module's name in the place of the other's, and no more of references, processes and stacks
%% than that they are there.
without(Ours, Theirs, Term) ->
    Without = fun(T) -> without(Ours, Theirs, T) end,
    case Term of
        Ours -> Theirs;
        [{_, _, _, Location} | _] when is_list(Location) -> stack;
        [Head | Tail] -> [Without(Head) | Without(Tail)];
        _ when is_tuple(Term) -> list_to_tuple(Without(tuple_to_list(Term)));
        _ when is_map(Term) -> maps:from_list(Without(maps:to_list(Term)));
        _ when is_reference(Term) -> reference;
        _ when is_pid(Term) -> pid;
        _ when is_function(Term) -> function;
        _ -> Term
    end.
