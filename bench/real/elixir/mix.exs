defmodule Blocks.MixProject do
  use Mix.Project

  def project do
    [
      app: :blocks,
      version: "1.0.0",
      elixir: "~> 1.14",
      build_path: "../../../_build/blocks",
      # The adapter for Phoenix.PubSub, and the stand-in for Phoenix.PubSub that its tests have,
      # since this must run where hex.pm cannot be reached.
      elixirc_paths: ["lib", "#{pubsub()}/lib", "#{pubsub()}/test/support"],
      # Trunkline is there when this runs, and not when it is compiled.
      xref: [exclude: [:trunkline]]
    ]
  end

  defp pubsub, do: Path.expand("../../../elixir/trunkline_pubsub", __DIR__)
end
