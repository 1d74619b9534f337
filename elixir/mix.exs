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

  # Elsewhere: {:trunkline, git: "https://...", branch: "main", manager: :rebar3}
  defp deps do
    [{:trunkline, path: "..", manager: :rebar3}]
  end

  # What other nodes execute in the tests must be compiled for them.
  defp elixirc_paths(:test), do: ["lib", "test/support"]
  defp elixirc_paths(_), do: ["lib"]
end
