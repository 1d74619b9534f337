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
%% A term with many atoms is not packed, but stays in the lane. The distribution has a cache for
%% atoms: to encode and decode them as a parcel takes six times as long. When its turn comes, the
%% opener asks the lane to send it by the distribution, straight to the receiver:
%%
%%     inlet              opener               lane at the peer             receiver
%%       | -- deliver ----> | -- fetch ----------> | ── the message ──────────> |
%%       | <---- delivered- | <------------- sent- |
%%
%% The connection keeps the order of what the lane sends, so the message is there before `sent' is.
%% If the connection is lost, this process gives up, and the lane does not send by the next one.
%% If this process may not deliver to that mailbox (see above), the lane sends the term here. In
%% both cases it learns where the mailbox is.
%%
%% The lane also sends the term here if it cannot give all of it to the distribution at once. For
%% the rest of such a message goes out even if the lane is killed, and news of the lane's end comes
%% before it (docs/reference/otp-defects.md). A receiver must not get it then.
%%
%% A function that is to be executed (trunkline_erpc) is executed here: this process has all that
%% the function needs, and nothing is copied.
-module(trunkline_opener).
-moduledoc false.

-export([start/2, deliver/2, finish/1, bytes/1]).
-export([await/1]).

-export_type([parts/0, sizes/0, ended/0]).

%% The addressee, whose mailbox that is, and in which form; `nobody': no process gets the message;
%% `executor': this process executes it; `signal': it is the reason of an exit signal.
-type address() :: {To :: pid() | atom() | reference() | trunkline_multicast:command(),
                    Receiver :: pid() | any,
                    trunkline_command:wrap()}
                 | nobody
                 | {executor, trunkline_command:apply()}
                 | {signal, trunkline_command:exit()}.

%% The fragments, or the term with that number, which the lane has.
-type parts() :: trunkline_reassembly:parts() | {term, Lane :: pid(), pos_integer()}.

%% Of the fragments' segments, or of a term.
-type sizes() :: [trunkline_parcel:size_bytes()] | {term, trunkline_parcel:size_bytes()}.

%% ms: how long messages behind an exit signal wait if its receiver does not get to run.
-define(SIGNAL, 1000).

%% What the inlet gets when the opener has ended.
-type ended() :: {opener_ended, reference(), process, Opener :: pid(), Reason :: term()}.

%% The calling process is the inlet, and monitors the opener.
-spec start(parts(), sizes()) ->
          {ok, {pid(), reference()}} | {error, system_limit}.
start(Parts, Sizes) ->
    Inlet = self(),
    trunkline_process:start(
      fun() -> spawn_opt(fun() -> open(Inlet, Parts, Sizes) end,
                         [{monitor, [{tag, opener_ended}]}])
      end).

%% The inlet may just have monitored the receiver. If the message is an exit signal, or a request
%% that ends the receiver, the 'DOWN' must have its reason, and not noproc. But the runtime system
%% holds one monitor signal back until its sender sends another one, or has to stop
%% (`pending_signal' in ERTS). The second monitor here makes it go.
-spec deliver(pid(), address()) -> ok.
deliver(Opener, Address) ->
    true = demonitor(monitor(process, Opener)),
    Opener ! {deliver, Address},
    ok.

-spec bytes(sizes()) -> trunkline_parcel:size_bytes().
bytes({term, Bytes}) -> Bytes;
bytes(Sizes) -> lists:sum(Sizes).

%% The session has ended before the term's turn: the inlet gets {opener, Opener, lost}.
-spec finish(pid()) -> ok.
finish(Opener) ->
    Opener ! finish,
    ok.

open(Inlet, {term, _, _} = Term, _) ->
    await({Inlet, monitor(process, Inlet), Term});
open(Inlet, Parts, Sizes) ->
    Ref = monitor(process, Inlet),
    Message = try trunkline_parcel:unpack(trunkline_reassembly:segments(Parts, Sizes))
              catch
                  %% Not an error, whose report would contain the whole message.
                  _:_ -> exit(undecodable)
              end,
    await({Inlet, Ref, {message, Message}}).

%% It may take long until the message's turn comes. The state is what there is of the message: the
%% message; a term that has not been asked for; or the monitor of the lane that has been asked, and
%% the address for a term that comes here. The lane answers in any state, or is dead: what waits
%% behind the term must not come before it.
-spec await({Inlet :: pid(), reference(),
             {message, term()} | {term, Lane :: pid(), pos_integer()}
             | {asked, reference(), address()}}) ->
          term().
await({Inlet, Ref, Has} = S) ->
    receive
        {deliver, Address} when element(1, Has) =:= message ->
            deliver_once(Address, element(2, Has), Inlet, Ref);
        {deliver, Address} when element(1, Has) =:= term ->
            case ask(Has, Address, Inlet, Ref) of
                noconnection -> lost(Inlet);
                Asked -> ?MODULE:await({Inlet, Ref, Asked})
            end;
        {[alias | Ref], Message} when element(1, Has) =:= asked ->
            demonitor(element(2, Has), [flush]),
            deliver_once(element(3, Has), Message, Inlet, Ref);
        sent ->
            Inlet ! {opener, self(), delivered};
        finish when element(1, Has) =:= term ->
            lost(Inlet);
        missing ->
            Inlet ! {opener, self(), missing};
        {'DOWN', Lane, process, _, _} when element(1, Has) =:= asked, element(2, Has) =:= Lane ->
            lost(Inlet);
        {'DOWN', Ref, process, _, _} ->
            ok;
        Other ->
            trunkline_process:other(Other, fun ?MODULE:await/1, S)
    end.

lost(Inlet) -> Inlet ! {opener, self(), lost}.

%% Asks the lane to send the term to that process, and then to say `sent', or to send it here.
ask({term, Lane, Number}, Address, Inlet, Ref) ->
    Where = case Address of
                {_, Receiver, _} when is_pid(Receiver) ->
                    case may_deliver_to(Receiver) of
                        true -> Address;
                        false -> {no, Receiver}
                    end;
                _ ->
                    any
            end,
    case trunkline_process:monitor_connected(Lane) of
        noconnection ->
            noconnection;
        Monitor ->
            _ = erlang:send(Lane, {fetch, Inlet, Number, {self(), Ref}, Where}, [noconnect]),
            {asked, Monitor, Address}
    end.

%% The inlet may have been killed meanwhile, and another session may have begun.
deliver_once(Address, Message, Inlet, Ref) ->
    case is_process_alive(Inlet) of
        true -> demonitor(Ref, [flush]), deliver(Address, Message, Inlet);
        false -> ok
    end.

deliver(nobody, _, Inlet) ->
    Inlet ! {opener, self(), delivered};
deliver({executor, Command}, Message, Inlet) ->
    Inlet ! {opener, self(), delivered},
    trunkline_executor:run(Command, Message);
deliver({signal, {exit, Pid, Sender}}, Reason, Inlet) ->
    Timer = erlang:send_after(?SIGNAL, Inlet, {opener, self(), delivered}),
    ok = trunkline_exit:signal(Sender, Pid, Reason, fun() -> is_process_alive(Inlet) end),
    _ = erlang:cancel_timer(Timer),
    Inlet ! {opener, self(), delivered};
deliver({Name, any, plain}, Message, Inlet) when is_atom(Name) ->
    case whereis(Name) of
        Pid when is_pid(Pid) -> deliver({Pid, Pid, plain}, Message, Inlet);
        _ -> deliver(nobody, Message, Inlet)           % as plain distribution does
    end;
deliver({To, Receiver, Wrap}, Message, Inlet) ->
    Wrapped = trunkline_command:wrap(Wrap, Message),
    MayDeliver = may_deliver_to(Receiver),   % a receiver that runs answers late
    %% (The inlet may be killed while the message is copied. Before a session begins the next link
    %% publishes its route, and a persistent term has to wait for the schedulers: so for the copy.)
    case is_process_alive(Inlet) of
        true when MayDeliver ->
            ok = trunkline_process:deliver(To, Wrapped),
            Inlet ! {opener, self(), delivered};
        true ->
            Inlet ! {opened, self(), To, Wrapped};
        false ->
            ok
    end.

may_deliver_to(Receiver) -> is_pid(Receiver) andalso trunkline_process:is_on_heap(Receiver).
