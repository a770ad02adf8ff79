"""Queues before the cluster: the order of requests, and the time at which each is released."""
