Code.require_file("../../test/cluster.exs", __DIR__)
Trunkline.TestCluster.become_distributed()
Trunkline.PubSub.Place.prepare()
ExUnit.start(timeout: 300_000)
