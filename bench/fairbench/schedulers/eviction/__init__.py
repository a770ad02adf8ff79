"""Eviction policies of a replica's KV memory, one in each file."""
