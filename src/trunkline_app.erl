%% The application callback. It checks the options, loads the code and starts the supervisors.
%% Before the application stops, it ends the sessions with all peers in good order.
-module(trunkline_app).
-moduledoc false.
-behaviour(application).

-include("gate/trunkline_route.hrl").

-export([start/2, prep_stop/1, stop/1]).

-spec start(application:start_type(), term()) -> {ok, pid()} | {error, term()}.
start(_, _) ->
    ok = trunkline_log:show(),
    case trunkline_options:load() of
        {ok, Options} ->
            case prepare(Options) of
                ok ->
                    ok = trunkline_options:use(Options),
                    ok = trunkline_events:start(),
                    ok = trunkline_sender:count_fallbacks(),
                    ok = trunkline_monitors:create(),
                    started(trunkline_sup:start_link(Options));
                {error, _} = Error ->
                    Error
            end;
        {error, Bad} ->
            ok = trunkline_log:write(bad_option, #{reason => Bad,
                                                   explained => trunkline_options:explain(Bad)}),
            {error, Bad}
    end.

%% (Monitors from before the last stop may be there, and need their tables.)
started({ok, _} = Started) ->
    Started;
started(Error) ->
    ok = trunkline_monitors:close(),
    Error.

prepare(Options) ->
    case trunkline_transport:prepare(Options) of
        ok -> load();
        {error, _} = Error -> Error
    end.

%% The code server has normal priority. While processes of high priority keep all schedulers busy,
%% the first caller of a module that is not loaded has to wait. The list has Trunkline's own
%% modules, and the modules of OTP that they call and that are not loaded anyway.
load() ->
    Own = case application:get_key(trunkline, modules) of
              {ok, Modules} -> Modules;
              undefined -> []
          end,
    case code:ensure_modules_loaded([crypto, gen_statem, gen_tcp, inet_tcp, seq_trace | Own]) of
        ok -> ok;
        %% These are needed at compile time only, and a release may leave them out.
        {error, Missing} ->
            case [M || {M, _} <- Missing] -- [trunkline_transform, trunkline_docs] of
                [] ->
                    ok;
                Needed ->
                    ok = trunkline_log:write(missing_modules, #{modules => Needed}),
                    {error, {missing, Needed}}
            end
    end.

%% All links leave at the same time, while a supervisor would stop them one by one. No new ones are
%% started.
-spec prep_stop(term()) -> term().
prep_stop(State) ->
    try
        ok = trunkline_links:close(),
        trunkline_link_sup:leave()
    catch
        exit:_ -> ok               % the supervisors have given up
    end,
    State.

%% There are links left only if the top supervisor was killed, and routes only if links were
%% killed. No sender may wait for them.
-spec stop(term()) -> ok.
stop(State) ->
    ok = trunkline_adopter:forget(),
    Routes = trunkline_route:all(),
    case [Link || {_, #route{link = Link}} <- Routes, is_process_alive(Link)] of
        [] ->
            lists:foreach(fun withdraw/1, Routes),
            trunkline_monitors:close();
        Links ->
            ok = trunkline_link:leave(Links),
            stop(State)
    end.

withdraw({Node, Route}) ->
    ok = trunkline_route:set_path(direct, Route),
    case lists:sum([trunkline_gate:messages(Level)
                    || {_, Level} <- trunkline_route:levels(Route)]) of
        0 -> ok;
        Left -> trunkline_log:write(lanes_killed, #{peer => Node, messages => Left})
    end,
    trunkline_route:withdraw(Node).
