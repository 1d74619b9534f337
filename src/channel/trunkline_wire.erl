%% The protocol on Trunkline's own connections.
%%
%% The peers know each other from the distribution, over which the connecting side
%% has been given a token and a secret, for one connection. On the connection each
%% proves to the other that it knows the secret, without saying it:
%%
%%     connecting side                          listening side
%%       | -- hello ------------------------------> |    closes it unless the token
%%       |    "TRUNKLN1", token 16, nonce 16        |    is known, and forgets the
%%       |                                          |    token
%%       | <------------------------- welcome ----- |
%%       |    nonce 16, proof 32                    |
%%       | -- proof ------------------------------> |    closes it unless it is right
%%       |    32                                    |
%%       | == frames =============================> |
%%
%% (Numbers are bytes.) A proof is the HMAC-SHA256 of the role (connecting or listening) and both
%% nonces, with the secret as key. Until the proof is verified, the listening side has read 72
%% bytes, and has only compared them.
%%
%% A frame is a length, which does not count itself, a header, and data:
%%
%%       0        4        6                14               22               30
%%     +--------+--------+----------------+----------------+----------------+------
%%     | length | stream | number         | size           | offset         | data
%%     +--------+--------+----------------+----------------+----------------+------
%%
%% It carries a fragment of a parcel: the parcel's stream, the parcel's number in it, the size of
%% the whole parcel, and where in the parcel the data belong. A stream is the large messages of a
%% lane, and has the number of the lane. A frame of length 0 is a heartbeat.
%%
%% A connection for the batches of one lane has frames of its own, each with a whole batch
%% (trunkline_dictionary):
%%
%%       0        4                12
%%     +--------+----------------+------
%%     | length | serial         | batch
%%     +--------+----------------+------
-module(trunkline_wire).
-moduledoc false.

-export([token/0, secret/0, hello/2, parse_hello/1, proof/4, is_proof/2, nonce/0]).
-export([frame/1, batch/1, heartbeat/0, parse_frame/1]).
-export([hello_bytes/0, welcome_bytes/0, proof_bytes/0]).

-export_type([token/0, secret/0, nonce/0]).

-type token() :: <<_:128>>.
-type secret() :: <<_:256>>.
-type nonce() :: <<_:128>>.

-define(MAGIC, "TRUNKLN1").
%% The highest number of a lane.
-define(MOST, 16#7fff).

-spec token() -> token().
token() -> crypto:strong_rand_bytes(16).

-spec secret() -> secret().
secret() -> crypto:strong_rand_bytes(32).

-spec nonce() -> nonce().
nonce() -> crypto:strong_rand_bytes(16).

-spec hello_bytes() -> 40.
hello_bytes() -> 40.
-spec welcome_bytes() -> 48.
welcome_bytes() -> 48.
-spec proof_bytes() -> 32.
proof_bytes() -> 32.

-spec hello(token(), nonce()) -> binary().
hello(<<Token:16/binary>>, <<Nonce:16/binary>>) ->
    <<?MAGIC, Token/binary, Nonce/binary>>.

-spec parse_hello(binary()) -> {ok, token(), nonce()} | error.
parse_hello(<<?MAGIC, Token:16/binary, Nonce:16/binary>>) -> {ok, Token, Nonce};
parse_hello(_) -> error.

-spec proof(connecting | listening, secret(), Connecting :: nonce(), Listening :: nonce()) ->
          <<_:256>>.
proof(Who, Secret, Connecting, Listening) ->
    crypto:mac(hmac, sha256, Secret, [atom_to_binary(Who), Connecting, Listening]).

%% Takes a time that does not tell how much of the proof is right.
-spec is_proof(binary(), Right :: <<_:256>>) -> boolean().
is_proof(Proof, Right) when byte_size(Proof) =:= byte_size(Right) ->
    crypto:hash_equals(Proof, Right);
is_proof(_, _) -> false.

-spec frame(trunkline_fragments:fragment()) -> iodata().
frame({{Stream, Number}, Size, Offset, Length, Data}) ->
    [<<(26 + Length):32, Stream:16, Number:64, Size:64, Offset:64>> | Data].

-spec batch(trunkline_writer:frame()) -> iodata().
batch({Bytes, Frame}) -> [<<Bytes:32>> | Frame].

-spec heartbeat() -> binary().
heartbeat() -> <<0:32>>.

%% A frame of large messages without its length. `error': it is malformed.
-spec parse_frame(binary()) ->
          {ok, trunkline_fragments:id(), Size :: pos_integer(), Offset :: non_neg_integer(),
           Data :: binary()}
              | heartbeat | error.
parse_frame(<<Stream:16, Number:64, Size:64, Offset:64, Data/binary>>)
  when byte_size(Data) > 0, Offset + byte_size(Data) =< Size, Number > 0,
       Stream > 0, Stream =< ?MOST ->
    {ok, {Stream, Number}, Size, Offset, Data};
parse_frame(<<>>) ->
    heartbeat;
parse_frame(_) ->
    error.
