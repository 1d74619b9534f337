%% Carries fragments of large messages over the distribution, where no connection
%% of their own can be made: a few at a time, so that other messages pass between
%% them (see trunkline_courtesy). It behaves as trunkline_carrier does, and the
%% dock at the other node acknowledges each fragment.
-module(trunkline_carrier_dist).
-moduledoc false.

-export([start/1]).
-export([loop/1]).

-record(carrier,
        {bulk :: pid(),
         dock :: pid(),
         courtesy = trunkline_courtesy:new() :: trunkline_courtesy:courtesy(),
         %% What has been sent and not been told of: bulk gives no other fragment until it has.
         owed = none :: none | non_neg_integer()}).

-spec start(Dock :: pid()) -> {ok, {pid(), reference()}} | {error, system_limit}.
start(Dock) ->
    Bulk = self(),
    trunkline_process:start(fun() -> spawn_monitor(fun() -> init(Bulk, Dock) end) end).

init(Bulk, Dock) ->
    _ = monitor(process, Bulk),
    loop(#carrier{bulk = Bulk, dock = Dock}).

-spec loop(#carrier{}) -> no_return() | ok.
loop(#carrier{bulk = Bulk, dock = Dock, courtesy = Courtesy, owed = Owed} = S) ->
    case Owed =/= none andalso trunkline_courtesy:is_open(Courtesy) of
        true ->
            Bulk ! {sent, self(), Owed, 1},
            loop(S#carrier{owed = none});
        false ->
            receive
                {carry, Fragments} ->
                    Courtesy1 = lists:foldl(fun(Fragment, C) -> carry(Fragment, Dock, C) end, Courtesy, Fragments),
                    Bytes = trunkline_fragments:bytes(Fragments),
                    true = garbage_collect(),          % a fragment refers to the whole binary
                    loop(S#carrier{courtesy = Courtesy1, owed = Bytes});
                {taken, Dock} ->
                    Now = erlang:monotonic_time(microsecond),
                    loop(S#carrier{courtesy = trunkline_courtesy:acked(Now, Courtesy)});
                {'DOWN', _, process, Bulk, _} ->
                    ok;
                {system, From, Request} ->
                    trunkline_process:system(From, Request, fun ?MODULE:loop/1, S);
                Other ->
                    ok = trunkline_process:unexpected(?MODULE, Other),
                    loop(S)
            end
    end.

carry({Id, Size, Offset, _, Data}, Dock, Courtesy) ->
    Now = erlang:monotonic_time(microsecond),
    _ = erlang:send(Dock, {fragment, self(), Id, Size, Offset, iolist_to_binary(Data)}, [noconnect]),
    trunkline_courtesy:sent(Now, Courtesy).
