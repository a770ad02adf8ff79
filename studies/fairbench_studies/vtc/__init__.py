"""The VTC paper again: its experiments, its figures 3 to 14, its claims."""
