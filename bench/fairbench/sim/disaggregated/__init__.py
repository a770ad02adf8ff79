"""Clusters whose prefill workers compute prompts and whose decode workers generate the answers."""
