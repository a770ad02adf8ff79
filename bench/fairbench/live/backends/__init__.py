"""Backends that can serve a live run: one file for each kind, and the workers of a run."""
