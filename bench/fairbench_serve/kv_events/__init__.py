"""KV cache events: the blocks that a worker stores and evicts, published by SGLang over ZMQ."""
