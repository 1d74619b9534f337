%% Draws a view (trunkline_sample) for trunkline_top, as lines of a given width. Pure.
%%
%%     heading      the node, and what concerns all of it
%%     table        a line for each peer, lane or inbox; those that do not fit are counted
%%     hints        what is wrong, in words (they come from trunkline_hints)
%%     keys
%%
%% No line is longer than the screen is wide. On a wide screen the names get the extra room.
-module(trunkline_screen).
-moduledoc false.

-export([lines/3, help/1, options/1, sorts/1, short/1, bytes/1, time/1, name/2]).

-export_type([show/0, sort/0]).

-type show() :: peers | lanes | inboxes.
-type sort() :: name | atom().
-type settings() :: #{columns := pos_integer(), rows := pos_integer(),
                      show := show(), sort := sort(),
                      keys := boolean()}.        % whether there are any: not in a single print
-type column() :: {Above :: string(), Title :: string(), Width :: pos_integer(),
                   fun((map()) -> unicode:chardata())}.

%% Columns of a screen. With WIDE or more there is room for table columns that do not fit into 80.
%% Names get at least SHORTEST.
-define(WIDE, 90).
-define(SHORTEST, 8).

%% How the rows can be sorted: by name, or the largest first.
-spec sorts(show()) -> [sort()].
sorts(peers) ->
    [name, messages_out, messages_in, bytes_out, bytes_in, queued_bytes, waited, large_pending,
     lost];
sorts(lanes) -> [name, messages_out, messages_in, queued_bytes, in_flight_bytes, waited];
sorts(inboxes) -> [name, queued_messages, queued_bytes, full, passed, dropped].

%% The options of trunkline_top:start/2. What the rows can be sorted by depends on what is shown.
-spec options(Given :: term()) -> [trunkline_function_options:declared()].
options(Given) ->
    Shows = [peers, lanes, inboxes],
    Sorts = case Given of
                #{show := Show} -> [Sort || lists:member(Show, Shows), Sort <- sorts(Show)];
                _ -> sorts(peers)
            end,
    [{show, one_of(Shows), fun(Show) -> lists:member(Show, Shows) end},
     {sort, one_of(Sorts), fun(Sort) -> lists:member(Sort, Sorts) end},
     {interval, "an integer from 100 to 60000",
      fun(Ms) -> is_integer(Ms) andalso Ms >= 100 andalso Ms =< 60_000 end}].

one_of(Atoms) -> ["one of ", lists:join(", ", [atom_to_list(Atom) || Atom <- Atoms])].

-spec lines(trunkline_sample:view(), Hints :: [string()], settings()) -> [string()].
lines(View, Hints, #{columns := Columns} = Settings) ->
    Below = hints([hint(Hint, Columns) || Hint <- Hints], most(Settings)) ++ keys(Settings),
    Table = table(View, Settings, room(Settings, 1 + length(Below))),
    [cut(Line, Columns) || Line <- [heading(View, Columns) | Table] ++ Below].

room(#{rows := Rows}, Others) -> max(1, Rows - Others).

%% The name of the node gets the room that the rest of the line leaves.
heading(#{node := Node, release := Release, uptime := Uptime, peers := Peers} = View, Columns) ->
    #{refused := Refused} = View,
    Up = length([up || #{state := up} <- Peers]),
    First = text("trunkline ~ts  ", [Release]),
    Last = text("  ~ts  peers ~b (~b up)  lost ~ts  refused ~ts",
                [uptime(Uptime), length(Peers), Up,
                 short(lists:sum([Lost || #{lost := Lost} <- Peers])), short(Refused)]),
    Room = max(?SHORTEST, Columns + 1 - length(First) - length(Last)),
    First ++ shorten(atom_to_list(Node), Room) ++ Last.

uptime(S) ->
    {Days, {H, M, Sec}} = calendar:seconds_to_daystime(S),
    text("~ts~b:~2..0b:~2..0b", [[text("~bd ", [Days]) || Days > 0], H, M, Sec]).

%% The table needs room, too.
most(#{rows := Rows}) -> Rows div 3.

hints([Lines | Hints], Most) when length(Lines) =< Most ->
    Lines ++ hints(Hints, Most - length(Lines));
hints([], _) -> [];
hints(Hints, _) -> [text(">> and ~b more", [length(Hints)])].

hint(Hint, Columns) ->
    [First | Rest] = string:split(wrap(Hint, Columns - 3), "\n", all),
    [">> " ++ First | ["   " ++ Line || Line <- Rest]].

wrap(Text, Width) ->
    [First | Words] = string:lexemes(Text, " "),
    lists:flatten(wrap(Words, First, Width)).

wrap([], Line, _) -> [Line];
wrap([Word | Words], Line, Width) ->
    case length(Line) + 1 + length(Word) =< Width of
        true -> wrap(Words, Line ++ " " ++ Word, Width);
        false -> [Line, "\n" | wrap(Words, Word, Width)]
    end.

keys(#{keys := false}) -> [];
keys(#{sort := Sort, show := Show}) ->
    Others = [text("~c ~ts  ", [hd(Other), Other])
              || Other <- ["peers", "lanes", "inboxes"], Other =/= atom_to_list(Show)],
    ["", text("Enter after: s sort (~ts)  ~ts? help  q quit", [words(Sort), Others])].

words(Name) -> lists:join(" ", string:lexemes(atom_to_list(Name), "_")).

%% Explains the columns.
-spec help(Columns :: pos_integer()) -> [string()].
help(Columns) ->
    [cut(Line, Columns)
     || Line <- ["state    up, and by which way: the distribution, or connections by TCP or TLS",
                 "round    the shortest round trip of the last minutes",
                 "out, in  a second, to the peer and from it, large messages included",
                 "mean     messages in a batch, of those that were sent between two looks",
                 "queue    bytes that wait in the lanes to the peer",
                 "waiting  senders that wait now, and how long they have waited since the last",
                 "         look: 100% is one sender all the time, or two for half of it;",
                 "         for an inbox, those of its own node",
                 "inboxes  those of them that wait for room in an inbox of the peer; on screens",
                 "         of 90 columns and more",
                 "large    bytes of large messages that are queued or in flight",
                 "lost     messages, since the start",
                 "again    batches that were sent again over another connection",
                 "",
                 "A number sets the seconds between two looks. Enter goes on."]].

%% --- tables ----------------------------------------------------------------------------

table(#{peers := Peers}, #{show := peers, columns := Width} = Settings, Room) ->
    table(peer_columns(Width), "peer", peer, Peers, 0, Settings, Room);
table(#{peers := Peers}, #{show := lanes} = Settings, Room) ->
    table(lane_columns(), "lane", fun lane_name/1,
          [Lane || #{lanes := Lanes} <- Peers, Lane <- Lanes], 0, Settings, Room);
table(#{inboxes := Inboxes, more_inboxes := More}, #{show := inboxes} = Settings, Room) ->
    table(inbox_columns(), "inbox", fun(#{name := Name, inbox := Pid}) -> name(Name, Pid) end,
          Inboxes, More, Settings, Room).

%% A title above two columns is as wide as both.
-spec peer_columns(Width :: pos_integer()) -> [column()].
peer_columns(Width) ->
    [{"", "state", 8, fun state/1},
     {"round", "trip", 6, fun(#{round_trip := Time}) -> time(Time) end},
     {" messages ", "out", 5, number(messages_out)}, {"", "in", 5, number(messages_in)},
     {"   bytes  ", "out", 5, number(bytes_out)}, {"", "in", 5, number(bytes_in)},
     {"batch", "mean", 5, fun mean_batch/1},
     {"queue", "", 6, number(queued_bytes)},
     {"  waiting ", "now", 5, number(waiting)}, {"", "time", 5, percent(waited)}
     | [Column || Width >= ?WIDE,
                  Column <- [{"  inboxes ", "now", 5, number(inbox_waiting)},
                             {"", "time", 5, percent(inbox_waited)}]]]
        ++ [{"large", "", 5, number(large_pending)},
            {"lost", "", 5, number(lost)},
            {"sent", "again", 5, number(sent_again)}].

lane_columns() ->
    [{" messages   ", "out", 6, number(messages_out)}, {"", "in", 6, number(messages_in)},
     {"batch", "mean", 6, fun mean_batch/1},
     {"   queued   ", "msgs", 6, number(queued_messages)}, {"", "bytes", 6, number(queued_bytes)},
     {"in", "flight", 7, number(in_flight_bytes)}, {"", "window", 7, number(window_bytes)},
     {" waiting  ", "now", 5, number(waiting)}, {"", "time", 5, percent(waited)},
     {"sent", "again", 6, number(sent_again)},
     {"conn.", "", 6, number(connections)}].

inbox_columns() ->
    [{"", "policy", 12, fun(#{policy := Policy}) -> atom_to_list(Policy) end},
     {"   queued   ", "msgs", 6, number(queued_messages)}, {"", "bytes", 6, number(queued_bytes)},
     {"", "full", 5, percent(full)},
     {"in", "work", 5, number(in_work)},
     {"passed", "a sec.", 7, number(passed)},
     {"time in", "queue", 8, fun(#{time := Time}) -> time(Time) end},
     {"", "waiting", 8, number(waiting)},
     {"dropped", "", 8, number(dropped)}].

state(#{state := up, way := Way}) -> "up " ++ atom_to_list(Way);
state(#{state := greeting}) -> "greet";
state(#{state := State}) -> lists:sublist(atom_to_list(State), 7).

mean_batch(#{batch := Mean}) when Mean == 0 -> "-";
mean_batch(#{batch := Mean}) -> short(Mean).

number(Key) -> fun(Row) -> short(maps:get(Key, Row)) end.

percent(Key) -> fun(Row) -> percentage(maps:get(Key, Row)) end.

lane_name(#{peer := Peer, lane := Ix}) -> text("~ts ~b", [Peer, Ix]).

table(Columns, What, Name, Rows, More, #{columns := Width, sort := Sort}, Room) ->
    Named = [{name_of(Name, Row), Row} || Row <- Rows],
    %% As wide as the longest name, and not wider than the rest of the line.
    Longest = lists:max([length(Text) || {Text, _} <- [{What, title} | Named]]) + 1,
    First = max(?SHORTEST, min(Longest, Width - lists:sum([W || {_, _, W, _} <- Columns]))),
    Titles = [titles([{"", First} | spanning(Columns)]),
              titles([{What, -First} | [{Title, W} || {_, Title, W, _} <- Columns]])],
    {Shown, Hidden} = fit(sorted(Sort, Named), Room, length(Titles)),
    Titles
        ++ [titles([{shorten(Text, First), -First}
                    | [{Cell(Row), W} || {_, _, W, Cell} <- Columns]])
            || {Text, Row} <- Shown]
        ++ ["(none)" || Rows =:= []]
        ++ [text("and ~b more", [Hidden + More]) || Hidden + More > 0].

name_of(Key, Row) when is_atom(Key) -> atom_to_list(maps:get(Key, Row));
name_of(Fun, Row) -> Fun(Row).

fit(Rows, Room, Titles) when length(Rows) + Titles =< Room -> {Rows, 0};
fit(Rows, Room, Titles) ->
    N = max(1, Room - Titles - 1),
    {lists:sublist(Rows, N), max(0, length(Rows) - N)}.

sorted(name, Named) ->
    lists:keysort(1, Named);
sorted(Key, Named) ->
    lists:sort(fun({NameA, A}, {NameB, B}) ->
                       {maps:get(Key, B), NameA} =< {maps:get(Key, A), NameB}
               end, Named).

spanning([{Above, _, W1, _}, {"", _, W2, _} | Columns]) when length(Above) =:= W1 + W2 ->
    [{Above, W1 + W2} | spanning(Columns)];
spanning([{Above, _, W, _} | Columns]) -> [{Above, W} | spanning(Columns)];
spanning([]) -> [].

titles(Cells) ->
    string:trim(lists:flatten([cell(Text, Width) || {Text, Width} <- Cells]), trailing).

cell(Text, Width) when Width < 0 -> string:pad(Text, -Width, trailing);
cell(Text, Width) -> string:pad(Text, Width, leading).

%% Leaves out the middle, because the end of a name tells more.
shorten(Text, Width) ->
    case length(Text) < Width of
        true -> Text;
        false ->
            Begin = (Width - 2) div 2,
            End = Width - 2 - Begin,
            lists:sublist(Text, Begin) ++ "~" ++ lists:nthtail(length(Text) - End, Text)
    end.

cut(Line, Columns) -> lists:sublist(Line, Columns).

%% --- values ----------------------------------------------------------------------------

%% A number in four characters.
-spec short(number()) -> string().
short(0) -> "0";
short(N) when N < 0.05 -> "0";
short(N) when N < 9.95, is_float(N) -> text("~.1f", [N]);
short(N) when N < 999.5 -> text("~b", [round(N)]);
short(N) -> short(N / 1000, "kMGTPE").

short(N, [Unit | _]) when N < 9.95 -> text("~.1f~c", [N, Unit]);
short(N, [Unit | Units]) when N < 999.5; Units =:= [] -> text("~b~c", [round(N), Unit]);
short(N, [_ | Units]) -> short(N / 1000, Units).

-spec bytes(non_neg_integer()) -> string().
bytes(N) -> text("~ts bytes", [short(N)]).

percentage(Share) when Share < 0.005 -> "0";
percentage(Share) when Share < 9.995 -> text("~b%", [round(100 * Share)]);
percentage(Share) -> short(100 * Share).

%% A time in microseconds, as text.
-spec time(non_neg_integer() | undefined) -> string().
time(undefined) -> "-";
time(T) when T < 1000 -> text("~bus", [T]);
time(T) when T < 9950 -> text("~.1fms", [T / 1000]);
time(T) when T < 999_500 -> text("~bms", [round(T / 1000)]);
time(T) -> text("~.1fs", [T / 1_000_000]).

%% The name of an inbox, or its pid.
-spec name(atom(), pid()) -> string().
name(undefined, Pid) -> pid_to_list(Pid);
name(Name, _) -> [printable(C) || C <- atom_to_list(Name)].

%% (A control character would end the line, or be a command to the terminal.)
printable(C) when C < 32; C >= 127, C < 160 -> $?;
printable(C) -> C.

text(Format, Args) -> lists:flatten(io_lib:format(Format, Args)).
