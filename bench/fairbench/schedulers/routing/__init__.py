"""Routers, which choose a worker for each request."""
