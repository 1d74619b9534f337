%% The options of single functions, as trunkline:compare/2: a map or a property list. (Those of the
%% application are in trunkline_options.)
%%
%% A module declares the options of its functions: options/1 returns, for each, what its value must
%% be in words, and a fun that says whether it is that.
-module(trunkline_function_options).
-moduledoc false.

-export([check/2, wrong/2, to_map/1]).

-export_type([declared/0, wrong/0]).

%% What a value must be, and whether it is that.
-type declared() :: {Name :: atom(), What :: iolist(), fun((term()) -> boolean())}.
%% There is no such option, but these; or its value is not what it must be.
-type wrong() :: {unknown, Name :: term(), Names :: [atom()]}
               | {value, Name :: atom(), Value :: term(), What :: iolist()}.

%% The options as a map. `error': they are neither a map nor a property list, or one is wrong/2.
-spec check(module(), Options :: term()) -> {ok, #{atom() => term()}} | error.
check(Module, Options) ->
    case to_map(Options) of
        error -> error;
        Map -> case wrong(Module, Map) of
                   [] -> {ok, Map};
                   _ -> error
               end
    end.

%% What is wrong with these options. (What an option may be can depend on the others.)
-spec wrong(module(), map()) -> [wrong()].
wrong(Module, Map) ->
    Declared = Module:options(Map),
    Names = [Name || {Name, _, _} <- Declared],
    [{unknown, Name, Names} || Name <- maps:keys(Map) -- Names]
        ++ [{value, Name, map_get(Name, Map), What}
            || {Name, What, IsValid} <- Declared, is_map_key(Name, Map),
               not IsValid(map_get(Name, Map))].

%% Of two properties with the same name the first counts, as in OTP's functions.
-spec to_map(Options :: term()) -> map() | error.
to_map(Options) when is_map(Options) ->
    Options;
to_map(Options) when length(Options) >= 0 ->
    case lists:all(fun is_property/1, Options) of
        true -> proplists:to_map(Options);
        false -> error
    end;
to_map(_) ->
    error.

is_property({Name, _}) -> is_atom(Name);
is_property(Name) -> is_atom(Name).
