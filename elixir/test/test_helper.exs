Code.require_file("cluster.exs", __DIR__)
Trunkline.TestCluster.become_distributed()
ExUnit.start(timeout: 300_000)
