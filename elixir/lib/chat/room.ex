defmodule Chat.Room do
  @moduledoc """
  A room in which processes of all nodes talk.

  The room is a `GenServer` on one node, under a global name; its members may be on any. A member
  receives a `Chat.Message` for whatever is said, in the order in which the room heard it.

      {:ok, _} = Chat.Room.open("kitchen")
      :ok = Chat.Room.join("kitchen", "Ann")
      :ok = Chat.Room.say("kitchen", "Tea is ready")
      receive do
        %Chat.Message{from: "Ann", text: text} -> text
      end

  Trunkline is in four lines: the two by which clients speak to the room, the one by which
  the room speaks to its members, and the one by which it learns who has gone. Callbacks are those of any `GenServer`.
  """
  use GenServer, restart: :temporary

  alias Chat.Message

  # For clients, on any node.

  @doc "Opens a room on this node."
  def open(name) do
    DynamicSupervisor.start_child(Chat.Rooms, {__MODULE__, name})
  end

  def join(name, nick), do: call(name, {:join, nick, self()})
  def members(name), do: call(name, :members)

  @doc "Waits for nobody: it is said behind all that this process has said before."
  def say(name, text), do: :trunkline.cast(room(name), {:say, self(), text})

  defp call(name, request), do: :trunkline.call(room(name), request)

  defp room(name), do: {:global, {__MODULE__, name}}

  # The room.

  def start_link(name), do: GenServer.start_link(__MODULE__, name, name: room(name))

  @impl true
  def init(name), do: {:ok, %{name: name, members: %{}}}

  @impl true
  def handle_call({:join, nick, pid}, _from, %{members: members} = state) do
    if Enum.any?(members, fn {_, {taken, _}} -> taken == nick end) do
      {:reply, {:error, :taken}, state}
    else
      monitor = :trunkline.monitor(:process, pid)
      {:reply, :ok, put_in(state.members[pid], {nick, monitor})}
    end
  end

  def handle_call(:members, _from, state) do
    {:reply, state.members |> Enum.map(fn {_, {nick, _}} -> nick end) |> Enum.sort(), state}
  end

  @impl true
  def handle_cast({:say, pid, text}, state) do
    with %{^pid => {nick, _}} <- state.members do
      tell_all(state, nick, text)
    end

    {:noreply, state}
  end

  # Its last words came before.
  @impl true
  def handle_info({:DOWN, _monitor, :process, pid, _reason}, state) do
    {{nick, _}, state} = pop_in(state.members[pid])
    tell_all(state, nick, "(has left)")
    {:noreply, state}
  end

  defp tell_all(state, nick, text) do
    message = %Message{room: state.name, from: nick, text: text}
    :trunkline.multicast(Map.keys(state.members), message)
  end
end
