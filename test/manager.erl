%% An event manager for the tests, with a handler that does as it is asked, and that knows
%% nothing of Trunkline.
-module(manager).
-behaviour(gen_event).

-export([start/0]).
-export([init/1, handle_event/2, handle_call/2, handle_info/2, terminate/2]).

%% Unlinked, named, with one handler.
start() ->
    {ok, Pid} = gen_event:start({local, test_gen_event}),
    ok = gen_event:add_handler(Pid, ?MODULE, []),
    {ok, Pid}.

init({_, Old}) -> {ok, Old};                         % swapped in
init(fail) -> {error, failed};
init(crash) -> exit(crashed);
init(_) -> {ok, []}.

handle_event(crash, _) -> exit(crashed);
handle_event(remove, _) -> remove_handler;
handle_event(Event, Seen) -> {ok, [{event, Event} | Seen]}.

handle_call(seen, Seen) -> {ok, lists:reverse(Seen), []};
handle_call({note, Term}, Seen) -> {ok, noted, [{call, Term} | Seen]};
handle_call({echo, Term}, Seen) -> {ok, Term, Seen};
handle_call({echo_late, Term, After}, Seen) -> receive after After -> {ok, Term, Seen} end;
handle_call({echo_told, Term, Asker}, Seen) -> server:hold(Asker), {ok, Term, Seen};
handle_call(crash, _) -> exit(crashed);
handle_call(remove, _) -> {remove_handler, removed};
handle_call(nonsense, _) -> nonsense.

handle_info(Message, Seen) -> {ok, [{info, Message} | Seen]}.

terminate(_, Seen) -> Seen.
