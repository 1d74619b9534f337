%% Keeps applications adopted: their modules are loaded as trunkline_transform makes them.
%%
%%     start ── trunkline_beams:load/1, each module ──> adopted, unchanged, or a problem
%%       │
%%       └──> every ?PERIOD: what has been loaded since? ──> the same for these
%%
%% Trunkline's start waits until all modules are adopted, so applications that start later find them
%% adopted. Code that is loaded afterwards (by an upgrade, or by l/1 in a shell) sends by the
%% distribution until it is adopted, within ?PERIOD. The runtime system does not report that code
%% was loaded. Therefore this process polls, which costs some microseconds for each module, and only
%% where applications are adopted.
-module(trunkline_adopter).
-moduledoc false.
-behaviour(gen_server).

-export([start_link/1, adopt/1, status/0, forget/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([status/0]).

-type status() :: #{applications := [atom()],
                    adopted := [module()],
                    problems := #{module() | atom() => trunkline_beams:problem()}}.

%% For each module: the MD5 of the code that was loaded when the module was last examined, or else
%% of its file; and the outcome.
-record(state, {names = [] :: [trunkline_applications:name()],
                seen = #{} :: #{module() => {MD5 :: binary() | none, outcome()}}}).

-type outcome() :: adopted | unchanged | {error, trunkline_beams:problem()}.

%% ms
-define(PERIOD, 5000).

-spec start_link(trunkline_options:options()) -> gen_server:start_ret().
start_link(#{adopt := Names}) ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, Names, [{timeout, infinity}]).

%% Adopts these applications, too, until Trunkline stops.
-spec adopt([trunkline_applications:name()]) -> {ok, status()} | {error, stopped}.
adopt(Names) -> ask({adopt, Names}).

-spec status() -> {ok, status()} | {error, stopped}.
status() -> ask(status).

%% Called when the application stops. (Modules that have been loaded stay loaded.)
-spec forget() -> ok.
forget() ->
    _ = persistent_term:erase(?MODULE),
    ok.

ask(Request) ->
    try {ok, gen_server:call(?MODULE, Request, infinity)}
    catch exit:{Reason, _} when Reason =:= noproc; Reason =:= normal; Reason =:= shutdown ->
            {error, stopped}
    end.

-spec init([trunkline_applications:name()]) -> {ok, #state{}}.
init(Names) ->
    ok = missing(Names),
    %% If the previous process was killed: also the applications that it was asked to adopt.
    All = lists:usort(Names ++ persistent_term:get(?MODULE, [])),
    {ok, timer(look(#state{names = All}))}.

-spec handle_call(term(), gen_server:from(), #state{}) ->
          {reply, status() | {error, badarg}, #state{}}.
handle_call({adopt, New}, _, #state{names = Names} = State) ->
    All = lists:usort(Names ++ New),
    ok = persistent_term:put(?MODULE, All),
    %% What could not be adopted is tried again: the reason may be gone.
    State1 = look(fun(Module, Seen) -> has_failed(Module, Seen) orelse is_new(Module, Seen) end,
                  State#state{names = All}),
    Names =:= [] andalso timer(State1),
    {reply, status(State1), State1};
handle_call(status, _, State) ->
    State1 = look(State),                    % the status must be up to date
    {reply, status(State1), State1};
handle_call(_, _, State) ->
    {reply, {error, badarg}, State}.

-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast(Message, State) ->
    trunkline_process:unexpected(?MODULE, Message),
    {noreply, State}.

-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info(look, State) ->
    {noreply, timer(look(State))};
handle_info(Message, State) ->
    trunkline_process:unexpected(?MODULE, Message),
    {noreply, State}.

timer(#state{names = []} = State) ->
    State;
timer(State) ->
    _ = erlang:send_after(?PERIOD, self(), look),
    State.

status(#state{names = Names, seen = Seen}) ->
    #{applications => [trunkline_applications:application(Name) || Name <- Names],
      adopted => lists:sort([Module || {Module, {_, adopted}} <- maps:to_list(Seen)]),
      problems => maps:from_list([{trunkline_applications:application(Name), no_application}
                                  || Name <- Names, not trunkline_applications:is_adoptable(Name)]
                                 ++ [{Module, Problem}
                                     || {Module, {_, {error, Problem}}} <- maps:to_list(Seen)])}.

missing(Names) ->
    case [Name || Name <- Names, not trunkline_applications:is_adoptable(Name)] of
        [] -> ok;
        Missing -> trunkline_log:write(missing_applications, #{applications => Missing})
    end.

look(State) -> look(fun is_new/2, State).

look(IsWanted, #state{names = Names, seen = Seen} = State) ->
    case [Module || Module <- trunkline_applications:modules(Names), IsWanted(Module, Seen)] of
        [] ->
            State;
        New ->
            Found = lists:zip(New, trunkline_beams:each(fun load/1, New)),
            ok = report(Found, Seen),
            State#state{seen = maps:merge(Seen, maps:from_list(Found))}
    end.

has_failed(Module, Seen) -> is_tuple(outcome(Module, Seen)).

%% Of the last time; `none': it has not been examined.
outcome(Module, Seen) -> element(2, maps:get(Module, Seen, {none, none})).

%% Old code that was in the way may be gone by now.
is_new(Module, Seen) ->
    case Seen of
        #{Module := {_, {error, old_code}}} -> trunkline_beams:is_free(Module);
        #{Module := {MD5, _}} -> not lists:member(loaded(Module), [MD5, none]);
        #{} -> true
    end.

load(Module) ->
    Outcome = trunkline_beams:load(Module),
    {case loaded(Module) of
         none -> trunkline_beams:stock(Module);
         MD5 -> MD5
     end, Outcome}.

loaded(Module) ->
    try erlang:get_module_info(Module, md5)
    catch error:badarg -> none
    end.

report(Found, Seen) ->
    case length([adopted || {_, {_, adopted}} <- Found]) of
        0 -> ok;
        N -> trunkline_log:write(adopted, #{modules => N})
    end,
    %% Each problem of a module is logged once.
    case [{Module, Problem} || {Module, {_, {error, Problem} = Outcome}} <- Found,
                               Outcome =/= outcome(Module, Seen)] of
        [] -> ok;
        Problems ->
            trunkline_log:write(not_adopted, #{problems => Problems})
    end.
