"""Backends of live runs: a file for each kind of backend, and the workers of a run."""
