"""Replicas of the simulated cluster in which an installed engine's own code takes each decision."""
