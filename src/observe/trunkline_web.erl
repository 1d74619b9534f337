-module(trunkline_web).
-moduledoc "
A page in a browser that draws what the peers of this node have done in the last ten minutes, and
the metrics for Prometheus. It is off until `start/1` is called.

The page is at `/`. It needs nothing from elsewhere: no library, no font, no other host. `/samples`
has its figures as JSON, and `/metrics` what `trunkline_metrics:prometheus/0` returns.

It is served by OTP's `inets`. Unless you say otherwise, only this host can connect. At another
address a password is needed. It is sent as it is, without TLS, so use another address in a network
that you trust, or leave the page at this host and reach it with `ssh -L`.

```erlang
1> trunkline_web:start(#{}).
{ok, \"http://127.0.0.1:9669/\"}
2> trunkline_web:stop().
ok
```
".
-moduledoc #{since => <<"1.0.0">>}.
-compile({parse_transform, trunkline_docs}).

-include("../trunkline_errors.hrl").

-export([start/0, start/1, stop/0]).

-export_type([options/0, start_error/0]).

-doc "
Where the page is, and who may see it, as a map or a property list:

- `address`: where to listen, as a tuple or a string; `{0, 0, 0, 0}` or `\"::\"` is everywhere (the
  default is `{127, 0, 0, 1}`);
- `port`: 0 means any free port (9669);
- `password`: required to see the page; the user name is `trunkline`. At least eight characters.
  Without one the address must be of this host.
".
-doc #{since => <<"1.0.0">>}.
-type options() :: #{address => inet:ip_address() | string() | binary(),
                     port => inet:port_number(),
                     password => string() | binary()}.

-doc "
Why there is no page: Trunkline does not run (`stopped`), there is a page already
(`already_started`), OTP's `inets` is not in the release (`no_inets`), a file of Trunkline's is not
there (`missing`), others could see it (`password_needed`), or it is not possible to listen at that
address and port.
".
-doc #{since => <<"1.0.0">>}.
-type start_error() :: stopped | already_started | no_inets | password_needed
                     | {missing, file:filename_all()} | {listen, Reason :: term()}.

-doc "
Starts the page at an address of this host that no other host can reach. See `start/1`.

```erlang
1> trunkline_web:start().
{ok, \"http://127.0.0.1:9669/\"}
```
".
-doc #{since => <<"1.0.0">>}.
-spec start() -> {ok, URL :: string()} | {error, start_error()}.
start() -> start(#{}).

-doc "
Starts the page, and returns its address. It lasts until `stop/0`, or until Trunkline stops.

The error is `badarg` if the options are not right.

```erlang
1> trunkline_web:start(#{address => \"10.0.0.7\", password => \"correct horse\"}).
{ok, \"http://10.0.0.7:9669/\"}
```
".
-doc #{since => <<"1.0.0">>}.
-spec start(options() | [proplists:property()]) ->
          {ok, URL :: string()} | {error, start_error()}.
start(Options) ->
    case trunkline_function_options:check(trunkline_web_server, Options) of
        {ok, Map} -> trunkline_web_server:start(Map);
        error ->
            Given = trunkline_function_options:to_map(Options),
            ?BAD_ARGUMENT(badarg, [without_secrets(Given)])
    end.

%% The arguments of an error get into the log. (The password may be under a misspelt key, or in a
%% term that is neither a map nor a property list.)
without_secrets(#{} = Options) ->
    maps:map(fun(Key, Value) when Key =:= address; Key =:= port -> Value;
                (_, _) -> '...'
             end, Options);
without_secrets(error) ->
    '...'.

-doc "
Ends the page. Without one it does nothing.

```erlang
1> trunkline_web:stop().
ok
```
".
-doc #{since => <<"1.0.0">>}.
-spec stop() -> ok.
stop() -> trunkline_web_server:stop().
