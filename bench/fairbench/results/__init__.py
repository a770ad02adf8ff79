"""Results: the run store, and what is made of stored runs."""
