defmodule Chat.Guest do
  @moduledoc "A member of a room that tells another process what it hears."

  def run(room, nick, to) do
    :ok = Chat.Room.join(room, nick)
    :trunkline.send(to, {self(), :joined})
    loop(room, to)
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
