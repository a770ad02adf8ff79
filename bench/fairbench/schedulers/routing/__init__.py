"""Routers: which worker a request goes to, one policy a file."""
