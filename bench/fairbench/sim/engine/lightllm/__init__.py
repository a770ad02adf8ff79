"""LightLLM's loop as S-LoRA has it: no prefix cache, and only what can be decoded to its end."""
