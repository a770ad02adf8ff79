"""Plugins inside SGLang and vLLM, in which our schedulers decide about real requests."""
