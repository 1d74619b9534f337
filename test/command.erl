%% Programs that tests run, and the folder of the project that they run them in.
-module(command).

-export([root/0, run/3, start/3, await_line/2, await_exit/2]).

%% Where the makefile is.
root() -> root(filename:dirname(code:which(?MODULE))).

root(Dir) ->
    case filelib:is_regular(filename:join(Dir, "Makefile")) of
        true -> Dir;
        false when Dir =/= "/" -> root(filename:dirname(Dir))
    end.

%% In that folder; as if none of make, rebar3 and Common Test were above. Answers the program's
%% exit status and what it said.
run(Dir, Env, Command) -> await_exit(start(Dir, Env, Command), []).

start(Dir, Env, [Program | Args] = Command) ->
    Unset = [{Name, false} || Name <- ["MAKEFLAGS", "MAKELEVEL", "MFLAGS", "REBAR_BASE_DIR",
                                       "REBAR_PROFILE", "LANES"]],
    Path = case filename:pathtype(Program) of
               absolute -> Program;
               relative -> case filename:split(Program) of
                               [_] -> os:find_executable(Program);
                               _ -> filename:join(Dir, Program)
                           end
           end,
    ct:log("~ts: ~0tp", [Dir, Command]),
    open_port({spawn_executable, Path},
              [{args, Args}, {cd, Dir}, {env, Unset ++ Env}, exit_status, stderr_to_stdout]).

%% What it says up to the end of the first line that begins so.
await_line(Port, Start) -> await_line(Port, Start, []).

await_line(Port, Start, Said) ->
    receive
        {Port, {data, Data}} ->
            Text = lists:flatten([Said | Data]),
            case re:run(Text, "^" ++ Start ++ ".*$\n", [multiline]) of
                {match, _} -> {ok, Text};
                nomatch -> await_line(Port, Start, Text)
            end;
        {Port, {exit_status, Status}} ->
            ct:log("~b~n~ts", [Status, Said]),
            {error, Status, Said}
    end.

%% With what it had said before.
await_exit(Port, Said) ->
    receive
        {Port, {data, Data}} ->
            await_exit(Port, [Said | Data]);
        {Port, {exit_status, Status}} ->
            Text = lists:flatten(Said),
            ct:log("~b~n~ts", [Status, Text]),
            {Status, Text}
    end.
