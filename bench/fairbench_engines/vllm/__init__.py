"""Fairbench's local schedulers inside a vLLM server, chosen by ``--scheduler-cls``."""
