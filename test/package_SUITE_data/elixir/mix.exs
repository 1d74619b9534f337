defmodule Fresh.MixProject do
  use Mix.Project

  def project do
    [
      app: :fresh,
      version: "1.0.0",
      elixir: "~> 1.14",
      deps: [{:trunkline, path: "trunkline"}],
      # A release has ssl if connections shall use TLS. Trunkline starts it then.
      releases: [fresh: [], private: [applications: [fresh: :permanent, ssl: :load]]]
    ]
  end

  def application, do: [extra_applications: [:logger], mod: {Fresh, []}]
end
