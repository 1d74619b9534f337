%% A parse transform: a module's messages, calls and monitors go by Trunkline,
%% and nobody has to edit it.
%%
%%     {erl_opts, [{parse_transform, trunkline_transform}]}.
%%
%% What is turned into what is in table/0 and nowhere else. The functions there
%% take the arguments of OTP's, and have their results and their exits, so that
%% nothing around a call needs to change; types of request ids follow their functions. Everything
%% else in the module is left as it is, and so are the locations, for warnings and stack traces.
%%
%% Two options of the compiler, which a module may also set with -compile:
%%
%%   {trunkline_transform, [send | monitor | gen_server | gen_statem | gen_event | erpc]}
%%       only these; all without it. A module's own option counts, not the project's: with
%%       -compile({trunkline_transform, []}) nothing is done to the module.
%%   nowarn_trunkline_transform, {nowarn_trunkline_transform, [{Function, Arity}]}
%%       no warnings, or none in these functions.
%%
%% Trunkline keeps the order of what one process sends to another, and the
%% distribution keeps it; between the two there is no order. Hence the warnings:
%% a function where something goes to a process by the one way, and then something to the same
%% process by the other; and a call that would have been transformed if one could
%% see what it calls. Whether two functions send to the same process cannot be
%% seen, and is not warned of.
-module(trunkline_transform).

-export([parse_transform/2, format_error/1]).

-type forms() :: [erl_parse:abstract_form() | erl_parse:form_info()].
-type option() :: term().
-type warning() :: {order, mfa()} | {unknown_arguments, module(), Function :: atom()} | {unknown_function, module()}
                 | options_of_monitor.
-type problem() :: {erl_anno:location() | none, module(), warning() | {bad_option, term()}}.

%% While a function is walked: what was sent without waiting for an answer, by which way and to
%% which expression; and the warnings, last first.
-record(seen, {sent = [] :: [{by(), Destination :: string()}],
               warnings = [] :: [problem()]}).
-type by() :: lane | distribution.

table() ->
    RequestIds = [{reqids_add, [3]}, {reqids_new, [0]}, {reqids_size, [1]}, {reqids_to_list, [1]}],
    [{send, erlang, trunkline, [{send, [2, 3]}]},
     {monitor, erlang, trunkline, [{monitor, [2]}, {demonitor, [1, 2]}]},
     {gen_server, gen_server, trunkline_gen_server,
      [{call, [2, 3]}, {cast, [2]}, {multi_call, [2, 3, 4]}, {abcast, [2, 3]}, {send_request, [2, 4]},
       {wait_response, [2, 3]}, {receive_response, [2, 3]}, {check_response, [2, 3]} | RequestIds]},
     {gen_statem, gen_statem, trunkline_gen_statem,
      [{call, [2, 3]}, {cast, [2]}, {send_request, [2, 4]}, {wait_response, [1, 2, 3]},
       {receive_response, [1, 2, 3]}, {check_response, [2, 3]} | RequestIds]},
     {gen_event, gen_event, trunkline_gen_event,
      [{notify, [2]}, {sync_notify, [2]}, {call, [3, 4]}, {send_request, [3, 5]}, {wait_response, [2, 3]},
       {receive_response, [2, 3]}, {check_response, [2, 3]}, {add_handler, [3]}, {delete_handler, [3]},
       {swap_handler, [3]}, {which_handlers, [1]} | RequestIds]},
     {erpc, erpc, trunkline_erpc,
      [{call, [2, 3, 4, 5]}, {cast, [2, 4]}, {multicall, [2, 3, 4, 5]}, {multicast, [2, 4]},
       {send_request, [2, 4, 6]}, {wait_response, [1, 2, 3]}, {receive_response, [1, 2, 3]},
       {check_response, [2, 3]} | RequestIds]}].

%% What else says something to the process that its first argument names, and is left to OTP.
is_left({erlang, exit, 2}) -> true;
is_left({erlang, send_nosuspend, Arity}) -> Arity =:= 2 orelse Arity =:= 3;
is_left({sys, _, _}) -> true;
is_left({gen_event, add_sup_handler, 3}) -> true;
is_left({gen_event, swap_sup_handler, 3}) -> true;
is_left({Module, stop, Arity}) when Arity =:= 1; Arity =:= 3 -> lists:member(Module, [gen_server, gen_statem, gen_event]);
is_left(_) -> false.

%% What returns before the other process has seen it.
is_asynchronous({_, Function, _}) ->
    lists:member(Function, [send, cast, notify, send_request, send_nosuspend, exit]).

-spec parse_transform(forms(), [option()]) ->
          forms() | {warning, forms(), [{file:filename(), [problem()]}]}
                  | {error, [{file:filename(), [problem()]}], []}.
parse_transform(Forms, Options) ->
    Own = lists:append([lists:flatten([Option]) || {attribute, _, compile, Option} <- Forms]),
    case classes(Own ++ Options) of
        {bad_option, _} = Bad ->
            {error, [{file(Forms), [{none, ?MODULE, Bad}]}], []};
        Classes ->
            %% What holds in the whole module: what to transform, and whose function it is that
            %% is called without a module.
            Scope = #{classes => Classes, names => names(Forms)},
            case forms(Forms, file(Forms), Scope, Own ++ Options) of
                {Transformed, []} -> Transformed;
                {Transformed, Warnings} -> {warning, Transformed, Warnings}
            end
    end.

file([{attribute, _, file, {File, _}} | _]) -> File;
file(_) -> "nofile".

classes(Options) ->
    case lists:keyfind(trunkline_transform, 1, Options) of
        {_, Classes} when is_list(Classes) ->
            case [Class || Class <- Classes, not lists:member(Class, all())] of
                [] -> Classes;
                [Bad | _] -> {bad_option, Bad}
            end;
        {_, Bad} ->
            {bad_option, Bad};
        false ->
            all()
    end.

all() -> [Class || {Class, _, _, _} <- table()].

%% A function of the module, and one that it imports, hides a BIF of that name.
names(Forms) ->
    maps:from_list([{Name, Module} || {attribute, _, import, {Module, Names}} <- Forms, Name <- Names]
                   ++ [{{Name, Arity}, local} || {function, _, Name, Arity, _} <- Forms]).

forms([{attribute, _, file, {File, _}} = Form | Forms], _, Scope, Options) ->
    {Rest, Warnings} = forms(Forms, File, Scope, Options),
    {[Form | Rest], Warnings};
forms([{attribute, Anno, import, {Module, Names}} | Forms], File, Scope, Options) ->
    %% An import of what is transformed would be an unused one.
    {Rest, Warnings} = forms(Forms, File, Scope, Options),
    Used = [Name || {Function, Arity} = Name <- Names, target({Module, Function, Arity}, Scope) =:= none],
    {[{attribute, Anno, import, {Module, Used}} | Rest], Warnings};
forms([Form | Forms], File, Scope, Options) ->
    {Transformed, #seen{warnings = Found}} = case is_code(Form) of
                                                 true -> walk(Form, Scope, #seen{});
                                                 false -> {Form, #seen{}}
                                             end,
    {Rest, Warnings} = forms(Forms, File, Scope, Options),
    {[Transformed | Rest],
     case Found =:= [] orelse is_silent(Form, Options) of
         true -> Warnings;
         false -> [{File, lists:reverse(Found)} | Warnings]
     end};
forms([], _, _, _) ->
    {[], []}.

%% Other attributes may contain any term.
is_code({function, _, _, _, _}) -> true;
is_code({attribute, _, Kind, _}) -> lists:member(Kind, [record, spec, callback, type, opaque, nominal]);
is_code(_) -> false.

is_silent(Form, Options) ->
    lists:member(nowarn_trunkline_transform, Options)
        orelse lists:any(fun({nowarn_trunkline_transform, Names}) ->
                                 lists:member({element(3, Form), element(4, Form)}, lists:flatten([Names]));
                            (_) ->
                                 false
                         end, Options).

%% From the inside out, in the order of the text. Of several clauses one is executed: what
%% happens in one does not come before what happens in the next.
walk([Clause | _] = Clauses, Scope, #seen{sent = Before} = Seen) when element(1, Clause) =:= clause ->
    lists:mapfoldl(fun(Each, #seen{sent = Sent} = Seen0) ->
                           {Walked, Seen1} = walk(tuple_to_list(Each), Scope, Seen0#seen{sent = Before}),
                           {list_to_tuple(Walked), Seen1#seen{sent = lists:usort(Seen1#seen.sent ++ Sent)}}
                   end, Seen, Clauses);
walk([Tree | Trees], Scope, Seen) ->
    {Walked, Seen1} = walk(Tree, Scope, Seen),
    {Rest, Seen2} = walk(Trees, Scope, Seen1),
    {[Walked | Rest], Seen2};
walk(Tree, Scope, Seen) when is_tuple(Tree) ->
    {Walked, Seen1} = walk(tuple_to_list(Tree), Scope, Seen),
    rewrite(list_to_tuple(Walked), Scope, Seen1);
walk(Leaf, _, Seen) ->
    {Leaf, Seen}.

rewrite({op, Anno, '!', To, Message} = Tree, Scope, Seen) ->
    call(Tree, Anno, {erlang, send, 2}, [To, Message], Scope, Seen);
rewrite({call, Anno, Callee, Args} = Tree, Scope, Seen) ->
    case {callee(Callee, length(Args), Scope), Args} of
        {{erlang, apply, 3}, [{atom, _, Module}, {atom, _, Function}, List]} ->
            applied(Tree, Anno, Module, Function, List, Scope, Seen);
        {{Module, unknown}, _} ->
            {Tree, warn_if(is_transformed(Module, Scope), Anno, {unknown_function, Module}, Seen)};
        {MFA, _} ->
            call(Tree, Anno, MFA, Args, Scope, Seen)
    end;
rewrite({'fun', Anno, {function, {atom, _, Module}, {atom, _, Function}, {integer, _, Arity}}} = Tree, Scope, Seen) ->
    reference(Tree, Anno, {Module, Function, Arity}, Scope, Seen);
rewrite({'fun', Anno, {function, Function, Arity}} = Tree, Scope, Seen) ->
    reference(Tree, Anno, origin(Function, Arity, Scope), Scope, Seen);
rewrite({remote_type, Anno, [{atom, _, Module}, {atom, _, Type} = Name, []]} = Tree, Scope, Seen)
  when Type =:= request_id; Type =:= request_id_collection ->
    case lists:keyfind(Module, 2, selected(Scope)) of
        {_, _, Target, _} when Module =/= erlang -> {{remote_type, Anno, [{atom, Anno, Target}, Name, []]}, Seen};
        _ -> {Tree, Seen}
    end;
rewrite(Tree, _, Seen) ->
    {Tree, Seen}.

call(Tree, Anno, {erlang, '!', 2}, Args, Scope, Seen) ->
    call(Tree, Anno, {erlang, send, 2}, Args, Scope, Seen);
call(Tree, Anno, {erlang, monitor, 3}, _, Scope, Seen) ->
    {Tree, warn_if(is_selected(monitor, Scope), Anno, options_of_monitor, Seen)};
%% A message to oneself takes no way, and must not wait for room in one's own inbox.
call(Tree, Anno, {erlang, send, _} = MFA, [To | _] = Args, Scope, Seen) ->
    case is_self(To, Scope) of
        true -> {Tree, Seen};
        false -> transform(Tree, Anno, MFA, Args, Scope, Seen)
    end;
call(Tree, Anno, MFA, Args, Scope, Seen) ->
    transform(Tree, Anno, MFA, Args, Scope, Seen).

transform(Tree, Anno, MFA, Args, Scope, Seen) ->
    case target(MFA, Scope) of
        none ->
            {Tree, case is_left(MFA) orelse target(MFA, Scope#{classes := all()}) =/= none of
                       true -> sent(distribution, Anno, MFA, Args, Scope, Seen);
                       false -> Seen
                   end};
        {Module, Function, _} ->
            {{call, Anno, {remote, Anno, {atom, Anno, Module}, {atom, Anno, Function}}, Args},
             sent(lane, Anno, MFA, Args, Scope, Seen)}
    end.

applied(Tree, Anno, Module, Function, List, Scope, Seen) ->
    case elements(List) of
        unknown ->
            Known = lists:append([Functions || {_, M, _, Functions} <- selected(Scope), M =:= Module]),
            {Tree, warn_if(lists:keymember(Function, 1, Known), Anno, {unknown_arguments, Module, Function}, Seen)};
        Args ->
            call(Tree, Anno, {Module, Function, length(Args)}, Args, Scope, Seen)
    end.

elements({nil, _}) -> [];
elements({cons, _, Head, Tail}) ->
    case elements(Tail) of
        unknown -> unknown;
        Elements -> [Head | Elements]
    end;
elements(_) -> unknown.

reference(Tree, Anno, {erlang, '!', 2}, Scope, Seen) ->
    reference(Tree, Anno, {erlang, send, 2}, Scope, Seen);
reference(Tree, Anno, {erlang, monitor, 3}, Scope, Seen) ->
    {Tree, warn_if(is_selected(monitor, Scope), Anno, options_of_monitor, Seen)};
reference(Tree, Anno, MFA, Scope, Seen) ->
    case target(MFA, Scope) of
        none ->
            {Tree, Seen};
        {Module, Function, Arity} ->
            {{'fun', Anno, {function, {atom, Anno, Module}, {atom, Anno, Function}, {integer, Anno, Arity}}}, Seen}
    end.

%% What a call calls; `unknown' where only the module can be seen.
callee({remote, _, {atom, _, Module}, {atom, _, Function}}, Arity, _) -> {Module, Function, Arity};
callee({remote, _, {atom, _, Module}, _}, _, _) -> {Module, unknown};
callee({atom, _, Function}, Arity, Scope) -> origin(Function, Arity, Scope);
callee(_, _, _) -> unknown.

origin(Function, Arity, #{names := Names}) ->
    case Names of
        #{{Function, Arity} := local} -> unknown;
        #{{Function, Arity} := Module} -> {Module, Function, Arity};
        #{} ->
            case erl_internal:bif(Function, Arity) of
                true -> {erlang, Function, Arity};
                false -> unknown
            end
    end.

target({Module, Function, Arity}, Scope) ->
    case [Target || {_, M, Target, Functions} <- selected(Scope), M =:= Module,
                    {F, Arities} <- Functions, F =:= Function, lists:member(Arity, Arities)] of
        [Target] -> {Target, Function, Arity};
        [] -> none
    end;
target(unknown, _) ->
    none.

selected(#{classes := Classes}) -> [Row || {Class, _, _, _} = Row <- table(), lists:member(Class, Classes)].
is_selected(Class, #{classes := Classes}) -> lists:member(Class, Classes).
%% Is it a module all of whose requests are transformed?
is_transformed(Module, Scope) -> Module =/= erlang andalso lists:keymember(Module, 2, selected(Scope)).

is_self({call, _, Callee, []}, Scope) -> callee(Callee, 0, Scope) =:= {erlang, self, 0};
is_self(_, _) -> false.

%% A name of this node leads nowhere else; otherwise two expressions that read the same are
%% taken for the same process.
sent(By, Anno, MFA, [To | _], Scope, #seen{sent = Sent} = Seen) ->
    case element(1, To) =:= atom orelse is_self(To, Scope) of
        true ->
            Seen;
        false ->
            Destination = lists:flatten(erl_pp:expr(To)),
            Seen1 = warn_if(lists:member({other(By), Destination}, Sent), Anno, {order, MFA}, Seen),
            case is_asynchronous(MFA) of
                true -> Seen1#seen{sent = [{By, Destination} | Sent]};
                false -> Seen1
            end
    end;
sent(_, _, _, [], _, Seen) ->
    Seen.

other(lane) -> distribution;
other(distribution) -> lane.

warn_if(true, Anno, Warning, #seen{warnings = Warnings} = Seen) ->
    Seen#seen{warnings = [{erl_anno:location(Anno), ?MODULE, Warning} | Warnings]};
warn_if(false, _, _, Seen) ->
    Seen.

-spec format_error(warning() | {bad_option, term()}) -> iolist().
format_error({order, {M, F, A}}) ->
    What = case {M, F, A} of
               {erlang, send, 2} -> "`!'";
               _ -> io_lib:format("~w:~tw/~w", [M, F, A])
           end,
    [What, " and what this function sent to the same process before go by different ways, one by Trunkline, "
     "one by the distribution: their order is not defined"];
format_error({unknown_arguments, M, F}) ->
    io_lib:format("apply of ~w:~tw with arguments that are not listed here: not transformed", [M, F]);
format_error({unknown_function, M}) ->
    io_lib:format("call of a function of ~w that is not named here: not transformed", [M]);
format_error(options_of_monitor) ->
    "monitor/3 is not transformed: its 'DOWN' has no order against messages by Trunkline";
format_error({bad_option, Bad}) ->
    io_lib:format("option trunkline_transform: ~tw is none of ~0tw", [Bad, all()]).
