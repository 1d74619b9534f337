%% Whether senders that do not wait overrun a process that keeps messages for another one.
%%
%% Many processes that send with `!' get more processor time than the process that drops their
%% messages, or passes them on to a quick server, and its mailbox would grow without bound. So it
%% has high priority while it is behind. Then the server gets behind, and the inbox has to drop
%% some.
-module(trunkline_overrun).
-moduledoc false.

-export([new/0, uninvited/1, look/1, look_again/1, behind/1, calm/1]).

-export_type([overrun/0]).

%% Messages in the mailbox. With more the process is behind.
-define(BEHIND, 1000).
%% It looks each time that so many messages have come whose senders did not wait (a power of two).
-define(EACH, 256).

%% How many such messages have come, and the length of the mailbox when the process last looked; 0:
%% it is not behind.
-opaque overrun() :: {Uninvited :: non_neg_integer(), Behind :: non_neg_integer()}.

-spec new() -> overrun().
new() -> {0, 0}.

%% The calling process has received a message whose sender has not waited.
-spec uninvited(overrun()) -> overrun().
uninvited({N, Behind}) when N band (?EACH - 1) =/= 0 -> {N + 1, Behind};
uninvited({N, Behind}) -> look({N + 1, Behind}).

-spec look(overrun()) -> overrun().
look({N, Behind} = Overrun) ->
    case process_info(self(), message_queue_len) of
        {_, Length} when Length > ?BEHIND ->
            _ = Behind =:= 0 andalso process_flag(priority, high),
            {N, Length};
        _ ->
            calm(Overrun)
    end.

%% Looks only if it was behind.
-spec look_again(overrun()) -> overrun().
look_again({_, 0} = Overrun) -> Overrun;
look_again(Overrun) -> look(Overrun).

%% How many messages were in the mailbox, if they were many.
-spec behind(overrun()) -> non_neg_integer().
behind({_, Behind}) -> Behind.

%% It is not behind any more.
-spec calm(overrun()) -> overrun().
calm({_, 0} = Overrun) -> Overrun;
calm({N, _}) -> process_flag(priority, normal), {N, 0}.
