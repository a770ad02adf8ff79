"""The VTC paper: its experiments, figures 3 to 14, and claims."""
