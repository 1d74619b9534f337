%% A registry for {via, via_test, Name}: knows one name, set by the test, and names that count how
%% often they are looked up. To look up one of them ends the process. One sends to several
%% processes, and has none of its own.
-module(via_test).

-export([whereis_name/1, send/2]).

whereis_name(known) -> persistent_term:get(via_test);
whereis_name({counted, Counter, Pid}) -> counters:add(Counter, 1, 1), Pid;
whereis_name(ends) -> exit(registry_ended);
whereis_name(_) -> undefined.

send({all, Pids}, Message) ->
    lists:foreach(fun(Pid) -> Pid ! Message end, Pids);
send(Name, Message) ->
    case whereis_name(Name) of
        undefined -> exit({badarg, {Name, Message}});
        Pid -> Pid ! Message, Pid
    end.
