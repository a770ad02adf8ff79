"""The simulated engines SGLang, vLLM and LightLLM, with their KV memory, queues and batches."""
