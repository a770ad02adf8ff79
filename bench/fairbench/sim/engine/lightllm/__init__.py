"""LightLLM's loop as in S-LoRA: without a prefix cache or retractions."""
