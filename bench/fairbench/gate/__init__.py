"""The gate: stored runs against a baseline of the same experiments, metric by metric."""
