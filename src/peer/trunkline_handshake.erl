%% What two links must agree on before lanes come up, and how they do.
%%
%% Every link says in a `hello' what its node can do. Both ends compute the same
%% agreement from the two hellos: the highest protocol version both know, the
%% capabilities both have, the smaller number of lanes, the smaller window, the
%% smaller bound for large messages. A hello may carry keys that this version does
%% not know; they are ignored, so that later versions can add some.
-module(trunkline_handshake).
-moduledoc false.

-export([hello/1, no_hello/1, agree/2]).

-export_type([hello/0, agreement/0, capability/0]).

-type capability() :: atom().

-type hello() ::
        #{protocol := {Lowest :: non_neg_integer(), Highest :: non_neg_integer()},
          capabilities := [capability()],
          lanes := pos_integer(),
          window_bytes := pos_integer(),
          bulk_bytes => pos_integer(),      % with the capability `large'
          release := string(),              % for people to read
          _ => _}.

-type agreement() ::
        #{protocol := pos_integer(),
          capabilities := [capability()],
          lanes := pos_integer(),
          window_bytes := pos_integer(),
          bulk_bytes := pos_integer(),
          release := string()}.             % the peer's

%% 2: batches are numbered, and may go by connections.
-define(PROTOCOL, {2, 2}).
%% `request': gen_server calls are carried, with an agent beside the server.
%% `large': large messages travel outside of the lanes.
%% `multicast': one message to many is delivered to each of them.
%% `apply': functions are executed, in processes that the inlet starts.
%% `label': calls with another label than gen_server's are carried too, as gen_event's.
%% `monitor': processes are monitored, by the agent beside them.
%% `drain': a session goes on without messages, for replies, after a goodbye.
%% `exit': exit signals go by lane.
%% `inboxes': the node asks for no news of inboxes to which it has not sent.
%% `channels': inlets read connections of their lanes' own (trunkline_channel).
-define(CAPABILITIES, [request, large, multicast, apply, label, monitor, drain, exit,
                       inboxes, channels]).
%% Lower than any: with this hello no version comes to an agreement.
-define(NO_PROTOCOL, {0, 0}).

-spec hello(trunkline_options:options()) -> hello().
hello(#{lanes := Lanes, window_bytes := Window, bulk_bytes := Bulk}) ->
    Release = case application:get_key(trunkline, vsn) of
                  {ok, Vsn} -> Vsn;
                  undefined -> ""
              end,
    #{protocol => ?PROTOCOL, capabilities => ?CAPABILITIES, lanes => Lanes,
      window_bytes => Window, bulk_bytes => Bulk, release => Release}.

%% There shall be no lanes now.
-spec no_hello(trunkline_options:options()) -> hello().
no_hello(Options) ->
    (hello(Options))#{protocol := ?NO_PROTOCOL}.

%% `malformed': this is no hello. `incompatible': no protocol version is known
%% to both. `drained': the peer does not want lanes now.
-spec agree(hello(), Theirs :: term()) -> {ok, agreement()} | {error, malformed | incompatible | drained}.
agree(_, #{protocol := ?NO_PROTOCOL}) ->
    {error, drained};
agree(#{protocol := {Low, High}, capabilities := Capabilities,
        lanes := Lanes, window_bytes := Window, bulk_bytes := Bulk},
      #{protocol := {TheirLow, TheirHigh}, capabilities := TheirCapabilities,
        lanes := TheirLanes, window_bytes := TheirWindow} = Theirs)
  when is_integer(TheirLow), is_integer(TheirHigh), TheirLow =< TheirHigh,
       length(TheirCapabilities) >= 0,       % false for an improper list
       is_integer(TheirLanes), TheirLanes > 0,
       is_integer(TheirWindow), TheirWindow > 0 ->
    case min(High, TheirHigh) of
        Protocol when Protocol >= Low, Protocol >= TheirLow ->
            {ok, #{protocol => Protocol,
                   capabilities => [C || C <- Capabilities, lists:member(C, TheirCapabilities)],
                   lanes => min(Lanes, TheirLanes),
                   window_bytes => min(Window, TheirWindow),
                   bulk_bytes => case Theirs of
                                     #{bulk_bytes := TheirBulk} when is_integer(TheirBulk), TheirBulk > 0 ->
                                         min(Bulk, TheirBulk);
                                     #{} -> Bulk
                                 end,
                   release => case Theirs of
                                  #{release := Release} when length(Release) < 100 -> Release;
                                  #{} -> ""
                              end}};
        _ ->
            {error, incompatible}
    end;
agree(_, _) ->
    {error, malformed}.
