%% Whoever asks a web server on this machine, as the page of trunkline_web.
-module(visitor).

-export([ask/2]).

%% All that is answered to a request after which the server closes the connection.
ask(Port, Request) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [{active, false}]),
    ok = gen_tcp:send(Socket, Request),
    Answer = all(Socket),
    ok = gen_tcp:close(Socket),
    Answer.

all(Socket) ->
    case gen_tcp:recv(Socket, 0, 30_000) of
        {ok, Data} -> Data ++ all(Socket);
        {error, closed} -> []
    end.
