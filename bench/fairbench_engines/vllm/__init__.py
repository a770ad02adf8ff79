"""Our local schedulers inside a vLLM server, through its ``--scheduler-cls``."""
