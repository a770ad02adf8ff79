"""When a request may go: what a queue before the cluster knows of its load, one detector a file."""
