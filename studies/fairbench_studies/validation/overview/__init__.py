"""A table and a picture of all measured runs, with a dot for each run."""
