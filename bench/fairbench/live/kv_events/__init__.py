"""KV cache events: what a worker has stored and evicted, as SGLang publishes it over ZMQ."""
