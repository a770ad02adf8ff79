"""Simulated replicas in which an installed engine's own code takes each decision."""
