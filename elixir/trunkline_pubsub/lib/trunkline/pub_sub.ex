defmodule Trunkline.PubSub do
  @moduledoc """
  An adapter for `Phoenix.PubSub` that sends broadcasts with Trunkline.

      children = [
        {Phoenix.PubSub, name: MyApp.PubSub, adapter: Trunkline.PubSub}
      ]

  It has the options of the default adapter, `Phoenix.PubSub.PG2` (`:pool_size` and
  `:broadcast_pool_size`), and uses its processes and groups:

      Phoenix.PubSub.broadcast/3                             Phoenix.PubSub.PG2's process
               |                                              of the other node
        Trunkline.PubSub ---- lane, or `!` to a node  ----->   |
                              without Trunkline                +--> subscribers of that node

  So nodes with this adapter and nodes with the default one understand each other, and can be
  upgraded one by one. Only the way of a broadcast to the other nodes differs: it is encoded once
  for all of them, and travels in batches, in order with everything else that the broadcasting
  process sends there with Trunkline.
  """

  @behaviour Phoenix.PubSub.Adapter

  alias Phoenix.PubSub.PG2

  @impl true
  def node_name(adapter_name), do: PG2.node_name(adapter_name)

  @impl true
  def child_spec(options) do
    %{id: __MODULE__, start: {__MODULE__, :start_link, [options]}, type: :supervisor}
  end

  @doc false
  def start_link(options) do
    %{start: {module, function, arguments}} = PG2.child_spec(options)

    with {:ok, pid} <- apply(module, function, arguments) do
      # A version of PG2 that has other groups would get no broadcast, and nothing would say so.
      groups = Tuple.to_list(groups(options[:adapter_name]))

      if Enum.all?(groups, &(:pg.get_local_members(Phoenix.PubSub, &1) != [])) do
        {:ok, pid}
      else
        :ok = Supervisor.stop(pid)
        {:error, {:unknown_version_of_pg2, groups}}
      end
    end
  end

  @impl true
  def broadcast(adapter_name, topic, message, dispatcher) do
    members = :pg.get_members(Phoenix.PubSub, group(adapter_name))
    elsewhere = for pid <- members, node(pid) != node(), do: pid
    :trunkline.multicast(elsewhere, forward(topic, message, dispatcher))
  end

  @impl true
  def direct_broadcast(adapter_name, node_name, topic, message, dispatcher) do
    to = {group(adapter_name), node_name}
    :trunkline.send(to, forward(topic, message, dispatcher))
    :ok
  end

  # What PG2 sends, and its processes understand: also those of other nodes and other versions.
  defp forward(topic, message, dispatcher), do: {:forward_to_local, topic, message, dispatcher}

  # One of the pool, always the same for a broadcasting process: that keeps the order.
  defp group(adapter_name) do
    groups = groups(adapter_name)
    elem(groups, :erlang.phash2(self(), tuple_size(groups)))
  end

  # Those that broadcasts go to. PG2 of phoenix_pubsub 2.0 has one, and no term that says so.
  defp groups(adapter_name), do: :persistent_term.get(adapter_name, {adapter_name})
end
