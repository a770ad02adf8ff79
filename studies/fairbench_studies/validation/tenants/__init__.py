"""The simulator compared with runs of several tenants directly on an engine."""
