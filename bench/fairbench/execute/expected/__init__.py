"""What a workload will ask of a cluster, as far as that can be said without running it."""
