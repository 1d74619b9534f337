%% The handler of the event manager v of nemesis_traffic: passes on what it gets.
-module(nemesis_events).
-behaviour(gen_event).

-export([init/1, handle_event/2, handle_call/2]).

init(Log) -> {ok, Log}.

handle_event(Message, Log) ->
    Log ! Message,
    {ok, Log}.

handle_call(_, Log) -> {ok, ok, Log}.
