"""Experiments and servers on a Ray cluster (``--executor ray`` and ``--launcher ray``)."""
