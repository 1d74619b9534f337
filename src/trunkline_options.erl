%% What can be configured, from the application environment.
%%
%% A value that makes no sense stops the application's start with
%% `{error, {bad_option, Key, Value}}' and a sentence that says what would have
%% made sense. Both ends of a link may have different settings: see
%% trunkline_handshake for which of the two counts.
-module(trunkline_options).

-export([load/0, check/1, explain/1]).

-export_type([options/0]).

-type options() ::
        #{lanes := 1..64,                  % lanes to each peer
          queue_bytes := pos_integer(),    % bytes waiting in one lane
          window_bytes := pos_integer(),   % bytes under way in one lane
          batch_bytes := pos_integer()}.   % bytes in one batch

-type bad_option() :: {bad_option, Key :: atom(), Value :: term()}.

%% {Key, Default, Least, Most, What}
-define(OPTIONS,
        [{lanes, default_lanes(), 1, 64, "lanes to each peer"},
         {queue_bytes, 1 bsl 18, 1 bsl 10, 1 bsl 29, "bytes waiting in one lane"},
         {window_bytes, 4 bsl 20, 1 bsl 10, 1 bsl 29, "bytes under way in one lane"},
         {batch_bytes, 64 bsl 10, 1 bsl 8, 1 bsl 26, "bytes in one batch"}]).

%% The options of this node.
-spec load() -> {ok, options()} | {error, bad_option()}.
load() ->
    %% OTP itself puts included_applications into every environment.
    check(proplists:delete(included_applications, application:get_all_env(trunkline))).

-spec check([{atom(), term()}]) -> {ok, options()} | {error, bad_option()}.
check(Env) ->
    check(Env, maps:from_list([{Key, Default} || {Key, Default, _, _, _} <- ?OPTIONS])).

%% One lane can keep a scheduler busy, and eight can fill a connection.
default_lanes() ->
    max(2, min(8, erlang:system_info(schedulers_online))).

check([], Options) ->
    {ok, Options};
check([{Key, Value} | Env], Options) ->
    case lists:keyfind(Key, 1, ?OPTIONS) of
        {_, _, Least, Most, _} when is_integer(Value), Value >= Least, Value =< Most ->
            check(Env, Options#{Key := Value});
        _ ->
            {error, {bad_option, Key, Value}}
    end.

%% The same in words.
-spec explain(bad_option()) -> iolist().
explain({bad_option, Key, Value}) ->
    case lists:keyfind(Key, 1, ?OPTIONS) of
        {_, _, Least, Most, What} ->
            io_lib:format("trunkline: option ~ts (~ts) must be an integer from ~b to ~b, and is ~tp",
                          [Key, What, Least, Most, Value]);
        false ->
            io_lib:format("trunkline: there is no option ~tp (with value ~tp); there are ~ts",
                          [Key, Value,
                           lists:join(", ", [atom_to_list(K) || {K, _, _, _, _} <- ?OPTIONS])])
    end.
