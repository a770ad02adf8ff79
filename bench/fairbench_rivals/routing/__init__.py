"""Routers that others run in production."""
