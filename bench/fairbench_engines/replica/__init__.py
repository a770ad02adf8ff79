"""Replicas of the simulated cluster whose every decision an installed engine's own code takes."""
