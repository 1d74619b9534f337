%% To tell what is new from what was there before: the next session of the lanes between two nodes,
%% whose links may not have noticed the end of the one before (they say `up' until then), and a
%% Trunkline that has stopped.
-module(anew).

-export([sessions/2, await_session/3, lanes/3, connection/2, await_stopped/1]).

%% How many A has had with B, as A counts them. (A Trunkline that is started again begins anew, one
%% whose link dies does not.)
sessions(A, B) ->
    case cluster:info(A, B) of
        #{sessions := N} -> N;
        undefined -> 0
    end.

%% A is up with B, in a session that is not one of so many.
await_session(A, B, Before) ->
    cluster:await(fun() ->
                          case cluster:info(A, B) of
                              #{state := up, sessions := N} when N > Before -> true;
                              Info -> {false, Before, Info}
                          end
                  end).

%% What ends the session of A and B, which are not about to begin one: they are up again, in the
%% next one, when this returns. (If it was their connection that ended, one of them may take
%% itself for connected for a while.)
lanes(A, B, End) ->
    Before = [{X, Y, sessions(X, Y)} || {X, Y} <- [{A, B}, {B, A}]],
    Result = End(),
    cluster:await(fun() ->
                          %% (It may be refused while the other has not noticed the end.)
                          _ = cluster:call(A, net_kernel, connect_node, [cluster:node_of(B)]),
                          lists:all(fun({X, Y, N}) -> sessions(X, Y) > N end, Before)
                  end),
    cluster:await_up(A, B),
    Result.

%% Their connection is broken by A, and there is another one. As disconnect_node/1 answers.
connection(A, B) ->
    lanes(A, B, fun() -> cluster:call(A, erlang, disconnect_node, [cluster:node_of(B)]) end).

%% Trunkline at a node whose top supervisor was killed has ended, and its names are free.
await_stopped(Node) ->
    cluster:await(
      fun() ->
              cluster:call(
                Node, fun() ->
                              Names = [trunkline_sup, trunkline_link_sup, trunkline_links,
                                       trunkline_listener, trunkline_inboxes, trunkline_monitors],
                              case {lists:keymember(trunkline, 1, application:which_applications()),
                                    [Name || Name <- Names, whereis(Name) =/= undefined]} of
                                  {false, []} -> true;
                                  Left -> Left
                              end
                      end)
      end).
