"""The simulator compared with VTC-artifact's measured runs of S-LoRA's engine."""
