%% For suites of properties: as ?FORALL, and an exception is a failure, too. Debian's PropEr
%% does not come through one.
-include_lib("proper/include/proper.hrl").

-define(ALL(Variables, Type, Property),
        ?FORALL(Variables, Type, counterexample:holds(fun() -> Property end))).
