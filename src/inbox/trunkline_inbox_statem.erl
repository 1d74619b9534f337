%% A gen_statem behind an inbox, like trunkline_inbox_server for a gen_server.
-module(trunkline_inbox_statem).
-moduledoc false.
-behaviour(gen_statem).

-export([callback_mode/0, init/1, handle_event/4, terminate/3, code_change/4, format_status/1]).

%% If the module has state functions, they are called from handle_event/4.
-spec callback_mode() -> gen_statem:callback_mode_result().
callback_mode() ->
    {Module, _, _} = trunkline_inbox_server:enter(none),
    Mode = Module:callback_mode(),
    [handle_event_function | [state_enter || is_mode(state_enter, Mode)]].

-spec init({module(), term(), trunkline_work:work(), Parent :: pid()}) ->
          gen_statem:init_result(term()).
init({Module, Args, Work, Parent}) -> trunkline_inbox_server:begin_as(Module, Args, Work, Parent).

-spec handle_event(gen_statem:event_type() | enter, term(), term(), term()) ->
          gen_statem:event_handler_result(term()).
handle_event(Type, Content, State, Data) ->
    {Module, Given, Event} = trunkline_inbox_server:enter(Content),
    Mode = Module:callback_mode(),
    Callback = case is_mode(state_functions, Mode) of
                   true -> fun() -> Module:State(Type, Event, Data) end;
                   false -> fun() -> Module:handle_event(Type, Event, State, Data) end
               end,
    Result = trunkline_inbox_server:returned(Callback),
    trunkline_inbox_server:done(Given),
    Result.

is_mode(Name, Mode) -> Mode =:= Name orelse is_list(Mode) andalso lists:member(Name, Mode).

-spec terminate(term(), term(), term()) -> term().
terminate(Reason, State, Data) ->
    trunkline_inbox_server:optional(terminate, [Reason, State, Data], ok).

-spec code_change(term(), term(), term(), term()) -> term().
code_change(OldVersion, State, Data, Extra) ->
    trunkline_inbox_server:optional(code_change, [OldVersion, State, Data, Extra],
                                    {ok, State, Data}).

-spec format_status(gen_statem:format_status()) -> gen_statem:format_status().
format_status(#{state := State, data := Data} = Status) ->
    trunkline_inbox_server:status(Status, [State, Data]).
