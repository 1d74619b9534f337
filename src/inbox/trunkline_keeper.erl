%% The process of an inbox. It receives the messages for another process, the consumer, keeps
%% them in order and within bounds, and passes on a few at a time.
%%
%%     senders ──> keeper [ urgent │ normal ] ── at most `work' ──> consumer
%%                   │ ^                                                │
%%       credit <────┘ └───────── more: half of them are done ──────────┘
%%
%% (A process that has opened an inbox may take long for some of them. It asks for more as soon as
%% it is done with one.)
%%
%% The keeper's mailbox stays short because the keeper does nothing that takes time. The
%% consumer's stays short because the keeper limits what it passes on (trunkline_work).
%%
%% To all other processes the keeper is the server. It has the server's name, and it is the child
%% that the supervisor knows (trunkline_keeper_start). It forwards system messages and exit signals
%% at once, ahead of all queued messages. When the server ends, the keeper ends with the same
%% reason, and vice versa.
%%
%% Under load the keeper's own mailbox may become long all the same. Therefore the receive here is
%% not selective: it takes the first message.
-module(trunkline_keeper).
-moduledoc false.

-export([keep/4, end_with/1, done/2, info/1]).
-export([loop/1]).

-export_type([options/0]).

-dialyzer({no_improper_lists, [info/1, done/2]}).

-type options() :: #{policy := trunkline_mail:policy(),
                     bytes := pos_integer(), messages := pos_integer(),
                     work := trunkline_work:window(),
                     urgent := none | fun((term()) -> boolean()),
                     tell_dropped := boolean()}.

%% ms
-define(CREDIT, 20).                  % until a node is told what has left of its messages
-define(AGAIN, 10).                   % until it looks for trunkline_inboxes, and later
-define(SELDOM, 1000).
-define(QUIET, 1000).
-define(MEET_AGAIN, 1000).            % until a node is told again what this is
-define(CALLED_AGAIN, 11_000).        % the same, if it only calls
%% us until the keeper looks by itself for room
-define(LOOK_AGAIN, 50).
%% Messages that the keeper passes on at a time. Meanwhile it receives nothing.
-define(TOGETHER, 64).

-record(keeper,
        {parent :: pid(),
         registration :: trunkline_own_inboxes:registration(),
         name :: atom(),                                    % its registered name, or undefined
         is_named = true :: boolean(),                      % whether it still had it a second ago
         consumer :: pid(),
         kind :: server | process,
         work :: trunkline_work:work(),
         %% How much more the consumer may have, at least. `awaited': it will tell; and the keeper
         %% looks again when a message comes after that time (in us).
         room = 0 :: trunkline_work:cost() | {awaited, integer()},
         mail :: trunkline_mail:mail(),
         share :: trunkline_share:share(),
         options :: options(),
         given = 0 :: trunkline_work:cost(),                % what the consumer has had in all
         stats :: trunkline_inbox_stats:stats(),
         %% How many dropped messages events have reported; and since when the inbox is too full.
         told = 0 :: non_neg_integer(),
         overload = none :: none | integer(),
         inboxes :: reference(),                            % monitor
         full = 0 :: non_neg_integer(),                     % counts changes: odd while full
         credit_timer = false :: boolean(),
         overrun = trunkline_overrun:new() :: trunkline_overrun:overrun(),
         met = #{} :: #{node() => Milliseconds :: integer()},    % nodes that were told what this is
         %% What had been given when the timer of quiet/1 was started.
         quiet = off :: off | non_neg_integer()}).

%% The calling process is a keeper from now on. It monitors trunkline_inboxes by Inboxes: if that
%% ends, the keeper registers again.
-spec keep(Parent :: pid(), trunkline_own_inboxes:registration(),
           options(), Inboxes :: reference()) -> no_return().
keep(Parent, {{_, Name, Policy, Bound}, Work, Stats, Behind} = Registration, Options, Inboxes) ->
    {Kind, Consumer} = case Behind of
                           {server, _, Server} -> {server, Server};
                           {process, Process} -> {process, Process}
                       end,
    loop(#keeper{parent = Parent, registration = Registration, name = Name, consumer = Consumer,
                 kind = Kind, work = Work, stats = Stats, options = Options, inboxes = Inboxes,
                 mail = trunkline_mail:new(Bound, Policy),
                 share = trunkline_share:new(Bound, Policy,
                                             fun trunkline_peers:is_suspended/1)}).

%% Ends the calling process without a crash report: that of the server is enough. Nothing catches
%% the exit any more when the process wakes up, as it does at once. (An exit signal to itself might
%% hang the node: see docs/reference/otp-defects.md. For the same reason it goes on to trap exits.)
-spec end_with(term()) -> no_return().
end_with(Reason) ->
    self() ! '$inbox_end',
    erlang:hibernate(erlang, exit, [Reason]).

%% Its consumer is done with so many messages. This is for others than the consumer while the
%% counter cannot be looked up (trunkline_own_inboxes).
-spec done(pid(), pos_integer()) -> ok.
done(Keeper, N) ->
    Keeper ! ['$inbox_done' | N],
    ok.

-spec info(pid()) -> map().
info(Keeper) ->
    Ref = monitor(process, Keeper, [{alias, reply_demonitor}]),
    Keeper ! ['$inbox_info' | Ref],
    receive
        {Ref, Info} -> Info;
        {'DOWN', Ref, process, _, Reason} -> exit({Reason, {trunkline_inbox, info, [Keeper]}})
    end.

%% --- messages -------------------------------------------------------------------------

-spec loop(#keeper{}) -> no_return().
loop(#keeper{consumer = Consumer, parent = Parent} = S) ->
    receive
        ['$inbox', {Node, Epoch} = Source, Charge | Message]
          when is_atom(Node), is_integer(Epoch), is_integer(Charge), Charge > 0 ->
            loop(case trunkline_share:is_stranger(Source) of
                     false -> sent(Source, Charge, Message, S);
                     true -> strange(Source, Charge, Message, meet(Node, ?MEET_AGAIN, S))
                 end);
        ['$inbox_run', {Node, Epoch} = Source, Sum | [_ | _] = Run] = Message
          when is_atom(Node), is_integer(Epoch), is_integer(Sum) ->
            loop(case is_run(Run, Sum) andalso not trunkline_share:is_stranger(Source) of
                     true -> sent_in_a_row(Source, Sum, Run, S);
                     false -> uninvited(Message, S)
                 end);
        {'$gen_call', {Caller, _}, _} = Call when is_pid(Caller), node(Caller) =/= node() ->
            loop(plain(call, Call, called(node(Caller), S)));
        {'$gen_call', _, _} = Call ->
            loop(plain(call, Call, S));
        '$inbox_more' ->
            loop(pass(S#keeper{room = 0}, erlang:monotonic_time(microsecond)));
        '$inbox_idle' ->
            loop(pass(one_more(S), erlang:monotonic_time(microsecond)));
        {system, _, _} = System when S#keeper.kind =:= server ->
            Consumer ! System,
            loop(S);
        {system, _, _} = System ->
            loop(plain(call, System, S));        % never dropped
        {'EXIT', Consumer, Reason} ->
            end_with(Reason);
        {'DOWN', _, process, Consumer, Reason} ->
            end_with(Reason);
        {'EXIT', Parent, Reason} ->
            %% To the server, the keeper is its parent, whose end is its own.
            signal(Reason, {'EXIT', self(), Reason}, S),
            loop(S);
        {'EXIT', _, Reason} = Exit ->
            signal(Reason, Exit, S),
            loop(S);
        {timeout, _, '$inbox_credit'} ->
            loop(credit_timer(flush(S#keeper{credit_timer = false})));
        ['$inbox_audit', Pid, Source] when is_pid(Pid) ->
            Held = trunkline_share:held(Source, S#keeper.share),
            ok = trunkline_inboxes:held(Pid, Source, Held),
            loop(S);
        ['$inbox_done' | N] when is_integer(N), N > 0 ->
            _ = S#keeper.kind =:= process andalso trunkline_work:done(S#keeper.work, N),
            loop(S);
        ['$inbox_info' | Ref] when is_reference(Ref) ->
            %% Nodes that have sent nothing for a while are forgotten.
            S1 = credit_timer(flush(S)),
            Ref ! {Ref, show(S1)},
            loop(S1);
        {'DOWN', Ref, process, _, _} when Ref =:= S#keeper.inboxes ->
            loop(again(?AGAIN, S));
        {timeout, _, {'$inbox_again', After}} ->
            loop(again(min(?SELDOM, 2 * After), S));
        {timeout, _, '$inbox_quiet'} ->
            quiet(S);
        Message ->
            loop(uninvited(Message, S))
    end.

%% When nothing has come for QUIET ms the keeper hibernates, to release its memory. (With `after' in
%% the receive every wait would start a timer.)
quiet(#keeper{quiet = Since, given = Given, mail = Mail} = S0) ->
    S = named(tell(S0)),
    HasStopped = Since =:= Given,
    case trunkline_mail:level(Mail) of
        0 when HasStopped ->
            S1 = S#keeper{quiet = off, met = #{},
                          overrun = trunkline_overrun:calm(S#keeper.overrun)},
            proc_lib:hibernate(?MODULE, loop, [credit_timer(flush(S1))]);
        _ ->
            %% (It moves on to code that has been loaded meanwhile.)
            S1 = S#keeper{overrun = trunkline_overrun:look_again(S#keeper.overrun)},
            ?MODULE:loop(quiet_timer(unless_idle(HasStopped, S1)))
    end.

%% Its name may have been given to another process, or given back. Other nodes have to know, which
%% send to this process what is for the name.
named(#keeper{name = undefined} = S) ->
    S;
named(#keeper{name = Name, is_named = WasNamed, full = Full} = S) ->
    case whereis(Name) =:= self() of
        WasNamed -> S;
        IsNamed -> ok = trunkline_inboxes:changed(self(), Full), S#keeper{is_named = IsNamed}
    end.

%% A server has got nothing for a second. It may have nothing left, though it is not done with all:
%% it has taken messages by itself, just before the keeper said that it waits.
unless_idle(true, #keeper{room = {awaited, _}, kind = server, consumer = Consumer,
                          work = Work} = S) ->
    case trunkline_work:size(Work) > 1 andalso process_info(Consumer, message_queue_len) of
        {_, 0} -> pass(one_more(S), erlang:monotonic_time(microsecond));
        _ -> S
    end;
unless_idle(_, S) ->
    S.

quiet_timer(#keeper{given = Given} = S) ->
    _ = erlang:start_timer(?QUIET, self(), '$inbox_quiet'),
    S#keeper{quiet = Given}.

sent(Source, Charge, Message, S) -> sent_in_a_row(Source, Charge, [[Charge | Message]], S).

%% Whether these are messages with charges of that sum. (Anybody may send anything.)
is_run([[Charge | _] | Run], Sum) when is_integer(Charge), Charge > 0 -> is_run(Run, Sum - Charge);
is_run(Run, Sum) -> Run =:= [] andalso Sum =:= 0.

sent_in_a_row(Source, Sum, Run, S0) ->
    Now = erlang:monotonic_time(microsecond),
    {Credits, Share} = trunkline_share:arrived(Now div 1000, Source, Sum, S0#keeper.share),
    Kind = case S0#keeper.options of
               #{policy := reject} -> other;
               #{} -> granted
           end,
    lists:foldl(fun([Charge | Message], S) -> accept(Kind, Source, Charge, Now, Message, S) end,
                credit_timer(Credits, S0#keeper{share = Share}), Run).

%% A message from a node that does not know that this is an inbox, so that its sender did not wait.
%% (Later senders will.)
strange(Source, Charge, Message, S0) ->
    #keeper{share = Share, mail = Mail} = S = unbounded(S0),
    case trunkline_share:is_granted(Source, Share) of
        true -> sent(Source, Charge, Message, S);
        false -> look_again(S#keeper{mail = trunkline_mail:refused(Mail)})
    end.

%% The node is told what this is, and told again after a while if it still seems not to know.
meet(Node, After, #keeper{met = Met} = S) ->
    Now = erlang:monotonic_time(millisecond),
    case Met of
        #{Node := Before} when Now - Before < After ->
            S;
        #{} ->
            ok = trunkline_inboxes:met(self(), Node),
            Recent = maps:filter(fun(_, Before) -> Now - Before < ?CALLED_AGAIN end, Met),
            S#keeper{met = Recent#{Node => Now}}
    end.

%% If senders do not wait, callers should know the inbox, too: then they do not even call.
called(Node, #keeper{options = #{policy := reject}} = S) -> meet(Node, ?CALLED_AGAIN, S);
called(_, S) -> S.

%% A process that sends with `!' does not wait, and must not fill the keeper's own mailbox instead.
%% So dropping a message has to be as cheap as possible.
uninvited(Message, S0) ->
    #keeper{mail = Mail} = S = unbounded(S0),
    case trunkline_mail:is_refusing(Mail) of
        true -> look_again(S#keeper{mail = trunkline_mail:refused(Mail)});
        false -> fitting(Message, S)
    end.

%% What is behind the message may fill the inbox. (The keeper may have received much since it has
%% looked, so it looks again before it refuses a message for that.)
fitting(Message, S0) ->
    case will_be_full(S0) of
        true ->
            #keeper{mail = Mail, overrun = Overrun} = S0,
            S = S0#keeper{overrun = trunkline_overrun:look(Overrun)},
            case will_be_full(S) of
                true -> look_again(S#keeper{mail = trunkline_mail:refused(Mail)});
                false -> plain(other, Message, S)
            end;
        false ->
            plain(other, Message, S0)
    end.

%% No bound has held that message back.
unbounded(#keeper{overrun = Overrun} = S) ->
    S#keeper{overrun = trunkline_overrun:uninvited(Overrun)}.

will_be_full(#keeper{overrun = Overrun} = S) ->
    case trunkline_overrun:behind(Overrun) of
        0 -> false;
        Behind -> will_be_full(Behind, S)
    end.

%% (An urgent message takes the place of an older one that is not.)
will_be_full(_, #keeper{options = #{policy := drop_oldest, urgent := Urgent}})
  when Urgent =/= none ->
    false;
will_be_full(Behind, #keeper{mail = Mail}) ->
    trunkline_mail:will_be_full(Behind, Mail).

%% (The consumer's '$inbox_more' may be behind many messages in the mailbox.)
look_again(#keeper{room = {awaited, Until}, mail = Mail} = S) ->
    case trunkline_mail:dropped(Mail) band 31 =:= 0 andalso erlang:monotonic_time(microsecond) of
        Now when is_integer(Now), Now >= Until -> pass(S#keeper{room = 0}, Now);
        _ -> S
    end;
look_again(S) ->
    S.

%% No sender has asked for room.
plain(Kind, Message, S) ->
    Now = erlang:monotonic_time(microsecond),
    accept(Kind, none, trunkline_gate:charge(Message), Now, Message, S).

accept(Kind, Source, Charge, Now, Message, #keeper{quiet = off} = S) ->
    accept(Kind, Source, Charge, Now, Message, quiet_timer(S));
accept(Kind, Source, Charge, Now, Message, #keeper{room = {awaited, Until}} = S)
  when Now >= Until ->
    accept(Kind, Source, Charge, Now, Message, pass(S#keeper{room = 0}, Now));
accept(Kind, Source, Charge, Now, Message, #keeper{mail = Mail} = S0) ->
    case trunkline_mail:level(Mail) =:= 0 andalso look(S0, Now) of
        #keeper{room = Room} = S when is_integer(Room) ->
            ok = trunkline_inbox_stats:passed(S#keeper.stats, 0),
            left(Source, Charge, hand_on(Charge, Message, S));
        _ ->
            Item = {Charge, {Now, Source, Message}},
            {Dropped, Mail1} = trunkline_mail:in(class(Message, S0), Kind, Item, Mail),
            S1 = full(S0#keeper{mail = Mail1}),
            pass(lists:foldl(fun({C, {_, From, _}}, S) -> left(From, C, S) end, S1, Dropped), Now)
    end.

class(_, #keeper{options = #{urgent := none}}) -> normal;
class(Message, #keeper{options = #{urgent := IsUrgent}}) ->
    try IsUrgent(content(Message)) of
        true -> urgent;
        _ -> normal
    catch
        _:_ -> normal
    end.

content({'$gen_call', _, Request}) -> Request;
content({'$gen_cast', Request}) -> Request;
content(Message) -> Message.

%% Passes on as much as the consumer may have, but not too much at a time: a quick server takes
%% messages as fast as they are passed on.
pass(S, Now) -> pass(?TOGETHER, S, Now).

pass(_, #keeper{room = {awaited, _}} = S, _) ->
    S;
pass(0, S, Now) ->
    self() ! '$inbox_more',
    S#keeper{room = {awaited, Now + ?LOOK_AGAIN}};
pass(More, #keeper{mail = Mail, room = Room} = S, Now) ->
    case trunkline_mail:level(Mail) of
        0 ->
            S;
        _ when Room =:= 0 ->
            pass(More, look(S, Now), Now);
        _ ->
            case tell_dropped(S) of
                {told, S1} -> pass(More - 1, S1, Now);
                none -> pass(More - 1, out(S, Now), Now)
            end
    end.

out(#keeper{mail = Mail} = S, Now) ->
    {{Charge, {Came, Source, Message}}, Mail1} = trunkline_mail:out(Mail),
    ok = trunkline_inbox_stats:passed(S#keeper.stats, Now - Came),
    full(left(Source, Charge, hand_on(Charge, Message, S#keeper{mail = Mail1}))).

%% How much room there is. (To look for each message would take a tenth of the keeper's time.) If
%% there is none, the consumer will tell when it is done with enough. But its word may be behind
%% many messages in the keeper's mailbox. And a server may be done with less than half, and busy
%% with the rest for long.
one_more(#keeper{mail = Mail, work = Work} = S) ->
    S#keeper{room = trunkline_work:idle(trunkline_mail:level(Mail) > 0, Work)}.

look(#keeper{room = 0, mail = Mail, work = Work} = S, Now) ->
    case trunkline_work:room(trunkline_mail:level(Mail) > 0, Work) of
        Room when Room > 0 ->
            S#keeper{room = Room};
        _ ->
            case trunkline_work:wait(Work) of
                more -> look(S, Now);
                wait -> S#keeper{room = {awaited, Now + ?LOOK_AGAIN}}
            end
    end;
look(S, _) ->
    S.

hand_on(Charge, Message, #keeper{work = Work, room = Room, consumer = Consumer, kind = Kind,
                                 given = Given} = S) ->
    Cost = trunkline_work:add(Charge, Work),
    Consumer ! case Kind of
                   process -> Message;
                   server -> trunkline_inbox_server:mark(Given + Cost, Message)
               end,
    S#keeper{given = Given + Cost, room = trunkline_work:less(Cost, Room)}.

%% The notice is a message like any other, so the consumer must have room for it.
tell_dropped(#keeper{options = #{tell_dropped := true}, mail = Mail} = S) ->
    case trunkline_mail:take_dropped(Mail) of
        {0, _} -> none;
        {N, Mail1} ->
            Notice = {trunkline_inbox, self(), {dropped, N}},
            {told, hand_on(0, Notice, S#keeper{mail = Mail1})}
    end;
tell_dropped(_) ->
    none.

%% --- credit ---------------------------------------------------------------------------

left(none, _, S) ->
    S;
left(Source, Charge, #keeper{share = Share} = S) ->
    {Credits, Share1} = trunkline_share:left(Source, Charge, Share),
    credit_timer(pay(Credits, S#keeper{share = Share1})).

%% Other nodes may have a smaller window now.
credit_timer([], S) -> S;
credit_timer(Credits, S) -> credit_timer(pay(Credits, S)).

credit_timer(#keeper{credit_timer = false} = S) ->
    case trunkline_share:is_owing(S#keeper.share) of
        true ->
            _ = erlang:start_timer(?CREDIT, self(), '$inbox_credit'),
            S#keeper{credit_timer = true};
        false -> S
    end;
credit_timer(S) ->
    S.

flush(#keeper{share = Share} = S) ->
    {Credits, Share1} = trunkline_share:flush(erlang:monotonic_time(millisecond), Share),
    pay(Credits, S#keeper{share = Share1}).

%% A busy connection must not suspend the keeper: what cannot be sent now is sent later.
pay(Credits, S) -> lists:foldl(fun pay_one/2, S, Credits).

%% Strangers have no gate, so they get no credit.
pay_one({{Node, _} = Source, Left, Window} = Credit, #keeper{share = Share} = S) ->
    Paid = {credit, self(), Source, Left, Window},
    To = case Node of
             nonode@nohost -> node();        % this node had no name yet
             _ -> Node
         end,
    case trunkline_share:is_stranger(Source)
        orelse trunkline_sender:tell(To, trunkline_inboxes, Paid) of
        nosuspend -> S#keeper{share = trunkline_share:unpaid(Credit, Share)};
        _ -> S
    end.

%% If senders do not wait, calls should not even be sent once the inbox is full, and until it is
%% half empty. Each change has a number, which is odd if the inbox is full.
full(#keeper{options = #{policy := reject}, full = N, mail = Mail} = S) ->
    case N band 1 =:= 0 andalso trunkline_mail:is_full(Mail)
        orelse N band 1 =:= 1 andalso trunkline_mail:is_half_empty(Mail) of
        true -> ok = trunkline_inboxes:changed(self(), N + 1), S#keeper{full = N + 1};
        false -> S
    end;
full(S) ->
    S.

%% trunkline_inboxes was killed, or the application has stopped.
again(After, S) ->
    case whereis(trunkline_inboxes) of
        undefined ->
            _ = erlang:start_timer(After, self(), {'$inbox_again', After}),
            S;
        Pid ->
            ok = trunkline_inboxes:register_again(S#keeper.registration),
            ok = trunkline_inboxes:changed(self(), S#keeper.full),
            S#keeper{inboxes = monitor(process, Pid)}
    end.

%% --- events and counters ------------------------------------------------------------

%% Once a second: tells of events, and writes the counters. An inbox is too full when it is more
%% than half full.
tell(#keeper{mail = Mail, overload = Since, told = Told} = S0) ->
    Dropped = trunkline_mail:dropped(Mail),
    Dropped > Told
        andalso trunkline_events:tell([inbox, dropped], #{count => Dropped - Told}, who(S0)),
    S = S0#keeper{told = Dropped},
    Level = trunkline_mail:level(Mail),
    ok = trunkline_inbox_stats:show(S#keeper.stats, Level, Dropped),
    Queued = #{queued_messages => trunkline_gate:messages(Level),
               queued_bytes => trunkline_gate:bytes(Level)},
    case trunkline_mail:is_half_empty(Mail) of
        false when Since =:= none ->
            ok = trunkline_events:tell([inbox, overload, start], Queued, who(S)),
            S#keeper{overload = erlang:monotonic_time()};
        true when is_integer(Since) ->
            Time = erlang:monotonic_time() - Since,
            ok = trunkline_events:tell([inbox, overload, stop], Queued#{duration => Time}, who(S)),
            S#keeper{overload = none};
        _ ->
            S
    end.

who(#keeper{name = Name, options = #{policy := Policy}}) ->
    #{inbox => self(), name => Name, policy => Policy}.

%% --- signals --------------------------------------------------------------------------

%% Passes an exit signal on. It has the effect that it would have if the sender were linked to the
%% server itself.
signal(Reason, Exit, #keeper{kind = server, consumer = Consumer}) ->
    case process_info(Consumer, trap_exit) of
        {trap_exit, true} -> _ = Consumer ! Exit, ok;
        _ when Reason =:= normal -> ok;
        _ -> _ = exit(Consumer, Reason), ok
    end;
signal(normal, _, _) ->
    ok;
signal(Reason, _, #keeper{kind = process}) ->
    end_with(Reason).

%% --- info -------------------------------------------------------------------------------

show(#keeper{mail = Mail, share = Share, work = Work, stats = Stats} = S) ->
    Level = trunkline_mail:level(Mail),
    Times = trunkline_inbox_stats:times(Stats),
    #{queued_messages => trunkline_gate:messages(Level),
      queued_bytes => trunkline_gate:bytes(Level),
      in_work => trunkline_work:size(Work),
      passed => lists:sum([N || {_, N} <- Times]), dropped => trunkline_mail:dropped(Mail),
      consumer => S#keeper.consumer,
      nodes => maps:map(fun(_, #{window := Window, held := Held}) ->
                                #{window => Window,
                                  queued_messages => trunkline_gate:messages(Held)}
                        end, trunkline_share:nodes(Share)),
      time_in_queue => Times}.
