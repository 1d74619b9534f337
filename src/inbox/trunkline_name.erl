%% The name of a process: on this node, in `global', or in a registry (`via'). Registers it as gen
%% does for gen_server and gen_statem.
-module(trunkline_name).
-moduledoc false.

-export([is_name/1, where/1, take/1, give_back/1, local/1]).

-export_type([name/0]).

-type name() :: none | {local, atom()} | {global, term()} | {via, module(), term()}.

%% Whether gen_server would take it.
-spec is_name(term()) -> boolean().
is_name({local, Name}) -> is_atom(Name);
is_name({global, _}) -> true;
is_name({via, Registry, _}) -> is_atom(Registry);
is_name(_) -> false.

-spec where(name()) -> pid() | undefined.
where(none) -> undefined;
where({local, Name}) -> whereis(Name);
where({global, Name}) -> global:whereis_name(Name);
where({via, Module, Name}) -> Module:whereis_name(Name).

%% Registers the calling process. If another one has the name, that is the result.
-spec take(name()) -> true | {false, pid() | undefined}.
take(none) -> true;
take({local, Name}) ->
    try register(Name, self())
    catch error:_ -> {false, whereis(Name)}
    end;
take({global, Name}) -> take({via, global, Name});
take({via, Module, Name}) ->
    case Module:register_name(Name, self()) of
        yes -> true;
        no -> {false, Module:whereis_name(Name)}
    end.

%% Unregisters the name, whichever process has it. (None may have it any more.)
-spec give_back(name()) -> ok.
give_back(none) -> ok;
give_back(Name) -> gen:unregister_name(Name).

%% If it is a name on this node.
-spec local(name()) -> atom().
local({local, Name}) -> Name;
local(_) -> undefined.
