defmodule Tea.MixProject do
  use Mix.Project

  def project, do: [app: :tea, version: "1.0.0"]
end
