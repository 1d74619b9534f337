# Mix would ask whether to download a rebar3 of its own, though one is installed.
with nil <- System.get_env("MIX_REBAR3"),
     rebar3 when is_binary(rebar3) <- System.find_executable("rebar3") do
  System.put_env("MIX_REBAR3", rebar3)
end

defmodule Trunkline.PubSub.MixProject do
  use Mix.Project

  def project do
    [
      app: :trunkline_pubsub,
      version: "1.0.0-rc",
      elixir: "~> 1.14",
      description: "An adapter for Phoenix.PubSub that sends broadcasts with Trunkline",
      elixirc_paths: elixirc_paths(Mix.env()),
      # With the project in the folder above: Trunkline is compiled once for both.
      build_path: "../_build",
      deps: deps(Mix.env())
    ]
  end

  def application, do: [extra_applications: [:logger]]

  # The tests have a stand-in for Phoenix.PubSub (test/support/phoenix_pubsub.ex), since they must
  # run where hex.pm cannot be reached.
  defp deps(:test), do: [{:trunkline, path: "../..", manager: :rebar3}]
  defp deps(_), do: [{:phoenix_pubsub, "~> 2.0"} | deps(:test)]

  # What other nodes execute in the tests must be compiled for them.
  defp elixirc_paths(:test), do: ["lib", "test/support"]
  defp elixirc_paths(_), do: ["lib"]
end
