"""Comparisons of the simulator with others' measured runs, and the fits of its profiles."""
