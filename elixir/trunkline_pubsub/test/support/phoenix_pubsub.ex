# A stand-in for phoenix_pubsub, which comes from hex.pm: what adapters need of it, and no more. It
# was written from the documentation of the behaviour `Phoenix.PubSub.Adapter`, and from what
# `Phoenix.PubSub.PG2` of versions 2.0 to 2.2 says to other nodes:
#
#   - The processes of a pool register as `adapter_name`, `adapter_name_2`, ..., and join groups of
#     these names in the `:pg` scope `Phoenix.PubSub`.
#   - The groups that broadcasts go to are a tuple, under `adapter_name`, in a persistent term.
#   - They are sent `{:forward_to_local, topic, message, dispatcher}`.
defmodule Phoenix.PubSub.Adapter do
  @moduledoc false

  @callback node_name(adapter_name :: atom) :: atom | binary
  @callback child_spec(keyword) :: Supervisor.child_spec()
  @callback broadcast(adapter_name :: atom, topic :: binary, message :: term, module) ::
              :ok | {:error, term}
  @callback direct_broadcast(atom, node :: atom | binary, topic :: binary, term, module) ::
              :ok | {:error, term}
end

defmodule Phoenix.PubSub do
  @moduledoc false

  def child_spec(options) do
    %{id: options[:name], start: {__MODULE__, :start_link, [options]}, type: :supervisor}
  end

  def start_link(options) do
    name = Keyword.fetch!(options, :name)
    adapter = Keyword.get(options, :adapter, Phoenix.PubSub.PG2)
    adapter_name = Module.concat(name, Adapter)

    children = [
      {Registry, name: name, keys: :duplicate, meta: [pubsub: {adapter, adapter_name}]},
      {adapter, [adapter_name: adapter_name] ++ options}
    ]

    Supervisor.start_link(children, strategy: :rest_for_one)
  end

  def subscribe(pubsub, topic, options \\ []) do
    with {:ok, _} <- Registry.register(pubsub, topic, options[:metadata]), do: :ok
  end

  def node_name(pubsub), do: with_adapter(pubsub, :node_name, [])

  def broadcast(pubsub, topic, message, dispatcher \\ __MODULE__) do
    broadcast_from(pubsub, :none, topic, message, dispatcher)
  end

  def broadcast_from(pubsub, from, topic, message, dispatcher \\ __MODULE__) do
    with :ok <- with_adapter(pubsub, :broadcast, [topic, message, dispatcher]) do
      local_broadcast_from(pubsub, from, topic, message, dispatcher)
    end
  end

  def direct_broadcast(node_name, pubsub, topic, message, dispatcher \\ __MODULE__) do
    with_adapter(pubsub, :direct_broadcast, [node_name, topic, message, dispatcher])
  end

  def local_broadcast(pubsub, topic, message, dispatcher \\ __MODULE__) do
    local_broadcast_from(pubsub, :none, topic, message, dispatcher)
  end

  def local_broadcast_from(pubsub, from, topic, message, dispatcher \\ __MODULE__) do
    Registry.dispatch(pubsub, topic, {dispatcher, :dispatch, [from, message]})
  end

  def dispatch(entries, from, message) do
    for {pid, _} <- entries, pid != from, do: send(pid, message)
  end

  defp with_adapter(pubsub, function, arguments) do
    {:ok, {adapter, adapter_name}} = Registry.meta(pubsub, :pubsub)
    apply(adapter, function, [adapter_name | arguments])
  end
end

defmodule Phoenix.PubSub.PG2 do
  @moduledoc false
  @behaviour Phoenix.PubSub.Adapter
  use Supervisor

  def start_link(options), do: Supervisor.start_link(__MODULE__, options)

  @impl Supervisor
  def init(options) do
    adapter_name = options[:adapter_name]
    more = for n <- 2..Keyword.get(options, :pool_size, 1)//1, do: :"#{adapter_name}_#{n}"
    groups = [adapter_name | more]
    :persistent_term.put(adapter_name, List.to_tuple(groups))

    # Not an option of the real one: a version that joins other groups.
    joins = Keyword.get(options, :joins, & &1)

    for group <- groups do
      %{id: group, start: {__MODULE__.Worker, :start_link, [options[:name], joins.(group)]}}
    end
    |> Supervisor.init(strategy: :one_for_one)
  end

  @impl Phoenix.PubSub.Adapter
  def node_name(_), do: node()

  @impl Phoenix.PubSub.Adapter
  def broadcast(adapter_name, topic, message, dispatcher) do
    group = group(adapter_name)
    there = :pg.get_members(Phoenix.PubSub, group) -- :pg.get_local_members(Phoenix.PubSub, group)
    Enum.each(there, &send(&1, {:forward_to_local, topic, message, dispatcher}))
  end

  @impl Phoenix.PubSub.Adapter
  def direct_broadcast(adapter_name, node_name, topic, message, dispatcher) do
    send({group(adapter_name), node_name}, {:forward_to_local, topic, message, dispatcher})
    :ok
  end

  defp group(adapter_name) do
    groups = :persistent_term.get(adapter_name)
    elem(groups, :erlang.phash2(self(), tuple_size(groups)))
  end
end

defmodule Phoenix.PubSub.PG2.Worker do
  @moduledoc false
  use GenServer

  def start_link(pubsub, group),
    do: GenServer.start_link(__MODULE__, {pubsub, group}, name: group)

  @impl true
  def init({pubsub, group}) do
    :ok = :pg.join(Phoenix.PubSub, group, self())
    {:ok, pubsub}
  end

  @impl true
  def handle_info({:forward_to_local, topic, message, dispatcher}, pubsub) do
    Phoenix.PubSub.local_broadcast(pubsub, topic, message, dispatcher)
    {:noreply, pubsub}
  end
end
