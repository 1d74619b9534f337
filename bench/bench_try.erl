-module(bench_try).
-export([main/0]).
main() -> bench:run(fun run/0).
env(N,D) -> case os:getenv(N) of false -> D; V -> {ok,T,_}=erl_scan:string(V++"."), {ok,X}=erl_parse:parse_term(T), X end.
run() ->
    W = wan:open([a,b],[{a,b}]),
    Env = lists:append([["-trunkline", atom_to_list(K), lists:flatten(io_lib:format("~w",[V]))] || {K,V} <- env("TL",[])]),
    {A,_,_} = wan:start_node(W,a,"a",["-setcookie","x"|Env]),
    {_,B,_} = wan:start_node(W,b,"b",["-setcookie","x"|Env]),
    Call = fun(F,Args) -> peer:call(A, bench_site, F, Args, 600000) end,
    [begin wan:set(W,{a,b},#{delay=>D/2,loss=>0}), Call(connect,[B]), [[begin
        ok = wan:set(W,{a,b},#{delay=>D/2,loss=>0}),
        Call(settle,[B]),
        ok = wan:set(W,{a,b},#{loss=>L}),
        Call(tune,[B,V=:=tuned]),
        _ = wan:stats(W,{a,b}),
        T = erlang:monotonic_time(millisecond),
        Times = {500+20*D, env("TIME",1500)},
        os:getenv("SS") =:= false orelse spawn(fun() -> timer:sleep(2500), io:format("~s~n",[wan:run(W,a,"sh -c 'ss -tinm; nstat -az | grep -E \"Retrans|Timeouts|SACK|Reorder|TLP|Loss|OutSegs\"'")]) end),
        R = case Work of
          small -> Call(small,[V,B,Times]);
          {calls,N} -> Call(calls,[V,B,N,Times]);
          {large,E} -> Call(large,[V,B,10000000,E]);
          {open,Rate} -> Call(open_loop,[V,B,Rate,Times])
        end,
        #{cpu:=Cpu,packets:=P,full:=Full,most:=Most,late:=Late,lost:=Lost} = wan:stats(W,{a,b}),
        Dt = erlang:monotonic_time(millisecond)-T,
        os:getenv("SS") =:= false orelse io:format("~s~n",[wan:run(W,a,"ss -tinm")]),
        #{round_trip:=RTT,batches:=Bt,large:=#{connections:=LC,congestion_control:=LCC},lanes:=[#{window_bytes:=Win,mean_batch:=MB}|_]} = Call(info,[B]),
        V =:= trunkline andalso io:format("   ~p ~p ~p ~p win ~p mean ~p~n",[RTT,Bt,LC,LCC,Win,MB]),
        io:format("~5w ms ~4w% ~14w ~10w ~s  (wan ~.2f, pkt ~w full ~w lost ~w most ~w late ~w)~n",[D,L,Work,V,
           case R of [_|_] -> io_lib:format("~w",[R]); _ -> io_lib:format("~.1f",[R]) end, Cpu/1000/Dt, P,Full,Lost,Most,Late])
      end || V <- env("VS",[stock,trunkline]), _ <- lists:seq(1,env("R",1))] || Work <- env("WORK",[small])] end || {D,L} <- env("LINKS",[{0,0},{10,0},{100,0}])],
    wan:close(W).
