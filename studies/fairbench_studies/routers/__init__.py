"""Several routers in front of the same workers."""
