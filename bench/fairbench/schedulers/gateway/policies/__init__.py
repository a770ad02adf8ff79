"""The policies that pick the next flow of a queue before the cluster, one per file."""
