"""Comparisons of the simulator with measured runs, and fits of timing profiles."""
