defmodule Tea do
  defmacro __using__(_) do
    quote do
      def tea, do: Tea.pour(self())
    end
  end

  def pour(to), do: send(to, :tea)
end
