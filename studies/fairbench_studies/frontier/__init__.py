"""The frontier study compares fair-finish with other pairs of a global and a local scheduler."""
