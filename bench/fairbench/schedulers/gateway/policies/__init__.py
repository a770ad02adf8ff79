"""Which flow goes next: the policies of a queue before the cluster, one a file."""
