"""Queues before the cluster: which request goes next, and when one may go."""
