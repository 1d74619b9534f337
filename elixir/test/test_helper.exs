Chat.Cluster.become_distributed()
ExUnit.start(timeout: 300_000)
