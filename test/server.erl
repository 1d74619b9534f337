%% Servers for the tests: one gen_server and one gen_statem that do as they are
%% asked (and manager, a gen_event), and nothing that knows of Trunkline.
-module(server).

-export([start/1, stop_all/0, tell/1]).
-export([hold/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).
-export([callback_mode/0, running/3]).

%% gen_server, gen_statem: unlinked, named after their kind.
start(gen_server) -> gen_server:start({local, test_gen_server}, ?MODULE, gen_server, []);
start(gen_statem) -> gen_statem:start({local, test_gen_statem}, ?MODULE, gen_statem, []);
start(gen_event) -> manager:start().

stop_all() ->
    lists:foreach(fun(Name) ->
                          case whereis(Name) of
                              undefined -> ok;
                              Pid ->
                                  Ref = monitor(process, Pid),
                                  exit(Pid, kill),
                                  receive {'DOWN', Ref, process, Pid, _} -> ok end
                          end
                  end, [test_gen_server, test_gen_statem, test_gen_event]).

%% Who has asked for {echo_told, Term, Asker}, with its pid or alias, gets no reply before it calls
%% this, for so many requests.
tell(0) ->
    ok;
tell(N) ->
    receive {held, Pid} -> Pid ! go end,
    tell(N - 1).

%% The other side of it.
hold(Asker) ->
    Asker ! {held, self()},
    receive go -> ok end.

init(gen_server) -> {ok, []};
init(gen_statem) -> {ok, running, []}.

callback_mode() -> state_functions.

handle_call(seen, _, Seen) -> {reply, lists:reverse(Seen), []};
handle_call({note, Term}, _, Seen) -> {reply, noted, [{call, Term} | Seen]};
handle_call({wait, Term}, _, Seen) -> {noreply, [{waits, Term} | Seen]};
handle_call(waiting, _, Seen) -> {reply, length([T || {waits, T} <- Seen]), Seen};
handle_call(forget, _, _) -> {reply, ok, []};
handle_call(Request, From, Seen) ->
    case answer(Request, From) of
        {reply, Reply} -> {reply, Reply, Seen};
        noreply -> {noreply, Seen};
        {stop, Reason} -> {stop, Reason, Seen}
    end.

handle_cast(Message, Seen) -> {noreply, [{cast, Message} | Seen]}.
handle_info(Message, Seen) -> {noreply, [{info, Message} | Seen]}.

running({call, From}, Request, Seen) ->
    case answer(Request, From) of
        {reply, Reply} -> {next_state, running, Seen, [{reply, From, Reply}]};
        noreply -> keep_state_and_data;
        {stop, Reason} -> {stop, Reason}
    end;
running(_, _, _) ->
    keep_state_and_data.

answer({echo, Term}, _) -> {reply, Term};
answer({echo_late, Term, After}, From) ->
    spawn(fun() -> receive after After -> gen_server:reply(From, Term) end end),
    noreply;
answer({echo_told, Term, Asker}, From) ->
    spawn(fun() -> hold(Asker), gen_server:reply(From, Term) end),
    noreply;
answer({elsewhere, Term}, From) ->
    spawn(fun() -> gen_server:reply(From, Term) end),
    noreply;
answer({twice, Term}, From) ->
    gen_server:reply(From, Term),
    {reply, {again, Term}};
answer({by_hand, Term}, {Pid, Tag}) ->
    Pid ! {Tag, Term},
    noreply;
answer(from_pid, {Pid, _}) -> {reply, {Pid, node(Pid)}};
answer({apply, Function}, _) -> {reply, erlang:Function()};
answer(never, _) -> noreply;
answer({exit, Reason}, _) -> exit(Reason);
answer({stop, Reason}, _) -> {stop, Reason}.
