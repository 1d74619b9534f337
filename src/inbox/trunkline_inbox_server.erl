%% A gen_server behind an inbox. The callbacks and the state are those of the user's module.
%% Messages that have come through the keeper are marked, and each is counted as done after its
%% callback.
-module(trunkline_inbox_server).
-moduledoc false.
-behaviour(gen_server).

-export([mark/2, said/1, is_26/0, is_behind/1, is_behind_me/1]).
-export([begin_as/4, enter/1, done/1, returned/1, optional/3, status/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, handle_continue/2, terminate/2,
         code_change/3, format_status/1]).

-dialyzer({no_improper_lists, [mark/2]}).

-type more() :: timeout() | hibernate | {continue, term()}.
-type init_result() :: {ok, term()} | {ok, term(), more()} | {stop, term()} | ignore.
-type result() :: {noreply, term()} | {noreply, term(), more()} | {stop, term(), term()}.
-type call_result() :: result() | {reply, term(), term()} | {reply, term(), term(), more()}
                     | {stop, term(), term(), term()}.

-define(INBOX, '$trunkline_inbox').
-define(LAST, '$trunkline_inbox_last').
-define(SAID(Reason), {'$trunkline_said', Reason}).
-define(MARKED(Given, Message), ['$inbox', Given | Message]).

%% The mark says how much the server has been given, with this message. It is put where gen_server
%% and gen_statem do not look at it.
-spec mark(trunkline_work:cost(), term()) -> term().
mark(Given, {'$gen_call', From, Request}) -> {'$gen_call', From, ?MARKED(Given, Request)};
mark(Given, {'$gen_cast', Request}) -> {'$gen_cast', ?MARKED(Given, Request)};
mark(Given, Message) -> ?MARKED(Given, Message).

%% Makes the calling process look like a process of that module, and calls init/1. Meanwhile the
%% keeper does nothing but wait. So another process ends init/1 if the process ends that starts
%% both. (A server that traps exits hears of it from the keeper, afterwards.)
-spec begin_as(module(), Args :: term(), trunkline_work:work(), Parent :: pid()) -> term().
begin_as(Module, Args, Work, Parent) ->
    put('$initial_call', {Module, init, 1}),
    put('$ancestors', tl(get('$ancestors'))),            % without the keeper
    put(?LAST, 0),
    put(?INBOX, {Module, Work}),
    Server = self(),
    Guard = spawn(fun() -> guard(Server, monitor(process, Server), monitor(process, Parent)) end),
    try told_of(Module:init(Args))
    after exit(Guard, kill)
    end.

guard(Server, ServerRef, ParentRef) ->
    receive
        {'DOWN', ServerRef, process, _, _} -> ok;
        {'DOWN', ParentRef, process, _, Reason} ->
            process_info(Server, trap_exit) =:= {trap_exit, false} andalso exit(Server, Reason)
    end.

%% Since OTP 26 init/1 may return {error, Reason}. Then the server exits with `normal', unlike after
%% {stop, Reason}. The keeper has to know which of the two it was, so the reason is marked.
told_of({error, Reason} = Result) ->
    case is_26() of
        true -> {error, ?SAID(Reason)};
        false -> Result
    end;
told_of(Result) ->
    Result.

%% Whether the server has not started because init/1 returned {error, Reason}.
-spec said(term()) -> {said, Reason :: term()} | no.
said(?SAID(Reason)) -> {said, Reason};
said(_) -> no.

%% proc_lib:init_fail/3 came with OTP 26.
-spec is_26() -> boolean().
is_26() -> erlang:function_exported(proc_lib, init_fail, 3).

-spec enter(Content :: term()) ->
          {module(), Given :: none | trunkline_work:cost(), Content :: term()}.
enter(Content) ->
    {Module, _} = get(?INBOX),
    case Content of
        ?MARKED(Given, Message) when is_integer(Given) -> {Module, Given, Message};
        _ -> {Module, none, Content}
    end.

%% Whether the calling process is the one behind that keeper.
-spec is_behind(pid()) -> boolean().
is_behind(Keeper) -> is_behind(Keeper, get(?INBOX)).

is_behind(Keeper, {_, Work}) -> trunkline_work:keeper(Work) =:= Keeper;
is_behind(_, _) -> false.

%% Whether the calling process is the keeper of that one, whose init/1 has been called.
-spec is_behind_me(pid()) -> boolean().
is_behind_me(Pid) when node(Pid) =:= node() ->
    case process_info(Pid, dictionary) of
        {dictionary, Dictionary} -> is_behind(self(), proplists:get_value(?INBOX, Dictionary));
        undefined -> false
    end;
is_behind_me(_) ->
    false.

%% Each message is counted only once, because a gen_statem may see it again; and so are those before
%% it that the server has taken out of its mailbox by itself.
-spec done(none | trunkline_work:cost()) -> ok.
done(none) ->
    ok;
done(Given) ->
    case get(?LAST) of
        Last when Given > Last ->
            put(?LAST, Given),
            {_, Work} = get(?INBOX),
            trunkline_work:done(Work, Given - Last);
        _ ->
            ok
    end.

%% A callback may throw its result. The message is done all the same.
-spec returned(fun(() -> term())) -> term().
returned(Callback) ->
    try Callback()
    catch throw:Result -> Result
    end.

%% Calls the callback, if the module has it. Otherwise returns Else.
-spec optional(Callback :: atom(), Args :: [term()], Else :: term()) -> term().
optional(Callback, Args, Else) ->
    {Module, _, _} = enter(none),
    case erlang:function_exported(Module, Callback, length(Args)) of
        true -> apply(Module, Callback, Args);
        false -> Else
    end.

-spec init({module(), term(), trunkline_work:work(), Parent :: pid()}) -> init_result().
init({Module, Args, Work, Parent}) -> begin_as(Module, Args, Work, Parent).

-spec handle_call(term(), gen_server:from(), term()) -> call_result().
handle_call(Content, From, State) ->
    {Module, Given, Request} = enter(Content),
    Result = returned(fun() -> Module:handle_call(Request, From, State) end),
    done(Given),
    Result.

-spec handle_cast(term(), term()) -> result().
handle_cast(Content, State) ->
    {Module, Given, Request} = enter(Content),
    Result = returned(fun() -> Module:handle_cast(Request, State) end),
    done(Given),
    Result.

-spec handle_info(term(), term()) -> result().
handle_info(Content, State) ->
    {Module, Given, Message} = enter(Content),
    Result = case erlang:function_exported(Module, handle_info, 2) of
                 true ->
                     returned(fun() -> Module:handle_info(Message, State) end);
                 false ->
                     ok = trunkline_log:write(no_handle_info,
                                              #{module => Module, message => Message}),
                     {noreply, State}
             end,
    done(Given),
    Result.

-spec handle_continue(term(), term()) -> result().
handle_continue(Continue, State) ->
    {Module, _, _} = enter(none),
    Module:handle_continue(Continue, State).

-spec terminate(term(), term()) -> term().
terminate(Reason, State) -> optional(terminate, [Reason, State], ok).

-spec code_change(term(), term(), term()) -> {ok, term()} | {error, term()}.
code_change(OldVersion, State, Extra) ->
    optional(code_change, [OldVersion, State, Extra], {ok, State}).

-spec format_status(gen_server:format_status()) -> gen_server:format_status().
format_status(#{state := State} = Status) -> status(Status, [State]).

%% What gen would show of the module itself: it calls the callback that the module has, of one
%% argument or of two. (The older one gets the dictionary and Args. What it returns is in a key
%% more, where the gen around this looks for it.)
-spec status(Status, Args :: [term()]) -> Status when Status :: #{atom() => term()}.
status(Status, Args) ->
    {Module, _, _} = enter(none),
    Why = case Status of
              #{reason := _} -> terminate;
              #{} -> normal
          end,
    gen:format_status(Module, Why, plain(Status), [get() | Args]).

%% Shows messages and events as they were sent, without marks.
plain(Status) ->
    maps:map(fun(message, Message) -> unmark(Message);
                (Key, Events) when Key =:= queue; Key =:= postponed ->
                     [unmark_event(Event) || Event <- Events];
                (log, Log) -> [unmark_log(Entry) || Entry <- Log];
                (_, Value) -> Value
             end, Status).

unmark_event({Type, Content}) -> {Type, unmark(Content)};
unmark_event(Event) -> unmark(Event).

unmark_log(Entry) when is_tuple(Entry) ->
    list_to_tuple([case Element of
                       {'$gen_call', _, _} -> unmark(Element);
                       {'$gen_cast', _} -> unmark(Element);
                       _ -> unmark_event(Element)
                   end || Element <- tuple_to_list(Entry)]);
unmark_log(Entry) ->
    Entry.

unmark({'$gen_call', From, Content}) -> {'$gen_call', From, unmark(Content)};
unmark({'$gen_cast', Content}) -> {'$gen_cast', unmark(Content)};
unmark(?MARKED(_, Message)) -> Message;
unmark(Message) -> Message.
