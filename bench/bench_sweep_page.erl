%% What bench_sweep has measured, as heat maps: a page and a picture.
%%
%% A field shows the ratio of Trunkline's median to that of `!' (or of `!' with delay_send). It is
%% green where Trunkline is as good or better, yellow within five hundredths of that, and red where
%% it is worse. Of times, less is better.
-module(bench_sweep_page).

-export([write/1, name/1, ratio/4]).

-export_type([result/0]).

-type result() :: #{group := string(), row := string(), column := string(),
                    figures := #{Unit :: string() => [{bench:variant(), [number()]}]}}.

-define(PAGE, "_build/sweep.html").
-define(PICTURE, "_build/sweep.svg").
%% Of a field, and of the names beside it and above it.
-define(WIDTH, 84).
-define(HEIGHT, 24).
-define(LEFT, 116).
-define(TOP, 50).
%% Where the second of two begins that stand side by side: behind five fields.
-define(SECOND, (?LEFT + 5 * ?WIDTH + 20)).

-spec name(#{group := string(), row := string(), column := string(), figures => _}) -> string().
name(#{group := Group, row := "", column := Column}) -> lists:concat([Group, ", ", Column]);
name(#{group := Group, row := Row, column := Column}) ->
    lists:concat([Group, ", ", Row, ", ", Column]).

%% One variant's median to that of another. (In a very short measurement a processor's clock may not
%% have ticked.)
-spec ratio(string(), bench:variant(), Base :: bench:variant(), result()) -> float() | none.
ratio(Unit, Variant, Base, #{figures := Figures}) ->
    Variants = maps:get(Unit, Figures, []),
    case [bench:median(Values) || V <- [Variant, Base], {V1, Values} <- Variants, V1 =:= V] of
        [One, Other] when One > 0, Other > 0 -> One / Other;
        _ -> none
    end.

-spec write([result()]) -> ok.
write([]) ->
    ok;
write(Results) ->
    ok = file:write_file(?PAGE, page(Results)),
    ok = file:write_file(?PICTURE, picture(Results)),
    bench:say("~n~ts and ~ts have the heat maps", [?PAGE, ?PICTURE]).

%% --- the page -------------------------------------------------------------------------

page(Results) ->
    ["<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">"
     "<title>Trunkline: the whole field</title>\n"
     "<style>body{font-family:sans-serif;margin:2em;max-width:75em}"
     "table{border-collapse:collapse}td,th{border:1px solid #ddd;padding:2px 8px;"
     "text-align:right}td:first-child,th:first-child{text-align:left}"
     "svg{margin:0 2em 1em 0;vertical-align:top}</style>\n"
     "<h1>The whole field</h1>\n<p>",
     io_lib:format("OTP ~s, ~b schedulers, up to ~b rounds; medians. ",
                   [erlang:system_info(otp_release), erlang:system_info(schedulers_online),
                    bench:rounds()]),
     "Each field is Trunkline's figure divided by that of the variant that the heading names. "
     "Green is as good or better. Of processor time and latency, less is better. "
     "<code>!</code> is measured twice in each round: the ratio of the two is noise.</p>\n",
     [["<h2>", Title, "</h2>\n", [svg([map(Group, Of, 0, 0, Unit, {Variant, Base})])
                                  || {Group, Of} <- groups(Unit, Variant, Base, Results)]]
      || {Title, Unit, Variant, Base} <- maps(), groups(Unit, Variant, Base, Results) =/= []],
     "<h2>All figures</h2>\n", [table(Unit, Results) || {_, Unit, trunkline, stock} <- maps()],
     "</html>\n"].

maps() ->
    [{"How many a second, divided by that of <code>!</code>", "a second", trunkline, stock},
     {"Processor time of both nodes, divided by that of <code>!</code>",
      "us of both nodes' processors", trunkline, stock},
     {"<code>!</code> measured once more, divided by <code>!</code>: how many a second", "a second",
      again, stock},
     {"The same: processor time", "us of both nodes' processors", again, stock},
     {"Latency, p50, divided by that of <code>!</code>", "us p50", trunkline, stock},
     {"Latency, p99, divided by that of <code>!</code>", "us p99", trunkline, stock},
     {"How many a second, divided by that of <code>!</code> with <code>delay_send</code>",
      "a second", trunkline, tuned},
     {"How many a second, divided by that within one node", "a second", trunkline, same},
     {"How many a second, divided by that of the sketch", "a second", trunkline, sketch}].

%% In the order in which they were measured, those that have such a figure.
groups(Unit, Variant, Base, Results) ->
    Names = unique([Group || #{group := Group} = R <- Results,
                             ratio(Unit, Variant, Base, R) =/= none]),
    [{Name, [R || #{group := Group} = R <- Results, Group =:= Name]} || Name <- Names].

unique([]) -> [];
unique([H | T]) -> [H | unique([X || X <- T, X =/= H])].

table(Unit, Results) ->
    Variants = [same, stock, again, tuned, sketch, trunkline],
    ["<h3>", Unit, ", median (lowest .. highest)</h3>\n<table><tr><th></th>",
     [["<th>", escape(variant(V)), "</th>"] || V <- Variants], "</tr>\n",
     [["<tr><td>", escape(name(R)), "</td>",
       [["<td>", spread(V, Of), "</td>"] || V <- Variants], "</tr>\n"]
      || #{figures := #{Unit := Of}} = R <- Results],
     "</table>\n"].

variant(same) -> "same node";
variant(stock) -> "!";
variant(again) -> "! once more";
variant(tuned) -> "! with delay_send";
variant(sketch) -> "the sketch";
variant(trunkline) -> "Trunkline".

spread(Variant, Variants) ->
    case lists:keyfind(Variant, 1, Variants) of
        {_, Values} -> [bench:number(bench:median(Values)), " (", bench:number(lists:min(Values)),
                        " .. ", bench:number(lists:max(Values)), ")"];
        false -> ""
    end.

%% --- the picture ----------------------------------------------------------------------

%% What a reader wants to know first: rates and processor time, against `!', side by side.
picture(Results) ->
    Units = [{"a second", "rate / !"},
             {"us of both nodes' processors", "processor time / !"}],
    {Maps, _} = lists:mapfoldl(
                  fun({Group, Of}, Y) ->
                          {[map([Group, ": ", Title], Of, X, Y, Unit, {trunkline, stock})
                            || {X, {Unit, Title}} <- lists:zip([0, ?SECOND], Units)],
                           Y + height(Of)}
                  end, 0, groups("a second", trunkline, stock, Results)),
    svg(Maps).

%% Each map is {Width, Height, What is drawn}.
svg(Maps) ->
    Drawn = lists:flatten(Maps),
    W = lists:max([Right || {Right, _, _} <- Drawn]),
    H = lists:max([Bottom || {_, Bottom, _} <- Drawn]),
    [io_lib:format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"~b\" height=\"~b\" "
                   "viewBox=\"0 0 ~b ~b\" font-family=\"sans-serif\" font-size=\"12\">~n"
                   "<rect width=\"~b\" height=\"~b\" fill=\"white\"/>~n",
                   [W, H, W, H, W, H]),
     [What || {_, _, {drawn, What}} <- Drawn], "</svg>\n"].

rows(Results) -> unique([Row || #{row := Row} <- Results]).

columns(Results) -> unique([Column || #{column := Column} <- Results]).

height(Results) -> ?TOP + ?HEIGHT * length(rows(Results)) + 14.

map(Title, Results, X, Y, Unit, {Variant, Base}) ->
    Rows = rows(Results),
    Columns = columns(Results),
    Place = fun(Name, Names) -> length(lists:takewhile(fun(N) -> N =/= Name end, Names)) end,
    Left = fun(Column) -> X + ?LEFT + ?WIDTH * Place(Column, Columns) end,
    Top = fun(Row) -> Y + ?TOP + ?HEIGHT * Place(Row, Rows) end,
    {max(X + ?LEFT + ?WIDTH * length(Columns) + 4, X + ?SECOND - 20), Y + height(Results),
     {drawn,
      [text(X + 4, Y + 18, "start", " font-weight=\"bold\"", Title),
       [text(Left(C) + ?WIDTH div 2, Y + ?TOP - 8, "middle", "", C) || C <- Columns],
       [text(X + ?LEFT - 8, Top(R) + 16, "end", "", R) || R <- Rows],
       [field(Left(C), Top(R), ratio(Unit, Variant, Base, Result), Unit)
        || #{row := R, column := C} = Result <- Results]]}}.

text(X, Y, Anchor, More, Text) ->
    io_lib:format("<text x=\"~b\" y=\"~b\" text-anchor=\"~s\"~s>~ts</text>~n",
                  [X, Y, Anchor, More, escape(lists:flatten(Text))]).

field(_, _, none, _) ->
    "";
field(X, Y, Ratio, Unit) ->
    Good = case Unit of
               "a second" -> Ratio;
               _ -> 1 / Ratio
           end,
    [io_lib:format("<rect x=\"~b\" y=\"~b\" width=\"~b\" height=\"~b\" fill=\"~s\" "
                   "stroke=\"white\"/>~n", [X, Y, ?WIDTH, ?HEIGHT, colour(Good)]),
     text(X + ?WIDTH div 2, Y + 16, "middle", "", io_lib:format("~.2f", [float(Ratio)]))].

%% The deeper, the further from 1: at a quarter, and at four times, it is deepest.
colour(Good) when Good >= 1 -> mix({220, 242, 216}, {98, 180, 99}, Good);
colour(Good) when Good >= 0.95 -> "#fdf2b8";
colour(Good) -> mix({252, 214, 196}, {222, 92, 70}, 1 / Good).

mix(Light, Deep, Times) ->
    Share = min(1.0, math:log(Times) / math:log(4)),
    ["#" | [io_lib:format("~2.16.0b", [round(element(I, Light)
                                             + Share * (element(I, Deep) - element(I, Light)))])
            || I <- [1, 2, 3]]].

escape(Text) ->
    lists:flatmap(fun($<) -> "&lt;"; ($>) -> "&gt;"; ($&) -> "&amp;"; (C) -> [C] end, Text).
