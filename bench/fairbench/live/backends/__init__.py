"""What can serve a live run: one file for each kind, and the workers that are started of it."""
