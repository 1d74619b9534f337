-module(trunkline_adopt).
-moduledoc "
Applications of others by Trunkline, without their source.

A dependency that is compiled with debug information can be adopted: its modules are transformed as
`m:trunkline_transform` does it, and nothing in them is edited. That holds for modules of Erlang and
of Elixir alike. Name the applications in the options of Trunkline, and they are adopted when it
starts:

```erlang
%% sys.config
[{trunkline, [{adopt, [rabbit, rabbit_common, ra]}]}].
```

Trunkline must start before they do. Applications of OTP are adopted only if they are named as such,
as `{otp, mnesia}`; `kernel`, `stdlib` and what else Trunkline itself is made of never are.

`report/1` says before what an application sends, and what would become of it, and `check/0` says
afterwards whether the code that runs is adopted, here and on the other nodes.

```erlang
1> #{others := #{}} = trunkline_adopt:report([{otp, mnesia}]).
```
".
-moduledoc #{since => <<"1.0.0">>}.
-compile({parse_transform, trunkline_docs}).

-include("../trunkline_errors.hrl").

-export([report/1, check/0, load/1, write/2]).

-export_type([name/0, problem/0, found/0, report/0, check/0, comparison/0]).

-doc "
The name of an application. One of OTP's is `{otp, Application}`.
".
-doc #{since => <<"1.0.0">>}.
-type name() :: trunkline_applications:name().

-doc "
Why an application or a module is not adopted:

- `no_application`: the application is not in the code path.
- `no_file`: it is not in the code path.
- `no_debug_info`: its file has no debug information, or it is encrypted.
- `{not_compiled, Why}`: the compiler refuses it, or is not there (`no_compiler`), or its forms are
  not those that were compiled (`core_transform`).
- `sticky`: it lies in a sticky directory.
- `on_load`: it is loaded already, and its `on_load` function would run again, or it has NIFs, which
  would have to be loaded again.
- `old_code`: a process still runs code that was there before the last change. It is tried again.
- `other_code`: what is loaded is not what lies in the code path.
- `{not_loaded, Why}`: the code server refuses it.
".
-doc #{since => <<"1.0.0">>}.
-type problem() :: trunkline_beams:problem().

-doc "
A place in the source: module, line, and the function that is called there. `!` is `send/2` of
`erlang`.
".
-doc #{since => <<"1.0.0">>}.
-type found() :: {module(), Line :: non_neg_integer(), mfa()}.

-doc "
What `report/1` returns:

- `modules`: how many modules the applications have;
- `changed`: those that would be changed;
- `by_lane`: what they send, or call, that would go by lane;
- `by_distribution`: what would still go by the distribution, or has no order, with a text that says
  what that means;
- `others`: modules that are not adopted, and send for those that are, with the modules that call
  them. What a process sends by both ways has no order: adopt their applications, too;
- `problems`: modules that cannot be adopted.
".
-doc #{since => <<"1.0.0">>}.
-type report() :: #{modules := non_neg_integer(),
                    changed := [module()],
                    by_lane := [found()],
                    by_distribution := [{found(), Meaning :: string()}],
                    others := #{module() => CalledBy :: [module()]},
                    problems := #{module() => problem()}}.

-doc "
How a node compares with this one: it has the same modules adopted; or these are adopted at one of
the two only, or are not of the same source (`differ`); or it does not run Trunkline, or did not
answer.
".
-doc #{since => <<"1.0.0">>}.
-type comparison() :: same | #{only_here := [module()], only_there := [module()],
                               differ := [module()]}
                    | no_trunkline | noconnection.

-doc "
What `check/0` returns:

- `applications`: those that are kept adopted;
- `adopted`: the modules that are loaded and adopted;
- `problems`: applications and modules that should be adopted, and are not. Their messages go by the
  distribution;
- `nodes`: how the connected nodes compare;
- `plain`: how many messages Trunkline has sent by the distribution since it started, of adopted
  code and of all other callers.
".
-doc #{since => <<"1.0.0">>}.
-type check() :: #{applications := [atom()],
                   adopted := [module()],
                   problems := #{atom() => problem()},
                   nodes := #{node() => comparison()},
                   plain := non_neg_integer()}.

%% ms, for another node to answer.
-define(PATIENCE, 5000).

-doc "
What applications send to other processes, by which function, and what would become of it if they
were adopted. Nothing is changed or loaded. The error is `badarg` for what is not in the code path,
or cannot be adopted.

```erlang
1> #{changed := [_ | _]} = trunkline_adopt:report([{otp, mnesia}]).
```
".
-doc #{since => <<"1.0.0">>}.
-spec report(name() | [name()]) -> report().
report(Names) ->
    trunkline_applications:are_adoptable(Names) orelse ?BAD_ARGUMENT(badarg, [Names]),
    Modules = trunkline_applications:modules(trunkline_applications:as_list(Names)),
    Looks = lists:zip(Modules, trunkline_beams:each(fun trunkline_beams:look/1, Modules)),
    Seen = [{Module, Look} || {Module, {ok, Look}} <- Looks],
    #{modules => length(Modules),
      changed => [Module || {Module, #{changed := true}} <- Seen],
      by_lane => lists:sort(lists:append([Found || {_, #{by_lane := Found}} <- Seen])),
      by_distribution =>
          lists:sort(lists:append([Found || {_, #{by_distribution := Found}} <- Seen])),
      others => others(Modules, Seen),
      problems => maps:from_list([{Module, Why} || {Module, {error, Why}} <- Looks])}.

%% Modules that are called and send, but belong neither to these applications nor to OTP.
others(Modules, Seen) ->
    Callers = lists:foldl(fun({Called, Caller}, Map) ->
                                  maps:update_with(Called, fun(Cs) -> [Caller | Cs] end, [Caller],
                                                   Map)
                          end, #{}, [{Called, Module} || {Module, #{calls := Calls}} <- Seen,
                                                         Called <- Calls -- Modules]),
    Others = [Other || Other <- maps:keys(Callers), not trunkline_applications:is_otp(Other)],
    Looks = lists:zip(Others, trunkline_beams:each(fun trunkline_beams:look/1, Others)),
    maps:with([Other || {Other, {ok, #{changed := true}}} <- Looks],
              maps:map(fun(_, Cs) -> lists:sort(Cs) end, Callers)).

-doc "
Whether the code that runs on this node is adopted as it should be, whether the connected nodes
have the same, and how many messages went by the distribution all the same.

```erlang
1> #{problems := #{}} = trunkline_adopt:check().
```
".
-doc #{since => <<"1.0.0">>}.
-spec check() -> check().
check() ->
    Status = case trunkline_adopter:status() of
                 {ok, S} -> S;
                 {error, stopped} -> #{applications => [], problems => #{}}
             end,
    Here = trunkline_beams:adopted(),
    Nodes = nodes(),
    Answers = trunkline_process:multicall(Nodes, trunkline_beams, adopted, [], ?PATIENCE),
    #{applications => maps:get(applications, Status),
      adopted => lists:sort(maps:keys(Here)),
      problems => maps:get(problems, Status),
      nodes => maps:from_list([{Node, comparison(Here, Answer)}
                               || {Node, Answer} <- lists:zip(Nodes, Answers)]),
      plain => plain()}.

comparison(Here, {ok, Here}) ->
    same;
comparison(Here, {ok, There}) ->
    #{only_here => lists:sort(maps:keys(Here) -- maps:keys(There)),
      only_there => lists:sort(maps:keys(There) -- maps:keys(Here)),
      differ => lists:sort([Module || {Module, Stock} <- maps:to_list(Here),
                                      is_map_key(Module, There),
                                      maps:get(Module, There) =/= Stock])};
comparison(_, {error, {exception, undef, _}}) ->
    no_trunkline;
comparison(_, _) ->
    noconnection.

plain() ->
    Peers = maps:values(trunkline_peers:all()),
    trunkline_sender:fallbacks()
        + lists:sum([trunkline_stats:get(Stats, peer, fallbacks) || #{stats := Stats} <- Peers]).

-doc "
Adopts applications, or one, in the node that runs, and keeps them adopted until Trunkline stops.
The result has what `check/0` says of this node. New code that is loaded later is adopted within
seconds.

A process goes on with the code that it executes, until it calls a function by the module's name.
So adopt applications before they start, if you can: with the option `adopt`.

```erlang
1> {ok, #{problems := #{}}} = trunkline_adopt:load([]).
```
".
-doc #{since => <<"1.0.0">>}.
-spec load(name() | [name()]) ->
          {ok, #{applications := [atom()], adopted := [module()],
                 problems := #{atom() => problem()}}}
        | {error, stopped}.
load(Names) ->
    trunkline_applications:are_adoptable(Names) orelse ?BAD_ARGUMENT(badarg, [Names]),
    trunkline_adopter:adopt(trunkline_applications:as_list(Names)).

-doc "
Writes the adopted modules of applications, or of one, into a directory, for a build. Put it before
the applications in the code path (`erl -pa Dir`). Modules in which nothing changes are not written.
In the result, `written` are the modules that the directory has, and `problems` those that could not
be adopted.

What is in the directory already, and made from the same files by the same release of Trunkline, is
left as it is: `compiled` are only those that were made now. What was written there before and is
not needed any more is removed.

Whether these are the modules that a node has loaded is what `check/0` says there.

```erlang
1> {ok, #{written := [], problems := #{}}} = trunkline_adopt:write([], \"adopted\").
```
".
-doc #{since => <<"1.0.0">>}.
-spec write(name() | [name()], Dir :: file:name_all()) ->
          {ok, #{written := [module()], compiled := [module()],
                 problems := #{module() => problem()}}}
        | {error, file:posix()}.
write(Names, Dir) ->
    trunkline_applications:are_adoptable(Names) orelse ?BAD_ARGUMENT(badarg, [Names, Dir]),
    trunkline_adopted:write(trunkline_applications:as_list(Names), Dir).
