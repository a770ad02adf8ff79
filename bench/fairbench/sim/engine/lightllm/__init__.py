"""LightLLM's loop as in S-LoRA: no prefix cache, and admission of what can decode to its end."""
