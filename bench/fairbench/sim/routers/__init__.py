"""Several routers before one simulated fleet."""
