defmodule Fresh do
  @moduledoc """
  Two nodes run this. One waits for a large message, and answers; the other, which knows the name
  of the first, sends it, and says which way the messages went. Both end by themselves.
  """
  use Application

  @long 60_000

  @impl true
  def start(_, _) do
    Task.start_link(fn ->
      Process.register(self(), :fresh)

      case System.get_env("FRESH_PEER") do
        nil -> receiver()
        peer -> sender(String.to_atom(peer))
      end

      System.stop()
      Process.sleep(:infinity)
    end)
  end

  defp receiver do
    :io.format("~0p.~n", [{:ready, node()}])

    receive do
      {:large, sender, large} ->
        Node.monitor(node(sender), true)
        :ok = :trunkline.await_up(node(sender), @long)
        :trunkline.send(sender, {:received, byte_size(large)})

        receive do
          {:nodedown, _} -> :ok
        after
          @long -> :ok
        end
    after
      @long -> :ok
    end
  end

  defp sender(peer) do
    true = Node.connect(peer)
    :ok = :trunkline.await_up(peer, @long)
    :trunkline.send({:fresh, peer}, {:large, self(), :binary.copy("x", 1_000_000)})

    receive do
      {:received, 1_000_000} -> :ok
    end

    received = received(peer, System.monotonic_time(:millisecond) + @long)
    %{fallbacks: fallbacks, large: %{messages: large, by: by}} = :trunkline.info(peer)
    running = for {app, _, _} <- Application.started_applications(), do: app
    done = {:done, %{fallbacks: fallbacks, large: large, by: by, received: received}, running}
    :io.format("~0p.~n", [done])
  end

  # A message is counted a moment after it has been delivered.
  defp received(peer, deadline) do
    %{lanes: lanes} = :trunkline.info(peer)

    case lanes |> Enum.map(& &1.received_messages) |> Enum.sum() do
      0 ->
        true = System.monotonic_time(:millisecond) < deadline
        Process.sleep(5)
        received(peer, deadline)

      received ->
        received
    end
  end
end
