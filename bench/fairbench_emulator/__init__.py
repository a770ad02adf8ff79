"""The command ``fairbench emulate``: the simulated engine in real time, with SGLang's HTTP API."""

from fairbench.doors import Command

COMMAND = Command(
    "Real servers",
    "Serve SGLang's HTTP API with the simulated engine.",
    "fairbench_emulator.cli:emulate",
)
