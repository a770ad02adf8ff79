"""The studies of fairbench: reproductions of papers, attacks, traces and comparisons."""

from fairbench.doors import Command

COMMAND = Command(
    "Papers",
    "Run missing simulations of a paper's figure; draw the figure.",
    "fairbench_studies.reproduce:reproduce",
)
