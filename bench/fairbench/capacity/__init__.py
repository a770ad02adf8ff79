"""Capacity: the smallest cluster that meets targets at a fixed load."""
