"""The orders of requests within a flow of a queue before the cluster, one per file."""
