"""User files: read only in this package, because their content is untrusted."""
