"""The simulator's default engines compared with real SGLang and vLLM servers."""
