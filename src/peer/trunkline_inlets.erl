%% The inlets of a peer, all together: those of the session, and those of sessions that have ended.
%%
%%     of the session ── end_session ──> finishing ── {finished, _} ──> delivered ── over ──> ended
%%                                                                                    └───> retired
%%
%% A caller that waits for a reply by one inlet may watch another one. So all inlets end together,
%% unless one takes long to deliver. Inlets that have retired stay for callers
%% (trunkline_retired_inlet).
%%
%% This module is a part of the link, which owns the inlets, and gets their messages.
-module(trunkline_inlets).
-moduledoc false.

-export([new/0, start/4, end_session/2, delivered/2, retired/2, ended/2, end_together/2]).
-export([pids/1, finishing/1, retired/1]).

-export_type([inlets/0]).

-record(inlets,
        {now = [] :: [pid()],                   % of the session
         finishing = [] :: [pid()],             % of earlier ones,
         delivered = [] :: [pid()],             % and those of them that have delivered everything
         retired = [] :: [pid()]}).
-opaque inlets() :: #inlets{}.

-spec new() -> inlets().
new() -> #inlets{}.

%% Those of a session: one for each lane of the peer's. They are linked to the calling process.
-spec start(Theirs :: [pid()], WindowBytes :: pos_integer(), trunkline_route:route(), inlets()) ->
          inlets().
start(Theirs, Window, Route, I) ->
    I#inlets{now = [trunkline_inlet:start_link(Ix, Lane, Window, Route)
                    || {Ix, Lane} <- lists:enumerate(Theirs)]}.

%% They deliver what has arrived. Or the nodes stay connected, and everything has been delivered:
%% then callers may go on waiting.
-spec end_session(finish | {retire, Counterparts :: [pid()]}, inlets()) -> inlets().
end_session(How, #inlets{now = Now, finishing = Finishing} = I) ->
    ok = case How of
             finish ->
                 lists:foreach(fun(Inlet) -> trunkline_inlet:finish(Inlet, over) end, Now);
             {retire, Counterparts} ->
                 lists:foreach(fun({Inlet, Counterpart}) ->
                                       ok = trunkline_process:outlive(Inlet),
                                       trunkline_inlet:finish(Inlet, {retire, Counterpart})
                               end, lists:zip(Now, Counterparts))
         end,
    I#inlets{now = [], finishing = Now ++ Finishing}.

%% This one has delivered everything.
-spec delivered(pid(), inlets()) -> inlets().
delivered(Inlet, #inlets{finishing = Finishing, delivered = Delivered} = I) ->
    case lists:member(Inlet, Finishing) of
        true -> I#inlets{delivered = [Inlet | Delivered]};
        false -> I
    end.

%% It has retired.
-spec retired(pid(), inlets()) -> inlets().
retired(Inlet, I) -> I#inlets{retired = [Inlet | retired(I)]}.

%% It is over. `last': no inlet of an earlier session is left, but those that have retired.
-spec ended(pid(), inlets()) -> {last | more, inlets()} | unknown.
ended(Inlet, #inlets{finishing = Finishing} = I) ->
    case lists:member(Inlet, Finishing) andalso lists:delete(Inlet, Finishing) of
        [] -> {last, I#inlets{finishing = [], delivered = []}};
        [_ | _] = Left -> {more, I#inlets{finishing = Left}};
        false -> unknown
    end.

%% Those that have delivered end now, if all have, or if they need not wait for the others any more.
-spec end_together(Wait :: boolean(), inlets()) -> inlets().
end_together(Wait, #inlets{finishing = Finishing, delivered = Delivered} = I) ->
    case Wait andalso Finishing -- Delivered =/= [] of
        true ->
            I;
        false ->
            lists:foreach(fun trunkline_inlet:over/1, Delivered),
            I#inlets{delivered = []}
    end.

-spec pids(inlets()) -> [pid()].
pids(#inlets{now = Now}) -> Now.

-spec finishing(inlets()) -> [pid()].
finishing(#inlets{finishing = Finishing}) -> Finishing.

%% Those that have retired, and live.
-spec retired(inlets()) -> [pid()].
retired(#inlets{retired = Retired}) -> lists:filter(fun is_process_alive/1, Retired).
