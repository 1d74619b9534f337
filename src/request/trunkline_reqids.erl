%% Collections of request ids, each with a label, and the wait for the next answer to one of them.
%%
%% Each answer to a request contains the request's reference:
%%
%%     {[alias | Ref], Reply}                     a reply, sent to the alias Ref
%%     {[[alias | Lane] | {Ref, _, _}], Reply}    one that a server sent by hand (trunkline_agent)
%%     {'DOWN', Ref, process, _, _}               there will be none
%%     {spawn_reply, Ref, error, _}               erpc's, if no process could be started
%%
%% Only the modules that make the requests know what an id is, and what an answer means. In OTP's
%% modules a collection is a map from references to labels. This module takes such a map, too, as a
%% collection of ids that are references. Bad arguments cause the same errors as in the functions of
%% gen_server that have the same names.
-module(trunkline_reqids).
-moduledoc false.

-export([new/0, size/1, add/4, to_list/1, take/3, find/2, wait/2]).

-export_type([collection/1, label/0]).

-dialyzer({no_improper_lists, [add/4]}).

-type label() :: term().
-type collection(Id) ::
          #{reference() => nonempty_improper_list(?MODULE, nonempty_improper_list(Id, label()))}.

-spec new() -> collection(_).
new() -> #{}.

-spec size(collection(_)) -> non_neg_integer().
size(Ids) when is_map(Ids) -> map_size(Ids);
size(_) -> error(badarg).

%% Adds an id. Ref is the reference in the answers to it.
-spec add(reference(), Id, label(), collection(Id)) -> collection(Id).
add(Ref, Id, Label, Ids) when is_map(Ids), not is_map_key(Ref, Ids) ->
    Ids#{Ref => [?MODULE, Id | Label]};
add(_, _, _, _) -> error(badarg).

%% An id that OTP has added may be the reference alone.
-spec to_list(collection(Id)) -> [{Id | reference(), label()}].
to_list(Ids) when is_map(Ids) -> [entry(Ref, Entry) || {Ref, Entry} <- maps:to_list(Ids)];
to_list(_) -> error(badarg).

entry(_, [?MODULE, Id | Label]) -> {Id, Label};
entry(Ref, Label) -> {Ref, Label}.

%% The id of a reference, its label, and the collection: without the id if Delete is true.
-spec take(reference(), collection(Id), Delete :: boolean()) ->
          {Id | reference(), label(), collection(Id)}.
take(Ref, Ids, Delete) ->
    {Id, Label} = entry(Ref, map_get(Ref, Ids)),
    {Id, Label, case Delete of
                    true -> maps:remove(Ref, Ids);
                    false -> Ids
                end}.

%% The request that the message answers.
-spec find(Message :: term(), collection(_)) -> {Message :: term(), reference()} | none.
find(Message, Ids) ->
    Ref = case Message of
              {[alias | R], _} -> R;
              {[[alias | _] | {R, _, _}], _} -> R;
              {'DOWN', R, process, _, _} -> R;
              {spawn_reply, R, error, _} -> R;
              _ -> none
          end,
    case is_reference(Ref) andalso is_map_key(Ref, Ids) of
        true -> {Message, Ref};
        false -> none
    end.

%% The next answer, taken from the mailbox.
-spec wait(collection(_), timeout()) -> {Message :: term(), reference()} | timeout.
wait(Ids, Timeout) ->
    receive
        {[alias | Ref], _} = Message when is_map_key(Ref, Ids) -> {Message, Ref};
        {[[alias | _] | {Ref, _, _}], _} = Message when is_map_key(Ref, Ids) -> {Message, Ref};
        {'DOWN', Ref, process, _, _} = Message when is_map_key(Ref, Ids) -> {Message, Ref};
        {spawn_reply, Ref, error, _} = Message when is_map_key(Ref, Ids) -> {Message, Ref}
    after Timeout ->
            timeout
    end.
