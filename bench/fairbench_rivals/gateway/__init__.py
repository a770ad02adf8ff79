"""Policies of the queue in production gateways."""
