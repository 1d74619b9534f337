%% The plain replies that servers of this node owe (trunkline_plain_reply), and how what they send
%% keeps its place beside them.
%%
%% Nothing may overtake a plain reply, and it may overtake nothing. So what a process sends while it
%% owes one goes like this:
%%
%%     to                                    by
%%     a caller that it owes a reply         plain distribution, behind what it has sent before
%%     a name, an alias, or several          its lane; then it waits until that has arrived,
%%     addressees, any of them that caller   because it cannot tell whether the caller gets it
%%     another process                       its lane
%%
%% (Exit signals and requests to that caller go as names do.) It waits 5 s at most, and not again
%% for a minute if that was in vain.
%%
%% A session may end in good order while a server owes a reply, and another begin, with other lanes.
%% What the server owes concerns these, too (concerns/2).
%%
%% A process reads before each message whether a server of its lane is watched. That is a persistent
%% term, until the first server of this node is, and from then on also a shared word.
-module(trunkline_owed).
-moduledoc false.

-include("../gate/trunkline_route.hrl").

-export([create/0, is_any_owed/0]).
-export([clean_up/0, concerns/2, watch/3, owe/4, grant/2, paid/4]).
-export([is_watched/2, send/5, sent/5]).

-export_type([caller/0]).

-type caller() :: {pid(), Request :: trunkline_command:caller()}.

%% Rows: {{Server, Caller, Request}, IsGranted, Agent, Lane, LaterLane}. Lane is {Ix, Bypass} of the
%% server's lane in the agent's session, LaterLane of the one in a later session, or `none'.
-define(OWED, ?MODULE).
-define(IS_GRANTED, 2).
-define(LATER, 5).
%% The persistent term: whether a server of this node has ever been watched.
-define(WATCHED, trunkline_owed_watched).
%% ms that a server waits at most, if the peer has stopped, say; and if it must not be suspended.
-define(WAIT, 5000).
-define(SHORT_WAIT, 100).
%% ms for which a server does not wait again if it has waited in vain. In the process dictionary:
%% until when.
-define(NO_WAIT, 60_000).
-define(IN_VAIN, {?MODULE, in_vain}).

%% A server may still owe a plain reply when the application has stopped, and when it is started
%% again. So the table may outlive the application: trunkline_monitors sees to that.
-spec create() -> ?OWED.
create() ->
    persistent_term:put(?WATCHED, false),
    ets:new(?OWED, [ordered_set, named_table, public, {read_concurrency, true}]).

%% Whether the table is still needed.
-spec is_any_owed() -> boolean().
is_any_owed() ->
    ok = clean_up(),
    rows() =/= [].

rows() -> in_table(fun() -> ets:tab2list(?OWED) end, []).

%% Otherwise: there is no table, or no such element.
in_table(Operation, Otherwise) ->
    try Operation()
    catch error:badarg -> Otherwise
    end.

%% Another session with that node begins, with these lanes, by which no process sends yet.
-spec concerns(node(), trunkline_route:route()) -> ok.
concerns(Node, #route{lanes = Lanes, bypass = Bypass}) ->
    ok = clean_up(),
    lists:foreach(fun({{Server, Pid, _} = Key, _, _, _, _}) when node(Pid) =:= Node ->
                          Later = {?LANE_OF(Server, Lanes), Bypass},
                          ok = concerns_lane(1, Later),
                          update(Key, {?LATER, Later}) orelse concerns_lane(-1, Later);
                     (_) ->
                          ok
                  end, rows()).

concerns_lane(_, none) ->
    ok;
concerns_lane(N, {Ix, Bypass}) ->
    ok = watch(N, Ix, Bypass),
    trunkline_bypass:owe(N, Ix, Bypass).

%% --- for agents -------------------------------------------------------------------

%% One more server of that lane is watched (1), or one less (-1). A request that is sent to the
%% server after that makes it see it.
-spec watch(1 | -1, Ix :: pos_integer(), trunkline_bypass:bypass()) -> ok.
watch(N, Ix, Bypass) ->
    persistent_term:get(?WATCHED, false) orelse persistent_term:put(?WATCHED, true),
    trunkline_bypass:watch(N, Ix, Bypass).

%% The agent is about to grant it. It may still take that back. `false': it must not be granted,
%% because there is no table.
-spec owe(Server :: pid(), caller(), Ix :: pos_integer(), trunkline_bypass:bypass()) -> boolean().
owe(Server, {Pid, Request}, Ix, Bypass) ->
    Row = {{Server, Pid, Request}, false, self(), {Ix, Bypass}, none},
    in_table(fun() -> ets:insert(?OWED, Row) end, false)
        andalso begin ok = trunkline_bypass:owe(1, Ix, Bypass), true end.

%% The server may send it.
-spec grant(Server :: pid(), caller()) -> ok.
grant(Server, {Pid, Request}) ->
    _ = update({Server, Pid, Request}, {?IS_GRANTED, true}),
    ok.

update(Key, Change) -> in_table(fun() -> ets:update_element(?OWED, Key, Change) end, false).

%% The caller has the reply, or none comes.
-spec paid(Server :: pid(), caller(), Ix :: pos_integer(), trunkline_bypass:bypass()) -> ok.
paid(Server, {Pid, Request}, Ix, Bypass) ->
    case in_table(fun() -> ets:take(?OWED, {Server, Pid, Request}) end, no_table) of
        [{_, _, _, _, Later}] ->
            ok = concerns_lane(-1, Later),
            trunkline_bypass:owe(-1, Ix, Bypass);
        [] ->
            ok;                              % another process has cleaned up
        no_table ->
            trunkline_bypass:owe(-1, Ix, Bypass)
    end.

%% Agents that have been killed have left something. Nothing of theirs is owed any more.
-spec clean_up() -> ok.
clean_up() ->
    lists:foreach(fun({{Server, Pid, Request}, _, Agent, {Ix, Bypass}, _}) ->
                          is_process_alive(Agent) orelse paid(Server, {Pid, Request}, Ix, Bypass)
                  end, rows()).

%% --- for servers ------------------------------------------------------------------

%% Whether a server of that lane is watched. If so, send/5 should be tried before the calling
%% process hands a message to the lane, and sent/5 be called after that.
-spec is_watched(Ix :: pos_integer(), trunkline_bypass:bypass()) -> boolean().
is_watched(Ix, Bypass) ->
    persistent_term:get(?WATCHED, false) andalso trunkline_bypass:is_watched(Ix, Bypass).

%% The calling process sends that by plain distribution, if it owes the receiver a plain reply.
%% `false': it does not.
-spec send(trunkline_route:route(), Ix :: pos_integer(), trunkline_lane:to(), Message :: term(),
           trunkline_refused:patience()) -> ok | nosuspend | false.
send(Route, Ix, To, Message, Patience) when is_pid(To) ->
    case is_granted(next({self(), To, 0}), To) of
        true -> trunkline_in_turn:send_past(Route, Ix, To, Message, Patience);
        false -> false
    end;
send(_, _, _, _, _) ->
    false.

%% (If it is not granted, something that was sent before may be in the lane.)
is_granted({Server, Pid, _} = Key, Pid) when Server =:= self() ->
    in_table(fun() -> ets:lookup_element(?OWED, Key, ?IS_GRANTED) end, false);
is_granted(_, _) ->
    false.

%% The calling process has handed a message for that node to its lane. If the process owes the
%% receiver a plain reply, it waits until the message has arrived.
-spec sent(trunkline_lane:to(), Ix :: pos_integer(), node(), trunkline_refused:patience(),
           trunkline_bypass:bypass()) -> ok.
sent(To, Ix, Node, Patience, Bypass) ->
    case is_watched(Ix, Bypass) of
        false ->
            ok;
        true ->
            ok = trunkline_bypass:say(Bypass),
            case owes(To, Node) of
                true -> wait(Node, Patience, Bypass);
                false -> ok
            end
    end.

wait(Node, Patience, Bypass) ->
    ok = trunkline_bypass:wait(Bypass),
    Time = case Patience of
               nosuspend -> ?SHORT_WAIT;
               _ -> ?WAIT
           end,
    case may_wait() andalso trunkline_plain_call:await_delivery(Node, Time) of
        ok -> look(Node);
        timeout -> _ = put(?IN_VAIN, trunkline_deadline:in(?NO_WAIT)), ok;
        false -> ok
    end.

may_wait() ->
    case get(?IN_VAIN) of
        undefined -> true;
        Until -> trunkline_deadline:has_passed(Until)
    end.

%% Whether the calling process owes a plain reply to a process of that node that may get this. (Of a
%% name or an alias it is not known whose it is.)
owes(Pid, _) when is_pid(Pid) ->
    case next({self(), Pid, 0}) of
        {Server, Pid, _} when Server =:= self() -> true;
        _ -> false
    end;
owes({each, Addressees}, Node) ->
    lists:any(fun(To) -> owes(To, Node) end, Addressees);
owes(Command, Node) when is_tuple(Command) ->
    case trunkline_command:receiver(Command) of
        Pid when is_pid(Pid) -> owes(Pid, Node);
        {name, Name} -> owes(Name, Node);
        unknown -> false
    end;
owes(_, Node) ->
    owes_any(next({self(), 0, 0}), Node).

owes_any({Server, Pid, _}, Node) when Server =:= self(), node(Pid) =:= Node -> true;
owes_any({Server, _, _} = Key, Node) when Server =:= self() -> owes_any(next(Key), Node);
owes_any(_, _) -> false.

next(Key) -> in_table(fun() -> ets:next(?OWED, Key) end, none).

%% The caller may have the reply, though its agent does not know yet.
look(Node) ->
    Mine = [{{{self(), '$1', '_'}, '_', '$2', '_', '_'}, [], ['$$']}],
    Rows = in_table(fun() -> ets:select(?OWED, Mine) end, []),
    lists:foreach(fun(Agent) -> Agent ! look end,
                  lists:usort([Agent || [Pid, Agent] <- Rows, node(Pid) =:= Node])).
