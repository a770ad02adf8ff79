"""Routers of other projects' production systems."""
