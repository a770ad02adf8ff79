"""A server with SGLang's HTTP API whose engine is the simulator, run in real time."""
