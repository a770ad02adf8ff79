"""Hardware: the speed and memory of GPUs, and the settings of engines on them.

``catalogue`` has the bundled profiles; ``timing`` is how long an iteration takes and ``kv_pool``
how much fits; ``engine_limits`` completes an engine's parameters from the hardware.
"""
