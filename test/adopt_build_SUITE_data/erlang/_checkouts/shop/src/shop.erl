-module(shop).
-export([tell/2]).

tell(To, What) -> To ! What.
