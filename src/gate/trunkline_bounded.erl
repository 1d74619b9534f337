%% Whether a destination bounds its senders, as an inbox does, and which module knows more about it.
%%
%% Most destinations do not, and sending to these should cost next to nothing extra. So two things
%% are asked first. A word has a mark for each hash that a bounded destination has, but there are
%% only few different hashes. An array counts the bounded destinations with each of many hashes.
%% Reading a table would cost three times as much as the array, which costs twice as much as the
%% word. There are two of each: one for this node's pids, and for names without a node; and one for
%% all others. A node that has never heard of such a destination has none.
%%
%%     is there a mark? how many have this hash? ── none ──> send as usual
%%         │ some
%%         └────────────────────────────────────────────────> the module that keeps them: see the
%%                                                            callbacks
%%
%% The word is a persistent term, and a small integer: no process has to collect its garbage when
%% that is replaced.
%%
%% An array has two slots or more for each destination. When it becomes too small it is replaced by
%% another one, four times as large. That replaces a persistent term, which makes every process of
%% the node collect its garbage: it happens up to nine times in the life of a node with 100,000
%% inboxes.
%%
%% The lanes depend on this module, and not on the one that keeps the destinations.
-module(trunkline_bounded).
-moduledoc false.

-export([enter/3, cancel/2, are_there/0, may_be/1, is_bounded/1, refuses_call/1, arrived/2]).
-export([behind/1]).
-export([clear/1, add/2, remove/1, is_crowded/0, grow/1]).

-export_type([key/0, entered/0]).

-type key() :: pid() | atom() | {atom(), node()}.
%% `none': the destination does not bound its senders: send as usual. A pair: there is room, and the
%% process gets the wrapped message. `refused': there is no room, and the destination does not want
%% its senders to wait.
-type entered() :: none | {pid(), Wrapped :: term()} | refused | nosuspend.

%% Waits for room.
-callback enter(key(), Message :: term(), infinity | nosuspend) -> entered().
%% The message could not be sent after all.
-callback cancel(pid(), Wrapped :: term()) -> ok.
%% Whether the destination bounds its senders, so that they have to ask for room.
-callback is_bounded(key()) -> boolean().
%% Whether a call should not even be tried. It counts as refused then.
-callback refuses_call(key()) -> boolean().
%% Messages from that node, by lane, whose senders may not have known that a destination is bounded.
-callback arrived(node(), [trunkline_lane:entry()]) -> [trunkline_lane:entry()].
%% The process that answers what that process gets: another one, or the same.
-callback behind(pid()) -> pid().

-compile({inline, [module/1, kind/1, marks/1, mark/1]}).        % on the way of each message

%% The persistent terms that have the arrays.
-define(HERE, trunkline_bounded_here).
-define(ELSEWHERE, trunkline_bounded_elsewhere).
-define(SLOTS, 1024).
%% Another slot counts all destinations, and those behind it those with each mark.
-define(ALL(Slots), ((Slots) + 1)).
-define(MARKED(Hash, Slots), ((Slots) + 2 + (Hash))).
%% The persistent terms that have the words, and how many marks there are in one.
-define(MARKS_HERE, trunkline_bounded_marks_here).
-define(MARKS_ELSEWHERE, trunkline_bounded_marks_elsewhere).
-define(MARKS, 58).

%% --- for senders and inlets -------------------------------------------------------------

%% To be called before each message is sent.
-spec enter(key(), Message :: term(), infinity | nosuspend) -> entered().
enter(Key, Message, Patience) ->
    case module(Key) of
        none -> none;
        Module -> Module:enter(Key, Message, Patience)
    end.

-spec cancel(pid(), Wrapped :: term()) -> ok.
cancel(Pid, Wrapped) ->
    {_, _, Module} = persistent_term:get(kind(Pid)),
    Module:cancel(Pid, Wrapped).

%% Whether this node has ever heard of a bounded destination.
-spec are_there() -> boolean().
are_there() -> lists:any(fun are_there/1, [?HERE, ?ELSEWHERE]).

are_there(Kind) -> persistent_term:get(Kind, none) =/= none.

%% `false': it is certainly not bounded.
-spec may_be(key()) -> boolean().
may_be(Key) -> module(Key) =/= none.

-spec is_bounded(key()) -> boolean().
is_bounded(Key) ->
    case module(Key) of
        none -> false;
        Module -> Module:is_bounded(Key)
    end.

-spec refuses_call(key()) -> boolean().
refuses_call(Key) ->
    case module(Key) of
        none -> false;
        Module -> Module:refuses_call(Key)
    end.

-spec arrived(node(), [trunkline_lane:entry()]) -> [trunkline_lane:entry()].
arrived(Node, Entries) ->
    case persistent_term:get(?HERE, none) of
        none -> Entries;
        {_, _, Module} -> Module:arrived(Node, Entries)
    end.

%% The process that answers what Pid gets.
-spec behind(pid()) -> pid().
behind(Pid) ->
    case persistent_term:get(?HERE, none) of
        none -> Pid;
        {_, _, Module} -> Module:behind(Pid)
    end.

kind(Pid) when is_pid(Pid), node(Pid) =:= node() -> ?HERE;
kind(Name) when is_atom(Name) -> ?HERE;
kind(_) -> ?ELSEWHERE.

marks(?HERE) -> ?MARKS_HERE;
marks(?ELSEWHERE) -> ?MARKS_ELSEWHERE.

mark(Key) -> 1 bsl hash(Key).

hash(Key) -> erlang:phash2(Key, ?MARKS).

%% `none': it is certainly not bounded.
module(Key) ->
    Kind = kind(Key),
    case persistent_term:get(marks(Kind), 0) of
        0 ->
            none;
        Marks ->
            case Marks band mark(Key) of
                0 -> none;
                _ -> counted(Key, Kind)
            end
    end.

counted(Key, Kind) ->
    {Filter, Slots, Module} = persistent_term:get(Kind),
    case atomics:get(Filter, slot(Key, Slots)) of
        N when N > 0 -> Module;
        _ -> none
    end.

slot(Key, Slots) -> erlang:phash2(Key, Slots) + 1.

%% --- for the process that keeps them, which is the only one that writes -------------------

%% No bounded destination is left, and from here on that module knows more.
-spec clear(module()) -> ok.
clear(Module) -> lists:foreach(fun(Kind) -> clear(Kind, Module) end, [?HERE, ?ELSEWHERE]).

clear(Kind, Module) ->
    case persistent_term:get(Kind, none) of
        none ->
            ok;
        {_, Slots, _} ->
            ok = persistent_term:put(marks(Kind), 0),
            persistent_term:put(Kind, {new(Slots), Slots, Module})
    end.

new(Slots) -> atomics:new(?MARKED(?MARKS, Slots), [{signed, true}]).

%% To be called before others can look up the destination in that module.
-spec add(key(), module()) -> ok.
add(Key, Module) ->
    Kind = kind(Key),
    are_there(Kind) orelse persistent_term:put(Kind, {new(?SLOTS), ?SLOTS, Module}),
    count(Key, 1).

%% To be called as often as the destination was added.
-spec remove(key()) -> ok.
remove(Key) -> count(Key, -1).

count(Key, N) ->
    Kind = kind(Key),
    {Filter, Slots, _} = persistent_term:get(Kind),
    ok = count(Key, N, Filter, Slots),
    Marks = persistent_term:get(marks(Kind), 0),
    persistent_term:put(marks(Kind), case atomics:get(Filter, ?MARKED(hash(Key), Slots)) of
                                         0 -> Marks band bnot mark(Key);
                                         _ -> Marks bor mark(Key)
                                     end).

count(Key, N, Filter, Slots) ->
    lists:foreach(fun(Slot) -> atomics:add(Filter, Slot, N) end,
                  [slot(Key, Slots), ?ALL(Slots), ?MARKED(hash(Key), Slots)]).

-spec is_crowded() -> boolean().
is_crowded() -> lists:any(fun is_crowded/1, [?HERE, ?ELSEWHERE]).

is_crowded(Kind) ->
    case persistent_term:get(Kind, none) of
        none -> false;
        {Filter, Slots, _} -> atomics:get(Filter, ?ALL(Slots)) * 2 > Slots
    end.

%% Takes all destinations, each as often as it was added.
-spec grow([key()]) -> ok.
grow(Keys) ->
    lists:foreach(fun(Kind) -> grow(Kind, [Key || Key <- Keys, kind(Key) =:= Kind]) end,
                  [Kind || Kind <- [?HERE, ?ELSEWHERE], is_crowded(Kind)]).

grow(Kind, Keys) ->
    {_, Slots, Module} = persistent_term:get(Kind),
    Filter = new(4 * Slots),
    lists:foreach(fun(Key) -> count(Key, 1, Filter, 4 * Slots) end, Keys),
    persistent_term:put(Kind, {Filter, 4 * Slots, Module}).
