%% Errors that say which argument is not right (trunkline_errors). For exported functions only: it
%% is their arguments that are named.
-define(BAD_ARGUMENT(Reason, Args), erlang:error(Reason, Args, [{error_info, #{module => trunkline_errors}}])).

%% What another function says of the arguments of this one.
-define(NAMED(Reason, Args, Expression),
        try Expression
        catch error:Reason -> ?BAD_ARGUMENT(Reason, Args)
        end).
