Trunkline.PubSub.Cluster.become_distributed()
Trunkline.PubSub.Place.prepare()
ExUnit.start(timeout: 300_000)
