defmodule Trunkline.PubSub.Place do
  @moduledoc "What the tests do with Phoenix.PubSub on a node, by a process that outlives the call."
  use GenServer

  @doc "What the application phoenix_pubsub does when it starts."
  def prepare do
    case :pg.start(Phoenix.PubSub) do
      {:ok, _} -> :ok
      {:error, {:already_started, _}} -> :ok
    end
  end

  @doc "Starts it, and a process that subscribes to `topic` and remembers what it hears."
  def open(options, topic) do
    :ok = prepare()
    GenServer.start(__MODULE__, {options, topic})
  end

  def heard(place), do: GenServer.call(place, :heard, 60_000)

  @doc "That process calls a function of Phoenix.PubSub. Among the arguments `:self` is its pid."
  def call(place, function, arguments) do
    GenServer.call(place, {:call, function, arguments}, 60_000)
  end

  @doc "It may be closed already, and its node may be gone."
  def close(place) do
    GenServer.stop(place, :normal, 60_000)
  catch
    :exit, _ -> :ok
  end

  def another_group(group), do: :"#{group}_of_another_version"

  @impl true
  def init({options, topic}) do
    Process.flag(:trap_exit, true)

    case Supervisor.start_link([{Phoenix.PubSub, options}], strategy: :one_for_one) do
      {:ok, supervisor} ->
        :ok = Phoenix.PubSub.subscribe(options[:name], topic, metadata: :ours)
        {:ok, {supervisor, []}}

      {:error, why} ->
        {:stop, why}
    end
  end

  @impl true
  def handle_call(:heard, _from, {_, heard} = state), do: {:reply, Enum.reverse(heard), state}

  def handle_call({:call, function, arguments}, _from, state) do
    arguments = Enum.map(arguments, &if(&1 == :self, do: self(), else: &1))
    {:reply, apply(Phoenix.PubSub, function, arguments), state}
  end

  @impl true
  def handle_info(message, {supervisor, heard}), do: {:noreply, {supervisor, [message | heard]}}

  @impl true
  def terminate(_, {supervisor, _}), do: Supervisor.stop(supervisor)
end

defmodule Trunkline.PubSub.Dispatcher do
  @moduledoc "A dispatcher as Phoenix's channels have one."

  def dispatch(entries, from, message) do
    for {pid, metadata} <- entries, do: send(pid, {metadata, from, message})
    :ok
  end
end
