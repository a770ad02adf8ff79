"""Our local schedulers inside a vLLM server, by its ``--scheduler-cls``."""
