%% What Trunkline writes to the log: every message, its level, and its text.
%%
%%     write(What, Data) ──> logger: a report #{what => What, ...}, domain [trunkline]
%%                                    └─ report_cb: text/1, when a handler wants to show it
%%
%% A handler that takes reports gets the data; all others get a text that begins with `trunkline:'.
%% Each warning says what to do. docs/operate/logs.md has every text, with causes and cures.
%%
%% OTP's default handler shows no domains but its own. show/0 lets it show this one.
-module(trunkline_log).
-moduledoc false.

-include_lib("kernel/include/logger.hrl").

-export([show/0, write/2, text/1]).

-type what() :: up | down | suspended | resumed
              | lost | unconfirmed | lanes_ended | lanes_killed
              | no_connection | refused | missing_applications | adopted | not_adopted
              | strangers | unexpected | not_executed | no_handle_info
              | bad_option | missing_modules.
-type data() :: #{atom() => term()}.
-type report() :: #{what := what(), atom() => term()}.

%% How deep a term is printed that may be large.
-define(DEPTH, 30).

%% Adds a filter to OTP's default handler that lets Trunkline's reports through. A node may have no
%% such handler.
-spec show() -> ok.
show() ->
    Filter = {fun logger_filters:domain/2, {log, sub, [trunkline]}},
    case logger:add_handler_filter(default, trunkline, Filter) of
        ok -> ok;
        {error, {already_exist, _}} -> ok;
        {error, {not_found, _}} -> ok              % there are other handlers
    end.

-spec write(what(), data()) -> ok.
write(What, Data) ->
    ?LOG(level(What), Data#{what => What},
         #{domain => [trunkline], report_cb => fun ?MODULE:text/1}).

level(What) when What =:= up; What =:= down; What =:= suspended; What =:= resumed -> info;
level(What) when What =:= unconfirmed; What =:= adopted -> notice;
level(What) when What =:= bad_option; What =:= missing_modules -> error;
level(_) -> warning.

-spec text(report()) -> {io:format(), [term()]}.
text(#{what := up, peer := Peer, release := Release, lanes := Lanes}) ->
    {"trunkline: ~ts is up, with release ~ts: messages go by ~b lanes", [Peer, Release, Lanes]};
text(#{what := down, peer := Peer, reason := Reason}) ->
    {"trunkline: messages to ~ts no longer go by lane: ~ts", [Peer, why(Reason)]};
text(#{what := suspended, peer := Peer, resume_time := Time}) ->
    {"trunkline: the connection to ~ts is lost; its lanes keep what they have for up to ~b ms",
     [Peer, Time]};
text(#{what := resumed, peer := Peer, milliseconds := Time}) ->
    {"trunkline: the session with ~ts goes on, after ~b ms without a connection", [Peer, Time]};
text(#{what := lost, peer := Peer, queued := Queued, unconfirmed := Unconfirmed}) ->
    {"trunkline: lost ~b messages that were queued for ~ts; another ~b had been sent but not "
     "acknowledged, and may have arrived. Find out why the node went down; drain a node before you "
     "stop it", [Queued, Peer, Unconfirmed]};
text(#{what := unconfirmed, peer := Peer, messages := Messages}) ->
    {"trunkline: ~ts had not acknowledged ~b messages when the session ended; they may have "
     "arrived", [Peer, Messages]};
text(#{what := lanes_ended, peer := Peer, messages := Messages}) ->
    {"trunkline: the lanes to ~ts ended with ~b messages in them that had not been acknowledged. "
     "Was it suspended, overloaded, or cut off?", [Peer, Messages]};
text(#{what := lanes_killed, peer := Peer, messages := Messages}) ->
    {"trunkline: the lanes to ~ts were killed with ~b messages in them. Look for a crash report "
     "just before", [Peer, Messages]};
text(#{what := no_connection, peer := Peer, cargo := large, reason := Reason}) ->
    {"trunkline: there is no connection for large messages to ~ts, they go by distribution: ~0tP. "
     "~ts", [Peer, Reason, ?DEPTH, cure(Reason, Peer, bulk_transport)]};
text(#{what := no_connection, peer := Peer, cargo := batches, reason := Reason}) ->
    {"trunkline: there is no connection for batches to ~ts, they go by distribution: ~0tP. ~ts",
     [Peer, Reason, ?DEPTH, cure(Reason, Peer, lane_transport)]};
text(#{what := refused, peer := Peer, reason := Why, hello := Hello}) ->
    {"trunkline: no lanes to ~ts, whose hello is ~ts: ~0tP. ~ts",
     [Peer, Why, Hello, ?DEPTH,
      case Why of
          incompatible -> "Upgrade the older one of the two nodes";
          _ -> "Messages to it go by plain distribution"
      end]};
text(#{what := missing_applications, applications := Missing}) ->
    {"trunkline: these applications are not in the code path, and are not adopted: ~0tp. Look at "
     "the option adopt", [Missing]};
text(#{what := adopted, modules := Modules}) ->
    {"trunkline: ~b modules were adopted: they send by Trunkline", [Modules]};
text(#{what := not_adopted, problems := Problems}) ->
    {"trunkline: ~b modules could not be adopted, and send by the distribution: ~0tP. "
     "trunkline_adopt:check/0 has them all, and its documentation what to do",
     [length(Problems), Problems, 10 * ?DEPTH]};
text(#{what := strangers, connections := Connections}) ->
    {"trunkline: ~b connections to Trunkline's port ended before they had proved to be invited. "
     "Let health checks and load balancers use another port", [Connections]};
text(#{what := unexpected, module := Module, pid := Pid, message := Message}) ->
    {"trunkline: ~ts ~tp got an unexpected message: ~ts. It ignores this one and later ones, and "
     "logs only the first. Find the program that sends to all processes",
     [Module, Pid, Message]};
text(#{what := not_executed, event := Event, reason := Reason}) ->
    {"trunkline: telemetry has not executed ~0tp: ~0tP. Look at its handlers",
     [Event, Reason, ?DEPTH]};
text(#{what := no_handle_info, module := Module, message := Message}) ->
    {"~p has no handle_info/2 and got: ~0tP", [Module, Message, ?DEPTH]};
text(#{what := bad_option, explained := Explained}) ->
    {"trunkline: ~ts. Trunkline does not start, nor does a release that contains it", [Explained]};
text(#{what := missing_modules, modules := Modules}) ->
    {"trunkline: these modules are not in the code path: ~tp. Was the build interrupted, or done "
     "twice at the same time?", [Modules]}.

why(connection_lost) -> "the connection was lost";
why(peer_restarted) -> "a process of Trunkline ended there, and starts again";
why(peer_left) -> "Trunkline has stopped there, or that node has drained this one";
why(drained) -> "this node has drained it";
why(stopped) -> "Trunkline stops here";
why(crashed) -> "a process of Trunkline was killed here".

%% What helps if there is no connection, for each reason.
cure({connect, _, Port, Reason}, Peer, Option) when Reason =:= timeout; Reason =:= etimedout ->
    io_lib:format("Nothing reaches port ~p of ~ts: set listen_ports there and open them, or set "
                  "~ts to dist", [Port, Peer, Option]);
cure({connect, _, Port, econnrefused}, Peer, _) ->
    io_lib:format("No process listens there at port ~p. Behind a proxy or an address translation, "
                  "set advertise_address and advertise_port of ~ts, or correct them", [Port, Peer]);
cure({listen, eaddrinuse}, Peer, _) ->
    io_lib:format("All listen_ports of ~ts are taken: give it more", [Peer]);
cure(not_wanted, Peer, Option) ->
    io_lib:format("~ts has ~ts dist: set the same here, if that is intended", [Peer, Option]);
cure(Tls, _, _) when Tls =:= tls_wanted; Tls =:= plaintext_beside_tls; element(1, Tls) =:= tls ->
    "Give all nodes the same TLS options";
cure(_, Peer, _) ->
    io_lib:format("Look at the log and the network of ~ts", [Peer]).
