%% Starts an inbox: a process that takes the name, registers, starts the server behind it, and is a
%% keeper from then on (trunkline_keeper).
%%
%%     the process that starts it        keeper, later
%%       | ── start ─────────────────────> |  takes the name
%%       |                                 |  registers: senders know the bounds from here on
%%       |                                 | ── start_link ──────> server
%%       |                                 |  registers the server, too
%%       | <───── {ok, Keeper, Work} ───── |
%%
%% This returns what gen_server:start_link and gen_statem:start_link would, also if the start fails.
-module(trunkline_keeper_start).
-moduledoc false.

-export([start_link/3, is_keeper/1]).
-export([init/2]).

%% What the inbox is for.
-type what() :: {server, gen_server | gen_statem, module(), Args :: term(), Options :: list()}
              | {process, pid()}.

%% ms that the server's report of a failed start may take.
-define(REPORTS, 5000).
%% The consumer gets no more while it has this part (an eighth) of the bytes of a full inbox.
-define(WORK, 8).

%% --- in the process that starts it ------------------------------------------------------

%% As gen_server:start_link and gen_statem:start_link, except that the keeper has the name. The
%% result also has the counter of the consumer's work. Bad options for the server are an error, as
%% with gen_server.
-spec start_link(trunkline_name:name(), what(), trunkline_keeper:options()) ->
          {ok, pid(), trunkline_work:work()} | ignore | {error, term()}.
start_link(Name, What, Options) ->
    case taken_by(Name) of
        Pid when is_pid(Pid) -> {error, {already_started, Pid}};
        _ ->
            case proc_lib:start_link(?MODULE, init, [self(), {Name, What, Options}]) of
                {failed, Keeper, {raised, Reason}} -> forget_exit(Keeper), error(Reason);
                {failed, Keeper, Answer} -> forget_exit(Keeper), Answer;
                Started -> Started
            end
    end.

%% Since OTP 26 a start that fails leaves no 'EXIT' message in the mailbox of the caller.
forget_exit(Keeper) ->
    case trunkline_inbox_server:is_26() andalso process_info(self(), trap_exit) of
        {trap_exit, true} -> receive {'EXIT', Keeper, _} -> ok end;
        _ -> ok
    end.

%% As gen does: if the name is taken, no process is started that would have to end again. (A process
%% that has ended has no name. Nor has its inbox, which may come to that news much later.)
taken_by({local, Name} = Local) ->
    Pid = trunkline_name:where(Local),
    _ = is_pid(Pid) andalso trunkline_own_inboxes:is_abandoned(Pid)
        andalso trunkline_inboxes:take_name_back(Name, Pid),
    trunkline_name:where(Local);
taken_by(Name) ->
    trunkline_name:where(Name).

%% Whether a process of this node is a keeper, registered or not.
-spec is_keeper(pid()) -> boolean().
is_keeper(Pid) -> element(1, proc_lib:translate_initial_call(Pid)) =:= ?MODULE.

%% --- in the keeper ----------------------------------------------------------------------

-spec init(pid(), {trunkline_name:name(), what(), trunkline_keeper:options()}) -> ok.
init(Parent, {Name, What, Options}) ->
    ok = trunkline_process:label({trunkline_inbox, trunkline_name:local(Name)}),
    process_flag(trap_exit, true),
    process_flag(message_queue_data, off_heap),
    case trunkline_name:take(Name) of
        true ->
            %% If the process ends from here on, the keeper registers again.
            Inboxes = monitor(process, trunkline_inboxes),
            case registered(Name, What, Options, Parent) of
                {ok, {_, Work, _, _} = Registration} ->
                    proc_lib:init_ack(Parent, {ok, self(), Work}),
                    trunkline_keeper:keep(Parent, Registration, Options, Inboxes);
                {failed, Answer, Reason} ->
                    ok = trunkline_name:give_back(Name),
                    proc_lib:init_ack(Parent, {failed, self(), Answer}),
                    trunkline_keeper:end_with(Reason)
            end;
        {false, Pid} ->
            proc_lib:init_ack(Parent, {failed, self(), {error, {already_started, Pid}}})
    end.

%% Senders know the bounds before init/1 is called, which may take long.
registered(Name, What, Options, Parent) ->
    Kind = element(1, What),
    #{policy := Policy, bytes := Bytes, messages := Messages, work := Window} = Options,
    Inbox = {self(), trunkline_name:local(Name), Policy, {Bytes, Messages}},
    Work = trunkline_work:new(Kind, Window, Bytes div ?WORK),
    Stats = trunkline_inbox_stats:new(),
    case trunkline_inboxes:register({Inbox, Work, Stats, behind(What)}) of
        ok ->
            case start(What, Work, Parent, Name) of
                {ok, Behind} ->
                    Registration = {Inbox, Work, Stats, Behind},
                    ok = trunkline_inboxes:register_again(Registration),
                    {ok, Registration};
                NotStarted ->
                    {Answer, Reason} = failed(NotStarted),
                    {failed, Answer, Reason}
            end;
        Error ->
            {failed, Error, normal}
    end.

behind({process, _} = Process) -> Process;
behind(_) -> none.                           % its server has not started

%% What the caller gets, and the keeper's exit reason.
failed({error, timeout} = Error) ->
    %% The server was killed. The process that has started it gets an error, and is not killed.
    {Error, normal};
failed({error, Reason} = Error) ->
    case trunkline_inbox_server:said(Reason) of
        {said, Said} -> {{error, Said}, normal};
        no -> {Error, Reason}
    end;
failed(Other) ->                             % `ignore', or the error of bad options
    {Other, normal}.

start({process, Pid} = Process, _, _, _) ->
    %% (It may unlink itself from its inbox, which has no use without it.)
    _ = monitor(process, Pid),
    {ok, Process};
start({server, Behaviour, Module, Args, Options}, Work, Parent, Name) ->
    Callbacks = case Behaviour of
                    gen_server -> trunkline_inbox_server;
                    gen_statem -> trunkline_inbox_statem
                end,
    ok = trunkline_own_inboxes:await_predecessor(Name),
    try Behaviour:start_link(Callbacks, {Module, Args, Work, Parent}, Options) of
        {ok, Server} ->
            {ok, {server, Name, Server}};
        NotStarted ->
            IsServer = fun trunkline_inbox_server:is_behind_me/1,
            lists:foreach(fun await_end/1, lists:filter(IsServer, linked(Parent))),
            NotStarted
    catch
        error:Reason ->
            %% (The server may have started already.)
            [begin unlink(Pid), exit(Pid, kill) end || Pid <- linked(Parent)],
            {raised, Reason}
    end.

linked(Parent) ->
    {links, Links} = process_info(self(), links),
    [Pid || Pid <- Links, is_pid(Pid), Pid =/= Parent].

%% Before OTP 26 a server that cannot start reports why after it has answered. If the keeper ended
%% before that, it would end the server.
await_end(Server) ->
    Ref = monitor(process, Server),
    receive {'DOWN', Ref, process, Server, _} -> ok
    after ?REPORTS -> demonitor(Ref, [flush]), ok
    end.
