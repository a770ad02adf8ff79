"""The engines: the pass of SGLang, vLLM and LightLLM, their KV memory, queue and batch."""
