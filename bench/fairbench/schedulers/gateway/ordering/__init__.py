"""Which request of a flow goes first: the orders of a queue before the cluster, one a file."""
