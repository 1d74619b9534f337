Chat.Cluster.become_distributed()
ExUnit.start()
