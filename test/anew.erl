%% To tell what is new from what was there before: the next session of the lanes between two nodes,
%% whose links may not have noticed the end of the one before, and a node that comes back under
%% its name.
-module(anew).

-export([sessions/2, await_session/3, lanes/3, await_gone/1, await_stopped/1]).

%% How many A has had with B, as A counts them. (A Trunkline that is started again begins anew, one
%% whose link dies does not.)
sessions(A, B) ->
    case cluster:call(A, trunkline, info, [cluster:node_of(B)]) of
        #{sessions := N} -> N;
        undefined -> 0
    end.

%% A is up with B, in a session that is not one of so many.
await_session(A, B, Before) ->
    cluster:await(fun() ->
                          case cluster:call(A, trunkline, info, [cluster:node_of(B)]) of
                              #{state := up, sessions := N} when N > Before -> true;
                              Info -> {false, Before, Info}
                          end
                  end).

%% What ends the session of A and B, which are not about to begin one: they are up again, in the
%% next one, when this returns.
lanes(A, B, End) ->
    Before = [{X, Y, sessions(X, Y)} || {X, Y} <- [{A, B}, {B, A}]],
    Result = End(),
    lists:foreach(fun({X, Y, N}) -> await_session(X, Y, N) end, Before),
    cluster:await_up(A, B),
    Result.

%% A node that has been killed, or stopped, has left its name to another one.
await_gone(Node) ->
    [Name | _] = string:lexemes(atom_to_list(cluster:node_of(Node)), "@"),
    cluster:await(fun() ->
                          {ok, Names} = erl_epmd:names(),
                          not lists:keymember(Name, 1, Names)
                  end).

%% Trunkline at a node whose top supervisor was killed has ended, and its names are free.
await_stopped(Node) ->
    cluster:await(fun() ->
                          cluster:call(Node, fun() ->
                                                     Names = [trunkline_sup, trunkline_link_sup, trunkline_links, trunkline_listener,
                                                              trunkline_inboxes, trunkline_monitors],
                                                     case {lists:keymember(trunkline, 1, application:which_applications()),
                                                           [Name || Name <- Names, whereis(Name) =/= undefined]} of
                                                         {false, []} -> true;
                                                         Left -> Left
                                                     end
                                             end)
                  end).
