%% What the shell says of the arguments of a call that is refused (trunkline_errors).
-module(explained).

-export([call/3, texts/3]).

%% The text about each wrong argument, in their order, and the stack that the error has.
call(Module, Function, Args) ->
    try apply(Module, Function, Args) of
        Result -> error({not_refused, Result})
    catch
        error:badarg:Stack ->
            Texts = trunkline_errors:format_error(badarg, Stack),
            {[{N, lists:flatten(Text)} || {N, Text} <- lists:sort(maps:to_list(Texts))], Stack}
    end.

%% Only the texts.
texts(Module, Function, Args) ->
    {Texts, _} = call(Module, Function, Args),
    [Text || {_, Text} <- Texts].
