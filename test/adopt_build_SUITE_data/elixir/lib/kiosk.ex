defmodule Kiosk do
  # Loads the module while the project is compiled, before it is adopted.
  use Tea

  def hello do
    :hello = :shop.tell(self(), :hello)
    :tea = tea()
    %{adopted: adopted} = :trunkline_adopt.check()
    :io.format("~0p.~n", [{:adopted, adopted, :shop_till.total([1, 2])}])
  end
end
