"""Plugins that run fairbench's schedulers inside SGLang and vLLM."""
