%% The replies of servers here to callers at the other node: the part of a lane that knows how each
%% one should go, and how many it has taken.
%%
%% A server replies to the lane's alias (see trunkline_agent). Such a reply has passed no gate: it
%% is counted when the lane takes it, and beyond the bound its server is suspended until there is
%% room (trunkline_throttle). When it has left, the server's agent hears of it:
%%
%%     server                     lane                     inlet             caller
%%       | -- reply ------------> | counts it               |                  |
%%       |                        | ══ a batch ═══════════> | -- reply ------> |
%%       |                        | -- answered --> the agent, an inlet here   |
%%
%% A long reply should go by plain distribution, as trunkline_in_turn sends a message: when
%% everything has been delivered that its server has sent before, to a caller whose mailbox is known
%% to be on the heap. So should a heavy one, but it is not worth a wait. How a reply goes depends on
%% both (way/3):
%%
%%     what came before     the mailbox is on the heap   not known
%%     has arrived          now, by `!'                  long: term: an opener looks, and fetches it
%%                                                       heavy: ask
%%     is in flight         long: fence (below)          ask: it goes by lane, and the lane asks
%%                          heavy: next: it goes by lane, and the inlet acknowledges it at once,
%%                          so that the next one may go by `!'
%%     is still in the lane                  by_lane
%%
%% A short one of few callers (trunkline_few_callers) needs no such mailbox. It goes as a heavy one
%% does.
%%
%% The fence is an empty batch, which the inlet acknowledges at once:
%%
%%     server                     lane                     inlet             caller
%%       | -- reply ------------> | ══ fence ═════════════> |                  |
%%                                |  what comes now waits   |                  |
%%                                | <------------------ ack |                  |
%%                                | ─────────────── the reply, by `!' ───────> |
%%
%% This module is a part of the lane, which carries out what is decided here.
-module(trunkline_replies).
-moduledoc false.

-export([new/1, event/2]).
-export([request/1, weight/4, way/3, send/5, first/3]).
-export([enter/6, enter_term/5, left/1]).

-export_type([replies/0, request/0, before/0, way/0, event/0]).

-dialyzer({no_improper_lists, [enter/6, large/6]}).

%% As much of it as its reply needs, from the tag that the agent has made (trunkline_agent).
-type request() :: {trunkline_command:caller(), {Caller :: pid(), Server :: pid()},
                    Agent :: pid()}.
%% The same in a tag. `past': see trunkline_few_callers.
-type tag() :: request() | {trunkline_command:caller(), {Caller :: pid(), Server :: pid(), past},
                            Agent :: pid()}.
%% Words. A lane is better for a reply that takes less memory. (No term takes so much if it has less
%% than HEAVY_FROM bytes as a message.)
-define(HEAVY_WORDS, 4000).
-define(HEAVY_FROM, 2000).

%% What has become of all that the server may have sent before: it is still in the lane (or on its
%% way beside it), a fence has been sent behind it, it is in flight, or it has been delivered.
-type before() :: queued | fenced | in_flight | arrived.
-type way() :: now | fence | term | ask | next | by_lane.
%% `past': it is short, the distribution sends it whole, and few callers call.
-type weight() :: short | past | heavy | long.
%% What servers and waiters tell the lane: see trunkline_throttle.
-type event() :: {{stopped, reference()}, term()}
               | {looked_through, pos_integer()}
               | {'DOWN', reference(), process, pid(), term()}.
%% An entry of the lane, what it is charged there, and what the lane knows when it is in.
-type entered() :: {trunkline_gate:charge(), trunkline_lane:entry(), trunkline_notices:notices(),
                    replies()}.

-record(replies,
        {ix :: pos_integer(),                   % of the lane
         bulk_ix :: pos_integer(),              % the level of large messages
         large :: trunkline_gate:charge(),      % from which on a message is large
         node :: node(),
         gate :: trunkline_gate:gate(),
         stats :: trunkline_stats:stats(),
         throttle :: trunkline_throttle:throttle(),
         %% These are still in the lane.
         answered = #{} :: #{Agent :: pid() => [{trunkline_command:caller(), Server :: pid()}]}}).
-opaque replies() :: #replies{}.

%% Of a lane, with the limit of its queue, and the limit of all large messages.
-spec new(#{node := node(), gate := trunkline_gate:gate(), stats := trunkline_stats:stats(),
            lane := {Ix :: pos_integer(), QueueBytes :: pos_integer()},
            bulk := {Ix :: pos_integer(), Large :: trunkline_gate:charge(),
                     Limit :: trunkline_gate:charge()}}) -> replies().
new(#{node := Node, gate := Gate, stats := Stats, lane := {Ix, QueueBytes},
      bulk := {BulkIx, Large, Limit}}) ->
    #replies{ix = Ix, bulk_ix = BulkIx, large = Large, node = Node, gate = Gate, stats = Stats,
             %% Senders cannot fill the lane to twice its limit: beyond that it is full of replies.
             throttle = trunkline_throttle:new(
                          #{node => Node, gate => Gate, stats => Stats,
                            small => {Ix, trunkline_gate:limit(2 * QueueBytes)},
                            large => {BulkIx, Limit}})}.

%% `unknown': it is about something else.
-spec event(event(), replies()) -> replies() | unknown.
event({{stopped, Ref}, News}, #replies{throttle = Throttle} = R) ->
    R#replies{throttle = trunkline_throttle:stopped(Ref, News, Throttle)};
event({looked_through, N}, #replies{throttle = Throttle} = R) ->
    R#replies{throttle = trunkline_throttle:looked_through(N, Throttle)};
event({'DOWN', Ref, process, _, _}, #replies{throttle = Throttle} = R) ->
    case trunkline_throttle:ended(Ref, Throttle) of
        unknown -> unknown;
        Throttle1 -> R#replies{throttle = Throttle1}
    end.

%% --- by plain distribution --------------------------------------------------------

-spec request(tag()) -> request().
request({Caller, {Pid, Server, past}, Agent}) -> {Caller, {Pid, Server}, Agent};
request(Request) -> Request.

%% What a reply of that size is. A short one is as fast by lane, if many callers call.
-spec weight(trunkline_shape:size(), tag(), Reply :: term(), replies()) -> weight().
weight(Size, {_, Between, _}, Reply, #replies{large = Large}) ->
    Charge = trunkline_shape:charge(Size),
    case weight_of(Charge, Size, Reply) of
        short when tuple_size(Between) =:= 3 ->
            case trunkline_in_turn:is_whole(Charge, Large) of
                true -> past;
                false -> short
            end;
        Weight ->
            Weight
    end.

weight_of(Charge, Size, Reply) ->
    case trunkline_in_turn:is_long_reply(Charge) of
        true ->
            case trunkline_shape:kind(Size, Reply) of
                terms -> long;
                binaries -> short
            end;
        false ->
            case trunkline_gate:bytes(Charge) >= ?HEAVY_FROM
                andalso trunkline_shape:takes(?HEAVY_WORDS, Reply) of
                true -> heavy;
                false -> short
            end
    end.

%% How a reply that is not short should go: `now', or when the fence has arrived; or by lane, as a
%% term that an opener can fetch, or packed. Then the lane may have to `ask' about the caller's
%% mailbox, or for an acknowledgement, because of the `next' reply.
-spec way(past | heavy | long, before(), trunkline_mailboxes:known()) -> way().
way(_, queued, _) -> by_lane;
way(_, _, no) -> by_lane;
way(_, arrived, go) -> now;
way(long, arrived, look) -> term;
way(_, _, look) -> ask;
way(long, _, go) -> fence;
way(_, in_flight, go) -> next;
way(_, fenced, go) -> by_lane.

%% Sends a reply now. The server of a long one is suspended if that may suspend the lane, or if the
%% lane's mailbox is not empty. A heavy one is not sent while the connection is `busy': the lane has
%% room for it.
-spec send(past | heavy | long, trunkline_gate:charge(), request(), Reply :: term(), replies()) ->
          replies() | busy.
send(past, Charge, {Caller, {_, Server}, Agent}, Reply,
     #replies{throttle = Throttle, stats = Stats, ix = Ix} = R) ->
    case trunkline_in_turn:send_short_reply(Caller, Reply) of
        nosuspend ->
            busy;
        _ ->
            trunkline_stats:add(Stats, {lane, Ix}, bytes, trunkline_gate:bytes(Charge)),
            R#replies{throttle = trunkline_throttle:came(Server, Throttle),
                      answered = answered(Agent, Caller, Server, R)}
    end;
send(Weight, Charge, {Caller, {_, Server}, Agent}, Reply,
     #replies{throttle = Throttle, stats = Stats} = R) ->
    Send = fun(Options) ->
                   trunkline_in_turn:send_for_lane(Caller, {reply, Caller}, Reply,
                                                   trunkline_gate:bytes(Charge), Options, Stats)
           end,
    case sent(Weight, Charge, Server, Send, Throttle) of
        busy -> busy;
        Throttle1 -> R#replies{throttle = Throttle1, answered = answered(Agent, Caller, Server, R)}
    end.

sent(heavy, _, Server, Send, Throttle) ->
    case Send([nosuspend]) of
        ok -> trunkline_throttle:came(Server, Throttle);
        nosuspend -> busy
    end;
sent(long, Charge, Server, Send, Throttle) ->
    IsNext = trunkline_in_turn:may_go_at_once(Charge)
        andalso process_info(self(), message_queue_len) =:= {message_queue_len, 0},
    case IsNext andalso Send([nosuspend]) of
        ok ->
            trunkline_throttle:came(Server, Throttle);
        _ ->
            Suspended = trunkline_throttle:suspend(Server, Throttle),
            ok = Send([]),
            trunkline_throttle:long_term(Suspended, Charge, Throttle)
    end.

%% The replies at the beginning that may be sent now, since a fence has arrived, and the other
%% entries. (The others go as large messages do: so many would hold up what comes behind them. So do
%% those to a caller whose mailbox is not known.)
-spec first([trunkline_lane:entry()], trunkline_notices:notices(),
            trunkline_questions:questions()) ->
          {[trunkline_lane:entry()], [trunkline_lane:entry()]}.
first(Entries, Notices, Questions) ->
    first(Entries, trunkline_in_turn:most_at_once(), Notices, Questions).

first([[{parcel, _, _, Server, {reply, _, Pid}} | Parcel] = Entry | Entries] = All, Left, Notices,
      Questions) when Left > 0 ->
    case trunkline_parcel:is_term(Parcel)
        andalso not trunkline_notices:has_under_way(Server, Notices)
        andalso trunkline_questions:known(Pid, Questions) =:= go of
        true ->
            {Replies, Others} = first(Entries, Left - trunkline_parcel:bytes(Parcel), Notices,
                                      Questions),
            {[Entry | Replies], Others};
        false ->
            {[], All}
    end;
first(Entries, _, _, _) ->
    {[], Entries}.

%% --- by lane ----------------------------------------------------------------------

%% A server has replied, and the reply has to go by lane. It is more urgent than the news of it for
%% the agent, which comes when the reply has left. (A large reply is packed here: no other process
%% has it. If it is a term that an opener can fetch, it is not packed.) If the lane is closed (see
%% trunkline_lane), a large reply travels in it like a small one.
-spec enter(trunkline_shape:size(), tag(), Reply :: term(), IsClosed :: boolean(),
            trunkline_notices:notices(), replies()) -> entered().
enter(Size, Tag, Reply, IsClosed, Notices, #replies{large = Large, throttle = Throttle} = R) ->
    {Caller, {Pid, Server}, Agent} = Request = request(Tag),
    Charge = trunkline_shape:charge(Size, Reply, Large),
    case Charge < Large orelse IsClosed of
        true ->
            ok = trunkline_gate:force(R#replies.gate, R#replies.ix, Charge),
            Entry = case trunkline_notices:is_marked(Server, Notices) of
                        true -> [{behind, Charge, Server, {reply, Caller, Pid}} | Reply];
                        false -> [{reply, Caller} | Reply]
                    end,
            Throttle1 = trunkline_throttle:small(Server, Charge, Throttle),
            {Charge, Entry, Notices,
             R#replies{throttle = Throttle1, answered = answered(Agent, Caller, Server, R)}};
        false ->
            Suspended = trunkline_throttle:suspend(Server, Throttle),
            Parcel = trunkline_sender:as_parcel(R#replies.node, Reply, Charge, Large,
                                                R#replies.stats),
            large(Parcel, Suspended, Request, Reply, Notices, R)
    end.

%% The same for a long reply that stays a term.
-spec enter_term(trunkline_gate:charge(), request(), Reply :: term(), trunkline_notices:notices(),
                 replies()) -> entered().
enter_term(Charge, {_, {_, Server}, _} = Request, Reply, Notices, R) ->
    Suspended = trunkline_throttle:suspend(Server, R#replies.throttle),
    large(trunkline_sender:as_term(Reply, Charge), Suspended, Request, Reply, Notices, R).

large({Parcel, Charged}, Suspended, {Caller, {Pid, Server}, Agent}, Reply, Notices,
      #replies{gate = Gate, throttle = Throttle} = R) ->
    Place = trunkline_gate:charge(trunkline_parcel:sizes(Parcel)),
    ok = trunkline_gate:force(Gate, R#replies.bulk_ix, Charged),
    ok = trunkline_gate:force(Gate, R#replies.ix, Place),
    {Entry, Notices1} = trunkline_notices:mark(
                          Place, Server, [{parcel, Charged, {reply, Caller, Pid}} | Parcel],
                          Notices),
    Term = case trunkline_parcel:is_term(Parcel) of
               true -> Charged;
               false -> trunkline_gate:term(Reply)
           end,
    Throttle1 = case Term >= Charged of
                    true -> trunkline_throttle:long_term(Suspended, Term, Throttle);
                    false -> trunkline_throttle:packed(Suspended, Charged, Throttle)
                end,
    {Place, Entry, Notices1,
     R#replies{throttle = Throttle1, answered = answered(Agent, Caller, Server, R)}}.

answered(Agent, Caller, Server, #replies{answered = Answered}) ->
    Answered#{Agent => [{Caller, Server} | maps:get(Agent, Answered, [])]}.

%% What was in the lane has left it: tells the agents. `none': no reply did.
-spec left(replies()) -> replies() | none.
left(#replies{answered = Answered}) when map_size(Answered) =:= 0 ->
    none;
left(#replies{answered = Answered} = R) ->
    maps:foreach(fun trunkline_inlet:answered/2, Answered),
    R#replies{answered = #{}}.
