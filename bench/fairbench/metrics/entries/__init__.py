"""The entries of the catalogue, by subject."""
