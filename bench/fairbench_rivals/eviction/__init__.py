"""Third-party eviction policies."""
