%% Which other nodes know which inboxes of this node, and what they have yet to be told.
%%
%% Another node learns of an inbox only when it sends to it. From then on that node is a *guest*:
%% it is told what the inbox is, when it is full, when it ends, and which inbox takes its name next.
%%
%%     here, trunkline_inboxes                              there, trunkline_inboxes
%%       | <───────────── the first message for an inbox, by lane ─ |
%%       | ── {inboxes, Visit, Pid, [what it is]} ────────────────> |  a row for it
%%       | <──────────────────────────── {visiting, Visit, Node} ── |
%%       |    each monitors the other                               |
%%       | ── {inboxes, Visit, Pid, [it is full, or has ended]} ──> |
%%
%% Everything that one node knows of another's inboxes belongs to one *visit*. A visit is over when
%% either process ends, or the connection is lost. Both sides learn of that from their monitors, but
%% not at the same time: one of them could mistake the next visit for this one. Therefore a visit
%% has a reference. This side tells the guest that a visit is over when it ends, and again if the
%% guest still mentions it. At the guest, the next visit ends the one before (trunkline_hosts).
%%
%% Nothing is queued. What a guest has yet to be told is a set of inboxes. It is told their state at
%% the time when the connection accepts the message.
%%
%% This module is pure: it decides, and has no side effects.
-module(trunkline_guests).
-moduledoc false.

-export([new/0, met/4, named/3, changed/2, ended/2, down/2, speaks_of/3]).
-export([due/1, told/3, monitored/3, is_away/2, who_knows/2]).

-export_type([guests/0, visit/0]).

-type visit() :: reference().
-type inbox() :: pid().
%% What a guest is to be told.
-type news() :: {over, visit()} | {inboxes, visit(), [inbox()]}.

-record(guest,
        {visit = none :: none | visit(),
         monitor = none :: none | reference(),             % of the process there
         inboxes = #{} :: #{inbox() => []},                % that it knows, or is about to
         %% The names of all inboxes that it has known in this visit: it probably needs the next
         %% ones, too.
         names = #{} :: #{atom() => []},
         changed = #{} :: #{inbox() => []},
         over = [] :: [visit()]}).
-opaque guests() :: #{node() => #guest{}}.

-spec new() -> guests().
new() -> #{}.

%% That node has sent to this inbox without knowing that it is one. (If it has been told, it is told
%% again.)
-spec met(node(), inbox(), Name :: atom(), guests()) -> guests().
met(Node, Inbox, Name, G) ->
    case G of
        #{Node := #guest{visit = Visit} = Guest} when Visit =/= none ->
            G#{Node := tell(Inbox, know(Inbox, Name, Guest))};
        #{} ->
            Guest = (maps:get(Node, G, #guest{}))#guest{visit = make_ref()},
            G#{Node => tell(Inbox, know(Inbox, Name, Guest))}
    end.

know(Inbox, Name, #guest{inboxes = Inboxes, names = Names} = Guest) ->
    Guest#guest{inboxes = Inboxes#{Inbox => []},
                names = case Name of
                            undefined -> Names;
                            _ -> Names#{Name => []}
                        end}.

tell(Inbox, #guest{changed = Changed} = Guest) -> Guest#guest{changed = Changed#{Inbox => []}}.

%% A new inbox has this name. The nodes that knew the previous one are told of it at once.
-spec named(inbox(), Name :: atom(), guests()) -> guests().
named(Inbox, Name, G) ->
    maps:map(fun(_, #guest{names = Names} = Guest) when is_map_key(Name, Names) ->
                     tell(Inbox, know(Inbox, Name, Guest));
                (_, Guest) ->
                     Guest
             end, G).

%% The state of the inbox has changed. The nodes that know it are told.
-spec changed(inbox(), guests()) -> guests().
changed(Inbox, G) ->
    maps:map(fun(_, #guest{inboxes = Inboxes} = Guest) when is_map_key(Inbox, Inboxes) ->
                     tell(Inbox, Guest);
                (_, Guest) ->
                     Guest
             end, G).

-spec ended(inbox(), guests()) -> guests().
ended(Inbox, G) ->
    maps:map(fun(_, #guest{inboxes = Inboxes} = Guest) ->
                     Guest#guest{inboxes = maps:remove(Inbox, Inboxes)}
             end, changed(Inbox, G)).

%% The process at the guest has ended, or the connection is lost.
-spec down(Monitor :: reference(), guests()) -> guests().
down(Monitor, G) ->
    maps:map(fun(_, #guest{monitor = M, visit = Visit, over = Over}) when M =:= Monitor ->
                     #guest{over = [Visit | Over]};
                (_, Guest) ->
                     Guest
             end, G).

%% The guest mentions this visit. If it is not the present one, the guest is told that it is over.
-spec speaks_of(node(), visit(), guests()) -> guests().
speaks_of(Node, Visit, G) ->
    case maps:get(Node, G, #guest{}) of
        #guest{visit = Visit} -> G;
        #guest{over = Over} = Guest ->
            G#{Node => Guest#guest{over = [Visit | lists:delete(Visit, Over)]}}
    end.

%% Which nodes are to be told now, and what.
-spec due(guests()) -> [{node(), [news(), ...]}].
due(G) ->
    [{Node, News} || {Node, Guest} <- maps:to_list(G), [_ | _] = News <- [news(Guest)]].

news(#guest{visit = Visit, changed = Changed, over = Over}) ->
    [{over, Ended} || Ended <- Over]
        ++ [{inboxes, Visit, maps:keys(Changed)} || map_size(Changed) > 0].

%% The news was sent. `monitor': the process at the guest is to be monitored now.
-spec told(node(), news(), guests()) -> {ok | monitor, guests()}.
told(Node, {over, Visit}, G) ->
    #{Node := #guest{over = Over} = Guest} = G,
    {ok, case Guest#guest{over = lists:delete(Visit, Over)} of
             #guest{visit = none, over = []} -> maps:remove(Node, G);
             Guest1 -> G#{Node := Guest1}
         end};
told(Node, {inboxes, Visit, _}, G) ->
    #{Node := #guest{visit = Visit, monitor = Monitor} = Guest} = G,
    {case Monitor of
         none -> monitor;
         _ -> ok
     end, G#{Node := Guest#guest{changed = #{}}}}.

-spec monitored(node(), reference(), guests()) -> guests().
monitored(Node, Monitor, G) ->
    maps:update_with(Node, fun(Guest) -> Guest#guest{monitor = Monitor} end, G).

%% There is no connection, so there is nothing to tell.
-spec is_away(node(), guests()) -> guests().
is_away(Node, G) -> maps:remove(Node, G).

-spec who_knows(inbox(), guests()) -> [node()].
who_knows(Inbox, G) ->
    [Node || {Node, #guest{inboxes = Inboxes}} <- maps:to_list(G), is_map_key(Inbox, Inboxes)].
