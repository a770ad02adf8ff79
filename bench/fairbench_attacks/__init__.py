"""The command ``fairbench attack``, which searches for attacks on a scheduler."""

from fairbench.doors import Command

COMMAND = Command(
    "Simulate and compare",
    "Find the attack that harms others or benefits the attacker most.",
    "fairbench_attacks.cli:attack",
)
