%% The tables of trunkline_monitor_rows and trunkline_watched. (They outlive a stop of the
%% application, in which the code may be replaced, so their names cannot change.)
-define(ROWS, trunkline_monitors).
-define(WATCHED, trunkline_monitors_watched).
