"""Code that runs in the engine's Python and imports only the standard library and the engine."""
