"""Code that runs in the engine's Python: standard library and the engine only."""
