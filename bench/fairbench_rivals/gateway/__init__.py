"""Policies that order the queue of a gateway, as production gateways implement them."""
