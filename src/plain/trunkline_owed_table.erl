%% Owns the table of the plain replies that are owed (trunkline_owed).
%%
%% A server may still owe a plain reply when the application is stopped, and when it is started
%% again. So the table may outlive the application, as retired inlets do (trunkline_retired_inlet).
%% This process ends when the application has ended and nothing is owed.
-module(trunkline_owed_table).
-moduledoc false.
-behaviour(gen_server).

-export([ensure/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

%% ms between two looks at whether anything is still owed.
-define(LOOK, 1000).

-record(state,
        {application :: pid() | none,
         is_needed :: fun(() -> boolean())}).

%% Makes the table, unless it is there. It stays as long as the calling process, the application's,
%% lives, and after that as long as it is needed.
-spec ensure(Create :: fun(() -> ok), IsNeeded :: fun(() -> boolean())) -> ok.
ensure(Create, IsNeeded) ->
    case gen_server:start({local, ?MODULE}, ?MODULE, {self(), Create, IsNeeded}, []) of
        {ok, _} ->
            ok;
        {error, {already_started, Owner}} ->
            try gen_server:call(Owner, {used_by, self()}, infinity)
            catch exit:_ -> ensure(Create, IsNeeded)                    % it has just ended
            end
    end.

-spec init({pid(), fun(() -> ok), fun(() -> boolean())}) -> {ok, #state{}}.
init({Application, Create, IsNeeded}) ->
    ok = trunkline_process:outlive(self()),
    ok = Create(),
    {ok, used_by(Application, #state{application = none, is_needed = IsNeeded})}.

-spec handle_call(term(), gen_server:from(), #state{}) ->
          {reply, ok | {error, badarg}, #state{}}.
handle_call({used_by, Application}, _, S) -> {reply, ok, used_by(Application, S)};
handle_call(_, _, S) -> {reply, {error, badarg}, S}.

used_by(Application, S) ->
    _ = monitor(process, Application),
    S#state{application = Application}.

-spec handle_cast(term(), #state{}) -> {noreply, #state{}} | {stop, normal, #state{}}.
handle_cast(Unexpected, S) -> handle_info(Unexpected, S).

-spec handle_info(term(), #state{}) -> {noreply, #state{}} | {stop, normal, #state{}}.
handle_info({'DOWN', _, process, Application, _}, #state{application = Application} = S) ->
    look(S#state{application = none});
handle_info({'DOWN', _, process, _, _}, S) ->
    {noreply, S};                            % the application has been started again
handle_info(look, #state{application = none} = S) ->
    look(S);
handle_info(look, S) ->
    {noreply, S};
handle_info(Unexpected, S) ->
    ok = trunkline_process:unexpected(?MODULE, Unexpected),
    {noreply, S}.

look(#state{is_needed = IsNeeded} = S) ->
    case IsNeeded() of
        true -> _ = erlang:send_after(?LOOK, self(), look), {noreply, S};
        false -> {stop, normal, S}
    end.
