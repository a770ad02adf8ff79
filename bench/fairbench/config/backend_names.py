"""The names of backends, for the help of commands."""

SIM = "sim"
STARTED = ("emulator", "sglang", "vllm")  # whose servers a run starts itself
