defmodule Chat.RoomTest do
  use ExUnit.Case

  alias Chat.{Message, Room}
  alias Trunkline.TestCluster, as: Cluster

  setup_all do
    peers = for _ <- 1..2, do: Cluster.start_node([:chat])
    on_exit(fn -> Enum.each(peers, &Cluster.stop_node/1) end)
    [{_, first}, {_, second}] = peers
    Cluster.await_lanes(first, second)
    # Each knows of the others' global names, and tells them of its own.
    for node <- [node(), first, second], do: :ok = :erpc.call(node, :global, :sync, [])
    %{there: first, elsewhere: second}
  end

  # A member that passes on what it hears, on a node where this file is not known.
  defp guest(node, room, nick) do
    pid = Node.spawn(node, Chat.Guest, :run, [room, nick, self()])
    assert_receive {^pid, :joined}, 60_000
    pid
  end

  # What this process hears, in the order in which it came.
  defp heard do
    assert_receive %Message{room: "kitchen", from: nick, text: text}, 60_000
    {nick, text}
  end

  test "is the same from all nodes", %{there: there, elsewhere: elsewhere} do
    {:ok, room} = :erpc.call(there, Room, :open, ["kitchen"])
    assert node(room) == there
    :ok = :global.sync()

    assert Room.join("kitchen", "Ann") == :ok
    assert Room.join("kitchen", "Ann") == {:error, :taken}
    bob = guest(elsewhere, "kitchen", "Bob")
    assert Room.members("kitchen") == ["Ann", "Bob"]

    for n <- 1..100, do: assert(Room.say("kitchen", n) == :ok)
    assert for(_ <- 1..100, do: heard()) == for(n <- 1..100, do: {"Ann", n})
    for n <- 1..100, do: assert_receive({^bob, %Message{from: "Ann", text: ^n}}, 60_000)

    :trunkline.send(bob, {:leave, "Good night"})
    assert heard() == {"Bob", "Good night"}
    assert heard() == {"Bob", "(has left)"}
    assert Room.members("kitchen") == ["Ann"]
  end
end
