"""Hardware: the speed and memory of GPUs, and the settings of engines on them.

``catalogue`` has the bundled profiles; ``timing`` computes the duration of an iteration and
the KV pool's capacity; ``engine_params`` completes an engine's parameters from the hardware.
"""
