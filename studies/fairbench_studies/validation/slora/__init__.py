"""Runs of S-LoRA's engine, which VTC-artifact holds, beside their replay."""
