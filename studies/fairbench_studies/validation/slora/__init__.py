"""Runs of S-LoRA's engine in VTC-artifact, compared with simulated replays."""
