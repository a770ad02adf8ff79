"""Hardware: what a GPU can do, and what an engine on it is set to.

``catalogue`` has the bundled profiles; ``timing`` is how long an iteration takes and ``kv_pool``
how much fits; ``engine_limits`` fills an engine's parameters up with what the hardware gives.
"""
