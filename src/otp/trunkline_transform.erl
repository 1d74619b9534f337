-module(trunkline_transform).
-moduledoc "
A parse transform: a module's messages, calls, monitors and remote calls go by Trunkline, without an
edit.

```erlang
%% rebar.config
{erl_opts, [{parse_transform, trunkline_transform}]}.
```

`!`, `erlang:send`, `erlang:monitor`, `erlang:exit/2`, and the functions for callers of `gen`,
`gen_server`, `gen_statem`, `gen_event`, `erpc` and `rpc` are turned into those of Trunkline, which
take the same arguments and have the same results and exits. So nothing around a call needs to
change. (But `!` to a list of destinations is a multicast.) Types of request ids follow their
functions. Everything else in the module stays as it is, and so do line numbers.

Two options of the compiler control it. A module may set them, too, with `-compile`:

- `{trunkline_transform, Kinds}`: only these, of `send`, `monitor`, `exit`, `gen`, `gen_server`,
  `gen_statem`, `gen_event`, `erpc` and `rpc`. A module's own option counts, not the project's: with
  `-compile({trunkline_transform, []})` nothing is done to the module.
- `nowarn_trunkline_transform`, or `{nowarn_trunkline_transform, List}`: no warnings, or none in
  functions `{Name, Arity}` of the module, and none of calls of `{Module, Name, Arity}`.

There is no order between what goes by Trunkline and what goes by the distribution. Hence it warns
where something goes to a process by the one way, and then something to the same process by the
other; of a call of OTP's that sends to another process and is not transformed, unless it is plain
that it stays on this node; and of a call that it cannot see through. Whether two functions send to
the same process cannot be seen.
".
-moduledoc #{since => <<"0.5.0">>}.
-compile({parse_transform, trunkline_docs}).

-export([parse_transform/2, format_error/1]).
-export([stock/1]).

-type forms() :: [erl_parse:abstract_form() | erl_parse:form_info()].
-type option() :: term().
%% A function that is not known is `_', and an arity 0.
-type warning() :: {order | unknown_arguments | unknown_function, mfa()}
                 | {left, mfa(), meaning()}.
%% What may come out of order because it goes by the distribution.
-type meaning() :: message | link | down | nodedown | start | halt.
-type problem() :: {erl_anno:location() | none, module(), warning() | wrong()}.
%% A class that does not exist; or the classes are not a list; or what should be the name of a
%% function for which there are no warnings.
-type wrong() :: {bad_option | no_list | bad_nowarn, term()}.

%% While a function is walked: what was sent without waiting for an answer, by which way and to
%% which expression; and the warnings, in reverse order.
-record(seen, {sent = [] :: [{by(), Destination :: string()}],
               warnings = [] :: [problem()]}).
-type by() :: lane | distribution.

%% What is transformed: the class, OTP's module, and Trunkline's, of which all functions take the
%% place of OTP's that have the same name, or only these.
table() ->
    [{send, erlang, trunkline, [{send, 2}, {send, 3}]},
     {monitor, erlang, trunkline, [{monitor, 2}, {demonitor, 1}, {demonitor, 2}]},
     {exit, erlang, trunkline, [{exit, 2}]},
     {gen, gen, trunkline_gen, all},
     {gen_server, gen_server, trunkline_gen_server, all},
     {gen_statem, gen_statem, trunkline_gen_statem, all},
     {gen_event, gen_event, trunkline_gen_event, all},
     {erpc, erpc, trunkline_erpc, all},
     {rpc, rpc, trunkline_rpc, all}].

%% The link between a manager and a caller is OTP's own, so the functions that make it stay OTP's.
functions({_, _, By, all}) ->
    By:module_info(exports) -- [{module_info, 0}, {module_info, 1},
                                {add_sup_handler, 3}, {swap_sup_handler, 3}];
functions({_, _, _, Functions}) ->
    Functions.

-doc "
The function of OTP in place of which the transform puts this one; an empty list if it puts it in
for none.

```erlang
1> trunkline_transform:stock({trunkline_gen_server, call, 2}).
[{gen_server,call,2}]
```
".
-doc #{since => <<"1.0.0">>}.
-spec stock(mfa()) -> [mfa()].
stock({Module, Function, Arity}) ->
    [{Stock, Function, Arity} || {_, Stock, By, _} = Row <- table(), By =:= Module,
                                 lists:member({Function, Arity}, functions(Row))].

%% Functions that are not transformed, and that send something to a process or a node, possibly a
%% remote one: which argument is the destination, and what that means for the order. The transform
%% may warn about them. Replies take the way of their requests (see trunkline_gen), and
%% erlang:send_after and start_timer send only to processes of this node, so they are not here.
left() ->
    [{erlang, message, 1, [{send_nosuspend, [2, 3]}, {exit, [3]}]},
     {erlang, message, 2, [{group_leader, [2]}]},
     {erlang, down, 2, [{monitor, [3]}]},
     {erlang, link, 1, [{link, [1, 2]}, {spawn_link, [2, 4]}]},
     {erlang, down, 1, [{spawn_monitor, [2, 4]}]},
     {erlang, start, 1, [{spawn, [2, 4]}, {spawn_opt, [3, 5]}, {spawn_request, [2, 3, 4, 5]}]},
     {erlang, nodedown, 1, [{monitor_node, [2, 3]}]},
     {net_kernel, nodedown, none, [{monitor_nodes, [1, 2]}]},
     {proc_lib, message, 1, [{stop, [1, 3]}]},
     {proc_lib, link, 1, [{spawn_link, [2, 4]}]},
     {proc_lib, start, 1, [{spawn, [2, 4]}, {spawn_opt, [3, 5]}]},
     {gen, message, 1, [{stop, [1, 3]}]},
     {gen_server, message, 1, [{stop, [1, 3]}]},
     {gen_statem, message, 1, [{stop, [1, 3]}]},
     {gen_event, message, 1, [{stop, [1, 3]}, {add_sup_handler, [3]}, {swap_sup_handler, [3]}]},
     {gen_fsm, message, 1,
      [{send_event, [2]}, {sync_send_event, [2, 3]}, {send_all_state_event, [2]},
       {sync_send_all_state_event, [2, 3]}, {stop, [1, 3]}]},
     {supervisor, message, 1,
      [{start_child, [2]}, {restart_child, [2]}, {terminate_child, [2]}, {delete_child, [2]},
       {which_children, [1]}, {which_child, [2]}, {count_children, [1]}, {get_childspec, [2]}]},
     {sys, message, 1,
      [{suspend, [1, 2]}, {resume, [1, 2]}, {get_status, [1, 2]}, {get_state, [1, 2]},
       {replace_state, [2, 3]}, {change_code, [4, 5]}, {terminate, [2, 3]}, {log, [2, 3]},
       {trace, [2, 3]}, {log_to_file, [2, 3]}, {statistics, [2, 3]}, {no_debug, [1, 2]},
       {install, [2, 3]}, {remove, [2, 3]}]},
     {global, message, 1, [{send, [2]}]},
     {global_group, message, none, [{send, [2, 3]}]},
     {pool, start, none, [{pspawn, [3]}]},
     {pool, link, none, [{pspawn_link, [3]}]},
     {erlang, halt, none, [{halt, [0, 1, 2]}]},
     {timer, message, 2,
      [{send_after, [3]}, {send_interval, [3]}, {exit_after, [3]}, {kill_after, [2]}]}].

left({Module, Function, Arity}) ->
    case [{Meaning, Argument} || {M, Meaning, Argument, Functions} <- left(), M =:= Module,
                                 {F, Arities} <- Functions, F =:= Function,
                                 lists:member(Arity, Arities)] of
        [Left] -> Left;
        [] -> none
    end;
left(unknown) ->
    none.

%% Functions that return before the other process has seen the message.
is_asynchronous({_, Function, _}) ->
    lists:member(Function, [send, cast, notify, send_request, send_nosuspend, exit, monitor]).

-doc "
What the compiler calls.

```erlang
-compile({parse_transform, trunkline_transform}).
```
".
-doc #{since => <<"0.5.0">>}.
-spec parse_transform(forms(), [option()]) ->
          forms() | {warning, forms(), [{file:filename(), [problem()]}]}
                  | {error, [{file:filename(), [problem()]}], []}.
parse_transform(Forms, Options) ->
    Own = lists:append([lists:flatten([Option]) || {attribute, _, compile, Option} <- Forms]),
    case {classes(Own ++ Options), silent(Own ++ Options)} of
        {{_, _} = Wrong, _} ->
            wrong(trunkline_transform, Wrong, Forms);
        {_, {bad_nowarn, _} = Wrong} ->
            wrong(nowarn_trunkline_transform, Wrong, Forms);
        {Classes, Silent} ->
            %% What holds in the whole module: what to transform, and the module of each function
            %% that is called without one.
            Scope = #{classes => Classes, names => names(Forms)},
            case forms(Forms, file(Forms), Scope, Silent) of
                {Transformed, []} -> Transformed;
                {Transformed, Warnings} -> {warning, Transformed, Warnings}
            end
    end.

wrong(Option, Wrong, Forms) ->
    {error, [{file(Forms), [{line(Option, Forms), ?MODULE, Wrong}]}], []}.

file([{attribute, _, file, {File, _}} | _]) -> File;
file(_) -> "nofile".

%% Of the attribute with the option, if there is one.
line(Option, Forms) ->
    hd([Line || {attribute, Line, compile, Options} <- Forms,
                lists:keymember(Option, 1, lists:flatten([Options]))]
       ++ [none]).

classes(Options) ->
    case lists:keyfind(trunkline_transform, 1, Options) of
        {_, Classes} when length(Classes) >= 0 ->
            case [Class || Class <- Classes, not lists:member(Class, all())] of
                [] -> Classes;
                [Bad | _] -> {bad_option, Bad}
            end;
        {_, Bad} ->
            {no_list, Bad};
        false ->
            all()
    end.

all() -> [Class || {Class, _, _, _} <- table()].

%% The functions for which there are no warnings: of the module, and of others that it calls.
silent(Options) ->
    case lists:member(nowarn_trunkline_transform, Options) of
        true -> all;
        false -> silent_names([Names || {nowarn_trunkline_transform, Names} <- Options])
    end.

%% (Where the compiler takes a list of names, it takes one name, too.)
silent_names(Values) ->
    Names = lists:append([if length(Value) >= 0 -> Value;
                             true -> [Value]
                          end || Value <- Values]),
    hd([{bad_nowarn, Bad} || Bad <- Names, not is_name(Bad)] ++ [Names]).

is_name({Function, Arity}) -> is_atom(Function) andalso is_integer(Arity);
is_name({Module, Function, Arity}) -> is_atom(Module) andalso is_name({Function, Arity});
is_name(_) -> false.

%% A function that the module defines or imports hides a BIF of that name.
names(Forms) ->
    maps:from_list([{Name, Module}
                    || {attribute, _, import, {Module, Names}} <- Forms, Name <- Names]
                   ++ [{{Name, Arity}, local} || {function, _, Name, Arity, _} <- Forms]).

forms([{attribute, _, file, {File, _}} = Form | Forms], _, Scope, Silent) ->
    {Rest, Warnings} = forms(Forms, File, Scope, Silent),
    {[Form | Rest], Warnings};
forms([{attribute, Anno, import, {Module, Names}} | Forms], File, Scope, Silent) ->
    %% An import of transformed functions would be unused.
    {Rest, Warnings} = forms(Forms, File, Scope, Silent),
    Used = [Name || {Function, Arity} = Name <- Names,
                    target({Module, Function, Arity}, Scope) =:= none],
    {[{attribute, Anno, import, {Module, Used}} | Rest], Warnings};
forms([Form | Forms], File, Scope, Silent) ->
    {Transformed, #seen{warnings = Found}} = case is_code(Form) of
                                                 true -> walk(Form, Scope, #seen{});
                                                 false -> {Form, #seen{}}
                                             end,
    {Rest, Warnings} = forms(Forms, File, Scope, Silent),
    {[Transformed | Rest],
     case [Problem || Problem <- Found, not is_silent(Form, Problem, Silent)] of
         [] -> Warnings;
         Loud -> [{File, lists:reverse(Loud)} | Warnings]
     end};
forms([], _, _, _) ->
    {[], []}.

%% Other attributes may contain any term.
is_code({function, _, _, _, _}) -> true;
is_code({attribute, _, Kind, _}) ->
    lists:member(Kind, [record, spec, callback, type, opaque, nominal]);
is_code(_) -> false.

is_silent(_, _, all) ->
    true;
is_silent(Form, {_, _, Warning}, Silent) ->
    lists:member({element(3, Form), element(4, Form)}, Silent)
        orelse lists:member(element(2, Warning), Silent).

%% Walks from the inside out, in the order of the text. Only one of several clauses is executed, so
%% what one clause sends does not come before what the next one sends.
walk([Clause | _] = Clauses, Scope, #seen{sent = Before} = Seen)
  when element(1, Clause) =:= clause, tuple_size(Clause) =:= 5 ->
    lists:mapfoldl(fun(Each, #seen{sent = Sent} = Seen0) ->
                           {Walked, Seen1} =
                               walk(tuple_to_list(Each), Scope, Seen0#seen{sent = Before}),
                           {list_to_tuple(Walked),
                            Seen1#seen{sent = lists:usort(Seen1#seen.sent ++ Sent)}}
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
            {Tree, warn_if(is_transformed(Module, Scope), Anno,
                           {unknown_function, {Module, '_', 0}}, Seen)};
        {MFA, _} ->
            call(Tree, Anno, MFA, Args, Scope, Seen)
    end;
rewrite({'fun', Anno,
         {function, {atom, _, Module}, {atom, _, Function}, {integer, _, Arity}}} = Tree,
        Scope, Seen) ->
    reference(Tree, Anno, {Module, Function, Arity}, Scope, Seen);
rewrite({'fun', Anno, {function, Function, Arity}} = Tree, Scope, Seen) ->
    reference(Tree, Anno, origin(Function, Arity, Scope), Scope, Seen);
rewrite({remote_type, Anno, [{atom, _, Module}, {atom, _, Type} = Name, []]} = Tree, Scope, Seen)
  when Type =:= request_id; Type =:= request_id_collection; Type =:= key ->
    case lists:keyfind(Module, 2, selected(Scope)) of
        {_, _, Target, _} when Module =/= erlang ->
            {{remote_type, Anno, [{atom, Anno, Target}, Name, []]}, Seen};
        _ -> {Tree, Seen}
    end;
rewrite(Tree, _, Seen) ->
    {Tree, Seen}.

call(Tree, Anno, {erlang, '!', 2}, Args, Scope, Seen) ->
    call(Tree, Anno, {erlang, send, 2}, Args, Scope, Seen);
%% A process that sends to itself needs no lane, and must not wait for room in its own inbox.
call(Tree, Anno, {erlang, Function, _} = MFA, [To | _] = Args, Scope, Seen)
  when Function =:= send; Function =:= exit ->
    case is_self(To, Scope) of
        true -> {to_self(Tree, Anno, MFA, Args, Scope), Seen};
        false -> transform(Tree, Anno, MFA, Args, Scope, Seen)
    end;
call(Tree, Anno, MFA, Args, Scope, Seen) ->
    transform(Tree, Anno, MFA, Args, Scope, Seen).

transform(Tree, Anno, MFA, Args, Scope, Seen) ->
    case target(MFA, Scope) of
        none ->
            {Tree, leave(Anno, MFA, Args, Scope, Seen)};
        Target ->
            {call_of(Target, Anno, Args), sent(lane, Anno, MFA, Args, Scope, Seen)}
    end.

%% What is transformed elsewhere is not imported any more.
to_self({call, _, {atom, _, _}, _} = Tree, Anno, {_, Function, Arity} = MFA, Args,
        #{names := Names} = Scope) ->
    case is_map_key({Function, Arity}, Names) andalso target(MFA, Scope) of
        {_, _, _} -> call_of(MFA, Anno, Args);
        _ -> Tree
    end;
to_self(Tree, _, _, _, _) -> Tree.

call_of({Module, Function, _}, Anno, Args) ->
    {call, Anno, {remote, Anno, {atom, Anno, Module}, {atom, Anno, Function}}, Args}.

%% Adds one warning at most: the one about the order says more.
leave(Anno, MFA, Args, Scope, #seen{warnings = Before} = Seen) ->
    case left(MFA) of
        none ->
            case target(MFA, Scope#{classes := all()}) of
                none -> Seen;
                _ -> sent(distribution, Anno, MFA, Args, Scope, Seen)
            end;
        {halt, _} ->
            %% A halt does no harm if nothing was sent by lane before.
            warn_if(lists:keymember(lane, 1, Seen#seen.sent), Anno, {left, MFA, halt}, Seen);
        {message, 1} ->
            case sent(distribution, Anno, MFA, Args, Scope, Seen) of
                #seen{warnings = Before} = Seen1 ->
                    warn_of_left(message, 1, Anno, MFA, Args, Scope, Seen1);
                Seen1 ->
                    Seen1
            end;
        {Meaning, Argument} ->
            warn_of_left(Meaning, Argument, Anno, MFA, Args, Scope, Seen)
    end.

warn_of_left(Meaning, Argument, Anno, MFA, Args, Scope, Seen) ->
    warn_if(is_due(MFA, Scope) andalso not is_here(Argument, MFA, Args, Scope),
            Anno, {left, MFA, Meaning}, Seen).

is_here(_, {_, Function, _}, Args, _) when Function =:= monitor_node; Function =:= monitor_nodes ->
    lists:keymember(false, 3, Args);         % it ends the monitoring
is_here(none, _, _, _) ->
    false;
is_here(_, {erlang, spawn_request, _}, Args, _) when length(Args) < 5 ->
    %% With these arities the process may also be started on this node.
    case Args of
        [Fun, _] -> element(1, Fun) =:= 'fun';
        [_, Function, _] -> element(1, Function) =:= atom;
        [_, _, List, _] -> element(1, List) =:= cons orelse element(1, List) =:= nil
    end;
is_here(1, {global, send, _}, _, _) ->
    false;                                   % global names may be at any node
is_here(1, {_, Function, _}, [Node | _], Scope)
  when Function =:= spawn; Function =:= spawn_link; Function =:= spawn_monitor;
       Function =:= spawn_opt ->
    is_this_node(Node, Scope);
is_here(Argument, _, Args, Scope) ->
    is_local(lists:nth(Argument, Args), Scope).

applied(Tree, Anno, Module, Function, List, Scope, Seen) ->
    case elements(List) of
        unknown ->
            Known = [F || {_, M, _, _} = Row <- selected(Scope), M =:= Module,
                          {F, _} <- functions(Row)],
            {Tree, warn_if(lists:member(Function, Known), Anno,
                           {unknown_arguments, {Module, Function, 0}}, Seen)};
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
reference(Tree, Anno, MFA, Scope, Seen) ->
    case target(MFA, Scope) of
        none ->
            case left(MFA) of
                {Meaning, _} when Meaning =/= halt ->
                    {Tree, warn_if(is_due(MFA, Scope), Anno, {left, MFA, Meaning}, Seen)};
                _ ->
                    {Tree, Seen}
            end;
        {Module, Function, Arity} ->
            {{'fun', Anno,
              {function, {atom, Anno, Module}, {atom, Anno, Function}, {integer, Anno, Arity}}},
             Seen}
    end.

%% The function that is called; `unknown' in place of what cannot be seen.
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
    case [Target || {_, M, Target, _} = Row <- selected(Scope), M =:= Module,
                    lists:member({Function, Arity}, functions(Row))] of
        [Target] -> {Target, Function, Arity};
        [] -> none
    end;
target(unknown, _) ->
    none.

selected(#{classes := Classes}) ->
    [Row || {Class, _, _, _} = Row <- table(), lists:member(Class, Classes)].
%% Whether it matters that this function is left. (If monitor/2 is not transformed either, the user
%% wants OTP's monitors.)
is_due({erlang, monitor, _}, #{classes := Classes}) -> lists:member(monitor, Classes);
is_due(_, #{classes := Classes}) -> Classes =/= [].
%% Whether all requests of that module are transformed.
is_transformed(Module, Scope) ->
    Module =/= erlang andalso lists:keymember(Module, 2, selected(Scope)).

is_self({call, _, Callee, []}, Scope) -> callee(Callee, 0, Scope) =:= {erlang, self, 0};
is_self(_, _) -> false.

%% A registered name without a node is always local.
is_local({atom, _, _}, _) -> true;
is_local({tuple, _, [_, Node]}, Scope) -> is_this_node(Node, Scope);
is_local(To, Scope) -> is_self(To, Scope).

is_this_node({call, _, Callee, []}, Scope) -> callee(Callee, 0, Scope) =:= {erlang, node, 0};
is_this_node(_, _) -> false.

%% Two expressions with the same text are taken for the same process.
sent(_, _, {erlang, demonitor, _}, _, _, Seen) ->
    Seen;
sent(By, Anno, {erlang, monitor, 2} = MFA, [Type, Process], Scope, Seen) ->
    case Type of
        {atom, _, process} -> sent_to(By, Anno, MFA, Process, Scope, Seen);
        _ -> Seen
    end;
sent(By, Anno, MFA, [To | _], Scope, Seen) ->
    sent_to(By, Anno, MFA, To, Scope, Seen);
sent(_, _, _, [], _, Seen) ->
    Seen.

sent_to(By, Anno, MFA, To, Scope, #seen{sent = Sent} = Seen) ->
    case is_local(To, Scope) of
        true ->
            Seen;
        false ->
            Destination = lists:flatten(erl_pp:expr(To)),
            Seen1 = warn_if(lists:member({other(By), Destination}, Sent), Anno, {order, MFA}, Seen),
            case is_asynchronous(MFA) of
                true -> Seen1#seen{sent = [{By, Destination} | Sent]};
                false -> Seen1
            end
    end.

other(lane) -> distribution;
other(distribution) -> lane.

warn_if(true, Anno, Warning, #seen{warnings = Warnings} = Seen) ->
    Seen#seen{warnings = [{erl_anno:location(Anno), ?MODULE, Warning} | Warnings]};
warn_if(false, _, _, Seen) ->
    Seen.

-doc "
The text of a warning or an error, for the compiler.

```erlang
1> {ok, _, _} = compile:file(my_module, [{parse_transform, trunkline_transform}, return]).
```
".
-doc #{since => <<"0.5.0">>}.
-spec format_error(warning() | wrong()) -> iolist().
format_error({order, {M, F, A}}) ->
    What = case {M, F, A} of
               {erlang, send, 2} -> "`!'";
               _ -> io_lib:format("~w:~tw/~w", [M, F, A])
           end,
    [What, " and what this function sent to the same process before go by different ways, "
     "one by Trunkline, one by the distribution: their order is not defined"];
format_error({left, {M, F, A}, Meaning}) ->
    [io_lib:format("~w:~tw/~w is not transformed: ", [M, F, A]), meaning(Meaning)];
format_error({unknown_arguments, {M, F, _}}) ->
    io_lib:format("apply of ~w:~tw with arguments that are not listed here: not transformed",
                  [M, F]);
format_error({unknown_function, {M, _, _}}) ->
    io_lib:format("call of a function of ~w that is not named here: not transformed", [M]);
format_error({bad_option, Bad}) ->
    wrong_option("there is no class ~0tp", Bad);
format_error({no_list, Bad}) ->
    wrong_option("~0tp is not a list of classes, as [send, gen_server]", Bad);
format_error({bad_nowarn, Bad}) ->
    io_lib:format("option nowarn_trunkline_transform: ~0tp is neither {Name, Arity} nor "
                  "{Module, Name, Arity}", [Bad]).

wrong_option(Text, Bad) ->
    io_lib:format("option trunkline_transform: " ++ Text ++ "; the classes are ~ts",
                  [Bad, lists:join(", ", [atom_to_list(Class) || Class <- all()])]).

meaning(message) ->
    "it goes by the distribution, and has no order against what goes to the same process by "
    "Trunkline";
meaning(link) ->
    "exit signals by the link may overtake what was sent by Trunkline before";
meaning(down) ->
    "the 'DOWN' may overtake what the process has sent by Trunkline before";
meaning(nodedown) ->
    "what that node has sent by Trunkline before may come after the news that it is down";
meaning(start) ->
    "the new process may run before earlier messages of this process have arrived at that node";
meaning(halt) ->
    "what this function has sent by Trunkline may still be in this node, and is lost then; "
    "init:stop/0,1 waits for it".
