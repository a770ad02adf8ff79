"""Runs of S-LoRA's engine in VTC-artifact, compared with their replay."""
