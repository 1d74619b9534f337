defmodule Trunkline.PubSubTest do
  @moduledoc """
  Nodes with the adapter and nodes without it: `there` has it, `stock` has the default adapter and
  runs Trunkline, `plain` has the default adapter and does not run Trunkline. Each case has a PubSub
  of its own on them. A broadcast comes from this node, or from a process of another one.
  """
  use ExUnit.Case

  alias Phoenix.PubSub
  alias Trunkline.PubSub.{Dispatcher, Place}
  alias Trunkline.TestCluster, as: Cluster

  @topic "kitchen"

  setup_all do
    peers =
      for applications <- [[:trunkline], [:trunkline], []], do: Cluster.start_node(applications)

    on_exit(fn -> Enum.each(peers, &Cluster.stop_node/1) end)
    [there, stock, plain] = for {_, node} <- peers, do: node
    Cluster.await_lanes(there, stock)
    for node <- [there, stock], do: true = :erpc.call(node, Node, :connect, [plain])
    %{there: there, stock: stock, plain: plain}
  end

  setup context do
    nodes = [
      {node(), Trunkline.PubSub},
      {context.there, Trunkline.PubSub},
      {context.stock, PubSub.PG2},
      {context.plain, PubSub.PG2}
    ]

    options = [name: context.test, pool_size: Map.get(context, :pool_size, 1)]
    places = for {node, adapter} <- nodes, do: open(node, [adapter: adapter] ++ options)
    await_members(context.test, Enum.map(nodes, &elem(&1, 0)))
    %{pubsub: context.test, places: places}
  end

  defp open(node, options) do
    {:ok, place} = :erpc.call(node, Place, :open, [options, @topic])
    on_exit(fn -> Place.close(place) end)
    place
  end

  # Each of the nodes knows of the groups of all of them.
  defp await_members(pubsub, nodes) do
    groups = Tuple.to_list(:persistent_term.get(Module.concat(pubsub, Adapter)))

    for group <- groups, node <- nodes do
      Cluster.await(fn ->
        members = :erpc.call(node, :pg, :get_members, [PubSub, group])
        Enum.sort(Enum.map(members, &node/1)) == Enum.sort(nodes)
      end)
    end
  end

  # What the places have heard, each of them in this order, and nothing more.
  defp assert_heard(places, expected) do
    for place <- places do
      Cluster.await(fn -> length(Place.heard(place)) >= length(expected) end)
      assert Place.heard(place) == expected
    end
  end

  # A message that comes behind what these have sent: so nothing else is on its way.
  defp fence(places, pubsub, to) do
    for place <- places do
      Place.call(place, :direct_broadcast, [node(to), pubsub, @topic, {:fence, node(place)}])
    end

    fences = for place <- places, do: {:fence, node(place)}
    Cluster.await(fn -> fences -- Place.heard(to) == [] end)
  end

  defp by_lane(node, function) do
    before = Cluster.by_lane(node)
    function.()
    Cluster.by_lane(node) - before
  end

  test "has the name of its node", %{pubsub: pubsub, places: places} do
    for place <- places do
      assert Place.call(place, :node_name, [pubsub]) == node(place)
    end
  end

  test "a broadcast reaches the subscribers of all nodes, once each, by lane",
       %{pubsub: pubsub, places: places} = context do
    for node <- [context.there, context.stock] do
      send = fn -> for n <- 1..10, do: assert(PubSub.broadcast(pubsub, "hall", n) == :ok) end
      assert by_lane(node, send) == 10
    end

    plainly = :trunkline.info().fallbacks
    assert PubSub.broadcast(pubsub, @topic, :tea) == :ok
    assert_heard(places, [:tea])
    assert :trunkline.info().fallbacks == plainly + 1
  end

  test "nodes with the default adapter are heard by those with this one, and by each other",
       %{pubsub: pubsub, places: places} do
    for place <- places do
      assert Place.call(place, :broadcast, [pubsub, @topic, node(place)]) == :ok
    end

    for place <- places do
      expected = places |> Enum.map(&node/1) |> Enum.sort()
      Cluster.await(fn -> length(Place.heard(place)) >= 4 end)
      assert Enum.sort(Place.heard(place)) == expected
    end
  end

  test "broadcast_from leaves out the broadcasting process, and nobody else",
       %{pubsub: pubsub, places: [_, there | _] = places} do
    assert Place.call(there, :broadcast_from, [pubsub, :self, @topic, :psst]) == :ok
    assert_heard(places -- [there], [:psst])
    fence(places -- [there], pubsub, there)
    refute :psst in Place.heard(there)
  end

  test "direct_broadcast reaches one node",
       %{pubsub: pubsub, places: [here | others] = places} = context do
    for {place, n} <- Enum.with_index(places) do
      direct = fn ->
        assert PubSub.direct_broadcast(node(place), pubsub, @topic, n) == :ok
      end

      if node(place) == context.there,
        do: assert(by_lane(node(place), direct) == 1),
        else: direct.()

      assert_heard([place], [n])
    end

    fence(others, pubsub, here)
    assert [0 | fences] = Place.heard(here)
    assert Enum.sort(fences) == Enum.sort(for place <- others, do: {:fence, node(place)})
    assert PubSub.direct_broadcast(:no_such@node, pubsub, @topic, :lost) == :ok
  end

  test "local_broadcast stays on its node",
       %{pubsub: pubsub, places: [here | others] = places} do
    assert PubSub.local_broadcast(pubsub, @topic, :here) == :ok
    assert_heard([here], [:here])

    for other <- others do
      fence([here], pubsub, other)
      assert Place.heard(other) == [{:fence, node()}]
    end

    assert length(places) == 4
  end

  test "a dispatcher goes with the broadcast", %{pubsub: pubsub, places: places} do
    from = self()
    assert PubSub.broadcast_from(pubsub, from, @topic, :tea, Dispatcher) == :ok
    [here | others] = places
    assert_heard([here], [{:ours, from, :tea}])
    assert_heard(others, [{:ours, :none, :tea}])
  end

  @tag pool_size: 4
  test "the broadcasts of one process stay in order, whatever their size and whatever the pool",
       %{pubsub: pubsub, places: [_, there | _] = places} do
    large = :binary.copy(<<1>>, 300_000)

    # Broadcasts to all and to one node take the same way.
    broadcast = fn from ->
      for n <- 1..300 do
        :ok = PubSub.broadcast(pubsub, @topic, {from, n, if(rem(n, 50) == 0, do: large)})
        :ok = PubSub.direct_broadcast(node(there), pubsub, @topic, {from, {n, :direct}, nil})
      end
    end

    1..6 |> Task.async_stream(broadcast, timeout: :infinity) |> Stream.run()

    for place <- places do
      size = if place == there, do: 3600, else: 1800
      Cluster.await(fn -> length(Place.heard(place)) >= size end)
      heard = Place.heard(place)
      assert length(heard) == size

      for from <- 1..6 do
        numbers = for {^from, n, _} <- heard, do: n

        if place == there do
          assert numbers == Enum.flat_map(1..300, &[&1, {&1, :direct}])
        else
          assert numbers == Enum.to_list(1..300)
        end
      end
    end
  end

  test "a node goes, and another comes", %{pubsub: pubsub, places: places} do
    broadcast = fn message -> assert PubSub.broadcast(pubsub, @topic, message) == :ok end

    start = fn ->
      peer = {_, node} = Cluster.start_node([:trunkline])
      guest = open(node, name: pubsub, adapter: Trunkline.PubSub)
      await_members(pubsub, [node | Enum.map(places, &node/1)])
      {peer, guest}
    end

    {peer, guest} = start.()
    for n <- 1..10, do: broadcast.(n)
    assert_heard([guest | places], Enum.to_list(1..10))

    Cluster.stop_node(peer)
    # Also before this node knows that it is gone.
    for n <- 11..20, do: broadcast.(n)
    await_members(pubsub, Enum.map(places, &node/1))
    for n <- 21..30, do: broadcast.(n)
    assert_heard(places, Enum.to_list(1..30))

    {peer, guest} = start.()
    broadcast.(31)
    assert_heard([guest], [31])
    Cluster.stop_node(peer)
  end

  test "a node is upgraded from the default adapter to this one",
       %{pubsub: pubsub, places: [here, there, stock, plain]} = context do
    assert PubSub.broadcast(pubsub, @topic, :before) == :ok
    assert_heard([stock], [:before])
    Place.close(stock)
    await_members(pubsub, Enum.map([here, there, plain], &node/1))

    stock = open(context.stock, name: pubsub, adapter: Trunkline.PubSub)
    await_members(pubsub, Enum.map([here, there, stock, plain], &node/1))
    assert PubSub.broadcast(pubsub, @topic, :behind) == :ok
    assert_heard([stock], [:behind])
    assert Place.call(stock, :broadcast, [pubsub, @topic, :back]) == :ok
    assert_heard([here, there, plain], [:before, :behind, :back])
  end

  test "a node on which Trunkline does not run uses the distribution",
       %{pubsub: pubsub, places: [here, _, _, plain] = places} = context do
    Place.close(plain)
    await_members(pubsub, Enum.map(places -- [plain], &node/1))
    plain = open(context.plain, name: pubsub, adapter: Trunkline.PubSub)
    places = List.replace_at(places, 3, plain)
    await_members(pubsub, Enum.map(places, &node/1))

    assert Place.call(plain, :broadcast, [pubsub, @topic, :tea]) == :ok
    assert_heard(places, [:tea])
    assert Place.call(here, :broadcast, [pubsub, @topic, :more]) == :ok
    assert_heard(places, [:tea, :more])
  end

  @tag :stand_in
  test "a PG2 whose processes are in other groups is an error at the start", %{there: there} do
    options = [name: Other, adapter: Trunkline.PubSub, joins: &Place.another_group/1]
    assert {:error, why} = :erpc.call(there, Place, :open, [options, @topic])
    assert inspect(why) =~ ":unknown_version_of_pg2"
    groups = :erpc.call(there, :pg, :which_groups, [PubSub])
    refute Enum.any?(groups, &(inspect(&1) =~ "of_another_version"))
  end
end
