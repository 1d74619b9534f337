%% Long replies that go by plain distribution, from the server straight to the caller.
%%
%% A reply of an unchanged gen_server goes to a lane (trunkline_agent), which copies it. That costs
%% a long one up to half of OTP's rate. So if most replies of a server are long, its callers ask for
%% plain ones. If the agent can grant that, the server gets the caller's own alias:
%%
%%     caller                 agent                lane                 server
%%       | ══ request, plain ══> | watches the server |                    |
%%       |                       | -- request ---------------------------> |
%%       | <═══════════════════════════ reply ═══════ | <--------- reply - |
%%       |                       | <-------- answered |                    |
%%       |                       | -- has all arrived that it has sent? -> |
%%       |                       | <------------- yes |                    |
%%       | ══ request, plain ══> |                    |                    |
%%       |                       | has it sent more?  |                    |
%%       |                       | -- request ---------------------------> |
%%       | <─────────────────────────────────────────── the reply, by `!'  |
%%       | ══ cancel ══════════> |                    |                    |
%%
%% The reply must not overtake what the server has sent to the caller before by lane. So it gets the
%% alias only while all has arrived that it has ever sent to that node, but for replies to calls,
%% which their callers have by now. When a server that is watched sends something it says so, by a
%% shared word, and the agent has to ask again. (Before it sends, it looks whether it is watched. So
%% it may have looked too early, and send unseen, until it gets a request that has come later. By
%% the time of the reply to that all is in its lane.) To find that out takes two replies, so a
%% server stays watched for a while after the last such request. What the server sends while it owes
%% a plain reply keeps the order, too (trunkline_owed). If the server had to wait for that it gives
%% no plain replies for a while. Nor does a server that takes long to reply.
%%
%% Nor may anything overtake the reply. Until the caller has it, all batches of the server's lane go
%% by the distribution (trunkline_batches).
%%
%% Only a process that waits in a call asks for a plain reply (trunkline_long_reply). That it has
%% the reply it tells when it next uses a lane, or the agent asks (trunkline_waiting).
%%
%% This module decides whether the next reply of a server may be a plain one. It has the state of
%% one server, and the agent calls it.
-module(trunkline_plain_reply).
-moduledoc false.

-include("../gate/trunkline_route.hrl").

-export([new/0, request/4, other_request/3, replied/4, arrived/4, settle/5, is_slow/3, tick/3,
         ended/3, is_watched/1]).

-export_type([server/0, question/0, watch/0]).

%% Plain replies that a server may owe to the callers of one inlet. Replies of 32 kB do not suspend
%% the server then, even if the peer has stopped: the distribution takes 1 MB before it does.
-define(MOST, 32).
%% ms without plain replies after a server has waited.
-define(SILENCE, 10_000).
%% ms without a question to the lane after the server has sent something else.
-define(PAUSE, 1000).
%% ms without plain replies after one has taken long: as long as it is owed, messages to names wait.
-define(SLOW, 60_000).
%% Ticks for which a server stays watched that has had no such request.
-define(UNUSED, 5).

%% What an agent knows of a server.
-record(server,
        {%% Whether all has arrived that the server has sent. `watching': it is watched, but has
         %% not replied to a request that has come since. `has_said': it has sent something since,
         %% and the lane is not asked before that time. `not_before': there are no plain replies
         %% until then.
         clean = no :: no | {watching, watch()} | {asked, question()} | yes
                     | {has_said | not_before, trunkline_deadline:deadline()},
         %% What the shared word was at that time.
         said = 0 :: integer(),
         owed = 0 :: non_neg_integer(),         % plain replies
         has_looked = false :: boolean(),       % since it has last heard of one
         unused = 0 :: non_neg_integer()}).     % ticks since the last such request
-opaque server() :: #server{}.
%% An alias of the agent, for one answer of the lane.
-type question() :: reference().
%% From now on the server is watched.
-type watch() :: reference().

-spec new() -> server().
new() -> #server{}.

%% A caller asks for a plain reply. `plain': the server may send one, and settle/5 must follow.
%% `watching': so must replied/4, if the server replies. `asked': arrived/4 will follow. `look':
%% many callers may have theirs already, and not have told.
-spec request(Server :: pid(), trunkline_owed:caller(), trunkline_route:route(), server()) ->
          {plain | by_lane | look | {watching, watch()} | {asked, question()}, server()}.
request(Server, Caller, Route, S) ->
    case trunkline_in_turn:is_near(Route#route.stats)
        andalso not trunkline_bounded:may_be(Server) of
        true -> ask(Server, Caller, Route, S#server{unused = 0});
        false -> {by_lane, other_request(Server, Route, S)}
    end.

ask(_, _, _, #server{owed = Owed, has_looked = HasLooked} = S) when Owed >= ?MOST ->
    {if HasLooked -> by_lane;
        true -> look
     end, S#server{has_looked = true}};
ask(Server, Caller, Route, #server{clean = yes, said = Said, owed = Owed} = S) ->
    #route{lanes = Lanes, bypass = Bypass} = Route,
    Ix = ?LANE_OF(Server, Lanes),
    case trunkline_owed:owe(Server, Caller, Ix, Bypass)
        andalso trunkline_bypass:said(Server, Bypass) of
        false ->
            {by_lane, other_request(Server, Route, S)};
        Said ->
            ok = trunkline_owed:grant(Server, Caller),
            {plain, S#server{owed = Owed + 1}};
        _ ->
            ok = trunkline_owed:paid(Server, Caller, Ix, Bypass),
            ask(Server, Caller, Route, S#server{clean = {has_said, trunkline_deadline:in(?PAUSE)}})
    end;
ask(Server, Caller, Route, #server{clean = {has_said, From}, said = Before} = S) ->
    case trunkline_bypass:has_waited(Before, trunkline_bypass:said(Server, Route#route.bypass)) of
        true -> {by_lane, silence(Server, Route, S)};
        false -> look(Server, Caller, Route, From, S)
    end;
ask(Server, _, Route, #server{clean = no} = S) ->
    _ = needs_watching(S) orelse watch(1, Server, Route),
    Watching = {watching, make_ref()},
    {Watching, S#server{clean = Watching}};
ask(_, _, _, #server{clean = {watching, _} = Watching} = S) ->
    {Watching, S};
ask(Server, Caller, Route, #server{clean = {not_before, From}} = S) ->
    case trunkline_deadline:has_passed(From) of
        true -> ask(Server, Caller, Route, S#server{clean = no});
        false -> {by_lane, S}
    end;
ask(_, _, _, #server{clean = {asked, _}} = S) ->
    {by_lane, S}.

%% If the lane is idle, all has arrived. If not, it is not asked before that time.
look(Server, Caller, Route, From, S) ->
    #route{lanes = Lanes, gate = Gate, bypass = Bypass} = Route,
    Heard = heard(Server, Route, S),
    case trunkline_bypass:is_idle(Gate, ?LANE_OF(Server, Lanes), Bypass) of
        true ->
            ask(Server, Caller, Route, Heard#server{clean = yes});
        false ->
            case trunkline_deadline:has_passed(From) of
                false -> {by_lane, Heard#server{clean = {has_said, From}}};
                true -> ask_lane(Server, Route, Heard)
            end
    end.

ask_lane(Server, #route{lanes = Lanes}, Heard) ->
    Lane = element(?LANE_OF(Server, Lanes), Lanes),
    Asked = {asked, trunkline_in_turn:ask_whether_arrived(Lane, Server)},
    {Asked, Heard#server{clean = Asked}}.

%% To be called before the agent looks whether all has arrived. What the server says later has not.
heard(Server, #route{bypass = Bypass}, S) ->
    S#server{said = trunkline_bypass:said(Server, Bypass), unused = 0}.

%% The reply to a request that came after that watch began has left the lane. `asked': arrived/4
%% will follow.
-spec replied(Server :: pid(), watch(), trunkline_route:route(), server()) ->
          {{asked, question()} | none, server()}.
replied(Server, Watch, Route, #server{clean = {watching, Watch}} = S) ->
    ask_lane(Server, Route, heard(Server, Route, S));
replied(_, _, _, S) ->
    {none, S}.

%% The lane has answered. From here on the server's messages to that node have arrived, unless it
%% has said something since.
-spec arrived(question(), boolean(), {Server :: pid(), trunkline_route:route()}, server()) ->
          server().
arrived(Question, HaveArrived, {Server, Route}, #server{clean = {asked, Question}} = S) ->
    case HaveArrived of
        true -> S#server{clean = yes};
        false -> silence(Server, Route, S)
    end;
arrived(_, _, _, S) ->
    S.

silence(Server, Route, S) -> silence(?SILENCE, Server, Route, S).

silence(Time, Server, Route, S) ->
    unwatched(Server, Route, S, S#server{clean = {not_before, trunkline_deadline:in(Time)}}).

%% A caller has waited for long.
-spec is_slow(Server :: pid(), trunkline_route:route(), server()) -> server().
is_slow(Server, Route, S) -> silence(?SLOW, Server, Route, S).

%% A request has come whose caller may not wait for the reply, or that reply has left the lane. A
%% plain one could overtake it.
-spec other_request(Server :: pid(), trunkline_route:route(), server()) -> server().
other_request(Server, Route, S) ->
    case is_watched(S) of
        true -> unwatched(Server, Route, S, S#server{clean = no});
        false -> S
    end.

%% The caller has a plain reply, or does not wait for it any more; or the session is `over'. Or the
%% server has `ended': its last message may be the reply, and news of the end must not overtake
%% that.
-spec settle(answered | cancelled | ended | over, Server :: pid(), trunkline_owed:caller(),
             trunkline_route:route(), server()) -> server().
settle(How, Server, {Pid, _} = Caller, Route, #server{owed = Owed} = S) ->
    #route{lanes = Lanes, bypass = Bypass, stats = Stats} = Route,
    Ix = ?LANE_OF(Server, Lanes),
    ok = case How of
             over -> ok;
             ended -> trunkline_in_turn:sent_for(Server, node(Pid), Route);
             _ -> trunkline_stats:add(Stats, {lane, Ix}, messages, 1)
         end,
    ok = trunkline_owed:paid(Server, Caller, Ix, Bypass),
    unwatched(Server, Route, S, S#server{owed = Owed - 1, has_looked = false}).

%% To be called once a second, as long as it is_watched/1. A server that owes nothing, and has had
%% no such request for a while, is not watched any more.
-spec tick(Server :: pid(), trunkline_route:route(), server()) -> server().
tick(Server, Route, #server{unused = ?UNUSED} = S) -> other_request(Server, Route, S);
tick(_, _, #server{unused = Unused} = S) -> S#server{unused = Unused + 1}.

-spec is_watched(server()) -> boolean().
is_watched(#server{clean = no}) -> false;
is_watched(#server{clean = {not_before, _}}) -> false;
is_watched(_) -> true.

%% The agent forgets the server, which owes nothing. Returns the question that is open.
-spec ended(Server :: pid(), trunkline_route:route(), server()) -> question() | none.
ended(Server, Route, #server{clean = Clean} = S) ->
    _ = other_request(Server, Route, S),
    case Clean of
        {asked, Question} -> Question;
        _ -> none
    end.

unwatched(Server, Route, Before, S) ->
    case {needs_watching(Before), needs_watching(S)} of
        {true, false} -> watch(-1, Server, Route), S;
        _ -> S
    end.

watch(N, Server, #route{lanes = Lanes, bypass = Bypass}) ->
    trunkline_owed:watch(N, ?LANE_OF(Server, Lanes), Bypass).

needs_watching(#server{owed = Owed} = S) -> Owed > 0 orelse is_watched(S).
