%% Frames: how batches are encoded where the distribution does not encode them.
%%
%%     <<Serial:64>>, external term format of
%%
%%         {Ack, Charge, {more, [To 4, To 5]},     names for 4 and 5, from here on
%%          [[1 | Message],                        to the process that 1 stands for
%%           [4 | Message],
%%           [{call, ...} | Message]]}             anything else is written out
%%
%% Most messages go to the same few processes, and a pid is long: it contains the name of its node,
%% an atom that has to be looked up. So a lane gives numbers to pids and registered names. The inlet
%% takes batches in the order of their serials, each exactly once, whichever channel brings them. So
%% it knows all names of earlier batches, and a batch that is sent again has the same bytes.
%%
%% Neither side remembers more than MOST names, and those that one batch adds. After that a batch
%% says `anew', and both start at 1 again.
%%
%% This module is pure: it decides, and has no side effects.
-module(trunkline_dictionary).
-moduledoc false.

-export([new/0, encode/2]).
-export([reader/0, serial/1, decode/2]).

-export_type([dictionary/0, reader/0]).

-dialyzer({no_improper_lists, [encode/4, named/2]}).

-type id() :: pos_integer().
-opaque dictionary() :: #{pid() | atom() => id()}.
-opaque reader() :: #{id() => pid() | atom()}.

-define(MOST, 4096).

-spec new() -> dictionary().
new() -> #{}.

-spec encode(trunkline_batches:batch(), dictionary()) -> {trunkline_writer:frame(), dictionary()}.
encode({Serial, Ack, Charge, Entries}, Ids0) ->
    {Start, Ids} = case map_size(Ids0) < ?MOST of
                       true -> {more, Ids0};
                       false -> {anew, #{}}
                   end,
    {Encoded, New, Ids1} = encode(Entries, Ids, [], []),
    Term = erlang:term_to_iovec({Ack, Charge, {Start, New}, Encoded}),
    {{8 + iolist_size(Term), [<<Serial:64>> | Term]}, Ids1}.

encode([[To | Message] = Entry | Entries], Ids, New, Encoded) when is_pid(To); is_atom(To) ->
    case Ids of
        #{To := Id} ->
            encode(Entries, Ids, New, [[Id | Message] | Encoded]);
        #{} ->
            encode([Entry | Entries], Ids#{To => map_size(Ids) + 1}, [To | New], Encoded)
    end;
encode([Entry | Entries], Ids, New, Encoded) ->
    encode(Entries, Ids, New, [Entry | Encoded]);
encode([], Ids, New, Encoded) ->
    {lists:reverse(Encoded), lists:reverse(New), Ids}.

-spec reader() -> reader().
reader() -> #{}.

%% What a frame is. A batch is not decoded before its turn.
-spec serial(binary()) -> {batch, Serial :: pos_integer(), Term :: binary()} | heartbeat | error.
serial(<<Serial:64, Term/binary>>) when Serial > 0 -> {batch, Serial, Term};
serial(<<>>) -> heartbeat;
serial(_) -> error.

-spec decode(binary(), reader()) ->
          {Ack :: term(), Charge :: non_neg_integer(), Entries :: [term()], reader()} | error.
decode(Binary, Before) ->
    try
        {Ack, Charge, {Start, New}, Encoded} = binary_to_term(Binary),
        true = is_integer(Charge),
        Names = add(New, case Start of
                             more -> Before;
                             anew -> #{}
                         end),
        {Ack, Charge, named(Encoded, Names), Names}
    catch
        error:_ -> error                     % also if it uses a number without a name
    end.

add([To | New], Names) -> add(New, Names#{map_size(Names) + 1 => To});
add([], Names) -> Names.

named([[Id | Message] | Entries], Names) when is_integer(Id) ->
    [[map_get(Id, Names) | Message] | named(Entries, Names)];
named([[_ | _] = Entry | Entries], Names) ->
    [Entry | named(Entries, Names)];
named([], _) ->
    [].
