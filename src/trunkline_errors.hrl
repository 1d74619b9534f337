%% Raises an error that says which argument is wrong (trunkline_errors). For exported functions
%% only, because the error describes the arguments of the function that raises it.
-define(BAD_ARGUMENT(Reason, Args),
        erlang:error(Reason, Args, [{error_info, #{module => trunkline_errors}}])).

%% Turns an error of another function into one about the arguments of this function.
-define(NAMED(Reason, Args, Expression),
        try Expression
        catch error:Reason -> ?BAD_ARGUMENT(Reason, Args)
        end).
