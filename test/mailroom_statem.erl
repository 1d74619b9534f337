%% A gen_statem for the tests of inboxes, in the callback mode that the node was told.
-module(mailroom_statem).
-behaviour(gen_statem).

-export([callback_mode/0, init/1, open/3, shut/3, handle_event/4, format_status/1]).

callback_mode() -> persistent_term:get(?MODULE).

init(#{init := crash}) -> error(crash);
init(#{init := Answer}) -> Answer;
init(_) -> {ok, open, #{list => [], entered => []}}.

open(Type, Content, Data) -> event(Type, Content, open, Data).
shut(Type, Content, Data) -> event(Type, Content, shut, Data).
handle_event(Type, Content, State, Data) -> event(Type, Content, State, Data).

event(enter, Before, State, #{entered := Entered} = D) ->
    {keep_state, D#{entered := [{Before, State} | Entered]}};
event({call, From}, {echo, Term}, _, _) -> {keep_state_and_data, {reply, From, Term}};
event({call, From}, {thrown, Term}, _, _) -> throw({keep_state_and_data, {reply, From, Term}});
event({call, From}, self, _, _) -> {keep_state_and_data, {reply, From, self()}};
event({call, From}, list, _, #{list := List}) ->
    {keep_state_and_data, {reply, From, lists:reverse(List)}};
event({call, From}, entered, _, #{entered := Entered}) ->
    {keep_state_and_data, {reply, From, lists:reverse(Entered)}};
event({call, From}, {go, State}, _, D) -> {next_state, State, D, {reply, From, ok}};
event({call, From}, {stop, Reason}, _, _) -> {stop_and_reply, Reason, {reply, From, stopping}};
event({call, _}, {exit, Reason}, _, _) -> exit(Reason);
event(_, _, shut, _) -> {keep_state_and_data, postpone};
event(Type, {from, Tag, N, _}, open, #{list := List} = D) ->
    {keep_state, D#{list := [{Type, Tag, N} | List]}};
event(_, _, _, _) -> keep_state_and_data.

%% What tools see.
format_status(#{data := #{list := List}} = Status) -> Status#{data := {shown, length(List)}};
format_status(Status) -> Status.
