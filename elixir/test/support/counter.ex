defmodule Chat.Counter do
  @moduledoc "A GenServer as many are: knows nothing of Trunkline."
  use GenServer

  def start(options \\ []), do: GenServer.start(__MODULE__, 0, options)

  @impl true
  def init(n), do: {:ok, n}

  @impl true
  def handle_call(:get, _from, n), do: {:reply, n, n}
  def handle_call({:add, m}, _from, n), do: {:reply, n + m, n + m}
  def handle_call(:never, _from, n), do: {:noreply, n}
  def handle_call(:crash, _from, _), do: raise("as asked")

  # The answer comes later, from handle_info.
  def handle_call({:later, what}, from, n) do
    send(self(), {:answer, from, what})
    {:noreply, n}
  end

  @impl true
  def handle_cast({:add, m}, n), do: {:noreply, n + m}
  def handle_cast(:stop, n), do: {:stop, :normal, n}

  @impl true
  def handle_info({:answer, from, what}, n) do
    GenServer.reply(from, what)
    {:noreply, n}
  end

  # To a struct with a struct.
  def handle_info({%Chat.Message{} = message, to}, n) do
    :trunkline.send(to, %{message | text: String.upcase(message.text)})
    {:noreply, n}
  end
end
