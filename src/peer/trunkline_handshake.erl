%% What two links must agree on before lanes come up.
%%
%% Each link says in a `hello' what its node can do. Both ends compute the same agreement from the
%% two hellos: the highest protocol version both know, the capabilities both have, the smaller
%% number of lanes, the smaller window, the smaller bound for large messages, the smaller time to
%% resume. A hello may carry keys that this version does not know. They are ignored, so that later
%% versions can add some.
%%
%% Every peer has the capabilities of release 0.5.0: a node that lacks any of them is incompatible.
%% A hello still lists them, because 0.5.0 checks for them.
-module(trunkline_handshake).
-moduledoc false.

-export([hello/1, no_hello/1, agree/2]).

-export_type([hello/0, agreement/0, capability/0]).

%% Beyond those that every peer has.
-type capability() :: atom().

-type hello() ::
        #{protocol := {Lowest :: non_neg_integer(), Highest :: non_neg_integer()},
          capabilities := [capability()],
          lanes := pos_integer(),
          window_bytes := pos_integer(),
          bulk_bytes := pos_integer(),
          resume_time => non_neg_integer(), % ms; with the capability `v1'
          release := string(),              % for people to read
          _ => _}.

-type agreement() ::
        #{protocol := pos_integer(),
          capabilities := [capability()],
          lanes := pos_integer(),
          window_bytes := pos_integer(),
          bulk_bytes := pos_integer(),
          resume_time := non_neg_integer(),
          release := string()}.             % the peer's

%% 2: batches are numbered, and may go by connections.
-define(PROTOCOL, {2, 2}).
%% What release 0.5.0 checks for.
-define(REQUIRED, [request, large, multicast, apply, label, monitor, drain]).
%% `v1': all that release 1.0 has, and 0.5.0 has not. Exit signals go by lane. The node knows visits
%% (trunkline_guests). Inlets can read connections of their lane's own (trunkline_channels). A
%% session may outlive its connection. Inlets answer senders that ask for their turn
%% (trunkline_in_turn), and the answer may become a lease. Agents grant plain replies
%% (trunkline_plain_reply).
-define(CAPABILITIES, [v1]).
%% Lower than any version, so that no peer agrees to it.
-define(NO_PROTOCOL, {0, 0}).

-spec hello(trunkline_options:options()) -> hello().
hello(#{lanes := Lanes, window_bytes := Window, bulk_bytes := Bulk,
        resume_time := ResumeTime}) ->
    Release = case application:get_key(trunkline, vsn) of
                  {ok, Vsn} -> Vsn;
                  undefined -> ""
              end,
    #{protocol => ?PROTOCOL, capabilities => capabilities(), lanes => Lanes,
      window_bytes => Window, bulk_bytes => Bulk, resume_time => ResumeTime, release => Release}.

%% `heaps': the node does not limit the heaps of its processes, so that a process which is started
%% there may get one of any size.
capabilities() ->
    ?REQUIRED ++ ?CAPABILITIES ++ [heaps || not trunkline_process:is_heap_limited()].

%% The same hello, of a node that wants no lanes now.
-spec no_hello(hello()) -> hello().
no_hello(Hello) -> Hello#{protocol := ?NO_PROTOCOL}.

%% `malformed': this is not a hello. `incompatible': no protocol version is known to both, or the
%% peer lacks what every peer must have. `drained': the peer does not want lanes now.
-spec agree(hello(), Theirs :: term()) ->
          {ok, agreement()} | {error, malformed | incompatible | drained}.
agree(_, #{protocol := ?NO_PROTOCOL}) ->
    {error, drained};
agree(#{protocol := {Low, High}, capabilities := Capabilities,
        lanes := Lanes, window_bytes := Window, bulk_bytes := Bulk} = Ours,
      #{protocol := {TheirLow, TheirHigh}, capabilities := TheirCapabilities,
        lanes := TheirLanes, window_bytes := TheirWindow, bulk_bytes := TheirBulk} = Theirs)
  when is_integer(TheirLow), is_integer(TheirHigh), TheirLow =< TheirHigh,
       length(TheirCapabilities) >= 0,       % false for an improper list
       is_integer(TheirLanes), TheirLanes > 0,
       is_integer(TheirWindow), TheirWindow > 0,
       is_integer(TheirBulk), TheirBulk > 0 ->
    Protocol = min(High, TheirHigh),
    case Protocol >= max(Low, TheirLow) andalso ?REQUIRED -- TheirCapabilities =:= [] of
        true ->
            Common = [C || C <- Capabilities -- ?REQUIRED, lists:member(C, TheirCapabilities)],
            {ok, #{protocol => Protocol,
                   capabilities => Common,
                   lanes => min(Lanes, TheirLanes),
                   window_bytes => min(Window, TheirWindow),
                   bulk_bytes => min(Bulk, TheirBulk),
                   resume_time => case lists:member(v1, Common) of
                                      true -> min(resume_time(Ours), resume_time(Theirs));
                                      false -> 0
                                  end,
                   release => case Theirs of
                                  #{release := Release} when length(Release) < 100 -> Release;
                                  #{} -> ""
                              end}};
        false ->
            {error, incompatible}
    end;
agree(_, _) ->
    {error, malformed}.

%% A peer that does not state a time ends the session with the connection.
resume_time(#{resume_time := Time}) when is_integer(Time), Time > 0 -> Time;
resume_time(#{}) -> 0.
