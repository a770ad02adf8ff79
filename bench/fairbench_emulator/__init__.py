"""The simulated engine behind SGLang's HTTP API, in real time: ``fairbench emulate``."""

from fairbench.doors import Command

COMMAND = Command(
    "Real servers",
    "Serve SGLang's HTTP API with the simulated engine.",
    "fairbench_emulator.cli:emulate",
)
