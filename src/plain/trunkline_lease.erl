%% A caller's permission to send a server long requests without asking for each.
%%
%% A long request goes to its server by plain distribution (trunkline_in_turn). The caller asks
%% first, and the agent at the peer answers in which form the server gets the request. For a while
%% the caller may send that server further ones at once, as long as nothing is ahead of them
%% (trunkline_bypass):
%%
%%     caller                  the server's lane        agent           server
%%       | ── relay ──────────────> | ── called ────────> |               |
%%       | ─────────────────────── the request, by `!' ─────────────────> |
%%       |                          | <────────────────────────── reply ── |
%%       |  <═══════════════ reply  | ── answered ──────> |               |
%%
%% The agent hears of each request, because it has to tell the caller if the server ends. It hears
%% of it from the lane to which the server replies, and so before it hears of the reply. Later news
%% of the request takes the same way: that the caller has given up, or that the server has ended.
%% (The agent's mailbox keeps the order of each sender only.) If the caller is killed before it has
%% sent the request, the agent finds out at one of its next ticks.
%%
%% When the agent hears of a request, the server may have replied, and what it sends next must not
%% overtake that. So the agent counts a server with leases among those that owe a reply, for two
%% seconds at least, and until its lane has passed on all news that it had by then. (A connection
%% that stands still for longer than that, and then brings the request first, is the exception.)
%%
%% Only a process has leases, not a name: by the next request another process may have the name.
-module(trunkline_lease).
-moduledoc false.

-export([is_held/2, is_wanted/2, session/2, keep/4, send/4]).

-dialyzer({no_improper_lists, [keep/4, send/4]}).

-record(lease,
        {server :: pid(),
         until :: milliseconds(),
         way = none :: none | {Lane :: reference(), Agent :: pid(), Inlet :: pid()}}).
-type milliseconds() :: integer().

%% ms
-define(VALID_FOR, 500).
%% In the process dictionary.
-define(LEASE(Node), {?MODULE, Node}).

%% Whether the calling process may send that request, in the session that there is.
-spec is_held(trunkline_command:command(), node()) -> boolean().
is_held(Request, Node) ->
    Server = element(2, Request),
    case get(?LEASE(Node)) of
        #lease{server = Server, until = Until, way = {_, _, Inlet}} ->
            not trunkline_deadline:has_passed(Until) andalso trunkline_peers:watch(Node) =:= Inlet;
        _ ->
            false
    end.

%% Whether the calling process may get a lease, and is likely to use it: it had a long request for
%% that server just before.
-spec is_wanted(trunkline_command:command(), node()) -> boolean().
is_wanted(Request, Node) ->
    Server = element(2, Request),
    is_pid(Server)
        andalso case put(?LEASE(Node), #lease{server = Server,
                                              until = trunkline_deadline:in(?VALID_FOR)}) of
                    #lease{server = Server, until = Until} ->
                        not trunkline_deadline:has_passed(Until + ?VALID_FOR);
                    _ ->
                        false
                end.

%% An inlet of the session in which the calling process asks, if the answer may become a lease.
-spec session(trunkline_in_turn:addressee(), node()) -> Inlet :: pid() | none.
session(Request, Node) when element(1, Request) =:= call, is_pid(element(2, Request)) ->
    trunkline_peers:watch(Node);
session(_, _) ->
    none.

%% Keeps the answer to a question as a lease, if it was about a request. The pair has the time when
%% the calling process asked, and an inlet of the session at that time.
-spec keep(trunkline_in_turn:answer(), trunkline_in_turn:addressee(), node(),
           {milliseconds(), Inlet :: pid() | none}) -> ok.
keep(Answer, Request, Node, {Asked, Inlet}) when is_pid(Inlet) ->
    Way = case Answer of
              {go, _, {call, _, {_, [[alias | Lane] | {_, _, Agent}]}}} -> {Lane, Agent, Inlet};
              _ -> none
          end,
    _ = put(?LEASE(Node), #lease{server = element(2, Request), way = Way,
                                 until = Asked + ?VALID_FOR}),
    ok;
keep(_, _, _, _) ->
    ok.

%% The options are those of erlang:send/3. `announced': the agent expects the request, but it was
%% not sent.
-spec send(trunkline_command:command(), node(), Request :: term(), [noconnect | nosuspend]) ->
          ok | announced | noconnect | nosuspend.
send(Command, Node, Request, Options) ->
    #lease{way = {Lane, Agent, _}} = get(?LEASE(Node)),
    {Server, Pid, Caller, Label} = trunkline_command:request(Command),
    case erlang:send(Lane, {relay, Agent, {called, Command}}, [noconnect, nosuspend]) of
        ok ->
            %% As the agent would have told.
            From = {Pid, [[alias | Lane] | {Caller, {Pid, Server}, Agent}]},
            case erlang:send(Server, {Label, From, Request}, Options) of
                ok -> ok;
                _ -> announced
            end;
        Refused ->
            Refused
    end.
