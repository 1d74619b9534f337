defmodule Trunkline.TestCluster do
  @moduledoc """
  Other nodes for the tests of both Mix projects, with the code of this one. Each is controlled over
  its standard input, so that it ends when the tests do, however they end.
  """

  @quiet ['-kernel', 'logger_level', 'none']

  def become_distributed do
    # What is lost when a test's node is stopped.
    Logger.configure(level: :error)
    {:ok, _} = Node.start(:"test_#{System.pid()}", :shortnames)
  end

  @doc "Starts a node with these applications, all of which need Trunkline, and connects to it."
  def start_node(applications) do
    cookie = Atom.to_charlist(Node.get_cookie())

    {:ok, peer, node} =
      :peer.start(%{
        name: :peer.random_name('test'),
        connection: :standard_io,
        args: @quiet ++ ['-setcookie', cookie, '-pa' | :code.get_path()]
      })

    for application <- [:elixir | applications] do
      {:ok, _} = :peer.call(peer, :application, :ensure_all_started, [application], 60_000)
    end

    true = Node.connect(node)
    if applications != [], do: await_lanes(node(), node)
    {peer, node}
  end

  def stop_node({peer, _}), do: :peer.stop(peer)

  @doc "Waits until two nodes know that both run Trunkline; until then the distribution is used."
  def await_lanes(a, b) do
    for {here, there} <- [{a, b}, {b, a}] do
      true = :erpc.call(here, Node, :connect, [there])
      :ok = :erpc.call(here, :trunkline, :await_up, [there, 60_000])
    end
  end

  @doc "How many messages have gone from this node to that one by lane."
  def by_lane(node) do
    # When the lanes have passed on what they were given.
    await(fn ->
      Enum.all?(:trunkline.info(node).lanes, &(&1.queued_messages + &1.in_flight_messages == 0))
    end)

    Enum.sum(for lane <- :trunkline.info(node).lanes, do: lane.messages)
  end

  def await(done?, tries \\ 12_000) do
    cond do
      done?.() -> :ok
      tries == 0 -> raise "it did not happen in a minute"
      true -> Process.sleep(5) && await(done?, tries - 1)
    end
  end
end
