"""Clusters with prefill and decode workers."""
