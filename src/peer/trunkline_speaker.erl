%% Sends a link's messages to the peer, in order, and monitors processes there, because a busy
%% connection may suspend the process that does so. If the peer has stopped reading, the connection
%% stays busy. That must not suspend the link, which senders wait for, nor its supervisor.
%%
%%     link                     speaker                    peer's link
%%       | -- say --------------> | ── message, perhaps later ──> |
%%       | -- watch ------------> | ── monitor ────────────────>  |
%%       | <-- 'DOWN' ----------- | <───────────────────── 'DOWN' |
%%
%% What was meant for a lost connection must not be sent on the next one. So each request names its
%% connection, and the link tells the speaker when there is another one. No request but `connect'
%% makes a connection: a node that was just disconnected on purpose stays disconnected.
-module(trunkline_speaker).
-moduledoc false.

-export([start_link/0, connection/2, say/4, watch/4, unwatch/2, finish/1]).
-export([init/1, loop/1]).

-type name() :: {RegisteredName :: atom(), node()}.

%% ms: a peer that hangs misses what the link says last.
-define(FINISH, 200).

-record(speaker,
        {link :: pid(),
         connection = none :: none | reference(),
         watched = #{} :: #{reference() => reference()}}).   % watch to monitor, and vice versa

%% The caller is the link.
-spec start_link() -> pid().
start_link() ->
    proc_lib:start_link(?MODULE, init, [self()]).

%% From here on requests are meant for that connection.
-spec connection(pid(), reference()) -> ok.
connection(Speaker, Connection) ->
    Speaker ! {connection, Connection},
    ok.

-spec say(pid(), Connection :: reference(), pid() | name(), Message :: term()) -> ok.
say(Speaker, Connection, To, Message) ->
    Speaker ! {say, Connection, To, Message},
    ok.

%% The link gets the 'DOWN', with this reference. `connect' makes a connection if there is none.
-spec watch(watch | connect, pid(), Connection :: reference(), pid() | name()) ->
          Watch :: reference().
watch(How, Speaker, Connection, Object) ->
    Watch = make_ref(),
    Speaker ! {How, Connection, Watch, Object},
    Watch.

-spec unwatch(pid(), Watch :: reference()) -> ok.
unwatch(Speaker, Watch) ->
    Speaker ! {unwatch, Watch},
    ok.

%% The link is about to end. What it has said should arrive before the news of its end.
-spec finish(pid()) -> ok.
finish(Speaker) ->
    Ref = monitor(process, Speaker),
    Speaker ! finish,
    receive
        {'DOWN', Ref, process, _, _} -> ok
    after ?FINISH ->
            demonitor(Ref, [flush]),
            ok
    end.

-spec init(pid()) -> ok.
init(Link) ->
    _ = monitor(process, Link),
    proc_lib:init_ack(Link, self()),
    rest(#speaker{link = Link}).

%% It has little to do, so it hibernates between messages. (And so it never waits in old code.)
-spec rest(#speaker{}) -> no_return().
rest(S) -> proc_lib:hibernate(?MODULE, loop, [S]).

-spec loop(#speaker{}) -> ok.
loop(#speaker{link = Link, watched = Watched} = S0) ->
    receive
        {say, Connection, To, Message} ->
            S = latest(S0),
            Connection =:= S#speaker.connection andalso erlang:send(To, Message, [noconnect]),
            rest(S);
        {How, Connection, Watch, Object} when How =:= watch; How =:= connect ->
            case latest(S0) of
                #speaker{connection = Connection} = S ->
                    rest(watched(monitor_by(How, Object), Watch, Object, S));
                S ->
                    rest(S)
            end;
        {unwatch, Watch} when is_map_key(Watch, Watched) ->
            {Monitor, Watched1} = maps:take(Watch, Watched),
            true = demonitor(Monitor),             % a 'DOWN' that is here already is ignored
            rest(S0#speaker{watched = maps:remove(Monitor, Watched1)});
        {unwatch, _} ->
            rest(S0);
        {connection, Connection} ->
            rest(S0#speaker{connection = Connection});
        {'DOWN', Monitor, process, Object, Reason} when is_map_key(Monitor, Watched) ->
            {Watch, Watched1} = maps:take(Monitor, Watched),
            Link ! {'DOWN', Watch, process, Object, Reason},
            rest(S0#speaker{watched = maps:remove(Watch, Watched1)});
        {'DOWN', _, process, Link, _} ->
            ok;
        {'DOWN', _, process, _, _} ->
            rest(S0);
        finish ->
            ok;
        Other ->
            trunkline_process:other(Other, fun ?MODULE:loop/1, S0)
    end.

monitor_by(watch, Object) -> trunkline_process:monitor_connected(Object);
monitor_by(connect, Object) -> trunkline_process:monitor(Object).

watched(noconnection, Watch, Object, #speaker{link = Link} = S) ->
    Link ! {'DOWN', Watch, process, Object, noconnection},
    S;
watched(Monitor, Watch, _, #speaker{watched = Watched} = S) ->
    S#speaker{watched = Watched#{Watch => Monitor, Monitor => Watch}}.

%% The news of another connection may still be in the mailbox, behind this request. (The mailbox is
%% short.)
latest(S) ->
    receive {connection, Connection} -> latest(S#speaker{connection = Connection})
    after 0 -> S
    end.
