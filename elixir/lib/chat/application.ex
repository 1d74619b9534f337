defmodule Chat.Application do
  @moduledoc false
  use Application

  @impl true
  def start(_type, _args) do
    children = [
      {Registry, keys: :unique, name: Chat.Registry},
      {DynamicSupervisor, name: Chat.Rooms},
      {Task.Supervisor, name: Chat.Tasks}
    ]

    Supervisor.start_link(children, strategy: :one_for_one, name: Chat.Supervisor)
  end
end
