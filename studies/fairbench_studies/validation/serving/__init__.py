"""The simulator compared with measured runs of real SGLang and vLLM servers."""
