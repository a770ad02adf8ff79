"""Plugins with which fairbench's schedulers decide about requests inside SGLang and vLLM."""
