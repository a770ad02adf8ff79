"""The simulator's default engines beside runs of real SGLang and vLLM servers."""
