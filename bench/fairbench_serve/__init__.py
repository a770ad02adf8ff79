"""The router process: a reverse proxy around a Router object."""
