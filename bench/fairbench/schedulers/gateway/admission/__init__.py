"""Admission control: who cannot be in time is refused, or goes behind everybody else."""
