"""Capacity: the smallest cluster that meets targets at a load that is held fixed."""
