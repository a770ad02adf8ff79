"""Experiments, servers and drivers on a Ray cluster: ``--executor ray`` and ``--launcher ray``."""
