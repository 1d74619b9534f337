defmodule Kiosk.MixProject do
  use Mix.Project

  def project do
    [
      app: :kiosk,
      version: "1.0.0",
      elixir: "~> 1.14",
      deps: [
        {:trunkline, path: "trunkline", manager: :rebar3},
        {:shop, path: "shop", manager: :rebar3},
        {:tea, path: "tea"}
      ],
      compilers: Mix.compilers() ++ [:trunkline],
      trunkline: [adopt: [:shop, :tea]],
      releases: [kiosk: [steps: [:assemble, &Mix.Tasks.Compile.Trunkline.release/1]]]
    ]
  end
end
