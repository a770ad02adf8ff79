"""Figures, LaTeX tables and leaderboards of stored runs."""

from fairbench.doors import Command

PLOT = Command(
    "Stored results",
    "Draw a figure of the DLPM paper, or of your own runs.",
    "fairbench_papers.cli_plot:plot",
    place=3,
)
LEADERBOARD = Command(
    "Simulate and compare",
    "Rank the schedulers of stored sweeps by significant differences.",
    "fairbench_papers.cli_leaderboard:leaderboard",
    place=5,
)
