%% Collections of request ids, each with a label, and the wait for the next answer to one
%% of them.
%%
%% A request id is a tuple whose first element is the reference that names the request in
%% whatever answers it:
%%
%%     {[alias | Ref], Reply}                        a reply, sent to the alias Ref
%%     {[[alias | Lane] | {Ref, _, _}], Reply}       one that a server sent by hand (trunkline_agent)
%%     {'DOWN', Ref, process, _, _}                  there will be none
%%
%% What else is in an id, and what an answer means, is known to whoever makes the
%% requests. Bad arguments are errors as they are in gen_server's functions of these names.
-module(trunkline_reqids).

-export([new/0, size/1, add/3, to_list/1, take/3, find/2, wait/2]).

-export_type([collection/1, label/0]).

-type label() :: term().
-type collection(Id) :: #{reference() => {Id, label()}}.

-spec new() -> collection(_).
new() -> #{}.

-spec size(collection(_)) -> non_neg_integer().
size(Ids) when is_map(Ids) -> map_size(Ids);
size(_) -> error(badarg).

-spec add(Id, label(), collection(Id)) -> collection(Id).
add(Id, Label, Ids) when is_map(Ids), is_reference(element(1, Id)), not is_map_key(element(1, Id), Ids) ->
    Ids#{element(1, Id) => {Id, Label}};
add(_, _, _) ->
    error(badarg).

-spec to_list(collection(Id)) -> [{Id, label()}].
to_list(Ids) when is_map(Ids) -> maps:values(Ids);
to_list(_) -> error(badarg).

%% The label of an id, and the collection without it, if it is to be deleted.
-spec take(Id, collection(Id), Delete :: boolean()) -> {label(), collection(Id)}.
take(Id, Ids, Delete) ->
    Ref = element(1, Id),
    #{Ref := {_, Label}} = Ids,
    {Label, case Delete of
                true -> maps:remove(Ref, Ids);
                false -> Ids
            end}.

%% Whose answer the message is.
-spec find(Message :: term(), collection(Id)) -> {Message :: term(), Id} | none.
find(Message, Ids) ->
    Ref = case Message of
              {[alias | R], _} -> R;
              {[[alias | _] | {R, _, _}], _} -> R;
              {'DOWN', R, process, _, _} -> R;
              _ -> none
          end,
    case Ids of
        #{Ref := {Id, _}} -> {Message, Id};
        #{} -> none
    end.

%% The next answer, taken from the mailbox.
-spec wait(collection(Id), timeout()) -> {Message :: term(), Id} | timeout.
wait(Ids, Timeout) ->
    receive
        {[alias | Ref], _} = Message when is_map_key(Ref, Ids) -> find(Message, Ids);
        {[[alias | _] | {Ref, _, _}], _} = Message when is_map_key(Ref, Ids) -> find(Message, Ids);
        {'DOWN', Ref, process, _, _} = Message when is_map_key(Ref, Ids) -> find(Message, Ids)
    after Timeout ->
            timeout
    end.
