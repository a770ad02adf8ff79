"""The gateway: a queue before the cluster, which orders, releases and refuses requests."""
