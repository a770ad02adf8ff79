"""Eviction policies of a replica's KV memory, one a file."""
