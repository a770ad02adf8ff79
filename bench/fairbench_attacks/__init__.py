"""The command ``fairbench attack``, which searches for attacks on a scheduler."""

from fairbench.doors import Command

COMMAND = Command(
    "Simulate and compare",
    "Search for the attack that harms other clients most, or that benefits the attacker most.",
    "fairbench_attacks.cli:attack",
)
