"""Timing profiles made: from a model's config and a GPU's name, from runs, from a live server."""
