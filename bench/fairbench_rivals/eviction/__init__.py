"""Eviction policies that come from other projects."""
