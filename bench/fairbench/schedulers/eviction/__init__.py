"""Eviction policies, which choose the cached tokens to evict when a replica's KV memory is full."""
