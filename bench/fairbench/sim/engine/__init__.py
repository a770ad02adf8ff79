"""Simulated engines: one contract a file or folder, and what they share."""
