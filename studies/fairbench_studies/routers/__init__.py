"""Studies of several routers in front of the same workers."""
