"""The gate: stored runs compared with a baseline of the same experiments."""
