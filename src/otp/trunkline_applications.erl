%% The applications that can be adopted (trunkline_adopt), by the names that a user gives them, and
%% their modules. What is done with a module is in trunkline_beams.
-module(trunkline_applications).
-moduledoc false.

-export([is_name/1, is_adoptable/1, are_adoptable/1, may_adopt/1, as_list/1]).
-export([is_otp/1, application/1, modules/1]).

-export_type([name/0]).

%% An application of OTP is accepted only if it is named as such.
-type name() :: atom() | {otp, atom()}.

%% Trunkline itself sends its messages with these.
-define(NEVER, [kernel, stdlib, erts, compiler, crypto, ssl, public_key, asn1, trunkline]).
-define(OTP, [common_test, debugger, dialyzer, diameter, edoc, eldap, erl_docgen, erl_interface, et,
              eunit, ftp, inets, jinterface, megaco, mnesia, observer, odbc, os_mon, parsetools,
              reltool, runtime_tools, sasl, snmp, ssh, syntax_tools, tftp, tools, wx, xmerl]).

-spec is_name(term()) -> boolean().
is_name(Name) -> check_name(Name) =:= true.

check_name({otp, Name}) -> lists:member(Name, ?OTP) orelse not_of_otp;
check_name(Name) when is_atom(Name) ->
    case {lists:member(Name, ?NEVER), lists:member(Name, ?OTP)} of
        {true, _} -> needed;
        {false, true} -> of_otp;
        {false, false} -> true
    end;
check_name(_) -> no_name.

%% Whether it is a valid name, and the application is in the code path.
-spec is_adoptable(term()) -> boolean().
is_adoptable(Name) -> may_adopt(Name) =:= true.

%% The same of all names, or of one.
-spec are_adoptable(term()) -> boolean().
are_adoptable(Names) when length(Names) >= 0 -> lists:all(fun is_adoptable/1, Names);
are_adoptable(Name) -> is_adoptable(Name).

%% Whether it is adoptable, or why not:
%%
%%     no_application    it is not in the code path
%%     of_otp            it belongs to OTP, and is not named as such
%%     not_of_otp        it is named as one of OTP, but is none that can be adopted
%%     needed            Trunkline itself needs it
%%     no_name           that is no name of an application
-spec may_adopt(term()) -> true | no_application | of_otp | not_of_otp | needed | no_name.
may_adopt(Name) ->
    case check_name(Name) of
        true -> file_of(application(Name)) =/= non_existing orelse no_application;
        Why -> Why
    end.

%% One name stands for a list of one.
-spec as_list(term()) -> [term()].
as_list(Names) when is_list(Names) -> Names;
as_list(Name) -> [Name].

file_of(Name) ->
    code:where_is_file(atom_to_list(Name) ++ ".app").

%% Whether a module belongs to OTP, or to Trunkline. The transform itself reports calls of those.
-spec is_otp(module()) -> boolean().
is_otp(Module) ->
    lists:member(Module, modules_of(trunkline)) orelse is_in_otp(Module).

is_in_otp(Module) ->
    case code:which(Module) of
        File when is_list(File), File =/= "" ->
            [Name | _] = string:split(filename:basename(filename:dirname(filename:dirname(File))),
                                      "-"),
            lists:member(Name, [atom_to_list(A) || A <- ?NEVER ++ ?OTP]);
        cover_compiled ->
            false;
        _ ->
            true                             % preloaded, or not there
    end.

-spec application(name()) -> atom().
application({otp, Name}) -> Name;
application(Name) -> Name.

%% The modules of applications.
-spec modules([name()]) -> [module()].
modules(Names) ->
    lists:usort(lists:append([modules_of(application(Name)) || Name <- Names])).

%% An application is not loaded for this: that would set its environment, which others may want
%% to do first.
modules_of(Name) ->
    case listed(Name) of
        Modules when is_list(Modules) -> [Module || Module <- Modules, is_atom(Module)];
        _ -> []
    end.

listed(Name) ->
    case application:get_key(Name, modules) of
        {ok, Modules} ->
            Modules;
        undefined ->
            try
                %% (It may be in an archive.)
                {ok, Text, _} = erl_prim_loader:get_file(file_of(Name)),
                {ok, Tokens, _} = erl_scan:string(unicode:characters_to_list(Text)),
                {ok, {application, Name, Keys}} = erl_parse:parse_term(Tokens),
                proplists:get_value(modules, Keys, [])
            catch
                error:_ -> []
            end
    end.
