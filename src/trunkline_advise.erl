%% Shows what the distribution of this node is doing, and what Trunkline would change.
%%
%% This module only observes. It reads the counters of the distribution's sockets twice, and those
%% of the lanes if Trunkline runs. In between it sees which processes the runtime system suspends.
%% It sends nothing, and needs nothing but its code.
%%
%%     counters ── time ── counters ──> figures ──> sentences
%%                  │
%%                  └ busy_dist_port: who is suspended, and for how long
%%
%% judge/1 is pure: it says what the figures of one connection mean. Its thresholds and costs are
%% those of the project's benchmarks (docs/lab/how-it-works.md): a message by `!' costs the two
%% nodes about 9 us of processor time, a batch 15 us, and a message in a batch 1 us.
-module(trunkline_advise).
-moduledoc false.

-export([options/1, advise/1, look/2, judge/1]).

-export_type([advice/0]).

-type per_second() :: float().
-type figures() ::
        #{node := node(),
          %% undefined: the connection has no socket whose counters can be read
          socket := #{writes := per_second(),
                      sent_bytes := per_second(),
                      packets_received := per_second(),
                      received_bytes := per_second(),
                      pending_bytes := non_neg_integer(),     % at the end
                      gathers => boolean()} | undefined,      % many writes are one system call
          round_trip := pos_integer() | undefined,   % us, as the kernel measured it
          %% Suspended senders, unless another process uses the system monitor.
          suspended := #{times := per_second(), share := float()} | undefined,
          %% undefined: Trunkline has no session with that node
          lanes := #{messages := per_second(), batched_messages := per_second(),
                     batches := per_second(), waits := per_second(),
                     bytes := per_second()} | undefined}.          % large ones included
-type advice() ::
          #{figures := figures(), gain := none | batches | waits | large | in_use,
            text := [string()]}.

%% Of all lanes to a node.
-define(LANES, [messages, batched_messages, batches, waits, bytes]).
%% ms
-define(TIME, 5000).
-define(POLL, 1).                  % between two checks of the suspended processes
%% After this many suspensions it is clear that there are many, and no more are counted.
-define(SUSPENSIONS, 100_000).

%% Messages per second. With fewer there is nothing to save.
-define(BUSY, 1000).
%% Mean size in bytes from which on a system call for each message does not matter.
-define(SMALL, 4096).
%% Bytes per second from which on a connection with messages of that size has large traffic.
-define(LARGE_RATE, 10_000_000).
%% Messages in a batch, at most: see trunkline_lane.
-define(BATCH, 256).
%% us of both nodes' processors
-define(PLAIN_COST, 9).
-define(BATCH_COST, 15).
-define(MESSAGE_COST, 1).
%% Share of the time; less is not a problem.
-define(WAITING, 0.01).
%% us: the least time until a lane to a near peer learns that a batch has arrived and sends the next
%% one, while both nodes are busy.
-define(TURN, 200).

%% Observes for some time, prints the advice, and returns it.
-spec advise(trunkline:advise_options()) -> [advice()].
advise(Options) ->
    Time = maps:get(time, Options, ?TIME),
    Nodes = maps:get(nodes, Options, all),
    Advice = [#{figures => Figures, gain => Gain, text => Text}
              || Figures <- look(Time, Nodes), {Gain, Text} <- [judge(Figures)]],
    print(Time, Nodes, Advice),
    Advice.

-spec options(term()) -> [trunkline_function_options:declared()].
options(_) ->
    [{time, "an integer from 1 to 60000",
      fun(Ms) -> is_integer(Ms) andalso Ms >= 1 andalso Ms =< 60_000 end},
     {nodes, "a list of nodes", fun trunkline_errors:are_nodes/1}].

%% --- looking -------------------------------------------------------------------

%% The figures of the connections to these nodes, over Time ms.
-spec look(pos_integer(), all | [node()]) -> [figures()].
look(Time, Nodes) ->
    Began = erlang:monotonic_time(millisecond),
    %% (`bin/app rpc' of a release may be a hidden node that lives for a moment.)
    Looked = case Nodes of
                 all -> nodes();
                 _ -> Nodes
             end,
    Before = [{Node, read(Node)} || {Node, _} <- erlang:system_info(dist_ctrl),
                                    lists:member(Node, Looked)],
    Suspended = suspended(Began + Time),
    Took = max(1, erlang:monotonic_time(millisecond) - Began),
    Controllers = erlang:system_info(dist_ctrl),
    [figures(Node, First, read(Node), Suspended, Took)
     || {Node, First} <- Before, lists:keymember(Node, 1, Controllers)].

read(Node) ->
    Socket = trunkline_socket:distribution(Node),
    #{socket => Socket, counters => counters(Socket), lanes => lanes(Node)}.

counters(none) ->
    undefined;
counters(Port) ->
    case inet:getstat(Port, [send_cnt, send_oct, recv_cnt, recv_oct, send_pend]) of
        {ok, Counters} -> maps:from_list(Counters);
        {error, _} -> undefined
    end.

lanes(Node) ->
    case trunkline_info:peer(Node) of
        #{state := up, lanes := [_ | _] = Lanes, large := #{bytes := Large}} ->
            Sum = fun(Key) -> lists:sum([maps:get(Key, Lane) || Lane <- Lanes]) end,
            Sums = maps:from_list([{Key, Sum(Key)} || Key <- ?LANES]),
            Sums#{bytes := Large + maps:get(bytes, Sums)};
        _ ->
            undefined                        % or Trunkline does not run
    end.

figures(Node, #{counters := C0, lanes := L0}, #{counters := C1, lanes := L1, socket := Socket},
        Suspended, Took) ->
    Rate = fun(Key, Old, New) -> max(0, maps:get(Key, New) - maps:get(Key, Old)) * 1000 / Took end,
    #{node => Node,
      socket => case {C0, C1} of
                    {#{}, #{send_pend := Pending}} ->
                        #{writes => Rate(send_cnt, C0, C1), sent_bytes => Rate(send_oct, C0, C1),
                          packets_received => Rate(recv_cnt, C0, C1),
                          received_bytes => Rate(recv_oct, C0, C1),
                          pending_bytes => Pending,
                          gathers => {ok, [{delay_send, true}]}
                              =:= inet:getopts(Socket, [delay_send])};
                    _ ->
                        undefined
                end,
      round_trip => case trunkline_socket:round_trip(Node) of
                        infinity -> undefined;
                        Time -> Time
                    end,
      suspended => case Suspended of
                       unknown -> undefined;
                       #{Socket := {Times, Waited}} ->
                           #{times => Times * 1000 / Took, share => min(1.0, Waited / Took)};
                       #{} -> #{times => 0.0, share => 0.0}
                   end,
      lanes => case {L0, L1} of
                   {#{}, #{}} ->
                       maps:from_list([{Key, Rate(Key, L0, L1)}
                                       || Key <- ?LANES]);
                   _ -> undefined
               end}.

%% The runtime system reports suspensions to one process, the system monitor. If there is none, a
%% process of this module takes that role until the end. The result is
%% #{Port => {Suspensions, ms in which a sender was suspended}}.
suspended(Until) ->
    case erlang:system_monitor() of
        undefined ->
            Self = self(),
            {Pid, Ref} = spawn_monitor(fun() -> Self ! {self(), watch(Until)} end),
            receive
                {Pid, Suspended} -> demonitor(Ref, [flush]), Suspended;
                {'DOWN', Ref, process, Pid, _} -> unknown(Until)
            end;
        _ ->
            unknown(Until)
    end.

unknown(Until) -> receive after trunkline_deadline:left(Until) -> unknown end.

%% (The system monitor's role ends with the process, unless another process has taken it over.)
watch(Until) ->
    case erlang:system_monitor(self(), [busy_dist_port]) of
        undefined ->
            watch(Until, #{}, #{}, ?SUSPENSIONS);
        {Other, Options} ->                    % has taken the role meanwhile, and keeps it
            _ = is_process_alive(Other) andalso erlang:system_monitor(Other, Options),
            unknown(Until)
    end.

watch(Until, Waiting, Sum, 0) ->
    Self = self(),
    _ = case erlang:system_monitor() of
            {Self, _} -> erlang:system_monitor(undefined);
            Other -> Other
        end,
    watch(Until, Waiting, Sum, enough);
watch(Until, Waiting, Sum, Budget) ->
    %% If no process is suspended, only a suspension needs to wake this process before the end.
    Pause = case map_size(Waiting) of
                0 -> trunkline_deadline:left(Until);
                _ -> min(?POLL, trunkline_deadline:left(Until))
            end,
    Now = erlang:monotonic_time(microsecond),
    receive
        {monitor, Pid, busy_dist_port, Port} when is_integer(Budget) ->
            {Times, Waited} = maps:get(Port, Sum, {0, 0}),
            watch(Until, Waiting#{Pid => Port},
                  add(Now, Waiting, Sum#{Port => {Times + 1, Waited}}), Budget - 1)
    after Pause ->
            Sum1 = add(Now, Waiting, Sum),
            case trunkline_deadline:left(Until) of
                0 -> maps:map(fun(_, {Times, Waited}) -> {Times, Waited / 1000} end, Sum1);
                _ ->
                    watch(Until, maps:filter(fun(Pid, _) -> is_suspended(Pid) end, Waiting),
                          Sum1, Budget)
            end
    end.

%% Adds the time since Before to each port that has a suspended sender.
add(Before, Waiting, Sum) ->
    Elapsed = erlang:monotonic_time(microsecond) - Before,
    lists:foldl(fun(Port, Sum1) ->
                        maps:update_with(Port,
                                         fun({Times, Waited}) -> {Times, Waited + Elapsed} end,
                                         Sum1)
                end, Sum, lists:usort(maps:values(Waiting))).

is_suspended(Pid) -> process_info(Pid, status) =:= {status, suspended}.

%% --- judging --------------------------------------------------------------------

%% What the figures mean, and what to do.
-spec judge(figures()) -> {none | batches | waits | large | in_use, [string()]}.
judge(#{socket := undefined, lanes := undefined}) ->
    {none, ["The counters of this connection cannot be read."]};
judge(#{lanes := Lanes} = Figures) ->
    case {gain(Figures), Lanes} of
        {none, undefined} ->
            {none, traffic(Figures) ++ waits(Figures) ++ [nothing(Figures)]};
        {Gain, undefined} ->
            {Gain, traffic(Figures) ++ by_trunkline(Gain, Figures) ++ waits(Figures)
             ++ ["Try it: trunkline:compare(Node)." | use_it()]};
        {Gain, _} when Gain =/= none ->
            case are_used(Figures) of
                true -> in_use(Figures);
                false ->
                    {Gain, traffic(Figures) ++ by_trunkline(Gain, Figures) ++ waits(Figures)
                     ++ ["Trunkline runs at both nodes, but little of this goes by lane."
                         | use_it()]}
            end;
        {none, _} ->
            in_use(Figures)
    end.

nothing(#{socket := #{writes := Writes, packets_received := Received}})
  when Writes + Received < 1 ->
    "The connection was idle. Look again under load.";
nothing(_) ->
    "There is nothing to gain here.".

in_use(Figures) -> {in_use, by_lane(Figures) ++ beside_lanes(Figures) ++ waits(Figures)}.

%% Whether most of the traffic may be Trunkline's. (Batches on connections of their own are not
%% among the writes. Long terms are not in batches, and each takes many writes. The bytes are those
%% of messages, without the distribution's encoding, and some have gone by other connections.)
are_used(#{socket := #{writes := Writes, sent_bytes := Sent},
           lanes := #{messages := Messages, batches := Batches, bytes := Bytes}} = Figures) ->
    case mean(Figures) < ?SMALL of
        true -> Messages >= Writes - Batches;
        false -> 2 * Bytes >= Sent
    end;
are_used(_) ->
    true.

%% What there is to gain, if Trunkline carries nothing.
gain(Figures) ->
    case {is_busy(Figures), is_large(Figures), is_waiting(Figures)} of
        {true, _, _} -> batches;
        {_, true, _} -> large;
        {_, _, true} -> waits;
        _ -> none
    end.

by_trunkline(batches, Figures) -> batches(Figures);
by_trunkline(large, _) -> large();
by_trunkline(waits, _) -> [].

is_busy(#{socket := #{writes := Writes}} = Figures) ->
    Writes >= ?BUSY andalso mean(Figures) < ?SMALL;
is_busy(_) -> false.

is_large(#{socket := #{sent_bytes := Bytes}} = Figures) ->
    Bytes >= ?LARGE_RATE andalso mean(Figures) >= ?SMALL;
is_large(_) -> false.

mean(#{socket := #{writes := Writes, sent_bytes := Bytes}}) -> Bytes / max(1, Writes).

traffic(#{socket := #{writes := Writes, packets_received := Received,
                      pending_bytes := Pending}} = Figures) ->
    [text("~ts writes/s of ~ts; ~ts messages/s arrive.",
          [count(Writes), bytes(mean(Figures)), count(Received)])]
        ++ [text("~ts wait in the socket.", [bytes(Pending)]) || Pending > 0].

batches(#{socket := #{writes := Writes} = Socket, round_trip := RoundTrip}) ->
    Batches = Writes / batch(Writes, RoundTrip),
    Gathers = maps:get(gathers, Socket, false),
    %% (A connection that is always busy costs less for each message.)
    Now = min(Writes * ?PLAIN_COST, erlang:system_info(schedulers_online) * 1.0e6),
    Saved = (Now - Batches * ?BATCH_COST - Writes * ?MESSAGE_COST) / 1.0e6,
    [text("With batches there would be about ~ts writes/s, and fewer under higher load.",
          [count(Batches)])]
        ++ [text("That saves up to ~b % of one CPU (both nodes together).", [round(Saved * 100)])
            || Saved >= 0.01, not Gathers]
        ++ ["What that saves is not known: the connection gathers writes (delay_send)." || Gathers].

%% The messages that reach a lane while a batch is in flight are the next batch.
batch(Writes, RoundTrip) ->
    Lanes = maps:get(lanes, trunkline_options:defaults()),
    Turn = case RoundTrip of
               undefined -> ?TURN;
               _ -> max(?TURN, RoundTrip)
           end,
    max(1, min(?BATCH, Writes / Lanes * Turn / 1.0e6)).

is_waiting(#{suspended := #{share := Share}}) -> Share >= ?WAITING;
is_waiting(_) -> false.

large() ->
    ["Large messages hold up the small ones behind them, and the heartbeat. "
     "Trunkline sends them beside."].

waits(#{suspended := undefined}) ->
    ["Whether senders were suspended is not known: another process uses the system monitor."];
waits(#{suspended := #{share := Share}} = Figures) ->
    [text("Senders were suspended ~b % of the time: the connection's buffer was full.",
          [round(Share * 100)]) || is_waiting(Figures)].

use_it() ->
    ["Use it: trunkline:send/2, call/2,3 and cast/2, or the parse transform trunkline_transform,",
     "which needs no edit."].

%% The traffic that goes by lane.
by_lane(#{lanes := #{messages := Messages}}) when Messages == 0 ->
    ["No messages went by lane in this time. Look again under load."];
by_lane(#{lanes := #{messages := Messages, batched_messages := Batched, batches := Batches,
                     waits := Waits}}) ->
    [text("~ts messages/s go by lane, ~.1f in a batch.",
          [count(Messages), Batched / max(1.0, Batches)])]
        ++ [text("Senders waited ~ts times a second for room in a lane.",
                 [count(Waits)]) || Waits >= 1].

%% The traffic that does not.
beside_lanes(#{socket := #{writes := Writes}, lanes := #{batches := Batches}} = Figures)
  when Writes - Batches >= ?BUSY ->
    [text("Up to ~ts writes/s of ~ts go beside the lanes, by `!` or OTP's own functions.",
          [count(Writes - Batches), bytes(mean(Figures))])];
beside_lanes(_) ->
    [].

%% --- printing --------------------------------------------------------------------

print(Time, Nodes, Advice) ->
    io:format("~ts: ~b connection~ts, looked at for ~.1f s~n",
              [node(), length(Advice), plural(length(Advice)), Time / 1000]),
    lists:foreach(fun(#{figures := #{node := Node}, text := [First | More]}) ->
                          io:format("~n  to ~ts: ~ts~n", [Node, First]),
                          lists:foreach(fun(Line) -> io:format("    ~ts~n", [Line]) end, More)
                  end, Advice),
    Missing = case Nodes of
                  all -> [];
                  _ -> lists:usort(Nodes) -- [Node || #{figures := #{node := Node}} <- Advice]
              end,
    lists:foreach(fun(Node) -> io:format("~n  to ~tp: not connected~n", [Node]) end, Missing).

plural(1) -> "";
plural(_) -> "s".

text(Format, Args) -> lists:flatten(io_lib:format(Format, Args)).

count(N) when N >= 1000, N < 1.0e6 -> text("~b,~3..0b", [round(N) div 1000, round(N) rem 1000]);
count(N) when N >= 1.0e6 -> text("~.2f million", [N / 1.0e6]);
count(N) -> text("~b", [round(N)]).

bytes(N) when N >= 10_000_000 -> text("~b MB", [round(N / 1.0e6)]);
bytes(N) when N >= 10_000 -> text("~b kB", [round(N / 1000)]);
bytes(N) -> text("~b bytes", [round(N)]).
