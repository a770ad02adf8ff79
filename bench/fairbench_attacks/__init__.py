"""The search for attacks on a scheduler: ``fairbench attack``."""

from fairbench.doors import Command

COMMAND = Command(
    "Simulate and compare",
    "Search for the attack that gains or harms most.",
    "fairbench_attacks.cli:attack",
)
