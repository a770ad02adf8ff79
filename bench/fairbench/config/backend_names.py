"""The names of backends: all that the help of a command needs to know of them."""

SIM = "sim"
STARTED = ("emulator", "sglang", "vllm")  # whose servers a run starts itself
