"""Several routers before one fleet."""
