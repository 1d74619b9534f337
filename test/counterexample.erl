%% Runs a property, and fails with the counterexample and with the exception that it made.
-module(counterexample).

-export([check/3, holds/1]).

check(Tests, Shrinks, Property) ->
    proper:quickcheck(Property, [{numtests, Tests}, {max_shrinks, Shrinks}, quiet])
        orelse ct:fail({counterexample, proper:counterexample(), get(?MODULE)}).

%% See ?ALL in counterexample.hrl.
holds(Property) ->
    try Property()
    catch
        error:Reason:Stack -> put(?MODULE, {Reason, Stack}), false
    end.
