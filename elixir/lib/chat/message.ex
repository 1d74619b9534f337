defmodule Chat.Message do
  @moduledoc "What a member of a room receives."
  @enforce_keys [:room, :from, :text]
  defstruct [:room, :from, :text]
end
