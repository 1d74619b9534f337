%% Events for telemetry, if that is there.
%%
%% Trunkline does not depend on telemetry. Whether its module can be loaded is found out once, when
%% the application starts; otherwise an event is one look at a persistent term. Nothing on the hot
%% path has an event.
-module(trunkline_events).
-moduledoc false.

-export([start/0, execute/3]).

-define(SINK, ?MODULE).

%% Before any process of Trunkline starts.
-spec start() -> ok.
start() ->
    Module = telemetry,
    Sink = case code:ensure_loaded(Module) of
               {module, _} -> Module;
               {error, _} -> none
           end,
    %% Which is expensive if there are many processes.
    case persistent_term:get(?SINK, none) of
        Sink -> ok;
        _ -> persistent_term:put(?SINK, Sink)
    end.

%% Under the name that begins with `trunkline'.
-spec execute([atom()], #{atom() => number()}, #{atom() => term()}) -> ok.
execute(Name, Measurements, Metadata) ->
    case persistent_term:get(?SINK, none) of
        none -> ok;
        Module -> Module:execute([trunkline | Name], Measurements, Metadata)
    end.
