"""Routers that come from production systems of other projects."""
