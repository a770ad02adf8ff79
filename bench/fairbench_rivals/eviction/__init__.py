"""Cache eviction policies of other projects."""
