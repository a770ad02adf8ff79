"""Plugins that let fairbench's schedulers decide inside SGLang and vLLM."""
