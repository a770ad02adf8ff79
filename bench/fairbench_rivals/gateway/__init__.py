"""Gateway policies, as production gateways implement them."""
