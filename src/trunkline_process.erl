%% What the processes have in common that no behaviour of OTP serves.
%%
%% A node may have no process left. Then whoever starts one here is answered so, keeps
%% what it has, and tries again later.
-module(trunkline_process).

-export([start/1, start_all/1]).

%% What Start answers, which starts one process.
-spec start(fun(() -> Started)) -> {ok, Started} | {error, system_limit}.
start(Start) ->
    try {ok, Start()}
    catch error:system_limit -> {error, system_limit}
    end.

%% The same for several processes, linked to the calling one: all of them, or none.
-spec start_all(fun(() -> Started)) -> {ok, Started} | {error, system_limit}.
start_all(Start) ->
    {links, Before} = process_info(self(), links),
    case start(Start) of
        {ok, _} = Started ->
            Started;
        {error, _} = Error ->
            {links, After} = process_info(self(), links),
            lists:foreach(fun(Pid) -> unlink(Pid), exit(Pid, kill) end, After -- Before),
            Error
    end.
