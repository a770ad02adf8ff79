"""Routers: the choice of a worker for each request, one policy in each file."""
