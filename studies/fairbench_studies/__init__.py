"""The studies of fairbench: reproductions of papers, attacks, traces and comparisons."""

from fairbench.doors import Command

COMMAND = Command(
    "Papers",
    "Run what a paper's figure lacks, then draw the figure.",
    "fairbench_studies.reproduce:reproduce",
)
