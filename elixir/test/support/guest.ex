defmodule Chat.Guest do
  @moduledoc "Tells another process what it hears in a room, or how far it can count."

  def run(room, nick, to) do
    :ok = Chat.Room.join(room, nick)
    :trunkline.send(to, {self(), :joined})
    loop(room, to)
  end

  def count(n, to) do
    receive do
      :go -> for i <- 1..n, do: :trunkline.send(to, i)
    end
  end

  defp loop(room, to) do
    receive do
      {:leave, words} ->
        Chat.Room.say(room, words)

      message ->
        :trunkline.send(to, {self(), message})
        loop(room, to)
    end
  end
end
