"""Timing profiles from a model's config and a GPU, from runs, or from a live server."""
