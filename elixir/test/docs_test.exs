defmodule DocsTest do
  @moduledoc "What IEx shows of Trunkline, which is a dependency here."
  use ExUnit.Case, async: true
  import ExUnit.CaptureIO

  test "h :trunkline.send shows the documentation" do
    {:docs_v1, _, :erlang, "text/markdown", %{"en" => about}, _, docs} = Code.fetch_docs(:trunkline)
    assert about =~ "Messages between Erlang nodes"
    assert {_, _, _, %{"en" => text}, %{since: "0.1.0"}} = List.keyfind(docs, {:function, :send, 2}, 0)
    assert text =~ "Sends a message"

    {:ok, _} = Application.ensure_all_started(:iex)
    assert capture_io(fn -> IEx.Introspection.h({:trunkline, :call, 3}) end) =~ "timeout in milliseconds"
  end

  test "an error names the argument" do
    blamed =
      try do
        :trunkline.send(self(), :hello, [:nosuspent])
      rescue
        error -> Exception.format(:error, error, __STACKTRACE__)
      end

    assert blamed =~ "3rd argument: invalid option in list"
  end
end
