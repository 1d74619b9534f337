# Mix would ask whether to download a rebar3 of its own, though one is installed.
with nil <- System.get_env("MIX_REBAR3"), rebar3 when is_binary(rebar3) <- System.find_executable("rebar3") do
  System.put_env("MIX_REBAR3", rebar3)
end

defmodule Chat.MixProject do
  use Mix.Project

  def project do
    [
      app: :chat,
      version: "0.1.0",
      elixir: "~> 1.14",
      elixirc_paths: elixirc_paths(Mix.env()),
      deps: deps()
    ]
  end

  def application do
    [extra_applications: [:logger], mod: {Chat.Application, []}]
  end

  # Elsewhere: {:trunkline, git: "https://...", branch: "main", manager: :rebar3}, and MIX_REBAR3 as above.
  defp deps do
    [{:trunkline, path: "..", manager: :rebar3}]
  end

  # What other nodes execute in the tests must be compiled for them.
  defp elixirc_paths(:test), do: ["lib", "test/support"]
  defp elixirc_paths(_), do: ["lib"]
end
