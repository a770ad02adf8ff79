"""The studies of fairbench: papers, attacks, traces and comparisons, reproduced."""
