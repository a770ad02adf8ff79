"""Eviction policies, which choose the cached tokens that a replica evicts from full KV memory."""
