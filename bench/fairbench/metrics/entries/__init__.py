"""The entries of the catalogue, by what they are about."""
