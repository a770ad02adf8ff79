"""Eviction policies, which choose the cached tokens that a replica's full KV memory loses."""
