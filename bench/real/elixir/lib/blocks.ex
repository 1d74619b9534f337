defmodule Blocks do
  @moduledoc """
  Elixir's own building blocks between two nodes, for `bench_elixir`. Nothing in here knows of
  Trunkline: the adapter of Phoenix.PubSub is an argument.

  The functions with three arguments are operations with the other node. They get that node, the
  number of the process that calls them, and a number, which they answer. They fail if anything is
  lost, doubled or out of order.
  """
  use Supervisor

  alias Phoenix.PubSub

  # So many casts, or broadcasts, are sent before the other node must have said that it has them.
  @window 100
  @members 100
  @subscribers 10
  @topic "news"
  @timeout 30_000

  def window, do: @window

  @doc """
  Starts what the operations need, which outlives the process that calls this. Subscribers are on
  the node that others broadcast to, and not on the other one.
  """
  def start(adapter, subscribers?) do
    subscribers = if subscribers?, do: @subscribers, else: 0
    {:ok, supervisor} = Supervisor.start_link(__MODULE__, {adapter, subscribers})
    true = Process.unlink(supervisor)
    :ok
  end

  @impl true
  def init({adapter, subscribers}) do
    members = for i <- 1..@members, do: {Blocks.Member, {i, if(i <= subscribers, do: @topic)}}

    children = [
      Blocks.Server,
      %{id: Agent, start: {Agent, :start_link, [Map, :new, [], [name: Blocks.Agent]]}},
      {Task.Supervisor, name: Blocks.Tasks},
      {Registry, keys: :unique, name: Blocks.Registry},
      %{id: :pg, start: {:pg, :start_link, [PubSub]}},
      {PubSub, name: Blocks.PubSub, adapter: adapter}
    ]

    Supervisor.init(children ++ members, strategy: :one_for_one)
  end

  def call(node, _, n), do: GenServer.call({Blocks.Server, node}, {:echo, n}, @timeout)

  def casts(node, _, n) do
    server = {Blocks.Server, node}
    for k <- 1..@window, do: :ok = GenServer.cast(server, {:cast, self(), k})
    @window = GenServer.call(server, {:last, self()}, @timeout)
    n
  end

  def task(node, _, n) do
    {Blocks.Tasks, node}
    |> Task.Supervisor.async(Function, :identity, [n])
    |> Task.await(@timeout)
  end

  @doc "Names of a Registry are known on their own node, so that a server there looks them up."
  def registry(node, i, n) do
    GenServer.call({Blocks.Server, node}, {:tell, rem(i, @members) + 1, n}, @timeout)
  end

  def agent(node, i, n) do
    :ok = Agent.update({Blocks.Agent, node}, Map, :put, [i, n], @timeout)
    Agent.get({Blocks.Agent, node}, Map, :get, [i], @timeout)
  end

  @doc "Each subscriber answers the last one."
  def broadcasts(_, _, n) do
    for k <- 1..@window do
      :ok = PubSub.broadcast(Blocks.PubSub, @topic, {:news, self(), k, @window})
    end

    heard = for _ <- 1..@subscribers, do: heard()
    @subscribers = heard |> Enum.uniq() |> length()
    n
  end

  defp heard do
    receive do
      {:heard, subscriber} -> subscriber
    after
      @timeout -> exit(:timeout)
    end
  end

  @doc "The last numbers that have come, by sender, where `n` must be the next one of `from`."
  def next(numbers, from, n) do
    before = n - 1
    ^before = Map.get(numbers, from, 0)
    Map.put(numbers, from, n)
  end
end

defmodule Blocks.Server do
  @moduledoc "What the other node calls, and casts to. It ends if a cast does not come in its turn."
  use GenServer

  def start_link(_), do: GenServer.start_link(__MODULE__, %{}, name: __MODULE__)

  @impl true
  def init(numbers), do: {:ok, numbers}

  @impl true
  def handle_call({:echo, n}, _from, numbers), do: {:reply, n, numbers}

  def handle_call({:last, pid}, _from, numbers) do
    {last, others} = Map.pop(numbers, pid)
    {:reply, last, others}
  end

  # Who is found answers the caller.
  def handle_call({:tell, key, n}, from, numbers) do
    Registry.dispatch(Blocks.Registry, key, fn entries ->
      for {pid, _} <- entries, do: send(pid, {:told, from, n})
    end)

    {:noreply, numbers}
  end

  @impl true
  def handle_cast({:cast, from, n}, numbers), do: {:noreply, Blocks.next(numbers, from, n)}
end

defmodule Blocks.Member do
  @moduledoc """
  A process with a name of a Registry. Some subscribe to a topic: these end if a broadcast does not
  come in its turn.
  """
  use GenServer

  def child_spec({i, topic}), do: %{id: i, start: {__MODULE__, :start_link, [i, topic]}}

  def start_link(i, topic) do
    GenServer.start_link(__MODULE__, topic, name: {:via, Registry, {Blocks.Registry, i}})
  end

  @impl true
  def init(topic) do
    if topic, do: :ok = Phoenix.PubSub.subscribe(Blocks.PubSub, topic)
    {:ok, %{}}
  end

  @impl true
  def handle_info({:told, from, n}, numbers) do
    GenServer.reply(from, n)
    {:noreply, numbers}
  end

  def handle_info({:news, from, n, last}, numbers) do
    numbers = Blocks.next(numbers, from, n)

    if n == last do
      send(from, {:heard, self()})
      {:noreply, Map.delete(numbers, from)}
    else
      {:noreply, numbers}
    end
  end
end
