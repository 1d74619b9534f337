%% The options of single functions, as trunkline:compare/2: a map or a property list. (Those of the
%% application are in trunkline_options.)
%%
%% A module declares the options of its functions: options/1 returns, for each, what its value must
%% be in words, and a fun that says whether it is that.
-module(trunkline_function_options).
-moduledoc false.

-export([check/2, to_map/1]).

-export_type([declared/0]).

%% What a value must be, and whether it is that.
-type declared() :: {Name :: atom(), What :: iolist(), fun((term()) -> boolean())}.

%% The options as a map. `error': one is not declared by the module, or has another value. (What an
%% option may be can depend on the others.)
-spec check(module(), Options :: term()) -> {ok, #{atom() => term()}} | error.
check(Module, Options) ->
    case to_map(Options) of
        error -> error;
        Map -> check(maps:to_list(Map), Module:options(Map), Map)
    end.

check([{Name, Value} | Options], Declared, Map) ->
    case lists:keyfind(Name, 1, Declared) of
        {_, _, IsValid} -> case IsValid(Value) of
                               true -> check(Options, Declared, Map);
                               false -> error
                           end;
        false -> error
    end;
check([], _, Map) ->
    {ok, Map}.

-spec to_map(Options :: term()) -> map() | error.
to_map(Options) when is_map(Options) ->
    Options;
to_map(Options) when is_list(Options) ->
    try lists:all(fun is_property/1, Options) of
        true -> proplists:to_map(Options);
        false -> error
    catch
        error:_ -> error             % no proper list
    end;
to_map(_) ->
    error.

is_property({Name, _}) -> is_atom(Name);
is_property(Name) -> is_atom(Name).
