%% What becomes of messages in a lane that has no inlet to send them to: they go by plain
%% distribution, one by one, in the order in which they were sent, or they are lost, and counted.
%%
%%     direct      the lane's session has ended, and the connection has not
%%     retired     the same, but the link does not use this lane any more: what no caller waits for
%%                 counts as lost
%%     lost_...    the connection is lost; this is where to count
%%
%% A command about a session is of no use when that session has ended. A request is not about its
%% session: the caller may watch a stand-in (trunkline_stand_in) until there is another session.
-module(trunkline_leftovers).
-moduledoc false.

-export([dispose/4, is_of_session/1]).

-dialyzer({no_improper_lists, [dispose/4]}).

-type how() :: direct | retired | trunkline_room:lost().
-type entry() :: trunkline_lane:entry().

%% Returns which large messages the lane has no more.
-spec dispose(entry(), how(), node(), trunkline_stats:stats()) -> [trunkline_notices:serial()].
dispose([{parcel, _, N, _, To} | Parcel], How, Node, Stats) ->
    Message = case How =:= direct orelse How =:= retired of
                  true -> trunkline_parcel:unpack_sent(Parcel);
                  false -> []
              end,
    [] = dispose(trunkline_multicast:entry(To, Message), How, Node, Stats),
    [N];
dispose([{behind, _, _, To} | Message], How, Node, Stats) ->
    dispose([To | Message], How, Node, Stats);
dispose([To | Message], retired, Node, Stats) ->
    case trunkline_command:is_news(To) of
        true -> dispose([To | Message], direct, Node, Stats);
        false -> dispose([To | Message], lost_queued, Node, Stats)
    end;
dispose([{each, Tos} | Encoded], direct, Node, Stats) ->
    Message = binary_to_term(Encoded),
    lists:append([dispose([To | Message], direct, Node, Stats) || To <- Tos]);
dispose([{each, Tos} | _], Field, _, Stats) ->
    trunkline_stats:add(Stats, peer, Field, length(Tos)),
    [];
dispose([To | Message], direct, Node, Stats) ->
    case direct(To, Message, Node) of
        ok -> [];
        noconnect -> dispose([To], lost_queued, Node, Stats)
    end;
dispose([To | _], Field, _, Stats) ->
    _ = trunkline_command:is_missed(To) andalso trunkline_stats:add(Stats, peer, Field, 1),
    [].

direct(Command, Message, Node) when is_tuple(Command) ->
    trunkline_direct:send(Command, Message, Node);
direct(To, Message, Node) ->
    erlang:send(trunkline_by_node:destination(To, Node), Message, [noconnect]).

%% Whether it concerns the session in which it was sent.
-spec is_of_session(entry()) -> boolean().
is_of_session([{parcel, _, _, _, To} | _]) -> trunkline_command:is_of_session(To);
is_of_session([{behind, _, _, To} | _]) -> trunkline_command:is_of_session(To);
is_of_session([To | _]) -> trunkline_command:is_of_session(To).
