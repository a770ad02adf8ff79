"""The Preble paper: figures 3 to 5, ablation, scalability, and claims 30 to 34, 57 and 58."""
