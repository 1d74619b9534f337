%% trunkline_transform: what OTP's functions say, the transformed module says by
%% lane, with the same answers; and nothing else in the module changes.
-module(transform_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2]).
-export([send/1, order/1, exit_signals/1, gen/1, get_after_publish/1, gen_server/1,
         gen_server_exits/1, gen_server_requests/1, gen_statem/1, gen_event/1, erpc/1, rpc/1,
         monitor/1, handbook/1]).
-export([grammar/1, lines/1, names/1, imported_to_self/1, table/1, warnings/1,
         silence/1, classes/1, bad_options/1, untouched/1, types/1, named_clause/1, otp/1,
         ourselves/1]).
-export([start_servers/0, run/2]).
-export([init/1, handle_event/2, handle_call/2, terminate/2]).

suite() -> [{timetrap, {minutes, 30}}].

all() ->
    [{group, nodes}, grammar, lines, names, imported_to_self, table, warnings, silence, classes,
     bad_options, untouched, types, named_clause, otp, ourselves].

groups() ->
    [{nodes, [],
      [send, order, exit_signals, gen, get_after_publish, gen_server, gen_server_exits,
       gen_server_requests, gen_statem, gen_event, erpc, rpc, monitor, handbook]}].

init_per_suite(Config) -> Config.
end_per_suite(_) -> ok.

init_per_group(nodes, Config) ->
    {A, B} = cluster:pair([]),
    Source = source(Config, conversation),
    [load(Node, compile(Source, Name, Options))
     || Node <- [A, B],
        {Name, Options} <- [{conversation_by_otp, []}, {conversation_by_lane, transform()}]],
    [{a, A}, {b, B} | Config].

end_per_group(nodes, Config) -> cluster:stop_all([?config(a, Config), ?config(b, Config)]).

%% The same questions by both modules have the same answers, and only one goes by lane. (What
%% takes a request or a monitor back goes by lane too, and does not count as a message.)
send(Config) -> both(Config, ?FUNCTION_NAME, 8).
order(Config) -> both(Config, ?FUNCTION_NAME, 401).
exit_signals(Config) -> both(Config, ?FUNCTION_NAME, 202).
gen(Config) -> both(Config, ?FUNCTION_NAME, 15).
gen_server(Config) -> both(Config, ?FUNCTION_NAME, 13).
gen_server_exits(Config) -> both(Config, ?FUNCTION_NAME, 3).
gen_server_requests(Config) -> both(Config, ?FUNCTION_NAME, 6).
gen_statem(Config) -> both(Config, ?FUNCTION_NAME, 6).
gen_event(Config) -> both(Config, ?FUNCTION_NAME, 10).
erpc(Config) -> both(Config, ?FUNCTION_NAME, 8).
rpc(Config) -> both(Config, ?FUNCTION_NAME, 8).
monitor(Config) -> both(Config, ?FUNCTION_NAME, 4).

both(Config, Function, Least) ->
    {Expected, 0} = answers(Config, conversation_by_otp, Function),
    {Answers, ByLane} = answers(Config, conversation_by_lane, Function),
    ?assertEqual(Expected, Answers),
    ?assert(ByLane >= Least, {ByLane, Least}).

answers(Config, Module, Function) ->
    {A, B} = {?config(a, Config), ?config(b, Config)},
    There = cluster:call(B, ?MODULE, start_servers, []),
    Before = by_lane(A, B),
    Answers = cluster:call(A, ?MODULE, run, [{Module, Function}, There]),
    {Answers, by_lane(A, B) - Before}.

%% When the lanes have passed on what they were given: nobody waits for the last of it.
by_lane(A, B) ->
    Lanes = fun() -> maps:get(lanes, cluster:info(A, B)) end,
    cluster:await(
      fun() ->
              case [Lane
                    || #{queued_messages := Q, in_flight_messages := F} = Lane <- Lanes(),
                       Q + F > 0] of
                  [] -> true;
                  Busy -> Busy
              end end),
    lists:sum([Messages || #{messages := Messages} <- Lanes()]).

%% Runs at the node: in a process of its own, whose mailbox is empty, and stays so.
run({Module, Function}, There) ->
    logger:set_primary_config(level, none),
    {Pid, Ref} = spawn_monitor(fun() ->
                                       Answers = Module:Function(There),
                                       {messages, []} = process_info(self(), messages),
                                       exit({done, comparable(Answers)})
                               end),
    receive {'DOWN', Ref, process, Pid, {done, Answers}} -> Answers;
            {'DOWN', Ref, process, Pid, Reason} -> error(Reason)
    end.

%% Each time they are other processes; and what is called is in another module.
comparable(Pid) when is_pid(Pid) ->
    case erpc:call(node(Pid), erlang, process_info, [Pid, registered_name]) of
        {registered_name, Name} -> Name;
        _ -> pid
    end;
comparable({Reason, [{Module, Function, _, Location} | _]})
  when is_atom(Module), is_atom(Function), is_list(Location) ->
    {Reason, stack};
comparable(Term) when is_tuple(Term) -> list_to_tuple(comparable(tuple_to_list(Term)));
comparable([Head | Tail]) -> [comparable(Head) | comparable(Tail)];
comparable(Term) -> Term.

start_servers() ->
    logger:set_primary_config(level, none),
    server:stop_all(),
    [begin unlink(whereis(Name)), exit(whereis(Name), kill), gone(Name) end
     || Name <- [echo, test_gen_event], is_pid(whereis(Name))],
    register(echo, spawn(fun echo/0)),
    {ok, Server} = server:start(gen_server),
    {ok, Statem} = server:start(gen_statem),
    {ok, Event} = gen_event:start({local, test_gen_event}),
    #{node => node(), echo => whereis(echo), gen_server => Server, gen_statem => Statem,
      gen_event => Event}.

gone(Name) -> cluster:await(fun() -> whereis(Name) =:= undefined end).

echo() ->
    receive {echo, From, N} -> From ! {echoed, N} end,
    echo().

%% The handler of events.
init({Args, _}) -> {ok, Args};
init(Args) -> {ok, Args}.
handle_event(Event, Events) -> {ok, [Event | Events]}.
handle_call(events, Events) -> {ok, Events, Events}.
terminate(Why, _) -> Why.

%% A behaviour of its own makes casts of gen_server's and calls of gen's: both go by lane.
get_after_publish(Config) ->
    {A, B} = {?config(a, Config), ?config(b, Config)},
    Compiled = compile(source(Config, broker), broker, transform()),
    [load(Node, Compiled) || Node <- [A, B]],
    Before = by_lane(A, B),
    Queue = cluster:call(B, broker, start, []),
    ?assertEqual(1000, cluster:call(A, broker, got, [Queue, 1000])),
    ?assert(by_lane(A, B) - Before >= 2000).

%% The example of docs/howto/adopt.md.
handbook(Config) ->
    {A, B} = {?config(a, Config), ?config(b, Config)},
    {ok, Text} = file:read_file(filename:join(project(), "docs/howto/adopt.md")),
    {match, [[Example]]} = re:run(Text, "```erlang\n(-module.*?)```",
                                  [global, dotall, {capture, all_but_first, binary}]),
    File = filename:join(?config(priv_dir, Config), "stock.erl"),
    %% (But for a time that a loaded machine may need.)
    [Head, Rest] = binary:split(Example, <<"{take, Item, N}, 1000)">>),
    ok = file:write_file(File, [Head, "{take, Item, N}, 60000)", Rest]),
    {ok, stock, Binary, []} =
        compile:file(File, [binary, return, warnings_as_errors | transform()]),
    [load(Node, {stock, Binary, []}) || Node <- [A, B]],
    Before = by_lane(A, B),
    ok = cluster:call(A, stock, example, [cluster:node_of(B)]),
    ?assert(by_lane(A, B) > Before).

grammar(Config) ->
    Source = source(Config, grammar),
    load(compile(Source, grammar_by_otp, [])),
    load(compile(Source, grammar_by_lane, transform())),
    {Values, Said} = here(grammar_by_otp, all, []),
    ?assertEqual({Values, Said}, here(grammar_by_lane, all, [])),
    ?assert(length(Said) > 50),
    ?assertEqual([], [MFA || MFA <- said(parse_transform(parsed(Source), [])), is_talk(MFA)]).

here(Module, Function, Args) ->
    comparable(apply(Module, Function, Args)).

%% Stack traces and the compiler's warnings name the same lines, and columns.
lines(Config) ->
    Source = source(Config, grammar),
    Lines = [begin
                 load(compile(Source, Name, Options)),
                 {error, badarg, Stack} =
                     try Name:crash(["no destination"]) catch C:R:S -> {C, R, S} end,
                 [proplists:get_value(line, Location)
                  || {Module, _, _, Location} <- Stack, Module =:= Name]
             end || {Name, Options} <- [{grammar_by_otp, []}, {grammar_by_lane, transform()}]],
    [[Line], [Line]] = Lines,
    ?assert(is_integer(Line)),
    Text =
        "-module(m).\n-export([f/1]).\nf(P) ->\n  X = P ! x,\n  gen_server:call(P, {x,\n Y}), "
        "fun(X) -> P ! X end.\n",
    [begin
         {error, [{_, Errors}], [{_, Warnings}]} = compile:forms(forms(Text), [return | Options]),
         ?assertEqual({[{{6, 2}, erl_lint, {unbound_var, 'Y'}}],
                       [{{4, 3}, erl_lint, {unused_var, 'X'}},
                        {{6, 11}, erl_lint, {shadowed_var, 'X', 'fun'}}]},
                      {Errors, Warnings})
     end || Options <- [[], transform()]].

%% Local functions are what they are; imported ones are OTP's, and no import is left unused.
names(Config) ->
    Options = [warn_unused_import, warnings_as_errors,
               {nowarn_trunkline_transform, {gen_server, stop, 1}} | transform()],
    {_, Binary, _} = Compiled = compile(source(Config, names), names_by_lane, Options),
    load(Compiled),
    ?assertEqual([{mine, process, 0}, {mine, 0, 1}, {mine, 0, 2, 3}, {mine, a, b}, {mine, c, d},
                  {mine, 1, 2, 3}],
                 names_by_lane:own(0)),
    {ok, {_, [{imports, Imports}]}} = beam_lib:chunks(Binary, [imports]),
    ?assertEqual([{gen_server, stop, 1}, {lists, member, 2}, {trunkline_erpc, multicast, 2},
                  {trunkline_gen_server, call, 2}, {trunkline_gen_server, cast, 2}],
                 lists:sort([MFA || {Module, _, _} = MFA <- Imports, Module =/= erlang])).

%% An import is not missing where a process sends to itself.
imported_to_self(_) ->
    Text = "-module(m).\n-export([f/1]).\n-compile({no_auto_import, [exit/2]}).\n"
        "-import(erlang, [send/2, send/3, exit/2]).\n"
        "f(X) -> send(X, a), send(self(), a), ok = send(self(), b, []), exit(X, r),\n"
        "        receive a -> receive b -> exit(self(), done) end end.\n",
    [begin
         {ok, m, Binary} = compile:forms(forms(Text), [warn_unused_import, warnings_as_errors
                                                       | Options]),
         load({m, Binary, []}),
         {Pid, Ref} = spawn_monitor(fun() -> m:f(spawn(fun() -> ok end)) end),
         receive {'DOWN', Ref, process, Pid, Reason} -> ?assertEqual(done, Reason) end
     end || Options <- [transform(), [{trunkline_transform, [monitor]} | transform()]]].

%% What OTP's modules export and is left to them.
-define(LEFT,
        [start, start_link, start_monitor, enter_loop, stop, reply, add_sup_handler,
         swap_sup_handler,
         %% not for users
         behaviour_info, module_info, init_it, debug_options, hibernate_after, name,
         unregister_name, get_proc_name, get_parent, format_status_header,
         '@wait_response_recv_opt', wake_hib, wakeup_from_hibernate, format_log, format_status,
         system_code_change, system_continue, system_get_state, system_replace_state,
         system_terminate, call_result, execute_call, execute_cast, is_arg_error, trim_stack,
         init, handle_call, handle_cast, handle_info, terminate, code_change, proxy_user_flush]).

%% Of every function that OTP's modules export it is decided what becomes of it, and
%% what it becomes is there.
table(_) ->
    [begin
         MFA = {Module, Function, Arity},
         [Called] = calls(MFA),
         ?assertEqual({MFA, lists:member(Function, ?LEFT)}, {MFA, Called =:= MFA}),
         Called =:= MFA orelse
             begin
                 {Ours, Function, Arity} = Called,
                 ?assertEqual({list_to_atom("trunkline_" ++ atom_to_list(Module)), true},
                              {Ours, code:ensure_loaded(Ours) =:= {module, Ours}
                               andalso erlang:function_exported(Ours, Function, Arity)}, Called)
             end
     end || Module <- [gen, gen_server, gen_statem, gen_event, erpc, rpc],
            {Function, Arity} <- Module:module_info(exports)],
    [begin
         [{trunkline, Function, Arity}] = calls({erlang, Function, Arity}),
         ?assert(erlang:function_exported(trunkline, Function, Arity), {Function, Arity})
     end
     || {Function, Arity} <- [{send, 2}, {send, 3}, {monitor, 2}, {demonitor, 1}, {demonitor, 2},
                              {exit, 2}]].

%% What is called by a transformed function that calls this one.
calls({Module, Function, Arity}) ->
    Args = lists:join(", ", ["X" ++ integer_to_list(N) || N <- lists:seq(1, Arity)]),
    Text = io_lib:format("-module(m).\nf(~s) -> ~w:~w(~s).\n", [Args, Module, Function, Args]),
    said(parse_transform(forms(Text), [])).

warnings(Config) ->
    Source = source(Config, doubts),
    {_, _, Warnings} = compile(Source, doubts, transform()),
    ?assertEqual(expected(Source),
                 lists:sort([{line(Location), kind(Warning)} || {Location, Warning} <- Warnings])),
    [?assert(
       io_lib:printable_unicode_list(lists:flatten(trunkline_transform:format_error(Warning))))
     || {_, Warning} <- Warnings],
    %% They are warnings as any others.
    ?assertMatch({error, _, _},
                 compile:file(Source, [binary, return, warnings_as_errors, {d, 'NAME', doubts}
                                       | transform()])).

line({Line, _}) -> Line;
line(Line) -> Line.

kind(Warning) -> element(1, Warning).

%% As the comments in the source say.
expected(Source) ->
    {ok, Text} = file:read_file(Source),
    Comment = "% (order|left|unknown_arguments|unknown_function)$",
    lists:append([case re:run(Line, Comment, [{capture, [1], list}]) of
                      {match, [Kind]} -> [{N, list_to_atom(Kind)}];
                      nomatch -> []
                  end || {N, Line} <- lists:enumerate(binary:split(Text, <<"\n">>, [global]))]).

silence(Config) ->
    Source = source(Config, doubts),
    {_, _, []} = compile(Source, doubts, [nowarn_trunkline_transform | transform()]),
    {_, _, []} = compile(Source, doubts, [{trunkline_transform, []} | transform()]),
    {_, _, All} = compile(Source, doubts, transform()),
    {_, _, Some} =
        compile(Source, doubts, [{nowarn_trunkline_transform, [{f, 4}, {waits, 1}]} | transform()]),
    {_, _, Most} =
        compile(Source, doubts, [{nowarn_trunkline_transform, {silent, 1}} | transform()]),
    ?assertEqual(10, length(All) - length(Some)),
    ?assertEqual(1, length(All) - length(Most)),
    %% Of what they call.
    Rest = [Warning || {_, Warning} <- All,
                       not lists:member(element(2, Warning),
                                        [{sys, suspend, 1}, {gen_server, stop, 1}])],
    {_, _, Others} = compile(Source, doubts,
                             [{nowarn_trunkline_transform,
                               [{sys, suspend, 1}, {gen_server, stop, 1}]}
                              | transform()]),
    ?assertEqual(Rest, [Warning || {_, Warning} <- Others]),
    ?assert(length(Rest) < length(All)),
    %% Of monitors, if these are not transformed.
    Monitors = fun(Options) ->
                       {_, _, Warnings} = compile(Source, doubts, Options ++ transform()),
                       [MFA || {_, {left, {erlang, monitor, _} = MFA, _}} <- Warnings]
               end,
    ?assertEqual([], Monitors([{trunkline_transform, [gen_server]}])),
    ?assertMatch([_, _], Monitors([{trunkline_transform, [monitor]}])),
    %% In the module itself.
    Text = "-module(m).\n-export([f/1]).\n-compile([~s]).\nf(P) -> P ! x, sys:suspend(P).\n",
    [?assertMatch({ok, m, _, []},
                  compile:forms(forms(io_lib:format(Text, [Own])), [binary, return | transform()]))
     || Own <- ["nowarn_trunkline_transform", "{nowarn_trunkline_transform, [{f, 1}]}",
                "{trunkline_transform, []}"]],
    ?assertMatch({ok, m, _, [_]},
                 compile:forms(forms(io_lib:format(Text, [""])), [binary, return | transform()])).

%% Only what is asked for; a module's own option is the one that counts.
classes(_) ->
    Text =
        "-module(m).\n~s-export([f/2]).\nf(P, N) -> P ! x, gen:call(P, l, x), gen_server:call(P, "
        "x), gen_statem:call(P, x), gen_event:sync_notify(P, x), erpc:call(N, m, f, []), "
        "rpc:call(N, m, f, []), monitor(process, P), exit(P, x), fun gen_server:cast/2.\n",
    All = [{send, trunkline, send, 2}, {gen, trunkline_gen, call, 3},
           {gen_server, trunkline_gen_server, call, 2}, {gen_server, trunkline_gen_server, cast, 2},
           {gen_statem, trunkline_gen_statem, call, 2},
           {gen_event, trunkline_gen_event, sync_notify, 2},
           {erpc, trunkline_erpc, call, 4}, {rpc, trunkline_rpc, call, 4},
           {monitor, trunkline, monitor, 2},
           {exit, trunkline, exit, 2}],
    [begin
         Expected =
             lists:sort([{M, F, A} || {Class, M, F, A} <- All, lists:member(Class, Classes)]),
         Option = {trunkline_transform, Classes},
         ?assertEqual(Expected, ours(io_lib:format(Text, [""]), [Option])),
         ?assertEqual(Expected,
                      ours(io_lib:format(Text, [io_lib:format("-compile(~0p).\n", [Option])]),
                           [{trunkline_transform, [send, erpc]}]))
     end || Classes <- [[]] ++ [[Class] || {Class, _, _, _} <- All] ++
                [[send, gen_server],
                 [send, monitor, exit, gen, gen_server, gen_statem, gen_event, erpc, rpc]]],
    ?assertEqual(lists:sort([{M, F, A} || {_, M, F, A} <- All]),
                 ours(io_lib:format(Text, [""]), [])),
    %% What is not transformed goes another way than what is.
    Mixed = forms("-module(m).\n-export([f/1]).\nf(P) ->\n P ! x,\n gen_server:cast(P, y).\n"),
    [{warning, _, [{_, [{{5, 2}, _, {order, {gen_server, cast, 2}}}]}]} =
         parse_transform(Mixed, [{trunkline_transform, [Class]}]) || Class <- [send, gen_server]].

ours(Text, Options) ->
    Transformed = parse_transform(forms(Text), [nowarn_trunkline_transform | Options]),
    {ok, m, _} = compile:forms(Transformed),
    lists:usort([MFA || {Module, _, _} = MFA <- said(Transformed),
                        lists:prefix("trunkline", atom_to_list(Module))]).

bad_options(_) ->
    Forms = forms("-module(m).\n-export([f/1]).\nf(P) -> P ! x.\n"),
    [begin
         {error, [{_, [{none, trunkline_transform, Problem}]}], []} =
             compile:forms(Forms, [return | transform() ++ [{trunkline_transform, Option}]]),
         ?assertEqual(Bad, Problem),
         Said = lists:flatten(trunkline_transform:format_error(Problem)),
         [?assertNotEqual(nomatch, string:find(Said, Word))
          || Word <- [Text, "gen_server, "]]
     end || {Option, Bad, Text} <-
                [{[send, gen_servr], {bad_option, gen_servr}, "no class gen_servr"},
                 {[nowarn], {bad_option, nowarn}, "no class nowarn"},
                 {erpc, {no_list, erpc}, "erpc is not a list of classes"},
                 {[send | erpc], {no_list, [send | erpc]}, "[send|erpc] is not a list"}]],
    %% With the line of the attribute.
    {error, [{_, [{{2, 2}, trunkline_transform, {bad_option, sned}}]}], []} =
        compile:forms(forms("-module(m).\n-compile({trunkline_transform, [sned]}).\n"
                            "-export([f/1]).\nf(P) -> P ! x.\n"), [return | transform()]),
    [begin
         {error, [{_, [{{2, 2}, trunkline_transform, {bad_nowarn, Bad} = Problem}]}], []} =
             compile:forms(forms(io_lib:format("-module(m).\n-compile(~0p).\n-export([f/1]).\n"
                                               "f(P) -> P ! x.\n",
                                               [{nowarn_trunkline_transform, Names}])),
                           [return | transform()]),
         ?assertEqual(lists:flatten(io_lib:format("option nowarn_trunkline_transform: ~0p is "
                                                  "neither {Name, Arity} nor {Module, Name, "
                                                  "Arity}", [Bad])),
                      lists:flatten(trunkline_transform:format_error(Problem)))
     end || {Names, Bad} <- [{f, f}, {[{f, 1}, g], g}, {[{f, x}], {f, x}},
                             {[{f, 1} | g], [{f, 1} | g]}]].

%% A module that says nothing to anybody stays as it is, term for term.
untouched(Config) ->
    Forms = forms("-module(m).\n-export([f/1]).\n-record(r, {a = 1}).\n-import(lists, [map/2]).\n"
                  "-type t() :: #{a := '!'}.\n-spec f(t()) -> ok.\n"
                  "f(X) -> self() ! x, #r{a = map(fun(Y) -> [$!, \"!\" | Y] end, X)}, ok.\n"),
    ?assertEqual(Forms, parse_transform(Forms, [])),
    Talking = parsed(source(Config, grammar)),
    ?assertEqual(Talking, parse_transform(Talking, [{trunkline_transform, []}])),
    ?assertNotEqual(Talking, parse_transform(Talking, [])).

%% Types of request ids go with the functions that make them. An attribute of the user's is the
%% user's.
types(_) ->
    Text = "-module(m).\n-export([f/1]).\n-record(r, {id :: ~w:request_id()}).\n"
        "-type t() :: [#r{} | ~w:request_id_collection() | gen_server:from()].\n"
        "-spec f(t()) -> gen_statem:request_id() | erpc:request_id() | rpc:key().\n"
        "f(X) -> X.\n-mine({op, 1, '!', {call, 1, {atom, 1, self}, []}, [improper | list]}).\n",
    ?assertEqual(forms(io_lib:format(Text, [trunkline_gen_server, trunkline_gen_event]), 1),
                 parse_transform(forms(io_lib:format(Text, [gen_server, gen_event]), 1),
                                 [{trunkline_transform, [send, gen_server, gen_event]}])).

%% The specification of a function with the name `clause' looks like a list of clauses.
named_clause(_) ->
    Text = "-module(m).\n-export([clause/1]).\n-callback clause(pid()) -> x.\n"
        "-spec clause(pid()) -> x.\nclause(P) -> P ! x.\n",
    ?assertMatch({ok, m, _}, compile:forms(forms(Text), transform())).

%% OTP's own modules: those that say nothing stay as they are, and the others compile.
otp(_) ->
    Beams = lists:append(
              [filelib:wildcard(filename:join([code:lib_dir(Application), "ebin", "*.beam"]))
               || Application <- [kernel, stdlib, sasl]]),
    Talking = lists:append([otp_module(beam_lib:chunks(Beam, [abstract_code])) || Beam <- Beams]),
    ct:pal("~b modules of ~b: ~0p", [length(Talking), length(Beams), Talking]),
    ?assert(length(Talking) > 20).

otp_module({ok, {Module, [{abstract_code, {raw_abstract_v1, Forms}}]}}) ->
    Transformed = parse_transform(Forms, [nowarn_trunkline_transform]),
    case lists:any(fun is_talk/1, said(Forms)) of
        false ->
            ?assertEqual({Module, Forms}, {Module, Transformed}),
            [];
        true ->
            ?assertEqual({Module, []}, {Module, [MFA || MFA <- said(Transformed), is_talk(MFA)]}),
            ?assertMatch({Module, {ok, Module, _, _}},
                         {Module, compile:forms(Transformed, [binary, return])}),
            [Module]
    end.

%% This project's, from their sources, with all that the compiler warns of.
ourselves(_) ->
    _ = application:load(trunkline),
    {ok, Modules} = application:get_key(trunkline, modules),
    [begin
         [Source] =
             filelib:wildcard(filename:join([project(), "src/**", atom_to_list(Module) ++ ".erl"])),
         ?assertMatch({Module, {ok, Module, _, []}},
                      {Module,
                       compile:file(Source,
                                    [binary, return, nowarn_trunkline_transform | transform()])})
     end || Module <- Modules, lists:prefix("trunkline", atom_to_list(Module))].

project() ->
    filename:dirname(filename:dirname(proplists:get_value(source, trunkline:module_info(compile)))).

transform() -> [{parse_transform, trunkline_transform}].

parse_transform(Forms, Options) -> trunkline_transform:parse_transform(Forms, Options).

source(Config, Name) -> filename:join(?config(data_dir, Config), atom_to_list(Name) ++ ".erl").

%% With the transform's warnings.
compile(Source, Name, Options) ->
    {ok, Name, Binary, Warnings} =
        compile:file(Source, [binary, return, {d, 'NAME', Name} | Options]),
    {Name, Binary,
     [{Location, Warning} || {_, Of} <- Warnings, {Location, trunkline_transform, Warning} <- Of]}.

load({Name, Binary, _}) ->
    {module, Name} = code:load_binary(Name, "nofile", Binary).

load(Node, {Name, Binary, _}) ->
    {module, Name} = cluster:call(Node, code, load_binary, [Name, "nofile", Binary]).

parsed(Source) ->
    {ok, Forms} = epp:parse_file(Source, [{macros, [{'NAME', m}]}]),
    Forms.

%% What forms call, and refer to, by the name of a module or as a BIF. A message to
%% oneself is not said.
said({op, _, '!', {call, _, {atom, _, self}, []}, Message}) ->
    said(Message);
said({op, _, '!', To, Message}) ->
    [{erlang, '!', 2} | said([To, Message])];
said({call, _, {remote, _, {atom, _, Module}, {atom, _, Function}}, Args}) ->
    [{Module, Function, length(Args)} | said(Args)];
said({call, _, {atom, _, demonitor}, Args}) ->
    [{erlang, demonitor, length(Args)} | said(Args)];
said({call, _, {atom, _, exit}, [{call, _, {atom, _, self}, []}, Reason]}) ->
    said(Reason);
said({call, _, {atom, _, exit}, [_, _] = Args}) ->
    [{erlang, exit, 2} | said(Args)];
said({call, _, {atom, _, monitor}, [_, _] = Args}) ->
    [{erlang, monitor, length(Args)} | said(Args)];
said({call, _, {atom, _, apply},
      [{atom, _, Module}, {atom, _, Function}, {cons, _, _, {cons, _, _, {nil, _}}} = Args]}) ->
    [{Module, Function, 2} | said(Args)];
said({'fun', _, {function, {atom, _, Module}, {atom, _, Function}, {integer, _, Arity}}}) ->
    [{Module, Function, Arity}];
said(Tree) when is_tuple(Tree) ->
    said(tuple_to_list(Tree));
said([Tree | Trees]) ->
    said(Tree) ++ said(Trees);
said(_) ->
    [].

%% Is it for the transform?
is_talk({erlang, Function, Arity}) ->
    lists:member({Function, Arity},
                 [{'!', 2}, {send, 2}, {send, 3}, {monitor, 2}, {demonitor, 1}, {demonitor, 2},
                  {exit, 2}]);
is_talk({Module, Function, _}) ->
    lists:member(Module, [gen, gen_server, gen_statem, gen_event, erpc, rpc])
        andalso not lists:member(Function, ?LEFT).

forms(Text) -> forms(Text, {1, 1}).

forms(Text, Start) ->
    {ok, Tokens, _} = erl_scan:string(lists:flatten(Text), Start),
    parse(Tokens, []).

parse([], []) -> [];
parse([{dot, _} = Dot | Tokens], Form) ->
    {ok, Parsed} = erl_parse:parse_form(lists:reverse([Dot | Form])),
    [Parsed | parse(Tokens, [])];
parse([Token | Tokens], Form) -> parse(Tokens, [Token | Form]).
