%% Puts one large message together, decodes it, and delivers it.
%%
%% A process for each, so that a message which takes long, or breaks, concerns
%% nobody else. It starts when all fragments have arrived, and delivers when its
%% inlet says so:
%%
%%     inlet              opener               receiver
%%       | -- fragments --> |  decodes
%%       | -- deliver ----> | ── the message ──> |
%%       | <---- delivered- |
%%
%% The receiver's other messages come from the inlet. The runtime system promises the order
%% of one process's signals to another, not that of two processes' to a third, even if one of
%% them waits for the other. A mailbox that is `on_heap' is one queue, to which each message is
%% appended when it is sent: there two processes that agree on an order keep it. One that is
%% `off_heap' may have several queues (the parallel signal optimisation of OTP 25), and swaps
%% such messages. Therefore this process delivers to mailboxes on the heap only. To others, to
%% an alias whose owner is not known, and to many at a time, the inlet delivers: this
%% process gives it the message. A name is looked up here, when the message is sent.
%%
%% A function that is to be executed (trunkline_erpc) is executed here: this process
%% has all that it needs, and nothing is copied.
-module(trunkline_opener).
-moduledoc false.

-export([start/2, deliver/2]).
-export([await/1]).

-export_type([address/0]).

%% To whom, whose mailbox that is, and in which form; nobody gets it; this process is the
%% executor.
-type address() :: {To :: pid() | atom() | reference() | trunkline_multicast:command(),
                    Receiver :: pid() | any,
                    trunkline_command:wrap()}
                 | nobody
                 | {executor, trunkline_command:apply()}
                 | {signal, trunkline_command:exit()}.

%% ms: so long what comes behind an exit signal waits for a process that does not get to run.
-define(SIGNAL, 1000).

%% The calling process is the inlet, and monitors it.
-spec start(trunkline_reassembly:parts(), [trunkline_parcel:size_bytes()]) ->
          {ok, {pid(), reference()}} | {error, system_limit}.
start(Parts, Sizes) ->
    Inlet = self(),
    trunkline_process:start(
      fun() -> spawn_monitor(fun() -> open(Inlet, Parts, Sizes) end) end).

%% The inlet may have set a monitor just before, of the receiver: who gets an exit signal, or a
%% request that ends it, ends with its reason, and not with noproc. The runtime system keeps one
%% such signal back until its sender sends another, or has to stop (ERTS's `pending_signal'). The
%% second monitor here makes it go.
-spec deliver(pid(), address()) -> ok.
deliver(Opener, Address) ->
    true = demonitor(monitor(process, Opener)),
    Opener ! {deliver, Address},
    ok.

open(Inlet, Parts, Sizes) ->
    Ref = monitor(process, Inlet),
    Message = try trunkline_parcel:unpack(trunkline_reassembly:segments(Parts, Sizes))
              catch
                  %% No error: its report would have the whole message in it.
                  _:_ -> exit(undecodable)
              end,
    await({Inlet, Ref, Message}).

%% Its turn may be long in coming.
-spec await({Inlet :: pid(), reference(), Message :: term()}) -> term().
await({Inlet, Ref, Message} = S) ->
    receive
        {deliver, Address} ->
            %% It may have been killed meanwhile, and another session begun.
            case is_process_alive(Inlet) of
                true -> demonitor(Ref, [flush]), deliver(Address, Message, Inlet);
                false -> ok
            end;
        {'DOWN', Ref, process, _, _} ->
            ok;
        {system, From, Request} ->
            trunkline_process:system(From, Request, fun ?MODULE:await/1, S)
    end.

deliver(nobody, _, Inlet) ->
    Inlet ! {delivered, self()};
deliver({executor, Command}, Message, Inlet) ->
    Inlet ! {delivered, self()},
    trunkline_executor:run(Command, Message);
deliver({signal, {exit, Pid, Sender}}, Reason, Inlet) ->
    Timer = erlang:send_after(?SIGNAL, Inlet, {delivered, self()}),
    ok = trunkline_exit:signal(Sender, Pid, Reason),
    _ = erlang:cancel_timer(Timer),
    Inlet ! {delivered, self()};
deliver({Name, any, plain}, Message, Inlet) when is_atom(Name) ->
    case whereis(Name) of
        Pid when is_pid(Pid) -> deliver({Pid, Pid, plain}, Message, Inlet);
        _ -> deliver(nobody, Message, Inlet)           % as plain distribution does
    end;
deliver({To, Receiver, Wrap}, Message, Inlet) ->
    Wrapped = trunkline_command:wrap(Wrap, Message),
    case is_pid(Receiver) andalso process_info(Receiver, message_queue_data) of
        {message_queue_data, on_heap} ->
            To ! Wrapped,
            Inlet ! {delivered, self()};
        _ ->
            Inlet ! {opened, self(), To, Wrapped}
    end.
