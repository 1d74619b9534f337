%% The table of trunkline_watched. (It outlives a stop of the application, in which the code may be
%% replaced, so its name cannot change.)
-define(WATCHED, trunkline_monitors_watched).
