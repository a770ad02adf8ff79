"""Backends of live runs: a module for each kind of backend, and the workers of a run."""
