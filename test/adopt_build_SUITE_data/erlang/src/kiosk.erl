%% Says what is loaded, and ends.
-module(kiosk).
-behaviour(application).

-export([start/2, stop/1]).

start(_, _) ->
    hello = shop:tell(self(), hello),
    Adopted = maps:get(adopted, trunkline_adopt:check()),
    io:format("~0p.~n", [{adopted, Adopted, shop_till:total([1, 2])}]),
    init:stop(),
    {ok, self()}.

stop(_) -> ok.
