"""Results: the run store, and comparisons of stored runs."""
