"""Simulated engines: one contract per file or folder, and their common parts."""
