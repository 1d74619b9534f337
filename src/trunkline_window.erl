%% Credit: how many bytes of one lane may be under way.
%%
%%     lane                                   inlet
%%      | batch, 60 kB     in flight  60 kB    |
%%      |=====================================>|  unacknowledged  60 kB
%%      | batch, 60 kB     in flight 120 kB    |
%%      |=====================================>|  unacknowledged 120 kB
%%      |                                      |  ... a quarter of the window
%%      |<------------------------- ack 120 kB |  delivered, unacknowledged 0
%%      |  in flight 0                         |
%%
%% The lane sends while less than a window is in flight, so that the inlet
%% never holds more than a window and one batch. The inlet acknowledges what it
%% has delivered when that makes a quarter of the window, when it is asked to
%% (see trunkline_pace), or a little later. Hence a lane is never stuck: with a window in flight
%% there is a quarter of it at the inlet, or an acknowledgement under way.
%%
%% This module decides, and does nothing. Amounts are charges as
%% trunkline_gate packs them: they count bytes and messages at the same time.
-module(trunkline_window).

-export([sender/1, is_open/1, sent/2, acked/2, in_flight/1]).
-export([receiver/1, delivered/3, flush/1]).

-export_type([sender/0, receiver/0]).

-type charge() :: trunkline_gate:charge().
-opaque sender() :: {Window :: charge(), InFlight :: charge()}.
-opaque receiver() :: {Quarter :: charge(), Unacknowledged :: charge()}.

%% The sending side of a window of so many bytes.
-spec sender(Bytes :: pos_integer()) -> sender().
sender(Bytes) -> {trunkline_gate:limit(Bytes), 0}.

-spec is_open(sender()) -> boolean().
is_open({Window, InFlight}) -> InFlight < Window.

-spec sent(charge(), sender()) -> sender().
sent(Charge, {Window, InFlight}) -> {Window, InFlight + Charge}.

-spec acked(charge(), sender()) -> sender().
acked(Charge, {Window, InFlight}) -> {Window, InFlight - Charge}.

-spec in_flight(sender()) -> charge().
in_flight({_, InFlight}) -> InFlight.

%% The receiving side of the same window.
-spec receiver(Bytes :: pos_integer()) -> receiver().
receiver(Bytes) -> {trunkline_gate:limit(max(1, Bytes div 4)), 0}.

%% A batch has been delivered, whose lane wants to know `now' or `later'.
-spec delivered(trunkline_pace:ack(), charge(), receiver()) ->
          {ack, charge(), receiver()} | {later, receiver()}.
delivered(Ack, Charge, {Quarter, Unacked}) when Ack =:= now; Unacked + Charge >= Quarter ->
    {ack, Unacked + Charge, {Quarter, 0}};
delivered(later, Charge, {Quarter, Unacked}) ->
    {later, {Quarter, Unacked + Charge}}.

%% There is nothing else to do.
-spec flush(receiver()) -> {ack, charge(), receiver()} | none.
flush({_, 0}) -> none;
flush({Quarter, Unacked}) -> {ack, Unacked, {Quarter, 0}}.
