%% Who may see trunkline_web's page: all users of this host, or all who know the password.
%%
%% The password is kept only as a hash in a fun, so that no crash report and no supervisor report
%% shows it.
-module(trunkline_web_password).
-moduledoc false.

-export([allow/1]).

-export_type([allow/0]).

-type allow() :: fun((Authorization :: string()) -> boolean()) | this_host.

-define(USER, "trunkline").

%% The check takes the same time for all wrong passwords.
-spec allow(Password :: binary() | none) -> allow().
allow(none) ->
    this_host;
allow(Password) ->
    Expected = hash(<<?USER, ":", Password/binary>>),
    fun(Authorization) -> crypto:hash_equals(hash(user_and_password(Authorization)), Expected) end.

hash(Text) -> crypto:hash(sha256, Text).

%% The user and the password, as the scheme `Basic' encodes them (RFC 7617).
user_and_password(Authorization) ->
    case string:split(Authorization, " ") of
        [Scheme, Encoded] ->
            case string:lowercase(Scheme) of
                "basic" -> decoded(string:trim(Encoded));
                _ -> <<>>
            end;
        _ ->
            <<>>
    end.

decoded(Encoded) ->
    try base64:decode(Encoded)
    catch error:_ -> <<>>
    end.
