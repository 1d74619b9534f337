defmodule TrunklineTest do
  @moduledoc "Elixir's servers at another node, spoken to with Trunkline."
  use ExUnit.Case

  alias Chat.{Counter, Message}
  alias Trunkline.TestCluster, as: Cluster

  setup_all do
    peer = Cluster.start_node([:chat])
    on_exit(fn -> Cluster.stop_node(peer) end)
    {_, node} = peer
    %{node: node}
  end

  setup %{node: node} do
    {:ok, counter} = :erpc.call(node, Counter, :start, [[name: Counter]])

    on_exit(fn ->
      monitor = Process.monitor(counter)
      Process.exit(counter, :kill)
      # The next one gets its name.
      assert_receive {:DOWN, ^monitor, :process, ^counter, _}, 60_000
    end)

    before = Cluster.by_lane(node)
    %{counter: counter, went_by_lane: fn -> Cluster.by_lane(node) - before end}
  end

  describe "a GenServer" do
    test "is called and cast to, under each form of its name",
         %{counter: counter, node: node} = context do
      :yes = :global.register_name(:counter, counter)

      servers = [counter, {Counter, node}, {:global, :counter}, {:via, :global, :counter}]

      for server <- servers do
        n = GenServer.call(counter, :get)
        assert :trunkline.call(server, {:add, 1}) == n + 1
        assert :trunkline.cast(server, {:add, 10}) == :ok
        assert :trunkline.call(server, :get, :infinity) == n + 11
      end

      assert context.went_by_lane.() == 12
    end

    test "answers later, from handle_info", %{counter: counter} do
      assert :trunkline.call(counter, {:later, "an answer"}) == "an answer"
    end

    test "that does not answer is a timeout", %{counter: counter} do
      assert catch_exit(:trunkline.call(counter, :never, 10)) ==
               {:timeout, {:trunkline, :call, [counter, :never, 10]}}

      # As with GenServer.call, but for the name.
      assert {:timeout, {GenServer, :call, [^counter, :never, 10]}} =
               catch_exit(GenServer.call(counter, :never, 10))

      refute_received _
    end

    @tag :capture_log
    test "that raises, or is not there, is an exit", %{counter: counter, node: node} do
      assert {{%RuntimeError{message: "as asked"}, _stack},
              {:trunkline, :call, [^counter, :crash]}} =
               catch_exit(:trunkline.call(counter, :crash))

      assert {:noproc, _} = catch_exit(:trunkline.call(counter, :get))
      assert {:noproc, _} = catch_exit(:trunkline.call({NoSuchServer, node}, :get))
      assert {{:nodedown, _}, _} = catch_exit(:trunkline.call({Counter, :no_such@node}, :get))
    end

    test "gets many requests at a time", %{counter: counter} do
      requests = for n <- 1..100, do: :trunkline.send_request(counter, {:add, n})

      assert for(request <- requests, do: :trunkline.receive_response(request, 60_000)) ==
               for(n <- 1..100, do: {:reply, div(n * (n + 1), 2)})
    end

    test "gets a struct, and sends one back", %{counter: counter} = context do
      message = %Message{room: "hall", from: "Ann", text: "hello"}
      assert :trunkline.send(counter, {message, self()}) == {message, self()}
      assert_receive %Message{from: "Ann", text: "HELLO"}, 60_000
      assert context.went_by_lane.() == 1
    end
  end

  test "an Agent sees ordinary calls", %{node: node} do
    {:ok, agent} = :erpc.call(node, Agent, :start, [Map, :new, []])
    assert :trunkline.call(agent, {:update, {Map, :put, [:key, "value"]}}) == :ok
    assert :trunkline.cast(agent, {:cast, {Map, :put, [:other, 2]}}) == :ok
    assert :trunkline.call(agent, {:get, &Function.identity/1}) == %{key: "value", other: 2}
    assert Agent.get(agent, Map, :get, [:key]) == "value"
    Agent.stop(agent)
  end

  describe "a Task" do
    test "calls another node, while others do", %{counter: counter} = context do
      tasks = for _ <- 1..50, do: Task.async(fn -> :trunkline.call(counter, {:add, 1}) end)
      assert tasks |> Task.await_many(60_000) |> Enum.sort() == Enum.to_list(1..50)
      assert context.went_by_lane.() == 50
    end

    test "of async_stream, too", %{counter: counter} do
      Task.async_stream(1..50, fn n -> :trunkline.cast(counter, {:add, n}) end) |> Stream.run()
      Cluster.await(fn -> :trunkline.call(counter, :get) == 1275 end)
    end

    test "at another node is awaited", %{node: node} do
      task = Task.Supervisor.async({Chat.Tasks, node}, String, :upcase, ["done"])
      assert Task.await(task, 60_000) == "DONE"
      assert :trunkline_erpc.call(node, String, :upcase, ["done"]) == "DONE"

      assert :trunkline_erpc.multicall([node, node()], Kernel, :node, []) == [
               ok: node,
               ok: node()
             ]
    end
  end

  describe "names of a Registry" do
    defp via(key), do: {:via, Registry, {Chat.Registry, key}}

    test "lead to a process of their own node", %{node: node} do
      name = via(:here)
      {:ok, _} = Counter.start(name: name)
      assert :trunkline.call(name, {:add, 5}) == 5
      assert :trunkline.cast(name, {:add, 5}) == :ok
      assert GenServer.call(name, :get) == 10

      assert {:exception, {:noproc, _}} =
               catch_exit(:erpc.call(node, :trunkline, :call, [name, :get]))

      GenServer.stop(name)
      assert {:noproc, _} = catch_exit(:trunkline.call(name, :get))
      assert :trunkline.cast(name, {:add, 5}) == :ok
    end

    test "can be asked for there", %{node: node} do
      {:ok, there} = :erpc.call(node, Counter, :start, [[name: via(:there)]])
      assert :trunkline_erpc.call(node, :trunkline, :call, [via(:there), {:add, 7}]) == 7

      assert [{^there, _}] =
               :trunkline_erpc.call(node, Registry, :lookup, [Chat.Registry, :there])

      assert :trunkline.call(there, :get) == 7
      assert :trunkline.cast(there, :stop) == :ok
    end
  end

  test "a monitor fires behind all that the process has said", %{node: node} do
    pid = Node.spawn(node, Chat.Guest, :count, [100, self()])
    monitor = :trunkline.monitor(:process, pid)
    :trunkline.send(pid, :go)
    assert_receive {:DOWN, ^monitor, :process, ^pid, :normal}, 60_000
    assert Process.info(self(), :messages) == {:messages, Enum.to_list(1..100)}
  end

  test "a node without Trunkline is spoken to as ever" do
    peer = {_, node} = Cluster.start_node([])
    {:ok, counter} = :erpc.call(node, Counter, :start, [])
    assert :trunkline.call(counter, {:add, 1}) == 1
    :trunkline.send(counter, {%Message{room: 1, from: 2, text: "plain"}, self()})
    assert_receive %Message{text: "PLAIN"}, 60_000
    Cluster.await(fn -> match?(%{state: :greeting}, :trunkline.info(node)) end)
    Cluster.stop_node(peer)
  end
end
