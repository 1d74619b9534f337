%% Puts one large message together, decodes it, and delivers it.
%%
%% Each large message has a process of its own, so that one that takes long, or breaks, does not
%% affect others. The process starts when all fragments have arrived, and delivers when its inlet
%% says so:
%%
%%     inlet              opener               receiver
%%       | -- fragments --> |  decodes
%%       | -- deliver ----> | ── the message ──> |
%%       | <---- delivered- |
%%
%% The receiver's other messages come from the inlet. The runtime system promises an order for the
%% signals of one process to another, but not for those of two processes to a third, even if one of
%% the two waits for the other. An `on_heap' mailbox is one queue, to which each message is appended
%% when it is sent, so two processes that agree on an order keep it there. An `off_heap' mailbox may
%% have several queues (the parallel signal optimisation of OTP 25), and may swap such messages. So
%% this process delivers only to mailboxes on the heap. For other mailboxes, for an alias whose
%% owner is not known, and for several addressees, it gives the message to the inlet, which
%% delivers it. A name is looked up here, when the message is sent.
%%
%% A function that is to be executed (trunkline_erpc) is executed here: this process has all that
%% the function needs, and nothing is copied.
-module(trunkline_opener).
-moduledoc false.

-export([start/2, deliver/2]).
-export([await/1]).

-export_type([address/0]).

%% The addressee, whose mailbox that is, and in which form; `nobody': no process gets the message;
%% `executor': this process executes it; `signal': it is the reason of an exit signal.
-type address() :: {To :: pid() | atom() | reference() | trunkline_multicast:command(),
                    Receiver :: pid() | any,
                    trunkline_command:wrap()}
                 | nobody
                 | {executor, trunkline_command:apply()}
                 | {signal, trunkline_command:exit()}.

%% ms: how long messages behind an exit signal wait if its receiver does not get to run.
-define(SIGNAL, 1000).

%% The calling process is the inlet, and monitors the opener.
-spec start(trunkline_reassembly:parts(), [trunkline_parcel:size_bytes()]) ->
          {ok, {pid(), reference()}} | {error, system_limit}.
start(Parts, Sizes) ->
    Inlet = self(),
    trunkline_process:start(
      fun() -> spawn_monitor(fun() -> open(Inlet, Parts, Sizes) end) end).

%% The inlet may just have monitored the receiver. If the message is an exit signal, or a request
%% that ends the receiver, the 'DOWN' must have its reason, and not noproc. But the runtime system
%% holds one monitor signal back until its sender sends another one, or has to stop
%% (`pending_signal' in ERTS). The second monitor here makes it go.
-spec deliver(pid(), address()) -> ok.
deliver(Opener, Address) ->
    true = demonitor(monitor(process, Opener)),
    Opener ! {deliver, Address},
    ok.

open(Inlet, Parts, Sizes) ->
    Ref = monitor(process, Inlet),
    Message = try trunkline_parcel:unpack(trunkline_reassembly:segments(Parts, Sizes))
              catch
                  %% Not an error, whose report would contain the whole message.
                  _:_ -> exit(undecodable)
              end,
    await({Inlet, Ref, Message}).

%% It may take long until the message's turn comes.
-spec await({Inlet :: pid(), reference(), Message :: term()}) -> term().
await({Inlet, Ref, Message} = S) ->
    receive
        {deliver, Address} ->
            %% The inlet may have been killed meanwhile, and another session may have begun.
            case is_process_alive(Inlet) of
                true -> demonitor(Ref, [flush]), deliver(Address, Message, Inlet);
                false -> ok
            end;
        {'DOWN', Ref, process, _, _} ->
            ok;
        Other ->
            trunkline_process:other(Other, fun ?MODULE:await/1, S)
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
