%% Commands: they travel in the place of an addressee, where a message is not simply for a process.
%%
%% They are part of the protocol between two nodes. trunkline_agent carries them out at the other
%% end. What happens to a command that cannot get there depends on the command alone, and is decided
%% here.
-module(trunkline_command).
-moduledoc false.

-export([call/3, call_plain/4, past/1, send_request/3, by_lane/1, wrap/2, request/1, receiver/1,
         for/2]).
-export([is_request/1, is_news/1, is_missed/1, is_of_session/1]).

-export_type([command/0, apply/0, exit/0, ended/0, server/0, caller/0, label/0,
              object/0, wrap/0]).

-dialyzer({no_improper_lists, [wrap/2]}).

%% The message is the request, the reply, or the reason.
-type command() :: {call, server(), Caller :: pid(), caller()}
                 %% The caller may do something else before it gets the reply.
                 | {call, server(), Caller :: pid(), caller(), label()}
                 %% See trunkline_plain_reply. The caller watches that inlet.
                 | {call, server(), Caller :: pid(), caller(), label(), Inlet :: pid()}
                 %% See trunkline_few_callers.
                 | {call, server(), Caller :: pid(), caller(), label(), past}
                 | {cancel, server(), caller()}
                 | {reply, caller()}
                 | {reply, caller(), Pid :: pid()}            % large, or behind a large message
                 | {down, server(), caller()}
                 | {monitor, server(), Caller :: pid(), reference()}
                 | {demonitor, reference()}
                 | ended()
                 | {tell, RegisteredName :: atom()}
                 %% See trunkline_in_turn.
                 | {turn, trunkline_in_turn:addressee(), reference(), Lane :: pid()}
                 | exit()
                 | apply().
%% The message is the reason. The process has ended that the caller monitors.
-type ended() :: {ended, object(), Caller :: pid(), reference()}.
%% The message is the reason.
-type exit() :: {exit, pid(), Sender :: pid()}.
%% The message is the function and its arguments. `nobody': no caller wants the outcome.
%% With the pid of a caller that does not wait for the outcome: it gets the outcome as a message,
%% among others. (To a peer with the capability `v1'. To others, the pid does not matter.)
-type apply() :: {apply, caller() | nobody, GroupLeader :: pid()}
               | {apply, caller(), GroupLeader :: pid(), Pid :: pid()}.

-type server() :: pid() | atom().
%% The caller's alias, which names the request.
-type caller() :: reference().
%% The first element of the request as the server gets it: '$gen_call' if the command has no label.
-type label() :: term().
%% What is monitored, as 'DOWN' names it.
-type object() :: pid() | {RegisteredName :: atom(), node()}.
%% How the message of a command looks to the process that receives it.
-type wrap() :: plain
              | {call, label(), gen_server:from()}
              | {reply, caller()}
              | {down, object() | atom(), caller()}.

%% A request of the calling process, which waits for the reply.
-spec call(server(), caller(), label()) -> command().
call(Server, Caller, '$gen_call') -> {call, Server, self(), Caller};
call(Server, Caller, Label) -> send_request(Server, Caller, Label).

%% The same if it would like to have a plain reply.
-spec call_plain(server(), caller(), label(), Inlet :: pid()) -> command().
call_plain(Server, Caller, Label, Inlet) -> {call, Server, self(), Caller, Label, Inlet}.

%% The same request, with a reply that goes past the lane if it can.
-spec past(command()) -> command() | none.
past({call, Server, Pid, Caller}) -> {call, Server, Pid, Caller, '$gen_call', past};
past(_) -> none.

%% The same if it may not wait.
-spec send_request(server(), caller(), label()) -> command().
send_request(Server, Caller, Label) -> {call, Server, self(), Caller, Label}.

%% The same request, with a reply that goes by lane.
-spec by_lane(To) -> To when To :: trunkline_lane:to().
by_lane({call, Server, Pid, Caller, Label, _}) -> {call, Server, Pid, Caller, Label};
by_lane(To) -> To.

-spec wrap(wrap(), Message :: term()) -> term().
wrap(plain, Message) -> Message;
wrap({call, Label, From}, Request) -> {Label, From, Request};
wrap({reply, Caller}, Reply) -> {[alias | Caller], Reply};
wrap({down, Object, Ref}, Reason) -> {'DOWN', Ref, process, Object, Reason}.

-spec request(command()) -> {server(), Pid :: pid(), caller(), label()}.
request({call, Server, Pid, Caller}) -> {Server, Pid, Caller, '$gen_call'};
request({call, Server, Pid, Caller, Label}) -> {Server, Pid, Caller, Label};
request({call, Server, Pid, Caller, Label, _}) -> {Server, Pid, Caller, Label}.

%% The process that gets the message of this command. `unknown': it may be any process, or several,
%% or it is not known before the command's turn.
-spec receiver(command() | trunkline_multicast:command()) -> pid() | {name, atom()} | unknown.
receiver({call, Server, _, _}) -> pid_or_name(Server);
receiver({call, Server, _, _, _}) -> pid_or_name(Server);
receiver({call, Server, _, _, _, _}) -> pid_or_name(Server);
receiver({cancel, Server, _}) -> pid_or_name(Server);
receiver({reply, _, Pid}) -> Pid;
receiver({monitor, Server, _, _}) -> pid_or_name(Server);
receiver({each, [To]}) when not is_reference(To) -> pid_or_name(To);
receiver({ended, _, Caller, _}) -> Caller;
receiver({exit, Pid, _}) -> Pid;
receiver({turn, Command, _, _}) when is_tuple(Command) -> receiver(Command);
receiver({turn, To, _, _}) -> pid_or_name(To);
receiver(_) -> unknown.

pid_or_name(Pid) when is_pid(Pid) -> Pid;
pid_or_name(Name) -> {name, Name}.

%% The same command, addressed to the process that has the name.
-spec for(pid(), Command) -> Command when Command :: command() | trunkline_multicast:command().
for(Server, {turn, Command, Ref, Lane}) when is_tuple(Command) ->
    {turn, for(Server, Command), Ref, Lane};
for(_, {turn, _, _, _} = Command) -> Command;        % looks up the name itself
for(_, {monitor, _, _, _} = Command) -> Command;     % so does this, and its 'DOWN' has the name
for(To, {each, [_]}) -> {each, [To]};
for(Server, Command) -> setelement(2, Command, Server).

-spec is_request(trunkline_lane:to()) -> boolean().
is_request(To) -> is_one_of(To, [call]).

%% Whether it is for a waiting caller: plain distribution can deliver it as well.
-spec is_news(trunkline_lane:to()) -> boolean().
is_news(To) -> is_one_of(To, [reply, down, ended]).

%% Whether it counts as lost if it ends with its lane. A command that takes something back does not,
%% nor does one that is repeated: a process that monitors another, or waits for its reply, hears of
%% the lane's end and asks again, and so do Trunkline's own processes (`tell'). Any other message
%% counts.
-spec is_missed(trunkline_lane:to()) -> boolean().
is_missed(To) -> not is_one_of(To, [cancel, monitor, demonitor, down, ended, tell, turn]).

%% Whether it concerns the session in which it was sent.
-spec is_of_session(trunkline_lane:to()) -> boolean().
is_of_session(To) -> is_tuple(To) andalso not is_one_of(To, [each, exit, call, apply]).

is_one_of(To, Commands) -> is_tuple(To) andalso lists:member(element(1, To), Commands).
