# What the adapter of docs/howto/phoenix-pubsub.md needs of Phoenix.PubSub, and subscribers that
# remember what they hear.
defmodule Phoenix.PubSub.Adapter do
  @callback node_name(atom) :: node
  @callback child_spec(keyword) :: map
  @callback broadcast(atom, binary, term, module) :: :ok | {:error, term}
  @callback direct_broadcast(atom, node, binary, term, module) :: :ok | {:error, term}
end

defmodule Phoenix.PubSub.PG2 do
  @behaviour Phoenix.PubSub.Adapter
  @impl true
  def node_name(_), do: node()
  @impl true
  def child_spec(options), do: %{id: __MODULE__, start: {TestPubSub, :start_pool, [options]}}
  @impl true
  def broadcast(_, _, _, _), do: raise("not by the default adapter")
  @impl true
  def direct_broadcast(_, _, _, _, _), do: raise("not by the default adapter")
end

defmodule TestPubSub do
  # It is compiled later.
  defp adapter, do: MyApp.PubSubAdapter

  @groups {:test_adapter, :test_adapter_2}

  def start do
    {:ok, _} = :pg.start(Phoenix.PubSub)
    %{start: {m, f, a}} = adapter().child_spec(name: Test, adapter_name: :test_adapter)
    apply(m, f, a)
  end

  def start_pool(options) do
    :persistent_term.put(options[:adapter_name], @groups)
    Agent.start(fn -> [] end, name: :test_heard)
    for group <- Tuple.to_list(@groups), do: start_member(group)
    :ok
  end

  defp start_member(group) do
    test = self()

    pid =
      spawn(fn ->
        Process.register(self(), group)
        :ok = :pg.join(Phoenix.PubSub, group, self())
        send(test, {:joined, self()})
        forward()
      end)

    receive do
      {:joined, ^pid} -> :ok
    end
  end

  defp forward do
    receive do
      {:forward_to_local, topic, message, TestPubSub} ->
        Agent.update(:test_heard, &[{topic, message} | &1])
        forward()
    end
  end

  def members do
    @groups |> Tuple.to_list() |> Enum.map(&length(:pg.get_members(Phoenix.PubSub, &1))) |> Enum.sum()
  end

  def broadcast(n) do
    there = hd(Node.list())
    true = adapter().node_name(:test_adapter) == node()
    for i <- 1..n, do: :ok = adapter().broadcast(:test_adapter, "topic", i, TestPubSub)
    adapter().direct_broadcast(:test_adapter, there, "direct", 0, TestPubSub)
  end

  def heard, do: Enum.reverse(Agent.get(:test_heard, & &1))
end
