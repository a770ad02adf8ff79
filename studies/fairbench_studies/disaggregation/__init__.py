"""Studies of clusters with separate prefill and decode workers."""
