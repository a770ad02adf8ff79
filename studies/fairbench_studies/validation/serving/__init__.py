"""The simulator's engines compared with real SGLang and vLLM servers."""
